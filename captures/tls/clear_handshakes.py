"""Read handshakes in the clear of TLS connections without keys.

In: `Segments` as they go on to framing, and the slots of connections that begin with TLS records. Out: a `Session` for
each, with its hellos, its certificate (TLS 1.2) and its alerts. Rules: rows are read, never changed; once both sides
are encrypted, a connection is not read any more.
"""

from __future__ import annotations

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.streams import Segments
from kwire.captures.tls.detection import TlsDetector
from kwire.captures.tls.direction import Row
from kwire.captures.tls.keylog import KeyLog
from kwire.captures.tls.session import Session


class _Nobody:
    """Takes what a session gives: without keys nothing."""

    def text(self, row: Row, data: bytes) -> None:
        raise AssertionError("opened without keys")

    def hole(self, size: int, row: Row) -> None:
        """Do nothing: missing bytes do not matter here."""


class ClearHandshakes:
    """The connections of one shard. `over`: those that ended in the last window, by slot."""

    def __init__(self) -> None:
        self._nothing = KeyLog()
        self._nobody = _Nobody()
        self._sessions: dict[int, Session] = {}
        self._openings: dict[int, TlsDetector] = {}
        self._settled: set[int] = set()
        self.over: dict[int, Session] = {}

    def take(self, segments: Segments, slots: np.ndarray) -> None:
        """One window. `slots`: connections that begin with TLS records, perhaps behind a prefix."""
        self.over = {}
        rows = segments.rows
        if not len(rows) or not len(slots):
            return
        wanted = np.zeros(max(int(slots.max()), int(rows[:, t.SEG_KEY].max()) >> 1) + 1, np.bool_)
        wanted[slots] = True
        wanted[list(self._settled)] = False
        of = rows[:, t.SEG_KEY] >> 1
        for row in rows[wanted[of] | (rows[:, t.SEG_KIND] == t.END)].tolist():
            slot = row[t.SEG_KEY] >> 1
            if row[t.SEG_KIND] == t.END:
                self._end(slot)
            elif wanted[slot] and slot not in self._settled:
                self._row(slot, row, segments)

    def _row(self, slot: int, row: Row, segments: Segments) -> None:
        session = self._sessions.get(slot)
        if session is None:
            session = self._sessions[slot] = Session(self._nothing)
            self._openings[slot] = TlsDetector()
        if row[t.SEG_KIND] == t.DATA:
            at = row[t.SEG_AT]
            data: bytes = segments.sources[row[t.SEG_SOURCE]][at : at + row[t.SEG_LENGTH]].tobytes()
            opening = self._openings.get(slot)
            if opening is None:
                session.data(row, data, self._nobody)
            elif opening.take(row, data) is not None:
                del self._openings[slot]
                for part, text, inside in opening.parts():
                    if inside or not opening.tls:  # an alert in answer to what is no TLS
                        session.data(part, text, self._nobody)
        elif row[t.SEG_KIND] in (t.GAP, t.SNAPLEN):
            session.missing(row, self._nobody)
        if session.settled:
            session.forget()
            self._settled.add(slot)

    def _end(self, slot: int) -> None:
        self._settled.discard(slot)
        self._openings.pop(slot, None)
        session = self._sessions.pop(slot, None)
        if session is not None:
            self.over[slot] = session
