"""Questions in SQL about a view's dataset: kwire's views, those of a user's folder (`--views`), and the report.

In: the name of a question. Out: rows for the page, as `other_tables` gives them; the report's page. Rules: a request
names a question and brings no SQL; the embedded engine answers, one question at a time, in a thread that ends when the
client disconnects; the last answers are cached, of each at most `MAX_ANSWER_ROWS`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from kwire.analyzer.dataset import tables as contract
from kwire.analyzer.frame.spill import Cancelled, check_cancelled
from kwire.reports.view.other_tables import kind
from kwire.reports.view.tables import BadRequestError

if TYPE_CHECKING:
    from kwire.reports.engine_protocol import Engine

T = TypeVar("T")

MAX_ANSWER_ROWS: Final = 10_000
"""Rows of an answer; the page tells if there are more."""

MAX_ANSWERS: Final = 4
"""Answers that are cached: sorting and scrolling need them again."""

MAX_TEXT: Final = 2_000
"""Characters of a value that are sent."""

POLL_SECONDS: Final = 0.1
"""Between two checks whether the client still waits."""

_ABOUT: Final = {
    "view": "Name of the question: a view of kwire sql.",
    "question": "What it answers.",
    "from": "kwire, or a file of --views.",
}


def listed(start: int, count: int) -> dict[str, Any]:
    """List the questions, the user's first: their names, what they answer, and `opens`: the question of each row."""
    from kwire.reports import catalog

    views = [*catalog.own(), *sorted(catalog.shipped(), key=lambda view: view.name)]
    shown = views[start : start + count]
    return {
        "total": len(views),
        "start": start,
        "about": [
            {"name": name, "kind": "text", "about": about, "sorted": False, "wide": name == "question"}
            for name, about in _ABOUT.items()
        ],
        "columns": {
            "view": [view.name for view in shown],
            "question": [view.question for view in shown],
            "from": ["--views" if catalog.is_own(view.name) else "kwire" for view in shown],
        },
        "opens": [view.name for view in shown],
    }


@dataclass
class SqlQuestions:
    """The questions about one dataset, and the last answers. `complete`: whether all of the dataset is there."""

    dataset: Path
    complete: bool
    _answers: dict[str, tuple[pa.Table, bool]] = field(default_factory=dict)
    _report: str = ""
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def window(self, name: str, sort: str, start: int, count: int) -> dict[str, Any]:
        """Get a window of the rows that answer a question; `sort`: as for exchanges. Raises KwireError, Cancelled."""
        from kwire.reports import catalog, named_ends

        try:
            question = catalog.view(name)
        except KeyError:
            raise BadRequestError(f"question={name[:40]}: unknown", "the table questions lists them") from None
        self._check_complete()
        table, more = self._answer(name)
        rows = _ordered(table, sort).slice(start, count)
        return {
            "total": len(table),
            "more": more,
            "start": start,
            "question": question.question,
            "about": [
                {
                    "name": column.name,
                    "title": column.name,
                    "kind": _kind(column),
                    "about": question.columns.get(column.name, "") or named_ends.ABOUT.get(column.name, ""),
                    "sorted": not pa.types.is_nested(column.type),
                }
                for column in table.schema
            ],
            "columns": {column.name: _values(column, rows.column(column.name)) for column in table.schema},
        }

    def report(self, name: str) -> str:
        """Get the report as a page whose evidence leads into the view; `name`: what it is on. Raises KwireError,
        Cancelled."""
        from kwire.analyzer.common.version import __version__
        from kwire.reports.page import rendering
        from kwire.reports.page.report import make

        self._check_complete()
        with self._one_at_a_time():
            if not self._report:
                report = _work(
                    self.dataset,
                    lambda engine: make(engine, (name,), None, __version__),
                    "the report",
                    "kwire report DATASET --engine spark may do it",
                )
                self._report = rendering.as_html(report, served=True)
            return self._report

    def _check_complete(self) -> None:
        if not self.complete:
            raise BadRequestError(
                "questions in SQL are about all exchanges, which are still being read", "the answer follows then"
            )

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        while not self._asking.acquire(timeout=POLL_SECONDS):
            check_cancelled()
        try:
            yield
        finally:
            self._asking.release()

    def _answer(self, name: str) -> tuple[pa.Table, bool]:
        with self._one_at_a_time():
            answer = self._answers.pop(name, None) or _ask(self.dataset, name)
            self._answers[name] = answer  # the last one
            for oldest in list(self._answers)[:-MAX_ANSWERS]:
                del self._answers[oldest]
            return answer


def _work(dataset: Path, work: Callable[[Engine], T], name: str, hint: str) -> T:
    """Have an engine of its own do something that ends when the client disconnects. `name`: what that is; `hint`: what
    may do it otherwise. Raises KwireError, Cancelled."""
    from kwire.captures.extras import install
    from kwire.reports import engines
    from kwire.reports.engine_protocol import TranslatorError, UnknownColumn, UnsupportedSqlError, cancel

    if not engines.installed():
        raise engines.EngineError("the engine that answers questions in SQL is not installed", install("sql"))
    try:
        with engines.embedded_engine().opened([dataset]) as engine, ThreadPoolExecutor(1) as pool:
            future = pool.submit(work, engine)
            try:
                while not wait([future], POLL_SECONDS).done:
                    check_cancelled()
            except Cancelled:
                cancel(engine, [future])
                raise
            return future.result()
    except UnknownColumn as failure:
        raise BadRequestError(f"{name}: there is no column {failure.name}") from None
    except TranslatorError as failure:
        raise engines.EngineError(failure.message, failure.hint) from None
    except UnsupportedSqlError as failure:
        raise BadRequestError(f"{name} cannot be answered here: {failure}", hint) from None


def _ask(dataset: Path, name: str) -> tuple[pa.Table, bool]:
    """Get the rows of a question, and whether there are more. Raises KwireError, Cancelled."""
    from kwire.reports import catalog, named_ends

    query = f"SELECT * FROM {name}"
    own = " --views DIR" if catalog.is_own(name) else ""
    hint = f'kwire sql DATASET "{query}"{own} --engine spark may do it'
    table, more = _work(dataset, lambda engine: engine.ask(query, MAX_ANSWER_ROWS), name, hint)
    return named_ends.with_names(table), more


def _ordered(table: pa.Table, sort: str) -> pa.Table:
    """Sort rows: largest first, with `-` smallest first, nulls last."""
    by = sort.removeprefix("-")
    if not sort:
        return table
    if by not in table.column_names or pa.types.is_nested(table.schema.field(by).type):
        raise BadRequestError(f"sort={sort[:40]}: no column of the answer to sort by")
    return table.sort_by([(by, "descending" if sort == by else "ascending")])


def _kind(column: pa.Field) -> str:
    """Get the kind of a column; sizes and durations are whole numbers."""
    shown = "size" if column.name == "bytes" else kind(column)
    return shown if shown == "time" or pa.types.is_integer(column.type) else "text"


def _values(column: pa.Field, values: pa.ChunkedArray) -> list[Any]:
    """Get values for JSON: integers as they are, times as microseconds, others as text, cut to `MAX_TEXT`."""
    from kwire.reports.results import cell_text

    plain: list[Any] = (values.cast(pa.int64()) if column.type == contract.TIME else values).to_pylist()
    if column.type == contract.TIME or pa.types.is_integer(column.type):
        return plain
    texts = (None if value is None else cell_text(value) for value in plain)
    return [text if text is None or len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…" for text in texts]
