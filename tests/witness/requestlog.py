"""A broker's request log as `Logged` lines: what the broker says that it was asked and that it answered.

Four formats: JSON from Kafka 2.7 on (logger at DEBUG), and the texts of 1.1 (`RequestHeader(apiKey=METADATA, ...) --`),
0.10 (`{api_key=3,...} -- {...} from connection ...`) and 0.8 (`Name: FetchRequest; Version: 0; ...`), which 0.10 still
uses for ControlledShutdown.
Only JSON has bodies that can be compared; the texts give API, version, correlation id, client id and the client's end.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.witness.reference import definitions

End = tuple[str, int]

# Kafka 0.8's request classes (kafka.api.RequestKeys), some under names that were changed later.
NAMES_0_8 = {
    "ProducerRequest": 0,
    "FetchRequest": 1,
    "OffsetRequest": 2,
    "TopicMetadataRequest": 3,
    "LeaderAndIsrRequest": 4,
    "StopReplicaRequest": 5,
    "UpdateMetadataRequest": 6,
    "ControlledShutdownRequest": 7,
    "OffsetCommitRequest": 8,
    "OffsetFetchRequest": 9,
    "ConsumerMetadataRequest": 10,
    "JoinGroupRequest": 11,
    "HeartbeatRequest": 12,
}

# `UPDATE_METADATA` for UpdateMetadataRequest, as Java's constants are.
API_KEYS = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", message["name"].removesuffix("Request")).upper(): api_key
    for (side, api_key, _), message in definitions().items()
    if side == "request"
}

LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] \w+ Completed request:(.*) \(kafka\.request\.logger\)$")
NAMED = re.compile(r"Name: ?(\w+); ?Version: ?(-?\d+);.*?CorrelationId: ?(-?\d+)")
NAMED_CLIENT = re.compile(r"; ?ClientId: ?(?:Some\(([^)]*)\)|([^;]*?))(?:;| from connection )")
HEADED = re.compile(r"RequestHeader\(apiKey=(\w+), apiVersion=(\d+), clientId=(.*?), correlationId=(-?\d+)\) -- ")
KEYED = re.compile(r"\{api_key=(\d+),api_version=(-?\d+),correlation_id=(-?\d+),client_id=(.*?)\} -- ")
REMOTE = re.compile(r",remoteTime:(\d+(?:\.\d+)?),")
FROM = re.compile(r" from (?:client /(\S+?)|connection (\S+?));totalTime:(\d+(?:\.\d+)?),")


@dataclass(frozen=True)
class Logged:
    """One request that the broker completed."""

    time: float
    """When the line was written (the response was sent), epoch seconds; its clock has milliseconds."""
    total_ms: float
    """From the request's arrival to the line."""
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client: End
    broker: End | None
    """None in 0.8, which did not log it."""
    forwarded: bool
    remote_ms: float | None = None
    """Of it, what the request waited without a thread: in purgatory, or for a coordinator's or controller's log."""
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None

    @property
    def arrival(self) -> float:
        return self.time - self.total_ms / 1000


def read(folder: Path) -> list[Logged]:
    """Every line of every request log in a capture's folder (one log a node)."""
    return [logged for path in sorted(folder.glob("requests*.log.gz")) for logged in lines(path)]


def lines(path: Path) -> Iterator[Logged]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = LINE.match(line.rstrip("\n"))
            if not match:
                raise ValueError(f"{path}:{number}: not a line of a request log: {line[:80]!r}")
            time = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
            yield from_json(time, match[2]) if match[2].startswith('{"') else from_text(time, match[2])


def from_json(time: float, text: str) -> Logged:
    entry = json.loads(text)
    header = entry["requestHeader"]
    broker, client = connection_ends(entry["connection"])
    return Logged(
        time=time,
        total_ms=entry["totalTimeMs"],
        api_key=header["requestApiKey"],
        api_version=header["requestApiVersion"],
        correlation_id=header["correlationId"],
        client_id=header.get("clientId"),
        client=client,
        broker=broker,
        forwarded=entry.get("isForwarded", False),
        remote_ms=entry["remoteTimeMs"],
        request=entry["request"],
        response=entry["response"],
    )


def from_text(time: float, text: str) -> Logged:
    source = FROM.search(text)
    if not source:
        raise ValueError(f"no connection in {text[:80]!r}")
    broker, client = connection_ends(source[2]) if source[2] else (None, end(source[1]))
    if keyed := KEYED.match(text):
        key, version, correlation_id, client_id = int(keyed[1]), int(keyed[2]), int(keyed[3]), keyed[4]
    elif headed := HEADED.match(text):
        key, version, correlation_id, client_id = API_KEYS[headed[1]], int(headed[2]), int(headed[4]), headed[3]
    elif named := NAMED.match(text):
        key, version, correlation_id = NAMES_0_8[named[1]], int(named[2]), int(named[3])
        client_match = NAMED_CLIENT.search(text)
        # ControlledShutdown v0 has no client id, neither in the log nor in its header.
        client_id = (client_match[1] or client_match[2] or "") if client_match else None
    else:
        raise ValueError(f"none of the text formats: {text[:80]!r}")
    remote = REMOTE.search(text, source.start())
    return Logged(
        time,
        float(source[3]),
        key,
        version,
        correlation_id,
        client_id,
        client,
        broker,
        forwarded=False,
        remote_ms=float(remote[1]) if remote else None,
    )


def connection_ends(connection: str) -> tuple[End, End]:
    """`BROKER:PORT-CLIENT:PORT-INDEX[-N]` as (broker, client); IPv6 addresses are written without brackets."""
    broker, client = re.split(r"(?<=\d)-", connection)[:2]
    return end(broker), end(client)


def end(text: str) -> End:
    host, _, port = text.rpartition(":")
    return canonical(host.strip("[]")), int(port)


def canonical(host: str) -> str:
    """The address as Python prints it: Java writes IPv6 with all its zeros."""
    import ipaddress

    return str(ipaddress.ip_address(host))
