"""GitHub Actions: annotations, and the summary of a step.

In: severities and texts. Out: lines that the runner reads as commands, and the file of `--summary`. Source: GitHub's
documentation of workflow commands, and `actions/toolkit`: `packages/core/src/command.ts`, for what is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable

SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"

_LEVELS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def annotation(severity: str, title: str, lines: Sequence[str]) -> str:
    """Return the command that shows lines of text beside a build. severity: of findings."""
    return f"::{_LEVELS[severity]} title={_escaped(title, ':,')}::{'%0A'.join(map(_escaped, lines))}"


def _escaped(text: str, also: str = "") -> str:
    """Escape text of one line, and in a property the characters that end it."""
    escaped = printable(text).replace("%", "%25")
    for character in also:
        escaped = escaped.replace(character, f"%{ord(character):02X}")
    return escaped


def check_summary(path: str) -> None:
    """Raises UsageError, before the work begins, where the file of `--summary` cannot be written."""
    if os.path.isdir(path) or not _is_shared(path):
        output_file.check(path, "--summary")


def _is_shared(path: str) -> bool:
    shared = os.environ.get(SUMMARY_VARIABLE)
    return shared is not None and shared != "" and os.path.realpath(path) == os.path.realpath(shared)


def write_summary(path: str, markdown: str) -> None:
    """Write the file of `--summary`; to the summary of a step, which others write to as well, it is appended. Raises
    UsageError."""
    if not _is_shared(path):
        output_file.write_text(path, markdown)
        return
    try:
        with open(path, "a", encoding="utf-8") as summary:
            summary.write(markdown)
    except OSError as failure:
        raise UsageError(
            f"{path}: {failure.strerror}", f"{SUMMARY_VARIABLE} names a file that can be written"
        ) from None
