"""Answers: what Spark said to a question, as plain rows.

In: a session in which datasets are registered, and questions. Out: `Answer`s, which hold everything that rendering
needs: the question, what each column holds, the SQL, the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from reports import catalog

ROWS = 500
"""Rows of an answer that a report keeps: more are no reading matter, and make a page of megabytes. `kwire sql` has
the others."""

AT_ONCE = 4
"""Questions asked at once. On small datasets most of a question's time is Spark's planning, which has one thread."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a report. `sql` is what Spark is asked; `shown` what the reader is shown: the view's own text
    where the question is a view."""

    name: str
    question: str
    notes: str
    columns: dict[str, str]
    sql: str
    shown: str
    rows: int = ROWS


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its rows, in the order of `question.columns`. `more`: there are rows beyond these."""

    question: Question
    rows: tuple[tuple[Any, ...], ...]
    more: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.question.columns)

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by column name."""
        return [dict(zip(self.columns, row)) for row in self.rows]

    def total(self, column: str) -> int:
        """Sum of a column of counts."""
        at = self.columns.index(column)
        return sum(row[at] or 0 for row in self.rows)


def of_view(name: str, where: str = "", rows: int = ROWS) -> Question:
    """The question of a view; `where`: a condition on its columns."""
    view = catalog.view(name)
    condition = f" WHERE {where}" if where else ""
    shown = f"-- {name}{condition}\n{view.sql}"
    return Question(name, view.question, view.notes, view.columns, f"SELECT * FROM {name}{condition}", shown, rows)


def own(name: str, text: str, rows: int = ROWS) -> Question:
    """A question that is only asked here, written like a view's file."""
    view = catalog.parse(name, text)
    return Question(name, view.question, view.notes, view.columns, view.sql, view.sql, rows)


def ask(spark: Any, questions: Sequence[Question]) -> dict[str, Answer]:
    """Ask them all; answers by the questions' names."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {answer.question.name: answer for answer in pool.map(lambda one: _ask(spark, one), questions)}


def _ask(spark: Any, question: Question) -> Answer:
    # One row more than wanted tells whether there are more, for the price of nothing.
    found = spark.sql(question.sql).limit(question.rows + 1).collect()
    rows = tuple(tuple(_plain(value) for value in row) for row in found[: question.rows])
    return Answer(question, rows, len(found) > question.rows)


def _plain(value: Any) -> Any:
    """Spark's rows and lists as Python's own."""
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return {key: _plain(item) for key, item in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def by_key(answer: Answer, keys: Iterable[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by the values of some columns."""
    names = tuple(keys)
    return {tuple(row[name] for name in names): row for row in answer.dicts()}
