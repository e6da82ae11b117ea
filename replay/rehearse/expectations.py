"""Reads known differences (`--expect FILE`), and recognises them.

In: a TOML file with a table `[[difference]]` for each. Out: `Expectation`s, and which of them a difference is. A text
of an expectation may have the wildcards `*` and `?`; what it does not name it takes as it is.
"""

from __future__ import annotations

import fnmatch
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.protocol import schema
from kwire.replay.diff.differences import Difference

_LARGEST: Final = 1 << 20
"""Bytes of a file: thousands of expectations."""
_WHAT: Final = ("api", "field", "kind", "value")
_HINT: Final = (
    'a table [[difference]] each, with one or more of api, field, kind, value, and a comment, as in api = "Fetch"'
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """A known difference. Empty texts fit everything; `value` is what the new target has."""

    comment: str
    api: str = ""
    field: str = ""
    kind: str = ""
    value: str = ""

    def fits(self, difference: Difference) -> bool:
        """Whether a difference is the known one."""
        texts = (
            (self.api, schema.api_name(difference.row["api_key"])),
            (self.field, difference.path),
            (self.kind, difference.kind),
            (self.value, difference.right),
        )
        return all(not pattern or fnmatch.fnmatchcase(text, _literal(pattern)) for pattern, text in texts)

    def as_dict(self) -> dict[str, str]:
        """As in the file."""
        named = {name: getattr(self, name) for name in _WHAT}
        return {**{name: text for name, text in named.items() if text}, "comment": self.comment}

    def text(self) -> str:
        """For a person, in a line."""
        return " ".join(filter(None, (self.api, self.field, self.kind, self.value))) + f" ({self.comment})"


def _literal(pattern: str) -> str:
    """A pattern in which brackets are themselves: kinds and values have them."""
    return pattern.replace("[", "[[]")


@dataclass(frozen=True, slots=True)
class Expectations:
    """All of a file."""

    every: Sequence[Expectation] = ()

    def which(self, difference: Difference) -> int | None:
        """The number of the first that a difference fits; None if it fits none."""
        return next((number for number, known in enumerate(self.every) if known.fits(difference)), None)


def read(path: str | os.PathLike[str]) -> Expectations:
    """Read a file of known differences. Raises UsageError."""
    where = f"--expect {os.fspath(path)}"
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UsageError(f"{where}: more than {_LARGEST >> 20} MiB", _HINT)
        tables = tomllib.loads(content.decode())
    except OSError as failure:
        raise UsageError(f"{where}: {failure.strerror}", _HINT) from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: not UTF-8", _HINT) from None
    except (tomllib.TOMLDecodeError, RecursionError) as failure:
        raise UsageError(f"{where}: not TOML: {failure}", _HINT) from None
    listed = tables.pop("difference", [])
    if tables or not isinstance(listed, list):
        raise UsageError(f"{where}: {next(iter(tables), 'difference')} is no [[difference]]", _HINT)
    return Expectations([_expectation(f"{where}: difference {number}", each) for number, each in enumerate(listed, 1)])


def _expectation(where: str, table: Any) -> Expectation:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table", _HINT)
    for name, value in table.items():
        if name not in (*_WHAT, "comment"):
            raise UsageError(f"{where} has {name}, which is none of {', '.join(_WHAT)} and comment", _HINT)
        if not isinstance(value, str):
            raise UsageError(f"{where}: {name} is no text", _HINT)
    if not table.get("comment"):
        raise UsageError(f"{where} has no comment", 'comment = "why this is known and no fault"')
    if not any(table.get(name) for name in _WHAT):
        raise UsageError(f"{where} names none of {', '.join(_WHAT)}, so everything would be accepted", _HINT)
    return Expectation(**table)
