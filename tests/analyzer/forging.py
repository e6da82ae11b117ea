"""Forge Kafka conversations for tests, and read them with kwire.

Messages are encoded by `kwire.analyzer.protocol.encoding`, which the golden files prove against Kafka's own code;
packets are made by `tests.captures.forge`. `read` also checks the coverage of each capture, in every test that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kwire import analyzer
from kwire.analyzer.dataset.tables import OPAQUE_REASONS
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from tests.captures.forge import TO_BROKER, TO_CLIENT, Record, Segment, Write, pcap, rendered

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 10, 11, 12, 14
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE, CONSUMER_GROUP_HEARTBEAT = 17, 18, 36, 68

CLIENT_ID = "orders-app"


def framed(message: bytes) -> bytes:
    """Return a message with its length before it, as on the wire."""
    return len(message).to_bytes(4, "big") + message


def request(
    api_key: int, version: int, correlation_id: int, body: Mapping[str, Any], client_id: str | None = CLIENT_ID
) -> bytes:
    """Encode a request as on the wire, with its length."""
    return framed(encode_request(api_key, version, correlation_id, client_id, body))


def response(api_key: int, version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """Encode a response as on the wire, with its length."""
    return framed(encode_response(api_key, version, correlation_id, body))


def heartbeat(correlation_id: int, member: str = "member-1", client_id: str | None = CLIENT_ID) -> bytes:
    """Encode a small request: Heartbeat v0."""
    return request(
        HEARTBEAT, 0, correlation_id, {"groupId": "g", "generationId": 7, "memberId": member}, client_id=client_id
    )


def heartbeat_answer(correlation_id: int, error: int = 0) -> bytes:
    return response(HEARTBEAT, 0, correlation_id, {"errorCode": error})


def fetch(correlation_id: int, topic: str = "orders", client_id: str | None = CLIENT_ID) -> bytes:
    """Encode a Fetch v11 request of one partition."""
    body = {
        "replicaId": -1,
        "maxWaitMs": 500,
        "minBytes": 1,
        "maxBytes": 1 << 20,
        "isolationLevel": 0,
        "sessionId": 0,
        "sessionEpoch": -1,
        "forgottenTopicsData": [],
        "rackId": "",
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": 0,
                        "currentLeaderEpoch": 3,
                        "fetchOffset": 100,
                        "logStartOffset": -1,
                        "partitionMaxBytes": 1 << 20,
                    }
                ],
            }
        ],
    }
    return request(FETCH, 11, correlation_id, body, client_id)


def fetched(index: int, records: bytes | None, error: int = 0) -> dict[str, Any]:
    """Return a partition of an answer to Fetch."""
    return {
        "partitionIndex": index,
        "errorCode": error,
        "highWatermark": 140,
        "lastStableOffset": 140,
        "logStartOffset": 0,
        "abortedTransactions": None,
        "preferredReadReplica": -1,
        "records": records,
    }


def fetch_answer(
    correlation_id: int, records: bytes = b"", topic: str = "orders", partitions: Sequence[dict[str, Any]] = ()
) -> bytes:
    """Encode an answer to `fetch`: one partition with records, or these `partitions`."""
    body = {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "sessionId": 0,
        "responses": [{"topic": topic, "partitions": [*partitions] or [fetched(0, records)]}],
    }
    return response(FETCH, 11, correlation_id, body)


def produce(correlation_id: int, version: int = 9, acks: int = 1, records: bytes = b"", topic: str = "orders") -> bytes:
    """Encode a Produce request to one partition."""
    body: dict[str, Any] = {
        "acks": acks,
        "timeoutMs": 30_000,
        "topicData": [{"name": topic, "partitionData": [{"index": 0, "records": records}]}],
    }
    if version >= 3:
        body["transactionalId"] = None
    if version >= 13:
        body["topicData"][0] = {"topicId": TOPIC_ID, "partitionData": [{"index": 0, "records": records}]}
    return request(PRODUCE, version, correlation_id, body)


def produce_answer(correlation_id: int, version: int = 9, error: int = 0, topic: str = "orders") -> bytes:
    partition: dict[str, Any] = {"index": 0, "errorCode": error, "baseOffset": 40}
    if version >= 2:
        partition["logAppendTimeMs"] = -1
    if version >= 5:
        partition["logStartOffset"] = 0
    if version >= 8:
        partition |= {"recordErrors": [], "errorMessage": None}
    named = {"topicId": TOPIC_ID} if version >= 13 else {"name": topic}
    body: dict[str, Any] = {"responses": [{**named, "partitionResponses": [partition]}]}
    if version >= 1:
        body["throttleTimeMs"] = 0
    return response(PRODUCE, version, correlation_id, body)


TOPIC_ID = "bhKdRFlUTxm8CYU7_D3L8w"


def metadata(correlation_id: int, topics: Sequence[str] = ("orders",)) -> bytes:
    """Encode a Metadata v9 request (flexible)."""
    body = {
        "topics": [{"name": topic} for topic in topics],
        "allowAutoTopicCreation": False,
        "includeClusterAuthorizedOperations": False,
        "includeTopicAuthorizedOperations": False,
    }
    return request(METADATA, 9, correlation_id, body)


def metadata_answer(correlation_id: int, topics: Sequence[str] = ("orders",), host: str = "broker-1") -> bytes:
    body = {
        "throttleTimeMs": 0,
        "clusterId": "c",
        "controllerId": 1,
        "brokers": [{"nodeId": 1, "host": host, "port": 9092, "rack": None}],
        "topics": [
            {
                "errorCode": 0,
                "name": topic,
                "isInternal": False,
                "partitions": [
                    {
                        "errorCode": 0,
                        "partitionIndex": 0,
                        "leaderId": 1,
                        "leaderEpoch": 0,
                        "replicaNodes": [1],
                        "isrNodes": [1],
                        "offlineReplicas": [],
                    }
                ],
            }
            for topic in topics
        ],
    }
    return response(METADATA, 9, correlation_id, body)


def asking(data: bytes, time_ns: int | None = None) -> Write:
    """Return a write of the client."""
    return Write(TO_BROKER, data, time_ns)


def answering(data: bytes, time_ns: int | None = None) -> Write:
    """Return a write of the broker."""
    return Write(TO_CLIENT, data, time_ns)


def turns(ids: Iterable[int], ask: Callable[[int], bytes] = heartbeat, answer: Any = heartbeat_answer) -> list[Write]:
    """Return requests and their answers, one after the other."""
    return [write for number in ids for write in (asking(ask(number)), answering(answer(number)))]


def payloads(segments: Sequence[Segment], to_broker: bool, broker_port: int = 9092) -> list[int]:
    """Return the positions of the packets of one direction that have payload."""
    return [
        index
        for index, segment in enumerate(segments)
        if segment.payload and (segment.target[1] == broker_port) == to_broker
    ]


def without(segments: Sequence[Segment], *positions: int) -> list[Segment]:
    return [segment for index, segment in enumerate(segments) if index not in positions]


def swapped(segments: Sequence[Segment], a: int, b: int) -> list[Segment]:
    """Swap two packets, each at the other's time."""
    out = list(segments)
    out[a], out[b] = _at(segments[b], segments[a].time_ns), _at(segments[a], segments[b].time_ns)
    return out


def _at(segment: Segment, time_ns: int) -> Segment:
    from dataclasses import replace

    return replace(segment, time_ns=time_ns)


@dataclass(frozen=True)
class CaptureRows:
    """Result of reading a capture: rows of exchanges and connections, coverage, and the tables."""

    exchanges: list[dict[str, Any]]
    connections: list[dict[str, Any]]
    coverage: dict[str, Any]
    unrecognised: dict[str, Any]
    tables: dict[str, pa.Table]

    @property
    def only(self) -> dict[str, Any]:
        """Return the only exchange."""
        assert len(self.exchanges) == 1, self.brief()
        return self.exchanges[0]

    @property
    def connection(self) -> dict[str, Any]:
        """Return the only connection."""
        assert len(self.connections) == 1, self.connections
        return self.connections[0]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.exchanges]

    def brief(self) -> list[tuple[Any, ...]]:
        """Return (api, correlation id, status, request state, response state) of each exchange."""
        return [
            (row["api"], row["correlation_id"], row["status"], row["request_state"], row["response_state"])
            for row in self.exchanges
        ]

    def where(self, **values: Any) -> dict[str, Any]:
        """Return the only exchange with these values."""
        matches = [row for row in self.exchanges if all(row[name] == value for name, value in values.items())]
        assert len(matches) == 1, (values, self.brief())
        return matches[0]


TABLE_NAMES = ("exchanges", "partitions", "connections", "leaders", "brokers", "api_versions", "topic_ids")


def read(
    folder: Path, packets: Sequence[Segment] | Sequence[Record] | bytes, *, link: int = 1, **settings: Any
) -> CaptureRows:
    """Write a capture, analyse it, and check its coverage."""
    path = folder / "capture.pcap"
    if isinstance(packets, bytes):
        path.write_bytes(packets)
    else:
        records = [packet for packet in packets if isinstance(packet, Record)]
        records = records or rendered([packet for packet in packets if isinstance(packet, Segment)], link)
        path.write_bytes(pcap(records, link, nanoseconds=True))
    return read_files(path, **settings)


def read_files(path: Path | list[str], **settings: Any) -> CaptureRows:
    """Analyse captures, and check that the coverage adds up."""
    files = [str(file) for file in path] if isinstance(path, list) else str(path)
    dataset = analyzer.analyze(files, **settings)
    tables = {name: getattr(dataset, name) for name in TABLE_NAMES}
    connections = tables["connections"].to_pylist()
    check_coverage(dataset.coverage, connections)
    return CaptureRows(tables["exchanges"].to_pylist(), connections, dataset.coverage, dataset.unrecognised, tables)


_PARTS = ("duplicate_bytes", "decoded_bytes", "opaque_bytes", "skipped_bytes", "incomplete_bytes")


def check_coverage(coverage: Mapping[str, Any], connections: Sequence[Mapping[str, Any]]) -> None:
    """Check that every payload byte is in exactly one class, for each connection and in total."""
    for row in [*connections, coverage]:
        assert row["payload_bytes"] == sum(row[part] for part in _PARTS), dict(row)
        assert all(row[part] >= 0 for part in (*_PARTS, "gap_bytes", "snaplen_bytes")), dict(row)
    for row in connections:
        assert 0 <= row["snaplen_record_bytes"] <= row["snaplen_bytes"], row
        assert row["opaque_bytes"] == sum(row[f"opaque_{reason}_bytes"] for reason in OPAQUE_REASONS), row
        assert row["payload_bytes"] == row["client_bytes"] + row["broker_bytes"], row
    for name in ("payload_bytes", *_PARTS, "gap_bytes", "snaplen_bytes"):
        assert coverage[name] == sum(row[name] for row in connections), name
    assert coverage["opaque_bytes"] == sum(coverage["opaque"].values())


@functools.cache
def batch(records: int = 3, size: int = 50) -> bytes:
    """Encode a record batch v2 (KIP-98): `records` records with values of `size` bytes, none of them zero."""
    from tests.bench.messages import batch as encode_batch
    from tests.bench.messages import record

    return encode_batch(
        [record(number, b"key", bytes(1 + (number + k) % 250 for k in range(size))) for number in range(records)]
    )
