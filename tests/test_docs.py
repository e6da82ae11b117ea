"""Run the documentation's examples: `console` blocks are compared, `python` blocks are run.

In a console block a line `$ ...` is a command; the lines after it are its output, where a line `...` stands for any
number of lines. Columns and options that the code has must be documented.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "README.md",
    "captures/README.md",
    "analyzer/README.md",
    "analyzer/filter/FILTER.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)

# -P: the packages are those of the project, not the links in the workplace, whose kernels would be compiled anew.
PYTHON_HERE = [sys.executable, "-P"]


def blocks(kind: str) -> list[tuple[str, str]]:
    """(document, text) of each fenced block of a kind."""
    texts = []
    for name in DOCUMENTS:
        for match in re.finditer(rf"^```{kind}\n(.*?)^```$", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL):
            texts.append((name, match.group(1)))
    return texts


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(command, lines of its output) of a console block."""
    results: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            results.append((line[2:], []))
        elif results:
            results[-1][1].append(line)
    return results


def run(arguments: list[str], folder: Path) -> str:
    ran = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder from which the paths in the documents are right, and where they may write."""
    for name in ("captures", "analyzer"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


CONSOLE = [(name, command, output) for name, text in blocks("console") for command, output in commands(text)]


@pytest.mark.parametrize(("name", "command", "output"), CONSOLE, ids=[command for _, command, _ in CONSOLE])
def test_console_examples(name: str, command: str, output: list[str], workplace: Path) -> None:
    words = shlex.split(command)
    assert words[0] == "kwire", f"{name}: only kwire is run from the documents"
    printed = run([*PYTHON_HERE, "-m", "kwire.analyzer.cli.parser", *words[1:]], workplace).splitlines()
    at = 0
    skipping = False
    for line in output:
        if line == "...":
            skipping = True
            continue
        where = next((i for i in range(at, len(printed)) if printed[i].rstrip() == line.rstrip()), None)
        rest = "\n".join(printed[at : at + 30])
        assert where is not None, f"{name}: {command}\nnot printed: {line}\nprinted:\n{rest}"
        assert skipping or where == at, f"{name}: {command}\nprinted before it: {printed[at]}"
        at, skipping = where + 1, False
    assert skipping or at == len(printed), f"{name}: {command}\nalso printed: {printed[at]}"


# FILTER.md has examples of its own kind; `tests/analyzer/filter/test_evaluation.py` runs them.
PYTHON = [block for block in blocks("python") if block[0] != "analyzer/filter/FILTER.md"]


@pytest.mark.parametrize(("name", "text"), PYTHON, ids=[f"{name}-{i}" for i, (name, _) in enumerate(PYTHON)])
def test_python_examples(name: str, text: str, workplace: Path) -> None:
    if "orders.pcap" in text:
        sample = ROOT / "captures/samples/codecs-franzgo-4.3/capture.pcap"
        (workplace / "orders.pcap").symlink_to(sample)
    run([*PYTHON_HERE, "-c", text], workplace)


def test_every_option_is_in_the_documents() -> None:
    from kwire.analyzer.cli import parser

    texts = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    helped = run([*PYTHON_HERE, "-m", "kwire.analyzer.cli.parser", "show", "--help"], ROOT)
    helped += run([*PYTHON_HERE, "-m", "kwire.analyzer.cli.parser", "analyze", "--help"], ROOT)
    options = set(re.findall(r"--[a-z][a-z-]+", helped)) - {"--help"}
    assert parser.EXIT_USAGE == 2
    undocumented = sorted(option for option in options if option not in texts)
    assert not undocumented, f"not in README.md or docs/: {undocumented}"


def test_every_column_says_what_it_holds() -> None:
    from kwire.analyzer.dataset import tables

    for name, columns in tables.TABLES.items():
        assert f"`{name}`" in (ROOT / "docs/start/first-capture.md").read_text()
        for column in columns:
            assert len(column.about) > 8, f"{name}.{column.name}"
            assert column.about.endswith("."), f"{name}.{column.name}"
