"""Metrics of a watch for Prometheus, over HTTP (`kwire watch --metrics`).

In: a `Metrics`, and how it stands otherwise. Out: an address that answers in the Prometheus text format, or in
OpenMetrics where that is asked for. Rules: names follow Prometheus' conventions (`_total`, base units, no unit in
labels); a scrape copies under the lock, and makes its text outside of it, so that it never stops the decoding for long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.version import __version__
from kwire.analyzer.live.metrics import (
    BOUNDS_US,
    FIRST_NATIVE,
    LIMITS,
    MOST_SERIES,
    SCHEMA,
    Counted,
    Series,
)
from kwire.analyzer.live.open_requests import OpenAtBroker
from kwire.analyzer.live.reader_lag import Behind
from kwire.analyzer.protocol import errors
from kwire.captures.extras import install

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ERRORS: Final = ("api", "broker", "client_id", "error")


class Standing(NamedTuple):
    """Contents of a scrape. ended: all that there is was read; one_of: of so many connections one is captured."""

    counted: Counted
    open: list[OpenAtBroker]
    lags: dict[tuple[str, str], Behind]
    dropped: int
    packets: int
    ended: bool
    one_of: int = 1


def serve(address: tuple[str, int], standing: Callable[[], Standing]) -> tuple[str, Callable[[], None]]:
    """Answer scrapes in a thread; return the address that is served, and a function that ends it. Raises UsageError."""
    try:
        from prometheus_client import start_http_server
        from prometheus_client.registry import CollectorRegistry
    except ImportError:
        raise UsageError("--metrics needs the package prometheus-client", install("metrics")) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(standing))
    host, port = address
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as failure:
        hint = "another port, or 0 for a free one"
        raise UsageError(f"--metrics {host}:{port}: {failure.strerror}", hint) from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{server.server_port}/metrics", end


class _Collector:
    """Makes the families of a scrape."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before there was traffic."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families; scrapes at once take turns, so that not more than one copy is there."""
        with self._lock:
            yield from families(self._standing())


def families(now: Standing) -> Iterator[Metric]:
    """Yield the metric families of one moment."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    counted = now.counted
    build = GaugeMetricFamily("kwire_build_info", "Version of kwire.", labels=["version"])
    build.add_metric([__version__], 1)
    yield build
    exchanges = CounterMetricFamily(
        "kwire_exchanges",
        "Requests with their responses, by how they ended.",
        labels=["api", "broker", "client_id", "status"],
    )
    failures = CounterMetricFamily(
        "kwire_exchange_errors", "Exchanges whose answer holds an error: the first one.", labels=_ERRORS
    )
    sizes = [
        CounterMetricFamily(
            f"kwire_{side}_bytes",
            f"Bytes of {side}s, their length field included.",
            labels=["api", "broker", "client_id"],
        )
        for side in ("request", "response")
    ]
    for labels, series in counted.series.items():
        for status, number in series.statuses.items():
            exchanges.add_metric([*labels, status], number)
        for code, number in series.failures.items():
            failures.add_metric([*labels, errors.name(code) or str(code)], number)
        sizes[0].add_metric(labels, series.request_bytes)
        sizes[1].add_metric(labels, series.response_bytes)
    yield from (exchanges, failures, *sizes)
    yield _latencies(counted)
    yield from _topics(counted)
    yield from _gauges(now)
    findings = CounterMetricFamily(
        "kwire_findings", "Findings, each counted where it is reported first.", labels=["code", "severity"]
    )
    for finding, number in counted.findings.items():
        findings.add_metric(finding, number)
    yield findings
    yield CounterMetricFamily(
        "kwire_capture_dropped_packets", "Packets that the capture lost, as far as anybody says.", value=now.dropped
    )
    yield CounterMetricFamily("kwire_capture_packets", "Packets read.", value=now.packets)
    yield GaugeMetricFamily(
        "kwire_capture_sampled_ratio", "Share of the connections that is captured (--sample).", value=1 / now.one_of
    )


def _latencies(counted: Counted) -> Metric:
    """Return the histogram: classic buckets, and a native one for those who ask for OpenMetrics 2."""
    from prometheus_client.core import Metric

    family = Metric(
        "kwire_exchange_latency_seconds",
        "From the last byte of a request to the first byte of its response.",
        "histogram",
        "seconds",
    )
    for values, series in counted.series.items():
        count = int(series.classic.sum())
        if not count:
            continue
        labels = dict(zip(("api", "broker", "client_id"), values))
        upper = [*(repr(bound / 1e6) for bound in BOUNDS_US), "+Inf"]
        for bound, number in zip(upper, np.cumsum(series.classic).tolist()):
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, number)
        family.add_sample(f"{family.name}_count", labels, count)
        family.add_sample(f"{family.name}_sum", labels, series.latency_us / 1e6)
    for values, series in counted.series.items():
        if series.classic.any():
            labels = dict(zip(("api", "broker", "client_id"), values))
            family.add_sample(family.name, labels, 0, native_histogram=_native(series))
    return family


def _native(series: Series) -> Any:
    """Return the native histogram: spans of buckets that are not empty, and differences of their counts."""
    from prometheus_client.samples import BucketSpan, NativeHistogram

    spans: list[Any] = []
    deltas: list[int] = []
    following, before = 0, 0
    for at in np.flatnonzero(series.native).tolist():
        index, number = at + FIRST_NATIVE, int(series.native[at])
        if spans and index == following:
            spans[-1] = BucketSpan(spans[-1].offset, spans[-1].length + 1)
        else:
            spans.append(BucketSpan(index - following if spans else index, 1))
        deltas.append(number - before)
        following, before = index + 1, number
    return NativeHistogram(
        count_value=int(series.classic.sum()),
        sum_value=series.latency_us / 1e6,
        schema=SCHEMA,
        zero_threshold=0.0,
        zero_count=series.zero,
        pos_spans=spans or None,
        pos_deltas=deltas or None,
    )


def _topics(counted: Counted) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    labels = ["topic", "client_id", "direction"]
    sizes = CounterMetricFamily("kwire_record_bytes", "Bytes of record batches, as sent.", labels=labels)
    records = CounterMetricFamily("kwire_records", "Records, as far as headers of batches tell.", labels=labels)
    for values, series in counted.topics.items():
        sizes.add_metric(values, series.record_bytes)
        records.add_metric(values, series.records)
    yield from (sizes, records)


def _gauges(now: Standing) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    requests = GaugeMetricFamily("kwire_open_requests", "Requests without an answer yet.", labels=["broker"])
    waiting = GaugeMetricFamily(
        "kwire_waiting_requests", "Open requests that wait longer than they asked for.", labels=["broker"]
    )
    oldest = GaugeMetricFamily(
        "kwire_oldest_waiting_request_age_seconds", "Age of the oldest of these.", labels=["broker"]
    )
    stalled = GaugeMetricFamily("kwire_broker_stalled", "1: the broker answers nobody.", labels=["broker"])
    for broker in now.open:
        requests.add_metric([broker.broker], broker.requests)
        waiting.add_metric([broker.broker], broker.waiting)
        oldest.add_metric([broker.broker], (broker.oldest_us or 0) / 1e6)
        stalled.add_metric([broker.broker], int(broker.is_stalled))
    yield from (requests, waiting, oldest, stalled)
    labels = ["client_id", "topic"]
    records = GaugeMetricFamily(
        "kwire_reader_lag_records",
        "Records from what a client read to the high watermark, all partitions.",
        labels=labels,
    )
    seconds = GaugeMetricFamily(
        "kwire_reader_lag_seconds", "For how long a client's next record has been there, at least.", labels=labels
    )
    for values, lag in now.lags.items():
        records.add_metric(values, lag.records)
        seconds.add_metric(values, lag.seconds)
    yield from (records, seconds)
    limits = GaugeMetricFamily("kwire_label_values_limit", "Values of a label that are told apart.", labels=["label"])
    values_now = GaugeMetricFamily("kwire_label_values", "Values of a label that are told apart now.", labels=["label"])
    beyond = CounterMetricFamily(
        "kwire_label_overflow", "Exchanges and partitions whose label became `other`.", labels=["label"]
    )
    for label, limit in (*LIMITS.items(), ("series", MOST_SERIES)):
        limits.add_metric([label], limit)
        held = len(now.counted.series) if label == "series" else len(now.counted.values[label])
        values_now.add_metric([label], held)
        beyond.add_metric([label], now.counted.beyond[label])
    yield from (limits, values_now, beyond)
    latest = GaugeMetricFamily("kwire_capture_latest_time_seconds", "Time of the newest message, since 1970.")
    latest.add_metric([], now.counted.time_ns / 1e9)
    yield latest
    ended = GaugeMetricFamily("kwire_capture_ended", "1: all that there is was read.")
    ended.add_metric([], int(now.ended))
    yield ended
