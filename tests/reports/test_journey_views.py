"""Answers of the views of journeys over rows that the tests write, known by hand, from both engines.

Proves: reports/views/journey_legs.sql, end_to_end, lag_seconds, client_wait, replica_delay, time_to_commit,
redelivered.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.reports.forging import Forged, at
from tests.reports.test_views import Views

PRODUCER = "10.0.0.1:5000-10.0.0.9:9092#1"
MS, S = 1000, 1_000_000


def produced(exchange: int, base: int, sent: float, **columns: Any) -> dict[str, Any]:
    """A batch of two records to `orders` 0: a millisecond to be received, another nine until it was acknowledged."""
    return {
        "topic": "orders",
        "partition": 0,
        "base_offset": base,
        "last_offset": base + 1,
        "records": 2,
        "record_bytes": 100,
        "producer_client": "shop",
        "produced": {"connection": PRODUCER, "exchange": exchange, "reply": exchange},
        "created": at(sent - 0.02),
        "sent": at(sent),
        "received": at(sent + 0.001),
        "acked": at(sent + 0.01),
        **columns,
    }


@pytest.fixture(scope="module")
def views(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Views:
    forged = Forged(tmp_path_factory.mktemp("journeys") / "dataset")
    consumer = {"kind": "consumer", "group_id": "g", "reader_client": "reader", "fetches": 1}
    first = produced(0, 0, 1)
    forged.add("journeys", **first, kind="replica", broker_id=2, fetched=at(1.006), fetches=1)
    forged.add("journeys", **first, **consumer, fetched=at(1.015), committed=at(2.015))
    second = produced(1, 2, 2)
    forged.add("journeys", **second, kind="replica", broker_id=2, fetched=at(2.031), fetches=1)
    forged.add("journeys", **second, **consumer | {"fetches": 3}, fetched=at(12.01))
    forged.add("journeys", **produced(2, 4, 14, created=at(14.5)), reason="not read")
    # A transaction that ends five seconds after its batch was acknowledged.
    forged.exchange("Produce", second=20, transactional_id="tx")
    forged.rows["exchanges"][-1] |= {"exchange": 3, "reply": 3}
    forged.add("transactions", transactional_id="tx", began=at(19), ended=at(25.01), outcome="committed")
    within = produced(3, 0, 20, topic="payments", outcome="committed")
    forged.add("journeys", **within, **consumer | {"group_id": "r"}, fetched=at(25.02))
    return Views(spark, forged.write())


def test_the_legs_of_a_journey_add_up(views: Views) -> None:
    rows = {(row["reader"], row["base_offset"], row["topic"]): row for row in views("journey_legs")}
    legs = ("client_wait_us", "request_us", "broker_us", "transaction_us", "reader_us", "total_us", "end_to_end_us")
    assert {key: tuple(row[leg] for leg in legs) for key, row in rows.items()} == {
        ("broker 2", 0, "orders"): (20 * MS, MS, None, None, 5 * MS, 6 * MS, 26 * MS),
        ("g", 0, "orders"): (20 * MS, MS, 9 * MS, None, 5 * MS, 15 * MS, 35 * MS),
        ("broker 2", 2, "orders"): (20 * MS, MS, None, None, 30 * MS, 31 * MS, 51 * MS),
        ("g", 2, "orders"): (20 * MS, MS, 9 * MS, None, 10 * S, 10_010 * MS, 10_030 * MS),
        ("r", 0, "payments"): (20 * MS, MS, 9 * MS, 5 * S, 10 * MS, 5020 * MS, 5040 * MS),
    }


def test_end_to_end_names_the_leg_that_makes_the_slowest_late(views: Views) -> None:
    rows = views(
        "SELECT reader, batches, records, p50_us, p99_us, max_us, created_p50_us, late_leg, late_leg_us FROM end_to_end"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("g", 2, 4, 15 * MS, 10_010 * MS, 10_010 * MS, 35 * MS, "reader", 10 * S),
        ("r", 1, 2, 5020 * MS, 5020 * MS, 5020 * MS, 5040 * MS, "transaction", 5 * S),
        ("broker 2", 2, 4, 6 * MS, 31 * MS, 31 * MS, 26 * MS, "reader", 30 * MS),
    ]


def test_lag_is_the_age_of_the_oldest_batch_that_a_group_has_not_read(views: Views) -> None:
    rows = views("SELECT * FROM lag_seconds WHERE group_id = 'g' AND topic = 'orders'")
    # The second batch, sent at 2, comes at 12; the third, sent at 14, never. The second is never committed.
    assert [(row["time"], row["lag_us"], row["commit_lag_us"]) for row in rows] == [
        (at(5), 3 * S, 3 * S),
        (at(15), 1 * S, 13 * S),
        (at(25), 11 * S, 23 * S),
        (at(35), 21 * S, 33 * S),
        (at(60), 46 * S, 58 * S),
    ]
    (other,) = views("SELECT * FROM lag_seconds WHERE group_id = 'r' AND time = (SELECT max(time) FROM lag_seconds)")
    assert (other["lag_us"], other["commit_lag_us"]) == (0, None)


def test_waits_of_producers_commits_and_followers(views: Views) -> None:
    waits = {row["topic"]: row for row in views("client_wait")}
    assert (waits["orders"]["batches"], waits["orders"]["ahead"], waits["orders"]["p99_us"]) == (3, 1, 20 * MS)
    commits = {row["group_id"]: row for row in views("time_to_commit")}
    assert (commits["g"]["batches"], commits["g"]["committed"], commits["g"]["max_us"]) == (2, 1, S)
    assert (commits["r"]["committed"], commits["r"]["p50_us"]) == (0, None)
    replica = views.only("replica_delay")
    assert (replica["broker_id"], replica["batches"], replica["p50_us"], replica["max_us"]) == (2, 2, 5 * MS, 30 * MS)
    assert (replica["most_behind_bytes"], replica["after_ack"]) == (100, 1)


def test_what_a_group_got_again(views: Views) -> None:
    row = views.only("redelivered")
    assert (row["group_id"], row["batches"], row["again"], row["most"], row["records"]) == ("g", 2, 1, 3, 2)
    assert (row["first_offset"], row["last_offset"], row["uncommitted"]) == (2, 3, 1)
