"""Cases of rules about stalls, slow replicas and readers that wait, over forged rows."""

from __future__ import annotations

from typing import Any

from tests.analyzer.findings.cases import case
from tests.analyzer.findings.evaluating import Traffic
from tests.reports.forging import at

NODES = {1: "10.0.0.11", 2: "10.0.0.12", 3: "10.0.0.13"}


def produce(traffic: Traffic, node: int, second: float, latency_ms: float, client: int = 0, **columns: Any) -> None:
    """A Produce with acks=all of a client to the partition that a node leads."""
    ask(traffic, "Produce", node, second, latency_ms, client, **{"acks": -1, "place": ("t", node), **columns})


def ask(
    traffic: Traffic, api: str, node: int, second: float, latency_ms: float | None, client: int = 0, **columns: Any
) -> None:
    """An exchange of a client with a node, on a connection for each API."""
    on, broker = 1000 * node + 10 * client + len(api) % 7, NODES[node]
    who = {"client_id": columns.pop("client_id", f"app-{client}"), "broker_ip": broker}
    who["connection"] = f"10.0.0.1:{on}-{broker}:9092#1"
    known = {row["connection"] for row in traffic.rows["connections"]}
    if who["connection"] not in known:
        traffic.link(on, **{**who, "client_port": on, "closed": "open", "last_time": at(60)})
    traffic.ask(api, second, latency_ms, on=on, **{**who, **columns})


def cluster(traffic: Traffic, in_sync: dict[int, list[int]] | None = None) -> None:
    """Three nodes, each leading the partition of topic t with its number."""
    for node, host in NODES.items():
        traffic.add("brokers", node_id=node, host=host, port=9092)
        isr = (in_sync or {}).get(node, [1, 2, 3])
        traffic.add("leaders", time=at(0), topic="t", partition=node, leader=node, leader_epoch=0, isr=isr)


def in_order(traffic: Traffic) -> None:
    """Sort exchanges as a capture has them: by what completed them."""
    traffic.rows["exchanges"].sort(key=lambda row: row["response_end"] or at(3600))


def slow_replica(traffic: Traffic, took: dict[int, float], in_sync: dict[int, list[int]] | None = None) -> None:
    """Ten seconds in which Produce to each node takes so many ms, and ten after; Heartbeats take 1 ms throughout."""
    cluster(traffic, in_sync)
    for tick in range(40):
        for node in NODES:
            late = took[node] if tick < 20 else 3
            produce(traffic, node, tick / 2, late, tick % 4)
        ask(traffic, "Heartbeat", 1 + tick % 3, tick / 2 + 0.1, 1, 7)
    in_order(traffic)


@case("replication-slow", "by the slowest leader")
def own_disk(traffic: Traffic, wrong: bool) -> None:
    slow_replica(traffic, {1: 800, 2: 790, 3: 1900} if wrong else {1: 80, 2: 79, 3: 100})


@case("replication-slow", "by in-sync sets")
def by_sets(traffic: Traffic, wrong: bool) -> None:
    slow_replica(traffic, {1: 800 if wrong else 4, 2: 4, 3: 800 if wrong else 4}, {1: [1, 3], 2: [2, 1], 3: [3, 1]})


@case("replication-slow", "by in-sync sets, beside another cluster with nodes of the same numbers")
def beside_another_cluster(traffic: Traffic, wrong: bool) -> None:
    by_sets(traffic, wrong)
    for node in NODES:
        traffic.add("brokers", node_id=node, host=f"10.1.0.{node}", port=9092)


@case("broker-slow", "not of writes to a broker whose disk replicas wait for")
def own_disk_of_both(traffic: Traffic, wrong: bool) -> None:
    by_sets(traffic, not wrong)
    for number in range(110):
        took = 600 if number % 10 == 9 and number < 100 else 1
        columns = {"acks": 1, "broker_us": took * 1000, "place": ("t", 3)}
        ask(traffic, "Produce", 3, number / 6 + 0.05, took, 5, **columns)
    in_order(traffic)


@case("replication-slow", "not what a broker that stood still made wait")
def one_moment(traffic: Traffic, wrong: bool) -> None:
    frozen(traffic, True)
    if wrong:
        for tick in range(40):
            produce(traffic, 1, 20 + tick / 4, 900, tick % 4)
            ask(traffic, "Heartbeat", 1, 20 + tick / 4, 1, 7)
        in_order(traffic)


@case("broker-stall", "with those who wait elsewhere for its replicas")
def frozen(traffic: Traffic, wrong: bool) -> None:
    """Node 2 answers nobody from 5 s to 9 s, or lets only acks=all wait, as a follower of its would."""
    cluster(traffic)
    for tick in range(60):
        second = tick / 4
        stands = 5 <= second < 9
        for node in NODES:
            waits = (9 - second) * 1000 + tick % 7 if stands else 4
            produce(traffic, node, second, waits, tick % 5)
        for client in (5, 6):
            held = (9 - second) * 1000 + tick % 5 if stands and wrong else 500
            ask(traffic, "Fetch", 2, second, held, client, max_wait_ms=500, min_bytes=1)
    in_order(traffic)


@case("broker-stall", "up to the end of the capture")
def not_over(traffic: Traffic, wrong: bool) -> None:
    cluster(traffic)
    for tick in range(20):
        for node in NODES:
            for client in range(3):
                pending = {"status": "in_flight", "response_time": None, "response_end": None, "latency_us": None}
                still = pending if node == 2 and tick == 19 - 12 * wrong else {}
                if node != 2 or tick <= 19 - 12 * wrong:
                    ask(traffic, "Metadata", node, tick / 4, 3, client, **still)
    for row in traffic.rows["connections"]:
        row["last_time"] = at(5)
    in_order(traffic)


@case("broker-stall", "not of a broker that died")
def killed(traffic: Traffic, wrong: bool) -> None:
    cluster(traffic)
    for tick in range(40):
        second = tick / 4
        for node in NODES:
            for client in range(3):
                if node != 2 or second < 3 or second > 6:
                    ask(traffic, "Metadata", node, second, 3, client)
                elif second == 3:
                    late = 3003.0 + client if wrong else None
                    status = "answered" if wrong else "unanswered"
                    ask(traffic, "Metadata", node, second, late, client, status=status)
    for row in traffic.rows["connections"]:
        if row["broker_ip"] == NODES[2] and not wrong:
            row |= {"closed": "rst", "last_time": at(3.1)}
    in_order(traffic)


@case("queue-behind-own-requests", "not behind what a slow replica delays")
def behind_replica(traffic: Traffic, wrong: bool) -> None:
    slow_replica(traffic, {1: 800, 2: 790, 3: 1900})
    for number in range(60):
        second = number / 2 + (15 if wrong else 0)
        took, queue_us = (180, 120_000) if wrong else (900, 600_000) if second < 11 else (3, 0)
        produce(traffic, 3, second, took, 8, queue_us=queue_us)
    in_order(traffic)


@case("fetch-wait")
def waits(traffic: Traffic, wrong: bool) -> None:
    """Records come every half second, and fetches wait five for 1 MB; or none comes."""
    for turn in range(4):
        for number in range(10 if wrong else 0):
            offset = 10 * turn + number
            written = {"offset": offset, "offset_kind": "base"}
            traffic.ask("Produce", 5.01 * turn + number / 2 + 0.3, place=("t", 0), part=written)
        got = {"offset": 10 * turn, "offset_kind": "fetch", "record_bytes": 500 if wrong else 0}
        settings: dict[str, Any] = {"max_wait_ms": 5000, "min_bytes": 1_000_000, "hold_us": 5_000_000}
        traffic.ask("Fetch", 5.01 * turn, 5001, on=1, client_id="reader", place=("t", 0), part=got, **settings)


@case("fetch-wait", "not with fetch.min.bytes = 1")
def usual_waits(traffic: Traffic, wrong: bool) -> None:
    waits(traffic, True)
    for row in traffic.rows["exchanges"]:
        if row["api"] == "Fetch" and not wrong:
            row["min_bytes"] = 1
