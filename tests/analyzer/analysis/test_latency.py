"""Parts of latencies and readers of partitions, in forged conversations: one case each. Real ones are judged by the
logs of brokers in `tests/witness/test_latency`.

(proves: analyzer/analysis/latency.py, sessions.py, analyzer/bulk/purgatory.py; capture points of
analyzer/bulk/shard_result.py)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.analyzer.protocol.api_keys import SHARE_FETCH
from tests.analyzer.forging import (
    API_VERSIONS,
    FETCH,
    JOIN_GROUP,
    SASL_AUTHENTICATE,
    SYNC_GROUP,
    TOPIC_ID,
    answering,
    asking,
    batch,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce,
    read,
    request,
    response,
    turns,
)
from tests.captures.forge import Segment, Write, converse, interleaved, pcap, rendered
from tests.shared import SAMPLES, capture_files

START = 1_700_000_000_000_000_000
MS = 1_000_000
PARTS = ("queue_us", "muted_us", "network_us", "hold_us", "broker_us")


def at(ms: float) -> int:
    return START + round(ms * MS)


def fetch(
    number: int,
    offsets: Mapping[int, int],
    session: int = 0,
    epoch: int = -1,
    forgotten: tuple[int, ...] = (),
    least: int = 1,
    wait: int = 500,
    replica: int = -1,
) -> bytes:
    """Fetch v11: offsets by partition of `orders`."""
    body = {
        "replicaId": replica,
        "maxWaitMs": wait,
        "minBytes": least,
        "maxBytes": 1 << 20,
        "isolationLevel": 0,
        "sessionId": session,
        "sessionEpoch": epoch,
        "rackId": "",
        "forgottenTopicsData": [{"topic": "orders", "partitions": list(forgotten)}] if forgotten else [],
        "topics": [
            {
                "topic": "orders",
                "partitions": [
                    {
                        "partition": partition,
                        "currentLeaderEpoch": 3,
                        "fetchOffset": offset,
                        "logStartOffset": -1,
                        "partitionMaxBytes": 1 << 20,
                    }
                    for partition, offset in offsets.items()
                ],
            }
        ]
        if offsets
        else [],
    }
    return request(FETCH, 11, number, body)


def fetched(
    number: int,
    ends: Mapping[int, int],
    records: Mapping[int, bytes] | None = None,
    session: int = 0,
    error: int = 0,
    throttle_ms: int = 0,
) -> bytes:
    """Its answer: high watermarks, and records."""
    body = {
        "throttleTimeMs": throttle_ms,
        "errorCode": error,
        "sessionId": session,
        "responses": [
            {
                "topic": "orders",
                "partitions": [
                    {
                        "partitionIndex": partition,
                        "errorCode": 0,
                        "highWatermark": end,
                        "lastStableOffset": end,
                        "logStartOffset": 0,
                        "abortedTransactions": None,
                        "preferredReadReplica": -1,
                        "records": (records or {}).get(partition, b""),
                    }
                    for partition, end in ends.items()
                ],
            }
        ]
        if ends
        else [],
    }
    return response(FETCH, 11, number, body)


def produced(number: int, base: int) -> bytes:
    partition = {
        "index": 0,
        "errorCode": 0,
        "baseOffset": base,
        "logAppendTimeMs": -1,
        "logStartOffset": 0,
        "recordErrors": [],
        "errorMessage": None,
    }
    return response(
        0, 9, number, {"responses": [{"name": "orders", "partitionResponses": [partition]}], "throttleTimeMs": 0}
    )


def conversation(*writes: Write, port: int = 40000) -> list[Segment]:
    """Client and broker with one address, so no way between them."""
    return converse(writes, client=("10.0.0.1", port), broker=("10.0.0.1", 9092), start_ns=at(0), acks=False)


def whole(rows: list[dict[str, Any]]) -> None:
    """Check the invariants of any exchange."""
    for row in rows:
        parts = [row[name] for name in PARTS]
        assert all(part is None or part >= 0 for part in parts), row
        assert (row["hold_us"] is None) <= (row["broker_us"] is None)
        if None not in parts:
            assert sum(parts) == row["total_us"], row
        assert (row["cause"] is None) == (row["status"] != "answered")


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "client-kafkajs-3.9", "old-java-0.8.2"])
def test_the_parts_add_up_whatever_the_windows(sample: str) -> None:
    [capture] = capture_files(SAMPLES / sample)
    whole_dataset = analyzer.analyze(str(capture))
    whole(whole_dataset.exchanges.to_pylist())
    assert sum(hold is not None for hold in whole_dataset.exchanges["hold_us"].to_pylist()) > 30
    cut = analyzer.analyze(str(capture), window_bytes=3000, threads=4)
    for name in ("exchanges", "readers", "connections"):
        assert getattr(cut, name).equals(getattr(whole_dataset, name)), name


def test_without_meaning_they_stay_empty() -> None:
    [capture] = capture_files(SAMPLES / "client-kafkajs-3.9")
    dataset = analyzer.analyze(str(capture), meaning=False)
    for row in dataset.exchanges.to_pylist():
        assert [row[name] for name in (*PARTS[1:], "cause")] == [None] * 5
        assert row["queue_us"] is not None or row["latency_us"] is None
    assert len(dataset.readers) == 0


def test_a_fetch_is_held_until_its_time_is_up(tmp_path: Path) -> None:
    seen = read(
        tmp_path,
        conversation(
            asking(fetch(1, {0: 40}), at(10)),
            answering(fetched(1, {0: 40}), at(513)),
            asking(fetch(2, {0: 40}), at(520)),
            answering(fetched(2, {0: 40}), at(530)),
            asking(fetch(3, {0: 40}, wait=0), at(540)),
            answering(fetched(3, {0: 40}), at(590)),
        ),
    )
    whole(seen.exchanges)
    assert seen.column("hold_us") == [500_000, 0, 0]  # the second came too early for an empty answer
    assert seen.column("cause") == ["hold", "broker", "broker"]
    assert seen.exchanges[0]["broker_us"] == 3000


def test_voters_wait_although_they_ask_for_no_bytes(tmp_path: Path) -> None:
    """Raft's fetches have a minBytes of 0, and the leader holds them until there is something; a consumer's it does
    not."""
    seen = read(
        tmp_path,
        conversation(
            asking(fetch(1, {0: 40}, least=0, replica=2), at(10)),
            answering(fetched(1, {0: 40}), at(513)),
            asking(fetch(2, {0: 40}, least=0, replica=2), at(520)),
            answering(fetched(2, {0: 41}, {0: batch(1)}), at(1011)),
            asking(fetch(3, {0: 41}, least=0), at(1020)),
            answering(fetched(3, {0: 42}, {0: batch(1)}), at(1100)),
        ),
    )
    whole(seen.exchanges)
    assert seen.column("hold_us") == [500_000, 490_000, 0]


def test_a_fetch_at_the_end_is_held_until_records_come(tmp_path: Path) -> None:
    reader = conversation(
        asking(fetch(1, {0: 40}), at(10)),
        answering(fetched(1, {0: 40}), at(513)),
        asking(fetch(2, {0: 40}), at(520)),
        answering(fetched(2, {0: 43}, {0: batch(3)}), at(720)),
        asking(fetch(3, {0: 41}), at(730)),
        answering(fetched(3, {0: 43}, {0: batch(2)}), at(750)),
    )
    seen = read(tmp_path, reader)
    # Before the third, 43 was said to be the end: what it asks for was there.
    assert seen.column("hold_us") == [500_000, 199_000, 0]
    writer = conversation(
        asking(produce(9, records=batch(3)), at(690)), answering(produced(9, 40), at(700)), port=40001
    )
    seen = read(tmp_path, interleaved(reader, writer))
    whole(seen.exchanges)
    assert seen.where(api="Fetch", correlation_id=2)["hold_us"] == 180_000  # acknowledged then


def test_of_a_fetch_whose_partitions_end_is_not_known_nothing_is_said(tmp_path: Path) -> None:
    seen = read(
        tmp_path,
        conversation(
            asking(fetch(1, {0: 40}), at(10)),
            answering(fetched(1, {0: 43}, {0: batch(3)}), at(200)),
        ),
    )
    assert (seen.only["hold_us"], seen.only["broker_us"], seen.only["cause"]) == (None, None, "unknown")
    assert seen.only["queue_us"] == seen.only["muted_us"] == 0


def test_what_another_connection_wrote_before_was_there(tmp_path: Path) -> None:
    writer = conversation(asking(produce(9, records=batch(3)), at(5)), answering(produced(9, 40), at(8)), port=40001)
    reader = conversation(asking(fetch(1, {0: 40}), at(10)), answering(fetched(1, {0: 43}, {0: batch(3)}), at(40)))
    seen = read(tmp_path, interleaved(reader, writer))
    assert seen.where(api="Fetch")["hold_us"] == 0
    assert seen.where(api="Fetch")["cause"] == "broker"


@pytest.mark.parametrize(("acks", "known", "hold"), [(1, True, 0), (-1, True, 0), (-1, False, None)])
def test_acks_all_waits_for_nobody_where_there_is_one_replica(
    tmp_path: Path, acks: int, known: bool, hold: int | None
) -> None:
    turns = (asking(metadata(1), at(1)), answering(metadata_answer(1), at(2))) if known else ()
    seen = read(
        tmp_path,
        conversation(*turns, asking(produce(2, acks=acks, records=batch()), at(10)), answering(produced(2, 0), at(30))),
    )
    assert seen.where(api="Produce")["hold_us"] == hold


def shared(number: int, wait: int = 500) -> bytes:
    """ShareFetch v1 of one partition."""
    body = {
        "groupId": "s",
        "memberId": "m",
        "shareSessionEpoch": number - 1,
        "maxWaitMs": wait,
        "minBytes": 1,
        "maxBytes": 1 << 20,
        "maxRecords": 500,
        "batchSize": 500,
        "forgottenTopicsData": [],
        "topics": [{"topicId": TOPIC_ID, "partitions": [{"partitionIndex": 0, "acknowledgementBatches": []}]}],
    }
    return request(SHARE_FETCH, 1, number, body)


def acquired(number: int, records: bytes = b"", error: int = 0, refused: int = 0, leader: int = 1) -> bytes:
    """Its answer: records that nobody else gets for now, or none; `refused`: the partition's own error."""
    partition = {
        "partitionIndex": 0,
        "errorCode": refused,
        "errorMessage": None,
        "acknowledgeErrorCode": 0,
        "acknowledgeErrorMessage": None,
        "currentLeader": {"leaderId": leader, "leaderEpoch": 0},
        "records": records,
        "acquiredRecords": [{"firstOffset": 40, "lastOffset": 42, "deliveryCount": 1}],
    }
    body = {
        "throttleTimeMs": 0,
        "errorCode": error,
        "errorMessage": None,
        "acquisitionLockTimeoutMs": 30_000,
        "responses": [{"topicId": TOPIC_ID, "partitions": [partition]}] if records or refused else [],
        "nodeEndpoints": [],
    }
    return response(SHARE_FETCH, 1, number, body)


def test_a_share_fetch_waits_for_records_that_nobody_has(tmp_path: Path) -> None:
    """The end of what a share group may get is not on the wire: after an answer without records there were none."""
    writes = []
    for number, (took, records, error, wait) in enumerate(SHARED, 1):
        begun = 1000 * number
        writes += [
            asking(shared(number, wait), at(begun)),
            answering(acquired(number, records, error), at(begun + took)),
        ]
    seen = read(tmp_path, conversation(*writes))
    whole(seen.exchanges)
    assert seen.column("hold_us") == [None, 500_000, 179_000, None, 500_000, 0, 0, 0, 0]
    assert seen.column("cause") == ["unknown", "hold", "hold", "unknown", "hold", *["broker"] * 4]


def test_a_share_group_is_told_a_leader_where_the_partition_has_moved(tmp_path: Path) -> None:
    """Its answers always have a leader, and of a partition that has not moved it means nothing, whatever else went
    wrong: a real broker says 0 beside INVALID_RECORD_STATE (121)."""
    for refused, leader, leaders in ((0, 0, []), (121, 0, []), (6, 1, [(1, 0)]), (74, 1, [(1, 0)])):
        path = tmp_path / f"{refused}.pcap"
        answer = acquired(1, b"" if refused else batch(3), refused=refused, leader=leader)
        path.write_bytes(pcap(rendered(conversation(asking(shared(1), at(1)), answering(answer, at(2))))))
        rows = analyzer.analyze(str(path)).leaders.to_pylist()
        assert [(row["leader"], row["leader_epoch"]) for row in rows] == leaders


SHARED = (
    (180, batch(3), 0, 500),  # the first of its connection: records may have been there
    (503, b"", 0, 500),  # its time was up
    (180, batch(3), 0, 500),  # none were there when it came
    (180, batch(3), 0, 500),  # after records there may have been more
    (501, b"", 0, 500),
    (1, batch(3), 0, 500),  # they were there
    (30, b"", 0, 500),  # too soon for an answer without any: it was not held, whatever took so long
    (30, batch(3), 0, 0),  # it did not want to wait
    (30, b"", 122, 500),  # an error
)
"""Milliseconds that a ShareFetch took, what it brought, its error, how long it would wait."""


def test_acks_all_waits_for_replicas_that_fetch_in_sight(tmp_path: Path) -> None:
    replica = conversation(
        asking(fetch(1, {0: 0}, replica=2), at(1)), answering(fetched(1, {0: 0}), at(502)), port=40001
    )
    writer = conversation(
        asking(produce(2, acks=-1, records=batch()), at(600)),
        answering(produced(2, 0), at(640)),
        asking(produce(3, acks=-1, records=batch()), at(650)),
        answering(produced(3, 3), at(651)),
    )
    seen = read(tmp_path, interleaved(replica, writer))
    assert [seen.where(correlation_id=number)["hold_us"] for number in (2, 3)] == [39_000, 0]


def test_members_wait_for_each_other(tmp_path: Path) -> None:
    def join(number: int, error: int = 0) -> tuple[bytes, bytes]:
        body = {
            "groupId": "g",
            "sessionTimeoutMs": 10_000,
            "rebalanceTimeoutMs": 60_000,
            "memberId": "",
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        answer = {
            "throttleTimeMs": 0,
            "errorCode": error,
            "generationId": 1,
            "protocolName": "range",
            "leader": "a",
            "memberId": "b",
            "members": [],
        }
        return request(JOIN_GROUP, 4, number, body), response(JOIN_GROUP, 4, number, answer)

    def sync(number: int, assignments: int) -> tuple[bytes, bytes]:
        given = [{"memberId": f"m{i}", "assignment": b""} for i in range(assignments)]
        body = {"groupId": "g", "generationId": 1, "memberId": "b", "assignments": given}
        return (
            request(SYNC_GROUP, 2, number, body),
            response(SYNC_GROUP, 2, number, {"throttleTimeMs": 0, "errorCode": 0, "assignment": b""}),
        )

    requests = [join(1), join(2, 79), sync(3, 0), sync(4, 2)]
    writes = [
        write
        for i, (ask, answer) in enumerate(requests)
        for write in (asking(ask, at(100 * i + 10)), answering(answer, at(100 * i + 70)))
    ]
    seen = read(tmp_path, conversation(*writes))
    assert seen.column("hold_us") == [58_000, 0, 58_000, None]  # the last brings the assignments: it leads
    # A member's wait ends when the leader is answered; who came later waited for nobody.
    (ask, answer), (lead, led) = sync(5, 0), sync(6, 2)
    leader = conversation(asking(lead, at(80)), answering(led, at(90)), port=40001)
    for asked_ms, answered_ms, held in ((10, 120, 80_000), (10, 91, 79_000), (95, 120, 0)):
        member = conversation(asking(ask, at(asked_ms)), answering(answer, at(answered_ms)))
        both = read(tmp_path, interleaved(leader, member))
        assert both.where(correlation_id=5)["hold_us"] == held


def test_a_refused_login_waits_a_tenth_of_a_second(tmp_path: Path) -> None:
    def refused(number: int, error: int) -> bytes:
        body = {"errorCode": error, "errorMessage": None, "authBytes": b"", "sessionLifetimeMs": 0}
        return response(SASL_AUTHENTICATE, 1, number, body)

    seen = read(
        tmp_path,
        conversation(
            asking(request(API_VERSIONS, 0, 1, {}), at(1)),
            answering(response(API_VERSIONS, 0, 1, {"errorCode": 0, "apiKeys": []}), at(2)),
            asking(request(SASL_AUTHENTICATE, 1, 2, {"authBytes": b"no"}), at(10)),
            answering(refused(2, 58), at(113)),
            asking(request(SASL_AUTHENTICATE, 1, 3, {"authBytes": b"yes"}), at(120)),
            answering(refused(3, 0), at(140)),
        ),
    )
    assert seen.column("hold_us")[1:] == [100_000, 0]
    assert seen.column("broker_us")[1:] == [3_000, 20_000]


def test_lines_are_sorted_and_chosen_by_the_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "capture.pcap").write_bytes(
        pcap(
            rendered(
                conversation(
                    asking(heartbeat(1), at(1)),
                    answering(heartbeat_answer(1), at(3)),
                    asking(fetch(2, {0: 40}), at(10)),
                    answering(fetched(2, {0: 40}), at(516)),
                    asking(heartbeat(3), at(520)),
                    answering(heartbeat_answer(3), at(527)),
                )
            )
        )
    )
    lines = []
    for more in (("--sort", "broker_us"), ("--filter", "hold_us > 400000"), ("--filter", "cause == 'broker'")):
        assert parser.main(["show", str(tmp_path / "capture.pcap"), "--fields", "correlation_id,broker_us", *more]) == 0
        lines.append([tuple(line.split()) for line in capsys.readouterr().out.splitlines()[1:]])
    first, second, third = ("1", "2000"), ("2", "6000"), ("3", "7000")
    assert lines == [[third, second, first], [second], [first, third]]


def test_a_broker_keeps_silent_after_a_throttle(tmp_path: Path) -> None:
    """KIP-219: the answer comes at once, and what comes before the pause is over is not read."""
    seen = read(
        tmp_path,
        conversation(
            asking(fetch(1, {0: 40}), at(10)),
            answering(fetched(1, {0: 40}, throttle_ms=100), at(11)),
            asking(heartbeat(2), at(31)),
            answering(response(12, 0, 2, {"errorCode": 0}), at(113)),
            asking(heartbeat(3), at(120)),
            answering(response(12, 0, 3, {"errorCode": 0}), at(121)),
        ),
    )
    whole(seen.exchanges)
    assert seen.column("muted_us") == [0, 80_000, 0]
    assert seen.column("cause") == ["broker", "throttle", "broker"]
    assert seen.column("throttle_us") == [100_000, None, None]


@pytest.mark.parametrize(("highest", "muted"), [(1, [100_000, 0]), (3, [0, 94_000])])
def test_brokers_before_2_0_throttle_inside_the_latency(tmp_path: Path, highest: int, muted: list[int]) -> None:
    offered = {"errorCode": 0, "apiKeys": [{"apiKey": API_VERSIONS, "minVersion": 0, "maxVersion": highest}]}
    seen = read(
        tmp_path,
        conversation(
            asking(request(API_VERSIONS, 0, 0, {}), at(1)),
            answering(response(API_VERSIONS, 0, 0, offered), at(2)),
            asking(fetch(1, {0: 40}), at(10)),
            answering(fetched(1, {0: 40}, throttle_ms=100), at(114)),
            asking(heartbeat(2), at(120)),
            answering(response(12, 0, 2, {"errorCode": 0}), at(215)),
        ),
    )
    assert seen.column("muted_us")[1:] == muted


@pytest.mark.parametrize(
    ("there", "back", "point", "way"),
    [(20.0, 0.1, "client", 20_000), (0.1, 20.0, "broker", 0), (8.0, 12.0, "between", 8000)],
)
def test_the_handshake_says_where_it_was_captured(
    tmp_path: Path, there: float, back: float, point: str, way: int
) -> None:
    writes = [asking(heartbeat(1), at(100)), answering(response(12, 0, 1, {"errorCode": 0}), at(130))]
    segments = converse(writes, start_ns=at(0))
    times = [at(0), at(there), at(there + back)]
    shaken = [dataclasses.replace(segment, time_ns=when) for segment, when in zip(segments, times, strict=False)]
    seen = read(tmp_path, [*shaken, *segments[3:]])
    assert (seen.connection["capture_point"], seen.only["network_us"]) == (point, way)
    assert seen.only["broker_us"] == 30_000 - way
    unknown = read(tmp_path, converse(writes, handshake=False))
    assert (unknown.connection["capture_point"], unknown.only["network_us"]) == ("unknown", 0)


def test_a_session_names_only_what_changes(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(
        pcap(
            rendered(
                conversation(
                    asking(fetch(1, {0: 40, 1: 7}, epoch=0), at(10)),
                    answering(fetched(1, {0: 43, 1: 7}, session=5), at(513)),
                    asking(fetch(2, {}, 5, 1), at(520)),
                    answering(fetched(2, {0: 43}, {0: batch(3)}, session=5), at(521)),
                    asking(fetch(3, {0: 43}, 5, 2, forgotten=(1,)), at(530)),
                    answering(fetched(3, {}, session=5), at(1035)),
                    asking(fetch(4, {2: 9}, epoch=0), at(1040)),
                    answering(fetched(4, {2: 9}, session=6), at(1542)),
                )
            ),
            nanoseconds=True,
        )
    )
    rows = analyzer.analyze(str(path)).readers.to_pylist()
    turns = [
        (
            row["session_id"],
            row["partition"],
            row["first_offset"],
            row["last_offset"],
            row["records"],
            *(round(1000 * row[name].timestamp()) - START // MS for name in ("from_time", "to_time")),
        )
        for row in rows
    ]
    assert turns == [(5, 0, 40, 43, 3, 10, 1035), (5, 1, 7, 7, 0, 10, 521), (6, 2, 9, 9, 0, 1040, 1542)]
    assert {(row["client_id"], row["topic"], row["start_seen"]) for row in rows} == {("orders-app", "orders", True)}


def test_a_session_that_began_before_the_capture_says_so(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(
        pcap(
            rendered(
                conversation(
                    *turns([1]),
                    asking(fetch(2, {0: 43}, 5, 17), at(530)),
                    answering(fetched(2, {}, session=5), at(1035)),
                )
            ),
            nanoseconds=True,
        )
    )
    [row] = analyzer.analyze(str(path)).readers.to_pylist()
    assert (row["session_id"], row["start_seen"], row["first_offset"]) == (5, False, 43)
