"""What answers waited for: the broker, its followers, quotas, the client's own requests.

Holding, pauses, the client's queue and the network are subtracted before a broker is blamed: `broker_us` is what is
left, and absent where it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.findings.capture import HELD, SECOND, CaptureFrame, api_name
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, lasting, moment, share
from analyzer.frame import arrow, spill
from analyzer.frame.frame import NULL
from analyzer.frame.grouping import rows_by_key, sort_by, split
from analyzer.protocol import api_keys

JUDGED = 100
"""Answers that a 99th percentile needs: of fewer it is the longest but one."""
OVER_S = 10
"""How long what a percentile is of goes on at least: less is one moment."""


def _quantile(values: np.ndarray, percent: int) -> int:
    """The smallest value that at least so many of a hundred do not exceed."""
    rank = -(-percent * len(values) // 100) - 1
    return int(np.partition(values, rank)[rank])


def _lasted(seen: CaptureFrame, rows: np.ndarray) -> int:
    """From the first request to the last answer of exchanges that were answered, us."""
    return int(seen.exchanges.answered[rows].max() - seen.exchanges.asked[rows].min())


@rule(
    "latency",
    "broker-slow",
    "warning",
    "10.0.0.1:9092 needed 900 ms or more for one in a hundred of 5,000 Produce requests in the minute from 10:01:00, "
    "without what it held, throttling, queues and network.",
    why="Measured: on an overloaded machine of two cores the 99th percentile was 62 ms for Produce, 47 ms for "
    "Metadata, and none of 7,057 answers took more than 173 ms; a cluster known for its slow disks had 1 s. 500 ms is "
    "a warning, 200 ms a note.",
    unless="Fewer than 100 such answers in the minute, or all within 10 s; what the broker held cannot be told apart; "
    "fetches of brokers among themselves.",
    advice="Look at that broker's disks, garbage collection, request handlers and in-sync replicas.",
    judge="forged: 100 answers of which 2 took 600 ms at the broker; 99 of them; and the same while held",
    slow_ms=500,
    note_ms=200,
    window_s=60,
    answers=JUDGED,
    over_s=OVER_S,
    by_clock=True,
)
def broker_slow(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.greatest("broker_us") < at.note_ms * 1000:
        return
    spent = seen.column("broker_us")
    rows = spill.true_rows((spent != NULL) & (seen.exchanges.answered != NULL))
    # Followers' and voters' fetches wait for data that nobody may write for a while.
    rows = rows[~(seen.between_brokers[seen.client[rows]] & arrow.among(seen.exchanges.api[rows], HELD))]
    if len(rows) < at.answers:
        return
    window = (seen.exchanges.answered[rows] - seen.span[0]) // int(at.window_s * SECOND)
    worst: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
    for mine in split(rows, seen.broker[rows], seen.exchanges.api[rows], window, least=at.answers):
        if _lasted(seen, mine) < at.over_s * SECOND:
            continue
        late = _quantile(spent[mine], 99)
        key = int(seen.broker[mine[0]]), int(seen.exchanges.api[mine[0]])
        if late >= at.note_ms * 1000 and late > worst.get(key, (0, mine))[0]:
            worst[key] = late, mine
    for (broker, api), (late, mine) in worst.items():
        slow = mine[spent[mine] >= late]
        asked = seen.exchanges.asked[mine]
        text = f"{seen.brokers[broker]} needed {lasting(late)} or more for one in a hundred of {len(mine):,} "
        text += f"{api_name(api)} requests in the minute from {moment(int(asked.min()))}, without what it held, "
        places = int(slow[0]), int(mine[spent[mine].argmax()]), int(slow[-1])
        yield Found(
            f"{text}throttling, queues and network.",
            len(slow),
            int(asked.min()),
            int(asked.max()),
            seen.who(broker=broker),
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
    unless="Fewer than three clients waited, or fewer than five answers came at once after; nothing else was captured "
    "meanwhile either (then the capture paused).",
    advice="Look for a pause of garbage collection or of the disk at that second.",
    judge="forged: a second without answers while five clients ask; and without anything",
    pause_ms=1000,
    clients=3,
    answers=5,
    burst_ms=100,
    by_clock=True,
)
def broker_stall(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    pause = int(at.pause_ms * 1000)
    asked: np.ndarray | None = None
    known = spill.true_rows(rows.answered != NULL)
    for mine in split(known, spill.take(seen.broker, known)):
        broker = int(seen.broker[mine[0]])
        times, mine = sort_by(spill.take(rows.answered, mine), mine)
        for gap in _apart(times, pause).tolist():
            begin, end = int(times[gap]), int(times[gap + 1])
            burst = int(np.searchsorted(times, end + at.burst_ms * 1000, side="right"))
            some = mine[gap + 1 : burst]
            # Asked before the middle of the pause: whoever asks at its end waits for nobody.
            waited = some[~arrow.among(rows.api[some], HELD) & (end - rows.asked[some] >= pause // 2)]
            clients = len(arrow.distinct(seen.client[waited]))
            if asked is None:
                asked = np.sort(rows.asked[rows.asked != NULL])
            inside = np.searchsorted(asked, [begin + pause // 10, end - pause // 10])
            if len(some) < at.answers or clients < at.clients or inside[1] <= inside[0]:
                continue
            text = f"{seen.brokers[broker]} answered nobody for {lasting(end - begin)} from {moment(begin)}, while "
            text += f"{count(clients, 'client')} waited."
            yield Found(
                text,
                len(waited),
                begin,
                end,
                seen.who(broker=broker),
                {},
                tuple(waited[[0, 0, -1]].tolist()),
                cause="a pause of the broker",
                proven=False,
            )


def _apart(times: np.ndarray, least: int) -> np.ndarray:
    """Of sorted times those that the next is so far from."""

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
    unless="Fewer than 100 such requests, or all within 10 s; nothing to compare with at that broker, in the same ten "
    "seconds as what took long: a broker that is slow as a whole for a while is none whose followers are.",
    advice="Find the slow follower: its disk, its network.",
    judge="forged: acks=-1 at 600 ms beside Heartbeats at 4 ms; and beside Heartbeats at 100 ms; a broker that is slow "
    "for half a minute of many",
    slow_ms=500,
    factor=10,
    answers=JUDGED,
    compared=30,
    over_s=OVER_S,
)
def replication_slow(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.greatest("latency_us") < at.slow_ms * 1000:
        return
    rows, acks = seen.exchanges, seen.column("acks")
    taken = _own(seen)
    good = (rows.error == 0) & (taken != NULL)
    every = spill.true_rows(good & (rows.api == api_keys.PRODUCE) & (acks == -1))
    plain = spill.true_rows(good & (((rows.api == api_keys.PRODUCE) & (acks == 1)) | arrow.among(rows.api, _PROMPT)))
    for broker in arrow.distinct(seen.broker[every]).tolist():
        mine, others = every[seen.broker[every] == broker], plain[seen.broker[plain] == broker]
        if len(mine) < at.answers or len(others) < at.compared:
            continue
        slow = mine[taken[mine] >= at.slow_ms * 1000]
        others = others[arrow.among(_spell(seen, others), arrow.distinct(_spell(seen, slow)))]
        if len(others) < at.compared or _lasted(seen, mine) < at.over_s * SECOND:
            continue
        late, usual = _quantile(taken[mine], 99), max(_quantile(taken[others], 95), 1)
        if late < at.slow_ms * 1000 or late < at.factor * usual:
            continue
        what = api_name(int(np.bincount(rows.api[others]).argmax()))
        text = f"Produce with acks=all took {lasting(late)} (99th percentile of {len(mine):,}) at "
        text += f"{seen.brokers[broker]}; {what} there {lasting(usual)}."
        slow = mine[taken[mine] >= late]
        held = (seen.column("hold_us")[slow] > 0).any()
        places = int(slow[0]), int(mine[taken[mine].argmax()]), int(slow[-1])
        yield Found(
            text,
            len(slow),
            int(rows.asked[mine].min()),
            int(rows.asked[mine].max()),
            seen.who(broker=broker),
            {"api": "Produce"},
            places,
            cause="followers fetch late",
            proven=bool(held),
        )


def _spell(seen: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """Of exchanges in which ten seconds of the capture they were asked."""
    found: np.ndarray = (seen.exchanges.asked[rows] - seen.span[0]) // (OVER_S * SECOND)
    return found


_PROMPT = (api_keys.HEARTBEAT, api_keys.METADATA, api_keys.CONSUMER_GROUP_HEARTBEAT)


def _own(seen: CaptureFrame) -> np.ndarray:
    """Latency without the client's queue and the pauses of quotas, NULL where absent."""
    latency, queue, muted = seen.table("exchanges").together(("latency_us", "queue_us", "muted_us"))

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
    unless="Never otherwise. The pause is no part of the latency: since 2.0 the answer comes first (KIP-219).",
    advice="Raise the quota, or send less: larger batches, fewer fetches.",
    judge="forged: a pause of a second, and one of 10 ms in a minute; many of half a second in a minute of an hour; "
    "admin-*",
    share=0.1,
    pause_ms=1000,
)
def client_throttled(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    throttle = seen.column("throttle_us")
    rows = spill.true_rows(throttle > 0)
    for mine in split(rows, seen.client[rows], seen.broker[rows]):
        who = seen.who(int(seen.client[mine[0]]), int(seen.broker[mine[0]]))
        since, until = int(seen.exchanges.answered[mine].min()), int(seen.exchanges.answered[mine].max())
        whole, longest = int(throttle[mine].sum()), int(throttle[mine].max())
        window = max(until - since, _MINUTE)
        most = _most_in_a_minute(*sort_by(seen.exchanges.answered[mine], throttle[mine]))
        felt = longest >= at.pause_ms * 1000 or (most >= at.share * _MINUTE and not seen.mixed[seen.client[mine[0]]])
        text = f"{client(who)} was told to pause {lasting(whole)} in {lasting(window)} by {who['broker']} "
        text += f"({count(len(mine), 'answer')}, the longest {lasting(longest)}"
        text += f"; {lasting(most)} in one minute)." if most < whole else ")."
        apis = ",".join(sorted({api_name(key) for key in seen.exchanges.api[mine].tolist()}))
        yield Found(
            text,
            len(mine),
            since,
            until,
            who,
            {"api": apis},
            (int(mine[0]), int(mine[throttle[mine].argmax()]), int(mine[-1])),
            cause="a quota",
            proven=True,
            severity=None if felt else "note",
        )


_MINUTE = 60 * SECOND


def _most_in_a_minute(when: np.ndarray, amounts: np.ndarray) -> int:
    """The greatest sum of amounts whose times, which are in order, are within a minute."""
    sums = np.append(0, np.cumsum(amounts))
    return int((sums[np.searchsorted(when, when + _MINUTE, side="right")] - sums[:-1]).max())


@rule(
    "latency",
    "throttle-ignored",
    "note",
    "svc-a (librdkafka 2.16.0, 10.0.0.4) sent 9 requests to 10.0.0.1:9092 inside its pause.",
    why="A client of KIP-219 waits on its own; 50 ms are left for clocks and for what was on its way.",
    unless="The request was under way when the answer with the pause came.",
    advice="Nothing: the broker does not read meanwhile, and the next answer waits for that.",
    judge="forged: a request half a second into a pause of one; and after it",
    slack_ms=50,
)
def throttle_ignored(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    throttle, rows = seen.column("throttle_us"), seen.exchanges
    paused = spill.true_rows((throttle > at.slack_ms * 1000) & (rows.answered != NULL))
    if not len(paused):
        return
    ours = spill.true_rows(arrow.among(rows.link, arrow.distinct(rows.link[paused])) & (rows.asked != NULL))
    ours = ours[np.lexsort((rows.asked[ours], rows.link[ours]))]
    found: dict[tuple[int, int], set[int]] = {}
    place = rows.link[ours].astype(np.int64)
    for row in paused.tolist():
        first, past = np.searchsorted(place, [rows.link[row], rows.link[row] + 1])
        times = rows.asked[ours[first:past]]
        until = rows.answered[row] + throttle[row] - at.slack_ms * 1000
        inside = np.searchsorted(times, [rows.answered[row] + at.slack_ms * 1000, until])
        some = ours[first + inside[0] : first + inside[1]].tolist()
        found.setdefault((int(seen.client[row]), int(seen.broker[row])), set()).update(some)
    for (client_, broker), sent in found.items():
        if sent:
            mine, who = sorted(sent), seen.who(client_, broker)
            text = f"{client(who)} sent {count(len(mine), 'request')} to {who['broker']} inside its pause."
            yield Found(
                text,
                len(mine),
                int(rows.asked[mine[0]]),
                int(rows.asked[mine[-1]]),
                who,
                {},
                (mine[0], mine[0], mine[-1]),
            )


@rule(
    "latency",
    "queue-behind-own-requests",
    "note",
    "62.0 % of what svc-a (10.0.0.4) waits for Produce at 10.0.0.1:9092 is behind its own earlier requests: 3.1 s of "
    "5.0 s, added up over 40 exchanges.",
    why="A broker takes one request of a connection after the other; librdkafka allows a million in flight, Java five. "
    "Half of the time and 100 ms (95th percentile) are the client's to mend.",
    unless="Fewer than 30 exchanges, or all within 10 s. Where the earlier requests themselves waited for a quota's "
    "pauses, for half of that time or more, the quota is the cause: the broker does not read meanwhile (KIP-219).",
    advice="Fewer requests in flight, larger batches; Fetch on a connection of its own. A quota: raise it, or send "
    "less.",
    judge="forged: 30 requests that wait 200 of 300 ms, and 29; behind pauses, and behind some; admin-librdkafka-4.3",
    share=0.5,
    queue_ms=100,
    answers=30,
    over_s=OVER_S,
)
def own_queue(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.greatest("queue_us") < at.queue_ms * 1000:
        return
    queue, latency = seen.table("exchanges").together(("queue_us", "latency_us"))
    rows = seen.of_one(spill.true_rows((queue != NULL) & (latency != NULL)))
    keys = (spill.take(column, rows) for column in (seen.client, seen.broker, seen.exchanges.api))
    for mine in split(rows, *keys, least=at.answers):
        waited, whole = int(queue[mine].sum()), int(latency[mine].sum())
        if waited < at.share * whole or _quantile(queue[mine], 95) < at.queue_ms * 1000:
            continue
        if _lasted(seen, mine) < at.over_s * SECOND:
            continue
        who = seen.who(int(seen.client[mine[0]]), int(seen.broker[mine[0]]))
        api = api_name(int(seen.exchanges.api[mine[0]]))
        text = f"{share(waited, whole)} of what {client(who)} waits for {api} at {who['broker']} is behind its own "
        text += f"earlier requests: {lasting(waited)} of {lasting(whole)}, added up over "
        text += f"{count(len(mine), 'exchange')}"
        paused = int(_behind_pauses(seen, mine).sum())
        quota = 2 * paused >= waited
        text += f"; {lasting(paused)} of it while these waited for pauses of a quota." if quota else "."
        asked = seen.exchanges.asked[mine]
        yield Found(
            text,
            len(mine),
            int(asked.min()),
            int(asked.max()),
            who,
            {"api": api},
            (int(mine[0]), int(mine[queue[mine].argmax()]), int(mine[-1])),
            cause="a quota, whose pauses came before" if quota else "its own requests in flight",
            proven=True,
        )


def _behind_pauses(seen: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """int64: how much of the queue of each of these exchanges was time in which an earlier one of the same connection
    waited for the end of a quota's pause, us."""
    out = np.zeros(len(rows), np.int64)
    if seen.greatest("throttle_us") <= 0:
        return out
    came, queue, muted = seen.table("exchanges").together(("request_end", "queue_us", "muted_us"))
    links = arrow.distinct(seen.exchanges.link[rows])
    pauses = spill.true_rows((muted > 0) & (queue != NULL) & (came != NULL) & arrow.among(seen.exchanges.link, links))
    by_link = rows_by_key(pauses, seen.exchanges.link[pauses])
    for places in split(np.arange(len(rows)), seen.exchanges.link[rows]):
        mine, before = rows[places], by_link.get((int(seen.exchanges.link[rows[places[0]]]),))
        if before is not None:
            # One after the other: so much of them was over at each of their beginnings and ends.
            begin, before = sort_by(came[before] + queue[before], before)
            over = np.cumsum(muted[before])
            moments = np.stack([begin, begin + muted[before]], 1).ravel()
            past = np.stack([over - muted[before], over], 1).ravel()
            until, since = (np.interp(at, moments, past) for at in (came[mine] + queue[mine], came[mine]))
            out[places] = np.where(came[mine] != NULL, until - since, 0)
    return out
