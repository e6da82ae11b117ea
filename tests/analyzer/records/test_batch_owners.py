"""Whose batches are, in what order, and what is said of them: by kernels, and by what is plainly the same.

(proves: analyzer/records/batch_owners.py)
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from kwire.analyzer.records import batch_owners as p
from kwire.analyzer.records import batches as b
from kwire.captures.kernels import NULL

ROWS, SETS = 400, 60


@pytest.fixture
def table() -> np.ndarray:
    """Batches of so many sets, magic and all, some of which know little of themselves."""
    rng = np.random.default_rng(11)
    rows = rng.integers(-3, 4, (b.B_COLUMNS, ROWS))
    rows[b.B_SET] = rng.integers(0, SETS, ROWS)
    rows[[b.B_AT, b.B_RECORDS_AT, b.B_LENGTH]] = rng.integers(0, 5000, (3, ROWS))
    rows[b.B_ATTRIBUTES] = rng.integers(0, 128, ROWS)
    rows[b.B_REASON] = rng.integers(0, b.REASON_NOT_KEPT + 1, ROWS)
    rows[b.B_STATE] = rng.integers(0, 3, ROWS)
    odd = [-1, 0, 1_700_000_000_000, p.FIRST_MS, p.FIRST_MS - 1, p.LAST_MS, p.LAST_MS + 1, 1 << 62]
    for column in (b.B_FIRST_TIMESTAMP, b.B_LAST_TIMESTAMP, b.B_DELETE_HORIZON):
        rows[column] = rng.choice(odd, ROWS)
    for column in (b.B_ATTRIBUTES, b.B_COUNT, b.B_MAGIC, b.B_CRC_OK, b.B_RECORDS_AT, b.B_FIRST_TIMESTAMP):
        rows[column, rng.random(ROWS) < 0.2] = NULL
    rows[b.B_COUNT] = np.where(rows[b.B_COUNT] < 0, NULL, rows[b.B_COUNT])
    return rows


def test_places_count_from_the_start_of_their_set(table: np.ndarray) -> None:
    before, at, number = table.copy(), np.arange(SETS) * 7, np.arange(SETS) * 3 + 1
    p.settle(table, at, number)
    for was, now in zip(before.T.tolist(), table.T.tolist(), strict=True):
        which = was[b.B_SET]
        was[b.B_SET] = 3 * which + 1
        was[b.B_AT] -= 7 * which
        if was[b.B_RECORDS_AT] != NULL:
            was[b.B_RECORDS_AT] -= 7 * which
        assert was == now


@pytest.mark.parametrize("stride", [1, 8, 1 << 40])
@pytest.mark.parametrize("exchanges", [0, 1, 20, SETS])
def test_rows_are_in_the_order_of_who_tells_of_their_set(table: np.ndarray, exchanges: int, stride: int) -> None:
    """Of the numbers of some sets, in any order, one of them twice; rows come in two tables."""
    rng = random.Random(exchanges)
    numbers = [stride * k - 5 for k in rng.sample(range(SETS), exchanges)]
    numbers += numbers[:1]
    table[b.B_SET] = stride * table[b.B_SET] - 5
    parts = [table[:, :150], np.ascontiguousarray(table[:, 150:])]
    known = np.array(numbers, np.int64)
    slots, after = np.full(1 << (2 * len(known)).bit_length(), -1, np.int64), np.zeros(len(known) + 1, np.int64)
    p.learn(known, slots)
    owned = [(part, np.empty(part.shape[1], np.int64)) for part in parts]
    for part, owner in owned:
        p.owners(part[b.B_SET], known, slots, owner, after)
    next_of = np.cumsum(after)
    out = np.full((b.B_COLUMNS, int(next_of[-1])), 77, np.int64)
    for part, owner in owned:
        p.put(part, owner, next_of, np.empty(len(owner), np.int64), out)
    expected = []
    for k, number in enumerate(numbers):
        if numbers.index(number) == k:
            expected += [[k, *row[1:]] for row in table.T.tolist() if row[b.B_SET] == number]
    assert b.B_SET == 0
    assert out.T.tolist() == expected
    assert (np.concatenate([owner for _, owner in owned]) < 0).sum() == ROWS - len(expected)


def test_what_columns_hold(table: np.ndarray) -> None:
    origins = np.random.default_rng(5).integers(-9, 9, (p.O_COLUMNS, SETS))
    out = np.full((p.R_COLUMNS, ROWS), 77, np.int64)
    p.tell(table, origins, out)
    for row, output in zip(table.T.tolist(), out.T.tolist(), strict=True):
        attributes, magic = row[b.B_ATTRIBUTES], row[b.B_MAGIC]
        known = attributes != NULL
        assert output[: p.O_COLUMNS] == origins[:, row[b.B_SET]].tolist()
        assert output[p.R_CODEC] == (attributes & 7 if known and attributes & 7 < len(b.CODECS) else NULL)
        assert output[p.R_TIMESTAMP_TYPE] == (attributes >> 3 & 1 if known and magic > 0 else NULL)
        assert output[p.R_TRANSACTIONAL] == ((magic == 2 and attributes >> 4 & 1) if known else NULL)
        assert output[p.R_CONTROL] == ((magic == 2 and attributes >> 5 & 1) if known else NULL)
        assert output[p.R_CRC_OK] == row[b.B_CRC_OK]
        for which, column in (
            (p.R_PRODUCER_ID, b.B_PRODUCER_ID),
            (p.R_PRODUCER_EPOCH, b.B_PRODUCER_EPOCH),
            (p.R_BASE_SEQUENCE, b.B_BASE_SEQUENCE),
        ):
            assert output[which] == (row[column] if row[column] >= 0 else NULL)
        for which, column in (
            (p.R_FIRST_TIMESTAMP, b.B_FIRST_TIMESTAMP),
            (p.R_LAST_TIMESTAMP, b.B_LAST_TIMESTAMP),
            (p.R_DELETE_HORIZON, b.B_DELETE_HORIZON),
        ):
            time = row[column]
            assert output[which] == (1000 * time if time != -1 and p.FIRST_MS <= time <= p.LAST_MS else NULL)


def test_counts(table: np.ndarray) -> None:
    sides = np.random.default_rng(3).choice([0, 1, NULL], SETS)
    counts = np.zeros((3, p.C_CODECS + len(b.CODECS)), np.int64)
    p.count(table, sides, counts)
    for side, count in zip((0, 1, NULL), counts.tolist(), strict=True):
        rows = [row for row in table.T.tolist() if sides[row[b.B_SET]] == side]
        read = {b.REASON_NONE, b.REASON_NOT_CAPTURED, b.REASON_BOMB, b.REASON_INNER_CRC}
        assert len(rows) > 50
        assert count == [
            len(rows),
            sum(row[b.B_COUNT] for row in rows if row[b.B_COUNT] != NULL),
            sum(row[b.B_LENGTH] for row in rows),
            sum(row[b.B_MAGIC] == 2 and row[b.B_ATTRIBUTES] != NULL and row[b.B_ATTRIBUTES] >> 5 & 1 for row in rows),
            sum(row[b.B_CRC_OK] == 0 for row in rows),
            sum(row[b.B_STATE] == b.PARTIAL for row in rows),
            sum(row[b.B_REASON] == b.REASON_BOMB for row in rows),
            sum(row[b.B_REASON] not in read for row in rows),
            *(
                sum(row[b.B_ATTRIBUTES] != NULL and row[b.B_ATTRIBUTES] & 7 == code for row in rows)
                for code in range(len(b.CODECS))
            ),
        ]


@pytest.mark.parametrize("most_bytes, most_records", [(1 << 12, 1 << 6), (1 << 20, 1 << 14), (64, 64)])
def test_tasks_are_about_as_large_as_they_may_be(table: np.ndarray, most_bytes: int, most_records: int) -> None:
    table[b.B_COUNT, :5] = 1 << 30
    begins = np.full(ROWS, -7, np.int64)
    many = p.divide(table[b.B_LENGTH], table[b.B_COUNT], most_bytes, most_records, begins)
    records = np.clip(np.where(table[b.B_COUNT] == NULL, 1, table[b.B_COUNT]), 1, most_records)
    task = np.cumsum(np.maximum(table[b.B_LENGTH], records * (most_bytes // most_records))) // most_bytes
    assert begins[:many].tolist() == [0, *(np.flatnonzero(np.diff(task)) + 1).tolist()]
    assert (begins[many:] == -7).all()


def test_no_batches_are_no_task() -> None:
    none = np.zeros(0, np.int64)
    assert p.divide(none, none, 64, 64, none) == 0
