"""The decoder: one kernel that walks the program of `program.py` over the bytes of a message.

In: bytes and where a layout's code starts. Out: rows on the *tape*, in wire order, for the fields that are selected.

A tape row is int64[5]: message, field, value, position, length.

    kind                         value                       position                      length
    integers, bool               the number                  of its first byte             its size
    float64                      the bits                    of its first byte             8
    uuid                         the first half's bits       of its first byte             16
    string, bytes, records       length, -1 for null         of the content                length, -1 for null
    array                        count, -1 for null          after the count               0
    struct (nullable ones only)  1, -1 for null              of the marker byte            1
    tags                         number of tagged fields     after the number              0
    tag                          tag number                  of the tagged field's bytes   their number

A known tagged field's own rows follow its `tag` row. Rule: whatever the bytes are, nothing outside [at, end) is read,
and the work is linear in end - at: each step reads a byte, or is an element of an array whose count was checked
against the bytes that are left.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.protocol.program import (
    ARRAY,
    ARRAY_NEXT,
    BOOL,
    BYTES,
    COMPACT,
    COMPACT_ARRAY,
    END,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    STRUCT,
    TAG_END,
    TAG_NEXT,
    TAGS,
    UINT16,
    UINT32,
    UUID,
)
from kwire.captures.kernels import MACHINE_CODE, Array, Bytes, Int, Table, big16, big32, inline, kernel

OK: Final = 0
SHORT: Final = 1
BAD_LENGTH: Final = 2
BAD_NULL: Final = 3
BAD_VARINT: Final = 4
BAD_TAG_SIZE: Final = 5
TOO_DEEP: Final = 6
FULL: Final = 7
NO_LAYOUT: Final = 8

REASONS: Final = {
    OK: "decoded",
    SHORT: "runs past the message",
    BAD_LENGTH: "has more elements than bytes are left",
    BAD_NULL: "is null, which this version does not allow",
    BAD_VARINT: "has a length of more than 32 bits",
    BAD_TAG_SIZE: "does not end where its tag says",
    TOO_DEEP: "is nested too deeply",
    FULL: "has more fields than the limit allows",
    NO_LAYOUT: "has no layout",
}

TAPE_COLUMNS: Final = 5
STACK_COLUMNS: Final = 3


@inline
def read_int16(buffer: Bytes, at: Int) -> Int:
    if MACHINE_CODE:
        value = big16(buffer, at)
    else:
        value = (np.int64(buffer[at]) << 8) | np.int64(buffer[at + 1])
    return value - ((value & 0x8000) << 1)


@inline
def read_int32(buffer: Bytes, at: Int) -> Int:
    if MACHINE_CODE:
        value = big32(buffer, at)
    else:
        value = (
            (np.int64(buffer[at]) << 24)
            | (np.int64(buffer[at + 1]) << 16)
            | (np.int64(buffer[at + 2]) << 8)
            | np.int64(buffer[at + 3])
        )
    return value - ((value & 0x80000000) << 1)


@inline
def read_int64(buffer: Bytes, at: Int) -> Int:
    high = read_int32(buffer, at)
    low = read_int32(buffer, at + 4)
    return (high << 32) | (low & 0xFFFFFFFF)


@inline
def read_varint(buffer: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """An unsigned varint of at most 32 bits -> (value, where it ends); value -1: runs past `end`, -2: too large."""
    value: Int = np.int64(0)
    shift = 0
    while shift < 35:
        if at >= end:
            return -1, at
        byte = np.int64(buffer[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                return -2, at
            return value, at
        shift += 7
    return -2, at


@kernel
def decode(
    buffer: Bytes,
    at: Int,
    end: Int,
    pc: Int,
    code: Array,
    tags: Array,
    tag_entries: Array,
    selected: Bytes,
    tape: Table,
    used: Int,
    message: Int,
    stack: Table,
) -> tuple[Int, Int, Int, Int]:
    """Decode one body or header -> (at, used, status, fail_pc).

    buffer uint8[:]; the message is [at, end); `pc` where its code starts; `code, tags, tag_entries` of the program;
    selected uint8[n_fields]; tape int64[capacity, 5] with `used` rows in use; `message` goes into each row;
    stack int64[STACK_DEPTH, 3] is scratch. Integers are int64.

    OK: `at` is where the message ended, which may be before `end`. FULL: nothing of this message is on the tape
    (`used` as it was): make room and decode it again. Any other status: `at` is where the field starts that could not
    be read, `fail_pc` its code (`Program.field_path`), and the rows up to there are on the tape.
    """
    capacity = tape.shape[0]
    depth = stack.shape[0]
    begin = used
    level = 0
    if pc < 0 or pc >= code.shape[0] or at < 0 or end > buffer.shape[0] or at > end:
        return at, used, NO_LAYOUT, 0
    while True:
        operation = np.int64(code[pc, 0])
        field = np.int64(code[pc, 1])
        position = at
        value: Int = np.int64(0)
        length: Int = np.int64(0)
        following = pc + 1
        if operation == INT32:
            if end - at < 4:
                return at, used, SHORT, pc
            value = read_int32(buffer, at)
            length = 4
            at += 4
        elif operation == INT16:
            if end - at < 2:
                return at, used, SHORT, pc
            value = read_int16(buffer, at)
            length = 2
            at += 2
        elif operation in (INT64, FLOAT64):
            if end - at < 8:
                return at, used, SHORT, pc
            value = read_int64(buffer, at)
            length = 8
            at += 8
        elif operation in (STRING, BYTES, COMPACT):
            if operation == STRING:
                if end - at < 2:
                    return at, used, SHORT, pc
                length = read_int16(buffer, at)
                position = at + 2
            elif operation == BYTES:
                if end - at < 4:
                    return at, used, SHORT, pc
                length = read_int32(buffer, at)
                position = at + 4
            else:
                length, position = read_varint(buffer, at, end)
                if length < 0:
                    return at, used, SHORT if length == -1 else BAD_VARINT, pc
                length -= 1
            if length < 0:
                # Kafka takes every negative length for null.
                if code[pc, 3] == 0:
                    return at, used, BAD_NULL, pc
                length = -1
            elif length > end - position:
                return at, used, SHORT, pc
            value = length
            at = position + max(length, 0)
        elif operation == ARRAY_NEXT:
            stack[level - 1, 1] -= 1
            if stack[level - 1, 1] > 0:
                pc = stack[level - 1, 0]
            else:
                level -= 1
                pc = following
            continue
        elif operation in (ARRAY, COMPACT_ARRAY):
            if operation == ARRAY:
                if end - at < 4:
                    return at, used, SHORT, pc
                value = read_int32(buffer, at)
                position = at + 4
            else:
                value, position = read_varint(buffer, at, end)
                if value < 0:
                    return at, used, SHORT if value == -1 else BAD_VARINT, pc
                value -= 1
            if value < 0:
                if code[pc, 3] == 0:
                    return at, used, BAD_NULL, pc
                value = -1
            elif value > end - position:
                # The same check as Kafka's: an element is at least a byte (a test holds all layouts to it).
                return at, used, BAD_LENGTH, pc
            at = position
            if value <= 0:
                following = np.int64(code[pc, 2])
            else:
                if level == depth:
                    return position, used, TOO_DEEP, pc
                stack[level, 0] = following
                stack[level, 1] = value
                level += 1
        elif operation == TAGS:
            value, position = read_varint(buffer, at, end)
            if value < 0:
                return at, used, SHORT if value == -1 else BAD_VARINT, pc
            at = position
            if value == 0:
                following = pc + 2
            else:
                if level == depth:
                    return position, used, TOO_DEEP, pc
                stack[level, 0] = following
                stack[level, 1] = value
                level += 1
        elif operation == TAG_NEXT:
            if stack[level - 1, 1] == 0:
                level -= 1
                pc = following
                continue
            stack[level - 1, 1] -= 1
            value, position = read_varint(buffer, at, end)
            if value >= 0:
                length, position = read_varint(buffer, position, end)
            if value < 0 or length < 0:
                return at, used, SHORT if value == -1 or length == -1 else BAD_VARINT, pc
            if length > end - position:
                return at, used, SHORT, pc
            table = np.int64(code[pc, 2])
            at = position + length
            following = pc
            first = np.int64(tags[table, 0])
            for entry in range(first, first + np.int64(tags[table, 1])):
                if tag_entries[entry, 0] == value:
                    stack[level - 1, 2] = at
                    at = position
                    following = np.int64(tag_entries[entry, 1])
        elif operation == TAG_END:
            if at != stack[level - 1, 2]:
                return at, used, BAD_TAG_SIZE, pc
            pc = stack[level - 1, 0]
            continue
        elif operation in (INT8, BOOL):
            if end - at < 1:
                return at, used, SHORT, pc
            value = np.int64(buffer[at])
            value -= (value & 0x80) << 1
            length = 1
            at += 1
        elif operation == UUID:
            if end - at < 16:
                return at, used, SHORT, pc
            value = read_int64(buffer, at)
            length = 16
            at += 16
        elif operation == UINT16:
            if end - at < 2:
                return at, used, SHORT, pc
            value = read_int16(buffer, at) & 0xFFFF
            length = 2
            at += 2
        elif operation == UINT32:
            if end - at < 4:
                return at, used, SHORT, pc
            value = read_int32(buffer, at) & 0xFFFFFFFF
            length = 4
            at += 4
        elif operation == STRUCT:
            if end - at < 1:
                return at, used, SHORT, pc
            value = 1
            if buffer[at] >= 128:
                value = -1
                following = np.int64(code[pc, 2])
            length = 1
            at += 1
        elif operation == END:
            return at, used, OK, pc
        else:
            return at, used, NO_LAYOUT, pc
        if selected[field]:
            if used == capacity:
                return at, begin, FULL, pc
            tape[used, 0] = message
            tape[used, 1] = field
            tape[used, 2] = value
            tape[used, 3] = position
            tape[used, 4] = length
            used += 1
        pc = following
