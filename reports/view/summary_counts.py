"""Summary of the chosen exchanges: counts of values, and quantiles of latencies.

In: a view's tables and a selection. Out: plain values for JSON. Rule: results are exact, over all chosen rows;
quantiles are interpolated between neighbours like Spark's `percentile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from kwire.analyzer.frame.counting import blocks, count_codes, quantiles
from kwire.reports.view.filter_completion import count_values, value_word
from kwire.reports.view.tables import Selection, Tables

FACETS: Final = ("api", "error", "cause", "client_id", "topic", "group", "broker", "status")
"""Columns whose values are counted by default."""

SHOWN: Final = 12
"""Values of a column that are listed; others are counted."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def fields(tables: Tables) -> tuple[str, ...]:
    """List the columns whose values are counted by default: of clients also their names, where they have some."""
    return (*FACETS, *(name for name in ("client_name",) if name in tables.columns.codes))


def facets(tables: Tables, chosen: Selection, names: Iterable[str]) -> list[dict[str, Any]]:
    """List each column's most frequent values, as text and in a filter's syntax, and count the others."""
    summaries = []
    for name in names:
        counted = list(count_values(tables, tables.about(name), None if chosen.every else chosen.rows))
        values = [{"text": text, "word": value_word(text), "count": count} for text, count in counted[:SHOWN]]
        summaries.append({"name": name, "values": values, "others": max(0, len(counted) - SHOWN)})
    return summaries


def stats(tables: Tables, chosen: Selection) -> dict[str, Any]:
    """Count exchanges, errors and bytes; get quantiles of latencies, and of latencies without the time that the broker
    held the request on purpose."""
    columns, errors = tables.columns, tables.columns.errors
    rows = None if chosen.every else chosen.rows
    lists = count_codes(errors.of, rows, errors.lists)
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

    def latency_quantiles(worked: bool) -> dict[str, float] | None:
        values = quantiles(lambda: latencies(worked), high, tuple(QUANTILES.values()))
        return None if values is None else dict(zip(QUANTILES, values, strict=True))

    return {
        "exchanges": len(chosen.rows),
        "errors": int(lists[errors.filled()].sum()),
        **{name: _sum(columns.integers[name], rows) for name in ("request_bytes", "response_bytes")},
        "latency_us": latency_quantiles(False),
        "not_held_us": latency_quantiles(True),
    }


def _sum(numbers: np.ndarray, rows: np.ndarray | None) -> int:
    total = 0
    for part in blocks(len(numbers) if rows is None else len(rows)):
        here = numbers[part if rows is None else rows[part]]
        total += int(here.sum(where=here != np.iinfo(here.dtype).min, dtype=np.int64))
    return total
