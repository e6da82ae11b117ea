"""Reading: positions lost, logs that were cut, readers behind or stuck, sessions rebuilt, slow transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.findings import root_causes
from analyzer.findings.capture import SECOND, CaptureFrame, api_name
from analyzer.findings.error_answers import about, found, of, taken, times
from analyzer.findings.query import Severity
from analyzer.findings.rules import Found, Limits, rule
from analyzer.findings.runs import runs
from analyzer.findings.wording import client, count, lasting, name, place, size
from analyzer.frame import arrow, grouping, spill
from analyzer.frame.frame import NULL
from analyzer.frame.grouping import busiest_window, max_by, rows_by_key, sort_by, split
from analyzer.protocol import api_keys

_OUT_OF_RANGE = taken((api_keys.FETCH,), (1,), every=True)
_WRONG_LEADER = taken((api_keys.FETCH, api_keys.PRODUCE), (3, 6, 74, 75, 100))
_SESSIONS = taken((api_keys.FETCH,), (70, 71, 106), every=True)


@dataclass(frozen=True, slots=True)
class Reads:
    """Topic-partitions of Fetch exchanges, arrays with a value each, in order of their answers. part: row of
    `partitions`; owner: the exchange; place; at: the offset asked for; end: the high watermark; lag; size: record
    bytes. NULL where absent."""

    part: np.ndarray
    owner: np.ndarray
    place: np.ndarray
    at: np.ndarray
    end: np.ndarray
    stable: np.ndarray
    lag: np.ndarray
    size: np.ndarray
    time: np.ndarray

    def position(self) -> np.ndarray:
        """Where the reader stands after each answer."""

        def of_block(block: slice) -> np.ndarray:
            lag, end = self.lag[block], self.end[block]
            return np.where((lag != NULL) & (end != NULL), end - lag, self.at[block])

        return spill.compute(len(self.at), np.int64, of_block)


def reads(seen: CaptureFrame) -> Reads:
    """What was fetched. Worked out once."""
    if "reads" not in seen.memo:
        parts, table = seen.partitions, seen.table("partitions")
        chosen = seen.parts_of(api_keys.FETCH)
        owner = spill.take(parts.owner, chosen)
        times_, chosen, owner = sort_by(spill.take(seen.exchanges.answered, owner), chosen, owner)
        whole = table.together(("offset", "high_watermark", "last_stable_offset", "lag", "record_bytes"))
        at, end, stable, lag, size_ = (spill.take(values, chosen) for values in whole)
        place_ = spill.take(parts.place, chosen)
        seen.memo["reads"] = Reads(chosen, owner, place_, at, end, stable, lag, size_, times_)
    kept: Reads = seen.memo["reads"]
    return kept


def _empty_at_once(seen: CaptureFrame, quick_us: float) -> np.ndarray:
    """Fetch exchanges that were answered at once, without an error, a pause, or a record, though they might wait."""
    got = np.zeros(len(seen.exchanges) + 1, bool)  # the last is of topic-partitions without an exchange
    owner, size_ = seen.partitions.owner, seen.table("partitions")["record_bytes"]
    for block in spill.blocks(len(owner)):
        got[owner[block][size_[block] > 0]] = True
    rows = spill.where(
        len(seen.exchanges), lambda block: (seen.exchanges.api[block] == api_keys.FETCH) & ~got[:-1][block]
    )
    if not len(rows):
        return rows
    whole = seen.table("exchanges").together(("latency_us", "max_wait_ms", "min_bytes", "throttle_us"))
    latency, wait, least, pause = (spill.take(values, rows) for values in whole)
    quick: np.ndarray = rows[
        (seen.exchanges.error[rows] == 0)
        & (latency >= 0)
        & (latency < quick_us)
        & (wait > 0)
        & (least >= 1)
        & (pause <= 0)
    ]
    return quick


@rule(
    "fetch",
    "fetch-above-high-watermark",
    "error",
    "lab-consumer (10.0.0.4) reads rep-0 at 559 while the log is readable to 554: 29,693 empty answers, none of them "
    "held.",
    why="An offset between the high watermark and the end of the log is no error, and the broker answers at once: "
    "fifty such answers in a second are a client that spins. A reader one heartbeat behind clears by itself.",
    unless="Fewer than fifty in a second on one connection; the answers were held, or held records. A note: it passed "
    "within a second, as where a leader moved to a replica that had not heard of the watermark yet.",
    advice="Wait for the watermark after an unclean restart or with follower fetching (KIP-392); else reset the "
    "position. The client should back off.",
    judge="cluster-kraft-3.9 (29,693 answers); forged: 50 in a second at an offset above, and 49; a reader that "
    "goes on within the second",
    answers=50,
    quick_ms=5,
    by_clock=True,
)
def above_watermark(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    yield from _spins(seen, at.answers, at.quick_ms, above=True)


@rule(
    "fetch",
    "fetch-spin",
    "warning",
    "lab-consumer (10.0.0.4) got 400 empty answers to Fetch from 10.0.0.1:9092 in a second, none of them held.",
    why="A hundred a second is no long poll.",
    unless="max_wait or min_bytes is 0 (then the client wants no waiting); an offset above the high watermark explains "
    "it.",
    advice="Look at the session: no partitions left, a preferred replica that bounces, a forgotten partition.",
    judge="forged: 100 in a second, and 99",
    answers=100,
    quick_ms=5,
    by_clock=True,
)
def spin(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    yield from _spins(seen, at.answers, at.quick_ms, above=False)


def _spins(seen: CaptureFrame, answers: float, quick_ms: float, above: bool) -> Iterator[Found]:
    quick = _empty_at_once(seen, quick_ms * 1000)
    spinning = []
    for rows in split(quick, seen.exchanges.link[quick], least=answers):
        when = seen.exchanges.answered[rows]
        rows, when = rows[np.argsort(when, kind="stable")], np.sort(when)
        most, first, past = busiest_window(when, SECOND)
        if most >= answers:
            spinning.append((int(seen.exchanges.link[rows[0]]), rows, when, most, (first, past - 1)))
    if not spinning:
        return
    asked_of = _Asked(seen, [link for link, *_ in spinning])
    for link, rows, when, most, (first, last) in spinning:
        beyond = asked_of.beyond(link, int(when[last]))
        if above != (beyond is not None):
            continue
        who = seen.who(link=link)
        places = int(rows[0]), int(rows[first]), int(rows[-1])
        if beyond is None:
            text = f"{client(who)} got {most:,} empty answers to Fetch from {who['broker']} in a second, none of them "
            text += "held."
            yield Found(text, len(rows), int(when[0]), int(when[-1]), who, {"api": "Fetch"}, places)
            continue
        where, asked, end, then = beyond
        passed = then >= asked and when[-1] - when[0] < SECOND
        text = f"{client(who)} reads {place(where)} at {asked:,} while the log is readable to {end:,}: {len(rows):,} "
        text += "empty "
        yield Found(
            f"{text}answers, none of them held.",
            len(rows),
            int(when[0]),
            int(when[-1]),
            who,
            {"topic": where[0], "partition": str(where[1]), "api": "Fetch"},
            places,
            cause="its offset lies between the high watermark and the end of the log",
            proven=True,
            severity="note" if passed else None,
        )


class _Asked:
    """What some connections asked for, and how far the logs of these topic-partitions were readable."""

    def __init__(self, seen: CaptureFrame, links: list[int]) -> None:
        self._seen = seen
        read = reads(seen)
        link = spill.take(seen.exchanges.link, read.owner)
        mine = spill.where(len(link), lambda block: arrow.among(link[block], links) & (read.at[block] != NULL))
        self._asked = _courses(read, mine, read.at, link)
        self._places: dict[int, list[int]] = defaultdict(list)
        for one, where in self._asked:
            self._places[one].append(where)
        wanted = arrow.distinct(spill.take(read.place, mine))
        told = spill.where(len(link), lambda block: arrow.among(read.place[block], wanted) & (read.end[block] >= 0))
        self._ends = _courses(read, told, read.end, None)

    def beyond(self, link: int, time: int) -> tuple[tuple[str, int], int, int, int] | None:
        """Of a connection's session a partition whose offset asked for lies above the high watermark: what was asked,
        and the watermark, as last told before or at that time, and a second later."""
        for where in self._places[link]:
            asked = self._asked[link, where].last(time)
            end = self._ends[0, where].last(time) if (0, where) in self._ends else None
            if asked is not None and end is not None and asked > end:
                return self._seen.places[where], asked, end, self._ends[0, where].last(time + SECOND) or end
        return None


@dataclass(frozen=True, slots=True)
class _Course:
    """Values that were told one after the other, and when (us), in order."""

    times: np.ndarray
    values: np.ndarray

    def last(self, time: int, and_then: bool = True) -> int | None:
        """What was told last before that time, or then."""
        at = int(np.searchsorted(self.times, time, side="right" if and_then else "left"))
        return int(self.values[at - 1]) if at else None


def _courses(
    read: Reads, rows: np.ndarray, values: np.ndarray, whose: np.ndarray | None
) -> dict[tuple[int, int], _Course]:
    """Values of some reads, by whose they are (`whose` has a number for each read; None: all are 0's) and place; of
    those that were answered, for what was asked last is no beginning."""
    rows = rows[spill.take(read.time, rows) != NULL]
    mine = np.zeros(len(rows), np.int8) if whose is None else spill.take(whose, rows)
    place_ = spill.take(read.place, rows)
    groups = grouping.group(mine, place_)
    order, starts, ends = groups.order, groups.starts, groups.ends
    heads = order[starts]
    keys = zip(mine[heads].tolist(), place_[heads].tolist(), strict=True)
    rows = spill.take(rows, order)
    times_, values = spill.take(read.time, rows), spill.take(values, rows)
    each = zip(keys, starts.tolist(), ends.tolist(), strict=True)
    return {key: _Course(times_[start:end], values[start:end]) for key, start, end in each}


@rule(
    "fetch",
    "offset-out-of-range",
    "error",
    "g-app (10.0.0.4) lost its place in t-3: asked 100, goes on at 5,000: 4,900 records skipped.",
    why="One event is data. Skipped records are an error, read again a warning.",
    unless="The client was not seen to stand there before, nor told to: a tool at an offset of its choice (a note); "
    "the offset that it asked for was not captured (a note); the topic was made anew, as its ids say: then its offsets "
    "are others (a note).",
    advice="Retention against the time that consumers are down; auto.offset.reset on purpose.",
    judge="forged: a reader beyond the start, thrown back; errors-librdkafka-4.3, old-java-0.10.2 (first fetch)",
    by_clock=True,
)
def out_of_range(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    troubles = of(seen, _OUT_OF_RANGE, lasting=False)
    if not troubles:
        return
    read = reads(seen)
    numbers = _numbers_of(seen, {where for trouble in troubles for where in trouble.places})
    known = spill.where(len(read.place), lambda block: arrow.among(read.place[block], list(numbers.values())))
    whose = spill.take(seen.client, spill.take(read.owner, known))
    rows_of = rows_by_key(known, whose, spill.take(read.place, known))
    told = _told(seen, list(numbers.values()))
    for trouble in troubles:
        for where in trouble.places:
            reader = trouble.client, numbers[where]
            mine = rows_of.get(reader, trouble.rows[:0])
            refused = arrow.among_ordered(read.owner[mine], trouble.rows)
            if not refused.any():
                continue
            if seen.mixed[trouble.client]:  # what others ask for is no place of it
                link = seen.exchanges.link[read.owner[mine]]
                ours = link == link[refused.argmax()]
                mine, refused = mine[ours], refused[ours]
            moves = _moves(seen, mine, refused, told.get(reader, ()))
            worst = max(moves, key=lambda one: (one.stood, one.skipped, one.again))
            text = f"{client(seen.who(trouble.client))} lost its place in {place(where)}: asked "
            text += f"{worst.asked:,}" if worst.asked is not None else "for an offset that was not captured"
            anew = where[0] in seen.remade
            if worst.then is None:
                text += ", and was not seen to go on."
            elif worst.asked is None or anew:
                text += f", goes on at {worst.then:,}."
            elif worst.skipped:
                text += f", goes on at {worst.then:,}: {count(worst.skipped, 'record')} skipped."
            else:
                text += f", goes on at {worst.then:,}: {count(worst.again, 'record')} may be read again."
            if len(moves) > 1:
                skipped, again = (sum(getattr(one, name) for one in moves) for name in ("skipped", "again"))
                both = [f"{count(skipped, 'record')} skipped"] * bool(skipped)
                both += [f"{count(again, 'record')} that may be read again"] * bool(again)
                text += f" It did so {len(moves):,} times" + f", {' and '.join(both)} in all" * bool(both and not anew)
                text += "."
            severity: Severity | None = "note" if not worst.stood else None if worst.skipped else "warning"
            cause = "the log begins later" if worst.skipped else None
            if anew:
                severity, cause = "note", "the topic was made anew"
            yield found(seen, trouble, text, severity, cause, False if cause else None)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A reader that was out of range: the offset it asked for, None where that was not captured, and where it goes on,
    None where that was not seen; whether it had stood there; how many records it skipped, or may read again."""

    asked: int | None
    then: int | None
    stood: bool

    @property
    def skipped(self) -> int:
        return 0 if self.asked is None or self.then is None else max(self.then - self.asked, 0)

    @property
    def again(self) -> int:
        return 0 if self.asked is None or self.then is None else max(self.asked - self.then, 0)


def _moves(seen: CaptureFrame, mine: np.ndarray, refused: np.ndarray, told: np.ndarray | tuple[()]) -> list[_Moved]:
    """What became of each place that a reader lost: of its reads (`mine`), in order, those that were `refused`, one
    after the other. `told`: as `_told`."""
    read = reads(seen)
    at, asked = read.at[mine], seen.exchanges.asked[read.owner[mine]]
    answered = seen.exchanges.answered[read.owner[mine]]
    stood, first = np.unique(read.position()[mine], return_index=True)
    good = np.flatnonzero((seen.partitions.error[read.part[mine]] == 0) & (at != NULL))
    begins = np.flatnonzero(refused & ~np.append(False, refused[:-1]))
    ends = np.flatnonzero(refused & ~np.append(refused[1:], False))
    made = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        lost = int(at[begin])
        known = int(np.searchsorted(stood, lost))
        there = known < len(stood) and stood[known] == lost and first[known] < begin
        # An answer that was held when it lost its place says nothing of where it goes on.
        later = iter(good[np.searchsorted(good, end) :])
        then = next((int(at[one]) for one in later if asked[one] >= answered[end]), None)
        made.append(_Moved(lost if lost != NULL else None, then, lost != NULL and bool(there or lost in told)))
    return made


def _numbers_of(seen: CaptureFrame, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The numbers of some topic-partitions."""
    numbers: dict[tuple[str, int], int] = {}
    for number, where in enumerate(seen.places):
        if where in wanted:
            numbers.setdefault(where, number)
    return numbers


def _told(seen: CaptureFrame, places: list[int]) -> dict[tuple[int, ...], np.ndarray]:
    """By client and topic-partition, of these: where the client was told, or said itself, that it stands."""
    parts, offset = seen.partitions, seen.table("partitions")["offset"]
    apis = api_keys.OFFSET_FETCH, api_keys.OFFSET_COMMIT, api_keys.LIST_OFFSETS

    def are_of_groups(block: slice) -> Any:
        there = arrow.among(parts.place[block], places) & (offset[block] != NULL)
        return there & arrow.among(seen.api_of(parts.owner[block]), apis)

    rows = spill.where(len(offset), are_of_groups)
    return rows_by_key(spill.take(offset, rows), seen.client[parts.owner[rows]], spill.take(parts.place, rows))


@rule(
    "fetch",
    "log-truncated",
    "error",
    "t-2 lost records that were acknowledged: offset 440 was given twice, by 10.0.0.1:9092 and then by 10.0.0.2:9092.",
    why="A log that grows gives an offset once; the high watermark of one replica never falls.",
    unless="The topic was made anew (it begins at 0, its leader epoch does not rise, or its ids say so); the same "
    "batch was sent again to the next leader, which knows it.",
    advice="unclean.leader.election.enable (off by default), and writers with acks=1.",
    judge="forged: two brokers that give the same offset, and to a batch that is sent again; a log that ends before "
    "where its reader stands, as Fetch or OffsetForLeaderEpoch says, and one that ends there",
    by_clock=True,
)
def truncated(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if len(seen.brokers) > 1:
        yield from _of_one_topic(seen, _given_twice(seen))
    yield from _of_one_topic(seen, _fallen(seen))
    yield from _of_one_topic(seen, _diverged(seen))


def _of_one_topic(seen: CaptureFrame, cuts: Iterator[Found]) -> Iterator[Found]:
    """Those of topics that were not made anew: another topic of that name begins again."""
    return (one for one in cuts if one.what["topic"] not in seen.remade)


def _given_twice(seen: CaptureFrame) -> Iterator[Found]:
    """Offsets that one broker gave, and then another."""
    table, parts = seen.table("partitions"), seen.partitions
    offset, records = table.together(("offset", "record_count"))

    def are_given(block: slice) -> Any:
        of_produce = seen.api_of(parts.owner[block]) == api_keys.PRODUCE
        return of_produce & (parts.error[block] == 0) & (offset[block] != NULL)

    rows = spill.where(len(offset), are_given)
    owner, place_ = spill.take(parts.owner, rows), spill.take(parts.place, rows)
    rows = rows[_several(place_, spill.take(seen.broker, owner), len(seen.places))]
    groups = grouping.group(parts.place[rows], seen.exchanges.answered[parts.owner[rows]])
    order, starts, ends = groups.order, groups.starts, groups.ends
    del starts, ends
    rows = rows[order]
    same = parts.place[rows[1:]] == parts.place[rows[:-1]]
    brokers = seen.broker[parts.owner[rows]]
    moved = same & (brokers[1:] != brokers[:-1])
    for at_ in np.flatnonzero(moved).tolist():
        first, again = int(rows[at_]), int(rows[at_ + 1])
        given = int(offset[first]) + max(int(records[first]), 1)
        repeated = offset[again] == offset[first] and records[again] == records[first]
        # A batch that is sent again to the next leader gets its old offset; a topic made anew begins at 0.
        if 0 < int(offset[again]) < given and not repeated:
            topic, partition = seen.places[parts.place[first]]
            one, two = int(parts.owner[first]), int(parts.owner[again])
            text = f"{place((topic, partition))} lost records that were acknowledged: offset {int(offset[again]):,} "
            text += "was "
            text += f"given twice, by {seen.brokers[seen.broker[one]]} and then by {seen.brokers[seen.broker[two]]}."
            yield Found(
                text,
                given - int(offset[again]),
                int(seen.exchanges.answered[one]),
                int(seen.exchanges.answered[two]),
                seen.who(broker=int(seen.broker[two])),
                {"topic": topic, "partition": str(partition)},
                (one, two, two),
                cause="a leader that had not all records",
                proven=True,
            )


def _several(place_: np.ndarray, values: np.ndarray, places: int) -> np.ndarray:
    """bool[n]: rows of those topic-partitions that have more than one value."""
    one, more = np.zeros(places, values.dtype), np.zeros(places, np.bool_)
    one[place_] = values  # of what is written twice one stays
    for block in spill.blocks(len(place_)):
        some = place_[block]
        more[some[values[block] != one[some]]] = True
    return spill.take(more, place_)


def _diverged(seen: CaptureFrame) -> Iterator[Found]:
    """Readers that were told that the log ends before where they stood: by Fetch (`divergingEpoch`), or by
    OffsetForLeaderEpoch (KIP-320). Replicas are told so in the course of things."""
    diverging = seen.table("partitions")["diverging_offset"]
    if diverging.max(initial=NULL) == NULL and not len(seen.of_api(api_keys.OFFSET_FOR_LEADER_EPOCH)):
        return
    offset, parts = seen.table("partitions")["offset"], seen.partitions

    def told(block: slice) -> np.ndarray:
        of_epochs = seen.api_of(parts.owner[block]) == api_keys.OFFSET_FOR_LEADER_EPOCH
        ends = of_epochs & (parts.error[block] == 0) & (offset[block] >= 0)
        return np.where(ends, offset[block], diverging[block])

    ends = spill.compute(len(offset), np.int64, told)
    rows = spill.true_rows((parts.owner >= 0) & (ends != NULL))
    rows = rows[~(seen.between_brokers | seen.mixed)[seen.client[parts.owner[rows]]]] if len(rows) else rows
    stood_at = _stood(seen, parts.place[rows]) if len(rows) else {}
    worst: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in rows.tolist():
        owner, where = int(parts.owner[row]), int(parts.place[row])
        client_, time = int(seen.client[owner]), int(seen.exchanges.answered[owner])
        course = stood_at.get((client_, where))
        last = course.last(time, and_then=False) if course is not None else None
        stood = last if last is not None else int(offset[row]) if diverging[row] != NULL else NULL
        if stood != NULL and stood - int(ends[row]) > worst.get((client_, where), (0, 0, 0))[0]:
            worst[client_, where] = stood - int(ends[row]), stood, owner
    for (client_, where), (gone, stood, owner) in worst.items():
        topic, partition = seen.places[where]
        who, time = seen.who(client_, int(seen.broker[owner])), int(seen.exchanges.answered[owner])
        text = f"{place((topic, partition))} was cut: {client(who)} had read to {stood:,}, and {count(gone, 'record')} "
        yield Found(
            f"{text}of that no longer exist.",
            gone,
            time,
            time,
            who,
            {"topic": topic, "partition": str(partition)},
            (owner,),
            cause="a leader that had not all records",
            proven=True,
        )


def _stood(seen: CaptureFrame, places: np.ndarray) -> dict[tuple[int, int], _Course]:
    """By client and topic-partition, of these, where the client stood after each answer."""
    read = reads(seen)
    position, wanted = read.position(), arrow.distinct(places)
    known = spill.where(len(position), lambda block: arrow.among(read.place[block], wanted) & (position[block] != NULL))
    return _courses(read, known, position, spill.take(seen.client, read.owner))


def _fallen(seen: CaptureFrame) -> Iterator[Found]:
    """High watermarks that one broker told, and that fell with a higher leader epoch."""
    epoch = seen.table("partitions")["leader_epoch"]
    if epoch.max(initial=NULL) < 0:
        return
    read = reads(seen)
    known = spill.where(len(read.end), lambda block: (read.end[block] >= 0) & (epoch[read.part[block]] >= 0))
    epochs = spill.take(epoch, spill.take(read.part, known))
    known = known[_several(spill.take(read.place, known), epochs, len(seen.places))]
    broker = seen.broker[read.owner[known]]
    order = grouping.group(read.place[known], broker, read.time[known]).order
    rows, servers = known[order], broker[order]
    same = (read.place[rows[1:]] == read.place[rows[:-1]]) & (servers[1:] == servers[:-1])
    later = epoch[read.part[rows[1:]]] > epoch[read.part[rows[:-1]]]
    fell = same & later & (read.end[rows[1:]] < read.end[rows[:-1]])
    for at in np.flatnonzero(fell).tolist():
        first, again = int(rows[at]), int(rows[at + 1])
        topic, partition = seen.places[read.place[first]]
        gone = int(read.end[first] - read.end[again])
        text = f"{place((topic, partition))} was cut: {count(gone, 'record')} that could be read to "
        text += f"{int(read.end[first]):,} "
        text += "no longer exist."
        yield Found(
            text,
            gone,
            int(read.time[first]),
            int(read.time[again]),
            seen.who(broker=int(servers[at])),
            {"topic": topic, "partition": str(partition)},
            (int(read.owner[first]), int(read.owner[again])),
        )


@rule(
    "fetch",
    "lag-grows",
    "warning",
    "g-app (10.0.0.4) falls behind on t-1: from 12,000 to 480,000 records in 5.0 min.",
    why="Ten windows of ten seconds rule out bursts; 10,000 records, or a minute of what the topic gets, are more "
    "than a batch or two.",
    unless="The lag falls in more than a fifth of the windows (a reader that starts from the beginning catches up).",
    advice="More consumers or partitions, faster processing; look for throttling.",
    judge="forged: eleven windows of rising lag, and ten; a reader that catches up",
    window_s=10,
    windows=10,
    share=0.8,
    records=10_000,
    seconds=60,
    by_clock=True,
)
def lag_grows(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    width = int(at.window_s * SECOND)
    if seen.span[1] - seen.span[0] < at.windows * width:
        return
    read = reads(seen)
    known = spill.true_rows(read.lag >= 0)  # NULL is below
    clients = spill.take(seen.client, spill.take(read.owner, known))
    for mine in split(known, clients, spill.take(read.place, known)):
        if seen.mixed[seen.client[read.owner[mine[0]]]]:
            continue
        if len(mine) <= at.windows or read.time[mine[-1]] - read.time[mine[0]] < at.windows * width:
            continue
        window = (read.time[mine] - read.time[mine[0]]) // width
        last = mine[np.append(window[1:] != window[:-1], True)]
        lag = read.lag[last]
        steps = np.diff(lag)
        grown = int(read.end[last[-1]] - read.end[last[0]])
        spent = (int(read.time[last[-1]]) - int(read.time[last[0]])) / SECOND
        much = lag[-1] >= at.records or (grown > 0 and lag[-1] >= at.seconds * grown / max(spent, 1))
        if len(steps) < at.windows or (steps > 0).sum() < at.share * len(steps) or not much:
            continue
        topic, partition = seen.places[read.place[mine[0]]]
        who = seen.who(int(seen.client[read.owner[mine[0]]]))
        text = f"{client(who)} falls behind on {place((topic, partition))}: from {int(lag[0]):,} to {int(lag[-1]):,} "
        rows = int(read.owner[last[0]]), int(read.owner[last[lag.argmax()]]), int(read.owner[last[-1]])
        yield Found(
            f"{text}records in {lasting(spent * SECOND)}.",
            int(lag[-1]),
            int(read.time[last[0]]),
            int(read.time[last[-1]]),
            who,
            {"topic": topic, "partition": str(partition)},
            rows,
        )


@rule(
    "fetch",
    "partition-stuck",
    "warning",
    "g-app (10.0.0.4) stands at 900 in t-4 for 6 min, while its end moved on to 40,000 and other partitions advance.",
    why="60 s are 120 long polls of 500 ms.",
    unless="The client reads nothing else meanwhile (then it is the client); the log did not grow; the last stable "
    "offset holds it (hanging-transaction); the partition is no part of its fetch session any more (another member may "
    "have it). Time counts from the end of the last rebalance of its group.",
    advice="Paused by the application, a record that it cannot process, or an assignment that was lost.",
    judge="forged: a partition that is asked for at one offset for 61 s, and for 59 s",
    stuck_s=60,
    by_clock=True,
)
def stuck(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    if seen.span[1] - seen.span[0] < at.stuck_s * SECOND:
        return
    read = reads(seen)
    position = read.position()
    ends, followed, rebalanced = _last_ends(seen), _followed(seen), _rebalanced(seen)
    latest = np.full(len(seen.clients), NULL)
    for block in spill.blocks(len(read.owner)):
        moved = block.start + np.flatnonzero(read.size[block] > 0)
        latest[seen.client[read.owner[moved]]] = read.time[moved]  # they come in order of time
    for mine in split(None, spill.take(seen.client, read.owner), read.place):
        mine = mine[(position[mine] != NULL) & (read.time[mine] != NULL)]  # no answer, no moment
        if not len(mine) or (seen.between_brokers | seen.mixed)[seen.client[read.owner[mine[0]]]]:
            continue
        who_ = int(seen.client[read.owner[mine[0]]])
        here = int(position[mine[-1]])
        same = mine[position[mine] == here]
        since = max(int(read.time[same[0]]), rebalanced.get(seen.clients[who_], NULL))
        where = seen.places[read.place[mine[0]]]
        # As long as the partition is part of the client's session: then somebody else may have it.
        until = min(max(int(latest[who_]), since), max(int(read.time[mine[-1]]), followed.get((who_, where), 0)))
        end = ends.get(where, here)
        held = int(read.stable[mine[-1]])
        if until - since < at.stuck_s * SECOND or end <= here or 0 <= held <= here:
            continue
        who = seen.who(who_)
        text = f"{client(who)} stands at {here:,} in {place(where)} for {lasting(until - since)}, while its end moved "
        text += "on to "
        again = int(((read.size[same] > 0) & (read.at[same] == read.at[same[-1]])).sum())
        cause = f"it got the same records {again:,} times and asks for them again" if again >= _AGAIN else None
        yield Found(
            f"{text}{end:,} and other partitions advance.",
            end - here,
            since,
            until,
            who,
            {"topic": where[0], "partition": str(where[1])},
            (int(read.owner[same[0]]), int(read.owner[mine[-1]])),
            cause=cause,
            proven=True if cause else None,
        )


_AGAIN = 3


def _rebalanced(seen: CaptureFrame) -> dict[tuple[str, str | None], int]:
    """By client (address and id) when the last rebalance of one of its groups ended."""
    table = seen.table("rebalances")
    last: dict[str, int] = {}
    for row in table.every(["group_id", "began", "ended"]) if len(table) else ():
        last[row["group_id"]] = max(last.get(row["group_id"], NULL), row["ended"] or row["began"] or NULL)
    if not last:
        return {}
    rows = seen.table("clients").every(["client_ip", "client_id", "group_ids"])
    return {
        (row["client_ip"], row["client_id"]): max([NULL, *(last.get(group, NULL) for group in row["group_ids"] or ())])
        for row in rows
    }


def _followed(seen: CaptureFrame) -> dict[tuple[int, tuple[str, int]], int]:
    """By client and topic-partition the last moment at which it was part of a fetch session of the client."""
    table = seen.table("readers")
    link = seen.links_of(table)
    place_, places = seen.placed(table)
    last: dict[tuple[int, tuple[str, int]], int] = {}
    for at, where, time in zip(link.tolist(), place_.tolist(), table["to_time"].tolist(), strict=True):
        if 0 <= at < len(seen.links) and time != NULL:
            key = int(seen.client_of[at]), places[where]
            last[key] = max(last.get(key, time), time)
    return last


def _last_ends(seen: CaptureFrame) -> dict[tuple[str, int], int]:
    """Of each topic-partition the end of its log as anybody was last told."""
    table, parts = seen.table("partitions"), seen.partitions
    end, offset, records = table.together(("high_watermark", "offset", "record_count"))
    last = np.full(len(seen.places), -1, np.int64)
    for block in spill.blocks(len(end)):
        written = (seen.api_of(parts.owner[block]) == api_keys.PRODUCE) & (parts.error[block] == 0)
        after = offset[block] + np.maximum(records[block], 0)
        known = np.where(written & (offset[block] >= 0), after, end[block])
        last = np.maximum(last, max_by(parts.place[block], known, len(last), -1))
    return {seen.places[number]: int(value) for number, value in enumerate(last.tolist()) if value >= 0}


@rule(
    "fetch",
    "fetch-session-churn",
    "warning",
    "Fetch sessions of g-app (10.0.0.4) were lost 40 times in 2.0 min at 10.0.0.1:9092.",
    why="A broker keeps 1,000 sessions and drops what was unused for two minutes: a few a second over a large cluster "
    "are usual, ten a minute of one client are not.",
    unless="Fewer than twenty in two minutes; within ten seconds of a lost broker or a moved leader.",
    advice="max.incremental.fetch.session.cache.slots, or a client that mixes up its sessions.",
    judge="forged: twenty lost sessions in two minutes, and nineteen",
    losses=20,
    window_s=120,
)
def session_churn(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    lost: dict[int, list[int]] = defaultdict(list)
    for run in runs(seen):
        if _SESSIONS(run) and not seen.mixed[run.client]:
            lost[run.client] += run.rows.tolist()
    for client_, some in lost.items():
        rows = np.array(sorted(some), np.int64)
        if len(rows) >= at.losses:
            rows = rows[~root_causes.near_each(seen, seen.exchanges.answered[rows])]
        when = np.sort(seen.exchanges.answered[rows])
        most, first, past = busiest_window(when, int(at.window_s * SECOND))
        if most >= at.losses:
            who = seen.who(client_, int(seen.broker[rows[0]]))
            text = f"Fetch sessions of {client(who)} were lost {count(most, 'time')} in "
            text += f"{lasting(at.window_s * SECOND)} at "
            yield Found(
                f"{text}{who['broker']}.",
                most,
                int(when[first]),
                int(when[past - 1]),
                who,
                {"api": "Fetch"},
                (int(rows[0]), int(rows[0]), int(rows[-1])),
            )


@rule(
    "fetch",
    "no-fetch-sessions",
    "note",
    "svc-a (10.0.0.4) fetches without sessions: 1,200 requests name some 240 partitions each, 12.1 MB in all.",
    why="In a session (KIP-227, Fetch 7 and later) a request names what has changed. Without one each names every "
    "partition again, and client and broker go through all of them: of a few nobody notices, of hundreds both do.",
    unless="Fewer than 100 partitions a request on average, fewer than 100 requests, or less than a megabyte of them; "
    "some had a session, or were of an older version; the meaning of the traffic was left out (--no-meaning).",
    advice="Fewer partitions a consumer, or a client that has sessions (Java's; librdkafka has none). If its kind does "
    "have them, the broker had no slot free (max.incremental.fetch.session.cache.slots).",
    judge="a librdkafka consumer of 400 partitions at Kafka 4.3; forged: 100 requests for 100 partitions, and for 99; "
    "with a session",
    partitions=100,
    requests=100,
    bytes=1_000_000,
)
def sessionless(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    owner, clients = seen.partitions.owner, len(seen.clients)
    if len(owner) < at.requests * at.partitions or not _has_runs(owner, int(at.partitions)):
        return
    rows = seen.of_one(seen.of_api(api_keys.FETCH))
    if len(rows) < at.requests:
        return
    client_of_row = spill.take(seen.client, rows)
    requests = np.bincount(client_of_row, minlength=clients)
    named = np.zeros(clients, np.int64)
    for block in spill.blocks(len(owner)):
        mine = owner[block][seen.api_of(owner[block]) == api_keys.FETCH]
        named += np.bincount(seen.client[mine], minlength=clients)
    many = (requests >= at.requests) & (named >= at.partitions * requests) & ~seen.between_brokers
    if not many.any():
        return
    many[client_of_row[spill.take(seen.exchanges.version, rows) < _WITH_SESSIONS]] = False
    table = seen.table("readers")
    reader, session = seen.links_of(table), table.numbers("session_id", np.int32)
    reads_ = np.bincount(seen.client_of[reader[reader >= 0]], minlength=clients)
    many[seen.client_of[reader[(reader >= 0) & (session > 0)]]] = False
    rows = rows[(many & (reads_ > 0))[client_of_row]]
    for some in split(rows, seen.client[rows]):
        asked = sum(
            int(np.maximum(arrow.numbers(part.column(0).combine_chunks(), 0), 0).sum())
            for _, part in seen.table("exchanges").chosen(some, ["request_bytes"])
        )
        if asked < at.bytes:
            continue
        client_ = int(seen.client[some[0]])
        who, each = seen.who(client_), round(int(named[client_]) / len(some))
        text = f"{client(who)} fetches without sessions: {count(len(some), 'request')} name some {each:,} partitions "
        yield Found(
            f"{text}each, {size(asked)} in all.",
            len(some),
            int(seen.exchanges.asked[some].min()),
            int(seen.exchanges.asked[some].max()),
            who,
            {"api": "Fetch", "bytes": str(asked)},
            tuple(some[[0, 0, -1]].tolist()),
        )


_WITH_SESSIONS = 7
"""Fetch versions from which there are sessions."""


def _has_runs(owner: np.ndarray, least: int) -> bool:
    """Does an exchange have so many topic-partitions? Those of one stand together. Where none does, no average is as
    high, and that is seen in a tenth of the time."""
    apart = max(least, 1) - 1
    starts = spill.blocks(max(len(owner) - apart, 0))
    return any((owner[one] == owner[one.start + apart : one.stop + apart]).any() for one in starts)


@rule(
    "fetch",
    "wrong-leader-fetch",
    "warning",
    "g-app (10.0.0.4) kept asking 10.0.0.1:9092 for t-2 for 40.0 s (NOT_LEADER_OR_FOLLOWER (6), 12 times, 10:01:03 to "
    "10:01:43).",
    why="Clients refresh their metadata after 0.1 to 1 s; leader changes cleared within 0.12 s in captures.",
    unless="It passed within 5 s and ten answers; a broker's loss or a moved leader explains it.",
    advice="advertised.listeners, stale metadata (metadata.max.age.ms).",
    judge="forged: ten such answers over 2 s, and nine",
)
def wrong_leader(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    for trouble in of(seen, _WRONG_LEADER):
        who = seen.who(trouble.client, int(seen.broker[trouble.rows[-1]]))
        text = f"{client(who)} kept asking {who['broker']}{about(trouble)} by {api_name(trouble.api)} for "
        text += f"{lasting(trouble.longest)} ({trouble.error}, {times(trouble)})."
        yield found(seen, trouble, text)


@rule(
    "fetch",
    "slow-transfer",
    "warning",
    "10.0.0.1:9092 needed 6.0 s to send 50.0 MB to g-app (10.0.0.4), 8.3 MB a second (3 answers).",
    why="10 MB a second is below 100 Mbit/s; answers of Fetch of up to 50 MB are the default.",
    unless="The transfer took under a second; brokers among themselves, whose replication may be throttled.",
    advice="The reader, its window, the path between.",
    judge="forged: 5 MB in 1.5 s, and 20 MB",
    transfer_s=1,
    rate=10_000_000,
)
def slow_transfer(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    rows, began = seen.exchanges, seen.column("response_time")
    least = at.transfer_s * SECOND

    def are_slow(block: slice) -> Any:
        known = (began[block] != NULL) & (rows.answered[block] != NULL)
        return known & (rows.answered[block] - began[block] >= least)

    slow = spill.where(len(rows), are_slow)
    if not len(slow):
        return
    sent = seen.column("response_bytes")
    slow = slow[(sent[slow] * SECOND < at.rate * (rows.answered[slow] - began[slow])) & (sent[slow] > 0)]
    slow = slow[~seen.between_brokers[seen.client[slow]]]
    for mine in split(slow, seen.client[slow], seen.broker[slow]):
        took = rows.answered[mine] - began[mine]
        worst, longest = int(mine[took.argmax()]), int(took.max())
        who = seen.who(int(seen.client[worst]), int(seen.broker[worst]))
        text = f"{who['broker']} needed {lasting(longest)} to send {size(int(sent[worst]))} to {client(who)}, "
        text += f"{size(int(sent[worst]) * SECOND / longest)} a second ({count(len(mine), 'answer')})."
        yield Found(
            text,
            len(mine),
            int(began[mine].min()),
            int(rows.answered[mine].max()),
            who,
            {"api": api_name(int(rows.api[worst]))},
            (int(mine[0]), worst, int(mine[-1])),
        )


@rule(
    "fetch",
    "down-conversion",
    "warning",
    "10.0.0.1:9092 converts t for legacy (10.0.0.4), which fetches with version 2: 30.0 MB.",
    why="Any rate is a copy through the heap (KIP-283); gone in 4.0.",
    unless="The topic's batches are of the old format themselves.",
    advice="Upgrade the client.",
    judge="forged: Fetch v2 of a topic that is written with v3 and later; and one that is not",
)
def down_conversion(seen: CaptureFrame, at: Limits) -> Iterator[Found]:
    table = seen.table("batches")
    if not len(table):
        return
    magic = table["magic"]
    if not (magic < 2).any():
        return
    owner = seen.owners(table)
    (where, places), amount = seen.placed(table), table["batch_bytes"]
    valid = np.flatnonzero(owner >= 0)
    fresh = {places[number][0] for number in arrow.distinct(where[valid[magic[valid] == 2]]).tolist()}
    api, version = seen.exchanges.api[owner[valid]], seen.exchanges.version[owner[valid]]
    old = valid[(api == api_keys.FETCH) & (version <= 3) & (magic[valid] < 2)]
    found_: dict[tuple[int, str], list[int]] = defaultdict(list)
    for batch in old.tolist():
        topic = places[where[batch]][0]
        if topic in fresh:
            found_[int(seen.client[owner[batch]]), topic].append(batch)
    for (client_, topic), some in found_.items():
        rows = [int(owner[batch]) for batch in some]
        who = seen.who(client_, int(seen.broker[rows[0]]))
        text = f"{who['broker']} converts {name(topic)} for {client(who)}, which fetches with version "
        text += f"{int(seen.exchanges.version[rows[0]])}: {size(int(amount[some].sum()))}."
        yield Found(
            text,
            len(some),
            int(seen.exchanges.answered[rows[0]]),
            int(seen.exchanges.answered[rows[-1]]),
            who,
            {"topic": topic},
            (rows[0], rows[0], rows[-1]),
        )
