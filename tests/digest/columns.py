"""Digests of Arrow columns by value.

In: columns of tables. Out: a hexadecimal digest of each column's values in order. Rules: chunks, dictionaries, offsets
into larger buffers and what lies below a null leave no trace; every value, every null, the length of every list and
the name of every field of a struct does.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES = 12
"""Enough that two columns of the millions ever compared are not equal by chance."""


def table_digest(table: pa.Table) -> dict[str, Any]:
    """A table's number of rows, and of each column its type and the digest of its values."""
    return {
        "rows": len(table),
        "columns": {name: column_digest(table[name]) for name in table.column_names},
    }


def column_digest(column: pa.ChunkedArray) -> str:
    """`TYPE DIGEST` of a column; the type as it is without a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _add(digest, column.combine_chunks() if column.num_chunks else pa.array([], column.type))
    return f"{column.type} {digest.hexdigest()}"


def text_digest(text: str) -> str:
    """`LINES lines DIGEST` of what a command printed."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=DIGEST_BYTES)
    return f"{text.count(chr(10))} lines {digest.hexdigest()}"


def _add(digest: hashlib.blake2b, array: Any) -> None:
    """Add an array's values, level by level: which are null, how long each list is, then what is inside."""
    if isinstance(array, pa.ChunkedArray):  # what `combine_chunks` leaves of a column too large for one array
        raise TypeError(f"a column of {array.num_chunks} chunks that cannot be combined")
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    digest.update(len(array).to_bytes(8, "little"))
    digest.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = array.drop_null()
        digest.update(_plain(pc.list_value_length(values)))
        _add(digest, values.flatten())
    elif pa.types.is_map(kind):  # few rows have any
        digest.update(repr(array.drop_null().to_pylist()).encode())
    elif pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):  # a child of a null struct is null
            digest.update(field.name.encode() + b"\0")
            _add(digest, child)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = array.drop_null()
        digest.update(_plain(pc.binary_length(values)))
        digest.update(_content(values))
    else:
        digest.update(_plain(array.drop_null()))


def _plain(values: Any) -> bytes:
    """The bytes of fixed-width values none of which is null."""
    plain = values.to_numpy(zero_copy_only=False)
    if plain.dtype.kind == "O":
        if len(plain):
            raise TypeError(f"no digest for values of type {values.type}")
        return b""
    return bytes(plain.tobytes())


def _content(values: Any) -> bytes:
    """The bytes of all strings, one after the other."""
    if not len(values):
        return b""
    _, offsets, content = values.buffers()
    if content is None:
        return b""
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return memoryview(content)[bounds[0] : bounds[-1]].tobytes()
