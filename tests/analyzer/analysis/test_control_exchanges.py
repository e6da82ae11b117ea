"""The few messages whose bodies are kept and decoded for what traffic means."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.analysis import control_exchanges as hearing_of
from kwire.analyzer.analysis.control_exchanges import APIS, ControlExchanges
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame.cells import Row
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def decoded(window_bytes: int, threads: int) -> list[tuple[Any, ...]]:
    [point] = capture_points([str(CAPTURE)], False)
    settings = dataclasses.replace(ReadOptions(threads=threads).settings(APIS), window_bytes=window_bytes)
    control_exchanges = ControlExchanges()
    exchanges: list[tuple[Any, ...]] = []
    for window in Engine(point, settings).windows():
        for piece, those in control_exchanges.pieces(window):
            for control in those:
                exchange = control.exchange
                key = exchange.connection, exchange.exchange, exchange.reply
                exchanges.append((control.place, *key, exchange.request, exchange.response, exchange.partitions))
                assert piece.every.column("exchange")[control.row] == exchange.exchange
                # A dict of all cells takes some kilobytes.
                kinds: set[Any] = {type(exchange.row), *map(type, exchange.partitions)}
                assert kinds == {Row}
        window.names.release()
    return exchanges


@pytest.mark.parametrize(("window_bytes", "threads"), [(16 << 20, 1), (4096, 4)])
def test_every_exchange_of_these_apis_comes_with_its_bodies_in_order(window_bytes: int, threads: int) -> None:
    exchanges = decoded(window_bytes, threads)
    expected = {
        (exchange.connection, exchange.exchange, exchange.reply): (
            exchange.request,
            exchange.response,
            exchange.partitions,
        )
        for exchange in analyzer.exchanges(CAPTURE, partitions=True)
        if exchange.api_key in APIS
    }
    assert {exchange[1:4]: exchange[4:] for exchange in exchanges} == expected
    assert len(expected) > 20
    assert [exchange[0] for exchange in exchanges] == sorted(exchange[0] for exchange in exchanges)


def test_a_window_in_which_much_is_heard_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the bodies of one piece none are decoded, nor are messages of the next ones taken."""
    whole = decoded(16 << 20, 1)
    monkeypatch.setattr(hearing_of, "MOST_AT_ONCE", 3)
    assert decoded(16 << 20, 1) == whole
    [point] = capture_points([str(CAPTURE)], False)
    control_exchanges, ended = ControlExchanges(), 0
    for window in Engine(point, ReadOptions(threads=4).settings(APIS)).windows():
        rows = 0
        waiting: list[int] = []
        for piece, those in control_exchanges.pieces(window):
            assert len(those) <= 3
            assert (
                piece.every.column("completed_by").tolist()
                == window.every.column("completed_by").tolist()[rows : rows + len(piece.every)]
            )
            rows += len(piece.every)
            ended += len(piece.connections)
            messages = control_exchanges._messages
            waiting.append(len(messages._requests) + len(messages._responses))
        assert rows == len(window.every)
        assert max(waiting, default=0) < 20
    assert ended


def test_what_a_listener_learns_does_not_depend_on_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = analyzer.analyze(CAPTURE)
    monkeypatch.setattr(hearing_of, "MOST_AT_ONCE", 1)
    dataset = analyzer.analyze(CAPTURE)
    assert {name: dataset.tables[name].to_pylist() for name in tables.MEANING} == {
        name: whole.tables[name].to_pylist() for name in tables.MEANING
    }


def test_nothing_else_is_kept() -> None:
    [point] = capture_points([str(CAPTURE)], False)
    api_keys = {
        message.api_key
        for window in Engine(point, ReadOptions().settings(APIS)).windows()
        for message in window.messages()
    }
    assert api_keys <= APIS
    assert api_keys


def test_datasets_say_whether_their_meaning_was_worked_out() -> None:
    for options, meaning in (({}, True), ({"meaning": False}, False), ({"filter": "api == Fetch"}, False)):
        dataset = analyzer.analyze(CAPTURE, **options)
        assert [capture["meaning"] for capture in dataset.captures] == [meaning]
        assert {name for name in tables.MEANING if name not in dataset.tables} == set()
