"""`kwire sql`: questions in SQL over a dataset's tables and views, one from the command line or many at a prompt.

In: parsed options. Out: answers on stdout or in a file. A wrong query is told in Spark's words, in one line.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

from analyzer.cli import Failure
from captures.cache import cache_root

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SHOWN_ROWS = 1000
"""Rows of a table for people; the other forms have all."""

HISTORY_LINES = 1000

_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "BY", "ORDER", "HAVING", "LIMIT", "JOIN", "DISTINCT", "DESCRIBE", "SHOW",
    "VIEWS", "count", "sum", "avg", "min", "max", "percentile", "date_trunc", "explode",
)  # fmt: skip


def sql(options: argparse.Namespace) -> int:
    """`kwire sql`."""
    from reports import session

    if options.query is None and (options.out or options.format == "parquet"):
        raise Failure("-o goes with a query", 'kwire sql DATASET "SELECT ..." -o FILE')
    if options.format == "parquet" and not options.out:
        raise Failure("--format parquet needs a file", "add -o FILE")
    try:
        with _dataset(options.dataset) as dataset, session.of_command(options) as spark:
            from reports import catalog, relations

            only = None if options.query is None else catalog.needed(options.query)
            names = relations.register(spark, [dataset], only)
            if options.query is not None:
                _answer(spark, options.query, options.format or _form(options.out), options.out)
                return 0
            return _prompt(spark, names, options.format or "table")
    except session.SessionError as failure:
        raise Failure(str(failure), failure.hint) from None


@contextlib.contextmanager
def _dataset(path: str) -> Iterator[str]:
    """A dataset; a capture is analysed into one that is gone afterwards."""
    from analyzer import dataset as datasets
    from analyzer import reading
    from captures.files import CaptureError
    from captures.urls import is_url

    try:
        empty = not os.path.exists(path) or (os.path.isdir(path) and not os.listdir(path))
        if datasets.is_dataset(path) or (empty and not is_url(path)):
            datasets.read_manifest(path)
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="kwire-sql-") as folder:
            made = os.path.join(folder, "dataset")
            reading.analyze(path, made)
            yield made
    except (datasets.DatasetError, CaptureError) as failure:
        raise Failure(str(failure), failure.hint) from None


def _form(out: str | None) -> str:
    """The form that a file's name asks for."""
    endings = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
    return endings.get(Path(out).suffix.lower(), "table") if out else "table"


def _answer(spark: SparkSession, query: str, form: str, out: str | None) -> None:
    """Ask one question. Raises Failure with Spark's message."""
    table, more = _ask(spark, query, SHOWN_ROWS if form == "table" and not out else None)
    if out is None:
        _write(table, form, sys.stdout)
        if more:
            sys.stderr.write(f"note: the first {SHOWN_ROWS:,} rows; --format csv has all\n")
        return
    path = Path(out)
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        try:
            os.close(handle)
            if form == "parquet":
                from reports.results import write_parquet

                write_parquet(table, beside)
            else:
                with open(beside, "w", encoding="utf-8", newline="") as stream:
                    _write(table, form, stream)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as failure:
        raise Failure(f"{out}: cannot be written: {failure.strerror}", "give another file to -o") from None


def _write(table: pa.Table, form: str, stream: IO[str]) -> None:
    from reports import results

    if form == "table":
        stream.write(results.as_text(table))
    else:
        stream.writelines(results.as_csv(table) if form == "csv" else results.as_json(table))
    stream.flush()


def _ask(spark: SparkSession, query: str, rows: int | None) -> tuple[pa.Table, bool]:
    """The answer, and whether there are more than `rows`. Raises Failure with Spark's message."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(query)
        if rows is None:
            return frame.toArrow(), False
        table = frame.limit(rows + 1).toArrow()
        return table.slice(0, rows), len(table) > rows
    except PySparkException as failure:
        raise Failure(*_said(spark, str(failure))) from None
    except Py4JJavaError as failure:
        raise Failure(*_said(spark, str(failure.java_exception))) from None


def _said(spark: SparkSession, message: str) -> tuple[str, str]:
    """Spark's message in one line, and a hint."""
    from reports import relations

    text = re.sub(r"^(?:\w+\.)+\w+: ", "", message.strip()).split("\n== SQL")[0]
    first = re.split(r"\s*SQLSTATE: \w+", text.splitlines()[0] if text else "the query failed", maxsplit=1)[0]
    where = re.search(r"line (\d+),? pos(ition)? (\d+)", message)  # `pos` counts from 0, `position` from 1
    place = f" (line {where[1]}, column {int(where[3]) + (not where[2])})" if where else ""
    unknown = re.search(r"\[TABLE_OR_VIEW_NOT_FOUND\].*?`([^`]+)`(?: cannot|\.)", first)
    hint = "DESCRIBE NAME lists the columns of a table or view, SHOW VIEWS the names"
    if unknown:
        # Of ours only those are there that the query names.
        names = sorted({*relations.names(), *(row.viewName for row in spark.sql("SHOW VIEWS").collect())})
        near = difflib.get_close_matches(unknown[1], names, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return first.rstrip(" .") + place, hint


# --- the prompt -------------------------------------------------------------------------------------------------------


def statements(lines: Iterator[str]) -> Iterator[str]:
    """Statements, each ended by `;` at the end of a line or by the end of the input."""
    held: list[str] = []
    for line in lines:
        held.append(line)
        if line.rstrip().endswith(";"):
            text = "\n".join(held).strip().rstrip(";").strip()
            held = []
            if text:
                yield text
    rest = "\n".join(held).strip()
    if rest:
        yield rest


def _prompt(spark: SparkSession, names: tuple[str, ...], form: str) -> int:
    """Questions from a terminal with history and completion, or from whatever stdin is; 2 if that had a wrong one."""
    if not sys.stdin.isatty():
        for statement in statements(line.rstrip("\n") for line in sys.stdin):
            _answer(spark, statement, form, None)
        return 0
    sys.stderr.write(
        f"{len(names)} tables and views (SHOW VIEWS lists them, DESCRIBE NAME their columns). "
        "A query ends with ; and Ctrl-D leaves.\n"
    )
    with _line_editing(spark, names):
        while True:
            try:
                typed = next(statements(_typed()), None)
            except KeyboardInterrupt:  # what was typed is forgotten
                sys.stderr.write("\n")
                continue
            if typed is None:
                sys.stderr.write("\n")
                return 0
            if typed.lower() in ("exit", "quit"):
                return 0
            try:
                _answer_or_cancel(spark, typed, form)
            except Failure as failure:
                sys.stderr.write(f"{failure}\nhint: {failure.hint}\n")
            except KeyboardInterrupt:
                sys.stderr.write("interrupted\n")


def _answer_or_cancel(spark: SparkSession, query: str, form: str) -> None:
    """The same in a thread of its own, so that Ctrl-C finds us free to tell the JVM: its connection to this thread does
    not wait for an answer then."""
    from reports import session

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_answer, spark, query, form, None)
        try:
            asked.result()
        except KeyboardInterrupt:
            session.cancel(spark, [asked])
            raise


def _typed() -> Iterator[str]:
    """Lines as they are typed, until Ctrl-D. `exit` needs no `;`."""
    prompt = "kwire> "
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        prompt = "    -> "
        yield line + ";" if line.strip().lower() in ("exit", "quit") else line


def completions(text: str, words: list[str]) -> list[str]:
    """The words that begin with `text`, upper or lower case."""
    return [word for word in words if word.lower().startswith(text.lower())]


@contextlib.contextmanager
def _line_editing(spark: SparkSession, names: tuple[str, ...]) -> Iterator[None]:
    """History over sessions, and Tab completes names of tables, views and columns."""
    try:
        import readline
    except ImportError:  # a Python built without it
        yield
        return
    columns = {column for name in names for column in spark.table(name).columns}
    words = sorted({*names, *columns, *_KEYWORDS})
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            found[:] = completions(text, words)
        return found[state] if state < len(found) else None

    history = cache_root() / "sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,.()=<>;'\"`+-*/")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(history)
        readline.set_completer(None)
