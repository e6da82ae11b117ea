"""Offsets of batches and records on two sides, by columns.

In: batches that both sides have stored, records that one side has read. Out: which offset here is which there; the
records by offset. Pure.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from replay.diff.records import DIGEST, Heap, Numbers, Record


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
    """`Stored`s in the order in which they were produced, 40 bytes each."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def append(self, batch: Stored) -> None:
        self._numbers.extend(batch)

    def __len__(self) -> int:
        return len(self._numbers) // len(Stored._fields)

    def __iter__(self) -> Iterator[Stored]:
        numbers = iter(self._numbers)
        return map(Stored._make, zip(*[numbers] * len(Stored._fields), strict=True))

    def ranges(self, by: int, other: int) -> OffsetRanges:
        """(offset on one side, on the other, count) in order of the first. `by`, `other`: fields of `Stored`."""
        table = np.array(self._numbers, np.int64).reshape(-1, len(Stored._fields))
        order = np.lexsort((table[:, RECORDS], table[:, other], table[:, by]))
        return OffsetRanges(*(array("q", table[order, column].tobytes()) for column in (by, other, RECORDS)))


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Offsets of batches on one side, in order; on the other; records of each."""

    here: array[int] = field(default_factory=lambda: array("q"))
    there: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))

    def all_translated(self, offsets: Numbers) -> Numbers:
        """The other side's offsets of records; -1 where no batch has one."""
        here, there, counts = (np.array(each, np.int64) for each in (self.here, self.there, self.counts))
        at = np.searchsorted(here, offsets, "right") - 1
        if not len(here):
            return np.full(len(offsets), -1, np.int64)
        inside = offsets - here[at]
        return np.where((at >= 0) & (inside < counts[at]), there[at] + inside, -1)

    def translated(self, offset: int) -> int | None:
        """The other side's offset of the record at `offset`; None where no batch has it."""
        at = bisect.bisect_right(self.here, offset) - 1
        if at < 0:
            return None
        inside = offset - self.here[at]
        return self.there[at] + inside if inside < self.counts[at] else None


class Seen:
    """Records by offset, 25 bytes each."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._digests = bytearray()
        self._forms = bytearray()

    def add(self, record: Record) -> None:
        self._offsets.append(record.offset)
        self._digests += record.digest
        self._forms.append(record.form)

    def extend(self, offsets: bytes, digests: bytes, forms: bytes) -> None:
        """Add several: offsets as int64, digests one behind the other, a byte for each form."""
        self._offsets.frombytes(offsets)
        self._digests += digests
        self._forms += forms

    def columns(self) -> tuple[Numbers, Numbers, Heap]:
        """All, in order of offsets; of several with one offset the last."""
        offsets = np.array(self._offsets, np.int64)
        digests = np.frombuffer(bytes(self._digests), np.int64).reshape(-1, DIGEST // 8)
        last = len(offsets) - 1 - np.unique(offsets[::-1], return_index=True)[1]
        return offsets[last], digests[last], np.frombuffer(bytes(self._forms), np.uint8)[last]

    def forms(self) -> dict[int, int]:
        """How each is stored (a place in `records.FORMS`)."""
        return dict(zip(self._offsets, self._forms, strict=True))

    def by_offset(self) -> dict[int, bytes]:
        """The digest of each; the last one counts."""
        size = len(self._digests) // max(len(self._offsets), 1)
        return {at: bytes(self._digests[n * size : n * size + size]) for n, at in enumerate(self._offsets)}
