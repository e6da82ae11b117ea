"""Topic-partitions of Fetch exchanges: what rules about reading share.

In: a capture point. Out: `Reads`, and until when a partition was part of a client's fetch session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.findings.capture import NO_CODE, CaptureFrame, once
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import sort_by, split
from kwire.analyzer.protocol import api_keys, errors

READ_COMMITTED: Final = 1
"""Isolation level of a reader that gets committed records only, up to the last stable offset."""


class Reads(NamedTuple):
    """Topic-partitions of Fetch exchanges, arrays with a value each, in order of their answers. part: row of
    `partitions`; owner: the exchange; place: number of the topic-partition; at: the requested offset; end: the high
    watermark; lag; size: record bytes. NULL where null."""

    part: np.ndarray
    owner: np.ndarray
    topic_partition: np.ndarray
    at: np.ndarray
    end: np.ndarray
    stable: np.ndarray
    lag: np.ndarray
    size: np.ndarray
    time: np.ndarray

    def position(self) -> np.ndarray:
        """int64: the position of the reader after each answer."""

        def of_block(block: slice) -> np.ndarray:
            lag, end = self.lag[block], self.end[block]
            return np.where((lag != NULL) & (end != NULL), end - lag, self.at[block])

        return spill.compute(len(self.at), np.int64, of_block)


def reads(capture: CaptureFrame) -> Reads:
    """Fetched topic-partitions, computed once."""
    if "reads" not in capture.memo:
        parts, table = capture.partitions, capture.table("partitions")
        chosen = capture.parts_of(api_keys.FETCH)
        owner = spill.take(parts.owner, chosen)
        times_, chosen, owner = sort_by(spill.take(capture.exchanges.response_end, owner), chosen, owner)
        whole = table.together(("offset", "high_watermark", "last_stable_offset", "lag", "record_bytes"))
        at, end, stable, lag, size_ = (spill.take(values, chosen) for values in whole)
        topic_partition = spill.take(parts.topic_partition, chosen)
        capture.memo["reads"] = Reads(chosen, owner, topic_partition, at, end, stable, lag, size_, times_)
    cached: Reads = capture.memo["reads"]
    return cached


def followed(capture: CaptureFrame) -> dict[tuple[int, tuple[str, int]], int]:
    """The last time at which a topic-partition was part of a fetch session, by client and topic-partition."""
    table = capture.table("readers")
    link = capture.links_of(table)
    topic_partition, places = capture.number_topic_partitions(table)
    last: dict[tuple[int, tuple[str, int]], int] = {}
    for at, where, time in zip(link.tolist(), topic_partition.tolist(), table["to_time"].tolist(), strict=True):
        if 0 <= at < len(capture.links) and time != NULL:
            key = int(capture.client_of[at]), places[where]
            last[key] = max(last.get(key, time), time)
    return last


def of_readers(capture: CaptureFrame, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Yield some reads (rows of `reads`) by client and topic-partition, in order of time, without replicas."""
    read = reads(capture)
    replicas = capture.between_brokers | capture.mixed

    def is_known(block: slice) -> Any:
        rows = wanted[block]
        return ~replicas[capture.client[read.owner[rows]]] & (read.time[rows] != NULL)

    wanted = spill.take(wanted, spill.where(len(wanted), is_known))
    whose = spill.take(capture.client, spill.take(read.owner, wanted))
    yield from split(wanted, whose, spill.take(read.topic_partition, wanted))


_REFUSALS: Final = (
    errors.OFFSET_OUT_OF_RANGE,
    errors.OFFSET_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.REPLICA_NOT_AVAILABLE,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH,
    errors.KAFKA_STORAGE_ERROR,
)


@once
def bounces(capture: CaptureFrame) -> dict[tuple[int, tuple[str, int]], list[tuple[int, int]]]:
    """Reads that a leader sent to another replica, which refused them, after which the client came back: exchanges of
    the leader and of the replica, by client and topic-partition."""
    read, parts = reads(capture), capture.partitions
    trips_of: dict[tuple[int, tuple[str, int]], list[tuple[int, int]]] = {}
    if len(capture.brokers) < 2:
        return trips_of
    error = spill.take(parts.error, read.part)
    if not arrow.among(error, _REFUSALS).any():
        return trips_of
    preferred = capture.table("exchanges").numbers("preferred_replica")
    for rows in of_readers(capture, np.arange(len(read.at))):
        refused = np.flatnonzero(arrow.among(error[rows], _REFUSALS))
        refused = refused[refused > 0]
        owner = read.owner[rows]
        broker = capture.broker[owner]
        trips: list[tuple[int, int]] = []
        for position in refused.tolist():
            later = min(position + 1, len(rows) - 1)  # the last may not have come back before the capture ended
            before, here = int(owner[position - 1]), int(owner[position])
            to_and_fro = broker[position - 1] == broker[later] != broker[position] or (trips and later == position)
            well = error[rows[position - 1]] == 0 and (later == position or error[rows[later]] in (0, NO_CODE))
            if to_and_fro and well and (preferred[before] >= 0 or _stayed(read, rows, position)):
                trips.append((before, here))
        if trips:
            where = capture.topic_partitions[read.topic_partition[rows[0]]]
            trips_of[int(capture.client[owner[0]]), where] = trips
    return trips_of


def _stayed(read: Reads, rows: np.ndarray, position: int) -> bool:
    """Whether a reader asked for the same offset before, at and after one of its reads."""
    offsets = read.at[rows[position - 1 : position + 2]]
    return bool((offsets == offsets[0]).all() and offsets[0] != NULL)
