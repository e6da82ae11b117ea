"""Errors that users can fix, in one form.

Rule: whatever goes wrong because of a user's input (a capture, a dataset, a filter, a target, an option) is raised as a
`KwireError` where it is noticed, and no code on the way converts it: the command line prints its message in one line
and its hint in a second, and exits with 2.
"""

from __future__ import annotations


class KwireError(Exception):
    """Something that the user can mend: `message` is one line that says what and where, `hint` what to try, and
    `str()` both, as a traceback shows them.

    `pointer` may show the place: further lines for a terminal, empty for everything else.
    """

    def __init__(self, message: str, hint: str = "", pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.pointer = pointer

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


def message_of(failure: BaseException) -> str:
    """Return the text of any exception without the hint that one of ours has."""
    return failure.message if isinstance(failure, KwireError) else str(failure)


class CaptureError(KwireError):
    """A capture that cannot be read."""
