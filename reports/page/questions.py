"""Questions, and what an engine said to them as plain rows.

In: an engine, which has the datasets, and questions. Out: `AnsweredQuestion`s, which hold everything that rendering
needs: the question, what each column holds, the SQL, the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwire.reports import catalog, named_ends
from kwire.reports.engine_protocol import Engine, cancel

FOLDER = Path(__file__).resolve().parent / "questions"
"""Questions that only a report asks."""

ROWS = 500
"""Rows of an answer that a report keeps: more are no reading matter, and make a page of megabytes. `kwire sql` has
the others."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a report. `sql` is what the engine is asked; `shown` what the reader is shown: the view's own
    text where the question is a view."""

    name: str
    question: str
    notes: str
    columns: dict[str, str]
    sql: str
    shown: str
    rows: int = ROWS


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
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


def own(name: str, rows: int = ROWS, **values: Any) -> Question:
    """A question that is only asked here, written like a view's file; `values` take the places of `{names}` in it."""
    view = catalog.parse(name, (FOLDER / f"{name}.sql").read_text(encoding="utf-8").format(**values))
    return Question(name, view.question, view.notes, view.columns, view.sql, view.sql, rows)


def ask(engine: Engine, questions: Sequence[Question]) -> dict[str, AnsweredQuestion]:
    """Ask them all; answers by the questions' names."""
    with ThreadPoolExecutor(engine.at_once) as pool:
        futures = [pool.submit(_ask, engine, question) for question in questions]
        try:
            return {question.name: future.result() for question, future in zip(questions, futures)}
        except BaseException:
            cancel(engine, [future for future in futures if not future.cancel()])
            raise


def _ask(engine: Engine, question: Question) -> AnsweredQuestion:
    table, more = engine.ask(question.sql, question.rows, repeated=not catalog.is_own(question.name))
    table = named_ends.with_names(table)
    if list(question.columns) != table.column_names:  # names were added, or it is a user's, which need not say
        known = named_ends.ABOUT | question.columns
        about = {name: known.get(name, "") for name in table.column_names}
        question = dataclasses.replace(question, columns=about)
    rows = tuple(zip(*(column.to_pylist() for column in table.columns)))
    return AnsweredQuestion(question, rows, more)
