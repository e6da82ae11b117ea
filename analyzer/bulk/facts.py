"""The facts of a share: what its connections said in a window that matters for those of other shares.

In: what a shard hands out (`Ended`). Out: `Facts`, which can be stored and merged with those of other shares. Rule:
nothing that was handed out is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from analyzer.bulk import concat, merging
from analyzer.bulk import state as s
from analyzer.bulk.rows import EndPoints, Exchanges, through
from analyzer.bulk.shard_result import Ended
from analyzer.frame.arrow import distinct
from analyzer.frame.buffer_pool import Lender
from captures.packed import Packed, pack, picked

_WORKED_OUT: Final = (s.X_MUTED_US, s.X_NETWORK_US, s.X_HOLD_US, s.X_PATH_DELAY_NS)
_NAMED: Final = (s.X_SLOT, s.X_CLIENT_SIDE, s.X_TRIGGER, s.X_CLIENT_ID, s.X_GROUP, s.X_TRANSACTIONAL_ID)
"""What names the connection of an exchange, which is all that is said of some, and what a shard has numbers of its own
for."""
_SYMBOLS: Final = _NAMED[3:]
# fmt: off
_OF_EXCHANGES: Final = (
    *_WORKED_OUT, s.X_EXCHANGE, s.X_REPLY, s.X_STATUS, s.X_API_KEY, s.X_API_VERSION, s.X_REQUEST_FIRST_NS,
    s.X_REQUEST_LAST_NS, s.X_REQUEST_STATE, s.X_RESPONSE_FIRST_NS, s.X_RESPONSE_LAST_NS, s.X_RESPONSE_STATE,
    s.X_EARLIER_NS, s.X_THROTTLE, s.X_ERROR, s.X_ACKS, s.X_MAX_WAIT, s.X_MIN_BYTES, s.X_ISOLATION_LEVEL, s.X_REPLICA,
    s.X_SESSION, s.X_SESSION_EPOCH, s.X_SESSION_GIVEN, s.X_TIMEOUT, s.X_ASSIGNMENTS, s.X_GENERATION,
)
# fmt: on
"""What else `analyzer.analysis.latency` reads of those that matter, to decide how long they were held."""
_UNSAID: Final = tuple(set(range(s.X_COLUMNS)) - {*_OF_EXCHANGES, *_SYMBOLS, s.X_TRIGGER})
_OF_PARTS: Final = (  # the owner first: it is said anew
    s.P_OWNER,
    s.P_TOPIC,
    s.P_TOPIC_ID,
    s.P_PARTITION,
    s.P_ANSWERED,
    s.P_ERROR,
    s.P_OFFSET,
    s.P_HIGH_WATERMARK,
    s.P_LAST_STABLE,
    s.P_RECORD_BYTES,
    s.P_RECORDS,
    s.P_FOLLOWING,
    s.P_SENT_ON,
)
"""The same of their topic-partitions."""
_PART_SYMBOLS: Final = (s.P_TOPIC, s.P_TOPIC_ID)
_PARTS_UNSAID: Final = tuple(set(range(s.P_COLUMNS)) - set(_OF_PARTS))
_NO_ROWS: Final = np.zeros((s.X_ENDED_COLUMNS, 0), np.int64)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the connections of a share said in one window that matters for others: an `Ended` with one exchange a
    connection, of which it says the connection alone, and those that matter with their topic-partitions; slots numbered
    over all shares, and the connections that it is the first to name: end points, reuse and number by slot. The
    exchanges and topic-partitions stand beside the `Ended`, which has none: for `put_together`; of an exchange `names`
    has its connection and symbols (the columns `_NAMED`, by their place there), `exchanges` the rest."""

    ended: Ended
    names: Packed
    exchanges: Packed
    parts: Packed
    named: dict[int, tuple[Any, Any, int, int]]


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
        used = distinct(slots)
        if len(used) and used[-1] >= len(self._named):
            self._named = np.append(self._named, np.zeros(used[-1] + 1, np.int64))
        now = self._flows.born(used) + 1
        fresh = used[self._named[used] != now]
        self._named[used] = now
        return {slot * self._of + self._number: self._flows.end_points(slot) for slot in fresh.tolist()}


def facts_of(ended: Ended, naming: Naming, every: Exchanges | None = None, matter: np.ndarray | None = None) -> Facts:
    """The facts of one window of a share. `every`: its exchanges as the share's `Window` has them, with what has been
    worked out; `matter` bool[n]: those of them that matter for others."""
    x = np.ascontiguousarray(ended.exchanges.T)  # rows lie one by one, so nothing is copied
    names = picked(x, _NAMED)
    slot, _, trigger, *_ = names
    kept, place = np.zeros(len(x), np.bool_), np.arange(len(x))
    if every is not None and matter is not None and len(every):
        born = naming.born(slot)
        place = concat.places(np.array([0, len(x)]), merging.Orders(trigger, born, born))
        kept = matter[place]
    told = kept | _first_of_each(slot)
    chosen = np.flatnonzero(told)
    others = ~kept[chosen]
    names = names if len(chosen) == len(x) else names[:, chosen]
    names[len(_NAMED) - len(_SYMBOLS) :, others] = s.NULL
    leaders, facts, connections = ended.leaders.copy(), ended.facts.copy(), ended.connections
    slots = (names[0], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT])
    spoken = np.array([one.slot for one in ended.zookeeper], np.int64)
    named = naming.new(np.concatenate([*slots, connections.number, spoken]))
    for numbers in slots:
        numbers[:] = naming.slots(numbers)
    rows = picked(np.ascontiguousarray(ended.parts.T), _OF_PARTS)
    theirs = kept[rows[0]]
    rows = rows if theirs.all() else rows[:, theirs]
    rows[0] = (np.cumsum(told) - 1)[rows[0]]
    thin = replace(
        ended,
        exchanges=ended.exchanges[:, :0].copy(),
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
    at = np.where(others, -1, place[chosen])  # -1 is no row: what only names its connection says nothing else
    columns = every.columns if every is not None else _NO_ROWS
    as_they_stand = len(at) == columns.shape[1] and bool((at == np.arange(len(at))).all())
    rest = pack(columns, _OF_EXCHANGES, None if as_they_stand else at)  # mostly all matter, which takes half the time
    return Facts(thin, pack(names, range(len(_NAMED))), rest, _of(rows, _OF_PARTS), named)


def _of(columns: np.ndarray, which: Sequence[int]) -> Packed:
    """Packed by what they are called."""
    return pack(columns, range(len(which)))._replace(which=np.array(which))


def put_together(told: Sequence[Facts], naming: concat.Naming, lender: Lender) -> concat.Gathered:
    """The exchanges of one window of all shares in one order, symbols numbered for the capture point: as `gathered`
    gives them, but for columns that nobody decides by, which are NULL. `lender`: whose memory they are in."""
    begins = np.cumsum([0, *(one.names.rows for one in told)], dtype=np.int64)
    symbols = [naming.numbers(share).strings for share in range(len(told))]
    names = np.empty((len(_NAMED), int(begins[-1])), np.int64)
    for one, begin, end in zip(told, begins[:-1], begins[1:], strict=True):
        one.names.into(names, np.arange(begin, end))
    slots, sides, trigger = names[: -len(_SYMBOLS)]
    connection = naming.connections(slots, sides)
    age = naming.named()[1][connection]
    place = concat.places(begins, merging.Orders(trigger, connection, age))
    x = lender.numbers(s.X_COLUMNS, len(place))
    for which in _UNSAID:
        x[which] = s.NULL
    x[s.X_TRIGGER, place] = trigger
    for numbers, one, begin, end in zip(symbols, told, begins[:-1], begins[1:], strict=True):
        for which, values in zip(_SYMBOLS, names[-len(_SYMBOLS) :, begin:end], strict=True):
            x[which, place[begin:end]] = through(numbers, values)
        one.exchanges.into(x, place[begin:end])
    ordered = np.empty_like(connection)
    ordered[place] = connection
    owner = _owners([one.parts for one in told], begins, place)
    tables = [_parts_together(told, owner, gone, len(place), symbols, lender) for gone in (False, True)]
    return concat.Gathered(x, ordered, *tables)


def _owners(parts: Sequence[Packed], begins: np.ndarray, place: np.ndarray) -> np.ndarray:
    """`merging.look_at_parts` of the topic-partitions of all shares; `begins`: where the exchanges of each begin."""
    rows = np.repeat(begins[:-1], [one.rows for one in parts])
    rows += _joined(parts, s.P_OWNER)
    owner: np.ndarray = place[rows]
    gone = _joined(parts, s.P_ANSWERED) == s.FORGOTTEN
    owner[gone] = -1 - owner[gone]
    return owner


def _parts_together(
    told: Sequence[Facts], owner: np.ndarray, gone: bool, exchanges: int, symbols: Sequence[np.ndarray], lender: Lender
) -> np.ndarray:
    """The topic-partitions of all shares that are, or are not, taken out of a session, in order of their exchanges."""
    places = np.empty(len(owner), np.int64)
    count = merging.place_parts(owner, gone, np.empty(exchanges, np.int64), places)
    table = lender.numbers(s.P_COLUMNS, count)
    if not count:
        return table
    for which in _PARTS_UNSAID:
        table[which] = s.NULL
    begin = 0
    for one in told:
        one.parts.into(table, places[begin : begin + one.parts.rows])
        begin += one.parts.rows
    chosen = slice(None) if count == len(places) else np.flatnonzero(places >= 0)
    where = places[chosen]
    table[s.P_OWNER, where] = -1 - owner[chosen] if gone else owner[chosen]
    for which in _PART_SYMBOLS:
        table[which, where] = _joined([one.parts for one in told], which, symbols)[chosen]
    return table


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
