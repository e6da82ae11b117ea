"""`kwire sql`: questions in SQL over a dataset's tables and views, one from the command line or many at a prompt.

In: parsed options. Out: answers on stdout or in a file. What can be known to be wrong is told before a capture is read
or Spark is started; a wrong query is told in Spark's words, in one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING

from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads.options import PayloadOptions, check_captures
from kwire.captures.cache import cache_root
from kwire.captures.errors import KwireError
from kwire.reports import named_ends, output, own_views, relations, zones
from kwire.reports.engine_protocol import Engine, interruptibly

if TYPE_CHECKING:
    import pyarrow as pa

    from kwire.analyzer.options.questions import SqlOptions

Notes = Callable[[str], Iterator[str]]
"""What is to be said of a query besides its answer."""

SHOWN_ROWS = 1000
"""Rows of a table for people; the other forms have all."""

HISTORY_LINES = 1000

ENDINGS = {
    "": "table",
    ".txt": "table",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}
"""The form of a file by the end of its name."""

_KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "ORDER",
    "HAVING",
    "LIMIT",
    "JOIN",
    "DISTINCT",
    "DESCRIBE",
    "SHOW",
    "VIEWS",
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "percentile",
    "date_trunc",
    "explode",
)


def sql(options: SqlOptions) -> int:
    """`kwire sql`."""
    if options.query is None and (options.out or options.format == "parquet"):
        raise UsageError("-o goes with a query", 'kwire sql DATASET "SELECT ..." -o FILE')
    if options.format == "parquet" and not options.out:
        raise UsageError("--format parquet needs a file", "add -o FILE")
    form = options.format or (output.form(options.out, ENDINGS) if options.out else "table")
    if options.out:
        output_file.check(options.out)
    if options.dataset == "-" and options.query is None:
        raise UsageError("-: stdin is the capture, so no queries come from there", 'kwire sql - "SELECT ..." < CAPTURE')
    with own_views.opened(options.views), zones.opened(options.zones):
        return _ask(options, form)


def _ask(options: SqlOptions, form: str) -> int:
    stored = _is_stored(options.dataset)
    if options.query is not None:
        _check(options, options.query, stored)
    if stored and options.keylog:
        raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
    if stored:
        check_captures(options)
    with _dataset(options, stored) as dataset:
        from kwire.reports import catalog, engines

        notes = partial(unkept, dataset if stored else None, dataset)
        only = None if options.query is None else catalog.needed(options.query)
        with engines.opened(options, [dataset], only) as engine:
            if options.query is not None:
                _answer(engine, options.query, form, options.out, options.raw, notes)
                return 0
            return _prompt(engine, form, options.raw, notes)


def _is_stored(path: str) -> bool:
    """Whether this is a dataset, no capture. Raises DatasetError where it is one that cannot be read, or nothing."""
    from kwire.analyzer.dataset import dataset as datasets
    from kwire.captures.files.urls import is_url

    if path == "-":  # a capture from stdin
        return False
    empty = not os.path.exists(path) or (os.path.isdir(path) and not os.listdir(path))
    if not datasets.is_dataset(path) and (is_url(path) or not empty):
        return False
    datasets.open_dataset(path)  # what is wrong with it is told before Spark starts
    return True


def _check(options: SqlOptions, query: str, stored: bool) -> None:
    """Raises QueryError where the query is surely wrong, before anything that takes long."""
    from kwire.reports import engines, query_errors

    query_errors.check(query)
    if engines.installed() and not (stored and engines.choose(options) == engines.EMBEDDED):
        engines.check_columns(query)


@contextlib.contextmanager
def _dataset(options: SqlOptions, stored: bool) -> Iterator[str]:
    """A dataset; a capture is analysed into one that is gone afterwards."""
    from kwire.analyzer import api

    if stored:
        yield options.dataset
        return
    payloads = PayloadOptions.from_arguments(options)
    with tempfile.TemporaryDirectory(prefix="kwire-sql-") as folder:
        written = os.path.join(folder, "dataset")
        api.analyze(
            options.dataset,
            written,
            keylogs=options.keylog,
            records="batches" if payloads is None else "full",
            schemas=options.schemas,
            registry=options.registry,
            payloads=options.payloads,
        )
        yield written


def _answer(engine: Engine, query: str, form: str, out: str | None, raw: bool, notes: Notes) -> None:
    """Ask one question; `raw`: as `results.as_csv` has it; `notes`: what to say of a query. Raises QueryError."""
    limit = SHOWN_ROWS if form == "table" and not out else None
    table, more = answer(engine, query, limit)
    for note in notes(query):
        sys.stderr.write(f"note: {note}\n")
    if out is None:
        _write(table, form, sys.stdout, raw)
        if more:
            sys.stderr.write(f"note: the first {SHOWN_ROWS:,} rows; --format csv has all\n")
        return
    with output.written(out) as beside:
        if form == "parquet":
            from kwire.reports.results import write_parquet

            write_parquet(table, beside)
        else:
            with open(beside, "w", encoding="utf-8", newline="") as stream:
                _write(table, form, stream, raw)


def answer(engine: Engine, query: str, limit: int | None) -> tuple[pa.Table, bool]:
    """The answer to a query, SHOW and DESCRIBE too, of so many rows at most, and whether there are more. Raises
    QueryError."""
    described = _about(engine, query)
    if described is not None:
        return described
    table, more = engine.ask(query, limit)
    return named_ends.with_names(table), more


def _write(table: pa.Table, form: str, stream: IO[str], raw: bool) -> None:
    from kwire.reports import results

    if form == "table":
        stream.write(results.as_text(table))
    elif form == "csv":
        stream.writelines(results.as_csv(table, raw=raw, terminal=stream.isatty()))
    else:
        stream.writelines(results.as_json(table))
    stream.flush()


_KEPT_BY = {
    "batches": "--records batches",
    "records": "--records meta",
    "messages": "--keep-bytes",
}
"""Tables that have rows only where they were asked for."""


def unkept(name: str | None, dataset: str, query: str) -> Iterator[str]:
    """Why a table that a query reads is empty, where that is because nobody asked for its rows; `name`: the dataset's,
    where a user gave it one."""
    import pyarrow.compute as pc

    from kwire.analyzer.dataset import dataset as datasets
    from kwire.reports import catalog

    read = catalog.read_from(query) & _KEPT_BY.keys()
    if not read:
        return
    opened = datasets.open_dataset(dataset)
    if "replay" in opened.manifest or not opened.exchanges.count_rows():
        return
    for table in sorted(read):
        # Where no batch was sent or fetched, there was nothing to be kept.
        some = table == "messages" or opened.partitions.count_rows(filter=pc.field("record_bytes") > 0)
        if some and not getattr(opened, table).count_rows():
            option = _KEPT_BY[table]
            yield f"{table} is empty, made without {option}: kwire analyze CAPTURE -o {name or 'DATASET'} {option}"


_SHOW = re.compile(r"\s*SHOW\s+(VIEWS|TABLES)\s*", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*DESC(?:RIBE)?\s+(?:TABLE\s+|VIEW\s+)?`?(\w+)`?\s*", re.IGNORECASE)


def _about(engine: Engine, query: str) -> tuple[pa.Table, bool] | None:
    """Answer SHOW and DESCRIBE: all relations with their questions, or the columns of one with their content. None:
    it is another query."""
    import pyarrow as pa

    if shown := _SHOW.fullmatch(query):
        names = relations.names()
        own = engine.own()
        rows = [[*names, *own], [*map(relations.question, names), *[None] * len(own)]]
        label = "viewName" if shown[1].upper() == "VIEWS" else "tableName"
        return pa.table([pa.array(values, pa.string()) for values in rows], names=[label, "question"]), False
    described = _DESCRIBE.fullmatch(query)
    if described is None or described[1].lower() not in relations.names():
        return None
    name = described[1].lower()
    schema = engine.ask(f"SELECT * FROM {name}", 0)[0].schema
    comments = relations.columns(name)
    rows = [
        schema.names,
        [re.sub(r"([:,]) ", r"\1", relations.spark_type(column.type).lower()) for column in schema],
        [comments.get(column) for column in schema.names],
    ]
    arrays = [pa.array(values, pa.string()) for values in rows]
    return pa.table(arrays, names=["col_name", "data_type", "comment"]), False


# --- the prompt -------------------------------------------------------------------------------------------------------


_PIECE = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<comment> -- (?: \\\n | [^\n] )* | /\* )
    | (?P<end> ; )
    | [rR] (?: '[^']*' | "[^"]*" )
    | ' (?: [^'\\] | \\. )* ' | " (?: [^"\\] | \\. )* " | `[^`]*`
    | (?P<open> ['"`] )
    | [^\s;'"`/\w-]+ | \w+ | [/-]
    """,
    re.VERBOSE | re.DOTALL,
)
"""A piece of SQL, as Spark cuts it: a line's comment goes on behind a `\\`, and nothing in r'...' is escaped."""

_BRACKET = re.compile(r"/\*|\*/")


def _comment_end(text: str, begin: int) -> int | None:
    """Behind a comment in brackets, which may have others in it; None: it is not closed."""
    depth = 0
    for match in _BRACKET.finditer(text, begin):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return None


def split(text: str) -> tuple[list[str], str]:
    """The statements that are ended by `;`, without comments before them, and what is begun behind them."""
    statements = []
    at, first = 0, -1  # where a statement's first word is
    while at < len(text):
        piece = _PIECE.match(text, at)
        assert piece is not None, "any character is in one"
        kind, end = piece.lastgroup, piece.end()
        if kind == "comment":
            whole = _comment_end(text, at) if piece[0] == "/*" else end
            if whole is None or whole == len(text):
                break  # another line may go on with it
            end = whole
        elif kind == "end":
            if first >= 0:
                statements.append(text[first:at].rstrip())
            first = -1
        elif kind != "space":
            first = at if first < 0 else first
            if kind == "open":
                break
        at = end
    return statements, text[first if first >= 0 else at :]


def statements(lines: Iterator[str]) -> Iterator[str]:
    """Statements, each ended by `;` or by the end of the input."""
    held = ""
    for number, line in enumerate(lines):
        held += (line if number else line.removeprefix("\ufeff")) + "\n"
        if ";" in line:
            whole, held = split(held)
            yield from whole
    whole, rest = split(f"{held};")
    yield from whole
    if rest.strip(" \n;"):  # a quote or a comment that nobody closed: an engine says so
        yield rest.removesuffix(";").strip()


def _prompt(engine: Engine, form: str, raw: bool, notes: Notes) -> int:
    """Questions from a terminal with history and completion, or from whatever stdin is; 2 if that had a wrong one."""
    if not sys.stdin.isatty():
        for query in statements(line.rstrip("\n") for line in sys.stdin):
            _answer(engine, query, form, None, raw, notes)
        return 0
    sys.stderr.write(
        f"{len(relations.names())} tables and views (SHOW VIEWS lists them, DESCRIBE NAME their columns). "
        "A query ends with ; and Ctrl-D leaves.\n"
    )
    with _line_editing():
        typed = statements(_typed())
        while True:
            try:
                statement = next(typed, None)
            except KeyboardInterrupt:  # what was typed is forgotten
                sys.stderr.write("\n")
                typed = statements(_typed())
                continue
            if statement is None:
                sys.stderr.write("\n")
                return 0
            if statement.lower() in ("exit", "quit"):
                return 0
            try:
                interruptibly(engine, partial(_answer, engine, statement, form, None, raw, notes))
            except KwireError as failure:
                sys.stderr.write(f"{failure.message}\nhint: {failure.hint}\n")
            except KeyboardInterrupt:
                sys.stderr.write("interrupted\n")


def _typed() -> Iterator[str]:
    """Lines as they are typed, until Ctrl-D. `exit` needs no `;`."""
    held = ""
    while True:
        try:
            line = input("    -> " if held.strip() else "kwire> ")
        except EOFError:
            return
        line += ";" if line.strip().lower() in ("exit", "quit") else ""
        held = split(f"{held}{line}\n")[1]
        yield line


def completions(text: str, words: list[str]) -> list[str]:
    """The words that begin with `text`, upper or lower case."""
    return [word for word in words if word.lower().startswith(text.lower())]


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """History over sessions, and Tab completes names of tables, views and columns."""
    try:
        import readline
    except ImportError:  # a Python built without it
        yield
        return
    names = relations.names()
    columns = {column for name in names for column in relations.columns(name)}
    words = sorted({*names, *columns, *_KEYWORDS})
    lines: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            lines[:] = completions(text, words)
        return lines[state] if state < len(lines) else None

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
