"""Kwire's own questions in DuckDB's words, as they come with kwire.

In: the text of a view, or of a question of a report. Out: the same for DuckDB, or `UnsupportedSqlError`. They are
translated when kwire is made, because what understands SQL (sqlglot) takes longer to load than a small dataset takes
to ask, and because only people's own questions shall need it.

    python -m kwire.reports.embedded.prepared        writes translations.json again, after a view was edited

Rules
- A text that was edited since is translated when it is asked.
- A report's own numbers (when its captures begin, how long an interval is, the release of an upgrade check) are taken
  out before and put back behind: the translation does not depend on them, which it says by having each of them.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.util
import json
import re
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.common.times import EPOCH
from kwire.captures.cache import cached_by
from kwire.captures.extras import install
from kwire.reports import catalog
from kwire.reports.engine_protocol import TranslatorError

FILE: Final = Path(__file__).with_name("translations.json")

_NUMBER = re.compile(r"(?<![\w.'\"])\d{4,18}(?![\w.'\"])|(?<==\s')\d+(?:\.\d+)+(?=')")
"""Intervals have a millisecond or more, times far more digits; releases stand behind a `=`."""

_MARK = "77{:02d}3141592653"
"""Stands for a number: no text of kwire's has one like it."""


class Prepared:
    """Translations, most of which were made before. For several threads."""

    def __init__(self, relations: Container[str], known: dict[str, str] | None = None, translate: Any = None) -> None:
        """`relations`: the names of tables and views that there are; `known`: None: those that come with kwire;
        `translate`: the module that makes others, None: see `translator`."""
        self._translate = translate
        self._relations = relations
        self._known = shipped() if known is None else known
        self._working = threading.Lock()

    def view(self, name: str) -> str:
        """A view's query. Raises UnsupportedSqlError."""
        text = catalog.view(name).sql
        if catalog.is_own(name):  # people's
            return str(translator().translated(text, self._relations))
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

    def _cached(self, text: str, make: Callable[[Any], str]) -> str:
        """`make` gets the translator, which is loaded where it is needed."""
        key = hashlib.sha256(text.encode()).hexdigest()[:20]
        with self._working:
            cached = self._known.get(key)
            if cached is None:
                cached = self._known[key] = make(self._translate or translator())
        return cached


def _taken_out(text: str) -> tuple[str, dict[str, str]]:
    """The text with marks for its numbers, and the numbers by mark."""
    numbers: dict[str, str] = {}

    def marked(match: re.Match[str]) -> str:
        mark = _MARK.format(len(numbers))
        numbers[mark] = match[0]
        return mark

    return _NUMBER.sub(marked, text), numbers


def shipped() -> dict[str, str]:
    """The translations that came with kwire, by a hash of what was translated."""
    try:
        content: dict[str, str] = json.loads(FILE.read_bytes())
    except FileNotFoundError:
        return {}
    return dict(content)


def translations(translate: Any = None) -> dict[str, str]:
    """Translate all that kwire itself asks: its views, and a report with and without an upgrade check.

    translate   the module that does it, None: see `translator`
    """
    from kwire.reports import relations
    from kwire.reports.page import report, sections

    own = [view.name for view in catalog.own()]
    prepared = Prepared(frozenset(relations.names()).difference(own), {}, translate)
    for view in catalog.shipped():
        prepared.view(view.name)
    for name, first in relations.MATERIALIZED.items():
        prepared.steps(name, first)
    prepared.translated(report.SPAN, 1 + 1)  # an engine asks for a row more, to tell whether there is one
    for text, rows in _report_questions(sections):
        prepared.translated(text, rows + 1)
    return prepared._known


def _report_questions(sections: Any) -> Iterator[tuple[str, int]]:
    """Questions of reports on captures with and without exchanges, and how many rows are kept of each."""
    some_day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    today, never = sections.Span(some_day, some_day), sections.Span(EPOCH, EPOCH)
    for span, target in ((today, None), (today, "4.0"), (never, None), (never, "4.0")):
        for question in sections.questions(span, target):
            yield question.sql, question.rows


# --- sqlglot ----------------------------------------------------------------------------------------------------------

TESTED_SQLGLOT: Final = "30"
"""The major version of sqlglot under which translations were compared with Spark's rows."""


def translator() -> Any:
    """Import the module that translates people's own questions. Raises TranslatorError where it cannot be used."""
    if importlib.util.find_spec("sqlglot") is None:
        raise TranslatorError("SQL of your own needs sqlglot, which is not installed", install("sql"))
    import sqlglot

    release = str(sqlglot.__version__)
    if release.partition(".")[0] != TESTED_SQLGLOT and not _translates_alike(release):
        raise TranslatorError(
            f"sqlglot {release} translates otherwise than the one that kwire was tested with",
            f"pip install 'sqlglot[c]<{int(TESTED_SQLGLOT) + 1}'",
        )
    from kwire.reports.embedded import translation

    return translation


@functools.cache
def _translates_alike(release: str) -> bool:
    """Whether a release of sqlglot translates what comes with kwire as the tested one did; once a machine."""

    def compare() -> bool:
        try:
            from kwire.reports.embedded import translation

            return translations(translation) == shipped()
        except Exception:  # parts of sqlglot that are not there any more may fail in any way
            return False

    return bool(cached_by("sqlglot", f"{release} {hashlib.sha256(FILE.read_bytes()).hexdigest()}", compare))


def main() -> None:
    """Write the translations again."""
    FILE.write_text(as_text(translations()), encoding="utf-8")


def as_text(some: dict[str, str]) -> str:
    """Translations as the file has them: one a line, in the order of their hashes, so that changes merge."""
    return json.dumps(dict(sorted(some.items())), indent=0, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
