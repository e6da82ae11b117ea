"""Four-tuples of packets, in groups, and how many there are.

In: end points of packets. Out: for each packet the group of its four-tuple, whichever end point comes first. Rule:
four-tuples are told apart by 64 bits of them, mixed; it is the same for everybody.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.kernels import Array, Int, Table, inline, kernel

_MOST_MET: Final = 1 << 20
"""Four-tuples that are told apart: 32 MB. Of more, packets are counted."""

_LATEST_NS: Final = (1 << 63) - 1

_HASHES: Final = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x94D049BB133111EB))


@inline
def _mixed(hi: Int, lo: Int, port: Int) -> Int:
    mixture = (hi ^ lo) * _HASHES[0] + (np.uint64(port) + np.uint64(1)) * _HASHES[1]
    mixture ^= mixture >> np.uint64(32)
    return mixture * _HASHES[0]


@kernel
def hash_pairs(a_hi: Array, a_lo: Array, a_port: Array, b_hi: Array, b_lo: Array, b_port: Array, out: Array) -> None:
    """A number for each four-tuple, the same whichever end point comes first."""
    for i in range(len(out)):
        both = _mixed(a_hi[i], a_lo[i], a_port[i]) + _mixed(b_hi[i], b_lo[i], b_port[i])
        both ^= both >> np.uint64(29)
        out[i] = both * _HASHES[2]


def pairs_of(a: tuple[Array, Array, Array], b: tuple[Array, Array, Array]) -> np.ndarray:
    """uint64[n]: `hash_pairs` of end points: both halves of an address (uint64), a port (int32)."""
    out = np.empty(len(a[0]), np.uint64)
    hash_pairs(*_end(*a), *_end(*b), out)
    return out


def _end(hi: Array, lo: Array, port: Array) -> tuple[Array, Array, Array]:
    address = np.ascontiguousarray(hi, np.uint64), np.ascontiguousarray(lo, np.uint64)
    return *address, np.ascontiguousarray(port, np.int32)


@inline
def group_of(pair: Int, groups: Int) -> Int:
    """The group, of so many, of one of `pairs_of`."""
    return np.int64((pair >> np.uint64(33)) % np.uint64(groups))


@kernel
def put_groups(pairs: Array, groups: Int, out: Table) -> None:
    """The group of each."""
    for i in range(len(pairs)):
        out[i] = group_of(pairs[i], groups)


def groups_of(pairs: np.ndarray, groups: int) -> np.ndarray:
    """int64[n]: the group, of so many, of each of `pairs_of`."""
    out = np.empty(len(pairs), np.int64)
    put_groups(pairs, groups, out)
    return out


@kernel
def meet(begin: Int, hashes: Array, known: Array, count: Int) -> tuple[Int, Int]:
    """Put hashes from `begin` on among those `known` (0: a free place), which are `count`. Returns which one has no
    place, for half of these are taken, and how many are known."""
    mask = np.int64(len(known) - 1)
    last = np.uint64(0)
    for i in range(begin, len(hashes)):
        value = hashes[i] | np.uint64(1)
        if value == last:
            continue
        last = value
        at = np.int64(value >> np.uint64(20)) & mask
        while known[at] != 0 and known[at] != value:
            at = (at + 1) & mask
        if known[at] == 0:
            if 2 * count >= len(known):
                return i, count
            known[at] = value
            count += 1
    return np.int64(len(hashes)), count


class Met:
    """Four-tuples of many packets, captured between `first_ns` and `last_ns`."""

    def __init__(self) -> None:
        self._known = np.zeros(1 << 10, np.uint64)
        self._count = self._rows = 0
        self.first_ns, self.last_ns = _LATEST_NS, -_LATEST_NS

    def take(self, times: Table, hashes: np.ndarray) -> None:
        """Packets, as `pairs_of` numbers them."""
        self._rows += len(hashes)
        self.first_ns = min(self.first_ns, int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))
        at = 0
        while self._count <= _MOST_MET:
            at, self._count = meet(at, hashes, self._known, self._count)
            if at == len(hashes):
                break
            before = self._known[self._known != 0]
            self._known = np.zeros(4 * len(self._known), np.uint64)
            meet(0, before, self._known, 0)

    @property
    def pairs(self) -> int:
        """How many they are at most."""
        return self._count if self._count <= _MOST_MET else self._rows
