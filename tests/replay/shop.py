"""A broker in memory with one thing wrong, and a capture of a healthy one: what `kwire diff` must name exactly.

`Shop` answers the APIs that a producer, a transactional producer and a member of a classic group use, as Kafka 2.4 does
where nothing is wrong; its faults are its fields. `captured()` is what the three clients and a healthy one said to each
other. All of it in the time of `conversation`: nothing is measured, nothing sleeps.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.encoding import encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.replay import run
from kwire.replay.audit import auditor
from kwire.replay.options import Options
from kwire.replay.plan import batches, renaming
from kwire.replay.plan.sessions import Session
from kwire.replay.send.link import Receiver
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.captures.forge import TO_BROKER, TO_CLIENT, Write, converse, interleaved, pcap, rendered
from tests.replay.conversation import Captured, play
from tests.replay.forging import batch

# fmt: off
OFFERS = {
    api_keys.PRODUCE: (3, 8), api_keys.FETCH: (4, 11), api_keys.LIST_OFFSETS: (1, 5), api_keys.METADATA: (0, 9),
    api_keys.OFFSET_COMMIT: (0, 7), api_keys.OFFSET_FETCH: (0, 5), api_keys.FIND_COORDINATOR: (0, 2),
    api_keys.JOIN_GROUP: (0, 5), api_keys.CREATE_TOPICS: (0, 4), api_keys.DELETE_TOPICS: (0, 3),
    api_keys.LIST_GROUPS: (0, 2), api_keys.DELETE_GROUPS: (0, 1),
    api_keys.HEARTBEAT: (0, 3), api_keys.LEAVE_GROUP: (0, 2), api_keys.SYNC_GROUP: (0, 3), api_keys.API_VERSIONS: (0,
    2), api_keys.INIT_PRODUCER_ID: (0, 1), api_keys.ADD_PARTITIONS_TO_TXN: (0, 1), api_keys.END_TXN: (0, 1),
}
# fmt: on
ORDERS, PAYMENTS = "orders", "payments"
GROUP, TRANSACTION = "billing", "pay-1"
LOADED = (api_keys.INIT_PRODUCER_ID, api_keys.JOIN_GROUP, api_keys.OFFSET_FETCH)
"""APIs whose answers can be made to say that the coordinator is loading."""
_APPENDED = 1 << 3
"""Attribute of a batch whose time is when the broker appended it."""


@dataclass
class Partition:
    """Its log: (first offset, offset behind the last, the batch as a reader gets it)."""

    log: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    appended: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.log[-1][1] if self.log else self.start


@dataclass
class Shop:
    """A cluster of one node. `no_write`: topics that nobody may write; `no_group`, `no_transaction`: ids that nobody
    may use; `partitions`: of the topic orders; `deletes`: the first batch of each partition is gone `later`;
    `compacts`: the second one; `appends`: message.timestamp.type=LogAppendTime; `lacks`: APIs; `says`: the error in all
    answers, by API; `delays`: seconds by API; `loads`: how many answers say first that the coordinator is loading, by
    API (of `LOADED`); `cuts`: the batch of a topic that gets this base offset is stored, and its connection ends in
    place of the answer; `swallows`, `doubles`, `hides`: the number of a batch of orders (from 1)
    that something in between acknowledges and drops, sends twice, or keeps from readers until `later`; `ends_as`: the
    number of an EndTxn (from 1), and what is made of it: committed, aborted, or nothing (None); `tells_aborted`: does
    Fetch list aborted transactions? `refuses`: each so many-th batch gets this error first; `throttles`: for so many ms
    all answers to Produce say that a quota holds the client back; `empty`: it has no topics at first; `earlier_ms`:
    so much readers get records' times too low; `watermark_behind`: so much the high watermark in answers is;
    `strange_beat`: the number of a heartbeat (from 1) that is answered as if the member were unknown;
    `most_batches`: a reader gets so many of a partition at once; `unlisted`: so many partitions of orders Metadata
    does not list."""

    host: str = "target"
    cluster: str = "shop-2"
    port: int = 9092
    largest: int = 1 << 20
    no_write: frozenset[str] = frozenset()
    no_group: frozenset[str] = frozenset()
    no_transaction: frozenset[str] = frozenset()
    partitions: int = 2
    deletes: bool = False
    compacts: bool = False
    appends: bool = False
    in_sync: bool = True
    longest_transaction_ms: int = 900_000
    longest_session_ms: int = 1_800_000
    most_members: int = 100
    lacks: frozenset[int] = frozenset()
    says: Mapping[int, int] = field(default_factory=dict)
    delays: Mapping[int, float] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)
    cuts: tuple[str, int] = ("", 0)
    cut: bool = False
    swallows: int = 0
    doubles: int = 0
    hides: int = 0
    ends_as: Mapping[int, bool | None] = field(default_factory=dict)
    tells_aborted: bool = True
    refuses: tuple[int, int] = (0, 0)
    throttles: int = 0
    earlier_ms: int = 0
    watermark_behind: int = 0
    strange_beat: int = 0
    most_batches: int = 0
    unlisted: int = 0
    beats: int = 0
    met: int = 0
    ended: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    hidden: bytes = b""
    logs: dict[tuple[str, int], Partition] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    payments: str = PAYMENTS
    empty: bool = False
    commits: dict[tuple[str, int], int] = field(default_factory=dict)
    members: int = 0
    producers: int = 0
    produced: int = 0
    loaded: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        counts = {ORDERS: self.partitions, PAYMENTS: 1}
        if not self.empty:
            self.logs = {(name, index): Partition() for name, count in counts.items() for index in range(count)}

    # --- its network ---

    async def dial(self, host: str, port: int, receiver: Receiver) -> _Link:
        await asyncio.sleep(0.0001)
        return _Link(self, receiver)

    # --- what it answers ---

    def answer(self, key: int, body: Body) -> Body:
        answer_body: Body = getattr(self, f"_{api_keys.name(key)}")(body)
        wrong = self.says.get(key)
        return answer_body if wrong is None else _corrupted(answer_body, wrong)

    def _ApiVersions(self, body: Body) -> Body:
        keys = [
            {"apiKey": key, "minVersion": low, "maxVersion": high}
            for key, (low, high) in OFFERS.items()
            if key not in self.lacks
        ]
        return {"errorCode": 0, "apiKeys": keys}

    def _Metadata(self, body: Body) -> Body:
        counts: dict[str, int] = {}
        for name, _ in self.logs:
            counts[name] = counts.get(name, 0) + 1
        if self.unlisted and ORDERS in counts:
            counts[ORDERS] -= self.unlisted
        names = [topic["name"] for topic in body["topics"]] if body["topics"] is not None else list(counts)
        part = {"errorCode": 0, "leaderId": 1, "leaderEpoch": 0, "replicaNodes": [1], "isrNodes": [1]}
        topics = [
            {
                "errorCode": 0,
                "name": name,
                "isInternal": False,
                "partitions": [
                    {**part, "partitionIndex": index, "offlineReplicas": []} for index in range(counts[name])
                ],
            }
            if name in counts
            else {"errorCode": 3, "name": name, "isInternal": False, "partitions": []}
            for name in names
        ]
        brokers = [{"nodeId": 1, "host": self.host, "port": self.port, "rack": None}]
        return {"brokers": brokers, "clusterId": self.cluster, "controllerId": 1, "topics": topics}

    def _FindCoordinator(self, body: Body) -> Body:
        group = body.get("keyType", 0) == api_keys.GROUP_COORDINATOR
        denied = errors.GROUP_AUTHORIZATION_FAILED if group and _named(body["key"], self.no_group) else 0
        if not group and _named(body["key"], self.no_transaction):
            denied = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        where = (
            {"nodeId": -1, "host": "", "port": -1} if denied else {"nodeId": 1, "host": self.host, "port": self.port}
        )
        return {"errorCode": denied, "errorMessage": None, **where}

    def _loading(self, key: int) -> int:
        self.loaded[key] += 1
        return errors.COORDINATOR_LOAD_IN_PROGRESS if self.loaded[key] <= self.loads.get(key, 0) else 0

    def _InitProducerId(self, body: Body) -> Body:
        code = self._loading(api_keys.INIT_PRODUCER_ID)
        if _named(body["transactionalId"] or "", self.no_transaction):
            code = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif body["transactionalId"] and body["transactionTimeoutMs"] > self.longest_transaction_ms:
            code = errors.INVALID_TRANSACTION_TIMEOUT
        if code:
            return {"errorCode": code, "producerId": -1, "producerEpoch": -1}
        self.producers += 1
        return {"errorCode": 0, "producerId": 1000 + self.producers, "producerEpoch": 0}

    def _AddPartitionsToTxn(self, body: Body) -> Body:
        return {
            "resultsByTopicV3AndBelow": [
                {
                    "name": topic["name"],
                    "resultsByPartition": [
                        {"partitionIndex": index, "partitionErrorCode": 0} for index in topic["partitions"]
                    ],
                }
                for topic in body["v3AndBelowTopics"]
            ]
        }

    def _EndTxn(self, body: Body) -> Body:
        self.ended += 1
        committed = self.ends_as.get(self.ended, body["committed"])
        if committed is not None:
            log, producer = self.logs[self.payments, 0], body["producerId"]
            first = self.open.pop(producer, None)
            if not committed and first is not None:
                self.aborted.append((producer, first, log.end))
            self._append(log, bytearray(batch(producer=producer, control=1 if committed else 0)))
        return {"errorCode": 0}

    def _Produce(self, body: Body) -> Body:
        return {
            "throttleTimeMs": self.throttles,
            "responses": [
                {
                    "name": topic["name"],
                    "partitionResponses": [
                        self._produced(topic["name"], part["index"], part["records"]) for part in topic["partitionData"]
                    ],
                }
                for topic in body["topicData"]
            ],
        }

    def _produced(self, topic: str, index: int, records: bytes) -> Body:
        def result(code: int, base: int = -1, appended: int = -1) -> Body:
            return {
                "index": index,
                "errorCode": code,
                "baseOffset": base,
                "logAppendTimeMs": appended,
                "logStartOffset": 0,
            }

        log = self.logs.get((topic, index))
        if _named(topic, self.no_write):
            return result(errors.TOPIC_AUTHORIZATION_FAILED)
        if log is None:
            return result(errors.UNKNOWN_TOPIC_OR_PARTITION)
        if len(records) > self.largest:
            return result(errors.MESSAGE_TOO_LARGE)
        self.met += 1
        if self.refuses[0] and self.met % self.refuses[0] == 0:
            return result(self.refuses[1])
        if not self.in_sync:
            return result(errors.NOT_ENOUGH_REPLICAS)
        (header,) = batches.produced(records)
        mark = header.producer_id, header.base_sequence
        if header.base_sequence >= 0 and mark in log.appended:
            return result(0, log.appended[mark], 1_700_000_000_000)
        orders = _named(topic, (ORDERS,))
        self.produced += orders
        base = log.end
        stamped = bytearray(records)
        if self.appends:
            struct.pack_into(">h", stamped, 21, header.attributes | _APPENDED)
        if orders and self.produced == self.swallows:
            return result(0, base)
        for _ in range(2 if orders and self.produced == self.doubles else 1):
            self._append(log, stamped)
        if orders and self.produced == self.hides:
            self.hidden = log.log[-1][2]
        if header.transactional:
            self.payments = topic
            self.open.setdefault(header.producer_id, base)
        log.appended[mark] = base
        self.cut |= (topic, base) == self.cuts
        return result(0, base, 1_700_000_000_000 if self.appends else -1)

    def _append(self, log: Partition, batch_bytes: bytearray) -> None:
        base = log.end
        (header,) = batches.batches(bytes(batch_bytes))
        struct.pack_into(">q", batch_bytes, 0, base)
        batches.seal(batch_bytes, 0, len(batch_bytes))
        log.log.append((base, base + header.last_offset_delta + 1, bytes(batch_bytes)))

    def later(self) -> None:
        """Apply what retention and the cleaner do in the meantime; a reader now gets everything."""
        self.hidden = b""
        for log in self.logs.values():
            if self.deletes and log.log:
                log.start = log.log[0][1]
                del log.log[0]
            if self.compacts and len(log.log) > 1:
                del log.log[1]

    def _Fetch(self, body: Body) -> Body:
        return {
            "errorCode": 0,
            "sessionId": 0,
            "responses": [
                {
                    "topic": each["topic"],
                    "partitions": [
                        self._fetched(each["topic"], part, bool(body["isolationLevel"])) for part in each["partitions"]
                    ],
                }
                for each in body["topics"]
            ],
        }

    def _fetched(self, topic: str, part: Body, committed: bool) -> Body:
        log = self.logs.get((topic, part["partition"]))
        at = part["fetchOffset"]
        code = 0
        if log is None:
            code, log = errors.UNKNOWN_TOPIC_OR_PARTITION, Partition()
        elif not log.start <= at <= log.end:
            code = errors.OFFSET_OUT_OF_RANGE
        stable = min([log.end, *self.open.values()]) if topic == self.payments else log.end
        batches_read = [each for each in log.log if each[1] > at and each[2] != self.hidden] if not code else []
        if committed:
            batches_read = [each for each in batches_read if each[0] < stable]
        batches_read = batches_read[: self.most_batches or None]
        records = b"".join(_earlier(data, self.earlier_ms) for _, _, data in batches_read)
        aborted = [
            {"producerId": producer, "firstOffset": first}
            for producer, first, last in self.aborted
            if committed and self.tells_aborted and topic == self.payments and last >= at
        ]
        return {
            "partitionIndex": part["partition"],
            "errorCode": code,
            "highWatermark": max(log.end - self.watermark_behind, 0),
            "lastStableOffset": stable,
            "logStartOffset": log.start,
            "abortedTransactions": aborted or None,
            "preferredReadReplica": -1,
            "records": records,
        }

    def _ListOffsets(self, body: Body) -> Body:
        def listed(topic: str, part: Body) -> Body:
            log = self.logs.get((topic, part["partitionIndex"]))
            code = 0 if log is not None else errors.UNKNOWN_TOPIC_OR_PARTITION
            listed_partition = {
                "partitionIndex": part["partitionIndex"],
                "errorCode": code,
                "timestamp": -1,
                "offset": -1,
            }
            if log is not None:
                listed_partition["offset"] = log.start if part["timestamp"] == api_keys.START_OF_LOG else log.end
            return listed_partition

        return {
            "topics": [
                {"name": topic["name"], "partitions": [listed(topic["name"], part) for part in topic["partitions"]]}
                for topic in body["topics"]
            ]
        }

    def _JoinGroup(self, body: Body) -> Body:
        code = self._loading(api_keys.JOIN_GROUP)
        if _named(body["groupId"], self.no_group):
            code = errors.GROUP_AUTHORIZATION_FAILED
        elif body["sessionTimeoutMs"] > self.longest_session_ms:
            code = errors.INVALID_SESSION_TIMEOUT
        elif self.members >= self.most_members:
            code = errors.GROUP_MAX_SIZE_REACHED
        if code:
            return {
                "errorCode": code,
                "generationId": -1,
                "protocolName": "",
                "leader": "",
                "memberId": "",
                "members": [],
            }
        self.members += 1
        self.groups.add(body["groupId"])
        member = f"member-of-{self.cluster}-{self.members}"
        metadata = body["protocols"][0]["metadata"]
        return {
            "errorCode": 0,
            "generationId": self.members,
            "protocolName": "range",
            "leader": member,
            "memberId": member,
            "members": [{"memberId": member, "metadata": metadata}],
        }

    def _CreateTopics(self, body: Body) -> Body:
        """With as many partitions of orders as it has: `partitions`."""
        for topic in body["topics"]:
            count = self.partitions if _named(topic["name"], (ORDERS,)) else topic["numPartitions"]
            self.logs |= {(topic["name"], index): Partition() for index in range(count)}
        return {"topics": [{"name": topic["name"], "errorCode": 0, "errorMessage": None} for topic in body["topics"]]}

    def _DeleteTopics(self, body: Body) -> Body:
        self.logs = {key: log for key, log in self.logs.items() if key[0] not in body["topicNames"]}
        return {"responses": [{"name": name, "errorCode": 0} for name in body["topicNames"]]}

    def _ListGroups(self, body: Body) -> Body:
        listed = [{"groupId": group, "protocolType": "consumer"} for group in sorted(self.groups)]
        return {"errorCode": 0, "groups": listed}

    def _DeleteGroups(self, body: Body) -> Body:
        self.groups -= set(body["groupsNames"])
        return {"results": [{"groupId": group, "errorCode": 0} for group in body["groupsNames"]]}

    def _SyncGroup(self, body: Body) -> Body:
        assignments = [entry["assignment"] for entry in body["assignments"] if entry["memberId"] == body["memberId"]]
        return {
            "errorCode": 0 if assignments else errors.UNKNOWN_MEMBER_ID,
            "assignment": assignments[0] if assignments else b"",
        }

    def _Heartbeat(self, body: Body) -> Body:
        self.beats += 1
        return {"errorCode": errors.UNKNOWN_MEMBER_ID if self.beats == self.strange_beat else 0}

    def _LeaveGroup(self, body: Body) -> Body:
        return {"errorCode": 0}

    def _OffsetCommit(self, body: Body) -> Body:
        topics = []
        for topic in body["topics"]:
            for part in topic["partitions"]:
                self.commits[topic["name"], part["partitionIndex"]] = part["committedOffset"]
            parts = [{"partitionIndex": part["partitionIndex"], "errorCode": 0} for part in topic["partitions"]]
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}

    def _OffsetFetch(self, body: Body) -> Body:
        code = self._loading(api_keys.OFFSET_FETCH)
        return {
            "errorCode": code,
            "topics": []
            if code
            else [
                {
                    "name": topic["name"],
                    "partitions": [
                        {
                            "partitionIndex": index,
                            "committedOffset": self.commits.get((topic["name"], index), -1),
                            "committedLeaderEpoch": -1,
                            "metadata": "",
                            "errorCode": 0,
                        }
                        for index in topic["partitionIndexes"]
                    ],
                }
                for topic in body["topics"]
            ],
        }


def _earlier(data: bytes, by_ms: int) -> bytes:
    """A batch whose records have earlier times."""
    changed = bytearray(data)
    times = struct.unpack_from(">qq", changed, 27)
    struct.pack_into(">qq", changed, 27, *(time - by_ms for time in times))
    batches.seal(changed, 0, len(changed))
    return bytes(changed)


def _named(name: str, names: Iterable[str]) -> bool:
    """Whether it is one of these names, perhaps with a prefix (`--prefix-topics`, `--prefix-groups`)."""
    return any(name == each or name.endswith(f".{each}") for each in names)


def _corrupted(value: Any, code: int) -> Any:
    """An answer in which every error code is another one."""
    if isinstance(value, dict):
        return {name: code if name == "errorCode" else _corrupted(inner, code) for name, inner in value.items()}
    return [_corrupted(inner, code) for inner in value] if isinstance(value, list) else value


class _Link:
    """A connection to it: answers in order, each after its API's delay."""

    def __init__(self, shop: Shop, receiver: Receiver) -> None:
        self._shop, self._receiver = shop, receiver
        self._loop = asyncio.get_running_loop()
        self._free = 0.0
        self._closed = False

    def send(self, frame: bytes) -> None:
        decoded = tree.decode_request(frame[4:], exact=True)
        assert decoded.body is not None, decoded.reason
        assert decoded.header is not None
        key = decoded.api_key
        answer = self._shop.answer(key, decoded.body)
        if self._shop.cut:
            self._shop.cut, self._shop.cuts, self._closed = False, ("", 0), True
            self._loop.call_soon(self._receiver.closed, "the target closed the connection")
            return
        reply = encode_response(key, decoded.version, decoded.header["correlationId"], answer)
        self._free = max(self._free, self._loop.time()) + self._shop.delays.get(key, 0.001)
        self._loop.call_at(self._free, lambda: None if self._closed else self._receiver.frame(reply))

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._receiver.closed, "closed by the replayer")


# --- the capture ---


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


SUBSCRIPTION = struct.pack(">hi", 0, 1) + _string(ORDERS) + struct.pack(">i", -1)
ASSIGNMENT = struct.pack(">hi", 0, 1) + _string(ORDERS) + struct.pack(">iii", 2, 0, 1) + struct.pack(">i", -1)
"""Of the consumer protocol, version 0: the topic, and both of its partitions."""


def captured(loading: bool = False, aborting: bool = False) -> list[Captured]:
    """Forty batches to orders, one of them large, two transactions to payments, and a group that reads the orders.
    `loading`: the coordinators were, when they were first asked, and were asked again; `aborting`: the second
    transaction aborts, and a consumer of committed records reads the payments."""
    shop = Shop("10.0.0.9", "shop-1", loads=dict.fromkeys(LOADED, 1) if loading else {})
    writer, payer, reader = (Captured(f"10.0.0.{number}:5000-10.0.0.9:9092#1") for number in (1, 2, 3))

    def say(who: Captured, at: float, key: int, body: Body, client: str) -> Body:
        version = OFFERS[key][1]
        answer = shop.answer(key, body)
        who.add(at, key, version, body, answer, client_id=client)
        number = len(who.requests)
        row = who.requests[-1].row
        assert isinstance(row, dict)
        row.update(
            status="answered",
            latency_us=10_000,
            correlation_id=number - 1,
            request_file="shop.pcap",
            request_packet=number,
            group_id=body.get("groupId"),
            transactional_id=body.get("transactionalId") or body.get("v3AndBelowTransactionalId"),
            client_ip=who.connection.partition(":")[0],
        )
        loads = answer.get("errorCode") == errors.COORDINATOR_LOAD_IN_PROGRESS
        return say(who, at + 0.02, key, body, client) if loads else answer

    def produce(topic: str, index: int, data: bytes, transaction: str | None = None) -> Body:
        part = {"index": index, "records": data}
        return {
            "transactionalId": transaction,
            "acks": -1,
            "timeoutMs": 1000,
            "topicData": [{"name": topic, "partitionData": [part]}],
        }

    request_body = {
        "topics": [{"name": ORDERS}],
        "allowAutoTopicCreation": False,
        "includeClusterAuthorizedOperations": False,
        "includeTopicAuthorizedOperations": False,
    }
    say(writer, 0.0, api_keys.METADATA, request_body, "writer")
    for number in range(40):
        values = [f"order {number}.{part}" for part in range(3)] + (["x" * 3000] if number == 7 else [])
        say(writer, 0.1 + number / 50, api_keys.PRODUCE, produce(ORDERS, number % 2, batch(*values)), "writer")

    say(payer, 0.0, api_keys.FIND_COORDINATOR, {"key": TRANSACTION, "keyType": 1}, "payer")
    asking = {"transactionalId": TRANSACTION, "transactionTimeoutMs": 60_000}
    own = say(payer, 0.05, api_keys.INIT_PRODUCER_ID, asking, "payer")
    mark = {"producerId": own["producerId"], "producerEpoch": own["producerEpoch"]}
    for number in range(2):
        at = 0.2 + number / 5
        added = {
            "v3AndBelowTransactionalId": TRANSACTION,
            "v3AndBelowProducerId": mark["producerId"],
            "v3AndBelowProducerEpoch": 0,
            "v3AndBelowTopics": [{"name": PAYMENTS, "partitions": [0]}],
        }
        say(payer, at, api_keys.ADD_PARTITIONS_TO_TXN, added, "payer")
        data = bytearray(batch(f"payment {number}", producer=mark["producerId"], transactional=True))
        batches.set_producer(data, 0, len(data), mark["producerId"], 0, number)
        say(payer, at + 0.05, api_keys.PRODUCE, produce(PAYMENTS, 0, bytes(data), TRANSACTION), "payer")
        say(
            payer,
            at + 0.1,
            api_keys.END_TXN,
            {"transactionalId": TRANSACTION, **mark, "committed": not (aborting and number)},
            "payer",
        )

    say(reader, 1.0, api_keys.FIND_COORDINATOR, {"key": GROUP, "keyType": 0}, "reader")
    joining = {
        "groupId": GROUP,
        "sessionTimeoutMs": 45_000,
        "rebalanceTimeoutMs": 60_000,
        "memberId": "",
        "groupInstanceId": None,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    joined = say(reader, 1.1, api_keys.JOIN_GROUP, joining, "reader")
    member = {
        "groupId": GROUP,
        "generationId": joined["generationId"],
        "memberId": joined["memberId"],
        "groupInstanceId": None,
    }
    share = [{"memberId": joined["memberId"], "assignment": ASSIGNMENT}]
    say(reader, 1.2, api_keys.SYNC_GROUP, {**member, "assignments": share}, "reader")
    wanted = {"groupId": GROUP, "topics": [{"name": ORDERS, "partitionIndexes": [0, 1]}]}
    say(reader, 1.3, api_keys.OFFSET_FETCH, wanted, "reader")
    parts = [
        {"partitionIndex": index, "currentLeaderEpoch": -1, "timestamp": api_keys.START_OF_LOG} for index in (0, 1)
    ]
    listed = {"replicaId": -1, "isolationLevel": 0, "topics": [{"name": ORDERS, "partitions": parts}]}
    say(reader, 1.4, api_keys.LIST_OFFSETS, listed, "reader")
    places = dict.fromkeys((0, 1), 0)
    for round_ in range(2):
        fetch = {
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
                    "topic": ORDERS,
                    "partitions": [
                        {
                            "partition": index,
                            "currentLeaderEpoch": -1,
                            "fetchOffset": offset,
                            "logStartOffset": -1,
                            "partitionMaxBytes": 1 << 20,
                        }
                        for index, offset in places.items()
                    ],
                }
            ],
        }
        say(reader, 1.5 + round_ / 5, api_keys.FETCH, fetch, "reader")
        places = {index: shop.logs[ORDERS, index].end for index in places}
        commit = {
            "groupId": GROUP,
            "generationIdOrMemberEpoch": joined["generationId"],
            "memberId": joined["memberId"],
            "groupInstanceId": None,
            "topics": [
                {
                    "name": ORDERS,
                    "partitions": [
                        {
                            "partitionIndex": index,
                            "committedOffset": offset,
                            "committedLeaderEpoch": -1,
                            "committedMetadata": "",
                        }
                        for index, offset in places.items()
                    ],
                }
            ],
        }
        say(reader, 1.6 + round_ / 5, api_keys.OFFSET_COMMIT, commit, "reader")
    say(reader, 2.0, api_keys.HEARTBEAT, member, "reader")
    say(reader, 2.1, api_keys.LEAVE_GROUP, {"groupId": GROUP, "memberId": joined["memberId"]}, "reader")
    if not aborting:
        return [writer, payer, reader]
    auditor_of_payments = Captured("10.0.0.4:5000-10.0.0.9:9092#1")
    part = {
        "partition": 0,
        "currentLeaderEpoch": -1,
        "fetchOffset": 0,
        "logStartOffset": -1,
        "partitionMaxBytes": 1 << 20,
    }
    payments = {**fetch, "isolationLevel": 1, "topics": [{"topic": PAYMENTS, "partitions": [part]}]}
    say(auditor_of_payments, 2.2, api_keys.FETCH, payments, "accounting")
    return [writer, payer, reader, auditor_of_payments]


@cache
def _sessions(loading: bool, aborting: bool) -> tuple[Session, ...]:
    return tuple(capture.session() for capture in captured(loading, aborting))


def replayed_at(
    shop: Shop,
    out: Path,
    *,
    speed: float | None = None,
    loading: bool = False,
    aborting: bool = False,
    **options: Any,
) -> Path:
    """The capture (`loading`, `aborting`: that one) replayed at a shop; the RUN. What retention and the cleaner do is
    done before it is audited."""
    wanted = replace(Options(shop.host, 9092, settings=Settings(speed=speed), audit=False), **options)

    async def sent_and_audited() -> None:
        sessions = renaming.renamed(_sessions(loading, aborting), wanted.renaming)
        await run.replay(MemorySource(sessions), wanted, shop.dial, out, [])
        shop.later()
        await auditor.audit(out, shop.host, 9092, shop.dial, wanted.access.reach(shop.host, 9092))

    play(sent_and_audited())
    return out


# --- on a real network ---


class Connection(asyncio.Protocol):
    """A connection to a shop that listens on a port."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) - 4 >= (size := int.from_bytes(self._buffer[:4], "big")):
            frame, self._buffer = self._buffer[4 : size + 4], self._buffer[size + 4 :]
            decoded = tree.decode_request(frame, exact=True)
            assert decoded.body is not None, decoded.reason
            assert decoded.header is not None
            answer = self._shop.answer(decoded.api_key, decoded.body)
            reply = encode_response(decoded.api_key, decoded.version, decoded.header["correlationId"], answer)
            self.transport.write(len(reply).to_bytes(4, "big") + reply)


def capture_file(path: Path, *, aborting: bool = False) -> Path:
    """The capture as a file: `captured`."""
    conversations = []
    for session in _sessions(False, aborting):
        writes = []
        for request in session.requests:
            assert request.data is not None
            assert request.answer is not None
            assert request.answered_ns is not None
            for to_broker, frame, at in (
                (TO_BROKER, request.data, request.sent_ns),
                (TO_CLIENT, request.answer, request.answered_ns),
            ):
                writes.append(Write(to_broker, len(frame).to_bytes(4, "big") + frame, at))
        client, _, port = session.connection.partition("-")[0].rpartition(":")
        begin = session.requests[0].sent_ns - 1_000_000
        conversations.append(converse(writes, client=(client, int(port)), broker=session.broker, start_ns=begin))
    path.write_bytes(pcap(rendered(interleaved(*conversations)), 1, nanoseconds=True))
    return path
