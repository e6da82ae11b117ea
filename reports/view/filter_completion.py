"""What may stand next in a filter: names, operators, values that were seen with how often, `and` and `or`.

In: a filter as far as it is typed, and where the cursor stands. Out: the word to replace and candidates, best first.
Rules: the names are those of the language (`analyzer.filter`); counts are exact, and of all exchanges; nothing is
offered that would be a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzer.dataset import tables as contract
from analyzer.filter import names
from analyzer.filter.tokens import Word, WordError
from analyzer.protocol import errors
from reports.view.list_columns import Listed
from reports.view.tables import Tables
from reports.view.value_counts import tally

MOST: Final = 40
"""Candidates of one answer."""

_TOKEN: Final = re.compile(
    r"""\s*(?:("(?:[^"]|"")*(?:"|$)|'(?:[^']|'')*(?:'|$))|([^\s(),=!<>~"']+)|([=!<>~]+)|([(),]))"""
)
"""Quoted (the end may be missing), word, sign, parenthesis or comma."""
_JOINING: Final = ("and", "or", "not")
_ORDER: Final = ("==", "!=", "<", "<=", ">", ">=")
_EQUAL: Final = ("==", "!=")
_FOUND: Final = ("~", "!~")
_AMONG: Final = ("in (", "not in (")
_ABSENT: Final = ("is null", "is not null")
_OPERATORS: Final = {
    "integer": (*_ORDER, *_AMONG),
    "duration": _ORDER,
    "size": _ORDER,
    "time": _ORDER,
    "bool": _EQUAL,
    "float64": _ORDER,
    "code": (*_EQUAL, *_FOUND, *_AMONG),
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
class _Typed:
    """What is typed: the word under the cursor, what it is to be (`name`, `operator`, `value`, `joining`), and the name
    that an operator or value is for."""

    start: int
    word: str
    what: str
    name: str = ""


def candidates(tables: Tables, text: str, at: int) -> dict[str, Any]:
    """The word to replace ([start, end)) and what may stand there."""
    typed = _typed(text[:at])
    known = {"name": _names, "operator": _operators, "value": _values, "joining": _joining}[typed.what]
    found = list(_fitting(known(tables, typed), typed.word))
    end = at + len(re.match(r"[^\s(),=!<>~\"']*", text[at:])[0]) if typed.word else at  # type: ignore[index]
    return {"start": typed.start, "end": end, "what": typed.what, "candidates": found[:MOST]}


def _typed(text: str) -> _Typed:
    """Walk over what stands before the cursor."""
    what, name, listed = "name", "", False
    before = list(_TOKEN.finditer(text))
    last = before[-1] if before and before[-1].end() == len(text) else None
    start, word = len(text), ""
    if last is not None and (last[2] or (last[1] and not _closed(last[1])) or last[3] in ("=", "!")):
        before.pop()
        whole = last[0].lstrip()
        start, word = len(text) - len(whole), whole.lstrip("\"'")
    for found in before:
        what, name, listed = _after(found, what, name, listed)
    return _Typed(start, word, what, name)


def _closed(quoted: str) -> bool:
    return len(quoted) > 1 and quoted[-1] == quoted[0] and quoted.count(quoted[0]) % 2 == 0


def _after(found: re.Match[str], what: str, name: str, listed: bool) -> tuple[str, str, bool]:
    """What may stand after a token: (what, for which name, inside a list of values)."""
    word = (found[2] or "").lower()
    if found[4] == "(":
        return ("value", name, True) if what == "value" or listed else ("name", "", False)
    if found[4] == ")":
        return "joining", name, False
    if found[4] == ",":
        return "value", name, listed
    if found[3]:
        return "value", name, listed
    if word in _JOINING and what in ("name", "joining"):
        return "name", "", False
    if what == "name":
        return "operator", found[2] or "", False
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
    """Those that begin with the word, then those that have it inside."""
    lower = word.lower()
    inside = []
    for one in known:
        text = one["text"].lower().lstrip('"')
        if text.startswith(lower):
            yield one
        elif lower in text:
            inside.append(one)
    yield from inside


def _names(tables: Tables, typed: _Typed) -> Iterator[dict[str, Any]]:
    about = {column.name: column.about for column in contract.EXCHANGES}
    for name in sorted(names.names(), key=lambda name: (name not in names.SHORT and name not in _FIRST, name)):
        column = names.SHORT.get(name, name)
        yield {
            "text": name,
            "about": about.get(
                column, "Address, as 10.0.0.1:9092." if name != "packet" else "Number of a packet of either message."
            ),
        }
    if "." in typed.word or typed.word in ("request", "response", "req", "resp"):
        for path in names.paths():
            if _named(path) is not None:
                yield {"text": path, "about": "field of the message"}
    yield {"text": "not", "about": "the opposite"}


_FIRST: Final = ("api", "client", "client_id", "broker", "status", "cause")


def _named(name: str) -> names.Operand | None:
    try:
        found = names.resolve(Word(name, 0, len(name)))
    except WordError:
        return None
    return found if found.kind != "opaque" else None


def _operators(tables: Tables, typed: _Typed) -> Iterator[dict[str, Any]]:
    found = _named(typed.name)
    for sign in (*_OPERATORS.get(found.kind if found else "text", (*_EQUAL, *_FOUND, *_AMONG)), *_ABSENT):
        yield {"text": sign, "about": _ABOUT[sign]}


def _joining(tables: Tables, typed: _Typed) -> Iterator[dict[str, Any]]:
    yield {"text": "and", "about": "both"}
    yield {"text": "or", "about": "either"}


def _values(tables: Tables, typed: _Typed) -> Iterator[dict[str, Any]]:
    found = _named(typed.name)
    if found is None:
        return
    if found.kind in _AMOUNTS:
        for amount in _AMOUNTS[found.kind]:
            yield {"text": amount}
    elif isinstance(found.about, names.Columns):
        for value, count in seen(tables, found.about):
            yield {"text": value_word(value), "count": count}


def seen(tables: Tables, about: names.Columns, rows: np.ndarray | None = None) -> Iterator[tuple[str, int]]:
    """Values of a column with how many exchanges have each, most first; of chosen rows, or of all. Nothing for columns
    of numbers."""
    columns, name = tables.columns, about.names[0]
    if about.form == "errors":
        found = _of_lists(columns.errors, rows)
        counted = [(errors.name(code), count) for code, count in found]
    elif about.form == "topics":
        known = columns.values["topics"]
        counted = [(known[code], count) for code, count in _of_lists(columns.topics, rows) if code >= 0]
    else:
        name = name.removesuffix("_ip") if about.form == "address" else name
        if name not in columns.codes:
            return
        values = columns.values[name]
        counts = tally(columns.codes[name], rows, len(values))
        there = np.flatnonzero(counts)
        shown = (values[code] for code in there.tolist())
        texts = [_address(*one) for one in shown] if about.form == "address" else list(shown)
        counted = list(zip(texts, counts[there].tolist(), strict=True))
    yield from sorted(counted, key=lambda one: (-one[1], one[0]))


def _address(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _of_lists(listed: Listed, rows: np.ndarray | None) -> list[tuple[int, int]]:
    """Elements of lists with how many rows have each, once a row."""
    counts = tally(listed.of, rows, listed.lists)
    places, codes = listed.pairs()
    found, where = np.unique(codes, return_inverse=True)
    sums = np.bincount(where, weights=counts[places], minlength=len(found)).astype(np.int64)
    return [(code, count) for code, count in zip(found.tolist(), sums.tolist(), strict=True) if count]


_BARE: Final = re.compile(r"[^\s(),=!<>~\"']+")
_WORDS: Final = frozenset(("and", "or", "not", "in", "is", "null"))


def value_word(value: str) -> str:
    """A value as a filter has it: bare where that means the same, else quoted."""
    bare = _BARE.fullmatch(value) and value.lower() not in _WORDS and _named(value) is None and value.isprintable()
    return value if bare else '"' + value.replace('"', '""') + '"'
