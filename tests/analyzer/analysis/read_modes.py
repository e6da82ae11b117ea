"""One capture read in every way that must give the same rows: small windows, threads, files, shares.

In: a capture file. Out: (how it was read, rows of one table), the name of the capture point left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kwire import analyzer
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.captures import forge

FILES = 7
SHARES = 3
WINDOW_BYTES = 20_000


def every_way(
    path: Path, names: tuple[str, ...], folder: Path
) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """How `path` was read, and the rows of some tables by name."""
    yield "small windows, two threads", rows(analyzer.analyze(path, window_bytes=WINDOW_BYTES, threads=2).tables, names)
    yield f"{FILES} files", rows(analyzer.analyze(cut(path, folder), rotated=True).tables, names)
    yield f"{SHARES} shares", rows(shared_out(path, folder / "shares"), names)


def rows(all_tables: dict[str, pa.Table], names: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Rows without the capture point's name."""
    empty = {name: tables.schema(name).empty_table() for name in names}
    return {name: (empty | all_tables)[name].drop_columns(["capture"]).to_pylist() for name in names}


def cut(path: Path, folder: Path) -> list[str]:
    """The capture in several files."""
    link, records = forge.loaded(path)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"cut-{number}.pcap" for number in range(FILES)]
    size = len(records) // FILES + 1
    for number, part in enumerate(paths):
        part.write_bytes(forge.pcap(records[number * size : (number + 1) * size], link))
    return [str(part) for part in paths]


def shared_out(path: Path, folder: Path) -> dict[str, pa.Table]:
    """Return the joined state of shares of its connections: as Spark's tasks do it, without Spark."""
    [point] = capture_points([str(path)], False)
    choice = AnalysisOptions.of()
    settings = ReadOptions(window_bytes=WINDOW_BYTES).settings(choice.keep)
    (folder / "pieces").mkdir(parents=True)
    written = [
        shares.share(point, settings, choice, shares.Share(number, SHARES), 100, folder / "pieces" / str(number))
        for number in range(SHARES)
    ]
    _, facts = shares.by_range(written)
    _, _, files = shares.take_facts(facts, written, point, choice, TableFiles(folder, "facts"), folder / "decided")
    return {entry["table"]: pq.read_table(folder / entry["path"], partitioning=None) for entry in files}
