"""A capture point too big for one task, decoded by connection.

In: a capture point. Out: the dataset files that the local engine would write for it, row for row and in the same order.

```
 capture ──▶ share 0 of k ──▶ rows, facts ─┐
 capture ──▶ share 1 of k ──▶ rows, facts ─┼──▶ merge, a task for each range of packets ──▶ Parquet
 capture ──▶ ...              (in files)  ─┘    and one for the facts ──▶ small tables, coverage
```

Every sharing task reads the whole capture point as the local engine does, and decodes only the connections of its share
(`analyzer.engine.Share`). So all of them see the same windows, clock, fragments, packet numbers and connection numbers,
and nothing of that has to be told between tasks. Finding packets and connections is the small part of the work: 10 % of
it where messages are small, 40 % where they are large. The other way, packets through Spark's shuffle to the task of
their connection, was built and measured first: five to twenty times slower than the local engine, for every payload
byte was pickled, sorted, stored and read again. What it costs is that shares read k times what there is, so that more
than `MOST_SHARES` of them would only heat the machines.

What one connection said may matter for others (names for topic ids, brokers, leaders). Such *facts* are few: one task
takes those of all shares in order, window by window, as the local engine does. Rows carry the packet that completed
them and their connection's number, and merging sorts by both. Rows and facts go from task to task in *pieces*, files in
the folder of the unfinished dataset, which all machines share: Spark and the driver carry only where they lie.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from analyzer import state as s
from analyzer import tables
from analyzer.columns import Columns
from analyzer.conversation import Batch
from analyzer.dataset import DatasetError, Parts
from analyzer.engine import Engine, Settings, Share
from analyzer.reading import Choice, PointRead, PointTables
from analyzer.record_reading import OpenedRecords
from analyzer.record_tables import META, NO_RECORDS
from analyzer.summary import Summary
from captures.files import CaptureError, CapturePoint, FileInfo
from reports.tasks import Done, Refused, attempt

if TYPE_CHECKING:
    from pyspark import SparkContext

MOST_SHARES = 16
"""Tasks that a capture point is decoded by. Each reads all of it: where that is a tenth to a third of one task's work
on the whole, sixteen take a seventh to a third of the time, and twice as many would hardly take less."""

RANGE_PACKETS = 1 << 18
"""Packets whose rows are merged at once; a quarter of it where there is a row a record. Not more: fresh memory is dear,
and what a range has used serves the next one."""

RANGES_A_TASK = 4
"""Ranges that a merging task takes, one after the other, into one file a table."""

_TRIGGER, _BORN = "_trigger", "_born"

_LAST = 1 << 62
"""The place of rows that belong to no exchange: after all others."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [at, at + size) of a file: rows of table `name`, or facts where it is empty, of a range of packets."""

    path: str
    at: int
    size: int
    range: int
    name: str


@dataclass(frozen=True, slots=True)
class Shared:
    """What came of one share. `files`, `counts` and `notes`: what the reader says of the capture point; all shares say
    the same. `ranges`: how many there are."""

    pieces: list[Piece]
    ranges: int
    files: list[FileInfo]
    counts: dict[str, int]
    notes: list[str]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Facts:
    """What the connections of a share said in one window that matters for others: a `Batch` without exchanges but one a
    connection, and the connections that it is the first to name: end points, reuse and number by slot."""

    batch: Batch
    named: dict[int, tuple[Any, Any, int, int]]


# --- sharing ----------------------------------------------------------------------------------------------------------


class _Pieces:
    """Writes the pieces of one share into a file, which is there from the first piece on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[Piece] = []
        self._file: io.BufferedWriter | None = None

    def add(self, place: int, name: str, content: pa.Table | list[Facts]) -> None:
        """Rows of a table, or facts; `place` is the number of the range."""
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.fdopen(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
        at = self._file.tell()
        if isinstance(content, pa.Table):
            with pa.ipc.new_stream(self._file, content.schema) as out:
                out.write_table(content)
        else:
            pickle.dump(content, self._file, pickle.HIGHEST_PROTOCOL)
        self.written.append(Piece(str(self.path), at, self._file.tell() - at, place, name))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def share(
    point: CapturePoint, settings: Settings, choice: Choice, part: Share, range_packets: int, path: Path
) -> Shared | Refused:
    """Decode the connections of one share into pieces, which lie in the file `path`."""
    pieces = _Pieces(path)
    try:
        shared = _decoded(point, settings, choice, part, range_packets, pieces)
        pieces.close()
        return shared
    except (CaptureError, DatasetError) as failure:
        return Refused(str(failure), failure.hint)
    except OSError as failure:
        hint = "give a folder to -o that all machines may write to"
        return Refused(f"{path.parent}: cannot be written: {failure.strerror or failure}", hint)


def _decoded(
    point: CapturePoint, settings: Settings, choice: Choice, part: Share, range_packets: int, pieces: _Pieces
) -> Shared:
    engine = Engine(point, replace(settings, threads=1), share=part)
    columns = Columns(engine, point.name)
    opened = OpenedRecords(columns, choice.records, 1, choice.limits)
    made = PointTables(columns, choice, opened)
    telling = _Telling(engine, part)
    facts: list[Facts] = []
    found: list[tuple[str, pa.Table]] = []
    place = 0

    def close_range() -> None:
        found.extend(opened.flush())
        for name, table in _placed(made, [*found]):
            pieces.add(place, name, table)
        if facts:
            pieces.add(place, "", facts)
        found.clear()
        facts.clear()

    for batches in engine.batches():
        following = engine.done_packets // range_packets
        if following != place:
            close_range()
            place = following
        [batch] = batches
        facts.append(telling.of(batch))  # before others renumber it in place
        for name, table in made.take(batches):
            if name == "messages":
                trigger, born = _message_keys(batch, columns)
                pieces.add(place, name, _with_keys(table, trigger, born))
            else:
                found.append((name, table))
        columns.connections.clear()  # they are told where all facts are
    close_range()
    for name, table in opened.finish(everything=True):
        if len(table):
            pieces.add(place, name, _with_keys(table, np.full(len(table), _LAST), np.full(len(table), part.number)))
    made.summary.records.join(opened.counts)
    made.summary.name_topics(columns.topic_lists(), str)  # ids get their names where all are known
    reader = engine.reader
    return Shared(pieces.written, place + 1, list(reader.files), dict(reader.counts), list(reader.notes), made.summary)


class _Telling:
    """Picks the facts out of one share's batches, slots numbered over all shares."""

    def __init__(self, engine: Engine, part: Share) -> None:
        self._flows = engine.flows
        self._part = part
        self._named = np.zeros(0, np.int64)  # by slot: 1 + the number of the connection last named in it

    def of(self, batch: Batch) -> Facts:
        """Copies: whoever takes the batch renumbers it in place."""
        _, first = np.unique(batch.exchanges[s.X_SLOT], return_index=True)
        exchanges = np.full((s.X_COLUMNS, len(first)), s.NULL, np.int64)
        for row in (s.X_SLOT, s.X_NEXT, s.X_TRIGGER):
            exchanges[row] = batch.exchanges[row, first]
        facts, leaders, ended = batch.facts.copy(), batch.leaders.copy(), batch.ended.copy()
        named = self._new(exchanges[s.X_SLOT], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT], ended[:, 0])
        for slots in (exchanges[s.X_SLOT], facts[:, s.FACT_SLOT], leaders[:, s.L_SLOT], ended[:, 0]):
            slots[:] = slots * self._part.of + self._part.number
        thin = replace(
            batch, exchanges=exchanges, facts=facts, leaders=leaders, ended=ended, k=batch.k.copy(), f=batch.f.copy(),
            c=batch.c.copy(), d=batch.d.copy(), parts=batch.parts[:, :0].copy(), messages=batch.messages[:0],
            message_bytes=batch.message_bytes[:0], sets=batch.sets[:0], set_bytes=batch.set_bytes[:0],
        )  # fmt: skip
        return Facts(thin, named)

    def _new(self, *slots: np.ndarray) -> dict[int, tuple[Any, Any, int, int]]:
        used = np.unique(np.concatenate(slots))
        if len(used) and used[-1] >= len(self._named):
            self._named = np.append(self._named, np.zeros(used[-1] + 1, np.int64))
        now = self._flows.born(used) + 1
        fresh = used[self._named[used] != now]
        self._named[used] = now
        of, number = self._part.of, self._part.number
        return {slot * of + number: self._flows.end_points(slot) for slot in fresh.tolist()}


def _placed(made: PointTables, opened: Iterable[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """The tables of all rows that wait, each row with its place; `opened`: those of record batches."""
    rows, columns = made.waiting, made.columns
    none = np.zeros(0, np.int64)
    trigger = np.concatenate([none, *(one.x[s.X_TRIGGER] for one in rows)])
    connection = np.concatenate([none, *(one.connection for one in rows)])
    exchange, reply = (np.concatenate([none, *(one.x[row] for one in rows)]) for row in (s.X_EXCHANGE, s.X_REPLY))
    born = _born(connection, columns)
    numbers = {columns.connection_name(number): number for number in np.unique(connection).tolist()}
    before = np.cumsum([0, *(len(one.connection) for one in rows)])
    owner = np.concatenate([none, *(one.parts[s.P_OWNER] + at for one, at in zip(rows, before[:-1], strict=True))])
    found = dict(made.flush())
    if len(connection):
        yield "exchanges", _with_keys(found["exchanges"], trigger, born)
    if len(owner):
        yield "partitions", _with_keys(found["partitions"], trigger[owner], born[owner])
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
        """What tells exchanges of one range apart, as one integer: under 2**39 exchanges a connection (which would take
        22 TB of it), under 2**23 connections a range (which are more than it has packets)."""
        orphan = exchange == s.NULL
        key: np.ndarray = connection << 40 | orphan.astype(np.int64) << 39 | np.where(orphan, reply, exchange)
        return key

    column = table["connection"].unify_dictionaries().combine_chunks()
    names = np.array([numbers[name] for name in column.dictionary.to_pylist()], np.int64)
    ordinals = [table[name].fill_null(s.NULL).to_numpy() for name in ("exchange", "reply")]
    wanted = packed(names[column.indices.to_numpy()], *ordinals)
    change = np.append(True, wanted[1:] != wanted[:-1])  # rows of one exchange follow one another
    known = packed(connection, exchange, reply)
    order = np.argsort(known)
    owner: np.ndarray = order[np.searchsorted(known[order], wanted[change])][np.cumsum(change) - 1]
    return owner


def _message_keys(batch: Batch, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows of `messages` of this window stand; the table is sorted by both."""
    trigger = batch.messages[:, s.MSG_TRIGGER]
    born = _born(columns.message_connections(batch), columns)
    order = np.lexsort((born, trigger))
    return trigger[order], born[order]


def _born(connections: np.ndarray, columns: Columns) -> np.ndarray:
    """Which connections of the capture point they are, in order of creation, by their numbers in `columns`."""
    used, where = np.unique(connections, return_inverse=True)
    found: np.ndarray = np.array([columns.connection_born(number) for number in used.tolist()], np.int64)[where]
    return found


def _with_keys(table: pa.Table, trigger: np.ndarray, born: np.ndarray) -> pa.Table:
    return table.append_column(_TRIGGER, pa.array(trigger)).append_column(_BORN, pa.array(born))


# --- merging ----------------------------------------------------------------------------------------------------------


def merge(ranges: Iterable[Sequence[Piece]], parts: Parts) -> list[dict[str, Any]]:
    """The rows of all shares, range by range, in the capture point's order; what the manifest says of the files."""
    for pieces in ranges:
        found: dict[str, list[pa.Table]] = defaultdict(list)
        for piece in pieces:
            found[piece.name].append(pa.ipc.open_stream(_bytes_of(piece)).read_all())
        for name in tables.TABLES:
            if name in found:
                rows = pa.concat_tables(found.pop(name)).unify_dictionaries().combine_chunks()
                # Stable: rows of one exchange stay as they are.
                order = np.lexsort((rows[_BORN].to_numpy(), rows[_TRIGGER].to_numpy()))
                parts.write(name, rows.drop_columns([_TRIGGER, _BORN]).take(pa.array(order)))
    return parts.close()


def _bytes_of(piece: Piece) -> pa.Buffer:
    with pa.memory_map(piece.path) as file:
        file.seek(piece.at)
        return file.read_buffer(piece.size)


@dataclass(slots=True)
class _Connections:
    """Stands for `Flows` where facts of all shares are taken."""

    known: dict[int, tuple[Any, Any, int, int]] = field(default_factory=dict)

    def end_points(self, slot: int) -> tuple[Any, Any, int, int]:
        return self.known[slot]

    def born(self, slots: np.ndarray) -> np.ndarray:
        return np.array([self.known[slot][3] for slot in slots.tolist()], np.int64)


def take_facts(
    pieces: Sequence[Piece], shares: Sequence[Shared], point: CapturePoint, settings: Settings, choice: Choice,
    parts: Parts,
) -> tuple[PointRead, tuple[str, ...], list[dict[str, Any]]]:  # fmt: skip
    """The facts of a capture point, `pieces` in order of shares in order of ranges: its small tables, and all that is
    known besides its rows."""
    flows = _Connections()
    first = shares[0]
    reader = SimpleNamespace(files=first.files, counts=first.counts, notes=first.notes)
    engine: Any = SimpleNamespace(flows=flows, settings=replace(settings, threads=len(shares)), reader=reader)
    columns = Columns(engine, point.name)
    made = PointTables(columns, choice)
    opened = OpenedRecords(columns, choice.records, 1, choice.limits)
    names = [name for name, _ in (*made.flush(), *opened.finish(everything=True))]
    names += ["messages"] if choice.keep_bytes else []
    for at in range(0, len(pieces), len(shares)):
        told: list[list[Facts]] = [pickle.loads(_bytes_of(piece)) for piece in pieces[at : at + len(shares)]]
        for window in zip(*told, strict=True):
            for facts in window:
                flows.known.update(facts.named)
            columns.take([facts.batch for facts in window])
            columns.release()
        small = columns.small_tables()
        made.summary.add_connections(small["connections"])
        for name, table in small.items():
            if len(table):
                parts.write(name, table)
    for one in shares:
        one.summary.rename_topics(columns.topic_name)
        made.summary.join(one.summary)
    return made.finish(point, engine), tuple(names), parts.close()


# --- all of it --------------------------------------------------------------------------------------------------------


def share_count(cores: int) -> int:
    """How many tasks share a capture point where Spark has so many cores."""
    return max(1, min(MOST_SHARES, cores))


def split_point(
    context: SparkContext, point: CapturePoint, settings: Settings, choice: Choice, folder: Path, label: str
) -> Done | Refused:
    """Decode one capture point by connection into files in `folder`, whose names begin with `label`."""
    settings = replace(settings, keep_records=choice.records != NO_RECORDS)
    count = share_count(context.defaultParallelism)
    range_packets = RANGE_PACKETS // 4 if choice.records == META else RANGE_PACKETS

    def decode(number: int) -> Shared | Refused:
        path = folder / PIECES / f"{label}-{number:02d}-{attempt()}"
        return share(point, settings, choice, Share(number, count), range_packets, path)

    shares: list[Shared] = []
    for one in context.parallelize(range(count), count).map(decode).collect():
        if isinstance(one, Refused):
            return one
        shares.append(one)
    if any(one.files != shares[0].files for one in shares):
        return Refused(f"{point.name}: it changed while it was read", "analyse it when it is complete, or a copy of it")
    pieces: dict[tuple[int, bool], list[Piece]] = defaultdict(list)
    for one in shares:
        for piece in one.pieces:
            pieces[piece.range, piece.name != ""].append(piece)
    ranges = [pieces[place, True] for place in range(shares[0].ranges) if pieces[place, True]]
    merging = [ranges[at : at + RANGES_A_TASK] for at in range(0, len(ranges), RANGES_A_TASK)]
    facts = [piece for place in range(shares[0].ranges) for piece in pieces[place, False]]

    def write(number: int) -> Any:
        parts = Parts(folder, f"{label}-{number:05d}-{attempt()}")
        try:
            if number == len(merging):
                return take_facts(facts, shares, point, settings, choice, parts)
            return merge(merging[number], parts)
        except BaseException:
            parts.abandon()
            raise

    tasks = len(merging) + 1
    *merged, (read, names, small) = context.parallelize(range(tasks), tasks).map(write).collect()
    for path in {piece.path for one in shares for piece in one.pieces}:
        os.unlink(path)
    return Done(read, names, [*(entry for files in merged for entry in files), *small])


PIECES = "pieces"
"""The folder of pieces, in that of the unfinished dataset."""
