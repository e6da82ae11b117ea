"""Read and write FILE.stats.json, the sidecar in which `kwire record` counts lost packets.

In: a capture's path. Out: that number. Rules: it is a hint, not a capture: a sidecar that is missing, too large or
malformed is ignored; it is written whole or not at all, with mode 0600.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Final

from kwire.captures.cache import put

ENDING: Final = ".stats.json"
_MOST_BYTES: Final = 1 << 16


def path_of(capture: str) -> str:
    """The file beside a capture."""
    return capture + ENDING


def write(capture: str, content: bytes) -> None:
    """Replace it. Raises OSError."""
    path = path_of(capture)
    part = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    put(os.open(part, flags, 0o600), part, path, content)


def dropped(capture: str) -> int | None:
    """Return the number of packets that the capture lost, from its sidecar; None if there is none."""
    try:
        # Not to wait where somebody made a pipe of that name.
        descriptor = os.open(path_of(capture), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    try:
        statistics = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    lost = statistics.get("dropped") if isinstance(statistics, dict) else None
    return lost if type(lost) is int and 0 <= lost < 1 << 53 else None
