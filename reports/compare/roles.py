"""Roles: the clients of a side by what they do, and which roles of two sides are the same.

In: `Side`. Out: `Role`s, and pairs of them. A role is what is written and read in which groups, by clients of which id:
connections of clients whose ids differ in numbers only (`worker-1`, `worker-2`) are of one role where they share a
topic, a group or a transactional id; members of a group are one role whatever their ids. Addresses and ports count for
nothing: an upgraded client has others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.common.listing import listed
from kwire.analyzer.findings.capture import BY_BROKERS, OF_BROKERS
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import schema
from kwire.reports.compare.side import Side

_MEMBERS: Final = (
    apis.JOIN_GROUP,
    apis.SYNC_GROUP,
    apis.HEARTBEAT,
    apis.CONSUMER_GROUP_HEARTBEAT,
    apis.SHARE_GROUP_HEARTBEAT,
    apis.STREAMS_GROUP_HEARTBEAT,
)
"""What only members of a group send."""
_READS: Final = (apis.FETCH, apis.SHARE_FETCH)
_OFFSETS: Final = (apis.OFFSET_COMMIT, apis.OFFSET_FETCH)

_VARYING: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\b[0-9a-f]{12,}\b|\d+"
)
"""What differs between instances and runs: UUIDs, long hexadecimal numbers, decimal ones."""
_LEAST: Final = 0.4
"""Two roles are the same if so much of what is known of both agrees."""
_SIMILAR: Final = 0.8
"""What a name counts that agrees but for its numbers."""
_MOST: Final = 500
"""Roles of a side, the largest, that are compared with all others: each with each takes time."""
_WEIGHTS: Final = {"writes": 3.0, "reads": 3.0, "groups": 3.0, "transactional": 2.0, "client": 2.0, "apis": 1.0}

BROKERS: Final = "brokers among themselves"


@dataclass
class Role:
    """Clients with one task. `links`: their connections; `rows`: their exchanges."""

    clients: list[str]
    addresses: list[str]
    writes: frozenset[str]
    reads: frozenset[str]
    groups: frozenset[str]
    transactional: frozenset[str]
    apis: frozenset[str]
    is_broker: bool
    links: np.ndarray = field(repr=False)
    rows: np.ndarray = field(repr=False)

    @property
    def name(self) -> str:
        """Its clients' id, without what varies where there are several."""
        if self.is_broker:
            return BROKERS
        if len(self.clients) == 1:
            return self.clients[0]
        if not self.clients:
            return "clients without id"
        patterns = sorted({pattern(client) for client in self.clients})
        return listed(patterns[:1], len(patterns))

    def task(self) -> str:
        """Describe its task in a few words."""
        parts = []
        for verb, names in (("writes", self.writes), ("reads", self.reads), ("in group", self.groups)):
            if names:
                parts.append(f"{verb} {listed(sorted(names)[:2], len(names))}")
        return ", ".join(parts) or ", ".join(sorted(self.apis)[:3])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "clients": self.clients,
            "addresses": self.addresses,
            "writes": sorted(self.writes),
            "reads": sorted(self.reads),
            "groups": sorted(self.groups),
            "transactional_ids": sorted(self.transactional),
            "apis": sorted(self.apis),
            "connections": len(self.links),
            "exchanges": len(self.rows),
        }


def pattern(name: str) -> str:
    """A name with `*` for what varies between instances and runs."""
    return _VARYING.sub("*", name)


def roles_of(side: Side) -> list[Role]:
    """The roles of a side, those with most exchanges first."""
    tasks = _Tasks(side)
    members: dict[int, list[int]] = {}
    for link in range(len(side.connections)):
        members.setdefault(tasks.find(("link", link)), []).append(link)
    roles = []
    for links in members.values():
        rows = side.rows_of("exchanges", np.array(links, np.int64))
        if len(rows):
            roles.append(_role(side, tasks, np.array(links, np.int64), rows))
    return sorted(roles, key=lambda role: (role.is_broker, -len(role.rows), role.name))


def _role(side: Side, tasks: _Tasks, links: np.ndarray, rows: np.ndarray) -> Role:
    connections = [side.connections[link] for link in links.tolist()]
    keys = np.unique(side.exchanges["api_key"][rows]).tolist()
    every = [tasks.tasks[link] for link in links.tolist()]
    return Role(
        sorted({each.client_id for each in connections if each.client_id}),
        sorted({each.client_ip for each in connections}),
        frozenset[str]().union(*(each.writes for each in every)),
        frozenset[str]().union(*(each.reads for each in every)),
        frozenset[str]().union(*(each.groups for each in every)),
        frozenset[str]().union(*(each.transactional for each in every)),
        frozenset(schema.api_name(key) for key in keys if key != NULL),
        all(each.is_broker for each in every),
        links,
        rows,
    )


@dataclass
class _Task:
    """The task of one connection."""

    writes: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    transactional: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    is_member: bool = False
    is_broker: bool = False

    @property
    def is_clear(self) -> bool:
        return bool(self.writes or self.reads or self.groups or self.transactional)


class _Tasks:
    """Puts connections together that have one task (a union of sets that share an element)."""

    def __init__(self, side: Side) -> None:
        self.tasks = [_Task() for _ in side.connections]
        self._parents: dict[Hashable, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        self._read(side)
        patterns = [pattern(each.client_id or "") for each in side.connections]
        groups: dict[Hashable, set[str]] = {}
        for link, task in enumerate(self.tasks):
            for topic in task.reads:
                groups.setdefault((patterns[link], topic), set()).update(task.groups)
        for link, task in enumerate(self.tasks):
            for key in self._keys(task, patterns[link], groups):
                self._join(("link", link), key)
        self._attach(side, patterns)

    def find(self, key: Hashable) -> int:
        """The number of the set of an element."""
        return self._numbers.setdefault(self._root(key), len(self._numbers))

    def _root(self, key: Hashable) -> Hashable:
        self._parents.setdefault(key, key)
        while self._parents[key] != key:
            self._parents[key] = self._parents[self._parents[key]]
            key = self._parents[key]
        return key

    def _join(self, first: Hashable, second: Hashable) -> None:
        self._parents[self._root(first)] = self._root(second)

    def _read(self, side: Side) -> None:
        frame, link = side.exchanges, side.link
        api_key = frame["api_key"]
        for key, number in _pairs(link, api_key):
            task = self.tasks[key]
            task.is_member |= number in _MEMBERS
            task.is_broker |= number in BY_BROKERS
        for key, client in _texts(link, frame, "client_id"):
            self.tasks[key].is_broker |= bool(OF_BROKERS.match(client))
        of_group = np.isin(api_key, (*_MEMBERS, *_OFFSETS, apis.ADD_OFFSETS_TO_TXN, apis.TXN_OFFSET_COMMIT))
        for key, group in _texts(link, frame, "group_id", of_group):
            self.tasks[key].groups.add(group)
        for key, name in _texts(link, frame, "transactional_id"):
            self.tasks[key].transactional.add(name)
        for key, number, topic in _topics(side, link, api_key):
            task = self.tasks[key]
            if number == apis.PRODUCE:
                task.writes.add(topic)
            elif number in _READS or number in _OFFSETS:
                task.reads.add(topic)
            else:
                task.named.add(topic)
        readers = side.frame("readers")
        for key, group in _texts(side.links_of(readers), readers, "group_id"):
            if key < len(self.tasks):
                self.tasks[key].groups.add(group)

    def _keys(self, task: _Task, named: str, groups: Mapping[Hashable, Collection[str]]) -> Iterator[Hashable]:
        """Yield what connections of one task share. groups: in which a topic is read, by clients of a pattern."""
        if task.is_broker:
            yield "brokers"
            return
        for group in task.groups:
            yield (named, "group", group)
            if task.is_member:
                yield ("group", group)
        for name in task.transactional:
            yield (named, "transactional", name)
        for topic in task.writes:
            yield (named, "writes", topic)
        for topic in task.reads:
            # A connection that fetches need not say its group: where there is but one, it is that.
            if not task.groups or len(groups[named, topic]) == 1:
                yield (named, "reads", topic)

    def _attach(self, side: Side, patterns: Sequence[str]) -> None:
        """Give connections without a task of their own (the first of a client, say) to the role of their client; of
        several that of the topics that they name."""
        near: dict[Hashable, dict[Hashable, set[str]]] = {}
        for link, task in enumerate(self.tasks):
            if task.is_clear and not task.is_broker:
                root = self._root(("link", link))
                for key in ((patterns[link], side.connections[link].client_id), patterns[link]):
                    near.setdefault(key, {}).setdefault(root, set()).update(task.writes, task.reads)
        for link, task in enumerate(self.tasks):
            if not task.is_clear and not task.is_broker:
                same = near.get((patterns[link], side.connections[link].client_id)) or near.get(patterns[link], {})
                role = _nearest(task.named, same)
                self._join(("link", link), role if role is not None else (patterns[link], "other"))


def _nearest(named: Collection[str], roles: Mapping[Hashable, Collection[str]]) -> Hashable | None:
    """The only role, or the one that has most of the topics that a connection names. `roles`: with their topics."""
    if len(roles) == 1:
        return next(iter(roles))
    shared = Counter({role: len(set(named) & set(topics)) for role, topics in roles.items()}).most_common(2)
    if shared and shared[0][1] and (len(shared) < 2 or shared[0][1] > shared[1][1]):
        return shared[0][0]
    return None


def _pairs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[int, int]]:
    """Distinct pairs of two columns."""
    if len(first):
        for pair in np.unique(np.stack([first, second]), axis=1).T.tolist():
            yield pair[0], pair[1]


def _texts(link: np.ndarray, frame: object, column: str, where: np.ndarray | None = None) -> Iterator[tuple[int, str]]:
    """Distinct pairs of a connection and a text."""
    text = frame.text(column)  # type: ignore[attr-defined]
    chosen = text.codes >= 0 if where is None else (text.codes >= 0) & where
    for key, code in _pairs(link[chosen], text.codes[chosen].astype(np.int64)):
        yield key, text.values[code]


def _topics(side: Side, link: np.ndarray, api_key: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Distinct connections, APIs and topics."""
    lists = side.exchanges.lists("topics")
    values = lists.elements.text("value")
    owner = np.repeat(np.arange(len(link)), np.diff(lists.offsets))
    wide = max(len(values.values), 1)
    joined = api_key[owner] * wide + values.codes
    for key, both in _pairs(link[owner], joined):
        number, code = divmod(both, wide)
        topic = values.values[code]
        yield key, number, side.topics.get(topic, topic)


# --- pairs ------------------------------------------------------------------------------------------------------------


def paired(before: Sequence[Role], after: Sequence[Role]) -> Iterator[tuple[Role | None, Role | None]]:
    """Yield roles that are the same on both sides, the most alike first chosen; then those of one side alone."""
    partners = _same(before, after)
    rest = [at for at in range(len(before)) if at not in partners][:_MOST]
    used = set(partners.values())
    others = [at for at in range(len(after)) if at not in used][:_MOST]
    scores = sorted((-similarity(before[at], after[other]), at, other) for at in rest for other in others)
    for score, at, other in scores:
        if -score >= _LEAST and at not in partners and other not in used:
            partners[at] = other
            used.add(other)
    for at, role in enumerate(before):
        if at in partners:
            yield role, after[partners[at]]
    for at, role in enumerate(before):
        if at not in partners:
            yield role, None
    for other, role in enumerate(after):
        if other not in used:
            yield None, role


def _same(before: Sequence[Role], after: Sequence[Role]) -> dict[int, int]:
    """Roles that agree in all names, by their positions."""

    def key(role: Role) -> Hashable:
        return role.is_broker, tuple(role.clients), role.writes, role.reads, role.groups, role.transactional

    positions: dict[Hashable, list[int]] = {}
    for other, role in enumerate(after):
        positions.setdefault(key(role), []).append(other)
    return {at: positions[key(role)].pop(0) for at, role in enumerate(before) if positions.get(key(role))}


def similarity(first: Role, second: Role) -> float:
    """How much of what is known of two roles agrees: 0 to 1."""
    if first.is_broker or second.is_broker:
        return float(first.is_broker and second.is_broker)
    # A writer is no reader, however alike the rest is.
    if (first.writes or first.reads) and (second.writes or second.reads):
        if not (first.writes and second.writes) and not (first.reads and second.reads):
            return 0.0
    total = whole = 0.0
    for name in ("writes", "reads", "groups", "transactional"):
        both = getattr(first, name), getattr(second, name)
        if any(both):
            whole += _WEIGHTS[name]
            total += _WEIGHTS[name] * _overlap(*both)
    for name, both in (
        ("client", (frozenset(first.clients), frozenset(second.clients))),
        ("apis", (first.apis, second.apis)),
    ):
        whole += _WEIGHTS[name]
        total += _WEIGHTS[name] * (_overlap(*both) if any(both) else 1.0)
    return total / whole


def _overlap(first: Iterable[str], second: Iterable[str]) -> float:
    """How many of all names both have, of the smaller set; names that agree but for their numbers count less."""
    left, right = set(first), set(second)
    least = min(len(left), len(right))
    if not least:
        return 0.0
    exact = len(left & right)
    left_patterns = {pattern(name) for name in left - right}
    right_patterns = {pattern(name) for name in right - left}
    return min((exact + _SIMILAR * len(left_patterns & right_patterns)) / least, 1.0)
