"""The filter language: which exchanges are wanted.

In: an expression such as `api == Produce and latency > 100ms and topic ~ "^orders"` (the language: `FILTER.md`). Out: a
frozen `Filter`, which answers at three prices:

    rows_mask(x)       rows of integers as `analyzer.state` has them, before anything else is made of them
    cheap(table)       an Arrow table of exchanges
    matches(row, ...)  one exchange with its decoded bodies

The first two say of each row: surely wanted, surely not, or only the bodies can tell. Rules: a wrong expression raises
FilterError and nothing else; a comparison is true if any value passes, so it is false where there is no value, and
`not` of it is then true. There are two truth values for one exchange; "cannot tell yet" is none of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer import schema
from analyzer import state as s
from analyzer.filter_terms import (
    INT64_MAX,
    INT64_MIN,
    STATED,
    Columns,
    Comparison,
    FilterError,
    Path,
    Problem,
    Test,
    Whole,
    Word,
    compare,
    micros,
)
from analyzer.matching import MAX_CODES

__all__ = ["Filter", "FilterError", "IntegerTest", "Names", "parse"]

MAX_LENGTH: Final = 1 << 16
"""Characters of a filter. Long lists of values are ordinary; a filter of megabytes is a mistake."""

MAX_DEPTH: Final = 100
"""How deep parentheses and `not` may nest: evaluation is recursive, and people stop at five."""

# --- the tree ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


Node = And | Or | Not | Comparison


def _joined(kind: type[And] | type[Or], parts: Iterable[Node]) -> Node:
    """Parts of the same kind are taken apart, so that `a and (b and c)` and `a and b and c` are one tree."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def _source(node: Node) -> str:
    """The expression of a tree."""
    if isinstance(node, Comparison):
        return node.source
    if isinstance(node, Not):
        inner = _source(node.part)
        return f"not {inner}" if isinstance(node.part, Not) else f"not ({inner})"
    sign = " and " if isinstance(node, And) else " or "
    return sign.join(f"({_source(part)})" if isinstance(part, And | Or) else _source(part) for part in node.parts)


# --- the grammar ------------------------------------------------------------------------------------------------------

_STOP: Final = r"\s(),=!<>~\"'"
_WORD: Final = rf"(?!(?:and|or|not|in|is|null)(?![^{_STOP}]))[^{_STOP}]+"

_GRAMMAR: Final = rf"""
start: either
either: both (OR both)*
both: inverse (AND inverse)*
?inverse: NOT inverse            -> negation
    | "(" either ")"             -> group
    | WORD SIGN value            -> single
    | WORD IN list               -> among
    | WORD NOT IN list           -> not_among
    | WORD IS NULL               -> absent
    | WORD IS NOT NULL           -> present
?list: "(" value ("," value)* ")"  -> values
value: WORD | QUOTED

SIGN: "==" | "!=" | "<=" | ">=" | "<" | ">" | "!~" | "~"
AND.2: /and(?![^{_STOP}])/i
OR.2: /or(?![^{_STOP}])/i
NOT.2: /not(?![^{_STOP}])/i
IN.2: /in(?![^{_STOP}])/i
IS.2: /is(?![^{_STOP}])/i
NULL.2: /null(?![^{_STOP}])/i
WORD: /{_WORD}/i
QUOTED: /"(?:[^"]|"")*"|'(?:[^']|'')*'/
%ignore /\s+/
"""


@dataclass(frozen=True, slots=True)
class _Raw:
    """A node before its names and values are looked up. `kind`: and, or, not, or `compare`, which has the words of a
    comparison and how it is written."""

    kind: str
    depth: int
    parts: tuple[_Raw, ...] = ()
    words: tuple[Word, ...] = ()
    source: str = ""


class _TooDeep(Exception):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


def _word(token: Any) -> Word:
    return Word(str(token), int(token.start_pos), int(token.end_pos))


def _unquoted(token: Any) -> Word:
    """A value; a quotation mark inside quotes is written twice."""
    text = str(token)
    if token.type == "QUOTED":
        text = text[1:-1].replace(text[0] * 2, text[0])
    return Word(text, int(token.start_pos), int(token.end_pos))


@functools.cache
def _bare() -> re.Pattern[str]:
    return re.compile(_WORD, re.IGNORECASE)


def _written(value: Word) -> str:
    """A value as it can be written: bare where that is possible."""
    if _bare().fullmatch(value.text):
        return value.text
    return '"' + value.text.replace('"', '""') + '"'


class _Build:
    """Called by the parser as it goes, so no recursion is as deep as the expression."""

    def start(self, items: list[Any]) -> _Raw:
        return self.group(items)

    def group(self, items: list[Any]) -> _Raw:
        raw: _Raw = items[0]
        return raw

    def _nested(self, kind: str, parts: tuple[_Raw, ...], at: int) -> _Raw:
        depth = 1 + max(part.depth for part in parts)
        if depth > MAX_DEPTH:
            raise _TooDeep(at)
        return _Raw(kind, depth, parts)

    def _join(self, kind: str, items: list[Any]) -> _Raw:
        parts = tuple(item for item in items if isinstance(item, _Raw))
        return parts[0] if len(parts) == 1 else self._nested(kind, parts, items[1].start_pos)

    def either(self, items: list[Any]) -> _Raw:
        return self._join("or", items)

    def both(self, items: list[Any]) -> _Raw:
        return self._join("and", items)

    def negation(self, items: list[Any]) -> _Raw:
        return self._nested("not", (items[1],), items[0].start_pos)

    def value(self, items: list[Any]) -> Word:
        return _unquoted(items[0])

    def values(self, items: list[Any]) -> list[Word]:
        return items

    def single(self, items: list[Any]) -> _Raw:
        name, sign, value = _word(items[0]), _word(items[1]), items[2]
        return _Raw("compare", 1, (), (name, sign, value), f"{name.text} {sign.text} {_written(value)}")

    def _several(self, operator: str, items: list[Any]) -> _Raw:
        name, values = _word(items[0]), items[-1]
        sign = Word(operator, int(items[1].start_pos), int(items[-2].end_pos))
        source = f"{name.text} {operator} ({', '.join(_written(value) for value in values)})"
        return _Raw("compare", 1, (), (name, sign, *values), source)

    def among(self, items: list[Any]) -> _Raw:
        return self._several("in", items)

    def not_among(self, items: list[Any]) -> _Raw:
        return self._several("not in", items)

    def _null(self, operator: str, items: list[Any]) -> _Raw:
        name, sign = _word(items[0]), Word(operator, int(items[1].start_pos), int(items[-1].end_pos))
        return _Raw("compare", 1, (), (name, sign), f"{name.text} {operator}")

    def absent(self, items: list[Any]) -> _Raw:
        return self._null("is null", items)

    def present(self, items: list[Any]) -> _Raw:
        return self._null("is not null", items)


@functools.cache
def _parser() -> Any:
    """Some 30 ms, once a process, and only where there is a filter."""
    import lark

    build: Any = _Build()
    return lark.Lark(_GRAMMAR, parser="lalr", lexer="contextual", transformer=build, propagate_positions=False)


_EXPECTED: Final = {
    "AND": "`and`", "OR": "`or`", "NOT": "`not`", "IN": "`in`", "IS": "`is null`", "NULL": "`null`",
    "SIGN": "one of == != < <= > >= ~ !~", "LPAR": "`(`", "RPAR": "`)`", "COMMA": "`,`", "$END": "the end",
}  # fmt: skip
_OTHERWISE: Final = {
    "=": "write `==`", "&&": "write `and`", "&": "write `and`", "||": "write `or`", "|": "write `or`",
    "!": "write `not`, or `!=`", "contains": "write `~` and a regular expression", "like": "write `~` and a regular "
    "expression", "matches": "write `~` and a regular expression", "eq": "write `==`", "ne": "write `!=`",
    "gt": "write `>`", "lt": "write `<`", "ge": "write `>=`", "le": "write `<=`",
}  # fmt: skip


def _could_stand(terminals: Iterable[str]) -> str:
    """`a name, `not` or `(``, for the terminals that the parser would take."""
    found = set(terminals)
    said = []
    if "QUOTED" in found:
        said.append("a value (a word, a number, or quoted text)")
    elif "WORD" in found:
        said.append("a name to compare")
    said += [text for terminal, text in _EXPECTED.items() if terminal in found]
    if {"SIGN", "IN", "IS"} <= found:
        said = ["a comparison: == != < <= > >= ~ !~, `in (...)`, `not in (...)`, `is null`, `is not null`"]
    return " or ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _syntax_error(text: str, error: Any) -> FilterError:
    """What the parser did not like, in words."""
    import lark

    at = len(text.rstrip())
    end = at + 1
    token = getattr(error, "token", None)
    if isinstance(error, lark.UnexpectedCharacters):
        at = int(error.pos_in_stream or 0)
        end = at + 1
        expected: set[str] = set(error.allowed or ())
        shown = text[at]
    elif token is not None and token.type != "$END":
        at, end = int(token.start_pos), int(token.end_pos)
        expected = set(getattr(error, "accepts", None) or error.expected)
        shown = str(token)
    else:
        expected = set(getattr(error, "accepts", None) or error.expected)
        shown = ""
    stand = _could_stand(expected)
    hint = f"here could stand {stand}" if stand else "see the filter language's documentation"
    if shown == ")" and expected == {"$END"}:
        return FilterError("this `)` closes nothing", text, at, end, "take it away, or open it with `(`")
    if not shown:
        return FilterError("the filter ends too early", text, at, end, hint)
    if shown in "\"'" and text.count(shown, at) % 2:
        return FilterError("this quotation mark is never closed", text, at, end, "write it twice to mean itself")
    other = _OTHERWISE.get(shown.lower())
    if other is not None:
        return FilterError(f"`{shown}` is not part of the language", text, at, end, f"{other}; {hint}")
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return FilterError(f"`{shown}` cannot stand here", text, at, end, hint)


def _bind(raw: _Raw) -> Node:
    if raw.kind == "compare":
        return compare(raw.words[0], raw.words[1], raw.words[2:], raw.source)
    parts = [_bind(part) for part in raw.parts]
    if raw.kind == "not":
        return Not(parts[0])
    return _joined(And if raw.kind == "and" else Or, parts)


def parse(text: str) -> Filter:
    """The filter of an expression. Raises FilterError."""
    import lark

    if len(text) > MAX_LENGTH:
        problem = f"the filter is longer than {MAX_LENGTH:,} characters"
        raise FilterError(problem, text, MAX_LENGTH, MAX_LENGTH + 1, "shorten its lists")
    if not text.strip():
        raise FilterError("the filter is empty", text, 0, 1, "write a comparison, as in `api == Produce`")
    try:
        return Filter(_bind(_parser().parse(text)))
    except _TooDeep as error:
        raise FilterError(
            f"nested deeper than {MAX_DEPTH} levels", text, error.at, error.at + 1, "take some parentheses away"
        ) from None
    except Problem as error:
        raise FilterError(error.problem, text, error.word.start, error.word.end, error.hint) from None
    except lark.UnexpectedInput as error:
        raise _syntax_error(text, error) from None


# --- sources of columns -----------------------------------------------------------------------------------------------

TopicName = Callable[[str], str]
Ints = tuple[np.ndarray, np.ndarray]  # int64[n] values, bool[n] whether there is one
Coded = tuple[np.ndarray, np.ndarray, Sequence[Any]]  # int64[n] which of the values, bool[n] whether there is one


@dataclass(frozen=True, slots=True)
class Listed:
    """A column of lists of text. Equal lists may be one, so that each is looked at once.

    list_of   int64[n]   number of each row's list, `lists` where it has none
    lists     how many lists there are
    element   int64[m]   the list of each element
    index     int64[m]   which of `values` the element is
    open      bool[m]    may the element turn out to be another text?
    """

    list_of: np.ndarray
    lists: int
    element: np.ndarray
    index: np.ndarray
    open: np.ndarray
    values: Sequence[str]

    def rows(self, passed: np.ndarray) -> np.ndarray:
        """bool[n]: rows with an element that passed (bool[m])."""
        lists = np.zeros(self.lists + 1, np.bool_)
        lists[self.element[passed]] = True
        return np.asarray(lists[self.list_of])


class _Source:
    """Columns of n exchanges. A method returns None where this source does not have what is asked for; then only the
    full test can tell."""

    n: int

    def integers(self, name: str) -> Ints | None:
        """A column of integers, times as microseconds since 1970; `api` is the key of an API that Kafka has."""
        raise NotImplementedError

    def texts(self, name: str) -> Coded | None:
        """A column of text."""
        raise NotImplementedError

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        """Columns of address and port; the values are (ip, port)."""
        raise NotImplementedError

    def topics(self, name: str) -> Listed | None:
        """A column of lists of text."""
        raise NotImplementedError

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The errors: int64[m] row of each, int64[m] its code."""
        raise NotImplementedError

    def api_keys(self) -> np.ndarray:
        """int64[n]: the key of the API, -1 where there is none."""
        found = self.integers("api_key")
        if found is None:
            return np.full(self.n, -1, np.int64)
        return np.where(found[1], found[0], -1)


Verdict = tuple[np.ndarray, np.ndarray]  # bool[n] surely true, bool[n] surely false


def _tested(test: Test, values: np.ndarray) -> np.ndarray:
    """A test on int64[n]."""
    if isinstance(test, Whole):
        return test.many(values)
    distinct, where = np.unique(values, return_inverse=True)
    passed = np.fromiter(map(test, distinct.tolist()), np.bool_, len(distinct))
    return np.asarray(passed[where])


def _distinct(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in use of 0 ... count - 1, in order, and the place of each among them; like `np.unique`, faster."""
    used = np.zeros(count, np.bool_)
    used[numbers] = True
    found = np.flatnonzero(used)
    place = np.zeros(count, np.int64)
    place[found] = np.arange(len(found))
    return found, place[numbers]


def _looked_up(test: Test, found: Coded) -> np.ndarray:
    """A test on distinct values, of which only those in use are tested."""
    indices, present, values = found
    used = np.zeros(len(values) + 1, np.bool_)
    used[np.where(present, indices, len(values))] = True
    passed = np.zeros(len(values) + 1, np.bool_)
    for i in np.flatnonzero(used[:-1]).tolist():
        passed[i] = test(values[i])
    return np.asarray(passed[np.where(present, indices, len(values))])


def _any_of(n: int, rows: np.ndarray, passed: np.ndarray) -> np.ndarray:
    """Rows that have an element that passed."""
    out = np.zeros(n, np.bool_)
    out[rows[passed]] = True
    return out


def _known(passed: np.ndarray) -> Verdict:
    return passed, ~passed


def _unknown(n: int) -> Verdict:
    return np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def _about_columns(source: _Source, node: Comparison, about: Columns) -> Verdict:
    present, test = node.present, node.test
    if about.form in ("integer", "time", "api"):
        passed = np.zeros(source.n, np.bool_)
        for name in about.names:
            ints = source.integers(name)
            if ints is None:
                return _unknown(source.n)
            passed |= ints[1] if test is None else ints[1] & _tested(test, ints[0])
    elif about.form in ("text", "address"):
        found = source.texts(about.names[0]) if about.form == "text" else source.addresses(about.names)
        if found is None:
            return _unknown(source.n)
        passed = found[1] if test is None else _looked_up(test, found)
    elif about.form == "errors":
        errors = source.codes()
        if errors is None:
            return _unknown(source.n)
        passed = _any_of(source.n, errors[0], np.ones(len(errors[0]), np.bool_) if test is None else
                         _tested(test, errors[1]))  # fmt: skip
    else:
        listed = source.topics(about.names[0])
        if listed is None:
            return _unknown(source.n)
        everything = np.ones(len(listed.index), np.bool_)
        if test is None:
            passed = listed.rows(everything)
        else:
            right = _looked_up(test, (listed.index, everything, listed.values))
            true = listed.rows(right & ~listed.open)
            return true, ~true & ~listed.rows(listed.open)
    return _known(~passed if present is False else passed)


def _about_path(source: _Source, node: Comparison) -> Verdict:
    """What the columns tell about a field of a body: it is not there in an API that does not have it, and a test may
    imply one of a column."""
    keys = source.api_keys()
    possible = np.zeros(source.n, np.bool_)
    for choice in node.choices:
        here = np.isin(keys, list(choice.apis))
        if choice.implies is not None and here.any():
            assert isinstance(choice.implies.about, Columns)
            never = _about_columns(source, choice.implies, choice.implies.about)[1]
            never &= ~(_many_errors(source) if choice.implies.about.form == "errors" else _odd_topics(source))
            here &= ~never
        possible |= here
    nothing = np.zeros(source.n, np.bool_)
    return (~possible, nothing) if node.present is False else (nothing, ~possible)


def _many_errors(source: _Source) -> np.ndarray:
    """Responses with so many different errors that the table may not list all."""
    errors = source.codes()
    if errors is None:
        return np.ones(source.n, np.bool_)
    return np.asarray(np.bincount(errors[0], minlength=source.n) >= MAX_CODES)


def _odd_topics(source: _Source) -> np.ndarray:
    """Exchanges with a topic that is not UTF-8: the table shows such bytes as `\\xNN`, bodies show them otherwise. In
    good names there is no backslash."""
    listed = source.topics("topics")
    if listed is None:
        return np.ones(source.n, np.bool_)
    used, where = _distinct(listed.index, len(listed.values))
    odd = np.fromiter(("\\" in listed.values[i] for i in used.tolist()), np.bool_, len(used))
    return listed.rows(odd[where])


def _verdict(node: Node, leaf: Callable[[Comparison], Verdict]) -> Verdict:
    """Surely true, surely false (Kleene's logic of three values)."""
    if isinstance(node, Comparison):
        return leaf(node)
    if isinstance(node, Not):
        true, false = _verdict(node.part, leaf)
        return false, true
    true, false = _verdict(node.parts[0], leaf)
    for part in node.parts[1:]:
        more_true, more_false = _verdict(part, leaf)
        if isinstance(node, And):
            true, false = true & more_true, false | more_false
        else:
            true, false = true | more_true, false & more_false
    return true, false


def _judge(node: Node, source: _Source) -> Verdict:
    def leaf(comparison: Comparison) -> Verdict:
        if isinstance(comparison.about, Columns):
            return _about_columns(source, comparison, comparison.about)
        return _about_path(source, comparison)

    return _verdict(node, leaf)


class _Arrow(_Source):
    """An Arrow table of exchanges; text may be dictionary-encoded."""

    def __init__(self, table: pa.Table, topic_name: TopicName | None) -> None:
        self.table = table
        self.topic_name = topic_name
        self.n = len(table)
        self._kept: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        array = self._kept.get(name)
        if array is None:
            column = self.table.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            array = column.combine_chunks()
            if isinstance(array, pa.ChunkedArray):  # some versions leave a column of no rows as it is
                array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
            self._kept[name] = array
        return array

    def integers(self, name: str) -> Ints | None:
        array = self._array("api_key" if name == "api" else name)
        present = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        kind = pa.int64()
        if pa.types.is_null(array.type):
            values = np.zeros(self.n, np.int64)
        else:
            values = array.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        if name == "api":
            present = present & np.asarray(self._array("api").is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return values, present

    def _coded(self, array: Any) -> Coded:
        if pa.types.is_null(array.type):
            return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_), ()
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        values = array.dictionary.to_pylist()
        indices = array.indices.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        present = np.asarray(array.indices.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        if None in values:
            missing = np.fromiter((value is None for value in values), np.bool_, len(values))
            present = present & ~missing[indices]
        return indices, present, values

    def texts(self, name: str) -> Coded | None:
        return self._coded(self._array(name))

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        indices, has_ip, ips = self._coded(self._array(names[0]))
        ports = self.integers(names[1])
        assert ports is not None
        present = has_ip & ports[1]
        pairs, where = np.unique(np.where(present, indices << 16 | ports[0], 0), return_inverse=True)
        values = [(ips[pair >> 16] if ips else "", pair & 0xFFFF) for pair in pairs.tolist()]
        return where, present, values

    def topics(self, name: str) -> Listed | None:
        rows, elements = self._flat(name)
        indices, present, values = self._coded(elements)
        if self.topic_name is not None:
            values = [value if value is None else self.topic_name(value) for value in values]
        open_ = np.zeros(int(present.sum()), np.bool_)
        return Listed(np.arange(self.n), self.n, rows[present], indices[present], open_, values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        rows, elements = self._flat("errors")
        codes = elements.field("code").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return rows, codes

    def _flat(self, name: str) -> tuple[np.ndarray, Any]:
        """A column of lists: each element's row, and the elements."""
        array = self._array(name)
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return np.repeat(np.arange(self.n), lengths), array.flatten()


@dataclass(slots=True)
class Names:
    """What the symbols in rows of integers stand for; the lists may grow while they are in use.

    strings      distinct strings by number
    lists        distinct lists by number: of numbers of strings (topics), or of code, count, code, count ... (errors)
    connections  name of each connection
    ends         numbers of client address, client port, broker address, broker port of each connection (addresses as
                 numbers of strings)
    capture      name of the capture point
    topic_name   the name for a topic's id, as far as it is known (else what was given); without it, ids stay open
    """

    strings: Sequence[str]
    lists: Sequence[tuple[int, ...]]
    connections: Sequence[str]
    ends: Sequence[tuple[int, int, int, int]]
    capture: str
    topic_name: TopicName | None = None


_X_INTEGERS: Final = {
    "exchange": s.X_EXCHANGE, "reply": s.X_REPLY, "api_key": s.X_API_KEY, "api_version": s.X_API_VERSION,
    "correlation_id": s.X_CORRELATION_ID, "request_bytes": s.X_REQUEST_BYTES, "response_bytes": s.X_RESPONSE_BYTES,
    "error_code": s.X_ERROR, "acks": s.X_ACKS, "max_wait_ms": s.X_MAX_WAIT, "min_bytes": s.X_MIN_BYTES,
    "generation": s.X_GENERATION, "request_packet": s.X_REQUEST_NUMBER, "response_packet": s.X_RESPONSE_NUMBER,
}  # fmt: skip
_X_TIMES: Final = {
    "request_time": s.X_REQUEST_FIRST_NS, "request_end": s.X_REQUEST_LAST_NS,
    "response_time": s.X_RESPONSE_FIRST_NS, "response_end": s.X_RESPONSE_LAST_NS,
}  # fmt: skip
_X_STATED: Final = {
    "status": s.X_STATUS, "request_state": s.X_REQUEST_STATE, "response_state": s.X_RESPONSE_STATE,
}  # fmt: skip
_X_TEXTS: Final = {
    "client_id": s.X_CLIENT_ID, "group_id": s.X_GROUP, "member_id": s.X_MEMBER,
    "transactional_id": s.X_TRANSACTIONAL_ID,
}  # fmt: skip
_ID_LENGTH: Final = 22
"""A topic that was only named by its id shows as the id; its name may be learned from another message."""


class _Rows(_Source):
    """Rows of integers: `x` int64[X_COLUMNS, n], numbers of connections int64[n] or None, names or None."""

    def __init__(self, x: np.ndarray, connection: np.ndarray | None, names: Names | None) -> None:
        self.x = x
        self.n = x.shape[1]
        self.connection = connection if names is not None else None
        self.names = names

    def _micros(self, name: str) -> Ints:
        nanos = self.x[_X_TIMES[name]]
        return nanos // 1000, nanos != s.NULL

    def _between(self, first: str, last: str) -> Ints:
        a, b = self._micros(first), self._micros(last)
        present = a[1] & b[1]
        return np.where(present, b[0] - a[0], 0), present

    def integers(self, name: str) -> Ints | None:
        if name in _X_INTEGERS:
            values = self.x[_X_INTEGERS[name]]
            return values, values != s.NULL
        if name in _X_TIMES:
            return self._micros(name)
        if name == "latency_us":
            values, present = self._between("request_end", "response_time")
            return values, present & (values >= 0)
        if name == "total_us":
            return self._between("request_time", "response_end")
        if name == "throttle_us":
            throttle = self.x[s.X_THROTTLE]
            present = throttle != s.NULL
            return np.where(present, throttle, 0) * 1000, present
        if name == "api":
            keys = self.x[s.X_API_KEY]
            return keys, (keys >= 0) & (keys < len(schema.apis()))
        if name in ("client_port", "broker_port"):
            return self._end(1 if name == "client_port" else 3)
        return None

    def _end(self, which: int) -> Ints | None:
        """One of the four numbers in `Names.ends`, for each row."""
        if self.connection is None or self.names is None:
            return None
        used, where = _distinct(self.connection, len(self.names.ends))
        ends = np.array([self.names.ends[i][which] for i in used.tolist()], np.int64)
        return ends[where], np.ones(self.n, np.bool_)

    def texts(self, name: str) -> Coded | None:
        if name in _X_STATED:
            numbers = self.x[_X_STATED[name]]
            return numbers, numbers != s.NULL, STATED[name]
        names = self.names
        if names is None:
            return None
        if name in _X_TEXTS:
            numbers = self.x[_X_TEXTS[name]]
            return numbers, numbers != s.NULL, names.strings
        everywhere = np.ones(self.n, np.bool_)
        if name == "capture":
            return np.zeros(self.n, np.int64), everywhere, (names.capture,)
        if self.connection is None:
            return None
        if name == "connection":
            return self.connection, everywhere, names.connections
        ends = self._end(0 if name == "client_ip" else 2) if name in ("client_ip", "broker_ip") else None
        return None if ends is None else (*ends, names.strings)

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        if self.connection is None or self.names is None:
            return None
        first = 0 if names[0] == "client_ip" else 2
        known = self.names
        used, where = _distinct(self.connection, len(self.names.ends))
        values = [(known.strings[known.ends[i][first]], known.ends[i][first + 1]) for i in used.tolist()]
        return where, np.ones(self.n, np.bool_), values

    def topics(self, name: str) -> Listed | None:
        if self.names is None:
            return None
        numbers = self.x[s.X_TOPICS]
        count = len(self.names.lists)
        used, place = _distinct(np.where(numbers == s.NULL, count, numbers), count + 1)
        lists = [self.names.lists[i] for i in used.tolist() if i < count]
        sizes = np.array([len(one) for one in lists], np.int64)
        flat = np.array([number for one in lists for number in one], np.int64)
        strings = self.names.strings
        distinct, index = _distinct(flat, len(strings))
        values = [strings[i] for i in distinct.tolist()]
        open_ = np.fromiter((len(value) == _ID_LENGTH for value in values), np.bool_, len(values))
        if self.names.topic_name is not None:
            values = list(map(self.names.topic_name, values))
            open_[:] = False
        # A row without a list is in the place after the last list, if there is such a row.
        return Listed(place, len(lists), np.repeat(np.arange(len(lists)), sizes), index, open_[index], values)

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self.names is None:
            return None
        has = np.flatnonzero(self.x[s.X_ERRORS] != s.NULL)
        used, where = _distinct(self.x[s.X_ERRORS, has], len(self.names.lists))
        lists = [self.names.lists[i][::2] for i in used.tolist()]
        lengths = np.array([len(one) for one in lists], np.int64)
        flat = np.array([code for one in lists for code in one], np.int64)
        sizes = lengths[where]
        # Element j of a row's list is `flat` at where that list starts, plus j.
        start = (np.cumsum(lengths) - lengths)[where] - (np.cumsum(sizes) - sizes)
        return np.repeat(has, sizes), flat[np.arange(sizes.sum()) + np.repeat(start, sizes)]


class _Apis(_Source):
    """One row for each number that an API could have, and one without: which of them can match at all?"""

    def __init__(self) -> None:
        self.keys = np.arange(-(1 << 15), (1 << 15) + 1)
        self.n = len(self.keys)
        self.present = self.keys < 1 << 15

    def integers(self, name: str) -> Ints | None:
        if name == "api_key":
            return self.keys, self.present
        if name == "api":
            return self.keys, (self.keys >= 0) & (self.keys < len(schema.apis()))
        return None

    def texts(self, name: str) -> Coded | None:
        return None

    def addresses(self, names: tuple[str, ...]) -> Coded | None:
        return None

    def topics(self, name: str) -> Listed | None:
        return None

    def codes(self) -> tuple[np.ndarray, np.ndarray] | None:
        return None


# --- one exchange -----------------------------------------------------------------------------------------------------


def _column_values(row: dict[str, Any], about: Columns) -> list[Any]:
    """The values, nulls left out, of one exchange's columns."""
    if about.form == "api":
        return [row["api_key"]] if row["api"] is not None and row["api_key"] is not None else []
    if about.form == "errors":
        return [error["code"] for error in row["errors"] or ()]
    if about.form == "address":
        pair = tuple(row[name] for name in about.names)
        return [] if None in pair else [pair]
    found = []
    for name in about.names:
        value = row[name]
        if value is not None:
            found.extend(value) if about.form == "topics" else found.append(value)
    found = [value for value in found if value is not None]
    return [micros(value) for value in found] if about.form == "time" else found


def _body_values(body: dict[str, Any] | None, parts: tuple[str, ...]) -> list[Any]:
    """All values at a path, elements of lists one by one, nulls left out."""
    current: list[Any] = [] if body is None else [body]
    for part in parts:
        found: list[Any] = []
        for one in current:
            value = one.get(part) if isinstance(one, dict) else None
            if isinstance(value, list):
                found.extend(value)
            elif value is not None:
                found.append(value)
        current = found
    return [value for value in current if value is not None]


@dataclass(frozen=True, slots=True)
class IntegerTest:
    """`column` (of the table `exchanges`; `status` as its number in `analyzer.state`) must be `operator` (`==`, `!=`,
    `<=`, `>=`, `in`) than `value`; null never passes."""

    column: str
    operator: str
    value: int | tuple[int, ...]


@dataclass(frozen=True)
class Filter:
    """A parsed filter; equal ones have equal trees. `str()` is an expression that parses to the same."""

    root: Node

    def __str__(self) -> str:
        return _source(self.root)

    # -- what it needs --------------------------------------------------------------------------------------------
    def _comparisons(self) -> list[Comparison]:
        found: list[Comparison] = []
        todo: list[Node] = [self.root]
        while todo:
            node = todo.pop()
            if isinstance(node, Comparison):
                found.append(node)
            else:
                todo.extend((node.part,) if isinstance(node, Not) else node.parts)
        return found

    def _needs(self, side: str) -> bool:
        return any(isinstance(one.about, Path) and one.about.side == side for one in self._comparisons())

    @functools.cached_property
    def needs_request(self) -> bool:
        """Is there a field of the request's body that the columns do not have?"""
        return self._needs("request")

    @functools.cached_property
    def needs_response(self) -> bool:
        """The same for the response."""
        return self._needs("response")

    @property
    def needs_bodies(self) -> bool:
        """Can there be exchanges for which the columns are not enough?"""
        return self.needs_request or self.needs_response

    @functools.cached_property
    def apis(self) -> frozenset[int] | None:
        """The keys of the APIs whose exchanges it can match at all; None: any, or exchanges without a known API too.
        Empty: it can never match."""
        source = _Apis()
        possible = ~_judge(self.root, source)[1]
        if possible[-1] or possible.sum() > len(schema.apis()):
            return None
        return frozenset(source.keys[possible].tolist())

    # -- many rows --------------------------------------------------------------------------------------------------
    def cheap(self, table: pa.Table, topic_name: TopicName | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of a table of exchanges: bool[n] surely matches, surely does not, needs the bodies to tell. Only the columns
        that the filter names (and `api_key`, and for paths `errors` and `topics`) must be there. `topic_name` gives
        the name for a topic's id; without it `topics` is taken as it stands."""
        true, false = _judge(self.root, _Arrow(table, topic_name))
        return true, false, ~(true | false)

    def rows_verdict(
        self, x: np.ndarray, connection: np.ndarray | None = None, names: Names | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of rows of integers (int64[X_COLUMNS, n] as in `analyzer.state`): bool[n] surely matches, surely does not.
        Without `connection` and `names`, comparisons of text are open."""
        return _judge(self.root, _Rows(x, connection, names))

    def rows_mask(self, x: np.ndarray, connection: np.ndarray | None = None, names: Names | None = None) -> np.ndarray:
        """bool[n]: the rows that may match."""
        return ~self.rows_verdict(x, connection, names)[1]

    def integer_tests(self) -> tuple[IntegerTest, ...]:
        """Tests that an exchange passes if it matches, all of them; more may be needed. They are the comparisons of
        integers that the outermost `and` joins."""
        found: list[IntegerTest] = []
        if self.apis is not None:
            found.append(IntegerTest("api_key", "in", tuple(sorted(self.apis))))
        parts = self.root.parts if isinstance(self.root, And) else (self.root,)
        for part in parts:
            if isinstance(part, Comparison) and isinstance(part.about, Columns) and part.present is not False:
                found.extend(_integer_tests(part, part.about))
        return tuple(found)

    # -- one row ----------------------------------------------------------------------------------------------------
    def matches(
        self, row: dict[str, Any], request: dict[str, Any] | None = None, response: dict[str, Any] | None = None
    ) -> bool:
        """Does one exchange match? `row` has the columns of `exchanges` as in `Table.to_pylist()`; the bodies have
        Kafka's JSON names as `analyzer.tree` makes them, None where not decoded."""
        return _matches(self.root, row, request, response)


def _matches(node: Node, row: dict[str, Any], request: dict[str, Any] | None, response: dict[str, Any] | None) -> bool:
    if isinstance(node, And):
        return all(_matches(part, row, request, response) for part in node.parts)
    if isinstance(node, Or):
        return any(_matches(part, row, request, response) for part in node.parts)
    if isinstance(node, Not):
        return not _matches(node.part, row, request, response)
    if isinstance(node.about, Columns):
        values = _column_values(row, node.about)
        if node.present is not None:
            return bool(values) == node.present
        return node.test is not None and any(map(node.test, values))
    choices = [choice for choice in node.choices if row["api_key"] in choice.apis]
    if not choices:
        return node.present is False
    values = _body_values(request if node.about.side == "request" else response, node.about.parts)
    if node.present is not None:
        return bool(values) == node.present
    return any(
        choice.test is not None and type(value) in choice.takes and choice.test(value)
        for choice in choices
        for value in values
    )


def _integer_tests(node: Comparison, about: Columns) -> list[IntegerTest]:
    if about.form == "errors":
        return [IntegerTest("error_code", "!=", 0)]
    if len(about.names) != 1 or node.test is None:
        return []
    name = about.names[0]
    if name == "status":
        numbers = tuple(i for i, text in enumerate(STATED["status"]) if node.test(text))
        return [IntegerTest("status", "in", numbers)]
    test = node.test
    if about.form not in ("integer", "time") or not isinstance(test, Whole) or test.daytimes:
        return []
    if test.negated:
        return [IntegerTest(name, "!=", low) for low, high in test.spans if low == high]
    if all(low == high for low, high in test.spans):
        values = tuple(low for low, _ in test.spans)
        return [IntegerTest(name, "==", values[0]) if len(values) == 1 else IntegerTest(name, "in", values)]
    low, high = test.spans[0][0], test.spans[-1][1]
    found = [] if low == INT64_MIN else [IntegerTest(name, ">=", low)]
    return found if high == INT64_MAX else [*found, IntegerTest(name, "<=", high)]
