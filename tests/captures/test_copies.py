"""Packets seen twice, and copies of bytes that differ: what is a copy, what was sent again, and whose bytes win."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from kwire.captures import segment_sums, stream_tables
from kwire.captures.files import CapturePoint
from kwire.captures.flows import Flows
from kwire.captures.kernels import with_numba
from kwire.captures.packets import Reader, no_packets
from kwire.captures.streams import Streams
from tests.captures import forge
from tests.captures.forge import TO_BROKER, TO_CLIENT, Record, Segment, Write

MS = 1_000_000
WRITES = [Write(TO_BROKER, b"request " * 300), Write(TO_CLIENT, b"answer"), Write(TO_BROKER, b"again")] * 3
FOUR = forge.converse(WRITES)
SIX = forge.converse(WRITES, client=("2001:db8::1", 40000), broker=("2001:db8::2", 9092))


@dataclass
class Seen:
    """Bytes and counters of a capture of one connection."""

    bytes: dict[int, bytes] = field(default_factory=lambda: {0: b"", 1: b""})
    packets: int = 0
    duplicates: int = 0
    retransmissions: int = 0
    out_of_order: int = 0
    conflicts: int = 0
    duplicate_bytes: int = 0
    zero_windows: int = 0
    rtt_ns: int = -1


def see(folder: Path, data: bytes, window_bytes: int = 1 << 20, gaps: bool = False) -> Seen:
    path = folder / "forged"
    path.write_bytes(data)
    reader, flows, stage, seen, base = (
        Reader(CapturePoint("x", (str(path),)), window_bytes),
        Flows(),
        Streams(),
        Seen(),
        0,
    )
    last = no_packets()
    for packets in [*reader, last]:
        assigned = flows.all_end() if packets is last else flows.assign(packets)
        segments = stage.advance(packets, assigned, base, flows.slots)
        for row in segments.rows:
            if row[stream_tables.SEG_KIND] == stream_tables.DATA:
                at, length = int(row[stream_tables.SEG_AT]), int(row[stream_tables.SEG_LENGTH])
                part = segments.sources[int(row[stream_tables.SEG_SOURCE])][at : at + length]
                seen.bytes[int(row[stream_tables.SEG_KEY]) & 1] += part.tobytes()
            else:
                assert gaps or row[stream_tables.SEG_KIND] not in (stream_tables.GAP, stream_tables.SNAPLEN)
        base += len(packets)
    assert flows.slots == 1
    d = stage.directions[:2].sum(axis=0)
    seen.packets = int(d[stream_tables.D_PACKETS])
    seen.duplicates = int(d[stream_tables.D_DUPLICATE_PACKETS])
    seen.retransmissions = int(d[stream_tables.D_RETRANSMISSIONS])
    seen.out_of_order = int(d[stream_tables.D_OUT_OF_ORDER])
    seen.conflicts = int(d[stream_tables.D_CONFLICTS])
    seen.duplicate_bytes = int(d[stream_tables.D_DUPLICATE])
    seen.zero_windows = int(d[stream_tables.D_ZERO_WINDOWS])
    seen.rtt_ns = int(stage.connections[0, stream_tables.C_RTT_NS])
    return seen


def twice(records: Sequence[Record], delay_ns: int, interface: int = 0) -> list[Record]:
    """Each packet, and later the same packet again."""
    copies = [replace(record, time_ns=record.time_ns + delay_ns, interface=interface) for record in records]
    return sorted([*records, *copies], key=lambda record: record.time_ns)


def capture(records: Sequence[Record]) -> bytes:
    return forge.pcapng(records, (forge.ETHERNET, forge.ETHERNET), resolution=9)


@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("interface", [0, 1])
@pytest.mark.parametrize("delay_ns", [0, 10_000, 400_000])
def test_a_capture_that_holds_each_packet_twice(
    segments: list[Segment], interface: int, delay_ns: int, tmp_path: Path
) -> None:
    records = forge.rendered(segments)
    once = see(tmp_path, capture(records))
    double = capture(twice(records, delay_ns, interface))
    both = see(tmp_path, double)
    payload = sum(len(segment.payload) for segment in segments)
    assert once.duplicates == once.duplicate_bytes == 0
    assert both == replace(once, packets=2 * len(segments), duplicates=len(segments), duplicate_bytes=payload)
    assert b"".join(sorted(both.bytes.values())) == b"answer" * 3 + (b"request " * 300 + b"again") * 3
    for window_bytes in (300, 1000):
        assert see(tmp_path, double, window_bytes) == both


def test_three_sightings_are_two_copies(tmp_path: Path) -> None:
    records = forge.rendered(FOUR)
    assert see(tmp_path, capture(twice(twice(records, 5000), 7000))).duplicates == 3 * len(FOUR)


def test_a_copy_behind_a_router_has_another_ttl(tmp_path: Path) -> None:
    records = forge.rendered(FOUR)
    hop = [replace(record, data=record.data[:22] + b"\x3f" + record.data[23:]) for record in records]
    assert hop[3].data[22] == records[3].data[22] - 1
    both = sorted(
        [*records, *(replace(record, time_ns=record.time_ns + 2000) for record in hop)],
        key=lambda record: record.time_ns,
    )
    assert see(tmp_path, capture(both)).duplicates == len(FOUR)


def test_copies_of_a_card_that_hands_over_in_batches(tmp_path: Path) -> None:
    segments = forge.converse([Write(TO_BROKER, bytes(range(256)) * 60)], mss=1000, acks=False)
    records = forge.rendered(segments)
    batch = stream_tables.RECENT
    batches: list[Record] = []
    for begin in range(0, len(records), batch):
        batches += [*records[begin : begin + batch], *records[begin : begin + batch]]
    timed = [replace(record, time_ns=10**18 + index * 1000) for index, record in enumerate(batches)]
    seen = see(tmp_path, capture(timed))
    assert (seen.duplicates, seen.retransmissions) == (len(records), 0)


def data_packet(segments: list[Segment]) -> int:
    return next(index for index, segment in enumerate(segments) if len(segment.payload) > 100)


@pytest.mark.parametrize(
    ("what", "segments", "identification", "delay_ns", "interface", "copies"),
    [
        ("its own identification, soon", FOUR, 999, 10_000, 0, 0),
        ("its own identification, on another interface", FOUR, 999, 10_000, 1, 0),
        ("the same identification", FOUR, None, 90 * MS, 0, 1),
        ("the same identification, after TCP's shortest timeout", FOUR, None, 200 * MS, 0, 0),
        ("no identification, soon", SIX, None, 900_000, 0, 1),
        ("no identification, later", SIX, None, 2 * MS, 0, 0),
    ],
)
def test_what_is_a_copy_and_what_was_sent_again(
    what: str,
    segments: list[Segment],
    identification: int | None,
    delay_ns: int,
    interface: int,
    copies: int,
    tmp_path: Path,
) -> None:
    index = data_packet(segments)
    records = forge.rendered(segments)
    again = replace(records[index], time_ns=records[index].time_ns + delay_ns, interface=interface)
    if identification is not None:
        packet = forge.tcp_ip(segments[index], identification=identification)
        again = replace(again, data=forge.framed(packet, forge.ETHERNET))
    later = [replace(record, time_ns=record.time_ns + delay_ns) for record in records[index + 1 :]]
    seen = see(tmp_path, capture([*records[: index + 1], again, *later]))
    assert (seen.duplicates, seen.retransmissions) == (copies, 1 - copies), what
    assert seen.duplicate_bytes == len(segments[index].payload)


@pytest.mark.parametrize("interface", [0, 1])
def test_without_identification_another_timestamp_is_another_packet(interface: int, tmp_path: Path) -> None:
    """Sent again within a millisecond, but TCP's timestamp option moved on, so the checksum did. On another interface
    the checksum may be still unfinished in one of them, and says nothing."""
    index = data_packet(SIX)
    records = forge.rendered(SIX)
    for number, stamp in ((index, 5), (index + 1, 6)):
        options = b"\x01\x01\x08\x0a" + stamp.to_bytes(4, "big") + bytes(4)
        frame = forge.framed(forge.tcp_ip(SIX[index], tcp_options=options), forge.ETHERNET)
        record = Record(SIX[index].time_ns + stamp, frame, len(frame), interface if stamp == 6 else 0)
        records[number : number + (stamp == 5)] = [record]
    seen = see(tmp_path, capture(records))
    assert (seen.duplicates, seen.retransmissions) == ((1, 0) if interface else (0, 1))


def test_duplicate_acknowledgements_are_no_copies(tmp_path: Path) -> None:
    """Three pure ACKs of the same number ask for a lost segment: each is a packet with its own identification."""
    acks = [index for index, segment in enumerate(FOUR) if not segment.payload and segment.flags == forge.ACK]
    segments = FOUR[: acks[2]] + [FOUR[acks[2]]] * 3 + FOUR[acks[2] :]
    assert see(tmp_path, capture(forge.rendered(segments))).duplicates == 0


def test_a_zero_window_seen_twice_is_one(tmp_path: Path) -> None:
    segments = [replace(segment, window=0) if index == 5 else segment for index, segment in enumerate(FOUR)]
    assert see(tmp_path, capture(twice(forge.rendered(segments), 10_000))).zero_windows == 1


# ------------------------------------------------------------------------------------------ copies of bytes that differ


def held_back() -> tuple[list[Segment], int]:
    """A conversation whose first data segment comes last of three, so that the others wait."""
    payload = random.Random(1).randbytes(3000)
    segments = forge.converse([Write(TO_BROKER, payload)], mss=1000, acks=False)
    first = data_packet(segments)
    order = [*range(first), first + 1, first + 2, first, *range(first + 3, len(segments))]
    return [replace(segments[each], time_ns=segments[where].time_ns) for where, each in enumerate(order)], first


def packet(segment: Segment, number: int, **how: bool) -> Record:
    data = forge.framed(forge.tcp_ip(segment, identification=number, **how), forge.ETHERNET)  # type: ignore[arg-type]
    return Record(segment.time_ns, data, len(data))


def changed(segment: Segment) -> Segment:
    return replace(segment, payload=segment.payload[:100] + b"EVIL" + segment.payload[104:])


@pytest.mark.parametrize("window_bytes", [1 << 20, 1100])
@pytest.mark.parametrize(
    ("right_first", "right_second", "winner"), [(True, True, 0), (True, False, 0), (False, True, 1), (False, False, 0)]
)
def test_the_copy_with_the_right_checksum_wins_else_the_first(
    right_first: bool, right_second: bool, winner: int, window_bytes: int, tmp_path: Path
) -> None:
    segments, at = held_back()
    records = forge.rendered(segments)
    genuine, evil = segments[at], changed(segments[at])
    assert sum(a != b for a, b in zip(genuine.payload, evil.payload, strict=True)) == 4
    pair = [packet(genuine, 901, wrong_checksum=not right_first), packet(evil, 902, wrong_checksum=not right_second)]
    seen = see(tmp_path, capture([*records[:at], *pair, *records[at + 1 :]]), window_bytes)
    winning = (genuine, evil)[winner]
    assert seen.conflicts == 4
    stream = max(seen.bytes.values(), key=len)
    assert stream[1000:2000] == winning.payload
    assert len(stream) == 3000


def test_a_part_that_overlaps_is_replaced_alone(tmp_path: Path) -> None:
    segments, at = held_back()
    records = forge.rendered(segments)
    wrong = packet(replace(segments[at], payload=b"w" * 1000), 901, wrong_checksum=True)
    both = segments[at].payload + segments[at + 1].payload
    middle = replace(segments[at], sequence=segments[at].sequence + 300, payload=both[300:1200])
    seen = see(tmp_path, capture([*records[:at], wrong, packet(middle, 902), *records[at + 1 :]]))
    stream = max(seen.bytes.values(), key=len)
    assert stream[1000:1300] == b"w" * 300
    assert stream[1300:2000] == both[300:1000]
    assert seen.conflicts == sum(each != ord("w") for each in both[300:1000])
    assert stream[2000:] == segments[at + 1].payload


def test_equal_copies_are_no_conflict(tmp_path: Path) -> None:
    segments, at = held_back()
    records = forge.rendered(segments)
    seen = see(tmp_path, capture([*records[:at], packet(segments[at], 901), *records[at:]]))
    assert (seen.conflicts, seen.retransmissions, seen.duplicate_bytes) == (0, 1, 1000)


@pytest.mark.parametrize("offloaded", ["zero", "pseudo-header", "pseudo-header without a length"])
def test_a_checksum_left_to_the_card_is_not_wrong_and_not_right(offloaded: str, tmp_path: Path) -> None:
    """The first of two copies stays: the second's checksum tells nothing; and an unfinished first one gives way."""
    segments, at = held_back()
    records = forge.rendered(segments)

    def unfinished(segment: Segment, number: int) -> Record:
        record = packet(segment, number)
        tcp = record.data[34:]
        pseudo = record.data[26:34] + b"\0\6" + (len(tcp) if offloaded == "pseudo-header" else 0).to_bytes(2, "big")
        value = 0 if offloaded == "zero" else forge.internet_checksum(pseudo) ^ 0xFFFF
        return replace(record, data=record.data[:50] + value.to_bytes(2, "big") + record.data[52:])

    evil = changed(segments[at])
    seen = see(
        tmp_path,
        capture(
            [*records[:at], packet(segments[at], 901, wrong_checksum=True), unfinished(evil, 902), *records[at + 1 :]]
        ),
    )
    assert max(seen.bytes.values(), key=len)[1000:2000] == segments[at].payload
    seen = see(tmp_path, capture([*records[:at], unfinished(evil, 901), packet(segments[at], 902), *records[at + 1 :]]))
    assert max(seen.bytes.values(), key=len)[1000:2000] == segments[at].payload


# ------------------------------------------------------------------------------------- damaged, in order, sent again


def in_order() -> tuple[list[Segment], int]:
    """A conversation, and the place of its first long request's first packet; nothing is out of order."""
    segments = list(FOUR)
    return segments, next(i for i, segment in enumerate(segments) if len(segment.payload) > 104)


@pytest.mark.parametrize("window_bytes", [1 << 20, 1700])
@pytest.mark.parametrize("between", [0, 1])
def test_a_damaged_packet_gives_way_to_the_right_one_that_follows(
    between: int, window_bytes: int, tmp_path: Path
) -> None:
    """The receiver drops it, and the sender sends it again: at once, or after what was already under way."""
    segments, at = in_order()
    records = forge.rendered(segments)
    damaged = packet(changed(segments[at]), 901, wrong_checksum=True)
    again = at + 1 + between
    assert not any(segment.target[1] != 9092 for segment in segments[at:again]), (
        "no acknowledgement before it is sent again"
    )
    whole = see(tmp_path, capture(records))
    seen = see(
        tmp_path,
        capture([*records[:at], damaged, *records[at + 1 : again], records[at], *records[again:]]),
        window_bytes,
    )
    assert seen.bytes == whole.bytes
    assert seen.conflicts == 4


def test_a_wrong_checksum_that_was_acknowledged_is_no_damage(tmp_path: Path) -> None:
    """A network card that joins segments leaves the checksum of the first: the receiver saw nothing wrong."""
    records = [packet(segment, 900 + i, wrong_checksum=bool(segment.payload)) for i, segment in enumerate(FOUR)]
    whole = see(tmp_path, capture(forge.rendered(FOUR)))
    seen = see(tmp_path, capture(records))
    assert seen.bytes == whole.bytes
    assert (seen.conflicts, seen.retransmissions, seen.duplicate_bytes) == (0, 0, 0)


def test_one_side_of_a_conversation_needs_nobody_to_vouch_for_it(tmp_path: Path) -> None:
    requests = [segment for segment in FOUR if segment.target[1] == 9092]
    records = [packet(segment, 900 + i, wrong_checksum=bool(segment.payload)) for i, segment in enumerate(requests)]
    seen = see(tmp_path, capture(records), gaps=True)  # of the side that was not captured
    assert max(seen.bytes.values(), key=len) == b"".join(segment.payload for segment in requests)


def test_a_copy_that_differs_from_bytes_handed_on_is_a_conflict(tmp_path: Path) -> None:
    """The first was right and went on; that the second is not the same is told by its sum."""
    segments, at = in_order()
    records = forge.rendered(segments)
    later = replace(packet(changed(segments[at]), 901, wrong_checksum=True), time_ns=records[at + 2].time_ns)
    seen = see(tmp_path, capture([*records[: at + 3], later, *records[at + 3 :]]))
    assert seen.bytes == see(tmp_path, capture(records)).bytes
    assert seen.conflicts == 1


def test_the_quick_sum_is_the_plain_one() -> None:
    def both(b: np.ndarray, words: np.ndarray, at: int, count: int) -> tuple[int, int]:
        return segment_sums.payload_sum(b, words, at, count), segment_sums.byte_sum(b, at, count)

    sums = with_numba().njit(both)
    b = np.frombuffer(random.Random(5).randbytes(70_003), np.uint8)  # its last bytes fill no word
    words = b[: len(b) & ~7].view(np.uint64)
    for at in (*range(17), *range(len(b) - 20, len(b) + 1)):
        for count in (*range(25), 1447, 1448, 65_534, 65_535):
            if at + count <= len(b):
                quick, plain = sums(b, words, np.int64(at), np.int64(count))
                assert (quick - plain) % 0xFFFF == 0, (at, count)
                assert 0 <= quick < 0xFFFF
    ones = np.full(65_536, 0xFF, np.uint8)
    assert sums(ones, ones.view(np.uint64), np.int64(0), np.int64(65_535))[0] == (0xFF << 8) % 0xFFFF


# -------------------------------------------------------------------------------------------------------- the checksum


@pytest.mark.parametrize("segments", [FOUR, SIX], ids=["IPv4", "IPv6"])
def test_checksums_of_forged_packets_are_right_and_spoiled_ones_wrong(segments: list[Segment]) -> None:
    def summed(
        b: np.ndarray, at: int, length: int, src_hi: int, src_lo: int, dst_hi: int, dst_lo: int
    ) -> tuple[int, int]:
        return (
            segment_sums.header_sum(b, at, at + 20, length, src_hi, src_lo, dst_hi, dst_lo),
            segment_sums.byte_sum(b, at + 20, length),
        )

    sums = with_numba().njit(summed)  # helpers can only be called from a kernel
    rng = random.Random(2)
    for length in (0, 1, 2, 7, 8, 999):
        segment = replace(segments[3], payload=rng.randbytes(length))
        for wrong in (False, True):
            ip = np.frombuffer(forge.tcp_ip(segment, wrong_checksum=wrong), np.uint8).copy()
            at = 20 if segments is FOUR else 40
            addresses = ip[12:20] if segments is FOUR else ip[8:40]
            if segments is FOUR:
                halves = [
                    0,
                    0xFFFF << 32 | int.from_bytes(addresses[:4].tobytes(), "big"),
                    0,
                    0xFFFF << 32 | int.from_bytes(addresses[4:].tobytes(), "big"),
                ]
            else:
                halves = [int.from_bytes(addresses[each : each + 8].tobytes(), "big") for each in (0, 8, 16, 24)]
            headers, payload = sums(ip, np.int64(at), np.int64(length), *(np.uint64(each) for each in halves))
            assert headers >= 0
            assert ((headers + payload) % 0xFFFF == 0) is not wrong
