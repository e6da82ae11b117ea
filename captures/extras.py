"""The extras of the package `kwire`, and how a hint names one: by what to type and its size on the disk.

`docs/start/install.md` lists them with what each is for; a test compares both, and every hint, with this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEGABYTES: Final[Mapping[str, int]] = {
    "all": 800,
    "compile": 210,
    "live": 24,
    "metrics": 1,
    "payloads": 15,
    "spark": 600,
    "sql": 140,
    "tls": 18,
    "urls": 18,
    "view": 6,
}
"""Of what comes with an extra, beside the base."""


def install(extra: str) -> str:
    """Return the hint that names an extra: what to type, and its size."""
    return f"pip install 'kwire[{extra}]' ({MEGABYTES[extra]} MB)"
