"""Classify the bytes of one message: a name, an id, a secret, content, or no more than a number.

In: a frame, and what was asked where it is an answer. Out: `MessageSpan`s, in order and apart, which say what to do
with their bytes. This is the careful way, by a tree of each message; most messages go the quick one (`spans`), which
says the same. Rules: closed by default. Only what a field is known to hold may stay: numbers, lengths and markers are a
`KEEP`; whatever no field of the layout covers (what could not be decoded, trails, or is of a tag that nobody knows) is
`UNKNOWN`. Formats inside bytes fields are looked into where all of them is understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kwire.analyzer.bulk.state import NULL
from kwire.analyzer.protocol import embedded, tree
from kwire.analyzer.protocol.api_keys import ENVELOPE
from kwire.analyzer.protocol.tree import Body, Node
from kwire.analyzer.records.record_trees import CLUSTER_METADATA, CLUSTER_METADATA_ID

KEEP, TEXT, RELEASE, CUT, IDENTIFIER, SECRET, CONTENT, RECORDS, UNKNOWN = range(9)
"""RELEASE: a text that may be the version of a client's software. CUT: a text of which only the beginning is there."""

TEXTS: Final = frozenset((TEXT, RELEASE, CUT))

_NUMBERS: Final = frozenset(("bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "varint"))
_LENGTH_BYTES: Final = 4
_MOST_EMPTY: Final = 16
"""Sections of tags that can end one behind the other: as deep as layouts are nested."""
_MOST_VERSION: Final = 127
_MOST_FILLED: Final = 1 << 20
"""Bytes of a message that was cut off which are filled up to be decoded."""

TOPIC_FIELDS: Final = ("topic", "topicId", "name")
"""Fields that say which topic the records behind them are of."""
NAMING_FIELDS: Final = (*TOPIC_FIELDS, "topicName")
"""Fields that, beside each other, say what the topic of an id is called."""
RELEASE_FIELD: Final = "clientSoftwareVersion"


class MessageSpan(NamedTuple):
    """[start, end) of a message, and what it is; `topic`: of RECORDS, its name or id."""

    start: int
    end: int
    kind: int
    topic: str = ""


@dataclass(slots=True)
class PendingRequests:
    """Requests whose answers need them, by connection and correlation id."""

    groups: embedded.GroupProtocols
    _waiting: dict[tuple[int, int], tuple[Body | None, tuple[int, int] | None]]

    @classmethod
    def nothing(cls) -> PendingRequests:
        return cls(embedded.GroupProtocols(), {})

    def put(self, connection: int, request: tree.Decoded, frame: bytes) -> None:
        if request.header is None or request.body is None:
            return
        if request.api_key in embedded.GROUP_APIS:
            self._waiting[connection, request.header["correlationId"]] = request.body, None
        elif request.api_key == ENVELOPE:
            self._waiting[connection, request.header["correlationId"]] = None, tree.envelope_inner(frame)

    def take(self, connection: int, correlation_id: int) -> tuple[Body | None, tuple[int, int] | None]:
        return self._waiting.pop((connection, correlation_id), (None, None))


@dataclass(frozen=True, slots=True)
class FramedMessage:
    """One message: its bytes with the length before them, and what is known of it; an API key of NULL: nothing is."""

    data: bytes
    connection: int
    request: bool
    api_key: int
    version: int


class MessageReader:
    """Says what the bytes of messages are, which come in the order in which they were captured. `topics`: names by
    topic id, as far as messages have said so."""

    def __init__(self) -> None:
        self._asked = PendingRequests.nothing()
        self.topics: dict[str, str] = {}

    def topic(self, topic: str) -> str:
        """Return the name of the topic of RECORDS, as far as it is known."""
        return CLUSTER_METADATA if topic == CLUSTER_METADATA_ID else self.topics.get(topic, topic)

    def parts(self, frame: FramedMessage) -> list[MessageSpan]:
        """Of one message, all of it."""
        data = frame.data
        if len(data) < _LENGTH_BYTES:
            return [MessageSpan(0, len(data), KEEP)]  # part of a length
        if frame.api_key == NULL or not 0 <= frame.version <= _MOST_VERSION:
            return _opaque(frame)
        body = data[_LENGTH_BYTES:]
        size = int.from_bytes(data[:_LENGTH_BYTES], "big")
        if len(body) < size <= _MOST_FILLED:
            body = body.ljust(size, b"\0")  # so that counts and lengths of what was cut off are none too large
        decoded, about, group = self._decoded(frame, body)
        if not decoded.nodes:
            return _opaque(frame)
        walk = _Walk(body, self.topics)
        walk.all(embedded.in_message(decoded, about, group)[0])
        shifted = [part._replace(start=part.start + 4, end=part.end + 4) for part in walk.parts]
        every = _whole([MessageSpan(0, _LENGTH_BYTES, KEEP), *shifted], data[:_LENGTH_BYTES] + body)
        end = len(data)
        return [
            part if part.end <= end else part._replace(end=end, kind=CUT if part.kind in TEXTS else part.kind)
            for part in every
            if part.start < end
        ]

    def _decoded(self, frame: FramedMessage, body: bytes) -> tuple[tree.Decoded, Body | None, embedded.GroupFacts]:
        """The message, the request that it answers, and what is known of its group."""
        groups = self._asked.groups
        if frame.request:
            decoded = tree.decode_request(body, tree=True, max_rows=embedded.MAX_ROWS)
            self._asked.put(frame.connection, decoded, body)
            if decoded.api_key in embedded.GROUP_APIS and decoded.body is not None:
                return decoded, None, groups.learn(decoded.body, None)
            return decoded, None, {}
        about, inner = self._asked.take(frame.connection, int.from_bytes(body[:4], "big", signed=True))
        decoded = tree.decode_response(
            body, frame.api_key, frame.version, tree=True, inner=inner, max_rows=embedded.MAX_ROWS
        )
        if about is not None and decoded.body is not None:
            return decoded, about, groups.learn(about, decoded.body)
        return decoded, about, {}


def _opaque(frame: FramedMessage) -> list[MessageSpan]:
    """Of what nobody can read the length stays, and of an answer its correlation id; of a request what says which API
    of which version it is, where it may be one."""
    head = 8
    if frame.request:
        head = 12 if frame.api_key != NULL and 0 <= frame.version <= _MOST_VERSION else 4
    head = min(head, len(frame.data))
    return [MessageSpan(0, head, KEEP), MessageSpan(head, len(frame.data), UNKNOWN)]


def record_parts(data: bytes, opened: embedded.Embedded | None) -> list[MessageSpan]:
    """Classify the bytes of a record's key or value; all are CONTENT if its format is not understood."""
    if opened is None or opened.reason is not None:
        return [MessageSpan(0, len(data), CONTENT)]
    walk = _Walk(data, {})
    walk.all(opened.nodes)
    return _whole(walk.parts, data)


def _whole(covered: list[MessageSpan], data: bytes) -> list[MessageSpan]:
    """The parts with UNKNOWN where there is none; empty sections of tags, which have no node, stay."""
    out: list[MessageSpan] = []
    at = 0
    for part in [*covered, MessageSpan(len(data), len(data), KEEP)]:
        if part.start > at:
            empty = part.start - at <= _MOST_EMPTY and not any(data[at : part.start])
            out.append(MessageSpan(at, part.start, KEEP if empty else UNKNOWN))
        if part.end > max(part.start, at):
            out.append(part if part.start >= at else MessageSpan(at, part.end, UNKNOWN))
        at = max(at, part.end)
    return out


class _Walk:
    """Makes parts of nodes; they come in order of their bytes."""

    def __init__(self, data: bytes, topics: dict[str, str]) -> None:
        self._data = data
        self._topics = topics
        self._topic = ""
        self.parts: list[MessageSpan] = []

    def all(self, nodes: tuple[Node, ...], tagged: bool = False) -> None:
        names: dict[str, str] = {}
        for node in nodes:
            self._node(node, tagged)
            if node.name in NAMING_FIELDS and isinstance(node.value, str):
                names["topicId" if node.name == "topicId" else "name"] = node.value
        if len(names) == 2:
            self._topics[names["topicId"]] = names["name"]

    def _put(self, start: int, end: int, kind: int, topic: str = "") -> None:
        if end > start:
            self.parts.append(MessageSpan(start, end, kind, topic))

    def _node(self, node: Node, tagged: bool) -> None:
        if node.type in _NUMBERS:
            self._put(node.start, node.end, KEEP)
        elif node.type == "uuid":
            self._put(node.start, node.end - 16, KEEP)
            self._put(node.end - 16, node.end, IDENTIFIER)
            if node.name in TOPIC_FIELDS:
                self._topic = str(node.value)
        elif node.type in ("struct", "array", "tags"):
            inside = node.children[0].start if node.children else node.end
            # A marker, a count, a tag's number: what is more than those may be is none of them.
            self._put(node.start, inside, KEEP if inside - node.start <= 15 else UNKNOWN)
            self.all(node.children, node.type == "tags")
        elif node.type in ("string", "bytes", "records"):
            self._sized(node, tagged)
        elif node.type == "tag":
            at = self._varint(self._varint(node.start, node.end)[1], node.end)[1]
            self._put(node.start, at, KEEP)
            self._put(at, node.end, CONTENT)
        # else: a kind that is not known here is covered by nothing

    def _sized(self, node: Node, tagged: bool) -> None:
        at = self._content(node, tagged)
        if at is None:
            return
        self._put(node.start, at, KEEP)
        if at == node.end:
            return
        if node.secret:
            self._put(at, node.end, SECRET)
        elif node.type == "string":
            self._put(at, node.end, RELEASE if node.name == RELEASE_FIELD else TEXT)
            if node.name in TOPIC_FIELDS:
                self._topic = str(node.value)
        elif node.type == "records":
            self._put(at, node.end, RECORDS, self._topic)
        elif node.children and (node.children[0].start, node.children[-1].end) == (at, node.end):
            self.all(node.children)
        else:  # nothing is said of it, or it is not what was said
            self._put(at, node.end, CONTENT)

    def _content(self, node: Node, tagged: bool) -> int | None:
        """Where the content of a string or of bytes begins, behind its length; None where that cannot be."""
        start, end = node.start, node.end
        if tagged:
            start = self._varint(self._varint(start, end)[1], end)[1]
        if node.null:
            return end if end - start <= 5 else None
        width = 2 if node.type == "string" else 4
        if not tagged and end - start >= width:
            if int.from_bytes(self._data[start : start + width], "big") == end - start - width:
                return start + width
        size, at = self._varint(start, end)
        return at if size - 1 == end - at else None

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            byte = self._data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return value, at
