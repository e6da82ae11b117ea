"""`kwire story --offset`: the journey of one record, of a real capture and of forged conversations.

(proves: analyzer/story/record_journey.py)
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kwire.analyzer.cli.parser import main
from tests.analyzer import forging
from tests.analyzer.analysis.test_journeys import SECOND, batch, fetching, producing, silent, stored
from tests.captures.forge import Write, converse, interleaved
from tests.shared import SAMPLES

TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def events(capsys: pytest.CaptureFixture[str], capture: Path, topic: str, offset: int) -> list[tuple[str, str, str]]:
    arguments = ["story", str(capture), "--topic", topic, "--partition", "0", "--offset", str(offset), "--json"]
    assert main(arguments) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    return [(row["kind"], row["actor"], row["text"]) for row in rows]


def captured(folder: Path, *conversations: list[list[Write]]) -> Path:
    packets = [
        converse([write for part in parts for write in part], client=("10.0.0.1", 40_000 + number), acks=False)
        for number, parts in enumerate(conversations)
    ]
    forging.read(folder, interleaved(*packets))
    return folder / "capture.pcap"


def test_a_record_of_a_transaction_from_its_producer_to_each_group(capsys: pytest.CaptureFixture[str]) -> None:
    rows = events(capsys, TXN, "tx-out", 4)
    assert [(kind, actor) for kind, actor, _ in rows] == [
        ("produced", "lab-tx"),
        ("acknowledged", "lab-tx"),
        ("transaction_committed", "lab-tx"),
        ("fetched", "lab-read_committed"),
        ("committed", "lab-read_committed"),
        ("fetched", "lab-read_uncommitted"),
        ("committed", "lab-read_uncommitted"),
    ]
    assert "offset 4 in a batch of 9 records from 0 to 8" in rows[0][2]
    assert "4.13 s after it was sent" in rows[3][2]


def test_a_record_that_was_delivered_twice_and_one_that_nobody_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    produced = [producing(1, 10, 2, SECOND), producing(2, 12, 1, 2 * SECOND)]
    fetched = [fetching(number, 10, batch(2, 10), (2 + number) * SECOND) for number in (1, 2)]
    capture = captured(tmp_path, produced, fetched)
    kinds = [kind for kind, _, _ in events(capsys, capture, "orders", 11)]
    assert kinds == ["produced", "acknowledged", "fetched", "fetched_again"]
    last = events(capsys, capture, "orders", 12)
    assert [kind for kind, _, _ in last] == ["produced", "acknowledged", "not_read"]
    assert last[-1][2] == "nobody was captured reading it"


def test_a_record_without_acknowledgement(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    capture = captured(tmp_path, [silent(1, SECOND)], [fetching(1, 10, stored(1, 10), 2 * SECOND)])
    rows = events(capsys, capture, "orders", 10)
    assert [kind for kind, _, _ in rows] == ["produced", "acknowledged", "fetched"]
    assert rows[1][2] == "asked for no acknowledgement (acks=0)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "tx-out", "--partition", "0", "--offset", "4000"], "what was captured of tx-out-0 lies from 0 to"),
        (["--topic", "tx-out", "--offset", "4"], "--offset goes with --topic and --partition"),
        (["--partition", "1"], "--partition goes with --topic"),
        (["--topic", "tx-out", "--partition", "0", "--offset", "-4"], "is not a number from 0 on"),
    ],
)
def test_what_cannot_be_told_is_an_error_with_a_hint(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["story", str(TXN), *arguments])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_partition_alone_has_its_own_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", str(TXN), "--topic", "tx-out", "--json"]) == 0
    every = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["story", str(TXN), "--topic", "tx-out", "--partition", "1", "--json"]) == 0
    own = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert own == [event for event in every if event["partition"] == 1]


def test_a_dataset_without_journeys_says_how_to_have_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "dataset")
    assert main(["analyze", str(TXN), "-o", path, "--no-journeys"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["story", path, "--topic", "tx-out", "--partition", "0", "--offset", "4"])
    assert "without --no-journeys" in capsys.readouterr().err


def test_a_record_that_was_written_before_the_capture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fetched = [fetching(number, 10, batch(2, 10), number * SECOND) for number in (1, 2)]
    rows = events(capsys, captured(tmp_path, fetched), "orders", 11)
    assert [kind for kind, _, _ in rows] == ["fetched", "fetched_again"]
    assert rows[0][2] == "fetched offset 11; the Produce that wrote it was not captured"
    with pytest.raises(SystemExit, match="2"):
        main(["story", str(tmp_path / "capture.pcap"), "--topic", "orders", "--partition", "0", "--offset", "12"])
    assert "what was captured of orders-0 lies from 10 to 11" in capsys.readouterr().err


def test_an_answer_with_a_hole_may_not_have_held_a_record(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fetched = [fetching(1, 10, batch(2, 10) + batch(1, 20), SECOND)]
    [(kind, _, text)] = events(capsys, captured(tmp_path, fetched), "orders", 15)
    assert kind == "fetched"
    assert text.endswith("may not have held it")
