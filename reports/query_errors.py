"""Errors of a query, in one line and a hint, equal from Spark and from before Spark is started.

In: the text of a query. Out: nothing, or `QueryError` in Spark's words. Only what is certain is told: what is not goes
on to an engine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Any, Self

from kwire.captures.errors import KwireError
from kwire.reports import relations

HINT = "DESCRIBE NAME lists the columns of a table or view, SHOW VIEWS the names"

# fmt: off
_BEGINS = frozenset((
    "ADD", "ALTER", "ANALYZE", "BEGIN", "CACHE", "CALL", "CLEAR", "COMMENT", "CREATE", "DECLARE", "DELETE", "DESC",
    "DESCRIBE", "DROP", "EXECUTE", "EXPLAIN", "EXPORT", "FROM", "GRANT", "IMPORT", "INSERT", "LIST", "LOAD", "LOCK",
    "MAP", "MERGE", "MSCK", "REDUCE", "REFRESH", "REPAIR", "REPLACE", "RESET", "REVOKE", "SELECT", "SET", "SHOW",
    "START", "TABLE", "TRUNCATE", "UNCACHE", "UNLOCK", "UPDATE", "USE", "VALUES", "WITH",
))
# fmt: on
"""How statements of Spark SQL begin."""


class QueryError(KwireError):
    """A query that cannot be answered."""

    @classmethod
    def at(cls, message: str, place: tuple[int, int] | None, hint: str = HINT) -> Self:
        """`place`: line and column, from 1."""
        where = f" (line {place[0]}, column {place[1]})" if place else ""
        return cls(message.rstrip(" .") + where, hint)


def unknown_relation(message: str, place: tuple[int, int] | None, name: str, names: Collection[str]) -> QueryError:
    """There is no table or view of this name; perhaps one of a name like it."""
    near = difflib.get_close_matches(name, sorted(names), 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(names))}"
    return QueryError.at(message, place, hint)


def unknown_column(query: str, name: str, near: Sequence[str]) -> QueryError:
    """There is no column of this name where the query asks for one."""
    listed = (
        f" Did you mean one of the following? [{', '.join(f'`{candidate}`' for candidate in near)}]" if near else ""
    )
    kind = "WITH_SUGGESTION" if near else "WITHOUT_SUGGESTION"
    message = (
        f"[UNRESOLVED_COLUMN.{kind}] A column, variable, or function parameter with name `{name}` cannot be resolved."
    )
    match = re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", query, re.IGNORECASE)
    return QueryError.at(message + listed, _place(query, match.start()) if match else None, column_hint(name))


def column_hint(name: str) -> str:
    """A hint for a column that does not exist: filters have shorter names, and fields of the bodies."""
    from kwire.analyzer.common import address_names
    from kwire.analyzer.filter import names as naming

    plain = name.replace("`", "")
    last = plain.rpartition(".")[2]
    if plain.partition(".")[0].lower() in ("request", "response") and "." in plain:
        return f"fields of the bodies are in no table: kwire show CAPTURE --fields {plain}, or analyze with --filter"
    if last in naming.ADDRESSES or last == "packet":
        columns = naming.ADDRESSES.get(last, naming.PACKETS)
        return f"what filters call {last} is {' and '.join(columns)} in tables; {HINT}"
    if last in address_names.COLUMNS:
        return f"--names FILE gives names to addresses, and tables the column {last}"
    if last in naming.SHORT:
        return f"what filters call {last} is {naming.SHORT[last]} in tables; {HINT}"
    return HINT


def check(query: str) -> None:
    """Raises QueryError where a query is surely wrong, whatever the data."""
    word = re.match(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*\(*\s*(\S+)", query, re.DOTALL)
    if word is None:
        raise QueryError.at("[PARSE_SYNTAX_ERROR] Syntax error, unexpected empty statement", (1, 1))
    first = re.match(r"\w*", word[1])
    if first is None or first[0].upper() not in _BEGINS:
        message = f"[PARSE_SYNTAX_ERROR] Syntax error at or near '{word[1]}'"
        near = difflib.get_close_matches(first[0].upper() if first else "", sorted(_BEGINS), 1)
        raise QueryError.at(message, _place(query, word.start(1)), f"did you mean {near[0]}? {HINT}" if near else HINT)
    if described := _DESCRIBED.fullmatch(query):
        _check_name(query, described[1], described.start(1))
    if first[0].upper() in ("SELECT", "WITH") and _translator():
        _check_select(query)


_DESCRIBED = re.compile(r"\s*DESC(?:RIBE)?\s+(?:TABLE\s+|VIEW\s+)?`?(\w+)`?\s*", re.IGNORECASE)


def _translator() -> bool:
    """Whether what understands SQL here is installed: the extra `sql`."""
    import importlib.util

    return importlib.util.find_spec("sqlglot") is not None


def _check_select(query: str) -> None:
    from sqlglot import errors

    from kwire.reports.embedded.parsing import parsed, read_by
    from kwire.reports.engine_protocol import UnsupportedSqlError

    try:
        tree = parsed(query)
    except UnsupportedSqlError:
        return
    except errors.ParseError as failure:
        if re.search(r"\|>|\b(TRANSFORM|PIVOT|MATCH_RECOGNIZE|TABLESAMPLE|CLUSTER|DISTRIBUTE)\b", query, re.IGNORECASE):
            return  # where Spark may understand more
        error: dict[str, Any] = failure.errors[0] if failure.errors else {}
        near, line = str(error.get("highlight") or "end of input"), int(error.get("line") or 1)
        column = max(1, int(error.get("col") or 1) - len(near) + 1)
        raise QueryError.at(f"[PARSE_SYNTAX_ERROR] Syntax error at or near '{near}'", (line, column)) from None
    except errors.SqlglotError:
        if (at := _unclosed(query)) is not None:
            raise QueryError.at(f"[PARSE_SYNTAX_ERROR] {query[at]} is not closed", _place(query, at)) from None
        return
    for name, start in read_by(tree):
        _check_name(query, name, start)


def _unclosed(query: str) -> int | None:
    """Where a quote begins that nothing closes."""
    whole = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^'\"`]", re.DOTALL)
    at = 0
    while match := whole.match(query, at):
        at = match.end()
    return at if at < len(query) else None


def _check_name(query: str, name: str, start: int | None) -> None:
    names = relations.names()
    if name.lower() not in names:
        message = f"[TABLE_OR_VIEW_NOT_FOUND] The table or view `{name}` cannot be found."
        raise unknown_relation(message, None if start is None else _place(query, start), name, names)


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
