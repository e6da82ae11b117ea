"""Filters of exchanges: parse an expression, and evaluate it on rows, columns or single exchanges.

In: an expression such as `api == Produce and latency > 100ms and topic ~ "^orders"` (the language: `FILTER.md`). Out: a
frozen `Filter`, which can be evaluated at three costs:

    rows_verdict(exchanges)   rows of integers, before tables are built from them
    verdict(source)           columns of exchanges
    matches(row, ...)         one exchange with its decoded bodies and records

The first two tell of each row: certainly matches, certainly does not, or undecided until the bodies are decoded. Rules:
an invalid expression raises FilterError and nothing else; a comparison is true if any value passes, so it is false
where there is no value, and `not` of it is then true. For one exchange the result is always true or false.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from kwire.analyzer.bulk.fields import MAX_CODES
from kwire.analyzer.filter.conditions import TextTest, apply_test
from kwire.analyzer.filter.language import And, Node, Not, Or, source_of, tree_of
from kwire.analyzer.filter.names import (
    PACKETS,
    PAYLOAD_APIS,
    PAYLOAD_SIDES,
    Columns,
    Operand,
    Path,
    body_values,
    column_values,
)
from kwire.analyzer.filter.sources import ApiKeys, ExchangeColumns, RowColumns, TopicName, null_of
from kwire.analyzer.filter.terms import Comparison, Relation
from kwire.analyzer.filter.tokens import FilterError
from kwire.analyzer.frame.counting import select_codes
from kwire.analyzer.protocol import schema

if TYPE_CHECKING:
    from kwire.analyzer.bulk.rows import Exchanges

__all__ = ["Filter", "FilterError", "parse"]


def parse(text: str) -> Filter:
    """Parse an expression. Raises FilterError."""
    return Filter(tree_of(text))


# --- many rows --------------------------------------------------------------------------------------------------------

Verdict = tuple[np.ndarray, np.ndarray]  # bool[n] certainly true, bool[n] certainly false


def _known(passed: np.ndarray) -> Verdict:
    return passed, ~passed


def _unknown(n: int) -> Verdict:
    return np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def _column_verdict(source: ExchangeColumns, node: Comparison, about: Columns) -> Verdict:
    present, test = node.present, node.test
    if about.form in ("integer", "time", "api"):
        passed = np.zeros(source.n, np.bool_)
        for name in about.names:
            numbers = source.integers(name)
            if numbers is None:
                return _unknown(source.n)
            here = numbers != null_of(numbers)
            passed |= here if test is None else here & apply_test(test, numbers)
    elif about.form in ("text", "address"):
        texts = source.texts(about.names[0]) if about.form == "text" else source.addresses(about.names)
        if texts is None:
            return _unknown(source.n)
        passed = texts.codes >= 0 if test is None else select_codes(source.test_values(test, texts), texts.codes)
    else:
        verdict = source.rows_with(about.names[0], test) or _unknown(source.n)
        return verdict[::-1] if present is False else verdict
    return _known(~passed if present is False else passed)


def _path_verdict(source: ExchangeColumns, node: Comparison) -> Verdict:
    """Evaluate a test of a body's field as far as columns allow: other APIs do not have the field, and a test may imply
    one of a column."""
    keys = source.api_keys()
    possible = np.zeros(source.n, np.bool_)
    for choice in node.choices:
        here = np.isin(keys, list(choice.apis))
        if choice.implies is not None and here.any():
            assert isinstance(choice.implies.about, Columns)
            excluded = _column_verdict(source, choice.implies, choice.implies.about)[1]
            incomplete = _may_omit_errors if choice.implies.about.form == "errors" else _has_escaped_topic
            here &= ~excluded | incomplete(source)
        possible |= here
    nothing = np.zeros(source.n, np.bool_)
    return (~possible, nothing) if node.present is False else (nothing, ~possible)


def _may_omit_errors(source: ExchangeColumns) -> np.ndarray:
    """Tell which responses have so many different errors that the table may not list all of them: bool[n]."""
    column = source.lists("errors")
    if column is None:
        return np.ones(source.n, np.bool_)
    return np.asarray((np.diff(column.ends) >= MAX_CODES)[column.of])


def _has_escaped_topic(source: ExchangeColumns) -> np.ndarray:
    """Tell which exchanges have a topic that is not UTF-8: bool[n]. The table shows such bytes as `\\xNN`, bodies show
    them otherwise; valid topic names have no backslash."""
    verdict = source.rows_with("topics", _BACKSLASH)
    return np.ones(source.n, np.bool_) if verdict is None else verdict[0]


_BACKSLASH: Final = TextTest(frozenset(), re.compile(r"\\"))


def _relation_verdict(source: ExchangeColumns, node: Relation) -> Verdict:
    """Evaluate a comparison of two names: columns are compared at once, of paths only the APIs that have them are
    known."""
    possible = np.ones(source.n, np.bool_)
    for operand in (node.left, node.right):
        if operand.apis is not None:
            possible &= np.isin(source.api_keys(), list(operand.apis))
    if node.left.apis is not None or node.right.apis is not None:
        return np.zeros(source.n, np.bool_), ~possible
    passed = np.zeros(source.n, np.bool_)
    for left, right in itertools.product(_operand_values(source, node.left), _operand_values(source, node.right)):
        if left is None or right is None:
            return _unknown(source.n)
        passed |= left[1] & right[1] & np.asarray(node.holds(left[0], right[0]), np.bool_)
    return _known(passed)


def _operand_values(source: ExchangeColumns, operand: Operand) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Get an operand's columns as (values, bool[n] present): int64, because units are multiplied, or objects for text;
    None for a column the source lacks."""
    assert isinstance(operand.about, Columns)
    if operand.kind == "text":
        texts = source.texts(operand.about.names[0])
        return [texts and (np.array([*texts.values, ""], object)[texts.codes], texts.codes >= 0)]
    columns = map(source.integers, operand.about.names)
    return [None if x is None else (x.astype(np.int64, copy=False), x != null_of(x)) for x in columns]


def _verdict(node: Node, leaf: Callable[[Comparison | Relation], Verdict]) -> Verdict:
    """Combine the verdicts of a tree's leaves (Kleene's three-valued logic)."""
    if isinstance(node, Comparison | Relation):
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


def _evaluate(node: Node, source: ExchangeColumns) -> Verdict:
    def leaf(comparison: Comparison | Relation) -> Verdict:
        if isinstance(comparison, Relation):
            return _relation_verdict(source, comparison)
        if isinstance(comparison.about, Columns):
            return _column_verdict(source, comparison, comparison.about)
        return _path_verdict(source, comparison)

    return _verdict(node, leaf)


# --- one exchange -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter:
    """A parsed filter; equal ones have equal trees. `str()` is an expression that parses to the same."""

    root: Node

    def __str__(self) -> str:
        return source_of(self.root)

    # -- what it needs --------------------------------------------------------------------------------------------
    def _comparisons(self) -> list[Comparison | Relation]:
        comparisons: list[Comparison | Relation] = []
        todo: list[Node] = [self.root]
        while todo:
            node = todo.pop()
            if isinstance(node, Comparison | Relation):
                comparisons.append(node)
            else:
                todo.extend((node.part,) if isinstance(node, Not) else node.parts)
        return comparisons

    def _needs(self, side: str) -> bool:
        abouts = [
            about
            for comparison in self._comparisons()
            for about in (
                [comparison.about]
                if isinstance(comparison, Comparison)
                else [comparison.left.about, comparison.right.about]
            )
        ]
        return any(isinstance(about, Path) and about.side == side for about in abouts)

    @property
    def packets(self) -> frozenset[int]:
        """Packet numbers that the filter names (`packet == N`, `packet in (N, ...)`)."""
        comparisons = (
            comparison
            for comparison in self._comparisons()
            if isinstance(comparison, Comparison) and comparison.present is None
        )
        sources = (
            comparison.source
            for comparison in comparisons
            if isinstance(comparison.about, Columns) and comparison.about.names == PACKETS
        )
        return frozenset(
            int(number)
            for source in sources
            if re.match(r"\w+ *(==|in\b)", source)
            for number in re.findall(r"\b\d+\b", source)
        )

    @functools.cached_property
    def needs_request(self) -> bool:
        """True if the filter tests a field of the request's body that is no column."""
        return self._needs("request")

    @functools.cached_property
    def needs_response(self) -> bool:
        """True if the filter tests a field of the response's body that is no column."""
        return self._needs("response")

    @functools.cached_property
    def needs_payloads(self) -> bool:
        """True if the filter tests fields of decoded keys or values."""
        return any(map(self._needs, PAYLOAD_SIDES))

    @property
    def needs_bodies(self) -> bool:
        """True if the columns alone may not decide."""
        return self.needs_request or self.needs_response or self.needs_payloads

    @functools.cached_property
    def apis(self) -> frozenset[int] | None:
        """Keys of the APIs whose exchanges can match; None if any can, or exchanges without a known API can; empty if
        nothing can."""
        source = ApiKeys()
        possible = ~_evaluate(self.root, source)[1]
        if possible[-1] or possible.sum() > len(schema.apis()):
            return None
        return frozenset(source.keys[possible].tolist())

    # -- many rows --------------------------------------------------------------------------------------------------
    def verdict(self, source: ExchangeColumns) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate on columns: bool[n] certainly matches, bool[n] certainly does not; the rest needs the bodies."""
        return _evaluate(self.root, source)

    def rows_verdict(self, exchanges: Exchanges, topic_name: TopicName | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate on rows of integers: bool[n] certainly matches, bool[n] certainly does not."""
        return _evaluate(self.root, RowColumns(exchanges, topic_name))

    def conditions_on(self, column: str) -> list[Filter]:
        """List the parts of the outermost `and` that test nothing but one column."""
        parts = self.root.parts if isinstance(self.root, And) else (self.root,)
        return [condition for condition in map(Filter, parts) if condition._tests_only(column)]

    def _tests_only(self, column: str) -> bool:
        return all(
            isinstance(comparison, Comparison)
            and isinstance(comparison.about, Columns)
            and comparison.about.names == (column,)
            for comparison in self._comparisons()
        )

    # -- one row ----------------------------------------------------------------------------------------------------
    def matches(
        self,
        row: Mapping[str, Any],
        request: dict[str, Any] | None = None,
        response: dict[str, Any] | None = None,
        records: Iterable[RecordFields] = (),
    ) -> bool:
        """Tell whether one exchange matches. `row` has the columns of `exchanges` as in `Table.to_pylist()`; the bodies
        have Kafka's JSON names as from `kwire.analyzer.protocol.tree`, None if not decoded. Fields of keys and values
        are those of one record: an exchange matches if one of its `records` does."""
        if not self.needs_payloads or row["api_key"] not in PAYLOAD_APIS:
            return _matches(self.root, lambda comparison: _leaf_matches(comparison, row, request, response))
        leaves: dict[int, bool] = {}

        def passes(record: RecordFields) -> bool:
            def leaf(comparison: Comparison | Relation) -> bool:
                if _is_payload(comparison):
                    return _record_passes(comparison, record)
                if id(comparison) not in leaves:  # the same for all records
                    leaves[id(comparison)] = _leaf_matches(comparison, row, request, response)
                return leaves[id(comparison)]

            return _matches(self.root, leaf)

        has_records = False
        for record in records:
            has_records = True
            if passes(record):
                return True
        return not has_records and passes(_no_fields)

    def excludes(self, record: RecordFields) -> bool:
        """Tell whether a record certainly does not match, whatever its exchange is."""

        def leaf(comparison: Comparison | Relation) -> Verdict:
            return _known(np.array([_record_passes(comparison, record)])) if _is_payload(comparison) else _unknown(1)

        return bool(_verdict(self.root, leaf)[1][0])


RecordFields = Callable[[str, tuple[str, ...]], Sequence[Any]]
"""The values of one record at a path of its decoded key or value (side, names from the outside in), elements of lists
one by one, without nulls: int, Decimal, str, bool, and dict of what holds others."""


def _no_fields(side: str, parts: tuple[str, ...]) -> Sequence[Any]:
    return ()


def _is_payload(comparison: Comparison | Relation) -> TypeGuard[Comparison]:
    return (
        isinstance(comparison, Comparison)
        and isinstance(comparison.about, Path)
        and comparison.about.side in PAYLOAD_SIDES
    )


def _record_passes(node: Comparison, record: RecordFields) -> bool:
    assert isinstance(node.about, Path)
    values = record(node.about.side, node.about.parts)
    if node.present is not None:
        return bool(values) == node.present
    (choice,) = node.choices
    return any(choice.test is not None and type(value) in choice.takes and choice.test(value) for value in values)


def _matches(node: Node, leaf: Callable[[Comparison | Relation], bool]) -> bool:
    if isinstance(node, And):
        return all(_matches(part, leaf) for part in node.parts)
    if isinstance(node, Or):
        return any(_matches(part, leaf) for part in node.parts)
    if isinstance(node, Not):
        return not _matches(node.part, leaf)
    return leaf(node)


def _leaf_matches(
    node: Comparison | Relation,
    row: Mapping[str, Any],
    request: dict[str, Any] | None,
    response: dict[str, Any] | None,
) -> bool:
    if isinstance(node, Relation):
        return any(node.holds(left, right) for left, right in node.pairs(row, request, response))
    if isinstance(node.about, Columns):
        values = column_values(row, node.about)
        if node.present is not None:
            return bool(values) == node.present
        return node.test is not None and any(map(node.test, values))
    choices = [choice for choice in node.choices if row["api_key"] in choice.apis]
    if not choices:
        return node.present is False
    values = body_values(request if node.about.side == "request" else response, node.about.parts)
    if node.present is not None:
        return bool(values) == node.present
    return any(
        choice.test is not None and type(value) in choice.takes and choice.test(value)
        for choice in choices
        for value in values
    )
