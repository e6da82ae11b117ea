"""Two engines' answers to the same question: equal in names, types, rows and their order.

python -m tests.reports.agreement            # every view over every capture, one by one (an hour: Spark plans each)
python -m tests.reports.agreement txn-librdkafka-4.3 codecs-franzgo-4.3
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kwire.reports import relations


def kind(of: pa.DataType) -> str:
    """A type as Spark SQL writes it: how engines call the items of a list does not matter."""
    return relations.spark_type(of)


def equal(left: Any, other: Any) -> bool:
    """Floats to 1e-9, all else exactly."""
    if isinstance(left, float) and isinstance(other, float):
        return left == other or math.isclose(left, other, rel_tol=1e-9) or (math.isnan(left) and math.isnan(other))
    if isinstance(left, list) and isinstance(other, list):
        return len(left) == len(other) and all(map(equal, left, other))
    if isinstance(left, dict) and isinstance(other, dict):
        return left.keys() == other.keys() and all(equal(value, other[key]) for key, value in left.items())
    return bool(left == other)


def _order(row: Sequence[Any]) -> list[str]:
    return [f"{value:.6e}" if isinstance(value, float) else repr(value) for value in row]


def difference(spark: pa.Table, embedded: pa.Table, ordered: bool = True) -> str | None:
    """The first difference; None: there is none. `ordered`: the question asks for an order."""
    if spark.column_names != embedded.column_names:
        return f"names: {spark.column_names} and {embedded.column_names}"
    types = [(kind(left), kind(other)) for left, other in zip(spark.schema.types, embedded.schema.types)]
    if different := [(name, pair) for name, pair in zip(spark.column_names, types) if pair[0] != pair[1]]:
        return f"types: {different}"
    if len(spark) != len(embedded):
        return f"rows: {len(spark)} and {len(embedded)}"
    left_rows, right_rows = ([list(row) for row in zip(*(c.to_pylist() for c in t.columns))] for t in (spark, embedded))
    if not ordered:
        left_rows.sort(key=_order)
        right_rows.sort(key=_order)
    for number, (first, other) in enumerate(zip(left_rows, right_rows)):
        for name, left, right in zip(spark.column_names, first, other):
            if not equal(left, right):
                return f"row {number}, {name}: {left!r} and {right!r}"
    return None


def main(names: Sequence[str]) -> int:
    """Every view over each of these captures, or all."""
    from kwire import analyzer
    from kwire.reports import catalog
    from kwire.reports.embedded import engine
    from kwire.reports.spark import session
    from kwire.reports.spark.engine import Spark
    from tests.shared import sample_folders, shared_folders

    folders = {folder.name: folder for folder in [*sample_folders(), *shared_folders()]}
    wrong = 0
    with session.opened() as spark, tempfile.TemporaryDirectory() as temporary:
        for name in names or folders:
            path = str(Path(temporary) / name)
            analyzer.analyze(folders[name], path, records="meta")
            with engine.opened([path]) as embedded:
                reference = Spark(spark, [path])
                for view in catalog.views():
                    query = f"SELECT * FROM {view.name}"
                    text = difference(reference.ask(query)[0], embedded.ask(query)[0], "ORDER BY" in view.sql)
                    wrong += text is not None
                    if text is not None:
                        print(f"{name}: {view.name}: {text}", flush=True)
            print(f"{name}: {len(catalog.views())} views", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
