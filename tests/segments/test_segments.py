"""Log folders of real brokers (`data/`, made by `make.py`) against what was sent, and what Kafka's own DumpLogSegments
says of every file."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from kwire import analyzer
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import log_files as segments
from kwire.analyzer.records import log_reader
from kwire.analyzer.records.log_names import LogPoint, log_point
from tests import forked
from tests.segments import make

FOLDERS = sorted(path for path in make.DATA.iterdir() if path.is_dir())
SENT = {topic: make.records(topic) for topic in make.TOPICS if topic != "transactions"}
SENT["upgraded"] *= 3
FILES = sorted(path for folder in FOLDERS for path in folder.iterdir() if path.suffix in (".log", ".checkpoint"))
SMALL_FILES = sorted(
    path
    for folder in FOLDERS
    for path in folder.iterdir()
    if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")
)


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name.lstrip('0')}"


def _dumped(path: Path) -> list[str]:
    return lzma.decompress(path.with_name(f"{path.name}.dump.xz").read_bytes()).decode().splitlines()


def _point(folder: Path) -> LogPoint:
    point = log_point(str(folder))
    assert point is not None
    return point


def _shown(path: Path) -> list[log_reader.Shown]:
    notes: list[str] = []
    batches = list(log_reader.shown(_point(path), notes))
    assert notes == []
    return batches


# --- whole segments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", SENT)
def test_records_are_those_that_were_sent(topic: str) -> None:
    """Formats 0, 1 and 2, each codec, as brokers stored them: null keys, tombstones, headers, offsets without holes."""
    records = [record for batch in _shown(make.DATA / f"{topic}-0") for record in batch.records]

    assert [
        (record["key"], record["value"], [tuple(pair.values()) for pair in record["headers"]]) for record in records
    ] == SENT[topic]
    assert [record["offset"] for record in records] == list(range(len(SENT[topic])))
    assert {(record["topic"], record["partition"]) for record in records} == {(topic, 0)}


@pytest.mark.parametrize("path", FILES, ids=_named)
def test_every_batch_is_what_kafkas_own_tool_says(path: Path) -> None:
    dumped = [line for line in _dumped(path) if re.match(r"(baseOffset|offset):", line)]
    rows = [batch.row for batch in _shown(path)]

    assert len(rows) == len(dumped)
    for row, line in zip(rows, dumped, strict=True):
        words = dict(re.findall(r"(\w+): (\S+)", line))
        assert words["isvalid"] == "true"
        assert row["crc_ok"]
        assert row["batch_bytes"] == int(words["size"])
        assert row["magic"] == int(words["magic"])
        assert row["codec"] == words["compresscodec"].lower()
        assert row["base_offset"] == int(words.get("baseOffset") or words["offset"])
        if row["magic"] == 2:
            assert row["record_count"] == int(words["count"])
            assert row["producer_id"] == _present(words["producerId"])
            assert row["producer_epoch"] == _present(words["producerEpoch"])
            assert row["base_sequence"] == _present(words["baseSequence"])
            assert row["is_transactional"] == (words["isTransactional"] == "true")
            assert row["is_control"] == (words["isControl"] == "true")
        kind = row["timestamp_type"] or "NoTimestampType"
        assert _millis(row["last_timestamp"]) == int(words[kind])


@pytest.mark.parametrize("path", FILES, ids=_named)
def test_every_record_is_what_kafkas_own_tool_says(path: Path) -> None:
    dumped = [line for line in _dumped(path) if line.startswith("| ")]
    records = [record for batch in _shown(path) for record in batch.records]

    assert len(records) == len(dumped)
    for record, line in zip(records, dumped, strict=True):
        words = dict(re.findall(r"(\w+): (\S+)", line.partition(" payload: ")[0]))
        assert record["offset"] == int(words["offset"])
        assert record["key_bytes"] == _present(words["keySize"])
        assert record["value_bytes"] == _present(words["valueSize"])
        moment = re.search(r"(?:CreateTime|LogAppendTime|NoTimestampType): (-?\d+)", line)
        assert moment is not None
        assert _millis(record["timestamp"]) == int(moment[1])
        names = re.search(r"headerKeys: \[(.*?)\]", line)
        assert ",".join(pair["key"] for pair in record["headers"]) == (names[1] if names else "")
        control = re.search(r"headerKeys: \[\] (?:endTxnMarker: (\w+)|(\w+):? ?\{)", line)
        if record["control_type"] is not None:
            assert control is not None
            assert record["control_type"].lower() == (control[1] or control[2]).lower()


def _present(word: str) -> int | None:
    return None if word == "-1" else int(word)


def _millis(moment: Any) -> int:
    return -1 if moment is None else round(moment.timestamp() * 1000)


def test_control_records_of_kraft_are_typed_and_decoded() -> None:
    """LeaderChange in the log; header, version, voters and footer in a snapshot."""
    folder = make.DATA / "__cluster_metadata-0"
    in_log = [record for batch in _shown(folder) for record in batch.records if record["control_type"]]
    snapshot = sorted(folder.glob("*.checkpoint"))[-1]
    in_snapshot = [record for batch in _shown(snapshot) for record in batch.records if record["control_type"]]

    assert [record["control_type"] for record in in_log][:1] == ["LeaderChange"]
    assert json.loads(in_log[0]["decoded"])["value"]["leaderId"] == 1
    assert in_snapshot[0]["control_type"] == "SnapshotHeader"
    assert in_snapshot[-1]["control_type"] == "SnapshotFooter"


def test_markers_end_transactions() -> None:
    kinds = [batch.records[0]["control_type"] for batch in _shown(make.DATA / "transactions-0")]

    assert kinds == [None, "commit", None, "abort", None, "commit", None, "abort"]


@pytest.mark.parametrize("path", SMALL_FILES, ids=_named)
def test_small_files_are_what_kafkas_own_tool_says(path: Path) -> None:
    entries = segments.entries(path)
    dumped = _dumped(path)

    assert entries.notes == ()
    if path.suffix == ".snapshot":
        wanted = (
            "producerId",
            "producerEpoch",
            "lastSequence",
            "lastOffset",
            "offsetDelta",
            "timestamp",
            "coordinatorEpoch",
        )
        lines = [dict(re.findall(r"(\w+): (?:Some\()?(-?\d+)", line)) for line in dumped if "producerId:" in line]
        assert [row[:7] for row in entries.rows] == [tuple(int(words[name]) for name in wanted) for words in lines]
    else:
        lines = [dict(re.findall(r"(\w+): (-?\d+)", line)) for line in dumped if re.match(r"\w+: \d", line)]
        assert [list(row) for row in entries.rows] == [[int(number) for number in words.values()] for words in lines]


# --- recovery ---------------------------------------------------------------------------------------------------------


def _read(
    path: Path, window_bytes: int = segments.WINDOW_BYTES
) -> tuple[list[tuple[int, int]], segments.Damage | None]:
    """(place and size of each good batch, where recovery stops)."""
    places, damage = [], None
    for part in segments.read(path, window_bytes):
        assert damage is None
        good = part.batches.table if part.damage is None else part.batches.table[:, :-1]
        places += [
            (part.at + at, length) for at, length in zip(good[b.B_AT].tolist(), good[b.B_LENGTH].tolist(), strict=True)
        ]
        damage = part.damage
    return places, damage


@pytest.mark.parametrize("topic", ["v2-gzip-0", "v1-none-0", "upgraded-0"])
@pytest.mark.parametrize("window_bytes", [100, 1000, 1 << 20])
def test_a_segment_is_the_same_in_windows_of_any_size(topic: str, window_bytes: int) -> None:
    path = make.DATA / topic / "00000000000000000000.log"

    assert _read(path, window_bytes) == _read(path)


@pytest.mark.parametrize("topic", ["v2-gzip-0", "v1-gzip-0", "v0-none-0"])
def test_a_segment_cut_anywhere_is_read_to_its_last_whole_batch(topic: str, tmp_path: Path) -> None:
    whole = (make.DATA / topic / "00000000000000000000.log").read_bytes()
    places, damage = _read(make.DATA / topic / "00000000000000000000.log")
    assert damage is None
    path = tmp_path / "00000000000000000000.log"
    ends = [0, *(at + length for at, length in places)]
    for cut in range(1, len(whole), 7):
        path.write_bytes(whole[:cut])
        good = [end for end in ends if end <= cut]

        batches, damage = _read(path, 512)

        assert batches == places[: len(good) - 1]
        if cut in ends:
            assert damage is None
        else:
            assert damage is not None
            assert (damage.at, damage.left) == (good[-1], cut - good[-1])


def test_a_segment_with_a_wrong_byte_is_read_up_to_its_batch(tmp_path: Path) -> None:
    """As Kafka's recovery, which truncates there: nothing behind the bad batch is believed."""
    source = make.DATA / "v2-none-0" / "00000000000000000000.log"
    whole = source.read_bytes()
    places, _ = _read(source)
    (tmp_path / "orders-3").mkdir()
    path = tmp_path / "orders-3" / source.name
    at = places[1][0] + 100
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    batches, damage = _read(path)

    assert batches == places[:1]
    assert str(damage) == (
        f"byte {places[1][0]} (offset 10): the checksum is wrong; {len(whole) - places[1][0]} bytes from there on are "
        "not read"
    )
    dataset = analyzer.analyze(path, records="full")
    assert dataset.batches["crc_ok"].to_pylist() == [True, False]
    assert len(dataset.records) == 10
    assert dataset.notes == [f"{path}: {damage}"]


def test_zeros_behind_the_last_batch_are_what_a_broker_preallocates(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes((make.DATA / "v2-none-0" / path.name).read_bytes() + bytes(5000))

    _, damage = _read(path)

    assert damage is not None
    assert (damage.reason, damage.left) == ("zeros, as a broker preallocates", 5000)


# --- from the command line --------------------------------------------------------------------------------------------


def _kwire(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments)


def test_show_prints_a_batch_a_line() -> None:
    done = _kwire("show", make.DATA / "upgraded-0")

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].split()[:5] == ["offset", "records", "magic", "codec", "bytes"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["9", "10", "0", "gzip"],
        ["39", "30", "0", "gzip"],
        ["49", "10", "1", "gzip"],
        ["79", "30", "1", "gzip"],
        ["80", "10", "2", "gzip"],
        ["90", "30", "2", "gzip"],
    ]


def test_show_prints_records_with_tree_and_json() -> None:
    tree = _kwire("show", make.DATA / "v2-gzip-0", "--tree", "--limit", "1").stdout.splitlines()
    (first,) = _kwire("show", make.DATA / "v2-gzip-0", "--json", "--limit", "1").stdout.splitlines()

    assert tree[2].split("  ")[-3:] == [
        'key "v2-gzip-0"',
        'value "value 0 of v2-gzip "',
        'headers source="make", empty=null, source="0"',
    ]
    batch = json.loads(first)
    assert batch["topic"] == "v2-gzip"
    assert batch["records"][0]["headers"][1] == {"key": "empty", "value": None}
    assert len(batch["records"]) == batch["record_count"] == 10


def test_show_prints_small_files() -> None:
    (path,) = (make.DATA / "transactions-0").glob("*.txnindex")

    assert _kwire("show", path).stdout.splitlines()[:2] == [
        "version\tproducer_id\tfirst_offset\tlast_offset\tlast_stable_offset",
        "0\t0\t6\t11\t12",
    ]


def test_options_that_need_exchanges_say_so() -> None:
    done = _kwire("show", make.DATA / "v2-gzip-0", "--filter", "api == Fetch")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("kwire: --filter is for captures, and ")
    assert done.stderr.splitlines()[1] == "hint: --json, --tree, --fields and --limit go with logs"


def test_analyze_takes_folders_and_captures_together(tmp_path: Path) -> None:
    capture = Path(__file__).parents[2] / "captures" / "samples" / "old-java-0.8.2" / "capture.pcap"
    done = _kwire(
        "analyze",
        make.DATA / "v1-snappy-0",
        capture,
        make.DATA / "v2-zstd-0",
        "-o",
        tmp_path / "data",
        "--records",
        "meta",
    )

    assert done.returncode == 0, done.stderr
    assert "log      4 batches, 80 records" in done.stdout
    records = analyzer.open_dataset(tmp_path / "data").records.to_table()
    logs = records.filter(pc.is_null(records["connection"]))
    assert set(logs["topic"].to_pylist()) == {"v1-snappy", "v2-zstd"}
    assert logs["exchange"].null_count == logs["reply"].null_count == logs["side"].null_count == len(logs) == 80
    assert logs["key"].null_count == 80, "meta has no content"
