"""Spark SQL as DuckDB's: the same rows, or `UnsupportedSqlError`.

In: the text of a query or a view in Spark SQL, and the names of tables and views that there are. Out: the text that
DuckDB is asked. Pure: sqlglot parses and writes; what differs between the two engines is rewritten here.

Rules
- What is not listed here is not taken: a function or a clause whose meaning was not compared goes to Spark.
- Where the meaning depends on a type that only DuckDB knows (a cast truncates doubles), the text calls a macro of
  `functions.py` that asks for the type, and fails for those that were not compared.
- Nulls, order and division are Spark's: nulls first, a division by zero is an error, ordering by a struct takes a
  null in it for the smallest.
- Columns that have no name of their own get the one that Spark gives them; where that is not known,
UnsupportedSqlError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from typing import Any

from sqlglot import errors, exp
from sqlglot.dialects.duckdb import DuckDB

from kwire.reports.embedded import quantiles, value_types
from kwire.reports.embedded.parsing import parsed, shown
from kwire.reports.engine_protocol import UnsupportedSqlError

# fmt: off
_PLAIN = (
    exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset,
    exp.With, exp.CTE, exp.Subquery, exp.TableAlias, exp.Column, exp.Identifier, exp.Alias, exp.Boolean, exp.Null,
    exp.And, exp.Or, exp.Not, exp.Paren, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Is,
    exp.In, exp.Between, exp.Case, exp.If, exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.Neg, exp.Count,
    exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least, exp.Distinct,
    exp.Union, exp.Except, exp.Intersect, exp.WindowSpec, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Lead,
    exp.Lag, exp.Lower, exp.Upper, exp.Array, exp.Struct, exp.PropertyEQ, exp.Lambda,
    exp.Transform, exp.MapFromEntries, exp.Dot, exp.Filter, exp.UnixMicros, exp.Contains, exp.StartsWith,
    exp.SafeDivide, exp.Exists, exp.DataType, exp.Var, exp.Abs,
)
# fmt: on
"""What means the same in both, once sqlglot has written it."""

_INTEGERS = {"TINYINT": "tinyint", "SMALLINT": "smallint", "INT": "int", "BIGINT": "bigint"}
_CASTS = {**_INTEGERS, "DOUBLE": "double", "TEXT": "string", "VARCHAR": "string", "BOOLEAN": "boolean"}

_UNITS = {"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In, exp.NullSafeEQ)


def translated(text: str, relations: Container[str], rows: int | None = None) -> str:
    """The query for DuckDB; `rows`: as many as are wanted of it. Raises UnsupportedSqlError."""
    try:
        tree = parsed(text)
        if rows is not None and tree.args.get("limit") is None:
            tree.set("limit", exp.Limit(expression=_number(rows)))
        return written(tree, relations)
    except errors.SqlglotError as failure:
        raise UnsupportedSqlError(f"not understood: {str(failure).splitlines()[0]}") from None


def apart(text: str, relations: Container[str], names: Sequence[str]) -> list[str]:
    """The query for DuckDB in steps: its common tables of these names, in its order, each as a query that reads those
    before it, and at last the query itself, which reads all of them. Raises UnsupportedSqlError."""
    tree = parsed(text)
    _rewrite(tree, relations)
    parts = []
    earlier: list[Any] = []
    listed = tree.args.get("with_")
    for cte in list(listed.expressions) if listed is not None else ():
        if cte.alias not in names:
            earlier.append(cte)
            continue
        query = cte.this.copy()
        query.set("with_", exp.With(expressions=[cte.copy() for cte in earlier]) if earlier else None)
        parts.append(_sql(query))
        cte.pop()
    if not earlier:
        tree.set("with_", None)
    return [*parts, _sql(tree)]


def written(tree: Any, relations: Container[str]) -> str:
    """Write a tree, which is changed, as DuckDB's SQL."""
    _rewrite(tree, relations)
    return _sql(tree)


def _sql(tree: Any) -> str:
    return str(tree.sql(dialect=DuckDB, identify=True, comments=False))


def _rewrite(tree: Any, relations: Container[str]) -> None:
    common = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for select in tree.find_all(exp.Select):
        select.set("hint", None)  # how to join is Spark's affair
    _name_columns(tree)
    value_types.check(tree)
    _group_by_all(tree)
    for node in reversed(list(tree.walk())):
        if isinstance(node, exp.Table):
            _check_table(node, relations, common)
        elif type(node) in _REWRITTEN:
            rewritten = _REWRITTEN[type(node)](node)
            if rewritten is not node:
                if node is tree:
                    raise UnsupportedSqlError("not a query")
                node.replace(rewritten)
        elif type(node) not in _PLAIN:
            raise UnsupportedSqlError(shown(node))
    quantiles.outright(tree)
    _widen(tree)


_TYPED_BY_ALL = (
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Mod,
    exp.Coalesce,
    exp.Greatest,
    exp.Least,
    exp.If,
    exp.Case,
    exp.Array,
)
"""What has a type that all of its parts have a say in."""

_SMALL = (1 << 15) - 1
"""What is larger has 32 bits in DuckDB too."""


def _widen(tree: Any) -> None:
    """A whole number that is written down has 32 bits in Spark; in DuckDB a small one takes the type of what stands
    beside it. What DIV finds has 64 bits."""
    for node in list(tree.find_all(exp.Literal)):
        if node.is_string or not node.this.isdigit() or int(node.this) > _SMALL:
            continue
        whole = node
        while isinstance(whole.parent, exp.Neg | exp.Paren):
            whole = whole.parent
        if isinstance(whole.parent, _TYPED_BY_ALL):
            whole.replace(_narrow(whole))
    for node in reversed(list(tree.find_all(exp.IntDiv))):
        node.replace(_call("kwire_div", node.this.copy(), node.expression.copy()))


def _check_table(table: Any, relations: Container[str], common: Container[str]) -> None:
    name = table.name.lower()
    plain = isinstance(table.this, exp.Identifier) and not table.args.get("db")
    if not plain or not (name in common or name in relations):
        raise UnsupportedSqlError(shown(table))
    if any(value for key, value in table.args.items() if key not in ("this", "alias", "joins")):
        raise UnsupportedSqlError(shown(table))


def _call(name: str, *arguments: Any) -> Any:
    return exp.Anonymous(this=name, expressions=list(arguments))


def _number(value: int) -> Any:
    return exp.Literal.number(value)


# --- names of columns -------------------------------------------------------------------------------------------------


def _name_columns(tree: Any) -> None:
    """Give what a query's writer gave no name the one that Spark gives it."""
    outermost = tree
    while isinstance(outermost, exp.SetOperation | exp.Subquery):
        outermost = outermost.this
    for select in tree.find_all(exp.Select):
        for at, column in enumerate(select.expressions):
            if isinstance(column, exp.Alias | exp.Aliases | exp.Star) or column.is_star:
                continue
            name = _spark_name(column)
            if isinstance(column, exp.Column) and name == column.name.lower():
                continue  # as the tables call it
            if name is not None:
                select.expressions[at].replace(exp.alias_(column.copy(), name, quoted=True))
            elif select is outermost:
                raise UnsupportedSqlError(f"the name of {shown(column)}")


_NAMED = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.CountIf: "count_if",
    exp.UnixMicros: "unix_micros",
}
"""Functions of one argument, which Spark names a column by."""


def _spark_name(node: Any) -> str | None:
    """How Spark calls a column; None: not known here."""
    if isinstance(node, exp.Column | exp.Dot):
        return str(node.name)
    if isinstance(node, exp.Literal) and (node.is_string or re.fullmatch(r"\d+", node.this)):
        return str(node.this)
    if isinstance(node, exp.Count):
        if isinstance(node.this, exp.Star):
            return "count(1)"
        inner = node.this
        if isinstance(inner, exp.Distinct) and len(inner.expressions) == 1:
            name = _inner_name(inner.expressions[0])
            return name and f"count(DISTINCT {name})"
        name = _inner_name(inner)
        return name and f"count({name})"
    if isinstance(node, exp.Explode):
        return "col" if isinstance(node.this, exp.Column) else None  # of a map Spark makes two
    if type(node) in _NAMED:
        name = _inner_name(node.this)
        return name and f"{_NAMED[type(node)]}({name})"
    return None


def _inner_name(node: Any) -> str | None:
    """How Spark writes an argument; with its table where the query does."""
    if isinstance(node, exp.Column):
        return str(node.name) if not node.args.get("table") else None
    return _spark_name(node) if isinstance(node, exp.Literal | exp.Sum | exp.Avg | exp.Min | exp.Max) else None


# --- GROUP BY ALL -----------------------------------------------------------------------------------------------------


def _group_by_all(tree: Any) -> None:
    """Where a column mixes aggregates with others, Spark groups by these, and DuckDB refuses: said by name then."""
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        if group is None or not group.args.get("all"):
            continue
        keys: list[Any] = []
        mixed = False
        for at, column in enumerate(select.expressions, 1):
            if not any(_is_aggregate(node) for node in column.walk()):
                keys.append(_number(at))
                continue
            loose = [
                column_read for column_read in column.find_all(exp.Column) if not _in_aggregate(column_read, column)
            ]
            mixed = mixed or bool(loose)
            keys += [column_read.copy() for column_read in loose]
        if mixed:
            select.set("group", exp.Group(expressions=keys))


def _is_aggregate(node: Any) -> bool:
    named = isinstance(node, exp.Anonymous) and node.name.lower() == "percentile"
    return named or isinstance(node, exp.AggFunc | exp.Filter)


def _in_aggregate(node: Any, column: Any) -> bool:
    while node is not column:
        if _is_aggregate(node):
            return True
        node = node.parent
    return _is_aggregate(node)


# --- what is rewritten ------------------------------------------------------------------------------------------------


def _cast(node: Any) -> Any:
    kind = node.to.this.value if node.to.args.get("nested") is not True else ""
    if node.args.get("safe") or kind not in _CASTS:
        raise UnsupportedSqlError(shown(node))
    if isinstance(node.this, exp.Null):
        return exp.Cast(this=exp.Null(), to=node.to.copy())
    return _call(f"kwire_to_{_CASTS[kind]}", node.this.copy())


def _typed_literal(node: Any) -> Any:
    """`timestamp'2026-01-02 03:04:05'`, in UTC as the session is."""
    if node.to.this.value not in ("TIMESTAMPTZ", "TIMESTAMP"):
        raise UnsupportedSqlError(shown(node))
    if isinstance(node.this, exp.Literal) and value_types.TIMED.fullmatch(node.this.this):
        return exp.Cast(this=node.this.copy(), to=exp.DataType.build("timestamptz", dialect=DuckDB))
    raise UnsupportedSqlError(shown(node))


def _literal(node: Any) -> Any:
    """A decimal: comparisons turn it into what it is compared with; arithmetic on it has types of Spark's own."""
    if node.is_string or re.fullmatch(r"\d{1,18}", node.this):
        return node
    parent = node.parent
    while isinstance(parent, exp.Neg | exp.Paren | exp.Array):
        parent = parent.parent
    quantile = isinstance(parent, exp.Anonymous) and parent.name.lower() == "percentile"
    if "e" in node.this.lower() and re.fullmatch(r"[\d.]+e[+-]?\d+", node.this.lower()):
        return node
    if not (quantile or isinstance(parent, _COMPARISONS)) or not re.fullmatch(r"\d*\.\d+", node.this):
        raise UnsupportedSqlError(shown(node.parent or node))
    return node


def _divided(node: Any) -> Any:
    node.set("safe", False)
    node.set("typed", False)
    return node


def _like(node: Any) -> Any:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or "\\" in pattern.this:
        raise UnsupportedSqlError(shown(node))
    return node


def _star(node: Any) -> Any:
    if node.args.get("replace") or node.args.get("rename"):
        raise UnsupportedSqlError(shown(node))
    return node


def _anonymous(node: Any) -> Any:
    name, arguments = node.name.lower(), node.expressions
    if name == "bucketed" and len(arguments) == 1:
        return _call("kwire_bucketed", *arguments)
    if name == "get" and len(arguments) == 2 and re.fullmatch(r"\d+", arguments[1].sql()):
        return _nth(arguments[0], int(arguments[1].this))
    if name == "percentile" and len(arguments) in (2, 3):
        return _percentile(node, *arguments)
    if name == "timestamp_micros" and len(arguments) == 1:
        return _call("make_timestamptz", *arguments)
    if name == "round" and len(arguments) in (1, 2):
        digits = arguments[1] if len(arguments) == 2 else _number(0)
        if isinstance(digits, exp.Literal) and re.fullmatch(r"\d", digits.this):
            return _call(f"kwire_round_{digits.this}", arguments[0])
    raise UnsupportedSqlError(shown(node))


def _percentile(node: Any, values: Any, quantiles: Any, weights: Any = None) -> Any:
    """Spark's exact quantiles, which interpolate; weights are counts."""
    if isinstance(node.parent, exp.Filter | exp.Window) or isinstance(values, exp.Distinct):
        raise UnsupportedSqlError(shown(node))
    several = isinstance(quantiles, exp.Array)
    wanted = quantiles.expressions if several else [quantiles]
    if not all(isinstance(literal, exp.Literal) and not literal.is_string for literal in wanted):
        raise UnsupportedSqlError(shown(node))
    listed = exp.Array(expressions=[literal.copy() for literal in wanted])
    name = "kwire_percentiles" if weights is None else "kwire_weighted_percentiles"
    call = _call(name, *(argument.copy() for argument in (values, weights) if argument is not None), listed)
    return call if several else _call("kwire_element", call, _number(0))


def _by(function: str) -> Callable[[Any], Any]:
    def make(node: Any) -> Any:
        if isinstance(node.parent, exp.Window) or node.args.get("count"):
            raise UnsupportedSqlError(shown(node))
        return _call(function, node.this.copy(), _comparable(node.expression))

    return make


def _comparable(key: Any) -> Any:
    """A struct to order by, in which a null is the smallest: before each field whether it is there."""
    if not isinstance(key, exp.Struct):
        return key.copy()
    fields = []
    for at, field in enumerate(key.expressions):
        value = field.expression if isinstance(field, exp.PropertyEQ) else field
        there = exp.Not(this=exp.Is(this=exp.paren(value.copy()), expression=exp.Null()))
        fields += [
            exp.PropertyEQ(this=exp.to_identifier(f"there_{at}"), expression=there),
            exp.PropertyEQ(this=exp.to_identifier(f"value_{at}"), expression=value.copy()),
        ]
    return exp.Struct(expressions=fields)


_LISTS = ("kwire_list", "kwire_set")


def _collected(distinct: bool) -> Callable[[Any], Any]:
    """Lists leave out nulls, and are empty, never null."""

    def make(node: Any) -> Any:
        if isinstance(node.parent, exp.Filter | exp.Window) or isinstance(node.this, exp.Order | exp.Distinct):
            raise UnsupportedSqlError(shown(node))
        return _call(_LISTS[distinct], node.this.copy())

    return make


def _sorted_array(node: Any) -> Any:
    """`array_sort` and `sort_array`: the one has nulls last, the other where they are the smallest."""
    rising, first = node.args.get("asc") or exp.true(), node.args.get("nulls_first")
    if node.args.get("expression") or not all(isinstance(boolean, exp.Boolean) for boolean in (rising, first)):
        raise UnsupportedSqlError(shown(node))
    how = ("ASC" if rising.this else "DESC", "NULLS FIRST" if first.this else "NULLS LAST")
    order = [exp.Literal.string(word) for word in how]
    values = node.this
    if isinstance(values, exp.Anonymous) and values.name in _LISTS and isinstance(values.expressions[0], exp.Struct):
        value = values.expressions[0]
        fields = {"key": _comparable(value), "value": value.copy()}
        pair = [exp.PropertyEQ(this=exp.to_identifier(name), expression=value) for name, value in fields.items()]
        return _call("kwire_sorted", _call(values.name, exp.Struct(expressions=pair)), *order)
    return _call("list_sort", values.copy(), *order)


def _slice(node: Any) -> Any:
    start, length = node.args.get("start"), node.args.get("end")
    if not all(isinstance(bound, exp.Literal) and re.fullmatch(r"[1-9]\d*", bound.this) for bound in (start, length)):
        raise UnsupportedSqlError(shown(node))
    first = int(start.this)
    return _call("list_slice", node.this.copy(), _number(first), _number(first + int(length.this) - 1))


def _joined(node: Any) -> Any:
    if node.args.get("null"):
        raise UnsupportedSqlError(shown(node))
    return _call("array_to_string", _call("kwire_texts", node.this.copy()), node.expression.copy())


def _concatenated(node: Any) -> Any:
    if any(isinstance(part, exp.Null) for part in node.expressions):  # DuckDB's answer has no type
        raise UnsupportedSqlError(shown(node))
    node.set("expressions", [_call("kwire_part", part.copy()) for part in node.expressions])
    return node


def _element(node: Any) -> Any:
    """`list[i]`, `map[key]`; `element_at` and `try_element_at`, which count from one."""
    (index,) = node.expressions if len(node.expressions) == 1 else (None,)
    if isinstance(index, exp.Literal) and re.fullmatch(r"\d+", index.this) and not index.is_string:
        place = int(index.this) - (node.args.get("offset") or 0)
        if place < 0:
            raise UnsupportedSqlError(shown(node))
        if node.args.get("safe"):
            return _nth(node.this, place)
        return _call("kwire_element", node.this.copy(), _number(place))
    if index is None or isinstance(index, exp.Neg | exp.Slice) or node.args.get("offset"):
        raise UnsupportedSqlError(shown(node))
    return _call("kwire_value", node.this.copy(), index.copy())  # of a map; of a list DuckDB refuses


def _nth(values: Any, place: int) -> Any:
    """An element, counted from zero; null beyond the end."""
    return _call("list_extract", values.copy(), _number(place + 1))


def _counted(node: Any) -> Any:
    """Of no row or of nulls alone 0, never null."""
    case = exp.Case(ifs=[exp.If(this=node.this.copy(), true=_number(1))])
    return exp.Count(this=case, big_int=True)


def _narrow(node: Any) -> Any:
    """Of 32 bits, where DuckDB's has 64."""
    return exp.Cast(this=node.copy(), to=exp.DataType.build("int"))


def _window(node: Any) -> Any:
    return _narrow(node) if isinstance(node.this, exp.RowNumber | exp.Rank | exp.DenseRank) else node


def _two(name: str) -> Callable[[Any], Any]:
    return lambda node: _call(name, node.this.copy(), node.expression.copy())


def _renamed_call(name: str) -> Callable[[Any], Any]:
    return lambda node: _call(name, node.this.copy())


def _exploded(node: Any) -> Any:
    if not isinstance(node.parent, exp.Alias | exp.Select):
        raise UnsupportedSqlError(shown(node))
    return _call("unnest", node.this.copy())


def _stacked(node: Any) -> Any:
    """`stack(n, ...) AS (a, b)`: a list of n structs, each a row."""
    if not isinstance(node.this, exp.Stack):
        raise UnsupportedSqlError(shown(node))
    names = [identifier.name for identifier in node.expressions]
    values = node.this.expressions
    if int(node.this.this.this) * len(names) != len(values):
        raise UnsupportedSqlError(shown(node))
    rows = [
        exp.Struct(
            expressions=[
                exp.PropertyEQ(this=exp.to_identifier(name), expression=value.copy())
                for name, value in zip(names, values[at : at + len(names)])
            ]
        )
        for at in range(0, len(values), len(names))
    ]
    depth = exp.Kwarg(this=exp.Var(this="max_depth"), expression=_number(2))
    return _call("unnest", exp.Array(expressions=rows), depth)


def _truncated(node: Any) -> Any:
    if node.unit is None or node.unit.name.upper() not in _UNITS or node.args.get("zone"):
        raise UnsupportedSqlError(shown(node))
    return node


def _interval(node: Any) -> Any:
    if not isinstance(node.this, exp.Literal) or node.unit is None or node.unit.name.upper().rstrip("S") not in _UNITS:
        raise UnsupportedSqlError(shown(node))
    return node


def _same(node: Any) -> Any:
    return node


# fmt: off
_REWRITTEN: dict[type, Callable[[Any], Any]] = {
    exp.TryCast: _cast, exp.Cast: _typed_literal, exp.Literal: _literal, exp.Div: _divided, exp.Like: _like,
    exp.Star: _star, exp.Anonymous: _anonymous, exp.ArgMax: _by("arg_max_null"), exp.ArgMin: _by("arg_min_null"),
    exp.ArrayAgg: _collected(False), exp.ArrayUniqueAgg: _collected(True), exp.ArraySort: _sorted_array,
    exp.ArraySlice: _slice, exp.ArrayToString: _joined, exp.ArrayContains: _two("kwire_contains"),
    exp.ArrayDistinct: _renamed_call("kwire_distinct"), exp.Bracket: _element, exp.Explode: _exploded, exp.Stack: _same,
    exp.Aliases: _stacked, exp.TimestampTrunc: _truncated, exp.Interval: _interval, exp.CountIf: _counted,
    exp.Length: _narrow, exp.Window: _window, exp.Concat: _concatenated,
    exp.Floor: _renamed_call("kwire_floor"), exp.Ceil: _renamed_call("kwire_ceil"),
}
# fmt: on
