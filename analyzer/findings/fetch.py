"""Reading: positions lost, logs that were cut, readers behind or stuck, sessions rebuilt, slow transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import SECOND, CaptureFrame, api_name, once
from kwire.analyzer.findings.error_answers import EXPLANATIONS, about, claim, match_of, of, times
from kwire.analyzer.findings.fetched import READ_COMMITTED, Reads, bounces, followed, reads
from kwire.analyzer.findings.query import Severity
from kwire.analyzer.findings.restarts import CONNECTOR, Restarts, restarts
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.runs import runs
from kwire.analyzer.findings.wording import client, count, lasting, name, partition_name, size
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import busiest_window, max_by, rows_by_key, split
from kwire.analyzer.protocol import api_keys

_OUT_OF_RANGE = claim((api_keys.FETCH,), (1,), every=True)
_WRONG_LEADER = claim((api_keys.FETCH, api_keys.PRODUCE), (3, 6, 74, 75, 100))
_SESSIONS = claim((api_keys.FETCH,), (70, 71, 106), every=True)


def _empty_at_once(capture: CaptureFrame, quick_us: float) -> np.ndarray:
    """Fetch exchanges that were answered at once without an error, a pause or a record, although they allow waiting."""
    got = np.zeros(len(capture.exchanges) + 1, bool)  # the last is of topic-partitions without an exchange
    owner, size_ = capture.partitions.owner, capture.table("partitions")["record_bytes"]
    for block in spill.blocks(len(owner)):
        got[owner[block][size_[block] > 0]] = True
    rows = spill.where(
        len(capture.exchanges), lambda block: (capture.exchanges.api[block] == api_keys.FETCH) & ~got[:-1][block]
    )
    if not len(rows):
        return rows
    whole = capture.table("exchanges").together(("latency_us", "max_wait_ms", "min_bytes", "throttle_us"))
    latency, wait, least, pause = (spill.take(values, rows) for values in whole)
    quick: np.ndarray = rows[
        (capture.exchanges.error[rows] == 0)
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
    suppressed_when="Fewer than fifty in a second on one connection; the answers were held, or held records. A note: "
    "it passed within a second each time, or within ten where a leader had moved, to a replica that had not heard of "
    "the watermark yet.",
    advice="Wait for the watermark after an unclean restart or with follower fetching (KIP-392); else reset the "
    "position. The client should back off.",
    evidence="cluster-kraft-3.9 (29,693 answers); forged: 50 in a second at an offset above, and 49; a reader that "
    "goes on within the second",
    answers=50,
    quick_ms=5,
    by_clock=True,
)
def above_watermark(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    yield from _spins(capture, at.answers, at.quick_ms, above=True)


@rule(
    "fetch",
    "fetch-spin",
    "warning",
    "lab-consumer (10.0.0.4) got 400 empty answers to Fetch from 10.0.0.1:9092 in a second, none of them held.",
    why="A hundred a second is no long poll.",
    suppressed_when="max_wait or min_bytes is 0 (then the client wants no waiting); an offset above the high watermark "
    "explains it.",
    advice="Look at the session: no partitions left, a preferred replica that bounces, a forgotten partition.",
    evidence="forged: 100 in a second, and 99",
    answers=100,
    quick_ms=5,
    by_clock=True,
)
def spin(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    yield from _spins(capture, at.answers, at.quick_ms, above=False)


def _spins(capture: CaptureFrame, answers: float, quick_ms: float, above: bool) -> Iterator[Match]:
    quick = _empty_at_once(capture, quick_ms * 1000)
    spinning = []
    for rows in split(quick, capture.exchanges.link[quick], least=answers):
        when = capture.exchanges.response_end[rows]
        rows, when = rows[np.argsort(when, kind="stable")], np.sort(when)
        most, first, past = busiest_window(when, SECOND)
        if most >= answers:
            spinning.append((int(capture.exchanges.link[rows[0]]), rows, when, most, (first, past - 1)))
    if not spinning:
        return
    asked_of = _Positions(capture, [link for link, *_ in spinning])
    for link, rows, when, most, (first, last) in spinning:
        bursts = np.split(when, np.flatnonzero(np.diff(when) > SECOND) + 1)
        over = next(burst[-1] for burst in bursts if burst[-1] >= when[last])
        beyond = asked_of.beyond(link, int(when[last]), int(over) + SECOND)
        if above != (beyond is not None):
            continue
        who = capture.who(link=link)
        places = int(rows[0]), int(rows[first]), int(rows[-1])
        if beyond is None:
            text = f"{client(who)} got {most:,} empty answers to Fetch from {who['broker']} in a second, none of them "
            text += "held."
            yield Match(text, len(rows), int(when[0]), int(when[-1]), who, {"api": "Fetch"}, places)
            continue
        where, offset, end, then = beyond
        longest = max(int(burst[-1] - burst[0]) for burst in bursts)
        moved = longest < root_causes.AROUND_US and root_causes.near_each(capture, when).all()
        passed = then >= offset and (longest < SECOND or moved)
        text = f"{client(who)} reads {partition_name(where)} at {offset:,} while the log is readable to {end:,}: "
        text += f"{len(rows):,} empty "
        yield Match(
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


class _Positions:
    """Offsets that connections fetched, and how far the logs of these topic-partitions were readable."""

    def __init__(self, capture: CaptureFrame, links: list[int]) -> None:
        self._seen = capture
        read = reads(capture)
        link = spill.take(capture.exchanges.link, read.owner)
        rows = spill.where(len(link), lambda block: arrow.among(link[block], links) & (read.at[block] != NULL))
        own = spill.take(read.topic_partition, rows)
        wanted = arrow.distinct(own)
        with_end = spill.where(
            len(link), lambda block: arrow.among(read.topic_partition[block], wanted) & (read.end[block] >= 0)
        )
        ended = spill.take(read.topic_partition, with_end)
        # Of most nobody ever asked beyond any end.
        count = len(capture.topic_partitions)
        highest = max_by(own, spill.take(read.at, rows), count, NULL)
        lowest = -max_by(ended, -spill.take(read.end, with_end), count, -np.iinfo(np.int64).max)
        beyond = highest > lowest
        self._asked = _courses(read, rows[beyond[own]], read.at, link)
        self._ends = _courses(read, with_end[beyond[ended]], read.end, None)
        self._places: dict[int, list[int]] = defaultdict(list)
        for key, where in self._asked:
            self._places[key].append(where)

    def beyond(self, link: int, time: int, later: int) -> tuple[tuple[str, int], int, int, int] | None:
        """A partition of a connection's session whose requested offset lies above the high watermark: the offset, and
        the watermark as last stated by that time, and by a later one."""
        for where in self._places[link]:
            position = self._asked[link, where].last(time)
            end = self._ends[0, where].last(time) if (0, where) in self._ends else None
            if position is not None and end is not None and position > end:
                return (
                    self._seen.topic_partitions[where],
                    position,
                    end,
                    self._ends[0, where].last(later) or end,
                )
        return None


class _Course(NamedTuple):
    """Successive values and their times (us), in order."""

    times: np.ndarray
    values: np.ndarray

    def last(self, time: int, and_then: bool = True) -> int | None:
        """The last value stated at that time or before."""
        at = int(np.searchsorted(self.times, time, side="right" if and_then else "left"))
        return int(self.values[at - 1]) if at else None


def _courses(
    read: Reads, rows: np.ndarray, values: np.ndarray, whose: np.ndarray | None
) -> dict[tuple[int, int], _Course]:
    """Values of answered reads, by owner (`whose`: a number for each read; None: 0) and topic-partition."""
    rows = rows[spill.take(read.time, rows) != NULL]
    own = np.zeros(len(rows), np.int8) if whose is None else spill.take(whose, rows)
    topic_partition = spill.take(read.topic_partition, rows)
    groups = grouping.group(own, topic_partition)
    order, starts, ends = groups.order, groups.starts, groups.ends
    heads = order[starts]
    keys = zip(own[heads].tolist(), topic_partition[heads].tolist(), strict=True)
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
    suppressed_when="It asked for the same offset again where it went on, for another replica had refused it "
    "(replica-bounce). A note: it went on at the same offset otherwise, so that nothing was lost; the client was not "
    "seen to stand there before, nor told to, as a tool at an offset of its choice; the offset that it asked for was "
    "not captured; the topic was made anew, as its ids say: then its offsets are others.",
    advice="Before the beginning of the log: retention against the time that consumers are down. Beyond its end: a log "
    "that was cut off, a topic made anew, or an offset of another cluster. auto.offset.reset on purpose.",
    evidence="forged: a reader beyond the start, thrown back; errors-librdkafka-4.3, old-java-0.10.2 (first fetch)",
    by_clock=True,
)
def out_of_range(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    troubles = of(capture, _OUT_OF_RANGE, lasting=False)
    if not troubles:
        return
    read = reads(capture)
    numbers = _numbers_of(capture, {where for trouble in troubles for where in trouble.topic_partitions})
    known = spill.where(
        len(read.topic_partition), lambda block: arrow.among(read.topic_partition[block], list(numbers.values()))
    )
    whose = spill.take(capture.client, spill.take(read.owner, known))
    rows_of = rows_by_key(known, whose, spill.take(read.topic_partition, known))
    ends_told = _ends_told(capture, list(numbers.values()))
    for trouble in troubles:
        for where in trouble.topic_partitions:
            reader = trouble.client, numbers[where]
            reader_rows = rows_of.get(reader, trouble.rows[:0])
            refused = arrow.among_ordered(read.owner[reader_rows], trouble.rows)
            if not refused.any():
                continue
            if capture.mixed[trouble.client]:  # what others ask for is no place of it
                link = capture.exchanges.link[read.owner[reader_rows]]
                same_link = link == link[refused.argmax()]
                reader_rows, refused = reader_rows[same_link], refused[same_link]
            moves = _moves(capture, reader_rows, refused, ends_told.get(reader, ()))
            worst = max(moves, key=lambda move: (move.stood, move.skipped, move.again))
            if worst.stayed and (trouble.client, where) in bounces(capture):
                continue
            text = f"{client(capture.who(trouble.client))} lost its place in {partition_name(where)}: asked "
            text += f"{worst.offset:,}" if worst.offset is not None else "for an offset that was not captured"
            anew = where[0] in capture.remade
            if worst.beyond and not anew:
                text += f", beyond the end of the log ({worst.end:,})"
            if worst.then is None:
                text += ", and was not seen to go on."
            elif worst.offset is None or anew:
                text += f", goes on at {worst.then:,}."
            elif worst.stayed:
                text += ", and goes on there."
            elif worst.skipped:
                text += f", goes on at {worst.then:,}: {count(worst.skipped, 'record')} skipped."
            else:
                text += f", goes on at {worst.then:,}: {count(worst.again, 'record')} may be read again."
            if len(moves) > 1:
                skipped, again = (sum(getattr(move, name) for move in moves) for name in ("skipped", "again"))
                both = [f"{count(skipped, 'record')} skipped"] * bool(skipped)
                both += [f"{count(again, 'record')} that may be read again"] * bool(again)
                text += f" It did so {len(moves):,} times" + f", {' and '.join(both)} in all" * bool(both and not anew)
                text += "."
            severity: Severity | None = (
                "note" if not worst.stood or worst.stayed else None if worst.skipped else "warning"
            )
            cause = "the log begins later" if worst.skipped else None
            if worst.beyond and worst.stood:
                cause = "the log was cut off, or is that of another topic or cluster"
            if anew:
                severity, cause = "note", "the topic was made anew"
            yield match_of(capture, trouble, text, severity, cause, False if cause else None)


class _Moved(NamedTuple):
    """A reader that was out of range: the requested offset and the offset where it goes on, None if not captured; where
    the log ended by then, None if that was not said; whether it had been at that position; how many records it skipped,
    or may read again."""

    offset: int | None
    then: int | None
    end: int | None
    stood: bool

    @property
    def skipped(self) -> int:
        return 0 if self.offset is None or self.then is None else max(self.then - self.offset, 0)

    @property
    def stayed(self) -> bool:
        """Whether it went on at the offset that had been refused."""
        return self.offset is not None and self.then == self.offset

    @property
    def again(self) -> int:
        if self.offset is None or self.then is None:
            return 0
        return max((self.offset if self.end is None else min(self.offset, self.end)) - self.then, 0)

    @property
    def beyond(self) -> bool:
        """Whether the log is known to have ended before the offset that was requested."""
        return self.offset is not None and self.end is not None and self.end < self.offset


def _moves(
    capture: CaptureFrame, rows: np.ndarray, refused: np.ndarray, ends_told: np.ndarray | tuple[()]
) -> list[_Moved]:
    """How a reader went on from each position that it lost. `rows`: its reads, in order; `refused`: bool of each;
    `ends_told`: as `_ends_told` returns it."""
    read = reads(capture)
    high_watermark = capture.table("partitions")["high_watermark"]
    at, requested = read.at[rows], capture.exchanges.request_time[read.owner[rows]]
    answered = capture.exchanges.response_end[read.owner[rows]]
    stood, first = np.unique(read.position()[rows], return_index=True)
    good = np.flatnonzero((capture.partitions.error[read.part[rows]] == 0) & (at != NULL))
    begins = np.flatnonzero(refused & ~np.append(False, refused[:-1]))
    ends = np.flatnonzero(refused & ~np.append(refused[1:], False))
    results = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        lost = int(at[begin])
        known = int(np.searchsorted(stood, lost))
        there = known < len(stood) and stood[known] == lost and first[known] < begin
        # An answer that was held when it lost its place says nothing of where it goes on.
        later = iter(good[np.searchsorted(good, end) :])
        onward = next((position for position in later if requested[position] >= answered[end]), None)
        then = None if onward is None else int(at[onward])
        log_end = NULL if onward is None else int(high_watermark[read.part[rows[onward]]])
        has_stood = lost != NULL and bool(there or lost in ends_told)
        has_end = log_end >= 0
        results.append(_Moved(lost if lost != NULL else None, then, log_end if has_end else None, has_stood))
    return results


def _numbers_of(capture: CaptureFrame, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Numbers of some topic-partitions."""
    numbers: dict[tuple[str, int], int] = {}
    for number, where in enumerate(capture.topic_partitions):
        if where in wanted:
            numbers.setdefault(where, number)
    return numbers


def _ends_told(capture: CaptureFrame, places: list[int]) -> dict[tuple[int, ...], np.ndarray]:
    """Positions by client and topic-partition, of these, as stated in answers or by the client itself."""
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    apis = api_keys.OFFSET_FETCH, api_keys.OFFSET_COMMIT, api_keys.LIST_OFFSETS

    def are_of_groups(block: slice) -> Any:
        there = arrow.among(parts.topic_partition[block], places) & (offset[block] != NULL)
        return there & arrow.among(capture.api_of(parts.owner[block]), apis)

    rows = spill.where(len(offset), are_of_groups)
    return rows_by_key(
        spill.take(offset, rows), capture.client[parts.owner[rows]], spill.take(parts.topic_partition, rows)
    )


@rule(
    "fetch",
    "log-truncated",
    "error",
    "t-2 lost records that were acknowledged: offset 440 was given twice, by 10.0.0.1:9092 and then by 10.0.0.2:9092.",
    why="A log that grows gives an offset once; the high watermark of one replica falls where its log was cut.",
    suppressed_when="The topic was made anew (it begins at 0, its leader epoch does not rise, or its ids say so); the "
    "same batch was sent again to the next leader, which knows it; the next batch that is written goes behind the old "
    "high watermark (a replica that led, follows and leads again may know a lower one for a moment).",
    advice="unclean.leader.election.enable (off by default), and writers with acks=1.",
    evidence="forged: two brokers that give the same offset, and to a batch that is sent again; a log that ends before "
    "where its reader stands, as Fetch or OffsetForLeaderEpoch says, and one that ends there",
    by_clock=True,
)
def truncated(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    yield from truncations(capture)


@once
def truncations(capture: CaptureFrame) -> list[Match]:
    """Logs that lost records, as replicas, readers and writers were told."""
    twice = _of_one_topic(capture, _given_twice(capture)) if len(capture.brokers) > 1 else ()
    return [*twice, *_of_one_topic(capture, _fallen(capture)), *_of_one_topic(capture, _diverged(capture))]


_WHOLE = 0.9
"""Share of a log's records that are gone: then it was no replica that lagged, but the log that was lost."""


def _lost_log(gone: int, end: int) -> dict[str, Any]:
    """Cause and advice where (nearly) all of a log is gone."""
    if gone < _WHOLE * end:
        return {}
    return {
        "cause": "the log was lost as a whole: a new or emptied disk under its only replica, or under all of them",
        "proven": False,
        "advice": "See what became of the log directory of that broker (a new disk, a volume that is not kept, an "
        "emptied folder), and give the topic more replicas; unclean.leader.election.enable (off by default).",
    }


def _of_one_topic(capture: CaptureFrame, cuts: Iterator[Match]) -> Iterator[Match]:
    """Leave out topics that were created again, because a new topic of the same name begins at 0."""
    return (cut for cut in cuts if cut.what["topic"] not in capture.remade)


def _given_twice(capture: CaptureFrame) -> Iterator[Match]:
    """Matches of offsets that one broker assigned, and then another."""
    table, parts = capture.table("partitions"), capture.partitions
    offset, records = table.together(("offset", "record_count"))

    def are_given(block: slice) -> Any:
        of_produce = capture.api_of(parts.owner[block]) == api_keys.PRODUCE
        return of_produce & (parts.error[block] == 0) & (offset[block] != NULL)

    rows = spill.where(len(offset), are_given)
    owner, topic_partition = spill.take(parts.owner, rows), spill.take(parts.topic_partition, rows)
    rows = rows[with_several(topic_partition, spill.take(capture.broker, owner), len(capture.topic_partitions))]
    groups = grouping.group(parts.topic_partition[rows], capture.exchanges.response_end[parts.owner[rows]])
    order, starts, ends = groups.order, groups.starts, groups.ends
    del starts, ends
    rows = rows[order]
    same = parts.topic_partition[rows[1:]] == parts.topic_partition[rows[:-1]]
    brokers = capture.broker[parts.owner[rows]]
    moved = same & (brokers[1:] != brokers[:-1])
    for at_ in np.flatnonzero(moved).tolist():
        first, again = int(rows[at_]), int(rows[at_ + 1])
        given = int(offset[first]) + max(int(records[first]), 1)
        repeated = offset[again] == offset[first] and records[again] == records[first]
        # A batch that is sent again to the next leader gets its old offset; a topic made anew begins at 0.
        if 0 < int(offset[again]) < given and not repeated:
            topic, partition = capture.topic_partitions[parts.topic_partition[first]]
            first_row, two = int(parts.owner[first]), int(parts.owner[again])
            text = f"{partition_name((topic, partition))} lost records that were acknowledged: "
            by, then_by = (capture.brokers[capture.broker[row]] for row in (first_row, two))
            text += f"offset {int(offset[again]):,} was given twice, by {by} and then by {then_by}."
            yield Match(
                text,
                given - int(offset[again]),
                int(capture.exchanges.response_end[first_row]),
                int(capture.exchanges.response_end[two]),
                capture.who(broker=int(capture.broker[two])),
                {"topic": topic, "partition": str(partition)},
                (first_row, two, two),
                cause="a leader that had not all records",
                proven=True,
            )


def with_several(topic_partition: np.ndarray, values: np.ndarray, places: int) -> np.ndarray:
    """bool[n]: rows of those topic-partitions that have more than one value."""
    first, more = np.zeros(places, values.dtype), np.zeros(places, np.bool_)
    first[topic_partition] = values  # of what is written twice one stays
    for block in spill.blocks(len(topic_partition)):
        some = topic_partition[block]
        more[some[values[block] != first[some]]] = True
    return spill.take(more, topic_partition)


def _diverged(capture: CaptureFrame) -> Iterator[Match]:
    """Matches of readers whose log ends before their position: by Fetch (`divergingEpoch`) or OffsetForLeaderEpoch
    (KIP-320). For replicas this is normal."""
    diverging = capture.table("partitions")["diverging_offset"]
    if diverging.max(initial=NULL) == NULL and not len(capture.of_api(api_keys.OFFSET_FOR_LEADER_EPOCH)):
        return
    offset, parts = capture.table("partitions")["offset"], capture.partitions

    def is_diverged(block: slice) -> np.ndarray:
        of_epochs = capture.api_of(parts.owner[block]) == api_keys.OFFSET_FOR_LEADER_EPOCH
        ends = of_epochs & (parts.error[block] == 0) & (offset[block] >= 0)
        return np.where(ends, offset[block], diverging[block])

    ends = spill.compute(len(offset), np.int64, is_diverged)
    rows = spill.true_rows((parts.owner >= 0) & (ends != NULL))
    rows = rows[~(capture.between_brokers | capture.mixed)[capture.client[parts.owner[rows]]]] if len(rows) else rows
    stood_at = _stood(capture, parts.topic_partition[rows]) if len(rows) else {}
    worst: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in rows.tolist():
        owner, where = int(parts.owner[row]), int(parts.topic_partition[row])
        client_, time = int(capture.client[owner]), int(capture.exchanges.response_end[owner])
        course = stood_at.get((client_, where))
        last = course.last(time, and_then=False) if course is not None else None
        stood = last if last is not None else int(offset[row]) if diverging[row] != NULL else NULL
        if stood != NULL and stood - int(ends[row]) > worst.get((client_, where), (0, 0, 0))[0]:
            worst[client_, where] = stood - int(ends[row]), stood, owner
    for (client_, where), (gone, stood, owner) in worst.items():
        topic, partition = capture.topic_partitions[where]
        who, time = capture.who(client_, int(capture.broker[owner])), int(capture.exchanges.response_end[owner])
        text = f"{partition_name((topic, partition))} was cut: {client(who)} had read to {stood:,}, and "
        text += f"{count(gone, 'record')} "
        yield Match(
            f"{text}of that no longer exist.",
            gone,
            time,
            time,
            who,
            {"topic": topic, "partition": str(partition)},
            (owner,),
            **(_lost_log(gone, stood) or {"cause": "a leader that had not all records", "proven": True}),
        )


def _stood(capture: CaptureFrame, places: np.ndarray) -> dict[tuple[int, int], _Course]:
    """Positions after each answer, by client and topic-partition, of these."""
    read = reads(capture)
    position, wanted = read.position(), arrow.distinct(places)
    known = spill.where(
        len(position), lambda block: arrow.among(read.topic_partition[block], wanted) & (position[block] != NULL)
    )
    return _courses(read, known, position, spill.take(capture.client, read.owner))


def _fallen(capture: CaptureFrame) -> Iterator[Match]:
    """Matches of high watermarks that fell with a higher leader epoch."""
    epoch = capture.table("partitions")["leader_epoch"]
    if epoch.max(initial=NULL) < 0:
        return
    read = reads(capture)
    known = spill.where(len(read.end), lambda block: (read.end[block] >= 0) & (epoch[read.part[block]] >= 0))
    epochs = spill.take(epoch, spill.take(read.part, known))
    known = known[with_several(spill.take(read.topic_partition, known), epochs, len(capture.topic_partitions))]
    broker = capture.broker[read.owner[known]]
    order = grouping.group(read.topic_partition[known], broker, read.time[known]).order
    rows, servers = known[order], broker[order]
    same = (read.topic_partition[rows[1:]] == read.topic_partition[rows[:-1]]) & (servers[1:] == servers[:-1])
    later = epoch[read.part[rows[1:]]] > epoch[read.part[rows[:-1]]]
    fell = same & later & (read.end[rows[1:]] < read.end[rows[:-1]])
    for at in np.flatnonzero(fell).tolist():
        first, again = int(rows[at]), int(rows[at + 1])
        if _goes_on_behind(capture, int(read.topic_partition[first]), int(read.time[again]), int(read.end[first])):
            continue
        topic, partition = capture.topic_partitions[read.topic_partition[first]]
        gone = int(read.end[first] - read.end[again])
        text = f"{partition_name((topic, partition))} was cut: {count(gone, 'record')} that could be read to "
        text += f"{int(read.end[first]):,} "
        text += "no longer exist."
        yield Match(
            text,
            gone,
            int(read.time[first]),
            int(read.time[again]),
            capture.who(broker=int(servers[at])),
            {"topic": topic, "partition": str(partition)},
            (int(read.owner[first]), int(read.owner[again])),
            **_lost_log(gone, int(read.end[first])),
        )


@once
def _written(capture: CaptureFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(topic-partition, time of the answer, offset) of batches that were stored, in order of the first two."""
    offset, parts = capture.table("partitions")["offset"], capture.partitions

    def are_stored(block: slice) -> Any:
        of_produce = capture.api_of(parts.owner[block]) == api_keys.PRODUCE
        return of_produce & (parts.error[block] == 0) & (offset[block] != NULL)

    rows = spill.where(len(offset), are_stored)
    where, answered = parts.topic_partition[rows], capture.exchanges.response_end[parts.owner[rows]]
    order = np.lexsort((answered, where))
    return where[order], answered[order], offset[rows[order]]


def _goes_on_behind(capture: CaptureFrame, topic_partition: int, since: int, end: int) -> bool:
    """Whether the next batch that is written to a topic-partition from a time on gets an offset at this end or behind
    it: its log was not cut, and only the high watermark fell, as a new leader learns it late."""
    where, answered, offset = _written(capture)
    first, past = np.searchsorted(where, [topic_partition, topic_partition + 1])
    next_ = first + int(np.searchsorted(answered[first:past], since))
    return bool(next_ < past) and int(offset[next_]) >= end


@rule(
    "fetch",
    "lag-grows",
    "warning",
    "g-app (10.0.0.4) falls behind on t-1: from 12,000 to 480,000 records in 5.0 min.",
    why="Ten windows of ten seconds rule out bursts; 10,000 records, or a minute of what the topic gets, are more "
    "than a batch or two. A note in a shorter capture, where ten windows of a second or longer show the same: a longer "
    "one would tell whether it goes on. The lag is that of the fetch position, up to the last stable offset for who "
    "reads committed data: what a client has fetched it may not have processed (the view group_lag has both).",
    suppressed_when="The lag falls in more than a fifth of the windows (a reader that starts from the beginning "
    "catches up); a short capture in which it grew by less than 1,000 records, or by less than a third of what was "
    "written.",
    advice="More consumers or partitions, faster processing; look for throttling.",
    evidence="forged: eleven windows of rising lag, and ten; a reader that catches up; one of committed data that is "
    "at the last stable offset; eleven windows of two seconds, and a lag of 1,000",
    window_s=10,
    windows=10,
    share=0.8,
    records=10_000,
    seconds=60,
    least=1000,
    by_clock=True,
)
def lag_grows(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    usual = int(at.window_s * SECOND)
    is_short = capture.span[1] - capture.span[0] < at.windows * usual
    read = reads(capture)
    known = spill.true_rows(read.lag >= 0)  # NULL is below
    committed = capture.column("isolation_level") if capture.greatest("isolation_level") > 0 else None
    clients = spill.take(capture.client, spill.take(read.owner, known))
    for group_rows in split(known, clients, spill.take(read.topic_partition, known)):
        if capture.mixed[capture.client[read.owner[group_rows[0]]]]:
            continue
        lasted = int(read.time[group_rows[-1]] - read.time[group_rows[0]])
        width = int(lasted / (at.windows + 0.5)) if is_short else usual
        if len(group_rows) <= at.windows or width < SECOND or lasted < at.windows * width:
            continue
        window = (read.time[group_rows] - read.time[group_rows[0]]) // width
        last = group_rows[np.append(window[1:] != window[:-1], True)]
        end, lag = read.end[last], read.lag[last]
        if committed is not None:
            open_ = (committed[read.owner[last]] == READ_COMMITTED) & (read.stable[last] >= 0)
            beyond = np.where(open_, np.maximum(end - read.stable[last], 0), 0)
            end, lag = end - beyond, np.maximum(lag - beyond, 0)
        steps = np.diff(lag)
        grown = int(end[-1] - end[0])
        spent = (int(read.time[last[-1]]) - int(read.time[last[0]])) / SECOND
        much = lag[-1] >= at.records or (grown > 0 and lag[-1] >= at.seconds * grown / max(spent, 1))
        if is_short:
            much = lag[-1] - lag[0] >= max(at.least, grown / 3)
        if len(steps) < at.windows or (steps > 0).sum() < at.share * len(steps) or not much:
            continue
        topic, partition = capture.topic_partitions[read.topic_partition[group_rows[0]]]
        who = capture.who(int(capture.client[read.owner[group_rows[0]]]))
        text = f"{client(who)} falls behind on {partition_name((topic, partition))}: from {int(lag[0]):,} "
        text += f"to {int(lag[-1]):,} "
        text += f"records in {lasting(spent * SECOND)}."
        if is_short:
            text += f" A capture of {lasting(at.windows * at.window_s * SECOND)} would tell whether it goes on."
        rows = int(read.owner[last[0]]), int(read.owner[last[lag.argmax()]]), int(read.owner[last[-1]])
        yield Match(
            text,
            int(lag[-1]),
            int(read.time[last[0]]),
            int(read.time[last[-1]]),
            who,
            {"topic": topic, "partition": str(partition)},
            rows,
            severity="note" if is_short else None,
        )


@rule(
    "fetch",
    "partition-stuck",
    "warning",
    "g-app (10.0.0.4) stands at 900 in t-4 for 6 min, while its end moved on to 40,000 and other partitions advance.",
    why="60 s are 120 long polls of 500 ms. Whatever the time: three members of a group one after the other that began "
    "at the same offset, got records, and went without a commit beyond it.",
    suppressed_when="The client reads nothing else meanwhile (then it is the client); the log did not grow; the last "
    "stable offset holds it (hanging-transaction); the partition is no part of its fetch session any more (another "
    "member may have it). Time counts from the end of the last rebalance of its group. Of restarts: no records came; "
    "the group committed beyond the offset; a group without any commit whose members left in order, but for Kafka "
    "Connect's.",
    advice="Paused by the application, a record that it cannot process, or an assignment that was lost.",
    evidence="poison-pill; forged: a partition that is asked for at one offset for 61 s, and for 59 s; three members "
    "that began at one offset, and two; with a commit between",
    stuck_s=60,
    by_clock=True,
)
def stuck(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for group in restarts(capture):
        yield _restarted(capture, group)
    if capture.span[1] - capture.span[0] < at.stuck_s * SECOND:
        return
    restarting = {where for group in restarts(capture) for where in group.starts}
    read = reads(capture)
    position = read.position()
    ends, last_asked, rebalanced = _last_ends(capture), followed(capture), _rebalanced(capture)
    latest = np.full(len(capture.clients), NULL)
    for block in spill.blocks(len(read.owner)):
        moved = block.start + np.flatnonzero(read.size[block] > 0)
        latest[capture.client[read.owner[moved]]] = read.time[moved]  # they come in order of time
    for group_rows in split(None, spill.take(capture.client, read.owner), read.topic_partition):
        group_rows = group_rows[
            (position[group_rows] != NULL) & (read.time[group_rows] != NULL)
        ]  # no answer, no moment
        if not len(group_rows) or (capture.between_brokers | capture.mixed)[capture.client[read.owner[group_rows[0]]]]:
            continue
        who_ = int(capture.client[read.owner[group_rows[0]]])
        here = int(position[group_rows[-1]])
        same = group_rows[position[group_rows] == here]
        since = max(int(read.time[same[0]]), rebalanced.get(capture.clients[who_], NULL))
        where = capture.topic_partitions[read.topic_partition[group_rows[0]]]
        # As long as the partition is part of the client's session: then somebody else may have it.
        until = min(
            max(int(latest[who_]), since), max(int(read.time[group_rows[-1]]), last_asked.get((who_, where), 0))
        )
        end = ends.get(where, here)
        held = int(read.stable[group_rows[-1]])
        if until - since < at.stuck_s * SECOND or end <= here or 0 <= held <= here or where in restarting:
            continue
        who = capture.who(who_)
        text = f"{client(who)} stands at {here:,} in {partition_name(where)} for {lasting(until - since)}, "
        text += "while its end moved on to "
        again = int(((read.size[same] > 0) & (read.at[same] == read.at[same[-1]])).sum())
        cause = f"it got the same records {again:,} times and asks for them again" if again >= _AGAIN else None
        yield Match(
            f"{text}{end:,} and other partitions advance.",
            end - here,
            since,
            until,
            who,
            {"topic": where[0], "partition": str(where[1]), "offset": str(here)},
            (int(read.owner[same[0]]), int(read.owner[group_rows[-1]])),
            cause=cause,
            proven=True if cause else None,
        )


def _restarted(capture: CaptureFrame, group: Restarts) -> Match:
    """The match of members that began at the same offsets, one after the other."""
    who, times_ = capture.who(group.client), len(group.members)
    where, offset = min(group.starts.items(), key=lambda pair: pair[0])
    cause, proven = "the application does not get past what it reads there", False
    connector = (who["client_id"] or "").startswith(CONNECTOR)
    if connector:
        cause = "the connector's task fails on what it reads there, and is started again"
    if group.suspect is not None:
        where, offset, amount, usual = group.suspect
        cause = f"the record there is unlike all others that were read: {size(amount)}, and most have {usual:,}"
    text = f"{partition_name(where)}@{offset:,} was read {count(times_, 'time')} by {client(who)} of group "
    text += f"{name(group.group)}: {'each time' if group.vanished >= times_ - 1 else 'mostly'} the member "
    text += f"{'vanished' if group.vanished else 'left'} without a commit"
    if len(group.starts) > 1:
        text += f", and the next one began again at the same offsets of {count(len(group.starts), 'partition')}"
    topics = sorted({topic for topic, _ in group.starts})
    return Match(
        f"{text}.",
        times_,
        group.since,
        group.until,
        who,
        {
            "topic": where[0] if len(topics) == 1 else ",".join(topics),
            "partition": str(where[1]),
            "offset": str(offset),
            "group_id": group.group,
        },
        (group.rows[0], group.rows[-1], group.rows[-1]),
        cause=cause,
        proven=proven,
        advice="See the task's trace (GET /connectors/NAME/status): the converter or the connector does not take that "
        "record; errors.tolerance=all with errors.deadletterqueue.topic.name puts such records aside."
        if connector
        else "Look at that record, and at what the application logged when it ended: handle the error, or put the "
        "record aside (a dead-letter topic), or commit past it.",
    )


_AGAIN = 3


def _rebalanced(capture: CaptureFrame) -> dict[tuple[str, str | None], int]:
    """The end of the last rebalance of a client's groups, by client (address and id)."""
    table = capture.table("rebalances")
    last: dict[str, int] = {}
    for row in table.every(["group_id", "began", "ended"]) if len(table) else ():
        last[row["group_id"]] = max(last.get(row["group_id"], NULL), row["ended"] or row["began"] or NULL)
    if not last:
        return {}
    rows = capture.table("clients").every(["client_ip", "client_id", "group_ids"])
    return {
        (row["client_ip"], row["client_id"]): max([NULL, *(last.get(group, NULL) for group in row["group_ids"] or ())])
        for row in rows
    }


def _last_ends(capture: CaptureFrame) -> dict[tuple[str, int], int]:
    """The end of the log of each topic-partition, as last stated to any client."""
    table, parts = capture.table("partitions"), capture.partitions
    end, offset, records = table.together(("high_watermark", "offset", "record_count"))
    last = np.full(len(capture.topic_partitions), -1, np.int64)
    for block in spill.blocks(len(end)):
        written = (capture.api_of(parts.owner[block]) == api_keys.PRODUCE) & (parts.error[block] == 0)
        after = offset[block] + np.maximum(records[block], 0)
        known = np.where(written & (offset[block] >= 0), after, end[block])
        last = np.maximum(last, max_by(parts.topic_partition[block], known, len(last), -1))
    return {capture.topic_partitions[number]: int(value) for number, value in enumerate(last.tolist()) if value >= 0}


@rule(
    "fetch",
    "fetch-session-churn",
    "warning",
    "Fetch sessions of g-app (10.0.0.4) were lost 40 times in 2.0 min at 10.0.0.1:9092.",
    why="A broker keeps 1,000 sessions and drops what was unused for two minutes: a few a second over a large cluster "
    "are usual, ten a minute of one client are not.",
    suppressed_when="Fewer than twenty in two minutes; within ten seconds of a lost broker or a moved leader.",
    advice="max.incremental.fetch.session.cache.slots, or a client that mixes up its sessions.",
    evidence="forged: twenty lost sessions in two minutes, and nineteen",
    losses=20,
    window_s=120,
)
def session_churn(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    lost: dict[int, list[int]] = defaultdict(list)
    for run in runs(capture):
        if _SESSIONS(run) and not capture.mixed[run.client]:
            lost[run.client] += run.rows.tolist()
    for client_, some in lost.items():
        rows = np.array(sorted(some), np.int64)
        if len(rows) >= at.losses:
            rows = rows[~root_causes.near_each(capture, capture.exchanges.response_end[rows])]
        when = np.sort(capture.exchanges.response_end[rows])
        most, first, past = busiest_window(when, int(at.window_s * SECOND))
        if most >= at.losses:
            who = capture.who(client_, int(capture.broker[rows[0]]))
            text = f"Fetch sessions of {client(who)} were lost {count(most, 'time')} in "
            text += f"{lasting(at.window_s * SECOND)} at "
            yield Match(
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
    suppressed_when="Fewer than 100 partitions a request on average, fewer than 100 requests, or less than a megabyte "
    "of them; some had a session, or were of an older version; the meaning of the traffic was left out "
    "(--no-analysis).",
    advice="Fewer partitions a consumer, or a client that has sessions (Java's; librdkafka has none). If its kind does "
    "have them, the broker had no slot free (max.incremental.fetch.session.cache.slots).",
    evidence="a librdkafka consumer of 400 partitions at Kafka 4.3; forged: 100 requests for 100 partitions, and for "
    "99; with a session",
    partitions=100,
    requests=100,
    bytes=1_000_000,
)
def sessionless(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    owner, clients = capture.partitions.owner, len(capture.clients)
    if len(owner) < at.requests * at.partitions or not _has_runs(owner, int(at.partitions)):
        return
    rows = capture.of_one(capture.of_api(api_keys.FETCH))
    if len(rows) < at.requests:
        return
    client_of_row = spill.take(capture.client, rows)
    requests = np.bincount(client_of_row, minlength=clients)
    named = np.zeros(clients, np.int64)
    for block in spill.blocks(len(owner)):
        fetches = owner[block][capture.api_of(owner[block]) == api_keys.FETCH]
        named += np.bincount(capture.client[fetches], minlength=clients)
    many = (requests >= at.requests) & (named >= at.partitions * requests) & ~capture.between_brokers
    if not many.any():
        return
    many[client_of_row[spill.take(capture.exchanges.version, rows) < _WITH_SESSIONS]] = False
    table = capture.table("readers")
    reader, session = capture.links_of(table), table.numbers("session_id", np.int32)
    reads_ = np.bincount(capture.client_of[reader[reader >= 0]], minlength=clients)
    many[capture.client_of[reader[(reader >= 0) & (session > 0)]]] = False
    rows = rows[(many & (reads_ > 0))[client_of_row]]
    for some in split(rows, capture.client[rows]):
        request_bytes = sum(
            int(np.maximum(arrow.numbers(part.column(0).combine_chunks(), 0), 0).sum())
            for _, part in capture.table("exchanges").chosen(some, ["request_bytes"])
        )
        if request_bytes < at.bytes:
            continue
        client_ = int(capture.client[some[0]])
        who, each = capture.who(client_), round(int(named[client_]) / len(some))
        text = f"{client(who)} fetches without sessions: {count(len(some), 'request')} name some {each:,} partitions "
        yield Match(
            f"{text}each, {size(request_bytes)} in all.",
            len(some),
            int(capture.exchanges.request_time[some].min()),
            int(capture.exchanges.request_time[some].max()),
            who,
            {"api": "Fetch", "bytes": str(request_bytes)},
            tuple(some[[0, 0, -1]].tolist()),
        )


_WITH_SESSIONS = 7
"""Fetch versions from which there are sessions."""


def _has_runs(owner: np.ndarray, least: int) -> bool:
    """Whether an exchange has so many topic-partitions, which stand together. If none has, no average is as high, and
    this test takes a tenth of the time."""
    apart = max(least, 1) - 1
    starts = spill.blocks(max(len(owner) - apart, 0))
    return any((owner[block] == owner[block.start + apart : block.stop + apart]).any() for block in starts)


@rule(
    "fetch",
    "wrong-leader-fetch",
    "warning",
    "g-app (10.0.0.4) kept asking 10.0.0.1:9092 for t-2 for 40.0 s (NOT_LEADER_OR_FOLLOWER (6), 12 times, 10:01:03 to "
    "10:01:43).",
    why="Clients refresh their metadata after 0.1 to 1 s; leader changes cleared within 0.12 s in captures.",
    suppressed_when="It passed within 5 s and ten answers; a broker's loss or a moved leader explains it, or one "
    "address for several brokers (advertised-address-shared), or another cluster that has the topic (topic-missing).",
    advice="advertised.listeners, stale metadata (metadata.max.age.ms).",
    evidence="forged: ten such answers over 2 s, and nine",
)
def wrong_leader(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _WRONG_LEADER):
        if any(explains(capture, trouble) for explains in EXPLANATIONS):
            continue
        who = capture.who(trouble.client, int(capture.broker[trouble.rows[-1]]))
        text = f"{client(who)} kept asking {who['broker']}{about(trouble)} by {api_name(trouble.api)} for "
        text += f"{lasting(trouble.longest)} ({trouble.error}, {times(trouble)})."
        yield match_of(capture, trouble, text)


@rule(
    "fetch",
    "slow-transfer",
    "warning",
    "10.0.0.1:9092 needed 6.0 s to send 50.0 MB to g-app (10.0.0.4), 8.3 MB a second (3 answers).",
    why="10 MB a second is below 100 Mbit/s; answers of Fetch of up to 50 MB are the default.",
    suppressed_when="The transfer took under a second; brokers among themselves, whose replication may be throttled.",
    advice="The reader, its window, the path between.",
    evidence="forged: 5 MB in 1.5 s, and 20 MB",
    transfer_s=1,
    rate=10_000_000,
)
def slow_transfer(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    rows, began = capture.exchanges, capture.column("response_time")
    least = at.transfer_s * SECOND

    def are_slow(block: slice) -> Any:
        known = (began[block] != NULL) & (rows.response_end[block] != NULL)
        return known & (rows.response_end[block] - began[block] >= least)

    slow = spill.where(len(rows), are_slow)
    if not len(slow):
        return
    sent = capture.column("response_bytes")
    slow = slow[(sent[slow] * SECOND < at.rate * (rows.response_end[slow] - began[slow])) & (sent[slow] > 0)]
    slow = slow[~capture.between_brokers[capture.client[slow]]]
    for group_rows in split(slow, capture.client[slow], capture.broker[slow]):
        took = rows.response_end[group_rows] - began[group_rows]
        worst, longest = int(group_rows[took.argmax()]), int(took.max())
        who = capture.who(int(capture.client[worst]), int(capture.broker[worst]))
        text = f"{who['broker']} needed {lasting(longest)} to send {size(int(sent[worst]))} to {client(who)}, "
        text += f"{size(int(sent[worst]) * SECOND / longest)} a second ({count(len(group_rows), 'answer')})."
        yield Match(
            text,
            len(group_rows),
            int(began[group_rows].min()),
            int(rows.response_end[group_rows].max()),
            who,
            {"api": api_name(int(rows.api[worst]))},
            (int(group_rows[0]), worst, int(group_rows[-1])),
        )


@rule(
    "fetch",
    "down-conversion",
    "warning",
    "10.0.0.1:9092 converts t for legacy (10.0.0.4), which fetches with version 2: 30.0 MB.",
    why="Any rate is a copy through the heap (KIP-283); gone in 4.0.",
    suppressed_when="The topic's batches are of the old format themselves.",
    advice="Upgrade the client.",
    evidence="forged: Fetch v2 of a topic that is written with v3 and later; and one that is not",
)
def down_conversion(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("batches")
    if not len(table):
        return
    magic = table["magic"]
    if not (magic < 2).any():
        return
    owner = capture.owners(table)
    (where, places), amount = capture.number_topic_partitions(table), table["batch_bytes"]
    valid = np.flatnonzero(owner >= 0)
    fresh = {places[number][0] for number in arrow.distinct(where[valid[magic[valid] == 2]]).tolist()}
    api, version = capture.exchanges.api[owner[valid]], capture.exchanges.version[owner[valid]]
    old = valid[(api == api_keys.FETCH) & (version <= 3) & (magic[valid] < 2)]
    converted: dict[tuple[int, str], list[int]] = defaultdict(list)
    for batch in old.tolist():
        topic = places[where[batch]][0]
        if topic in fresh:
            converted[int(capture.client[owner[batch]]), topic].append(batch)
    for (client_, topic), some in converted.items():
        rows = [int(owner[batch]) for batch in some]
        who = capture.who(client_, int(capture.broker[rows[0]]))
        text = f"{who['broker']} converts {name(topic)} for {client(who)}, which fetches with version "
        text += f"{int(capture.exchanges.version[rows[0]])}: {size(int(amount[some].sum()))}."
        yield Match(
            text,
            len(some),
            int(capture.exchanges.response_end[rows[0]]),
            int(capture.exchanges.response_end[rows[-1]]),
            who,
            {"topic": topic},
            (rows[0], rows[0], rows[-1]),
        )
