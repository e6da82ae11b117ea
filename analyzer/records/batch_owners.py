"""Batches of record sets -> rows in the order of their sets' exchanges.

In: tables of batches (`batches.py`), and the numbers of the sets of ended exchanges. Out: the rows of these, in that
order, with the index of their set in B_SET; the further columns of `batches`; and counts. Kernels;
`tests/analyzer/records/test_batch_owners.py` has their reference implementations.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.records.batches import (
    B_AT,
    B_ATTRIBUTES,
    B_BASE_SEQUENCE,
    B_COLUMNS,
    B_COUNT,
    B_CRC_OK,
    B_DELETE_HORIZON,
    B_FIRST_TIMESTAMP,
    B_LAST_TIMESTAMP,
    B_LENGTH,
    B_MAGIC,
    B_PRODUCER_EPOCH,
    B_PRODUCER_ID,
    B_REASON,
    B_RECORDS_AT,
    B_SET,
    B_STATE,
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    PARTIAL,
    REASON_BOMB,
    REASON_INNER_CRC,
    REASON_NONE,
    REASON_NOT_CAPTURED,
    TRANSACTIONAL,
    ZSTD,
)
from kwire.captures.kernels import NULL, Flag, Int, Table, inline, kernel

O_CONNECTION, O_EXCHANGE, O_REPLY, O_SIDE, O_TOPIC, O_TOPIC_ID, O_PARTITION, O_COLUMNS = range(8)
"""Columns of a set's origin (`arrow_tables.Origins`)."""

(
    R_CODEC,
    R_TIMESTAMP_TYPE,
    R_TRANSACTIONAL,
    R_CONTROL,
    R_CRC_OK,
    R_PRODUCER_ID,
    R_PRODUCER_EPOCH,
    R_BASE_SEQUENCE,
    R_FIRST_TIMESTAMP,  # from here on microseconds
    R_LAST_TIMESTAMP,
    R_DELETE_HORIZON,
    R_COLUMNS,
) = range(O_COLUMNS, O_COLUMNS + 12)
"""Columns of a batch that `tell` adds behind its set's origin."""

(
    C_BATCHES,
    C_RECORDS,
    C_BYTES,
    C_CONTROL,
    C_BAD_CHECKSUMS,
    C_PARTIAL,
    C_BOMBS,
    C_NOT_READ,
    C_CODECS,  # from here on one of each codec
) = range(9)
"""What is counted of batches."""

FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 and 9999: what Python, and so most readers of the tables, can represent."""


@kernel
def settle(table: Table, at: Table, number: Table) -> None:
    """Places that count from the heap's start count from that of their set, whose number comes into B_SET. at, number:
    int64[sets]."""
    for i in range(table.shape[1]):
        which = table[B_SET, i]
        table[B_AT, i] -= at[which]
        if table[B_RECORDS_AT, i] != NULL:
            table[B_RECORDS_AT, i] -= at[which]
        table[B_SET, i] = number[which]


@inline
def _slot(number: Int, numbers: Table, slots: Table) -> Int:
    """Where `number` is, or would be, among the slots of some of `numbers`."""
    mask = np.int64(len(slots) - 1)
    at = number & mask
    while slots[at] >= 0 and numbers[slots[at]] != number:
        at = (at + 1) & mask
    return at


@kernel
def learn(numbers: Table, slots: Table) -> None:
    """Where each of `numbers` is, for `owners`: slots int64[a power of two, more than there are numbers], all -1, hold
    the first of equal ones. (They were counted one after the other, so hardly two want the same slot.)"""
    for i in range(len(numbers)):
        at = _slot(numbers[i], numbers, slots)
        if slots[at] < 0:
            slots[at] = i


@kernel
def owners(sets: Table, numbers: Table, slots: Table, owner: Table, after: Table) -> None:
    """owner[i]: which of `numbers` is sets[i], -1: none. after[k + 1] grows by one for each that is k."""
    for i in range(len(sets)):
        owner[i] = slots[_slot(sets[i], numbers, slots)]
        if owner[i] >= 0:
            after[owner[i] + 1] += 1


@kernel
def put(table: Table, owner: Table, next_of: Table, place: Table, out: Table) -> None:
    """The rows that have an owner to where the next row of this one goes in `out`; B_SET is the owner there. place
    int64[n]: for the kernel alone."""
    n = table.shape[1]
    for i in range(n):
        place[i] = -1
        if owner[i] >= 0:
            place[i] = next_of[owner[i]]
            next_of[owner[i]] += 1
    for column in range(B_COLUMNS):
        for i in range(n):
            if place[i] >= 0:
                out[column, place[i]] = table[column, i]
    for i in range(n):
        if place[i] >= 0:
            out[B_SET, place[i]] = owner[i]


@inline
def _has(attributes: Int, magic: Int, bit: Int) -> Flag:
    """A batch of magic 2 with a bit among its attributes."""
    return magic == 2 and attributes != NULL and attributes & bit != 0


@inline
def _not_negative(value: Int) -> Int:
    """-1 is Kafka's "none"."""
    return value if value >= 0 else np.int64(NULL)


@inline
def _micros(millis: Int) -> Int:
    """A time of Kafka, in ms; -1 is none."""
    return millis * 1000 if FIRST_MS <= millis <= LAST_MS and millis != -1 else np.int64(NULL)


@kernel
def tell(table: Table, origins: Table, out: Table) -> None:
    """Fill in out int64[R_COLUMNS, n], the columns of batches. origins int64[O_COLUMNS, sets], by B_SET."""
    n = table.shape[1]
    for column in range(O_COLUMNS):
        for i in range(n):
            out[column, i] = origins[column, table[B_SET, i]]
    for i in range(n):
        attributes, magic = table[B_ATTRIBUTES, i], table[B_MAGIC, i]
        known = attributes != NULL
        codec, appended = attributes & CODEC_MASK, np.int64(attributes & LOG_APPEND_TIME != 0)
        out[R_CODEC, i] = codec if known and codec <= ZSTD else np.int64(NULL)
        out[R_TIMESTAMP_TYPE, i] = appended if known and magic > 0 else np.int64(NULL)
        out[R_TRANSACTIONAL, i] = np.int64(_has(attributes, magic, TRANSACTIONAL)) if known else np.int64(NULL)
        out[R_CONTROL, i] = np.int64(_has(attributes, magic, CONTROL)) if known else np.int64(NULL)
        out[R_CRC_OK, i] = table[B_CRC_OK, i]
        out[R_PRODUCER_ID, i] = _not_negative(table[B_PRODUCER_ID, i])
        out[R_PRODUCER_EPOCH, i] = _not_negative(table[B_PRODUCER_EPOCH, i])
        out[R_BASE_SEQUENCE, i] = _not_negative(table[B_BASE_SEQUENCE, i])
        out[R_FIRST_TIMESTAMP, i] = _micros(table[B_FIRST_TIMESTAMP, i])
        out[R_LAST_TIMESTAMP, i] = _micros(table[B_LAST_TIMESTAMP, i])
        out[R_DELETE_HORIZON, i] = _micros(table[B_DELETE_HORIZON, i])


@inline
def _unread(reason: Int) -> Flag:
    """The batch is all there, and its records cannot all be read; bombs are counted apart."""
    fine = reason == REASON_NONE or reason == REASON_INNER_CRC
    return not fine and reason != REASON_NOT_CAPTURED and reason != REASON_BOMB


@kernel
def count(table: Table, sides: Table, counts: Table) -> None:
    """Count batches. sides int64[sets]: B_SET says which is whose; counts int64[sides + 1, C_CODECS + codecs], the last
    row for those of no side."""
    for i in range(table.shape[1]):
        side = sides[table[B_SET, i]]
        of = side if 0 <= side < len(counts) - 1 else np.int64(len(counts) - 1)
        attributes, reason = table[B_ATTRIBUTES, i], table[B_REASON, i]
        counts[of, C_BATCHES] += 1
        counts[of, C_RECORDS] += max(table[B_COUNT, i], np.int64(0))
        counts[of, C_BYTES] += table[B_LENGTH, i]
        counts[of, C_CONTROL] += np.int64(_has(attributes, table[B_MAGIC, i], CONTROL))
        counts[of, C_BAD_CHECKSUMS] += np.int64(table[B_CRC_OK, i] == 0)
        counts[of, C_PARTIAL] += np.int64(table[B_STATE, i] == PARTIAL)
        counts[of, C_BOMBS] += np.int64(reason == REASON_BOMB)
        counts[of, C_NOT_READ] += np.int64(_unread(reason))
        codec = C_CODECS + (attributes & CODEC_MASK)
        if attributes != NULL and codec < counts.shape[1]:
            counts[of, codec] += 1


@kernel
def divide(length: Table, records: Table, most_bytes: Int, most_records: Int, begins: Table) -> Int:
    """Divide batches of so many bytes and records into tasks of about `most_bytes` or `most_records`, whichever comes
    first. begins int64[n]: the first batch of each; returns how many there are."""
    record_bytes = most_bytes // most_records
    total, before, many = np.int64(0), np.int64(0), np.int64(0)
    for i in range(len(length)):
        total += max(length[i], min(max(records[i], np.int64(1)), most_records) * record_bytes)
        task = total // most_bytes
        if i == 0 or task != before:
            begins[many] = i
            many += 1
        before = task
    return many
