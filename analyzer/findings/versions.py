"""Versions of clients against what brokers take, now and after an upgrade."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from analyzer.findings import root_causes
from analyzer.findings.capture import ANSWERED, BY_BROKERS, NO_CODE, SECOND, CaptureFrame, api_name, once
from analyzer.findings.query import Severity
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.wording import client, count, lasting, listed, name, some
from analyzer.frame import arrow, spill
from analyzer.frame.frame import NULL, codes_of
from analyzer.frame.grouping import first_rows, max_by, rows_by_key, split
from analyzer.protocol import api_keys, schema

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


def _lowest(seen: CaptureFrame) -> dict[int, int]:
    """The lowest version of each API that the target takes. Those that it has no more only brokers asked."""
    target = seen.asked.target
    if target is None:
        return dict(REMOVED)
    lowest = {key: low for key, (low, _) in target.items()}
    if lowest.get(api_keys.FETCH, 0) >= REMOVED[api_keys.FETCH]:
        lowest[api_keys.PRODUCE] = max(lowest.get(api_keys.PRODUCE, 0), REMOVED[api_keys.PRODUCE])
    return lowest


_MANY_CLIENTS = 10_000
"""Rows of `clients` up to which a look at them is cheaper than one at all exchanges."""


def _maybe_old(seen: CaptureFrame, lowest: Mapping[int, int]) -> bool:
    """Whether some client may have used a version below these: table `clients` says which each did, but for those that
    it has in one row."""
    rows = seen.table("clients")
    if not 0 < len(rows) <= _MANY_CLIENTS:
        return True
    by_name = {schema.api_name(key): low for key, low in lowest.items()}
    for one in rows.every(["client_ip", "apis"]):
        if one["client_ip"] is None or one["apis"] is None:
            return True
        if any(use["min_version"] < by_name.get(use["api"], 0) for use in one["apis"]):
            return True
    return False


_APIS = 1 << 10
"""Keys of APIs that are looked up."""

_SINCE_2_4 = 3
"""The version of ApiVersions that clients ask for first since Kafka 2.4 (KIP-511). Clients since 2.1 have all versions
that 4.0 needs (KIP-896); what older ones ask for tells nobody whether they have newer ones."""

_SEE = "See whether this client knows versions that the target takes, by its own documents; if not, upgrade it first."


def _newest(seen: CaptureFrame, old: np.ndarray) -> np.ndarray:
    """bool[old]: on the exchange's connection a client of Kafka 2.4 or later asked which versions there are, and this
    one is the newest that it was told."""
    table = seen.table("api_versions")
    if not len(old) or not len(table):
        return np.zeros(len(old), bool)
    api, highest, link = table["api_key"], table["max"], seen.links_of(table)
    told = np.flatnonzero((api >= 0) & (api < _APIS) & (link >= 0))
    key, highest = link[told].astype(np.int64) * _APIS + api[told], highest[told]
    order = np.lexsort((highest, key))
    key, highest = np.append(key[order], -1), np.append(highest[order], -1)
    rows = seen.exchanges
    wanted = rows.link[old].astype(np.int64) * _APIS + rows.api[old]
    at = np.searchsorted(key[:-1], wanted, side="right") - 1  # the last of equal ones is the highest; -1: the end
    late = np.zeros(len(seen.links) + 1, bool)  # one more: -1 is nobody's
    late[rows.link[(rows.api == api_keys.API_VERSIONS) & (rows.version >= _SINCE_2_4)]] = True
    late[-1] = False
    newest: np.ndarray = (key[at] == wanted) & (rows.version[old] == highest[at]) & late[rows.link[old]]
    return newest


@once
def _old(seen: CaptureFrame) -> np.ndarray:
    """Exchanges of clients in versions below those that the target takes."""
    lowest = _lowest(seen)
    if not _maybe_old(seen, lowest):
        return np.zeros(0, np.int64)
    rows = seen.exchanges
    low = np.zeros(_APIS, np.int64)
    for key, version in lowest.items():
        if 0 <= key < len(low):
            low[key] = version
    known = (rows.api >= 0) & (rows.api < len(low)) & (rows.version != NO_CODE)
    old: np.ndarray = np.flatnonzero(known & (rows.version < low[np.where(known, rows.api, 0)]))
    old = old[~arrow.among(rows.api[old], BY_BROKERS)]  # also of clients without an id
    if len(old):
        old = old[~seen.between_brokers[seen.client[old]]]
    return old


@rule(
    "versions",
    "version-removed-in-target",
    "error",
    "legacy-job (kafka-python 1.4, 10.0.0.4) uses Fetch 2, Produce 2: refused by Kafka 4.0.",
    why="The table of KIP-896, equal in 4.0 to 4.4. Without --target it is a note, against Kafka 4.0.",
    unless="Brokers among themselves, as their client ids say or what only brokers ask. A client that asks for "
    "versions as those since Kafka 2.4 do (ApiVersions 3), and uses the newest that the broker offers, may have newer "
    "ones: where all that it uses is so, it is a warning. All others are the real problem.",
    advice="Upgrade these clients first.",
    judge="forged: Fetch 3 against 4.0, and Fetch 4; old-* (notes); old-librdkafka-0.10.2, whose clients are of 2026",
    minds=("target",),
)
def removed(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows, old = seen.exchanges, _old(seen)
    strict, target = seen.asked.target is not None, seen.asked.target_name or "4.0"
    newest = _newest(seen, old)
    for mine in split(old, seen.client[old]):
        firsts = mine[first_rows(rows.api[mine], rows.version[mine])].tolist()
        used = sorted((api_name(int(rows.api[row])), int(rows.version[row])) for row in firsts)
        shown = listed([f"{api} {version}" for api, version in used[:6]], len(used))
        who = seen.who(int(seen.client[mine[0]]))
        text = f"{client(who)} uses {shown}: refused by Kafka {name(target)}"
        severity: Severity | None = None if strict else "note"
        advice = None
        if newest[np.searchsorted(old, mine)].all():
            text += "; its brokers offer none newer; it asks for versions as clients since 2.4 do, so may have newer"
            severity, advice = severity or "warning", _SEE
        yield Found(
            f"{text}.",
            len(mine),
            int(rows.asked[mine].min()),
            int(rows.asked[mine].max()),
            who,
            {"api": ",".join(sorted({api for api, _ in used})), "target": target},
            tuple(mine[[0, 0, -1]].tolist()),
            severity=severity,
            advice=advice,
        )


@rule(
    "versions",
    "version-refused",
    "error",
    "10.0.0.1:9092 closed connections of svc-a (10.0.0.4) on Fetch 2, which it does not offer (3 requests).",
    why="Deterministic: only ApiVersions gets an answer (UNSUPPORTED_VERSION), all others an exception and a close.",
    unless="The version is one that the broker said it offers; the connection was closed for another reason (idle, "
    "login).",
    advice="Upgrade the client.",
    judge="errors-librdkafka-4.3; forged: a version beyond those offered, and one of them",
)
def refused(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    found_: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for row in root_causes.refused_versions(seen).tolist():
        found_[int(seen.client[row]), int(seen.broker[row]), int(rows.api[row]), int(rows.version[row])].append(row)
    for (client_, broker, api, version), mine in found_.items():
        who = seen.who(client_, broker)
        text = f"{who['broker']} closed connections of {client(who)} on {api_name(api)} {version}, which it does not "
        text += "offer "
        since, until = int(rows.asked[mine[0]]), int(rows.asked[mine[-1]])
        yield Found(
            f"{text}({count(len(mine), 'request')}).",
            len(mine),
            since,
            until,
            who,
            {"api": api_name(api), "version": str(version)},
            (mine[0], mine[0], mine[-1]),
            cause="a version outside the broker's range",
            proven=True,
        )


_LOGIN = (api_keys.SASL_HANDSHAKE, api_keys.SASL_AUTHENTICATE)


@rule(
    "versions",
    "api-versions-missing",
    "note",
    "svc-a (10.0.0.4) asked no broker which versions it offers, and spoke Fetch 11, Metadata 7, Produce 7.",
    why="What such a client speaks stands in its settings or its code, and no broker's upgrade changes it; of a few, "
    "as of kafka-python, that asked once, before the capture began, it may be what they were told.",
    unless="It did so on one of its connections; one of them is not whole in the capture, or began before it. "
    "version-removed-in-target names it, for what it speaks is older than the target takes. Brokers among themselves; "
    "the meaning of the traffic was left out (--no-meaning).",
    advice="Before an upgrade that removes old versions, see to these clients first; look for a setting of the "
    "versions that it speaks (Sarama's Version, librdkafka's api.version.request, kafka-python's api_version).",
    judge="forged: a client that asks, one that does not, and one of whose connections the beginning is missing; "
    "old-*, zoo-* (whoever does not ask there is named by version-removed-in-target)",
    minds=("target",),
)
def unasked(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    silent = np.ones(len(seen.clients), bool)
    silent[seen.client_of[~seen.whole]] = False
    if seen.loses or not silent.any():
        return
    silent &= ~seen.unread & ~seen.between_brokers
    silent[seen.client[seen.of_api(api_keys.API_VERSIONS)]] = False
    silent[seen.client[_old(seen)]] = False
    if not silent.any():
        return
    silent &= _answered(seen, silent)
    numbers = {seen.clients[client_]: client_ for client_ in np.flatnonzero(silent).tolist()}
    theirs = spill.true_rows(silent[seen.client_of])
    links = rows_by_key(theirs, seen.client_of[theirs])
    columns = ["client_id", "client_ip", "apis", "first_time", "last_time"]
    for row in seen.table("clients").every(columns):
        client_ = numbers.get((row["client_ip"], row["client_id"]))
        if client_ is None:
            continue
        used = [one for one in row["apis"] if one["api"] not in _BESIDES]
        if not used:
            continue
        shown = some([_span(one) for one in used], 6)
        who, mine = seen.who(client_), links.get((client_,), theirs[:0])
        text = f"{client(who)} asked no broker which versions it offers, and spoke {shown}."
        yield Found(
            text,
            sum(one["exchanges"] for one in used),
            row["first_time"],
            row["last_time"],
            who,
            {"api": ",".join(one["api"] for one in used)},
            links=tuple(mine[[0, 0, -1]].tolist()) if len(mine) else (),
        )


_BESIDES = frozenset(api_name(key) for key in (*_LOGIN, *BY_BROKERS))


def _span(use: Mapping[str, Any]) -> str:
    """`Fetch 4 to 11`."""
    low, high = use["min_version"], use["max_version"]
    return f"{use['api']} {low}" + (f" to {high}" if high != low else "")


def _answered(seen: CaptureFrame, wanted: np.ndarray) -> np.ndarray:
    """bool[clients]: those that got an answer, as far as they are `wanted`."""
    rows, found_ = seen.exchanges, np.zeros(len(seen.clients), bool)
    for block in spill.blocks(len(rows)):
        found_[seen.client[block][rows.status[block] == ANSWERED]] = True
        if not (wanted & ~found_).any():
            break
    return found_


@rule(
    "versions",
    "message-format-old",
    "note",
    "legacy-job (10.0.0.4) writes t in message format 1.",
    why="A fact: brokers from 4.0 on write no such format (KIP-724), reading stays.",
    unless="The batches are of format 2.",
    advice="Upgrade the client, or raise what it is told to speak.",
    judge="old-java-0.8.2; forged: magic 1, and 2",
)
def old_format(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    table = seen.table("batches")
    if not len(table):
        return
    magic = table["magic"]
    if not (magic < 2).any():
        return
    owner, (where, places) = seen.owners(table), seen.placed(table)
    side, sides = table.text("side")
    written = arrow.among(side, codes_of(sides, "produce"))
    old = np.flatnonzero(written & (owner >= 0) & (magic >= 0) & (magic < 2))
    by: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for batch in old.tolist():
        by[int(seen.client[owner[batch]]), places[where[batch]][0], int(magic[batch])].append(int(owner[batch]))
    for (client_, topic, form), rows in by.items():
        who = seen.who(client_)
        text = f"{client(who)} writes {name(topic)} in message format {form}."
        yield Found(
            text,
            len(rows),
            int(seen.exchanges.asked[rows[0]]),
            int(seen.exchanges.asked[rows[-1]]),
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
    unless="Commits of version 1 and later, which the brokers keep; those that were refused.",
    advice="A consumer that commits to the brokers begins without these offsets: give them to its group first "
    "(kafka-consumer-groups.sh --reset-offsets).",
    judge="old-java-0.10.2, old-java-0.8.2; zookeeper-java-0.8.2; forged: OffsetCommit 0, and 1",
)
def in_zookeeper(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    table = seen.table("offsets")
    kind, kinds = table.text("kind")
    rows = spill.true_rows(arrow.among(kind, codes_of(kinds, "zookeeper")))
    if not len(rows):
        return
    group, groups = table.text("group_id")
    rows = rows[(table.text("error")[0][rows] < 0) & (group[rows] >= 0)]
    place_, places = seen.placed(table)
    time, link = table["time"], seen.links_of(table)
    for mine in split(rows, group[rows]):
        where = [places[one] for one in arrow.distinct(place_[mine]).tolist()]
        shown = some(sorted({topic for topic, _ in where}))
        to_brokers = link[mine][link[mine] < len(seen.links)]  # the rest went to ZooKeeper itself
        clients = arrow.distinct(seen.client_of[to_brokers]).tolist()
        named = groups[group[mine[0]]]
        text = f"Group {name(named)} keeps its offsets in ZooKeeper ({count(len(where), 'partition')} of {shown})"
        text += f": {listed([client(seen.who(one)) for one in clients[:3]], len(clients))}" if clients else ""
        proof = [(one["connection"], one["exchange"]) for one in table.rows(mine[[0, -1]], ["connection", "exchange"])]
        known = [row for one, number in proof if number is not None and (row := seen.row_of(one, number)) is not None]
        when = time[mine][time[mine] != NULL]
        since, until = (int(when.min()), int(when.max())) if len(when) else (None, None)
        yield Found(
            f"{text}.",
            len(mine),
            since,
            until,
            seen.who(clients[0]) if clients else {},
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
    unless="They differ for less than ten minutes, as connections show that were open meanwhile, with the versions "
    "that were told at their beginning; a broker's own versions changed within the capture. Nothing shows that they "
    "are of one cluster: neither a topic, by its id, that both answered for, nor an in-sync set whose nodes have their "
    "addresses. What only controllers offer, and APIs that a broker passes on to its controller.",
    advice="Finish the upgrade, or take it back; see that no broker was forgotten.",
    judge="Kafka 3.9 of which a node was upgraded to 4.3, with a threshold of half a minute; forged: brokers that "
    "differ for ten minutes, and for less; of two clusters; one that was upgraded meanwhile; cluster-* (brokers of one "
    "version, with their controllers) say nothing",
    minutes=10,
    by_clock=True,
)
def brokers_differ(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    steady = _steady_offers(seen)
    if len(set(steady.values())) < 2:
        return
    links = _links_that_were_told(seen)
    links = links[arrow.among(seen.broker_of[links], [*steady])]
    first = -max_by(seen.broker_of[links], -seen.link_times("first_time")[links], len(seen.brokers), -_NO_TIME)
    last = max_by(seen.broker_of[links], seen.link_times("last_time")[links], len(seen.brokers), -_NO_TIME)
    for mine in _clusters(seen, [*steady]):
        of_kind: dict[tuple[tuple[int, int, int], ...], list[int]] = defaultdict(list)
        for broker in mine:
            of_kind[steady[broker]].append(broker)
        longest, since = 0, 0
        for one, other in combinations(list(of_kind.values())[:_KINDS], 2):
            began = np.maximum.outer(first[one[:_COMPARED]], first[other[:_COMPARED]])
            lasted = np.minimum.outer(last[one[:_COMPARED]], last[other[:_COMPARED]]) - began
            if int(lasted.max()) > longest:
                longest, since = int(lasted.max()), int(began.flat[lasted.argmax()])
        if longest < at.minutes * 60 * SECOND:
            continue
        kinds = sorted(of_kind.items(), key=lambda kind: (-len(kind[1]), kind[1]))
        alike = set.intersection(*(set(offers) for offers in of_kind))
        told = [
            some([seen.brokers[broker] for broker in brokers]) + f" ({_shown(set(offers) - alike)})"
            for offers, brokers in kinds[:_TOLD]
        ]
        more = f"; and {count(len(kinds) - _TOLD, 'more kind')}" if len(kinds) > _TOLD else ""
        text = f"Brokers of one cluster offer different versions for {lasting(longest)} or more: "
        text += f"{'; '.join(told)}{more}."
        odd = kinds[-1][1]
        chosen = [int(links[seen.broker_of[links] == broker][0]) for broker in (kinds[0][1][0], odd[0])]
        yield Found(
            text,
            len(mine),
            since,
            since + longest,
            {"broker": seen.brokers[odd[0]]},
            {},
            links=tuple(chosen),
            cause="an upgrade that is not finished",
            proven=False,
        )


_NO_TIME = 1 << 62
_KINDS, _COMPARED, _TOLD = 20, 500, 3
"""Kinds of brokers that are compared, and brokers of each; kinds that are told."""


def _shown(offers: Iterable[tuple[int, int, int]]) -> str:
    """`Fetch 0 to 17, Produce 0 to 11`."""
    told = sorted((api_name(key), low, high) for key, low, high in offers)
    return listed([f"{api} {low} to {high}" for api, low, high in told[:4]], len(told))


def _links_that_were_told(seen: CaptureFrame) -> np.ndarray:
    """Connections on which a broker said what it offers."""
    link = seen.links_of(seen.table("api_versions"))
    link = arrow.distinct(link[link >= 0])
    timed: np.ndarray = (seen.link_times("first_time") != NULL) & (seen.link_times("last_time") != NULL)
    found: np.ndarray = link[timed[link]]
    return found


def _steady_offers(seen: CaptureFrame) -> dict[int, tuple[tuple[int, int, int], ...]]:
    """By broker (API, lowest, highest version) of what clients ask, where it said the same each time. Not controllers,
    which nobody produces to."""
    table = seen.table("api_versions")
    if not len(table) or len(seen.brokers) < 2:
        return {}
    api, low, high = (table.numbers(name, np.int16) for name in ("api_key", "min", "max"))
    link = seen.links_of(table)
    rows = np.flatnonzero(arrow.among(api, _OF_CLIENTS) & (link >= 0) & (low >= 0) & (high >= 0))
    packed = ((seen.broker_of[link[rows]].astype(np.int64) << 10 | api[rows]) << 15 | low[rows]) << 15 | high[rows]
    said: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for one in arrow.distinct(packed).tolist():
        said[one >> 40].append((one >> 30 & 0x3FF, one >> 15 & 0x7FFF, one & 0x7FFF))
    return {
        broker: tuple(offers)
        for broker, offers in said.items()
        if offers[0][0] == api_keys.PRODUCE and len({key for key, _, _ in offers}) == len(offers)
    }


def _clusters(seen: CaptureFrame, brokers: list[int]) -> list[list[int]]:
    """Those of these brokers that are shown to be of one cluster."""
    head = {broker: broker for broker in brokers}

    def of(broker: int) -> int:
        while head[broker] != broker:
            head[broker] = broker = head[head[broker]]  # half as far the next time
        return broker

    def join(some: Iterable[int]) -> None:
        known = sorted({of(broker) for broker in some if broker in head})
        for broker in known[1:]:
            head[broker] = known[0]

    for together in (*_of_topics(seen), *_in_sync(seen)):
        join(together)
    made: dict[int, list[int]] = defaultdict(list)
    for broker in brokers:
        made[of(broker)].append(broker)
    return [mine for mine in made.values() if len(mine) > 1]


_EVERYWHERE = ("AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ")
"""Ids of no topic, and of `__cluster_metadata`: every cluster has them."""


def _of_topics(seen: CaptureFrame) -> Iterator[list[int]]:
    """Brokers that answered well for a topic, which has its id in one cluster only."""
    table, parts = seen.table("partitions"), seen.partitions
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
    broker = spill.take(seen.broker, spill.take(parts.owner, rows))
    pairs = spill.distinct(spill.take(ids, rows).astype(np.int64) << 32 | broker)
    for some_ in split(pairs & 0xFFFFFFFF, pairs >> 32, least=2):
        yield some_.tolist()


def _in_sync(seen: CaptureFrame) -> Iterator[list[int]]:
    """Brokers that some in-sync set names, where each id has one address, which somebody connected to."""
    numbers = {end: number for number, end in enumerate(seen.brokers)}
    ends: dict[int, set[str]] = defaultdict(set)
    for row in seen.table("brokers").every(["node_id", "host", "port"]):
        ends[row["node_id"]].add(root_causes.end_point(row["host"], row["port"]))
    where = {node: numbers[end] for node, (end, *more) in ends.items() if not more and end in numbers}
    if len(where) > 1:
        for together in {tuple(row["isr"]) for row in seen.table("leaders").every(["isr"]) if row["isr"]}:
            yield [where[node] for node in together if node in where]
