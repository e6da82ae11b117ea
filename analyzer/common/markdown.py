"""Others' text in Markdown: names of topics and clients may hold HTML, links, mentions and marks of tables.

In: text. Out: Markdown that shows it literally. Rule: also on GitHub, which makes links of bare addresses and calls
people by `@name`.
"""

from __future__ import annotations

import re
from typing import Final

from kwire.analyzer.common.escapes import printable

_MARKS: Final = re.compile(r"[\\`*_\[\]<>|#~&]|(?<=:)//|(?<=www)\.|@", re.IGNORECASE)


def literal(text: str) -> str:
    """Return Markdown of one line that shows the text literally, HTML in it included."""
    return _MARKS.sub(_escaped, printable(text))


def _escaped(mark: re.Match[str]) -> str:
    character = mark[0]
    if character == "&":
        return "&amp;"
    if character == "@":
        return "@<!-- -->"  # an escape or an entity is gone by the time GitHub looks for mentions
    return f"\\{character}"
