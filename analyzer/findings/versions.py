"""Rules about versions that clients use and brokers accept, now and after an upgrade."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import (
    ANSWERED,
    BY_BROKERS,
    NO_CODE,
    SECOND,
    UNANSWERED,
    CaptureFrame,
    api_name,
    once,
)
from kwire.analyzer.findings.query import Severity
from kwire.analyzer.findings.root_causes import REMOVED
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.wording import client, count, lasting, listed, name, some
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL, codes_of
from kwire.analyzer.frame.grouping import first_rows, max_by, rows_by_key, split
from kwire.analyzer.protocol import api_keys, schema


def _lowest(capture: CaptureFrame) -> dict[int, int]:
    """The lowest version of each API that the target accepts. Only brokers used the APIs that it has removed."""
    target = capture.query.target
    if target is None:
        return dict(REMOVED)
    lowest = {key: low for key, (low, _) in target.items()}
    if lowest.get(api_keys.FETCH, 0) >= REMOVED[api_keys.FETCH]:
        lowest[api_keys.PRODUCE] = max(lowest.get(api_keys.PRODUCE, 0), REMOVED[api_keys.PRODUCE])
    return lowest


_MANY_CLIENTS = 10_000
"""Rows of `clients` up to which reading them is cheaper than reading all exchanges."""


def _maybe_old(capture: CaptureFrame, lowest: Mapping[int, int]) -> bool:
    """Whether some client may have used a version below these, by table `clients`, which has some clients in one
    row."""
    rows = capture.table("clients")
    if not 0 < len(rows) <= _MANY_CLIENTS:
        return True
    by_name = {schema.api_name(key): low for key, low in lowest.items()}
    for row in rows.every(["client_ip", "apis"]):
        if row["client_ip"] is None or row["apis"] is None:
            return True
        if any(use["min_version"] < by_name.get(use["api"], 0) for use in row["apis"]):
            return True
    return False


_APIS = 1 << 10
"""Keys of APIs below it are looked up in a table."""

_SINCE_2_4 = 3
"""The version of ApiVersions that clients ask for first since Kafka 2.4 (KIP-511). Clients since 2.1 have all versions
that 4.0 needs (KIP-896); what older ones ask for tells nobody whether they have newer ones."""

_SEE = "See whether this client knows versions that the target takes, by its own documents; if not, upgrade it first."


def _newest(capture: CaptureFrame, old: np.ndarray) -> np.ndarray:
    """bool[old]: a client of Kafka 2.4 or later asked for the versions on this connection, and uses the newest one
    offered."""
    table = capture.table("api_versions")
    if not len(old) or not len(table):
        return np.zeros(len(old), bool)
    api, highest, link = table["api_key"], table["max"], capture.links_of(table)
    answered_rows = np.flatnonzero((api >= 0) & (api < _APIS) & (link >= 0))
    key, highest = link[answered_rows].astype(np.int64) * _APIS + api[answered_rows], highest[answered_rows]
    order = np.lexsort((highest, key))
    key, highest = np.append(key[order], -1), np.append(highest[order], -1)
    rows = capture.exchanges
    wanted = rows.link[old].astype(np.int64) * _APIS + rows.api[old]
    at = np.searchsorted(key[:-1], wanted, side="right") - 1  # the last of equal ones is the highest; -1: the end
    late = np.zeros(len(capture.links) + 1, bool)  # one more: -1 is nobody's
    late[rows.link[(rows.api == api_keys.API_VERSIONS) & (rows.version >= _SINCE_2_4)]] = True
    late[-1] = False
    newest: np.ndarray = (key[at] == wanted) & (rows.version[old] == highest[at]) & late[rows.link[old]]
    return newest


@once
def _old(capture: CaptureFrame) -> np.ndarray:
    """Exchanges of clients in versions below those that the target accepts."""
    lowest = _lowest(capture)
    if not _maybe_old(capture, lowest):
        return np.zeros(0, np.int64)
    rows = capture.exchanges
    low = np.zeros(_APIS, np.int64)
    for key, version in lowest.items():
        if 0 <= key < len(low):
            low[key] = version
    known = (rows.api >= 0) & (rows.api < len(low)) & (rows.version != NO_CODE)
    old: np.ndarray = np.flatnonzero(known & (rows.version < low[np.where(known, rows.api, 0)]))
    old = old[~arrow.among(rows.api[old], BY_BROKERS)]  # also of clients without an id
    if len(old):
        old = old[~capture.between_brokers[capture.client[old]]]
    return old


@rule(
    "versions",
    "version-removed-in-target",
    "error",
    "legacy-job (kafka-python 1.4, 10.0.0.4) uses Fetch 2, Produce 2: refused by Kafka 4.0.",
    why="The table of KIP-896, equal in 4.0 to 4.4. Without --target it is a note, against Kafka 4.0; an error, where "
    "three such requests and more got no answer, and none got one.",
    suppressed_when="Brokers among themselves, as their client ids say or what only brokers ask. A client that asks "
    "for versions as those since Kafka 2.4 do (ApiVersions 3), and uses the newest that the broker offers, may have "
    "newer ones: where all that it uses is so, it is a warning. All others are the real problem.",
    advice="Upgrade these clients first.",
    evidence="forged: Fetch 3 against 4.0, and Fetch 4; old-* (notes); old-librdkafka-0.10.2, whose clients are of "
    "2026",
    depends_on=("target",),
    silent=3,
)
def removed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows, old = capture.exchanges, _old(capture)
    strict, target = capture.query.target is not None, capture.query.target_name or "4.0"
    newest = _newest(capture, old)
    for group_rows in split(old, capture.client[old]):
        firsts = group_rows[first_rows(rows.api[group_rows], rows.version[group_rows])].tolist()
        used = sorted((api_name(int(rows.api[row])), int(rows.version[row])) for row in firsts)
        shown = listed([f"{api} {version}" for api, version in used[:6]], len(used))
        who = capture.who(int(capture.client[group_rows[0]]))
        text = f"{client(who)} uses {shown}: refused by Kafka {name(target)}"
        severity: Severity | None = None if strict else "note"
        advice = None
        if newest[np.searchsorted(old, group_rows)].all():
            text += "; its brokers offer none newer; it asks for versions as clients since 2.4 do, so may have newer"
            severity, advice = severity or "warning", _SEE
        cause = None
        if len(group_rows) >= at.silent and (rows.status[group_rows] == UNANSWERED).all() and not capture.loses:
            text += f"; none of its {len(group_rows):,} requests got an answer"
            severity, cause = "error", "the broker is such a one, and closes the connection"
        yield Match(
            f"{text}.",
            len(group_rows),
            int(rows.request_time[group_rows].min()),
            int(rows.request_time[group_rows].max()),
            who,
            {"api": ",".join(sorted({api for api, _ in used})), "target": target},
            tuple(group_rows[[0, 0, -1]].tolist()),
            severity=severity,
            advice=advice,
            cause=cause,
            proven=False if cause else None,
        )


@rule(
    "versions",
    "version-refused",
    "error",
    "10.0.0.1:9092 closed connections of svc-a (10.0.0.4) on Fetch 2, which it does not offer (3 requests).",
    why="Deterministic: only ApiVersions gets an answer (UNSUPPORTED_VERSION), all others an exception and a close. "
    "Where the capture lacks what brokers offer: a version that Kafka 4.0 removed (KIP-896), on each of three "
    "connections or more that the broker closed on it, and never answered.",
    suppressed_when="The version is one that the broker said it offers; the connection was closed for another reason "
    "(idle, login).",
    advice="Upgrade the client.",
    evidence="errors-librdkafka-4.3; forged: a version beyond those offered, and one of them",
)
def refused(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows = capture.exchanges
    refusals: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for row in root_causes.refused_versions(capture).tolist():
        refusals[int(capture.client[row]), int(capture.broker[row]), int(rows.api[row]), int(rows.version[row])].append(
            row
        )
    for (client_, broker, api, version), group_rows in refusals.items():
        who = capture.who(client_, broker)
        offered = root_causes.tells_versions(capture)
        text = f"{who['broker']} closed connections of {client(who)} on {api_name(api)} {version}, which "
        text += "it does not offer " if offered else "brokers refuse since Kafka 4.0 "
        since, until = int(rows.request_time[group_rows[0]]), int(rows.request_time[group_rows[-1]])
        yield Match(
            f"{text}({count(len(group_rows), 'request')}).",
            len(group_rows),
            since,
            until,
            who,
            {"api": api_name(api), "version": str(version)},
            (group_rows[0], group_rows[0], group_rows[-1]),
            cause="a version outside the broker's range",
            proven=offered,
        )


_LOGIN = (api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE)


@rule(
    "versions",
    "api-versions-missing",
    "note",
    "svc-a (10.0.0.4) asked no broker which versions it offers, and spoke Fetch 11, Metadata 7, Produce 7.",
    why="What such a client speaks stands in its settings or its code, and no broker's upgrade changes it; of a few, "
    "as of kafka-python, that asked once, before the capture began, it may be what they were told.",
    suppressed_when="It did so on one of its connections; one of them is not whole in the capture, or began before it. "
    "version-removed-in-target names it, for what it speaks is older than the target takes. Brokers among themselves; "
    "the meaning of the traffic was left out (--no-analysis).",
    advice="Before an upgrade that removes old versions, see to these clients first; look for a setting of the "
    "versions that it speaks (Sarama's Version, librdkafka's api.version.request, kafka-python's api_version).",
    evidence="forged: a client that asks, one that does not, and one of whose connections the beginning is missing; "
    "old-*, zoo-* (whoever does not ask there is named by version-removed-in-target)",
    depends_on=("target",),
)
def unasked(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    silent = np.ones(len(capture.clients), bool)
    silent[capture.client_of[~capture.whole]] = False
    if capture.loses or not silent.any():
        return
    silent &= ~capture.unread & ~capture.between_brokers
    silent[capture.client[capture.of_api(api_keys.API_VERSIONS)]] = False
    silent[capture.client[_old(capture)]] = False
    if not silent.any():
        return
    silent &= _answered(capture, silent)
    numbers = {capture.clients[client_]: client_ for client_ in np.flatnonzero(silent).tolist()}
    silent_links = spill.true_rows(silent[capture.client_of])
    links = rows_by_key(silent_links, capture.client_of[silent_links])
    columns = ["client_id", "client_ip", "apis", "first_time", "last_time"]
    for row in capture.table("clients").every(columns):
        client_ = numbers.get((row["client_ip"], row["client_id"]))
        if client_ is None:
            continue
        used = [api for api in row["apis"] if api["api"] not in _BESIDES]
        if not used:
            continue
        shown = some([_span(api) for api in used], 6)
        who, own_links = capture.who(client_), links.get((client_,), silent_links[:0])
        text = f"{client(who)} asked no broker which versions it offers, and spoke {shown}."
        yield Match(
            text,
            sum(api["exchanges"] for api in used),
            row["first_time"],
            row["last_time"],
            who,
            {"api": ",".join(api["api"] for api in used)},
            links=tuple(own_links[[0, 0, -1]].tolist()) if len(own_links) else (),
        )


_BESIDES = frozenset(api_name(key) for key in (*_LOGIN, *BY_BROKERS))


def _span(use: Mapping[str, Any]) -> str:
    """`Fetch 4 to 11`."""
    low, high = use["min_version"], use["max_version"]
    return f"{use['api']} {low}" + (f" to {high}" if high != low else "")


def _answered(capture: CaptureFrame, wanted: np.ndarray) -> np.ndarray:
    """bool[clients]: which of the `wanted` clients got an answer."""
    rows, is_answered = capture.exchanges, np.zeros(len(capture.clients), bool)
    for block in spill.blocks(len(rows)):
        is_answered[capture.client[block][rows.status[block] == ANSWERED]] = True
        if not (wanted & ~is_answered).any():
            break
    return is_answered


@rule(
    "versions",
    "message-format-old",
    "note",
    "legacy-job (10.0.0.4) writes t in message format 1.",
    why="A fact: brokers from 4.0 on write no such format (KIP-724), reading stays.",
    suppressed_when="The batches are of format 2.",
    advice="Upgrade the client, or raise what it is told to speak.",
    evidence="old-java-0.8.2; forged: magic 1, and 2",
)
def old_format(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("batches")
    if not len(table):
        return
    magic = table["magic"]
    if not (magic < 2).any():
        return
    owner, (where, places) = capture.owners(table), capture.number_topic_partitions(table)
    side, sides = table.text("side")
    written = arrow.among(side, codes_of(sides, "produce"))
    old = np.flatnonzero(written & (owner >= 0) & (magic >= 0) & (magic < 2))
    by: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for batch in old.tolist():
        by[int(capture.client[owner[batch]]), places[where[batch]][0], int(magic[batch])].append(int(owner[batch]))
    for (client_, topic, form), rows in by.items():
        who = capture.who(client_)
        text = f"{client(who)} writes {name(topic)} in message format {form}."
        yield Match(
            text,
            len(rows),
            int(capture.exchanges.request_time[rows[0]]),
            int(capture.exchanges.request_time[rows[-1]]),
            who,
            {"topic": topic},
            (rows[0], rows[0], rows[-1]),
        )


@rule(
    "versions",
    "zookeeper-consumer",
    "note",
    "Group g keeps its offsets in ZooKeeper (3 partitions of orders, bills): svc-a (10.0.0.4).",
    why="A fact: OffsetCommit 0 has the broker write them there, and consumers before 0.9 do so themselves. Kafka 4.0 "
    "has neither (KIP-500, KIP-896).",
    suppressed_when="Commits of version 1 and later, which the brokers keep; those that were refused.",
    advice="A consumer that commits to the brokers begins without these offsets: give them to its group first "
    "(kafka-consumer-groups.sh --reset-offsets).",
    evidence="old-java-0.10.2, old-java-0.8.2; zookeeper-java-0.8.2; forged: OffsetCommit 0, and 1",
)
def in_zookeeper(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("offsets")
    kind, kinds = table.text("kind")
    rows = spill.true_rows(arrow.among(kind, codes_of(kinds, "zookeeper")))
    if not len(rows):
        return
    group, groups = table.text("group_id")
    rows = rows[(table.text("error")[0][rows] < 0) & (group[rows] >= 0)]
    topic_partition, places = capture.number_topic_partitions(table)
    time, link = table["time"], capture.links_of(table)
    for group_rows in split(rows, group[rows]):
        where = [places[number] for number in arrow.distinct(topic_partition[group_rows]).tolist()]
        shown = some(sorted({topic for topic, _ in where}))
        to_brokers = link[group_rows][link[group_rows] < len(capture.links)]  # the rest went to ZooKeeper itself
        clients = arrow.distinct(capture.client_of[to_brokers]).tolist()
        named = groups[group[group_rows[0]]]
        text = f"Group {name(named)} keeps its offsets in ZooKeeper ({count(len(where), 'partition')} of {shown})"
        text += (
            f": {listed([client(capture.who(client_number)) for client_number in clients[:3]], len(clients))}"
            if clients
            else ""
        )
        proof = [
            (row["connection"], row["exchange"]) for row in table.rows(group_rows[[0, -1]], ["connection", "exchange"])
        ]
        known = [
            row
            for connection, number in proof
            if number is not None and (row := capture.row_of(connection, number)) is not None
        ]
        when = time[group_rows][time[group_rows] != NULL]
        since, until = (int(when.min()), int(when.max())) if len(when) else (None, None)
        yield Match(
            f"{text}.",
            len(group_rows),
            since,
            until,
            capture.who(clients[0]) if clients else {},
            {"group_id": named},
            tuple(known),
        )


# fmt: off
_OF_CLIENTS = (
    api_keys.PRODUCE, api_keys.FETCH, api_keys.LIST_OFFSETS, api_keys.METADATA, api_keys.OFFSET_COMMIT,
    api_keys.OFFSET_FETCH,
    api_keys.FIND_COORDINATOR, api_keys.JOIN_GROUP, api_keys.HEARTBEAT, api_keys.LEAVE_GROUP, api_keys.SYNC_GROUP,
    api_keys.DESCRIBE_GROUPS, api_keys.LIST_GROUPS, api_keys.INIT_PRODUCER_ID, api_keys.ADD_PARTITIONS_TO_TXN,
    api_keys.ADD_OFFSETS_TO_TXN, api_keys.END_TXN, api_keys.TXN_OFFSET_COMMIT,
)
# fmt: on
"""APIs that a broker answers itself. Of those that it passes on it offers what its controller has, as soon as it knows
that; features and settings decide of others."""


@rule(
    "versions",
    "brokers-differ",
    "warning",
    "Brokers of one cluster offer different versions for 25 min or more: 10.0.0.1:9092, 10.0.0.2:9092 (Fetch 0 to 17, "
    "Produce 0 to 11); 10.0.0.3:9092 (Fetch 0 to 16, Produce 0 to 10).",
    why="An upgrade that goes on takes minutes for each broker; one that was left half done keeps clients and brokers "
    "on the older versions.",
    suppressed_when="They differ for less than ten minutes, as connections show that were open meanwhile, with the "
    "versions that were told at their beginning; a broker's own versions changed within the capture. Nothing shows "
    "that they are of one cluster: neither a topic, by its id, that both answered for, nor an in-sync set whose nodes "
    "have their addresses. What only controllers offer, and APIs that a broker passes on to its controller.",
    advice="Finish the upgrade, or take it back; see that no broker was forgotten.",
    evidence="Kafka 3.9 of which a node was upgraded to 4.3, with a threshold of half a minute; forged: brokers that "
    "differ for ten minutes, and for less; of two clusters; one that was upgraded meanwhile; cluster-* (brokers of one "
    "version, with their controllers) say nothing",
    minutes=10,
    by_clock=True,
)
def brokers_differ(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    steady = _steady_offers(capture)
    if len(set(steady.values())) < 2:
        return
    links = _links_that_were_told(capture)
    links = links[arrow.among(capture.broker_of[links], [*steady])]
    first = -max_by(capture.broker_of[links], -capture.link_times("first_time")[links], len(capture.brokers), -_NO_TIME)
    last = max_by(capture.broker_of[links], capture.link_times("last_time")[links], len(capture.brokers), -_NO_TIME)
    for cluster in _clusters(capture, [*steady]):
        of_kind: dict[tuple[tuple[int, int, int], ...], list[int]] = defaultdict(list)
        for broker in cluster:
            of_kind[steady[broker]].append(broker)
        longest, since = 0, 0
        for kind, other in combinations(list(of_kind.values())[:_KINDS], 2):
            began = np.maximum.outer(first[kind[:_COMPARED]], first[other[:_COMPARED]])
            lasted = np.minimum.outer(last[kind[:_COMPARED]], last[other[:_COMPARED]]) - began
            if int(lasted.max()) > longest:
                longest, since = int(lasted.max()), int(began.flat[lasted.argmax()])
        if longest < at.minutes * 60 * SECOND:
            continue
        kinds = sorted(of_kind.items(), key=lambda kind: (-len(kind[1]), kind[1]))
        alike = set.intersection(*(set(offers) for offers in of_kind))
        differences = [
            some([capture.brokers[broker] for broker in brokers]) + f" ({_shown(set(offers) - alike)})"
            for offers, brokers in kinds[:_LISTED]
        ]
        more = f"; and {count(len(kinds) - _LISTED, 'more kind')}" if len(kinds) > _LISTED else ""
        text = f"Brokers of one cluster offer different versions for {lasting(longest)} or more: "
        text += f"{'; '.join(differences)}{more}."
        odd = kinds[-1][1]
        chosen = [int(links[capture.broker_of[links] == broker][0]) for broker in (kinds[0][1][0], odd[0])]
        yield Match(
            text,
            len(cluster),
            since,
            since + longest,
            {"broker": capture.brokers[odd[0]]},
            {},
            links=tuple(chosen),
            cause="an upgrade that is not finished",
            proven=False,
        )


_NO_TIME = 1 << 62
_KINDS, _COMPARED, _LISTED = 20, 500, 3
"""Kinds of brokers that are compared, brokers of each, and kinds that are listed."""


def _shown(offers: Iterable[tuple[int, int, int]]) -> str:
    """`Fetch 0 to 17, Produce 0 to 11`."""
    shown = sorted((api_name(key), low, high) for key, low, high in offers)
    return listed([f"{api} {low} to {high}" for api, low, high in shown[:4]], len(shown))


def _links_that_were_told(capture: CaptureFrame) -> np.ndarray:
    """Connections on which a broker stated its versions."""
    link = capture.links_of(capture.table("api_versions"))
    link = arrow.distinct(link[link >= 0])
    timed: np.ndarray = (capture.link_times("first_time") != NULL) & (capture.link_times("last_time") != NULL)
    result: np.ndarray = link[timed[link]]
    return result


def _steady_offers(capture: CaptureFrame) -> dict[int, tuple[tuple[int, int, int], ...]]:
    """(API, lowest, highest version) of the APIs that clients use, by broker, if it offered the same each time. Without
    controllers, which get no Produce."""
    table = capture.table("api_versions")
    if not len(table) or len(capture.brokers) < 2:
        return {}
    api, low, high = (table.numbers(name, np.int16) for name in ("api_key", "min", "max"))
    link = capture.links_of(table)
    rows = np.flatnonzero(arrow.among(api, _OF_CLIENTS) & (link >= 0) & (low >= 0) & (high >= 0))
    packed = ((capture.broker_of[link[rows]].astype(np.int64) << 10 | api[rows]) << 15 | low[rows]) << 15 | high[rows]
    stated: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for packed_value in arrow.distinct(packed).tolist():
        stated[packed_value >> 40].append(
            (packed_value >> 30 & 0x3FF, packed_value >> 15 & 0x7FFF, packed_value & 0x7FFF)
        )
    return {
        broker: tuple(offers)
        for broker, offers in stated.items()
        if offers[0][0] == api_keys.PRODUCE and len({key for key, _, _ in offers}) == len(offers)
    }


def _clusters(capture: CaptureFrame, brokers: list[int]) -> list[list[int]]:
    """Group brokers that the capture shows to be of one cluster."""
    head = {broker: broker for broker in brokers}

    def of(broker: int) -> int:
        while head[broker] != broker:
            head[broker] = broker = head[head[broker]]  # half as far the next time
        return broker

    def join(some: Iterable[int]) -> None:
        known = sorted({of(broker) for broker in some if broker in head})
        for broker in known[1:]:
            head[broker] = known[0]

    for together in (*_of_topics(capture), *_in_sync(capture)):
        join(together)
    clusters: dict[int, list[int]] = defaultdict(list)
    for broker in brokers:
        clusters[of(broker)].append(broker)
    return [members for members in clusters.values() if len(members) > 1]


_EVERYWHERE = ("AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ")
"""Ids of no topic, and of `__cluster_metadata`: every cluster has them."""


def _of_topics(capture: CaptureFrame) -> Iterator[list[int]]:
    """Brokers that served a topic, whose id exists in one cluster only."""
    table, parts = capture.table("partitions"), capture.partitions
    ids, texts = table.text("topic_id")
    everywhere = codes_of(texts, *_EVERYWHERE)
    rows = spill.where(
        len(ids),
        lambda block: (
            (ids[block] >= 0)
            & (parts.error[block] == 0)
            & (parts.owner[block] >= 0)
            & ~arrow.among(ids[block], everywhere)
        ),
    )
    broker = spill.take(capture.broker, spill.take(parts.owner, rows))
    pairs = spill.distinct(spill.take(ids, rows).astype(np.int64) << 32 | broker)
    for some_ in split(pairs & 0xFFFFFFFF, pairs >> 32, least=2):
        yield some_.tolist()


def _in_sync(capture: CaptureFrame) -> Iterator[list[int]]:
    """Brokers of an in-sync set, if each id has one address with a connection."""
    numbers = {end: number for number, end in enumerate(capture.brokers)}
    ends: dict[int, set[str]] = defaultdict(set)
    for row in capture.table("brokers").every(["node_id", "host", "port"]):
        ends[row["node_id"]].add(root_causes.end_point(row["host"], row["port"]))
    where = {node: numbers[end] for node, (end, *more) in ends.items() if not more and end in numbers}
    if len(where) > 1:
        for together in {tuple(row["isr"]) for row in capture.table("leaders").every(["isr"]) if row["isr"]}:
            yield [where[node] for node in together if node in where]
