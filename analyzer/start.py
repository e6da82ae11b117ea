"""Where the `kwire` command begins.

In: nothing. Out: `cli.command`, run; an interrupt while it is still being imported is told like any other. Rule:
imports nothing at its top, where nobody would catch an interrupt.
"""

from __future__ import annotations


def command() -> None:
    """The console script."""
    try:
        from analyzer import cli

        cli.command()
    except KeyboardInterrupt:
        _leave()


def _leave() -> None:
    """Without the interpreter's own end, which would say where it was. Exit code: `cli.EXIT_INTERRUPTED`."""
    import os
    import sys

    for stream, said in ((sys.stdout, ""), (sys.stderr, "kwire: interrupted\n")):
        try:
            if stream is not None:
                stream.write(said)
                stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(130)
