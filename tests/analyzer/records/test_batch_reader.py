"""Record batches and message sets against writers that are not ours: aiokafka's record module and kio's, for every
magic and codec; and what must hold for what no writer makes."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import random
import struct
from typing import Any

import crc32c
import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kio.records import schema as kio
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from kwire.analyzer.protocol.record_batches import HEADER_ALONE, HEADER_V2
from kwire.analyzer.records import batch_reader as r
from kwire.analyzer.records import batches as b
from kwire.analyzer.records import checksums, codecs
from tests.analyzer.records.recordsets import Record, old_message, opened
from tests.programs import CHECKED_AND_PLAIN, printed

KEYS = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
TIMES = st.integers(0, 1 << 42)
ROWS = st.lists(st.tuples(TIMES, KEYS, KEYS, HEADERS), min_size=1, max_size=30)


def _default(rows: Any, codec: int, **options: Any) -> bytes:
    builder = DefaultRecordBatchBuilder(
        2, codec, options.get("transactional", 0), options.get("producer", -1), -1, -1, 1 << 24
    )
    for i, (time, key, value, headers) in enumerate(rows):
        builder.append(i, time, key, value, headers)
    return bytes(builder.build())


def _legacy(rows: Any, magic: int, codec: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 24)
    for i, (time, key, value, _) in enumerate(rows):
        builder.append(i, timestamp=time, key=key, value=value)
    return bytes(builder.build())


def _expected(rows: Any, magic: int) -> list[Record]:
    return [
        Record(
            i,
            time if magic else -1,
            key,
            value,
            tuple((name.encode(), content) for name, content in headers) if magic == 2 else (),
        )
        for i, (time, key, value, headers) in enumerate(rows)
    ]


# --- what others write ------------------------------------------------------------------------------------------------


@given(rows=ROWS, codec=st.sampled_from(range(5)))
def test_magic_2_as_aiokafka_writes_it(rows: Any, codec: int) -> None:
    result = opened(_default(rows, codec))

    assert result.records == _expected(rows, 2)
    assert result.column(b.B_CRC_OK) == [1]
    assert result.column(b.B_MAGIC) == [2]
    assert result.column(b.B_COUNT) == [len(rows)]
    assert result.column(b.B_LAST_TIMESTAMP) == [max(row[0] for row in rows)]
    assert result.reasons == [None]


OLD = [(0, b.NONE), (0, b.GZIP), (0, b.SNAPPY), (1, b.NONE), (1, b.GZIP), (1, b.SNAPPY), (1, b.LZ4)]
"""Magic and codec; aiokafka writes no lz4 for brokers as old as magic 0."""


@given(rows=ROWS, form=st.sampled_from(OLD))
def test_magic_0_and_1_as_aiokafka_writes_them(rows: Any, form: tuple[int, int]) -> None:
    magic, codec = form
    result = opened(_legacy(rows, magic, codec))

    assert result.records == _expected(rows, magic)
    assert set(result.column(b.B_CRC_OK)) == {1}
    assert set(result.column(b.B_MAGIC)) == {magic}
    assert set(result.reasons) == {None}
    # One row for each outermost message, and one alone where that is compressed.
    compressed = b.codec(result.table).tolist()[0] != 0
    assert len(result.column(b.B_AT)) == (1 if compressed else len(rows))
    assert sum(count or 0 for count in result.column(b.B_COUNT)) == len(rows)


@given(rows=ROWS, producer=st.integers(-1, 1 << 40), epoch=st.integers(-1, 9), sequence=st.integers(-1, 1 << 30))
def test_magic_2_as_kio_writes_it(rows: Any, producer: int, epoch: int, sequence: int) -> None:
    moments = [datetime.datetime.fromtimestamp(time / 1000, datetime.UTC) for time, *_ in rows]
    batch = kio.NewRecordBatch(
        producer_id=i64(producer),
        producer_epoch=i16(epoch),
        base_sequence=i32(sequence),
        attributes=i16(0),
        records=tuple(
            kio.Record(
                attributes=i8(0),
                timestamp=TZAwareMicros.parse(moment),
                offset=i64(i),
                key=key,
                value=value,
                headers=tuple(kio.RecordHeader(key=name.encode(), value=content) for name, content in headers),
            )
            for i, (moment, (_, key, value, headers)) in enumerate(zip(moments, rows, strict=True))
        ),
    )
    written = io.BytesIO()
    write_new_batch(written, batch)

    result = opened(written.getvalue())

    assert [(record.key, record.value, record.headers) for record in result.records] == [
        (record.key, record.value, record.headers) for record in _expected(rows, 2)
    ]
    assert result.column(b.B_CRC_OK) == [1]
    assert result.column(b.B_PRODUCER_ID) == [producer]
    assert result.column(b.B_PRODUCER_EPOCH) == [epoch]
    assert result.column(b.B_BASE_SEQUENCE) == [sequence]


@given(sets=st.lists(st.tuples(ROWS, st.sampled_from([*OLD, *((2, codec) for codec in range(5))])), max_size=5))
def test_several_sets_and_magics_in_one_field(sets: Any) -> None:
    """A fetch of a partition whose log outlived upgrades."""
    parts = [_default(rows, codec) if magic == 2 else _legacy(rows, magic, codec) for rows, (magic, codec) in sets]

    result = opened(b"".join(parts))

    assert result.records == [record for rows, (magic, _) in sets for record in _expected(rows, magic)]
    assert set(result.column(b.B_CRC_OK)) <= {1}


def test_pieces_end_anywhere() -> None:
    """However few records a piece may hold, all come, in order: inside batches and inside message sets."""
    rows: Any = [(i, b"k%d" % i, b"v", []) for i in range(50)]
    sets = (_default(rows, 0), _legacy(rows, 1, 1), _default(rows, 4), _legacy(rows, 0, 0))
    whole = opened(*sets)

    for few in (1, 2, 7, 49):
        assert opened(*sets, rows=few).records == whole.records
    assert len(whole.records) == 200
    assert whole.rows == [0] * 50 + [1] * 50 + [2] * 50 + list(range(3, 53))


def test_a_piece_ends_where_it_has_many_headers() -> None:
    """They are taken apart piece by piece: memory for them is bounded."""
    rows: Any = [(i, None, b"", [("", None)] * (r.HEADERS_LIMIT // 2)) for i in range(3)]
    batches = opened(_default(rows, 0))
    heap = np.frombuffer(_default(rows, 0), np.uint8).copy()
    pieces = [len(piece) for piece in r.BatchReader().open(b.batches(heap, np.zeros(1), np.full(1, len(heap))))]

    assert [len(record.headers) for record in batches.records] == [r.HEADERS_LIMIT // 2] * 3
    assert pieces == [2, 1]


# --- checksums --------------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=300), before=st.integers(0, 9))
def test_the_checksum_kernels_are_the_libraries(data: bytes, before: int) -> None:
    import zlib

    heap = np.frombuffer(bytes(before) + data + b"after", np.uint8)
    stop = before + len(data)
    assert checksums.checksum(checksums.CRC32C_TABLES, heap, before, stop) == crc32c.crc32c(data)
    assert checksums.checksum(checksums.CRC32_TABLES, heap, before, stop) == zlib.crc32(data)


@pytest.mark.parametrize("size", [10, 3000])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_changed_byte_is_a_wrong_checksum(magic: int, size: int) -> None:
    rows: Any = [(5, b"key", b"v" * size, [])]
    good = bytearray(_default(rows, 0) if magic == 2 else _legacy(rows, magic, 0))
    bad = bytearray(good)
    bad[-2] ^= 1

    result = opened(bytes(good), bytes(bad))

    assert result.column(b.B_CRC_OK) == [1, 0]
    assert len(result.records) == 2, "a batch with a wrong checksum is still read"


# --- what the capture or the broker cut off ---------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_partial_batch_at_the_end_is_a_row_whatever_is_left_of_it(magic: int) -> None:
    rows: Any = [(5, b"key", b"value", [])]
    whole = _default(rows, 0) if magic == 2 else _legacy(rows, magic, 0)
    for cut in range(1, len(whole)):
        result = opened(whole + whole[:cut])

        assert result.column(b.B_STATE) == [b.WHOLE, b.PARTIAL]
        assert result.column(b.B_LENGTH) == [len(whole), cut]
        assert result.column(b.B_CRC_OK) == [1, None]
        assert result.reasons == [None, None]
        assert len(result.records) == 1
        assert result.column(b.B_SIZE)[1] == (len(whole) if cut >= 12 else None)
        assert result.column(b.B_MAGIC)[1] == (magic if cut > 16 else None)


def test_of_headers_alone_the_records_are_said_to_be_lacking() -> None:
    whole = _default([(5, b"key", b"value", [])], 0)
    alone = whole[:16] + bytes([HEADER_ALONE]) + whole[17:HEADER_V2]
    heap = np.frombuffer(whole + alone + whole, np.uint8)
    at, length = np.zeros(2, np.int64), np.full(2, len(heap))

    table = b.batches(heap, at, length, np.array([1, 0])).table

    assert table[b.B_STATE, :5].tolist() == [b.WHOLE, b.PARTIAL, b.WHOLE, b.WHOLE, b.BROKEN]
    reasons = [b.reason(code, number) for code, number in table[[b.B_REASON, b.B_REASON_A]].T.tolist()]
    assert reasons[1] == f"{len(whole) - HEADER_V2} bytes of the records were not captured"
    assert reasons[4] == "magic -126 is not known"
    for column in (b.B_SIZE, b.B_MAGIC, b.B_CRC, b.B_COUNT, b.B_OFFSET, b.B_FIRST_TIMESTAMP):
        assert table[column, 1] == table[column, 0]


# --- attributes -------------------------------------------------------------------------------------------------------


def _batch(body: bytes, attributes: int = 0, count: int = 1, base: int = 1000, last: int = 2000) -> bytes:
    """A batch of magic 2 with any header."""
    tail = struct.pack(">hiqqqhii", attributes, max(count - 1, 0), base, last, 7, 1, 5, count) + body
    return struct.pack(">qiibI", 40, len(tail) + 9, 3, 2, crc32c.crc32c(tail)) + tail


SIMPLE = bytes([14, 0, 20, 0, 1, 2, 0x76, 0])  # length 7; timestamp delta 10, offset delta 0, null key, value b"v"


def test_log_append_time_is_the_batchs_last_timestamp_for_all() -> None:
    assert opened(_batch(SIMPLE)).records[0].timestamp == 1010
    assert opened(_batch(SIMPLE, b.LOG_APPEND_TIME)).records[0].timestamp == 2000


def test_delete_horizon_takes_the_place_of_the_base_timestamp() -> None:
    """KIP-534: the field then says when the tombstones may go; records' deltas are from it all the same."""
    result = opened(_batch(SIMPLE, b.DELETE_HORIZON))

    assert result.column(b.B_DELETE_HORIZON) == [1000]
    assert result.column(b.B_FIRST_TIMESTAMP) == [None]
    assert result.records[0].timestamp == 1010


def test_a_batch_that_compaction_emptied() -> None:
    """Its header stays, to keep the producer's sequence."""
    result = opened(_batch(b"", count=0))

    assert result.column(b.B_COUNT) == [0]
    assert result.column(b.B_CRC_OK) == [1]
    assert result.records == []
    assert result.reasons == [None]


@pytest.mark.parametrize("kind", range(7))
def test_control_records_are_typed(kind: int) -> None:
    key = struct.pack(">hh", 0, kind)
    body = bytes([0, 0, 0, len(key) << 1]) + key + bytes([1, 0])
    result = opened(_batch(bytes([len(body) << 1]) + body, b.CONTROL | b.TRANSACTIONAL))

    assert [record.control for record in result.records] == [kind]
    assert r.CONTROL_TYPES[kind]


# --- old message sets: KIP-31, KIP-32, and what clients made of them --------------------------------------------------


def _packed(magic: int, inner: bytes, offset: int, attributes: int = 1, timestamp: int = 0) -> bytes:
    return old_message(magic, offset, None, gzip.compress(inner), attributes, timestamp)


def test_inner_offsets_of_magic_1_are_relative_to_the_wrapper() -> None:
    inner = b"".join(old_message(1, i, None, b"%d" % i, timestamp=100 + i) for i in range(3))

    result = opened(_packed(1, inner, offset=52))

    assert [(record.offset, record.timestamp) for record in result.records] == [(50, 100), (51, 101), (52, 102)]


def test_a_wrapper_at_offset_0_holds_its_offsets_as_they_are() -> None:
    """librdkafka produced such sets; Kafka reads them so."""
    inner = b"".join(old_message(1, i, None, b"v") for i in range(3))

    assert [record.offset for record in opened(_packed(1, inner, offset=0)).records] == [0, 1, 2]


def test_inner_offsets_of_magic_0_are_absolute() -> None:
    inner = b"".join(old_message(0, 50 + i, None, b"v") for i in range(3))

    assert [record.offset for record in opened(_packed(0, inner, offset=52)).records] == [50, 51, 52]


def test_log_append_time_of_the_wrapper_holds_for_the_messages_inside() -> None:
    inner = b"".join(old_message(1, i, None, b"v", timestamp=5) for i in range(2))

    result = opened(_packed(1, inner, offset=1, attributes=1 | b.LOG_APPEND_TIME, timestamp=777))

    assert [record.timestamp for record in result.records] == [777, 777]


def test_offsets_with_holes_survive_compaction() -> None:
    inner = b"".join(old_message(1, relative, None, b"v") for relative in (0, 4, 9))

    assert [record.offset for record in opened(_packed(1, inner, offset=109)).records] == [100, 104, 109]


@pytest.mark.parametrize("magic", [0, 1])
def test_sets_compressed_twice(magic: int) -> None:
    def absolute(offset: int, base: int) -> int:
        return offset if magic == 0 else offset - base

    deep = b"".join(old_message(magic, absolute(10 + i, 10), b"k", b"deep%d" % i) for i in range(2))
    middle = old_message(magic, absolute(9, 9), b"k", b"plain") + _packed(magic, deep, offset=absolute(11, 9))

    result = opened(_packed(magic, middle, offset=11))

    assert [(record.offset, record.value) for record in result.records] == [
        (9, b"plain"),
        (10, b"deep0"),
        (11, b"deep1"),
    ]
    assert result.column(b.B_COUNT) == [3]


def test_sets_compressed_too_often_are_left_closed() -> None:
    message = old_message(0, 1, None, b"v")
    for _ in range(r.DEPTH_LIMIT + 1):
        message = _packed(0, message, offset=1)

    result = opened(message)

    assert result.records == []
    assert result.reasons == [f"compressed more than {r.DEPTH_LIMIT} times over"]


def test_a_wrong_checksum_inside_is_said() -> None:
    inner = bytearray(old_message(0, 0, None, b"v") + old_message(0, 1, None, b"w"))
    inner[-1] ^= 1

    result = opened(_packed(0, bytes(inner), offset=1))

    assert result.reasons == ["the checksum of message 1 inside is wrong"]
    assert result.column(b.B_CRC_OK) == [0]
    assert len(result.records) == 2


# --- codecs as clients write them -------------------------------------------------------------------------------------


def _xerial(data: bytes, block: int = 32 << 10) -> bytes:
    """snappy-java's SnappyOutputStream."""
    framed = codecs.XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block):
        packed = snappy.compress(data[at : at + block])
        framed += struct.pack(">i", len(packed)) + packed
    return framed


def _lz4_of_0_8(data: bytes) -> bytes:
    """KAFKA-3160: the header checksum over the magic too."""
    frame: bytes = lz4.frame.compress(data, store_size=False)
    return frame[:6] + bytes([codecs.xxh32(frame[:6]) >> 8 & 0xFF]) + frame[7:]


FORMS = {
    "gzip": (b.GZIP, gzip.compress),
    "gzip, two members": (b.GZIP, lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:])),
    "snappy, one block": (b.SNAPPY, snappy.compress),
    "snappy, xerial's frame": (b.SNAPPY, _xerial),
    "lz4": (b.LZ4, lambda data: lz4.frame.compress(data, store_size=False)),
    "lz4, size stored": (b.LZ4, lz4.frame.compress),
    "lz4, blocks linked": (b.LZ4, lambda data: lz4.frame.compress(data, block_linked=True, content_checksum=True)),
    "lz4, header checksum of 0.8": (b.LZ4, _lz4_of_0_8),
    "zstd": (b.ZSTD, zstandard.compress),
    "zstd, no size": (b.ZSTD, zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress),
    "zstd, two frames": (b.ZSTD, lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=200) | st.integers(1, 400_000).map(lambda size: b"kwire-" * (size // 6)))
def test_each_form_of_each_codec(form: str, data: bytes) -> None:
    codec, compress = FORMS[form]
    packed = compress(data)
    out = codecs.Scratch()
    out.append(b"before")

    assert codecs.decompress(codec, memoryview(packed), len(data), out) == len(data)
    assert out.data[: out.used].tobytes() == b"before" + data

    if data:
        with pytest.raises(codecs.DecompressedSizeError):
            codecs.decompress(codec, memoryview(packed), len(data) - 1, out)
        assert out.data[: out.used].tobytes() == b"before" + data


@pytest.mark.parametrize("form", FORMS)
def test_compressed_bytes_that_end_early_are_broken(form: str) -> None:
    codec, compress = FORMS[form]
    data = bytes(range(256)) * 40
    packed = compress(data)
    for cut in range(1, len(packed)):
        out = codecs.Scratch()
        try:
            codecs.decompress(codec, memoryview(packed)[:cut], 1 << 20, out)
        except codecs.CorruptDataError:
            assert out.used == 0
        else:
            # A form of several parts may end behind one.
            assert data.startswith(out.data[: out.used].tobytes())
            assert "two" in form or "xerial" in form


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.binary(max_size=60))
def test_any_bytes_are_broken_or_bounded(form: str, seed: bytes) -> None:
    codec, compress = FORMS[form]
    packed = compress(b"some bytes to begin with")
    for data in (seed, packed[:12] + seed, seed + packed):
        out = codecs.Scratch()
        try:
            codecs.decompress(codec, memoryview(data), 4096, out)
        except (codecs.CorruptDataError, codecs.DecompressedSizeError):
            assert out.used == 0
        assert out.used <= 4096


@pytest.mark.parametrize(
    "codec, compress",
    [(b.GZIP, gzip.compress), (b.SNAPPY, _xerial), (b.LZ4, lz4.frame.compress), (b.ZSTD, zstandard.compress)],
)
def test_a_bomb_is_a_row_that_says_so(codec: int, compress: Any) -> None:
    bomb = _batch(compress(bytes(4 << 20)), attributes=codec)
    after = _batch(SIMPLE)

    result = opened(bomb + after, limits=b.BatchLimits(bytes=1 << 20))

    assert result.reasons == ["the records decompress to more than is allowed", None]
    assert [record.value for record in result.records] == [b"v"]
    assert opened(bomb, limits=b.BatchLimits(ratio=1 << 20)).reasons != result.reasons[:1]


def test_the_ratio_is_bounded_too() -> None:
    """gzip makes 4 MiB of zeros a thousand times smaller."""
    bomb = _batch(gzip.compress(bytes(4 << 20)), attributes=b.GZIP)

    assert opened(bomb).column(b.B_REASON) == [b.REASON_BOMB]


@pytest.mark.parametrize("most", [True, False])
def test_records_are_bounded_where_they_are_more_than_a_batch_has_bytes(most: bool) -> None:
    """A row of a table costs more than the seven bytes that it comes from, which gzip makes two hundred times smaller.
    Callers that stop after some records, as trees do, open the batch."""
    smallest = bytes((12, 0, 0, 0, 1, 1, 0))
    count = b.RATIO_FREE // b.SMALLEST_RECORD
    near, beyond = (
        _batch(gzip.compress(smallest * number, 1), attributes=b.GZIP, count=number) for number in (count, count + 1)
    )
    assert len(beyond) * b.RATIO_LIMIT // b.RECORD_RATIO < count
    for batch, expected, is_bomb in ((near, count, False), (beyond, 0 if most else count + 1, most)):
        heap = np.frombuffer(bytearray(batch), np.uint8)
        batches = b.batches(heap, np.zeros(1, np.int64), np.full(1, len(heap), np.int64))
        opener = r.BatchReader(b.BatchLimits(has_record_limit=most))
        assert sum(map(len, opener.open(batches))) == expected
        assert batches.table[b.B_REASON].tolist() == [b.REASON_BOMB if is_bomb else b.REASON_NONE]


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=200), changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_broken_sets_are_rows_and_all_bytes_are_accounted_for(data: bytes, changes: list[tuple[int, int]]) -> None:
    rows: Any = [(i, b"key", b"value", [("h", b"x")]) for i in range(3)]
    mixed = bytearray(_default(rows, 0) + _legacy(rows, 1, 1) + _legacy(rows, 0, 0) + data)
    for at, value in changes:
        mixed[at % len(mixed)] = value

    result = opened(bytes(mixed))

    at, length = result.table[b.B_AT].tolist(), result.table[b.B_LENGTH].tolist()
    assert sum(length) == len(mixed)
    assert at == [sum(length[:i]) for i in range(len(length))]
    for state, why in zip(result.column(b.B_STATE), result.reasons, strict=True):
        assert state != b.BROKEN or why is not None


@pytest.mark.parametrize(
    "batch, why",
    [
        (struct.pack(">qi", 0, 3) + bytes(20), "size field 3: no batch is so small"),
        (struct.pack(">qi", 0, 20) + bytes(4) + b"\x09" + bytes(15), "magic 9 is not known"),
        (struct.pack(">qi", 0, 20) + bytes(4) + b"\x02" + bytes(15), "32 bytes are fewer than its header has"),
        (_batch(SIMPLE, count=-5), "record count -5"),
        (_batch(SIMPLE, attributes=6), "codec 6 is not known"),
        (_batch(SIMPLE, count=3), "record 1 cannot be read"),
        (_batch(SIMPLE + b"left"), "4 bytes behind the last record"),
        (_batch(b"not gzip", attributes=b.GZIP), "the compressed records cannot be decompressed"),
        (_batch(bytes([14, 0, 20, 0, 1, 60, 0x76, 0])), "record 0 cannot be read"),
    ],
)
def test_what_is_wrong_is_said(batch: bytes, why: str) -> None:
    result = opened(batch, _batch(SIMPLE))

    assert result.reasons[0] == why
    assert result.reasons[-1] is None
    assert result.records[-1].value == b"v", "what follows is read"


@CHECKED_AND_PLAIN
def test_the_same_with_bounds_checks_and_without_compiling(variable: str, value: str, tmp_path: Any) -> None:
    """A read past an array raises with bounds checks, and narrow integers overflow without compiling."""
    code = "import tests.analyzer.records.test_batch_reader as t; t.hostile()"
    assert printed(code, **{variable: value, "KWIRE_CACHE_DIR": str(tmp_path)}) == f"{hostile_digest()}\n"


def hostile() -> None:
    """For the test above, in a process of its own."""
    print(hostile_digest())


def hostile_digest() -> str:
    """Return one number for the records of mixed sets, cut at every byte and with bytes flipped."""
    generator = random.Random(5)
    rows: Any = [(1 << 40, None, b"value", [("h", None), ("i", b"x")]), (7, b"key", None, [])]
    forms = (
        _default(rows, 0),
        _default(rows, 2),
        _legacy(rows, 0, 0),
        _legacy(rows, 1, 2),
    )  # gzip holds the time of day
    mixed = b"".join(forms)
    results = [opened(mixed[:cut]) for cut in range(len(mixed))]
    for _ in range(400):
        flipped = bytearray(mixed)
        for _ in range(generator.randint(1, 4)):
            flipped[generator.randrange(len(flipped))] = generator.randrange(256)
        results.append(opened(bytes(flipped), rows=3))
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.table.tobytes() + repr(result.records).encode())
    return digest.hexdigest()


TOO_MANY = {
    "gzip": (b.GZIP, gzip.compress(b"")),
    "lz4": (b.LZ4, lz4.frame.compress(b"")),
    "zstd": (b.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(b"")),
}


@pytest.mark.parametrize("form", TOO_MANY)
def test_thousands_of_parts_with_nothing_in_them_are_broken(form: str) -> None:
    codec, part = TOO_MANY[form]
    out = codecs.Scratch()
    assert codecs.decompress(codec, memoryview(part * 4096), 1 << 20, out) == 0
    with pytest.raises(codecs.CorruptDataError, match="hardly a byte"):
        codecs.decompress(codec, memoryview(part * 4097), 1 << 20, out)


@pytest.mark.parametrize(
    "codec, compress",
    [
        (b.GZIP, gzip.compress),
        (b.LZ4, lambda data: lz4.frame.compress(data, store_size=False, content_checksum=True)),
        (b.LZ4, lambda data: lz4.frame.compress(data, block_linked=False, block_checksum=True)),
        (b.LZ4, _lz4_of_0_8),
    ],
)
def test_parts_of_all_sizes_follow_one_another(codec: int, compress: Any) -> None:
    """Parts behind the first are passed to the libraries piece by piece."""
    parts = [random.Random(size).randbytes(size) for size in (5, 0, 100, 300_000, 241, 90, 3_000, 70_000)] * 5
    out = codecs.Scratch()
    most = sum(map(len, parts))
    packed = b"".join(map(compress, parts))
    assert codecs.decompress(codec, memoryview(packed), most, out) == most
    assert out.data[: out.used].tobytes() == b"".join(parts)
    with pytest.raises(codecs.DecompressedSizeError):
        codecs.decompress(codec, memoryview(packed), most - 1, out)
    with pytest.raises(codecs.CorruptDataError):
        codecs.decompress(codec, memoryview(packed)[:-1], most, out)


@pytest.mark.parametrize("size", [False, True], ids=["no size", "size"])
def test_a_small_zstd_batch_is_not_made_beyond_its_limit(size: bool) -> None:
    """8 KiB of blocks of four bytes would become 256 MiB."""
    whole = zstandard.ZstdCompressor(write_content_size=size).compress(bytes(64 << 20))
    assert len(whole) < 8 << 10
    out = codecs.Scratch()
    with pytest.raises(codecs.DecompressedSizeError):
        codecs.decompress(b.ZSTD, memoryview(whole), 1 << 20, out)
    assert len(out.data) < 4 << 20
