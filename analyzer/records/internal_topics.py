"""Keys, values and headers of records as Arrow columns, and what records of internal topics mean.

In: `RecordRows`. Out: the columns of `records` that only `--records full` fills. Bytes are copied by a kernel, one
column at a time; secrets in records of internal topics are overwritten with `*` on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.arrow import text
from kwire.analyzer.protocol import embedded, schema
from kwire.analyzer.records import batch_reader as r
from kwire.captures.kernels import NULL

_SHORTEST_METADATA = 4
"""Bytes of a metadata record with anything in it: frame version, type, version, and one more."""


def columns(piece: r.RecordRows, which: np.ndarray, topics: Sequence[str | None]) -> dict[str, pa.Array]:
    """key, value, headers, decoded. which: int64[n], the record set of each record; topics: the names of their topics,
    None where not known."""
    t = piece.table
    values, offsets = _bytes(piece, t[r.R_HEAP], t[r.R_VALUE_AT], t[r.R_VALUE_LENGTH])
    keys, key_offsets = _bytes(piece, t[r.R_HEAP], t[r.R_KEY_AT], t[r.R_KEY_LENGTH])
    internal = np.array([name in schema.TOPICS for name in topics], bool)[which]
    control = t[r.R_CONTROL] != NULL
    decoded: list[str | None] = [None] * len(which)
    for i in np.flatnonzero(internal | control).tolist():
        topic = topics[which[i]] or ""
        key = keys[key_offsets[i] : key_offsets[i + 1]].tobytes() if t[r.R_KEY_LENGTH, i] != NULL else None
        value = values[offsets[i] : offsets[i + 1]].tobytes() if t[r.R_VALUE_LENGTH, i] != NULL else None
        decoded[i] = embedded.decode_record(topic, key, value, control=bool(control[i]))
        for start, stop in embedded.record_secrets(topic, key, value) if internal[i] else ():
            values[offsets[i] + start : offsets[i] + stop] = ord("*")
    candidates = ~internal & ~control & (t[r.R_KEY_LENGTH] == NULL) & (t[r.R_VALUE_LENGTH] >= _SHORTEST_METADATA)
    _mask_copies(values, offsets, np.flatnonzero(candidates))
    return {
        "key": _binary(keys, key_offsets, t[r.R_KEY_LENGTH] == NULL),
        "value": _binary(values, offsets, t[r.R_VALUE_LENGTH] == NULL),
        "headers": _headers(piece),
        "decoded": pa.array(decoded, pa.string()),
    }


def _mask_copies(values: np.ndarray, offsets: np.ndarray, candidates: np.ndarray) -> None:
    """Overwrite the secrets of metadata records in logs of other names, because the segment may be a copy."""
    at = offsets[:-1][candidates]
    framed = candidates[values[at] == embedded.METADATA_FRAME_VERSION]
    if not len(framed):
        return
    typed = np.isin(values[offsets[:-1][framed] + 1], list(embedded.secret_record_types()))
    for i in framed[typed].tolist():
        value = values[offsets[i] : offsets[i + 1]].tobytes()
        for start, stop in embedded.copied_secrets(value):
            values[offsets[i] + start : offsets[i] + stop] = ord("*")


def _bytes(piece: r.RecordRows, heap: np.ndarray, at: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the bytes of some field of all records one behind another, int64[n + 1] where each starts)."""
    sizes = np.where(length == NULL, 0, length)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    r.gather(*piece.heaps, heap, at, sizes, offsets, out)
    return out, offsets


def _binary(data: np.ndarray, offsets: np.ndarray, absent: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """A column of bytes. A piece's batches hold less than 2 GiB (`Limits`), as its int32 offsets
    must."""
    validity = None
    if absent.any():
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(absent), buffers)


def _headers(piece: r.RecordRows) -> pa.Array:
    """Lists of (key, value). Names are UTF-8 in Kafka; bytes that are not show as `\\xNN`."""
    t = piece.table
    counts = t[r.R_HEADERS]
    headers = np.empty((5, int(counts.sum())), np.int64)
    r.headers_of(*piece.heaps, t[r.R_HEAP], t[r.R_HEADERS_AT], counts, headers)
    heap, name_at, name_length, value_at, value_length = headers
    names = _binary(*_bytes(piece, heap, name_at, name_length), np.zeros(headers.shape[1], bool))
    try:
        names = names.cast(pa.string())  # checks that they are UTF-8
    except pa.ArrowInvalid:
        names = pa.array([text(name) for name in names.to_pylist()], pa.string())
    values = _binary(*_bytes(piece, heap, value_at, value_length), value_length == NULL)
    pairs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(arrow.over(offsets, pa.int32()), pairs).cast(tables.HEADERS)
