"""Differences between two messages, field by field.

In: two trees. Out: paths. Rules: fields are matched by name; elements of a list by the fields that identify them
(topic, partition, group, node, ...), if these are unique on both sides, else by position; lengths and correlation ids
are ignored, and secrets are not compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from kwire.analyzer.protocol.tree import Node

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
"""Fields that identify an element of a list."""

PASSED_OVER: Final = frozenset(("length", "correlationId"))

MAX_DIFFERENCES: Final = 2_000
"""Differences that are listed; all are counted."""


class Difference(NamedTuple):
    """A field that differs: its path in both trees, None if it is missing there. `what`: `changed`, or `left` or
    `right` if only that side has it."""

    left: tuple[int, ...] | None
    right: tuple[int, ...] | None
    what: str


def differences(left: Sequence[Node], right: Sequence[Node]) -> tuple[list[Difference], int]:
    """List the first `MAX_DIFFERENCES` fields that differ, and count all."""
    listed: list[Difference] = []
    count = 0
    for difference in _differing(left, right, (), ()):
        count += 1
        if count <= MAX_DIFFERENCES:
            listed.append(difference)
    return listed, count


def counterpart(left: Sequence[Node], right: Sequence[Node], path: Sequence[int]) -> list[int] | None:
    """Find the path on the right that matches a path on the left, or its innermost matching parent; None if nothing
    matches."""
    counterpart_path: list[int] = []
    for place in path:
        other = next((j for i, j in _matched(left, right) if i == place), None)
        if other is None or not 0 <= place < len(left):
            break
        counterpart_path.append(other)
        left, right = left[place].children, right[other].children
    return counterpart_path or None


def _differing(
    left: Sequence[Node], right: Sequence[Node], above: tuple[int, ...], other: tuple[int, ...]
) -> Iterator[Difference]:
    for i, j in _matched(left, right):
        if i is None or j is None:
            place, node = ((*above, i), left[i]) if i is not None else ((*other, j or 0), right[j or 0])
            if node.name not in PASSED_OVER:
                yield Difference(place, None, "left") if i is not None else Difference(None, place, "right")
            continue
        left_node, right_node = left[i], right[j]
        if left_node.name in PASSED_OVER or left_node.secret or right_node.secret:
            continue
        if left_node.children or right_node.children:
            yield from _differing(left_node.children, right_node.children, (*above, i), (*other, j))
        elif (left_node.null, left_node.value) != (right_node.null, right_node.value):
            yield Difference((*above, i), (*other, j), "changed")


def _matched(left: Sequence[Node], right: Sequence[Node]) -> Iterator[tuple[int | None, int | None]]:
    """Match children, in the order of the left; then list those of the right without a match."""
    names = _names(left, right)
    if names is None:
        both = min(len(left), len(right))
        yield from ((at, at) for at in range(both))
        yield from ((at, None) for at in range(both, len(left)))
        yield from ((None, at) for at in range(both, len(right)))
        return
    left_names, right_names = names
    places = {name: at for at, name in enumerate(right_names)}
    yield from ((at, places.get(name)) for at, name in enumerate(left_names))
    known = set(left_names)
    yield from ((None, at) for at, name in enumerate(right_names) if name not in known)


def _names(left: Sequence[Node], right: Sequence[Node]) -> tuple[list[Hashable], list[Hashable]] | None:
    """Get names that are unique among the children of each side; None if only positions are."""
    some = next(iter((*left, *right)), None)
    if some is None:
        return None
    listed = some.name.startswith("[")
    left_names, right_names = ([_about(node) if listed else node.name for node in side] for side in (left, right))
    if () in left_names or () in right_names:
        return None
    if len(set(left_names)) < len(left_names) or len(set(right_names)) < len(right_names):
        return None
    return left_names, right_names


def _about(node: Node) -> Hashable:
    """Get the fields that identify an element of a list; empty if there are none."""
    if not node.children:
        return ()
    return tuple((child.name, child.value) for child in node.children if child.name in NAMING and not child.children)
