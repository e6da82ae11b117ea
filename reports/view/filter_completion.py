"""Completion of filters: names, operators, values that occur with their counts, `and` and `or`.

In: a filter as far as it is typed, and the cursor's position. Out: the word to replace and candidates, best first.
Rules: names are those of the language (`kwire.analyzer.filter`); counts are exact, over all exchanges; every candidate
is valid where it is offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kwire.analyzer.common import address_names
from kwire.analyzer.filter import names
from kwire.analyzer.filter.conditions import end_point
from kwire.analyzer.filter.tokens import Word, WordError
from kwire.analyzer.frame.counting import count_codes
from kwire.analyzer.frame.list_columns import ListColumn
from kwire.analyzer.protocol import errors
from kwire.reports.view.tables import Tables

MAX_CANDIDATES: Final = 40
"""Candidates in one answer."""

_TOKEN: Final = re.compile(
    r"""\s*(?:("(?:[^"]|"")*(?:"|$)|'(?:[^']|'')*(?:'|$))|([^\s(),=!<>~"']+)|([=!<>~]+)|([(),]))"""
)
"""A quoted value (its end may be missing), a word, a sign, a parenthesis or a comma."""
_JOINING: Final = ("and", "or", "not")
_ORDER: Final = ("==", "!=", "<", "<=", ">", ">=")
_EQUAL: Final = ("==", "!=")
_MATCH: Final = ("~", "!~")
_AMONG: Final = ("in (", "not in (")
_ABSENT: Final = ("is null", "is not null")
_OPERATORS: Final = {
    "integer": (*_ORDER, *_AMONG),
    "duration": _ORDER,
    "size": _ORDER,
    "time": _ORDER,
    "bool": _EQUAL,
    "float64": _ORDER,
    "code": (*_EQUAL, *_MATCH, *_AMONG),
    "opaque": (),
}
_ABOUT: Final = {
    "==": "equals",
    "!=": "differs from",
    "<": "less than",
    "<=": "at most",
    ">": "more than",
    ">=": "at least",
    "~": "a regular expression matches",
    "!~": "no match",
    "in (": "one of",
    "not in (": "none of",
    "is null": "there is no value",
    "is not null": "there is one",
}
_AMOUNTS: Final = {
    "duration": ("1ms", "10ms", "100ms", "1s"),
    "size": ("1kB", "100kB", "1MB"),
    "bool": ("true", "false"),
}


@dataclass(frozen=True, slots=True)
class _CursorWord:
    """The word at the cursor: its start, its text so far, its role (`what`: `name`, `operator`, `value` or `joining`),
    and the name that an operator or value belongs to."""

    start: int
    word: str
    what: str
    name: str = ""


def candidates(tables: Tables, text: str, at: int) -> dict[str, Any]:
    """List candidates for the word at the cursor, which is [start, end)."""
    typed = _word_at_cursor(text[:at])
    candidates_of = {"name": _names, "operator": _operators, "value": _values, "joining": _joining}[typed.what]
    fitting = list(_fitting(candidates_of(tables, typed), typed.word))
    end = at + len(re.match(r"[^\s(),=!<>~\"']*", text[at:])[0]) if typed.word else at  # type: ignore[index]
    return {"start": typed.start, "end": end, "what": typed.what, "candidates": fitting[:MAX_CANDIDATES]}


def _word_at_cursor(text: str) -> _CursorWord:
    """Find the word at the cursor, and its role, from the text before the cursor."""
    what, name, listed = "name", "", False
    before = list(_TOKEN.finditer(text))
    last = before[-1] if before and before[-1].end() == len(text) else None
    start, word = len(text), ""
    if last is not None and (last[2] or (last[1] and not _is_closed(last[1])) or last[3] in ("=", "!")):
        before.pop()
        whole = last[0].lstrip()
        start, word = len(text) - len(whole), whole.lstrip("\"'")
    for token in before:
        what, name, listed = _after(token, what, name, listed)
    return _CursorWord(start, word, what, name)


def _is_closed(quoted: str) -> bool:
    return len(quoted) > 1 and quoted[-1] == quoted[0] and quoted.count(quoted[0]) % 2 == 0


def _after(token: re.Match[str], what: str, name: str, listed: bool) -> tuple[str, str, bool]:
    """Tell what may follow a token: (role, name, whether inside a list of values)."""
    word = (token[2] or "").lower()
    if token[4] == "(":
        return ("value", name, True) if what == "value" or listed else ("name", "", False)
    if token[4] == ")":
        return "joining", name, False
    if token[4] == ",":
        return "value", name, listed
    if token[3]:
        return "value", name, listed
    if word in _JOINING and what in ("name", "joining"):
        return "name", "", False
    if what == "name":
        return "operator", token[2] or "", False
    if what == "operator":
        return (
            ("value", name, listed)
            if word == "in"
            else ("joining", name, False)
            if word == "null"
            else ("operator", name, False)
        )
    return ("value", name, True) if listed else ("joining", name, False)


def _fitting(known: Iterable[dict[str, Any]], word: str) -> Iterator[dict[str, Any]]:
    """Select candidates that begin with the word, then those that contain it."""
    lower = word.lower()
    inside = []
    for candidate in known:
        text = candidate["text"].lower().lstrip('"')
        if text.startswith(lower):
            yield candidate
        elif lower in text:
            inside.append(candidate)
    yield from inside


def _names(tables: Tables, typed: _CursorWord) -> Iterator[dict[str, Any]]:
    about = {column.name: column.about for column in tables.described()}
    there = (name for name in names.names() if name not in address_names.COLUMNS or name in about)
    for name in sorted(there, key=lambda name: (name not in names.SHORT and name not in _FIRST, name)):
        column = names.SHORT.get(name, name)
        yield {
            "text": name,
            "about": about.get(
                column, "Address, as 10.0.0.1:9092." if name != "packet" else "Number of a packet of either message."
            ),
        }
    if "." in typed.word or typed.word in ("request", "response", "req", "resp"):
        for path in names.paths():
            if _resolve(path) is not None:
                yield {"text": path, "about": "field of the message"}
    yield {"text": "not", "about": "the opposite"}


_FIRST: Final = ("api", "client", "client_id", "broker", "status", "cause")


def _resolve(name: str) -> names.Operand | None:
    try:
        operand = names.resolve(Word(name, 0, len(name)))
    except WordError:
        return None
    return operand if operand.kind != "opaque" else None


def _operators(tables: Tables, typed: _CursorWord) -> Iterator[dict[str, Any]]:
    operand = _resolve(typed.name)
    for sign in (*_OPERATORS.get(operand.kind if operand else "text", (*_EQUAL, *_MATCH, *_AMONG)), *_ABSENT):
        yield {"text": sign, "about": _ABOUT[sign]}


def _joining(tables: Tables, typed: _CursorWord) -> Iterator[dict[str, Any]]:
    yield {"text": "and", "about": "both"}
    yield {"text": "or", "about": "either"}


def _values(tables: Tables, typed: _CursorWord) -> Iterator[dict[str, Any]]:
    operand = _resolve(typed.name)
    if operand is None:
        return
    if operand.kind in _AMOUNTS:
        for amount in _AMOUNTS[operand.kind]:
            yield {"text": amount}
    elif isinstance(operand.about, names.Columns):
        for value, count in count_values(tables, operand.about):
            yield {"text": value_word(value), "count": count}


def count_values(tables: Tables, about: names.Columns, rows: np.ndarray | None = None) -> Iterator[tuple[str, int]]:
    """Count the exchanges with each value of a column, most frequent first; of some rows, or of all. Columns of numbers
    have no counts."""
    columns, name = tables.columns, about.names[0]
    if about.form == "errors":
        code_counts = _of_lists(columns.errors, rows)
        counted = [(errors.name(code), count) for code, count in code_counts]
    elif about.form == "topics":
        known = columns.values["topics"]
        counted = [(known[code], count) for code, count in _of_lists(columns.topics, rows) if code >= 0]
    else:
        name = name.removesuffix("_ip") if about.form == "address" else name
        if name not in columns.codes:
            return
        values = columns.values[name]
        counts = count_codes(columns.codes[name], rows, len(values))
        there = np.flatnonzero(counts)
        shown = (values[code] for code in there.tolist())
        texts = [end_point(*address) for address in shown] if about.form == "address" else list(shown)
        counted = list(zip(texts, counts[there].tolist(), strict=True))
    yield from sorted(counted, key=lambda entry: (-entry[1], entry[0]))


def _of_lists(listed: ListColumn, rows: np.ndarray | None) -> list[tuple[int, int]]:
    """Count the rows that have each element in their list, once per row."""
    counts = count_codes(listed.of, rows, listed.lists)
    places, codes = listed.pairs()
    distinct, where = np.unique(codes, return_inverse=True)
    sums = np.bincount(where, weights=counts[places], minlength=len(distinct)).astype(np.int64)
    return [(code, count) for code, count in zip(distinct.tolist(), sums.tolist(), strict=True) if count]


_BARE: Final = re.compile(r"[^\s(),=!<>~\"']+")
_WORDS: Final = frozenset(("and", "or", "not", "in", "is", "null"))


def value_word(value: str) -> str:
    """Write a value for a filter: bare if that means the same, else quoted."""
    bare = _BARE.fullmatch(value) and value.lower() not in _WORDS and _resolve(value) is None and value.isprintable()
    return value if bare else '"' + value.replace('"', '""') + '"'
