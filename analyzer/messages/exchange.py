"""One exchange with its decoded bodies.

In: a row of `exchanges`, and the raw messages where they are at hand. Out: bodies in Kafka's JSON names, trees of
nodes, embedded formats, JSON. Bodies are decoded when they are asked for.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from kwire.analyzer.bulk.rows import Message
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.protocol import api_keys, embedded, tree
from kwire.analyzer.protocol.budget import BYTES, FIELDS, PAGE, Budget
from kwire.analyzer.protocol.embedded import GroupFacts, GroupProtocols, Opened, PayloadReader
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE


@dataclass(slots=True)
class Exchange:
    """One exchange: `row` has the columns of the table `exchanges`, also reachable as attributes (`exchange.api`);
    `request` and `response` are the decoded bodies in Kafka's JSON names, None where not decoded or not seen.
    `capture_start` is the time of the capture's first packet; `partitions`: its rows of that table, where they were
    asked for; `payloads` reads keys and values of records for trees."""

    row: dict[str, Any]
    request_message: Message | None = field(default=None, repr=False)
    response_message: Message | None = field(default=None, repr=False)
    capture_start: datetime.datetime | None = None
    _topic_name: Callable[[str], str] = field(default=str, repr=False)
    partitions: list[dict[str, Any]] = field(default_factory=list, repr=False)
    _bodies: dict[str, Any] = field(default_factory=dict, repr=False)
    _group: GroupFacts = field(default_factory=dict, repr=False)
    payloads: PayloadReader | None = field(default=None, repr=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "row")[name]
        except (KeyError, AttributeError):
            raise AttributeError(f"an exchange has no {name!r}") from None

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *object.__getattribute__(self, "row")})

    def topic_name(self, topic_id: str) -> str:
        """The name of a topic id, where the capture says it; else the id."""
        return self._topic_name(topic_id)

    @property
    def request(self) -> dict[str, Any] | None:
        """The request's body."""
        return self._body("request")

    @property
    def response(self) -> dict[str, Any] | None:
        """The response's body."""
        return self._body("response")

    def _body(self, side: str) -> dict[str, Any] | None:
        if side not in self._bodies:
            decoded = self.decoded(side) if self.row[f"{side}_state"] == "decoded" else None
            self._bodies[side] = decoded.body if decoded is not None else None
        body: dict[str, Any] | None = self._bodies[side]
        return body

    def decoded(self, side: str, *, nodes: bool = False, budget: Budget | None = None) -> tree.Decoded | None:
        """`request` or `response` decoded as far as it goes, with its tree of nodes if asked for, embedded formats
        nested in it; None: not at hand. `budget`: what its records may cost."""
        decoded = self._decoded(side, nodes)
        if decoded is None or not nodes:
            return decoded
        return decoded._replace(nodes=self._opened(decoded, side, nodes=True, budget=budget)[0])

    def embedded(
        self, budget: int = BYTES, page: int = 1, sides: Collection[str] = ("request", "response")
    ) -> list[dict[str, Any]]:
        """Decode `bytes` fields of messages, and records that have a format of their own (`embedded.listed`).

        `path` is as in what `json` returns. `sides`: of which messages. `budget`: bytes that the records of a message
        may become; `page`: which thousand of them."""
        listing: list[dict[str, Any]] = []
        for side, direction in (("request", REQUEST), ("response", RESPONSE)):
            if side not in sides:
                continue
            key = self.row["api_key"], direction
            records = key in embedded.RECORD_FIELDS and _has_records(self._body(side))
            if not records and not embedded.has_embedded(*key):
                continue
            decoded = self._decoded(side, True) if self.row[f"{side}_state"] == "decoded" else None
            if decoded is not None:
                spent = Budget(bytes=budget, nodes=PAGE * page)
                listed = embedded.listed(self._opened(decoded, side, nodes=False, budget=spent)[1], f"{side}.")
                stops = [entry for entry in listed if "left_out" in entry]
                listing += [entry for entry in listed if "left_out" not in entry][
                    PAGE * (page - 1) : PAGE * page
                ] + stops
        return listing

    def record_sets(self) -> list[tuple[str, bytes]]:
        """Return the topics of both messages' record sets, and their bytes."""
        from kwire.analyzer.records.record_trees import CLUSTER_METADATA, CLUSTER_METADATA_ID, RecordSet

        sets: list[tuple[str, bytes]] = []
        for side, direction in (("request", REQUEST), ("response", RESPONSE)):
            fields = embedded.RECORD_FIELDS.get((self.row["api_key"], direction))
            decoded = self._decoded(side, True) if fields and self.row[f"{side}_state"] == "decoded" else None
            if fields is None or decoded is None:
                continue
            path, topics = fields

            def collect(data: bytes, facts: GroupFacts, topics: Sequence[str] = topics) -> RecordSet:
                named = next((facts[topic] for topic in topics if facts.get(topic)), "")
                sets.append((CLUSTER_METADATA if named == CLUSTER_METADATA_ID else self.topic_name(named), data))
                return RecordSet((), (), 0, 0)

            embedded.nested(decoded.nodes, {path: collect}, {})
        return sets

    def _opened(
        self, decoded: tree.Decoded, side: str, *, nodes: bool, budget: Budget | None = None
    ) -> tuple[tuple[tree.Node, ...], Sequence[tuple[str, Opened]]]:
        """A message's tree with embedded formats and records as children, and these by path; `nodes=False`: nobody
        wants the trees of records."""
        key = decoded.api_key, decoded.direction
        if key not in embedded.RECORD_FIELDS:
            return embedded.in_message(decoded, self._request_fields(side), self._group)
        from kwire.analyzer.records import record_trees as record_tree

        openers = record_tree.openers(*key, self._topic_name, nodes=nodes, budget=budget, payloads=self.payloads)
        return embedded.nested(decoded.nodes, openers, {})

    def learn_group(self, groups: GroupProtocols) -> None:
        """Learn from this message about its group; `groups` knows earlier messages."""
        if self.row["api_key"] in embedded.GROUP_APIS:
            self._group = groups.learn(self.request, self.response)

    def _request_fields(self, side: str) -> dict[str, Any] | None:
        return self.request if side == "response" else None

    def _decoded(self, side: str, nodes: bool) -> tree.Decoded | None:
        message = self.request_message if side == "request" else self.response_message
        if message is None or len(message.data) < 4:
            return None
        frame = message.data[4:]
        if side == "request":
            return tree.decode_request(frame, tree=nodes, max_rows=FIELDS)
        if self.row["api_key"] is None or self.row["api_version"] is None:
            return None
        inner = None
        if self.row["api_key"] == api_keys.ENVELOPE and self.request_message is not None:
            inner = tree.envelope_inner(self.request_message.data[4:])
        key, version = self.row["api_key"], self.row["api_version"]
        return tree.decode_response(frame, key, version, tree=nodes, inner=inner, max_rows=FIELDS)

    def json(self, budget: int = BYTES, page: int = 1) -> dict[str, Any]:
        """Return what `kwire show --json` prints: the row, the bodies, and `embedded` where they have any (`budget`
        and `page`: of what is in records); `not_shown` says why a decoded message has no body.

        The bodies stay as Kafka's own JSON converters print them, with base64 where a format of its own is inside; so
        what is inside stands beside them."""
        shown = {name: _json_value(value) for name, value in self.row.items()}
        shown |= {"request": self.request, "response": self.response}
        inside = self.embedded(budget, page)
        if inside:
            shown["embedded"] = inside
        hidden = {
            side: f"more than {FIELDS:,} fields and elements"
            for side in ("request", "response")
            if shown[side] is None and self.row[f"{side}_state"] == "decoded" and self._at_hand(side)
        }
        return {**shown, "not_shown": hidden} if hidden else shown

    def _at_hand(self, side: str) -> bool:
        return (self.request_message if side == "request" else self.response_message) is not None


def _has_records(body: Any) -> bool:
    """Are there bytes in any records field of a body?"""
    if isinstance(body, dict):
        return any(
            bool(value) if key.endswith("ecordsSizeInBytes") else _has_records(value) for key, value in body.items()
        )
    return isinstance(body, list) and any(_has_records(item) for item in body)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return rfc3339(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
