"""Hold the repository to plain words: names that mean something, docstrings that begin with a verb or a noun.

Proves: pyproject.toml (import contracts cover every package)
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT

PACKAGES = ("captures", "analyzer", "replay", "reports")
FOLDERS = (*PACKAGES, "tests", "tools")
NAMES = {"one", "found", "said", "told", "heard", "asked", "kept", "made", "taken", "mine", "theirs", "ours"}
"""Names that say nothing of what they stand for, for locals, arguments, functions and classes."""
BEGINNINGS = re.compile(r"(What|Who|Whoever|Those|It,|The same)(?![^\W\d_])")
"""Beginnings of docstrings that do not say what the thing is or does."""

Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of all names that a file binds, apart from attributes and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def complaints(source: str) -> list[tuple[int, str]]:
    """List (line, name or beginning) of what breaks the rule in a file's text."""
    tree = ast.parse(source)
    names = [(line, name) for line, name in bound_names(tree) if name.strip("_").lower() in NAMES]
    texts = [(node, ast.get_docstring(node)) for node in ast.walk(tree) if isinstance(node, Documented)]
    beginnings = [
        (getattr(node, "lineno", 1), match[1]) for node, text in texts if (match := BEGINNINGS.match(text or ""))
    ]
    return sorted(names + beginnings)


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_and_docstrings_are_plain(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    listed = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in files
        for line, word in complaints(path.read_text(encoding="utf-8"))
    ]
    assert not listed, "\n".join(listed[:20])


def test_the_rule_counts_names_and_docstrings_and_no_longer_words() -> None:
    """Names that only begin with such a word, and attributes of other libraries, are free."""
    assert complaints('def f(asked):\n    """What it is."""\n    for one in asked: pass\n') == [
        (1, "What"),
        (1, "asked"),
        (3, "one"),
    ]
    assert complaints('"""Whatever, Those3."""\nfoundation = given.found\n') == []


def packages() -> list[str]:
    """Return the dotted names of the product's packages that hold other modules."""
    folders = (path.parent for top in PACKAGES for path in (ROOT / top).rglob("__init__.py"))
    return sorted(".".join(("kwire", *folder.relative_to(ROOT).parts)) for folder in folders if _modules(folder))


def _modules(folder: Path) -> list[Path]:
    beside = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    return beside + [path.parent for path in folder.glob("*/__init__.py")]


def test_every_package_has_its_layers() -> None:
    """An exhaustive contract fails for a module without a layer, so each package needs one of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [contract for contract in project["tool"]["importlinter"]["contracts"] if contract["type"] == "layers"]
    assert all(contract["exhaustive"] for contract in contracts)
    containers = {container for contract in contracts for container in contract["containers"]}
    assert not set(packages()) - containers
