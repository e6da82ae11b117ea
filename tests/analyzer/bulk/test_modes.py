"""The table of modes in `framing` is what the code does.

(proves: the docstring of analyzer/bulk/framing.py)
"""

from __future__ import annotations

import ast
from pathlib import Path

from kwire.analyzer.bulk import framing

FOLDER = Path(framing.__file__).parent


def documented() -> set[tuple[str, str]]:
    """(function, next mode) of every row of the table."""
    text = framing.__doc__
    assert text is not None
    _, _, table = text.partition("    mode     event")
    rows = [line.split() for line in table.splitlines()[1:] if line.strip()]
    return {(words[-1], words[-2]) for words in rows if words[-2] in MODES}


MODES = {"SYNC", "SEEK", "DROP", "SWALLOW"}


def done() -> set[tuple[str, str]]:
    """(function, next mode) of every assignment to F_MODE in the kernels and around them."""
    assignments = set()
    for path in FOLDER.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Assign) and "s.F_MODE]" in ast.unparse(node.targets[0]):
                        assignments.add((function.name, ast.unparse(node.value).removeprefix("s.")))
    return assignments


def test_every_change_of_mode_is_in_the_table_and_no_other() -> None:
    assert documented() == done()


def test_the_table_starts_from_modes_there_are() -> None:
    text = framing.__doc__ or ""
    first = {line.split()[0] for line in text.partition("    mode     event")[2].splitlines()[1:] if line.strip()}
    assert first - {"this", "any", "-"} <= MODES
