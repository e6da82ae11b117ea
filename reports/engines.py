"""Which engine answers: the embedded one where this machine holds the data easily, else Spark.

In: a command's options, the folders of datasets. Out: an `Engine`. What the embedded engine does not take goes to
Spark, which is started when that happens first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kwire.captures.errors import KwireError
from kwire.captures.extras import install
from kwire.reports import relations
from kwire.reports.engine_protocol import Engine, TranslatorError, UnknownColumn, UnsupportedSqlError

if TYPE_CHECKING:
    import pyarrow as pa

    from kwire.analyzer.options.common import EngineOptions

AUTO, EMBEDDED, SPARK = "auto", "embedded", "spark"

QUICK_EXCHANGES = 1_000_000
"""Below so many exchanges it is not worth Java's while to compile at length what Spark writes: of a report on 100,000
its compilers take 16 s of processor time where they took 61. Of 2.5 million the tasks lose more than that."""


class EngineError(KwireError):
    """The engine that was asked for is not to be had."""


OLDEST_DUCKDB = (2, 0)
"""Older ones lack functions that the views are made of (found with 1.5.6)."""


def installed() -> bool:
    """Whether the embedded engine is there."""
    return importlib.util.find_spec("duckdb") is not None


def embedded_engine() -> Any:
    """The module of the embedded engine. Raises EngineError where the DuckDB that is installed is too old."""
    import duckdb

    version = tuple(int(part) for part in duckdb.__version__.split(".")[:2] if part.isdigit())
    if version < OLDEST_DUCKDB:
        oldest = ".".join(map(str, OLDEST_DUCKDB))
        raise EngineError(
            f"duckdb {duckdb.__version__} is installed, and kwire's views need {oldest} or newer",
            f"pip install 'duckdb>={oldest}', or --engine spark",
        )
    from kwire.reports.embedded import engine

    return engine


def choose(options: EngineOptions) -> str:
    """EMBEDDED or SPARK: the embedded engine, however large the datasets are, unless Spark is named or the embedded
    engine is not installed. Raises EngineError."""
    engine: str = options.engine
    spark_only = next((name for name in ("master", "conf") if getattr(options, name)), None)
    if engine == EMBEDDED:
        if spark_only:
            raise EngineError(f"--{spark_only} is a matter of Spark", "leave out --engine embedded")
        if not installed():
            raise EngineError("the embedded engine is not installed", f"{install('sql')}, or --engine spark")
        return EMBEDDED
    if engine == AUTO and not spark_only and not installed() and importlib.util.find_spec("pyspark") is None:
        raise EngineError("what answers SQL is not installed", f"{install('sql')}; for clusters {install('spark')}")
    return SPARK if engine == SPARK or spark_only or not installed() else EMBEDDED


@contextlib.contextmanager
def opened(
    options: EngineOptions,
    datasets: Sequence[str],
    only: Container[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """The engine over these datasets, and its end. `only`, `conf`: of Spark's session, see `spark.engine.Spark`."""
    with contextlib.ExitStack() as stack:
        spark = _Spark(stack, options, datasets, only, conf)
        if choose(options) == SPARK:
            yield spark.started()
        else:
            embedded = stack.enter_context(embedded_engine().opened(datasets))
            yield _EmbeddedFirst(embedded, spark, options.verbose)


def check_columns(query: str) -> None:
    """Raises QueryError where a query names a column that its tables and views do not have."""
    from kwire.reports.query_errors import unknown_column

    with embedded_engine().opened([]) as empty:
        try:
            empty.check(query)
        except UnknownColumn as failure:
            raise unknown_column(query, failure.name, failure.near) from None
        except UnsupportedSqlError:
            return


class _Spark:
    """Spark, started when it is needed; it ends with `stack`."""

    def __init__(
        self, stack: contextlib.ExitStack, options: EngineOptions, datasets: Sequence[str], *arguments: Any
    ) -> None:
        self._stack, self._options, self._datasets, self._arguments = stack, options, datasets, arguments
        self._engine: Engine | None = None
        self._starting = threading.Lock()

    @property
    def engine(self) -> Engine | None:
        return self._engine

    def started(self) -> Engine:
        with self._starting:
            if self._engine is None:
                from kwire.analyzer.dataset.dataset import open_dataset
                from kwire.reports.spark import session
                from kwire.reports.spark.engine import Spark

                exchanges = relations.exchanges([open_dataset(path) for path in self._datasets])
                started = self._stack.enter_context(session.of_command(self._options, exchanges < QUICK_EXCHANGES))
                only, conf = self._arguments
                self._engine = Spark(started, self._datasets, only, conf)
            return self._engine


def _without_spark(why: UnsupportedSqlError) -> EngineError:
    """The error of a query that the embedded engine does not take, where nobody else can be asked."""
    if isinstance(why, TranslatorError):
        return EngineError(why.message, why.hint)
    message = f"the engine inside this process does not take {why}, and Spark, which may, is not installed"
    return EngineError(message, install("spark"))


_ONLY_ASK = ("SELECT", "WITH", "FROM", "VALUES", "EXPLAIN", "DESC", "SHOW")
"""How statements begin that leave everything as it is."""


class _EmbeddedFirst:
    """The embedded engine, and Spark for what that does not take."""

    def __init__(self, embedded: Any, spark: _Spark, verbose: bool) -> None:
        self._embedded, self._spark, self._verbose = embedded, spark, verbose
        self.at_once: int = embedded.at_once
        self._own = False

    def ask(self, query: str, rows: int | None = None, repeated: bool = False) -> tuple[pa.Table, bool]:
        """See `Engine`. Once a statement that is no query has gone to Spark, what follows may depend on it."""
        from kwire.reports.query_errors import check, unknown_column

        if self._own:
            return self._spark.started().ask(query, rows)
        if not repeated:
            check(query)
        try:
            table, more = self._embedded.ask(query, rows, repeated)
            return table, more
        except UnknownColumn as failure:
            raise unknown_column(query, failure.name, failure.near) from None
        except UnsupportedSqlError as why:
            if importlib.util.find_spec("pyspark") is None:
                raise _without_spark(why) from None
            if self._verbose:
                sys.stderr.write(f"note: Spark answers this: the embedded engine does not take {why}\n")
        self._own = not query.lstrip(" \t\n(").upper().startswith(_ONLY_ASK)
        return self._spark.started().ask(query, rows)

    def own(self) -> list[str]:
        return [] if self._spark.engine is None else self._spark.engine.own()

    def interrupt(self) -> None:
        self._embedded.interrupt()
        if self._spark.engine is not None:
            self._spark.engine.interrupt()
