"""Metrics of a watch: those of the tables of the same capture, as Prometheus' own parsers read them.

Proves: analyzer/live/metrics.py, analyzer/live/metrics_server.py, analyzer/live/reader_lag.py
"""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import parser as text_parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.registry import CollectorRegistry

import kwire
from kwire.analyzer.live import metrics, metrics_server
from kwire.analyzer.live.open_requests import OpenAtBroker
from kwire.analyzer.live.reader_lag import GONE_NS, Behind, ReaderLag
from kwire.analyzer.live.watch_session import WatchSession
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from kwire.captures.files.write import pcap
from tests.analyzer import forging
from tests.analyzer.live.running import running
from tests.captures.forge import converse, interleaved, rendered
from tests.shared import ROOT, SAMPLES

CAPTURES = {name: SAMPLES / name / "capture.pcap" for name in ("codecs-franzgo-4.3", "txn-librdkafka-4.3")}


def standing_of(path: Path | str, notes: list[str] | None = None) -> metrics_server.Standing:
    """Metrics of a capture that was watched to its end."""
    (point,) = capture_points([str(path)])
    session = WatchSession(point, ReadOptions().settings(keep_messages=False), None, None, telling=False)
    session.metrics = metrics.Metrics(session.topic_name, (notes if notes is not None else []).append)
    session.run()
    now = session.counts.time_ns
    return metrics_server.Standing(
        session.metrics.counted.copy(), session.counts.open.now(now), session.metrics.lag.behind(now), 3, 100, True
    )


def scraped(standing: metrics_server.Standing, version: str = "1.0.0") -> dict[str, Metric]:
    """Families of a scrape by OpenMetrics' parser, by name."""

    class Once:
        def collect(self) -> Iterator[Metric]:
            return metrics_server.families(standing)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    text = exposition.generate_latest(registry, version=version).decode()
    return {family.name: family for family in openmetrics_parser.text_string_to_metric_families(text)}


def samples(family: Metric, suffix: str, *labels: str) -> Counter[Any]:
    """Sums of the samples of a family by some labels."""
    sums: Counter[Any] = Counter()
    for sample in family.samples:
        if sample.name == family.name + suffix:
            value: Any = sample.value  # a float
            sums[tuple(sample.labels[label] for label in labels)] += value
    return sums


def broker(row: dict[str, Any]) -> str:
    return f"{row['broker_ip']}:{row['broker_port']}"


# ------------------------------------------------------------------------------------------------- equal to the tables


@pytest.mark.parametrize("name", CAPTURES)
def test_metrics_are_those_of_the_tables(name: str) -> None:
    rows = kwire.analyze(CAPTURES[name]).exchanges.to_pylist()
    families = scraped(standing_of(CAPTURES[name]))
    key = [(row["api"] or metrics.UNKNOWN, broker(row), row["client_id"] or "") for row in rows]
    exchanges = Counter((*labels, row["status"]) for labels, row in zip(key, rows, strict=True))
    assert samples(families["kwire_exchanges"], "_total", "api", "broker", "client_id", "status") == exchanges
    failures = Counter((*labels, row["error"]) for labels, row in zip(key, rows, strict=True) if row["error"])
    assert failures
    assert samples(families["kwire_exchange_errors"], "_total", "api", "broker", "client_id", "error") == failures
    for side in ("request", "response"):
        sizes: Counter[tuple[str, ...]] = Counter()
        for labels, row in zip(key, rows, strict=True):
            sizes[labels] += row[f"{side}_bytes"] or 0
        assert samples(families[f"kwire_{side}_bytes"], "_total", "api", "broker", "client_id") == sizes
    latency = families["kwire_exchange_latency_seconds"]
    buckets: Counter[tuple[str, ...]] = Counter()
    sums: Counter[tuple[str, ...]] = Counter()
    for labels, row in zip(key, rows, strict=True):
        if row["latency_us"] is not None:
            sums[labels] += row["latency_us"]
            for bound in (*(us / 1e6 for us in metrics.BOUNDS_US), float("inf")):
                buckets[(*labels, str(bound))] += row["latency_us"] / 1e6 <= bound
    measured = samples(latency, "_bucket", "api", "broker", "client_id", "le")
    assert {(*labels[:3], str(float(labels[3]))): value for labels, value in measured.items()} == dict(buckets)
    for values, value in samples(latency, "_sum", "api", "broker", "client_id").items():
        assert value == pytest.approx(sums[values] / 1e6)


@pytest.mark.parametrize("name", CAPTURES)
def test_records_by_topic_are_those_of_the_table(name: str) -> None:
    dataset = kwire.analyze(CAPTURES[name])
    names = {row["topic_id"]: row["topic"] for row in dataset.topic_ids.to_pylist()}
    clients = {
        (row["connection"], row["exchange"], row["reply"]): (row["client_id"] or "", row["api"])
        for row in dataset.exchanges.to_pylist()
    }
    sizes: Counter[tuple[str, ...]] = Counter()
    for row in dataset.partitions.to_pylist():
        client, api = clients[row["connection"], row["exchange"], row["reply"]]
        if api in ("Produce", "Fetch"):
            sizes[row["topic"] or names[row["topic_id"]], client, api.lower()] += row["record_bytes"] or 0
    assert sum(sizes.values()) > 0
    assert (
        samples(scraped(standing_of(CAPTURES[name]))["kwire_record_bytes"], "_total", "topic", "client_id", "direction")
        == sizes
    )


def test_the_native_histogram_is_that_of_the_latencies() -> None:
    """Bucket i holds what is above 2**((i-1)/8) and up to 2**(i/8) seconds."""
    path = CAPTURES["codecs-franzgo-4.3"]
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in kwire.analyze(path).exchanges.to_pylist():
        if row["latency_us"]:
            bucket = next(i for i in range(-160, 200) if row["latency_us"] / 1e6 <= 2 ** (i / 8))
            counts[row["api"], row["client_id"], bucket] += 1
    native: Counter[tuple[Any, ...]] = Counter()
    standing = standing_of(path)
    (family,) = (each for each in metrics_server.families(standing) if each.name == "kwire_exchange_latency_seconds")
    assert family.samples[-1].native_histogram
    assert scraped(standing, "2.0.0")[family.name].samples[-1].native_histogram  # whose spans this parser cannot read
    for sample in family.samples:
        if (histogram := sample.native_histogram) is None:
            continue
        index, number, deltas = 0, 0, iter(histogram.pos_deltas or ())
        for span in histogram.pos_spans or ():
            index += span.offset
            for _ in range(span.length):
                number += next(deltas)
                native[sample.labels["api"], sample.labels["client_id"], index] += number
                index += 1
        assert histogram.schema == 3
    assert native == counts


def test_edges_of_native_buckets_belong_to_the_lower_one() -> None:
    assert metrics.native_bucket(np.array([1, 500_000, 500_001, 1_000_000, 1_000_001])).tolist() == [-159, -8, -7, 0, 1]


# ------------------------------------------------------------------------------------------------- budget and hostility


def test_a_million_clients_cost_what_a_few_hundred_do() -> None:
    """Sums stay right, what is told apart is bounded, and it is said once."""
    notes: list[str] = []
    counting = metrics.Metrics(str, notes.append)
    for start in range(0, 1_000_000, 50_000):
        names = [f"client-{number}" for number in range(start, start + 50_000)]
        counting._labels("client_id", np.arange(50_000), names.__getitem__)
    assert len(counting.counted.values["client_id"]) == metrics.LIMITS["client_id"]
    assert counting.counted.beyond["client_id"] == 1_000_000 - metrics.LIMITS["client_id"]
    (note,) = notes
    assert "more than 500 values of client_id: those that come now count as 'other'" in note


def test_clients_beyond_the_budget_count_as_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(metrics.LIMITS, "client_id", 2)
    talks = [
        converse(
            [forging.asking(forging.heartbeat(1, client_id=f"c{n}")), forging.answering(forging.heartbeat_answer(1))],
            client=("10.0.0.1", 40000 + n),
        )
        for n in range(5)
    ]
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(interleaved(*talks))))
    notes: list[str] = []
    families = scraped(standing_of(path, notes))
    clients = samples(families["kwire_exchanges"], "_total", "client_id")
    assert sum(clients.values()) == 5
    assert clients["other",] == 3
    assert len(clients) == 3
    assert samples(families["kwire_label_overflow"], "_total", "label")["client_id",] == 3
    assert len(notes) == 1


def test_hostile_names_are_values_of_labels() -> None:
    hostile = 'a"} 1\nkwire_exchanges_total{api="x"} 666 # \\ \x00\ud800\u202e' + "y" * 10_000
    counting = metrics.Metrics(str)
    value = counting._value("client_id", hostile, 1)
    counting.counted.series["Fetch", "b:1", value] = metrics.Series(statuses={"answered": 1})
    standing = metrics_server.Standing(counting.counted, [], {}, 0, 0, False)
    families = scraped(standing)
    assert samples(families["kwire_exchanges"], "_total", "client_id") == {(value,): 1}
    assert len(value) == metrics.LONGEST_LABEL
    assert value.isprintable()


# ----------------------------------------------------------------------------------------------------------------- lag


def test_a_reader_is_behind_since_its_next_record_was_there() -> None:
    lag, second = ReaderLag(), 10**9
    for at, end in ((0, 100), (10, 150), (20, 200)):
        lag.reaches("t", 0, at * second, end)
    lag.reads("t", "slow", 0, 21 * second, 120)
    lag.reads("t", "even", 0, 21 * second, 200)
    assert lag.behind(30 * second) == {("slow", "t"): Behind(80, 20.0), ("even", "t"): Behind(0, 0.0)}
    lag.reaches("t", 0, 31 * second, 201)
    assert lag.behind(33 * second)["even", "t"] == Behind(1, 2.0)
    assert lag.behind(21 * second + GONE_NS + 1) == {}


def test_a_log_that_was_made_anew_is_another_one() -> None:
    lag = ReaderLag()
    lag.reaches("t", 0, 0, 1000)
    lag.reaches("t", 0, 5 * 10**9, 10)
    lag.reads("t", "c", 0, 6 * 10**9, 4)
    assert lag.behind(7 * 10**9) == {("c", "t"): Behind(6, 2.0)}


# ------------------------------------------------------------------------------------------------------------ contrib


def names_and_labels(families: dict[str, Metric]) -> dict[str, set[str]]:
    """Labels of every series that there is, by its name."""
    known: dict[str, set[str]] = {}
    for family in families.values():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    return known


def full() -> dict[str, Metric]:
    """Families with a sample in each."""
    standing = standing_of(CAPTURES["codecs-franzgo-4.3"])
    standing.counted.findings["broker-slow", "note"] = 1
    return scraped(standing._replace(open=[OpenAtBroker("b:1", 2, 1, 5, 5, False)], lags={("c", "t"): Behind(1, 2.0)}))


def check_expression(expression: str, known: dict[str, set[str]]) -> None:
    """Hold the metrics of an expression, and the labels that it chooses and groups by, to those that exist."""
    used = re.findall(r"\bkwire_\w+", expression)
    assert used
    assert set(used) <= set(known), expression
    labels = set().union(*(known[name] for name in used))
    grouped = [label.strip() for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in by.split(",")]
    chosen = [
        label
        for braces in re.findall(r"\{([^}]*)\}", expression)
        for label in re.findall(r"(\w+)\s*[!=]~?=?\"", braces)
    ]
    assert set(grouped) | set(chosen) <= labels, expression


def test_every_panel_of_the_dashboard_asks_for_what_exists() -> None:
    dashboard = json.loads((ROOT / "contrib" / "grafana-kwire.json").read_text())
    known = names_and_labels(full())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 10
    used = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            check_expression(target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h"), known)
            used |= set(re.findall(r"\bkwire_\w+", target["expr"]))
            grouped = re.search(r"\bby \(([^)]*)\)", target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if grouped:
                assert shown <= {label.strip() for label in grouped[1].split(",")}, panel["title"]
    for variable in dashboard["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        assert label in known[metric]
    info = {
        "kwire_build_info",
        "kwire_capture_ended",
        "kwire_capture_latest_time_seconds",
        "kwire_capture_sampled_ratio",
        "kwire_label_overflow_total",
    }
    assert set(known) - used - info == {"kwire_broker_stalled"}  # which an alert is for


def test_every_alert_asks_for_what_exists() -> None:
    rules = yaml.safe_load((ROOT / "contrib" / "kwire-alerts.yml").read_text())
    known = names_and_labels(full())
    for rule in rules["groups"][0]["rules"]:
        check_expression(rule["expr"], known)
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_guide_lists_every_metric() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    families = full()
    for family in families.values():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}`" in guide, name
    assert set(re.findall(r"`(kwire_\w+)`", guide)) <= {
        *names_and_labels(families), *families
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the command


def get(url: str, accept: str = "text/plain") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as answer:
        content: str = answer.read().decode()
        return content


def test_a_watch_answers_until_it_is_interrupted() -> None:
    path = CAPTURES["codecs-franzgo-4.3"]
    with running("watch", path, "--metrics", "0") as run:
        process, url = run.process, ""
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", line):
                url = match[1]
            if "all is read" in line:
                break
        families = {family.name: family for family in text_parser.text_string_to_metric_families(get(url))}
        assert families["kwire_capture_ended"].samples[0].value == 1
        assert sum(samples(families["kwire_exchanges"], "_total").values()) == len(kwire.analyze(path).exchanges)
        opened = get(url, "application/openmetrics-text; version=1.0.0")
        assert list(openmetrics_parser.text_string_to_metric_families(opened))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    with pytest.raises(urllib.error.URLError):
        get(url)


@pytest.mark.parametrize("address", ["http", "70000", "::1:9108"])
def test_an_address_that_is_none(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    from kwire.analyzer.cli import parser

    with pytest.raises(SystemExit) as ended:
        parser.main(["watch", str(CAPTURES["codecs-franzgo-4.3"]), "--metrics", address])
    assert ended.value.code == 2
    assert "is not [HOST:]PORT" in capsys.readouterr().err
