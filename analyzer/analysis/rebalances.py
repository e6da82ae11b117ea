"""Rebalances of one group: table `rebalances`, a row for each captured generation or epoch.

In: the group's events in order, with expiries and moves of its coordinator, the last contacts of its members, and the
delivery times of their clients. Out: rows. Rules: a trigger is named with the exchange that shows it; it is the
earliest reason for a rebalance between the responses of the generation before and those of this one:

    join         a new member joined
    leave        a member left
    expired      a member expired (`groups`); it began when its session timeout was over
    coordinator  the coordinator moved since the generation before, and a member of it, or its client, joined elsewhere
    metadata     a member joined again, or sent a heartbeat, with other topics than before; or the leader joined again
                 and the assignment has partitions that the group never had
    unknown      no reason was captured; `trigger_member` is then a member that joined again by itself, if one did: the
                 second step of a cooperative assignor, a Streams instance that asks for another assignment
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from kwire.analyzer.analysis import group_events as g
from kwire.analyzer.analysis.delivery_times import ClientDeliveryTimes
from kwire.analyzer.analysis.group_events import Contact, GroupEvent, Partition
from kwire.analyzer.protocol import errors as kafka_errors

METADATA, COORDINATOR, UNKNOWN = "metadata", "coordinator", "unknown"
_MS: Final = 1_000_000
OVER_NS: Final = 5 * 10**9
"""How long ago a rebalance ended of which nothing more is expected: its members got records again."""
GIVEN_UP_NS: Final = 300 * 10**9
"""As long as a member may take to come back, by default (max.poll.interval.ms)."""

Assignment = dict[str, tuple[Partition, ...]]


class _Trigger(NamedTuple):
    ns: int
    kind: str
    member: str | None
    event: GroupEvent


@dataclass(slots=True)
class _Generation:
    """A generation, or epoch: its members and their assignment.

    since_ns   the first response of the generation before; until_ns: the first of this one
    """

    number: int | None
    protocol: str | None
    joins: list[GroupEvent] = field(default_factory=list)
    syncs: list[GroupEvent] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    assigned: Assignment = field(default_factory=dict)
    before: set[str] = field(default_factory=set)
    assigned_before: Assignment = field(default_factory=dict)
    since_ns: int = 0
    until_ns: int = 0
    ended_ns: int | None = None
    stops: dict[str, tuple[int, int]] = field(default_factory=dict)  # by member: had to stop, could go on
    renamed: dict[str, str] = field(default_factory=dict)  # static members that came back later under another id
    later: list[GroupEvent] = field(default_factory=list)  # their events: no group rebalances for these
    lost: list[GroupEvent] = field(default_factory=list)  # expiries that an answer of this turn, not its first, shows

    def members_then(self) -> set[str]:
        """Its members at its end, as they were called by then."""
        return {self.renamed.get(member, member) for member in self.members}

    def given(self) -> Iterator[tuple[Partition, ...]]:
        """Yield all assignments in it, also those that were revoked before its end."""
        return (has for event in (*self.syncs, *self.later) for _, has in event.assigned or ())

    def assigned_then(self) -> Assignment:
        """Return the assignment at its end, by the members' names then."""
        return {self.renamed.get(member, member): has for member, has in self.assigned.items()}


class _GroupLife:
    """One group's events of one family of protocols, to be asked for those of a time."""

    def __init__(self, events: list[GroupEvent], contacts: dict[str, Contact]) -> None:
        self.events = events
        self.contacts = contacts
        self.clients = {event.member: (event.client, event.ip) for event in events if event.member is not None}
        self.instances = {
            event.member: event.instance for event in events if event.member is not None and event.instance is not None
        }
        self.expired = {event.member: event.place for event in events if event.kind == g.EXPIRED}
        self.earlier: dict[int, tuple[str, ...]] = {}  # by id of an event: its member's subscription before
        subscribed: dict[str, tuple[str, ...]] = {}
        for event in events:
            if event.member is not None and event.subscribed is not None:
                if event.member in subscribed:
                    self.earlier[id(event)] = subscribed[event.member]
                subscribed[event.member] = event.subscribed
        self._by_request = sorted(events, key=lambda event: (event.requested_ns, event.place, event.order))
        self._times = [event.requested_ns for event in self._by_request]

    def between(self, since_ns: int, until_ns: int) -> list[GroupEvent]:
        """Events whose requests came after the one time and before the other."""
        return self._by_request[bisect_right(self._times, since_ns) : bisect_left(self._times, until_ns)]


def rebalances(
    group: str,
    events: list[GroupEvent],
    contacts: dict[str, Contact],
    fetched: ClientDeliveryTimes,
    now_ns: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one group's rows, each with its place as `_order`.

    now_ns   the capture continues from there: rebalances that are not over (`_is_over`) become rows later

    Events of rebalances with rows are marked `settled`, and used once.
    """
    classic = [event for event in events if event.protocol in (g.CLASSIC, g.CONNECT, None)]
    newer = [event for event in events if event.protocol in (g.CONSUMER, g.SHARE, g.STREAMS)]
    lives = [(known, _generations) for known in _lives(classic, contacts)]
    lives += [(known, _epochs) for known in _lives(newer, contacts)]
    for known, turns_of in lives:
        ever: set[Partition] = set()
        turns = list(turns_of(known))
        for turn, following in zip_longest(turns, turns[1:]):
            trigger = _trigger(turn, known, ever)
            ever.update(*turn.assigned.values(), *turn.given())
            events_of_turn = [*turn.joins, *turn.syncs, *turn.later]
            if any(event.settled for event in events_of_turn) or not (
                now_ns is None or _is_over(turn, following, now_ns)
            ):
                continue
            for event in events_of_turn:
                event.settled = True
            if trigger is not None:
                yield _row(group, turn, trigger, known, fetched)


def _lives(events: list[GroupEvent], contacts: dict[str, Contact]) -> Iterator[_GroupLife]:
    """Divide events and contacts by the lives of a group.

    Members with nothing but heartbeats belong to its first life, because later ones begin with joins.
    """
    lives = list(_divided_lives(events))
    members = [{event.member for event in life} for life in lives]
    later = set[str | None]().union(*members[1:])
    for life, own_members in zip(lives, members, strict=True):
        own_contacts = {
            member: at
            for member, at in contacts.items()
            if member in own_members or (life is lives[0] and member not in later)
        }
        yield _GroupLife(life, own_contacts)


def _divided_lives(events: list[GroupEvent]) -> Iterator[list[GroupEvent]]:
    """Divide events into the lives of a group: one that is deleted or forgotten begins again with low generations.

    A member that joins after a generation was captured gets that or a later one; a later one if all members had left.
    Of static members of the newer protocols only the latter is certain.
    """
    begin, highest, reached_ns = 0, 0, 0
    there: set[str] = set()
    for at, event in enumerate(events):
        if _has_left(event):
            there.discard(event.member or "")
        if not event.well or event.generation is None or event.member is None:
            continue
        if event.kind == g.JOIN and event.requested_ns > reached_ns:
            sure = event.instance is None or event.protocol in (g.CLASSIC, g.CONNECT, None)
            if (event.generation < highest and sure) or (event.generation <= highest and not there):
                yield events[begin:at]
                begin, highest, there = at, 0, set()
        if event.kind in (g.JOIN, g.SYNC, g.UPDATE):  # who beats was there, maybe since before the capture
            there.add(event.member)
        if event.generation > highest:
            highest, reached_ns = event.generation, event.time_ns
    yield events[begin:]


def _is_over(turn: _Generation, following: _Generation | None, now_ns: int) -> bool:
    """Return whether a rebalance ended, or another overtook it, `OVER_NS` ago; or it did not end for very long, because
    some of its members are not in the capture."""
    if turn.number is None:
        return False
    last_ns = max([turn.until_ns, turn.ended_ns or 0, *(go_ns for _, go_ns in turn.stops.values())])
    if following is not None:
        last_ns = max(last_ns, following.until_ns)
    elif turn.ended_ns is None:
        return now_ns - last_ns > GIVEN_UP_NS
    return now_ns - last_ns > OVER_NS


def _row(
    group: str, turn: _Generation, trigger: _Trigger, known: _GroupLife, fetched: ClientDeliveryTimes
) -> dict[str, Any]:
    stopped = []
    for member, (stop_ns, go_ns) in sorted(turn.stops.items()):
        client = known.clients.get(member)
        had = _partitions(turn, turn.assigned_before.get(_earlier_name(member, turn, known)))
        has = _partitions(turn, turn.assigned.get(member))
        gap = fetched.stopped_ns(client, had, has, stop_ns, go_ns) if client is not None else None
        if gap is not None:
            stopped.append({"member_id": member, "stopped_us": gap // 1000})
    stopped += _without_reader(turn, known, fetched)
    shown = trigger.event
    return {
        "_order": (shown.place, shown.order, group, turn.number or 0),
        "group_id": group,
        "protocol": turn.protocol,
        "generation": turn.number,
        "began": trigger.ns // 1000,
        "ended": turn.ended_ns // 1000 if turn.ended_ns is not None else None,
        "trigger": trigger.kind,
        "trigger_member": trigger.member,
        "evidence": {"connection": shown.connection, "exchange": shown.exchange, "reply": shown.reply},
        "members_before": sorted(turn.before),
        "members_after": sorted(turn.members),
        "assignment_before": _listed(turn.assigned_before),
        "assignment_after": _listed(turn.assigned),
        "stopped": stopped,
    }


def _without_reader(turn: _Generation, known: _GroupLife, fetched: ClientDeliveryTimes) -> Iterator[dict[str, Any]]:
    """Yield how long nobody got records of the partitions of members that expired before this generation."""
    if turn.protocol in (g.STREAMS, g.CONNECT):
        return
    owners = {partition: member for member, partitions in turn.assigned.items() for partition in partitions}
    for member in sorted((turn.before - turn.members) & known.expired.keys()):
        client, had = known.clients.get(member), _partitions(turn, turn.assigned_before.get(member)) or []
        # What a client that came back under another id got again, is told of its new member.
        heirs = {
            partition: heir
            for partition in had
            if partition in owners and (heir := known.clients.get(owners[partition])) is not None and heir != client
        }
        gap = fetched.unread_ns(client, heirs, turn.until_ns) if client is not None else None
        if gap is not None:
            yield {"member_id": member, "stopped_us": gap // 1000}


def _earlier_name(member: str, turn: _Generation, known: _GroupLife) -> str:
    """The member's name before: that of its client's only one that is gone, where it lost its own."""
    if member in turn.before:
        return member
    gone = [name for name in turn.before - turn.members if known.clients.get(name) == known.clients.get(member)]
    return gone[0] if len(gone) == 1 else member


def _partitions(turn: _Generation, partitions: Iterable[Partition] | None) -> list[tuple[str, int]] | None:
    """Return the partitions whose fetches are a member's; None for streams and Connect: all of its client."""
    if turn.protocol in (g.STREAMS, g.CONNECT):
        return None
    return [(topic, number) for topic, number in partitions or () if number is not None]


def _listed(assigned: Assignment) -> list[dict[str, Any]]:
    return [
        {"member_id": member, "topic": topic, "partition": number}
        for member, partitions in sorted(assigned.items())
        for topic, number in partitions
    ]


# --- classic groups and Connect ---------------------------------------------------------------------------------------


def _generations(known: _GroupLife) -> Iterator[_Generation]:
    joins: dict[int, list[GroupEvent]] = defaultdict(list)
    syncs: dict[int, list[GroupEvent]] = defaultdict(list)
    for event in known.events:
        if event.kind == g.JOIN and event.well and event.generation is not None:
            joins[event.generation].append(event)
        elif event.kind == g.SYNC and event.well and event.generation is not None:
            syncs[event.generation].append(event)
    last: _Generation | None = None
    for number in sorted(joins, key=lambda number: joins[number][0].place):
        had = last.assigned_then() if last is not None else {}
        turn = _generation(number, joins[number], syncs[number], had, known)
        _put_before(turn, last, known)
        yield turn
        last = turn
    open_turn = _unfinished(known.events, last)
    if open_turn is not None:
        yield open_turn


def _generation(
    number: int, joins: list[GroupEvent], syncs: list[GroupEvent], had: Assignment, known: _GroupLife
) -> _Generation:
    turn = _Generation(number, joins[0].protocol)
    turn.until_ns = min(event.time_ns for event in joins)
    listed = next((event.members for event in joins if event.members is not None), None)
    _put_members(turn, joins, listed, known)
    names = set(turn.renamed.values())
    turn.joins = [event for event in joins if event.member not in names]
    turn.later = [event for event in (*joins, *syncs) if event.member in names]
    syncs = turn.syncs = [event for event in syncs if event.member not in names]
    led = [event for event in syncs if event.by_leader]
    for event in led[-1:] or syncs:
        lost = dict(event.revoked or ())
        for member, partitions in event.assigned or ():
            before = () if event.revoked is None else had.get(member, ())
            turn.assigned[member] = (
                *(partition for partition in before if partition not in lost.get(member, ())),
                *partitions,
            )
    synced = {event.member: event for event in syncs}
    if turn.members and turn.members <= synced.keys():
        turn.ended_ns = max(event.time_ns for event in syncs)
    joined = {event.member: event for event in turn.joins}
    for member in turn.members & joined.keys() & synced.keys():
        turn.stops[member] = joined[member].requested_ns, synced[member].time_ns
    return turn


def _put_members(turn: _Generation, joins: list[GroupEvent], listed: tuple[str, ...] | None, known: _GroupLife) -> None:
    """Fill in the members of a generation, and static members that returned later under another id.

    For these no group rebalances (KIP-345). `listed`: the members in the leader's first response.
    """
    turn.members = set(listed or ())
    place = {known.instances[member]: member for member in turn.members if member in known.instances}
    for event in joins:
        if event.member is None or event.member in turn.members:
            continue
        if event.instance is not None and event.instance in place:
            turn.renamed[place[event.instance]] = event.member
        elif listed is None:
            turn.members.add(event.member)
            if event.instance is not None:
                place[event.instance] = event.member


def _put_before(turn: _Generation, last: _Generation | None, known: _GroupLife) -> None:
    """Fill in what was before a generation."""
    if last is None:
        if turn.number is not None and turn.number > 1:
            turn.before = _were_members(known, turn.number - 1)
        return
    turn.since_ns = last.until_ns
    first_ns = min(event.requested_ns for event in turn.joins)
    if last.members_then() - {event.member for event in known.between(last.until_ns, first_ns) if _has_left(event)}:
        turn.before, turn.assigned_before = last.members_then(), last.assigned_then()


def _has_left(event: GroupEvent) -> bool:
    return event.kind == g.EXPIRED or event.went


def _were_members(known: _GroupLife, number: int) -> set[str]:
    """Members that were answered well in a generation or epoch that began before the capture."""
    return {member for member, contact in known.contacts.items() if 0 <= contact.lowest <= number <= contact.highest}


def _unfinished(events: list[GroupEvent], last: _Generation | None) -> _Generation | None:
    """Return a rebalance without a generation: members join at the end, or were told to."""
    since = max((event.time_ns for event in [*last.joins, *last.syncs]), default=0) if last is not None else 0
    left = {event.member for event in events if event.kind == g.LEAVE and event.well}
    signs = [
        event
        for event in events
        if event.requested_ns > since
        and event.member not in left
        and (
            (event.kind == g.JOIN and event.code is None)
            or (event.kind == g.HEARTBEAT_FAILED and event.code == kafka_errors.REBALANCE_IN_PROGRESS)
        )
    ]
    if not signs:
        return None
    turn = _Generation(None, signs[0].protocol, [event for event in signs if event.kind == g.JOIN])
    if last is not None:
        turn.before, turn.assigned_before, turn.since_ns = last.members_then(), last.assigned_then(), last.until_ns
    turn.until_ns = max(event.time_ns for event in signs) + 1
    return turn


# --- the newer protocols ----------------------------------------------------------------------------------------------


def _epochs(known: _GroupLife) -> Iterator[_Generation]:
    """Yield the epochs of newer protocols.

    A member learns its assignment of a new epoch before the epoch itself, because it has to give back partitions first.
    So an epoch lasts from the first response with it until the first response with a later one.
    """
    answers = [
        event
        for event in known.events
        if event.kind in (g.JOIN, g.SYNC, g.UPDATE) and event.well and event.member is not None and event.generation
    ]
    gone = [event for event in known.events if _has_left(event)]
    places = [event.place for event in gone]
    went, last = 0, _Generation(None, None)
    for number, epoch_events in _by_epoch(answers):
        first = epoch_events[0]
        turn = _Generation(number, first.protocol)
        turn.since_ns, turn.until_ns = last.until_ns, first.time_ns
        turn.before, turn.assigned_before = last.members_then(), last.assigned_then()
        epoch_events = _without_returned(turn, epoch_events, known)
        turn.joins, turn.syncs = [event for event in epoch_events if event.kind == g.JOIN], epoch_events
        if last.number is None:
            turn.before = _were_members(known, number - 1) - {event.member for event in turn.joins}
        turn.members = turn.before | {event.member for event in epoch_events if event.member is not None}
        while went < len(gone) and gone[went].place <= first.place:
            turn.members.discard(gone[went].member or "")
            went += 1
        shows = {event.place for event in epoch_events if event.generation == number}
        later = gone[went : bisect_right(places, max(shows, default=first.place))]
        turn.lost = [event for event in later if event.kind == g.EXPIRED and event.place in shows]
        turn.members -= {event.member for event in turn.lost if event.member is not None}
        for event in turn.joins:  # a static member that comes with another subscription has its place
            if event.instance is not None:
                turn.members -= {
                    name
                    for name in turn.members
                    if name != event.member and known.instances.get(name) == event.instance
                }
        turn.assigned = last.assigned_then()
        for event in epoch_events:
            turn.assigned.update(event.assigned or ())
        turn.assigned = {member: has for member, has in turn.assigned.items() if member in turn.members}
        had = _assigned_at(number, epoch_events)
        if turn.members and turn.members <= had.keys():
            turn.ended_ns = max(had[member] for member in turn.members)
        for member in turn.members & had.keys():
            turn.stops[member] = first.requested_ns, max(first.requested_ns, had[member])
        yield turn
        last = turn


def _without_returned(turn: _Generation, epoch_events: list[GroupEvent], known: _GroupLife) -> list[GroupEvent]:
    """Return an epoch's events without those of static members that returned in it under another id.

    They resume their assignment, and no group rebalances for them.
    """
    place = {known.instances[member]: member for member in turn.before if member in known.instances}
    for event in epoch_events:
        if event.kind != g.JOIN or event.instance is None or event.member is None:
            continue
        before = place.get(event.instance)
        over = before in known.expired and known.expired[before] <= event.place
        if event.requested_ns <= turn.until_ns or over:
            place[event.instance] = event.member
        elif event.member != place.get(event.instance, event.member):
            turn.renamed[place[event.instance]] = event.member
    names = set(turn.renamed.values())
    turn.later = [event for event in epoch_events if event.member in names]
    return [event for event in epoch_events if event.member not in names]


def _by_epoch(answers: list[GroupEvent]) -> Iterator[tuple[int, list[GroupEvent]]]:
    """Yield each epoch with its events from its first response on."""
    number, epoch_events = 0, list[GroupEvent]()
    for event in answers:
        if event.generation is not None and event.generation > number:
            if epoch_events:
                yield number, epoch_events
            number, epoch_events = event.generation, []
        epoch_events.append(event)
    if epoch_events:
        yield number, epoch_events


def _assigned_at(number: int, answers: list[GroupEvent]) -> dict[str, int]:
    """Return when each member of the epoch had its assignment.

    That is the last response that changed it, else the first with the epoch. A coordinator that takes over sends all
    members their assignment again.
    """
    had: dict[str, int] = {}
    reached: set[str] = set()
    given: dict[str, g.Assigned] = {}
    for event in answers:
        if event.member is None:
            continue
        other = event.assigned is not None and event.assigned != given.get(event.member)
        if event.assigned is not None:
            given[event.member] = event.assigned
        if other or event.member not in reached:
            had[event.member] = event.time_ns
            if event.generation == number:
                reached.add(event.member)
    return {member: time for member, time in had.items() if member in reached}


# --- triggers ---------------------------------------------------------------------------------------------------------


def _trigger(turn: _Generation, known: _GroupLife, ever: set[Partition]) -> _Trigger | None:
    between = known.between(turn.since_ns, turn.until_ns)
    moved = next((event for event in between if event.kind == g.COORDINATOR_MOVED), None)
    again = _rejoined if turn.protocol in (g.CLASSIC, g.CONNECT) else _resubscribed
    begun = bool(ever) or (turn.since_ns > 0 and turn.protocol in (g.CLASSIC, g.CONNECT))
    new = set().union(*turn.assigned.values()) - ever if begun else set()
    triggers = [
        *_joined(turn, known, moved),
        *_departed(turn, known, between, moved),
        *again(turn, known, between, new, moved),
    ]
    # In a newer group, only members of the classic protocol are told to rejoin, after a new epoch (KIP-848).
    notices = [
        _Trigger(event.time_ns, UNKNOWN, None, event)
        for event in between
        if event.kind == g.HEARTBEAT_FAILED
        and event.code == kafka_errors.REBALANCE_IN_PROGRESS
        and turn.protocol not in (g.CONSUMER, g.SHARE, g.STREAMS)
    ]
    first_notice = min(notices, key=_when, default=None)
    trigger = min(triggers, key=_when, default=None)
    if trigger is not None and (first_notice is None or trigger.ns <= first_notice.ns):
        return trigger
    signs = [*notices, *(_Trigger(event.time_ns, UNKNOWN, None, event) for event in [*turn.joins, *turn.syncs])]
    sign = min(signs, key=_when, default=None)
    unseen = sorted(turn.members - turn.before - {event.member or "" for event in turn.joins})
    if sign is not None and unseen and turn.protocol in (g.CLASSIC, g.CONNECT):
        return sign._replace(kind=g.JOIN, member=unseen[0])  # the leader's list shows who joined elsewhere
    return sign


def _when(trigger: _Trigger) -> tuple[int, g.Place, int]:
    return trigger.ns, trigger.event.place, trigger.event.order


def _joined(turn: _Generation, known: _GroupLife, moved: GroupEvent | None) -> Iterator[_Trigger]:
    """Members that are new."""
    clients = {known.clients.get(member) for member in turn.before}
    for event in turn.joins:
        if event.member in turn.before:
            continue
        if moved is not None and (event.client, event.ip) in clients:
            yield _Trigger(moved.time_ns, COORDINATOR, event.member, moved)
        else:
            yield _Trigger(event.requested_ns, g.JOIN, event.member, event)


def _departed(
    turn: _Generation, known: _GroupLife, between: list[GroupEvent], moved: GroupEvent | None
) -> Iterator[_Trigger]:
    """Members that left or expired."""
    for event in (*between, *turn.lost):
        if event.member is None or event.member not in turn.before or event.member in turn.members:
            continue
        if event.went:
            yield _Trigger(event.requested_ns, g.LEAVE, event.member, event)
        elif event.kind == g.EXPIRED:
            over, last_ns = min(event.requested_ns, turn.until_ns - 1), known.contacts[event.member].last_ns
            if moved is not None and last_ns < moved.requested_ns:
                over = turn.until_ns - 1  # the new coordinator began to count anew
            elif event.session_ms is not None and turn.protocol in (g.CLASSIC, g.CONNECT):
                over = min(over, last_ns + event.session_ms * _MS)
            yield _Trigger(over, g.EXPIRED, event.member, event)


def _rejoined(
    turn: _Generation, known: _GroupLife, between: list[GroupEvent], new: set[Partition], moved: GroupEvent | None
) -> Iterator[_Trigger]:
    """Members of before that joined again by themselves."""
    del between
    leader = next((event.leader for event in turn.joins if event.leader), None)
    for event in turn.joins:
        if event.member not in turn.before:
            continue
        earlier = known.earlier.get(id(event))
        kind = UNKNOWN
        if (earlier is not None and earlier != event.subscribed) or (event.member == leader and new):
            kind = METADATA
        elif moved is not None:
            kind = COORDINATOR
        yield _Trigger(event.requested_ns, kind, event.member, event)


def _resubscribed(
    turn: _Generation, known: _GroupLife, between: list[GroupEvent], new: set[Partition], moved: GroupEvent | None
) -> Iterator[_Trigger]:
    """Yield triggers of members with another subscription in their heartbeats, or of partitions never assigned
    before."""
    del moved
    for event in between:
        if event.member in turn.before and known.earlier.get(id(event), event.subscribed) != event.subscribed:
            yield _Trigger(event.requested_ns, METADATA, event.member, event)
    if new and not turn.joins:
        yield _Trigger(turn.until_ns - 1, METADATA, None, turn.syncs[0])
