"""Compressed to an exact size: what a record batch held, made anew, must fill the place of what it was.

In: a codec, the bytes to compress, and how long the result has to be. Out: that many bytes that every reader opens to
the same content; None where they cannot be had (the content is to be changed a little then). How each codec grows

    gzip     a comment in the header (RFC 1952, FCOMMENT)
    snappy   lengths of literals written in more bytes than they need; xerial's frame stays one
    lz4      bytes of a match written as literals
    zstd     a longer header (window, content size), and empty raw blocks before the others (RFC 8878)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import lz4.block
import snappy
import zstandard

from kwire.analyzer.records.batches import GZIP, LZ4, SNAPPY, ZSTD
from kwire.analyzer.records.codecs import (
    LZ4_MAGIC,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    CorruptDataError,
    DecompressedSizeError,
    Scratch,
    decompress,
    xxh32,
)

_LZ4_BLOCK: Final = 4 << 20
_LZ4_FRAME: Final = 11
"""Bytes of a frame without blocks: magic, flags, block size, checksum of these, end mark."""
_LZ4_SUMMED: Final = 4096
"""Bytes of content up to which a checksum of it is worth its price."""
_XERIAL_BLOCK: Final = 32 << 10
_XERIAL: Final = XERIAL_MAGIC + bytes.fromhex("00000001 00000001")
_WINDOW_LEAST: Final = 10  # a window descriptor's smallest exponent


def fitted(codec: int, content: bytes, size: int, before: bytes) -> tuple[bytes | None, int]:
    """(bytes, how many they are too few). The first is None where the content cannot be made to fill `size` bytes; the
    second is negative where it needs more. `before`: what was there (its first bytes tell which form of snappy)."""
    packed, left = _FIT[codec](content, size, before)
    return (packed if packed is None or _opens(codec, packed, content) else None), left


def _opens(codec: int, packed: bytes, content: bytes) -> bool:
    """Whether it is read as what it should be: one library wants four bytes behind a literal's tag, say."""
    scratch = Scratch()
    try:
        return decompress(codec, memoryview(packed), len(content), scratch) == len(content) and (
            scratch.data[: len(content)].tobytes() == content
        )
    except (CorruptDataError, DecompressedSizeError):
        return False


def _gzip(content: bytes, size: int, before: bytes) -> tuple[bytes | None, int]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = packer.compress(content) + packer.flush()
    left = size - len(packed)
    if left < 0:
        return None, left
    if left:
        packed = packed[:3] + b"\x10" + packed[4:10] + b" " * (left - 1) + b"\0" + packed[10:]
    return packed, left


# --- zstd -------------------------------------------------------------------------------------------------------------


def _zstd(content: bytes, size: int, before: bytes) -> tuple[bytes | None, int]:
    packed = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(content)
    blocks = packed[zstandard.frame_header_size(packed) :]
    exponent = max(len(content) - 1, 1).bit_length()
    window = bytes([max(exponent - _WINDOW_LEAST, 0) << 3])
    magic = packed[:4]
    heads = (
        magic + b"\x00" + window,
        magic + b"\x80" + window + len(content).to_bytes(4, "little"),
        magic + b"\xc0" + window + len(content).to_bytes(8, "little"),
    )
    least = size - len(heads[0]) - len(blocks)
    for head in heads:
        left = size - len(head) - len(blocks)
        if left >= 0 and left % 3 == 0:
            return head + b"\0\0\0" * (left // 3) + blocks, least
    return None, least


# --- lz4 --------------------------------------------------------------------------------------------------------------

_Sequence = tuple[int, int, int]
"""Literals before, length of the match (0: the last sequence has none), its offset."""


def _lz4(content: bytes, size: int, before: bytes) -> tuple[bytes | None, int]:
    """One frame of independent blocks, the first of which is grown; the header may say the content's size, and a
    checksum of it may follow."""
    pieces = [content[at : at + _LZ4_BLOCK] for at in range(0, len(content), _LZ4_BLOCK)]
    blocks = [lz4.block.compress(piece, mode="default", store_size=False) for piece in pieces]
    least = size - _LZ4_FRAME - sum(4 + len(block) for block in blocks)
    for sized, summed in ((0, 0), (8, 0), (0, 4), (8, 4)):
        left = least - sized - summed
        if not blocks or (summed and len(content) > _LZ4_SUMMED):
            continue
        stored = left + len(blocks[0]) == len(pieces[0])
        if stored:
            first: bytes | None = pieces[0]
        elif left < 0:
            continue
        else:
            first = blocks[0] if not left else _lz4_grown(pieces[0], blocks[0], len(blocks[0]) + left)
        if first is None or len(first) > _LZ4_BLOCK:
            continue
        flags = bytes([0x60 | sized | summed, 0x70]) + (len(content).to_bytes(8, "little") if sized else b"")
        head = LZ4_MAGIC + flags + bytes([xxh32(flags) >> 8 & 255])
        head += (len(first) | stored << 31).to_bytes(4, "little")  # the highest bit: as it is
        body = first + b"".join(len(block).to_bytes(4, "little") + block for block in blocks[1:])
        return head + body + bytes(4) + (xxh32(content).to_bytes(4, "little") if summed else b""), least
    return None, least


def _extension(length: int, free: int) -> int:
    """Bytes of a length beside its four bits in the token."""
    return 0 if length < free else 1 + (length - free) // 255


def _cost(sequence: _Sequence) -> int:
    literals, match, _ = sequence
    behind = 2 + _extension(match - 4, 15) if match else 0
    return 1 + _extension(literals, 15) + literals + behind


def _sequences(block: bytes) -> list[_Sequence]:
    sequences = []
    at = 0
    while at < len(block):
        token = block[at]
        at += 1
        literals, at = _length(block, at, token >> 4)
        at += literals
        if at >= len(block):
            sequences.append((literals, 0, 0))
            break
        offset = int.from_bytes(block[at : at + 2], "little")
        match, at = _length(block, at + 2, token & 15)
        sequences.append((literals, match + 4, offset))
    return sequences


def _length(block: bytes, at: int, four: int) -> tuple[int, int]:
    length = four
    if four == 15:
        while True:
            byte = block[at]
            at += 1
            length += byte
            if byte < 255:
                break
    return length, at


def _lz4_grown(content: bytes, block: bytes, size: int) -> bytes | None:
    """The block in exactly `size` bytes: the first bytes of matches become literals, a match's offset stays right."""
    sequences = _sequences(block)
    left = size - sum(map(_cost, sequences))
    order = sorted((i for i, sequence in enumerate(sequences) if sequence[1]), key=lambda i: -sequences[i][1])
    for i in order:
        literals, match, offset = sequences[i]
        was = _cost(sequences[i])
        low, high = 0, match - 4
        while low < high:  # the most that may be taken: the cost hardly ever falls
            middle = (low + high + 1) // 2
            if _cost((literals + middle, match - middle, offset)) - was <= left:
                low = middle
            else:
                high = middle - 1
        for count in range(low, max(low - 4, -1), -1):
            changed = (literals + count, match - count, offset)
            rest = left - (_cost(changed) - was)
            if rest >= 0 and (rest == 0 or count == low):
                sequences[i] = changed
                left = rest
                break
        if left == 0:
            return _lz4_block(content, sequences)
    return None


def _lz4_block(content: bytes, sequences: list[_Sequence]) -> bytes:
    out = bytearray()
    at = 0
    for literals, match, offset in sequences:
        out.append(min(literals, 15) << 4 | (min(match - 4, 15) if match else 0))
        out += _extended(literals)
        out += content[at : at + literals]
        at += literals + match
        if match:
            out += offset.to_bytes(2, "little") + _extended(match - 4)
    return bytes(out)


def _extended(length: int) -> bytes:
    if length < 15:
        return b""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


# --- snappy -----------------------------------------------------------------------------------------------------------


def _snappy(content: bytes, size: int, before: bytes) -> tuple[bytes | None, int]:
    if before[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _snappy_grown(bytes(snappy.compress(content)), size, content)
    pieces = [content[at : at + _XERIAL_BLOCK] for at in range(0, len(content), _XERIAL_BLOCK)]
    blocks = [bytes(snappy.compress(piece)) for piece in pieces]
    left = size - XERIAL_HEADER - sum(4 + len(block) for block in blocks)
    if left < 0:
        return None, left
    short = left
    for i, block in enumerate(blocks):
        most = len(block) + min(left, _snappy_room(block))
        grown, _ = _snappy_grown(block, most, pieces[i])
        if grown is not None:
            left -= len(grown) - len(block)
            blocks[i] = grown
        if left == 0:
            return _XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in blocks), short
    return None, short


_Element = tuple[bytes, int, int]
"""A copy's own bytes (empty: a literal), how many bytes it makes, where in the content they are."""


def _snappy_elements(block: bytes) -> tuple[bytes, list[_Element]]:
    """A block's size field, and what follows it."""
    at = 0
    while block[at] & 128:
        at += 1
    at += 1
    head, place = block[:at], 0
    elements: list[_Element] = []
    while at < len(block):
        tag = block[at]
        kind = tag & 3
        if kind == 0:
            more = max((tag >> 2) - 59, 0)
            length = (int.from_bytes(block[at + 1 : at + 1 + more], "little") if more else tag >> 2) + 1
            elements.append((b"", length, place))
            at += 1 + more + length
        else:
            length = (tag >> 2 & 7) + 4 if kind == 1 else (tag >> 2) + 1
            elements.append((block[at : at + (2, 3, 5)[kind - 1]], length, place))
            at += (2, 3, 5)[kind - 1]
        place += length
    return head, elements


def _snappy_more(length: int) -> int:
    """Bytes that a literal's length needs beside its tag."""
    return 0 if length <= 60 else (length - 1).bit_length() + 7 >> 3


def _snappy_room(block: bytes) -> int:
    """By how many bytes it may grow by its literals alone: each byte may be one, with four bytes of length."""
    return sum(5 * length - 1 - _snappy_more(length) for own, length, _ in _snappy_elements(block)[1] if not own)


def _snappy_grown(block: bytes, size: int, content: bytes) -> tuple[bytes | None, int]:
    """The block in exactly `size` bytes: copies become literals, and literals several."""
    left = short = size - len(block)
    if left < 0:
        return None, left
    head, elements = _snappy_elements(block)
    room = _snappy_room(block)
    for i, (own, length, place) in enumerate(elements):
        if room >= left:
            break
        grows = 1 + _snappy_more(length) + length - len(own)
        if own and grows <= left:
            elements[i] = (b"", length, place)
            left -= grows
            room += 5 * length - 1 - _snappy_more(length)
    if room < left:
        return None, short
    out = bytearray(head)
    for own, length, place in elements:
        if own:
            out += own
            continue
        grown = min(left, 5 * length - 1 - _snappy_more(length))
        left -= grown
        out += _snappy_literal(content[place : place + length], grown)
    return bytes(out), short


def _snappy_literal(content: bytes, grown: int) -> bytes:
    """A literal in `grown` bytes more than it needs."""
    size = 1 + _snappy_more(len(content)) + len(content) + grown
    out = bytearray()
    while True:
        rest = len(content)
        if 5 + rest >= size - len(out):
            more = size - len(out) - 1 - rest
            if more >= _snappy_more(rest):
                return bytes(out) + _snappy_sized(content, more)
        # One byte with as many bytes of length as leave the others enough.
        left = size - len(out) - (1 + _snappy_more(rest - 1) + rest - 1)
        out += _snappy_sized(content[:1], min(4, left - 2))
        content = content[1:]


def _snappy_sized(content: bytes, more: int) -> bytes:
    if not more:
        return bytes([(len(content) - 1) << 2]) + content
    return bytes([(59 + more) << 2]) + (len(content) - 1).to_bytes(more, "little") + content


_FIT: Final[dict[int, Callable[[bytes, int, bytes], tuple[bytes | None, int]]]] = {
    GZIP: _gzip,
    SNAPPY: _snappy,
    LZ4: _lz4,
    ZSTD: _zstd,
}
