"""Decoding records of internal topics: all that brokers write, and of bombs as much as their size allows.

proves: kwire.analyzer.records.internal_topics.
"""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import crc32c
import numpy as np
import pytest

from kwire.analyzer.protocol.encoding import encode_data
from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import internal_topics
from kwire.captures.kernels import NULL
from tests.analyzer.records.test_record_trees import batch

OFFSETS, METADATA = "__consumer_offsets", "__cluster_metadata"
GZIP = 1


def contents(data: bytes, topic: str, rows: int = r.PIECE_ROWS) -> list[dict[str, Any]]:
    """The columns of all records in a record set of a topic; `rows`: of a piece."""
    heap = np.frombuffer(data, np.uint8).copy()
    batches = b.batches(heap, np.zeros(1, np.int64), np.array([len(data)], np.int64))
    costs, records = internal_topics.Costs(), list[dict[str, Any]]()
    for piece in r.BatchReader(None, rows).open(batches):
        of_batch = piece.table[r.R_BATCH]
        within = costs.within(piece, batches.table[b.B_LENGTH, of_batch])
        columns = internal_topics.columns(piece, np.zeros(len(of_batch), np.int64), [topic], within)
        pieces = {name: column.to_pylist() for name, column in columns.items()}
        records += [dict(zip(pieces, values, strict=True)) for values in zip(*pieces.values(), strict=True)]
    return records


def commit(number: int) -> tuple[bytes, bytes]:
    key = encode_data({"group": f"g{number % 7}", "topic": "orders", "partition": number % 9}, "OffsetCommitKey", 0)
    body = {"offset": number, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 1_700_000_000_000 + number}
    return b"\0\1" + key, b"\0\3" + encode_data(body, "OffsetCommitValue", 3)


def bomb(count: int, key: bytes, value: bytes) -> bytes:
    """A batch of magic 2, in gzip, of so many records that are all the same."""
    body = b"\0\0\0" + bytes([len(key) << 1]) + key + bytes([len(value) << 1]) + value + b"\0"
    packed = gzip.compress((bytes([len(body) << 1]) + body) * count)
    sealed = struct.pack(">hiqqqhii", GZIP, count - 1, 0, 0, -1, -1, -1, count) + packed
    return struct.pack(">qiibI", 0, len(sealed) + 9, -1, 2, crc32c.crc32c(sealed)) + sealed


@pytest.mark.parametrize("codec", [0, GZIP])
def test_all_that_a_broker_writes_is_decoded(codec: int) -> None:
    records = contents(batch(*map(commit, range(500)), codec=codec), OFFSETS)
    assert len(records) == 500
    assert {json.loads(record["decoded"])["type"] for record in records} == {"OffsetCommit"}


@pytest.mark.parametrize("rows", [r.PIECE_ROWS, 64])
def test_a_bomb_is_decoded_as_far_as_its_size_allows(rows: int) -> None:
    """However its records are divided: what is left out is counted, and is part of no other."""
    data = bomb(20_000, b"\0\1", b"")
    honest = batch(*map(commit, range(3)))
    assert len(data) < 2_000
    records = contents(data + honest, OFFSETS, rows)
    decoded = [record["decoded"] for record in records[:20_000]]
    most = -(-16 * len(data) // (64 + 2))
    assert all(text is not None and "left_out" not in text for text in decoded[:most])
    assert sum(text is not None for text in decoded[most:]) == -(-20_000 // rows) - most // rows, "once a piece"
    left_out = [json.loads(text) for text in decoded[most:] if text is not None]
    assert sum(row["left_out"] for row in left_out) == 20_000 - most
    assert {row["reason"] for row in left_out} == {"not decoded: too many records for the size of their batch"}
    assert all(record["decoded"].startswith('{"type":"OffsetCommit"') for record in records[20_000:])


@pytest.mark.parametrize("topic", [METADATA, "copied"])
def test_secrets_that_nobody_looked_for_are_masked_with_all_around_them(topic: str) -> None:
    body = {"name": "alice", "mechanism": 1, "salt": b"s" * 20, "storedKey": b"k" * 20, "serverKey": b"t" * 20}
    value = b"\1\x0b\0" + encode_data(body | {"iterations": 4096}, "UserScramCredentialRecord", 0)
    records = contents(batch(*[(None, value)] * 5_000, codec=GZIP), topic)
    values = [record["value"] for record in records]
    assert not any(b"ssss" in each or b"kkkk" in each for each in values)
    assert all(len(each) == len(value) for each in values)
    assert b"alice" in values[0]
    assert values[-1] == b"*" * len(value)


def test_other_topics_records_stay_as_they_are() -> None:
    records = contents(batch(*[(b"k", b"\0" * 100)] * 5_000, codec=GZIP), "orders")
    assert {(record["decoded"], record["value"]) for record in records} == {(None, b"\0" * 100)}


def test_costs_of_no_records() -> None:
    piece = r.RecordRows(np.full((r.R_COLUMNS, 0), NULL, np.int64), (np.zeros(0, np.uint8), np.zeros(0, np.uint8)))
    assert len(internal_topics.Costs().within(piece, np.zeros(0, np.int64))) == 0
