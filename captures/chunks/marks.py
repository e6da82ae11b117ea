"""Marks of four-tuples that may be legs of one connection, so that one share gets all of them.

In: packets of a chunk and their four-tuples. Out: marks, a number for what legs have in common (`captures.legs`), each
with the group of its four-tuple; of all chunks, which groups belong together. Rule: legs always have a mark in common;
others hardly ever, which costs no more than balance. A client's port alone, which it may use for several brokers at
once, is in common only to a four-tuple with its requests and one with the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kwire.captures.chunks.groups import group_of
from kwire.captures.kernels import Array, Int, Table, kernel
from kwire.captures.legs import CLIENT, FIRST_PACKETS, HANDSHAKE, PAYLOAD, client_key, key_of
from kwire.captures.windows import PacketColumns

_PLACES: Final = 1 << 14
"""Four-tuples whose packets with payload are counted, each in one place; others count anew."""

_CHUNK: Final = 4
"""The kind of marks of a client's end within one chunk: its port is another connection's in an hour."""

_SYN, _RST, _ACK = 0x02, 0x04, 0x10


_COPY, _ASKS, _ANSWERS = 4, 1, 2
"""What a mark is of: a packet that another leg has too; one way of a connection, from its client or to it."""


@kernel
def put_marks(
    begin: Int, pairs: Array, columns: PacketColumns, chunk: Int, groups: Int, counted: Array, counts: Table, out: Table
) -> tuple[Int, Int]:
    """Write rows (mark, group, what it is of) of packets from `begin` on. Returns which packet comes next, as far as
    there is room in `out`, and how many rows there are."""
    row = np.int64(0)
    for i in range(begin, len(pairs)):
        if row + 2 > len(out):
            return np.int64(i), row
        flags = np.int64(columns.flags[i])
        numbers = columns.seq[i] | columns.ack[i] << 32
        group = group_of(pairs[i], groups)
        if flags & (_SYN | _RST) == _SYN:
            asks = flags & _ACK == 0
            following = (columns.seq[i] + 1) & 0xFFFFFFFF if asks else columns.ack[i]
            out[row, 0] = key_of(CLIENT, client_key(columns, i, asks), following)
            out[row, 1], out[row, 2] = group, _COPY
            row += 1
            if not asks:
                out[row, 0], out[row, 1], out[row, 2] = key_of(HANDSHAKE, numbers, 0), group, _COPY
                row += 1
        elif columns.payload_length[i] > 0:
            place = np.int64(pairs[i] >> np.uint64(20)) & (_PLACES - 1)
            if counted[place] != pairs[i]:
                counted[place] = pairs[i]
                counts[place] = 0
            if counts[place] < FIRST_PACKETS:
                counts[place] += 1
                asks = columns.src_port[i] > columns.dst_port[i]
                out[row, 0] = key_of(PAYLOAD, numbers, columns.payload_length[i])
                out[row, 1], out[row, 2] = group, _COPY
                out[row + 1, 0] = key_of(_CHUNK, client_key(columns, i, asks), chunk)
                out[row + 1, 1], out[row + 1, 2] = group, _ASKS if asks else _ANSWERS
                row += 2
    return np.int64(len(pairs)), row


NO_MARKS: Final = np.zeros((0, 3), np.int64)


class Marks:
    """Marks of the packets of one chunk, whose number among all chunks is `chunk`."""

    def __init__(self, chunk: int, groups: int) -> None:
        self._chunk, self._groups = chunk, groups
        self._counted, self._counts = np.zeros(_PLACES, np.uint64), np.zeros(_PLACES, np.int64)
        self._room = np.empty((1 << 12, 3), np.int64)
        self._rows: list[np.ndarray] = []

    def take(self, pairs: np.ndarray, columns: PacketColumns) -> None:
        """Take packets, with their four-tuples as `groups.pairs_of` numbers them."""
        at = 0
        while at < len(pairs):
            at, used = put_marks(at, pairs, columns, self._chunk, self._groups, self._counted, self._counts, self._room)
            if used:
                self._rows.append(self._room[:used].copy())

    @property
    def rows(self) -> np.ndarray:
        """int64[n, 3]: mark, group and what it is of, each once."""
        if not self._rows:
            return NO_MARKS
        self._rows = [np.unique(np.concatenate(self._rows), axis=0)]
        return self._rows[0]


def together(marks: Sequence[np.ndarray], groups: int) -> np.ndarray:
    """int64[groups]: for each group the first of those that it has to stay with. marks: rows of all chunks."""
    first = np.arange(groups)
    rows = np.unique(np.concatenate([NO_MARKS, *marks]), axis=0)
    if not len(rows):
        return first
    # A group that has both ways of a client's port has that connection whole.
    starts = np.flatnonzero(np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1)))
    mark, group, of = rows[starts, 0], rows[starts, 1], np.bitwise_or.reduceat(rows[:, 2], starts)
    part = of != _ASKS | _ANSWERS
    mark, group, of = mark[part], group[part], of[part]
    starts = np.flatnonzero(np.append(True, mark[1:] != mark[:-1]))
    every = np.bitwise_or.reduceat(of, starts) if len(of) else of
    shared = np.repeat((every == _COPY) | (every == _ASKS | _ANSWERS), np.diff(np.append(starts, len(mark))))
    same = np.flatnonzero((mark[1:] == mark[:-1]) & shared[1:])
    for left, right in np.unique(np.stack([group[same], group[same + 1]], axis=1), axis=0).tolist():
        low, high = sorted((int(first[left]), int(first[right])))
        first[first == high] = low
    return first
