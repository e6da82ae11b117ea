"""Groups of tests and the table of what proves what hold for the files that there are.

Proves: tests/groups.py, tests/proofs.py, Makefile.
"""

from __future__ import annotations

import re

import pytest

from tests import groups, proofs
from tests.shared import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FILES = [file for files in groups.BY_FILE.values() for file in files]


def test_the_makefile_leaves_out_every_group_and_runs_it_after() -> None:
    (listed,) = re.findall(r"^GROUPS := (.*)$", MAKEFILE, re.MULTILINE)
    assert listed.split() == [*groups.GROUPS]
    assert {*groups.BY_FIXTURE.values(), *groups.BY_FILE} == groups.GROUPS.keys()
    steps = re.findall(r"^run_tests (\S+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == ["test", "test-rest"]


@pytest.mark.parametrize("file", FILES)
def test_what_a_group_names_is_there(file: str) -> None:
    path, _, test = file.partition("::")
    assert (ROOT / "tests" / path).exists()
    assert f"def {test.partition('[')[0]}" in ((ROOT / "tests" / path).read_text(encoding="utf-8") if test else "def ")


@pytest.mark.parametrize("test", groups.SMOKE)
def test_a_smoke_test_is_there_and_in_a_group(test: str) -> None:
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0]}(" in text


def test_every_group_has_a_smoke_test(request: pytest.FixtureRequest) -> None:
    assert len(groups.SMOKE) == len(groups.GROUPS)


def test_every_module_is_proved_by_tests_that_are_there() -> None:
    table = proofs.table()
    assert len(table) > 300
    assert all(files for files in table.values())
    assert "tests/analyzer/frame/test_spill.py" in table["analyzer/frame/spill"]
    assert "tests/analyzer/frame/test_cells.py" in table["analyzer/api"]


def test_names_in_docstrings_are_modules_or_folders() -> None:
    unknown = {
        (file, name)
        for file in proofs.test_files()
        for name in proofs.named_in(file)
        if not (ROOT / name).is_dir() and not list((ROOT / name).parent.glob(f"{(ROOT / name).name}.*"))
    }
    assert not unknown


def test_tests_of_a_module_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert proofs.main(["analyzer/frame/spill.py"]) == 0
    assert "tests/analyzer/frame/test_spill.py" in capsys.readouterr().out.splitlines()
    assert proofs.main(["kwire.analyzer.frame.spill"]) == 0
    assert proofs.main(["nowhere.py"]) == 2
    assert "hint:" in capsys.readouterr().err
