"""Match produced batches with the answers that brought them to readers, and with commits, by offsets.

In: columns of `journey_columns`. Out: pairs of a batch and a reader. Rules

- A partition is a topic, by its name where one is known, and an index.
- A batch with acks=0 is where an answer held it (`journey_labels`).
- A batch is at its offsets from when the broker had received it until another batch was received that overlaps it: the
  log may have been cut off (a failover), or the topic made anew.
- A group is one reader, and so are a consumer without a group (client id and address), a follower and a share group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.analysis import TopicName, journey_labels
from kwire.analyzer.analysis.journey_columns import (
    B_BASE,
    B_COLUMNS,
    B_COMPLETED_BY,
    B_ORIGIN,
    B_RECEIVED,
    B_RECORDS,
    B_SENT,
    C_OFFSET,
    C_ORIGIN,
    C_TIME,
    CONSUMER,
    R_BEGIN,
    R_END,
    R_ORIGIN,
    R_TIME,
    R_UNSURE,
    REPLICA,
    SHARE,
)
from kwire.analyzer.bulk import row_groups
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Columns, Log
from kwire.captures.kernels import NULL

_MOST: Final = np.iinfo(np.int64).max
_RADIX: Final = 1 << 16
"""Numbers below it are sorted without comparing them."""

Groups = Mapping[tuple[str | None, str | None], Sequence[str]]
"""By client id and address."""


class Known(NamedTuple):
    """Batches, answers and commits of a capture point, in order.

    origins     columns of the origins, their log, and in `low` and `high` the first offset that a reader asked for, and
                the last, or that it has passed
    parts       batches, int64[B_COLUMNS, n] each, in order of the packet that completed them and the age of their
                connection; they are not copied together, as most of their time goes into fresh memory
    topics      names (or ids) of topics; by origin `topic` is an index, and `partition` a number for both
    reads, commits   int64[..., n], in order of time
    unplaced         int64[B_COLUMNS + 1, n]: batches with acks=0 that no answer held, so that nobody says their offsets
    gappy            int64[G_COLUMNS, n]: answers that lacked offsets
    """

    log: Log
    origins: Columns
    parts: list[np.ndarray]
    topics: list[str]
    topic: np.ndarray
    partition: np.ndarray
    reads: np.ndarray
    commits: np.ndarray
    unplaced: np.ndarray
    gappy: np.ndarray

    @classmethod
    def of(
        cls,
        log: Log,
        ranges: np.ndarray,
        parts: list[np.ndarray],
        reads: np.ndarray,
        commits: np.ndarray,
        topic_name: TopicName,
        silent: np.ndarray,
        labels: np.ndarray,
        gappy: np.ndarray,
    ) -> Known:
        """Put rows in order. `silent`: int64[B_COLUMNS + 1, n], batches with acks=0; `labels`: int64[L_COLUMNS, n]."""
        origins = log.read() | {"low": ranges[0], "high": ranges[1]}
        topics, topic = _topics(log, origins, topic_name)
        partition = np.zeros(0, np.int64)
        if len(topic):
            _, partition = row_groups.numbered(topic, origins["partition"])
        reads, commits = (
            rows if (rows[at, 1:] >= rows[at, :-1]).all() else rows[:, np.argsort(rows[at], kind="stable")]
            for rows, at in ((reads, R_TIME), (commits, C_TIME))
        )
        if silent.shape[1]:
            placed, silent = journey_labels.placed(silent, parts, reads, labels, partition)
            parts = [*parts, placed] if placed.shape[1] else parts
        parts = _in_order(parts, origins["serial"])
        return cls(log, origins, parts, topics, topic, partition, reads, commits, silent, gappy)

    def settled(self) -> Known:
        """Return these with the batches whose offsets nobody says among the others."""
        if not self.unplaced.shape[1]:
            return self
        parts = _in_order([*self.parts, self.unplaced[:B_COLUMNS]], self.origins["serial"])
        return self._replace(parts=parts, unplaced=self.unplaced[:, :0])

    @property
    def timed(self) -> tuple[tuple[np.ndarray, int], ...]:
        """Answers and commits, with the row that has their times."""
        return (self.reads, R_TIME), (self.commits, C_TIME)

    @property
    def batches(self) -> np.ndarray:
        """All batches in one array."""
        return joined(self.parts, B_COLUMNS)


def joined(parts: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Return arrays of so many rows of numbers as one."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, axis=1) if parts else np.zeros((columns, 0), np.int64)


def _in_order(parts: list[np.ndarray], serial: np.ndarray) -> list[np.ndarray]:
    """Return parts in order: as they are, or as one."""
    latest = NULL
    for part in parts:
        trigger, own = part[B_COMPLETED_BY], serial[part[B_ORIGIN]]
        rises = trigger[1:] > trigger[:-1]
        if trigger[0] <= latest or not (rises | ((trigger[1:] == trigger[:-1]) & (own[1:] >= own[:-1]))).all():
            whole = joined(parts, B_COLUMNS)
            return [whole[:, np.lexsort((serial[whole[B_ORIGIN]], whole[B_COMPLETED_BY]))]]
        latest = int(trigger[-1])
    return parts


def last_offsets(batches: np.ndarray) -> np.ndarray:
    """Return int64[n]: the offset of each batch's last record; that of the first where it is not known."""
    records = batches[B_RECORDS]
    last: np.ndarray = batches[B_BASE] + np.where(records > 0, np.minimum(records, 1 << 32) - 1, 0)
    return last


def _topics(log: Log, origins: Columns, topic_name: TopicName) -> tuple[list[str], np.ndarray]:
    """Return names of topics (or ids without one), and the index of each origin's."""
    name, identity = origins["topic"], origins["topic_id"]
    if not len(name):
        return [], np.zeros(0, np.int64)
    first, which = row_groups.numbered(name, identity)
    numbers: dict[str, int] = {}
    given = []
    for topic, topic_id in zip(name[first].tolist(), identity[first].tolist(), strict=True):
        text = log.text(topic) or (topic_name(log.strings[topic_id]) if topic_id != NULL else "")
        given.append(numbers.setdefault(text, len(numbers)))
    return [*numbers], np.array(given, np.int64)[which]


class Readers(NamedTuple):
    """Readers. `number` int64[origins]: the reader of each origin of answers; the others by number: kind, group, and
    node id (NULL where none)."""

    number: np.ndarray
    kind: np.ndarray
    group: list[str | None]
    node: np.ndarray


def readers_of(known: Known, groups: Groups) -> Readers:
    """Tell who reads, by what is known of the groups of clients.

    A client that takes part in several groups reads a partition for the one that commits offsets of it, if it is one.
    """
    origins, log = known.origins, known.log
    keys = (origins["kind"], origins["client"], origins["ip"], origins["name"], origins["node"])
    first, which = row_groups.numbered(*keys, known.partition)
    committing: dict[int, set[str]] = {}
    ambiguous = any(len(names) > 1 for names in groups.values())
    if ambiguous and known.commits.shape[1]:
        used = arrow.distinct(known.commits[C_ORIGIN])
        for partition, name in zip(known.partition[used].tolist(), origins["name"][used].tolist(), strict=True):
            committing.setdefault(partition, set()).add(log.text(name) or "")
    numbers: dict[tuple[object, ...], int] = {}
    given = []
    rows = zip(*(key[first].tolist() for key in keys), known.partition[first].tolist(), strict=True)
    for kind, client, ip, name, node, partition in rows:
        key: tuple[object, ...]
        if kind == REPLICA:
            key = REPLICA, None, node
        elif kind == SHARE:
            key = SHARE, log.text(name), NULL
        else:
            member_of = groups.get((log.text(client), log.text(ip)), ())
            if len(member_of) > 1:
                member_of = [group for group in member_of if group in committing.get(partition, ())]
            key = (CONSUMER, member_of[0], NULL) if len(member_of) == 1 else (CONSUMER, None, NULL, client, ip)
        given.append(numbers.setdefault(key, len(numbers)))
    readers = list(numbers)
    return Readers(
        np.array(given, np.int64)[which] if len(which) else which,
        np.array([reader[0] for reader in readers], np.int64),
        [reader[1] for reader in readers],  # type: ignore[misc]
        np.array([reader[2] for reader in readers], np.int64),
    )


class Pairs(NamedTuple):
    """Batches with their readers, ordered by batch and then by time; all int64[n] but for `batches`.

    batches  int64[B_COLUMNS, m]: batches of partitions that are read
    number   their numbers among all, from 0, in order: of each pair
    batch    index in `batches`; reader: number in `Readers`
    read     index in `Known.reads` of the first answer
    fetches  answers that brought its end
    unsure   1: nothing but answers that may not have held it
    """

    batches: np.ndarray
    number: np.ndarray
    batch: np.ndarray
    reader: np.ndarray
    read: np.ndarray
    fetches: np.ndarray
    unsure: np.ndarray


def _no_pairs() -> Pairs:
    return Pairs(np.zeros((B_COLUMNS, 0), np.int64), *(np.zeros(0, np.int64) for _ in range(6)))


def _read_batches(known: Known, is_read: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches of partitions that are read, and their numbers."""
    chosen, numbers, behind = [], [], 0
    for part in known.parts:
        rows = np.flatnonzero(is_read[known.partition[part[B_ORIGIN]]] & (part[B_BASE] != NULL))
        if len(rows):
            chosen.append(part if len(rows) == part.shape[1] else part[:, rows])
            numbers.append(rows + behind)
        behind += part.shape[1]
    return joined(chosen, B_COLUMNS), np.concatenate([np.zeros(0, np.int64), *numbers])


def pairs_of(known: Known, readers: Readers) -> Pairs:
    """Match batches with answers."""
    reads = known.reads
    if not known.parts or not reads.shape[1]:
        return _no_pairs()
    of_read = known.partition[reads[R_ORIGIN]]
    is_read = np.zeros(int(known.partition.max()) + 1, np.bool_)
    is_read[of_read] = True
    batches, numbers = _read_batches(known, is_read)
    if not len(numbers):
        return _no_pairs()
    rows = _by_partition(known.partition[batches[B_ORIGIN]], batches[B_BASE])
    of_batch, base, last = known.partition[batches[B_ORIGIN]][rows], batches[B_BASE][rows], last_offsets(batches)[rows]
    lowest = np.full(len(is_read), _MOST)
    np.minimum.at(lowest, of_batch, base)
    chosen = np.flatnonzero((lowest != _MOST)[of_read])
    of_read, begin_at, end_at = of_read[chosen], reads[R_BEGIN][chosen], reads[R_END][chosen]
    bits = 62 - len(is_read).bit_length()

    def key(partition: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Return partition and offset as one number that orders both."""
        within = np.minimum(np.maximum(offset, lowest[partition]) - lowest[partition], (1 << bits) - 1)
        ordered: np.ndarray = partition << bits | within
        return ordered

    bases, reach = key(of_batch, base), np.maximum.accumulate(key(of_batch, last))
    begin = np.maximum(np.searchsorted(reach, key(of_read, begin_at)), np.searchsorted(bases, of_read << bits))
    counts = np.maximum(np.searchsorted(bases, key(of_read, end_at)) - begin, 0)
    total = int(counts.sum())
    if not total:
        return _no_pairs()
    read = np.repeat(chosen, counts)
    batch = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(total)
    since, until = batches[B_RECEIVED][rows], _replaced(of_batch, base, last, batches[:, rows])
    time = reads[R_TIME][read]
    holds = (last[batch] >= reads[R_BEGIN][read]) & (base[batch] < reads[R_END][read])
    holds &= (time >= since[batch]) & (time < until[batch])
    batch, read = rows[batch[holds]], read[holds]
    return _grouped(batches, numbers, batch, readers.number[reads[R_ORIGIN][read]], read, len(readers.kind), known)


def _grouped(
    batches: np.ndarray,
    numbers: np.ndarray,
    batch: np.ndarray,
    reader: np.ndarray,
    read: np.ndarray,
    count: int,
    known: Known,
) -> Pairs:
    """Return one pair for each batch and reader."""
    if not len(batch):
        return _no_pairs()
    reads, key = known.reads, batch * count + reader
    unsure = reads[R_UNSURE][read]
    order = np.lexsort((read, unsure, key))  # sure answers first; they are in order of time
    key, batch, reader, read, unsure = (column[order] for column in (key, batch, reader, read, unsure))
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    ends = (reads[R_END][read] > last_offsets(batches)[batch]) & (unsure == 0)
    fetches = np.maximum(np.add.reduceat(ends.astype(np.int64), first), 1)
    columns = batch[first], reader[first], read[first], fetches, unsure[first]
    order = np.lexsort((reads[R_TIME][columns[2]], columns[0]))
    chosen = [column[order] for column in columns]
    return Pairs(batches, numbers[chosen[0]], *chosen)


def _by_partition(partition: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return int64[n]: the order by partition and base offset; equal ones as they stand."""
    if int(partition.max()) < _RADIX:
        order = np.argsort(partition.astype(np.uint16), kind="stable")
        ordered, offsets = partition[order], base[order]
        if not ((ordered[1:] == ordered[:-1]) & (offsets[1:] < offsets[:-1])).any():
            return order
    return np.lexsort((base, partition))


def _replaced(partition: np.ndarray, base: np.ndarray, last: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """Return int64[n]: when another batch was received that overlaps each, the largest number where none was.

    The batches are in order of partition and offset."""
    until = np.full(len(base), _MOST)
    received = np.where(batches[B_RECEIVED] == NULL, batches[B_SENT], batches[B_RECEIVED])
    overlap = np.flatnonzero((partition[1:] == partition[:-1]) & (base[1:] <= last[:-1]))
    if len(overlap):
        left_first = received[overlap] <= received[overlap + 1]
        older, newer = np.where(left_first, overlap, overlap + 1), np.where(left_first, overlap + 1, overlap)
        np.minimum.at(until, older, received[newer])
    return until


def commits_of(known: Known, readers: Readers, pairs: Pairs, counts: np.ndarray) -> np.ndarray:
    """Return int64[n]: when the group of each pair first committed an offset behind the batch, NULL: it did not.

    counts   bool[commits]: commits that count
    """
    committed = np.full(len(pairs.batch), NULL)
    rows = np.flatnonzero(counts)
    numbers: dict[str, int] = {}
    for name in readers.group:
        if name is not None:
            numbers.setdefault(name, len(numbers))
    if not len(rows) or not len(committed) or not numbers:
        return committed
    group_of_reader = np.array([-1 if name is None else numbers[name] for name in readers.group], np.int64)
    origins, log = known.origins, known.log
    by_number = np.array([numbers.get(text, -1) for text in log.strings], np.int64)
    named = origins["name"][known.commits[C_ORIGIN][rows]]
    group = np.where(named == NULL, -1, by_number[np.maximum(named, 0)])
    rows, group = rows[group >= 0], group[group >= 0]
    wanted = np.flatnonzero((group_of_reader[pairs.reader] >= 0) & (readers.kind[pairs.reader] == CONSUMER))
    if not len(rows) or not len(wanted):
        return committed
    partitions = int(known.partition.max()) + 1
    place = group * partitions + known.partition[known.commits[C_ORIGIN][rows]]
    order = np.argsort(place, kind="stable")
    place, rows = place[order], rows[order]
    offset, time = known.commits[C_OFFSET][rows], known.commits[C_TIME][rows]
    batch = pairs.batch[wanted]
    wanted_place = group_of_reader[pairs.reader[wanted]] * partitions
    wanted_place = wanted_place + known.partition[pairs.batches[B_ORIGIN][batch]]
    stop = np.searchsorted(place, wanted_place, "right")
    at = np.searchsorted(place, wanted_place, "left")
    fetched, last = known.reads[R_TIME][pairs.read[wanted]], last_offsets(pairs.batches)[batch]
    # Times rise within a place: the first commit since the batch was fetched; none is behind the batch before the
    # first where the highest offset so far is. Where a group went back, what follows from there is looked through.
    bits = 62 - int(place.max() + 1).bit_length()
    highest = np.maximum.accumulate(place << bits | np.minimum(offset, (1 << bits) - 1)) & ((1 << bits) - 1)
    at = np.maximum(
        _first_since(highest, np.minimum(last + 1, (1 << bits) - 1), at, stop), _first_since(time, fetched, at, stop)
    )
    going = np.flatnonzero(at < stop)
    while len(going):
        short = offset[at[going]] <= last[going]
        at[going[short]] += 1
        going = going[short]
        going = going[at[going] < stop[going]]
    there = at < stop
    committed[wanted[there]] = time[at[there]]
    return committed


def _first_since(values: np.ndarray, least: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return int64[n]: of the rows begin to end, whose values rise, the first with `least` or more."""
    low, high = begin.copy(), end.copy()
    while True:
        going = np.flatnonzero(low < high)
        if not len(going):
            return low
        middle = (low[going] + high[going]) // 2
        later = values[middle] >= least[going]
        high[going[later]] = middle[later]
        low[going[~later]] = middle[~later] + 1


def not_passed(
    known: Known, batches: np.ndarray, undecided: np.ndarray, recent_ns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bool[batches], bool[reads], bool[commits]: batches that some reader has not passed yet, and answers and
    commits that may tell of them, or of batches whose acknowledgement has not come.

    undecided   bool[batches]: batches that wait for the end of their transaction
    recent_ns   for so long after an answer a commit may follow, and the acknowledgement of what a follower got by it
    """
    reads, commits = known.reads, known.commits
    latest = max((int(rows[at].max()) for rows, at in known.timed if rows.shape[1]), default=0)
    count = int(known.partition.max()) + 1 if len(known.partition) else 0
    passed = np.full(count, _MOST)
    if reads.shape[1]:
        readers = readers_of(known, {})
        of_read = known.partition[reads[R_ORIGIN]]
        first, which = row_groups.numbered(readers.number[reads[R_ORIGIN]], of_read)
        position = np.full(len(first), NULL)
        settled = reads[R_TIME] < latest - recent_ns
        np.maximum.at(position, which[settled], reads[R_END][settled])
        np.minimum.at(passed, of_read[first], position)
    if commits.shape[1]:
        of_commit = known.partition[commits[C_ORIGIN]]
        first, which = row_groups.numbered(known.origins["name"][commits[C_ORIGIN]], of_commit)
        position = np.full(len(first), NULL)
        np.maximum.at(position, which, commits[C_OFFSET])
        np.minimum.at(passed, of_commit[first], position)
    passed[passed == _MOST] = NULL  # nobody reads it, so far
    of_batch = known.partition[batches[B_ORIGIN]] if batches.shape[1] else batches[B_ORIGIN]
    waiting = (batches[B_BASE] != NULL) & (undecided | (last_offsets(batches) >= passed[of_batch]))
    lowest = np.full(count, _MOST)
    np.minimum.at(lowest, of_batch[waiting], batches[B_BASE][waiting])
    chosen = []
    for rows, offset, time, origin in ((reads, R_END, R_TIME, R_ORIGIN), (commits, C_OFFSET, C_TIME, C_ORIGIN)):
        of = known.partition[rows[origin]] if rows.shape[1] else rows[origin]
        chosen.append((rows[offset] > lowest[of]) | (rows[time] >= latest - recent_ns))
    return waiting, chosen[0], chosen[1]
