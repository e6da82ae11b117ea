"""The page's JavaScript without a browser: unit tests with Node, types with TypeScript, its size.

Proves: reports/view/page
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shared import ROOT

PAGE = ROOT / "reports" / "view" / "page"
TESTS = Path(__file__).parent / "page"
NODE, TSC = shutil.which("node"), shutil.which("tsc")


def test_the_modules_own_tests_pass() -> None:
    if NODE is None:
        pytest.skip("no Node to run the page's own tests with: apt-get install nodejs")
    tests = sorted(map(str, TESTS.glob("*.test.mjs")))
    assert tests
    done = subprocess.run([NODE, "--test", *tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_modules_types_are_right() -> None:
    printed = subprocess.run([TSC, "--version"], capture_output=True, text=True, check=False).stdout if TSC else ""
    version = re.search(r"(\d+)\.(\d+)", printed)
    if TSC is None or version is None or (int(version[1]), int(version[2])) < (5, 5):
        pytest.skip("no TypeScript from 5.5 on to check the page's types with: npm install --global typescript")
    done = subprocess.run([TSC, "--project", str(TESTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_light_and_loads_only_itself() -> None:
    files = [path for path in PAGE.iterdir() if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < 85_000  # the goal is 150 kB
    for path in files:
        text = path.read_text(encoding="utf-8")
        elsewhere = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, path.name
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert risky not in text, f"{path.name}: {risky}"


def test_the_page_asks_for_all_modules_at_once() -> None:
    text = (PAGE / "view.html").read_text(encoding="utf-8")
    assert {*re.findall(r'(?:src|href)="/page/([\w.]+\.js)"', text)} == {path.name for path in PAGE.glob("*.js")}


def test_every_name_of_the_api_is_documented() -> None:
    from kwire.reports.view.answers import CALLS

    text = (ROOT / "reports" / "view" / "API.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `GET /api/1/(\w+)", text, re.MULTILINE)) == set(CALLS)
