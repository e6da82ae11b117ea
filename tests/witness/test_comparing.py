"""The judge itself is judged: a comparison that cannot fail proves nothing."""

from __future__ import annotations

import base64
import copy
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shared import SAMPLES, capture_files
from tests.witness import engine, reference, requestlog
from tests.witness.comparing import SECRETS, differences, expected, paired, renamed
from tests.witness.reference import Exchange
from tests.witness.requestlog import Logged
from tests.witness.test_witness import Case, judge, load

CLIENT, BROKER = ("127.0.0.1", 40000), ("127.0.0.1", 9092)


def line(key: int = 3, time: float = 10.0, correlation_id: int = 1, **bodies: Any) -> Logged:
    return Logged(time, 1.0, key, 0, correlation_id, "c", CLIENT, BROKER, False, **bodies)


def exchange(key: int = 3, time: float = 10.0, correlation_id: int = 1, **rest: Any) -> Exchange:
    at = round(time * 1e9)
    return Exchange("", CLIENT, BROKER, 0, 0, key, 0, correlation_id, "c", request_time=at, status="answered", **rest)


# ------------------------------------------------------------------------------------------------------------- bodies

BODY: dict[str, Any] = {"topics": [{"name": "a", "partitions": [{"index": 1, "ok": True, "note": None}]}], "left": 0.5}
CHANGES: dict[str, Any] = {
    "a value": lambda body: body["topics"][0].update(name="b"),
    "a value deep inside": lambda body: body["topics"][0]["partitions"][0].update(index=2),
    "a type that Python holds equal": lambda body: body["topics"][0]["partitions"][0].update(ok=1),
    "null for nothing": lambda body: body["topics"][0]["partitions"][0].pop("note"),
    "a field too many": lambda body: body["topics"][0].update(more=1),
    "a field missing": lambda body: body.pop("left"),
    "an element too many": lambda body: body["topics"].append(body["topics"][0]),
    "an element missing": lambda body: body["topics"][0].update(partitions=[]),
    "null for an array": lambda body: body.update(topics=None),
    "text for a number": lambda body: body.update(left="0.5"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_difference_is_seen(change: str) -> None:
    read = copy.deepcopy(BODY)
    assert not differences(line(response=BODY), "response", read, secrets_shown=True)
    CHANGES[change](read)
    (difference,) = differences(line(response=BODY), "response", read, secrets_shown=True)
    assert difference.path


def test_every_field_of_a_real_capture_counts() -> None:
    """Change any one leaf of any body in a sample, and the comparison says so."""
    case = load(SAMPLES / "admin-kafkapython-3.9")
    pairs = list(paired(case.wanted, case.log, reference.exchanges(capture_files(case.folder), case.ports)))
    changed = 0
    for logged, read in pairs:
        assert read is not None
        for side, body in (("request", read.request), ("response", read.response)):
            assert body is not None
            for path in leaves(body):
                other = copy.deepcopy(body)
                spoil(other, path)
                assert differences(logged, side, other, secrets_shown=True), (logged.api_key, side, path)
                changed += 1
    assert changed > 1000


def leaves(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(body, dict):
        for name, value in body.items():
            yield from leaves(value, (*path, name))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            yield from leaves(value, (*path, index))
    else:
        yield path


def spoil(body: Any, path: tuple[Any, ...]) -> None:
    for step in path[:-1]:
        body = body[step]
    value = body[path[-1]]
    body[path[-1]] = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}?"


def test_names_that_kafka_changed_are_changed_where_they_stand_and_nowhere_else() -> None:
    logged = {"name": "x", "topics": [{"name": "t", "partitions": [{"currentIsrVersion": 3}]}]}
    now = {"name": "x", "topics": [{"topicName": "t", "partitions": [{"partitionEpoch": 3}]}]}
    assert renamed(logged, 56, "request") == now
    assert renamed(logged, 57, "request") == logged


@pytest.mark.parametrize(("api_key", "side", "path"), sorted(SECRETS))
def test_a_secret_must_be_its_length_and_nothing_of_itself(api_key: int, side: str, path: str) -> None:
    secret = base64.b64encode(b"s" * 37).decode()

    def body(value: Any) -> dict[str, Any]:
        *outer, name = path.split(".")
        return {outer[0]: [{name: value}]} if outer else {name: value}

    logged = line(api_key, request=body(secret), response=body(secret))
    assert not differences(logged, side, body(secret), secrets_shown=True)
    assert not differences(logged, side, body("(37 bytes)"), secrets_shown=False)
    assert differences(logged, side, body(secret), secrets_shown=False)
    assert differences(logged, side, body("(36 bytes)"), secrets_shown=False)
    assert differences(logged, side, body(None), secrets_shown=False)


def test_share_fetch_records_are_the_only_field_left_out() -> None:
    def body(name: str, value: Any, more: int) -> dict[str, Any]:
        return {"responses": [{"partitions": [{name: value, "errorCode": more}]}]}

    logged = line(78, response=body("records", "", 0))
    assert not differences(logged, "response", body("recordsSizeInBytes", 9, 0), secrets_shown=True)
    assert differences(logged, "response", body("recordsSizeInBytes", 9, 1), secrets_shown=True)
    assert differences(logged, "response", body("recordsSizeInBytes", None, 0), secrets_shown=True)


# --------------------------------------------------------------------------------------------------------------- pairs


def test_repeated_correlation_ids_pair_in_order() -> None:
    log = [line(time=time) for time in (10.0, 11.0, 12.0)]
    read = [exchange(time=time) for time in (9.9, 10.9, 11.9)]
    assert [(logged.time, other.request_time) for logged, other in paired(log, log, read) if other] == [
        (10.0, 9_900_000_000),
        (11.0, 10_900_000_000),
        (12.0, 11_900_000_000),
    ]


def test_where_the_log_has_more_the_nearest_in_time_is_taken_once() -> None:
    log = [line(time=time) for time in (1.0, 10.0, 11.0)]
    read = [exchange(time=time) for time in (9.9, 10.9)]
    assert [other and other.request_time for _, other in paired(log[1:], log, read)] == [9_900_000_000, 10_900_000_000]
    assert [other is None for _, other in paired(log, log, read)].count(True) == 1


@pytest.mark.parametrize("name", ["api_key", "api_version", "correlation_id", "client_id", "client"])
def test_what_differs_in_its_key_is_missing(name: str) -> None:
    other = exchange()
    setattr(other, name, ("127.0.0.1", 1) if name == "client" else "?" if name == "client_id" else 77)
    log = [line()]
    assert [match for _, match in paired(log, log, [exchange()])] != [None]
    assert [match for _, match in paired(log, log, [other])] == [None]


def test_the_window_leaves_out_edges_other_ports_and_forwarded_lines() -> None:
    forwarded = Logged(10, 0, 3, 0, 1, "c", CLIENT, BROKER, True)
    elsewhere = Logged(10, 0, 3, 0, 1, "c", CLIENT, ("127.0.0.1", 9093), False)
    lines = [line(time=time) for time in (0.04, 0.06, 19.94, 19.96)]
    assert expected([*lines, forwarded, elsewhere], {9092}, 0.0, 20.0) == lines[1:3]
    # In mid-stream a request must have arrived inside, too: this one took 1 ms and came before the window.
    assert expected([line(time=0.0505)], {9092}, 0.0, 20.0)
    assert not expected([line(time=0.0505)], {9092}, 0.0, 20.0, midstream=True)


# ---------------------------------------------------------------------------------------------------------- the verdict


@pytest.fixture(scope="module")
def sample() -> tuple[Case, list[Exchange]]:
    case = load(SAMPLES / "client-kafkajs-3.9")
    return case, list(reference.exchanges(capture_files(case.folder), case.ports))


def wanted_exchange(case: Case, exchanges: list[Exchange]) -> Exchange:
    wanted = next(other for _, other in paired(case.wanted, case.log, exchanges) if other and other.response)
    assert wanted is not None
    return wanted


def test_a_lost_exchange_fails(sample: tuple[Case, list[Exchange]]) -> None:
    case, exchanges = sample
    assert judge(case, exchanges, True) > 100
    lost = wanted_exchange(case, exchanges)
    with pytest.raises(AssertionError, match="not there"):
        judge(case, [other for other in exchanges if other is not lost], True)


def test_an_exchange_seen_twice_fails(sample: tuple[Case, list[Exchange]]) -> None:
    case, exchanges = sample
    with pytest.raises(AssertionError, match="more exchanges"):
        judge(case, [*exchanges, wanted_exchange(case, exchanges)], True)


def test_a_body_left_out_fails(sample: tuple[Case, list[Exchange]]) -> None:
    case, exchanges = sample
    for side in ("request", "response"):
        wanted = wanted_exchange(case, exchanges)
        blank = copy.copy(wanted)
        setattr(blank, side, None)
        with pytest.raises(AssertionError, match=r"not decoded|not whole"):
            judge(case, [blank if other is wanted else other for other in exchanges], True)


def test_one_wrong_value_fails(sample: tuple[Case, list[Exchange]]) -> None:
    case, exchanges = sample
    wanted = wanted_exchange(case, exchanges)
    wrong = copy.deepcopy(wanted)
    assert wrong.response is not None
    spoil(wrong.response, next(leaves(wrong.response)))
    with pytest.raises(AssertionError, match="differences"):
        judge(case, [wrong if other is wanted else other for other in exchanges], True)


# ---------------------------------------------------------------------------------------------------- reading the logs


def test_the_text_formats_of_0_8_and_0_10_are_read(tmp_path: Path) -> None:
    prefix, suffix = "[2026-11-21 02:02:56,856] TRACE Completed request:", " (kafka.request.logger)\n"
    old = " from client /127.0.0.1:44244;totalTime:10,requestQueueTime:0"
    new = " from connection 127.0.0.1:9092-127.0.0.1:40202;totalTime:12,requestQueueTime:2"
    texts = [
        "Name: TopicMetadataRequest; Version: 0; CorrelationId: 1; ClientId: p-1; Topics: t" + old,
        "Name:LeaderAndIsrRequest;Version:0;Controller:1;CorrelationId:7;ClientId:id_1-port_9092;Leaders:x" + old,
        "Name: ControlledShutdownRequest; Version: 0; CorrelationId: 3; BrokerId: 1" + old,
        "{api_key=6,api_version=3,correlation_id=0,client_id=1} -- {x=[{y=1}]}" + new,
        "Name: ControlledShutdownRequest; Version: 1; CorrelationId: 0;ClientId:Some(1); BrokerId: 1" + new,
    ]
    path = tmp_path / "requests.log.gz"
    path.write_bytes(gzip.compress("".join(prefix + text + suffix for text in texts).encode()))
    assert [
        (logged.api_key, logged.api_version, logged.correlation_id, logged.client_id)
        for logged in requestlog.lines(path)
    ] == [
        (3, 0, 1, "p-1"),
        (4, 0, 7, "id_1-port_9092"),
        (7, 0, 3, None),
        (6, 3, 0, "1"),
        (7, 1, 0, "1"),
    ]
    read = list(requestlog.lines(path))
    assert [logged.client for logged in read] == [("127.0.0.1", 44244)] * 3 + [("127.0.0.1", 40202)] * 2
    assert [logged.broker for logged in read] == [None] * 3 + [BROKER] * 2
    assert [logged.total_ms for logged in read] == [10, 10, 10, 12, 12]
    assert read[0].time == 1795226576.856


def test_a_line_that_is_not_understood_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "requests.log.gz"
    path.write_bytes(gzip.compress(b"[2026-11-21 02:02:56,856] TRACE Completed request:??? (kafka.request.logger)\n"))
    with pytest.raises(ValueError, match="no connection"):
        list(requestlog.lines(path))
    path.write_bytes(gzip.compress(b"something else\n"))
    with pytest.raises(ValueError, match="not a line"):
        list(requestlog.lines(path))


def test_ends_of_connections_are_read_with_ipv6_as_java_writes_it() -> None:
    assert requestlog.connection_ends("127.0.0.1:9092-127.0.0.1:38776-2-5") == (BROKER, ("127.0.0.1", 38776))
    six = "0:0:0:0:0:0:0:1"
    assert requestlog.connection_ends(f"{six}:9093-{six}:54210-1-0") == (("::1", 9093), ("::1", 54210))


def test_times_keep_their_microseconds() -> None:
    assert engine.nanoseconds("2026-11-21T02:02:56.000001Z") == 1795226576_000001000
    assert engine.nanoseconds(None) is None
