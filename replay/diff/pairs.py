"""Pair the two sides of each captured exchange.

In: one RUN (what was captured against what was replayed), or two RUNs of the same capture (what one target answered
against what the other did). Out: `Pair`s in order of captured time. Rule: every captured exchange becomes a pair, also
what was not sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

import numpy as np

from kwire.analyzer.dataset.dataset import DatasetError
from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import schema, tree
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.project import Frame
from kwire.replay.diff import steadiness
from kwire.replay.diff.captured_names import CapturedNames
from kwire.replay.diff.steadiness import Steadiness
from kwire.replay.diff.stored_run import ConnectionNames, Flags, Numbers, Part, Run


@dataclass(frozen=True, slots=True)
class Side:
    """One side of an exchange. `state`: `answered`, `unanswered` (an answer was owed), or a word for why there is none
    to compare. `request` and `answer` are frames without their length; `rule` and `retries` are the replay's;
    `captured`: what was captured, no replay; `renamed`: topics of the target (`--map-topic`) and what they were called
    when captured, which is how `asked` and `said` call them; `named`: what this side calls topics by id, where the RUN
    says it (a capture that began later does not); `names`: likewise of groups, transactional ids and clients, where the
    other side is a RUN under other names."""

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
    names: CapturedNames = field(default_factory=CapturedNames, repr=False)
    _decoded: dict[str, tree.Decoded] = field(default_factory=dict, init=False, repr=False, compare=False)

    def request_body(self) -> dict[str, Any] | None:
        """The request's body."""
        if self.request is None:
            return None
        if "request" not in self._decoded:
            self._decoded["request"] = self._called(tree.decode_request(self.request, exact=True))
        return self._decoded["request"].body

    def decoded_answer(self, api_key: int) -> tree.Decoded | None:
        """The answer, with what could be read of it."""
        if self.answer is None or self.version is None:
            return None
        if "answer" not in self._decoded:
            self._decoded["answer"] = self._called(tree.decode_response(self.answer, api_key, self.version, exact=True))
        return self._decoded["answer"]

    def _called(self, decoded: tree.Decoded) -> tree.Decoded:
        if decoded.body is None or not (self.renamed or self.names):
            return decoded
        body = _renamed(decoded.body, self.renamed) if self.renamed else decoded.body
        if self.names and decoded.api_key is not None:
            body = self.names.in_body(decoded.api_key, body)
        return decoded._replace(body=body)


_TOPIC_FIELDS: Final = frozenset(("topic", "name", "topicName", "resourceName"))


def _renamed(value: Any, called: Mapping[str, str], field_name: str = "") -> Any:
    """A body in which the topics have the names that they had when captured."""
    if isinstance(value, dict):
        return {name: _renamed(inner, called, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, called) for inner in value]
    return called.get(value, value) if field_name in _TOPIC_FIELDS and isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Pair:
    """One captured exchange on both sides. `row` has columns of the table `exchanges` (`stored.ROW`) as captured, and
    of a RUN its `place` among the pairs; `in_capture`: of two RUNs, gives what was captured."""

    row: dict[str, Any]
    left: Side
    right: Side
    in_capture: Callable[[], Side] | None = field(default=None, repr=False, compare=False)

    @property
    def api_key(self) -> int:
        return int(self.row["api_key"])


def decode(some: Sequence[Pair]) -> None:
    """Decode the captured requests and both answers of some pairs at once; what is not whole `Side.asked` and
    `Side.said` decode on their own, when they are asked."""
    wanted: list[tuple[Side, str, Frame]] = []
    for pair in some:
        for side, name, data in (
            (pair.left, "request", pair.left.request),
            (pair.left, "answer", pair.left.answer),
            (pair.right, "answer", pair.right.answer),
        ):
            if data is not None and side.version is not None and name not in side._decoded:
                direction = schema.REQUEST if name == "request" else schema.RESPONSE
                wanted.append((side, name, (data, pair.api_key, side.version, direction)))
    bodies = tree.decode_frames([frame for _, _, frame in wanted])
    for (side, name, frame), body in zip(wanted, bodies, strict=True):
        if body is not None:
            data, key, version, direction = frame
            whole = tree.Decoded(key, version, direction, None, body, (), len(data), 0, OK, None)
            side._decoded[name] = side._called(whole)


COMPARABLE: Final = frozenset(("answered", "unanswered", "not_sent", "skipped"))
"""States that say something about the target. The others say why there is nothing to compare."""
_TARGET_GAVE_NOTHING: Final = frozenset(("no_producer", "not_joined"))
"""Rules by which a request is not sent, because the target had refused what it needs."""

_TARGET_LACKS: Final = frozenset(("target_refuses", "target_lacks_api", "target_lacks_version"))
"""Rules by which a request is not sent, because the target does not serve it."""
_OF_MEMBERS: Final = frozenset(
    (
        names.JOIN_GROUP,
        names.SYNC_GROUP,
        names.HEARTBEAT,
        names.LEAVE_GROUP,
        names.CONSUMER_GROUP_HEARTBEAT,
        names.SHARE_GROUP_HEARTBEAT,
        names.SHARE_FETCH,
        names.SHARE_ACKNOWLEDGE,
    )
)
"""What only members of groups say: where there are no such groups, what they did is not done."""
_OF_DATA: Final = frozenset(
    (
        names.PRODUCE,
        names.FETCH,
        names.OFFSET_COMMIT,
        names.OFFSET_FETCH,
        names.INIT_PRODUCER_ID,
        names.ADD_PARTITIONS_TO_TXN,
        names.ADD_OFFSETS_TO_TXN,
        names.END_TXN,
        names.TXN_OFFSET_COMMIT,
    )
)
"""What writes and reads records and offsets: where it is not served, records are not there, or never committed."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts that a RUN records about itself.

    - `audited`: rows of its table `audit`, None where it was not; `renamed`: as of a `Side`
    - `speed`: it was sent at, 1 as captured, None as fast as answers allowed
    - `seeded`: by topic as captured, the settings in which it was meant to differ when it was made for the replay
    - `ended`: why it ended before all was sent
    - `own_users`: whoever logged in when captured had a login of his own (`--principals`)
    - `keeps_times`: records were sent with their captured timestamps; `lag_ms`: the replayer's own lag (p99);
      `loop_ms`: how late its event loop was (p50, p99)
    - `captured`, `steadiness`: what of the capture, and of the replay, was not answered at once
    """

    audited: Sequence[Mapping[str, Any]] | None
    renamed: Mapping[str, str]
    speed: float | None
    seeded: Mapping[str, Any]
    ended: str = ""
    own_users: bool = False
    keeps_times: bool = True
    lag_ms: float | None = None
    loop_ms: tuple[float, float] | None = None
    captured: Steadiness = field(default_factory=Steadiness)
    steadiness: Steadiness = field(default_factory=Steadiness)


BLOCK: Final = 2048
BLOCK_BYTES: Final = 8 << 20
"""Exchanges that are looked at together, at most, and bytes of their frames (but for one that alone has more)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some pairs, one after the other, by columns. `held`: the captured broker answered late on purpose; `retried`: a
    replay did something for it more than once."""

    places: Numbers
    api_key: Numbers
    held: Flags
    retried: Flags
    left: Part
    right: Part

    def __len__(self) -> int:
        return len(self.places)

    def size(self) -> int:
        """Bytes of all frames."""
        return sum(
            int((end - at).sum())
            for part in (self.left, self.right)
            for at, end in ((part.asked_at, part.asked_end), (part.answer_at, part.answer_end))
        )


class Pairs(Sequence[Pair]):
    """Pairs that are read when they are asked for, so that not all are in memory. `runs`: the one RUN that they are of,
    or both; `block`: gives some of them by columns, None where they are not from RUNs."""

    def __init__(
        self,
        count: int,
        make: Callable[[int], Pair],
        runs: Sequence[Run] = (),
        block: Callable[[Numbers], Block] | None = None,
    ) -> None:
        self.runs = tuple(
            RunFacts(
                run.audited,
                run.renamed,
                run.speed,
                run.seeded,
                run.ended,
                run.own_users,
                run.keeps_times,
                run.lag_ms,
                run.loop_ms,
                *steadiness.of_run(run),
            )
            for run in runs
        )
        self._last = runs[-1] if runs else None
        self._count = count
        self._make = make
        self._block = block
        self._first = runs[0] if runs else None

    @property
    def by_columns(self) -> bool:
        """Are there blocks?"""
        return self._block is not None

    def blocks(self) -> Iterator[Block]:
        """All of them, in order."""
        assert self._block is not None
        left = [(first, min(first + BLOCK, self._count)) for first in range(0, self._count, BLOCK)][::-1]
        while left:
            first, stop = left.pop()
            block = self._block(np.arange(first, stop))
            if len(block) > 1 and block.size() > BLOCK_BYTES:
                middle = (first + stop) // 2
                left += [(middle, stop), (first, middle)]
            else:
                yield block

    def places_of(self, api_keys: Collection[int]) -> Iterable[int]:
        """Where exchanges of some APIs are, in order."""
        if self._first is not None:
            return self._first.places_of_apis(api_keys)
        return (place for place, pair in enumerate(self) if pair.api_key in api_keys)

    def groups(self) -> set[str]:
        """Groups that captured requests name."""
        return self._first.group_ids() if self._first is not None else set()

    def row_of_last(self, place: int) -> dict[str, Any]:
        """The captured row of an exchange of the last RUN, by its place there, with its place among the pairs."""
        assert self._first is not None
        assert self._last is not None
        at = place
        if self._last is not self._first:
            at = int(self._first.place_of(self._last.keys[place : place + 1])[0])
        return {**self._first.row(at), "place": at}

    def connections(self, places: Numbers) -> list[tuple[str, str]]:
        """(capture, connection) of some."""
        assert self._first is not None
        return self._first.connections(places)

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
    """Pair what was captured (left) with what the replay got (right). Raises DatasetError."""
    return _of_run(Run(path, ConnectionNames()))


def _of_run(run: Run) -> Pairs:
    def pair(place: int) -> Pair:
        row = {**run.row(place), "place": place}
        return Pair(row, _captured(run, place, row), against_capture(_replayed(run, place), row["api_key"]))

    def block(places: Numbers) -> Block:
        captured, replayed = run.captured_part(places), run.replayed_part(places)
        return Block(places, run.api_keys[places], run.held[places], run.retried[places], captured, replayed)

    return Pairs(len(run), pair, (run,), block)


def of_apis(
    path: str | os.PathLike[str], api_keys: Collection[int]
) -> tuple[Iterator[Pair], dict[tuple[str, str], int]]:
    """The pairs of `from_run` that are of some APIs; and when each captured connection (capture, connection) sent its
    last request, us since the epoch. Raises DatasetError."""
    run = Run(path, ConnectionNames())
    pairs = _of_run(run)
    return (pairs[place] for place in run.places_of_apis(api_keys)), run.last_sent_us()


def against_capture(replayed: Side, api_key: int) -> Side:
    """A replay's side where the other one is the capture: what was skipped says nothing of the target, unless it was
    skipped because of what the target had answered, or because it does not serve what clients need."""
    lacks = replayed.rule in _TARGET_LACKS and api_key in _OF_MEMBERS | _OF_DATA
    if replayed.state == "skipped" and replayed.rule not in _TARGET_GAVE_NOTHING and not lacks:
        return dataclasses.replace(replayed, state="not_planned")
    return replayed


def from_runs(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> Pairs:
    """Two replays of the same capture. Raises DatasetError, also where they are not of the same."""
    connections = ConnectionNames()
    runs = Run(left, connections), Run(right, connections)
    only = np.setxor1d(runs[0].keys, runs[1].keys)
    if len(only):
        raise DatasetError(
            f"{left} and {right}: not replays of the same capture ({len(only)} of their exchanges are in one only)",
            "replay one capture twice, with the same --filter",
        )
    if runs[0].groups != runs[1].groups:
        for run in runs:
            run.use_captured_names()
    places = runs[1].place_of(runs[0].keys)

    def pair(place: int) -> Pair:
        sides = [_replayed(runs[0], place), _replayed(runs[1], int(places[place]))]
        for at, side in enumerate(sides):
            if side.rule == "not_captured" and side.answer is not None:
                sides[at] = dataclasses.replace(side, state="answered", rule=None)
        row = {**runs[0].row(place), "place": place}
        return Pair(row, sides[0], sides[1], lambda: _captured(runs[0], place, row))

    def block(some: Numbers) -> Block:
        there = places[some]
        sides = runs[0].replayed_part(some), runs[1].replayed_part(there)
        retried = runs[0].retried[some] | runs[1].retried[there]
        return Block(some, runs[0].api_keys[some], runs[0].held[some], retried, *sides)

    return Pairs(len(runs[0]), pair, runs, block)


def _captured(run: Run, place: int, row: dict[str, Any]) -> Side:
    request, answer = run.captured(place)
    state = str(row["status"])
    if state == "unanswered" or (state == "answered" and answer is None):
        state = "not_captured"
    latency_us, named = row["latency_us"], run.captured_names
    return Side(state, row["api_version"], request, answer, latency_us, captured=True, named=named, names=run.names)


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
        names=run.names,
    )
