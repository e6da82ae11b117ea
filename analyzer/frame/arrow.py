"""Convert arrays of integers to Arrow columns, and back.

In: NumPy's int64, `NULL` where a value is absent, and for strings their numbers and the distinct values. Out: Arrow
arrays. Rules: no row makes a Python object; a column of strings is built as indices into the few distinct ones; what
has the right width already is not copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.common.times import moment
from kwire.analyzer.dataset import tables
from kwire.captures.kernels import NULL


def text(value: bytes) -> str:
    """Decode a string of the wire. Kafka's strings are UTF-8; other bytes become `\\xNN`, so that none is lost."""
    return value.decode("utf-8", "backslashreplace")


def plain(table: pa.Table, name: str, columns: Collection[str] | None = None) -> pa.Table:
    """Cast a table to the plain types of the contract; `columns`: some of them, None: all."""
    schema = tables.schema(name)
    if columns is None:
        return tables.cast(table, schema)
    schema = pa.schema([field for field in schema if field.name in columns])
    return tables.cast(table.select(schema.names), schema)


def as_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def python_values(column: pa.ChunkedArray) -> Iterable[Any]:
    """Return the values of a column as Python objects. (`to_pylist` makes an object of each null, and most columns have
    nothing else; of times it is several times as slow as this.)"""
    if column.null_count == len(column):
        return itertools.repeat(None, len(column))
    if pa.types.is_timestamp(column.type):
        times = numbers(as_array(column), NULL).tolist()
        return [None if time == NULL else moment(time) for time in times]
    values: list[Any] = column.to_pylist()
    return values


def row_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Return the rows of a table as dicts; few thousand at a time, for each takes some kilobytes."""
    columns = [python_values(column) for column in table.itercolumns()]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in order. (`np.unique` of this form loads NumPy's masked arrays.)"""
    ordered = np.sort(values)
    result: np.ndarray = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    return result


def codes(column: pa.ChunkedArray) -> np.ndarray:
    """Number the values of a column of strings, integers or times: int64[n], equal numbers for equal values, from
    -1 on for null where it has a narrow range."""
    if column.null_count == len(column):
        return zeros(len(column), np.int64)
    if not pa.types.is_string(column.type):
        values = numbers(as_array(column), NULL)
        absent = _absent(values)
        if absent is not None:
            values[absent] = values[~absent].min() - 1
        return values
    return numbers(compute.dictionary_encode(as_array(column)).indices, -1)


def numbers(values: pa.Array, null: int) -> np.ndarray:
    """Integers, times (as they are stored) or truths as int64[n], `null` where there is none."""
    out = np.empty(len(values), np.int64)
    put_numbers(values, null, out)
    return out


def put_numbers(values: pa.Array, null: int, out: np.ndarray) -> None:
    """Write integers, times or truths into an array of that length, `null` where there is none."""
    length, offset = len(values), values.offset
    if values.null_count == length:
        out[:] = null
        return
    data = values.buffers()[1]
    if pa.types.is_boolean(values.type):
        out[:] = _bits(data, offset, length)
    else:
        out[:] = stored(values)
    if values.null_count:
        out[absent(values)] = null


def stored(values: pa.Array) -> np.ndarray:
    """Integers or times as they are stored; a null may have any value."""
    sign = "u" if pa.types.is_unsigned_integer(values.type) else "i"
    values_stored = np.frombuffer(values.buffers()[1], f"{sign}{values.type.bit_width // 8}")
    return values_stored[values.offset : values.offset + len(values)]


def absent(values: pa.Array) -> np.ndarray:
    """bool[n]: whether each value is null."""
    if not values.null_count:
        return np.zeros(len(values), np.bool_)
    return np.asarray(~_bits(values.buffers()[0], values.offset, len(values)))


def list_lengths(values: pa.Array) -> np.ndarray:
    """int64[n]: how many elements each list has; a null has none."""
    lengths = np.diff(np.asarray(values.offsets)).astype(np.int64)
    if values.null_count:
        lengths[absent(values)] = 0
    return lengths


def list_elements(values: pa.Array) -> pa.Array:
    """The elements of all lists, one list after the other."""
    if not len(values):
        return values.values.slice(0, 0)
    if values.null_count and np.diff(np.asarray(values.offsets))[absent(values)].any():
        return values.flatten()  # there are elements below a null; pyarrow.compute is loaded to leave them out
    first, last = (values.offsets[position].as_py() for position in (0, len(values)))
    return values.values.slice(first, last - first)


def _bits(buffer: Any, offset: int, length: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(buffer or b"", np.uint8), bitorder="little")
    return bits[offset : offset + length].astype(np.bool_)


_LISTED = 1 << 12
"""Numbers below it, such as keys of APIs and symbols, are looked up in a table."""


def among(values: np.ndarray, few: Sequence[int] | np.ndarray) -> np.ndarray:
    """bool[n]: which integers are one of `few`. (`np.isin` loads NumPy's masked arrays.)"""
    if len(few) <= 8:
        within = np.zeros(len(values), np.bool_)
        for number in few:
            within |= values == number
        return within
    ordered = np.sort(np.asarray(few, np.int64))
    if ordered[0] >= 0 and ordered[-1] < _LISTED:
        there = np.zeros(int(ordered[-1]) + 2, np.bool_)
        there[ordered] = True
        # What is negative is above all as an unsigned number, so the last tells of it.
        at = np.minimum(values.astype(np.int64, copy=False).view(np.uint64), np.uint64(len(there) - 1))
        listed: np.ndarray = there[at.view(np.int64)]
        return listed
    return among_ordered(values, ordered)


def among_ordered(values: np.ndarray, some: np.ndarray) -> np.ndarray:
    """bool[n]: like `among`, for one number or more in ascending order; callers that look up the same set repeatedly
    sort it once."""
    is_among: np.ndarray = some[np.minimum(np.searchsorted(some, values), len(some) - 1)] == values
    return is_among


def compact(numbers: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(distinct numbers in use, ascending; position of each row's number among them, 0 where NULL)."""
    at = np.where(numbers == NULL, count, numbers)
    place = np.zeros(count + 1, np.int32)
    place[at] = 1
    place[count] = 0
    used = np.flatnonzero(place)
    place[used] = np.arange(len(used))
    return used, place[at]


def minus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b, NULL where one of them is NULL."""
    return np.where((a == NULL) | (b == NULL), NULL, a - b)


def micros(nanos: np.ndarray) -> np.ndarray:
    """Convert nanoseconds to microseconds; NULL stays NULL."""
    absent = nanos == NULL
    values: np.ndarray = nanos // 1000
    if absent.any():
        values[absent] = NULL
    return values


def over(values: np.ndarray, kind: pa.DataType, absent: np.ndarray | None = None) -> pa.Array:
    """Wrap the memory of `values`, of the width of `kind`, as an Arrow array; `values` must not change any more."""
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


_ZEROS: Final = np.zeros(1 << 20, np.uint8)
"""Shared memory of all columns of nulls; it is never written to."""


def zeros(count: int, kind: type[np.generic] | str) -> np.ndarray:
    """Return `count` zeros that must not be written to."""
    size = count * np.dtype(kind).itemsize
    if size > len(_ZEROS):
        return np.zeros(count, kind)
    result: np.ndarray = _ZEROS[:size].view(kind)
    return result


def nothing(kind: pa.DataType, count: int) -> pa.Array:
    """A column of `count` nulls, of integers or times."""
    shared = [pa.py_buffer(zeros(-(-count // 8), np.uint8)), pa.py_buffer(zeros(count, f"i{kind.bit_width // 8}"))]
    return pa.Array.from_buffers(kind, count, shared, count)


def formed(values: np.ndarray, kind: pa.DataType, bits: np.ndarray | None, absent: int) -> pa.Array:
    """Wrap the memory of `values` as an Arrow array; `bits`: which are valid, `absent`: how many are null."""
    valid = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)], absent)


def coded(where: pa.Array, values: Sequence[str]) -> pa.Array:
    """A column of strings, by the index of each row's string in `values`."""
    return pa.DictionaryArray.from_arrays(where, pa.array(values, pa.string()), safe=False)


def no_strings(count: int) -> pa.Array:
    """A column of `count` nulls, of strings. (PyArrow does not make plain strings of an empty dictionary.)"""
    return coded(nothing(pa.int32(), count), [""])


def flags(values: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """A column of booleans, null where not `known`. (`pa.array` of an array loads NumPy's masked ones.)"""
    valid = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [valid, bits])


def _absent(values: np.ndarray) -> np.ndarray | None:
    """bool[n]: whether each value is NULL; None if none is."""
    absent = values == NULL
    return absent if absent.any() else None


def integers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A column of integers of any width."""
    return over(values.astype(f"i{kind.bit_width // 8}", copy=False), kind, _absent(values))


def times(values: np.ndarray) -> pa.Array:
    """A column of times, in microseconds since 1970."""
    return integers(values, tables.TIME)


def dictionary(indices: np.ndarray, values: Any) -> pa.Array:
    """A column of strings, by the index of each row's string in `values`; NULL, in int64 only, is null."""
    absent = _absent(indices) if indices.dtype == np.int64 else None
    where = over(indices.astype(np.int32, copy=False), pa.int32(), absent)
    return pa.DictionaryArray.from_arrays(where, pa.array(list(values) or [""], pa.string()), safe=False)


def strings(numbers: np.ndarray, values: list[str]) -> pa.Array:
    """Like `dictionary`, for few of many `values`: the column's dictionary has only those in use."""
    used, local = compact(numbers, len(values))
    where = over(local, pa.int32(), _absent(numbers))
    few = [values[i] for i in used.tolist()] or [""]
    return pa.DictionaryArray.from_arrays(where, pa.array(few, pa.string()), safe=False)
