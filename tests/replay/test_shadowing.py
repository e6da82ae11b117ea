"""Two real clusters: what clients do at one of them is done at the other while they do it, from packets alone.

Proves: replay/live_traffic.py, replay/windowed.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.analyzer.dataset.dataset import open_dataset
from tests.brokers import jars
from tests.brokers.cluster import Spec
from tests.brokers.fixtures import Start
from tests.live import missing
from tests.shared import KWIRE, ROOT

COUNT = 400
SECONDS = 90
LENIENT = ("--fail-on", "unexpected")
"""Two clusters and two clients on as many cores as tests get: slower is no fault here."""


def read(bootstrap: str, group: str, seconds: float = SECONDS) -> dict[int, list[bytes]]:
    """The values of all partitions of the topic, until there are as many as were written."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    records: dict[int, list[bytes]] = {}
    deadline = time.monotonic() + seconds
    while sum(map(len, records.values())) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(COUNT, 0.5):
            if message.error() is None:
                records.setdefault(message.partition(), []).append(message.value())
    consumer.close()
    return records


def test_another_cluster_has_the_records_while_they_are_produced(fresh_brokers: Start, tmp_path: Path) -> None:
    if shutil.which("tcpdump") is None or os.geteuid() != 0:
        missing.append("tcpdump, and the right to capture on lo (root)")
        pytest.skip("needs tcpdump and root")
    captured, shadow = fresh_brokers(Spec(jars.NEWEST, 1)), fresh_brokers(Spec(jars.LAST_OF_3, 1))
    admin = AdminClient({"bootstrap.servers": captured.bootstrap})
    admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(SECONDS)
    out = tmp_path / "run"
    # What is sent to the shadow is captured too, and must not be sent again. (Test clusters have one id.)
    ports = [capture.bootstrap.rpartition(":")[2] for capture in (captured, shadow)]
    expression = " or ".join(f"tcp port {port}" for port in ports)
    listening = subprocess.Popen(
        ["tcpdump", "-i", "lo", "-B", "65536", "-U", "-w", "-", expression],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    command = [
        *KWIRE,
        "replay",
        "-",
        "--to",
        shadow.bootstrap,
        "-o",
        str(out),
        "--seed-topics",
        "--same-cluster",
        *LENIENT,
    ]
    replaying = subprocess.Popen(
        command, cwd=ROOT, stdin=listening.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert listening.stdout is not None
    assert listening.stderr is not None
    assert replaying.stderr is not None
    try:
        listening.stdout.close()
        assert b"listening" in listening.stderr.readline()
        producer = Producer({"bootstrap.servers": captured.bootstrap, "enable.idempotence": True, "linger.ms": 2})
        for number in range(COUNT):
            producer.produce("orders", f"order {number}".encode(), str(number).encode())
            producer.poll(0.002)
            if not number:  # the first is what it waits for; what is said at the shadow before it begins is no echo
                assert any("dialled" in line for line in replaying.stderr)
        assert not producer.flush(SECONDS)
        there = read(shadow.bootstrap, "shadow")
        listening.terminate()
        summary, complained = replaying.communicate(timeout=SECONDS)
    finally:
        for process in (listening, replaying):
            process.kill()
            process.wait()
        listening.stderr.close()
    assert there == read(captured.bootstrap, "captured")
    assert replaying.returncode == 0, summary + complained
    stored = open_dataset(out)
    about = stored.manifest["replay"]
    assert any("captured requests to the target itself were left out" in note for note in about["notes"])
    audited = stored.audit.to_table().to_pylist()
    assert sum(row["acknowledged"] for row in audited) == COUNT
    assert {(row["missing"], row["out_of_order"]) for row in audited} == {(0, 0)}
    compared = subprocess.run(
        [*KWIRE, "diff", str(out), *LENIENT], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert compared.returncode == 0, compared.stdout
