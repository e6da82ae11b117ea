"""Sequence numbers of idempotent producers: holes in them, and numbers that are used twice.

Brokers number the batches of a producer within a partition and refuse what does not follow. Which side lost count is
told by what was stored before: its number and its records say which is to come next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import SECOND, CaptureFrame
from kwire.analyzer.findings.error_answers import about, claim, match_of, of, times
from kwire.analyzer.findings.produce import ProduceBatches, Repeat, batches, repeats
from kwire.analyzer.findings.rules import Limits, Match, replaced, rule
from kwire.analyzer.findings.runs import Trouble
from kwire.analyzer.findings.wording import client, count, lasting, moment, partition_name
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.protocol import api_keys, errors

_SEQUENCE = claim((api_keys.PRODUCE,), (45, 59), every=True)
_WRAP = 1 << 31
"""Sequence numbers begin again after so many records."""
_LOST = (errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.DUPLICATE_SEQUENCE_NUMBER, errors.UNKNOWN_PRODUCER_ID)
"""Answers to a batch that was not stored because of its number. Clients take DUPLICATE_SEQUENCE_NUMBER for success."""


@rule(
    "transactions",
    "sequence-reused",
    "error",
    "svc-a (10.0.0.4) gave other records the sequence numbers of a stored batch: 3 batches (9 records) for t-0, "
    "10:01:03 to 10:01:05; they are refused (OUT_OF_ORDER_SEQUENCE_NUMBER (45)) and not in the log.",
    why="A broker knows a batch of an idempotent producer by its sequence number alone. Other records under the same "
    "number are refused, or answered as a duplicate is: ok, and not stored.",
    suppressed_when="Checksum and number of records are the first batch's (produce-retried); the first was not stored "
    "(parts of a batch that was split begin as it did); a batch of the same size after a connection that broke, as "
    "clients make it that give records new times; the second is stored at an offset of its own.",
    advice="A fault of the client: it must take a new epoch or producer id before it numbers from 0 again. Update it, "
    "and write these records again.",
    evidence="forged: other records under a number that is stored, refused and answered as a duplicate; the same "
    "records again",
)
def sequence_reused(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    by: dict[tuple[int, int], list[Repeat]] = defaultdict(list)
    for repeat in _reused(capture):
        by[int(capture.client[written.owner[repeat.again]]), int(written.topic_partition[repeat.again])].append(repeat)
    for (client_, where), others in by.items():
        topic, partition = written.topic_partitions[where]
        rows = [int(written.owner[repeat.again]) for repeat in others]
        again = [repeat.again for repeat in others]
        records = int(np.maximum(written.records[again], 0).sum())
        requested = capture.exchanges.request_time[rows]
        since, until = int(requested.min()), int(requested.max())
        codes = sorted(set(written.error[again].tolist()))
        refused = [f"{errors.name(code)} ({code})" for code in codes if code]
        answered = [f"refused ({', '.join(refused)})"] if refused else []
        answered += ["answered ok, as duplicates are,"] if 0 in codes else []
        who = capture.who(client_)
        text = f"{client(who)} gave other records the sequence numbers of a stored batch: "
        text += f"{count(len(others), 'batch', 'batches')} ({count(records, 'record')}) for "
        text += f"{partition_name((topic, partition))}, {moment(since)}"
        text += f" to {moment(until)}" if len(others) > 1 else ""
        text += f"; {'it is' if len(others) == 1 else 'they are'} {' or '.join(answered)} and not in the log."
        anew = bool((written.sequence[again] == 0).all())
        yield Match(
            text,
            len(others),
            since,
            until,
            who,
            {
                "topic": topic,
                "partition": str(partition),
                "producer_id": str(int(written.producer[again[0]])),
                "records": str(records),
            },
            (int(written.owner[others[0].first]), rows[0], rows[-1]),
            cause="the client numbers from 0 again within one epoch" if anew else "the client uses a number twice",
            proven=True,
        )


def _reused(capture: CaptureFrame) -> list[Repeat]:
    """Batches with the number of a stored one, and other records, that were not stored."""
    written = batches(capture)
    lost = []
    for repeat in repeats(capture)[1]:
        first, again = repeat.first, repeat.again
        error, at, answered = int(written.error[again]), int(written.at[again]), int(written.at[first])
        requested = capture.exchanges.request_time[written.owner[[first, again]]]
        is_later = requested[0] != NULL and requested[1] > requested[0]
        as_duplicate = error == 0 and (at == answered or at < 0) and written.records[again] > 0
        is_known = written.topic_partitions[written.topic_partition[again]][0] not in capture.remade
        if is_later and is_known and (error in _LOST or as_duplicate):
            lost.append(repeat)
    return lost


@rule(
    "transactions",
    "sequence-gap",
    "error",
    "svc-a (10.0.0.4) was refused for t-3: OUT_OF_ORDER_SEQUENCE_NUMBER (45), 2 times, 10:01:03 to 10:01:04; records "
    "may be lost.",
    why="librdkafka stops for good, Java drops the batch and goes on: one is an outage or a hole. The cause is told "
    "where the batch that was stored before was captured: a number beyond the next one is the client's fault; the next "
    "one, refused after a minute and more without a batch, was forgotten (producer.id.expiration.ms); refused at once, "
    "it is the log that lacks something.",
    suppressed_when="The batch was sent behind one that failed: then this is the expected echo. It has the number of a "
    "stored batch, and other records (sequence-reused).",
    advice="Unclean election, retention or DeleteRecords under the producer, a broker restarted with old state.",
    evidence="forged: a gap by itself, and one behind a failed batch; a number that was skipped; the next number after "
    "11 min, and at once",
    idle_s=60,
)
def sequence_gap(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    troubles = of(capture, _SEQUENCE, lasting=False)
    if not troubles:
        return
    written = batches(capture)
    reused = {repeat.again for repeat in _reused(capture)}
    for trouble in troubles:
        rows = [row for row in trouble.rows.tolist() if not _behind(capture, row, trouble.topic_partitions)]
        refused = _refused(capture, written, rows, trouble)
        if not rows or (refused and not set(refused) - reused):
            continue
        if trouble.code == errors.UNKNOWN_PRODUCER_ID and not any(run.lasting for run in trouble.runs):
            continue
        text = f"{client(capture.who(trouble.client))} was refused{about(trouble)}: {trouble.error}, {times(trouble)}"
        causes = (_cause(capture, written, batch, at.idle_s) for batch in refused if batch not in reused)
        cause = next((cause for cause in causes if cause is not None), None)
        text += f"; {cause.text}" if cause else ""
        match = match_of(capture, trouble, f"{text}; records may be lost.")
        yield replaced(match, cause=cause.text, proven=cause.proven, advice=cause.advice) if cause else match


def _refused(capture: CaptureFrame, written: ProduceBatches, rows: list[int], trouble: Trouble) -> list[int]:
    """The batches that a trouble is about, as rows of `ProduceBatches`, in order of time."""
    chosen = np.flatnonzero(arrow.among(written.owner, rows) & (written.error == trouble.code))
    places = set(trouble.topic_partitions)
    some = [row for row in chosen.tolist() if written.topic_partitions[written.topic_partition[row]] in places]
    return sorted(some, key=lambda row: int(capture.exchanges.request_time[written.owner[row]]))


class _Cause(NamedTuple):
    """Why a batch did not follow the one before it."""

    text: str
    proven: bool
    advice: str


def _cause(capture: CaptureFrame, written: ProduceBatches, batch: int, idle_s: float) -> _Cause | None:
    """Return why a batch was out of order, or None where no stored batch before it was captured."""
    requested, answered = capture.exchanges.request_time, capture.exchanges.response_end
    sent_at = int(requested[written.owner[batch]])
    same = (
        (written.producer == written.producer[batch])
        & (written.epoch == written.epoch[batch])
        & (written.topic_partition == written.topic_partition[batch])
        & (written.owner >= 0)
    )
    earlier = np.flatnonzero(same)
    earlier = earlier[(requested[written.owner[earlier]] < sent_at) & (earlier != batch)]
    stored = earlier[(written.error[earlier] == 0) & (written.records[earlier] > 0)]
    if written.producer[batch] < 0 or not len(stored):
        return None
    last = int(stored[requested[written.owner[stored]].argmax()])
    expected = (int(written.sequence[last]) + int(written.records[last])) % _WRAP
    sent = int(written.sequence[batch])
    ahead = (sent - expected) % _WRAP
    if not ahead:
        return _forgotten(capture, written, last, batch, sent_at - int(answered[written.owner[last]]), idle_s)
    numbers = f"{expected:,} expected, {sent:,} sent"
    if ahead >= _WRAP // 2:
        return _Cause(f"the client went back: {numbers}", True, _FAULT)
    failed = earlier[((written.sequence[earlier] - expected) % _WRAP < ahead) & (written.error[earlier] != 0)]
    if len(failed):
        return _Cause(
            f"a batch before it was not stored ({numbers}), and the client went on",
            False,
            "Follow the first failure. An idempotent producer has to stop there, or to take a new epoch.",
        )
    links = capture.exchanges.link[written.owner[[last, batch]]]
    complete = bool(capture.unbroken[links].all()) and not capture.loses
    return _Cause(f"the client skipped sequence numbers: {numbers}", complete, _FAULT)


_FAULT = (
    "A fault of the client, which numbers its batches wrongly: update it. Until then a new producer begins anew; write "
    "again what was refused."
)


def _forgotten(
    capture: CaptureFrame, written: ProduceBatches, last: int, batch: int, idle: int, idle_s: float
) -> _Cause:
    """The cause where the number is the next one: the broker does not know the last batch any more."""
    where = written.topic_partitions[written.topic_partition[batch]]
    begun, ended = (int(capture.exchanges.request_time[written.owner[row]]) for row in (last, batch))
    moved = any(move.topic_partition == where and begun <= move.time <= ended for move in root_causes.moves(capture))
    if moved:
        return _Cause(
            "the sequence is unbroken, and the leader moved: the new one lacks the last batches",
            False,
            "An unclean election loses records: see unclean.leader.election.enable and min.insync.replicas.",
        )
    if idle >= idle_s * SECOND:
        return _Cause(
            f"producer state expired while idle: the sequence is unbroken, nothing was written for {lasting(idle)}",
            False,
            "producer.id.expiration.ms (transactional.id.expiration.ms before 3.4) above the longest pause between two "
            "writes; brokers up to 2.3 forget producers whose records retention took away. A new producer after the "
            "error; write again what was refused.",
        )
    return _Cause("the sequence is unbroken: the broker does not know the last batch any more", False, _OF_THE_LOG)


_OF_THE_LOG = "Retention or DeleteRecords under the producer, or a broker that was restarted with old state."


def _behind(capture: CaptureFrame, row: int, places: list[tuple[str, int]]) -> bool:
    """Whether a request was sent before an earlier one of the same connection to those partitions was answered, and
    failed."""
    rows, failed = capture.exchanges, _failed(capture)
    # Whatever failed while this one was on its way, or just before, leaves a hole before it.
    recent = rows.request_time[row] - SECOND
    return any(
        exchange < rows.exchange[row] and answered >= recent
        for where in places
        for exchange, answered in failed.get((int(rows.link[row]), where), ())
    )


def _failed(capture: CaptureFrame) -> dict[tuple[int, tuple[str, int]], list[tuple[int, int]]]:
    """(ordinal, time of the answer) of failed requests, by connection and topic-partition. Computed once."""
    if "failed" not in capture.memo:
        rows, parts = capture.exchanges, capture.partitions
        failures = defaultdict(list)
        for part in np.flatnonzero((parts.owner >= 0) & (parts.error > 0)).tolist():
            owner = int(parts.owner[part])
            key = int(rows.link[owner]), capture.topic_partitions[parts.topic_partition[part]]
            failures[key].append((int(rows.exchange[owner]), int(rows.response_end[owner])))
        capture.memo["failed"] = failures
    cached: dict[tuple[int, tuple[str, int]], list[tuple[int, int]]] = capture.memo["failed"]
    return cached
