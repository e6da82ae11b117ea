"""Where the first record at or behind a border in a capture file begins: a guess.

In: bytes before and behind the border, and how the file's records look. Out: an offset, or None. Whoever uses it must
verify it: the chunk before ends where this one begins, or the guess was wrong. Payload may hold captures of its own, so
no chain of records that fit is a proof.

Every offset at which a record may be is followed from record to record. Most chains of such offsets come to one that
cannot be a record, and are out. Of those that last to the end of the bytes at hand, each beginning before the border is
a vote for where its chain crosses it: true records vote together, what lies inside their payload seldom does.

Elimination of this kind for pcap: Anderson, Gropp, Ngo, Apon: RAPCAP (IFIP/IEEE AnNet 2017).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from kwire.captures.files import layouts
from kwire.captures.files.layouts import Layout

LOOK_BYTES: Final = 256 << 10
"""Bytes looked at before a border, some records of any size that occurs; behind it four times as many: what is no
record seldom goes on so long."""

HEAD_BYTES: Final = 1 << 20
"""Of a file, in which its interfaces are to be found."""

_LARGE: Final = 262_144
"""The largest record that is ordinary, where the file's header does not say that there may be larger ones."""

_YEAR: Final = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Form:
    """How the records of a file look: its format, byte order, bytes of a record header, ticks of a second, the most
    bytes of a record that are likely, and the second in which the first one was captured."""

    pcapng: bool
    big: bool
    header: int
    ticks: int
    largest: int
    first_second: int


def begun(head: bytes, largest_record_bytes: int) -> tuple[Layout, Form] | None:
    """Read the layout of a file's records from its first bytes; None if these are too few."""
    if not layouts.is_capture(head) or len(head) < layouts.PCAP_HEADER_BYTES:
        return None
    layout = Layout(largest_record_bytes)
    at = layout.begin(head)
    first_ns = layouts.first_time_ns(head)
    pcapng = layout.state[layouts.FORMAT] == layouts.PCAPNG
    if pcapng and not _read_blocks(layout, head, at):
        return None
    most = int(layout.state[layouts.LARGEST])
    if not pcapng:
        snaplen = int(layout.interfaces[0, layouts.SNAPLEN])
        most = min(most, max(_LARGE, snaplen))
    return layout, Form(
        pcapng,
        bool(layout.state[layouts.BIG]),
        int(layout.state[layouts.RECORD_HEADER]),
        layouts.NANOSECONDS // max(int(layout.interfaces[0, layouts.FACTOR]), 1),
        most,
        (first_ns or 0) // layouts.NANOSECONDS,
    )


def _read_blocks(layout: Layout, head: bytes, at: int) -> bool:
    """Take in the blocks before a pcapng file's first packet; whether they are all there."""
    try:
        while len(head) - at >= 12:
            size = layout.block_bytes(head[at : at + 12])
            block = head[at : at + size]
            if len(block) < size:
                return False
            kind = int.from_bytes(block[:4], "big" if layout.state[layouts.BIG] else "little")
            if kind in (layouts.ENHANCED_PACKET, layouts.SIMPLE_PACKET, layouts.OBSOLETE_PACKET):
                return True
            layout.read_block(block)
            at += size
    except layouts.BadBlock:
        return False
    return True


def first_record(data: np.ndarray, border: int, form: Form) -> int | None:
    """The offset in `data` of the first record at or behind `border`. A pcapng file's bytes begin at a multiple of 4 of
    the file."""
    following = _blocks(data, form) if form.pcapng else _records(data, form)
    lasting = _lasting(following)
    starts = np.flatnonzero(lasting[:border])
    if not len(starts):
        later = np.flatnonzero(lasting[border:])
        return border + int(later[0]) if len(later) else None
    votes = dict.fromkeys(starts.tolist(), 1)
    waiting = starts.tolist()  # sorted, so a heap
    while waiting[0] < border:
        at = heapq.heappop(waiting)
        to = int(following[at])
        if to in votes:
            votes[to] += votes.pop(at)
        else:
            votes[to] = votes.pop(at)
            heapq.heappush(waiting, to)
    # Of as many votes the later: a chain inside a record ends before the record does.
    return max(waiting, key=lambda at: (votes[at], at))


def _numbers(data: np.ndarray, big: bool) -> np.ndarray:
    """int64: the 32-bit number at each offset."""
    numbers = np.zeros(max(len(data) - 3, 0), np.int64)
    for shift in range(4):
        there = (len(data) - shift) // 4
        numbers[shift::4] = data[shift : shift + 4 * there].view(">u4" if big else "<u4")
    return numbers


def _records(data: np.ndarray, form: Form) -> np.ndarray:
    """int64: where the record after the one at each offset begins; -1 where none can be."""
    numbers = _numbers(data, form.big)
    count = max(len(data) - form.header + 1, 0)
    seconds, ticks, captured, original = (numbers[4 * part :][:count] for part in range(4))
    possible = (captured > 0) & (captured <= form.largest) & (original >= captured) & (original <= 1 << 24)
    possible &= (ticks < form.ticks) & (np.abs(seconds - form.first_second) <= _YEAR)
    return np.where(possible, np.arange(count) + form.header + captured, -1)


def _blocks(data: np.ndarray, form: Form) -> np.ndarray:
    """Like `_records`, for pcapng, whose blocks lie at multiples of 4."""
    words = data[: len(data) // 4 * 4].view(">u4" if form.big else "<u4").astype(np.int64)
    count = max(len(words) - 2, 0)
    length = words[1 : 1 + count]
    possible = (length >= 12) & (length & 3 == 0) & (length <= form.largest)
    ends = np.arange(count) + length // 4 - 1
    inside = possible & (ends < len(words))
    possible[inside] = words[ends[inside]] == length[inside]
    following = np.full(4 * count, -1, np.int64)
    following[::4] = np.where(possible, 4 * np.arange(count) + length, -1)
    return following


def _lasting(following: np.ndarray) -> np.ndarray:
    """bool: the offsets from which records follow one another to where it cannot be told any more."""
    end = len(following)
    lasting = np.zeros(end, np.bool_)
    possible = np.flatnonzero(following >= 0)
    for at, to in zip(possible[::-1].tolist(), following[possible[::-1]].tolist(), strict=True):
        lasting[at] = to >= end or lasting[to]
    return lasting
