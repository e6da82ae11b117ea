"""Prove when `kwire watch` tells what happens, in the capture's own time: packets come in steps of half a second, as an
interface gives them, and whatever is told then is told at that time.

(proves: analyzer/live/evaluation_windows.py, analyzer/live/live_counts.py)
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from kwire.analyzer.live.live_counts import Moment
from kwire.analyzer.live.watch import _LATE_NS
from kwire.analyzer.live.watch_session import WatchSession
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint
from kwire.captures.files.write import Record, pcap
from tests.captures import forge
from tests.shared import case_capture, real_folder

SECOND: Final = 10**9
STEP: Final = SECOND // 2
SECONDS: Final = 60
"""A hang is meant."""


class Paced:
    """A live source whose packets come when they were captured: the next ones when those before are `worked_on`.

    now: the time until which they came, ns."""

    dropped = 0

    def __init__(self, link: int, records: list[Record]) -> None:
        self.now = records[0].time_ns // STEP * STEP
        self.worked_on = threading.Event()
        self._steps = self._stepped(link, records)
        self._rest = next(self._steps)

    def _stepped(self, link: int, records: list[Record]) -> Iterator[bytes]:
        header = pcap([], link=link, nanoseconds=True)
        begin = place = 0
        while place < len(records):
            self.now += STEP
            while place < len(records) and records[place].time_ns < self.now:
                place += 1
            if place > begin:
                packets = pcap(records[begin:place], link=link, nanoseconds=True)[len(header) :]
                yield packets if begin else header + packets
                begin = place

    def readinto1(self, into: memoryview) -> int:
        if not self._rest:
            self.worked_on.wait(SECONDS)
            self.worked_on.clear()
            self._rest = next(self._steps, b"")
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def waits(self, seconds: float) -> bool:
        """Whether more comes before what is there was worked on."""
        return bool(self._rest)


@dataclass
class Reports:
    """Moments of the screen, lines of JSON and findings with the times at which they were told, ns."""

    screen: list[tuple[int, Moment]]
    seconds: list[tuple[int, Moment]]
    findings: list[tuple[int, dict[str, Any]]]

    def of(self, code: str) -> list[tuple[int, dict[str, Any]]]:
        return [(when, row) for when, row in self.findings if row["code"] == code]


def watched(path: Path, unpacked: Path) -> Reports:
    """Watch a capture as if it came now."""
    if path.suffix == ".gz":
        unpacked.write_bytes(gzip.decompress(path.read_bytes()))
        path = unpacked
    source = Paced(*forge.loaded(path))
    point = CapturePoint("wire", ("-",))
    session = WatchSession(point, ReadOptions().settings(), cast(BinaryIO, source), None, telling=True)
    reports = Reports([], [], [])

    def take() -> None:
        session.counts.advance(source.now - _LATE_NS)
        reports.screen.append((source.now, session.counts.moment()))
        reports.seconds += [(source.now, moment) for moment in session.counts.told]
        reports.findings += [(source.now, row) for row in session.fresh]
        session.counts.told.clear()
        session.fresh.clear()
        source.worked_on.set()

    session.after = take
    session.run()
    return reports


def test_a_stall_is_marked_within_two_seconds_and_told_within_five(tmp_path: Path) -> None:
    """Node 2 stood still from 23:14:03.994 for 5 s, says who stopped it."""
    frozen, node = 1_795_821_243_994_000_000, "10.88.0.1:19102"
    reports = watched(case_capture("incidents/frozen-broker-2/capture.pcap.gz"), tmp_path / "capture.pcap")

    def marked(moments: list[tuple[int, Moment]]) -> float:
        """Seconds from the freeze until a moment had the mark."""
        return next(
            (when - frozen) / SECOND
            for when, moment in moments
            if any(entry.broker == node and entry.is_stalled for entry in moment.open)
        )

    assert 0 < marked(reports.screen) <= 2
    assert 0 < marked(reports.seconds) <= 2
    reported = next(when for when, row in reports.of("broker-stall") if row["who"].get("broker") == node)
    assert 0 < reported - frozen <= 5 * SECOND, (reported - frozen) / SECOND
    others = {entry.broker for _, moment in reports.seconds for entry in moment.open if entry.is_stalled}
    assert others == {node}


def test_a_missing_topic_is_told_within_five_seconds(tmp_path: Path) -> None:
    path = next(real_folder("errors-librdkafka-4.3").glob("capture.pcap*"))
    reports = watched(path, tmp_path / "capture.pcap")
    took = {row["what"]["topic"]: (when - row["since"] * 1000) / SECOND for when, row in reports.of("topic-missing")}
    assert set(took) == {"grp", "nope"}
    assert all(0 < seconds <= 5 for seconds in took.values()), took
