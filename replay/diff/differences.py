"""Differences, and how they are counted: by what is alike, and by what they follow from.

In: differences in the order in which they were found. Out: groups of them, each with its count and a few examples; what
follows from one is counted at it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys

RULES: Final[dict[str, str]] = {
    "version": "the two sides spoke different versions, because a target does not offer the captured one",
    "target_refuses": "the target offers the API and answers that it does not serve it (35); no group depends on it",
    "rights": "captured users lacked a right that whoever the replay logs in as has",
    "not_there": "about state that requests made which a replay does not send: users, tokens, quotas, transactions",
    "zookeeper": "offsets were kept in ZooKeeper (version 0), which keeps no metadata with them",
    "race": "one side met a passing error (3, 5, 6, 14, 15, 16, 51 and the like) that the other did not meet; "
    "of two RUNs also the second, where it was captured there",
    "rebalance": "a group was rebalancing on one side at that moment (27), and not on the other",
    "member_id_given": "one side was first given a member id (79)",
    "sent_again": "the replayer sent it again, for no answer came, and the target had stored it the first time",
    "session_remade": "a fetch session had to be made again (70, 71, 106; of a share group 122, 123, 133)",
    "role_changed": "another member leads the group",
    "before_capture": "about data that was there before the capture began, or that others wrote",
    "other_topics": "one cluster has topics that the other does not have, and that no captured request names",
    "seeded": "the topic had been made before the replay began, or is not deleted by it",
    "target_config": "a setting of the broker, or a default of its version",
    "not_stored": "the record was never stored on that side; its produce is a difference of its own",
    "interleaved": "several producers wrote the partition, and their order to each other is not reproducible",
    "read_less": "an answer had fewer records than the captured one, and the run ended before the rest was asked for "
    "(up to a tenth of a topic's records, or a hundred)",
    "interrupted": "the run was ended by its user before it was sent, or while its answer was on the way",
    "noise": "old against old differs in this too, and as often (95 % confidence): it differs by itself",
    "busy_replayer": "slower by no more than the replayer's own event loop was late (99th percentile): its machine was "
    "busy, and the target's latency cannot be told from that",
    "accepted": "known, and accepted by a file of expected differences (--expect)",
    "consequence": "follows from a difference that is reported for itself: a lost batch, a failed join, a reader's end",
}
"""Why a difference is expected."""

MISSING: Final = "acknowledged records missing"
OUT_OF_ORDER: Final = "stored out of order"
DISPLACED: Final = "acknowledged records at other offsets"
_OF_LOGS: Final = frozenset((MISSING, OUT_OF_ORDER, DISPLACED))
"""Kinds of differences between what a target acknowledged and what its log holds."""
_OF_READERS: Final = frozenset((api_keys.FETCH, api_keys.LIST_OFFSETS, api_keys.OFFSET_COMMIT, api_keys.OFFSET_FETCH))
"""APIs whose answers differ if logs are not as they were acknowledged."""

EXAMPLES: Final = 3
"""Of each kind of difference; the count tells the rest."""
MOST_NAMES: Final = 10_000
"""Topics, groups and other elements that are remembered of a kind of difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. `path` is the field's, `key` the elements around it; `left` and `right` as text; `rule`:
    why it is expected; `cause`: the difference that it follows from."""

    row: dict[str, Any] = field(repr=False)
    path: str
    kind: str
    left: str
    right: str
    key: tuple[str, ...] = ()
    rule: str | None = None
    cause: Difference | None = field(default=None, repr=False)

    @property
    def unexpected(self) -> bool:
        return self.rule is None

    @property
    def root(self) -> Difference:
        """The first cause, which is the difference itself where it has no cause."""
        return self if self.cause is None else self.cause.root

    def alike(self) -> Alike:
        """Key by which differences are grouped."""
        by_values = self.kind.startswith(("error", "state", "version", "unsteady"))
        values = (self.left, self.right) if by_values else ("", "")
        return self.row["api_key"], self.row["api_version"], self.path, self.kind, *values, self.rule


Alike = tuple[int, int | None, str, str, str, str, str | None]
"""API, version, field path, kind, both values where they are errors, rule."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """A consequence of the differences of a group: so many of an API's answers, or of what was read or stored."""

    api_key: int
    path: str
    kind: str
    right: str
    count: int


@dataclass(frozen=True, slots=True)
class Grouped:
    """Differences that are alike. `consequences`: what follows from them, the most first; `names`: topics, groups and
    other elements that they are about, at most `MOST_NAMES`."""

    api_key: int
    version: int | None
    path: str
    kind: str
    left: str
    right: str
    rule: str | None
    count: int
    examples: tuple[Difference, ...]
    consequences: tuple[Consequence, ...] = ()
    names: frozenset[str] = frozenset()

    @property
    def unexpected(self) -> bool:
        return self.rule is None


class Differences:
    """Differences in the order in which they were found; of each group only the first `EXAMPLES`, and how many."""

    def __init__(self) -> None:
        self._kept: list[Difference] = []
        self._groups: dict[Alike, list[Difference]] = {}
        self._counts: Counter[Alike] = Counter()
        self._names: dict[Alike, set[str]] = {}
        self._following: dict[Alike, Counter[tuple[int, str, str, str]]] = {}

    def take(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            key = difference.alike()
            if difference.cause is not None:
                following = self._following.setdefault(difference.root.alike(), Counter())
                following[key[0], difference.path, difference.kind, key[5]] += 1
            self._counts[key] += 1
            names = self._names.setdefault(key, set())
            if len(names) < MOST_NAMES:
                names.update(difference.key, filter(None, (difference.row.get("group_id"),)))
            if self._counts[key] <= EXAMPLES:
                self._groups.setdefault(key, []).append(difference)
                self._kept.append(difference)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self._kept)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def groups(self) -> Iterator[Grouped]:
        """In the order in which the first of each was found."""
        for key, examples in self._groups.items():
            following = self._following.get(key, Counter()).most_common()
            consequences = tuple(Consequence(*what, count) for what, count in following)
            names = frozenset(self._names[key])
            yield Grouped(*key, self._counts[key], tuple(examples), consequences, names)


def grouped(differences: Differences) -> list[Grouped]:
    """Unexpected ones first, in the order in which they were met, so that a cause comes before what follows from it
    (what readers got comes after logs that are not as they were acknowledged); then the others by count."""
    groups = list(differences.groups())
    expected = [group for group in groups if not group.unexpected]
    expected.sort(key=lambda group: (-group.count, group.api_key, group.path))
    unexpected = [group for group in groups if group.unexpected]
    if any(group.kind in _OF_LOGS for group in unexpected):
        unexpected.sort(key=lambda group: group.api_key in _OF_READERS)
    return [*unexpected, *expected]
