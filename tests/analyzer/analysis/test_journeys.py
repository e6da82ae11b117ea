"""Journeys of batches: real captures against the batches that their answers held one by one, and forged conversations.

(proves: analyzer/analysis/journeys.py, journey_matching.py, journey_rows.py, journey_columns.py)
"""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.analyzer.analysis.journeys import Journeys
from kwire.analyzer.pipeline import analysis_tables
from tests.analyzer import forging
from tests.analyzer.analysis.read_modes import every_way, rows
from tests.analyzer.analysis.test_offsets import committing
from tests.bench import messages
from tests.captures.forge import START_NS, Write, converse, interleaved
from tests.shared import SAMPLES, capture_files, real_folder

SECOND = 10**9
MODERN = ["txn-librdkafka-4.3", "group-kip848-librdkafka-4.3", "codecs-franzgo-4.3", "client-kafkajs-3.9"]

Row = dict[str, Any]


def slowly(tables: dict[str, pa.Table]) -> dict[tuple[Any, ...], tuple[Any, int]]:
    """(first answer with it, answers with its end) by Produce exchange, partition, base offset and reader.

    Reference implementation: each produced batch against each batch of each Fetch answer, by the offsets of both.
    """
    names = {row["topic_id"]: row["topic"] for row in tables["topic_ids"].to_pylist()}
    exchanges = {key(row): row for row in tables["exchanges"].to_pylist()}
    groups = {(row["client_id"], row["client_ip"]): row["group_ids"] or [] for row in tables["clients"].to_pylist()}

    def place(row: Row) -> tuple[str, int]:
        return str(row["topic"] or names.get(row["topic_id"], row["topic_id"])), row["partition"]

    fetch_offset = {(*key(row), *place(row)): row["offset"] for row in tables["partitions"].to_pylist()}
    held = defaultdict(list)
    for row in tables["batches"].to_pylist():
        exchange = exchanges[key(row)]
        if exchange["api"] == "Fetch" and not row["is_control"] and not row["partial"]:
            held[place(row)].append((row, exchange, fetch_offset.get((*key(row), *place(row)))))
    journeys: dict[tuple[Any, ...], tuple[Any, int]] = {}
    for row in tables["partitions"].to_pylist():
        exchange = exchanges[key(row)]
        if exchange["api"] != "Produce" or row["error_code"] != 0 or not row["record_count"] or row["offset"] is None:
            continue
        base, last = row["offset"], row["offset"] + row["record_count"] - 1
        answers: dict[Any, dict[tuple[Any, ...], bool]] = defaultdict(dict)
        for batch, fetch, offset in held[place(row)]:
            end = batch["base_offset"] + batch["record_count"] - 1
            if batch["base_offset"] <= last and end >= base and (offset is None or last >= offset):
                group = groups.get((fetch["client_id"], fetch["client_ip"]), [])
                reader = group[0] if len(group) == 1 else fetch["client_id"]
                answer = fetch["response_end"], *key(fetch)
                answers[reader][answer] = answers[reader].get(answer, False) or end >= last
        for reader, those in answers.items():
            times = min(answer[0] for answer in those), sum(those.values())
            journeys[(*key(row), *place(row), base, reader)] = times
    return journeys


def key(row: Row) -> tuple[Any, ...]:
    return row["connection"], row["exchange"], row["reply"]


@pytest.mark.parametrize("name", MODERN)
def test_journeys_are_what_each_batch_of_each_answer_says(name: str) -> None:
    [path] = capture_files(SAMPLES / name)
    tables = analyzer.analyze(path).tables
    produced = tables["journeys"].to_pylist()
    actual = {
        (
            *key(row["produced"]),
            row["topic"],
            row["partition"],
            row["base_offset"],
            row["group_id"] or row["reader_client"],
        ): (row["fetched"], row["fetches"])
        for row in produced
        if row["kind"] is not None
    }
    assert actual == slowly(tables)
    assert len(actual) > 10
    exchanges = {key(row): row for row in tables["exchanges"].to_pylist()}
    for row in produced:
        exchange = exchanges[key(row["produced"])]
        expected = exchange["request_time"], exchange["request_end"], exchange["response_end"], exchange["client_id"]
        assert (row["sent"], row["received"], row["acked"], row["producer_client"]) == expected
        assert (row["reason"] == "not read") == (row["kind"] is None)
        assert row["topic"]
        assert row["topic_id"] is None or len(row["topic_id"]) == 22


@pytest.mark.parametrize("name", MODERN)
def test_what_a_client_stamped_comes_before_what_was_captured(name: str) -> None:
    """Both clocks are of one machine; clients stamp whole milliseconds."""
    [path] = capture_files(SAMPLES / name)
    for row in analyzer.analyze(path).tables["journeys"].to_pylist():
        steps = [row[step] for step in ("created", "sent", "received", "acked")]
        assert steps == sorted(steps)
        assert row["fetched"] is None or row["fetched"] >= row["received"]
        assert row["committed"] is None or row["committed"] >= row["fetched"]


@pytest.mark.parametrize("name", MODERN)
def test_headers_are_enough_and_ways_to_read_change_nothing(name: str, tmp_path: Path) -> None:
    [path] = capture_files(SAMPLES / name)
    whole = rows(analyzer.analyze(path).tables, ("journeys",))
    assert rows(analyzer.analyze(path, records="none").tables, ("journeys",)) == whole
    for how, other in every_way(path, ("journeys",), tmp_path):
        assert other == whole, how
    assert analyzer.analyze(path, journeys=False).tables["journeys"].num_rows == 0


def test_created_is_the_first_timestamp_of_the_batch_as_produced() -> None:
    [path] = capture_files(SAMPLES / "codecs-franzgo-4.3")
    tables = analyzer.analyze(path).tables
    stamped = {
        (*key(row), row["partition"]): row["first_timestamp"]
        for row in tables["batches"].to_pylist()
        if row["side"] == "produce"
    }
    produced = tables["journeys"].to_pylist()
    assert produced
    for row in produced:
        assert row["created"] == stamped[(*key(row["produced"]), row["partition"])]


def test_batches_of_the_older_formats_whose_number_of_records_is_compressed() -> None:
    [path] = capture_files(SAMPLES / "old-java-0.8.2")
    produced = analyzer.analyze(path).tables["journeys"].to_pylist()
    read = [row for row in produced if row["kind"] is not None]
    compressed = [row for row in read if row["topic"] != "old-none"]
    assert len(compressed) > 10
    assert {(row["records"], row["last_offset"]) for row in compressed} == {(None, None)}
    assert all(row["last_offset"] == row["base_offset"] + row["records"] - 1 for row in read if row not in compressed)
    assert {row["reason"] for row in produced if row["base_offset"] is None} == {"no acknowledgement"}
    assert all(row["fetched"] >= row["received"] for row in read)


def test_transactions_have_their_outcome() -> None:
    [path] = capture_files(SAMPLES / "txn-librdkafka-4.3")
    tables = analyzer.analyze(path).tables
    outcomes = defaultdict(set)
    for row in tables["transactions"].to_pylist():
        outcomes[row["outcome"]].add((row["began"], row["ended"]))
    seen = set()
    for row in tables["journeys"].to_pylist():
        if row["outcome"] is not None:
            seen.add(row["outcome"])
            assert any(began <= row["sent"] <= ended for began, ended in outcomes[row["outcome"]])
    assert seen == {"committed", "aborted"}


# --- forged -----------------------------------------------------------------------------------------------------------


def batch(count: int, base: int = 0) -> bytes:
    return base.to_bytes(8, "big") + messages.batch([messages.record(i, b"k", b"v") for i in range(count)])[8:]


def producing(number: int, base: int, count: int, at: int, client: str = "p") -> list[Write]:
    return [
        forging.asking(messages.produce_request(number, client, "orders", 0, batch(count)), START_NS + at),
        forging.answering(messages.produce_response(number, "orders", 0, base), START_NS + at + 1000),
    ]


def fetching(number: int, offset: int, records: bytes, at: int, client: str = "c") -> list[Write]:
    return [
        forging.asking(messages.fetch_request(number, client, "orders", 0, offset), START_NS + at),
        forging.answering(messages.fetch_response(number, "orders", 0, 900, records), START_NS + at + 1000),
    ]


def journeys(folder: Path, *conversations: list[list[Write]], **options: Any) -> list[Row]:
    """Rows of journeys, of a conversation a connection."""
    packets = [
        converse([write for part in parts for write in part], client=("10.0.0.1", 40_000 + number), acks=False)
        for number, parts in enumerate(conversations)
    ]
    forging.read(folder, interleaved(*packets))
    rows: list[Row] = analyzer.analyze(folder / "capture.pcap", **options).tables["journeys"].to_pylist()
    return rows


def places(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["base_offset"], row["reader_client"], row["fetches"], row["reason"]) for row in rows]


def test_an_answer_begins_inside_a_batch_and_brings_batches_that_were_put_together(tmp_path: Path) -> None:
    produced = [producing(1, 10, 3, SECOND), producing(2, 13, 2, 2 * SECOND)]
    fetched = [fetching(1, 11, batch(5, 10), 3 * SECOND)]
    rows = journeys(tmp_path, produced, fetched)
    assert places(rows) == [(10, "c", 1, None), (13, "c", 1, None)]
    assert [(row["last_offset"], row["records"]) for row in rows] == [(12, 3), (14, 2)]
    assert {row["fetched"] for row in rows} == {rows[0]["fetched"]}


def test_a_batch_read_again_was_delivered_twice_and_one_read_in_two_answers_once(tmp_path: Path) -> None:
    produced = [producing(1, 10, 4, SECOND)]
    again = [fetching(number, 10, batch(4, 10), number * 2 * SECOND) for number in (1, 2)]
    assert places(journeys(tmp_path, produced, again)) == [(10, "c", 2, None)]
    halves = [fetching(1, 10, batch(2, 10), 2 * SECOND), fetching(2, 12, batch(2, 12), 3 * SECOND)]
    assert places(journeys(tmp_path, produced, halves)) == [(10, "c", 1, None)]


def test_nobody_read_it_and_who_read_elsewhere_did_not(tmp_path: Path) -> None:
    produced = [producing(1, 10, 2, SECOND), producing(2, 12, 2, 2 * SECOND)]
    fetched = [fetching(1, 12, batch(2, 12), 3 * SECOND)]
    assert places(journeys(tmp_path, produced, fetched)) == [(10, None, None, "not read"), (12, "c", 1, None)]


def test_a_reader_that_went_on_behind_it_without_an_answer_is_not_said_not_to_have_read_it(tmp_path: Path) -> None:
    produced = [producing(1, 10, 2, SECOND)]
    fetched = [fetching(1, 10, b"", 2 * SECOND), fetching(2, 12, b"", 3 * SECOND)]
    assert places(journeys(tmp_path, produced, fetched)) == [(10, None, None, "reader not captured")]


def test_an_answer_from_before_the_batch_came_does_not_hold_it(tmp_path: Path) -> None:
    """As of a log that was cut off, or a topic that was made anew."""
    produced = [producing(1, 10, 2, SECOND), producing(2, 10, 2, 3 * SECOND)]
    fetched = [fetching(1, 10, batch(2, 10), 2 * SECOND), fetching(2, 10, batch(2, 10), 4 * SECOND)]
    rows = journeys(tmp_path, produced, fetched)
    assert places(rows) == [(10, "c", 1, None), (10, "c", 1, None)]
    assert rows[0]["fetched"] < rows[1]["sent"] < rows[1]["fetched"]


def test_batches_that_compaction_took_were_not_read(tmp_path: Path) -> None:
    produced = [producing(number, 10 + number, 1, number * SECOND) for number in (1, 2, 3)]
    fetched = [fetching(1, 11, batch(1, 11) + batch(1, 13), 5 * SECOND)]
    expected = [(11, "c", 1, None), (12, None, None, "not read"), (13, "c", 1, None)]
    assert places(journeys(tmp_path, produced, fetched)) == expected
    # Without its batches nobody can tell which the answer held.
    unsure = journeys(tmp_path, produced, fetched, records="none")
    assert places(unsure) == [(offset, "c", None, "absent offsets") for offset in (11, 12, 13)]
    assert {row["fetched"] for row in unsure} == {None}


def test_batches_that_compaction_took_were_not_read_by_a_reader_that_went_on(tmp_path: Path) -> None:
    produced = [producing(number, 9 + number, 1, number * SECOND) for number in (1, 2, 3, 4, 5)]
    answers = batch(1, 11) + batch(1, 13)
    fetched = [fetching(1, 10, answers, 6 * SECOND), fetching(2, 14, b"", 7 * SECOND), fetching(3, 15, b"", 8 * SECOND)]
    expected = [
        (10, None, None, "not read"),  # before the first batch of an answer
        (11, "c", 1, None),
        (12, None, None, "not read"),  # between its batches
        (13, "c", 1, None),
        (14, None, None, "reader not captured"),
    ]
    assert places(journeys(tmp_path, produced, fetched)) == expected
    # Another answer there lacked the offset; the reader went back, and on again.
    again = [*fetched, fetching(4, 9, batch(1, 13), 9 * SECOND), fetching(5, 14, b"", 10 * SECOND)]
    expected[3] = (13, "c", 2, None)
    assert places(journeys(tmp_path, produced, again)) == expected
    # Who says nothing of the first batches has not found them gone.
    late = [fetching(1, 10, b"", 6 * SECOND), fetching(2, 12, batch(1, 13), 7 * SECOND)]
    reasons = [row["reason"] for row in journeys(tmp_path, produced, late)]
    assert reasons == ["reader not captured", "reader not captured", "not read", None, "not read"]


def test_no_acknowledgement_no_answer_and_an_error(tmp_path: Path) -> None:
    silent = [[forging.asking(forging.produce(1, version=7, acks=0, records=batch(2)), START_NS + SECOND)]]
    unanswered = [[forging.asking(forging.produce(1, version=7, acks=1, records=batch(2)), START_NS + 2 * SECOND)]]
    refused = [
        [
            forging.asking(forging.produce(1, version=7, records=batch(2)), START_NS + 3 * SECOND),
            forging.answering(forging.produce_answer(1, version=7, error=7), START_NS + 4 * SECOND),
        ]
    ]
    rows = journeys(tmp_path, silent, unanswered, refused)
    assert sorted(row["reason"] for row in rows) == ["no acknowledgement", "unanswered"]
    assert {row["base_offset"] for row in rows} == {None}


def silent(count: int, at: int, key: bytes = b"k") -> list[Write]:
    records = messages.batch([messages.record(i, key, b"v") for i in range(count)])
    return [forging.asking(forging.produce(1, version=7, acks=0, records=records), START_NS + at)]


def stored(count: int, base: int, key: bytes = b"k") -> bytes:
    records = messages.batch([messages.record(i, key, b"v") for i in range(count)])
    return base.to_bytes(8, "big") + records[8:]


def test_a_batch_that_nobody_acknowledged_is_where_an_answer_held_it(tmp_path: Path) -> None:
    produced = [silent(2, SECOND, b"first"), silent(3, 2 * SECOND, b"second"), silent(1, 3 * SECOND, b"lost")]
    fetched = [fetching(1, 10, stored(2, 10, b"first") + stored(3, 12, b"second"), 4 * SECOND)]
    rows = journeys(tmp_path, produced, fetched)
    assert places(rows) == [
        (10, "c", 1, "no acknowledgement"),
        (12, "c", 1, "no acknowledgement"),
        (None, None, None, "no acknowledgement"),
    ]
    assert [row["last_offset"] for row in rows] == [11, 14, None]
    assert {row["acked"] for row in rows} == {None}
    assert all(row["fetched"] > row["received"] for row in rows[:2])
    # Without the batches of an answer only its first is known.
    without = journeys(tmp_path, produced, fetched, records="none")
    assert [row["base_offset"] for row in without] == [10, None, None]


def test_equal_batches_without_acknowledgement_are_placed_in_order_or_not_at_all(tmp_path: Path) -> None:
    produced = [silent(1, SECOND), silent(1, 2 * SECOND)]
    both = [fetching(1, 10, stored(1, 10) + stored(1, 11), 4 * SECOND)]
    assert [row["base_offset"] for row in journeys(tmp_path, produced, both)] == [10, 11]
    only = [fetching(1, 10, stored(1, 10), 4 * SECOND)]
    assert [row["base_offset"] for row in journeys(tmp_path, produced, only)] == [None, None]
    early = [fetching(1, 10, stored(1, 10) + stored(1, 11), SECOND + SECOND // 2)]
    assert [row["base_offset"] for row in journeys(tmp_path, produced, early)] == [None, None]
    acknowledged = [producing(1, 10, 1, SECOND // 2)]
    rows = journeys(tmp_path, acknowledged, [silent(1, SECOND)], only)
    assert [(row["base_offset"], row["acked"] is None) for row in rows] == [(10, False), (None, True)]


@pytest.mark.parametrize("name", ["old-java-0.8.2", "zoo-kafka-go-0.4.51-on-4.3"])
def test_batches_without_acknowledgement_are_where_their_records_are(name: str) -> None:
    tables = analyzer.analyze(capture_files(real_folder(name)), records="full").tables
    produced, fetched = defaultdict(list), {}
    for row in tables["records"].to_pylist():
        content = row["key"], row["value"]
        if row["side"] == "produce":
            produced[(*key(row), row["partition"])].append(content)
        else:
            fetched[row["topic"], row["partition"], row["offset"]] = content
    placed = [
        row
        for row in tables["journeys"].to_pylist()
        if row["reason"] == "no acknowledgement" and row["base_offset"] is not None
    ]
    assert len(placed) > 5
    for row in placed:
        offsets = range(row["base_offset"], row["last_offset"] + 1)
        there = [fetched.get((row["topic"], row["partition"], offset)) for offset in offsets]
        assert there == produced[(*key(row["produced"]), row["partition"])]


def test_the_first_commit_behind_the_batch_since_it_was_fetched(tmp_path: Path) -> None:
    produced = [producing(1, 10, 2, SECOND), producing(2, 12, 2, 2 * SECOND)]
    fetched = [fetching(1, 10, batch(4, 10), 4 * SECOND, client=forging.CLIENT_ID)]
    commits = [
        committing(number, offset, START_NS + second * SECOND)
        for number, (offset, second) in enumerate([(900, 3), (11, 5), (12, 6), (10, 7), (14, 8)], 1)
    ]
    rows = journeys(tmp_path, produced, [*fetched, *commits])
    assert {row["group_id"] for row in rows} == {"g"}
    seconds = [round((row["committed"] - rows[0]["sent"]).total_seconds()) for row in rows]
    assert seconds == [6 - 1, 8 - 1]


def test_a_log_append_time_is_no_time_of_the_client(tmp_path: Path) -> None:
    stamped_by_log = bytearray(batch(1))
    struct.pack_into(">h", stamped_by_log, 21, 8)
    produced = [
        forging.asking(messages.produce_request(1, "p", "orders", 0, bytes(stamped_by_log)), START_NS + SECOND),
        forging.answering(messages.produce_response(1, "orders", 0, 10), START_NS + 2 * SECOND),
    ]
    [row] = journeys(tmp_path, [produced])
    assert row["created"] is None
    assert row["base_offset"] == 10


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODERN)
def test_each_batch_becomes_a_row_once_however_little_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = capture_files(SAMPLES / name)
    whole = analyzer.analyze(path).tables["journeys"].to_pylist()
    monkeypatch.setattr(analysis_tables, "MOST_HELD_BYTES", 0)
    monkeypatch.setattr(analysis_tables, "give_back", lambda: None)
    early = analyzer.analyze(path, window_bytes=10_000).tables["journeys"].to_pylist()
    known = {repr(sorted(row.items())) for row in whole}
    assert {repr(row["produced"]) for row in early} == {repr(row["produced"]) for row in whole}
    same = [row for row in early if repr(sorted(row.items())) in known]
    assert len(same) > 0.9 * len(whole)  # but for what came so late that the batch was given up
    by_journey = {
        (repr(row["produced"]), row["partition"], row["kind"], row["group_id"] or row["reader_client"]) for row in early
    }
    assert len(by_journey) == len(early)


def test_a_collector_with_nothing_has_no_rows() -> None:
    [(name, table)] = Journeys().tables("capture")
    assert (name, table.num_rows) == ("journeys", 0)
    assert Journeys().held_bytes >= 0
