"""List the differences of two digests. In: two JSON values. Out: a line for each difference.

Rules: a line names the place from the outside in (`local / shared/NAME / full / tables / exchanges / columns / api`);
what only one of them has is a difference too, told apart, because a new column is meant more often than a lost one;
what both have must be in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = "absent"
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two digests differ. `added`: the old one has nothing there."""

    place: tuple[str, ...]
    old: str
    new: str
    added: bool = False

    def __str__(self) -> str:
        return f"{' / '.join(self.place)}: {self.old} -> {self.new}"


def differences(old: Any, new: Any, place: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Every place where they differ; the innermost places only."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = (*place, str(key))
            if key not in new:
                yield Difference(inner, _brief(old[key]), ABSENT)
            elif key not in old:
                yield Difference(inner, ABSENT, _brief(new[key]), added=True)
            else:
                yield from differences(old[key], new[key], inner)
        left, right = [key for key in old if key in new], [key for key in new if key in old]
        if left != right:
            yield Difference((*place, "order"), ", ".join(map(str, left)), ", ".join(map(str, right)))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for position, (inside, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(inside, other, (*place, str(position)))
    elif type(old) is not type(new) or old != new:
        yield Difference(place, _brief(old), _brief(new))


def _brief(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{len(value)} entries"
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
