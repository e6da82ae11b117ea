"""Traffic is replayed while it is captured: each request as soon as it has its answer, and nothing is known before.

Proves: replay/live_traffic.py, replay/windowed.py, replay/sending.py, replay/request.py
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.dataset import dataset
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys
from kwire.captures.errors import KwireError
from kwire.replay import inputs, pace, run
from kwire.replay import live_traffic as live_module
from kwire.replay.live_traffic import LiveSource
from kwire.replay.options import Options
from kwire.replay.plan.sessions import CapturedExchange
from kwire.replay.send import link, seeding
from kwire.replay.send.same_cluster import SameClusterError
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.replay.conversation import Captured
from tests.replay.shop import ORDERS, PAYMENTS, Shop, captured
from tests.replay.test_commands import CAPTURE, SECONDS, kwire, refused, sinking
from tests.replay.test_windowed import produced_by, rows
from tests.shared import KWIRE, ROOT, SAMPLES

COLUMNS = ("connection", "exchange", "action", "verdict", "rule")


def in_order_of_answers(some: list[Captured], broker: str = "10.0.0.9") -> list[CapturedExchange]:
    """As stdin tells them: each when it has ended."""
    every = [request for each in some for request in each.requests]
    every.sort(key=lambda exchange: (exchange.answered_ns or exchange.sent_ns, exchange.sent_ns))
    return [
        CapturedExchange(
            {**exchange.row, "broker_ip": broker, "broker_port": 9092, "response_end": exchange.row["request_time"]},
            exchange.data,
            exchange.answer,
            None,
        )
        for exchange in every
    ]


def begun(exchanges: Callable[[], Iterator[CapturedExchange]] | list[CapturedExchange]) -> LiveSource:
    live = LiveSource(exchanges if callable(exchanges) else lambda: iter(exchanges))
    assert live.begin()
    return live


def at(shop: Shop, live: LiveSource, out: Path, notes: list[str] | None = None, **options: Any) -> run.Result:
    wanted = Options(shop.host, 9092, settings=Settings(speed=None), audit=False)
    wanted = dataclasses.replace(wanted, **{"yes": True, **options})
    return asyncio.run(run.replay(live, wanted, shop.dial, out, [] if notes is None else notes))


def test_a_live_flow_and_sessions_come_to_the_same_outcomes(tmp_path: Path) -> None:
    captures = produced_by(3)
    wanted = Options("127.0.0.1", 0, settings=Settings(speed=None), yes=True, missing_topics_ok=True, audit=False)
    with sinking() as port:
        wanted = dataclasses.replace(wanted, port=port)
        live = begun(in_order_of_answers(captures))
        asyncio.run(run.replay(live, wanted, link.tcp(), tmp_path / "live", []))
        asyncio.run(
            run.replay(
                MemorySource([capture.session() for capture in captures]), wanted, link.tcp(), tmp_path / "whole", []
            )
        )
    assert rows(tmp_path / "live", "outcomes", *COLUMNS) == rows(tmp_path / "whole", "outcomes", *COLUMNS)
    columns = ("capture", "connection", "exchange", "reply", "direction")
    assert rows(tmp_path / "live", "messages", *columns) == rows(tmp_path / "whole", "messages", *columns)


def test_a_conversation_of_groups_and_transactions_is_replayed_live(tmp_path: Path) -> None:
    notes: list[str] = []
    every = in_order_of_answers(captured())
    result = at(Shop(), begun(every), tmp_path / "run", notes)
    assert result.valid, result
    assert result.counts.verdicts == {"answered": len(every)}
    assert notes == [
        "nothing was looked at before: topics were checked when they were met, and members that had joined before "
        "were not joined"
    ]


def test_what_is_captured_is_sent_before_more_is_captured(tmp_path: Path) -> None:
    """The source goes on only when the target has what it told before."""
    sent = threading.Event()

    class Watched(Shop):
        def answer(self, key: int, body: Any) -> Any:
            if key == api_keys.PRODUCE:
                sent.set()
            return super().answer(key, body)

    every = in_order_of_answers(captured())
    first = next(number for number, exchange in enumerate(every) if exchange.row["api_key"] == api_keys.PRODUCE) + 1
    waited: list[bool] = []

    def exchanges() -> Iterator[CapturedExchange]:
        yield from every[:first]
        waited.append(sent.wait(60))
        yield from every[first:]

    result = at(Watched(), begun(exchanges), tmp_path / "run")
    assert waited == [True]
    assert result.valid
    assert result.counts.total == len(every)


def test_topics_are_checked_when_they_are_met(tmp_path: Path) -> None:
    every = in_order_of_answers(captured())
    with pytest.raises(seeding.TooFewPartitionsError, match="orders has 1 partitions, the captured one 2"):
        at(Shop(partitions=1), begun(every), tmp_path / "few")
    assert not (tmp_path / "few").exists()
    shop = Shop()
    at(shop, begun(every), tmp_path / "once")
    with pytest.raises(seeding.NotEmptyError, match=ORDERS):
        at(shop, begun(every), tmp_path / "twice", yes=False)


def test_what_is_wrong_with_a_topic_that_is_met_later_ends_the_run_with_what_was_done(tmp_path: Path) -> None:
    every = in_order_of_answers(captured())
    shop = Shop()
    written = [exchange for exchange in every if PAYMENTS.encode() in (exchange.data or b"")]
    at(shop, begun(written), tmp_path / "before")
    first = next(number for number, exchange in enumerate(every) if PAYMENTS.encode() in (exchange.data or b""))
    gate = threading.Event()

    def exchanges() -> Iterator[CapturedExchange]:
        yield from every[:first]
        gate.wait(1.0)  # so that the rest is another window
        yield from every[first:]

    result = at(shop, begun(exchanges), tmp_path / "run", yes=False)
    assert result.failure is not None
    assert f"{PAYMENTS} is not empty" in str(result.failure)
    assert not result.valid
    assert result.counts.total == len(every)
    assert result.counts.actions["sent"] >= first - 1
    assert result.counts.actions["not_sent"] > 0
    assert len(rows(tmp_path / "run", "outcomes", *COLUMNS)) == len(every)


def test_what_is_sent_is_captured_and_not_sent_again(tmp_path: Path) -> None:
    """A capture of all interfaces has the replay's own connections in it, which say whatever the target says."""
    client_exchanges = in_order_of_answers(captured())
    own_exchanges = [  # sent behind the replay's begin, whatever the clock says
        exchange._replace(
            row={
                **exchange.row,
                "connection": f"10.0.0.7:{number}-target:9092#1",
                "exchange": 0,
                "broker_ip": "target",
                "request_time": exchange.row["request_time"].replace(year=2262),
            }
        )
        for number, exchange in enumerate(client_exchanges[:20])
    ]
    notes: list[str] = []
    result = at(Shop(), begun([*client_exchanges, *own_exchanges]), tmp_path / "run", notes)
    assert result.counts.total == len(client_exchanges)
    assert "20 captured requests to the target itself were left out: what is sent is captured" in notes


def test_the_captured_cluster_is_told_before_anything_is_sent_to_it(tmp_path: Path) -> None:
    every = in_order_of_answers(captured())
    shop = Shop(cluster="shop-1")
    with pytest.raises(SameClusterError, match="its cluster id is shop-1"):
        at(shop, begun(every), tmp_path / "run")
    assert not shop.produced
    assert at(shop, begun(every), tmp_path / "asked", same_cluster=True).valid


def test_topics_get_their_prefix_when_they_are_met(tmp_path: Path) -> None:
    shop = Shop()
    result = at(
        shop, begun(in_order_of_answers(captured())), tmp_path / "run", prefix_topics="shadow.", missing_topics_ok=True
    )
    map_topic = dataset.open_dataset(tmp_path / "run").manifest["replay"]["map_topic"]
    assert map_topic == {ORDERS: f"shadow.{ORDERS}", PAYMENTS: f"shadow.{PAYMENTS}"}
    assert result.counts.verdicts["answered"]
    assert shop.produced == 0, "this shop has no topics of these names"


def test_nothing_to_replay_is_told(tmp_path: Path) -> None:
    assert not LiveSource(lambda: iter(())).begin()
    head = (SAMPLES / "codecs-franzgo-4.3" / "capture.pcap").read_bytes()[:24]
    command = [*KWIRE, "replay", "-", "--to", "h:1", "-o", str(tmp_path / "run")]
    process = subprocess.run(command, cwd=ROOT, input=head, capture_output=True, timeout=SECONDS)
    assert process.returncode == 2
    assert process.stderr.decode().startswith("kwire: nothing to replay: -: holds no packet")
    assert "kwire analyze FILE" in process.stderr.decode(), "what came on stdin is gone"


def spoken(*when: tuple[str, float]) -> list[CapturedExchange]:
    """Requests of connections, at times (s)."""
    captures = {name: Captured(f"10.0.0.1:{name}-10.0.0.9:9092#1") for name, _ in when}
    for name, at_s in when:
        captures[name].add(at_s, api_keys.LIST_GROUPS, 0, {}, {"errorCode": 0, "groups": []})
    return in_order_of_answers(list(captures.values()))


def windows_of(live: LiveSource) -> tuple[list[int], list[int], list[int]]:
    """Whose requests come, which sessions are met, and which are over."""
    windows = list(live.windows())
    for window in windows:
        for number in window.over:
            live.forget(number)
    return (
        [number for window in windows for number, _ in window.requests],
        [number for window in windows for number in window.met],
        [number for window in windows for number in window.over],
    )


def test_a_connection_that_is_silent_for_long_is_over_and_met_again_as_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_module, "WINDOW", 1)
    live = begun(spoken(("a", 0.0), ("b", 1.0), ("a", 600.0), ("a", 950.0), ("b", 960.0)))
    # b is over after 15 minutes, a is not: it spoke meanwhile.
    assert windows_of(live) == ([0, 1, 0, 0, 2], [0, 1, 2], [1])
    assert (set(live.open_sessions), set(live.ends)) == ({0, 2}, {0, 1, 2})


def test_no_more_connections_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WINDOW", 1)
    monkeypatch.setattr(live_module, "KNOWN", 3)
    live = begun(spoken(*[(f"{number}", float(number)) for number in range(20)]))
    assert windows_of(live) == (list(range(20)), list(range(20)), list(range(17)))
    assert (set(live.open_sessions), set(live.ends)) == ({17, 18, 19}, set(range(14, 20)))


def test_answers_without_requests_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WAITING", 5)
    (exchange,) = spoken(("a", 0.0))
    orphan = exchange._replace(row={**exchange.row, "exchange": None}, data=None)
    live = begun([*[orphan] * 50, exchange])
    (window, *_) = live.windows()
    assert len(window.orphans) == 4
    assert live.unasked == 46
    assert "46 answers came before the first request" in live.notes_at_end()[-1]


def test_a_source_that_is_silent_in_the_end_makes_no_slow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SECONDS", 1.0)
    every = in_order_of_answers(captured())
    span = (every[-1].row["request_time"] - every[0].row["request_time"]).total_seconds()

    def exchanges() -> Iterator[CapturedExchange]:
        yield from every
        time.sleep(span + 2.5)

    result = at(Shop(), begun(exchanges), tmp_path / "run", settings=Settings(speed=1.0))
    assert result.seconds > span + 2.0  # the source was read a little before the clock began
    assert not result.pace.slower, result.pace.text()


def test_what_ends_the_reading_ends_the_replay(tmp_path: Path) -> None:
    every = in_order_of_answers(captured())

    def exchanges() -> Iterator[CapturedExchange]:
        yield from every[:30]
        raise KwireError("the capture is damaged")

    with pytest.raises(KwireError, match="the capture is damaged"):
        at(Shop(), begun(exchanges), tmp_path / "run")


def test_the_command_sends_stdin_and_a_file_as_they_are_read(tmp_path: Path) -> None:
    with sinking() as port:
        where = ("--to", f"127.0.0.1:{port}", "--speed", "max", "--yes", "--missing-topics-ok", "--no-audit")
        whole = kwire("replay", CAPTURE, *where, "-o", tmp_path / "whole")
        read = kwire("replay", CAPTURE, *where, "-o", tmp_path / "read", "--no-survey")
        command = [*KWIRE, "replay", "-", *where, "-o", str(tmp_path / "piped")]
        (file,) = [CAPTURE] if CAPTURE.is_file() else CAPTURE.glob("capture.pcap*")
        piped = subprocess.run(command, cwd=ROOT, input=file.read_bytes(), capture_output=True, timeout=SECONDS)
    assert (read.returncode, piped.returncode) == (whole.returncode,) * 2, piped.stderr.decode() + read.stderr
    for name in ("read", "piped"):
        assert rows(tmp_path / name, "outcomes", *COLUMNS) == rows(tmp_path / "whole", "outcomes", *COLUMNS)
        assert "nothing was looked at before" in dataset.open_dataset(tmp_path / name).manifest["replay"]["notes"][-1]


@pytest.mark.parametrize(
    "other", [("--workers", "2"), ("--times", "2"), ("--loop",), ("--clients", "true"), ("--seed-fetched",)]
)
def test_what_needs_the_whole_capture_does_not_go_with_it(other: tuple[str, ...], tmp_path: Path) -> None:
    line = refused(kwire("replay", CAPTURE, "--to", "h:1", "-o", tmp_path / "run", "--no-survey", *other))
    assert line == f"kwire: --no-survey does not go with {other[0]}"


def test_only_one_capture_point_is_sent_as_it_is_read() -> None:
    with pytest.raises(KwireError, match="one capture point"):
        inputs.open_source(
            [CAPTURE, CAPTURE], Options("h", 1, in_windows=True, survey=False), how=ReadOptions(), notes=[]
        )
