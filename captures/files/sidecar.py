"""Read and write FILE.stats.json, the sidecar in which `kwire record` counts lost packets.

In: a capture's path. Out: `CaptureStatistics`: that number, which share of the connections was captured, and whether
records were left out. Rules: it is a hint, not a capture: a sidecar that is missing, too large or malformed is ignored;
it is written whole or not at all, with mode 0600, through a file that nobody else can have put there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from typing import Any, Final, NamedTuple

from kwire.captures.cache import put

ENDING: Final = ".stats.json"
_MOST_BYTES: Final = 1 << 16
_PART: Final = ".part"
_YOUNG_SECONDS: Final = 60.0
"""Age below which another process may be writing a part: that takes milliseconds."""


def path_of(capture: str) -> str:
    """The file beside a capture."""
    return capture + ENDING


def write(capture: str, content: bytes) -> None:
    """Replace it. Raises OSError."""
    path = path_of(capture)
    folder, name = os.path.split(path)
    put(*tempfile.mkstemp(prefix=f".{name}.", suffix=_PART, dir=folder or os.curdir), path, content)


def clear_dead(folder: str, stem: str) -> None:
    """Take away what processes left that were killed while they wrote a sidecar of a capture whose name begins so."""
    names = re.compile(rf"\.{re.escape(stem)}.*{re.escape(ENDING)}\.\w{{8}}{re.escape(_PART)}", re.DOTALL)
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if names.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _YOUNG_SECONDS:
                    os.unlink(entry.path)


class CaptureStatistics(NamedTuple):
    """Facts about a capture outside its bytes.

    dropped     packets that it lost; None if nobody says
    one_of      N where `kwire record --sample 1/N` made it
    no_payload  whether `kwire record --no-payload` made it
    """

    dropped: int | None = None
    one_of: int = 1
    no_payload: bool = False


NOTHING: Final = CaptureStatistics()


def statistics(capture: str) -> CaptureStatistics:
    """Return what the sidecar of a capture says."""
    content = _content(capture)
    lost, share = content.get("dropped"), content.get("sample")
    match = re.fullmatch(r"1/([1-9]\d{0,5})", share) if isinstance(share, str) else None
    return CaptureStatistics(
        dropped=lost if type(lost) is int and 0 <= lost < 1 << 53 else None,
        one_of=int(match[1]) if match is not None else 1,
        no_payload=content.get("no_payload") is True,
    )


def _content(capture: str) -> dict[str, Any]:
    """Return what a sidecar holds; nothing where there is none."""
    try:
        # Not to wait where somebody made a pipe of that name.
        descriptor = os.open(path_of(capture), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError):
        return {}
    try:
        described = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return {}
    return described if isinstance(described, dict) else {}
