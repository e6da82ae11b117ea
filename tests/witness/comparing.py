"""Compare a broker's log with the exchanges of the packets: pair them, and list differences.

The exceptions to "equal, field for field" stand here by name, each with its reason; there are no others.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.witness.reference import Exchange
from tests.witness.requestlog import Logged

EDGE_SECONDS: Final = 0.05
"""Log lines this close to the first or the last packet may lie on the other side of the capture's edge."""

# Fields that Kafka renamed: (API key, side, path as an older broker logs it) -> the name in the definitions we use.
# The last part of the path is renamed; the wire is the same.
RENAMED: Final[dict[tuple[int, str, str], str]] = {
    (1, "response", "responses.partitionResponses"): "partitions",
    (1, "response", "responses.partitionResponses.partition"): "partitionIndex",
    (1, "response", "responses.partitionResponses.recordSet"): "records",
    (4, "request", "topicStates.partitionStates.zkVersion"): "partitionEpoch",
    (8, "request", "generationId"): "generationIdOrMemberEpoch",
    (24, "request", "transactionalId"): "v3AndBelowTransactionalId",
    (24, "request", "producerId"): "v3AndBelowProducerId",
    (24, "request", "producerEpoch"): "v3AndBelowProducerEpoch",
    (24, "request", "topics"): "v3AndBelowTopics",
    (24, "response", "results"): "resultsByTopicV3AndBelow",
    (24, "response", "results.results"): "resultsByPartition",
    (24, "response", "results.results.errorCode"): "partitionErrorCode",
    (28, "request", "generationId"): "generationIdOrMemberEpoch",
    (52, "request", "topics.partitions.candidateEpoch"): "replicaEpoch",
    (52, "request", "topics.partitions.candidateId"): "replicaId",
    (52, "request", "topics.partitions.candidateDirectoryId"): "replicaDirectoryId",
    (56, "request", "topics.name"): "topicName",
    (88, "response", "acceptableRecoveryLag"): "acceptableRecoveryLagLegacy",
    (56, "request", "topics.partitions.currentIsrVersion"): "partitionEpoch",
    (56, "response", "topics.name"): "topicName",
    (56, "response", "topics.partitions.currentIsrVersion"): "partitionEpoch",
}

# Secrets: kwire says only how long they are.
SECRETS: Final[frozenset[tuple[int, str, str]]] = frozenset(
    {
        (36, "request", "authBytes"),
        (36, "response", "authBytes"),
        (38, "response", "hmac"),
        (39, "request", "hmac"),
        (40, "request", "hmac"),
        (41, "response", "tokens.hmac"),
        (51, "request", "upsertions.salt"),
        (51, "request", "upsertions.saltedPassword"),
    }
)

ENVELOPED: Final = frozenset({(58, "request", "requestData"), (58, "response", "responseData")})

# Responses that the broker logged as sent and that never were whole on the wire: the client was killed or had closed
# its end (the request is in the capture and compared). Capture -> (API key, how many).
CUT_OFF: Final[dict[str, dict[int, int]]] = {
    "cluster-kraft-3.9": {1: 5},
    "cluster-zk-2.8": {1: 1},
    "group-classic-librdkafka-4.3": {1: 2},
    "group-kip848-librdkafka-4.3": {1: 1},
    "old-librdkafka-1.3.0-on-3.9": {3: 1},
    "txn-librdkafka-4.3": {3: 1},
}

# Requests whose header bytes the snap length cut away (they begin behind byte 96 of a packet). Capture -> how many.
HEADERS_CUT: Final[dict[str, int]] = {"snaplen-96-4.3": 2}


@dataclass(frozen=True)
class Difference:
    """One field that is not equal; `absent` stands for a field that is not there."""

    path: str
    logged: Any
    read: Any

    def __str__(self) -> str:
        return f"{self.path}: the broker logged {self.logged!r:.200}, read was {self.read!r:.200}"


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = _Absent()


def expected(
    logged: Iterable[Logged], ports: set[int], first: float, last: float, midstream: bool = False
) -> list[Logged]:
    """The log lines that the capture must have: on its ports, not forwarded in an Envelope (those have no frame of
    their own), written inside the capture's time. Where the capture began in mid-stream, the request must also have
    arrived inside it."""
    begin, end = first + EDGE_SECONDS, last - EDGE_SECONDS
    return [
        line
        for line in logged
        if not line.forwarded
        and (line.broker is None or line.broker[1] in ports)
        and begin <= line.time <= end
        and (not midstream or line.arrival >= begin)
    ]


def key(logged: Logged | Exchange, with_client_id: bool = True) -> tuple[Any, ...]:
    """Return the values that a log line and its exchange have in common."""
    # 0.8 logs only the client's end of the connection; that is enough on one broker. No log tells null from empty.
    named = (logged.client_id or "",) if with_client_id else ()
    return (logged.client, logged.api_key, logged.api_version, logged.correlation_id, *named)


def paired(
    lines: list[Logged], everything: list[Logged], exchanges: Iterable[Exchange], with_client_id: bool = True
) -> Iterator[tuple[Logged, Exchange | None]]:
    """Each expected line with its exchange, or None. Correlation ids repeat, so several lines may have one key: they
    are in the wire's order within a connection, and so are the exchanges. `everything` is the whole log, of which
    `lines` are some (the same objects): where it has as many lines of a key as the capture has exchanges, they belong
    together in order, else by time of arrival."""
    by_key: dict[tuple[Any, ...], list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        if exchange.api_key is not None:
            by_key[key(exchange, with_client_id)].append(exchange)
    in_log: dict[tuple[Any, ...], list[Logged]] = defaultdict(list)
    for line in everything:
        if not line.forwarded:
            in_log[key(line, with_client_id)].append(line)
    wanted = {id(line) for line in lines}
    for same, of_log in in_log.items():
        of_capture = sorted(by_key.get(same, []), key=lambda exchange: exchange.request_time or 0)
        if len(of_capture) == len(of_log):
            pairs: list[tuple[Logged, Exchange | None]] = list(zip(of_log, of_capture, strict=True))
        else:
            pairs = []
            for line in (line for line in of_log if id(line) in wanted):
                nearest = min(of_capture, key=lambda exchange: _apart(line, exchange), default=None)
                if nearest is not None:
                    of_capture.remove(nearest)
                pairs.append((line, nearest))
        yield from ((line, exchange) for line, exchange in pairs if id(line) in wanted)


def _apart(line: Logged, exchange: Exchange) -> float:
    """Seconds between the packet of a request and its arrival in the broker."""
    return abs((exchange.request_time or 0) / 1e9 - line.arrival)


def renamed(body: Any, api_key: int, side: str, path: str = "") -> Any:
    """A logged body with the names that Kafka has since given its fields. The parts of `path` are the logged names."""
    if isinstance(body, list):
        return [renamed(element, api_key, side, path) for element in body]
    if not isinstance(body, dict):
        return body
    out = {}
    for name, value in body.items():
        here = f"{path}.{name}" if path else name
        new = RENAMED.get((api_key, side, here), name)
        if name.endswith("SizeInBytes"):
            bare = RENAMED.get((api_key, side, here.removesuffix("SizeInBytes")))
            new = f"{bare}SizeInBytes" if bare else name
        out[new] = renamed(value, api_key, side, here)
    return out


def differences(line: Logged, side: str, read: dict[str, Any], secrets_shown: bool) -> list[Difference]:
    """How the body that was read differs from the logged one. `secrets_shown`: the reader hides nothing (reference)."""
    logged = line.request if side == "request" else line.response
    if line.api_key == 18 and logged == {} and side == "request" and (line.response or {}).get("errorCode") == 35:
        # The broker does not know this version of ApiVersions, so it logs an empty request (KIP-511).
        return []
    return list(_differences(renamed(logged, line.api_key, side), read, line.api_key, side, "", secrets_shown))


def _differences(logged: Any, read: Any, api_key: int, side: str, path: str, shown: bool) -> Iterator[Difference]:
    if isinstance(logged, dict) and isinstance(read, dict):
        for name in sorted(logged.keys() | read.keys()):
            here = f"{path}.{name}" if path else name
            if (api_key, side) == (78, "response") and here.startswith("responses.partitions.records"):
                # ShareFetch: the log prints records as an empty string instead of their size.
                if name == "recordsSizeInBytes" and not isinstance(read[name], int):
                    yield Difference(here, logged.get("records"), read[name])
                continue
            yield from _differences(logged.get(name, ABSENT), read.get(name, ABSENT), api_key, side, here, shown)
    elif isinstance(logged, list) and isinstance(read, list):
        if len(logged) != len(read):
            yield Difference(path + "[]", f"{len(logged)} elements", f"{len(read)} elements")
        for element, other in zip(logged, read, strict=False):
            yield from _differences(element, other, api_key, side, path, shown)
    elif (api_key, side, path) in SECRETS and not shown and logged not in (ABSENT, None, ""):
        length = len(base64.b64decode(logged))
        if read == logged or not re.search(rf"\b{length}\b", str(read)):
            yield Difference(path, f"a secret of {length} bytes", read)
    elif (api_key, side, path) in ENVELOPED and isinstance(read, dict) and not shown and logged:
        # What an Envelope carries is a secret where the message inside has one; else it is shown and compared.
        if list(read.values()) != [len(base64.b64decode(logged))]:
            yield Difference(path, f"{len(base64.b64decode(logged))} bytes", read)
    elif type(logged) is not type(read) or logged != read:
        yield Difference(path, logged, read)
