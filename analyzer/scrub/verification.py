"""Verify a clean capture: does it contain anything of the original?

In: a clean capture, and the texts that must not be in it. Out: `Leak`s. Rules: it is read as any capture is, by the
same analyzer; texts of eight bytes and more are looked for in the whole file and in what connections say; shorter ones
(four bytes turn up anywhere by chance: in sequence numbers, checksums, compressed bytes) wherever bytes are no number:
in strings, in bytes and in records opened, and in whatever is no message. Whatever it was, no eight printable bytes of
the original payload, or of headers that become something else, may be in the file (`shared_windows`), but for words of
protocols (`WORDS`) and what is no more than digits that a pseudonym has too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.analyzer.protocol.record_batches import HEADER_V2
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import codecs
from kwire.analyzer.scrub import windows
from kwire.analyzer.scrub.message_spans import RECORDS, RELEASE, RELEASE_FIELD, TEXTS
from kwire.analyzer.scrub.pseudonyms import LEAST, PUBLIC, Pseudonyms, is_public
from kwire.analyzer.scrub.streams import CapturedBytes, FirstPass
from kwire.captures.files import CapturePoint

SURE: Final = 8
"""Bytes of a text that do not turn up by chance."""

WORDS: Final = frozenset(
    (
        *PUBLIC,  # what Kafka and its clients call themselves
        b"PROXY TCP4 ",  # a proxy's line, and what HTTP says around a host that is to be connected to
        b"PROXY TCP6 ",
        b"PROXY UNKNOWN",
        b"CONNECT ",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b"HTTP/1.1 200",
        b"HTTP/1.0 200",
        b"rdkafka-",  # a member's name begins with its client's, and goes on with a hash
    )
)
"""Words that may stay: they are of protocols, and nobody's own."""
_NUMBER: Final = re.compile(rb"[0-9a-f.:/-]{8}")

_CHUNK: Final = 1 << 20
_MOST_SEEN: Final = 1 << 20
"""Texts that were looked at, remembered."""
_TABLE_BITS: Final = 20
_FACTOR: Final = np.uint32(2654435761)


@dataclass(frozen=True, slots=True)
class Leak:
    """A text of the original, `size` bytes long, and where it was found."""

    size: int
    where: str


class Finder:
    """Finds texts in bytes."""

    def __init__(self, texts: Collection[bytes], least: int = LEAST) -> None:
        self._texts = frozenset(text for text in texts if len(text) >= least)
        self._lengths = sorted({len(text) for text in self._texts})
        self._table = np.zeros(1 << _TABLE_BITS, np.bool_)
        starts = np.array([int.from_bytes(text[:4], "little") for text in self._texts], np.uint32)
        self._table[self._slots(starts)] = True

    @staticmethod
    def _slots(grams: np.ndarray) -> np.ndarray:
        slots: np.ndarray = (grams * _FACTOR) >> np.uint32(32 - _TABLE_BITS)
        return slots

    def first(self, data: bytes) -> bytes | None:
        """A text that is in `data`; None: there is none."""
        if not self._texts or len(data) < LEAST:
            return None
        for at in range(0, len(data), _CHUNK):
            piece = data[at : at + _CHUNK + self._lengths[-1]]
            text = self._in(piece)
            if text is not None:
                return text
        return None

    def _in(self, data: bytes) -> bytes | None:
        each = np.frombuffer(data, np.uint8).astype(np.uint32)
        if len(each) < LEAST:
            return None
        grams = each[:-3] | each[1:-2] << np.uint32(8) | each[2:-1] << np.uint32(16) | each[3:] << np.uint32(24)
        for at in np.flatnonzero(self._table[self._slots(grams)]).tolist():
            for length in self._lengths:
                if data[at : at + length] in self._texts:
                    return data[at : at + length]
        return None


def leaks(
    point: CapturePoint, folder: str, texts: Collection[bytes], ports: tuple[int, ...], records: bool = True
) -> Iterator[Leak]:
    """Find `texts` in a clean capture, one of each place. Its temporary files lie in `folder`. `records` False: what
    records hold was to be kept, and is not looked at."""
    short = Finder(texts)
    sure = Finder([text for text in texts if records and not any(text in public for public in PUBLIC)], SURE)
    for path in point.paths:
        yield from _in_file(path, sure)
    first = FirstPass(point, folder, ports)
    try:
        yield from _in_streams(first.run(), short, sure, records)
    finally:
        first.captured.end()


def shared_windows(
    path: str, captured: CapturedBytes, replaced: np.ndarray, pseudonyms: Pseudonyms, words: Collection[bytes]
) -> Iterator[Leak]:
    """Find printable windows of what was captured (its bytes, and `replaced` ones of packets) in a clean file, but for
    those of `words`, which stay, for one byte repeated (compressed data has that by chance), and for numbers
    that pseudonyms have by chance."""

    def original() -> Iterator[np.ndarray]:
        yield from captured.originals()
        yield from windows.overlapping(replaced)

    clean = np.memmap(path, np.uint8, "r").view(np.ndarray)
    stay = WORDS.union(words)
    for window in windows.shared(windows.overlapping(clean), original):
        if (
            windows.is_filler(window)
            or windows.is_public(window, stay)
            or (_NUMBER.fullmatch(window) and pseudonyms.has_number(window))
        ):
            continue
        yield Leak(len(window), "in the file")


def _in_file(path: str, sure: Finder) -> Iterator[Leak]:
    behind = b""
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            text = sure.first(behind + piece)
            if text is not None:
                yield Leak(len(text), "in the file")
                return
            behind = piece[-(1 << 16) :]


def _in_streams(captured: CapturedBytes, short: Finder, sure: Finder, records: bool) -> Iterator[Leak]:
    seen: set[bytes] = set()
    words, whole = _Pile(short), _Pile(sure)
    for i, place in enumerate(captured.messages):
        data = captured.bytes_of(place)
        yield from whole.put(data)
        for start, end, kind, _ in captured.parts_of(i):
            piece = data[start:end]
            if kind in TEXTS:  # the same ones again and again
                if piece in seen or is_public(piece, RELEASE_FIELD if kind == RELEASE else ""):
                    continue
                if len(seen) < _MOST_SEEN:
                    seen.add(piece)
            elif kind == RECORDS:
                piece = _opened(piece) if records else b""
            yield from words.put(piece)
        for at, size in captured.spans(place):
            captured.write_at(at, b"\1" * size)
    yield from words.end()
    yield from whole.end()
    for said_there, covered in captured.everything():
        text = short.first(np.where(covered != 0, np.uint8(0), said_there).tobytes())
        if text is not None:
            yield Leak(len(text), "in bytes that are no message")


class _Pile:
    """Pieces of messages, looked through when there are many."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._pieces: list[bytes] = []
        self._size = 0

    def put(self, piece: bytes) -> Iterator[Leak]:
        """One more."""
        self._pieces.append(piece)
        self._size += len(piece) + 1
        if self._size >= _CHUNK:
            yield from self.end()

    def end(self) -> Iterator[Leak]:
        """Look through those that are there."""
        text = self._finder.first(b"\0".join(self._pieces))
        self._pieces.clear()
        self._size = 0
        if text is not None:
            yield Leak(len(text), "in a message")


def _opened(data: bytes, depth: int = 0) -> bytes:
    """Return the bytes of a record set's batches, decompressed."""
    heap = np.frombuffer(bytearray(data), np.uint8)
    batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
    out = b""
    for row in batches.table.T.tolist():
        start, end = row[b.B_AT], row[b.B_AT] + row[b.B_LENGTH]
        codec = row[b.B_ATTRIBUTES] & b.CODEC_MASK if row[b.B_STATE] == b.WHOLE else b.NONE
        if codec == b.NONE:  # numbers before, checksums among them
            out += b"\0" + data[start + (HEADER_V2 if row[b.B_MAGIC] == 2 else b.CRC_FROM_OLD + 2) : end]
            continue
        at, size = row[b.B_RECORDS_AT], row[b.B_RECORDS_LENGTH]
        scratch = codecs.Scratch()
        try:
            content = codecs.decompress(codec, memoryview(data[at : at + size]), b.BatchLimits().allowed(size), scratch)
        except (codecs.CorruptDataError, codecs.DecompressedSizeError):
            continue
        plain = scratch.data[:content].tobytes()
        out += b"\0" + (_opened(plain, depth + 1) if row[b.B_MAGIC] < 2 and depth < 4 else plain)
    return out
