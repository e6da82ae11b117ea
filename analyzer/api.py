"""Captures read to the end: `analyze` makes a dataset of them, `exchanges` yields one exchange after the other.

In: capture arguments as on the command line. Out: a `Dataset` (in memory, or written to a folder), or `Exchange`
objects with decoded bodies. This is the Python door; the command line goes through it too (`decode`, `decoded`: the
same, how to read and what is wanted in one object each).
"""

from __future__ import annotations

import bisect
import dataclasses
import datetime
import functools
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.connections import EndedConnections, unrecognised_lines
from kwire.analyzer.analysis.latency import Latency
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.column_names import COLUMNS
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.bulk.message_columns import WaitingMessages
from kwire.analyzer.bulk.rows import Exchanges, Message, Window
from kwire.analyzer.common import extensions
from kwire.analyzer.common.times import moment
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, Writer, concatenated
from kwire.analyzer.dataset.parquet_files import LazyTable, as_table
from kwire.analyzer.frame import cells
from kwire.analyzer.frame.arrow import distinct, plain
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import HeldMessages
from kwire.analyzer.payloads.options import PayloadOptions, of_point
from kwire.analyzer.pipeline.drive import Sink, drive
from kwire.analyzer.pipeline.exchange_order import AsTheyEnd, ExchangeBlock, InRequestOrder, Messages, PackedExchanges
from kwire.analyzer.pipeline.points import (
    BATCHES,
    WITHOUT,
    AnalysisOptions,
    NamesAhead,
    Progress,
    check_names,
    joined,
    manifest,
    nothing_matches,
    parsed,
    read_point,
    read_point_later,
    size_of,
)
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.pipeline.selection import chosen, record_payloads
from kwire.analyzer.protocol.embedded import GroupProtocols, PayloadReader
from kwire.analyzer.records.log_names import LogPoint
from kwire.analyzer.records.log_reader import log_points
from kwire.captures.files import CapturePoint, capture_points
from kwire.captures.frame_kinds import unread_lines
from kwire.captures.kernels import NULL

if TYPE_CHECKING:
    from kwire.analyzer.analysis.journeys_of_points import JourneysOfPoints
    from kwire.analyzer.frame.parquet import RowGroups
    from kwire.analyzer.frame.pending import PendingTables
    from kwire.analyzer.messages.record_payloads import RecordPayloads

Captures = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

ChooseExchanges = Callable[[Window], Exchanges]

__all__ = ["Exchange", "RawExchange", "analyze", "decode", "decoded", "exchanges", "findings_of", "raw_exchanges"]

HELD = 1 << 16
HELD_BYTES = 128 << 20
"""Exchanges, and bytes of their messages, that wait for one that began before them (`light`)."""


def _arguments(captures: Captures) -> list[str]:
    if isinstance(captures, str | os.PathLike):
        return [os.fspath(captures)]
    return [os.fspath(capture) for capture in captures]


def analyze(
    captures: Captures,
    out: str | os.PathLike[str] | None = None,
    *,
    filter: Any = None,
    connection: str | None = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    keylogs: Sequence[str | os.PathLike[str]] = (),
    records: str = BATCHES,
    decompressed_limit: int | None = None,
    decompressed_ratio: int | None = None,
    keep_bytes: bool = False,
    keep_secrets: bool = False,
    meaning: bool = True,
    journeys: bool = True,
    same_clock: bool = False,
    schemas: str | os.PathLike[str] | None = None,
    registry: str | None = None,
    payloads: bool = False,
    append: bool = False,
    wait: bool = False,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Dataset:
    """Decode captures, or read log segments. Without `out` the tables come back in memory; with it they are written
    there as a dataset, and the `Dataset` that comes back has no tables (`open_dataset(out)` has them).

    filter: an expression (`analyzer/filter/FILTER.md`), and connection: the name of one, limit the exchanges, and the
    rows of other tables below them, that are kept; connections and coverage stay whole. ports: server ports that are
    Kafka whatever their content; threads: kernels at work at once; window_bytes: capture bytes read at a time;
    frame_limit: bytes of unfinished frames kept; keylogs: TLS key logs (files). records: `none`, `batches` (their
    headers, checksums checked), `meta` (a row a record, without content) or `full` (with it); decompressed_limit,
    decompressed_ratio: what one batch may become, in bytes and times its size. keep_bytes: also the table `messages`;
    keep_secrets: nothing in it overwritten; meaning: also what the traffic means (the tables of `tables.MEANING`; of
    a filtered capture they stay empty); journeys: of these also `journeys`; same_clock: the clocks of all points
    agree, so `journeys` also has batches produced at one and read at another; schemas, registry, payloads: decode keys
    and values of records (records="full"): with the schemas of a folder, with those of a registry (its URL), as far as
    no schema is needed; append: add to the dataset at `out`; wait: for another process that is writing it. Raises
    CaptureError, LogError and DatasetError."""
    choice = AnalysisOptions.of(
        filter,
        connection,
        keep_bytes,
        records,
        decompressed_limit,
        decompressed_ratio,
        keep_secrets,
        meaning,
        journeys,
        PayloadOptions.of(None if schemas is None else os.fspath(schemas), registry, payloads),
        same_clock,
    )
    how = ReadOptions(rotated, ports, threads, window_bytes, frame_limit, keylogs)
    return decode(captures, out, how, choice, append=append, wait=wait, progress=progress, stdin=stdin)


def decode(
    captures: Captures | CapturePoint,
    out: str | os.PathLike[str] | None,
    how: ReadOptions,
    choice: AnalysisOptions,
    *,
    append: bool = False,
    wait: bool = False,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    seen: Callable[[str, pa.Table], None] | None = None,
) -> Dataset:
    """`analyze`, with how to read and what is wanted as objects; one capture point may be given as it is.
    `seen` gets the rows of tables, but for findings, as they are written to `out`."""
    points: list[CapturePoint | LogPoint]
    if isinstance(captures, CapturePoint):
        points = [captures]
    else:
        logs, rest = log_points(_arguments(captures))
        points = [*(capture_points(rest, how.rotated) if rest else ()), *logs]
    settings = how.settings(choice.keep)
    without = {*tables.RUN_TABLES, *(() if choice.keep_bytes else ("messages",)), *WITHOUT[choice.records]}
    rows_of: dict[str, list[pa.Table]] = {name: [] for name in tables.TABLES if name not in without}
    load_extensions(choice)
    joint = _joint_journeys(choice, points)
    if out is None:

        def keep(name: str, table: pa.Table) -> None:
            rows_of[name].append(table)

        result = joined([read_point(point, settings, choice, keep, progress, stdin, joint) for point in points])
        rows_of["journeys"] += () if joint is None else joint.rows()
        result.tables = {name: concatenated(name, parts) for name, parts in rows_of.items()}
        result.tables["findings"] = findings_of(result, result.tables)
        return result
    with Writer(out, append, wait, settings.threads) as writer:
        check_names(points, writer)
        early = _pending_tables() if choice.means and len(points) == 1 else None
        if choice.means:  # what judges loads while others work: a tenth of a second that nobody waits for at the end
            threading.Thread(target=_load_rules, name="kwire-rules", daemon=True).start()

        def put(name: str, rows: LazyTable) -> None:
            if seen is not None:
                rows = as_table(rows)
                seen(name, rows)
            writer.write(name, rows if early is None else early.take(name, rows))

        result = joined([read_point_later(point, settings, choice, put, progress, stdin, joint) for point in points])
        for table in () if joint is None else joint.rows():
            put("journeys", table)
        findings = findings_of(result, writer.settle()) if early is None else _early_findings(result, early, writer)
        writer.write("findings", findings)
        writer.commit(manifest(result))
    return result


def _joint_journeys(choice: AnalysisOptions, points: Sequence[CapturePoint | LogPoint]) -> JourneysOfPoints | None:
    """Return what takes the journeys of all capture points, if these have one clock."""
    if not choice.same_clock or sum(isinstance(point, CapturePoint) for point in points) < 2:
        return None
    from kwire.analyzer.analysis.journeys_of_points import JourneysOfPoints

    return JourneysOfPoints()


def _pending_tables() -> PendingTables:
    """Keep the columns that rules read, so that they do not read back what is being written."""
    from kwire.analyzer.findings.capture import CACHED
    from kwire.analyzer.frame.pending import PendingTables

    return PendingTables(CACHED)


def _early_findings(result: Dataset, pending: PendingTables, writer: Writer) -> pa.Table:
    """`findings_of` while the last rows are written."""
    with ThreadPoolExecutor(1, "kwire-settle") as pool:
        files = pool.submit(writer.settle)
        findings = _findings(result, lambda listed: pending.row_groups(files, result.captures, listed))
        files.result()
    return findings


def load_extensions(choice: AnalysisOptions) -> None:
    """Load the rules of installed packages if they will be asked: one that is broken is told before a capture is
    read. Raises ExtensionError."""
    if choice.means and extensions.installed(extensions.RULES):
        _load_rules()


def _load_rules() -> None:
    """Import what `judged` needs."""
    from kwire.analyzer.findings import evaluate  # noqa: F401  (the module is what is wanted)


def findings_of(result: Dataset, parts: Mapping[str, pa.Table | Sequence[Path]]) -> pa.Table:
    """The table `findings` of capture points that were just read; `parts`: their other tables, in memory or as files.
    The summary tells of them."""

    def source(listed: Sequence[Mapping[str, Any]]) -> RowGroups:
        from kwire.analyzer.frame.parquet import RowGroups

        return RowGroups(parts, result.captures, listed)

    return _findings(result, source)


def _findings(result: Dataset, source: Callable[[Sequence[Mapping[str, Any]]], RowGroups]) -> pa.Table:
    """`source`: where rules read, given the connections without Kafka."""
    if not any(entry.get("meaning") for entry in result.captures):
        return tables.empty("findings")
    from kwire.analyzer.findings import evaluate

    findings = evaluate.stored(source(result.unrecognised.get("listed", ())))
    result.summary["findings"] = evaluate.summary(findings)
    return evaluate.as_table(findings)


def exchanges(
    captures: Captures,
    *,
    filter: Any = None,
    rotated: bool = False,
    ports: Sequence[int] = (),
    threads: int | None = None,
    window_bytes: int | None = None,
    frame_limit: int | None = None,
    keylogs: Sequence[str | os.PathLike[str]] = (),
    bodies: bool | Collection[int] = True,
    partitions: bool = False,
    ordered: bool | None = None,
    notes: list[str] | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Iterator[Exchange]:
    """The exchanges of captures, one by one: in order of their requests from files, as they complete from stdin
    (`ordered` chooses). `bodies`: of which APIs (by their keys) message bytes are kept, of all, or of none: `request`
    and `response` are None without. `partitions`: also rows of that table, as `exchange.partitions`.

    `filter`: an expression (`analyzer/filter/FILTER.md`). `notes` is filled with what the user should know.
    """
    how = ReadOptions(rotated, ports, threads, window_bytes, frame_limit, keylogs)
    return decoded(
        captures,
        how,
        filter=filter,
        bodies=bodies,
        partitions=partitions,
        ordered=ordered,
        notes=notes,
        progress=progress,
        stdin=stdin,
    )


def decoded(
    captures: Captures,
    how: ReadOptions,
    *,
    filter: Any = None,
    bodies: bool | Collection[int] = True,
    partitions: bool = False,
    ordered: bool | None = None,
    notes: list[str] | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    payloads: PayloadOptions | None = None,
) -> Iterator[Exchange]:
    """`exchanges`, with how to read as an object. `payloads`: how keys and values are decoded, in trees and filters."""
    wanted = parsed(filter)
    only = None if bodies is True else frozenset(bodies or ())
    for one_by_one in _points(captures, how, wanted, only, notes, stdin, payloads):
        one_by_one.partitions = partitions
        one_by_one.decode_trees()
        yield from one_by_one.exchanges(ordered, progress)


class Block(NamedTuple):
    """Some exchanges in order, as columns, and of which capture point.

    columns        their rows and messages
    make           an exchange of a row and its messages
    capture_start  the time of the capture's first packet
    """

    columns: ExchangeBlock
    make: Callable[[dict[str, Any], Messages], Exchange]
    capture_start: datetime.datetime | None

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the exchanges as objects."""
        return self.columns.exchanges(self.make)

    def head(self, count: int) -> Block:
        """The first exchanges, at most so many."""
        return self if count >= len(self.columns) else self._replace(columns=self.columns.take(np.arange(count)))


def decoded_blocks(
    captures: Captures,
    how: ReadOptions,
    *,
    columns: Collection[str],
    partition_columns: Collection[str],
    filter: Any = None,
    bodies: Collection[int] = (),
    directions: Mapping[int, int] = MappingProxyType({}),
    notes: list[str] | None = None,
    stdin: BinaryIO | None = None,
    payloads: PayloadOptions | None = None,
) -> Iterator[Block]:
    """`decoded`, some thousand exchanges at a time, and with some columns alone, for callers that read columns.

    `columns`: of `exchanges`; `partition_columns`: of `partitions`; `directions`: of APIs in it only such messages are
    kept (0: requests), if no filter reads bodies."""
    only = frozenset(bodies)
    for one_by_one in _points(captures, how, parsed(filter), only, notes, stdin, payloads, directions=directions):
        one_by_one.partitions = True
        one_by_one.columns = columns, partition_columns
        yield from one_by_one.blocks(None, None)


class RawExchange(NamedTuple):
    """An exchange as it was captured: its row of the table `exchanges`, and its messages where they are at hand."""

    row: cells.Row
    request_message: Message | None
    response_message: Message | None

    def exchange(self) -> Exchange:
        """With its bodies."""
        return Exchange(dict(self.row), self.request_message, self.response_message)


def raw_exchanges(
    captures: Captures,
    how: ReadOptions,
    *,
    filter: Any = None,
    ordered: bool | None = None,
    notes: list[str] | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
    bodies: Collection[int] | None = None,
    look: ChooseExchanges | None = None,
    payloads: PayloadOptions | None = None,
) -> Iterator[RawExchange]:
    """`decoded`, for who looks at a few cells of each row and decodes bodies on its own; `bodies`: of some APIs only.
    `look` gets each window, with headers of its record sets (`Settings.record_headers`), once a filter has chosen, and
    says which of its exchanges are to be handed out. While something that began earlier may still end, at most `HELD`
    exchanges and `HELD_BYTES` wait for it: a request that is never answered would have all that follow wait. What ends
    later than that comes when it ends."""
    records = look is not None
    for one_by_one in _points(captures, how, parsed(filter), bodies, notes, stdin, payloads, records=records):
        one_by_one.look = look
        yield from one_by_one.light(ordered, progress)


def _points(
    captures: Captures,
    how: ReadOptions,
    wanted: Any,
    only: Collection[int] | None,
    notes: list[str] | None,
    stdin: BinaryIO | None,
    payloads: PayloadOptions | None,
    *,
    records: bool = False,
    directions: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[_PointExchanges]:
    """Capture point after capture point; who takes one reads it to its end. `only`: APIs whose messages are kept, None:
    all; `payloads`: how keys and values are decoded that a filter tests; `records`: headers of record sets are kept."""
    if wanted is not None and wanted.needs_bodies:
        only, directions = None, {}
    settings = how.settings(True if only is None else frozenset(only) or False, keep_records=records)
    settings = dataclasses.replace(settings, keep_giants=True, record_headers=records)
    passed: list[tuple[int, int]] = []
    for point in capture_points(_arguments(captures), how.rotated):
        held = HeldMessages(only, directions=directions)
        one_by_one = _PointExchanges(Engine(point, settings, stdin), point, wanted, held, payloads)
        yield one_by_one
        passed.append(one_by_one.passed)
        if notes is not None:
            notes += one_by_one.notes()
    if notes is not None and wanted is not None:
        notes += nothing_matches(passed)


_Keyed = tuple[int, int, Any]
"""The index of an exchange's first packet, the serial number of its connection, and the exchange."""


class _PointExchanges:
    """The exchanges of one capture point.

    passed      how many a filter let through so far, of how many
    partitions  whether exchanges are to have theirs
    columns     those of `exchanges` and of `partitions` that are read; None: all
    look        as of `light`
    """

    def __init__(
        self,
        engine: Engine,
        point: CapturePoint,
        wanted: Any,
        messages: HeldMessages,
        payloads: PayloadOptions | None,
    ) -> None:
        self._engine = engine
        self._point = point
        self._wanted = wanted
        self._messages = messages
        self._waiting: WaitingMessages | None = None
        self.partitions = False
        self.columns: tuple[Collection[str] | None, Collection[str] | None] = (None, None)
        self.look: ChooseExchanges | None = None
        self.passed = (0, 0)
        self._latency = Latency()
        self._topics = TopicIds()
        self._ended = EndedConnections()
        self._ahead = NamesAhead(self._topics, point, engine.settings)
        self._start: datetime.datetime | None = None
        self._groups = GroupProtocols()
        self._payloads: PayloadReader | None = None
        self._payload_options = payloads
        self._records: RecordPayloads | None = None
        if wanted is not None and wanted.needs_payloads:
            self._records = record_payloads(wanted, self._options_of_point)

    @functools.cached_property
    def _options_of_point(self) -> PayloadOptions | None:
        """How keys and values of this capture point are decoded: its own registry traffic is searched once."""
        return of_point(self._payload_options, self._point)

    def decode_trees(self) -> None:
        """Decode keys and values in trees of exchanges, if options say how. Raises UsageError, CaptureError."""
        if self._payload_options is not None and self._options_of_point is not None:
            self._payloads = self._options_of_point.trees()

    def notes(self) -> list[str]:
        """All has been read: what the user should know."""
        reader, name = self._engine.reader, self._engine.merging.names.capture
        return [*reader.notes, *unread_lines(name, reader.counts), *unrecognised_lines(name, self._ended)]

    def exchanges(self, ordered: bool | None, progress: Progress | None) -> Iterator[Exchange]:
        """Exchanges with dicts for rows."""
        return itertools.chain.from_iterable(block.exchanges() for block in self.blocks(ordered, progress))

    def blocks(self, ordered: bool | None, progress: Progress | None) -> Iterator[Block]:
        """Exchanges some thousand at a time."""
        if self._wanted is None:  # a filter looks at some messages before their exchanges are chosen
            self._waiting = self._messages.as_columns()
        sink = InRequestOrder if self._is_ordered(ordered) else AsTheyEnd
        for block in self._driven(sink(self._packed), progress):
            yield Block(block, self._exchange, self._start)

    def light(self, ordered: bool | None, progress: Progress | None) -> Iterator[RawExchange]:
        """Exchanges whose rows stay columns; in order of their requests as far as `HELD` and `HELD_BYTES` allow."""
        sink = _InOrder if self._is_ordered(ordered) else _AsTheyEnd
        return self._driven(sink(self._cells), progress)

    def _is_ordered(self, ordered: bool | None) -> bool:
        return "-" not in self._point.paths if ordered is None else ordered

    def _driven(self, sink: Sink[Any], progress: Progress | None) -> Iterator[Any]:
        size = size_of(self._point)

        def report(read: int) -> None:
            if progress is not None:
                progress(self._point.name, read, size)

        return drive(self._engine, [sink], report)

    def _wanted_of(self, window: Window) -> Exchanges:
        """The exchanges of one window that are wanted."""
        window = self._latency.take(window)
        self._topics.take(window)
        self._ended.take(window)
        (self._messages if self._waiting is None else self._waiting).take(window)
        if self._wanted is not None:
            window = window.only(self._chosen(window))
            self._messages.forget(window.every, window.exchanges)
        rows = window.exchanges
        self.passed = (self.passed[0] + len(rows), self.passed[1] + len(window.every))
        return rows if self.look is None else self.look(window)

    def _chosen(self, window: Window) -> Exchanges:
        return chosen(window, self._messages, self._wanted, None, self._ahead.look_up, self._records)

    def _packed(self, window: Window) -> PackedExchanges:
        """The exchanges of one window as columns."""
        names = window.names
        rows = self._wanted_of(window)
        self._begin()
        first, connection, requests, replies = _key_columns(rows)
        waiting = self._messages if self._waiting is None else self._waiting
        messages = waiting.pop_columns(connection, requests, replies)
        of_exchanges, of_partitions = self.columns
        table = plain(exchange_tables.exchanges(names, [rows]), "exchanges", of_exchanges)
        parts = None
        if self.partitions:
            parts = plain(exchange_tables.partitions(names, [rows]), "partitions", of_partitions)
        ends = np.searchsorted(rows.owner, np.arange(len(rows) + 1)) if self.partitions else None
        block = ExchangeBlock(table, messages, parts, ends)
        return PackedExchanges(first, names.serials_of(connection), block)

    def _exchange(self, row: dict[str, Any], messages: Messages) -> Exchange:
        """An exchange, which its group is learned from."""
        self._ahead.resolve(row)
        exchange = Exchange(row, *messages, self._start, self._ahead.look_up)
        exchange.payloads = self._payloads
        if self.columns[0] is None:  # trees tell of groups
            exchange.learn_group(self._groups)
        return exchange

    def _cells(self, window: Window) -> Iterator[_Keyed]:
        names, pop = window.names, self._messages.pop
        rows = self._named(self._wanted_of(window))
        keys = _keys(rows)
        for part in cells.parts(exchange_tables.exchanges(names, [rows])):
            for row in part.rows():
                first, connection, request_index, answered = next(keys)
                yield first, names.serials[connection], RawExchange(row, *pop(connection, request_index, answered))

    def _named(self, rows: Exchanges) -> Exchanges:
        """With names for topic ids."""
        names, topics = rows.names, rows.column("topics")
        used = distinct(topics[topics != NULL])
        named = used.copy()
        for at, number in enumerate(used.tolist()):
            topics_given = [names.strings[string] for string in names.lists[number]]
            known = list(dict.fromkeys(map(self._ahead.look_up, topics_given)))
            if known != topics_given:
                named[at] = names.list_of(tuple(map(names.string, known)))
        if (named == used).all():
            return rows
        changed = rows.columns.copy()
        changed[COLUMNS["topics"]] = np.where(topics == NULL, NULL, named[np.searchsorted(used, topics)])
        return dataclasses.replace(rows, columns=changed)

    def _begin(self) -> None:
        """Learn when the capture begins, as far as its first window tells."""
        if self._start is None:
            files = self._engine.reader.files
            first_ns = min((info.first_ns for info in files if info.first_ns is not None), default=None)
            self._start = moment(first_ns // 1000) if first_ns is not None else None


class _AsTheyEnd(Sink[Any]):
    """Hands out exchanges as they complete. `of`: those of one window."""

    def __init__(self, of: Callable[[Window], Iterator[_Keyed]]) -> None:
        self._of = of

    def take(self, window: Window) -> Iterator[Any]:
        """Return the exchanges that ended in a window."""
        for _, _, exchange in self._of(window):
            yield exchange
        window.names.release()


class _InOrder(Sink[Any]):
    """Hands out exchanges in order of their requests as far as `HELD` and `HELD_BYTES` allow. `of`: those of one
    window."""

    def __init__(self, of: Callable[[Window], Iterator[_Keyed]]) -> None:
        self._of = of
        self._waiting: list[tuple[int, int, int, Any]] = []
        self._count = 0

    def take(self, window: Window) -> Iterator[Any]:
        """Return the exchanges that no open one began before."""
        waiting = self._waiting
        for packet, serial, exchange in self._of(window):
            waiting.append((packet, serial, self._count, exchange))
            self._count += 1
        window.names.release()
        # What may still end and began earlier goes before what has ended.
        waiting.sort()
        over = max(bisect.bisect_left(waiting, (window.oldest,)), _beyond(waiting))
        ended = waiting[over - 1 :: -1] if over else []
        del waiting[:over]
        while ended:
            yield ended.pop()[3]

    def finish(self) -> Iterator[Any]:
        """Return those that waited for one that never ended."""
        self._waiting.reverse()
        while self._waiting:
            yield self._waiting.pop()[3]


def _beyond(waiting: Sequence[tuple[int, int, int, RawExchange]]) -> int:
    """How many of those that wait, the first ones, are more than may."""
    most = max(len(waiting) - HELD, 0)
    bytes_ = 0
    for place in range(len(waiting) - 1, most - 1, -1):
        _, request, response = waiting[place][3]
        bytes_ += len(request.data if request else b"") + len(response.data if response else b"")
        if bytes_ > HELD_BYTES:
            return place + 1
    return most


def _keys(rows: Exchanges) -> Iterator[tuple[int, int, int, int]]:
    """Of each exchange: the ordinal of its first packet, its connection, the ordinals of its messages."""
    return zip(*(column.tolist() for column in _key_columns(rows)), strict=True)


def _key_columns(rows: Exchanges) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`_keys` as columns."""
    ordinal, trigger = rows.column("packet_index"), rows.column("completed_by")
    first = np.where(ordinal != NULL, ordinal, trigger)
    return first, rows.connection, rows.column("exchange"), rows.column("reply")
