"""A capture point's connections shared out: what each share gives, in pieces, and how pieces become one dataset.

In: a capture point, and which of its connections are wanted (`Share`). Out: pieces of files with rows and facts, by
range of packets; of all shares' pieces, the tables that one reader would give, row for row and in the same order.

```
 capture ──▶ share 0 of k ──▶ rows, facts ─┐
 capture ──▶ share 1 of k ──▶ rows, facts ─┼──▶ `merge`, for each range of packets ──▶ Parquet
 capture ──▶ ...              (in files)  ─┘    `take_facts`, once ──▶ small tables, coverage
```

Every share reads the whole capture point and decodes only its connections, or a reader gives it the packets of these
and the times of all others. So all of them see the same windows, clock, fragments and numbers of packets and the same
order of connections, and nothing of that has to be told between them.

What one connection said may matter for others (names for topic ids, brokers, leaders). Such *facts* are few: whoever
takes those of all shares does so in order, window by window, as one reader does. Where meaning is wanted, exchanges
that tell how long those of others were held (Produce, Fetch: `measuring.ACROSS`) are among them; how long is decided
there, and put into the rows when they are merged. Rows carry the packet that completed them and their connection's
number, and merging sorts by both. Who runs shares, where, and carries pieces from one to the other is not said here:
Spark's tasks do (`kwire.reports.spark.merging`).
"""

from __future__ import annotations

import io
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import ResumableCollector
from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.latency import is_across, put_rest
from kwire.analyzer.analysis.latency_quantiles import OwnLatencies
from kwire.analyzer.analysis.summary import Summary
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.engine import Engine, Settings, Share, ShareOfPackets
from kwire.analyzer.bulk.facts import Facts, SlotNaming, facts_of, put_together
from kwire.analyzer.bulk.rows import Exchanges, Names, ShardMerger
from kwire.analyzer.bulk.wire_format import WireExchanges, from_wire, to_wire
from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.dataset.parquet_files import tables_of
from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.drive import topic_names
from kwire.analyzer.pipeline.point_result import PointResult
from kwire.analyzer.pipeline.point_tables import PointTables
from kwire.captures.attempts import Unmet, attempts
from kwire.captures.cache import put_at_once
from kwire.captures.files import CapturePoint, FileInfo
from kwire.captures.kernels import NULL
from kwire.captures.packed import Packed, pack
from kwire.captures.packets import Reader

__all__ = [
    "Piece",
    "Share",
    "ShareOfPackets",
    "ShareResult",
    "by_range",
    "decided_path",
    "merge",
    "share",
    "take_facts",
    "topic_names_of_share",
]

_TRIGGER, _BORN = "_trigger", "_born"
_ROWS = "rows"
"""The name of pieces with exchanges and topic-partitions (`WireExchanges`), beside those of tables."""

_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
"""A ninth of the bytes, written in less time and read in a little more: most columns are numbers that hardly differ."""

_AT_ONCE_BYTES = 1 << 20
"""Ranges are put in order in one go up to so many bytes of rows: each time has a price of its own, that of some
thousand rows."""

_LAST = 1 << 62
"""The place of rows that belong to no exchange: after all others."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [at, at + size) of a file: rows of table `name`, exchanges with their topic-partitions (`_ROWS`), or facts
    where it is empty, of a range of packets."""

    path: str
    at: int
    size: int
    range: int
    name: str


class ShareSummary(NamedTuple):
    """Summary of all connections of a share. `passed`: how many exchanges the filter let through, of how many;
    `unmet`: failed connection attempts, None if another share, which saw the same packets, has them."""

    summary: Summary
    passed: tuple[int, int]
    collectors: tuple[ResumableCollector, ...]
    unmet: Unmet | None


@dataclass(frozen=True, slots=True)
class ShareResult:
    """Result of one share, small enough to be handed on as it is. `files`, `counts`, `notes`: the reader's, the same
    for all shares; `ranges`: their number; `overall`: the piece with its `ShareSummary`."""

    pieces: list[Piece]
    ranges: int
    files: list[FileInfo]
    counts: dict[str, int]
    notes: list[str]
    overall: Piece

    @property
    def paths(self) -> set[str]:
        """Of its files."""
        return {piece.path for piece in (*self.pieces, self.overall)}


# --- sharing ----------------------------------------------------------------------------------------------------------


class _Pieces:
    """Writes the pieces of one share into a file, which is there from the first piece on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[Piece] = []
        self._file: io.BufferedWriter | None = None

    def add(self, place: int, name: str, content: pa.Table | list[WireExchanges] | list[Facts]) -> None:
        """Rows or facts; `place` is the number of the range."""
        self.written.append(self.put(place, name, content))

    def put(self, place: int, name: str, content: Any) -> Piece:
        """Write content that is not listed among what was `written`."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.fdopen(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
        at = self._file.tell()
        if isinstance(content, pa.Table):
            with pa.ipc.new_stream(self._file, content.schema, options=_PACKED) as out:
                out.write_table(content)
        else:
            pickle.dump(content, self._file, pickle.HIGHEST_PROTOCOL)
        return Piece(str(self.path), at, self._file.tell() - at, place, name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def share(
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    part: Share,
    range_packets: int,
    path: Path,
    reader: Reader | None = None,
    topics: Mapping[str, str] = MappingProxyType({}),
) -> ShareResult:
    """Decode the connections of one share into pieces, which lie in the file `path`. `reader`: who gives the packets,
    where that is not the files of the point; `topics`: what `names_said` found, of all shares, where the choice
    `asks_names`. Raises CaptureError, and OSError where pieces cannot be written."""
    pieces = _Pieces(path)
    # All shares must see the same windows.
    settings = replace(settings, threads=1, shards=1, keep_records=choice.keep_records, rows_at_once=0)
    engine = Engine(point, settings, share=part, reader=reader)
    known = TopicIds()
    known.learn(topics)
    sink = PointTables(engine.merging.names, choice, topics=known)
    naming = SlotNaming(engine.flows, part.number, part.of)
    facts: list[Facts] = []
    opened: list[tuple[str, pa.Table]] = []
    place = 0

    def close_range() -> None:
        opened.extend(sink.flush_records())
        for name, table in _placed(sink, opened):
            pieces.add(place, name, table)
        if rows := [to_wire(exchanges) for exchanges in sink.waiting]:
            pieces.add(place, _ROWS, rows)
        sink.leave_waiting()
        if engine.merging.names.crowded:
            engine.merging.forget(sink.named())
        if facts:
            pieces.add(place, "", facts)
        opened.clear()
        facts.clear()

    for [ended] in engine.ended():
        following = engine.done_packets // range_packets
        if following != place:
            close_range()
            place = following
        window = engine.merging.take([ended], engine.done_packets)
        matter = None
        if choice.meaning:
            window = sink.latency.measure(window)
            matter = is_across(window.every.columns)
        facts.append(facts_of(ended, naming, window.every, matter))
        window = window.without_facts()  # they are told where all are
        sink.learn(window)
        trigger, connection = sink.selection.message_order(window)
        for name, table in sink.window_rows():
            if name == "messages":
                pieces.add(place, name, _with_keys(table, trigger, window.names.serials_of(connection)))
            else:
                opened.append((name, table))
    close_range()
    for name, table in sink.remaining_records():
        if len(table):
            pieces.add(place, name, _with_keys(table, np.full(len(table), _LAST), np.full(len(table), part.number)))
    sink.join_counts()
    unmet = engine.unmet() if part.alone or part.number == 0 else None
    passed = sink.selection.matched, sink.selection.seen
    overall = pieces.put(place, "", ShareSummary(sink.summary, passed, sink.analysis.collectors, unmet))
    pieces.close()
    reader = engine.reader
    return ShareResult(pieces.written, place + 1, list(reader.files), dict(reader.counts), list(reader.notes), overall)


def topic_names_of_share(
    point: CapturePoint, settings: Settings, part: Share, reader: Reader | None = None
) -> dict[str, str]:
    """The names for topic ids that the connections of one share say. Raises CaptureError."""
    quick = replace(settings, threads=1, shards=1, keep_messages=False, keep_records=False)
    return topic_names(Engine(point, quick, share=part, reader=reader))


def _placed(sink: PointTables, opened: Sequence[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """Tables of record batches, each row with its place."""
    if not opened:
        return
    waiting, names = sink.waiting, sink.names
    none = np.zeros(0, np.int64)
    trigger, exchange, reply = (
        np.concatenate([none, *(rows.column(name) for rows in waiting)])
        for name in ("completed_by", "exchange", "reply")
    )
    connection = np.concatenate([none, *(rows.connection for rows in waiting)])
    born = names.serials_of(connection)
    numbers = {names.connections[number]: number for number in np.unique(connection).tolist()}
    for name, table in opened:
        if len(table):
            owner = _owners(table, numbers, connection, exchange, reply)
            yield name, _with_keys(table, trigger[owner], born[owner])


def _owners(
    table: pa.Table, numbers: dict[str, int], connection: np.ndarray, exchange: np.ndarray, reply: np.ndarray
) -> np.ndarray:
    """int64[rows of table]: which exchange each row belongs to; the three arrays have a row an exchange, `numbers` has
    the connections by name."""

    def packed(connection: np.ndarray, exchange: np.ndarray, reply: np.ndarray) -> np.ndarray:
        """Pack the key of an exchange within a range into an integer: under 2**39 exchanges a connection (which would
        take 22 TB of it), under 2**23 connections a range (which are more than it has packets)."""
        orphan = exchange == NULL
        key: np.ndarray = connection << 40 | orphan.astype(np.int64) << 39 | np.where(orphan, reply, exchange)
        return key

    column = table["connection"].unify_dictionaries().combine_chunks()
    names = np.array([numbers[name] for name in column.dictionary.to_pylist()], np.int64)
    ordinals = [table[name].fill_null(NULL).to_numpy() for name in ("exchange", "reply")]
    wanted = packed(names[column.indices.to_numpy()], *ordinals)
    change = np.append(True, wanted[1:] != wanted[:-1])  # rows of one exchange follow one another
    known = packed(connection, exchange, reply)
    order = np.argsort(known)
    owner: np.ndarray = order[np.searchsorted(known[order], wanted[change])][np.cumsum(change) - 1]
    return owner


def _with_keys(table: pa.Table, trigger: np.ndarray, born: np.ndarray) -> pa.Table:
    return table.append_column(_TRIGGER, pa.array(trigger)).append_column(_BORN, pa.array(born))


# --- merging ----------------------------------------------------------------------------------------------------------


def by_range(shares: Sequence[ShareResult]) -> tuple[list[list[Piece]], list[Piece]]:
    """The pieces of all shares: those with rows of each range that has some, and those with facts, in order."""
    pieces: dict[tuple[int, bool], list[Piece]] = defaultdict(list)
    for share_result in shares:
        for piece in share_result.pieces:
            pieces[piece.range, piece.name != ""].append(piece)
    rows = [pieces[place, True] for place in range(shares[0].ranges) if pieces[place, True]]
    return rows, [piece for place in range(shares[0].ranges) for piece in pieces[place, False]]


def merge(
    point: CapturePoint,
    files: Sequence[FileInfo],
    ranges: Iterable[Sequence[Piece]],
    parts: TableFiles,
    decided: Path | None = None,
) -> tuple[list[dict[str, Any]], OwnLatencies]:
    """The rows of all shares, range by range, in the capture point's order; what the manifest says of the files that
    hold them, and their latencies for the summary.

    `files`: those of the capture point; `decided`: where `take_facts` put what it found of exchanges that depend on
    other connections', of these ranges at least; None: nothing was asked of it.
    """
    buffers = BufferPool()
    own = OwnLatencies()
    for pieces in _at_once(ranges):
        by_table: dict[str, list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_table[piece.name].append(piece)
        if row_pieces := by_table.pop(_ROWS, []):
            carried: dict[str, list[WireExchanges]] = defaultdict(list)  # by the file, which is a share's
            for piece in row_pieces:
                carried[piece.path] += pickle.loads(_bytes_of(piece))
            names = Names(point.name, list(files))
            rows = from_wire(names, list(carried.values()), buffers)
            if decided is not None:
                _decide(rows, [decided_path(decided, place) for place in sorted({piece.range for piece in row_pieces})])
            own.take([rows])
            parts.write("exchanges", exchange_tables.later_exchanges(names, [rows]))
            if rows.partitions.shape[1]:
                parts.write("partitions", exchange_tables.later_partitions(names, [rows]))
        for name in tables.TABLES:
            if name in by_table:
                table = pa.concat_tables(pa.ipc.open_stream(_bytes_of(piece)).read_all() for piece in by_table[name])
                table = table.unify_dictionaries().combine_chunks()
                order = _order(table[_TRIGGER].to_numpy(), table[_BORN].to_numpy())
                parts.write(name, compute.take(table.drop_columns([_TRIGGER, _BORN]), order))
    return parts.close(), own


def _at_once(ranges: Iterable[Sequence[Piece]]) -> Iterator[list[Piece]]:
    """Pieces of ranges that follow one another, as many as are not worth their while alone."""
    group: list[Piece] = []
    for pieces in ranges:
        if group and sum(piece.size for piece in (*group, *pieces)) > _AT_ONCE_BYTES:
            yield group
            group = []
        group += pieces
    if group:
        yield group


def _order(trigger: np.ndarray, born: np.ndarray) -> np.ndarray:
    """int64[n]: rows in order of the packet that completed them, then of their connection; rows of one exchange stay as
    they are. Each share's rows come in order already, which a stable sort of one column turns to account; few packets
    complete rows of several connections."""
    order = np.argsort(trigger, kind="stable")
    trigger, born = trigger[order], born[order]
    if ((trigger[1:] == trigger[:-1]) & (born[1:] < born[:-1])).any():
        order = order[np.lexsort((born, trigger))]
    return order


def decided_path(path: Path, place: int) -> Path:
    """The file with what was decided of a range; it is there when that is."""
    return path.with_name(f"{path.name}-{place}")


def _decide(rows: Exchanges, decided: Sequence[Path]) -> None:
    """Put in how long those across connections were held, which come in their order, and what follows from that; a
    filter may have left some of them out: what they are known by stands beside it then."""
    across = is_across(rows.columns)
    ranges: list[Packed] = [pickle.loads(path.read_bytes()) for path in decided]
    which = ranges[0].which.tolist()
    held, *keys = (np.concatenate([decided_range.column(number) for decided_range in ranges]) for number in which)
    if keys:
        born = rows.names.serials_of(rows.connection[across])
        wanted = np.stack([rows.column("exchange")[across], rows.column("reply")[across], born])
        held = held[_places(wanted, np.stack(keys))]
    rows.column("hold_us")[across] = held
    put_rest(rows.columns)


def _places(wanted: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where columns of `wanted` (int64[3, m]) are among those of `keys` (int64[3, n]), each of which is there once."""
    order = np.lexsort(np.concatenate([keys, wanted], axis=1)[::-1])  # stable: a key stands before who wants it
    newest = np.maximum.accumulate(np.where(order < keys.shape[1], np.arange(len(order)), 0))
    at = np.empty(len(order), np.int64)
    at[order] = order[newest]
    return at[keys.shape[1] :]


def _bytes_of(piece: Piece) -> pa.Buffer:
    with pa.memory_map(piece.path) as file:
        file.seek(piece.at)
        return file.read_buffer(piece.size)


@dataclass(slots=True)
class _Connections:
    """The connections that shares have named, by slot, and the other legs of those that ended in a window."""

    known: dict[int, tuple[Any, Any, int, int]] = field(default_factory=dict)
    others: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)

    def end_points(self, slot: int) -> tuple[Any, Any, int, int]:
        return self.known[slot]

    def serials(self, slots: np.ndarray) -> np.ndarray:
        return np.array([self.known[slot][3] for slot in slots.tolist()], np.int64)

    def other_end_points(self, slots: np.ndarray) -> dict[int, list[tuple[Any, Any]]]:
        return self.others  # of those that ended in this window, which are asked about


def take_facts(
    pieces: Sequence[Piece],
    shares: Sequence[ShareResult],
    point: CapturePoint,
    choice: AnalysisOptions,
    parts: TableFiles,
    path: Path,
) -> tuple[PointResult, tuple[str, ...], list[dict[str, Any]]]:
    """The facts of a capture point, `pieces` in order of shares in order of ranges: all that is known besides its rows,
    the names of its tables, and its small tables written. Where the choice is for what traffic means, what is decided
    of rows is put into a file a range (`decided_path`), in order, for who merges them meanwhile."""
    connections = _Connections()
    first = shares[0]
    merging = ShardMerger(point.name, len(shares), connections, first.files)
    sink = PointTables(merging.names, choice)
    nothing = PointTables(Names(point.name), choice)
    names = [name for name, _ in nothing.finish()]
    names += ["messages"] if choice.keep_bytes else []
    for at in range(0, len(pieces), len(shares)):
        held_times: list[np.ndarray] = []
        facts: list[list[Facts]] = [pickle.loads(_bytes_of(piece)) for piece in pieces[at : at + len(shares)]]
        for window in zip(*facts, strict=True):
            connections.others.clear()
            for share_facts in window:
                connections.known.update(share_facts.named)
                connections.others.update(share_facts.others)
            merged = merging.take(
                [share_facts.ended for share_facts in window], 0, gather=partial(put_together, window)
            )
            if choice.meaning:
                merged = sink.latency.decide(merged)
                across = is_across(merged.every.columns)
                every = merged.every
                columns = [every.column("hold_us")[across]]
                if not choice.everything:
                    columns += [every.column(name)[across] for name in ("exchange", "reply")]
                    columns.append(merged.names.serials_of(every.connection[across]))
                held_times.append(np.stack(columns))
            sink.learn(merged.facts_alone())
            merging.names.release()
        if choice.meaning:
            every_one = np.concatenate(held_times, axis=1)
            content = pickle.dumps(pack(every_one, range(len(every_one))), pickle.HIGHEST_PROTOCOL)
            put_at_once(decided_path(path, pieces[at].range), content)  # another attempt may do the same
        for name, table in tables_of(sink.flush()):
            if len(table):
                parts.write(name, table)
        if merging.names.crowded:
            merging.forget(sink.named())
    unmet: list[Unmet] = []
    for share_result in shares:
        overall: ShareSummary = pickle.loads(_bytes_of(share_result.overall))
        sink.summary.join(overall.summary)
        sink.selection.matched += overall.passed[0]
        sink.selection.seen += overall.passed[1]
        for collector, other in zip(sink.analysis.collectors, overall.collectors, strict=True):
            collector.join(other)
        if overall.unmet is not None:
            unmet.append(overall.unmet)
    for name, table in sink.analysis_rows():
        if len(table):
            parts.write(name, table)
    return sink.result(point, first, attempts(unmet)), tuple(names), parts.close()
