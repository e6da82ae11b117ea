"""Kwire's own questions in DuckDB's words, kept from one run to the next.

In: the text of a view, or of a question of a report. Out: the same for DuckDB, or `UnsupportedSqlError`. To load what
understands
SQL, and to rewrite a hundred texts that are always the same, takes longer than to ask a small dataset all of them.

Rules
- Kept is what kwire itself asks, never what people ask: that may name what is nobody else's business.
- A report's own numbers (when its captures begin, how long an interval is) are taken out before and put back behind:
  the translation does not depend on them, which it says by having each of them.
- What is kept goes by the sources of the translation and by sqlglot's release; without either nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import struct
import threading
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

from kwire.captures.cache import cache_root, content_of, opened, packed, replace, sealed, unpacked
from kwire.reports import catalog

_SOURCES = ("prepared.py", "translation.py", "value_types.py", "parsing.py", "quantiles.py")

_NUMBER = re.compile(r"(?<![\w.'\"])\d{4,18}(?![\w.'\"])")
"""Intervals have a millisecond or more, times far more digits."""

_MARK = "77{:02d}3141592653"
"""Stands for a number: no text of kwire's has one like it."""

_MOST = 2000
"""Texts that are kept: twenty times those that there are, for a release may bring others."""


class Prepared:
    """Translations, found where they were made before. For several threads."""

    def __init__(self, relations: Container[str]) -> None:
        """`relations`: the names of tables and views that there are."""
        self._relations = relations
        self._path = _path()
        self._known = _read(self._path)
        self._stored_count = len(self._known)
        self._working = threading.Lock()

    def view(self, name: str) -> str:
        """A view's query. Raises UnsupportedSqlError."""
        text = catalog.view(name).sql
        if catalog.is_own(name):  # people's
            from kwire.reports.embedded import translation

            return translation.translated(text, self._relations)
        return self._cached(text, lambda translate: str(translate.translated(text, self._relations)))

    def steps(self, name: str, first: Sequence[str]) -> list[str]:
        """A view's query in steps, see `translation.apart`. Raises UnsupportedSqlError."""
        text = catalog.view(name).sql

        def text_of(step: int) -> str:
            key = f"{text}\n-- step {step}, {', '.join(first)}"
            return self._cached(key, lambda translate: str(translate.apart(text, self._relations, first)[step]))

        return [text_of(step) for step in range(len(first) + 1)]

    def translated(self, text: str, rows: int | None = None) -> str:
        """See `translation.translated`. Raises UnsupportedSqlError."""
        plain, numbers = _taken_out(text)
        translated = self._text(plain, rows)
        if not all(mark in translated for mark in numbers):  # it was reckoned with
            return self._text(text, rows)
        for mark, number in numbers.items():
            translated = translated.replace(mark, number)
        return translated

    def _text(self, text: str, rows: int | None) -> str:
        key = f"{text}\n-- {rows} rows"
        return self._cached(key, lambda translate: str(translate.translated(text, self._relations, rows)))

    def _cached(self, key: str, make: Callable[[Any], str]) -> str:
        """`make` gets the translator, which is loaded where it is needed."""
        with self._working:
            cached = self._known.get(key)
            if cached is None:
                from kwire.reports.embedded import translation

                cached = self._known[key] = make(translation)
        return cached

    def keep(self) -> None:
        """Write down what is new."""
        with self._working:
            if self._path is not None and self._stored_count < len(self._known) <= _MOST:
                replace(self._path, sealed(packed(self._known)))
                self._stored_count = len(self._known)


def _taken_out(text: str) -> tuple[str, dict[str, str]]:
    """The text with marks for its numbers, and the numbers by mark."""
    numbers: dict[str, str] = {}

    def marked(match: re.Match[str]) -> str:
        mark = _MARK.format(len(numbers))
        numbers[mark] = match[0]
        return mark

    return _NUMBER.sub(marked, text), numbers


def _path() -> Path | None:
    """Where translations are kept; None: what made them cannot be told."""
    parser = importlib.util.find_spec("sqlglot")
    if parser is None or parser.origin is None:
        return None
    digest = hashlib.sha256()
    try:
        digest.update(Path(parser.origin).with_name("_version.py").read_bytes())
        for name in _SOURCES:
            digest.update(Path(__file__).with_name(name).read_bytes())
    except OSError:
        return None
    return cache_root() / "data" / f"sql.{digest.hexdigest()[:16]}"


def _read(path: Path | None) -> dict[str, str]:
    """Read the cache file. Whatever is wrong with it, it can be made again."""
    if path is not None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, struct.error, RecursionError):
            content = unpacked(opened(content_of(path)))
            if isinstance(content, dict) and all(isinstance(value, str) for value in content.values()):
                return content
    return {}
