"""Metrics, dashboard and alert rules in Prometheus itself: it scrapes, and answers what panels and alerts ask.

Proves: analyzer/live/metrics_server.py

Debian's `prometheus` has both programs; where they are not, these tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.analyzer.live import metrics_server
from kwire.analyzer.live.open_requests import OpenAtBroker
from kwire.analyzer.live.reader_lag import Behind
from tests.analyzer.live.test_metrics import CAPTURES, get, standing_of
from tests.brokers.cluster import free_port
from tests.shared import ROOT

CONTRIB = ROOT / "contrib"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="no Prometheus to judge metrics: Debian's package prometheus has it"
)


def promtool(*arguments: str, text: str = "") -> str:
    """Run promtool; return what it says. It fails where anything is not as Prometheus wants it."""
    done = subprocess.run([str(PROMTOOL), *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """Address of metrics in which each family has samples."""
    standing = standing_of(CAPTURES["codecs-franzgo-4.3"])
    standing.counted.findings["broker-slow", "error"] = 1
    standing = standing._replace(
        open=[OpenAtBroker("b:1", 2, 1, 5, 5, True)], lags={("c", "t"): Behind(1, 90.0)}, packets=1000
    )
    address, end = metrics_server.serve(("127.0.0.1", 0), lambda: standing)
    yield address
    end()


@pytest.fixture(scope="module")
def prometheus(scraped: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped them three times, with the alert rules; yields its address."""
    folder = tmp_path_factory.mktemp("prometheus")
    target = urllib.parse.urlsplit(scraped).netloc
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(CONTRIB / "kwire-alerts.yml")],
        "scrape_configs": [{"job_name": "kwire", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML
    promtool("check", "config", str(folder / "prometheus.yml"))
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(PROMETHEUS),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (
        open(folder / "log", "w", encoding="utf-8") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            until = time.monotonic() + 60
            while query(address, "count_over_time(kwire_capture_packets_total[1m]) >= 3") == []:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """Ask a Prometheus now; empty while it does not answer yet."""
    with contextlib.suppress(ConnectionError, urllib.error.URLError):
        result = json.loads(get(f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        assert result["status"] == "success", result
        vector: list[dict[str, Any]] = result["data"]["result"]
        return vector
    return []


def test_promtool_finds_nothing_to_mend(scraped: str) -> None:
    """Names, units and types follow Prometheus' conventions; the rules are right."""
    assert promtool("check", "metrics", text=get(scraped)) == ""
    assert "7 rules found" in promtool("check", "rules", str(CONTRIB / "kwire-alerts.yml"))


def test_every_panel_shows_something(prometheus: str) -> None:
    dashboard = json.loads((CONTRIB / "grafana-kwire.json").read_text())
    variables = {"$__rate_interval": "1m", "$__range": "1h", "$broker": ".*", "$client_id": ".*", "$api": ".*"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in variables.items():
                expression = expression.replace(name, value)
            assert query(prometheus, expression), (panel["title"], expression)


def test_alerts_are_loaded_and_those_that_hold_are_pending(prometheus: str) -> None:
    until = time.monotonic() + 30
    while True:
        groups = json.loads(get(f"http://{prometheus}/api/v1/rules"))["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        if all(rule["health"] == "ok" for rule in rules.values()) or time.monotonic() > until:
            break
        time.sleep(0.2)
    assert {name: rule.get("lastError", "") for name, rule in rules.items() if rule["health"] != "ok"} == {}
    states = {name: rule["state"] for name, rule in rules.items()}
    assert states["KafkaBrokerStalled"] in ("pending", "firing")
    assert states["KafkaReaderBehind"] == "pending"
    assert states["KwireLosesPackets"] == "inactive"
    summary = rules["KafkaReaderBehind"]["alerts"][0]["annotations"]["summary"]
    assert summary == "c is 1m 30s behind in t"
