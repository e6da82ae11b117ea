"""Where commands that capture begin: the interface opened, rights given up, and only then the rest imported.

In: parsed options. Out: a `Tap` for the command's own module. Rules: rights that sudo lent are given up as soon as the
interface is open.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kwire.analyzer.cli.commands import announce_compilation
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.live.preparation import rehearse, say, warm_up
from kwire.captures.live import interfaces
from kwire.captures.live.open_interface import CaptureOptions, opened
from kwire.captures.live.taps import SNAPLEN, Tap

if TYPE_CHECKING:
    from kwire.analyzer.options.analyze import AnalyzeOptions
    from kwire.analyzer.options.common import LiveOptions
    from kwire.analyzer.options.live import RecordOptions, WatchOptions


def listening(options: LiveOptions) -> Tap:
    """The interface, opened; rights are given up. Raises CaptureError."""
    interface, snaplen, one_of = options.interface or "", options.snaplen or SNAPLEN, options.one_of or 1
    tap = opened(CaptureOptions(interface, options.bpf, snaplen, options.via, one_of))
    notice = interfaces.give_up_rights()
    if notice:
        say(f"note: {notice}")
    return tap


def record(options: RecordOptions) -> int:
    """`kwire record`."""
    announce_compilation()
    if interfaces.caller() is None:  # else once rights are given up: kernels are the caller's
        importlib.import_module("kwire.analyzer.live.record").prepared(options)
    tap = listening(options)
    try:
        from kwire.analyzer.live import record as recording

        return recording.record(options, tap)
    finally:
        tap.close()


def analyze(options: AnalyzeOptions) -> int:
    """`kwire analyze -i`."""
    if options.captures:
        raise UsageError("-i captures itself: a CAPTURE beside it is one too many", "leave out one of them")
    if options.rotated:
        raise UsageError("--rotated goes with several captures", "leave it out")
    if options.follow:
        raise UsageError("--follow goes with a folder, not with -i", "leave it out")
    return with_kernels(options, "analyze", "analyze")


def follow(options: AnalyzeOptions) -> int:
    """`kwire analyze --follow`."""
    if options.engine == "spark":
        raise UsageError("--follow works in this process", "leave out --engine spark")
    if len(options.captures) != 1 or not os.path.isdir(options.captures[0]):
        raise UsageError(
            "--follow takes one folder, in which captures rotate", "as kwire analyze DIR --follow -o DATASET"
        )
    for name in ("rotated", "append"):
        if getattr(options, name):
            raise UsageError(f"--{name} is what --follow does", "leave it out")
    warm_up()
    from kwire.analyzer.live import follow as following

    return following.follow(options)


def watch(options: WatchOptions) -> int:
    """`kwire watch`."""
    if (options.interface is None) == (options.source is None):
        raise UsageError(
            "what is to be watched: -i IFACE, or one of FOLDER, CAPTURE, -",
            "as kwire watch -i eth0, or ... | kwire watch -",
        )
    if options.interface is not None:
        if options.from_start:
            raise UsageError("--from-start goes with a folder", "leave it out")
        return with_kernels(options, "watch", "watch_interface")
    for name in ("bpf", "snaplen", "one_of", "via", "spool"):
        if getattr(options, name) is not None:
            option = {"bpf": "-f", "one_of": "--sample"}.get(name, f"--{name}")
            raise UsageError(f"{option} goes with -i", "it is about capturing; add -i IFACE")
    if options.source is not None and os.path.isfile(options.source):
        announce_compilation()  # a small one is read without compiling
    else:
        warm_up()
    from kwire.analyzer.live import watch as watching

    return watching.watch_source(options)


def with_kernels(options: LiveOptions, module: str, function: str) -> int:
    """Listen, then call a function that decodes. All is loaded, and kernels are ready, before the first packet comes;
    where sudo was called, kernels only from the second run on: they are the caller's, who we are once the interface is
    open."""
    name = f"kwire.analyzer.live.{module}"
    if interfaces.caller() is None:
        warm_up()
        importlib.import_module(name)
        rehearse()
    tap = listening(options)
    try:
        run: Callable[[LiveOptions, Tap], int] = getattr(importlib.import_module(name), function)
        return run(options, tap)
    finally:
        tap.close()
