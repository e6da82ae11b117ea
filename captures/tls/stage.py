"""Segments -> segments: the payload of TLS connections becomes what was said, where keys open it.

In: `Segments` of one shard, and secrets: a key log, and blocks of pcapng files with the ordinal of the packet that they
come before. Out: `Segments` in the same order, with plaintext in the place of records. Rules

- A connection is TLS where the first payload of it that was captured begins with a handshake record (RFC 8446, 5.1).
  Rows of other connections pass as they are.
- Each plaintext byte has the packet, time and place of the ciphertext byte that carried it; the row became certain with
  its record's last packet (`SEG_TRIGGER`).
- What is no plaintext (handshakes, headers, tags, padding, what no key opens) is counted (`Session.taken` - `given`).
- What comes out depends on the connection's packets, and on the secrets known before them: not on windows or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from captures.stream_tables import (
    DATA,
    END,
    GAP,
    SEG_AT,
    SEG_COLUMNS,
    SEG_FILE,
    SEG_KEY,
    SEG_KIND,
    SEG_LENGTH,
    SEG_NUMBER,
    SEG_ORDINAL,
    SEG_RECORD_AT,
    SEG_SOURCE,
    SEG_TRIGGER,
    SNAPLEN,
)
from captures.streams import Segments
from captures.tls.keylog import KeyLog
from captures.tls.session import Row, Session

_NEW, _PLAIN, _TLS = 0, 1, 2

_HEAD: Final = 6
"""Bytes that tell a handshake record: its header, and the type of the message in it."""


def begins_tls(data: bytes) -> bool:
    """Whether a connection's first bytes are a handshake record with a ClientHello or a ServerHello."""
    return len(data) >= 3 and data[0] == 22 and data[1] == 3 and data[2] <= 4 and (len(data) < 6 or data[5] in (1, 2))


class _Out:
    """The rows that come out, each with the place of the row it stands for; `slab` has their bytes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.places: list[int] = []
        self.slab = bytearray()
        self.place = self.trigger = 0

    def put(self, row: Row) -> None:
        self.rows.append(row)
        self.places.append(self.place)

    def text(self, row: Row, data: bytes) -> None:
        new = list(row)
        new[SEG_SOURCE], new[SEG_AT], new[SEG_LENGTH] = 1, len(self.slab), len(data)
        new[SEG_TRIGGER] = self.trigger
        self.slab += data
        self.put(new)

    def hole(self, size: int, row: Row) -> None:
        new = list(row)
        new[SEG_KIND], new[SEG_SOURCE], new[SEG_AT], new[SEG_LENGTH] = GAP, 0, 0, size
        new[SEG_NUMBER] = new[SEG_FILE] = new[SEG_RECORD_AT] = 0
        new[SEG_ORDINAL] = new[SEG_TRIGGER] = self.trigger
        self.put(new)


class Stage:
    """The TLS connections of one shard. `over`: those that ended in the last window, by slot.

    known    secrets there from the beginning; they may grow (`live`)
    since    connections of which something was said before the packet with this ordinal stay as they are
    """

    def __init__(self, known: KeyLog | None, since: int = 0, live: bool = False) -> None:
        self._known = known
        self._own = KeyLog(known)
        self._since = since
        self._live = live
        self._blocks = 0
        self._state = np.zeros(256, np.uint8)
        self._sessions: dict[int, Session] = {}
        self.over: dict[int, Session] = {}

    def leave(self, slots: np.ndarray) -> None:
        """Connections in these slots have begun already: they stay as they are."""
        self._grow(int(slots.max(initial=0)))
        self._state[slots] = _PLAIN

    def oldest(self) -> int | None:
        """Ordinal of the first packet of which something waits here."""
        found = [one for session in self._sessions.values() if (one := session.oldest()) is not None]
        return min(found, default=None)

    def take(self, segments: Segments, blocks: Sequence[tuple[int, bytes]] = ()) -> Segments:
        """One window. `blocks`: all secrets that pcapng files brought so far, each with the ordinal of the packet that
        comes next."""
        self.over = {}
        rows = segments.rows
        if not len(rows):
            return segments
        mine = self._mine(rows, segments)
        out = _Out()
        if self._live:
            self._resume(out, int(rows[0, SEG_TRIGGER]))
        for place, row in zip(mine.tolist(), rows[mine].tolist(), strict=True):
            out.place, out.trigger = place, row[SEG_TRIGGER]
            while self._blocks < len(blocks) and blocks[self._blocks][0] <= row[SEG_TRIGGER]:
                self._own.take(blocks[self._blocks][1])
                self._blocks += 1
                self._resume(out, row[SEG_TRIGGER])
            self._row(row, segments, out)
        ended = rows[rows[:, SEG_KIND] == END, SEG_KEY] >> 1
        self._state[ended] = _NEW
        return _joined(segments, mine, out) if len(mine) or out.rows else segments

    def _grow(self, top: int) -> None:
        if top >= len(self._state):
            self._state = np.append(self._state, np.zeros(max(len(self._state), top + 1 - len(self._state)), np.uint8))

    def _mine(self, rows: np.ndarray, segments: Segments) -> np.ndarray:
        """Which rows are of TLS connections, from their first payload on."""
        slots = rows[:, SEG_KEY] >> 1
        self._grow(int(slots.max()))
        if self._since:
            self._state[slots[(rows[:, SEG_TRIGGER] < self._since) & (self._state[slots] == _NEW)]] = _PLAIN
        fresh = np.flatnonzero((self._state[slots] == _NEW) & (rows[:, SEG_KIND] == DATA))
        begins = np.zeros(len(self._state), np.int64)
        for slot, first in zip(*np.unique(slots[fresh], return_index=True), strict=True):
            place = int(fresh[first])
            source, at, size = rows[place, [SEG_SOURCE, SEG_AT, SEG_LENGTH]].tolist()
            tls = begins_tls(segments.sources[source][at : at + min(size, _HEAD)].tobytes())
            self._state[slot] = _TLS if tls else _PLAIN
            begins[slot] = place
        mine: np.ndarray = np.flatnonzero((self._state[slots] == _TLS) & (np.arange(len(rows)) >= begins[slots]))
        return mine

    def _row(self, row: Row, segments: Segments, out: _Out) -> None:
        slot, kind = row[SEG_KEY] >> 1, row[SEG_KIND]
        session = self._sessions.get(slot)
        if session is None:
            patient = self._live or self._blocks > 0
            session = self._sessions[slot] = Session(self._own, patient)
        if kind == DATA:
            at = row[SEG_AT]
            session.data(row, segments.sources[row[SEG_SOURCE]][at : at + row[SEG_LENGTH]].tobytes(), out)
        elif kind in (GAP, SNAPLEN):
            session.missing(row, out)
        else:
            session.over(row, out)
            if kind == END:
                other = list(row)
                other[SEG_KEY] ^= 1
                session.over(other, out)
                self.over[slot] = self._sessions.pop(slot)
            out.put(row)

    def _resume(self, out: _Out, trigger: int) -> None:
        """There are more keys: whoever waited for them goes on."""
        out.trigger = trigger
        for session in self._sessions.values():
            if session.waits:
                session.resume(out)


def _joined(segments: Segments, mine: np.ndarray, out: _Out) -> Segments:
    """The rows of other connections as they are, and what came out, each where its row was."""
    kept = np.ones(len(segments.rows), np.bool_)
    kept[mine] = False
    others = segments.rows[kept]
    for i in np.flatnonzero((others[:, SEG_SOURCE] == 1) & (others[:, SEG_KIND] == DATA)).tolist():
        at, size = others[i, [SEG_AT, SEG_LENGTH]].tolist()  # the waiting bytes, which plaintext takes the place of
        others[i, SEG_AT] = len(out.slab)
        out.slab += segments.sources[1][at : at + size].tobytes()
    made = np.array(out.rows, np.int64).reshape(-1, SEG_COLUMNS)
    places = np.concatenate([np.flatnonzero(kept), np.array(out.places, np.int64)])
    rows = np.concatenate([others, made])[np.argsort(places, kind="stable")]
    heap = np.frombuffer(out.slab or bytearray(1), np.uint8)
    return Segments(np.ascontiguousarray(rows), (segments.sources[0], heap))
