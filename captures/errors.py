"""What this package raises."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture that cannot be read: the message says what and where, `hint` what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
