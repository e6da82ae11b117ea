"""The same captured exchange on two sides, and where pairs come from.

In: one RUN (what was captured against what was replayed), or two RUNs of the same capture (what one target answered
against what the other did). Out: `Pair`s in order of captured time. Rule: every captured exchange becomes a pair, also
what was not sent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from analyzer import tree
from analyzer.dataset import DatasetError, open_dataset
from analyzer.schema import ZERO_UUID
from replay.outcome import REPLAYED


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

    def asked(self) -> dict[str, Any] | None:
        """The request's body."""
        if self.request is None:
            return None
        return self._called(tree.decode_request(self.request, exact=True)).body

    def said(self, api_key: int) -> tree.Decoded | None:
        """The answer, with what could be read of it."""
        if self.answer is None or self.version is None:
            return None
        return self._called(tree.decode_response(self.answer, api_key, self.version, exact=True))

    def _called(self, decoded: tree.Decoded) -> tree.Decoded:
        if not self.renamed or decoded.body is None:
            return decoded
        return dataclasses.replace(decoded, body=_renamed(decoded.body, self.renamed))


_TOPIC_FIELDS: Final = frozenset(("topic", "name", "topicName", "resourceName"))


def _renamed(value: Any, names: Mapping[str, str], field_name: str = "") -> Any:
    """A body in which the topics have the names that they had when captured."""
    if isinstance(value, dict):
        return {name: _renamed(one, names, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return names.get(value, value) if field_name in _TOPIC_FIELDS and isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Pair:
    """One captured exchange on both sides. `row` has the columns of the table `exchanges` as captured."""

    row: dict[str, Any]
    left: Side
    right: Side

    @property
    def api_key(self) -> int:
        return int(self.row["api_key"])


COMPARABLE: Final = frozenset(("answered", "unanswered", "not_sent", "skipped"))
"""States that say something about the target. The others say why there is nothing to compare."""

_Key = tuple[str, str, int]


def from_run(path: str | os.PathLike[str]) -> list[Pair]:
    """What was captured (left) against what the replay got (right). Raises DatasetError."""
    run = _open(path)
    pairs = []
    for key, outcome in run.outcomes.items():
        right = run.replayed(key, outcome)
        if right.state == "skipped":
            right = dataclasses.replace(right, state="not_planned")
        pairs.append(Pair(run.rows[key], run.captured(key), right))
    return pairs


def from_runs(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> list[Pair]:
    """Two replays of the same capture. Raises DatasetError, also where they are not of the same."""
    runs = _open(left), _open(right)
    if runs[0].outcomes.keys() != runs[1].outcomes.keys():
        only = runs[0].outcomes.keys() ^ runs[1].outcomes.keys()
        raise DatasetError(
            f"{left} and {right}: not replays of the same capture ({len(only)} of their exchanges are in one only)",
            "replay one capture twice, with the same --filter",
        )
    pairs = []
    for key, outcome in runs[0].outcomes.items():
        sides = [run.replayed(key, one) for run, one in zip(runs, (outcome, runs[1].outcomes[key]))]
        for at, side in enumerate(sides):
            if side.rule == "not_captured" and side.answer is not None:
                sides[at] = dataclasses.replace(side, state="answered", rule=None)
        pairs.append(Pair(runs[0].rows[key], *sides))
    return pairs


@dataclass(frozen=True, slots=True)
class _Run:
    """A RUN in memory. Frames are without their length; all are by (capture, connection, exchange)."""

    outcomes: dict[_Key, dict[str, Any]]
    rows: dict[_Key, dict[str, Any]]
    asked: dict[_Key, bytes]
    answered: dict[_Key, bytes]
    renamed: dict[str, str]
    captured_names: dict[str, str]
    replayed_names: dict[str, str]

    def captured(self, key: _Key) -> Side:
        row, answer = self.rows[key], self.answered.get(key)
        state = str(row["status"])
        if state == "unanswered" or (state == "answered" and answer is None):
            state = "not_captured"
        asked = self.asked.get(key)
        return Side(
            state, row["api_version"], asked, answer, row["latency_us"], captured=True, named=self.captured_names
        )

    def replayed(self, key: _Key, outcome: dict[str, Any]) -> Side:
        own = REPLAYED + key[0], key[1], key[2]
        state = outcome["verdict"]
        if state == "not_comparable":
            state = outcome["rule"] or state
        return Side(
            state,
            outcome["sent_version"],
            self.asked.get(own),
            self.answered.get(own),
            outcome["latency_us"],
            outcome["rule"],
            tuple(outcome["retries"] or ()),
            renamed=self.renamed,
            named=self.replayed_names,
        )


def _open(path: str | os.PathLike[str]) -> _Run:
    stored = open_dataset(path)
    if not any(entry["table"] == "outcomes" for entry in stored.manifest["files"]):
        raise DatasetError(f"{path}: not a RUN (no outcomes)", "kwire replay CAPTURE --to HOST:PORT -o RUN makes one")
    rows: dict[_Key, dict[str, Any]] = {}
    replies: dict[_Key, _Key] = {}
    for row in _rows(stored.exchanges):
        if row["exchange"] is not None:
            key = row["capture"], row["connection"], row["exchange"]
            rows[key] = row
            if row["reply"] is not None:
                replies[row["capture"], row["connection"], row["reply"]] = key
    asked: dict[_Key, bytes] = {}
    answered: dict[_Key, bytes] = {}
    for row in _rows(stored.messages):
        if not row["complete"]:
            continue
        if row["direction"] == "request":
            asked[row["capture"], row["connection"], row["exchange"]] = row["bytes"][4:]
        else:
            answer_of = replies.get((row["capture"], row["connection"], row["reply"]))
            if answer_of is not None:
                answered[answer_of] = row["bytes"][4:]
    outcomes = {
        (row["capture"], row["connection"], row["exchange"]): row
        for row in _rows(stored.outcomes)
        if row["exchange"] is not None and row["api_key"] is not None
    }
    in_order = sorted(outcomes, key=lambda key: (rows[key]["request_time"], key[1], key[2]))
    about = stored.manifest.get("replay")
    mapped = about.get("map_topic") if isinstance(about, dict) else None
    renamed = {str(new): str(old) for old, new in mapped.items()} if isinstance(mapped, dict) else {}
    ids = [row for row in _rows(stored.remaps) if row["kind"] == "topic_id"]
    before = {row["captured"]: row["scope"] for row in ids}
    now = {row["replayed"]: row["scope"] for row in ids if row["replayed"] != ZERO_UUID}
    return _Run({key: outcomes[key] for key in in_order}, rows, asked, answered, renamed, before, now)


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()
