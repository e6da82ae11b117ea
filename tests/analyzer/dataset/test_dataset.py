"""Test datasets: contents, replacing and appending; failures leave the old or the new one; no secret is stored."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import MANIFEST, DatasetError, is_dataset, read_manifest
from tests import forked
from tests.captures import forge
from tests.shared import KWIRE, ROOT, SAMPLES

SMALL = SAMPLES / "admin-kafkapython-3.9" / "capture.pcap"
OTHER = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"
SASL = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"


def kwire(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    if options:
        return subprocess.run([*KWIRE, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, **options)
    return forked.run(*arguments)


def contents(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table of a dataset as rows."""
    return {name: rows.to_pylist() for name, rows in stored(path).items()}


def files_of(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Rows of each table, by the name of the sample."""
    folder = tmp_path_factory.mktemp("expected")
    datasets = {}
    for capture in (SMALL, OTHER):
        analyzer.analyze(capture, folder / capture.parent.name)
        datasets[capture.parent.name] = contents(folder / capture.parent.name)
    assert datasets[SMALL.parent.name] != datasets[OTHER.parent.name]
    return datasets


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A dataset that is there already."""
    analyzer.analyze(SMALL, tmp_path / "data")
    return tmp_path / "data"


# ----------------------------------------------------------------------------------------------------- what it holds


def test_the_dataset_in_memory_is_the_one_on_disk(tmp_path: Path) -> None:
    memory = analyzer.analyze(SMALL, keep_bytes=True, records="full")
    analyzer.analyze(SMALL, tmp_path / "data", keep_bytes=True, records="full")
    stored = analyzer.open_dataset(tmp_path / "data")
    for name in memory.tables:
        table = getattr(stored, name).to_table()
        assert (
            table.equals(getattr(memory, name).combine_chunks())
            or table.to_pylist() == getattr(memory, name).to_pylist()
        )
    assert len(memory.exchanges) == 25
    assert len(memory.messages) == 50
    assert stored.coverage == memory.coverage


def test_the_manifest_says_what_was_read(old: Path) -> None:
    manifest = json.loads((old / MANIFEST).read_bytes())
    assert manifest["format_version"] == tables.FORMAT_VERSION
    assert manifest["kwire_version"] == analyzer.__version__
    (capture,) = manifest["captures"]
    link, records = forge.loaded(SMALL)
    assert link == forge.ETHERNET
    assert capture["name"] == "capture.pcap"
    assert capture["link_types"] == ["Ethernet"] or [link_type.lower() for link_type in capture["link_types"]] == [
        "ethernet"
    ]
    (file,) = capture["files"]
    data = SMALL.read_bytes()
    assert (file["name"], file["size"], file["packets"]) == ("capture.pcap", len(data), len(records))
    assert file["crc32c"] == f"{crc32c.crc32c(data):08x}"
    seconds = SMALL.stat().st_mtime_ns // 1000
    assert file["mtime"] == _rfc3339(seconds)
    times = [record.time_ns // 1000 for record in records]
    for where in (capture, file):
        assert (where["first_time"], where["last_time"]) == (_rfc3339(min(times)), _rfc3339(max(times)))
    coverage = manifest["coverage"]
    payload = sum(len(segment.payload) for segment in forge.segments_of(records))
    assert coverage["payload_bytes"] + manifest["unrecognised"]["payload_bytes"] == payload
    parts = ("duplicate", "decoded", "opaque", "skipped", "incomplete")
    assert coverage["payload_bytes"] == sum(coverage[f"{part}_bytes"] for part in parts)
    assert coverage["opaque_bytes"] == sum(coverage["opaque"].values())
    assert set(coverage["opaque"]) == set(tables.OPAQUE_REASONS)
    listed = {entry["path"] for entry in manifest["files"]}
    assert files_of(old) == {MANIFEST} | listed


def _rfc3339(micros: int) -> str:
    whole, rest = divmod(micros, 10**6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest:06d}Z"


def test_files_and_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        analyzer.analyze(SMALL, tmp_path / "data", keep_bytes=True)
    finally:
        os.umask(before)
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", [name for name in tables.TABLES if name not in tables.RUN_TABLES])
def test_parquet_has_the_contracts_plain_types(name: str, tmp_path: Path) -> None:
    """As any reader sees them, Spark among them: nothing of Arrow's is stored."""
    analyzer.analyze(SASL, tmp_path / "data", keep_bytes=True, records="full", payloads=True)
    files = [entry for entry in read_manifest(tmp_path / "data")["files"] if entry["table"] == name]
    assert files
    for entry in files:
        file = pyarrow.parquet.ParquetFile(tmp_path / "data" / entry["path"])
        metadata = file.schema_arrow.metadata or {}
        assert b"ARROW:schema" not in metadata
        wanted = tables.schema(name)
        assert file.schema_arrow.names == wanted.names
        for column in wanted:
            stored_type = file.schema_arrow.field(column.name).type
            if pa.types.is_list(column.type):  # Parquet names the element itself
                assert pa.types.is_list(stored_type)
                assert stored_type.value_type == column.type.value_type
            else:
                assert stored_type == column.type, column.name
        for group in range(file.metadata.num_row_groups):
            assert file.metadata.row_group(group).num_rows <= 1_000_000
            assert file.metadata.row_group(group).total_byte_size <= 128 << 20


def test_row_groups_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.analyzer.dataset.parquet_files.ROW_GROUP_ROWS", 10)
    monkeypatch.setattr("kwire.analyzer.pipeline.point_tables.ENOUGH_ROWS", 20)
    analyzer.analyze(OTHER, tmp_path / "data", window_bytes=4096)
    (entry,) = [file for file in read_manifest(tmp_path / "data")["files"] if file["table"] == "exchanges"]
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "data" / entry["path"]).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert max(sizes) == 2 * 10  # a table goes whole, up to twice the size
    assert sum(sizes) == entry["rows"] == 86
    plain = analyzer.analyze(OTHER)
    assert analyzer.open_dataset(tmp_path / "data").exchanges.to_table().to_pylist() == plain.exchanges.to_pylist()


@pytest.mark.parametrize("capture", [OTHER, SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"])
def test_a_dataset_is_the_same_whatever_the_threads(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and their order, coverage and notes; many row groups, which threads make and store side by side."""
    monkeypatch.setattr("kwire.analyzer.pipeline.point_tables.ENOUGH_ROWS", 20)
    results = []
    for threads in (1, 2, 4, 6):
        path = tmp_path / str(threads)
        analyzer.analyze(capture, path, window_bytes=4096, threads=threads)
        manifest = read_manifest(path)
        files = [(entry["table"], entry["rows"]) for entry in manifest.pop("files")]
        results.append((contents(path), manifest, files))
    assert results[0] == results[1] == results[2]
    assert results[0][0]["exchanges"]


def test_an_empty_capture_is_a_dataset_with_empty_tables(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(forge.pcap([]))
    analyzer.analyze(empty, tmp_path / "data")
    assert not any(contents(tmp_path / "data").values())
    (capture,) = analyzer.open_dataset(tmp_path / "data").captures
    assert (capture["first_time"], capture["last_time"]) == (None, None)


# ------------------------------------------------------------------------------------------------- replacing, adding


def test_a_replaced_dataset_leaves_nothing(old: Path, expected: Any) -> None:
    before = files_of(old)
    analyzer.analyze(OTHER, old)
    assert contents(old) == expected[OTHER.parent.name]
    assert files_of(old) & before == {MANIFEST}
    assert files_of(old) == {MANIFEST} | {entry["path"] for entry in read_manifest(old)["files"]}
    assert [path.name for path in old.parent.iterdir()] == ["data"]


def test_a_replaced_dataset_has_no_messages_of_the_old(tmp_path: Path) -> None:
    analyzer.analyze(SMALL, tmp_path / "data", keep_bytes=True)
    assert (tmp_path / "data" / "messages").is_dir()
    analyzer.analyze(SMALL, tmp_path / "data")
    assert not (tmp_path / "data" / "messages").exists()
    assert contents(tmp_path / "data")["messages"] == []


def test_a_manifest_that_names_files_elsewhere_takes_none_away(old: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_bytes(b"mine")
    manifest = json.loads((old / MANIFEST).read_bytes())
    for path in ("../precious.parquet", str(precious), "exchanges/../../precious.parquet"):
        manifest["files"].append({"table": "exchanges", "path": path, "rows": 0, "size": 4})
    (old / MANIFEST).write_text(json.dumps(manifest))
    analyzer.analyze(OTHER, old)
    assert precious.read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["../precious.parquet", "/etc/passwd", "exchanges/../../precious.parquet", 7, None])
def test_a_manifest_that_names_files_elsewhere_is_refused(old: Path, tmp_path: Path, path: Any) -> None:
    shutil.copy(next((old / "exchanges").glob("*.parquet")), tmp_path / "precious.parquet")
    manifest = json.loads((old / MANIFEST).read_bytes())
    manifest["files"].append({"table": "exchanges", "path": path, "rows": 0, "size": 4})
    (old / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DatasetError) as caught:
        analyzer.open_dataset(old)
    assert caught.value.hint


def test_append_adds(old: Path, tmp_path: Path, expected: Any) -> None:
    other = tmp_path / "other.pcap"
    shutil.copy(OTHER, other)
    first = read_manifest(old)
    analyzer.analyze(other, old, append=True)
    after = contents(old)
    for name, rows in after.items():
        added = [{**row, **dict.fromkeys(("capture",), "other.pcap")} for row in expected[OTHER.parent.name][name]]
        for row in added:
            for key in ("request_file", "response_file"):
                if row.get(key):
                    row[key] = "other.pcap"
        assert rows == expected[SMALL.parent.name][name] + added
    manifest = read_manifest(old)
    assert [capture["name"] for capture in manifest["captures"]] == ["capture.pcap", "other.pcap"]
    second = analyzer.analyze(other)
    for name in ("payload_bytes", "decoded_bytes", "duplicate_bytes"):
        assert manifest["coverage"][name] == first["coverage"][name] + second.coverage[name]
    assert manifest["files"][: len(first["files"])] == first["files"]
    assert [path.name for path in old.parent.iterdir() if path.name.startswith(".")] == []


def test_append_to_nothing_makes_a_dataset(tmp_path: Path, expected: Any) -> None:
    analyzer.analyze(SMALL, tmp_path / "data", append=True)
    assert contents(tmp_path / "data") == expected[SMALL.parent.name]


def test_the_same_capture_twice_is_refused(old: Path, tmp_path: Path, expected: Any) -> None:
    with pytest.raises(DatasetError, match=r"capture point 'capture\.pcap' already") as caught:
        analyzer.analyze(OTHER, old, append=True)  # another file of the same name
    assert caught.value.hint
    assert contents(old) == expected[SMALL.parent.name]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_captures_of_one_name_in_one_call_are_told_apart(tmp_path: Path) -> None:
    analyzer.analyze([SMALL, SMALL], tmp_path / "twice")
    names = [capture["name"] for capture in analyzer.open_dataset(tmp_path / "twice").captures]
    assert names == [str(SMALL), f"{SMALL}#2"]
    assert [row["capture"] for row in contents(tmp_path / "twice")["exchanges"]] == [names[0]] * 25 + [names[1]] * 25


# ------------------------------------------------------------------------------------------------------------ readers


def test_readers_do_not_see_what_is_not_listed(old: Path, expected: Any) -> None:
    listed = next((old / "exchanges").glob("*.parquet"))
    shutil.copy(listed, old / "exchanges" / "part-stray.parquet")
    assert contents(old) == expected[SMALL.parent.name]
    analyzer.analyze(SMALL, old)
    assert not (old / "exchanges" / "part-stray.parquet").exists()


def test_a_listed_file_that_is_missing_is_told(old: Path) -> None:
    next((old / "exchanges").glob("*.parquet")).unlink()
    with pytest.raises(DatasetError, match=r"exchanges/part-.*\.parquet is listed and missing") as caught:
        analyzer.open_dataset(old)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"format_version": 1}',
        b'{"format_version": 1, "files": 7}',
        b'{"format_version": 1, "files": [7]}',
        b'{"format_version": 1, "files": [{}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format_version": 1, "captures": [], "files": [], "coverage": {}}',
        b'{"format_version": 99, "files": []}',
        b'{"format_version": null, "files": []}',
    ],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_a_manifest_that_is_none_is_told(text: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(DatasetError) as caught:
        analyzer.open_dataset(tmp_path)
    assert caught.value.hint
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DatasetError):
        analyzer.analyze(SMALL, tmp_path, append=True)
    assert (tmp_path / MANIFEST).read_bytes() == text
    analyzer.analyze(SMALL, tmp_path)  # without --append it is replaced, as any dataset
    assert len(contents(tmp_path)["exchanges"]) == 25


def test_what_is_no_dataset_is_told(tmp_path: Path, old: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, SMALL):
        assert not is_dataset(path)
        with pytest.raises(DatasetError) as caught:
            analyzer.open_dataset(path)
        assert caught.value.hint
    with pytest.raises(AttributeError, match="no table 'exchange'; there are exchanges"):
        _ = analyzer.open_dataset(old).exchange
    with pytest.raises(AttributeError, match="no table 'exchange'; there are exchanges"):
        _ = analyzer.analyze(SMALL).exchange


# ------------------------------------------------------------------------------------------------- where not to write


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check for exit code 2, one line of error with these words, and a hint."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("kwire: compiling")]
    assert len(lines) == 2, result.stderr
    assert lines[0].startswith("kwire: ")
    assert lines[1].startswith("hint: ")
    for word in words:
        assert word in lines[0]


def test_a_target_that_is_a_file(tmp_path: Path) -> None:
    target = tmp_path / "notes.txt"
    target.write_text("mine")
    refused(kwire("analyze", SMALL, "-o", target), str(target), "not a folder")
    assert target.read_text() == "mine"
    refused(kwire("analyze", SMALL, "-o", target / "data"), str(target))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_target_that_is_not_empty_and_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    refused(kwire("analyze", SMALL, "-o", tmp_path / "data"), str(tmp_path / "data"), "not a dataset")
    assert files_of(tmp_path) == {"data/notes.txt"}


def test_an_empty_folder_and_a_new_one_deep_down_are_fine(tmp_path: Path, expected: Any) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        assert kwire("analyze", SMALL, "-o", target).returncode == 0
        assert contents(target) == expected[SMALL.parent.name]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that may not be written to: by its mode, or (for root, whom modes do not stop) as a mount."""
    folder = tmp_path / "fixed"
    folder.mkdir()
    analyzer.analyze(SMALL, folder / "data")
    if os.getuid() != 0:
        folder.chmod(0o500)
        (folder / "data").chmod(0o500)
        yield folder
        folder.chmod(0o700)
        (folder / "data").chmod(0o700)
        return
    if _mount("--bind", str(folder), str(folder)) or _mount("-o", "remount,ro,bind", str(folder)):
        _unmount(folder)
        pytest.skip("neither modes nor mounts make a folder read-only here (root without the right to mount)")
    yield folder
    _unmount(folder)


def _mount(*arguments: str) -> int:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True).returncode
    except FileNotFoundError:
        return 1


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], capture_output=True)


def test_a_target_that_is_read_only(read_only: Path, expected: Any) -> None:
    refused(kwire("analyze", OTHER, "-o", read_only / "data"), str(read_only))
    refused(kwire("analyze", OTHER, "-o", read_only / "new"), str(read_only))
    assert contents(read_only / "data") == expected[SMALL.parent.name]
    assert [path.name for path in read_only.iterdir()] == ["data"]


# ------------------------------------------------------------------------------------------------------- a full disk


@pytest.mark.parametrize("limit", [0, 100, 4096, 9000])
def test_a_file_size_limit_leaves_the_old_dataset(old: Path, limit: int, expected: Any) -> None:
    """RLIMIT_FSIZE, as a full disk for everybody: writing fails with EFBIG at that size."""
    program = (
        "import resource, signal, sys\n"
        "from kwire.analyzer.cli.parser import main\n"
        "from kwire.analyzer import api\n"  # the kernels' cache may be written before
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "analyze", str(OTHER), "-o", str(old)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    refused(result, str(old), "cannot be written")
    assert contents(old) == expected[SMALL.parent.name]
    assert [path.name for path in old.parent.iterdir()] == ["data"]


def test_a_full_disk_leaves_the_old_dataset(tmp_path: Path, expected: Any) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() != 0 or _mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)):
        pytest.skip("no right to mount a small disk here; the file-size limit is tested above")
    try:
        analyzer.analyze(SMALL, disk / "data")
        room = os.statvfs(disk)
        for leave in (0, 4096, 12_288):
            filler = disk / "filler"
            filler.write_bytes(bytes(max(0, room.f_bavail * room.f_bsize - leave)))
            refused(kwire("analyze", OTHER, "-o", disk / "data"), str(disk))
            filler.unlink()
            assert contents(disk / "data") == expected[SMALL.parent.name]
            assert [path.name for path in disk.iterdir()] == ["data"]
        assert kwire("analyze", OTHER, "-o", disk / "data").returncode == 0
        assert contents(disk / "data") == expected[OTHER.parent.name]
    finally:
        _unmount(disk)


# --------------------------------------------------------------------------------------------------------- kill -9

KILLS = """
import json, os, shutil, signal, sys
from pathlib import Path
import pyarrow.parquet
from kwire.analyzer.dataset import dataset

def counted(name, at):
    module = sys.modules[name.rsplit(".", 1)[0]]
    plain = getattr(module, name.rsplit(".", 1)[1])
    def call(*arguments, **options):
        global count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return plain(*arguments, **options)
    setattr(module, name.rsplit(".", 1)[1], call)

folder, base, source, mode = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
manifest = json.loads((source / "_kwire.json").read_bytes())
stored = []
for entry in manifest["files"]:
    rows = pyarrow.parquet.ParquetFile(source / entry["path"]).read(use_threads=False)
    stored.append((entry["table"], rows.cast(dataset.tables.schema(entry["table"]))))
for at in range(1000):
    run = folder / f"run{at}"
    run.mkdir()
    if mode in ("replace", "append"):
        shutil.copytree(base, run / "data")
    elif mode == "link":
        (run / "there").mkdir()
        (run / "data").symlink_to("there")
    elif mode == "empty":
        (run / "data").mkdir()
    child = os.fork()
    if child == 0:
        count = 0
        for name in "os.replace os.rename os.fsync os.open os.mkdir os.unlink os.rmdir os.chmod shutil.rmtree".split():
            counted(name, at)
        with dataset.Writer(run / "data", append=mode == "append") as writer:
            for name, rows in stored:
                writer.write(name, rows)
            writer.commit({**manifest, "files": None})
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(at, code, flush=True)
    if code != -signal.SIGKILL:
        break
"""


@dataclass(frozen=True)
class Killed:
    """Two datasets for tests of kills: `base` is replaced or appended to; `whole` is the result for `capture`.

    `before` and `after` are their tables by name."""

    base: Path
    capture: Path
    whole: Path
    before: dict[str, pa.Table]
    after: dict[str, pa.Table]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    capture, base, whole = folder / "second.pcap", folder / "base", folder / "whole"
    shutil.copy(OTHER, capture)
    analyzer.analyze(SMALL, base, keep_bytes=True)
    analyzer.analyze(capture, whole, keep_bytes=True)
    return Killed(base, capture, whole, stored(base), stored(whole))


def stored(path: Path) -> dict[str, pa.Table]:
    """Every table of a dataset, each as long as the manifest says."""
    dataset = analyzer.open_dataset(path)
    rows_by_table = {name: getattr(dataset, name).to_table() for name in tables.TABLES}
    manifest_rows = dict.fromkeys(tables.TABLES, 0)
    for entry in dataset.manifest["files"]:
        manifest_rows[entry["table"]] += entry["rows"]
        assert (path / entry["path"]).stat().st_size == entry["size"]
    assert {name: len(rows) for name, rows in rows_by_table.items()} == manifest_rows
    return rows_by_table


def left_in(folder: Path) -> list[tuple[str, int, int]]:
    """List the files a killed run left: names without the run's own part, modes and sizes."""
    every = ((path, path.lstat()) for path in folder.rglob("*"))
    return sorted(
        (
            re.sub(r"(?<![0-9a-f])[0-9a-f]{8}(?![0-9a-f])", "RUN", str(path.relative_to(folder))),
            is_.st_mode,
            is_.st_size if stat.S_ISREG(is_.st_mode) else 0,
        )
        for path, is_ in every
    )


@pytest.mark.parametrize("mode", ["replace", "append", "new", "empty", "link"])
def test_a_kill_at_every_step_leaves_the_old_or_the_new(mode: str, killed: Killed, tmp_path: Path) -> None:
    """The process kills itself at its n-th call that changes the disk, for every n there is."""
    before, after = killed.before, killed.after
    if mode == "append":
        after = {name: pa.concat_tables([rows, after[name]]) for name, rows in before.items()}
    # One process starts the others by fork: it has done nothing yet that needs threads.
    command = [sys.executable, "-c", KILLS, str(tmp_path), str(killed.base), str(killed.whole), mode]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    runs = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    assert [code for _, code in runs] == [-signal.SIGKILL] * (len(runs) - 1) + [0], result.stderr
    assert len(runs) > 8
    outcomes = []
    seen: list[tuple[str, list[tuple[str, int, int]]]] = []
    for at, _ in runs:
        data = tmp_path / f"run{at}" / "data"
        if mode not in ("replace", "append") and not (data / MANIFEST).exists():
            outcomes.append("none")
        else:
            dataset = stored(data)
            assert dataset in (before, after), f"killed at step {at}"
            outcomes.append("new" if dataset == after else "old")
        if mode == "link" and outcomes[-1] == "none":
            continue  # a link is not moved whole: the folder behind it may hold files without a manifest
        # What was left behind is in nobody's way: the next run (a quick one) makes a whole dataset of it. Where two
        # kills left the same, what comes next finds the same.
        left = (outcomes[-1], left_in(data.parent))
        if left in seen and at != runs[-1][0]:
            continue
        seen.append(left)
        analyzer.analyze(killed.capture, data, keep_bytes=True, meaning=False)
        assert len(stored(data)["exchanges"]) == 86
        assert files_of(data) == {MANIFEST} | {entry["path"] for entry in read_manifest(data)["files"]}
    assert not list((tmp_path / f"run{runs[-1][0]}").glob(".*"))
    steps = [outcome for i, outcome in enumerate(outcomes) if i == 0 or outcomes[i - 1] != outcome]
    assert steps == ["old" if mode in ("replace", "append") else "none", "new"]  # one step between them, never back


def test_a_kill_in_the_middle_of_a_real_run(old: Path, tmp_path: Path, expected: Any) -> None:
    capture = tmp_path / "large.pcap"
    _enlarged(capture, 60)
    analyzer.analyze(capture, tmp_path / "whole")
    after = contents(tmp_path / "whole")
    data, left = capture.read_bytes(), set[Path]()
    for part in (0.1, 0.4, 0.7, 1.0):
        process = subprocess.Popen(
            [*KWIRE, "analyze", "-", "-o", str(old), "--window-bytes", "20000"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(data[: int(len(data) * part)])  # its end is not said: it cannot be done before the kill
        process.stdin.flush()
        # Before it has begun to write there is nothing to break. (What earlier ones left is still there.)
        while not set(tmp_path.glob(".data.*")) - left:
            assert process.poll() is None, "it ended before that"
            time.sleep(0.005)
        process.kill()
        with process:
            assert process.wait() == -signal.SIGKILL
        left = set(tmp_path.glob(".data.*"))
        assert contents(old) == expected[SMALL.parent.name]
    analyzer.analyze(capture, old)
    assert contents(old) == after


def _enlarged(path: Path, times: int) -> None:
    """A capture of the same conversations, many times after one another."""
    link, records = forge.loaded(OTHER)
    span = records[-1].time_ns - records[0].time_ns + 10**9
    path.write_bytes(
        forge.pcap(
            [
                forge.Record(record.time_ns + n * span, record.data, record.wire_length)
                for n in range(times)
                for record in records
            ],
            link,
            nanoseconds=True,
        )
    )


# --------------------------------------------------------------------------------------------------------- secrets


def secrets() -> list[bytes]:
    """The passwords and tokens in the SASL sample, found in its bytes without looking at Kafka."""
    data = SASL.read_bytes()
    matches = {b"alice-pw", b"bob-pw", b"wrong", b"\0bob\0", b"\0alice\0"}
    matches |= set(re.findall(rb"(?:n,,n=\w+,r=|[,\x00-\x08]r=)([!-+\--~]{20,})", data))  # nonces
    matches |= set(re.findall(rb",s=([A-Za-z0-9+/=]{20,}),i=", data))  # salts
    matches |= set(re.findall(rb",p=([A-Za-z0-9+/=]{40,})", data))  # client proofs
    matches |= set(re.findall(rb"[\x00-\x80]v=([A-Za-z0-9+/=]{40,})", data))  # server signatures
    at = data.index(b"\x05dave\x01") + 6
    matches |= {
        data[at + 5 : at + 25],
        data[at + 45 : at + 65],
    }  # salt and salted password of AlterUserScramCredentials
    assert len(matches) > 60
    assert all(secret in data for secret in matches)
    return [*sorted(matches - {b"wrong"}), b"\0wrong"]


def values_of(path: Path) -> bytes:
    """Everything that a dataset says: file bytes, and the values behind their compression."""
    parts = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
    for name in tables.TABLES:
        table = getattr(analyzer.open_dataset(path), name).to_table()
        for column in table.columns:
            if pa.types.is_list(column.type):
                column = pc.list_flatten(column)
            if not pa.types.is_struct(column.type):
                parts += [value if isinstance(value, bytes) else str(value).encode() for value in column.to_pylist()]
    return b"\n".join(parts)


def test_no_secret_is_stored(tmp_path: Path) -> None:
    result = kwire("analyze", SASL, "-o", tmp_path / "data", "--keep-bytes", "--records", "full")
    assert result.returncode == 0
    text = values_of(tmp_path / "data") + result.stdout.encode() + result.stderr.encode()
    assert b"sasl-bob-PLAIN" in text  # what is no secret is there
    for secret in secrets():
        assert secret not in text
    messages = analyzer.open_dataset(tmp_path / "data").messages.to_table().to_pylist()
    tokens = [row for row in messages if row["direction"] == "request" and row["bytes"][4:6] == b"\0\x24"]
    assert len(tokens) > 30
    assert all(b"****" in row["bytes"] for row in tokens)
    # Masked, not dropped: each as long as it was.
    assert all(len(row["bytes"]) == 4 + int.from_bytes(row["bytes"][:4], "big") for row in tokens if row["complete"])


@pytest.mark.parametrize("how", [(), ("--tree",), ("--tree", "--hex"), ("--json",), ("--frames",), ("--follow",)])
def test_no_secret_is_shown(how: tuple[str, ...]) -> None:
    if how == ("--follow",):
        exchanges = analyzer.analyze(SASL).exchanges
        connections = set(exchanges.filter(pc.equal(exchanges["api"], "SaslAuthenticate"))["connection"].to_pylist())
        results = [kwire("show", SASL, "--follow", name) for name in sorted(connections)[:3]]
    else:
        results = [kwire("show", SASL, *how)]
    text = ""
    for result in results:
        assert result.returncode == 0, result.stderr
        text += result.stdout + result.stderr
    assert "SaslAuthenticate" in text or "36" in text
    everything = text.encode()
    spaced = re.sub(rb"\s+", b"", everything)
    import base64

    for secret in secrets():
        assert secret not in everything
        assert base64.b64encode(secret) not in everything
        if len(secret) > 5:
            assert secret.hex(" ").encode() not in everything
            assert secret.hex().encode() not in spaced
