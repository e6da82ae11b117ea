"""What each request waits for. Pure.

In: requests in order of captured time. Out: for each the steps whose answers must be there first, and those that must
have been sent. A request waits for
- the answers of its own connection that its client had when it sent it (so pipelining is as captured);
- whatever shares its state on other connections and was answered before it was sent: its group, its transactional or
  producer id, its topics' creation, the records that it fetched;
- where it produces to a partition that its producer id (without one: its client) wrote to on connections that had ended
  by then: the last such request of each, for a client that connects again does not overtake itself.
Rule: what shares no state is not ordered across connections.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from analyzer.protocol import names
from analyzer.protocol.topics import topics_of
from analyzer.protocol.tree import Body
from replay.plan import batches
from replay.plan.parts import NAME
from replay.plan.sessions import Decoded

_EXCLUSIVE_GROUP: Final = frozenset((
    names.JOIN_GROUP, names.SYNC_GROUP, names.LEAVE_GROUP, names.DELETE_GROUPS, names.DESCRIBE_GROUPS,
    names.OFFSET_DELETE, names.CONSUMER_GROUP_HEARTBEAT, names.CONSUMER_GROUP_DESCRIBE, names.SHARE_GROUP_HEARTBEAT,
    names.SHARE_GROUP_DESCRIBE, names.OFFSET_COMMIT, names.TXN_OFFSET_COMMIT,
))  # fmt: skip
_TRANSACTIONS: Final = frozenset((
    names.INIT_PRODUCER_ID, names.ADD_PARTITIONS_TO_TXN, names.ADD_OFFSETS_TO_TXN, names.END_TXN,
    names.TXN_OFFSET_COMMIT,
))  # fmt: skip
_TOPIC_MAKERS: Final = frozenset((
    names.CREATE_TOPICS, names.DELETE_TOPICS, names.CREATE_PARTITIONS, names.DELETE_RECORDS,
))  # fmt: skip

_NEAR: Final = 64
"""Batches before an offset among which the last of each session is looked for."""

Key = tuple[str, Any]


def uses(key: int, body: Body, answer: Body | None) -> Iterator[tuple[Key, bool]]:
    """(state, exclusively) that a request touches. What uses a state exclusively waits for all who used it and were
    answered; who shares it, for those who had it exclusively."""
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
    elif key == names.DESCRIBE_TRANSACTIONS:
        for name in body["transactionalIds"]:
            yield ("transaction", name), False
    elif key == names.PRODUCE:
        if body.get("transactionalId"):
            yield ("transaction", body["transactionalId"]), False
        for produced in _producers(body):
            yield ("producer", produced), False
    for _, topic in topics_of(key, body):
        if topic.get(NAME):
            yield ("topic", topic[NAME]), key in _TOPIC_MAKERS
            if key in (names.PRODUCE, names.LIST_OFFSETS):
                yield ("end", topic[NAME]), key == names.LIST_OFFSETS


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


@dataclass(slots=True)
class _Users:
    """Who used a state: by session, (time of the answer, step), answered first."""

    by_session: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def before(self, session: int, moment: int) -> Iterator[int]:
        """Of each other session, the last step that had been answered."""
        for other, steps in self.by_session.items():
            if other != session:
                at = bisect.bisect_left(steps, (moment, 1 << 60))
                if at:
                    yield steps[at - 1][1]

    def add(self, session: int, answered: int, step: int) -> None:
        bisect.insort(self.by_session.setdefault(session, []), (answered, step))


@dataclass(slots=True)
class _State:
    exclusive: _Users = field(default_factory=_Users)
    shared: _Users = field(default_factory=_Users)
    open: dict[int, int] = field(default_factory=dict)


class _Wrote(NamedTuple):
    """The last step with which a session wrote to a partition, and the sessions that it had waited for there."""

    number: int
    waited: frozenset[int]


@dataclass(slots=True)
class Order:
    """Finds what each step waits for; steps come in order of captured time. `ends`: when each session sent its last
    request, in nanoseconds; `copies`: of which copy of the capture each is, where not of the first (a reader waits for
    the writers of its own copy)."""

    ends: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)
    states: dict[Key, _State] = field(default_factory=dict)
    answered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    produced: dict[tuple[str | None, int, int], list[tuple[int, int, int, int]]] = field(default_factory=dict)
    ended: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    awaited: dict[int, set[int]] = field(default_factory=dict)
    wrote: dict[tuple[Any, str, int], dict[int, _Wrote]] = field(default_factory=dict)
    expects: bool = False

    def waits(self, number: int, session: int, message: Decoded, body: Body) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(steps whose answers it waits for, steps that must have been sent)."""
        request = message.request
        self.expects = False
        sent, done = request.sent_ns, request.answered_ns
        waits: set[int] = set()
        after: set[int] = set()
        mine = self.answered.setdefault(session, [])
        at = bisect.bisect_right(mine, (sent, 1 << 60))
        if at:
            waits.add(mine[at - 1][1])
        copy = self.copies.get(session, 0)
        for state_key, exclusive in uses(request.api_key, body, message.answer):
            if copy and state_key[0] in ("topic", "end"):
                state_key = state_key[0], (state_key[1], copy)
            state = self.states.setdefault(state_key, _State())
            waits.update(state.exclusive.before(session, sent))
            if exclusive:
                waits.update(state.shared.before(session, sent))
            if state_key[0] == "group" and request.api_key == names.JOIN_GROUP:
                # Who rejoins does it because somebody else wants to join: that one goes first.
                after.update(step for step, other in state.open.items() if other != session)
                state.open[number] = session
            users = state.exclusive if exclusive else state.shared
            if done is not None:
                users.add(session, done, number)
        if request.api_key == names.PRODUCE:
            waits.update(self._written_before(number, session, message, body))
        if request.api_key == names.FETCH:
            waits.update(self._below(body, session))
        if request.api_key == names.FETCH and message.answer is not None and done is not None:
            makers = set(self._records(message.answer, done, copy))
            self.expects = bool(makers)
            waits.update(step for step, other in makers if other != session)
        if done is not None:
            mine.append((done, number))
        self._note(number, session, message, body)
        awaited = self.awaited.setdefault(session, set())
        fresh = waits - awaited
        awaited.update(fresh)
        return tuple(sorted(fresh)), tuple(sorted(after - waits))

    def _written_before(self, number: int, session: int, message: Decoded, body: Body) -> Iterator[int]:
        """The last step with which the same producer id (without one: the same client) wrote to these partitions
        on each connection that had ended before. (What is open at the same time has no order among it.)"""
        row, sent = message.request.row, message.request.sent_ns
        for topic in body["topicData"]:
            for part in topic["partitionData"]:
                producers = {batch.producer_id for batch in batches.produced(part["records"])} - {-1}
                writers: set[Any] = producers or {(row["client_ip"], row["client_id"])}
                for who in writers:
                    last = self.wrote.setdefault((who, topic.get(NAME, ""), part["index"]), {})
                    yield from self._ended(last, number, session, sent)

    def _ended(self, last: dict[int, _Wrote], number: int, session: int, sent: int) -> Iterator[int]:
        """Those of the last steps of sessions which had ended; the session's own one becomes this step."""
        ended = [other for other in last if other != session and self.ends.get(other, sent) < sent]
        yield from [last[other].number for other in ended]
        # Whom one that has ended had waited for, nobody has to wait for any more.
        for other in [old for one in ended for old in last[one].waited if old != session]:
            last.pop(other, None)
        before = last[session].waited if session in last else frozenset[int]()
        last[session] = _Wrote(number, frozenset(one for one in (*before, *ended) if one in last))

    def _below(self, body: Body, session: int) -> Iterator[int]:
        """The steps that wrote what is below the offsets that a fetch asks for, the last of each session: before them
        these offsets are out of range."""
        for topic in body["topics"]:
            for part in topic["partitions"]:
                written = self.produced.get((topic.get(NAME, ""), part["partition"], self.copies.get(session, 0)))
                if written is None:
                    continue
                at = bisect.bisect_left(written, (part["fetchOffset"],))
                seen: set[int] = set()
                # Nearest first; a session's last covers its earlier ones, so a few are looked at.
                for _, _, step, other in reversed(written[max(at - _NEAR, 0) : at]):
                    if other != session and other not in seen:
                        seen.add(other)
                        yield step

    def _records(self, answer: Body, done: int, copy: int) -> Iterator[tuple[int, int]]:
        """(step, session) of what produced the records of an answer, the last of each session, and of what committed
        them."""
        latest: dict[tuple[str, int], tuple[int, int]] = {}
        for topic in answer["responses"]:
            for partition in topic["partitions"]:
                name = topic.get(NAME) or topic.get("topic") or ""
                written = self.produced.get((name, partition["partitionIndex"], copy), [])
                for batch in batches.produced(partition.get("records")):
                    end = batch.base_offset + batch.last_offset_delta + 1
                    at = bisect.bisect_left(written, (end,))
                    while at > 0 and written[at - 1][1] > batch.base_offset:
                        at -= 1
                        _, _, step, other = written[at]
                        latest["session", other] = max(latest.get(("session", other), (-1, other)), (step, other))
                    if batch.transactional:
                        for when, step, other in self.ended.get(batch.producer_id, ()):
                            if when < done:
                                latest["producer", batch.producer_id] = step, other
        yield from latest.values()

    def _note(self, number: int, session: int, message: Decoded, body: Body) -> None:
        if message.request.api_key == names.END_TXN and not (message.answer or {}).get("errorCode", -1):
            self.ended.setdefault(body["producerId"], []).append((message.request.sent_ns, number, session))
        if message.request.api_key != names.PRODUCE or message.answer is None:
            return
        counts: dict[tuple[str | None, int, int], int] = {}
        copy = self.copies.get(session, 0)
        for topic in body["topicData"]:
            for part in topic["partitionData"]:
                inside = batches.produced(part["records"])
                counts[topic.get(NAME), part["index"], copy] = max(sum(b.last_offset_delta + 1 for b in inside), 1)
        for topic in message.answer["responses"]:
            for part in topic["partitionResponses"]:
                where = topic.get(NAME) or topic.get("name"), part["index"], copy
                if not part["errorCode"] and part["baseOffset"] >= 0:
                    base = part["baseOffset"]
                    end = base + counts.get(where, 1)
                    bisect.insort(self.produced.setdefault(where, []), (base, end, number, session))
