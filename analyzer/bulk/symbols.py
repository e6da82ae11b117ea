"""Strings and short lists as small integers.

On the bulk path a client id, a topic or a list of topics is an int64 *symbol*: rows stay rows of integers, and each
distinct text is decoded to a Python string once. In: bytes in some buffer. Out: the symbol, the same for equal bytes.

Symbols live in a `Symbols` table; when the table is full `intern` returns -1, the caller grows it and asks again. Those
that nobody needs any more go all at once, and the others get other numbers (`without`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kwire.captures.kernels import Array, Bytes, Flag, Int, Table, inline, kernel, shared

ENTRY_AT, ENTRY_LENGTH, ENTRY_HASH, ENTRY_STAMP, ENTRY_COLUMNS = 0, 1, 2, 3, 4
COUNT, USED, STAMP, WANTED, WANTED_BYTES = range(5)


class Symbols(NamedTuple):
    """buckets int32[power of two]; entries int64[capacity, 4]; heap uint8; state int64[5]: count, heap used,
    stamp, and how much room was asked for last.
    """

    buckets: np.ndarray
    entries: np.ndarray
    heap: np.ndarray
    state: np.ndarray


def fresh(capacity: int = 1 << 10, heap: int = 1 << 16) -> Symbols:
    """An empty table for `capacity` symbols of `heap` bytes together."""
    return Symbols(
        np.full(capacity * 2, -1, np.int32),
        np.zeros((capacity, ENTRY_COLUMNS), np.int64),
        np.zeros(heap, np.uint8),
        np.zeros(5, np.int64),
    )


@inline
def _hash(buffer: Bytes, at: Int, length: Int) -> Int:
    h = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(length)
    start = np.uint64(at)
    for i in range(np.uint64(length)):
        h = (h ^ np.uint64(buffer[start + i])) * np.uint64(0x100000001B3)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    return np.int64((h ^ (h >> np.uint64(29))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@shared
def intern(symbols: Symbols, buffer: Bytes, at: Int, length: Int) -> Int:
    """The symbol of buffer[at:at + length], or -1 when the table has no room for it."""
    hashed = _hash(buffer, at, length)
    mask = np.int64(len(symbols.buckets) - 1)
    bucket = hashed & mask
    while symbols.buckets[bucket] >= 0:
        entry = np.int64(symbols.buckets[bucket])
        if symbols.entries[entry, ENTRY_HASH] == hashed and symbols.entries[entry, ENTRY_LENGTH] == length:
            start = symbols.entries[entry, ENTRY_AT]
            same = True
            for i in range(length):
                if symbols.heap[start + i] != buffer[at + i]:
                    same = False
                    break
            if same:
                return entry
        bucket = (bucket + 1) & mask
    entry = symbols.state[COUNT]
    used = symbols.state[USED]
    if entry >= len(symbols.entries) or used + length > len(symbols.heap):
        return np.int64(-1)
    for i in range(length):
        symbols.heap[used + i] = buffer[at + i]
    symbols.entries[entry, ENTRY_AT] = used
    symbols.entries[entry, ENTRY_LENGTH] = length
    symbols.entries[entry, ENTRY_HASH] = hashed
    symbols.entries[entry, ENTRY_STAMP] = 0
    symbols.buckets[bucket] = entry
    symbols.state[COUNT] = entry + 1
    symbols.state[USED] = used + length
    return entry


@inline
def lacks(symbols: Symbols, more: Int, size: Int) -> Flag:
    """Is there no room for so many more symbols, of so many bytes together? Then `grown` makes it."""
    state = symbols.state
    if state[COUNT] + more <= len(symbols.entries) and state[USED] + size <= len(symbols.heap):
        return False
    state[WANTED] = more
    state[WANTED_BYTES] = size
    return True


@kernel
def refill(buckets: Array, entries: Table, count: Int) -> None:
    """Enter the first `count` entries into empty, larger buckets."""
    mask = np.int64(len(buckets) - 1)
    for i in range(len(buckets)):
        buckets[i] = -1
    for entry in range(count):
        bucket = entries[entry, ENTRY_HASH] & mask
        while buckets[bucket] >= 0:
            bucket = (bucket + 1) & mask
        buckets[bucket] = entry


@kernel
def enter(symbols: Symbols, buffer: Bytes, at: Table, length: Table, out: Table) -> None:
    """out[i]: the symbol of buffer[at[i]:at[i] + length[i]]. Room was made sure of before."""
    for i in range(len(out)):
        out[i] = intern(symbols, buffer, at[i], length[i])


def of_all(texts: list[bytes]) -> tuple[Symbols, np.ndarray]:
    """A new table of some texts, and int64[n]: the symbol of each."""
    length = np.array([len(text) for text in texts], np.int64)
    buffer = np.frombuffer(b"".join(texts) or b"\0", np.uint8).copy()
    table = fresh(_power(len(texts), 1 << 10), _power(len(buffer), 1 << 16))
    numbers = np.empty(len(texts), np.int64)
    enter(table, buffer, np.cumsum(length) - length, length, numbers)
    return table, numbers


def grown(symbols: Symbols, room: int) -> Symbols:
    """Copy a table with room for one more symbol, `room` more bytes, and the request to `lacks`.

    Symbols keep their numbers. Only what lacks room grows, and at least doubles."""
    count, used = int(symbols.state[COUNT]), int(symbols.state[USED])
    more, size = max(1, int(symbols.state[WANTED])), max(room, int(symbols.state[WANTED_BYTES]))
    symbols.state[WANTED] = symbols.state[WANTED_BYTES] = 0
    buckets, entries, heap = symbols.buckets, symbols.entries, symbols.heap
    if count + more > len(entries):
        capacity = len(entries)
        while capacity < count + more:
            capacity *= 2
        entries = np.zeros((capacity, ENTRY_COLUMNS), np.int64)
        entries[:count] = symbols.entries[:count]
        buckets = np.empty(capacity * 2, np.int32)
        refill(buckets, entries, count)
    if used + size > len(heap):
        heap = np.zeros(max(len(heap) * 2, used + size), np.uint8)
        heap[:used] = symbols.heap[:used]
    return Symbols(buckets, entries, heap, symbols.state)


def content(symbols: Symbols, start: int) -> list[bytes]:
    """The bytes of symbols start, start + 1, ..."""
    rows = symbols.entries[start : int(symbols.state[COUNT]), :2].tolist()
    if not rows:
        return []
    first = rows[0][0]
    heap = symbols.heap[first : int(symbols.state[USED])].tobytes()
    return [heap[at - first : at - first + length] for at, length in rows]


def without(symbols: Symbols, wanted: np.ndarray) -> tuple[Symbols, np.ndarray]:
    """A table without the symbols that are not `wanted` (bool[count]), the others in their order, and int64[count]:
    what each is in it, -1 of those that are not."""
    old = symbols.entries[: len(wanted)][wanted]
    count, length = len(old), old[:, ENTRY_LENGTH]
    ends = np.cumsum(length)
    used = int(ends[-1]) if count else 0
    table = fresh(_power(count, 1 << 10), _power(used, 1 << 16))
    table.entries[:count] = old
    table.entries[:count, ENTRY_AT] = ends - length
    table.heap[:used] = symbols.heap[np.arange(used) + np.repeat(old[:, ENTRY_AT] - ends + length, length)]
    table.state[:] = symbols.state  # with the stamp, which entries have too
    table.state[COUNT], table.state[USED] = count, used
    refill(table.buckets, table.entries, count)
    becomes = np.full(len(wanted), -1, np.int64)
    becomes[wanted] = np.arange(count)
    return table, becomes


def _power(number: int, least: int) -> int:
    """A power of two with room for so many and as many more."""
    return max(least, 1 << (2 * number).bit_length())
