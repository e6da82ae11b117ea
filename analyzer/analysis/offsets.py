"""Offsets that groups commit, and resets of readers: rows of the table `offsets`.

In: windows; OffsetCommit, TxnOffsetCommit, ListOffsets and Fetch are read by columns, of EndTxn the body. Out: a row
for each offset committed, by clients and as replicas fetch it (`replicated_offsets`), and for each reset: a reader that
got OFFSET_OUT_OF_RANGE, or that went where ListOffsets pointed. Rules
- A commit's `previous` is the last one before it that counts: accepted, and of a transaction only if that committed
  (KIP-98), in the order of responses. ZooKeeper (OffsetCommit v0) and Kafka each hold an offset of their own, so each
  has its own `previous`; the same holds for requests and for what coordinators wrote.
- A reader is a client (id and address) and a partition: it may lose its position on one connection and go on on
  another. Of its fetches only those are kept that do not continue the one before.
- With rotation, a commit is a row of the rotation it was made in, a reset of the one in which it is known where the
  reader went. The last commits and moves that count are remembered (`MOST_KEPT` of each).
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName
from kwire.analyzer.analysis.combinations import combinations, last_of_each
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchange
from kwire.analyzer.analysis.event_columns import EVENT_COLUMNS, EVENT_ORDER, event_columns
from kwire.analyzer.analysis.reader_positions import FETCHED, LEFT, LISTED, MOVE_COLUMNS, MOVE_TEXTS, REFUSED, Positions
from kwire.analyzer.analysis.replicated_offsets import Replicated
from kwire.analyzer.analysis.zookeeper import Committed, offset_of
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.parquet_files import ROW_GROUP_ROWS
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Columns, Log
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors as kafka_errors
from kwire.captures.kernels import NULL

MOST_KEPT: Final = 200_000
"""Commits, and moves of readers, that are remembered from one rotation to the next: one of each group or reader and
partition. One takes 200 bytes."""

COMMIT, TXN_COMMIT, ZOOKEEPER, RESET = "commit", "txn_commit", "zookeeper", "reset"

# fmt: off
_COMMIT_COLUMNS: Final = (
    *EVENT_COLUMNS, "api", "version", "group", "member", "transaction", "topic", "topic_id", "partition", "offset",
    "epoch", "error", "earlier", "seen",
)
# fmt: on
"""earlier: an earlier rotation has its row; seen: where in the capture its response begins (or the request, without
one), by which commits are in order, because exchanges behind a lost packet are handed out late. NULL for earlier
ones."""
_COMMIT_TEXTS: Final = ("connection", "client", "ip", "group", "member", "transaction", "topic", "topic_id")

_END_COLUMNS: Final = ("completed_by", "serial", "transaction", "committed")
"""Columns of EndTxn."""

_MEMBERS: Final = np.array(
    [apis.JOIN_GROUP, apis.HEARTBEAT, apis.OFFSET_COMMIT, apis.OFFSET_FETCH, apis.CONSUMER_GROUP_HEARTBEAT], np.int64
)
"""APIs by which a client shows that it reads for a group."""

Row = dict[str, Any]
_End = tuple[tuple[int, int], str, bool]
"""An EndTxn: its place, its transactional id, whether it committed."""


@dataclass(slots=True)
class Offsets:
    """Commits and resets of a capture point."""

    _commits: Log = field(default_factory=lambda: Log(_COMMIT_COLUMNS, _COMMIT_TEXTS, EVENT_ORDER))
    _moves: Log = field(default_factory=lambda: Log(MOVE_COLUMNS, MOVE_TEXTS, EVENT_ORDER))
    _positions: Positions = field(default_factory=Positions)
    _members: dict[tuple[str | None, str, str], tuple[int, int]] = field(default_factory=dict)
    """By client id, address and group: when it was first and last named, ns."""
    _ends: Log = field(default_factory=lambda: Log(_END_COLUMNS, ("transaction",), EVENT_ORDER))
    _elsewhere: list[tuple[tuple[int, int], int, str, Committed]] = field(default_factory=list)  # place, ns, connection
    _replicated: Replicated = field(default_factory=Replicated)
    _written: dict[tuple[str, str, int], int] = field(default_factory=dict)  # to ZooKeeper, in earlier rotations
    _goes_on: bool = False

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        every, names = window.every, window.names
        api = every.column("api_key")
        self._take_commits(every, (api == apis.OFFSET_COMMIT) | (api == apis.TXN_OFFSET_COMMIT))
        for operation in window.zookeeper:
            if (committed := offset_of(operation)) is not None:
                place = operation.completed_by, names.serials[operation.slot]
                self._elsewhere.append((place, operation.time_ns, names.connections[operation.slot], committed))
        self._replicated.take(window)
        targets = _targets(control)
        for moves in self._positions.take(window):
            if targets:
                _put_targets(moves, targets, names.strings)
            self._moves.append(moves, names.strings, names.connections)
        self._take_members(every, arrow.among(api, _MEMBERS) & (every.column("group_id") != NULL))
        self._take_ends(control)

    def named(self) -> np.ndarray:
        """Numbers of strings that are meant from window to window: of readers that are open."""
        return self._positions.named()

    def join(self, other: Offsets) -> None:
        self._commits.join(other._commits)
        self._moves.join(other._moves)
        for member, (first, last) in other._members.items():
            self._named_at(member, first, last)
        self._ends.join(other._ends)
        self._elsewhere += other._elsewhere
        self._replicated.join(other._replicated)

    @property
    def held_bytes(self) -> int:
        """Estimate the bytes of commits, moves, ends of transactions, and members."""
        noted = (self._commits, self._moves, self._ends, self._replicated)
        return sum(log.held_bytes for log in noted) + 200 * len(self._members) + 500 * len(self._elsewhere)

    def onward(self, border: Border) -> Offsets:
        """Where readers are, and what commits and moves were the last."""
        after = Offsets(_members=self._members.copy(), _replicated=self._replicated.onward())
        after._positions, self._positions = self._positions, Positions()
        if len(after._members) > MOST_KEPT:
            after._members.clear()
        self._commits_onward(after, border.topic_name)
        moves = self._moves.read()
        after._moves = self._moves.take(_lasting(moves, self._topics(self._moves, moves, border.topic_name)))
        after._written = self._written.copy()
        after._written.update(
            {(write[3][0], write[3][1], write[3][2]): write[3][3] for write in sorted(self._elsewhere)}
        )
        self._goes_on = True
        return after

    def _commits_onward(self, after: Offsets, topic_name: TopicName) -> None:
        """Of each group and partition the last that counts, and those that may count yet."""
        commits = self._commits.read()
        key, counts = self._counting(commits, self._topics(self._commits, commits, topic_name))
        order = np.argsort(commits["seen"], kind="stable")
        chosen = np.zeros(len(order), bool)
        chosen[order] = last_of_each(counts[order], *(column[order] for column in key))
        ends = self._ends_of(commits)
        undecided = [i for i in np.flatnonzero(commits["transaction"] != NULL).tolist() if i not in ends]
        chosen[undecided] = True
        chosen[np.flatnonzero(chosen)[:-MOST_KEPT]] = False
        earlier, seen = np.ones(len(counts), np.int64), np.full(len(counts), NULL)
        after._commits = self._commits.take(chosen, earlier=earlier, seen=seen)
        after._put_ends(sorted({ends[i] for i in np.flatnonzero(chosen).tolist() if i in ends}))

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        commits = self._commits.read()
        placed = [*self._resets(topic_name), *self._in_zookeeper()]
        replicated = self._replicated.rows(capture)
        schema = tables.schema("offsets")
        if not placed and not len(commits["completed_by"]) and replicated is None:
            yield "offsets", schema.empty_table()
            return
        others = [pa.Table.from_pylist([{"capture": capture, **row} for _, row in placed], schema)]
        place = np.array([place for place, _ in placed], np.int64).reshape(-1, 2)
        here = np.flatnonzero(commits["earlier"] == 0)
        triggers, borns = [commits["completed_by"][here], place[:, 0]], [commits["serial"][here], place[:, 1]]
        if replicated is not None:
            rows, noted = replicated
            others.append(rows)
            triggers.append(noted["completed_by"])
            borns.append(noted["serial"])
        other = pa.concat_tables(others)
        order = np.lexsort((np.concatenate(borns), np.concatenate(triggers)))
        commits = self._with_previous(commits, topic_name)
        for start in range(0, max(len(order), 1), ROW_GROUP_ROWS):  # rows take as much memory as what was noted
            piece = order[start : start + ROW_GROUP_ROWS]
            is_commit = piece < len(here)
            table = self._commit_rows(
                capture, {name: column[here[piece[is_commit]]] for name, column in commits.items()}
            )
            if not is_commit.all():
                rest = compute.take(other, piece[~is_commit] - len(here))
                place = np.argsort(np.argsort(~is_commit, kind="stable"))
                table = compute.take(pa.concat_tables([table, rest]), place)
            yield "offsets", table

    # -- commits ------------------------------------------------------------------------------------------------------
    def _take_ends(self, control: Sequence[ControlExchange]) -> None:
        ends = []
        for exchange in control:
            body = exchange.exchange.request
            if exchange.exchange.api_key == apis.END_TXN and exchange.exchange.error_code == 0 and body is not None:
                ends.append((exchange.place, body["transactionalId"], body["committed"]))
        self._put_ends(ends)

    def _put_ends(self, ends: Sequence[_End]) -> None:
        if ends:
            rows = [(*place, self._ends.number(transaction), committed) for place, transaction, committed in ends]
            values = dict(zip(_END_COLUMNS, np.array(rows, np.int64).T, strict=True))
            self._ends.append(values, self._ends.strings, ())

    def _take_commits(self, every: Exchanges, wanted: np.ndarray) -> None:
        partitions = np.flatnonzero(wanted[every.owner]) if wanted.any() else ()
        for start in range(0, len(partitions), ROW_GROUP_ROWS):  # a window may have a million
            parts = every.partitions[:, partitions[start : start + ROW_GROUP_ROWS]]
            rows = parts[s.P_OWNER]
            self._commits.append(
                {
                    **event_columns(every, rows),
                    "api": every.column("api_key")[rows],
                    "version": every.column("api_version")[rows],
                    "group": every.column("group_id")[rows],
                    "member": every.column("member_id")[rows],
                    "transaction": every.column("transactional_id")[rows],
                    "topic": parts[s.P_TOPIC],
                    "topic_id": parts[s.P_TOPIC_ID],
                    "partition": parts[s.P_PARTITION],
                    "offset": parts[s.P_OFFSET],
                    "epoch": parts[s.P_EPOCH],
                    "error": parts[s.P_ERROR],
                    "earlier": np.zeros(len(rows), np.int64),
                    "seen": _capture_position(every, rows),
                },
                every.names.strings,
                every.names.connections,
            )

    def _with_previous(self, commits: Columns, topic_name: TopicName) -> Columns:
        """Commits with what was committed before each (`previous`), and whether that is in ZooKeeper (0 or 1)."""
        topic = self._topics(self._commits, commits, topic_name)
        key, counts = self._counting(commits, topic)
        return {
            **commits,
            "topic": topic,
            "zookeeper": key[0],
            "previous": _previous((*key, commits["seen"]), commits["offset"], counts),
        }

    def _commit_rows(self, capture: str, commits: Columns) -> pa.Table:
        """Rows of some commits, as `_with_previous` has them."""
        strings = self._commits.strings
        in_transaction = commits["api"] == apis.TXN_OFFSET_COMMIT
        kinds = (COMMIT, TXN_COMMIT, ZOOKEEPER)
        error = commits["error"]
        known = arrow.distinct(error[(error != NULL) & (error != 0)])
        epoch = np.where(commits["epoch"] < 0, NULL, commits["epoch"])
        columns = {
            "capture": arrow.dictionary(np.zeros(len(error), np.int32), [capture]),
            "time": arrow.times(arrow.micros(commits["time"])),
            "group_id": arrow.strings(commits["group"], strings),
            "topic": arrow.strings(commits["topic"], strings),
            "topic_id": arrow.strings(commits["topic_id"], strings),
            "partition": arrow.integers(commits["partition"], pa.int32()),
            "offset": arrow.integers(commits["offset"], pa.int64()),
            "previous": arrow.integers(commits["previous"], pa.int64()),
            "step": arrow.integers(arrow.minus(commits["offset"], commits["previous"]), pa.int64()),
            "kind": arrow.dictionary(np.where(commits["zookeeper"] == 1, 2, in_transaction.astype(np.int64)), kinds),
            "member_id": arrow.strings(commits["member"], strings),
            "client_id": arrow.strings(commits["client"], strings),
            "leader_epoch": arrow.integers(epoch, pa.int32()),
            "error": arrow.dictionary(
                np.where((error == NULL) | (error == 0), NULL, np.searchsorted(known, error)),
                [kafka_errors.name(code) for code in known.tolist()],
            ),
            "connection": arrow.strings(commits["connection"], strings),
            "exchange": arrow.integers(commits["exchange"], pa.int64()),
            "reply": arrow.integers(commits["reply"], pa.int64()),
            "target": pa.nulls(len(error), pa.string()),
        }
        table = pa.Table.from_arrays([columns[column.name] for column in tables.OFFSETS], list(columns))
        return tables.cast(table, tables.schema("offsets"))

    def _counting(
        self, commits: Columns, topic: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
        """Return the key of each commit (whether in ZooKeeper, group, topic or else its id, partition), and whether it
        counts.

        topic   the topic of each, as `_topics` returns it
        """
        zookeeper = (commits["api"] == apis.OFFSET_COMMIT) & (commits["version"] == 0)
        in_transaction = commits["api"] == apis.TXN_OFFSET_COMMIT
        place = np.where(topic == NULL, commits["topic_id"], topic)
        key = zookeeper.astype(np.int64), commits["group"], place, commits["partition"]
        return key, (commits["error"] == 0) & (~in_transaction | self._committed(commits))

    @staticmethod
    def _topics(log: Log, events: Columns, topic_name: TopicName) -> np.ndarray:
        """Return each event's topic: its name, or the name of its id if only that is known and a message names it."""
        topic = events["topic"].copy()
        only_id = (topic == NULL) & (events["topic_id"] != NULL)
        for number in arrow.distinct(events["topic_id"][only_id]).tolist():
            topic_id = log.strings[number]
            name = topic_name(topic_id)
            topic[only_id & (events["topic_id"] == number)] = log.number(name) if name != topic_id else NULL
        return topic

    def _committed(self, commits: Columns) -> np.ndarray:
        """Return for each commit in a transaction whether that was committed later by an EndTxn."""
        done = np.zeros(len(commits["completed_by"]), bool)
        for i, (_, _, committed) in self._ends_of(commits).items():
            done[i] = committed
        return done

    def _ends_of(self, commits: Columns) -> dict[int, _End]:
        """The EndTxn after each commit in a transaction, by row; of those that have one."""
        rows = np.flatnonzero(commits["transaction"] != NULL)
        if not len(rows):
            return {}
        text = self._commits.strings
        ends = self._ends_by_text({text[number] for number in arrow.distinct(commits["transaction"][rows]).tolist()})
        end_of = {}
        for i in rows.tolist():
            place, transaction = (
                (int(commits["completed_by"][i]), int(commits["serial"][i])),
                text[commits["transaction"][i]],
            )
            own_ends = ends.get(transaction, [])
            after = bisect.bisect_left(own_ends, (place, transaction, False))
            if after < len(own_ends):
                end_of[i] = own_ends[after]
        return end_of

    def _ends_by_text(self, wanted: Collection[str]) -> dict[str, list[_End]]:
        """Return the ends of some transactional ids, in order."""
        ends, text = self._ends.read(), self._ends.strings
        here = np.array([name in wanted for name in text], np.bool_)[ends["transaction"]]
        ends_by_text: dict[str, list[_End]] = {}
        for trigger, born, number, committed in zip(*(ends[name][here].tolist() for name in _END_COLUMNS), strict=True):
            ends_by_text.setdefault(text[number], []).append(((trigger, born), text[number], bool(committed)))
        for own_ends in ends_by_text.values():
            own_ends.sort()
        return ends_by_text

    def _in_zookeeper(self) -> Iterator[tuple[tuple[int, int], Row]]:
        """(place, row) of each offset that a consumer wrote to ZooKeeper itself."""
        last = self._written.copy()
        for place, time_ns, connection, (group, topic, partition, offset) in sorted(self._elsewhere):
            before = last.get((group, topic, partition))
            last[group, topic, partition] = offset
            yield (
                place,
                {
                    "time": time_ns // 1000,
                    "group_id": group,
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "previous": before,
                    "step": None if before is None else offset - before,
                    "kind": ZOOKEEPER,
                    "connection": connection,
                },
            )

    # -- readers ------------------------------------------------------------------------------------------------------
    def _take_members(self, every: Exchanges, wanted: np.ndarray) -> None:
        if not wanted.any():
            return
        names = every.names
        rows = np.flatnonzero(wanted)
        pairs = np.stack(
            [every.column("client_id")[rows], event_columns(every, rows)["ip"], every.column("group_id")[rows]], axis=1
        )
        distinct, which = np.unique(pairs, axis=0, return_inverse=True)
        time = every.column("request_end")[rows]
        first, last = np.full(len(distinct), _NEVER), np.full(len(distinct), NULL)
        np.minimum.at(first, which.ravel(), np.where(time == NULL, _NEVER, time))
        np.maximum.at(last, which.ravel(), time)
        for (client, ip, group), begin, end in zip(distinct.tolist(), first.tolist(), last.tolist(), strict=True):
            client_id = None if client == NULL else names.strings[client]
            self._named_at((client_id, names.strings[ip], names.strings[group]), begin, end)

    def _named_at(self, member: tuple[str | None, str, str], first: int, last: int) -> None:
        before = self._members.get(member, (first, last))
        self._members[member] = min(before[0], first), max(before[1], last)

    def _resets(self, topic_name: TopicName) -> Iterator[tuple[tuple[int, int], Row]]:
        """(place, row) of each reset."""
        moves, text = _of_interest(self._moves.read()), self._moves.text
        groups: dict[tuple[str | None, str], list[tuple[int, int, str]]] = {}
        for (client, ip, its_group), (first, last) in self._members.items():
            groups.setdefault((client, ip), []).append((first, last, its_group))
        latest: dict[int, str | None] = {}  # group of each connection's last move: its end has no time
        readers: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(moves[name].tolist() for name in _READER), strict=True)):
            client, ip, name, its_id, partition = key
            named = text(name) or topic_name(text(its_id) or "")
            connection = int(moves["connection"][i])
            if moves["what"][i] != LEFT or connection not in latest:
                own = groups.get((text(client), text(ip) or ""), [])
                latest[connection] = _group_at(own, int(moves["time"][i]))
            readers.setdefault((text(client), text(ip), named, partition, latest[connection]), []).append(i)
        for (who, _, _, _, group), events in readers.items():
            for i, fields in _resets_of_reader(moves, events, self._goes_on):
                topic, topic_id = text(int(moves["topic"][i])), text(int(moves["topic_id"][i]))
                if topic is None and topic_id is not None:
                    resolved = topic_name(topic_id)
                    topic = resolved if resolved != topic_id else None
                yield (
                    (int(moves["completed_by"][i]), int(moves["serial"][i])),
                    {
                        "time": int(moves["time"][i]) // 1000,
                        "group_id": group,
                        "topic": topic,
                        "topic_id": topic_id,
                        "partition": int(moves["partition"][i]),
                        "kind": RESET,
                        "client_id": who,
                        "connection": text(int(moves["connection"][i])),
                        "exchange": _absent(int(moves["exchange"][i])),
                        "reply": _absent(int(moves["reply"][i])),
                        **fields,
                    },
                )


_NEVER: Final = np.iinfo(np.int64).max

_TARGETS: Final = {
    -1: "latest",
    -2: "earliest",
    -3: "max_timestamp",
    -4: "earliest_local",
    -5: "latest_tiered",
}
"""Timestamps of ListOffsets that are none (`ListOffsetsRequest`)."""
_Place = tuple[int, int, str, int]
"""Place of an exchange, topic, partition."""


def _targets(control: Sequence[ControlExchange]) -> dict[_Place, int]:
    """Timestamps that ListOffsets requests gave."""
    out: dict[_Place, int] = {}
    for exchange in control:
        body = exchange.exchange.request
        if exchange.exchange.api_key == apis.LIST_OFFSETS and body is not None:
            for topic in body["topics"]:
                for partition in topic["partitions"]:
                    out[(*exchange.place, topic["name"], partition["partitionIndex"])] = partition["timestamp"]
    return out


def _put_targets(moves: Columns, targets: dict[_Place, int], strings: Sequence[str]) -> None:
    """Fill in the timestamps by which offsets were listed."""
    for i in np.flatnonzero((moves["what"] == LISTED) & (moves["topic"] != NULL)).tolist():
        place = int(moves["completed_by"][i]), int(moves["serial"][i])
        key = (*place, strings[int(moves["topic"][i])], int(moves["partition"][i]))
        moves["target"][i] = targets.get(key, NULL)


def _group_at(groups: list[tuple[int, int, str]], time_ns: int) -> str | None:
    """The group that a client read for at a time: the only one, else that which it had named last; None where it named
    several side by side. `groups`: first and last time of each, and its name."""
    if len(groups) < 2:
        return groups[0][2] if groups else None
    there = [group for first, last, group in groups if first <= time_ns <= last]
    begun = [(first, group) for first, _, group in groups if first <= time_ns]
    return None if len(there) > 1 else there[0] if there else max(begun)[1] if begun else min(groups)[2]


def _of_interest(moves: Columns) -> Columns:
    """Moves of those clients and partitions that were refused, or told an offset: of all others nothing is said."""
    known_offsets = (moves["what"] == REFUSED) | (moves["what"] == LISTED)
    if not known_offsets.any():
        return {name: column[:0] for name, column in moves.items()}
    _, which = combinations(*(moves[name] for name in ("client", "ip", "partition")))
    some = np.zeros(int(which.max()) + 1, bool)
    some[which[known_offsets]] = True
    return {name: column[some[which]] for name, column in moves.items()}


_READER: Final = ("client", "ip", "topic", "topic_id", "partition")


def _lasting(moves: Columns, topic: np.ndarray) -> np.ndarray:
    """Return bool[n]: the moves that matter later: of each reader its last fetch, and the offsets it got since.

    A refused ListOffsets of a reader that has not fetched matters once it does. `topic`: the name of each move's topic,
    NULL if only an id is known.
    """
    count = len(moves["what"])
    of = np.zeros(0, np.int64)
    if count:
        named = np.where(topic == NULL, moves["topic_id"], topic)
        _, of = combinations(moves["client"], moves["ip"], named, moves["partition"])
    last_fetch = np.full(int(of.max()) + 1 if count else 0, -1, np.int64)
    fetches = np.flatnonzero(moves["what"] == FETCHED)
    last_fetch[of[fetches]] = fetches  # of what is written twice the last stays
    reads = np.zeros(len(last_fetch), bool)
    reads[of[(moves["what"] == FETCHED) | (moves["what"] == REFUSED)]] = True
    refused = (moves["what"] == LISTED) & (moves["error"] != 0) & (moves["error"] != NULL)
    chosen: np.ndarray = (np.arange(count) >= last_fetch[of]) & ~(refused & reads[of])
    for what in (LISTED, LEFT):  # the last says all that the ones before it said
        same = (moves["what"] == what) & ~refused
        chosen &= ~same | last_of_each(same, of)
    chosen[np.flatnonzero(chosen)[:-MOST_KEPT]] = False
    return chosen


def _resets_of_reader(moves: Columns, events: list[int], goes_on: bool) -> Iterator[tuple[int, Row]]:
    """Yield (index of the move, columns of its row) of each reset of one reader, in order.

    goes_on   the reader may fetch again, so a refused fetch without a following one is not yielded yet
    """
    refused: list[int] = []
    listed: int | None = None
    before = NULL
    reads = any(moves["what"][i] not in (LISTED, LEFT) for i in events)
    for i in events:
        what, offset = moves["what"][i], int(moves["offset"][i])
        if what == REFUSED:
            refused.append(i)
        elif what == LEFT:
            before = offset
        elif what == LISTED:
            error = int(moves["error"][i])
            if error not in (0, NULL) and reads:
                yield i, {"previous": _absent(before), "error": kafka_errors.name(error)}
            listed = i if error == 0 else listed
        else:
            if moves["expected"][i] != NULL:
                before = int(moves["expected"][i])
            if refused:
                for refusal in refused:
                    yield refusal, _refused_fetch(moves, refusal, offset)
            elif listed is not None and offset == moves["offset"][listed] and offset != before:
                step = offset - before if before != NULL else None
                target = int(moves["target"][listed])
                named = None if target == NULL else _TARGETS.get(target, "timestamp")
                yield listed, {"offset": offset, "previous": _absent(before), "step": step, "target": named}
            refused, listed, before = [], None, offset
    for refusal in [] if goes_on else refused:
        yield refusal, _refused_fetch(moves, refusal, NULL)


def _refused_fetch(moves: Columns, i: int, offset: int) -> Row:
    """A fetch whose offset was out of range, and where the reader went then."""
    requested = int(moves["offset"][i])
    return {
        "offset": _absent(offset),
        "previous": _absent(requested),
        "step": offset - requested if NULL not in (offset, requested) else None,
        "error": kafka_errors.name(int(moves["error"][i])),
    }


def _capture_position(every: Exchanges, rows: np.ndarray) -> np.ndarray:
    """Where in the capture the answers of exchanges begin, or, where one has none, the request."""
    files = every.column("response_file")[rows], every.column("request_file")[rows]
    packets = every.column("response_packet")[rows], every.column("request_packet")[rows]
    file, packet = (np.where(packets[0] == NULL, request, response) for response, request in (files, packets))
    position: np.ndarray = file << 40 | packet
    return position


def _previous(key: Sequence[np.ndarray], offset: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the offset of the last row before each of the same key that counts; NULL: there is none.

    The last column of the key is the order of rows.
    """
    order = np.lexsort(tuple(reversed(key)))  # stable: rows of one place stay in order
    first = np.ones(len(order), bool)
    for column in key[:-1]:
        ordered = column[order]
        first[1:] &= ordered[1:] == ordered[:-1]
    first[1:] = ~first[1:]
    rows = np.arange(len(order))
    start, last = np.where(first, rows, 0), np.where(counts[order], rows, -1)
    for column in (start, last):
        np.maximum.accumulate(column, out=column)
    previous = np.full(len(order), NULL, np.int64)
    there = last[:-1] >= start[1:]
    previous[order[1:][there]] = offset[order[last[:-1][there]]]
    return previous


def _absent(value: int) -> int | None:
    return None if value == NULL else value
