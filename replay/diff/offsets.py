"""Offsets of batches and records on two sides, by columns.

In: batches that both sides have stored, records that one side has read. Out: which offset here is which there; the
records by offset. Pure.
"""

from __future__ import annotations

import bisect
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kwire.analyzer.frame.spill import GrowingBytes, Heap, concat
from kwire.replay.diff.record_facts import DIGEST, Numbers, Record


class Stored(NamedTuple):
    """A batch that both sides have stored: its base offset on each, and for how many records. `producer`: a number for
    whoever produced it; `place`: of its exchange among the pairs."""

    left: int
    right: int
    records: int
    producer: int
    place: int


LEFT, RIGHT, RECORDS = (Stored._fields.index(name) for name in ("left", "right", "records"))


class StoredBatches:
    """`Stored`s in the order in which they were produced, 40 bytes each, most of them in `heap`."""

    def __init__(self, heap: Heap) -> None:
        self._kept = GrowingBytes(heap)
        self._count = 0

    def append(self, batch: Stored) -> None:
        self._kept.extend(_pack(*batch))
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Stored]:
        return map(Stored._make, struct.iter_unpack(_STORED, self._kept.data()))

    def ranges(self, by: int, other: int) -> OffsetRanges:
        """(offset on one side, on the other, count) in order of the first. `by`, `other`: fields of `Stored`."""
        table = np.frombuffer(self._kept.data(), np.int64).reshape(-1, len(Stored._fields))
        order = np.lexsort((table[:, RECORDS], table[:, other], table[:, by]))
        return OffsetRanges(*(_column(table[order, column]) for column in (by, other, RECORDS)))


_STORED: Final = f"={len(Stored._fields)}q"
_pack: Final = struct.Struct(_STORED).pack
_LONG: Final = 1 << 14
"""Numbers from which on an array is a file's: as many files may be mapped as there are of these, some ten thousand."""
_Column: TypeAlias = "array[int] | memoryview[int]"


def _column(numbers: Numbers) -> _Column:
    """As an array whose elements are Python's."""
    return array("q", numbers.tobytes()) if len(numbers) < _LONG else concat((numbers,)).data


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Offsets of batches on one side, in order; on the other; records of each."""

    here: _Column = field(default_factory=lambda: array("q"))
    there: _Column = field(default_factory=lambda: array("q"))
    counts: _Column = field(default_factory=lambda: array("q"))

    def all_translated(self, offsets: Numbers) -> Numbers:
        """The other side's offsets of records; -1 where no batch has one."""
        here, there, counts = (np.asarray(each, np.int64) for each in (self.here, self.there, self.counts))
        at = np.searchsorted(here, offsets, "right") - 1
        if not len(here):
            return np.full(len(offsets), -1, np.int64)
        inside = offsets - here[at]
        return np.where((at >= 0) & (inside < counts[at]), there[at] + inside, -1)

    def translated(self, offset: int) -> int | None:
        """The other side's offset of the record at `offset`; None where no batch has it."""
        return next(self.places(offset), None)

    def places(self, offset: int) -> Iterator[int]:
        """All that the other side has of it, the furthest first: several copies of a capture store each batch."""
        at = bisect.bisect_right(self.here, offset) - 1
        base = self.here[at] if at >= 0 else 0
        while at >= 0 and self.here[at] == base:
            if offset - base < self.counts[at]:
                yield self.there[at] + offset - base
            at -= 1


class Seen:
    """Records by offset, 33 bytes each, most of them in `heap`."""

    def __init__(self, heap: Heap) -> None:
        self._offsets, self._digests, self._forms, self._times = (GrowingBytes(heap) for _ in range(4))

    def add(self, record: Record) -> None:
        offset, time = (number.to_bytes(8, sys.byteorder, signed=True) for number in (record.offset, record.time))
        self.extend(offset, record.digest, bytes((record.form,)), time)

    def extend(self, offsets: bytes, digests: bytes, forms: bytes, times: bytes) -> None:
        """Add several: offsets and times as int64, digests one behind the other, a byte for each form."""
        self._times.extend(times)
        self._offsets.extend(offsets)
        self._digests.extend(digests)
        self._forms.extend(forms)

    def columns(self) -> tuple[Numbers, Numbers, npt.NDArray[np.uint8], Numbers]:
        """All, in order of offsets; of several with one offset the last."""
        offsets = np.frombuffer(self._offsets.data(), np.int64)
        digests = np.frombuffer(self._digests.data(), np.int64).reshape(-1, DIGEST // 8)
        last = len(offsets) - 1 - np.unique(offsets[::-1], return_index=True)[1]
        times = np.frombuffer(self._times.data(), np.int64)
        return offsets[last], digests[last], np.frombuffer(self._forms.data(), np.uint8)[last], times[last]

    def times(self) -> dict[int, int]:
        """The timestamp of each; the last one counts."""
        return dict(zip(array("q", self._offsets.data()), array("q", self._times.data()), strict=True))

    def forms(self) -> dict[int, int]:
        """How each is stored (a place in `records.FORMS`)."""
        return dict(zip(array("q", self._offsets.data()), self._forms.data(), strict=True))

    def by_offset(self) -> dict[int, bytes]:
        """The digest of each; the last one counts."""
        digests = self._digests.data()
        size = len(digests) // max(len(self._forms), 1)
        offsets = array("q", self._offsets.data())
        return {at: digests[n * size : n * size + size] for n, at in enumerate(offsets)}
