"""Changes record batches as the replayer has to: bytes in, bytes out.

Record batches (magic 2, KIP-98) are changed in place: producer id, epoch and base sequence, timestamps; their CRC32C
is computed again. Message sets (magic 0 and 1) become one batch if the target requires it. Layout: Kafka's
`DefaultRecordBatch` and `LegacyRecord`. Bytes without that layout raise BadRecordsError.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import crc32c

from kwire.analyzer.records import codecs
from kwire.analyzer.records.batches import BatchLimits

HEADER: Final = 61
NO_PRODUCER: Final = -1
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5
_SIZES = struct.Struct(">qiib")  # base offset, length of what follows, leader epoch, magic
_CRC_AT = 17
_DELTA_AT = 23
_SMALLEST_MESSAGE = 26
"""Offset, length, CRC, magic, attributes, and the lengths of key and value."""
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_TIMES = struct.Struct(">qq")
_TIMES_AT = 27
_NO_TIME = -1


class BadRecordsError(ValueError):
    """Bytes that are not record batches."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a record batch that starts at `at` and has `size` bytes with its header."""

    at: int
    size: int
    base_offset: int
    magic: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


_REST = struct.Struct(">hiqqqhii")  # from the attributes to the number of records


def batches(records: bytes | bytearray | memoryview) -> Iterator[Batch]:
    """List the whole batches of a `records` field; what is cut off at the end of a fetch is left out. Raises
    BadRecordsError for another magic or a wrong size."""
    at = 0
    while at + 17 <= len(records):
        base_offset, length, _, magic = _SIZES.unpack_from(records, at)
        if magic != 2:
            raise BadRecordsError(f"magic {magic} at byte {at}")
        size = 12 + length
        if size < HEADER:
            raise BadRecordsError(f"a batch of {size} bytes at byte {at}")
        if at + size > len(records):
            return
        yield Batch(at, size, base_offset, magic, *_REST.unpack_from(records, at + 21))
        at += size


def produced(records: bytes | None) -> list[Batch]:
    """List the batches of a Produce request's partition. None for null, and for bytes that are not batches (old message
    sets, and what a broker will refuse)."""
    try:
        return list(batches(records or b""))
    except BadRecordsError:
        return []


def _whole(records: bytes | bytearray | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Give (position, bytes, offset, magic) of each whole batch, and of each whole message of an old set. Raises
    BadRecordsError."""
    at = 0
    while at + 17 <= len(records):
        offset, length, _, kind = _SIZES.unpack_from(records, at)
        size = 12 + length
        if kind > 2 or size < (HEADER if kind == 2 else _SMALLEST_MESSAGE):
            raise BadRecordsError(f"magic {kind}, {size} bytes at byte {at}")
        if at + size > len(records):
            return
        yield at, size, offset, kind
        at += size


def end_offset(records: bytes | bytearray | memoryview) -> int | None:
    """The offset after the last whole batch, or the last whole message of an old set; None if there is none. A
    compressed message has the offset of the last message in it. Raises BadRecordsError."""
    end = None
    for at, _, offset, kind in _whole(records):
        delta = int.from_bytes(records[at + _DELTA_AT : at + _DELTA_AT + 4], "big", signed=True) if kind == 2 else 0
        end = offset + delta + 1
    return end


def whole(records: bytes | None) -> bytes:
    """The records without a batch or message that is cut off at their end. Raises BadRecordsError."""
    records = records or b""
    return records[: max((at + size for at, size, _, _ in _whole(records)), default=0)]


def fetched(records: bytes | None) -> list[tuple[int, int, Batch | None]]:
    """List (first offset, offset after the last, batch) of each batch that a reader got, and of each run of old
    messages.

    Empty for bytes that are not records. Of a compressed message only the last offset is known, which is that of the
    last message in it: they were produced together.
    """
    located: list[tuple[int, int, Batch | None]] = []
    try:
        for at, size, offset, kind in _whole(records or b""):
            if kind == 2:
                batch = Batch(at, size, offset, kind, *_REST.unpack_from(records or b"", at + 21))
                located.append((offset, offset + batch.last_offset_delta + 1, batch))
            elif located and located[-1][2] is None:
                located[-1] = located[-1][0], offset + 1, None
            else:
                located.append((offset, offset + 1, None))
    except BadRecordsError:
        return []
    return located


def messages(records: bytes | None) -> int:
    """Count the messages of an old message set, with those inside compressed ones; 0 if it is not one."""
    try:
        return len(_unpacked(records or b"")[1])
    except BadRecordsError:
        return 0


def checksum(records: bytes, batch: Batch) -> bytes:
    """The CRC32C of a batch (magic 2: after base offset, length, leader epoch and magic), as it is stored there."""
    return bytes(records[batch.at + _CRC_AT : batch.at + _CRC_AT + 4])


def magic(records: bytes | bytearray | memoryview) -> int:
    """The magic of the first message or batch: 0, 1 or 2. Raises BadRecordsError."""
    if len(records) < 17 or records[16] > 2:
        raise BadRecordsError("no message or batch")
    return records[16]


def set_producer(records: bytearray, at: int, size: int, producer_id: int, epoch: int, sequence: int) -> None:
    """Replace the producer of the batch at `at`, and seal it."""
    _PRODUCER.pack_into(records, at + _PRODUCER_AT, producer_id, epoch, sequence)
    seal(records, at, size)


def shift_times(records: bytearray, at: int, size: int, delta_ms: int) -> None:
    """Move the batch's timestamps (its records have only differences to the first), and seal it."""
    first, last = _TIMES.unpack_from(records, at + _TIMES_AT)
    moved = [_NO_TIME if time == _NO_TIME else max(time + delta_ms, 0) for time in (first, last)]
    _TIMES.pack_into(records, at + _TIMES_AT, *moved)
    seal(records, at, size)


def seal(records: bytearray, at: int, size: int) -> None:
    """Compute the batch's CRC32C: over everything after the checksum."""
    with memoryview(records) as view:
        struct.pack_into(">I", records, at + 17, crc32c.crc32c(view[at + 21 : at + size]))


# --- message sets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    timestamp: int
    key: bytes | None
    value: bytes | None


def from_message_set(data: bytes) -> bytes:
    """Convert a message set of magic 0 or 1 to one record batch, compressed as it was. Raises BadRecordsError. Messages
    of magic 0 have no time: their records have -1, as a broker stores them. Kafka wants offsets from 0 on."""
    codec, messages = _unpacked(data)
    if not messages:
        raise BadRecordsError("no messages")
    first = messages[0].timestamp
    body = b"".join(_record(message, index, first) for index, message in enumerate(messages))
    last = max(message.timestamp for message in messages)
    return sealed(body, codec, len(messages), first, last)


def _unpacked(data: bytes) -> tuple[int, list[_Message]]:
    """Give (codec of the last compressed message, all messages) of a message set. Raises BadRecordsError."""
    codec = 0
    messages: list[_Message] = []
    for attributes, message in _messages(data):
        if attributes & 7:
            codec = attributes & 7
            inner = decompressed(message.value or b"", codec)
            messages += [message for _, message in _messages(inner)]
        else:
            messages.append(message)
    return codec, messages


def sealed(body: bytes, codec: int, count: int, first: int, last: int) -> bytes:
    """Make a batch of `count` encoded records, without a producer."""
    body = _compressed(body, codec)
    rest = struct.pack(">hiqqqhii", codec, count - 1, first, last, NO_PRODUCER, -1, -1, count) + body
    header = struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, crc32c.crc32c(rest))
    return header + rest


def _messages(data: bytes) -> Iterator[tuple[int, _Message]]:
    """Give (attributes, message) of each whole message."""
    at = 0
    while at + 12 <= len(data):
        _, size = struct.unpack_from(">qi", data, at)
        end = at + 12 + size
        if size < 14 or end > len(data):
            raise BadRecordsError(f"a message of {size} bytes at byte {at}")
        kind, attributes = data[at + 16], data[at + 17]
        if kind > 1:
            raise BadRecordsError(f"magic {kind} at byte {at}")
        position = at + 18
        timestamp = _NO_TIME
        if kind == 1:
            if position + 8 > end:
                raise BadRecordsError(f"a message of {size} bytes at byte {at}")
            (timestamp,) = struct.unpack_from(">q", data, position)
            position += 8
        key, position = _bytes(data, position, end)
        value, position = _bytes(data, position, end)
        yield attributes, _Message(timestamp, key, value)
        at = end
    if at != len(data):
        raise BadRecordsError(f"{len(data) - at} bytes after the last message")


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    if at + 4 > end:
        raise BadRecordsError(f"cut off at byte {at}")
    (size,) = struct.unpack_from(">i", data, at)
    if size < 0:
        return None, at + 4
    if at + 4 + size > end:
        raise BadRecordsError(f"cut off at byte {at}")
    return data[at + 4 : at + 4 + size], at + 4 + size


def varint(value: int) -> bytes:
    """Encode a number in zigzag, as in records."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(message: _Message, index: int, first: int) -> bytes:
    body = bytearray(b"\0") + varint(message.timestamp - first) + varint(index)
    for part in (message.key, message.value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body)) + bytes(body)


def decompressed(data: bytes, codec: int) -> bytes:
    """Decompress a batch. Raises BadRecordsError."""
    out = codecs.Scratch()
    try:
        codecs.decompress(codec, memoryview(data), BatchLimits().allowed(len(data)), out)
    except (codecs.CorruptDataError, codecs.DecompressedSizeError, KeyError) as failure:
        raise BadRecordsError(f"codec {codec}: {failure or 'too many bytes'}") from None
    return out.data[: out.used].tobytes()


def _compressed(data: bytes, codec: int) -> bytes:
    if codec == 1:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == 2:
        import snappy

        return bytes(snappy.compress(data))
    if codec == 3:
        import lz4.frame

        return bytes(lz4.frame.compress(data, block_linked=False))
    return data
