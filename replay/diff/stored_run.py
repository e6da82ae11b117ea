"""A RUN on disk, asked for one captured exchange after the other in order of captured time.

In: a RUN's tables. Out: rows and frames of both sides, by *place* (an exchange's number in that order). A RUN may be
larger than memory, and its tables are in other orders than time: so what comparing needs of them is unpacked once into
temporary files that are mapped, which the system may drop and read again (`scratch`), and so is where in them an
exchange's rows are. Memory holds what is sorted, while it is (some 50 bytes an exchange). Asking for one exchange costs
some 100 us: `captured_part` and `replayed_part` tell of many of them by columns, and where their frames lie. Rule:
nothing is decoded here.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.dataset.dataset import DatasetError, StoredDataset, open_dataset, readable
from kwire.analyzer.dataset.tables import REPLAYED
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.protocol.project import Messages
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE, ZERO_UUID
from kwire.replay.diff.captured_names import CapturedNames

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Heap = npt.NDArray[np.uint8]

ROW: Final = (
    "capture",
    "connection",
    "exchange",
    "reply",
    "api_key",
    "api_version",
    "correlation_id",
    "request_file",
    "request_packet",
    "request_time",
    "response_end",
    "client_id",
    "group_id",
    "transactional_id",
    "status",
    "latency_us",
    "cause",
    "throttle_us",
    "errors",
)
"""Columns of the table `exchanges` that comparing and reporting want."""
_KEY: Final = ("capture", "connection", "exchange", "api_key")
_OUTCOME: Final = ("verdict", "rule", "sent_version", "latency_us", "retries")
_DISCARDED: Final = "discarded"
_MESSAGE: Final = ("capture", "connection", "exchange", "reply", "direction", "complete", "bytes")
_ROWS: Final = 8192
_ROWS_BYTES: Final = 4 << 20
"""Rows that are unpacked at a time, and about how many bytes: of large messages some gigabytes else."""
_NONE: Final = -1
_ORDINALS: Final = 40
"""Bits of a key that hold the exchange's number in its connection; the others hold the connection's."""


class ConnectionNames:
    """Numbers for connections, the same in all RUNs that are compared with each other."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], int] = {}

    def keys(self, batch: pa.RecordBatch, ordinal: str) -> Numbers:
        """A number for each row's (capture, connection, ordinal), `_NONE` where the ordinal is null."""
        pairs = [batch.column(name).dictionary_encode() for name in ("capture", "connection")]
        captures, connections = (column.dictionary.to_pylist() for column in pairs)
        first, second = (column.indices.to_numpy(zero_copy_only=False).astype(np.int64) for column in pairs)
        both = first * max(len(connections), 1) + second
        seen, inverse = np.unique(both, return_inverse=True)
        numbers = [
            self.of.setdefault((captures[capture], connections[connection]), len(self.of))
            for capture, connection in (divmod(pair, len(connections)) for pair in seen.tolist())
        ]
        column = batch.column(ordinal)
        ordinals = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        keys: Numbers = (np.array(numbers, np.int64)[inverse] << _ORDINALS) | ordinals
        keys[column.is_null().to_numpy(zero_copy_only=False)] = _NONE
        return keys


class _Index:
    """Where keys are: `_NONE` for those that are nowhere. Of equal keys the last counts."""

    def __init__(self, keys: Numbers) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys: Numbers = spill.concat(keys[order[part]] for part in spill.blocks(len(keys)))
        self._at: Numbers = spill.concat((order,))

    def all_found(self, keys: Numbers) -> Numbers:
        """Of many."""
        rows: Numbers = spill.concat(self.find(keys[part]) for part in spill.blocks(len(keys)))
        return rows

    def find(self, keys: Numbers) -> Numbers:
        """Of some."""
        if not len(self._keys):
            return np.full(len(keys), _NONE, np.int64)
        places = np.searchsorted(self._keys, keys, side="right") - 1
        present = (places >= 0) & (self._keys[places] == keys) & (keys != _NONE)
        return np.where(present, self._at[places], _NONE)


def _at_once(stored: StoredDataset, table: str) -> int:
    """Rows of a table that are unpacked at a time, by their size as they are stored."""
    files = [entry for entry in stored.manifest["files"] if entry["table"] == table]
    rows, size = (sum(int(entry[name]) for entry in files) for name in ("rows", "size"))
    return max(min(_ROWS, _ROWS_BYTES * rows // max(size, 1)), 16)


class _Unpacked:
    """Some columns of a table in a mapped temporary file without a name, which ends with this."""

    def __init__(self, stored: StoredDataset, table: str, columns: tuple[str, ...]) -> None:
        import pyarrow.dataset  # it loads pandas, which who asks for help need not wait for

        # Buffered ahead, a file of messages would be in memory as a whole.
        little = pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=False)
        source = getattr(stored, table)
        schema = pa.schema([source.schema.field(name) for name in columns])
        try:
            with tempfile.TemporaryFile(dir=spill.folder()) as file:
                with pa.ipc.new_file(file, schema) as writer:
                    for batch in source.to_batches(
                        columns=list(columns),
                        batch_size=_at_once(stored, table),
                        batch_readahead=1,
                        fragment_readahead=1,
                        use_threads=False,
                        fragment_scan_options=little,
                    ):
                        if len(batch):
                            writer.write_batch(batch)
                file.flush()
                # Never written to; private, because kernels are compiled for arrays that may be.
                self.heap: Heap = np.memmap(file, np.uint8, "c").view(np.ndarray)
            opened = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self.heap)))
        except OSError as failure:
            if failure.errno is None:
                raise  # of Arrow: the table is damaged
            raise spill.no_room(table, failure) from None
        self.batches = [opened.get_batch(number) for number in range(opened.num_record_batches)]
        self._starts = [0, *itertools.accumulate(len(batch) for batch in self.batches)]
        self._columns = [dict(zip(columns, batch.columns, strict=True)) for batch in self.batches]

    def __len__(self) -> int:
        return self._starts[-1]

    def cell(self, at: int, column: str) -> Any:
        """One value, as Python has it."""
        number = bisect.bisect_right(self._starts, at) - 1
        return self._columns[number][column][at - self._starts[number]].as_py()

    def places(self, column: str) -> tuple[Numbers, Numbers]:
        """Where the values of a column of bytes lie in `heap`: begin, end. Null: no bytes."""
        base = self.heap.ctypes.data

        def places(first: int, last: int | None) -> Iterator[Numbers]:
            for batch in self.batches:
                values = batch.column(column)
                _, offsets, data = values.buffers()
                at = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
                yield at[first:last] + (data.address - base if data is not None else 0)

        return spill.concat(places(0, -1)), spill.concat(places(1, None))

    def row(self, at: int) -> dict[str, Any]:
        number = bisect.bisect_right(self._starts, at) - 1
        inside = at - self._starts[number]
        return {name: column[inside].as_py() for name, column in self._columns[number].items()}


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The outcome of an exchange, and its frames without their length, as sent and answered; None for none."""

    verdict: str
    rule: str | None
    sent_version: int | None
    latency_us: int | None
    retries: tuple[str, ...]
    request: bytes | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Part:
    """One side of some exchanges, by columns. `heap`: bytes in which the frames lie without their length: of requests
    [asked_at, asked_end), of answers likewise; none where the end is -1. `version`: spoken, -1 none; `answered`:
    and that is all there is to say; `latency_us`: -1 for none."""

    heap: Heap
    asked_at: Numbers
    asked_end: Numbers
    answer_at: Numbers
    answer_end: Numbers
    version: Numbers
    answered: Flags
    latency_us: Numbers

    def requests(self, api_key: Numbers) -> Messages:
        """The requests, of these APIs."""
        return Messages.from_columns(self.heap, self.asked_at, self.asked_end, api_key, self.version, REQUEST)

    def answers(self, api_key: Numbers) -> Messages:
        """The answers, of these APIs."""
        return Messages.from_columns(self.heap, self.answer_at, self.answer_end, api_key, self.version, RESPONSE)


class Run:
    """One RUN. `keys`: of the exchanges by place; `renamed`: topics of the target and what they were called when
    captured; `captured_names`, `replayed_names`: what each side calls topics by id; `audited`: rows of the table
    `audit`, None where nobody did; `seeded`: by topic the settings in which one made for the replay is meant to differ;
    `groups`: the prefix and the other names that groups were given; `names`: what they are called here, as in the RUN
    unless `use_captured_names`; `speed`: it was sent at, None as fast as answers
    allowed; `keeps_times`: records have their captured timestamps; `lag_ms`: the replayer's own lag (p99), None
    where nobody knows."""

    def __init__(self, path: str | os.PathLike[str], names: ConnectionNames) -> None:
        try:
            stored = open_dataset(path)
        except DatasetError as problem:
            raise DatasetError(problem.message, "kwire replay CAPTURE --to HOST:PORT -o RUN makes a RUN") from None
        with readable(path, "a table"):
            self._open(path, stored, names)

    def _open(self, path: str | os.PathLike[str], stored: StoredDataset, names: ConnectionNames) -> None:
        if not isinstance(stored.manifest.get("replay"), dict):
            raise DatasetError(
                f"{path}: not a RUN (no replay wrote it)", "kwire replay CAPTURE --to HOST:PORT -o RUN makes one"
            )
        self._exchanges = _Unpacked(stored, "exchanges", ROW)
        self._messages = _Unpacked(stored, "messages", _MESSAGE)
        self._outcomes = _Unpacked(stored, "outcomes", (*_KEY, *_OUTCOME, _DISCARDED))
        exchanges = spill.concat(names.keys(batch, "exchange") for batch in self._exchanges.batches)
        index = _Index(exchanges)
        self._asked, self._answered = self._frames(names, index, exchanges)
        outcomes = spill.concat(names.keys(batch, "exchange") for batch in self._outcomes.batches)
        valid = (batch.column("api_key").is_valid().to_numpy(False) for batch in self._outcomes.batches)
        requested = spill.concat(valid, np.bool_)
        places = spill.concat(
            np.flatnonzero(requested[part] & (outcomes[part] != _NONE)) + part.start
            for part in spill.blocks(len(outcomes))
        )
        captured = index.all_found(_take(outcomes, places))
        if any((captured[part] == _NONE).any() for part in spill.blocks(len(captured))):
            raise DatasetError(f"{path}: has outcomes of exchanges that it lacks", "replay the capture again")
        order = self._in_order(names, _take(outcomes, places), captured)
        self._outcome_at: Numbers = _take(places, order)
        self._captured_at: Numbers = _take(captured, order)
        del order
        self.keys: Numbers = _take(outcomes, self._outcome_at)
        self._replayed_at: Numbers = spill.concat(
            index.find(_replayed(names, self.keys[part])) for part in spill.blocks(len(self.keys))
        )
        self.renamed, self.captured_names, self.replayed_names = _topics(stored)
        self._names = names
        self.names = CapturedNames()
        about = stored.manifest["replay"]
        self.audited: Sequence[dict[str, Any]] | None = None
        if about.get("audited") is True:
            self.audited = stored.audit.to_table().to_pylist()
        seeded = about.get("seeded_topics")
        self.seeded: Mapping[str, Any] = seeded if isinstance(seeded, dict) else {}
        self.groups = about.get("prefix_groups") or "", dict(about.get("map_group") or {})
        self.ended = str(about.get("failure") or ("interrupted" if about.get("interrupted") is True else ""))
        self.own_users = about.get("own_users") is True
        counts = about.get("counts")
        lag, loop = (_milliseconds(counts, name) for name in ("lag_us", "loop_lag_us"))
        self.lag_ms = lag[1] if lag is not None else None
        self.loop_ms = loop
        self.keeps_times = about.get("timestamps", "keep") == "keep"
        speed = about.get("speed")
        self.speed = float(speed) if isinstance(speed, int | float) and not isinstance(speed, bool) else None

    def _frames(self, names: ConnectionNames, index: _Index, exchanges: Numbers) -> tuple[Numbers, Numbers]:
        """Which message is each exchange's request, and which its answer."""
        replies = _Index(spill.concat(self._answer_keys(names)))
        request_at, answered = (spill.full(len(self._exchanges), _NONE, np.int64, large_bytes=1) for _ in range(2))
        first = 0
        for batch in self._messages.batches:
            numbers = np.arange(first, first + len(batch))
            first += len(batch)
            complete = batch.column("complete").to_numpy(zero_copy_only=False).astype(bool)
            requests = pc.equal(batch.column("direction"), "request").to_numpy(zero_copy_only=False).astype(bool)
            for wanted, where, into, ordinal in (
                (requests, index, request_at, "exchange"),
                (~requests, replies, answered, "reply"),
            ):
                at = where.find(names.keys(batch, ordinal))
                chosen = complete & wanted & (at != _NONE)
                into[at[chosen]] = numbers[chosen]
        return request_at, answered

    def _answer_keys(self, names: ConnectionNames) -> Iterator[Numbers]:
        for batch in self._exchanges.batches:
            keys = names.keys(batch, "reply")
            keys[names.keys(batch, "exchange") == _NONE] = _NONE
            yield keys

    def _in_order(self, names: ConnectionNames, keys: Numbers, captured: Numbers) -> Numbers:
        """Order by captured time, then connection, then exchange."""
        times = _numbers(self._exchanges, "request_time", 0)[captured]
        by_name = {name: rank for rank, name in enumerate(sorted({connection for _, connection in names.of}))}
        ranks = np.array([by_name[connection] for _, connection in names.of], np.int64)
        ordinals = keys & ((1 << _ORDINALS) - 1)
        return np.lexsort((ordinals, ranks[keys >> _ORDINALS] if len(keys) else keys, times))

    def __len__(self) -> int:
        return len(self.keys)

    def place_of(self, keys: Numbers) -> Numbers:
        """Where exchanges are in this RUN's order, by another RUN's keys."""
        return _Index(self.keys).all_found(keys)

    def places_of_apis(self, api_keys: Collection[int]) -> Iterator[int]:
        """Where exchanges of some APIs are, in order."""
        for part in spill.blocks(len(self)):
            yield from (np.flatnonzero(np.isin(self.api_keys[part], list(api_keys))) + part.start).tolist()

    def group_ids(self) -> set[str]:
        """Groups that captured requests name."""
        columns = (batch.column("group_id").unique().to_pylist() for batch in self._exchanges.batches)
        return {self.names.of(name) for column in columns for name in column if name}

    def last_sent_us(self) -> dict[tuple[str, str], int]:
        """When each captured connection (capture, connection) sent its last request."""
        times = _numbers(self._exchanges, "request_time", 0)
        last: dict[int, int] = {}
        for part in spill.blocks(len(self)):  # in order of time
            connections = (self.keys[part] >> _ORDINALS).tolist()
            last.update(zip(connections, times[self._captured_at[part]].tolist(), strict=True))
        return {name: last[number] for name, number in self._names.of.items() if number in last}

    # --- by columns

    @functools.cached_property
    def api_keys(self) -> Numbers:
        """By place."""
        return _take(_numbers(self._exchanges, "api_key", -1), self._captured_at)

    @functools.cached_property
    def held(self) -> Flags:
        """By place: did the captured broker answer late on purpose?"""
        return _take(_flags(self._exchanges, "cause", "hold"), self._captured_at)

    @functools.cached_property
    def retried(self) -> Flags:
        """By place: has the replay done anything for it more than once?"""
        return _take(_has_some(self._outcomes, "retries"), self._outcome_at)

    @functools.cached_property
    def captured_throttle_us(self) -> Numbers:
        """By place: for how long the captured answer says that a quota held the client back."""
        return _take(_numbers(self._exchanges, "throttle_us", 0), self._captured_at)

    @functools.cached_property
    def throttle_us(self) -> Numbers:
        """By place: for how long the replayed answer says so."""
        at = self._replayed_at
        throttled = _numbers(self._exchanges, "throttle_us", 0)
        return spill.concat(
            np.where(at[part] == _NONE, 0, throttled[np.maximum(at[part], 0)]) if len(throttled) else at[part] * 0
            for part in spill.blocks(len(at))
        )

    def captured_errors(self) -> Iterator[tuple[int, int]]:
        """Place and code of each error in a captured answer, once for each answer."""
        for place in np.flatnonzero(_take(_has_some(self._exchanges, "errors"), self._captured_at)).tolist():
            for error in self._exchanges.cell(int(self._captured_at[place]), "errors"):
                yield place, error["code"]

    def unanswered(self) -> Iterator[int]:
        """Places of captured requests to which no answer came."""
        yield from np.flatnonzero(_take(_flags(self._exchanges, "status", "unanswered"), self._captured_at)).tolist()

    def discarded(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Place, and what the table `outcomes` says, of answers in place of which requests were sent again."""
        for place in np.flatnonzero(_take(_has_some(self._outcomes, _DISCARDED), self._outcome_at)).tolist():
            for answer in self._outcomes.cell(int(self._outcome_at[place]), _DISCARDED):
                yield place, answer

    def connections(self, places: Numbers) -> list[tuple[str, str]]:
        """(capture, connection) of exchanges."""
        return [self._connection_names[number] for number in (self.keys[places] >> _ORDINALS).tolist()]

    @functools.cached_property
    def _connection_names(self) -> list[tuple[str, str]]:
        return list(self._names.of)

    @functools.cached_property
    def _frame_places(self) -> tuple[Numbers, Numbers]:
        return self._messages.places("bytes")

    @functools.cached_property
    def _of_captured(self) -> tuple[Numbers, Flags, Numbers]:
        """Of all rows of `exchanges`: version, answered?, latency."""
        rows = self._exchanges
        versions = _numbers(rows, "api_version", -1)
        return versions, _flags(rows, "status", "answered"), _numbers(rows, "latency_us", -1)

    @functools.cached_property
    def _of_replayed(self) -> tuple[Numbers, Flags, Numbers]:
        """Of all rows of `outcomes`: version, answered?, latency."""
        rows = self._outcomes
        versions = _numbers(rows, "sent_version", -1)
        return versions, _flags(rows, "verdict", "answered"), _numbers(rows, "latency_us", -1)

    def captured_part(self, places: Numbers) -> Part:
        """Return the captured side of exchanges, by their positions."""
        at = self._captured_at[places]
        versions, answered, latencies = self._of_captured
        return self._part(at, versions[at], answered[at], latencies[at])

    def replayed_part(self, places: Numbers) -> Part:
        """Return the replayed side of exchanges, by their positions."""
        at = self._outcome_at[places]
        versions, answered, latencies = self._of_replayed
        return self._part(self._replayed_at[places], versions[at], answered[at], latencies[at])

    def _part(self, exchanges: Numbers, versions: Numbers, answered: Flags, latencies: Numbers) -> Part:
        requests, answers = (self._frames_of(messages, exchanges) for messages in (self._asked, self._answered))
        return Part(self._messages.heap, *requests, *answers, versions, answered, latencies)

    def _frames_of(self, messages: Numbers, exchanges: Numbers) -> tuple[Numbers, Numbers]:
        """Where frames begin and end, without their length; -1 where there is none."""
        begins, ends = self._frame_places
        which = np.where(exchanges == _NONE, _NONE, messages[exchanges]) if len(messages) else exchanges
        if not len(begins):
            return np.full(len(which), _NONE, np.int64), np.full(len(which), _NONE, np.int64)
        return np.where(which == _NONE, _NONE, begins[which] + 4), np.where(which == _NONE, _NONE, ends[which])

    # --- one by one

    def row(self, place: int) -> dict[str, Any]:
        """The captured row of the table `exchanges`."""
        row = self._exchanges.row(int(self._captured_at[place]))
        return self.names.in_row(row) if self.names else row

    def use_captured_names(self) -> None:
        """From now on groups, transactional ids and clients are called as they were when captured."""
        prefix, groups = self.groups
        self.names = CapturedNames(prefix, {new: old for old, new in groups.items()})
        if self.audited is not None:
            self.audited = [self.names.in_audit(row) for row in self.audited]

    def captured(self, place: int) -> tuple[bytes | None, bytes | None]:
        """The captured request and answer."""
        return self._pair(int(self._captured_at[place]))

    def outcome(self, place: int) -> StoredOutcome:
        """Return the outcome of an exchange in the replay."""
        at = int(self._outcome_at[place])
        verdict, rule, version, latency_us, retries = (self._outcomes.cell(at, name) for name in _OUTCOME)
        frames = self._pair(int(self._replayed_at[place]))
        return StoredOutcome(verdict, rule, version, latency_us, tuple(retries or ()), *frames)

    def _pair(self, exchange: int) -> tuple[bytes | None, bytes | None]:
        if exchange == _NONE:
            return None, None
        return self._frame(int(self._asked[exchange])), self._frame(int(self._answered[exchange]))

    def _frame(self, message: int) -> bytes | None:
        if message == _NONE:
            return None
        frame: bytes = self._messages.cell(message, "bytes")
        return frame[4:]


def _numbers(rows: _Unpacked, name: str, absent: int) -> Numbers:
    """A column of numbers or times."""
    return spill.concat(
        pc.fill_null(batch.column(name).cast(pa.int64()), absent).to_numpy(zero_copy_only=False)
        for batch in rows.batches
    )


def _flags(rows: _Unpacked, name: str, value: str) -> Flags:
    """Does a column of texts say this?"""
    equal = (pc.fill_null(pc.equal(batch.column(name), value), False) for batch in rows.batches)
    return spill.concat((each.to_numpy(zero_copy_only=False) for each in equal), np.bool_)


def _milliseconds(counts: Any, name: str) -> tuple[float, float] | None:
    """Median and 99th percentile of a duration in the counts of a RUN; None where they do not have it."""
    durations = counts.get(name) if isinstance(counts, dict) else None
    values = [durations.get(at) if isinstance(durations, dict) else None for at in ("p50", "p99")]
    half, most = (value / 1000 if isinstance(value, int) else None for value in values)
    return None if half is None or most is None else (half, most)


def _has_some(rows: _Unpacked, name: str) -> Flags:
    """Has a column of lists any element here?"""
    return spill.concat((arrow.list_lengths(batch.column(name)) > 0 for batch in rows.batches), np.bool_)


def _take(values: npt.NDArray[Any], places: Numbers) -> npt.NDArray[Any]:
    """Return the values at some positions, in that order."""
    return spill.concat((values[places[part]] for part in spill.blocks(len(places))), values.dtype)


def _replayed(names: ConnectionNames, keys: Numbers) -> Numbers:
    """The keys of the same exchanges as replayed."""
    twins = np.array([names.of.get((REPLAYED + name, connection), _NONE) for name, connection in names.of], np.int64)
    if not len(keys):
        return keys
    twin = twins[keys >> _ORDINALS]
    return np.where(twin == _NONE, _NONE, (twin << _ORDINALS) | (keys & ((1 << _ORDINALS) - 1)))


def _topics(stored: StoredDataset) -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    about = stored.manifest.get("replay")
    mapped = about.get("map_topic") if isinstance(about, dict) else None
    renamed = {str(new): str(old) for old, new in mapped.items()} if isinstance(mapped, dict) else {}
    ids = stored.remaps.to_table(filter=pc.field("kind") == "topic_id").to_pylist()
    before = {row["captured"]: row["scope"] for row in ids}
    now = {row["replayed"]: row["scope"] for row in ids if row["replayed"] != ZERO_UUID}
    return renamed, before, now
