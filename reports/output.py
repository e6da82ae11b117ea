"""A file that a command writes: whole or not at all, and told at once where it cannot be; and what a source is called.

In: the path that a user gave. Out: the file, or `UsageError` before the work begins; a name for a page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.captures.files import urls


def form(path: str, endings: Mapping[str, str]) -> str:
    """The form that a file's name asks for. Raises UsageError where none ends so."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        known = ", ".join(sorted(name for name in endings if name))
        raise UsageError(
            f"{path}: nothing is written that ends in {ending}", f"give it one of {known}; or say --format"
        )
    return endings[ending]


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A file beside, to be written, which becomes `path` when it is whole (`kwire.analyzer.common.output_file`)."""
    try:
        with output_file.written(path) as beside:
            yield beside
    except OSError as failure:
        raise output_file.unwritable(path, failure.strerror) from None


def name_of(source: str) -> str:
    """The name of a source on a page: never the path on somebody's machine."""
    if urls.is_url(source):
        return urls.base_name(source)
    return "standard input" if source == "-" else Path(source).name or source
