"""Decides when a request is repeated, by which rule, and what of its answer is kept. Pure: no I/O, no clock.

A fresh target answers a faithful replay with races that the capture does not show (docs/reference/replay.md has what
brokers answered): such an answer is retried as a client would, with a bound, and counted. An error that the capture has
too is the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kwire.analyzer.protocol import api_keys, errors, schema
from kwire.analyzer.protocol.topic_lists import RESPONSE_LISTS, structs, topics_of
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import apis, batches
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME, named, subset, without
from kwire.replay.plan.values import NO_COORDINATOR
from kwire.replay.remap import share_sessions
from kwire.replay.remap.remap import Remap
from kwire.replay.remap.topology import Topology

NO_TOPIC: Final = (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID)
_LEADER_MOVED: Final = (
    errors.LEADER_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.REQUEST_TIMED_OUT,
    errors.REPLICA_NOT_AVAILABLE,
    errors.NETWORK_EXCEPTION,
    errors.NOT_ENOUGH_REPLICAS,
    errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.KAFKA_STORAGE_ERROR,
    errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH,
    errors.OFFSET_NOT_AVAILABLE,
)
"""Errors after which clients look for the leader: it moved, timed out, lacks replicas or its disk, has another epoch
or does not know yet how far its log is replicated."""
_PERHAPS_STORED: Final = frozenset(
    (
        errors.REQUEST_TIMED_OUT,
        errors.NETWORK_EXCEPTION,
        errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
)
"""Of those, errors in an answer to Produce although the leader may have stored the records."""
_SESSION_LOST: Final = (errors.FETCH_SESSION_ID_NOT_FOUND, errors.INVALID_FETCH_SESSION_EPOCH)
_TRANSACTION_ENDS: Final = (errors.CONCURRENT_TRANSACTIONS, errors.UNSTABLE_OFFSET_COMMIT)
"""Errors while a transaction's markers are not written yet: for the next transaction, and for requests for the offsets
that it commits."""

_BY_CODE: Final = {
    **dict.fromkeys(NO_TOPIC, "topic_appears"),
    **dict.fromkeys(NO_COORDINATOR, "coordinator_loads"),
    **dict.fromkeys(_LEADER_MOVED, "leader_moved"),
    **dict.fromkeys(_SESSION_LOST, "session_remade"),
    **dict.fromkeys(_TRANSACTION_ENDS, "transaction_ends"),
    errors.STALE_MEMBER_EPOCH: "member_epoch_moved",
}
_MOST_REMADE: Final = 3
"""How often a share session is begun anew for one fetch: after more, another client keeps taking it."""
_MOST_POSITION_REQUESTS: Final = 3
"""How often a reader asks where its log ends for one fetch: after more, its position is out of range there too."""
_REJOINS: Final = {
    **dict.fromkeys(apis.GROUP_HEARTBEATS, (errors.UNKNOWN_MEMBER_ID, errors.FENCED_MEMBER_EPOCH)),
    **dict.fromkeys(
        (api_keys.HEARTBEAT, api_keys.SYNC_GROUP, api_keys.OFFSET_COMMIT, api_keys.TXN_OFFSET_COMMIT),
        (errors.UNKNOWN_MEMBER_ID, errors.ILLEGAL_GENERATION, errors.REBALANCE_IN_PROGRESS),
    ),
    api_keys.JOIN_GROUP: (errors.UNKNOWN_MEMBER_ID,),
}
"""Errors after which a client joins its group again, by API."""
_NOT_FOR: Final = frozenset((api_keys.METADATA, api_keys.DESCRIBE_CONFIGS, api_keys.DELETE_TOPICS))
"""APIs that ask about a topic: that it does not exist is an answer."""
_TELLING: Final = {api_keys.METADATA: ("topics", "name"), api_keys.DESCRIBE_CONFIGS: ("results", "resourceName")}
"""Of those that brokers answer from their current knowledge: where their answers list topics, and name them."""
_BY_BROKERS: Final = frozenset(schema.TOPICS) - {"__cluster_metadata"}
"""Topics that brokers create themselves, at the first request for a coordinator."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for which an answer is retried. `errors` covers an election after a broker died, `records` and
    `rebalance` what another member or producer of the capture still has to do."""

    errors: float = 30.0
    records: float = 5.0
    rebalance: float = 30.0
    first_pause: float = 0.02
    longest_pause: float = 0.5


def codes(body: Body | None) -> set[int]:
    """List every error code of an answer but 0, at any depth."""
    return set(errors.codes(body))


def rule_for(
    api_key: int, captured: Body | None, replayed: Body, after_retry: bool, given_up: Collection[int] = ()
) -> str | None:
    """The rule by which a request with this answer is repeated; None: it is the answer.

    `after_retry`: an earlier request of the connection was repeated, so that this one came before it; `given_up`:
    errors that are not waited for any more.
    """
    expected, actual = codes(captured).union(given_up), codes(replayed)
    for code in sorted(actual - expected):
        name = _BY_CODE.get(code)
        if code in NO_TOPIC and api_key in _NOT_FOR:
            continue
        if name is not None:
            return name
        if code in share_sessions.LOST and api_key == api_keys.SHARE_FETCH:
            return "session_remade"
        if code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER and after_retry:
            return "leader_moved"
        if code == errors.OFFSET_OUT_OF_RANGE and api_key == api_keys.FETCH:
            return "position_asked"
        if code in _REJOINS.get(api_key, ()):
            return "rejoined"
        if (
            code == errors.MEMBER_ID_REQUIRED
            and api_key == api_keys.JOIN_GROUP
            and captured is not None
            and not expected
        ):
            return "member_id_given"
    if captured is None:
        return None
    if api_key == api_keys.FETCH and has_records(captured) and not has_records(replayed) and not actual:
        return "records_awaited"
    if api_key == api_keys.HEARTBEAT and not replayed["errorCode"]:
        if captured["errorCode"] == errors.REBALANCE_IN_PROGRESS:
            return "rebalance_awaited"
    if api_key in apis.GROUP_HEARTBEATS and not actual:
        if _assigned(captured) and not _assigned(replayed):
            return "rebalance_awaited"
    return None


def _assigned(answer: Body) -> bool:
    assignment = answer.get("assignment")
    return bool(assignment and assignment["topicPartitions"])


def has_records(answer: Body) -> bool:
    """Whether a Fetch answer has records."""
    return any(partition.get("records") for topic in answer.get("responses", ()) for partition in topic["partitions"])


def absent_topics(api_key: int, answer: Body, captured: Body | None) -> set[str]:
    """The topics of a named answer (`NAME`) that do not exist, and did in the capture; "" for one without an id on the
    target. Empty if the API's answer does not list topics."""
    where = RESPONSE_LISTS.get(api_key)
    if where is None:
        return set()
    missing = set(NO_TOPIC) - codes(captured)
    return {
        topic.get(NAME) or topic.get(where.name) or ""
        for topic in structs(answer, where.path)
        if missing & codes({where.partitions: topic[where.partitions]})
    }


def failed_partitions(api_key: int, answer: Body, captured: Body | None) -> set[tuple[str, int]] | None:
    """The partitions of a named answer (`NAME`) whose errors are retried; None if the API's answer does not list
    partitions."""
    where = RESPONSE_LISTS.get(api_key)
    if where is None or codes({"errorCode": answer.get("errorCode", 0)}):
        return None
    expected = codes(captured)
    return {
        (topic.get(NAME) or topic.get(where.name) or "", partition[where.number])
        for topic in structs(answer, where.path)
        for partition in topic[where.partitions]
        if codes({"errorCode": partition.get("errorCode", 0)}) - expected
    }


@dataclass(slots=True)
class History:
    """A session's earlier requests. `retried`: one was repeated, so that later ones came before it; `waited_in_vain`:
    one waited for records that did not come."""

    retried: bool = False
    waited_in_vain: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision after an answer. `rule`: by which the request is repeated, after `pause` seconds; None: it is not.
    `also`: rules that this follows from."""

    rule: str | None
    pause: float = 0.0
    also: tuple[str, ...] = ()


class Retries:
    """Decides about the answers of one step, in order. `captured`: the captured answer, its topics named."""

    def __init__(
        self,
        step: Step,
        captured: Body | None,
        history: History,
        remap: Remap,
        topology: Topology,
        limits: Limits,
        now: float,
    ) -> None:
        self.captured = captured
        self._step = step
        self._history = history
        self._remap = remap
        self._topology = topology
        self._limits = limits
        self._started = now
        self._pause = limits.first_pause
        self._closed = False
        self._twice = False
        self._remade = 0
        self._position_requests = 0

    def after(self, sent: Body, replayed: Body | None, now: float) -> Decision:
        """Decide what follows from an answer; None: its connection ended without one."""
        also: tuple[str, ...] = ()
        rule = self._after_closing() if replayed is None else self._after_answer(sent, replayed)
        if replayed is not None and rule is None and self._is_lost(replayed):
            also = ("rejoins_spent",)
        if replayed is not None and rule == "topic_appears" and self._is_absent(self._not_there(sent, replayed)):
            rule, also = self._after_answer(sent, replayed, NO_TOPIC), ("topic_absent",)
        if rule is None or now - self._started > self._bound(rule):
            self._history.waited_in_vain |= rule == "records_awaited"
            if replayed is not None and rule == "topic_appears":
                self._topology.absent |= self._not_there(sent, replayed)
            return Decision(None, also=also)
        if not self._twice and self._is_perhaps_stored(sent, replayed):
            self._twice = True
            also = (*also, "perhaps_twice")
        pause, self._pause = self._pause, min(self._pause * 2, self._limits.longest_pause)
        return Decision(rule, pause, also)

    def parted(self, sent: Body, replayed: Body) -> tuple[Body, list[Body]]:
        """Split an answer with retriable errors for some partitions: what to send again, only these, and the answer
        with the others, which is kept."""
        key = self._step.request.api_key
        failed = None
        if apis.api(key).route is apis.Route.LEADER and key != api_keys.FETCH:
            failed = failed_partitions(key, replayed, self.captured)
        there = {where: (self._remap.topics.name(where[0]), where[1]) for where in named(key, sent)} if failed else {}
        if not failed or not failed < set(there.values()):
            return sent, []
        wanted = {where for where, on_target in there.items() if on_target in failed}
        return subset(key, sent, wanted), [without(key, replayed, failed)]

    def _is_perhaps_stored(self, sent: Body, replayed: Body | None) -> bool:
        """Whether the target may have records of a request that is repeated, without noticing. It recognises batches
        by their producer."""
        if self._step.request.api_key != api_keys.PRODUCE:
            return False
        if replayed is not None and _PERHAPS_STORED.isdisjoint(codes(replayed)):
            return False
        return any(
            part["records"] and not any(batch.producer_id >= 0 for batch in batches.produced(part["records"]))
            for topic in sent["topicData"]
            for part in topic["partitionData"]
        )

    def _after_closing(self) -> str | None:
        first, self._closed = not self._closed, True
        return "reconnected" if first and self._step.request.answer is not None else None

    def _after_answer(self, sent: Body, replayed: Body, given_up: Collection[int] = ()) -> str | None:
        step = self._step
        rule = rule_for(step.request.api_key, self.captured, replayed, self._history.retried, given_up)
        if rule is None and NO_TOPIC[0] not in given_up and self._comes(replayed):
            return "topic_appears"
        if rule == "records_awaited" and (self._history.waited_in_vain or not step.expects):
            return None
        if rule == "records_awaited" and self._remap.fetches.has_read(step, sent, self.captured or {}):
            return None
        if rule == "position_asked":
            lost = self._remap.fetches.lost_places(step, sent, self.captured, replayed)
            self._position_requests += 1
            return rule if self._position_requests <= _MOST_POSITION_REQUESTS and any(lost) else None
        if rule == "session_remade" and step.request.api_key == api_keys.SHARE_FETCH:
            self._remade += 1
            return rule if self._remade <= _MOST_REMADE else None
        if rule == "rejoined" and not self._remap.groups.can_rejoin(step, self.captured, codes(replayed)):
            return None
        return rule

    def _comes(self, replayed: Body) -> bool:
        """Whether an answer lacks a topic that this replay, or the target itself, has created or is about to create. It
        existed in the capture; not every broker knows it at once."""
        where = _TELLING.get(self._step.request.api_key)
        if where is None or self.captured is None:
            return False
        topics, name = where
        good = [topic[name] for topic in self.captured[topics] if topic[name] and not topic["errorCode"]]
        created = (self._topology.created | _BY_BROKERS).intersection(map(self._remap.topics.name, good))
        return any(topic["errorCode"] in NO_TOPIC and topic[name] in created for topic in replayed[topics])

    def _is_lost(self, replayed: Body) -> bool:
        """Whether the member would have to join again, after it did so too often."""
        key = self._step.request.api_key
        wanted = set(_REJOINS.get(key, ()))
        again = wanted & (codes(replayed) - codes(self.captured)) if wanted else wanted
        return bool(again) and key != api_keys.JOIN_GROUP and self._remap.groups.is_lost(self._step, self.captured)

    def _bound(self, rule: str) -> float:
        limits = self._limits
        heartbeat = rule == "rebalance_awaited" and self._step.request.api_key in apis.GROUP_HEARTBEATS
        groups = self._remap.groups
        if heartbeat and (groups.fewer or groups.keeps_out(self._step.group or "")):
            # The partitions may have been taken from, or for, a member that the target keeps out; or it lacks them.
            return limits.records
        return {"records_awaited": limits.records, "rebalance_awaited": limits.rebalance}.get(rule, limits.errors)

    def _not_there(self, sent: Body, replayed: Body) -> set[str]:
        """The target's names of the topics that do not exist, by an answer."""
        key = self._step.request.api_key
        absent = absent_topics(key, replayed, self.captured)
        if absent and "" not in absent:
            return absent
        requested = {self._remap.topics.name(topic[NAME]) for _, topic in topics_of(key, sent) if topic.get(NAME)}
        return {name for name in requested if name not in self._topology.partitions} or requested

    def _is_absent(self, topics: set[str]) -> bool:
        return bool(topics) and topics <= self._topology.absent
