"""The kind of value of each piece of a query, and the kinds that the two engines treat differently.

In: the tree of a query in Spark's words, its columns named. Out: nothing, or `UnsupportedSqlError`. Pure.

Rules
- Kinds are told from the contract of `analyzer/dataset/tables.py`, from the views' own queries, and from how a value
is made.
  What cannot be told is of ANY kind, and taken.
- Lists and structs are not put in order here: DuckDB has a null in them for the largest, Spark for the smallest.
- Where values of two kinds meet, each engine makes one of them the other by rules of its own, or refuses: this is
  left to Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from kwire.analyzer.dataset import tables
from kwire.reports import catalog, relations
from kwire.reports.embedded.parsing import parsed, shown
from kwire.reports.engine_protocol import UnsupportedSqlError

ANY, NULL, NUMBER, TEXT, TRUTH, TIME = "any", "null", "number", "text", "truth", "time"

STRUCT, LIST = "struct", "list of "
"""A list's kind goes on with that of its elements."""

TIMED = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
"""A time as both read it."""

Columns = list[tuple[str, str]]
"""Names in lower case, and kinds; a query has one name for two at times."""

_NUMBERS = (
    exp.Mul,
    exp.Div,
    exp.IntDiv,
    exp.Mod,
    exp.Count,
    exp.CountIf,
    exp.Sum,
    exp.Avg,
    exp.RowNumber,
    exp.Rank,
    exp.DenseRank,
    exp.Length,
    exp.UnixMicros,
    exp.Floor,
    exp.Ceil,
    exp.SafeDivide,
    exp.Abs,
)
_TRUTHS = (
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.NullSafeEQ,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Like,
    exp.Exists,
    exp.Contains,
    exp.StartsWith,
    exp.ArrayContains,
    exp.Boolean,
)
_TEXTS = (exp.Lower, exp.Upper, exp.ArrayToString)
_INNER = (
    exp.Paren,
    exp.Alias,
    exp.Max,
    exp.Min,
    exp.Lead,
    exp.Lag,
    exp.Filter,
    exp.Window,
    exp.ArgMax,
    exp.ArgMin,
    exp.Neg,
    exp.ArraySort,
    exp.ArraySlice,
    exp.ArrayDistinct,
    exp.Ordered,
    exp.Nullif,
)
"""Of the kind of what they are made of."""

_CAST_KINDS = {
    "BOOLEAN": TRUTH,
    "TEXT": TEXT,
    "VARCHAR": TEXT,
    "TIMESTAMPTZ": TIME,
    "TIMESTAMP": TIME,
    "TINYINT": NUMBER,
    "SMALLINT": NUMBER,
    "INT": NUMBER,
    "BIGINT": NUMBER,
    "DOUBLE": NUMBER,
    "FLOAT": NUMBER,
    "DECIMAL": NUMBER,
}

_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)

_RANKING = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Lead, exp.Lag)
"""Functions of a window that Spark takes with an order only."""


def _of_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return LIST + _of_type(kind.value_type)
    if pa.types.is_struct(kind):
        return STRUCT
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return NUMBER
    plain = {pa.string(): TEXT, pa.bool_(): TRUTH, tables.TIME: TIME}
    return plain.get(kind, ANY)


def _nested(kind: str) -> bool:
    return kind.startswith((STRUCT, LIST))


def _element(kind: str) -> str:
    return kind.removeprefix(LIST) if kind.startswith(LIST) else ANY


def _merged(kinds: Sequence[str]) -> str:
    """The kind of a value that has one of these kinds. ANY: unknown, but no list and no struct."""
    some = [kind for kind in kinds if kind != NULL] or [NULL]
    if len(set(some)) == 1:
        return some[0]
    return next((kind for kind in some if _nested(kind)), ANY)


def _columns(relation: str) -> Columns | None:
    """A table's or a view's; None: there is no such relation."""
    if catalog.is_own(relation):  # of this command alone
        return _Query(parsed(catalog.view(relation).sql)).outputs()
    return _columns_of(relation)


@functools.cache
def _columns_of(relation: str) -> Columns | None:
    known = tables.TABLES.get(relation) or relations.BESIDES.get(relation)
    if known is not None:
        return [(column.name.lower(), _of_type(column.type)) for column in known]
    if relation not in relations.names():
        return None
    return _Query(parsed(catalog.view(relation).sql)).outputs()


class _Query:
    """A query whose pieces are asked for their kinds."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._common = {cte.alias.lower(): cte for cte in tree.find_all(exp.CTE)}
        self._known: dict[int, Columns | None] = {}

    # --- columns ------------------------------------------------------------------------------------------------------

    def outputs(self, query: Any = None) -> Columns | None:
        """The columns of a query in it, or of itself; None: they cannot be told."""
        query = self._tree if query is None else query
        if id(query) not in self._known:
            self._known[id(query)] = None  # of one that reads itself nothing can be told
            self._known[id(query)] = self._outputs(query)
        return self._known[id(query)]

    def _outputs(self, query: Any) -> Columns | None:
        if isinstance(query, exp.Subquery):
            return self.outputs(query.this)
        if isinstance(query, exp.SetOperation):
            left, right = self.outputs(query.this), self.outputs(query.expression)
            if left is None or right is None or len(left) != len(right):
                return left
            return [(name, _merged((kind, other))) for (name, kind), (_, other) in zip(left, right)]
        if not isinstance(query, exp.Select):
            return None
        columns: Columns = []
        for column in query.expressions:
            if isinstance(column, exp.Aliases):  # stack
                columns += [(identifier.name.lower(), ANY) for identifier in column.expressions]
            elif column.is_star:
                wanted = column.args.get("table")
                for name, source in self._sources(query):
                    if source is None:
                        return None
                    columns += source if wanted is None or wanted.name.lower() == name else ()
            else:
                columns.append((column.alias_or_name.lower(), self.of(column)))
        return columns

    def _sources(self, select: Any) -> Iterator[tuple[str, Columns | None]]:
        """The sources of a SELECT: names, and the columns of each."""
        read = [select.args.get("from_"), *(select.args.get("joins") or ())]
        for part in read:
            source = part.this if part is not None else None
            if isinstance(source, exp.Table):
                name = source.name.lower()
                cte = self._common.get(name)
                columns = self._renamed(cte) if cte is not None else _columns(name)
                yield (source.alias_or_name.lower(), columns)
            elif source is not None:
                yield (source.alias_or_name.lower(), self._renamed(source))

    def _renamed(self, source: Any) -> Columns | None:
        """The columns of a common table or of a query that is read, by the names that it gives them."""
        columns = self.outputs(source.this)
        names = source.args["alias"].columns if source.args.get("alias") is not None else ()
        if columns is None or not names:
            return columns
        return [(name.name.lower(), kind) for name, (_, kind) in zip(names, columns)]

    def _column(self, node: Any) -> str | None:
        """The kind of a column; None: no relation has one of that name, nor do we know all of them."""
        name, table = node.name.lower(), node.args.get("table")
        child, scope = node, node.parent
        while scope is not None:
            if isinstance(scope, exp.Lambda) and any(bound.name.lower() == name for bound in scope.expressions):
                return self._parameter(scope)
            if isinstance(scope, exp.Select):
                aliases = {} if table else _aliases(scope)
                if isinstance(child, exp.Order) and name in aliases:
                    return self.of(aliases[name])
                for source, columns in self._sources(scope):
                    if table and table.name.lower() != source:
                        continue
                    if columns is None:
                        return ANY
                    kinds = [kind for column_name, kind in columns if column_name == name]
                    if kinds:
                        return _merged(kinds)
                if name in aliases and not isinstance(child, exp.Where) and not _within(node, aliases[name]):
                    return self.of(aliases[name])
            if isinstance(scope, exp.SetOperation) and isinstance(child, exp.Order):
                return dict(self.outputs(scope) or ()).get(name, ANY)
            child, scope = scope, scope.parent
        return ANY if table else None  # perhaps a field of a struct

    def _parameter(self, function: Any) -> str:
        return _element(self.of(function.parent.this))

    # --- values -------------------------------------------------------------------------------------------------------

    def of(self, node: Any) -> str:
        """The kind of a value."""
        if isinstance(node, exp.Column):
            return self._column(node) or ANY
        if isinstance(node, exp.Literal):
            return TEXT if node.is_string else NUMBER
        if isinstance(node, exp.Null):
            return NULL
        for nodes, kind in ((_NUMBERS, NUMBER), (_TRUTHS, TRUTH), (_TEXTS, TEXT), ((exp.TimestampTrunc,), TIME)):
            if isinstance(node, nodes):
                return kind
        if isinstance(node, exp.Add | exp.Sub):
            timed = TIME in (self.of(node.this), self.of(node.expression))
            return TIME if timed else ANY if node.find(exp.Interval) else NUMBER
        if isinstance(node, exp.Cast):
            return _CAST_KINDS.get(node.to.this.value, ANY)
        if isinstance(node, _INNER):
            return self.of(node.this)
        return self._constructed(node)

    def _constructed(self, node: Any) -> str:
        if isinstance(node, exp.Struct):
            return STRUCT
        if isinstance(node, exp.Array):
            return LIST + _merged([self.of(part) for part in node.expressions])
        if isinstance(node, exp.ArrayAgg | exp.ArrayUniqueAgg):
            return LIST + self.of(node.this)
        if isinstance(node, exp.Transform):
            return LIST + self.of(node.expression.this)
        if isinstance(node, exp.Bracket | exp.Explode):
            return _element(self.of(node.this))
        if isinstance(node, exp.Identifier):  # a lambda's
            scope = node.find_ancestor(exp.Lambda)
            return self._parameter(scope) if scope is not None else ANY
        if isinstance(node, exp.Concat):
            kind = _merged([self.of(part) for part in node.expressions])
            return kind if _nested(kind) else TEXT
        if isinstance(node, exp.Subquery):
            return (self.outputs(node) or [("", ANY)])[0][1]
        if isinstance(node, exp.Anonymous):
            name, first = node.name.lower(), node.expressions[0] if node.expressions else exp.Null()
            kinds = {"get": _element(self.of(first)), "round": NUMBER, "bucketed": NUMBER, "timestamp_micros": TIME}
            return kinds.get(name, ANY)
        values = _alternatives(node)
        return _merged([self.of(value) for value in values]) if values else ANY

    # --- what differs -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises UnsupportedSqlError."""
        checks: tuple[tuple[type | tuple[type, ...], Callable[[Any], bool]], ...] = (
            (exp.Select, self._generates_twice),
            (exp.SetOperation, self._unites),
            (exp.Window, _unordered),
            (exp.Column, self._unknown),
            (
                (
                    exp.Max,
                    exp.Min,
                    exp.Greatest,
                    exp.Least,
                    exp.GT,
                    exp.GTE,
                    exp.LT,
                    exp.LTE,
                    exp.Between,
                    exp.Ordered,
                    exp.ArraySort,
                    exp.ArgMax,
                    exp.ArgMin,
                ),
                self._puts_in_order,
            ),
            ((exp.Where, exp.Having, exp.And, exp.Or, exp.Not, exp.If, exp.CountIf), self._no_truth),
            ((*_COMPARED, exp.In, exp.Between), self._compares_kinds),
            ((exp.Coalesce, exp.Greatest, exp.Least, exp.If, exp.Case, exp.Nullif, exp.Array), self._mixes_kinds),
            ((exp.Sum, exp.Avg, exp.Abs, exp.Add, exp.Sub, exp.Mul, exp.Div), self._reckons_with_truths),
        )
        for node in self._tree.walk():
            for nodes, differs in checks:
                if isinstance(node, nodes) and differs(node):
                    raise UnsupportedSqlError(shown(node))

    def _generates_twice(self, select: Any) -> bool:
        """Spark makes a row of every two, DuckDB puts them side by side."""
        generators = [
            generator for column in select.expressions for generator in column.find_all(exp.Explode, exp.Stack)
        ]
        return sum(generator.find_ancestor(exp.Select) is select for generator in generators) > 1

    def _unites(self, node: Any) -> bool:
        left, right = self.outputs(node.this), self.outputs(node.expression)
        return any(_differ((left_kind, other)) for (_, left_kind), (_, other) in zip(left or (), right or ()))

    def _unknown(self, column: Any) -> bool:
        """DuckDB knows what SELECT makes in WHERE, and a row by its table's name."""
        if self._column(column) is not None:
            return False
        scope, name = column.find_ancestor(exp.Select), column.name.lower()
        where = column.find_ancestor(exp.Where, exp.Select)
        if isinstance(where, exp.Where) and name in _aliases(scope):
            return True
        return scope is not None and any(name == source for source, _ in self._sources(scope))

    def _puts_in_order(self, node: Any) -> bool:
        if isinstance(node, exp.ArraySort):
            made_here = isinstance(node.this, exp.ArrayAgg | exp.ArrayUniqueAgg)
            return self._unlike(node.this.this) if made_here else _nested(_element(self.of(node.this)))
        if isinstance(node, exp.ArgMax | exp.ArgMin):
            return self._unlike(node.expression)
        if isinstance(node, exp.Ordered):
            return any(_nested(kind) for kind in self._ordered(node))
        return any(_nested(self.of(operand)) for operand in _operands(node))

    def _unlike(self, key: Any) -> bool:
        """Of a struct that is made where it is put in order `translation` makes one in which nulls are the smallest."""
        fields = [field.expression if isinstance(field, exp.PropertyEQ) else field for field in key.expressions]
        return any(_nested(self.of(field)) for field in (fields if isinstance(key, exp.Struct) else [key]))

    def _ordered(self, node: Any) -> list[str]:
        """The expressions of ORDER BY: a column, one by its number, or all."""
        query, key = node.find_ancestor(exp.Query), node.this
        whole = isinstance(node.parent.parent, exp.Query)
        number = isinstance(key, exp.Literal) and not key.is_string
        every = isinstance(key, exp.Column | exp.Var) and key.name.upper() == "ALL"
        if not whole or not (number or every):
            return [self.of(key)]
        kinds = [kind for _, kind in self.outputs(query) or ()]
        return kinds if every else kinds[int(key.this) - 1 : int(key.this)] if key.this.isdigit() else []

    def _no_truth(self, node: Any) -> bool:
        if isinstance(node, exp.If) and isinstance(node.parent, exp.Case) and node.parent.this is not None:
            return False  # it is compared
        operands = (node.this, node.expression) if isinstance(node, exp.And | exp.Or) else (node.this,)
        return any(self.of(operand) not in (TRUTH, ANY, NULL) for operand in operands)

    def _compares_kinds(self, node: Any) -> bool:
        operands = _operands(node)
        kinds = [self.of(operand) for operand in operands]
        for at, operand in enumerate(operands):
            if (
                isinstance(operand, exp.Literal) and operand.is_string
            ):  # the same in both, if it is one of the other kind
                if TIME in kinds and TIMED.fullmatch(operand.this):
                    kinds[at] = TIME
                elif NUMBER in kinds and re.fullmatch(r"-?\d{1,18}", operand.this):
                    kinds[at] = NUMBER
        return _differ(kinds)

    def _mixes_kinds(self, node: Any) -> bool:
        if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
            return False  # told with the whole
        compared = [node.this, *(case.this for case in node.args["ifs"])] if isinstance(node, exp.Case) else []
        return _differ([self.of(alternative) for alternative in _alternatives(node)]) or (
            bool(compared)
            and compared[0] is not None
            and _differ([self.of(compared_value) for compared_value in compared])
        )

    def _reckons_with_truths(self, node: Any) -> bool:
        return any(
            self.of(operand) == TRUTH for operand in (node.this, node.args.get("expression")) if operand is not None
        )


def _aliases(select: Any) -> dict[str, Any]:
    return {column.alias.lower(): column.this for column in select.expressions if isinstance(column, exp.Alias)}


def _within(node: Any, other: Any) -> bool:
    while node is not None and node is not other:
        node = node.parent
    return node is not None


def _operands(node: Any) -> list[Any]:
    """The operands that are compared with each other."""
    if isinstance(node, exp.Between):
        return [node.this, node.args["low"], node.args["high"]]
    if isinstance(node, exp.In):
        return [node.this, *node.expressions, *([node.args["query"]] if node.args.get("query") else ())]
    expression = node.args.get("expression")
    return [node.this, *([expression] if expression is not None else ()), *node.expressions]


def _alternatives(node: Any) -> list[Any]:
    """Values of which one is the whole's."""
    if isinstance(node, exp.If):
        return [branch for branch in (node.args.get("true"), node.args.get("false")) if branch is not None]
    if isinstance(node, exp.Case):
        values = [branch.args.get("true") for branch in node.args["ifs"]]
        return [branch for branch in (*values, node.args.get("default")) if branch is not None]
    if isinstance(node, exp.Coalesce | exp.Greatest | exp.Least):
        return [node.this, *node.expressions]
    if isinstance(node, exp.Nullif):
        return [node.this, node.expression]
    return list(node.expressions) if isinstance(node, exp.Array) else []


def _differ(kinds: Sequence[str]) -> bool:
    """Whether they are surely of different kinds."""
    known = {kind for kind in kinds if kind not in (ANY, NULL) and ANY not in kind and NULL not in kind}
    return len(known) > 1


def _unordered(window: Any) -> bool:
    if not isinstance(window.this, _RANKING) or window.args.get("order") is not None:
        return False
    name, select = window.args.get("alias"), window.find_ancestor(exp.Select)
    listed = (select.args.get("windows") or ()) if select is not None and name is not None else ()
    return not any(
        column.name.lower() == name.name.lower() and column.args.get("order") is not None for column in listed
    )


def check(tree: Any) -> None:
    """Raises UnsupportedSqlError where the engines would make something else of the query."""
    _Query(tree).check()
