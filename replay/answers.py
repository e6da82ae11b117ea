"""What many answers say of errors and throttling, by one call of the kernel for all of them: nobody makes bodies.

In: answers without their four bytes of length, each with its API and version. Out: a `Said` of each. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from analyzer.protocol import api_keys, errors, layouts, many, program, tree
from analyzer.protocol.decoding import OK
from analyzer.protocol.schema import RESPONSE


class Said(NamedTuple):
    """`decoded`: could it be; if not, `reason`. `throttle_ms`: None where answers of its version do not say it;
    `codes`: of errors, in order, without 0."""

    decoded: bool = True
    reason: str | None = None
    throttle_ms: int | None = None
    codes: tuple[int, ...] = ()


Answer = tuple[bytes, int, int]
"""The frame, its API and its version."""

_THROTTLE: Final = "throttleTimeMs"
_ROW, _FIELD, _VALUE = range(3)
"""Of a row of the tape."""


def said(answers: Sequence[Answer]) -> list[Said]:
    """Of each answer, as its body would say it."""
    loaded = program.load()
    selected, throttles = _selected(loaded)
    known: list[int] = []
    places: list[tuple[int, int, int, int]] = []
    at = 0
    for number, (data, key, version) in enumerate(answers):
        start = _start(key, version) if key != api_keys.API_VERSIONS else None
        if start is not None:
            known.append(number)
            places.append((at, at + len(data), *start))
            at += len(data)
    data = b"".join(answers[number][0] for number in known)
    table = np.array(places, np.int64).reshape(-1, many.PLACE_COLUMNS)
    throttle = np.zeros(len(known), np.int64)
    says = np.zeros(len(known), np.bool_)
    codes: dict[int, list[int]] = {}
    whole = np.zeros(len(known), np.bool_)
    for tape, endings in many.decode_all(layouts.as_buffer(data), table, selected, loaded):
        held = throttles[tape[:, _FIELD]]
        throttle[tape[held, _ROW]] = tape[held, _VALUE]
        says[tape[held, _ROW]] = True
        for row, code in tape[~held & (tape[:, _VALUE] != 0)][:, [_ROW, _VALUE]].tolist():
            codes.setdefault(row, []).append(code)
        whole = endings[:, many.STATUS] == OK
    found: list[Said | None] = [None] * len(answers)
    rows = zip(known, throttle.tolist(), says.tolist(), whole.tolist(), strict=True)
    for row, (number, waited, is_said, is_whole) in enumerate(rows):
        if is_whole:
            found[number] = Said(True, None, waited if is_said else None, tuple(codes.get(row, ())))
    return [_alone(*one) if told is None else told for one, told in zip(answers, found, strict=True)]


def _alone(data: bytes, key: int, version: int) -> Said:
    """Of one answer, by its body."""
    decoded = tree.decode_response(data, key, version, exact=True)
    if decoded.status != OK or decoded.body is None:
        return Said(False, decoded.reason)
    return Said(True, None, decoded.body.get(_THROTTLE), tuple(errors.codes(decoded.body)))


@functools.cache
def _start(key: int, version: int) -> tuple[int, int] | None:
    """Where the code of an answer's header and of its body starts; None where Kafka never had it."""
    if not layouts.has_layout(key, version, RESPONSE):
        return None
    loaded = program.load()
    header = loaded.header_start[RESPONSE, loaded.header_version[RESPONSE, key, version]]
    return int(header), int(loaded.start[RESPONSE, key, version])


@functools.cache
def _selected(loaded: program.Program) -> tuple[Any, Any]:
    """Fields for the tape: errors, and how long a client was to wait; bool[n_fields]: which are the latter."""

    def is_error(info: program.FieldInfo) -> bool:
        name = info.path.rpartition(".")[2]
        return info.direction == RESPONSE and (name == "errorCode" or name.endswith("ErrorCode"))

    throttles = loaded.selection(lambda info: info.direction == RESPONSE and info.path == _THROTTLE)
    return loaded.selection(is_error) | throttles, throttles.astype(np.bool_)
