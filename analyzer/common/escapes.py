"""Others' text made fit for a terminal: names of topics, clients, hosts and files may hold control characters, which
move the cursor or worse, and marks that turn the direction of writing.

In: text. Out: the same where all of it is printable, else with escapes. Rule: whatever kwire prints and has not written
itself goes through one of these two; nothing heavy is imported, because errors are printed by them too.
"""

from __future__ import annotations

import json
from typing import Any


def printable(value: str) -> str:
    """Text with `\\xNN`, `\\uNNNN` for what is not printable: C0, DEL, C1, marks of direction, line separators."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


def json_text(value: Any) -> str:
    """JSON in one line, fit for a terminal too: JSON itself escapes C0 only, here all that is not printable."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
