"""What a filter chooses, as a file: its rows as csv, lines of JSON or Parquet, or the packets of its connections.

In: a view, a filter and an order. Out: bytes in pieces, as they are made. Rules: all columns of the table `exchanges`
as its contract has them, in the order that the list shows; of packets, whole connections, for half of one says little.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from analyzer.dataset import tables as contract
from analyzer.protocol import errors
from captures.files import CapturePoint, capture_points
from reports import results
from reports.view.source_captures import Captures
from reports.view.tables import Tables, Wrong
from reports.view.value_counts import wanted as still

if TYPE_CHECKING:
    from reports.view.packets import Wanted

AT_ONCE: Final = 10_000
"""Rows made at a time."""

CONNECTIONS: Final = 2_000
"""Connections whose packets are looked for together."""

_PIECE: Final = 1 << 20


def exported(tables: Tables, text: str, sort: str, form: str) -> tuple[str, Callable[[], Iterator[bytes]]]:
    """The type of the file, and what makes its pieces. Raises Wrong."""
    if form not in FORMS:
        raise Wrong(f"format={form[:40]}: nothing is written in it", f"one of {', '.join(FORMS)}")
    kind, written = FORMS[form]
    return kind, partial(written, _parts(tables, tables.ordered(text, sort).rows))


def with_packets(tables: Tables, captures: Captures | None, text: str) -> list[tuple[CapturePoint, list[Wanted]]]:
    """The captures that hold the chosen exchanges' connections, and which these are. Raises Wrong and CaptureError."""
    from reports.view.packets import Wanted  # what reads captures is loaded when one is read

    if captures is None:
        raise Wrong("the capture is not at hand: no packets", "look at the capture itself: kwire view CAPTURE")
    rows = tables.chosen(text).rows
    columns = tables.columns
    # By capture, too: another one may have the same connection, which is not chosen with it.
    both = np.stack([columns.codes[name][rows] for name in ("capture", "connection")])
    links = np.unique(both, axis=1).T.tolist()
    if len(links) > CONNECTIONS:
        raise Wrong(f"{len(links):,} connections are chosen", f"filter to {CONNECTIONS:,} or fewer")
    chosen = {(columns.values["capture"][capture], columns.values["connection"][link]) for capture, link in links}
    lasting: dict[str, list[Wanted]] = {}
    for row in tables.other("connections"):
        there = (row["capture"], row["connection"]) in chosen
        if there and row["first_time"] is not None and row["last_time"] is not None:
            client, broker = ((row[f"{side}_ip"], row[f"{side}_port"]) for side in ("client", "broker"))
            one = Wanted(client, broker, row["first_time"] * 1000, row["last_time"] * 1000 + 999)
            lasting.setdefault(row["capture"], []).append(one)
    return [
        (point, wanted)
        for name, wanted in lasting.items()
        for point in capture_points(list(captures.point(name)), captures.how.rotated)
    ]


def packets(there: Sequence[tuple[CapturePoint, list[Wanted]]]) -> Iterator[bytes]:
    """The packets of connections as pcapng: whole connections, nothing else. Raises Wrong and CaptureError."""
    from reports.view.packets import extracted

    pieces = itertools.chain.from_iterable(extracted(point, wanted, still) for point, wanted in there)
    first = next(pieces, None)  # what is wrong is told while it can be, not in the middle of a file
    if first is None:
        raise Wrong("no packet of the chosen exchanges is there", "the filter chooses none, or the capture was changed")
    return itertools.chain([first], pieces)


def _parts(tables: Tables, rows: np.ndarray) -> Iterator[pa.Table]:
    """The rows as tables of the contract's types; one at least."""
    schema = contract.schema("exchanges")
    for start in range(0, max(len(rows), 1), AT_ONCE):
        found = tables.some(rows[start : start + AT_ONCE], schema.names)
        for row in found:
            row["errors"] = [{**one, "error": errors.name(one["code"])} for one in row["errors"]]
        yield pa.Table.from_pylist(found, schema)


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
