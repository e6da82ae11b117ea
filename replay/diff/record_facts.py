"""Read the facts of records that comparing needs: digest, producer, offset.

In: the bytes of one `records` field, or of many, of any magic and codec. Out: `Record`s in order, or columns of them
(`Content`); their content as a digest of key, value and headers. Rules: a batch cut off at the end of a fetch is left
out, as clients do; a batch that cannot be read has no records.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kwire.analyzer.records import batch_reader as opening
from kwire.analyzer.records.batches import (
    B_ATTRIBUTES,
    B_MAGIC,
    B_PRODUCER_ID,
    B_SET,
    CODEC_MASK,
    CODECS,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batches,
    view,
)
from kwire.captures.kernels import NULL

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Heap = npt.NDArray[np.uint8]

DIGEST: Final = 16
"""Bytes of a record's digest."""
_ABSENT: Final = (1 << 64) - 1
_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Record:
    """`digest`: of key, value and headers, with their lengths. `producer_id` is -1 for none. `control`: a marker.
    `form`: how its batch is stored, a place in `FORMS`; `time`: its timestamp, ms, -1 for none."""

    offset: int
    digest: bytes
    producer_id: int
    transactional: bool
    control: str | None
    form: int = 0
    time: int = -1


class Form(NamedTuple):
    """How a batch is stored. `codec`: of `CODECS`, or its number; `appended`: with the broker's time, not its
    producer's (LogAppendTime); `magic`: 0 and 1 are message sets."""

    codec: str
    appended: bool
    magic: int

    def text(self) -> str:
        """For a person."""
        when = "" if self.magic < 1 else ", LogAppendTime" if self.appended else ", CreateTime"
        return f"{'not compressed' if self.codec == CODECS[0] else self.codec}{when}, format v{self.magic}"


FORMS: Final[tuple[Form, ...]] = tuple(
    Form(CODECS[codec] if codec < len(CODECS) else str(codec), bool(appended), magic)
    for magic in range(4)
    for appended in range(2)
    for codec in range(CODEC_MASK + 1)
)


CREATED: Final = np.array([not form.appended and form.magic >= 1 for form in FORMS])
"""By place in `FORMS`: is a record's timestamp that of its producer (CreateTime)?"""


def _form(attributes: int, magic: int) -> int:
    """The place in `FORMS` of a batch with these attributes; what is not known (`NULL`) counts as 0."""
    bits = 0 if attributes == NULL else attributes
    appended = bool(bits & LOG_APPEND_TIME) and magic >= 1
    return (min(max(magic, 0), 3) * 2 + appended) * (CODEC_MASK + 1) + (bits & CODEC_MASK)


@dataclass(frozen=True, slots=True)
class Content:
    """Records of several fields, by columns, in order. `field`: which of them; `producer_id`: -1 for none; `control`:
    NULL for what is no marker; `form`: a place in `FORMS`; `time`: ms, -1 for none."""

    field: Numbers
    offset: Numbers
    producer_id: Numbers
    transactional: Flags
    control: Numbers
    form: Heap
    time: Numbers
    digests: list[bytes]

    def __len__(self) -> int:
        return len(self.field)


class Reader:
    """Reads one field after the other, with buffers that are used again."""

    def __init__(self) -> None:
        self._opener = opening.BatchReader(rows=1 << 12)

    def read(self, field: bytes) -> list[Record]:
        """The records of one field."""
        if not field:
            return []
        content = self.content(np.frombuffer(bytearray(field), np.uint8), np.zeros(1, np.int64), np.full(1, len(field)))
        columns = (
            content.offset,
            content.producer_id,
            content.transactional,
            content.control,
            content.form,
            content.time,
        )
        return [
            Record(offset, digest, producer, transactional, _control(control), form, time)
            for digest, offset, producer, transactional, control, form, time in zip(
                content.digests, *(column.tolist() for column in columns), strict=True
            )
        ]

    def content(self, heap: Heap, at: Numbers, length: Numbers, *, digested: bool = True) -> Content:
        """The records of many fields, which lie in `heap`. `digested` False: `digests` stays empty."""
        stored = batches(heap, at, length)
        attributes, magics = stored.table[B_ATTRIBUTES], stored.table[B_MAGIC]
        producers = stored.table[B_PRODUCER_ID]
        kinds, which = np.unique(np.stack([attributes, magics]), axis=1, return_inverse=True)
        forms = np.fromiter(map(_form, *kinds.tolist()), np.uint8, kinds.shape[1])[which.reshape(-1)]
        batch, offset, control, time = [_NOTHING], [_NOTHING], [_NOTHING], [_NOTHING]
        digests: list[bytes] = []
        for piece in self._opener.open(stored):
            batch.append(piece.table[opening.R_BATCH].copy())
            offset.append(piece.table[opening.R_OFFSET].copy())
            control.append(piece.table[opening.R_CONTROL].copy())
            time.append(piece.table[opening.R_TIMESTAMP].copy())
            if digested:
                digests += _digests(piece)
        of, times = np.concatenate(batch), np.concatenate(time)
        return Content(
            stored.table[B_SET][of],
            np.concatenate(offset),
            np.where(producers == NULL, -1, producers)[of],
            ((attributes & TRANSACTIONAL) != 0)[of],
            np.concatenate(control),
            forms[of],
            np.where(times == NULL, -1, times),
            digests,
        )


def _digests(piece: opening.RecordRows) -> list[bytes]:
    """Of each record of a piece: of key, value and headers, each behind its length."""
    heaps = tuple(view(heap) for heap in piece.heaps)
    table = piece.table
    lengths = table[[opening.R_KEY_LENGTH, opening.R_VALUE_LENGTH]]
    # Big-endian lengths of each record's key and value, -1 for null.
    prefixes = np.where(lengths == NULL, -1, lengths).T.astype(">i8").tobytes()
    sizes = np.where(lengths == NULL, 0, lengths)
    starts = table[[opening.R_KEY_AT, opening.R_VALUE_AT]]
    places = np.stack([starts[0], starts[0] + sizes[0], starts[1], starts[1] + sizes[1]])
    rows = zip(table[opening.R_HEAP].tolist(), *places.tolist(), table[opening.R_HEADERS].tolist(), strict=True)
    headers = _headers(piece)
    out = []
    at = 0
    for which, key, key_end, value, value_end, count in rows:
        data = heaps[which]
        parts = [prefixes[at : at + 8], data[key:key_end], prefixes[at + 8 : at + 16], data[value:value_end]]
        at += 16
        for _ in range(count):
            heap, *places_of = next(headers)
            for start, size in (places_of[:2], places_of[2:]):
                parts.append((_ABSENT if size == NULL else size).to_bytes(8, "big"))
                parts.append(heaps[heap][start : start + max(size, 0)])
        out.append(hashlib.blake2b(b"".join(parts), digest_size=DIGEST).digest())
    return out


def _control(kind: int) -> str | None:
    if kind == NULL:
        return None
    return opening.CONTROL_TYPES[kind] if 0 <= kind < len(opening.CONTROL_TYPES) else str(kind)


def _headers(piece: opening.RecordRows) -> Any:
    """Where each header's name and value lie, in order of the records."""
    table = piece.table
    count = np.ascontiguousarray(table[opening.R_HEADERS])
    total = int(count.sum())
    places = np.empty((5, total), np.int64)
    if total:
        opening.headers_of(
            *piece.heaps,
            np.ascontiguousarray(table[opening.R_HEAP]),
            np.ascontiguousarray(table[opening.R_HEADERS_AT]),
            count,
            places,
        )
    return iter(places.T.tolist())
