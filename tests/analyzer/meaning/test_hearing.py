"""The few messages whose bodies are kept and decoded for what traffic means."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import analyzer
from analyzer import tables
from analyzer.bulk.engine import Engine
from analyzer.cells import Row
from analyzer.meaning.hearing import APIS, Hearing
from analyzer.options import Reading
from captures.files import capture_points
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def heard(window_bytes: int, threads: int) -> list[tuple[Any, ...]]:
    [point] = capture_points([str(CAPTURE)], False)
    settings = dataclasses.replace(Reading(threads=threads).settings(APIS), window_bytes=window_bytes)
    hearing = Hearing()
    found: list[tuple[Any, ...]] = []
    for window in Engine(point, settings).windows():
        for one in hearing.take(window):
            exchange = one.exchange
            key = exchange.connection, exchange.exchange, exchange.reply
            found.append((one.place, *key, exchange.request, exchange.response, exchange.partitions))
            assert window.every.column("exchange")[one.row] == exchange.exchange
            # A dict of all cells takes some kilobytes, and a window has tens of thousands.
            kinds: set[Any] = {type(exchange.row), *map(type, exchange.partitions)}
            assert kinds == {Row}
        window.names.release()
    return found


@pytest.mark.parametrize(("window_bytes", "threads"), [(16 << 20, 1), (4096, 2)])
def test_every_exchange_of_these_apis_comes_with_its_bodies_in_order(window_bytes: int, threads: int) -> None:
    found = heard(window_bytes, threads)
    expected = {
        (one.connection, one.exchange, one.reply): (one.request, one.response, one.partitions)
        for one in analyzer.exchanges(CAPTURE, partitions=True)
        if one.api_key in APIS
    }
    assert {one[1:4]: one[4:] for one in found} == expected
    assert len(expected) > 20
    assert [one[0] for one in found] == sorted(one[0] for one in found)


def test_nothing_else_is_kept() -> None:
    [point] = capture_points([str(CAPTURE)], False)
    kept = {
        message.api_key for window in Engine(point, Reading().settings(APIS)).windows() for message in window.messages()
    }
    assert kept <= APIS
    assert kept


def test_datasets_say_whether_their_meaning_was_worked_out() -> None:
    for options, meaning in (({}, True), ({"meaning": False}, False), ({"filter": "api == Fetch"}, False)):
        dataset = analyzer.analyze(CAPTURE, **options)
        assert [capture["meaning"] for capture in dataset.captures] == [meaning]
        assert {name for name in tables.MEANING if name not in dataset.tables} == set()
