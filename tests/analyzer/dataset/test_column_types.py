"""Refuse datasets whose columns have other types than the contract's, and manifests whose times are no times.

Proves: kwire.analyzer.dataset.dataset, kwire.analyzer.dataset.manifest, kwire.analyzer.dataset.tables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import MANIFEST, DatasetError, open_dataset
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "admin-kafkapython-3.9" / "capture.pcap"
ESCAPE = "x\x1b[31m"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    analyzer.analyze(CAPTURE, tmp_path / "dataset")
    return tmp_path / "dataset"


def rewritten(dataset: Path, table: str, rows: pa.Table) -> None:
    """Replace the file of a table, so that its size and rows are what the manifest says."""
    manifest = json.loads((dataset / MANIFEST).read_bytes())
    for entry in manifest["files"]:
        if entry["table"] == table:
            pyarrow.parquet.write_table(rows, dataset / entry["path"])
            entry |= {"size": os.path.getsize(dataset / entry["path"]), "rows": len(rows)}
    (dataset / MANIFEST).write_text(json.dumps(manifest))


def rows_of(dataset: Path, table: str) -> pa.Table:
    return getattr(open_dataset(dataset), table).to_table()


# fmt: off
COMMANDS = (
    ("findings", "DATASET"), ("story", "DATASET"), ("view", "DATASET", "--no-open"),
    ("sql", "DATASET", "SELECT count(*) FROM exchanges"), ("report", "DATASET"),
    ("replay", "DATASET", "--to", "127.0.0.1:9", "--dry-run"), ("diff", "DATASET"), ("diff", "DATASET", "DATASET"),
)
# fmt: on


def test_columns_of_text_are_one_line_for_every_command(
    dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = open_dataset(dataset)
    for table in {entry["table"] for entry in stored.manifest["files"]}:
        rows = getattr(stored, table).to_table()
        texts = {name: pa.array([ESCAPE] * len(rows), pa.string()) for name in rows.column_names}
        rewritten(dataset, table, pa.table(texts))
    for command in COMMANDS:
        with pytest.raises(SystemExit) as end:
            parser.main([str(dataset) if word == "DATASET" else word for word in command])
        assert end.value.code == 2, command
        printed = capfd.readouterr()
        assert not printed.out or command[0] == "view"  # whose address is told while the dataset is opened
        error, hint = printed.err.splitlines()
        assert error.startswith(f"kwire: {dataset}: "), command
        assert error.partition(": column ")[2].split(" is ")[1].startswith("string, not "), command
        assert hint.startswith("hint: ")
        assert "\x1b" not in printed.err


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("latency_us", pa.int32()),
        ("latency_us", pa.float64()),
        ("request_time", pa.int64()),
        ("request_time", pa.timestamp("us")),
        ("request_time", pa.timestamp("ms", tz="UTC")),
        ("api", pa.binary()),
        ("topics", pa.string()),
        ("topics", pa.list_(pa.int64())),
        ("errors", pa.list_(pa.struct([("code", pa.int16()), ("error", pa.string())]))),
        ("errors", pa.list_(pa.struct([("code", pa.int64()), ("error", pa.string()), ("count", pa.int32())]))),
        ("errors", pa.list_(pa.struct([("\x1b[31m", pa.string())]))),
    ],
    ids=str,
)
def test_another_type_is_refused_with_file_and_column(dataset: Path, column: str, kind: pa.DataType) -> None:
    rows = rows_of(dataset, "exchanges")
    position = rows.schema.get_field_index(column)
    rewritten(dataset, "exchanges", rows.set_column(position, column, pa.nulls(len(rows), kind)))
    with pytest.raises(DatasetError, match=rf"exchanges/part-.*\.parquet: column {column} is .*, not ") as refused:
        open_dataset(dataset)
    assert refused.value.message.isprintable()


def test_the_same_type_in_another_encoding_is_read(dataset: Path) -> None:
    """Columns that are missing too: an older dataset lacks some. Those that are not of the contract are not read."""
    rows = rows_of(dataset, "exchanges")
    expected = rows.drop_columns(["cause"]).to_pylist()
    for column, kind in (
        ("api", pa.dictionary(pa.int32(), pa.string())),
        ("client_id", pa.large_string()),
        ("topics", pa.large_list(pa.field("element", pa.large_string(), nullable=False))),
    ):
        rows = rows.set_column(rows.schema.get_field_index(column), column, rows[column].cast(kind))
    rows = rows.drop_columns(["cause"]).append_column("own", pa.array([ESCAPE] * len(rows)))
    rewritten(dataset, "exchanges", rows)
    assert rows_of(dataset, "exchanges").drop_columns(["cause"]).to_pylist() == expected


def test_every_type_of_the_contract_is_the_same_as_itself_stored(tmp_path: Path) -> None:
    for table, columns in tables.TABLES.items():
        pyarrow.parquet.write_table(tables.empty(table), tmp_path / "file.parquet", store_schema=False)
        stored = pyarrow.parquet.read_metadata(tmp_path / "file.parquet").schema.to_arrow_schema()
        for column in columns:
            assert tables.is_same_type(stored.field(column.name).type, column.type), (table, column.name)


@pytest.mark.parametrize("value", ["soon", "2026", "2026-01-02", "2026-01-02T03:04:05", "0001-01-01T00:00:00+23:59", 5])
@pytest.mark.parametrize("of_file", [False, True], ids=["point", "file"])
def test_times_of_a_manifest_are_times(dataset: Path, value: Any, of_file: bool) -> None:
    manifest = json.loads((dataset / MANIFEST).read_bytes())
    point = manifest["captures"][0]
    (point["files"][0] if of_file else point)["last_time"] = value
    (dataset / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="not a manifest of kwire"):
        open_dataset(dataset)
