"""Record sets for tests: ours opened to plain Python values, and others' bytes to open."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums
from kwire.captures.kernels import NULL


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    control: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """`table` with checksums and everything that opening found, and the records of all batches in order."""

    table: np.ndarray
    records: list[Record]
    rows: list[int]

    def column(self, number: int) -> list[int | None]:
        return [None if value == NULL else value for value in self.table[number].tolist()]

    @property
    def reasons(self) -> list[str | None]:
        return [
            b.reason(code, number)
            for code, number in zip(self.table[b.B_REASON].tolist(), self.table[b.B_REASON_A].tolist(), strict=True)
        ]


def opened(*sets: bytes, limits: b.BatchLimits | None = None, rows: int = r.PIECE_ROWS) -> Opened:
    """Walk, check and open record sets that lie one behind another."""
    heap = np.frombuffer(b"".join(sets), np.uint8).copy()
    lengths = np.array([len(data) for data in sets], np.int64)
    at = np.cumsum(lengths) - lengths
    batches = b.batches(heap, at, lengths)
    checksums.check(batches.table, batches.heap)
    records: list[Record] = []
    where: list[int] = []
    for piece in r.BatchReader(limits, rows).open(batches):
        heaps = [array.tobytes() for array in piece.heaps]
        headers = np.zeros((5, int(piece.table[r.R_HEADERS].sum())), np.int64)
        r.headers_of(
            *piece.heaps, piece.table[r.R_HEAP], piece.table[r.R_HEADERS_AT], piece.table[r.R_HEADERS], headers
        )
        pairs = iter(
            (_bytes(heaps[which], at, length) or b"", _bytes(heaps[which], value_at, value_length))
            for which, at, length, value_at, value_length in headers.T.tolist()
        )
        for row in piece.table.T.tolist():
            data = heaps[row[r.R_HEAP]]
            where.append(row[r.R_BATCH])
            records.append(
                Record(
                    row[r.R_OFFSET],
                    row[r.R_TIMESTAMP],
                    _bytes(data, row[r.R_KEY_AT], row[r.R_KEY_LENGTH]),
                    _bytes(data, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH]),
                    tuple(next(pairs) for _ in range(row[r.R_HEADERS])),
                    None if row[r.R_CONTROL] == NULL else row[r.R_CONTROL],
                )
            )
    return Opened(batches.table, records, where)


def _bytes(data: bytes, at: int, length: int) -> bytes | None:
    return None if length == NULL else data[at : at + length]


def old_message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, attributes: int = 0, timestamp: int = 0
) -> bytes:
    """A message of magic 0 or 1, by KIP-32's layout and with a right checksum."""
    import zlib

    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
