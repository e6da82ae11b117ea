"""What the chosen exchanges have in common: values with how often, and quantiles of their times.

In: a view's tables and chosen rows. Out: plain values for JSON. Rule: all of it is exact, over every row that is
chosen; a quantile lies between its two neighbours as Spark's `percentile` has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from reports.view.filter_completion import seen, value_word
from reports.view.tables import Selection, Tables
from reports.view.value_counts import blocks, quantiles, tally

FACETS: Final = ("api", "error", "cause", "client_id", "topic", "group", "broker", "status")
"""Names whose values are counted where nobody says which."""

SHOWN: Final = 12
"""Values of one name; the rest is counted."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def facets(tables: Tables, chosen: Selection, names: list[str]) -> list[dict[str, Any]]:
    """Of each name its most frequent values among the rows, as text and as a filter has them, and how many others
    there are."""
    told = []
    for name in names:
        found = list(seen(tables, tables.about(name), None if chosen.every else chosen.rows))
        values = [{"text": text, "word": value_word(text), "count": count} for text, count in found[:SHOWN]]
        told.append({"name": name, "values": values, "others": max(0, len(found) - SHOWN)})
    return told


def stats(tables: Tables, chosen: Selection) -> dict[str, Any]:
    """How many, with how many errors and bytes; quantiles of latencies, and of what is left of them without the time
    that the broker waited on purpose."""
    columns, errors = tables.columns, tables.columns.errors
    rows = None if chosen.every else chosen.rows
    lists = tally(errors.of, rows, errors.lists)
    high = (columns.range("latency_us") or (0, 0))[1]

    def latencies(worked: bool) -> Iterator[np.ndarray]:
        for part in blocks(len(chosen.rows)):
            here = part if rows is None else rows[part]
            latency = columns.integers["latency_us"][here]
            answered = latency != np.iinfo(latency.dtype).min
            if worked:
                held = columns.integers["hold_us"][here]
                latency = np.maximum(latency - np.maximum(held, 0).astype(latency.dtype, copy=False), 0)
            yield latency[answered]

    def told(worked: bool) -> dict[str, float] | None:
        found = quantiles(lambda: latencies(worked), high, tuple(QUANTILES.values()))
        return None if found is None else dict(zip(QUANTILES, found, strict=True))

    return {
        "exchanges": len(chosen.rows),
        "errors": int(lists[errors.filled()].sum()),
        **{name: _sum(columns.integers[name], rows) for name in ("request_bytes", "response_bytes")},
        "latency_us": told(False),
        "not_held_us": told(True),
    }


def _sum(numbers: np.ndarray, rows: np.ndarray | None) -> int:
    total = 0
    for part in blocks(len(numbers) if rows is None else len(rows)):
        here = numbers[part if rows is None else rows[part]]
        total += int(here.sum(where=here != np.iinfo(here.dtype).min, dtype=np.int64))
    return total
