"""Kernels are typed: mypy finds a dropped argument, a table in the place of bytes, a table that does not exist.

(proves: captures/kernels.py, the aliases and decorators; the signatures of all kernels)
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures.reaching import kernels_of
from tests.shared import ROOT

TYPED = ("captures", "analyzer")
"""The packages whose kernels say what they take."""


MOST_PARAMETERS = 12


@pytest.mark.parametrize("package", TYPED)
def test_no_kernel_takes_so_much_that_nobody_can_read_a_call_of_it(package: str) -> None:
    """Tables that travel together are a NamedTuple."""
    many = {
        f"{path.relative_to(ROOT)}: {function.name}": len(function.args.args)
        for path in sorted((ROOT / package).rglob("*.py"))
        for function in kernels_of(path)
        if len(function.args.args) > MOST_PARAMETERS
    }
    assert not many


@pytest.mark.parametrize("package", TYPED)
def test_no_kernel_takes_or_gives_anything_at_all(package: str) -> None:
    bare = [
        f"{path.relative_to(ROOT)}: {function.name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for function in kernels_of(path)
        for part in (*(argument.annotation for argument in function.args.args), function.returns)
        if part is None or any(isinstance(name, ast.Name) and name.id == "Any" for name in ast.walk(part))
    ]
    assert not bare, "Int, Flag, Bytes, Table or Array of kwire.captures.kernels says what it is"


FAULTS = {
    "captures/flows.py": {
        "rebuild_buckets(buckets, self.tables.keys, before.state[ft.S_FLOWS])": (
            "rebuild_buckets(buckets, self.tables.keys)",
            'Missing positional argument "flows" in call to "rebuild_buckets"',
        ),
        "_hash(a_hi, a_lo, b_hi, b_lo, ports)": (
            "_hash(a_hi, a_lo, b_hi, ports)",
            'Missing positional argument "ports" in call to "_hash"',
        ),
    },
    "captures/packets.py": {
        "count_packet(state, interfaces, port, time)": (
            "count_packet(b, interfaces, port, time)",
            'Argument 1 to "count_packet" has incompatible type',
        ),
    },
    "analyzer/bulk/framing.py": {
        "_describe_drop(fr, key, f[key, s.F_CAUSE], completed_by)": (
            "_describe_drop(fr, key, completed_by)",
            'Missing positional argument "completed_by" in call to "_describe_drop"',
        ),
        "end_search(fr, key, seek(": (
            "end_search(mt, key, seek(",
            'Argument 1 to "end_search" has incompatible type "Matching"; expected "Framing"',
        ),
    },
    "analyzer/bulk/regions.py": {
        "    m[mark, s.MARK_NEXT] = -1": (
            "    fr.mark[mark, s.MARK_NEXT] = -1",
            '"Framing" has no attribute "mark"',
        ),
    },
    "captures/streams.py": {
        "row = d[key + side, t.D_HEAD]": (
            "row = tables.direction[key + side, t.D_HEAD]",
            '"StreamTables" has no attribute "direction"',
        ),
        "flush(tables, slot, time_ns, completed_by)\n        tables": (
            "flush(tables, slot, completed_by)\n        tables",
            'Missing positional argument "completed_by" in call to "flush"',
        ),
    },
}
"""By file and what stands there: the fault in its place, and what mypy says of it."""


def test_mypy_finds_what_is_wrong_between_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path / 'cache'}"]
    expected = []
    for name, faults in FAULTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for right, (wrong, says) in faults.items():
            assert text.count(right) == 1, f"{name}: {right}"
            text = text.replace(right, wrong)
            line = text[: text.index(wrong)].count("\n") + 1
            expected.append((f"kwire/{name}:{line}: error: ", says))
        planted = tmp_path / name.replace("/", ".")
        planted.write_text(text, encoding="utf-8")
        command += ["--shadow-file", f"kwire/{name}", str(planted)]
    command += [f"kwire/{name}" for name in FAULTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(expected), done.stdout + done.stderr
    for begins, says in expected:
        assert any(error.startswith(begins) and says in error for error in errors), done.stdout
