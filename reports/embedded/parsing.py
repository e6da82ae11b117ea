"""Spark SQL as a tree, and pieces of it as their writer would know them.

In: the text of a query or a view. Out: sqlglot's tree of it, or `UnsupportedSqlError`. Pure. Rule: where sqlglot
reads a text otherwise than Spark does, it is mended here, before anybody sees the tree.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import TokenType

from kwire.reports.engine_protocol import UnsupportedSqlError

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what it cannot parse is told by us


_SPARK = Spark()

_AS_WRITTEN = {"round", "percentile"}
"""Functions that are kept as they are written: sqlglot's own nodes do not keep all of their arguments."""

_MARK = " as written"
"""Behind such a function's name while sqlglot parses: no query can hold a name like that. (A dialect of our own would
say it better, but classes of the compiled sqlglot have no children.)"""


def parsed(text: str) -> Any:
    """The query as a tree. Raises sqlglot's ParseError where it is none, UnsupportedSqlError where it is another
    statement."""
    tokens = _quotes_within(_SPARK.tokenize(text), text)
    for token, behind in itertools.pairwise(tokens):
        if token.token_type is TokenType.VAR and behind.token_type is TokenType.L_PAREN:
            token.text += _MARK if token.text.lower() in _AS_WRITTEN else ""
    parts = _SPARK.parser().parse(tokens, text)
    statements = [
        statement for statement in parts if not isinstance(statement, exp.Semicolon | None)
    ]  # the last: a comment behind it
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UnsupportedSqlError("not one query")
    for function in statements[0].find_all(exp.Anonymous):
        function.set("this", function.this.removesuffix(_MARK) if isinstance(function.this, str) else function.this)
    return statements[0]


def _quotes_within(tokens: Sequence[Any], text: str) -> list[Any]:
    """The tokens, `'it''s'` as one: sqlglot takes it for two texts side by side, which would be put together without
    the quote that Spark reads there."""
    joined: list[Any] = []
    for token in tokens:
        before = joined[-1] if joined else token
        doubled = text[before.end : token.start + 1] in ("''", '""')
        if doubled and before.token_type is token.token_type is TokenType.STRING:
            before.text += text[token.start] + token.text
            before.end = token.end
        else:
            joined.append(token)
    return joined


def read_by(tree: Any) -> list[tuple[str, int | None]]:
    """Names that a query reads as tables or views, and where in its text; those that it makes itself left out."""
    common = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    return [
        (table.name, table.this.meta.get("start"))
        for table in tree.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier) and not table.args.get("db") and table.name.lower() not in common
    ]


def shown(node: Any) -> str:
    """A piece of a query, short, as its writer would know it."""
    text = " ".join(str(node.sql(dialect=_SPARK, comments=False)).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
