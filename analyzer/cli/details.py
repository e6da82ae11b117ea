"""Describe an exchange by its API in a few words: `commit`, `generation 3 leads 2 members`, `orders-0@120`.

In: an exchange with its topic-partitions and, for the APIs of `WITH_BODIES`, its decoded bodies. Out: text. Rules:
nothing of a secret; what is not decoded is left out; a list is cut after three, and says how many more there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from kwire.analyzer.cli.text import printable, size
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body

_LISTED = 3
"""Topic-partitions that a line names."""

_UUID = re.compile(r"\S*\b([0-9a-f]{8})(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What brokers and clients end the ids of members with; before it stands the client id, mostly."""

_JOINING, _LEAVING, _LEAVING_STATIC = 0, -1, -2
"""Member epochs that ask for something (KIP-848, and KIP-932 for share groups)."""


def detail(exchange: Any, short: bool = False) -> str:
    """The words for one exchange; empty where its API has none. `short`: of a member's id only what tells it from
    others."""
    row = exchange.row
    words = _PARTITIONS.get(row["api_key"], _of_offsets)(exchange) if exchange.partitions else ""
    of_bodies, _ = _BODIES.get(row["api_key"], _NOTHING)
    words = " ".join(filter(None, (words, of_bodies(exchange))))
    return _UUID.sub(r"…\1", words) if short else words


# ----------------------------------------------------------------------------------------------------- topic-partitions


def _named(exchange: Any, part: dict[str, Any]) -> str:
    topic = part["topic"] or (exchange.topic_name(part["topic_id"]) if part["topic_id"] else "?")
    return f"{printable(topic)}-{part['partition']}"


def _list(words: list[str], total: int) -> str:
    return ", ".join(words) + (f" and {total - len(words)} more" if total > len(words) else "")


def _of_offsets(exchange: Any) -> str:
    """`orders-0@120, orders-1@5 and 4 more`; partitions without an offset by name alone."""
    return _places(exchange, exchange.partitions)


def _places(exchange: Any, parts: list[dict[str, Any]]) -> str:
    words = [
        _named(exchange, part) + (f"@{part['offset']}" if part["offset"] is not None else "")
        for part in parts[:_LISTED]
    ]
    return _list(words, len(parts))


def _of_records(exchange: Any) -> str:
    """`orders-0@120 3 records 866 B (5 empty)`; where some partitions have records, others are only counted. Of batches
    that a share group gets whole for some of their records: `40 records (3 acquired)`."""
    parts = exchange.partitions
    counts = [part["record_count"] for part in parts if part["record_count"] is not None]
    sizes = [part["record_bytes"] for part in parts if part["record_bytes"] is not None]
    having = [part for part in parts if part["record_bytes"]] or parts
    words = [_places(exchange, having)]
    if counts:
        words.append(f"{sum(counts)} record{'s' * (sum(counts) != 1)}")
        acquired = [part["acquired"] for part in parts if part["acquired"] is not None]
        if acquired and sum(acquired) != sum(counts):
            words.append(f"({sum(acquired)} acquired)")
    if sizes:
        words.append(size(sum(sizes)))
    if len(having) < len(parts):
        words.append(f"({len(parts) - len(having)} empty)")
    return " ".join(words)


_PARTITIONS: dict[int, Callable[[Any], str]] = {
    api_keys.PRODUCE: _of_records,
    api_keys.FETCH: _of_records,
    api_keys.SHARE_FETCH: _of_records,
}


# --------------------------------------------------------------------------------------------------------------- bodies


def _body(body: Body | None) -> Body:
    """A body, of which nothing may be known. Only that of a side that is asked for is decoded."""
    return body or {}


def _end_txn(exchange: Any) -> str:
    committed = _body(exchange.request).get("committed")
    return "" if committed is None else "commit" if committed else "abort"


def _producer_id(exchange: Any) -> str:
    response = _body(exchange.response)
    given, epoch = response.get("producerId", -1), response.get("producerEpoch", -1)
    return f"producer {given} epoch {epoch}" if given >= 0 else ""


def _member(exchange: Any) -> str:
    """Of the classic protocol: generation and member."""
    row = exchange.row
    words = []
    if row["generation"] is not None and row["generation"] >= 0:
        words.append(f"generation {row['generation']}")
    if row["member_id"]:
        words.append(f"member {printable(row['member_id'])}")
    return " ".join(words)


def _join(exchange: Any) -> str:
    words, response = [_member(exchange)], _body(exchange.response)
    if exchange.row["error_code"] == 0 and response.get("leader") and response["leader"] == response.get("memberId"):
        members = len(response.get("members") or ())
        words.append(f"leads {members} member{'s' * (members != 1)}")
    return " ".join(filter(None, words))


def _heartbeat_epoch(exchange: Any) -> str:
    """Of KIP-848 and its kin: the epoch asked with, and the one given where that is another."""
    row = exchange.row
    sent, given = _body(exchange.request).get("memberEpoch"), _body(exchange.response).get("memberEpoch")
    if sent is None:
        words = []
    elif sent == _JOINING:
        words = ["joins"]
    elif sent == _LEAVING:
        words = ["leaves"]
    elif sent == _LEAVING_STATIC:
        words = ["leaves for a while"]
    else:
        words = [f"epoch {sent}"]
    if row["error_code"] == 0 and given is not None and given != sent and given >= 0:
        words.append(f"-> epoch {given}" if words else f"epoch {given}")
    if row["member_id"]:
        words.append(f"member {printable(row['member_id'])}")
    return " ".join(words)


def _coordinator(exchange: Any) -> str:
    response = _body(exchange.response)
    answers = response.get("coordinators") or [response]
    places = [
        f"node {answer['nodeId']} at {printable(str(answer['host']))}:{answer['port']}"
        for answer in answers
        if answer.get("nodeId", -1) >= 0
    ]
    return _list(list(dict.fromkeys(places))[:_LISTED], len(dict.fromkeys(places)))


def _software(exchange: Any) -> str:
    request = _body(exchange.request)
    words = [str(request.get(name) or "") for name in ("clientSoftwareName", "clientSoftwareVersion")]
    return printable(" ".join(filter(None, words)))


def _mechanism(exchange: Any) -> str:
    return printable(str(_body(exchange.request).get("mechanism") or ""))


def _no_words(exchange: Any) -> str:
    return ""


_NOTHING: tuple[Callable[[Any], str], tuple[str, ...]] = _no_words, ()

_BODIES: dict[int, tuple[Callable[[Any], str], tuple[str, ...]]] = {
    api_keys.END_TXN: (_end_txn, ("request",)),
    api_keys.INIT_PRODUCER_ID: (_producer_id, ("response",)),
    api_keys.JOIN_GROUP: (_join, ("response",)),
    api_keys.SYNC_GROUP: (_member, ()),
    api_keys.HEARTBEAT: (_member, ()),
    api_keys.LEAVE_GROUP: (_member, ()),
    api_keys.CONSUMER_GROUP_HEARTBEAT: (_heartbeat_epoch, ("request", "response")),
    api_keys.SHARE_GROUP_HEARTBEAT: (_heartbeat_epoch, ("request", "response")),
    api_keys.STREAMS_GROUP_HEARTBEAT: (_heartbeat_epoch, ("request", "response")),
    api_keys.FIND_COORDINATOR: (_coordinator, ("response",)),
    api_keys.API_VERSIONS: (_software, ("request",)),
    api_keys.SASL_HANDSHAKE: (_mechanism, ("request",)),
    api_keys.SASL_AUTHENTICATE: (_no_words, ("response",)),
}
"""The words for an exchange, and of which messages these and its result say something."""

WITH_BODIES = frozenset(api_key for api_key, (_, sides) in _BODIES.items() if sides)
"""APIs whose messages must be at hand: all small ones, so that a line costs no record batch."""

DIRECTIONS = {api_key: int(sides == ("response",)) for api_key, (_, sides) in _BODIES.items() if len(sides) == 1}
"""APIs of which the messages of one direction are enough: 0 requests, 1 responses."""

_BEFORE_CORRELATION_ID = {"request": 8, "response": 4}
"""Bytes of a frame: of length, API and version, behind which is the number that no two requests share."""


_LARGE = 1024
"""Bytes of a message from which no other is expected to be the same."""


def bodies(api_key: int | None, requests: Sequence[Any], responses: Sequence[Any]) -> list[Any]:
    """The bytes, but for correlation ids, of the messages on which the words for exchanges of an API depend: where
    these and all columns are the same, the words are. None: they are large.

    requests, responses: the bytes of the messages of each, None where there are none."""
    _, sides = _BODIES.get(-1 if api_key is None else api_key, _NOTHING)
    keys: list[list[bytes | None]] = []
    for side in sides:
        before, after = _BEFORE_CORRELATION_ID[side], _BEFORE_CORRELATION_ID[side] + 4
        messages = requests if side == "request" else responses
        keys.append([None if data is None else data[:before] + data[after:] for data in messages])
    if not keys:
        return [()] * len(requests)
    most = _LARGE - 4
    if len(keys) == 1:
        return [None if key is not None and len(key) > most else (key,) for key in keys[0]]
    return [None if max(len(key or b"") for key in some) > most else some for some in zip(*keys, strict=True)]


PARTITION_COLUMNS = frozenset(("topic", "topic_id", "partition", "offset", "record_count", "record_bytes", "acquired"))
"""Columns of `partitions` that the words for an exchange read."""
