"""Two messages field by field: which nodes of their trees stand for each other, and which of them differ.

In: two trees. Out: paths. Rules: fields go by name; elements of a list by what names them (topic, partition, group,
node, ...), where that tells them apart on both sides, else by their place; lengths and correlation ids are nobody's
difference, and secrets are not compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from analyzer.protocol.tree import Node

NAMING: Final = (
    "name",
    "topic",
    "topicName",
    "partition",
    "partitionIndex",
    "index",
    "groupId",
    "nodeId",
    "brokerId",
    "key",
    "apiKey",
    "resourceType",
    "resourceName",
    "transactionalId",
    "coordinatorType",
)
"""Fields that say what an element is about."""

PASSED_OVER: Final = frozenset(("length", "correlationId"))

MOST: Final = 2_000
"""Differences that are listed; all are counted."""


class Difference(NamedTuple):
    """Places of a field, from the outside in; None: this side has no such field. `what`: `changed`, `left`, `right`:
    where it is, if on one side only."""

    left: tuple[int, ...] | None
    right: tuple[int, ...] | None
    what: str


def differences(left: Sequence[Node], right: Sequence[Node]) -> tuple[list[Difference], int]:
    """The first `MOST` fields that differ, and how many do."""
    found: list[Difference] = []
    count = 0
    for one in _differing(left, right, (), ()):
        count += 1
        if count <= MOST:
            found.append(one)
    return found, count


def counterpart(left: Sequence[Node], right: Sequence[Node], path: Sequence[int]) -> list[int] | None:
    """The place on the right of what is at a place on the left, or of the innermost around it that is there; None:
    nothing is."""
    found: list[int] = []
    for place in path:
        other = next((j for i, j in _matched(left, right) if i == place), None)
        if other is None or not 0 <= place < len(left):
            break
        found.append(other)
        left, right = left[place].children, right[other].children
    return found or None


def _differing(
    left: Sequence[Node], right: Sequence[Node], above: tuple[int, ...], other: tuple[int, ...]
) -> Iterator[Difference]:
    for i, j in _matched(left, right):
        if i is None or j is None:
            place, node = ((*above, i), left[i]) if i is not None else ((*other, j or 0), right[j or 0])
            if node.name not in PASSED_OVER:
                yield Difference(place, None, "left") if i is not None else Difference(None, place, "right")
            continue
        one, two = left[i], right[j]
        if one.name in PASSED_OVER or one.secret or two.secret:
            continue
        if one.children or two.children:
            yield from _differing(one.children, two.children, (*above, i), (*other, j))
        elif (one.null, one.value) != (two.null, two.value):
            yield Difference((*above, i), (*other, j), "changed")


def _matched(left: Sequence[Node], right: Sequence[Node]) -> Iterator[tuple[int | None, int | None]]:
    """Children that stand for each other, in the order of the left; then those of the right that stand alone."""
    names = _names(left, right)
    if names is None:
        both = min(len(left), len(right))
        yield from ((at, at) for at in range(both))
        yield from ((at, None) for at in range(both, len(left)))
        yield from ((None, at) for at in range(both, len(right)))
        return
    mine, theirs = names
    places = {name: at for at, name in enumerate(theirs)}
    yield from ((at, places.get(name)) for at, name in enumerate(mine))
    known = set(mine)
    yield from ((None, at) for at, name in enumerate(theirs) if name not in known)


def _names(left: Sequence[Node], right: Sequence[Node]) -> tuple[list[Hashable], list[Hashable]] | None:
    """What tells the children of either side apart; None: nothing but their places."""
    some = next(iter((*left, *right)), None)
    if some is None:
        return None
    listed = some.name.startswith("[")
    mine, theirs = ([_about(node) if listed else node.name for node in side] for side in (left, right))
    if () in mine or () in theirs:
        return None
    if len(set(mine)) < len(mine) or len(set(theirs)) < len(theirs):
        return None
    return mine, theirs


def _about(node: Node) -> Hashable:
    """What an element of a list says that it is about; empty: nothing."""
    if not node.children:
        return ()
    return tuple((child.name, child.value) for child in node.children if child.name in NAMING and not child.children)
