"""Decompression of record batches: gzip, snappy, lz4, zstd, each as Kafka clients write it, never beyond a limit.

In: the compressed bytes of one batch. Out: the bytes, written into a `Scratch` that is reused, because fresh memory is
slow. A capture is hostile input: nothing here decompresses more bytes than its limit, and all exceptions of the
libraries become `CorruptDataError` or `DecompressedSizeError`. The libraries release the GIL, and each is imported
where it is called, because most runs need none: together they take a tenth of a start.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from kwire.analyzer.records.batches import GZIP, LZ4, RATIO_FREE, SNAPPY, ZSTD, view

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = 16  # magic, int32 version, int32 compatible version
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_RATIO: Final = 255  # no lz4 block grows by more
_LZ4_SIZED: Final = 8  # flag: the frame says the size of its content
_ZSTD_SMALL: Final = 8 << 10
"""Compressed bytes up to which one frame of one block, at most 128 KiB, is decompressed in one call."""
_ZSTD_EMPTY: Final = 13  # bytes: magic, descriptor, window, a block of up to 3, checksum
_STEP: Final = 4 << 20
_SLIGHT: Final = 64
_MOST_SLIGHT: Final = 4096
"""Members or frames of one batch that may make fewer than `_SLIGHT` bytes. A producer writes a batch as one; 20 bytes
are an empty one, which costs microseconds."""
_MEMBER_PIECE: Final = 256
"""Bytes of a further member that the library gets first, then twice as many each time: it copies what it does not use,
and with all of the rest each time, copying would be quadratic.
"""


class CorruptDataError(Exception):
    """Bytes that are not of their codec."""


class DecompressedSizeError(Exception):
    """More decompressed bytes than allowed."""


class _SmallParts:
    """Counts the members or frames of a batch that hold next to nothing; raises CorruptDataError for too many."""

    def __init__(self) -> None:
        self._count = 0

    def count(self, size: int) -> None:
        if size < _SLIGHT:
            self._count += 1
            if self._count > _MOST_SLIGHT:
                raise CorruptDataError(f"more than {_MOST_SLIGHT:,} parts with hardly a byte in them")


class Scratch:
    """Bytes that grow: `data[:used]` is in use, `view` is the same memory for the libraries. One thread's own."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.data = np.empty(size, np.uint8)
        self.view = view(self.data)
        self.used = 0

    def room(self, count: int) -> None:
        """Make room for `count` bytes behind what is used."""
        if self.used + count > len(self.data):
            larger = np.empty(max(self.used + count, 2 * len(self.data)), np.uint8)
            larger[: self.used] = self.data[: self.used]
            self.data, self.view = larger, view(larger)

    def append(self, data: bytes) -> None:
        """Add bytes."""
        end = self.used + len(data)
        if end > len(self.view):
            self.room(len(data))
        self.view[self.used : end] = data
        self.used = end


def decompress(codec: int, data: memoryview, most: int, out: Scratch) -> int:
    """Append the decompressed bytes to `out` and return their number.

    Raises CorruptDataError, and DecompressedSizeError if they are more than `most`; `out` is then unchanged.
    """
    before = out.used
    try:
        _DECOMPRESS[codec](data, most, out)
    except DecompressedSizeError:
        out.used = before
        raise
    # The libraries have an exception class each, some plain ValueError, RuntimeError, MemoryError (sizes that lie).
    except Exception as failure:
        out.used = before
        raise CorruptDataError(str(failure)) from None
    return out.used - before


def _gzip(data: memoryview, most: int, out: Scratch) -> None:
    """RFC 1952; several members one after another are one stream, as Java's GZIPInputStream has it."""
    from isal import isal_zlib

    at, left, piece = 0, most, len(data)
    slight = _SmallParts()
    while at < len(data):
        member = isal_zlib.decompressobj(31)
        size = 0
        while not member.eof:
            if at == len(data):
                raise CorruptDataError("gzip ends early")
            given = data[at : at + piece]
            content = member.decompress(given, left + 1)
            if len(content) > left:
                raise DecompressedSizeError
            at += len(given) - len(member.unused_data)
            left -= len(content)
            size += len(content)
            out.append(content)
            piece *= 2
        piece = _MEMBER_PIECE
        slight.count(size)


def _snappy(data: memoryview, most: int, out: Scratch) -> None:
    """A raw block (librdkafka, and others), or xerial's frame of blocks (Java): header, then int32 length and block."""
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        _snappy_block(data, most, out)
        return
    at, left = XERIAL_HEADER, most
    if len(data) < XERIAL_HEADER:
        raise CorruptDataError("xerial header cut short")
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 0x82534E41 and bytes(data[at : at + len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
            at += XERIAL_HEADER  # a stream behind a stream
            continue
        if at + 4 + size > len(data):
            raise CorruptDataError("xerial block cut short")
        left -= _snappy_block(data[at + 4 : at + 4 + size], left, out)
        at += 4 + size


def _snappy_block(block: memoryview, most: int, out: Scratch) -> int:
    """Decompress a block. It begins with its uncompressed size, a varint, and the library allocates that many bytes."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if size > most:
        raise DecompressedSizeError
    import snappy

    content = snappy.uncompress(block)
    out.append(content)
    return len(content)


def _lz4(data: memoryview, most: int, out: Scratch) -> None:
    """Frames (KIP-57), one or several."""
    import lz4.frame

    at, left = 0, most
    slight = _SmallParts()
    while at < len(data):
        rest = data[at:]
        if len(rest) > 14 and rest[4] & _LZ4_SIZED and int.from_bytes(rest[6:14], "little") > left:
            raise DecompressedSizeError
        if at:  # the first is nearly always the only one
            rest = rest[: _lz4_size(rest)]
        before = out.used
        if len(rest) * LZ4_RATIO <= max(left, RATIO_FREE):  # cannot be much too much: in one go
            try:
                content, used = lz4.frame.decompress(rest, return_bytes_read=True)
            except RuntimeError:
                content, used = lz4.frame.decompress(_lz4_mended(rest), return_bytes_read=True)
            if len(content) > left:
                raise DecompressedSizeError
            out.append(content)
        else:
            used = _lz4_in_steps(_lz4_mended(rest), left, out)
        at += used
        left -= out.used - before
        slight.count(out.used - before)


def _lz4_in_steps(data: memoryview, left: int, out: Scratch) -> int:
    """A large frame that may become `left` bytes: how many bytes of `data` it has."""
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    piece: Any = data
    while not frame.eof:
        content = frame.decompress(piece, max_length=min(_STEP, left + 1))
        if not content and not frame.eof:
            raise CorruptDataError("lz4 ends early")
        left -= len(content)
        if left < 0:
            raise DecompressedSizeError
        out.append(content)
        piece = b""
    return len(data) - len(frame.unused_data or b"")


def _lz4_header(data: memoryview) -> int:
    """Bytes of a frame's header but for its checksum: magic 4, FLG, BD, [content size 8], [dictionary id 4], HC."""
    if len(data) < 7 or bytes(data[:4]) != LZ4_MAGIC:
        raise CorruptDataError("no lz4 frame")
    end = 6 + (8 if data[4] & _LZ4_SIZED else 0) + (4 if data[4] & 1 else 0)
    if len(data) <= end:
        raise CorruptDataError("lz4 header cut short")
    return end


def _lz4_size(data: memoryview) -> int:
    """Bytes of the frame that `data` begins with, which may be more than there are: header, blocks, an end mark."""
    at = _lz4_header(data) + 1
    check = 4 if data[4] & 0x10 else 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little") & 0x7FFFFFFF  # the highest bit: stored as it is
        at += 4
        if not size:
            break
        at += size + check
    return at + (4 if data[4] & 4 else 0)


def _lz4_mended(data: memoryview) -> memoryview:
    """Return the frame with a correct header checksum, if it has that of clients of 0.8 and 0.9, which includes the
    magic
    (KAFKA-3160).
    """
    end = _lz4_header(data)
    if data[end] != xxh32(data[:end]) >> 8 & 0xFF:
        return data
    return memoryview(bytes(data[:end]) + bytes([xxh32(data[4:end]) >> 8 & 0xFF]) + bytes(data[end + 1 :]))


def xxh32(data: bytes | memoryview) -> int:
    """xxHash-32 with seed 0, for headers: plain Python."""
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF

    def turned(value: int, by: int) -> int:
        return ((value << by) | (value >> (32 - by))) & mask

    at, size = 0, len(data)
    if size >= 16:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while at + 16 <= size:
            for i in range(4):
                word = int.from_bytes(data[at + 4 * i : at + 4 * i + 4], "little")
                lanes[i] = turned((lanes[i] + word * p2) & mask, 13) * p1 & mask
            at += 16
        h = turned(lanes[0], 1) + turned(lanes[1], 7) + turned(lanes[2], 12) + turned(lanes[3], 18)
    else:
        h = p5
    h = (h + size) & mask
    while at + 4 <= size:
        h = turned((h + int.from_bytes(data[at : at + 4], "little") * p3) & mask, 17) * p4 & mask
        at += 4
    for byte in data[at:]:
        h = turned((h + byte * p5) & mask, 11) * p1 & mask
    h = (h ^ h >> 15) * p2 & mask
    h = (h ^ h >> 13) * p3 & mask
    return h ^ h >> 16


_threads = threading.local()


def _zstd(data: memoryview, most: int, out: Scratch) -> None:
    """RFC 8878, with or without content size (Java writes none); several frames are one stream."""
    import zstandard

    decompressor = getattr(_threads, "zstd", None)
    if decompressor is None:  # one a thread: sharing one crashes
        decompressor = _threads.zstd = zstandard.ZstdDecompressor()
    if len(data) <= _ZSTD_SMALL and _zstd_is_one_block(data):
        stream = decompressor.decompressobj()
        content = stream.decompress(data)
        if not stream.unused_data:
            if not stream.eof:
                raise CorruptDataError("zstd ends early")
            if len(content) > most:
                raise DecompressedSizeError
            out.append(content)
            return
    size = zstandard.frame_content_size(data)  # -1: not said
    if size > most:
        raise DecompressedSizeError
    _zstd_whole(data)
    total = 0
    with decompressor.stream_reader(data, read_across_frames=True, closefd=False) as reader:
        out.room(min(most + 1, size + 1 if size >= 0 else 8 * len(data)))
        while True:
            room = min(len(out.data) - out.used, most + 1 - total)
            count = reader.readinto(out.view[out.used : out.used + room])
            if count == 0:
                break
            total += count
            out.used += count
            if total > most:
                raise DecompressedSizeError
            if count == room:
                out.room(min(most + 1 - total, max(total, 1 << 16)))


def _zstd_is_one_block(data: memoryview) -> bool:
    """Return whether the first frame has at most one block, before decompressing: four bytes may become 128 KiB."""
    at = _ZSTD_HEADERS[data[4]] if len(data) > 4 else 0
    return at < len(data) and bool(data[at] & 1)


def _zstd_header(descriptor: int) -> int:
    """Bytes of a frame's header: magic 4, descriptor, [window], [dictionary id 1, 2, 4], [content size 1, 2, 4, 8]."""
    single = descriptor >> 5 & 1
    return 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]


_ZSTD_HEADERS: Final = tuple(map(_zstd_header, range(256)))


def _zstd_whole(data: memoryview) -> None:
    """Walk frames and their blocks: a stream that ends early is no error to the library's reader."""
    import zstandard

    at = 0
    slight = _SmallParts()
    while at < len(data):
        at_frame, before = data[at:], at
        checksum = 4 if len(at_frame) > 4 and at_frame[4] & 4 else 0
        at += zstandard.frame_header_size(at_frame)
        last = 0
        while not last:
            header = int.from_bytes(data[at : at + 3], "little")
            last = header & 1
            at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)  # type 1: one byte, repeated
            if at > len(data):
                raise CorruptDataError("zstd ends early")
        at += checksum
        if at > len(data):
            raise CorruptDataError("zstd ends early")
        # What a block makes is not known here: a frame of no more than a header and an empty block makes nothing.
        slight.count(0 if at - before <= _ZSTD_EMPTY else _SLIGHT)


_DECOMPRESS: Final = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
