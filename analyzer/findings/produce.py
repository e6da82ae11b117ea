"""Batches written: refused, repeated, inverted, damaged, small, uncompressed, dated wrongly, badly spread."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import NO_CODE, OF_BATCHES, SECOND, CaptureFrame, once
from kwire.analyzer.findings.error_answers import about, claim, match_of, of, times
from kwire.analyzer.findings.query import Severity
from kwire.analyzer.findings.rules import Limits, Match, rule
from kwire.analyzer.findings.runs import Trouble
from kwire.analyzer.findings.wording import client, count, lasting, listed, name, partition_name, size, some
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.frame import NULL, Frame, codes_of
from kwire.analyzer.frame.grouping import busiest_window, first_rows, rows_by_key, sort_by, split, sum_positive_by
from kwire.analyzer.protocol import api_keys, errors

_TOO_LARGE = claim((api_keys.PRODUCE,), (errors.MESSAGE_TOO_LARGE, errors.RECORD_LIST_TOO_LARGE))
_REPLICAS = claim((api_keys.PRODUCE,), (19, 20))
_EXPIRED = claim((api_keys.PRODUCE,), (7,))


class ProduceBatches(NamedTuple):
    """Record batches of Produce requests, arrays with a value for each batch. row: of the table; owner: the exchange;
    topic_partition: its number in `topic_partitions`; error: of its topic-partition in the answer; at: offset in the
    answer."""

    row: np.ndarray
    owner: np.ndarray
    topic_partition: np.ndarray
    topic_partitions: list[tuple[str, int]]
    producer: np.ndarray
    epoch: np.ndarray
    sequence: np.ndarray
    records: np.ndarray
    size: np.ndarray
    error: np.ndarray
    at: np.ndarray


@once
def batches(capture: CaptureFrame) -> ProduceBatches:
    """The batches that clients wrote, in order."""
    table = capture.table("batches")
    if not len(table):
        none = np.zeros(0, np.int64)
        return ProduceBatches(none, none, none, [], *[none] * 7)
    rest = () if table.is_cached else OF_BATCHES.greatest
    table.load({**OF_BATCHES.numbers, **dict.fromkeys(rest, np.int64)}, OF_BATCHES.texts)
    side, sides = table.text("side")
    chosen = spill.true_rows(arrow.among(side, codes_of(sides, "produce")))
    places, known = capture.number_topic_partitions(table)
    owner, topic_partition = spill.take(capture.owners(table), chosen), spill.take(places, chosen)
    columns = zip(_COLUMNS, table.together(tuple(_COLUMNS.values())), strict=True)
    values = {field: spill.take(column, chosen) for field, column in columns}
    error, at = _answers(capture, owner, topic_partition, known)
    return ProduceBatches(chosen, owner, topic_partition, known, **values, error=error, at=at)


_COLUMNS = {
    "producer": "producer_id",
    "epoch": "producer_epoch",
    "sequence": "base_sequence",
    "records": "record_count",
    "size": "batch_bytes",
}


def _answers(
    capture: CaptureFrame, owner: np.ndarray, topic_partition: np.ndarray, places: list[tuple[str, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Join the error and the base offset in the answer to batches, by exchange and topic-partition (of `places`)."""
    parts, offset = capture.partitions, capture.table("partitions")["offset"]
    if not len(owner) or not len(parts.owner):
        return np.full(len(owner), NO_CODE, np.int16), np.full(len(owner), NULL, np.int64)
    numbers = {name: number for number, name in enumerate(capture.topic_partitions)}
    number_of = np.array([numbers.get(name, -1) for name in places], np.int32)
    batch_keys = Frame(len(owner), {"exchange": owner, "topic_partition": spill.take(number_of, topic_partition)})
    columns = {
        "exchange": parts.owner,
        "topic_partition": parts.topic_partition,
        "error_code": parts.error,
        "offset": offset,
    }
    answers = batch_keys.left_join(
        Frame(len(offset), columns), on=("exchange", "topic_partition"), take=("error_code", "offset")
    )
    return answers["error_code"], answers["offset"]


def _who(capture: CaptureFrame, client_: int) -> str:
    return client(capture.who(client_))


@rule(
    "produce",
    "message-too-large",
    "error",
    "svc-a (10.0.0.4) was refused for err-0: MESSAGE_TOO_LARGE (10), 4 times, 10:01:03 to 10:01:09; 4 records were not "
    "written. The request had 1.3 MB, the limit is 1,048,588 bytes unless set.",
    why="The broker decides: one is a lost record for most applications.",
    suppressed_when="The client splits the batch, and all of its parts are stored within 5 s (a note): several smaller "
    "batches whose records have the times, and of an idempotent producer the sequence numbers, of the refused one. One "
    "record cannot be split.",
    advice="Raise max.message.bytes and the consumers' limits, or split what is sent.",
    evidence="errors-librdkafka-4.3; forged: refused and split; one record refused among others that are stored",
    split_s=5,
)
def too_large(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    troubles = of(capture, _TOO_LARGE)
    sent_by = _sent_by(capture, troubles) if troubles else {}
    for trouble in troubles:
        sent = int(capture.column("request_bytes")[trouble.rows].max())
        split_, lost, records = _outcomes(capture, trouble, sent_by, int(at.split_s * SECOND))
        text = f"{_who(capture, trouble.client)} was refused{about(trouble)}: {trouble.error}, {times(trouble)}"
        if records:
            text += f"; {count(records, 'record')} {'was' if records == 1 else 'were'} not written"
            text += f", {count(split_, 'other batch', 'other batches')} went in smaller parts" if split_ else ""
        elif split_ and not lost:
            text += "; the client split what was refused, and all of it was stored"
        text += f". The request had {size(sent)}, the limit is "
        # Requests with several batches, and what brokers make of compressed ones, are larger than a batch.
        text += "1,048,588 bytes unless set." if sent > _LIMIT else "set lower than the usual 1,048,588 bytes."
        is_split = split_ > 0 and not lost
        yield match_of(
            capture,
            trouble,
            text,
            "note" if is_split else None,
            "the client split the batch" if is_split else _TOO_LARGE_FOR[trouble.code],
            True,
        )


_TOO_LARGE_FOR = {
    errors.MESSAGE_TOO_LARGE: "the batch is over max.message.bytes",
    errors.RECORD_LIST_TOO_LARGE: "the batch is over segment.bytes",
}
_LIMIT = 1_048_588
"""max.message.bytes unless set."""

_SentBy = dict[int, dict[tuple[str, int], list[np.ndarray]]]
"""Rows of `ProduceBatches` by client, then by topic-partition."""


def _sent_by(capture: CaptureFrame, troubles: list[Trouble]) -> _SentBy:
    """Batches that these clients sent to the topic-partitions of their troubles."""
    written = batches(capture)
    wanted = {where for trouble in troubles for where in trouble.topic_partitions}
    places = [number for number, where in enumerate(written.topic_partitions) if where in wanted]
    rows = spill.where(len(written.topic_partition), lambda block: arrow.among(written.topic_partition[block], places))
    sent_by: _SentBy = defaultdict(lambda: defaultdict(list))
    for (client_, where), group_rows in rows_by_key(
        rows, capture.client[np.maximum(written.owner[rows], 0)], written.topic_partition[rows]
    ).items():
        sent_by[client_][written.topic_partitions[where]].append(group_rows)
    return sent_by


def _outcomes(capture: CaptureFrame, trouble: Trouble, sent_by: _SentBy, within: int) -> tuple[int, int, int]:
    """Refused batches that were split and stored, those that were not stored, and how many records these hold (0:
    unknown). A batch that was sent several times counts once."""
    written, rows = batches(capture), np.zeros(0, np.int64)
    for where in trouble.topic_partitions:
        rows = np.concatenate([rows, *sent_by.get(trouble.client, {}).get(where, ())])
    rows = np.sort(rows)
    refused = rows[arrow.among(written.owner[rows], trouble.rows) & (written.error[rows] == trouble.code)]
    if not len(refused):
        return 0, len(trouble.rows), 0
    good = rows[(written.error[rows] == 0) & (written.owner[rows] >= 0)]
    table = capture.table("batches")
    columns = ["crc", "first_timestamp", "last_timestamp"]
    of_refused, of_good = (table.rows(written.row[some_], columns) for some_ in (refused, good))
    stamps = {
        batch: (row["first_timestamp"], row["last_timestamp"])
        for batch, row in zip(good.tolist(), of_good, strict=True)
    }
    distinct = {
        (int(written.topic_partition[batch]), *row.values(), int(written.size[batch])): (batch, row)
        for batch, row in zip(refused.tolist(), of_refused, strict=True)
    }
    lost, records = 0, 0
    for batch, row in distinct.values():
        time = int(capture.exchanges.response_end[written.owner[batch]])
        requested = capture.exchanges.request_time[written.owner[good]]
        later = good[(requested >= time) & (requested <= time + within)]
        parts = [part for part in later.tolist() if _is_part(written, batch, part, row, stamps[part])]
        if len(parts) < 2 or written.records[parts].sum() < written.records[batch]:
            lost += 1
            records += max(int(written.records[batch]), 0)
    return len(distinct) - lost, lost, records


def _is_part(
    written: ProduceBatches, whole: int, part: int, row: dict[str, Any], stamps: tuple[int | None, int | None]
) -> bool:
    """Whether a stored batch may hold some of the records of a refused one."""
    if (
        written.topic_partition[part] != written.topic_partition[whole]
        or written.records[part] >= written.records[whole]
    ):
        return False
    times_ = row["first_timestamp"], *stamps, row["last_timestamp"]
    known = [time for time in times_ if time is not None]
    if len(known) == len(times_) and not known[0] <= min(known[1:-1]) <= max(known[1:-1]) <= known[-1]:
        return False
    if written.producer[whole] < 0 or written.epoch[part] != written.epoch[whole]:
        return True
    ahead = (int(written.sequence[part]) - int(written.sequence[whole])) % (1 << 31)
    return bool(ahead < written.records[whole])


@rule(
    "produce",
    "not-enough-replicas",
    "error",
    "rep-0 lacks in-sync replicas: lab-producer (127.0.0.1) was refused 65 times, 10:01:03 to 10:01:24.",
    why="30 s is replica.lag.time.max.ms, the time that a dead replica may still block.",
    suppressed_when="Under 30 s and the client wrote again after (a warning). NOT_ENOUGH_REPLICAS_AFTER_APPEND is "
    "stored: a retry without idempotence duplicates.",
    advice="Bring the replica back; do not lower min.insync.replicas.",
    evidence="cluster-kraft-3.9, cluster-zk-2.8",
    block_s=30,
)
def not_enough_replicas(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _REPLICAS):
        where = (
            partition_name(trouble.topic_partitions[0])
            if len(trouble.topic_partitions) == 1
            else f"topic {name(trouble.thing.topic)}"
        )
        text = f"{where} lacks in-sync replicas: {_who(capture, trouble.client)} was refused {times(trouble)}."
        # A capture that ends while the client still tries does not show that it gave up.
        tried_on = trouble.cleared or trouble.until >= capture.span[1] - at.block_s * SECOND
        brief = trouble.longest < at.block_s * SECOND and tried_on
        cause = "stored all the same: a retry duplicates" if trouble.code == 20 else None
        yield match_of(capture, trouble, text, "warning" if brief else None, cause, True if cause else None)


@rule(
    "produce",
    "produce-timed-out-on-broker",
    "error",
    "2 Produce requests of svc-a (10.0.0.4) for t-0 were not replicated in time (REQUEST_TIMED_OUT, 30.0 s): the "
    "records may be stored.",
    why="The broker answers so when the request's own timeout (30 s unless set) has passed without the followers.",
    suppressed_when="The answer came after less than 1 s: then the error is told as it is, for it may have another "
    "origin.",
    advice="Find the slow or dead follower: its disk, its network.",
    evidence="forged: an answer with the error after 30 s, and one at once",
    least_s=1,
)
def timed_out(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    for trouble in of(capture, _EXPIRED):
        waited = int(capture.column("latency_us")[trouble.rows].max())
        late = waited >= at.least_s * SECOND
        text = f"{count(trouble.answers, 'Produce request')} of {_who(capture, trouble.client)}{about(trouble)} "
        text += "was " if trouble.answers == 1 else "were "
        if late or waited < 0:
            text += f"not replicated in time (REQUEST_TIMED_OUT{f', {lasting(waited)}' if late else ''}): the records "
            text += "may be stored."
        else:
            text += f"answered {trouble.error} after {lasting(waited)}, long before the 30 s that the broker waits for "
            text += "followers unless told otherwise."
        cause = "followers did not fetch in time" if late else "the error came long before the timeout"
        known = waited >= 0  # not where the answer seems to come before its request
        yield match_of(capture, trouble, text, None, cause if known else None, late if known else None)


@rule(
    "produce",
    "acks-zero",
    "note",
    "svc-a (10.0.0.4) writes t with acks=0 (40 requests): losses stay invisible.",
    why="A fact, no threshold; with --policy acks=all a warning.",
    suppressed_when="Never otherwise.",
    advice="acks=1 or all where a loss matters.",
    evidence="errors-librdkafka-4.3, old-java-0.10.2",
    depends_on=("acks",),
)
def acks_zero(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    strict = capture.query.policies.get("acks") == "all"
    acks = capture.column("acks")
    wrong = (acks == 0) | ((acks == 1) if strict else False)
    rows = spill.true_rows(wrong & (capture.exchanges.api == api_keys.PRODUCE))
    parts = list(split(rows, spill.take(capture.client, rows), spill.take(acks, rows)))
    for group_rows, topics in zip(parts, _topics(capture, parts), strict=True):
        who, level = capture.who(int(capture.client[group_rows[0]])), int(acks[group_rows[0]])
        text = f"{client(who)} writes {some(topics)} with acks={level} ({count(len(group_rows), 'request')}): losses "
        text += "stay invisible." if level == 0 else "of the leader lose what was acknowledged."
        requested = capture.exchanges.request_time[group_rows]
        yield Match(
            text,
            len(group_rows),
            int(requested.min()),
            int(requested.max()),
            who,
            {"topic": ",".join(topics[:20]) or None},
            tuple(group_rows[[0, 0, -1]].tolist()),
            severity="warning" if strict else None,
        )


def _topics(capture: CaptureFrame, parts: list[np.ndarray]) -> list[list[str]]:
    """Topics of each part of exchanges, which have none in common."""
    if not parts:
        return []
    rows = capture.partitions
    part_of = spill.full(
        len(capture.exchanges) + 1, -1, np.int32
    )  # the last is of topic-partitions without an exchange
    for number, part_rows in enumerate(parts):
        part_of[part_rows] = number
    pairs = [np.zeros(0, np.int64)]
    for block in spill.blocks(len(rows.topic_partition)):
        part = part_of[rows.owner[block]].astype(np.int64)
        pairs.append(arrow.distinct((part << 32 | rows.topic_partition[block])[part >= 0]))
    topics: list[set[str]] = [set() for _ in parts]
    for pair in arrow.distinct(np.concatenate(pairs)).tolist():
        topics[pair >> 32].add(capture.topic_partitions[pair & 0xFFFFFFFF][0])
    return [sorted(some) for some in topics]


class Repeat(NamedTuple):
    """A batch with the sequence number of an earlier one. first, again: rows of `ProduceBatches`; first: the first that
    was stored, if several came before."""

    first: int
    again: int


@once
def repeats(capture: CaptureFrame) -> tuple[list[Repeat], list[Repeat]]:
    """Batches of idempotent producers with a number that an earlier batch had (same producer, epoch, partition and
    sequence), in order of time: those that were sent again, and those with other records than the one that was
    stored."""
    written = batches(capture)
    chosen = spill.true_rows((written.producer >= 0) & (written.sequence >= 0) & (written.owner >= 0))  # NULL is below
    key = [
        spill.take(column, chosen)
        for column in (written.producer, written.epoch, written.topic_partition, written.sequence)
    ]
    groups = list(split(chosen, *key, least=2))
    if not groups:
        return [], []
    # Checksums are read of the few batches whose number came again.
    concerned = np.sort(np.concatenate(groups))
    rows = capture.table("batches").rows(written.row[concerned], ["crc"])
    checksums = {batch: row["crc"] for batch, row in zip(concerned.tolist(), rows, strict=True)}
    again: list[Repeat] = []
    others: list[Repeat] = []
    for group_rows in groups:
        first, *later = _sent(capture, written, group_rows.tolist())
        for row in later:
            repeat = Repeat(first, row)
            if written.owner[row] == written.owner[first]:
                continue
            if _is_same(capture, written, checksums, repeat):
                again.append(repeat)
            elif written.error[first] == 0:
                others.append(repeat)
            if written.error[first] != 0 and written.error[row] == 0:
                first = row
    requested = capture.exchanges.request_time
    for some_repeats in (again, others):
        some_repeats.sort(key=lambda repeat: int(requested[written.owner[repeat.again]]))
    return again, others


def _is_same(capture: CaptureFrame, written: ProduceBatches, checksums: dict[int, int | None], repeat: Repeat) -> bool:
    """Whether a batch holds the records of the first. Clients that make a batch anew when they send it again (KafkaJS)
    give it other timestamps, so another checksum; they do so where the first failed, or its connection broke."""
    first, again = repeat.first, repeat.again
    if written.records[first] != written.records[again]:
        return False
    known = checksums[first] is not None and checksums[again] is not None
    if not known or checksums[first] == checksums[again]:
        return True
    rows, owners = capture.exchanges, written.owner[[first, again]]
    link = int(rows.link[owners[0]])
    broke = capture.closed[link] != "open" and capture.link_times("last_time")[link] <= rows.request_time[owners[1]]
    return bool(written.size[first] == written.size[again] and (written.error[first] != 0 or broke))


_HANDED_ON: Final = 8
"""The last batches among which one is looked for that a proxy handed on: the two are milliseconds apart."""


def _sent(capture: CaptureFrame, written: ProduceBatches, rows: list[int]) -> list[int]:
    """Return the batches, of some, that their client sent: without those that a proxy handed on.

    A proxy's request lies within the other's time, on another connection, with its correlation id."""
    correlation_id, exchanges = capture.column("correlation_id"), capture.exchanges
    sent: list[int] = []
    for row in rows:
        owner = int(written.owner[row])
        for other in sent[-_HANDED_ON:]:
            outer, inner = sorted((owner, int(written.owner[other])), key=lambda at: int(exchanges.request_time[at]))
            if (
                exchanges.link[outer] != exchanges.link[inner]
                and correlation_id[outer] == correlation_id[inner]
                and NULL != exchanges.response_end[inner] <= exchanges.response_end[outer]
            ):
                break
        else:
            sent.append(row)
    return sent


@rule(
    "produce",
    "produce-retried",
    "note",
    "svc-a (10.0.0.4) sent 37 batches again, 3 of them after they had been stored.",
    why="Retries are designed for; where one batch in a hundred (of a thousand at least) is repeated, something keeps "
    "failing, and it is a warning.",
    suppressed_when="Bytes that TCP sent again; parts of a batch that was split; a request that a proxy handed on and "
    "that was captured on both sides of it; other records under the same sequence number (sequence-reused): a batch is "
    "the same by its checksum and its number of records.",
    advice="Follow the first failure of each pair.",
    evidence="forged: a batch sent twice; cluster-*",
    share=0.01,
    batches=1000,
)
def produce_retried(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    by_client: dict[int, list[Repeat]] = defaultdict(list)
    for repeat in repeats(capture)[0]:
        by_client[int(capture.client[written.owner[repeat.first]])].append(repeat)
    if not by_client:
        return
    whole = np.bincount(capture.client[written.owner[written.owner >= 0]], minlength=len(capture.clients))
    for client_, resent in by_client.items():
        stored = sum(int(written.error[repeat.first] == 0) for repeat in resent)
        text = f"{_who(capture, client_)} sent {count(len(resent), 'batch', 'batches')} again"
        text += f", {stored:,} of them after {'it' if stored == 1 else 'they'} had been stored" * bool(stored)
        many = whole[client_] >= at.batches and len(resent) >= at.share * whole[client_]
        rows = [int(written.owner[repeat.again]) for repeat in resent]
        yield Match(
            text + ".",
            len(resent),
            int(capture.exchanges.request_time[rows[0]]),
            int(capture.exchanges.request_time[rows[-1]]),
            capture.who(client_),
            {},
            (int(written.owner[resent[0].first]), rows[0], rows[-1]),
            severity="warning" if many else None,
        )


@rule(
    "produce",
    "duplicate-records",
    "error",
    "2 batches of svc-a (10.0.0.4) to t-0 are stored twice, at two offsets each.",
    why="A broker gives a repeated batch its old offset; two offsets are two copies.",
    suppressed_when="The second answer has the first's offset: the broker noticed.",
    advice="Find out why the broker forgot the producer (restart with old state, expired id).",
    evidence="forged: a batch acknowledged at two offsets",
)
def duplicate_records(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    twice: dict[tuple[int, int], list[Repeat]] = defaultdict(list)
    for repeat in repeats(capture)[0]:
        first, again = repeat.first, repeat.again
        good = written.error[first] == 0 and written.error[again] == 0
        if good and written.at[first] >= 0 and written.at[again] >= 0 and written.at[first] != written.at[again]:
            twice[int(capture.client[written.owner[first]]), int(written.topic_partition[first])].append(repeat)
    for (client_, where), resent in twice.items():
        where_name = partition_name(written.topic_partitions[where])
        text = f"{count(len(resent), 'batch', 'batches')} of {_who(capture, client_)} to {where_name} "
        text += f"{'is' if len(resent) == 1 else 'are'} stored twice, at two offsets each."
        rows = [int(written.owner[repeat.again]) for repeat in resent]
        topic, partition = written.topic_partitions[where]
        yield Match(
            text,
            len(resent),
            int(capture.exchanges.request_time[rows[0]]),
            int(capture.exchanges.request_time[rows[-1]]),
            capture.who(client_),
            {"topic": topic, "partition": str(partition)},
            (int(written.owner[resent[0].first]), rows[0], rows[-1]),
            cause="both answers have their own offset",
            proven=True,
        )


_RETRIABLE = (3, 5, 6, 7, 19, 20, 56, 74, 75, 89, 100)


def _passed(
    requested: np.ndarray, answered: np.ndarray, alike: np.ndarray, failed: np.ndarray, good: np.ndarray
) -> Iterator[tuple[int, int, int]]:
    """For batches of one client to one topic-partition: yield those that `failed`, with the first good one sent before
    their answer, and the first good one `alike` sent after it. Takes time in proportion to the batches and those in
    flight, not to their pairs."""
    stored, rows = np.flatnonzero(good), np.flatnonzero(failed)
    if not len(stored) or not len(rows):
        return
    sent, stored = sort_by(requested[stored], stored)
    like = np.argsort(alike[stored], kind="stable")  # of those that are alike by time
    kinds, times, first = alike[stored][like], sent[like], stored[like]
    # The first from each on that is like it: others stand farther away than all rows are.
    first = np.minimum.accumulate((first + kinds * len(requested))[::-1])[::-1] - kinds * len(requested)
    begins, ends = (np.searchsorted(kinds, alike[rows], side=side).tolist() for side in ("left", "right"))
    since, until = np.searchsorted(sent, requested[rows], "right"), np.searchsorted(sent, answered[rows], "left")
    under_way = zip(since.tolist(), until.tolist(), strict=True)
    for row, begin, end, (first_stored, past) in zip(rows.tolist(), begins, ends, under_way, strict=True):
        at = begin + int(np.searchsorted(times[begin:end], answered[row], "left"))
        if at < end and first_stored < past:
            yield row, int(stored[first_stored:past].min()), int(first[at])


@rule(
    "produce",
    "retry-may-reorder",
    "warning",
    "svc-a (10.0.0.4) retries without idempotence with several requests open: order in t-3 was inverted 2 times.",
    why="Proven by the offsets: an earlier batch failed, a later one was stored, then the earlier. Once is what the "
    "first second of a topic may bring (a note; seen with librdkafka, pcapng-comments-4.3).",
    suppressed_when="The producer is idempotent; the batches came from two clients.",
    advice="enable.idempotence, or one request in flight.",
    evidence="forged: fail, succeed, retry; and with a producer id",
    turns=2,
    by_clock=True,
)
def retry_may_reorder(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    if not (written.error > 0).any():
        return
    plain = spill.true_rows((written.producer < 0) & (written.owner >= 0))  # NULL is below
    failed = plain[arrow.among(written.error[plain], _RETRIABLE)]
    if not len(failed):
        return
    stamps = [capture.table("batches").numbers(f"{which}_timestamp") for which in ("first", "last")]
    first, last = (spill.take(stamp, written.row) for stamp in stamps)
    requested, answered = capture.exchanges.request_time, capture.exchanges.response_end
    for group_rows in split(
        plain, spill.take(capture.client, spill.take(written.owner, plain)), spill.take(written.topic_partition, plain)
    ):
        retried = arrow.among(written.error[group_rows], _RETRIABLE)
        if not retried.any():
            continue
        owner = written.owner[group_rows]
        alike = grouping.group(
            *(column[group_rows] for column in (written.records, written.size, first, last))
        ).numbers()
        threes = _passed(requested[owner], answered[owner], alike, retried, written.error[group_rows] == 0)
        at_ = written.at[group_rows]
        some_ = [owner[[*three]].tolist() for three in threes if at_[three[2]] > at_[three[1]] >= 0]
        if not some_:
            continue
        client_, where = int(capture.client[owner[0]]), int(written.topic_partition[group_rows[0]])
        topic, partition = written.topic_partitions[where]
        text = f"{_who(capture, client_)} retries without idempotence with several requests open: order in "
        text += f"{partition_name(written.topic_partitions[where])} was inverted {count(len(some_), 'time')}."
        yield Match(
            text,
            len(some_),
            int(requested[some_[0][0]]),
            int(requested[some_[-1][2]]),
            capture.who(client_),
            {"topic": topic, "partition": str(partition)},
            (some_[0][0], some_[0][1], some_[-1][2]),
            cause="offsets of the batches",
            proven=True,
            severity=None if len(some_) >= at.turns else "note",
        )


@rule(
    "produce",
    "mixed-idempotence",
    "note",
    "Topic t is written with idempotence by svc-a (10.0.0.4) and without by svc-b (10.0.0.5).",
    why="A fact: librdkafka's default is off, Java's on since 3.0.",
    suppressed_when="All writers of the topic are of one kind.",
    advice="One setting of enable.idempotence for all writers of the topic.",
    evidence="forged: two producers; txn-librdkafka-4.3 says nothing",
)
def mixed_idempotence(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    kinds: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    safe = written.producer >= 0  # NULL is below
    if safe.all() or not safe.any():
        return
    good = spill.true_rows(written.owner >= 0)
    owner = spill.take(written.owner, good)
    columns = (
        spill.take(written.topic_partition, good),
        spill.take(capture.client, owner),
        spill.take(safe.view(np.int8), good),
    )
    firsts = np.sort(np.array([group_rows[0] for group_rows in split(None, *columns)], np.int64))
    first = zip(*(column[firsts].tolist() for column in (*columns, owner)), strict=True)
    for where, client_, kind, row in first:
        kinds.setdefault(written.topic_partitions[where][0], ({}, {}))[kind].setdefault(client_, row)
    for topic, (without, with_) in kinds.items():
        if without and with_:
            text = f"Topic {name(topic)} is written with idempotence by {_several(capture, with_)} and without by "
            rows = next(iter(with_.values())), next(iter(without.values()))
            yield Match(
                text + f"{_several(capture, without)}.",
                len(with_) + len(without),
                *capture.span,
                {},
                {"topic": topic},
                rows,
            )


def _several(capture: CaptureFrame, clients: dict[int, int]) -> str:
    return listed([_who(capture, client_number) for client_number in list(clients)[:3]], len(clients))


@rule(
    "produce",
    "tiny-batches",
    "note",
    "svc-a (10.0.0.4) sends 3,400 Produce requests a second to 10.0.0.1:9092 with 1.2 records (310 bytes) each; "
    "linger.ms=5 would make about 200.",
    why="1 KiB is 6 % of the default batch of 16 KiB: headers and requests cost more than what they carry. A warning "
    "from 1,000 a second over 10 s on. What a shorter capture holds is told for as long as it is.",
    suppressed_when="Batches of 1 KiB or 3 records in the median; fewer than 100 a second over 10 s (1,000 in all); a "
    "capture of less than a second; batches that are a transaction each or every other one, whose ends send them "
    "whatever linger.ms is (tiny-transactions).",
    advice="linger.ms (longer than the pauses between batches of a partition), one producer, the sticky partitioner.",
    evidence="forged: 1,000 small requests in 10 s, and 900",
    rate=100,
    much=1000,
    window_s=10,
    small_bytes=1024,
    records=3,
    linger_ms=5,
    by_clock=True,
)
def tiny_batches(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    if not len(written.row):
        return
    for requests, some_ in _often(capture, written, at.rate * at.window_s):
        sizes, records = spill.take(written.size, some_), spill.take(written.records, some_)
        # Compressed batches of the old formats do not say how many records they hold: NULL is below, and may be many.
        counted = records >= 0
        records = np.where(counted, records, np.iinfo(np.int64).max) if not counted.all() else records
        if not (_mostly_below(sizes, at.small_bytes) and _mostly_below(records, at.records)):
            continue
        requested, by_time = sort_by(spill.take(capture.exchanges.request_time, requests), requests)
        most, first, past = busiest_window(requested, int(at.window_s * SECOND))
        seconds = min(at.window_s, capture.seconds)
        if most < at.rate * at.window_s or seconds < 1:
            continue
        if (
            2 * _ended(capture, int(capture.client[requests[0]]), int(requested[first]), int(requested[past - 1]))
            >= most
        ):
            continue
        rate = most / seconds
        linger = _helps(capture, written, some_, requested[first:past], at.linger_ms)
        who = capture.who(int(capture.client[requests[0]]), int(capture.broker[requests[0]]))
        text = f"{client(who)} sends {rate:,.0f} Produce requests a second to {who['broker']} "
        text += f"(in the {lasting(seconds * SECOND)} of the capture) " if seconds < at.window_s else ""
        text += "with "
        text += f"{np.mean(records, where=counted):.1f} records ({size(float(np.median(sizes)))}) each"
        text += f"; linger.ms={linger[0]:.0f} would make about {linger[1] / seconds:,.0f}." if linger else "."
        worst = int(by_time[first])
        yield Match(
            text,
            most,
            int(requested[first]),
            int(requested[past - 1]),
            who,
            {},
            (int(requests[0]), worst, int(requests[-1])),
            severity="warning" if most >= at.much * at.window_s else None,
        )


def _helps(
    capture: CaptureFrame, written: ProduceBatches, rows: np.ndarray, requested: np.ndarray, linger_ms: float
) -> tuple[float, int] | None:
    """The least linger.ms, of some, that makes half of the requests or fewer, and how many; None: none does. A client
    that lingers already sends batches of a partition no closer than that. rows: its batches; requested: times of the
    requests in question, in order."""
    times_, places = spill.take(capture.exchanges.request_time, written.owner[rows]), written.topic_partition[rows]
    within = (times_ >= requested[0]) & (times_ <= requested[-1])
    times_, order = sort_by(times_[within], np.flatnonzero(within))
    by_place = rows_by_key(times_, places[order])
    for linger in (linger_ms, 4 * linger_ms, 20 * linger_ms):
        micros = int(linger * 1000)
        of_each = sum(_lingering(some_times, micros) for some_times in by_place.values())
        fewer = max(_lingering(requested, micros), min(of_each, len(requested)))
        if 2 * fewer <= len(requested):
            return linger, fewer
    return None


def _ended(capture: CaptureFrame, client_: int, since: int, until: int) -> int:
    """Number of transactions that a client ended in that time."""
    ends = _ends(capture).get((client_,))
    return 0 if ends is None else int(np.diff(np.searchsorted(ends, [since, until + 1]))[0])


@once
def _ends(capture: CaptureFrame) -> dict[tuple[int, ...], np.ndarray]:
    """Times when transactions ended, by client, in order."""
    rows = capture.of_api(api_keys.END_TXN)
    times_, rows = sort_by(spill.take(capture.exchanges.request_time, rows), rows)
    return rows_by_key(times_, spill.take(capture.client, rows))


def _often(capture: CaptureFrame, written: ProduceBatches, least: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (Produce requests, their rows of `ProduceBatches`) of each client and broker with at least so many
    requests, if they have batches."""
    rows = capture.of_one(
        spill.true_rows((capture.exchanges.api == api_keys.PRODUCE) & (capture.exchanges.request_time != NULL))
    )
    whose = spill.take(capture.client, rows), spill.take(capture.broker, rows)
    if len(written.owner) == len(rows) and (written.owner == rows).all():  # mostly: one batch a request
        yield from ((spill.take(rows, places), places) for places in split(None, *whose, least=least))
        return
    often = list(split(rows, *whose, least=least))
    number_of = spill.full(len(capture.exchanges) + 1, -1, np.int32)
    for number, requests in enumerate(often):
        number_of[requests] = number
    group = spill.take(number_of, written.owner)
    of_group = spill.true_rows(group >= 0)
    for some_ in split(of_group, spill.take(group, of_group)):
        yield often[group[some_[0]]], some_


def _mostly_below(values: np.ndarray, limit: float) -> bool:
    """Whether the median of values is below a limit; sorts only if half of them are."""
    below = int(np.count_nonzero(values < limit))
    return float(np.median(values)) < limit if 2 * below == len(values) else 2 * below > len(values)


def _lingering(times_: np.ndarray, linger: int) -> int:
    """Number of requests if each waited so long for more records."""
    sent, at, times = 0, 0, np.ascontiguousarray(times_).data
    count_, after = len(times), bisect.bisect_right
    while at < count_:
        sent += 1
        until, near = times[at] + linger, at + 64  # few are sent in so short a time: not all are to be looked through
        at = after(times, until, at, near if near < count_ and times[near] > until else count_)
    return sent


@rule(
    "produce",
    "no-compression",
    "note",
    "Topic t: 18.0 MB a second uncompressed (1.1 GB in all).",
    why="Ours: below 1 MB a second or 100 MB compression is not worth its CPU. With --policy compression=required a "
    "warning.",
    suppressed_when="Less than that. What it would save is not told: the dataset holds no record bytes to try it on.",
    advice="compression.type on the producer; try lz4 or zstd on a sample.",
    evidence="forged rows: 120 MB of codec none, and of lz4",
    depends_on=("compression",),
    rate=1_000_000,
    total=100_000_000,
)
def no_compression(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    begin, end = capture.span
    seconds = max((end - begin) / SECOND, 1)
    enough = min(at.total, at.rate * seconds) if seconds >= 10 else at.total
    if sum(int(np.maximum(written.size[block], 0).sum()) for block in spill.blocks(len(written.size))) < enough:
        return
    codec, codecs = capture.table("batches").text("codec")
    none = codes_of(codecs, "none")

    def are_plain(block: slice) -> np.ndarray:
        return arrow.among(codec[written.row[block]], none) & (written.owner[block] >= 0)

    some_ = spill.where(len(written.row), are_plain)
    strict = capture.query.policies.get("compression") == "required"
    topics: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    numbers = [written.topic_partitions[where][0] for where in range(len(written.topic_partitions))]
    sums = sum_positive_by(spill.take(written.topic_partition, some_), spill.take(written.size, some_), len(numbers))
    first: dict[str, int] = {}
    for where, amount in enumerate(sums.tolist()):
        if amount:
            topics[numbers[where]][0] += int(amount)
    shown = some_[:: max(1, len(some_) // 100_000)]
    for batch in sorted(int(group_rows[0]) for group_rows in split(shown, written.topic_partition[shown])):
        first.setdefault(written.topic_partitions[written.topic_partition[batch]][0], int(written.owner[batch]))
    for topic, (amount, _) in topics.items():
        if amount >= enough:
            text = f"Topic {name(topic)}: {size(amount / seconds)} a second uncompressed ({size(amount)} in all)."
            rows = (first[topic],) if topic in first else ()
            yield Match(
                text,
                amount,
                begin,
                end,
                {},
                {"topic": topic, "bytes": str(amount)},
                rows,
                severity="warning" if strict else None,
            )


@rule(
    "produce",
    "codec-recompressed",
    "note",
    "Topic t: 40 batches that were written with lz4 are read with zstd: the broker changes their codec.",
    why="A fact: a batch with one codec in the request that stored it, and another in an answer to Fetch at the same "
    "offset. A broker whose compression.type is not `producer` takes each batch apart and compresses it anew. Ten "
    "batches.",
    suppressed_when="Fewer; batches of the old message formats, which brokers convert for old readers; another batch "
    "at that offset, as its records, producer and times say; a topic that was made anew.",
    advice="Give producers the codec that the topic is to have, or set its compression.type to `producer`: that takes "
    "work from the broker.",
    evidence="forged: ten batches of lz4 that come back as zstd, and nine; a real topic with compression.type=gzip",
    batches=10,
)
def recompressed(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    produced = batches(capture)
    if not len(produced.row):
        return
    table = capture.table("batches")
    (codec, codecs), (side, sides), (where, _) = (
        table.text("codec"),
        table.text("side"),
        capture.number_topic_partitions(table),
    )
    fetched, kinds = codes_of(sides, "fetch"), len(codecs) + 1

    def kind(some_: np.ndarray | slice) -> np.ndarray:
        """Topic-partition and codec of batches as one number."""
        kinds_of: np.ndarray = where[some_].astype(np.int64) * kinds + codec[some_]
        return kinds_of

    written = spill.distinct(spill.compute(len(produced.row), np.int64, lambda block: kind(produced.row[block])))
    topics = arrow.distinct(written // kinds)

    def is_other(block: slice) -> Any:
        read = arrow.among(side[block], fetched) & (codec[block] >= 0) & arrow.among(where[block], topics)
        return read & ~arrow.among(kind(block), written)

    other = spill.where(len(side), is_other)  # mostly none: then nothing more is read
    if len(other) < at.batches:
        return
    written_rows = spill.where(
        len(produced.row), lambda block: arrow.among(produced.topic_partition[block], arrow.distinct(where[other]))
    )
    written_rows = written_rows[
        (produced.error[written_rows] == 0) & (produced.at[written_rows] >= 0) & (produced.owner[written_rows] >= 0)
    ]
    wanted = ("base_offset", "record_count", "producer_id", "producer_epoch", "base_sequence", "magic", "is_control")
    base, *alike, magic, control = table.together(wanted)
    stamps = [table.numbers(f"{which}_timestamp") for which in ("first", "last")]
    given, given_kinds = table.text("timestamp_type")
    of_clients = codes_of(given_kinds, "CreateTime")
    rows = np.concatenate([produced.row[written_rows], other])
    keys = grouping.group(where[rows], np.concatenate([produced.at[written_rows], base[other]])).numbers()
    of_key = np.full(len(rows), -1, np.int64)
    of_key[keys[: len(written_rows)]] = np.arange(len(written_rows))  # of what was written twice the last
    ours_at = of_key[keys[len(written_rows) :]]
    other, ours_at = other[ours_at >= 0], ours_at[ours_at >= 0]
    table_rows = produced.row[written_rows[ours_at]]
    same = (magic[table_rows] == 2) & (magic[other] == 2) & (control[other] != 1)
    for column in alike:
        same &= column[table_rows] == column[other]
    by_broker = ~arrow.among(given[other], of_clients)  # it gave the times
    same &= by_broker | ((stamps[0][table_rows] == stamps[0][other]) & (stamps[1][table_rows] == stamps[1][other]))
    other, ours_at, table_rows = other[same], written_rows[ours_at[same]], table_rows[same]
    changes: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    firsts = first_rows(ours_at, codec[other])
    for batch, read_row in zip(ours_at[firsts].tolist(), other[firsts].tolist(), strict=True):
        topic = produced.topic_partitions[produced.topic_partition[batch]][0]
        changes[topic, codecs[codec[produced.row[batch]]], codecs[codec[read_row]]].append(int(produced.owner[batch]))
    for (topic, before, after), owners in changes.items():
        if len(owners) >= at.batches and topic not in capture.remade:
            text = f"Topic {name(topic)}: {len(owners):,} batches that were written with {name(before)} are read with "
            text += f"{name(after)}: the broker changes their codec."
            requested = capture.exchanges.request_time[owners]
            yield Match(
                text,
                len(owners),
                int(requested.min()),
                int(requested.max()),
                {},
                {"topic": topic},
                (owners[0], owners[0], owners[-1]),
                cause="compression.type",
                proven=False,
            )


@rule(
    "produce",
    "batch-crc-bad",
    "error",
    "The checksum of 2 batches to t-0 is wrong on the wire.",
    why="CRC32C over all of the payload: no false positives. librdkafka does not check unless told to (check.crcs), so "
    "that it may go unseen.",
    suppressed_when="Bytes of the batch are missing, or copies of them differ (then the checksum is not told).",
    advice="Keep the capture; look at the network and at the memory of the sender, or of the host that captured.",
    evidence="forged: a batch with a flipped bit",
)
def crc_bad(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    table = capture.table("batches")
    wrong = spill.true_rows(table.numbers("crc_ok", np.int8) == 0)
    wrong = wrong[table.numbers("partial", np.int8)[wrong] != 1] if len(wrong) else wrong
    if not len(wrong):
        return
    owner, (where, places) = capture.owners(table), capture.number_topic_partitions(table)
    for group_rows in split(wrong, where[wrong]):
        rows = [int(row) for row in owner[group_rows].tolist() if row >= 0]
        conflicts = capture.link_numbers("overlap_conflicts")[capture.exchanges.link[rows]].any() if rows else False
        if conflicts:
            continue
        topic, partition = places[int(where[group_rows[0]])]
        text = f"The checksum of {count(len(group_rows), 'batch', 'batches')} to "
        text += f"{partition_name((topic, partition))} is wrong on the "
        who = capture.who(int(capture.client[rows[0]])) if rows else {}
        time = int(capture.exchanges.request_time[rows[0]]) if rows else None
        yield Match(
            text + "wire.",
            len(group_rows),
            time,
            int(capture.exchanges.request_time[rows[-1]]) if rows else None,
            who,
            {"topic": topic, "partition": str(partition)},
            tuple(rows[:1] + rows[:1] + rows[-1:]),
        )


_BAD_TIME = claim((api_keys.PRODUCE,), (32,))


@rule(
    "produce",
    "record-timestamps-off",
    "warning",
    "Records of svc-a (10.0.0.4) in t are up to 3.0 h ahead of the capture's clock (40 batches).",
    why="5 min is beyond what a clock drifts with NTP (a note); 1 h is log.message.timestamp.after.max.ms, where "
    "brokers begin to refuse.",
    suppressed_when="The broker gives the timestamps (LogAppendTime); the past, which replays and mirrors write.",
    advice="Set the clock; retention by time goes wrong with it.",
    evidence="forged: records two hours ahead, and one minute ahead",
    note_s=300,
    refused_s=3600,
    by_clock=True,
)
def timestamps_off(capture: CaptureFrame, at: Limits) -> Iterator[Match]:
    written = batches(capture)
    ahead = _ahead(capture, written, at.note_s * SECOND)
    off = spill.true_rows(ahead >= at.note_s * SECOND)
    topic_of = np.array([0] * len(written.topic_partitions), np.int64)
    topics: dict[str, int] = {}
    for number, (topic, _) in enumerate(written.topic_partitions):
        topic_of[number] = topics.setdefault(topic, len(topics))
    listed = list(topics)
    if len(off):
        for group_rows in split(off, capture.client[written.owner[off]], topic_of[written.topic_partition[off]]):
            most = int(ahead[group_rows].max())
            topic = listed[int(topic_of[written.topic_partition[group_rows[0]]])]
            who = capture.who(int(capture.client[written.owner[group_rows[0]]]))
            text = f"Records of {client(who)} in {name(topic)} are up to {_hours(most)} ahead of the capture's clock "
            text += f"({count(len(group_rows), 'batch', 'batches')})."
            rows = (
                int(written.owner[group_rows[0]]),
                int(written.owner[group_rows[ahead[group_rows].argmax()]]),
                int(written.owner[group_rows[-1]]),
            )
            severity: Severity = "warning" if most >= at.refused_s * SECOND else "note"
            yield Match(
                text,
                len(group_rows),
                int(capture.exchanges.request_time[rows[0]]),
                int(capture.exchanges.request_time[rows[2]]),
                who,
                {"topic": topic},
                rows,
                severity=severity,
            )
    for trouble in of(capture, _BAD_TIME):
        text = (
            f"Records of {_who(capture, trouble.client)}{about(trouble)} were refused for their time: {trouble.error}, "
        )
        yield match_of(capture, trouble, text + f"{times(trouble)}.")


def _ahead(capture: CaptureFrame, written: ProduceBatches, least: float) -> np.ndarray:
    """int64[batches]: how far timestamps given by clients are ahead of the capture's clock, us; empty if none is so far
    ahead."""
    table = capture.table("batches")
    if table.greatest("last_timestamp") - capture.span[0] < least:
        return np.zeros(0, np.int64)
    kinds, names_ = table.text("timestamp_type")
    of_clients = codes_of(names_, "CreateTime")
    last = table["last_timestamp"]

    def of_block(block: slice) -> np.ndarray:
        row, owner = written.row[block], written.owner[block]
        is_of_client = arrow.among(kinds[row], of_clients) & (last[row] != NULL) & (owner >= 0)
        return np.where(is_of_client, last[row] - capture.exchanges.request_time[np.maximum(owner, 0)], 0)

    return spill.compute(len(written.row), np.int64, of_block)


def _hours(micros: int) -> str:
    return f"{micros / 3600e6:.1f} h" if micros >= 3600 * SECOND else lasting(micros)
