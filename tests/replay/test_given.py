"""What is given to a replay, and is not taken: told before anything is asked or sent.

Proves: replay/reading.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import analyzer
import replay
from analyzer import cli
from captures.problems import Problem
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The first line that a command which does not begin says."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", *arguments])
    assert ended.value.code == 2
    line, hint = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert hint.startswith("hint: ")
    return line.removeprefix("kwire: ")


@pytest.mark.parametrize("named", ["{}", "{}/", "{}/../kept/."])
def test_a_run_does_not_take_the_place_of_what_is_replayed(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    analyzer.analyze(CAPTURE, kept, keep_bytes=True)
    there = sorted(kept.rglob("*"))
    out = named.format(kept)
    assert refused([str(kept), "--to", "127.0.0.1:1", "-o", out], capsys) == f"-o {out}: is the capture itself"
    inside = kept / "capture.pcap"
    shutil.copy(CAPTURE, inside)
    for given in (inside, kept / "*.pcap"):
        line = refused([str(given), "--to", "127.0.0.1:1", "-o", out], capsys)
        assert line == f"-o {out}: holds the capture itself"
    inside.unlink()
    with pytest.raises(Problem, match="is the capture itself"):
        replay.replay(kept, to="127.0.0.1:1", out=out)
    assert sorted(kept.rglob("*")) == there
