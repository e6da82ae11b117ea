"""The RUN as it is written: what was captured and what came of it become rows of its tables, many at a time.

In: captured requests, and outcomes as they are known. Out: a dataset (`analyzer.dataset.dataset.Writer`), as
`outcome` tells,
and `Counts`. Rules: rows are made of columns, of the captured ones where those are at hand (`analyzer.frame.cells`);
secrets are overwritten; files are there for their owner only; an interrupted run is written too.
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

from analyzer.analysis.connections import Coverage
from analyzer.dataset import tables
from analyzer.dataset.dataset import Writer, open_dataset
from analyzer.frame import cells
from analyzer.messages.raw_messages import masked
from analyzer.protocol import api_keys, errors, tree
from replay.answers import AnswerStatus, answer_statuses
from replay.outcome import Counts, Outcome
from replay.plan import produce_requests
from replay.plan.sessions import Request, Session
from replay.plan.steps import Skip, Step

KEPT: Final = 500_000
"""Outcomes that wait for the end of the sending to become rows; with more, the oldest become rows while it goes on."""
KEPT_BYTES: Final = 256 << 20
"""The same for the bytes of their requests and answers: a capture of large batches has few outcomes."""
BASES: Final = 1 << 16
"""Base offsets among which a repeated one is looked for, in a long run: brokers know the last five batches of each
producer of a partition."""
_AT_ONCE: Final = 1_024
_AT_ONCE_BYTES: Final = 8 << 20
"""Exchanges, and bytes of their messages, of which rows are made together."""
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
"""Columns that the replayed side has from the captured one."""
_WANTED: Final = (*dict.fromkeys((*_KEYS, *_AS_CAPTURED, "api_version", "error", "total_us")),)

_Frame = tuple[int, bool, bytes, int | None, int | None]
"""A message: the place of its exchange's keys, whether it is a request, its bytes, and when it was first and last
seen, in nanoseconds since 1970."""


class Recorder:
    """Takes outcomes, writes the RUN's tables, counts. `at_once`: outcomes become rows as they come, and what is kept
    to tell duplicates is bounded (`BASES`): for runs of any length."""

    def __init__(self, writer: Writer, at_once: bool = False) -> None:
        self._kept = 0 if at_once else KEPT
        self._bases_kept = BASES if at_once else None
        self.counts = Counts()
        self._writer = writer
        self._waiting: deque[Outcome] = deque()
        self._waiting_bytes = 0
        self._captured: list[Mapping[str, Any]] = []
        self._asked: list[Request] = []
        self._asked_bytes = 0
        self._ended: list[Outcome] = []
        self._ended_bytes = 0
        self._made: dict[str, list[pa.Table]] = {"outcomes": [], "exchanges": [], "messages": []}
        self._bases: OrderedDict[tuple[bool, str, int, int], None] = OrderedDict()

    def captured(self, sessions: Iterable[Session]) -> None:
        """Write the captured side: every exchange with its messages."""
        for session in sessions:
            for row in session.orphans:
                self.orphan(row)
            for request in session.requests:
                self.asked(request)
        self._make_captured()
        self._flush(0)

    def orphan(self, row: Mapping[str, Any]) -> None:
        """Write a captured response without its request."""
        self._captured.append(row)

    def asked(self, request: Request) -> None:
        """Write a captured exchange with its messages."""
        self._captured.append(request.row)
        self._asked.append(request)
        self._asked_bytes += len(request.data or b"") + len(request.answer or b"")
        if len(self._captured) >= _AT_ONCE or self._asked_bytes > _AT_ONCE_BYTES:
            self._make_captured()

    def skip(self, skip: Skip) -> None:
        """An exchange that the plan does not send."""
        self.add(Outcome(skip.row, None, "skipped", "skipped", skip.rule, skip.reason or None))

    def lost(self, step: Step, reason: str) -> None:
        """A step of a process that died: whether it was sent, and what came, is not known."""
        self.add(Outcome(step.request.row, step.number, "unknown", "not_comparable", "worker_lost", reason))

    def add(self, outcome: Outcome) -> None:
        """An exchange's end. Rows are made later: that takes longer than sending did."""
        self._waiting.append(outcome)
        self._waiting_bytes += _size(outcome)
        while len(self._waiting) > self._kept or self._waiting_bytes > KEPT_BYTES:
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
        asked, rows = self._asked, self._captured
        self._asked, self._captured, self._asked_bytes = [], [], 0
        made = cells.table(rows, "exchanges")
        self._put("exchanges", made)
        if len(asked) < len(rows):
            made = cells.table([one.row for one in asked], "exchanges", (*_KEYS, "api_key", "api_version"))
        apis = (made.column(name).to_pylist() for name in ("api_key", "api_version"))
        frames: list[_Frame] = []
        for at, (request, key, version) in enumerate(zip(asked, *apis, strict=True)):
            data, answer = request.data, request.answer
            if key is None:
                continue
            if data is not None:
                frames.append((at, True, _stored(_whole(data), key, version, True), request.sent_ns, None))
            if answer is not None:
                when = request.answered_ns
                frames.append((at, False, _stored(_whole(answer), key, version, False), when, when))
        if frames:
            self._put("messages", _messages(frames, made.select(_KEYS)))

    # -- what became of it --------------------------------------------------------------------------------------------

    def _make_replayed(self) -> None:
        some, self._ended, self._ended_bytes = self._ended, [], 0
        if not some:
            return
        captured = cells.table([one.row for one in some], "exchanges", _WANTED)
        sent = [at for at, one in enumerate(some) if one.sent_ns is not None]
        said = self._said(some, captured.column("api_key").to_pylist(), captured.column("api_version").to_pylist())
        firsts = [errors.name(one.codes[0]) if one is not None and one.codes else None for one in said]
        self._count(some)
        durations = self._durations(some, captured)
        if sent:
            self._replayed([some[at] for at in sent], captured.take(sent), [said[at] for at in sent])
        made = {
            **{name: captured.column(name) for name in (*_KEYS, "api_key", "api", "api_version")},
            **{name: [getattr(one, name) for one in some] for name in _OF_OUTCOMES},
            "scheduled": _micros(one.scheduled_ns for one in some),
            "sent": _micros(one.sent_ns for one in some),
            "answered": _micros(one.answered_ns for one in some),
            "captured_error": captured.column("error"),
            "replayed_error": firsts,
            **durations,
        }
        self._put("outcomes", _table("outcomes", made, len(some)))

    def _count(self, some: Sequence[Outcome]) -> None:
        counts = self.counts
        counts.actions.update(one.action for one in some)
        counts.verdicts.update(one.verdict for one in some)
        for one in some:
            if one.action == "skipped":
                counts.skipped[one.rule or ""] += 1
            elif one.action == "not_sent":
                counts.not_sent[one.rule or ""] += 1
            elif one.verdict == "unanswered":
                counts.unanswered = counts.unanswered or one.reason or ""
                counts.silent[one.row["api"] or ""] += 1
            if one.retries:
                counts.retries.update(one.retries)
                if "rejoins_spent" in one.retries:
                    counts.apart[one.row["group_id"] or ""] += 1
            counts.tool_errors += one.rule == "tool_error"

    def _durations(self, some: Sequence[Outcome], captured: pa.Table) -> dict[str, list[int | None]]:
        """Columns of the table `outcomes`; counted, too."""
        lags: list[int | None] = [None] * len(some)
        queues, latencies = lags.copy(), lags.copy()
        excess = self.counts.excess_us
        totals, apis = captured.column("total_us").to_pylist(), captured.column("api").to_pylist()
        for at, one in enumerate(some):
            if one.sent_ns is None:
                continue
            if one.scheduled_ns is not None and one.ready_ns is not None:
                known = max(one.scheduled_ns, one.planned_ns or 0)  # until then it waited for the replayer
                queues[at] = max(one.ready_ns - known, 0) // 1000
                if one.first_sent_ns is not None:
                    first = max(one.scheduled_ns, one.ready_ns)
                    lags[at] = (max(one.first_sent_ns - first, 0) + known - one.scheduled_ns) // 1000
            if one.answered_ns is not None:
                latencies[at] = (one.answered_ns - one.sent_ns) // 1000
                if one.first_sent_ns is not None and totals[at] is not None:
                    excess[apis[at] or ""] += (one.answered_ns - one.first_sent_ns) // 1000 - totals[at]
        counts = self.counts
        counts.lags_us += [one for one in lags if one is not None]  # type: ignore[operator]
        counts.queues_us += [one for one in queues if one is not None]  # type: ignore[operator]
        counts.latencies_us += [one for one in latencies if one is not None]  # type: ignore[operator]
        return {"lag_us": lags, "queue_us": queues, "latency_us": latencies}

    def _said(self, some: Sequence[Outcome], keys: Sequence[int], versions: Sequence[int]) -> list[AnswerStatus | None]:
        """What the answers say. Most of a busy run are of Produce requests of one partition: those are read by hand."""
        found: list[AnswerStatus | None] = [None] * len(some)
        longer: list[int] = []
        for at, one in enumerate(some):
            if one.answer is None or one.sent_ns is None:
                continue
            assert one.sent_version is not None
            if keys[at] == api_keys.PRODUCE:
                found[at] = self._produced(one, one.answer, one.sent_version, versions[at])
            else:
                longer.append(at)
        asked = [(some[at].answer or b"", keys[at], some[at].sent_version or 0) for at in longer]
        for at, told in zip(longer, answer_statuses(asked), strict=True):
            found[at] = told
        return found

    def _produced(self, outcome: Outcome, answer: bytes, version: int, captured_version: int) -> AnswerStatus:
        """The same of one Produce request, and whether it was taken for a duplicate."""
        stored = produce_requests.stored(answer, version)
        if stored is None:
            (told,) = answer_statuses([(answer, api_keys.PRODUCE, version)])
            if not told.decoded:
                return told
            here = _bases(answer, version)
        else:
            told = _good(stored.throttle_ms)
            here = [stored[:4]]
        there = _bases(outcome.captured_answer, captured_version) if outcome.captured_answer is not None else []
        repeated_there, repeated_here = self._repeats(there, True), self._repeats(here, False)
        self.counts.duplicates += repeated_here and not repeated_there
        return told

    def _repeats(self, bases: Iterable[tuple[str, int, int, int]], captured: bool) -> bool:
        """Does an answer to a Produce request name a base offset, with a log append time, that an earlier one named?
        Then the broker took the batch for one that it had, and did not append it. (The time alone does not say that: a
        topic with LogAppendTime has one in every answer.)"""
        repeated = False
        for topic, partition, offset, appended in bases:
            base = captured, topic, partition, offset
            repeated |= base in self._bases and appended >= 0
            self._bases[base] = None
            if self._bases_kept is not None and len(self._bases) > self._bases_kept:
                self._bases.popitem(last=False)
        return repeated

    def _replayed(self, some: Sequence[Outcome], captured: pa.Table, said: Sequence[AnswerStatus | None]) -> None:
        """Rows of the replayed side of the table `exchanges`, and its messages."""
        count = len(some)
        keys, exchanges = captured.column("api_key").to_pylist(), captured.column("exchange").to_pylist()
        answered = [one.answer is not None for one in some]
        asked = [None if one.request is None else _framed(one.request) for one in some]
        brokers = [_end_point(one.targets[0]) if one.targets else (None, None) for one in some]
        sent = _micros(one.sent_ns for one in some)
        ended = _micros(one.answered_ns if one.answer is not None else None for one in some)
        took = [
            None
            if one.answer is None or one.answered_ns is None or one.sent_ns is None
            else (one.answered_ns - one.sent_ns) // 1000
            for one in some
        ]
        status = [
            "answered"
            if one.answer is not None
            else "no_response_expected"
            if one.rule == "no_answer_expected"
            else "unanswered"
            for one in some
        ]
        told = [one if one is not None and one.decoded else None for one in said]
        made = {
            **{name: captured.column(name) for name in _AS_CAPTURED},
            "capture": [tables.REPLAYED + name for name in captured.column("capture").to_pylist()],
            "reply": [at if seen else None for at, seen in zip(exchanges, answered, strict=True)],
            "api_version": [one.sent_version for one in some],
            "broker_ip": [host for host, _ in brokers],
            "broker_port": [port for _, port in brokers],
            "correlation_id": [
                None if frame is None else int.from_bytes(frame[8:12], "big", signed=True) for frame in asked
            ],
            "request_time": sent,
            "request_end": sent,
            "response_time": ended,
            "response_end": ended,
            "latency_us": took,
            "total_us": took,
            "throttle_us": [None if one is None or one.throttle_ms is None else one.throttle_ms * 1000 for one in told],
            "request_bytes": [None if frame is None else len(frame) for frame in asked],
            "response_bytes": [None if one.answer is None else len(one.answer) + 4 for one in some],
            "status": status,
            "request_state": [None if frame is None else "decoded" for frame in asked],
            "response_state": [None if one is None else "decoded" if one.decoded else "undecoded" for one in said],
            "reason": [None if one is None else one.reason for one in said],
            "error_code": [None if one is None else one.codes[0] if one.codes else 0 for one in told],
            "error": [errors.name(one.codes[0]) if one is not None and one.codes else None for one in told],
            "errors": [None if one is None else _counted(one.codes) for one in told],
        }
        rows = _table("exchanges", made, count)
        self._put("exchanges", rows)
        frames: list[_Frame] = []
        for at, (one, frame, key) in enumerate(zip(some, asked, keys, strict=True)):
            if key is None:
                continue
            if frame is not None:
                frames.append((at, True, _stored(frame, key, one.sent_version, True), one.sent_ns, None))
            if one.answer is not None:
                data = _stored(_whole(one.answer), key, one.sent_version, False)
                frames.append((at, False, data, one.answered_ns, one.answered_ns))
        if frames:
            self._put("messages", _messages(frames, rows.select(_KEYS)))

    # -- tables -------------------------------------------------------------------------------------------------------

    def take(self, path: Path) -> None:
        """Take over the tables that a worker wrote; its counts come apart."""
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
        """Where others may write meanwhile. It goes away with the end."""
        return self._writer.folder

    def _put(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._made[name].append(rows)
            self._flush(_ROWS)

    def _flush(self, limit: int) -> None:
        """Write the rows of tables that have more than `limit`; messages also when they are large."""
        for name, made in self._made.items():
            large = name == "messages" and sum(one.nbytes for one in made) > _ROWS_BYTES
            if large or sum(map(len, made)) > limit:
                self._writer.write(name, pa.concat_tables(made))
                self._made[name] = []

    def finish(self, remaps: Iterable[dict[str, Any]], captures: list[dict[str, Any]], about: dict[str, Any]) -> None:
        """Write what is left and the manifest. `about`: what `_kwire.json` has under `replay`."""
        import analyzer

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


def _size(outcome: Outcome) -> int:
    """Bytes that an outcome keeps in memory beside the capture's."""
    return len(outcome.request or b"") + len(outcome.answer or b"")


def _micros(times: Iterable[int | None]) -> list[int | None]:
    return [None if time is None else time // 1000 for time in times]


def _table(name: str, made: Mapping[str, Any], count: int) -> pa.Table:
    """Columns as a table of the RUN; what is not there is null."""
    schema = tables.schema(name)
    columns = []
    for kind in schema:
        values = made.get(kind.name)
        if values is None:
            values = pa.nulls(count, kind.type)
        columns.append(pa.array(values, kind.type) if isinstance(values, list) else values)
    return pa.Table.from_arrays(columns, schema=schema)


def _messages(frames: Sequence[_Frame], keys: pa.Table) -> pa.Table:
    """Rows of the table `messages`. `keys`: of their exchanges."""
    keys = keys.take([frame[0] for frame in frames])
    asked = pa.array([frame[1] for frame in frames])
    made = {
        "capture": keys.column("capture"),
        "connection": keys.column("connection"),
        "exchange": pc.if_else(asked, keys.column("exchange"), None),
        "reply": pc.if_else(asked, None, keys.column("reply")),
        "direction": ["request" if frame[1] else "response" for frame in frames],
        "first_time": _micros(frame[3] for frame in frames),
        "last_time": _micros(frame[4] for frame in frames),
        "complete": [True] * len(frames),
        "bytes": [frame[2] for frame in frames],
    }
    return _table("messages", made, len(frames))


def _whole(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _framed(request: bytes | bytearray) -> bytes:
    """A request with its length, which it has where it was sent the short way."""
    return bytes(request) if isinstance(request, bytearray) else _whole(request)


def _stored(frame: bytes, key: int, version: int | None, request: bool) -> bytes:
    """A frame as it is kept: without secrets, of which records of the cluster's metadata have some too."""
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
    """(topic, partition, base offset, log append time or -1) of what an answer to a Produce request says was stored."""
    stored = produce_requests.stored(answer, version)
    if stored is not None:
        return [stored[:4]]
    body = tree.decode_response(answer, api_keys.PRODUCE, version, exact=True).body
    return [
        (topic.get("name") or topic.get("topicId", ""), one["index"], one["baseOffset"], one.get("logAppendTimeMs", -1))
        for topic in (body or {}).get("responses", ())
        for one in topic["partitionResponses"]
        if not one["errorCode"] and one["baseOffset"] >= 0
    ]
