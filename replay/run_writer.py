"""Writes the RUN: captured exchanges and their outcomes become rows of its tables, many at a time.

In: captured requests, and outcomes as they become known. Out: a dataset (`kwire.analyzer.dataset.dataset.Writer`), as
described in `outcome`, and `Counts`. Rules: rows are made of columns, of the captured ones if those are available
(`kwire.analyzer.frame.cells`); secrets are overwritten; files are readable by their owner only; an interrupted run is
written too.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.analysis.connections import Coverage
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Writer, open_dataset
from kwire.analyzer.frame import cells
from kwire.analyzer.messages.raw_messages import masked
from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.replay.answers import AnswerStatus, answer_statuses
from kwire.replay.outcome import Counts, Outcome
from kwire.replay.plan import produce_requests
from kwire.replay.plan.sessions import Request, Session
from kwire.replay.plan.steps import Skip, Step

WAITING: Final = 500_000
"""Outcomes that wait for the end of the sending to become rows; with more, the oldest become rows earlier."""
WAITING_BYTES: Final = 256 << 20
"""Bytes of the requests and answers of outcomes that wait: a capture of large batches has few outcomes."""
BASES: Final = 1 << 16
"""Base offsets that are searched for a repeated one, in a long run: brokers know the last five batches of each
producer of a partition."""
_AT_ONCE: Final = 1_024
_AT_ONCE_BYTES: Final = 8 << 20
"""Exchanges, and bytes of their messages, that become rows together."""
_ROWS: Final = 20_000
_ROWS_BYTES: Final = 16 << 20
"""Rows, and bytes of messages, that are kept in memory before they are written as a row group."""

_KEYS: Final = ("capture", "connection", "exchange", "reply")
_AS_CAPTURED: Final = (
    "connection",
    "exchange",
    "api_key",
    "api",
    "client_id",
    "acks",
    "max_wait_ms",
    "min_bytes",
    "isolation_level",
    "group_id",
    "transactional_id",
    "topics",
)
"""Columns that the replayed side takes from the captured one."""
_WANTED: Final = (*dict.fromkeys((*_KEYS, *_AS_CAPTURED, "api_version", "error", "total_us")),)

_Frame = tuple[int, bool, bytes, int | None, int | None]
"""A message: the position of its exchange's keys, whether it is a request, its bytes, and when it was first and last
seen, in nanoseconds since 1970."""


class Recorder:
    """Takes outcomes, writes the RUN's tables, and counts. `at_once`: outcomes become rows as they come, and the memory
    for finding duplicates is bounded (`BASES`): for runs of any length."""

    def __init__(self, writer: Writer, at_once: bool = False) -> None:
        self._most_waiting = 0 if at_once else WAITING
        self._most_bases = BASES if at_once else None
        self.counts = Counts()
        self._writer = writer
        self._waiting: deque[Outcome] = deque()
        self._waiting_bytes = 0
        self._captured: list[Mapping[str, Any]] = []
        self._requests: list[Request] = []
        self._request_bytes = 0
        self._ended: list[Outcome] = []
        self._ended_bytes = 0
        self._tables: dict[str, list[pa.Table]] = {"outcomes": [], "exchanges": [], "messages": []}
        self._bases: OrderedDict[tuple[bool, str, int, int], None] = OrderedDict()

    def captured(self, sessions: Iterable[Session]) -> None:
        """Write the captured side: every exchange with its messages."""
        for session in sessions:
            for row in session.orphans:
                self.orphan(row)
            for request in session.requests:
                self.add_exchange(request)
        self._make_captured()
        self._flush(0)

    def orphan(self, row: Mapping[str, Any]) -> None:
        """Write a captured response without its request."""
        self._captured.append(row)

    def add_exchange(self, request: Request) -> None:
        """Write a captured exchange with its messages."""
        self._captured.append(request.row)
        self._requests.append(request)
        self._request_bytes += len(request.data or b"") + len(request.answer or b"")
        if len(self._captured) >= _AT_ONCE or self._request_bytes > _AT_ONCE_BYTES:
            self._make_captured()

    def skip(self, skip: Skip) -> None:
        """Record an exchange that the plan does not send."""
        self.add(Outcome(skip.row, None, "skipped", "skipped", skip.rule, skip.reason or None))

    def lost(self, step: Step, reason: str) -> None:
        """Record a step of a process that died: whether it was sent, and answered, is not known."""
        self.add(Outcome(step.request.row, step.number, "unknown", "not_comparable", "worker_lost", reason))

    def add(self, outcome: Outcome) -> None:
        """Record the end of an exchange. Rows are made later, because that takes longer than sending did."""
        self._waiting.append(outcome)
        self._waiting_bytes += _size(outcome)
        while len(self._waiting) > self._most_waiting or self._waiting_bytes > WAITING_BYTES:
            self._end(self._waiting.popleft())

    def settle(self) -> None:
        """Make rows of all outcomes that wait."""
        while self._waiting:
            self._end(self._waiting.popleft())
        self._make_replayed()

    def _end(self, outcome: Outcome) -> None:
        size = _size(outcome)
        self._waiting_bytes -= size
        self._ended.append(outcome)
        self._ended_bytes += size
        if len(self._ended) >= _AT_ONCE or self._ended_bytes > _AT_ONCE_BYTES:
            self._make_replayed()

    # -- the captured side --------------------------------------------------------------------------------------------

    def _make_captured(self) -> None:
        requests, rows = self._requests, self._captured
        self._requests, self._captured, self._request_bytes = [], [], 0
        table = cells.table(rows, "exchanges")
        self._put("exchanges", table)
        if len(requests) < len(rows):
            table = cells.table([request.row for request in requests], "exchanges", (*_KEYS, "api_key", "api_version"))
        apis = (table.column(name).to_pylist() for name in ("api_key", "api_version"))
        frames: list[_Frame] = []
        for at, (request, key, version) in enumerate(zip(requests, *apis, strict=True)):
            data, answer = request.data, request.answer
            if key is None:
                continue
            if data is not None:
                frames.append((at, True, _stored(_whole(data), key, version, True), request.sent_ns, None))
            if answer is not None:
                when = request.answered_ns
                frames.append((at, False, _stored(_whole(answer), key, version, False), when, when))
        if frames:
            self._put("messages", _messages(frames, table.select(_KEYS)))

    # -- what became of it --------------------------------------------------------------------------------------------

    def _make_replayed(self) -> None:
        some, self._ended, self._ended_bytes = self._ended, [], 0
        if not some:
            return
        captured = cells.table([outcome.row for outcome in some], "exchanges", _WANTED)
        sent = [at for at, outcome in enumerate(some) if outcome.sent_ns is not None]
        statuses = self._statuses(
            some, captured.column("api_key").to_pylist(), captured.column("api_version").to_pylist()
        )
        firsts = [errors.name(answer.codes[0]) if answer is not None and answer.codes else None for answer in statuses]
        self._count(some)
        durations = self._durations(some, captured)
        if sent:
            self._replayed([some[at] for at in sent], captured.take(sent), [statuses[at] for at in sent])
        columns = {
            **{name: captured.column(name) for name in (*_KEYS, "api_key", "api", "api_version")},
            **{name: [getattr(outcome, name) for outcome in some] for name in _OF_OUTCOMES},
            "discarded": [_discarded(outcome) for outcome in some],
            "scheduled": _micros(outcome.scheduled_ns for outcome in some),
            "sent": _micros(outcome.sent_ns for outcome in some),
            "answered": _micros(outcome.answered_ns for outcome in some),
            "captured_error": captured.column("error"),
            "replayed_error": firsts,
            **durations,
        }
        self._put("outcomes", _table("outcomes", columns, len(some)))

    def _count(self, some: Sequence[Outcome]) -> None:
        counts = self.counts
        counts.actions.update(outcome.action for outcome in some)
        counts.verdicts.update(outcome.verdict for outcome in some)
        for outcome in some:
            if outcome.action == "skipped":
                counts.skipped[outcome.rule or ""] += 1
            elif outcome.action == "not_sent":
                counts.not_sent[outcome.rule or ""] += 1
            elif outcome.verdict == "unanswered":
                counts.unanswered = counts.unanswered or outcome.reason or ""
                counts.silent[outcome.row["api"] or ""] += 1
            if outcome.retries:
                counts.retries.update(outcome.retries)
                if "rejoins_spent" in outcome.retries:
                    counts.apart[outcome.row["group_id"] or ""] += 1
            counts.tool_errors += outcome.rule == "tool_error"

    def _durations(self, some: Sequence[Outcome], captured: pa.Table) -> dict[str, list[int | None]]:
        """Make the columns of durations of the table `outcomes`, and count them."""
        lags: list[int | None] = [None] * len(some)
        queues, latencies = lags.copy(), lags.copy()
        excess = self.counts.excess_us
        totals, apis = captured.column("total_us").to_pylist(), captured.column("api").to_pylist()
        for at, outcome in enumerate(some):
            if outcome.sent_ns is None:
                continue
            if outcome.scheduled_ns is not None and outcome.ready_ns is not None:
                known = max(outcome.scheduled_ns, outcome.planned_ns or 0)  # until then it waited for the replayer
                queues[at] = max(outcome.ready_ns - known, 0) // 1000
                if outcome.first_sent_ns is not None:
                    first = max(outcome.scheduled_ns, outcome.ready_ns)
                    lags[at] = (max(outcome.first_sent_ns - first, 0) + known - outcome.scheduled_ns) // 1000
            if outcome.answered_ns is not None:
                latencies[at] = (outcome.answered_ns - outcome.sent_ns) // 1000
                if outcome.first_sent_ns is not None and totals[at] is not None:
                    excess[apis[at] or ""] += (outcome.answered_ns - outcome.first_sent_ns) // 1000 - totals[at]
        counts = self.counts
        counts.lags_us += [lag for lag in lags if lag is not None]  # type: ignore[operator]
        counts.queues_us += [queue for queue in queues if queue is not None]  # type: ignore[operator]
        counts.latencies_us += [latency for latency in latencies if latency is not None]  # type: ignore[operator]
        return {"lag_us": lags, "queue_us": queues, "latency_us": latencies}

    def _statuses(
        self, some: Sequence[Outcome], keys: Sequence[int], versions: Sequence[int]
    ) -> list[AnswerStatus | None]:
        """Read the answers. Most answers of a busy run are to Produce requests of one partition, and take the fast
        path."""
        statuses: list[AnswerStatus | None] = [None] * len(some)
        longer: list[int] = []
        for at, outcome in enumerate(some):
            if outcome.answer is None or outcome.sent_ns is None:
                continue
            assert outcome.sent_version is not None
            if keys[at] == api_keys.PRODUCE:
                statuses[at] = self._produced(outcome, outcome.answer, outcome.sent_version, versions[at])
            else:
                longer.append(at)
        frames = [(some[at].answer or b"", keys[at], some[at].sent_version or 0) for at in longer]
        for at, status in zip(longer, answer_statuses(frames), strict=True):
            statuses[at] = status
        return statuses

    def _produced(self, outcome: Outcome, answer: bytes, version: int, captured_version: int) -> AnswerStatus:
        """Read the answer to one Produce request, and whether the batch was taken for a duplicate."""
        stored = produce_requests.stored(answer, version)
        if stored is None:
            (status,) = answer_statuses([(answer, api_keys.PRODUCE, version)])
            if not status.decoded:
                return status
            here = _bases(answer, version)
        else:
            status = _good(stored.throttle_ms)
            here = [stored[:4]]
        there = _bases(outcome.captured_answer, captured_version) if outcome.captured_answer is not None else []
        repeated_there, repeated_here = self._repeats(there, True), self._repeats(here, False)
        self.counts.duplicates += repeated_here and not repeated_there
        return status

    def _repeats(self, bases: Iterable[tuple[str, int, int, int]], captured: bool) -> bool:
        """Whether an answer to Produce has a base offset, with a log append time, that an earlier one had.

        Then the broker took the batch for one that it had, and did not append it. (The time alone is not enough: a
        topic with LogAppendTime has one in every answer.)
        """
        repeated = False
        for topic, partition, offset, appended in bases:
            base = captured, topic, partition, offset
            repeated |= base in self._bases and appended >= 0
            self._bases[base] = None
            if self._most_bases is not None and len(self._bases) > self._most_bases:
                self._bases.popitem(last=False)
        return repeated

    def _replayed(self, some: Sequence[Outcome], captured: pa.Table, statuses: Sequence[AnswerStatus | None]) -> None:
        """Make rows of the replayed side of the table `exchanges`, and its messages."""
        count = len(some)
        keys, exchanges = captured.column("api_key").to_pylist(), captured.column("exchange").to_pylist()
        answered = [outcome.answer is not None for outcome in some]
        request_frames = [None if outcome.request is None else _framed(outcome.request) for outcome in some]
        brokers = [_end_point(outcome.targets[0]) if outcome.targets else (None, None) for outcome in some]
        sent = _micros(outcome.sent_ns for outcome in some)
        ended = _micros(outcome.answered_ns if outcome.answer is not None else None for outcome in some)
        took = [
            None
            if outcome.answer is None or outcome.answered_ns is None or outcome.sent_ns is None
            else (outcome.answered_ns - outcome.sent_ns) // 1000
            for outcome in some
        ]
        status = [
            "answered"
            if outcome.answer is not None
            else "no_response_expected"
            if outcome.rule == "no_answer_expected"
            else "unanswered"
            for outcome in some
        ]
        decoded = [answer if answer is not None and answer.decoded else None for answer in statuses]
        columns = {
            **{name: captured.column(name) for name in _AS_CAPTURED},
            "capture": [tables.REPLAYED + name for name in captured.column("capture").to_pylist()],
            "reply": [at if seen else None for at, seen in zip(exchanges, answered, strict=True)],
            "api_version": [outcome.sent_version for outcome in some],
            "broker_ip": [host for host, _ in brokers],
            "broker_port": [port for _, port in brokers],
            "correlation_id": [
                None if frame is None else int.from_bytes(frame[8:12], "big", signed=True) for frame in request_frames
            ],
            "request_time": sent,
            "request_end": sent,
            "response_time": ended,
            "response_end": ended,
            "latency_us": took,
            "total_us": took,
            "throttle_us": [
                None if answer is None or answer.throttle_ms is None else answer.throttle_ms * 1000
                for answer in decoded
            ],
            "request_bytes": [None if frame is None else len(frame) for frame in request_frames],
            "response_bytes": [None if outcome.answer is None else len(outcome.answer) + 4 for outcome in some],
            "status": status,
            "request_state": [None if frame is None else "decoded" for frame in request_frames],
            "response_state": [
                None if answer is None else "decoded" if answer.decoded else "undecoded" for answer in statuses
            ],
            "reason": [None if answer is None else answer.reason for answer in statuses],
            "error_code": [None if answer is None else answer.codes[0] if answer.codes else 0 for answer in decoded],
            "error": [
                errors.name(answer.codes[0]) if answer is not None and answer.codes else None for answer in decoded
            ],
            "errors": [None if answer is None else _counted(answer.codes) for answer in decoded],
        }
        rows = _table("exchanges", columns, count)
        self._put("exchanges", rows)
        frames: list[_Frame] = []
        for at, (outcome, frame, key) in enumerate(zip(some, request_frames, keys, strict=True)):
            if key is None:
                continue
            if frame is not None:
                frames.append((at, True, _stored(frame, key, outcome.sent_version, True), outcome.sent_ns, None))
            if outcome.answer is not None:
                data = _stored(_whole(outcome.answer), key, outcome.sent_version, False)
                frames.append((at, False, data, outcome.answered_ns, outcome.answered_ns))
        if frames:
            self._put("messages", _messages(frames, rows.select(_KEYS)))

    # -- tables -------------------------------------------------------------------------------------------------------

    def take(self, path: Path) -> None:
        """Take over the tables that a worker wrote; its counts come separately."""
        stored = open_dataset(path)
        for name in ("outcomes", "exchanges", "messages", "remaps"):
            for batch in getattr(stored, name).to_batches():
                if len(batch):
                    self._writer.write(name, pa.Table.from_batches([batch]))

    def remapped(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write rows of the table `remaps`."""
        rows = iter(rows)
        while some := list(itertools.islice(rows, _ROWS)):
            self._writer.write("remaps", pa.Table.from_pylist(some, schema=tables.schema("remaps")))

    @property
    def folder(self) -> Path:
        """The folder where others may write during the run; it is removed at the end."""
        return self._writer.folder

    def _put(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._tables[name].append(rows)
            self._flush(_ROWS)

    def _flush(self, limit: int) -> None:
        """Write the rows of tables that have more than `limit` rows; messages also if they are large."""
        for name, parts in self._tables.items():
            large = name == "messages" and sum(table.nbytes for table in parts) > _ROWS_BYTES
            if large or sum(map(len, parts)) > limit:
                self._writer.write(name, pa.concat_tables(parts))
                self._tables[name] = []

    def finish(self, remaps: Iterable[dict[str, Any]], captures: list[dict[str, Any]], about: dict[str, Any]) -> None:
        """Write the remaining rows and the manifest. `about`: the value of `replay` in `_kwire.json`."""
        from kwire import analyzer

        self._make_captured()
        self.settle()
        self._flush(0)
        self.remapped(remaps)
        self._writer.commit(
            {
                "format_version": tables.FORMAT_VERSION,
                "kwire_version": analyzer.__version__,
                "captures": captures,
                "coverage": Coverage().as_dict(),
                "unrecognised": {"connections": 0, "payload_bytes": 0, "listed": []},
                "notes": [],
                "replay": {**about, "counts": self.counts.as_dict()},
            }
        )


_OF_OUTCOMES: Final = (
    "step",
    "sent_version",
    "action",
    "verdict",
    "rule",
    "reason",
    "retries",
    "targets",
)
"""Columns of the table `outcomes` that an `Outcome` has."""


def _discarded(outcome: Outcome) -> list[dict[str, Any]]:
    """List the answers of an outcome that were not kept, those that are alike together."""
    counts = Counter((rule, code) for rule, code, _ in outcome.discarded)
    early = Counter((rule, code) for rule, code, is_early in outcome.discarded if is_early)
    return [
        {
            "rule": rule,
            "code": code,
            "error": None if code is None else errors.name(code),
            "count": count,
            "early": early[rule, code],
        }
        for (rule, code), count in counts.items()
    ]


def _size(outcome: Outcome) -> int:
    """Bytes that an outcome holds in memory besides the capture's."""
    return len(outcome.request or b"") + len(outcome.answer or b"")


def _micros(times: Iterable[int | None]) -> list[int | None]:
    return [None if time is None else time // 1000 for time in times]


def _table(name: str, by_name: Mapping[str, Any], count: int) -> pa.Table:
    """Make a table of the RUN from columns; missing ones are null."""
    schema = tables.schema(name)
    columns = []
    for kind in schema:
        values = by_name.get(kind.name)
        if values is None:
            values = pa.nulls(count, kind.type)
        columns.append(pa.array(values, kind.type) if isinstance(values, list) else values)
    return pa.Table.from_arrays(columns, schema=schema)


def _messages(frames: Sequence[_Frame], keys: pa.Table) -> pa.Table:
    """Make rows of the table `messages`. `keys`: of their exchanges."""
    keys = keys.take([frame[0] for frame in frames])
    is_request = pa.array([frame[1] for frame in frames])
    columns = {
        "capture": keys.column("capture"),
        "connection": keys.column("connection"),
        "exchange": pc.if_else(is_request, keys.column("exchange"), None),
        "reply": pc.if_else(is_request, None, keys.column("reply")),
        "direction": ["request" if frame[1] else "response" for frame in frames],
        "first_time": _micros(frame[3] for frame in frames),
        "last_time": _micros(frame[4] for frame in frames),
        "complete": [True] * len(frames),
        "bytes": [frame[2] for frame in frames],
    }
    return _table("messages", columns, len(frames))


def _whole(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _framed(request: bytes | bytearray) -> bytes:
    """Put the length before a request; one that took the fast path has it already."""
    return bytes(request) if isinstance(request, bytearray) else _whole(request)


def _stored(frame: bytes, key: int, version: int | None, request: bool) -> bytes:
    """Overwrite the secrets of a frame; records of the cluster's metadata may have some too."""
    assert version is not None
    return masked(frame, key, version, request)


@functools.lru_cache(maxsize=1 << 10)
def _end_point(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


@functools.lru_cache(maxsize=1 << 6)
def _good(throttle_ms: int) -> AnswerStatus:
    return AnswerStatus(throttle_ms=throttle_ms)


def _counted(codes: Sequence[int]) -> list[dict[str, Any]]:
    return [{"code": code, "error": errors.name(code), "count": count} for code, count in Counter(codes).items()]


def _bases(answer: bytes, version: int) -> list[tuple[str, int, int, int]]:
    """Give (topic, partition, base offset, log append time or -1) of what an answer to Produce says was stored."""
    stored = produce_requests.stored(answer, version)
    if stored is not None:
        return [stored[:4]]
    body = tree.decode_response(answer, api_keys.PRODUCE, version, exact=True).body
    return [
        (
            topic.get("name") or topic.get("topicId", ""),
            partition["index"],
            partition["baseOffset"],
            partition.get("logAppendTimeMs", -1),
        )
        for topic in (body or {}).get("responses", ())
        for partition in topic["partitionResponses"]
        if not partition["errorCode"] and partition["baseOffset"] >= 0
    ]
