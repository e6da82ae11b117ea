"""Export of the chosen exchanges: rows as csv, lines of JSON or Parquet, or their connections' packets as pcapng.

In: a view, a filter and an order. Out: bytes in pieces. Rules: rows have all columns of the table `exchanges` in the
order of the list; packets are exported by whole connections.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset import tables as contract
from kwire.analyzer.frame.spill import check_cancelled
from kwire.analyzer.protocol import errors
from kwire.captures.files import CapturePoint, capture_points
from kwire.reports import results
from kwire.reports.view.source_captures import SourceCaptures
from kwire.reports.view.tables import BadRequestError, Tables

if TYPE_CHECKING:
    from kwire.reports.view.packets import ConnectionSpan

AT_ONCE: Final = 10_000
"""Rows converted at a time."""

CONNECTIONS: Final = 2_000
"""Connections whose packets can be exported together."""

_PIECE: Final = 1 << 20


def export_rows(tables: Tables, text: str, sort: str, form: str) -> tuple[str, Callable[[], Iterator[bytes]]]:
    """Get the file's type, and a function that makes its pieces. Raises BadRequestError."""
    if form not in FORMS:
        raise BadRequestError(f"format={form[:40]}: unknown format", f"one of {', '.join(FORMS)}")
    kind, written = FORMS[form]
    return kind, partial(written, _parts(tables, tables.ordered(text, sort).rows))


def connections_to_export(
    tables: Tables, captures: SourceCaptures | None, text: str
) -> list[tuple[CapturePoint, list[ConnectionSpan]]]:
    """Get the captures with the chosen exchanges' connections, and these. Raises BadRequestError and CaptureError."""
    from kwire.reports.view.packets import ConnectionSpan  # loads the readers of captures

    if captures is None:
        raise BadRequestError(
            "the capture is not available: no packets", "look at the capture itself: kwire view CAPTURE"
        )
    # By capture, too: another capture may have the same connection without its being chosen.
    chosen = set(tables.links_of(tables.chosen(text).rows)[0])
    if len(chosen) > CONNECTIONS:
        raise BadRequestError(f"{len(chosen):,} connections are chosen", f"filter to {CONNECTIONS:,} or fewer")
    lasting: dict[str, list[ConnectionSpan]] = {}
    for row in tables.other("connections"):
        there = (row["capture"], row["connection"]) in chosen
        if there and row["first_time"] is not None and row["last_time"] is not None:
            client, broker = ((row[f"{side}_ip"], row[f"{side}_port"]) for side in ("client", "broker"))
            span = ConnectionSpan(client, broker, row["first_time"] * 1000, row["last_time"] * 1000 + 999)
            lasting.setdefault(row["capture"], []).append(span)
    return [
        (point, wanted)
        for name, wanted in lasting.items()
        for point in capture_points(list(captures.point(name)), captures.how.rotated)
    ]


def export_packets(there: Sequence[tuple[CapturePoint, list[ConnectionSpan]]]) -> Iterator[bytes]:
    """Write the packets of connections as pcapng. Raises BadRequestError and CaptureError."""
    from kwire.reports.view.packets import extract_packets

    pieces = itertools.chain.from_iterable(extract_packets(point, wanted, check_cancelled) for point, wanted in there)
    first = next(pieces, None)  # raises errors before the answer begins
    if first is None:
        raise BadRequestError(
            "the capture has no packet of the chosen exchanges", "the filter chooses none, or the capture was changed"
        )
    return itertools.chain([first], pieces)


def _parts(tables: Tables, rows: np.ndarray) -> Iterator[pa.Table]:
    """Convert rows to tables with the contract's schema; at least one table."""
    schema = contract.schema("exchanges")
    for start in range(0, max(len(rows), 1), AT_ONCE):
        selected = tables.rows_at(rows[start : start + AT_ONCE], schema.names)
        for row in selected:
            row["errors"] = [{**error, "error": errors.name(error["code"])} for error in row["errors"]]
        yield pa.Table.from_pylist(selected, schema)


def _csv(parts: Iterator[pa.Table]) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        for line in itertools.islice(results.as_csv(part), min(number, 1), None):  # the heading once
            yield line.encode(errors="backslashreplace")


def _json(parts: Iterator[pa.Table]) -> Iterator[bytes]:
    for part in parts:
        for line in results.as_json(part):
            yield line.encode(errors="backslashreplace")


def _parquet(parts: Iterator[pa.Table]) -> Iterator[bytes]:
    import pyarrow.parquet

    with tempfile.TemporaryFile() as file:
        with pyarrow.parquet.ParquetWriter(file, contract.schema("exchanges")) as writer:
            for part in parts:
                writer.write_table(part)
        file.seek(0)
        while piece := file.read(_PIECE):
            yield piece


FORMS: Final[dict[str, tuple[str, Callable[[Iterator[pa.Table]], Iterator[bytes]]]]] = {
    "csv": ("text/csv; charset=utf-8", _csv),
    "json": ("application/x-ndjson", _json),
    "parquet": ("application/vnd.apache.parquet", _parquet),
}
