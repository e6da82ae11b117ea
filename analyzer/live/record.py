"""`kwire record`: an interface to capture files.

In: parsed options. Out: capture files; what was captured and lost, each second and at the end, on stderr. Rules: lost
packets are said, and change no exit code; what was captured before a problem is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic
from typing import TYPE_CHECKING

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.live.preparation import begun, sampled, say
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.captures.errors import CaptureError
from kwire.captures.live.capture_queue import CaptureQueue, Drops
from kwire.captures.live.recording import STDOUT, Recording, Target, prepare
from kwire.captures.live.taps import Tap

if TYPE_CHECKING:
    from kwire.analyzer.options.live import RecordOptions

_TICK_SECONDS = 1.0
_CLEAR = "\r\x1b[K"


def target(options: RecordOptions) -> Target:
    """Where to write. Raises UsageError for options that do nothing together."""
    result = Target(options.out, options.rotate_bytes, options.rotate_seconds, options.keep)
    if result.path == STDOUT and (result.rotate_bytes or result.rotate_seconds or result.keep):
        raise UsageError("-o -: what goes to stdout does not rotate", "name a file or a folder")
    if result.path == STDOUT and sys.stdout.isatty():
        raise UsageError("-o -: stdout is a terminal", "kwire record ... -o - | kwire watch -, or name a file")
    if result.keep and not result.row:
        raise UsageError("--keep goes with several files", "add --rotate-bytes or --rotate-seconds")
    return result


def prepared(options: RecordOptions) -> Target:
    """Where to write, with all loaded that writing takes. Raises UsageError as `target` does."""
    to = target(options)
    prepare(to, options.no_payload)
    return to


def record(options: RecordOptions, tap: Tap) -> int:
    """`kwire record`."""
    to = prepared(options)
    belt = CaptureQueue(tap, options.spool)
    since = monotonic()
    try:
        recording = Recording(tap, to, options.no_payload)
    except BaseException:
        belt.close()
        raise
    with ended_by(belt.stop, options.duration):
        begun(tap, f"capturing on {tap.interface} to {recording.path or 'stdout'}")
        try:
            with belt:
                _write(belt, recording, since)
            recording.close(belt.drops())
        except BrokenPipeError:
            belt.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read our stdout has seen enough
        except BaseException:
            with contextlib.suppress(CaptureError):
                recording.close(belt.drops())
            raise
    _tell_end(recording, belt.drops(), tap.one_of, options.no_payload)
    if tap.problem:
        raise CaptureError(f"-i {tap.interface}: {tap.problem}", "what was captured until then is kept")
    return 0


def _write(belt: CaptureQueue, recording: Recording, since: float) -> None:
    """Until it is over."""
    due = monotonic() + _TICK_SECONDS
    while not belt.over:
        chunk = belt.take(max(0.0, due - monotonic()))
        if chunk is not None:
            recording.take(chunk)
        if (now := monotonic()) >= due:
            due = now + _TICK_SECONDS
            drops = belt.drops()
            recording.tick(drops)
            _tell(now - since, recording, drops)


def _tell(seconds: float, recording: Recording, drops: Drops) -> None:
    line = f"{seconds:6.0f} s  {recording.packets:,} packets  {recording.bytes / 1e6:,.1f} MB  dropped {drops.total:,}"
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{_CLEAR}{line}" if sys.stderr.isatty() else f"{line}\n")
        sys.stderr.flush()


def _tell_end(recording: Recording, drops: Drops, one_of: int, no_payload: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(_CLEAR)
    who = {"by the kernel's buffer": drops.kernel, "by the interface": drops.interface, "by kwire": drops.queue}
    lost = ", ".join(f"{count:,} {name}" for name, count in who.items() if count) or "none dropped"
    files = f" in {recording.files} files" if recording.files > 1 else ""
    say(
        f"kwire: {recording.packets:,} packets, {recording.bytes / 1e6:,.1f} MB{files}; "
        + (f"dropped: {lost}" if drops.total else lost)
        + (f"; {recording.bytes / recording.packets:,.0f} bytes a packet in the mean" if recording.packets else "")
        + (f"; {recording.left_out_bytes / 1e6:,.1f} MB of records left out (--no-payload)" if no_payload else "")
        + ("" if one_of == 1 else f"; {sampled(one_of)}")
    )
