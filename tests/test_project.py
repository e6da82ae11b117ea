"""The project's own rules, which no linter knows: light imports, portable files, small samples, a whole lock."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench import generate
from tests.shared import KWIRE, ROOT, SAMPLES, capture_files, sample_folders

FOLDERS = ("captures", "analyzer", "replay", "reports")
PACKAGES = ("kwire", *(f"kwire.{folder}" for folder in FOLDERS))
TEXT = {".py", ".md", ".toml", ".txt", ".lock", ".yaml", ".yml", ".json", ".cfg", ".sql", ".sh", ""}


def tracked_files() -> list[Path]:
    """Every file git tracks; the test that needs it is skipped in an unpacked source archive."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone: the list of tracked files is unknown")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name.decode() for name in listed.split(b"\0") if name and (ROOT / name.decode()).is_file()]


def imported_by(statement: str) -> set[str]:
    """Top-level modules loaded after `statement` ran in a fresh interpreter."""
    return {module.split(".")[0] for module in all_imported_by(statement)}


def all_imported_by(statement: str) -> set[str]:
    """All modules loaded after `statement` ran in a fresh interpreter."""
    program = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_and_says_what_it_is(package: str) -> None:
    assert importlib.import_module(package).__doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_is_light(package: str) -> None:
    heavy = {"numba", "llvmlite", "numpy", "pyarrow", "pandas", "scapy", "pyspark", "dpkt", "rich", "lark"}
    assert not imported_by(f"import {package}") & heavy


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_takes_the_name_of_a_public_function(package: str) -> None:
    """Python sets a module as an attribute of its package when it is imported: `analyzer.analyze` would be a module
    from then on, for whoever calls it."""
    module = importlib.import_module(package)
    names = {*getattr(module, "__all__", ()), *(name for name in vars(module) if not name.startswith("_"))}
    public = {name for name in names if not isinstance(getattr(module, name), ModuleType)}
    modules = {each.name for each in pkgutil.iter_modules(module.__path__)}
    assert modules
    assert not public & modules  # `kwire.replay` is both, which can be called


def test_kwire_is_the_door_for_who_imports_it() -> None:
    """`import kwire` is light, and gives what the four packages offer, the very same objects."""
    loaded = all_imported_by("import kwire")
    assert {module for module in loaded if module.startswith("kwire")} == {"kwire"}
    assert not loaded & {"numpy", "pyarrow"}
    import kwire
    from kwire import analyzer, reports

    for name in ("analyze", "exchanges", "open_dataset", "Dataset", "Exchange", "StoredDataset", "__version__"):
        assert getattr(kwire, name) is getattr(analyzer, name)
    assert kwire.register is reports.register
    assert set(kwire.__all__) <= set(dir(kwire))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(kwire, "nonsense")  # noqa: B009  (mypy knows that it is not there)


def test_the_command_line_module_is_light() -> None:
    heavy = {"numba", "llvmlite", "pyarrow", "pandas", "scapy", "pyspark", "dpkt"}
    assert not imported_by("import kwire.analyzer.cli.parser") & heavy


def test_the_console_script_begins_with_a_module_that_imports_nothing() -> None:
    """Until it is there nobody catches an interrupt."""
    console = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["kwire"]
    assert console == "kwire.analyzer.cli.start:command"
    assert imported_by("import kwire.analyzer.cli.start") - imported_by("import __future__") == {"kwire"}
    for module in ("kwire/__init__", "analyzer/__init__", "analyzer/cli/__init__", "analyzer/cli/start"):
        tree = ast.parse((ROOT / f"{module}.py").read_text())
        at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert {getattr(node, "module", "") for node in at_top} <= {"__future__"}


@pytest.mark.parametrize("records", ["none", "batches", "meta"])
def test_analysing_needs_the_light_half_of_its_libraries(records: str, tmp_path: Path) -> None:
    """Check the modules that the console script loads for a capture.

    They have no compiler, no pandas, no functions of PyArrow, no masked arrays of NumPy. Each takes as
    long as a small capture, or a tenth of a start."""
    capture = tmp_path / "small.pcap"  # without an error: those are put together by PyArrow's functions
    generate.small(capture, 100_000, connections=3)
    arguments = ["kwire", "analyze", str(capture), "--records", records, "-o", str(tmp_path / "dataset")]
    # The first run compiles, which needs Numba.
    subprocess.run([*KWIRE, *arguments[1:-1], str(tmp_path / "warm")], cwd=ROOT, capture_output=True, check=True)
    loaded = loaded_by(arguments)
    assert {"kwire.analyzer.api", "pyarrow.parquet"} <= loaded
    assert not loaded & {"numba", "pandas", "pyarrow.compute", "pyarrow.dataset", "numpy.ma", "rich", "lark"}
    assert "importlib.metadata" not in loaded or "llvmlite" in loaded  # which a wheel's kernels do not need


def test_a_report_of_the_embedded_engine_needs_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pandas, which PyArrow would load where it can, nor anything that decodes or understands SQL."""
    dataset = str(tmp_path / "dataset")
    capture = next(SAMPLES.rglob("capture.pcap*"))
    subprocess.run([*KWIRE, "analyze", str(capture), "-o", dataset], cwd=ROOT, capture_output=True, check=True)
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "cache"))
    report = ["kwire", "report", dataset, "-o", str(tmp_path / "report.html"), "--engine", "embedded"]
    loaded = loaded_by(report)
    assert {"duckdb", "jinja2"} <= loaded
    assert not loaded & {"numba", "pandas", "pyspark", "lark", "rich", "kwire.analyzer.bulk", "kwire.analyzer.analysis"}
    assert not loaded & {"sqlglot", "kwire.reports.embedded.translation"}


def loaded_by(arguments: list[str]) -> set[str]:
    """The modules that a command of the console script loads."""
    program = f"""
import atexit, contextlib, io, json, sys
from kwire.analyzer.cli import parser as cli
sys.argv = {arguments!r}
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.__stdout__, flush=True))
with contextlib.redirect_stdout(io.StringIO()):
    cli.command()
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


def test_scapy_is_imported_by_live_capture_only_and_late() -> None:
    """scapy is GPL-2.0-only: nothing imports it at the top of a file, and only `captures/live/by_scapy.py` inside a
    function.
    (Tests may use it as a second forger.)"""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                if any(name.split(".")[0] == "scapy" for name in names):
                    assert path == ROOT / "captures" / "live" / "by_scapy.py", f"{path} imports scapy"
                    assert node not in tree.body, f"{path} imports scapy at its top"


def test_tracked_text_files_name_no_machine() -> None:
    """No path of somebody's machine, no package registry's host: both are wrong everywhere else."""
    # Written in pieces, so that this file does not find itself.
    names = ("/" + "work/", "/" + "root/", "/" + "home/[a-z]", "py" + "pi[.]org", "python" + "hosted")
    forbidden = re.compile("|".join(names))
    offending = []
    for path in tracked_files():
        if path.suffix not in TEXT or "definitions" in path.parts or SAMPLES in path.parents:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        offending += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if forbidden.search(line)
        ]
    assert not offending, "\n".join(offending)


def test_samples_are_small_and_have_their_passports() -> None:
    total = sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file())
    assert total < 5_000_000, f"the samples take {total} bytes"
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    folders = sample_folders()
    assert len(folders) >= 4
    for folder in folders:
        meta = json.loads((folder / "truth.json").read_text())["meta"]
        assert meta["broker"]
        assert meta["clients"]
        assert capture_files(folder)
        assert list(folder.glob("requests*.log.gz")), f"{folder} has no witness"
        assert f"`{folder.name}`" in readme, f"{folder.name} has no row in the samples' README"


def test_the_lock_pins_every_dependency_exactly() -> None:
    """By version, and by the hashes of its files, which `make` demands."""
    pinned: dict[str, int] = {}
    name = ""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.lstrip().startswith("#"):
            hashed = re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)
            if hashed:
                pinned[name] += 1
                continue
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^ ;]+)( ; .*)? \\", line)
            assert match, f"not pinned exactly: {line}"
            name = match[1].lower().replace("_", "-")
            pinned[name] = 0
    assert not [name for name, hashes in pinned.items() if not hashes], "packages without a hash"
    lines = (ROOT / "Makefile").read_text().splitlines()
    installing = [line for line in lines if "pip install" in line and "lock" in line]
    assert len(installing) == 2
    assert all("--require-hashes" in line for line in installing)
    assert not [name for name in ("setuptools", "wheel", "packaging") if name not in pinned], "what builds packages"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]:
        name = re.split(r"[\[<>=! ;]", requirement)[0].lower()
        assert name in pinned, f"{name} is in pyproject.toml and not in requirements.lock: run `make lock`"


def test_the_tests_run_on_a_python_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">=3.{versions[0]}"
    assert f"{sys.version_info.minor}" in versions


def test_packaged_files_are_listed() -> None:
    """The wheel holds the package and what it reads at run time; nothing is found by luck."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"]["find"]["include"] == ["kwire*"]
    assert {(ROOT / "kwire" / name).resolve() for name in FOLDERS} == {ROOT / name for name in FOLDERS}
    for package, patterns in settings["package-data"].items():
        assert package in PACKAGES
        for pattern in patterns:
            assert list(ROOT.joinpath(*package.split(".")).glob(pattern)), f"{package}: nothing matches {pattern}"


def test_no_module_is_imported_under_two_names() -> None:
    """The four folders lie at the top of the repository, where Python would find them as packages of their own: rules
    and tables would be there twice."""
    wrong = re.compile(rf"(?:^|[;\"'(])\s*(?:from|import) (?:{'|'.join(FOLDERS)})\b", re.MULTILINE)
    for path in tracked_files():
        if path.suffix in (".py", ".md", ".ipynb"):
            match = wrong.search(path.read_text(encoding="utf-8"))
            assert match is None, f"{path.relative_to(ROOT)}: {match[0]!r}: put `kwire.` before it"
