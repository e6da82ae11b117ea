"""What became of each captured exchange, and the RUN that says it.

In: outcomes as they are known. Out: a dataset (`analyzer.dataset.Writer`) that needs nothing beside it to be compared:

- `outcomes`: a row per captured exchange; the counts of its actions, and of its verdicts, add up to the captured total;
- `exchanges` and `messages` twice: the captured rows under the capture's name, the replayed ones under
  `replay:CAPTURE` with the captured connection's name and the captured ordinals (`exchange`, and `reply` the same), so
  that the two sides join on (connection, exchange). What was sent to several brokers is stored whole, as it was before
  it was split and after its answers were merged;
- `remaps`: what the target has in place of the capture's values.

Rules: secrets are overwritten; files are there for their owner only; an interrupted run is written too.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from analyzer import tables
from analyzer.dataset import Writer, open_dataset
from analyzer.meaning.connections import Coverage
from analyzer.messages import masked
from analyzer.protocol import errors, names, plans, schema, tree
from analyzer.protocol.decoding import OK
from replay.plan.sessions import Request, Session
from replay.plan.steps import Skip, Step

KEPT: Final = 500_000
"""Outcomes that wait for the end of the sending to become rows; with more, the oldest become rows while it goes on."""
KEPT_BYTES: Final = 256 << 20
"""The same for the bytes of their requests and answers: a capture of large batches has few outcomes."""
BASES: Final = 1 << 16
"""Base offsets among which a repeated one is looked for, in a long run: brokers know the last five batches of each
producer of a partition."""
_ROWS: Final = 20_000
_ROWS_BYTES: Final = 64 << 20
"""Rows, and bytes of messages, that are kept in memory before they are written as a row group."""


@dataclass(slots=True)
class Outcome:
    """One captured exchange's row in the making. Times are int nanoseconds since the epoch.

    `request` and `answer` are the frames (without length) as sent and as merged, None where there are none;
    `captured_answer` is the one to compare with; `row` is the captured row of the table `exchanges`; `planned_ns`: when
    it was planned, where that was after it was due."""

    row: dict[str, Any]
    step: int | None
    action: str
    verdict: str
    rule: str | None = None
    reason: str | None = None
    retries: list[str] = field(default_factory=list)
    sent_version: int | None = None
    scheduled_ns: int | None = None
    planned_ns: int | None = None
    ready_ns: int | None = None
    first_sent_ns: int | None = None
    sent_ns: int | None = None
    answered_ns: int | None = None
    targets: list[str] = field(default_factory=list)
    request: bytes | bytearray | None = field(default=None, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    captured_answer: bytes | None = field(default=None, repr=False)


def moment(nanoseconds: int | None) -> datetime.datetime | None:
    """A time as the tables have it."""
    if nanoseconds is None:
        return None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=nanoseconds // 1000)


class Durations:
    """Many durations in little memory: how often there was each, and once there are `DISTINCT` different ones, of those
    above a thousand only the first three digits (so a quantile is right to a thousandth)."""

    DISTINCT: Final = 50_000

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._often: Counter[int] = Counter(values)
        self._rough = False
        self._coarsen()

    def append(self, value: int) -> None:
        """One more."""
        self._often[_rough(value) if self._rough else value] += 1
        if len(self._often) > self.DISTINCT and not self._rough:
            self._coarsen()

    def __iadd__(self, others: Durations | Iterable[int]) -> Durations:
        self._often.update(others._often if isinstance(others, Durations) else others)
        self._rough |= isinstance(others, Durations) and others._rough
        self._coarsen()
        return self

    def _coarsen(self) -> None:
        if self._rough or len(self._often) > self.DISTINCT:
            self._rough = True
            often, self._often = self._often, Counter()
            for value, count in often.items():
                self._often[_rough(value)] += count

    def __len__(self) -> int:
        return self._often.total()

    def __iter__(self) -> Iterator[int]:
        """In order of size."""
        for value in sorted(self._often):
            yield from itertools.repeat(value, self._often[value])

    def at(self, place: int) -> int:
        """What stands at a place in order of size."""
        for value in sorted(self._often):
            place -= self._often[value]
            if place < 0:
                return value
        raise IndexError(place)


def _rough(value: int) -> int:
    """Its first three digits."""
    scale: int = 10 ** max(len(str(abs(value))) - 3, 0)
    return value // scale * scale


@dataclass(slots=True)
class Counts:
    """How many captured exchanges came to what; `total` is the sum of `actions`, and of `verdicts`. `skipped`,
    `not_sent`: by rule; `unanswered`: why the first that wanted an answer got none; `excess_us`: by API, how much
    longer answers took than the captured ones, from the first time that a request was sent; `apart`: by group, requests
    of members that the target lost too often (`rejoins_spent`)."""

    actions: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    not_sent: Counter[str] = field(default_factory=Counter)
    unanswered: str = ""
    retries: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    tool_errors: int = 0
    lags_us: Durations | list[int] = field(default_factory=Durations)
    queues_us: Durations | list[int] = field(default_factory=Durations)
    latencies_us: Durations | list[int] = field(default_factory=Durations)
    excess_us: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.actions.values())

    def add(self, other: Counts) -> None:
        """Take what another counted."""
        for mine, theirs in (
            (self.actions, other.actions), (self.verdicts, other.verdicts), (self.skipped, other.skipped),
            (self.not_sent, other.not_sent), (self.retries, other.retries), (self.excess_us, other.excess_us),
            (self.apart, other.apart),
        ):  # fmt: skip
            mine.update(theirs)
        self.unanswered = self.unanswered or other.unanswered
        self.duplicates += other.duplicates
        self.tool_errors += other.tool_errors
        self.lags_us += other.lags_us  # type: ignore[operator]
        self.queues_us += other.queues_us  # type: ignore[operator]
        self.latencies_us += other.latencies_us  # type: ignore[operator]

    def as_dict(self) -> dict[str, Any]:
        """For `_kwire.json` and `--json`."""
        return {
            "total": self.total,
            "actions": dict(sorted(self.actions.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "skipped": dict(sorted(self.skipped.items())),
            "not_sent": dict(sorted(self.not_sent.items())),
            "retries": dict(sorted(self.retries.items())),
            "groups_apart": dict(sorted(self.apart.items())),
            "duplicates": self.duplicates,
            "tool_errors": self.tool_errors,
            "lag_us": quantiles(self.lags_us),
            "queue_us": quantiles(self.queues_us),
            "latency_us": quantiles(self.latencies_us),
        }


def quantiles(values: Sequence[int] | Durations) -> dict[str, int]:
    """Median and 99th percentile (the smallest that at least so many do not exceed) and largest of some durations;
    nothing of none."""
    if not values:
        return {}
    half, most = (-(-percent * len(values) // 100) - 1 for percent in (50, 99))
    if isinstance(values, Durations):
        return {"p50": values.at(half), "p99": values.at(most), "max": values.at(len(values) - 1)}
    ordered = sorted(values)
    return {"p50": ordered[half], "p99": ordered[most], "max": ordered[-1]}


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
        self._outcomes: list[dict[str, Any]] = []
        self._exchanges: list[dict[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._messages_bytes = 0
        self._bases: OrderedDict[tuple[bool, str, int, int], None] = OrderedDict()

    def captured(self, sessions: Iterable[Session]) -> None:
        """Write the captured side: every exchange with its messages."""
        for session in sessions:
            for row in session.orphans:
                self._exchanges.append(row)
            for request in session.requests:
                self.asked(request)
        self._flush(0)

    def orphan(self, row: dict[str, Any]) -> None:
        """Write a captured response without its request."""
        self._exchanges.append(row)

    def asked(self, request: Request) -> None:
        """Write a captured exchange with its messages."""
        self._exchanges.append(request.row)
        self._message(request.row, "request", request.data, request.sent_ns, None)
        self._message(request.row, "response", request.answer, request.answered_ns, request.answered_ns)
        self._flush(_ROWS)

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
            self._add(self._waiting.popleft())

    def settle(self) -> None:
        """Make rows of all outcomes that wait."""
        while self._waiting:
            self._add(self._waiting.popleft())

    def _add(self, outcome: Outcome) -> None:
        self._waiting_bytes -= _size(outcome)
        counts = self.counts
        counts.actions[outcome.action] += 1
        counts.verdicts[outcome.verdict] += 1
        if outcome.action == "skipped":
            counts.skipped[outcome.rule or ""] += 1
        elif outcome.action == "not_sent":
            counts.not_sent[outcome.rule or ""] += 1
        elif outcome.verdict == "unanswered":
            counts.unanswered = counts.unanswered or outcome.reason or ""
        counts.retries.update(outcome.retries)
        if "rejoins_spent" in outcome.retries:
            counts.apart[outcome.row["group_id"] or ""] += 1
        counts.tool_errors += outcome.rule == "tool_error"
        row = outcome.row
        replayed = self._replayed(outcome) if outcome.sent_ns is not None else None
        lag = queue = latency = None
        if outcome.sent_ns is not None and outcome.scheduled_ns is not None and outcome.ready_ns is not None:
            first = max(outcome.scheduled_ns, outcome.ready_ns)
            known = max(outcome.scheduled_ns, outcome.planned_ns or 0)  # until then it waited for the replayer
            queue = max(outcome.ready_ns - known, 0) // 1000
            if outcome.first_sent_ns is not None:
                lag = (max(outcome.first_sent_ns - first, 0) + known - outcome.scheduled_ns) // 1000
                counts.lags_us.append(lag)
            counts.queues_us.append(queue)
        if outcome.sent_ns is not None and outcome.answered_ns is not None:
            latency = (outcome.answered_ns - outcome.sent_ns) // 1000
            counts.latencies_us.append(latency)
            if outcome.first_sent_ns is not None and row.get("total_us") is not None:
                took = (outcome.answered_ns - outcome.first_sent_ns) // 1000
                counts.excess_us[row["api"] or ""] += took - row["total_us"]
        self._outcomes.append(
            {
                "capture": row["capture"],
                "connection": row["connection"],
                "exchange": row["exchange"],
                "reply": row["reply"],
                "step": outcome.step,
                "api_key": row["api_key"],
                "api": row["api"],
                "api_version": row["api_version"],
                "sent_version": outcome.sent_version,
                "action": outcome.action,
                "verdict": outcome.verdict,
                "rule": outcome.rule,
                "reason": outcome.reason,
                "retries": outcome.retries,
                "scheduled": moment(outcome.scheduled_ns),
                "sent": moment(outcome.sent_ns),
                "answered": moment(outcome.answered_ns),
                "lag_us": lag,
                "queue_us": queue,
                "latency_us": latency,
                "captured_error": row["error"],
                "replayed_error": replayed["error"] if replayed is not None else None,
                "targets": outcome.targets,
            }
        )
        self._flush(_ROWS)

    def _replayed(self, outcome: Outcome) -> dict[str, Any]:
        """The replayed side's row of the table `exchanges`, and its messages."""
        row = dict.fromkeys(column.name for column in tables.EXCHANGES)
        captured = outcome.row
        for name in ("connection", "exchange", "api_key", "api", "client_id", "acks", "max_wait_ms", "min_bytes",
                     "isolation_level", "group_id", "transactional_id", "topics"):  # fmt: skip
            row[name] = captured.get(name)  # a dataset of before has not all columns
        row["capture"] = tables.REPLAYED + captured["capture"]
        row["api_version"] = outcome.sent_version
        row["request_time"] = row["request_end"] = moment(outcome.sent_ns)
        if outcome.targets:
            host, _, port = outcome.targets[0].rpartition(":")
            row["broker_ip"], row["broker_port"] = host.strip("[]"), int(port)
        if isinstance(outcome.request, bytearray):
            outcome.request = bytes(outcome.request[4:])  # sent the short way: with its length
        if outcome.request is not None:
            row["correlation_id"] = int.from_bytes(outcome.request[4:8], "big", signed=True)
            row["request_bytes"] = len(outcome.request) + 4
            row["request_state"] = "decoded"
        row["status"] = "unanswered"
        if outcome.rule == "no_answer_expected":
            row["status"] = "no_response_expected"
        if outcome.answer is not None:
            row["reply"] = captured["exchange"]
            row["status"] = "answered"
            row["response_time"] = row["response_end"] = moment(outcome.answered_ns)
            row["response_bytes"] = len(outcome.answer) + 4
            assert outcome.answered_ns is not None
            assert outcome.sent_ns is not None
            row["latency_us"] = row["total_us"] = (outcome.answered_ns - outcome.sent_ns) // 1000
            self._errors(outcome, row)
        self._exchanges.append(row)
        self._message(row, "request", outcome.request, outcome.sent_ns, None)
        self._message(row, "response", outcome.answer, outcome.answered_ns, outcome.answered_ns)
        return row

    def _errors(self, outcome: Outcome, row: dict[str, Any]) -> None:
        assert outcome.answer is not None
        assert outcome.sent_version is not None
        decoded = tree.decode_response(outcome.answer, row["api_key"], outcome.sent_version, exact=True)
        if decoded.status != OK or decoded.body is None:
            row["response_state"], row["reason"] = "undecoded", decoded.reason
            return
        row["response_state"] = "decoded"
        row["throttle_us"] = decoded.body["throttleTimeMs"] * 1000 if "throttleTimeMs" in decoded.body else None
        codes = list(errors.codes(decoded.body))
        row["error_code"] = codes[0] if codes else 0
        row["error"] = errors.name(codes[0]) if codes else None
        row["errors"] = [
            {"code": code, "error": errors.name(code), "count": count} for code, count in Counter(codes).items()
        ]
        if row["api_key"] == names.PRODUCE:
            captured = None
            if outcome.captured_answer is not None:
                version = outcome.row["api_version"]
                captured = tree.decode_response(outcome.captured_answer, names.PRODUCE, version, exact=True).body
            there, here = self._repeats(captured, True), self._repeats(decoded.body, False)
            self.counts.duplicates += here and not there

    def _repeats(self, answer: dict[str, Any] | None, captured: bool) -> bool:
        """Does an answer to a Produce request name a base offset, with a log append time, that an earlier one named?
        Then the broker took the batch for one that it had, and did not append it. (The time alone does not say that: a
        topic with LogAppendTime has one in every answer.)"""
        repeated = False
        for topic in (answer or {}).get("responses", ()):
            for one in topic["partitionResponses"]:
                base = captured, topic.get("name") or topic.get("topicId", ""), one["index"], one["baseOffset"]
                if not one["errorCode"] and base[-1] >= 0:
                    repeated |= base in self._bases and one.get("logAppendTimeMs", -1) >= 0
                    self._bases[base] = None
                    if self._bases_kept is not None and len(self._bases) > self._bases_kept:
                        self._bases.popitem(last=False)
        return repeated

    def _message(
        self, row: dict[str, Any], direction: str, data: bytes | None, first_ns: int | None, last_ns: int | None
    ) -> None:
        if data is None or row["api_key"] is None:
            return
        request = direction == "request"
        frame = len(data).to_bytes(4, "big") + data
        direction_number = schema.REQUEST if request else schema.RESPONSE
        known = plans.has_layout(row["api_key"], row["api_version"], direction_number)
        if not known or schema.has_secrets(row["api_key"], direction_number):
            frame = masked(frame, row["api_key"], row["api_version"], request)
        self._messages_bytes += len(frame)
        self._messages.append(
            {
                "capture": row["capture"],
                "connection": row["connection"],
                "exchange": row["exchange"] if request else None,
                "reply": None if request else row["reply"],
                "direction": direction,
                "first_time": moment(first_ns),
                "last_time": moment(last_ns),
                "complete": True,
                "bytes": frame,
            }
        )

    def take(self, path: Path) -> None:
        """Take over the tables that a worker wrote; its counts come apart."""
        stored = open_dataset(path)
        for name in ("outcomes", "exchanges", "messages", "remaps"):
            for batch in getattr(stored, name).to_batches():
                if len(batch):
                    self._writer.write(name, pa.Table.from_batches([batch]))

    def _flush(self, limit: int) -> None:
        """Write the rows of tables that have more than `limit`; messages also when they are large."""
        for name, rows in (("outcomes", self._outcomes), ("exchanges", self._exchanges), ("messages", self._messages)):
            if len(rows) > limit or (name == "messages" and self._messages_bytes > _ROWS_BYTES):
                self._writer.write(name, pa.Table.from_pylist(rows, schema=tables.schema(name)))
                rows.clear()
                if name == "messages":
                    self._messages_bytes = 0

    def finish(self, remaps: list[dict[str, Any]], captures: list[dict[str, Any]], about: dict[str, Any]) -> None:
        """Write what is left and the manifest. `about`: what `_kwire.json` has under `replay`."""
        import analyzer

        self.settle()
        self._flush(0)
        if remaps:
            self._writer.write("remaps", pa.Table.from_pylist(remaps, schema=tables.schema("remaps")))
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


def _size(outcome: Outcome) -> int:
    """Bytes that an outcome keeps in memory beside the capture's."""
    return len(outcome.request or b"") + len(outcome.answer or b"")
