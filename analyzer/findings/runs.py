"""Group errors to runs: answers of one error to a client about one subject, until a good answer.

In: a capture point. Out: `Run`s, each judged (`kwire.analyzer.protocol.error_severity`). Rules (measured on brokers of
nine versions): a client backs off 0.1 to 1 s, so that ten answers are seconds of trying; what passes by itself has
passed within 5 s; one thing is a group, a transactional id, a topic or a topic-partition; whose connection it was does
not matter, for coordinators answer on one what is mended on another.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.findings.capture import NO_CODE, SECOND, CaptureFrame, api_name
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.columns import encode
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.error_severity import Judgement, judge

TRIES = 10
"""Answers in a row that are a fault although the run was short, over `TRIED_US` at least."""
TRIED_US = SECOND

_NAMED_ALL = (api_keys.METADATA,)
_MEMO = "runs"


@dataclass(frozen=True, slots=True)
class Thing:
    """The subject of an answer: topic and partition where the answer named them. `topics`: those that it may be about,
    where they are several and known; `several`: the topic is the first of them."""

    group: str | None = None
    transaction: str | None = None
    topic: str | None = None
    partition: int | None = None
    topics: tuple[str, ...] = ()
    several: bool = field(default=False, compare=False)


class Run(NamedTuple):
    """Answers to one client with one error, of one API and subject. rows: exchanges, in order; cleared: a good answer
    about the same came after the last; since, until: us. of: where good answers came between them, how many answers
    there were in all from the first to the last."""

    client: int
    api: int
    code: int
    thing: Thing
    rows: np.ndarray
    since: int
    until: int
    cleared: bool
    of: int | None = None

    @property
    def judgement(self) -> Judgement:
        """The severity of such an error as an answer of this API."""
        return judge(self.code, api_name(self.api))

    @property
    def error(self) -> str:
        """`NOT_COORDINATOR (16)`."""
        return f"{errors.name(self.code)} ({self.code})"

    @property
    def lasting(self) -> bool:
        """Whether a run lasted longer than such an error takes to pass."""
        return self.lasts(self.judgement.grace_s)

    def lasts(self, grace_s: int | None) -> bool:
        """Whether a run is a fault: it lasted longer than that, or had many answers."""
        return bool(_lasts(grace_s, len(self.rows), self.until - self.since))


def _lasts(grace_s: int | None, tries: Any, lasted: Any) -> Any:
    """Whether so many answers over so many us are a fault, for numbers or arrays."""
    if not grace_s:
        return (tries >= 0) & (grace_s is not None)
    enough = (tries >= TRIES) & (lasted >= TRIED_US) & (grace_s <= 5)
    return enough | ((tries >= 3) & (lasted >= grace_s * SECOND))


EVERY: Final[list[Callable[[int, int], bool]]] = []
"""Tests whether rules use every run of an API and error."""


def _asked_for(api: int, code: int) -> bool:
    """Whether rules use runs of such an error that are no fault; there may be one for every other exchange."""
    return any(asks(api, code) for asks in EVERY) or judge(code, api_name(api)).kind == "admin"


def runs(capture: CaptureFrame) -> list[Run]:
    """Runs of a capture point that are faults or `_asked_for`, by client, API and time. Computed once."""
    if _MEMO not in capture.memo:
        runs_of = [*_of_partitions(capture), *_of_exchanges(capture)]
        order = sorted(runs_of, key=lambda run: (run.since, run.client, run.api, run.code, str(run.thing)))
        capture.memo[_MEMO] = order
    cached: list[Run] = capture.memo[_MEMO]
    return cached


def _of_partitions(capture: CaptureFrame) -> list[Run]:
    """Runs by topic-partition."""
    parts, rows = capture.partitions, capture.exchanges
    has_error = (parts.error != NO_CODE) & (parts.owner >= 0)
    broken = has_error & (parts.error != 0)
    if not broken.any():
        return []

    (group, groups), places = capture.groups, len(capture.topic_partitions)
    if ((len(groups) + 1) * places).bit_length() + len(capture.clients).bit_length() > _ROOM:
        group, groups = np.full(len(rows), -1, np.int32), []
    bits = ((len(groups) + 1) * places).bit_length()

    def keys(at: slice | np.ndarray) -> np.ndarray:
        """Client, API, group and place as one integer."""
        owner = np.maximum(parts.owner[at], 0)
        key = capture.client[owner].astype(np.int64) << 10 | (rows.api[owner].astype(np.int64) & 0x3FF)
        about = (group[owner].astype(np.int64) + 1) * places + parts.topic_partition[at]
        keys_of: np.ndarray = key << bits | about
        return keys_of

    concerned = _different(keys, spill.true_rows(broken))
    chosen = spill.where(len(has_error), lambda block: has_error[block] & arrow.among_ordered(keys(block), concerned))
    owner = spill.take(parts.owner, chosen)
    results = []
    key = spill.compute(len(chosen), np.int64, lambda block: keys(chosen[block]))
    for packed, code, which, cleared, of in _faults(capture, key, bits, spill.take(parts.error, chosen), owner):
        client, api = packed >> bits + 10, packed >> bits & 0x3FF
        of_group, place = divmod(packed & (1 << bits) - 1, places)
        thing = Thing(groups[of_group - 1] if of_group else None, None, *capture.topic_partitions[place])
        results.append(_run(capture, client, api, code, thing, which, cleared, of))
    return results


_ROOM: Final = 53
"""Bits of a key beside its API. With more clients, groups and topic-partitions, groups are not distinguished."""


def _of_exchanges(capture: CaptureFrame) -> list[Run]:
    """Runs of answers whose error is not that of a topic-partition."""
    rows, parts = capture.exchanges, capture.partitions
    placed = np.zeros(len(rows), bool)
    for block in spill.blocks(len(parts.owner)):
        owner, error = parts.owner[block], parts.error[block]
        placed[owner[(error != NO_CODE) & (error != 0) & (owner >= 0)]] = True
    broken = spill.true_rows((rows.error != NO_CODE) & (rows.error != 0) & ~placed)
    if not len(broken):
        return []

    def keys(at: slice | np.ndarray) -> np.ndarray:
        """Client and API as one integer."""
        key: np.ndarray = (capture.client[at].astype(np.int64) << 10) | (rows.api[at].astype(np.int64) & 0x3FF)
        return key

    def has_answer(block: slice) -> Any:
        return (rows.error[block] != NO_CODE) & arrow.among_ordered(keys(block), concerned) & ~placed[block]

    concerned = _different(keys, broken)
    chosen = spill.where(len(rows), has_answer)
    numbers: dict[Thing, int] = {}
    several = set[int]()
    about = spill.empty(len(chosen), np.int32)
    for places, some in capture.table("exchanges").chosen(
        chosen, ["group_id", "transactional_id", "topics", "api_key"]
    ):
        for start in range(0, len(some), _TOGETHER):
            at = places[start : start + _TOGETHER]
            about[at] = _about(some.slice(start, _TOGETHER), rows.error[chosen[at]] != 0, numbers, several)
    things = [replace(thing, several=number in several) for thing, number in numbers.items()]
    whole = spill.compute(len(chosen), np.int64, lambda block: (keys(chosen[block]) << 32) | about[block])
    results = []
    for packed, code, which, cleared, of in _faults(capture, whole, 32, spill.take(rows.error, chosen), chosen):
        client, api = packed >> 42, (packed >> 32) & 0x3FF
        results.append(_run(capture, client, api, code, things[packed & 0xFFFFFFFF], which, cleared, of))
    return results


_TOGETHER: Final = 1 << 16
"""Exchanges whose subjects are numbered at a time."""
_BITS: Final = 16
"""Strings numbered for so many rows."""


def _about(rows: pa.Table, wrong: np.ndarray, numbers: dict[Thing, int], several: set[int]) -> np.ndarray:
    """int64[rows]: the subject of each exchange, as a number: the first name in its answer, or all names. `wrong`
    bool[rows]: they have an error; put into `several`: numbers of those that name more topics than the first."""
    texts: list[dict[str, int]] = [{}, {}, {}]
    lists = rows.column("topics").combine_chunks()
    ends = lists.offsets.to_numpy().astype(np.int64)
    many = np.diff(ends)
    items = np.append(encode(lists.values, texts[2]), -1)
    columns = [_single(rows, name, text) for name, text in zip(_WHOM, texts, strict=False)]
    columns.append(items[np.where(many > 0, ends[:-1], -1)])
    named = arrow.among(arrow.numbers(rows.column("api_key").combine_chunks(), NULL), _NAMED_ALL) & (many > 0)
    key = named.astype(np.int64) | (wrong & ~named & (many > 1)).astype(np.int64) << 1
    used = [arrow.distinct(column) for column in columns]  # of any number of strings as many as there are rows
    for numbered, column in zip(used, columns, strict=True):
        key = key << _BITS | np.searchsorted(numbered, column)
    key = np.where(named & (many > 1), -1 - np.arange(len(rows)), key)  # these one by one
    known = arrow.distinct(key)
    strings = [[*text, None] for text in texts]

    def thing(packed: int) -> Thing:
        if packed < 0:
            row = -1 - packed
            topics = tuple(str(strings[2][item]) for item in items[ends[row] : ends[row + 1]].tolist())
            return Thing(topic=" ".join(topics), topics=topics)
        at = [packed >> shift & ((1 << _BITS) - 1) for shift in (2 * _BITS, _BITS, 0)]
        group_id, transactional_id, topic = (
            text[numbered[position]] for text, numbered, position in zip(strings, used, at, strict=True)
        )
        return Thing(topic=topic) if packed >> 3 * _BITS == 1 else Thing(group_id, transactional_id, topic)

    number = np.array([numbers.setdefault(thing(key), len(numbers)) for key in known.tolist()], np.int64)
    several.update(number[known >> 3 * _BITS == 2].tolist())
    result: np.ndarray = number[np.searchsorted(known, key)]
    return result


_WHOM: Final = ("group_id", "transactional_id")


def _single(rows: pa.Table, name: str, text: dict[str, int]) -> np.ndarray:
    """A column of strings as their numbers."""
    return np.concatenate([encode(chunk, text) for chunk in rows.column(name).chunks])


class _Answers(NamedTuple):
    """Answers by key and in order of time. key int64[keys]: each key once, its bits have the API from `api_at` on;
    starts: where its answers begin; code, row [n]: the error and the exchange of each answer; good, bad: answers
    without an error, and with one; last_good [keys]: the last good answer of each, -1: none."""

    key: np.ndarray
    api_at: int
    starts: np.ndarray
    code: np.ndarray
    row: np.ndarray
    good: np.ndarray
    bad: np.ndarray
    last_good: np.ndarray

    def api(self, key: int) -> int:
        return int(self.key[key]) >> self.api_at & 0x3FF


def _in_order(capture: CaptureFrame, key: np.ndarray, api_at: int, code: np.ndarray, row: np.ndarray) -> _Answers:
    """Put answers in order: key, error and exchange of each."""
    answered = spill.take(capture.exchanges.response_end, row)
    if ((answered[1:] < answered[:-1]) | ((answered[1:] == answered[:-1]) & (row[1:] < row[:-1]))).any():
        in_time = np.lexsort((row, answered))
        key, code, row = (spill.take(values, in_time) for values in (key, code, row))
    known = spill.distinct(key)
    number = spill.compute(len(key), np.int32, lambda block: np.searchsorted(known, key[block]).astype(np.int32))
    groups = grouping.group(number)
    order, starts, ends = groups.order, groups.starts, groups.ends
    code, row = spill.take(code, order), spill.take(row, order)
    good, bad = spill.true_rows(code == 0), spill.true_rows(code != 0)
    last_good = np.append(good, -1)[np.searchsorted(good, ends) - 1]
    return _Answers(known, api_at, starts, code, row, good, bad, last_good)


def _runs(
    capture: CaptureFrame, key: np.ndarray, api_at: int, code: np.ndarray, row: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray, bool]]:
    """(key, error, its exchanges in order of time, cleared) of runs: answers with one error between two good ones of
    the same key, whose bits have the API from `api_at` on."""
    yield from _between_good(capture, _in_order(capture, key, api_at, code, row))


def _between_good(capture: CaptureFrame, answers: _Answers) -> Iterator[tuple[int, int, np.ndarray, bool]]:
    """Yield `_runs` of answers in order."""
    starts, code, bad = answers.starts, answers.code, answers.bad
    begins = np.zeros(len(code), np.bool_)
    begins[starts] = True
    begins = spill.take(begins, bad)
    begins[1:] |= bad[1:] != bad[:-1] + 1
    stretch = np.cumsum(begins, dtype=np.int32, out=spill.empty(len(bad), np.int32))
    # Between two good answers there may be errors of several kinds: a run each, in order of their first.
    runs = grouping.group(stretch, spill.take(code, bad))
    firsts, pasts = runs.starts, runs.ends
    places = spill.take(bad, runs.order)
    rows = spill.take(answers.row, places)
    of = np.searchsorted(starts, places[firsts], side="right") - 1
    codes, tries = code[places[firsts]], pasts - firsts
    since, until = (capture.exchanges.response_end[rows[at]] for at in (firsts, pasts - 1))
    pair = (answers.key[of] >> answers.api_at & 0x3FF) << 16 | codes.astype(np.int64) & 0xFFFF
    is_unknown = since == NULL  # how long it lasted is not known
    for value in arrow.distinct(pair).tolist():
        same_pair = np.flatnonzero(pair == value)
        api, error = value >> 16, int(codes[same_pair[0]])
        grace_s = judge(error, api_name(api)).grace_s
        is_unknown[same_pair] |= _asked_for(api, error) | _lasts(grace_s, tries[same_pair], (until - since)[same_pair])
    chosen = np.flatnonzero(is_unknown)
    for at in chosen[np.argsort(places[firsts[chosen]], kind="stable")].tolist():
        cleared = bool(answers.last_good[of[at]] > places[pasts[at] - 1])
        yield int(answers.key[of[at]]), int(codes[at]), rows[firsts[at] : pasts[at]], cleared


def _faults(
    capture: CaptureFrame, key: np.ndarray, api_at: int, code: np.ndarray, row: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray, bool, int | None]]:
    """(key, error, its exchanges in order of time, cleared, `Run.of`) of `_runs`, and of errors that alternate with
    good answers: all of an error, where they are a fifth of the answers or more."""
    answers = _in_order(capture, key, api_at, code, row)
    for run in _between_good(capture, answers):
        yield *run, None
    of = np.searchsorted(answers.starts, answers.bad, side="right") - 1
    same_error = grouping.group(of, spill.take(answers.code, answers.bad))
    for begin, end in zip(same_error.starts.tolist(), same_error.ends.tolist(), strict=True):
        if end - begin < TRIES:
            continue
        at = answers.bad[np.sort(same_error.order[begin:end])]
        number, error = int(of[same_error.order[begin]]), int(answers.code[at[0]])
        several, api = int(at[-1] - at[0]) + 1, answers.api(number)
        grace_s = judge(error, api_name(api)).grace_s
        alternates = int((np.diff(at) > 1).sum()) >= _TURNS and end - begin >= _SHARE * several
        if not alternates or not grace_s or _asked_for(api, error):
            continue
        refused = spill.take(answers.row, at)
        lasted = int(capture.exchanges.response_end[refused[-1]] - capture.exchanges.response_end[refused[0]])
        if _lasts(grace_s, len(refused), lasted):
            yield int(answers.key[number]), error, refused, bool(answers.last_good[number] > at[-1]), several


_TURNS: Final = 3
"""Times that good answers come between, so that errors alternate with them."""
_SHARE: Final = 0.2
"""Of the answers so many have an error where they are a fault, although each run is short."""


def _run(
    capture: CaptureFrame,
    client: int,
    api: int,
    code: int,
    thing: Thing,
    rows: np.ndarray,
    cleared: bool,
    of: int | None = None,
) -> Run:
    times = capture.exchanges.response_end[rows]
    known = times[times != NULL]
    since, until = (int(known.min()), int(known.max())) if len(known) else (capture.span[0], capture.span[0])
    return Run(int(client), int(api), int(code), thing, rows, since, until, cleared, of)


def _different(keys: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Distinct keys of some rows, ascending."""
    return spill.distinct(spill.compute(len(rows), np.int64, lambda block: keys(rows[block])))


@dataclass(frozen=True)
class Trouble:
    """Runs of one client, API, error and group or topic. places: the topic-partitions.

    What follows from all runs is worked out once: a rule tells of each place, and there may be as many places as runs.
    """

    client: int
    api: int
    code: int
    error: str
    thing: Thing
    topic_partitions: list[tuple[str, int]]
    runs: list[Run]

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """Distinct exchanges of all runs."""
        result: np.ndarray = arrow.distinct(np.concatenate([run.rows for run in self.runs]))
        return result

    @functools.cached_property
    def since(self) -> int:
        return min(run.since for run in self.runs)

    @functools.cached_property
    def until(self) -> int:
        return max(run.until for run in self.runs)

    @functools.cached_property
    def cleared(self) -> bool:
        return all(run.cleared for run in self.runs)

    @functools.cached_property
    def answers(self) -> int:
        """Number of answers with this error."""
        return len(self.rows)

    @functools.cached_property
    def of(self) -> int | None:
        """Number of answers in all, where good ones came between those with this error."""
        return self.runs[0].of if len(self.runs) == 1 else None

    @functools.cached_property
    def longest(self) -> int:
        """Duration of the longest run, us."""
        return max(run.until - run.since for run in self.runs)

    @functools.cached_property
    def evidence(self) -> tuple[int, ...]:
        """First, worst and last: worst is the last of the longest run."""
        rows = self.rows
        worst = max(self.runs, key=lambda run: (run.until - run.since, len(run.rows)))
        return int(rows[0]), int(worst.rows[-1]), int(rows[-1])


def together(some: list[Run]) -> list[Trouble]:
    """Group runs by client, API, error and subject, the partitions of a topic together."""
    parts: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in some:
        thing = run.thing
        parts[run.client, run.api, run.code, thing.group, thing.transaction, thing.topic].append(run)
    troubles = []
    for (client, api, code, group, transaction, topic), runs_of in parts.items():
        where = {(run.thing.topic or "", run.thing.partition) for run in runs_of if run.thing.partition is not None}
        places = sorted(where)
        several = any(run.thing.several for run in runs_of)
        thing = Thing(group, transaction, topic, topics=runs_of[0].thing.topics, several=several)
        troubles.append(Trouble(client, api, code, runs_of[0].error, thing, places, runs_of))
    return troubles
