"""One shard's framing and matching: owns the tables of `analyzer.state`, grows them, and hands out what has ended.

In: `Segments`, window by window. Out: a `Batch` of columns for each: exchanges that ended, connections that ended,
facts and (where asked for) raw messages. Kernels never allocate: they come back with the table that is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer import schema
from analyzer import state as s
from analyzer.framing import converse
from analyzer.matching import FOUND_COLUMNS
from analyzer.program import STACK_DEPTH, load
from analyzer.roles import roles
from analyzer.symbols import content, fresh, grown
from captures.cache import kept
from captures.flows import Assigned, Flows, _doubled
from captures.kernels import copy_bytes, kernel
from captures.packets import no_packets
from captures.streams import SEG_COLUMNS, Segments, Streams

FRAME_LIMIT = 512 << 20
"""Bytes of frames in progress; beyond that the largest ones are only counted, and so is a frame larger than `largest`,
which does not depend on threads."""


@kernel
def transpose(rows: Any, out: Any) -> None:
    """out[c, r] = rows[r, c], in blocks that stay in the cache."""
    n, columns = rows.shape
    for start in range(0, n, 32):
        stop = min(start + 32, n)
        for c in range(columns):
            for r in range(start, stop):
                out[c, r] = rows[r, c]


@kernel
def move_regions(f: Any, slab: Any, into: Any) -> Any:
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


def layouts() -> s.Layouts:
    """The program and roles as kernels take them, made once a machine: a start does not need their names."""
    return kept("layouts", schema.sources(), _layouts)


def _layouts() -> s.Layouts:
    program = load()
    role, parent = roles(program)
    return s.Layouts(
        program.code, program.tags, program.tag_entries, program.start, program.flexible,
        program.header_version, program.max_version, role, parent,
    )  # fmt: skip


def compile_converse() -> None:
    """Compile the largest kernel: work through a capture without packets."""
    streams, nothing = Streams(), no_packets()
    rows, waiting = np.zeros((1, SEG_COLUMNS), np.int64)[:0], np.zeros(1, np.uint8)
    Conversations(layouts()).take(Segments(rows, (nothing.buffer, waiting)), streams, Flows().all_end(), True)


@dataclass(frozen=True, slots=True)
class Batch:
    """What ended in one window for one shard.

    exchanges   int64[X_COLUMNS, n] columns, ordered by X_TRIGGER
    facts       int64[m, FACT_COLUMNS]
    ended       int64[e, 2] (slot, trigger) of connections
    k, f, c, d  rows of the tables for `ended`: k and c one a connection, f and d two
    messages    int64[p, MSG_COLUMNS] and message_bytes uint8[:]
    parts       int64[P_COLUMNS, q]: topic-partitions of `exchanges`, in their order
    leaders     int64[l, L_COLUMNS]
    sets        int64[r, SET_COLUMNS] and set_bytes uint8[:]: record sets; views, valid until the take
                after the next one
    strings, lists   contents of the symbols that are new since the last batch
    oldest      ordinal of the first packet of the oldest request that may still end; None where none is open
    """

    exchanges: np.ndarray
    facts: np.ndarray
    ended: np.ndarray
    k: np.ndarray
    f: np.ndarray
    c: np.ndarray
    d: np.ndarray
    messages: np.ndarray
    message_bytes: np.ndarray
    parts: np.ndarray
    leaders: np.ndarray
    sets: np.ndarray
    set_bytes: np.ndarray
    strings: list[bytes]
    lists: list[bytes]
    oldest: int | None


class Conversations:
    """The tables of one shard. Not safe to share between threads."""

    def __init__(
        self,
        lay: s.Layouts,
        ports: tuple[int, ...] = (),
        keep_messages: bool = False,
        limit: int = FRAME_LIMIT,
        largest: int = FRAME_LIMIT,
        keep_records: bool = False,
    ) -> None:
        self._lay = lay
        self._ports = np.array(sorted(ports), np.int64)
        self._limit = limit
        v = np.zeros(s.V_COLUMNS, np.int64)
        v[s.V_MARK_FREE] = v[s.V_PENDING_FREE] = v[s.V_PART_FREE] = -1
        v[s.V_RECORDS] = keep_records
        v[s.V_KEEP] = keep_messages
        v[s.V_FRAME_LIMIT] = largest
        self._state = s.State(
            f=np.zeros((512, s.F_COLUMNS), np.int64),
            k=np.zeros((256, s.K_COLUMNS), np.int64),
            slab=np.zeros(1 << 20, np.uint8),
            marks=np.zeros((1 << 12, s.MARK_COLUMNS), np.int64),
            pending=np.zeros((1 << 10, s.X_COLUMNS), np.int64),
            out=np.zeros((1 << 13, s.X_COLUMNS), np.int64),
            facts=np.zeros((1 << 10, s.FACT_COLUMNS), np.int64),
            messages=np.zeros((1 << 8, s.MSG_COLUMNS), np.int64),
            message_bytes=np.zeros(1 << 16, np.uint8),
            ended=np.zeros((1 << 8, 2), np.int64),
            strings=fresh(),
            lists=fresh(),
            tape=np.zeros((1 << 12, 5), np.int64),
            stack=np.zeros((STACK_DEPTH, 3), np.int64),
            frame=np.zeros(s.FR_COLUMNS, np.int64),
            row=np.zeros(s.X_COLUMNS, np.int64),
            topics=np.zeros(1 << 10, np.int64),
            found=np.zeros(FOUND_COLUMNS, np.int64),
            scratch=np.zeros(1 << 12, np.uint8),
            parts=np.zeros((1 << 10, s.P_COLUMNS), np.int64),
            parts_out=np.zeros((1 << 12, s.P_COLUMNS), np.int64),
            lookup=np.zeros(1 << 8, np.int64),
            leaders=np.zeros((1 << 8, s.L_COLUMNS), np.int64),
            sets=np.zeros((1 << 8, s.SET_COLUMNS), np.int64),
            set_bytes=np.zeros(1 << 16, np.uint8),
            v=v,
        )
        self._strings_out = 0
        self._lists_out = 0
        # Record sets are handed out as views. Whoever reads those of one window does so while the next one is worked
        # on, so two buffers take turns.
        self._spare = (self._state.sets.copy(), self._state.set_bytes.copy())

    def take(self, segments: Segments, streams: Streams, assigned: Assigned, final: bool = False) -> Batch:
        """Work through one window's segments. `final`: the capture ends with them."""
        slots = len(streams.c)
        while len(self._state.k) < slots:
            self._state = self._state._replace(k=_doubled(self._state.k), f=_doubled(self._state.f))
        if self._state.v[s.V_RECORDS]:
            spare = (self._state.sets, self._state.set_bytes)
            self._state = self._state._replace(sets=self._spare[0], set_bytes=self._spare[1])
            self._spare = spare
        v = self._state.v
        v[s.V_OUT] = v[s.V_FACTS] = v[s.V_MESSAGES] = v[s.V_MESSAGE_BYTES] = v[s.V_ENDED] = 0
        v[s.V_PARTS_OUT] = v[s.V_LEADERS] = v[s.V_SETS] = v[s.V_SET_BYTES] = 0
        v[s.V_FINAL] = final
        at = 0
        while True:
            status, at = converse(
                at, segments.rows, segments.sources[0], segments.sources[1], streams.c, assigned.conn,
                assigned.flow_key, self._ports, self._state, self._lay,
            )  # fmt: skip
            if status == s.OK:
                break
            self._grow(status)
        self._hold_limit()
        return self._batch(streams)

    @property
    def in_progress(self) -> int:
        """Bytes set aside for frames that are not complete."""
        return int(self._state.v[s.V_SLAB_LIVE])

    def _oldest(self, streams: Streams) -> int | None:
        """Of requests that wait for their answer, frames in progress and packets that wait for their turn."""
        state = self._state
        heads = state.k[(state.k[:, s.K_STARTED] != 0) & (state.k[:, s.K_HEAD] >= 0), s.K_HEAD]
        marks = state.f[(state.f[:, s.F_HAVE] > 0) & (state.f[:, s.F_MARKS] >= 0), s.F_MARKS]
        found = [state.pending[heads, s.X_ORDINAL], state.marks[marks, s.MARK_ORDINAL], streams.waiting_ordinals()]
        return min((int(values.min()) for values in found if len(values)), default=None)

    def _grow(self, status: int) -> None:
        state = self._state
        v = state.v
        if status == s.NEED_SLAB:
            live = int(v[s.V_SLAB_LIVE])
            # Most of it may be regions given up: then moving the rest together may be enough. Not where there are none:
            # a region larger than the whole slab is asked for.
            given_up = int(v[s.V_SLAB]) > live
            room = len(state.slab) if given_up and live * 2 < len(state.slab) // 2 else len(state.slab) * 2
            into = np.empty(room, np.uint8)
            v[s.V_SLAB] = move_regions(state.f, state.slab, into)
            state = state._replace(slab=into)
        elif status == s.NEED_MARKS:
            state = state._replace(marks=_doubled(state.marks))
        elif status == s.NEED_PENDING:
            state = state._replace(pending=_doubled(state.pending))
        elif status == s.NEED_OUT:
            state = state._replace(out=_doubled(state.out))
        elif status == s.NEED_FACTS:
            state = state._replace(facts=_doubled(state.facts))
        elif status == s.NEED_MESSAGES:
            need = int(v[s.V_MESSAGE_BYTES] + state.frame[s.FR_HAVE])
            if need > len(state.message_bytes):
                more = np.empty(max(need, 2 * len(state.message_bytes)), np.uint8)
                more[: v[s.V_MESSAGE_BYTES]] = state.message_bytes[: v[s.V_MESSAGE_BYTES]]
                state = state._replace(message_bytes=more)
            else:
                state = state._replace(messages=_doubled(state.messages))
        elif status == s.NEED_STRINGS:
            state = state._replace(strings=grown(state.strings, int(state.frame[s.FR_HAVE]) + (1 << 16)))
        elif status == s.NEED_LISTS:
            state = state._replace(lists=grown(state.lists, len(state.scratch)))
        elif status == s.NEED_TAPE:
            state = state._replace(tape=_doubled(state.tape))
        elif status == s.NEED_ENDED:
            state = state._replace(ended=_doubled(state.ended))
        elif status == s.NEED_TOPICS:
            topics = _doubled(state.topics)
            state = state._replace(topics=topics, scratch=np.zeros(4 * len(topics), np.uint8))
        elif status == s.NEED_PARTS:
            state = state._replace(parts=_doubled(state.parts))
        elif status == s.NEED_PARTS_OUT:
            state = state._replace(parts_out=_doubled(state.parts_out))
        elif status == s.NEED_LOOKUP:
            state = state._replace(lookup=np.zeros(2 * len(state.lookup), np.int64))
        elif status == s.NEED_LEADERS:
            state = state._replace(leaders=_doubled(state.leaders))
        elif status == s.NEED_SETS:
            need = int(v[s.V_SET_BYTES] + state.frame[s.FR_HAVE])
            if need > len(state.set_bytes):
                more = np.empty(max(need, 2 * len(state.set_bytes)), np.uint8)
                more[: v[s.V_SET_BYTES]] = state.set_bytes[: v[s.V_SET_BYTES]]
                state = state._replace(set_bytes=more)
            else:
                state = state._replace(sets=_doubled(state.sets))
        else:
            raise AssertionError(f"kernel status {status}")
        self._state = state

    def _hold_limit(self) -> None:
        """Where frames in progress take too much together, the largest are from now on only counted."""
        state = self._state
        f, v = state.f, state.v
        while int(v[s.V_SLAB_LIVE]) > self._limit:
            key = int(np.argmax(np.where(f[:, s.F_MODE] == s.SYNC, f[:, s.F_ROOM], 0)))
            have = int(f[key, s.F_HAVE] - f[key, s.F_FROM])
            if f[key, s.F_MODE] != s.SYNC or f[key, s.F_ROOM] <= 8192 or have < 4:
                break
            f[key, s.F_SEEN] = f[key, s.F_HELD] = have
            f[key, s.F_MISSING] = 0
            f[key, s.F_CAUSE] = s.LIMIT
            f[key, s.F_MODE] = s.DROP
            f[key, s.F_HAVE] = f[key, s.F_FROM] + min(have, 4096)
            released = int(f[key, s.F_ROOM]) - int(f[key, s.F_HAVE])
            f[key, s.F_ROOM] = f[key, s.F_HAVE]
            v[s.V_SLAB_LIVE] -= released
        live = int(v[s.V_SLAB_LIVE])
        if len(state.slab) > 1 << 22 and live * 8 < len(state.slab):
            into = np.empty(max(1 << 20, live * 2), np.uint8)
            v[s.V_SLAB] = move_regions(f, state.slab, into)
            self._state = state._replace(slab=into)

    def _batch(self, streams: Streams) -> Batch:
        state, v = self._state, self._state.v
        out = np.empty((s.X_COLUMNS, int(v[s.V_OUT])), np.int64)
        transpose(state.out[: v[s.V_OUT]], out)
        parts = np.empty((s.P_COLUMNS, int(v[s.V_PARTS_OUT])), np.int64)
        transpose(state.parts_out[: v[s.V_PARTS_OUT]], parts)
        ended = state.ended[: v[s.V_ENDED]].copy()
        slots = ended[:, 0]
        sides = (2 * slots[:, None] + np.arange(2)).ravel()
        strings, lists = content(state.strings, self._strings_out), content(state.lists, self._lists_out)
        self._strings_out += len(strings)
        self._lists_out += len(lists)
        return Batch(
            exchanges=out,
            facts=state.facts[: v[s.V_FACTS]].copy(),
            ended=ended,
            k=state.k[slots],
            f=state.f[sides],
            c=streams.c[slots],
            d=streams.d[sides],
            messages=state.messages[: v[s.V_MESSAGES]].copy(),
            message_bytes=state.message_bytes[: v[s.V_MESSAGE_BYTES]].copy(),
            parts=parts,
            leaders=state.leaders[: v[s.V_LEADERS]].copy(),
            sets=state.sets[: v[s.V_SETS]],
            set_bytes=state.set_bytes[: v[s.V_SET_BYTES]],
            strings=strings,
            lists=lists,
            oldest=self._oldest(streams),
        )
