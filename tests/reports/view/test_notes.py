"""Marks, notes, colour rules, and the lists of other tables.

Proves: reports/view/notes, others, naming
"""

from __future__ import annotations

import contextlib
import datetime
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.reports.view.answers import store_notes
from kwire.reports.view.notes import Notes
from kwire.reports.view.tables import BadRequestError
from tests.reports.forging import Forged
from tests.reports.view.conftest import TXN, Asking, viewed


def keep(asking: Asking, marks: dict[str, str], rules: list[str]) -> Any:
    answer = store_notes(asking.view, json.dumps({"marks": marks, "rules": rules}).encode())
    return answer.status, json.loads(answer.content)


def test_marks_and_rules_stay_for_the_next_look_and_the_dataset_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("kwire.reports.view.open_view.cache_root", lambda: tmp_path / "cache")
    forged = Forged(tmp_path / "dataset")
    for number in range(6):
        error = "NOT_COORDINATOR" if number == 3 else None
        forged.exchange(("Fetch", "Produce")[number % 2], second=number, error=error)
    place = forged.write()
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, place, cache=True))
        assert asking("notes") == {"marks": {}, "rules": []}
        keys = asking("rows")["keys"]
        status, content = keep(asking, {keys[4]: "odd", keys[1]: ""}, ["error is not null", "api == Produce"])
        assert (status, content["marks"][keys[4]]) == (200, "odd")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, place, cache=True))
        assert asking("notes") == content
        assert asking("rows")["rule"] == [None, 1, None, 0, None, 1]  # the first that chooses it
        assert [mark["key"] for mark in asking("marked")["marked"]] == [keys[1], keys[4]]
        assert [mark["row"] for mark in asking("marked", filter="api == Fetch")["marked"]] == [2]
        assert [mark["row"] for mark in asking("marked", sort="-request_time")["marked"]] == [1, 4]
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    (file,) = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"[]")
    with pytest.raises(BadRequestError, match=r"not marks and rules"), contextlib.ExitStack() as stack:
        viewed(stack, place, cache=True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"marks": {}, "rules": [1]}',
        b'{"marks": {"no key": ""}, "rules": []}',
        b'{"marks": {}, "rules": [], "more": 1}',
        b'{"marks": [], "rules": []}',
        b"[" * 100_000,
        b" " * (1 << 21),
        json.dumps({"marks": {}, "rules": ["api == Fetch"] * 9}).encode(),
    ],
)
def test_what_are_no_notes_is_refused(content: bytes) -> None:
    with pytest.raises(BadRequestError):
        Notes().store(content)


def test_a_rule_that_is_wrong_or_needs_messages_colours_nothing(txn: Asking) -> None:
    try:
        keep(txn, {}, ["no such name == 1", "request.timeoutMs > 1", "api == Produce"])
        answer = txn("rows", count=1000, columns="api")
        assert answer["rule"] == [2 if api == "Produce" else None for api in answer["columns"]["api"]]
    finally:
        keep(txn, {}, [])


def test_notes_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadRequestError, match="cannot be stored"):
        Notes(tmp_path / "file" / "notes.json").store(b'{"marks": {}, "rules": []}')


@pytest.mark.parametrize("name", ["connections", "clients", "groups", "transactions", "rebalances", "journeys"])
def test_other_tables_have_their_rows_and_filters_that_hold(txn: Asking, name: str) -> None:
    rows = getattr(analyzer.analyze(TXN), name).to_pylist()
    answer = txn("table", name=name, count=1000)
    assert answer["total"] == len(rows)
    for column in (
        column["name"] for column in answer["about"] if column["kind"] in ("text", "size") and answer["total"]
    ):
        values = [row[column] for row in rows]
        assert answer["columns"][column] == [str(v) if isinstance(v, int) and abs(v) > 2**53 else v for v in values]
    for text in answer["filters"]:
        assert txn("check", filter=text)["ok"], text
    if name == "connections":
        totals = [txn("rows", filter=text, count=0)["total"] for text in answer["filters"]]
        assert totals == answer["columns"]["requests"]
        requests = txn("table", name=name, sort="requests", start=1, count=3)["columns"]["requests"]
        assert requests == sorted(totals, reverse=True)[1:4]


def test_journeys_are_shown_with_how_long_they_took_and_lead_to_their_produce(txn: Asking) -> None:
    rows = analyzer.analyze(TXN).journeys.to_pylist()
    answer = txn("table", name="journeys", sort="total_us", count=1000)
    took = [(row["fetched"] - row["sent"]) // datetime.timedelta(microseconds=1) for row in rows if row["fetched"]]
    assert answer["columns"]["total_us"][: len(took)] == sorted(took, reverse=True)
    [exchange] = txn("rows", filter=answer["filters"][0], count=1)["columns"]["api"]
    assert exchange == "Produce"


def test_rows_of_several_captures_lead_to_the_exchanges_of_their_own(points: Asking) -> None:
    answer = points("table", name="connections", count=1000)
    assert len(set(answer["columns"]["connection"])) < answer["total"]  # both captures have them
    totals = [points("rows", filter=text, count=0)["total"] for text in answer["filters"]]
    assert totals == answer["columns"]["requests"]
    assert next(column for column in answer["about"] if column["name"] == "capture")["quiet"] is False


def test_a_column_is_shown_where_any_row_has_something_in_it(tmp_path: Path) -> None:
    """All rows count, not only those of the first window."""
    forged = Forged(tmp_path / "forged")
    for number in range(300):
        forged.exchange(
            "Fetch",
            exchange=number,
            second=number,
            connection=f"10.0.0.1:{1000 + number}-10.0.0.9:9092#1",
            request_file="first.pcap" if number < 200 else "second.pcap",
        )
        forged.add(
            "connections",
            connection=f"10.0.0.1:{1000 + number}-10.0.0.9:9092#1",
            retransmissions=7 if number == 250 else 0,
        )
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        quiet = {column["name"]: column["quiet"] for column in asking("table", name="connections", count=100)["about"]}
        assert (quiet["retransmissions"], quiet["zero_windows"], quiet["capture"]) == (False, True, True)
        quiet = {column["name"]: column["quiet"] for column in asking("table", name="frames", count=100)["about"]}
        assert quiet["file"] is False


def test_a_table_that_is_not_shown_is_refused(txn: Asking) -> None:
    assert "connections" in txn.refused("table", name="partitions")["hint"]
    assert "no column" in txn.refused("table", name="clients", sort="nothing")["message"]


def test_a_batch_is_followed_to_its_retry_on_another_connection(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    links = ["10.0.0.1:5000-10.0.0.9:9092#1", "10.0.0.1:5001-10.0.0.8:9092#1"]
    for number, (link, sequence) in enumerate([(0, 0), (0, 10), (1, 0), (1, 20)]):
        forged.exchange("Produce", second=number, connection=links[link])
        forged.add(
            "batches",
            connection=links[link],
            exchange=number,
            reply=number,
            topic="orders",
            partition=1,
            side="produce",
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        keys = asking("rows")["keys"]
        text = asking("batch", key=keys[0])["filter"]
        assert asking("rows", filter=text)["keys"] == [keys[0], keys[2]]
        assert asking("rows", filter=asking("batch", key=keys[3])["filter"])["keys"] == [keys[3]]
    with contextlib.ExitStack() as stack:
        bare = Forged(tmp_path / "bare")
        bare.exchange("Fetch")
        asking = Asking(viewed(stack, bare.write()))
        assert asking("batch", key=asking("rows")["keys"][0])["filter"] is None
