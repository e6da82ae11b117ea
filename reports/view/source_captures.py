"""Captures that a dataset was made of, from which messages and packets are read again.

In: arguments of a command line, and reading options. Out: the arguments of one capture point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint, capture_points

SIDES: Final = ("request", "response")
"""Messages of an exchange."""


@dataclass(frozen=True, slots=True)
class SourceCaptures:
    """Captures that a dataset was made of, and the options that they were read with."""

    arguments: tuple[str, ...]
    how: ReadOptions

    def point(self, name: str) -> tuple[str, ...]:
        """Get the arguments of the capture point with a name; empty if there is none."""
        if self.how.rotated:
            return self.arguments
        named: list[tuple[CapturePoint, str]] = [
            (capture_points([argument])[0], argument) for argument in self.arguments
        ]
        return tuple(argument for point, argument in named if point.name == name)
