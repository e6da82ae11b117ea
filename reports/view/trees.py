"""One message as the page shows it: its tree in pages, and the field that a byte belongs to.

In: an exchange with its messages. Out: plain values for JSON. Rules: a span counts from the frame's first byte, the
length before it included; what is long comes in pages, so that a fetch of 50,000 records is not one answer; secrets are
lengths, as in `kwire show --tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from analyzer.cli.exchange_lines import node_value
from analyzer.cli.text import printable
from analyzer.filter import names
from analyzer.messages.exchange import Exchange
from analyzer.protocol.budget import BYTES, Budget
from analyzer.protocol.tree import Node
from analyzer.records.record_trees import Records
from reports.view import lazy_tree
from reports.view.lazy_tree import LENGTH

AT_ONCE: Final = 200
"""Children of one node in an answer."""

OPENED: Final = 400
"""Nodes of an answer that nobody asked for by name: what fits on some screens is there at once."""

LONGEST: Final = 2_000
"""Characters of one value; the bytes are beside it."""


class Tree(NamedTuple):
    """`nodes`: a side's whole tree, spans in the frame; `reason`: why it is not whole; `plain`: it is known that none
    of its bytes is secret."""

    nodes: tuple[Node, ...]
    reason: str | None
    plain: bool = False


def nodes(exchange: Exchange, side: str) -> Tree:
    """The tree of a side."""
    message = exchange.request_message if side == "request" else exchange.response_message
    if message is None:
        return Tree((), "not in the capture")
    length = Node("length", "int32", int.from_bytes(message.data[:LENGTH], "big"), 0, min(LENGTH, len(message.data)))
    found = lazy_tree.nodes(exchange, side)
    if found is not None:
        return Tree((length, *found.nodes), found.reason, not found.secrets)
    decoded = exchange.decoded(side, nodes=True, budget=Budget(bytes=BYTES, nodes=lazy_tree.RECORDS))
    if decoded is None:
        return Tree((length,), exchange.row["reason"] or "not decoded")
    return Tree((length, *map(_shifted, decoded.nodes)), decoded.reason)


def _shifted(node: Node) -> Node:
    return node._replace(start=node.start + LENGTH, end=node.end + LENGTH, children=tuple(map(_shifted, node.children)))


def page(tree: Sequence[Node], side: str, path: Sequence[int], first: int) -> dict[str, Any]:
    """Children of the node at a path (places from the outside in) from the `first` on, with what is inside them as far
    as it is little. Raises LookupError where there is no such node."""
    above = [side]
    for place in path:
        if not 0 <= place < len(tree):
            raise LookupError(place)
        above = _named(above, tree[place])
        tree = tree[place].children
    room = [OPENED]
    shown = [_told(node, above, room) for node in tree[first : first + AT_ONCE]]
    return {"total": len(tree), "first": first, "children": shown}


def _named(above: list[str], node: Node) -> list[str]:
    """The path of a field as filters have it, which leave out which element of a list it is in."""
    return above if node.name.startswith("[") else [*above, node.name]


_HEADER: Final = {
    "requestApiKey": "api_key",
    "requestApiVersion": "api_version",
    "correlationId": "correlation_id",
    "clientId": "client_id",
}
"""Fields of a message's header, which are no paths, and the columns that have them."""


def _field(path: list[str]) -> str | None:
    """The name by which filters ask for a field; none where they cannot. Where a column has it, the column: it needs
    no message to be read."""
    if len(path) == 2 and path[1] in _HEADER:
        return _HEADER[path[1]]
    name = ".".join(path)
    infos = names.paths().get(name)
    if infos is None or all(names.family(name, info) == "opaque" for info in infos):
        return None
    return "topic" if all(info.listed == "topics" for info in infos) else name


def _told(node: Node, above: list[str], room: list[int]) -> dict[str, Any]:
    """A node; its children too, where there is room for all of them."""
    path = _named(above, node)
    said = node_value(node) if not node.null else "null"
    told: dict[str, Any] = {
        "name": printable(node.name),
        "type": node.type,
        "start": node.start,
        "end": node.end,
        "value": said if len(said) <= LONGEST else said[:LONGEST] + "…",
        "total": len(node.children),
    }
    if node.secret:
        told["secret"] = True
    exact = _exact(node)
    if exact is not None:
        told["exact"] = exact
        field = _field(path)
        if field is not None:
            told["field"] = field
    if node.children and len(node.children) <= min(room[0], AT_ONCE):
        room[0] -= len(node.children)
        told["children"] = [_told(child, path, room) for child in node.children]
    return told


def _exact(node: Node) -> str | None:
    """The value as a filter names it, where there is one."""
    if node.secret or node.null or node.children or node.type in ("array", "struct", "records", "tag", "tags"):
        return None
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    if isinstance(node.value, int):
        return str(node.value)
    return node.value if isinstance(node.value, str) and len(node.value) <= LONGEST else None


def at(tree: Sequence[Node], offset: int) -> list[int]:
    """The path of the innermost node that holds a byte; empty where none does."""
    path: list[int] = []
    while True:
        if isinstance(tree, lazy_tree.Later | lazy_tree.Inside | Records):
            inside = tree.holding(offset)
        else:
            inside = next((i for i, node in enumerate(tree) if node.start <= offset < node.end), None)
        if inside is None:
            return path
        path.append(inside)
        tree = tree[inside].children
