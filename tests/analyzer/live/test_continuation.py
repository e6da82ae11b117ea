"""Compare the analysis of rotated datasets, together, with that of one pass: each row occurs once.

(proves: analyzer/live/continuation.py, `onward` of analyzer/analysis/clients.py, groups.py, offsets.py,
replicated_offsets.py, sessions.py, transactions.py, delivery_times.py; analyzer/analysis/rebalances.py: what is over)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.analyzer.analysis import delivery_times, groups, offsets, rebalances, transactions
from kwire.analyzer.analysis.combinations import last_of_each
from kwire.analyzer.analysis.control_exchanges import NEVER, Border
from kwire.analyzer.analysis.producers import ProducerEvent
from kwire.analyzer.analysis.transaction_log import TransactionMessage
from kwire.analyzer.cli import parser
from kwire.analyzer.dataset.dataset import Dataset, StoredDataset
from kwire.analyzer.live import analyze
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.files.write import Record, pcap
from tests.captures import forge
from tests.captures.live.scripted import ScriptedTap, chunks_of
from tests.shared import SAMPLES

FILED = {"capture", "request_file", "response_file", "request_offset", "response_offset"}
TXN, SASL = "txn-librdkafka-4.3/capture.pcap", "sasl-librdkafka-4.3/capture.pcap"
KIP848, KAFKAJS = "group-kip848-librdkafka-4.3/capture.pcap.gz", "client-kafkajs-3.9/capture.pcap"
WHOLE = ("groups", "rebalances", "transactions", "offsets")
"""Tables whose rows are each in one dataset only."""

Row = dict[str, Any]


def rows(table: pa.Table) -> list[Row]:
    listed: list[Row] = table.drop_columns([name for name in table.column_names if name in FILED]).to_pylist()
    return listed


def records_of(sample: str) -> tuple[int, list[Record]]:
    link, records = forge.loaded(SAMPLES / sample)
    return link, list(records)


def in_stretches(link: int, records: list[Record], count: int, folder: Path) -> list[StoredDataset]:
    """Analyze packets as a live capture that rotates into about `count` datasets."""
    size = sum(16 + len(record.data) for record in records)
    tap = ScriptedTap(chunks_of(records, max(1, len(records) // (20 * count))))
    tap.header = pcap([], link, nanoseconds=True)
    arguments = ["analyze", "-i", "any", "--rotate-bytes", str(size // count), "-o", str(folder / "row")]
    assert analyze.analyze(parser.parse(arguments)[1], tap) == 0
    return [analyzer.open_dataset(path) for path in sorted((folder / "row").iterdir())]


def in_one_pass(link: int, records: list[Record], folder: Path) -> Dataset:
    (folder / "a.pcap").write_bytes(pcap(records, link, nanoseconds=True))
    return analyzer.analyze(folder / "a.pcap")


def together(datasets: list[StoredDataset], name: str) -> list[Row]:
    return [row for data in datasets for row in rows(getattr(data, name).to_table())]


@pytest.mark.parametrize(("sample", "count"), [(TXN, 2), (TXN, 12), (KIP848, 5), (KAFKAJS, 6)])
def test_stretches_together_say_what_one_pass_says(sample: str, count: int, tmp_path: Path) -> None:
    link, records = records_of(sample)
    datasets, expected = in_stretches(link, records, count, tmp_path), in_one_pass(link, records, tmp_path)
    assert len(datasets) >= count
    for name in WHOLE:
        assert Counter(map(str, together(datasets, name))) == Counter(map(str, rows(expected.tables[name]))), name
    assert readers(together(datasets, "readers")) == readers(rows(expected.tables["readers"]))
    assert clients(together(datasets, "clients")) == clients(rows(expected.tables["clients"]))
    assert expected.tables["clients"].num_rows


def readers(reader_rows: list[Row]) -> dict[tuple[object, ...], list[object]]:
    """Sum up the rows of each reader: records, bytes, and the range of times and offsets."""
    of: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in reader_rows:
        key = ("connection", "session_id", "client_id", "group_id", "topic", "topic_id", "partition", "isolation_level")
        of[tuple(row[name] for name in key)].append(row)
    return {
        key: [
            sum(row["records"] for row in its),
            sum(row["record_bytes"] for row in its),
            min(row["from_time"] for row in its),
            max(row["to_time"] for row in its),
            min(row["first_offset"] for row in its),
            max(row["last_offset"] for row in its),
        ]
        for key, its in of.items()
    }


def clients(client_rows: list[Row]) -> dict[tuple[object, ...], list[object]]:
    """Sum up the rows of each client, with all groups, topics, software and principals they name."""
    of: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in client_rows:
        of[row["client_id"], row["client_ip"]].append(row)
    return {
        key: [
            sum(row["exchanges"] for row in its),
            sum(row["errors"] for row in its),
            min(row["first_time"] for row in its),
            max(row["last_time"] for row in its),
            *(sorted({value for row in its for value in row[name]}) for name in ("group_ids", "topics_written")),
            {row[name] for row in its for name in ("software_name", "principal")} - {None},
        ]
        for key, its in of.items()
    }


def test_who_goes_on_reading_is_a_row_of_each_stretch(tmp_path: Path) -> None:
    """Each row begins where the one before ended, and names the group."""
    link, records = records_of(KIP848)
    datasets = in_stretches(link, records, 5, tmp_path)
    at: dict[tuple[object, ...], Row] = {}
    went_on = 0
    for row in together(datasets, "readers"):
        key = row["connection"], row["session_id"], row["topic_id"], row["partition"]
        assert row["group_id"] == "grp-1"
        assert row["start_seen"] == (key not in at)
        if key in at:
            went_on += 1
            assert (row["from_time"], row["first_offset"]) == (at[key]["to_time"], at[key]["last_offset"])
        at[key] = row
    assert went_on


def test_a_login_of_an_earlier_stretch_is_known(tmp_path: Path) -> None:
    link, records = records_of(SASL)
    records = records[: len(records) // 3]
    datasets, expected = in_stretches(link, records, 12, tmp_path), in_one_pass(link, records, tmp_path)
    names = {(row["client_id"], row["client_ip"]): row["principal"] for row in rows(expected.tables["clients"])}
    assert set(names.values()) - {None}
    known: set[object] = set()
    after = 0
    for data in datasets:
        for row in rows(data.clients.to_table()):
            key = row["client_id"], row["client_ip"]
            if row["principal"] is None and key in known:
                # only connections that had not logged in yet, or in vain, were used
                assert {api["api"] for api in row["apis"]} <= {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
            if row["principal"] is not None:
                assert row["principal"] == names[key]
                after += not any(api["api"] == "SaslAuthenticate" for api in row["apis"])
                known.add(key)
    assert after


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With almost no memory each event is still reported, once; what was open is reported unfinished."""
    for module, name in (
        (transactions, "MOST_WAITING"),
        (offsets, "MOST_KEPT"),
        (groups, "MOST_EVENTS"),
        (groups, "MOST_CONTACTS"),
    ):
        monkeypatch.setattr(module, name, 1)
    link, records = records_of(TXN)
    datasets, expected = in_stretches(link, records, 12, tmp_path), in_one_pass(link, records, tmp_path)
    events = [{**row, "protocol": None} for row in rows(expected.tables["groups"])]
    changes = [{**row, "protocol": None} for row in together(datasets, "groups")]
    assert Counter(map(str, changes)) == Counter(map(str, events))
    commits = [row for row in together(datasets, "offsets") if row["kind"] != "reset"]
    assert len(commits) == sum(row["kind"] != "reset" for row in rows(expected.tables["offsets"]))


def test_producers_beyond_the_bound_are_told_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOST_PRODUCERS", 1)
    link, records = records_of(TXN)
    datasets, expected = in_stretches(link, records, 12, tmp_path), in_one_pass(link, records, tmp_path)
    listed = together(datasets, "transactions")
    assert {row["transactional_id"] for row in listed} == {
        row["transactional_id"] for row in rows(expected.tables["transactions"])
    }
    assert len(listed) >= len(expected.tables["transactions"])


def test_a_rebalance_is_told_when_nothing_more_is_expected_of_it() -> None:
    turn = rebalances._Generation(7, "classic", until_ns=10, ended_ns=20, stops={"m": (5, 30)})
    over, given_up = rebalances.OVER_NS, rebalances.GIVEN_UP_NS
    assert [rebalances._is_over(turn, None, now) for now in (30 + over, 31 + over)] == [False, True]
    following = rebalances._Generation(8, "classic", until_ns=40)
    assert [rebalances._is_over(turn, following, now) for now in (40 + over, 41 + over)] == [False, True]
    turn.ended_ns, turn.stops = None, {}
    assert rebalances._is_over(turn, following, 41 + over)
    assert [rebalances._is_over(turn, None, now) for now in (10 + given_up, 11 + given_up)] == [False, True]
    turn.number = None  # no generation yet
    assert not rebalances._is_over(turn, None, 11 + given_up)


def test_fetches_of_long_ago_are_forgotten_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    of = delivery_times.DeliveryTimes()
    of._numbers = {("a", "ip", "t", 0): 0, ("b", "ip", "t", 0): 1, ("c", "ip", "t", 0): 2, ("d", "ip", "t", 0): 3}
    times = [(0, 1), (0, 50), (0, 90), (1, 2), (1, 3), (2, 95), (3, 4)]
    second = 10**9
    of._add(np.array([[who, at * second // delivery_times.BIN_NS, at * second, at * second] for who, at in times]).T)
    after = of.onward(60 * second)
    remembered = {key[0]: (after._bins[2, after._bins[0] == n] // second).tolist() for key, n in after._numbers.items()}
    assert remembered == {"a": [90], "b": [3], "c": [95], "d": [4]}
    monkeypatch.setattr(delivery_times, "MAX_QUIET", 1)
    assert {key[0] for key in of.onward(60 * second)._numbers} == {"a", "c", "d"}


def test_the_last_of_each_combination() -> None:
    which = np.array([True, True, False, True])
    assert last_of_each(which, np.array([7, 7, 7, 8]), np.array([1, 1, 1, 1])).tolist() == [False, True, False, True]
    assert last_of_each(np.zeros(0, bool), np.zeros(0, np.int64)).tolist() == []


def marker(ordinal: int, partition: int, done_us: int) -> transactions._Marker:
    """Make a marker: a coordinator tells a leader that a transaction of producer 7 was committed."""
    event = ProducerEvent(
        (ordinal + 1, 0), (ordinal, 0), ("c", ordinal, ordinal), None, "ip", done_us - 1, done_us, 0, 7, 0
    )
    return transactions._Marker(event, True, (("t", partition),))


def transactions_of(collector: transactions.Transactions) -> list[Row]:
    (table,) = (table for _, table in collector.tables("a", str))
    listed: list[Row] = table.to_pylist()
    return listed


def test_markers_to_several_leaders_are_one_transaction_over_a_border() -> None:
    """One leader had not answered at the border; had both, the transaction would be reported before it."""
    first = transactions.Transactions(_markers=[marker(98, 0, 1000), marker(100, 1, 2000)])
    after = first.onward(Border(str, 100))
    assert transactions_of(first) == []
    (row,) = transactions_of(after)
    assert [partition["partition"] for partition in row["partitions"]] == [0, 1]
    first = transactions.Transactions(_markers=[marker(98, 0, 1000), marker(100, 1, 2000)])
    after = first.onward(Border(str, NEVER))
    assert len(transactions_of(first)) == 1
    assert transactions_of(after) == []


def test_a_marker_waits_for_what_its_producer_may_still_say() -> None:
    """Its EndTxn was not heard: the marker says how the transaction ended, once nothing follows."""
    wrote = ProducerEvent((10, 0), (9, 0), ("p", 0, 0), "me", "ip", 500, 600, 0, 7, 0)
    first = transactions.Transactions(_markers=[marker(98, 0, 1000)])
    first._messages.append(TransactionMessage(apis.ADD_PARTITIONS_TO_TXN, "tx", wrote, (("t", 0),)))
    after = first.onward(Border(str, NEVER))
    assert transactions_of(first) == []
    (row,) = transactions_of(after)
    assert (row["transactional_id"], row["outcome"], row["producer_id"]) == ("tx", "committed", 7)
    assert row["duration_us"] == 500
