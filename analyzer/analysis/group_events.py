"""Events of one group exchange, of which rows of `groups` and of `rebalances` are made.

In: exchanges of the group APIs with their bodies (`ControlExchange`), and the rows of frequent ones (Heartbeat,
OffsetCommit, TxnOffsetCommit) by columns. Out: `GroupEvent`s, and the last contact of each member (`Contact`). Rules: a
body that is not decoded leaves what the columns hold; names are text; topics of the newer protocols are ids until the
table is made.

    classic    JoinGroup, SyncGroup, Heartbeat, LeaveGroup; protocol type `connect` is `connect`
    consumer   ConsumerGroupHeartbeat (KIP-848); share: ShareGroupHeartbeat (KIP-932); streams: StreamsGroupHeartbeat
               (KIP-1071). Epoch 0 joins, -1 leaves, -2 leaves for a while (static members)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kwire.analyzer.analysis.control_exchanges import ControlExchange
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Window, end_point
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors as kafka_errors

Place = tuple[int, int]
Partition = tuple[str, int | None]
"""Topic or its id, and partition. Connect: connector and task, None for the connector itself; streams groups:
subtopology and task."""
Assigned = tuple[tuple[str, tuple[Partition, ...]], ...]
"""Member, and what it has."""

CLASSIC, CONSUMER, SHARE, STREAMS, CONNECT = "classic", "consumer", "share", "streams", "connect"
HEARTBEATS: Final = {
    apis.CONSUMER_GROUP_HEARTBEAT: CONSUMER,
    apis.SHARE_GROUP_HEARTBEAT: SHARE,
    apis.STREAMS_GROUP_HEARTBEAT: STREAMS,
}
"""Heartbeats of the newer protocols, which also join, assign and leave."""

JOIN, SYNC, HEARTBEAT_FAILED, LEAVE = "join", "sync", "heartbeat_failed", "leave"
EXPIRED, COMMIT_FAILED, COORDINATOR_MOVED = "expired", "commit_failed", "coordinator_moved"
COORDINATOR_REFUSED = "coordinator_refused"
COORDINATOR_FOUND, UPDATE = "found_coordinator", "update"
"""Not rows: FindCoordinator found a coordinator; a newer heartbeat reported an epoch or partitions."""

STOPS_FOR_A_WHILE: Final = -2
"""The epoch in the last heartbeat of a closing static member of the newer protocols
(LEAVE_GROUP_STATIC_MEMBER_EPOCH)."""

GROUP_KEYS: Final = 0
"""FindCoordinator: the type of keys that are groups."""
_REFUSALS: Final = (kafka_errors.GROUP_AUTHORIZATION_FAILED, kafka_errors.INVALID_GROUP_ID)
"""Errors of FindCoordinator that are about the group, not about where its coordinator is."""
CONNECTOR: Final = -1
"""Among Connect's task ids: the connector itself (ConnectProtocol.java)."""


@dataclass(slots=True)
class GroupEvent:
    """One event of a group. `place` and `order` sort all events of a capture point.

    requested_ns   end of the request; time_ns: end of the response, or of the request if it has none
    members        of the generation (the leader's JoinGroup)
    subscribed     topics
    assigned       by the leader, or to the member
    reason         why it joins or leaves, as it says (KIP-800)
    revoked        not None: `assigned` is added to the previous assignment without these (Connect since KIP-415)
    owned          partitions that the member reports to own
    node           of the coordinator
    reported       an earlier rotation has its row; settled: and that of the rebalance that it is part of
    """

    place: Place
    order: int
    kind: str
    group: str
    member: str | None
    requested_ns: int
    time_ns: int
    client: str | None
    ip: str
    broker: str
    connection: str
    exchange: int | None
    reply: int | None
    protocol: str | None = None
    instance: str | None = None
    generation: int | None = None
    request_epoch: int | None = None  # of a newer heartbeat
    code: int | None = None
    leader: str | None = None
    members: tuple[str, ...] | None = None
    subscribed: tuple[str, ...] | None = None
    session_ms: int | None = None
    rebalance_ms: int | None = None
    assigned: Assigned | None = None
    by_leader: bool = False
    revoked: Assigned | None = None
    owned: tuple[Partition, ...] | None = None
    interval_ms: int | None = None
    node: int | None = None
    reason: str | None = None
    reported: bool = False
    settled: bool = False

    @property
    def well(self) -> bool:
        """Answered without an error."""
        return self.code == 0

    @property
    def went(self) -> bool:
        """Its member left for good: a static one that stops for a while keeps its place and what it has."""
        return self.kind == LEAVE and self.well and self.request_epoch != STOPS_FOR_A_WHILE

    @property
    def error(self) -> str | None:
        return kafka_errors.name(self.code) if self.code else None


@dataclass(slots=True)
class Contact:
    """When a member was last answered well (`last_ns`: the end of that request), by generations or epochs."""

    last_ns: int
    client: str | None
    ip: str
    lowest: int
    highest: int

    def join(self, other: Contact) -> None:
        if other.last_ns > self.last_ns:
            self.last_ns, self.client, self.ip = other.last_ns, other.client, other.ip
        generations = [
            generation for generation in (self.lowest, other.lowest) if generation >= 0
        ]  # absent, and -1 of commits without a group
        self.lowest, self.highest = min(generations, default=-1), max(self.highest, other.highest)


class EventRow(NamedTuple):
    """The columns of an exchange that events share."""

    place: Place
    requested_ns: int
    time_ns: int
    client: str | None
    ip: str
    broker: str
    connection: str
    exchange: int | None
    reply: int | None
    group: str | None
    member: str | None
    generation: int | None
    code: int | None

    def event(self, kind: str, group: str, order: int = 0) -> GroupEvent:
        shared = self[1:9]  # from `requested_ns` to `reply`
        return GroupEvent(
            self.place, order, kind, group, self.member or None, *shared, generation=self.generation, code=self.code
        )


def row_of(window: Window, row: int) -> EventRow:
    """One exchange of a window, as columns have it."""
    every, names = window.every, window.names
    number = int(every.connection[row])
    client_ip, _, broker_ip, broker_port = names.ends[number]

    def value(name: str) -> int | None:
        number = int(every.column(name)[row])
        return number if number != s.NULL else None

    def string(name: str) -> str | None:
        number = value(name)
        return names.strings[number] if number is not None else None

    requested, answered = value("request_end"), value("response_end")
    began = value("request_time") or value("response_time") or 0
    requested = requested if requested is not None else began
    return EventRow(
        (int(every.column("completed_by")[row]), names.serials[number]),
        requested,
        answered if answered is not None else requested,
        string("client_id"),
        names.strings[client_ip],
        end_point(names.strings[broker_ip], broker_port),
        names.connections[number],
        value("exchange"),
        value("reply"),
        string("group_id"),
        string("member_id"),
        value("generation"),
        value("error_code"),
    )


def events_of(window: Window, control: ControlExchange) -> Iterator[GroupEvent]:
    """The events that an exchange of the group APIs is."""
    exchange = control.exchange
    row = row_of(window, control.row)
    api = exchange.api_key
    if api == apis.FIND_COORDINATOR:
        yield from _coordinators_found(row, exchange)
    elif row.group is not None and exchange.request is not None:
        if api == apis.JOIN_GROUP:
            yield _join(row, row.group, exchange)
        elif api == apis.SYNC_GROUP:
            yield _sync(row, row.group, exchange)
        elif api == apis.LEAVE_GROUP:
            yield from _leave(row, row.group, exchange)
        elif api in HEARTBEATS:
            yield _heartbeat(row, row.group, exchange)


def _coordinators_found(row: EventRow, exchange: Exchange) -> Iterator[GroupEvent]:
    request, response = exchange.request, exchange.response
    if request is None or response is None or request.get("keyType", GROUP_KEYS) != GROUP_KEYS:
        return
    coordinators = response.get("coordinators")  # from version 4 on (KIP-699); a hostile answer lists none
    if coordinators is None:
        coordinators = [{**response, "key": request.get("key")}]
    for order, coordinator in enumerate(coordinators):
        if coordinator["errorCode"] == 0 and coordinator["key"] is not None:
            event = row.event(COORDINATOR_FOUND, coordinator["key"], order)
            event.member, event.generation, event.node, event.code = None, None, coordinator["nodeId"], 0
            yield event
        elif coordinator["errorCode"] in _REFUSALS and coordinator["key"] is not None:
            event = row.event(COORDINATOR_REFUSED, coordinator["key"], order)
            event.member, event.generation, event.code = None, None, coordinator["errorCode"]
            yield event


def _protocol(protocol_type: str | None) -> str:
    return CONNECT if protocol_type == CONNECT else CLASSIC


def _inside(exchange: Exchange, side: str) -> dict[str, dict[str, Any]]:
    """Return the decoded values of embedded formats of a `request` or a `response` by path."""
    listed = exchange.embedded(sides=(side,))
    return {entry["path"]: entry["value"] for entry in listed if isinstance(entry["value"], dict)}


def _given_by(inside: dict[str, dict[str, Any]], paths: dict[str, str]) -> tuple[Assigned, Assigned | None]:
    """(what members get, what they lose, None where they lose all that they had), `paths` by member."""
    values = {member: inside.get(path, {}) for member, path in paths.items()}
    added = tuple((member, _partitions(value)) for member, value in values.items())
    if not any("revoked" in value for value in values.values()):
        return added, None
    return added, tuple((member, _tasks_of(value.get("revoked"))) for member, value in values.items())


def _join(row: EventRow, group: str, exchange: Exchange) -> GroupEvent:
    request, response = exchange.request or {}, exchange.response
    event = row.event(JOIN, group)
    event.protocol = _protocol(request["protocolType"])
    event.instance = request.get("groupInstanceId")
    event.session_ms = request["sessionTimeoutMs"]
    event.rebalance_ms = request.get("rebalanceTimeoutMs")
    event.generation, event.reason = None, request.get("reason") or None
    inside = _inside(exchange, "request")  # the leader's response holds what all members sent
    topics = {
        topic
        for number in range(len(request["protocols"]))
        for topic in inside.get(f"request.protocols[{number}].metadata", {}).get("topics", ())
    }
    event.subscribed = tuple(sorted(topics)) if event.protocol == CLASSIC else None
    if response is not None and response["errorCode"] == 0:
        event.generation, event.leader = response["generationId"], response["leader"]
        event.member = response["memberId"] or event.member
        event.members = tuple(sorted(member["memberId"] for member in response["members"])) or None
    return event


def _sync(row: EventRow, group: str, exchange: Exchange) -> GroupEvent:
    request, response = exchange.request or {}, exchange.response
    event = row.event(SYNC, group)
    event.protocol = _protocol(request["protocolType"]) if request.get("protocolType") else None
    event.instance = request.get("groupInstanceId")
    paths = {}
    if request["assignments"]:
        event.by_leader = True
        for number, assignment in enumerate(request["assignments"]):
            paths[assignment["memberId"]] = f"request.assignments[{number}].assignment"
    elif response is not None and response["errorCode"] == 0 and event.member is not None:
        paths[event.member] = "response.assignment"
    if paths:
        inside = _inside(exchange, "request" if event.by_leader else "response")
        event.assigned, event.revoked = _given_by(inside, paths)
    return event


def _partitions(value: dict[str, Any]) -> tuple[Partition, ...]:
    """Return the partitions or tasks in an assignment of the consumer protocol or of Connect."""
    topics = value.get("assignedPartitions") or ()
    partitions: list[Partition] = [(topic["topic"], number) for topic in topics for number in topic["partitions"]]
    return tuple(sorted([*partitions, *_tasks_of(value.get("assignment"))], key=_partition_key))


def _tasks_of(connectors: list[dict[str, Any]] | None) -> tuple[Partition, ...]:
    return tuple(
        (connector["connector"], task if task != CONNECTOR else None)
        for connector in connectors or ()
        for task in connector["tasks"]
    )


def _partition_key(partition: Partition) -> tuple[str, int]:
    return partition[0], partition[1] if partition[1] is not None else -1


def _leave(row: EventRow, group: str, exchange: Exchange) -> Iterator[GroupEvent]:
    request, response = exchange.request or {}, exchange.response
    members = request.get("members")
    if members is None:
        yield row.event(LEAVE, group)
        return
    answered = (response or {}).get("members") or ()
    answers = {(member["memberId"], member.get("groupInstanceId")): member["errorCode"] for member in answered}
    for order, member in enumerate(members):
        event = row.event(LEAVE, group, order)
        event.member, event.instance = member["memberId"] or None, member.get("groupInstanceId")
        event.reason = member.get("reason") or None
        if response is not None and response["errorCode"] == 0:
            event.code = answers.get((member["memberId"], event.instance), 0)
        yield event


def _heartbeat(row: EventRow, group: str, exchange: Exchange) -> GroupEvent:
    """Return the event of a newer protocol's heartbeat: a join, a leave, a failure, an assignment, or an update."""
    request, response = exchange.request or {}, exchange.response
    epoch = request["memberEpoch"]
    well = response is not None and response["errorCode"] == 0
    kind = JOIN if epoch == 0 else LEAVE if epoch < 0 else UPDATE
    if kind == UPDATE and response is not None and not well:
        kind = HEARTBEAT_FAILED
    event = row.event(kind, group)
    event.protocol = HEARTBEATS[exchange.api_key]
    event.member = request["memberId"] or event.member
    event.instance = request.get("instanceId")
    event.request_epoch = epoch
    event.generation = epoch if kind in (UPDATE, HEARTBEAT_FAILED) else None
    timeout_ms = request.get("rebalanceTimeoutMs", -1)
    event.rebalance_ms = timeout_ms if timeout_ms >= 0 else None
    names = request.get("subscribedTopicNames") if kind != LEAVE else None  # none then: it reads no other topics now
    event.subscribed = tuple(sorted(names)) if names is not None else None
    event.owned = _owned(request)
    if response is not None and well and kind != LEAVE:
        event.generation, event.interval_ms = response["memberEpoch"], response["heartbeatIntervalMs"]
        event.member = response.get("memberId") or event.member
        given = _given(response)
        if given is not None and event.member is not None:
            event.assigned = ((event.member, given),)
            event.kind = SYNC if kind == UPDATE else kind
    return event


def _owned(request: dict[str, Any]) -> tuple[Partition, ...] | None:
    """Return the partitions that a member reports to own; None: unchanged."""
    if request.get("activeTasks") is not None:
        return _tasks(request["activeTasks"])
    return _of_ids(request["topicPartitions"]) if request.get("topicPartitions") is not None else None


def _given(response: dict[str, Any]) -> tuple[Partition, ...] | None:
    """Return the partitions that a response assigns; None: unchanged."""
    if "activeTasks" in response:
        return _tasks(response["activeTasks"]) if response["activeTasks"] is not None else None
    assignment = response.get("assignment")
    return _of_ids(assignment["topicPartitions"]) if assignment is not None else None


def _of_ids(topics: list[dict[str, Any]]) -> tuple[Partition, ...]:
    return tuple(sorted((topic["topicId"], number) for topic in topics for number in topic["partitions"]))


def _tasks(tasks: list[dict[str, Any]]) -> tuple[Partition, ...]:
    return tuple(
        sorted((subtopology["subtopologyId"], number) for subtopology in tasks for number in subtopology["partitions"])
    )
