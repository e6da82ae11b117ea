"""What each view answers, over rows that the tests write: the answers are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reports
from analyzer import tables
from analyzer.dataset import DatasetError
from reports import catalog, relations
from tests.reports.forging import Forged, at

GREEN, RED = "10.0.0.1:5000-10.0.0.9:9092#1", "10.0.0.2:6000-10.0.0.9:9092#1"
ORDERS = "a" * 22
"""Id of the topic `orders`."""


class Asked:
    """Views over datasets, in a session of their own."""

    def __init__(self, spark: Any, *paths: Path) -> None:
        self.spark = spark.newSession()
        self.names = reports.register(self.spark, paths)

    def __call__(self, query: str) -> list[dict[str, Any]]:
        query = query if " " in query else f"SELECT * FROM {query}"
        return [row.asDict(recursive=True) for row in self.spark.sql(query).collect()]

    def only(self, query: str) -> dict[str, Any]:
        """The answer's one row."""
        (row,) = self(query)
        return row


def conversation(forged: Forged) -> None:
    """Two clients: `app` (green) produces and commits, `report` (red) fetches, is throttled and meets errors."""
    red: dict[str, Any] = {"connection": RED, "client_ip": "10.0.0.2", "client_port": 6000, "client_id": "report"}
    forged.connection(connection=GREEN, software_name="librdkafka", software_version="2.5.0", requests=106,
                      payload_bytes=1000, decoded_bytes=900, duplicate_bytes=60, opaque_bytes=40,
                      opaque_malformed_bytes=40, gap_bytes=500)  # fmt: skip
    forged.connection(**red, rtt_us=750, closed="rst", last_time=at(0.5), requests=5, retransmissions=3, errors=2)
    forged.add("topic_ids", topic_id=ORDERS, topic="orders")
    # A hundred produces of 1 to 100 ms; the id and the name of one topic count once.
    for number in range(1, 101):
        forged.exchange("Produce", latency_ms=number, second=number / 10, topics=["orders", ORDERS], acks=-1,
                        request_bytes=1000 * number)  # fmt: skip
    partition: dict[str, Any] = {"topic": "orders", "partition": 0, "error_code": 0}
    forged.add("partitions", exchange=0, offset_kind="base", offset=40, record_count=2, record_bytes=200, **partition)
    forged.add("partitions", exchange=1, offset_kind="base", offset=42, record_count=8, record_bytes=600,
               **partition | {"partition": 1})  # fmt: skip
    # A produce that failed has no offset, and no kind.
    forged.exchange("Produce", latency_ms=5, second=11, topics=["orders"], acks=1, error="NOT_LEADER_OR_FOLLOWER")
    forged.add("partitions", exchange=100, **partition | {"error_code": 6, "error": "NOT_LEADER_OR_FOLLOWER"})
    forged.exchange("OffsetCommit", second=12, group_id="g", topics=["orders"], generation=1, member_id="m-1")
    forged.add("partitions", exchange=101, offset_kind="committed", offset=30, **partition)
    forged.exchange("JoinGroup", second=13, group_id="g", generation=2, member_id="m-2", latency_ms=3000)
    forged.exchange("ApiVersions", second=0, api_version=3, error="UNSUPPORTED_VERSION")
    forged.exchange("Metadata", second=14, latency_ms=None, status="unanswered", reply=None, response_time=None,
                    error_code=None, response_bytes=None)  # fmt: skip
    forged.exchange("LeaderAndIsr", second=15, latency_ms=2)
    # The red client: a fetch of what is in the session only, an empty one, a throttled one, one too new, one error.
    forged.exchange("Fetch", second=70, latency_ms=500, topics=[ORDERS], max_wait_ms=500, min_bytes=1, **red)
    forged.add("partitions", connection=RED, exchange=106, topic_id=ORDERS, partition=0, error_code=0,
               high_watermark=45, record_bytes=300, record_count=3, lag=2)  # fmt: skip
    forged.exchange("Fetch", second=71, latency_ms=500, topics=[], max_wait_ms=500, min_bytes=1, group_id=None, **red)
    forged.exchange("Fetch", second=72, latency_ms=20, throttle_us=30_000, api_version=19, **red)
    forged.exchange("CreateTopics", second=73, topics=["new"], error="TOPIC_ALREADY_EXISTS", **red)
    forged.exchange("OffsetFetch", second=74, group_id="g", error="NOT_COORDINATOR", **red)
    # Batches of two produces; the first was sent again after an error, over the same connection.
    batch = {"topic": "orders", "partition": 0, "side": "produce", "magic": 2, "codec": "zstd", "is_control": False,
             "producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "record_count": 2, "batch_bytes": 200,
             "uncompressed_bytes": 800, "crc_ok": True, "is_transactional": False}  # fmt: skip
    forged.add("batches", exchange=100, **batch)
    forged.add("batches", exchange=0, **batch)
    forged.add("batches", exchange=1, **batch | {"partition": 1, "crc_ok": False, "record_count": 8})
    forged.add("batches", exchange=1, **batch | {"producer_id": None, "codec": "none", "uncompressed_bytes": None})
    forged.add("batches", exchange=1, **batch | {"is_control": True, "codec": "none"})
    forged.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=0, max=11)
    forged.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=3, max=12)
    for second, leader, isr in ((0, 1, [1, 2]), (30, 2, [2])):
        forged.add("leaders", time=at(second), topic_id=ORDERS, partition=0, leader=leader, leader_epoch=second,
                   isr=isr)  # fmt: skip
    forged.add("brokers", node_id=1, host="one", port=9092)
    forged.add("brokers", node_id=2, host="two", port=9092, rack="b")
    forged.unrecognised.append(
        {"capture": forged.capture, "connection": "1.1.1.1:1-2.2.2.2:2#1", "payload_bytes": 7, "looks_like": "HTTP"}
    )


@pytest.fixture(scope="module")
def asked(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The views over `conversation`."""
    forged = Forged(tmp_path_factory.mktemp("views") / "day [1]*{a,b}")  # a folder's name is no pattern
    conversation(forged)
    return Asked(spark, forged.write())


def test_quantiles_of_many_exchanges_are_a_little_off(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations, "EXACT_EXCHANGES", 100)
    forged = Forged(tmp_path / "many")
    for number in range(1, 202):
        forged.exchange("Produce", latency_ms=number / 1000 if number <= 100 else number)
    forged.exchange("Metadata", latency_ms=-0.007)
    forged.write()
    asked = Asked(spark, forged.path)
    produce = asked.only("SELECT * FROM latency_by_api WHERE api = 'Produce'")
    assert (produce["timed"], produce["max_us"]) == (201, 201_000)
    assert produce["p50_us"] == pytest.approx(101_000, rel=0.008)
    assert produce["p95_us"] == pytest.approx(191_000, rel=0.008)
    # Small ones, and those that are none, keep their value.
    kept = asked("SELECT bucketed(n) AS v FROM VALUES (-7), (0), (1), (99), (255), (NULL) AS t(n)")
    assert [row["v"] for row in kept] == [-7, 0, 1, 99, 255, None]


def test_every_view_has_the_columns_that_it_explains(asked: Asked) -> None:
    assert set(asked.names) >= {*tables.TABLES, *(view.name for view in catalog.views()), "captures", "kafka_errors"}
    for view in catalog.views():
        assert asked.spark.table(view.name).columns == list(view.columns), view.name


def test_quantiles_are_exact_between_neighbours(asked: Asked) -> None:
    produce = asked.only("SELECT * FROM latency_by_api WHERE api = 'Produce'")
    # 1 to 100 ms and another 5 ms: the median is the 51st of 101, the 95th percentile the 96th.
    assert produce["exchanges"] == produce["timed"] == 101
    assert produce["errors"] == 1
    assert (produce["p50_us"], produce["p95_us"], produce["p99_us"]) == (50_000, 95_000, 99_000)
    assert produce["max_us"] == 100_000
    metadata = asked.only("SELECT * FROM latency_by_api WHERE api = 'Metadata'")
    assert (metadata["exchanges"], metadata["timed"], metadata["p50_us"]) == (1, 0, None)


def test_latency_by_broker_client_and_topic(asked: Asked) -> None:
    brokers = asked("SELECT DISTINCT broker FROM latency_by_broker")
    assert brokers == [{"broker": "10.0.0.9:9092"}]
    fetch = asked.only("SELECT * FROM latency_by_client WHERE client_id = 'report' AND api = 'Fetch'")
    assert (fetch["client_ip"], fetch["exchanges"], fetch["max_us"]) == ("10.0.0.2", 3, 500_000)
    topics = {(row["topic"], row["api"]): row["exchanges"] for row in asked("latency_by_topic")}
    assert topics == {("orders", "Produce"): 101, ("orders", "Fetch"): 1}


def test_load_by_second_and_minute(asked: Asked) -> None:
    minutes = {row["time"].minute: row["exchanges"] for row in asked("latency_by_minute")}
    assert minutes == {4: 106, 5: 5}  # it began at 03:04:05
    first = asked("latency_by_second")[0]
    assert (first["exchanges"], first["errors"]) == (10, 1)  # nine produces and the ApiVersions
    assert first["request_bytes"] == 45_000 + 100


def test_slowest_exchanges_say_what_may_wait(asked: Asked) -> None:
    slowest = asked("slowest_exchanges")
    assert [(row["api"], row["waits"]) for row in slowest[:3]] == [
        ("JoinGroup", "members"), ("Fetch", "data"), ("Fetch", "data"),
    ]  # fmt: skip
    assert slowest[1]["topics"] == "orders"  # by its id


def test_errors_by_api_client_topic_and_time(asked: Asked) -> None:
    by_api = {row["error"]: (row["api"], row["retriable"], row["exchanges"]) for row in asked("errors_by_api")}
    assert by_api == {
        "NOT_LEADER_OR_FOLLOWER": ("Produce", True, 1),
        "TOPIC_ALREADY_EXISTS": ("CreateTopics", False, 1),
        "NOT_COORDINATOR": ("OffsetFetch", True, 1),
        "UNSUPPORTED_VERSION": ("ApiVersions", False, 1),
    }
    assert {row["client_id"] for row in asked("errors_by_client")} == {"app", "report"}
    by_topic = {(row["topic"], row["error"]): row["partitions"] for row in asked("errors_by_topic")}
    assert by_topic == {("orders", "NOT_LEADER_OR_FOLLOWER"): 1, ("new", "TOPIC_ALREADY_EXISTS"): 0}
    assert sum(row["exchanges"] for row in asked("errors_by_second")) == 4


def test_unanswered_and_throttled(asked: Asked) -> None:
    row = asked.only("unanswered")
    assert (row["api"], row["status"], row["closed"]) == ("Metadata", "unanswered", "fin")
    row = asked.only("throttled")
    assert (row["client_id"], row["throttled"], row["total_us"]) == ("report", 1, 30_000)


def test_clients_with_their_software_and_versions(asked: Asked) -> None:
    app, report = asked("clients")
    assert (app["client_id"], app["software_name"], app["software_version"]) == ("app", "librdkafka", "2.5.0")
    assert (app["requests"], app["errors"], app["connections"], app["addresses"]) == (106, 2, 1, "10.0.0.1")
    assert report["apis"] == "CreateTopics v1; Fetch v1, v19; OffsetFetch v1"


def test_upgrade_check_tells_what_a_release_lacks(asked: Asked) -> None:
    found = {
        (row["client_id"], row["api"], row["api_version"]): (row["problem"], row["sender"], row["min"], row["max"])
        for row in asked("SELECT * FROM upgrade_check WHERE release = '4.0'")
    }
    assert found["app", "Produce", 1] == ("version is gone", "client", 3, 12)
    assert found["report", "Fetch", 19] == ("not there yet", "client", 4, 17)
    assert found["app", "LeaderAndIsr", 1] == ("API is gone", "broker", None, None)
    assert ("app", "ApiVersions", 3) not in found
    before = asked("SELECT * FROM upgrade_check WHERE release = '3.9' AND api <> 'Fetch'")
    assert before == []


def test_versions_offered(asked: Asked) -> None:
    row = asked.only("offered_versions")
    assert (row["api"], row["min"], row["max"], row["changed"]) == ("Produce", 0, 12, True)


def test_consumers_of_a_topic_known_by_its_id(asked: Asked) -> None:
    row = asked.only("consumers")
    assert (row["topic"], row["client_id"], row["groups"]) == ("orders", "report", "g")
    assert (row["record_bytes"], row["records"], row["max_lag"], row["empty_share"]) == (300, 3, 2, 0.0)
    row = asked.only("fetch_efficiency")
    assert (row["fetches"], row["records"]) == (3, 3)
    assert row["empty_share"] == pytest.approx(2 / 3)


def test_partitions_with_and_without_an_offset(asked: Asked) -> None:
    produced = asked("SELECT * FROM partition_bytes WHERE side = 'produce' ORDER BY partition")
    assert [(row["exchanges"], row["errors"], row["record_bytes"]) for row in produced] == [(2, 1, 200), (1, 0, 600)]
    skew = asked.only("SELECT * FROM partition_skew WHERE side = 'produce'")
    assert (skew["largest_partition"], skew["largest_share"], skew["skew"]) == (1, 0.75, 1.5)


def test_producers_with_their_batches(asked: Asked) -> None:
    row = asked.only("producers")
    assert (row["topic"], row["client_id"], row["software_name"]) == ("orders", "app", "librdkafka")
    assert (row["requests"], row["errors"], row["acks"], row["partitions"]) == (101, 1, "1, all", 2)
    assert (row["record_bytes"], row["records"], row["codecs"]) == (800, 10, "none, zstd")
    assert row["idempotent"] == 0.75
    zstd, plain = asked("produce_efficiency")
    assert (zstd["codec"], zstd["batches"], zstd["records_per_batch"], zstd["bad_checksums"]) == ("zstd", 3, 4.0, 1)
    assert (zstd["requests"], zstd["compression_ratio"]) == (3, 4.0)
    assert (plain["codec"], plain["batches"], plain["compression_ratio"]) == ("none", 1, None)


def test_a_batch_that_is_sent_again_is_a_retry(asked: Asked) -> None:
    row = asked.only("retries")
    assert (row["topic"], row["partition"], row["producer_id"], row["base_sequence"]) == ("orders", 0, 7, 0)
    assert (row["times"], row["connections"], row["client_id"]) == (2, 1, "app")
    assert row["results"] == "ok, NOT_LEADER_OR_FOLLOWER"  # in order of sending


def test_groups_and_their_lag(asked: Asked) -> None:
    row = asked.only("groups_seen")
    assert (row["group_id"], row["protocol"], row["generations"], row["members"]) == ("g", "classic", 2, 2)
    assert (row["joins"], row["commits"], row["errors"]) == (1, 1, 1)
    row = asked.only("group_lag")
    # Fetches saw 45; the last produce went to 40 and 41.
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (30, 45, 15)


def test_connections_by_health_and_churn(asked: Asked) -> None:
    health = {row["client_id"]: row for row in asked("connection_health")}
    assert (health["report"]["resets"], health["report"]["short"], health["report"]["retransmissions"]) == (1, 1, 3)
    assert (health["app"]["rtt_p50_us"], health["app"]["resets"], health["app"]["short"]) == (250, 0, 0)
    churn = [(row["opened"], row["closed"], row["resets"]) for row in asked("connection_churn")]
    assert churn == [(2, 1, 1), (0, 1, 0)]


def test_sizes(asked: Asked) -> None:
    sizes = asked.only("SELECT * FROM request_sizes WHERE api = 'Produce'")
    assert (sizes["request_max_bytes"], sizes["response_bytes"]) == (100_000, 101 * 50)
    metadata = asked.only("SELECT * FROM request_sizes WHERE api = 'Metadata'")
    assert (metadata["requests"], metadata["responses"], metadata["response_bytes"]) == (1, 0, None)


def test_leaders_over_time(asked: Asked) -> None:
    first, second = asked("leader_changes")
    assert (first["topic"], first["broker"], first["isr"], first["to_time"]) == (
        "orders", "one:9092", "1, 2", second["from_time"],
    )  # fmt: skip
    assert (second["leader"], second["previous_leader"], second["to_time"]) == (2, 1, None)
    assert [row["partitions_led"] for row in asked("broker_addresses")] == [0, 1]


def test_coverage_accounts_for_every_byte(asked: Asked) -> None:
    parts = {(row["part"], row["reason"]): row for row in asked("coverage") if row["bytes"]}
    assert {key: row["bytes"] for key, row in parts.items()} == {
        ("decoded", None): 900, ("duplicate", None): 60, ("opaque", "malformed"): 40, ("missing", "gap"): 500,
    }  # fmt: skip
    assert parts["decoded", None]["share"] == 0.9
    assert asked.only("SELECT connection, looks_like FROM unrecognised")["looks_like"] == "HTTP"


def test_several_datasets_keep_their_keys_apart_and_may_lack_tables(spark: Any, tmp_path: Path) -> None:
    for day, exchanges in (("monday", 1), ("tuesday", 2)):
        forged = Forged(tmp_path / day)
        for _ in range(exchanges):
            forged.exchange("Produce", topics=["orders"])
        forged.write()
    asked = Asked(spark, tmp_path / "monday", tmp_path / "tuesday")
    counted = asked("SELECT capture, count(*) AS exchanges FROM exchanges GROUP BY capture")
    counts = {row["capture"]: row["exchanges"] for row in counted}
    assert counts == {"monday/forged.pcap": 1, "tuesday/forged.pcap": 2}
    assert {row["capture"] for row in asked("captures")} == set(counts)
    assert asked.only("latency_by_api")["exchanges"] == 3


def test_a_dataset_without_a_row_has_no_answers(spark: Any, tmp_path: Path) -> None:
    asked = Asked(spark, Forged(tmp_path / "empty").write())
    for name in tables.TABLES:
        assert asked(name) == []
    assert asked("latency_by_api") == asked("coverage") == asked("group_lag") == []


def test_a_folder_that_is_no_dataset_is_said(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a dataset"):
        reports.register(spark.newSession(), tmp_path)
