"""The filter language: which exchanges are wanted.

In: an expression such as `api == Produce and latency > 100ms and topic ~ "^orders"` (the language: `FILTER.md`). Out: a
frozen `Filter`, which answers at three prices:

    rows_verdict(exchanges)   rows of integers, before anything else is made of them
    cheap(table)              an Arrow table of exchanges
    matches(row, ...)         one exchange with its decoded bodies

The first two say of each row: surely wanted, surely not, or only the bodies can tell. Rules: a wrong expression raises
FilterError and nothing else; a comparison is true if any value passes, so it is false where there is no value, and
`not` of it is then true. There are two truth values for one exchange; "cannot tell yet" is none of them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from analyzer.bulk.fields import MAX_CODES
from analyzer.filter.conditions import Whole, tested
from analyzer.filter.language import And, Node, Not, Or, source_of, tree_of
from analyzer.filter.names import PACKETS, Columns, Named, Path, body_values, column_values
from analyzer.filter.sources import Apis, Ints, Rows, Source, Table, TopicName, distinct
from analyzer.filter.terms import Comparison, Relation
from analyzer.filter.tokens import INT64_MAX, INT64_MIN, FilterError
from analyzer.filter.values import STATED
from analyzer.protocol import schema

if TYPE_CHECKING:
    from analyzer.bulk.rows import Exchanges

__all__ = ["Filter", "FilterError", "IntegerTest", "parse"]


def parse(text: str) -> Filter:
    """The filter of an expression. Raises FilterError."""
    return Filter(tree_of(text))


# --- many rows --------------------------------------------------------------------------------------------------------

Verdict = tuple[np.ndarray, np.ndarray]  # bool[n] surely true, bool[n] surely false


def _known(passed: np.ndarray) -> Verdict:
    return passed, ~passed


def _unknown(n: int) -> Verdict:
    return np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def _about_columns(source: Source, node: Comparison, about: Columns) -> Verdict:
    present, test = node.present, node.test
    if about.form in ("integer", "time", "api"):
        passed = np.zeros(source.n, np.bool_)
        for name in about.names:
            ints = source.integers(name)
            if ints is None:
                return _unknown(source.n)
            passed |= ints[1] if test is None else ints[1] & tested(test, ints[0])
    elif about.form in ("text", "address"):
        found = source.texts(about.names[0]) if about.form == "text" else source.addresses(about.names)
        if found is None:
            return _unknown(source.n)
        passed = found[1] if test is None else source.looked_up(test, found)
    elif about.form == "errors":
        having = source.with_code(test)
        if having is None:
            return _unknown(source.n)
        passed = having
    else:
        listed = source.with_text(about.names[0], test)
        if listed is None:
            return _unknown(source.n)
        if test is not None:
            return listed
        passed = listed[0]
    return _known(~passed if present is False else passed)


def _about_path(source: Source, node: Comparison) -> Verdict:
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


def _many_errors(source: Source) -> np.ndarray:
    """Responses with so many different errors that the table may not list all."""
    counts = source.code_counts()
    if counts is None:
        return np.ones(source.n, np.bool_)
    return np.asarray(counts >= MAX_CODES)


def _odd_topics(source: Source) -> np.ndarray:
    """Exchanges with a topic that is not UTF-8: the table shows such bytes as `\\xNN`, bodies show them otherwise. In
    good names there is no backslash."""
    listed = source.topics("topics")
    if listed is None:
        return np.ones(source.n, np.bool_)
    used, where = distinct(listed.index, len(listed.values))
    odd = np.fromiter(("\\" in listed.values[i] for i in used.tolist()), np.bool_, len(used))
    return listed.rows(odd[where])


def _about_both(source: Source, node: Relation) -> Verdict:
    """Two names beside each other: of columns all is known, of paths which APIs have them."""
    possible = np.ones(source.n, np.bool_)
    for one in (node.left, node.right):
        if one.apis is not None:
            possible &= np.isin(source.api_keys(), list(one.apis))
    if node.left.apis is not None or node.right.apis is not None:
        return np.zeros(source.n, np.bool_), ~possible
    passed = np.zeros(source.n, np.bool_)
    for left, right in itertools.product(_columns(source, node.left), _columns(source, node.right)):
        if left is None or right is None:
            return _unknown(source.n)
        passed |= left[1] & right[1] & np.asarray(node.holds(left[0], right[0]), np.bool_)
    return _known(passed)


def _wide(found: Ints | None) -> Ints | None:
    """Room for the units that the two sides are multiplied by."""
    return None if found is None else (found[0].astype(np.int64, copy=False), found[1])


def _columns(source: Source, one: Named) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Columns as arrays of their values, text too, and whether there is one; None: the source does not have it."""
    assert isinstance(one.about, Columns)
    if one.kind != "text":
        return [_wide(source.integers(name)) for name in one.about.names]
    found = source.texts(one.about.names[0])
    if found is None:
        return [None]
    indices, present, values = found
    every = np.array([*values, ""], object)
    return [(every[np.where(present, indices, np.int64(len(values)))], present)]


def _verdict(node: Node, leaf: Callable[[Comparison | Relation], Verdict]) -> Verdict:
    """Surely true, surely false (Kleene's logic of three values)."""
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


def _judge(node: Node, source: Source) -> Verdict:
    def leaf(comparison: Comparison | Relation) -> Verdict:
        if isinstance(comparison, Relation):
            return _about_both(source, comparison)
        if isinstance(comparison.about, Columns):
            return _about_columns(source, comparison, comparison.about)
        return _about_path(source, comparison)

    return _verdict(node, leaf)


# --- one exchange -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntegerTest:
    """`column` (of the table `exchanges`; `status` as its number) must be `operator` (`==`,
    `!=`, `<=`, `>=`, `in`) than `value`; null never passes."""

    column: str
    operator: str
    value: int | tuple[int, ...]


@dataclass(frozen=True)
class Filter:
    """A parsed filter; equal ones have equal trees. `str()` is an expression that parses to the same."""

    root: Node

    def __str__(self) -> str:
        return source_of(self.root)

    # -- what it needs --------------------------------------------------------------------------------------------
    def _comparisons(self) -> list[Comparison | Relation]:
        found: list[Comparison | Relation] = []
        todo: list[Node] = [self.root]
        while todo:
            node = todo.pop()
            if isinstance(node, Comparison | Relation):
                found.append(node)
            else:
                todo.extend((node.part,) if isinstance(node, Not) else node.parts)
        return found

    def _needs(self, side: str) -> bool:
        abouts = [
            about
            for one in self._comparisons()
            for about in ([one.about] if isinstance(one, Comparison) else [one.left.about, one.right.about])
        ]
        return any(isinstance(about, Path) and about.side == side for about in abouts)

    @property
    def packets(self) -> frozenset[int]:
        """The numbers of packets that it names (`packet == N`, `packet in (N, ...)`)."""
        about = (one for one in self._comparisons() if isinstance(one, Comparison) and one.present is None)
        named = (one.source for one in about if isinstance(one.about, Columns) and one.about.names == PACKETS)
        return frozenset(
            int(number)
            for source in named
            if re.match(r"\w+ *(==|in\b)", source)
            for number in re.findall(r"\b\d+\b", source)
        )

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
        source = Apis()
        possible = ~_judge(self.root, source)[1]
        if possible[-1] or possible.sum() > len(schema.apis()):
            return None
        return frozenset(source.keys[possible].tolist())

    # -- many rows --------------------------------------------------------------------------------------------------
    def cheap(self, table: pa.Table, topic_name: TopicName | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of a table of exchanges: bool[n] surely matches, surely does not, needs the bodies to tell. Only the columns
        that the filter names (and `api_key`, and for paths `errors` and `topics`) must be there. `topic_name` gives
        the name for a topic's id; without it `topics` is taken as it stands."""
        true, false = _judge(self.root, Table(table, topic_name))
        return true, false, ~(true | false)

    def verdict(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows of any source: bool[n] surely matches, surely does not; the rest only the bodies can tell."""
        return _judge(self.root, source)

    def rows_verdict(self, exchanges: Exchanges, topic_name: TopicName | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Of rows of integers: bool[n] surely matches, surely does not."""
        return _judge(self.root, Rows(exchanges, topic_name))

    def rows_mask(self, exchanges: Exchanges, topic_name: TopicName | None = None) -> np.ndarray:
        """bool[n]: the rows that may match."""
        return ~self.rows_verdict(exchanges, topic_name)[1]

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
        self, row: Mapping[str, Any], request: dict[str, Any] | None = None, response: dict[str, Any] | None = None
    ) -> bool:
        """Does one exchange match? `row` has the columns of `exchanges` as in `Table.to_pylist()`; the bodies have
        Kafka's JSON names as `analyzer.protocol.tree` makes them, None where not decoded."""
        return _matches(self.root, row, request, response)


def _matches(
    node: Node, row: Mapping[str, Any], request: dict[str, Any] | None, response: dict[str, Any] | None
) -> bool:
    if isinstance(node, And):
        return all(_matches(part, row, request, response) for part in node.parts)
    if isinstance(node, Or):
        return any(_matches(part, row, request, response) for part in node.parts)
    if isinstance(node, Not):
        return not _matches(node.part, row, request, response)
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
