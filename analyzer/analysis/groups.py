"""Events of groups: tables `groups`, an event a row, and `rebalances`.

In: windows, and the exchanges of the group APIs. Out: rows of both tables, in order of time. Rules: Heartbeat,
OffsetCommit and TxnOffsetCommit are read by columns: of those without an error only the last of each member is kept.
What depends on the order of events over connections is worked out in `tables`. A row is an exchange, but for two kinds
that are inferred, and only with proof:

    expired            the coordinator answers UNKNOWN_MEMBER_ID to a member that it answered without an error before
                       and that has not left, and the coordinator did not move in between; or the leader's JoinGroup
                       response lists a generation without a member of the one before that has not left and was silent
                       for its session timeout; or, in KIP-848 and streams groups, another member is assigned what it
                       had and never gave back, after it had been silent for twice its heartbeat interval
    coordinator_moved  FindCoordinator names another broker than the response before it for this group

With rotation, each event is a row of the rotation that it happened in, and a rebalance one of the rotation that it
ended in (`rebalances`). State from one rotation to the next is bounded: of each group the last `MOST_EVENTS` events, of
all groups `MOST_OF_ALL` and `MOST_CONTACTS`, of fetches `REMEMBERED_NS`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName
from kwire.analyzer.analysis import group_events as g
from kwire.analyzer.analysis.combinations import combinations, largest, smallest
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchange
from kwire.analyzer.analysis.delivery_times import DeliveryTimes
from kwire.analyzer.analysis.event_log import EventLog
from kwire.analyzer.analysis.group_events import Contact, GroupEvent
from kwire.analyzer.analysis.rebalances import rebalances
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import OrderedRows
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors as kafka_errors

_COMMITS: Final = (apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT)
_BY_COLUMNS: Final = np.array((apis.HEARTBEAT, *_COMMITS))
_BY_BODY: Final = frozenset((apis.FIND_COORDINATOR, apis.JOIN_GROUP, apis.SYNC_GROUP, apis.LEAVE_GROUP, *g.HEARTBEATS))
_FREQUENT: Final = (g.HEARTBEAT_FAILED, g.COMMIT_FAILED, g.COORDINATOR_FOUND, g.COORDINATOR_REFUSED)
_OF_ANY_PROTOCOL: Final = (g.COMMIT_FAILED, g.COORDINATOR_FOUND, g.COORDINATOR_REFUSED)
MOST_EVENTS: Final = 1000
"""Events of a group that are remembered from one stretch of a capture to the next; of those that may be frequent
(failed heartbeats and commits, coordinators found) as many again. One takes some 400 bytes."""
MOST_OF_ALL: Final = 100_000
"""The same of all groups: beyond it those are forgotten that were quiet for longest."""
MOST_CONTACTS: Final = 200_000
"""Members whose last contact is remembered."""
REMEMBERED_NS: Final = 900 * 10**9
"""How far back fetches are remembered, where a rebalance may ask for them."""
_INTERVALS: Final = 2
"""Heartbeat intervals without a heartbeat after which a member of the newer protocols was silent: it owes one each."""


@dataclass(slots=True)
class GroupCollector:
    """Learns what happened in groups (a `ResumableCollector`)."""

    _events: EventLog = field(default_factory=EventLog)
    _contacts: dict[tuple[str, str], Contact] = field(default_factory=dict)  # by group and member
    _fetched: DeliveryTimes = field(default_factory=DeliveryTimes)
    _now_ns: int = 0
    _over: tuple[OrderedRows, OrderedRows] | None = None  # rows of this rotation, if another follows

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        if not len(window.every):
            return
        self._now_ns = max(self._now_ns, int(window.every.column("request_end").max()))
        self._fetched.take(window)
        self._frequent(window)
        for exchange in control:
            if exchange.exchange.api_key in _BY_BODY:
                for event in g.events_of(window, exchange):
                    self._hear(event)

    def _hear(self, event: GroupEvent) -> None:
        is_update = event.kind == g.UPDATE
        if event.well and event.member is not None and event.kind in (g.JOIN, g.SYNC, g.UPDATE):
            generation = event.generation if event.generation is not None else s.NULL
            contact = Contact(event.requested_ns, event.client, event.ip, generation, generation)
            self._contact(event.group, event.member, contact)
        if not is_update or event.owned is not None or not event.well or self._rose(event):
            self._events.append(event)

    @staticmethod
    def _rose(event: GroupEvent) -> bool:
        """Return whether the response has another epoch than the request."""
        return event.request_epoch != event.generation

    def _contact(self, group: str, member: str, contact: Contact) -> None:
        known = self._contacts.get((group, member))
        if known is None:
            self._contacts[group, member] = contact
        else:
            known.join(contact)

    def _frequent(self, window: Window) -> None:
        """Heartbeats and commits, by columns."""
        every, strings = window.every, window.names.strings
        api, group, code = (every.column(name) for name in ("api_key", "group_id", "error_code"))
        rows = np.flatnonzero(arrow.among(api, _BY_COLUMNS) & (group != s.NULL) & (code != s.NULL))
        if not len(rows):
            return
        for row in rows[code[rows] != 0].tolist():
            kind = g.HEARTBEAT_FAILED if api[row] == apis.HEARTBEAT else g.COMMIT_FAILED
            event = g.row_of(window, row).event(kind, strings[group[row]])
            if event.generation is not None and event.generation < 0:
                event.generation = None
            self._events.append(event)
        member, generation = every.column("member_id"), every.column("generation")
        well = rows[(code[rows] == 0) & (member[rows] != s.NULL)]
        if not len(well):
            return
        first, place = combinations(group[well], member[well], every.column("client_id")[well], every.connection[well])
        requested, generations = every.column("request_end")[well], generation[well]
        count = len(first)
        sums = (
            largest(requested, place, count),
            smallest(generations, place, count),
            largest(generations, place, count),
        )
        for i, row in enumerate(well[first].tolist()):
            known = g.row_of(window, row)
            if known.group is not None and known.member:
                last, low, high = (int(column[i]) for column in sums)
                self._contact(known.group, known.member, Contact(last, known.client, known.ip, low, high))

    def join(self, other: GroupCollector) -> None:
        self._events.join(other._events)
        for (group, member), contact in other._contacts.items():
            self._contact(group, member, contact)
        self._fetched.join(other._fetched)

    @property
    def held_bytes(self) -> int:
        """Estimate as measured: a kilobyte an event with its row, a third of that a member, or a client with a
        partition."""
        return 1000 * len(self._events) + 300 * (len(self._contacts) + self._fetched.keys)

    def onward(self, border: Border) -> GroupCollector:
        """Return a collector with the latest events, contacts and fetches; rows of this one are made now."""
        latest = self._events.latest(_FREQUENT, MOST_EVENTS, MOST_OF_ALL)
        self._over = self._rows(border.topic_name, self._now_ns, self._events.groups_of(latest))
        after = GroupCollector(self._events.reported(latest), _now_ns=self._now_ns)
        contacts = sorted(self._contacts.items(), key=lambda item: item[1].last_ns)
        after._contacts = dict(contacts[-MOST_CONTACTS:])
        after._fetched = self._fetched.onward(self._now_ns - REMEMBERED_NS)
        return after

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        rows, rebalanced = self._over or self._rows(topic_name)
        yield "groups", rows.table(capture)
        yield "rebalances", rebalanced.table(capture)

    def _rows(
        self, topic_name: TopicName, now_ns: int | None = None, remembered: Container[str] = ()
    ) -> tuple[OrderedRows, OrderedRows]:
        """Rows of both tables; `now_ns`: it goes on from there in the groups that are `remembered`, else all is
        over."""
        fetched = self._fetched.by_client(topic_name)
        rows, rebalanced = OrderedRows("groups"), OrderedRows("rebalances")
        contacts = self._contacts_by_group()
        settled = np.zeros(len(self._events), np.bool_)
        for group, positions, events in self._events.by_group():
            known = contacts(group)
            named = _with_names(events, topic_name)
            walked = _with_moves(named)
            inferred = list(_expired(walked, known))
            walked = sorted([*walked, *inferred], key=_order)
            for event in walked:
                if event.kind not in (g.COORDINATOR_FOUND, g.UPDATE) and not event.reported:
                    rows.append(_order(event), _row(event))
            for row in rebalances(group, walked, known, fetched, now_ns if group in remembered else None):
                rebalanced.append(row.pop("_order"), row)
            settled[positions] = [event.settled for event in named]
        self._events.settle(settled)
        return rows, rebalanced

    def _contacts_by_group(self) -> Callable[[str], dict[str, Contact]]:
        """Return a function that gives the last contact of each member of a group; dicts of all groups would take most
        memory."""
        known = list(self._contacts)
        numbers = np.array([self._events.number(group) for group, _ in known], np.int64)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self._events.groups) + 1))

        def of(group: str) -> dict[str, Contact]:
            number = self._events.number(group)
            keys = [known[place] for place in order[bounds[number] : bounds[number + 1]].tolist()]
            return {key[1]: self._contacts[key] for key in keys}

        return of


def _order(event: GroupEvent) -> tuple[g.Place, int, str]:
    return event.place, event.order, event.kind


def _row(event: GroupEvent) -> dict[str, Any]:
    return {
        "time": event.time_ns // 1000,
        "group_id": event.group,
        "protocol": event.protocol,
        "event": event.kind,
        "member_id": event.member,
        "group_instance_id": event.instance,
        "client_id": event.client,
        "client_ip": event.ip,
        "generation": event.generation,
        "session_timeout_ms": event.session_ms,
        "rebalance_timeout_ms": event.rebalance_ms if event.kind != g.EXPIRED else None,
        "error": event.error,
        "connection": event.connection,
        "exchange": event.exchange,
        "reply": event.reply,
        "subscribed": event.subscribed if event.kind != g.EXPIRED else None,
        "reason": event.reason if event.kind != g.EXPIRED else None,
    }


def _with_names(events: Iterable[GroupEvent], topic_name: TopicName) -> list[GroupEvent]:
    """Put names for topic ids, and the group's protocol, into one group's events.

    The protocol is that of the last event before with one, else of the first after, else that of the API.
    """
    listed = list(events)
    protocols = [event.protocol for event in listed]
    latest = next((protocol for protocol in protocols if protocol is not None), None)
    named = []
    for event, protocol in zip(listed, protocols, strict=True):
        latest = protocol or latest
        fallback = None if event.kind in _OF_ANY_PROTOCOL else g.CLASSIC
        changed = replace(event, protocol=protocol or latest or fallback)
        if protocol in (g.CONSUMER, g.SHARE):
            changed.owned = _resolved(event.owned, topic_name)
            if event.assigned is not None:
                changed.assigned = tuple((m, _resolved(p, topic_name) or ()) for m, p in event.assigned)
        named.append(changed)
    return named


def _resolved(partitions: tuple[g.Partition, ...] | None, topic_name: TopicName) -> tuple[g.Partition, ...] | None:
    if partitions is None:
        return None
    return tuple(sorted(((topic_name(topic), number) for topic, number in partitions), key=str))


def _with_moves(events: list[GroupEvent]) -> list[GroupEvent]:
    """Add an event wherever the coordinator changed."""
    node: int | None = None
    with_moves = []
    for event in events:
        with_moves.append(event)
        if event.kind == g.COORDINATOR_FOUND:
            if node is not None and event.node != node:
                with_moves.append(replace(event, kind=g.COORDINATOR_MOVED))
            node = event.node
    return with_moves


def _expired(events: list[GroupEvent], contacts: dict[str, Contact]) -> Iterator[GroupEvent]:
    """Members that expired, where that is proven; each once."""
    walk = _Membership(contacts)
    for event in events:
        yield from walk.step(event)


@dataclass(slots=True)
class _Membership:
    """One group's members while its events are walked through in order."""

    contacts: dict[str, Contact]
    joined: dict[str, GroupEvent] = field(default_factory=dict)  # the last that each member joined with
    instances: dict[str, str] = field(default_factory=dict)  # static members, by their names of then
    gone: set[str] = field(default_factory=set)  # left, or expired
    listed: tuple[str, ...] = ()  # the members of the last generation
    generation: int | None = None
    has: dict[str, set[g.Partition]] = field(default_factory=dict)  # newer protocols: given, or not given back
    ever: set[g.Partition] = field(default_factory=set)  # share groups: all partitions ever assigned
    changed_ns: int = 0  # a member of a newer protocol joined or left
    moved_ns: int = 0

    def step(self, event: GroupEvent) -> Iterator[GroupEvent]:
        if event.kind == g.COORDINATOR_MOVED:
            self.moved_ns = event.requested_ns
        elif event.went and event.member is not None:
            self.gone.add(event.member)
            self.has.pop(event.member, None)
            self.changed_ns = event.requested_ns
        elif event.code == kafka_errors.UNKNOWN_MEMBER_ID and event.member is not None:
            yield from self._unknown(event, event.member)
        elif event.well and event.member is not None and event.kind in (g.JOIN, g.SYNC, g.UPDATE):
            if event.kind == g.JOIN and event.instance is not None:
                self._takes_over(event.member, event.instance)
            if event.protocol in (g.CLASSIC, g.CONNECT):
                yield from self._classic(event, event.member)
            else:
                yield from self._newer(event, event.member)

    def _takes_over(self, member: str, instance: str) -> None:
        """A static member comes: under another id than before it has that one's place (KIP-345)."""
        for other in [name for name, its in self.instances.items() if its == instance and name != member]:
            del self.instances[other]
            self.gone.add(other)
            self.has.pop(other, None)
            self.listed = tuple(member if name == other else name for name in self.listed)
        self.instances[member] = instance

    def _unknown(self, event: GroupEvent, member: str) -> Iterator[GroupEvent]:
        contact = self.contacts.get(member)
        if member in self.gone or contact is None or event.kind == g.LEAVE:
            return
        if contact.last_ns < event.requested_ns and contact.last_ns > self.moved_ns:
            yield self._expire(member, event, contact)

    def _classic(self, event: GroupEvent, member: str) -> Iterator[GroupEvent]:
        if event.kind != g.JOIN:
            return
        self.joined[member] = event
        self.gone.discard(member)
        if event.members is None or event.generation == self.generation:
            return
        instances = {
            join.instance for m, join in self.joined.items() if m in event.members and join.instance is not None
        }
        for missing in self.listed:
            contact, before = self.contacts.get(missing), self.joined.get(missing)
            if missing in event.members or missing in self.gone or contact is None or before is None:
                continue
            if before.instance is not None and before.instance in instances:
                continue  # a static member came back under another id (KIP-345)
            silent = event.time_ns - contact.last_ns
            if before.session_ms is not None and silent >= before.session_ms * 1_000_000 > 0:
                yield self._expire(missing, event, contact)
        self.listed, self.generation = event.members, event.generation

    def _newer(self, event: GroupEvent, member: str) -> Iterator[GroupEvent]:
        self.gone.discard(member)
        if event.kind == g.JOIN:
            self.changed_ns = event.requested_ns
        if event.interval_ms:
            self.joined[member] = event
        has = self.has.setdefault(member, set())
        if event.owned is not None:
            has.clear()
            has.update(event.owned)
        for whose, partitions in event.assigned or ():
            if whose != member:
                continue
            given = set(partitions)
            if event.protocol in (g.CONSUMER, g.STREAMS):
                yield from self._handed_over(event, member, given)
            else:
                if given <= self.ever:
                    yield from self._handed_over(event, member, given - has, self.changed_ns)
                self.ever |= given
                has.clear()
            has.update(given)

    def _handed_over(
        self, event: GroupEvent, member: str, given: set[g.Partition], since_ns: int = 0
    ) -> Iterator[GroupEvent]:
        """Yield expiries of other members that had the partitions, had contact after `since_ns`, and none since."""
        for other in [name for name, partitions in self.has.items() if name != member and partitions & given]:
            contact, last = self.contacts.get(other), self.joined.get(other)
            if contact is None or last is None or last.interval_ms is None or other in self.gone:
                continue
            silent = event.time_ns - contact.last_ns >= _INTERVALS * last.interval_ms * 1_000_000
            if silent and contact.last_ns > since_ns:
                yield self._expire(other, event, contact)

    def _expire(self, member: str, event: GroupEvent, contact: Contact) -> GroupEvent:
        self.gone.add(member)
        self.has.pop(member, None)
        before = self.joined.get(member)
        return replace(
            event,
            kind=g.EXPIRED,
            member=member,
            client=contact.client,
            ip=contact.ip,
            instance=self.instances.get(member),
            generation=contact.highest if contact.highest >= 0 else None,
            session_ms=before.session_ms if before is not None else None,
            members=None,
            assigned=None,
            owned=None,
        )
