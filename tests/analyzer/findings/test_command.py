"""`kwire findings`: what it prints, what it takes, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.dataset import tables
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.query import Query
from kwire.analyzer.findings.rules import RULES
from tests.analyzer.findings.evaluating import Traffic
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
CLEAN = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("findings") / "dataset"
    analyzer.analyze(CAPTURE, path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    capsys.readouterr()
    try:
        code = parser.main(["findings", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_json_has_the_columns_of_the_table_worst_first(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, dataset, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert rows
    assert all(list(row) == [column.name for column in tables.FINDINGS] for row in rows)
    order = [("error", "warning", "note").index(row["severity"]) for row in rows]
    assert order == sorted(order)
    stored = analyzer.open_dataset(dataset).findings.to_table().to_pylist()
    assert sorted(row["text"] for row in rows) == sorted(row["text"] for row in stored)
    assert all(row["since"].endswith("Z") and isinstance(row["who"], dict) for row in rows)


def test_a_capture_is_analysed_first(capsys: pytest.CaptureFixture[str], dataset: str) -> None:
    assert run(capsys, str(CAPTURE), "--json")[1] == run(capsys, dataset, "--json")[1]


def test_only_may_be_said_again(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    codes = "authentication-failed", "authorization-failed"
    both = run(capsys, dataset, "--only", ",".join(codes))
    assert run(capsys, dataset, "--only", codes[0], "--only", codes[1]) == both
    assert all(code in both[1] for code in codes)


def test_a_terminal_gets_lines_that_fit_it_and_a_file_whole_ones(
    dataset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(capsys, dataset)[1]
    assert max(map(len, whole.splitlines())) > 100
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("PAGER", "cat")
    for columns, most in (("80", 80), ("300", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run(capsys, dataset, "--color", "never")[1]
        assert max(map(len, shown.splitlines())) <= most
        assert shown.split() == whole.split()


def test_colour_is_for_severities_and_can_be_had_or_refused(
    dataset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(capsys, dataset)[1]
    assert "\x1b" not in plain
    painted = run(capsys, dataset, "--color", "always")[1]
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain
    assert painted.count("\x1b[31mERROR\x1b[0m ") == len(re.findall("(?m)^ERROR ", plain)) > 0
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(capsys, dataset)[1] == painted
    assert "\x1b" not in run(capsys, dataset, "--json")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(capsys, dataset)[1] == plain


def test_exit_codes_follow_fail_on_after_only_and_ignore(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in run(capsys, dataset, "--json")[1].splitlines()]
    errors = sorted({row["code"] for row in rows if row["severity"] == "error"})
    assert errors
    assert run(capsys, dataset, "--fail-on", "error")[0] == 1
    assert run(capsys, dataset)[0] == 0
    ignored = [argument for code in errors for argument in ("--ignore", code)]
    code, out, _ = run(capsys, dataset, "--fail-on", "error", *ignored)
    assert code == 0
    assert f"{sum(row['severity'] == 'error' for row in rows)} ignored" in out
    assert run(capsys, dataset, "--fail-on", "note", "--only", "capture-snaplen")[0:2] == (0, "nothing found\n")


def test_without_trouble_it_ends_with_what_happened(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    heading = "what happened (kwire story tells more):"
    _, out, _ = run(capsys, str(SAMPLES / "txn-librdkafka-4.3"))
    assert "1 note\n" in out
    story = out.partition(heading)[2].splitlines()[1:]
    assert len(story) == 3
    assert any("took the transactional id lab-tx-1" in line for line in story)
    assert heading not in run(capsys, dataset)[1]  # it has errors
    assert heading not in run(capsys, str(SAMPLES / "txn-librdkafka-4.3"), "--only", "request-unanswered")[1]


def test_findings_of_one_client_are_ignored_by_its_name(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in run(capsys, dataset, "--json")[1].splitlines()]
    named = next(row for row in rows if row["who"].get("client_id"))
    who = named["who"]["client_id"]
    left = run(capsys, dataset, "--json", "--ignore", f"{named['code']}:{who}")[1].splitlines()
    gone = [row for row in rows if row["code"] == named["code"] and who in row["who"].values()]
    assert len(left) == len(rows) - len(gone)


def test_every_rule_is_explained_without_a_capture(capsys: pytest.CaptureFixture[str]) -> None:
    for code, rule in RULES.items():
        assert run(capsys, "--explain", code)[0] == 0
        assert rule.family
    left, _, err = run(capsys, "--explain", "topic-misssing")
    assert left == 2
    assert "did you mean topic-missing?" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "findings of what"),
        (("--only", "no-such"), "no finding has the code"),
        (("--ignore", "no-such:me"), "no finding has the code"),
        (("--threshold", "reconnect-loop.opened"), "not CODE.NAME=VALUE"),
        (("--threshold", "reconnect-loop.opend=3"), "it has opened"),
        (("--threshold", "reconnect-loop.opened=many"), "not a number"),
        (("--policy", "acks=1"), "acks=all"),
        (("--target", "17.0"), "no Kafka release"),
        (("--thresholds", "/no/such/file"), "No such file"),
    ],
)
def test_what_cannot_be_used_is_told(
    arguments: tuple[str, ...], words: str, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *([dataset] if arguments else []), *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "hint: " in err


def test_thresholds_come_from_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traffic = Traffic(tmp_path / "dataset")
    traffic.link(0, retransmissions=12, client_packets=500, broker_packets=500)
    path = str(traffic.write())
    assert "tcp-retransmission" in run(capsys, path)[1]
    assert "tcp-retransmission" not in run(capsys, path, "--threshold", "tcp-retransmission.share=0.02")[1]
    file = tmp_path / "limits.toml"
    file.write_text("[tcp-retransmission]\nshare = 0.02\n")
    assert "tcp-retransmission" not in run(capsys, path, "--thresholds", str(file))[1]
    file.write_text("[tcp-retransmission\n")
    assert run(capsys, path, "--thresholds", str(file))[0] == 2


def test_a_target_is_named_as_it_was_found_and_part_of_a_name_is_asked_after(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = str(SAMPLES / "old-java-0.8.2" / "capture.pcap")
    answer = run(capsys, old, "--only", "version-removed-in-target", "--target", " v4.0 ")
    assert "refused by Kafka 4.0." in answer[1]
    assert answer == run(capsys, old, "--only", "version-removed-in-target", "--target", "4.0")
    for part in ("4", "v4", " 4. "):
        assert "hint: which one: 4.0, 4.1, " in run(capsys, old, "--target", part)[2]
    assert "hint: there are 0.9.0, " in run(capsys, old, "--target", "77")[2]


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        (("--target", "4.0"), {"version-removed-in-target", "api-versions-missing"}),
        (("--policy", "acks=all", "--policy", "tls=required"), {"acks-zero", "plain-traffic"}),
        (("--policy", "compression=required"), {"no-compression"}),
        (("--threshold", "no-compression.total=1"), {"no-compression"}),
    ],
)
def test_only_rules_that_are_asked_otherwise_are_asked_again(
    arguments: tuple[str, ...],
    again: set[str],
    dataset: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others' findings are those stored; it comes to the same as asking all of them."""
    codes_read: list[frozenset[str]] = []

    def all_of_them(how: Query) -> frozenset[str]:
        codes_read.append(concerned(how))
        return frozenset(RULES)

    def listed() -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in run(capsys, dataset, "--json", *arguments)[1].splitlines()]
        return sorted(rows, key=lambda row: (row["code"], row["text"]))

    concerned = evaluate.concerned
    some = listed()
    monkeypatch.setattr(evaluate, "concerned", all_of_them)
    assert listed() == some
    assert codes_read == [again]


def test_a_dataset_without_meaning_says_so_and_gives_what_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyzer.analyze(CAPTURE, tmp_path / "dataset", meaning=False)
    code, out, err = run(capsys, str(tmp_path / "dataset"), "--fail-on", "error")
    assert code == 1
    assert "ERROR" in out
    assert "was not analysed" in err


def test_a_clean_capture_has_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(CLEAN), "--fail-on", "warning")
    assert (code, err) == (0, "")
