"""Compare the records that connections have read of partitions: of the whole conversation, not answer by answer,
because a fetch may carry more or less each time.

In: a partition with what was read of it on both sides. Out: differences. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.replay.diff.correspondence import Correspondence, Partition, Reading
from kwire.replay.diff.differences import Difference
from kwire.replay.diff.pairs import Pair, Pairs
from kwire.replay.diff.record_facts import CREATED, FORMS, Form

UNREAD_SHARE: Final = 0.1
UNREAD_RECORDS: Final = 100
"""Of a topic's records that were read when captured, the share and the number that may be unread here because the run
ended first (`read_less`). More of both is a difference."""

LOW_WATERMARK: Final = "high watermark below its records"
LOW_SHARE: Final = 0.1
"""Of a partition's answers with records, the share whose high watermark may be below them: a broker takes it before it
reads, and what is appended in between may be read (Partition.fetchRecords)."""
OTHER_TIME: Final = "record timestamp changed"

_LESS, _EARLY = "read less", "reading ended early"
READ_LESS: Final = frozenset((_LESS, _EARLY))
"""Kinds of differences of who did not read as much."""


@dataclass(slots=True)
class Unread:
    """Records that were read of each topic when captured, and those that were not here; each with the last fetch of who
    left the most."""

    _topics: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    def add(self, topic: str, read: int, unread: int, place: int) -> None:
        """Of one more reader."""
        total, lost, most, whose = self._topics.get(topic, (0, 0, -1, place))
        worst = (unread, place) if unread > most else (most, whose)
        self._topics[topic] = total + read, lost + unread, *worst

    def differences(self, pairs: Sequence[Pair]) -> Iterator[Difference]:
        """Where it is more than the end of a run explains."""
        for topic, (total, lost, _, place) in self._topics.items():
            if lost > UNREAD_RECORDS and lost > UNREAD_SHARE * total:
                values = f"{total} records", f"{total - lost} records"
                yield Difference(pairs[place].row, "(records)", _LESS, *values, (topic,))


def differences(
    partitions: Iterable[Partition],
    failed: Mapping[tuple[str, int], Difference],
    doubled: Mapping[tuple[str, int], Difference],
    refused: Mapping[tuple[str, str, int], Difference],
    pairs: Sequence[Pair],
) -> Iterator[Difference]:
    """Yield the differences in what each connection has read of each partition. `failed`: why a batch of a partition
    was not stored; `doubled`: that one was stored twice; `refused`: errors that a connection's fetches of a partition
    met here only."""
    unread = Unread()
    timed = all(run.keeps_times for run in pairs.runs) if isinstance(pairs, Pairs) else True
    for partition in partitions:
        yield from _watermarks(partition, pairs)
        where = partition.topic, partition.index
        differences_of = _PartitionDifferences(partition, failed.get(where), doubled.get(where), unread, timed)
        for reading in partition.readings:
            read = _plainly_the_same(partition, reading, timed)
            if read is None:
                yield from differences_of.reading(reading, pairs, refused)
            else:
                unread.add(partition.topic, read, 0, reading.place)
    yield from unread.differences(pairs)


def _watermarks(partition: Partition, pairs: Sequence[Pair]) -> Iterator[Difference]:
    """High watermarks that are below records of the same answer, as the left's are not."""
    left, right = partition.watermarks
    share = left.below / max(left.answers, 1)
    if right.below > max(LOW_SHARE, share) * right.answers:
        values = f"{left.below:,} of {left.answers:,} answers", f"{right.below:,} of {right.answers:,} answers"
        high, last = right.first
        text = f"{values[1]}, first {high:,} under a record at {last:,}"
        key = partition.topic, str(partition.index)
        row = pairs[right.place].row
        yield Difference(row, "responses.partitions.highWatermark", LOW_WATERMARK, values[0], text, key)


def _plainly_the_same(partition: Partition, reading: Reading, timed: bool) -> int | None:
    """How many records one connection has read when captured, if they are those that it has read here, each at its
    place, and stored in the same way; None where that has to be looked at one by one. `timed`: their times too."""
    if reading.starved or reading.hidden:
        return None
    offsets, digests, forms, times = reading.left.columns()
    there, digests_there, forms_there, times_there = reading.right.columns()
    wanted = partition.all_to_right(offsets)
    if not len(there):
        return None if len(offsets) else 0
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    same = (
        np.array_equal(there[at], wanted)
        and np.array_equal(digests_there[at], digests)
        and np.array_equal(forms_there[at], forms)
        and not (timed and (CREATED[forms] & (times >= 0) & (times_there[at] != times)).any())
        and bool((wanted >= 0).all())
        and bool((partition.all_to_left(there) >= 0).all())
    )
    return len(offsets) if same else None


def acquired(correspondence: Correspondence, failed: Mapping[str, Difference]) -> Iterator[Difference]:
    """Yield the differences in what the members of share groups have acquired together. `failed`: groups that could not
    be joined, and why."""
    for (group, topic, index), both in correspondence.acquired.items():
        partition = correspondence.partition(topic, index)
        there = ((offset, partition.read_at(offset, both.right)) for offset in both.left)
        missing = sum((offset if twin is None else twin) not in both.right for offset, twin in there)
        if not missing:
            continue
        beyond = missing > UNREAD_RECORDS and missing > UNREAD_SHARE * len(both.left)
        values = f"{len(both.left)} records", f"{len(both.left) - missing} records"
        key = group, topic, str(index)
        cause = failed.get(group)
        rule = "consequence" if cause is not None else None if beyond else "read_less"
        yield Difference(both.row, "(records)", "acquired less", *values, key, rule, cause)


def other_form(before: Form, after: Form) -> str:
    """Describe how two ways to store the same records differ; empty: in nothing that counts. (Message sets of before
    0.10 have no times.)"""
    codec = "codec" if before.codec != after.codec else ""
    kind = "timestamp type" if before.magic and after.magic and before.appended != after.appended else ""
    return codec or kind or ("format" if before.magic != after.magic else "")


class _PartitionDifferences:
    """Of one partition."""

    def __init__(
        self, partition: Partition, failed: Difference | None, doubled: Difference | None, unread: Unread, timed: bool
    ) -> None:
        self._partition = partition
        self._failed = failed
        self._doubled = doubled
        self._unread = unread
        self._timed = timed

    def reading(
        self, reading: Reading, pairs: Sequence[Pair], refused: Mapping[tuple[str, str, int], Difference]
    ) -> Iterator[Difference]:
        """Compare what one connection has read."""
        key = (self._partition.topic, str(self._partition.index))
        left, right = reading.left.by_offset(), reading.right.by_offset()
        wanted = {self._partition.read_at(offset, right): (offset, digest) for offset, digest in left.items()}
        mapped = {offset: record for offset, record in wanted.items() if offset is not None}
        furthest = max(right, default=-1)
        row = pairs[reading.place].row
        unread = 0
        end, (captured_end, _) = max(mapped.items(), default=(-1, (-1, b"")))
        # In an open transaction a consumer waits for its end.
        early: Difference | None = None
        error = refused.get((row["connection"], self._partition.topic, self._partition.index))
        starved = [at for at in reading.starved if furthest < at[0] <= end and not self._partition.transactional]
        if starved:
            read = f"to offset {furthest}" if right else "nothing"
            early = Difference(pairs[starved[0][1]].row, "(records)", _EARLY, f"to offset {captured_end}", read, key)
            yield early
        yield from self._forms(reading, mapped, right, row)
        if self._timed:
            yield from self._times(reading, mapped, right, row)
        for offset, (captured, digest) in sorted(mapped.items()):
            if offset not in right:
                # Behind the end of an answer that had less than the captured one, and in no other.
                inside = any(start <= offset <= last for start, last in reading.served)
                behind = any(last < offset for _, last in reading.served)
                rule = "read_less" if offset > furthest or (behind and not inside) else None
                cause = (early or error) if offset > furthest else None
                if cause is not None:
                    rule = "consequence"
                unread += rule == "read_less"
                where = f"offset {captured}"
                yield Difference(row, "(records)", "record missing", where, "not read", key, rule, cause)
            elif right[offset] != digest:
                yield Difference(row, "(records)", "record changed", f"offset {captured}", f"offset {offset}", key)
        for offset in sorted(right):
            twin = self._partition.to_left(offset)
            if twin in reading.hidden and twin not in left:
                yield Difference(
                    row, "(records)", "record of an aborted transaction", "hidden", f"offset {offset}", key
                )
        # What no captured produce accounts for is compared by content.
        unmapped = Counter(digest for offset, digest in left.items() if self._partition.to_right(offset) is None)
        span = (min(mapped, default=0), max(mapped, default=-1))
        strangers = Counter(
            digest
            for offset, digest in right.items()
            if self._partition.to_left(offset) is None and (span[0] <= offset <= span[1] or not self._partition.batches)
        )
        lost = (unmapped - strangers).total()
        beyond = strangers - unmapped
        gained = (beyond & self._partition.gained).total()
        extra = beyond.total() - gained
        if lost:
            rule = "not_stored" if self._partition.failed else "before_capture"
            cause = self._failed if self._partition.failed else None
            yield Difference(row, "(records)", "record missing", f"{lost} records", "not read", key, rule, cause)
        if extra:
            rule = None if self._partition.batches and not self._partition.unseen else "before_capture"
            cause = self._doubled if rule is None else None
            rule = "consequence" if cause is not None else rule
            yield Difference(row, "(records)", "record extra", "not read", f"{extra} records", key, rule, cause)
        if gained:
            values = "record extra", "not read", f"{gained} records"
            yield Difference(row, "(records)", *values, key, "not_stored")
        self._unread.add(self._partition.topic, len(left), unread, reading.place)

    def _times(
        self, reading: Reading, mapped: Mapping[int, tuple[int, bytes]], right: Mapping[int, bytes], row: dict[str, Any]
    ) -> Iterator[Difference]:
        """Records that both sides keep with their producer's time, and whose times differ."""
        left_forms, right_forms = reading.left.forms(), reading.right.forms()
        left_times, right_times = reading.left.times(), reading.right.times()
        shifts = [
            right_times[offset] - left_times[captured]
            for offset, (captured, digest) in mapped.items()
            if right.get(offset) == digest
            and CREATED[left_forms[captured]]
            and CREATED[right_forms[offset]]
            and 0 <= left_times[captured] != right_times[offset]
        ]
        if shifts:
            key = (self._partition.topic, str(self._partition.index))
            least, most = min(shifts), max(shifts)
            by = f"{least:+,} ms" if least == most else f"{least:+,} to {most:+,} ms"
            values = "as sent", f"{len(shifts):,} record{'s' * (len(shifts) != 1)} {by}"
            yield Difference(row, "(records)", OTHER_TIME, *values, key)

    def _forms(
        self, reading: Reading, mapped: Mapping[int, tuple[int, bytes]], right: Mapping[int, bytes], row: dict[str, Any]
    ) -> Iterator[Difference]:
        """Records that both sides have and that are stored in other ways."""
        left_forms, right_forms = reading.left.forms(), reading.right.forms()
        others = Counter(
            (left_forms[captured], right_forms[offset])
            for offset, (captured, _) in mapped.items()
            if offset in right and left_forms[captured] != right_forms[offset]
        )
        for (left, right_form), count in sorted(others.items()):
            before, after = FORMS[left], FORMS[right_form]
            what = other_form(before, after)
            # A newer broker has a newer format of its own.
            rule = "version" if what == "format" and before.magic < after.magic else None
            if what:
                key = (self._partition.topic, str(self._partition.index))
                values = f"{before.text()}: {count} record{'s' * (count != 1)}", after.text()
                yield Difference(row, "(records)", f"stored with another {what}", *values, key, rule)
