"""`kwire compare` as people and builds call it: forms, exit codes, what is refused.

Proves: reports/compare/command.py, reports/compare/formats.py, analyzer/common/page.py, reports/api.py (compare)
"""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import junitparser
import pytest

import kwire
from kwire.analyzer.cli import parser
from tests.reports.compare.job import Job
from tests.shared import SAMPLES

CAPTURE = str(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap")
HOSTILE = "]]>&amp;\"'<script>alert(1)</script>|`a`\x1b]0;@everyone"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Datasets: before a change, after it, and after a change that is for the better."""
    folder = tmp_path_factory.mktemp("sides")
    before = Job(seed=1, seconds=20, writer=HOSTILE)
    jobs = {
        "before": before,
        "after": dataclasses.replace(before, seed=2, acks=1, codec="zstd"),
        "better": dataclasses.replace(before, seed=3, codec="zstd"),
    }
    written = [str(job.write(folder / f"{name}.kwire")) for name, job in jobs.items()]
    return written[0], written[1], written[2]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `kwire compare`."""
    capsys.readouterr()
    try:
        code = parser.main(["compare", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_one_capture_twice_is_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, CAPTURE, CAPTURE, "--fail-on", "note")
    assert code == 0
    assert "verdict: no difference (" in out
    assert "note: both sides are the same" in err


@pytest.mark.parametrize(
    ("after", "fail_on", "code"),
    [(1, None, 1), (1, "error", 0), (1, "never", 0), (2, None, 0), (2, "note", 1)],
)
def test_the_exit_code_is_what_fail_on_says(
    capsys: pytest.CaptureFixture[str], sides: tuple[str, ...], after: int, fail_on: str | None, code: int
) -> None:
    arguments = ["--fail-on", fail_on] if fail_on else []
    assert run(capsys, sides[0], sides[after], *arguments)[0] == code


def test_text_has_the_changes_by_client(capsys: pytest.CaptureFixture[str], sides: tuple[str, ...]) -> None:
    _, out, _ = run(capsys, sides[0], sides[1])
    lines = out.splitlines()
    assert lines[0].startswith("before  before.kwire: ")
    assert lines[2] == "verdict: worse: 1 warning, 2 notes"
    heading = next(line for line in lines if line.startswith("]]>"))
    assert heading.endswith("(writes orders; 1 client)")
    assert "  WARNING acks: all before, 1 after" in lines
    assert "  NOTE    codec: none before, zstd after" in lines
    assert "\x1b" not in out


class Page(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_has_everything_and_no_markup_of_others(
    capsys: pytest.CaptureFixture[str], sides: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    assert run(capsys, sides[0], sides[1], "-o", str(path))[:2] == (1, "")
    page = Page(path.read_text())
    assert "script" not in page.tags
    assert "acks: all before, 1 after" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert "write_wire_record" in page.text
    assert path.stat().st_mode & 0o777 == 0o600


def test_junit_has_a_test_for_each_role(capsys: pytest.CaptureFixture[str], sides: tuple[str, ...]) -> None:
    _, out, _ = run(capsys, sides[0], sides[1], "--format", "junit", "--fail-on", "never")
    (suite,) = junitparser.JUnitXml.fromstring(out.encode())
    assert (suite.tests, suite.failures) == (3, 0)
    assert [test.name for test in suite][-1] == "billing-1 (reads orders, in group billing)"
    _, out, _ = run(capsys, sides[0], sides[1], "--format", "junit")
    (suite,) = junitparser.JUnitXml.fromstring(out.encode())
    (failed,) = [test for test in suite if test.result]
    assert failed.result[0].message == "acks: all before, 1 after"


def test_json_is_the_python_functions_answer(capsys: pytest.CaptureFixture[str], sides: tuple[str, ...]) -> None:
    _, out, _ = run(capsys, sides[0], sides[1], "--json")
    comparison = kwire.compare(sides[0], sides[1])
    assert json.loads(out) == comparison.as_dict()
    assert (comparison.verdict, comparison.changes[0].what) == ("worse", "acks")


def test_annotations_and_summary(capsys: pytest.CaptureFixture[str], sides: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    _, out, _ = run(capsys, sides[0], sides[1], "--format", "github", "--summary", str(path))
    lines = out.splitlines()
    assert lines[0].startswith("::warning title=acks (")
    assert lines[0].endswith("::acks: all before, 1 after")
    assert lines[-1] == "verdict: worse: 1 warning, 2 notes"
    summary = path.read_text()
    assert summary.startswith("## kwire compare: worse: 1 warning, 2 notes\n")
    assert "| warning | " in summary
    assert "<script>" not in summary


def test_mistakes_are_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], sides: tuple[str, ...], tmp_path: Path
) -> None:
    for arguments, message in (
        (("/no/such/file", sides[0]), "/no/such/file"),
        ((sides[0], sides[1], "-o", "/nowhere/x"), "/nowhere/x: cannot be written"),
        ((sides[0], sides[1], "--summary", "/nowhere/x.md"), "/nowhere/x.md: cannot be written"),
        ((sides[0], sides[1], "--json", "--format", "html"), "--json and --format html say both"),
        ((sides[0], sides[1], "--port", "9092"), "--port"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert "hint:" in err


def test_a_capture_without_kafka_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(Path(CAPTURE).read_bytes()[:24])
    for arguments in ((CAPTURE, str(empty)), (str(empty), CAPTURE)):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert "empty.pcap: no exchange of Kafka" in err
