"""`kwire analyze -i`: an interface to a dataset.

In: parsed options. Out: a dataset, and its summary, as of a capture; the capture point is named like the interface.
Rules: the thread that captures never waits for us: what it cannot hand over is dropped and counted;
Ctrl-C ends the capture, and what was captured becomes the dataset.
"""

from __future__ import annotations

import argparse
import sys
from typing import BinaryIO, cast

from analyzer import commands, reading
from analyzer.live.ending import ended_by
from analyzer.live.listening import begun, say, warm_up
from analyzer.live.listening import reading as live_reading
from analyzer.points import Choice
from captures.files import CapturePoint
from captures.live.belt import Belt
from captures.live.stream import LiveStream
from captures.live.taps import Tap


def analyze(options: argparse.Namespace, tap: Tap) -> int:
    """`kwire analyze -i`."""
    commands.check_analysis(options)
    choice, how = Choice.asked(options), live_reading(options)
    belt = Belt(tap, options.spool)
    with ended_by(belt.stop, options.duration), belt:
        begun(tap, f"capturing on {tap.interface}")
        warm_up()  # where that was not possible before
        result = reading.decode(
            CapturePoint(tap.interface, ("-",)), options.out, how, choice, append=options.append, wait=options.wait,
            stdin=cast(BinaryIO, LiveStream(belt)),
        )  # fmt: skip
    if tap.problem:
        say(f"note: {tap.interface}: the capture ended: {tap.problem}")
    commands.print_analysis(result, options)
    sys.stdout.flush()
    return 0
