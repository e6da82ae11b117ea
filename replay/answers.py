"""Read errors and throttling of many answers, by one call of the kernel for all of them.

In: answers without their four bytes of length, each with its API and version. Out: an `AnswerStatus` of each. Pure; no
bodies are made.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import api_keys, errors, program, tree
from kwire.analyzer.protocol.decoding import OK
from kwire.analyzer.protocol.project import Messages, decode_rows
from kwire.analyzer.protocol.schema import RESPONSE


class AnswerStatus(NamedTuple):
    """Whether an answer could be decoded; if not, the `reason`. `throttle_ms`: None where answers of its version do not
    have it; `codes`: of errors, in order, without 0."""

    decoded: bool = True
    reason: str | None = None
    throttle_ms: int | None = None
    codes: tuple[int, ...] = ()


Answer = tuple[bytes, int, int]
"""The frame, its API and its version."""

_THROTTLE: Final = "throttleTimeMs"


def answer_statuses(answers: Sequence[Answer]) -> list[AnswerStatus]:
    """Read each answer's status, the same as its body has it."""
    selected, is_throttle = _selected()
    messages = Messages.from_frames([(*answer, RESPONSE) for answer in answers])
    rows = decode_rows(messages, selected, messages.api_key != api_keys.API_VERSIONS)
    throttle = is_throttle[rows.field]
    throttle_ms = dict(zip(rows.message[throttle].tolist(), rows.value[throttle].tolist(), strict=True))
    codes: dict[int, list[int]] = {}
    failed = ~throttle & (rows.value != 0)
    for number, code in zip(rows.message[failed].tolist(), rows.value[failed].tolist(), strict=True):
        codes.setdefault(number, []).append(code)
    return [
        AnswerStatus(True, None, throttle_ms.get(number), tuple(codes.get(number, ()))) if decoded else _alone(*answer)
        for number, (answer, decoded) in enumerate(zip(answers, rows.decoded.tolist(), strict=True))
    ]


def _alone(data: bytes, key: int, version: int) -> AnswerStatus:
    """Of one answer, by its body."""
    decoded = tree.decode_response(data, key, version, exact=True)
    if decoded.status != OK or decoded.body is None:
        return AnswerStatus(False, decoded.reason)
    return AnswerStatus(True, None, decoded.body.get(_THROTTLE), tuple(errors.codes(decoded.body)))


@functools.cache
def _selected() -> tuple[Any, Any]:
    """Select errors and throttle times; bool[n_fields]: which fields are the latter."""

    def is_error(info: program.FieldInfo) -> bool:
        name = info.path.rpartition(".")[2]
        return info.direction == RESPONSE and (name == "errorCode" or name.endswith("ErrorCode"))

    loaded = program.load()
    throttles = loaded.selection(lambda info: info.direction == RESPONSE and info.path == _THROTTLE)
    return loaded.selection(is_error) | throttles, throttles.astype(np.bool_)
