"""Values as the filter language writes them.

In: a value. Out: words of a filter. Rule: what is written is read as the same value.
"""

from __future__ import annotations

import numpy as np


def quoted(value: str) -> str:
    """A text."""
    return '"' + value.replace('"', '""') + '"'


def moment(micros: int) -> str:
    """A time, from microseconds since 1970."""
    return f"{np.datetime64(micros, 'us')}Z"
