"""Offsets that groups commit, and readers that lost their place: rows of the table `offsets`.

In: windows; OffsetCommit, TxnOffsetCommit, ListOffsets and Fetch are read by columns, of EndTxn the body. Out: a row
for each offset committed, as clients ask and as replicas are sent it (`replicated`), and for each reset: a reader that
was told OFFSET_OUT_OF_RANGE, or that went where ListOffsets pointed. Rules
- A commit's `previous` is the last one before it that counts: accepted, and of a transaction only if that committed
  (KIP-98), in the order of answers. ZooKeeper (OffsetCommit v0) and Kafka each hold an offset of their own, so their
  rows do not meet; nor do what is asked and what was written.
- A reader is a client (id and address) and a partition: it may lose its place on one connection and go on on another.
  Of its fetches only those are kept that do not go on where the one before ended.
- Where a stretch of a capture ends and another goes on: a commit is told where it was made, a reset where it is known
  what the reader did. What counts before goes on (the last `MOST_KEPT` of commits, and of moves).
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer.analysis import TopicName
from analyzer.analysis.combinations import combinations, last_of_each
from analyzer.analysis.control_exchanges import Border, ControlExchange
from analyzer.analysis.event_columns import EVENT_ORDER, event_columns
from analyzer.analysis.reader_positions import ASKED, LEFT, LISTED, MOVE_COLUMNS, MOVE_TEXTS, REFUSED, Positions
from analyzer.analysis.replicated_offsets import Replicated
from analyzer.analysis.zookeeper import Committed, offset_of
from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
from analyzer.dataset import tables
from analyzer.dataset.parquet_files import ROW_GROUP_ROWS
from analyzer.frame import arrow
from analyzer.frame.log import Columns, Log
from analyzer.protocol import api_keys as apis
from analyzer.protocol import errors as kafka_errors
from captures.kernels import NULL

MOST_KEPT: Final = 200_000
"""Commits, and moves of readers, that are remembered from one stretch of a capture to the next: one of each group or
reader and partition. One takes 200 bytes."""

COMMIT, TXN_COMMIT, ZOOKEEPER, RESET = "commit", "txn_commit", "zookeeper", "reset"

_COMMIT_COLUMNS: Final = (
    "trigger",
    "born",
    "time",
    "connection",
    "exchange",
    "reply",
    "client",
    "ip",
    "api",
    "version",
    "group",
    "member",
    "transaction",
    "topic",
    "topic_id",
    "partition",
    "offset",
    "epoch",
    "error",
    "earlier",
    "seen",
)
"""earlier: it was told of in an earlier stretch; seen: where in the capture its answer begins (or what was asked, where
there is none), by which commits are in order: what stands behind a lost packet is complete, and handed out, only when
that is given up. NULL where it is an earlier one."""
_COMMIT_TEXTS: Final = ("connection", "client", "ip", "group", "member", "transaction", "topic", "topic_id")

_END_COLUMNS: Final = ("trigger", "born", "transaction", "committed")
"""Of what EndTxn says."""

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
    _members: set[tuple[str | None, str, str]] = field(default_factory=set)  # client id, address, group
    _ends: Log = field(default_factory=lambda: Log(_END_COLUMNS, ("transaction",), EVENT_ORDER))
    _elsewhere: list[tuple[tuple[int, int], int, str, Committed]] = field(default_factory=list)  # place, ns, connection
    _replicated: Replicated = field(default_factory=Replicated)
    _written: dict[tuple[str, str, int], int] = field(default_factory=dict)  # to ZooKeeper, in earlier stretches
    _goes_on: bool = False

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        every, names = window.every, window.names
        api = every.column("api_key")
        self._take_commits(every, (api == apis.OFFSET_COMMIT) | (api == apis.TXN_OFFSET_COMMIT))
        for said in window.zookeeper:
            if (committed := offset_of(said)) is not None:
                place = said.completed_by, names.serials[said.slot]
                self._elsewhere.append((place, said.time_ns, names.connections[said.slot], committed))
        self._replicated.take(window)
        for moves in self._positions.take(window):
            self._moves.append(moves, names.strings, names.connections)
        self._take_members(every, arrow.among(api, _MEMBERS) & (every.column("group_id") != NULL))
        self._take_ends(control)

    def named(self) -> np.ndarray:
        """Numbers of strings that are meant from window to window: of readers that are open."""
        return self._positions.named()

    def join(self, other: Offsets) -> None:
        self._commits.join(other._commits)
        self._moves.join(other._moves)
        self._members |= other._members
        self._ends.join(other._ends)
        self._elsewhere += other._elsewhere
        self._replicated.join(other._replicated)

    @property
    def held_bytes(self) -> int:
        """Of commits, moves and ends of transactions, and of who is member of what."""
        noted = (self._commits, self._moves, self._ends, self._replicated)
        return sum(one.held_bytes for one in noted) + 200 * len(self._members) + 500 * len(self._elsewhere)

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
        after._written.update({(one[3][0], one[3][1], one[3][2]): one[3][3] for one in sorted(self._elsewhere)})
        self._goes_on = True
        return after

    def _commits_onward(self, after: Offsets, topic_name: TopicName) -> None:
        """Of each group and partition the last that counts, and those that may count yet."""
        commits = self._commits.read()
        key, counts = self._counting(commits, self._topics(self._commits, commits, topic_name))
        order = np.argsort(commits["seen"], kind="stable")
        kept = np.zeros(len(order), bool)
        kept[order] = last_of_each(counts[order], *(column[order] for column in key))
        ends = self._ends_of(commits)
        undecided = [i for i in np.flatnonzero(commits["transaction"] != NULL).tolist() if i not in ends]
        kept[undecided] = True
        kept[np.flatnonzero(kept)[:-MOST_KEPT]] = False
        earlier, seen = np.ones(len(counts), np.int64), np.full(len(counts), NULL)
        after._commits = self._commits.take(kept, earlier=earlier, seen=seen)
        after._put_ends(sorted({ends[i] for i in np.flatnonzero(kept).tolist() if i in ends}))

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        commits = self._commits.read()
        placed = [*self._resets(topic_name), *self._in_zookeeper()]
        replicated = self._replicated.rows(capture)
        schema = tables.schema("offsets")
        if not placed and not len(commits["trigger"]) and replicated is None:  # PyArrow's functions take time to load
            yield "offsets", schema.empty_table()
            return
        others = [pa.Table.from_pylist([{"capture": capture, **row} for _, row in placed], schema)]
        place = np.array([place for place, _ in placed], np.int64).reshape(-1, 2)
        here = np.flatnonzero(commits["earlier"] == 0)
        triggers, borns = [commits["trigger"][here], place[:, 0]], [commits["born"][here], place[:, 1]]
        if replicated is not None:
            rows, noted = replicated
            others.append(rows)
            triggers.append(noted["trigger"])
            borns.append(noted["born"])
        other = pa.concat_tables(others)
        order = np.lexsort((np.concatenate(borns), np.concatenate(triggers)))
        commits = self._with_previous(commits, topic_name)
        for start in range(0, max(len(order), 1), ROW_GROUP_ROWS):  # rows take as much memory as what was noted
            piece = order[start : start + ROW_GROUP_ROWS]
            ours = piece < len(here)
            made = self._commit_rows(capture, {name: column[here[piece[ours]]] for name, column in commits.items()})
            if not ours.all():
                rest = other.take(pa.array(piece[~ours] - len(here)))
                made = pa.concat_tables([made, rest]).take(pa.array(np.argsort(np.argsort(~ours, kind="stable"))))
            yield "offsets", made

    # -- commits ------------------------------------------------------------------------------------------------------
    def _take_ends(self, control: Sequence[ControlExchange]) -> None:
        found = []
        for one in control:
            body = one.exchange.request
            if one.exchange.api_key == apis.END_TXN and one.exchange.error_code == 0 and body is not None:
                found.append((one.place, body["transactionalId"], body["committed"]))
        self._put_ends(found)

    def _put_ends(self, ends: Sequence[_End]) -> None:
        if ends:
            rows = [(*place, self._ends.number(transaction), committed) for place, transaction, committed in ends]
            values = dict(zip(_END_COLUMNS, np.array(rows, np.int64).T, strict=True))
            self._ends.append(values, self._ends.strings, ())

    def _take_commits(self, every: Exchanges, wanted: np.ndarray) -> None:
        found = np.flatnonzero(wanted[every.owner]) if wanted.any() else ()
        for start in range(0, len(found), ROW_GROUP_ROWS):  # a window may have a million
            parts = every.partitions[:, found[start : start + ROW_GROUP_ROWS]]
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
                    "seen": _seen(every, rows),
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
        }
        made = pa.Table.from_arrays([columns[column.name] for column in tables.OFFSETS], list(columns))
        return made.cast(tables.schema("offsets"))

    def _counting(
        self, commits: Columns, topic: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
        """(whose place it is: whether in ZooKeeper, group, topic or else its id, partition; whether it counts) of each
        commit. `topic`: the topic of each, as `_topics` has it."""
        zookeeper = (commits["api"] == apis.OFFSET_COMMIT) & (commits["version"] == 0)
        in_transaction = commits["api"] == apis.TXN_OFFSET_COMMIT
        place = np.where(topic == NULL, commits["topic_id"], topic)
        key = zookeeper.astype(np.int64), commits["group"], place, commits["partition"]
        return key, (commits["error"] == 0) & (~in_transaction | self._committed(commits))

    @staticmethod
    def _topics(noted: Log, events: Columns, topic_name: TopicName) -> np.ndarray:
        """The topic of each event, by the name of its id where only that was said and some message names it."""
        topic = events["topic"].copy()
        only_id = (topic == NULL) & (events["topic_id"] != NULL)
        for number in arrow.distinct(events["topic_id"][only_id]).tolist():
            said = noted.strings[number]
            name = topic_name(said)
            topic[only_id & (events["topic_id"] == number)] = noted.number(name) if name != said else NULL
        return topic

    def _committed(self, commits: Columns) -> np.ndarray:
        """Of each commit in a transaction: whether that was committed later, as its EndTxn says."""
        done = np.zeros(len(commits["trigger"]), bool)
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
        found = {}
        for i in rows.tolist():
            place, transaction = (
                (int(commits["trigger"][i]), int(commits["born"][i])),
                text[commits["transaction"][i]],
            )
            told = ends.get(transaction, [])
            after = bisect.bisect_left(told, (place, transaction, False))
            if after < len(told):
                found[i] = told[after]
        return found

    def _ends_by_text(self, wanted: Collection[str]) -> dict[str, list[_End]]:
        """Those of some transactional ids, in order."""
        ends, text = self._ends.read(), self._ends.strings
        here = np.array([name in wanted for name in text], np.bool_)[ends["transaction"]]
        found: dict[str, list[_End]] = {}
        for trigger, born, number, committed in zip(*(ends[name][here].tolist() for name in _END_COLUMNS), strict=True):
            found.setdefault(text[number], []).append(((trigger, born), text[number], bool(committed)))
        for told in found.values():
            told.sort()
        return found

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
        for client, ip, group in np.unique(pairs, axis=0).tolist():
            said = None if client == NULL else names.strings[client]
            self._members.add((said, names.strings[ip], names.strings[group]))

    def _resets(self, topic_name: TopicName) -> Iterator[tuple[tuple[int, int], Row]]:
        """(place, row) of each reset."""
        moves, text = _of_interest(self._moves.read()), self._moves.text
        groups: dict[tuple[str | None, str], set[str]] = {}
        for client, ip, its_group in self._members:
            groups.setdefault((client, ip), set()).add(its_group)
        readers: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(moves[name].tolist() for name in _READER), strict=True)):
            client, ip, name, its_id, partition = key
            named = text(name) or topic_name(text(its_id) or "")
            readers.setdefault((text(client), text(ip), named, partition), []).append(i)
        for (who, at, _, _), events in readers.items():
            said = groups.get((who, at or ""), set())
            group = next(iter(said)) if len(said) == 1 else None
            for i, fields in _followed(moves, events, self._goes_on):
                topic, topic_id = text(int(moves["topic"][i])), text(int(moves["topic_id"][i]))
                if topic is None and topic_id is not None:
                    resolved = topic_name(topic_id)
                    topic = resolved if resolved != topic_id else None
                yield (
                    (int(moves["trigger"][i]), int(moves["born"][i])),
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


def _of_interest(moves: Columns) -> Columns:
    """Moves of those clients and partitions that were refused, or told an offset: of all others nothing is said."""
    told = (moves["what"] == REFUSED) | (moves["what"] == LISTED)
    if not told.any():
        return {name: column[:0] for name, column in moves.items()}
    _, which = combinations(*(moves[name] for name in ("client", "ip", "partition")))
    some = np.zeros(int(which.max()) + 1, bool)
    some[which[told]] = True
    return {name: column[some[which]] for name, column in moves.items()}


_READER: Final = ("client", "ip", "topic", "topic_id", "partition")


def _lasting(moves: Columns, topic: np.ndarray) -> np.ndarray:
    """Which moves (`topic`: of each its name, NULL where only an id is known) matter for what comes: of each reader its
    last fetch, and what it was told since. What a reader that has not fetched was refused by ListOffsets matters once
    it does."""
    count = len(moves["what"])
    of = np.zeros(0, np.int64)
    if count:
        named = np.where(topic == NULL, moves["topic_id"], topic)
        _, of = combinations(moves["client"], moves["ip"], named, moves["partition"])
    asked = np.full(int(of.max()) + 1 if count else 0, -1, np.int64)
    fetches = np.flatnonzero(moves["what"] == ASKED)
    asked[of[fetches]] = fetches  # of what is written twice the last stays
    reads = np.zeros(len(asked), bool)
    reads[of[(moves["what"] == ASKED) | (moves["what"] == REFUSED)]] = True
    refused = (moves["what"] == LISTED) & (moves["error"] != 0) & (moves["error"] != NULL)
    kept: np.ndarray = (np.arange(count) >= asked[of]) & ~(refused & reads[of])
    for what in (LISTED, LEFT):  # the last says all that the ones before it said
        same = (moves["what"] == what) & ~refused
        kept &= ~same | last_of_each(same, of)
    kept[np.flatnonzero(kept)[:-MOST_KEPT]] = False
    return kept


def _followed(moves: Columns, events: list[int], goes_on: bool) -> Iterator[tuple[int, Row]]:
    """What one reader did with its place, in order: (number of the move, what the row says of it) of each reset.
    `goes_on`: it may do more, so of what is not known yet nothing is said."""
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
                for one in refused:
                    yield one, _refused(moves, one, offset)
            elif listed is not None and offset == moves["offset"][listed] and offset != before:
                step = offset - before if before != NULL else None
                yield listed, {"offset": offset, "previous": _absent(before), "step": step}
            refused, listed, before = [], None, offset
    for one in [] if goes_on else refused:
        yield one, _refused(moves, one, NULL)


def _refused(moves: Columns, i: int, offset: int) -> Row:
    """A fetch whose offset was out of range, and where the reader went then."""
    asked = int(moves["offset"][i])
    return {
        "offset": _absent(offset),
        "previous": _absent(asked),
        "step": offset - asked if NULL not in (offset, asked) else None,
        "error": kafka_errors.name(int(moves["error"][i])),
    }


def _seen(every: Exchanges, rows: np.ndarray) -> np.ndarray:
    """Where in the capture the answers of exchanges begin, or, where one has none, the request."""
    files = every.column("response_file")[rows], every.column("request_file")[rows]
    packets = every.column("response_packet")[rows], every.column("request_packet")[rows]
    file, packet = (np.where(packets[0] == NULL, asked, answered) for answered, asked in (files, packets))
    found: np.ndarray = file << 40 | packet
    return found


def _previous(key: Sequence[np.ndarray], offset: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of each row, the offset of the last row before it of the same key that counts; NULL: there is none. The last
    column of the key is their order."""
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
    found = np.full(len(order), NULL, np.int64)
    there = last[:-1] >= start[1:]
    found[order[1:][there]] = offset[order[last[:-1][there]]]
    return found


def _absent(value: int) -> int | None:
    return None if value == NULL else value
