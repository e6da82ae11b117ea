"""Findings while it happens: the rules of `kwire findings`, over one lap of time after the other.

In: windows, measured. Out: findings that were not told before. Rules: a lap is `SECONDS` of packets' time, and its rows
are at most `MOST_ROWS`: what comes in it after those is counted elsewhere and not judged; a finding is told again only
after `AGAIN_SECONDS`; what a lap cannot know (where it begins in the middle, by definition) is not told.

A lap may be left in its middle and taken up by another process: `rows` and `take_rows` besides what the inventory
lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import concatenated
from kwire.analyzer.dataset.parquet_files import tables_of
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.rules import RULES, Finding
from kwire.analyzer.findings.wording import count, lasting, moment
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.parquet import RowGroups
from kwire.analyzer.live.open_requests import Standstill
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.point_tables import PointTables, Rows
from kwire.captures.files import CapturePoint
from kwire.captures.kernels import NULL

SECONDS: Final = 30
EARLY_NS: Final = 500_000_000
"""Time from a topic's first refusal to its evaluation, and from that to the next: clients ask again each second."""
EARLY: Final = ("topic-missing",)
"""Rules that are evaluated before a lap is over, where an answer refuses an unknown topic."""
STALL_SECONDS: Final = 2
"""So long after a broker's last answer its stall is told."""
_UNKNOWN_TOPIC: Final = (3, 100)
"""UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID."""
MOST_ROWS: Final = 100_000
AGAIN_SECONDS: Final = 600
_MOST_TOLD: Final = 10_000
_SECOND_NS: Final = 10**9
_OF_THE_WHOLE: Final = frozenset({"capture-midstream", "capture-one-way", "capture-snaplen", "capture-duplicated"})
"""What is said of a capture: a lap is none."""


FindingKey = tuple[Any, ...]
"""What a finding is about: its code, and pairs of what and who."""


def finding_key(row: Mapping[str, Any]) -> FindingKey:
    """Return what a finding's row is about; the software of a client is known later than the client."""
    return (row["code"], *sorted((name, value) for name, value in dict(row["who"]).items() if name != "software"))


class EvaluationWindows:
    """Takes windows, and gives what `take` and `end` find. It releases names: nothing else of a window may be
    used after `take`."""

    def __init__(self, engine: Engine, point: CapturePoint) -> None:
        self._engine, self._point = engine, point
        self._topics = TopicIds()
        self.told: dict[FindingKey, int] = {}
        """When the lap began in which each was told last."""
        self.left_out = 0
        """Exchanges that were not judged."""
        self._begin()

    def _begin(self) -> None:
        names = self._engine.merging.names
        self._sink = PointTables(names, AnalysisOptions.of(records="none"), topics=self._topics, enough_rows=0)
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in tables.TABLES}
        self._rows = 0
        self._since: int | None = None
        self._early_after: int | None = None
        """When a topic was refused first, then when that was evaluated last, ns."""
        self._now = getattr(self, "_now", 0)

    def go_on(self, engine: Engine) -> None:
        """With another engine; what this lap has so far is not judged."""
        self.left_out += self._rows
        self._engine = engine
        self._begin()

    def take(
        self, window: Window, standstills: Callable[[int, int], list[Standstill]] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Take a window; yield findings where it ends a lap, and those that are told early: brokers that stand still
        (`standstills`: of a time and a least duration, ns) and topics that are not there."""
        when = window.every.column("request_time")
        answered = window.every.column("response_end")
        when = when[when != NULL]
        refused = arrow.among(window.every.column("error_code"), _UNKNOWN_TOPIC) & (answered != NULL)
        if refused.any() and self._early_after is None:
            self._early_after = int(answered[refused].min())
        times = [self._now, *(int(values.max()) for values in (when, answered[answered != NULL]) if len(values))]
        self._now = max(times)
        until = int(np.max(when)) if len(when) else None
        if self._since is None and until is not None:
            self._since = int(np.min(when))
        if self._rows < MOST_ROWS:
            self._rows += len(window.every)
            self._keep(self._sink.take(window))  # releases names
        else:
            self.left_out += len(window.every)
            self._topics.take(window)
            window.names.release()
        for still in standstills(self._now, STALL_SECONDS * _SECOND_NS) if standstills is not None else ():
            yield from self._fresh([_stalled(self._point.name, still)], still.since_ns)
        if until is not None and self._since is not None and until - self._since >= SECONDS * _SECOND_NS:
            yield from self.end()
        elif refused.any() and self._early_after is not None and self._now - self._early_after >= EARLY_NS:
            self._early_after = self._now
            yield from self._early()

    def _keep(self, rows: Iterable[Rows]) -> None:
        for name, table in tables_of(rows):
            if len(table):
                self._parts[name].append(table)

    def rows(self) -> dict[str, bytes]:
        """The rows of this lap so far."""
        streams = {}
        for name, parts in self._parts.items():
            if parts:
                into = pa.BufferOutputStream()
                table = concatenated(name, parts)
                with pa.ipc.new_stream(into, table.schema) as writer:
                    writer.write_table(table)
                streams[name] = into.getvalue().to_pybytes()
        return streams

    def take_rows(self, streams: Mapping[str, bytes]) -> None:
        """Take the rows that `rows` of another process gave into this window."""
        for name, data in streams.items():
            self._parts[name] = [pa.ipc.open_stream(data).read_all()]

    def _early(self) -> Iterator[dict[str, Any]]:
        """Yield findings of the lap so far, by the rules that need no more of it."""
        parts = {name: concatenated(name, some) for name, some in self._parts.items()}
        entry = {"name": self._engine.merging.names.capture}
        capture = CaptureFrame(RowGroups(parts, [entry]), entry, evaluate.USUAL)
        findings = evaluate.of_point(capture, EARLY)
        yield from self._fresh([evaluate.row(capture.name, finding) for finding in findings], self._since or 0)

    def _fresh(self, rows: Iterable[dict[str, Any]], since: int) -> Iterator[dict[str, Any]]:
        """Yield findings that were not told lately. since: when their lap began, ns."""
        for row in rows:
            who = finding_key(row)
            last = self.told.get(who)
            if row["code"] in _OF_THE_WHOLE or (last is not None and since - last < AGAIN_SECONDS * _SECOND_NS):
                continue
            if len(self.told) >= _MOST_TOLD:
                self.told.pop(next(iter(self.told)))
            self.told[who] = since
            yield {**row, "who": dict(row["who"]), "what": dict(row["what"])}

    def end(self) -> Iterator[dict[str, Any]]:
        """A lap is over: what it shows that was not told before."""
        sink, rows, since = self._sink, self._rows, self._since
        if not rows:
            return
        self._keep(sink.remaining_records())
        self._keep(sink.analysis_rows())
        # Connections that never were are counted at the end of a capture: packets are being read meanwhile.
        read = sink.result(self._point, self._engine.reader, ())
        parts = {name: concatenated(name, some) for name, some in self._parts.items()}
        self._begin()
        judged = evaluate.judged(RowGroups(parts, [read.capture]))
        yield from self._fresh([evaluate.row(*pair) for pair in judged], since or 0)


def _stalled(capture: str, still: Standstill) -> dict[str, Any]:
    """The finding of a broker that stands still, as a row: its clients wait, and nobody knows yet until when."""
    rule = RULES["broker-stall"]
    lasted = (still.until_ns - still.since_ns) // 1000
    text = f"{still.broker} has answered nobody for {lasting(lasted)} since {moment(still.since_ns // 1000)}, and "
    text += f"{count(still.requests, 'request')} of {count(still.clients, 'client')} wait."
    is_clear = still.clients >= rule.limits["clients"]
    finding = Finding(
        rule.severity if is_clear else "note",
        rule.code,
        rule.family,
        text,
        {"broker": still.broker},
        {"clients": str(still.clients)},
        still.requests,
        still.since_ns // 1000,
        still.until_ns // 1000,
        "a pause of the broker",
        False,
        rule.advice,
        None,
        None,
        None,
    )
    return evaluate.row(capture, finding)
