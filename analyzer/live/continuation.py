"""A capture that goes on from one capture point to the next: stretches of it, each with tables of its own.

In: stretches, one after the other. Out: what each gives, as if it had been read alone, but for what crosses a border:

- An exchange is a row where it ends. One whose request came in an earlier stretch is whole in the one that has its
  answer; none is a request without answer because a stretch ended.
- Names of topics, brokers, API versions offered, clients, fetch sessions and group protocols that earlier stretches
  said are known.
- A connection that is open is a row of each stretch in which it had packets. Its numbers are those of that stretch
  alone, so that they add up; its times, its ends and what is known of it are its own.
- What the traffic means goes on (`analysis.ResumableCollector.onward`): a rebalance, a transaction, a reset is a row
  once it is over; clients and readers that go on are a row of each stretch in which they did something.

At a border the engine is copied (`snapshots`), and the copy's connections end; the engine itself goes on. Names are
never forgotten one by one: beyond `MOST_NAMES` a stretch ends as a capture does, and the next begins anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, cast

import numpy as np

from kwire.analyzer.analysis.control_exchanges import NEVER
from kwire.analyzer.analysis.latency import Latency
from kwire.analyzer.analysis.transactions import ABOUT
from kwire.analyzer.api import findings_of, load_extensions
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.checkpoints.checkpoint import copied
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset, Writer
from kwire.analyzer.frame import arrow
from kwire.analyzer.live.rotations import Rotations
from kwire.analyzer.live.watch_session import MOST_NAMES
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.drive import EachWindow, Sink, drive
from kwire.analyzer.pipeline.point_result import PointResult, joined, manifest
from kwire.analyzer.pipeline.point_tables import CarryOver, PointTables, Rows
from kwire.analyzer.pipeline.points import check_names
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint, FileInfo
from kwire.captures.kernels import NULL

_OPAQUE: Final = tuple(f"opaque_{reason}_bytes" for reason in tables.OPAQUE_REASONS)
_CLASSES: Final = ("decoded_bytes", "skipped_bytes", "incomplete_bytes", *_OPAQUE)
"""Of payload: a byte of a message that is not whole yet is `incomplete` at a border, and something else later."""

_AMOUNTS: Final = (
    "requests",
    "errors",
    "client_packets",
    "broker_packets",
    "client_bytes",
    "broker_bytes",
    "retransmissions",
    "duplicates",
    "out_of_order",
    "overlap_conflicts",
    "zero_windows",
    "gaps",
    "payload_bytes",
    "duplicate_bytes",
    "opaque_bytes",
    "gap_bytes",
    "snaplen_bytes",
    "snaplen_record_bytes",
    *_CLASSES,
)
"""Columns of `Connections` that count."""


@dataclasses.dataclass(frozen=True, slots=True)
class _ReaderStats:
    """Counts and notes of a reader."""

    files: list[FileInfo]
    counts: dict[str, Any]
    notes: list[str]


class _RotationSink(Sink[Rows]):
    """Makes tables of windows. `count`: leaves what belongs to this rotation in what ended in a window."""

    def __init__(self, tables: PointTables, count: Callable[[Window], Window]) -> None:
        self._tables, self._count = tables, count

    @property
    def settled(self) -> bool:  # type: ignore[override]
        """See `Sink`."""
        return self._tables.settled

    def take(self, window: Window) -> Iterable[Rows]:
        """Take a window, and return rows that are known for good."""
        return self._tables.take(self._count(window))

    def named(self) -> Iterable[np.ndarray]:
        """See `Sink`."""
        return self._tables.named()


class Continuation:
    """See above. Raises CaptureError and DatasetError."""

    def __init__(self, stretches: Rotations, how: ReadOptions, choice: AnalysisOptions) -> None:
        load_extensions(choice)
        settings = how.settings(choice.keep)
        self._settings = dataclasses.replace(settings, keep_records=choice.keep_records)
        self._stretches, self._choice = stretches, choice
        self._engine: Engine | None = None
        self._known: CarryOver | None = None
        self._counted: dict[int, dict[str, int]] = {}
        """By connection: what earlier stretches counted of it."""

    def stretch(self, name: str, out: str, append: bool, wait: bool) -> Dataset:
        """The next one, to its end."""
        return self._written(name, out, append, wait, self._begun(name))

    def rest(self, name: str, out: str, append: bool, wait: bool) -> Dataset | None:
        """The capture is over, and its last stretch had ended before: exchanges that are still open, if there are."""
        engine, self._engine = self._engine, None
        if engine is None:
            return None
        windows = list(drive(engine, [EachWindow(self._of_stretch)]))
        if not any(len(window.every) for window in windows):
            return None
        engine.merging.names.capture = name
        return self._written(name, out, append, wait, (engine, windows))

    def _begun(self, name: str) -> tuple[Engine, None]:
        point = CapturePoint(name, ("-",))
        if self._engine is None:
            self._engine = Engine(point, self._settings, cast(BinaryIO, self._stretches))
            self._known, self._counted = None, {}
        self._engine.go_on(point)
        self._engine.merging.names.capture = name
        return self._engine, None

    def _written(
        self, name: str, out: str, append: bool, wait: bool, work: tuple[Engine, list[Window] | None]
    ) -> Dataset:
        with Writer(out, append, wait, self._settings.threads) as writer:
            check_names([CapturePoint(name, ("-",))], writer)
            engine, left = work
            sink = PointTables(engine.merging.names, self._choice, self._settings.threads, before=self._known)
            before = _reader_stats(engine)
            if left is None:
                _write(writer, drive(engine, [_RotationSink(sink, self._of_stretch)], over=False))
                _write(writer, sink.flush())
            for window in self._ending(engine, sink) if left is None else left:
                _write(writer, sink.take(window))
            result = joined([self._finished(engine, sink, writer, name, before)])
            writer.write("findings", findings_of(result, writer.settle()))
            writer.commit(manifest(result))
        return result

    def _ending(self, engine: Engine, sink: PointTables) -> Iterator[Window]:
        """Return the windows of the end of a rotation: of connections that are open, or of all if nothing follows."""
        names = engine.merging.names
        if self._stretches.over or len(names.strings) + len(names.lists) > MOST_NAMES:
            self._engine = None
            yield from drive(engine, [EachWindow(self._of_stretch)])
            return
        copy, latency = (
            Engine(CapturePoint(names.capture, ()), dataclasses.replace(self._settings, keylogs=())),
            Latency(),
        )
        copied([engine, sink.latency], [copy, latency])
        copy.take_up()
        windows = list(drive(copy, [EachWindow()]))
        self._known = sink.carry_over(_first_asked(windows))
        sink.latency.sessions.onward()
        sink.latency = latency
        counted = self._counted
        self._counted = {}
        for window in windows:
            yield self._of_stretch(window.facts_alone(), counted)

    def _of_stretch(self, window: Window, open_ones: dict[int, dict[str, int]] | None = None) -> Window:
        """Leave in the counts of connections what belongs to this rotation.

        `open_ones`: counts of earlier rotations of connections that go on; they are remembered with their present
        counts, and connections without a packet are left out."""
        those = window.connections
        counted = self._counted if open_ones is None else open_ones
        if not len(those) or (not counted and open_ones is None):
            return window
        born = [window.names.serials[number] for number in those.number.tolist()]
        columns = {name: values.copy() for name, values in those.columns.items()}
        for row, which in enumerate(born):
            before = counted.get(which)
            if open_ones is not None:
                self._counted[which] = {name: int(those[name][row]) for name in ("is_kafka", *_AMOUNTS)}
            # What was no Kafka at the border and is now, a handshake of TLS for one, counts here as a whole.
            if before is not None and before["is_kafka"] == those["is_kafka"][row]:
                _subtract(columns, row, before)
        rows = np.arange(len(those))
        if open_ones is not None:
            rows = np.flatnonzero(columns["client_packets"] + columns["broker_packets"] > 0)
        else:
            for which in born:
                counted.pop(which, None)
        connections = dataclasses.replace(those, columns=columns).take(rows)
        return dataclasses.replace(window, connections=connections, _over=window.over)

    def _finished(
        self, engine: Engine, sink: PointTables, writer: Writer, name: str, before: _ReaderStats
    ) -> PointResult:
        _write(writer, sink.flush())
        _write(writer, sink.remaining_records() if self._engine is None else sink.flush_records())
        _write(writer, sink.analysis_rows())
        stats = _since(_reader_stats(engine), before)
        first = min((info.first_ns for info in stats.files if info.first_ns is not None), default=0)
        attempts = [attempt for attempt in engine.attempts() if attempt.last_ns >= first]
        return sink.result(CapturePoint(name, ("-",)), stats, attempts)


def _first_asked(windows: Iterable[Window]) -> int:
    """The first packet of the first request about transactions, of those that are open where a stretch ends."""
    packets = []
    for every in (window.every for window in windows):
        about = arrow.among(every.column("api_key"), ABOUT) | (every.column("transactional_id") != NULL)
        packets += every.column("packet_index")[about].tolist()
    return min(packets, default=NEVER)


def _write(writer: Writer, rows: Iterable[tuple[str, Any]]) -> None:
    for name, table in rows:
        writer.write(name, table)


def _subtract(columns: dict[str, np.ndarray], row: int, before: dict[str, int]) -> None:
    """Leave of a connection's numbers what came after."""
    for name in _AMOUNTS:
        columns[name][row] -= before[name]
        if name not in _CLASSES:  # whose side is whose may have been learned since
            columns[name][row] = max(0, int(columns[name][row]))
    for name in _CLASSES:
        # Bytes that were something else at the border are in that stretch.
        less = min(0, int(columns[name][row]))
        columns[name][row] -= less
        for other in _CLASSES:
            if less < 0 and other != name and columns[other][row] > 0:
                part = min(-less, int(columns[other][row]))
                columns[other][row] -= part
                less += part
    columns["opaque_bytes"][row] = sum(int(columns[name][row]) for name in _OPAQUE)


def _reader_stats(engine: Engine) -> _ReaderStats:
    """Return the reader's counts and notes so far."""
    reader = engine.reader
    return _ReaderStats(list(reader.files), reader.counts, list(reader.notes))


def _since(now: _ReaderStats, before: _ReaderStats) -> _ReaderStats:
    counts = {name: _less(value, before.counts.get(name)) for name, value in now.counts.items()}
    return _ReaderStats(now.files[len(before.files) :], counts, now.notes[len(before.notes) :])


def _less(value: Any, before: Any) -> Any:
    """Return how much a counter, or each of several by name, has grown; None stays None."""
    if isinstance(value, dict):
        grown = {name: count - (before or {}).get(name, 0) for name, count in value.items()}
        return {name: count for name, count in grown.items() if count}
    return None if value is None else value - (before or 0)
