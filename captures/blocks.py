"""Packets on their way from the process that read them to the one that puts their connections together.

In: rows of a `Packets` window. Out: a `Block`, which pickles well and holds nothing of the window; and back: blocks in
order as one `Packets`. Of a packet's bytes only those that later stages read travel: TCP header and payload, and none
where there is no payload.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from captures.kernels import copy_bytes, kernel
from captures.packets import _COLUMNS, Packets, _Lease

_PLACES = ("payload_at", "tcp_at")
_NAMES = tuple(name for name, _ in _COLUMNS if name not in _PLACES)


@dataclass(frozen=True, slots=True)
class Block:
    """Some packets of a capture point, in order.

    columns      those of `Packets` but for the places of bytes
    ordinal      int64[n]: the packet's place in the capture point; only their order has a meaning
    clock        int64[n]: the latest time of any packet so far, in ns
    headers      int64[n]: bytes of the TCP header that travel
    data         uint8: headers and payloads one after the other
    """

    columns: dict[str, np.ndarray]
    ordinal: np.ndarray
    clock: np.ndarray
    headers: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.ordinal)


@kernel
def gather(source: Any, starts: Any, lengths: Any, into: Any) -> None:
    """The pieces source[starts[i]:starts[i] + lengths[i]] one after the other."""
    at = np.int64(0)
    for i in range(len(starts)):
        copy_bytes(into, at, source, starts[i], lengths[i])
        at += lengths[i]


def block(packets: Packets, rows: np.ndarray, ordinal: np.ndarray, clock: np.ndarray) -> Block:
    """The packets of `rows` (indices, rising); `ordinal` and `clock` are of the whole window."""
    columns = {name: getattr(packets, name)[rows] for name in _NAMES}
    starts, payload = packets.tcp_at[rows], packets.payload_at[rows]
    headers = np.where(columns["payload_length"] > 0, payload - starts, 0)
    lengths = np.where(columns["payload_length"] > 0, headers + columns["payload_captured"], 0)
    data = np.empty(int(lengths.sum()), np.uint8)
    gather(packets.buffer, starts, lengths, data)
    return Block(columns, ordinal[rows], clock[rows], headers, data)


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks that follow one another as one."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        {name: np.concatenate([one.columns[name] for one in blocks]) for name in _NAMES},
        *(np.concatenate([getattr(one, name) for one in blocks]) for name in ("ordinal", "clock", "headers", "data")),
    )


def with_ticks(one: Block, ordinal: np.ndarray, clock: np.ndarray) -> Block:
    """The block with packets added that belong to no connection and only say what time it is. Both arrays rise;
    ordinals that the block has itself are left out."""
    new = ~np.isin(ordinal, one.ordinal)
    ordinal, clock = ordinal[new], clock[new]
    if not len(ordinal):
        return one
    at = np.searchsorted(one.ordinal, ordinal)
    columns = {name: np.insert(values, at, 0) for name, values in one.columns.items()}
    columns["time_ns"] = np.insert(one.columns["time_ns"], at, clock)
    return Block(
        columns, np.insert(one.ordinal, at, ordinal), np.insert(one.clock, at, clock), np.insert(one.headers, at, 0),
        one.data,
    )  # fmt: skip


def part(one: Block, start: int, stop: int) -> Block:
    """The packets [start, stop) of a block."""
    lengths = _lengths(one)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return Block(
        {name: values[start:stop] for name, values in one.columns.items()}, one.ordinal[start:stop],
        one.clock[start:stop], one.headers[start:stop], one.data[ends[start] : ends[stop]],
    )  # fmt: skip


def nothing() -> Block:
    """No packets."""
    columns = {name: np.zeros(0, kind) for name, kind in _COLUMNS if name not in _PLACES}
    none = np.zeros(0, np.int64)
    return Block(columns, none, none, none, np.zeros(0, np.uint8))


def packets(one: Block) -> Packets:
    """The block as the stages of a connection take it."""
    lengths = _lengths(one)
    tcp_at = np.cumsum(lengths) - lengths
    lease = _Lease(0, deque(maxlen=0))  # nothing to give back
    return Packets(buffer=one.data, tcp_at=tcp_at, payload_at=tcp_at + one.headers, _lease=lease, **one.columns)


def _lengths(one: Block) -> np.ndarray:
    lengths: np.ndarray = one.headers + np.where(one.headers > 0, one.columns["payload_captured"], 0)
    return lengths
