"""Versions of clients against what brokers take, now and after an upgrade."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from analyzer import arrow
from analyzer.findings import large, roots
from analyzer.findings.asked import Severity
from analyzer.findings.columns import NULL, standing_for
from analyzer.findings.grouping import first_of, parted
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.seen import BY_BROKERS, NO_CODE, Seen, api_name
from analyzer.findings.words import client, count, name, some
from analyzer.protocol import names, schema

REMOVED: Mapping[int, int] = {
    0: 3, 1: 4, 2: 1, 8: 2, 9: 1, 19: 2, 20: 1, 23: 2, 27: 1, 29: 1, 30: 1, 31: 1, 32: 1, 34: 1, 35: 1, 38: 1, 39: 1,
    40: 1, 41: 1, 56: 2, 76: 1, 77: 1, 78: 1, 79: 1,
}  # fmt: skip
"""Lowest version of an API that Kafka 4.0 to 4.4 takes, where it is not 0 (KIP-896). Not what ApiVersions says: 4.x
offers Produce from 0 on, for old librdkafka's sake (KAFKA-18659), and refuses 0 to 2."""


def _lowest(seen: Seen) -> dict[int, int]:
    """The lowest version of each API that the target takes. Those that it has no more only brokers asked."""
    target = seen.asked.target
    if target is None:
        return dict(REMOVED)
    lowest = {key: low for key, (low, _) in target.items()}
    if lowest.get(names.FETCH, 0) >= REMOVED[names.FETCH]:
        lowest[names.PRODUCE] = max(lowest.get(names.PRODUCE, 0), REMOVED[names.PRODUCE])
    return lowest


_MANY_CLIENTS = 10_000
"""Rows of `clients` up to which a look at them is cheaper than one at all exchanges."""


def _maybe_old(seen: Seen, lowest: Mapping[int, int]) -> bool:
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


def _newest(seen: Seen, old: np.ndarray) -> np.ndarray:
    """bool[old]: on the exchange's connection a client of Kafka 2.4 or later asked which versions there are, and this
    one is the newest that it was told."""
    table = seen.table("api_versions")
    if not len(old) or not len(table):
        return np.zeros(len(old), bool)
    api, highest, link = table.numbers("api_key"), table.numbers("max"), seen.links_of(table)
    told = np.flatnonzero((api >= 0) & (api < _APIS) & (link >= 0))
    key, highest = link[told].astype(np.int64) * _APIS + api[told], highest[told]
    order = np.lexsort((highest, key))
    key, highest = np.append(key[order], -1), np.append(highest[order], -1)
    rows = seen.exchanges
    wanted = rows.link[old].astype(np.int64) * _APIS + rows.api[old]
    at = np.searchsorted(key[:-1], wanted, side="right") - 1  # the last of equal ones is the highest; -1: the end
    late = np.zeros(len(seen.links) + 1, bool)  # one more: -1 is nobody's
    late[rows.link[(rows.api == names.API_VERSIONS) & (rows.version >= _SINCE_2_4)]] = True
    late[-1] = False
    newest: np.ndarray = (key[at] == wanted) & (rows.version[old] == highest[at]) & late[rows.link[old]]
    return newest


@rule(
    "versions", "version-removed-in-target", "error",
    "legacy-job (kafka-python 1.4, 10.0.0.4) uses Fetch 2, Produce 2: refused by Kafka 4.0.",
    why="The table of KIP-896, equal in 4.0 to 4.4. Without --target it is a note, against Kafka 4.0.",
    unless="Brokers among themselves, as their client ids say or what only brokers ask. A client that asks for "
    "versions as those since Kafka 2.4 do (ApiVersions 3), and uses the newest that the broker offers, may have newer "
    "ones: where all that it uses is so, it is a warning. All others are the real problem.",
    advice="Upgrade these clients first.",
    judge="forged: Fetch 3 against 4.0, and Fetch 4; old-* (notes); old-librdkafka-0.10.2, whose clients are of 2026",
    minds=("target",),
)  # fmt: skip
def removed(seen: Seen, at: Limits) -> Iterator[Found]:
    lowest = _lowest(seen)
    if not _maybe_old(seen, lowest):
        return
    rows = seen.exchanges
    low = np.zeros(_APIS, np.int64)
    for key, version in lowest.items():
        if 0 <= key < len(low):
            low[key] = version
    known = (rows.api >= 0) & (rows.api < len(low)) & (rows.version != NO_CODE)
    old = np.flatnonzero(known & (rows.version < low[np.where(known, rows.api, 0)]))
    old = old[~arrow.among(rows.api[old], BY_BROKERS)]  # also of clients without an id
    old = old[~seen.between_brokers[seen.client[old]]] if len(old) else old
    strict, target = seen.asked.target is not None, seen.asked.target_name or "4.0"
    newest = _newest(seen, old)
    for mine in parted(old, seen.client[old]):
        firsts = mine[first_of(rows.api[mine], rows.version[mine])].tolist()
        used = sorted((api_name(int(rows.api[row])), int(rows.version[row])) for row in firsts)
        shown = ", ".join(f"{api} {version}" for api, version in used[:6])
        shown += f" and {len(used) - 6} more" if len(used) > 6 else ""
        who = seen.who(int(seen.client[mine[0]]))
        text = f"{client(who)} uses {shown}: refused by Kafka {name(target)}"
        severity: Severity | None = None if strict else "note"
        advice = None
        if newest[np.searchsorted(old, mine)].all():
            text += "; its brokers offer none newer; it asks for versions as clients since 2.4 do, so may have newer"
            severity, advice = severity or "warning", _SEE
        yield Found(f"{text}.", len(mine), int(rows.asked[mine].min()), int(rows.asked[mine].max()), who,
                    {"api": ",".join(sorted({api for api, _ in used})), "target": target},
                    tuple(mine[[0, 0, -1]].tolist()), severity=severity, advice=advice)  # fmt: skip


@rule(
    "versions", "version-refused", "error",
    "10.0.0.1:9092 closed connections of svc-a (10.0.0.4) on Fetch 2, which it does not offer (3 requests).",
    why="Deterministic: only ApiVersions gets an answer (UNSUPPORTED_VERSION), all others an exception and a close.",
    unless="The version is one that the broker said it offers; the connection was closed for another reason (idle, "
    "login).",
    advice="Upgrade the client.",
    judge="errors-librdkafka-4.3; forged: a version beyond those offered, and one of them",
)  # fmt: skip
def refused(seen: Seen, at: Limits) -> Iterator[Found]:
    rows = seen.exchanges
    found_: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for row in roots.refused_versions(seen).tolist():
        found_[int(seen.client[row]), int(seen.broker[row]), int(rows.api[row]), int(rows.version[row])].append(row)
    for (client_, broker, api, version), mine in found_.items():
        who = seen.who(client_, broker)
        text = f"{who['broker']} closed connections of {client(who)} on {api_name(api)} {version}, which it does not "
        text += "offer "
        since, until = int(rows.asked[mine[0]]), int(rows.asked[mine[-1]])
        yield Found(f"{text}({count(len(mine), 'request')}).", len(mine), since, until, who,
                    {"api": api_name(api), "version": str(version)}, (mine[0], mine[0], mine[-1]),
                    cause="a version outside the broker's range", proven=True)  # fmt: skip


@rule(
    "versions", "message-format-old", "note",
    "legacy-job (10.0.0.4) writes t in message format 1.",
    why="A fact: brokers from 4.0 on write no such format (KIP-724), reading stays.",
    unless="The batches are of format 2.",
    advice="Upgrade the client, or raise what it is told to speak.",
    judge="old-java-0.8.2; forged: magic 1, and 2",
)  # fmt: skip
def old_format(seen: Seen, at: Limits) -> Iterator[Found]:
    table = seen.table("batches")
    if not len(table):
        return
    magic = table.numbers("magic")
    if not (magic < 2).any():
        return
    owner, (where, places) = seen.owners(table), seen.placed(table)
    side, sides = table.codes("side")
    written = arrow.among(side, standing_for(sides, "produce"))
    old = np.flatnonzero(written & (owner >= 0) & (magic >= 0) & (magic < 2))
    by: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for batch in old.tolist():
        by[int(seen.client[owner[batch]]), places[where[batch]][0], int(magic[batch])].append(int(owner[batch]))
    for (client_, topic, form), rows in by.items():
        who = seen.who(client_)
        text = f"{client(who)} writes {name(topic)} in message format {form}."
        yield Found(text, len(rows), int(seen.exchanges.asked[rows[0]]), int(seen.exchanges.asked[rows[-1]]), who,
                    {"topic": topic}, (rows[0], rows[0], rows[-1]))  # fmt: skip


@rule(
    "versions", "zookeeper-consumer", "note",
    "Group g keeps its offsets in ZooKeeper (3 partitions of orders, bills): svc-a (10.0.0.4).",
    why="A fact: OffsetCommit 0 has the broker write them there, and consumers before 0.9 do so themselves. Kafka 4.0 "
    "has neither (KIP-500, KIP-896).",
    unless="Commits of version 1 and later, which the brokers keep; those that were refused.",
    advice="A consumer that commits to the brokers begins without these offsets: give them to its group first "
    "(kafka-consumer-groups.sh --reset-offsets).",
    judge="old-java-0.10.2, old-java-0.8.2; zookeeper-java-0.8.2; forged: OffsetCommit 0, and 1",
)  # fmt: skip
def in_zookeeper(seen: Seen, at: Limits) -> Iterator[Found]:
    table = seen.table("offsets")
    kind, kinds = table.codes("kind")
    rows = large.true(arrow.among(kind, standing_for(kinds, "zookeeper")))
    if not len(rows):
        return
    group, groups = table.codes("group_id")
    rows = rows[(table.codes("error")[0][rows] < 0) & (group[rows] >= 0)]
    place_, places = seen.placed(table)
    time, link = table.numbers("time"), seen.links_of(table)
    for mine in parted(rows, group[rows]):
        where = [places[one] for one in arrow.distinct(place_[mine]).tolist()]
        shown = some(sorted({topic for topic, _ in where}))
        to_brokers = link[mine][link[mine] < len(seen.links)]  # the rest went to ZooKeeper itself
        clients = arrow.distinct(seen.client_of[to_brokers]).tolist()
        named = groups[group[mine[0]]]
        text = f"Group {name(named)} keeps its offsets in ZooKeeper ({count(len(where), 'partition')} of {shown})"
        text += f": {', '.join(client(seen.who(one)) for one in clients[:3])}" if clients else ""
        text += f" and {len(clients) - 3} more" if len(clients) > 3 else ""
        proof = [(one["connection"], one["exchange"]) for one in table.rows(mine[[0, -1]], ["connection", "exchange"])]
        known = [row for one, number in proof if number is not None and (row := seen.row_of(one, number)) is not None]
        when = time[mine][time[mine] != NULL]
        since, until = (int(when.min()), int(when.max())) if len(when) else (None, None)
        yield Found(f"{text}.", len(mine), since, until, seen.who(clients[0]) if clients else {}, {"group_id": named},
                    tuple(known))  # fmt: skip
