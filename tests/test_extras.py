"""Hints name an extra and its size in one way, as the documentation does. Proves: kwire.captures.extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kwire.captures import extras

ROOT = Path(__file__).resolve().parent.parent


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras.MEGABYTES.keys() == project["optional-dependencies"].keys() - {"dev"}


def test_the_documentation_has_the_same_sizes() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `kwire\[(\w+)\]` \|.*\| (\d+) \|$", page)
    assert {name: int(size) for name, size in rows} == extras.MEGABYTES


def test_hints_are_made_in_one_place() -> None:
    sources = [path for name in ("captures", "analyzer", "replay", "reports") for path in (ROOT / name).rglob("*.py")]
    literal = [path.name for path in sources if "pip install 'kwire[" in path.read_text(encoding="utf-8")]
    assert literal == ["extras.py"]


def test_a_hint_has_what_to_type_and_a_size() -> None:
    assert re.fullmatch(r"pip install 'kwire\[sql\]' \(\d+ MB\)", extras.install("sql"))
