"""The questions of a report and the order of its sections of charts and tables.

In: when the captures began and ended. Out: the questions to ask, and `Section`s that refer to them by name. Questions
are views (`reports/views`) or stand beside (`questions/*.sql`); there is no SQL here. Pure: `questions.py` asks, pages
are made in `rendering.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kwire.reports import catalog
from kwire.reports.page.questions import ROWS, AnsweredQuestion, Question, of_view, own

POINTS = 240
"""Intervals of a chart over time, at most: more than a phone has pixels for, fewer than a page would feel."""

LINES = 7
"""Series that a chart tells apart by colour; what is rarer goes under `other`."""

WAITING_APIS = (1, 11, 14, 78)
"""Fetch, JoinGroup, SyncGroup, ShareFetch: the broker holds the answer until there is data, or the group is complete.
Their latency says nothing about the broker's health."""

_STEPS_US = (
    *(step * 1000 for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(step * 10**6 for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)),
)


@dataclass(frozen=True, slots=True)
class Span:
    """The time that the captures cover."""

    begin: datetime.datetime
    end: datetime.datetime

    @property
    def width_us(self) -> int:
        """Length of a chart's interval: the shortest round one of which at most POINTS fit."""
        whole = (self.end - self.begin) // datetime.timedelta(microseconds=1)
        days = -(-whole // (POINTS * _STEPS_US[-1])) * _STEPS_US[-1]
        return next((step for step in _STEPS_US if whole <= step * POINTS), days)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over time. `make`: from the answer to (epoch seconds of the intervals, {label: values}).

    `kind`: `stacked` (parts of a whole), `lines` (each for itself, on a logarithmic scale) or `choice` (one
    `lines` chart for each key of a nested mapping, of which the reader picks one, named by the label `choice`).
    """

    name: str
    title: str
    unit: str
    kind: str
    answer: str
    make: Callable[[AnsweredQuestion, Span], ChartData]
    choice: str = ""


@dataclass(frozen=True, slots=True)
class ChartData:
    """The data of a chart: `times` in epoch seconds, and for each choice (one, called ``, where there is none) its
    series by label. A series has a value or None for each time."""

    times: list[float]
    choices: dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. `tables`: names of answers; `empty`: what is said where they all are."""

    name: str
    title: str
    lead: str
    charts: tuple[Chart, ...]
    tables: tuple[tuple[str, str], ...]
    empty: str


# --- what charts draw -------------------------------------------------------------------------------------------------


def _intervals(answer: AnsweredQuestion) -> dict[int, int]:
    """Position of each interval in a chart. Intervals without rows are among them, because nothing happened in them;
    but not where the clock jumped out of the span, so that there would be any number of them."""
    numbers = sorted({row[0] for row in answer.rows if row[0] is not None}) or [0]
    if numbers[-1] - numbers[0] <= 2 * POINTS:
        numbers = list(range(numbers[0], numbers[-1] + 1))
    return {number: position for position, number in enumerate(numbers)}


def _times(intervals: Iterable[int], span: Span) -> list[float]:
    """Begins of intervals, in epoch seconds."""
    begin, width = span.begin.timestamp(), span.width_us / 1e6
    return [begin + number * width for number in intervals]


def _commonest(answer: AnsweredQuestion, label: str, weight: str) -> list[str]:
    """Labels in order of their weight."""
    sums: dict[str, int] = {}
    for row in answer.dicts():
        name = row[label] or "unknown"
        sums[name] = sums.get(name, 0) + (row[weight] or 0)
    return sorted(sums, key=lambda name: (-sums[name], name))


def _stacked(label: str, value: str, rate: bool) -> Callable[[AnsweredQuestion, Span], ChartData]:
    """One series for each of the commonest labels; the rest together. `rate`: a second, not an interval."""

    def make(answer: AnsweredQuestion, span: Span) -> ChartData:
        intervals = _intervals(answer)
        times = _times(intervals, span)
        names = _commonest(answer, label, value)
        shown = names if len(names) <= LINES else names[: LINES - 1]
        series: dict[str, list[float | None]] = {name: [0] * len(times) for name in shown}
        if len(shown) < len(names):
            series["other"] = [0] * len(times)
        scale = 1e6 / span.width_us if rate else 1
        for row in answer.dicts():
            if row["interval"] is None:
                continue
            values = series[row[label] or "unknown"] if (row[label] or "unknown") in series else series["other"]
            at = intervals[row["interval"]]
            values[at] = round((values[at] or 0) + (row[value] or 0) * scale, 3)
        return ChartData(times, {"": series})

    return make


_LATENCIES = {"median": "p50_us", "p95": "p95_us", "longest": "max_us"}


def _durations(label: str, weight: str, columns: dict[str, str]) -> Callable[[AnsweredQuestion, Span], ChartData]:
    """For each of the commonest labels a series for each of some columns of microseconds, in milliseconds."""

    def make(answer: AnsweredQuestion, span: Span) -> ChartData:
        intervals = _intervals(answer)
        times = _times(intervals, span)
        choices: dict[str, dict[str, list[float | None]]] = {}
        rows = [row for row in answer.dicts() if row["interval"] is not None]
        for name in _commonest(answer, label, weight)[:12]:
            series: dict[str, list[float | None]] = {key: [None] * len(times) for key in columns}
            for row in rows:
                if (row[label] or "unknown") == name:
                    for key, column in columns.items():
                        if row[column] is not None:
                            series[key][intervals[row["interval"]]] = row[column] / 1000
            if any(value is not None for values in series.values() for value in values):
                choices[name] = series
        return ChartData(times, choices)

    return make


# fmt: off
CHARTS = {
    "load": Chart(
        "load", "Exchanges a second, by API", "/s", "stacked", "over_time", _stacked("api", "exchanges", True)
    ),
    "bytes": Chart("bytes", "Bytes a second, by API", "B/s", "stacked", "over_time", _stacked("api", "bytes", True)),
    "latency": Chart(
        "latency", "Latency over time", "ms", "choice", "over_time", _durations("api", "exchanges", _LATENCIES), "API"
    ),
    "end_to_end": Chart(
        "end_to_end", "From producer to reader over time", "ms", "choice", "journeys_over_time",
        _durations("reader", "batches", _LATENCIES), "reader",
    ),
    "lag": Chart(
        "lag", "Lag of groups over time", "ms", "choice", "lag_over_time",
        _durations("group_id", "lag_us", {"not fetched": "lag_us", "not committed": "commit_lag_us"}), "group",
    ),
    "errors": Chart(
        "errors", "Responses with an error, by error", "", "stacked", "errors_over_time",
        _stacked("error", "exchanges", False),
    ),
}
# fmt: on


# fmt: off
SECTIONS = (
    Section(
        "findings", "Findings",
        "What rules found, each with its cause where that is known, what to do, and the exchanges that show it: "
        "kwire show --follow CONNECTION lists them. kwire findings --explain CODE says why a threshold is what it is.",
        (), (("findings", "Worst first"),),
        "No rule found anything.",
    ),
    Section(
        "captured", "What was captured", "", (CHARTS["load"], CHARTS["bytes"]), (("captured", "Capture points"),),
        "No capture is in the dataset.",
    ),
    Section(
        "events", "Events",
        "Who joined and left, which leaders changed, what failed, which transactions began and ended, who logged in.",
        (), (("events", "In order"),),
        "Nobody joined or left, no leader changed, nothing failed.",
    ),
    Section(
        "latency", "Latency",
        "From a request's last byte to its response's first, as the capture saw it, without what it waited behind "
        "earlier requests of its connection. Fetch waits on purpose until there is data, JoinGroup and SyncGroup wait "
        "for the other members: there, long is not slow.",
        (CHARTS["latency"],),
        (
            ("latency_by_api", "By API"), ("latency_by_broker", "By broker"), ("latency_by_client", "By client"),
            ("latency_by_topic", "By topic"), ("slowest_exchanges", "Slowest exchanges"),
            ("queued", "Behind their own requests"), ("throttled", "Throttled"),
        ),
        "No exchange has both its request and its response.",
    ),
    Section(
        "errors", "Errors",
        "What brokers answered with an error code, and what they never answered. After a retriable error, Kafka's "
        "clients send the same again by themselves.",
        (CHARTS["errors"],),
        (
            ("faults", "Faults"), ("errors_by_api", "By API"), ("errors_by_topic", "By topic"),
            ("errors_by_client", "By client"), ("unanswered", "Requests without an answer"),
        ),
        "No response holds an error, and every request has its answer.",
    ),
    Section(
        "topics", "Topics", "", (),
        (
            ("producers", "Producers"), ("consumers", "Consumers"),
            ("produce_efficiency", "Batches and compression"),
            ("fetch_efficiency", "Fetches"), ("partition_skew", "Balance of partitions"),
            ("retries", "Retries"), ("request_sizes", "Sizes"), ("zones", "Between zones"),
        ),
        "No exchange names a topic.",
    ),
    Section(
        "clients", "Clients", "", (),
        (("clients_seen", "Software and use"), ("logins", "Logins"), ("upgrade_check", "Upgrade check")),
        "No request was seen.",
    ),
    Section(
        "groups", "Groups", "", (),
        (("groups_seen", "Activity"), ("group_lag", "Lag"), ("lag_trend", "Lag of fetches")),
        "No request names a group.",
    ),
    Section(
        "journeys", "Journeys of records",
        "Each produced batch with each of its readers, by the clock of the capture: which leg makes records late, how "
        "many seconds groups are behind, and what was delivered more than once. kwire story --topic TOPIC "
        "--partition P --offset N tells one record's journey.",
        (CHARTS["end_to_end"], CHARTS["lag"]),
        (
            ("end_to_end", "From producer to reader"), ("lag_last", "Lag of groups at the end"),
            ("client_wait", "Waiting in producers"), ("replica_delay", "Followers"),
            ("time_to_commit", "From fetch to commit"), ("redelivered", "Delivered again"),
        ),
        "No batch was captured with its producer and a reader.",
    ),
    Section(
        "connections", "Connections", "", (),
        (
            ("connection_health", "Network"), ("connections", "Busiest connections"),
            ("connection_churn", "Churn"), ("reconnects", "Clients that connect again"),
        ),
        "No connection spoke Kafka.",
    ),
    Section(
        "brokers", "Brokers", "", (),
        (
            ("broker_addresses", "Cluster"),
            ("leader_changes", "Changes of leaders and in-sync replicas"),
            ("offered_versions", "API versions offered"),
        ),
        "No broker said anything about itself.",
    ),
    Section(
        "coverage", "Coverage",
        "Every captured byte of a Kafka connection is accounted for; what was not captured is said apart.",
        (), (("coverage", "Captured bytes"), ("unrecognised", "Other protocols")),
        "No byte of Kafka was captured.",
    ),
)
# fmt: on


def sections() -> tuple[Section, ...]:
    """The parts of a report; the last, where there are any, are the user's own questions."""
    own_tables = tuple((view.name, view.name) for view in catalog.own())
    if not own_tables:
        return SECTIONS
    return (*SECTIONS, Section("own", "Questions of your own", "", (), own_tables, "No answer has a row."))


_FEWER = {"events": 200, "slowest_exchanges": 50, "unanswered": 200, "connections": 200}


def questions(span: Span, target: str | None) -> list[Question]:
    """Everything that a report asks. `target`: name of the Kafka release of the upgrade check, None: leave it out."""
    begin = int(span.begin.timestamp()) * 1_000_000 + span.begin.microsecond
    every_question = [
        own("totals", waiting=", ".join(map(str, WAITING_APIS))),
        own("links"),
        own("captured"),
        own("faults"),
        own("findings"),
        own("queued"),
        own("connections", 200),
        own("unrecognised"),
        own("over_time", POINTS * 100, begin=begin, width_us=span.width_us),
        own("errors_over_time", POINTS * 100, begin=begin, width_us=span.width_us),
        own("events_over_time", POINTS * 10, begin=begin, width_us=span.width_us),
        own("journeys_over_time", POINTS * 100, begin=begin, width_us=span.width_us),
        own("lag_over_time", POINTS * 100, begin=begin, width_us=span.width_us),
        own("lag_last"),
    ]
    own_names = {question.name for question in every_question}
    wanted = [name for section in sections() for name, _ in section.tables if name not in own_names]
    conditions = {
        "leader_changes": "to_time IS NOT NULL OR previous_leader IS NOT NULL",
        # What is not there is not told.
        "coverage": "bytes > 0",
        "zones": "from_zone IS NOT NULL AND to_zone IS NOT NULL",
    }
    if target is None:
        wanted.remove("upgrade_check")
    else:
        conditions["upgrade_check"] = f"release = '{target}'"
        every_question.append(own("lacking", target=target))
    return every_question + [of_view(name, conditions.get(name, ""), _FEWER.get(name, ROWS)) for name in wanted]
