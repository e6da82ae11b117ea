"""`kwire report` as a user types it: what is refused before Spark is started, and one report made."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kwire.analyzer.cli import parser
from kwire.reports import output, releases
from tests.reports.forging import Forged
from tests.shared import KWIRE, ROOT, SAMPLES


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The text on stderr of a command that ends with a usage error."""
    with pytest.raises(SystemExit) as left:
        parser.main(["report", *arguments])
    assert left.value.code == parser.EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\nhint: " in captured.err
    return captured.err


def test_an_unknown_release_lists_the_known_ones(forged: Forged, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, str(forged.write()), "--format", "md", "--target", "5.0")
    assert text.startswith("kwire: --target 5.0: not a Kafka release that this kwire knows\n")
    assert all(release.name in text for release in releases.releases())


@pytest.mark.parametrize(
    "out, message", [("nowhere/report.html", "cannot be written: No such file"), ("report.docx", ".docx")]
)
def test_a_file_that_cannot_be_written_is_told_before_a_capture_is_read(
    out: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.analyzer.cli.commands.dataset_of", None)
    sample = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    assert message in refused(capsys, str(sample), "-o", str(tmp_path / out))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("capture", "out", "message"),
    [
        (str(SAMPLES / "txn-librdkafka-4.3"), "file/data", "file: File exists"),
        ("no-such.pcap", "data", "no such file"),
        (str(SAMPLES / "txn-librdkafka-4.3"), ".", "not empty, and not a dataset"),
    ],
)
def test_what_spark_would_analyse_in_vain_is_told_before_a_session_starts(
    capture: str,
    out: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("kwire.reports.spark.session.of_command", None)
    with pytest.raises(SystemExit) as left:
        parser.main(["analyze", capture, "-o", str(tmp_path / out), "--engine", "spark"])
    assert left.value.code == parser.EXIT_USAGE
    text = capsys.readouterr().err
    assert message in text
    assert "\nhint: " in text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


HOLDER = """
import sys
from pathlib import Path
from kwire.analyzer.dataset import dataset
with dataset.Writer(Path(sys.argv[1]), False, False):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_spark_writes_no_dataset_that_another_process_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire.reports.spark.session.of_command", None)
    out = str(tmp_path / "data")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, out], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SystemExit) as left:
            parser.main(["analyze", str(SAMPLES / "txn-librdkafka-4.3"), "-o", out, "--engine", "spark"])
        other.communicate("\n")
    assert left.value.code == parser.EXIT_USAGE
    text = capsys.readouterr().err
    assert str(other.pid) in text
    assert "--wait" in text


def test_a_filter_goes_with_a_capture_not_with_a_dataset(forged: Forged, capsys: pytest.CaptureFixture[str]) -> None:
    assert "go with a CAPTURE" in refused(capsys, str(forged.write()), "--format", "md", "--filter", "api == Fetch")


def test_a_source_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no-such" in refused(capsys, str(tmp_path / "no-such.pcap"), "-o", str(tmp_path / "report.html"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("-", "standard input"),
        ("some/where/orders.pcap", "orders.pcap"),
        ("day1/", "day1"),
        (".", "."),
        ("s3://KEY:SECRET@bucket/day1?region=x", "day1"),
        ("zip://a.pcap::/some/day.zip", "a.pcap"),
    ],
)
def test_a_report_names_no_folder_of_its_maker(source: str, name: str) -> None:
    assert output.name_of(source) == name


def test_a_capture_becomes_a_report_in_a_file_for_its_owner(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    sample = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    subprocess.run([*KWIRE, "report", str(sample), "-o", str(out)], check=True, timeout=300)
    whole = json.loads(out.read_text())
    assert whole["sources"] == ["capture.pcap"]
    assert whole["answers"]["totals"]["rows"][0]["exchanges"] == 188
    requests: Counter[str] = Counter()
    for row in whole["answers"]["producers"]["rows"]:  # one for each client
        requests[row["topic"]] += row["requests"]
    assert requests == {"tx-out": 19, "idem": 5, "tx-in": 5}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("command", [("findings",), ("story",), ("report", "--format", "json")])
def test_what_was_noted_of_captures_is_said_of_their_dataset(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, dataset = tmp_path / "cut.pcap", str(tmp_path / "data")
    capture.write_bytes((SAMPLES / "txn-librdkafka-4.3" / "capture.pcap").read_bytes()[:60_001])
    assert parser.main(["analyze", str(capture), "-o", dataset]) == 0
    capsys.readouterr()
    assert parser.main([*command, dataset]) == 0
    assert f"note: {capture}: ends in the middle of packet 368, " in capsys.readouterr().err
