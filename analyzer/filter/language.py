"""The grammar of the filter language: text to a tree of comparisons.

In: an expression. Out: a tree of `And`, `Or`, `Not` and `Comparison`, its words bound (`terms`). Rules: an invalid
expression raises FilterError, with the position and what is expected there, and nothing else; nesting is bounded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.filter.terms import Comparison, Relation, compare
from kwire.analyzer.filter.tokens import FilterError, Word, WordError

MAX_LENGTH: Final = 1 << 16
"""Characters of a filter. Long lists of values are ordinary; a filter of megabytes is a mistake."""

MAX_DEPTH: Final = 100
"""Levels of parentheses and `not`: evaluation is recursive; filters written by hand rarely exceed five."""

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


Node = And | Or | Not | Comparison | Relation


def _joined(kind: type[And] | type[Or], parts: Iterable[Node]) -> Node:
    """Join parts, flattening those of the same kind: `a and (b and c)` and `a and b and c` give the same tree."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, kind) else (part,))
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def source_of(node: Node) -> str:
    """Write a tree as an expression that parses to the same tree."""
    if isinstance(node, Comparison | Relation):
        return node.source
    if isinstance(node, Not):
        inner = source_of(node.part)
        return f"not {inner}" if isinstance(node.part, Not) else f"not ({inner})"
    sign = " and " if isinstance(node, And) else " or "
    return sign.join(f"({source_of(part)})" if isinstance(part, And | Or) else source_of(part) for part in node.parts)


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
    """A node before its names and values are resolved. `kind`: `and`, `or`, `not`, or `compare`, which has the words of
    a comparison and its source text."""

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
    """Read a value; inside quotes a doubled quotation mark stands for one."""
    text = str(token)
    if token.type == "QUOTED":
        text = text[1:-1].replace(text[0] * 2, text[0])
    return Word(text, int(token.start_pos), int(token.end_pos))


def _written(value: Word) -> str:
    """Write a value, quoted if it was quoted: a bare word may be a name."""
    if value.end - value.start == len(value.text):
        return value.text
    return '"' + value.text.replace('"', '""') + '"'


class _Build:
    """Builds nodes while the parser runs, so that no recursion is as deep as the expression."""

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
    """Build the parser: about 30 ms, once per process, and only if there is a filter."""
    import lark

    build: Any = _Build()
    return lark.Lark(_GRAMMAR, parser="lalr", lexer="contextual", transformer=build, propagate_positions=False)


_EXPECTED: Final = {
    "AND": "`and`",
    "OR": "`or`",
    "NOT": "`not`",
    "IN": "`in`",
    "IS": "`is null`",
    "NULL": "`null`",
    "SIGN": "one of == != < <= > >= ~ !~",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "COMMA": "`,`",
    "$END": "the end",
}
# fmt: off
_OTHERWISE: Final = {
    "=": "write `==`", "&&": "write `and`", "&": "write `and`", "||": "write `or`", "|": "write `or`",
    "!": "write `not`, or `!=`", "contains": "write `~` and a regular expression", "like": "write `~` and a regular "
    "expression", "matches": "write `~` and a regular expression", "eq": "write `==`", "ne": "write `!=`",
    "gt": "write `>`", "lt": "write `<`", "ge": "write `>=`", "le": "write `<=`",
}
# fmt: on


def _expected_text(terminals: Iterable[str]) -> str:
    """Describe the terminals that the parser would accept, as in `a name to compare, `not` or `(``."""
    possible = set(terminals)
    choices = []
    if "QUOTED" in possible:
        choices.append("a value (a word, a number, or quoted text)")
    elif "WORD" in possible:
        choices.append("a name to compare")
    choices += [text for terminal, text in _EXPECTED.items() if terminal in possible]
    if {"SIGN", "IN", "IS"} <= possible:
        choices = ["a comparison: == != < <= > >= ~ !~, `in (...)`, `not in (...)`, `is null`, `is not null`"]
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def _syntax_error(text: str, error: Any) -> FilterError:
    """Convert an error of the parser to a FilterError with a hint."""
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
    expected_text = _expected_text(expected)
    hint = f"expected here: {expected_text}" if expected_text else "see the filter language's documentation"
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


def tree_of(text: str) -> Node:
    """Parse an expression to a tree. Raises FilterError."""
    import lark

    if len(text) > MAX_LENGTH:
        problem = f"the filter is longer than {MAX_LENGTH:,} characters"
        raise FilterError(problem, text, MAX_LENGTH, MAX_LENGTH + 1, "shorten its lists")
    if not text.strip():
        raise FilterError("the filter is empty", text, 0, 1, "write a comparison, as in `api == Produce`")
    try:
        return _bind(_parser().parse(text))
    except _TooDeep as error:
        raise FilterError(
            f"nested deeper than {MAX_DEPTH} levels", text, error.at, error.at + 1, "take some parentheses away"
        ) from None
    except WordError as error:
        raise FilterError(error.problem, text, error.word.start, error.word.end, error.hint) from None
    except lark.UnexpectedInput as error:
        raise _syntax_error(text, error) from None
