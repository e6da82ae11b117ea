"""Record layouts: pcapng in all its variants, clocks exact to the nanosecond, statistics, comments, secrets, damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kwire.captures import dissect
from kwire.captures.files import CaptureError, capture_points, layouts
from tests.captures import dpkt_reference, forge
from tests.captures.forge import ETHERNET, RAW, SLL2, TO_BROKER, TO_CLIENT, Write
from tests.captures.reading import read_bytes

FOUR = forge.converse([Write(TO_BROKER, bytes(range(256)) * 3), Write(TO_CLIENT, b"answer"), Write(TO_BROKER, b"odd")])
FRAMES = forge.rendered(FOUR)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def interface(link: int = ETHERNET, snaplen: int = 0, options: bytes = b"") -> bytes:
    return block(1, struct.pack("<HHI", link, 0, snaplen) + options)


def section(options: bytes = b"") -> bytes:
    return block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def enhanced(frame: bytes, which: int = 0, ticks: int = 0, options: bytes = b"") -> bytes:
    padded = frame + bytes(-len(frame) % 4)
    return block(
        6, struct.pack("<IIIII", which, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame)) + padded + options
    )


def same_as_dpkt(data: bytes, folder: Path) -> None:
    expected = dpkt_reference.rows(data)
    assert expected
    for window_bytes in (1 << 20, 64, 333):
        assert read_bytes(data, folder, window_bytes=window_bytes).rows == expected


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["enhanced", "simple", "obsolete"])
@pytest.mark.parametrize("comment", ["", "said"])
def test_blocks_in_both_byte_orders(
    big_endian: bool, kind: Literal["enhanced", "simple", "obsolete"], comment: str, tmp_path: Path
) -> None:
    same_as_dpkt(forge.pcapng(FRAMES, block=kind, big_endian=big_endian, comment=comment), tmp_path)


@pytest.mark.parametrize("resolution", [None, 0, 3, 6, 9, 0x80 | 10, 0x80 | 20, 0x80 | 30])
@pytest.mark.parametrize("offset", [0, 1_699_999_999, -5])
def test_clocks_of_interfaces(resolution: int | None, offset: int, tmp_path: Path) -> None:
    same_as_dpkt(forge.pcapng(FRAMES, resolution=resolution, offset_seconds=offset), tmp_path)


@pytest.mark.parametrize("resolution", [12, 15, 0x80 | 32, 0x80 | 40, 0x80 | 50])
def test_clocks_finer_than_a_nanosecond(resolution: int, tmp_path: Path) -> None:
    same_as_dpkt(forge.pcapng(FRAMES, resolution=resolution, offset_seconds=1_699_999_999), tmp_path)


def test_interfaces_of_different_links_and_clocks(tmp_path: Path) -> None:
    three = [forge.rendered(FOUR, link) for link in (ETHERNET, SLL2, RAW)]
    mixed = [replace(three[index % 3][index], interface=index % 3) for index in range(len(FOUR))]
    data = forge.pcapng(mixed, (ETHERNET, SLL2, RAW), resolution=9)
    same_as_dpkt(data, tmp_path)
    reading = read_bytes(data, tmp_path)
    assert {row.interface for row in reading.rows} == {0, 1, 2}
    assert reading.files[0].link_types == ("ETHERNET", "LINUX_SLL2", "RAW")


def test_several_sections_of_different_byte_orders(tmp_path: Path) -> None:
    """Interface numbers begin anew in each section; ours count on."""
    first = forge.pcapng(FRAMES, resolution=9, big_endian=True)
    two = forge.pcapng(forge.rendered(FOUR, RAW), (RAW,), resolution=6)
    three = forge.pcapng(FRAMES, block="simple")
    data = first + two + three
    same_as_dpkt(data, tmp_path)
    assert {row.interface for row in read_bytes(data, tmp_path).rows} == {0, 1, 2}


def test_an_interface_of_an_earlier_section_is_not_known_in_a_later_one(tmp_path: Path) -> None:
    frame = FRAMES[0].data
    data = section() + interface() + enhanced(frame) + section() + enhanced(frame) + interface() + enhanced(frame)
    assert read_bytes(data, tmp_path).nonzero == {"tcp": 2, "malformed": 1}


def test_simple_packets_obey_the_snap_length_and_take_the_time_before_them(tmp_path: Path) -> None:
    frame = forge.framed(forge.tcp_ip(replace(FOUR[3], payload=b"p" * 100)), ETHERNET)
    simple = block(3, struct.pack("<I", len(frame)) + frame[:60])
    data = section() + interface(snaplen=60) + enhanced(FRAMES[0].data, ticks=1_700_000_000_000_001) + simple
    reading = read_bytes(data, tmp_path)
    first, second = reading.rows
    assert first.time_ns == second.time_ns == 1_700_000_000_000_001_000
    assert (second.payload, second.payload_length) == (b"p" * 6, 100)
    assert any("1 packets carry no time" in note for note in reading.notes)


def test_comments_are_notes_that_cannot_steer_a_terminal(tmp_path: Path) -> None:
    remark = option(1, b"look \x1b[31mhere\n") + option(0, b"")
    data = (
        section(option(1, b"the capture"))
        + interface()
        + enhanced(FRAMES[0].data)
        + enhanced(FRAMES[1].data, options=option(2, bytes(4)) + remark)
    )
    notes = read_bytes(data, tmp_path).notes
    assert [note.split(": ", 1)[1] for note in notes] == [
        "capture comment: the capture",
        "comment on packet 2: look \\x1b[31mhere\\n",
    ]


def test_equal_comments_are_one_note(tmp_path: Path) -> None:
    texts = ["late"] * 30 + ["early"] + ["late"] * 30
    data = section() + interface()
    data += b"".join(enhanced(FRAMES[0].data, options=option(1, text.encode())) for text in texts)
    for window_bytes in (1 << 16, 200):
        notes = read_bytes(data, tmp_path, window_bytes=window_bytes).notes
        assert [note.split(": ", 1)[1] for note in notes] == [
            "comment on 60 packets, first on packet 1: late",
            "comment on packet 31: early",
        ]


def test_many_comments_are_counted(tmp_path: Path) -> None:
    data = (
        section()
        + interface()
        + b"".join(enhanced(FRAMES[0].data, options=option(1, str(index).encode())) for index in range(50))
    )
    for window_bytes in (1 << 16, 200):
        notes = read_bytes(data, tmp_path, window_bytes=window_bytes).notes
        assert [note.rsplit(" ", 1)[1] for note in notes[:20]] == [str(index) for index in range(20)]
        assert notes[20].endswith("30 more packet comments")


def statistics(which: int, received: int, by_interface: int, by_system: int) -> bytes:
    options = option(4, struct.pack("<Q", received)) + option(5, struct.pack("<Q", by_interface))
    return block(
        5, struct.pack("<III", which, 0, 0) + options + option(7, struct.pack("<Q", by_system)) + option(0, b"")
    )


def test_packets_that_the_capture_lost_are_counted(tmp_path: Path) -> None:
    """Statistics count from the start of the capture: the last of an interface counts, and interfaces add up."""
    frame = enhanced(FRAMES[0].data)
    data = section() + interface() + interface() + frame + statistics(0, 9, 1, 2) + frame
    data += statistics(0, 20, 3, 4) + statistics(1, 5, 10, 0) + statistics(7, 1, 1, 1)
    assert read_bytes(data, tmp_path).counts["dropped_by_capture"] == 17


def test_packets_lost_before_a_packet_are_counted_where_there_are_no_statistics(tmp_path: Path) -> None:
    data = section() + interface()
    data += enhanced(FRAMES[0].data, options=option(4, struct.pack("<Q", 5)))
    data += enhanced(FRAMES[1].data, options=option(4, struct.pack("<Q", 6)) + option(0, b""))
    obsolete = struct.pack("<HHIIII", 0, 7, 0, 0, len(FRAMES[1].data), len(FRAMES[1].data)) + FRAMES[1].data
    data += block(2, obsolete + bytes(-len(obsolete) % 4))
    assert read_bytes(data, tmp_path).counts["dropped_by_capture"] == 18


def test_tls_secrets_are_kept_and_not_told(tmp_path: Path) -> None:
    keys = b"CLIENT_RANDOM 00 11\n"
    other = block(10, struct.pack("<II", 0x57474B4C, 4) + b"wire")
    data = section() + block(10, struct.pack("<II", 0x544C534B, len(keys)) + keys) + other + interface()
    reading = read_bytes(data + enhanced(FRAMES[0].data), tmp_path)
    assert reading.secrets == [keys]
    assert "CLIENT_RANDOM" not in "".join(reading.notes)
    assert "0x57474b4c" in reading.notes[0]


def test_blocks_of_foreign_secrets_are_told_up_to_a_number_and_counted(tmp_path: Path) -> None:
    other = block(10, struct.pack("<II", 0x57474B4C, 4) + b"wire")
    reading = read_bytes(section() + interface() + other * 1000 + enhanced(FRAMES[0].data) + other, tmp_path)
    notes = [note for note in reading.notes if "decryption secrets" in note]
    assert len(notes) == layouts.MOST_FOREIGN + 1
    assert notes[-1].endswith(f"{1001 - layouts.MOST_FOREIGN} more blocks of decryption secrets were left out")


@pytest.mark.parametrize("window_bytes", [64, 200, 1 << 16])
def test_blocks_between_packets_are_read_in_runs_as_they_are_alone(window_bytes: int, tmp_path: Path) -> None:
    keys = b"CLIENT_RANDOM 00 11\n"
    secrets = block(10, struct.pack("<II", 0x544C534B, len(keys)) + keys)
    run = statistics(0, 10, 1, 0) + secrets + interface() + statistics(1, 10, 2, 1) + block(5, b"")
    data = section() + interface() + run + enhanced(FRAMES[0].data, which=1) + run + section() + interface()
    data += statistics(0, 9, 5, 0) * 50 + enhanced(FRAMES[1].data)
    reading = read_bytes(data, tmp_path, window_bytes=window_bytes)
    assert reading.nonzero == {"tcp": 2, "dropped_by_capture": 9}
    assert reading.secrets == [keys, keys]
    assert [row.record_at for row in reading.rows] == [
        data.index(enhanced(FRAMES[0].data, which=1)),
        data.index(enhanced(FRAMES[1].data)),
    ]


def test_a_run_of_blocks_is_one_call_of_the_kernel_where_packets_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """700,000 statistics blocks (`pcapng-statistics-blocks` of the hostile captures): `scrub` took 21 s."""
    calls = 0
    plain = dissect.dissect

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*arguments)

    monkeypatch.setattr(dissect, "dissect", counted)
    path = tmp_path / "capture.pcapng"
    blocks = statistics(0, 9, 5, 0) * 500 + statistics(0, 9, 6, 0) * 500
    path.write_bytes(section() + interface() + blocks + enhanced(FRAMES[0].data))
    dissector = dissect.Dissector(capture_points([str(path)], False)[0])
    rows = [row for batch in dissector for row in batch.rows.tolist()]
    assert [row[dissect.CAPTURED] for row in rows] == [len(FRAMES[0].data)]
    assert (dissector.dropped, dissector.skipped) == (6, 0)
    assert calls <= 4


def test_damage_in_a_run_of_blocks_is_told_where_it_lies(tmp_path: Path) -> None:
    good = section() + interface() + enhanced(FRAMES[0].data) + statistics(0, 9, 5, 0) * 3
    liar = bytearray(statistics(0, 9, 5, 0))
    liar[-4:] = struct.pack("<I", 8)
    reading = read_bytes(good + bytes(liar) + enhanced(FRAMES[1].data), tmp_path)
    assert reading.counts["dropped_by_capture"] == 5
    assert f"at byte {len(good)}" in "".join(reading.notes)


def test_name_resolution_and_unknown_blocks_are_skipped(tmp_path: Path) -> None:
    noise = block(4, bytes(8)) + block(0x0BAD, b"custom!!") + block(0x80000001, bytes(400))
    data = section() + noise + interface() + noise + enhanced(FRAMES[0].data) + noise
    for window_bytes in (1 << 16, 64):
        reading = read_bytes(data, tmp_path, window_bytes=window_bytes)
        assert reading.nonzero == {"tcp": 1}
        assert reading.rows[0].record_at == data.index(enhanced(FRAMES[0].data))


def test_a_packet_block_that_contradicts_itself_is_one_malformed_packet(tmp_path: Path) -> None:
    good = enhanced(FRAMES[0].data)
    liar = bytearray(good)
    liar[20:24] = struct.pack("<I", 5000)  # more captured bytes than the block holds
    short = block(6, bytes(12)) + block(2, bytes(12)) + block(3, b"")
    data = section() + interface() + bytes(liar) + short + enhanced(FRAMES[0].data, which=3) + good
    reading = read_bytes(data, tmp_path)
    assert reading.nonzero == {"tcp": 1, "malformed": 5}
    assert reading.rows[0].number == 6


GOOD = section() + interface() + enhanced(FRAMES[0].data)
DAMAGE: list[tuple[str, bytes, str]] = [
    ("lengths that differ", GOOD[:-4] + b"\0\0\0\0", "no packet can begin here"),
    ("a length of 8", GOOD + struct.pack("<II", 6, 8) + bytes(40), "no packet can begin here"),
    ("a length that is no multiple of 4", GOOD + struct.pack("<II", 6, 33) + bytes(40), "no packet can begin here"),
    ("a length of 4 GB", GOOD + struct.pack("<II", 6, 0xFFFFFFFC) + bytes(40), "no packet can begin here"),
    ("a section without byte order", GOOD + struct.pack("<II", 0x0A0D0D0A, 28) + bytes(20), "without a byte order"),
    ("a section of a later version", GOOD + section()[:12] + b"\2\0" + section()[14:], "version 2"),
    ("a section whose lengths differ", GOOD + section()[:-4] + bytes(4), "two lengths differ"),
    ("a section too short", GOOD + section()[:4] + struct.pack("<I", 24) + section()[8:], "a section header of 24"),
    ("an interface too short", GOOD + block(1, b"\1\0\0\0"), "an interface description of 16"),
]


@pytest.mark.parametrize(("what", "data", "says"), DAMAGE, ids=[row[0] for row in DAMAGE])
def test_damage_ends_the_file_with_a_note(what: str, data: bytes, says: str, tmp_path: Path) -> None:
    for window_bytes in (1 << 16, 64):
        reading = read_bytes(data + GOOD, tmp_path, window_bytes=window_bytes)
        [note] = reading.notes
        assert says in note
        assert "at byte " in note
        assert reading.counts["packets"] == (0 if what == "lengths that differ" else 1)
        assert reading.files[0].size == len(data + GOOD), "the file was read to its end for its checksum"


def test_a_pcap_record_longer_than_any_packet_ends_the_file_with_a_note(tmp_path: Path) -> None:
    data = forge.pcap(FRAMES[:2]) + struct.pack("<IIII", 1, 0, 0x7FFFFFFF, 0x7FFFFFFF) + bytes(100)
    reading = read_bytes(data, tmp_path)
    [note] = reading.notes
    assert reading.counts["packets"] == 2
    assert "damaged after packet 2, at byte " in note


def test_the_largest_record_is_an_argument(tmp_path: Path) -> None:
    assert read_bytes(forge.pcap(FRAMES), tmp_path, largest_record_bytes=100).counts["packets"] < len(FRAMES)


def test_too_many_interfaces_end_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MOST_INTERFACES", 10)
    [note] = read_bytes(section() + interface() * 11 + enhanced(FRAMES[0].data), tmp_path).notes
    assert "more than 10 interfaces" in note


def test_interfaces_of_unknown_link_types_are_left_out_with_a_note(tmp_path: Path) -> None:
    frame = FRAMES[0].data
    data = section() + interface(link=249) + interface() + enhanced(frame, 0) + enhanced(frame, 1)
    reading = read_bytes(data, tmp_path)
    assert reading.nonzero == {"tcp": 1, "unknown_link": 1}
    assert "link type 249 were left out" in reading.notes[0]
    with pytest.raises(CaptureError, match="link type 249 is not known"):
        read_bytes(section() + interface(link=249) + interface() + enhanced(frame, 0), tmp_path)


def test_an_unused_interface_of_an_unknown_link_type_is_no_matter(tmp_path: Path) -> None:
    assert read_bytes(section() + interface(link=249) + interface() + enhanced(FRAMES[0].data, 1), tmp_path).notes == []


@pytest.mark.parametrize(
    ("clock", "factor", "tick"),
    [(layouts.MULTIPLY, 10**exponent, Fraction(10**exponent)) for exponent in range(10)]
    + [(layouts.DIVIDE, 10**exponent, Fraction(1, 10**exponent)) for exponent in range(1, 19)]
    + [(layouts.BINARY, shift, Fraction(10**9, 2**shift)) for shift in range(96)],
)
def test_ticks_become_nanoseconds_exactly(clock: int, factor: int, tick: Fraction) -> None:
    function: Callable[..., int] = getattr(layouts.ticks_to_ns, "py_func", layouts.ticks_to_ns)
    rng = random.Random(factor)
    edges = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    for ticks in [*edges, *(rng.getrandbits(rng.randint(1, 64)) for _ in range(20))]:
        exact = min(floor(ticks * tick), layouts.LATEST_NS)
        high, low = np.int64(ticks >> 32), np.int64(ticks & 0xFFFFFFFF)
        if exact < layouts.LATEST_NS - 2 * 10**9:
            assert function(high, low, np.int64(clock), np.int64(factor), np.int64(-5)) == exact - 5
        else:
            late = function(high, low, np.int64(clock), np.int64(factor), np.int64(0))
            assert layouts.LATEST_NS - 2 * 10**9 <= late <= layouts.LATEST_NS


@given(st.integers(0, 2**64 - 1), st.integers(0, 255), st.integers(-(2**63), 2**63 - 1))
@example(2**63, 10, 0)  # in units of 100 picoseconds that is 1999, and today has the uppermost bit too
@example(2**63, 0x80 | 33, 0)
@example(2**64 - 1, 0x80 | 64, 0)
@example(2**63, 0, 3)
def test_no_clock_overflows(ticks: int, resolution: int, offset: int) -> None:
    """Any interface that a hostile file declares: the time fits in 64 bits, and looking ahead gives the same."""
    options = option(9, bytes([resolution])) + option(14, struct.pack("<q", offset))
    layout = layouts.Layout()
    layout.read_block(section())
    layout.read_block(interface(options=options))
    clock, factor, shift = layout.interfaces[0, layouts.CLOCK : layouts.OFFSET + 1]
    function: Callable[..., int] = getattr(layouts.ticks_to_ns, "py_func", layouts.ticks_to_ns)
    time = int(function(np.int64(ticks >> 32), np.int64(ticks & 0xFFFFFFFF), clock, factor, shift))
    assert -(2**63) <= time < 2**63
    data = section() + interface(options=options) + enhanced(FRAMES[0].data, ticks=ticks)
    ahead = layouts.first_time_ns(data)
    assert ahead is not None
    assert abs(ahead - time) <= 2 * 10**9 if ahead > layouts.LATEST_NS // 2 else ahead == time


@pytest.mark.parametrize("data", [forge.pcap(FRAMES), forge.pcap(FRAMES, big_endian=True, nanoseconds=True), GOOD])
def test_looking_ahead_finds_the_first_time(data: bytes, tmp_path: Path) -> None:
    assert layouts.first_time_ns(data) == read_bytes(data, tmp_path).rows[0].time_ns
    for size in range(4, 60):
        assert layouts.first_time_ns(data[:size]) in (None, read_bytes(data, tmp_path).rows[0].time_ns)
