"""Find what two sets of bytes have in common: windows of eight printable bytes.

In: the clean bytes in pieces, then the original ones in pieces, as often as asked for. Out: the windows in both, as
bytes. Memory: clean windows are held as sorted 64-bit numbers, at most `_MOST` at a time; what a clean capture has of
them is mostly pseudonyms, for noise is not printable, so the originals are read once, or once for each further block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import numpy as np

SIZE: Final = 8
CHUNK: Final = 1 << 20
_MOST: Final = 1 << 22
_MOST_SHARED: Final = 1 << 16
"""Shared windows that are handed on: more than these are leaks in any case."""
_SLOT_BITS: Final = 22
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_LEAST_OWN: Final = 4
"""Letters and digits of a window beside public words which do not stand there by chance."""

_PRINTABLE: Final = np.zeros(256, np.bool_)
_PRINTABLE[0x20:0x7F] = True


def windows(data: np.ndarray) -> Iterator[np.ndarray]:
    """The printable windows in uint8[:], as uint64[:] in the machine's order, one array for each position modulo 8."""
    if len(data) < SIZE:
        return
    good = _PRINTABLE[data]
    for step in (1, 2, 4):
        good = good[:-step] & good[step:]
    if not good.any():
        return
    for phase in range(min(SIZE, len(good))):
        starts = good[phase::SIZE]
        if starts.any():
            yield np.frombuffer(data, np.uint64, len(starts), phase)[starts]


def shared(
    clean: Iterable[np.ndarray], original: Callable[[], Iterable[np.ndarray]], most: int = _MOST
) -> frozenset[bytes]:
    """The windows that are in `clean` and in `original`, whose pieces are uint8[:]. `most`: windows held at a time."""
    common: set[bytes] = set()
    for block in _blocks(clean, most):
        slots = np.zeros(1 << _SLOT_BITS, np.bool_)
        slots[_slots(block)] = True
        for piece in original():
            for values in windows(piece):
                near = values[slots[_slots(values)]]
                if len(near):
                    near = near[block[np.minimum(np.searchsorted(block, near), len(block) - 1)] == near]
                    common.update(value.tobytes() for value in np.unique(near))
            if len(common) > _MOST_SHARED:
                return frozenset(common)
    return frozenset(common)


def _slots(values: np.ndarray) -> np.ndarray:
    slots: np.ndarray = (values * _FACTOR) >> np.uint64(64 - _SLOT_BITS)
    return slots


def _blocks(pieces: Iterable[np.ndarray], most: int) -> Iterator[np.ndarray]:
    """The windows of all pieces, sorted, without most of the repeated ones, in blocks of about `most`."""
    block = np.zeros(0, np.uint64)
    waiting: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        for values in windows(piece):
            waiting.append(values)
            count += len(values)
        if count >= most // 2:
            block = np.unique(np.concatenate([block, *waiting]))
            waiting, count = [], 0
            if len(block) >= most // 2:
                yield block
                block = block[:0]
    block = np.unique(np.concatenate([block, *waiting]))
    if len(block):
        yield block


def overlapping(data: np.ndarray) -> Iterator[np.ndarray]:
    """A long array in pieces that share all but one byte of a window."""
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK + SIZE - 1]


def is_filler(window: bytes) -> bool:
    """Whether all bytes but one at most are the same, as in compressed data of which much repeats."""
    return max(map(window.count, set(window))) >= len(window) - 1


def is_public(window: bytes, words: Collection[bytes]) -> bool:
    """Whether a window is made of public words, or of parts of them at its ends, but for fewer letters and digits than
    `_LEAST_OWN`."""
    if any(window in word for word in words):
        return True
    covered = [False] * len(window)
    for word in words:
        for at in range(1 - len(word), len(window)):
            start, end = max(at, 0), min(at + len(word), len(window))
            if end - start >= min(_LEAST_OWN, len(word)) and word[start - at : end - at] == window[start:end]:
                covered[start:end] = [True] * (end - start)
    own = bytes(byte for byte, inside in zip(window, covered, strict=True) if not inside)
    return sum(bytes([byte]).isalnum() for byte in own) < _LEAST_OWN
