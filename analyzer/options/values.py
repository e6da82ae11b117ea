"""Values of options as people type them: ports, counts, durations, sizes. Raises argparse.ArgumentTypeError."""

from __future__ import annotations

import argparse
import contextlib
import re

MOST = 10**15
"""The largest count of an option: no capture has more, and twice that still fits into 64 bits."""
MOST_THREADS = 256
MOST_SECONDS = 1e9
SLOWER_FACTOR = 1.2
"""Times the latency of one side from which on the other is slower (`--slower`)."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def port(text: str) -> int:
    """A TCP port."""
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return value


def count(text: str) -> int:
    """A number from 1 to `MOST`."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) else 0
    if not 1 <= value <= MOST:
        shown = repr(text) if len(text) <= 40 else f"one of {len(text):,} characters"
        raise argparse.ArgumentTypeError(f"{shown} is not a number from 1 to {MOST:,}")
    return value


def count_or_zero(text: str) -> int:
    """A number from 0 to `MOST`."""
    return 0 if text == "0" else count(text)


def offset(text: str) -> int:
    """An offset of a partition: a number from 0 on that fits into 63 bits."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not 0 <= value < 1 << 63:
        shown = repr(text) if len(text) <= 40 else f"one of {len(text):,} characters"
        raise argparse.ArgumentTypeError(f"{shown} is not a number from 0 on")
    return value


def threads(text: str) -> int:
    """A number of threads."""
    value = count(text)
    if value > MOST_THREADS:  # each has tables and windows of its own
        raise argparse.ArgumentTypeError(f"{text} are more than {MOST_THREADS}, the most that there may be")
    return value


def share(text: str) -> int:
    """1/N, N from 2 on: the N."""
    match = re.fullmatch(r"1/([1-9][0-9]{0,3})", text)
    if match is None or int(match[1]) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share of the connections, as 1/8")
    return int(match[1])


def rate(text: str) -> float:
    """A positive number; `kwire.replay.request` knows the upper bound."""
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: not a positive number")


def factor(text: str) -> float:
    """A number above 1, as 1.5."""
    with contextlib.suppress(ValueError):
        if 1 < float(text) < MOST:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: not a number above 1, as 1.5")


def duration(text: str) -> float:
    """Seconds, as 60s, 500ms, 5m, 1h, or a bare number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip(), re.ASCII)
    if match is None or (match[2] or "s") not in _SECONDS or not 0 < float(match[1]) < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, as 60s, 5m or 1h")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def size(text: str) -> int:
    """Bytes, as 100MB, 64MiB or a bare number."""
    match = re.fullmatch(r"(\d{1,15}) ?([kmgt]?i?)b?", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _BYTES or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, as 100MB or 64MiB")
    return int(match[1]) * _BYTES[match[2]]


def address(text: str) -> tuple[str, int]:
    """[HOST:]PORT to listen on: this machine alone where no host is given, any free port where it is 0."""
    match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:\s]+)):)?([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST:]PORT, as 9108 or 0.0.0.0:9108")
    return match[1] or match[2] or "127.0.0.1", int(match[3])
