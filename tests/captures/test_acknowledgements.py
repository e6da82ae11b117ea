"""Acknowledged, held behind a hole, or never delivered.

(proves: captures/acknowledgements.py, and what `captures.delivery` says of a hole that nobody acknowledged)
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from tests.analyzer.forging import heartbeat, heartbeat_answer, read
from tests.captures.forge import START_NS, TO_BROKER, TO_CLIENT
from tests.captures.talk import Talk

LARGE = heartbeat(2, member="m" * 4000)


def after(seconds: float) -> datetime.datetime:
    micros = START_NS // 1000 + round(seconds * 1e6)
    return datetime.datetime.fromtimestamp(micros // 1_000_000, datetime.UTC).replace(microsecond=micros % 1_000_000)


def talk() -> Talk:
    ends = Talk()
    ends.open(0)
    ends.exchange(0.01, heartbeat(1), heartbeat_answer(1))
    return ends


def row(folder: Path, ends: Talk) -> dict[str, Any]:
    return read(folder, ends.seen).connection


def test_what_was_acknowledged_was_delivered(tmp_path: Path) -> None:
    ends = talk()
    ends.exchange(5.01, heartbeat(2), heartbeat_answer(2))
    ends.fin(True, 6)
    ends.fin(False, 6.001)
    columns = row(tmp_path, ends)
    assert columns["unacknowledged_bytes_to_broker"] == columns["unacknowledged_bytes_to_client"] == 0
    assert columns["unacknowledged_sends_to_broker"] is columns["unacknowledged_since_to_broker"] is None
    assert (columns["longest_silence_us"], columns["longest_silence_end"]) == (4_998_900, after(5.01))
    assert (columns["closed_by"], columns["closed_after"], columns["closed_after_us"]) == ("client", "answer", 989_000)


def test_what_was_sent_again_and_again_was_not(tmp_path: Path) -> None:
    ends = talk()
    position = ends.send(TO_BROKER, 1, heartbeat(2))
    for at in (1.2, 1.6, 2.4):
        ends.again(TO_BROKER, at, position, heartbeat(2))
    columns = row(tmp_path, ends)
    assert columns["unacknowledged_bytes_to_broker"] == len(heartbeat(2))
    assert columns["unacknowledged_sends_to_broker"] == 4
    assert columns["unacknowledged_since_to_broker"] == after(1.2)
    assert columns["unacknowledged_segment_to_broker"] == len(heartbeat(2))
    assert columns["unacknowledged_bytes_to_client"] == columns["gaps"] == 0
    assert columns["closed_by"] is columns["closed_after"] is None


def test_a_late_acknowledgement_delivers(tmp_path: Path) -> None:
    ends = talk()
    position = ends.send(TO_BROKER, 1, heartbeat(2))
    for at in (1.2, 1.6, 2.4):
        ends.again(TO_BROKER, at, position, heartbeat(2))
    ends.ack(TO_BROKER, 2.5)
    columns = row(tmp_path, ends)
    assert columns["unacknowledged_bytes_to_broker"] == 0
    assert columns["unacknowledged_sends_to_broker"] is None


def test_sack_acknowledges_what_is_behind_a_hole_and_not_the_hole(tmp_path: Path) -> None:
    """Seen before the loss, and seen behind it: the same bytes are missing."""
    for seen in (True, False):
        ends = talk()
        base = ends.send(TO_BROKER, 1, LARGE[:1448], captured=seen)
        ends.send(TO_BROKER, 1.0001, LARGE[1448:2896], captured=seen)
        tail = ends.send(TO_BROKER, 1.0002, LARGE[2896:])
        ends.ack(TO_BROKER, 1.0003, sack=(tail, base + len(LARGE)))
        for at in (1.2, 1.6, 2.4) if seen else ():
            ends.again(TO_BROKER, at, base, LARGE[:1448])
        columns = row(tmp_path, ends)
        assert columns["unacknowledged_bytes_to_broker"] == 2896, seen
        assert columns["sacked_bytes_to_broker"] == columns["sacked_segment_to_broker"] == len(LARGE) - 2896
        assert columns["unacknowledged_sends_to_broker"] == (4 if seen else 0)
        assert columns["unacknowledged_segment_to_broker"] == (1448 if seen else None)
        assert columns["unacknowledged_since_to_broker"] == after(1.2 if seen else 1.0002)
        assert (columns["gaps"], columns["gap_bytes"]) == (0, 0)


def test_sack_blocks_are_joined_and_a_hole_that_is_filled_is_none(tmp_path: Path) -> None:
    ends = talk()
    base = ends.send(TO_CLIENT, 1, LARGE[:1000])
    for number in range(1, 4):
        ends.send(TO_CLIENT, 1 + number / 1000, LARGE[1000 * number : 1000 * number + 1000])
        ends.ack(TO_CLIENT, 1.0001 + number / 1000, sack=(base + 1000, base + 1000 * number + 1000))
    assert row(tmp_path, ends)["sacked_bytes_to_client"] == 3000
    assert row(tmp_path, ends)["sacked_segment_to_client"] == 1000
    ends.again(TO_CLIENT, 1.2, base, LARGE[:1000])
    ends.ack(TO_CLIENT, 1.21)
    columns = row(tmp_path, ends)
    assert columns["unacknowledged_bytes_to_client"] == columns["sacked_bytes_to_client"] == 0


def test_what_the_receiver_had_and_the_capture_lacks_is_a_gap(tmp_path: Path) -> None:
    ends = talk()
    ends.send(TO_BROKER, 1, heartbeat(2), captured=False)
    ends.ack(TO_BROKER, 1.001)
    ends.send(TO_CLIENT, 1.002, heartbeat_answer(2))
    ends.ack(TO_CLIENT, 1.003)
    ends.exchange(9, heartbeat(3), heartbeat_answer(3))
    columns = row(tmp_path, ends)
    assert (columns["gaps"], columns["gap_bytes"]) == (1, len(heartbeat(2)))
    assert columns["unacknowledged_bytes_to_broker"] == 0


def test_a_capture_that_begins_in_a_repair_has_lost_nothing(tmp_path: Path) -> None:
    """The first packet is sent again; what followed it had come before the capture."""
    for late in (False, True):
        ends = Talk()
        first = heartbeat(1)
        position = ends.send(TO_BROKER, 0, first)
        ends.send(TO_BROKER, 0, heartbeat(2) * 5, captured=False)
        if late:  # the acknowledgement comes long after: the capture lost what came meanwhile
            ends.packet(TO_CLIENT, 0.001, 16, 0)
            ends.again(TO_BROKER, 0.002, position, first)
        ends.ack(TO_BROKER, 5 if late else 0.001)
        for number in range(3, 14):
            ends.exchange(6 + number, heartbeat(number), heartbeat_answer(number))
        columns = row(tmp_path, ends)
        assert columns["gaps"] == (1 if late else 0), late


def test_a_segment_that_waited_for_a_delayed_acknowledgement_is_counted(tmp_path: Path) -> None:
    for wait, early, waited in ((0.04, 0.0001, 1), (0.2, 0.001, 1), (0.01, 0.0001, 0), (0.04, 0.03, 0)):
        ends = talk()
        request = heartbeat(2)
        ends.send(TO_BROKER, 1, request[:20])
        ends.ack(TO_BROKER, 1 + wait)
        ends.send(TO_BROKER, 1 + wait + early, request[20:])
        ends.send(TO_CLIENT, 1.5, heartbeat_answer(2))
        assert row(tmp_path, ends)["delayed_sends"] == waited, (wait, early)


def test_the_next_request_after_an_answer_waited_for_that(tmp_path: Path) -> None:
    ends = talk()
    ends.send(TO_BROKER, 1, heartbeat(2))
    ends.ack(TO_BROKER, 1.04)
    ends.send(TO_CLIENT, 1.041, heartbeat_answer(2))
    ends.send(TO_BROKER, 1.042, heartbeat(3))
    assert row(tmp_path, ends)["delayed_sends"] == 0


def test_where_nobody_acknowledges_nothing_is_told(tmp_path: Path) -> None:
    ends = talk()
    ends.send(TO_BROKER, 1, heartbeat(2))
    only = [segment for segment in ends.seen if segment.source == ends.client]
    columns = read(tmp_path, only, ports=[9092]).connection
    assert columns["unacknowledged_bytes_to_broker"] is columns["sacked_bytes_to_broker"] is None


def test_who_closes_first(tmp_path: Path) -> None:
    ends = talk()
    ends.send(TO_BROKER, 1, heartbeat(2))
    ends.reset(False, 1.0005)
    columns = row(tmp_path, ends)
    assert (columns["closed"], columns["closed_by"]) == ("rst", "broker")
    assert (columns["closed_after"], columns["closed_after_us"]) == ("request", 500)
