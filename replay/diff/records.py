"""What lies in a `records` field, as far as comparing wants it: which record, from whom, at which offset.

In: the bytes of one `records` field, of any magic and codec. Out: `Record`s in order, their content as a digest of key,
value and headers. Rules: a batch cut off at the end of a fetch is left out, as clients do; a batch that cannot be read
has no records.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from analyzer.records import opening as opening
from analyzer.records.batches import (
    B_ATTRIBUTES,
    B_MAGIC,
    B_PRODUCER_ID,
    CODEC_MASK,
    CODECS,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batches,
    batches,
    view,
)
from captures.kernels import NULL

_ABSENT: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """`digest`: of key, value and headers, with their lengths. `producer_id` is -1 for none. `control`: a marker.
    `form`: how its batch is stored, a place in `FORMS`."""

    offset: int
    digest: bytes
    producer_id: int
    transactional: bool
    control: str | None
    form: int = 0


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
    for magic in range(4) for appended in range(2) for codec in range(CODEC_MASK + 1)
)  # fmt: skip


def _form(attributes: int, magic: int) -> int:
    """The place in `FORMS` of a batch with these attributes; what is not known (`NULL`) counts as 0."""
    bits = 0 if attributes == NULL else attributes
    appended = bool(bits & LOG_APPEND_TIME) and magic >= 1
    return (min(max(magic, 0), 3) * 2 + appended) * (CODEC_MASK + 1) + (bits & CODEC_MASK)


class Reader:
    """Reads one field after the other, with buffers that are used again."""

    def __init__(self) -> None:
        self._opener = opening.Opener(rows=1 << 12)

    def read(self, field: bytes) -> list[Record]:
        """The records of one field."""
        if not field:
            return []
        stored = batches(np.frombuffer(bytearray(field), np.uint8), np.zeros(1), np.full(1, len(field)))
        out: list[Record] = []
        for piece in self._opener.open(stored):
            out += _records(piece, stored)
        return out


def _records(piece: opening.Piece, stored: Batches) -> list[Record]:
    heaps = tuple(view(heap) for heap in piece.heaps)
    table = piece.table
    headers = _headers(piece)
    attributes, producers = stored.table[B_ATTRIBUTES].tolist(), stored.table[B_PRODUCER_ID].tolist()
    forms = [_form(bits, magic) for bits, magic in zip(attributes, stored.table[B_MAGIC].tolist(), strict=True)]
    out = []
    rows = table[
        [
            opening.R_BATCH, opening.R_OFFSET, opening.R_HEAP, opening.R_KEY_AT, opening.R_KEY_LENGTH,
            opening.R_VALUE_AT, opening.R_VALUE_LENGTH, opening.R_HEADERS, opening.R_CONTROL,
        ]
    ].T.tolist()  # fmt: skip
    for batch, offset, which, key_at, key, value_at, value, count, control in rows:
        data = heaps[which]
        digest = hashlib.blake2b(digest_size=16)
        _add(digest, data, key_at, key)
        _add(digest, data, value_at, value)
        for _ in range(count):
            heap, name_at, name, content_at, content = next(headers)
            _add(digest, heaps[heap], name_at, name)
            _add(digest, heaps[heap], content_at, content)
        producer = producers[batch]
        out.append(
            Record(
                offset,
                digest.digest(),
                -1 if producer == NULL else producer,
                bool(attributes[batch] & TRANSACTIONAL),
                _control(control),
                forms[batch],
            )
        )
    return out


def _control(kind: int) -> str | None:
    if kind == NULL:
        return None
    return opening.CONTROL_TYPES[kind] if 0 <= kind < len(opening.CONTROL_TYPES) else str(kind)


def _add(digest: Any, data: memoryview, at: int, length: int) -> None:
    if length == NULL:
        digest.update(_ABSENT.to_bytes(8, "big"))
    else:
        digest.update(length.to_bytes(8, "big"))
        digest.update(data[at : at + length])


def _headers(piece: opening.Piece) -> Any:
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
