"""Errors that users can fix, in one form.

Rule: whatever goes wrong because of a user's input (a capture, a dataset, a filter, a target, an option) is raised as a
`KwireError` where it is noticed, and no code on the way converts it: the command line prints its message in one line
and its hint in a second, and exits with 2.
"""

from __future__ import annotations


class KwireError(Exception):
    """Something that the user can mend: `str()` is one line that says what and where, `hint` what to try.

    `pointer` may show the place: further lines for a terminal, empty for everything else.
    """

    def __init__(self, message: str, hint: str = "", pointer: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.pointer = pointer


class CaptureError(KwireError):
    """A capture that cannot be read."""
