"""Events of TCP below a timeline: when, which connection, how many; and how the page shows them.

Proves: reports/view/tcp_events, tcp_packets, page (timeline.js)
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.reports.view.tables import format_key
from tests.analyzer.forging import produce, produce_answer
from tests.captures.forge import ACK, START_NS, TO_BROKER, TO_CLIENT, duplicated, interleaved, pcap, rendered
from tests.captures.talk import Talk
from tests.reports.view.browsing import Look, launched
from tests.reports.view.conftest import Asking, served, viewed
from tests.shared import SAMPLES

START = START_NS // 1000


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Two connections: one on which a request is sent again, both ends run out of room, and the broker resets; one with
    a segment that came late, and a keep-alive. Half of the packets are captured twice."""
    bad, good = Talk(), Talk(client=("10.0.0.1", 40001))
    for wire, at in ((bad, 0), (good, 0.05)):
        wire.open(at)
        for number in range(3):
            wire.exchange(at + 0.1 + number / 10, produce(number), produce_answer(number))
    place = bad.send(TO_BROKER, 1, produce(7))
    for at in (1.2, 1.6, 2.4):
        bad.again(TO_BROKER, at, place, produce(7))
    bad.ack(TO_BROKER, 2.5)
    for at, to_broker in ((3, TO_CLIENT), (3.5, TO_BROKER)):
        bad.packet(to_broker, at, ACK, bad.sent[to_broker])
        bad.seen[-1] = replace(bad.seen[-1], window=0)
    bad.reset(False, 9)
    good.exchange(1.1, produce(7), produce_answer(7))
    first, second = produce(8)[:20], produce(8)[20:]
    place = good.send(TO_BROKER, 2, first, captured=False)
    good.send(TO_BROKER, 2.0001, second)
    good.again(TO_BROKER, 2.0002, place, first)
    good.ack(TO_BROKER, 2.0003)
    good.send(TO_CLIENT, 2.1, produce_answer(8))
    good.ack(TO_CLIENT, 2.1001)
    good.packet(TO_BROKER, 8, ACK, good.sent[TO_BROKER] - 1, b"\0")
    good.ack(TO_BROKER, 8.0001)
    records = duplicated(rendered(interleaved(bad.seen, good.seen)), random.Random(1), 0.5)
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(records, nanoseconds=True))
    return path


@pytest.fixture
def asking(capture: Path) -> Iterator[Asking]:
    with contextlib.ExitStack() as stack:
        yield Asking(viewed(stack, capture))


def lanes(asking: Asking, text: str = "", **span: int) -> dict[str, Any]:
    answer = asking("tcp", filter=text, **{"first": START, "step": 100_000, "columns": 100, **span})
    return {"answer": answer} | {lane["kind"]: lane for lane in answer["lanes"]}


def test_events_have_their_time_kind_and_connection(asking: Asking) -> None:
    shown = lanes(asking)
    assert shown["retransmission"]["column"] == [12, 16, 24]
    assert shown["zero window"]["column"] == [30, 35]
    assert shown["reset"]["column"] == [90]
    answer = shown["answer"]
    assert {answer["links"][lane["link"][0]][1] for lane in answer["lanes"]} == {"10.0.0.1:40000-10.0.0.2:9092#1"}
    assert (answer["first"] - START, answer["last"] - START) == (1_200_000, 9_000_000)
    assert answer["known"] is True


def test_an_interval_counts_its_events(asking: Asking) -> None:
    again = lanes(asking, step=2_000_000, columns=5)["retransmission"]
    assert (again["column"], again["count"], again["of"], again["total"]) == ([0, 1], [2, 1], [1, 1], 3)
    assert lanes(asking, first=START + 5_000_000, columns=10)["answer"]["lanes"] == []


def test_a_filter_chooses_connections_by_their_exchanges(asking: Asking) -> None:
    bad = lanes(asking, "client_port == 40000")["answer"]
    assert [lane["total"] for lane in bad["lanes"]] == [3, 2, 1]
    assert asking("rows", filter=bad["filters"][0], count=0)["total"] == 4
    assert lanes(asking, "client_port == 40001")["answer"]["lanes"] == []


def test_without_the_capture_they_are_not_known(asking: Asking, capture: Path, tmp_path: Path) -> None:
    analyzer.analyze(capture, tmp_path / "data")
    capture.unlink()
    with contextlib.ExitStack() as stack:
        answer = lanes(Asking(viewed(stack, tmp_path / "data")))["answer"]
    assert (answer["known"], answer["lanes"]) == (False, [])


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*/capture.pcap")), ids=lambda path: path.parent.name)
def test_there_are_as_many_as_the_table_counts(path: Path) -> None:
    counts_agree(path)


def test_there_are_as_many_as_the_table_counts_in_a_lossy_capture(capture: Path) -> None:
    assert counts_agree(capture) == {"retransmission": 3, "zero window": 2, "reset": 1}


def counts_agree(path: Path) -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        view = viewed(stack, path)
        events, rows = view.tcp.read(), view.tables.other("connections")
    assert events is not None
    counts = Counter((events.links[link], kind) for link, kind in zip(events.link.tolist(), events.kinds.tolist()))
    for row in rows:
        link = row["capture"], row["connection"]
        assert (counts[link, 0], counts[link, 1]) == (row["retransmissions"], row["zero_windows"]), link
        assert bool(counts[link, 2]) == (row["closed"] == "rst"), link
    return {lane["kind"]: lane["total"] for lane in events.lanes(0, 1 << 62, 1)}


def test_waits_are_those_of_the_exchange(txn: Asking) -> None:
    """`hold_us` is hatched, or what lies between the broker's bounds."""
    answer = txn("timeline", width=4000)
    held = unsure = 0
    for track in answer["tracks"]:
        for place, link in enumerate(track["link"]):
            reply = track["reply"][place]
            capture, connection = answer["links"][link]
            key = format_key((capture, connection, track["exchange"][place], None if reply < 0 else reply))
            row = txn("exchange", key=key)["row"]
            hold, low, high = (track[name][place] for name in ("hold", "low", "high"))
            assert hold == (-1 if row["hold_us"] is None else row["hold_us"])
            assert (low, high) == ((row["broker_low_us"], row["broker_high_us"]) if hold < 0 <= low else (-1, -1))
            assert track["queue"][place] == (row["queue_us"] or 0) + (row["muted_us"] or 0)
            held, unsure = held + (hold > 0), unsure + (high > low)
    assert held > 0
    assert unsure > 0


def test_lanes_stand_below_the_timeline_and_lead_to_exchanges(capture: Path) -> None:
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(served(viewed(stack, capture)))
        browser = stack.enter_context(launched())
        with Look(browser, place)("above=none&list=timeline", "9") as opened:
            page = opened.page
            page.locator("#drawn", has_text="3 retransmissions, 2 zero windows, 1 reset of TCP").wait_for()
            for _ in range(2):
                page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            page.locator("#drawn", has_text="1 retransmission at 1.2").wait_for()
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            page.locator("#drawn", has_text="1 zero window at 3.0").wait_for()
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")  # behind the last request: the timeline goes on to it
            page.locator("#drawn", has_text="1 reset at 9").wait_for()
            box = page.locator("#timeline").bounding_box()
            page.mouse.click(box["x"] + 60, box["y"] + box["height"] - 3 * 18 + 9)  # the name of the first lane
            page.keyboard.press("ArrowRight")
            page.locator("#drawn", has_text="1 retransmission at 1.6").wait_for()
            page.keyboard.press("Enter")
            opened.wait("new URLSearchParams(location.search).get('filter')?.includes(':40000-')")
