"""Rows of the table `journeys`: batches, their readers, commits and transactions, as Arrow columns.

In: what `journey_matching` has. Out: rows in order of the batches, of one batch in order of time. Rule: no object a
row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.journey_columns import (
    ABSENT,
    B_ACKED,
    B_BASE,
    B_BYTES,
    B_COLUMNS,
    B_CREATED,
    B_EXCHANGE,
    B_ORIGIN,
    B_RECEIVED,
    B_RECORDS,
    B_REPLY,
    B_SENT,
    B_STATE,
    C_ORIGIN,
    C_TIME,
    G_BEGIN,
    G_END,
    G_ORIGIN,
    KINDS,
    NOT_READ,
    R_ORIGIN,
    R_TIME,
    READER_LOST,
    REASONS,
    WHOLE,
)
from kwire.analyzer.analysis.journey_matching import (
    Groups,
    Known,
    Pairs,
    Readers,
    commits_of,
    joined,
    last_offsets,
    pairs_of,
    readers_of,
)
from kwire.analyzer.bulk import row_groups
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.parquet_files import ENOUGH_ROWS, ROW_GROUP_ROWS
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Log
from kwire.captures.kernels import NULL

OUTCOMES: Final = ("committed", "aborted", "fenced", "open", "unknown")
_COMMITTED, _UNKNOWN = OUTCOMES.index("committed"), OUTCOMES.index("unknown")

_LATEST_MS: Final = np.iinfo(np.int64).max // 1000

_SCHEMA: Final = tables.schema("journeys")


def rows(
    captures: Sequence[str], known: Known, transactions: Log, groups: Groups, point: np.ndarray | None = None
) -> Iterator[pa.Table]:
    """Make all rows. `transactions`: columns of `TRANSACTION_COLUMNS`; `groups`: those of each client; `point`: of each
    origin, as an index in `captures`, where there are several."""
    readers = readers_of(known, groups)
    pairs = pairs_of(known, readers)
    counts = np.ones(known.commits.shape[1], np.bool_)
    if known.commits.shape[1]:
        transaction = known.origins["transaction"][known.commits[C_ORIGIN]]
        within = np.flatnonzero(transaction != NULL)
        outcome = _outcomes(known, transaction[within], known.commits[C_TIME][within], transactions)
        counts[within] = outcome == _COMMITTED
    committed = commits_of(known, readers, pairs, counts)
    passing = _passing(known, readers)
    behind = 0
    for part in _row_groups(known.parts):
        end = behind + part.shape[1]
        pair = np.arange(*np.searchsorted(pairs.number, [behind, end]))
        batch = pairs.number[pair] - behind
        behind = end
        lonely = np.ones(part.shape[1], np.bool_)
        lonely[batch] = False
        alone = np.flatnonzero(lonely)
        reason_alone = np.where(part[B_BASE] != NULL, NOT_READ, part[B_STATE])[alone]
        reason_alone[passing.passed(part, alone)] = READER_LOST
        reason = part[B_STATE][batch]
        reason[pairs.unsure[pair] == 1] = ABSENT
        if len(pair) and len(alone):
            order = np.argsort(np.concatenate([batch, alone]), kind="stable")
            batch = np.concatenate([batch, alone])[order]
            pair = np.concatenate([pair, np.full(len(alone), NULL)])[order]
            reason = np.concatenate([reason, reason_alone])[order]
        elif len(alone):
            batch, pair, reason = alone, np.full(len(alone), NULL), reason_alone
        columns = {
            "capture": arrow.dictionary(
                arrow.zeros(len(batch), np.int32) if point is None else point[part[B_ORIGIN][batch]], captures
            ),
            **_batch_columns(known, part, batch, transactions),
            **_reader_columns(known, readers, pairs, committed, pair),
            "reason": arrow.dictionary(np.where(reason == WHOLE, NULL, reason), REASONS),
        }
        yield pa.Table.from_arrays([columns[field.name] for field in _SCHEMA], [field.name for field in _SCHEMA])


def _row_groups(parts: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield batches as many at a time as make a row group: of a window with enough as they are."""
    waiting: list[np.ndarray] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.shape[1] for rows in waiting) >= ENOUGH_ROWS:
            whole = joined(waiting, B_COLUMNS)
            for start in range(0, whole.shape[1], ROW_GROUP_ROWS):
                yield whole[:, start : start + ROW_GROUP_ROWS]
            waiting = []
    if waiting:
        yield joined(waiting, B_COLUMNS)


def _batch_columns(known: Known, part: np.ndarray, batch: np.ndarray, transactions: Log) -> dict[str, pa.Array]:
    """Columns of the produced side."""
    strings = known.log.strings
    as_they_stand = len(batch) == part.shape[1] and bool((batch[1:] > batch[:-1]).all())
    rows = part if as_they_stand else part[:, batch]
    used, origin = _in_use(rows[B_ORIGIN], len(known.partition))  # few
    origins = {name: known.origins[name][used] for name in ("connection", "client", "topic_id", "partition", "name")}
    created = rows[B_CREATED]
    created = np.where((created == NULL) | (np.abs(created) > _LATEST_MS), NULL, created * 1000)
    outcome = arrow.no_strings(len(batch))
    if (origins["name"] != NULL).any():
        named, outcomes = origins["name"][origin], np.full(len(batch), NULL)
        within = np.flatnonzero(named != NULL)
        outcomes[within] = _outcomes(known, named[within], rows[B_SENT][within], transactions)
        outcome = arrow.dictionary(outcomes, OUTCOMES)
    records, base = rows[B_RECORDS], rows[B_BASE]
    last = np.where((base == NULL) | (records == NULL), NULL, last_offsets(rows))

    def texts(numbers: np.ndarray, values: list[str]) -> pa.Array:
        """Return a column of strings by the number of each origin's."""
        in_use, local = arrow.compact(numbers, len(values))
        absent = numbers == NULL
        if absent.all():
            return arrow.no_strings(len(origin))
        if absent.any():
            local = np.where(absent, NULL, local.astype(np.int64))
        return arrow.dictionary(local[origin], [values[number] for number in in_use.tolist()])

    produced = [
        texts(origins["connection"], strings),
        arrow.integers(rows[B_EXCHANGE], pa.int64()),
        arrow.integers(rows[B_REPLY], pa.int64()),
    ]
    return {
        "topic": texts(_topics(known, used), known.topics),
        "topic_id": texts(origins["topic_id"], strings),
        "partition": arrow.integers(origins["partition"][origin], pa.int32()),
        "base_offset": arrow.integers(base, pa.int64()),
        "last_offset": arrow.integers(last, pa.int64()),
        "records": arrow.integers(records, pa.int64()),
        "record_bytes": arrow.integers(rows[B_BYTES], pa.int64()),
        "producer_client": texts(origins["client"], strings),
        "produced": pa.StructArray.from_arrays(produced, ["connection", "exchange", "reply"]),
        "created": arrow.times(created),
        "sent": arrow.times(arrow.micros(rows[B_SENT])),
        "received": arrow.times(arrow.micros(rows[B_RECEIVED])),
        "acked": arrow.times(arrow.micros(rows[B_ACKED])),
        "outcome": outcome,
    }


def _in_use(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (those of `count` numbers that are in use, ascending; int64[n]: the position of each row's among them)."""
    position = np.zeros(count, np.int64)
    position[numbers] = 1
    used = np.flatnonzero(position)
    position[used] = np.arange(len(used))
    return used, position[numbers]


def _topics(known: Known, origin: np.ndarray) -> np.ndarray:
    """Return the topics of some origins, NULL where only an id is known."""
    topic, identity = known.topic[origin], known.origins["topic_id"][origin]
    nameless = np.flatnonzero((known.origins["topic"][origin] == NULL) & (identity != NULL))
    for i in nameless.tolist():
        if known.log.strings[identity[i]] == known.topics[topic[i]]:
            topic[i] = NULL
    named: np.ndarray = topic
    return named


def _reader_columns(
    known: Known, readers: Readers, pairs: Pairs, committed: np.ndarray, pair: np.ndarray
) -> dict[str, pa.Array]:
    """Columns of the reading side; null where `pair` is NULL."""
    count, there = len(pair), np.flatnonzero(pair != NULL)
    if not len(there):
        return {
            field.name: arrow.nothing(field.type, count)
            if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
            else arrow.no_strings(count)
            for field in (_SCHEMA.field(name) for name in _OF_READERS)
        }
    chosen = pair[there]
    reader, read = pairs.reader[chosen], pairs.read[chosen]
    origin = known.reads[R_ORIGIN][read]
    sure = pairs.unsure[chosen] == 0
    groups = sorted({group for group in readers.group if group is not None})
    number = {group: position for position, group in enumerate(groups)}
    group_of = np.array([NULL if group is None else number[group] for group in readers.group], np.int64)

    def spread(values: np.ndarray) -> np.ndarray:
        if len(there) == count:
            return values
        out = np.full(count, NULL)
        out[there] = values
        return out

    fetched, fetches = known.reads[R_TIME][read], pairs.fetches[chosen]
    return {
        "kind": arrow.dictionary(spread(readers.kind[reader]), KINDS),
        "group_id": arrow.strings(spread(group_of[reader]), groups),
        "reader_client": arrow.strings(spread(known.origins["client"][origin]), known.log.strings),
        "broker_id": arrow.integers(spread(readers.node[reader]), pa.int32()),
        "fetched": arrow.times(arrow.micros(spread(np.where(sure, fetched, NULL)))),
        "fetches": arrow.integers(spread(np.where(sure, fetches, NULL)), pa.int64()),
        "committed": arrow.times(arrow.micros(spread(committed[chosen]))),
    }


_OF_READERS: Final = ("kind", "group_id", "reader_client", "broker_id", "fetched", "fetches", "committed")


class _Passing(NamedTuple):
    """Stretches of offsets that readers have passed, and of those that answers there lacked. begun, ended; lacking,
    lacking_ended: where they begin, and the offset after them, as numbers that order partition and offset."""

    partition: np.ndarray
    offsets: np.ndarray
    begun: np.ndarray
    ended: np.ndarray
    lacking: np.ndarray
    lacking_ended: np.ndarray

    def passed(self, part: np.ndarray, alone: np.ndarray) -> np.ndarray:
        """Return those of some batches that a reader passed without an answer that holds them, and without one that
        would have."""
        if not len(self.begun) or not len(alone):
            return np.zeros(0, np.int64)
        base = part[B_BASE][alone]
        place = _place(self.partition[part[B_ORIGIN][alone]], base, self.offsets)
        # Of other partitions as many have begun as have ended.
        begun, ended, lacking, lacking_ended = (np.searchsorted(ends, place, "right") for ends in self[2:])
        return np.flatnonzero((begun - ended > lacking - lacking_ended) & (base != NULL))


def _place(partition: np.ndarray, offset: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return int64[n]: numbers that order partition and offset, as far as `offsets`, which are ascending, tell."""
    ordered: np.ndarray = partition * (len(offsets) + 1) + np.searchsorted(offsets, offset, "right")
    return ordered


def _passing(known: Known, readers: Readers) -> _Passing:
    """Tell which offsets each reader has passed: from the first that it asked for to the last."""
    origins = known.origins
    has_batch = np.zeros(int(known.partition.max(initial=-1)) + 1, np.bool_)
    for part in known.parts:
        has_batch[known.partition[part[B_ORIGIN]]] = True
    asking = np.flatnonzero((origins["high"] != NULL) & has_batch[known.partition])
    if not (origins["high"][asking] > origins["low"][asking]).any():
        return _Passing(known.partition, *(np.zeros(0, np.int64) for _ in range(5)))
    first, which = row_groups.numbered(known.partition[asking], readers.number[asking])
    low, high = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), NULL)
    np.minimum.at(low, which, origins["low"][asking])
    np.maximum.at(high, which, origins["high"][asking])
    number = np.full(len(known.partition), NULL)  # of the reader's stretch, by origin
    number[asking] = which
    partition, stretches = known.partition[asking[first]], np.flatnonzero(high > low)
    own, begin, end = _lacking(known.gappy, number, low, high)
    ends = (
        (partition[stretches], low[stretches]),
        (partition[stretches], high[stretches]),
        (partition[own], begin),
        (partition[own], end),
    )
    offsets = arrow.distinct(np.concatenate([offset for _, offset in ends]))
    return _Passing(known.partition, offsets, *(np.sort(_place(of, offset, offsets)) for of, offset in ends))


def _lacking(
    gappy: np.ndarray, number: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what answers lacked within the stretch from `low` to `high` of each reader, those that overlap as one:
    whose it is, where it begins, where it ends. number: the stretch of each origin."""
    own = number[gappy[G_ORIGIN]] if gappy.shape[1] else np.zeros(0, np.int64)
    rows = np.flatnonzero(own != NULL)
    own = own[rows]
    begin, end = np.maximum(gappy[G_BEGIN][rows], low[own]), np.minimum(gappy[G_END][rows], high[own])
    rows = np.flatnonzero(begin < end)
    order = rows[np.lexsort((begin[rows], own[rows]))]
    merged: list[list[int]] = []
    for stretch, since, until in zip(own[order].tolist(), begin[order].tolist(), end[order].tolist(), strict=True):
        if merged and merged[-1][0] == stretch and since <= merged[-1][2]:
            merged[-1][2] = max(merged[-1][2], until)
        else:
            merged.append([stretch, since, until])
    stretch, begins, ends = np.array(merged, np.int64).reshape(-1, 3).T
    return stretch, begins, ends


def _outcomes(known: Known, named: np.ndarray, time_ns: np.ndarray, transactions: Log) -> np.ndarray:
    """Return int64[n]: the outcome of the transaction with this id that a message at this time belongs to."""
    result = np.full(len(named), _UNKNOWN)
    if not len(named):
        return result
    columns = transactions.read()
    time = arrow.micros(time_ns)
    order = np.lexsort((columns["began"], columns["transaction"]))
    owner = columns["transaction"][order]
    for number in arrow.distinct(named).tolist():
        transaction = transactions.known(known.log.strings[number])
        if transaction is None:
            continue
        begin, end = np.searchsorted(owner, [transaction, transaction + 1])
        began, ended, outcome = (columns[name][order[begin:end]] for name in ("began", "ended", "outcome"))
        rows = np.flatnonzero(named == number)
        at = np.searchsorted(began, time[rows], "right") - 1
        inside = (at >= 0) & ((ended[at] == NULL) | (time[rows] <= ended[at]))
        result[rows[inside]] = outcome[at[inside]]
    return result


def is_undecided(known: Known, batches: np.ndarray, transactions: Log) -> np.ndarray:
    """Return bool[n]: whether a batch is of a transaction whose end is not known yet."""
    undecided = np.zeros(batches.shape[1], np.bool_)
    named = known.origins["name"][batches[B_ORIGIN]] if batches.shape[1] else batches[B_ORIGIN]
    within = np.flatnonzero(named != NULL)
    outcome = _outcomes(known, named[within], batches[B_SENT][within], transactions)
    undecided[within] = outcome >= OUTCOMES.index("open")
    return undecided
