"""`--fields` of `kwire show --records`: columns of records, and fields of decoded keys and values.

In: `topic,offset,value.order.id` and rows of `records`. Out: a tab-separated line of each row. A path goes into
objects by the names of their fields, and into all elements of lists; several values are a list of JSON, none is empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from kwire.analyzer.cli import text
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset import tables
from kwire.analyzer.payloads.field_paths import values_at

Row = dict[str, Any]
_SIDES = ("key", "value")


class RecordFields:
    """The fields of `--fields`. Raises UsageError for names that records have not."""

    def __init__(self, names: str) -> None:
        self.names = [name.strip() for name in names.split(",")]
        columns = tables.schema("records").names
        self._cells: list[Callable[[Row], Any]] = []
        for name in self.names:
            side, *path = name.split(".")
            if side in _SIDES and path and all(path):
                self._cells.append(_Path(side, path))
            elif name in columns:
                self._cells.append(_Column(name))
            else:
                raise UsageError(
                    f"--fields: records have no {name!r}",
                    f"there are {', '.join(columns)}, and fields of keys and values: value.order.id",
                )

    @property
    def are_decoded(self) -> bool:
        """Whether any is a field of a decoded key or value."""
        return any(isinstance(cell, _Path) for cell in self._cells)

    @property
    def heading(self) -> str:
        """The line above the first row."""
        return "\t".join(self.names) + "\n"

    def line(self, row: Row) -> str:
        """Return the line of a row."""
        return "\t".join(text.cell(cell(row)) for cell in self._cells) + "\n"


class _Column:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, row: Row) -> Any:
        value = row.get(self._name)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return f"0x{value.hex()}"
        if self._name == "headers" and value is not None:
            return {str(header["key"]): repr(header["value"])[2:-1] for header in value}
        return value


class _Path:
    def __init__(self, side: str, path: Sequence[str]) -> None:
        self._column = f"{side}_json"
        self._path = path

    def __call__(self, row: Row) -> Any:
        decoded = row.get(self._column)
        if decoded is None:
            return None
        try:
            values = values_at(json.loads(decoded), self._path)
        except (ValueError, RecursionError):
            return None
        if len(values) > 1:
            return values
        value = values[0] if values else None
        return json.dumps(value) if isinstance(value, bool) else value
