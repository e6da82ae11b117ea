"""When a live capture ends: Ctrl-C, a signal, or a time that was said.

In: what to do then. Out: a context in which it is done. Rules: the first signal ends the capture, and all that was
captured is worked off; another Ctrl-C interrupts that too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextlib.contextmanager
def ended_by(stop: Callable[[], None], seconds: float | None = None) -> Iterator[None]:
    """Call `stop` (which may be called twice) at the first signal, and after so many seconds."""
    before: dict[int, object] = {}

    def heard(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    if threading.current_thread() is threading.main_thread():
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                before[number] = signal.signal(number, heard)
    timer = threading.Timer(seconds, stop) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave
