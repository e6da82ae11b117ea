"""Colours on stdout: whether text gets any, and those of severities.

In: the choice of `--color` and the environment. Out: a function that colours a word or a line by its severity. Rule:
text is escaped and folded before it is coloured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final, TypeAlias

Paint: TypeAlias = "Callable[[str, str | None], str]"
"""Colours a text by its severity, `error`, `warning` or `note`; any other, or none, has no colour."""

_CODES: Final = {"error": "\x1b[31m", "warning": "\x1b[33m", "note": "\x1b[2m"}
_RESET: Final = "\x1b[0m"


def colored(choice: str) -> bool:
    """Whether stdout gets colours. `choice`: of --color; `auto` heeds NO_COLOR and FORCE_COLOR, where they are not
    empty, then whether stdout is a terminal that knows colours (https://no-color.org, https://force-color.org)."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def painter(choice: str) -> Paint:
    """Return what colours text by its severity, or leaves it as it is, as `--color` says."""
    return painted if colored(choice) else unpainted


def painted(text: str, severity: str | None) -> str:
    """Return the text in the colour of its severity."""
    code = _CODES.get(severity or "")
    return f"{code}{text}{_RESET}" if code and text else text


def unpainted(text: str, severity: str | None) -> str:
    """Return the text as it is."""
    return text
