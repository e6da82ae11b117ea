"""Which answers say the same on both sides, for many exchanges at once.

In: a block of pairs, and what stands for what. Out: the exchanges in which comparing one by one would find nothing,
with the values that differ in fields that are not compared. Pure. Rule: this is a short way, never a judgement of its
own: what is not plainly the same is left to `compare`, and both ways count the same (a test holds them against each
other).

Two answers of one version are plainly the same where they have the same fields in the same order, and what differs is
only what `fields.kind_of` says is not compared, or compared over many answers.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import api_keys, program
from kwire.analyzer.protocol.program import FieldInfo
from kwire.analyzer.protocol.project import FieldRows, decode_rows
from kwire.analyzer.protocol.schema import NO_API, RESPONSE
from kwire.replay.diff.fields import NOISE, Kind, identifies, kind_of
from kwire.replay.diff.pairs import Block
from kwire.replay.diff.partition_rows import MAX_ROWS, TopicColumn
from kwire.replay.diff.stored_run import Flags, Heap, Numbers
from kwire.replay.diff.topic_texts import Texts

(SAME, IGNORED, COUNTED, TOPIC, TOPIC_ID, APPENDED, COMMITTED) = range(7)
"""What a field's values must be for an answer to be plainly the same: the same; anything; anything, but counted; the
same topic by name, by id; both with a time or both without; both none."""

_TOPICS: Final = frozenset(("topic", "name", "topicName"))
_KINDS: Final = tuple(NOISE)
_LIFTED: Final = {api_keys.OFFSET_FETCH: 8, api_keys.FIND_COORDINATOR: 4}
"""Below these versions what an answer is about stands in its request."""
_WITH_BYTES: Final = ("string", "bytes", "records", "uuid")
_AT_ONCE: Final = 1 << 20
"""Bytes that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Alike:
    """`same`: exchanges of a block that are; `noise`: of these, values that differ, by kind; `read`: has each side's
    Fetch answer records?"""

    same: Flags
    noise: Counter[str]
    read: Flags


class SideRows(NamedTuple):
    """Rows of one side's answers, and the bytes in which they lie."""

    rows: FieldRows
    heap: Heap


@functools.cache
def _classes() -> tuple[Numbers, Numbers, Flags]:
    """By field: its class; the place of its kind in `_KINDS`; has it bytes?"""
    fields = program.load().fields
    by_path = {(info.api_key, info.path): info for info in fields if info.direction == RESPONSE}
    classes = np.full(len(fields), SAME)
    kinds = np.zeros(len(fields), np.int64)
    for info in by_path.values():
        classes[info.id] = _class(info, by_path)
        if classes[info.id] == COUNTED:
            kinds[info.id] = _KINDS.index(kind_of(info.api_key, info))
    return classes, kinds, np.array([info.kind in _WITH_BYTES for info in fields])


def _class(info: FieldInfo, by_path: dict[tuple[int, str], FieldInfo]) -> int:
    parts = info.path.removesuffix("[]").split(".")
    outer = [by_path.get((info.api_key, ".".join(parts[:count]))) for count in range(1, len(parts))]
    if info.path.endswith("[]"):
        outer.append(by_path.get((info.api_key, info.path.removesuffix("[]"))))
    around = [SAME if field is None else kind_of(info.api_key, field) for field in outer]
    if Kind.ELSEWHERE in around:
        return IGNORED
    if any(kind in NOISE for kind in around) or info.path.endswith(("[]", "_tags")):
        return SAME
    in_array = bool(outer) and outer[-1] is not None and outer[-1].kind == "array"
    if in_array and info.kind == "uuid" and parts[-1] == "topicId":
        return TOPIC_ID
    if in_array and identifies(parts[-1]):
        return TOPIC if parts[-1] in _TOPICS and info.kind == "string" else SAME
    kind = kind_of(info.api_key, info)
    if kind in NOISE:
        return SAME if info.kind in ("array", "struct") else COUNTED
    return {Kind.ELSEWHERE: IGNORED, Kind.APPENDED: APPENDED, Kind.COMMITTED: COMMITTED}.get(kind, SAME)


def alike(block: Block, texts: Texts) -> Alike:
    """Of the exchanges of a block. `texts`: what topics are called."""
    wanted = block.left.answered & block.right.answered & (block.left.version == block.right.version)
    wanted &= block.api_key != api_keys.API_VERSIONS
    wanted &= ~(block.retried & (block.api_key == api_keys.PRODUCE))  # it may be stored twice
    for api_key, version in _LIFTED.items():
        wanted &= (block.api_key != api_key) | (block.left.version >= version)
    left, right = (
        decode_rows(part.answers(block.api_key), _of_bodies(), wanted, MAX_ROWS) for part in (block.left, block.right)
    )
    same = left.decoded & right.decoded & wanted
    count = len(block)
    same &= np.bincount(left.message, minlength=count) == np.bincount(right.message, minlength=count)
    read = _with_records(left, count) & _with_records(right, count)
    left, right = left.where(same[left.message]), right.where(same[right.message])
    same[left.message[left.field != right.field]] = False
    left, right = left.where(same[left.message]), right.where(same[right.message])
    sides = SideRows(left, block.left.heap), SideRows(right, block.right.heap)
    message, kinds = _differing(*sides, same, texts)
    counted_rows = same[message]
    counts = np.bincount(kinds[counted_rows], minlength=len(_KINDS)).tolist()
    noise = Counter({kind.value: number for kind, number in zip(_KINDS, counts, strict=True) if number})
    return Alike(same, noise, read)


def _with_records(rows: FieldRows, count: int) -> Flags:
    number = program.load().field_id(api_keys.FETCH, RESPONSE, "responses.partitions.records")
    has_records = np.zeros(count, np.bool_)
    has_records[rows.message[(rows.field == number) & (rows.length > 0)]] = True
    return has_records


def _differing(left: SideRows, right: SideRows, same: Flags, texts: Texts) -> tuple[Numbers, Numbers]:
    """Takes out of `same` what is not; -> (message, kind) of values that are only counted. Both sides have the same
    fields."""
    classes, kinds, with_bytes = _classes()
    of = classes[left.rows.field]
    differs = left.rows.value != right.rows.value
    rows = np.flatnonzero(with_bytes[left.rows.field] & (of != IGNORED) & ~differs)
    differs[rows] = ~_same_bytes(left, right, rows)
    differs &= of != IGNORED
    named = (of == TOPIC) | (of == TOPIC_ID)
    bad = differs & (of == SAME)
    bad |= differs & (of == APPENDED) & ((left.rows.value < 0) != (right.rows.value < 0))
    bad |= (of == COMMITTED) & ((left.rows.value != -1) | (right.rows.value != -1))
    bad[_other_topics(left, right, np.flatnonzero(named & (differs | texts.renames)), texts)] = True
    same[left.rows.message[bad]] = False
    counted = differs & (of == COUNTED)
    return left.rows.message[counted], kinds[left.rows.field[counted]]


def _same_bytes(left: SideRows, right: SideRows, rows: Numbers) -> Flags:
    """Have two rows the same content? (Their values are the same: for strings these are the lengths.)"""
    lengths = np.maximum(left.rows.length[rows], 0)
    same: Flags = left.rows.length[rows] == right.rows.length[rows]
    lengths[~same] = 0
    ends = np.cumsum(lengths)
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, before + _AT_ONCE, "right")), first + 1)
        some = rows[first:stop]
        size = lengths[first:stop]
        inside = np.arange(int(size.sum())) - np.repeat(ends[first:stop] - size - before, size)
        equal = left.heap[np.repeat(left.rows.position[some], size) + inside]
        equal = equal == right.heap[np.repeat(right.rows.position[some], size) + inside]
        same[first + np.repeat(np.arange(len(some)), size)[~equal]] = False
        first = stop
    return same


def _other_topics(left: SideRows, right: SideRows, rows: Numbers, texts: Texts) -> Numbers:
    """Of rows with names or ids of topics, those that are not the same topic."""
    by_id = _ids()[left.rows.field[rows]]
    numbers = (
        texts.numbers(TopicColumn(side.heap, side.rows.position[rows], side.rows.length[rows], by_id), number)
        for number, side in enumerate((left, right))
    )
    other: Numbers = rows[np.not_equal(*numbers)]
    return other


@functools.cache
def _of_bodies() -> np.ndarray:
    return program.load().selection(lambda info: info.api_key != NO_API)


@functools.cache
def _ids() -> Flags:
    """By field: is it an id?"""
    return np.array([info.kind == "uuid" for info in program.load().fields])
