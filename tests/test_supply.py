"""The bill of materials, and the audit of what is locked.

proves: tools/sbom.py, tools/audit.py
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.shared import ROOT
from tools import audit, sbom
from tools.licenses import canonical


@pytest.fixture(scope="module")
def bill() -> Any:
    return json.loads(sbom.text_of(ROOT))


def test_the_same_sources_give_the_same_bill() -> None:
    assert sbom.text_of(ROOT) == sbom.text_of(ROOT)


def test_it_names_what_each_extra_installs_and_nothing_for_development(bill: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {component["name"]: component for component in bill["components"]}
    assert bill["metadata"]["component"]["version"] == project["version"]
    for text in project["dependencies"]:
        component = names[canonical(re.split(r"[<>=\[;]", text)[0])]
        assert component["scope"] == "required"
        assert {"name": "kwire:extra", "value": "base"} in component["properties"]
    assert names["pyspark"]["scope"] == names["py4j"]["scope"] == "optional"
    assert not {"pytest", "mypy", "ruff"} & names.keys()


def test_versions_and_hashes_are_those_of_the_lock(bill: Any) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for component in bill["components"]:
        assert re.search(rf"(?m)^{re.escape(component['name'])}(\[.*\])?=={re.escape(component['version'])}\b", lock)
        hashes = [each["content"] for each in component["externalReferences"][0]["hashes"]]
        assert hashes
        assert all(f"--hash=sha256:{each}" in lock for each in hashes)
        assert component["licenses"], component["name"]


def test_references_lead_somewhere(bill: Any) -> None:
    """As CycloneDX demands: each is defined once, and each component's needs are listed."""
    refs = [bill["metadata"]["component"]["bom-ref"], *(component["bom-ref"] for component in bill["components"])]
    assert len(set(refs)) == len(refs)
    assert {entry["ref"] for entry in bill["dependencies"]} == set(refs)
    assert all(set(entry["dependsOn"]) <= set(refs) for entry in bill["dependencies"])
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])


# --- the audit --------------------------------------------------------------------------------------------------------


class Auditor:
    """Stands for pip-audit: what each database answers, as its JSON, or stderr where there is none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[dict[str, Any]] | str) -> None:
        self.services: list[str] = []
        self._answers = answers
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.services.append(command[-1])
        assert "--require-hashes" in command
        answer = self._answers[command[-1]]
        if isinstance(answer, str):
            return subprocess.CompletedProcess(command, 1, "", answer)
        return subprocess.CompletedProcess(command, 0, json.dumps({"dependencies": answer}), "")


CLEAN = {"name": "lark", "version": "1.3.1", "vulns": []}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found on PyPI and could not be audited: rich (15.0.0)"}
BAD = {"name": "lz4", "version": "4.4.5", "vulns": [{"id": "PYSEC-1", "fix_versions": ["4.4.6"], "aliases": []}]}


def test_what_the_first_database_says_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    auditor = Auditor(monkeypatch, pypi=[CLEAN, CLEAN])
    assert audit.audit(Path("lock")) == 0
    assert auditor.services == ["pypi"]
    assert capsys.readouterr().out == "2 packages, no known vulnerability (pypi)\n"


@pytest.mark.parametrize("others", [[CLEAN], [SKIPPED]])
def test_a_vulnerability_is_one_whatever_is_known_of_others(
    others: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Auditor(monkeypatch, pypi=[*others, BAD])
    assert audit.audit(Path("lock")) == 1
    assert capsys.readouterr().out == "lz4 4.4.5: PYSEC-1, mended in 4.4.6\n"


def test_what_nobody_could_look_up_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit ends with 0 where a mirror knows no package, and with 1 where it cannot ask."""
    auditor = Auditor(monkeypatch, pypi=[SKIPPED, CLEAN], osv="Traceback\nServiceError: no route\n")
    assert audit.audit(Path("lock")) == 2
    assert auditor.services == ["pypi", "osv"]
    line, hint = capsys.readouterr().err.splitlines()
    assert line == "audit: nobody knows: pypi: 1 of 2 packages are not known there; osv: ServiceError: no route"
    assert hint.startswith("hint: ")
    Auditor(monkeypatch, pypi=[SKIPPED], osv=[CLEAN])
    assert audit.audit(Path("lock")) == 0


def test_without_pip_audit_that_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert audit.audit(Path("lock")) == 2
    assert "pip-audit is not installed" in capsys.readouterr().err
