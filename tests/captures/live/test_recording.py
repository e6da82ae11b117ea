"""Capture files as they are written: whole at every moment, rotated, bounded, with what was lost beside them.

(proves: captures/live/recording.py, captures/files/sidecar.py)
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.captures.errors import CaptureError
from kwire.captures.files import CapturePoint, capture_points, sidecar
from kwire.captures.files.write import Record
from kwire.captures.live import interfaces
from kwire.captures.live.capture_queue import Drops
from kwire.captures.live.recording import Recording, Target
from tests.captures import forge
from tests.captures.live.scripted import ScriptedTap, chunks_of
from tests.captures.reading import read_point
from tests.live import SAMPLE, sample_records
from tests.shared import SAMPLES

ENDINGS = ("pcap", "pcapng")
NONE = Drops(0, 0, 0)
BATCHES = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
"""A capture of which two fifths are content of record batches."""


def written(
    target: Target, records: list[Record], each: int = 9, between: Callable[[Recording], None] = lambda _: None
) -> Recording:
    """Records written as they come, so many at a time."""
    recording = Recording(ScriptedTap([]), target)
    for chunk in chunks_of(records, each):
        recording.take(chunk)
        between(recording)
    recording.close(NONE)
    return recording


def rows(*paths: Path) -> list[object]:
    point = CapturePoint("capture", tuple(map(str, paths)))
    return [
        (row.time_ns, row.source, row.target, row.src_port, row.dst_port, row.seq, row.ack, row.flags, row.payload)
        for row in read_point(point).rows
    ]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_holds_what_came(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    recording = written(Target(str(path)), sample_records())
    assert rows(path) == rows(SAMPLE)
    assert recording.packets == len(sample_records())
    assert path.stat().st_mode & 0o777 == 0o600
    assert Path(sidecar.path_of(str(path))).stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("ending", ENDINGS)
def test_wireshark_reads_the_same(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    written(Target(str(path)), sample_records())

    def fields(capture: Path) -> str:
        command = [
            "tshark",
            "-r",
            str(capture),
            "-T",
            "fields",
            "-e",
            "frame.time_epoch",
            "-e",
            "frame.len",
            "-e",
            "tcp.seq_raw",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert fields(path) == fields(SAMPLE)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_is_whole_after_every_write(ending: str, tmp_path: Path) -> None:
    """Whenever the process is killed, all that was handed to it can be read, and nothing is half there."""
    path, copy = tmp_path / f"a.{ending}", tmp_path / "copy"
    seen = []

    def look(recording: Recording) -> None:
        shutil.copy(path, copy)
        reading = read_point(CapturePoint("copy", (str(copy),)))
        assert not reading.notes
        seen.append(reading.counts["packets"])
        assert seen[-1] == recording.packets

    written(Target(str(path)), sample_records(), each=100, between=look)
    assert len(seen) == 7


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("each", [1, 50, 1000])
def test_rotated_files_are_no_larger_and_together_the_same(ending: str, each: int, tmp_path: Path) -> None:
    folder = tmp_path / "row"
    folder.mkdir()
    recording = written(Target(str(folder / f"a.{ending}"), rotate_bytes=20_000), sample_records(), each)
    files = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    assert len(files) == recording.files > 4
    assert [path.name[:7] for path in files] == [f"a-{i:05d}" for i in range(1, len(files) + 1)]
    assert max(path.stat().st_size for path in files) <= 20_000
    assert rows(*files) == rows(SAMPLE)
    point = capture_points([str(folder)])[0]
    assert point.paths == tuple(map(str, files))
    assert not point.notes, "what lies beside captures is no surprise"


def test_a_packet_larger_than_a_file_may_be_gets_one_of_its_own(tmp_path: Path) -> None:
    records = sample_records()[:10]
    recording = written(Target(f"{tmp_path}/", rotate_bytes=50), records)
    assert recording.files == 10
    assert rows(*sorted(tmp_path.glob("*.pcap"))) == rows(SAMPLE)[:10]


def test_the_last_files_are_kept_and_numbers_go_on(tmp_path: Path) -> None:
    (tmp_path / "capture-notes.pcap").write_bytes(b"not of the row")
    target = Target(f"{tmp_path}{os.sep}", rotate_bytes=20_000, keep=3)
    recording = written(target, sample_records())
    names = sorted(path.name for path in tmp_path.glob("capture-0*.pcap"))
    assert [name[:13] for name in names] == [f"capture-{recording.files - i:05d}" for i in (2, 1, 0)]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"{name}.stats.json" for name in names]
    written(target, sample_records()[:1])
    later = sorted(path.name for path in tmp_path.glob("capture-0*.pcap"))
    assert later[:2] == names[1:]
    assert later[2].startswith(f"capture-{recording.files + 1:05d}")
    assert (tmp_path / "capture-notes.pcap").exists()


def test_time_rotates_a_file_that_holds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("kwire.captures.live.recording.time.monotonic", lambda: now[0])
    # The wall clock is set back and forth by years meanwhile, which ends no file and keeps none.
    years = itertools.cycle((1_800_000_000 * 10**9, 0, 4_000_000_000 * 10**9))
    monkeypatch.setattr("kwire.captures.live.recording.time.time_ns", lambda: next(years))
    recording = Recording(ScriptedTap([]), Target(f"{tmp_path}/", rotate_seconds=60))
    first, second = chunks_of(sample_records()[:20], 10)
    now[0] += 61
    recording.tick(NONE)
    assert recording.files == 1, "an empty file is not ended"
    recording.take(first)
    recording.tick(NONE)
    assert recording.files == 2
    now[0] += 59
    recording.take(second)
    recording.tick(NONE)
    recording.close(NONE)
    assert recording.files == 2


# -- what was lost ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_lost_is_said_of_each_file_and_read_with_it(ending: str, tmp_path: Path) -> None:
    recording = Recording(ScriptedTap([]), Target(str(tmp_path / f"a.{ending}"), rotate_bytes=1 << 20))
    first, second = chunks_of(sample_records()[:20], 10)
    recording.take(first)
    recording.tick(Drops(5, 1, 100))
    recording.rotate()
    recording.take(second)
    recording.tick(Drops(9, 1, 100))
    recording.close(Drops(12, 2, 100))
    files = sorted(tmp_path.glob(f"*.{ending}"))
    statistics = [json.loads(Path(sidecar.path_of(str(path))).read_text()) for path in files]
    names = ("packets", "dropped_by_kernel", "dropped_by_interface", "dropped_by_kwire", "dropped", "ended")
    assert [tuple(file_statistics[name] for name in names) for file_statistics in statistics] == [
        (10, 5, 1, 100, 106, True),
        (10, 7, 1, 0, 8, True),
    ]
    readings = [read_point(CapturePoint("one", (str(path),))).counts["dropped_by_capture"] for path in files]
    assert readings == [106, 8]
    assert read_point(CapturePoint("both", tuple(map(str, files)))).counts["dropped_by_capture"] == 114
    for path in files:
        os.unlink(sidecar.path_of(str(path)))
    alone = [read_point(CapturePoint("one", (str(path),))).counts["dropped_by_capture"] for path in files]
    assert alone == ([106, 8] if ending == "pcapng" else [None, None]), "pcapng says it itself"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_share_of_the_connections_is_said_by_whoever_reads_it(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    tap = ScriptedTap([])
    tap.one_of = 8
    recording = Recording(tap, Target(str(path)))
    recording.take(chunks_of(sample_records()[:10], 10)[0])
    recording.close(NONE)
    assert json.loads(Path(sidecar.path_of(str(path))).read_text())["sample"] == "1/8"
    notes = read_point(CapturePoint("one", (str(path),))).notes
    assert [note for note in notes if "one of 8 connections was captured" in note]
    if ending == "pcapng":
        assert interfaces.sampled("tcp", 8).encode() in path.read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_content_left_out_is_said_of_each_file_by_whoever_reads_it(ending: str, tmp_path: Path) -> None:
    records = forge.loaded(BATCHES)[1]
    target = Target(str(tmp_path / f"a.{ending}"), rotate_bytes=30_000)
    recording = Recording(ScriptedTap([]), target, no_payload=True)
    for chunk in chunks_of(records, 50):
        recording.take(chunk)
    recording.close(NONE)
    files = sorted(tmp_path.glob(f"*.{ending}"))
    assert len(files) == recording.files > 1
    statistics = [json.loads(Path(sidecar.path_of(str(path))).read_text()) for path in files]
    assert all(file_statistics["no_payload"] is True for file_statistics in statistics)
    assert sum(file_statistics["left_out_bytes"] for file_statistics in statistics) == recording.left_out_bytes > 40_000
    assert sum(file_statistics["packets"] for file_statistics in statistics) == recording.packets >= len(records)
    for path in files:
        notes = read_point(CapturePoint("one", (str(path),))).notes
        assert [note for note in notes if note.endswith("the content of record batches was left out (--no-payload)")]
        assert (b"(--no-payload)" in path.read_bytes()) is (ending == "pcapng")


def test_without_the_option_nothing_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    written(Target(str(path)), sample_records())
    assert not {"no_payload", "left_out_bytes"} & json.loads(Path(sidecar.path_of(str(path))).read_text()).keys()
    assert not sidecar.statistics(str(path)).no_payload
    for content in (b'{"no_payload": 1}', b'{"no_payload": "true"}', b"[]"):
        sidecar.write(str(path), content)
        assert not sidecar.statistics(str(path)).no_payload


@pytest.mark.parametrize("share", ["1/0", "8", "1/-2", "1/99999999", 8, None, ["1/8"], "1/\u0668"])
def test_what_is_no_share_says_nothing(share: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    sidecar.write(str(path), json.dumps({"sample": share}).encode())
    assert sidecar.statistics(str(path)).one_of == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_lost_is_known_of_a_file_that_was_never_ended(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    recording = Recording(ScriptedTap([]), Target(str(path)))
    recording.take(chunks_of(sample_records()[:10], 10)[0])
    recording.tick(Drops(7, None, 0))
    assert read_point(CapturePoint("one", (str(path),))).counts["dropped_by_capture"] == 7
    assert json.loads(Path(sidecar.path_of(str(path))).read_text())["ended"] is False
    recording.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"dropped": -1}',
        b'{"dropped": true}',
        b'{"dropped": 1e3}',
        b'{"dropped": "1"}',
        b'{"dropped": 99999999999999999999}',
        b"[" * 60_000,
        b'{"dropped": 1}' + b" " * 70_000,
        b"\xff\xfe",
    ],
)
def test_what_makes_no_sense_beside_a_capture_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pcap.stats.json").write_bytes(content)
    assert sidecar.statistics(str(tmp_path / "a.pcap")).dropped is None


def test_a_pipe_or_folder_beside_a_capture_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pcap.stats.json")
    (tmp_path / "b.pcap.stats.json").mkdir()
    assert sidecar.statistics(str(tmp_path / "a.pcap")).dropped is None
    assert sidecar.statistics(str(tmp_path / "b.pcap")).dropped is None


@pytest.mark.parametrize("is_there", ["pipe", "folder", "link"])
def test_what_somebody_put_in_a_sidecars_place_keeps_nobody_waiting(is_there: str, tmp_path: Path) -> None:
    """The name by which earlier versions began a sidecar may be a pipe that nobody reads."""
    path, precious = tmp_path / "a.pcap", tmp_path / "precious"
    precious.write_bytes(b"theirs")
    for name in ("a.pcap.stats.json.part", "a.pcap.stats.json"):
        if is_there == "pipe":
            os.mkfifo(tmp_path / name)
        elif is_there == "folder":
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).symlink_to(precious)
    recording = Recording(ScriptedTap([]), Target(str(path)))
    recording.take(chunks_of(sample_records()[:10], 10)[0])
    recording.close(NONE)
    assert sidecar.statistics(str(path)).dropped == (None if is_there == "folder" else 0)
    assert precious.read_bytes() == b"theirs"
    assert not list(tmp_path.glob(".*")), "nothing is left where a sidecar cannot be"


def test_what_a_killed_process_left_of_a_sidecar_is_taken_away(tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / name
        for name in (".a-00001.pcap.stats.json.abcd_12x.part", ".a.pcap.stats.json.12345678.part", ".b.part")
    )
    for path in (old, young, other):
        path.write_bytes(b"{")
    for path in (old, other):
        os.utime(path, (0, 0))
    Recording(ScriptedTap([]), Target(str(tmp_path / "a.pcap"))).close(NONE)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


# -- what cannot be written to ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("room", [30_000, 30_001, 30_017, 30_100])
def test_a_full_disk_keeps_whole_records(
    ending: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes part of a write, then none."""
    path = tmp_path / f"a.{ending}"
    recording = Recording(ScriptedTap([]), Target(str(path)))
    write, used = os.write, [path.stat().st_size]

    def into_little(descriptor: int, data: bytes) -> int:
        left = room - used[0]
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, data[:left])
        used[0] += done
        return done

    monkeypatch.setattr("kwire.captures.live.recording.os.write", into_little)

    def take() -> None:
        for chunk in chunks_of(sample_records(), 50):
            recording.take(chunk)

    with pytest.raises(CaptureError, match=r"cannot be written: No space left on device; \d+ packets are kept"):
        take()
    monkeypatch.undo()
    packets = recording.packets
    reading = read_point(CapturePoint("kept", (str(path),)))
    assert not reading.notes
    assert reading.counts["packets"] == packets > 50
    assert rows(path) == rows(SAMPLE)[: len(rows(path))]


def test_a_full_disk_of_its_own() -> None:
    """/dev/full is one."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(CaptureError, match="is there already, and is no capture"):
        Recording(ScriptedTap([]), Target("/dev/full"))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOENT, "name a file in a folder that is there"),
        (errno.ENOTDIR, "name a file in a folder that is there"),
        (errno.EROFS, "name a file in a folder that is there"),
        (errno.ENAMETOOLONG, "name a file in a folder that is there"),
        (errno.EACCES, "name a file where the user may write"),
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EIO, "its disk fails"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_the_hint_fits_what_went_wrong(code: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("kwire.captures.live.recording.os.open", refuse)
    with pytest.raises(CaptureError) as raised:
        Recording(ScriptedTap([]), Target(str(tmp_path / "a.pcap")))
    monkeypatch.undo()
    assert raised.value.hint.startswith(hint)


def test_only_a_capture_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_text("a letter")
    with pytest.raises(CaptureError, match="no capture"):
        Recording(ScriptedTap([]), Target(str(path)))
    assert path.read_text() == "a letter"
    shutil.copy(SAMPLE, path)
    path.chmod(0o644)
    sidecar.write(str(path), b'{"dropped": 5}')
    written(Target(str(path)), sample_records()[:3])
    assert len(rows(path)) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert sidecar.statistics(str(path)).dropped == 0


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "other.pcap")
    (tmp_path / "a.pcap").symlink_to(tmp_path / "other.pcap")
    with pytest.raises(CaptureError, match="no capture"):
        Recording(ScriptedTap([]), Target(str(tmp_path / "a.pcap")))
    assert rows(tmp_path / "other.pcap") == rows(SAMPLE)


def test_a_folder_that_is_not_there_is_a_problem_and_one_with_a_slash_is_made(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        Recording(ScriptedTap([]), Target(str(tmp_path / "no" / "a.pcap")))
    recording = written(Target(f"{tmp_path / 'new'}{os.sep}"), sample_records()[:3])
    assert Path(recording.path).parent == tmp_path / "new"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
