"""Rule about slow replicas: which broker makes Produce with acks=all wait, wherever it leads or follows.

In: a capture point. Out: `SlowSpan`s, and the rule `replication-slow`. How long a leader waited for its followers is
not on the wire, so the cause is a comparison: with requests that need no replica at the same brokers in the same span,
between leaders, between in-sync sets, and with followers' fetches where these were captured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings import stalls
from kwire.analyzer.findings.capture import SECOND, CaptureFrame, once
from kwire.analyzer.findings.root_causes import end_point, leaders_in_time
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import count, lasting, listed, moment
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key, sort_by
from kwire.analyzer.protocol import api_keys

_TIMED_OUT = (7, 20)
"""REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND: the leader waited for its followers."""

_FEW = 5
"""Answers that a median of one leader, partition or follower needs."""

_APART_US = 3 * SECOND
"""Slow answers further apart belong to two spans."""

_FASTER = 4
"""A median that much shorter is of another kind."""

_SLOWEST = 1.4
"""Ratio of the slowest leader's median to the next one's: a slow disk delays a leader's appends, and its followers'."""

_FETCHER = re.compile(r"(?:broker-(\d+)-fetcher-\d+|ReplicaFetcherThread-\d+-\d+)$")


class Culprit(NamedTuple):
    """The broker that keeps in-sync sets waiting, as `host:port`, and the reason; null where it cannot be told.

    proven: it was measured; is_guess: it cannot be told, or only by leaders' medians."""

    broker: str | None
    cause: str
    reason: str
    proven: bool = False
    is_guess: bool = False


@dataclass(slots=True)
class SlowSpan:
    """A time in which Produce with acks=all was slow, us. rows: these exchanges of all leaders, slow: the slow ones."""

    begin: int
    end: int
    rows: np.ndarray
    slow: np.ndarray
    prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


def own_latency(capture: CaptureFrame) -> np.ndarray:
    """int64[exchanges]: latency without the client's queue and the pauses of quotas, us; NULL where null."""
    latency, queue, muted = capture.table("exchanges").together(("latency_us", "queue_us", "muted_us"))

    def of_block(block: slice) -> np.ndarray:
        whole = latency[block]
        rest = whole - np.where(queue[block] == NULL, 0, queue[block]) - np.where(muted[block] == NULL, 0, muted[block])
        return np.where(whole == NULL, NULL, np.maximum(rest, 0))

    return spill.compute(len(latency), np.int64, of_block)


@once
def slow_spans(capture: CaptureFrame) -> list[SlowSpan]:
    """Spans in which replicas were slow, in order of time; what a stalled broker made wait is not among them."""
    at = limits_of(RULES["replication-slow"], capture.query)
    if capture.greatest("latency_us") < at.slow_ms * 1000 or capture.set_back is not None:
        return []
    rows = capture.exchanges
    good = (rows.error == 0) | arrow.among(rows.error, _TIMED_OUT)
    every = spill.true_rows((rows.api == api_keys.PRODUCE) & (capture.column("acks") == -1) & good)
    every = every[rows.response_end[every] != NULL]
    if len(every) < at.answers:
        return []
    own = own_latency(capture)
    every = every[(own[every] != NULL) & (capture.column("hold_us")[every] != 0)]
    if len(every) < at.answers:
        return []
    every = every[~stalls.in_stalls(capture, every)]
    spans = [
        (broker, *span)
        for (broker,), of_broker in rows_by_key(every, capture.broker[every]).items()
        for span in _spans_of_leader(capture, at, of_broker, own)
    ]
    return [span for span in _merged(capture, every, own, spans, at) if _is_replicas(capture, span, own, at)]


def _spans_of_leader(capture: CaptureFrame, at: Limits, rows: np.ndarray, own: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield begin and end of times in which most answers of a leader were slow, and enough of them."""
    times, rows = sort_by(capture.exchanges.response_end[rows], rows)
    slow = own[rows] >= at.slow_ms * 1000
    second = times // SECOND
    starts = np.flatnonzero(np.append(True, second[1:] != second[:-1]))
    ends = np.append(starts[1:], len(rows))
    before = np.append(0, np.cumsum(slow))
    shares = before[ends] - before[starts]
    dense = np.flatnonzero(2 * shares >= ends - starts)
    if not len(dense):
        return
    breaks = np.flatnonzero(times[starts[dense[1:]]] - times[ends[dense[:-1]] - 1] > _APART_US) + 1
    for seconds in np.split(dense, breaks):
        first, past = int(starts[seconds[0]]), int(ends[seconds[-1]])
        late = np.flatnonzero(slow[first:past]) + first
        lasted = int(times[late[-1]] - times[late[0]])
        if len(late) < at.answers or 2 * len(late) < past - first or lasted < at.over_s * SECOND:
            continue
        yield int(capture.exchanges.request_time[rows[late]].min()), int(times[late[-1]])


def _merged(
    capture: CaptureFrame, every: np.ndarray, own: np.ndarray, spans: list[tuple[int, int, int]], at: Limits
) -> Iterator[SlowSpan]:
    """Yield the spans of all leaders; those that overlap are one."""
    times: list[list[int]] = []
    for _, begin, end in sorted(spans, key=lambda span: span[1:]):
        if times and begin <= times[-1][1]:
            times[-1][1] = max(times[-1][1], end)
        else:
            times.append([begin, end])
    answered, requested = capture.exchanges.response_end[every], capture.exchanges.request_time[every]
    for begin, end in times:
        inside = every[(answered <= end) & (requested >= begin)]
        yield SlowSpan(begin, end, inside, inside[own[inside] >= at.slow_ms * 1000])


def _is_replicas(capture: CaptureFrame, span: SlowSpan, own: np.ndarray, at: Limits) -> bool:
    """Whether the leaders were prompt with what needs no replica in that span. Sets `span.prompt`."""
    rows = capture.exchanges
    inside = spill.where(
        len(rows),
        lambda block: (rows.request_time[block] >= span.begin) & (rows.response_end[block] <= span.end),
    )
    inside = inside[
        (own[inside] != NULL) & arrow.among(capture.broker[inside], arrow.distinct(capture.broker[span.slow]))
    ]
    api, held = rows.api[inside], capture.column("hold_us")[inside]
    plain = arrow.among(api, stalls.PROMPT) | ((api == api_keys.PRODUCE) & (capture.column("acks")[inside] == 1))
    plain |= arrow.among(api, stalls.FETCHES) & (held != NULL) & ~capture.between_brokers[capture.client[inside]]
    span.prompt = inside[plain & (rows.error[inside] == 0)]
    if len(span.prompt) < at.compared:
        return False
    prompt_us = own[span.prompt] - np.maximum(capture.column("hold_us")[span.prompt], 0)
    return bool(np.median(own[span.slow]) >= at.factor * max(np.median(prompt_us), 1))


# --- which broker it is ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cluster:
    """Nodes of a cluster, as far as a capture tells: their end points, the in-sync set of each topic-partition (as it
    was before a span), and who left such a set until its end."""

    labels: dict[int, str]
    node_of: dict[int, int]
    in_sync: dict[tuple[str, int], frozenset[int]]
    left: set[int]


def _cluster(capture: CaptureFrame, span: SlowSpan) -> _Cluster:
    numbers = {end: number for number, end in enumerate(capture.brokers)}
    rows = [
        (row["node_id"], end_point(row["host"], row["port"]))
        for row in capture.table("brokers").every(["node_id", "host", "port"])
    ]
    # Another cluster has nodes of the same numbers: these are the ones that lead in the span.
    leaders = set(arrow.distinct(capture.broker[span.rows]).tolist())
    labels = dict(rows) | {node: label for node, label in rows if numbers.get(label) in leaders}
    node_of = {numbers[label]: node for node, label in labels.items() if label in numbers}
    in_sync: dict[tuple[str, int], frozenset[int]] = {}
    leader_of: dict[tuple[str, int], int] = {}
    left: set[int] = set()
    for row in leaders_in_time(capture, ["time", "topic", "topic_id", "partition", "leader", "isr"]):
        if row["time"] is not None and row["time"] > span.end + 10 * SECOND:
            break
        where = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"]) or "", row["partition"]
        now = frozenset(row["isr"] or ())
        if where in in_sync and row["time"] is not None and row["time"] >= span.begin:
            left |= in_sync[where] - now
        else:
            in_sync[where] = now
        if row["leader"] is not None:
            leader_of[where] = row["leader"]
    _by_leadership(capture, span, leader_of, node_of)
    labels |= {node: capture.brokers[broker] for broker, node in node_of.items()}
    return _Cluster(labels, node_of, in_sync, left)


def _by_leadership(
    capture: CaptureFrame, span: SlowSpan, leader_of: dict[tuple[str, int], int], node_of: dict[int, int]
) -> None:
    """Add brokers that are advertised under another address: they lead what they take."""
    for row, where in _places(capture, span.rows):
        broker = int(capture.broker[row])
        if broker not in node_of and where in leader_of and leader_of[where] not in node_of.values():
            node_of[broker] = leader_of[where]


def _places(capture: CaptureFrame, rows: np.ndarray) -> list[tuple[int, tuple[str, int]]]:
    """(exchange, its topic-partition) of exchanges that name one."""
    owner, place = capture.partitions.owner, capture.partitions.topic_partition
    parts = spill.where(len(owner), lambda block: arrow.among(owner[block], rows))
    _, first, counts = np.unique(owner[parts], return_index=True, return_counts=True)
    single = parts[first[counts == 1]]
    pairs = zip(owner[single].tolist(), place[single].tolist(), strict=True)
    return [(row, capture.topic_partitions[number]) for row, number in pairs]


def culprit(capture: CaptureFrame, span: SlowSpan) -> Culprit:
    """The broker that made leaders wait, by the strongest evidence there is."""
    own, cluster = own_latency(capture), _cluster(capture, span)
    usual = _usual(capture, own, span.slow)
    return (
        _by_fetches(capture, span, cluster, usual)
        or _by_plain_writes(capture, span, cluster, own, usual)
        or _by_sets(capture, span, cluster, own, usual)
        or Culprit(
            None,
            "a replica of their in-sync sets fetches or appends late",
            "which one cannot be told from here",
            is_guess=True,
        )
    )


def _usual(capture: CaptureFrame, own: np.ndarray, rows: Sequence[int] | np.ndarray) -> float:
    """The median over seconds of the medians of the answers in each: a burst of queued requests counts once."""
    rows = np.asarray(rows, np.int64)
    seconds = rows_by_key(rows, capture.exchanges.response_end[rows] // SECOND)
    return float(np.median([np.median(own[some]) for some in seconds.values()]))


def _by_fetches(capture: CaptureFrame, span: SlowSpan, cluster: _Cluster, usual: float) -> Culprit | None:
    """By followers' fetches: who takes long from an answer with records to its next request appends slowly; where
    answers without records take as long, it is the way between them."""
    rows = capture.exchanges
    nodes: dict[int, int] = {}
    for client, (_, named) in enumerate(capture.clients):
        matched = _FETCHER.match(named or "")
        if matched and matched[1]:
            nodes[client] = int(matched[1])
    if not nodes:
        return None
    fetches = capture.of_api(api_keys.FETCH)
    fetches = fetches[arrow.among(capture.client[fetches], list(nodes))]
    fetches = fetches[(rows.request_time[fetches] >= span.begin) & (rows.request_time[fetches] <= span.end)]
    fetches = fetches[np.lexsort((rows.exchange[fetches], rows.link[fetches]))]
    if len(fetches) < 2 * _FEW:
        return None
    before, after = fetches[:-1], fetches[1:]
    pairs = (rows.link[before] == rows.link[after]) & (rows.response_end[before] != NULL)
    before, pause = before[pairs], (rows.request_time[after] - rows.response_end[before])[pairs]
    brought = _brought(capture, before)
    filled, empty = (
        _pauses(capture, nodes, before[brought], pause[brought]),
        _pauses(capture, nodes, before[~brought], pause[~brought]),
    )
    slow = {node: late for (node, _), late in filled.items() if late >= usual / (2 * _FASTER)}
    if not slow:
        return None
    way = {pair: late for pair, late in empty.items() if late >= usual / (2 * _FASTER)}
    if way:
        common = set.intersection(*({node, cluster.node_of.get(broker, -1)} for node, broker in way))
        if len(common) == 1 and len(empty) > len(way):
            (node,) = common
            reason = f"fetches on the way to and from it take {lasting(max(way.values()))} even without records"
            return Culprit(cluster.labels.get(node), "the network between it and the other brokers", reason, True)
        return Culprit(None, "the network between the brokers", "followers' fetches without records take as long", True)
    node = max(slow, key=lambda key: slow[key])
    others = [late for (other, _), late in filled.items() if other != node]
    if others and slow[node] < _FASTER * max(others):
        return None
    reason = f"it takes {lasting(slow[node])} from an answer with records to its next fetch"
    return Culprit(cluster.labels.get(node), "its disk: it appends late what it fetched in time", reason, True)


def _brought(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: fetches that brought records."""
    owner, amount = capture.partitions.owner, capture.table("partitions").numbers("record_bytes")
    filled = spill.where(len(owner), lambda block: amount[block] > 0)
    return arrow.among(rows, arrow.distinct(owner[filled]))


def _pauses(
    capture: CaptureFrame, nodes: dict[int, int], rows: np.ndarray, pause: np.ndarray
) -> dict[tuple[int, int], float]:
    """Median pause between an answer and the next request, by follower's node id and leader's broker."""
    by_pair: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, late in zip(rows.tolist(), pause.tolist(), strict=True):
        by_pair[nodes[int(capture.client[row])], int(capture.broker[row])].append(late)
    return {pair: float(np.median(late)) for pair, late in by_pair.items() if len(late) >= _FEW}


def _by_plain_writes(
    capture: CaptureFrame, span: SlowSpan, cluster: _Cluster, own: np.ndarray, usual: float
) -> Culprit | None:
    """By Produce with acks=1 in the same span: a leader that is slow with that, and others are not, is slow itself."""
    rows = span.prompt[capture.exchanges.api[span.prompt] == api_keys.PRODUCE]
    prompt_us = {
        broker: _usual(capture, own, some)
        for (broker,), some in rows_by_key(rows, capture.broker[rows]).items()
        if len(some) >= _FEW
    }
    slow = [broker for broker, late in prompt_us.items() if late >= usual / _FASTER]
    if len(slow) != 1:
        return None
    name = _label(capture, cluster, slow[0])
    return Culprit(
        name, "its disk: it appends late", f"Produce with acks=1 takes {lasting(prompt_us[slow[0]])} there", True
    )


def _by_sets(capture: CaptureFrame, span: SlowSpan, cluster: _Cluster, own: np.ndarray, usual: float) -> Culprit | None:
    """By the in-sync sets: who is in all slow ones and in none that is prompt, or left them; of several the leader that
    is the slowest by far; or the one leader whose sets alone are slow."""
    place_of = dict(_places(capture, span.rows))
    by_place: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row, where in place_of.items():
        by_place[where].append(row)
    median = {where: _usual(capture, own, some) for where, some in by_place.items() if len(some) >= _FEW}
    slow = {where for where, late in median.items() if late >= usual / 2}
    prompt = {where for where, late in median.items() if late < usual / _FASTER}
    sets = [cluster.in_sync[where] for where in slow if cluster.in_sync.get(where)]
    common = frozenset.intersection(*sets) if sets else frozenset()
    gone = common & cluster.left
    if len(gone) == 1:
        (node,) = gone
        return Culprit(cluster.labels.get(node), "it fetches or appends late", "it left in-sync sets then")
    leaders = {
        int(broker): _usual(capture, own, some)
        for (broker,), some in rows_by_key(span.rows, capture.broker[span.rows]).items()
        if len(some) >= _FEW
    }
    cleared = frozenset().union(*(cluster.in_sync.get(where, frozenset()) for where in prompt))
    suspects = common - cleared
    if len(suspects) == 1:
        (node,) = suspects
        reason = f"of all brokers it alone is in each of {count(len(sets), 'slow in-sync set')}"
        return Culprit(cluster.labels.get(node), "it fetches or appends late", reason)
    late_leaders = [broker for broker, late in leaders.items() if late >= usual / _FASTER]
    if common and not suspects and len(late_leaders) == 1 and len(leaders) > 1:
        reason = "only the partitions that it leads are slow"
        return Culprit(
            _label(capture, cluster, late_leaders[0]), "its disk, or the way from its followers to it", reason
        )
    return _slowest_leader(capture, span, cluster, leaders, common)


def _slowest_leader(
    capture: CaptureFrame, span: SlowSpan, cluster: _Cluster, leaders: dict[int, float], common: frozenset[int]
) -> Culprit | None:
    """The leader whose own Produce requests take longest by far: its disk makes others wait as a follower's."""
    # Each broker that may be the slow one has to be among the leaders that are compared.
    measured = {cluster.node_of.get(broker) for broker in leaders}
    if len(leaders) < 2 or (common - measured if common else len(leaders) < 3):
        return None
    first, second = sorted(leaders, key=lambda broker: -leaders[broker])[:2]
    waited = capture.exchanges.response_end[span.rows] - capture.exchanges.request_time[span.rows]
    whole = {broker: float(np.median(waited[capture.broker[span.rows] == broker])) for broker in leaders}
    node = cluster.node_of.get(first)
    if leaders[first] < _SLOWEST * leaders[second] or max(whole, key=lambda broker: whole[broker]) != first:
        return None
    if common and node not in common:
        return None
    reason = "it is in each slow in-sync set, and " if common else ""
    reason += f"where it leads they take longest ({lasting(leaders[first])} at the median, {lasting(leaders[second])} "
    reason += f"at {_label(capture, cluster, second)})"
    cause = "its disk: it appends late, as leader and as follower"
    return Culprit(_label(capture, cluster, first), cause, reason, is_guess=True)


def _label(capture: CaptureFrame, cluster: _Cluster, broker: int) -> str:
    """`host:port` of a captured broker."""
    return cluster.labels.get(cluster.node_of.get(broker, -1), capture.brokers[broker])


@rule(
    "latency",
    "replication-slow",
    "warning",
    "Produce with acks=all took 0.8 s (median of 120, the longest 2.5 s) at 3 brokers from 10:01:03 to 10:01:23, and "
    "4 clients waited, for 10.0.0.1:9092: where it leads they take longest. Other requests took 1.0 ms there.",
    why="With three replicas the usual wait is 2 ms, and on an overloaded machine of two cores 80 ms; a fifth of a "
    "second, and ten times what the same brokers take for what needs no replica, is a replica's.",
    suppressed_when="Fewer than 10 slow answers of one leader, or all within 3 s, or fewer than half of its answers; "
    "nothing to compare with at those brokers, or that is as slow: a broker that is slow as a whole is none whose "
    "replicas are. What a broker that stood still made wait is told by broker-stall. No broker is named where several "
    "may be the slow one. A note: the median is below half a second, and no broker is known for it by more than "
    "leaders' medians: all brokers of a busy machine are so.",
    advice="Look at that broker's disk first (flush time, utilisation), then at its network to the other brokers; "
    "kafka-topics.sh --describe --under-replicated-partitions names it once it falls behind.",
    evidence="slow-disk-2; forged: acks=-1 at 600 ms beside Heartbeats at 4 ms, and beside Heartbeats at 100 ms; a "
    "slow follower that an in-sync set shows, a leader's own disk, followers' fetches; a stall",
    slow_ms=200,
    visible_ms=500,
    factor=10,
    answers=10,
    compared=3,
    over_s=3,
    by_clock=True,
)
def replication_slow(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    own = own_latency(capture) if slow_spans(capture) else np.zeros(0, np.int64)
    for span in slow_spans(capture):
        guilty = culprit(capture, span)
        slow = span.slow
        leaders = [capture.brokers[broker] for broker in arrow.distinct(capture.broker[slow]).tolist()]
        clients = arrow.distinct(capture.client[slow])
        prompt_us = own[span.prompt] - np.maximum(capture.column("hold_us")[span.prompt], 0)
        text = (
            f"Produce with acks=all took {lasting(float(np.median(own[slow])))} (median of {len(slow):,}, the longest "
        )
        text += f"{lasting(int(own[slow].max()))}) at {listed(leaders[:3], len(leaders))} from {moment(span.begin)} to "
        text += f"{moment(span.end)}, and {count(len(clients), 'client')} waited"
        if guilty.broker is not None:
            text += f", for {guilty.broker}: {guilty.reason}. "
        else:
            text += f", for a replica: {guilty.reason}. "
        text += f"Other requests took {lasting(float(np.median(prompt_us)))} there."
        waited = capture.exchanges.response_end[slow] - capture.exchanges.request_time[slow]
        yield Match(
            text,
            len(slow),
            span.begin,
            span.end,
            {} if guilty.broker is None else {"broker": guilty.broker},
            {"api": "Produce", "leaders": ",".join(leaders), "clients": str(len(clients))},
            (int(slow[0]), int(slow[waited.argmax()]), int(slow[-1])),
            cause=guilty.cause,
            proven=guilty.proven,
            severity="note" if guilty.is_guess and np.median(own[slow]) < at.visible_ms * 1000 else None,
        )
