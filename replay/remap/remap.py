"""Replaces the values that the original cluster assigned with the target's.

In: bodies of captured requests, answers of both sides. Out: bodies to send. Pure: no I/O, no clock; the state is what
was learned. Each family of values keeps its own (`family`); here all of them are called, one after the other. Rules: a
value is replaced only by one in an answer (or one that the engine requested itself); what was learned is changed only
by a method that says what happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.steps import Step
from kwire.replay.remap.family import Family
from kwire.replay.remap.fetches import Fetches
from kwire.replay.remap.groups import Groups
from kwire.replay.remap.offsets import SHIFT as SHIFT_OFFSETS
from kwire.replay.remap.offsets import Appended, Offsets
from kwire.replay.remap.producers import Producers
from kwire.replay.remap.topics import Topics

KEEP: Final = "keep"
SHIFT: Final = "shift"
"""Timestamps of records: as captured, or as old now as they were in the capture."""


Learned = tuple[str, str | None, str, str, int | None]
"""A row of the table `remaps` without its capture: kind, scope, captured, replayed, records."""
_LOOKED_THROUGH: Final = 5_000
"""Ids that are searched for news each time: it takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class RemapOptions:
    """Options of the values to replace. `offsets`: a mode of `offsets`; `timestamps`: `keep`, or `shift` by
    `time_delta_ms`; `map_topic`: new names of topics."""

    offsets: str = SHIFT_OFFSETS
    timestamps: str = KEEP
    time_delta_ms: int = 0
    map_topic: Mapping[str, str] = field(default_factory=dict)


class Remap:
    """Everything that was learned. `assignments`: of the captured leaders' SyncGroup, by group and generation; `nodes`:
    captured broker ids to the target's."""

    def __init__(
        self,
        options: RemapOptions = RemapOptions(),
        assignments: Mapping[tuple[str, int], list[Body]] | None = None,
        nodes: Mapping[int, int] | None = None,
    ) -> None:
        self.topics = Topics(options.map_topic, nodes or {})
        self.producers = Producers(options.time_delta_ms if options.timestamps == SHIFT else None)
        self.offsets = Offsets(options.offsets, self.topics)
        self.groups = Groups(self.topics, assignments or {})
        self.fetches = Fetches(self.topics, self.offsets)
        self.in_place = not options.map_topic and options.timestamps == KEEP
        """Whether only producers and topic ids are replaced in Produce requests."""

    def rename(self, captured: str, there: str) -> None:
        """Give a topic another name on the target during the run: then no request can be sent as it is any more."""
        self.topics.rename(captured, there)
        self.in_place = False

    @property
    def _families(self) -> tuple[Family, ...]:
        return self.topics, self.producers, self.offsets, self.groups, self.fetches

    def request(self, step: Step) -> Body:
        """Make the body to send for a step, with the target's values. Topics' structs keep `NAME`."""
        body = step.fresh()
        for family in self._families:
            family.write(step, body)
        self.topics.address(step.request.api_key, body)
        return body

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> Body:
        """Make the body to send for a step that was answered (or lost) and is repeated by a rule of `steps.RULES`."""
        if rule == "member_epoch_moved":
            return self.request(step)
        for family in self._families:
            family.again(step, body, rule, captured, replayed)
        self.topics.address(step.request.api_key, body)
        return body

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        """Take from a pair of answers what the target assigned. `sent` is the body that was sent."""
        for family in self._families:
            family.learn(step, sent, captured, replayed)

    def rows(self, capture: str) -> Iterator[Body]:
        """Give what was learned, as rows of the table `remaps`."""
        for learned in self.ids():
            yield row(capture, learned)
        for (topic, partition), known in self.offsets.items():
            for base, there_base, count in known.produced:
                yield row(capture, offset(((topic, partition), base, there_base, count)))

    def ids(self) -> Iterator[Learned]:
        """Give what was learned, without offsets."""
        for old, new in self.producers.items():
            yield "producer", None, f"{old.id}/{old.epoch}", f"{new.id}/{new.epoch}", None
        for group, member, there in self.groups.members():
            yield "member", group, member, there, None
        for group, generation, there_generation in self.groups.generations():
            yield "generation", group, str(generation), str(there_generation), None
        for node, other in self.topics.nodes.items():
            yield "node", None, str(node), str(other), None


class News:
    """Gives what a remap has learned since it was last read. Offsets are reported as they come; the rest is searched,
    more seldom the more there is of it, so it takes a hundredth of the time if it is read twice a second."""

    def __init__(self, remap: Remap) -> None:
        self._remap = remap
        self._remap.offsets.news = []
        self._reported = set(remap.ids())
        self._pause = 0

    def take(self, all_of_it: bool = False) -> tuple[list[Appended], list[Learned]]:
        """Take batches that were appended, and the rest, in the order in which it was learned; replacements come later.
        `all_of_it`: search everything now."""
        appended, self._remap.offsets.news = self._remap.offsets.news or [], []
        fresh: list[Learned] = []
        self._pause -= 1
        if self._pause < 0 or all_of_it:
            known = list(self._remap.ids())
            fresh = [learned for learned in known if learned not in self._reported]
            self._reported = set(known)
            self._pause = len(known) // _LOOKED_THROUGH
        return appended, fresh


def offset(appended: Appended) -> Learned:
    """Format an offset as `Remap.rows` does."""
    (topic, partition), captured, replayed, count = appended
    return "offset", f"{topic}-{partition}", str(captured), str(replayed), count


def row(capture: str, learned: Learned) -> Body:
    """Make a row of the table `remaps`."""
    kind, scope, captured, replayed, records = learned
    return {
        "capture": capture,
        "kind": kind,
        "scope": scope,
        "captured": captured,
        "replayed": replayed,
        "records": records,
    }
