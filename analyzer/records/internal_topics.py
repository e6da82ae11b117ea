"""Keys, values and headers of records as Arrow columns, and what records of internal topics mean.

In: `RecordRows`. Out: the columns of `records` that only `--records full` fills. Bytes are copied by a kernel, one
column at a time; secrets in records of internal topics are overwritten with `*` on the way.

Rule: decoding a record costs thousands of times what reading one does, and a few bytes may be a million records when
decompressed. So a batch may cost `_COST_A_BYTE` for each of its bytes on the wire; what is beyond is named in the first
row that is left out, and its values, whose secrets nobody looked for, become `*` as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.arrow import text
from kwire.analyzer.protocol import embedded, schema
from kwire.analyzer.records import batch_reader as r
from kwire.captures.kernels import NULL

_SHORTEST_METADATA = 4
"""Bytes of a metadata record with anything in it: frame version, type, version, and one more."""
_RECORD_COST: Final = 64
"""Cost of decoding a record, besides one for each byte of its key and value."""
_COST_A_BYTE: Final = 16
"""Brokers do not compress their own topics: their records cost less than 3 a byte; in batches of eightfold
compression, less than 16."""
_LEFT_OUT: Final = "not decoded: too many records for the size of their batch"


@dataclass(slots=True)
class Costs:
    """Cost of decoding the latest batch so far, for batches whose records come in several pieces."""

    _batch: int = -1
    _spent: int = 0

    def within(self, piece: r.RecordRows, batch_bytes: np.ndarray) -> np.ndarray:
        """Return bool[n], whether a record may be decoded. Pieces come in order; batch_bytes: int64[n], the size on the
        wire of each record's batch."""
        t = piece.table
        batch = t[r.R_BATCH]
        if not len(batch):
            return np.zeros(0, np.bool_)
        cost = _RECORD_COST + np.maximum(t[r.R_KEY_LENGTH], 0) + np.maximum(t[r.R_VALUE_LENGTH], 0)
        before = np.cumsum(cost) - cost
        first = np.flatnonzero(np.diff(batch, prepend=-1))
        spent = before - np.repeat(before[first], np.diff(first, append=len(batch)))
        spent[batch == self._batch] += self._spent
        self._batch, self._spent = int(batch[-1]), int(spent[-1] + cost[-1])
        within: np.ndarray = spent < _COST_A_BYTE * batch_bytes
        return within


def columns(
    piece: r.RecordRows, which: np.ndarray, topics: Sequence[str | None], within: np.ndarray
) -> dict[str, pa.Array]:
    """key, value, headers, decoded. which: int64[n], the record set of each record; topics: the names of their topics,
    None where not known; within: bool[n], of `Costs`."""
    t = piece.table
    values, offsets = _bytes(piece, t[r.R_HEAP], t[r.R_VALUE_AT], t[r.R_VALUE_LENGTH])
    keys, key_offsets = _bytes(piece, t[r.R_HEAP], t[r.R_KEY_AT], t[r.R_KEY_LENGTH])
    internal = np.array([name in schema.TOPICS for name in topics], bool)[which]
    control = t[r.R_CONTROL] != NULL
    decoded: list[str | None] = [None] * len(which)
    for i in np.flatnonzero((internal | control) & within).tolist():
        topic = topics[which[i]] or ""
        key = keys[key_offsets[i] : key_offsets[i + 1]].tobytes() if t[r.R_KEY_LENGTH, i] != NULL else None
        value = values[offsets[i] : offsets[i + 1]].tobytes() if t[r.R_VALUE_LENGTH, i] != NULL else None
        decoded[i] = embedded.decode_record(topic, key, value, control=bool(control[i]))
        for start, stop in embedded.record_secrets(topic, key, value) if internal[i] else ():
            values[offsets[i] + start : offsets[i] + stop] = ord("*")
    candidates = ~internal & ~control & (t[r.R_KEY_LENGTH] == NULL) & (t[r.R_VALUE_LENGTH] >= _SHORTEST_METADATA)
    _mask_copies(values, offsets, np.flatnonzero(candidates & within))
    beyond = (internal | control) & ~within
    _mask_whole(values, offsets, beyond | (candidates & ~within & _may_hold_secrets(values, offsets)))
    for i, count in _first_of_each(t[r.R_BATCH], np.flatnonzero(beyond)):
        decoded[i] = json.dumps({"left_out": count, "reason": _LEFT_OUT}, separators=(",", ":"))
    return {
        "key": _binary(keys, key_offsets, t[r.R_KEY_LENGTH] == NULL),
        "value": _binary(values, offsets, t[r.R_VALUE_LENGTH] == NULL),
        "headers": _headers(piece),
        "decoded": pa.array(decoded, pa.string()),
    }


def _mask_copies(values: np.ndarray, offsets: np.ndarray, candidates: np.ndarray) -> None:
    """Overwrite the secrets of metadata records in logs of other names, because the segment may be a copy."""
    for i in candidates[_may_hold_secrets(values, offsets)[candidates]].tolist():
        value = values[offsets[i] : offsets[i + 1]].tobytes()
        for start, stop in embedded.copied_secrets(value):
            values[offsets[i] + start : offsets[i] + stop] = ord("*")


def _may_hold_secrets(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Whether values begin as metadata records of a type with secrets do: bool[n]."""
    long = np.diff(offsets) >= _SHORTEST_METADATA
    at = offsets[:-1][long]
    begins = values[at] == embedded.METADATA_FRAME_VERSION
    if begins.any():
        begins &= np.isin(values[at + 1], list(embedded.secret_record_types()))
    result = np.zeros(len(long), np.bool_)
    result[long] = begins
    return result


def _mask_whole(values: np.ndarray, offsets: np.ndarray, which: np.ndarray) -> None:
    """Overwrite all of some values."""
    if which.any():
        values[np.repeat(which, np.diff(offsets))] = ord("*")


def _first_of_each(batch: np.ndarray, rows: np.ndarray) -> list[tuple[int, int]]:
    """Return the first of the rows of each batch, and how many there are of it."""
    _, first, counts = np.unique(batch[rows], return_index=True, return_counts=True)
    return list(zip(rows[first].tolist(), counts.tolist(), strict=True))


def _bytes(piece: r.RecordRows, heap: np.ndarray, at: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the bytes of some field of all records one behind another, int64[n + 1] where each starts)."""
    sizes = np.where(length == NULL, 0, length)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    r.gather(*piece.heaps, heap, at, sizes, offsets, out)
    return out, offsets


def _binary(data: np.ndarray, offsets: np.ndarray, absent: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """A column of bytes. A piece's batches hold less than 2 GiB (`BatchLimits`), as its int32 offsets
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
        names = compute.cast(names, pa.string())  # checks that they are UTF-8
    except pa.ArrowInvalid:
        names = pa.array([text(name) for name in names.to_pylist()], pa.string())
    values = _binary(*_bytes(piece, heap, value_at, value_length), value_length == NULL)
    pairs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return compute.cast(pa.ListArray.from_arrays(arrow.over(offsets, pa.int32()), pairs), tables.HEADERS)
