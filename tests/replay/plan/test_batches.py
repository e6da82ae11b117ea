"""Record batches changed in place and made of old message sets, read back by aiokafka's reader (written by others).

Proves: replay/plan/batches.py
"""

from __future__ import annotations

import struct

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from kwire.replay.plan import batches

RECORDS = [(b"k1", b"v1"), (None, b"v2"), (b"k3", None)]
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4"}


def written(codec: int = 0) -> bytes:
    """A batch by aiokafka's writer."""
    builder = DefaultRecordBatchBuilder(2, codec, True, 7, 1, 40, 1 << 20)
    for offset, (key, value) in enumerate(RECORDS):
        builder.append(offset, 1000 + offset, key, value, [("h", b"x")])
    return bytes(builder.build())


def old(magic: int, codec: int = 0) -> bytes:
    """A message set by aiokafka's writer."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, (key, value) in enumerate(RECORDS):
        builder.append(offset, 1000 + offset, key, value)
    return bytes(builder.build())


def test_a_header_says_what_its_writer_said() -> None:
    (header,) = batches.batches(written())
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    assert (header.count, header.last_offset_delta, header.base_timestamp) == (3, 2, 1000)
    assert header.transactional


def test_a_new_producer_is_sealed_and_nothing_else_changes() -> None:
    before = written()
    changed = bytearray(before)
    (header,) = batches.batches(changed)
    batches.set_producer(changed, header.at, header.size, 9001, 12, 77)
    read = DefaultRecordBatch(bytes(changed))
    assert read.validate_crc()
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (9001, 12, 77)
    assert changed[57:] == before[57:]
    assert changed[:17] == before[:17]


def test_the_second_of_two_batches_is_found_and_sealed_alone() -> None:
    single = written()
    changed = bytearray(single + single)
    second = list(batches.batches(changed))[1]
    batches.set_producer(changed, second.at, second.size, 9001, 12, 77)
    assert bytes(changed[: len(single)]) == single
    assert DefaultRecordBatch(bytes(changed[len(single) :])).validate_crc()


def test_shifted_times_move_every_record() -> None:
    changed = bytearray(written())
    (header,) = batches.batches(changed)
    batches.shift_times(changed, header.at, header.size, 500)
    read = DefaultRecordBatch(bytes(changed))
    assert read.validate_crc()
    assert [record.timestamp for record in read] == [1500, 1501, 1502]


def _at(offset: int, records: bytes) -> bytes:
    return struct.pack(">q", offset) + records[8:]


@pytest.mark.parametrize(
    ("records", "end"),
    [
        (b"", None),
        (written(), 3),
        (_at(7, written()) + _at(10, written()), 13),
        (_at(7, written()) + _at(10, written())[:-1], 10),  # cut off, as the end of a fetch may be
        (written()[:20], None),
        (old(0), 3),
        (old(1), 3),
        (old(1)[:-1], 2),
        (_at(59, old(0, 1)), 60),  # compressed: its offset is that of the last message inside
        (_at(59, old(1, 2)) + _at(62, old(1, 2)), 63),
        (_at(59, old(1, 2)) + _at(60, written()), 63),  # a topic whose format was changed
    ],
    # Names of its own: what is packed by gzip holds the time, so no two processes would agree on others.
    ids=[
        "none",
        "one",
        "two",
        "cut off",
        "less than a header",
        "magic 0",
        "magic 1",
        "its end cut off",
        "magic 0 packed",
        "magic 1 packed",
        "magic 1, then 2",
    ],
)
def test_where_what_was_read_ends(records: bytes, end: int | None) -> None:
    assert batches.end_offset(records) == end


def test_offsets_of_what_was_read() -> None:
    def spans(records: bytes | None) -> list[tuple[int, int, bool]]:
        return [(first, end, batch is not None) for first, end, batch in batches.fetched(records)]

    packed = _at(59, old(1, 2)), _at(62, old(1, 2))
    assert spans(None) == spans(b"\0" * 40) == []
    assert spans(_at(7, written()) + _at(10, written())[:-1]) == [(7, 10, True)]
    assert spans(old(1)) == spans(old(0)) == [(0, 3, False)]
    assert spans(old(1)[:-1]) == [(0, 2, False)]
    assert spans(packed[0] + packed[1]) == [(59, 63, False)]
    assert spans(packed[0] + _at(60, written()) + packed[1]) == [(59, 60, False), (60, 63, True), (62, 63, False)]


@pytest.mark.parametrize(
    ("records", "count"),
    [(old(0), 3), (old(1), 3), (old(1)[:-1], 0), (written(), 0), (None, 0)],
    ids=["magic 0", "magic 1", "cut off", "batch", "none"],
)
def test_messages_of_an_old_set_are_counted(records: bytes | None, count: int) -> None:
    assert batches.messages(records) == count
    assert batches.messages(old(1, 2)) == batches.messages(old(0, 1)) == 3  # inside of a compressed one


@pytest.mark.parametrize("wrong", [b"\0" * 40, written()[:16] + b"\3" + written()[17:]], ids=["zeros", "magic 3"])
def test_where_what_are_no_records_ends_is_not_told(wrong: bytes) -> None:
    with pytest.raises(batches.BadRecordsError):
        batches.end_offset(wrong)


@pytest.mark.parametrize(
    ("magic", "codec"), [(magic, codec) for magic in (0, 1) for codec in CODECS if (magic, codec) != (0, 3)]
)
def test_a_message_set_becomes_one_batch_with_the_same_records(magic: int, codec: int) -> None:
    converted = batches.from_message_set(old(magic, codec))
    read = DefaultRecordBatch(converted)
    assert read.validate_crc()
    assert read.compression_type == codec
    assert (read.base_offset, read.last_offset_delta, read.producer_id) == (0, 2, -1)
    records = list(read)
    assert [(record.key, record.value) for record in records] == RECORDS
    assert [record.offset for record in records] == [0, 1, 2]
    assert [record.timestamp for record in records] == ([-1] * 3 if magic == 0 else [1000, 1001, 1002])


def test_snappy_java_s_stream_of_blocks_is_read() -> None:
    """Its frame: 16 bytes, then blocks with their length (what the old Java clients write)."""
    import snappy

    inner = old(1)
    blocks = b"".join(
        len(block := snappy.compress(part)).to_bytes(4, "big") + block for part in (inner[:20], inner[20:])
    )
    assert batches.decompressed(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + blocks, 2) == inner


@pytest.mark.parametrize("length", [1, 11, 17, 30])
def test_a_message_set_that_is_cut_is_refused(length: int) -> None:
    with pytest.raises(batches.BadRecordsError):
        batches.from_message_set(old(1)[:-length])


def test_bytes_that_are_no_batches_are_refused() -> None:
    with pytest.raises(batches.BadRecordsError):
        list(batches.batches(old(1)))
    assert batches.produced(old(1)) == []
    assert batches.produced(None) == []


def test_a_batch_cut_off_at_the_end_of_a_fetch_is_left_out() -> None:
    whole = written()
    assert len(list(batches.batches(whole + whole[:40]))) == 1


def test_the_checksum_is_the_crc32c_package_s() -> None:
    changed = bytearray(written())
    changed[17:21] = b"\0\0\0\0"
    (header,) = batches.batches(changed)
    batches.seal(changed, header.at, header.size)
    assert int.from_bytes(changed[17:21], "big") == crc32c.crc32c(bytes(changed[21:]))
