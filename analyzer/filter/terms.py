"""The comparisons of a filter: what a value means beside a name, and which names go together.

In: a name, an operator and values, as typed. Out: a `Comparison`, bound to columns of the table `exchanges` or to a
path in the decoded bodies, whose values have become tests on integers, text or addresses; or, where the value is a name
too, a `Relation`. Rule: everything that can be wrong is found here, before a capture is opened: unknown names, wrong
units, names of APIs, errors and statuses that Kafka does not have, paths that no API has, bad regular expressions.
`FILTER.md` is the language for people.
"""

from __future__ import annotations

import itertools
import operator as operators
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.filter.conditions import Test, Text
from analyzer.filter.names import (
    PATH_COLUMNS,
    TYPES,
    Columns,
    Info,
    Named,
    Path,
    body_values,
    family,
    named,
    names,
    path_of,
    paths,
    spelled,
)
from analyzer.filter.tokens import Word, WordProblem
from analyzer.filter.values import (
    DURATION,
    PLAIN,
    SIZE,
    STATED,
    Binder,
    addresses_of,
    apis_of,
    bools_of,
    codes_of,
    errors_of,
    integers_of,
    moments_of,
    reals_of,
    stated_as,
    words_of,
)
from analyzer.protocol import errors as kafka_errors

# --- what a comparison is about ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """The test for bodies of some APIs: a path may have different types in different APIs. `takes` are the Python types
    of the values in a body that the test is for. `implies` is a test of columns that holds wherever this one does,
    so that most bodies need not be decoded."""

    apis: frozenset[int]
    takes: tuple[type, ...]
    test: Test | None
    implies: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`about` has a value that passes. `present`: True for `is not null`, False for `is null`, None for a test.
    Of columns `test` holds; of a path `choices`. `source` is the comparison as text."""

    about: Columns | Path
    present: bool | None
    source: str = field(compare=False)
    test: Test | None = None
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """A value of `left` and one of `right` compare as `operator` says. Where both are paths into one list, the values
    of each element are compared with each other, not with those of another. `source` is the comparison as text."""

    left: Named
    operator: str
    right: Named
    source: str = field(compare=False)

    def pairs(self, row: Mapping[str, Any], request: Any, response: Any) -> Iterator[tuple[Any, Any]]:
        """The values to compare of one exchange."""
        one, other = self.left.about, self.right.about
        if not (isinstance(one, Path) and isinstance(other, Path) and one.side == other.side):
            yield from itertools.product(
                self.left.values(row, request, response), self.right.values(row, request, response)
            )
            return
        if not all(named.apis is not None and row["api_key"] in named.apis for named in (self.left, self.right)):
            return
        shared = 0
        while shared < min(len(one.parts), len(other.parts)) - 1 and one.parts[shared] == other.parts[shared]:
            shared += 1
        for element in body_values(request if one.side == "request" else response, one.parts[:shared]):
            for left, right in itertools.product(
                body_values(element, one.parts[shared:]), body_values(element, other.parts[shared:])
            ):
                if type(left) in TYPES[self.left.kind] and type(right) in TYPES[self.right.kind]:
                    yield left, right

    def holds(self, left: Any, right: Any) -> Any:
        """Do two values, or two arrays of them, compare as asked?"""
        if self.left.unit != 1:
            left = left * self.left.unit
        if self.right.unit != 1:
            right = right * self.right.unit
        return _HOLDS[self.operator](left, right)


_HOLDS: Final[dict[str, Any]] = {
    "==": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}

# --- names beside names -----------------------------------------------------------------------------------------------

_ALIKE: Final = {
    "integer": "a number",
    "code": "a number",
    "float64": "a number",
    "duration": "a duration",
    "size": "a size",
    "time": "a time",
    "text": "text",
    "bool": "true or false",
}
"""By kind: what a name of it can be compared with, another name of the same."""

TEXT_NAMES: Final = frozenset(
    (
        "client_id",
        "client_ip",
        "broker_ip",
        "group_id",
        "member_id",
        "transactional_id",
        "request_file",
        "response_file",
    )
)
"""Names that are no text beside a name of text. Others are: topics and clients may be called `topic` or `errors`."""


def _other(left: Named, operator: Word, values: Sequence[Word]) -> Named | None:
    """What the value names, where it is a name and no value."""
    if operator.text not in _HOLDS or values[0].end - values[0].start != len(values[0].text):
        return None  # in quotes, it is a value
    value = spelled(values[0])
    path = value.text in paths()
    if left.kind in ("text", "bool", "topics"):
        if not path and (left.kind == "bool" or value.text not in TEXT_NAMES):
            return None
    elif not path and value.text not in names():
        return None
    elif left.kind not in _ALIKE and not path:
        return None
    right = named(value)
    one, other = _ALIKE.get(left.kind), _ALIKE.get(right.kind)
    if one is None or other is None or one != other:
        said = f"`{left.word}` is {one or 'no single value'}, `{right.word}` is {other or 'no single value'}"
        raise WordProblem(values[0], f"{said}: they cannot be compared", "in quotes a name is a value")
    if one in ("text", "true or false") and operator.text not in ("==", "!="):
        raise WordProblem(operator, f"`{operator.text}` does not go with {one}", "what does: `==`, `!=`")
    return right


# --- names beside values ----------------------------------------------------------------------------------------------

_FAMILIES: Final[dict[str, Binder]] = {
    "size": integers_of(SIZE),
    "code": codes_of,
    "duration": integers_of(DURATION, 1000, 1000),
    "integer": integers_of(PLAIN),
    "text": words_of,
    "bool": bools_of,
    "float64": reals_of,
}


def _binder(column: Named) -> Binder:
    """How the values beside a column are read."""
    assert isinstance(column.about, Columns)
    name = column.about.names[0]
    if column.kind == "duration":
        if column.unit != 1:
            return integers_of(DURATION, column.unit, column.unit)
        return integers_of(DURATION, 1 if column.word == name else None)
    if name in STATED:
        return stated_as(name)
    return {
        "api": apis_of,
        "errors": errors_of,
        "code": codes_of,
        "topics": words_of,
        "text": words_of,
        "time": moments_of,
        "address": addresses_of,
        "size": integers_of(SIZE),
        "integer": integers_of(PLAIN),
    }[column.kind]


def _opaque(name: Word, operator: Word) -> WordProblem:
    secret = any(info.secret for info in paths()[name.text])
    if secret:
        hint = "write `is null` or `is not null`"
        return WordProblem(operator, f"`{name.text}` is secret: it cannot be compared", hint)
    inner = sorted((path for path in paths() if path.startswith(name.text + ".")), key=len)[:3]
    hint = f"write `is null` or `is not null`{', or go on to a field in it: ' if inner else ''}" + ", ".join(
        f"`{path}`" for path in inner
    )
    return WordProblem(operator, f"`{name.text}` has no single value", hint)


def _implied(about: Path, infos: Sequence[Info], test: Test) -> Comparison | None:
    """What the columns must show for the test of a field to pass: every error of a response other than 0 is in
    `errors`, every topic name in `topics`."""
    if all(info.listed == "errors" for info in infos) and not test(kafka_errors.NONE):
        return Comparison(Columns(("errors",), "errors"), None, "", test)
    if all(info.listed == "topics" for info in infos) and isinstance(test, Text):
        return Comparison(Columns(("topics",), "topics"), None, "", test)
    return None


def _path(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison:
    infos = paths()[name.text]
    column = PATH_COLUMNS.get(name.text)
    if column is not None:
        scale = SIZE if name.text.endswith("Bytes") else DURATION if name.text.endswith("Ms") else PLAIN
        smallest = 1000 if scale is DURATION else 1
        about = Columns((column[0],), "integer")
        if operator.text in ("is null", "is not null"):
            return Comparison(about, operator.text == "is not null", source)
        return Comparison(about, None, source, integers_of(scale, smallest, smallest // column[1])(operator, values))
    path = path_of(name.text)
    if operator.text in ("is null", "is not null"):
        everywhere = Choice(frozenset(info.api_key for info in infos), (), None)
        return Comparison(path, operator.text == "is not null", source, choices=(everywhere,))
    families: dict[str, list[Info]] = {}
    for info in infos:
        families.setdefault(family(name.text, info), []).append(info)
    choices: list[Choice] = []
    problem: WordProblem | None = None
    for kind, members in families.items():
        if kind == "opaque":
            problem = problem or _opaque(name, operator)
            continue
        try:
            test = _FAMILIES[kind](operator, values)
        except WordProblem as found:
            problem = found
            continue
        apis = frozenset(info.api_key for info in members)
        choices.append(Choice(apis, TYPES[kind], test, _implied(path, members, test)))
    if not choices:
        assert problem is not None
        raise problem
    return Comparison(path, None, source, choices=tuple(choices))


def compare(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison | Relation:
    """Bind one comparison; `operator` is one of == != < <= > >= ~ !~, `in`, `not in`, `is null`, `is not null`. Raises
    WordProblem."""
    name = spelled(name)
    left = named(name)
    right = _other(left, operator, values) if values else None
    if right is not None:
        return Relation(left, operator.text, right, source)
    if name.text in paths():
        return _path(name, operator, values, source)
    assert isinstance(left.about, Columns)
    if operator.text in ("is null", "is not null"):
        return Comparison(left.about, operator.text == "is not null", source)
    return Comparison(left.about, None, source, _binder(left)(operator, values))
