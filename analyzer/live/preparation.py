"""Prepare a capture before its first packet: compile kernels, announce it, choose how to read.

In: parsed options, a `Tap` that is open. Out: lines on stderr; how to read live. Rules: on a machine's first run
kernels are compiled before, or the first minute would not be seen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.pipeline.read_options import FEW_THREADS, ReadOptions, cores
from kwire.captures.live import interfaces
from kwire.captures.live.taps import Tap

if TYPE_CHECKING:
    from kwire.analyzer.options.common import ReadArguments

_SAMPLE = Path(__file__).resolve().parents[2] / "captures" / "samples" / "codecs-franzgo-4.3" / "capture.pcap"


def say(line: str) -> None:
    """A line for people on stderr; nobody need listen."""
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()


def begun(tap: Tap, what: str) -> None:
    """Say that it listens."""
    how = f"filter: {tap.expression}" if tap.expression else "everything"
    share = "" if tap.one_of == 1 else f"; {sampled(tap.one_of)}"
    say(f"kwire: {what} ({tap.how}; {how}{share}); Ctrl-C ends it")
    if interfaces.joins_segments(tap.interface) is False:
        say(
            f"note: {tap.interface}: generic receive offload is off, so each segment is a packet of its own; "
            f"with ethtool -K {tap.interface} gro on fewer and larger ones are to be worked off"
        )


def sampled(one_of: int) -> str:
    """Say which share of the connections is captured."""
    return f"one of {one_of:,} connections (--sample)"


def reading(options: ReadArguments) -> ReadOptions:
    """How to read what comes live."""
    how = ReadOptions.from_arguments(options)
    threads = how.threads or min(FEW_THREADS, cores())
    return how._replace(threads=threads)


def warm_up() -> None:
    """Compile what a machine has not compiled yet, some of it or all, by reading a sample, and say so.

    Raises CompilerMissingError if that cannot be."""
    from kwire.analyzer.cli.commands import announce_compilation
    from kwire.captures import kernels, native

    if not kernels.needs_no_compiler() and not native.has_compiler():
        raise kernels.CompilerMissingError
    if _SAMPLE.exists():
        announce_compilation()
        kernels.expect(None)  # the sample is small, what comes after it need not be
        kernels.once("watch", rehearse)


@functools.cache
def rehearse() -> None:
    """Read a sample, if it came along, as what is captured will be read, once in a process: imports and linking take
    longer than a full queue of packets lasts."""
    from kwire.analyzer.api import analyze as analyse

    if _SAMPLE.exists():
        analyse(_SAMPLE)
