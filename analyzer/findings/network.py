"""TCP, and connections that come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from kwire.analyzer.findings import foreign_protocols, root_causes, sessions, undelivered
from kwire.analyzer.findings.capture import HELD, IN_FLIGHT, SECOND, UNANSWERED, Attempt, CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, moment, name, share
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import busiest_window, max_by, median_count, rows_by_key, split
from kwire.analyzer.protocol import api_keys

_IDLE = (
    api_keys.FETCH,
    api_keys.SHARE_FETCH,
    api_keys.HEARTBEAT,
    api_keys.CONSUMER_GROUP_HEARTBEAT,
    api_keys.SHARE_GROUP_HEARTBEAT,
    api_keys.STREAMS_GROUP_HEARTBEAT,
    api_keys.JOIN_GROUP,
    api_keys.SYNC_GROUP,
    api_keys.LEAVE_GROUP,
)
"""APIs whose answers a client does not await when it leaves."""

_LOGIN = (api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE)


def _next_answered(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: whether a later request of the same connection was answered."""
    last = np.full(len(capture.links), -1, np.int64)
    for block in spill.blocks(len(capture.exchanges)):
        answered = block.start + np.flatnonzero(capture.exchanges.status[block] == 0)
        link, exchange = capture.exchanges.link[answered], capture.exchanges.exchange[answered]
        last = np.maximum(last, max_by(link, exchange, len(capture.links), -1))
    later: np.ndarray = last[capture.exchanges.link[rows]] > capture.exchanges.exchange[rows]
    return later


def _silent(capture: CaptureFrame) -> np.ndarray:
    """Exchanges without an answer although one was due, as far as the capture can show."""
    rows = np.flatnonzero(capture.exchanges.status == UNANSWERED)
    if not len(rows):
        return rows
    link, api = capture.exchanges.link[rows], capture.exchanges.api[rows]
    fin = np.array([end == "fin" for end in capture.closed], bool)[link]
    last = ~_next_answered(capture, rows)
    left_open = arrow.among(api, _IDLE) & last
    table, state = capture.table("exchanges").text("request_state")
    decoded = arrow.among(table[rows], codes_of(state, "decoded"))
    refused = arrow.among(link, capture.exchanges.link[capture.exchanges.error == 58])
    chosen: np.ndarray = rows[
        capture.whole[link]
        & decoded
        & ~refused
        & ~arrow.among(api, _LOGIN)
        & ~(fin & left_open)
        & ~(last & capture.loses)
        & ~root_causes.explained(capture, rows)
        & ~arrow.among(rows, undelivered.rows(capture))
        & ~arrow.among(rows, sessions.expired(capture))
    ]
    return chosen


@rule(
    "network",
    "request-unanswered",
    "error",
    "12 Produce requests of svc-a (10.0.0.4) to 10.0.0.1:9092 got no answer: the connection was reset.",
    why="No threshold: TCP and a living broker always deliver, so one is enough.",
    suppressed_when="acks=0; the capture ended first; bytes are missing from the connection, or one of its directions, "
    "or packets from the capture while no later answer came (what is lost at an end leaves no hole); the end point "
    "never answers the client in Kafka (no-kafka-answer, not-kafka), or a length before it is impossible; the client "
    "closed it in order with nothing open but what it waits in (Fetch, heartbeats, JoinGroup); the login failed; the "
    "request cannot be decoded; its broker went away (broker-lost tells how many); TCP never delivered it "
    "(request-undelivered); its session was over (session-expired). A note: fewer than three, or the last that is seen "
    "of the client, and the connection was closed in order, or by the client's reset: a process that was ended. A "
    "warning: the client reset it.",
    advice="Look where it died: a reset is the broker's or a middlebox's, later answers mean a fault of the broker.",
    evidence="forged: a request that later answers pass by; errors-librdkafka-4.3, cluster-*",
    closes=3,
)
def request_unanswered(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = _silent(capture)
    # A close without an answer to what a broker does not take is told by version-refused and frame-oversized; of an
    # end point that never speaks Kafka no-kafka-answer tells, and not-kafka of one that speaks something else.
    for others in (root_causes.refused_versions(capture), root_causes.oversized(capture)):
        rows = rows[~arrow.among(rows, others)]
    for deaf in foreign_protocols.without_answers(capture):
        rows = rows[~arrow.among(rows, deaf.rows)]
    rows = rows[~arrow.among(capture.exchanges.link[rows], foreign_protocols.broken_links(capture))]
    if not len(rows):
        return
    later = _next_answered(capture, rows)
    reset = np.array([end == "rst" for end in capture.closed], bool)[capture.exchanges.link[rows]]
    by_client = capture.links_where("closed_by", "client")[capture.exchanges.link[rows]]
    causes = np.where(later, 0, np.where(reset, np.where(by_client, 3, 1), 2))
    keys = capture.client[rows], capture.broker[rows], capture.exchanges.api[rows], causes
    for some in split(np.arange(len(rows)), *keys):
        group_rows, cause = rows[some], _CAUSES[causes[some[0]]]
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))
        # Who closes in order is not known: one that does with a last request open may just have left, and one of whom
        # nothing is seen after has.
        few = cause == _CAUSES[2] and len(group_rows) < at.closes
        left = few or (cause in _CAUSES[2:] and _has_left(capture, group_rows))
        api = api_name(int(capture.exchanges.api[group_rows[0]]))
        text = f"{count(len(group_rows), api + ' request')} of {client(who)} to {who['broker']} got no answer: {cause}."
        requested = capture.exchanges.request_time[group_rows]
        yield Match(
            text,
            len(group_rows),
            int(requested.min()),
            int(requested.max()),
            who,
            {"api": api},
            tuple(group_rows[[0, 0, -1]].tolist()),
            cause=cause,
            proven=True,
            severity="note" if left else "warning" if cause == _CAUSES[3] else None,
            advice="Look at the client: whoever resets a connection with requests open was ended, or gave them up."
            if cause == _CAUSES[3]
            else None,
        )


_CAUSES = (
    "later requests of the same connection were answered",
    "the connection was reset",
    "the connection was closed in order",
    "the client reset the connection",
)


_LEAVES_US = 10 * SECOND
"""Time that a client that exits waits for what it asked last."""


def _has_left(capture: CaptureFrame, rows: np.ndarray) -> bool:
    """Whether the client of requests without an answer left soon after them: within ten seconds, and all of its
    connections to any broker ended within a second, and it opened no other."""
    client_ = int(capture.client[rows[0]])
    links = np.flatnonzero(capture.client_of == client_)
    ended = capture.link_times("last_time")
    leaves = ended[capture.exchanges.link[rows]]
    in_order = all(capture.closed[link] != "open" for link in links.tolist())
    if (leaves - capture.exchanges.request_time[rows] > _LEAVES_US).any():
        return False  # it waited in vain first
    return in_order and bool(ended[links].max() - leaves.min() <= SECOND) and not capture.mixed[client_]


TIMEOUTS = (30 * SECOND, 60 * SECOND)
"""request.timeout.ms of Kafka's own client, socket.timeout.ms of librdkafka."""


@rule(
    "network",
    "answer-after-client-timeout",
    "warning",
    "3 Produce requests of svc-a (10.0.0.4) to 10.0.0.1:9092 took longer than the client's timeout of 30 s: it had "
    "given up.",
    why="30 s is request.timeout.ms of Kafka's Java client, 60 s socket.timeout.ms of librdkafka; what clients are set "
    "to is not on the wire.",
    suppressed_when="The answer is one that the broker holds (Fetch, JoinGroup, SyncGroup); the client did not go "
    "within 1 s of the timeout; there was an answer, and the client did not connect again within 1 s of the timeout "
    "and before it, or asked on after; bytes are missing, or packets from the capture and no answer was seen; TCP "
    "never delivered it (request-undelivered).",
    advice="The broker's latency first, then the client's timeout.",
    evidence="forged: a connection closed 30 s after its request; one closed after 20 s says nothing; a late answer to "
    "who had connected again, and one that was taken",
    around_s=1,
    by_clock=True,
)
def answer_after_timeout(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    if capture.span[1] - capture.span[0] < (30 - at.around_s) * SECOND:
        return
    ended = capture.link_times("last_time")

    def are_old(block: slice) -> Any:
        requested, answered, link = rows.request_time[block], rows.response_end[block], rows.link[block]
        waited = np.where(answered != NULL, answered, ended[link]) - requested
        old = (requested != NULL) & (waited >= (30 - at.around_s) * SECOND)
        known = capture.whole[link] & ((answered != NULL) | (not capture.loses))
        return old & ~arrow.among(rows.api[block], HELD) & known & (rows.status[block] != 1)

    chosen = spill.where(len(rows), are_old)
    chosen = chosen[~arrow.among(chosen, undelivered.rows(capture))]
    late_answers: dict[tuple[int, int, int, int], list[int]] = {}
    around = int(at.around_s * SECOND)
    if not len(chosen):
        return
    begun, last = _begun(capture), max_by(rows.link, rows.request_time, len(capture.links), NULL)
    for row in chosen.tolist():
        link, answered = int(rows.link[row]), int(rows.response_end[row])
        pair = int(capture.client[row]), int(capture.broker[row])
        for timeout in TIMEOUTS:
            until = int(rows.request_time[row]) + timeout
            given_up = abs(int(ended[link]) - until) <= around
            if answered != NULL:  # it stays open until then on the broker's side: whoever is back asks there no more
                back = np.searchsorted(begun[pair], [until - around, min(until + around + 1, answered)])
                given_up = answered > until >= last[link] and bool(back[1] > back[0])
            if given_up and capture.closed[link] != "open":
                late_answers.setdefault((*pair, int(rows.api[row]), timeout), []).append(row)
    for (who_, broker, api, timeout), answers in late_answers.items():
        who = capture.who(who_, broker)
        text = (
            f"{count(len(answers), api_name(api) + ' request')} of {client(who)} to {who['broker']} took longer than "
        )
        text += f"the client's timeout of {timeout // SECOND} s: it had given up"
        late = [
            int(rows.response_end[row] - rows.request_time[row]) for row in answers if rows.response_end[row] != NULL
        ]
        text += f"; {count(len(late), 'answer')} came after {lasting(max(late))} or less." if late else "."
        yield Match(
            text,
            len(answers),
            int(rows.request_time[answers[0]]),
            int(rows.request_time[answers[-1]]),
            who,
            {"api": api_name(api)},
            (answers[0], answers[0], answers[-1]),
            cause="the client's own timeout",
            proven=False,
        )


def _begun(capture: CaptureFrame) -> dict[tuple[int, ...], np.ndarray]:
    """Times when connections began, by client and broker, in order."""
    first = capture.link_times("first_time")
    links = np.flatnonzero((capture.link_numbers("opened") > 0) & (first != NULL))
    pairs = rows_by_key(first[links], capture.client_of[links], capture.broker_of[links])
    return defaultdict(lambda: np.zeros(0, np.int64), {pair: np.sort(times) for pair, times in pairs.items()})


@rule(
    "network",
    "tcp-retransmission",
    "warning",
    "4.2 % of the packets between orders (10.0.0.7) and 10.0.0.1:9092 were sent again (240 of 5,700).",
    why="Ours: fewer than one in a hundred TCP mends by itself, with ten at least so that the share says something; "
    "200 ms is Linux's least timeout, a spike that applications see. Hosts that are busy send small packets again that "
    "were only acknowledged late, without anybody waiting for it: of such loaded ones 1 to 2.5 % were seen.",
    suppressed_when="The capture holds packets twice (capture-duplicated): those are counted apart, and where a "
    "connection has nearly all of its packets twice, none of them is said to have been sent again. What was slow where "
    "a reader had no room (tcp-zero-window) waited for that; what is large takes its time: at 10 MB a second, and the "
    "way besides (slow-transfer tells of slower ones). A note: fewer than three in a hundred, and nothing waited 200 "
    "ms for it.",
    advice="Look at the path, the network card and the MTU.",
    evidence="net-lossy-4.3 (2 % loss) against net-vlan-4.3; forged: a packet of a small answer, and of a large one",
    share=0.01,
    packets=10,
    repair_ms=200,
    rate=10_000_000,
    many=0.03,
)
def retransmission(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    explained = capture.doubled | undelivered.links(capture)
    again = np.where(explained, 0, capture.link_numbers("retransmissions"))
    packets = capture.link_packets
    repaired = _repaired(capture, at.repair_ms, at.rate) if again.any() else {}
    for client_, broker, links in _pairs(capture, np.flatnonzero(again)):
        lost, whole = int(again[links].sum()), int(packets[links].sum())
        slow = repaired.get((client_, broker), links[:0])
        if (lost < at.packets or lost < at.share * whole) and not len(slow):
            continue
        who = capture.who(client_, broker)
        text = f"{share(lost, whole)} of the packets between {client(who)} and {who['broker']} were sent again "
        text += f"({lost:,} of {whole:,})"
        if len(slow):
            longest = int(capture.column("network_us")[slow].max())
            text += f"; {count(len(slow), 'exchange')} took {lasting(longest)} or less on the network"
        worst = int(links[again[links].argmax()])
        since, until = (
            int(capture.link_times("first_time")[links].min()),
            int(capture.link_times("last_time")[links].max()),
        )
        yield Match(
            text + ".",
            lost,
            since,
            until,
            who,
            {},
            links=(int(links[0]), worst, int(links[-1])),
            cause="packets were lost on the way, or came too late",
            proven=True,
            severity=None if len(slow) or lost >= at.many * whole else "note",
        )


def _repaired(capture: CaptureFrame, repair_ms: float, rate: float) -> dict[tuple[int, ...], np.ndarray]:
    """Exchanges whose time on the network, without path delay and transfer time at that rate, exceeds TCP's least
    timeout, on connections with retransmissions; by client and broker."""
    if capture.greatest("network_us") < repair_ms * 1000:
        return {}
    network = capture.column("network_us")
    slow = spill.where(len(network), lambda block: network[block] >= repair_ms * 1000)
    link = capture.exchanges.link[slow]
    sent = sum(np.maximum(capture.column(name)[slow], 0) for name in ("request_bytes", "response_bytes"))
    rest = network[slow] - capture.link_numbers("rtt_us")[link] - sent * SECOND / rate
    waited = capture.link_numbers("zero_windows")[link] > 0  # those waited for room
    slow = slow[(rest >= repair_ms * 1000) & ~waited & (capture.link_numbers("retransmissions")[link] > 0)]
    return rows_by_key(slow, capture.client[slow], capture.broker[slow])


def _pairs(capture: CaptureFrame, links: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (client, broker, their connections) for some connections."""
    pair = capture.client_of.astype(np.int64) << 32 | capture.broker_of
    every = np.flatnonzero(arrow.among(pair, arrow.distinct(pair[links]))) if len(links) else links
    for (client_, broker), pair_links in rows_by_key(every, capture.client_of[every], capture.broker_of[every]).items():
        yield client_, broker, pair_links


def _these(capture: CaptureFrame, links: np.ndarray) -> np.ndarray:
    """bool[links]: whether a connection is one of these."""
    is_used = np.zeros(len(capture.links), bool)
    is_used[links] = True
    return is_used


@rule(
    "network",
    "tcp-zero-window",
    "warning",
    "billing-3 (10.0.0.9) stopped reading from 10.0.0.1:9092: answers waited for room for up to 4.2 s (12 packets said "
    "so).",
    why="Shorter stalls are usual with receive buffers of 32 to 64 KiB; 200 ms is a pause that applications see.",
    suppressed_when="No exchange of the connection took 200 ms to be transferred: then the window opened again at "
    "once. A note: the broker does not read while a quota's pauses last (client-throttled), or before it has answered "
    "the request before: it takes one of a connection at a time.",
    advice="Look at the reader: garbage collection, CPU, or work done in the thread that reads.",
    evidence="forged: a zero window while an answer is on its way, and while a request before waits for its answer",
    stall_ms=200,
)
def zero_window(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    windows = capture.link_numbers("zero_windows")
    full = np.flatnonzero(windows)
    if not len(full):
        return
    rows = capture.exchanges
    full_rows = spill.true_rows(arrow.among(rows.link, full))
    paused = arrow.distinct(rows.link[full_rows[capture.column("throttle_us")[full_rows] > 0]])
    answer = _span(capture.column("response_time")[full_rows], rows.response_end[full_rows])
    request = _span(rows.request_time[full_rows], capture.column("request_end")[full_rows])
    is_next = _behind_another(capture, full_rows)
    sides = []
    for waited, blame in ((answer, "client"), (request, "broker")):
        long = np.flatnonzero(waited >= at.stall_ms * 1000)
        sides.append(
            (waited, blame, rows_by_key(long, capture.client[full_rows[long]], capture.broker[full_rows[long]]))
        )
    for client_, broker, links in _pairs(capture, full):
        for waited, blame, of_pairs in sides:
            stalled = of_pairs.get((client_, broker))
            if stalled is None:
                continue
            who = capture.who(client_, broker)
            reader, other = (client(who), who["broker"]) if blame == "client" else (who["broker"], client(who))
            worst = int(waited[stalled].max())
            what = "answers" if blame == "client" else "requests"
            text = f"{reader} stopped reading from {other}: {what} waited for room for up to {lasting(worst)} "
            text += f"({count(int(windows[links].sum()), 'packet')} said so)."
            mine_rows = full_rows[stalled]
            places = (int(mine_rows[0]), int(full_rows[stalled[waited[stalled].argmax()]]), int(mine_rows[-1]))
            quota = blame == "broker" and bool(arrow.among(rows.link[mine_rows], paused).all())
            behind = blame == "broker" and not quota and bool(is_next[stalled].all())
            cause, advice = f"the {blame} does not read", None
            if quota:
                cause, advice = "a quota: the broker does not read during its pauses", "Raise the quota, or send less."
            elif behind:
                cause = "a broker reads the next request of a connection once it has answered the one before"
                advice = "See what those waited for: findings of latency, kwire show --follow CONNECTION."
            yield Match(
                text,
                len(stalled),
                int(rows.request_time[places[0]]),
                int(rows.request_time[places[2]]),
                who,
                {},
                places,
                severity="note" if quota or behind else None,
                proven=not quota,
                cause=cause,
                advice=advice,
            )


def _behind_another(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: for most of the time that a request was on its way, one before it on its connection had no answer.

    Kafka's `SocketServer` mutes a channel from a whole request to its response.
    """
    request_time, request_end = capture.exchanges.request_time[rows], capture.column("request_end")[rows]
    answered = capture.column("response_time")[rows]
    behind = np.zeros(len(rows), bool)
    for own in split(np.arange(len(rows)), capture.exchanges.link[rows]):
        own = own[np.argsort(request_time[own], kind="stable")]
        begin, end = request_time[own], request_end[own]
        busy_until = np.append(begin[:1], np.maximum.accumulate(answered[own])[:-1])
        behind[own] = 2 * (np.clip(busy_until, begin, np.maximum(begin, end)) - begin) >= end - begin
    return behind


def _span(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """`last - first`, 0 where either is absent."""
    spans: np.ndarray = np.where((first != NULL) & (last != NULL), last - first, 0)
    return spans


@rule(
    "network",
    "connection-reset",
    "warning",
    "14 connections of svc-a (10.0.0.4) to 10.0.0.1:9092 were reset with requests open.",
    why="An orderly client drains first: one reset is a crash, three in a minute a pattern.",
    suppressed_when="Fewer than three in a minute (a note); the connection was idle for nine minutes (idle-close); its "
    "broker went away (broker-lost tells how many), was asked for more than it takes (frame-oversized), or takes no "
    "more connections (no-kafka-answer); TCP never delivered what was sent (request-undelivered); bytes are missing "
    "from it, or packets from the capture: what it waited for may have come.",
    advice="Find out who sent the reset (kwire show --follow CONNECTION), then read its log at that second.",
    evidence="forged: three resets in a minute, and two; cluster-*",
    resets=3,
    window_s=60,
)
def connection_reset(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    still = spill.true_rows(rows.status == IN_FLIGHT) if not capture.loses else capture.left_open[:0]
    open_ = arrow.distinct(np.concatenate([rows.link[capture.left_open], rows.link[still]]))
    explained = root_causes.explained_links(capture) | undelivered.links(capture)
    explained[rows.link[sessions.expired(capture)]] = True
    for deaf in foreign_protocols.without_answers(capture):
        explained[deaf.links] |= deaf.limited
    open_ = open_[~explained[open_] & capture.unbroken[open_]]
    open_ = open_[~arrow.among(open_, arrow.distinct(rows.link[root_causes.oversized(capture)]))]
    reset = np.array([link for link in open_.tolist() if capture.closed[link] == "rst"], np.int64)
    ended = capture.link_times("last_time")
    wanted = _these(capture, reset)
    for client_, broker, links in _pairs(capture, reset):
        group_links = links[wanted[links]]
        group_links = group_links[np.argsort(ended[group_links], kind="stable")]
        most, _, _ = busiest_window(ended[group_links], int(at.window_s * SECOND))
        who = capture.who(client_, broker)
        many = most >= at.resets and not capture.mixed[client_]
        text = f"{count(len(group_links), 'connection')} of {client(who)} to {who['broker']} "
        text += f"{'was' if len(group_links) == 1 else 'were'} reset with requests open."
        yield Match(
            text,
            len(group_links),
            int(ended[group_links[0]]),
            int(ended[group_links[-1]]),
            who,
            {},
            links=(int(group_links[0]), int(group_links[0]), int(group_links[-1])),
            severity=None if many else "note",
        )


@rule(
    "network",
    "idle-close",
    "note",
    "2 idle connections of svc-a (10.0.0.4) to 10.0.0.1:9092 were closed after 10 min.",
    why="Brokers close what was idle for connections.max.idle.ms (10 min), Java clients after 9 min: nine minutes.",
    suppressed_when="A request was open.",
    advice="Nothing; librdkafka logs it as an error all the same.",
    evidence="forged: a connection that closes ten minutes after its last exchange",
    idle_s=535,
    by_clock=True,
)
def idle_close(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    last = max_by(rows.link, rows.response_end, len(capture.links), NULL)
    open_ = np.zeros(len(capture.links), bool)
    open_[rows.link[rows.status == UNANSWERED]] = True
    ended = capture.link_times("last_time")
    closed = np.array([end != "open" for end in capture.closed], bool)
    idle = np.flatnonzero(closed & ~open_ & (last != NULL) & (ended - np.maximum(last, 0) >= at.idle_s * SECOND))
    wanted = _these(capture, idle)
    for client_, broker, links in _pairs(capture, idle):
        group_links = links[wanted[links]]
        who = capture.who(client_, broker)
        text = f"{count(len(group_links), 'idle connection')} of {client(who)} to {who['broker']} "
        idle_time = lasting(int((ended - last)[group_links].max()))
        text += f"{'was' if len(group_links) == 1 else 'were'} closed after {idle_time}."
        yield Match(
            text,
            len(group_links),
            int(ended[group_links].min()),
            int(ended[group_links].max()),
            who,
            {},
            links=(int(group_links[0]), int(group_links[-1])),
        )


@rule(
    "network",
    "reconnect-loop",
    "warning",
    "svc-a (10.0.0.4) opened 75 connections to 10.0.0.1:9092 in the minute from 10:01:03; half of them lived 40 ms or "
    "less.",
    why="Clients that fail wait 50 ms to 10 s before they connect again, which makes up to 60 a minute; a healthy "
    "admin script was seen to open 12 in 10 s.",
    suppressed_when="The median connection lives 5 s or longer; connections that only asked for versions and metadata, "
    "and got them, are how clients begin and do not count. A note: none of them read, wrote or was a member of a "
    "group, and all were answered well, as those of a tool that is started again and again.",
    advice="See why they close: login, version, size, timeout. One producer a process, not one a message.",
    evidence="forged: thirty connections in a minute, and twenty-nine",
    opened=30,
    window_s=60,
    life_s=5,
    by_clock=True,
)
def reconnect_loop(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    first, last = capture.link_times("first_time"), capture.link_times("last_time")
    fresh = np.flatnonzero((capture.link_numbers("opened") > 0) & (first != NULL))
    if not any(True for _ in split(fresh, capture.client_of[fresh], capture.broker_of[fresh], least=at.opened)):
        return
    fresh = fresh[~_bootstraps(capture)[fresh] & ~capture.mixed[capture.client_of[fresh]]]
    errands = _served(capture, ~arrow.among(capture.exchanges.api, _WORK))
    wanted = _these(capture, fresh)
    for client_, broker, links in _pairs(capture, fresh):
        group_links = links[wanted[links]]
        group_links = group_links[np.argsort(first[group_links], kind="stable")]
        most, start, stop = busiest_window(first[group_links], int(at.window_s * SECOND))
        if most < at.opened:
            continue
        some = group_links[start:stop]
        life = int(np.median((last - first)[some]))
        if life >= at.life_s * SECOND:
            continue
        who, looks = capture.who(client_, broker), bool(errands[some].all())
        text = f"{client(who)} opened {most:,} connections to {who['broker']} in the minute from "
        text += f"{moment(int(first[some[0]]))}; half of them lived {lasting(life)} or less."
        yield Match(
            text,
            most,
            int(first[some[0]]),
            int(first[some[-1]]),
            who,
            {},
            links=(int(some[0]), int(some[0]), int(some[-1])),
            severity="note" if looks else None,
            cause="a tool that is started again and again" if looks else None,
            proven=False if looks else None,
        )


def _bootstraps(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: only versions and metadata were requested, and answered."""
    return _served(capture, arrow.among(capture.exchanges.api, (api_keys.API_VERSIONS, api_keys.METADATA, *_LOGIN)))


_WORK = (
    *_IDLE,
    api_keys.PRODUCE,
    api_keys.OFFSET_COMMIT,
    api_keys.INIT_PRODUCER_ID,
    api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.ADD_OFFSETS_TO_TXN,
    api_keys.END_TXN,
    api_keys.TXN_OFFSET_COMMIT,
    api_keys.SHARE_ACKNOWLEDGE,
)
"""APIs that applications use, and probing tools do not."""


def _served(capture: CaptureFrame, links: np.ndarray) -> np.ndarray:
    """bool[links]: it has only such exchanges (`links` is bool[exchanges]), all answered without an error."""
    rows = capture.exchanges
    good = links & (rows.status == 0) & (rows.error == 0)
    out = np.zeros(len(capture.links), bool)
    out[rows.link] = True
    for block in spill.blocks(len(rows)):
        out[rows.link[block][~good[block]]] = False
    return out


@rule(
    "network",
    "connection-storm",
    "warning",
    "10.0.0.1:9092 got 400 new connections in 10 s, 8 times its usual rate.",
    why="Against the broker's own rate: five times the median, and a hundred at least, which a broker of few clients "
    "never sees. KIP-612 exists for this.",
    suppressed_when="Fewer than six windows of 10 s, or in the first 30 s of the broker.",
    advice="Stagger restarts, set max.connection.creation.rate, one client a process.",
    evidence="forged: 150 connections in 10 s after a minute of one a second; and 90",
    opened=100,
    factor=5,
    window_s=10,
    by_clock=True,
)
def connection_storm(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    first = capture.link_times("first_time")
    fresh = np.flatnonzero((capture.link_numbers("opened") > 0) & (first != NULL))
    begin, end = capture.span
    width = int(at.window_s * SECOND)
    windows = (end - begin) // width
    if windows < 6:
        return
    for links in split(fresh, capture.broker_of[fresh]):
        links = links[np.argsort(first[links], kind="stable")]
        most, at_, past = busiest_window(first[links], width)
        usual = median_count((first[links] - begin) // width, windows)
        since = int(first[links[at_]])
        if most < at.opened or most < at.factor * max(usual, 1) or since < int(first[links[0]]) + 30 * SECOND:
            continue
        broker = int(capture.broker_of[links[0]])
        text = f"{capture.brokers[broker]} got {most:,} new connections in {at.window_s:.0f} s"
        text += f", {most / usual:.0f} times its usual rate." if usual else ", where it usually gets none."
        some = links[at_:past]
        yield Match(
            text,
            most,
            since,
            int(first[some[-1]]),
            capture.who(broker=broker),
            {},
            links=(int(some[0]), int(some[0]), int(some[-1])),
        )


@rule(
    "network",
    "connect-failed",
    "warning",
    "10.0.0.4 asked 10.0.0.1:9092 for a connection 12 times in vain, 10:01:03 to 10:01:40: 12 refused.",
    why="A client waits 10 s (Java) or 30 s (librdkafka) for a connection and tries again after 0.05 to 10 s: three in "
    "a minute are no accident of one packet.",
    suppressed_when="Fewer than three in a minute; nobody answers, and of that port's packets none were captured "
    "elsewhere (capture-one-way); nobody heard Kafka at that port, and it is not 9092; the broker went away meanwhile "
    "or within the minute before (broker-lost); metadata sends clients there and nobody gets in "
    "(advertised-address-unreachable). A note: it lasted for less than a minute, and connections came about after "
    "(clients wait so for a broker that starts); or the broker's last connections were closed within the minute "
    "before; or both, for connections came about in between and had all ended before the last try; or an address of "
    "another family (IPv4, IPv6) with that port let the client in within a second of each failure. Where some came "
    "about in between, that is said, and not that nothing listens. Where packets are missing, one unanswered of ten or "
    "more that were answered is not counted.",
    advice="Refused: nothing listens there. Unanswered: a firewall, a route, or a full backlog "
    "(socket.listen.backlog.size).",
    evidence="forged: three SYNs refused in a minute, and two; three before the broker listens, and before and after; "
    "three unanswered where packets are missing, of 29 that got in, and of 30; "
    "admin-java-4.3 (a note), cluster-kraft-3.9 (notes: a controller that starts, serves, and stops)",
    tries=3,
    lost_s=60,
    start_s=60,
    other_s=1,
    by_clock=True,
)
def connect_failed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    reported = {attempt.server for several in root_causes.unreachable(capture).values() for attempt in several}
    for attempt in capture.attempts:
        lost = any(
            capture.brokers[loss.broker] == attempt.server
            and attempt.since - at.lost_s * SECOND <= loss.time <= attempt.until
            for loss in root_causes.losses(capture)
        )
        if attempt.most < at.tries or attempt.server in reported or lost:
            continue
        if capture.loses and attempt.unanswered and _answers_are_missing(capture, attempt):
            attempt = attempt._replace(unanswered=0)
            if attempt.refused < at.tries:
                continue
        text = f"{name(attempt.client)} asked {name(attempt.server)} for a connection "
        text += f"{count(attempt.times, 'time')} in vain, "
        text += f"{moment(attempt.since)} to {moment(attempt.until)}: {root_causes.outcome([attempt])}"
        cause, proven, usual, got_in = _listening(capture, attempt, int(at.start_s * SECOND))
        other = _other_family(capture, attempt, int(at.other_s * SECOND)) if not got_in else None
        advice = None
        if other is not None:
            family = "v6" if "[" in attempt.server else "v4"
            cause, proven, usual = (
                f"the broker does not listen on IP{family}; the client tries both families",
                True,
                True,
            )
            advice = f"broker.address.family={'v4' if family == 'v6' else 'v6'} (librdkafka), or a name that resolves "
            advice += "to one family; or let the broker listen on both."
            text += f"; each time {name(other)} let it in right after"
        text += f"; {count(got_in, 'connection')} to it came about meanwhile." if got_in else "."
        yield Match(
            text,
            attempt.times,
            attempt.since,
            attempt.until,
            {"client_ip": attempt.client, "broker": attempt.server},
            {},
            cause=cause,
            proven=proven,
            severity="note" if usual else None,
            advice=advice,
        )


def _other_family(capture: CaptureFrame, attempt: Attempt, within: int) -> str | None:
    """The end point of another address family at the same port that let the client in after each failure, if any;
    after the last one it may do so when the capture is over.

    Whether two addresses are one host's is known of loopback addresses; of others it is what the times say."""
    server, _, port = attempt.server.rpartition(":")
    first = capture.link_times("first_time")
    opened = (capture.link_numbers("opened") > 0) & (capture.link_numbers("broker_bytes") > 0)
    over = capture.span[1] <= attempt.until + within
    for number, end in enumerate(capture.brokers):
        other, _, other_port = end.rpartition(":")
        if other_port != port or ("[" in other) == ("[" in server) or _is_loopback(other) != _is_loopback(server):
            continue
        links = np.flatnonzero(opened & (capture.broker_of == number) & (first != NULL))
        times = np.sort(first[links])
        times = times[(times >= attempt.since) & (times <= attempt.until + within)]
        if len(times) < attempt.times - over or not len(times) or times[0] > attempt.since + within:
            continue
        if times[-1] >= attempt.until or over:
            return end
    return None


def _is_loopback(address: str) -> bool:
    return address == "[::1]" or address.startswith("127.")


def _answers_are_missing(capture: CaptureFrame, attempt: Attempt) -> bool:
    """Whether answers may be missing: the capture lacks packets, and most attempts were refused, or connected
    meanwhile."""
    return 10 * attempt.unanswered <= attempt.refused + _listening(capture, attempt, 0)[3]


def _listening(capture: CaptureFrame, attempt: Attempt, around: int) -> tuple[str, bool, bool, int]:
    """For an end point of failed attempts: the cause, whether it is proven, whether it is usual (the broker began to
    listen soon after, or had just stopped), and how many connections succeeded between the first attempt and the
    last."""
    known = attempt.server in capture.brokers
    served = (
        np.flatnonzero(capture.broker_of == capture.brokers.index(attempt.server)) if known else np.zeros(0, np.int64)
    )
    first, last = (capture.link_times(name)[served] for name in ("first_time", "last_time"))
    closed = np.array([capture.closed[link] != "open" for link in served.tolist()], bool)
    before, within = first < attempt.since, (first > attempt.since) & (first < attempt.until)
    within &= capture.link_numbers("opened")[served] > 0
    got_in = int(within.sum())
    if attempt.unanswered:
        many = "a full backlog, a firewall or packets lost on the way" if got_in else "nobody answers there"
        return many, False, False, got_in
    if got_in:
        # It starts, serves and stops: nothing of it may be left at the last try, nor be waited for from long before.
        started = before.any() or first[within].min() - attempt.since < around
        usual = bool(
            started and closed[first < attempt.until].all() and (last[first < attempt.until] <= attempt.until).all()
        )
        return "it listened for a part of that time", True, usual, got_in
    if attempt.until - attempt.since < around and (first >= attempt.until).any():
        return "the broker did not listen yet", True, True, 0
    gone = before & closed & (last <= attempt.since)
    if gone.any() and (gone == before).all() and last[gone].max() >= attempt.since - around:
        return "the broker had closed its last connections", True, True, 0
    # Connections that go on are no proof of a port that listens, nor of one that does not.
    return "nothing listens there", not (before & (last > attempt.since)).any(), False, 0
