"""Resolve arguments to files, and read files that are no captures, damaged, compressed or piped."""

from __future__ import annotations

import gzip
import io
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import crc32c
import pytest
import zstandard

from kwire.captures import files
from kwire.captures.files import CaptureError, CapturePoint, capture_points
from kwire.captures.files.sources import Source
from kwire.captures.packets import Reader
from tests.captures import dpkt_reference, forge
from tests.captures.forge import ETHERNET, Record, Segment
from tests.captures.reading import read, read_bytes, read_point

SEGMENT = Segment(forge.START_NS, ("10.0.0.1", 40000), ("10.0.0.2", 9092), 7, 8, forge.ACK, b"payload")
RNG = random.Random(11)
MANY = [replace(SEGMENT, payload=RNG.randbytes(RNG.randrange(900)), time_ns=forge.START_NS + n) for n in range(400)]
DATA = forge.pcap(forge.rendered(MANY), nanoseconds=True)
ROWS = dpkt_reference.rows(DATA)


def capture(path: Path, second: int = 0, count: int = 1) -> Path:
    """A small capture whose first packet comes `second` seconds after the start."""
    segments = [replace(SEGMENT, time_ns=forge.START_NS + (second + index) * 10**9) for index in range(count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(forge.pcap(forge.rendered(segments)))
    return path


# --------------------------------------------------------------------------------------------------------- compression


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


HALF = len(DATA) // 2
PACKED = [
    ("gzip", gzip.compress(DATA)),
    ("gzip, two members", gzip.compress(DATA[:HALF]) + gzip.compress(DATA[HALF:])),
    ("gzip, an empty member first", gzip.compress(b"", mtime=0) + gzip.compress(DATA)),
    ("gzip, padded with zeros", gzip.compress(DATA) + bytes(1000)),
    ("gzip, stored", gzip.compress(DATA, 0)),
    ("zstd", zstd(DATA)),
    ("zstd, padded with zeros", zstd(DATA) + bytes(1000)),
    ("zstd, two frames", zstd(DATA[:HALF]) + zstd(DATA[HALF:])),
    ("zstd, a skippable frame first", b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstd(DATA)),
]


@pytest.mark.parametrize(("what", "packed"), PACKED, ids=[row[0] for row in PACKED])
def test_packed_captures_are_recognised_by_their_bytes(what: str, packed: bytes, tmp_path: Path) -> None:
    for window_bytes in (1 << 20, 500):
        reading = read_bytes(packed, tmp_path, window_bytes=window_bytes)
        assert reading.rows == ROWS
        assert reading.notes == []
        [info] = reading.files
        assert info.compressed
        assert (info.size, info.crc32c) == (len(packed), crc32c.crc32c(packed))


@pytest.mark.parametrize(("what", "packed"), PACKED, ids=[row[0] for row in PACKED])
def test_packed_captures_cut_anywhere_give_what_is_there(what: str, packed: bytes, tmp_path: Path) -> None:
    for share in range(1, 8):
        try:
            reading = read_bytes(packed[: len(packed) * share // 8], tmp_path)
        except CaptureError as error:
            # zstd gives nothing before the first block of 128 KiB is whole.
            complaint = error.message
        else:
            complaint = "".join(reading.notes)
        if "cannot be unpacked" in complaint:
            assert what.startswith("zstd")
            assert "cut off" in complaint
            continue
        assert reading.rows == ROWS[: len(reading.rows)]
        assert len(reading.rows) == len(ROWS) or reading.notes


def test_damaged_gzip_data_is_a_note_after_what_was_good(tmp_path: Path) -> None:
    packets = [replace(SEGMENT, payload=bytes(RNG.choices(b"abcdefgh", k=1000))) for _ in range(400)]
    # Headers that hardly differ, so that the damage does not pass for other packets for long.
    frames = [forge.framed(forge.tcp_ip(packet), forge.ETHERNET) for packet in packets]
    data = forge.pcap([forge.Record(0, frame, len(frame)) for frame in frames])
    packed = bytearray(gzip.compress(data))
    packed[len(packed) * 3 // 4 :] = b"\xff" * (len(packed) // 4)
    reading = read_bytes(bytes(packed), tmp_path)
    assert reading.rows[:200] == dpkt_reference.rows(data)[:200]
    assert 200 < len(reading.rows) < 400
    assert "gzip data is damaged" in reading.notes[0]


def test_a_wrong_gzip_checksum_is_a_note(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(DATA))
    packed[-6] ^= 0xFF
    assert "gzip data is damaged" in read_bytes(bytes(packed), tmp_path).notes[0]


def test_damaged_zstd_data_is_a_note_after_what_was_good(tmp_path: Path) -> None:
    packets = [replace(SEGMENT, payload=RNG.randbytes(1000)) for _ in range(1000)]
    data = forge.pcap(forge.rendered(packets))
    packed = bytearray(zstd(data))
    packed[len(packed) * 3 // 4 :] = b"\xff" * (len(packed) // 4)
    reading = read_bytes(bytes(packed), tmp_path)
    assert 200 < len(reading.rows) < 1000
    assert "zstd data is damaged" in reading.notes[0]


def test_packed_data_damaged_from_the_start_is_an_error(tmp_path: Path) -> None:
    for magic in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd"):
        with pytest.raises(CaptureError, match=r"cannot be unpacked: its \w+ data is damaged"):
            read_bytes(magic + b"\xff" * 100, tmp_path)


def test_what_follows_packed_data_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    for packed, name in ((gzip.compress(DATA), "gzip"), (zstd(DATA), "zstd")):
        reading = read_bytes(packed + b"something else", tmp_path)
        assert reading.rows == ROWS
        assert f"what follows its {name} data is no {name} data" in reading.notes[0]


def test_a_bomb_fills_no_memory(tmp_path: Path) -> None:
    """100 MB of zeros in a few kilobytes come a window at a time, and are no capture."""
    for packed in (gzip.compress(bytes(100_000_000)), zstd(bytes(100_000_000))):
        with pytest.raises(CaptureError, match="not a pcap"):
            read_bytes(packed, tmp_path, window_bytes=4096)


def test_a_capture_packed_twice_is_no_capture(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="not a pcap"):
        read_bytes(zstd(gzip.compress(DATA)), tmp_path)
    with pytest.raises(CaptureError, match="not a pcap"):
        read_bytes(gzip.compress(gzip.compress(DATA)), tmp_path)


# ---------------------------------------------------------------------------------------------------------------- stdin


@pytest.mark.parametrize("packed", [DATA, gzip.compress(DATA), zstd(DATA)], ids=["plain", "gzip", "zstd"])
def test_stdin_is_read_like_a_file(packed: bytes) -> None:
    [point] = capture_points(["-"])
    reading = read_point(point, stdin=io.BytesIO(packed), window_bytes=2000)
    assert point == CapturePoint("stdin", ("-",))
    assert reading.rows == ROWS
    [info] = reading.files
    assert (info.name, info.size, info.mtime_ns, info.crc32c) == ("stdin", len(packed), 0, crc32c.crc32c(packed))


def test_a_pipe_shows_what_it_has_before_it_is_full() -> None:
    """Live traffic: packets come out while the writer is silent and the window far from full."""
    reader_end, writer_end = os.pipe()
    seen = threading.Event()
    records = forge.rendered(MANY)

    def write() -> None:
        with open(writer_end, "wb", buffering=0) as pipe:
            pipe.write(forge.pcap(records[:10], nanoseconds=True))
            assert seen.wait(600), "the first packets were never shown"  # kernels may have to be compiled first
            pipe.write(forge.pcap(records[10:12], nanoseconds=True)[24:])

    writer = threading.Thread(target=write)
    writer.start()
    with open(reader_end, "rb") as stdin:
        numbers = []
        for batch in Reader(CapturePoint("stdin", ("-",)), stdin=cast(BinaryIO, stdin)):
            numbers += batch.columns.number.tolist()
            if numbers == list(range(1, 11)):
                seen.set()
    writer.join()
    assert numbers == list(range(1, 13))


def test_a_pipe_that_is_never_silent_shows_what_it_has_while_its_writer_writes() -> None:
    """A packet every 20 ms: a window waits for a deadline, not for a pause."""
    reader_end, writer_end = os.pipe()
    seen = threading.Event()
    records = forge.rendered(MANY)
    ended_unseen = False

    def write() -> None:
        nonlocal ended_unseen
        with open(writer_end, "wb", buffering=0) as pipe:
            pipe.write(forge.pcap(records[:1], nanoseconds=True))
            for record in records[1:]:
                if seen.wait(0.02):
                    return
                pipe.write(forge.pcap([record], nanoseconds=True)[24:])
            ended_unseen = True

    writer = threading.Thread(target=write)
    writer.start()
    with open(reader_end, "rb") as stdin, Source("-", cast(BinaryIO, stdin)) as source:
        got = source.readinto(memoryview(bytearray(1 << 20)))
        seen.set()
        writer.join()
    assert got > 0
    assert not ended_unseen


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("what", "data", "says"),
    [
        ("nothing", b"", "is empty"),
        ("nothing, packed", gzip.compress(b"", mtime=0), "is empty"),
        ("a cut header", DATA[:20], "ends inside its file header"),
        ("a cut pcapng header", bytes.fromhex("0a0d0d0a1c000000"), "ends inside its file header"),
        ("text", b"GET / HTTP/1.1\r\n\r\n", r"not a pcap or pcapng capture \(it begins with 47 45 54 20"),
        ("a few bytes", b"\xd4\xc3", "not a pcap"),
        ("a snoop capture", b"snoop\0\0\0\0\0\0\2\0\0\0\4" + bytes(100), "not a pcap"),
        ("a section header and another order mark", b"\x0a\x0d\x0d\x0a\x1c\0\0\0abcd" + bytes(16), "not a pcap"),
    ],
)
def test_what_is_no_capture_is_an_error(what: str, data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=says) as failure:
        read_bytes(data, tmp_path)
    assert str(tmp_path / "forged") in failure.value.message
    assert "\n" not in failure.value.message
    assert failure.value.hint


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pcap")
    with pytest.raises(CaptureError, match=r"missing\.pcap: no such file"):
        capture_points([missing])
    with pytest.raises(CaptureError, match=r"missing\.pcap: no such file"):
        list(Reader(CapturePoint("x", (missing,))))
    with pytest.raises(CaptureError, match="no capture matches this pattern"):
        capture_points([str(tmp_path / "*.pcap")])


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be read: Is a directory"):
        list(Reader(CapturePoint("x", (str(tmp_path),))))


def test_a_folder_without_captures_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none here")
    with pytest.raises(CaptureError, match="no capture in this folder"):
        capture_points([str(tmp_path)])


def test_a_capture_without_packets_is_fine(tmp_path: Path) -> None:
    reading = read_bytes(forge.pcap([]), tmp_path)
    assert (reading.rows, reading.counts["packets"]) == ([], 0)
    (note,) = reading.notes
    assert note.endswith(": holds no packet")
    assert (reading.files[0].first_ns, reading.files[0].last_ns) == (None, None)


# ------------------------------------------------------------------------------------------------------- capture points


def test_a_file_is_a_capture_point_named_by_its_basename(tmp_path: Path) -> None:
    path = capture(tmp_path / "orders.pcap")
    assert capture_points([str(path)]) == [CapturePoint("orders.pcap", (str(path),))]


def test_a_folder_is_one_capture_point_in_time_order_and_ignores_the_rest(tmp_path: Path) -> None:
    late, early = capture(tmp_path / "lab" / "a", 9), capture(tmp_path / "lab" / "b", 1)
    packed = tmp_path / "lab" / "c.log"
    packed.write_bytes(gzip.compress(capture(tmp_path / "other", 5).read_bytes()))
    empty = tmp_path / "lab" / "d.pcap"
    empty.write_bytes(forge.pcap([]))
    (tmp_path / "lab" / "requests.log.gz").write_bytes(gzip.compress(b"not a capture"))
    (tmp_path / "lab" / "README.md").write_text("not a capture either")
    capture(tmp_path / "lab" / "deeper" / "e.pcap", 0)
    [point] = capture_points([str(tmp_path / "lab") + "/"])
    assert point.name == "lab"
    assert point.paths == tuple(map(str, (early, packed, late, empty)))
    assert [note.rsplit("/", 1)[1] for note in point.notes] == [
        "README.md is not a capture",
        "requests.log.gz is not a capture",
    ]
    reading = read_point(point)
    assert [info.packets for info in reading.files] == [1, 1, 1, 0]
    assert reading.notes == [*point.notes, f"{empty}: holds no packet"]
    assert [row.time_ns for row in reading.rows] == [forge.START_NS + n * 10**9 for n in (1, 5, 9)]


def test_a_pattern_is_one_capture_point(tmp_path: Path) -> None:
    late, early = capture(tmp_path / "a.pcap", 9), capture(tmp_path / "b.pcap", 1)
    capture(tmp_path / "c.other", 2)
    pattern = str(tmp_path / "*.pcap")
    assert capture_points([pattern]) == [CapturePoint(pattern, (str(early), str(late)))]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    path = capture(tmp_path / "a[1].pcap")
    capture(tmp_path / "a1.pcap")
    assert capture_points([str(path)]) == [CapturePoint("a[1].pcap", (str(path),))]


def test_equal_names_are_as_typed_and_numbered_if_they_must(tmp_path: Path) -> None:
    first, two = capture(tmp_path / "one" / "x.pcap"), capture(tmp_path / "two" / "x.pcap")
    other = capture(tmp_path / "y.pcap")
    points = capture_points([str(first), str(two), str(other), str(first)])
    assert [point.name for point in points] == [str(first), str(two), "y.pcap", f"{first}#2"]


def test_rotated_files_are_one_capture_point(tmp_path: Path) -> None:
    late, early = capture(tmp_path / "r1.pcap", 50, 3), capture(tmp_path / "r0.pcap", 10, 2)
    [point] = capture_points([str(late), str(early), str(late)], rotated=True)
    assert point == CapturePoint("r1.pcap", (str(early), str(late)))
    reading = read_point(point)
    assert [row.number for row in reading.rows] == [1, 2, 1, 2, 3]
    assert [info.name for info in reading.files] == ["r0.pcap", "r1.pcap"]
    (tmp_path / "text").write_text("no capture")
    with pytest.raises(CaptureError, match="text: not a pcap"):
        capture_points([str(late), str(tmp_path / "text")], rotated=True)
    with pytest.raises(CaptureError, match="cannot be joined"):
        capture_points([str(late), "-"], rotated=True)


def test_stdin_can_be_named_once() -> None:
    with pytest.raises(CaptureError, match="named twice"):
        capture_points(["-", "-"])


def test_a_file_is_described_as_it_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(DATA)
    os.utime(path, ns=(1, 1_600_000_000_000_000_000))
    [info] = read(path, window_bytes=3000).files
    assert info == files.FileInfo(
        name="capture",
        path=str(path),
        size=len(DATA),
        mtime_ns=1_600_000_000_000_000_000,
        crc32c=crc32c.crc32c(DATA),
        compressed=False,
        first_ns=MANY[0].time_ns,
        last_ns=MANY[-1].time_ns,
        link_types=("ETHERNET",),
        packets=len(MANY),
    )


def test_progress_counts_bytes_of_all_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(DATA)
    reader = Reader(CapturePoint("two", tuple(map(str, paths))), window_bytes=5000)
    progress = [reader.bytes_read for _ in reader]
    assert progress == sorted(progress)
    assert reader.bytes_read == 2 * len(DATA)


def test_the_largest_packet_of_a_window_may_end_the_file(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(replace(SEGMENT, payload=b"z" * 5000)), ETHERNET)
    data = forge.pcap([Record(0, frame, len(frame))])
    for window_bytes in (len(data) - 1, len(data), len(data) + 1):
        assert read_bytes(data, tmp_path, window_bytes=window_bytes).rows == dpkt_reference.rows(data)


def test_a_reader_closed_early_lets_go_of_its_file(tmp_path: Path) -> None:
    path = capture(tmp_path / "x.pcap", count=50)
    with Reader(CapturePoint("x", (str(path),)), window_bytes=200) as reader:
        next(reader)
    assert list(reader) == []
