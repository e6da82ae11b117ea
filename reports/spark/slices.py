"""Questions about exchanges, answered slice by slice in Spark's tasks by the embedded engine.

In: the text of a view or question in Spark SQL. Out: the same text, in which the common tables that walk over all
exchanges are relations of Spark, made in two stages: a task for each slice of the dataset's files asks DuckDB for the
slice's part; the parts go by their keys, as columns, to tasks that add them up, and find the quantiles. Column by
column, over dictionaries, that takes a tenth of the processor time that Spark's rows take; and what the tables mean is
said once, in SQL.

Taken are common tables, and views, that read one relation of which each row belongs to one exchange (`WALKED`), and

- count: keys, and `count`, `count_if`, `sum`, `min`, `max` over them, which add up (`GROUP BY ALL`, or no keys); with
  what counts them up to quantiles, in the shape that `reports/embedded/quantiles.py` tells of;
  Quantiles by client are found where nothing need be added up: each task has all exchanges of some clients;
- rank: `ORDER BY ... LIMIT`, of which each slice has as many;
- are called `few`, or are among `FEW`: conditions that few exchanges meet.

All else stays as it is, and is Spark's.
"""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reports import catalog, relations

if TYPE_CHECKING:
    import pyarrow as pa

    from analyzer.dataset.dataset import StoredDataset

WALKED = ("exchanges", "timed_exchanges", "exchange_topics")

FEW = ("failed_exchanges",)
"""Views of few exchanges."""

LARGEST_SLICE = 16_000_000
"""Exchanges of a slice at most."""

MEMORY = 512 << 20
"""What DuckDB may hold in a task; what does not fit goes to the disk."""

GIVEN_ROWS = 1_000_000
"""Rows at most that every task is given of what a walk looks up."""

MOST_CLIENTS = 8
"""Tasks at most of which each has all exchanges of some clients: each reads all exchanges for it."""

_CLIENT = {"client_id", "client_ip"}
"""What is counted by clients and buckets is hardly fewer than what it counts: to send that on, and to add it up, takes
three times as long as to find the exchanges of some clients in all."""

_PARTS = 4
"""Parts of a slice's rows for each task that adds up."""

_ROWS = "kwire_rows"
"""What the tasks that add up call all slices' rows."""

_NOTHING: Mapping[str, pa.Table] = {}

_ADDED = {"count": "sum", "count_if": "sum", "sum": "sum", "min": "min", "max": "max"}
_CALL = re.compile(r"(count|count_if|sum|min|max)\((?!DISTINCT\b)")
_COMMON = re.compile(r"\b([a-z_]+) AS \((?=\s*SELECT\b)")
_COMMENT = re.compile(r"--[^\n]*")
_QUOTED = re.compile(r"'(?:[^']|'')*'")


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of files: of each the first, and the one behind the last."""

    rows: Mapping[str, tuple[int, int]]


def slices(opened: Sequence[StoredDataset], cores: int) -> list[Slice]:
    """The exchanges of datasets in about equal parts, in order: one a core, more where they would be too large."""
    files = [
        (str((one.path / entry["path"]).resolve()), int(entry["rows"]))
        for one in opened
        for entry in one.manifest["files"]
        if entry["table"] == "exchanges"
    ]
    total = sum(rows for _, rows in files)
    if not total:
        return []
    parts = max(cores, 1) * -(-total // (max(cores, 1) * LARGEST_SLICE))
    bounds = [total * part // parts for part in range(parts + 1)]
    made = []
    for first, end in pairwise(bounds):
        held, before = {}, 0
        for path, rows in files:
            here = (max(first - before, 0), min(end - before, rows))
            if here[0] < here[1]:
                held[path] = here
            before += rows
        if held:
            made.append(Slice(held))
    return made


# --- what is taken ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Walk:
    """A query over exchanges. `text` is asked of each slice. `added`: what is asked of all slices' rows, by tasks, each
    of which has all rows of some `keys`, or, without keys, of one; empty: nothing need be added up, and `ranked` says
    what is Spark's then. `at_once`: what says both of exchanges of which none is another task's."""

    text: str
    added: str = ""
    keys: tuple[str, ...] = ()
    ranked: str = ""
    at_once: str = ""

    @property
    def looks_up(self) -> frozenset[str]:
        """Common tables that it reads besides exchanges: those must be given."""
        return frozenset({"things"} if re.search(r"\bJOIN things\b", self.text) else ())


def walk(text: str, few: bool = False) -> Walk | None:
    """How a query is asked slice by slice; `few`: few rows come of it. None: it is not taken."""
    text = _uncommented(text).strip()  # else the embedded engine cannot tell what it reads
    clauses = _clauses(text)
    if clauses is None:
        return None
    columns, grouped, ranked = clauses
    named = [one for column in columns if (one := _named(column)) is not None]
    if not grouped and (few or ranked):
        return Walk(text, ranked=ranked)
    if ranked or len(named) < len(columns) or not (grouped or all(call for _, call in named)):
        return None
    added = ", ".join(f"{call}({name}) AS {name}" if call else name for name, call in named)
    keys = tuple(name for name, call in named if not call)
    return Walk(text, f"SELECT {added} FROM {_ROWS} GROUP BY ALL" if keys else f"SELECT {added} FROM {_ROWS}", keys)


_LOOKED_UP = (
    r"(?: AS x LEFT JOIN connections AS c ON c\.capture = x\.capture AND c\.connection = x\.connection"
    r"| AS x JOIN things AS t\s+ON (?P<joined>.*?)(?=\bWHERE\b))"
)
"""What is looked up for each exchange: at most one row, or what few exchanges have."""

_CLAUSES = re.compile(
    r"\s*SELECT\b(?!\s+DISTINCT\b)(?P<columns>.*?)\bFROM\s+(?P<source>[a-z_]+)"
    rf"{_LOOKED_UP}?\s*(?P<where>\bWHERE\b.*?)?"
    r"(?P<grouped>\bGROUP BY ALL\s*)?(?P<ranked>\bORDER BY\b.*\bLIMIT\s+\d+\s*)?",
    re.DOTALL,
)


def _clauses(text: str) -> tuple[list[str], bool, str] | None:
    """Columns, whether it counts, and how it ranks. What is in brackets or quotes is looked through as one piece."""
    plain = _flat(text)
    clauses = _CLAUSES.fullmatch(plain)
    if clauses is None or clauses["source"] not in WALKED:
        return None
    rest = f"{clauses['columns']} {clauses['where']} {clauses['joined']}"
    if re.search(r"\b(?:OVER|JOIN|UNION|HAVING|GROUP|SELECT|ORDER)\b", rest):
        return None
    at, end = clauses.span("columns")
    cuts = [at - 1, *(place for place in range(at, end) if plain[place] == ","), end]
    whole = _uncommented(text)
    columns = [whole[one + 1 : other].strip() for one, other in pairwise(cuts)]
    ranked = whole[slice(*clauses.span("ranked"))] if clauses["ranked"] else ""
    return columns, clauses["grouped"] is not None, ranked


def _uncommented(text: str) -> str:
    """Without comments, each letter where it was."""
    return _COMMENT.sub(lambda found: " " * len(found[0]), text)


def _unquoted(text: str) -> str:
    """Without comments and what is quoted, each letter where it was."""
    return _QUOTED.sub(lambda found: "_" * len(found[0]), _uncommented(text))


def _flat(text: str) -> str:
    """Without comments, and what is quoted or in brackets, each letter where it was."""
    depth, made = 0, []
    for letter in _unquoted(text):
        depth -= letter == ")"
        made.append(letter if depth == 0 else "_")
        depth += letter == "("
    return "".join(made)


def _named(column: str) -> tuple[str, str] | None:
    """The name of a column, and how it adds up; empty: it is a key. None: it is neither."""
    found = re.fullmatch(r"(?P<value>.*)\bAS\s+(?P<name>\w+)|(?:\w\.)?(?P<plain>\w+)", column, re.DOTALL)
    if found is None:
        return None
    if found["plain"]:
        return found["plain"], ""
    value = found["value"].strip()
    call = _CALL.match(value)
    if call is not None and re.fullmatch(r"[a-z_]+\(_*\)", _flat(value)):
        return found["name"], _ADDED[call[1]]
    # An aggregate that is a part of a larger value does not add up.
    part = re.search(r"\b(?:count|count_if|sum|min|max|avg|\w+_by|collect_\w+|percentile)\(", value)
    return None if part else (found["name"], "")


# --- quantiles --------------------------------------------------------------------------------------------------------

_PLACED = re.compile(
    r"\s*SELECT \*,\s*sum\(if\(bucket IS NULL, 0, (\w+)\)\) OVER \(\s*PARTITION BY ([\w, ]+?) ORDER BY bucket\) AS \w+,"
    r"\s*sum\(if\(bucket IS NULL, 0, \1\)\) OVER \(\s*PARTITION BY \2\) AS \w+\s+FROM (\w+)\s*"
)
_FOUND = re.compile(
    r"(?P<asked>.*\bFROM (?P<placed>\w+)\s*(?:GROUP BY (?P<keys>[\w, ]+?))?)\s*(?P<order>ORDER BY .*)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A common table, or the query itself, which has no name: its text, and where it stands."""

    name: str
    text: str
    begin: int
    end: int


def _pieces(query: str) -> list[_Piece]:
    """A query's common tables, and the query behind them."""
    plain = _unquoted(query)
    made, last = [], 0
    for found in _COMMON.finditer(plain):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(plain[end], 0)
            end += 1
        made.append(_Piece(found[1], query[found.end() : end - 1], found.end(), end - 1))
        last = max(last, end)
    return [*made, _Piece("", query[last:], last, len(query))]


def _quantiles(own: Walk, counted: _Piece, pieces: Sequence[_Piece]) -> tuple[Walk, _Piece, str] | None:
    """The walk with what finds the quantiles of its counts, the piece that does, and how that is ordered. None: nothing
    does, or not alone."""
    for placed in pieces:
        shape = _PLACED.fullmatch(_uncommented(placed.text))
        if shape is None or shape[3] != counted.name:
            continue
        keys = () if shape[2] == "true" else tuple(shape[2].split(", "))
        for final in pieces:
            found = _FOUND.fullmatch(final.text)
            if found is None or found["placed"] != placed.name or set(own.keys) != {*keys, "bucket"}:
                continue
            grouped = tuple((found["keys"] or "").split(", ")) if found["keys"] else ()
            if set(grouped) != set(keys) or re.search(r"\b(?:JOIN|UNION|WHERE|HAVING)\b", _flat(final.text)):
                continue
            rest = f"{placed.name} AS ({placed.text}) {found['asked']}"
            added, at_once = (f"WITH {counted.name} AS ({text}), {rest}" for text in (own.added, own.text))
            return Walk(own.text, added, keys, at_once=at_once), final, found["order"] or ""
    return None


def _alone(query: str, given: Mapping[str, object]) -> Walk | None:
    """The walk of a query with what the query makes of it, where that needs but what is given and what is known
    anywhere: what Spark writes and compiles for twenty joins of a few rows takes longer than to ask one task for all
    of them. None: it needs more."""
    if not given:
        return None
    pieces = _pieces(query)
    for piece in pieces[:-1]:
        own = walk(piece.text)
        if own is not None and own.added and own.looks_up <= given.keys():
            added = f"{query[: piece.begin]}{own.added}{query[piece.end :]}"
            if _read(added) <= {_ROWS, *given, *relations.BESIDES}:
                return Walk(own.text, added)
    return None


def _read(query: str) -> set[str]:
    """The relations, no common tables of its own, that a query's rows are of."""
    pieces = {one.name: one for one in _pieces(query)}
    read, looked, names = set[str](), {""}, [""]
    while names:
        name = names.pop()
        found = catalog.after_from(_uncommented(pieces[name].text))
        # One that reads what has its own name is one that is given.
        read |= {one for one in found if one not in pieces or one == name}
        new = found & pieces.keys() - looked
        looked |= new
        names += new
    return read


# --- Spark ------------------------------------------------------------------------------------------------------------


def possible(master: str | None) -> bool:
    """Whether a session, on a master or of this process, is to ask slice by slice. Whether the machines of a cluster
    have DuckDB, nobody knows."""
    here = master is None or master.startswith("local")
    return here and all(importlib.util.find_spec(name) is not None for name in ("duckdb", "sqlglot"))


@dataclass(slots=True)
class _Later:
    """A view that is made when it is needed."""

    text: str
    made: bool = False
    making: threading.Lock = field(default_factory=threading.Lock)


class Sliced:
    """What a session asks slice by slice. Each relation is made once, when it is needed first. For several threads."""

    def __init__(self, spark: Any, opened: Sequence[StoredDataset]) -> None:
        self._spark = spark
        self._paths = [str(one.path.resolve()) for one in opened]
        self._cores = spark.sparkContext.defaultParallelism
        self._slices = slices(opened, self._cores)
        self._later: dict[str, _Later] = {}
        self._made: dict[str, str] = {}
        self._making = threading.Lock()

    def later(self, view: str, text: str) -> None:
        """A view of the session, after those that it reads: it is made when it is needed."""
        self._later[view] = _Later(text)

    def need(self, wanted: Container[str] | None) -> None:
        """Make the views of these names, None: all, where they are not made yet. While a thread makes one that takes
        long, others make others."""
        for view, one in self._later.items():
            if wanted is None or view in wanted:
                with one.making:
                    if not one.made:
                        self._register(view, one.text)
                        one.made = True

    def here(self, query: str) -> pa.Table | None:
        """The answer to a query that is but one row, counted over all exchanges: the driver asks its own engine for it,
        for no task need be waited for. None: it is another query."""
        *common, last = _pieces(query)
        own = walk(common[0].text) if len(common) == 1 else None
        if own is None or not own.added or own.keys or own.looks_up or _read(query) - {*WALKED}:
            return None
        if _unquoted(last.text).split()[-2:] != ["FROM", common[0].name]:
            return None
        from reports.embedded import engine

        with engine.opened(self._paths) as opened:
            return opened.ask(query, ours=True)[0]

    def _register(self, view: str, text: str) -> None:
        """Make a view of the session."""
        given: dict[str, pa.Table] = {}
        for name in relations.KEPT.get(view, ()):
            text = self._give(text, name, given)
        alone = _alone(text, given)
        if alone is not None:
            text = f"SELECT * FROM {self._relation(alone, given)}"
        rows = self._spark.sql(self.rewritten(text, view, given))
        if view in relations.KEPT and _pieces(text)[1:]:
            # Spark knows a kept query again by its tree, but not one with common tables inside another query.
            rows = rows.localCheckpoint()
        elif view in relations.KEPT:
            rows.persist()
        rows.createOrReplaceTempView(view)
        for name in given:
            self._spark.catalog.dropTempView(name)

    def _give(self, text: str, name: str, given: dict[str, pa.Table]) -> str:
        """The query of a view with one of its common tables made: else Spark makes it again wherever it is read, and
        tasks could not look into it. As it is, where the table is too large."""
        piece = next(one for one in _pieces(text) if one.name == name)
        table = self._spark.sql(f"{text[: piece.end]}) SELECT * FROM {name} LIMIT {GIVEN_ROWS + 1}").toArrow()
        if len(table) > GIVEN_ROWS:
            return text
        given[name] = table
        self._spark.createDataFrame(table).createOrReplaceTempView(name)
        return f"{text[: piece.begin]}SELECT * FROM {name}{text[piece.end :]}"

    def rewritten(self, text: str, name: str = "", given: Mapping[str, pa.Table] = _NOTHING) -> str:
        """The query, with what is asked slice by slice as relations. `name`: of the view that it is; `given`: its
        common tables that are made."""
        whole = walk(text, name in FEW)
        if whole is not None:
            return f"SELECT * FROM {self._relation(whole, given)}"
        pieces = _pieces(text)
        put: dict[_Piece, str] = {}
        for piece in pieces[:-1]:
            own = walk(piece.text, piece.name == "few")
            if own is None or not own.looks_up <= given.keys():
                continue
            found = _quantiles(own, piece, pieces) if own.keys else None
            if found is None:
                put[piece] = f"SELECT * FROM {self._relation(own, given)}"
            else:
                own, final, order = found
                put[final] = f" SELECT * FROM {self._relation(own, given)} {order}"
        for piece, made in sorted(put.items(), key=lambda one: -one[0].begin):
            text = f"{text[: piece.begin]}{made}{text[piece.end :]}"
        return text

    def _relation(self, own: Walk, given: Mapping[str, pa.Table]) -> str:
        """The relation of all slices' rows, added up."""
        with self._making:
            key = f"{own.text}{own.added}"
            if key not in self._made:
                name = f"kwire_walk_{len(self._made)}"
                self._frame(own, given).createOrReplaceTempView(name)
                self._made[key] = name
            return self._made[key]

    def _frame(self, own: Walk, given: Mapping[str, pa.Table]) -> Any:
        asked = self._spark.sql(own.text)
        count = len(self._slices)
        numbers = self._spark.range(0, count, 1, count)
        looked = {name: given[name] for name in own.looks_up}
        task = _Slice(own.text, own.keys, self._cores, self._paths, self._slices, looked)
        if own.at_once and {*own.keys} >= _CLIENT and count <= MOST_CLIENTS:
            task = replace(task, text=own.at_once, by_client=True)
            return numbers.mapInArrow(task.rows, self._spark.sql(own.at_once).schema)
        if not own.added:
            numbers.mapInArrow(task.rows, asked.schema).createOrReplaceTempView(_ROWS)
            return self._spark.sql(f"SELECT * FROM {_ROWS} {own.ranked}")
        asked.createOrReplaceTempView(_ROWS)  # for its columns
        schema = self._spark.sql(own.added).schema
        parts = numbers.mapInArrow(task.parts, "part INT, rows BINARY")
        spread = parts.repartition(self._cores, "part") if own.keys else parts.repartition(1)
        read = _read(own.added) & given.keys()
        return spread.mapInArrow(_Added(own.added, {name: given[name] for name in read}), schema)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Asks slices. In: their numbers. `by_client`: instead of a slice the exchanges of as great a part of clients."""

    text: str
    keys: Sequence[str]
    cores: int
    paths: Sequence[str]
    slices: Sequence[Slice]
    given: Mapping[str, pa.Table]
    by_client: bool = False

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Out: their rows."""
        for table in self._asked(batches):
            yield from table.to_batches(64 << 10)

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Out: their rows in parts by their keys: `part`, and `rows`, an Arrow IPC stream."""
        import duckdb
        import pyarrow as pa
        import pyarrow.compute as pc

        for table in self._asked(batches):
            # As many of each slice, whatever it holds: a key's part is the same in all of them.
            count = self.cores * _PARTS if self.keys else 1
            keys = ", ".join(f'"{key}"' for key in self.keys) or "0"
            parts = duckdb.from_arrow(table).project(f"hash({keys}) % {count}").to_arrow_table().column(0)
            for part in range(count):
                held = table.filter(pc.equal(parts, part))
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, held.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
                    stream.write_table(held)
                rows = pa.array([sink.getvalue().to_pybytes()], pa.binary())
                yield pa.record_batch([pa.array([part], pa.int32()), rows], names=["part", "rows"])

    def _asked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        from reports.embedded import engine

        for batch in batches:
            for number in batch.column(0).to_pylist():
                clients = (number, len(self.slices)) if self.by_client else None
                share = engine.Share(self.slices[number].rows, MEMORY, self.given, clients)
                with engine.opened(self.paths, share) as opened:
                    yield opened.ask(self.text, ours=True)[0]


@dataclass(frozen=True, slots=True)
class _Added:
    """Adds slices' rows up. In: parts. Out: what `text` asks of them."""

    text: str
    given: Mapping[str, pa.Table]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from reports.embedded import engine

        held = [pa.ipc.open_stream(rows.as_buffer()).read_all() for batch in batches for rows in batch.column(1)]
        if held:
            with engine.opened([], engine.Share({}, MEMORY, {**self.given, _ROWS: pa.concat_tables(held)})) as opened:
                yield from opened.ask(self.text, ours=True)[0].to_batches(64 << 10)
