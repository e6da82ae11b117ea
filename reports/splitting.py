"""A capture point too big for one task, decoded by connection.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 files ──scan──▶ packets ──shuffle by connection──▶ decode ──shuffle by time──▶ merge ──▶ Parquet
                 clocks  ──────────▶ resolve ─────────┘ └──── facts ───────────▶ small tables, coverage
```

A connection is decoded by one task, all of it, by the same stages as everywhere. What the local engine knows because it
sees every packet is brought along:

- *Order.* A packet's ordinal is its file's number and its number in that file. Rows carry the ordinal of the packet
  that completed them and that of their connection's first packet; merging sorts by both.
- *Time.* A connection that was closed lingers for some seconds of capture time, and ends before the first packet of any
  connection that comes later. Each task that scans says how the clock ran; one task finds for each FIN and RST the
  packet that ends the wait, and decoding gets it as a *tick*: a packet of no connection.
- *Facts.* Names for topic ids, brokers, leaders: what one connection said matters for all. They are few, and one task
  takes them all in order, as the local engine does, window by window. A *range* of packets stands for a window.

Fragments of IP packets may lie in two files. Where more than one file holds fragments, one task scans all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer import state as s
from analyzer import tables
from analyzer.columns import Columns, plain
from analyzer.conversation import Batch, Conversations, layouts
from analyzer.dataset import Parts
from analyzer.engine import LARGEST_SHARE, Settings
from analyzer.reading import Choice, PointRead, PointTables
from analyzer.record_reading import OpenedRecords
from analyzer.record_tables import NO_RECORDS
from analyzer.summary import Summary
from captures import blocks
from captures.blocks import Block
from captures.files import CaptureError, CapturePoint, FileInfo
from captures.flows import CONN_BORN, FIN, LINGER_NS, RST, Flows
from captures.packets import Packets, Reader
from captures.streams import WAITING_BYTES, Streams
from reports.tasks import Done, Refused, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

SCAN_BYTES, MOST_SCAN_BYTES = 8 << 20, 64 << 20
"""Capture bytes read at a time: more for many buckets, or what each gets would be crumbs."""

BUCKET_BYTES = 256 << 20
"""Capture bytes that one decoding task gets, on average."""

MOST_BUCKETS = 2000
"""Each scanning task sorts its packets into that many heaps."""

WINDOW_BYTES = 8 << 20
"""Bytes that decoding works on at a time."""

RANGE_PACKETS = 1 << 20
"""Packets whose rows one merging task holds in memory."""

_PIECE = 40
"""Bits of an ordinal that count packets of one file."""

_LAST = 1 << 62
"""After the last packet: when connections end that are still open."""

_TRIGGER, _BORN = "_trigger", "_born"
Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Group:
    """Files that one task scans, one after the other: `first` is the number of the first of them."""

    number: int
    first: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """How a window's clock ran: `clock` int64[n], the latest time of the group so far; `closing`: FIN and RST."""

    ordinal: int
    clock: np.ndarray
    closing: np.ndarray


@dataclass(frozen=True, slots=True)
class Scanned:
    """What is known of a group's files when they have been read. `packets`: TCP packets of each."""

    group: Group
    files: list[FileInfo]
    counts: dict[str, int]
    notes: list[str]
    packets: list[int]
    latest: int


@dataclass(frozen=True, slots=True)
class Ticks:
    """For the moments `after` (int64, rising) the first packet later than each: its `ordinal`, and its `clock`."""

    after: np.ndarray
    ordinal: np.ndarray
    clock: np.ndarray

    def of(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ordinals, clocks) for some of the moments, those without a later packet left out."""
        at = np.searchsorted(self.after, moments)
        found = at[(at < len(self.after)) & (self.after[np.minimum(at, len(self.after) - 1)] == moments)]
        found = np.unique(found)
        ordinal, first = np.unique(self.ordinal[found], return_index=True)
        return ordinal, self.clock[found][first]


@dataclass(frozen=True, slots=True)
class Known:
    """What decoding tasks are told. `before`: each group's clock when it began; `starts`: first ordinals of ranges."""

    point: CapturePoint
    settings: Settings
    choice: Choice
    buckets: int
    files: list[FileInfo]
    before: dict[int, int]
    ticks: Ticks
    starts: np.ndarray
    scanned: tuple[Scanned, ...]


@dataclass(slots=True)
class Facts:
    """What one bucket's connections said in one range: a `Batch` without exchanges but one a connection, and the
    connections that began: (slot, end points, reuse, ordinal of the first packet)."""

    batch: Batch
    began: list[tuple[int, tuple[Any, Any, int, int]]]


# --- scanning ---------------------------------------------------------------------------------------------------------


def bucket_of(packets: Packets, buckets: int) -> np.ndarray:
    """uint16[n]: where the packets' connections are decoded; both directions of a four-tuple alike."""

    def end(address_hi: np.ndarray, address_lo: np.ndarray, port: np.ndarray) -> np.ndarray:
        mixed = address_hi * np.uint64(0x9E3779B97F4A7C15) ^ address_lo * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= port.astype(np.uint64) * np.uint64(0x165667B19E3779F9)
        return (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)

    both = end(packets.src_hi, packets.src_lo, packets.src_port) + end(packets.dst_hi, packets.dst_lo, packets.dst_port)
    bucket: np.ndarray = ((both ^ both >> np.uint64(31)) % np.uint64(buckets)).astype(np.uint16)
    return bucket


def scan(group: Group, point: CapturePoint, buckets: int) -> Iterator[tuple[Key, Block | Clock | Scanned | Refused]]:
    """A group's packets for each bucket, and for bucket number `buckets` its clock, then what is known of its files."""
    window_bytes = max(SCAN_BYTES, min(MOST_SCAN_BYTES, buckets << 17))
    reader = Reader(replace(point, paths=group.paths, notes=()), window_bytes=window_bytes)
    seen = [0] * len(group.paths)
    latest = -(1 << 62)
    step = 0
    try:
        for packets in reader:
            n = len(packets)
            if n:
                file = int(packets.file[0])  # a window never spans two files
                first = ((group.first + file) << _PIECE) + seen[file]
                seen[file] += n
                clock = np.maximum(np.maximum.accumulate(packets.time_ns), latest)
                latest = int(clock[-1])
                packets.file[:] = group.first + file
                bucket = bucket_of(packets, buckets)
                order = np.argsort(bucket, kind="stable")
                bounds = np.searchsorted(bucket[order], np.arange(buckets + 1))
                ordinal = first + np.arange(n)
                for i in np.flatnonzero(np.diff(bounds)).tolist():
                    rows = order[bounds[i] : bounds[i + 1]]
                    yield (i, group.number, step), blocks.block(packets, rows, ordinal, clock)
                closing = np.flatnonzero(packets.flags & (FIN | RST))
                yield (buckets, group.number, step), Clock(first, clock, closing)
                step += 1
            packets.release()
        known = Scanned(group, reader.files, reader.counts, reader.notes, seen, latest)
        yield (buckets, group.number, step), known
    except CaptureError as failure:
        yield (buckets, group.number, step), Refused(str(failure), failure.hint)


def resolve(clocks: Iterable[tuple[Key, Any]]) -> Iterator[Scanned | Refused | Ticks]:
    """All clocks of a capture point, in order: the packets that end connections which were closed."""
    waiting = np.zeros(0, np.int64)  # moments, rising
    before = latest = -(1 << 62)
    after, ordinals, times = [], [], []
    for _, one in clocks:
        if not isinstance(one, Clock):
            before = latest  # of the next group
            yield one
            continue
        clock = np.maximum(one.clock, before)
        latest = int(clock[-1])
        waiting = np.unique(np.concatenate([waiting, clock[one.closing] + LINGER_NS]))
        at = np.searchsorted(clock, waiting, side="right")
        done = at < len(clock)
        after.append(waiting[done])
        ordinals.append(one.ordinal + at[done])
        times.append(clock[at[done]])
        waiting = waiting[~done]
    none = [np.zeros(0, np.int64)]
    yield Ticks(np.concatenate(after or none), np.concatenate(ordinals or none), np.concatenate(times or none))


# --- decoding ---------------------------------------------------------------------------------------------------------


class Decoder:
    """One bucket: packets in order go in, tables and facts of one range after the other come out."""

    def __init__(self, known: Known, bucket: int) -> None:
        settings = known.settings
        self._known = known
        self._bucket = bucket
        self._flows = Flows()
        shards = max(1, settings.threads)  # the limits are those of one of the local engine's shards
        waiting = min(WAITING_BYTES, settings.frame_limit // 2)
        self._streams = Streams(0, 1, max(1 << 16, waiting // shards))
        self._conversations = Conversations(
            layouts(),
            settings.ports,
            settings.keep_messages,
            max(settings.frame_limit // (2 * shards), settings.frame_limit // LARGEST_SHARE),
            settings.frame_limit // LARGEST_SHARE,
            settings.keep_records,
        )
        engine: Any = SimpleNamespace(
            flows=self._flows, settings=replace(settings, threads=1), reader=SimpleNamespace(files=known.files)
        )
        self.columns = Columns(engine, known.point.name)
        self._opened = OpenedRecords(self.columns, known.choice.records, 1, known.choice.limits)
        self._tables = PointTables(self.columns, known.choice, self._opened)
        self._base = 0
        self._range = 0
        self._held: list[Block] = []
        self._ticks = np.zeros((2, 0), np.int64)
        self._born: list[int] = []  # ordinals of the connections' first packets, by their serial numbers
        self._ended: list[np.ndarray] = []
        self._made: dict[str, list[pa.Table]] = defaultdict(list)
        self._facts: list[Facts] = []

    def take(self, group: int, block: Block) -> Iterator[tuple[Key, Any]]:
        """The next packets; what comes out are ranges that are complete."""
        known = self._known
        block = replace(block, clock=np.maximum(block.clock, known.before[group]))
        closing = block.columns["flags"] & (FIN | RST) != 0
        self._add_ticks(block.clock[closing] + LINGER_NS)
        at = 0
        while at < len(block):
            place = int(np.searchsorted(known.starts, block.ordinal[at], side="right")) - 1
            while self._range < place:
                yield from self._close_range()
            limit = known.starts[place + 1] if place + 1 < len(known.starts) else _LAST
            stop = int(np.searchsorted(block.ordinal, limit))
            self._held.append(blocks.part(block, at, stop))
            if sum(len(one.data) + 128 * len(one) for one in self._held) >= WINDOW_BYTES:
                self._work()
            at = stop

    def finish(self) -> Iterator[tuple[Key, Any]]:
        """The capture is over."""
        known = self._known
        while self._range < len(known.starts) - 1:
            yield from self._close_range()
        self._work(int(_LAST))
        self._process(blocks.nothing(), final=True)
        for name, table in self._opened.finish(everything=True):  # of no exchange: after all others
            nowhere = np.full(len(table), _LAST + 1), np.full(len(table), self._bucket)
            self._keep(name, table, *nowhere)
        yield from self._close_range()
        self._tables.summary.records.join(self._opened.counts)
        self._tables.summary.name_topics(self.columns.topic_lists(), str)  # ids get their names where all are known
        yield (len(known.starts), len(known.starts), self._bucket), self._tables.summary

    def _add_ticks(self, moments: np.ndarray) -> None:
        if not len(moments) or not len(self._known.ticks.after):
            return
        new = np.concatenate([self._ticks, np.stack(self._known.ticks.of(np.unique(moments)))], axis=1)
        _, first = np.unique(new[0], return_index=True)
        self._ticks = new[:, first]

    def _work(self, until: int = 0) -> None:
        """Work off what is held, with the ticks up to its last packet (or before the ordinal `until`)."""
        block = blocks.joined(self._held) if self._held else blocks.nothing()
        self._held = []
        until = until or int(block.ordinal[-1]) + 1
        due = self._ticks[0] < until
        block = blocks.with_ticks(block, *self._ticks[:, due])
        self._ticks = self._ticks[:, ~due]
        if len(block):
            self._process(block)

    def _process(self, block: Block, final: bool = False) -> None:
        packets = blocks.packets(block)
        flows = self._flows
        assigned = flows.all_end() if final else flows.assign(replace(packets, time_ns=block.clock))
        slots, first = np.unique(assigned.slot[assigned.slot >= 0], return_index=True)
        began = flows.conn[slots, CONN_BORN] >= len(self._born)
        opened = np.sort(block.ordinal[assigned.slot >= 0][first[began]])
        self._born += opened.tolist()
        segments = self._streams.advance(packets, assigned, self._base, flows.slots)
        batch = self._conversations.take(segments, self._streams, assigned, final)
        self._place(batch, np.append(block.ordinal, _LAST))
        self._base += len(block)
        self._ended.append(batch.ended[:, 0].copy())
        self._facts.append(self._facts_of(batch, slots[began]))
        found = dict(self._tables.take([batch]))
        if "messages" in found:
            self._keep("messages", found.pop("messages"), *self._message_keys(batch))
        self._keep_rows([*found.items(), *self._opened.flush()])

    def _place(self, batch: Batch, ordinal: np.ndarray) -> None:
        """Numbers of packets in this bucket become ordinals of the capture point."""
        for column in (
            batch.exchanges[s.X_TRIGGER], batch.facts[:, s.FACT_TRIGGER], batch.leaders[:, s.L_TRIGGER],
            batch.ended[:, 1], batch.messages[:, s.MSG_TRIGGER],
        ):  # fmt: skip
            column[:] = ordinal[column - self._base]

    def _facts_of(self, batch: Batch, began: np.ndarray) -> Facts:
        """The few rows of a batch that matter for other connections, slots numbered over all buckets. Copies: whoever
        takes the batch renumbers it in place."""
        _, first = np.unique(batch.exchanges[s.X_SLOT], return_index=True)
        exchanges = np.full((s.X_COLUMNS, len(first)), s.NULL, np.int64)
        for row in (s.X_SLOT, s.X_NEXT, s.X_TRIGGER):
            exchanges[row] = batch.exchanges[row, first]
        exchanges[s.X_SLOT] = self._slot(exchanges[s.X_SLOT])
        facts, leaders, ended = batch.facts.copy(), batch.leaders.copy(), batch.ended.copy()
        facts[:, s.FACT_SLOT] = self._slot(facts[:, s.FACT_SLOT])
        leaders[:, s.L_SLOT] = self._slot(leaders[:, s.L_SLOT])
        ended[:, 0] = self._slot(ended[:, 0])
        thin = replace(
            batch, exchanges=exchanges, facts=facts, leaders=leaders, ended=ended, k=batch.k.copy(),
            parts=batch.parts[:, :0],
            messages=batch.messages[:0], message_bytes=batch.message_bytes[:0], sets=batch.sets[:0],
            set_bytes=batch.set_bytes[:0],
        )  # fmt: skip
        connections = []
        for slot in began.tolist():
            a, b, reuse, serial = self._flows.end_points(slot)
            connections.append((int(self._slot(slot)), (a, b, reuse, self._born[serial])))
        return Facts(thin, connections)

    def _slot(self, slot: Any) -> Any:
        return slot * self._known.buckets + self._bucket

    def _message_keys(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of `messages` of this window stand; the table is sorted by both."""
        trigger = batch.messages[:, s.MSG_TRIGGER]
        born = self._born_of(self.columns.message_connections(batch))
        order = np.lexsort((born, trigger))
        return trigger[order], born[order]

    def _born_of(self, connections: np.ndarray) -> np.ndarray:
        """Ordinals of the first packets of connections, by their numbers in `columns`."""
        used, where = np.unique(connections, return_inverse=True)
        first = np.array([self._born[self.columns.connection_born(number)] for number in used.tolist()], np.int64)
        born: np.ndarray = first[where] if len(first) else np.zeros(0, np.int64)
        return born

    def _keep_rows(self, opened: list[tuple[str, pa.Table]]) -> None:
        """The window's tables, each row with its place; `opened`: those of record batches."""
        rows = self._tables.waiting
        self.columns.connections.clear()  # they are told where all facts are
        none = np.zeros(0, np.int64)
        trigger = np.concatenate([none, *(one.x[s.X_TRIGGER] for one in rows)])
        born = self._born_of(np.concatenate([none, *(one.connection for one in rows)]))
        found = dict(self._tables.flush())
        exchanges = found["exchanges"]
        for name, table in (*found.items(), *opened):
            if name == "exchanges":
                self._keep(name, table, trigger, born)
            elif "exchange" in table.column_names:
                owner = owners(exchanges, table)
                self._keep(name, table, trigger[owner], born[owner])

    def _keep(self, name: str, table: pa.Table, trigger: np.ndarray, born: np.ndarray) -> None:
        if len(table):
            placed = plain(table, name).append_column(_TRIGGER, pa.array(trigger))
            self._made[name].append(placed.append_column(_BORN, pa.array(born)))

    def _close_range(self) -> Iterator[tuple[Key, Any]]:
        """Hand out what the current range holds, and go on to the next."""
        starts = self._known.starts
        following = self._range + 1
        if self._held or len(self._ticks[0]):
            self._work(int(starts[following]) if following < len(starts) else int(_LAST))
        # Only now: within a range, which later counts as one window, a slot stands for one connection.
        for slots in self._ended:
            self._flows.recycle(slots)
        self._ended = []
        if self._made:
            pieces = {name: _packed(pa.concat_tables(parts)) for name, parts in self._made.items()}
            yield (self._range, self._range, self._bucket), pieces
        if self._facts:
            yield (len(starts), self._range, self._bucket), _together(self._facts)
        self._made, self._facts = defaultdict(list), []
        self._range = following


def owners(exchanges: pa.Table, table: pa.Table) -> np.ndarray:
    """int64[rows of table]: which row of `exchanges` has the same connection, exchange and reply."""
    names = pc.unique(exchanges["connection"].cast(pa.string()))

    def triples(rows: pa.Table) -> np.ndarray:
        columns = [pc.index_in(rows["connection"].cast(pa.string()), value_set=names)]
        columns += [pc.fill_null(rows[name], -1) for name in ("exchange", "reply")]
        return np.column_stack([column.to_numpy().astype(np.int64) for column in columns])

    wanted = triples(table)
    change = np.ones(len(wanted), bool)  # rows of one exchange follow one another
    change[1:] = (wanted[1:] != wanted[:-1]).any(axis=1)
    known = triples(exchanges)
    _, which = np.unique(np.concatenate([known, wanted[change]]), axis=0, return_inverse=True)
    place = np.zeros(int(which.max(initial=-1)) + 1, np.int64)
    place[which[: len(known)]] = np.arange(len(known))
    owner: np.ndarray = place[which[len(known) :]][np.cumsum(change) - 1] if len(wanted) else np.zeros(0, np.int64)
    return owner


def _together(facts: Sequence[Facts]) -> Facts:
    """The facts of windows that follow one another as one."""
    joined: dict[str, Any] = {}
    for one in dataclasses.fields(Batch):
        values = [getattr(fact.batch, one.name) for fact in facts]
        if isinstance(values[0], np.ndarray):
            joined[one.name] = np.concatenate(values, axis=1 if one.name in ("exchanges", "parts") else 0)
        elif isinstance(values[0], list):
            joined[one.name] = [value for part in values for value in part]
        else:
            joined[one.name] = values[-1]
    return Facts(Batch(**joined), [began for fact in facts for began in fact.began])


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def decode(packets: Iterable[tuple[Key, Block]], known: Known) -> Iterator[tuple[Key, Any]]:
    """A bucket's packets, in order: its rows by range, and its facts."""
    decoder: Decoder | None = None
    for (bucket, group, _), block in packets:
        if bucket == known.buckets:
            return  # clocks
        decoder = decoder or Decoder(known, bucket)
        yield from decoder.take(group, block)
    if decoder is not None:
        yield from decoder.finish()


# --- merging ----------------------------------------------------------------------------------------------------------


def merge(pieces: Iterable[tuple[Key, dict[str, bytes]]], parts: Parts) -> list[dict[str, Any]]:
    """One range's rows of all buckets, in the order of the capture point; what the manifest says of the files."""
    found: dict[str, list[pa.Table]] = defaultdict(list)
    for _, tables_of_bucket in pieces:
        for name, packed in tables_of_bucket.items():
            found[name].append(pa.ipc.open_stream(packed).read_all())
    for name in tables.TABLES:
        if name in found:
            rows = pa.concat_tables(found.pop(name))
            # Stable: rows of one exchange stay as they are.
            order = pc.sort_indices(rows, sort_keys=[(_TRIGGER, "ascending"), (_BORN, "ascending")])
            parts.write(name, rows.drop_columns([_TRIGGER, _BORN]).take(order))
    return parts.close()


@dataclass(slots=True)
class _Connections:
    """Stands for `Flows` where facts of all buckets are taken."""

    known: dict[int, tuple[Any, Any, int, int]] = field(default_factory=dict)

    def end_points(self, slot: int) -> tuple[Any, Any, int, int]:
        return self.known[slot]

    def born(self, slots: np.ndarray) -> np.ndarray:
        return np.array([self.known[slot][3] for slot in slots.tolist()], np.int64)


def take_facts(
    pieces: Iterable[tuple[Key, Facts | Summary]], known: Known, parts: Parts
) -> tuple[PointRead, tuple[str, ...], list[dict[str, Any]]]:
    """All facts of a capture point in order: its small tables, and all that is known besides its rows."""
    flows = _Connections()
    counts: dict[str, int] = defaultdict(int)
    for scanned in known.scanned:
        for name, count in scanned.counts.items():
            counts[name] += count
    notes = [*known.point.notes, *(note for scanned in known.scanned for note in scanned.notes)]
    reader = SimpleNamespace(files=known.files, counts=dict(counts), notes=notes)
    engine: Any = SimpleNamespace(flows=flows, settings=replace(known.settings, threads=known.buckets), reader=reader)
    columns = Columns(engine, known.point.name)
    made = PointTables(columns, known.choice)
    opened = OpenedRecords(columns, known.choice.records, 1, known.choice.limits)
    names = [name for name, _ in (*made.flush(), *opened.finish(everything=True))]
    names += ["messages"] if known.choice.keep_bytes else []
    summaries: list[Summary] = []

    def work(window: dict[int, Facts]) -> None:
        nothing = _emptied(next(iter(window.values())).batch)
        for facts in window.values():
            flows.known.update(facts.began)
        columns.take([window[i].batch if i in window else nothing for i in range(known.buckets)])
        small = columns.small_tables()
        made.summary.add_connections(small["connections"])
        for name, table in small.items():
            if len(table):
                parts.write(name, table)
        columns.release()

    window: dict[int, Facts] = {}
    at = 0
    for (_, place, bucket), one in pieces:
        if window and place != at:
            work(window)
            window = {}
        at = place
        if isinstance(one, Summary):
            summaries.append(one)
        else:
            window[bucket] = one
    if window:
        work(window)
    for summary in summaries:
        summary.rename_topics(columns.topic_name)
        made.summary.join(summary)
    return made.finish(known.point, engine), tuple(names), parts.close()


def _emptied(batch: Batch) -> Batch:
    """The batch of a bucket that said nothing."""
    empty: dict[str, Any] = {}
    for one in dataclasses.fields(Batch):
        value = getattr(batch, one.name)
        if isinstance(value, np.ndarray):
            empty[one.name] = value[:, :0] if one.name in ("exchanges", "parts") else value[:0]
        else:
            empty[one.name] = [] if isinstance(value, list) else None
    return Batch(**empty)


# --- all of it --------------------------------------------------------------------------------------------------------


def split_point(
    context: SparkContext, point: CapturePoint, settings: Settings, choice: Choice, folder: Path, label: str
) -> Done | Refused:
    """Decode one capture point by connection into files in `folder`, whose names begin with `label`."""
    settings = replace(settings, keep_records=choice.records != NO_RECORDS)
    groups = [Group(i, i, (path,)) for i, path in enumerate(point.paths)]
    size = sum(os.path.getsize(os.path.join(point.folder, path)) for path in point.paths)
    buckets = max(1, min(MOST_BUCKETS, max(context.defaultParallelism, -(-size // BUCKET_BYTES))))
    known, shuffled = _scanned(context, groups, point, settings, choice, buckets)
    if isinstance(known, Refused):
        return known
    fragmented = sum(one.counts["fragment"] + one.counts["reassembled"] > 0 for one in known.scanned)
    if fragmented > 1:
        known, shuffled = _scanned(context, [Group(0, 0, point.paths)], point, settings, choice, buckets)
        if isinstance(known, Refused):
            return known
    told = context.broadcast(known)
    ranges = len(known.starts)

    def write(pieces: Iterator[tuple[Key, Any]]) -> Iterator[Any]:
        first = next(pieces, None)
        if first is None:
            return
        place = first[0][0]
        parts = Parts(folder, f"{label}-{place:05d}-{attempt()}")
        try:
            every = itertools.chain([first], pieces)
            yield place, merge(every, parts) if place < ranges else take_facts(every, told.value, parts)
        except BaseException:
            parts.abandon()
            raise

    decoded = shuffled.mapPartitions(lambda packets: decode(packets, told.value))
    placed = decoded.repartitionAndSortWithinPartitions(ranges + 1, lambda key: key[0])
    results = dict(placed.mapPartitions(write).collect())
    told.unpersist()
    read, names, small = results.pop(ranges) if ranges in results else _nothing_said(known, folder, label)
    files = [entry for place in sorted(results) for entry in results[place]]
    return Done(read, names, [*files, *small])


def _nothing_said(known: Known, folder: Path, label: str) -> Any:
    """A capture point without TCP packets."""
    return take_facts([], known, Parts(folder, label))


def _scanned(
    context: SparkContext, groups: list[Group], point: CapturePoint, settings: Settings, choice: Choice, buckets: int
) -> tuple[Known | Refused, Any]:
    """The packets of a capture point, shuffled (an RDD, partition `buckets` of it the clocks), and what they showed."""
    spread = context.parallelize(groups, len(groups)).flatMap(lambda group: scan(group, point, buckets))
    shuffled = spread.repartitionAndSortWithinPartitions(buckets + 1, lambda key: key[0])
    # What is shuffled stays on the executors' disks: the next job over `shuffled` does not scan again.
    found = context.runJob(shuffled, resolve, [buckets])
    for one in found:
        if isinstance(one, Refused):
            return one, None
    scanned = [one for one in found if isinstance(one, Scanned)]
    ticks = next(one for one in found if isinstance(one, Ticks))
    before: dict[int, int] = {}
    latest = -(1 << 62)
    for one in scanned:
        before[one.group.number] = latest
        latest = max(latest, one.latest)
    starts = [
        (one.group.first + file << _PIECE) + first
        for one in scanned
        for file, packets in enumerate(one.packets)
        for first in range(0, packets, RANGE_PACKETS)
    ]
    files = [info for one in scanned for info in one.files]
    return (
        Known(point, settings, choice, buckets, files, before, ticks, np.array(starts, np.int64), tuple(scanned)),
        shuffled,
    )
