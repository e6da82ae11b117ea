"""Datasets in a Spark session, asked in SQL.

In: a session, the folders of datasets. Out: answers as Arrow tables; what Spark says of a wrong query in one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kwire.reports import relations
from kwire.reports.engine_protocol import interruptibly
from kwire.reports.query_errors import QueryError, column_hint, unknown_relation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class Spark:
    """Datasets to ask, in a session of their own: their names do not stand in the way of the caller's."""

    at_once = 4
    """Questions asked at once. On small datasets most of a question's time is Spark's planning, which has one
    thread."""

    def __init__(
        self,
        spark: SparkSession,
        paths: Sequence[str | os.PathLike[str]],
        only: Container[str] | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """`only`, as in `relations.register`; `conf`: settings of this session. Raises DatasetError."""
        self._spark = spark.newSession()
        for name, value in (conf or {}).items():
            self._spark.conf.set(name, value)
        with self._errors():
            relations.register(self._spark, paths, only)

    def ask(self, query: str, rows: int | None = None, repeated: bool = False) -> tuple[pa.Table, bool]:
        """The answer, and whether there are more than `rows`. Raises QueryError with Spark's message."""
        if threading.current_thread() is not threading.main_thread():
            return self._ask(query, rows)  # no interrupt comes
        return interruptibly(self, partial(self._ask, query, rows))

    def _ask(self, query: str, rows: int | None) -> tuple[pa.Table, bool]:
        with self._errors():
            frame = self._spark.sql(query)
            if rows is None:
                return frame.toArrow(), False
            # One row more than wanted tells whether there are more, for the price of nothing.
            table = frame.limit(rows + 1 if rows else 0).toArrow()
            return table.slice(0, rows), len(table) > rows

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn Spark's errors into QueryError."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as failure:
            error = self.wrong(str(failure))
            files = [f"{note}: " for note in getattr(failure, "__notes__", ())]  # of a view
            raise QueryError("".join([*files, error.message]), error.hint) from None
        except Py4JJavaError as failure:
            raise self.wrong(_cause(failure.java_exception)) from None

    def own(self) -> list[str]:
        """Views that queries made."""
        known = relations.names()
        return [
            row.viewName
            for row in self._spark.sql("SHOW VIEWS").collect()
            if row.viewName not in known and not row.viewName.startswith("kwire_")
        ]

    def interrupt(self) -> None:
        """End what is being asked at this moment."""
        self._spark.sparkContext.cancelAllJobs()

    def wrong(self, message: str) -> QueryError:
        """Spark's message in one line, and a hint."""
        text = re.sub(r"^(?:\w+\.)+\w+: ", "", message.strip()).split("\n== SQL")[0]
        first = re.split(r"\s*SQLSTATE: \w+", text.splitlines()[0] if text else "the query failed", maxsplit=1)[0]
        where = re.search(r"line (\d+),? pos(ition)? (\d+)", message)  # `pos` counts from 0, `position` from 1
        place = (int(where[1]), int(where[3]) + (not where[2])) if where else None
        if re.search(r"OutOfMemory|Not enough memory|Java heap space|GC overhead", message):
            return QueryError.at(first, place, _MORE_MEMORY)
        unknown = re.search(r"\[TABLE_OR_VIEW_NOT_FOUND\].*?`([^`]+)`(?: cannot|\.)", first)
        if unknown:
            # Of ours only those are there that the query names.
            return unknown_relation(first, place, unknown[1], {*relations.names(), *self.own()})
        column = re.search(r"\[UNRESOLVED_COLUMN\S*\].*? with name (\S+) cannot", first)
        return QueryError.at(first, place, *([column_hint(column[1])] if column else []))


_MORE_MEMORY = "SPARK_DRIVER_MEMORY=12g (or what the machine has) gives Java more; --engine embedded needs less of it"


def _cause(exception: Any) -> str:
    """Java's text of an exception, or of its cause where it only says that something else failed."""
    while (cause := exception.getCause()) is not None and re.search(r"Exception thrown in \w+: *$", str(exception)):
        exception = cause
    return str(exception)
