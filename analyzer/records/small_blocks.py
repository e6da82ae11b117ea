"""Decompression of many small batches in one call, because a call of a library costs more than the work itself.

In: batches of magic 2 whose records are a raw snappy block or xerial's blocks (Java), or an lz4 frame without checksums
of its content. Out: their bytes, one behind the other in a scratch heap. The first batch in any other form ends the
call, and is left to `codecs`, which reads all forms and reports errors. With the libraries alone, `--records meta` of a
capture of small compressed batches takes 1.6 to 1.8 times the processor's time.

Formats: snappy's format_description.txt and framing as in xerial's snappy-java; lz4's lz4_Block_format.md and
lz4_Frame_format.md; xxHash-32.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.records.batches import (
    B_ATTRIBUTES,
    B_MAGIC,
    B_RECORDS_AT,
    B_RECORDS_LENGTH,
    B_UNCOMPRESSED,
    CODEC_MASK,
    LZ4,
    SNAPPY,
)
from kwire.captures.kernels import Array, Bytes, Flag, Int, Table, copy_bytes, inline, kernel

SMALL_BYTES: Final = 16 << 10
"""Compressed bytes of a batch up to which it is quicker here."""

_LEFT: Final = -1  # what a helper says of bytes that it leaves to the libraries
# A block ends with literals; nearer to its end, or to the largest size, the library takes no match.
_LZ4_LITERALS: Final = 5  # bytes made: LASTLITERALS
_LZ4_MARGIN: Final = 12  # bytes made, from where a match begins: MFLIMIT
_LZ4_END: Final = 8  # bytes read, from where a match begins: 2 + 1 + LASTLITERALS


@inline
def _byte(b: Bytes, at: Int) -> Int:
    return np.int64(b[np.uint64(at)])  # an unsigned index: no negative one to mind


@inline
def _little(b: Bytes, at: Int) -> Int:
    """uint32, little-endian."""
    return _byte(b, at) | _byte(b, at + 1) << 8 | _byte(b, at + 2) << 16 | _byte(b, at + 3) << 24


@inline
def _sixteen(out: Bytes, o: Int, b: Bytes, at: Int) -> None:
    """Copy 16 bytes, all of them read before one is written: that becomes one load and one store."""
    b0 = b[at + np.uint64(0)]
    b1 = b[at + np.uint64(1)]
    b2 = b[at + np.uint64(2)]
    b3 = b[at + np.uint64(3)]
    b4 = b[at + np.uint64(4)]
    b5 = b[at + np.uint64(5)]
    b6 = b[at + np.uint64(6)]
    b7 = b[at + np.uint64(7)]
    b8 = b[at + np.uint64(8)]
    b9 = b[at + np.uint64(9)]
    b10 = b[at + np.uint64(10)]
    b11 = b[at + np.uint64(11)]
    b12 = b[at + np.uint64(12)]
    b13 = b[at + np.uint64(13)]
    b14 = b[at + np.uint64(14)]
    b15 = b[at + np.uint64(15)]
    out[o + np.uint64(0)] = b0
    out[o + np.uint64(1)] = b1
    out[o + np.uint64(2)] = b2
    out[o + np.uint64(3)] = b3
    out[o + np.uint64(4)] = b4
    out[o + np.uint64(5)] = b5
    out[o + np.uint64(6)] = b6
    out[o + np.uint64(7)] = b7
    out[o + np.uint64(8)] = b8
    out[o + np.uint64(9)] = b9
    out[o + np.uint64(10)] = b10
    out[o + np.uint64(11)] = b11
    out[o + np.uint64(12)] = b12
    out[o + np.uint64(13)] = b13
    out[o + np.uint64(14)] = b14
    out[o + np.uint64(15)] = b15


@inline
def _copy(out: Bytes, o: Int, b: Bytes, at: Int, count: Int) -> None:
    """Like `copy_bytes`, quicker for a few: what lies behind them in `out` may be overwritten."""
    if count <= 16 and at + 16 <= len(b) and o + 16 <= len(out):
        _sixteen(out, np.uint64(o), b, np.uint64(at))
    else:
        copy_bytes(out, o, b, at, count)


@inline
def _repeat(out: Bytes, o: Int, offset: Int, count: Int) -> None:
    """Copy `count` bytes from `offset` before; where the two overlap they repeat themselves."""
    if offset >= 16 and count <= offset:
        _copy(out, o, out, o - offset, count)
        return
    to = np.uint64(o)
    origin = np.uint64(o - offset)
    for i in range(np.uint64(count)):
        out[to + i] = out[origin + i]


@inline
def _snappy_block(b: Bytes, at: Int, end: Int, out: Bytes, o: Int, stop: Int) -> Int:
    """Where the bytes of b[at:end] end in `out`, from `o` on, and never behind `stop`; or _LEFT."""
    size = np.int64(0)
    shift = np.int64(0)
    more = True
    while more:
        if at >= end or shift > 28:
            return np.int64(_LEFT)
        byte = _byte(b, at)
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        more = byte >= 0x80
    if size > stop - o:
        return np.int64(_LEFT)
    start = o
    limit = o + size
    while at < end:
        tag = _byte(b, at)
        at += 1
        kind = tag & 3
        if kind == 0:
            count = tag >> 2
            if count >= 60:
                wide = count - 59
                if wide > end - at:
                    return np.int64(_LEFT)
                count = np.int64(0)
                for i in range(wide):
                    count |= _byte(b, at + i) << (8 * i)
                at += wide
            count += 1
            if count > end - at or count > limit - o:
                return np.int64(_LEFT)
            _copy(out, o, b, at, count)
            at += count
            o += count
            continue
        wide = np.int64(4) if kind == 3 else kind
        if wide > end - at:
            return np.int64(_LEFT)
        if kind == 1:
            count = 4 + (tag >> 2 & 7)
            offset = tag >> 5 << 8 | _byte(b, at)
        else:
            count = (tag >> 2) + 1
            offset = np.int64(0)
            for i in range(wide):
                offset |= _byte(b, at + i) << (8 * i)
        at += wide
        if offset <= 0 or offset > o - start or count > limit - o:
            return np.int64(_LEFT)
        _repeat(out, o, offset, count)
        o += count
    return o if o == limit else np.int64(_LEFT)


@inline
def _is_xerial(b: Bytes, at: Int, end: Int) -> Flag:
    """Whether b[at:end] begins with "\\x82SNAPPY\\0" and two versions."""
    return (
        end - at >= 16
        and _byte(b, at) == 0x82
        and _little(b, at + 1) == 0x50414E53  # SNAP
        and _little(b, at + 4) == 0x00595050  # PPY\0
    )


@inline
def _snappy(b: Bytes, at: Int, end: Int, out: Bytes, o: Int, stop: Int) -> Int:
    """As `_snappy_block`, which is what this is a single one of: compiled into one place, the loop runs once then."""
    framed = _is_xerial(b, at, end)
    if framed:
        at += 16
        if at == end:
            return o
    while True:
        until = end
        if framed:
            if end - at < 4:
                return np.int64(_LEFT)
            size = _byte(b, at) << 24 | _byte(b, at + 1) << 16 | _byte(b, at + 2) << 8 | _byte(b, at + 3)
            at += 4
            if size > end - at:
                return np.int64(_LEFT)
            until = at + size
        o = _snappy_block(b, at, until, out, o, stop)
        if o < 0 or until == end:
            return o
        at = until


@inline
def _length(b: Bytes, at: Int, end: Int, count: Int) -> tuple[Int, Int]:
    """A length of LZ4, of which a token said the first `count`, and where what follows it lies (_LEFT: not here)."""
    byte = np.int64(255) if count == 15 else np.int64(0)
    while byte == 255:
        if at >= end:
            return count, np.int64(_LEFT)
        byte = _byte(b, at)
        at += 1
        count += byte
    return count, at


@inline
def _lz4_block(b: Bytes, at: Int, end: Int, out: Bytes, start: Int, o: Int, stop: Int) -> Int:
    """As `_snappy_block`; matches reach back to `start`."""
    while at < end:
        token = _byte(b, at)
        at += 1
        count, at = _length(b, at, end, token >> 4)
        if at < 0 or count > end - at or count > stop - o:
            return np.int64(_LEFT)
        _copy(out, o, b, at, count)
        at += count
        o += count
        if at == end:
            return o
        if end - at < _LZ4_END or stop - o < _LZ4_MARGIN:
            return np.int64(_LEFT)
        offset = _byte(b, at) | _byte(b, at + 1) << 8
        at += 2
        count, at = _length(b, at, end, token & 15)
        count += 4
        if at < 0 or offset <= 0 or offset > o - start or count > stop - o - _LZ4_LITERALS:
            return np.int64(_LEFT)
        _repeat(out, o, offset, count)
        o += count
    return np.int64(_LEFT)  # a block ends with literals


@inline
def _turned(value: Int, by: Int) -> Int:
    return (value << np.uint64(by) | value >> np.uint64(32 - by)) & np.uint64(0xFFFFFFFF)


@inline
def _header_check(b: Bytes, at: Int, end: Int) -> Int:
    """The second byte of xxHash-32 (seed 0) of b[at:end], shorter than 16 bytes."""
    mask = np.uint64(0xFFFFFFFF)
    h = np.uint64(0x165667B1 + (end - at))
    while end - at >= 4:
        h = (h + np.uint64(_little(b, at)) * np.uint64(0xC2B2AE3D)) & mask
        h = _turned(h, 17) * np.uint64(0x27D4EB2F) & mask
        at += 4
    while at < end:
        h = (h + np.uint64(_byte(b, at)) * np.uint64(0x165667B1)) & mask
        h = _turned(h, 11) * np.uint64(0x9E3779B1) & mask
        at += 1
    h = (h ^ h >> np.uint64(15)) * np.uint64(0x85EBCA77) & mask
    h = (h ^ h >> np.uint64(13)) * np.uint64(0xC2B2AE3D) & mask
    h ^= h >> np.uint64(16)
    return np.int64(h >> np.uint64(8) & np.uint64(0xFF))


@inline
def _lz4(b: Bytes, at: Int, end: Int, out: Bytes, o: Int, stop: Int) -> Int:
    """One frame, without checksums of blocks or content, without a dictionary."""
    if end - at < 11 or _little(b, at) != 0x184D2204:
        return np.int64(_LEFT)
    flags = _byte(b, at + 4)
    largest = _byte(b, at + 5)
    sized = flags & 8 != 0
    header = at + (14 if sized else 6)
    if flags & 0b11010111 != 0b01000000 or largest & 0x8F != 0 or largest >> 4 < 4 or end - header < 5:
        return np.int64(_LEFT)
    if _header_check(b, at + 4, header) != _byte(b, header):
        return np.int64(_LEFT)
    content_size = _little(b, at + 6) | _little(b, at + 10) << 32 if sized else np.int64(-1)
    most = np.int64(1) << (2 * (largest >> 4) + 8)
    start = o
    at = header + 1
    while end - at >= 4:
        size = _little(b, at)
        at += 4
        if size == 0:
            return o if at == end and (not sized or content_size == o - start) else np.int64(_LEFT)
        plain = size >> 31
        size &= 0x7FFFFFFF
        if size > end - at or size > most:
            return np.int64(_LEFT)
        if plain:
            if size > stop - o:
                return np.int64(_LEFT)
            copy_bytes(out, o, b, at, size)
            o += size
        else:
            o = _lz4_block(b, at, at + size, out, o if flags & 0x20 else start, o, min(stop, o + most))
            if o < 0:
                return o
        at += size
    return np.int64(_LEFT)


@kernel
def decompress(
    heap: Bytes,
    table: Table,
    batches: Table,
    small: Array,
    done: Int,
    most: Int,
    out: Bytes,
    used: Int,
    full: Int,
    place: Table,
) -> tuple[Int, Int]:
    """Decompress `batches` (rows of `table`) from number `done` on into `out`, behind its first `used` bytes, as long
    as they are `small` and no more than `full` bytes are used. `place` int64[2, n] gets where each one's bytes lie and
    how many; `most` is what one may become. Returns the number of the first batch that was left, and the bytes used."""
    o = np.int64(used)
    while done < len(batches) and small[done] and o < full:
        i = batches[done]
        at = table[B_RECORDS_AT, i]
        end = at + table[B_RECORDS_LENGTH, i]
        stop = min(np.int64(len(out)), o + most)
        if table[B_ATTRIBUTES, i] & CODEC_MASK == SNAPPY:
            after = _snappy(heap, at, end, out, o, stop)
        else:
            after = _lz4(heap, at, end, out, o, stop)
        if after < 0:
            break
        place[0, done] = o
        place[1, done] = after - o
        table[B_UNCOMPRESSED, i] = after - o
        o = after
        done += 1
    return done, o


def are_small(table: np.ndarray) -> np.ndarray:
    """Return which of some whole, compressed batches `decompress` accepts."""
    codec = table[B_ATTRIBUTES] & CODEC_MASK
    quick = (codec == SNAPPY) | (codec == LZ4)
    small: np.ndarray = quick & (table[B_MAGIC] == 2) & (table[B_RECORDS_LENGTH] <= SMALL_BYTES)
    return small
