"""`kwire story`: what is told of captures whose course is known, of tables made by hand, and on a terminal.

(proves: analyzer/story)
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

from kwire import analyzer
from kwire.analyzer.cli.parser import main
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.frame import parquet as stored_tables
from kwire.analyzer.story import (
    clients,
    cluster,
    command,
    groups,
    offsets,
    overview,
    requests,
    sources,
    transactions,
)
from kwire.analyzer.story import (
    events as telling,
)
from kwire.analyzer.story.events import JSON_FIELDS, Event, StoryQuery, places, span
from kwire.analyzer.story.sources import Source
from tests.analyzer import forging
from tests.captures.forge import converse, loaded, pcap, segments_of, stepped
from tests.shared import SAMPLES, capture_files, sample_folders, shared_folder

TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
OLD = SAMPLES / "old-java-0.8.2" / "capture.pcap"
START = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)


def story_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines of events that `kwire story` prints, without their time."""
    assert main(["story", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [" ".join(line.split()[1:]) for line in lines if line[2:3] == ":" and line[5:6] == ":"]


# --- captures ---------------------------------------------------------------------------------------------------------


def test_a_transactional_id_from_its_first_owner_to_who_fenced_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        line
        for line in story_lines(capsys, str(TXN), "--transaction", "lab-tx-1")
        if "CONCURRENT_TRANSACTIONS" not in line
    ]
    assert lines == [
        "lab-tx took the transactional id lab-tx-1 [c1 #2]",
        "lab-tx committed a transaction of lab-tx-1: 20 records to tx-out partitions 0 to 2 after 52.9 ms [c1 #4]",
        "lab-tx aborted a transaction of lab-tx-1: 21 records to tx-out partitions 0 to 2 given up after 68.3 ms "
        "[c1 #8]",
        "lab-tx committed a transaction of lab-tx-1: 22 records to tx-out partitions 0 to 2 after 54.6 ms [c1 #11]",
        "lab-tx began a transaction of lab-tx-1",
        "lab-tx committed a transaction of lab-tx-1: 23 records to tx-out partitions 0 to 2 and 2 offsets of group "
        "tx-etl after 3.40 s [c1 #15]",
        "lab-tx aborted a transaction of lab-tx-1: 24 records to tx-out partitions 0 to 2 given up after 39.6 ms "
        "[c1 #18]",
        "lab-tx committed a transaction of lab-tx-1: 25 records to tx-out partitions 0 to 2 after 37.2 ms [c1 #21]",
        "lab-tx-fencer took the transactional id lab-tx-1 from lab-tx, which had it for 3.74 s and is fenced now "
        "[c2 #2]",
        "lab-tx was fenced out of lab-tx-1: lab-tx-fencer@127.0.0.1 has taken its id [c1 #22]",
        "lab-tx-fencer committed a transaction of lab-tx-1: 1 record to tx-out-0 after 6.7 ms [c2 #4]",
    ]


def test_a_simple_consumer_of_old(capsys: pytest.CaptureFixture[str]) -> None:
    lines = story_lines(capsys, str(OLD), "--client", "old-simple", "--topic", "old-none")
    assert lines == [
        "old-simple asked where to begin in old-none: old-none-0 at 90 [c1 #1]",
        "old-simple read old-none partitions 0 to 2: 360 records, 22.7 kB in 20.6 ms",
        "old-simple asked where to begin in old-none: old-none-1 at 150 [c1 #3]",
        "old-simple asked where to begin in old-none: old-none-2 at 120 [c1 #5]",
        "note offset-out-of-range old-simple (127.0.0.1) lost its place in old-none-0: asked 999,999, and was not seen "
        "to go on. [c1 #7]",
        "old-simple asked old-none-0 for offset 999,999, which the log does not have, and was not seen to go elsewhere "
        "[c1 #7]",
        "old-simple committed old-gzip-0 at 5, old-none-0 at 5, old-snappy-0 at 5 for group old-group-v0 to ZooKeeper "
        "(OffsetCommit v0) [c1 #8]",
        "old-simple asked for the committed offsets of old-none: old-none-0 at 5 [c1 #9]",
        "old-simple could not commit old-none-0 for group old-group-v1: COORDINATOR_NOT_AVAILABLE: there was no "
        "coordinator yet [c1 #10]",
        "old-simple was refused OffsetFetch of old-none: NOT_COORDINATOR (16), this broker is not the coordinator "
        "(any more, or yet); it did not succeed any more in this capture [c1 #11]",
        "old-simple made its last commit for group old-group-v0: old-gzip-0 at 5, old-none-0 at 5, old-snappy-0 at 5; "
        "3 commits in 63.5 ms [c2 #8]",
    ]


def test_a_leader_is_killed_and_its_producer_goes_on_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    capture = str(capture_files(shared_folder("cluster-kraft-3.9"))[0])
    lines = story_lines(capsys, capture, "--topic", "rep", "--client", "lab-producer")
    assert any(
        line.startswith("lab-producer was refused Produce of rep 9 times in 11.9 ms: NOT_LEADER_OR_FOLLOWER (6), ")
        and "; it succeeded 558.7 ms later at broker 1 (127.0.0.1:9092)" in line
        for line in lines
    )
    assert any(
        "cluster the leader of rep-0 moved from broker 3 to broker 1" in line for line in story_lines(capsys, capture)
    )


@pytest.mark.parametrize("capture", [TXN, OLD])
def test_the_ten_things_worth_knowing_first(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = story_lines(capsys, str(capture))
    assert len(lines) == 10
    whole = "\n".join(lines)
    if capture == TXN:
        assert "8 transactions of lab-tx-1: 5 committed, 2 aborted, 1 fenced; the longest took 3.40 s" in whole
        assert "lab-tx-1 from lab-tx, which had it for 3.74 s and is fenced now" in whole
    else:
        assert "asked old-none-0 for offset 999,999" in whole


def test_json_has_the_keys_of_the_contract_in_order_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyzer.analyze(TXN, tmp_path / "dataset")
    assert main(["story", str(tmp_path / "dataset"), "--json", "--group", "tx-etl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {tuple(row) for row in rows} == {JSON_FIELDS}
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert {row["group_id"] for row in rows} == {"tx-etl"}
    [commit] = [row for row in rows if row["kind"] == "commit"]
    exchanges = analyzer.open_dataset(tmp_path / "dataset").exchanges.to_table().to_pylist()
    [shown] = [
        row for row in exchanges if (row["connection"], row["exchange"]) == (commit["connection"], commit["exchange"])
    ]
    assert shown["api"] == "TxnOffsetCommit"
    assert main(["story", str(TXN), "--json", "--group", "tx-etl"]) == 0  # a capture tells the same
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


@pytest.mark.parametrize(
    ("option", "wrong", "meant"),
    [
        ("--group", "tx-elt", "tx-etl"),
        ("--client", "lab-txx", "lab-tx"),
        ("--topic", "tx-outs", "tx-out"),
        ("--transaction", "lab-tx1", "lab-tx-1"),
    ],
)
def test_a_wrong_name_is_asked_back(option: str, wrong: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["story", str(TXN), option, wrong])
    assert left.value.code == 2
    error_text = capsys.readouterr().err
    assert f"kwire: {option} {wrong}: no such {option.removeprefix('--')}" in error_text
    assert f"hint: did you mean {meant}?" in error_text


def test_without_meaning_it_says_what_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyzer.analyze(TXN, tmp_path / "dataset", meaning=False)
    assert main(["story", str(tmp_path / "dataset")]) == 0
    assert "note: capture.pcap: what its traffic means was not worked out" in capsys.readouterr().err


def test_what_others_write_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\u202eann"
    message = forging.heartbeat(1, client_id=evil)
    forging.read(tmp_path, converse([forging.asking(message), forging.answering(forging.heartbeat_answer(1, 25))]))
    for options in ((), ("--json",), ("--client", evil)):
        assert main(["story", str(tmp_path / "capture.pcap"), *options]) == 0
        output = capsys.readouterr().out
        assert "UNKNOWN_MEMBER_ID" in output
        assert all(line.isprintable() for line in output.splitlines())


_BELOW_ZERO = re.compile(r"(?<![\w.])-\d[\d.,]* (us|ms|s|min)\b")


def durations(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """All that are anywhere in a row, by column."""
    for key, element in value.items() if isinstance(value, dict) else ():
        yield from durations(element, key)
    for element in value if isinstance(value, list) else ():
        yield from durations(element, name)
    if name.endswith("_us") and value is not None:
        yield name, value


@pytest.mark.parametrize("how", ["a step back by 20 s", "a step back by 50 ms", "two clocks"])
@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_no_duration_is_below_zero(folder: Path, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In no column and no sentence, whatever the clocks did."""
    link, records = loaded(capture_files(folder)[0])
    if how == "two clocks":  # what brokers send is 50 ms too early
        brokers = {row["broker_port"] for row in analyzer.analyze(capture_files(folder)[0]).connections.to_pylist()}
        sent = zip(records, segments_of(records, link), strict=True)
        records = [
            replace(packet, time_ns=packet.time_ns - 50_000_000 * (its.source[1] in brokers)) for packet, its in sent
        ]
    else:
        records = stepped(records, len(records) // 2, -20 * 10**9 if "20 s" in how else -50_000_000)
    (tmp_path / "capture.pcap").write_bytes(pcap(records, link, nanoseconds=True))
    analyzer.analyze(tmp_path / "capture.pcap", tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    for name in ("exchanges", "connections", "rebalances", "transactions"):
        values = [pair for row in getattr(dataset, name).to_table().to_pylist() for pair in durations(row)]
        assert [pair for pair in values if pair[1] < 0] == [], name
    events = [event for source in command._sources(dataset) for teller in command._TELLERS for event in teller(source)]
    for row in dataset.connections.to_table(columns=["connection", "client_id"]).to_pylist():
        for source in command._sources(dataset):
            events += requests.dialogue(source, row["connection"])
            events += requests.lookups(source, row["client_id"]) if row["client_id"] else ()
    assert len(events) > 10
    assert main(["story", str(tmp_path / "out")]) == 0
    sentences = [event.text for event in events] + capsys.readouterr().out.splitlines()
    assert [sentence for sentence in sentences if _BELOW_ZERO.search(sentence)] == []


def test_what_times_contradict_is_said_without_how_long() -> None:
    assert (telling.later(at(1), at(3)), telling.later(at(3), at(1))) == ("2.00 s later", "later")
    assert (telling.within(at(1), at(3)), telling.within(at(3), at(1))) == (" in 2.00 s", "")
    changed = [
        {
            "connection": "c",
            "exchange": number,
            "reply": number,
            "client_id": name,
            "client_ip": "10.0.0.1",
            "request_time": at(number),
            "response_end": at(end),
            "transactional_id": "pay",
            "api": "InitProducerId",
        }
        for number, (name, end) in enumerate([("ann", 5), ("bob", 2)])
    ]
    assert [event.text for event in transactions._taken_over(source(exchanges=changed))] == [
        "took the transactional id pay",
        "took the transactional id pay from ann, which is fenced now",
    ]
    row = {"group_id": "g", "generation": 2, "began": at(5), "ended": at(4), "trigger": "unknown"}
    [event] = groups._rebalance(source(rebalances=[row]).rows("rebalances")[0], {})
    assert "took" not in event.text


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_a_few_rows_at_a_time_tell_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each offset that a client was told is told with the question that asked for it."""
    analyzer.analyze([str(path) for path in capture_files(folder)], tmp_path / "out", rotated=True)
    dataset = open_dataset(tmp_path / "out")
    links = dataset.connections.to_table(columns=["connection", "client_id"]).to_pylist()
    named = sorted({link["client_id"] for link in links if link["client_id"]})
    wanted = [StoryQuery(connection=link["connection"]) for link in links[:5]] + [
        StoryQuery(client=name) for name in named[:5]
    ]
    for query in wanted:
        whole = [command._events_of(source, query) for source in command._sources(dataset)]
        with monkeypatch.context() as patch:
            patch.setattr(sources, "_TOGETHER", 3)
            assert [command._events_of(source, query) for source in command._sources(dataset)] == whole
        if query.client is None:
            continue
        for event in (event for events in whole for event in events if " at " in event.text and event.kind == "asked"):
            condition = pc.field("offset_kind").isin(["listed", "committed"]) & (pc.field("exchange") == event.exchange)
            rows = dataset.partitions.to_table(
                filter=condition & (pc.field("connection") == event.connection)
            ).to_pylist()
            offsets_shown = [f"-{row['partition']} at {row['offset']:,}" for row in rows if row["offset"] >= 0]
            assert any(text in event.text for text in offsets_shown)


def test_a_connection_from_its_first_packet_to_its_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = story_lines(capsys, str(OLD), "--connection", "127.0.0.1:44496-127.0.0.1:9092#1")
    assert [line.split(" ", 1)[1] for line in lines] == [
        "connected to broker 1 (127.0.0.1:9092); round trip 14 us",
        "asked ListOffsets of old-gzip 3 times in 5.5 ms [c1 #0]",
        "began to read old-gzip partitions 0 to 2 at the start: it had no offset to go on from [c1 #0]",
        "asked Fetch of old-gzip 40 times in 4.04 s [c1 #3]",
        "had no answer to 1 request (Fetch): the connection was closed first [c1 #43]",
        "its connection to broker 1 (127.0.0.1:9092) was closed: 44 requests in 4.15 s",
    ]


def test_only_row_groups_that_hold_what_is_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.analyzer.dataset.parquet_files.ROW_GROUP_ROWS", 10)
    monkeypatch.setattr("kwire.analyzer.pipeline.point_tables.ENOUGH_ROWS", 20)
    analyzer.analyze(TXN, tmp_path / "data", window_bytes=4096)
    dataset = open_dataset(tmp_path / "data")
    stored, columns = dataset.exchanges, ("api", "request_time", "topics", "connection")
    for wanted in (pc.field("api") == "EndTxn", pc.field("api").isin(["Produce", "Fetch"]), pc.field("exchange") < 0):
        table = Source(dataset, dataset.captures[0]["name"]).table("exchanges", columns, wanted)
        expected = stored.to_table(columns=list(columns), filter=wanted)
        assert table.to_pylist() == expected.to_pylist()
        assert table.schema == expected.schema


# --- tables made by hand ----------------------------------------------------------------------------------------------


class MadeDataset:
    """A dataset of rows made by hand."""

    def __init__(self, **rows: list[dict[str, Any]]) -> None:
        self.captures = [{"name": "day", "meaning": True}]
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        if name not in tables.TABLES:
            raise AttributeError(name)
        empty = dict.fromkeys(column.name for column in tables.TABLES[name])
        rows = [{**empty, "capture": "day", **row} for row in self._rows.get(name, [])]
        return pyarrow.dataset.dataset(pa.Table.from_pylist(rows, tables.schema(name)))


def source(**rows: list[dict[str, Any]]) -> Source:
    dataset = MadeDataset(**rows)
    tables = Source(dataset, "day")  # type: ignore[arg-type]
    parts = {name: getattr(dataset, name).to_table() for name in ("batches", "exchanges", "partitions")}
    vars(tables)["_read"] = stored_tables.RowGroups(parts, dataset.captures)  # there are no files to read
    return tables


def at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def test_a_rebalance_says_why_and_what_it_cost() -> None:
    stored = source(
        groups=[
            {"time": at(0), "group_id": "g", "event": "join", "member_id": "m1", "client_id": "ann", "generation": 3},
            {"time": at(9), "group_id": "g", "event": "expired", "member_id": "m2", "client_id": "ben"},
        ],
        rebalances=[
            {
                "group_id": "g",
                "generation": 4,
                "began": at(9),
                "ended": at(12),
                "trigger": "expired",
                "trigger_member": "m2",
                "evidence": {"connection": "c", "exchange": 7, "reply": 7},
                "members_before": ["m1", "m2"],
                "members_after": ["m1"],
                "assignment_before": [{"member_id": "m2", "topic": "t", "partition": 1}],
                "assignment_after": [{"member_id": "m1", "topic": "t", "partition": 1}],
                "stopped": [{"member_id": "m1", "stopped_us": 3_100_000}],
            },
            {"group_id": "g", "generation": 5, "began": at(20), "trigger": "metadata"},
        ],
    )
    events = sorted(groups.events(stored), key=lambda event: event.time)
    assert [(event.kind, event.actor, event.text, event.certain) for event in events] == [
        ("join", "ann", "joined group g, generation 3", True),
        ("expired", "ben", "was thrown out of group g: its heartbeats had stopped", False),
        (
            "rebalance",
            "group g",
            "rebalanced to generation 4: ben was not heard of any more and was thrown out; 2 members before, 1 after; "
            "took 3.00 s; no record reached a member for up to 3.10 s; t-1 moved",
            True,
        ),
        (
            "rebalance",
            "group g",
            "rebalanced to generation 5: probably the topics that it reads, or their partitions, changed",
            False,
        ),
        (
            "rebalances",
            "group g",
            "rebalanced 2 times: ben was not heard of any more and was thrown out and the topics "
            "that it reads, or their "
            "partitions, changed; no record reached a member for up to 3.10 s",
            True,
        ),
    ]
    assert [event.kind for event in overview.first_ten(events)] == ["join", "expired", "rebalances"]


def test_a_rebalance_of_connect_is_about_connectors_and_who_was_there_before_may_be_unknown() -> None:
    rebalance = {"group_id": None, "began": at(2), "members_after": ["m1", "m2"], "trigger": "metadata"}
    [event] = groups.events(source(rebalances=[{**rebalance, "protocol": "connect"}]))
    assert (event.actor, event.text) == (
        "a group whose name was not captured",
        "rebalanced: probably its connectors or their tasks changed; 2 members after",
    )
    twice = [{**rebalance, "protocol": "connect", "began": at(second)} for second in (2, 3)]
    [whole] = [event for event in groups.events(source(rebalances=twice)) if event.kind == "rebalances"]
    assert whole.actor == event.actor


def test_rebalances_without_a_reason_are_counted_apart() -> None:
    joined = {"group_id": "g", "event": "join", "member_id": "m1", "client_id": "ann"}
    turns: list[dict[str, Any]] = [
        {"group_id": "g", "generation": 1, "began": at(0), "trigger": "join", "trigger_member": "m1"},
        {"group_id": "g", "generation": 2, "began": at(5), "trigger": "unknown"},
    ]
    for rows, text in (
        (turns, "rebalanced 2 times: ann joined; 1 time for a reason that was not captured"),
        (turns[1:] * 3, "rebalanced 3 times: for a reason that was not captured"),
    ):
        events = groups.events(source(groups=[{"time": at(0), **joined}], rebalances=rows))
        assert [event.text for event in events if event.kind == "rebalances"] == [text]


def test_failures_of_a_member_that_repeat_are_one_line() -> None:
    row = {
        "group_id": "g",
        "event": "heartbeat_failed",
        "member_id": "m",
        "client_id": "ann",
        "error": "UNKNOWN_MEMBER_ID",
    }
    [event] = groups.events(source(groups=[{**row, "time": at(0)}, {**row, "time": at(1)}, {**row, "time": at(4)}]))
    assert event.text == (
        "was told in a heartbeat to group g: UNKNOWN_MEMBER_ID: the group has no such member: it was thrown out, or "
        "never in, 3 times in 4.00 s"
    )


def commit(second: float, offset: int, previous: int | None, **more: Any) -> dict[str, Any]:
    step = None if previous is None else offset - previous
    row = {
        "time": at(second),
        "group_id": "g",
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "previous": previous,
        "step": step,
        "kind": "commit",
        "client_id": "ann",
        "connection": "c",
        "exchange": int(second),
    }
    return {**row, **more}


def test_commits_are_told_by_their_ends_and_by_each_step_back() -> None:
    rows = [commit(0, 10, None), commit(1, 20, 10), commit(2, 15, 20), commit(3, 30, 15)]
    events = sorted(offsets.events(source(offsets=rows)), key=lambda event: event.time)
    assert [event.text for event in events] == [
        "committed t-0 at 10 for group g",
        "committed t-0 at 15, behind the 20 committed before, for group g: 5 offsets will be read again",
        "made its last commit for group g: t-0 at 30; 4 commits in 3.00 s",
    ]


def test_of_a_topic_that_was_made_anew_nothing_is_read_again() -> None:
    out = commit(2, 0, 20, kind="reset", error="OFFSET_OUT_OF_RANGE", step=-20)
    ids = [{"topic_id": topic_id, "topic": "t"} for topic_id in ("6hWhQvmDS1S79-tG9HZ0dw", "r-4vlSNsTw2Wmvo_qD_U_A")]
    events = offsets.events(source(offsets=[commit(0, 20, None), commit(1, 15, 20), out], topic_ids=ids))
    assert [event.text for event in events][2:] == [
        "committed t-0 at 15, behind the 20 committed before, for group g: the topic was made anew",
        "asked t-0 for offset 20, which the log does not have, and went on at the start (0): the topic was made anew",
    ]


def test_a_step_back_that_was_refused_is_none() -> None:
    rows = [commit(0, 10, None), commit(1, 5, 10, error="UNKNOWN_MEMBER_ID")]
    assert [event.text for event in offsets.events(source(offsets=rows))] == [
        "committed t-0 at 10 for group g",
        "could not commit t-0 for group g: UNKNOWN_MEMBER_ID: the group has no such member: it was thrown out, or "
        "never in",
    ]


def test_commits_whose_offsets_were_cut_off() -> None:
    lost = {"offset": None, "step": None, "group_id": None}
    single = [{**commit(0, 1, None), **lost}]
    assert [event.text for event in offsets.events(source(offsets=single))] == [
        "committed t-0 at an offset that was not captured for a group whose name was not captured"
    ]
    for partitions in (2, 5):
        rows = [{**commit(0, 1, None), **lost, "partition": number} for number in range(partitions)]
        [text] = [event.text for event in offsets.events(source(offsets=rows))]
        assert text.startswith(
            f"committed t partitions 0 to {partitions - 1} at offsets that were not captured for a group"
        )
    rows = [{**commit(0, 7, None), "partition": number, **(lost if number else {})} for number in range(5)]
    told_of = " and ".join(event.text for event in offsets.events(source(offsets=rows)))
    assert "committed 4 offsets" not in told_of
    assert "in sum" not in told_of


def test_groups_whose_commits_nobody_saw_are_told_by_what_replicas_were_sent() -> None:
    copied = [
        commit(second, 10 * partition + second, None, kind="replica", client_id=None, partition=partition)
        for second in (1, 2)
        for partition in (0, 1)
    ]
    [replica_event] = offsets.events(source(offsets=copied))
    assert (replica_event.actor, replica_event.text) == (
        "the coordinator",
        "wrote down where group g stands: t-0 at 2, t-1 at 12; 4 records that replicas were sent",
    )
    every = [*copied, commit(3, 40, None)]
    assert [event.text for event in offsets.events(source(offsets=every))] == ["committed t-0 at 40 for group g"]


def test_where_readers_went() -> None:
    out = {"kind": "reset", "error": "OFFSET_OUT_OF_RANGE"}
    marks = [{"topic": "t", "partition": 0, "log_start_offset": 100, "high_watermark": 900}]
    rows = [
        commit(0, 100, 5, **out),
        commit(10, 900, 5000, **out),
        commit(20, 900, None, kind="reset"),
        commit(30, 333, None, kind="reset"),
        {**commit(40, 0, None, kind="reset", error="NOT_LEADER_OR_FOLLOWER"), "offset": None},
    ]
    events = list(offsets.events(source(offsets=rows, partitions=marks)))
    assert [(event.text, event.certain) for event in events] == [
        (
            "asked t-0 for offset 5, which the log does not have, and went on at the start (100): "
            "95 offsets passed over",
            True,
        ),
        (
            "asked t-0 for offset 5,000, which the log does not have, and went on at the end (900): 4,100 offsets back",
            True,
        ),
        ("began to read t-0 at the end: it had no offset to go on from", True),
        ("began t-0 at 333, probably by a timestamp", False),
        ("asked for an offset of t-0 to go on from, and was refused: NOT_LEADER_OR_FOLLOWER", True),
    ]


def test_readers_of_several_partitions_that_go_elsewhere_together() -> None:
    out = {"kind": "reset", "error": "OFFSET_OUT_OF_RANGE"}
    rows = [
        {**commit(0, 50, 30, **out), "partition": 0},
        {**commit(1, 20, 35, **out), "partition": 1},
        {**commit(10, 0, 30, kind="reset"), "partition": 0},
        {**commit(11, 0, 35, kind="reset"), "partition": 1},
    ]
    assert [event.text for event in offsets.events(source(offsets=rows))] == [
        "asked t partitions 0 to 1 for offset 30 to 35, which the log does not have, and went on at 20 to 50: 20 "
        "offsets passed over, 15 offsets back",
        "moved on t partitions 0 to 1 from 30 to 35 to the start",
    ]


def test_transactions_that_nobody_ended() -> None:
    row = {
        "transactional_id": "pay",
        "producer_id": 4,
        "client_id": "ann",
        "began": at(0),
        "partitions": [],
        "records": 0,
        "offsets": [],
        "evidence": {"connection": "c", "exchange": 1, "reply": 1},
    }
    stored = source(
        transactions=[
            {**row, "outcome": "open"},
            {**row, "outcome": "fenced", "ended": at(1), "duration_us": 1_000_000},
            {**row, "transactional_id": None, "began": None, "ended": at(2), "outcome": "aborted", "records": None},
        ]
    )
    assert [(event.actor, event.text, event.certain) for event in transactions.events(stored)] == [
        ("ann", "began a transaction of pay", True),
        ("ann", "left a transaction of pay open: nothing; the capture ends before it does", True),
        ("ann", "began a transaction of pay", True),
        ("ann", "was fenced out of pay: probably the transaction timed out", False),
        ("producer 4", "aborted a transaction (told by markers alone); its beginning was not captured", True),
        ("ann", "2 transactions of pay: 1 open, 1 fenced; the longest took 1.00 s", True),
    ]


def test_a_transaction_that_timed_out_was_aborted_by_the_coordinator() -> None:
    row = {
        "transactional_id": "pay",
        "producer_id": 4,
        "client_id": "ann",
        "began": at(0),
        "ended": at(5),
        "records": 3,
        "partitions": [{"topic": "__consumer_offsets", "partition": 2}, {"topic": "t", "partition": 0}],
        "offsets": [{"group_id": "g", "topic": "u", "partition": 0, "offset": 7}],
        "outcome": "aborted",
        "duration_us": 5_000_000,
        "timeout_ms": 4000,
        "evidence": {"connection": "c", "exchange": 1, "reply": 1},
    }
    inside = "3 records to t-0 and 1 offset of group g given up"
    for api, words in (
        (
            "WriteTxnMarkers",
            f"had a transaction of pay: {inside}: the coordinator aborted it after 5.00 s, over its timeout of 4.00 s",
        ),
        ("EndTxn", f"aborted a transaction of pay: {inside} after 5.00 s"),
    ):
        requests = [{"connection": "c", "exchange": 1, "reply": 1, "api": api}]
        events = list(transactions.events(source(transactions=[row], exchanges=requests)))
        assert events[-1].text == words


def test_findings_come_first() -> None:
    stored = source(
        findings=[
            {
                "severity": "error",
                "code": "lossy",
                "text": "Half of it is missing.",
                "since": at(0),
                "cause": "a full disk",
                "proven": False,
                "who": [("client_id", "ann")],
                "what": [("topic", "t"), ("partition", "3")],
                "first": {"connection": "c", "exchange": 5, "reply": None},
            },
        ]
    )
    [event] = cluster.events(stored)
    assert (event.actor, event.text, event.certain) == (
        "error lossy",
        "Half of it is missing. Probably: a full disk",
        False,
    )
    assert (event.topic, event.partition, event.client_id, event.exchange) == ("t", 3, "ann", 5)
    small = [Event(at(i), "refused", "ann", f"event {i}", 1) for i in range(30)]
    assert event in overview.first_ten([*small, event])
    assert len(overview.first_ten([*small, event])) == 10
    # What it is about is not told beside it; what else that connection did is.
    refused, other = (Event(at(0), "refused", "ann", f"{i}", 5, connection="c", exchange=i) for i in (5, 6))
    assert overview.first_ten([refused, other, event]) == [event, other]


def request(second: float, error: int | None, partition_topic: str = "t", port: int = 9092) -> dict[str, Any]:
    return {
        "connection": "c",
        "exchange": int(second * 1000),
        "reply": 0,
        "client_id": "ann",
        "client_ip": "10.0.0.1",
        "broker_ip": "10.0.0.9",
        "broker_port": port,
        "api": "Fetch",
        "request_time": at(second),
        "response_end": at(second),
        "topics": [partition_topic],
        "error_code": error or 0,
        "error": "NOT_LEADER_OR_FOLLOWER" if error else None,
        "status": "answered",
    }


def test_errors_in_a_row_are_one_event_that_says_what_came_next() -> None:
    rows = [
        request(0, 6),
        request(1, 6),
        request(1.5, None, port=9093),
        request(30, 6),
        request(40, 6),
        request(41, None, "other"),
    ]
    events = [event for event in clients.events(source(exchanges=rows)) if event.kind == "refused"]
    assert [
        event.text.replace(": NOT_LEADER_OR_FOLLOWER (6), another broker leads the partition now", "")
        for event in events
    ] == [
        "was refused Fetch of t 2 times in 1.00 s; it succeeded 500.0 ms later at the broker at 10.0.0.9:9093",
        "was refused Fetch of t 2 times in 10.00 s; it did not succeed any more in this capture",
    ]


def test_what_came_next_may_name_a_topic_by_its_id() -> None:
    rows = [request(0, 6), request(1, None, "AAAAAAAAAAAAAAAAAAAAAg"), request(2, None)]
    for known in (rows, rows[:2], [rows[0], rows[2]]):
        topic_ids = [{"topic_id": "AAAAAAAAAAAAAAAAAAAAAg", "topic": "t"}]
        events = [
            event for event in clients.events(source(exchanges=known, topic_ids=topic_ids)) if event.kind == "refused"
        ]
        later = "1.00 s" if len(known) == 3 or known[-1] is rows[1] else "2.00 s"
        assert [f"; it succeeded {later} later" in event.text for event in events] == [True], [
            event.text for event in events
        ]


def runs_of(rows: list[dict[str, Any]]) -> list[tuple[str | None, str, float, int, float | None]]:
    """(client id, topic, first, how many, the next success) of runs of refusals, one row after the other."""
    by_request: dict[tuple[str | None, str], list[list[dict[str, Any]]]] = {}

    def success(row: dict[str, Any]) -> float | None:
        """The first one after a refusal that is about its topic or about none."""
        alike = [good for good in rows if good["error"] is None and good["client_id"] == row["client_id"]]
        about = [good for good in alike if good["topics"] in (row["topics"], [])]
        times = [good["response_end"].timestamp() for good in about if good["response_end"] > row["response_end"]]
        return min(times, default=None)

    for row in sorted((row for row in rows if row["error"]), key=lambda row: row["request_time"]):
        runs = by_request.setdefault((row["client_id"], row["topics"][0]), [])
        time = row["response_end"].timestamp()
        if runs:
            then, gap = success(runs[-1][-1]), time - runs[-1][-1]["response_end"].timestamp()
            if gap < 2 or (gap < 60 and (then is None or then >= time)):
                runs[-1].append(row)
                continue
        runs.append([row])
    return [
        (client_id, topic, run[0]["response_end"].timestamp(), len(run), success(run[-1]))
        for (client_id, topic), runs in by_request.items()
        for run in runs
    ]


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_one_question_against_one_row_after_the_other(seed: int) -> None:
    """Topics by name and by id; lists that are absent, empty, as long and not the same."""
    rng = random.Random(seed)
    lists: list[list[str] | None] = [None, [], ["a"], ["id of a"], ["b"], ["a", "b"], ["id of a", "b"], ["b", "a"]]
    rows: list[dict[str, Any]] = [
        {
            "connection": "c",
            "exchange": rng.choice([number, None]),
            "api": rng.choice(["Fetch", "Fetch", None]),
            "error": rng.choice([None, None, None, "E"]),
            "status": "answered",
            "topics": rng.choice(lists[: 2 + seed]),
            "client_id": "me",
            "request_time": at(number),
            "response_end": at(number + 0.5),
            "capture": "c",
        }
        for number in rng.sample(range(200), rng.choice([0, 1, 60, 200]))
    ]
    stored = source(exchanges=rows, topic_ids=[{"topic_id": "id of a", "topic": "a"}])
    named = [
        {**row, "topics": row["topics"] and ["a" if topic == "id of a" else topic for topic in row["topics"]]}
        for row in rows
    ]
    in_order = sorted(named, key=lambda row: (row["exchange"] is None, row["exchange"] or 0))
    expected = [
        (run[0]["request_time"], len(run))
        for _, same in itertools.groupby(in_order, lambda row: [row[name] for name in ("api", "error", "topics")])
        if (run := list(same)) and run[0]["error"] is None
    ]
    told_of = [(event.time, event.text) for event in requests.dialogue(stored, "c")]
    assert [time for time, _ in told_of] == [time for time, _ in expected]
    counts = [re.search(r" (\d+) times", text) for _, text in told_of]
    assert [int(match[1]) if match else 1 for match in counts] == [many for _, many in expected]


@pytest.mark.parametrize("spread", [400, 4_000])
@pytest.mark.parametrize("seed", range(10))
def test_runs_of_refusals_against_one_row_after_the_other(seed: int, spread: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(150):
        row = request(rng.randrange(spread) / 2, rng.choice([None, 6, 6]), rng.choice("tu"))
        row["client_id"] = rng.choice(["ann", "bob", None])
        row["topics"] = row["topics"] if row["error"] or rng.random() < 0.7 else []
        rows.append(row)
    events = [event for event in clients.events(source(exchanges=rows)) if event.kind == "refused"]
    expected = runs_of(rows)
    assert [(event.client_id, event.topic, event.time.timestamp()) for event in events] == [run[:3] for run in expected]
    for event, (_, _, _, many, then) in zip(events, expected, strict=True):
        assert (f" {many} times" in event.text) == (many > 1)
        assert ("it did not succeed any more" in event.text) == (then is None)


def part(second: float, partition: int, error: int = 0) -> dict[str, Any]:
    """A topic-partition of the request at that second."""
    key = {"connection": "c", "exchange": int(second * 1000), "reply": 0}
    return {**key, "topic": "t", "partition": partition, "error_code": error}


def test_a_success_is_of_the_partition_that_was_refused() -> None:
    rows = [request(0, 6), request(1, None), request(2, None, port=9093), request(10, 6), request(11, None)]
    parts = [part(0, 3, 6), part(1, 4), part(2, 3), part(10, 3, 6), part(11, 4)]
    events = [event for event in clients.events(source(exchanges=rows, partitions=parts)) if event.kind == "refused"]
    assert [event.text.partition("; ")[2] for event in events] == [
        "it succeeded 2.00 s later at the broker at 10.0.0.9:9093",
        "it did not succeed any more in this capture",
    ]


def test_refusals_in_turn_with_successes_are_a_share() -> None:
    rows = [request(number / 2, None if number % 3 == 0 else 6) for number in range(9)]
    parts = [part(number / 2, 0, 0 if number % 3 == 0 else 6) for number in range(9)]
    (event,) = [event for event in clients.events(source(exchanges=rows, partitions=parts)) if event.kind == "refused"]
    assert "was refused Fetch of t 6 times in 3.50 s (6 of 8): " in event.text
    assert event.text.endswith("; after its last success it did not succeed any more in this capture")


def test_a_batch_that_is_refused_again_and_again_counts_once() -> None:
    rows = [{**request(second, 6), "api": "Produce"} for second in (0, 1, 2)]
    parts = [{**part(second, 0, 6), "record_count": 5, "record_bytes": 50} for second in (0, 1, 2)]
    batches = [
        {**part(second, 0), "side": "produce", "crc": crc, "record_count": 5, "batch_bytes": 50}
        for second, crc in ((0, 1), (1, 1), (2, 2))
    ]
    for batch in batches:
        del batch["error_code"]
    (event,) = [
        event
        for event in clients.events(source(exchanges=rows, partitions=parts, batches=batches))
        if event.kind == "wrote"
    ]
    assert event.text == "could not write t-0; refused: 10 records, 100 B"


def test_requests_without_an_answer_are_told_by_connection() -> None:
    rows = [
        {**request(second, None), "connection": link, "api": api, "response_end": None, "status": status}
        for second, link, api, status in (
            (0, "b", "Fetch", "unanswered"),
            (1, "a", "Produce", "unanswered"),
            (2, "b", "Metadata", "answered"),
            (3, "b", None, "unanswered"),
            (4, "b", "Fetch", "unanswered"),
            (5, "c", "Fetch", "unanswered"),
        )
    ]
    talked = {"first_time": at(0), "last_time": at(9), "broker_ip": "10.0.0.9", "broker_port": 9092, "requests": 1}
    ends = [{**talked, "connection": link, "closed": how} for link, how in (("a", "rst"), ("c", "fin"))]
    events = [event for event in clients.events(source(exchanges=rows, connections=ends)) if event.kind == "unanswered"]
    assert [(event.connection, event.time, event.weight, event.text) for event in events] == [
        ("b", at(0), 26, "had no answer to 3 requests (Fetch and unknown): later ones were answered"),
        ("a", at(1), 8, "had no answer to 1 request (Produce): the connection was reset first"),
        ("c", at(5), 8, "had no answer to 1 request (Fetch): the connection was closed first"),
    ]
    assert all(event.topics == ("t",) for event in events)


@pytest.mark.parametrize(
    ("statuses", "why"),
    [
        (("unanswered", "answered"), "later ones were answered"),
        (("unanswered", "answered", "unanswered"), "others between them were answered, then the connection was closed"),
        (("answered", "unanswered"), "the connection was closed first"),
    ],
)
def test_what_became_of_others_on_a_connection_that_was_closed(statuses: tuple[str, ...], why: str) -> None:
    rows = [{**request(second, None), "connection": "b", "status": how} for second, how in enumerate(statuses)]
    ends = [
        {
            "connection": "b",
            "first_time": at(0),
            "last_time": at(9),
            "broker_ip": "10.0.0.9",
            "broker_port": 9092,
            "requests": 1,
            "closed": "fin",
        }
    ]
    [event] = [
        event for event in clients.events(source(exchanges=rows, connections=ends)) if event.kind == "unanswered"
    ]
    assert event.text.endswith(f": {why}")
    ends[0]["broker_packets"] = 0  # nobody knows what became of them
    assert not [
        event for event in clients.events(source(exchanges=rows, connections=ends)) if event.kind == "unanswered"
    ]


def test_what_was_refused_or_not_answered_was_not_written() -> None:
    sent = (  # records, error, acks
        (100, 0, -1),
        (20, 6, -1),
        (3, None, -1),
        (7, None, 0),
        (None, 0, -1),
    )
    rows = [
        {**request(number, error), "connection": "b", "api": "Produce", "api_key": 0, "exchange": number, "acks": acks}
        for number, (_, error, acks) in enumerate(sent)
    ]
    parts = [
        {
            "connection": "b",
            "exchange": number,
            "topic": "t",
            "partition": 0,
            "record_count": records,
            "record_bytes": 10,
            "error_code": error,
        }
        for number, (records, error, _) in enumerate(sent)
    ]

    def wrote(*numbers: int) -> str:
        chosen = {name: [table[number] for number in numbers] for name, table in tables_of}
        [event] = [event for event in clients.events(source(**chosen)) if event.kind == "wrote"]
        return event.text

    tables_of = (("exchanges", rows), ("partitions", parts))
    assert wrote(0, 1, 2, 3) == (
        "wrote t-0: 107 records, 20 B in 3.00 s; refused: 20 records, 10 B; no answer seen: 3 records, 10 B"
    )
    assert wrote(1) == "could not write t-0; refused: 20 records, 10 B"
    assert wrote(2) == "sent t-0; no answer seen: 3 records, 10 B"
    for row in rows:
        row["response_end"] = None
    assert wrote(0, 1, 2, 3).startswith("wrote t-0: 107 records, 20 B in 3.00 s;")
    assert wrote(0, 4) == "wrote t-0: at least 100 records, 20 B in 4.00 s"


def test_topics_made_tried_and_not_captured() -> None:
    creation = {**request(1, None, "t"), "api": "CreateTopics", "request_state": "decoded"}
    there = [{"topic": "t", "partition": 0, "leader": 1, "time": at(2)}]
    rows: tuple[tuple[dict[str, Any], list[dict[str, Any]], list[str]], ...] = (
        (creation, there, ["created topic t"]),
        (
            creation,
            [],
            ["asked to create topic t, and was not refused (it may have been a trial: nothing shows the topic)"],
        ),
        (
            {**creation, "topics": [], "request_state": "truncated"},
            [],
            ["created topics whose names were not captured"],
        ),
        ({**creation, "topics": []}, [], []),
    )
    for row, leaders, expected in rows:
        events = [event for event in cluster.events(source(exchanges=[row], leaders=leaders)) if event.kind == "admin"]
        assert [event.text for event in events] == expected


@pytest.mark.parametrize(("error_code", "is_created"), [(0, True), (3, False), (None, False)])
def test_a_topic_is_there_where_an_answer_says_so(error_code: int | None, is_created: bool) -> None:
    row = {**request(1, None, "t"), "api": "CreateTopics", "request_state": "decoded"}
    used = [{"topic": "t", "partition": 0, "error_code": error_code}]
    [event] = [event for event in cluster.events(source(exchanges=[row], partitions=used)) if event.kind == "admin"]
    assert (event.text == "created topic t") == is_created


def test_one_error_for_several_topics_may_be_about_one_of_them() -> None:
    [event_told] = [
        event
        for event in clients.events(source(exchanges=[{**request(1, 6), "topics": ["t", "u"]}]))
        if event.kind == "refused"
    ]
    assert event_told.text.startswith("was refused Fetch of t and u or some of these: NOT_LEADER_OR_FOLLOWER (6)")


def test_a_node_that_listens_twice_is_one_broker_and_clients_without_an_id_may_be_several() -> None:
    talked = {"client_ip": "10.0.0.1", "client_id": "ann", "first_time": at(0), "last_time": at(9)}
    ends = [{**talked, "broker_ip": "10.0.0.9", "broker_port": port} for port in (9092, 9093, 9094)]
    nodes = [{"host": "10.0.0.9", "port": port, "node_id": 7} for port in (9092, 9093)]
    heading = command._heading(source(connections=ends, brokers=nodes))
    assert heading.endswith("0 exchanges of 1 client with 2 brokers")
    heading = command._heading(source(connections=[*ends, {**ends[0], "client_id": None}], brokers=nodes))
    assert heading.endswith("0 exchanges of at least 2 clients with 2 brokers")


# --- words ------------------------------------------------------------------------------------------------------------


def test_places_and_spans() -> None:
    assert places([("t", 0)]) == "t-0"
    assert places([("t", 2), ("t", 0), ("t", 1), ("u", 7)]) == "t partitions 0 to 2 and u-7"
    assert places([("t", 0), ("t", 5)]) == "t partitions 0, 5"
    assert places(("t", 2 * i) for i in range(9)) == "9 partitions of t"
    assert places((f"t{i}", 0) for i in range(6)) == "t0-0, t1-0, t2-0 and 3 more"
    assert span(61_500_000) == "1 min 1 s"


def test_lines_fit_a_terminal() -> None:
    event = Event(
        START,
        "refused",
        "a-client-with-a-name-that-is-far-too-long",
        "word " * 40,
        1,
        False,
        connection="c",
        exchange=3,
    )
    lines = command._line(event, {}, 24, 100)
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("12:00:00.000  a-client-with-a-name-th…  probably word")
    assert lines[-1].endswith("[c1 #3]")
    finding = Event(START, "finding", "warning a-finding-with-a-long-code", "words", severity="warning")
    assert command._line(finding, {}, 24, 100)[0] == "12:00:00.000  warning a-finding-with-a-long-code  words"
    assert StoryQuery(client="ann").has(Event(START, "x", "ann", "", client_id="ann"))
    assert not StoryQuery(topic="t").has(Event(START, "x", "ann", "", topics=("u",)))
