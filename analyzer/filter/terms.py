"""Comparisons of a filter: a name with values, or a name with another name.

In: a name, an operator and values, as typed. Out: a `Comparison`, bound to columns of the table `exchanges` or to a
path in the decoded bodies, with its values turned into tests; or, if the value is a name too, a `Relation`. Rule: every
mistake is reported here, before a capture is opened: unknown names, wrong units, APIs, errors and statuses that Kafka
does not have, paths that no API has, invalid regular expressions. `FILTER.md` describes the language.
"""

from __future__ import annotations

import itertools
import operator as operators
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from kwire.analyzer.common import address_names
from kwire.analyzer.filter import names
from kwire.analyzer.filter import values as v
from kwire.analyzer.filter.conditions import Test, TextTest
from kwire.analyzer.filter.names import Columns, Operand, Path, PathInfo, body_values
from kwire.analyzer.filter.tokens import Word, WordError
from kwire.analyzer.protocol import errors as kafka_errors

# --- comparisons ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApiTest:
    """The test of a path in bodies of some APIs: a path may have different types in different APIs.

    takes    Python types of the values that the test applies to
    implies  a test of columns that passes wherever this one does, so that most bodies need not be decoded
    """

    apis: frozenset[int]
    takes: tuple[type, ...]
    test: Test | None
    implies: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of columns or a path (`about`) with values; true if any value passes.

    present  True for `is not null`, False for `is null`, None for a test
    source   the comparison as text
    test     the test, for columns
    choices  the tests by API, for a path
    """

    about: Columns | Path
    present: bool | None
    source: str = field(compare=False)
    test: Test | None = None
    choices: tuple[ApiTest, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of two names; true if any pair of values passes. If both are paths into one list, values of the same
    element are compared. `source`: the comparison as text."""

    left: Operand
    operator: str
    right: Operand
    source: str = field(compare=False)

    def pairs(self, row: Mapping[str, Any], request: Any, response: Any) -> Iterator[tuple[Any, Any]]:
        """Pair the values of one exchange that are to be compared."""
        left_about, right_about = self.left.about, self.right.about
        if not (isinstance(left_about, Path) and isinstance(right_about, Path) and left_about.side == right_about.side):
            yield from itertools.product(
                self.left.values(row, request, response), self.right.values(row, request, response)
            )
            return
        if not all(operand.apis is not None and row["api_key"] in operand.apis for operand in (self.left, self.right)):
            return
        shared = 0
        while (
            shared < min(len(left_about.parts), len(right_about.parts)) - 1
            and left_about.parts[shared] == right_about.parts[shared]
        ):
            shared += 1
        for element in body_values(request if left_about.side == "request" else response, left_about.parts[:shared]):
            for left, right in itertools.product(
                body_values(element, left_about.parts[shared:]), body_values(element, right_about.parts[shared:])
            ):
                if type(left) in names.TYPES[self.left.kind] and type(right) in names.TYPES[self.right.kind]:
                    yield left, right

    def holds(self, left: Any, right: Any) -> Any:
        """Compare two values, or two arrays element by element."""
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

_COMPARABLE: Final = {
    "integer": "a number",
    "code": "a number",
    "float64": "a number",
    "duration": "a duration",
    "size": "a size",
    "time": "a time",
    "text": "text",
    "bool": "true or false",
}
"""By kind: the group of kinds whose names can be compared with each other."""

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
        *address_names.COLUMNS,
    )
)
"""Bare words that are names, not values, when compared with a name of text. Other words are values: topics and clients
may be called `topic` or `errors`."""


def _right_operand(left: Operand, operator: Word, values: Sequence[Word]) -> Operand | None:
    """Resolve the value as a name; None if it is a value. Raises WordError if the two names cannot be compared."""
    if operator.text not in _HOLDS or values[0].end - values[0].start != len(values[0].text):
        return None  # a quoted word is a value
    value = names.without_brackets(values[0])
    path = value.text in names.paths()
    if left.kind in ("text", "bool", "topics"):
        if not path and (left.kind == "bool" or value.text not in TEXT_NAMES):
            return None
    elif not path and value.text not in names.names():
        return None
    elif left.kind not in _COMPARABLE and not path:
        return None
    right = names.resolve(value)
    left_kind, right_kind = _COMPARABLE.get(left.kind), _COMPARABLE.get(right.kind)
    if left_kind is None or right_kind is None or left_kind != right_kind:
        text = f"`{left.word}` is {left_kind or 'no single value'}, `{right.word}` is {right_kind or 'no single value'}"
        raise WordError(values[0], f"{text}: they cannot be compared", "in quotes a name is a value")
    if left_kind in ("text", "true or false") and operator.text not in ("==", "!="):
        raise WordError(operator, f"`{operator.text}` does not go with {left_kind}", "what does: `==`, `!=`")
    return right


# --- names beside values ----------------------------------------------------------------------------------------------

_FAMILIES: Final[dict[str, v.Binder]] = {
    "size": v.integers_of(v.SIZE),
    "code": v.codes_of,
    "duration": v.integers_of(v.DURATION, 1000, 1000),
    "integer": v.integers_of(v.PLAIN),
    "text": v.words_of,
    "bool": v.bools_of,
    "float64": v.reals_of,
}


def _binder(column: Operand) -> v.Binder:
    """Choose how values that a column is compared with are read."""
    assert isinstance(column.about, Columns)
    name = column.about.names[0]
    if column.kind == "duration":
        if column.unit != 1:
            return v.integers_of(v.DURATION, column.unit, column.unit)
        return v.integers_of(v.DURATION, 1 if column.word == name else None)
    if name in v.ENUMERATED:
        return v.enumerated_as(name)
    return {
        "api": v.apis_of,
        "errors": v.errors_of,
        "code": v.codes_of,
        "topics": v.words_of,
        "text": v.words_of,
        "time": v.moments_of,
        "address": v.addresses_of,
        "size": v.integers_of(v.SIZE),
        "integer": v.integers_of(v.PLAIN),
    }[column.kind]


def _opaque(name: Word, operator: Word) -> WordError:
    secret = any(info.secret for info in names.paths()[name.text])
    if secret:
        hint = "write `is null` or `is not null`"
        return WordError(operator, f"`{name.text}` is secret: it cannot be compared", hint)
    inner = sorted((path for path in names.paths() if path.startswith(name.text + ".")), key=len)[:3]
    hint = f"write `is null` or `is not null`{', or go on to a field in it: ' if inner else ''}" + ", ".join(
        f"`{path}`" for path in inner
    )
    return WordError(operator, f"`{name.text}` has no single value", hint)


def _implied_comparison(about: Path, infos: Sequence[PathInfo], test: Test) -> Comparison | None:
    """Derive a test of columns that passes wherever the test of a field does: every error of a response other than 0 is
    in `errors`, every topic name in `topics`."""
    if all(info.listed == "errors" for info in infos) and not test(kafka_errors.NONE):
        return Comparison(Columns(("errors",), "errors"), None, "", test)
    if all(info.listed == "topics" for info in infos) and isinstance(test, TextTest):
        return Comparison(Columns(("topics",), "topics"), None, "", test)
    return None


def _path(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison:
    infos = names.paths()[name.text]
    column = names.PATH_COLUMNS.get(name.text)
    if column is not None:
        scale = v.SIZE if name.text.endswith("Bytes") else v.DURATION if name.text.endswith("Ms") else v.PLAIN
        smallest = 1000 if scale is v.DURATION else 1
        about = Columns((column[0],), "integer")
        if operator.text in ("is null", "is not null"):
            return Comparison(about, operator.text == "is not null", source)
        return Comparison(about, None, source, v.integers_of(scale, smallest, smallest // column[1])(operator, values))
    path = names.path_of(name.text)
    if operator.text in ("is null", "is not null"):
        everywhere = ApiTest(frozenset(info.api_key for info in infos), (), None)
        return Comparison(path, operator.text == "is not null", source, choices=(everywhere,))
    families: dict[str, list[PathInfo]] = {}
    for info in infos:
        families.setdefault(names.family(name.text, info), []).append(info)
    choices: list[ApiTest] = []
    problem: WordError | None = None
    for kind, members in families.items():
        if kind == "opaque":
            problem = problem or _opaque(name, operator)
            continue
        try:
            test = _FAMILIES[kind](operator, values)
        except WordError as error:
            problem = error
            continue
        apis = frozenset(info.api_key for info in members)
        choices.append(ApiTest(apis, names.TYPES[kind], test, _implied_comparison(path, members, test)))
    if not choices:
        assert problem is not None
        raise problem
    return Comparison(path, None, source, choices=tuple(choices))


def _of_payload(path: Path, operator: Word, values: Sequence[Word], source: str) -> Comparison:
    """Bind a comparison to a field of decoded keys or values."""
    if operator.text in ("is null", "is not null"):
        everywhere = ApiTest(names.PAYLOAD_APIS, (), None)
        return Comparison(path, operator.text == "is not null", source, choices=(everywhere,))
    choice = ApiTest(names.PAYLOAD_APIS, (bool, int, Decimal, str), v.decoded_of(operator, values))
    return Comparison(path, None, source, choices=(choice,))


def compare(name: Word, operator: Word, values: Sequence[Word], source: str) -> Comparison | Relation:
    """Bind a comparison to columns or a path. `operator`: == != < <= > >= ~ !~, `in`, `not in`, `is null` or `is not
    null`. Raises WordError."""
    payload = names.payload_path(name.text)
    if payload is not None:
        return _of_payload(payload, operator, values, source)
    name = names.without_brackets(name)
    left = names.resolve(name)
    right = _right_operand(left, operator, values) if values else None
    if right is not None:
        return Relation(left, operator.text, right, source)
    if name.text in names.paths():
        return _path(name, operator, values, source)
    assert isinstance(left.about, Columns)
    if operator.text in ("is null", "is not null"):
        return Comparison(left.about, operator.text == "is not null", source)
    return Comparison(left.about, None, source, _binder(left)(operator, values))
