"""Offsets of the capture, and where the same records are on the target.

Pairs are learned from answers: each produced batch has a base offset on both sides. With several producers on a
partition batches may interleave otherwise, so a pair holds for its batch, and for what follows until the next one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Final

AS_IS: Final = "as-is"
SHIFT: Final = "shift"
POSITION: Final = "position"


@dataclass(slots=True)
class OffsetMap:
    """One partition. `produced`: (captured base, replayed base, offsets) of batches, sorted; `hints`: pairs from
    ListOffsets, used where no batch was produced before; `guess`: where the log ended there and here when nothing else
    was known; `mixed`: batches are in another order on the target."""

    produced: list[tuple[int, int, int]] = field(default_factory=list)
    hints: list[tuple[int, int]] = field(default_factory=list)
    guess: tuple[int, int] | None = None
    mixed: bool = False

    def learn(self, captured: int, replayed: int, count: int) -> None:
        """A batch was appended on both sides."""
        one = captured, replayed, count
        if self.produced and self.produced[-1] <= one:
            self.mixed |= self.produced[-1][1] > replayed  # by far the most: a batch behind all others
            self.produced.append(one)
            return
        at = bisect.bisect_left(self.produced, one)
        self.mixed |= at > 0 and self.produced[at - 1][1] > replayed
        self.mixed |= at < len(self.produced) and self.produced[at][1] < replayed
        self.produced.insert(at, one)

    def start(self, captured: int) -> int:
        """Where to read on the target from, so that no record from `captured` on is missed: the order of batches of
        several producers may be another one there, and some lie before."""
        here = self.replayed(captured)
        if captured < 0 or not self.mixed:
            return here
        at = bisect.bisect_left(self.produced, (captured, -1, -1))
        beside = [max(there + captured - near, 0) for near, there in self._nearest_hint(captured)]
        return min([here, *beside, *(there for _, there, _ in self.produced[at:])])

    def _nearest_hint(self, captured: int) -> list[tuple[int, int]]:
        """The answer about this partition that is nearest, in a list; none where none is known."""
        return [min(self.hints, key=lambda pair: abs(pair[0] - captured))] if self.hints else []

    def hint(self, captured: int, replayed: int) -> None:
        """The same question was answered with these offsets."""
        at = bisect.bisect_left(self.hints, (captured, -1))
        if at < len(self.hints) and self.hints[at][0] == captured:
            self.hints[at] = captured, replayed
        else:
            self.hints.insert(at, (captured, replayed))

    def replayed(self, captured: int) -> int:
        """The offset on the target; special values (negative) stay."""
        if captured < 0:
            return captured
        at = bisect.bisect_right(self.produced, (captured, 1 << 62, 0))
        if at:
            base, there, _ = self.produced[at - 1]
            return there + captured - base
        near = self.guess
        if self.hints:
            # Nothing was produced before it: the nearest answer about this partition is the best that is known.
            near = min(self.hints, key=lambda pair: abs(pair[0] - captured))
        elif self.produced:
            near = self.produced[0][:2]
        return captured if near is None else max(near[1] + captured - near[0], 0)
