"""Decides what each request waits for. Pure.

In: requests in order of captured time. Out: for each the steps whose answers must be there first, and those that must
have been sent. A request waits for

- the answers of its own connection that its client had when it sent it (so pipelining is as captured)
- requests on other connections that share its state and were answered before it was sent: its group, its transactional
  or producer id, its topics' creation, the records that it fetched, those below the offsets that it commits
- if it ends a transaction, everything that was written in it
- if it produces to a partition that its producer id (or, without one, its client) wrote to on other connections: of
  each the last such request that was answered by then, or, if the connection had ended, its last one, because a client
  does not overtake itself. The same for all clients that had ended before its connection wrote there first: producers
  that ran one after the other stay so

Rule: requests that share no state are not ordered across connections.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.produce_requests import FastPath
from kwire.replay.plan.sessions import Decoded
from kwire.replay.plan.topic_partitions import NAME

_EXCLUSIVE_GROUP: Final = frozenset(
    (
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.LEAVE_GROUP,
        api_keys.DELETE_GROUPS,
        api_keys.DESCRIBE_GROUPS,
        api_keys.OFFSET_DELETE,
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        api_keys.CONSUMER_GROUP_DESCRIBE,
        api_keys.SHARE_GROUP_HEARTBEAT,
        api_keys.SHARE_GROUP_DESCRIBE,
        api_keys.OFFSET_COMMIT,
        api_keys.TXN_OFFSET_COMMIT,
    )
)
_TRANSACTIONS: Final = frozenset(
    (
        api_keys.INIT_PRODUCER_ID,
        api_keys.ADD_PARTITIONS_TO_TXN,
        api_keys.ADD_OFFSETS_TO_TXN,
        api_keys.END_TXN,
        api_keys.TXN_OFFSET_COMMIT,
    )
)
_COMMITS: Final = frozenset((api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT))
_TOPIC_MAKERS: Final = frozenset(
    (
        api_keys.CREATE_TOPICS,
        api_keys.DELETE_TOPICS,
        api_keys.CREATE_PARTITIONS,
        api_keys.DELETE_RECORDS,
    )
)

_NEAR: Final = 64
"""Batches before an offset that are searched for the last one of each session."""

_LAST_OFFSET: Final = (1 << 63) - 1
_SPENT: Final = 8
_MANY: Final = 64
"""How many unused steps a list collects before they are dropped; how long a list grows that is only added to."""

Key = tuple[str, Any]


def uses(key: int, body: Body, answer: Body | None) -> Iterator[tuple[Key, bool]]:
    """Give (state, exclusively) that a request touches. An exclusive use waits for all earlier uses that were answered;
    a shared use waits for earlier exclusive ones."""
    for group in _groups(key, body):
        yield ("group", group), key in _EXCLUSIVE_GROUP
    if key in _TRANSACTIONS:
        name = body.get("transactionalId") or body.get("v3AndBelowTransactionalId")
        if name:
            yield ("transaction", name), True
        for side in (body, answer or {}):
            used: Any = side.get("producerId", side.get("v3AndBelowProducerId", -1))
            if used >= 0:
                yield ("producer", used), True
    elif key == api_keys.DESCRIBE_TRANSACTIONS:
        for name in body["transactionalIds"]:
            yield ("transaction", name), False
    elif key == api_keys.PRODUCE:
        if body.get("transactionalId"):
            yield ("transaction", body["transactionalId"]), False
        for produced in _producers(body):
            yield ("producer", produced), False
    for _, topic in topics_of(key, body):
        if topic.get(NAME):
            yield ("topic", topic[NAME]), key in _TOPIC_MAKERS
            if key in (api_keys.PRODUCE, api_keys.LIST_OFFSETS):
                yield ("end", topic[NAME]), key == api_keys.LIST_OFFSETS


def _groups(key: int, body: Body) -> Iterator[str]:
    if isinstance(body.get("groupId"), str):
        yield body["groupId"]
    for field_name in ("groups", "groupIds", "groupsNames"):
        for group in body.get(field_name) or ():
            if isinstance(group, str):
                yield group
            elif group.get("groupId") and group["groupId"] != body.get("groupId"):
                yield group["groupId"]


def _producers(body: Body) -> set[int]:
    ids: set[int] = set()
    for topic in body["topicData"]:
        for partition in topic["partitionData"]:
            ids.update(batch.producer_id for batch in batches.produced(partition["records"]))
    return ids - {-1}


def used_by_fast_path(fast_path: FastPath) -> Iterator[tuple[Key, bool]]:
    """Like `uses`, for a request that took the fast path."""
    if fast_path.transactional_id:
        yield ("transaction", fast_path.transactional_id), False
    for produced in fast_path.producers:
        yield ("producer", produced), False
    yield ("topic", fast_path.topic), False
    yield ("end", fast_path.topic), False


class _Write(NamedTuple):
    """A write of a Produce request to a partition: its producers, and how many records."""

    topic: str | None
    partition: int
    producers: Collection[int]
    records: int


def _writes(message: Decoded, body: Body | None) -> list[_Write]:
    if body is None:
        assert message.fast_path is not None
        fast_path = message.fast_path
        return [_Write(fast_path.topic, fast_path.partition, fast_path.producers, max(fast_path.count, 1))]
    writes = []
    for topic in body["topicData"]:
        for part in topic["partitionData"]:
            inside = batches.produced(part["records"])
            producers = {batch.producer_id for batch in inside} - {-1}
            count = sum(batch.last_offset_delta + 1 for batch in inside) or batches.messages(part["records"])
            writes.append(_Write(topic.get(NAME), part["index"], producers, max(count, 1)))
    return writes


def _stored(message: Decoded) -> Iterator[tuple[str | None, int, int]]:
    """Give (topic, partition, base offset) of what the answer to a Produce request says is stored."""
    for topic in (message.answer or {}).get("responses", ()):
        for part in topic["partitionResponses"]:
            if not part["errorCode"] and part["baseOffset"] >= 0:
                yield topic.get(NAME) or topic.get("name"), part["index"], part["baseOffset"]


def _last_until(steps: list[tuple[int, int]], moment: int) -> int | None:
    """The last of steps, by (time of the answer, number), that was answered by then. Those before it are dropped: times
    only grow, so nobody asks for them again."""
    at = bisect.bisect_left(steps, (moment, 1 << 60))
    if not at:
        return None
    if at > _SPENT:
        del steps[: at - 1]
        at = 1
    return steps[at - 1][1]


def _add(steps: list[tuple[int, int]], answered: int, step: int) -> None:
    if steps and steps[-1] > (answered, step):
        bisect.insort(steps, (answered, step))
    else:
        steps.append((answered, step))


@dataclass(slots=True)
class _Users:
    """Uses of a state: by session, (time of the answer, step), the first answer first."""

    by_session: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def before(self, session: int, moment: int) -> Iterator[int]:
        """Give, of each other session, the last step that had been answered."""
        for other, steps in self.by_session.items():
            if other != session:
                last = _last_until(steps, moment)
                if last is not None:
                    yield last

    def forget(self, floor: int) -> bool:
        """Forget steps before this one, which are done; true if nothing is left."""
        for session in [user for user, steps in self.by_session.items() if max(step for _, step in steps) < floor]:
            del self.by_session[session]
        return not self.by_session

    def add(self, session: int, moment: int, answered: int, step: int) -> None:
        """Add a step of a session, sent at that time."""
        steps = self.by_session.get(session)
        if steps is None:
            steps = self.by_session[session] = []
        elif len(steps) > _MANY:
            _last_until(steps, moment)
        use = answered, step
        if steps and steps[-1] > use:
            bisect.insort(steps, use)
        else:
            steps.append(use)


@dataclass(slots=True)
class _Turns(_Users):
    """Writes of one client to a partition on several connections. `waited`: by step, those that it waits for, so that
    nobody has to wait for them who waits for it."""

    waited: dict[int, Collection[int]] = field(default_factory=dict)

    def awaited(self, session: int, moment: int) -> set[int]:
        """Give the steps that must be answered before one that this session sends now."""
        last = set(self.before(session, moment))
        covered = {step for other in last for step in self.waited.get(other, ())}
        for other in [user for user, steps in self.by_session.items() if user != session and len(steps) == 1]:
            if self.by_session[other][0][1] in covered:
                del self.by_session[other]
        return last - covered

    def take(self, session: int, moment: int, answered: int, step: int, waits: Collection[int]) -> None:
        """Add a step of a session, sent at that time, and what it waits for."""
        self.add(session, moment, answered, step)
        if waits:
            self.waited[step] = waits
        if len(self.waited) > 2 * _MANY * max(len(self.by_session), 1):
            there = {number for steps in self.by_session.values() for _, number in steps}
            self.waited = {number: some for number, some in self.waited.items() if number in there}


@dataclass(slots=True)
class _Produced:
    """Writes to a partition, in order of offsets: columns base offset, end, step and session. `spent`: the offsets,
    [first, end), that contain those that were forgotten."""

    spent: tuple[int, int] = (0, 0)
    bases: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    sessions: array[int] = field(default_factory=lambda: array("q"))

    def add(self, base: int, end: int, step: int, session: int) -> None:
        at = len(self.bases)
        if not at or (self.bases[-1], self.ends[-1]) <= (base, end):  # by far the most: behind all others
            self.bases.append(base)
            self.ends.append(end)
            self.steps.append(step)
            self.sessions.append(session)
            return
        while at and (self.bases[at - 1], self.ends[at - 1]) > (base, end):
            at = at - 1 if self.bases[at - 1] == base else bisect.bisect_right(self.bases, base, 0, at)
        for column, value in zip(
            (self.bases, self.ends, self.steps, self.sessions), (base, end, step, session), strict=True
        ):
            if at == len(column):
                column.append(value)
            else:
                column.insert(at, value)

    def forget(self, floor: int) -> None:
        """Steps before this one are done."""
        stay = [row for row, step in enumerate(self.steps) if step >= floor]
        if len(stay) == len(self.steps):
            return
        gone = sorted(set(range(len(self.steps))) - set(stay))
        low, high = self.bases[gone[0]], max(self.ends[row] for row in gone)
        self.spent = (min(low, self.spent[0]), max(high, self.spent[1])) if self.spent[1] else (low, high)
        for name in ("bases", "ends", "steps", "sessions"):
            column = getattr(self, name)
            setattr(self, name, array("q", [column[row] for row in stay]))


@dataclass(slots=True)
class _State:
    exclusive: _Users = field(default_factory=_Users)
    shared: _Users = field(default_factory=_Users)
    open: dict[int, int] = field(default_factory=dict)


_NOBODY: Final = frozenset[int]()


_ANY_CLIENT: Final = "any client"
"""Key for all writers of a partition, whichever client they are."""


class _Wrote(NamedTuple):
    """The last step with which a session wrote to a partition, and the sessions that it had waited for there."""

    number: int
    waited: frozenset[int]


@dataclass(slots=True)
class Order:
    """Finds what each step waits for; steps come in order of captured time.

    - `ends`: when each session sent its last request, in nanoseconds
    - `copies`: which copy of the capture a session belongs to, if not to the first (a reader waits for the writers of
      its own copy)
    - `horizon`: how many steps back the sender is surely done, so that nothing has to wait for those, and memory stays
      small; None: nothing is forgotten
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)
    horizon: int | None = None
    states: dict[Key, _State] = field(default_factory=dict)
    answered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    produced: dict[tuple[str | None, int, int], _Produced] = field(default_factory=dict)
    ended: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    awaited: dict[int, set[int]] = field(default_factory=dict)
    awaited_own: dict[int, int] = field(default_factory=dict)
    wrote: dict[tuple[Any, str, int], dict[int, _Wrote]] = field(default_factory=dict)
    turns: dict[tuple[Any, str, int], _Turns] = field(default_factory=dict)
    inside: dict[str, dict[tuple[int, str, int], tuple[int, int]]] = field(default_factory=dict)
    expects: bool = False

    def waits(
        self, number: int, session: int, message: Decoded, body: Body | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Give (steps whose answers it waits for, steps that must have been sent). Without a body: of
        `message.fast_path`."""
        request = message.request
        key = request.api_key
        self.expects = False
        floor = -1
        if self.horizon is not None:
            floor = number - self.horizon
            if number % max(self.horizon // 4, 1) == 0:
                self._forget(floor)
        sent, done = request.sent_ns, request.answered_ns
        waits: set[int] = set()
        after: set[int] = set()
        own_answers = self.answered.setdefault(session, [])
        own = _last_until(own_answers, sent)
        copy = self.copies.get(session, 0)
        fast_path = message.fast_path
        if body is None:
            assert fast_path is not None
            used = used_by_fast_path(fast_path)
        else:
            used = uses(key, body, message.answer)
        for state_key, exclusive in used:
            if copy and state_key[0] in ("topic", "end"):
                state_key = state_key[0], (state_key[1], copy)
            state = self.states.get(state_key)
            if state is None:
                state = self.states[state_key] = _State()
            if state.exclusive.by_session:
                waits.update(state.exclusive.before(session, sent))
            if exclusive:
                waits.update(state.shared.before(session, sent))
            if key == api_keys.JOIN_GROUP and state_key[0] == "group":
                # A member rejoins because another one wants to join: that one goes first.
                after.update(step for step, other in state.open.items() if other != session)
                state.open[number] = session
            users = state.exclusive if exclusive else state.shared
            if done is not None:
                users.add(session, sent, done, number)
        if key == api_keys.PRODUCE:
            writes = _writes(message, body)
            self._wait_for_writers(waits, number, session, message, writes)
            self._note_inside(number, session, message, body, writes)
            self._note_stored(number, session, message, body, writes)
        elif key == api_keys.FETCH:
            assert body is not None
            waits.update(self._below(body, "partition", "fetchOffset", session))
            if message.answer is not None and done is not None:
                makers = set(self._records(message.answer, done, copy))
                self.expects = bool(makers) or self._was_produced(message.answer, copy)
                waits.update(step for step, other in makers if other != session)
        elif key in _COMMITS:
            # Offsets are committed at the coordinator, on another connection than that on which they were read. Where
            # they are on the target, the answers to what wrote the records before them tell.
            assert body is not None
            waits.update(self._below(body, "partitionIndex", "committedOffset", session))
        elif key == api_keys.END_TXN and body is not None:
            waits.update(step for answered, step in self._written_inside(body) if answered < sent)
            if not (message.answer or {}).get("errorCode", -1):
                self.ended.setdefault(body["producerId"], []).append((sent, number, session))
        if done is not None:
            _add(own_answers, done, number)
        if after:
            after -= waits
            after.discard(own if own is not None else -1)
        if waits:
            awaited = self.awaited.setdefault(session, set())
            waits -= awaited
            awaited |= waits
        if own is not None and self.awaited_own.get(session) != own:
            # Of one's own only the last is remembered: it is never another one again that was awaited before.
            self.awaited_own[session] = own
            waits.add(own)
        if floor > 0 and (waits or after):
            waits = {step for step in waits if step >= floor}
            after = {step for step in after if step >= floor}
        return tuple(sorted(waits)), tuple(sorted(after))

    def _forget(self, floor: int) -> None:
        """Steps before this one are done."""
        for key, state in list(self.states.items()):
            idle = state.exclusive.forget(floor) & state.shared.forget(floor)
            state.open = {step: session for step, session in state.open.items() if step >= floor}
            if idle and not state.open:
                del self.states[key]
        for session, steps in list(self.answered.items()):
            if not steps or max(step for _, step in steps) < floor:
                del self.answered[session]
                self.awaited_own.pop(session, None)
        for session, some in list(self.awaited.items()):
            self.awaited[session] = {step for step in some if step >= floor}
            if not self.awaited[session]:
                del self.awaited[session]
        for written in self.produced.values():
            written.forget(floor)
        for producer, ended in list(self.ended.items()):
            self.ended[producer] = [entry for entry in ended if entry[1] >= floor]
            if not self.ended[producer]:
                del self.ended[producer]
        for name, inside in list(self.inside.items()):
            self.inside[name] = {where: entry for where, entry in inside.items() if entry[1] >= floor}
            if not self.inside[name]:
                del self.inside[name]
        for who, last in list(self.wrote.items()):
            for session in [entry for entry, wrote in last.items() if wrote.number < floor]:
                del last[session]
            if not last:
                del self.wrote[who]
        for who in [key for key, turns in self.turns.items() if turns.forget(floor)]:
            del self.turns[who]

    def _note_inside(
        self, number: int, session: int, message: Decoded, body: Body | None, writes: list[_Write]
    ) -> None:
        """Note what a transaction writes: the last step to each partition."""
        name = (
            message.fast_path.transactional_id
            if body is None and message.fast_path
            else (body or {}).get("transactionalId")
        )
        answered = message.request.answered_ns
        if name and answered is not None:
            some = self.inside.setdefault(name, {})
            some.update({(session, write.topic or "", write.partition): (answered, number) for write in writes})

    def _written_inside(self, body: Body) -> Collection[tuple[int, int]]:
        """Give what the ending transaction wrote, and forget it: (time of the answer, step).

        The target's brokers answer independently, and a request may have to be repeated: the last step that was
        answered in the capture does not stand for all.
        """
        return self.inside.pop(body["transactionalId"], {}).values()

    def _was_produced(self, answer: Body, copy: int) -> bool:
        """Whether an answer has records that were produced by a step which is forgotten."""
        for topic in answer["responses"] if self.horizon is not None else ():
            for partition in topic["partitions"]:
                name = topic.get(NAME) or topic.get("topic") or ""
                low, high = self.produced.get((name, partition["partitionIndex"], copy), _NOTHING).spent
                read = batches.fetched(partition.get("records")) if high else ()
                if any(first < high and low < end for first, end, _ in read):
                    return True
        return False

    def _wait_for_writers(
        self, waits: set[int], number: int, session: int, message: Decoded, writes: list[_Write]
    ) -> None:
        """Wait for earlier writers of these partitions.

        Those are, of the same producer id (or, without one, the same client), the last step on each other connection
        that was answered before, or whose connection had ended before; if this is the connection's first write, the
        last step of any client on a connection that had ended. (Clients that are there at the same time have no order.)
        """
        row, sent = message.request.row, message.request.sent_ns
        everybody = _ANY_CLIENT, self.copies.get(session, 0)
        for write in writes:
            others = self.wrote.setdefault((everybody, write.topic or "", write.partition), {})
            own_write = others.get(session)
            if own_write is None:
                waits.update(self._ended(others, number, session, sent))
            else:
                others[session] = _Wrote(number, own_write.waited)
            writers: Collection[Any] = write.producers or ((row["client_ip"], row["client_id"]),)
            for who in writers:
                key = who, write.topic or "", write.partition
                waits.update(self._in_turn(key, number, session, message))
                last = self.wrote.get(key)
                if last is None:
                    self.wrote[key] = {session: _Wrote(number, _NOBODY)}
                elif len(last) == 1 and session in last and not last[session].waited:
                    last[session] = _Wrote(number, _NOBODY)
                else:
                    waits.update(self._ended(last, number, session, sent))

    def _in_turn(self, key: tuple[Any, str, int], number: int, session: int, message: Decoded) -> Collection[int]:
        """Give what was answered, of the same client on other connections, before it sent this step."""
        turns = self.turns.get(key)
        if turns is None:
            turns = self.turns[key] = _Turns()
        sent, answered = message.request.sent_ns, message.request.answered_ns
        alone = not turns.by_session or (len(turns.by_session) == 1 and session in turns.by_session)
        waits: Collection[int] = _NOBODY if alone else turns.awaited(session, sent)
        if answered is not None:
            turns.take(session, sent, answered, number, waits)
        return waits

    def _ended(self, last: dict[int, _Wrote], number: int, session: int, sent: int) -> list[int]:
        """Give the last steps of sessions that had ended; this step becomes the session's own last one."""
        ended = [other for other in last if other != session and self.ends.get(other, sent) < sent]
        waits = [last[other].number for other in ended]
        # Sessions that an ended one had waited for need not be waited for any more.
        for other in [old for other_session in ended for old in last[other_session].waited if old != session]:
            last.pop(other, None)
        before = last[session].waited if session in last else _NOBODY
        last[session] = _Wrote(
            number, frozenset(other_session for other_session in (*before, *ended) if other_session in last)
        )
        return waits

    def _below(self, body: Body, number: str, offset: str, session: int) -> Iterator[int]:
        """Give the steps that wrote what is below the offsets that a request names, the last of each session. Before
        those steps the offsets are out of range. `number`, `offset`: the names of these fields in its partitions."""
        for topic in body["topics"]:
            for part in topic["partitions"]:
                written = self.produced.get((topic.get(NAME, ""), part[number], self.copies.get(session, 0)))
                if written is None:
                    continue
                at = bisect.bisect_left(written.bases, part[offset])
                seen: set[int] = set()
                # Nearest first; a session's last covers its earlier ones, so a few are looked at.
                for row in range(at - 1, max(at - _NEAR, 0) - 1, -1):
                    other = written.sessions[row]
                    if other != session and other not in seen:
                        seen.add(other)
                        yield written.steps[row]

    def _records(self, answer: Body, done: int, copy: int) -> Iterator[tuple[int, int]]:
        """Give (step, session) of what produced the records of an answer, the last of each session, and of what
        committed them."""
        latest: dict[tuple[str, int], tuple[int, int]] = {}
        for topic in answer["responses"]:
            for partition in topic["partitions"]:
                name = topic.get(NAME) or topic.get("topic") or ""
                written = self.produced.get((name, partition["partitionIndex"], copy), _NOTHING)
                for first, end, batch in batches.fetched(partition.get("records")):
                    at = bisect.bisect_left(written.bases, end)
                    while at > 0 and written.ends[at - 1] > first:
                        at -= 1
                        step, other = written.steps[at], written.sessions[at]
                        latest["session", other] = max(latest.get(("session", other), (-1, other)), (step, other))
                    if batch is not None and batch.transactional:
                        for when, step, other in self.ended.get(batch.producer_id, ()):
                            if when < done:
                                latest["producer", batch.producer_id] = step, other
        yield from latest.values()

    def _note_stored(
        self, number: int, session: int, message: Decoded, body: Body | None, writes: list[_Write]
    ) -> None:
        copy = self.copies.get(session, 0)
        stored: list[tuple[str | None, int, int, int]]
        if body is None:
            fast_path, (write,) = message.fast_path, writes
            assert fast_path is not None
            stored = [(fast_path.topic, fast_path.partition, fast_path.base, write.records)]
        else:
            counts = {(write.topic, write.partition): write.records for write in writes}
            stored = [(*batch, counts.get(batch[:2], 1)) for batch in _stored(message)]
        for topic, partition, base, count in stored:
            where = topic, partition, copy
            written = self.produced.get(where)
            if written is None:
                written = self.produced[where] = _Produced()
            written.add(base, min(base + count, _LAST_OFFSET), number, session)


_NOTHING: Final = _Produced()
