"""Find records that lie at other offsets than a target said, by their content.

In: offsets and digests of records that are not where they were acknowledged, and of records that nobody awaited where
they lie. Out: which of them are the same, and a line that says what happened to the log. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Placed = tuple[int, bytes]
"""An offset, and a record's digest."""
_PARTS: Final = 4
"""Parts of a line; the rest is left out."""


class _Part(NamedTuple):
    """Records that follow each other and share a fate: how many, from where, and how much higher they lie (None: they
    are missing)."""

    first: int
    size: int
    shift: int | None


@dataclass(frozen=True, slots=True)
class Alignment:
    """`missing`: offsets of records that are nowhere; `moved`: (where they were said to be, where they are);
    `more`: offsets of records that nobody awaited."""

    missing: Sequence[int]
    moved: Sequence[tuple[int, int]]
    more: Sequence[int]

    def text(self) -> str:
        """For a person: "1 missing at 19, 92 after it one lower"."""
        parts = _parts(sorted([(at, None) for at in self.missing] + [(at, there - at) for at, there in self.moved]))
        words: list[str] = []
        at = 0
        while at < len(parts):
            part = parts[at]
            if at + 1 < len(parts) and _is_exchange(part, parts[at + 1]):
                words.append(f"{part.size + parts[at + 1].size} exchanged at {part.first}")
                at += 2
                continue
            after = " after it" if words and part.shift is not None else ""
            where = after or f" at {part.first}" if part.shift is None or after else f" from {part.first} on"
            words.append(f"{part.size:,}{' missing' if part.shift is None else ''}{where}{_by(part.shift)}")
            at += 1
        words += [f"{more.size:,} more at {more.first}" for more in _parts([(at, 0) for at in sorted(self.more)])]
        return ", ".join(words[:_PARTS]) + (" and more" if len(words) > _PARTS else "")


def align(lost: Iterable[Placed], strays: Iterable[Placed]) -> Alignment:
    """Find the lost among the strays; both in order of their offsets. Of equal ones the first is the first."""
    places: dict[bytes, deque[int]] = {}
    for offset, digest in strays:
        places.setdefault(digest, deque()).append(offset)
    missing: list[int] = []
    moved: list[tuple[int, int]] = []
    for offset, digest in lost:
        there = places.get(digest)
        if there:
            moved.append((offset, there.popleft()))
        else:
            missing.append(offset)
    return Alignment(missing, moved, [offset for there in places.values() for offset in there])


def _parts(fates: Sequence[tuple[int, int | None]]) -> list[_Part]:
    parts: list[_Part] = []
    for offset, shift in fates:
        # What lies between two that moved alike may be a marker, or look the same where it is.
        if parts and parts[-1].shift == shift and (shift or parts[-1].first + parts[-1].size == offset):
            parts[-1] = parts[-1]._replace(size=parts[-1].size + 1)
        else:
            parts.append(_Part(offset, 1, shift))
    return parts


def _is_exchange(part: _Part, other: _Part) -> bool:
    """Are these two neighbours, each in the other's place?"""
    return part.shift == other.size and other.shift == -part.size and part.first + part.size == other.first


def _by(shift: int | None) -> str:
    if shift is None:
        return ""
    return f" {'one' if abs(shift) == 1 else f'{abs(shift):,}'} {'higher' if shift > 0 else 'lower'}"
