"""What a report asks, and in which order it tells: sections of charts and tables.

In: when the captures began and ended, and which tables have rows. Out: the questions to ask, and `Section`s that refer
to them by name. Pure: Spark is asked in `answers.py`, pages are made in `rendering.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from reports.answers import ROWS, Answer, Question, of_view, own

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
    `lines` chart for each key of a nested mapping, of which the reader picks one).
    """

    name: str
    title: str
    unit: str
    kind: str
    answer: str
    make: Callable[[Answer, Span], ChartData]


@dataclass(frozen=True, slots=True)
class ChartData:
    """What a chart draws: `times` in epoch seconds, and for each choice (one, called ``, where there is none) its
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


_WAITING = ", ".join(map(str, WAITING_APIS))

# MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, CONCURRENT_TRANSACTIONS; UNSUPPORTED_VERSION as an answer to ApiVersions
_ORDINARY = "(error_code IN (79, 27, 51) OR api_key = 18 AND error_code = 35)"

TOTALS = f"""-- What happened, in numbers?
-- exchanges: rows of the table `exchanges`.
-- requests: requests seen.
-- answered: requests with their response.
-- no_response_expected: Produce with acks 0.
-- unanswered: the connection closed, or later responses came.
-- in_flight: the capture ended before the response.
-- orphans: responses whose request was not seen.
-- errors: exchanges whose response holds an error.
-- ordinary_errors: those whose first error is part of the protocol: a new member is told its id (KIP-394), members are
--   told to join again, a client asks with a version that is too new for the broker (KIP-511), a producer's last
--   transaction is still being completed.
-- hard_errors: those whose first error is neither ordinary nor retriable: sending the same again does not help.
-- undecoded: exchanges of which a message was not decoded.
-- prompt: answered exchanges of APIs that do not wait on purpose, which the next three are about.
-- p50_us: half of their latencies are at most this.
-- p99_us: 99 of 100 are at most this.
-- max_us: the longest.
-- throttled: exchanges that were throttled.
-- request_bytes: sizes of the requests together.
-- response_bytes: sizes of the responses together.
WITH counted AS (
  SELECT bucketed(latency_us) AS bucket, count(latency_us) AS exchanges, max(latency_us) AS max_us
  FROM exchanges
  WHERE api_key NOT IN ({_WAITING})
  GROUP BY 1
), prompt AS (
  SELECT coalesce(sum(exchanges), 0) AS prompt, percentile(bucket, array(0.5, 0.99), exchanges) AS quantiles,
    max(max_us) AS max_us
  FROM counted
), summed AS (
  SELECT count(*) AS exchanges, count(exchange) AS requests, count_if(status = 'answered') AS answered,
    count_if(status = 'no_response_expected') AS no_response_expected, count_if(status = 'unanswered') AS unanswered,
    count_if(status = 'in_flight') AS in_flight, count_if(status = 'orphan_response') AS orphans,
    count_if(error_code <> 0) AS errors,
    count_if({_ORDINARY}) AS ordinary_errors,
    count_if(error_code <> 0 AND NOT coalesce(known.retriable, false) AND NOT {_ORDINARY}) AS hard_errors,
    count_if(request_state <> 'decoded' OR response_state <> 'decoded') AS undecoded,
    count_if(throttle_us > 0) AS throttled, sum(request_bytes) AS request_bytes, sum(response_bytes) AS response_bytes
  FROM exchanges LEFT JOIN (SELECT error_code AS code, retriable FROM kafka_errors) AS known
    ON known.code = exchanges.error_code
)
SELECT exchanges, requests, answered, no_response_expected, unanswered, in_flight, orphans, errors, ordinary_errors,
  hard_errors, undecoded, prompt, CAST(quantiles[0] AS BIGINT) AS p50_us, CAST(quantiles[1] AS BIGINT) AS p99_us,
  max_us, throttled, request_bytes, response_bytes
FROM summed CROSS JOIN prompt
"""

LINKS = """-- How did the connections fare, in numbers?
-- connections: how many.
-- clients: different addresses of clients.
-- brokers: different addresses of brokers.
-- packets: TCP packets of both sides.
-- retransmissions: packets whose bytes were sent again.
-- out_of_order: packets that came after later ones.
-- zero_windows: packets that say that the receiver has no room.
-- resets: connections that ended with RST.
-- payload_bytes: captured payload.
-- understood_bytes: of it decoded, or a copy.
-- encrypted_bytes: of it encrypted.
-- missing_bytes: not captured.
SELECT count(*) AS connections, count(DISTINCT client_ip) AS clients, count(DISTINCT broker_ip, broker_port) AS brokers,
  sum(client_packets + broker_packets) AS packets, sum(retransmissions) AS retransmissions,
  sum(out_of_order) AS out_of_order, sum(zero_windows) AS zero_windows, count_if(closed = 'rst') AS resets,
  sum(payload_bytes) AS payload_bytes, sum(decoded_bytes + duplicate_bytes) AS understood_bytes,
  sum(opaque_encrypted_bytes) AS encrypted_bytes, sum(gap_bytes + snaplen_bytes) AS missing_bytes
FROM connections
"""

CAPTURED = """-- What was captured?
-- capture: name of the capture point.
-- files: files it is made of.
-- file_bytes: their sizes together.
-- packets: packets in them.
-- tcp_packets: of these TCP.
-- dropped_packets: packets that the capture itself lost, where its files say so.
-- first_time: first packet.
-- last_time: last packet.
SELECT capture, files, file_bytes, packets, tcp_packets, dropped_packets, first_time, last_time
FROM captures
ORDER BY first_time, capture
"""

CONNECTIONS = """-- Which connections were there?
-- The busiest first.
-- connection: client and broker; the number after `#` counts the uses of the same ports.
-- client_id: first client id on it.
-- software_name: the client library.
-- software_version: its version.
-- sasl_mechanism: how it logged in.
-- tls: it is encrypted.
-- first_time: first packet.
-- last_time: last packet.
-- rtt_us: handshake.
-- requests: requests on it.
-- errors: exchanges with an error.
-- client_bytes: payload that the client sent.
-- broker_bytes: payload that the broker sent.
-- retransmissions: packets whose bytes were sent again.
-- gaps: holes that were never filled.
-- closed: how it ended: `fin`, `rst` or `open`.
SELECT connection, client_id, software_name, software_version, sasl_mechanism, tls, first_time, last_time, rtt_us,
  requests, errors, client_bytes, broker_bytes, retransmissions, gaps, closed
FROM connections
ORDER BY requests DESC, first_time, connection
"""

UNRECOGNISED = """-- In which connections was no Kafka found?
-- capture: name of the capture point.
-- connection: the two ends.
-- payload_bytes: captured payload.
-- looks_like: what its first bytes look like.
SELECT capture, connection, payload_bytes, looks_like
FROM unrecognised
ORDER BY payload_bytes DESC, capture, connection
"""


def _over_time(span: Span) -> str:
    """The question behind the charts over time."""
    begin = int(span.begin.timestamp()) * 1_000_000 + span.begin.microsecond
    return f"""-- How do load and latency change over time, by API?
-- interval: number of the interval, each {span.width_us:,} us long, from the first packet on.
-- api: Kafka's name of the API.
-- exchanges: exchanges that began in it.
-- bytes: sizes of requests and responses.
-- p50_us: half of the latencies are at most this.
-- p95_us: 95 of 100 are at most this.
-- max_us: the longest.
WITH counted AS (
  SELECT (unix_micros(coalesce(request_time, response_time)) - {begin}) DIV {span.width_us} AS interval, api,
    bucketed(latency_us) AS bucket, count(*) AS exchanges,
    sum(coalesce(request_bytes, 0) + coalesce(response_bytes, 0)) AS bytes, max(latency_us) AS max_us
  FROM exchanges
  GROUP BY ALL
), measured AS (
  SELECT interval, api, sum(exchanges) AS exchanges, sum(bytes) AS bytes,
    percentile(bucket, array(0.5, 0.95), exchanges) AS quantiles, max(max_us) AS max_us
  FROM counted
  GROUP BY interval, api
)
SELECT interval, api, exchanges, bytes, CAST(quantiles[0] AS BIGINT) AS p50_us,
  CAST(quantiles[1] AS BIGINT) AS p95_us, max_us
FROM measured
ORDER BY interval, api
"""


def _errors_over_time(span: Span) -> str:
    begin = int(span.begin.timestamp()) * 1_000_000 + span.begin.microsecond
    return f"""-- When do which errors come?
-- interval: number of the interval, each {span.width_us:,} us long, from the first packet on.
-- error: the first error of a response.
-- exchanges: responses with it that came in the interval.
SELECT (unix_micros(response_time) - {begin}) DIV {span.width_us} AS interval, error, count(*) AS exchanges
FROM exchanges
WHERE error_code <> 0
GROUP BY ALL
ORDER BY interval, error
"""


# --- what charts draw -------------------------------------------------------------------------------------------------


def _times(answer: Answer, span: Span) -> list[float]:
    """Begins of all intervals of the span, those without rows too: nothing happened in them."""
    last = max((row[0] for row in answer.rows if row[0] is not None), default=0)
    first = min((row[0] for row in answer.rows if row[0] is not None), default=0)
    begin, width = span.begin.timestamp(), span.width_us / 1e6
    return [begin + number * width for number in range(first, last + 1)]


def _commonest(answer: Answer, label: str, weight: str) -> list[str]:
    """Labels in order of their weight."""
    sums: dict[str, int] = {}
    for row in answer.dicts():
        name = row[label] or "unknown"
        sums[name] = sums.get(name, 0) + (row[weight] or 0)
    return sorted(sums, key=lambda name: (-sums[name], name))


def _stacked(label: str, value: str, rate: bool) -> Callable[[Answer, Span], ChartData]:
    """One series for each of the commonest labels; the rest together. `rate`: a second, not an interval."""

    def make(answer: Answer, span: Span) -> ChartData:
        times = _times(answer, span)
        names = _commonest(answer, label, value)
        shown = names if len(names) <= LINES else names[: LINES - 1]
        series: dict[str, list[float | None]] = {name: [0] * len(times) for name in shown}
        if len(shown) < len(names):
            series["other"] = [0] * len(times)
        first = min((row[0] for row in answer.rows if row[0] is not None), default=0)
        scale = 1e6 / span.width_us if rate else 1
        for row in answer.dicts():
            if row["interval"] is None:
                continue
            values = series[row[label] or "unknown"] if (row[label] or "unknown") in series else series["other"]
            at = row["interval"] - first
            values[at] = round((values[at] or 0) + (row[value] or 0) * scale, 3)
        return ChartData(times, {"": series})

    return make


def _latencies(answer: Answer, span: Span) -> ChartData:
    """For each of the commonest APIs its latency's median, 95th percentile and maximum, in milliseconds."""
    times = _times(answer, span)
    first = min((row[0] for row in answer.rows if row[0] is not None), default=0)
    choices: dict[str, dict[str, list[float | None]]] = {}
    rows = [row for row in answer.dicts() if row["interval"] is not None]
    for api in _commonest(answer, "api", "exchanges")[:12]:
        series: dict[str, list[float | None]] = {name: [None] * len(times) for name in ("median", "p95", "longest")}
        for row in rows:
            if (row["api"] or "unknown") == api and row["max_us"] is not None:
                for name, column in (("median", "p50_us"), ("p95", "p95_us"), ("longest", "max_us")):
                    series[name][row["interval"] - first] = row[column] / 1000
        if any(value is not None for value in series["longest"]):
            choices[api] = series
    return ChartData(times, choices)


CHARTS = {
    "load": Chart(
        "load", "Exchanges a second, by API", "/s", "stacked", "over_time", _stacked("api", "exchanges", True)
    ),
    "bytes": Chart("bytes", "Bytes a second, by API", "B/s", "stacked", "over_time", _stacked("api", "bytes", True)),
    "latency": Chart("latency", "Latency over time", "ms", "choice", "over_time", _latencies),
    "errors": Chart(
        "errors", "Responses with an error, by error", "", "stacked", "errors_over_time",
        _stacked("error", "exchanges", False),
    ),
}  # fmt: skip


SECTIONS = (
    Section(
        "captured", "What was captured", "", (CHARTS["load"], CHARTS["bytes"]), (("captured", "Capture points"),),
        "No capture is in the dataset.",
    ),
    Section(
        "latency", "Latency",
        "From a request's last byte to its response's first, as the capture saw it. Fetch waits on purpose until there "
        "is data, JoinGroup and SyncGroup wait for the other members: there, long is not slow. Quantiles are exact up "
        "to two million exchanges, and within 0.8 % above.",
        (CHARTS["latency"],),
        (
            ("latency_by_api", "By API"), ("latency_by_broker", "By broker"), ("latency_by_client", "By client"),
            ("latency_by_topic", "By topic"), ("slowest_exchanges", "Slowest exchanges"), ("throttled", "Throttled"),
        ),
        "No exchange has both its request and its response.",
    ),
    Section(
        "errors", "Errors",
        "What brokers answered with an error code, and what they never answered. After a retriable error, Kafka's "
        "clients send the same again by themselves.",
        (CHARTS["errors"],),
        (
            ("errors_by_api", "By API"), ("errors_by_topic", "By topic"), ("errors_by_client", "By client"),
            ("unanswered", "Requests without an answer"),
        ),
        "No response holds an error, and every request has its answer.",
    ),
    Section(
        "topics", "Topics", "", (),
        (
            ("producers", "Producers"), ("consumers", "Consumers"),
            ("produce_efficiency", "Batches and compression"),
            ("fetch_efficiency", "Fetches"), ("partition_skew", "Balance of partitions"),
            ("retries", "Retries"), ("request_sizes", "Sizes"),
        ),
        "No exchange names a topic.",
    ),
    Section(
        "clients", "Clients", "", (),
        (("clients", "Software and use"), ("upgrade_check", "Upgrade check")),
        "No request was seen.",
    ),
    Section(
        "groups", "Groups", "", (),
        (("groups_seen", "Activity"), ("group_lag", "Lag")),
        "No request names a group.",
    ),
    Section(
        "connections", "Connections", "", (),
        (
            ("connection_health", "Network"), ("connections", "Busiest connections"),
            ("connection_churn", "Churn"),
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
)  # fmt: skip

_FEWER = {"slowest_exchanges": 50, "unanswered": 200, "connections": 200}


def questions(span: Span, target: str | None) -> list[Question]:
    """Everything that a report asks. `target`: name of the Kafka release of the upgrade check, None: leave it out."""
    asked = [
        own("totals", TOTALS), own("links", LINKS), own("captured", CAPTURED), own("connections", CONNECTIONS, 200),
        own("unrecognised", UNRECOGNISED), own("over_time", _over_time(span), rows=POINTS * 100),
        own("errors_over_time", _errors_over_time(span), rows=POINTS * 100),
    ]  # fmt: skip
    own_names = {question.name for question in asked}
    wanted = [name for section in SECTIONS for name, _ in section.tables if name not in own_names]
    conditions = {"leader_changes": "to_time IS NOT NULL OR previous_leader IS NOT NULL"}
    if target is None:
        wanted.remove("upgrade_check")
    else:
        conditions["upgrade_check"] = f"release = '{target}'"
    return asked + [of_view(name, conditions.get(name, ""), _FEWER.get(name, ROWS)) for name in wanted]
