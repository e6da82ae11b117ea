"""What differs between two sides of the same exchanges: captured and replayed, or one replay and another.

In: `Pair`s in order of captured time, each with the request and answer of both sides. Out: a `Comparison`: every
difference with its verdict, what was not compared and why, latencies. Pure.

Two passes: the first learns what stands for what (`learned`), the second compares. A difference is *expected* when a
rule of `RULES` explains it, else *unexpected*. Records are compared over the whole conversation of a connection with a
partition, not answer by answer, because a fetch may carry more or less each time; groups are compared by what all their
members were assigned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer.protocol import errors, names, schema
from replay.diff.correspondence import Correspondence, Group, Partition, Reading, learn
from replay.diff.fields import ERRORS_ONLY, NOISE, PRESENT, Fact, Facts, Kind, Naming, Place, facts, paths
from replay.diff.pairs import COMPARABLE, Pair, Side

RULES: Final[dict[str, str]] = {
    "version": "the two sides spoke different versions, because a target does not offer the captured one",
    "target_refuses": "the target offers the API and answers that it does not serve it (35), as 3.9 does for KIP-848",
    "rights": "captured users lacked a right that whoever the replay logs in as has",
    "not_there": "about state that requests made which a replay does not send: users, tokens, quotas, transactions",
    "zookeeper": "offsets were kept in ZooKeeper (version 0), which keeps no metadata with them",
    "race": "one side met a passing error (3, 5, 6, 14, 15, 16, 51 and the like) that the other did not meet",
    "rebalance": "a group was rebalancing on one side at that moment (27), and not on the other",
    "member_id_given": "one side was first given a member id (79)",
    "session_remade": "a fetch session had to be made again (70, 71, 106)",
    "role_changed": "another member leads the group",
    "before_capture": "about data that was there before the capture began, or that others wrote",
    "other_topics": "one cluster has topics that the other does not have, and that no captured request names",
    "seeded": "the topic had been made before the replay began, or is not deleted by it",
    "target_config": "a setting of the broker, or a default of its version",
    "not_stored": "the record was never stored on that side; its produce is a difference of its own",
    "interleaved": "several producers wrote the partition, and their order to each other is not reproducible",
    "read_less": "an answer had fewer records than the captured one, and the run ended before the rest was asked for",
    "consequence": "follows from a difference that is reported for itself: a lost batch, a failed join, a reader's end",
}
"""Why a difference is expected."""

EXAMPLES: Final = 3
"""Of each kind of difference; the count tells the rest."""

_TOPIC_RESOURCE: Final = f"{names.TOPIC_RESOURCE}:"
"""How the key of a topic's settings begins."""
_RACES: Final = frozenset((
    errors.UNKNOWN_TOPIC_OR_PARTITION, errors.LEADER_NOT_AVAILABLE, errors.NOT_LEADER_OR_FOLLOWER,
    errors.REQUEST_TIMED_OUT, errors.NETWORK_EXCEPTION, errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR, errors.REBALANCE_IN_PROGRESS, errors.NOT_CONTROLLER,
    errors.CONCURRENT_TRANSACTIONS, errors.LISTENER_NOT_FOUND, errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH, errors.OFFSET_NOT_AVAILABLE, errors.UNKNOWN_TOPIC_ID, errors.INCONSISTENT_TOPIC_ID,
))  # fmt: skip
_SESSIONS: Final = frozenset((
    errors.FETCH_SESSION_ID_NOT_FOUND, errors.INVALID_FETCH_SESSION_EPOCH, errors.FETCH_SESSION_TOPIC_ID_ERROR,
))  # fmt: skip
_RIGHTS: Final = frozenset((
    errors.TOPIC_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED, errors.CLUSTER_AUTHORIZATION_FAILED,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors.SASL_AUTHENTICATION_FAILED,
    errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
))  # fmt: skip
_NOT_THERE: Final = frozenset((
    errors.SECURITY_DISABLED, errors.DELEGATION_TOKEN_AUTH_DISABLED, errors.DELEGATION_TOKEN_NOT_FOUND,
    errors.GROUP_ID_NOT_FOUND, errors.RESOURCE_NOT_FOUND, errors.TRANSACTIONAL_ID_NOT_FOUND,
))  # fmt: skip
_GROUP_APIS: Final = frozenset((
    names.OFFSET_COMMIT, names.OFFSET_FETCH, names.JOIN_GROUP, names.HEARTBEAT, names.LEAVE_GROUP, names.SYNC_GROUP,
    names.TXN_OFFSET_COMMIT, names.CONSUMER_GROUP_HEARTBEAT, names.SHARE_GROUP_HEARTBEAT,
))  # fmt: skip
_GROUP_ERRORS: Final = frozenset((
    errors.NOT_COORDINATOR, errors.ILLEGAL_GENERATION, errors.UNKNOWN_MEMBER_ID, errors.REBALANCE_IN_PROGRESS,
    errors.GROUP_ID_NOT_FOUND, errors.MEMBER_ID_REQUIRED, errors.FENCED_MEMBER_EPOCH, errors.STALE_MEMBER_EPOCH,
))  # fmt: skip
_TRANSACTION_APIS: Final = frozenset((
    names.PRODUCE, names.INIT_PRODUCER_ID, names.ADD_PARTITIONS_TO_TXN, names.ADD_OFFSETS_TO_TXN, names.END_TXN,
    names.TXN_OFFSET_COMMIT,
))  # fmt: skip
_TRANSACTION_ERRORS: Final = frozenset((
    errors.INVALID_PRODUCER_EPOCH, errors.INVALID_TXN_STATE, errors.INVALID_PRODUCER_ID_MAPPING,
    errors.CONCURRENT_TRANSACTIONS, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors.OPERATION_NOT_ATTEMPTED,
    errors.PRODUCER_FENCED, errors.TRANSACTION_ABORTABLE,
))  # fmt: skip
_LOST_BATCH_ERRORS: Final = frozenset((
    errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.DUPLICATE_SEQUENCE_NUMBER, errors.INVALID_PRODUCER_EPOCH,
    errors.UNKNOWN_PRODUCER_ID,
))  # fmt: skip
_JOINING: Final = frozenset((
    names.JOIN_GROUP, names.SYNC_GROUP, names.OFFSET_COMMIT, names.CONSUMER_GROUP_HEARTBEAT,
    names.SHARE_GROUP_HEARTBEAT,
))  # fmt: skip
"""What goes wrong in these, the group's later exchanges follow from."""
_WAITS_FOR_OTHERS: Final = frozenset((names.JOIN_GROUP, names.SYNC_GROUP))
"""Answered when other members have spoken: their latency is not the broker's."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. `path` is the field's, `key` the elements around it; `left` and `right` as text."""

    row: dict[str, Any] = field(repr=False)
    path: str
    kind: str
    left: str
    right: str
    key: tuple[str, ...] = ()
    rule: str | None = None

    @property
    def unexpected(self) -> bool:
        return self.rule is None


@dataclass(frozen=True, slots=True)
class Grouped:
    """Differences of one (API, version, field path, kind, values where they are errors, rule)."""

    api_key: int
    version: int | None
    path: str
    kind: str
    left: str
    right: str
    rule: str | None
    count: int
    examples: tuple[Difference, ...]

    @property
    def unexpected(self) -> bool:
        return self.rule is None


class Differences:
    """Differences in the order in which they were found; of each group only the first `EXAMPLES`, and how many."""

    def __init__(self) -> None:
        self._kept: list[Difference] = []
        self._groups: dict[tuple[Any, ...], list[Difference]] = {}
        self._counts: Counter[tuple[Any, ...]] = Counter()

    def take(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            row, kind = difference.row, difference.kind
            values = (difference.left, difference.right) if kind.startswith(("error", "state", "version")) else ("", "")
            key = (row["api_key"], row["api_version"], difference.path, kind, *values, difference.rule)
            self._counts[key] += 1
            if self._counts[key] <= EXAMPLES:
                self._groups.setdefault(key, []).append(difference)
                self._kept.append(difference)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self._kept)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def groups(self) -> Iterator[Grouped]:
        for key, examples in self._groups.items():
            api_key, version, path, kind, left, right, rule = key
            yield Grouped(api_key, version, path, kind, left, right, rule, self._counts[key], tuple(examples))


def grouped(differences: Differences) -> list[Grouped]:
    """Unexpected ones first, then by count."""
    groups = differences.groups()
    return sorted(groups, key=lambda group: (not group.unexpected, -group.count, group.api_key, group.path))


@dataclass(slots=True)
class Comparison:
    """`compared`, `same`, `expected`, `unexpected` count exchanges; `skipped`: exchanges not compared, by reason;
    `noise`: values that differed in fields that are not compared, by kind; `latencies`: by API, both sides, us."""

    differences: Differences = field(default_factory=Differences)
    compared: int = 0
    same: int = 0
    expected: int = 0
    unexpected: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    noise: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.compared + sum(self.skipped.values())


def compare(pairs: Sequence[Pair]) -> Comparison:
    """Compare two sides of the same exchanges, in order of captured time."""
    return _Comparing(pairs).run()


class _Comparing:
    """The second pass: what has gone wrong so far decides what later differences follow from it."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.place = 0  # of the pair that is compared now
        self.correspondence: Correspondence = learn(pairs)
        self.result = Comparison()
        self.failed_groups: set[str] = set()
        self.failed_transactions: set[str] = set()
        self.lost_batches: set[tuple[str, int, int]] = set()

    def run(self) -> Comparison:
        for place, pair in enumerate(self.pairs):
            self.place = place
            self._pair(pair)
        self.result.differences.take(self._produced())
        for partition in self.correspondence.partitions.values():
            self.result.differences.take(self._read(partition))
        for group in self.correspondence.groups.values():
            self.result.differences.take(self._group(group))
        return self.result

    # --- one exchange

    def _pair(self, pair: Pair) -> None:
        result = self.result
        left, right = pair.left.state, pair.right.state
        if left not in COMPARABLE or right not in COMPARABLE or left == right != "answered":
            reason = left if left not in COMPARABLE else right
            result.skipped[pair.right.rule or pair.left.rule or reason] += 1
            return
        result.compared += 1
        differences = list(self._differences(pair))
        result.differences.take(differences)
        if any(difference.unexpected for difference in differences):
            result.unexpected += 1
        elif differences:
            result.expected += 1
        else:
            result.same += 1

    def _differences(self, pair: Pair) -> Iterator[Difference]:
        if pair.left.state != pair.right.state:
            rule = "consequence" if self._follows(pair) else None
            yield Difference(pair.row, "(answer)", "state", pair.left.state, _told(pair.right), rule=rule)
            return
        left, right = pair.left.said(pair.api_key), pair.right.said(pair.api_key)
        if left is None or right is None or left.body is None or right.body is None:
            broken = [side for side, said in (("left", left), ("right", right)) if said is None or said.body is None]
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
        facts_left = facts(api_key, left.version, left.body, pair.left.asked, naming_left)
        facts_right = facts(api_key, right.version, right.body, pair.right.asked, naming_right)
        self._latency(pair, facts_left, facts_right)
        common = paths(api_key, left.version) & paths(api_key, right.version)
        yield from self._facts(pair, facts_left, facts_right, common)

    def _latency(self, pair: Pair, left: Facts, right: Facts) -> None:
        if pair.left.latency_us is None or pair.right.latency_us is None or pair.api_key in _WAITS_FOR_OTHERS:
            return
        if pair.api_key == names.FETCH and not all(_has_records(side) for side in (left, right)):
            return  # waited for records: the latency of a producer
        both = self.result.latencies.setdefault(schema.api_name(pair.api_key), ([], []))
        both[0].append(pair.left.latency_us)
        both[1].append(pair.right.latency_us)

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
            mine = left.get(place) or right.get(place)
            assert mine is not None
            if mine.value is PRESENT:
                absent.add(place)
            if mine.kind is Kind.ERROR:
                wrong.add(place.key)
            differences.append((place, mine.kind, difference))
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
        elif place.path == "topics" and pair.api_key in (names.METADATA, names.DESCRIBE_TOPIC_PARTITIONS):
            name = place.key[0]
            if name not in self.correspondence.named_topics or name.startswith("__"):
                rule = "other_topics"
            elif not on_left:
                rule = "seeded"
        elif pair.api_key == names.METADATA and not on_left:
            rule = "seeded"
        states = ("there", "missing") if on_left else ("missing", "there")
        kinds = "missing" if on_left else "extra"
        return Difference(pair.row, place.path, kinds, *states, place.key, rule)

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
            if self.place in self.correspondence.partition(topic, int(number)).swallowed:
                return Difference(pair.row, place.path, "swallowed as a duplicate", str(left), str(right), place.key)
            return Difference(pair.row, place.path, "append time", str(left), str(right), place.key, "target_config")
        elif kind is Kind.CONFIG:
            of_topic = bool(place.key) and place.key[0].startswith(_TOPIC_RESOURCE)
            rule = self._config_rule(pair, place) if of_topic else "target_config"
        elif kind is Kind.COMMITTED:
            verdict = self._offset(pair, place, left, right)
            if verdict == "same":
                return None
            rule = verdict
        elif pair.api_key == names.OFFSET_FETCH and pair.left.version == 0 and place.path.endswith("metadata"):
            rule = "zookeeper"
        elif kind is Kind.LISTED:
            verdict = self._listed(pair, place, left, right)
            if verdict == "same":
                return None
            rule = verdict
        return Difference(pair.row, place.path, "changed", str(left), str(right), place.key, rule)

    def _config_rule(self, pair: Pair, place: Place) -> str | None:
        """A topic's setting that nobody set differs because brokers have other defaults."""
        for side in (pair.left, pair.right):
            said = side.said(pair.api_key)
            for result in (said.body or {}).get("results", ()) if said is not None else ():
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
            return "before_capture" if left < 0 or where not in self.correspondence.committed else None
        return self.correspondence.position(place.key[-2], int(place.key[-1]), left, right)

    def _listed(self, pair: Pair, place: Place, left: int, right: int) -> str | None:
        asked = pair.left.asked()
        for topic in (asked or {}).get("topics", ()):
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
        return Difference(pair.row, place.path, kind, errors.label(left), errors.label(right), place.key, rule)

    def _error_rule(self, pair: Pair, place: Place, left: int, right: int) -> str | None:
        both = {left, right}
        if errors.MEMBER_ID_REQUIRED in both:
            return "member_id_given"
        if both & _SESSIONS and pair.api_key == names.FETCH:
            return "session_remade"
        if errors.REBALANCE_IN_PROGRESS in both and pair.api_key in _GROUP_APIS:
            return "rebalance"
        if right == errors.UNSUPPORTED_VERSION and pair.left.captured:
            return "target_refuses"
        if left in _RIGHTS and not right and pair.left.captured:
            return "rights"
        if both & _NOT_THERE and pair.api_key in ERRORS_ONLY and pair.left.captured:
            return "not_there"
        if self._follows(pair, right or left):
            return "consequence"
        if left in _RACES and not right:
            return "race"
        if left in _RACES and (right in _RACES or (right in _GROUP_ERRORS and pair.api_key in _GROUP_APIS)):
            return "race"
        if errors.TOPIC_ALREADY_EXISTS in both and pair.api_key == names.CREATE_TOPICS:
            return "seeded"
        return None

    def _follows(self, pair: Pair, error: int | None = None) -> bool:
        """Does what went wrong here follow from something that has been reported?"""
        row = pair.row
        group, transaction = row.get("group_id"), row.get("transactional_id")
        if group in self.failed_groups and pair.api_key in _GROUP_APIS:
            return error is None or error in _GROUP_ERRORS
        if transaction in self.failed_transactions and pair.api_key in _TRANSACTION_APIS:
            return error is None or error in _TRANSACTION_ERRORS
        if pair.api_key == names.PRODUCE and (error is None or error in _LOST_BATCH_ERRORS | _TRANSACTION_ERRORS):
            return any(batch in self.lost_batches for batch in self.correspondence.batches_of(pair))
        return False

    def _note(self, pair: Pair, difference: Difference) -> None:
        """Remember what later differences may follow from."""
        if difference.rule not in (None, "consequence", "target_refuses"):
            return
        row = pair.row
        if pair.api_key in _JOINING and row.get("group_id"):
            self.failed_groups.add(row["group_id"])
        if pair.api_key in _TRANSACTION_APIS and row.get("transactional_id"):
            self.failed_transactions.add(row["transactional_id"])
        if pair.api_key == names.PRODUCE:
            self.lost_batches.update(self.correspondence.batches_of(pair))

    # --- over many exchanges

    def _produced(self) -> Iterator[Difference]:
        """Batches that were taken for duplicates, or stored out of their producer's order."""
        for partition in self.correspondence.partitions.values():
            last: dict[Any, tuple[int, int]] = {}
            seen: dict[int, int] = {}
            for batch in partition.batches:
                where = str(batch.left), str(batch.right), (partition.topic, str(partition.index))
                if batch.right in seen and seen[batch.right] != batch.left:
                    yield Difference(self.pairs[batch.place].row, "(records)", "batch stored once for two", *where)
                seen[batch.right] = batch.left
                before = last.get(batch.producer)
                turned = before is not None and (before[0] < batch.left) != (before[1] < batch.right)
                if before is not None and turned and before[0] != batch.left:
                    row = self.pairs[batch.place].row
                    yield Difference(row, "(records)", "batch out of its producer's order", *where)
                last[batch.producer] = batch.left, batch.right

    def _read(self, partition: Partition) -> Iterator[Difference]:
        """What each connection has read of a partition."""
        key = (partition.topic, str(partition.index))
        for reading in partition.readings:
            yield from self._reading(partition, reading, key)

    def _reading(self, partition: Partition, reading: Reading, key: tuple[str, ...]) -> Iterator[Difference]:
        left, right = reading.left.by_offset(), reading.right.by_offset()
        wanted = {partition.to_right(offset): (offset, digest) for offset, digest in left.items()}
        mapped = {offset: record for offset, record in wanted.items() if offset is not None}
        furthest = max(right, default=-1)
        row = reading.row
        end, (captured_end, _) = max(mapped.items(), default=(-1, (-1, b"")))
        # In an open transaction a consumer waits for its end.
        starved = [at for at in reading.starved if furthest < at[0] <= end and not partition.transactional]
        if starved:
            read = f"to offset {furthest}" if right else "nothing"
            yield Difference(starved[0][1], "(records)", "reading ended early", f"to offset {captured_end}", read, key)
        for offset, (captured, digest) in sorted(mapped.items()):
            if offset not in right:
                # Behind the end of an answer that had less than the captured one, and in no other.
                inside = any(start <= offset <= last for start, last in reading.served)
                behind = any(last < offset for _, last in reading.served)
                rule = "read_less" if offset > furthest or (behind and not inside) else None
                if starved and offset > furthest:
                    rule = "consequence"
                yield Difference(row, "(records)", "record missing", f"offset {captured}", "not read", key, rule)
            elif right[offset] != digest:
                yield Difference(row, "(records)", "record changed", f"offset {captured}", f"offset {offset}", key)
        for offset in sorted(right):
            twin = partition.to_left(offset)
            if twin in reading.hidden and twin not in left:
                yield Difference(
                    row, "(records)", "record of an aborted transaction", "hidden", f"offset {offset}", key
                )
        # What no captured produce accounts for is compared by content.
        unmapped = Counter(digest for offset, digest in left.items() if partition.to_right(offset) is None)
        span = (min(mapped, default=0), max(mapped, default=-1))
        strangers = Counter(
            digest
            for offset, digest in right.items()
            if partition.to_left(offset) is None and (span[0] <= offset <= span[1] or not partition.batches)
        )
        lost = (unmapped - strangers).total()
        extra = (strangers - unmapped).total()
        if lost:
            rule = "not_stored" if partition.failed else "before_capture"
            yield Difference(row, "(records)", "record missing", f"{lost} records", "not read", key, rule)
        if extra:
            rule = None if partition.batches and not partition.unseen else "before_capture"
            yield Difference(row, "(records)", "record extra", "not read", f"{extra} records", key, rule)

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
        if right.doubled and not left.doubled:
            yield Difference(group.row, "(group)", "partition of two members", "none", _listing(right.doubled), key)


def _inside(place: Place, outer: Place) -> bool:
    return place.path.startswith(f"{outer.path}.") and place.key[: len(outer.key)] == outer.key


def _has_records(side: Facts) -> bool:
    return any(place.path.endswith(".records") and fact.value for place, fact in side.items())


def _told(side: Side) -> str:
    return side.state if side.rule is None else f"{side.state} ({side.rule})"


def _listing(partitions: Iterable[tuple[str, int]]) -> str:
    shown = sorted(partitions)
    text = ", ".join(f"{topic}-{number}" for topic, number in shown[:8])
    return text + (f" and {len(shown) - 8} more" if len(shown) > 8 else "") or "none"
