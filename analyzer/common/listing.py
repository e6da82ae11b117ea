"""Lists in a line of text: the first names, and how many there are besides."""

from __future__ import annotations

from collections.abc import Sequence


def listed(shown: Sequence[str], of: int) -> str:
    """Return `a, b, c and 4 more`. `shown`: the names to be shown; `of`: how many there are in all."""
    return ", ".join(shown) + (f" and {of - len(shown)} more" if of > len(shown) else "")
