"""Commits of groups: too many, refused, going back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import NO_CODE, SECOND, CaptureFrame
from kwire.analyzer.findings.error_answers import about, claim, match_of, of
from kwire.analyzer.findings.fetch import truncations
from kwire.analyzer.findings.fetched import reads
from kwire.analyzer.findings.rules import Limits, Match, replaced, rule
from kwire.analyzer.findings.runs import Run
from kwire.analyzer.findings.seeks import describe, seeks
from kwire.analyzer.findings.wording import client, count, name, partition_name
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.grouping import busiest_window, first_rows, rows_by_key, sort_by, split
from kwire.analyzer.protocol import api_keys

_COMMIT = claim((api_keys.OFFSET_COMMIT,), (12, 22, 25, 27, 28, 110, 113), every=True)
REBALANCE_IN_PROGRESS = 27


@rule(
    "fetch",
    "commit-storm",
    "note",
    "svc-a (10.0.0.4) commits 900 times a second at 10.0.0.1:9092 in group g.",
    why="Ten a second are fifty times the default (one in 5 s); a member that commits every record of a test made 5. "
    "From 100 a second at one broker on a warning.",
    suppressed_when="Offsets of transactions; fewer over ten seconds; a capture of less than a second.",
    advice="Commit once a poll, or on time.",
    evidence="forged: 100 commits in 10 s, and 99",
    rate=10,
    much=100,
    window_s=10,
    by_clock=True,
)
def commit_storm(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.of_one(capture.of_api(api_keys.OFFSET_COMMIT))
    groups, named = capture.groups
    for group_rows in split(
        rows, capture.client[rows], capture.broker[rows], groups[rows], least=at.rate * at.window_s
    ):
        group_rows = group_rows[np.argsort(capture.exchanges.request_time[group_rows], kind="stable")]
        most, first, past = busiest_window(capture.exchanges.request_time[group_rows], int(at.window_s * SECOND) - 1)
        if most < at.rate * at.window_s or capture.seconds < 1:
            continue
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))
        group = named[groups[group_rows[0]]] if groups[group_rows[0]] >= 0 else None
        rate = most / min(at.window_s, capture.seconds)
        text = f"{client(who)} commits {rate:,.0f} times a second at {who['broker']} in group {name(group)}."
        requested = capture.exchanges.request_time[group_rows]
        yield Match(
            text,
            most,
            int(requested[first]),
            int(requested[past - 1]),
            who,
            {"group_id": group},
            (int(group_rows[first]), int(group_rows[first]), int(group_rows[past - 1])),
            severity="warning" if most >= at.much * at.window_s else None,
        )


@rule(
    "fetch",
    "commit-failed",
    "warning",
    "11 commits of svc-a (10.0.0.4) for group g were refused (UNKNOWN_MEMBER_ID (25)): those records will be read "
    "again.",
    why="Each lost commit is work done twice; ten seconds cover a member that joins again.",
    suppressed_when="The same partitions were committed within ten seconds after, or as far as that or further before, "
    "and nobody of the group read from before what was refused within a minute; the capture ended within those ten "
    "seconds. REBALANCE_IN_PROGRESS that "
    "is committed after is the protocol's course. What the client has no right to (authorization-failed), or no more "
    "as another member has its static name (instance-id-duplicate), is told there.",
    advice="See why the member was no longer in the group, or in an older generation: the findings and the story of "
    "the group.",
    evidence="forged: refused and never committed, and committed five seconds later, or before; committed, and read "
    "again, and not",
    mended_s=10,
    again_s=60,
    by_clock=True,
)
def commit_failed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    known_until = capture.span[1] - at.mended_s * SECOND
    for trouble in of(capture, _COMMIT, lasting=False):
        twice, lost = 0, [trouble.rows[:0]]
        for run in trouble.runs:
            again = _read_again(capture, run, int(at.again_s * SECOND))
            rows = run.rows if again else _offsets_told(capture, run, known_until)
            if again or (len(rows) and not _is_committed(capture, rows, int(at.mended_s * SECOND))):
                twice += again
                lost.append(rows)
        rows = arrow.distinct(np.concatenate(lost))
        if not len(rows):
            continue
        many = "was" if len(rows) == 1 else "were"
        text = f"{count(len(rows), 'commit')} of {client(capture.who(trouble.client))}{about(trouble)} {many} refused "
        cause = "fetches from before what was to be committed" if twice else None
        text += f"({trouble.error}): "
        text += f"{count(twice, 'record')} {'was' if twice == 1 else 'were'} read again." if twice else _WILL_BE
        when = capture.exchanges.response_end[rows]
        yield replaced(
            match_of(capture, trouble, text, None, cause, True if cause else None),
            count=len(rows),
            since=int(when.min()),
            until=int(when.max()),
            rows=tuple(rows[[0, 0, -1]].tolist()),
        )


_WILL_BE = "those records will be read again."


def _offsets_told(capture: CaptureFrame, run: Run, until: float) -> np.ndarray:
    """The refusals of a run after which the capture goes on long enough; later ones may still be committed after its
    end, and so may those of an unfinished rebalance."""
    early: np.ndarray = run.rows[capture.exchanges.response_end[run.rows] <= until]
    return early if len(early) == len(run.rows) or run.code != REBALANCE_IN_PROGRESS else early[:0]


def _read_again(capture: CaptureFrame, run: Run, within: int) -> int:
    """Number of records before the offset of a refused commit that the group fetched again after it."""
    groups, _ = capture.groups
    bad, _ = _commits(capture)
    last = int(run.rows[-1])
    if run.code == REBALANCE_IN_PROGRESS or groups[last] < 0:
        return 0
    time, read = int(capture.exchanges.response_end[last]), reads(capture)
    soon = slice(*np.searchsorted(read.time, [time + 1, time + within + 1]).tolist())  # they come in order of time
    topic_partition, at = read.topic_partition[soon], read.at[soon]
    is_own = ~capture.mixed[capture.client[read.owner[soon]]]
    is_own &= arrow.among(capture.client[read.owner[soon]], _clients_of(capture)[int(groups[last]),]) & (at >= 0)
    again = 0
    for where, offset in _committed(capture, last):
        if where in bad.get(last, ()) and offset >= 0:
            positions = at[is_own & (topic_partition == where)]
            again += max(0, offset - int(positions.min())) if len(positions) else 0
    return again


def _clients_of(capture: CaptureFrame) -> dict[tuple[int, ...], np.ndarray]:
    """The clients of each group, by its number. Computed once."""
    if "clients of groups" not in capture.memo:
        groups, _ = capture.groups
        rows = spill.true_rows(groups >= 0)
        clients, of = spill.take(capture.client, rows), spill.take(groups, rows)
        firsts = first_rows(of, clients)
        capture.memo["clients of groups"] = rows_by_key(clients[firsts], of[firsts])
    cached: dict[tuple[int, ...], np.ndarray] = capture.memo["clients of groups"]
    return cached


def _committed(capture: CaptureFrame, row: int) -> list[tuple[int, int]]:
    """(place, offset) of the topic-partitions that an OffsetCommit names."""
    if "commits by row" not in capture.memo:
        rows = capture.parts_of(api_keys.OFFSET_COMMIT)
        owner, rows = sort_by(spill.take(capture.partitions.owner, rows), rows)
        offset = spill.take(capture.table("partitions")["offset"], rows)
        capture.memo["commits by row"] = owner, spill.take(capture.partitions.topic_partition, rows), offset
    owner, topic_partition, offset = capture.memo["commits by row"]
    own_rows = slice(*np.searchsorted(owner, [row, row + 1]).tolist())
    return list(zip(topic_partition[own_rows].tolist(), offset[own_rows].tolist(), strict=True))


def _is_committed(capture: CaptureFrame, rows: np.ndarray, within: int) -> bool:
    """Whether a successful commit of the same partitions of the group followed, or went as far before."""
    groups, _ = capture.groups
    bad, good = _commits(capture)
    last = int(rows[-1])
    time = int(capture.exchanges.response_end[last])
    refused: dict[int, int] = {}
    for row in rows.tolist():
        offsets = dict(_committed(capture, row))
        for place in bad.get(row, ()):
            refused[place] = max(refused.get(place, -1), offsets.get(place, -1))
    for where, offset in refused.items():
        times, stored = good.get((int(groups[last]), where), (rows[:0], rows[:0]))
        after = int(np.searchsorted(times, time, side="right"))
        follows = after < len(times) and int(times[after]) <= time + within
        before = after > 0 and 0 <= offset <= int(stored[after - 1])
        if not follows and not before:
            return False
    return bool(refused)


_Stored = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]


def _commits(capture: CaptureFrame) -> tuple[dict[int, list[int]], _Stored]:
    """Topic-partitions that each commit was refused for; and of successful commits by group and topic-partition times,
    in order, and offsets."""
    if "commits" not in capture.memo:
        parts, (groups, _) = capture.partitions, capture.groups
        offset = capture.table("partitions")["offset"]
        of_commits = capture.parts_of(api_keys.OFFSET_COMMIT)
        of_commits = of_commits[parts.error[of_commits] != NO_CODE]
        bad: dict[int, list[int]] = defaultdict(list)
        for part in of_commits[parts.error[of_commits] != 0].tolist():
            bad[int(parts.owner[part])].append(int(parts.topic_partition[part]))
        stored = of_commits[parts.error[of_commits] == 0]
        owner = parts.owner[stored]
        good = {}
        for group_rows in split(stored, groups[owner], parts.topic_partition[stored]):
            key = int(groups[parts.owner[group_rows[0]]]), int(parts.topic_partition[group_rows[0]])
            times = capture.exchanges.response_end[parts.owner[group_rows]]
            order = np.argsort(times, kind="stable")
            good[key] = times[order], spill.take(offset, group_rows[order])
        capture.memo["commits"] = bad, good
    cached: tuple[dict[int, list[int]], _Stored] = capture.memo["commits"]
    return cached


@rule(
    "fetch",
    "commit-goes-back",
    "warning",
    "The committed offset of group g for t-1 fell from 900 to 840 (svc-a (10.0.0.4)), 2 times.",
    why="Offsets only grow without intent.",
    suppressed_when="The commit names no member: a tool resets the group. The topic was made anew, as its ids say: "
    "then it is another of that name; or its log lost records (log-truncated).",
    advice="Records processed out of order, or two groups of one name.",
    evidence="forged: a lower commit of a member, and one without a member",
    by_clock=True,
)
def commit_goes_back(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if not len(capture.of_api(api_keys.OFFSET_COMMIT)):
        return
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    rows = capture.parts_of(api_keys.OFFSET_COMMIT)
    rows = rows[(parts.error[rows] == 0) & (offset[rows] >= 0)]
    groups, named = capture.groups
    member, members = capture.table("exchanges").text("member_id")
    nobody = members.index("") if "" in members else -1
    owner = parts.owner[rows]
    rows = rows[(groups[owner] >= 0)]
    order = grouping.group(
        groups[parts.owner[rows]], parts.topic_partition[rows], capture.exchanges.request_time[parts.owner[rows]]
    ).order
    rows = rows[order]
    owner = parts.owner[rows]
    same = (groups[owner[1:]] == groups[owner[:-1]]) & (
        parts.topic_partition[rows[1:]] == parts.topic_partition[rows[:-1]]
    )
    later = owner[1:] > owner[:-1]  # in the capture too, not by a clock that was corrected meanwhile
    fell = np.flatnonzero(
        same & (offset[rows[1:]] < offset[rows[:-1]]) & later & (member[owner[1:]] > -1) & (member[owner[1:]] != nobody)
    )
    going_back: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in fell.tolist():
        going_back[int(groups[owner[number]]), int(parts.topic_partition[rows[number]])].append(number)
    cut = {(match.what["topic"], match.what["partition"]) for match in truncations(capture)} if going_back else set()
    for (group, where), some in going_back.items():
        topic, partition = capture.topic_partitions[where]
        if topic in capture.remade or (topic, str(partition)) in cut:
            continue
        worst = max(some, key=lambda number: int(offset[rows[number]] - offset[rows[number + 1]]))
        last = int(owner[some[-1] + 1])
        who = capture.who(int(capture.client[last]))
        text = f"The committed offset of group {name(named[group])} for {partition_name((topic, partition))} fell from "
        text += f"{int(offset[rows[worst]]):,} to {int(offset[rows[worst + 1]]):,} ({client(who)}), "
        requested, fallen = capture.exchanges.request_time, int(owner[some[0] + 1])
        went_back = seeks(capture).get((named[group], (topic, partition)))
        yield Match(
            f"{text}{count(len(some), 'time')}.",
            len(some),
            int(requested[fallen]),
            int(requested[last]),
            who,
            {"group_id": named[group], "topic": topic, "partition": str(partition)},
            (fallen, int(owner[worst + 1]), last),
            cause=describe(capture, (topic, partition), went_back) if went_back else None,
            proven=True if went_back else None,
            advice="Look at where the application seeks." if went_back else None,
        )
