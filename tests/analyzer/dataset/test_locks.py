"""proves: kwire.analyzer.dataset.locks, and that a dataset has one writer at a time (kwire.analyzer.dataset.dataset).

Two real processes write many times at the same moment: the dataset is always one that they could have made one after
the other, and a refused process names the one that is writing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.dataset import dataset, locks, tables
from kwire.analyzer.dataset.dataset import MANIFEST, DatasetError, read_manifest
from tests.shared import KWIRE, ROOT, SAMPLES

SMALL = SAMPLES / "admin-kafkapython-3.9" / "capture.pcap"
OTHER = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"

TIMES = 12

# Writes a stored dataset again and again: as a run of `kwire analyze` does, but for the analysis.
WRITER = """
import json, sys
from pathlib import Path
import pyarrow.parquet
from kwire.analyzer.dataset import dataset

def written(source, target, append, wait, name):
    manifest = json.loads((source / "_kwire.json").read_bytes())
    manifest["captures"][0]["name"] = name
    with dataset.Writer(target, append, wait) as writer:
        for entry in manifest["files"]:
            table = pyarrow.parquet.ParquetFile(source / entry["path"]).read(use_threads=False)
            writer.write(entry["table"], table.cast(dataset.tables.schema(entry["table"])))
        writer.commit({**manifest, "files": None})

source, target, mode, wait = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "wait"
label, times = sys.argv[5], int(sys.argv[6])
sys.stdin.readline()
for number in range(times):
    where = target / str(number)
    try:
        written(source, where, mode == "append", wait, f"{label}-{number}")
        print("done", flush=True)
    except dataset.DatasetError as refused:
        print(f"{refused.message} ({refused.hint})", flush=True)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two datasets that differ in every table."""
    folder = tmp_path_factory.mktemp("sources")
    for name, capture in (("a", SMALL), ("b", OTHER)):
        analyzer.analyze(capture, folder / name)
    return {name: folder / name for name in "ab"}


def rows(path: Path) -> dict[str, int]:
    """Count the rows of each table, after `open_dataset` has compared each file with the manifest."""
    stored = analyzer.open_dataset(path)
    listed = {entry["path"] for entry in stored.manifest["files"]}
    there = {f"{file.parent.name}/{file.name}" for file in path.glob("*/*.parquet")}
    assert there == listed
    return {name: getattr(stored, name).count_rows() for name in tables.TABLES}


@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize("wait", ["wait", "no"])
def test_two_processes_that_write_one_dataset(mode: str, wait: str, sources: dict[str, Path], tmp_path: Path) -> None:
    own = {name: rows(path) for name, path in sources.items()}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(tmp_path), mode, wait, name, str(TIMES)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, path in sources.items()
    }
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = {name: process.communicate()[0].splitlines() for name, process in processes.items()}
    refused = 0
    for number in range(TIMES):
        done = {name for name, lines in outputs.items() if lines[number] == "done"}
        for name in set(sources) - done:
            refused += 1
            turn = r".*/\d+: process \d+ is writing it \(wait for that, or let --wait do so\)"
            assert re.fullmatch(turn, outputs[name][number])
        assert done, "at least one has its turn"
        counts = rows(tmp_path / str(number))
        if mode == "append":
            assert counts == {table: sum(own[name][table] for name in done) for table in counts}
            names = {entry["name"] for entry in read_manifest(tmp_path / str(number))["captures"]}
            assert names == {f"{name}-{number}" for name in done}, "what said that it was done is there"
        else:
            assert counts in [own[name] for name in done], "one or the other, never a mix"
    if wait == "wait":
        assert not refused
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left beside"


@pytest.fixture
def writing(sources: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    """A dataset that this process is writing."""
    shutil.copytree(sources["a"], tmp_path / "data")
    with dataset.Writer(tmp_path / "data"):
        yield tmp_path / "data"


def test_the_other_is_told_in_one_line_whose_turn_it_is(writing: Path) -> None:
    before = (writing / MANIFEST).read_bytes()
    for more in ((), ("--append",)):
        result = subprocess.run(
            [*KWIRE, "analyze", str(OTHER), "-o", str(writing), *more], cwd=ROOT, capture_output=True, text=True
        )
        assert result.returncode == 2
        lines = [line for line in result.stderr.splitlines() if "compiling" not in line]
        assert lines == [
            f"kwire: {writing}: process {os.getpid()} is writing it",
            "hint: wait for that, or let --wait do so",
        ]
    with pytest.raises(DatasetError, match=f"process {os.getpid()} is writing it"):
        dataset.Writer(writing.parent / "x" / ".." / "data")
    link = writing.parent / "link"
    link.symlink_to("data")
    with pytest.raises(DatasetError, match="is writing it"):
        dataset.Writer(link)
    assert (writing / MANIFEST).read_bytes() == before


def test_wait_waits_and_says_so(sources: dict[str, Path], tmp_path: Path) -> None:
    with dataset.Writer(tmp_path / "data") as writer:
        other = subprocess.Popen(
            [*KWIRE, "analyze", str(SMALL), "-o", str(tmp_path / "data"), "--wait"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stderr is not None
        line = next(line for line in other.stderr if "compiling" not in line)
        assert line == f"kwire: process {os.getpid()} is writing '{tmp_path / 'data'}': waiting\n"
        writer.abort()
        other.communicate()
        assert other.returncode == 0
    assert rows(tmp_path / "data") == rows(sources["a"])


def test_a_lock_ends_with_its_process(sources: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import os, sys; from kwire.analyzer.dataset import dataset; "
        "dataset.Writer(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], cwd=ROOT, check=False)
        assert len(list(tmp_path.glob(".data.????????.new"))) == 1, "the second run has cleared what the first left"
    with dataset.Writer(tmp_path / "data"):
        assert len(list(tmp_path.glob(".data.????????.new"))) == 1
    assert not list(tmp_path.iterdir())


def test_only_folders_of_dead_writers_of_this_dataset_are_cleared(tmp_path: Path) -> None:
    names = [".data.more.00000000.new", ".other.00000000.new", ".data.0000000x.new", ".data.00000000.newer"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / ".data.11111111.new").symlink_to(tmp_path / "precious")
    (tmp_path / ".data.22222222.new").write_text("a file")
    alive = locks.StagingFolder(tmp_path / "data", "33333333")
    (tmp_path / ".data.44444444.new" / "exchanges").mkdir(parents=True)
    locks.clear_dead(tmp_path / "data")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names, "precious", ".data.11111111.new", ".data.22222222.new", ".data.33333333.new"}
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    alive.release()
    locks.clear_dead(tmp_path / "data")
    assert not (tmp_path / ".data.33333333.new").exists()


def test_a_hostile_lock_is_neither_followed_nor_believed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".data.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(DatasetError) as caught:
        dataset.Writer(tmp_path / "data")
    assert caught.value.hint
    assert (tmp_path / "precious").read_text() == "mine"
    (tmp_path / ".data.lock").unlink()
    (tmp_path / ".data.lock").write_bytes(b"\x1b[2J 12 34\n")
    with dataset.Writer(tmp_path / "data"):
        descriptor = os.open(tmp_path / ".data.lock", os.O_RDWR)
        os.pwrite(descriptor, b"\x1b[2J".ljust(40), 0)
        os.close(descriptor)
        with pytest.raises(DatasetError, match="data: another process is writing it"):
            dataset.Writer(tmp_path / "data")


@pytest.mark.parametrize("size", [100, 185, 255])
def test_a_dataset_may_have_as_long_a_name_as_the_file_system_takes(
    size: int, sources: dict[str, Path], tmp_path: Path
) -> None:
    analyzer.analyze(SMALL, tmp_path / ("d" * size))
    assert rows(tmp_path / ("d" * size)) == rows(sources["a"])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["d" * 300, "d" * 256, "/".join(["d" * 200] * 30)])
def test_a_name_that_is_too_long_is_told(name: str, tmp_path: Path) -> None:
    for command in (("analyze", SMALL, "-o", tmp_path / name), ("report", tmp_path / name, "-o", "x.html")):
        result = subprocess.run([*KWIRE, *map(str, command)], cwd=ROOT, capture_output=True, text=True)
        lines = [line for line in result.stderr.splitlines() if "compiling" not in line]
        assert result.returncode == 2, result.stderr
        assert len(lines) == 2
        assert lines[0].startswith("kwire: ")
        assert lines[1].startswith("hint: ")
    assert not list(tmp_path.iterdir())


# --- readers --------------------------------------------------------------------------------------------------------


def test_who_reads_keeps_the_dataset_that_was_opened(sources: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sources["a"], tmp_path / "data")
    first = analyzer.open_dataset(tmp_path / "data")
    analyzer.analyze(OTHER, tmp_path / "data")
    second = analyzer.open_dataset(tmp_path / "data")
    for stored, source in ((first, "a"), (second, "b")):
        own = analyzer.open_dataset(sources[source])
        for name in tables.TABLES:
            assert getattr(stored, name).to_table() == getattr(own, name).to_table()
    del first, second, stored
    analyzer.analyze(OTHER, tmp_path / "data")
    assert rows(tmp_path / "data") == rows(sources["b"]), "nobody reads: what was left is gone"


READER = """
import sys
from pathlib import Path
from kwire import analyzer
from kwire.analyzer.dataset import dataset
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    stored = analyzer.open_dataset(sys.argv[1])
    print(len({stored.exchanges.to_table().num_rows, stored.manifest["captures"][0]["name"]}),
          stored.exchanges.to_table().num_rows, stored.connections.to_table().num_rows, flush=True)
"""


def test_a_reader_sees_the_old_or_the_new_while_another_writes(sources: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sources["a"], tmp_path / "data" / "0")
    own = {name: rows(path) for name, path in sources.items()}
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "data" / "0"), str(tmp_path / "end")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    for _ in range(TIMES // 2):
        for name in "ba":
            subprocess.run(
                [sys.executable, "-c", WRITER, str(sources[name]), str(tmp_path / "data"), "replace", "no", name, "1"],
                cwd=ROOT,
                input="go\n",
                capture_output=True,
                text=True,
                check=True,
            )
    (tmp_path / "end").touch()
    results = {line for line in reader.communicate()[0].splitlines() if line}
    assert reader.returncode == 0
    assert results <= {f"2 {of['exchanges']} {of['connections']}" for of in own.values()}
    assert len(results) == 2, "both were seen"


def test_a_link_in_the_place_of_a_tables_folder_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    shutil.copytree(sources["a"], data)
    (data / "exchanges").rename(elsewhere)
    (data / "exchanges").symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    for append in (False, True):
        with pytest.raises(DatasetError, match="exchanges: a link in the place of a table's folder") as caught:
            analyzer.analyze(OTHER, data, append=append)
        assert caught.value.hint
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before
    assert not list(tmp_path.glob(".*"))


# --- what does not agree with its manifest --------------------------------------------------------------------------


def changed(path: Path, **values: Any) -> None:
    """Change the manifest's entry of the exchanges."""
    import json

    manifest = json.loads((path / MANIFEST).read_bytes())
    next(entry for entry in manifest["files"] if entry["table"] == "exchanges").update(values)
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"rows": 7}, "has 25 rows, the manifest says 7"), ({"size": 7}, r"has \d+ bytes, the manifest says 7")],
)
def test_rows_and_sizes_are_compared_with_the_manifest(
    values: dict[str, int], message: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(sources["a"], tmp_path / "data")
    changed(tmp_path / "data", **values)
    with pytest.raises(DatasetError, match=message) as caught:
        analyzer.open_dataset(tmp_path / "data")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("files.0.rows", True),
        ("files.0.rows", -1),
        ("files.0.rows", None),
        ("files.0.rows", 1 << 70),
        ("files.0.size", "7"),
        ("files.0.path", "exchanges/\0.parquet"),
        ("files.1.path", "="),
        ("captures", [7]),
        ("captures", [{}]),
        ("captures.0.name", 7),
        ("captures.0.files", None),
        ("captures.0.files", [7]),
        ("captures.0.files", [{"size": "x"}]),
        ("captures.0.link_types", [7]),
        ("captures.0.link_types", "Ethernet"),
        ("captures.0.packets", 7),
        ("captures.0.packets", {"tcp": "x"}),
        ("captures.0.first_time", 7),
        ("coverage.decoded_bytes", "x"),
        ("coverage.opaque", {"x": None}),
        ("unrecognised.listed", None),
        ("unrecognised.listed", [7]),
        ("unrecognised.listed", [{}]),
        ("unrecognised.connections", "x"),
        ("unrecognised", {}),
    ],
)
def test_a_tampered_manifest_is_told(path: str, value: Any, sources: dict[str, Path], tmp_path: Path) -> None:
    import json

    data = tmp_path / "data"
    shutil.copytree(sources["a"], data)
    manifest = json.loads((data / MANIFEST).read_bytes())
    place: Any = manifest
    *way, last = path.split(".")
    for part in way:
        place = place[int(part) if part.isdigit() else part]
    place[last] = manifest["files"][0]["path"] if value == "=" else value
    (data / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="not a manifest of kwire") as caught:
        analyzer.open_dataset(data)
    assert caught.value.hint
    with pytest.raises(DatasetError):
        analyzer.analyze(OTHER, data, append=True)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(DatasetError):
        analyzer.open_dataset(tmp_path)


def damaged(path: Path, table: str, where: str) -> None:
    """Damage the footer or the pages of a table's only file, without changing its length."""
    (file,) = (path / table).glob("*.parquet")
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[-8:-4], "little")
    first, last = (len(data) - 8 - size, len(data)) if where == "footer" else (4, len(data) - 8 - size)
    data[first:last] = os.urandom(last - first) if where == "noise" else bytes(last - first)
    file.write_bytes(data)


@pytest.mark.parametrize("where", ["footer", "pages", "noise"])
def test_damaged_parquet_is_told_by_replay_and_diff(where: str, tmp_path: Path) -> None:
    analyzer.analyze(SMALL, tmp_path / "data", keep_bytes=True)
    damaged(tmp_path / "data", "messages", where)
    replay = ("replay", str(tmp_path / "data"), "--to", "127.0.0.1:1", "--dry-run")
    result = subprocess.run([*KWIRE, *replay], cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in result.stderr.splitlines() if "compiling" not in line]
    assert result.returncode == 2, result.stderr
    assert len(lines) == 2, result.stderr
    assert "cannot be read" in lines[0]
    assert lines[1] == "hint: the file is damaged: analyse the capture again"
