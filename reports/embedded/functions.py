"""Functions that the embedded engine lacks, or has with another meaning than Spark: DuckDB's macros.

In: a connection. Out: macros `kwire_*` in it. Where the meaning depends on a type, the macro asks for it, and fails for
one whose meaning was not compared: an answer of Spark's, or none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_INTEGERS = {"tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT"}

_WHOLE = "typeof(x) IN ('TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT', 'HUGEINT')"

_WRITTEN = ("VARCHAR", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BOOLEAN", '"NULL"')
"""Types whose values both engines write alike: not doubles, nor times."""


def _macro(name: str, body: str) -> str:
    return f"CREATE OR REPLACE MACRO {name}{body}"


def _typed(name: str, kind: str, **bodies: str) -> str:
    """A macro of x with a body for whole numbers, doubles and others; it fails for all that have none."""
    tests = {
        "whole": _WHOLE,
        "double": "typeof(x) = 'DOUBLE'",
        "boolean": "typeof(x) = 'BOOLEAN'",
        "text": "typeof(x) = 'VARCHAR'",
    }
    cases = " ".join(f"WHEN {tests[name]} THEN {body}" for name, body in bodies.items())
    return _macro(name, f"(x) AS CASE {cases} ELSE CAST(error('not of {kind}') AS {kind}) END")


def _to_integer(name: str, kind: str) -> str:
    """A cast that cuts off a fraction, and fails where the number does not fit."""
    same = f"CAST(x AS {kind})"
    return _typed(
        f"kwire_to_{name}", kind, whole=same, double=f"CAST(trunc(CAST(x AS DOUBLE)) AS {kind})", boolean=same
    )


def _rounded(digits: int) -> str:
    """Half away from zero, of the number as it is written: in decimals, as Spark does it."""
    decimal = f"CAST(CAST(x AS VARCHAR) AS DECIMAL(38, {digits}))"
    return _typed(f"kwire_round_{digits}", "DOUBLE", double=f"CAST({decimal} AS DOUBLE)")


def _to_whole(function: str) -> str:
    double = f"CAST({function}(CAST(x AS DOUBLE)) AS BIGINT)"
    return _typed(f"kwire_{function}", "BIGINT", whole="CAST(x AS BIGINT)", double=double)


def _passed(name: str, test: str) -> str:
    """A macro that gives x itself, and fails for types that do not pass."""
    return _macro(name, f"(x) AS CASE WHEN {test} THEN x ELSE error('of a type that each engine writes otherwise') END")


_TEXTS = (
    _passed("kwire_part", f"typeof(x) IN {_WRITTEN} OR typeof(x) LIKE '%[]'"),  # lists are put together as they are
    _passed("kwire_texts", f"typeof(x) IN {tuple(f'{kind}[]' for kind in _WRITTEN)}"),
)

# fmt: off
_ARRAYS = (
    _macro("kwire_list", "(x) AS coalesce(list(x) FILTER (x IS NOT NULL), [])"),
    _macro("kwire_set", "(x) AS coalesce(list(DISTINCT x) FILTER (x IS NOT NULL), [])"),
    _macro("kwire_sorted", "(l, o, n) AS list_transform(list_sort(l, o, n), lambda x: x.value)"),
    # Beyond an array's end is an error.
    _macro("kwire_element", "(l, i) AS CASE WHEN i < len(l) THEN l[i + 1] WHEN l IS NULL THEN NULL "
           "ELSE error('index out of bounds') END"),
    _macro("kwire_value", "(m, k) AS map_extract_value(m, k)"),
    # Null where the value is not there but something is that is not known.
    _macro("kwire_contains", "(l, v) AS CASE WHEN l IS NULL OR v IS NULL THEN NULL WHEN list_contains(l, v) THEN true "
           "WHEN list_count(l) < len(l) THEN NULL ELSE false END"),
    # In the order of what came first.
    _macro("kwire_distinct", "(l) AS list_filter(l, lambda x, i: list_position(l, x) = i)"),
)
# fmt: on

# fmt: off
_CASTS = (
    *(_to_integer(name, kind) for name, kind in _INTEGERS.items()),
    _typed("kwire_to_double", "DOUBLE", whole="CAST(x AS DOUBLE)", double="CAST(x AS DOUBLE)"),
    _typed("kwire_to_string", "VARCHAR", whole="CAST(x AS VARCHAR)", text="CAST(x AS VARCHAR)",
           boolean="CAST(x AS VARCHAR)"),
    _typed("kwire_to_boolean", "BOOLEAN", whole="CAST(x AS BOOLEAN)", boolean="CAST(x AS BOOLEAN)"),
)
# fmt: on

_NUMBERS = (*(_rounded(digits) for digits in range(10)), _to_whole("floor"), _to_whole("ceil"))

_DIVIDED = _macro(
    "kwire_div",
    f"(x, y) AS CASE WHEN {_WHOLE} AND {_WHOLE.replace('(x)', '(y)')} THEN CAST(x // y AS BIGINT) "
    "ELSE CAST(error('not of whole numbers') AS BIGINT) END",
)

# fmt: off
_QUANTILES = (
    _macro("kwire_percentiles",
           "(x, q) AS kwire_quantiles(list(CAST(x AS DOUBLE)) FILTER (x IS NOT NULL), NULL, CAST(q AS DOUBLE[]))"),
    _macro("kwire_weighted_percentiles",
           "(x, w, q) AS kwire_quantiles(list(CAST(x AS DOUBLE)) FILTER (x IS NOT NULL AND w > 0), "
           "list(CAST(w AS BIGINT)) FILTER (x IS NOT NULL AND w > 0), CAST(q AS DOUBLE[]))"),
)
# fmt: on


def install(connection: Any, bucketed: str) -> None:
    """Make them all. `bucketed`: what `value` counts as in quantiles (see `relations`)."""
    import duckdb

    doubles, counts = duckdb.list_type("DOUBLE"), duckdb.list_type("BIGINT")
    connection.create_function(
        "kwire_quantiles", _quantiles, [doubles, counts, doubles], doubles, type="arrow", null_handling="special"
    )
    bucket = _macro("kwire_bucketed", f"(value) AS {bucketed.replace('value', 'CAST(value AS BIGINT)')}")
    for statement in (*_TEXTS, *_ARRAYS, *_CASTS, *_NUMBERS, _DIVIDED, *_QUANTILES, bucket):
        connection.execute(statement)


def _quantiles(values: Any, weights: Any, wanted: Any) -> Any:
    """For each group the quantiles of its values, each so many times (null: once), as Spark's `percentile` interpolates
    them."""
    values, weights, wanted = (_whole(column) for column in (values, weights, wanted))
    quantiles: list[list[float] | None] = []
    for at in range(len(values)):
        held = values[at].values
        if held is None or not len(held):
            quantiles.append(None)
            continue
        counts = weights[at].values
        quantiles.append(
            percentiles(held.to_numpy(), None if counts is None else counts.to_numpy(), wanted[at].values.to_numpy())
        )
    return pa.array(quantiles, pa.list_(pa.float64()))


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def percentiles(values: np.ndarray, counts: np.ndarray | None, wanted: np.ndarray) -> list[float]:
    """The rule, and the arithmetic, of Spark's `percentile`: between the two values next to the place. `counts`: how
    often there is each; None: once."""
    if counts is None:
        held = np.sort(values)
        whole = len(held)
    else:
        order = np.argsort(values, kind="stable")
        held, until = values[order], np.cumsum(counts[order])
        whole = int(until[-1])
    quantiles = []
    for quantile in wanted:
        place = (whole - 1) * float(quantile)
        lower, higher = int(np.floor(place)), int(np.ceil(place))
        ends = (lower, higher) if counts is None else np.searchsorted(until, (lower + 1, higher + 1))
        low, high = (float(held[at]) for at in ends)
        quantiles.append(low + (high - low) * (place - lower))
    return quantiles
