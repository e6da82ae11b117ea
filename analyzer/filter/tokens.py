"""Words of a filter, and errors that point at them with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kwire.captures.errors import KwireError

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


class FilterError(KwireError, ValueError):
    """An invalid filter. `str()` is one line with the problem and its column.

    hint     what to try
    column   position of the problem, from 1
    length   characters that the problem spans
    pointer  the filter's text with a line of carets below the problem
    """

    def __init__(self, problem: str, text: str, start: int, end: int, hint: str = "") -> None:
        self.problem = problem
        self.text = text
        self.column = start + 1
        self.length = max(1, end - start)
        first = max(0, start - 60)
        shown = "".join(c if c.isprintable() else " " for c in text[first : first + 100])
        width = max(1, min(end, first + 100) - start)
        pointer = f"  {shown}\n  {' ' * (start - first)}{'^' * width}"
        super().__init__(f"filter, column {self.column}: {problem}", hint, pointer)


@dataclass(frozen=True, slots=True)
class Word:
    """A name, operator or value as it stands in the filter."""

    text: str
    start: int
    end: int


class WordError(KwireError):
    """A problem with one word; `evaluation.parse` turns it into a FilterError."""

    def __init__(self, word: Word, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.word = word
        self.problem = problem


def suggest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Find the known words most similar to a word, best first."""
    choices = list(known)
    same = [choice for choice in choices if choice.lower() == wanted.lower()]
    near = difflib.get_close_matches(wanted[:200].lower(), [choice.lower() for choice in choices], count, 0.6)
    by_lower = {choice.lower(): choice for choice in choices}
    return list(dict.fromkeys([*same, *(by_lower[choice] for choice in near)]))[:count]


def did_you_mean(suggestions: Sequence[str]) -> str:
    return f"did you mean {' or '.join(f'`{word}`' for word in suggestions)}?" if suggestions else ""


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
