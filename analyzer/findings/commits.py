"""Commits of groups: too many, refused, going back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from analyzer.findings.capture import NO_CODE, SECOND, CaptureFrame
from analyzer.findings.error_answers import about, found, of, taken
from analyzer.findings.fetch import reads
from analyzer.findings.rules import Found, Limits, replaced, rule
from analyzer.findings.runs import Run
from analyzer.findings.wording import client, count, name, place
from analyzer.frame import arrow, grouping, spill
from analyzer.frame.grouping import busiest_window, first_rows, rows_by_key, sort_by, split
from analyzer.protocol import api_keys

_COMMIT = taken((api_keys.OFFSET_COMMIT,), (12, 22, 25, 27, 28, 110, 113), every=True)
REBALANCE_IN_PROGRESS = 27


@rule(
    "fetch",
    "commit-storm",
    "note",
    "svc-a (10.0.0.4) commits 900 times a second at 10.0.0.1:9092 in group g.",
    why="Ten a second are fifty times the default (one in 5 s); a member that commits every record of a test made 5. "
    "From 100 a second at one broker on a warning.",
    unless="Offsets of transactions; fewer over ten seconds; a capture of less than a second.",
    advice="Commit once a poll, or on time.",
    judge="forged: 100 commits in 10 s, and 99",
    rate=10,
    much=100,
    window_s=10,
    by_clock=True,
)
def commit_storm(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.of_one(seen.of_api(api_keys.OFFSET_COMMIT))
    groups, named = seen.groups
    for mine in split(rows, seen.client[rows], seen.broker[rows], groups[rows], least=at.rate * at.window_s):
        mine = mine[np.argsort(seen.exchanges.asked[mine], kind="stable")]
        most, first, past = busiest_window(seen.exchanges.asked[mine], int(at.window_s * SECOND) - 1)
        if most < at.rate * at.window_s or seen.seconds < 1:
            continue
        who = seen.who(int(seen.client[mine[0]]), int(seen.broker[mine[0]]))
        group = named[groups[mine[0]]] if groups[mine[0]] >= 0 else None
        rate = most / min(at.window_s, seen.seconds)
        text = f"{client(who)} commits {rate:,.0f} times a second at {who['broker']} in group {name(group)}."
        asked = seen.exchanges.asked[mine]
        yield Found(
            text,
            most,
            int(asked[first]),
            int(asked[past - 1]),
            who,
            {"group_id": group},
            (int(mine[first]), int(mine[first]), int(mine[past - 1])),
            severity="warning" if most >= at.much * at.window_s else None,
        )


@rule(
    "fetch",
    "commit-failed",
    "warning",
    "11 commits of svc-a (10.0.0.4) for group g were refused (UNKNOWN_MEMBER_ID (25)): those records will be read "
    "again.",
    why="Each lost commit is work done twice; ten seconds cover a member that joins again.",
    unless="The same partitions were committed within ten seconds after, and nobody of the group read from before what "
    "was refused within a minute; the capture ended within those ten seconds. REBALANCE_IN_PROGRESS that is committed "
    "after is the protocol's course. What the client has no right to (authorization-failed), or no more as another "
    "member has its static name (instance-id-duplicate), is told there.",
    advice="As for rebalances: see what evicted the member.",
    judge="forged: refused and never committed, and committed five seconds later; committed, and read again, and not",
    mended_s=10,
    again_s=60,
    by_clock=True,
)
def commit_failed(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    known_until = seen.span[1] - at.mended_s * SECOND
    for trouble in of(seen, _COMMIT, lasting=False):
        twice, lost = 0, [trouble.rows[:0]]
        for run in trouble.runs:
            again = _read_again(seen, run, int(at.again_s * SECOND))
            rows = run.rows if again else _told(seen, run, known_until)
            if again or (len(rows) and not _mended(seen, rows, int(at.mended_s * SECOND))):
                twice += again
                lost.append(rows)
        rows = arrow.distinct(np.concatenate(lost))
        if not len(rows):
            continue
        many = "was" if len(rows) == 1 else "were"
        text = f"{count(len(rows), 'commit')} of {client(seen.who(trouble.client))}{about(trouble)} {many} refused "
        cause = "fetches from before what was to be committed" if twice else None
        text += f"({trouble.error}): "
        text += f"{count(twice, 'record')} {'was' if twice == 1 else 'were'} read again." if twice else _WILL_BE
        when = seen.exchanges.answered[rows]
        yield replaced(
            found(seen, trouble, text, None, cause, True if cause else None),
            count=len(rows),
            since=int(when.min()),
            until=int(when.max()),
            rows=tuple(rows[[0, 0, -1]].tolist()),
        )


_WILL_BE = "those records will be read again."


def _told(seen: CaptureFrame, run: Run, until: float) -> np.ndarray:
    """The refusals of a run that the capture goes on long enough after: what its end cuts off may yet be committed, and
    so may all of a rebalance that goes on."""
    early: np.ndarray = run.rows[seen.exchanges.answered[run.rows] <= until]
    return early if len(early) == len(run.rows) or run.code != REBALANCE_IN_PROGRESS else early[:0]


def _read_again(seen: CaptureFrame, run: Run, within: int) -> int:
    """How many records before the offset of a refused commit the group fetched again, after it."""
    groups, _ = seen.groups
    bad, _ = _commits(seen)
    last = int(run.rows[-1])
    if run.code == REBALANCE_IN_PROGRESS or groups[last] < 0:
        return 0
    time, read = int(seen.exchanges.answered[last]), reads(seen)
    soon = slice(*np.searchsorted(read.time, [time + 1, time + within + 1]).tolist())  # they come in order of time
    place_, at = read.place[soon], read.at[soon]
    ours = ~seen.mixed[seen.client[read.owner[soon]]]
    ours &= arrow.among(seen.client[read.owner[soon]], _clients_of(seen)[int(groups[last]),]) & (at >= 0)
    found_ = 0
    for where, offset in _committed(seen, last):
        if where in bad.get(last, ()) and offset >= 0:
            asked = at[ours & (place_ == where)]
            found_ += max(0, offset - int(asked.min())) if len(asked) else 0
    return found_


def _clients_of(seen: CaptureFrame) -> dict[tuple[int, ...], np.ndarray]:
    """The clients of each group, by its number. Worked out once."""
    if "clients of groups" not in seen.memo:
        groups, _ = seen.groups
        rows = spill.true_rows(groups >= 0)
        clients, of = spill.take(seen.client, rows), spill.take(groups, rows)
        firsts = first_rows(of, clients)
        seen.memo["clients of groups"] = rows_by_key(clients[firsts], of[firsts])
    kept: dict[tuple[int, ...], np.ndarray] = seen.memo["clients of groups"]
    return kept


def _committed(seen: CaptureFrame, row: int) -> list[tuple[int, int]]:
    """(place, offset) of the topic-partitions that an OffsetCommit names."""
    if "commits by row" not in seen.memo:
        rows = seen.parts_of(api_keys.OFFSET_COMMIT)
        owner, rows = sort_by(spill.take(seen.partitions.owner, rows), rows)
        offset = spill.take(seen.table("partitions")["offset"], rows)
        seen.memo["commits by row"] = owner, spill.take(seen.partitions.place, rows), offset
    owner, place_, offset = seen.memo["commits by row"]
    mine = slice(*np.searchsorted(owner, [row, row + 1]).tolist())
    return list(zip(place_[mine].tolist(), offset[mine].tolist(), strict=True))


def _mended(seen: CaptureFrame, rows: np.ndarray, within: int) -> bool:
    """A good commit of the same partitions of the group followed."""
    groups, _ = seen.groups
    bad, good = _commits(seen)
    last = int(rows[-1])
    time = int(seen.exchanges.answered[last])
    places = {place for row in rows.tolist() for place in bad.get(row, ())}
    for where in places:
        times = good.get((int(groups[last]), where))
        at = np.searchsorted(times, time, side="right") if times is not None else 0
        if times is None or at == len(times) or int(times[at]) > time + within:
            return False
    return bool(places)


def _commits(seen: CaptureFrame) -> tuple[dict[int, list[int]], dict[tuple[int, int], np.ndarray]]:
    """The places that each commit was refused for; by group and place when commits were taken, sorted."""
    if "commits" not in seen.memo:
        parts, (groups, _) = seen.partitions, seen.groups
        of_commits = seen.parts_of(api_keys.OFFSET_COMMIT)
        of_commits = of_commits[parts.error[of_commits] != NO_CODE]
        bad: dict[int, list[int]] = defaultdict(list)
        for part in of_commits[parts.error[of_commits] != 0].tolist():
            bad[int(parts.owner[part])].append(int(parts.place[part]))
        taken_ = of_commits[parts.error[of_commits] == 0]
        owner = parts.owner[taken_]
        good = {}
        for mine in split(taken_, groups[owner], parts.place[taken_]):
            key = int(groups[parts.owner[mine[0]]]), int(parts.place[mine[0]])
            good[key] = np.sort(seen.exchanges.answered[parts.owner[mine]])
        seen.memo["commits"] = bad, good
    kept: tuple[dict[int, list[int]], dict[tuple[int, int], np.ndarray]] = seen.memo["commits"]
    return kept


@rule(
    "fetch",
    "commit-goes-back",
    "warning",
    "The committed offset of group g for t-1 fell from 900 to 840 (svc-a (10.0.0.4)), 2 times.",
    why="Offsets only grow without intent.",
    unless="The commit names no member: a tool resets the group. The topic was made anew, as its ids say: then it is "
    "another of that name.",
    advice="Records processed out of order, or two groups of one name.",
    judge="forged: a lower commit of a member, and one without a member",
    by_clock=True,
)
def commit_goes_back(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if not len(seen.of_api(api_keys.OFFSET_COMMIT)):
        return
    parts, offset = seen.partitions, seen.table("partitions")["offset"]
    rows = seen.parts_of(api_keys.OFFSET_COMMIT)
    rows = rows[(parts.error[rows] == 0) & (offset[rows] >= 0)]
    groups, named = seen.groups
    member, members = seen.table("exchanges").text("member_id")
    nobody = members.index("") if "" in members else -1
    owner = parts.owner[rows]
    rows = rows[(groups[owner] >= 0)]
    order = grouping.group(groups[parts.owner[rows]], parts.place[rows], seen.exchanges.asked[parts.owner[rows]]).order
    rows = rows[order]
    owner = parts.owner[rows]
    same = (groups[owner[1:]] == groups[owner[:-1]]) & (parts.place[rows[1:]] == parts.place[rows[:-1]])
    later = owner[1:] > owner[:-1]  # in the capture too, not by a clock that was corrected meanwhile
    fell = np.flatnonzero(
        same & (offset[rows[1:]] < offset[rows[:-1]]) & later & (member[owner[1:]] > -1) & (member[owner[1:]] != nobody)
    )
    found_: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in fell.tolist():
        found_[int(groups[owner[number]]), int(parts.place[rows[number]])].append(number)
    for (group, where), some in found_.items():
        if seen.places[where][0] in seen.remade:
            continue
        worst = max(some, key=lambda number: int(offset[rows[number]] - offset[rows[number + 1]]))
        last = int(owner[some[-1] + 1])
        who = seen.who(int(seen.client[last]))
        topic, partition = seen.places[where]
        text = f"The committed offset of group {name(named[group])} for {place((topic, partition))} fell from "
        text += f"{int(offset[rows[worst]]):,} to {int(offset[rows[worst + 1]]):,} ({client(who)}), "
        asked, fallen = seen.exchanges.asked, int(owner[some[0] + 1])
        yield Found(
            f"{text}{count(len(some), 'time')}.",
            len(some),
            int(asked[fallen]),
            int(asked[last]),
            who,
            {"group_id": named[group], "topic": topic, "partition": str(partition)},
            (fallen, int(owner[worst + 1]), last),
        )
