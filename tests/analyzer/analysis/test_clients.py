"""Clients, against a slow count over exchanges, the captures' truth, and forged cases.

(proves: analyzer/analysis/clients.py, analyzer/analysis/combinations.py, analyzer/frame/arrow.py)
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.analysis import clients
from kwire.analyzer.analysis.combinations import combinations, largest, pairs, smallest
from kwire.analyzer.frame import arrow
from kwire.captures.kernels import NULL
from tests.analyzer import forging
from tests.analyzer.analysis.read_modes import every_way, rows
from tests.captures.forge import START_NS, converse, interleaved, pcap, rendered
from tests.shared import SAMPLES, capture_files, shared_folder

NAMES = ("client-kafkajs-3.9", "old-java-0.8.2", "txn-librdkafka-4.3", "sasl-librdkafka-4.3")


def slow(path: Path) -> dict[tuple[str | None, str], dict[str, Any]]:
    """Count clients in plain Python."""
    exchanges = list(analyzer.exchanges(path, partitions=True))
    first: dict[str, str] = {}
    for exchange in exchanges:
        if exchange.client_id:
            first.setdefault(exchange.connection, exchange.client_id)
    by_client: dict[tuple[str | None, str], list[Any]] = defaultdict(list)
    for exchange in exchanges:
        by_client[exchange.client_id or first.get(exchange.connection, exchange.client_id), exchange.client_ip].append(
            exchange
        )
    return {key: slow_row(those) for key, those in by_client.items()}


def slow_row(those: list[Any]) -> dict[str, Any]:
    versions = defaultdict(list)
    for exchange in those:
        if exchange.api_version is not None:
            versions[exchange.api_key, exchange.api].append(exchange.api_version)
    times = [
        time
        for exchange in those
        for time in (exchange.request_time, exchange.request_end, exchange.response_time, exchange.response_end)
    ]
    topics = defaultdict(set)
    for exchange in those:
        for part in exchange.partitions:
            topics[exchange.api].add(exchange.topic_name(part["topic"] or part["topic_id"]))
    return {
        "group_ids": sorted({exchange.group_id for exchange in those if exchange.group_id is not None}),
        "topics_written": sorted(topics["Produce"]),
        "topics_read": sorted(topics["Fetch"] | topics["ShareFetch"]),
        "apis": [
            {"api": api, "min_version": min(used), "max_version": max(used), "exchanges": len(used)}
            for (_, api), used in sorted(versions.items())
        ],
        "connections": len({exchange.connection for exchange in those}),
        "exchanges": len(those),
        "errors": sum(bool(exchange.error_code) for exchange in those),
        "first_time": min(exchange.request_time or exchange.response_time for exchange in those),
        "last_time": max(time for time in times if time is not None),
    }


@pytest.mark.parametrize("name", NAMES)
def test_clients_are_what_a_slow_count_finds(name: str) -> None:
    [path] = capture_files(SAMPLES / name)
    rows = analyzer.analyze(path).clients.to_pylist()
    expected = slow(path)
    assert len(rows) == len(expected)
    for row in rows:
        wanted = expected[row["client_id"], row["client_ip"]]
        assert {name: row[name] for name in wanted} == wanted


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_however_the_capture_is_read(name: str, tmp_path: Path) -> None:
    [path] = capture_files(SAMPLES / name)
    expected = rows(analyzer.analyze(path).tables, ("clients",))
    assert expected["clients"]
    for how, actual in every_way(path, ("clients",), tmp_path):
        assert actual == expected, how


def test_names_are_those_of_logins_that_succeeded() -> None:
    [path] = capture_files(SAMPLES / "sasl-librdkafka-4.3")
    principals = {row["client_id"]: row["principal"] for row in analyzer.analyze(path).clients.to_pylist()}
    assert principals == {
        "lab-admin": "alice",
        "sasl-alice-PLAIN": "alice",
        "sasl-bob-PLAIN": "bob",  # some of its logins had a wrong password
        "sasl-carol-SCRAM-SHA-256": "carol",
        "sasl-carol-SCRAM-SHA-512": "carol",
        "sasl-dave-SCRAM-SHA-256": "dave",
        "sasl-mallory-SCRAM-SHA-256": None,  # unknown to the broker
        "sasl-consumer": "bob",
    }


def test_software_is_what_clients_say_of_themselves() -> None:
    rows = analyzer.analyze(capture_files(shared_folder("group-share-java-4.3"))[0]).clients.to_pylist()
    software = {row["client_id"]: (row["software_name"], row["software_version"]) for row in rows}
    assert software["share-1"] == software["share-2"] == ("apache-kafka-java", "4.3.1")
    assert software["lab-producer"] == ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0")
    read = {row["client_id"]: (row["group_ids"], row["topics_read"], row["topics_written"]) for row in rows}
    assert read["share-1"] == (["shr-g"], ["shr"], [])
    assert read["lab-producer"] == ([], [], ["shr"])


def conversation(port: int, ids: list[str | None], ip: str = "10.0.0.1", start_ns: int = START_NS) -> Any:
    writes = []
    for number, client in enumerate(ids):
        writes += [
            forging.asking(forging.heartbeat(number, client_id=client)),
            forging.answering(forging.heartbeat_answer(number, 25 if client == "b" else 0)),
        ]
    return converse(writes, client=(ip, port), start_ns=start_ns)


def test_what_is_said_before_a_client_id_is_its_too(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    segments = interleaved(
        conversation(5001, [None, None, "a", None, "b", "a"]),
        conversation(5002, ["a"], start_ns=START_NS + 10**9),
        conversation(5003, ["a"], ip="10.0.0.2"),
        conversation(5004, [None, None, None], ip="10.0.0.3"),
        conversation(5005, ["", None, ""], ip="10.0.0.4"),
        conversation(5006, ["", "a"], ip="10.0.0.4"),
    )
    path.write_bytes(pcap(rendered(segments)))
    by_client = {
        (row["client_id"], row["client_ip"]): (row["connections"], row["exchanges"], row["errors"], row["group_ids"])
        for row in analyzer.analyze(path).clients.to_pylist()
    }
    assert by_client == {
        ("a", "10.0.0.1"): (2, 6, 0, ["g"]),
        ("b", "10.0.0.1"): (1, 1, 1, ["g"]),
        ("a", "10.0.0.2"): (1, 1, 0, ["g"]),
        (None, "10.0.0.3"): (1, 3, 0, ["g"]),
        ("", "10.0.0.4"): (1, 3, 0, ["g"]),
        ("a", "10.0.0.4"): (1, 2, 0, ["g"]),
    }
    expected = rows(analyzer.analyze(path).tables, ("clients",))
    for how, ways in every_way(path, ("clients",), tmp_path):
        assert ways == expected, how


def test_clients_beyond_a_limit_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 5)
    path = tmp_path / "capture.pcap"
    ids = [f"client-{number:02}" for number in range(40)]
    segments = interleaved(
        conversation(5001, [*ids, *ids[:7]]), conversation(5002, [*ids[3:], "b"], start_ns=START_NS + 10**9)
    )
    path.write_bytes(pcap(rendered(segments)))
    rows_of_clients = analyzer.analyze(path, window_bytes=1000).clients.to_pylist()
    assert [row["client_id"] for row in rows_of_clients] == [*ids[:5], None]
    rest = rows_of_clients[-1]
    assert (rest["client_ip"], rest["apis"], rest["group_ids"]) == (None, [], [])
    assert rest["exchanges"] == 2 * 35 + 2 + 1
    assert rest["errors"] == 1
    assert sum(row["exchanges"] for row in rows_of_clients) == 47 + 38
    expected = rows(analyzer.analyze(path).tables, ("clients",))
    for how, ways in every_way(path, ("clients",), tmp_path):
        assert [_without_connections(row) for row in ways["clients"]] == [
            _without_connections(row) for row in expected["clients"]
        ], how


def _without_connections(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "connections"}


@pytest.mark.parametrize("few", [0, 2, 8])
def test_names_beyond_a_limit_are_the_last_in_the_alphabet(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_NAMED", 3)
    monkeypatch.setattr(clients, "FEW_NAMES", few)
    for order in itertools.permutations("abcdefg"):
        names: clients.Named = None
        for name in order:
            names = clients._added(clients._added(names, (name,)), {name})
            assert len(names or ()) == len(set(names or ()))
        assert clients._listed(names) == ["a", "b", "c"]


@pytest.mark.parametrize("spread", [3, 10**12])
def test_combinations_are_those_of_plain_python(spread: int) -> None:
    rng = np.random.default_rng(14)
    columns = [rng.integers(-2, 2, 500) * spread for _ in range(3)]
    columns[1][::7] = NULL
    first, place = combinations(*columns)
    tuples = list(zip(*(column.tolist() for column in columns), strict=True))
    expected = {value: tuples.index(value) for value in set(tuples)}
    assert sorted(first.tolist()) == sorted(expected.values())
    assert [tuples[first[which]] for which in place.tolist()] == tuples
    values = rng.integers(0, 1000, 500)
    values[::3] = NULL
    for which, row in enumerate(first.tolist()):
        those = [
            value for value, combination in zip(values.tolist(), tuples, strict=True) if combination == tuples[row]
        ]
        present = [value for value in those if value != NULL] or [NULL]
        assert smallest(values, place, len(first))[which] == min(present)
        assert largest(values, place, len(first))[which] == max(present)


@pytest.mark.parametrize("spread", [1, 10**12])
def test_pairs_are_those_of_plain_python(spread: int) -> None:
    rng = np.random.default_rng(14)
    left, right = rng.integers(0, 9, 500), rng.integers(-3, 3, 500) * spread
    different = list(zip(*(column.tolist() for column in pairs(left, right)), strict=True))
    assert sorted(different) == sorted(set(zip(left.tolist(), right.tolist(), strict=True)))


@pytest.mark.parametrize(
    "few", [[3], range(0, 40, 3), [*range(9), 1 << 40], range(-9, 9, 2), [*range(10), (1 << 12) - 1]]
)
def test_which_are_among_few_is_as_python_has_it(few: list[int]) -> None:
    values = [*range(-20, 50), NULL, (1 << 63) - 1, 1 << 40, (1 << 12) - 1, 1 << 12]
    assert arrow.among(np.array(values), np.array(few)).tolist() == [value in few for value in values]
    narrow = np.arange(-128, 128, dtype=np.int16)
    assert arrow.among(narrow, np.array(few)).tolist() == [value in few for value in narrow.tolist()]
