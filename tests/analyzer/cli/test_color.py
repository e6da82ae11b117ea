"""Severities in colour: each command that prints them as text does it in one way.

(proves: analyzer/cli/color.py, and its use in findings, story, analyze, compare; the tests of rehearse have diff
and rehearse themselves)
"""

from __future__ import annotations

import re

import pytest

from kwire import analyzer
from kwire.analyzer.cli.parser import main
from tests.shared import SAMPLES

REFUSED = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
HEALTHY = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A capture, and it and another one as datasets, by name."""
    folder = tmp_path_factory.mktemp("sources")
    for name, path in (("REFUSED", REFUSED), ("HEALTHY", HEALTHY)):
        analyzer.analyze(path, folder / name)
    return {"CAPTURE": str(REFUSED), "REFUSED": str(folder / "REFUSED"), "HEALTHY": str(folder / "HEALTHY")}


@pytest.mark.parametrize(
    ("command", "severity", "color"),
    [
        ("findings REFUSED", r"(?m)^ERROR(?= )", "\x1b[31m"),
        ("story REFUSED", r"(?m)(?<=^\d\d:\d\d:\d\d\.\d\d\d  )error(?= )", "\x1b[31m"),
        ("analyze CAPTURE", r"(?m)(?<=^  )error(?=  )", "\x1b[31m"),
        ("compare HEALTHY REFUSED --fail-on never", r"(?m)(?<=^  )WARNING(?= )", "\x1b[33m"),
    ],
)
def test_severities_are_coloured_alike(
    command: str,
    severity: str,
    color: str,
    sources: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def printed(*options: str) -> str:
        assert main([*(sources.get(word, word) for word in command.split()), *options]) == 0
        return capsys.readouterr().out

    plain = printed()
    assert "\x1b" not in plain, "no terminal"
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = printed()
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain
    words = re.findall(severity, plain)
    assert words
    assert colored.count(color) == colored.count(f"{color}{words[0]}\x1b[0m") == len(words)
    assert printed("--color", "never") == plain
    assert "\x1b" not in printed("--json")
