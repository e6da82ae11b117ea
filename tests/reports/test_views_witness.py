"""Counts and measures of views on real captures, against the brokers' own request logs, by way of pandas.

The log is what the broker saw, made without looking at packets: counts by API and version, error codes, and for the
group captures how long each request took.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kwire import analyzer
from kwire.reports import catalog, relations
from tests import shared
from tests.witness import requestlog

GROUPS = ("group-classic-librdkafka-4.3", "group-kip848-librdkafka-4.3")
CAPTURES = (*GROUPS, "errors-librdkafka-4.3", "txn-librdkafka-4.3")
VIEWS = "SELECT 1 FROM captures, exchanges, api_versions_used, unanswered, latency_by_api, errors_by_api"
"""What is asked below; to have all views understood takes Spark seconds for each capture."""


class Witnessed:
    """One capture: its views, and its request log as a frame (one row a logged request that the capture must have)."""

    def __init__(self, spark: Any, folder: Path, dataset: Path) -> None:
        files = [str(path) for path in shared.capture_files(folder)]
        analyzer.analyze(files, out=dataset, rotated=len(files) > 1)
        self.spark = spark.newSession()
        relations.register(self.spark, [dataset], catalog.needed(VIEWS))
        first = self.spark.sql("SELECT unix_micros(first_time) FROM captures").first()[0] / 1e6
        meta = json.loads((folder / "truth.json").read_text())["meta"]
        ports = {int(port) for port in re.findall(r"port (\d+)", meta["filter"])}
        lines = [
            line
            for line in requestlog.read(folder)
            if not line.forwarded and line.broker is not None and line.broker[1] in ports and line.time >= first
        ]
        self.log = pd.DataFrame(
            {
                "client": [f"{line.client[0]}:{line.client[1]}" for line in lines],
                "api_key": [line.api_key for line in lines],
                "api_version": [line.api_version for line in lines],
                "correlation_id": [line.correlation_id for line in lines],
                "total_ms": [line.total_ms for line in lines],
                "remote_ms": [line.remote_ms for line in lines],
                "codes": [sorted(codes(line.response)) for line in lines],
            }
        )

    def frame(self, query: str) -> pd.DataFrame:
        rows = [row.asDict(recursive=True) for row in self.spark.sql(query).collect()]
        return pd.DataFrame(rows)


def codes(body: Any, name: str = "") -> set[int]:
    """Every error code in a logged response: the numbers of fields called errorCode, 0 left out."""
    if isinstance(body, dict):
        return {code for key, value in body.items() for code in codes(value, key)}
    if isinstance(body, list):
        return {code for value in body for code in codes(value, name)}
    return {body} if name.lower().endswith("errorcode") and isinstance(body, int) and body else set()


@pytest.fixture(scope="module", params=CAPTURES)
def witnessed(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Witnessed:
    sample = shared.SAMPLES / request.param
    folder = sample if sample.is_dir() else shared.shared_folder(request.param)
    return Witnessed(spark, folder, tmp_path_factory.mktemp("witness") / "dataset")


def test_requests_by_api_and_version(witnessed: Witnessed) -> None:
    """Equal, but for what the broker does not log: bytes that it could not read as a request and never answered."""
    used = witnessed.frame(
        "SELECT api_key, api_version, sum(exchanges) AS exchanges FROM api_versions_used GROUP BY api_key, api_version"
    )
    counted = Counter(dict(zip(zip(used.api_key, used.api_version), used.exchanges)))
    unreadable = witnessed.frame(
        "SELECT x.api_key, x.api_version FROM unanswered AS u JOIN exchanges AS x USING (connection, exchange) "
        "WHERE x.request_state = 'undecoded'"
    )
    if len(unreadable):
        counted -= Counter(zip(unreadable.api_key, unreadable.api_version))
    assert counted == Counter(zip(witnessed.log.api_key, witnessed.log.api_version))
    by_api = witnessed.frame("SELECT sum(exchanges) AS exchanges FROM latency_by_api")
    assert by_api.exchanges[0] == len(witnessed.log) + len(unreadable)


def test_error_codes_by_api(witnessed: Witnessed) -> None:
    viewed = witnessed.frame(
        "SELECT k.api_key, e.error_code, e.exchanges FROM errors_by_api AS e JOIN "
        "(SELECT DISTINCT api_key, api FROM kafka_releases) AS k ON k.api = e.api"
    )
    counted = dict(zip(zip(viewed.api_key, viewed.error_code), viewed.exchanges))
    long = witnessed.log.explode("codes").dropna(subset=["codes"])
    assert counted == Counter(zip(long.api_key, long.codes))


@pytest.mark.parametrize("witnessed", GROUPS, indirect=True)
def test_latency_is_what_the_broker_took(witnessed: Witnessed) -> None:
    """Within 2 ms or 5 % of totalTimeMs for 95 of 100 exchanges."""
    exchanges = witnessed.frame(
        "SELECT concat(client_ip, ':', client_port) AS client, api_key, api_version, correlation_id, latency_us "
        "FROM exchanges WHERE latency_us IS NOT NULL"
    )
    keys = ["client", "api_key", "api_version", "correlation_id"]
    pairs = witnessed.log.drop_duplicates(keys, keep=False).merge(exchanges.drop_duplicates(keys, keep=False), on=keys)
    assert len(pairs) >= 0.99 * len(witnessed.log)
    apart = (pairs.latency_us / 1000 - pairs.total_ms).abs()
    within = (apart <= 2) | (apart <= 0.05 * pairs.total_ms)
    assert within.mean() >= 0.95
    # The view's median of a busy API is the log's, to the same closeness.
    slow = pairs[pairs.api_key == 1]
    median = witnessed.frame("SELECT p50_us FROM latency_by_api WHERE api = 'Fetch'").p50_us[0] / 1000
    assert abs(median - (slow.total_ms - slow.remote_ms).median()) <= 2
