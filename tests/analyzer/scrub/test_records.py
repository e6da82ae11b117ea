"""Record sets without their content, of others' writers: the same batches and records, checksums as right as they were.

proves: kwire.analyzer.scrub.records.
"""

from __future__ import annotations

import random
import uuid

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from crc32c import crc32c

from kwire.analyzer.records import batches as b
from kwire.analyzer.scrub.content import Content
from kwire.analyzer.scrub.records import RecordScrubber
from tests.analyzer.records.recordsets import Opened, old_message, opened

SHAPE = (
    b.B_AT,
    b.B_LENGTH,
    b.B_STATE,
    b.B_REASON,
    b.B_REASON_A,
    b.B_OFFSET,
    b.B_MAGIC,
    b.B_ATTRIBUTES,
    b.B_CRC_OK,
    b.B_LAST_DELTA,
    b.B_FIRST_TIMESTAMP,
    b.B_LAST_TIMESTAMP,
    b.B_PRODUCER_ID,
    b.B_PRODUCER_EPOCH,
    b.B_BASE_SEQUENCE,
    b.B_COUNT,
    b.B_UNCOMPRESSED,
)
MARK = b"CaNaRy"


def scrubber(keep: str = "") -> RecordScrubber:
    return Content(b"k" * 32, frozenset(keep.split())).records


def rows(count: int, seed: int) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Keys that come again, values as applications write them, nulls and headers."""
    rng = random.Random(seed)
    words = [MARK + rng.randbytes(3).hex().encode() for _ in range(30)]
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = []
    for i in range(count):
        key = None if i % 7 == 6 else MARK + bytes([i % 5])
        value = None if i % 11 == 10 else b'{"name": "' + b" ".join(rng.choices(words, k=rng.randint(1, 12))) + b'"}'
        records.append((key, value, [("canary-Header", MARK), ("n", None)] if i % 3 == 0 else []))
    return records


def written(magic: int, codec: int, count: int) -> bytes:
    if magic == 2:
        builder = DefaultRecordBatchBuilder(2, codec, 1, 7, 3, 40, 1 << 24)
        for i, (key, value, headers) in enumerate(rows(count, codec)):
            builder.append(i, 1_700_000_000_000 + i, key, value, headers)
        return bytes(builder.build())
    old = LegacyRecordBatchBuilder(magic, codec, 1 << 24)
    for i, (key, value, _) in enumerate(rows(count, codec)):
        old.append(i, timestamp=1_700_000_000_000 + i, key=key, value=value)
    return bytes(old.build())


def shape(records: Opened) -> list[list[int]]:
    sizes = [
        [
            record.offset,
            record.timestamp,
            *(-1 if part is None else len(part) for part in (record.key, record.value)),
            *(-1 if part is None else len(part) for header in record.headers for part in header),
        ]
        for record in records.records
    ]
    return records.table[list(SHAPE)].T.tolist() + sizes  # type: ignore[no-any-return]


CASES = [
    (magic, codec, count)
    for magic in (0, 1, 2)
    for codec in range(5)
    for count in (1, 60)
    if codec < b.LZ4 or (codec == b.LZ4 and magic > 0) or magic == 2
]


@pytest.mark.parametrize(("magic", "codec", "count"), CASES)
def test_batches_keep_their_shape_and_lose_their_content(magic: int, codec: int, count: int) -> None:
    data = written(magic, codec, count)
    records = scrubber()
    clean = records.scrub(data, "orders")
    before, after = opened(data), opened(clean)
    assert MARK not in clean
    assert all(MARK not in part for record in after.records for part in (record.key or b"", record.value or b""))
    assert all(MARK not in (part or b"") for record in after.records for header in record.headers for part in header)
    assert b"canary" not in b"".join(name for record in after.records for name, _ in record.headers)
    assert shape(after) == shape(before)
    assert records.report.lost_batches == 0
    assert records.report.records == len(before.records)
    if count > 1 and codec not in (b.LZ4,):  # where keys are zeros nothing else fitted
        pairs = {(record.key, other.key) for record, other in zip(before.records, after.records, strict=True)}
        assert len(pairs) == len({record for record, _ in pairs}) == len({other for _, other in pairs})


def test_cut_batches_stay_cut() -> None:
    good, old = written(2, b.NONE, 5), old_message(1, 3, b"key", MARK)
    for data in (
        good + good[:-20],
        good + good[:58],
        good + good[:36],
        good + good[:9],
        old + old[:-3],
        old + old[:22],
    ):
        clean = scrubber().scrub(data, "orders")
        assert shape(opened(clean))[:2] == shape(opened(data))[:2]
        assert opened(clean).column(b.B_CRC_OK) == [1, None]
        assert MARK not in clean
    clean = scrubber().scrub(good[:-20], "orders")
    assert clean[17:21] == bytes(4), "the checksum of a cut batch tells of its content"


def with_number(data: bytes, at: int, number: bytes) -> bytes:
    return data[:at] + number + data[at + len(number) :]


@pytest.mark.parametrize(
    ("at", "number"),
    [
        (0, b"orders"),
        (8, b":SEC"),  # the size
        (12, b"ABCD"),  # the leader's epoch
        (16, b"R"),
        (21, b"4"),
        (22, b"\5"),  # a codec that there is not
        (23, b"JOHN"),
        (27, b"DOE 1234"),
        (35, b"CVC 1234"),
        (43, b"IBAN"),
        (45, b"12345678"),  # possible each, a text together
        (57, b"1111"),
    ],
)
def test_a_cut_header_with_an_impossible_number_becomes_noise(at: int, number: bytes) -> None:
    clean = scrubber().scrub(with_number(written(2, b.NONE, 5)[:-20], at, number), "orders")
    assert min(clean) >= 128


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_of_a_whole_batch_with_a_wrong_checksum_nothing_stays(magic: int) -> None:
    good = written(2, b.NONE, 5)
    data = good if magic == 2 else old_message(magic, 3, b"key", MARK)
    clean = scrubber().scrub(good + with_number(data, len(data) - 2, b"XY"), "orders")
    assert opened(clean).column(b.B_CRC_OK)[0] == 1
    assert min(clean[len(good) :]) >= 128


@pytest.mark.parametrize("size", [5, 11, 13, 17, 30, 61, 90, 200])
def test_what_is_no_batch_becomes_noise(size: int) -> None:
    """Text, with a length that fits as well."""
    text = (b"CARD4111 1111222233334444 JANE DOE 12/29 CVC 123 " * 5)[:size]
    fitting = text[:8] + max(size - 12, 0).to_bytes(4, "big") + text[12:] if size > 12 else text
    for data in (text, fitting, *(with_number(fitting, 16, bytes([magic])) for magic in range(3) if size > 17)):
        assert min(scrubber().scrub(data, "orders")) >= 128


@pytest.mark.parametrize("seed", range(30))
def test_damaged_sets_leak_nothing_and_break_nothing(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(written(2, rng.randrange(5), 20) + written(1, rng.randrange(3), 20))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    clean = scrubber().scrub(bytes(data), "orders")
    assert len(clean) == len(data)
    assert MARK not in clean
    assert all(
        MARK not in part for record in opened(clean).records for part in (record.key or b"", record.value or b"")
    )


def test_markers_of_transactions_stay() -> None:
    from tests.bench.messages import batch, record

    data = bytearray(batch([record(0, bytes.fromhex("00000001"), bytes.fromhex("0000 00000005"))]))
    data[22] |= b.CONTROL | b.TRANSACTIONAL
    data[17:21] = crc32c(bytes(data[b.CRC_FROM_V2 :])).to_bytes(4, "big")
    clean = scrubber().scrub(bytes(data), "orders")
    assert opened(clean).records == opened(bytes(data)).records
    assert opened(clean).records[0].control == 1


def test_records_of_internal_topics_become_those_of_other_groups() -> None:
    from tests.bench.messages import batch, record

    key = bytes.fromhex("0001 0005") + b"group" + bytes.fromhex("0006") + b"topics" + bytes.fromhex("00000003")
    value = bytes.fromhex("0003 0000000000000007 00000001 0004") + b"meta" + bytes.fromhex("0000018000000000")
    content = Content(b"k" * 32, frozenset())
    clean = content.records.scrub(batch([record(0, key, value)]), "__consumer_offsets")
    (cleaned,) = opened(clean).records
    names = content.pseudonyms
    assert cleaned.key == key.replace(b"group", names.text(b"group")).replace(b"topics", names.text(b"topics"))
    assert cleaned.value == value.replace(b"meta", names.text(b"meta"))


def test_what_is_kept_is_kept() -> None:
    data = written(2, b.GZIP, 20)
    assert scrubber("keys values headers").scrub(data, "orders") == data
    records = opened(scrubber("keys").scrub(data, "orders")).records
    assert [record.key for record in records] == [record.key for record in opened(data).records]
    assert all(MARK not in (record.value or b"") for record in records)


GLUE = uuid.UUID("7f2d0d5c-8f2e-4a8e-9d2e-0c5f1d1a2b3c").bytes


@pytest.mark.parametrize(
    ("data", "framed"),
    [
        (b"\0\0\0\0\x11" + MARK, 5),
        (b"\0" + (17).to_bytes(8, "big") + MARK, 9),
        (b"\3\0" + GLUE + MARK, 18),
        (b"\0\0\0\0\0" + MARK, 0),
        (b"\0\x7f\0\0\1" + MARK, 0),  # larger than ids are
        ((1_700_000_000).to_bytes(8, "big"), 0),  # a number
        (b"\3\0" + b"0123456789abcdef" + MARK, 0),  # no UUID
        (b"\1\0\0\0\x11" + MARK, 0),
    ],
)
def test_framing_stays_where_it_is_sure(data: bytes, framed: int) -> None:
    headers = [("__value_schema_id", b"\1" + GLUE), ("apicurio.key.globalId", b"\0\0\0\x11"), ("apicurio.key.x", MARK)]
    builder = DefaultRecordBatchBuilder(2, b.NONE, 1, 7, 3, 40, 1 << 24)
    builder.append(0, 1_700_000_000_000, data, data, headers)
    (record,) = opened(scrubber("schema").scrub(bytes(builder.build()), "orders")).records
    for content in (record.key, record.value):
        assert content is not None
        assert content[:framed] == data[:framed]
        assert content[framed:] != data[framed:]
        assert MARK not in content
        if not framed:
            assert content[:5] != data[:5]
    names = [(name.decode() if isinstance(name, bytes) else name, value) for name, value in record.headers]
    assert names[:2] == headers[:2]
    assert record.headers[2][1] != MARK
    (record,) = opened(scrubber().scrub(bytes(builder.build()), "orders")).records
    assert record.value is not None
    assert not framed or record.value[:framed] != data[:framed]
