"""Whether each rule of findings takes as long as there are rows, also of many clients, groups, topics and errors.

    python -m tests.bench.crowds             # all samples, and the shared captures where they are
    python -m tests.bench.crowds errors-librdkafka-4.3 --rows 500000

A real capture's tables are put one after the other K and 4K times, each copy later and with connections (or with all:
clients, groups, members, topics, transactional ids) of its own. A rule that takes more than six times as long on the
larger looks at all rows for each of something. In this process; what takes less than half a second there is not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kwire.analyzer.cli.parser import main as kwire
from kwire.analyzer.dataset.dataset import StoredDataset, open_dataset
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.rules import RULES, limits_of
from kwire.analyzer.frame.parquet import RowGroups
from tests.bench.__main__ import say
from tests.shared import capture_files, sample_folders, shared_folders

# fmt: off
OWN: Final[Mapping[str, frozenset[str]]] = {
    "connections": frozenset({"connection"}),
    "all": frozenset({
        "connection", "client_id", "client_ip", "group_id", "member_id", "transactional_id", "topic",
    }),
}
# fmt: on
"""Columns whose values are a copy's own."""
STEEP: Final = 6
"""Times as long, for four times as many rows, that no rule may take."""
LEAST_S: Final = 0.5


def stored(dataset: StoredDataset) -> dict[str, pa.Table]:
    """Its tables, in memory."""
    parts: dict[str, list[pa.Table]] = {}
    for entry in dataset.manifest["files"]:
        parts.setdefault(entry["table"], []).append(pq.ParquetFile(dataset.path / entry["path"]).read())
    return {name: pa.concat_tables(some) for name, some in parts.items()}


def copied(table: pa.Table, copies: int, own: frozenset[str], apart_us: int) -> pa.Table:
    """A table so many times, each copy `apart_us` after the one before."""
    some = []
    for number in range(copies):
        columns = []
        for field, column in zip(table.schema, table.columns, strict=True):
            if field.name in own and pa.types.is_string(field.type):
                column = pc.binary_join_element_wise(column, f"~{number}", "")
            elif pa.types.is_timestamp(field.type):
                column = pc.add(column.cast(pa.int64()), number * apart_us).cast(field.type)
            columns.append(column)
        some.append(pa.table(columns, schema=table.schema))
    return pa.concat_tables(some).combine_chunks()


def judged(tables: Mapping[str, pa.Table], dataset: StoredDataset) -> dict[str, float]:
    """Seconds that each rule takes, the best of three."""
    took = [_judged(tables, dataset) for _ in range(3)]
    return {code: min(times[code] for times in took) for code in took[0]}


def _judged(tables: Mapping[str, pa.Table], dataset: StoredDataset) -> dict[str, float]:
    source = RowGroups(tables, dataset.captures, dataset.manifest["unrecognised"]["listed"])
    took: dict[str, float] = {}
    for entry in dataset.captures:
        seen = CaptureFrame(source, entry, evaluate.USUAL)
        seen.load()
        for code, rule in RULES.items():
            began = time.perf_counter()
            list(rule.check(seen, limits_of(rule, seen.query)))
            took[code] = took.get(code, 0.0) + time.perf_counter() - began
    return took


def steep(folder: Path, name: str, files: list[Path], rows: int) -> list[str]:
    """Rules that take too long on a capture; what is worth knowing is said."""
    path = folder / name
    with contextlib.redirect_stdout(io.StringIO()):
        if kwire(["analyze", *map(str, files), "-o", str(path)]):
            raise RuntimeError(f"{name}: kwire analyze failed")
    dataset = open_dataset(path)
    tables = stored(dataset)
    if "exchanges" not in tables:
        return []
    many = max(len(tables[table]) for table in ("exchanges", "partitions") if table in tables)
    request_times = tables["exchanges"].column("request_time").drop_null()
    if not many or not len(request_times):
        return []
    apart = (
        pc.max(request_times).cast(pa.int64()).as_py() - pc.min(request_times).cast(pa.int64()).as_py()
    ) + 1_000_000
    copies = max(rows // many // 4, 1)
    steep_rules = []
    for what, own in OWN.items():
        few, more = (
            judged({table: copied(part, times, own, apart) for table, part in tables.items()}, dataset)
            for times in (copies, 4 * copies)
        )
        say(f"   {name}, {4 * copies} times, own {what}: {sum(few.values()):.2f} s, then {sum(more.values()):.2f} s")
        for code in sorted(more, key=more.__getitem__, reverse=True)[:5]:
            bad = more[code] > max(STEEP * few[code], LEAST_S)
            if more[code] >= LEAST_S:
                say(f"      {code}: {few[code]:.2f} s, then {more[code]:.2f} s{' - STEEP' if bad else ''}")
            steep_rules += [f"{name}: {code}"] if bad else []
    return steep_rules


def main() -> int:
    """Run it; 1 where a rule is steep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("captures", nargs="*", metavar="NAME")
    parser.add_argument("--rows", type=int, default=500_000)
    options: Any = parser.parse_args()
    folders = {folder.name: folder for folder in (*sample_folders(), *shared_folders())}
    steep_rules: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kwire-crowds-") as folder:
        for name in options.captures or folders:
            steep_rules += steep(Path(folder), name, capture_files(folders[name]), options.rows)
    say(f"steep: {', '.join(steep_rules) or 'none'}")
    return 1 if steep_rules else 0


if __name__ == "__main__":
    raise SystemExit(main())
