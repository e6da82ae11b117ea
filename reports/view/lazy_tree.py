"""Trees of messages with records, of which large sets' batches are opened when somebody looks inside.

In: an exchange with a message of up to a hundred megabytes, or a million records in little. Out: nodes as
`Exchange.decoded` gives them, spans in the frame. Rules: they are the same nodes, but a batch is opened when somebody
looks inside, and of its records those become nodes that are looked at; only a few batches are kept; until then a batch
holds as many records as its header says, and where it turns out to hold fewer a node says so; what may hold secrets is
left to `Exchange.decoded`.
"""

from __future__ import annotations

import base64
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast, overload

import numpy as np

from analyzer.messages.exchange import Exchange
from analyzer.protocol import embedded, schema, tree
from analyzer.protocol.budget import BYTES, FIELDS, Budget
from analyzer.protocol.layouts import as_buffer
from analyzer.protocol.schema import REQUEST, RESPONSE
from analyzer.protocol.tree import Node
from analyzer.records import batches as b
from analyzer.records.record_trees import CLUSTER_METADATA, CLUSTER_METADATA_ID, Nodes, Records, later, record_set
from captures import kernels
from captures.kernels import NULL
from reports.view.value_counts import wanted

LENGTH: Final = 4
"""Bytes of the length before each message."""

LARGE: Final = 256 << 10
"""Bytes of a record set that is opened whole."""

MANY: Final = 500
"""Records of all record sets of a message that are opened whole: that takes a hundredth of a second."""

NO_CLIENT: Final = -1
"""A client id that is null."""

KEPT: Final = 16
"""Batches of a record set that stay open: those of a few screens."""

KEPT_BYTES: Final = 64 << 20
"""What they may take, unless it is one alone."""

RECORDS: Final = 200_000
"""Records of one batch that may be looked at."""


class Later(Nodes):
    """Nodes that are made when they are looked at: `make` gives that of a place. `starts` and `ends`: their bytes, in
    order."""

    def __init__(self, starts: np.ndarray, ends: np.ndarray, make: Callable[[int], Node]) -> None:
        self._starts = starts
        self._ends = ends
        self._make = make
        self._made: OrderedDict[int, Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._starts)

    def _node(self, at: int) -> Node:
        wanted()
        node = self._made.get(at)
        if node is None:
            node = self._made[at] = self._make(at)
        while len(self._made) > KEPT or (len(self._made) > 1 and sum(map(_size, self._made.values())) > KEPT_BYTES):
            self._made.popitem(last=False)
        return node

    def holding(self, offset: int) -> int | None:
        """Which of them holds a byte."""
        at = int(np.searchsorted(self._starts, offset, "right")) - 1
        return at if at >= 0 and offset < self._ends[at] else None


class Inside(Sequence[Node]):
    """What is inside of one of them: `count` nodes, as long as nobody has looked. `opened` gives them, and one behind
    them where something is to be said."""

    def __init__(self, count: int, opened: Callable[[], tuple[Sequence[Node], Node | None]]) -> None:
        self._count = count
        self._opened = opened
        self._inside: tuple[Sequence[Node], Node | None] | None = None

    def __len__(self) -> int:
        if self._inside is None:
            return self._count
        nodes, more = self._inside
        return len(nodes) + (more is not None)

    @overload
    def __getitem__(self, at: int) -> Node: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Node]: ...
    def __getitem__(self, at: int | slice) -> Node | Sequence[Node]:
        nodes, more = self._looked()
        places = range(len(self))[at]
        if isinstance(places, range):
            return tuple(self[place] for place in places)
        return more if more is not None and places == len(nodes) else nodes[places]

    def _looked(self) -> tuple[Sequence[Node], Node | None]:
        if self._inside is None:
            self._inside = self._opened()
        return self._inside

    def holding(self, offset: int) -> int | None:
        """Which of them holds a byte."""
        nodes, _ = self._looked()
        return nodes.holding(offset) if isinstance(nodes, Records) else None

    @property
    def size(self) -> int:
        """Bytes that are kept for them."""
        nodes = () if self._inside is None else self._inside[0]
        return nodes.size if isinstance(nodes, Records) else 0


def _size(batch: Node) -> int:
    """Bytes that are kept for a batch's records."""
    return sum(one.children.size for one in batch.children if isinstance(one.children, Inside | Records))


_REQUEST: Final = struct.pack(">hhih", 18, 0, 0, NO_CLIENT)
"""The least there is: ApiVersions, version 0."""


def ready() -> None:
    """Load what messages are decoded with, for little ones and for large ones, where it was compiled before: the first
    message would wait for it, some 50 ms."""
    if kernels.warm():
        for frame in (_REQUEST, _REQUEST + bytes(LARGE)):
            tree.decode_request(memoryview(bytearray(frame)), tree=True, exact=True, max_rows=FIELDS)
        record_set(b"", "")


class Fields(NamedTuple):
    """`nodes`: fields behind the length; `reason`: why they are not all; `secrets`: may any of its bytes be secret?"""

    nodes: tuple[Node, ...]
    reason: str | None
    secrets: bool


def has_records(row: dict[str, Any], side: str) -> bool:
    """May a side of an exchange have record sets, and nothing outside them that is secret?"""
    which = (row["api_key"], REQUEST if side == "request" else RESPONSE)
    return row["api_version"] is not None and which in embedded.RECORD_FIELDS and not schema.has_secrets(*which)


def nodes(exchange: Exchange, side: str) -> Fields | None:
    """A side's fields; None: it has no records."""
    message = exchange.request_message if side == "request" else exchange.response_message
    row = exchange.row
    if message is None or not has_records(row, side):
        return None
    direction = REQUEST if side == "request" else RESPONSE
    # Exact: a record set stays bytes, and is no base64 of a third more; a view that can be written: it is not copied.
    frame = memoryview(message.data)
    frame = (memoryview(bytearray(frame)) if frame.readonly else frame)[LENGTH:]
    if side == "request":
        decoded = tree.decode_request(frame, tree=True, exact=True, max_rows=FIELDS)
    else:
        key, version = row["api_key"], row["api_version"]
        decoded = tree.decode_response(frame, key, version, tree=True, exact=True, max_rows=FIELDS)
    if (decoded.api_key, decoded.direction) != (row["api_key"], direction):
        return None
    walk = _Walk(*embedded.RECORD_FIELDS[row["api_key"], direction], exchange.topic_name)
    fields = walk.each(embedded.shifted(decoded.nodes, LENGTH), "")
    return Fields(fields, decoded.reason, walk.secrets or decoded.body is None)


class _Walk:
    """Exact nodes become those that are shown. `field`: the path of record sets; `topics`: those of what names their
    topic."""

    def __init__(self, field: str, topics: tuple[str, ...], topic_name: Callable[[str], str]) -> None:
        self._field = field
        self._topics = topics
        self._topic_name = topic_name
        self._said: dict[str, str] = {}
        self._budget = Budget(bytes=BYTES, nodes=RECORDS)
        self._room = [LARGE, MANY]
        self.secrets = False

    def each(self, nodes: tuple[Node, ...], path: str) -> tuple[Node, ...]:
        """Fields below a path."""
        return tuple(self._one(node, self._joined(path, node)) for node in nodes)

    @staticmethod
    def _joined(path: str, node: Node) -> str:
        if node.name.startswith("[") or node.type == "tags":
            return path
        return f"{path}.{node.name}" if path else node.name

    def _one(self, node: Node, path: str) -> Node:
        if node.children:
            return node._replace(children=self.each(node.children, path))
        value: Any = node.value
        if isinstance(value, str):  # exact text keeps bytes that are no UTF-8
            value = self._said[path] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return node._replace(value=value)
        if not isinstance(value, bytes | memoryview):
            return node
        if node.type != "records" or path != self._field or not value:
            return node._replace(value=base64.b64encode(value).decode())
        named = next((self._said[topic] for topic in self._topics if self._said.get(topic)), "")
        topic = CLUSTER_METADATA if named == CLUSTER_METADATA_ID else self._topic_name(named)
        at = node.end - len(value)
        metadata = topic == CLUSTER_METADATA
        self.secrets |= metadata
        batches = None if metadata else _batches(value, topic, at, self._room)
        if batches is None:
            opened = record_set(bytes(value), topic, budget=self._budget)
            return node._replace(value=opened.label(len(value)), children=embedded.shifted(opened.nodes, at))
        said = f"{len(batches)} batch{'es' if len(batches) != 1 else ''}, {len(value)} bytes"
        return node._replace(value=said, children=cast("tuple[Node, ...]", batches))


def _batches(data: bytes | memoryview, topic: str, base: int, room: list[int]) -> Later | None:
    """The batches of a record set that begins at `base`; None: it is little, and opened whole. `room`: bytes and
    records that are left for such; what it takes is taken from them."""
    heap = as_buffer(data)
    table = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64)).table
    said = table[b.B_COUNT]
    records = int(np.where(said == NULL, MANY + 1, np.abs(said)).sum())  # one that does not say it counts as many
    if len(data) <= room[0] and records <= room[1]:
        room[0] -= len(data)
        room[1] -= records
        return None
    starts = table[b.B_AT].copy()
    ends, counts, magics = starts + table[b.B_LENGTH], table[b.B_COUNT].tolist(), table[b.B_MAGIC].tolist()

    def make(at: int) -> Node:
        start, count = int(starts[at]), counts[at]
        part = memoryview(data)[start : int(ends[at])]
        if magics[at] != 2 or count == NULL or count <= 0:
            return later(part, topic, base + start, Budget(bytes=BYTES, nodes=RECORDS))[0]._replace(name=f"[{at}]")
        node = embedded.shifted(record_set(part, topic, budget=Budget(nodes=0)).nodes[:1], base + start)[0]
        inside = Inside(count, lambda: _records(part, topic, count, base + start))
        children = tuple(
            child._replace(children=cast("tuple[Node, ...]", inside)) if child.type == "records" else child
            for child in node.children
        )
        return node._replace(name=f"[{at}]", children=children)

    return Later(starts + base, ends + base, make)


def _records(part: memoryview, topic: str, count: int, base: int) -> tuple[Sequence[Node], Node | None]:
    """The records of a batch that says it holds so many; what is said of those that are not there."""
    node, stopped = later(part, topic, base, Budget(bytes=BYTES, nodes=RECORDS))
    made: Sequence[Node] = next((child.children for child in node.children if child.type == "records"), ())
    if len(made) >= count:
        return made, None
    end = made[-1].end if made else base + len(part)
    return made, Node("…", "rest", f"{count - len(made):,} records more: {stopped or node.value}", end, end)
