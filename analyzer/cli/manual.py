"""`kwire help`: the documentation that comes with the package, in the terminal.

In: a topic. Out: plain text, as wide as a page, for a terminal, a pipe or `grep`. Rules: nothing is said here that
is not said where it belongs: the filter language in `filter/FILTER.md`, tables and columns in `tables.py`, views in the
first comments of their files, findings in `findings/FINDINGS.md`, what concerns all commands in files beside this one;
what those say is only laid out.
"""

from __future__ import annotations

import difflib
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kwire.analyzer.common.errors import UsageError

_WIDTH = 100
_HERE = Path(__file__).resolve().parent
_PAGES = {
    "filter": _HERE.parent / "filter" / "FILTER.md",
    "findings": _HERE.parent / "findings" / "FINDINGS.md",
    "python": _HERE / "PYTHON.md",
    "exit-codes": _HERE / "EXIT_CODES.md",
    "environment": _HERE / "ENVIRONMENT.md",
}

TOPICS = {
    "filter": "the language of --filter",
    "tables": "the tables of a dataset, and what each column holds",
    "views": "the views of kwire sql: one question each",
    "findings": "what kwire findings looks for: every rule, and why its thresholds are so",
    "python": "import kwire: its functions, with an example of each",
    "exit-codes": "what the exit code of each command means",
    "environment": "environment variables that kwire heeds",
}
"""What `kwire help` knows besides commands, and the tables and views by name."""


class View(Protocol):
    """A view as `kwire.reports.catalog` reads it."""

    @property
    def name(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def notes(self) -> str: ...
    @property
    def columns(self) -> dict[str, str]: ...


def page(topic: str, views: Sequence[View]) -> str:
    """The text about a topic, a table or a view. Raises UsageError: there is nothing about it."""
    if topic in _PAGES:
        text = _PAGES[topic].read_text(encoding="utf-8")
        return _findings(text) if topic == "findings" else rendered(text)
    from kwire.analyzer.dataset import tables

    if topic == "tables":
        return "\n".join(_table(name) for name in tables.TABLES)
    by_name = {view.name: view for view in views}
    if topic == "views":
        head = "Ask in SQL: kwire sql DATASET 'SELECT * FROM latency_by_api'. kwire help VIEW says the columns.\n\n"
        return head + _columns({name: by_name[name].question for name in sorted(by_name)})
    if topic in tables.TABLES:
        return _table(topic)
    if topic in by_name:
        return _view(by_name[topic])
    near = difflib.get_close_matches(topic, [*TOPICS, *tables.TABLES, *by_name], 1)
    there = f"there are {', '.join(TOPICS)}, every command, table and view"
    raise UsageError(f"no help about {topic!r}", f"did you mean {near[0]}? {there}" if near else there)


def _findings(text: str) -> str:
    """The rules of kwire, those of installed packages, and the table of findings. Raises ExtensionError."""
    from kwire.analyzer.common import extensions

    if extensions.installed(extensions.RULES):
        from kwire.analyzer.findings import manual  # loads them

        text += manual.of_packages()
    return rendered(text) + "\n" + _table("findings")


def _table(name: str) -> str:
    from kwire.analyzer.dataset import tables

    about = {column.name: f"{column.about} ({_type(column.type)})" for column in tables.TABLES[name]}
    return f"{name}: {tables.ABOUT[name]}\n\n{_columns(about)}"


def _type(kind: object) -> str:
    return re.sub(r"timestamp\[us, tz=UTC\]", "timestamp", str(kind).replace("list<item: ", "list<"))


def _view(view: View) -> str:
    notes = _filled(view.notes, "") if view.notes else []
    return "\n".join([f"{view.name}: {view.question}", *notes, "", _columns(view.columns)])


def _columns(texts: dict[str, str]) -> str:
    """Names, and beside each what is said of it."""
    width = max(map(len, texts), default=0)
    lines: list[str] = []
    for name, text in texts.items():
        first, *rest = _filled(_plain(text), " " * (width + 4))
        lines += [f"  {name:<{width}}  {first.strip()}", *rest]
    return "\n".join(lines) + "\n"


def _filled(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]


# ----------------------------------------------------------------------------------------------- Markdown as plain text


def rendered(markdown: str) -> str:
    """Markdown as text: headings underlined, blocks of code indented, tables aligned, paragraphs filled."""
    out: list[str] = []
    lines = iter(markdown.splitlines())
    paragraph: list[str] = []

    def end() -> None:
        if paragraph:
            text = _plain(" ".join(paragraph))
            hanging = "  " if text.startswith("- ") or re.match(r"\d+\. ", text) else ""
            out.extend(textwrap.wrap(text, _WIDTH, subsequent_indent=hanging, break_on_hyphens=False))
            paragraph.clear()

    for line in lines:
        if line.startswith("```"):
            end()
            out.extend("    " + code for code in itertools.takewhile(lambda code: not code.startswith("```"), lines))
        elif line.startswith("#"):
            end()
            title = _plain(line.lstrip("# "))
            out += [title, "-" * len(title)]
        elif line.startswith("|"):
            end()
            rest = [line]
            for row in lines:
                if not row.startswith("|"):
                    break
                rest.append(row)
            out += [*_aligned(rest), ""]
        elif not line.strip():
            end()
            out.append("")
        else:
            if re.match(r"- |\d+\. ", line):
                end()
            paragraph.append(line.strip())
    end()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def _aligned(rows: list[str]) -> Iterator[str]:
    """A table of two columns or more: the last is filled beside the others."""
    split = [[_plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))] for row in rows]
    cells = [row for row in split if not all(set(cell) <= set("-: ") for cell in row)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)]
    for row in cells:
        start = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True))
        first, *rest = _filled(row[-1], " " * len(start))
        yield (start + first.strip()).rstrip()
        yield from rest


def _plain(text: str) -> str:
    """Without the marks of Markdown: emphasis, links, and the quotes of code where they hold no blank."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text.replace("\\|", "|"))
    text = re.sub(r"\*\*([^*]+)\*\*", r"\1", text)
    return re.sub(r"`([^` ]+)`", r"\1", text)
