"""Keys and values of records as trees: their fields, with their bytes as far as the format allows.

In: what `PayloadDecoder` decodes. Out: an `Embedded` whose nodes have spans in the key or value: those of Avro and
Protobuf their own, those of other formats, and of compressed payloads, none (they begin and end at the value's start).
Values are text as in JSON. Nothing raises, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kwire.analyzer.payloads import json_text
from kwire.analyzer.payloads.decoder import TEXT, PayloadDecoder
from kwire.analyzer.payloads.framing import CONFLUENT, FRAMING
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError
from kwire.analyzer.protocol.embedded import Embedded
from kwire.analyzer.protocol.tree import Node

_FORMATS: Final = {"json_schema": "JSON Schema", "json": "JSON", "avro": "Avro", "protobuf": "Protobuf"}


class PayloadTrees:
    """Reads keys and values for trees, as `embedded.PayloadReader`."""

    def __init__(self, decoder: PayloadDecoder, limits: PayloadLimits | None = None) -> None:
        self._decoder = decoder
        self._limits = limits or PayloadLimits()

    def __call__(self, data: bytes, topic: str, side: str, headers: Mapping[str, bytes]) -> Embedded | None:
        """Return what a key or value (`side`) is; None: text, or bytes of no known format."""
        payload = self._decoder.decode(data, topic, side, headers)
        if payload.format == TEXT or (payload.format is None and payload.schema_id is None):
            return None
        name = _FORMATS.get(payload.format or "", payload.format)
        kind = f"{name}, schema {payload.schema_id}" if name and payload.schema_id else name
        if payload.json is None:
            return Embedded(kind, None, None, (), payload.reason)
        try:
            nodes = self._nodes(data, topic, side, headers, payload.format, payload.json)
        except UndecodableError as failure:
            return Embedded(kind, None, None, (), str(failure))
        return Embedded(kind, None, {}, nodes, payload.reason)

    def _nodes(
        self,
        data: bytes,
        topic: str,
        side: str,
        headers: Mapping[str, bytes],
        format: str | None,
        text: bytes,
    ) -> tuple[Node, ...]:
        """Return the nodes of a payload that decodes. Raises UndecodableError."""
        nodes, frame = None, None
        if format in _FORMATS:
            nodes, frame = self._decoder.nodes(data, topic, side, headers)
        if frame is not None and frame.data is not data and nodes is not None:
            nodes = _without_spans(nodes)
        nodes = None if nodes is None else tuple(map(_plain, nodes))
        if nodes is None:
            nodes = self._of_json(json_text.load(text), 0)
        if frame is not None and frame.registry == CONFLUENT and frame.data is data:
            nodes = (Node("framing", FRAMING, f"magic 0, schema {frame.schema_id}", 0, frame.start), *nodes)
        return nodes

    def _of_json(self, value: Any, depth: int) -> tuple[Node, ...]:
        """Return the parts of a value of JSON."""
        if isinstance(value, dict):
            parts = [(str(name), part) for name, part in value.items()]
        elif isinstance(value, list):
            parts = [(f"[{i}]", part) for i, part in enumerate(value)]
        else:
            return (_leaf("value", value),)
        if depth >= self._limits.depth:
            return (Node("…", "rest", "nested too deeply", 0, 0),)
        return tuple(self._part(name, part, depth) for name, part in parts)

    def _part(self, name: str, value: Any, depth: int) -> Node:
        if isinstance(value, list):
            return Node(name, "array", len(value), 0, 0, self._of_json(value, depth + 1))
        if isinstance(value, dict):
            return Node(name, "struct", None, 0, 0, self._of_json(value, depth + 1))
        return _leaf(name, value)


def _leaf(name: str, value: Any) -> Node:
    text = value if isinstance(value, str) else json_text.dump(value).decode()
    return Node(name, "json", text, 0, 0, null=value is None)


def _plain(node: Node) -> Node:
    """Return a field with its value as JSON has it."""
    value = node.value
    if node.children:
        return node._replace(children=tuple(map(_plain, node.children)))
    if isinstance(value, bool):
        value = "true" if value else "false"
    return node._replace(value=value)


def _without_spans(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return nodes of bytes that are not in the message: they were compressed, or stand in a header."""
    return tuple(node._replace(start=0, end=0, children=_without_spans(node.children)) for node in nodes)
