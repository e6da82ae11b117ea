"""Digests of what kwire reads: tables, coverage, summaries, and what `kwire show` prints.

In: captures, by the public doors only (`kwire.analyze`, `kwire.open_dataset`, the command line): files below them
may move. Out: JSON values, digests in the place of columns and of texts. Rules: no path, no time of a file, no version.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kwire import analyzer
from tests.digest.columns import table_digest, text_digest
from tests.shared import KWIRE, ROOT, capture_files, sample_folders, shared_folders

FILTER = "api in (Produce, JoinGroup, Metadata) or latency > 20ms or error is not null or topic ~ '^t'"
"""Some of every capture's exchanges: by column, by error, and by names that another connection may say."""

SHOWN = (
    "codecs-franzgo-4.3",
    "group-kip848-librdkafka-4.3",
    "net-lossy-4.3",
    "old-java-0.8.2",
    "snaplen-96-4.3",
    "tls13-aiokafka-4.3",
    "txn-librdkafka-4.3",
)
"""Captures whose exchanges are printed: what a decoder, a loss, a cut, an old version or TLS can change in print."""

FIELDS = "connection,exchange,api,api_version,latency_us,status,reason,error,errors,topics,client_id"

FORMS: dict[str, tuple[str, ...]] = {
    "lines": (),
    "absolute": ("--time", "absolute", "--sort", "latency_us", "--limit", "50"),
    "json": ("--json",),
    "tree": ("--tree", "--hex"),
    "frames": ("--frames",),
    "fields": ("--fields", FIELDS),
    "count": ("--count-by", "api,api_version,error"),
    "filter": ("--filter", FILTER),
}
"""Ways in which `kwire show` prints."""

SPARK: dict[str, tuple[str, ...]] = {
    "by capture point": ("--records", "full"),
    "by connection": ("--records", "meta", "--split-bytes", "1"),
}
"""Ways in which Spark divides captures. Where records are read in full it never divides by connection."""


def folders(names: Sequence[str] = ()) -> dict[str, Path]:
    """`samples/NAME` and `shared/NAME` of each capture's folder, or of those with these names."""
    by_name = {f"samples/{folder.name}": folder for folder in sample_folders()}
    by_name |= {f"shared/{folder.name}": folder for folder in shared_folders()}
    return _chosen(by_name, names)


def largest_set(names: Sequence[str] = ()) -> dict[str, Path]:
    """By name: the shared captures, or the shipped samples, which are some of them, where those are absent."""
    return _chosen({folder.name: folder for folder in shared_folders() or sample_folders()}, names)


def _chosen(by_name: dict[str, Path], names: Sequence[str]) -> dict[str, Path]:
    chosen = {key: folder for key, folder in by_name.items() if not names or folder.name in names}
    if missing := set(names) - {folder.name for folder in chosen.values()}:
        raise SystemExit(f"no such capture: {', '.join(sorted(missing))}")
    return chosen


def local(folder: Path) -> Any:
    """One capture point, read three times: everything, written to a dataset; defaults, in memory; and filtered."""
    with tempfile.TemporaryDirectory(prefix="kwire-digest-") as scratch:
        full = analyzer.analyze(folder, Path(scratch, "dataset"), records="full", keep_bytes=True)
        stored = analyzer.open_dataset(Path(scratch, "dataset"))
        names = sorted({entry["table"] for entry in stored.manifest["files"]})
        everything = {
            "tables": {name: table_digest(getattr(stored, name).to_table()) for name in names},
            "manifest": _without_run(stored.manifest),
            "summary": full.summary,
        }
    read = {
        "full": everything,
        "defaults": _in_memory(analyzer.analyze(folder)),
        "filtered": _in_memory(analyzer.analyze(folder, filter=FILTER, records="meta", keep_bytes=True)),
    }
    return _portable(read, [folder])


def _in_memory(result: analyzer.Dataset) -> dict[str, Any]:
    return {
        "tables": {name: table_digest(table) for name, table in sorted(result.tables.items())},
        "captures": _without_times(result.captures),
        "coverage": result.coverage,
        "unrecognised": result.unrecognised,
        "summary": result.summary,
        "notes": result.notes,
        "hints": result.hints,
    }


def _without_run(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without its own files and the version that wrote it."""
    reduced = {key: value for key, value in manifest.items() if key not in ("files", "kwire_version")}
    return reduced | {"captures": _without_times(reduced["captures"])}


def _without_times(captures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Capture points, without when their files were copied to this machine."""
    reduced = []
    for point in captures:
        files = [{key: value for key, value in file.items() if key != "mtime"} for file in point["files"]]
        reduced.append({**point, "files": files})
    return reduced


def table_digests(folder: Path) -> Any:
    """The tables of one capture point, read with everything on, and where its bytes went."""
    read = analyzer.analyze(folder, records="full", keep_bytes=True)
    return {
        "coverage": read.coverage,
        "tables": {name: table_digest(table) for name, table in sorted(read.tables.items())},
    }


def _portable(value: Any, folders: Sequence[Path]) -> Any:
    """The value as JSON has it; folders, which notes name, by their last part."""
    text = json.dumps(value)
    for folder in folders:
        text = text.replace(json.dumps(str(folder))[1:-1], folder.name)
    return json.loads(text)


def show(folder: Path) -> dict[str, str]:
    """Return the output of `kwire show` for a capture, in each form."""
    files = [str(path) for path in capture_files(folder)]
    rotated = ("--rotated",) if len(files) > 1 else ()
    return {
        form: text_digest(printed("show", *files, *rotated, "--no-pager", *options)) for form, options in FORMS.items()
    }


def spark(chosen: dict[str, Path]) -> dict[str, Any]:
    """Each capture's tables, all of them read by one run of Spark, for each way of dividing them."""
    digests = {}
    for way, options in SPARK.items():
        with tempfile.TemporaryDirectory(prefix="kwire-digest-") as scratch:
            out = Path(scratch, "dataset")
            captures = [str(folder) for folder in chosen.values()]
            summary = printed(
                "analyze", *captures, "-o", str(out), "--engine", "spark", "--keep-bytes", "--json", *options
            )
            stored = analyzer.open_dataset(out)
            names = sorted({entry["table"] for entry in stored.manifest["files"]})
            tables = {name: getattr(stored, name).to_table() for name in names}
            digests[way] = {
                "captures": {
                    capture: {name: table_digest(_of(table, capture)) for name, table in tables.items()}
                    for capture in chosen
                },
                "manifest": _without_run(stored.manifest),
                "summary": json.loads(summary),
            }
    return dict(_portable(digests, list(chosen.values())))


def _of(table: pa.Table, capture: str) -> pa.Table:
    return table.filter(pc.equal(table["capture"], capture))


def printed(*arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Run a `kwire` command in its own process and return its output.

    Raises if it ends with another exit code."""
    command = [*KWIRE, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="surrogateescape", check=False)
    if done.returncode not in codes:
        raise RuntimeError(f"kwire {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout
