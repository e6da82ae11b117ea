"""Trees of messages for the page, in pages, and the field at a byte.

In: an exchange with its messages. Out: plain values for JSON. Rules: spans count from the frame's first byte, its
length field included; long lists come in pages, so that a fetch of 50,000 records is not one answer; secrets are shown
as lengths, as in `kwire show --tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kwire.analyzer.cli.exchange_lines import node_value
from kwire.analyzer.cli.text import printable
from kwire.analyzer.filter import names
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.protocol.budget import BYTES, Budget
from kwire.analyzer.protocol.tree import Node
from kwire.analyzer.records.record_trees import Records
from kwire.reports.view import lazy_tree
from kwire.reports.view.lazy_tree import LENGTH

AT_ONCE: Final = 200
"""Children of a node in one answer."""

OPENED: Final = 400
"""Nodes below the requested ones that an answer includes: a few screens."""

LONGEST: Final = 2_000
"""Characters of one value; the page shows its bytes beside it."""


class Tree(NamedTuple):
    """A message's tree, with spans in the frame. `reason`: why it is incomplete; `plain`: True if it certainly holds no
    secrets."""

    nodes: tuple[Node, ...]
    reason: str | None
    plain: bool = False


def nodes(exchange: Exchange, side: str) -> Tree:
    """Decode a message to a tree."""
    message = exchange.request_message if side == "request" else exchange.response_message
    if message is None:
        return Tree((), "not in the capture")
    length = Node("length", "int32", int.from_bytes(message.data[:LENGTH], "big"), 0, min(LENGTH, len(message.data)))
    fields = lazy_tree.nodes(exchange, side)
    if fields is not None:
        return Tree((length, *fields.nodes), fields.reason, not fields.secrets)
    decoded = exchange.decoded(side, nodes=True, budget=Budget(bytes=BYTES, nodes=lazy_tree.RECORDS))
    if decoded is None:
        return Tree((length,), exchange.row["reason"] or "not decoded")
    return Tree((length, *map(_shifted, decoded.nodes)), decoded.reason)


def _shifted(node: Node) -> Node:
    return node._replace(start=node.start + LENGTH, end=node.end + LENGTH, children=tuple(map(_shifted, node.children)))


def page(tree: Sequence[Node], side: str, path: Sequence[int], first: int) -> dict[str, Any]:
    """Get a page of the children, from `first` on, of the node at a path of positions, with small subtrees. Raises
    LookupError if there is no such node."""
    above = [side]
    for place in path:
        if not 0 <= place < len(tree):
            raise LookupError(place)
        above = _named(above, tree[place])
        tree = tree[place].children
    room = [OPENED]
    shown = [_node_json(node, above, room) for node in tree[first : first + AT_ONCE]]
    return {"total": len(tree), "first": first, "children": shown}


def _named(above: list[str], node: Node) -> list[str]:
    """Extend a field's path as in filters, which have no positions in lists."""
    return above if node.name.startswith("[") else [*above, node.name]


_HEADER: Final = {
    "requestApiKey": "api_key",
    "requestApiVersion": "api_version",
    "correlationId": "correlation_id",
    "clientId": "client_id",
}
"""Fields of a message's header, for which filters have columns instead of paths."""


def _field(path: list[str]) -> str | None:
    """Get a field's name in filters; None if there is none. A column is preferred, because it needs no message."""
    if len(path) == 2 and path[1] in _HEADER:
        return _HEADER[path[1]]
    name = ".".join(path)
    infos = names.paths().get(name)
    if infos is None or all(names.family(name, info) == "opaque" for info in infos):
        return None
    return "topic" if all(info.listed == "topics" for info in infos) else name


def _node_json(node: Node, above: list[str], room: list[int]) -> dict[str, Any]:
    """Convert a node for JSON, with its children if there is room for all of them."""
    path = _named(above, node)
    text = node_value(node) if not node.null else "null"
    content: dict[str, Any] = {
        "name": printable(node.name),
        "type": node.type,
        "start": node.start,
        "end": node.end,
        "value": text if len(text) <= LONGEST else text[:LONGEST] + "…",
        "total": len(node.children),
    }
    if node.secret:
        content["secret"] = True
    exact = _exact(node)
    if exact is not None:
        content["exact"] = exact
        field = _field(path)
        if field is not None:
            content["field"] = field
    if node.children and len(node.children) <= min(room[0], AT_ONCE):
        room[0] -= len(node.children)
        content["children"] = [_node_json(child, path, room) for child in node.children]
    return content


def _exact(node: Node) -> str | None:
    """Get a node's value in a filter's syntax; None if it has none."""
    if node.secret or node.null or node.children or node.type in ("array", "struct", "records", "tag", "tags"):
        return None
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    if isinstance(node.value, int):
        return str(node.value)
    return node.value if isinstance(node.value, str) and len(node.value) <= LONGEST else None


def at(tree: Sequence[Node], offset: int) -> list[int]:
    """Find the path of the innermost node that contains a byte; empty if none does."""
    path: list[int] = []
    while True:
        if isinstance(tree, lazy_tree.LazyNodes | lazy_tree.LazyBatch | Records):
            inside = tree.holding(offset)
        else:
            inside = next((i for i, node in enumerate(tree) if node.start <= offset < node.end), None)
        if inside is None:
            return path
        path.append(inside)
        tree = tree[inside].children
