"""The documentation's structure: pages, links, reference pages made of the code, workflows, fragments of changes.

Proves: tools/reference.py, mkdocs.yml, docs/, .github/, CONTRIBUTING.md, changes/
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kwire.analyzer.dataset import tables
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.rules import RULES
from kwire.analyzer.options.commands import COMMANDS
from kwire.analyzer.options.declare import declarations
from kwire.reports import catalog
from tests.shared import ROOT
from tests.test_docs import DOCUMENTS

DOCS = ROOT / "docs"
SCREEN = ("captures", "analyzer", "replay", "reports", "reports/view", "tests")
"""Folders whose README is one screen: what they are, their parts, and links."""
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*```.*?^\s*```$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    top = [*ROOT.glob("*.md"), *(ROOT / name for name in DOCUMENTS if not name.startswith("docs/"))]
    folders = [ROOT / folder / "README.md" for folder in SCREEN]
    others = [ROOT / name for name in ("changes/README.md", "replay/diff/DIFF.md", "reports/view/API.md")]
    return sorted({*top, *folders, *others, *DOCS.rglob("*.md")})


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Text of every page that mkdocs gets, by name."""
    out = tmp_path_factory.mktemp("docs") / "pages"
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.relative_to(out).as_posix(): path.read_text(encoding="utf-8") for path in out.rglob("*.md")}


def test_every_page_is_in_the_navigation_and_the_other_way_round(pages: dict[str, str]) -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [page for section in settings["nav"] for pages_of in section.values() for page in pages_of]
    assert len(named) == len(set(named))
    assert set(named) == set(pages)


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    text = _FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.exists(), f"{document.relative_to(ROOT)}: {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{document.relative_to(ROOT)}: {target}"


def test_links_between_pages_lead_to_pages(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))):
            path = target.partition("#")[0]
            if path.endswith(".md"):
                assert (Path("/") / Path(name).parent / path).resolve().relative_to("/").as_posix() in pages, name


def test_the_readme_is_short_and_those_of_folders_are_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
    long = {folder: len((ROOT / folder / "README.md").read_text("utf-8").splitlines()) for folder in SCREEN}
    assert {folder: lines for folder, lines in long.items() if lines > 60} == {}


def test_the_reference_has_every_command_and_option(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]
    for name, command in COMMANDS.items():
        section = page.split(f"\n## kwire {name}\n")[1].split("\n## ")[0]
        for declaration in declarations(command.options()).values():
            missing = [] if declaration.is_hidden else [word for word in declaration.spellings if word not in section]
            assert not missing, f"kwire {name}: {missing}"
    assert not re.search(r"%\((?:default|prog)\)", page)


def test_the_reference_has_every_table_view_column_and_finding(pages: dict[str, str]) -> None:
    for name, columns in tables.TABLES.items():
        section = pages["reference/tables.md"].split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert [column.name for column in columns if f"| `{column.name}` |" not in section] == []
    for view in catalog.views():
        section = pages["reference/views.md"].split(f"\n## {view.name}\n")[1].split("\n## ")[0]
        assert [column for column in view.columns if f"| `{column}` |" not in section] == []
    assert evaluate.MOST
    assert [code for code in RULES if f"\n### {code}\n" not in pages["reference/findings.md"]] == []


def test_the_reference_has_every_public_name_and_every_module(pages: dict[str, str]) -> None:
    import kwire

    assert [name for name in kwire.__all__ if f"## kwire.{name}" not in pages["reference/python.md"]] == ["__version__"]
    for package in ("captures", "analyzer", "replay", "reports"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.name == "__init__.py" or f"| `{path.name}` |" in pages["contributing/modules.md"], path


# ------------------------------------------------------------------------------------------------------------ workflows

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_targets_that_the_makefile_has(path: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [name for step in steps for name in re.findall(r"\bmake ([a-z][a-z-]*)", step.get("run", ""))]
    assert called
    assert set(called) <= targets()
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())


@pytest.mark.parametrize(("name", "job"), [("tests", "tests"), ("release", "installed")])
def test_workflows_test_every_python_that_is_declared(name: str, job: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(declared) <= set(workflow["jobs"][job]["strategy"]["matrix"]["python"])


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_files_of_the_forge_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_an_issue_asks_for_a_scrubbed_capture() -> None:
    assert "kwire scrub" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")


def test_fragments_of_changes_are_a_line_each() -> None:
    for path in (ROOT / "changes").iterdir():
        if path.name == "README.md":
            continue
        assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed)\.md", path.name), path.name
        assert path.read_text(encoding="utf-8").strip(), path.name
