"""Offsets that coordinators wrote to `__consumer_offsets`, as replicas fetch them: rows of the table `offsets`.

In: windows with their record sets. Out: a row for each offset committed. Rules: only record sets that replicas fetch
are opened, and of these only this topic's; a record that several replicas fetch, or one twice, is one row: the first.
If no message names the topic of an id, it is this one if all of its first records decode to the last byte. Without
record sets (`--records none`) there are no rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.combinations import last_of_each
from kwire.analyzer.analysis.event_columns import EVENT_COLUMNS, EVENT_ORDER
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Columns, Log
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

REPLICA: Final = "replica"
TOPIC: Final = "__consumer_offsets"

_COLUMNS: Final = (*EVENT_COLUMNS[:6], "log", "at", "group", "topic", "partition", "offset", "epoch", "earlier")
"""log, at: the partition of the topic, and the record's offset in it; earlier: an earlier rotation has its row."""
_TEXTS: Final = ("connection", "group", "topic")
MOST_KEPT: Final = 200_000
"""Groups and partitions whose last offset is remembered from one rotation to the next."""
_OF_COMMITS: Final = ("OffsetCommit", "LegacyOffsetCommit")
_CONTROL: Final = "ControlRecordTypeSchema"
"""What keys of control records are."""


@dataclass(slots=True)
class Replicated:
    """Offsets as replicas are sent them. `_internal`: whether an id is that topic's."""

    _log: Log = field(default_factory=lambda: Log(_COLUMNS, _TEXTS, EVENT_ORDER))
    _internal: dict[str, bool] = field(default_factory=dict)
    _reported: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # by partition: offsets that earlier rotations have

    def take(self, window: Window) -> None:
        """One window of the capture point."""
        every = window.every
        replicas = (every.column("api_key") == apis.FETCH) & (every.columns[s.X_REPLICA] >= 0)
        if not replicas.any():
            return
        strings = window.names.strings
        for identity, name, _ in window.topic_ids.tolist():
            self._internal[strings[identity]] = strings[name] == TOPIC
        parts = every.partitions
        rows = np.flatnonzero(replicas[every.owner] & (parts[s.P_SET] != NULL))
        sets = _bytes(window, parts[s.P_SET, rows])
        for row in rows.tolist():
            data = sets.get(int(parts[s.P_SET, row]))
            if data and self._is_wanted(parts, row, strings, data):
                self._open(window, row, data)

    def _is_wanted(self, parts: np.ndarray, row: int, strings: list[str], data: bytes) -> bool:
        topic, identity = int(parts[s.P_TOPIC, row]), int(parts[s.P_TOPIC_ID, row])
        if topic != NULL:
            return strings[topic] == TOPIC
        if identity == NULL:
            return False
        known = self._internal.get(strings[identity])
        if known is None:
            records = [record for _, _, record in _records(data)]
            if not records:
                return False  # control records alone say nothing
            known = self._internal[strings[identity]] = all(_whole(record) for record in records)
        return known

    def _open(self, window: Window, row: int, data: bytes) -> None:
        """Note the offsets of one record set."""
        every, names = window.every, window.names
        texts: dict[str, int] = {}
        commits: list[tuple[int, int, int, int, int, int]] = []
        for _, at, record in _records(data):
            key = record.key.body if record.key is not None and _whole(record) else None
            if record.type not in _OF_COMMITS or key is None:
                continue
            value = record.value.body if record.value is not None else {}
            group, topic = (texts.setdefault(key[name], len(texts)) for name in ("group", "topic"))
            offset, epoch = value.get("offset", NULL), value.get("leaderEpoch", -1)
            commits.append((at, group, topic, key["partition"], offset, epoch if epoch >= 0 else NULL))
        if not commits:
            return
        owner = int(every.owner[row])
        connection = int(every.connection[owner])
        common = {
            "completed_by": int(every.column("completed_by")[owner]),
            "serial": names.serials[connection],
            "time": int(every.column("response_end")[owner]),
            "connection": connection,
            "exchange": int(every.column("exchange")[owner]),
            "reply": int(every.column("reply")[owner]),
            "log": int(every.partitions[s.P_PARTITION, row]),
            "earlier": 0,
        }
        columns = {name: np.full(len(commits), value, np.int64) for name, value in common.items()}
        numbers = np.array(commits, np.int64).T
        columns |= dict(zip(("at", "group", "topic", "partition", "offset", "epoch"), numbers, strict=True))
        self._log.append(columns, list(texts), names.connections)

    @property
    def held_bytes(self) -> int:
        """Of what was noted."""
        return self._log.held_bytes

    def join(self, other: Replicated) -> None:
        """Take in what another share's learned."""
        self._log.join(other._log)

    def onward(self) -> Replicated:
        """Return the state for the next rotation: how far each log was read, and the last offset of each group and
        partition."""
        noted = self._fresh()
        after = Replicated(_internal=self._internal.copy(), _reported=self._reported.copy())
        for log in arrow.distinct(noted["log"]).tolist():
            at = noted["at"][noted["log"] == log]
            low, high = self._reported.get(log, (int(at[0]), int(at[-1])))
            after._reported[log] = min(low, int(at[0])), max(high, int(at[-1]))
        every = np.ones(len(noted["at"]), bool)
        chosen = last_of_each(every, *(noted[name] for name in ("group", "topic", "partition")))
        chosen[np.flatnonzero(chosen)[:-MOST_KEPT]] = False
        after._log = Log(_COLUMNS, _TEXTS, EVENT_ORDER)
        columns = {**noted, "earlier": every.astype(np.int64)}
        after._log.append({name: column[chosen] for name, column in columns.items()}, self._log.strings)
        return after

    def _fresh(self) -> Columns:
        """Return the offsets in order of the log, each once.

        Those that an earlier rotation has rows of are left out, but for the last of each group and partition.
        """
        noted = self._log.read()
        keys = [noted[name] for name in ("log", "at", "group", "topic", "partition", "offset")]
        order = np.lexsort((np.arange(len(keys[0])), *reversed(keys)))  # of several the first stays
        fresh = np.ones(len(order), bool)
        fresh[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
        for log, (low, high) in self._reported.items():
            fresh &= (
                (noted["earlier"][order] == 1)
                | (noted["log"][order] != log)
                | (noted["at"][order] < low)
                | (noted["at"][order] > high)
            )
        return {name: column[order[fresh]] for name, column in noted.items()}

    def rows(self, capture: str) -> tuple[pa.Table, Columns] | None:
        """(rows of `offsets`, their places), in order of the log; None where there are none."""
        noted = self._fresh()
        before, here = _before(noted), noted["earlier"] == 0
        if not here.any():
            return None
        noted, before = {name: column[here] for name, column in noted.items()}, before[here]
        strings = self._log.strings
        nobody = pa.nulls(len(before), pa.string())
        columns = {
            "capture": arrow.dictionary(np.zeros(len(before), np.int32), [capture]),
            "time": arrow.times(arrow.micros(noted["time"])),
            "group_id": arrow.strings(noted["group"], strings),
            "topic": arrow.strings(noted["topic"], strings),
            "topic_id": nobody,
            "partition": arrow.integers(noted["partition"], pa.int32()),
            "offset": arrow.integers(noted["offset"], pa.int64()),
            "previous": arrow.integers(before, pa.int64()),
            "step": arrow.integers(arrow.minus(noted["offset"], before), pa.int64()),
            "kind": arrow.dictionary(np.zeros(len(before), np.int32), [REPLICA]),
            "member_id": nobody,
            "client_id": nobody,
            "leader_epoch": arrow.integers(noted["epoch"], pa.int32()),
            "error": nobody,
            "connection": arrow.strings(noted["connection"], strings),
            "exchange": arrow.integers(noted["exchange"], pa.int64()),
            "reply": arrow.integers(noted["reply"], pa.int64()),
            "target": nobody,
        }
        table = pa.Table.from_arrays([columns[column.name] for column in tables.OFFSETS], list(columns))
        return tables.cast(table, tables.schema("offsets")), noted


def _before(noted: Columns) -> np.ndarray:
    """Of rows in order of the log the offset that the group had before, NULL where none was seen or it was deleted."""
    last: dict[tuple[int, int, int], int] = {}
    previous = np.full(len(noted["at"]), NULL, np.int64)
    keys = zip(*(noted[name].tolist() for name in ("group", "topic", "partition")), strict=True)
    for row, (key, offset) in enumerate(zip(keys, noted["offset"].tolist(), strict=True)):
        previous[row] = last.get(key, NULL)
        last[key] = offset
    return previous


def _bytes(window: Window, numbers: np.ndarray) -> dict[int, bytes]:
    """Record sets by number."""
    data_of: dict[int, bytes] = {}
    for sets in window.sets:
        for i in np.flatnonzero(arrow.among(sets.number, numbers)).tolist():
            at = int(sets.at[i])
            data_of[int(sets.number[i])] = sets.heap[at : at + int(sets.length[i])].tobytes()
    return data_of


def _records(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, offset, record) of a record set as one of that topic, without control records."""
    from kwire.analyzer.records import record_trees  # opens batches: a start does not need it

    for number, offset, record in record_trees.record_set(data, TOPIC, nodes=False).typed:
        if record.key is None or record.key.type != _CONTROL:
            yield number, offset, record


def _whole(record: Any) -> bool:
    """It is a record of that topic to its last byte."""
    sides = [side for side in (record.key, record.value) if side is not None]
    return record.type is not None and all(side.reason is None for side in sides)
