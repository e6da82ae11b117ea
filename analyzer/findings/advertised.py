"""Addresses that brokers advertise: those that clients cannot reach, and one that stands for several brokers.

A client asks a bootstrap address for Metadata, and then connects to the addresses in the answer. What it was told and
did not follow is told here. A capture shows addresses, and answers may hold names: whether a name leads to an end point
is told by what was done there.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import ANSWERED, NO_CODE, SECOND, SILENT, Attempt, CaptureFrame, api_name, once
from kwire.analyzer.findings.error_answers import EXPLANATIONS
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.runs import Trouble
from kwire.analyzer.findings.wording import client, count, lasting, listed, name, share, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import max_by, rows_by_key
from kwire.analyzer.protocol import api_keys, errors

_BOOTSTRAP = (
    api_keys.API_VERSIONS,
    api_keys.METADATA,
    api_keys.SASL_HANDSHAKE,
    api_keys.SASL_AUTHENTICATE,
    api_keys.FIND_COORDINATOR,
    api_keys.DESCRIBE_CLUSTER,
    api_keys.GET_TELEMETRY_SUBSCRIPTIONS,
    api_keys.INIT_PRODUCER_ID,
)
"""APIs that any broker answers: a client that uses no other has not begun to work. InitProducerId is one without a
transactional id."""
_OF_LEADERS = (
    api_keys.PRODUCE,
    api_keys.FETCH,
    api_keys.LIST_OFFSETS,
    api_keys.OFFSET_FOR_LEADER_EPOCH,
    api_keys.DELETE_RECORDS,
)
_OF_COORDINATORS = (
    api_keys.JOIN_GROUP,
    api_keys.SYNC_GROUP,
    api_keys.HEARTBEAT,
    api_keys.LEAVE_GROUP,
    api_keys.OFFSET_COMMIT,
    api_keys.OFFSET_FETCH,
    api_keys.CONSUMER_GROUP_HEARTBEAT,
    api_keys.SHARE_GROUP_HEARTBEAT,
    api_keys.STREAMS_GROUP_HEARTBEAT,
    api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.ADD_OFFSETS_TO_TXN,
    api_keys.END_TXN,
    api_keys.TXN_OFFSET_COMMIT,
)


class Address(NamedTuple):
    """An advertised address. by: the end points whose answers had it; nodes: ids of the nodes that it was said to be;
    is_shared: one answer gave it to several."""

    host: str
    port: int
    by: frozenset[str]
    nodes: frozenset[int]
    is_shared: bool

    @property
    def text(self) -> str:
        """`host:port`."""
        return root_causes.end_point(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or _is_loopback(self.host)

    @property
    def is_name(self) -> bool:
        """Whether it is a name, whose address a capture does not show."""
        return not self.is_loopback and _address(self.host) is None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_loopback


@once
def addresses(capture: CaptureFrame) -> list[Address]:
    """The addresses that answers sent clients to."""
    by: dict[tuple[str, int], list[Mapping[str, object]]] = defaultdict(list)
    for entry in capture.entry.get("advertised", ()):
        by[entry["host"], entry["port"]].append(entry)
    return [
        Address(
            host,
            port,
            frozenset(str(entry["broker"]) for entry in entries),
            frozenset(node for entry in entries for node in entry["nodes"]),  # type: ignore[attr-defined]
            any(entry["shared"] for entry in entries),
        )
        for (host, port), entries in by.items()
        if host and port > 0
    ]


class _Client(NamedTuple):
    """A client, the end points that sent it on, and its requests after that.

    number       in `CaptureFrame.clients`
    informed_at  when an answer first named brokers to it, us
    by           the end points that answered so
    asks         times of its further requests for topics or a coordinator that were answered
    topics       of these requests
    ends         end points that it connected to
    worked       it got an answer to a request that only the right broker answers
    served       nodes whose partitions it wrote or read
    moved_on     ports of connections, opened after that, on which it asked for Metadata twice or more
    waits        it asked for topics, and stays connected without another request
    """

    number: int
    informed_at: int
    by: frozenset[str]
    asks: tuple[int, ...]
    topics: frozenset[str]
    ends: frozenset[str]
    worked: bool
    served: frozenset[int]
    moved_on: frozenset[int]
    waits: bool


@once
def _clients(capture: CaptureFrame) -> list[_Client]:
    """Clients that Metadata told of brokers."""
    rows = capture.exchanges
    metadata = capture.of_one(capture.of_api(api_keys.METADATA))
    metadata = metadata[(rows.status[metadata] == ANSWERED) & (rows.response_end[metadata] != NULL)]
    metadata = metadata[~capture.between_brokers[capture.client[metadata]]]
    if not len(metadata):
        return []
    asks = capture.of_api(api_keys.METADATA, api_keys.FIND_COORDINATOR)
    asks = asks[(rows.status[asks] == ANSWERED) & (rows.error[asks] == 0) & (rows.request_time[asks] != NULL)]
    topics_of = _topics(capture, asks)
    asks_of = rows_by_key(np.arange(len(asks)), capture.client[asks])
    links_of = rows_by_key(np.arange(len(capture.client_of)), capture.client_of)
    work, known = _work(capture), []
    for (number,), told_rows in rows_by_key(metadata, capture.client[metadata]).items():
        informed_at = int(rows.response_end[told_rows].min())
        later = [at for at in asks_of.get((number,), _NONE).tolist() if rows.request_time[asks[at]] >= informed_at]
        of_coordinators = rows.api[asks[later]] == api_keys.FIND_COORDINATOR
        wanted = [at for at, other in zip(later, of_coordinators.tolist(), strict=True) if other or topics_of[at]]
        links = links_of.get((number,), _NONE)
        served = frozenset(work.served.get(number, ()))
        known.append(
            _Client(
                number,
                informed_at,
                frozenset(capture.brokers[at] for at in arrow.distinct(capture.broker[told_rows]).tolist()),
                tuple(sorted(int(rows.request_time[asks[at]]) for at in wanted)),
                frozenset(topic for at in wanted for topic in topics_of[at]),
                frozenset(capture.brokers[at] for at in arrow.distinct(capture.broker_of[links]).tolist()),
                bool(work.well[number]) or bool(served),
                served,
                _moved_on(capture, told_rows, informed_at),
                work.last_asked[number] <= informed_at and _waits(capture, links, told_rows, informed_at),
            )
        )
    return known


_NONE = np.zeros(0, np.int64)


def _topics(capture: CaptureFrame, rows: np.ndarray) -> list[list[str]]:
    """Topics that each exchange names."""
    topics: list[list[str]] = [[] for _ in rows]
    for places, part in capture.table("exchanges").chosen(rows, ["topics"]):
        for place, names in zip(places.tolist(), part.column(0).to_pylist(), strict=True):
            topics[place] = [capture.topic_names.get(topic, topic) for topic in names or () if topic]
    return topics


@once
def _leaders(capture: CaptureFrame) -> dict[tuple[str, int], set[int]]:
    """Nodes that led each topic-partition."""
    leaders: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in capture.table("leaders").every(["topic", "topic_id", "partition", "leader"]):
        topic = row["topic"] or capture.topic_names.get(row["topic_id"], row["topic_id"])
        if topic and row["leader"] is not None and row["leader"] >= 0:
            leaders[topic, row["partition"]].add(row["leader"])
    return leaders


def _only_leaders(capture: CaptureFrame) -> dict[tuple[str, int], int]:
    """The node that led a topic-partition all the time."""
    return {place: next(iter(nodes)) for place, nodes in _leaders(capture).items() if len(nodes) == 1}


class _Work(NamedTuple):
    """Work of clients, with a value for each in arrays.

    well        bool: a request that only the right broker answers got an answer
    last_asked  int64: time of the last request, us
    served      nodes whose partitions a client wrote or read, by its number; -1: of partitions whose leader changed
    """

    well: np.ndarray
    last_asked: np.ndarray
    served: dict[int, set[int]]


def _work(capture: CaptureFrame) -> _Work:
    """Return what every client did, in one pass over exchanges and one over their topic-partitions."""
    rows, parts = capture.exchanges, capture.partitions
    well = np.zeros(len(capture.clients), np.bool_)
    for block in spill.blocks(len(rows)):
        whose, error = capture.client[block], rows.error[block]
        good = ((error == 0) | (error == NO_CODE)) & (rows.status[block] <= SILENT)
        well[whose[good & ~arrow.among(rows.api[block], _BOOTSTRAP)]] = True
    pairs = []
    for block in spill.blocks(len(parts.owner)):
        owner, where = parts.owner[block], parts.topic_partition[block].astype(np.int64)
        good = (parts.error[block] == 0) & (rows.status[owner] <= SILENT) & arrow.among(rows.api[owner], _OF_LEADERS)
        pairs.append(arrow.distinct(where[good] << 32 | capture.client[owner[good]]))
    led_by = _only_leaders(capture)
    served: dict[int, set[int]] = defaultdict(set)
    for pair in arrow.distinct(np.concatenate([_NONE, *pairs])).tolist():
        served[pair & 0xFFFFFFFF].add(led_by.get(capture.topic_partitions[pair >> 32], -1))
    return _Work(well, max_by(capture.client, rows.request_time, len(capture.clients), NULL), served)


def _moved_on(capture: CaptureFrame, told_rows: np.ndarray, informed_at: int) -> frozenset[int]:
    """Ports of connections that were opened after a time, and on which Metadata was asked for twice or more."""
    opened = capture.link_times("first_time")
    links = Counter(capture.exchanges.link[told_rows].tolist())
    return frozenset(
        int(capture.brokers[capture.broker_of[link]].rpartition(":")[2])
        for link, times in links.items()
        if times > 1 and opened[link] != NULL and opened[link] > informed_at
    )


def _waits(capture: CaptureFrame, links: np.ndarray, told_rows: np.ndarray, informed_at: int) -> bool:
    """Whether a client that asked for topics, and then for nothing, stays connected for ten seconds."""
    if capture.span[1] - informed_at < _QUIET_US:
        return False
    ended = capture.link_times("last_time")[links]
    stays = [capture.closed[link] == "open" for link in links.tolist()] | (ended - informed_at >= _QUIET_US)
    return bool(stays.any()) and any(_topics(capture, told_rows))


_QUIET_US = 10 * SECOND


def _reached(at: Address, of: _Client, every: list[Address]) -> bool:
    """Whether a client may have reached an address; `every`: all that it was sent to."""
    if of.served & at.nodes or (of.worked and len(every) == 1):
        return True
    if not at.is_name:
        return bool(root_causes.ends_of(at.host, at.port) & of.ends)
    ports = {int(end.rpartition(":")[2]) for end in of.ends - of.by}
    is_alone = sum(other.port == at.port for other in every) == 1
    return (is_alone and at.port in ports) or (not of.worked and at.port in of.moved_on)


def _needs(capture: CaptureFrame, at: Address, of: _Client) -> bool:
    """Whether a client asked for a topic that a node at this address leads, or for a coordinator before it worked."""
    led = any(topic in of.topics and nodes & at.nodes for (topic, _), nodes in _leaders(capture).items())
    return led or (not of.worked and not of.topics and len(of.asks) > 0)


@rule(
    "cluster",
    "advertised-address-unreachable",
    "error",
    "Metadata of 10.0.0.1:9092 sends clients to 10.1.0.5:9092; in 40.0 s none of 3 clients that were told so (svc-a "
    "(10.0.0.4), svc-b (10.0.0.5), svc-c (10.0.0.6)) got a connection there: 14 tries, 14 unanswered.",
    why="Two tries that fail: a client waits 10 s for each, and one may be an accident. Where no try was captured (a "
    "name that nobody resolves leads to none), a warning: a client that was told where the leader is, does not go "
    "there, and asks for the same topic three times more, every five seconds or sooner, cannot; nor one that was told "
    "one address for all, and asks for nothing more in ten seconds, although it stays connected. So is an address of "
    "the loopback interface that a broker gives to another host, after five seconds without work.",
    suppressed_when="Somebody got a connection there (connect-failed then), or work was done that only that node does; "
    "those who ask need no partition of it; on a broker's own host, where the client resolves a name to both address "
    "families (connect-failed); where one of several addresses is not followed, clients of which the "
    "capture has connections to one end point only (it may lack the others); the broker went away (broker-lost).",
    advice="advertised.listeners: an address that clients resolve and reach, for each listener; in containers and "
    "clouds a listener for outside.",
    evidence="forged: an advertised address that refuses two SYNs, and one to which another client is connected; a "
    "name that clients do not follow, and one that they do; localhost told to another host, and on one host; one of "
    "three addresses, and one that nobody needs; real brokers with a name that nobody resolves",
    tries=2,
    asks=3,
    every_s=5,
    seconds=5,
)
def unreachable(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    attempts = root_causes.unreachable(capture)
    reported: set[str] = set()
    known = {address.text: address for address in addresses(capture)}
    by_text = {end: text for text, address in known.items() for end in root_causes.ends_of(address.host, address.port)}
    tried: dict[str, list[Attempt]] = defaultdict(list)
    for server, some_attempts in attempts.items():
        tried[by_text.get(server, server)] += some_attempts
    for text, some_attempts in tried.items():
        if sum(attempt.times for attempt in some_attempts) >= at.tries:
            reported.add(text)
            yield _refused(capture, text, known.get(text), some_attempts)
    yield from _not_followed(capture, at, reported)


def _refused(capture: CaptureFrame, text: str, address: Address | None, attempts: list[Attempt]) -> Match:
    """The match of an address at which connections were tried."""
    tries, sources = sum(attempt.times for attempt in attempts), sorted({attempt.client for attempt in attempts})
    informed = [of for of in _clients(capture) if address is not None and of.by & address.by]
    since, until = min(attempt.since for attempt in attempts), max(attempt.until for attempt in attempts)
    whose = f"Metadata of {some(sorted(address.by))}" if address is not None and address.by else "Metadata"
    line = f"{whose} sends clients to {name(text)}; "
    if informed:
        seconds = (capture.span[1] - min(of.informed_at for of in informed)) / SECOND
        line += f"in {lasting(seconds * SECOND)} {_none_of(capture, informed)} got a connection there: "
        line += f"{count(tries, 'try', 'tries')} from {some(sources)}, "
    else:
        named = f"none of {count(len(sources), 'client')}" if len(sources) > 1 else "no client"
        line += f"{named} ({some(sources)}) got a connection there in {count(tries, 'try', 'tries')}: "
    who = capture.who(informed[0].number) if informed else {"client_ip": sources[0]}
    return Match(
        f"{line}{root_causes.outcome(attempts)}.",
        tries,
        since,
        until,
        {**who, "broker": text},
        {"advertised": text, "by": ",".join(sorted(address.by)) if address is not None else None},
        cause=_cause(address),
        proven=address is not None and address.is_loopback,
    )


def _none_of(capture: CaptureFrame, informed: list[_Client]) -> str:
    """`none of 2 clients that were told so (svc-a (10.0.0.4), svc-b (10.0.0.5))`."""
    named = listed([client(capture.who(of.number)) for of in informed[:3]], len(informed))
    whom = "that was told so" if len(informed) == 1 else "that were told so"
    return f"none of {count(len(informed), 'client')} {whom} ({named})"


def _cause(address: Address | None) -> str:
    if address is not None and address.is_loopback:
        return "the broker advertises the loopback interface, which is each client's own host"
    if address is not None and address.is_name:
        return "the name that the broker advertises cannot be resolved or reached from there"
    return "the address that the broker advertises cannot be reached from there"


def _not_followed(capture: CaptureFrame, at: Limits, reported: set[str]) -> Iterator[Match]:
    """Addresses that clients were told and did not follow, those of the same clients together."""
    everybody = _clients(capture)
    groups: dict[tuple[frozenset[str], frozenset[int]], list[tuple[Address, list[_Client]]]] = defaultdict(list)
    for address in addresses(capture):
        informed = [of for of in everybody if of.by & address.by]
        if address.text in reported or not informed or any(_gone(capture, address)):
            continue
        if any(_reached(address, of, _sent_to(capture)[of.by]) for of in informed):
            continue
        stuck = [of for of in informed if _is_stuck(capture, at, address, of)]
        if stuck:
            groups[address.by, frozenset(of.number for of in informed)].append((address, stuck))
    for (by, numbers), unfollowed in groups.items():
        informed = [of for of in everybody if of.number in numbers]
        stuck = [of for _, some_stuck in unfollowed for of in some_stuck]
        yield _unfollowed(capture, by, [address for address, _ in unfollowed], informed, stuck)


@once
def _sent_to(capture: CaptureFrame) -> dict[frozenset[str], list[Address]]:
    """Addresses that clients were told, by the end points that told them."""
    return {by: [at for at in addresses(capture) if at.by & by] for by in {of.by for of in _clients(capture)}}


def _gone(capture: CaptureFrame, address: Address) -> Iterator[bool]:
    """Whether the broker at an address was lost."""
    ends = root_causes.ends_of(address.host, address.port)
    yield from (capture.brokers[loss.broker] in ends for loss in root_causes.losses(capture))


def _is_stuck(capture: CaptureFrame, at: Limits, address: Address, of: _Client) -> bool:
    """Whether a client wants to go to an address that it was told, and does not."""
    if of.worked and len(of.ends) < 2:
        return False  # the capture may lack its other connections
    if address.is_name and _goes_by_name(capture, address, of):
        return False
    if address.is_loopback and not of.worked and not _is_on_loopback(capture, of):
        return capture.span[1] - of.informed_at >= at.seconds * SECOND
    if of.waits and not address.is_loopback and len(_sent_to(capture)[of.by]) == 1:
        return True
    again = of.asks
    often = len(again) >= at.asks and again[-1] - of.informed_at <= at.every_s * SECOND * len(again)
    return often and again[-1] - of.informed_at >= SECOND and _needs(capture, address, of)


def _goes_by_name(capture: CaptureFrame, address: Address, of: _Client) -> bool:
    """Whether a client on a broker's host tries both address families there at an advertised port: it resolves a name,
    which may be the advertised one."""
    families = {"[" in end for end in of.by if _ends_on_loopback(end, address.port)}
    tried = (attempt.server for attempt in capture.attempts if attempt.refused)
    return any(_ends_on_loopback(end, address.port) and ("[" not in end) in families for end in tried)


def _ends_on_loopback(end: str, port: int) -> bool:
    host, _, text = end.rpartition(":")
    return text == str(port) and _is_loopback(host.strip("[]"))


def _is_on_loopback(capture: CaptureFrame, of: _Client) -> bool:
    """Whether a client is on the host of a broker that told it."""
    ip = capture.clients[of.number][0]
    hosts = {end.rpartition(":")[0].strip("[]") for end in of.by}
    return _is_loopback(ip) or ip in hosts or any(map(_is_loopback, hosts))


def _unfollowed(
    capture: CaptureFrame, by: frozenset[str], advertised: list[Address], informed: list[_Client], stuck: list[_Client]
) -> Match:
    """The match of addresses that clients were told and did not follow."""
    texts = [address.text for address in advertised]
    since, until = min(of.informed_at for of in informed), capture.span[1]
    text = f"Metadata of {some(sorted(by))} sends clients to {some(texts)}; in {lasting(until - since)} "
    text += f"{_none_of(capture, informed)} connected there"
    asks = {of.number: len(of.asks) for of in stuck if of.asks}
    text += f"; they only ask again ({count(sum(asks.values()), 'time')})." if asks else ", and nothing else was asked."
    worst = max(stuck, key=lambda of: len(of.asks))
    metadata = capture.of_api(api_keys.METADATA)
    rows = metadata[arrow.among(capture.client[metadata], [of.number for of in informed])]
    return Match(
        text,
        max(sum(asks.values()), 1),
        since,
        until,
        {**capture.who(worst.number), "broker": texts[0]},
        {"api": "Metadata", "advertised": ",".join(texts[:20]), "by": ",".join(sorted(by)[:20])},
        tuple(rows[[0, 0, -1]].tolist()),
        severity="warning",
        cause=_cause(advertised[0]),
        proven=False,
    )


# --------------------------------------------------------------------------------------- one address of several brokers


class _Refusals(NamedTuple):
    """Requests that came to the wrong node of an address: exchanges, and of how many."""

    address: Address
    rows: np.ndarray
    of: int


@once
def _misdirected(capture: CaptureFrame) -> list[_Refusals]:
    """Refusals of clients that were told one address for several nodes."""
    shared_addresses = [address for address in addresses(capture) if address.is_shared]
    if not shared_addresses:
        return []
    rows, refusals = capture.exchanges, []
    requests = capture.of_api(*_OF_LEADERS, *_OF_COORDINATORS)
    requests = requests[rows.status[requests] == ANSWERED]
    for address in shared_addresses:
        informed = [of.number for of in _clients(capture) if of.by & address.by]
        own_rows = requests[arrow.among(capture.client[requests], informed)]
        own_rows = own_rows[arrow.among(rows.api[own_rows], _refusing_apis(capture, own_rows))]
        wrong = own_rows[arrow.among(rows.error[own_rows], _WRONG_NODE)]
        refusals.append(_Refusals(address, wrong, len(own_rows)))
    return refusals


_WRONG_NODE = (errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_COORDINATOR)


def _refusing_apis(capture: CaptureFrame, rows: np.ndarray) -> list[int]:
    """APIs of exchanges that were refused for coming to the wrong node."""
    wrong = rows[arrow.among(capture.exchanges.error[rows], _WRONG_NODE)]
    apis: list[int] = arrow.distinct(capture.exchanges.api[wrong]).tolist()
    return apis


@rule(
    "cluster",
    "advertised-address-shared",
    "warning",
    "Metadata of 10.0.0.1:9092 gives nodes 1, 2, 3 one address, kafka.example.com:9092: 20 of 30 requests of svc-a "
    "(10.0.0.4) came to the wrong node (NOT_LEADER_OR_FOLLOWER (6) to Produce), 66.7 %.",
    why="A client picks the leader's address, and a balancer picks any broker behind it: of three brokers two refuse. "
    "Three refusals, and one in ten.",
    suppressed_when="Fewer; nobody was refused, as by a proxy that knows the way; the balancer's address is that of "
    "bootstrap.servers only, and brokers advertise their own.",
    advice="advertised.listeners: an address for each broker, a port or a name; a balancer for bootstrap.servers only.",
    evidence="forged: one address for three nodes and 20 of 30 requests refused, and two of 30; three addresses",
    refused=3,
    share=0.1,
)
def one_address(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for misdirected in _misdirected(capture):
        rows = misdirected.rows
        if len(rows) < at.refused or len(rows) < at.share * misdirected.of:
            continue
        address = misdirected.address
        clients = arrow.distinct(capture.client[rows]).tolist()
        named = listed([client(capture.who(number)) for number in clients[:3]], len(clients))
        kinds = Counter(zip(capture.exchanges.error[rows].tolist(), capture.exchanges.api[rows].tolist(), strict=True))
        why = [f"{errors.name(code)} ({code}) to {api_name(api)}" for (code, api), _ in kinds.most_common(3)]
        answered = capture.exchanges.response_end[rows]
        text = f"Metadata of {some(sorted(address.by))} gives nodes {listed(_ids(address)[:5], len(address.nodes))} "
        text += f"one address, {name(address.text)}: {len(rows):,} of {count(misdirected.of, 'request')} of {named} "
        text += f"came to the wrong node ({listed(why, len(kinds))}), {share(len(rows), misdirected.of)}."
        yield Match(
            text,
            len(rows),
            int(answered.min()),
            int(answered.max()),
            {**capture.who(clients[0]), "broker": address.text},
            {
                "advertised": address.text,
                "nodes": ",".join(_ids(address)),
                "by": ",".join(sorted(address.by)[:20]),
                "requests": str(misdirected.of),
            },
            tuple(rows[[0, 0, -1]].tolist()),
            cause="one address for all brokers: a balancer, which sends a connection to any of them",
            proven=True,
        )


def _ids(address: Address) -> list[str]:
    return [str(node) for node in sorted(address.nodes)]


def _is_misdirected(capture: CaptureFrame, trouble: Trouble) -> bool:
    return trouble.code in _WRONG_NODE and any(
        len(arrow.distinct(trouble.rows)) and bool(arrow.among(trouble.rows, refusals.rows).all())
        for refusals in _misdirected(capture)
    )


EXPLANATIONS.append(_is_misdirected)
