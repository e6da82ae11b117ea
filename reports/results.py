"""Answers of Spark in the forms that people and programs want: aligned text, CSV, JSON lines, Parquet.

In: an Arrow table. Out: text, or a file. Times are RFC 3339 in UTC with six decimals, what is nested is JSON. Bytes are
base64 in JSON; for people, in aligned text and CSV, they are text where they are UTF-8, else hex after `0x`. Pure
functions but for the file.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from kwire.analyzer.cli.text import aligned, json_text, printable
from kwire.analyzer.common.times import rfc3339

ROWS_AT_ONCE = 4096
"""Rows made Python objects at a time."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a formula begins with, or what spreadsheets pass over before one (OWASP, CSV injection)."""
_NUMBERS = (int, float, decimal.Decimal)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def plain(value: Any, of_bytes: Callable[[bytes], str] = _base64) -> Any:
    """A value as JSON can say it."""
    if isinstance(value, datetime.datetime):
        return rfc3339(value)
    if isinstance(value, bytes):
        return of_bytes(value)
    if isinstance(value, dict):
        return {str(key): plain(item, of_bytes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, of_bytes) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # dates, decimals, intervals


def _rows(table: pa.Table) -> Iterator[list[Any]]:
    """Row by row; two columns may have the same name."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        yield from (list(row) for row in zip(*(column.to_pylist() for column in batch.columns)))


def cell_text(value: Any) -> str:
    """A value as text: null is empty."""
    text = plain(value, _text)
    if text is None:
        return ""
    if isinstance(text, bool):
        return "true" if text else "false"
    return json_text(text) if isinstance(text, dict | list) else str(text)


def as_text(table: pa.Table) -> str:
    """Aligned columns below their names, numbers to the right."""
    names = [printable(name) for name in table.column_names]
    right = {i for i, column in enumerate(table.schema) if _is_number(column.type)}
    return aligned([names, *([printable(cell_text(value)) for value in row] for row in _rows(table))], right)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def as_csv(table: pa.Table, *, raw: bool = False, terminal: bool = False) -> Iterator[str]:
    """Format a table as CSV (RFC 4180, but lines end with LF), heading first, in pieces.

    Text that a spreadsheet would take for a formula begins with ' unless `raw`; for a `terminal`, control characters
    are escaped.
    """

    def line(values: list[Any]) -> str:
        cells = [cell_text(value) for value in values]
        if not raw:
            cells = [
                f"'{cell}" if cell.startswith(_FORMULA) and not isinstance(value, _NUMBERS) else cell
                for cell, value in zip(cells, values, strict=True)
            ]
        return _csv_line([printable(cell) for cell in cells] if terminal else cells)

    yield line(table.column_names)
    for row in _rows(table):
        yield line(row)


def _csv_line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)  # with LF it would leave a return inside a cell unquoted
    return out.getvalue().removesuffix("\r\n") + "\n"


def as_json(table: pa.Table) -> Iterator[str]:
    """An object a line."""
    names = table.column_names
    for row in _rows(table):
        shown = {name: _number(plain(value), value) for name, value in zip(names, row)}
        yield json_text(shown) + "\n"


def _number(number: Any, value: Any) -> Any:
    """JSON knows no NaN, and decimals are numbers."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return (
        None if isinstance(number, float) and (number != number or number in (float("inf"), float("-inf"))) else number
    )


def write_parquet(table: pa.Table, path: Any) -> None:
    """A Parquet file."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path, compression="zstd")
