"""The summary's quantiles are those of the views, of one latency. Proves: kwire.analyzer.analysis.latency_quantiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.analysis.latency_quantiles import Histogram, own_us
from kwire.analyzer.bulk import state as s
from kwire.analyzer.cli.summary_lines import summary_text
from kwire.analyzer.cli.text import duration
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL
from kwire.reports.embedded import engine
from tests.shared import SAMPLES

pytest.importorskip("duckdb", reason="pip install 'kwire[sql]'")


@pytest.mark.parametrize(
    ("sample", "meaning"),
    [("txn-librdkafka-4.3", True), ("txn-librdkafka-4.3", False), ("group-kip848-librdkafka-4.3", True)],
)
def test_a_summary_says_what_the_view_says(sample: str, meaning: bool, tmp_path: Path) -> None:
    dataset = analyzer.analyze(SAMPLES / sample, tmp_path / "data", meaning=meaning)
    with engine.opened([str(tmp_path / "data")]) as opened:
        rows = opened.ask("SELECT * FROM latency_by_api")[0].to_pylist()
    views = {row["api"]: row for row in rows}
    assert {api["api"] for api in dataset.summary["apis"]} == views.keys()
    text = summary_text(dataset.summary, None)
    for api in dataset.summary["apis"]:
        own, row = api["own_us"], views[api["api"]]
        assert own["max"] == row["max_us"]
        for name in ("p50", "p95", "p99"):
            assert own[name] == (row[f"{name}_us"] and pytest.approx(row[f"{name}_us"], rel=0.016))
        [line] = [line for line in text.splitlines() if line.split()[:2] == [api["api"], f"{api['exchanges']:,}"]]
        assert line.endswith(duration(own["max"]))


def test_parts_are_taken_off_and_what_cannot_be_told_is_left_out() -> None:
    rows = (
        # api, the first byte of the answer in us, answered before it, muted, held, cause; what is left
        (apis.PRODUCE, 900, NULL, NULL, NULL, NULL, 900),
        (apis.PRODUCE, 900, 300, 100, 50, 4, 500),  # replicas: no wait that percentiles leave out
        (apis.FETCH, 900, 300, 100, 50, 4, 450),
        (apis.FETCH, 900, NULL, 0, NULL, 5, NULL),
        (apis.FETCH, 900, NULL, 0, NULL, NULL, 900),  # nothing was worked out
        (apis.SYNC_GROUP, NULL, NULL, NULL, NULL, NULL, NULL),
    )
    x = np.full((s.X_COLUMNS, len(rows)), NULL)
    x[s.X_REQUEST_LAST_NS] = 0
    columns = (s.X_API_KEY, s.X_RESPONSE_FIRST_NS, s.X_EARLIER_NS, s.X_MUTED_US, s.X_HOLD_US, s.X_CAUSE)
    for column, values in zip(columns, zip(*(row[:-1] for row in rows), strict=True), strict=True):
        x[column] = values
    for column in (s.X_RESPONSE_FIRST_NS, s.X_EARLIER_NS):
        x[column, x[column] != NULL] *= 1000
    assert own_us(x).tolist() == [row[-1] for row in rows]


def test_a_histogram_of_parts_is_that_of_the_whole() -> None:
    values = np.random.default_rng(7).exponential(5000, 3000).astype(np.int64)
    whole, some, others = Histogram(), Histogram(), Histogram()
    whole.add(values)
    some.add(values[:1000])
    others.add(values[1000:])
    some.join(others)
    assert some.as_dict() == whole.as_dict()
    assert whole.quantile(99) == pytest.approx(np.sort(values)[2969], rel=0.016)
    assert Histogram().as_dict() == {"p50": None, "p95": None, "p99": None, "max": None}
