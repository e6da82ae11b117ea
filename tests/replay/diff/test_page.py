"""A comparison as a page, and as tests of a build.

Proves: replay/diff/page.py, replay/diff/junit.py
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kwire.analyzer.cli import parser
from kwire.replay.diff.compare import Comparison, compare
from kwire.replay.diff.junit import as_junit
from kwire.replay.diff.page import as_html
from kwire.replay.diff.pairs import Pair, Pairs, RunFacts
from tests.bench import diff as bench
from tests.replay.diff.test_compare import fetch, metadata, produce, topic
from tests.replay.forging import batch

SIDES = "captured", "replayed"
HOSTILE = "<script>alert(1)</script>\x1b]0;\n"
AUDITED = {
    "topic": "orders",
    "partition": 0,
    "acknowledged": 3,
    "readable": 2,
    "missing": 1,
    "out_of_order": 0,
    "first_missing_offset": 7,
    "stored_otherwise": 2,
    "stored_as": "gzip, CreateTime, format v2",
}


class Reading(HTMLParser):
    """A page's text, by the tags that it stands in; every tag must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect"):
            self.open.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.said.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.said if inside == tag]


def compared(some: list[Pair], audited: bool = False) -> tuple[Comparison, Sequence[Pair]]:
    """As of a RUN: each pair knows its place."""
    for place, pair in enumerate(some):
        pair.row["place"] = place
    pairs = Pairs(len(some), some.__getitem__)
    if audited:
        pairs.runs = (RunFacts([AUDITED], {}, 1.0, {}),)
    return compare(pairs), pairs


@pytest.fixture(scope="module")
def forged_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "run"
    bench.forge(out, 40)
    return out


LACKING = [
    metadata([topic("orders")], [topic("orders", 0, error=3)], [{"name": "orders"}]),
    *(produce(batch("a"), at, -1, errors=(0, 3)) for at in range(2)),
    *(fetch(batch("a"), batch("a")) for _ in range(2)),
]


def test_the_verdict_its_cause_what_follows_and_both_bodies() -> None:
    page = Reading(as_html(*_with_sides(*compared(LACKING))))
    (verdict,) = page.of("span")[:1]
    assert verdict.startswith("1 unexpected difference: Metadata v12 error appeared UNKNOWN_TOPIC_OR_PARTITION (3)")
    title = "1 x Metadata v12  topics.errorCode  error appeared: NONE (0) -> UNKNOWN_TOPIC_OR_PARTITION (3)"
    assert title in page.of("h3")
    assert page.of("li") == ["2 x Produce error appeared UNKNOWN_TOPIC_OR_PARTITION (3)"]
    request, other, answer, answered = page.of("pre")
    assert request == other
    assert '"name": "orders"' in request
    assert '"errorCode": 0' in answer
    assert '"errorCode": 3' in answered
    assert "Fetch" in page.of("h3")
    # One answer each a side: Fetch, Metadata, Produce.
    assert page.of("figcaption") == ["from 1.00 to 1.00 ms, logarithmic"] * 3


def _with_sides(comparison: Comparison, pairs: Sequence[Pair]) -> tuple[Comparison, tuple[str, str], Sequence[Pair]]:
    return comparison, SIDES, pairs


def test_what_was_captured_is_text_and_nothing_else() -> None:
    some = [metadata([topic(HOSTILE)], [topic(HOSTILE, 0, error=3)], [{"name": HOSTILE}], connection=HOSTILE)]
    page = as_html(*_with_sides(*compared(some)))
    reading = Reading(page)  # which takes no script
    assert "\x1b" not in page
    assert any("<script>alert(1)</script>\\x1b]0;\\n" in text for text in reading.of("td"))


def test_what_was_acknowledged_and_how_it_is_stored() -> None:
    some = [produce(batch("a", producer=7), at, 50 + at) for at in range(3)]
    page = Reading(as_html(*_with_sides(*compared(some, audited=True))))
    cells = page.of("td")
    at = cells.index("gzip, CreateTime, format v2") - 2
    assert cells[at : at + 8] == ["orders", "0", "gzip, CreateTime, format v2", "3", "2", "1", "0", "2"]


def test_a_page_of_a_run_in_which_nothing_differs() -> None:
    page = Reading(as_html(*_with_sides(*compared([produce(batch("a"), 0, 5)]))))
    assert page.of("span")[:1] == ["same answers, not audited"]
    assert "What differs, and what follows from it" not in page.of("h2")


def test_a_build_has_a_test_an_api_and_one_for_the_records() -> None:
    comparison, _ = compared(LACKING, audited=True)
    root = ElementTree.fromstring(as_junit(comparison))
    tests = root.iter("testcase")
    failed = {test.attrib["name"]: [failure.attrib["message"] for failure in test.findall("failure")] for test in tests}
    assert failed == {
        "Fetch": [],
        "Produce": [],
        "Metadata": ["1 x topics.errorCode error appeared: NONE (0) -> UNKNOWN_TOPIC_OR_PARTITION (3)"],
        "acknowledged records": ["1 x (records) acknowledged records missing"],
    }
    assert (root.attrib["tests"], root.attrib["failures"]) == ("4", "2")
    detail = root.find("testcase[@name='Metadata']/failure")
    assert detail is not None
    assert "from which follow 2 x Produce error appeared" in (detail.text or "")


def test_text_in_a_build_is_printable() -> None:
    some = [metadata([topic(HOSTILE)], [topic(HOSTILE, 0, error=3)], [{"name": HOSTILE}], connection=HOSTILE)]
    root = ElementTree.fromstring(as_junit(compared(some)[0]))
    assert "\\x1b" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("arguments", "reading"),
    [(["--json", "--format", "html"], "--json and --format html say both"), (["-o", "/nowhere/x"], "No such file")],
)
def test_what_cannot_be_written(
    forged_run: Path, arguments: list[str], reading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.main(["diff", str(forged_run), *arguments])
    assert ended.value.code == 2
    assert reading in capsys.readouterr().err


def test_both_are_written_to_files_of_their_owners(forged_run: Path, tmp_path: Path) -> None:
    for form, out in (("html", tmp_path / "diff.html"), ("junit", tmp_path / "diff.xml")):
        assert parser.main(["diff", str(forged_run), "--format", form, "-o", str(out)]) == 0
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert Reading((tmp_path / "diff.html").read_text()).of("h1")
    assert ElementTree.parse(tmp_path / "diff.xml").getroot().attrib["failures"] == "0"
