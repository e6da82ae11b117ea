"""Text: keys and values that are UTF-8 without control characters."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that text has not: all control characters but tab and the ends of lines."""


def text_of(data: bytes) -> str | None:
    """Return the text that bytes are; None where they are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
