"""`kwire analyze -i`: an interface to a dataset, or to a row of them.

In: parsed options. Out: a dataset, and its summary, as of a capture; the capture point is named like the interface.
Rules: the thread that captures never waits for us: what it cannot hand over is dropped and counted;
Ctrl-C ends the capture, and what was captured becomes the dataset. With a length for each, stretches of the capture
become datasets of their own (or capture points of one, `--append`), each whole as soon as the next begins. What crosses
a border is in one of them (`onward`); rows are begun anew with each, and what goes on is bounded, so memory is that of
one stretch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kwire.analyzer import api
from kwire.analyzer.cli import commands
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.dataset.dataset import Dataset, is_dataset
from kwire.analyzer.dataset.locks import unread
from kwire.analyzer.frame.buffer_pool import give_back
from kwire.analyzer.live.continuation import Continuation
from kwire.analyzer.live.preparation import begun, say, warm_up
from kwire.analyzer.live.preparation import reading as live_reading
from kwire.analyzer.live.rotations import Rotations
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.captures.files import CapturePoint
from kwire.captures.live.capture_queue import CaptureQueue
from kwire.captures.live.taps import Tap

if TYPE_CHECKING:
    from kwire.analyzer.options.analyze import AnalyzeOptions

_MOST_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class _RotationOutput:
    """Where a stretch goes: the dataset, whether that is added to, and the name of its capture point."""

    out: str
    append: bool
    name: str


class DatasetRing:
    """The datasets of a row: NAME-NUMBER-TIME in one folder, of which the last `keep` stay."""

    def __init__(self, folder: str, interface: str, keep: int | None) -> None:
        self._folder, self._keep = Path(folder), keep
        stem = re.sub(r"[^\w.-]", "_", interface)[:_MOST_NAME]
        self._stem = "_" + stem[1:] if stem.startswith(".") else stem
        self._names = re.compile(re.escape(self._stem) + r"-(\d{5,})-\d{8}T\d{6}", re.ASCII)
        if is_dataset(folder):
            raise UsageError(
                f"-o {folder}: is a dataset, and a row of them is to be written",
                "name another folder, or add --append",
            )

    def _there(self) -> list[tuple[int, str]]:
        with contextlib.suppress(OSError):
            matches = ((self._names.fullmatch(name), name) for name in os.listdir(self._folder))
            return sorted((int(match[1]), name) for match, name in matches if match)
        return []

    def next(self, now: float) -> str:
        """The path of the next one."""
        there = self._there()
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        return str(self._folder / f"{self._stem}-{there[-1][0] + 1 if there else 1:05d}-{when}")

    def tidy(self) -> None:
        """Take the oldest away; one that somebody reads goes next time."""
        for _, name in self._there()[: -self._keep] if self._keep is not None else ():
            path = self._folder / name
            if path.is_symlink() or not is_dataset(str(path)):
                continue
            with unread(path) as free:
                if free is not False:
                    shutil.rmtree(path, ignore_errors=True)


def analyze(options: AnalyzeOptions, tap: Tap) -> int:
    """`kwire analyze -i`."""
    commands.check_analysis(options)
    rotates = options.rotate_bytes is not None or options.rotate_seconds is not None
    if options.keep is not None and (not rotates or options.append):
        raise UsageError(
            "--keep goes with a row of datasets", "add --rotate-seconds or --rotate-bytes, without --append"
        )
    row = DatasetRing(options.out, tap.interface, options.keep) if rotates and not options.append else None
    choice, how = AnalysisOptions.from_arguments(options), live_reading(options)
    belt = CaptureQueue(tap, options.spool)
    with ended_by(belt.stop, options.duration), belt:
        begun(tap, f"capturing on {tap.interface}")
        warm_up()  # where that was not possible before
        stretches = Rotations(belt, options.rotate_bytes, options.rotate_seconds)
        if not rotates:
            result = api.decode(
                CapturePoint(tap.interface, ("-",)),
                options.out,
                how,
                choice,
                append=options.append,
                wait=options.wait,
                stdin=stretches.next(),
            )
        else:
            _analyze_rotations(options, tap.interface, row, stretches, Continuation(stretches, how, choice))
    if tap.problem:
        say(f"note: {tap.interface}: the capture ended: {tap.problem}")
    if not rotates:
        commands.print_analysis(result, options)
    sys.stdout.flush()
    return 0


def _analyze_rotations(
    options: AnalyzeOptions, interface: str, row: DatasetRing | None, stretches: Rotations, onward: Continuation
) -> None:
    """One after the other, and what is open in the end."""
    more = True
    while more:
        stretches.next()
        place = _next_output(options, interface, row)
        _print_rotation(place, onward.stretch(place.name, place.out, place.append, options.wait), options.json)
        if row is not None:
            row.tidy()
        give_back()  # else what each stretch leaves in pieces adds up: two hundred megabytes in half an hour
        more = stretches.more()
    place = _next_output(options, interface, row)
    last = onward.rest(place.name, place.out, place.append, options.wait)
    if last is not None:
        _print_rotation(place, last, options.json)
        if row is not None:
            row.tidy()


def _next_output(options: AnalyzeOptions, interface: str, row: DatasetRing | None) -> _RotationOutput:
    now = time.time()
    if row is not None:
        out = row.next(now)
        return _RotationOutput(out, False, os.path.basename(out))
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}"
    return _RotationOutput(options.out, True, f"{interface}-{when}")


def _print_rotation(place: _RotationOutput, result: Dataset, as_json: bool) -> None:
    """A stretch is stored: a line on stdout."""
    for note in result.notes:
        say(f"note: {place.name}: {note}")
    (capture,) = result.captures
    lost = capture["packets"]["dropped_by_capture"] or 0
    summary: dict[str, Any] = {"dataset": place.out, "capture": place.name, **result.summary}
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        findings = sum(count for severity, count in summary.get("findings", {}).items() if severity != "worst")
        sys.stdout.write(
            f"{place.name}: {capture['packets']['packets']:,} packets, {summary['exchanges']:,} exchanges, "
            f"{lost:,} lost, {findings:,} findings\n"
        )
    sys.stdout.flush()
