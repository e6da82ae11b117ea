"""Answers of each view over rows that the tests write, known by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer, reports
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import DatasetError
from kwire.reports import catalog, relations
from kwire.reports.embedded import engine
from kwire.reports.engine_protocol import UnsupportedSqlError
from kwire.reports.page import sections
from tests.reports.agreement import difference
from tests.reports.forging import Forged, at
from tests.shared import real_folder

GREEN, RED = "10.0.0.1:5000-10.0.0.9:9092#1", "10.0.0.2:6000-10.0.0.9:9092#1"
ORDERS = "a" * 22
"""Id of the topic `orders`."""


class Views:
    """Views over datasets, in a session of their own, and in the embedded engine, which gives the same wherever it
    takes the query. Of the views those are made that a query needs: Spark takes seconds to understand them all."""

    def __init__(self, spark: Any, *paths: Path) -> None:
        self.spark = spark.newSession()
        self.paths = paths
        self._registered: set[str] = set()

    def __call__(self, query: str) -> list[dict[str, Any]]:
        query = query if " " in query else f"SELECT * FROM {query}"
        wanted = (catalog.needed(query) or frozenset(relations.names())) - self._registered
        relations.register(self.spark, self.paths, wanted)
        self._registered |= wanted
        table = self.spark.sql(query).toArrow()
        with engine.opened(self.paths) as embedded, contextlib.suppress(UnsupportedSqlError):
            same = embedded.ask(query)[0]
            assert difference(table, same, "ORDER BY" in query or query.endswith("_by_second")) is None
        return table.to_pylist()  # type: ignore[no-any-return]

    def only(self, query: str) -> dict[str, Any]:
        """The answer's one row."""
        (row,) = self(query)
        return row


def conversation(forged: Forged) -> None:
    """Two clients: `app` (green) produces and commits, `report` (red) fetches, is throttled and meets errors."""
    red: dict[str, Any] = {"connection": RED, "client_ip": "10.0.0.2", "client_port": 6000, "client_id": "report"}
    forged.connection(
        connection=GREEN,
        software_name="librdkafka",
        software_version="2.5.0",
        requests=106,
        payload_bytes=1000,
        decoded_bytes=900,
        duplicate_bytes=60,
        opaque_bytes=40,
        opaque_malformed_bytes=40,
        gap_bytes=500,
    )
    forged.connection(**red, rtt_us=750, closed="rst", last_time=at(0.5), requests=5, retransmissions=3, errors=2)
    forged.add("topic_ids", topic_id=ORDERS, topic="orders")
    # A hundred produces of 1 to 100 ms; the id and the name of one topic count once.
    for number in range(1, 101):
        forged.exchange(
            "Produce",
            latency_ms=number,
            second=number / 10,
            topics=["orders", ORDERS],
            acks=-1,
            request_bytes=1000 * number,
        )
    partition: dict[str, Any] = {"topic": "orders", "partition": 0, "error_code": 0}
    forged.add("partitions", exchange=0, offset_kind="base", offset=40, record_count=2, record_bytes=200, **partition)
    forged.add(
        "partitions",
        exchange=1,
        offset_kind="base",
        offset=42,
        record_count=8,
        record_bytes=600,
        **partition | {"partition": 1},
    )
    # A produce that failed has no offset, and no kind.
    forged.exchange("Produce", latency_ms=5, second=11, topics=["orders"], acks=1, error="NOT_LEADER_OR_FOLLOWER")
    forged.add("partitions", exchange=100, **partition | {"error_code": 6, "error": "NOT_LEADER_OR_FOLLOWER"})
    forged.exchange("OffsetCommit", second=12, group_id="g", topics=["orders"], generation=1, member_id="m-1")
    forged.add("partitions", exchange=101, offset_kind="committed", offset=30, **partition)
    forged.exchange("JoinGroup", second=13, group_id="g", generation=2, member_id="m-2", latency_ms=3000)
    forged.exchange("ApiVersions", second=0, api_version=3, error="UNSUPPORTED_VERSION")
    forged.exchange(
        "Metadata",
        second=14,
        latency_ms=None,
        status="unanswered",
        reply=None,
        response_time=None,
        error_code=None,
        response_bytes=None,
    )
    forged.exchange("LeaderAndIsr", second=15, latency_ms=2)
    # The red client: a fetch of what is in the session only, an empty one, a throttled one, one too new, one error.
    forged.exchange("Fetch", second=70, latency_ms=500, topics=[ORDERS], max_wait_ms=500, min_bytes=1, **red)
    forged.add(
        "partitions",
        connection=RED,
        exchange=106,
        topic_id=ORDERS,
        partition=0,
        error_code=0,
        high_watermark=45,
        record_bytes=300,
        record_count=3,
        lag=2,
    )
    forged.exchange("Fetch", second=71, latency_ms=500, topics=[], max_wait_ms=500, min_bytes=1, group_id=None, **red)
    forged.exchange("Fetch", second=72, latency_ms=20, throttle_us=30_000, api_version=19, **red)
    forged.exchange("CreateTopics", second=73, topics=["new"], error="TOPIC_ALREADY_EXISTS", **red)
    forged.exchange("OffsetFetch", second=74, group_id="g", error="NOT_COORDINATOR", **red)
    # Batches of two produces; the first was sent again after an error, over the same connection.
    batch = {
        "topic": "orders",
        "partition": 0,
        "side": "produce",
        "magic": 2,
        "codec": "zstd",
        "is_control": False,
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "record_count": 2,
        "batch_bytes": 200,
        "uncompressed_bytes": 800,
        "crc_ok": True,
        "is_transactional": False,
    }
    forged.add("batches", exchange=100, **batch)
    forged.add("batches", exchange=0, **batch)
    forged.add("batches", exchange=1, **batch | {"partition": 1, "crc_ok": False, "record_count": 8})
    forged.add("batches", exchange=1, **batch | {"producer_id": None, "codec": "none", "uncompressed_bytes": None})
    forged.add("batches", exchange=1, **batch | {"is_control": True, "codec": "none"})
    forged.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=0, max=11)
    forged.add("api_versions", broker="10.0.0.9:9092", api_key=0, min=3, max=12)
    for second, leader, isr in ((0, 1, [1, 2]), (30, 2, [2])):
        forged.add(
            "leaders", time=at(second), topic_id=ORDERS, partition=0, leader=leader, leader_epoch=second, isr=isr
        )
    forged.add("brokers", node_id=1, host="one", port=9092)
    forged.add("brokers", node_id=2, host="two", port=9092, rack="b")
    forged.unrecognised.append(
        {"capture": forged.capture, "connection": "1.1.1.1:1-2.2.2.2:2#1", "payload_bytes": 7, "looks_like": "HTTP"}
    )


@pytest.fixture(scope="module")
def views(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Views:
    """The views over `conversation`."""
    forged = Forged(tmp_path_factory.mktemp("views") / "day [1]*{a,b}")  # a folder's name is no pattern
    conversation(forged)
    return Views(spark, forged.write())


def test_quantiles_of_many_exchanges_are_a_little_off(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations, "EXACT_EXCHANGES", 100)
    forged = Forged(tmp_path / "many")
    for number in range(1, 202):
        forged.exchange("Produce", latency_ms=number / 1000 if number <= 100 else number)
    forged.exchange("Metadata", latency_ms=-0.007)
    forged.write()
    views = Views(spark, forged.path)
    produce = views.only("SELECT * FROM latency_by_api WHERE api = 'Produce'")
    assert (produce["timed"], produce["max_us"]) == (201, 201_000)
    assert produce["p50_us"] == pytest.approx(101_000, rel=0.008)
    assert produce["p95_us"] == pytest.approx(191_000, rel=0.008)
    # Small ones, and those that are none, keep their value.
    exact = views("SELECT bucketed(n) AS v FROM VALUES (-7), (0), (1), (99), (255), (NULL) AS t(n)")
    assert [row["v"] for row in exact] == [-7, 0, 1, 99, 255, None]


def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(spark: Any, tmp_path: Path) -> None:
    """Of 1 to 40 ms: half of them are at most 20, 95 % at most 38, 99 % at most 40; of one value each is that value; of
    two the median is the smaller."""
    forged = Forged(tmp_path / "few")
    for number in range(40, 0, -1):
        forged.exchange("Produce", latency_ms=number, topics=["orders"], request_bytes=number, response_bytes=1)
    forged.exchange("Fetch", latency_ms=7, api_version=4)
    forged.exchange("Metadata", latency_ms=3)
    forged.exchange("Metadata", latency_ms=9)
    forged.connection(rtt_us=100)
    forged.write()
    views = Views(spark, forged.path)
    rows = {row["api"]: (row["p50_us"], row["p95_us"], row["p99_us"]) for row in views("latency_by_api")}
    assert rows == {
        "Produce": (20_000, 38_000, 40_000),
        "Fetch": (7_000, 7_000, 7_000),
        "Metadata": (3_000, 9_000, 9_000),
    }
    for view in ("latency_by_broker", "latency_by_client", "latency_by_topic"):
        row = views.only(f"SELECT * FROM {view} WHERE api = 'Produce'")
        assert (row["p50_us"], row["p95_us"], row["p99_us"]) == (20_000, 38_000, 40_000)
    producer = views.only("producers")
    assert (producer["p50_us"], producer["p99_us"]) == (20_000, 40_000)
    fetch = views.only("fetch_efficiency")
    assert (fetch["p50_us"], fetch["p99_us"]) == (7_000, 7_000)
    sizes = views.only("SELECT * FROM request_sizes WHERE api = 'Produce'")
    assert (sizes["request_p50_bytes"], sizes["request_p99_bytes"], sizes["response_p99_bytes"]) == (20, 40, 1)
    everything = views("SELECT sum(timed) AS timed, max(p99_us) AS p99_us FROM latency_by_minute")
    assert everything == [{"timed": 43, "p99_us": 40_000}]
    assert views.only("connection_health")["rtt_p50_us"] == 100
    # What only a report asks. (`Asked` has each answer from both engines.)
    own = {question.name: question.sql for question in sections.questions(sections.Span(at(0), at(3600)), "4.0")}
    totals = views.only(own["totals"])  # 42 of 43 wait for nobody: the 21st is 20 ms, as 3 and 9 come twice
    waited = sorted([*range(1, 41), 3, 9])
    assert (totals["p50_us"], totals["p99_us"]) == (waited[20] * 1000, waited[-(-99 * 42 // 100) - 1] * 1000)
    over = [row for row in views(own["over_time"]) if row["api"] == "Produce"]
    assert [(row["p50_us"], row["p95_us"]) for row in over] == [(20_000, 38_000)]


def test_records_and_batches_have_the_names_of_their_topics(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "named")
    other = "B" * 22
    forged.add("topic_ids", topic_id=ORDERS, topic="orders")
    for table in ("records", "batches"):
        for number, named in enumerate(({"topic": "said"}, {"topic_id": ORDERS}, {"topic_id": other})):
            forged.add(table, exchange=number, partition=number, **named)
    forged.write()
    views = Views(spark, forged.path)
    for table in ("records", "batches"):
        rows = sorted(views(f"SELECT * FROM named_{table}"), key=lambda row: int(row["partition"]))
        assert [row["topic"] for row in rows] == ["said", "orders", other]
        plain = sorted(views(f"SELECT * FROM {table}"), key=lambda row: int(row["partition"]))
        assert [{**row, "topic": None} for row in rows] == [{**row, "topic": None} for row in plain]


def test_every_view_has_the_columns_that_it_explains(views: Views) -> None:
    names = reports.register(views.spark, views.paths)
    assert set(names) >= {*tables.TABLES, *(view.name for view in catalog.views()), "captures", "kafka_errors"}
    for view in catalog.views():
        assert views.spark.table(view.name).columns == list(view.columns), view.name


def test_quantiles_are_exact_of_few(views: Views) -> None:
    produce = views.only("SELECT * FROM latency_by_api WHERE api = 'Produce'")
    # 1 to 100 ms and another 5 ms: the median is the 51st of 101, the 95th percentile the 96th, the 99th the 100th.
    assert produce["exchanges"] == produce["timed"] == 101
    assert produce["errors"] == 1
    assert (produce["p50_us"], produce["p95_us"], produce["p99_us"]) == (50_000, 95_000, 99_000)
    assert produce["max_us"] == 100_000
    metadata = views.only("SELECT * FROM latency_by_api WHERE api = 'Metadata'")
    assert (metadata["exchanges"], metadata["timed"], metadata["p50_us"]) == (1, 0, None)


def test_latency_by_broker_client_and_topic(views: Views) -> None:
    brokers = views("SELECT DISTINCT broker FROM latency_by_broker")
    assert brokers == [{"broker": "10.0.0.9:9092"}]
    fetch = views.only("SELECT * FROM latency_by_client WHERE client_id = 'report' AND api = 'Fetch'")
    assert (fetch["client_ip"], fetch["exchanges"], fetch["max_us"]) == ("10.0.0.2", 3, 500_000)
    topics = {(row["topic"], row["api"]): row["exchanges"] for row in views("latency_by_topic")}
    assert topics == {("orders", "Produce"): 101, ("orders", "Fetch"): 1}


def test_load_by_second_and_minute(views: Views) -> None:
    minutes = {row["time"].minute: row["exchanges"] for row in views("latency_by_minute")}
    assert minutes == {4: 106, 5: 5}  # it began at 03:04:05
    first = views("latency_by_second")[0]
    assert (first["exchanges"], first["errors"]) == (10, 1)  # nine produces and the ApiVersions
    assert first["request_bytes"] == 45_000 + 100


def test_slowest_exchanges_are_those_that_did_not_wait_on_purpose(views: Views) -> None:
    slowest = views("slowest_exchanges")
    assert [(row["api"], row["served_us"]) for row in slowest[:2]] == [("Produce", 100_000), ("Produce", 99_000)]
    join = next(row for row in slowest if row["api"] == "JoinGroup")
    assert (join["waits"], join["latency_us"], join["held_us"], join["served_us"]) == (
        "members",
        3_000_000,
        2_998_000,
        2000,
    )
    fetch = next(row for row in slowest if row["topics"] == "orders" and row["api"] == "Fetch")  # by its id
    assert (fetch["waits"], fetch["held_us"], fetch["served_us"]) == ("data", 500_000, 0)


def test_waiting_is_told_apart_where_it_can_be(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "waits")
    fetch: dict[str, Any] = {"api": "Fetch", "max_wait_ms": 500}
    cases: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
        "behind another": ({"api": "Metadata", "latency_ms": 900, "queue_us": 880_000}, (20_000, None, 0, 20_000)),
        "its time was up": (fetch | {"latency_ms": 503}, (503_000, "data", 500_000, 3000)),
        "data came, or was there": (fetch | {"latency_ms": 90}, (90_000, "data", None, None)),
        "at once": (fetch | {"latency_ms": 1}, (1000, "data", 0, 1000)),
        "throttled": (fetch | {"latency_ms": 90, "throttle_us": 5}, (90_000, "data", 0, 90_000)),
        "sent away": (
            {"api": "JoinGroup", "latency_ms": 90, "error": "MEMBER_ID_REQUIRED"},
            (90_000, "members", 0, 90_000),
        ),
        "for the leader": ({"api": "SyncGroup", "latency_ms": 90}, (90_000, "members", None, None)),
        "for replicas": ({"api": "Produce", "latency_ms": 90, "acks": -1}, (90_000, "replicas", 0, 90_000)),
        "refused": (
            {"api": "SaslAuthenticate", "latency_ms": 103, "error": "SASL_AUTHENTICATION_FAILED"},
            (103_000, "penalty", 100_000, 3000),
        ),
    }
    for waiting, _ in cases.values():
        forged.exchange(**waiting)
    rows = Views(spark, forged.write())("SELECT * FROM timed_exchanges ORDER BY exchange")
    seen = [(row["taken_us"], row["waits"], row["held_us"], row["served_us"]) for row in rows]
    assert dict(zip(cases, seen)) == {name: expected for name, (_, expected) in cases.items()}
    latency = Views(spark, forged.path).only("SELECT * FROM latency_by_api WHERE api = 'Metadata'")
    assert (latency["p50_us"], latency["max_us"]) == (20_000, 20_000)


def test_what_ended_a_wait_is_named(spark: Any, tmp_path: Path) -> None:
    """Time, the first of two Produces, one that was not captured, and a reader that was told of an error."""
    forged = Forged(tmp_path / "held")
    forged.add("topic_ids", topic_id=ORDERS, topic="orders")
    fetch: dict[str, Any] = {"api": "Fetch", "max_wait_ms": 500, "client_id": "report", "connection": RED}

    def place(exchange: int, connection: str, **columns: Any) -> None:
        forged.add("partitions", exchange=exchange, connection=connection, error_code=0, **columns)

    forged.exchange(second=0, latency_ms=503, hold_us=500_000, **fetch)
    place(0, RED, topic_id=ORDERS, partition=0, offset=40, offset_kind="fetch", record_bytes=0)
    forged.exchange(second=1, latency_ms=200, hold_us=199_000, **fetch)
    for partition in (0, 1):  # by its id; the producer says the name
        place(1, RED, topic_id=ORDERS, partition=partition, offset=40, offset_kind="fetch", record_bytes=10)
    for partition, second in ((1, 1.19), (0, 1.18)):
        number = len(forged.rows["exchanges"])
        forged.exchange("Produce", second=second, latency_ms=5, connection=GREEN)
        place(number, GREEN, topic="orders", partition=partition, offset=40, offset_kind="base")
    forged.exchange(second=2, latency_ms=90, hold_us=89_000, **fetch)
    place(4, RED, topic_id=ORDERS, partition=0, offset=41, offset_kind="fetch", record_bytes=10)
    forged.exchange(second=3, latency_ms=90, hold_us=89_000, error="NOT_LEADER_OR_FOLLOWER", **fetch)
    forged.exchange(second=4, latency_ms=3, hold_us=0, **fetch)
    forged.exchange(second=5, latency_ms=90, hold_us=None, **fetch)
    # Its time was over, and there was less than it had asked for.
    forged.exchange(second=6, latency_ms=503, hold_us=500_000, min_bytes=1000, **fetch)
    place(8, RED, topic_id=ORDERS, partition=0, offset=40, offset_kind="fetch", record_bytes=10)
    ended = [
        (row["exchange"], row["ended_by"], row["partition"], row["producer"], row["produce_exchange"])
        for row in Views(spark, forged.write())("held_fetches")
    ]
    assert ended == [
        (0, "time", None, None, None),
        (1, "records", 0, "app", 3),
        (4, "unseen", None, None, None),
        (5, "other", None, None, None),
        (8, "time", None, None, None),
    ]


def test_errors_in_a_row_end_with_a_good_answer(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "runs")
    for second, error in ((0, "NOT_COORDINATOR"), (1, "NOT_COORDINATOR"), (2, None), (3, "NOT_COORDINATOR")):
        forged.exchange("Heartbeat", second=second, group_id="g", error=error)
    forged.exchange("Produce", second=4, topics=["orders"], error="MESSAGE_TOO_LARGE")
    forged.add("partitions", exchange=4, topic="orders", partition=1, error_code=10, error="MESSAGE_TOO_LARGE")
    forged.exchange("Produce", second=5, topics=["orders"])
    forged.add("partitions", exchange=5, topic="orders", partition=1, error_code=0, offset_kind="base", offset=1)
    forged.exchange("CreateTopics", second=6, topics=["orders"], error="TOPIC_ALREADY_EXISTS")
    views = Views(spark, forged.write())
    runs = views("error_runs")
    assert [
        (
            row["error"],
            row["group_id"] or row["topic"],
            row["partition"],
            row["judgement"],
            row["fault"],
            row["answers"],
            row["cleared"],
        )
        for row in runs
    ] == [
        ("MESSAGE_TOO_LARGE", "orders", 1, "bad", True, 1, True),
        ("NOT_COORDINATOR", "g", None, "transient", False, 2, True),
        ("NOT_COORDINATOR", "g", None, "transient", False, 1, False),
        ("TOPIC_ALREADY_EXISTS", "orders", None, "admin", False, 1, False),
    ]
    events = [(row["kind"], row["what"], row["detail"]) for row in views("events")]
    assert events[0] == ("error", "g", "Heartbeat: NOT_COORDINATOR, 2 times")


def test_logins_reconnects_and_lag_over_time(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "clients")
    good = "10.0.0.1:5001-10.0.0.9:9092#1"
    forged.connection(sasl_mechanism="PLAIN", closed="rst", last_time=at(1))
    forged.connection(connection=good, sasl_mechanism="PLAIN")
    forged.exchange("SaslAuthenticate", second=1, error="SASL_AUTHENTICATION_FAILED")
    forged.exchange("SaslAuthenticate", second=2, connection=good)
    for step in range(3):
        forged.exchange("Fetch", second=10 * step, topics=["orders"])
        forged.add("partitions", exchange=2 + step, topic="orders", partition=0, error_code=0, lag=100 * step)
    forged.exchange("JoinGroup", second=40, group_id="g", generation=3)
    forged.exchange("ConsumerGroupHeartbeat", second=41, group_id="h", generation=0)
    forged.exchange("ConsumerGroupHeartbeat", second=42, group_id="h", generation=1)
    forged.exchange("ConsumerGroupHeartbeat", second=43, group_id="h", generation=-1)
    forged.exchange("EndTxn", second=44, transactional_id="x")
    views = Views(spark, forged.write())
    login = views.only("logins")
    assert (login["mechanism"], login["accepted"], login["refused"], login["good_after"]) == ("PLAIN", 1, 1, True)
    again = views.only("reconnects")
    assert (again["opened"], again["brief"], again["connections"]) == (2, 1, 2)
    lag = views.only("lag_trend")
    assert (lag["steps"], lag["rising"], lag["first_lag"], lag["last_lag"]) == (2, 2, 0, 200)
    assert [row["kind"] for row in views("events")] == [
        "reset",
        "error",
        "login",
        "join",
        "join",
        "leave",
        "transaction",
    ]


def test_errors_by_api_client_topic_and_time(views: Views) -> None:
    by_api = {row["error"]: (row["api"], row["retriable"], row["exchanges"]) for row in views("errors_by_api")}
    assert by_api == {
        "NOT_LEADER_OR_FOLLOWER": ("Produce", True, 1),
        "TOPIC_ALREADY_EXISTS": ("CreateTopics", False, 1),
        "NOT_COORDINATOR": ("OffsetFetch", True, 1),
        "UNSUPPORTED_VERSION": ("ApiVersions", False, 1),
    }
    assert {row["client_id"] for row in views("errors_by_client")} == {"app", "report"}
    by_topic = {(row["topic"], row["error"]): row["partitions"] for row in views("errors_by_topic")}
    assert by_topic == {("orders", "NOT_LEADER_OR_FOLLOWER"): 1, ("new", "TOPIC_ALREADY_EXISTS"): 0}
    assert sum(row["exchanges"] for row in views("errors_by_second")) == 4


def test_unanswered_and_throttled(views: Views) -> None:
    row = views.only("unanswered")
    assert (row["api"], row["status"], row["closed"]) == ("Metadata", "unanswered", "fin")
    row = views.only("throttled")
    assert (row["client_id"], row["throttled"], row["total_us"]) == ("report", 1, 30_000)


def test_what_connections_ask_for(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path)
    forged.exchange("Fetch", second=1, throttle_us=0, request_bytes=10, response_bytes=100)
    forged.exchange(
        "Fetch", second=2, throttle_us=700, error="NOT_LEADER_OR_FOLLOWER", request_bytes=20, response_bytes=50
    )
    forged.exchange("Fetch", second=3, api_version=19, request_state="malformed", throttle_us=None)
    forged.exchange("Fetch", exchange=None, status="orphan_response", request_time=None, request_bytes=None)
    views = Views(spark, forged.write())
    rows = {(row["asked"], row["api_version"] == 19): row for row in views("connection_apis")}
    assert len(rows) == 3
    usual, newer, orphan = rows[True, False], rows[True, True], rows[False, False]
    assert (usual["exchanges"], usual["errors"], usual["muted"], usual["delayed"]) == (2, 1, 2, 1)
    assert (usual["max_throttle_us"], usual["throttle_us"], usual["undecoded"]) == (700, 700, 0)
    assert (usual["request_bytes"], usual["response_bytes"]) == (30, 150)
    assert (usual["first_time"], usual["last_time"]) == (at(1), at(2))
    assert (newer["exchanges"], newer["undecoded"], newer["muted"], newer["throttle_us"]) == (1, 1, 0, None)
    assert (orphan["status"], orphan["asked"], orphan["request_bytes"], orphan["first_time"]) == (
        "orphan_response",
        False,
        None,
        None,
    )


def test_clients_with_their_software_and_versions(views: Views) -> None:
    app, report = views("clients_seen")
    assert (app["client_id"], app["software_name"], app["software_version"]) == ("app", "librdkafka", "2.5.0")
    assert (app["requests"], app["errors"], app["connections"], app["addresses"]) == (106, 2, 1, "10.0.0.1")
    assert report["apis"] == "CreateTopics v1; Fetch v1, v19; OffsetFetch v1"


def test_upgrade_check_tells_what_a_release_lacks(views: Views) -> None:
    lacking = {
        (row["client_id"], row["api"], row["api_version"]): (row["problem"], row["sender"], row["min"], row["max"])
        for row in views("SELECT * FROM upgrade_check WHERE release = '4.0'")
    }
    assert lacking["app", "Produce", 1] == ("version is gone", "client", 3, 12)
    assert lacking["report", "Fetch", 19] == ("not there yet", "client", 4, 17)
    assert lacking["app", "LeaderAndIsr", 1] == ("API is gone", "broker", None, None)
    assert ("app", "ApiVersions", 3) not in lacking
    before = views("SELECT * FROM upgrade_check WHERE release = '3.9' AND api <> 'Fetch'")
    assert before == []


def test_versions_offered(views: Views) -> None:
    row = views.only("offered_versions")
    assert (row["api"], row["min"], row["max"], row["changed"]) == ("Produce", 0, 12, True)


def test_consumers_of_a_topic_known_by_its_id(views: Views) -> None:
    row = views.only("consumers")
    assert (row["topic"], row["client_id"], row["groups"]) == ("orders", "report", "g")
    assert (row["record_bytes"], row["records"], row["max_lag"], row["empty_share"]) == (300, 3, 2, 0.0)
    row = views.only("fetch_efficiency")
    assert (row["fetches"], row["records"]) == (3, 3)
    assert row["empty_share"] == pytest.approx(2 / 3)


def test_a_fetch_of_a_session_is_an_answer_where_it_tells_of_the_partition(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    for number, error in enumerate((0, 0, None)):  # the last leaves it out, or was not answered
        forged.exchange("Fetch", second=number, topics=["t"])
        held = 100 if number == 0 else None
        forged.add(
            "partitions",
            exchange=number,
            reply=number,
            topic="t",
            partition=0,
            offset=number,
            offset_kind="fetch",
            error_code=error,
            record_bytes=held,
        )
    views = Views(spark, forged.write())
    row = views.only("consumers")
    assert (row["fetches"], row["empty_share"]) == (2, 0.5)
    row = views.only("partition_bytes")
    assert (row["exchanges"], row["answers"], row["empty"]) == (3, 2, 1)


def test_producers_wait_without_what_they_wait_behind_their_own_requests(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    forged.exchange("Produce", 1, topics=["t"], acks=1, queue_us=0)
    forged.exchange("Produce", 30, topics=["t"], acks=1, queue_us=27_000, muted_us=1_000)
    views = Views(spark, forged.write())
    rows = [views.only(view) for view in ("producers", "latency_by_topic", "latency_by_client")]
    assert [(row["p50_us"], row["p99_us"], row["max_us"]) for row in rows] == [(1000, 2000, 2000)] * 3


def test_partitions_with_and_without_an_offset(views: Views) -> None:
    produced = views("SELECT * FROM partition_bytes WHERE side = 'produce' ORDER BY partition")
    assert [(row["exchanges"], row["errors"], row["record_bytes"]) for row in produced] == [(2, 1, 200), (1, 0, 600)]
    skew = views.only("SELECT * FROM partition_skew WHERE side = 'produce'")
    assert (skew["largest_partition"], skew["largest_share"], skew["skew"]) == (1, 0.75, 1.5)


def test_producers_with_their_batches(views: Views) -> None:
    row = views.only("producers")
    assert (row["topic"], row["client_id"], row["software_name"]) == ("orders", "app", "librdkafka")
    assert (row["requests"], row["errors"], row["acks"], row["partitions"]) == (101, 1, "1, all", 2)
    assert (row["record_bytes"], row["records"], row["codecs"]) == (800, 10, "none, zstd")
    assert row["idempotent"] == 0.75
    # Of the produce that failed no partition says how much it held.
    assert (row["delivered_records"], row["refused_records"], row["unknown_records"]) == (10, 0, 0)
    zstd, plain = views("produce_efficiency")
    assert (zstd["codec"], zstd["batches"], zstd["records_per_batch"], zstd["bad_checksums"]) == ("zstd", 3, 4.0, 1)
    # Each of the three: 800 bytes of records became 200, of which 61 are the batch's header.
    assert (zstd["requests"], zstd["compression_ratio"]) == (3, pytest.approx(800 / 139))
    assert (plain["codec"], plain["batches"], plain["compression_ratio"]) == ("none", 1, None)


def test_a_batch_that_is_sent_again_is_a_retry(views: Views) -> None:
    row = views.only("retries")
    assert (row["topic"], row["partition"], row["producer_id"], row["base_sequence"]) == ("orders", 0, 7, 0)
    assert (row["times"], row["connections"], row["client_id"]) == (2, 1, "app")
    assert row["results"] == "ok, NOT_LEADER_OR_FOLLOWER"  # in order of sending


def test_groups_and_their_lag(views: Views) -> None:
    row = views.only("groups_seen")
    assert (row["group_id"], row["protocol"], row["generations"], row["members"]) == ("g", "classic", 2, 2)
    assert (row["joins"], row["commits"], row["errors"]) == (1, 1, 1)
    row = views.only("group_lag")
    # Fetches saw 45; the last produce went to 40 and 41.
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (30, 45, 15)


def lag_of(spark: Any, path: Path, *rows: dict[str, Any]) -> tuple[int | None, int | None]:
    """End and lag of a group that committed 30, and what else was said of the partition."""
    forged = Forged(path)
    forged.exchange("OffsetCommit", group_id="g", topics=["orders"])
    partition: dict[str, Any] = {"topic": "orders", "partition": 0, "error_code": 0}
    forged.add("partitions", exchange=0, offset_kind="committed", offset=30, **partition)
    for row in rows:
        forged.exchange("ListOffsets", topics=["orders"])
        forged.add("partitions", exchange=1, **partition | row)
    views = Views(spark, forged.write())
    group_lag = views.only("group_lag")
    return group_lag["end_offset"], group_lag["lag"]


def test_a_lag_is_null_where_the_end_is_not_known(spark: Any, tmp_path: Path) -> None:
    listed = {"offset_kind": "listed"}
    assert lag_of(spark, tmp_path / "nothing") == (None, None)
    assert lag_of(spark, tmp_path / "end", listed | {"offset": 42}) == (42, 12)
    assert lag_of(spark, tmp_path / "begin", listed | {"offset": 0}) == (None, None)
    # What is listed alone may be where the partition begins; where it begins before, it is the end.
    assert lag_of(spark, tmp_path / "same", listed | {"offset": 30}) == (None, None)
    assert lag_of(spark, tmp_path / "both", listed | {"offset": 0}, listed | {"offset": 30}) == (30, 0)
    assert lag_of(spark, tmp_path / "mark", {"high_watermark": 29}, listed | {"offset": 5}) == (29, 0)
    assert lag_of(spark, tmp_path / "error", listed | {"offset": 42, "error_code": 6}) == (None, None)


def test_producers_tell_what_was_delivered_refused_and_not_known(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "refused")
    for acks, error, count in ((-1, 0, 10), (-1, 6, 20), (0, None, 40)):
        number = len(forged.rows["exchanges"])
        forged.exchange("Produce", topics=["orders"], acks=acks)
        forged.add(
            "partitions",
            exchange=number,
            topic="orders",
            partition=0,
            error_code=error,
            record_count=count,
            offset_kind="base" if error == 0 else None,
            offset=5 if error == 0 else None,
            record_bytes=count * 100,
        )
    row = Views(spark, forged.write()).only("producers")
    assert (row["records"], row["record_bytes"]) == (70, 7000)
    assert (row["delivered_records"], row["delivered_bytes"]) == (10, 1000)
    assert (row["refused_records"], row["refused_bytes"]) == (20, 2000)
    assert (row["unknown_records"], row["unknown_bytes"]) == (40, 4000)


def test_a_batch_that_is_not_compressed_has_the_ratio_one(spark: Any, tmp_path: Path) -> None:
    """In every format: the headers before the records are no records."""
    forged = Forged(tmp_path / "plain")
    forged.exchange("Produce", topics=["orders"])
    batch = {
        "exchange": 0,
        "topic": "orders",
        "partition": 0,
        "side": "produce",
        "codec": "none",
        "record_count": 1,
        "is_control": False,
        "crc_ok": True,
    }
    for magic, size, records in ((2, 1966, 1905), (1, 73, 47), (0, 65, 47)):
        forged.add("batches", **batch, magic=magic, batch_bytes=size, uncompressed_bytes=records)
    assert Views(spark, forged.write()).only("produce_efficiency")["compression_ratio"] == 1.0


def test_members_of_the_newer_protocols_join_and_leave_by_heartbeats(spark: Any, tmp_path: Path) -> None:
    forged = Forged(tmp_path / "groups")
    for api, group in (("ConsumerGroupHeartbeat", "new"), ("ShareGroupHeartbeat", "shared")):
        for epoch in (0, 1, 1, 2, -1, 0, 3, -2):
            forged.exchange(api, group_id=group, member_id="m", generation=epoch)
    rows = {row["group_id"]: row for row in Views(spark, forged.write())("groups_seen")}
    assert {name: (row["protocol"], row["joins"], row["leaves"], row["heartbeats"]) for name, row in rows.items()} == {
        "new": ("consumer", 2, 2, 8),
        "shared": ("share", 2, 2, 8),
    }


def test_a_node_is_listed_once_by_the_listener_of_its_clients(spark: Any, tmp_path: Path) -> None:
    """A combined node of KRaft: 9093 is its controller's listener, and comes first in the alphabet of nobody."""
    forged = Forged(tmp_path / "kraft")
    forged.exchange("Metadata", broker_port=9194)
    forged.exchange("Vote", broker_port=9093)
    forged.add("brokers", node_id=1, host="one", port=9093)
    forged.add("brokers", node_id=1, host="one", port=9194)
    forged.add("brokers", node_id=2, host="two", port=9093)
    cluster = "AAAAAAAAAAAAAAAAAAAAAQ"
    forged.add("leaders", time=at(1), topic_id=cluster, partition=0, leader=1, leader_epoch=1)
    forged.add("leaders", time=at(2), topic="__cluster_metadata", partition=0, leader=1, leader_epoch=2)
    views = Views(spark, forged.write())
    first, two = views("broker_addresses")
    assert (first["node_id"], first["host"], first["port"], first["other_addresses"]) == (1, "one", 9194, "one:9093")
    assert (two["node_id"], two["host"], two["port"], two["other_addresses"]) == (2, "two", 9093, None)
    # The topic's id is a constant: one topic, though no message says both.
    assert first["partitions_led"] == 1
    assert {(row["topic"], row["broker"]) for row in views("leader_changes")} == {("__cluster_metadata", "one:9194")}


def test_a_cluster_of_kraft_as_it_was_captured(spark: Any, tmp_path: Path) -> None:
    """Three combined nodes on one machine: 9092, 9102 and 9112 are for clients."""
    analyzer.analyze(real_folder("cluster-kraft-3.9"), out=tmp_path / "data", records="none")
    views = Views(spark, tmp_path / "data")
    assert [(row["node_id"], row["port"]) for row in views("broker_addresses")] == [(1, 9092), (2, 9102), (3, 9112)]
    brokers = {row["broker"] for row in views("leader_changes")}
    assert brokers <= {"127.0.0.1:9092", "127.0.0.1:9102", "127.0.0.1:9112", None}
    topics = {row["topic"] for row in views("leader_changes")}
    assert "__cluster_metadata" in topics
    assert "AAAAAAAAAAAAAAAAAAAAAQ" not in topics
    # A pcap file cannot say what its machine dropped.
    assert {row["dropped_packets"] for row in views("captures")} == {None}


def test_connections_by_health_and_churn(views: Views) -> None:
    health = {row["client_id"]: row for row in views("connection_health")}
    assert (health["report"]["resets"], health["report"]["short"], health["report"]["retransmissions"]) == (1, 1, 3)
    assert (health["app"]["rtt_p50_us"], health["app"]["resets"], health["app"]["short"]) == (250, 0, 0)
    churn = [(row["opened"], row["closed"], row["resets"]) for row in views("connection_churn")]
    assert churn == [(2, 1, 1), (0, 1, 0)]


def test_sizes(views: Views) -> None:
    sizes = views.only("SELECT * FROM request_sizes WHERE api = 'Produce'")
    assert (sizes["request_max_bytes"], sizes["response_bytes"]) == (100_000, 101 * 50)
    metadata = views.only("SELECT * FROM request_sizes WHERE api = 'Metadata'")
    assert (metadata["requests"], metadata["responses"], metadata["response_bytes"]) == (1, 0, None)


def test_leaders_over_time(views: Views) -> None:
    first, second = views("leader_changes")
    assert (first["topic"], first["broker"], first["isr"], first["to_time"]) == (
        "orders",
        "one:9092",
        "1, 2",
        second["from_time"],
    )
    assert (second["leader"], second["previous_leader"], second["to_time"]) == (2, 1, None)
    assert [row["partitions_led"] for row in views("broker_addresses")] == [0, 1]


def test_coverage_accounts_for_every_byte(views: Views) -> None:
    parts = {(row["part"], row["reason"]): row for row in views("coverage") if row["bytes"]}
    assert {key: row["bytes"] for key, row in parts.items()} == {
        ("decoded", None): 900,
        ("duplicate", None): 60,
        ("opaque", "malformed"): 40,
        ("missing", "gap"): 500,
    }
    assert parts["decoded", None]["share"] == 0.9
    assert views.only("SELECT connection, looks_like FROM unrecognised")["looks_like"] == "HTTP"


def test_several_datasets_keep_their_keys_apart_and_may_lack_tables(spark: Any, tmp_path: Path) -> None:
    for day, exchanges in (("monday", 1), ("tuesday", 2)):
        forged = Forged(tmp_path / day)
        for _ in range(exchanges):
            forged.exchange("Produce", topics=["orders"])
        forged.write()
    views = Views(spark, tmp_path / "monday", tmp_path / "tuesday")
    counted = views("SELECT capture, count(*) AS exchanges FROM exchanges GROUP BY capture")
    counts = {row["capture"]: row["exchanges"] for row in counted}
    assert counts == {"monday/forged.pcap": 1, "tuesday/forged.pcap": 2}
    assert {row["capture"] for row in views("captures")} == set(counts)
    assert views.only("latency_by_api")["exchanges"] == 3


def test_a_dataset_without_a_row_has_no_answers(spark: Any, tmp_path: Path) -> None:
    views = Views(spark, Forged(tmp_path / "empty").write())
    for name in tables.TABLES:
        assert views(name) == []
    assert views("latency_by_api") == views("coverage") == views("group_lag") == []


def test_a_folder_that_is_no_dataset_is_said(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a dataset"):
        reports.register(spark.newSession(), tmp_path)


def test_payload_formats_are_counted_by_topic_side_and_schema(tmp_path: Path, spark: Any) -> None:
    forged = Forged(tmp_path / "payloads")
    rows = [
        ("avro", "7", "{}", None, 0),
        ("avro", "7", None, "value: avro of schema 7: 2 bytes are left over", 5),
        ("avro", "8", "{}", None, 9),
        (None, None, None, None, 10),
    ]
    for form, schema_id, json, reason, second in rows:
        forged.add("records", topic="orders", value_bytes=9, key_bytes=None, timestamp=at(second), value_format=form,
                   value_schema_id=schema_id, value_json=json, undecodable=reason)  # fmt: skip
    forged.add("records", topic="orders", value_bytes=None, key_bytes=2, timestamp=at(20), key_format="text",
               key_json='"k"')  # fmt: skip
    views = Views(spark, forged.write())
    counted = [(row["side"], row["format"], row["schema_id"], row["records"], row["undecoded"], round(row["share"], 2))
               for row in views("payload_formats")]  # fmt: skip
    assert counted == [
        ("key", "text", None, 1, 0, 1.0),
        ("value", "avro", "7", 2, 1, 0.67),
        ("value", "avro", "8", 1, 0, 0.33),
    ]
    avro = views.only("SELECT first_time, last_time FROM payload_formats WHERE schema_id = '7'")
    assert (avro["first_time"], avro["last_time"]) == (at(0), at(5))
