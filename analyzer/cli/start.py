"""Where the `kwire` command begins.

In: nothing. Out: `cli.command`, run; an interrupt while it is still being imported is told like any other. Rule:
imports nothing at its top, where nobody would catch an interrupt.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which would have to be imported
if TYPE_CHECKING:
    import sys


def command() -> None:
    """The console script."""
    try:
        import signal  # noqa: F401  (`_lost` must not be the first to)
        import sys

        sys.unraisablehook = _lost
        from kwire.analyzer.cli import parser

        parser.command()
    except KeyboardInterrupt:
        _leave()


_coming = False
"""Whether an interrupt is about to be sent again: several that were dropped are one."""


def _lost(what: sys.UnraisableHookArgs) -> None:
    """An exception that Python drops, for it was raised where nobody can catch it: in the callback of a weak reference
    (each import has one) or in `__del__`. An interrupt is sent again, a moment later, to the same thread."""
    import _thread
    import signal
    import sys
    import time

    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    global _coming
    if _coming:
        return
    _coming, main = True, _thread.get_ident()

    def again() -> None:  # imports nothing: an import that was interrupted may hold the lock of all others
        global _coming
        time.sleep(0.01)
        _coming = False
        signal.pthread_kill(main, signal.SIGINT)

    _thread.start_new_thread(again, ())


def _leave() -> None:
    """Without the interpreter's own end, which would say where it was. Exit code: `cli.EXIT_INTERRUPTED`."""
    import os
    import sys

    for stream, text in ((sys.stdout, ""), (sys.stderr, "kwire: interrupted\n")):
        try:
            if stream is not None:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(130)
