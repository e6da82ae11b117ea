"""Quantiles as the embedded engine counts them.

In: the tree of a query. Out: the same tree, in which what counts by bucket to find quantiles asks for them outright.
Spark is quickest where rows are counted by key and bucket, and the counts added up in a window; DuckDB takes half as
long where it is asked for the quantile.

The shape, with any names, any number of keys, and any other sums, counts, least and greatest values beside it:

    WITH counted AS (SELECT keys, V AS bucket, count(*) AS n, max(V) AS top FROM rows GROUP BY keys, bucket),
    placed AS (SELECT *, sum(if(bucket IS NULL, 0, n)) OVER (PARTITION BY keys ORDER BY bucket) AS upto,
      sum(if(bucket IS NULL, 0, n)) OVER (PARTITION BY keys) AS timed FROM counted)
    SELECT keys, sum(n), max(timed), min(if(100 * upto >= 95 * timed, bucket, NULL)), max(top) FROM placed GROUP BY keys

becomes

    SELECT keys, count(*), count(V), quantile_disc(V, [0.95])[1], max(V) FROM rows GROUP BY keys

Both take the smallest value that at least so many in a hundred do not exceed. Where V is `bucketed(W)`, which never
falls where W rises, the quantile of W is found, and bucketed then: once, not for each row. No keys are `PARTITION BY
true` and no GROUP BY. Whatever differs from the shape stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

_KNOWN = r'SUM\(CASE WHEN "(?P<bucket>\w+)" IS NULL THEN 0 ELSE "(?P<n>\w+)" END\) OVER \(PARTITION BY (?P<keys>.+?)'
_UPTO = re.compile(_KNOWN + r' ORDER BY "(?P=bucket)" NULLS FIRST\)')
_TIMED = re.compile(_KNOWN + r"\)")
_QUANTILE = re.compile(r'MIN\(CASE WHEN 100 \* "(\w+)" >= (\d\d) \* "(\w+)" THEN "(\w+)" ELSE NULL END\)')
_BUCKETED = "kwire_bucketed"
_ADDED = {exp.Sum: (exp.Sum, exp.Count), exp.Max: (exp.Max,), exp.Min: (exp.Min,)}
"""What adds up over buckets what: a sum of sums or counts, the greatest of the greatest, the least of the least."""


def outright(tree: Any) -> None:
    """Change the tree, which is written for DuckDB already."""
    read = [table.name for table in tree.find_all(exp.Table)]
    common = {cte.alias: cte for cte in tree.find_all(exp.CTE) if read.count(cte.alias) == 1}
    for final in list(tree.find_all(exp.Select)):
        placed = common.get(_only(final, "expressions", "group", "order", "with_"))
        counted = common.get(_only(placed.this, "expressions")) if placed is not None else None
        if placed is None or counted is None or not isinstance(counted.this, exp.Select):
            continue
        query = _direct(final, placed.this, counted.this)
        if query is None:
            continue
        for name in ("expressions", "from_", "joins", "where", "group", "order"):
            final.set(name, query.args.get(name))
        for cte in (placed, counted):
            cte.pop()
        if not tree.args["with_"].expressions:
            tree.set("with_", None)


def _only(select: Any, *clauses: str) -> str:
    """The relation that a query reads, alone and whole; empty: it does something else besides."""
    others = (name for name, clause in select.args.items() if clause and name not in ("from_", *clauses))
    if not isinstance(select, exp.Select) or any(others):
        return ""
    source = select.args["from_"].this if select.args.get("from_") else None
    return str(source.name) if isinstance(source, exp.Table) and not source.alias else ""


def _direct(final: Any, placed: Any, counted: Any) -> Any:
    """The query that asks outright; None: these three are of another shape."""
    columns = {column.alias_or_name: column.unalias() for column in counted.expressions}
    windows = {column.alias: _sql(column.unalias()) for column in placed.expressions if not column.is_star}
    ranked = {name: match for name, text in windows.items() if (match := _UPTO.fullmatch(text))}
    summed = {name: match for name, text in windows.items() if name not in ranked and (match := _TIMED.fullmatch(text))}
    if (len(placed.expressions), len(ranked), len(summed)) != (3, 1, 1):  # the star, and these
        return None
    (upto, match), (timed, whole) = *ranked.items(), *summed.items()
    keys = {name: value for name, value in columns.items() if not any(value.find_all(exp.AggFunc))}
    value = keys.pop(match["bucket"], None)
    named = sorted(f'"{name}"' for name in keys)
    grouped = final.args.get("group")
    alike = (
        match.groupdict() == whole.groupdict()
        and (sorted(match["keys"].split(", ")) == named or (not named and match["keys"] == "TRUE"))
        and sorted(_sql(key) for key in (grouped.expressions if grouped is not None else ())) == named
        and _sql(columns.get(match["n"])) == "COUNT(*)"
        and _grouped_by(counted, {*keys, match["bucket"]})
    )
    if value is None or not alike:
        return None
    places = (upto, timed, match["bucket"])
    percents = sorted(
        {quantile[2] for part in final.find_all(exp.Min) if (quantile := _QUANTILE.fullmatch(_sql(part)))}
    )
    try:
        expressions = [
            exp.alias_(_rewritten(column.unalias(), columns, places, percents), column.alias_or_name)
            for column in final.expressions
        ]
    except LookupError:
        return None
    ordered = final.args.get("order")
    names = {column.alias_or_name for column in final.expressions}
    if ordered is not None and not all(column.name in names for column in ordered.find_all(exp.Column)):
        return None
    query = counted.copy()
    query.set("expressions", expressions)
    query.set("group", exp.Group(expressions=[key.copy() for key in keys.values()]) if keys else None)
    query.set("order", ordered)
    return query


def _grouped_by(counted: Any, names: set[str]) -> bool:
    """Whether a query counts by its columns of these names, and by nothing else."""
    group = counted.args.get("group")
    clauses = {name for name, clause in counted.args.items() if clause}
    if group is None or not clauses <= {"expressions", "from_", "joins", "where", "group"}:
        return False
    return bool(group.args.get("all")) or {_sql(key) for key in group.expressions} == {f'"{name}"' for name in names}


def _rewritten(node: Any, columns: Mapping[str, Any], placed: tuple[str, str, str], percents: Sequence[str]) -> Any:
    """Rewrite a column of the final query to read the rows. `percents`: quantiles in percent, all found in one call,
    which costs as much as one. Raises LookupError where that is not possible."""
    upto, timed, bucket = placed
    quantile = _QUANTILE.fullmatch(_sql(node))
    if quantile is not None:
        if quantile.groups() != (upto, quantile[2], timed, bucket):
            raise LookupError
        shares = exp.Array(expressions=[exp.Literal.number(f"0.{share}") for share in percents])
        value = _unbucketed(columns[bucket])
        quantile_call = exp.Anonymous(this="quantile_disc", expressions=[value.copy(), shares])
        place = exp.Literal.number(percents.index(quantile[2]) + 1)
        element = exp.Anonymous(this="list_extract", expressions=[quantile_call, place])
        return element if value is columns[bucket] else exp.Anonymous(this=_BUCKETED, expressions=[element])
    if isinstance(node, exp.Column):
        if node.name == bucket or isinstance(columns[node.name], exp.AggFunc):
            raise LookupError
        return columns[node.name].copy()
    if type(node) in _ADDED:
        name = node.this.name if isinstance(node.this, exp.Column) else ""
        if type(node) is exp.Max and name == timed:
            return exp.Count(this=_unbucketed(columns[bucket]).copy(), big_int=True)
        if not isinstance(columns[name], _ADDED[type(node)]):
            raise LookupError
        return columns[name].copy()
    copied = node.copy()
    for child in list(copied.iter_expressions()):
        child.replace(_rewritten(child, columns, placed, percents))
    return copied


def _unbucketed(value: Any) -> Any:
    """The number that is counted by bucket; the value itself where it is none."""
    return value.expressions[0] if isinstance(value, exp.Anonymous) and value.name == _BUCKETED else value


def _sql(node: Any) -> str:
    return "" if node is None else str(node.sql(dialect=DuckDB, identify=True, comments=False))
