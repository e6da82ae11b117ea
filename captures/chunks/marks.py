"""Marks of four-tuples that may be legs of one connection, so that one share gets all of them.

In: packets of a chunk and their four-tuples. Out: marks, a number for what legs have in common (`captures.legs`), each
with the group of its four-tuple; of all chunks, which groups belong together. Rule: legs always have a mark in common;
others hardly ever, which costs no more than balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kwire.captures.chunks.groups import group_of
from kwire.captures.kernels import Array, Int, Table, inline, kernel
from kwire.captures.legs import CLIENT, FIRST_PACKETS, HANDSHAKE, PAYLOAD, key_of
from kwire.captures.windows import PacketColumns

_PLACES: Final = 1 << 14
"""Four-tuples whose packets with payload are counted, each in one place; others count anew."""

_CHUNK: Final = 4
"""The kind of marks of a client's end within one chunk: its port is another connection's in an hour."""

_SYN, _RST, _ACK = 0x02, 0x04, 0x10


@inline
def _end(lo: Int, hi: Int, port: Int) -> Int:
    return np.int64(np.uint64(lo) ^ np.uint64(hi) * np.uint64(0x165667B19E3779F9) ^ np.uint64(port) << np.uint64(48))


@kernel
def put_marks(
    begin: Int, pairs: Array, columns: PacketColumns, chunk: Int, groups: Int, counted: Array, counts: Table, out: Table
) -> tuple[Int, Int]:
    """Write rows (mark, group) of packets from `begin` on. Returns which packet comes next, as far as there is room in
    `out`, and how many rows there are."""
    row = np.int64(0)
    for i in range(begin, len(pairs)):
        if row + 2 > len(out):
            return np.int64(i), row
        flags = np.int64(columns.flags[i])
        numbers = columns.seq[i] | columns.ack[i] << 32
        group = group_of(pairs[i], groups)
        if flags & (_SYN | _RST) == _SYN:
            if flags & _ACK == 0:
                client = _end(columns.src_lo[i], columns.src_hi[i], columns.src_port[i])
                out[row, 0], out[row, 1] = key_of(CLIENT, client, (columns.seq[i] + 1) & 0xFFFFFFFF), group
                row += 1
            else:
                client = _end(columns.dst_lo[i], columns.dst_hi[i], columns.dst_port[i])
                out[row, 0], out[row, 1] = key_of(CLIENT, client, columns.ack[i]), group
                out[row + 1, 0], out[row + 1, 1] = key_of(HANDSHAKE, numbers, 0), group
                row += 2
        elif columns.payload_length[i] > 0:
            place = np.int64(pairs[i] >> np.uint64(20)) & (_PLACES - 1)
            if counted[place] != pairs[i]:
                counted[place] = pairs[i]
                counts[place] = 0
            if counts[place] < FIRST_PACKETS:
                counts[place] += 1
                out[row, 0], out[row, 1] = key_of(PAYLOAD, numbers, columns.payload_length[i]), group
                if columns.src_port[i] > columns.dst_port[i]:
                    client = _end(columns.src_lo[i], columns.src_hi[i], columns.src_port[i])
                else:
                    client = _end(columns.dst_lo[i], columns.dst_hi[i], columns.dst_port[i])
                out[row + 1, 0], out[row + 1, 1] = key_of(_CHUNK, client, chunk), group
                row += 2
    return np.int64(len(pairs)), row


class Marks:
    """Marks of the packets of one chunk, whose number among all chunks is `chunk`."""

    def __init__(self, chunk: int, groups: int) -> None:
        self._chunk, self._groups = chunk, groups
        self._counted, self._counts = np.zeros(_PLACES, np.uint64), np.zeros(_PLACES, np.int64)
        self._room = np.empty((1 << 12, 2), np.int64)
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
        """int64[n, 2]: mark and group, each once."""
        if not self._rows:
            return np.zeros((0, 2), np.int64)
        self._rows = [np.unique(np.concatenate(self._rows), axis=0)]
        return self._rows[0]


def together(marks: Sequence[np.ndarray], groups: int) -> np.ndarray:
    """int64[groups]: for each group the first of those that it has to stay with. marks: rows of all chunks."""
    first = np.arange(groups)
    rows = np.concatenate([np.zeros((0, 2), np.int64), *marks])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    same = np.flatnonzero((rows[1:, 0] == rows[:-1, 0]) & (rows[1:, 1] != rows[:-1, 1]))
    for left, right in np.unique(np.stack([rows[same, 1], rows[same + 1, 1]], axis=1), axis=0).tolist():
        low, high = sorted((int(first[left]), int(first[right])))
        first[first == high] = low
    return first
