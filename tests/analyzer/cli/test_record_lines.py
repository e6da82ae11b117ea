"""`kwire show --records`: on a shipped capture whose client wrote 200 records to each of five topics, by topic id."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.analyzer.cli.test_parser import kwire, printed, refused
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"
TRUTH = json.loads((CAPTURE.parent / "truth.json").read_text())["topics"]
PRODUCED = ("--records", "--filter", "api == Produce")


def test_each_record_is_a_line_under_its_topics_name() -> None:
    heading, *lines = printed("show", CAPTURE, *PRODUCED).splitlines()
    assert heading.split("\t") == ["time", "topic", "partition", "offset", "key", "value"]
    assert Counter(line.split("\t")[1] for line in lines) == TRUTH


def test_a_format_and_json_say_the_same() -> None:
    formatted = printed("show", CAPTURE, *PRODUCED, "--limit", 7, "--format", r"%t\t%p\t%o\t%K\t%S%%\n").splitlines()
    rows = [json.loads(line) for line in printed("show", CAPTURE, *PRODUCED, "--limit", 7, "--json").splitlines()]
    assert len(rows) == 7
    assert formatted == [
        f"{row['topic']}\t{row['partition']}\t{row['offset']}\t"
        f"{-1 if row['key_bytes'] is None else row['key_bytes']}\t{row['value_bytes']}%"
        for row in rows
    ]


def test_a_dataset_says_what_its_capture_says_and_why_it_says_nothing(tmp_path: Path) -> None:
    printed("analyze", CAPTURE, "-o", tmp_path / "full", "--records", "full")
    printed("analyze", CAPTURE, "-o", tmp_path / "batches")
    printed("analyze", CAPTURE, "-o", tmp_path / "none", "--records", "none")
    assert printed("show", tmp_path / "full", "--records") == printed("show", CAPTURE, "--records")
    refused(kwire("show", tmp_path / "batches", "--records"), "without --records full")
    refused(kwire("show", tmp_path / "none", "--records"), "without --records full")


def test_what_does_not_go_with_it_is_refused() -> None:
    refused(kwire("show", CAPTURE, "--format", "%s"), "--format goes with --records")
    refused(kwire("show", CAPTURE, "--records", "--format", "%y"), "%y")
    refused(kwire("show", CAPTURE, "--records", "--tree"), "--tree")
