"""Topics as messages name them, by numbers that mean the same on both sides.

In: columns of names or ids of topics. Out: a number for each, and the name behind it. Pure; each spelling is looked up
once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np

from kwire.analyzer.protocol.schema import ZERO_UUID
from kwire.replay.diff.correspondence import Correspondence
from kwire.replay.diff.partition_rows import TopicColumn
from kwire.replay.diff.stored_run import Numbers


class Texts:
    """`renamed`: by side, topics of the target and what they were called when captured."""

    def __init__(self, correspondence: Correspondence, renamed: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
        self._sides = correspondence.left, correspondence.right
        self._renamed = renamed
        self.renames = any(renamed)
        self._known: dict[tuple[int, bool, bytes], int] = {}
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []

    def numbers(self, topics: TopicColumn, side: int) -> Numbers:
        """Number the topics that a side (0 left, 1 right) names; the same topic has the same number on both."""
        data = memoryview(topics.heap)  # type: ignore[arg-type]  # arrays do have the buffer protocol
        ends = topics.position + np.maximum(topics.length, 0)
        spans = zip(topics.by_id.tolist(), topics.position.tolist(), ends.tolist(), strict=True)
        known = self._known
        spellings = [(side, by_id, bytes(data[begin:end])) for by_id, begin, end in spans]
        return np.array([known[key] if key in known else self._number(*key) for key in spellings], np.int64)

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
