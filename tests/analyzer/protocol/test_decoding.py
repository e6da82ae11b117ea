"""The decode kernel on hostile bytes: it never reads outside the message, and every way to fail has its status."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.protocol import decoding, program
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from tests.analyzer.protocol import golden
from tests.programs import CHECKED_AND_PLAIN, printed

STACK = np.zeros((program.STACK_DEPTH, decoding.STACK_COLUMNS), np.int64)


def run(
    data: bytes,
    pc: int,
    *,
    at: int = 0,
    end: int | None = None,
    rows: int = 4096,
    stack: Any = STACK,
    decode: Any = None,
) -> tuple[tuple[int, int, int, int], list[list[int]]]:
    """The kernel's result and the tape, with everything selected."""
    loaded = program.load()
    tape = np.zeros((rows, decoding.TAPE_COLUMNS), np.int64)
    buffer = np.frombuffer(bytearray(data), np.uint8)
    result = (decode or decoding.decode)(
        buffer, at, len(data) if end is None else end, pc, *loaded.arrays, loaded.everything(), tape, 0, 5, stack
    )
    at_end, used, status, fail_pc = (int(number) for number in result)
    return (at_end, used, status, fail_pc), tape[:used].tolist()


def start(api_key: int, version: int, direction: int) -> int:
    return int(program.load().start[direction, api_key, version])


def sample(count: int) -> list[golden.Golden]:
    chosen = list(golden.every())
    random.Random(4).shuffle(chosen)
    return chosen[:count]


# --- what is on the tape ----------------------------------------------------------------------------------------------


def test_the_tape_of_a_produce_request_row_by_row() -> None:
    data = bytes.fromhex("00 ffff 00007530 02 076f7264657273 02 00000003 03 aabb 00 00 01 05 02 0102")
    (at, _, status, _), rows = run(data, start(0, 9, REQUEST))
    assert (at, status) == (len(data), decoding.OK)
    loaded = program.load()
    assert [(loaded.fields[field].path, *rest) for _, field, *rest in rows] == [
        ("transactionalId", -1, 1, -1),
        ("acks", -1, 1, 2),
        ("timeoutMs", 30000, 3, 4),
        ("topicData", 1, 8, 0),
        ("topicData.name", 6, 9, 6),
        ("topicData.partitionData", 1, 16, 0),
        ("topicData.partitionData.index", 3, 16, 4),
        ("topicData.partitionData.records", 2, 21, 2),
        ("topicData.partitionData._tags", 0, 24, 0),
        ("topicData._tags", 0, 25, 0),
        ("_tags", 1, 26, 0),
        ("_tags[]", 5, 28, 2),
    ]
    assert {message for message, *_ in rows} == {5}


def test_only_selected_fields_are_on_the_tape() -> None:
    loaded = program.load()
    selected = loaded.selection(lambda info: info.path == "acks")
    tape = np.zeros((8, 5), np.int64)
    data = bytes.fromhex("00 ffff 00007530 02 076f7264657273 02 00000003 03 aabb 00 00 00")
    buffer = np.frombuffer(bytearray(data), np.uint8)
    result = decoding.decode(buffer, 0, len(data), start(0, 9, REQUEST), *loaded.arrays, selected, tape, 2, 9, STACK)
    assert tuple(map(int, result[:3])) == (len(data), 3, decoding.OK)
    assert tape[2].tolist() == [9, loaded.field_id(0, REQUEST, "acks"), -1, 1, 2]
    assert not tape[:2].any()
    assert not tape[3:].any()


def test_a_message_may_lie_anywhere_in_a_buffer_and_leave_bytes() -> None:
    data = b"\xff\xff" + bytes.fromhex("00000007 0010 00") + b"\x01\x02\xff\xff"
    (at, used, status, _), rows = run(data, start(12, 4, RESPONSE), at=2, end=11)
    assert (at, used, status) == (9, 3, decoding.OK)
    assert [row[2] for row in rows] == [7, 16, 0]


# --- every way to fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "api_key", "version", "direction", "data", "status", "path", "at"),
    [
        ("ends inside an int32", 12, 0, REQUEST, "0001 61 0000", decoding.SHORT, "generationId", 3),
        ("ends inside a string", 12, 0, REQUEST, "0005 61", decoding.SHORT, "groupId", 0),
        ("null where not allowed", 12, 0, REQUEST, "ffff", decoding.BAD_NULL, "groupId", 0),
        ("compact null where not allowed", 12, 4, REQUEST, "00", decoding.BAD_NULL, "groupId", 0),
        ("null array where not allowed", 0, 9, REQUEST, "00 0001 00000000 00", decoding.BAD_NULL, "topicData", 7),
        ("more elements than bytes", 0, 9, REQUEST, "00 0001 00000000 0a 00", decoding.BAD_LENGTH, "topicData", 7),
        ("one element more than bytes", 3, 1, REQUEST, "00000002 00", decoding.BAD_LENGTH, "topics", 0),
        ("as many elements as bytes", 3, 1, REQUEST, "00000001 00", decoding.SHORT, "topics.name", 4),
        ("2^31-1 elements", 3, 1, REQUEST, "7fffffff 00", decoding.BAD_LENGTH, "topics", 0),
        ("varint of six bytes", 12, 4, REQUEST, "ffffffffff01", decoding.BAD_VARINT, "groupId", 0),
        ("varint over 32 bits", 12, 4, REQUEST, "ffffffff1f", decoding.BAD_VARINT, "groupId", 0),
        ("varint cut off", 12, 4, REQUEST, "ffff", decoding.SHORT, "groupId", 0),
        ("tag count too large for the bytes", 12, 4, RESPONSE, "00000000 0000 7f", decoding.SHORT, "_tags[]", 7),
        ("tag longer than the message", 12, 4, RESPONSE, "00000000 0000 01 05 09 00", decoding.SHORT, "_tags[]", 7),
        (
            "tag of another size",
            1,
            12,
            REQUEST,
            "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01 01 00 05 02 61 00 00 00",
            decoding.BAD_TAG_SIZE,
            "clusterId",
            None,
        ),
    ],
)
def test_a_broken_rule_is_a_status_with_field_and_offset(
    what: str, api_key: int, version: int, direction: int, data: str, status: int, path: str, at: int | None
) -> None:
    (end, _, result, fail_pc), _ = run(bytes.fromhex(data), start(api_key, version, direction))
    assert decoding.REASONS[result] == decoding.REASONS[status], what
    assert program.load().field_path(fail_pc) == path
    assert at is None or end == at


def test_every_status_has_a_sentence() -> None:
    assert sorted(decoding.REASONS) == list(range(decoding.NO_LAYOUT + 1))


def test_negative_lengths_are_null_as_they_are_for_kafka() -> None:
    # Heartbeat v3 request: groupInstanceId is nullable.
    (_, _, status, _), rows = run(bytes.fromhex("0001 61 00000000 0000 fffb"), start(12, 3, REQUEST))
    assert status == decoding.OK
    assert rows[-1][2:] == [-1, 11, -1]


@pytest.mark.parametrize("pc", [-1, 1 << 20])
def test_no_code_is_no_layout(pc: int) -> None:
    assert run(b"abc", pc)[0][2] == decoding.NO_LAYOUT


@pytest.mark.parametrize(("at", "end"), [(-1, 2), (0, 4), (3, 2)])
def test_a_span_outside_the_buffer_is_refused(at: int, end: int) -> None:
    assert run(b"abc", start(12, 0, REQUEST), at=at, end=end)[0][2] == decoding.NO_LAYOUT


def test_a_full_tape_keeps_nothing_of_the_message() -> None:
    data = bytes.fromhex("00000007 0010 00")
    for rows in range(3):
        assert run(data, start(12, 4, RESPONSE), rows=rows)[0][1:3] == (0, decoding.FULL)
    assert run(data, start(12, 4, RESPONSE), rows=3)[0][1:3] == (3, decoding.OK)


def test_a_small_stack_is_a_status_too() -> None:
    data = bytes.fromhex("00 ffff 00007530 02 076f7264657273 02 00000003 03 aabb 00 00 01 05 02 0102")
    for depth in range(2):
        stack = np.zeros((depth, decoding.STACK_COLUMNS), np.int64)
        assert run(data, start(0, 9, REQUEST), stack=stack)[0][2] == decoding.TOO_DEEP
    assert run(data, start(0, 9, REQUEST), stack=np.zeros((2, 3), np.int64))[0][2] == decoding.OK


# --- any bytes --------------------------------------------------------------------------------------------------------


def assert_sane(data: bytes, pc: int, result: tuple[int, int, int, int], rows: list[list[int]]) -> None:
    at, used, status, fail_pc = result
    assert 0 <= at <= len(data)
    assert status in decoding.REASONS
    assert status not in (decoding.FULL, decoding.NO_LAYOUT, decoding.TOO_DEEP)
    assert 0 <= fail_pc < len(program.load().code)
    assert used <= len(data)
    for _, _, _, position, length in rows:
        assert position >= 0
        assert position + max(length, 0) <= len(data)


def test_a_golden_message_cut_anywhere_is_short_and_nothing_after_the_cut_is_read() -> None:
    for message in sample(1200):
        pc = start(message.api_key, message.version, message.direction)
        whole, whole_rows = run(message.data, pc)
        assert whole[:3] == (len(message.data), len(whole_rows), decoding.OK), str(message)
        step = max(1, len(message.data) // 40)
        for cut in range(0, len(message.data), step):
            # What lies behind the message must not matter: zeros, ones and the message itself.
            behind = [message.data, message.data[:cut] + bytes(300), message.data[:cut] + b"\xff" * 300]
            results = [run(data, pc, end=cut) for data in behind]
            assert results[0] == results[1] == results[2], (str(message), cut)
            result, rows = results[0]
            assert_sane(message.data[:cut], pc, result, rows)
            assert result[2] in (decoding.SHORT, decoding.BAD_LENGTH), (str(message), cut)
            assert rows == whole_rows[: len(rows)]


def flipped(data: bytes, generator: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8))):
        if out:
            out[generator.randrange(len(out))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
    return bytes(out)


def test_flipped_bytes_never_lead_outside_the_message() -> None:
    generator = random.Random(11)
    seen = set()
    for message in sample(1200):
        pc = start(message.api_key, message.version, message.direction)
        for _ in range(8):
            data = flipped(message.data, generator)
            result, rows = run(data, pc)
            assert_sane(data, pc, result, rows)
            assert run(data + b"\xff" * 50, pc, end=len(data)) == (result, rows)
            seen.add(result[2])
    assert {decoding.OK, decoding.SHORT, decoding.BAD_LENGTH, decoding.BAD_NULL} <= seen


def test_random_bytes_as_any_message() -> None:
    generator = random.Random(12)
    starts = program.load().start
    for pc in np.unique(starts[starts >= 0]).tolist():
        for size in (0, 1, 7, 64, 300):
            data = generator.randbytes(size)
            assert_sane(data, pc, *run(data, pc))


def test_the_kernel_does_what_its_source_says() -> None:
    """Compiled and interpreted, the same: arithmetic on narrow integers differs where a load is not widened."""
    generator = random.Random(13)
    interpreted = golden.interpreted(decoding.decode)
    for message in sample(250):
        pc = start(message.api_key, message.version, message.direction)
        for data in (
            message.data,
            flipped(message.data, generator),
            message.data[: generator.randrange(len(message.data) + 1)],
        ):
            assert run(data, pc, decode=interpreted) == run(data, pc), str(message)


@CHECKED_AND_PLAIN
def test_the_same_with_bounds_checks_and_without_compiling(variable: str, value: str, tmp_path: Any) -> None:
    """A read past an array raises with bounds checks; the hostile part of this file runs under them."""
    code = "import tests.analyzer.protocol.test_decoding as t; t.hostile()"
    assert printed(code, **{variable: value, "KWIRE_CACHE_DIR": str(tmp_path)}) == "hostile: done\n"


def hostile() -> None:
    """Cut and flipped messages in arrays that end with them, so that a read too far is outside the array."""
    generator = random.Random(14)
    for message in sample(120):
        pc = start(message.api_key, message.version, message.direction)
        for cut in range(0, len(message.data), max(1, len(message.data) // 12)):
            run(message.data[:cut], pc, rows=512)
        for _ in range(5):
            run(flipped(message.data, generator), pc, rows=512)
        for rows in range(3):
            run(message.data, pc, rows=rows)
    print("hostile: done")
