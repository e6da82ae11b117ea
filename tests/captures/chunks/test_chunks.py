"""Chunks of a capture, each read from a guessed start, say together what one reader of the whole says.

`python -m tests.captures.chunks --count 5000` does the same with damaged captures.

(proves: captures/chunks)
"""

from __future__ import annotations

import gzip
import os
import pickle
import random
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import crc32c
import numpy as np
import pytest

from kwire.captures.chunks import sorting, starts
from kwire.captures.chunks.checksums import combined
from kwire.captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, chunks_of, guessed
from kwire.captures.chunks.routing import RoutedReader, check_same
from kwire.captures.chunks.sorting import StoredChunk, store
from kwire.captures.files import CaptureError, CapturePoint, capture_points, layouts, sidecar
from kwire.captures.flows import FORGET_NS, REMEMBERED
from tests.captures import forge
from tests.captures.chunks.chunking import Reading, in_chunks, whole
from tests.captures.chunks.damaging import differences_of
from tests.captures.forge import RAW, TO_BROKER, TO_CLIENT, Record, Write
from tests.captures.mutants import fragments
from tests.programs import STRICT, printed
from tests.shared import SAMPLES, capture_files, sample_folders

KIB = 1 << 10
WAYS: tuple[dict[str, Any], ...] = {"_COPIED": 0}, {"_COPIED": 1 << 40}
"""Bytes are copied, and stay in the capture, however little that saves."""


def _records(packets: int = 400, size: int = 700) -> list[Record]:
    rng = random.Random(7)
    writes = [Write(bool(n % 2), rng.randbytes(rng.randint(1, size))) for n in range(packets // 2)]
    return forge.rendered(forge.converse(writes, mss=300))


def _compared(
    data: bytes | list[bytes], folder: Path, chunk_bytes: int = 8 * KIB, look_bytes: int = 2 * KIB
) -> Reading:
    """Read files in chunks, check that the whole reads the same, and return the result."""
    paths = []
    for number, content in enumerate([data] if isinstance(data, bytes) else data):
        path = folder / f"{number}.capture"
        path.write_bytes(content)
        paths.append(str(path))
    point = CapturePoint("point", tuple(paths))
    expected = whole(point)
    assert not expected.problem
    for how in WAYS:
        with tempfile.TemporaryDirectory(dir=folder) as parts, mock.patch.multiple(sorting, **how):
            reading = in_chunks(point, chunk_bytes, 3, Path(parts), look_bytes)
        assert reading.differences(expected) == []
    return reading


def _inside(data: bytes, piece: int) -> list[Record]:
    """Packets whose payload is a capture file, in pieces of so many bytes."""
    return forge.rendered(
        forge.converse([Write(TO_BROKER, data)], mss=piece, acks=False, start_ns=forge.START_NS + 10**9)
    )


def test_what_stands_beside_a_capture_is_said_where_its_path_is_relative(tmp_path: Path) -> None:
    data = forge.pcap(_records())
    (tmp_path / "a.pcap").write_bytes(data)
    sidecar.write(str(tmp_path / "a.pcap"), b'{"dropped": 7, "sample": "1/4", "no_payload": true}')
    point = CapturePoint("point", ("a.pcap",), folder=str(tmp_path))
    expected = whole(point)
    assert expected.counts["dropped_by_capture"] == 7
    assert sum("(--sample)" in note or "(--no-payload)" in note for note in expected.notes) == 2
    (parts := tmp_path / "parts").mkdir()
    assert in_chunks(point, 8 * KIB, 3, parts, 2 * KIB).differences(expected) == []


# --- what packets there are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_every_sample_in_chunks_of_64_kib(folder: Path, tmp_path: Path) -> None:
    for capture in capture_files(folder):
        data = capture.read_bytes()
        reading = _compared(gzip.decompress(data) if capture.suffix == ".gz" else data, tmp_path, 64 * KIB, 16 * KIB)
        assert reading.again == 0


@pytest.mark.parametrize("nanoseconds", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
def test_pcap_of_each_kind(nanoseconds: bool, big_endian: bool, tmp_path: Path) -> None:
    data = forge.pcap(_records(), nanoseconds=nanoseconds, big_endian=big_endian)
    reading = _compared(data, tmp_path)
    assert reading.guesses > 5
    assert reading.again == 0


@pytest.mark.parametrize("big_endian", [False, True])
def test_pcapng(big_endian: bool, tmp_path: Path) -> None:
    records = [replace(record, interface=number % 2) for number, record in enumerate(_records())]
    reading = _compared(forge.pcapng(records, (forge.ETHERNET, forge.ETHERNET), big_endian=big_endian), tmp_path)
    assert reading.guesses > 5
    assert reading.again == 0


def test_what_says_more_than_packets_is_read_again(tmp_path: Path) -> None:
    records = _records()
    commented = _compared(forge.pcapng(records, comment="a comment"), tmp_path)
    assert commented.again == commented.guesses
    untimed = _compared(forge.pcapng(records, block="simple"), tmp_path)
    assert untimed.again == untimed.guesses
    sections = forge.pcapng(records[:200]) + forge.pcapng(records[200:], resolution=6, big_endian=True)
    changed = _compared(sections, tmp_path)
    assert 0 < changed.again < changed.guesses


def test_a_capture_that_ends_in_a_packet_is_read_again_there(tmp_path: Path) -> None:
    reading = _compared(forge.pcap(_records())[:-11], tmp_path)
    assert reading.again == 1
    assert "ends in the middle of packet" in reading.notes[0]


def test_damage_ends_a_file_and_the_next_one_is_read(tmp_path: Path) -> None:
    data = bytearray(forge.pcap(_records()))
    at = 24
    while at < len(data) // 2:
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    struct.pack_into("<I", data, at + 8, 0xFFFFFFFF)
    reading = _compared([bytes(data), forge.pcap(_records(100))], tmp_path)
    assert "damaged after packet" in reading.notes[0]
    assert len(reading.files) == 2
    assert reading.files[0].crc32c == crc32c.crc32c(bytes(data))


def test_a_record_longer_than_chunks(tmp_path: Path) -> None:
    records = _records()
    long = Record(records[200].time_ns, bytes(40 * KIB), 40 * KIB)
    reading = _compared(forge.pcap([*records[:200], long, *records[200:]]), tmp_path)
    assert reading.guesses > 10


def test_fragments_of_ip_packets_go_over_borders(tmp_path: Path) -> None:
    segments = forge.converse([Write(bool(n % 2), bytes([n]) * 900) for n in range(30)])
    pieces = [
        Record(segment.time_ns, piece, len(piece))
        for number, segment in enumerate(segments)
        for piece in fragments(forge.tcp_ip(segment), number & 0xFFFF, 256)
    ]
    reading = _compared([forge.pcap(pieces[:90], RAW), forge.pcap(pieces[90:], RAW)], tmp_path)
    assert reading.again > 1
    assert reading.counts["reassembled"] > 30


def test_what_a_task_says_of_fragments_is_no_larger_than_what_waits(tmp_path: Path) -> None:
    """Of every chunk that met one the driver gets it."""
    [segment, *_] = forge.converse([Write(TO_BROKER, bytes(2_000))], handshake=False, mss=2_000)
    pieces = [fragments(forge.tcp_ip(segment), number, 512) for number in range(200)]
    pieces[-1].pop()
    path = tmp_path / "fragments.pcap"
    path.write_bytes(
        forge.pcap([Record(0, packet_piece, len(packet_piece)) for packet in pieces for packet_piece in packet], RAW)
    )
    [chunk] = chunks_of(CapturePoint("point", (str(path),)), 1 << 30)
    reader = ChunkReader(chunk, None, 1 << 16)
    result, _ = store(reader, 2, 1, tmp_path / "stored")
    assert 1_500 < len(pickle.dumps(result)) < 64 * KIB


def test_keys_of_tls_keep_their_places(tmp_path: Path) -> None:
    records = _records()
    data = forge.pcapng(records[:250]) + _secrets(b"CLIENT_RANDOM 00 11\n")
    head = len(forge.pcapng([]))
    reading = _compared(data + forge.pcapng(records[250:])[head:], tmp_path)
    assert reading.secrets == [(250, b"CLIENT_RANDOM 00 11\n")]
    assert reading.again >= 1


def _secrets(keys: bytes) -> bytes:
    body = struct.pack("<II", layouts.TLS_KEY_LOG, len(keys)) + keys + bytes(-len(keys) % 4)
    size = 12 + len(body)
    return struct.pack("<II", layouts.DECRYPTION_SECRETS, size) + body + struct.pack("<I", size)


def test_compressed_captures_are_one_chunk_and_several_files_are_in_order(tmp_path: Path) -> None:
    records = _records()
    packed = gzip.compress(forge.pcap(records[:200]))
    reading = _compared([packed, forge.pcap(records[200:])], tmp_path)
    assert [info.compressed for info in reading.files] == [True, False]
    assert reading.again == 0


def test_a_file_that_grew_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grows.pcap"
    path.write_bytes(forge.pcap(_records()))
    [*_, last] = chunks_of(CapturePoint("point", (str(path),)), 8 * KIB)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(CaptureError, match="it changed while it was read") as raised:
        list(ChunkReader(last))
    assert raised.value.hint


def test_bytes_that_stay_in_the_capture_are_not_stored_and_are_of_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    writes = [Write(TO_BROKER, bytes(10_000)) for _ in range(100)]
    path.write_bytes(forge.pcap(forge.rendered(forge.converse(writes, mss=9_000))))
    point = CapturePoint("point", (str(path),))
    joining, stored = ChunkJoiner(point), []
    for number, chunk in enumerate(chunks_of(point, path.stat().st_size // 3)):
        result, sorted_chunk = store(ChunkReader(chunk), 3, 3, tmp_path / str(number))
        joining.take(chunk, result)
        stored.append(sorted_chunk)
    assert len(stored) == 3
    assert sum(sorted_file.size for sorted_file in stored) < 20_000
    check_same(point, joining.summary().files)
    os.utime(path, ns=(0, 0))
    with pytest.raises(CaptureError, match="it changed while it was read"):
        check_same(point, joining.summary().files)
    readers = [RoutedReader(point, joining.summary(), stored, [share]) for share in range(3)]
    with pytest.raises(CaptureError, match="it changed while it was read"):
        [list(reader) for reader in readers]


def _stored(pairs: int, first_ns: int, last_ns: int, *work: int) -> StoredChunk:
    return StoredChunk("", 0, 0, 0, pairs, first_ns, last_ns, np.array(work, np.int64))


def test_shares_see_all_where_four_tuples_may_be_forgotten() -> None:
    """Many, and in a long time."""
    few, many, hour = REMEMBERED // 2, REMEMBERED // 2 + 1, FORGET_NS
    assert sorting.apart([_stored(few, 0, 5), _stored(few, hour, hour + 1)])
    assert sorting.apart([_stored(many, 0, 5), _stored(many, 6, hour), _stored(0, 1 << 62, -(1 << 62))])
    assert not sorting.apart([_stored(many, 0, 5), _stored(many, hour, hour + 1)])
    assert sorting.apart([])


def test_four_tuples_of_a_chunk_are_counted_and_shares_have_as_much_to_do(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(900):
        client = (f"10.0.{number >> 8}.{number & 255}", 40_000)
        writes = [Write(TO_BROKER, bytes(200)) for _ in range(1 + number % 7)]
        isn = number * 1_000_000  # as of real systems: with equal ones they might be legs of one connection
        conversation = forge.converse(
            writes, client=client, start_ns=forge.START_NS + number * 1000, client_isn=isn, broker_isn=isn + 500_000
        )
        records += forge.rendered(conversation)
    path = tmp_path / "capture.pcap"
    path.write_bytes(forge.pcap(records))
    [chunk] = chunks_of(CapturePoint("point", (str(path),)), 1 << 30)
    _, sorted_chunk = store(ChunkReader(chunk), 12, 3, tmp_path / "stored")
    assert sorted_chunk.pairs == 900
    assert (sorted_chunk.first_ns, sorted_chunk.last_ns) == (
        min(record.time_ns for record in records),
        max(record.time_ns for record in records),
    )
    groups = sorting.divided([sorted_chunk, sorted_chunk], 3)
    assert sorted(group for some in groups for group in some) == list(range(12))
    loads = [int(sorted_chunk.work[list(some)].sum()) for some in groups]
    assert max(loads) < 1.1 * min(loads)
    assert sorting.divided([_stored(1, 0, 0, 5, 0, 0, 0)], 2) == [(0,), (1, 2, 3)]


def test_windows_whose_bytes_stay_are_one_batch_until_it_holds_much(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(forge.pcap(_records(2000, 250)))
    first, _ = chunks_of(CapturePoint("point", (str(path),)), path.stat().st_size // 2)

    def batches(**how: Any) -> int:
        into = tmp_path / "stored"
        with mock.patch.multiple(sorting, **how):
            store(ChunkReader(first, None, 8 * KIB), 4, 2, into)
        count, _ = struct.unpack("<2q", into.read_bytes()[-16:])
        into.unlink()
        return int(count)

    windows = -(-path.stat().st_size // 2 // (8 * KIB))
    assert windows > 9
    assert batches(_COPIED=1 << 40) == 1
    assert batches(_COPIED=0) >= windows
    assert batches(_COPIED=1 << 40, _HELD_BYTES=32 * KIB) == -(-windows // 4)
    assert batches(_COPIED=1 << 40, _HELD_PACKETS=1) >= windows


@pytest.mark.parametrize("data", [b"", b"\xd4\xc3\xb2\xa1", b"no capture at all" * KIB])
def test_what_is_no_capture_is_refused_as_by_a_reader(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    point = CapturePoint("point", (str(path),))
    assert whole(point).problem
    assert in_chunks(point, 4 * KIB, 2, tmp_path).problem == whole(point).problem


# --- where chunks begin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1400, 60_000])
@pytest.mark.parametrize("inner", ["pcap", "pcapng"])
@pytest.mark.parametrize("outer", ["pcap", "pcapng"])
def test_captures_inside_packets_fool_nobody(outer: str, inner: str, piece: int, tmp_path: Path) -> None:
    content: dict[str, Any] = {"pcap": forge.pcap, "pcapng": forge.pcapng}
    records = _inside(content[inner](_records(1000)), piece)
    data = content[outer]([*_records(20), *records])
    path = tmp_path / "outer"
    path.write_bytes(data)
    _compared(data, tmp_path, 50 * KIB, 128 * KIB)


def test_a_payload_made_to_fool_costs_time_and_no_rows(tmp_path: Path) -> None:
    """Records inside payload that jump over the true headers: their chain never breaks."""
    size, jump = 1000, 16 + 54
    second = forge.START_NS // 10**9
    fake = struct.pack("<IIII", second, 0, 84, 84) + bytes(84)
    payload = fake * 9 + struct.pack("<IIII", second, 0, 84 + jump, 84 + jump) + bytes(84)
    assert len(payload) == size
    records = forge.rendered(forge.converse([Write(TO_CLIENT, payload * 100)], mss=size, acks=False))
    reading = _compared(forge.pcap(records), tmp_path)
    assert reading.again > 0


def test_guesses_are_right_at_every_border(tmp_path: Path) -> None:
    [capture] = capture_files(SAMPLES / "sasl-librdkafka-4.3")
    data = capture.read_bytes()
    places, at = [], layouts.PCAP_HEADER_BYTES
    while at < len(data):
        places.append(at)
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    form = starts.begun(data[: 64 * KIB], layouts.LARGEST_RECORD_BYTES)
    assert form is not None
    content = np.frombuffer(data, np.uint8)
    for border in range(30_000, 90_000, 997):
        base = border - 8 * KIB
        position = starts.first_record(content[base : border + 32 * KIB], border - base, form[1])
        assert position is not None
        assert base + position == next(place for place in places if place >= border)


def test_where_no_start_is_to_be_found_the_chunk_is_read_again(tmp_path: Path) -> None:
    records = [
        Record(record.time_ns + n % 2 * 10**18, record.data, len(record.data)) for n, record in enumerate(_records())
    ]
    reading = _compared(forge.pcap(records), tmp_path)  # every other packet was captured thirty years later
    assert reading.again == reading.guesses > 0
    path = tmp_path / "0.capture"
    chunk = chunks_of(CapturePoint("point", (str(path),)), 8 * KIB)[1]
    assert guessed(chunk, 2 * KIB, 8 * KIB) is None


def test_damaged_captures_in_chunks(tmp_path: Path) -> None:
    assert differences_of(range(int(os.environ.get("KWIRE_CHUNKED", "24"))), tmp_path) == []


def test_chunks_need_no_compiler(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests.captures.chunks.damaging import differences_of;"
        f"print(differences_of(range(12), Path({str(tmp_path)!r})))"
    )
    assert printed(code, *STRICT, NUMBA_DISABLE_JIT="1") == "[]\n"


def test_checksums_are_joined() -> None:
    rng = random.Random(1)
    for size, more in ((0, 0), (0, 5), (7, 0), (1, 1), (1000, 3), (3, 70_001)):
        record, other = rng.randbytes(size), rng.randbytes(more)
        assert combined(crc32c.crc32c(record), crc32c.crc32c(other), more) == crc32c.crc32c(record + other)


def test_capture_points_name_what_is_divided(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(forge.pcap(_records()))
    [point] = capture_points([str(path)])
    size = path.stat().st_size
    chunks = chunks_of(point, 8 * KIB)
    assert [(record.begin, record.last) for record in chunks] == [
        (n * 8 * KIB, n == len(chunks) - 1) for n in range(len(chunks))
    ]
    assert chunks[-1].end == size
    assert chunks_of(point, size) == [replace(chunks[0], end=None, last=True, size=0)]
