"""Tell what a target answered that clients did not keep: errors after which they send again, connections that ended
before an answer came, and quotas.

In: a RUN. Out: a `Steadiness` of its capture, and one of its replay; of two of them the differences. Pure. Rule: what a
target answers until it is ready for what it has just met is expected, and so is what members meet while their group
rebalances, and who begins a transaction before the last one's markers are written.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.common import statistics
from kwire.analyzer.frame import arrow
from kwire.analyzer.protocol import api_keys, errors, schema
from kwire.replay.diff import noise
from kwire.replay.diff.differences import Difference
from kwire.replay.diff.stored_run import Run

UNSTEADY: Final = "unsteady"
THROTTLED: Final = "held back by a quota"
_EXPECTED: Final = {
    "transaction_ends": "race",
    "member_id_given": "member_id_given",
    "session_remade": "session_remade",
    "member_epoch_moved": "rebalance",
    "position_asked": "before_capture",
}
"""Rules of the replay by which a request is sent again as clients do at any target; and the rules of the diff."""
_REBALANCING: Final = frozenset(
    (errors.REBALANCE_IN_PROGRESS, errors.ILLEGAL_GENERATION, errors.FENCED_MEMBER_EPOCH, errors.STALE_MEMBER_EPOCH)
)
_RETRIED: Final = frozenset((errors.OUT_OF_ORDER_SEQUENCE_NUMBER,))
"""What is answered to batches behind one that has to be sent again."""
KEPT_ALIVE: Final = "kept_alive"
"""The rule of errors that were answered to heartbeats of the replayer's own, before a request of their member."""
_GROUP_HEARTBEATS: Final = (api_keys.CONSUMER_GROUP_HEARTBEAT, api_keys.SHARE_GROUP_HEARTBEAT)
Met = tuple[int, int | None]
"""An API, and an error (None: no answer came)."""


@dataclass(slots=True)
class Steadiness:
    """Answers of one side that were not kept, and quotas.

    - `answers`: how many there are, by API
    - `met`: answers that were not kept (of a capture: that had this error), without those that are expected
    - `expected`: those, by rule
    - `throttled`: by API, how many were, and for how long at most, us
    - `first`: the place of the first of each
    """

    answers: Counter[int] = field(default_factory=Counter)
    met: Counter[Met] = field(default_factory=Counter)
    expected: Counter[tuple[int, int | None, str]] = field(default_factory=Counter)
    throttled: dict[int, tuple[int, int]] = field(default_factory=dict)
    first: dict[Any, int] = field(default_factory=dict)


def of_run(run: Run) -> tuple[Steadiness, Steadiness]:
    """Of the capture, and of the replay."""
    keys = run.api_keys
    apis = arrow.distinct(keys[keys >= 0]).tolist()
    captured, replayed = Steadiness(), Steadiness()
    captured_errors = set()
    for place, code in run.captured_errors():
        captured.met[int(keys[place]), code] += 1
        captured_errors.add((place, code))
    for place in run.unanswered():
        captured.met[int(keys[place]), None] += 1
    for place, answer in run.discarded():
        key, code, count = int(keys[place]), answer["code"], answer["count"]
        if answer["rule"] == KEPT_ALIVE:
            if (place, code) in captured_errors:  # which its member met before it spoke again
                continue
            key = key if key in _GROUP_HEARTBEATS else api_keys.HEARTBEAT
        rule = _rule(answer["rule"], code)
        early = count if rule else answer["early"]
        if early:
            replayed.expected[key, code, rule or "race"] += early
            replayed.first.setdefault((key, code, rule or "race"), place)
        if count > early:
            replayed.met[key, code] += count - early
            replayed.first.setdefault((key, code), place)
    for side, throttled in ((captured, run.captured_throttle_us), (replayed, run.throttle_us)):
        for key in apis:
            of_api = keys == key
            side.answers[key] = int(of_api.sum())
            held = of_api & (throttled > 0)
            if held.any():
                side.throttled[key] = int(held.sum()), int(throttled[held].max())
                side.first[key] = int(held.argmax())
    return captured, replayed


def _rule(rule: str, code: int | None) -> str | None:
    """Why an answer that was not kept is expected; None: it is not, but for one that came early."""
    if rule in ("rejoined", KEPT_ALIVE) and code in _REBALANCING:
        return "rebalance"
    return "race" if code in _RETRIED else _EXPECTED.get(rule)


def differences(
    left: Steadiness,
    right: Steadiness,
    name: str,
    row: Callable[[int], dict[str, Any]],
    appeared: Mapping[Met, Difference],
) -> Iterator[Difference]:
    """Yield what the right has more of. `name`: of the left; `row`: the captured row of `exchanges` at a place;
    `appeared`: differences that tell errors which came for good."""

    def difference(
        key: int, place: int, path: str, kind: str, before: str, after: str, rule: str | None = None
    ) -> Difference:
        changed = {"api_key": key, "api": schema.api_name(key), "api_version": None}
        return Difference({**row(place), **changed}, path, kind, before, after, (), rule)

    for (key, code), count in sorted(right.met.items(), key=lambda met: (met[0][0], met[0][1] or 0)):
        before, of = left.met[key, code], max(right.answers[key], count)
        if before and statistics.more_often(before, max(left.answers[key], before), count, of) > 1 - noise.CONFIDENCE:
            continue
        what = "connection ended before an answer" if code is None else f"answered {errors.label(code)} first"
        text = f"{what}: {count} of {of} {schema.api_name(key)}"
        cause = appeared.get((key, code))
        unsteady = difference(key, right.first[key, code], "(retries)", UNSTEADY, f"{name} {before}", text)
        yield unsteady if cause is None else dataclasses.replace(unsteady, rule="consequence", cause=cause)
    for (key, code, rule), count in sorted(right.expected.items(), key=lambda met: (met[0][0], met[0][1] or 0)):
        text = f"answered {errors.label(code or 0)} first: {count} of {right.answers[key]} {schema.api_name(key)}"
        yield difference(key, right.first[key, code, rule], "(retries)", UNSTEADY, "", text, rule)
    for key, (count, longest) in sorted(right.throttled.items()):
        before, _ = left.throttled.get(key, (0, 0))
        of = right.answers[key]
        if not before or statistics.more_often(before, left.answers[key], count, of) <= 1 - noise.CONFIDENCE:
            text = f"{count} of {of} {schema.api_name(key)}, at most {longest / 1000:.0f} ms"
            yield difference(key, right.first[key], "(throttle)", THROTTLED, f"{name} {before}", text)
