"""Trees of messages with records, whose large record sets are decoded lazily.

In: an exchange with a message of up to a hundred megabytes, or a million records. Out: nodes as from
`Exchange.decoded`, with spans in the frame. Rules: the nodes are the same, but a batch is decoded on first access, and
only accessed records become nodes; a few batches are cached; until it is decoded, a batch has as many records as its
header states, and if it holds fewer an extra node tells so; messages that may hold secrets are left to
`Exchange.decoded`.
"""

from __future__ import annotations

import base64
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast, overload

import numpy as np

from kwire.analyzer.frame.spill import check_cancelled
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.protocol import embedded, schema, tree
from kwire.analyzer.protocol.budget import BYTES, FIELDS, Budget
from kwire.analyzer.protocol.embedded import PayloadReader
from kwire.analyzer.protocol.layouts import as_buffer
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.analyzer.protocol.tree import Node
from kwire.analyzer.records import batches as b
from kwire.analyzer.records.record_trees import CLUSTER_METADATA, CLUSTER_METADATA_ID, Nodes, Records, later, record_set
from kwire.captures import kernels
from kwire.captures.kernels import NULL

LENGTH: Final = 4
"""Bytes of the length field before each message."""

LARGE: Final = 256 << 10
"""Bytes of record sets that are decoded at once."""

MANY: Final = 500
"""Records of a message's record sets that are decoded at once, in about 10 ms."""

NO_CLIENT: Final = -1
"""Length of a null client id."""

CACHED_BATCHES: Final = 16
"""Batches of a record set that stay decoded: those of a few screens."""

CACHE_BYTES: Final = 64 << 20
"""Bytes of the decoded batches, unless there is only one."""

RECORDS: Final = 200_000
"""Records of one batch that are decoded at most."""


class LazyNodes(Nodes):
    """Nodes that are made on access: `make` makes the node at a position. `starts`, `ends`: their spans, in order."""

    def __init__(self, starts: np.ndarray, ends: np.ndarray, make: Callable[[int], Node]) -> None:
        self._starts = starts
        self._ends = ends
        self._make = make
        self._cache: OrderedDict[int, Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._starts)

    def _node(self, at: int) -> Node:
        check_cancelled()
        node = self._cache.get(at)
        if node is None:
            node = self._cache[at] = self._make(at)
        while len(self._cache) > CACHED_BATCHES or (
            len(self._cache) > 1 and sum(map(_size, self._cache.values())) > CACHE_BYTES
        ):
            self._cache.popitem(last=False)
        return node

    def holding(self, offset: int) -> int | None:
        """Find the node that contains a byte."""
        at = int(np.searchsorted(self._starts, offset, "right")) - 1
        return at if at >= 0 and offset < self._ends[at] else None


class LazyBatch(Sequence[Node]):
    """Nodes of a batch that are decoded on first access. `count`: their number until then; `opened` returns them, and
    possibly an extra node with a note."""

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
        """Find the node that contains a byte."""
        nodes, _ = self._looked()
        return nodes.holding(offset) if isinstance(nodes, Records) else None

    @property
    def size(self) -> int:
        """Bytes that the decoded nodes take."""
        nodes = () if self._inside is None else self._inside[0]
        return nodes.size if isinstance(nodes, Records) else 0


def _size(batch: Node) -> int:
    """Bytes that a batch's decoded records take."""
    return sum(child.children.size for child in batch.children if isinstance(child.children, LazyBatch | Records))


_REQUEST: Final = struct.pack(">hhih", 18, 0, 0, NO_CLIENT)
"""The shortest request: ApiVersions, version 0."""


def warm_up() -> None:
    """Load the decoders of small and large messages, if they are compiled already: it takes some 50 ms, which the first
    message would wait for."""
    if kernels.warm():
        for frame in (_REQUEST, _REQUEST + bytes(LARGE)):
            tree.decode_request(memoryview(bytearray(frame)), tree=True, exact=True, max_rows=FIELDS)
        record_set(b"", "")


class Fields(NamedTuple):
    """A message's fields after the length. `reason`: why some are missing; `secrets`: True if it may hold secrets."""

    nodes: tuple[Node, ...]
    reason: str | None
    secrets: bool


def has_records(row: dict[str, Any], side: str) -> bool:
    """Tell whether a message may have record sets, and no secrets outside them."""
    which = (row["api_key"], REQUEST if side == "request" else RESPONSE)
    return row["api_version"] is not None and which in embedded.RECORD_FIELDS and not schema.has_secrets(*which)


def nodes(exchange: Exchange, side: str) -> Fields | None:
    """Decode a message's fields; None if it has no records."""
    message = exchange.request_message if side == "request" else exchange.response_message
    row = exchange.row
    if message is None or not has_records(row, side):
        return None
    direction = REQUEST if side == "request" else RESPONSE
    # exact=True keeps record sets as bytes instead of base64; the decoder does not copy a writable view.
    frame = memoryview(message.data)
    frame = (memoryview(bytearray(frame)) if frame.readonly else frame)[LENGTH:]
    if side == "request":
        decoded = tree.decode_request(frame, tree=True, exact=True, max_rows=FIELDS)
    else:
        key, version = row["api_key"], row["api_version"]
        decoded = tree.decode_response(frame, key, version, tree=True, exact=True, max_rows=FIELDS)
    if (decoded.api_key, decoded.direction) != (row["api_key"], direction):
        return None
    walk = _NodeConverter(*embedded.RECORD_FIELDS[row["api_key"], direction], exchange.topic_name, exchange.payloads)
    fields = walk.each(embedded.shifted(decoded.nodes, LENGTH), "")
    return Fields(fields, decoded.reason, walk.secrets or decoded.body is None)


class _NodeConverter:
    """Converts exact nodes to those that are shown. `field`: the path of record sets; `topics`: paths of the fields
    that name their topic."""

    def __init__(
        self,
        field: str,
        topics: tuple[str, ...],
        topic_name: Callable[[str], str],
        payloads: PayloadReader | None,
    ) -> None:
        self._field = field
        self._topics = topics
        self._topic_name = topic_name
        self._payloads = payloads
        self._texts: dict[str, str] = {}
        self._budget = Budget(bytes=BYTES, nodes=RECORDS)
        self._room = [LARGE, MANY]
        self.secrets = False

    def each(self, nodes: tuple[Node, ...], path: str) -> tuple[Node, ...]:
        """Convert the fields below a path."""
        return tuple(self._convert(node, self._joined(path, node)) for node in nodes)

    @staticmethod
    def _joined(path: str, node: Node) -> str:
        if node.name.startswith("[") or node.type == "tags":
            return path
        return f"{path}.{node.name}" if path else node.name

    def _convert(self, node: Node, path: str) -> Node:
        if node.children:
            return node._replace(children=self.each(node.children, path))
        value: Any = node.value
        if isinstance(value, str):  # exact text keeps bytes that are not UTF-8
            value = self._texts[path] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return node._replace(value=value)
        if not isinstance(value, bytes | memoryview):
            return node
        if node.type != "records" or path != self._field or not value:
            return node._replace(value=base64.b64encode(value).decode())
        named = next((self._texts[topic] for topic in self._topics if self._texts.get(topic)), "")
        topic = CLUSTER_METADATA if named == CLUSTER_METADATA_ID else self._topic_name(named)
        at = node.end - len(value)
        metadata = topic == CLUSTER_METADATA
        self.secrets |= metadata
        batches = None if metadata else _batches(value, topic, at, self._room, self._payloads)
        if batches is None:
            opened = record_set(bytes(value), topic, budget=self._budget, payloads=self._payloads)
            return node._replace(value=opened.label(len(value)), children=embedded.shifted(opened.nodes, at))
        label = f"{len(batches)} batch{'es' if len(batches) != 1 else ''}, {len(value)} bytes"
        return node._replace(value=label, children=cast("tuple[Node, ...]", batches))


def _batches(
    data: bytes | memoryview, topic: str, base: int, room: list[int], payloads: PayloadReader | None = None
) -> LazyNodes | None:
    """List the batches of a record set that begins at `base`; None if it is small, and to be decoded at once. `room`:
    bytes and records that may still be decoded at once; reduced by those of this record set."""
    heap = as_buffer(data)
    table = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64)).table
    counts_stated = table[b.B_COUNT]
    records = int(
        np.where(counts_stated == NULL, MANY + 1, np.abs(counts_stated)).sum()
    )  # an unknown count counts as many
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
            node, _ = later(part, topic, base + start, Budget(bytes=BYTES, nodes=RECORDS), payloads)
            return node._replace(name=f"[{at}]")
        node = embedded.shifted(record_set(part, topic, budget=Budget(nodes=0)).nodes[:1], base + start)[0]
        inside = LazyBatch(count, lambda: _records(part, topic, count, base + start, payloads))
        children = tuple(
            child._replace(children=cast("tuple[Node, ...]", inside)) if child.type == "records" else child
            for child in node.children
        )
        return node._replace(name=f"[{at}]", children=children)

    return LazyNodes(starts + base, ends + base, make)


def _records(
    part: memoryview, topic: str, count: int, base: int, payloads: PayloadReader | None
) -> tuple[Sequence[Node], Node | None]:
    """Decode the records of a batch that states their `count`; the extra node tells how many are missing."""
    node, stopped = later(part, topic, base, Budget(bytes=BYTES, nodes=RECORDS), payloads)
    records: Sequence[Node] = next((child.children for child in node.children if child.type == "records"), ())
    if len(records) >= count:
        return records, None
    end = records[-1].end if records else base + len(part)
    return records, Node("…", "rest", f"{count - len(records):,} records more: {stopped or node.value}", end, end)
