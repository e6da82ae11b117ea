"""A broker that does not mean well, without a network: it answers as the captured one did, and then breaks answers.

In: captured sessions, a generator. Out: a `Cluster`, whose `dial` opens links to it in whatever time the event loop
has. Whatever the capture has no answer to gets its API's empty one. What is broken: bytes of a frame (cut, repeated,
sizes and counts replaced), values of a body (integers, error codes, names, lists), and what a connection does
(another's correlation id, an answer twice, none, an end).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.protocol import api_keys, tree
from kwire.analyzer.protocol.encoding import EncodeError, encode_response
from kwire.replay.plan.sessions import Session
from kwire.replay.send.link import LinkError, Receiver
from tests.fuzz.mutations import EDITS, EVIL_INT32

HOST: Final = "127.0.0.1"
PORT: Final = 9092
NAMES: Final = ("", "\x1b[2J", "\u202eevil", "a" * 300, "__consumer_offsets", "orders", "*")
CODES: Final = (
    0,
    -1,
    1,
    3,
    5,
    6,
    14,
    15,
    16,
    22,
    25,
    27,
    35,
    36,
    41,
    45,
    51,
    60,
    70,
    71,
    79,
    82,
    88,
    100,
    110,
    113,
    9999,
)
_OWN: Final = (
    api_keys.METADATA,
    api_keys.FIND_COORDINATOR,
    api_keys.INIT_PRODUCER_ID,
    api_keys.LIST_OFFSETS,
    api_keys.JOIN_GROUP,
    api_keys.SYNC_GROUP,
    api_keys.API_VERSIONS,
    api_keys.CREATE_TOPICS,
)
"""What the replayer may ask for itself."""


def tool_errors(folder: Path) -> list[str]:
    """Return the replayer's own failures that a RUN reports."""
    rows = open_dataset(folder).outcomes.to_table(columns=["rule", "reason", "api"]).to_pylist()
    return [f"{row['api']}: {row['reason']}" for row in rows if row["rule"] == "tool_error"]


class Cluster:
    """One to three nodes. `what`: how it breaks things; `meek`: the share of answers that stay whole."""

    def __init__(self, sessions: Sequence[Session], rng: random.Random) -> None:
        self.rng = rng
        self.meek = rng.choice((0.5, 0.9, 0.98))
        self.greets = rng.random() < 0.9
        self.what = f"{self.meek:.0%} whole{'' if self.greets else ', greetings broken too'}"
        self._nodes = rng.choice((1, 1, 2, 3))
        self._answers: dict[int, list[dict[str, Any]]] = {}
        self._offers = {key: (0, 3 if key != api_keys.METADATA else 9) for key in _OWN}
        self._topics: dict[str, int] = {}
        for session in sessions:
            for request in session.requests:
                low, high = self._offers.get(request.api_key, (request.version, request.version))
                self._offers[request.api_key] = min(low, request.version), max(high, request.version)
                answer = request.decoded_answer()
                if answer is not None and answer.body is not None:
                    self._answers.setdefault(request.api_key, []).append(answer.body)
                    if request.api_key == api_keys.METADATA:
                        for topic in answer.body["topics"]:
                            self._topics[topic["name"]] = len(topic["partitions"])

    async def dial(self, host: str, port: int, receiver: Receiver) -> _Link:
        await asyncio.sleep(0.0001)
        if self.rng.random() < 0.01:
            raise LinkError(f"{host}:{port}: Connection refused", "is it up?")
        return _Link(self, receiver)

    def answer(self, frame: bytes) -> list[bytes] | None:
        """The frames that come for a request; None: the connection ends."""
        rng = self.rng
        request = tree.decode_request(frame, exact=True)
        if request.header is None or request.body is None:
            return None
        number = request.header["correlationId"]
        if request.api_key == api_keys.PRODUCE and request.body["acks"] == 0:
            return []
        body = self._body(request.api_key, request.body)
        greeting = request.api_key in (api_keys.API_VERSIONS, api_keys.METADATA)
        if rng.random() < self.meek or (greeting and self.greets):
            return [_encoded(request.api_key, request.version, number, body)]
        how = rng.randrange(10)
        if how < 4:
            return [_encoded(request.api_key, request.version, number, bent(rng, body))]
        whole = _encoded(request.api_key, request.version, number, body)
        if how < 7:
            data = bytearray(whole)
            for _ in range(rng.choice((1, 1, 3))):
                at = rng.randrange(4, max(len(data), 5))
                start, stop, new = rng.choice(EDITS)(rng, bytes(data), at, len(data))
                data[max(start, 4) : stop] = new[: 1 << 16]
            return [bytes(data)]
        if how == 7:
            return [rng.choice((number + 1, 0, -1)).to_bytes(4, "big", signed=True) + whole[4:]]
        return rng.choice(([whole, whole], [], [whole[:4]], None))

    def _body(self, api_key: int, request: dict[str, Any]) -> dict[str, Any]:
        if api_key == api_keys.API_VERSIONS:
            offers = [
                {"apiKey": key, "minVersion": low, "maxVersion": high} for key, (low, high) in self._offers.items()
            ]
            return {"errorCode": 0, "apiKeys": offers}
        if api_key == api_keys.METADATA:
            return self._metadata()
        if api_key == api_keys.FIND_COORDINATOR:
            return {"errorCode": 0, "nodeId": 1, "host": HOST, "port": PORT}
        if api_key == api_keys.INIT_PRODUCER_ID:
            return {"errorCode": 0, "producerId": self.rng.randrange(1000), "producerEpoch": 0}
        known = self._answers.get(api_key)
        return self.rng.choice(known) if known else {}

    def _metadata(self) -> dict[str, Any]:
        nodes = range(1, self._nodes + 1)
        return {
            "brokers": [{"nodeId": node, "host": HOST, "port": PORT + node, "rack": None} for node in nodes],
            "clusterId": "rogue",
            "controllerId": 1,
            "topics": [
                {
                    "errorCode": 0,
                    "name": name,
                    "isInternal": False,
                    "partitions": [
                        {
                            "errorCode": 0,
                            "partitionIndex": number,
                            "leaderId": 1 + number % self._nodes,
                            "replicaNodes": [1],
                            "isrNodes": [1],
                            "offlineReplicas": [],
                        }
                        for number in range(count)
                    ],
                }
                for name, count in self._topics.items()
                if name
            ],
        }


def _encoded(api_key: int, version: int, number: int, body: dict[str, Any]) -> bytes:
    """A body as a frame; what does not go into this version is answered with the empty body."""
    for content in (body, {}):
        try:
            return encode_response(api_key, version, number, content)
        except (EncodeError, KeyError, TypeError, ValueError):
            continue
    return number.to_bytes(4, "big", signed=True)


def bent(rng: random.Random, value: Any, name: str = "") -> Any:
    """A body with values that no broker gives."""
    if isinstance(value, dict):
        return {key: bent(rng, child, key) if rng.random() < 0.5 else child for key, child in value.items()}
    if isinstance(value, list):
        items = [bent(rng, child, name) if rng.random() < 0.5 else child for child in value]
        return rng.choice((items, items, items, [], items * 2, items[:1], items[::-1]))
    if rng.random() < 0.5:
        return value
    if isinstance(value, bool):
        return not value
    if name.endswith(("errorCode", "ErrorCode")):
        return rng.choice(CODES)
    if isinstance(value, int):
        return rng.choice((*EVIL_INT32, value + 1, value - 1, (1 << 63) - 1, -1))
    if isinstance(value, str):
        return rng.choice((*NAMES, value + "x", None))
    return rng.choice((None, value))


class _Link:
    """Answers each request a little later, in order, as a connection does."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self._cluster, self._receiver = cluster, receiver
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._free = 0.0

    def send(self, frame: bytes) -> None:
        if self._closed:
            return
        answers = self._cluster.answer(frame[4:])
        self._free = max(self._free, self._loop.time()) + 0.001
        if answers is None:
            self._loop.call_at(self._free, self._close, "closed by the target")
            return
        for answer in answers:
            if len(answer) >= 4:
                self._loop.call_at(self._free, self._deliver, answer)

    def _deliver(self, frame: bytes) -> None:
        if not self._closed:
            self._receiver.frame(frame)

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        self._loop.call_soon(self._close, "closed by the replayer")

    def _close(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.closed(reason)
