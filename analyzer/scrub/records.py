"""Record sets of the same shape without their content: keys, values and headers become noise, checksums right.

In: the bytes of a records field, and its topic. Out: as many bytes, the same batches with the same records. Rules

- Keys that were equal stay equal, and of those that were not hardly any become so; values and header values are noise,
  header names are pseudonyms; nulls and lengths stay. Control records stay, and records of Kafka's internal topics
  become the same records of other groups, topics and hosts.
- With `schema` framing and ids of schemas stay before the noise: they are numbers that a registry gave, and say nothing
  of the content.
- A header stays only where its checksum is right, or where its batch is cut off and its numbers are possible
  (`_HEADERS`); whatever else stands where a batch should be, as broken clients write it, becomes noise.
- A compressed batch is compressed again and fills its place (`fitting`), with less noise and more zeros where it must;
  where even that does not fit, its bytes are noise, and it cannot be decompressed any more (`lost`).
- What is not all of a batch keeps its header and no more.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import crc32c as crc32c_library
import numpy as np

from kwire.analyzer.payloads.framing import framing_bytes, header_bytes
from kwire.analyzer.protocol import embedded
from kwire.analyzer.protocol.embedded import Embedded
from kwire.analyzer.protocol.record_batches import HEADER_V2
from kwire.analyzer.protocol.schema import TOPICS
from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums, codecs
from kwire.analyzer.scrub.pad import fitted
from kwire.analyzer.scrub.pseudonyms import Pseudonyms
from kwire.analyzer.scrub.scrub_summary import Report
from kwire.captures.kernels import NULL

_HEADER_OLD: Final = 18
_DEPTH: Final = 4
_MARKERS: Final = (0, 1)
"""Control records that end transactions: numbers, no more."""

_LARGEST: Final = b.DECOMPRESSED_LIMIT
_LATEST: Final = 1 << 43  # ms: the year 2248
_MOST_RECORDS: Final = 1 << 24
_HEADERS: Final = {
    0: ((16, 1, 0, 1), (17, 1, 0, 15)),
    1: ((16, 1, 0, 1), (17, 1, 0, 15), (18, 8, -1, _LATEST)),
    2: (
        (12, 4, -1, 1 << 24),  # leader epoch
        (16, 1, 2, 2),
        (21, 2, 0, 127),  # attributes
        (23, 4, -1, _MOST_RECORDS),  # last offset delta
        (27, 8, -1, _LATEST),
        (35, 8, -1, _LATEST),
        (43, 8, -1, 1 << 48),  # producer id
        (51, 2, -1, (1 << 15) - 1),
        (53, 4, -1, (1 << 31) - 1),  # base sequence
        (57, 4, 0, _MOST_RECORDS),
    ),
}
"""Possible numbers of a header by magic: where each stands, its bytes, the least and the largest (checksums apart)."""
_PRINTABLE: Final = re.compile(rb"[ -~]{8}")

_SHARES: Final = (1.0, 0.96, 0.9, 0.8, 0.6, 0.4, 0.2, 0.1)


@dataclass(frozen=True, slots=True)
class KeepOptions:
    """Parts of records that stay."""

    keys: bool = False
    values: bool = False
    headers: bool = False
    schema: bool = False
    """Framing and ids of schemas, of keys and values that do not stay."""

    @property
    def all(self) -> bool:
        return self.keys and self.values and self.headers


Nested = Callable[[bytes, Embedded | None], bytes]
"""A key or value with a format of its own -> the same with other names."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Bytes of records to be replaced: [start, end), and what by."""

    start: int
    end: int
    new: bytes | None
    """None: noise, as much as there is room for, then zeros."""


class RecordScrubber:
    """Scrubs record sets. `report`: where it counts them."""

    def __init__(self, pseudonyms: Pseudonyms, nested: Nested, keep: KeepOptions, report: Report) -> None:
        self._pseudonyms = pseudonyms
        self._nested = nested
        self._kept = keep
        self._opener = r.BatchReader()
        self._limits = b.BatchLimits()
        self.report = report

    def scrub(self, data: bytes, topic: str, depth: int = 0) -> bytes:
        """A record set -> as many bytes."""
        if self._kept.all:
            return data
        heap = np.frombuffer(bytearray(data), np.uint8)
        batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
        checksums.check(batches.table, heap)
        out = bytearray(self._pseudonyms.noise(len(data)))
        for row in batches.table.T.tolist():
            start, end = row[b.B_AT], row[b.B_AT] + row[b.B_LENGTH]
            out[start:end] = self._entry(data[start:end], row, topic, depth)
        return bytes(out)

    def _entry(self, data: bytes, row: list[int], topic: str, depth: int) -> bytes:
        self.report.batches += 1
        cut = row[b.B_STATE] == b.PARTIAL
        head = _header_bytes(data, row)
        if not (_is_possible(data, row) if cut else row[b.B_CRC_OK] == 1) or _PRINTABLE.search(data[:head]):
            self.report.broken_batches += 1
            self.report.unread_bytes += len(data)
            return self._pseudonyms.noise(len(data))
        if row[b.B_STATE] != b.WHOLE:
            return self._broken(data, row, head)
        if row[b.B_MAGIC] == 2:
            clean = bytearray(data[:HEADER_V2] + self._inside(data[HEADER_V2:], data[:HEADER_V2], row, topic))
            struct.pack_into(">I", clean, 17, crc32c_library.crc32c(bytes(clean[b.CRC_FROM_V2 :])))
        else:
            clean = bytearray(self._filled(data, list(self._old(data, 0, len(data), topic, depth)), len(data)))
            self.report.records += row[b.B_ATTRIBUTES] & b.CODEC_MASK == b.NONE
            struct.pack_into(">I", clean, 12, zlib.crc32(clean[b.CRC_FROM_OLD :]))
        return bytes(clean)

    def _broken(self, data: bytes, row: list[int], head: int) -> bytes:
        """Not a whole batch: what of its header is there, but for the checksum, which would tell of the content."""
        self.report.broken_batches += 1
        clean = bytearray(data[:head] + self._pseudonyms.noise(len(data) - head))
        at = 17 if row[b.B_MAGIC] == 2 else 12
        for place in range(at, min(at + 4, head)):
            clean[place] = 0
        return bytes(clean)

    # -- magic 2 -------------------------------------------------------------------------------------------------------

    def _inside(self, data: bytes, header: bytes, row: list[int], topic: str) -> bytes:
        """Cleans what is behind the header of a batch of magic 2."""
        codec = row[b.B_ATTRIBUTES] & b.CODEC_MASK
        is_bomb = codec != b.NONE and bool(self._limits.has_too_many(np.int64(row[b.B_COUNT]), np.int64(len(data))))
        plain = data if codec == b.NONE else None if is_bomb else self._opened(codec, data)
        if plain is None:
            self.report.lost_batches += 1
            return self._pseudonyms.noise(len(data))
        places = self._places(header, plain, row, topic)
        if places is None:
            self.report.broken_batches += 1
            return self._pseudonyms.noise(len(data))
        if codec == b.NONE:
            return self._filled(plain, places, len(plain))
        self.report.compressed_batches += 1
        return self._packed(codec, plain, places, data)

    def _opened(self, codec: int, data: bytes) -> bytes | None:
        scratch = codecs.Scratch()
        try:
            size = codecs.decompress(codec, memoryview(data), self._limits.allowed(len(data)), scratch)
        except (codecs.CorruptDataError, codecs.DecompressedSizeError):
            return None
        return scratch.data[:size].tobytes()

    def _places(self, header: bytes, plain: bytes, row: list[int], topic: str) -> list[_Place] | None:
        """Finds the content in decompressed records, in order; None if not all of them can be read."""
        bits = row[b.B_ATTRIBUTES] & ~b.CODEC_MASK
        alone = bytearray(header + plain)
        struct.pack_into(">i", alone, 8, len(alone) - b.ENTRY_HEADER)
        struct.pack_into(">H", alone, 21, bits & 0xFFFF)
        heap = np.frombuffer(alone, np.uint8)
        batch = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(alone), np.int64))
        data = bytes(alone)
        contents: list[_Place] = []
        for piece in self._opener.open(batch):
            table = piece.table
            headers = np.zeros((5, int(table[r.R_HEADERS].sum())), np.int64)
            r.headers_of(*piece.heaps, table[r.R_HEAP], table[r.R_HEADERS_AT], table[r.R_HEADERS], headers)
            rows = iter(headers[1:].T.tolist())
            for record in table.T.tolist():
                contents += self._record(data, record, topic)
                for _ in range(record[r.R_HEADERS]):
                    contents += self._header(data, *next(rows))
            self.report.records += table.shape[1]
        if len(batch) != 1 or batch.table[b.B_STATE, 0] != b.WHOLE or batch.table[b.B_REASON, 0] != b.REASON_NONE:
            return None
        return [_Place(content.start - HEADER_V2, content.end - HEADER_V2, content.new) for content in contents]

    def _record(self, data: bytes, record: list[int], topic: str) -> Iterator[_Place]:
        key_at, key_length, value_at, value_length = record[r.R_KEY_AT : r.R_VALUE_LENGTH + 1]
        key = None if key_length == NULL else data[key_at : key_at + key_length]
        value = None if value_length == NULL else data[value_at : value_at + value_length]
        if record[r.R_CONTROL] in _MARKERS and len(key or b"") == 4 and len(value or b"") == 6:
            return
        known = None
        if record[r.R_CONTROL] != NULL:
            known = embedded.read_control(key, value)
        elif topic in TOPICS:
            known = embedded.read_record(topic, key, value)
        if known is not None:
            for at, content, opened in ((key_at, key, known.key), (value_at, value, known.value)):
                if content:
                    yield _Place(at, at + len(content), self._nested(content, opened))
            return
        if key and not self._kept.keys:
            yield from self._content(key_at, key, b"key" + key)
        if value and not self._kept.values:
            yield from self._content(value_at, value, None)

    def _content(self, at: int, data: bytes, about: bytes | None) -> Iterator[_Place]:
        """Find what is to be replaced of a key or value: all of it, but for the framing that stays. `about`: what the
        noise depends on, None: as much noise as there is room for."""
        start = framing_bytes(data) if self._kept.schema else 0
        if start and data[0] and data[1]:  # Glue's compression, which noise has not
            yield _Place(at + 1, at + 2, b"\0")
        if start < len(data):
            noise = None if about is None else self._pseudonyms.noise(len(data) - start, about)
            yield _Place(at + start, at + len(data), noise)

    def _header(
        self, data: bytes, name_at: int, name_length: int, value_at: int, value_length: int
    ) -> Iterator[_Place]:
        if self._kept.headers:
            return
        name, value = data[name_at : name_at + name_length], data[value_at : value_at + max(value_length, 0)]
        stays = header_bytes(name.decode("latin-1"), value) if self._kept.schema else 0
        if stays:
            if stays < len(value):
                yield _Place(value_at + stays, value_at + len(value), None)
            return
        if name_length > 0:
            yield _Place(name_at, name_at + name_length, self._pseudonyms.text(name))
        if value_length != NULL and value_length > 0:
            yield _Place(value_at, value_at + value_length, None)

    def _filled(self, plain: bytes, places: list[_Place], budget: int, keyed: bool = True) -> bytes:
        """The records with their content replaced: noise as long as the budget lasts, zeros then. `keyed` False: keys
        and names are zeros too."""
        clean = bytearray(plain)
        for place in places:
            size = place.end - place.start
            if place.new is not None:
                clean[place.start : place.end] = place.new if keyed else bytes(size)
                continue
            noisy = min(size, budget)
            budget -= noisy
            # Depending on where it stands: what repeats would be compressed away, and the budget with it.
            about = place.start.to_bytes(4, "big") if budget or noisy else b""
            clean[place.start : place.end] = self._pseudonyms.noise(noisy, about) + bytes(size - noisy)
        return bytes(clean)

    def _packed(
        self, codec: int, plain: bytes, places: list[_Place], data: bytes, finish: Callable[[bytes], bytes] = bytes
    ) -> bytes:
        """Compressed again to as many bytes; `finish`: what follows from the content is put right."""
        size = len(data)
        for keyed in (True, False):
            packed, left = fitted(codec, finish(self._filled(plain, places, 0, keyed)), size, data)
            if left < 0:
                if packed is not None:
                    return packed
                continue
            # What is left is filled with noise, nearly: as real content would do it.
            tried = [int(left * share * 1.1) for share in _SHARES] if left > 64 else []
            for budget in (*tried, *range(min(left, 24), -1, -1)):
                again, _ = fitted(codec, finish(self._filled(plain, places, budget, keyed)), size, data)
                if again is not None:
                    return again
            if packed is not None:
                return packed
        self.report.lost_batches += 1
        return self._pseudonyms.noise(size)

    # -- magic 0 and 1 -------------------------------------------------------------------------------------------------

    def _old(self, data: bytes, start: int, stop: int, topic: str, depth: int) -> Iterator[_Place]:
        """Finds the content in the message of the old format in data[start:stop]."""
        key_at = start + _HEADER_OLD + 8 * (data[start + 16] == 1) + 4
        key_end = key_at + max(int.from_bytes(data[key_at - 4 : key_at], "big", signed=True), 0)
        value_at = key_end + 4
        value_end = value_at + max(int.from_bytes(data[key_end:value_at], "big", signed=True), 0)
        if value_end > stop:
            yield _Place(key_at - 4, stop, None)  # none of it can be read
            return
        key, value = data[key_at:key_end], data[value_at:value_end]
        codec = data[start + 17] & b.CODEC_MASK
        known = embedded.read_record(topic, key or None, value or None) if topic in TOPICS and codec == b.NONE else None
        if known is not None:
            if key:
                yield _Place(key_at, key_end, self._nested(key, known.key))
            if value:
                yield _Place(value_at, value_end, self._nested(value, known.value))
        else:
            if key and not self._kept.keys:
                yield from self._content(key_at, key, b"key" + key)
            if value and codec != b.NONE:
                yield _Place(value_at, value_end, self._wrapped(codec, value, topic, depth))
            elif value and not self._kept.values:
                yield from self._content(value_at, value, None)
        if value_end < stop:
            yield _Place(value_end, stop, None)

    def _wrapped(self, codec: int, value: bytes, topic: str, depth: int) -> bytes:
        """The message set inside a compressed message."""
        plain = self._opened(codec, value) if depth < _DEPTH and codec <= b.ZSTD else None
        if plain is None:
            self.report.lost_batches += 1
            return self._pseudonyms.noise(len(value))
        places: list[_Place] = []
        sums: list[tuple[int, int, bool]] = []
        at = 0
        while len(plain) - at >= b.ENTRY_HEADER + b.SMALLEST:
            size = int.from_bytes(plain[at + 8 : at + 12], "big", signed=True)
            stop = at + b.ENTRY_HEADER + size
            if size < b.SMALLEST + 8 * (plain[at + 16] == 1) or stop > len(plain) or plain[at + 16] > 1:
                break
            right = int.from_bytes(plain[at + 12 : at + 16], "big") == zlib.crc32(plain[at + 16 : stop])
            sums.append((at, stop, right))
            places += self._old(plain, at, stop, topic, depth + 1)
            at = stop
        if at < len(plain):
            places.append(_Place(at, len(plain), None))
        self.report.records += len(sums)
        self.report.compressed_batches += 1
        return self._packed(codec, plain, places, value, lambda messages: _summed(messages, sums))


def _header_bytes(data: bytes, row: list[int]) -> int:
    """Bytes of a batch's header that are there; of one that is broken those before its attributes."""
    head = HEADER_V2 if row[b.B_MAGIC] == 2 else _HEADER_OLD + 8 * (row[b.B_MAGIC] == 1)
    return min(len(data), _HEADER_OLD - 1 if row[b.B_STATE] == b.BROKEN else head)


def _is_possible(data: bytes, row: list[int]) -> bool:
    """Whether a batch that is cut off may be one: all numbers of its header that are there are possible."""
    magic = row[b.B_MAGIC] if len(data) > 16 else 0
    numbers = ((0, 8, -1, 1 << 48), (8, 4, b.SMALLEST, _LARGEST), *_HEADERS.get(magic, ((16, 1, 1, 0),)))
    if not all(_within(data[at : at + size], least, most, size) for at, size, least, most in numbers):
        return False
    attributes = data[21:23] if magic == 2 else data[17:18]
    if attributes and attributes[-1] & b.CODEC_MASK > b.ZSTD:
        return False
    return magic != 2 or len(data) < HEADER_V2 or row[b.B_COUNT] <= row[b.B_LAST_DELTA] + 1


def _within(raw: bytes, least: int, most: int, size: int) -> bool:
    """Whether a number of `size` bytes, of which the first are there, can be between two others."""
    first = int.from_bytes(raw.ljust(size, b"\0"), "big", signed=True)
    return first <= most and int.from_bytes(raw.ljust(size, b"\xff"), "big", signed=True) >= least if raw else True


def _summed(messages: bytes, sums: list[tuple[int, int, bool]]) -> bytes:
    """A message set with its checksums: start and end of each message, and whether its checksum was right."""
    clean = bytearray(messages)
    for start, stop, right in sums:
        crc = zlib.crc32(clean[start + 16 : stop])
        struct.pack_into(">I", clean, start + 12, crc if right else crc ^ 1)
    return bytes(clean)
