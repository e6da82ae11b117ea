"""A user's views: `--views DIR`, a file `NAME.sql` a question, written like those of `views/`.

In: a folder. Out: its views beside kwire's own in `catalog`, while a command runs. What is wrong with a file is told
before anything is asked, with the file's name and, for its SQL, the line: UsageError or QueryError.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kwire.analyzer.common.errors import UsageError
from kwire.reports import catalog, engines, query_errors, relations
from kwire.reports.engine_protocol import UnknownColumn, UnsupportedSqlError
from kwire.reports.query_errors import QueryError

_HOW = "a file NAME.sql begins with a comment that is the question (-- Who is slow?), then has one query"


@contextlib.contextmanager
def opened(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Have the views of a folder meanwhile; None: kwire's own alone. Raises UsageError, QueryError."""
    if folder is None:
        yield
        return
    paths = _files(os.fspath(folder))
    some = []
    for path in paths:
        some.append(_view(path))
    try:
        views = catalog.ordered(some)
    except ValueError as failure:
        raise UsageError(f"{os.fspath(folder)}: {failure}", "let one of them ask the tables instead") from None
    with catalog.extended(views):
        _check({path.stem: path for path in paths})
        yield


def _files(folder: str) -> list[Path]:
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.suffix == ".sql" and path.is_file())
    except OSError as failure:
        raise UsageError(f"--views {folder}: {failure.strerror}", "give a folder of files NAME.sql") from None
    if not paths:
        raise UsageError(f"--views {folder}: there is no file NAME.sql in it", _HOW)
    return paths


def _view(path: Path) -> catalog.View:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", path.stem):
        raise UsageError(f"{path}: not a name for a view", "small letters, digits and _, beginning with a letter")
    if path.stem in relations.names():
        raise UsageError(f"{path}: kwire has a table or view {path.stem} already", "call the file otherwise")
    try:
        text = path.read_text(encoding="utf-8")
        view = catalog.parse(path.stem, text)
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "check who may read it") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text in UTF-8", _HOW) from None
    except ValueError:
        raise UsageError(f"{path}: the first comment is not a question", _HOW) from None
    if re.search(rf"\b(from|join)\s+`?{view.name}\b", view.sql, re.IGNORECASE) and not re.search(
        rf"\b{view.name}\s+as\s*\(", view.sql, re.IGNORECASE
    ):
        raise UsageError(f"{path}: it reads itself", "call the file otherwise, or ask the tables")
    # A view stands in other queries: what ends a statement would end those. Lines are counted as in the file.
    above = "\n" * text[: text.find(view.sql)].count("\n")
    return catalog.View(view.name, view.question, view.notes, view.columns, above + view.sql.rstrip("; \n"))


def _check(files: dict[str, Path]) -> None:
    """Raises QueryError where a view's SQL is surely wrong."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    for name, text in texts.items():
        with _of_file(files[name]):
            if not re.match(r"\s*\(*\s*(SELECT|WITH|FROM|VALUES)\b", catalog.view(name).sql, re.IGNORECASE):
                raise QueryError("not a query", _HOW)
            query_errors.check(text)
    if not engines.installed():
        return
    with engines.embedded_engine().opened([]) as empty:
        for view in catalog.own():  # each after those that it reads
            with _of_file(files[view.name]):
                try:
                    empty.check(texts[view.name].rstrip("; \n"))
                except UnknownColumn as failure:
                    raise query_errors.unknown_column(texts[view.name], failure.name, failure.near) from None
                except UnsupportedSqlError:
                    continue  # Spark takes it, or says what is wrong


@contextlib.contextmanager
def _of_file(path: Path) -> Iterator[None]:
    try:
        yield
    except QueryError as failure:
        raise QueryError(f"{path}: {failure.message}", failure.hint) from None
