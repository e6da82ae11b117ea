"""What the chosen exchanges have in common: values with how often, and quantiles of their times.

In: a view's tables and chosen rows. Out: plain values for JSON. Rule: all of it is exact, over every row that is
chosen; a quantile lies between its two neighbours as Spark's `percentile` has it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from reports.view.completing import seen, value_word
from reports.view.tables import Tables

FACETS: Final = ("api", "error", "cause", "client_id", "topic", "group", "broker", "status")
"""Names whose values are counted where nobody says which."""

SHOWN: Final = 12
"""Values of one name; the rest is counted."""

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def facets(tables: Tables, rows: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """Of each name its most frequent values among the rows, as text and as a filter has them, and how many others
    there are."""
    told = []
    for name in names:
        found = list(seen(tables, tables.about(name), rows))
        values = [{"text": text, "word": value_word(text), "count": count} for text, count in found[:SHOWN]]
        told.append({"name": name, "values": values, "others": max(0, len(found) - SHOWN)})
    return told


def stats(tables: Tables, rows: np.ndarray) -> dict[str, Any]:
    """How many, with how many errors and bytes; quantiles of latencies, and of what is left of them without the time
    that the broker waited on purpose."""
    columns = tables.columns
    latency, answered = (part[rows] for part in columns.integer("latency_us"))
    held, known = (part[rows] for part in columns.integer("hold_us"))
    latency = latency.astype(np.int64)
    worked = np.maximum(latency - np.where(known, held, 0), 0)
    with_error = np.diff(columns.errors.ends) > 0
    return {
        "exchanges": len(rows), "errors": int(with_error[rows].sum()),
        **{name: _sum(*(part[rows] for part in columns.integer(name))) for name in ("request_bytes", "response_bytes")},
        "latency_us": _quantiles(latency[answered]), "not_held_us": _quantiles(worked[answered]),
    }  # fmt: skip


def _sum(numbers: np.ndarray, present: np.ndarray) -> int:
    return int(numbers[present].sum(dtype=np.int64))


def _quantiles(numbers: np.ndarray) -> dict[str, float] | None:
    if not len(numbers):
        return None
    found = np.quantile(numbers, list(QUANTILES.values()))
    return dict(zip(QUANTILES, found.tolist(), strict=True))
