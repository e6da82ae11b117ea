"""Facts of a share's connections in a window that matter for the connections of other shares.

In: a `ShardResult`, which is not changed. Out: `Facts`, which can be stored and merged with those of other shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kwire.analyzer.bulk import concat, merging
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import EndPoints, Exchanges, through
from kwire.analyzer.bulk.shard_result import ShardResult
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.captures.packed import Packed, pack, picked

_WORKED_OUT: Final = (s.X_MUTED_US, s.X_NETWORK_US, s.X_HOLD_US, s.X_PATH_DELAY_NS)
_NAMED: Final = (s.X_SLOT, s.X_CLIENT_SIDE, s.X_COMPLETED_BY, s.X_CLIENT_ID, s.X_GROUP, s.X_TRANSACTIONAL_ID)
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
"""What else `kwire.analyzer.analysis.latency` reads of those that matter, to decide how long they were held."""
_UNSAID: Final = tuple(set(range(s.X_COLUMNS)) - {*_OF_EXCHANGES, *_SYMBOLS, s.X_COMPLETED_BY})
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
    """Facts of one window of a share that matter for other shares.

    A `ShardResult` with one exchange a connection, of which it has the connection alone, and those that matter with
    their topic-partitions; slots numbered over all shares, and the connections that it is the first to name: end
    points, reuse and number by slot. The exchanges and topic-partitions stand beside the `ShardResult`, which has
    none: for `put_together`; of an exchange `names` has its connection and symbols (the columns `_NAMED`, by their
    place there), `exchanges` the rest. `others`: by slot, the ends of other legs of the connections that ended."""

    ended: ShardResult
    names: Packed
    exchanges: Packed
    parts: Packed
    named: dict[int, tuple[Any, Any, int, int]]
    others: dict[int, list[tuple[Any, Any]]]


class SlotNaming:
    """Which connections a share has named, slots numbered over all shares: the `number`-th of `of`."""

    def __init__(self, flows: EndPoints, number: int, of: int) -> None:
        self._flows = flows
        self._number = number
        self._of = of
        self._named = np.zeros(0, np.int64)  # by slot: 1 + the number of the connection last named in it

    def serials(self, slots: np.ndarray) -> np.ndarray:
        """Which connection of the capture point is in each slot."""
        return self._flows.serials(slots)

    def slots(self, slots: np.ndarray) -> np.ndarray:
        """Slots as all shares number them."""
        return slots * self._of + self._number

    def new(self, slots: np.ndarray) -> dict[int, tuple[Any, Any, int, int]]:
        """Return the connections in some slots that were not named yet."""
        used = distinct(slots)
        if len(used) and used[-1] >= len(self._named):
            self._named = np.append(self._named, np.zeros(used[-1] + 1, np.int64))
        now = self._flows.serials(used) + 1
        fresh = used[self._named[used] != now]
        self._named[used] = now
        return {slot * self._of + self._number: self._flows.end_points(slot) for slot in fresh.tolist()}

    def others(self, slots: np.ndarray) -> dict[int, list[tuple[Any, Any]]]:
        """Return the ends of other legs of the connections in some slots, of those that have any."""
        return {slot * self._of + self._number: ends for slot, ends in self._flows.other_end_points(slots).items()}


def facts_of(
    ended: ShardResult, naming: SlotNaming, every: Exchanges | None = None, matter: np.ndarray | None = None
) -> Facts:
    """The facts of one window of a share. `every`: its exchanges as the share's `Window` has them, with what has been
    worked out; `matter` bool[n]: those of them that matter for others."""
    x = np.ascontiguousarray(ended.exchanges.T)  # rows lie one by one, so nothing is copied
    names = picked(x, _NAMED)
    slot, _, completed_by, *_ = names
    matters, place = np.zeros(len(x), np.bool_), np.arange(len(x))
    if every is not None and matter is not None and len(every):
        serials = naming.serials(slot)
        place = concat.places(np.array([0, len(x)]), merging.Orders(completed_by, serials, serials))
        matters = matter[place]
    reported = matters | _first_of_each(slot)
    chosen = np.flatnonzero(reported)
    others = ~matters[chosen]
    names = names if len(chosen) == len(x) else names[:, chosen]
    names[len(_NAMED) - len(_SYMBOLS) :, others] = s.NULL
    leaders, facts, connections = ended.leaders.copy(), ended.facts.copy(), ended.connections
    slots = (names[0], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT])
    spoken = np.array([event.slot for event in ended.zookeeper], np.int64)
    named = naming.new(np.concatenate([*slots, connections.number, spoken]))
    for numbers in slots:
        numbers[:] = naming.slots(numbers)
    rows = picked(np.ascontiguousarray(ended.parts.T), _OF_PARTS)
    owner_matters = matters[rows[0]]
    rows = rows if owner_matters.all() else rows[:, owner_matters]
    rows[0] = (np.cumsum(reported) - 1)[rows[0]]
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
            event._replace(slot=slot)
            for event, slot in zip(ended.zookeeper, naming.slots(spoken).tolist(), strict=True)
        ],
    )
    at = np.where(others, -1, place[chosen])  # -1 is no row: what only names its connection says nothing else
    columns = every.columns if every is not None else _NO_ROWS
    as_they_stand = len(at) == columns.shape[1] and bool((at == np.arange(len(at))).all())
    rest = pack(columns, _OF_EXCHANGES, None if as_they_stand else at)  # mostly all matter, which takes half the time
    others_of = naming.others(connections.number)
    return Facts(thin, pack(names, range(len(_NAMED))), rest, _of(rows, _OF_PARTS), named, others_of)


def _of(columns: np.ndarray, which: Sequence[int]) -> Packed:
    """Packed by what they are called."""
    return pack(columns, range(len(which)))._replace(which=np.array(which))


def put_together(shares: Sequence[Facts], naming: concat.Naming, buffers: BufferPool) -> concat.ConcatColumns:
    """Put the exchanges of one window of all shares in one order, with the capture point's numbers of symbols.

    As `concat_shards`, but columns that no decision needs are NULL. `buffers`: pool of the columns' memory."""
    begins = np.cumsum([0, *(facts.names.rows for facts in shares)], dtype=np.int64)
    symbols = [naming.numbers(share).strings for share in range(len(shares))]
    names = np.empty((len(_NAMED), int(begins[-1])), np.int64)
    for facts, begin, end in zip(shares, begins[:-1], begins[1:], strict=True):
        facts.names.into(names, np.arange(begin, end))
    slots, sides, completed_by = names[: -len(_SYMBOLS)]
    connection = naming.connections(slots, sides)
    age = naming.named()[1][connection]
    place = concat.places(begins, merging.Orders(completed_by, connection, age))
    x = buffers.numbers(s.X_COLUMNS, len(place))
    for which in _UNSAID:
        x[which] = s.NULL
    x[s.X_COMPLETED_BY, place] = completed_by
    for numbers, facts, begin, end in zip(symbols, shares, begins[:-1], begins[1:], strict=True):
        for which, values in zip(_SYMBOLS, names[-len(_SYMBOLS) :, begin:end], strict=True):
            x[which, place[begin:end]] = through(numbers, values)
        facts.exchanges.into(x, place[begin:end])
    ordered = np.empty_like(connection)
    ordered[place] = connection
    owner = _owners([facts.parts for facts in shares], begins, place)
    tables = [_parts_together(shares, owner, gone, len(place), symbols, buffers) for gone in (False, True)]
    return concat.ConcatColumns(x, ordered, *tables)


def _owners(parts: Sequence[Packed], begins: np.ndarray, place: np.ndarray) -> np.ndarray:
    """`merging.look_at_parts` of the topic-partitions of all shares; `begins`: where the exchanges of each begin."""
    rows = np.repeat(begins[:-1], [table.rows for table in parts])
    rows += _joined(parts, s.P_OWNER)
    owner: np.ndarray = place[rows]
    gone = _joined(parts, s.P_ANSWERED) == s.FORGOTTEN
    owner[gone] = -1 - owner[gone]
    return owner


def _parts_together(
    shares: Sequence[Facts],
    owner: np.ndarray,
    gone: bool,
    exchanges: int,
    symbols: Sequence[np.ndarray],
    buffers: BufferPool,
) -> np.ndarray:
    """The topic-partitions of all shares that are, or are not, taken out of a session, in order of their exchanges."""
    places = np.empty(len(owner), np.int64)
    count = merging.place_parts(owner, gone, np.empty(exchanges, np.int64), places)
    table = buffers.numbers(s.P_COLUMNS, count)
    if not count:
        return table
    for which in _PARTS_UNSAID:
        table[which] = s.NULL
    begin = 0
    for facts in shares:
        facts.parts.into(table, places[begin : begin + facts.parts.rows])
        begin += facts.parts.rows
    chosen = slice(None) if count == len(places) else np.flatnonzero(places >= 0)
    where = places[chosen]
    table[s.P_OWNER, where] = -1 - owner[chosen] if gone else owner[chosen]
    for which in _PART_SYMBOLS:
        table[which, where] = _joined([facts.parts for facts in shares], which, symbols)[chosen]
    return table


def _joined(some: Sequence[Packed], which: int, symbols: Sequence[np.ndarray] = ()) -> np.ndarray:
    """int64[rows of all]: a column; what its symbols are for each, where it has some."""
    values = [table.column(which) for table in some]
    if symbols:
        values = [through(numbers, column) for numbers, column in zip(symbols, values, strict=True)]
    return np.concatenate(values)


def _first_of_each(slots: np.ndarray) -> np.ndarray:
    """bool[n]: which exchange is the first of its connection."""
    first = np.zeros(int(slots.max(initial=-1)) + 1, np.int64)
    first[slots[::-1]] = np.arange(len(slots))[::-1]  # of several the last one stays, which is the first of all
    is_first: np.ndarray = first[slots] == np.arange(len(slots))
    return is_first
