"""Rules about what answers waited for: the broker, its followers, quotas, the client's own requests.

Holding, pauses, the client's queue and the network are subtracted before a broker is blamed: `broker_us` is what is
left, and absent where it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings import replication, stalls
from kwire.analyzer.findings.capture import HELD, SECOND, CaptureFrame, api_name, once
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, listed, moment, share
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key, sort_by, split
from kwire.analyzer.protocol import api_keys

JUDGED = 100
"""Answers that a 99th percentile needs; of fewer it is the longest but one."""
OVER_S = 10
"""Least duration of the answers of a percentile; less is one moment."""


def _quantile(values: np.ndarray, percent: int) -> int:
    """The smallest value that at least `percent` of a hundred values do not exceed."""
    rank = -(-percent * len(values) // 100) - 1
    return int(np.partition(values, rank)[rank])


def _lasted(capture: CaptureFrame, rows: np.ndarray) -> int:
    """Time from the first request to the last answer of answered exchanges, us."""
    return int(capture.exchanges.response_end[rows].max() - capture.exchanges.request_time[rows].min())


@rule(
    "latency",
    "broker-slow",
    "warning",
    "10.0.0.1:9092 needed 900 ms or more for one in a hundred of 5,000 Produce requests in the minute from 10:01:00, "
    "without what it held, throttling, queues and network.",
    why="Measured: on an overloaded machine of two cores the 99th percentile was 62 ms for Produce, 47 ms for "
    "Metadata, and none of 7,057 answers took more than 173 ms; a cluster known for its slow disks had 1 s. 500 ms is "
    "a warning, 200 ms a note.",
    suppressed_when="Fewer than 100 such answers in the minute, or all within 10 s (then a note, where five of them "
    "and a tenth took half a second); what the broker held cannot be told apart; fetches of brokers among themselves; "
    "what waited in a stall (broker-stall); writes to a broker that replication-slow names; connections on which three "
    "packets in a hundred were sent again, and no note where most slow answers are of those on which one was: a lost "
    "request comes late (tcp-retransmission).",
    advice="Look at that broker's disks, garbage collection, request handlers and in-sync replicas.",
    evidence="forged: 100 answers of which 2 took 600 ms at the broker; 99 of them; and the same while held, and where "
    "packets were lost; tests/incidents lossy-link",
    slow_ms=500,
    note_ms=200,
    window_s=60,
    answers=JUDGED,
    over_s=OVER_S,
    few=5,
    share=0.1,
    by_clock=True,
)
def broker_slow(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("broker_us") < at.note_ms * 1000:
        return
    spent = capture.column("broker_us")
    rows = spill.true_rows((spent != NULL) & (capture.exchanges.response_end != NULL))
    # Followers' and voters' fetches wait for data that nobody may write for a while.
    if capture.between_brokers.any():
        rows = rows[~(capture.between_brokers[capture.client[rows]] & arrow.among(capture.exchanges.api[rows], HELD))]
    stalled = stalls.in_stalls(capture, rows)
    rows = rows[~stalled] if stalled.any() else rows
    is_lossy = _share_sent_again(capture) >= _LOSSY
    rows = rows[~is_lossy[capture.exchanges.link[rows]]] if is_lossy.any() else rows
    judged: set[tuple[int, int]] = set()
    window = (capture.exchanges.response_end[rows] - capture.span[0]) // int(at.window_s * SECOND)
    worst: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
    for group_rows in split(rows, capture.broker[rows], capture.exchanges.api[rows], window, least=at.answers):
        if _lasted(capture, group_rows) < at.over_s * SECOND:
            continue
        late = _quantile(spent[group_rows], 99)
        key = int(capture.broker[group_rows[0]]), int(capture.exchanges.api[group_rows[0]])
        judged.add(key)
        if late >= at.note_ms * 1000 and late > worst.get(key, (0, group_rows))[0]:
            worst[key] = late, group_rows
    for (broker, api), (late, late_rows) in worst.items():
        slow = late_rows[spent[late_rows] >= late]
        repaired = _share_sent_again(capture)[capture.exchanges.link[slow]] >= _REPAIRED
        if late < at.slow_ms * 1000 and 2 * int(repaired.sum()) > len(slow):
            continue
        requested = capture.exchanges.request_time[late_rows]
        if api == api_keys.PRODUCE and _keeps_replicas(capture, broker, int(requested.min()), int(requested.max())):
            continue
        text = f"{capture.brokers[broker]} needed {lasting(late)} or more for one in a hundred of {len(late_rows):,} "
        text += f"{api_name(api)} requests in the minute from {moment(int(requested.min()))}, without what it held, "
        places = int(slow[0]), int(late_rows[spent[late_rows].argmax()]), int(slow[-1])
        yield Match(
            f"{text}throttling, queues and network.",
            len(slow),
            int(requested.min()),
            int(requested.max()),
            capture.who(broker=broker),
            {"api": api_name(api), "p99_us": str(late)},
            places,
            cause="the broker's own work",
            proven=True,
            severity=None if late >= at.slow_ms * 1000 else "note",
        )
    yield from _slow_in_short(capture, at, rows, spent, judged)


def _keeps_replicas(capture: CaptureFrame, broker: int, since: int, until: int) -> bool:
    """Whether replication-slow names a broker in a span of time: its disk makes its own writes slow too."""
    spans = (span for span in replication.slow_spans(capture) if span.begin <= until and span.end >= since)
    guilty = (replication.culprit(capture, span) for span in spans)
    return any(of.broker == capture.brokers[broker] and not of.is_guess for of in guilty)


_LOSSY = 0.03
"""Share of a connection's packets that were sent again, from which on its latencies are the network's."""

_REPAIRED = 0.01
"""The same, from which on TCP's least timeout of 200 ms explains an answer that came so late."""


@once
def _share_sent_again(capture: CaptureFrame) -> np.ndarray:
    """float64[links]: the share of each connection's packets that were sent again, at least ten, and else 0."""
    again = np.where(capture.doubled, 0, capture.link_numbers("retransmissions"))
    packets = capture.link_packets
    return np.where(again >= 10, again / np.maximum(packets, 1), 0.0)


def _slow_in_short(
    capture: CaptureFrame, at: Limits, rows: np.ndarray, spent: np.ndarray, judged: set[tuple[int, int]]
) -> Iterator[Match]:
    """Brokers of whose answers there are too few for a percentile, and many took long."""
    for group_rows in split(rows, capture.broker[rows], capture.exchanges.api[rows], least=at.few):
        key = int(capture.broker[group_rows[0]]), int(capture.exchanges.api[group_rows[0]])
        slow = group_rows[spent[group_rows] >= at.slow_ms * 1000]
        if key in judged or len(slow) < at.few or len(slow) < at.share * len(group_rows):
            continue
        text = f"{capture.brokers[key[0]]} needed {lasting(at.slow_ms * 1000)} or more for {len(slow):,} of "
        text += f"{count(len(group_rows), api_name(key[1]) + ' request')} in {lasting(_lasted(capture, group_rows))}, "
        text += "without what it held, throttling, queues and network: too few to judge; a longer capture would tell "
        requested = capture.exchanges.request_time[group_rows]
        yield Match(
            f"{text}whether it goes on.",
            len(slow),
            int(requested.min()),
            int(requested.max()),
            capture.who(broker=key[0]),
            {"api": api_name(key[1])},
            (int(slow[0]), int(slow[spent[slow].argmax()]), int(slow[-1])),
            cause="the broker's own work",
            proven=True,
            severity="note",
        )


@rule(
    "latency",
    "broker-stall",
    "warning",
    "10.0.0.1:9092 answered nobody for 2.4 s from 10:01:03, while 12 clients waited, 5 of them also at 10.0.0.2:9092, "
    "for its replicas.",
    why="The 99th percentile of answers is below 70 ms; replicas leave the in-sync set after 30 s, sessions end after "
    "6 to 45 s.",
    suppressed_when="Nothing that a broker answers at once was open (what waits for replicas may wait for another "
    "broker); nothing else was captured meanwhile either (then the capture paused); TCP never delivered the requests "
    "or answers (request-undelivered). A note: fewer than three clients waited, or fewer than five answers came within "
    "a second after.",
    advice="Look for a pause of garbage collection, of the virtual machine or of the disk at that second.",
    evidence="frozen-broker-2; forged: a second without answers while five clients ask; and without anything; one "
    "client; only acks=all; up to the end of the capture",
    pause_ms=1000,
    clients=3,
    answers=5,
    by_clock=True,
)
def broker_stall(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    by_broker: dict[tuple[int, bool], list[stalls.Stall]] = {}
    for stall in stalls.stalls(capture):
        by_broker.setdefault((stall.broker, stall.is_clear), []).append(stall)
    for (broker, is_clear), some in by_broker.items():
        waited = np.concatenate([stall.waited for stall in some])
        elsewhere = np.concatenate([stall.elsewhere for stall in some])
        clients = arrow.distinct(capture.client[np.concatenate([waited, elsewhere])])
        longest = max(some, key=lambda stall: stall.end - stall.begin)
        text = f"{capture.brokers[broker]} answered nobody for {lasting(longest.end - longest.begin)} from "
        text += moment(longest.begin)
        text += "" if longest.is_over else ", up to the end of the capture"
        if len(some) > 1:
            together = sum(stall.end - stall.begin for stall in some)
            text += f" ({len(some)} such pauses from {moment(some[0].begin)} on, {lasting(together)} together)"
        text += f", while {count(len(clients), 'client')} waited"
        if len(elsewhere):
            others = [capture.brokers[other] for other in arrow.distinct(capture.broker[elsewhere]).tolist()]
            also = len(arrow.distinct(capture.client[elsewhere]))
            which = "all" if also == len(clients) else f"{also:,}"
            text += f", {which} of them also at {listed(others[:3], len(others))}, for its replicas"
        text += "." if is_clear else "; a longer capture would tell whether others wait too."
        took = capture.exchanges.response_end[waited] - capture.exchanges.request_time[waited]
        yield Match(
            text,
            len(waited) + len(elsewhere),
            some[0].begin,
            some[-1].end,
            capture.who(broker=broker),
            {"clients": str(len(clients))},
            (int(waited[0]), int(waited[took.argmax()]), int(waited[-1])),
            cause="a pause of the broker",
            proven=False,
            severity=None if is_clear else "note",
        )


@rule(
    "latency",
    "client-throttled",
    "warning",
    "svc-a (10.0.0.4) was told to pause 41.0 s in 60.0 s by 10.0.0.1:9092 (80 answers, the longest 2.9 s).",
    why="Quotas are off unless somebody set them; a tenth of a minute, or one pause of a second, is felt. Any pause "
    "is a note.",
    suppressed_when="Never otherwise. The pause is no part of the latency: since 2.0 the answer comes first (KIP-219).",
    advice="Raise the quota, or send less: larger batches, fewer fetches.",
    evidence="forged: a pause of a second, and one of 10 ms in a minute; many of half a second in a minute of an hour; "
    "admin-*",
    share=0.1,
    pause_ms=1000,
)
def client_throttled(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    throttle = capture.column("throttle_us")
    rows = spill.true_rows(throttle > 0)
    for group_rows in split(rows, capture.client[rows], capture.broker[rows]):
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))
        since, until = (
            int(capture.exchanges.response_end[group_rows].min()),
            int(capture.exchanges.response_end[group_rows].max()),
        )
        whole, longest = int(throttle[group_rows].sum()), int(throttle[group_rows].max())
        window = max(until - since, min(_MINUTE, capture.span[1] - capture.span[0]))
        most = _most_in_a_minute(*sort_by(capture.exchanges.response_end[group_rows], throttle[group_rows]))
        felt = longest >= at.pause_ms * 1000 or (
            most >= at.share * _MINUTE and not capture.mixed[capture.client[group_rows[0]]]
        )
        text = f"{client(who)} was told to pause {lasting(whole)} in {lasting(window)} by {who['broker']} "
        text += f"({count(len(group_rows), 'answer')}, the longest {lasting(longest)}"
        text += f"; {lasting(most)} in one minute)." if most < whole else ")."
        apis = ",".join(sorted({api_name(key) for key in capture.exchanges.api[group_rows].tolist()}))
        yield Match(
            text,
            len(group_rows),
            since,
            until,
            who,
            {"api": apis},
            (int(group_rows[0]), int(group_rows[throttle[group_rows].argmax()]), int(group_rows[-1])),
            cause="a quota",
            proven=True,
            severity=None if felt else "note",
        )


_MINUTE = 60 * SECOND


def _most_in_a_minute(when: np.ndarray, amounts: np.ndarray) -> int:
    """The greatest sum of amounts within a minute; times are in order."""
    sums = np.append(0, np.cumsum(amounts))
    return int((sums[np.searchsorted(when, when + _MINUTE, side="right")] - sums[:-1]).max())


@rule(
    "latency",
    "throttle-ignored",
    "note",
    "svc-a (librdkafka 2.16.0, 10.0.0.4) sent 9 requests to 10.0.0.1:9092 inside its pause.",
    why="A client of KIP-219 waits on its own; 50 ms are left for clocks and for what was on its way.",
    suppressed_when="The request was under way when the answer with the pause came.",
    advice="Nothing: the broker does not read meanwhile, and the next answer waits for that.",
    evidence="forged: a request half a second into a pause of one; and after it",
    slack_ms=50,
)
def throttle_ignored(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    throttle, rows = capture.column("throttle_us"), capture.exchanges
    paused = spill.true_rows((throttle > at.slack_ms * 1000) & (rows.response_end != NULL))
    if not len(paused):
        return
    paused_rows = spill.true_rows(
        arrow.among(rows.link, arrow.distinct(rows.link[paused])) & (rows.request_time != NULL)
    )
    paused_rows = paused_rows[np.lexsort((rows.request_time[paused_rows], rows.link[paused_rows]))]
    early: dict[tuple[int, int], set[int]] = {}
    place = rows.link[paused_rows].astype(np.int64)
    for row in paused.tolist():
        first, past = np.searchsorted(place, [rows.link[row], rows.link[row] + 1])
        times = rows.request_time[paused_rows[first:past]]
        until = rows.response_end[row] + throttle[row] - at.slack_ms * 1000
        inside = np.searchsorted(times, [rows.response_end[row] + at.slack_ms * 1000, until])
        some = paused_rows[first + inside[0] : first + inside[1]].tolist()
        early.setdefault((int(capture.client[row]), int(capture.broker[row])), set()).update(some)
    for (client_, broker), sent in early.items():
        if sent:
            rows_sent, who = sorted(sent), capture.who(client_, broker)
            text = f"{client(who)} sent {count(len(rows_sent), 'request')} to {who['broker']} inside its pause."
            yield Match(
                text,
                len(rows_sent),
                int(rows.request_time[rows_sent[0]]),
                int(rows.request_time[rows_sent[-1]]),
                who,
                {},
                (rows_sent[0], rows_sent[0], rows_sent[-1]),
            )


@rule(
    "latency",
    "queue-behind-own-requests",
    "note",
    "62.0 % of what svc-a (10.0.0.4) waits for Produce at 10.0.0.1:9092 is behind its own earlier requests: 3.1 s of "
    "5.0 s, added up over 40 exchanges.",
    why="A broker takes one request of a connection after the other; librdkafka allows a million in flight, Java five. "
    "Half of the time and 100 ms (95th percentile) are the client's to mend.",
    suppressed_when="Fewer than 30 exchanges, or all that waited within 10 s. Where the earlier ones waited for a "
    "quota's pauses, for half of that time or more, the quota is the cause: the broker does not read meanwhile "
    "(KIP-219). What waited because a broker stood still or a replica was slow is not counted (broker-stall, "
    "replication-slow).",
    advice="Fewer requests in flight, larger batches; Fetch on a connection of its own. A quota: raise it, or send "
    "less.",
    evidence="forged: 30 requests that wait 200 of 300 ms, and 29; behind pauses, and behind some; "
    "admin-librdkafka-4.3",
    share=0.5,
    queue_ms=100,
    answers=30,
    over_s=OVER_S,
)
def own_queue(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("queue_us") < at.queue_ms * 1000:
        return
    queue, latency = capture.table("exchanges").together(("queue_us", "latency_us"))
    rows = capture.of_one(spill.true_rows((queue != NULL) & (latency != NULL)))
    behind = _behind_slow_brokers(capture, rows)
    rows = rows[~behind] if behind.any() else rows
    keys = (spill.take(column, rows) for column in (capture.client, capture.broker, capture.exchanges.api))
    for group_rows in split(rows, *keys, least=at.answers):
        waited, whole = int(queue[group_rows].sum()), int(latency[group_rows].sum())
        if waited < at.share * whole or _quantile(queue[group_rows], 95) < at.queue_ms * 1000:
            continue
        waiting = group_rows[queue[group_rows] >= at.queue_ms * 1000]
        if _lasted(capture, waiting) < at.over_s * SECOND:
            continue
        who = capture.who(int(capture.client[group_rows[0]]), int(capture.broker[group_rows[0]]))
        api = api_name(int(capture.exchanges.api[group_rows[0]]))
        text = f"{share(waited, whole)} of what {client(who)} waits for {api} at {who['broker']} is behind its own "
        text += f"earlier requests: {lasting(waited)} of {lasting(whole)}, added up over "
        text += f"{count(len(group_rows), 'exchange')}"
        paused = int(_behind_pauses(capture, group_rows).sum())
        quota = 2 * paused >= waited
        text += f"; {lasting(paused)} of it while these waited for pauses of a quota." if quota else "."
        requested = capture.exchanges.request_time[group_rows]
        yield Match(
            text,
            len(group_rows),
            int(requested.min()),
            int(requested.max()),
            who,
            {"api": api},
            (int(group_rows[0]), int(group_rows[queue[group_rows].argmax()]), int(group_rows[-1])),
            cause="a quota, whose pauses came before" if quota else "its own requests in flight",
            proven=True,
        )


def _behind_slow_brokers(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: exchanges that waited behind what a stalled broker or a slow replica delayed."""
    out = stalls.in_stalls(capture, rows)
    spans = [(span.begin, span.end) for span in replication.slow_spans(capture)]
    out |= stalls.overlapping(capture, rows, spans)
    out |= _behind_replicas(capture, rows)
    return out


def _behind_replicas(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: exchanges requested while an earlier one of their connection waited a second or more for replicas,
    or those that did: the broker that kept them waiting need not be captured."""
    out = np.zeros(len(rows), bool)
    slow = np.flatnonzero(capture.column("latency_us")[rows] >= SECOND)
    slow = slow[stalls.waits_for_replicas(capture, rows[slow])]
    if not len(slow):
        return out
    own = replication.own_latency(capture)[rows]
    slow = slow[own[slow] >= SECOND]
    if not len(slow):
        return out
    links = capture.exchanges.link[rows]
    some = np.flatnonzero(arrow.among(links, arrow.distinct(links[slow])))
    some = some[np.lexsort((capture.exchanges.exchange[rows[some]], links[some]))]
    is_slow = np.zeros(len(rows), bool)
    is_slow[slow] = True
    for places in split(some, links[some]):
        # What was queued meanwhile is drained within as long again.
        drained = np.where(is_slow[places], capture.exchanges.response_end[rows[places]] + own[places], NULL)
        until = np.maximum.accumulate(drained)
        out[places] = (until != NULL) & (capture.exchanges.request_time[rows[places]] <= until)
    return out


def _behind_pauses(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """int64: how much of the queue of each of these exchanges was time in which an earlier one of the same connection
    waited for the end of a quota's pause, us."""
    out = np.zeros(len(rows), np.int64)
    if capture.greatest("throttle_us") <= 0:
        return out
    came, queue, muted = capture.table("exchanges").together(("request_end", "queue_us", "muted_us"))
    links = arrow.distinct(capture.exchanges.link[rows])
    pauses = spill.true_rows(
        (muted > 0) & (queue != NULL) & (came != NULL) & arrow.among(capture.exchanges.link, links)
    )
    by_link = rows_by_key(pauses, capture.exchanges.link[pauses])
    for places in split(np.arange(len(rows)), capture.exchanges.link[rows]):
        waiting, before = rows[places], by_link.get((int(capture.exchanges.link[rows[places[0]]]),))
        if before is not None:
            # One after the other: so much of them was over at each of their beginnings and ends.
            begin, before = sort_by(came[before] + queue[before], before)
            over = np.cumsum(muted[before])
            moments = np.stack([begin, begin + muted[before]], 1).ravel()
            past = np.stack([over - muted[before], over], 1).ravel()
            until, since = (np.interp(at, moments, past) for at in (came[waiting] + queue[waiting], came[waiting]))
            out[places] = np.where(came[waiting] != NULL, until - since, 0)
    return out
