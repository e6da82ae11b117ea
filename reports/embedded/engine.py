"""Datasets in an embedded DuckDB, asked in Spark SQL.

In: the folders of datasets. Out: answers as Arrow tables with Spark's names and types, or `UnsupportedSqlError`, for
whatever reason: then Spark is asked, and says what is wrong where something is.

Rules
- Of the datasets only the files are read that the manifests list, by their very names.
- Nothing is loaded, nothing is looked for in a network or in this process; what does not fit into memory goes to a
  folder for temporary files that ends with the engine.
- A relation is made when a query needs it, once, whoever asks.
- Each thread that asks has a cursor of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import tempfile
import threading
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa

from kwire.analyzer.dataset import dataset as datasets
from kwire.analyzer.dataset import tables
from kwire.reports import catalog, named_ends, relations
from kwire.reports.embedded import functions
from kwire.reports.embedded.prepared import Prepared, translator
from kwire.reports.engine_protocol import UnknownColumn, UnsupportedSqlError, cancel

MEMORY = 2 << 30
"""What DuckDB may hold. A report shares this machine with what it reports on."""

_SESSION = "SET TimeZone = 'UTC'; SET enable_progress_bar = false; SET ieee_floating_point_ops = false"
"""What holds for a connection or cursor, not for the database. By the last, division by zero is an error as in Spark,
also of doubles; it says nothing of numbers too large for one, which are infinite in both."""

_TYPES = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    tables.TIME: "TIMESTAMP WITH TIME ZONE",
}

_HUGE = pa.decimal128(38, 0)
"""How sums of integers come. Spark's are 64 bits wide, and an error beyond."""


_WHOLE = re.compile(r"\s*SELECT\s+\*\s+FROM\s+`?(\w+)`?(?:\s+LIMIT\s+(\d{1,9}))?\s*", re.IGNORECASE)
"""A query for a table or view as it is, which needs no translation."""


class Embedded:
    """Datasets to ask; none: relations without rows."""

    at_once = 2
    """DuckDB itself uses all cores for a question, but plans it, and puts together what it finds, on one."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], folder: str) -> None:
        """`folder`: for temporary files. Raises DatasetError."""
        self._opened = [datasets.open_dataset(path) for path in paths]
        self._connection = duckdb.connect(
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "temp_directory": os.path.join(folder, "spilled"),
                "memory_limit": f"{MEMORY >> 20}MiB",
                "threads": str(os.cpu_count() or 1),
                "python_enable_replacements": "false",
            }
        )
        self._connection.execute(_SESSION)
        self._cursors = [self._connection]
        self._local = threading.local()
        self._making = threading.Lock()
        functions.install(self._connection, relations.bucketed(self._opened))
        self._names = frozenset(relations.names())
        self._prepared = Prepared(self._names)
        self._created: set[str] = set()
        self._rows = relations.besides(self._opened)

    def own(self) -> list[str]:
        """Views that queries made: it takes no query that makes one."""
        return []

    def close(self) -> None:
        for cursor in reversed(self._cursors):
            cursor.close()

    def interrupt(self) -> None:
        """End what is being asked at this moment."""
        for cursor in tuple(self._cursors):
            cursor.interrupt()

    def ask(self, query: str, rows: int | None = None, repeated: bool = False) -> tuple[pa.Table, bool]:
        """The answer, and whether there are more than `rows`. Raises UnsupportedSqlError, UnknownColumn."""
        text = self._translated(query, None if rows is None else rows + 1, repeated)
        try:
            self._need(catalog.needed(query))
            table = _plain(self._run(text))
        except duckdb.BinderException as failure:
            raise _unknown_column(str(failure)) or UnsupportedSqlError(_first_line(failure)) from None
        except duckdb.InterruptException:
            raise KeyboardInterrupt from None
        except duckdb.Error as failure:
            raise UnsupportedSqlError(_first_line(failure)) from None
        if rows is None:
            return table, False
        return table.slice(0, rows), len(table) > rows

    def _translated(self, query: str, rows: int | None, repeated: bool) -> str:
        """The query for DuckDB."""
        if repeated:
            return self._prepared.translated(query, rows)
        whole = _WHOLE.fullmatch(query)
        if whole is not None and whole[1].lower() in self._names:
            limit = whole[2] or rows
            return f'SELECT * FROM "{whole[1].lower()}"' + (f" LIMIT {limit}" if limit is not None else "")
        return str(translator().translated(query, self._names, rows))

    def _run(self, text: str) -> pa.Table:
        """DuckDB hears no Ctrl-C in the main thread: there the question is asked in another."""
        if threading.current_thread() is not threading.main_thread():
            return self._cursor().sql(text).to_arrow_table()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(lambda: self._connection.sql(text).to_arrow_table())
            try:
                return future.result()
            except KeyboardInterrupt:
                cancel(self, [future])
                raise

    def _cursor(self) -> Any:
        """This thread's."""
        cursor = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._local.cursor = self._connection.cursor()
            cursor.execute(_SESSION)
            self._cursors.append(cursor)
        return cursor

    def check(self, query: str) -> None:
        """Bind a query, and read nothing. Raises UnsupportedSqlError, UnknownColumn."""
        text = self._translated(query, None, False)
        try:
            self._need(catalog.needed(query))
            self._connection.execute(f"EXPLAIN {text}")
        except duckdb.BinderException as failure:
            raise _unknown_column(str(failure)) or UnsupportedSqlError(_first_line(failure)) from None
        except duckdb.InterruptException:
            raise KeyboardInterrupt from None
        except duckdb.Error as failure:
            raise UnsupportedSqlError(_first_line(failure)) from None

    def _need(self, wanted: Container[str] | None) -> None:
        """Make the relations of these names, None: all, each after those that it reads."""
        with self._making:
            for name in relations.names():
                if name not in self._created and (wanted is None or name in wanted):
                    self._make(name)

    def _make(self, name: str) -> None:
        if name in tables.TABLES:
            self._connection.execute(f"CREATE VIEW {name} AS {self._table(name)}")
        elif name in relations.BESIDES:
            self._literal(name)
        elif name in relations.MATERIALIZED and self._opened:
            self._keep(name, relations.MATERIALIZED[name])
        else:
            self._connection.execute(f"CREATE VIEW {name} AS {self._prepared.view(name)}")
        self._created.add(name)

    def _keep(self, name: str, first: Sequence[str]) -> None:
        """A view as a table; those of its common tables that it is planned by are tables until it is made."""
        with contextlib.ExitStack() as until:
            for step, query in zip((*first, name), self._prepared.steps(name, first), strict=True):
                kind = "TABLE" if step == name else "TEMP TABLE"
                self._connection.execute(f"CREATE {kind} {step} AS {query}")
                if step != name:
                    until.callback(self._connection.execute, f"DROP TABLE {step}")

    def _table(self, name: str) -> str:
        """A table of the contract over all datasets."""
        parts = [self._part(name, files, renamed) for files, renamed in relations.listed(self._opened, name)]
        nothing = ", ".join(f'CAST(NULL AS {_type(column.type)}) AS "{column.name}"' for column in tables.TABLES[name])
        return self._with_names(name, " UNION ALL ".join(parts) if parts else f"SELECT {nothing} WHERE false")

    def _with_names(self, name: str, table: str) -> str:
        """A table with the names of its addresses as its last columns."""
        columns = named_ends.columns(name)
        if columns and "address_names" not in self._created:
            self._make("address_names")
        joins = "".join(
            f" LEFT JOIN address_names AS {column} ON {column}.address = kwire_table.{ip}"
            for column, ip in columns.items()
        )
        shown = "".join(f', {column}.name AS "{column}"' for column in columns)
        return f"SELECT kwire_table.*{shown} FROM ({table}) AS kwire_table{joins}" if columns else table

    def _part(self, name: str, files: Sequence[str], renamed: dict[str, str]) -> str:
        """A table of a dataset: its columns by name, null where the files, older than this kwire, lack one."""
        listed = ", ".join(_text(_escaped(file)) for file in files)
        settings = f"hive_partitioning = false, union_by_name = {str(len(files) > 1).lower()}"
        source = f"read_parquet([{listed}], {settings})"
        stored = dict(row[:2] for row in self._connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall())
        columns = []
        for column in tables.TABLES[name]:
            kind = _type(column.type)
            value = f'"{column.name}"' if column.name in stored else "NULL"
            if stored.get(column.name, "").replace('"', "") != kind.replace('"', ""):
                value = f"CAST({value} AS {kind})"
            if column.name == "capture" and renamed:
                cases = " ".join(f"WHEN {_text(old)} THEN {_text(new)}" for old, new in renamed.items())
                value = f"CASE {value} {cases} ELSE {value} END"
            columns.append(f'{value} AS "{column.name}"')
        return f"SELECT {', '.join(columns)} FROM {source}"

    def _literal(self, name: str) -> None:
        """Rows that are known here."""
        schema = relations.BESIDES[name]
        columns = zip(*self._rows[name]) if self._rows[name] else [()] * len(schema)
        arrays = [_array(list(values), column.type) for values, column in zip(columns, schema, strict=True)]
        self._connection.register("kwire_known", pa.table(arrays, schema=schema))
        self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM kwire_known")
        self._connection.unregister("kwire_known")


@contextlib.contextmanager
def opened(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Embedded]:
    """Open the engine over these datasets, and close it at the end. Raises DatasetError."""
    with tempfile.TemporaryDirectory(prefix="kwire-sql-") as folder, _interruptible():
        engine = Embedded(paths, folder)
        try:
            yield engine
        finally:
            engine.close()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is Ctrl-C. Where DuckDB is asked in the main thread, as it is when it opens and makes relations, it hears
    of that before Python does, and tells it in errors of its own."""
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except RuntimeError as failure:
        if str(failure) != "Query interrupted":
            raise
        raise KeyboardInterrupt from None


def _type(kind: pa.DataType) -> str:
    """A type of `analyzer/dataset/tables.py` as DuckDB writes it."""
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = (f'"{field.name}" {_type(field.type)}' for field in kind)  # `offset` and others are words of its own
        return f"STRUCT({', '.join(fields)})"
    if pa.types.is_map(kind):
        return f"MAP({_type(kind.key_type)}, {_type(kind.item_type)})"
    return _TYPES[kind]


def _text(value: str) -> str:
    """A literal."""
    return "'" + value.replace("'", "''") + "'"


def _escaped(path: str) -> str:
    """A path that DuckDB takes literally: it reads `*`, `?`, `[` as patterns."""
    return re.sub(r"([*?\[])", r"[\1]", path)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values of a manifest: times are text in it."""
    if kind == tables.TIME:
        values = [None if value is None else datetime.datetime.fromisoformat(value) for value in values]
    return pa.array(values, kind)


def _first_line(failure: Exception) -> str:
    return (str(failure).strip() or type(failure).__name__).splitlines()[0]


_UNKNOWN = re.compile(r'Referenced column "((?:[^"]|"")*)" (?:was )?not found')
_UNKNOWN_OF = re.compile(r'(?:Table|Values list) "((?:[^"]|"")*)" does not have a column named "((?:[^"]|"")*)"')
_UNKNOWN_TABLE = re.compile(r'Referenced table "[^"]*" not found!.*LINE \d+: (.*)\n( *)\^+', re.DOTALL)


def _unknown_column(message: str) -> UnknownColumn | None:
    """The column that a query's writer has misspelt."""
    near = re.search(r"Candidate bindings: :?(.*)", message)
    candidates = re.findall(r'"((?:[^"]|"")*)"', near[1]) if near else ()
    match = _UNKNOWN.search(message)
    if match is not None:
        return UnknownColumn(match[1], candidates)
    qualified = _UNKNOWN_OF.search(message)
    if qualified is not None:
        return UnknownColumn(f"{qualified[1]}.{qualified[2]}", candidates)
    other = _UNKNOWN_TABLE.search(message)  # `request.acks`: a column of a relation that the query does not name
    if other is None:
        return None
    named = re.match(r'"?\w+"?(?:\."?\w+"?)+', other[1][max(0, len(other[2]) - len("LINE 1: ")) :])
    return UnknownColumn(named[0].replace('"', ""), ()) if named is not None else None


def _plain(table: pa.Table) -> pa.Table:
    """The table with Spark's types. Raises UnsupportedSqlError where a column has one that Spark's answer would not
    have."""
    columns = []
    for column in table.columns:
        wanted = _spark_type(column.type)
        try:
            columns.append(column if column.type == wanted else column.cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as failure:
            raise UnsupportedSqlError(_first_line(failure)) from None
    return pa.table(columns, names=table.column_names)


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if kind == _HUGE:
        return pa.int64()
    if pa.types.is_large_string(kind) or pa.types.is_null(kind) or pa.types.is_string_view(kind):
        return pa.string() if not pa.types.is_null(kind) else kind
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return tables.TIME
    if pa.types.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _spark_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if kind not in _TYPES:
        raise UnsupportedSqlError(f"an answer of type {kind}")
    return kind
