"""The same captured exchange on two sides, and where pairs come from.

In: one RUN (what was captured against what was replayed), or two RUNs of the same capture (what one target answered
against what the other did). Out: `Pair`s in order of captured time. Rule: every captured exchange becomes a pair, also
what was not sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

import numpy as np

from analyzer.dataset import DatasetError
from analyzer.protocol import tree
from replay.diff.stored_run import ConnectionNames, Run


@dataclass(frozen=True, slots=True)
class Side:
    """One side of an exchange. `state`: `answered`, `unanswered` (an answer was owed), or a word for why there is none
    to compare. `request` and `answer` are frames without their length; `rule` and `retries` are the replay's;
    `captured`: what was captured, no replay; `renamed`: topics of the target (`--map-topic`) and what they were called
    when captured, which is how `asked` and `said` call them; `named`: what this side calls topics by id, where the RUN
    says it (a capture that began later does not)."""

    state: str
    version: int | None = None
    request: bytes | None = field(default=None, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    latency_us: int | None = None
    rule: str | None = None
    retries: tuple[str, ...] = ()
    captured: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict, repr=False)
    named: Mapping[str, str] = field(default_factory=dict, repr=False)
    _decoded: dict[str, tree.Decoded] = field(default_factory=dict, init=False, repr=False, compare=False)

    def asked(self) -> dict[str, Any] | None:
        """The request's body."""
        if self.request is None:
            return None
        if "request" not in self._decoded:
            self._decoded["request"] = self._called(tree.decode_request(self.request, exact=True))
        return self._decoded["request"].body

    def said(self, api_key: int) -> tree.Decoded | None:
        """The answer, with what could be read of it."""
        if self.answer is None or self.version is None:
            return None
        if "answer" not in self._decoded:
            self._decoded["answer"] = self._called(tree.decode_response(self.answer, api_key, self.version, exact=True))
        return self._decoded["answer"]

    def _called(self, decoded: tree.Decoded) -> tree.Decoded:
        if not self.renamed or decoded.body is None:
            return decoded
        return dataclasses.replace(decoded, body=_renamed(decoded.body, self.renamed))


_TOPIC_FIELDS: Final = frozenset(("topic", "name", "topicName", "resourceName"))


def _renamed(value: Any, names: Mapping[str, str], field_name: str = "") -> Any:
    """A body in which the topics have the names that they had when captured."""
    if isinstance(value, dict):
        return {name: _renamed(inner, names, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    return names.get(value, value) if field_name in _TOPIC_FIELDS and isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Pair:
    """One captured exchange on both sides. `row` has columns of the table `exchanges` (`stored.ROW`) as captured."""

    row: dict[str, Any]
    left: Side
    right: Side

    @property
    def api_key(self) -> int:
        return int(self.row["api_key"])


COMPARABLE: Final = frozenset(("answered", "unanswered", "not_sent", "skipped"))
"""States that say something about the target. The others say why there is nothing to compare."""
_TARGET_GAVE_NOTHING: Final = frozenset(("no_producer", "not_joined"))
"""Rules by which a request is not sent, because the target had refused what it needs."""


class Pairs(Sequence[Pair]):
    """Pairs that are read when they are asked for, so that not all are in memory."""

    def __init__(self, count: int, make: Callable[[int], Pair]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Pair]: ...
    def __getitem__(self, place: int | slice) -> Pair | Sequence[Pair]:
        places = range(self._count)[place]
        return self._make(places) if isinstance(places, int) else [self._make(number) for number in places]


def from_run(path: str | os.PathLike[str]) -> Pairs:
    """What was captured (left) against what the replay got (right). Raises DatasetError."""
    run = Run(path, ConnectionNames())

    def pair(place: int) -> Pair:
        row = run.row(place)
        return Pair(row, _captured(run, place, row), against_capture(_replayed(run, place)))

    return Pairs(len(run), pair)


def against_capture(replayed: Side) -> Side:
    """A replay's side where the other one is the capture: what was skipped says nothing of the target, unless it was
    skipped because of what the target had answered."""
    if replayed.state == "skipped" and replayed.rule not in _TARGET_GAVE_NOTHING:
        return dataclasses.replace(replayed, state="not_planned")
    return replayed


def from_runs(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> Pairs:
    """Two replays of the same capture. Raises DatasetError, also where they are not of the same."""
    names = ConnectionNames()
    runs = Run(left, names), Run(right, names)
    only = np.setxor1d(runs[0].keys, runs[1].keys)
    if len(only):
        raise DatasetError(
            f"{left} and {right}: not replays of the same capture ({len(only)} of their exchanges are in one only)",
            "replay one capture twice, with the same --filter",
        )
    places = runs[1].place_of(runs[0].keys)

    def pair(place: int) -> Pair:
        sides = [_replayed(runs[0], place), _replayed(runs[1], int(places[place]))]
        for at, side in enumerate(sides):
            if side.rule == "not_captured" and side.answer is not None:
                sides[at] = dataclasses.replace(side, state="answered", rule=None)
        return Pair(runs[0].row(place), *sides)

    return Pairs(len(runs[0]), pair)


def _captured(run: Run, place: int, row: dict[str, Any]) -> Side:
    asked, answer = run.captured(place)
    state = str(row["status"])
    if state == "unanswered" or (state == "answered" and answer is None):
        state = "not_captured"
    return Side(state, row["api_version"], asked, answer, row["latency_us"], captured=True, named=run.captured_names)


def _replayed(run: Run, place: int) -> Side:
    outcome = run.outcome(place)
    state = outcome.verdict
    if state == "not_comparable":
        state = outcome.rule or state
    return Side(
        state,
        outcome.sent_version,
        outcome.request,
        outcome.answer,
        outcome.latency_us,
        outcome.rule,
        outcome.retries,
        renamed=run.renamed,
        named=run.replayed_names,
    )
