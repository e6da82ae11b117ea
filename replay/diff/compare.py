"""Compare two sides of the same exchanges: captured and replayed, or one replay and another.

In: `Pair`s in order of captured time, each with the request and answer of both sides. Out: a `Comparison`: every
difference with its verdict, what was not compared and why, latencies. Pure.

Two passes: the first learns what stands for what (`learning`), the second compares: what is plainly the same many at
once (`alike`), the rest one by one. A difference is *expected* when a
rule of `RULES` explains it, else *unexpected*. Records are compared over the whole conversation of a connection with a
partition, not answer by answer, because a fetch may carry more or less each time; groups are compared by what all their
members were assigned.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.analyzer.common.listing import listed
from kwire.analyzer.protocol import api_keys, errors, schema
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.replay.diff import audit_results, reader_progress, steadiness
from kwire.replay.diff import noise as noises
from kwire.replay.diff.correspondence import Correspondence, Group
from kwire.replay.diff.differences import DISPLACED, MISSING, OUT_OF_ORDER, Difference, Differences
from kwire.replay.diff.equality import alike
from kwire.replay.diff.fields import ERRORS_ONLY, NOISE, PRESENT, Fact, Facts, Kind, Naming, Place, facts, paths
from kwire.replay.diff.latencies import Both, Latencies
from kwire.replay.diff.learning import learn, texts_of
from kwire.replay.diff.pairs import COMPARABLE, Pair, Pairs, RunFacts, Side
from kwire.replay.diff.slower import SHARE

PARTITIONS: Final = "topics.partitions"
TOPIC_ERROR: Final = "topics.errorCode"
"""Paths of a topic's partition, and of its error, in Metadata answers."""
_TOPIC_RESOURCE: Final = f"{api_keys.TOPIC_RESOURCE}:"
"""How the key of a topic's settings begins."""
# fmt: off
_RACES: Final = frozenset((
    errors.UNKNOWN_TOPIC_OR_PARTITION, errors.LEADER_NOT_AVAILABLE, errors.NOT_LEADER_OR_FOLLOWER,
    errors.REQUEST_TIMED_OUT, errors.NETWORK_EXCEPTION, errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR, errors.REBALANCE_IN_PROGRESS, errors.NOT_CONTROLLER,
    errors.CONCURRENT_TRANSACTIONS, errors.LISTENER_NOT_FOUND, errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH, errors.OFFSET_NOT_AVAILABLE, errors.UNKNOWN_TOPIC_ID, errors.INCONSISTENT_TOPIC_ID,
    errors.UNSTABLE_OFFSET_COMMIT,
))
# fmt: on
_SESSIONS: Final = frozenset(
    (
        errors.FETCH_SESSION_ID_NOT_FOUND,
        errors.INVALID_FETCH_SESSION_EPOCH,
        errors.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
_SHARE_SESSIONS: Final = frozenset(
    (
        errors.SHARE_SESSION_NOT_FOUND,
        errors.INVALID_SHARE_SESSION_EPOCH,
        errors.SHARE_SESSION_LIMIT_REACHED,
    )
)
_RIGHTS: Final = frozenset(
    (
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.GROUP_AUTHORIZATION_FAILED,
        errors.CLUSTER_AUTHORIZATION_FAILED,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        errors.SASL_AUTHENTICATION_FAILED,
        errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    )
)
_NOT_THERE: Final = frozenset(
    (
        errors.SECURITY_DISABLED,
        errors.DELEGATION_TOKEN_AUTH_DISABLED,
        errors.DELEGATION_TOKEN_NOT_FOUND,
        errors.GROUP_ID_NOT_FOUND,
        errors.RESOURCE_NOT_FOUND,
        errors.TRANSACTIONAL_ID_NOT_FOUND,
    )
)
_GROUP_APIS: Final = frozenset(
    (
        api_keys.OFFSET_COMMIT,
        api_keys.OFFSET_FETCH,
        api_keys.JOIN_GROUP,
        api_keys.HEARTBEAT,
        api_keys.LEAVE_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.TXN_OFFSET_COMMIT,
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        api_keys.SHARE_GROUP_HEARTBEAT,
        api_keys.SHARE_FETCH,
        api_keys.SHARE_ACKNOWLEDGE,
    )
)
_GROUP_ERRORS: Final = frozenset(
    (
        errors.NOT_COORDINATOR,
        errors.ILLEGAL_GENERATION,
        errors.UNKNOWN_MEMBER_ID,
        errors.REBALANCE_IN_PROGRESS,
        errors.GROUP_ID_NOT_FOUND,
        errors.MEMBER_ID_REQUIRED,
        errors.FENCED_MEMBER_EPOCH,
        errors.STALE_MEMBER_EPOCH,
    )
)
_TRANSACTION_APIS: Final = frozenset(
    (
        api_keys.PRODUCE,
        api_keys.INIT_PRODUCER_ID,
        api_keys.ADD_PARTITIONS_TO_TXN,
        api_keys.ADD_OFFSETS_TO_TXN,
        api_keys.END_TXN,
        api_keys.TXN_OFFSET_COMMIT,
    )
)
_TRANSACTION_ERRORS: Final = frozenset(
    (
        errors.INVALID_PRODUCER_EPOCH,
        errors.INVALID_TXN_STATE,
        errors.INVALID_PRODUCER_ID_MAPPING,
        errors.CONCURRENT_TRANSACTIONS,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        errors.OPERATION_NOT_ATTEMPTED,
        errors.PRODUCER_FENCED,
        errors.TRANSACTION_ABORTABLE,
    )
)
_LOST_BATCH_ERRORS: Final = frozenset(
    (
        errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
        errors.DUPLICATE_SEQUENCE_NUMBER,
        errors.INVALID_PRODUCER_EPOCH,
        errors.UNKNOWN_PRODUCER_ID,
    )
)
_JOINING: Final = frozenset(
    (
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.OFFSET_COMMIT,
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        api_keys.SHARE_GROUP_HEARTBEAT,
    )
)
"""What goes wrong in these, the group's later exchanges follow from."""
_MEMBERSHIP: Final = frozenset((api_keys.JOIN_GROUP, api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT))
"""What makes a member of a group."""
_LONG_POLLS: Final = frozenset((api_keys.FETCH, api_keys.SHARE_FETCH))
"""Answered when there is something to say: what was held is not compared."""
_SAME, _EXPECTED, _UNEXPECTED = 1, 2, 3
"""What came of an exchange that was compared; 0 of one that was not."""
_ABORTED: Final = "aborted"
INTERRUPTED: Final = "interrupted"
"""Why a run ended, and the rule by which what it left is expected, where its user ended it."""
_LOGIN: Final = "login"
_PERHAPS_TWICE: Final = "perhaps_twice"
"""By this rule of the replayer a request was sent again whose records the target may have had."""
_SENT_AGAIN: Final = frozenset(("leader_moved", "reconnected", "topic_appears"))
"""Rules of the replayer by which a batch is sent again, behind those that its client had sent after it."""
_OUT_OF_ORDER: Final = frozenset(("batch out of its producer's order", OUT_OF_ORDER))
_SEEN_OTHERWISE: Final = frozenset(
    (
        *reader_progress.READ_LESS,
        reader_progress.OTHER_TIME,
        "record missing",
        "record extra",
        "record changed",
        "record of an aborted transaction",
    )
)
"""Kinds of differences of readers that follow from a log which is otherwise than the target acknowledged."""
_LOST: Final = frozenset(("unreachable", "session_lost"))
"""Rules of what was not sent, or not answered, for the run ended first; or one broker of several was away."""
_WAITS_FOR_OTHERS: Final = frozenset((api_keys.JOIN_GROUP, api_keys.SYNC_GROUP))
"""Answered when other members have spoken: their latency is not the broker's."""


@dataclass(slots=True)
class Comparison:
    """`compared`, `same`, `expected`, `unexpected` count exchanges, each by the worst that differs of it; `whole`:
    unexpected differences that no answer alone shows, but the whole run, by kind, each counted at the exchange that it
    is told of, too; `skipped`: exchanges not compared, by reason;
    `noise`: values that differed in fields that are not compared, by kind; `measured`: latencies;
    `audit`: of what a target acknowledged, None where nobody looked; `judged`: were latencies, for both sides were sent
    at one speed? `answers`: how many were compared, by API; `learned`: was noise? `ended`: why the (right) run ended
    before all was sent."""

    differences: Differences = field(default_factory=Differences)
    audit: audit_results.Audited | None = None
    judged: bool = True
    compared: int = 0
    same: int = 0
    expected: int = 0
    unexpected: int = 0
    whole: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    noise: Counter[str] = field(default_factory=Counter)
    measured: Latencies = field(default_factory=Latencies)
    answers: Counter[int] = field(default_factory=Counter)
    learned: bool = False
    ended: str = ""
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def apis(self) -> set[str]:
        """APIs that were compared."""
        return set(map(schema.api_name, self.answers))

    @property
    def latencies(self) -> dict[str, Both]:
        """By API, both sides, us."""
        return self.measured.by_api

    @property
    def slower(self) -> dict[str, tuple[float, float, float]]:
        """By API (or API and broker): there, here, and at least so much more."""
        return self.measured.slower

    @property
    def total(self) -> int:
        return self.compared + sum(self.skipped.values())


def compare(pairs: Sequence[Pair], differences: Differences | None = None, share: float = SHARE) -> Comparison:
    """Compare two sides of the same exchanges, in order of captured time. `differences`: what takes them, for who
    wants all; `share`: of a latency, more than which is slower."""
    return _Comparing(pairs, Comparison(Differences() if differences is None else differences), share=share).run()


Accept = Callable[[Difference], "int | None"]
"""Says which of the differences that somebody expects one is, by its number; None: of none."""


def compare_beyond(
    pairs: Sequence[Pair], old: Sequence[Pair], accept: Accept | None = None, share: float = SHARE
) -> Comparison:
    """Compare old against new, where `old` is old against old: what differs there differs by itself (`noise`).
    `accept`: known differences; `share`: as of `compare`."""
    before = compare(old)
    latencies = {**before.measured.by_api, **before.measured.by_broker}
    learned = noises.learn(before.differences.groups(), before.answers, latencies)
    judged = before.judged
    comparison = _Comparing(pairs, Comparison(), learned, judged=judged, accept=accept, share=share).run()
    explained = learned.explains(comparison.differences.groups(), comparison.answers)
    if not explained:
        return comparison
    return _Comparing(pairs, Comparison(), learned, explained, judged, accept, share).run()


def _topic(place: Place) -> str:
    """The topic that a place in an answer is about; "": none. (Offsets of a group stand below their group.)"""
    at = 1 if place.path.startswith("groups") else 0
    return place.key[at] if len(place.key) > at else ""


class _Comparing:
    """The second pass: what has gone wrong so far decides what later differences follow from it."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        result: Comparison,
        learned: noises.Noise | None = None,
        explained: frozenset[noises.Kind] = frozenset(),
        judged: bool = True,
        accept: Accept | None = None,
        share: float = SHARE,
    ) -> None:
        self.pairs = pairs
        self.accept, self.share = accept, share
        self.noise, self.explained, self.judged = learned, explained, judged
        self.runs = pairs.runs if isinstance(pairs, Pairs) else ()
        self.place = 0  # of the pair that is compared now
        self.verdicts = np.zeros(len(pairs), np.uint8)  # by place
        self.places: dict[int, int] = {}  # by a row's identity, of rows that do not say their place
        self.correspondence: Correspondence = learn(pairs)
        self.result = result
        self.result.ended = self.runs[-1].ended if self.runs else ""
        # What has gone wrong, each with the difference that said so first.
        # Connections of captured users who are themselves here; None: nobody knows.
        self.own_users: set[str] | None = set() if self.runs and self.runs[-1].own_users else None
        self.ended: Difference | None = None
        self.failed_groups: dict[str, Difference] = {}
        self.failed_transactions: dict[str, Difference] = {}
        self.failed_producers: dict[int, Difference] = {}
        self.failed_parts: dict[tuple[str, int], Difference] = {}
        self.lost_batches: dict[tuple[str, int, int], Difference] = {}
        self.failed_topics: dict[str, Difference] = {}
        self.failed_reads: dict[tuple[str, str, int], Difference] = {}  # by connection and partition
        self.stored_once: dict[tuple[str, int], Difference] = {}
        self.other_counts: dict[str, Difference] = {}  # topics with another number of partitions
        self.perhaps_twice: dict[tuple[str, int], list[int]] = {}  # by partition, what was sent again to it
        self.stored_twice: dict[tuple[str, int], Difference] = {}
        self.sent_again: set[tuple[str, int]] = set()  # partitions to which a batch was sent again
        self.appeared: dict[steadiness.Met, Difference] = {}  # by API and error, the first that says so
        self.unsteady: Difference | None = None  # of Produce
        self.misplaced: dict[tuple[str, int], Difference] = {}  # partitions whose records are not where they should be
        self.wrong_transactions: dict[tuple[str, int], Difference] = {}

    def run(self) -> Comparison:
        if isinstance(self.pairs, Pairs) and self.pairs.by_columns:
            self._blocks(self.pairs)
        else:
            for place, pair in enumerate(self.pairs):
                self._pair(place, pair)
        self._take(self._unsteady())
        self._take(self._produced())
        audit = self.result.audit = audit_results.of(self.runs)
        if audit is not None:
            self._take(self._transactions(audit))
            self._take(map(self._audited, audit.differences(self.correspondence.partitions, self.pairs)))
        self._take(self._twice(audit))
        read = reader_progress.differences(
            self.correspondence.partitions.values(), self.failed_parts, self.stored_twice, self.failed_reads, self.pairs
        )
        self._take(map(self._unread, read))
        self._take(reader_progress.acquired(self.correspondence, self.failed_groups))
        for group in self.correspondence.groups.values():
            self._take(self._group(group))
        self.result.learned = self.noise is not None
        self.result.differences.take(map(self._counted, map(self._without_known, self._slower())))
        self.result.topics = set(self.correspondence.named_topics)
        self.result.groups = self.pairs.groups() if isinstance(self.pairs, Pairs) else set()
        counts = np.bincount(self.verdicts, minlength=_UNEXPECTED + 1).tolist()
        _, self.result.same, self.result.expected, self.result.unexpected = counts
        self.result.compared = sum(counts[_SAME:])
        return self.result

    def _audited(self, difference: Difference) -> Difference:
        """Adds the cause of a difference that an audit found: of two batches that were acknowledged at one offset one
        is missing; all are in a partition that the target does not list."""
        where = difference.key[0], int(difference.key[1])
        if difference.kind in (MISSING, DISPLACED):
            self.misplaced.setdefault(where, self.stored_once.get(where, difference))
        cause = self.stored_once.get(where)
        topic, index = where
        if topic in self.other_counts and index >= self.correspondence.counts[topic][1]:
            cause = self.other_counts[topic]
        if cause is None or difference.kind != MISSING:
            return difference
        return dataclasses.replace(difference, rule="consequence", cause=cause)

    def _transactions(self, audit: audit_results.Audited) -> Iterator[Difference]:
        """Transactions that the target did not end as it was asked to. One whose end went wrong already follows."""
        for difference, partitions in audit.transactions(self.pairs):
            cause = self.failed_transactions.get(difference.key[0])
            if cause is not None:
                difference = dataclasses.replace(difference, rule="consequence", cause=cause)
            for where in partitions:
                self.wrong_transactions.setdefault(where, difference.root)
            yield difference

    def _of_retries(self, difference: Difference) -> Difference:
        """Adds the cause of batches that are out of order because one of them had to be sent again."""
        if self.unsteady is None or difference.kind not in _OUT_OF_ORDER or not difference.unexpected:
            return difference
        if (difference.key[0], int(difference.key[1])) not in self.sent_again:
            return difference
        return dataclasses.replace(difference, rule="consequence", cause=self.unsteady)

    def _of_log(self, difference: Difference) -> Difference:
        """Adds the cause of what readers got of a partition otherwise, where the target shows a transaction otherwise
        than its end said, or has records elsewhere than it acknowledged them."""
        if difference.path != "(records)" or difference.kind not in _SEEN_OTHERWISE:
            return difference
        if difference.rule not in (None, "read_less"):
            return difference
        causes = (
            cause
            for (topic, number), cause in (*self.wrong_transactions.items(), *self.misplaced.items())
            if difference.key in ((topic,), (topic, str(number)))
        )
        cause = next(causes, None)
        return difference if cause is None else dataclasses.replace(difference, rule="consequence", cause=cause)

    def _take(self, differences: Iterable[Difference]) -> None:
        rest = map(self._without_noise, map(self._of_log, map(self._of_one_topic, differences)))
        rest = map(self._of_retries, rest)
        self.result.differences.take(map(self._counted, rest))

    def _counted(self, difference: Difference) -> Difference:
        """Counts a difference of the whole run at its exchange as well."""
        self.result.whole[difference.kind] += difference.unexpected
        row = difference.row
        place = row.get("place", self.places.get(id(row)))
        if place is not None and self.verdicts[place]:
            rule = _UNEXPECTED if difference.unexpected else _EXPECTED
            self.verdicts[place] = max(self.verdicts[place], rule)
        return difference

    def _of_one_topic(self, difference: Difference) -> Difference:
        """Marks a difference as expected if its topic was deleted and created again when captured, but not by the
        replay: on its side one log has what were two, and places in them are not alike. That records are missing is
        never expected."""
        anew = difference.key and difference.key[0] in self.correspondence.deleted
        if anew and difference.unexpected and difference.path == "(records)" and difference.kind != MISSING:
            return dataclasses.replace(difference, rule="seeded")
        return difference

    def _unread(self, difference: Difference) -> Difference:
        """Adds the cause of records that were not read: a run that ended first reads less."""
        if self.ended is None or not difference.unexpected or difference.kind not in reader_progress.READ_LESS:
            return difference
        return dataclasses.replace(difference, rule="consequence", cause=self.ended)

    def _without_noise(self, difference: Difference) -> Difference:
        """Marks a difference as expected if somebody expects it, or if comparing the old run with itself shows it as
        often."""
        difference = self._without_known(difference)
        if difference.unexpected and noises.kind_of(difference) in self.explained:
            return dataclasses.replace(difference, rule="noise")
        return difference

    def _without_known(self, difference: Difference) -> Difference:
        """Marks a difference as expected if somebody expects it."""
        known = self.accept(difference) if self.accept is not None and difference.unexpected else None
        if known is None:
            return difference
        self.result.accepted[known] += 1
        return dataclasses.replace(difference, rule="accepted")

    def _blocks(self, pairs: Pairs) -> None:
        """Compares equal answers many at once, the others one by one."""
        texts = texts_of(pairs, self.correspondence)
        for block in pairs.blocks():
            equality = alike(block, texts)
            apis = Counter(block.api_key[equality.same].tolist())
            self.verdicts[block.places[equality.same]] = _SAME
            self.result.answers += apis
            self.result.noise += equality.noise
            timed = equality.same & (~np.isin(block.api_key, list(_WAITS_FOR_OTHERS)))
            timed &= (block.api_key != api_keys.FETCH) | equality.read
            timed &= ~(np.isin(block.api_key, list(_LONG_POLLS)) & block.held)
            self.result.measured.add_all(block, timed, pairs)
            for place in block.places[~equality.same].tolist():
                self._pair(place, pairs[place])

    # --- one exchange

    def _pair(self, place: int, pair: Pair) -> None:
        self.place = place
        if "place" not in pair.row:
            self.places[id(pair.row)] = place
        result = self.result
        if _PERHAPS_TWICE in pair.right.retries:
            for where in sorted(_written(pair, self.correspondence)):
                self.perhaps_twice.setdefault(where, []).append(place)
        if pair.api_key == api_keys.PRODUCE and not _SENT_AGAIN.isdisjoint(pair.right.retries):
            self.sent_again |= _written(pair, self.correspondence)
        left, right = pair.left.state, pair.right.state
        if left not in COMPARABLE or right not in COMPARABLE or left == right != "answered":
            reason = left if left not in COMPARABLE else right
            result.skipped[pair.right.rule or pair.left.rule or reason] += 1
            if self.own_users is not None and pair.right.rule == _LOGIN:
                self.own_users.add(pair.row["connection"])
            return
        result.answers[pair.api_key] += 1
        differences = [self._without_noise(self._caused(pair, difference)) for difference in self._differences(pair)]
        result.differences.take(differences)
        unexpected = any(difference.unexpected for difference in differences)
        self.verdicts[place] = _UNEXPECTED if unexpected else _EXPECTED if differences else _SAME

    def _differences(self, pair: Pair) -> Iterator[Difference]:
        if pair.left.state != pair.right.state:
            rule = "consequence" if self._follows(pair) else None
            if self._is_left(pair) and self.result.ended == INTERRUPTED:
                rule = INTERRUPTED
            difference = Difference(pair.row, "(answer)", "state", pair.left.state, _state_text(pair.right), rule=rule)
            if rule in (None, INTERRUPTED) and self._is_left(pair):
                self.ended = self.ended or difference
            self._note(pair, difference)
            yield difference
            return
        left, right = pair.left.decoded_answer(pair.api_key), pair.right.decoded_answer(pair.api_key)
        if left is None or right is None or left.body is None or right.body is None:
            broken = [
                side for side, decoded in (("left", left), ("right", right)) if decoded is None or decoded.body is None
            ]
            if broken == ["right"]:
                reason = right.reason if right is not None else "no bytes"
                yield Difference(pair.row, "(answer)", "undecodable", "decoded", str(reason))
            return
        if left.version != right.version:
            yield Difference(pair.row, "(version)", "version", f"v{left.version}", f"v{right.version}", rule="version")
        api_key = pair.api_key
        scope = str(pair.row.get("group_id") or "")
        members = self.correspondence.members
        naming_left = Naming(self.correspondence.left.topic, lambda member: member)
        naming_right = Naming(self.correspondence.right.topic, lambda member: members.of_right(scope, member))
        facts_left = facts(api_key, left.version, left.body, pair.left.request_body, naming_left)
        facts_right = facts(api_key, right.version, right.body, pair.right.request_body, naming_right)
        self._latency(pair, facts_left, facts_right)
        common = paths(api_key, left.version) & paths(api_key, right.version)
        yield from self._facts(pair, facts_left, facts_right, common)

    def _caused(self, pair: Pair, difference: Difference) -> Difference:
        """Adds the cause of a difference."""
        if difference.rule != "consequence":
            return difference
        return dataclasses.replace(difference, cause=difference.cause or self._follows(pair))

    def _latency(self, pair: Pair, left: Facts, right: Facts) -> None:
        if pair.api_key in _WAITS_FOR_OTHERS:
            return
        if pair.api_key == api_keys.FETCH and not all(_has_records(side) for side in (left, right)):
            return  # waited for records: the latency of a producer
        if pair.api_key in _LONG_POLLS and pair.row.get("cause") == "hold":
            return
        self.result.measured.add(pair)

    def _facts(self, pair: Pair, left: Facts, right: Facts, common: frozenset[str]) -> Iterator[Difference]:
        absent: set[Place] = set()
        wrong: set[tuple[str, ...]] = set()
        differences = []
        for place in {**left, **right}:
            if place.path not in common:
                continue
            difference = self._fact(pair, place, left.get(place), right.get(place))
            if difference is None:
                continue
            entries = left.get(place) or right.get(place)
            assert entries is not None
            if entries.value is PRESENT:
                absent.add(place)
            if entries.kind is Kind.ERROR:
                wrong.add(place.key)
            cause = self.failed_topics.get(_topic(place)) if difference.unexpected else None
            if cause is not None and pair.api_key != api_keys.METADATA:
                difference = dataclasses.replace(difference, rule="consequence", cause=cause)
            differences.append((place, entries.kind, difference))
        for place, kind, difference in differences:
            if any(_inside(place, outer) for outer in absent):
                continue  # told once, for the element
            if kind is not Kind.ERROR and any(place.key[: len(key)] == key for key in wrong):
                continue  # an answer with an error says nothing else
            self._note(pair, difference)
            yield difference

    def _fact(self, pair: Pair, place: Place, left: Fact | None, right: Fact | None) -> Difference | None:
        either = left or right
        assert either is not None
        if either.kind in NOISE or either.kind is Kind.ELSEWHERE:
            if either.kind in NOISE and (left is None or right is None or left.value != right.value):
                self.result.noise[either.kind.value] += 1
            return None
        if either.kind is Kind.ERROR:
            return self._error(pair, place, left.value if left else 0, right.value if right else 0)
        if left is None or right is None:
            if either.value is PRESENT:
                return self._presence(pair, place, left is not None, either.kind)
            return None  # told for the element, or a tagged field at its default
        if left.value is PRESENT or (left.value == right.value and either.kind is not Kind.COMMITTED):
            return None
        return self._value(pair, place, either.kind, left.value, right.value)

    def _presence(self, pair: Pair, place: Place, on_left: bool, kind: Kind) -> Difference | None:
        rule = None
        if kind is Kind.CONFIG:
            rule = "target_config"
        elif place.path == "topics" and pair.api_key in (api_keys.METADATA, api_keys.DESCRIBE_TOPIC_PARTITIONS):
            name = place.key[0]
            if name not in self.correspondence.named_topics or name.startswith("__"):
                rule = "other_topics"
            elif not on_left:
                rule = "seeded"
        elif (
            pair.api_key == api_keys.METADATA
            and place.path == PARTITIONS
            and self._counts_differ(place.key[0], on_left)
        ):
            return self._partitions(pair, place, on_left)
        elif pair.api_key == api_keys.METADATA and not on_left:
            rule = "seeded"
        elif on_left and _topic(place) in self.other_counts:
            # What is for a partition that is not there is not sent.
            cause = self.other_counts[_topic(place)]
            return Difference(pair.row, place.path, "missing", "there", "missing", place.key, "consequence", cause)
        elif on_left and pair.api_key == api_keys.OFFSET_FETCH and self._follows(pair):
            rule = "consequence"  # what its members would have committed
        states = ("there", "missing") if on_left else ("missing", "there")
        kinds = "missing" if on_left else "extra"
        return Difference(pair.row, place.path, kinds, *states, place.key, rule)

    def _counts_differ(self, topic: str, fewer: bool) -> bool:
        """Has a topic on the right never as many partitions as on the left, or (not `fewer`) more than ever there?"""
        left, right = self.correspondence.counts.get(topic, (0, 0))
        return 0 < right < left if fewer else left < right

    def _partitions(self, pair: Pair, place: Place, fewer: bool) -> Difference:
        """A topic has partitions on one side that it never has on the other: told once."""
        topic = place.key[0]
        left, right = self.correspondence.counts[topic]
        known = self.other_counts.get(topic)
        if known is not None:
            texts = ("missing", "there", "missing") if fewer else ("extra", "missing", "there")
            return Difference(pair.row, place.path, *texts, place.key, "consequence", known)
        other = Difference(pair.row, place.path, "another number of partitions", str(left), str(right), (topic,))
        self.other_counts[topic] = other
        return other

    def _value(self, pair: Pair, place: Place, kind: Kind, left: Any, right: Any) -> Difference | None:
        rule: str | None = None
        if kind is Kind.ID:
            scope = str(pair.row.get("group_id") or "")
            if self.correspondence.members.same(scope, left, right):
                return None
            if place.path.endswith("leader"):
                rule = "role_changed"
            elif self._follows(pair):
                rule = "consequence"
        elif kind is Kind.APPENDED:
            if (left >= 0) == (right >= 0):
                return None
            topic, number = place.key
            partition = self.correspondence.partition(topic, int(number))
            if self.place in partition.swallowed or self.place in partition.resent:
                rule = "sent_again" if self.place in partition.resent else None
                texts = "swallowed as a duplicate", str(left), str(right), place.key
                return Difference(pair.row, place.path, *texts, rule)
            return Difference(pair.row, place.path, "append time", str(left), str(right), place.key, "target_config")
        elif kind is Kind.CONFIG:
            of_topic = bool(place.key) and place.key[0].startswith(_TOPIC_RESOURCE)
            rule = self._config_rule(pair, place) if of_topic else "target_config"
        elif kind is Kind.COMMITTED:
            verdict = self._offset(pair, place, left, right)
            if verdict == "same":
                return None
            rule = verdict
        elif pair.api_key == api_keys.OFFSET_FETCH and place.path.endswith("metadata"):
            rule = "zookeeper" if pair.left.version == 0 else self._metadata_rule(pair, place)
        elif kind is Kind.LISTED:
            verdict = self._listed(pair, place, left, right)
            if verdict == "same":
                return None
            rule = verdict
        return Difference(pair.row, place.path, "changed", str(left), str(right), place.key, rule)

    def _metadata_rule(self, pair: Pair, place: Place) -> str | None:
        """Metadata committed before the capture began is known to the captured cluster alone."""
        where = str(pair.row.get("group_id")), place.key[-2], int(place.key[-1])
        known = self.correspondence.committed.get(where)
        return "before_capture" if known is None or known.place >= self.place else None

    def _config_rule(self, pair: Pair, place: Place) -> str | None:
        """A topic's setting that nobody set differs because brokers have other defaults; one of a topic that was made
        for the replay, because records are to be kept."""
        topic = place.key[0].removeprefix(_TOPIC_RESOURCE)
        if any(place.key[1] in run.seeded.get(topic, ()) for run in self.runs if len(place.key) > 1):
            return "seeded"
        for side in (pair.left, pair.right):
            decoded = side.decoded_answer(pair.api_key)
            for result in (decoded.body or {}).get("results", ()) if decoded is not None else ():
                for config in result.get("configs", ()):
                    where = (f"{result['resourceType']}:{result['resourceName']}", config["name"])
                    if where == place.key and config.get("configSource", 1) == 1 and not config.get("isDefault", False):
                        return None
        return "target_config"

    # --- offsets

    def _offset(self, pair: Pair, place: Place, left: int, right: int) -> str | None:
        """`same`, a rule, or None for a committed offset: a position between two records."""
        if left == right == -1:
            return "same"
        if self._follows(pair):
            return "consequence"
        if left < 0 or right < 0:
            # Committed by others, before: on the target, or in the capture.
            where = str(pair.row.get("group_id")), place.key[-2], int(place.key[-1])
            known = self.correspondence.committed.get(where)
            return None if left >= 0 and known is not None and known.before(self.place, left) else "before_capture"
        return self.correspondence.position(place.key[-2], int(place.key[-1]), left, right)

    def _listed(self, pair: Pair, place: Place, left: int, right: int) -> str | None:
        body = pair.left.request_body()
        for topic in (body or {}).get("topics", ()):
            for partition in topic.get("partitions", ()):
                if (topic["name"], str(partition["partitionIndex"])) == place.key and partition["timestamp"] < 0:
                    self.result.noise[Kind.INSTANT.value] += 1
                    return "same"  # the ends of the log at that instant
        if place.path.endswith("timestamp"):
            self.result.noise[Kind.INSTANT.value] += 1
            return "same"
        return self.correspondence.position(place.key[-2], int(place.key[-1]), left, right)

    # --- errors

    def _error(self, pair: Pair, place: Place, left: int, right: int) -> Difference | None:
        if left == right:
            return None
        rule = self._error_rule(pair, place, left, right)
        if left and right:
            kind = "error changed"
        else:
            kind = "error appeared" if right else "error vanished"
        cause = None
        if right == errors.OFFSET_OUT_OF_RANGE and rule is None and len(place.key) == _OF_PARTITION:
            # What a reader asked for was refused when it was produced.
            cause = self.failed_parts.get((place.key[0], int(place.key[1])))
            rule = "consequence" if cause is not None else None
        texts = kind, errors.label(left), errors.label(right)
        difference = Difference(pair.row, place.path, *texts, place.key, rule, cause)
        if right and rule is None:
            self.appeared.setdefault((pair.api_key, right), difference)
        return difference

    def _error_rule(self, pair: Pair, place: Place, left: int, right: int) -> str | None:
        both = {left, right}
        if errors.MEMBER_ID_REQUIRED in both:
            return "member_id_given"
        if both & _SESSIONS and pair.api_key == api_keys.FETCH:
            return "session_remade"
        # What is acknowledged in a lost share session is lost with it; a fetch begins another.
        if both & _SHARE_SESSIONS and (pair.api_key == api_keys.SHARE_ACKNOWLEDGE or not right):
            return "session_remade"
        if errors.REBALANCE_IN_PROGRESS in both and pair.api_key in _GROUP_APIS:
            return "rebalance"
        if right == errors.UNSUPPORTED_VERSION and pair.left.captured:
            # A group that cannot be joined takes all with it that its members would have done.
            if pair.api_key not in _MEMBERSHIP:
                return "target_refuses"
            return "consequence" if self._follows(pair) else None
        if left in _RIGHTS and not right and pair.left.captured and not self._is_own_user(pair):
            return "rights"
        if both & _NOT_THERE and pair.api_key in ERRORS_ONLY and pair.left.captured:
            return "not_there"
        if self._follows(pair, right or left):
            return "consequence"
        if left in _RACES and not right:
            return "race"
        if left in _RACES and (right in _RACES or (right in _GROUP_ERRORS and pair.api_key in _GROUP_APIS)):
            return "race"
        if right in _RACES and not left and _captured_error(pair, place) == right:
            return "race"  # as captured: the other RUN did not meet it
        if errors.TOPIC_ALREADY_EXISTS in both and pair.api_key == api_keys.CREATE_TOPICS:
            return "seeded"
        return None

    def _is_own_user(self, pair: Pair) -> bool:
        """Was it sent as the user who sent it when captured?"""
        return self.own_users is not None and pair.row["connection"] in self.own_users

    def _is_left(self, pair: Pair) -> bool:
        """Was it left because the run ended?"""
        return pair.right.rule == _ABORTED or (pair.right.rule in _LOST and bool(self.result.ended))

    def _follows(self, pair: Pair, error: int | None = None) -> Difference | None:
        """Finds the earlier reported difference that explains what goes wrong here."""
        if self.ended is not None and self._is_left(pair):
            return self.ended
        if pair.right.rule == "partition_absent":
            topics = (topic for _, topic in topics_of(pair.api_key, pair.left.request_body() or {}))
            changes = (self.other_counts.get(self.correspondence.left.of(topic)) for topic in topics)
            return next(filter(None, changes), None)
        row = pair.row
        group, transaction = row.get("group_id"), row.get("transactional_id")
        if group in self.failed_groups and pair.api_key in _GROUP_APIS:
            return _behind(self.failed_groups[group], error, _GROUP_ERRORS)
        if transaction in self.failed_transactions and pair.api_key in _TRANSACTION_APIS:
            return _behind(self.failed_transactions[transaction], error, _TRANSACTION_ERRORS)
        if pair.api_key == api_keys.PRODUCE and (error is None or error in _LOST_BATCH_ERRORS | _TRANSACTION_ERRORS):
            for batch in self.correspondence.batches_of(pair):
                cause = self.lost_batches.get(batch) or self.failed_producers.get(batch[2])
                if cause is not None:
                    return cause
        return None

    def _note(self, pair: Pair, difference: Difference) -> None:
        """Remember what later differences may follow from."""
        if difference.rule not in (None, "consequence", "target_refuses"):
            return
        row, cause = pair.row, self._caused(pair, difference).root
        if pair.api_key == api_keys.METADATA and difference.kind == "error appeared" and difference.path == TOPIC_ERROR:
            self.failed_topics.setdefault(difference.key[0], cause)
        if pair.api_key == api_keys.FETCH and difference.kind == "error appeared" and len(difference.key) == 2:
            topic, number = difference.key
            self.failed_reads.setdefault((row["connection"], topic, int(number)), cause)
        if pair.api_key == api_keys.FIND_COORDINATOR and difference.kind == "error appeared":
            of = self.failed_groups, self.failed_transactions
            kind = (pair.left.request_body() or {}).get("keyType", api_keys.GROUP_COORDINATOR)
            if difference.key and kind in (api_keys.GROUP_COORDINATOR, api_keys.TRANSACTION_COORDINATOR):
                of[kind].setdefault(difference.key[0], cause)
        if pair.api_key in _JOINING and row.get("group_id"):
            self.failed_groups.setdefault(row["group_id"], cause)
        if pair.api_key in _TRANSACTION_APIS and row.get("transactional_id"):
            self.failed_transactions.setdefault(row["transactional_id"], cause)
        if pair.api_key == api_keys.INIT_PRODUCER_ID:
            decoded = pair.left.decoded_answer(pair.api_key)
            if decoded is not None and decoded.body is not None and decoded.body["producerId"] >= 0:
                self.failed_producers.setdefault(decoded.body["producerId"], cause)
        if pair.api_key == api_keys.PRODUCE:
            for batch in self.correspondence.batches_of(pair):
                self.lost_batches.setdefault(batch, cause)
            for topic in (pair.left.request_body() or {}).get("topicData", ()):
                for part in topic["partitionData"]:
                    where = self.correspondence.left.of(topic), part["index"]
                    if difference.key in ((), (where[0], str(where[1]))):
                        self.failed_parts.setdefault(where, cause)

    # --- over many exchanges

    def _twice(self, audit: audit_results.Audited | None) -> Iterator[Difference]:
        """Partitions that have more records than were acknowledged, as the audit sees; or may have, where it cannot
        see that."""
        known = {where: audit.unclaimed(where) for where in sorted(audit.after)} if audit is not None else {}
        for where in dict.fromkeys((*self.perhaps_twice, *(where for where, more in known.items() if more))):
            more, again = known.get(where), self.perhaps_twice.get(where, [])
            if more == 0:
                continue
            place = again[0] if again else audit_results.place_of(self.correspondence.partitions.get(where))
            kind, before, after = audit_results.UNCLAIMED, "none more", f"{more} more"
            if again:
                kind = "stored twice" if more else "perhaps stored twice"
                before, after = "stored once", f"{len(again)} request{'s' * (len(again) != 1)} sent again"
                after += f", {more} record{'s' * (more != 1)} more than acknowledged" if more else ""
            key = where[0], str(where[1])
            self.stored_twice[where] = Difference(self.pairs[place].row, "(records)", kind, before, after, key)
            yield self.stored_twice[where]

    def _produced(self) -> Iterator[Difference]:
        """Batches that were taken for duplicates, or stored out of their producer's order."""
        for partition in self.correspondence.partitions.values():
            last: dict[Any, tuple[int, int]] = {}
            seen: dict[int, int] = {}
            ends = deque(self.correspondence.anew.get(partition.topic, ()))
            for batch in partition.batches:
                while ends and ends[0] < batch.place:  # made again on both sides: another log
                    ends.popleft()
                    last, seen = {}, {}
                where = str(batch.left), str(batch.right), (partition.topic, str(partition.index))
                if batch.right in seen and seen[batch.right] != batch.left:
                    difference = Difference(
                        self.pairs[batch.place].row, "(records)", "batch stored once for two", *where
                    )
                    self.stored_once.setdefault((partition.topic, partition.index), difference)
                    yield difference
                seen[batch.right] = batch.left
                before = last.get(batch.producer)
                turned = before is not None and (before[0] < batch.left) != (before[1] < batch.right)
                once = before is None or before[0] == batch.left or before[1] == batch.right
                if turned and not once:
                    row = self.pairs[batch.place].row
                    yield Difference(row, "(records)", "batch out of its producer's order", *where)
                last[batch.producer] = batch.left, batch.right

    def _slower(self) -> Iterator[Difference]:
        """APIs that are slower beyond noise. What was sent faster than captured, or at another speed than the other
        side, met another load, and is not judged."""
        speeds = {run.speed for run in self.runs} | ({1.0} if len(self.runs) == 1 else set())
        self.result.judged = len(speeds) <= 1 and self.judged
        if self.result.judged:
            evidence = "; ".join(f"{name}: {_lateness(run)}" for name, run in self._timed_runs())
            late = max((run.loop_ms[1] for run in self.runs if run.loop_ms is not None), default=0.0)
            yield from self.result.measured.judged(self.noise, speeds == {None}, self.share, evidence, late * 1000)

    def _timed_runs(self) -> Iterator[tuple[str, RunFacts]]:
        """RUNs that say how late the replayer itself was."""
        names = ("A", "B") if len(self.runs) > 1 else ("replayed",)
        return ((name, run) for name, run in zip(names, self.runs) if run.lag_ms is not None)

    def _unsteady(self) -> Iterator[Difference]:
        """Answers that were not kept, which the left does not have."""
        if not self.runs:
            return
        before, after = self.runs[0], self.runs[-1]
        alone = len(self.runs) == 1
        left = before.captured if alone else before.steadiness
        name = "captured" if alone else "A"
        for difference in steadiness.differences(left, after.steadiness, name, self._row_of_right, self.appeared):
            if difference.unexpected and difference.row["api_key"] == api_keys.PRODUCE and self.unsteady is None:
                self.unsteady = difference
            yield difference

    def _row_of_right(self, place: int) -> dict[str, Any]:
        """The captured row of an exchange at a place of the (second) RUN."""
        assert isinstance(self.pairs, Pairs)
        return self.pairs.row_of_last(place)

    def _group(self, group: Group) -> Iterator[Difference]:
        """Which partitions were assigned to the members together."""
        if group.row is None or group.name in self.failed_groups:
            return
        key = (group.name,)
        left, right = group.left, group.right
        if left.assigned != right.assigned:
            yield Difference(
                group.row, "(group)", "assigned partitions", _listing(left.assigned), _listing(right.assigned), key
            )
        else:
            for number, generation in sorted(group.generations.items()):
                if generation.whole and generation.left != generation.right:
                    values = (_listing(generation.left), _listing(generation.right))
                    left_text = f"generation {number}: {values[0]}"
                    yield Difference(
                        generation.row, "(group)", "assigned partitions of a generation", left_text, values[1], key
                    )
        if right.doubled and not left.doubled:
            yield Difference(group.row, "(group)", "partition of two members", "none", _listing(right.doubled), key)


_OF_PARTITION: Final = 2
"""Parts of a key that names a topic and a partition."""


def _lateness(run: RunFacts) -> str:
    """Describe how late the replayer itself was."""
    loop = f", event loop late by {run.loop_ms[0]:.1f} ms, {run.loop_ms[1]:.0f} ms at p99" if run.loop_ms else ""
    return f"own lag {run.lag_ms:.0f} ms at p99{loop}"


def _written(pair: Pair, correspondence: Correspondence) -> set[tuple[str, int]]:
    """The partitions to which a Produce request writes."""
    return {
        (correspondence.left.of(topic), part["index"])
        for topic in (pair.left.request_body() or {}).get("topicData", ())
        for part in topic["partitionData"]
    }


def _behind(cause: Difference, error: int | None, following: frozenset[int]) -> Difference | None:
    """A cause, where an error can follow from it: one of these, or what already FindCoordinator had said."""
    text = (
        cause.row["api_key"] == api_keys.FIND_COORDINATOR and error is not None and errors.label(error) == cause.right
    )
    return cause if error is None or error in following or text else None


def _captured_error(pair: Pair, place: Place) -> int | None:
    """Of two RUNs: the error that was captured at this place; None where nothing was."""
    side = pair.in_capture() if pair.in_capture is not None else None
    decoded = side.decoded_answer(pair.api_key) if side is not None else None
    if side is None or decoded is None or decoded.body is None:
        return None
    naming = Naming(lambda topic: side.named.get(topic, topic), lambda member: member)
    fact = facts(pair.api_key, decoded.version, decoded.body, side.request_body, naming).get(place)
    return None if fact is None or fact.kind is not Kind.ERROR else int(fact.value)


def _inside(place: Place, outer: Place) -> bool:
    return place.path.startswith(f"{outer.path}.") and place.key[: len(outer.key)] == outer.key


def _has_records(side: Facts) -> bool:
    return any(place.path.endswith(".records") and fact.value for place, fact in side.items())


def _state_text(side: Side) -> str:
    return side.state if side.rule is None else f"{side.state} ({side.rule})"


def _listing(partitions: Iterable[tuple[str, int]]) -> str:
    every = sorted(partitions)
    return listed([f"{topic}-{number}" for topic, number in every[:8]], len(every)) or "none"
