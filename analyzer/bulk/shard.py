"""One shard's framing and matching: owns the tables of `state`, grows them, and hands out what has ended.

In: `Segments`, window by window. Out: a `ShardResult` for each: exchanges that ended, connections that ended,
facts and (where asked for) raw messages. Kernels never allocate: they come back with the table that is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.fields import BY_ROLE_COLUMNS
from kwire.analyzer.bulk.framing import PREFIX, converse
from kwire.analyzer.bulk.projection import roles
from kwire.analyzer.bulk.regions import begin_drop
from kwire.analyzer.bulk.shard_result import OPEN_COLUMNS, ShardResult, connections, path_delay_behind, sealed
from kwire.analyzer.bulk.symbols import COUNT, Symbols, content, fresh, grown, of_all, without
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.protocol import schema
from kwire.analyzer.protocol.program import STACK_DEPTH, load
from kwire.captures.cache import cached
from kwire.captures.flows import Assigned, Flows
from kwire.captures.kernels import Bytes, Int, Table, copy_bytes, doubled, kernel
from kwire.captures.packets import no_packets
from kwire.captures.stream_tables import D_CAPTURED, D_PACKETS, SEG_COLUMNS, SEG_COMPLETED_BY, SEG_PACKET_INDEX
from kwire.captures.streams import Segments, Streams
from kwire.captures.tls.clear_handshakes import ClearHandshakes
from kwire.captures.tls.stage import Stage

FRAME_LIMIT = 512 << 20
"""Bytes of frames in progress; beyond that the largest ones are only counted, and so is a frame larger than `largest`,
which does not depend on threads."""


MOST_SYMBOLS: Final = 1 << 15
"""Strings, and lists, that a shard knows before it lets go of those that nothing in progress names; of more in progress
twice as many."""

ROWS_AT_ONCE: Final = 1 << 16
"""Exchanges, and topic-partitions, that a window hands out at once: what is made of them takes half a gigabyte for each
million, and a window of small requests may hold as many."""

_AT_ONCE: Final = 4
"""Times that a table of what comes out becomes larger: what was filled of a smaller one was cleared by the system for
nothing, and what is not filled of a larger one takes no memory."""

MOST_KEPT_SLAB: Final = 16 << 20
"""Of the memory that regions were in before they moved, as much is kept for the next time."""
_NO_BYTES: Final = np.zeros(0, np.uint8)

_NAMED: Final = {
    "pending": (s.X_CLIENT_ID, s.X_GROUP, s.X_MEMBER, s.X_TRANSACTIONAL_ID, s.X_RACK_ID),
    "rows": (s.P_SECTION, s.P_TOPIC, s.P_TOPIC_ID),
    "k": (s.K_CLIENT_ID, s.K_SOFTWARE_NAME, s.K_SOFTWARE_VERSION, s.K_MECHANISM, s.K_PREFIX_TEXT),
}
"""Columns of what goes on from window to window that are symbols of strings."""

_GROWN: Final = {
    s.NEED_MARKS: ("framing", "marks"),
    s.NEED_PENDING: ("matching", "pending"),
    s.NEED_STRINGS: ("matching", "strings"),
    s.NEED_LISTS: ("matching", "lists"),
    s.NEED_TAPE: ("matching", "tape"),
    s.NEED_TOPICS: ("matching", "topics"),
    s.NEED_PARTS: ("parts", "rows"),
    s.NEED_LOOKUP: ("parts", "lookup"),
    s.NEED_LEADERS: ("parts", "leaders"),
    s.NEED_SETS: ("parts", "sets"),
    s.NEED_OUT: ("output", "exchanges"),
    s.NEED_PARTS_OUT: ("output", "parts"),
    s.NEED_FACTS: ("output", "facts"),
    s.NEED_MESSAGES: ("output", "messages"),
    s.NEED_ENDED: ("output", "ended"),
}
"""By what a kernel comes back for: the part of `State` and the table that is full. Only the slab is another matter."""

_WITH_BYTES: Final = {
    s.NEED_MESSAGES: ("message_bytes", s.V_MESSAGE_BYTES),
    s.NEED_SETS: ("set_bytes", s.V_SET_BYTES),
}
"""Tables whose rows have their bytes in an array of the same part: it, and the counter of the bytes in use."""


@kernel
def move_regions(f: Table, slab: Bytes, into: Bytes) -> Int:
    """Copy the regions in use to the front of `into`, each at its full size; returns how much room they take."""
    used = np.int64(0)
    for key in range(len(f)):
        room = f[key, s.F_ROOM]
        if room > 0:
            at = f[key, s.F_AT]
            copy_bytes(into, used, slab, at, f[key, s.F_HAVE])
            f[key, s.F_AT] = used
            used += room
    return used


def _symbols(column: np.ndarray, count: int) -> np.ndarray:
    """Return the symbols below `count` in a column, each once. Rows that were never used hold zeros."""
    return distinct(column[(column >= 0) & (column < count)])


def _renumber(column: np.ndarray, becomes: np.ndarray) -> None:
    """Put other numbers into a column of symbols: becomes[symbol] for each; what is none stays."""
    here = (column >= 0) & (column < len(becomes))
    column[here] = becomes[column[here]]


def layouts() -> s.Layouts:
    """The program and roles as kernels take them, made once a machine: a start does not need their names."""
    return s.Layouts(*cached("layouts", schema.sources(), lambda: list(_layouts())))


def _layouts() -> s.Layouts:
    program = load()
    role, parent = roles(program)
    return s.Layouts(
        program.code,
        program.tags,
        program.tag_entries,
        program.start,
        program.flexible,
        program.header_version,
        program.max_version,
        role,
        parent,
    )


def compile_converse() -> None:
    """Compile the largest kernel: work through a capture without packets."""
    streams, nothing = Streams(), no_packets()
    rows, waiting = np.zeros((1, SEG_COLUMNS), np.int64)[:0], np.zeros(1, np.uint8)
    Conversations(layouts()).take(Segments(rows, (nothing.buffer, waiting)), streams, Flows().all_end(), True)


@dataclass(slots=True)
class _Work:
    """One window, worked off up to `next_segment`."""

    segments: Segments
    streams: Streams
    assigned: Assigned
    tls: Stage | None
    next_segment: int = 0


class Conversations:
    """The tables of one shard. Not safe to share between threads. `rows_at_once`: so many exchanges, or
    topic-partitions, are handed out before the window's end (`ShardResult.stopped_at`); 0: never."""

    def __init__(
        self,
        lay: s.Layouts,
        ports: tuple[int, ...] = (),
        keep_messages: bool | frozenset[int] = False,
        limit: int = FRAME_LIMIT,
        largest: int = FRAME_LIMIT,
        keep_records: int = 0,
        keep_giants: bool = False,
        rows_at_once: int = 0,
    ) -> None:
        self._lay = lay
        self._rows_at_once = rows_at_once
        self._work: _Work | None = None
        self._ports = np.array(sorted(ports), np.int64)
        self._limit = limit
        v = np.zeros(s.V_COLUMNS, np.int64)
        v[s.V_MARK_FREE] = v[s.V_PENDING_FREE] = v[s.V_PART_FREE] = -1
        v[s.V_RECORDS] = keep_records
        keep = np.zeros(s.KEPT_APIS, np.uint8)
        if isinstance(keep_messages, bool):
            v[s.V_KEEP] = s.KEEP_ALL if keep_messages else s.KEEP_NONE
        else:
            v[s.V_KEEP] = s.KEEP_SOME_WHOLE if keep_giants else s.KEEP_SOME
            keep[list(keep_messages)] = 1
        v[s.V_FRAME_LIMIT] = largest
        self._state = s.State(
            s.Framing(
                f=np.zeros((512, s.F_COLUMNS), np.int64),
                k=np.zeros((256, s.K_COLUMNS), np.int64),
                slab=np.zeros(1 << 20, np.uint8),
                marks=np.zeros((1 << 12, s.MARK_COLUMNS), np.int64),
                frame=np.zeros(s.FR_COLUMNS, np.int64),
                v=v,
            ),
            s.Matching(
                pending=np.zeros((1 << 10, s.X_PENDING_COLUMNS), np.int64),
                row=np.zeros(s.X_PENDING_COLUMNS, np.int64),
                by_role=np.zeros(BY_ROLE_COLUMNS, np.int64),
                topics=np.zeros(1 << 10, np.int64),
                tape=np.zeros((1 << 12, 5), np.int64),
                stack=np.zeros((STACK_DEPTH, 3), np.int64),
                strings=fresh(),
                lists=fresh(),
                scratch=np.zeros(1 << 12, np.uint8),
                v=v,
            ),
            s.Parts(
                rows=np.zeros((1 << 10, s.P_PENDING_COLUMNS), np.int64),
                lookup=np.zeros(1 << 8, np.int64),
                leaders=np.zeros((1 << 8, s.L_COLUMNS), np.int64),
                sets=np.zeros((1 << 8, s.SET_COLUMNS), np.int64),
                set_bytes=np.zeros(1 << 16, np.uint8),
                v=v,
            ),
            s.Output(
                exchanges=np.zeros((1 << 13, s.X_ENDED_COLUMNS), np.int64),
                parts=np.zeros((1 << 12, s.P_COLUMNS), np.int64),
                facts=np.zeros((1 << 10, s.FACT_COLUMNS), np.int64),
                keep=keep,
                messages=np.zeros((1 << 8, s.MSG_COLUMNS), np.int64),
                message_bytes=np.zeros(1 << 16, np.uint8),
                ended=np.zeros((1 << 8, 2), np.int64),
                v=v,
            ),
        )
        self._v = v
        self._strings_out = 0
        self._overheard = ClearHandshakes()
        self._lists_out = 0
        self._most_strings = self._most_lists = MOST_SYMBOLS
        # Exchanges and record sets are handed out as views. Whoever reads those of one window does so while the next
        # one is worked on, so two buffers take turns.
        self._spare = (self._state.parts.sets.copy(), self._state.parts.set_bytes.copy())
        self._other_slab = _NO_BYTES
        self._spare_out = (np.empty_like(self._state.output.exchanges), np.empty_like(self._state.output.parts))

    def begun(self) -> np.ndarray:
        """Slots of this shard's connections with segments so far."""
        slots: np.ndarray = np.flatnonzero(self._state.framing.k[:, s.K_STARTED])
        return slots

    def take(
        self, segments: Segments, streams: Streams, assigned: Assigned, final: bool = False, tls: Stage | None = None
    ) -> ShardResult:
        """Work through one window's segments, as far as `rows_at_once` allows. `final`: the capture ends with them;
        `tls`: what they came through."""
        slots = len(streams.connections)
        while len(self._state.framing.k) < slots:
            for name in ("k", "f"):
                self._put("framing", name, doubled(getattr(self._state.framing, name)))
        v = self._v
        strings, lists = (
            int(symbols.state[COUNT]) for symbols in (self._state.matching.strings, self._state.matching.lists)
        )
        anew = strings > self._most_strings or lists > self._most_lists
        if anew:
            self._number_anew()
        v[s.V_FINAL], v[s.V_SHARD], v[s.V_SHARDS] = final, streams.shard, streams.shards
        self._work = _Work(segments, streams, assigned, tls)
        return replace(self.go_on(), anew=anew)

    def go_on(self) -> ShardResult:
        """Work on where the last result of this window stopped."""
        work, v = self._work, self._v
        assert work is not None
        self._take_turns()
        v[s.V_OUT] = v[s.V_FACTS] = v[s.V_MESSAGES] = v[s.V_MESSAGE_BYTES] = v[s.V_ENDED] = 0
        v[s.V_PARTS_OUT] = v[s.V_LEADERS] = v[s.V_SETS] = v[s.V_SET_BYTES] = 0
        segments, begin = work.segments, work.next_segment
        while True:
            status, work.next_segment = converse(
                work.next_segment,
                segments.rows,
                segments.sources[0],
                segments.sources[1],
                work.streams.connections,
                work.assigned.pairs,
                self._ports,
                self._state,
                self._lay,
            )
            if status == s.OK or self._is_enough(status):
                break
            self._grow(status)
        self._hold_limit()
        if v[s.V_TLS]:  # of most captures nothing is TLS
            rows = segments.rows[begin : work.next_segment]
            self._overheard.take(Segments(rows, segments.sources), np.flatnonzero(self._state.framing.k[:, s.K_TLS]))
        result = self._ended(work.streams, work.tls)
        if status == s.OK:
            self._work = None
            return result
        rest = segments.rows[work.next_segment :]
        first = int(rest[:, SEG_PACKET_INDEX].min())
        oldest = first if result.oldest is None else min(first, result.oldest)
        return replace(result, oldest=oldest, stopped_at=int(rest[0, SEG_COMPLETED_BY]))

    def _is_enough(self, status: int) -> bool:
        """Whether a table that is full is handed out, not made larger. (At the capture's end it is not: then rows of
        all shards have one order.)"""
        most, v = self._rows_at_once, self._v
        rows = {s.NEED_OUT: v[s.V_OUT], s.NEED_PARTS_OUT: v[s.V_PARTS_OUT]}.get(status, 0)
        return bool(most and rows > most // 2 and not v[s.V_FINAL])

    def _take_turns(self) -> None:
        """Write to other memory than the last time: the caller still reads that."""
        if self._v[s.V_RECORDS]:
            parts = self._state.parts
            spare = (parts.sets, parts.set_bytes)
            self._state = self._state._replace(parts=parts._replace(sets=self._spare[0], set_bytes=self._spare[1]))
            self._spare = spare
        output = self._state.output
        # As many rows as the window before had will do for this one too.
        exchanges, rows = (
            spare if len(spare) == len(last) else np.empty_like(last)
            for spare, last in zip(self._spare_out, (output.exchanges, output.parts), strict=True)
        )
        self._spare_out = (output.exchanges, output.parts)
        self._state = self._state._replace(output=output._replace(exchanges=exchanges, parts=rows))

    def _number_anew(self) -> None:
        """Between two windows: strings and lists that nothing in progress names go, and the others get other numbers.
        So what is kept of names is bounded by what is open."""
        state, v = self._state, self._v
        strings, lists = state.matching.strings, state.matching.lists
        pending = state.matching.pending[: v[s.V_PENDINGS]]
        tables = {"pending": pending, "rows": state.parts.rows[: v[s.V_PARTS]], "k": state.framing.k}
        listed = content(lists, 0)
        of_strings, of_numbers = (_symbols(pending[:, column], len(listed)) for column in (s.X_TOPICS, s.X_ERRORS))
        named = [np.frombuffer(listed[symbol], "<i4") for symbol in of_strings.tolist()]
        wanted = np.zeros(int(strings.state[COUNT]), np.bool_)
        for name, columns in _NAMED.items():
            for column in columns:
                wanted[_symbols(tables[name][:, column], len(wanted))] = True
        for symbols in named:
            wanted[symbols] = True
        left, becomes = without(strings, wanted)
        for name, columns in _NAMED.items():
            for column in columns:
                _renumber(tables[name][:, column], becomes)
        # The same bytes may be a list of strings and one of numbers: only the former changes as strings do.
        texts = [becomes[symbols].astype("<i4").tobytes() for symbols in named]
        left_lists, numbers = of_all([*texts, *(listed[symbol] for symbol in of_numbers.tolist())])
        for column, used, now in (
            (s.X_TOPICS, of_strings, numbers[: len(named)]),
            (s.X_ERRORS, of_numbers, numbers[len(named) :]),
        ):
            becomes = np.full(len(listed), -1, np.int64)
            becomes[used] = now
            _renumber(pending[:, column], becomes)
        self._put("matching", "strings", left)
        self._put("matching", "lists", left_lists)
        self._strings_out = self._lists_out = 0
        self._most_strings = max(MOST_SYMBOLS, 2 * int(left.state[COUNT]))
        self._most_lists = max(MOST_SYMBOLS, 2 * int(left_lists.state[COUNT]))

    @property
    def in_progress(self) -> int:
        """Bytes set aside for frames that are not complete."""
        return int(self._v[s.V_SLAB_LIVE])

    def _oldest(self, streams: Streams, tls: Stage | None) -> int | None:
        """Index of the first packet of pending requests, frames in progress and waiting segments."""
        state = self._state
        f, k = state.framing.f, state.framing.k
        heads = k[(k[:, s.K_STARTED] != 0) & (k[:, s.K_HEAD] >= 0), s.K_HEAD]
        marks = f[(f[:, s.F_HAVE] > 0) & (f[:, s.F_MARKS] >= 0), s.F_MARKS]
        indices = [
            state.matching.pending[heads, s.X_PACKET_INDEX],
            state.framing.marks[marks, s.MARK_PACKET_INDEX],
            streams.waiting_indices(),
        ]
        if tls is not None and (oldest := tls.oldest()) is not None:
            indices.append(np.array([oldest]))
        return min((int(values.min()) for values in indices if len(values)), default=None)

    def open_requests(self, streams: Streams) -> np.ndarray:
        """int64[n, OPEN_COLUMNS]: requests without an answer so far, those of a connection in their order."""
        state = self._state
        k, pending = state.framing.k, state.matching.pending
        is_open = (k[:, s.K_STARTED] != 0) & (k[:, s.K_HEAD] >= 0) & (k[:, s.K_CLASS] == s.KAFKA)
        heads, following = k[is_open, s.K_HEAD].tolist(), pending.item
        rows: list[int] = []
        while heads:  # few connections, of which some have a thousand requests open: numbers, not arrays
            rows += heads
            heads = [after for row in heads if (after := following(row, s.X_NEXT)) >= 0]
        if not rows:
            return np.zeros((0, OPEN_COLUMNS), np.int64)
        every = pending[np.array(rows, np.int64)]
        # Produce with acks=0 is not answered.
        every = every[(every[:, s.X_REQUEST_LAST_NS] != s.NULL) & (every[:, s.X_ACKS] != 0)]
        own = every[:, s.X_SLOT]
        columns = (s.X_REQUEST_LAST_NS, s.X_API_KEY, s.X_ACKS, s.X_MAX_WAIT, s.X_CLIENT_ID)
        return np.stack([streams.slots(own), k[own, s.K_CLIENT], *(every[:, column] for column in columns)], axis=1)

    def _put(self, part: str, name: str, table: Any) -> None:
        """Another array in the place of a table."""
        self._state = self._state._replace(**{part: getattr(self._state, part)._replace(**{name: table})})

    def _grow(self, status: int) -> None:
        """Make room in the table that a kernel came back for."""
        if status == s.NEED_SLAB:
            self._grow_slab()
            return
        frame = int(self._state.framing.frame[s.FR_HAVE])
        part, name = _GROWN[status]
        if status in _WITH_BYTES:
            # Rows whose bytes lie elsewhere: those of the frame at hand must fit, or else a row is missing.
            heap_name, counter = _WITH_BYTES[status]
            heap, used = getattr(getattr(self._state, part), heap_name), int(self._v[counter])
            if used + frame > len(heap):
                more = np.empty(max(used + frame, 2 * len(heap)), np.uint8)
                more[:used] = heap[:used]
                self._put(part, heap_name, more)
                return
        table = getattr(getattr(self._state, part), name)
        if isinstance(table, Symbols):
            room = frame + (1 << 16) if name == "strings" else len(self._state.matching.scratch)
            self._put(part, name, grown(table, room))
        else:
            times = _AT_ONCE if part == "output" and len(table) * _AT_ONCE <= ROWS_AT_ONCE else 2
            self._put(part, name, doubled(table, times))
        if status == s.NEED_TOPICS:
            self._put(part, "scratch", np.zeros(4 * len(self._state.matching.topics), np.uint8))

    def _grow_slab(self) -> None:
        slab, v = self._state.framing.slab, self._v
        live = int(v[s.V_SLAB_LIVE])
        # Most of it may be regions given up: then moving the rest together may be enough. Not where there are none:
        # a region larger than the whole slab is asked for.
        given_up = int(v[s.V_SLAB]) > live
        room = len(slab) if given_up and live * 2 < len(slab) // 2 else len(slab) * 2
        self._move_slab(room)

    def _move_slab(self, room: int) -> None:
        """The regions in use, together at the front of other memory: that which they were in before, where it is as
        large. (Large messages fill a slab several times a window, and fresh memory is cleared first.)"""
        framing = self._state.framing
        into = self._other_slab if len(self._other_slab) == room else np.empty(room, np.uint8)
        self._v[s.V_SLAB] = move_regions(framing.f, framing.slab, into)
        self._other_slab = framing.slab if len(framing.slab) == room <= MOST_KEPT_SLAB else _NO_BYTES
        self._put("framing", "slab", into)

    def _hold_limit(self) -> None:
        """Where frames in progress take too much together, the largest are from now on only counted."""
        f, v, slab = self._state.framing.f, self._v, self._state.framing.slab
        while int(v[s.V_SLAB_LIVE]) > self._limit:
            key = int(np.argmax(np.where(f[:, s.F_MODE] == s.SYNC, f[:, s.F_ROOM], 0)))
            have = int(f[key, s.F_HAVE] - f[key, s.F_FROM])
            if f[key, s.F_MODE] != s.SYNC or f[key, s.F_ROOM] <= 8192 or have < 4:
                break
            begin_drop(self._state.framing, key, have, s.LIMIT)
            f[key, s.F_HAVE] = min(int(f[key, s.F_HAVE]), PREFIX)
            released = int(f[key, s.F_ROOM]) - int(f[key, s.F_HAVE])
            f[key, s.F_ROOM] = f[key, s.F_HAVE]
            v[s.V_SLAB_LIVE] -= released
        live = int(v[s.V_SLAB_LIVE])
        if len(slab) > 1 << 22 and live * 8 < len(slab):
            self._move_slab(max(1 << 20, live * 2))

    def _ended(self, streams: Streams, tls: Stage | None) -> ShardResult:
        state, v = self._state, self._v
        over = tls.over if tls is not None else {}
        for slot, session in over.items():
            k = state.framing.k[slot]
            k[s.K_TLS] = 1
            k[s.K_ENCRYPTED] += session.bytes_in - session.given
            if not session.given:
                k[s.K_FIRST_0], k[s.K_FIRST_1] = session.first
        ready, framing, symbols = state.output, state.framing, state.matching
        out, parts = ready.exchanges[: v[s.V_OUT]], ready.parts[: v[s.V_PARTS_OUT]]
        out[:, s.X_PATH_DELAY_NS] = path_delay_behind(streams.connections, out[:, s.X_SLOT] // streams.shards)
        ended = ready.ended[: v[s.V_ENDED]]
        every = ended[:, 0].copy()
        # Scans end by the hundred thousand; nobody wants their names.
        spoke = streams.directions[2 * every, D_CAPTURED] + streams.directions[2 * every + 1, D_CAPTURED] > 0
        ended = ended[spoke | (framing.k[every, s.K_CLASS] == s.KAFKA)]
        slots = ended[:, 0].copy()
        sides = (2 * slots[:, None] + np.arange(2)).ravel()
        strings, lists = content(symbols.strings, self._strings_out), content(symbols.lists, self._lists_out)
        self._strings_out += len(strings)
        self._lists_out += len(lists)
        said_clear = {**self._overheard.over, **over}
        both = (streams.directions[sides, D_PACKETS] > 0).reshape(-1, 2).all(axis=1)
        whole = both & (framing.k[slots, s.K_CLOSED] != 0)
        texts, tls_columns = sealed(slots, said_clear, whole, framing.k[slots, s.K_CLIENT])
        ended[:, 0] = streams.slots(slots)
        facts, messages, leaders = (
            table[:used].copy()
            for table, used in (
                (ready.facts, v[s.V_FACTS]),
                (ready.messages, v[s.V_MESSAGES]),
                (state.parts.leaders, v[s.V_LEADERS]),
            )
        )
        for table, column in ((facts, s.FACT_SLOT), (messages, s.MSG_SLOT), (leaders, s.L_SLOT)):
            table[:, column] = streams.slots(table[:, column])
        return ShardResult(
            exchanges=out.T,
            facts=facts,
            connections=connections(
                ended,
                framing.k[slots],
                framing.f[sides],
                streams.connections[slots],
                streams.directions[sides],
                tls_columns,
            ),
            texts=texts,
            slots=streams.slots(every),
            messages=messages,
            message_bytes=ready.message_bytes[: v[s.V_MESSAGE_BYTES]].copy(),
            parts=parts.T,
            leaders=leaders,
            sets=state.parts.sets[: v[s.V_SETS]],
            set_bytes=state.parts.set_bytes[: v[s.V_SET_BYTES]],
            strings=strings,
            lists=lists,
            oldest=self._oldest(streams, tls),
        )
