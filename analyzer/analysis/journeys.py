"""Journeys of record batches: when each was sent, acknowledged, fetched by whom, and committed.

In: windows; Produce, Fetch, ShareFetch and commits of offsets are read by columns. Out: rows of the table `journeys`
(`journey_rows`). Rules

- No object a row, and no byte of a batch is read again: its place in the log is what the answer to Produce says, and
  who read it is told by the offsets between which an answer's batches lie. So an answer may begin inside a batch, and
  batches may have been compressed anew.
- An answer that lacks offsets between its batches (compaction took some) is taken apart by the headers of its batches,
  where record sets are kept; where they are not, it is noted that it may not have held a batch.
- Nobody says the offsets of a batch with acks=0; the checksums of batches that answers held do (`journey_labels`).
- What is known waits until the capture ends, or is too much (`held_bytes`): then batches that all readers have passed
  become rows, and of the others the latest `MOST_KEPT` wait on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName, journey_matching, journey_rows
from kwire.analyzer.analysis.combinations import few_combinations
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchange
from kwire.analyzer.analysis.journey_columns import (
    B_ACKED,
    B_BASE,
    B_BYTES,
    B_COLUMNS,
    B_COMPLETED_BY,
    B_CREATED,
    B_EXCHANGE,
    B_ORIGIN,
    B_RECEIVED,
    B_RECORDS,
    B_REPLY,
    B_SENT,
    B_STATE,
    C_COLUMNS,
    C_OFFSET,
    C_ORIGIN,
    C_TIME,
    CONSUMER,
    G_BEGIN,
    G_COLUMNS,
    G_END,
    G_ORIGIN,
    L_COLUMNS,
    L_TIME,
    NO_ACKNOWLEDGEMENT,
    NO_ANSWER,
    NO_REQUEST,
    ORIGIN_COLUMNS,
    ORIGIN_TEXTS,
    R_BEGIN,
    R_COLUMNS,
    R_END,
    R_LABEL,
    R_ORIGIN,
    R_TIME,
    R_UNSURE,
    REPLICA,
    SHARE,
    TRANSACTION_COLUMNS,
    UNANSWERED,
    WHOLE,
)
from kwire.analyzer.analysis.numbered_places import NumberedPlaces
from kwire.analyzer.analysis.zookeeper import Committed, offset_of
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Log
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.records import batches
from kwire.captures.kernels import NULL

MOST_KEPT: Final = 200_000
"""Batches, and answers with records, that wait on where rows are made before the capture ends. One takes 100 bytes."""

_RECENT_NS: Final = 60 * 10**9
"""So long after an answer brought records, their group may still commit them; and the Produce that brought them to the
leader may still wait for its own answer (`request.timeout.ms` is 30 s by default)."""

_MOST: Final = np.int64(1) << 62

_IN_WINDOW: Final = ("kind", "connection", "client", "topic", "topic_id", "partition", "name", "node", "transaction")
"""Columns of origins that a window's numbers tell apart."""
_CONNECTION, _PARTITION = _IN_WINDOW.index("connection"), _IN_WINDOW.index("partition")

_COMMITTING: Final = np.array([apis.OFFSET_COMMIT, apis.TXN_OFFSET_COMMIT])


def _origins() -> Log:
    return Log(ORIGIN_COLUMNS, ORIGIN_TEXTS)


@dataclass(slots=True)
class Journeys:
    """Batches, answers that brought records, and commits (a `ResumableCollector`).

    _origins     what rows of these have in common: connection, client, topic-partition, transaction or group
    _batches     int64[B_COLUMNS, n] a window
    _reads       int64[R_COLUMNS, n] a window
    _commits     int64[C_COLUMNS, n] a window
    _silent      int64[B_COLUMNS + 1, n] a window: batches with acks=0, and the label of each
    _labels      int64[L_COLUMNS, n] a window: of the batches of answers that held several
    _gappy       int64[G_COLUMNS, n] a window: answers that lacked offsets
    _ranges      int64[2, origins]: the first offset that a reader asked for, and the last, or that it has passed
    _numbers     numbers of origins by a window's numbers, which mean something while `_strings` are those of `Names`
    _origin_of   int64[n]: the origin of each of these numbers
    groups       groups of each client (id and address), before `tables` is called
    given_up     batches that became rows before all their readers had passed them
    """

    _origins: Log = field(default_factory=_origins)
    _batches: list[np.ndarray] = field(default_factory=list)
    _reads: list[np.ndarray] = field(default_factory=list)
    _commits: list[np.ndarray] = field(default_factory=list)
    _silent: list[np.ndarray] = field(default_factory=list)
    _labels: list[np.ndarray] = field(default_factory=list)
    _gappy: list[np.ndarray] = field(default_factory=list)
    _transactions: Log = field(default_factory=lambda: Log(TRANSACTION_COLUMNS, ("transaction",)))
    _ranges: np.ndarray = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    _numbers: NumberedPlaces = field(default_factory=lambda: NumberedPlaces(len(_IN_WINDOW)))
    _origin_of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    _strings: list[str] | None = None
    groups: Mapping[tuple[str | None, str | None], Sequence[str]] = field(default_factory=dict)
    given_up: int = 0

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        state = {name: getattr(self, name) for name in self.__slots__}
        return None, state | self._nothing_numbered()

    @staticmethod
    def _nothing_numbered(strings: list[str] | None = None) -> dict[str, object]:
        numbers = NumberedPlaces(len(_IN_WINDOW))
        return {"_numbers": numbers, "_origin_of": np.zeros(0, np.int64), "_strings": strings}

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        every = window.every
        if every.partitions.shape[1]:
            api = every.columns[s.X_API_KEY][every.owner]
            produced = np.flatnonzero(api == apis.PRODUCE)
            if len(produced):
                self._take_produced(every, produced)
            fetched = np.flatnonzero((api == apis.FETCH) | (api == apis.SHARE_FETCH))
            if len(fetched):
                self._take_fetched(window, fetched)
            committed = np.flatnonzero(arrow.among(api, _COMMITTING))
            committed = committed[every.partitions[s.P_ERROR, committed] == 0]
            if len(committed):
                self._take_commits(every, committed)
        for operation in window.zookeeper:
            if (committed_there := offset_of(operation)) is not None:
                self._take_zookeeper(operation.time_ns, committed_there)

    def learn_transactions(self, rows: pa.Table) -> None:
        """Learn the outcomes of transactions from rows of the table."""
        if not len(rows):
            return
        columns = rows.select(["transactional_id", "began", "ended", "outcome"])
        for batch in columns.to_batches(max_chunksize=8192):
            named = [row for row in batch.to_pylist() if row["transactional_id"] is not None]
            began, ended = (arrow.numbers(batch.column(name), NULL) for name in ("began", "ended"))
            has_name = [i for i, value in enumerate(batch.column("transactional_id").to_pylist()) if value is not None]
            if named:
                numbers = [self._transactions.number(row["transactional_id"]) for row in named]
                values = {
                    "transaction": np.array(numbers, np.int64),
                    "began": began[has_name],
                    "ended": ended[has_name],
                    "outcome": np.array([journey_rows.OUTCOMES.index(row["outcome"]) for row in named], np.int64),
                }
                self._transactions.append(values, self._transactions.strings)

    def join(self, other: Journeys) -> None:
        self._grow_ranges()
        other._grow_ranges()
        behind = len(self._origins)
        self._origins.join(other._origins)
        self._ranges = np.concatenate([self._ranges, other._ranges], axis=1)
        for own, others in self._logs(other):
            for rows in others:
                moved = rows.copy()
                moved[0] += behind
                own.append(moved)
        self._transactions.join(other._transactions)
        self.given_up += other.given_up

    def _logs(self, other: Journeys) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        yield self._batches, other._batches
        yield self._reads, other._reads
        yield self._commits, other._commits
        yield self._silent, other._silent
        yield self._labels, other._labels
        yield self._gappy, other._gappy

    @property
    def held_bytes(self) -> int:
        """Estimate the bytes of batches, answers and commits."""
        rows = (*self._batches, *self._reads, *self._commits, *self._silent, *self._labels, *self._gappy)
        return sum(part.nbytes for part in rows) + self._origins.held_bytes + self._transactions.held_bytes

    def onward(self, border: Border) -> Journeys:
        """Batches that a reader, or the group's commit, has not passed, and what may tell of them."""
        known = self._known(border.topic_name)
        batches = known.batches
        undecided = journey_rows.is_undecided(known, batches, self._transactions)
        waiting, reads, commits = journey_matching.not_passed(known, batches, undecided, _RECENT_NS)
        late = np.flatnonzero(waiting)[:-MOST_KEPT]
        waiting[late] = False
        reads[np.flatnonzero(reads)[:-MOST_KEPT]] = False
        commits[np.flatnonzero(commits)[:-MOST_KEPT]] = False
        latest = max((int(rows[at].max()) for rows, at in known.timed if rows.shape[1]), default=0)
        recent = known.unplaced[B_RECEIVED] >= latest - _RECENT_NS
        recent[np.flatnonzero(recent)[:-MOST_KEPT]] = False
        labels = self._joined_labels()
        labels = labels[:, labels[L_TIME] >= latest - _RECENT_NS][:, -MOST_KEPT:]
        chosen = (
            batches[:, waiting],
            known.reads[:, reads],
            known.commits[:, commits],
            known.unplaced[:, recent],
            labels,
            known.gappy[:, -MOST_KEPT:],
        )
        used = arrow.distinct(np.concatenate([rows[0] for rows in chosen]))
        self._grow_ranges()
        after = Journeys(
            _origins=self._origins.take(used), _ranges=self._ranges[:, used].copy(), given_up=self.given_up + len(late)
        )
        for (own, _), rows in zip(after._logs(after), chosen, strict=True):
            moved = rows.copy()
            moved[0] = np.searchsorted(used, rows[0])
            if moved.shape[1]:
                own.append(moved)
        after._transactions = self._transactions.take(np.arange(len(self._transactions))[-MOST_KEPT:])
        rest = batches[:, ~waiting], known.unplaced[:B_COLUMNS, ~recent]
        self._batches = [rows for rows in rest if rows.shape[1]]
        self._silent, self._labels = [], []
        return after

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        if not self._batches and not self._silent:
            yield "journeys", tables.empty("journeys")
            return
        known = self._known(topic_name).settled()
        self._batches, self._reads, self._commits, self._silent, self._labels, self._gappy = [], [], [], [], [], []
        for table in journey_rows.rows([capture], known, self._transactions, self.groups):
            yield "journeys", table

    def _known(self, topic_name: TopicName) -> journey_matching.Known:
        """All rows so far, in order."""
        reads = journey_matching.joined(self._reads, R_COLUMNS)
        commits = journey_matching.joined(self._commits, C_COLUMNS)
        self._grow_ranges()
        silent = journey_matching.joined(self._silent, B_COLUMNS + 1)
        return journey_matching.Known.of(
            self._origins,
            self._ranges,
            list(self._batches),
            reads,
            commits,
            topic_name,
            silent,
            self._joined_labels() if silent.shape[1] else np.zeros((L_COLUMNS, 0), np.int64),
            journey_matching.joined(self._gappy, G_COLUMNS),
        )

    def _joined_labels(self) -> np.ndarray:
        return journey_matching.joined(self._labels, L_COLUMNS)

    # -- windows ------------------------------------------------------------------------------------------------------
    def _take_produced(self, every: Exchanges, rows: np.ndarray) -> None:
        x, parts = every.columns, every.partitions
        error = parts[s.P_ERROR][rows]
        written = (error == 0) | (error == NULL)
        if not written.all():
            rows = rows[written]
        if not len(rows):
            return
        of = parts[s.P_OWNER][rows]
        out = np.empty((B_COLUMNS, len(rows)), np.int64)
        out[B_ORIGIN] = self._origin(every, rows, of, x[s.X_TRANSACTIONAL_ID][of])
        exchange_columns = (
            (B_COMPLETED_BY, s.X_COMPLETED_BY),
            (B_EXCHANGE, s.X_EXCHANGE),
            (B_REPLY, s.X_REPLY),
            (B_SENT, s.X_REQUEST_FIRST_NS),
            (B_RECEIVED, s.X_REQUEST_LAST_NS),
            (B_ACKED, s.X_RESPONSE_LAST_NS),
        )
        # All positions are there. NumPy makes a copy of `out` where it is to check them.
        for into, column in exchange_columns:
            np.take(x[column], of, out=out[into], mode="clip")
        part_columns = (
            (B_BASE, s.P_OFFSET),
            (B_RECORDS, s.P_RECORDS),
            (B_BYTES, s.P_RECORD_BYTES),
            (B_CREATED, s.P_FIRST),
        )
        for into, column in part_columns:
            np.take(parts[column], rows, out=out[into], mode="clip")
        out[B_STATE] = WHOLE
        base = out[B_BASE]
        lacking = np.flatnonzero((base == NULL) | (out[B_BYTES] == NULL) | (out[B_RECORDS] <= 0))
        if len(lacking):
            status, acks = x[s.X_STATUS][of[lacking]], x[s.X_ACKS][of[lacking]]
            unheard = (status == s.UNANSWERED) | (status == s.IN_FLIGHT)
            state = np.where(out[B_BYTES, lacking] == NULL, NO_REQUEST, WHOLE)
            silent = np.where(acks == 0, NO_ACKNOWLEDGEMENT, np.where(unheard, UNANSWERED, NO_ANSWER))
            out[B_STATE, lacking] = np.where(base[lacking] == NULL, silent, state)
            empty = (out[B_RECORDS] == 0) | ((base == NULL) & (out[B_BYTES] == NULL))
            silent = (out[B_STATE] == NO_ACKNOWLEDGEMENT) & ~empty
            if silent.any():
                self._silent.append(np.concatenate([out[:, silent], parts[s.P_LABEL][rows[silent]][np.newaxis]]))
            if (gone := empty | silent).any():  # a records field without a batch, or nothing known of either side
                out = out[:, ~gone]
        if out.shape[1]:
            self._batches.append(out)

    def _take_fetched(self, window: Window, rows: np.ndarray) -> None:
        every = window.every
        x, parts = every.columns, every.partitions
        of = parts[s.P_OWNER][rows]
        api, replica, fetch_offset = x[s.X_API_KEY][of], x[s.X_REPLICA][of], parts[s.P_OFFSET][rows]
        kind: np.ndarray = np.broadcast_to(np.int64(CONSUMER), rows.shape)
        name = node = None
        shared = api == apis.SHARE_FETCH
        any_shared = bool(shared.any())
        if any_shared or (replica >= 0).any():
            kind = np.where(shared, SHARE, np.where(replica >= 0, REPLICA, CONSUMER))
            name = np.where(shared, x[s.X_GROUP][of], NULL)
            node = np.where(replica >= 0, replica, NULL)
        beyond, broken_off = fetch_offset, x[s.X_RESPONSE_STATE][of] > s.DECODED_STATE
        if broken_off.any():
            beyond = np.where(broken_off, _MOST, fetch_offset)
        origin = self._origin(every, rows, of, name, kind, node, fetch_offset, beyond)
        brought = parts[s.P_FOLLOWING][rows] != NULL
        if any_shared:
            brought = np.where(shared, parts[s.P_ACQUIRED][rows] > 0, brought)
        some = np.flatnonzero(brought & (parts[s.P_ERROR][rows] <= 0) & (x[s.X_RESPONSE_LAST_NS][of] != NULL))
        if not len(some):
            return
        chosen, fetch_offset = rows[some], fetch_offset[some]
        out = np.empty((R_COLUMNS, len(some)), np.int64)
        out[R_ORIGIN], out[R_TIME] = origin[some], x[s.X_RESPONSE_LAST_NS][of[some]]
        begin, end, absent = (parts[column][chosen] for column in (s.P_FIRST, s.P_FOLLOWING, s.P_ABSENT))
        lacks = (fetch_offset != NULL) & ((begin > fetch_offset) | (absent > 0)) & (parts[s.P_RECORDS][chosen] != NULL)
        if any_shared:
            lacks &= ~shared[some]
        if lacks.any():
            gappy = np.empty((G_COLUMNS, np.count_nonzero(lacks)), np.int64)
            gappy[G_ORIGIN], gappy[G_BEGIN], gappy[G_END] = out[R_ORIGIN, lacks], fetch_offset[lacks], end[lacks]
            self._gappy.append(gappy)
        # An answer may begin before the offset asked for. A compressed message of the older formats has the offset of
        # its last record: what it holds began where asked.
        out[R_BEGIN] = np.where(parts[s.P_RECORDS][chosen] == NULL, fetch_offset, np.maximum(begin, fetch_offset))
        out[R_BEGIN] = np.where(fetch_offset == NULL, begin, out[R_BEGIN])
        out[R_END], out[R_UNSURE] = end, absent > 0
        if any_shared:
            given = begin + parts[s.P_ACQUIRED][chosen] + absent
            out[R_BEGIN] = np.where(shared[some], begin, out[R_BEGIN])
            out[R_END] = np.where(shared[some], given, end)
        out[R_LABEL] = np.where(begin == out[R_BEGIN], parts[s.P_LABEL][chosen], NULL)
        sets = parts[s.P_SET][chosen]
        apart = np.flatnonzero(((parts[s.P_BATCHES][chosen] > 1) | (begin != out[R_BEGIN])) & (sets != NULL))
        if len(apart):
            headers = _headers(window, sets[apart])
            headers[0] = apart[headers[0]]
            labelled = headers[:, headers[_H_LABEL] != NULL]
            row = labelled[_H_ROW]
            self._labels.append(
                np.array([out[R_ORIGIN][row], out[R_TIME][row], labelled[_H_BEGIN], labelled[_H_LABEL]])
            )
            broken = ((absent > 0) & ~shared[some])[headers[_H_ROW]]
            if broken.any():
                out = _taken_apart(out, headers[:, broken])
        self._reads.append(out[:, out[R_END] > out[R_BEGIN]])

    def _take_commits(self, every: Exchanges, rows: np.ndarray) -> None:
        x, parts = every.columns, every.partitions
        rows = rows[parts[s.P_OFFSET][rows] != NULL]
        if not len(rows):
            return
        of = parts[s.P_OWNER][rows]
        out = np.empty((C_COLUMNS, len(rows)), np.int64)
        out[C_ORIGIN] = self._origin(every, rows, of, x[s.X_GROUP][of], transaction=x[s.X_TRANSACTIONAL_ID][of])
        out[C_OFFSET], out[C_TIME] = parts[s.P_OFFSET][rows], x[s.X_RESPONSE_LAST_NS][of]
        self._commits.append(out)

    def _take_zookeeper(self, time_ns: int, committed: Committed) -> None:
        """Note a commit in ZooKeeper."""
        row = dict.fromkeys(ORIGIN_COLUMNS, NULL) | {"name": 0, "topic": 1, "partition": committed.partition}
        texts = [committed.group, committed.topic]
        self._origins.append({key: np.array([value], np.int64) for key, value in row.items()}, texts, [])
        self._commits.append(np.array([[len(self._origins) - 1], [committed.offset], [time_ns]], np.int64))

    def _origin(
        self,
        every: Exchanges,
        rows: np.ndarray,
        of: np.ndarray,
        name: np.ndarray | None = None,
        kind: np.ndarray | None = None,
        node: np.ndarray | None = None,
        low: np.ndarray | None = None,
        high: np.ndarray | None = None,
        transaction: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return int64[n]: the origin of each topic-partition `rows` of the exchanges `of`.

        name          transactional id or group
        kind, node    of a reader; the node is a follower's
        low, high     offsets whose range a reader has passed; of each origin the least and the largest are kept
        transaction   of a commit
        """
        names, parts = every.names, every.partitions
        nulls = np.broadcast_to(np.int64(NULL), rows.shape)
        columns = (  # as `_IN_WINDOW` names them
            nulls if kind is None else kind,
            every.connection[of],
            every.columns[s.X_CLIENT_ID][of],
            parts[s.P_TOPIC][rows],
            parts[s.P_TOPIC_ID][rows],
            parts[s.P_PARTITION][rows],
            nulls if name is None else name,
            nulls if node is None else node,
            nulls if transaction is None else transaction,
        )
        first, which = few_combinations(columns)
        values = np.array([column[first] for column in columns])
        serials = [names.serials[number] for number in values[_CONNECTION].tolist()]
        origin = self._numbered(values, serials, every)
        if low is not None and high is not None:
            self._passed(origin, which, low, high)
        numbers: np.ndarray = origin[which]
        return numbers

    def _numbered(self, values: np.ndarray, serials: list[int], every: Exchanges) -> np.ndarray:
        """Return the number of each origin, a new one if it is new. values: as `_IN_WINDOW` has them; serials: of their
        connections."""
        names = every.names
        if self._strings is not names.strings:  # other strings have the numbers
            for name, value in self._nothing_numbered(names.strings).items():
                setattr(self, name, value)
        beside = np.delete(values, _PARTITION, axis=0)
        known = len(self._numbers)
        number = self._numbers.numbers([np.array(serials, np.int64), *beside], values[_PARTITION])
        fresh = np.flatnonzero(number >= known)
        if len(fresh):
            fresh = fresh[np.argsort(number[fresh])]
            behind = np.arange(len(self._origins), len(self._origins) + len(fresh))
            self._origin_of = np.concatenate([self._origin_of, behind])
            rows = dict(zip(_IN_WINDOW, values[:, fresh], strict=True))
            ips = [names.ends[number][0] for number in rows["connection"].tolist()]
            rows |= {"ip": np.array(ips, np.int64), "serial": np.array(serials, np.int64)[fresh]}
            self._origins.append(rows, names.strings, names.connections)
        origin: np.ndarray = self._origin_of[number]
        return origin

    def _passed(self, origin: np.ndarray, which: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        """Note the least and the largest offset that readers asked for or passed, NULL where a fetch says none."""
        self._grow_ranges()
        known = low != NULL
        if not known.all():
            which, low, high = which[known], low[known], high[known]
        np.minimum.at(self._ranges[0], origin[which], low)
        np.maximum.at(self._ranges[1], origin[which], high)

    def _grow_ranges(self) -> None:
        """Make room for the ranges of all origins."""
        count = self._ranges.shape[1]
        if len(self._origins) > count:
            grown = np.empty((2, len(self._origins)), np.int64)
            grown[0], grown[1] = _MOST, NULL
            grown[:, :count] = self._ranges
            self._ranges = grown


_H_ROW, _H_BEGIN, _H_END, _H_LABEL, _H_COLUMNS = range(5)


def _headers(window: Window, sets: np.ndarray) -> np.ndarray:
    """Return int64[_H_COLUMNS, n]: batches with records of record sets, as far as these are kept: whole ones, and those
    whose records were not captured.

    Their columns are the set (an index in `sets`), the first offset, the one after the last, and the label."""
    order = np.argsort(sets, kind="stable")
    parts = [np.zeros((_H_COLUMNS, 0), np.int64)]
    for record_sets in window.sets:
        there = np.flatnonzero(arrow.among(record_sets.number, sets))
        if not len(there):
            continue
        at, length, bridged = (column[there] for column in (record_sets.at, record_sets.length, record_sets.bridged))
        table = batches.batches(record_sets.heap, at, length, bridged).table
        known = (table[batches.B_STATE] == batches.WHOLE) | (table[batches.B_REASON] == batches.REASON_NOT_CAPTURED)
        table = table[:, known & (table[batches.B_COUNT] != 0)]
        row = order[np.searchsorted(sets, record_sets.number[there], sorter=order)][table[batches.B_SET]]
        base, span = table[batches.B_OFFSET], np.where(table[batches.B_MAGIC] == 2, table[batches.B_LAST_DELTA], 0)
        label = table[batches.B_SIZE] << 32 | table[batches.B_CRC]
        plain = (table[batches.B_MAGIC] == 2) | (batches.codec(table) == batches.NONE)
        parts.append(np.array([row, base, base + span + 1, np.where(plain, label, NULL)]))
    return np.concatenate(parts, axis=1)


def _taken_apart(reads: np.ndarray, headers: np.ndarray) -> np.ndarray:
    """Return answers with those that `headers` has batches of (`_H_ROW`: which) as a row for each run of batches
    without a gap between them."""
    goes_on = (headers[_H_ROW, 1:] == headers[_H_ROW, :-1]) & (headers[_H_BEGIN, 1:] == headers[_H_END, :-1])
    first, last = np.flatnonzero(np.append(True, ~goes_on)), np.flatnonzero(np.append(~goes_on, True))
    row = headers[_H_ROW][first]
    pieces = reads[:, row]
    pieces[R_BEGIN] = np.maximum(headers[_H_BEGIN][first], pieces[R_BEGIN])
    pieces[R_END], pieces[R_UNSURE], pieces[R_LABEL] = headers[_H_END][last], 0, NULL
    return np.concatenate([np.delete(reads, arrow.distinct(row), axis=1), pieces], axis=1)
