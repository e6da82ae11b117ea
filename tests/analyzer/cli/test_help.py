"""Commands explain themselves: the examples at the end of each --help, the pages of `kwire help`, colours, times.

Proves: kwire.analyzer.cli.manual, kwire.analyzer.cli.parser, kwire.analyzer.options, kwire.analyzer.cli.commands.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import kwire
from kwire.analyzer.cli import manual, parser
from kwire.analyzer.cli.color import colored
from kwire.analyzer.filter import evaluation
from kwire.analyzer.options.commands import COMMANDS
from tests.shared import ROOT, SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
EXAMPLES = [(name, line) for name, command in COMMANDS.items() for line, _ in command.options().examples]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kwire", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_two_examples_or_three(name: str) -> None:
    assert [other for other, _ in EXAMPLES].count(name) in (2, 3)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_is_a_line_that_the_command_takes(name: str, line: str) -> None:
    words = shlex.split(re.sub(r"source <\((.*)\)", r"\1", line).split(" > ~")[0].removeprefix("sudo "))
    assert words[:2] == ["kwire", name]
    command, options = parser.parse(words[1:])
    assert command.name == name
    filter_text = getattr(options, "filter", None)
    if filter_text is not None:
        evaluation.parse(filter_text)


def test_help_ends_with_examples() -> None:
    done = run("findings", "--help")
    assert done.stdout.endswith(
        "examples:\n  kwire findings orders.pcap\n      what is wrong, worst first\n"
        "  kwire findings day1.kwire --fail-on warning --ignore tiny-batches\n      a gate for a test run\n"
    )


@pytest.mark.parametrize("topic", ["python", "exit-codes", "environment"])
def test_help_has_pages_about_all_commands(topic: str) -> None:
    assert topic in manual.TOPICS
    text = manual.page(topic, [])
    assert text.count("\n") > 8
    assert max(map(len, text.splitlines())) < 130


def test_the_page_about_python_names_every_function() -> None:
    text = manual.page("python", [])
    functions = {name for name in kwire.__all__ if name[0].islower()}
    assert {name for name in functions if f"{name}(" not in text} == set()


def test_the_page_about_the_environment_names_every_variable_that_is_read() -> None:
    sources = [
        path for folder in ("analyzer", "captures", "replay", "reports") for path in (ROOT / folder).rglob("*.py")
    ]
    names = {name for path in sources for name in re.findall(r"environ(?:\.get)?[\[(]\"([A-Z_]+)", path.read_text())}
    others = {
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "HOME",
        "SYSTEMROOT",
        "TERM",
        "PYTHONPATH",
        "NUMBA_CACHE_DIR",
        "XDG_CACHE_HOME",
    }
    text = (ROOT / "analyzer" / "cli" / "ENVIRONMENT.md").read_text(encoding="utf-8")
    assert {name for name in names - others if f"`{name}`" not in text} == set()


@pytest.mark.parametrize(
    ("choice", "environment", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": ""}, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_as_elsewhere(
    choice: str, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colored(choice) is expected


def test_times_of_day_say_of_which_clock() -> None:
    by_clock = {}
    for clock in ("relative", "absolute", "local"):
        head, first = run("show", str(CAPTURE), "--limit", "1", "--time", clock, TZ="Asia/Kolkata").stdout.splitlines()
        by_clock[clock] = head.strip(), first[2:].split()[0]
    assert by_clock["relative"][0].startswith("time ")
    assert by_clock["absolute"][0].startswith("time (UTC)")
    assert by_clock["absolute"][1].startswith("02:22:11")
    assert by_clock["local"][0].startswith("time (+05:30)")
    assert by_clock["local"][1].startswith("07:52:11")


@pytest.mark.parametrize("command", ["show", "findings", "story", "analyze"])
def test_a_capture_without_packets_says_so(command: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    done = run(command, str(path))
    assert done.returncode == 0
    assert f"{path}: holds no packet" in done.stderr + done.stdout


def test_a_folder_of_folders_gets_a_hint(tmp_path: Path) -> None:
    day = tmp_path / "broker1" / "day1"
    day.mkdir(parents=True)
    (day / "a.pcap").write_bytes(CAPTURE.read_bytes())
    done = run("analyze", str(tmp_path))
    assert done.returncode == 2
    assert f"hint: {day} holds some; name each folder that is a capture point" in done.stderr
