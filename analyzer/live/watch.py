"""`kwire watch`: what happens now, on a screen or as lines of JSON.

In: parsed options, and an interface where one was opened. Out: a screen twice a second; or a line a second of packets'
time, and a line a finding. Rules: the thread that captures never waits for the one that decodes, nor that one for the
screen; what is lost on the way is shown; of a folder a watch goes on where the one before it was (`places`), so a line
comes once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kwire.analyzer.cli.text import json_text
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.live.evaluation_windows import finding_key
from kwire.analyzer.live.folder_checkpoint import FolderCheckpoint, FolderWatchedError
from kwire.analyzer.live.live_counts import SECONDS, Moment
from kwire.analyzer.live.preparation import begun, reading, sampled, say, warm_up
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.analyzer.live.watch_session import WatchSession
from kwire.analyzer.pipeline.points import AnalysisOptions, how_to_read
from kwire.captures.files import CapturePoint, capture_points
from kwire.captures.frame_kinds import unread_lines
from kwire.captures.live.capture_queue import CaptureQueue
from kwire.captures.live.follow import Follower
from kwire.captures.live.stream import LiveStream
from kwire.captures.live.taps import Tap

if TYPE_CHECKING:
    from kwire.analyzer.options.live import WatchOptions

_UPDATE_SECONDS = 0.5
_LATE_NS = 2 * 10**9
"""A second of an interface is over so long after it began, whether or not anything comes after it."""


@dataclass(slots=True)
class WatchedSource:
    """Source that is watched: its name, its packets, how many were lost, how to end it. `live`: packets come as they
    are captured, so their time is the clock's; `one_of`: of so many connections one is captured; `place`: the
    checkpoint of a folder."""

    point: CapturePoint
    stdin: BinaryIO | Follower | None
    drops: Callable[[], int | None]
    stop: Callable[[], None]
    live: bool = False
    one_of: int = 1
    place: FolderCheckpoint | None = None

    @property
    def shown(self) -> str:
        """Its name, for people."""
        return self.point.name if self.one_of == 1 else f"{self.point.name}, {sampled(self.one_of)}"


def watch_interface(options: WatchOptions, tap: Tap) -> int:
    """`kwire watch -i`."""
    with CaptureQueue(tap, options.spool) as belt:
        begun(tap, f"capturing on {tap.interface}")
        warm_up()  # where that was not possible before
        point = CapturePoint(tap.interface, ("-",))
        stream = cast(BinaryIO, LiveStream(belt))
        source = WatchedSource(point, stream, lambda: belt.drops().total, belt.stop, True, tap.one_of)
        code = _watch(options, source)
    if tap.problem:
        say(f"note: {tap.interface}: the capture ended: {tap.problem}")
    return code


def watch_source(options: WatchOptions) -> int:
    """`kwire watch FOLDER`, a capture, or stdin."""
    assert options.source is not None
    if options.source != "-" and os.path.isdir(options.source):
        return _watch_folder(options, options.source)
    if options.from_start:
        raise UsageError("--from-start goes with a folder", "leave it out")
    (point,) = capture_points([options.source])
    return _watch(options, WatchedSource(point, sys.stdin.buffer, lambda: None, lambda: None))


def _watch_folder(options: WatchOptions, folder: str) -> int:
    follower = Follower(folder)
    name = os.path.basename(os.path.realpath(folder)) or folder
    place = None if options.once else _place(options, folder, name)
    there = follower.listed()
    if place is not None and place.known:
        when = f" (told until {rfc3339(place.second * 10**6)})" if place.second >= 0 else ""
        say(f"note: {folder}: goes on where the watch before it was{when}; --from-start begins anew")
    elif there:
        say(f"note: {folder}: begins at the oldest of {len(there)} files, {there[0]}")
    source = WatchedSource(
        CapturePoint(name, cast(tuple[str, ...], follower)), follower, lambda: None, follower.stop, place=place
    )
    try:
        return _watch(options, source)
    finally:
        if place is not None:
            place.close()


def _place(options: WatchOptions, folder: str, name: str) -> FolderCheckpoint | None:
    """Where to go on; None: nothing can be kept, or another screen keeps it."""
    screen = _on_screen(options)
    way = "screen" if screen else "lines"
    try:
        return FolderCheckpoint(folder, name, reading(options).settings(), _choice(options), way, options.from_start)
    except FolderWatchedError as taken:
        if not screen:
            raise
        say(f"note: {taken.message}: this one begins at the oldest file")
    except OSError as failure:
        say(f"note: {failure.filename}: {failure.strerror}: a restart will begin at the oldest file again")
    return None


def _choice(options: WatchOptions) -> AnalysisOptions:
    """Choose what is analysed: all but records."""
    return AnalysisOptions.of(options.filter, records="none")


def _on_screen(options: WatchOptions) -> bool:
    return not options.json and sys.stdout.isatty()


def _watch(options: WatchOptions, source: WatchedSource) -> int:
    screen = _on_screen(options)
    choice = _choice(options)
    wanted = choice.filter
    keeps = (screen and not options.once) or (wanted is not None and wanted.needs_bodies)
    settings = how_to_read(reading(options).settings(keep_messages=keeps), choice, 0)
    session = WatchSession(
        source.point, settings, source.stdin, wanted, telling=not screen and not options.once, place=source.place
    )
    stop = threading.Event()

    def end() -> None:
        stop.set()
        source.stop()

    seconds = options.duration or (float(SECONDS) if options.once and source.live else None)
    with _served(session, source, options.metrics) as address, ended_by(end, seconds):
        if options.once:
            _once(session, source, screen, stop, timed=seconds is not None)
        elif screen:
            from kwire.analyzer.live.screen import Screen

            Screen(session, source.shown, lambda: _lost(session, source)).run(stop)
            end()
        else:
            _lines(session, source, stop)
        if address and session.failure is None and not options.once and not screen and not stop.is_set():
            say(f"note: {source.point.name}: all is read; {address} answers until Ctrl-C")
            while not stop.wait(_UPDATE_SECONDS):
                pass
    if session.failure is not None:
        raise session.failure
    if "-" in source.point.paths and source.stdin is sys.stdin.buffer and not session.ended.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a thread waits for stdin, and nobody need send anything ever
    reader = session.engine.reader
    for note in [*reader.notes[session.notes_before :], *unread_lines(source.point.name, reader.counts)]:
        say(f"note: {note}")
    return 0


@contextlib.contextmanager
def _served(session: WatchSession, source: WatchedSource, address: tuple[str, int] | None) -> Iterator[str]:
    """Answer scrapes of Prometheus at an address meanwhile; yields where, empty for nowhere. Raises UsageError."""
    if address is None:
        yield ""
        return
    from kwire.analyzer.live import metrics_server
    from kwire.analyzer.live.metrics import Metrics

    metrics = session.metrics = Metrics(session.topic_name, lambda text: say(f"note: {text}"))

    def standing() -> metrics_server.Standing:
        with session.lock:
            now = time_ns() if source.live else session.counts.time_ns
            return metrics_server.Standing(
                metrics.counted.copy(),
                session.counts.open.now(now),
                metrics.lag.behind(now),
                _lost(session, source),
                session.engine.reader.counts["packets"],
                session.ended.is_set(),
                source.one_of,
            )

    served, end = metrics_server.serve(address, standing)
    say(f"note: metrics at {served}")
    try:
        yield served
    finally:
        end()


def _lost(session: WatchSession, source: WatchedSource) -> int:
    """Packets that were lost, as far as anybody says."""
    lost = source.drops()
    return (session.drops() or 0) if lost is None else lost


def _over(session: WatchSession, source: WatchedSource, stop: threading.Event, seconds: float) -> bool:
    """Wait so long; whether all is read. A source that was told to stop is read to its end; stdin and a capture, which
    cannot be told, are left where they are."""
    if session.ended.wait(seconds):
        return True
    return stop.is_set() and not source.live and not isinstance(source.stdin, Follower)


def _once(session: WatchSession, source: WatchedSource, screen: bool, stop: threading.Event, timed: bool) -> None:
    """One line or screen. Unless it is `timed`, a folder is read as far as it goes now."""
    session.start()
    folder = source.stdin if isinstance(source.stdin, Follower) else None
    while not _over(session, source, stop, _UPDATE_SECONDS):
        if folder is not None and not timed and folder.has_caught_up():
            source.stop()
    with session.lock:
        now = session.counts.moment()
        lost = _lost(session, source)
    if screen:
        from kwire.analyzer.live.screen import printed

        printed(now, list(session.findings), source.shown, lost)
        return
    _write(second_of(now, lost, source.one_of))
    for finding in session.findings:
        _write(finding_of(finding))


def _lines(session: WatchSession, source: WatchedSource, stop: threading.Event) -> None:
    """JSON lines as seconds pass."""
    came = threading.Event()
    session.after = came.set
    place = source.place
    if place is not None and (again := place.recover()):
        say(f"note: the first {again} lines may have come before: the watch before this one was killed meanwhile")
    session.start()
    over = False
    while not over:
        over = _over(session, source, stop, 0 if came.wait(_UPDATE_SECONDS) else 0.01)
        came.clear()
        with session.lock:
            if source.live and session.counts.time_ns:
                session.counts.advance(time_ns() - _LATE_NS)
            moments, findings = list(session.counts.told), list(session.fresh)
            session.counts.told.clear()
            session.fresh.clear()
            lost = _lost(session, source)
            since = {finding_key(row): session.since(row) for row in findings} if place is not None else {}
            end = (session.exchanges, session.counts.until) if over and session.failure is None else None
        if place is None:
            for line in _in_order(moments, findings, lost, source.one_of):
                _write(line)
            continue
        fresh = [moment for moment in moments if moment.time_ns // 10**9 > place.second]
        last = max([moment.time_ns // 10**9 for moment in fresh], default=-1)
        place.tell([json_text(line) for line in _in_order(fresh, findings, lost, source.one_of)], last, since, end)


def _in_order(
    moments: Sequence[Moment], findings: Sequence[dict[str, Any]], lost: int, one_of: int
) -> Iterator[dict[str, Any]]:
    """Return the lines to print, in order of time."""
    yield from (second_of(moment, lost, one_of) for moment in moments)
    yield from map(finding_of, findings)


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json_text(line) + "\n")
    sys.stdout.flush()


def second_of(now: Moment, dropped: int, one_of: int = 1) -> dict[str, Any]:
    """One second (or the last ten) as JSON. one_of: of so many connections one was captured."""
    return {
        "time": rfc3339(now.time_ns // 1000),
        "exchanges": round(now.exchanges, 3),
        "errors": round(now.errors, 3),
        "bytes": round(now.bytes, 3),
        "dropped": dropped,
        **({} if one_of == 1 else {"sample": f"1/{one_of}"}),
        "clients": now.client_count,
        "apis": [
            {
                "api": line.api,
                "broker": line.broker,
                "exchanges": round(line.rate, 3),
                "errors": round(line.error_rate, 3),
                "p50_us": line.p50_us,
                "p99_us": line.p99_us,
                "held_p50_us": line.held_p50_us,
            }
            for line in now.lines
        ],
        "rebalancing": [{"group": group, "since": rfc3339(since // 1000)} for group, since in now.rebalancing],
        "readers": [line._asdict() for line in now.readers],
        "seconds": round(now.seconds, 3),
        "open": [
            {
                "broker": entry.broker,
                "requests": entry.requests,
                "waiting": entry.waiting,
                "oldest_us": entry.oldest_us,
                "silent_us": entry.silent_us,
                "stalled": entry.is_stalled,
            }
            for entry in now.open
        ],
    }


def finding_of(row: dict[str, Any]) -> dict[str, Any]:
    """A finding as JSON: what `kwire findings --json` says, under `finding`."""
    times = {name: None if row[name] is None else rfc3339(row[name]) for name in ("since", "until")}
    return {"finding": {**row, **times}}
