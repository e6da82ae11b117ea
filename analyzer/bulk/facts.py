"""The facts of a share: what its connections said in a window that matters for those of other shares.

In: what a shard hands out (`Ended`). Out: `Facts`, which can be stored and merged with those of other shares. Rule:
nothing that was handed out is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from analyzer.bulk import gathering, merging
from analyzer.bulk import state as s
from analyzer.bulk.ended import Ended
from analyzer.bulk.rows import EndPoints, Exchanges, through
from analyzer.lending import Lender

_WORKED_OUT: Final = (s.X_MUTED_US, s.X_NETWORK_US, s.X_HOLD_US, s.X_WAY_NS)
_OF_CONNECTIONS: Final = (s.X_SLOT, s.X_CLIENT_SIDE, s.X_TRIGGER)
"""What is said of an exchange that only names its connection."""
_OF_EXCHANGES: Final = (
    *_OF_CONNECTIONS, *_WORKED_OUT, s.X_EXCHANGE, s.X_REPLY, s.X_STATUS, s.X_API_KEY, s.X_API_VERSION, s.X_CLIENT_ID,
    s.X_REQUEST_FIRST_NS, s.X_REQUEST_LAST_NS, s.X_REQUEST_STATE, s.X_RESPONSE_FIRST_NS, s.X_RESPONSE_LAST_NS,
    s.X_RESPONSE_STATE, s.X_EARLIER_NS, s.X_THROTTLE, s.X_ERROR, s.X_ACKS, s.X_MAX_WAIT, s.X_MIN_BYTES,
    s.X_ISOLATION_LEVEL, s.X_REPLICA, s.X_SESSION, s.X_SESSION_EPOCH, s.X_SESSION_GIVEN, s.X_TIMEOUT, s.X_ASSIGNMENTS,
    s.X_GROUP, s.X_GENERATION, s.X_TRANSACTIONAL_ID,
)  # fmt: skip
"""What `analyzer.meaning.latency` reads of those that matter, to decide how long they were held."""
_SYMBOLS: Final = (s.X_CLIENT_ID, s.X_GROUP, s.X_TRANSACTIONAL_ID)
"""Of these, what a shard has numbers of its own for."""
_OF_PARTS: Final = (
    s.P_OWNER, s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION, s.P_ANSWERED, s.P_ERROR, s.P_OFFSET, s.P_HIGH_WATERMARK,
    s.P_LAST_STABLE, s.P_RECORD_BYTES, s.P_RECORDS, s.P_FOLLOWING, s.P_SENT_ON,
)  # fmt: skip
"""The same of their topic-partitions."""
_PART_SYMBOLS: Final = (s.P_TOPIC, s.P_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the connections of a share said in one window that matters for others: an `Ended` with one exchange a
    connection, of which it says the connection alone, and those that matter with their topic-partitions; slots numbered
    over all shares, and the connections that it is the first to name: end points, reuse and number by slot. The
    exchanges and topic-partitions stand beside the `Ended`, which has none: for `put_together`."""

    ended: Ended
    exchanges: Packed
    parts: Packed
    named: dict[int, tuple[Any, Any, int, int]]


class Packed(NamedTuple):
    """Some columns of a table, int64[rows] each, by number: what they exceed a number by, 0 where it is NULL, in as few
    bytes as that takes. Without values: all are."""

    rows: int
    columns: dict[int, tuple[int, np.ndarray | None]]

    @classmethod
    def of(cls, rows: int, columns: Iterable[tuple[int, np.ndarray]]) -> Packed:
        """These columns."""
        return cls(rows, {which: _narrow(values) for which, values in columns})

    def column(self, which: int) -> np.ndarray:
        """int64[rows], of one's own."""
        least, values = self.columns.get(which, (0, None))
        if values is None:
            return np.full(self.rows, s.NULL)
        if values.dtype == np.int64:
            return values.copy()
        found: np.ndarray = np.add(values, least, dtype=np.int64)
        found[values == 0] = s.NULL
        return found


def _narrow(values: np.ndarray) -> tuple[int, np.ndarray | None]:
    """A number, and what int64[n] exceed it by, unsigned; 0: NULL. None: all are. They themselves, where that takes as
    many bytes."""
    if not len(values):
        return 0, None
    least, most = int(values.min()), int(values.max())
    if most == s.NULL:
        return 0, None
    some = least == s.NULL
    if some:
        known = values != s.NULL
        least = int(values[known].min())
    least -= 1
    kind = next((kind for kind in _KINDS if most - least <= np.iinfo(kind).max), None)
    if kind is None:
        return 0, values.copy()
    above = (values - least).astype(kind)
    if some:
        above[~known] = 0
    return least, above


_KINDS: Final = (np.uint8, np.uint16, np.uint32)


class Naming:
    """Which connections a share has named, slots numbered over all shares: the `number`-th of `of`."""

    def __init__(self, flows: EndPoints, number: int, of: int) -> None:
        self._flows = flows
        self._number = number
        self._of = of
        self._named = np.zeros(0, np.int64)  # by slot: 1 + the number of the connection last named in it

    def born(self, slots: np.ndarray) -> np.ndarray:
        """Which connection of the capture point is in each slot."""
        return self._flows.born(slots)

    def slots(self, slots: np.ndarray) -> np.ndarray:
        """Slots as all shares number them."""
        return slots * self._of + self._number

    def new(self, slots: np.ndarray) -> dict[int, tuple[Any, Any, int, int]]:
        """Those of the connections in some slots that were not named yet."""
        used = np.unique(slots)
        if len(used) and used[-1] >= len(self._named):
            self._named = np.append(self._named, np.zeros(used[-1] + 1, np.int64))
        now = self._flows.born(used) + 1
        fresh = used[self._named[used] != now]
        self._named[used] = now
        return {slot * self._of + self._number: self._flows.end_points(slot) for slot in fresh.tolist()}


def facts_of(ended: Ended, naming: Naming, every: Exchanges | None = None, matter: np.ndarray | None = None) -> Facts:
    """The facts of one window of a share. `every`: its exchanges as the share's `Window` has them, with what has been
    worked out; `matter` bool[n]: those of them that matter for others."""
    x = ended.exchanges
    count = x.shape[1]
    kept, place = np.zeros(count, np.bool_), np.arange(count)
    if every is not None and matter is not None and len(every):
        born = naming.born(x[s.X_SLOT])
        place = gathering.places(np.array([0, count]), merging.Orders(x[s.X_TRIGGER].copy(), born, born))
        kept = matter[place]
    told = kept | _first_of_each(x[s.X_SLOT])
    chosen = np.flatnonzero(told)
    others = ~kept[chosen]
    leaders, facts, connections = ended.leaders.copy(), ended.facts.copy(), ended.connections
    slots = (x[s.X_SLOT, chosen], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT])
    spoken = np.array([one.slot for one in ended.zookeeper], np.int64)
    named = naming.new(np.concatenate([*slots, connections.number, spoken]))
    for numbers in slots:
        numbers[:] = naming.slots(numbers)
    at = place[chosen]

    def column(which: int) -> np.ndarray:
        values: np.ndarray = slots[0]
        if which == s.X_SLOT:
            return values
        if which in _OF_CONNECTIONS or which in _SYMBOLS or every is None:
            values = x[which, chosen]
        else:  # column by column they lie side by side there
            values = every.columns[which].take(at)
        if which not in _OF_CONNECTIONS:
            values[others] = s.NULL
        return values

    owner = ended.parts[s.P_OWNER]
    theirs = np.flatnonzero(kept[owner])
    owners = (np.cumsum(told) - 1)[owner[theirs]]
    rows = ended.parts.T[theirs]  # they lie row by row
    parts = [owners if which == s.P_OWNER else rows[:, which] for which in _OF_PARTS]
    thin = replace(
        ended,
        exchanges=x[:, :0].copy(),
        facts=facts,
        leaders=leaders,
        connections=replace(connections, number=naming.slots(connections.number)),
        parts=ended.parts[:, :0].copy(),
        messages=ended.messages[:0],
        message_bytes=ended.message_bytes[:0],
        sets=ended.sets[:0],
        set_bytes=ended.set_bytes[:0],
        zookeeper=[
            one._replace(slot=slot) for one, slot in zip(ended.zookeeper, naming.slots(spoken).tolist(), strict=True)
        ],
    )
    wanted = _OF_EXCHANGES if kept.any() else _OF_CONNECTIONS
    packed = Packed.of(len(chosen), ((which, column(which)) for which in wanted))
    return Facts(thin, packed, Packed.of(len(theirs), zip(_OF_PARTS, parts, strict=True)), named)


def put_together(told: Sequence[Facts], naming: gathering.Naming, lender: Lender) -> gathering.Gathered:
    """The exchanges of one window of all shares in one order, symbols numbered for the capture point: as `gathered`
    gives them, but for columns that nobody decides by, which are NULL. `lender`: whose memory they are in."""
    begins = np.cumsum([0, *(one.exchanges.rows for one in told)], dtype=np.int64)
    symbols = [naming.numbers(share).strings for share in range(len(told))]
    exchanges = [one.exchanges for one in told]
    connection = naming.connections(_joined(exchanges, s.X_SLOT), _joined(exchanges, s.X_CLIENT_SIDE))
    age = naming.named()[1][connection]
    place = gathering.places(begins, merging.Orders(_joined(exchanges, s.X_TRIGGER), connection, age))
    x = lender.numbers(s.X_COLUMNS, len(place))
    said = {which for one in exchanges for which in one.columns} - {s.X_SLOT, s.X_CLIENT_SIDE}
    for which in range(s.X_COLUMNS):
        if which in said:
            x[which, place] = _joined(exchanges, which, symbols if which in _SYMBOLS else ())
        else:
            x[which] = s.NULL
    ordered = np.empty_like(connection)
    ordered[place] = connection
    parts = [one.parts for one in told]
    owner = place[_joined(parts, s.P_OWNER) + np.repeat(begins[:-1], [one.rows for one in parts])]
    gone = _joined(parts, s.P_ANSWERED) == s.FORGOTTEN
    orders = [rows[np.argsort(owner[rows], kind="stable")] for rows in (np.flatnonzero(~gone), np.flatnonzero(gone))]
    tables = [np.full((s.P_COLUMNS, len(order)), s.NULL) for order in orders]
    for which in _OF_PARTS:
        values = _joined(parts, which, symbols if which in _PART_SYMBOLS else ()) if which != s.P_OWNER else owner
        for table, order in zip(tables, orders, strict=True):
            np.take(values, order, out=table[which])
    return gathering.Gathered(x, ordered, *tables)


def _joined(some: Sequence[Packed], which: int, symbols: Sequence[np.ndarray] = ()) -> np.ndarray:
    """int64[rows of all]: a column; what its symbols are for each, where it has some."""
    values = [one.column(which) for one in some]
    if symbols:
        values = [through(numbers, one) for numbers, one in zip(symbols, values, strict=True)]
    return np.concatenate(values)


def _first_of_each(slots: np.ndarray) -> np.ndarray:
    """bool[n]: which exchange is the first of its connection."""
    first = np.zeros(int(slots.max(initial=-1)) + 1, np.int64)
    first[slots[::-1]] = np.arange(len(slots))[::-1]  # of several the last one stays, which is the first of all
    found: np.ndarray = first[slots] == np.arange(len(slots))
    return found
