"""Rules about what answers waited for: the broker, its followers, quotas, the client's own requests.

Holding, pauses, the client's queue and the network are subtracted before a broker is blamed: `broker_us` is what is
left, and absent where it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kwire.analyzer.findings.capture import HELD, SECOND, CaptureFrame, api_name
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, moment, share
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
    suppressed_when="Fewer than 100 such answers in the minute, or all within 10 s; what the broker held cannot be "
    "told apart; fetches of brokers among themselves.",
    advice="Look at that broker's disks, garbage collection, request handlers and in-sync replicas.",
    evidence="forged: 100 answers of which 2 took 600 ms at the broker; 99 of them; and the same while held",
    slow_ms=500,
    note_ms=200,
    window_s=60,
    answers=JUDGED,
    over_s=OVER_S,
    by_clock=True,
)
def broker_slow(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("broker_us") < at.note_ms * 1000:
        return
    spent = capture.column("broker_us")
    rows = spill.true_rows((spent != NULL) & (capture.exchanges.response_end != NULL))
    # Followers' and voters' fetches wait for data that nobody may write for a while.
    rows = rows[~(capture.between_brokers[capture.client[rows]] & arrow.among(capture.exchanges.api[rows], HELD))]
    if len(rows) < at.answers:
        return
    window = (capture.exchanges.response_end[rows] - capture.span[0]) // int(at.window_s * SECOND)
    worst: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
    for group_rows in split(rows, capture.broker[rows], capture.exchanges.api[rows], window, least=at.answers):
        if _lasted(capture, group_rows) < at.over_s * SECOND:
            continue
        late = _quantile(spent[group_rows], 99)
        key = int(capture.broker[group_rows[0]]), int(capture.exchanges.api[group_rows[0]])
        if late >= at.note_ms * 1000 and late > worst.get(key, (0, group_rows))[0]:
            worst[key] = late, group_rows
    for (broker, api), (late, late_rows) in worst.items():
        slow = late_rows[spent[late_rows] >= late]
        requested = capture.exchanges.request_time[late_rows]
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


@rule(
    "latency",
    "broker-stall",
    "warning",
    "10.0.0.1:9092 answered nobody for 2.4 s from 10:01:03, while 12 clients waited.",
    why="The 99th percentile of answers is below 70 ms; replicas leave the in-sync set after 30 s, sessions end after "
    "6 to 45 s.",
    suppressed_when="Fewer than three clients waited, or fewer than five answers came at once after; nothing else was "
    "captured meanwhile either (then the capture paused).",
    advice="Look for a pause of garbage collection or of the disk at that second.",
    evidence="forged: a second without answers while five clients ask; and without anything",
    pause_ms=1000,
    clients=3,
    answers=5,
    burst_ms=100,
    by_clock=True,
)
def broker_stall(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    pause = int(at.pause_ms * 1000)
    requested: np.ndarray | None = None
    known = spill.true_rows(rows.response_end != NULL)
    for group_rows in split(known, spill.take(capture.broker, known)):
        broker = int(capture.broker[group_rows[0]])
        times, group_rows = sort_by(spill.take(rows.response_end, group_rows), group_rows)
        for gap in _apart(times, pause).tolist():
            begin, end = int(times[gap]), int(times[gap + 1])
            burst = int(np.searchsorted(times, end + at.burst_ms * 1000, side="right"))
            some = group_rows[gap + 1 : burst]
            # Asked before the middle of the pause: whoever asks at its end waits for nobody.
            waited = some[~arrow.among(rows.api[some], HELD) & (end - rows.request_time[some] >= pause // 2)]
            clients = len(arrow.distinct(capture.client[waited]))
            if requested is None:
                requested = np.sort(rows.request_time[rows.request_time != NULL])
            inside = np.searchsorted(requested, [begin + pause // 10, end - pause // 10])
            if len(some) < at.answers or clients < at.clients or inside[1] <= inside[0]:
                continue
            text = f"{capture.brokers[broker]} answered nobody for {lasting(end - begin)} from {moment(begin)}, while "
            text += f"{count(clients, 'client')} waited."
            yield Match(
                text,
                len(waited),
                begin,
                end,
                capture.who(broker=broker),
                {},
                tuple(waited[[0, 0, -1]].tolist()),
                cause="a pause of the broker",
                proven=False,
            )


def _apart(times: np.ndarray, least: int) -> np.ndarray:
    """Sorted times that are followed by a gap of at least this length."""

    def far(block: slice) -> np.ndarray:
        return np.asarray(times[1:][block] - times[:-1][block] >= least)

    return spill.where(len(times) - 1, far)


@rule(
    "latency",
    "replication-slow",
    "warning",
    "Produce with acks=all took 1.8 s (99th percentile of 400) at 10.0.0.1:9092; Heartbeat there 4.0 ms.",
    why="With three replicas the usual wait is 2 ms; half a second, and ten times what the same broker takes for what "
    "needs no follower, is the followers'.",
    suppressed_when="Fewer than 100 such requests, or all within 10 s; nothing to compare with at that broker, in the "
    "same ten seconds as what took long: a broker that is slow as a whole for a while is none whose followers are.",
    advice="Find the slow follower: its disk, its network.",
    evidence="forged: acks=-1 at 600 ms beside Heartbeats at 4 ms; and beside Heartbeats at 100 ms; a broker that is "
    "slow for half a minute of many",
    slow_ms=500,
    factor=10,
    answers=JUDGED,
    compared=30,
    over_s=OVER_S,
)
def replication_slow(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    if capture.greatest("latency_us") < at.slow_ms * 1000:
        return
    rows, acks = capture.exchanges, capture.column("acks")
    own = _own(capture)
    good = (rows.error == 0) & (own != NULL)
    every = spill.true_rows(good & (rows.api == api_keys.PRODUCE) & (acks == -1))
    plain = spill.true_rows(good & (((rows.api == api_keys.PRODUCE) & (acks == 1)) | arrow.among(rows.api, _PROMPT)))
    for broker in arrow.distinct(capture.broker[every]).tolist():
        of_broker, others = every[capture.broker[every] == broker], plain[capture.broker[plain] == broker]
        if len(of_broker) < at.answers or len(others) < at.compared:
            continue
        slow = of_broker[own[of_broker] >= at.slow_ms * 1000]
        others = others[arrow.among(_spell(capture, others), arrow.distinct(_spell(capture, slow)))]
        if len(others) < at.compared or _lasted(capture, of_broker) < at.over_s * SECOND:
            continue
        late, usual = _quantile(own[of_broker], 99), max(_quantile(own[others], 95), 1)
        if late < at.slow_ms * 1000 or late < at.factor * usual:
            continue
        what = api_name(int(np.bincount(rows.api[others]).argmax()))
        text = f"Produce with acks=all took {lasting(late)} (99th percentile of {len(of_broker):,}) at "
        text += f"{capture.brokers[broker]}; {what} there {lasting(usual)}."
        slow = of_broker[own[of_broker] >= late]
        held = (capture.column("hold_us")[slow] > 0).any()
        places = int(slow[0]), int(of_broker[own[of_broker].argmax()]), int(slow[-1])
        yield Match(
            text,
            len(slow),
            int(rows.request_time[of_broker].min()),
            int(rows.request_time[of_broker].max()),
            capture.who(broker=broker),
            {"api": "Produce"},
            places,
            cause="followers fetch late",
            proven=bool(held),
        )


def _spell(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """The ten seconds of the capture in which each exchange was requested."""
    result: np.ndarray = (capture.exchanges.request_time[rows] - capture.span[0]) // (OVER_S * SECOND)
    return result


_PROMPT = (api_keys.HEARTBEAT, api_keys.METADATA, api_keys.CONSUMER_GROUP_HEARTBEAT)


def _own(capture: CaptureFrame) -> np.ndarray:
    """Latency without the client's queue and the pauses of quotas, NULL where null."""
    latency, queue, muted = capture.table("exchanges").together(("latency_us", "queue_us", "muted_us"))

    def of_block(block: slice) -> np.ndarray:
        whole = latency[block]
        rest = whole - np.where(queue[block] == NULL, 0, queue[block]) - np.where(muted[block] == NULL, 0, muted[block])
        return np.where(whole == NULL, NULL, np.maximum(rest, 0))

    return spill.compute(len(latency), np.int64, of_block)


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
        window = max(until - since, _MINUTE)
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
    suppressed_when="Fewer than 30 exchanges, or all within 10 s. Where the earlier requests themselves waited for a "
    "quota's pauses, for half of that time or more, the quota is the cause: the broker does not read meanwhile "
    "(KIP-219).",
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
    keys = (spill.take(column, rows) for column in (capture.client, capture.broker, capture.exchanges.api))
    for group_rows in split(rows, *keys, least=at.answers):
        waited, whole = int(queue[group_rows].sum()), int(latency[group_rows].sum())
        if waited < at.share * whole or _quantile(queue[group_rows], 95) < at.queue_ms * 1000:
            continue
        if _lasted(capture, group_rows) < at.over_s * SECOND:
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
