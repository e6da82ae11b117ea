"""Input that a replay refuses, before anything is requested or sent.

Proves: replay/inputs.py, replay/run_plan.py
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

import kwire
from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.protocol import api_keys
from kwire.captures.errors import KwireError
from kwire.replay import inputs, run_plan
from kwire.replay.options import Options
from kwire.replay.remap.topology import Topology
from kwire.replay.source import MemorySource
from tests.replay.conversation import EVERYTHING, Captured
from tests.replay.test_commands import replayed, sinking
from tests.shared import SAMPLES, capture_files, shared_folder

CAPTURE = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The first line that a command which does not begin says."""
    with pytest.raises(SystemExit) as ended:
        parser.main(["replay", *arguments])
    assert ended.value.code == 2
    line, hint = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert hint.startswith("hint: ")
    return line.removeprefix("kwire: ")


@pytest.mark.parametrize("named", ["{}", "{}/", "{}/../kept/."])
def test_a_run_does_not_take_the_place_of_what_is_replayed(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    analyzer.analyze(CAPTURE, folder, keep_bytes=True)
    there = sorted(folder.rglob("*"))
    out = named.format(folder)
    assert refused([str(folder), "--to", "127.0.0.1:1", "-o", out], capsys) == f"-o {out}: is the capture itself"
    inside = folder / "capture.pcap"
    shutil.copy(CAPTURE, inside)
    for given in (inside, folder / "*.pcap"):
        line = refused([str(given), "--to", "127.0.0.1:1", "-o", out], capsys)
        assert line == f"-o {out}: holds the capture itself"
    inside.unlink()
    with pytest.raises(KwireError, match="is the capture itself"):
        kwire.replay(folder, to="127.0.0.1:1", out=out)
    assert sorted(folder.rglob("*")) == there


def test_a_run_is_no_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with sinking() as port:
        assert replayed(port, out, speed=None).valid
    line = refused([str(out), "--dry-run", "--assume", "4.3"], capsys)
    assert line == f"{out}: a RUN, which has each request as captured and as sent"


def test_two_capture_points_of_one_connection_would_be_sent_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, broker = tmp_path / "client.pcap", tmp_path / "broker.pcap"
    for point in (client, broker):
        shutil.copy(CAPTURE, point)
    line = refused([str(client), str(broker), "--dry-run", "--assume", "4.3"], capsys)
    assert line.startswith("client.pcap and broker.pcap hold the same connections (")
    analyzer.analyze([client, broker], tmp_path / "both", keep_bytes=True)
    assert refused([str(tmp_path / "both"), "--dry-run", "--assume", "4.3"], capsys) == line
    filter = ["--filter", "capture == 'client.pcap'"]
    assert parser.main(["replay", str(tmp_path / "both"), "--dry-run", "--assume", "4.3", *filter]) == 0
    chosen = capsys.readouterr().out
    assert parser.main(["replay", str(client), "--dry-run", "--assume", "4.3"]) == 0
    assert capsys.readouterr().out == chosen


def test_rotated_files_hold_nothing_twice() -> None:
    """Though they are given one by one, and not with --rotated: a connection goes on in the second."""
    files = capture_files(shared_folder("rotated-4.3"))
    assert inputs.read([str(path) for path in files])


def test_a_name_that_no_captured_topic_has_is_told_and_two_topics_are_never_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(CAPTURE), "--dry-run", "--assume", "4.3"]
    first, second = "open", "secret"
    assert parser.main(["replay", *given, "--map-topic", "ordres=other", "--map-topic", f"{first}=another"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert lines == ["note: --map-topic ordres=other: the capture has no topic ordres"]
    line = refused([*given, "--map-topic", f"{first}={second}"], capsys)
    assert line == f"{first} and {second} would both be {second}"


def test_a_name_with_a_prefix_may_be_too_long() -> None:
    """Which is told before anything is sent, in place of an error of the target's."""
    captured = Captured().add(0.0, api_keys.METADATA, 4, {"topics": [{"name": "a" * 60}]})
    sessions, options = [captured.session()], Options("h", 1, prefix_topics="p" * 189)
    chosen = MemorySource(sessions).first_pass(options, EVERYTHING, Topology())
    assert len(chosen.options.map_topic["a" * 60]) == 249
    with pytest.raises(run_plan.BadNamesError, match="which is no name of a topic"):
        MemorySource(sessions).first_pass(dataclasses.replace(options, prefix_topics="p" * 190), EVERYTHING, Topology())
