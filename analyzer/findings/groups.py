"""Groups of consumers: rebalances, what sets them off, who delays them; commits."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from analyzer.findings import root_causes
from analyzer.findings.capture import ANSWERED, NO_CODE, SECOND, CaptureFrame, once
from analyzer.findings.error_answers import about, found, of, taken, times
from analyzer.findings.rules import RULES, Found, Limits, limits_of, rule
from analyzer.findings.runs import runs
from analyzer.findings.wording import client, count, lasting, moment, name
from analyzer.frame import arrow, spill
from analyzer.frame.frame import NULL, codes_of
from analyzer.frame.grouping import busiest_window, rows_by_key, split
from analyzer.protocol import api_keys

_JOIN = taken(
    (api_keys.JOIN_GROUP, api_keys.HEARTBEAT, api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT),
    (23, 24, 26, 81, 112, 128),
)
_FENCED = taken((api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT), (110, 111), every=True)
_LOADING = taken((), (14,))
_MOVING = taken(
    (api_keys.FIND_COORDINATOR, api_keys.HEARTBEAT, api_keys.JOIN_GROUP, api_keys.SYNC_GROUP, api_keys.OFFSET_FETCH),
    (15, 16),
)

_HEARTBEATS = (
    api_keys.HEARTBEAT,
    api_keys.CONSUMER_GROUP_HEARTBEAT,
    api_keys.SHARE_GROUP_HEARTBEAT,
    api_keys.STREAMS_GROUP_HEARTBEAT,
)
_BEATS = (*_HEARTBEATS, api_keys.JOIN_GROUP, api_keys.SYNC_GROUP, api_keys.OFFSET_COMMIT)
"""What a coordinator takes for a sign of life."""


def _rows_at(seen: CaptureFrame, events: list[dict[str, Any]]) -> tuple[int, ...]:
    """Exchanges that show events: first, worst (the last), last."""
    known = [row for row in (_row_of(seen, event) for event in (events[0], events[-1])) if row is not None]
    return (known[0], known[-1], known[-1]) if known else ()


def _row_of(seen: CaptureFrame, event: dict[str, Any] | None) -> int | None:
    """The exchange that an event or a piece of evidence names."""
    if not event or event.get("connection") is None or event.get("exchange") is None:
        return None
    return seen.row_of(event["connection"], event["exchange"])


def _pairs(what: str, rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    by: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by[row[what]].append(row)
    return by


@rule(
    "groups",
    "rebalance-storm",
    "warning",
    "Group g rebalanced 14 times in 10 min from 10:01:03 (expired 6, leave 5, join 3).",
    why="Five generations in a few minutes are what members that come one after another make: six in ten minutes, "
    "three of them set off by something else, are not.",
    unless="Fewer than three were set off by more than a first join or a planned leave, and members stood still for "
    "less than a fifth of the time; in the first minute of a group; the second step of a cooperative rebalance "
    "(KIP-429), which counts with the first. A note: each was set off by another client that left or joined, and by "
    "none twice, as where members are replaced one after the other.",
    advice="See what sets them off: member-session-timeout, poll-interval-exceeded, rebalance-slow-member.",
    judge="forged rows: six rebalances of which three expired, and two; group-* (scripted, five); "
    "zoo-connect-sessioned-4.3 (seven while it starts)",
    rebalances=6,
    window_s=600,
    unplanned=3,
    start_s=60,
    stopped=0.2,
    by_clock=True,
)
def rebalance_storm(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for group, rows in _pairs("group_id", seen.table("rebalances").every()).items():
        begun = _steady(rows, int(at.start_s * SECOND))
        when = np.array([row["began"] for row in begun], np.int64)
        window = int(at.window_s * SECOND)
        most, first, past = busiest_window(when, window)
        if not most:
            continue
        mine = begun[first:past]
        triggers = _counted(row["trigger"] or "unknown" for row in mine)
        unplanned = sum(number for trigger, number in triggers.items() if trigger not in ("join", "leave"))
        stops = [max((one["stopped_us"] for one in row["stopped"] or ()), default=0) for row in mine]
        # One that lasts into the next rebalance is counted there from then on.
        still = int(np.minimum(stops, np.diff(when[first:past], append=when[first] + window)).sum())
        spent = int(when[past - 1] - when[first])
        if most < at.rebalances or (unplanned < at.unplanned and still < at.stopped * max(spent, 1)):
            continue
        named = ", ".join(f"{trigger} {number}" for trigger, number in triggers.items())
        text = f"Group {name(group)} rebalanced {count(most, 'time')} in {lasting(window)} from "
        proof = [row for row in (_row_of(seen, one["evidence"]) for one in mine) if row is not None]
        stood = f"; no record reached a member for up to {lasting(still)} of it" if still else ""
        text += f"{moment(mine[0]['began'])} ({named}){stood}."
        rolling = not unplanned and _once_each(seen, mine)
        yield Found(
            text,
            most,
            int(when[first]),
            int(when[past - 1]),
            {},
            {"group_id": group},
            tuple(proof[:1] + proof[:1] + proof[-1:]),
            severity="note" if rolling else None,
            cause="members were replaced, one after the other" if rolling else None,
            proven=False if rolling else None,
        )


def _once_each(seen: CaptureFrame, rows: list[dict[str, Any]]) -> bool:
    """No client left, or joined, twice: its members may have other ids each time."""
    if "clients of members" not in seen.memo:
        told = seen.table("groups").every(["member_id", "client_ip", "client_id"])
        seen.memo["clients of members"] = {row["member_id"]: (row["client_ip"], row["client_id"]) for row in told}
    client_of = seen.memo["clients of members"]
    who = [(client_of.get(row["trigger_member"]), row["trigger"]) for row in rows]
    return len(set(who)) == len(who) and all(one is not None for one, _ in who)


_STEP_US = 5 * SECOND


def _steady(rows: list[dict[str, Any]], start_us: int) -> list[dict[str, Any]]:
    """Rebalances in order of time, without those of a group's first minute, and without second steps of cooperative
    ones: a member joins again by itself when it has given up what it was to."""
    begun = sorted((row for row in rows if row["began"] is not None), key=lambda row: row["began"])
    if begun and not begun[0]["members_before"]:
        begun = [row for row in begun if row["began"] >= begun[0]["began"] + start_us]
    kept: list[dict[str, Any]] = []
    ended = NULL
    for row in begun:
        second = row["trigger"] == "unknown" and row["trigger_member"] and 0 <= row["began"] - ended < _STEP_US
        if not second:
            kept.append(row)
        ended = row["ended"] if row["ended"] is not None else row["began"]
    return kept


def _counted(words: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for word in words:
        counts[word] += 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


@rule(
    "groups",
    "member-session-timeout",
    "warning",
    "Group g lost member m3 (svc-a, 10.0.0.4) at 10:01:03: its session expired.",
    why="The rule is the broker's own: a timer for each member.",
    unless="No generation of the group came about (group-never-stable): members are put out then that do not sync in "
    "time. The member left, or came back under its static name (KIP-345); bytes are missing from a connection of it, "
    "or packets from the capture while no end of that connection was seen: it may have left in what is missing. A "
    "note: the group's coordinator had moved within the minute before, and the client had joined again; or the member "
    "had said that it stops for a while, as static ones do (KIP-848), and came back too late or not at all.",
    advice="Look for a crash, a pause of garbage collection, or the network of that member.",
    judge="group-classic-librdkafka-4.3 (a member is killed), and without the packets in which it was and another "
    "left; cluster-* (a coordinator is killed: a note); forged rows",
    moved_s=60,
    by_clock=True,
)
def session_timeout(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    told = seen.table("groups").every()
    moved = [(row["group_id"], row["time"]) for row in told if row["event"] == "coordinator_moved"]
    expired = [row for row in told if row["event"] == "expired"]
    stopped = _stopped(told)
    unheard = _unheard(seen, {row["member_id"] for row in expired})
    unstable = {seen.groups[1][number] for number in _never_stable(seen)} if expired else set()
    for event in expired:
        if event["member_id"] in unheard or event["group_id"] in unstable:
            continue
        since = event["time"] - int(at.moved_s * SECOND)
        explained = any(group == event["group_id"] and since <= time <= event["time"] for group, time in moved)
        who = {"client_id": event["client_id"], "client_ip": event["client_ip"]}
        text = f"Group {name(event['group_id'])} lost member {name(event['member_id'])} "
        text += f"({client(who)}) at {moment(event['time'])}: its session expired."
        cause = "its coordinator had moved" if explained else _EXPIRED
        away = (event["group_id"], event["member_id"]) in stopped
        yield Found(
            text,
            1,
            event["time"],
            event["time"],
            who,
            {"group_id": event["group_id"], "member_id": event["member_id"]},
            _rows_at(seen, [event]),
            cause=_AWAY if away else cause,
            proven=away or not explained,
            severity="note" if away or explained else None,
            advice=_BACK_IN_TIME if away else None,
        )


_EXPIRED = "no heartbeat reached the coordinator within the session timeout"
_AWAY = "it had stopped in order, for a while, and did not come back within the session timeout"
_BACK_IN_TIME = "A session timeout longer than a restart takes, if it was one."


def _stopped(told: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(group, member) of those that left and did not join again: one that expires after that had left for a while."""
    out: set[tuple[str, str]] = set()
    for row in told:
        if row["event"] == "leave" and row["error"] is None:
            out.add((row["group_id"], row["member_id"]))
        elif row["event"] == "join":
            out.discard((row["group_id"], row["member_id"]))
    return out


def _unheard(seen: CaptureFrame, wanted: set[str]) -> set[str]:
    """Of these members those that may have said something that was not captured."""
    if not wanted or (seen.unbroken.all() and not seen.loses):
        return set()
    member, members = seen.table("exchanges").text("member_id")
    rows = spill.true_rows(arrow.among(member, codes_of(members, *wanted)))
    links = {
        members[key[0]]: arrow.distinct(mine)
        for key, mine in rows_by_key(seen.exchanges.link[rows], member[rows]).items()
    }
    open_ = np.array([end == "open" for end in seen.closed], bool)
    doubtful = ~seen.unbroken | (open_ & seen.loses)
    return {one for one in wanted if one not in links or doubtful[links[one]].any()}


@rule(
    "groups",
    "poll-interval-exceeded",
    "warning",
    "svc-a (10.0.0.4) read nothing and committed nothing for 301.0 s, left group g, and joined again: it took too long "
    "between polls.",
    why="The client itself enforces max.poll.interval.ms, and leaves. Its JoinGroup says it, as the rebalance timeout; "
    "where none was seen, 5 min, as Java and librdkafka have it.",
    unless="It did not join again within a minute; it went on reading; its heartbeats had stopped too; it was never "
    "seen to fetch, which it may do where nothing is captured, or not since it joined last: it may have no partition.",
    advice="max.poll.records, and what is slow in processing.",
    judge="forged: heartbeats alone for 301 s, a leave and a join; and 200 s; for 31 s where JoinGroup says 30, and 29",
    poll_s=300,
    back_s=60,
    by_clock=True,
)
def poll_interval(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    leaves = seen.of_one(seen.of_api(api_keys.LEAVE_GROUP))
    leavers = arrow.distinct(seen.client[leaves])
    works = _by_client(seen, seen.of_api(api_keys.FETCH, api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT), leavers)
    joins = _by_client(seen, seen.of_api(api_keys.JOIN_GROUP), leavers)
    heart = _by_client(seen, seen.of_api(api_keys.HEARTBEAT), leavers)
    groups, named = seen.groups
    said = _Timeouts(seen)
    for leave in leaves.tolist():
        who_, left = int(seen.client[leave]), int(rows.asked[leave])
        before = _between(seen, works.get(who_), 0, left)
        after = _between(seen, joins.get(who_), left + 1, left + int(at.back_s * SECOND) + 1)
        group = named[groups[leave]] if groups[leave] >= 0 else None
        poll = said.rebalance(seen.clients[who_], group, left)
        least = at.poll_s * SECOND if poll is None else poll
        if (
            not (rows.api[before] == api_keys.FETCH).any()
            or not len(after)
            or left - int(rows.asked[before[-1]]) < least
        ):
            continue
        since = int(rows.asked[before[-1]])
        if len(_between(seen, joins.get(who_), since + 1, left)):
            continue
        beats = _between(seen, heart.get(who_), since + 1, left)
        if not len(beats):
            continue
        who = seen.who(int(seen.client[leave]))
        text = f"{client(who)} read nothing and committed nothing for {lasting(left - since)}, left group "
        text += f"{name(group)}, "
        yield Found(
            f"{text}and joined again: it took too long between polls.",
            1,
            since,
            left,
            who,
            {"group_id": group},
            (int(beats[0]), leave, leave),
            cause="max.poll.interval.ms",
            proven=False,
        )


class _Timeouts:
    """What members said when they joined. `sessions`: by member how long it may be silent, us."""

    def __init__(self, seen: CaptureFrame) -> None:
        self.sessions: dict[str, int] = {}
        self._rebalances: dict[tuple[tuple[str, str | None], str | None], list[tuple[int, int]]] = defaultdict(list)
        table = seen.table("groups")
        wanted = ["time", "group_id", "member_id", "client_ip", "client_id", "session_timeout_ms"]
        for row in table.every([*wanted, "rebalance_timeout_ms"]) if len(table) else ():
            if row["session_timeout_ms"] and row["member_id"]:
                self.sessions[row["member_id"]] = row["session_timeout_ms"] * 1000
            if row["rebalance_timeout_ms"]:
                who = (row["client_ip"], row["client_id"]), row["group_id"]
                self._rebalances[who].append((row["time"], row["rebalance_timeout_ms"] * 1000))

    def rebalance(self, client_: tuple[str, str | None], group: str | None, time: int) -> int | None:
        """The rebalance timeout that a client had at a time, us."""
        said = self._rebalances.get((client_, group), [])
        at = bisect.bisect_right(said, time, key=lambda one: one[0])  # as they were told, which is in order
        return said[at - 1][1] if at else None


def _by_client(seen: CaptureFrame, rows: np.ndarray, clients: np.ndarray) -> dict[int, np.ndarray]:
    """Of these clients the exchanges, by time."""
    rows = rows[arrow.among(seen.client[rows], clients) & (seen.exchanges.asked[rows] != NULL)]
    rows = rows[np.argsort(seen.exchanges.asked[rows], kind="stable")]
    return {int(seen.client[mine[0]]): mine for mine in split(rows, seen.client[rows])}


def _between(seen: CaptureFrame, rows: np.ndarray | None, since: int, until: int) -> np.ndarray:
    """Those of exchanges, by time, that were asked from `since` on and before `until`."""
    if rows is None:
        return np.zeros(0, np.int64)
    first, past = np.searchsorted(seen.exchanges.asked[rows], [since, until])
    return rows[int(first) : int(past)]


@rule(
    "groups",
    "heartbeat-late",
    "note",
    "svc-a (10.0.0.4) let 36.0 s pass between signs of life in group g, 3 times; its session ends after 45.0 s.",
    why="A healthy member beats every third of its session timeout or more often (3 s of 45 s): at 70 % fewer than "
    "five of fifteen beats are left. What the session is set to JoinGroup says; where none was seen, 45 s, Java's and "
    "librdkafka's default.",
    unless="The member waited in a JoinGroup, or had left; packets of the connection are missing; it never sent a "
    "heartbeat (a reader that only commits); it was on another connection before, and there are brokers that the "
    "capture has no connection to: its coordinator may have been there. A warning from three times on.",
    advice="Garbage collection, CPU, the network.",
    judge="forged: beats 32 s apart, and 30 s; 8 s apart of a session of 10 s, and 6 s; on two connections, in a "
    "capture of one broker of two",
    session_s=45,
    share=0.7,
    often=3,
    by_clock=True,
)
def heartbeat_late(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.of_api(*_BEATS)
    rows = rows[seen.exchanges.asked[rows] != NULL]
    member, members = seen.table("exchanges").text("member_id")
    groups, named = seen.groups
    # Commits without a member are no beats, and who never sent a heartbeat owes none.
    beats = member[seen.of_api(*_HEARTBEATS)]
    alive = arrow.distinct(beats[beats >= 0])
    alive = alive[alive != (members.index("") if "" in members else -1)]
    seen_whole = (seen.link_numbers("gaps") == 0)[seen.exchanges.link[rows]]
    rows = rows[arrow.among(member[rows], alive) & (groups[rows] >= 0) & seen_whole]
    rows = rows[np.argsort(seen.exchanges.asked[rows], kind="stable")]
    said, partial = _Timeouts(seen), root_causes.has_brokers_elsewhere(seen)
    for mine in split(rows, groups[rows], member[rows]):
        asked = seen.exchanges.asked[mine]
        gap = asked[1:] - np.maximum(asked[:-1], seen.exchanges.answered[mine[:-1]])
        session = said.sessions.get(members[member[mine[0]]], int(at.session_s * SECOND))
        late = np.flatnonzero((gap >= at.share * session) & (gap < session))
        late = late[seen.exchanges.error[mine[late]] == 0]
        if partial:
            late = late[seen.exchanges.link[mine[late]] == seen.exchanges.link[mine[late + 1]]]
        if not len(late):
            continue
        who, group = seen.who(int(seen.client[mine[0]])), named[groups[mine[0]]]
        worst = int(late[gap[late].argmax()])
        text = f"{client(who)} let {lasting(int(gap[worst]))} pass between signs of life in group {name(group)}, "
        text += f"{count(len(late), 'time')}; its session ends after {lasting(session)}."
        places = int(mine[late[0] + 1]), int(mine[worst + 1]), int(mine[late[-1] + 1])
        yield Found(
            text,
            len(late),
            int(seen.exchanges.asked[places[0]]),
            int(seen.exchanges.asked[places[2]]),
            who,
            {"group_id": group, "member_id": members[member[mine[0]]]},
            places,
            severity="warning" if len(late) >= at.often else None,
        )


@rule(
    "groups",
    "rebalance-slow-member",
    "warning",
    "svc-a (10.0.0.4) delayed a rebalance of group g: it joined 41.0 s after the first.",
    why="The coordinator waits for the last known member; the first waits 3 s (group.initial.rebalance.delay.ms), "
    "prolonged while members arrive.",
    unless="All joined within 10 s, or within 5 s of one another.",
    advice="That member blocks in its poll loop or in its callback for revoked partitions.",
    judge="forged: two joins 11 s apart, answered together; five that come 3 s after one another",
    late_s=10,
    pause_s=5,
    by_clock=True,
)
def slow_member(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.of_api(api_keys.JOIN_GROUP)
    groups, named = seen.groups
    generation = seen.column("generation")
    rows = rows[(seen.exchanges.error[rows] == 0) & (groups[rows] >= 0) & (seen.exchanges.answered[rows] != NULL)]
    for mine in split(rows, groups[rows], generation[rows]):
        asked, answered = seen.exchanges.asked[mine], seen.exchanges.answered[mine]
        together = answered >= answered.max() - SECOND
        mine, asked = mine[together], asked[together]
        spread = int(asked.max() - asked.min())
        # While members arrive in an empty group, each within three seconds of the one before, it waits for more.
        if len(mine) < 2 or spread < at.late_s * SECOND or np.diff(np.sort(asked)).max() < at.pause_s * SECOND:
            continue
        last = int(mine[asked.argmax()])
        who, group = seen.who(int(seen.client[last])), named[groups[last]]
        text = f"{client(who)} delayed a rebalance of group {name(group)}: it joined {lasting(spread)} after the first."
        yield Found(
            text,
            len(mine),
            int(asked.min()),
            int(asked.max()),
            who,
            {"group_id": group},
            (int(mine[asked.argmin()]), last, last),
            cause="the coordinator waits for the last member",
            proven=True,
        )


@rule(
    "groups",
    "sync-never-came",
    "warning",
    "Nobody's assignment of group g came: 3 SyncGroup requests waited up to 300.0 s in generation 12, and were "
    "refused.",
    why="The members wait until the leader has sent the assignment; the timer of that is the rebalance timeout.",
    unless="Some SyncGroup of the generation was answered well; none waited for a second; a member left meanwhile; no "
    "generation of the group came about at all (group-never-stable).",
    advice="The leader's assignor, or the size of its metadata.",
    judge="forged: refused after 5 s, and beside one that is answered",
    wait_s=1,
)
def sync_never_came(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows, leaves = seen.of_api(api_keys.SYNC_GROUP), seen.of_api(api_keys.LEAVE_GROUP)
    if not len(rows):
        return
    groups, named = seen.groups
    generation, latency = seen.column("generation"), seen.column("latency_us")
    rows = rows[groups[rows] >= 0]
    if not len(_in_vain(seen, rows)):
        return
    leaves_of = rows_by_key(leaves, groups[leaves])
    unstable = _never_stable(seen)
    for mine in split(rows, groups[rows], generation[rows]):
        if int(groups[mine[0]]) in unstable:
            continue
        error = seen.exchanges.error[mine]
        refused = mine[arrow.among(error, (25, 27)) & (latency[mine] >= at.wait_s * SECOND)]
        if not len(refused) or (error == 0).any():
            continue
        since, until = int(seen.exchanges.asked[mine].min()), int(seen.exchanges.answered[mine].max())
        left = seen.exchanges.asked[leaves_of.get((int(groups[mine[0]]),), leaves[:0])]
        if ((left >= since) & (left <= until)).any():
            continue
        group = named[groups[mine[0]]]
        text = f"Nobody's assignment of group {name(group)} came: {count(len(refused), 'SyncGroup request')} waited "
        text += "up to "
        text += f"{lasting(int(latency[refused].max()))} in generation {int(generation[mine[0]])}, and were refused."
        asked = seen.exchanges.asked[refused]
        yield Found(
            text,
            len(refused),
            int(asked.min()),
            int(asked.max()),
            seen.who(int(seen.client[refused[0]])),
            {"group_id": group},
            tuple(refused[[0, 0, -1]].tolist()),
            cause="the leader did not send it",
            proven=True,
        )


@rule(
    "groups",
    "group-never-stable",
    "error",
    "Group g made 5 generations in 62.0 s, and none of its members that were seen got an assignment in any of them.",
    why="Members that join one after the other make some generations in the first seconds, of which all but the first "
    "give out partitions. Three in half a minute without one assignment are no start.",
    unless="Some SyncGroup of the group was answered well, or with what was not decoded; packets are missing.",
    advice="The leader, which makes the assignment: its assignor, the size of its metadata, its timeouts. Members that "
    "need longer to join again than the rebalance timeout.",
    judge="forged: three generations in 30 s, and in 29 s; with one SyncGroup that is answered; a real group whose "
    "leader never sends an assignment",
    generations=3,
    least_s=30,
    by_clock=True,
)
def never_stable(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    unstable = list(_unstable(seen, at))
    if not unstable:
        return  # mostly, and then no column is read
    groups, named = seen.groups
    generation = seen.column("generation")
    waits = _in_vain(seen, seen.of_api(api_keys.SYNC_GROUP))
    for mine in unstable:
        answered = seen.exchanges.answered[mine]
        many = len(arrow.distinct(generation[mine]))
        group = named[groups[mine[0]]]
        text = f"Group {name(group)} made {count(many, 'generation')} in {lasting(int(answered[-1] - answered[0]))}, "
        text += "and none of its members that were seen got an assignment in any of them."
        held = waits[groups[waits] == groups[mine[0]]]
        yield Found(
            text,
            many,
            int(answered[0]),
            int(answered[-1]),
            seen.who(broker=int(seen.broker[mine[0]])),
            {"group_id": group},
            (int(mine[0]), int(held[-1]) if len(held) else int(mine[-1]), int(mine[-1])),
            cause="the leader did not send it" if len(held) else None,
            proven=True if len(held) else None,
        )


@once
def _never_stable(seen: CaptureFrame) -> set[int]:
    """Groups of which group-never-stable tells, by number."""
    at = limits_of(RULES["group-never-stable"], seen.asked)
    return {int(seen.groups[0][mine[0]]) for mine in _unstable(seen, at)}


def _in_vain(seen: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """Of SyncGroups those that were refused when they had waited."""
    least = limits_of(RULES["sync-never-came"], seen.asked).wait_s * SECOND
    refused = rows[arrow.among(seen.exchanges.error[rows], (25, 27))]
    found_: np.ndarray = refused[seen.column("latency_us")[refused] >= least]
    return found_


def _unstable(seen: CaptureFrame, at: Limits) -> Iterator[np.ndarray]:
    """Of each group without a good answer to SyncGroup its joins that went well, by time of the answer, where they are
    of as many generations and last so long."""
    joins = seen.of_api(api_keys.JOIN_GROUP)
    if seen.loses or len(joins) < at.generations:
        return
    rows, (groups, _), syncs = seen.exchanges, seen.groups, seen.of_api(api_keys.SYNC_GROUP)
    joins = joins[(rows.error[joins] == 0) & (groups[joins] >= 0) & (rows.answered[joins] != NULL)]
    refused = (rows.error[syncs] != 0) & ((rows.error[syncs] != NO_CODE) | (rows.status[syncs] != ANSWERED))
    doubtful = ~(refused & seen.unbroken[rows.link[syncs]])
    joins = joins[~arrow.among(groups[joins], arrow.distinct(groups[syncs[doubtful]]))]
    joins = joins[~arrow.among(groups[joins], arrow.distinct(groups[joins[~seen.unbroken[rows.link[joins]]]]))]
    generation = seen.column("generation")
    for mine in split(joins, groups[joins], least=at.generations):
        mine = mine[np.argsort(rows.answered[mine], kind="stable")]
        lasted = rows.answered[mine[-1]] - rows.answered[mine[0]]
        if lasted >= at.least_s * SECOND and len(arrow.distinct(generation[mine])) >= at.generations:
            yield mine


@rule(
    "groups",
    "join-refused",
    "error",
    "svc-a (10.0.0.4) may not join group g: INCONSISTENT_GROUP_PROTOCOL (23), 12 times, 10:01:03 to 10:01:09.",
    why="Such an answer is final: at first sight.",
    unless="Never otherwise.",
    advice="One assignor that all members have; a session timeout that the broker allows.",
    judge="forged: one such answer; a MEMBER_ID_REQUIRED",
)
def join_refused(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for trouble in of(seen, _JOIN):
        who = client(seen.who(trouble.client))
        text = f"{who} may not join group {name(trouble.thing.group)}: {trouble.error}, {times(trouble)}."
        yield found(seen, trouble, text)


@rule(
    "groups",
    "coordinator-loading",
    "warning",
    "The coordinator of group g still loaded after 40.0 s (COORDINATOR_LOAD_IN_PROGRESS (14) to svc-a (10.0.0.4)).",
    why="Loading took 3.1 s at the longest in captures; 30 s is a huge or stuck partition of __consumer_offsets.",
    unless="It passed within 30 s.",
    advice="Compaction of __consumer_offsets or __transaction_state.",
    judge="forged: three such answers over 31 s, and over 29 s",
)
def coordinator_loading(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for trouble in of(seen, _LOADING):
        text = f"The coordinator{about(trouble).replace(' for ', ' of ', 1)} still loaded after "
        text += f"{lasting(trouble.longest)} "
        yield found(seen, trouble, f"{text}({trouble.error} to {client(seen.who(trouble.client))}).")


@rule(
    "groups",
    "coordinator-flaps",
    "warning",
    "svc-a (10.0.0.4) finds no coordinator for group g: NOT_COORDINATOR (16), 12 times, 10:01:03 to 10:01:09.",
    why="One such answer a member and move; internal topics are made within 0.6 s. Five seconds, or thirty where "
    "there is none, are no move.",
    unless="It passed; a broker's loss explains it.",
    advice="Restarts of brokers; leaders of __consumer_offsets; enough brokers for its replication factor.",
    judge="forged: ten such answers over a second, and nine",
)
def coordinator_flaps(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for trouble in of(seen, _MOVING):
        text = f"{client(seen.who(trouble.client))} finds no coordinator{about(trouble)}: {trouble.error}, "
        yield found(seen, trouble, f"{text}{times(trouble)}.")


@rule(
    "groups",
    "kip848-member-fenced",
    "warning",
    "A member of group g at svc-a (10.0.0.4) was fenced 5 times: FENCED_MEMBER_EPOCH (110).",
    why="Clients rejoin by themselves: one costs seconds, two within five minutes have a cause.",
    unless="Only once.",
    advice="Heartbeats, the poll loop, moves of the coordinator.",
    judge="forged: two in five minutes, and one",
    often=2,
    window_s=300,
)
def member_fenced(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    fenced: dict[tuple[int, str | None, str, int], list[int]] = defaultdict(list)
    member, members = seen.table("exchanges").text("member_id")
    for run in runs(seen):
        if _FENCED(run) and (run.code == 110 or run.lasting):
            for row in run.rows.tolist():  # clients of one name and host may be several members
                named = members[member[row]] if member[row] >= 0 else ""
                fenced[run.client, run.thing.group, named, run.code].append(row)
    for (client_, group, named, code), some in fenced.items():
        when = np.sort(seen.exchanges.answered[some])
        most, first, past = busiest_window(when, int(at.window_s * SECOND))
        if most >= at.often:
            text = f"A member of group {name(group)} at {client(seen.who(client_))} was fenced {count(most, 'time')}: "
            label = "FENCED_MEMBER_EPOCH (110)" if code == 110 else "UNRELEASED_INSTANCE_ID (111)"
            rows = sorted(some)
            yield Found(
                f"{text}{label}.",
                most,
                int(when[first]),
                int(when[past - 1]),
                seen.who(client_),
                {"group_id": group, "member_id": named or None},
                (rows[0], rows[0], rows[-1]),
            )
