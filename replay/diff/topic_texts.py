"""Topics as messages name them, by numbers that mean the same on both sides.

In: rows of tapes with names or ids of topics. Out: a number for each, and the name behind it. Pure; each spelling is
looked up once.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping

import numpy as np

from analyzer.protocol import program
from analyzer.protocol.schema import ZERO_UUID
from replay.diff.correspondence import Correspondence
from replay.diff.field_rows import Tape
from replay.diff.stored_run import Flags, Numbers


@functools.cache
def _ids() -> Flags:
    """By field: is it an id?"""
    return np.array([info.kind == "uuid" for info in program.load().fields])


class Texts:
    """`renamed`: by side, topics of the target and what they were called when captured."""

    def __init__(self, correspondence: Correspondence, renamed: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
        self._sides = correspondence.left, correspondence.right
        self._renamed = renamed
        self.renames = any(renamed)
        self._known: dict[tuple[int, bool, bytes], int] = {}
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []

    def numbers(self, tape: Tape, rows: Numbers, side: int) -> Numbers:
        """Of some rows of a side's tape (0 left, 1 right)."""
        data = memoryview(tape.heap)  # type: ignore[arg-type]  # arrays do have the buffer protocol
        begins, ends = tape.position[rows], tape.position[rows] + np.maximum(tape.length[rows], 0)
        by_id = _ids()[tape.field[rows]]
        places = zip(by_id.tolist(), begins.tolist(), ends.tolist(), strict=True)
        known = self._known
        said = [(side, of_id, bytes(data[begin:end])) for of_id, begin, end in places]
        return np.array([known[one] if one in known else self._number(*one) for one in said], np.int64)

    def _number(self, side: int, by_id: bool, text: bytes) -> int:
        """Of a spelling that is new."""
        name = self._name(side, by_id, text)
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self.names):
            self.names.append(name)
        self._known[side, by_id, text] = number
        return number

    def _name(self, side: int, by_id: bool, text: bytes) -> str:
        topics = self._sides[side]
        if by_id:
            return topics.topic(base64.urlsafe_b64encode(text)[:22].decode())
        name = text.decode("utf-8", "surrogateescape")
        return self._renamed[side].get(name, name) or topics.topic(ZERO_UUID)
