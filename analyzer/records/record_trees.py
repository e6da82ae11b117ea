"""Record sets of one message as trees: batches, their records, and what records of internal topics hold.

In: the bytes of a records field and the name of its topic. Out: a `RecordSet` with nodes whose spans are in these
bytes, and the records that have a format (`embedded.py`). Batches and records are found by the kernels of the bulk path
(`batches.py`, `batch_reader.py`); here their rows become nodes. Rules: a batch that is cut off, broken or cannot be
decompressed is a node with its reason; records of a compressed batch have no bytes of their own in the message, so
their spans are empty; secrets are lengths.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, overload

import numpy as np

from kwire.analyzer.protocol import embedded
from kwire.analyzer.protocol.budget import Budget
from kwire.analyzer.protocol.embedded import Embedded, GroupFacts, PayloadReader, Record
from kwire.analyzer.protocol.layouts import as_buffer
from kwire.analyzer.protocol.schema import REQUEST, TOPICS
from kwire.analyzer.protocol.tree import REDACTED, Node, decode_request, decode_response
from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums
from kwire.captures.kernels import NULL

CLUSTER_METADATA: Final = "__cluster_metadata"
CLUSTER_METADATA_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Its topic id is always this one (Uuid.METADATA_TOPIC_ID, KIP-516); no message has its name."""
MARKERS: Final = (CLUSTER_METADATA.encode(), bytes(15) + b"\x01")

BATCHES_AT_ONCE: Final = 8
"""Opened between two looks at what a message may still cost."""

LOOKS: Final = 1024
"""Records that become nodes between two looks at the clock: some 20 ms."""

PAYLOAD: Final = "payload"
"""Type of a record whose key or value a `PayloadReader` has read."""

SHOWN_CHARACTERS: Final = 200
"""Of a key, a value or a header; the bytes are in the message."""

# fmt: off
_HEADER_V2: Final = (
    # DefaultRecordBatch.java: field, type, size; the records follow.
    ("baseOffset", "int64", 8), ("batchLength", "int32", 4), ("partitionLeaderEpoch", "int32", 4), ("magic", "int8", 1),
    ("crc", "uint32", 4), ("attributes", "int16", 2), ("lastOffsetDelta", "int32", 4), ("baseTimestamp", "int64", 8),
    ("maxTimestamp", "int64", 8), ("producerId", "int64", 8), ("producerEpoch", "int16", 2),
    ("baseSequence", "int32", 4), ("recordsCount", "int32", 4),
)
# fmt: on
_RECORD_V2: Final = (  # DefaultRecord.java; key, value and headers follow.
    ("length", "varint"),
    ("attributes", "int8"),
    ("timestampDelta", "varlong"),
    ("offsetDelta", "varint"),
)
_HEADER_OLD: Final = (
    # LegacyRecord.java; magic 0 has no timestamp.
    ("offset", "int64", 8),
    ("messageSize", "int32", 4),
    ("crc", "uint32", 4),
    ("magic", "int8", 1),
    ("attributes", "int8", 1),
    ("timestamp", "int64", 8),
)


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The batches of one records field. `typed`: the records that have a format of their own, by their number in the
    field and their offset. `batches` counts all, `left_out` the records that have no node, as far as their batches say
    how many they have; `stopped`: why there are such."""

    nodes: tuple[Node, ...]
    typed: tuple[tuple[int, int, Record], ...]
    batches: int
    left_out: int
    stopped: str | None = None

    def label(self, size: int) -> str:
        """For people: `2 batches, 345 bytes`."""
        label = f"{self.batches} batch{'es' if self.batches != 1 else ''}, {size} bytes"
        if self.stopped is None:
            return label
        more = f"{self.left_out:,} records more" if self.left_out else "more"
        return f"{label} (and {more}: {self.stopped})"

    def listed(self, path: str) -> list[dict[str, Any]]:
        """The records that have a format as JSON (`embedded.record_json`), with path and offset."""
        listed = [
            {"path": f"{path}[{number}]", "offset": offset, **embedded.record_json(record)}
            for number, offset, record in self.typed
        ]
        if self.stopped is not None:
            listed.append({"path": path, "left_out": self.left_out, "reason": self.stopped})
        return listed


def openers(
    api_key: int,
    direction: int,
    topic_name: Callable[[str], str],
    *,
    nodes: bool = True,
    budget: Budget | None = None,
    payloads: PayloadReader | None = None,
) -> dict[str, Callable[[bytes, GroupFacts], RecordSet]]:
    """Return functions that open the records fields of an API and direction, for `embedded.nested`.

    topic_name   the name for a topic's name or id
    budget       of all the message's fields
    payloads     reads keys and values
    """
    path, topics = embedded.RECORD_FIELDS[api_key, direction]
    budget = budget or Budget()

    def opener(data: bytes, fields: GroupFacts) -> RecordSet:
        named = next((fields[topic] for topic in topics if fields.get(topic)), "")
        topic = CLUSTER_METADATA if named == CLUSTER_METADATA_ID else topic_name(named)
        return record_set(data, topic, nodes=nodes, budget=budget, payloads=payloads)

    return {path: opener}


def record_set(
    data: bytes | memoryview,
    topic: str,
    *,
    nodes: bool = True,
    budget: Budget | None = None,
    payloads: PayloadReader | None = None,
) -> RecordSet:
    """Open the record set of a topic. `nodes=False`: only the records that have a format of their own. `budget`: that
    of the message. `payloads`: reads keys and values."""
    budget = budget or Budget()
    reader = None if payloads is None else _Payloads(payloads, topic, budget)
    heap = as_buffer(data)
    batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
    magics = batches.table[b.B_MAGIC].tolist()
    attributes = batches.table[b.B_ATTRIBUTES].tolist()
    controls = [magic == 2 and bits & b.CONTROL != 0 for magic, bits in zip(magics, attributes, strict=True)]
    if nodes:
        checksums.check(batches.table, heap)
    elif topic not in TOPICS and not any(controls):
        return RecordSet((), (), len(batches), 0)  # nothing to find: leave the batches closed
    children: list[list[Node]] = [[] for _ in range(len(batches))]
    typed = []
    count = 0
    ends = batches.table[b.B_RECORDS_AT].tolist()
    for piece in _pieces(batches, budget):
        rows = _within(piece, budget)
        budget.nodes -= int(_costs(piece)[:rows].sum())
        if rows < piece.table.shape[1]:
            budget.nodes = 0
        if not rows:
            continue
        heaps = [heap.tobytes() for heap in piece.heaps]
        headers = _headers(piece, rows)
        budget.start()
        for at, row in enumerate(piece.table[:, :rows].T.tolist(), 1):
            if not at % LOOKS and budget.cut():
                break
            batch, source = row[r.R_BATCH], heaps[row[r.R_HEAP]]
            record = _typed(row, source, topic, controls[batch])
            if record is not None:
                typed.append((count, row[r.R_OFFSET], record))
            own = [next(headers) for _ in range(row[r.R_HEADERS])]
            if nodes:
                name, secrets = f"[{len(children[batch])}]", topic == CLUSTER_METADATA
                node = _shown(
                    name, row, source, own, record, ends[batch], magics[batch], controls[batch], secrets, reader
                )
                children[batch].append(node)
                ends[batch] = node.end
            count += 1
    nodes_made = [
        _batch(f"[{i}]", batches, i, data, tuple(children[i]), topic) for i in range(len(batches) if nodes else 0)
    ]
    counts = batches.table[b.B_COUNT]
    left_out = max(int(counts[counts > 0].sum()) - count, 0)
    stopped = budget.spent() if left_out or (counts == NULL).any() else None
    left_out = left_out if stopped is not None else 0  # else a batch is broken, and says so itself
    return RecordSet(tuple(nodes_made), tuple(typed), len(batches), left_out, stopped)


def later(
    data: bytes | memoryview, topic: str, base: int, budget: Budget, payloads: PayloadReader | None = None
) -> tuple[Node, str | None]:
    """The node of the one batch that `data` is, at `base` of what spans count in, with its records as `Records`; and
    why there may be more of them, if there is a reason. (`record_set` makes them all: 30 us each.)"""
    heap = as_buffer(data)
    batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
    checksums.check(batches.table, heap)
    tables, heaps, stopped = [], (heap, heap[:0]), None
    for piece in _pieces(batches, budget):
        rows = _within(piece, budget)
        budget.nodes -= int(_costs(piece)[:rows].sum())
        if rows < len(piece):
            budget.nodes = 0
        tables.append(piece.table[:, :rows].copy())
        heaps = piece.heaps  # one batch: nothing takes their place
    magic, attributes, starts, count = (
        int(batches.table[column, 0]) for column in (b.B_MAGIC, b.B_ATTRIBUTES, b.B_RECORDS_AT, b.B_COUNT)
    )
    table = np.concatenate([np.zeros((r.R_COLUMNS, 0), np.int64), *tables], axis=1)
    records = Records(table, heaps, topic, magic, magic == 2 and attributes & b.CONTROL != 0, starts, base, payloads)
    if len(records) < count or count == NULL:
        stopped = budget.spent()
    node = _batch("[0]", batches, 0, data, cast("tuple[Node, ...]", records if len(records) else ()), topic)
    fields = tuple(child._replace(start=child.start + base, end=child.end + base) for child in node.children)
    return node._replace(start=node.start + base, end=node.end + base, children=fields), stopped


class Nodes(Sequence[Node]):
    """Nodes that are made on access, by `_node`."""

    def _node(self, at: int) -> Node:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> Node: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Node]: ...
    def __getitem__(self, at: int | slice) -> Node | Sequence[Node]:
        places = range(len(self))[at]
        if isinstance(places, range):
            return tuple(map(self._node, places))
        return self._node(places)


class Records(Nodes):
    """Records of one batch, made nodes when they are looked at. `table` int64[R_COLUMNS, n], their places in `heaps`;
    `starts`: where the first begins, before `base` is added."""

    def __init__(
        self,
        table: np.ndarray,
        heaps: tuple[np.ndarray, np.ndarray],
        topic: str,
        magic: int,
        control: bool,
        starts: int,
        base: int,
        payloads: PayloadReader | None = None,
    ) -> None:
        self._table = table
        self._heaps = heaps
        self._topic = topic
        self._magic = magic
        self._control = control
        self._starts = starts
        self._base = base
        self._payloads = payloads

    def __len__(self) -> int:
        return int(self._table.shape[1])

    @property
    def size(self) -> int:
        """Bytes that are kept for them."""
        return sum(array.nbytes for array in (self._table, *self._heaps))

    def holding(self, offset: int) -> int | None:
        """Which of them holds a byte; none where they are compressed."""
        near = int(np.searchsorted(self._table[r.R_KEY_AT], offset - self._base, "right"))
        nodes = ((at, self[at]) for at in (near - 1, near) if 0 <= at < len(self))  # a key has numbers before it
        return next((at for at, node in nodes if node.start <= offset < node.end), None)

    def _node(self, at: int) -> Node:
        row = self._table[:, at].tolist()
        source, headers = b.view(self._heaps[row[r.R_HEAP]]), self._headers(at)
        record = _typed(row, source, self._topic, self._control)
        secrets = self._topic == CLUSTER_METADATA
        start = self._starts if at == 0 or row[r.R_HEAP] != 0 else self._end(at - 1)
        reader = None if self._payloads is None else _Payloads(self._payloads, self._topic, Budget())
        node = _shown(f"[{at}]", row, source, headers, record, start, self._magic, self._control, secrets, reader)
        return embedded.shifted((node,), self._base)[0]

    def _end(self, at: int) -> int:
        return _end_of(self._table[r.R_HEADERS_AT, at].item(), self._headers(at))

    def _headers(self, at: int) -> list[list[int]]:
        table = self._table[:, at : at + 1]
        return list(_headers(r.RecordRows(table, self._heaps), 1)) if table[r.R_HEADERS, 0] else []


def _pieces(batches: b.Batches, budget: Budget) -> Iterator[r.RecordRows]:
    """The records of batches, as far as the budget lets them be opened."""
    opener = r.BatchReader(b.BatchLimits(bytes=max(budget.bytes, 1), has_record_limit=False))
    for first in range(0, len(batches), BATCHES_AT_ONCE):
        if budget.spent() is not None:
            return
        stop = min(first + BATCHES_AT_ONCE, len(batches))
        for piece in opener.open(batches, first, stop):
            yield piece
            budget.start()
            if budget.spent() is not None:
                return
        sizes = batches.table[b.B_UNCOMPRESSED, first:stop]
        budget.start()
        bombs = (batches.table[b.B_REASON, first:stop] == b.REASON_BOMB).sum()
        budget.bytes -= int(sizes[sizes > 0].sum()) + int(bombs) * b.RATIO_FREE


def _within(piece: r.RecordRows, budget: Budget) -> int:
    """How many records of a piece become objects."""
    return int(np.searchsorted(np.cumsum(_costs(piece)), budget.nodes, side="right"))


def _costs(piece: r.RecordRows) -> np.ndarray:
    """Of each record in nodes, the common few headers for nothing."""
    return np.asarray(1 + piece.table[r.R_HEADERS] // 10)


def contents(
    data: bytes | memoryview, topic: str, budget: Budget
) -> Iterator[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
    """Yield key, value and headers of the records of a topic, as far as the budget of their message goes; nothing of
    Kafka's own topics and of control batches."""
    if topic in TOPICS:
        return
    heap = as_buffer(data)
    batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
    for piece in _pieces(batches, budget):
        rows = _within(piece, budget)
        budget.nodes -= int(_costs(piece)[:rows].sum())
        if not rows:
            continue
        heaps = [b.view(heap) for heap in piece.heaps]
        headers = _headers(piece, rows)
        for row in piece.table[:, :rows].T.tolist():
            source = heaps[row[r.R_HEAP]]
            named = _by_name(source, [next(headers) for _ in range(row[r.R_HEADERS])])
            if row[r.R_CONTROL] == NULL:
                key = _slice(source, row[r.R_KEY_AT], row[r.R_KEY_LENGTH])
                yield key, _slice(source, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH]), named


def _by_name(data: bytes | memoryview, headers: list[list[int]]) -> dict[str, bytes]:
    """Return a record's headers by their names, the first of each."""
    named: dict[str, bytes] = {}
    for name_at, name_length, value_at, value_length in headers:
        name, content = _slice(data, name_at, name_length), _slice(data, value_at, value_length)
        if name is not None and content is not None:
            named.setdefault(name.decode(errors="replace"), content)
    return named


def secret_spans(data: bytes, topic: str) -> list[tuple[int, int]]:
    """[start, end) of what must not be stored of a record set. Brokers do not compress `__cluster_metadata`, the only
    topic with secrets of its own; a compressed batch of it counts as secret, and so does a broken one."""
    if topic != CLUSTER_METADATA:
        return []
    heap = np.frombuffer(bytearray(data), np.uint8)
    batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(data), np.int64))
    spans = []
    for piece in r.BatchReader().open(batches):
        for row in piece.table.T.tolist():
            if row[r.R_HEAP] == 0 and row[r.R_CONTROL] == NULL:
                at = row[r.R_VALUE_AT]
                value = _slice(data, at, row[r.R_VALUE_LENGTH])
                spans += [(at + start, at + end) for start, end in embedded.record_secrets(topic, None, value)]
    table = batches.table
    opened = (table[b.B_STATE] == b.WHOLE) & (table[b.B_REASON] == b.REASON_NONE) & (b.codec(table) == b.NONE)
    for at, length in table[[b.B_AT, b.B_LENGTH]].T[~opened].tolist():
        spans.append((at, at + length))
    return spans


def message_secrets(message: bytes, api_key: int, version: int, direction: int) -> list[tuple[int, int]]:
    """Like the above for a whole message with its length; spans are in the frame behind the length.

    If it names that topic and cannot be decoded, all of it is secret but the correlation id.
    """
    if (api_key, direction) not in embedded.RECORD_FIELDS or not (MARKERS[0] in message or MARKERS[1] in message):
        return []
    frame = message[4:]
    if direction == REQUEST:
        decoded = decode_request(frame, tree=True)
    else:
        decoded = decode_response(frame, api_key, version, tree=True)
    if decoded.body is None:
        return [(4, len(frame))]
    spans: list[tuple[int, int]] = []
    topic = ""

    def visit(nodes: tuple[Node, ...]) -> None:
        nonlocal topic
        for node in nodes:
            if node.name in ("topic", "topicId", "name"):
                topic = CLUSTER_METADATA if node.value == CLUSTER_METADATA_ID else node.value
            elif node.type == "records" and node.value is not None:
                data = base64.b64decode(node.value)
                at = node.end - len(data)
                spans.extend((at + start, at + end) for start, end in secret_spans(data, topic))
            visit(node.children)

    visit(decoded.nodes)
    return spans


def _slice(data: bytes | memoryview, at: int, length: int) -> bytes | None:
    return None if length == NULL else bytes(data[at : at + length])


def _typed(row: list[int], source: bytes | memoryview, topic: str, control: bool) -> Record | None:
    """Return the type of a record that has a format of its own."""
    key = _slice(source, row[r.R_KEY_AT], row[r.R_KEY_LENGTH])
    value = _slice(source, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH])
    return embedded.read_control(key, value) if control else embedded.read_record(topic, key, value)


def _headers(piece: r.RecordRows, rows: int) -> Any:
    """The headers of a piece's first records, in order: (name at, name length, value at, value length)."""
    table = piece.table[:, :rows]
    out = np.zeros((5, int(table[r.R_HEADERS].sum())), np.int64)
    r.headers_of(*piece.heaps, table[r.R_HEAP], table[r.R_HEADERS_AT], table[r.R_HEADERS], out)
    return iter(out[1:].T.tolist())


def _text(data: bytes | None) -> Any:
    """Return bytes as text if they are text, else as hexadecimal; long ones are cut."""
    if data is None:
        return None
    try:
        text = data[: 4 * SHOWN_CHARACTERS].decode()
    except UnicodeDecodeError:
        text = "0x" + data[:SHOWN_CHARACTERS].hex()
    if len(text) > SHOWN_CHARACTERS or len(data) > 4 * SHOWN_CHARACTERS:
        return f"{text[:SHOWN_CHARACTERS]}... ({len(data):,} bytes)"
    return text


def _bytes_node(
    name: str, data: bytes | None, start: int, end: int, opened: Embedded | None, at: int, secret: bool
) -> Node:
    """A key or value, whose content begins at `at`."""
    if data is not None and secret and (opened is None or opened.body is None):
        return Node(name, "bytes", {REDACTED: len(data)}, start, end, secret=True)
    if opened is None or data is None:
        return Node(name, "bytes", _text(data), start, end, null=data is None)
    return Node(name, "bytes", opened.label(len(data)), start, end, embedded.shifted(opened.nodes, at))


def _is_copied_secret(value: bytes | None) -> bool:
    """Return whether a record of any topic holds a metadata record with secrets, because the log may be a copy."""
    if value is None or len(value) < 2 or value[0] != embedded.METADATA_FRAME_VERSION:
        return False
    return value[1] in embedded.secret_record_types() and bool(embedded.copied_secrets(value))


class _Payloads:
    """Keys and values of a topic's records, read within the budget of their message."""

    def __init__(self, reader: PayloadReader, topic: str, budget: Budget) -> None:
        self._reader = reader
        self._topic = topic
        self._budget = budget

    def read(self, row: list[int], data: bytes | memoryview, headers: list[list[int]]) -> Record | None:
        """Return what key and value are; None: neither has a format, or the budget is spent."""
        named = _by_name(data, headers)
        key = self._opened(_slice(data, row[r.R_KEY_AT], row[r.R_KEY_LENGTH]), "key", named)
        value = self._opened(_slice(data, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH]), "value", named)
        return None if key is None and value is None else Record(PAYLOAD, key, value)

    def _opened(self, data: bytes | None, side: str, headers: Mapping[str, bytes]) -> Embedded | None:
        self._budget.start()
        if not data or self._budget.spent() is not None:
            return None
        opened = self._reader(data, self._topic, side, headers)
        if opened is not None:
            self._budget.nodes -= _count(opened.nodes)
        return opened


def _count(nodes: Sequence[Node]) -> int:
    """Count nodes and all below them."""
    return len(nodes) + sum(_count(node.children) for node in nodes if node.children)


def _without_spans(nodes: tuple[Node, ...], at: int) -> tuple[Node, ...]:
    """The nodes of what has no bytes of its own in the message."""
    return tuple(node._replace(start=at, end=at, children=_without_spans(node.children, at)) for node in nodes)


def _zigzag(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A varint of a record that the kernel has read -> (value, where it ends)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at


def _shown(
    name: str,
    row: list[int],
    source: bytes | memoryview,
    headers: list[list[int]],
    record: Record | None,
    start: int,
    magic: int,
    control: bool,
    secrets: bool,
    payloads: _Payloads | None,
) -> Node:
    """The node of a record; in a compressed batch it has no bytes of its own. `secrets`: whatever is not known of its
    topic's records is one."""
    value = _slice(source, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH])
    secret = not control and (secrets or _is_copied_secret(value))
    if record is None and payloads is not None and not secret:
        record = payloads.read(row, source, headers)
    decompressed = row[r.R_HEAP] != 0
    node = _record(name, row, source, headers, record, start, magic == 2 and not decompressed, secret)
    return _without_spans((node,), start)[0] if decompressed else node


def _end_of(headers_at: int, headers: list[list[int]]) -> int:
    """Where a record of magic 2 ends: with its last header."""
    return max([headers_at, *(at + max(length, 0) for _, _, at, length in headers)])


def _record(
    name: str,
    row: list[int],
    data: bytes | memoryview,
    headers: list[list[int]],
    record: Record | None,
    start: int,
    varints: bool,
    secret: bool,
) -> Node:
    """The node of a record that starts at `start`; `data` is where its places are. `varints`: it has those of magic 2
    before its key (an older record is key and value of its message; of a decompressed one nobody asks)."""
    key = _slice(data, row[r.R_KEY_AT], row[r.R_KEY_LENGTH])
    value = _slice(data, row[r.R_VALUE_AT], row[r.R_VALUE_LENGTH])
    key_end = row[r.R_KEY_AT] + len(key or b"")
    end = value_end = row[r.R_VALUE_AT] + len(value or b"")
    nodes = []
    if varints:
        at = start
        for field, kind in _RECORD_V2:
            number, stop = (data[at], at + 1) if kind == "int8" else _zigzag(data, at)
            nodes.append(Node(field, kind, number, at, stop))
            at = stop
        start_of_key = at
        end = _end_of(row[r.R_HEADERS_AT], headers)
    else:
        start_of_key = start
    opened_key, opened_value = (record.key, record.value) if record is not None else (None, None)
    nodes.append(_bytes_node("key", key, start_of_key, key_end, opened_key, row[r.R_KEY_AT], False))
    nodes.append(_bytes_node("value", value, key_end, value_end, opened_value, row[r.R_VALUE_AT], secret))
    if headers:
        at = row[r.R_HEADERS_AT]
        shown = []
        for index, (name_at, name_length, value_at, value_length) in enumerate(headers):
            stop = value_at + max(value_length, 0)
            content = _slice(data, value_at, value_length)
            text = f"{_text(_slice(data, name_at, name_length))}={'null' if content is None else _text(content)}"
            shown.append(Node(f"[{index}]", "header", text, at, stop))
            at = stop
        nodes.append(Node("headers", "array", len(headers), value_end, end, tuple(shown)))
    label = f"offset {row[r.R_OFFSET]}"
    if row[r.R_TIMESTAMP] >= 0:
        label += f", timestamp {row[r.R_TIMESTAMP]}"
    if record is not None and record.type != PAYLOAD:
        label += f", {record.type or 'unknown type'}" + (" (tombstone)" if record.value is None else "")
    return Node(name, "record", label, start, end, tuple(nodes))


def _batch(
    name: str, batches: b.Batches, i: int, data: bytes | memoryview, records: tuple[Node, ...], topic: str
) -> Node:
    """A batch's node, or that of a message of magic 0 or 1."""
    row = batches.table[:, i].tolist()
    start, end = row[b.B_AT], row[b.B_AT] + row[b.B_LENGTH]
    reason = b.reason(row[b.B_REASON], row[b.B_REASON_A])
    words = []
    if row[b.B_OFFSET] != NULL:
        words.append(f"base offset {row[b.B_OFFSET]}")
    if row[b.B_COUNT] != NULL:
        words.append(f"{row[b.B_COUNT]} record{'s' if row[b.B_COUNT] != 1 else ''}")
    if row[b.B_STATE] == b.PARTIAL:
        words.append(f"cut off: {end - start} of {row[b.B_SIZE] if row[b.B_SIZE] != NULL else 'unknown'} bytes")
    if reason is not None:
        words.append(reason)
    old = row[b.B_MAGIC] in (0, 1)
    nodes = []
    at = start
    for field, kind, size in _HEADER_OLD if old else _HEADER_V2:
        if field == "timestamp" and row[b.B_MAGIC] == 0:
            continue
        if at + size > end or (row[b.B_MAGIC] not in (0, 1, 2) and field not in ("baseOffset", "batchLength")):
            break
        number = int.from_bytes(data[at : at + size], "big", signed=kind != "uint32")
        nodes.append(Node(field, kind, _header_value(field, number, row), at, at + size))
        at += size
    if row[b.B_RECORDS_AT] != NULL and row[b.B_STATE] == b.WHOLE:
        at, label = row[b.B_RECORDS_AT], f"{row[b.B_RECORDS_LENGTH]} bytes"
        if row[b.B_UNCOMPRESSED] not in (NULL, row[b.B_RECORDS_LENGTH]):
            label += f", {row[b.B_UNCOMPRESSED]} decompressed"
        hidden = topic == CLUSTER_METADATA and not records
        nodes.append(Node("records", "records", label, at, end, records, secret=hidden))
    elif at < end:
        nodes.append(Node("rest", "bytes", f"{end - at} bytes", at, end, secret=topic == CLUSTER_METADATA))
    return Node(name, "message" if old else "batch", ", ".join(words), start, end, tuple(nodes))


def _header_value(field: str, number: int, row: list[int]) -> Any:
    """Return a header field's value as text: the result of the checksum, the meaning of the bits."""
    if field == "crc":
        ok = {1: " (right)", 0: " (wrong)"}.get(row[b.B_CRC_OK], "")
        return f"0x{number:08x}{ok}"
    if field == "attributes":
        codec = number & b.CODEC_MASK
        words = [b.CODECS[codec] if codec < len(b.CODECS) else f"codec {codec}"]
        if row[b.B_MAGIC] > 0:
            words.append("LogAppendTime" if number & b.LOG_APPEND_TIME else "CreateTime")
        if row[b.B_MAGIC] == 2:
            flags = ((b.TRANSACTIONAL, "transactional"), (b.CONTROL, "control"), (b.DELETE_HORIZON, "delete horizon"))
            words += [word for bit, word in flags if number & bit]
        return f"{number} ({', '.join(words)})"
    return number
