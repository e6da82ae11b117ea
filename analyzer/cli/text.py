"""Values as text for people.

In: values of the tables' columns. Out: text. Exchanges one a line are in `lines`, summaries in `summary_text`; whoever
prints a size does not load what these need.
"""

from __future__ import annotations

import datetime
from typing import Any

from kwire.analyzer.common.escapes import json_text as json_text
from kwire.analyzer.common.escapes import printable as printable
from kwire.analyzer.common.times import rfc3339


def duration(micros: int | None) -> str:
    """A duration with its unit: `831 us`, `3.1 ms`, `2.05 s`."""
    if micros is None:
        return ""
    if abs(micros) < 1000:
        return f"{micros} us"
    if abs(micros) < 1_000_000:
        return f"{micros / 1000:.1f} ms"
    return f"{micros / 1_000_000:.2f} s"


def size(count: int | None) -> str:
    """A size with its unit: `866 B`, `12.3 kB`, `1.05 MB`."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < scale * 1000:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e12:.1f} TB"


def cell(value: Any) -> str:
    """A value in a tab-separated line: null is empty, lists are JSON, text never breaks the line."""
    if value is None:
        return ""
    if isinstance(value, datetime.datetime):
        return rfc3339(value)
    if isinstance(value, list | dict):
        return json_text(value)
    return printable(str(value))


def aligned(rows: list[list[str]], right: set[int]) -> str:
    """Aligned columns; `right`: those that hold numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            value.rjust(width) if i in right else value.ljust(width)
            for i, (value, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
