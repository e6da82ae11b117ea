"""TCP, and connections that come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from analyzer.findings import root_causes
from analyzer.findings.capture import HELD, IN_FLIGHT, SECOND, UNANSWERED, Attempt, CaptureFrame, api_name
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, lasting, moment, name, share
from analyzer.frame import arrow, spill
from analyzer.frame.frame import NULL, codes_of
from analyzer.frame.grouping import busiest_window, max_by, rows_by_key, split
from analyzer.protocol import api_keys

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
"""What a client leaves open when it goes: it waits for nothing that it needs."""

_LOGIN = (api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE)


def _next_answered(seen: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: on the same connection a later request was answered."""
    last = np.full(len(seen.links), -1, np.int64)
    for block in spill.blocks(len(seen.exchanges)):
        answered = block.start + np.flatnonzero(seen.exchanges.status[block] == 0)
        link, exchange = seen.exchanges.link[answered], seen.exchanges.exchange[answered]
        last = np.maximum(last, max_by(link, exchange, len(seen.links), -1))
    later: np.ndarray = last[seen.exchanges.link[rows]] > seen.exchanges.exchange[rows]
    return later


def _silent(seen: CaptureFrame) -> np.ndarray:
    """Exchanges that no answer came to although one was owed, as far as the capture can show."""
    rows = np.flatnonzero(seen.exchanges.status == UNANSWERED)
    if not len(rows):
        return rows
    link, api = seen.exchanges.link[rows], seen.exchanges.api[rows]
    fin = np.array([end == "fin" for end in seen.closed], bool)[link]
    last = ~_next_answered(seen, rows)
    left_open = arrow.among(api, _IDLE) & last
    table, state = seen.table("exchanges").text("request_state")
    decoded = arrow.among(table[rows], codes_of(state, "decoded"))
    refused = arrow.among(link, seen.exchanges.link[seen.exchanges.error == 58])
    chosen: np.ndarray = rows[
        seen.whole[link]
        & decoded
        & ~refused
        & ~arrow.among(api, _LOGIN)
        & ~(fin & left_open)
        & ~(last & seen.loses)
        & ~root_causes.explained(seen, rows)
    ]
    return chosen


@rule(
    "network",
    "request-unanswered",
    "error",
    "12 Produce requests of svc-a (10.0.0.4) to 10.0.0.1:9092 got no answer: the connection was reset.",
    why="No threshold: TCP and a living broker always deliver, so one is enough.",
    unless="acks=0; the capture ended first; bytes are missing from the connection, or one of its directions, or "
    "packets from the capture while no later answer came (what is lost at an end leaves no hole); the client closed "
    "it in order with nothing open but what it waits in (Fetch, heartbeats, JoinGroup); the login failed; the request "
    "cannot be decoded; its broker went away (broker-lost tells how many). A note: fewer than three, and the "
    "connection was closed in order.",
    advice="Look where it died: a reset is the broker's or a middlebox's, later answers mean a fault of the broker.",
    judge="forged: a request that later answers pass by; errors-librdkafka-4.3, cluster-*",
    closes=3,
)
def request_unanswered(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = _silent(seen)
    # A close without an answer to what a broker does not take is told by version-refused and frame-oversized.
    rows = rows[
        ~arrow.among(rows, root_causes.refused_versions(seen)) & ~arrow.among(rows, root_causes.oversized(seen))
    ]
    if not len(rows):
        return
    later = _next_answered(seen, rows)
    reset = np.array([end == "rst" for end in seen.closed], bool)[seen.exchanges.link[rows]]
    causes = np.where(later, 0, np.where(reset, 1, 2))
    keys = seen.client[rows], seen.broker[rows], seen.exchanges.api[rows], causes
    for some in split(np.arange(len(rows)), *keys):
        mine, cause = rows[some], _CAUSES[causes[some[0]]]
        who = seen.who(int(seen.client[mine[0]]), int(seen.broker[mine[0]]))
        # Who closes in order is not known: one that does with a last request open may just have left.
        left = cause == _CAUSES[2] and len(mine) < at.closes
        api = api_name(int(seen.exchanges.api[mine[0]]))
        text = f"{count(len(mine), api + ' request')} of {client(who)} to {who['broker']} got no answer: {cause}."
        asked = seen.exchanges.asked[mine]
        yield Found(
            text,
            len(mine),
            int(asked.min()),
            int(asked.max()),
            who,
            {"api": api},
            tuple(mine[[0, 0, -1]].tolist()),
            cause=cause,
            proven=True,
            severity="note" if left else None,
        )


_CAUSES = (
    "later requests of the same connection were answered",
    "the connection was reset",
    "the connection was closed in order",
)

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
    unless="The answer is one that the broker holds (Fetch, JoinGroup, SyncGroup); the client did not go within 1 s of "
    "the timeout; there was an answer, and the client did not connect again within 1 s of the timeout and before it, "
    "or asked on after; bytes are missing, or packets from the capture and no answer was seen.",
    advice="The broker's latency first, then the client's timeout.",
    judge="forged: a connection closed 30 s after its request; one closed after 20 s says nothing; a late answer to "
    "who had connected again, and one that was taken",
    around_s=1,
    by_clock=True,
)
def answer_after_timeout(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    if seen.span[1] - seen.span[0] < (30 - at.around_s) * SECOND:
        return
    ended = seen.link_times("last_time")

    def are_old(block: slice) -> Any:
        asked, answered, link = rows.asked[block], rows.answered[block], rows.link[block]
        waited = np.where(answered != NULL, answered, ended[link]) - asked
        old = (asked != NULL) & (waited >= (30 - at.around_s) * SECOND)
        known = seen.whole[link] & ((answered != NULL) | (not seen.loses))
        return old & ~arrow.among(rows.api[block], HELD) & known & (rows.status[block] != 1)

    chosen = spill.where(len(rows), are_old)
    found: dict[tuple[int, int, int, int], list[int]] = {}
    around = int(at.around_s * SECOND)
    if not len(chosen):
        return
    begun, last = _begun(seen), max_by(rows.link, rows.asked, len(seen.links), NULL)
    for row in chosen.tolist():
        link, answered = int(rows.link[row]), int(rows.answered[row])
        pair = int(seen.client[row]), int(seen.broker[row])
        for timeout in TIMEOUTS:
            until = int(rows.asked[row]) + timeout
            given_up = abs(int(ended[link]) - until) <= around
            if answered != NULL:  # it stays open until then on the broker's side: whoever is back asks there no more
                back = np.searchsorted(begun[pair], [until - around, min(until + around + 1, answered)])
                given_up = answered > until >= last[link] and bool(back[1] > back[0])
            if given_up and seen.closed[link] != "open":
                found.setdefault((*pair, int(rows.api[row]), timeout), []).append(row)
    for (who_, broker, api, timeout), mine in found.items():
        who = seen.who(who_, broker)
        text = f"{count(len(mine), api_name(api) + ' request')} of {client(who)} to {who['broker']} took longer than "
        text += f"the client's timeout of {timeout // SECOND} s: it had given up"
        late = [int(rows.answered[row] - rows.asked[row]) for row in mine if rows.answered[row] != NULL]
        text += f"; {count(len(late), 'answer')} came after {lasting(max(late))} or less." if late else "."
        yield Found(
            text,
            len(mine),
            int(rows.asked[mine[0]]),
            int(rows.asked[mine[-1]]),
            who,
            {"api": api_name(api)},
            (mine[0], mine[0], mine[-1]),
            cause="the client's own timeout",
            proven=False,
        )


def _begun(seen: CaptureFrame) -> dict[tuple[int, ...], np.ndarray]:
    """By client and broker when their connections began, in order."""
    first = seen.link_times("first_time")
    links = np.flatnonzero((seen.link_numbers("opened") > 0) & (first != NULL))
    pairs = rows_by_key(first[links], seen.client_of[links], seen.broker_of[links])
    return defaultdict(lambda: np.zeros(0, np.int64), {pair: np.sort(times) for pair, times in pairs.items()})


@rule(
    "network",
    "tcp-retransmission",
    "warning",
    "2.1 % of the packets between orders (10.0.0.7) and 10.0.0.1:9092 were sent again (120 of 5,700).",
    why="Ours: fewer than one in a hundred TCP mends by itself, with ten at least so that the share says something; "
    "200 ms is Linux's least timeout, a spike that applications see.",
    unless="The capture holds packets twice (capture-duplicated): those are counted apart, and where a connection has "
    "nearly all of its packets twice, none of them is said to have been sent again. What was slow where a reader had "
    "no room (tcp-zero-window) waited for that; what is large takes its time: at 10 MB a second, and the way besides "
    "(slow-transfer tells of slower ones).",
    advice="Look at the path, the network card and the MTU.",
    judge="net-lossy-4.3 (2 % loss) against net-vlan-4.3; forged: a packet of a small answer, and of a large one",
    share=0.01,
    packets=10,
    repair_ms=200,
    rate=10_000_000,
)
def retransmission(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    again = np.where(seen.doubled, 0, seen.link_numbers("retransmissions"))
    packets = seen.link_numbers("client_packets") + seen.link_numbers("broker_packets")
    repaired = _repaired(seen, at.repair_ms, at.rate) if again.any() else {}
    for client_, broker, links in _pairs(seen, np.flatnonzero(again)):
        lost, whole = int(again[links].sum()), int(packets[links].sum())
        slow = repaired.get((client_, broker), links[:0])
        if (lost < at.packets or lost < at.share * whole) and not len(slow):
            continue
        who = seen.who(client_, broker)
        text = f"{share(lost, whole)} of the packets between {client(who)} and {who['broker']} were sent again "
        text += f"({lost:,} of {whole:,})"
        if len(slow):
            longest = int(seen.column("network_us")[slow].max())
            text += f"; {count(len(slow), 'exchange')} took {lasting(longest)} or less on the network"
        worst = int(links[again[links].argmax()])
        since, until = int(seen.link_times("first_time")[links].min()), int(seen.link_times("last_time")[links].max())
        yield Found(
            text + ".",
            lost,
            since,
            until,
            who,
            {},
            links=(int(links[0]), worst, int(links[-1])),
            cause="packets were lost on the way, or came too late",
            proven=True,
        )


def _repaired(seen: CaptureFrame, repair_ms: float, rate: float) -> dict[tuple[int, ...], np.ndarray]:
    """By client and broker the exchanges whose time on the network is longer than TCP's least timeout, without the way
    itself and what their bytes take at that rate, on connections where something was sent again."""
    network = seen.column("network_us")
    slow = spill.where(len(network), lambda block: network[block] >= repair_ms * 1000)
    link = seen.exchanges.link[slow]
    sent = sum(np.maximum(seen.column(name)[slow], 0) for name in ("request_bytes", "response_bytes"))
    rest = network[slow] - seen.link_numbers("rtt_us")[link] - sent * SECOND / rate
    waited = seen.link_numbers("zero_windows")[link] > 0  # those waited for room
    slow = slow[(rest >= repair_ms * 1000) & ~waited & (seen.link_numbers("retransmissions")[link] > 0)]
    return rows_by_key(slow, seen.client[slow], seen.broker[slow])


def _pairs(seen: CaptureFrame, links: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Of connections: (client, broker, all connections between these two)."""
    pair = seen.client_of.astype(np.int64) << 32 | seen.broker_of
    every = np.flatnonzero(arrow.among(pair, arrow.distinct(pair[links]))) if len(links) else links
    for (client_, broker), mine in rows_by_key(every, seen.client_of[every], seen.broker_of[every]).items():
        yield client_, broker, mine


def _these(seen: CaptureFrame, links: np.ndarray) -> np.ndarray:
    """bool[links]: it is one of these connections."""
    found = np.zeros(len(seen.links), bool)
    found[links] = True
    return found


@rule(
    "network",
    "tcp-zero-window",
    "warning",
    "billing-3 (10.0.0.9) stopped reading from 10.0.0.1:9092: answers waited for room for up to 4.2 s (12 packets said "
    "so).",
    why="Shorter stalls are usual with receive buffers of 32 to 64 KiB; 200 ms is a pause that applications see.",
    unless="No exchange of the connection took 200 ms to be transferred: then the window opened again at once. A note: "
    "the broker does not read while a quota's pauses last (client-throttled).",
    advice="Look at the reader: garbage collection, CPU, or work done in the thread that reads.",
    judge="forged: a zero window while an answer is on its way",
    stall_ms=200,
)
def zero_window(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    said = seen.link_numbers("zero_windows")
    full = np.flatnonzero(said)
    if not len(full):
        return
    rows = seen.exchanges
    ours = spill.true_rows(arrow.among(rows.link, full))
    paused = arrow.distinct(rows.link[ours[seen.column("throttle_us")[ours] > 0]])
    answer = _span(seen.column("response_time")[ours], rows.answered[ours])
    request = _span(rows.asked[ours], seen.column("request_end")[ours])
    sides = []
    for waited, blame in ((answer, "client"), (request, "broker")):
        long = np.flatnonzero(waited >= at.stall_ms * 1000)
        sides.append((waited, blame, rows_by_key(long, seen.client[ours[long]], seen.broker[ours[long]])))
    for client_, broker, links in _pairs(seen, full):
        for waited, blame, of_pairs in sides:
            stalled = of_pairs.get((client_, broker))
            if stalled is None:
                continue
            who = seen.who(client_, broker)
            reader, other = (client(who), who["broker"]) if blame == "client" else (who["broker"], client(who))
            worst = int(waited[stalled].max())
            what = "answers" if blame == "client" else "requests"
            text = f"{reader} stopped reading from {other}: {what} waited for room for up to {lasting(worst)} "
            text += f"({count(int(said[links].sum()), 'packet')} said so)."
            mine_rows = ours[stalled]
            places = (int(mine_rows[0]), int(ours[stalled[waited[stalled].argmax()]]), int(mine_rows[-1]))
            quota = blame == "broker" and bool(arrow.among(rows.link[mine_rows], paused).all())
            yield Found(
                text,
                len(stalled),
                int(rows.asked[places[0]]),
                int(rows.asked[places[2]]),
                who,
                {},
                places,
                severity="note" if quota else None,
                proven=not quota,
                cause="a quota: the broker does not read during its pauses" if quota else f"the {blame} does not read",
                advice="Raise the quota, or send less." if quota else None,
            )


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
    unless="Fewer than three in a minute (a note); the connection was idle for nine minutes (idle-close); its broker "
    "went away (broker-lost tells how many), or was asked for more than it takes (frame-oversized); bytes are missing "
    "from it, or packets from the capture: what it waited for may have come.",
    advice="Find out who sent the reset (kwire show --follow CONNECTION), then read its log at that second.",
    judge="forged: three resets in a minute, and two; cluster-*",
    resets=3,
    window_s=60,
)
def connection_reset(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    still = spill.true_rows(rows.status == IN_FLIGHT) if not seen.loses else seen.left_open[:0]
    open_ = arrow.distinct(np.concatenate([rows.link[seen.left_open], rows.link[still]]))
    open_ = open_[~root_causes.explained_links(seen)[open_] & seen.unbroken[open_]]
    open_ = open_[~arrow.among(open_, arrow.distinct(rows.link[root_causes.oversized(seen)]))]
    reset = np.array([link for link in open_.tolist() if seen.closed[link] == "rst"], np.int64)
    ended = seen.link_times("last_time")
    wanted = _these(seen, reset)
    for client_, broker, links in _pairs(seen, reset):
        mine = links[wanted[links]]
        mine = mine[np.argsort(ended[mine], kind="stable")]
        most, _, _ = busiest_window(ended[mine], int(at.window_s * SECOND))
        who = seen.who(client_, broker)
        many = most >= at.resets and not seen.mixed[client_]
        text = f"{count(len(mine), 'connection')} of {client(who)} to {who['broker']} "
        text += f"{'was' if len(mine) == 1 else 'were'} reset with requests open."
        yield Found(
            text,
            len(mine),
            int(ended[mine[0]]),
            int(ended[mine[-1]]),
            who,
            {},
            links=(int(mine[0]), int(mine[0]), int(mine[-1])),
            severity=None if many else "note",
        )


@rule(
    "network",
    "idle-close",
    "note",
    "2 idle connections of svc-a (10.0.0.4) to 10.0.0.1:9092 were closed after 10 min.",
    why="Brokers close what was idle for connections.max.idle.ms (10 min), Java clients after 9 min: nine minutes.",
    unless="A request was open.",
    advice="Nothing; librdkafka logs it as an error all the same.",
    judge="forged: a connection that closes ten minutes after its last exchange",
    idle_s=535,
    by_clock=True,
)
def idle_close(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    last = max_by(rows.link, rows.answered, len(seen.links), NULL)
    open_ = np.zeros(len(seen.links), bool)
    open_[rows.link[rows.status == UNANSWERED]] = True
    ended = seen.link_times("last_time")
    closed = np.array([end != "open" for end in seen.closed], bool)
    idle = np.flatnonzero(closed & ~open_ & (last != NULL) & (ended - np.maximum(last, 0) >= at.idle_s * SECOND))
    wanted = _these(seen, idle)
    for client_, broker, links in _pairs(seen, idle):
        mine = links[wanted[links]]
        who = seen.who(client_, broker)
        text = f"{count(len(mine), 'idle connection')} of {client(who)} to {who['broker']} "
        text += f"{'was' if len(mine) == 1 else 'were'} closed after {lasting(int((ended - last)[mine].max()))}."
        yield Found(
            text,
            len(mine),
            int(ended[mine].min()),
            int(ended[mine].max()),
            who,
            {},
            links=(int(mine[0]), int(mine[-1])),
        )


@rule(
    "network",
    "reconnect-loop",
    "warning",
    "svc-a (10.0.0.4) opened 75 connections to 10.0.0.1:9092 in the minute from 10:01:03; half of them lived 40 ms or "
    "less.",
    why="Clients that fail wait 50 ms to 10 s before they connect again, which makes up to 60 a minute; a healthy "
    "admin script was seen to open 12 in 10 s.",
    unless="The median connection lives 5 s or longer; connections that only asked for versions and metadata, and got "
    "them, are how clients begin and do not count. A note: none of them read, wrote or was a member of a group, and "
    "all were answered well, as those of a tool that is started again and again.",
    advice="See why they close: login, version, size, timeout. One producer a process, not one a message.",
    judge="forged: thirty connections in a minute, and twenty-nine",
    opened=30,
    window_s=60,
    life_s=5,
    by_clock=True,
)
def reconnect_loop(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    first, last = seen.link_times("first_time"), seen.link_times("last_time")
    fresh = np.flatnonzero((seen.link_numbers("opened") > 0) & (first != NULL))
    if not any(True for _ in split(fresh, seen.client_of[fresh], seen.broker_of[fresh], least=at.opened)):
        return
    fresh = fresh[~_bootstraps(seen)[fresh] & ~seen.mixed[seen.client_of[fresh]]]
    errands = _served(seen, ~arrow.among(seen.exchanges.api, _WORK))
    wanted = _these(seen, fresh)
    for client_, broker, links in _pairs(seen, fresh):
        mine = links[wanted[links]]
        mine = mine[np.argsort(first[mine], kind="stable")]
        most, start, stop = busiest_window(first[mine], int(at.window_s * SECOND))
        if most < at.opened:
            continue
        some = mine[start:stop]
        life = int(np.median((last - first)[some]))
        if life >= at.life_s * SECOND:
            continue
        who, looks = seen.who(client_, broker), bool(errands[some].all())
        text = f"{client(who)} opened {most:,} connections to {who['broker']} in the minute from "
        text += f"{moment(int(first[some[0]]))}; half of them lived {lasting(life)} or less."
        yield Found(
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


def _bootstraps(seen: CaptureFrame) -> np.ndarray:
    """bool[links]: it asked for versions and metadata, was answered, and that was all."""
    return _served(seen, arrow.among(seen.exchanges.api, (api_keys.API_VERSIONS, api_keys.METADATA, *_LOGIN)))


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
"""What applications ask, and tools that look do not."""


def _served(seen: CaptureFrame, asked: np.ndarray) -> np.ndarray:
    """bool[links]: it has such exchanges alone (`asked` is bool[exchanges]), and all were answered well."""
    rows = seen.exchanges
    good = asked & (rows.status == 0) & (rows.error == 0)
    out = np.zeros(len(seen.links), bool)
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
    unless="Fewer than six windows of 10 s, or in the first 30 s of the broker.",
    advice="Stagger restarts, set max.connection.creation.rate, one client a process.",
    judge="forged: 150 connections in 10 s after a minute of one a second; and 90",
    opened=100,
    factor=5,
    window_s=10,
    by_clock=True,
)
def connection_storm(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    first = seen.link_times("first_time")
    fresh = np.flatnonzero((seen.link_numbers("opened") > 0) & (first != NULL))
    begin, end = seen.span
    width = int(at.window_s * SECOND)
    windows = (end - begin) // width
    if windows < 6:
        return
    for links in split(fresh, seen.broker_of[fresh]):
        links = links[np.argsort(first[links], kind="stable")]
        most, at_, past = busiest_window(first[links], width)
        counts = np.bincount((first[links] - begin) // width, minlength=windows)
        usual = float(np.median(counts))
        since = int(first[links[at_]])
        if most < at.opened or most < at.factor * max(usual, 1) or since < int(first[links[0]]) + 30 * SECOND:
            continue
        broker = int(seen.broker_of[links[0]])
        text = f"{seen.brokers[broker]} got {most:,} new connections in {at.window_s:.0f} s"
        text += f", {most / usual:.0f} times its usual rate." if usual else ", where it usually gets none."
        some = links[at_:past]
        yield Found(
            text,
            most,
            since,
            int(first[some[-1]]),
            seen.who(broker=broker),
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
    unless="Fewer than three in a minute; nobody answers, and of that port's packets none were captured elsewhere "
    "(capture-one-way); nobody heard Kafka at that port, and it is not 9092; the broker went away "
    "meanwhile or within the minute before (broker-lost); metadata sends clients there and nobody gets in "
    "(advertised-address-unreachable). A note: it lasted for less than a minute, and connections came about after "
    "(clients wait so for a broker that starts); or the broker's last connections were closed within the minute "
    "before; or both, for connections came about in between and had all ended before the last try. Where some came "
    "about in between, that is said, and not that nothing listens. Where packets are missing, one unanswered of ten or "
    "more that were answered is not counted.",
    advice="Refused: nothing listens there. Unanswered: a firewall, a route, or a full backlog "
    "(socket.listen.backlog.size).",
    judge="forged: three SYNs refused in a minute, and two; three before the broker listens, and before and after; "
    "three unanswered where packets are missing, of 29 that got in, and of 30; "
    "admin-java-4.3 (a note), cluster-kraft-3.9 (notes: a controller that starts, serves, and stops)",
    tries=3,
    lost_s=60,
    start_s=60,
    by_clock=True,
)
def connect_failed(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    told = {one.server for several in root_causes.unreachable(seen).values() for one in several}
    for one in seen.attempts:
        lost = any(
            seen.brokers[loss.broker] == one.server and one.since - at.lost_s * SECOND <= loss.time <= one.until
            for loss in root_causes.losses(seen)
        )
        if one.most < at.tries or one.server in told or lost:
            continue
        if seen.loses and one.unanswered and _answers_are_missing(seen, one):
            one = replace(one, unanswered=0)
            if one.refused < at.tries:
                continue
        text = f"{name(one.client)} asked {name(one.server)} for a connection {count(one.times, 'time')} in vain, "
        text += f"{moment(one.since)} to {moment(one.until)}: {root_causes.outcome([one])}"
        cause, proven, usual, got_in = _listening(seen, one, int(at.start_s * SECOND))
        text += f"; {count(got_in, 'connection')} to it came about meanwhile." if got_in else "."
        yield Found(
            text,
            one.times,
            one.since,
            one.until,
            {"client_ip": one.client, "broker": one.server},
            {},
            cause=cause,
            proven=proven,
            severity="note" if usual else None,
        )


def _answers_are_missing(seen: CaptureFrame, one: Attempt) -> bool:
    """Of a capture that lacks packets: so many were refused there, or got in meanwhile, that the few without an answer
    may have had one."""
    return 10 * one.unanswered <= one.refused + _listening(seen, one, 0)[3]


def _listening(seen: CaptureFrame, one: Attempt, around: int) -> tuple[str, bool, bool, int]:
    """Of an end point that was asked in vain: the cause, whether it is proven, whether it is usual (the broker began to
    listen soon after, or had just stopped), and how many connections came about between the first try and the last."""
    known = one.server in seen.brokers
    served = np.flatnonzero(seen.broker_of == seen.brokers.index(one.server)) if known else np.zeros(0, np.int64)
    first, last = (seen.link_times(name)[served] for name in ("first_time", "last_time"))
    closed = np.array([seen.closed[link] != "open" for link in served.tolist()], bool)
    before, within = first < one.since, (first > one.since) & (first < one.until)
    within &= seen.link_numbers("opened")[served] > 0
    got_in = int(within.sum())
    if one.unanswered:
        many = "a full backlog, a firewall or packets lost on the way" if got_in else "nobody answers there"
        return many, False, False, got_in
    if got_in:
        # It starts, serves and stops: nothing of it may be left at the last try, nor be waited for from long before.
        started = before.any() or first[within].min() - one.since < around
        usual = bool(started and closed[first < one.until].all() and (last[first < one.until] <= one.until).all())
        return "it listened for a part of that time", True, usual, got_in
    if one.until - one.since < around and (first >= one.until).any():
        return "the broker did not listen yet", True, True, 0
    gone = before & closed & (last <= one.since)
    if gone.any() and (gone == before).all() and last[gone].max() >= one.since - around:
        return "the broker had closed its last connections", True, True, 0
    # Connections that go on are no proof of a port that listens, nor of one that does not.
    return "nothing listens there", not (before & (last > one.since)).any(), False, 0
