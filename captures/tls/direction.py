"""State of one direction of a TLS connection.

In and out: the state as `kwire.captures.tls.session` and `kwire.captures.tls.runs` change it. Rule: offsets count the
direction's bytes from the first that was seen, holes included.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kwire.captures.stream_tables import SEG_AT, SEG_LENGTH, SEG_SOURCE
from kwire.captures.tls.ciphers import HEADER, Opener

Row = list[int]
"""A row of `Segments`."""

LARGEST: Final = 16384 + 2048
"""Bytes of a record's body (RFC 5246, 6.2.3); TLS 1.3 has less."""

FIRST_KIND, LAST_KIND = 20, 23
"""Content types of records: ChangeCipherSpec, Alert, Handshake, application data."""

EARLY_DATA, SHAKING, TRAFFIC_DATA = 0, 1, 2

HELD: Final = 2
"""SEG_SOURCE of bytes that came in earlier rows."""

TRIALS: Final = 1 << 10
BYTES_PER_TRIAL: Final = 8
MOST_TRIALS: Final = 1 << 22
"""After holes, records may be tried so often in a direction, and once more for so many bytes that it has said. Records
take a hundred bytes at least where they hold a message, so a hole ten times as long as what came before is searched.
All in all it is tried for some tens of seconds: a stream that makes no sense may be long."""


def needed(data: bytes) -> int:
    """Return the size of the record that begins so; that of a header if the header is short or invalid."""
    if len(data) < HEADER or not FIRST_KIND <= data[0] <= LAST_KIND or data[1] != 3:
        return HEADER
    size = data[3] << 8 | data[4]
    return HEADER + size if size <= LARGEST else HEADER


class Direction:
    """State of one direction.

    good      where the last record that was understood ended
    lost      bytes are missing, or make no sense, behind `good`
    passed    records that did not open before any did, or in an epoch before traffic; `good` stays before them
    rank      epoch of the keys at hand: EARLY_DATA, SHAKING, TRAFFIC_DATA; -1: none yet
    has_data  application data came under the keys at hand, so what is lost is application data too
    sealed    a record came that only keys open
    updates   how often the traffic keys were replaced (KeyUpdate)
    """

    __slots__ = (
        "begin",
        "early",
        "early_bytes",
        "end",
        "good",
        "has_data",
        "have",
        "hole",
        "left",
        "lost",
        "message",
        "need",
        "number",
        "opener",
        "passed",
        "pieces",
        "protected",
        "rank",
        "runs",
        "sealed",
        "trials",
        "updates",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.begin = self.end = self.good = 0  # of the bytes in `pieces`; `end` is where the next one comes
        self.have = 0
        self.need = HEADER
        self.runs: deque[tuple[int, Row]] = deque()
        self.opener: Opener | None = None
        self.number = self.updates = 0
        self.rank = -1
        self.protected = self.has_data = self.lost = self.sealed = False
        self.hole: Row | None = None
        self.message = b""
        self.passed = 0
        self.trials = TRIALS
        self.left = MOST_TRIALS
        self.early: list[tuple[Row, bytes]] = []
        self.early_bytes = 0

    def held_rows(self, base: int) -> list[Row]:
        """Return the rows that brought the bytes in `pieces`, their positions moved on by `base` bytes."""
        out = []
        for begin, row in self.runs:
            first = max(begin, self.begin)
            new = list(row)
            new[SEG_SOURCE], new[SEG_AT] = HELD, base + first - self.begin
            new[SEG_LENGTH] = begin + row[SEG_LENGTH] - first
            out.append(new)
        return out

    def keep(self, used: int, rows: list[Row], data: bytes) -> None:
        """`used` bytes from `begin` on have been opened; `rows` brought what is left, `data`."""
        self.begin += used
        self.good = self.begin
        self.pieces, self.have = [data] if data else [], len(data)
        self.runs.clear()
        at = self.begin
        for row in rows:
            self.runs.append((at, row))
            at += row[SEG_LENGTH]
        self.end = at
        self.need = needed(data)
