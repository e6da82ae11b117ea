"""The notebooks of the documentation: their cells run, in order, on a shipped capture.

Proves: docs/notebooks
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT, SAMPLES

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def program(notebook: Path) -> str:
    """The code cells as a program that prints what each cell shows, its last expression."""
    lines = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"]))
        *_, last = body.body
        if isinstance(last, ast.Expr):
            body.body[-1] = ast.parse(f"print(repr({ast.unparse(last.value)}))").body[0]
        lines.append(ast.unparse(body))
    return "\n".join(lines)


def test_there_is_one_for_each_library() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"pandas", "polars", "duckdb", "spark"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_to_its_end(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / "orders.pcap").symlink_to(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")
    command = [sys.executable, "-c", program(notebook)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Produce" in done.stdout or "franz" in done.stdout
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code"), "clear the outputs"
