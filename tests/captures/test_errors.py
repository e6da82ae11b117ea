"""Errors that a user can mend have one base in all packages: `KwireError`. (proves: captures/errors.py)"""

from __future__ import annotations

import ast
import re

from kwire.captures.errors import CaptureError, KwireError
from tests.shared import ROOT

FILES = [path for package in ("captures", "analyzer", "replay", "reports") for path in (ROOT / package).rglob("*.py")]


def test_a_problem_is_one_line_with_a_hint() -> None:
    problem = CaptureError("a.pcap: is empty", "was the capture written to the end?")
    assert isinstance(problem, KwireError)
    assert problem.message == "a.pcap: is empty"
    assert str(problem) == f"a.pcap: is empty\nhint: {problem.hint}"
    assert (problem.hint, problem.pointer) == ("was the capture written to the end?", "")
    assert (KwireError("it is wrong").hint, str(KwireError("it is wrong"))) == ("", "it is wrong")


def test_no_other_class_of_errors_keeps_a_hint_of_its_own() -> None:
    """KwireError alone takes a hint, and its subclasses inherit that: so the command line prints all of them alike."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "KwireError":
                assert not re.search(r"self\.hint = ", ast.unparse(node)), f"{path.name}: {node.name}"
