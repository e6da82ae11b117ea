"""The views as they are written: `views/*.sql`, one question a file, and those of a user's folder (`--views`).

In: SQL files whose first comment is the question, followed by notes and one line for each column. Out: `View`s, in an
order in which each comes after those it reads. No Spark here.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "views"

_COLUMN = re.compile(r"-- ([a-z][a-z0-9_]*): (.+)")
_NAME = re.compile(r"\b[a-z][a-z0-9_]*\b")
_FROM = re.compile(r"\b(?:from|join)\s+`?([a-z][a-z0-9_]*)\b")


_ASKS = re.compile(r"\s*(SELECT|WITH|FROM|VALUES|EXPLAIN|DESCRIBE|DESC)\b", re.IGNORECASE)
"""Statements that name each relation that they read."""


@dataclass(frozen=True, slots=True)
class View:
    """A question with its answer in SQL. `columns`: what each column of the answer holds, in order."""

    name: str
    question: str
    notes: str
    columns: dict[str, str]
    sql: str

    def reads(self, name: str) -> bool:
        """Whether the SQL names another relation. Errs on the side of yes (a column may have the same name)."""
        return name in _NAME.findall(self.sql)


def parse(name: str, text: str) -> View:
    """One file. ValueError: it does not begin with its question."""
    lines = text.splitlines()
    head = 0
    while head < len(lines) and lines[head].startswith("--"):
        head += 1
    columns: dict[str, str] = {}
    prose: list[str] = []
    last = ""
    for line in lines[:head]:
        if column := _COLUMN.fullmatch(line):
            last = column[1]
            columns[last] = column[2]
        elif last:
            columns[last] += " " + line.removeprefix("--").strip()
        else:
            prose.append(line.removeprefix("--").strip())
    if not prose or not prose[0].endswith("?"):
        raise ValueError(f"{name}.sql: the first comment is not a question")
    return View(name, prose[0], " ".join(prose[1:]).strip(), columns, "\n".join(lines[head:]).strip())


@functools.cache
def shipped() -> tuple[View, ...]:
    """Kwire's own views, each after the views that it reads."""
    return ordered([parse(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.sql"))])


def ordered(some: Sequence[View]) -> tuple[View, ...]:
    """Views, each after those of them that it reads. ValueError: they read each other in a circle."""
    waiting = {view.name: view for view in some}
    result: list[View] = []
    while waiting:
        ready = [
            view for view in waiting.values() if not any(view.reads(other) for other in waiting if other != view.name)
        ]
        if not ready:
            raise ValueError(f"views read each other in a circle: {', '.join(waiting)}")
        for view in ready:
            result.append(waiting.pop(view.name))
    return tuple(result)


_own: tuple[View, ...] = ()
_using = threading.RLock()


@contextlib.contextmanager
def extended(some: Sequence[View]) -> Iterator[None]:
    """Have these views beside kwire's own meanwhile, in the whole process; another thread that wants others waits."""
    global _own
    with _using:
        before = _own
        try:
            _own = tuple(some)
            needed.cache_clear()
            yield
        finally:
            _own = before
            needed.cache_clear()


def own() -> tuple[View, ...]:
    """The user's views, each after those that it reads."""
    return _own


def is_own(name: str) -> bool:
    """Whether a view is the user's."""
    return any(view.name == name for view in _own)


def views() -> tuple[View, ...]:
    """Every view, each after the views that it reads."""
    return (*shipped(), *_own)


@functools.lru_cache(1024)
def needed(query: str) -> frozenset[str] | None:
    """Names among which are all tables and views that a query reads, and that those views read: to register these alone
    takes a fraction of the time. None where the text does not say: lists of what there is, names that are put together
    (`IDENTIFIER`)."""
    names = set(_NAME.findall(query.lower()))
    if "identifier" in names or not _ASKS.match(query):
        return None
    for view in reversed(views()):
        if view.name in names:
            names.update(_NAME.findall(view.sql))
    return frozenset(names)


def read_from(query: str) -> frozenset[str]:
    """Names after FROM and JOIN in a query, and in the views that are among them."""
    names = set(_FROM.findall(query.lower()))
    for view in reversed(views()):
        if view.name in names:
            names.update(_FROM.findall(view.sql.lower()))
    return frozenset(names)


def view(name: str) -> View:
    """The view of a name. KeyError: there is none."""
    return {view.name: view for view in views()}[name]
