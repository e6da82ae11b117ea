"""Groups of consumers: rebalances, what sets them off, who delays them; commits."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import ANSWERED, NO_CODE, SECOND, CaptureFrame, once
from kwire.analyzer.findings.error_answers import about, claim, match_of, of, times
from kwire.analyzer.findings.restarts import restarts
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, replaced, rule
from kwire.analyzer.findings.runs import runs
from kwire.analyzer.findings.wording import client, count, lasting, moment, name
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import busiest_window, rows_by_key, split
from kwire.analyzer.protocol import api_keys, errors

_JOIN = claim(
    (api_keys.JOIN_GROUP, api_keys.HEARTBEAT, api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT),
    (23, 24, 26, 81, 112, 128),
)
_FENCED = claim((api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT), (25, 110, 111), every=True)
_LOADING = claim((), (14,))
_MOVING = claim(
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
"""APIs that a coordinator takes for a sign of life."""


def _rows_at(capture: CaptureFrame, events: list[dict[str, Any]]) -> tuple[int, ...]:
    """Exchanges that show events: first, worst (the last), last."""
    known = [row for row in (_row_of(capture, event) for event in (events[0], events[-1])) if row is not None]
    return (known[0], known[-1], known[-1]) if known else ()


def _row_of(capture: CaptureFrame, event: dict[str, Any] | None) -> int | None:
    """The row of the exchange that an event or a piece of evidence names."""
    if not event or event.get("connection") is None or event.get("exchange") is None:
        return None
    return capture.row_of(event["connection"], event["exchange"])


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
    suppressed_when="Fewer than three were set off by more than a first join or a planned leave, and members stood "
    "still for less than a fifth of the time; in the first minute of a group; the second step of a cooperative "
    "rebalance (KIP-429), which counts with the first. A note: each was set off by another client that left or joined, "
    "and by none twice, as where members are replaced one after the other.",
    advice="See what sets them off: member-session-timeout, poll-interval-exceeded, rebalance-slow-member.",
    evidence="forged rows: six rebalances of which three expired, and two; group-* (scripted, five); "
    "zoo-connect-sessioned-4.3 (seven while it starts)",
    rebalances=6,
    window_s=600,
    unplanned=3,
    start_s=60,
    stopped=0.2,
    by_clock=True,
)
def rebalance_storm(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for group, rows in _pairs("group_id", capture.table("rebalances").every()).items():
        begun = _steady(rows, int(at.start_s * SECOND))
        when = np.array([row["began"] for row in begun], np.int64)
        window = int(at.window_s * SECOND)
        most, first, past = busiest_window(when, window)
        if not most:
            continue
        in_window = begun[first:past]
        triggers = _counted(row["trigger"] or "unknown" for row in in_window)
        unplanned = sum(number for trigger, number in triggers.items() if trigger not in ("join", "leave"))
        stops = [max((stop["stopped_us"] for stop in row["stopped"] or ()), default=0) for row in in_window]
        # One that lasts into the next rebalance is counted there from then on.
        still = int(np.minimum(stops, np.diff(when[first:past], append=when[first] + window)).sum())
        spent = int(when[past - 1] - when[first])
        if most < at.rebalances or (unplanned < at.unplanned and still < at.stopped * max(spent, 1)):
            continue
        named = ", ".join(f"{trigger} {number}" for trigger, number in triggers.items())
        text = f"Group {name(group)} rebalanced {count(most, 'time')} in {lasting(window)} from "
        proof = [row for row in (_row_of(capture, rebalance["evidence"]) for rebalance in in_window) if row is not None]
        stood = f"; no record reached a member for up to {lasting(still)} of it" if still else ""
        text += f"{moment(in_window[0]['began'])} ({named}){stood}."
        rolling = not unplanned and _once_each(capture, in_window)
        yield Match(
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


def _once_each(capture: CaptureFrame, rows: list[dict[str, Any]]) -> bool:
    """Whether no client left, or joined, twice; its members may have other ids each time."""
    if "clients of members" not in capture.memo:
        members = capture.table("groups").every(["member_id", "client_ip", "client_id"])
        capture.memo["clients of members"] = {row["member_id"]: (row["client_ip"], row["client_id"]) for row in members}
    client_of = capture.memo["clients of members"]
    who = [(client_of.get(row["trigger_member"]), row["trigger"]) for row in rows]
    return len(set(who)) == len(who) and all(address is not None for address, _ in who)


_STEP_US = 5 * SECOND


def _steady(rows: list[dict[str, Any]], start_us: int) -> list[dict[str, Any]]:
    """Rebalances in order of time, without those of a group's first minute and second steps of cooperative ones, in
    which a member joins again after it has revoked its partitions."""
    begun = sorted((row for row in rows if row["began"] is not None), key=lambda row: row["began"])
    if begun and not begun[0]["members_before"]:
        begun = [row for row in begun if row["began"] >= begun[0]["began"] + start_us]
    steady: list[dict[str, Any]] = []
    ended = NULL
    for row in begun:
        second = row["trigger"] == "unknown" and row["trigger_member"] and 0 <= row["began"] - ended < _STEP_US
        if not second:
            steady.append(row)
        ended = row["ended"] if row["ended"] is not None else row["began"]
    return steady


def _counted(words: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for word in words:
        counts[word] += 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


@rule(
    "groups",
    "member-session-timeout",
    "warning",
    "Group g lost member m3 (svc-a, 10.0.0.4) at 10:01:03: its session expired.",
    why="The rule is the broker's own: a timer for each member.",
    suppressed_when="No generation of the group came about (group-never-stable): members are put out then that do not "
    "sync in time. The member left, or came back under its static name (KIP-345); bytes are missing from a connection "
    "of it, or packets from the capture while no end of that connection was seen: it may have left in what is missing. "
    "A record that its application does not get past ended it, or another life of that client within a minute of those "
    "(partition-stuck). "
    "A note: the group's coordinator had moved within the minute before, and the client had joined again; or the "
    "member had said that it stops for a while, as static ones do (KIP-848), and came back too late or not at all.",
    advice="Look for a crash, a pause of garbage collection, or the network of that member.",
    evidence="group-classic-librdkafka-4.3 (a member is killed), and without the packets in which it was and another "
    "left; cluster-* (a coordinator is killed: a note); forged rows",
    moved_s=60,
    around_s=60,
    by_clock=True,
)
def session_timeout(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    events = capture.table("groups").every()
    moved = [(row["group_id"], row["time"]) for row in events if row["event"] == "coordinator_moved"]
    expired = [row for row in events if row["event"] == "expired"]
    around = int(at.around_s * SECOND)
    stopped = _stopped(events)
    crashed = {member for group in restarts(capture) for member in group.members}
    crashes = [(group, capture.clients[group.client]) for group in restarts(capture)]
    unheard = _unheard(capture, {row["member_id"] for row in expired})
    unstable = {capture.groups[1][number] for number in _never_stable(capture)} if expired else set()
    for event in expired:
        if event["member_id"] in unheard | crashed or event["group_id"] in unstable:
            continue
        if any(
            event["group_id"] == group.group
            and (event["client_ip"], event["client_id"]) == whose
            and group.since - around <= event["time"] <= group.until + around
            for group, whose in crashes
        ):
            continue  # a life that began before the record, or had no time to come to it
        since = event["time"] - int(at.moved_s * SECOND)
        explained = any(group == event["group_id"] and since <= time <= event["time"] for group, time in moved)
        who = {"client_id": event["client_id"], "client_ip": event["client_ip"]}
        text = f"Group {name(event['group_id'])} lost member {name(event['member_id'])} "
        text += f"({client(who)}) at {moment(event['time'])}: its session expired."
        cause = "its coordinator had moved" if explained else _EXPIRED
        away = (event["group_id"], event["member_id"]) in stopped
        yield Match(
            text,
            1,
            event["time"],
            event["time"],
            who,
            {"group_id": event["group_id"], "member_id": event["member_id"]},
            _rows_at(capture, [event]),
            cause=_AWAY if away else cause,
            proven=away or not explained,
            severity="note" if away or explained else None,
            advice=_BACK_IN_TIME if away else None,
        )


_EXPIRED = "no heartbeat reached the coordinator within the session timeout"
_AWAY = "it had stopped in order, for a while, and did not come back within the session timeout"
_BACK_IN_TIME = "A session timeout longer than a restart takes, if it was one."


def _stopped(events: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(group, member) of members that left and did not join again, before they expired."""
    out: set[tuple[str, str]] = set()
    for row in events:
        if row["event"] == "leave" and row["error"] is None:
            out.add((row["group_id"], row["member_id"]))
        elif row["event"] == "join":
            out.discard((row["group_id"], row["member_id"]))
    return out


def _unheard(capture: CaptureFrame, wanted: set[str]) -> set[str]:
    """Members whose heartbeats may not have been captured."""
    if not wanted or (capture.unbroken.all() and not capture.loses):
        return set()
    member, members = capture.table("exchanges").text("member_id")
    rows = spill.true_rows(arrow.among(member, codes_of(members, *wanted)))
    links = {
        members[key[0]]: arrow.distinct(member_rows)
        for key, member_rows in rows_by_key(capture.exchanges.link[rows], member[rows]).items()
    }
    open_ = np.array([end == "open" for end in capture.closed], bool)
    doubtful = ~capture.unbroken | (open_ & capture.loses)
    return {member for member in wanted if member not in links or doubtful[links[member]].any()}


@rule(
    "groups",
    "poll-interval-exceeded",
    "warning",
    "svc-a (10.0.0.4) read nothing and committed nothing for 301.0 s, left group g, and joined again: it took too long "
    "between polls.",
    why="The client itself enforces max.poll.interval.ms, and leaves. Its JoinGroup says it, as the rebalance timeout; "
    "where none was seen, 5 min, as Java and librdkafka have it. librdkafka goes on to fetch in the background: there "
    "a member shows it that leaves without a commit, keeps its connections, and joins again over the same one.",
    suppressed_when="It did not join again within a minute; its heartbeats had stopped too; it was never seen to "
    "fetch, which it may do where nothing is captured, or not since it joined last: it may have no partition. It went "
    "on reading, and had committed within the interval (but for 6 s: automatic commits are 5 s apart), as one that "
    "leaves in order does, or joined again within 200 ms, as one that subscribes anew; it gave another reason "
    "(KIP-800).",
    advice="max.poll.records, and what is slow in processing.",
    evidence="max-poll-librdkafka; forged: heartbeats alone for 301 s, a leave and a join; and 200 s; for 31 s where "
    "JoinGroup says 30, and 29; a reader that goes on to fetch, and commits as it leaves",
    poll_s=300,
    back_s=60,
    auto_s=6,
    again_ms=200,
    by_clock=True,
)
def poll_interval(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    leaves, reasons = _leaves(capture)
    leavers = arrow.distinct(capture.client[leaves])
    fetches_and_commits = api_keys.FETCH, api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT
    works = _by_client(capture, capture.of_api(*fetches_and_commits), leavers)
    joins = _by_client(capture, _joins(capture), leavers)
    heart = _by_client(capture, capture.of_api(api_keys.HEARTBEAT, api_keys.CONSUMER_GROUP_HEARTBEAT), leavers)
    groups, named = capture.groups
    timeouts = _Timeouts(capture)
    in_background: dict[tuple[int, str | None], list[tuple[int, int, int, int]]] = defaultdict(list)
    for leave in leaves.tolist():
        who_, left = int(capture.client[leave]), int(rows.request_time[leave])
        before = _between(capture, works.get(who_), 0, left)
        after = _between(capture, joins.get(who_), left + 1, left + int(at.back_s * SECOND) + 1)
        group = named[groups[leave]] if groups[leave] >= 0 else None
        poll = timeouts.rebalance(capture.clients[who_], group, left)
        least = int(at.poll_s * SECOND) if poll is None else poll
        reason = reasons.get(leave)
        if not (rows.api[before] == api_keys.FETCH).any() or not len(after) or not _may_be_late(reason):
            continue
        since = int(rows.request_time[before[-1]])
        if left - since < least:
            commits = before[rows.api[before] != api_keys.FETCH]
            began = max(
                [int(rows.request_time[row]) for row in _between(capture, joins.get(who_), 0, left)[-1:]] or [0]
            )
            quiet_since = int(rows.request_time[commits[-1]]) if len(commits) else began
            beats = _between(capture, heart.get(who_), left - least, left)
            pause = int(rows.request_time[after[0]]) - left
            if reason is not None or (
                poll is not None
                and began
                and left - began >= poll
                and left - quiet_since >= max(poll - at.auto_s * SECOND, SECOND)
                and len(beats)
                and pause >= at.again_ms * 1000
                and rows.link[after[0]] == rows.link[leave]
            ):
                in_background[who_, group].append((leave, max(quiet_since, began), pause, int(least)))
            continue
        if len(_between(capture, joins.get(who_), since + 1, left)):
            continue
        beats = _between(capture, heart.get(who_), since + 1, left)
        if not len(beats):
            continue
        who = capture.who(int(capture.client[leave]))
        text = f"{client(who)} read nothing and committed nothing for {lasting(left - since)}, left group "
        text += f"{name(group)}, "
        yield Match(
            f"{text}and joined again: it took too long between polls.",
            1,
            since,
            left,
            who,
            {"group_id": group},
            (int(beats[0]), leave, leave),
            cause="max.poll.interval.ms",
            proven=reason is not None,
        )
    for (who_, group), late in in_background.items():
        yield _late_in_background(capture, who_, group, late, any(reasons.get(leave) for leave, *_ in late))


def _late_in_background(
    capture: CaptureFrame, who_: int, group: str | None, late: list[tuple[int, int, int, int]], proven: bool
) -> Match:
    """The match of leaves, with the time of the last commit before each, the pause after it and the interval, us."""
    who, requested = capture.who(who_), capture.exchanges.request_time
    first, last = late[0][0], late[-1][0]
    longest = max(pause for _, _, pause, _ in late)
    quiet = min(int(requested[leave]) - since for leave, since, _, _ in late)
    text = f"{client(who)} left group {name(group)} {count(len(late), 'time')} while its heartbeats went on, without a "
    text += f"commit for {lasting(quiet)} or longer before, and joined again up to {lasting(longest)} later: it took "
    text += f"longer than {lasting(late[0][3])} between polls. "
    return Match(
        f"{text}What it fetched meanwhile waited in its own queue.",
        len(late),
        late[0][1],
        int(requested[last]),
        who,
        {"group_id": group},
        (first, last, last),
        cause="max.poll.interval.ms",
        proven=proven,
    )


_OF_POLLS = ("poll timeout", "max.poll.interval", "poll interval")


def _may_be_late(reason: str | None) -> bool:
    """Whether a leave may be for the time between polls, by the reason that the member gave."""
    return reason is None or any(text in reason for text in _OF_POLLS)


def _leaves(capture: CaptureFrame) -> tuple[np.ndarray, dict[int, str]]:
    """Exchanges by which members leave, in classic groups and by heartbeats (KIP-848), and the reasons that they
    gave."""
    leaves = capture.of_one(capture.of_api(api_keys.LEAVE_GROUP))
    table = capture.table("groups")
    reasons: dict[int, str] = {}
    more = []
    for event in table.every(["event", "protocol", "error", "reason", "connection", "exchange"]) if len(table) else ():
        row = _row_of(capture, event) if event["event"] == "leave" and event["error"] is None else None
        if row is not None and event["reason"]:
            reasons[row] = event["reason"]
        if row is not None and event["protocol"] == "consumer":
            more.append(row)
    together = np.concatenate([leaves, capture.of_one(np.array(more, np.int64))]).astype(np.int64)
    return arrow.distinct(together) if more else leaves, reasons


def _joins(capture: CaptureFrame) -> np.ndarray:
    """Exchanges by which members join, in classic groups and by heartbeats."""
    joins = capture.of_api(api_keys.JOIN_GROUP)
    beats = capture.of_api(api_keys.CONSUMER_GROUP_HEARTBEAT)
    if len(beats):
        joins = np.concatenate([joins, beats[capture.column("generation")[beats] == 0]])
    return joins


class _Timeouts:
    """Timeouts that members stated when they joined. `sessions`: by member how long it may be silent, us."""

    def __init__(self, capture: CaptureFrame) -> None:
        self.sessions: dict[str, int] = {}
        self._rebalances: dict[tuple[tuple[str, str | None], str | None], list[tuple[int, int]]] = defaultdict(list)
        table = capture.table("groups")
        wanted = ["time", "group_id", "member_id", "client_ip", "client_id", "session_timeout_ms"]
        for row in table.every([*wanted, "rebalance_timeout_ms"]) if len(table) else ():
            if row["session_timeout_ms"] and row["member_id"]:
                self.sessions[row["member_id"]] = row["session_timeout_ms"] * 1000
            if row["rebalance_timeout_ms"]:
                who = (row["client_ip"], row["client_id"]), row["group_id"]
                self._rebalances[who].append((row["time"], row["rebalance_timeout_ms"] * 1000))

    def rebalance(self, client_: tuple[str, str | None], group: str | None, time: int) -> int | None:
        """The rebalance timeout of a client at a time, us."""
        stated = self._rebalances.get((client_, group), [])
        at = bisect.bisect_right(stated, time, key=lambda pair: pair[0])  # as they were told, which is in order
        return stated[at - 1][1] if at else None


def _by_client(capture: CaptureFrame, rows: np.ndarray, clients: np.ndarray) -> dict[int, np.ndarray]:
    """Exchanges of these clients, by time."""
    rows = rows[arrow.among(capture.client[rows], clients) & (capture.exchanges.request_time[rows] != NULL)]
    rows = rows[np.argsort(capture.exchanges.request_time[rows], kind="stable")]
    return {int(capture.client[group_rows[0]]): group_rows for group_rows in split(rows, capture.client[rows])}


def _between(capture: CaptureFrame, rows: np.ndarray | None, since: int, until: int) -> np.ndarray:
    """Exchanges, ordered by time, whose requests came from `since` on and before `until`."""
    if rows is None:
        return np.zeros(0, np.int64)
    first, past = np.searchsorted(capture.exchanges.request_time[rows], [since, until])
    return rows[int(first) : int(past)]


@rule(
    "groups",
    "heartbeat-late",
    "note",
    "svc-a (10.0.0.4) let 36.0 s pass between signs of life in group g, 3 times; its session ends after 45.0 s.",
    why="A healthy member beats every third of its session timeout or more often (3 s of 45 s): at 70 % fewer than "
    "five of fifteen beats are left. What the session is set to JoinGroup says; where none was seen, 45 s, Java's and "
    "librdkafka's default.",
    suppressed_when="The member waited in a JoinGroup, or had left; packets of the connection are missing; it never "
    "sent a heartbeat (a reader that only commits); it was on another connection before, and there are brokers that "
    "the capture has no connection to: its coordinator may have been there. A warning from three times on.",
    advice="Garbage collection, CPU, the network.",
    evidence="forged: beats 32 s apart, and 30 s; 8 s apart of a session of 10 s, and 6 s; on two connections, in a "
    "capture of one broker of two",
    session_s=45,
    share=0.7,
    often=3,
    by_clock=True,
)
def heartbeat_late(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.of_api(*_BEATS)
    rows = rows[capture.exchanges.request_time[rows] != NULL]
    member, members = capture.table("exchanges").text("member_id")
    groups, named = capture.groups
    # Commits without a member are no beats, and who never sent a heartbeat owes none.
    beats = member[capture.of_api(*_HEARTBEATS)]
    alive = arrow.distinct(beats[beats >= 0])
    alive = alive[alive != (members.index("") if "" in members else -1)]
    seen_whole = (capture.link_numbers("gaps") == 0)[capture.exchanges.link[rows]]
    rows = rows[arrow.among(member[rows], alive) & (groups[rows] >= 0) & seen_whole]
    rows = rows[np.argsort(capture.exchanges.request_time[rows], kind="stable")]
    timeouts, partial = _Timeouts(capture), root_causes.has_brokers_elsewhere(capture)
    for group_rows in split(rows, groups[rows], member[rows]):
        requested = capture.exchanges.request_time[group_rows]
        gap = requested[1:] - np.maximum(requested[:-1], capture.exchanges.response_end[group_rows[:-1]])
        session = timeouts.sessions.get(members[member[group_rows[0]]], int(at.session_s * SECOND))
        late = np.flatnonzero((gap >= at.share * session) & (gap < session))
        late = late[capture.exchanges.error[group_rows[late]] == 0]
        if partial:
            late = late[capture.exchanges.link[group_rows[late]] == capture.exchanges.link[group_rows[late + 1]]]
        if not len(late):
            continue
        who, group = capture.who(int(capture.client[group_rows[0]])), named[groups[group_rows[0]]]
        worst = int(late[gap[late].argmax()])
        text = f"{client(who)} let {lasting(int(gap[worst]))} pass between signs of life in group {name(group)}, "
        text += f"{count(len(late), 'time')}; its session ends after {lasting(session)}."
        places = int(group_rows[late[0] + 1]), int(group_rows[worst + 1]), int(group_rows[late[-1] + 1])
        yield Match(
            text,
            len(late),
            int(capture.exchanges.request_time[places[0]]),
            int(capture.exchanges.request_time[places[2]]),
            who,
            {"group_id": group, "member_id": members[member[group_rows[0]]]},
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
    suppressed_when="All joined within 10 s, or within 5 s of one another.",
    advice="That member blocks in its poll loop or in its callback for revoked partitions.",
    evidence="forged: two joins 11 s apart, answered together; five that come 3 s after one another",
    late_s=10,
    pause_s=5,
    by_clock=True,
)
def slow_member(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.of_api(api_keys.JOIN_GROUP)
    groups, named = capture.groups
    generation = capture.column("generation")
    rows = rows[
        (capture.exchanges.error[rows] == 0) & (groups[rows] >= 0) & (capture.exchanges.response_end[rows] != NULL)
    ]
    for group_rows in split(rows, groups[rows], generation[rows]):
        requested, answered = capture.exchanges.request_time[group_rows], capture.exchanges.response_end[group_rows]
        together = answered >= answered.max() - SECOND
        group_rows, requested = group_rows[together], requested[together]
        spread = int(requested.max() - requested.min())
        # While members arrive in an empty group, each within three seconds of the one before, it waits for more.
        if (
            len(group_rows) < 2
            or spread < at.late_s * SECOND
            or np.diff(np.sort(requested)).max() < at.pause_s * SECOND
        ):
            continue
        last = int(group_rows[requested.argmax()])
        who, group = capture.who(int(capture.client[last])), named[groups[last]]
        text = f"{client(who)} delayed a rebalance of group {name(group)}: it joined {lasting(spread)} after the first."
        yield Match(
            text,
            len(group_rows),
            int(requested.min()),
            int(requested.max()),
            who,
            {"group_id": group},
            (int(group_rows[requested.argmin()]), last, last),
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
    suppressed_when="Some SyncGroup of the generation was answered well; none waited for a second; a member left "
    "meanwhile; no generation of the group came about at all (group-never-stable).",
    advice="The leader's assignor, or the size of its metadata.",
    evidence="forged: refused after 5 s, and beside one that is answered",
    wait_s=1,
)
def sync_never_came(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows, leaves = capture.of_api(api_keys.SYNC_GROUP), capture.of_api(api_keys.LEAVE_GROUP)
    if not len(rows):
        return
    groups, named = capture.groups
    generation, latency = capture.column("generation"), capture.column("latency_us")
    rows = rows[groups[rows] >= 0]
    if not len(_in_vain(capture, rows)):
        return
    leaves_of = rows_by_key(leaves, groups[leaves])
    unstable = _never_stable(capture)
    for group_rows in split(rows, groups[rows], generation[rows]):
        if int(groups[group_rows[0]]) in unstable:
            continue
        error = capture.exchanges.error[group_rows]
        refused = group_rows[arrow.among(error, (25, 27)) & (latency[group_rows] >= at.wait_s * SECOND)]
        if not len(refused) or (error == 0).any():
            continue
        since, until = (
            int(capture.exchanges.request_time[group_rows].min()),
            int(capture.exchanges.response_end[group_rows].max()),
        )
        left = capture.exchanges.request_time[leaves_of.get((int(groups[group_rows[0]]),), leaves[:0])]
        if ((left >= since) & (left <= until)).any():
            continue
        group = named[groups[group_rows[0]]]
        text = f"Nobody's assignment of group {name(group)} came: {count(len(refused), 'SyncGroup request')} waited "
        text += "up to "
        text += (
            f"{lasting(int(latency[refused].max()))} in generation {int(generation[group_rows[0]])}, and were refused."
        )
        requested = capture.exchanges.request_time[refused]
        yield Match(
            text,
            len(refused),
            int(requested.min()),
            int(requested.max()),
            capture.who(int(capture.client[refused[0]])),
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
    suppressed_when="Some SyncGroup of the group was answered well, or with what was not decoded; packets are missing.",
    advice="The leader, which makes the assignment: its assignor, the size of its metadata, its timeouts. Members that "
    "need longer to join again than the rebalance timeout.",
    evidence="forged: three generations in 30 s, and in 29 s; with one SyncGroup that is answered; a real group whose "
    "leader never sends an assignment",
    generations=3,
    least_s=30,
    by_clock=True,
)
def never_stable(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    unstable = list(_unstable(capture, at))
    if not unstable:
        return  # mostly, and then no column is read
    groups, named = capture.groups
    generation = capture.column("generation")
    waits = _in_vain(capture, capture.of_api(api_keys.SYNC_GROUP))
    for group_rows in unstable:
        answered = capture.exchanges.response_end[group_rows]
        many = len(arrow.distinct(generation[group_rows]))
        group = named[groups[group_rows[0]]]
        text = f"Group {name(group)} made {count(many, 'generation')} in {lasting(int(answered[-1] - answered[0]))}, "
        text += "and none of its members that were seen got an assignment in any of them."
        held = waits[groups[waits] == groups[group_rows[0]]]
        yield Match(
            text,
            many,
            int(answered[0]),
            int(answered[-1]),
            capture.who(broker=int(capture.broker[group_rows[0]])),
            {"group_id": group},
            (int(group_rows[0]), int(held[-1]) if len(held) else int(group_rows[-1]), int(group_rows[-1])),
            cause="the leader did not send it" if len(held) else None,
            proven=True if len(held) else None,
        )


@once
def _never_stable(capture: CaptureFrame) -> set[int]:
    """Numbers of groups that group-never-stable reports."""
    at = limits_of(RULES["group-never-stable"], capture.query)
    return {int(capture.groups[0][group_rows[0]]) for group_rows in _unstable(capture, at)}


def _in_vain(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """SyncGroups that were refused after waiting."""
    least = limits_of(RULES["sync-never-came"], capture.query).wait_s * SECOND
    refused = rows[arrow.among(capture.exchanges.error[rows], (25, 27))]
    unanswered: np.ndarray = refused[capture.column("latency_us")[refused] >= least]
    return unanswered


def _unstable(capture: CaptureFrame, at: Limits) -> Iterator[np.ndarray]:
    """Yield the successful joins of each group without a successful SyncGroup, by time of the answer, if they have
    enough generations and last long enough."""
    joins = capture.of_api(api_keys.JOIN_GROUP)
    if capture.loses or len(joins) < at.generations:
        return
    rows, (groups, _), syncs = capture.exchanges, capture.groups, capture.of_api(api_keys.SYNC_GROUP)
    joins = joins[(rows.error[joins] == 0) & (groups[joins] >= 0) & (rows.response_end[joins] != NULL)]
    refused = (rows.error[syncs] != 0) & ((rows.error[syncs] != NO_CODE) | (rows.status[syncs] != ANSWERED))
    doubtful = ~(refused & capture.unbroken[rows.link[syncs]])
    joins = joins[~arrow.among(groups[joins], arrow.distinct(groups[syncs[doubtful]]))]
    joins = joins[~arrow.among(groups[joins], arrow.distinct(groups[joins[~capture.unbroken[rows.link[joins]]]]))]
    generation = capture.column("generation")
    for group_rows in split(joins, groups[joins], least=at.generations):
        group_rows = group_rows[np.argsort(rows.response_end[group_rows], kind="stable")]
        lasted = rows.response_end[group_rows[-1]] - rows.response_end[group_rows[0]]
        if lasted >= at.least_s * SECOND and len(arrow.distinct(generation[group_rows])) >= at.generations:
            yield group_rows


_JOIN_ADVICE: Mapping[int, str] = {
    errors.INCONSISTENT_GROUP_PROTOCOL: "A partition.assignment.strategy that all members have.",
    errors.INVALID_SESSION_TIMEOUT: "A session.timeout.ms between the broker's group.min.session.timeout.ms and "
    "group.max.session.timeout.ms (6 s and 30 min unless they are set).",
    errors.GROUP_MAX_SIZE_REACHED: "Fewer members, or a larger group.max.size of the brokers.",
}
"""Advice to whom a group did not let in, by error."""


@rule(
    "groups",
    "join-refused",
    "error",
    "svc-a (10.0.0.4) may not join group g: INCONSISTENT_GROUP_PROTOCOL (23), 12 times, 10:01:03 to 10:01:09.",
    why="Such an answer is final: at first sight.",
    suppressed_when="Never otherwise.",
    advice="One assignor that all members have; a session timeout that the broker allows.",
    evidence="forged: one such answer; a MEMBER_ID_REQUIRED",
)
def join_refused(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _JOIN):
        who = client(capture.who(trouble.client))
        text = f"{who} may not join group {name(trouble.thing.group)}: {trouble.error}, {times(trouble)}."
        yield replaced(match_of(capture, trouble, text), advice=_JOIN_ADVICE.get(trouble.code))


@rule(
    "groups",
    "coordinator-loading",
    "warning",
    "The coordinator of group g still loaded after 40.0 s (COORDINATOR_LOAD_IN_PROGRESS (14) to svc-a (10.0.0.4)).",
    why="Loading took 3.1 s at the longest in captures; 30 s is a huge or stuck partition of __consumer_offsets.",
    suppressed_when="It passed within 30 s.",
    advice="Compaction of __consumer_offsets or __transaction_state.",
    evidence="forged: three such answers over 31 s, and over 29 s",
)
def coordinator_loading(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _LOADING):
        text = f"The coordinator{about(trouble).replace(' for ', ' of ', 1)} still loaded after "
        text += f"{lasting(trouble.longest)} "
        yield match_of(capture, trouble, f"{text}({trouble.error} to {client(capture.who(trouble.client))}).")


@rule(
    "groups",
    "coordinator-flaps",
    "warning",
    "svc-a (10.0.0.4) finds no coordinator for group g: NOT_COORDINATOR (16), 12 times, 10:01:03 to 10:01:09.",
    why="One such answer a member and move; internal topics are made within 0.6 s. Five seconds, or thirty where "
    "there is none, are no move.",
    suppressed_when="It passed; a broker's loss explains it.",
    advice="Restarts of brokers; leaders of __consumer_offsets; enough brokers for its replication factor.",
    evidence="forged: ten such answers over a second, and nine",
)
def coordinator_flaps(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _MOVING):
        text = f"{client(capture.who(trouble.client))} finds no coordinator{about(trouble)}: {trouble.error}, "
        yield match_of(capture, trouble, f"{text}{times(trouble)}.")


@rule(
    "groups",
    "kip848-member-fenced",
    "warning",
    "A member of group g at svc-a (10.0.0.4) was fenced 5 times: FENCED_MEMBER_EPOCH (110).",
    why="Clients rejoin by themselves: one costs seconds, two within five minutes have a cause. UNKNOWN_MEMBER_ID to a "
    "heartbeat says that the coordinator had put the member out; three of its usual intervals without a heartbeat, and "
    "two seconds, are a session that ended, and once is enough.",
    suppressed_when="Only once; the member was new to the coordinator (it had no answer before); the group's "
    "coordinator had moved within a minute before (UNKNOWN_MEMBER_ID).",
    advice="Heartbeats, the poll loop, moves of the coordinator.",
    evidence="forged: two in five minutes, and one; a member that was silent for three of its intervals; "
    "tests/incidents kip848-member-fenced",
    often=2,
    window_s=300,
    silent_s=2,
    intervals=3,
    moved_s=60,
)
def member_fenced(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    fenced: dict[tuple[int, str | None, str, int], list[int]] = defaultdict(list)
    member, members = capture.table("exchanges").text("member_id")
    silences: dict[int, tuple[int, int]] | None = None
    for run in runs(capture):
        if _FENCED(run) and (run.code != 111 or run.lasting):
            for row in run.rows.tolist():  # clients of one name and host may be several members
                named = members[member[row]] if member[row] >= 0 else ""
                fenced[run.client, run.thing.group, named, run.code].append(row)
    for (client_, group, named, code), some in fenced.items():
        silent, cause = 0, None
        if code == 25:
            silences = _silences(capture) if silences is None else silences
            some = [row for row in some if row in silences and not _moved_before(capture, group, row, at.moved_s)]
            long = [
                row for row in some if silences[row][0] >= max(at.silent_s * SECOND, at.intervals * silences[row][1])
            ]
            silent = max((silences[row][0] for row in long), default=0)
        if not some:
            continue
        when = np.sort(capture.exchanges.response_end[some])
        most, first, past = busiest_window(when, int(at.window_s * SECOND))
        if most >= at.often or silent:
            who = capture.who(client_)
            text = (
                f"A member of group {name(group)} at {client(who)} was fenced {count(most, 'time')}: {_FENCINGS[code]}"
            )
            if silent:
                text += f", after up to {lasting(silent)} without a heartbeat"
                cause = (
                    "it sent no heartbeat for longer than its session lasts: the process, or its thread, stood still"
                )
            rows = sorted(some)
            yield Match(
                f"{text}.",
                most,
                int(when[first]),
                int(when[past - 1]),
                who,
                {"group_id": group, "member_id": named or None},
                (rows[0], rows[0], rows[-1]),
                cause=cause,
                proven=True if cause else None,
                advice="Look for a pause of garbage collection, a frozen host or container, or a lack of CPU at that "
                "member; a longer consumer.session.timeout.ms of the group."
                if silent
                else None,
            )


_FENCINGS = {25: "UNKNOWN_MEMBER_ID (25)", 110: "FENCED_MEMBER_EPOCH (110)", 111: "UNRELEASED_INSTANCE_ID (111)"}


def _silences(capture: CaptureFrame) -> dict[int, tuple[int, int]]:
    """How long a member of a newer protocol had sent no heartbeat before each of its heartbeats, and the median of its
    intervals, us; by exchange. Those that were its first, or are on connections with holes, are not there."""
    rows = capture.of_api(api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT)
    member, members = capture.table("exchanges").text("member_id")
    whole = (capture.link_numbers("gaps") == 0)[capture.exchanges.link[rows]]
    rows = rows[(member[rows] >= 0) & (capture.exchanges.request_time[rows] != NULL) & whole]
    rows = rows[np.argsort(capture.exchanges.request_time[rows], kind="stable")]
    out: dict[int, tuple[int, int]] = {}
    for group_rows in split(rows, capture.groups[0][rows], member[rows]):
        if members[member[group_rows[0]]]:
            gaps = np.diff(capture.exchanges.request_time[group_rows])
            usual = int(np.median(gaps)) if len(gaps) else 0
            # Over another connection heartbeats may have gone to a coordinator that the capture does not show.
            gaps[np.diff(capture.exchanges.link[group_rows]) != 0] = 0
            out |= {row: (gap, usual) for row, gap in zip(group_rows[1:].tolist(), gaps.tolist(), strict=True)}
    return out


def _moved_before(capture: CaptureFrame, group: str | None, row: int, seconds: float) -> bool:
    """Whether a group's coordinator had moved within so long before an exchange."""
    time = int(capture.exchanges.request_time[row])
    return any(
        event["event"] == "coordinator_moved" and time - int(seconds * SECOND) <= event["time"] <= time
        for event in capture.table("groups").every(["group_id", "event", "time"])
        if event["group_id"] == group
    )
