"""Read hostile captures and names with every command of the analyzer.

The result is a value with a reason, within bounds of time and memory, and no text of a capture reaches a terminal
unescaped.

proves: kwire.analyzer.common.escapes, kwire.analyzer.protocol.budget.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from kwire import analyzer
from kwire.analyzer.cli import exchange_lines, parser
from kwire.analyzer.cli.exchange_lines import Lines
from kwire.analyzer.common.escapes import json_text, printable
from kwire.analyzer.protocol import budget
from kwire.captures.files.sources import utf8
from tests.captures import forge
from tests.shared import KWIRE, ROOT, SAMPLES

CASES = ROOT / "tests" / "fuzz" / "cases"
SMALL = SAMPLES / "old-java-0.8.2" / "capture.pcap"

PROCESSOR_SECONDS, MEMORY = 120, 8 << 30
"""Limits of a test's process, with the compilation of kernels on a first run: they end a hang and a bomb."""


def kwire(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run the command within limits of processor time and memory."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    command = [*KWIRE, *(os.fspath(argument) for argument in arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, preexec_fn=bounded, check=False, timeout=600)
    assert b"Traceback" not in result.stderr, result.stderr[-2000:]
    return result


# --- messages that could end the run --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["--tree", "--json"])
def test_a_bomb_of_records_is_shown_as_far_as_its_budget_goes(form: str) -> None:
    result = kwire("show", CASES / "record-bomb.pcap", form)
    assert result.returncode == 0
    assert len(result.stdout) < 20 << 20
    if form == "--tree":
        assert b" limited (--page))" in result.stdout or b"stopped after" in result.stdout, "the stop is named"
        assert b" more: --page 2)" in result.stdout


def test_a_bomb_of_records_is_a_note_where_all_records_are_listed() -> None:
    result = kwire("show", CASES / "record-bomb.pcap", "--records")
    assert result.returncode == 0
    assert result.stdout.count(b"\n") < 1000
    assert b"records not opened: the records decompress to more than is allowed" in result.stderr


def test_a_bomb_of_records_becomes_noise(tmp_path: Path) -> None:
    result = kwire("scrub", CASES / "record-bomb.pcap", "-o", tmp_path / "clean.pcapng")
    assert result.returncode == 0
    assert b"1 compressed batch became noise" in result.stdout + result.stderr


@pytest.mark.parametrize("form", ["--tree", "--json"])
def test_a_stop_by_time_is_named(
    form: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The clock goes on by a second and a half each time it is read."""
    ticks = itertools.count(0, 1.5)
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    assert parser.main(["show", str(CASES / "record-bomb.pcap"), form]) == 0
    output = capsysbinary.readouterr().out
    if form == "--tree":
        assert re.search(rb"and [\d,]+ records more: stopped after 2 s", output)
    else:
        assert re.search(rb'"left_out":\d+,"reason":"stopped after 2 s"', output)


def test_the_budget_of_a_message_is_said_and_named_where_it_ends() -> None:
    result = kwire("show", CASES / "record-bomb.pcap", "--tree", "--budget", "1000")
    assert result.returncode == 0
    assert b"larger than" in result.stdout or b"decompressed of one message is limited (--budget)" in result.stdout
    assert b"[0]: offset" not in result.stdout
    beyond = kwire("show", SMALL, "--tree", "--page", "2", "--limit", "1")
    assert (beyond.returncode, beyond.stdout.count(b"(nothing on page 2)")) == (0, 2)
    for wrong in (["--budget", "5"], ["--page", "2"], ["--page", "0", "--tree"]):
        assert kwire("show", SMALL, *wrong).returncode == 2


def test_pages_of_a_tree_hold_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of seven nodes shows the nodes of the whole tree at its positions, below their parent fields."""
    for exchange in itertools.islice(analyzer.exchanges(SMALL), 8):
        decoded = exchange.decoded("response", nodes=True)
        assert decoded is not None
        whole: list[str] = []
        assert Lines()._nodes(decoded.nodes, None, 1, whole) == 0
        with monkeypatch.context() as small:
            small.setattr(exchange_lines, "PAGE", 7)
            for page, first in enumerate(range(0, len(whole), 7), 1):
                shown: list[str] = []
                left = Lines()._nodes(decoded.nodes, None, page, shown)
                assert shown[-len(whole[first : first + 7]) :] == whole[first : first + 7]
                assert all(line in whole[:first] for line in shown[: -len(whole[first : first + 7])])
                assert left == max(len(whole) - first - 7, 0)
            assert Lines()._nodes(decoded.nodes, None, page + 1, []) == -1


@pytest.mark.parametrize("form", ["--tree", "--json", "--frames"])
def test_envelopes_in_envelopes_are_hidden_and_nothing_fails(form: str) -> None:
    result = kwire("show", CASES / "nested-envelope.pcap", form)
    assert result.returncode == 0
    assert b"Envelope" in result.stdout
    if form == "--json":
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        (outer,) = [row for row in rows if row["api"] == "Envelope"]
        assert list(outer["request"]["requestData"]) == ["redactedBytes"]


@pytest.mark.parametrize("form", ["--tree", "--json", "--fields=base_offset,last_timestamp", ""])
def test_a_batch_without_an_offset_is_shown(form: str, tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    shutil.copy(CASES / "no-offset.segment", segment)
    result = kwire("show", segment, *filter(None, [form]))
    assert result.returncode == 0
    assert result.stdout


# --- names ----------------------------------------------------------------------------------------------------------

NAMES = {
    "escape": "\x1b[2Jx",
    "bell": "a\x07",
    "C1": "\x9b31m",
    "DEL": "a\x7f",
    "bidi": "\u202egpj.exe",
    "line": "a\u2028b",
    "return": "a\rb",
    "isolate": "\u2066x\u2069",
    "tab": "a\tb",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_not_printable_is_escaped(name: str) -> None:
    assert printable(name).isprintable()
    assert json_text({"x": [name]}).isprintable()
    assert json.loads(json_text({"x": [name]})) == {"x": [name]}, "JSON says the same"
    assert json_text("\U000e0001\udc80") == '"\\udb40\\udc01\\udc80"'
    assert printable("größe ✓") == "größe ✓"
    assert json_text("größe ✓") == '"größe ✓"'


def test_hostile_file_names_at_every_door(tmp_path: Path) -> None:
    name = "".join(NAMES.values())
    capture = tmp_path / f"{name}.pcap"
    shutil.copy(SMALL, capture)
    whole = tmp_path / "no\x1b[1m[bold]capture"
    whole.write_bytes(b"nothing")
    doors: list[tuple[str | Path, ...]] = [
        ("show", capture, "--json", "--limit", "2"),
        ("show", capture, "--fields", "capture,request_file", "--limit", "2"),
        ("analyze", capture, "-o", tmp_path / name),
        ("show", whole),
        ("show", tmp_path / f"{name}.absent"),
        ("analyze", whole, "-o", tmp_path / "d"),
        ("diff", tmp_path / name),
        ("replay", tmp_path / name, "--to", "x:y"),
    ]
    for door in doors:
        result = kwire(*door)
        for text in (result.stdout.decode(), result.stderr.decode()):
            loose = {c for line in text.split("\n") for c in line if not c.isprintable()}
            assert loose <= {"\t"}, (door, loose)


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.pcap")
    try:
        shutil.copy(SMALL, tmp_path / name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert utf8(name) == "caf\\xe9.pcap"
    for form in ((), ("--json",), ("--tree",)):
        result = kwire("show", tmp_path / name, "--limit", "1", *form)
        assert result.returncode == 0, result.stderr
    assert kwire("analyze", tmp_path / name, "-o", tmp_path / "data").returncode == 0
    refused = kwire("analyze", SMALL, "-o", tmp_path / os.fsdecode(b"d\xff"))
    assert refused.returncode == 2
    assert b"a name that is not UTF-8" in refused.stderr


def test_an_empty_capture_is_still_one(tmp_path: Path) -> None:
    (tmp_path / "x.pcap").write_bytes(forge.pcap([], forge.ETHERNET))
    assert kwire("show", tmp_path / "x.pcap", "--json").returncode == 0
