"""When a live capture, or a replay, ends: Ctrl-C, a signal, or a time that was said.

In: what to do then. Out: a context in which it is done. Rules: the first signal ends it, and all that was captured, or
sent, is worked off; another Ctrl-C interrupts that too. SIGTERM (systemd, containers) and SIGHUP (a terminal that is
closed) end it as Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from kwire.analyzer.common.signals import FROM_OTHERS, heard_as, heard_by

_SIGNALS = ("SIGINT", *FROM_OTHERS)


@contextlib.contextmanager
def ended_by(stop: Callable[[], None], seconds: float | None = None) -> Iterator[None]:
    """Call `stop` (which may be called twice) at the first signal, and after so many seconds."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = heard_by(_SIGNALS, on_signal)
    timer = threading.Timer(seconds, stop) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        heard_as(before)
