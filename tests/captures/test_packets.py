"""Packets by the kernel equal packets by dpkt, on real captures and on forged ones; no window size changes a row; and
no byte of a hostile file makes anything but an error message."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kwire.captures.files import CapturePoint
from kwire.captures.packets import Reader
from tests.captures import dpkt_reference, forge
from tests.captures.forge import ETHERNET, IPV4, IPV6, LOOP, NULL, RAW, SLL, SLL2, TO_BROKER, TO_CLIENT, Record, Write
from tests.captures.reading import read, read_bytes
from tests.shared import ROOT, capture_files, sample_folders, shared_folder, shared_folders

WRITES = [
    Write(TO_BROKER, bytes(range(256)) * 10),
    Write(TO_CLIENT, b"answer"),
    Write(TO_CLIENT, b"x" * 5000),
]
FOUR = forge.converse(WRITES)
SIX = forge.converse(WRITES, client=("2001:db8::1", 40000), broker=("2001:db8::ffff:2", 9092))
LAST = replace(FOUR[3], payload=b"payload!")  # one data segment, to dress up


def record(data: bytes, cut: int = 0) -> Record:
    return Record(LAST.time_ns, data[: len(data) - cut], len(data))


def same_as_dpkt(data: bytes, folder: Path) -> None:
    """The kernel's rows of a capture are dpkt's, whatever the window."""
    expected = dpkt_reference.rows(data)
    assert expected, "the capture holds TCP packets"
    for window_bytes in (1 << 20, 256, 1000):
        assert read_bytes(data, folder, window_bytes=window_bytes).rows == expected


# ------------------------------------------------------------------------------------------------------- real captures


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_rows_of_a_sample_are_those_of_dpkt(folder: Path) -> None:
    for path in capture_files(folder):
        reading = read(path)
        assert reading.rows == dpkt_reference.rows(dpkt_reference.stored(path))
        assert reading.rows == read(path, window_bytes=4096).rows


SHARED_NAMES = [folder.name for folder in shared_folders()] or ["(all)"]


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_rows_of_a_shared_capture_are_those_of_dpkt(name: str) -> None:
    folder = shared_folder(name)
    for path in capture_files(folder):
        reading = read(path)
        data = dpkt_reference.stored(path)
        assert reading.counts["packets"] == len(dpkt_reference.captured(data))
        assert reading.rows == dpkt_reference.rows(data)
        assert reading.rows == read(path, window_bytes=65536).rows
        assert json.loads((folder / "truth.json").read_text()), "the capture has its passport"


# ------------------------------------------------------------------------------------------------------ forged captures


@pytest.mark.parametrize("link", [NULL, ETHERNET, RAW, LOOP, SLL, SLL2])
@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_every_link_type(link: int, segments: list[forge.Segment], tmp_path: Path) -> None:
    same_as_dpkt(forge.pcap(forge.rendered(segments, link), link), tmp_path)


@pytest.mark.parametrize(("link", "segments"), [(IPV4, FOUR), (IPV6, SIX)], ids=["228", "229"])
def test_raw_links_of_one_ip_version(link: int, segments: list[forge.Segment], tmp_path: Path) -> None:
    same_as_dpkt(forge.pcap(forge.rendered(segments, link), link), tmp_path)


@pytest.mark.parametrize("link", [12, 14])
def test_raw_links_under_their_old_numbers(link: int, tmp_path: Path) -> None:
    frames = forge.rendered(FOUR, RAW)
    assert read_bytes(forge.pcap(frames, link), tmp_path).rows == dpkt_reference.rows(forge.pcap(frames, RAW))


@pytest.mark.parametrize("tags", [[(0x8100, 42)], [(0x88A8, 7), (0x8100, 42)], [(0x8100, 1), (0x8100, 4095)]])
def test_vlan_tags(tags: list[tuple[int, int]], tmp_path: Path) -> None:
    same_as_dpkt(forge.pcap(forge.rendered(FOUR, vlans=tags)), tmp_path)
    same_as_dpkt(forge.pcap(forge.rendered(SIX, vlans=tags)), tmp_path)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_byte_orders_and_resolutions(big_endian: bool, nanoseconds: bool, tmp_path: Path) -> None:
    segments = [replace(segment, time_ns=segment.time_ns + 123_456_789) for segment in FOUR]
    data = forge.pcap(forge.rendered(segments), nanoseconds=nanoseconds, big_endian=big_endian)
    same_as_dpkt(data, tmp_path)
    times = [row.time_ns for row in read_bytes(data, tmp_path).rows]
    assert times == [segment.time_ns if nanoseconds else segment.time_ns // 1000 * 1000 for segment in segments]


def test_pcap_with_longer_record_headers(tmp_path: Path) -> None:
    """The "modified" pcap of patched Linux libpcaps has 8 bytes more in each record header."""
    frames = forge.rendered(FOUR)
    data = bytearray(forge.pcap(frames[:0]))
    data[:4] = struct.pack("<I", 0xA1B2CD34)
    for frame in frames:
        seconds, rest = divmod(frame.time_ns, 10**9)
        data += struct.pack("<IIIIIHBB", seconds, rest // 1000, len(frame.data), frame.wire_length, 3, 0x800, 0, 0)
        data += frame.data
    expected = [replace(row, record_at=0) for row in dpkt_reference.rows(forge.pcap(frames))]
    assert [replace(row, record_at=0) for row in read_bytes(bytes(data), tmp_path).rows] == expected


def test_ethernet_padding_is_never_payload(tmp_path: Path) -> None:
    ack = replace(LAST, payload=b"", flags=forge.ACK)
    frame = forge.framed(forge.tcp_ip(ack), ETHERNET)
    assert len(frame) == 60, "padded, with bytes that are not zero"
    [row] = read_bytes(forge.pcap([record(frame)]), tmp_path).rows
    assert (row.payload, row.payload_length) == (b"", 0)


def test_a_checksum_behind_the_ip_packet_is_no_payload(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(LAST), ETHERNET, pad=False) + b"\x01\x02\x03\x04"
    [row] = read_bytes(forge.pcap([record(frame)]), tmp_path).rows
    assert (row.payload, row.payload_length) == (b"payload!", 8)


def test_ip_and_tcp_options(tmp_path: Path) -> None:
    packet = forge.tcp_ip(LAST, ip_options=b"\x94\x04\0\0" * 10, tcp_options=b"\x01" * 40)
    same_as_dpkt(forge.pcap([record(forge.framed(packet, ETHERNET))]), tmp_path)


def test_ipv6_extension_headers(tmp_path: Path) -> None:
    headers = [(0, bytes(8)), (60, bytes(16)), (43, bytes(24))]
    packet = forge.tcp_ip(replace(SIX[3], payload=b"behind extensions"), extension_headers=headers)
    data = forge.pcap([record(forge.framed(packet, ETHERNET))])
    same_as_dpkt(data, tmp_path)
    assert read_bytes(data, tmp_path).rows[0].payload == b"behind extensions"


def authenticated(packet: bytes, words: int) -> bytes:
    """An IPv6 packet with an authentication header (RFC 4302) of `words` * 4 bytes put in front of TCP."""
    header = bytes([packet[6], words - 2]) + bytes(words * 4 - 2)
    size = struct.unpack_from(">H", packet, 4)[0] + len(header)
    return packet[:4] + struct.pack(">HB", size, 51) + packet[7:40] + header + packet[40:]


def test_ipv6_authentication_header(tmp_path: Path) -> None:
    packet = authenticated(forge.tcp_ip(replace(SIX[3], payload=b"signed")), 6)
    [row] = read_bytes(forge.pcap([record(packet)], RAW), tmp_path).rows
    assert row.payload == b"signed"


def test_mobility_header_is_stepped_over(tmp_path: Path) -> None:
    packet = forge.tcp_ip(replace(SIX[3], payload=b"roaming"), extension_headers=[(135, bytes(16))])
    [row] = read_bytes(forge.pcap([record(packet)], RAW), tmp_path).rows
    assert row.payload == b"roaming"


@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_segmentation_offload_leaves_the_ip_length_empty(segments: list[forge.Segment], tmp_path: Path) -> None:
    big = replace(segments[3], payload=bytes(range(256)) * 400)  # 102,400 bytes: more than an IP length can say
    frame = forge.framed(forge.tcp_ip(big, zero_length=True), ETHERNET)
    same_as_dpkt(forge.pcap([record(frame)]), tmp_path)
    [row] = read_bytes(forge.pcap([record(frame)]), tmp_path).rows
    assert (row.payload, row.payload_length) == (big.payload, len(big.payload))
    [cut] = read_bytes(forge.pcap([record(frame, cut=1000)]), tmp_path).rows
    assert (len(cut.payload), cut.payload_length) == (len(big.payload) - 1000, len(big.payload))


def test_packets_larger_than_the_mtu_are_ordinary(tmp_path: Path) -> None:
    packet = forge.tcp_ip(replace(LAST, payload=b"z" * 60_000))
    same_as_dpkt(forge.pcap([record(forge.framed(packet, ETHERNET))]), tmp_path)


def test_a_snap_length_cuts_payload_then_options_then_headers(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(LAST, tcp_options=b"\x01" * 12), ETHERNET, pad=False)
    headers = 14 + 20 + 20 + 12
    for size in range(len(frame)):
        reading = read_bytes(forge.pcap([record(frame, cut=len(frame) - size)]), tmp_path)
        if size < 14 + 20 + 20:
            assert reading.nonzero == {"headers_cut": 1}, size
        else:
            [row] = reading.rows
            assert row.payload == frame[headers:size]
            assert row.payload_length == 8
            assert row.seq == LAST.sequence


def test_frames_that_were_never_longer_are_malformed(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(LAST), ETHERNET, pad=False)
    for size in range(14 + 20 + 20):
        short = Record(LAST.time_ns, frame[:size], size)
        assert read_bytes(forge.pcap([short]), tmp_path).nonzero == {"malformed": 1}, size


def spoiled(packet: bytes, at: int, value: int) -> bytes:
    return packet[:at] + bytes([value]) + packet[at + 1 :]


@pytest.mark.parametrize(
    ("what", "at", "value", "becomes"),
    [
        ("IP version 5", 0, 0x55, "malformed"),
        ("IP header of 16 bytes", 0, 0x44, "malformed"),
        ("IP length below its header's", 3, 19, "malformed"),
        ("IP length that cuts the TCP header", 3, 39, "malformed"),
        ("TCP header of 16 bytes", 32, 0x40, "malformed"),
        ("TCP header past the IP packet's end", 32, 0xF0, "malformed"),
        ("more fragments to follow, of a length not in 8s", 6, 0x20, "malformed"),
        ("a last fragment", 7, 0x01, "fragment"),
        ("UDP", 9, 17, "not_tcp"),
        ("GRE of nothing that is known", 9, 47, "not_ip"),
    ],
)
def test_what_gives_no_row_is_counted(what: str, at: int, value: int, becomes: str, tmp_path: Path) -> None:
    packet = forge.tcp_ip(LAST)
    packet = packet[:2] + struct.pack(">H", len(packet)) + packet[4:]
    reading = read_bytes(forge.pcap([record(spoiled(packet, at, value))], RAW), tmp_path)
    assert reading.nonzero == {becomes: 1}, what


def fragment_header(offset: int, more: int) -> bytes:
    return struct.pack(">BBHI", 0, 0, offset << 3 | more, 77)


@pytest.mark.parametrize(("offset", "more", "becomes"), [(0, 0, "tcp"), (0, 1, "fragment"), (9, 0, "fragment")])
def test_ipv6_fragments(offset: int, more: int, becomes: str, tmp_path: Path) -> None:
    """A fragment header on a whole packet is legal (RFC 6946): it is a packet like any other."""
    segment = replace(SIX[3], payload=b"twelve bytes")  # 32 with TCP's header: fragments come in eights
    packet = forge.tcp_ip(segment, extension_headers=[(44, fragment_header(offset, more))])
    assert read_bytes(forge.pcap([record(packet)], RAW), tmp_path).nonzero == {becomes: 1}


def test_ipv6_extension_headers_past_the_packet_are_malformed(tmp_path: Path) -> None:
    packet = forge.tcp_ip(SIX[3], extension_headers=[(60, bytes(8))])
    assert read_bytes(forge.pcap([record(spoiled(packet, 41, 255))], RAW), tmp_path).nonzero == {"malformed": 1}


def test_an_ip_packet_longer_than_its_frame_lacks_bytes(tmp_path: Path) -> None:
    packet = forge.tcp_ip(LAST)
    [row] = read_bytes(forge.pcap([record(packet[:-3])], RAW), tmp_path).rows
    assert (row.payload, row.payload_length) == (b"paylo", 8)


def test_a_wire_length_below_the_captured_one_is_not_believed(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(LAST, zero_length=True), ETHERNET, pad=False)
    [row] = read_bytes(forge.pcap([Record(0, frame, 0)]), tmp_path).rows
    assert (row.payload, row.payload_length) == (b"payload!", 8)


def test_timestamps_may_step_back(tmp_path: Path) -> None:
    records = forge.stepped(forge.rendered(FOUR), 2, -(10**9))
    reading = read_bytes(forge.pcap(records, nanoseconds=True), tmp_path)
    times = [row.time_ns for row in reading.rows]
    assert times == [record.time_ns for record in records] != sorted(times)
    assert (reading.files[0].first_ns, reading.files[0].last_ns) == (min(times), max(times))


# -------------------------------------------------------------------------------------------------------------- windows


def test_window_boundaries_everywhere_change_nothing(tmp_path: Path) -> None:
    """A capture of mixed record sizes, read with every window size up to twice its largest record."""
    segments = forge.resegmented(FOUR, random.Random(3), 90)[:14]
    data = forge.pcap(forge.rendered(segments))
    expected = dpkt_reference.rows(data)
    for window_bytes in range(24, 360):
        assert read_bytes(data, tmp_path, window_bytes=window_bytes).rows == expected, window_bytes


def test_a_record_larger_than_the_window_grows_it(tmp_path: Path) -> None:
    big = forge.framed(forge.tcp_ip(replace(LAST, payload=b"z" * 60_000)), ETHERNET)
    data = forge.pcap([*forge.rendered(FOUR), record(big), *forge.rendered(FOUR)])
    reading = read_bytes(data, tmp_path, window_bytes=1000)
    assert reading.rows == dpkt_reference.rows(data)
    assert reading.batches > 5


def test_released_memory_is_used_again_and_kept_batches_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(forge.pcap(forge.rendered(FOUR * 50)))
    point = CapturePoint("capture", (str(path),))
    seen = set()
    for batch in Reader(point, window_bytes=4096):
        seen.add(batch.buffer.ctypes.data)
        batch.release()
        batch.release()  # a second release is harmless
    assert len(seen) == 1
    batches = list(Reader(point, window_bytes=4096))
    assert len({batch.buffer.ctypes.data for batch in batches}) == len(batches)
    assert np.concatenate([batch.columns.number for batch in batches]).tolist() == list(range(1, len(FOUR) * 50 + 1))


def test_every_cut_of_a_file_ends_with_a_note(tmp_path: Path) -> None:
    records = forge.rendered(FOUR[:3])
    data = forge.pcap(records)
    ends = [24]
    for record in records:
        ends.append(ends[-1] + 16 + len(record.data))
    for size in range(24, len(data) + 1):
        reading = read_bytes(data[:size], tmp_path)
        whole = sum(end <= size for end in ends) - 1
        assert reading.counts["packets"] == whole
        if size == ends[0]:
            assert [note.rpartition(": ")[2] for note in reading.notes] == ["holds no packet"]
        elif size in ends:
            assert reading.notes == []
        else:
            [note] = reading.notes
            assert f"in the middle of packet {whole + 1}, at byte {ends[whole]}:" in note
            assert f"{size - ends[whole]} bytes of it" in note


# -------------------------------------------------------------------------------------------------------------- hostile

MUTANTS = ROOT / "tests" / "captures" / "mutants.py"


def run_mutants(folder: Path, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(MUTANTS), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_corrupt_captures_give_no_exception_but_capture_errors(tmp_path: Path) -> None:
    """Seeded random damage, with every array access of the kernels checked."""
    output = run_mutants(tmp_path, NUMBA_BOUNDSCHECK="1")
    assert output.startswith("600 captures")
    assert "(0 without a hint)" in output


def test_kernels_give_the_same_without_the_compiler(tmp_path: Path) -> None:
    """Plain Python overflows and wraps in other places: the same damage must come out the same, warnings are errors."""
    few = {"KWIRE_MUTANTS": "60"}
    compiled = run_mutants(tmp_path, **few)
    assert compiled.startswith("60 captures")
    assert compiled == run_mutants(tmp_path, NUMBA_DISABLE_JIT="1", **few)


def test_gzip_damage_is_a_note_with_what_was_read(tmp_path: Path) -> None:
    rng = random.Random(5)
    packets = [replace(LAST, payload=rng.randbytes(1000)) for _ in range(300)]
    packed = gzip.compress(forge.pcap(forge.rendered(packets)))
    reading = read_bytes(packed[: len(packed) // 2], tmp_path)
    assert 0 < reading.counts["packets"] < 300
    assert "gzip data is cut off" in reading.notes[0]
