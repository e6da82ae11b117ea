"""Find causes that explain matches of other rules: a broker that went away, leaders that moved.

In: a capture point. Out: rules of their own, and what they explain. Rule: within ten seconds of the cause; a client
whose broker dies sees resets, moved leaders and coordinators, and asks for metadata, and all of that is one thing.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer.common.leader_epochs import Epochs
from kwire.analyzer.findings.capture import SECOND, UNANSWERED, Attempt, CaptureFrame, once
from kwire.analyzer.findings.rules import RULES, Limits, Match, limits_of, rule
from kwire.analyzer.findings.wording import count, listed, moment, partition_name, some
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import rows_by_key, split
from kwire.analyzer.protocol import api_keys

REMOVED: Mapping[int, int] = {
    0: 3,
    1: 4,
    2: 1,
    8: 2,
    9: 1,
    19: 2,
    20: 1,
    23: 2,
    27: 1,
    29: 1,
    30: 1,
    31: 1,
    32: 1,
    34: 1,
    35: 1,
    38: 1,
    39: 1,
    40: 1,
    41: 1,
    56: 2,
    76: 1,
    77: 1,
    78: 1,
    79: 1,
}
"""Lowest version of an API that Kafka 4.0 to 4.4 takes, where it is not 0 (KIP-896). Not what ApiVersions says: 4.x
offers Produce from 0 on, for old librdkafka's sake (KAFKA-18659), and refuses 0 to 2."""

AROUND_US = 10 * SECOND
"""Clients refresh their metadata after 0.1 to 1 s, reconnect within 10 s, and rejoin within that."""

_TOGETHER_US = SECOND


class Loss(NamedTuple):
    """A lost broker: when its first connection broke off, us; and these connections."""

    broker: int
    time: int
    links: np.ndarray


@once
def losses(capture: CaptureFrame) -> list[Loss]:
    """Lost brokers: connections of two clients or more broke off within a second, the broker sent nothing for a second
    after, and others led its partitions then, or those clients came back to it."""
    return list(_losses(capture))


def _losses(capture: CaptureFrame) -> Iterator[Loss]:
    ended, first, unready = capture.link_times("last_time"), capture.link_times("first_time"), _unready(capture)
    closed = np.array([end != "open" for end in capture.closed], bool) & (ended != NULL)
    closed &= ~capture.one_way  # of a broker that is not heard nobody knows when it was silent
    closed &= ~_first_connections(capture)
    by_others = ~capture.links_where("closed_by", "client")
    answered = capture.exchanges.response_end
    answered_by: dict[tuple[int, ...], np.ndarray] = {}  # a broker's exchanges, once somebody asks
    order = np.argsort(capture.broker_of, kind="stable")
    bounds = np.searchsorted(capture.broker_of[order], np.arange(len(capture.brokers) + 1)).tolist()
    for broker, (begin, end) in enumerate(pairwise(bounds)):
        every = order[begin:end]
        links = every[closed[every]]
        links = links[np.argsort(ended[links], kind="stable")]
        times, client = ended[links], capture.client_of[links]
        past = np.searchsorted(times, times + _TOGETHER_US, side="right")
        # Of each connection and those that ended within a second: whether they are several clients', and one broke off.
        changes = np.flatnonzero(client[1:] != client[:-1]) + 1
        other = np.append(changes, len(links))[np.searchsorted(changes, np.arange(len(links)), side="right")]
        broken = np.append(0, np.cumsum(unready[links]))
        crowds = (other < past) & (broken[past] > broken[:-1])
        if not crowds.any():
            continue
        # Connections that stayed open, and talk on, are those of a broker that lives.
        if not answered_by:
            answered_rows = spill.where(len(answered), lambda block: answered[block] != NULL)
            answered_by = rows_by_key(answered_rows, spill.take(capture.broker, answered_rows))
        answers = np.sort(answered[answered_by.get((broker,), links[:0])])
        last = times[past - 1]
        after = np.searchsorted(answers, last, side="right")
        quiet = np.append(answers, _NEVER)[after] > last + SECOND
        opened = every[np.argsort(first[every], kind="stable")]
        back_from = np.searchsorted(first[opened], last + SECOND, side="right")
        back_until = np.searchsorted(first[opened], last + _BACK_US, side="left")
        crowd = _Crowd(client.tolist(), capture.client_of[opened].tolist())
        known = 0
        for at in np.flatnonzero(crowds & quiet).tolist():
            if at < known:
                continue
            if last[at] + SECOND > capture.span[1] and not by_others[links[at : int(past[at])]].any():
                continue  # clients that left as the capture ended
            # Clients that run one after the other are no crowd: those who come back were there together.
            back = crowd.back((at, int(past[at])), (int(back_from[at]), int(back_until[at])))
            if back >= 2 or _led_elsewhere(capture, int(times[at])):
                known = int(past[at])
                yield Loss(broker, int(times[at]), links[at:known])


_BACK_US = 60 * SECOND
"""A client that reconnects within this time, after a second or more, had not meant to leave."""

_NEVER = (1 << 63) - 1


class _Crowd:
    """Clients of connections that ended and began, in order; both spans only advance, so that all queries together take
    time in proportion to the connections."""

    def __init__(self, ended: Sequence[int], began: Sequence[int]) -> None:
        self._sides = ended, began
        self._spans = [(0, 0), (0, 0)]
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        self._both = 0

    def back(self, ended: tuple[int, int], began: tuple[int, int]) -> int:
        """Number of clients with connections in both spans."""
        self._move(0, *ended)
        self._move(1, *began)
        return self._both

    def _move(self, side: int, begin: int, end: int) -> None:
        clients, counts, others = self._sides[side], self._counts[side], self._counts[1 - side]
        before, until = self._spans[side]
        for client in clients[until:end]:
            counts[client] += 1
            self._both += counts[client] == 1 and others[client] > 0
        for client in clients[before:begin]:
            counts[client] -= 1
            self._both -= counts[client] == 0 and others[client] > 0
        self._spans[side] = begin, max(end, until)


_FIRST = (
    api_keys.API_VERSIONS,
    api_keys.METADATA,
    api_keys.SASL_HANDSHAKE,
    api_keys.SASL_AUTHENTICATE,
    api_keys.GET_TELEMETRY_SUBSCRIPTIONS,
)
"""APIs of a client's first connection, which it leaves once it knows the brokers."""


def _first_connections(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: closed in order, with no other requests than those of first connections: clients leave them, maybe
    with a question open."""
    others = np.zeros(len(capture.closed), bool)
    for block in spill.blocks(len(capture.exchanges.link)):
        api = capture.exchanges.api[block]
        others[capture.exchanges.link[block][~arrow.among(api, _FIRST)]] = True
    in_order: np.ndarray = np.array([end == "fin" for end in capture.closed], bool)
    result: np.ndarray = in_order & ~others
    return result


def _led_elsewhere(capture: CaptureFrame, time: int) -> bool:
    """Whether leaders moved within ten seconds."""
    return _near(_move_times(capture), time, time)


@once
def _move_times(capture: CaptureFrame) -> np.ndarray:
    return np.array(sorted(move.time for move in moves(capture)), np.int64)


def _unready(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: the connection broke off with a request open, or by a reset. A request without an answer alone shows
    no lost broker, because the capture may have lost the answer."""
    reset = np.array([end == "rst" for end in capture.closed], bool)
    open_ = capture.exchanges.link[capture.exchanges.status == UNANSWERED]
    broken: np.ndarray = reset | (arrow.among(np.arange(len(reset)), arrow.distinct(open_)) & capture.unbroken)
    return broken


class Move(NamedTuple):
    """A partition whose leader changed; time us."""

    time: int
    topic_partition: tuple[str, int]
    before: int | None
    after: int | None


def leaders_in_time(capture: CaptureFrame, columns: list[str]) -> list[dict[str, Any]]:
    """Rows of `leaders` in order of time, which is one of the columns. Answers on connections with gaps come late in
    the table."""
    return sorted(capture.table("leaders").every(columns), key=lambda row: NULL if row["time"] is None else row["time"])


@once
def moves(capture: CaptureFrame) -> list[Move]:
    """Changes of leaders whose previous leader was captured."""
    known: dict[tuple[str, int, str | None], int | None] = {}
    current = Epochs()
    moves_seen = []
    columns = ["time", "topic", "topic_id", "partition", "leader", "leader_epoch"]
    for row in leaders_in_time(capture, columns):
        if current.passed(row["topic"], row["topic_id"], row["partition"], row["leader_epoch"]):
            continue
        topic = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"]) or ""
        # Another topic of that name has leaders of its own.
        partition = topic, row["partition"], row["topic_id"] if topic in capture.remade else None
        if partition in known and known[partition] != row["leader"]:
            moves_seen.append(Move(row["time"], partition[:2], known[partition], row["leader"]))
        known[partition] = row["leader"]
    return moves_seen


@once
def times(capture: CaptureFrame) -> np.ndarray:
    """Sorted times of lost brokers and moved leaders, us."""
    moments = [loss.time for loss in losses(capture)] + [move.time for move in moves(capture)]
    return np.array(sorted(moments), np.int64)


def near(capture: CaptureFrame, since: int, until: int) -> bool:
    """Whether a broker was lost or a leader moved within ten seconds of a time."""
    return _near(times(capture), since, until)


def near_each(capture: CaptureFrame, when: np.ndarray) -> np.ndarray:
    """bool[n]: like `near`, for each of these times."""
    causes = np.append(times(capture), np.iinfo(np.int64).max)
    result: np.ndarray = causes[np.searchsorted(causes, when - AROUND_US)] <= when + AROUND_US
    return result


def _near(causes: np.ndarray, since: int, until: int) -> bool:
    """Whether one of the sorted times is within ten seconds of a time."""
    at = int(np.searchsorted(causes, since - AROUND_US))
    return at < len(causes) and int(causes[at]) <= until + AROUND_US


def explained_links(capture: CaptureFrame) -> np.ndarray:
    """bool[links]: the connection broke off with its broker."""
    out = np.zeros(len(capture.links), bool)
    for loss in losses(capture):
        out[loss.links] = True
    return out


def explained(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """bool[rows]: the exchange's connection broke off with its broker."""
    marked: np.ndarray = explained_links(capture)[capture.exchanges.link[rows]]
    return marked


def unreachable(capture: CaptureFrame) -> dict[str, list[Attempt]]:
    """Failed attempts by end point that metadata advertises and no client is connected to."""
    by_server: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in capture.attempts:
        if attempt.server in _elsewhere(capture):
            by_server[attempt.server].append(attempt)
    return by_server


def end_point(host: str | None, port: int | None) -> str:
    """`host:port`, as brokers are called."""
    return f"[{host}]:{port}" if ":" in (host or "") else f"{host}:{port}"


def has_brokers_elsewhere(capture: CaptureFrame) -> bool:
    """Whether Metadata names brokers without a captured connection."""
    return bool(_elsewhere(capture))


@once
def _elsewhere(capture: CaptureFrame) -> set[str]:
    """End points that Metadata names, and no client was connected to."""
    rows = capture.table("brokers").every(["host", "port"])
    stated = {end for row in rows for end in ends_of(row["host"], row["port"])}
    return stated - set(capture.brokers)


def ends_of(host: str | None, port: int | None) -> frozenset[str]:
    """End points that an advertised address may be, as connections have them."""
    hosts = _LOCALHOST if host == "localhost" else (host,)
    return frozenset(end_point(address, port) for address in hosts)


_LOCALHOST = ("127.0.0.1", "::1")


def outcome(some: list[Attempt]) -> str:
    """`12 refused, 2 unanswered`."""
    counts = {
        "refused": sum(attempt.refused for attempt in some),
        "unanswered": sum(attempt.unanswered for attempt in some),
    }
    return ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)


@once
def refused_versions(capture: CaptureFrame) -> np.ndarray:
    """Exchanges without an answer whose version the broker does not offer, by its own ApiVersions; where nobody asked
    it, by those of the other brokers, if they agree; where nobody asked any, in versions that Kafka 4.0 removed, if
    the broker closed each connection on them."""
    rows = spill.true_rows(capture.exchanges.status == UNANSWERED)
    if not len(rows):
        return rows
    offers = _offers(capture)
    if not offers:
        return _closed_on_removed(capture, rows)
    refused = [rows[:0]]
    offering = {broker for broker, _ in offers}
    for group_rows in split(rows, capture.broker[rows], capture.exchanges.api[rows]):
        api, version = int(capture.exchanges.api[group_rows[0]]), capture.exchanges.version[group_rows]
        broker = capture.brokers[capture.broker[group_rows[0]]]
        lowest, highest = offers.get((broker, api), (0, 1 << 15))
        others = {offer for (_, key), offer in offers.items() if key == api}
        if broker not in offering and len(others) == 1:
            lowest, highest = next(iter(others))
        if api != api_keys.API_VERSIONS:
            refused.append(group_rows[(version < lowest) | (version > highest)])
    return np.sort(np.concatenate(refused))


def tells_versions(capture: CaptureFrame) -> bool:
    """Whether the capture has what any broker offers."""
    return len(capture.table("api_versions")) > 0


_CLOSES = 3
"""Connections that a broker closed on a version, from which on it is not chance."""


def _closed_on_removed(capture: CaptureFrame, rows: np.ndarray) -> np.ndarray:
    """Of exchanges without an answer those in versions that Kafka 4.0 removed, where the broker never answers such a
    version and closed each of several connections on it."""
    exchanges, refused = capture.exchanges, [rows[:0]]
    closed = capture.links_where("closed_by", "broker") & capture.links_where("closed_after", "request")
    for group_rows in split(rows, capture.broker[rows], exchanges.api[rows], exchanges.version[rows]):
        broker, api, version = (
            int(column[group_rows[0]]) for column in (capture.broker, exchanges.api, exchanges.version)
        )
        if version >= REMOVED.get(api, 0) or not closed[exchanges.link[group_rows]].all():
            continue
        same = (capture.broker == broker) & (exchanges.api == api) & (exchanges.version == version)
        if len(arrow.distinct(exchanges.link[group_rows])) >= _CLOSES and same.sum() == len(group_rows):
            refused.append(group_rows)
    return np.sort(np.concatenate(refused))


@once
def oversized(capture: CaptureFrame) -> np.ndarray:
    """Requests larger than the brokers' default limit, after which the connection was closed."""
    least = 4 + limits_of(RULES["frame-oversized"], capture.query).bytes  # with its length
    rows = capture.left_open
    if not len(rows) or capture.greatest("request_bytes") <= least:
        return rows[:0]
    closed = np.array([end != "open" for end in capture.closed], bool)
    link = capture.exchanges.link[rows]
    result: np.ndarray = rows[(capture.column("request_bytes")[rows] > least) & (closed & capture.whole)[link]]
    return result


def _offers(capture: CaptureFrame) -> dict[tuple[str, int], tuple[int, int]]:
    """Versions that brokers offered last, by broker and API."""
    table = capture.table("api_versions")
    if not len(table):
        return {}
    numbers = dict.fromkeys(("api_key", "min", "max"), np.int64)
    read = table.pop(numbers, ["broker"])
    (broker, brokers), columns = read.text("broker"), [read[name] for name in numbers]
    by_broker = grouping.group(broker, columns[0])
    last = by_broker.order[by_broker.ends - 1]
    last = last[broker[last] >= 0]
    each = zip(broker[last].tolist(), *(column[last].tolist() for column in columns), strict=True)
    offers = {(brokers[code], api): (low, high) for code, api, low, high in each}
    for (name, api), (low, high) in list(offers.items()):
        fetches = offers.get((name, api_keys.FETCH), (0, 0))[0]
        if api == api_keys.PRODUCE and fetches >= _FETCH_SINCE_4:
            offers[name, api] = max(low, _PRODUCE_SINCE_4), high
    return offers


_FETCH_SINCE_4, _PRODUCE_SINCE_4 = 4, 3
"""The lowest versions that Kafka 4 takes. It offers Produce from 0 on, for old librdkafka's sake (KAFKA-18659)."""


def _by_node(capture: CaptureFrame, known: list[Loss]) -> Iterator[tuple[Loss, list[Loss]]]:
    """Yield losses, each with those of other listeners of its node: ones of the same address at that second at which
    only brokers and controllers were connected."""

    def host(loss: Loss) -> str:
        return capture.brokers[loss.broker].rpartition(":")[0]

    inner = [bool(capture.between_brokers[capture.client_of[loss.links]].all()) for loss in known]
    nodes: dict[int, list[Loss]] = {at: [] for at, is_inner in enumerate(inner) if not is_inner}
    for at, loss in enumerate(known):
        if not inner[at]:
            continue
        near = [
            other
            for other in nodes
            if host(known[other]) == host(loss) and abs(known[other].time - loss.time) <= 2 * _TOGETHER_US
        ]
        if near:
            nodes[min(near, key=lambda other: abs(known[other].time - loss.time))].append(loss)
        else:
            nodes[at] = []
    for at in sorted(nodes):
        yield known[at], nodes[at]


@rule(
    "cluster",
    "broker-lost",
    "warning",
    "10.0.0.1:9092 went away at 10:01:03: 7 connections of 4 clients broke off, 5 requests had no answer, leaders of "
    "6 partitions moved.",
    why="Two clients' connections that break off within a second, and a broker that is silent after, are no "
    "accident of one client.",
    suppressed_when="The connections ended in order with nothing open, or were first connections, on which clients ask "
    "for Metadata and leave; the broker went on answering within a second; one direction of them only was captured. "
    "Listeners of the same address where only brokers were connected are told with the one of the clients. How many "
    "requests had no answer is not told of connections with holes, nor where packets are missing at all: what was lost "
    "at a connection's end leaves no hole.",
    advice="Read that broker's log at that second; a planned restart is meant to be orderly.",
    evidence="cluster-kraft-3.9 and cluster-zk-2.8 (SIGKILL of a leader); clients that leave in order say nothing",
    by_clock=True,
)
def broker_lost(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    known = losses(capture)
    if not known:
        return
    silent = capture.left_open
    silent_of, in_time = (
        rows_by_key(silent, capture.exchanges.link[silent]),
        sorted(moves(capture), key=lambda move: move.time),
    )
    for loss, listeners in _by_node(capture, known):
        clients = {int(capture.client_of[link]) for link in loss.links.tolist()}
        unanswered = [silent_of[link,] for link in loss.links.tolist() if (link,) in silent_of]
        rows = np.sort(np.concatenate([silent[:0], *unanswered]))
        open_ = len(rows)
        begin = bisect.bisect_left(in_time, loss.time - AROUND_US, key=lambda move: move.time)
        moved = in_time[begin : bisect.bisect_right(in_time, loss.time + AROUND_US, key=lambda move: move.time)]
        text = f"{capture.brokers[loss.broker]} went away at {moment(loss.time)}"
        also = [capture.brokers[other.broker] for other in listeners]
        text += f" (and {some(also)}, where only brokers were connected): " if also else ": "
        text += f"{count(len(loss.links), 'connection')} of {count(len(clients), 'client')} broke off"
        text += f", {count(open_, 'request')} had no answer" * bool(open_)
        text += f", leaders of {count(len({m.topic_partition for m in moved}), 'partition')} moved" * bool(moved)
        places = (int(rows[0]), int(rows[0]), int(rows[-1])) if len(rows) else ()
        yield Match(
            text + ".",
            len(loss.links),
            loss.time,
            loss.time + AROUND_US,
            capture.who(broker=loss.broker),
            {"requests": str(open_), "partitions": str(len(moved))},
            places,
            links=(int(loss.links[0]), int(loss.links[-1])),
        )


@rule(
    "cluster",
    "leaders-moved",
    "note",
    "Leaders of 6 partitions moved between 10:01:03 and 10:01:05: orders-0, orders-1, orders-2 and 3 more.",
    why="A fact, which explains NOT_LEADER_OR_FOLLOWER and what follows it. A warning where the leader of a partition "
    "moved three times within a minute, and came back to a node that it had left: away and back is what a restart or a "
    "preferred election does, more is back and forth.",
    suppressed_when="Their broker went away then: broker-lost tells it. The topic was made anew, as its ids say.",
    advice="Nothing, where it was meant (a restart, a reassignment, a preferred election). Back and forth: something "
    "moves it again and again (a script, a balancer, a broker that comes and goes); see who reassigns.",
    evidence="cluster-*; captures of one broker say nothing; forged: a leader that moves three times in a minute, "
    "away and back",
    moves=3,
    window_s=60,
)
def leaders_moved(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    lost = np.array(sorted(loss.time for loss in losses(capture)), np.int64)
    rest = [move for move in moves(capture) if not _near(lost, move.time, move.time)]
    groups: dict[int, list[Move]] = defaultdict(list)
    last, key = None, 0
    for move in sorted(rest, key=lambda move: (move.time, move.topic_partition)):
        if last is None or move.time > last + AROUND_US:
            key = move.time
        groups[key].append(move)
        last = move.time
    restless = _back_and_forth(rest, int(at.moves), int(at.window_s * SECOND))
    if restless:
        yield _restless(restless)
    for moves_of in groups.values():
        moves_of = [move for move in moves_of if move.topic_partition not in restless]
        if not moves_of:
            continue
        places = sorted({move.topic_partition for move in moves_of})
        began, ended = moment(moves_of[0].time), moment(moves_of[-1].time)
        when = f"between {began} and {ended}" if began != ended else f"at {began}"
        whose = "Leaders" if len(places) > 1 else "The leader"
        names = some([partition_name(where) for where in places])
        text = f"{whose} of {count(len(places), 'partition')} moved {when}: {names}."
        yield Match(text, len(moves_of), moves_of[0].time, moves_of[-1].time, {}, {"partitions": str(len(places))})


def _back_and_forth(some_moves: list[Move], least: int, window: int) -> dict[tuple[str, int], list[Move]]:
    """Moves by topic-partition, of those that moved so often within a time (us), and back to a node that they had
    left."""
    by_place: dict[tuple[str, int], list[Move]] = defaultdict(list)
    for move in sorted(some_moves, key=lambda move: move.time):
        by_place[move.topic_partition].append(move)
    restless = {}
    for where, of_place in by_place.items():
        for begin in range(len(of_place) - least + 1):
            near = of_place[begin : begin + least]
            nodes = {move.after for move in near if move.after is not None} | {near[0].before}
            if near[-1].time - near[0].time <= window and len(nodes - {None}) <= least - 1:
                restless[where] = of_place
                break
    return restless


def _restless(restless: dict[tuple[str, int], list[Move]]) -> Match:
    """The match of leaders that move back and forth."""
    in_order = sorted(restless.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    every = [move for _, of_place in in_order for move in of_place]
    since, until = min(move.time for move in every), max(move.time for move in every)
    each = []
    for where, of_place in in_order[:3]:
        nodes = [of_place[0].before, *(move.after for move in of_place)]
        way = ", ".join("none" if node is None else str(node) for node in nodes[:6]) + ", ..." * (len(nodes) > 6)
        each.append(f"{partition_name(where)} {count(len(of_place), 'time')} (nodes {way})")
    whose = "Leaders" if len(in_order) > 1 else "The leader"
    text = f"{whose} of {count(len(in_order), 'partition')} moved back and forth between {moment(since)} and "
    text += f"{moment(until)}: {listed(each, len(in_order))}."
    topic, partition = in_order[0][0]
    place = {"topic": topic, "partition": str(partition)} if len(in_order) == 1 else {}
    return Match(
        text,
        len(every),
        since,
        until,
        {},
        {"partitions": str(len(in_order)), **place},
        severity="warning",
        cause="something moves the leader again and again",
        proven=False,
    )
