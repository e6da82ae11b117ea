"""Captures that a dataset was made of: what messages and packets are read from again.

In: arguments of a command line, and how they were read. Out: the arguments of one capture point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.pipeline.read_options import ReadOptions
from captures.files import CapturePoint, capture_points

SIDES: Final = ("request", "response")
"""Of an exchange, its messages."""


@dataclass(frozen=True, slots=True)
class Captures:
    """Captures that a dataset was made of, and how they were read."""

    arguments: tuple[str, ...]
    how: ReadOptions

    def point(self, name: str) -> tuple[str, ...]:
        """The arguments that make the capture point of a name; none where there is no such."""
        if self.how.rotated:
            return self.arguments
        named: list[tuple[CapturePoint, str]] = [(capture_points([one])[0], one) for one in self.arguments]
        return tuple(argument for point, argument in named if point.name == name)
