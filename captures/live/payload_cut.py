"""Captured packets without the content of record batches: what `kwire record --no-payload` writes.

In: `PcapRecords` as a tap hands them over. Out: the same packets, of whose record batches only the headers are there,
and how many bytes were left out. Kernels, because nothing here may cost a Python object a packet.

A pcap record can be cut at its end only. So a packet is cut where the content of a batch begins, if it reaches to the
packet's end; a packet with other bytes behind such content (offloading hands up packets of 64 KiB, with many batches)
is written as several records, as though the card had cut it into segments.

Rules: batches are recognised by content, of any version of any API; what is not recognised is kept whole (message sets
of magic 0 and 1, encrypted traffic, tunnels, fragments), and so is a batch that begins behind a hole in its stream.
Control batches are kept whole too: they are small, and say how a transaction ended. What is remembered is bounded, work
is linear in the bytes, and the output is never larger than the input.

Sources: KIP-98 (record batch of magic 2), KIP-482 (compact lengths), KIP-74 (a Fetch answer may end in the middle of a
batch), Kafka's `FetchResponse.json`, `ProduceRequest.json` and `ShareFetchResponse.json`, RFC 791, 1071, 8200, 9293.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kwire.captures.kernels import Bytes, Flag, Int, Table, copy_bytes, inline, kernel
from kwire.captures.links import LINUX_SLL2, TCP, find_ip, little32, net16, net32, walk_ip
from kwire.captures.live.records import RECORD_HEADER, as_bytes, put16, put32
from kwire.captures.live.taps import HEADER, PcapRecords
from kwire.captures.segment_sums import byte_sum

DIRECTIONS: Final = 1 << 16
"""Directions of connections that are remembered, a power of two: 12 MB. One that is forgotten is begun anew."""

_BATCH_HEADER = 61
_UNCOUNTED = 12
"""Bytes of a batch that its length does not count: base offset and the length itself."""

_LARGEST = 1 << 30
"""Bound of a set's length: Kafka's own is 2^31 - 1, and sequence numbers can be compared over no more."""

_SMALL = 1 << 24
"""Bound of a batch's length (brokers take 1 MiB unless told otherwise), of offsets in it and of leader epochs: so that
lists of numbers, as in answers to ApiVersions, do not pass for a batch."""

_SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers, where records are not compressed."""

_CONTROL = 0x20
_CLOCKS_APART_MS = 1 << 42
"""Bound of the time between a batch's timestamps, 139 years: also where one of them is absent (-1). With it, random
bytes pass for a batch's header less than once in 2^60; with signs alone, once in 2^30, and TLS would lose some."""

_UNSET = 0xFFFFFFFF
"""-1, as an unsigned number of 32 bits."""

_VARINT = 5
"""Bytes of the longest length."""

_TAIL = 72
"""Bytes before the next packet that are kept: a header that lacks its last byte, and the lengths before it."""

_FAR = 1 << 24
"""Bytes behind the next one from which a packet is no late one, but of another connection on the same ports."""

_WORTH = 256
"""Bytes to be left out for which a packet is written as two records: several times what a record takes."""

_WAYS = 8
"""Directions among which one has to be forgotten if another comes."""

_SYN, _NOT_FIN_PSH = 2, 0xF6

# Columns of `Directions.rows`. Sequence numbers are of 32 bits.
(
    _KEY,  # addresses, 16 bytes each (4 columns), then ports, IP version and interface
    _SEEN,  # number of the last packet; 0: nothing is known
    _NEXT,  # sequence number of the next byte
    _SKIP_FROM,  # content of a batch: from this number
    _SKIP_TO,  # to before this one
    _IS_CUT,  # 1: that content is left out
    _SET_END,  # number behind the batches of a topic partition
    _IN_SET,  # 1: another batch may follow where the last one ends
    _TAIL_BYTES,
    _COLUMNS,
) = (0, 5, 6, 7, 8, 9, 10, 11, 12, 13)


class Directions(NamedTuple):
    """State of the directions of TCP connections, and scratch memory."""

    rows: Table
    tails: Bytes
    """The last bytes before `_NEXT` that are content of no batch, a row each."""
    joint: Bytes
    """Scratch: such bytes and the first of a packet, one after the other."""
    ranges: Table
    """Scratch: (from, to) of a payload's bytes that are left out."""
    packets: Table
    """How many came, in one number."""


@inline
def _net64(b: Bytes, at: Int) -> Int:
    return net32(b, at) << 32 | net32(b, at + 4)


@inline
def _distance(number: Int, base: Int) -> Int:
    """From one sequence number to another: less than 0 where `number` is the earlier one."""
    return ((number - base + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


# -- batches ----------------------------------------------------------------------------------------------------------
@inline
def _is_batch(b: Bytes, at: Int) -> Flag:
    """Whether the 61 bytes at `at` can be the header of a record batch (KIP-98).

    Beside the bounds of fields, its checksum has to look like one: lists of small numbers, as in answers to Metadata,
    have bytes of 0 and 255 there. One true checksum of 2,700 has two of them, and its batch is kept whole.
    """
    if b[at + 16] != 2 or b[at + 21] != 0 or b[at + 22] & 0x80 != 0 or b[at + 22] & 7 > 4:  # magic, attributes
        return False
    length, last, count = net32(b, at + 8), net32(b, at + 23), net32(b, at + 57)
    if b[at] != 0 or length < _BATCH_HEADER - _UNCOUNTED or length >= _SMALL:
        return False
    if last >= _SMALL or count > last + 1:  # no more records than offsets
        return False
    content = length - _BATCH_HEADER + _UNCOUNTED
    if (count == 0) != (content == 0) or (b[at + 22] & 7 == 0 and count * _SMALLEST_RECORD > content):
        return False
    plain = 0
    for i in range(at + 17, at + 21):
        plain += 1 if b[i] == 0 or b[i] == 0xFF else 0
    if plain > 1:
        return False
    leader_epoch, producer_epoch, base_sequence = net32(b, at + 12), net16(b, at + 51), net32(b, at + 53)
    if leader_epoch >= _SMALL and leader_epoch != _UNSET:
        return False
    if (producer_epoch >> 15 != 0 and producer_epoch != 0xFFFF) or (
        base_sequence >> 31 != 0 and base_sequence != _UNSET
    ):
        return False
    base_timestamp, max_timestamp, producer = _net64(b, at + 27), _net64(b, at + 35), _net64(b, at + 43)
    if base_timestamp < -1 or max_timestamp < -1 or producer < -1:
        return False
    return abs(max_timestamp - base_timestamp) < _CLOCKS_APART_MS


@inline
def _set_length(b: Bytes, low: Int, at: Int, whole: Int) -> Int:
    """Length of the record set that begins with the batch of `whole` bytes at `at`, as it stands before the batch; 0 if
    none does. b[low:at] is known. Brokers cut off the last batch of a set, but never the first (Fetch since version 3).

    It is an int32, or (KIP-482) an unsigned varint of the length + 1, and nothing says which. Exactly one batch is the
    usual case, and sure. Else, before the varint of a Fetch answer stands a preferred read replica, -1 where there are
    records, and before an int32 of one that, or the number of aborted transactions, -1 or 0. Where both can be, it is
    the shorter one: so nothing behind the set is ever taken for its content.
    """
    fixed = np.int64(0)
    if at - low >= 4:
        fixed = net32(b, at - 4)
        if fixed == whole:
            return whole
        if fixed < whole or fixed >= _LARGEST:
            fixed = np.int64(0)
    # Bytes of a varint have their highest bit set, but for the last; so have those of a -1 before it.
    begin, value, is_bounded = at, np.int64(0), False
    for count in range(1, _VARINT + 4 + 2):
        if at - count < low:
            break
        byte = np.int64(b[at - count])
        if (byte >= 0x80) == (count == 1):
            is_bounded = True
            break
        begin = at - count
        if count <= _VARINT:
            value = value << 7 | (byte & 0x7F)
            if value - 1 == whole:
                return whole
    compact, is_answer = np.int64(0), False
    if is_bounded and begin < at:
        if at - begin > 4 and net32(b, begin) == _UNSET:
            begin += 4
            is_answer = True
        if at - begin <= _VARINT:
            for i in range(begin, at):
                compact |= (np.int64(b[i]) & 0x7F) << (7 * (i - begin))
            compact -= 1
        if compact < whole or compact >= _LARGEST:
            compact = np.int64(0)
    if is_answer or fixed == 0:
        return compact
    if compact == 0 or (at - low >= 8 and net32(b, at - 8) == _UNSET):
        return fixed
    return min(fixed, compact)


@inline
def _find_batch(b: Bytes, low: Int, first: Int, end: Int, in_set: Int) -> Int:
    """The first batch whose header is in b[first:end]: (position, length of its set; 0: that of the batch before it).
    Position -1: there is none. b[low:end] is known; `in_set`: one may begin at `low` as the next of its set."""
    none = np.int64(-1)
    if in_set != 0:
        if end - low < _BATCH_HEADER:
            return none, np.int64(0)
        if _is_batch(b, low):
            return np.int64(low), np.int64(0)
    # Unsigned: with signed indices Numba minds negative ones at every byte.
    for magic_at in range(np.uint64(first + 16), np.uint64(max(first + 16, end - _BATCH_HEADER + 17))):
        if b[magic_at] == 2:
            at = np.int64(magic_at) - 16
            if _is_batch(b, at):
                length = _set_length(b, low, at, _UNCOUNTED + net32(b, at + 8))
                if length != 0:
                    return at, length
    return none, np.int64(0)


# -- directions -------------------------------------------------------------------------------------------------------
@inline
def _row_of(rows: Table, b: Bytes, ip: Int, version: Int, transport: Int, interface: Int, packet: Int) -> Int:
    """The row of a packet's direction. One that is new gets that of the direction that was silent longest, of eight."""
    zero = np.int64(0)
    if version == 4:
        key = (zero, net32(b, ip + 12), zero, net32(b, ip + 16))
    else:
        key = (_net64(b, ip + 8), _net64(b, ip + 16), _net64(b, ip + 24), _net64(b, ip + 32))
    ends = net32(b, transport) | (version & 2) << 31 | (interface & 0x3FFFFFFF) << 33
    h = np.uint64(ends)
    for number in key:
        h = (h ^ np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    begin = np.int64(h & np.uint64(len(rows) - 1)) & ~(_WAYS - 1)
    oldest = begin
    for way in range(_WAYS):
        r = begin + way
        if (
            rows[r, _SEEN] != 0
            and rows[r, _KEY] == key[0]
            and rows[r, _KEY + 1] == key[1]
            and rows[r, _KEY + 2] == key[2]
            and rows[r, _KEY + 3] == key[3]
            and rows[r, _KEY + 4] == ends
        ):
            rows[r, _SEEN] = packet
            return r
        if rows[r, _SEEN] < rows[oldest, _SEEN]:
            oldest = r
    rows[oldest, _KEY], rows[oldest, _KEY + 1], rows[oldest, _KEY + 2], rows[oldest, _KEY + 3] = key
    rows[oldest, _KEY + 4] = ends
    rows[oldest, _SEEN] = packet
    _begin_anew(rows, oldest, zero)
    rows[oldest, _NEXT] = -1
    return oldest


@inline
def _begin_anew(rows: Table, r: Int, number: Int) -> None:
    """Forget all of a direction; the next byte that is wanted has this sequence number."""
    number &= 0xFFFFFFFF
    rows[r, _NEXT], rows[r, _SKIP_FROM], rows[r, _SKIP_TO] = number, number, number
    rows[r, _IS_CUT], rows[r, _IN_SET], rows[r, _TAIL_BYTES] = 0, 0, 0


@inline
def _keep_tail(d: Directions, r: Int, tail: Int, b: Bytes, begin: Int, end: Int) -> None:
    """Append b[begin:end] to the `tail` bytes of a direction; the last ones stay."""
    begin = max(begin, end - _TAIL)
    older = min(tail, _TAIL - (end - begin))
    for i in range(older):
        d.tails[r, i] = d.tails[r, tail - older + i]
    for i in range(end - begin):
        d.tails[r, older + i] = b[begin + i]
    d.rows[r, _TAIL_BYTES] = older + end - begin


@inline
def _add_range(ranges: Table, count: Int, begin: Int, to: Int, stored: Int, worth: Int) -> Int:
    """Note that payload[begin:to] is left out, unless that is less than writing another record costs. Returns how many
    ranges there are."""
    end = min(to, stored)
    if count == len(ranges) or begin >= end or (end < stored and end - begin < worth):
        return count
    ranges[count, 0], ranges[count, 1] = begin, end
    return count + 1


@inline
def _find_begun(d: Directions, r: Int, b: Bytes, at: Int, more: Int, tail: Int, in_set: Int) -> Int:
    """Like `_find_batch`, for headers that begin in the `tail` bytes of a direction and end in b[at:at + more].

    Positions are those in `d.joint`."""
    for i in range(tail):
        d.joint[i] = d.tails[r, i]
    copy_bytes(d.joint, tail, b, at, more)
    first = max(np.int64(0), tail - _BATCH_HEADER + 1)
    return _find_batch(d.joint, np.int64(0), first, tail + more, in_set)


@inline
def _find_ranges(d: Directions, r: Int, b: Bytes, at: Int, stored: Int, size: Int, sequence: Int, worth: Int) -> Int:
    """Fill `d.ranges` with what is left out of the payload b[at:at + stored], of `size` bytes on the wire, that begins
    at a sequence number. Returns how many ranges there are.

    Positions are counted from the payload's beginning. `skip_from` to `skip_to` is the content of the direction's last
    batch, `low` to the end what is content of none, `position` where the payload is new.
    """
    rows = d.rows
    skip_from, skip_to = _distance(rows[r, _SKIP_FROM], sequence), _distance(rows[r, _SKIP_TO], sequence)
    position, tail, in_set = _distance(rows[r, _NEXT], sequence), rows[r, _TAIL_BYTES], rows[r, _IN_SET]
    is_cut, set_end = rows[r, _IS_CUT], _distance(rows[r, _SET_END], sequence)
    is_inside = skip_from <= 0 <= skip_to and skip_from < skip_to
    if rows[r, _NEXT] >= 0 and 0 < position <= _FAR:
        worth = np.int64(_LARGEST)  # sent again: as several packets it would seem to be so more often than it was
    if is_inside:
        position = max(position, 0)  # what is missing before it, if anything, is content
    elif rows[r, _NEXT] < 0 or abs(position) > _FAR:
        skip_from, skip_to, position, tail, in_set = 0, 0, 0, 0, 0
    elif position < 0:  # a hole; what is missing may still come, so the content before it stays known
        position, tail, in_set = 0, 0, 0
    count = np.int64(0)
    if is_cut != 0:
        count = _add_range(d.ranges, count, max(skip_from, 0), skip_to, stored, worth)
    if position >= size:
        return count

    low = max(position, min(skip_to, stored))
    if low < stored:
        batch, length, whole = np.int64(-1), np.int64(0), np.int64(0)
        control = np.int64(0)
        first = low
        if tail != 0:  # a header may have begun in an earlier packet
            more = min(stored - low, _TAIL)
            batch, length = _find_begun(d, r, b, at + low, more, tail, in_set)
            if batch >= 0:
                whole, control = _UNCOUNTED + net32(d.joint, batch + 8), np.int64(d.joint[batch + 22]) & _CONTROL
                batch += low - tail
            elif tail + more >= _BATCH_HEADER:
                in_set, first = 0, max(low, low + more - _BATCH_HEADER + 1)
        while True:
            if whole == 0:
                batch, length = _find_batch(b, at + low, at + first, at + stored, in_set)
                if batch < 0:
                    if stored - low >= _BATCH_HEADER:
                        in_set = 0
                    break
                whole, control = _UNCOUNTED + net32(b, batch + 8), np.int64(b[batch + 22]) & _CONTROL
                batch -= at
            if length != 0:
                set_end = batch + length
            skip_from, skip_to = batch + _BATCH_HEADER, min(batch + whole, set_end)
            in_set = 1 if set_end - skip_to >= _BATCH_HEADER else 0
            is_cut = 1 if control == 0 else 0
            if is_cut != 0:
                count = _add_range(d.ranges, count, skip_from, skip_to, stored, worth)
            low = first = min(skip_to, stored)
            tail, whole = np.int64(0), np.int64(0)
            if skip_to >= stored:
                break
        _keep_tail(d, r, tail, b, at + low, at + stored)
    if stored < size and skip_to < size:  # the snap length cut off what may have been a header
        in_set = 0
        rows[r, _TAIL_BYTES] = 0
    elif low >= stored:
        rows[r, _TAIL_BYTES] = 0
    if size - skip_to > _FAR:
        skip_from, skip_to = size, size
    rows[r, _NEXT] = (sequence + size) & 0xFFFFFFFF
    rows[r, _SKIP_FROM], rows[r, _SKIP_TO] = (sequence + skip_from) & 0xFFFFFFFF, (sequence + skip_to) & 0xFFFFFFFF
    rows[r, _IS_CUT], rows[r, _IN_SET], rows[r, _SET_END] = is_cut, in_set, (sequence + set_end) & 0xFFFFFFFF
    return count


# -- packets ----------------------------------------------------------------------------------------------------------
@inline
def _make_segment(
    out: Bytes, ip: Int, version: Int, transport: Int, payload: Int, begin: Int, size: Int, is_last: Flag
) -> None:
    """Make the headers at out[ip:payload], of a whole packet, those of `size` bytes of its payload from `begin` on."""
    sequence = net32(out, transport + 4) + begin
    put16(out, transport + 4, sequence >> 16)
    put16(out, transport + 6, sequence)
    if not is_last:
        out[transport + 13] &= _NOT_FIN_PSH
    length_at = ip + 2 if version == 4 else ip + 4
    if net16(out, length_at) == 0:  # offloading: the frame's length counts, which is right
        return
    put16(out, length_at, payload - (ip if version == 4 else ip + 40) + size)
    if version == 4:
        put16(out, ip + 10, np.int64(0))
        total = byte_sum(out, ip, (np.int64(out[ip]) & 15) * 4)
        total = (total & 0xFFFF) + (total >> 16)
        put16(out, ip + 10, ~(total + (total >> 16)))


@kernel
def cut_records(b: Bytes, link: Int, d: Directions, out: Bytes) -> Int:
    """Copy the pcap records `b`, of a link type, to `out` (as large) without the content of record batches.

    Returns (how far `out` was filled, records that there are more, bytes of payload left out). What is no whole record
    at the end is copied as it is.
    """
    at, to, more, left_out = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    while at + RECORD_HEADER <= len(b):
        frame = at + RECORD_HEADER
        end = frame + little32(b, at + 8)
        if end > len(b):
            break
        wire_end = max(end, frame + little32(b, at + 12))
        count, payload, stored, size = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        transport, version = np.int64(0), np.int64(0)
        ip = find_ip(b, frame, end, wire_end, link)
        if ip >= 0:
            protocol, transport, ip_end, version = walk_ip(b, ip, end, wire_end)
            if protocol == TCP and transport + 20 <= end and ip_end <= wire_end:
                payload = transport + (np.int64(b[transport + 12]) >> 4) * 4
                stored, size = min(end, ip_end) - payload, ip_end - payload
                is_syn = b[transport + 13] & _SYN != 0
                if payload >= transport + 20 and stored >= 0 and (size > 0 or is_syn):
                    d.packets[0] += 1
                    # Of a packet that passes several interfaces, each sees its own copy.
                    interface = net32(b, frame + 4) if link == LINUX_SLL2 else np.int64(0)
                    r = _row_of(d.rows, b, ip, version, transport, interface, d.packets[0])
                    sequence = net32(b, transport + 4)
                    if is_syn:
                        _begin_anew(d.rows, r, sequence + 1 + size)
                    else:
                        worth = max(np.int64(_WORTH), RECORD_HEADER + payload - frame)
                        count = _find_ranges(d, r, b, payload, stored, size, sequence, worth)
        if count == 0:
            copy_bytes(out, to, b, at, end - at)
            to += end - at
        begin = np.int64(0)
        for i in range(count + 1):
            # A record of payload[begin:stop] that stands for payload[begin:following].
            if count == 0 or (i == count and d.ranges[count - 1, 1] == stored):
                break
            stop, following = (d.ranges[i, 0], d.ranges[i, 1]) if i < count else (stored, stored)
            is_last = following == stored
            if is_last:
                following = size
            headers = payload - frame
            copy_bytes(out, to, b, at, RECORD_HEADER + headers)
            put32(out, to + 8, headers + stop - begin)
            if begin != 0 or not is_last:
                put32(out, to + 12, headers + following - begin)
                moved = to + RECORD_HEADER - frame
                _make_segment(
                    out, ip + moved, version, transport + moved, payload + moved, begin, following - begin, is_last
                )
            to += RECORD_HEADER + headers
            copy_bytes(out, to, b, payload + begin, stop - begin)
            to += stop - begin
            if i < count:
                left_out += d.ranges[i, 1] - d.ranges[i, 0]
            more += 1 if begin != 0 else 0
            begin = following
        at = end
    copy_bytes(out, to, b, at, len(b) - at)
    return to + len(b) - at, more, left_out


class PayloadCut:
    """Leaves the content of record batches out of what an interface gives. For one thread.

    header: of the pcap file (`Tap.header`), for its link type. directions: how many are remembered, a power of two, 8
    at least.
    """

    def __init__(self, header: bytes, directions: int = DIRECTIONS) -> None:
        self._link = HEADER.unpack(header)[6] & 0xFFFF
        self._directions = Directions(
            rows=np.zeros((directions, _COLUMNS), np.int64),
            tails=np.zeros((directions, _TAIL), np.uint8),
            joint=np.zeros(2 * _TAIL, np.uint8),
            ranges=np.zeros((1 << 12, 2), np.int64),
            packets=np.zeros(1, np.int64),
        )
        self._out = np.empty(0, np.uint8)
        self.left_out = 0
        """Bytes of payload left out so far."""

    def cut(self, chunk: PcapRecords) -> PcapRecords:
        """Return what is to be written of a chunk; it stays until the next call."""
        records = as_bytes(chunk.data)
        if len(self._out) < len(records):
            self._out = np.empty(len(records), np.uint8)
        filled, more, left_out = cut_records(records, self._link, self._directions, self._out)
        self.left_out += int(left_out)
        return PcapRecords(self._out[: int(filled)].data, chunk.packets + int(more))
