"""Make the reference pages of the documentation from the code, beside a copy of `docs/`, for mkdocs.

    python tools/reference.py OUT

In: `docs/`, the commands, tables, views, rules and docstrings of kwire, and documents that lie beside the code. Out: a
folder that mkdocs builds. A link to a source that has a page here (a folder of views, the tables' module) becomes a
link to that page; to any other file of the repository, its name. Pages made here are not committed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_PICTURES = {".png", ".svg"}


def commands() -> str:
    """Every command with its options, as `kwire COMMAND --help` and `kwire help COMMAND` list them."""
    from kwire.analyzer.options.commands import COMMANDS

    lines = ["# Commands", "", "`kwire COMMAND --help` prints the same in a terminal.", ""]
    lines += ["| command | |", "|---|---|"]
    lines += [f"| [`kwire {name}`](#kwire-{name}) | {_cell(command.about)} |" for name, command in COMMANDS.items()]
    for name, command in COMMANDS.items():
        lines += ["", f"## kwire {name}", "", f"{command.about[:1].upper()}{command.about[1:]}."]
        lines += _options(command.options())
    return "\n".join(lines) + "\n"


def _options(options: type) -> Iterator[str]:
    from kwire.analyzer.options.declare import declarations

    defaults = {field.name: field.default for field in options.__dataclass_fields__.values()}  # type: ignore[attr-defined]
    group = None
    for field, declaration in declarations(options).items():
        if declaration.is_hidden:
            continue
        if group != declaration.group:
            group = declaration.group
            yield from [
                "",
                f"**{group[:1].upper()}{group[1:]}**" if group else "",
                "",
                "| option | meaning |",
                "|---|---|",
            ]
        known = {"default": defaults.get(field), **declaration.argparse}
        value = declaration.argparse.get("metavar") or "|".join(declaration.argparse.get("choices") or ())
        if not declaration.names:
            name = value or field.upper()
        else:
            name = ", ".join(declaration.spellings)
            if declaration.takes_value:
                name += f" {value or field.upper()}"
        about = str(declaration.argparse.get("help") or "")
        yield f"| `{_cell(name)}` | {_cell(about % known if '%' in about else about)} |"
    if epilog := getattr(options, "epilog", ""):
        yield from ["", _cell(str(epilog))]


def tables() -> str:
    """Every table of a dataset, and what each column holds."""
    from kwire.analyzer.dataset import tables

    lines = [
        "# Tables",
        "",
        "What `kwire analyze -o DATASET` writes; `kwire help TABLE` prints the same in a terminal.",
    ]
    for name, columns in tables.TABLES.items():
        about = tables.ABOUT[name]
        lines += ["", f"## {name}", "", f"One row: {about}", "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {_cell(_type(column.type))} | {_cell(column.about)} |" for column in columns]
    return "\n".join(lines) + "\n"


def _type(kind: object) -> str:
    return re.sub(r"timestamp\[us, tz=UTC\]", "timestamp", str(kind).replace("list<item: ", "list<"))


def views() -> str:
    """Every view of `kwire sql`, with its question and columns."""
    from kwire.reports import catalog

    lines = ["# Views", "", "One question each: `kwire sql DATASET 'SELECT * FROM latency_by_api'`."]
    for view in sorted(catalog.views(), key=lambda view: view.name):
        lines += ["", f"## {view.name}", "", view.question, *(["", view.notes] if view.notes else [])]
        lines += ["", "| column | |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(about)} |" for name, about in view.columns.items()]
    return "\n".join(lines) + "\n"


def findings() -> str:
    """Every rule of `kwire findings`."""
    from kwire.analyzer.findings import manual

    return manual.markdown()


def python() -> str:
    """The public names of `kwire`, with their signatures and docstrings."""
    import kwire

    lines = ["# Python", "", "```python", *(inspect.getdoc(kwire) or "").splitlines(), "```"]
    for name in kwire.__all__:
        value = getattr(kwire, name)
        if name.startswith("__"):
            continue
        function = value.replay if inspect.ismodule(value) else value  # the package `replay` can be called
        lines += ["", f"## kwire.{name}", ""]
        if inspect.isfunction(function):
            lines += ["```python", f"{name}{inspect.signature(function)}", "```", ""]
        lines += ["```text", *(inspect.getdoc(function) or "").splitlines(), "```"]
    return "\n".join(lines) + "\n"


def modules() -> str:
    """Every module of the four packages, with the first sentence of its docstring."""
    lines = ["# Modules", "", "What each module does, in the first sentence of its docstring."]
    for package in ("captures", "analyzer", "replay", "reports"):
        folders: dict[str, list[str]] = {}
        for path in sorted((ROOT / package).rglob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            first = " ".join(text.split("\n\n")[0].split())
            if path.name != "__init__.py":
                folder = path.parent.relative_to(ROOT).as_posix()
                folders.setdefault(folder, []).append(f"| `{path.name}` | {_cell(first)} |")
        for folder, rows in sorted(folders.items()):
            lines += ["", f"## {folder}", "", "| module | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text for a cell of a table, in which angle brackets are no markup."""
    shown = text.replace("|", "\\|").replace("\n", " ")
    pieces = re.split(r"(`[^`]*`)", shown)
    return "".join(piece if at % 2 else piece.replace("<", "&lt;") for at, piece in enumerate(pieces))


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "reference/commands.md": ("analyzer/options/commands.py", commands),
    "reference/tables.md": ("analyzer/dataset/tables.py", tables),
    "reference/views.md": ("reports/views", views),
    "reference/findings.md": ("analyzer/findings/FINDINGS.md", findings),
    "reference/python.md": ("kwire/__init__.py", python),
    "contributing/modules.md": ("", modules),
}
"""Pages made of the code: the source that stands for each in links of the repository, and what makes it."""

COPIES = {
    "reference/filter.md": "analyzer/filter/FILTER.md",
    "reference/diff.md": "replay/diff/DIFF.md",
    "reference/viewer-api.md": "reports/view/API.md",
    "contributing/index.md": "CONTRIBUTING.md",
    "contributing/security.md": "SECURITY.md",
    "contributing/tests.md": "tests/README.md",
    "contributing/measurements.md": "tests/bench/README.md",
    "contributing/changelog.md": "CHANGELOG.md",
    "contributing/samples.md": "captures/samples/README.md",
}
"""Documents that lie beside what they describe, and the pages that they become."""


def linked(text: str, source: str, page: str, assets: dict[str, Path]) -> str:
    """The text of a document at `source` (a path in the repository) with links that are right in `page`.

    assets: filled with pictures of the repository that the page shows, by their names in the output.
    """
    page_of = {path: name for name, (path, _) in PAGES.items() if path} | {path: name for name, path in COPIES.items()}

    def of(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        place = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if place in page_of:
            to = page_of[place]
        elif place.startswith("docs/") and place.endswith(".md"):
            to = place.removeprefix("docs/")
        elif Path(place).suffix in _PICTURES | {".html"} and (ROOT / place).is_file():
            to = f"assets/{Path(place).name}"
            assets[to] = ROOT / place
        else:
            return label if label.startswith("`") else f"{label} (`{place}`)"
        relative = os.path.relpath(to, os.path.dirname(page) or ".")
        return f"{mark}[{label}]({relative}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$|^    \S.*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if at % 2 else _LINK.sub(of, part) for at, part in enumerate(parts))


def write(out: Path) -> list[str]:
    """Write all pages into a new folder. Returns their names, sorted."""
    if out.exists():
        shutil.rmtree(out)
    assets: dict[str, Path] = {}
    sources = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    texts = {name: (path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for name, path in sources.items()}
    texts |= {name: (source, (ROOT / source).read_text("utf-8")) for name, source in COPIES.items()}
    texts |= {name: (source or f"docs/{name}", make()) for name, (source, make) in PAGES.items()}
    for name, (source, text) in texts.items():
        page = out / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(linked(text, source, name, assets), encoding="utf-8")
    for name, path in assets.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, out / name)
    return sorted(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pages that mkdocs builds.")
    parser.add_argument("out", type=Path)
    names = write(parser.parse_args().out)
    sys.stderr.write(f"{len(names)} pages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
