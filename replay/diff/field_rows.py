"""Messages of many exchanges as rows of fields, and what stands in them by partition.

In: frames by their places in a heap. Out: `Tape`s, decoded by one call of the kernel, and columns of what a Produce or
Fetch says of each partition. Pure. What does not decode is not on the tape, and told in `decoded`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from analyzer.protocol import program
from analyzer.protocol.decoding import OK
from analyzer.protocol.many import AT, BODY, END, HEADER, PLACE_COLUMNS, STATUS, decode_all
from analyzer.protocol.schema import NO_API, REQUEST
from analyzer.protocol.topic_lists import TopicField
from replay.diff.stored_run import Flags, Heap, Numbers

ROWS: Final = 1 << 20
"""Rows of the messages that are decoded together; those beyond are left to be decoded one by one."""


@dataclass(frozen=True, slots=True)
class Tape:
    """Rows of messages in order, each with its message's number; the other columns are as of `decoding`. `decoded`: by
    message, whether it is here."""

    message: Numbers
    field: Numbers
    value: Numbers
    position: Numbers
    length: Numbers
    decoded: Flags
    heap: Heap

    def where(self, mask: Flags) -> Tape:
        """Some rows."""
        columns = (self.message, self.field, self.value, self.position, self.length)
        message, field, value, position, length = (column[mask] for column in columns)
        return Tape(message, field, value, position, length, self.decoded, self.heap)


@functools.cache
def _of_bodies() -> Flags:
    return np.array([info.api_key != NO_API for info in program.load().fields])


def tape_of(
    heap: Heap, at: Numbers, end: Numbers, api_key: Numbers, version: Numbers, direction: int, wanted: Flags
) -> Tape:
    """The wanted messages decoded, without their headers. [at, end): frames without their length."""
    loaded = program.load()
    _, apis, versions = loaded.start.shape
    known = wanted & (end - at >= 4) & (api_key >= 0) & (api_key < apis) & (version >= 0) & (version < versions)
    which = np.flatnonzero(known)
    keys, spoken = api_key[which].astype(np.int64), version[which].astype(np.int64)
    places = np.empty((len(which), PLACE_COLUMNS), np.int64)
    places[:, AT], places[:, END] = at[which], end[which]
    places[:, BODY] = loaded.start[direction, keys, spoken]
    places[:, HEADER] = loaded.header_start[direction, np.maximum(loaded.header_version[direction, keys, spoken], 0)]
    has_layout = places[:, BODY] >= 0
    if direction == REQUEST:
        # A frame says itself what it is.
        bytes_of = heap[places[:, AT, np.newaxis] + np.arange(4)].astype(np.int64)
        has_layout &= (bytes_of[:, 0] * 256 + bytes_of[:, 1] == keys) & (
            bytes_of[:, 2] * 256 + bytes_of[:, 3] == spoken
        )
    which, places = which[has_layout], places[has_layout]
    decoded = np.zeros(len(at), np.bool_)
    found: list[np.ndarray] = []
    rows = 0
    for tape, endings in decode_all(heap, places, loaded.everything(), loaded):
        fine = endings[:, STATUS] == OK
        kept = tape[fine[tape[:, 0]] & _of_bodies()[tape[:, 1]]]
        decoded[which[fine]] = True
        kept[:, 0] = which[kept[:, 0]]
        found.append(kept)
        rows += len(kept)
        if rows > ROWS:
            break
    every = np.concatenate(found) if found else np.empty((0, 5), np.int64)
    message, field, value, position, length = np.ascontiguousarray(every.T)
    return Tape(message, field, value, position, length, decoded, heap)


class Partitions(NamedTuple):
    """What messages say of partitions, in order: whose message, the row of the topic's name or id, the partition's
    number; by name the values of other fields, with their positions and lengths (`absent` where there is none)."""

    message: Numbers
    topic: Numbers
    number: Numbers
    values: Mapping[str, Numbers]
    positions: Mapping[str, Numbers]
    lengths: Mapping[str, Numbers]

    def where(self, mask: Flags | Numbers) -> Partitions:
        """Some of them."""
        others = ({name: column[mask] for name, column in some.items()} for some in self[3:])
        return Partitions(self.message[mask], self.topic[mask], self.number[mask], *others)


def topic_fields(api_key: int, direction: int, where: TopicField) -> list[int]:
    """The fields with the topic's name or id."""
    paths = (".".join((*where.path, name)) for name in (where.name, where.id) if name)
    found = (program.load().field_id(api_key, direction, path) for path in paths)
    return [number for number in found if number >= 0]


def partitions_of(tape: Tape, api_key: int, direction: int, where: TopicField, fields: Mapping[str, int]) -> Partitions:
    """Of an API that lists topics at the top. `fields`: of a partition, each with what it is where it is not said."""
    load = program.load()
    inside = ".".join((*where.path, where.partitions))
    named = topic_fields(api_key, direction, where)
    topic_rows = np.flatnonzero(np.isin(tape.field, named))
    rows = np.flatnonzero(tape.field == load.field_id(api_key, direction, f"{inside}.{where.number}"))
    topic = topic_rows[np.searchsorted(topic_rows, rows) - 1] if len(rows) else rows
    values: dict[str, Numbers] = {}
    positions: dict[str, Numbers] = {}
    lengths: dict[str, Numbers] = {}
    for name, absent in fields.items():
        said = np.flatnonzero(tape.field == load.field_id(api_key, direction, f"{inside}.{name}"))
        owner = np.searchsorted(rows, said) - 1
        for into, column, none in (
            (values, tape.value, absent),
            (positions, tape.position, 0),
            (lengths, tape.length, 0),
        ):
            into[name] = np.full(len(rows), none, np.int64)
            into[name][owner] = column[said]
    return Partitions(tape.message[rows], topic, tape.value[rows], values, positions, lengths)
