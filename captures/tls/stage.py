"""Segments -> segments: the payload of TLS connections becomes what was said, where keys open it.

In: `Segments` of one shard, and secrets: a key log, and blocks of pcapng files with the ordinal of the packet that they
come before. Out: `Segments` in the same order, with plaintext in the place of records. Rules

- A connection is TLS where the first payload of it that was captured begins with a handshake record (RFC 8446, 5.1),
  at once or behind what a balancer or a proxy is told; or where it begins with records that a traffic secret opens
  (TLS 1.3, of a connection that the capture did not see begin). Rows of other connections pass as they are.
- Each plaintext byte has the packet, time and place of the ciphertext byte that carried it; the row became certain with
  its record's last packet (`SEG_COMPLETED_BY`).
- Bytes that become no plaintext (handshakes, headers, tags, padding, records without a key) are counted: they are
  `Session.bytes_in` - `given`.
- What comes out depends on the connection's packets, and on the secrets known before them: not on windows or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.streams import Segments
from kwire.captures.tls.ciphers import Keys
from kwire.captures.tls.detection import HEAD, TlsDetector, begins_tls, may_follow
from kwire.captures.tls.direction import LARGEST, Direction, Row
from kwire.captures.tls.keylog import TRAFFIC, KeyLog
from kwire.captures.tls.runs import Output, Sources, opened
from kwire.captures.tls.session import Session

_NEW, _PLAIN, _TLS = 0, 1, 2

FEWEST: Final = 4
"""Rows of a direction that are worth it to be opened at once."""

MOST: Final = 1 << 16
"""Rows that are tried at once; fewer where tries have ended early, so that they cost no more than what they bring."""

MOST_DOUBTED: Final = 4 * LARGEST
"""Bytes of a connection that wait until it is known whether a secret opens its records, whose beginning nobody saw."""


class _Heap:
    """Memory for plaintext and its rows, used again window by window."""

    def __init__(self) -> None:
        self.data = np.empty(1 << 16, np.uint8)
        self.used = 0
        self.rows = np.empty((FEWEST, t.SEG_COLUMNS), np.int64)
        self.places = np.empty(FEWEST, np.int64)
        self.full = 0

    def begin(self) -> None:
        """Another window."""
        self.used = self.full = 0

    def tables(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Memory for so many rows more, and for their places. What others hold of it stays as it is."""
        if self.full + size > len(self.rows):
            many = max(2 * len(self.rows), size)
            self.rows, self.places, self.full = np.empty((many, t.SEG_COLUMNS), np.int64), np.empty(many, np.int64), 0
        return self.rows[self.full :], self.places[self.full :]

    def room(self, size: int) -> np.ndarray:
        """Memory for so many bytes more, and one."""
        if self.used + size >= len(self.data):
            more = np.empty(max(2 * len(self.data), self.used + size + 1), np.uint8)
            more[: self.used] = self.data[: self.used]
            self.data = more
        return self.data[self.used :]

    def put(self, data: bytes) -> int:
        """Where they are."""
        at = self.used
        self.room(len(data))[: len(data)] = np.frombuffer(data, np.uint8)
        self.used += len(data)
        return at


class _Out:
    """The rows that come out, each with the place of the row it stands for; `heap` has their bytes."""

    def __init__(self, heap: _Heap) -> None:
        self.rows: list[Row] = []
        self.places: list[int] = []
        self.many: list[tuple[np.ndarray, np.ndarray]] = []
        self.heap = heap
        self.place = self.completed_by = 0

    def room(self, rows: int, size: int) -> Output:
        return Output(*self.heap.tables(rows), self.heap.room(size))

    def take(self, rows: int, used: int) -> None:
        heap = self.heap
        filled = slice(heap.full, heap.full + rows)
        if heap.used:
            heap.rows[filled, t.SEG_AT] += heap.used
        self.many.append((heap.rows[filled], heap.places[filled]))
        heap.full += rows
        heap.used += used

    def at(self, place: int, completed_by: int) -> None:
        self.place, self.completed_by = place, completed_by

    def put(self, row: Row) -> None:
        self.rows.append(row)
        self.places.append(self.place)

    def text(self, row: Row, data: bytes) -> None:
        new = list(row)
        new[t.SEG_SOURCE], new[t.SEG_AT], new[t.SEG_LENGTH] = 1, self.heap.put(data), len(data)
        new[t.SEG_COMPLETED_BY] = self.completed_by
        self.put(new)

    def hole(self, size: int, row: Row) -> None:
        new = list(row)
        new[t.SEG_KIND], new[t.SEG_SOURCE], new[t.SEG_AT], new[t.SEG_LENGTH] = t.GAP, 0, 0, size
        new[t.SEG_NUMBER] = new[t.SEG_FILE] = new[t.SEG_RECORD_AT] = 0
        new[t.SEG_PACKET_INDEX] = new[t.SEG_COMPLETED_BY] = self.completed_by
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
        self._openings: dict[int, TlsDetector] = {}
        self._doubted: dict[int, list[tuple[Row, bytes | None]]] = {}
        self.over: dict[int, Session] = {}
        self._connections: np.ndarray | None = None
        self._heap = _Heap()
        self._plainly: set[int] = set()  # no TLS after all, as this window has shown

    def leave(self, slots: np.ndarray) -> None:
        """Connections in these slots have begun already: they stay as they are."""
        self._grow(int(slots.max(initial=0)))
        self._state[slots] = _PLAIN

    def take_up(self, secrets: Sequence[bytes]) -> None:
        """Its connections were stored without keys. `secrets`: of the blocks that the files brought before."""
        for block in secrets:
            self._own.take(block)
        self._blocks = len(secrets)
        for session in self._sessions.values():
            session.take_up(self._own)

    def oldest(self) -> int | None:
        """Index of the first packet with bytes that wait here."""
        indices = [oldest for session in self._sessions.values() if (oldest := session.oldest()) is not None]
        indices += [opening.held[0][0][t.SEG_PACKET_INDEX] for opening in self._openings.values()]
        indices += [held[0][0][t.SEG_PACKET_INDEX] for held in self._doubted.values() if held]
        return min(indices, default=None)

    def take(
        self, segments: Segments, blocks: Sequence[tuple[int, bytes]] = (), connections: np.ndarray | None = None
    ) -> Segments:
        """One window. `blocks`: all secrets that pcapng files brought so far, each with the ordinal of the packet that
        comes next; `connections`: the rows of `kwire.captures.streams` by slot, where those matter that the capture did
        not see begin."""
        self.over = {}
        self._connections = connections
        rows = segments.rows
        if not len(rows):
            return segments
        tls_rows = self._tls_rows(rows, segments)
        self._heap.begin()
        out = _Out(self._heap)
        if self._live:
            self._resume(out, int(rows[0, t.SEG_COMPLETED_BY]))
        later = _Later(rows, tls_rows)
        if self._blocks == len(blocks) or blocks[self._blocks][0] > int(rows[-1, t.SEG_COMPLETED_BY]):
            self._all(tls_rows, later, segments, out)
        place = -1
        while (place := later.next(place)) >= 0:
            row = rows[place].tolist()
            out.at(place, row[t.SEG_COMPLETED_BY])
            while self._blocks < len(blocks) and blocks[self._blocks][0] <= row[t.SEG_COMPLETED_BY]:
                self._own.take(blocks[self._blocks][1])
                self._blocks += 1
                self._resume(out, row[t.SEG_COMPLETED_BY])
            self._row(row, segments, out)
            if row[t.SEG_KIND] == t.DATA:
                self._many(row[t.SEG_KEY], place, later, segments, out)
        for slot in self._plainly:
            self._state[slot] = _PLAIN
        self._plainly.clear()
        ended = rows[rows[:, t.SEG_KIND] == t.END, t.SEG_KEY] >> 1
        self._state[ended] = _NEW
        return _joined(segments, tls_rows, out) if len(tls_rows) or out.rows else segments

    def _grow(self, top: int) -> None:
        if top >= len(self._state):
            self._state = np.append(self._state, np.zeros(max(len(self._state), top + 1 - len(self._state)), np.uint8))

    def _tls_rows(self, rows: np.ndarray, segments: Segments) -> np.ndarray:
        """Which rows are of TLS connections, from their first payload on."""
        slots = rows[:, t.SEG_KEY] >> 1
        self._grow(int(slots.max()))
        if self._since:
            self._state[slots[(rows[:, t.SEG_COMPLETED_BY] < self._since) & (self._state[slots] == _NEW)]] = _PLAIN
        fresh = np.flatnonzero((self._state[slots] == _NEW) & (rows[:, t.SEG_KIND] == t.DATA))
        begins = np.zeros(len(self._state), np.int64)
        for slot, first in zip(*np.unique(slots[fresh], return_index=True), strict=True):
            place = int(fresh[first])
            source, at, size = rows[place, [t.SEG_SOURCE, t.SEG_AT, t.SEG_LENGTH]].tolist()
            self._state[slot] = self._begun(int(slot), segments.sources[source][at : at + size])
            begins[slot] = place
        tls_rows: np.ndarray = np.flatnonzero(self._state[slots] == _TLS)
        return tls_rows[tls_rows >= begins[slots[tls_rows]]] if len(fresh) else tls_rows

    def _begun(self, slot: int, first: np.ndarray) -> int:
        """Classify a connection by its first payload."""
        head = first[:HEAD].tobytes()
        if begins_tls(head):
            return _TLS
        if may_follow(head):
            self._openings[slot] = TlsDetector()
            return _TLS
        seen = self._connections is None or self._connections[slot, t.C_SYN_SIDE] >= 0
        if seen or not self._own.has(TRAFFIC) or not first[0]:  # a request's size begins with a zero
            return _PLAIN
        self._doubted[slot] = []
        return _TLS

    def _row(self, row: Row, segments: Segments, out: _Out) -> None:
        slot, kind = row[t.SEG_KEY] >> 1, row[t.SEG_KIND]
        if slot in self._openings and not self._opened(slot, row, segments, out):
            return
        if slot in self._plainly:
            self._pass(row, segments, out)
            return
        if slot in self._doubted:
            self._doubt(slot, row, segments, out)
            return
        session = self._session(slot)
        if kind == t.DATA:
            session.data(row, _bytes(row, segments), out)
        elif kind in (t.GAP, t.SNAPLEN):
            session.missing(row, out)
        else:
            session.over(row, out)
            if kind == t.END:
                other = list(row)
                other[t.SEG_KEY] ^= 1
                session.over(other, out)
                self.over[slot] = self._sessions.pop(slot)
            out.put(row)

    def _all(self, tls_rows: np.ndarray, later: _Later, segments: Segments, out: _Out) -> None:
        """Decrypt at once the records of all directions whose keys were known before this window."""
        if not self._sessions or len(tls_rows) < FEWEST:
            return
        keys = segments.rows[tls_rows, t.SEG_KEY]
        counts = np.bincount(keys)
        steady: list[tuple[Keys, Direction]] = []
        whose: list[tuple[Session, int]] = []
        numbers = np.full(len(counts), -1, np.int64)
        for key in np.flatnonzero(counts >= FEWEST).tolist():
            session = self._sessions.get(key >> 1)
            ready = session.steady(key & 1) if session is not None and not self._unsure(key >> 1) else None
            if session is not None and ready is not None:
                numbers[key] = len(steady)
                steady.append(ready)
                whose.append((session, key & 1))
        if not steady:
            return
        sources = Sources(*segments.sources)
        runs = opened(steady, segments.rows, tls_rows, numbers[keys], later.done, sources, out)
        for (session, side), run in zip(whose, runs, strict=True):
            session.worked(side, run, segments.rows, out)

    def _many(self, key: int, place: int, later: _Later, segments: Segments, out: _Out) -> None:
        """Decrypt at once all of this window that belongs to a direction whose keys are known."""
        session = self._sessions.get(key >> 1)
        if session is None or self._unsure(key >> 1):
            return
        while (ready := session.steady(key & 1)) is not None:
            places = later.payload(key, place)
            if len(places) < FEWEST:
                return
            turns = np.zeros(len(places), np.int64)
            (run,) = opened([ready], segments.rows, places, turns, later.done, Sources(*segments.sources), out)
            session.worked(key & 1, run, segments.rows, out)
            later.tried(key, len(places), run.whole)
            if run.whole < len(places):
                return  # what comes next is to be looked at by itself
            place = int(places[-1])

    def _unsure(self, slot: int) -> bool:
        """Whether it is not known yet that a connection is TLS."""
        return slot in self._openings or slot in self._doubted or slot in self._plainly

    def _opened(self, slot: int, row: Row, segments: Segments, out: _Out) -> bool:
        """Hold a row of a connection that may be TLS. Returns whether the row is still to be worked on."""
        opening = self._openings[slot]
        data = row[t.SEG_KIND] == t.DATA
        if data and opening.take(row, _bytes(row, segments)) is None:
            return False
        del self._openings[slot]
        if not opening.tls:
            self._plainly.add(slot)
        for part, text, inside in opening.parts():
            if inside:
                self._session(slot).data(part, text, out)
            else:
                out.text(part, text)
        return not data

    def _doubt(self, slot: int, row: Row, segments: Segments, out: _Out) -> None:
        """A row of a connection that may be TLS from its middle: it is, once a secret opens one of its records."""
        held = self._doubted[slot]
        session = self._sessions.setdefault(slot, Session(self._own, midstream=True))
        if row[t.SEG_KIND] == t.DATA:
            data = _bytes(row, segments)
            held.append((row, data))
            session.data(row, data, out)
            if session.known:
                del self._doubted[slot]
                return
            if sum(len(text or b"") for _, text in held) <= MOST_DOUBTED:
                return
        elif row[t.SEG_KIND] in (t.GAP, t.SNAPLEN):
            held.append((row, None))
            session.missing(row, out)
            return
        del self._doubted[slot], self._sessions[slot]
        self._plainly.add(slot)
        for part, text in held:
            if text is None:
                out.put(part)
            else:
                out.text(part, text)
        if row[t.SEG_KIND] != t.DATA:
            out.put(row)

    def _pass(self, row: Row, segments: Segments, out: _Out) -> None:
        """A row as it is."""
        if row[t.SEG_KIND] == t.DATA:
            out.text(row, _bytes(row, segments))
        else:
            out.put(row)

    def _session(self, slot: int) -> Session:
        session = self._sessions.get(slot)
        if session is None:
            session = self._sessions[slot] = Session(self._own, self._live or self._blocks > 0)
        return session

    def _resume(self, out: _Out, completed_by: int) -> None:
        """There are more keys: whoever waited for them goes on."""
        out.completed_by = completed_by
        for session in self._sessions.values():
            if session.waits:
                session.resume(out)


class _Later:
    """The rows of a window that are still to come. `done` (uint8 by place): 1 for a row of no TLS connection, and for
    one that has been worked on ahead of others."""

    def __init__(self, rows: np.ndarray, tls_rows: np.ndarray) -> None:
        self._rows, self._tls_rows = rows, tls_rows
        self._by_key: dict[int, np.ndarray] | None = None
        self._most: dict[int, int] = {}
        self._done = bytearray(b"\1") * len(rows)
        self.done = np.frombuffer(self._done, np.uint8)
        self.done[tls_rows] = 0

    def next(self, place: int) -> int:
        """The place of the next row that is still to be worked on; -1: there is none."""
        return self._done.find(0, place + 1)

    def payload(self, key: int, place: int) -> np.ndarray:
        """Places of a direction's rows behind this one, as long as they are payload, and as many as are to be tried."""
        if self._by_key is None:
            keys = self._rows[self._tls_rows, t.SEG_KEY]
            order = np.argsort(keys, kind="stable")
            known, begins = np.unique(keys[order], return_index=True)
            self._by_key = dict(zip(known.tolist(), np.split(self._tls_rows[order], begins[1:]), strict=True))
        places = self._by_key[key]
        begin = int(np.searchsorted(places, place, "right"))
        places = places[begin : begin + self._most.get(key, MOST)]
        others = np.flatnonzero(self._rows[places, t.SEG_KIND] != t.DATA)
        return places[: others[0]] if len(others) else places

    def tried(self, key: int, count: int, whole: int) -> None:
        """Count rows that were tried, and those of them that were worked on."""
        self._most[key] = min(4 * count, MOST) if whole == count else max(2 * whole, FEWEST)


def _bytes(row: Row, segments: Segments) -> bytes:
    at = row[t.SEG_AT]
    data: bytes = segments.sources[row[t.SEG_SOURCE]][at : at + row[t.SEG_LENGTH]].tobytes()
    return data


def _joined(segments: Segments, tls_rows: np.ndarray, out: _Out) -> Segments:
    """The rows of other connections as they are, and what came out, each where its row was."""
    passed = np.ones(len(segments.rows), np.bool_)
    passed[tls_rows] = False
    others = segments.rows[passed]
    heap = out.heap
    for i in np.flatnonzero((others[:, t.SEG_SOURCE] == 1) & (others[:, t.SEG_KIND] == t.DATA)).tolist():
        at, size = others[i, [t.SEG_AT, t.SEG_LENGTH]].tolist()  # the waiting bytes, which plaintext takes the place of
        others[i, t.SEG_AT] = heap.put(segments.sources[1][at : at + size].tobytes())
    decrypted = [rows for rows, _ in out.many]
    stand = [places for _, places in out.many]
    if out.rows:
        decrypted.append(
            np.array(out.rows, np.int64).reshape(-1, t.SEG_COLUMNS)
        )  # behind the many, where they share a place
        stand.append(np.array(out.places, np.int64))
    if len(others) or not decrypted:
        decrypted.insert(0, others)
        stand.insert(0, np.flatnonzero(passed))
    alone = len(decrypted) == 1  # as it is: rows live as long as the bytes that they name
    places = stand[0] if alone else np.concatenate(stand)
    rows = decrypted[0] if alone else np.concatenate(decrypted)
    if (places[1:] < places[:-1]).any():
        rows = rows[np.argsort(places, kind="stable")]
    return Segments(rows, (segments.sources[0], heap.data))
