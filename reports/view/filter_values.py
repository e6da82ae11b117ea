"""Values in the syntax of filters.

In: a value. Out: a word of a filter. Rule: parsing the word gives the same value.
"""

from __future__ import annotations

import numpy as np


def quoted(value: str) -> str:
    """Quote a text."""
    return '"' + value.replace('"', '""') + '"'


def filter_time(micros: int) -> str:
    """Write a time, given in microseconds since 1970."""
    return f"{np.datetime64(micros, 'us')}Z"
