"""The content of record batches is left out of captured packets: all of it, and nothing else.

A stream is made of bytes of which the test knows what they are; the records that are written are read with code of
their own, and each byte of them is compared with the stream's at its sequence number.

(proves: captures/live/payload_cut.py)
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kwire.captures.crc32c_sums import crc32c
from kwire.captures.files.write import Record, pcap
from kwire.captures.live.payload_cut import PayloadCut
from kwire.captures.live.taps import HEADER, NANOSECONDS, PcapRecords
from tests.captures import forge
from tests.captures.forge import ACK, ETHERNET, FIN, PSH, SYN, Segment
from tests.captures.live.scripted import HEADER_BYTES, packets_in
from tests.programs import CHECKED_AND_PLAIN, STRICT, printed
from tests.shared import capture_files, real_folder

CLIENT, BROKER = ("10.0.0.1", 40000), ("10.0.0.2", 9092)
CLIENT_6, BROKER_6 = ("fd00::1", 40000), ("fd00::2", 9092)
ISN = 1000
SEGMENT = 1448
HEADERS = {ETHERNET: 14, forge.SLL: 16, forge.SLL2: 20, forge.RAW: 0, forge.NULL: 4, forge.LOOP: 4}
"""Bytes of link headers without VLAN tags."""


# -- streams ----------------------------------------------------------------------------------------------------------
def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def batch(size: int, seed: int = 1, **changed: int) -> bytes:
    """A record batch with `size` bytes behind its header (KIP-98); `changed` are fields of that."""
    fields = {
        "base_offset": 1234,
        "length": 49 + size,
        "leader_epoch": 3,
        "magic": 2,
        "crc": 0x5EADBEEF,
        "attributes": 0,
        "last_offset_delta": 9,
        "base_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_000_500,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": 10,
    } | changed
    return struct.pack(">qiibihiqqqhii", *fields.values()) + noise(size, seed)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@dataclass
class Stream:
    """Bytes of one direction. content: ranges of them that are content of batches."""

    data: bytes = b""
    content: list[tuple[int, int]] = field(default_factory=list)

    def add(self, data: bytes) -> Stream:
        self.data += data
        return self

    def add_set(
        self, sizes: Sequence[int], compact: bool = False, before: bytes = b"\0\0\0\7", stop: int = 0
    ) -> Stream:
        """Add what stands before a record set, its length, and batches with such contents. stop: bytes by which the
        last batch is cut off, as brokers do."""
        batches = [batch(size, seed=size + number) for number, size in enumerate(sizes)]
        length = sum(map(len, batches)) - stop
        self.data += before + (varint(length + 1) if compact else struct.pack(">i", length))
        end = len(self.data) + length
        for encoded in batches:
            self.content.append((min(len(self.data) + 61, end), min(len(self.data) + len(encoded), end)))
            self.data += encoded
        self.data = self.data[:end]
        return self

    @property
    def needed(self) -> set[int]:
        """Positions of all that is not content."""
        return set(range(len(self.data))) - {at for begin, end in self.content for at in range(begin, end)}


def several() -> Stream:
    """Four partitions of one answer, their batches, and what is between them."""
    stream = Stream().add(noise(90, 2))
    for number, sizes in enumerate([[3000], [900, 5000, 400], [20_000], [700, 300]]):
        stream.add_set(sizes).add(noise(40, number))
    return stream


def segments_of(stream: Stream, mss: int = SEGMENT, isn: int = ISN, six: bool = False) -> list[Segment]:
    """The stream from a broker to a client, without a handshake."""
    source, target = (BROKER_6, CLIENT_6) if six else (BROKER, CLIENT)
    data = stream.data
    return [
        Segment(begin, source, target, (isn + begin) % 2**32, 77, ACK | PSH, data[begin : begin + mss])
        for begin in range(0, len(data), mss)
    ]


# -- reading what was written -----------------------------------------------------------------------------------------
@dataclass
class Piece:
    """A TCP packet as a record holds it. data: payload that is there; size: payload on the wire."""

    flow: bytes
    sequence: int
    flags: int
    data: bytes
    size: int
    record: bytes


def ones_sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def piece_of(record: bytes, header: int) -> Piece:
    """Read a pcap record with a link header of so many bytes. What it says of lengths has to agree."""
    _, _, captured, wire = struct.unpack_from("<IIII", record)
    assert len(record) == 16 + captured
    assert captured <= wire
    frame = record[16:]
    ip = frame[header:]
    if ip[0] >> 4 == 4:
        transport = (ip[0] & 15) * 4
        length = struct.unpack_from(">H", ip, 2)[0] or wire - header
        assert ones_sum(ip[:transport]) == 0xFFFF, "the IPv4 header's checksum"
        addresses = ip[12:20]
    else:
        transport = 40
        length = (struct.unpack_from(">H", ip, 4)[0] or wire - header - 40) + 40
        addresses = ip[8:40]
    assert header + length <= wire
    assert header + length == wire or wire <= 64, "only short frames are padded"
    ports, sequence, _, offset, flags = struct.unpack_from(">4sIIBB", ip, transport)
    payload = transport + (offset >> 4) * 4
    return Piece(addresses + ports, sequence, flags, ip[payload:length], length - payload, record)


def cut(
    records: Sequence[Record], link: int = ETHERNET, each: int = 7, **options: int
) -> tuple[PayloadCut, list[bytes]]:
    """Records as they are written, when they come so many at a time."""
    payload_cut = PayloadCut(HEADER.pack(NANOSECONDS, 2, 4, 0, 0, 262_144, link), **options)
    out: list[bytes] = []
    for begin in range(0, len(records), each):
        chunk = records[begin : begin + each]
        written = payload_cut.cut(PcapRecords(pcap(chunk, link, nanoseconds=True)[HEADER_BYTES:], len(chunk)))
        packets = packets_in(written.data)
        assert len(packets) == written.packets
        assert len(written.data) <= sum(16 + len(record.data) for record in chunk)
        out += packets
    return payload_cut, out


def kept_of(pieces: Sequence[Piece], stream: Stream, isn: int = ISN) -> set[int]:
    """Positions of the stream that are there, each with the stream's byte."""
    positions: set[int] = set()
    for piece in pieces:
        at = (piece.sequence - isn) % 2**32
        assert stream.data[at : at + len(piece.data)] == piece.data
        assert at + piece.size <= len(stream.data)
        positions.update(range(at, at + len(piece.data)))
    return positions


def check(
    stream: Stream,
    segments: Sequence[Segment],
    *,
    link: int = ETHERNET,
    isn: int = ISN,
    vlans: Sequence[tuple[int, int]] = (),
    zero_length: bool = False,
) -> list[Piece]:
    """Cut packets of a stream: all that is needed is there and no content. Returns what was written."""
    records = forge.rendered(segments, link, vlans=vlans, zero_length=zero_length)
    payload_cut, written = cut(records, link)
    pieces = [piece_of(record, HEADERS[link] + 4 * len(vlans)) for record in written]
    assert kept_of(pieces, stream, isn) == stream.needed
    assert sum(piece.size for piece in pieces) == sum(len(segment.payload) for segment in segments)
    assert payload_cut.left_out == sum(piece.size - len(piece.data) for piece in pieces)
    return pieces


# -- what is left out -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compact", [False, True])
def test_a_batch_in_one_packet_is_cut_behind_its_header(compact: bool) -> None:
    stream = Stream().add(noise(50)).add_set([800], compact)
    (piece,) = check(stream, segments_of(stream))
    assert len(piece.data) == len(stream.data) - 800
    assert piece.size == len(stream.data)
    assert piece.flags == ACK | PSH


@pytest.mark.parametrize("mss", [1500, 100, 1, 12_000])
@pytest.mark.parametrize("compact", [False, True])
def test_a_batch_over_many_packets_is_cut_in_each(mss: int, compact: bool) -> None:
    before = 200 + 4 + (2 if compact else 4) + 61
    stream = Stream().add(noise(200)).add_set([12_000 - before], compact)
    pieces = check(stream, segments_of(stream, mss))
    lengths = [len(piece.data) for piece in pieces]
    assert lengths == [max(0, min(mss, before - begin)) for begin in range(0, 12_000, mss)]


@pytest.mark.parametrize("at", range(90))
@pytest.mark.parametrize("compact", [False, True])
def test_a_header_in_two_packets_is_found_wherever_they_meet(at: int, compact: bool) -> None:
    """The border goes from before the set's length to behind the header."""
    stream = Stream().add(noise(30)).add_set([4000], compact)
    border = 20 + at
    first, last = (
        Segment(0, BROKER, CLIENT, ISN, 1, ACK, stream.data[:border]),
        Segment(1, BROKER, CLIENT, ISN + border, 1, ACK, stream.data[border:]),
    )
    check(stream, [first, last])


@pytest.mark.parametrize("mss", [1, 7, 61, 72, 73, 133])
def test_headers_in_many_packets_are_found(mss: int) -> None:
    """The last packet of a content has bytes behind it, and is whole: less would be saved than a record takes."""
    stream = several()
    _, written = cut(forge.rendered(segments_of(stream, mss)), each=1000)
    present = kept_of([piece_of(record, 14) for record in written], stream)
    assert stream.needed <= present
    more = len(present - stream.needed)
    assert more <= len(stream.content) * (mss - 1)


@pytest.mark.parametrize("link", [ETHERNET, forge.SLL, forge.SLL2, forge.RAW, forge.NULL, forge.LOOP])
@pytest.mark.parametrize("six", [False, True])
def test_a_large_packet_becomes_records_as_though_the_card_had_cut_it(link: int, six: bool) -> None:
    stream = several()
    segments = [replace(segment, flags=ACK | PSH | FIN) for segment in segments_of(stream, 60_000, six=six)]
    pieces = check(stream, segments, link=link)
    assert len(pieces) == len(stream.content) + 1
    following = ISN
    for piece in pieces:
        assert piece.sequence == following
        assert piece.record[:8] == pieces[0].record[:8], "all have the packet's time"
        following += piece.size
    assert [piece.flags for piece in pieces] == [ACK] * (len(pieces) - 1) + [ACK | PSH | FIN]


def test_offloading_leaves_no_length_and_vlan_tags_move_headers() -> None:
    stream = several()
    assert len(check(stream, segments_of(stream, 60_000), zero_length=True)) == 8
    assert len(check(stream, segments_of(stream, 60_000, six=True), zero_length=True)) == 8
    assert len(check(stream, segments_of(stream, 60_000), vlans=[(0x88A8, 3), (0x8100, 4)])) == 8


def test_content_that_saves_less_than_a_record_takes_is_whole() -> None:
    stream = Stream().add(noise(10)).add_set([200, 100, 255, 256]).add(noise(10))
    (first, last) = (piece_of(record, 14) for record in cut(forge.rendered(segments_of(stream)))[1])
    assert len(first.data) + 256 == first.size
    assert (first.size + last.size, last.data) == (len(stream.data), stream.data[-10:])


def test_sequence_numbers_wrap() -> None:
    stream = several()
    for isn in (2**32 - 100, 2**32 - 1500, 2**32 - 20_000, 2**31 - 1500):
        check(stream, segments_of(stream, 60_000, isn), isn=isn)
    stream = Stream().add(noise(9)).add_set([SEGMENT * 9 - 78])
    check(stream, segments_of(stream, isn=2**32 - 1500), isn=2**32 - 1500)


def test_a_syn_counts_one_and_begins_anew() -> None:
    stream = Stream().add_set([800])
    syn = Segment(0, BROKER, CLIENT, ISN - 1, 0, SYN)
    (_, first) = (piece_of(record, 14) for record in cut(forge.rendered([syn, *segments_of(stream)]))[1])
    assert (len(first.data), first.size) == (len(stream.data) - 800, len(stream.data))
    # In the middle of a content another connection begins on the same ports, with numbers that lie in that.
    begun = Stream().add_set([20_000])
    other = Stream().add(noise(3000))
    _, written = cut(
        forge.rendered(
            [
                *segments_of(begun)[:1],
                Segment(0, BROKER, CLIENT, ISN + 4999, 0, SYN),
                *segments_of(other, isn=ISN + 5000),
            ]
        )
    )
    pieces = [piece_of(record, 14) for record in written][2:]
    assert b"".join(piece.data for piece in pieces) == other.data


def test_a_fetch_answer_ends_in_the_middle_of_a_batch() -> None:
    """The next partition is not content of the batch before it (KIP-74); a header that is cut off itself is kept."""
    for compact in (False, True):
        before = b"\0\0\0\0\xff\xff\xff\xff"  # no aborted transactions, no preferred replica
        stream = Stream().add_set([900, 3000], compact, before, stop=2000).add(noise(100)).add_set([500], compact)
        check(stream, segments_of(stream, 60_000))
        stream = Stream().add_set([900, 3000], compact, before, stop=3030).add(noise(100)).add_set([500], compact)
        stream.content = [stream.content[0], stream.content[2]]
        check(stream, segments_of(stream, 60_000))


REQUEST_BEFORE = ["000000c8", "00000100ff"]
ANSWER_BEFORE = ["ffffffff", "00000000ffffffff", "00000000000000ff00"]
SIZES = [[700], [2000, 14_000], [300] * 60, [16_000] * 70]


@pytest.mark.parametrize(
    ("before", "sizes", "compact"),
    # A request has one batch a partition.
    [(before, [size], compact) for before in REQUEST_BEFORE for size in (700, 20_000) for compact in (False, True)]
    + [(before, sizes, compact) for before in ANSWER_BEFORE for sizes in SIZES for compact in (False, True)],
)
def test_the_length_of_a_set_is_not_mixed_up_with_what_is_before_it(
    before: str, sizes: list[int], compact: bool
) -> None:
    """Neither a partition's number above 127, nor a -1, nor a tag; whatever the length."""
    stream = Stream().add(b"\0\0").add_set(sizes, compact, bytes.fromhex(before)).add(noise(60))
    check(stream, segments_of(stream, 60_000) if len(stream.data) < 60_000 else [large(stream)], zero_length=True)


def large(stream: Stream) -> Segment:
    """The whole stream in one packet, more than IPv4 can say the length of."""
    return Segment(0, BROKER, CLIENT, ISN, 0, ACK, stream.data)


# -- packets that are sent again, late or never -----------------------------------------------------------------------
def test_content_that_is_sent_again_is_cut_again() -> None:
    stream = Stream().add(noise(100)).add_set([SEGMENT * 6 - 169]).add_set([SEGMENT * 3 - 69])
    segments = segments_of(stream)
    check(stream, [*segments[:4], segments[2], segments[1], *segments[4:]])
    _, written = cut(forge.rendered([*segments, segments[2], segments[0]]))
    *first, again, oldest = [piece_of(record, 14) for record in written]
    assert kept_of(first, stream) == stream.needed
    assert (again.data, oldest.data) == (segments[2].payload, segments[0].payload), "the last batch alone is known"


def test_what_is_sent_again_stays_one_packet() -> None:
    stream = several()
    segments = segments_of(stream, 60_000)
    _, written = cut(forge.rendered([*segments, segments[-1]]))
    again = piece_of(written[-1], 14)
    assert (again.sequence, again.size) == (segments[-1].sequence, len(segments[-1].payload))
    assert len(written) > len(segments) + 1


def test_content_out_of_order_is_cut() -> None:
    stream = Stream().add(noise(100)).add_set([SEGMENT * 6 - 169]).add_set([SEGMENT * 3 - 69])
    segments = segments_of(stream)
    check(stream, [segments[0], segments[3], segments[1], segments[5], segments[4], segments[2], *segments[6:]])


def test_behind_a_hole_a_batch_is_whole_and_the_next_one_is_not() -> None:
    stream = Stream().add(noise(SEGMENT - 20)).add_set([3000]).add(noise(500)).add_set([7000]).add(noise(9))
    segments = segments_of(stream)
    _, written = cut(forge.rendered([segments[0], *segments[2:]]))  # without most of the first header
    present = kept_of([piece_of(record, 14) for record in written], stream)
    begin, end = stream.content[1]
    assert present == set(range(len(stream.data))) - set(range(SEGMENT, 2 * SEGMENT)) - set(range(begin, end))
    # A hole in the content is none: it is known what is missing.
    _, written = cut(forge.rendered([*segments[:2], segments[3], *segments[4:]]))
    present = kept_of([piece_of(record, 14) for record in written], stream)
    assert stream.needed - present == stream.needed & set(range(2 * SEGMENT, 3 * SEGMENT))


def test_packets_cut_by_the_snap_length_are_cut_where_batches_are_known() -> None:
    stream = Stream().add(noise(100)).add_set([4 * SEGMENT - 169]).add(noise(900)).add_set([900]).add(noise(30))
    records = forge.cut(forge.rendered(segments_of(stream)), 54 + 700)
    present = kept_of([piece_of(record, 14) for record in cut(records)[1]], stream)
    missing = {at for begin in range(0, len(stream.data), SEGMENT) for at in range(begin + 700, begin + SEGMENT)}
    (begin, end), _ = stream.content
    assert present == set(range(len(stream.data))) - missing - set(range(begin, end))


def test_directions_that_are_forgotten_begin_anew() -> None:
    """With room for eight, each of a hundred connections is forgotten between two of its packets."""
    stream = Stream().add(noise(100)).add_set([2 * SEGMENT])
    connections = [
        [replace(segment, target=("10.0.0.1", 40_000 + number)) for segment in segments_of(stream)]
        for number in range(100)
    ]
    segments = [connection[place] for place in range(3) for connection in connections]
    records = forge.rendered(segments)
    few = [piece_of(record, 14) for record in cut(records, directions=8)[1]]
    assert kept_of(few, stream) >= stream.needed
    assert [len(piece.data) for piece in few[:100]] == [169] * 100
    assert [piece.data for piece in few[100:]] == [segment.payload for segment in segments[100:]]
    many = [piece_of(record, 14) for record in cut(records)[1]]
    assert kept_of(many, stream) == stream.needed


def test_each_interface_of_any_sees_its_own_packets() -> None:
    """`-i any`: a packet of a container passes three interfaces."""
    stream = several()
    records = []
    for record in forge.rendered(segments_of(stream, 60_000), forge.SLL2):
        for interface in (3, 4, 7):
            seen = record.data[:4] + struct.pack(">I", interface) + record.data[8:]
            records.append(replace(record, data=seen))
    pieces = [piece_of(record, 20) for record in cut(records, forge.SLL2)[1]]
    assert len(pieces) == 3 * 8
    for begin in range(0, 24, 8):
        assert kept_of(pieces[begin : begin + 8], stream) == stream.needed


# -- what is kept whole -----------------------------------------------------------------------------------------------
def whole(records: Sequence[Record], link: int = ETHERNET) -> bool:
    """Whether the records are written as they are."""
    payload_cut, written = cut(records, link)
    assert payload_cut.left_out == 0 or b"".join(written) != pcap(records, link, nanoseconds=True)[HEADER_BYTES:]
    return b"".join(written) == pcap(records, link, nanoseconds=True)[HEADER_BYTES:]


WRONG: list[dict[str, int]] = [
    {"magic": 1},
    {"magic": 0},
    {"magic": 3},
    {"length": 48},
    {"crc": 0},
    {"crc": 0x01000100},
    {"crc": -1},
    {"length": 1 << 24},
    {"leader_epoch": 1 << 24},
    {"last_offset_delta": 1 << 24},
    {"length": -1},
    {"attributes": 5},
    {"attributes": 0x80},
    {"attributes": 0x100},
    {"base_offset": -1},
    {"leader_epoch": -2},
    {"last_offset_delta": -1},
    {"count": 11},
    {"count": -1},
    {"count": 0},
    {"last_offset_delta": 200, "count": 129},
    {"producer_id": -2},
    {"producer_epoch": -2},
    {"base_sequence": -2},
    {"base_timestamp": -2},
    {"max_timestamp": -2},
    {"max_timestamp": 1 << 62},
]
RIGHT: list[dict[str, int]] = [
    {},
    {"attributes": 0x5C},
    {"last_offset_delta": 0, "count": 1},
    {"last_offset_delta": 200, "count": 128},
    {"last_offset_delta": 2000, "count": 1000, "attributes": 4},
    {"base_timestamp": -1},
    {"base_timestamp": -1, "max_timestamp": -1},
    {"producer_id": 1 << 60, "producer_epoch": 32_767, "base_sequence": 2**31 - 1},
    {"base_offset": 1 << 50, "leader_epoch": -1},
    {"crc": -0x12345700},
]


@pytest.mark.parametrize(("fields", "is_right"), [(f, False) for f in WRONG] + [(f, True) for f in RIGHT], ids=str)
def test_what_is_no_batch_is_kept(fields: dict[str, int], is_right: bool) -> None:
    data = noise(50) + struct.pack(">i", 61 + 900) + batch(900, **fields)
    assert whole(forge.rendered(segments_of(Stream(data)))) is not is_right


def test_a_batch_without_a_length_before_it_is_kept() -> None:
    assert whole(forge.rendered(segments_of(Stream(bytes(50) + batch(900)))))
    assert whole(forge.rendered(segments_of(Stream(noise(50) + struct.pack(">i", 960) + batch(900)))))
    assert whole(forge.rendered(segments_of(Stream(noise(50) + struct.pack(">i", -1) + batch(900)))))
    assert whole(forge.rendered(segments_of(Stream(batch(900)))))


def test_a_control_batch_is_kept_and_the_next_batch_is_not() -> None:
    """It says whether a transaction was committed."""
    control, data = batch(600, attributes=0x30, last_offset_delta=0, count=1), batch(5000)
    stream = Stream().add(bytes(8) + struct.pack(">i", len(control + data)) + control + data)
    stream.content = [(12 + 661 + 61, 12 + 661 + 5061)]
    for mss in (60_000, SEGMENT, 100, 1):
        _, written = cut(forge.rendered(segments_of(stream, mss)))
        assert kept_of([piece_of(record, 14) for record in written], stream) == stream.needed


@pytest.mark.parametrize("seed", range(4))
def test_encrypted_traffic_is_kept(seed: int) -> None:
    assert whole(forge.rendered(segments_of(Stream(noise(300_000, seed)), 60_000)))


def test_other_packets_are_kept() -> None:
    """Fragments, tunnels, other protocols, headers that are cut off, and a link type that is not known."""
    stream = Stream().add(noise(50)).add_set([900])
    (record,) = forge.rendered(segments_of(stream))
    (tcp,) = forge.rendered(segments_of(stream), forge.RAW)
    assert not whole([record])
    fragment = record.data[:20] + b"\x20\x00" + record.data[22:]
    udp = record.data[:23] + b"\x11" + record.data[24:]
    inner = forge.framed(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp.data), 1, 0, 64, 4, 0) + bytes(8) + tcp.data, 1)
    for data in (fragment, udp, inner, record.data[:50], record.data[:20], b"", noise(70)):
        assert whole([Record(0, data, len(data))])
    assert whole([record], link=147)
    longer = record.data[:16] + struct.pack(">H", 60_000) + record.data[18:]
    assert whole([Record(0, longer, len(longer))]), "IP says more than the frame had"


def test_a_packet_without_payload_is_kept() -> None:
    stream = Stream().add(noise(50)).add_set([9000])
    (data, *more) = segments_of(stream)
    ack = replace(data, payload=b"", sequence=(data.sequence + SEGMENT) % 2**32)
    keepalive = replace(data, payload=b"\0", sequence=(data.sequence + SEGMENT - 1) % 2**32)
    _, written = cut(forge.rendered([data, ack, *more]))
    assert written[1] == packets_in(pcap(forge.rendered([data, ack]), nanoseconds=True)[HEADER_BYTES:])[1]
    _, written = cut(forge.rendered([data, keepalive, *more]))
    assert kept_of([piece_of(record, 14) for record in [written[0], *written[2:]]], stream) == stream.needed


# -- hostile bytes ----------------------------------------------------------------------------------------------------
def damaged(seed: int) -> tuple[list[Segment], Stream]:
    """A stream with batches that are no batches, its packets damaged, lost, late and sent again."""
    rng = random.Random(seed)
    stream = Stream()
    for _ in range(rng.randrange(12)):
        stream.add(rng.randbytes(rng.randrange(120)))
        stream.add_set([rng.randrange(3000) for _ in range(rng.randrange(1, 4))], rng.random() < 0.5)
        if rng.random() < 0.3:
            stream.add(struct.pack(">i", rng.choice([61, 300, 1 << 29])) + batch(40, length=rng.choice([49, 1 << 29])))
    data = bytearray(stream.data)
    for _ in range(rng.randrange(8) if data else 0):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    stream.data = bytes(data)
    segments = segments_of(stream, rng.choice([1, 30, 100, 1448, 9000, 60_000]), rng.choice([ISN, 2**32 - 5000]))
    segments = forge.overlapped(segments, rng, 0.1, 3000)
    segments = forge.dropped(segments, rng, rng.choice([0, 0.05]))
    segments = forge.reordered(segments, rng, 0.1)
    return forge.retransmitted(forge.duplicated(segments, rng, 0.05), rng, 0.1), stream


def hostile(count: int) -> str:
    """Cut damaged packets. All that is kept is the stream's at its place. Returns a digest of what was written."""
    digest = hashlib.sha256()
    for seed in range(count):
        rng = random.Random(seed)
        segments, stream = damaged(seed)
        records = forge.rendered(segments)
        if seed % 3 == 0:
            records = forge.cut(records, rng.randrange(40, 2000))
        _, written = cut(records, each=1 + seed % 50, directions=8)
        isn = 2**32 - 5000 if any(segment.sequence > 2**31 for segment in segments) else ISN
        pieces = [piece_of(record, 14) for record in written if len(record) >= 16 + 54]
        kept_of(pieces, stream, isn)
        assert sum(piece.size for piece in pieces) == sum(
            len(segment.payload) for segment, record in zip(segments, records, strict=True) if len(record.data) >= 54
        )
        # Headers too may be anything: only that nothing is read or written outside is looked at.
        noisy = [replace(record, data=flipped(record.data, rng)) for record in records[:200]]
        more = cut(noisy, each=11, directions=8)[1]
        digest.update(b"".join(written + more))
    return digest.hexdigest()


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(3) if changed else 0):
        changed[rng.randrange(min(len(changed), 70))] = rng.randrange(256)
    return bytes(changed)


def test_whatever_comes_what_is_kept_is_the_streams() -> None:
    hostile(60)


@CHECKED_AND_PLAIN
def test_kernels_read_nothing_outside_and_need_no_compiler(variable: str, value: str) -> None:
    code = "from tests.captures.live.test_payload_cut import hostile; print(hostile(12))"
    assert printed(code, *STRICT, **{variable: value}) == f"{hostile(12)}\n"


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 40])
def test_what_is_no_whole_record_is_copied(size: int) -> None:
    data = struct.pack("<IIII", 1, 2, 1000, 1000) + bytes(30)
    payload_cut = PayloadCut(pcap([]))
    assert bytes(payload_cut.cut(PcapRecords(data[:size], 0)).data) == data[:size]
    assert payload_cut.left_out == 0


# -- real traffic -----------------------------------------------------------------------------------------------------
REAL = [
    "codecs-franzgo-4.3",
    "codecs-java-2.8",
    "txn-librdkafka-4.3",
    "group-share-java-4.3",
    "any-sll2-4.3",
    "net-vlan-4.3",
    "ipv6-4.3",
    "net-lossy-4.3",
    "admin-librdkafka-4.3",
    "zoo-kafkajs-1.4.5-on-2.8",
]


def batches_in(data: bytes) -> list[tuple[int, int]]:
    """(begin, end) of the batches in a stream but for control batches: where magic is 2 and the checksum is right."""
    matches = []
    at = data.find(b"\x02")
    while at >= 0:
        begin = at - 16
        if begin >= 0 and begin + 61 <= len(data):
            length, attributes = struct.unpack_from(">i", data, begin + 8)[0], struct.unpack_from(">H", data, at + 5)[0]
            end = begin + 12 + length
            if (
                length >= 49
                and not attributes & 0x20
                and end <= len(data)
                and crc32c(data[at + 5 : end]) == int.from_bytes(data[at + 1 : at + 5])
            ):
                matches.append((begin, end))
        at = data.find(b"\x02", at + 1)
    return matches


@pytest.mark.parametrize("name", REAL)
def test_of_real_traffic_the_content_of_batches_is_left_out(name: str) -> None:
    """Batches are those whose checksum is right, wherever they are in streams that a dictionary puts together."""
    link, records = forge.loaded(capture_files(real_folder(name))[0])
    header = {ETHERNET: 14, forge.SLL2: 20}[link] + (4 if "vlan" in name else 0)
    tcp = [record for record in records if is_tcp(record.data[header:])]
    assert tcp
    whole_pieces = [piece_of(record, header) for record in packets_in(pcap(tcp, link, nanoseconds=True)[HEADER_BYTES:])]
    payload_cut, written = cut(tcp, link, each=50)
    pieces = [piece_of(record, header) for record in written]
    bytes_before, bytes_after = by_flow(whole_pieces), by_flow(pieces)
    twice = sent_twice(whole_pieces)
    left_out = large = 0
    for flow, stream in bytes_before.items():
        after = bytes_after.get(flow, {})
        assert all(stream[at] == byte for at, byte in after.items())
        missing = stream.keys() - after.keys()
        left_out += len(missing)
        for base, data in joined(stream):
            batches = [(base + begin + 61, base + end) for begin, end in batches_in(data)]
            others = dict.fromkeys(missing & set(range(base, base + len(data))), 0)
            for begin, end in batches:
                present = [at for at in range(begin, end) if others.pop(at, None) is None]
                checksum = data[begin - base - 44 : begin - base - 40]
                if name != "net-lossy-4.3" and sum(byte in (0, 0xFF) for byte in checksum) < 2:
                    once = [at for at in present if at not in twice[flow]]  # the second is no several packets
                    assert len(once) < 256, "less than another record is worth"
                    large += len(present) < end - begin
            ends = {end for _, end in batches}
            assert all(begin - 61 in ends for begin, _ in joined(others)), (
                "one that the broker cut off follows a whole one"
            )
    assert 0 < left_out <= payload_cut.left_out
    assert large or name == "net-lossy-4.3"


def is_tcp(ip: bytes) -> bool:
    """Whether it is TCP without options of IP and extension headers."""
    return len(ip) >= 40 and ((ip[0] == 0x45 and ip[9] == 6) or (ip[0] >> 4 == 6 and ip[6] == 6))


def by_flow(pieces: Sequence[Piece]) -> dict[bytes, dict[int, int]]:
    """The bytes of each direction by sequence number; a number that comes again gets what came first."""
    flows: dict[bytes, dict[int, int]] = {}
    for piece in pieces:
        stream = flows.setdefault(piece.flow, {})
        for place, byte in enumerate(piece.data):
            stream.setdefault(piece.sequence + place, byte)
    return flows


def sent_twice(pieces: Sequence[Piece]) -> dict[bytes, set[int]]:
    """Sequence numbers of each direction that more than one packet has."""
    seen: dict[bytes, tuple[set[int], set[int]]] = {}
    for piece in pieces:
        once, twice = seen.setdefault(piece.flow, (set(), set()))
        numbers = set(range(piece.sequence, piece.sequence + len(piece.data)))
        twice |= once & numbers
        once |= numbers
    return {flow: twice for flow, (_, twice) in seen.items()}


def joined(stream: dict[int, int]) -> list[tuple[int, bytes]]:
    """(sequence number, bytes) of what is there without a hole."""
    runs: list[tuple[int, Any]] = []
    for at in sorted(stream):
        if not runs or at != runs[-1][0] + len(runs[-1][1]):
            runs.append((at, bytearray()))
        runs[-1][1].append(stream[at])
    return [(at, bytes(data)) for at, data in runs]
