"""A dataset with messages is replayed as the capture that it is of.

Proves: replay/plan/stored_exchanges.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kwire import analyzer
from kwire.analyzer.dataset.dataset import DatasetError
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay import inputs
from kwire.replay.plan import decisions, stored_exchanges, windows
from kwire.replay.plan.decisions import PlanOptions
from kwire.replay.plan.windows import TwoPassReader
from tests.replay.conversation import EVERYTHING
from tests.replay.plan.test_flow import planned
from tests.replay.plan.test_windows import step_fields
from tests.shared import SAMPLES, capture_files, sample_folders

FOLDERS = {folder.name: folder for folder in sample_folders()}
SECRET = ("scram", "sasl", "tls")  # what holds a secret is blank in a dataset


def files_of(name: str) -> list[str]:
    return [str(path) for path in capture_files(FOLDERS[name])]


def stored(name: str, out: Path, **options: Any) -> Path:
    files = files_of(name)
    analyzer.analyze(files, out=out, keep_bytes=True, rotated=len(files) > 1, window_bytes=20_000, **options)
    return out


@pytest.mark.parametrize("name", sorted(name for name in FOLDERS if not any(word in name for word in SECRET)))
def test_a_dataset_in_windows_is_planned_as_its_capture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 50)
    monkeypatch.setattr(stored_exchanges, "_MESSAGES", 7)
    data = stored(name, tmp_path / "data")
    whole = inputs.read(files_of(name), how=ReadOptions(rotated=len(files_of(name)) > 1))
    plan, _ = decisions.make(whole, EVERYTHING, PlanOptions())
    through = TwoPassReader(lambda: stored_exchanges.read_exchanges(data), topic_ids=stored_exchanges.topic_ids(data))
    through.read_first_pass()

    steps, skips = planned(through)

    def alike(step: Any) -> dict[str, Any]:
        # Parts of latencies are null in rows of a capture that nobody analysed whole.
        request = step.request
        return step_fields(step, "request") | {"said": (request.data, request.answer, request.row["request_time"])}

    assert [alike(step) for step in steps] == [alike(step) for step in plan.steps]
    assert [skip.rule for skip in skips] == [skip.rule for skip in plan.skips]
    assert [(session.connection, session.user) for session in through.sessions] == [
        (session.connection, session.user) for session in whole
    ]


@pytest.mark.parametrize("filter", ["api == Fetch", "api == Produce or api == Metadata", "latency > 1ms"])
def test_messages_of_a_filtered_dataset_are_found(filter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_exchanges, "_MESSAGES", 3)
    name = "group-kip848-librdkafka-4.3"
    chosen = inputs.read(files_of(name), filter=filter)
    read_back = stored_exchanges.from_dataset(stored(name, tmp_path / "data", filter=filter))

    def contents(sessions: Any) -> list[Any]:
        return [
            (request.connection, request.exchange, request.data, request.answer)
            for each in sessions
            for request in each.requests
        ]

    assert contents(read_back) == contents(chosen)
    assert any(content[2] for content in contents(read_back))


def test_no_message_is_held_once_its_exchange_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_exchanges, "_MESSAGES", 5)
    held: list[int] = []
    take = stored_exchanges._Messages.take

    def watched(messages: Any, place: Any) -> bytes | None:
        held.append(len(messages._held))
        return take(messages, place)

    monkeypatch.setattr(stored_exchanges._Messages, "take", watched)
    count = sum(1 for _ in stored_exchanges.read_exchanges(stored("codecs-franzgo-4.3", tmp_path / "data")))
    assert count > 70
    assert max(held) < 20


def test_a_message_that_is_missing_is_missing_and_no_other(tmp_path: Path) -> None:
    data = stored("codecs-franzgo-4.3", tmp_path / "data")
    before = {
        (exchange.row["connection"], exchange.row["exchange"]): exchange
        for exchange in stored_exchanges.read_exchanges(data)
    }
    (file,) = [path for path in (data / "messages").iterdir() if path.suffix == ".parquet"]
    table = pq.read_table(file)
    gone = next(place for place, row in enumerate(table.to_pylist()) if row["exchange"] == 3)
    lost = table["connection"][gone].as_py(), 3

    class Lacking:
        def scanner(self, **how: Any) -> Any:
            rows = table.take([place for place in range(len(table)) if place != gone])
            return type("Scanner", (), {"to_batches": lambda self: rows.select(how["columns"]).to_batches(5)})()

    messages = stored_exchanges._Messages(Lacking())
    for key, exchange in before.items():
        data_ = messages.take((exchange.row["capture"], key[0], "request", key[1]))
        assert data_ == (None if key == lost else exchange.data)


def test_a_dataset_names_topics_also_where_it_has_not_kept_the_answers_that_do(tmp_path: Path) -> None:
    capture = str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")
    analyzer.analyze(capture, out=tmp_path / "all", keep_bytes=True)
    analyzer.analyze(capture, out=tmp_path / "fetches", keep_bytes=True, filter="api == Fetch")

    some, less = (stored_exchanges.from_dataset(tmp_path / name) for name in ("all", "fetches"))

    assert {request.row["api"] for session in less for request in session.requests} == {"Fetch"}
    assert set(less[0].topic_ids.values()) == {f"franz-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    assert less[0].topic_ids == some[0].topic_ids


def test_a_dataset_without_messages_says_what_keeps_them(tmp_path: Path) -> None:
    analyzer.analyze(files_of("codecs-franzgo-4.3"), out=tmp_path / "data")
    with pytest.raises(DatasetError, match="has no messages to send") as refused:
        stored_exchanges.from_dataset(tmp_path / "data")
    assert "--keep-bytes" in refused.value.hint
