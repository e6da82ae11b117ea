"""The few of Arrow's functions that every capture needs, called by their names.

In: Arrow's arrays and tables. Out: the same. Rule: `pyarrow.compute` is not imported, which makes a documented Python
function of each of Arrow's 280 (60 ms, an eighth of what a command takes to begin). An array's own `take`, `cast`,
`filter` and `dictionary_encode` import it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow._compute import CastOptions, TakeOptions, call_function  # where `pyarrow.compute` has them from

Rows = TypeVar("Rows", pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)


def take(values: Rows, rows: np.ndarray) -> Rows:
    """Return the rows of these positions, int64[n], in that order. Raises IndexError where there is none."""
    positions = np.ascontiguousarray(rows, np.int64)
    indices = pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])
    chosen: Rows = call_function("take", [values, indices], TakeOptions(boundscheck=True))
    return chosen


def cast(values: Any, kind: pa.DataType) -> Any:
    """Cast an array to a type. Raises ArrowInvalid where a value does not fit."""
    return values if values.type == kind else call_function("cast", [values], CastOptions.safe(kind))


def dictionary_encode(values: Any) -> Any:
    """Return an array, or a column, of numbers of its distinct values; null stays null."""
    return call_function("dictionary_encode", [values])
