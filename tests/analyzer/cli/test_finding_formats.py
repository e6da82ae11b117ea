"""Findings as builds take them: JUnit XML, annotations of GitHub Actions, a summary in Markdown.

Proves: analyzer/cli/finding_formats.py, analyzer/common/junit.py, analyzer/common/markdown.py,
analyzer/common/workflow.py
"""

from __future__ import annotations

import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest
from markdown_it import MarkdownIt

from kwire.analyzer.cli import finding_formats, parser
from kwire.analyzer.common import junit, workflow
from kwire.analyzer.common.markdown import literal
from kwire.analyzer.findings.rules import RULES
from kwire.analyzer.findings.wording import unsaid_cause
from tests.shared import SAMPLES

CAPTURE = str(SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap")
HOSTILE = (
    "]]>&amp;\"'<script>alert(1)</script>%0A::error::x\r\n::add-mask::y##[add-path]z|`a`@everyone https://x.y "
    "\x1b]0;\ud800"
)
"""A client id that ends what each form puts around it, and would go on as a command of its own."""


def row(severity: str = "error", code: str = "authentication-failed", **others: Any) -> dict[str, Any]:
    evidence = {"connection": HOSTILE, "exchange": 3, "reply": 3}
    return {
        "capture": "a.pcap",
        "severity": severity,
        "code": code,
        "family": RULES[code].family,
        "text": f"{HOSTILE} was refused.",
        "who": {"client_id": HOSTILE, "connection": "10.0.0.1:5000-10.0.0.2:9092#1"},
        "what": {"topic": HOSTILE},
        "count": 1,
        "since": 1_000_000,
        "until": 5_000_000,
        "cause": HOSTILE,
        "proven": True,
        "advice": "See to it.",
        "first": evidence,
        "worst": None,
        "last": evidence,
        **others,
    }


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `kwire findings`."""
    capsys.readouterr()
    try:
        code = parser.main(["findings", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def check_schema(document: str) -> ElementTree.Element:
    """Hold a document to what both schemas in use demand: Ant's (windyroad/JUnit-Schema), and junit-10.xsd of Jenkins'
    xunit plugin, which takes less but wants nothing more."""
    suite = ElementTree.fromstring(document)
    assert suite.tag == "testsuite"
    assert set(suite.attrib) == {
        "name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    order = [child.tag for child in suite]
    assert order == ["properties", *["testcase"] * (len(order) - 3), "system-out", "system-err"]
    for test in suite.iter("testcase"):
        assert set(test.attrib) == {"classname", "name", "time"}
        assert float(test.attrib["time"]) >= 0
        assert [child.tag for child in test] in ([], ["failure"], ["skipped"])
        for failure in test.findall("failure"):
            assert set(failure.attrib) == {"type", "message"}
    return suite


# ------------------------------------------------------------------------------------------------------------- JUnit


def test_a_build_has_a_test_for_each_finding_and_each_rule_without(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, CAPTURE, "--format", "text")[1]
    code, out, _ = run(capsys, CAPTURE, "--format", "junit", "--fail-on", "error")
    assert code == 1
    check_schema(out)
    (suite,) = junitparser.JUnitXml.fromstring(out.encode())
    tests = list(suite)
    failed = [test for test in tests if isinstance(next(iter(test.result), None), junitparser.Failure)]
    below = [test for test in tests if isinstance(next(iter(test.result), None), junitparser.Skipped)]
    errors, notes = (int(number) for number in re.findall(r"^(\d+) errors, (\d+) notes$", text, re.MULTILINE)[0])
    assert (len(failed), len(below)) == (errors, notes) == (suite.failures, suite.skipped)
    passed = {test.name for test in tests} - {test.name for test in failed + below}
    assert passed == set(RULES) - {test.name.split(" ")[0] for test in failed + below}
    assert suite.tests == len(tests)
    assert "may not use Metadata for topic secret" in failed[0].result[0].message
    assert (
        "do: An ACL that allows User:bob Describe (which Read and Write include) on topic secret."
        in failed[0].result[0].text
    )


def test_a_note_fails_no_test_unless_the_gate_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, failures in (((), 0), (("--fail-on", "note"), 3), (("--fail-on", "error"), 0)):
        _, out, _ = run(capsys, CAPTURE, "--format", "junit", "--only", "credentials-in-clear", *arguments)
        assert check_schema(out).attrib["failures"] == str(failures)


def test_what_is_ignored_is_a_skipped_test(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, CAPTURE, "--format", "junit", "--only", "authorization-failed", "--ignore", "authorization-failed",
        "--fail-on", "note",
    )  # fmt: skip
    suite = check_schema(out)
    assert code == 0
    assert suite.attrib["tests"] == suite.attrib["skipped"] == "5"
    assert all(skipped.attrib["message"].startswith("ignored (--ignore): error: ") for skipped in suite.iter("skipped"))


def test_rules_pass_no_test_where_there_was_nothing_to_look_at(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(Path(CAPTURE).read_bytes()[:24])
    code, out, err = run(capsys, str(empty), "--format", "junit")
    assert code == 0
    suite = check_schema(out)
    assert suite.attrib["skipped"] == suite.attrib["tests"] == str(len(RULES))
    assert "note: no Kafka traffic in empty.pcap; no rule applies" in err


def test_a_test_has_the_same_name_in_each_run() -> None:
    """Ports, and versions of software, are others the next time."""
    rows = [row(who={"client_id": "a", "connection": f"10.0.0.1:{port}-10.0.0.2:9092#1"}) for port in (5000, 5001)]
    names = {finding_formats.as_junit([each], [each], [each["code"]], None, []).split('name="')[2] for each in rows}
    assert len(names) == 1


def test_hostile_names_are_text_in_xml() -> None:
    rows = [row(), row("note")]
    suite = check_schema(finding_formats.as_junit(rows, rows, ["authentication-failed"], None, [HOSTILE]))
    assert suite.find(".//script") is None
    failure = suite.find(".//failure")
    assert failure is not None
    assert "<script>alert(1)</script>" in failure.attrib["message"]
    assert "\\x1b]0;\\ud800" in (failure.text or "")
    assert len(suite.findall("testcase")) == 2
    document = junit.as_xml(HOSTILE, [], properties={"capture": HOSTILE}, output=HOSTILE)
    assert check_schema(document).find("properties/property") is not None


# ---------------------------------------------------------------------------------------------------- GitHub Actions


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Commands in what a step printed, read as `actions/runner` reads them: `ActionCommand.TryParseV2`."""
    unescaped = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
    parsed = []
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip()
        end = line.find("::", 2)
        if not line.startswith("::") or end < 0:
            assert "##[" not in line  # the old form, which counts anywhere in a line
            continue
        name, _, rest = line[2:end].partition(" ")
        properties, data = {}, line[end + 2 :]
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            for old, new in (("%3A", ":"), ("%2C", ","), *unescaped):
                value = value.replace(old, new)
            properties[key.strip()] = value
        for old, new in unescaped:
            data = data.replace(old, new)
        parsed.append((name, properties, data))
    return parsed


def test_annotations_are_what_the_runner_reads(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, CAPTURE, "--format", "github", "--fail-on", "error")
    assert code == 1
    parsed = commands(out)
    assert [name for name, _, _ in parsed] == ["error"] * 9 + ["notice"] * 7
    assert parsed[0][1] == {"title": "authorization-failed"}
    assert (
        "do: An ACL that allows User:bob Describe (which Read and Write include) on topic secret.\nsince 01:54:36 UTC"
        in parsed[0][2]
    )
    assert out.splitlines()[-1] == "9 errors, 7 notes"


def test_hostile_names_are_no_commands() -> None:
    rows = [row(capture=HOSTILE), row("warning")]
    parsed = commands("\n".join(finding_formats.as_github(rows, 0)))
    assert [name for name, _, _ in parsed] == ["error", "warning"]
    shown = HOSTILE.encode("unicode_escape").decode()
    assert parsed[0][1] == {"title": f"authentication-failed [{shown}]"}
    assert parsed[0][2].startswith(f"{shown} was refused.".replace("\\\\", "\\"))


# ----------------------------------------------------------------------------------------------------------- Markdown


class Reading(HTMLParser):
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


def rendered(markdown: str) -> Reading:
    """Markdown as another implementation has it, with the tables of GitHub."""
    return Reading(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))


def test_the_summary_says_what_the_text_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    code, out, _ = run(capsys, CAPTURE, "--summary", str(path), "--fail-on", "error")
    assert code == 1
    page = rendered(path.read_text())
    assert page.tags == {"h2", "table", "thead", "tbody", "tr", "th", "td", "code", "br"}
    for line in out.splitlines():
        if line.startswith("  ") and not line.startswith(("  since", "  see", "  do:", "  cause", "  probably")):
            assert line.strip() in page.text
    assert "kwire findings: 9 errors, 7 notes" in page.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_summary_of_a_step_keeps_what_others_wrote(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = tmp_path / "shared.md", tmp_path / "own.md"
    for path in (shared, own):
        path.write_text("# Before\n")
    monkeypatch.setenv(workflow.SUMMARY_VARIABLE, str(shared))
    for path, first in ((shared, "# Before"), (own, "## kwire findings: nothing found")):
        assert run(capsys, CAPTURE, "--only", "broker-lost", "--summary", str(path))[0] == 0
        lines = path.read_text().splitlines()
        assert lines[0] == first
        assert lines[-1] == "## kwire findings: nothing found"


def test_a_summary_that_cannot_be_written_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/nowhere/x.md", "/"):
        code, _, err = run(capsys, "/no/such/capture.pcap", "--summary", path)
        assert code == 2
        assert f"{path}: cannot be written" in err


def test_two_forms_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, CAPTURE, "--json", "--format", "junit")
    assert code == 2
    assert "--json and --format junit say both" in err
    assert run(capsys, CAPTURE, "--json")[1] == run(capsys, CAPTURE, "--format", "json")[1]


def test_hostile_names_are_text_in_markdown() -> None:
    page = rendered(finding_formats.as_markdown([row(), row(capture=HOSTILE)], 0, [HOSTILE]))
    assert page.tags == {"h2", "table", "thead", "tbody", "tr", "th", "td", "code", "br", "p"}
    assert (
        "<script>alert(1)</script>%0A::error::x\\r\\n::add-mask::y##[add-path]z|`a`@everyone https://x.y" in page.text
    )


@pytest.mark.parametrize("text", [HOSTILE.strip(), "a*b*_c_~d~ [x](http://y) &lt; # 1", "www.evil.example/~x|y"])
def test_literal_text_is_read_as_it_was(text: str) -> None:
    page = rendered(f"| {literal(text)} | b |\n|---|---|")
    assert page.text.strip().split("\n")[0].strip() == "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def test_nobody_is_called_and_nothing_becomes_a_link_on_github() -> None:
    """GitHub looks for @names, www. and :// in the text itself, whatever is escaped before them."""
    assert not re.search(
        r"@\w|www\.|://", literal("@everyone WWW.evil.example http://evil.example a@b.c"), re.IGNORECASE
    )


def test_a_cause_that_the_sentence_says_is_not_said_again() -> None:
    finding = {"text": "No answer: the connection was closed in order.", "cause": "the connection was closed in order"}
    assert unsaid_cause(finding) is None
    assert unsaid_cause({**finding, "cause": "max.poll.interval.ms"}) == "max.poll.interval.ms"
