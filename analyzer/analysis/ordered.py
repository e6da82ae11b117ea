"""Rows that are known in one order and stand in another, as a table: few of them are Python's objects at a time.

In: rows as dicts without their capture, each with what it is ordered by. Out: one table. Rule: rows that are ordered by
the same stay as they came.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from analyzer.dataset import tables

MOST_AT_ONCE: Final = 4096
"""Rows that are dicts at a time: one takes two kilobytes where it has lists of members and what they got."""


class Ordered:
    """The rows of one table."""

    def __init__(self, name: str) -> None:
        self._schema = tables.schema(name)
        self._capture = self._schema.get_field_index("capture")
        self._orders: list[Any] = []
        self._rows: list[dict[str, Any]] = []
        self._parts: list[pa.Table] = []

    def put(self, order: Any, row: dict[str, Any]) -> None:
        """A row; `order`: sorts all of them."""
        self._orders.append(order)
        self._rows.append(row)
        if len(self._rows) >= MOST_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        self._parts.append(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []

    def table(self, capture: str) -> pa.Table:
        """All of them, of that capture."""
        if not self._orders:  # PyArrow's functions take time to load
            return self._schema.empty_table()
        self._settle()
        whole, self._parts = pa.concat_tables(self._parts), []
        order = sorted(range(len(whole)), key=self._orders.__getitem__)
        if any(at != place for place, at in enumerate(order)):
            whole = whole.take(pa.array(order))
        return whole.set_column(self._capture, "capture", pa.repeat(pa.scalar(capture, pa.string()), len(whole)))
