"""Verdicts: none is bad on a clean capture, and each that is bad names who and what. Proves `page/health.py`, and the
views and questions that it judges by.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import analyzer
from reports.embedded import engine
from reports.page.health import Statement
from reports.page.report import make
from tests.reports.forging import Forged, at
from tests.shared import SAMPLES, capture_files, real_folder, sample_folders, shared_folders

FAULTY = (
    "errors-", "net-lossy-", "snaplen-", "midstream-", "sasl-", "admin-", "group-", "cluster-", "tls13-",
    "old-librdkafka-1.3.0-on-3.9", "zoo-kafka-python-1.0.2-on-0.9",
)  # fmt: skip
"""Captures of something that went wrong, of what only admins do, or of which something is missing."""

CLEAN = sorted(
    {folder.name for folder in (*sample_folders(), *shared_folders())
     if not folder.name.startswith(FAULTY) and "-mock-" not in folder.name}
)  # fmt: skip


def statements(*datasets: Path) -> list[Statement]:
    with engine.opened(datasets) as embedded:
        return list(make(embedded, ("it",), None, "1").statements)


def of_capture(name: str, folder: Path) -> list[Statement]:
    files = [str(path) for path in capture_files(real_folder(name))]
    analyzer.analyze(files, out=folder / name, rotated=len(files) > 1)
    return statements(folder / name)


def texts(stated: list[Statement], subject: str, verdict: str) -> list[str]:
    return [one.text for one in stated if (one.subject, one.verdict) == (subject, verdict)]


@pytest.mark.parametrize("name", CLEAN)
def test_no_verdict_on_a_clean_capture_is_bad(name: str, tmp_path: Path) -> None:
    assert [one for one in of_capture(name, tmp_path) if one.verdict == "bad"] == []


def test_the_samples_hold_clean_captures() -> None:
    assert sum((SAMPLES / name).is_dir() for name in CLEAN) >= 4


def test_faults_name_client_error_api_topic_count_and_time(tmp_path: Path) -> None:
    bad = texts(of_capture("errors-librdkafka-4.3", tmp_path), "Errors", "bad")
    nope = next(text for text in bad if "topic nope" in text)
    assert nope.startswith(
        "lab-err-producer (127.0.0.1) got UNKNOWN_TOPIC_OR_PARTITION (3) to Metadata for topic nope 15 times, 02:00:20 "
        "to 02:00:26; no good answer came after."
    )
    assert any("MESSAGE_TOO_LARGE (10) to Produce for topic err (1 partition) 1 time" in text for text in bad)


def test_refused_logins_name_client_mechanism_and_broker(tmp_path: Path) -> None:
    stated = of_capture("sasl-librdkafka-4.3", tmp_path)
    mallory = next(text for text in texts(stated, "Logins", "bad") if "mallory" in text)
    assert mallory == (
        "127.0.0.1:9095 refused sasl-mallory-SCRAM-SHA-256 (127.0.0.1) by SCRAM-SHA-256 11 times "
        "(SASL_AUTHENTICATION_FAILED), 01:55:01 to 01:55:06; none succeeded after."
    )
    # Logins are told once.
    assert not any("SaslAuthenticate" in text for text in texts(stated, "Errors", "bad"))


def test_waiting_behind_own_requests_is_not_the_brokers_latency(tmp_path: Path) -> None:
    stated = of_capture("cluster-kraft-3.9", tmp_path)
    # The largest latencies of a killed leader's partitions are seconds: with the queue in them this was "bad".
    latency = [one for one in stated if one.subject == "Latency"]
    assert latency
    assert not any(one.verdict == "bad" for one in latency)
    assert any("lab-producer (127.0.0.1) waits for Produce" in text for text in texts(stated, "Queues", "note"))
    assert any(
        "NOT_ENOUGH_REPLICAS (19) to Produce for topic rep" in text for text in texts(stated, "Errors", "bad")
    )


@pytest.mark.parametrize(
    ("seconds", "answers", "good", "bad"),
    [
        (4, 3, False, False),  # too short to tell
        (6, 3, False, True),
        (6, 3, True, False),  # it passed
        (2, 12, False, True),  # many in a short time
        (0.5, 12, False, False),
    ],
)
def test_what_passes_by_itself_is_a_fault_only_if_it_lasts(
    forged: Forged, seconds: float, answers: int, good: bool, bad: bool
) -> None:
    for number in range(answers):
        forged.exchange("Metadata", second=seconds * number / (answers - 1), topics=["new"],
                        error="UNKNOWN_TOPIC_OR_PARTITION")  # fmt: skip
    if good:
        # On another connection: what counts is the client.
        forged.exchange("Metadata", second=seconds + 1, topics=["new"], connection="10.0.0.1:5001-10.0.0.9:9092#1")
    stated = statements(forged.write())
    assert bool(texts(stated, "Errors", "bad")) is bad


def test_somebody_elses_good_answer_clears_nothing(forged: Forged) -> None:
    for number in range(3):
        forged.exchange("Metadata", second=3 * number, topics=["new"], error="UNKNOWN_TOPIC_OR_PARTITION")
    forged.exchange("Metadata", second=20, topics=["new"], client_id="other")
    forged.exchange("Metadata", second=20, topics=["old"])
    (text,) = texts(statements(forged.write()), "Errors", "bad")
    assert text.startswith("app (10.0.0.1) got UNKNOWN_TOPIC_OR_PARTITION (3) to Metadata for topic new 3 times")


def test_a_slow_broker_is_named_with_its_api(forged: Forged) -> None:
    for number in range(200):
        forged.exchange("Produce", latency_ms=1500 if number % 20 == 0 else 2, second=number)
        forged.exchange("Metadata", latency_ms=9000, queue_us=8_999_000, second=number)
    (text,) = texts(statements(forged.write()), "Latency", "bad")
    assert text.startswith("10.0.0.9:9092 takes 1.50 s or more for one in a hundred of 200 Produce requests")


def test_a_consumer_that_falls_behind_is_named(forged: Forged) -> None:
    for step in range(20):
        forged.exchange("Fetch", second=10 * step, topics=["orders"])
        forged.add("partitions", exchange=step, topic="orders", partition=3, error_code=0, lag=4000 * step,
                   offset_kind="fetch", offset=step)  # fmt: skip
    (text,) = texts(statements(forged.write()), "Lag", "look")
    assert text.startswith("app (10.0.0.1) falls behind on orders-3: from 0 to 76,000 offsets, 03:04:05 to 03:07:15")


def test_a_client_that_connects_again_and_again_is_named(forged: Forged) -> None:
    for number in range(40):
        forged.connection(connection=f"10.0.0.1:{number}-10.0.0.9:9092#1", first_time=at(number),
                          last_time=at(number + 1))  # fmt: skip
    (text,) = texts(statements(forged.write()), "Churn", "look")
    assert text == (
        "app (10.0.0.1) opened 40 connections to 10.0.0.9:9092 in the minute from 03:04:00, "
        "40 of them for less than 5 s."
    )
