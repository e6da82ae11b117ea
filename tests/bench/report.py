"""Time `kwire report` on a dataset of forged rows.

    python -m tests.bench.report                         # 10 M exchanges: under 20 s and 4 GiB
    python -m tests.bench.report --engine spark          # the same by Spark: under 40 s and 4 GiB
    python -m tests.bench.report --exchanges 1000000 --dataset out/forged

The rows look like an hour of a busy cluster: 600 connections of 200 clients to 6 brokers, 50 topics, mostly Produce and
Fetch, latencies over four orders of magnitude, one answer in two hundred an error. The time is that of the whole
process, the engine's start and the page's writing included; memory is the largest sum of RSS over the process and
what it started.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset import dataset, tables
from kwire.analyzer.protocol import schema
from tests.shared import KWIRE

BARS = {"embedded": (20, 4 << 30), "spark": (40, 4 << 30)}
"""Seconds and bytes that a report may take by each engine."""

CHUNK = 500_000
START_US = 1_767_322_800_000_000
SPAN_US = 3_600_000_000
CONNECTIONS, CLIENTS, BROKERS, TOPICS = 600, 200, 6, 50
APIS = {"Produce": 0.5, "Fetch": 0.4, "Metadata": 0.02, "Heartbeat": 0.05, "OffsetCommit": 0.03}
KEYS = {api.name: api.api_key for api in schema.apis()}


def _dictionary(indices: np.ndarray, values: list[str | None]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), pa.array(values, pa.string())).cast(
        pa.string()
    )


def _connections() -> list[dict[str, object]]:
    return [
        {
            "capture": "forged.pcap",
            "connection": f"10.1.{n // 250}.{n % 250}:40000-10.0.0.{n % BROKERS}:9092#1",
            "client_ip": f"10.1.{n // 250}.{n % 250}",
            "client_port": 40000,
            "broker_ip": f"10.0.0.{n % BROKERS}",
            "broker_port": 9092,
            "client_id": f"client-{n % CLIENTS}",
            "software_name": "librdkafka",
            "software_version": f"2.{n % 7}.0",
        }
        for n in range(CONNECTIONS)
    ]


def exchanges(first: int, count: int, total: int, random: np.random.Generator) -> pa.Table:
    """`count` rows of the table, in order of time, from the `first` of `total` on."""
    known = _connections()
    connection = random.integers(0, CONNECTIONS, count)
    api = random.choice(len(APIS), count, p=list(APIS.values()))
    names = list(APIS)
    request_times = START_US + (np.arange(first, first + count) * (SPAN_US // total))
    latency = np.minimum(np.exp(random.normal(7.5, 1.2, count)), 30e6).astype(np.int64)
    failed = random.random(count) < 0.005
    topic = random.integers(0, TOPICS, count)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32)), _dictionary(topic, [f"topic-{n}" for n in range(TOPICS)])
    )
    offsets = np.concatenate([[0], np.cumsum(failed)]).astype(np.int32)
    held = int(failed.sum())
    codes = pa.StructArray.from_arrays(
        [
            pa.array(np.full(held, 6, np.int16)),
            pa.array(["NOT_LEADER_OR_FOLLOWER"] * held),
            pa.array(np.ones(held, np.int32)),
        ],
        fields=list(tables.ERRORS.value_type),
    )
    time_type = tables.TIME
    columns: dict[str, pa.Array] = {
        "exchange": pa.array(np.arange(first, first + count)),
        "reply": pa.array(np.arange(first, first + count)),
        "api_key": pa.array(np.array([KEYS[name] for name in names], np.int16)[api]),
        "api": _dictionary(api, list(names)),
        "api_version": pa.array(np.array([9, 12, 12, 4, 8], np.int16)[api]),
        "correlation_id": pa.array(np.arange(first, first + count).astype(np.int32)),
        "request_time": pa.array(request_times, time_type),
        "request_end": pa.array(request_times, time_type),
        "response_time": pa.array(request_times + latency, time_type),
        "response_end": pa.array(request_times + latency, time_type),
        "latency_us": pa.array(latency),
        "total_us": pa.array(latency),
        "throttle_us": pa.array(np.zeros(count, np.int64)),
        "request_bytes": pa.array(random.integers(60, 2000, count)),
        "response_bytes": pa.array(random.integers(40, 20000, count)),
        "status": _dictionary(np.zeros(count, np.int64), ["answered"]),
        "request_state": _dictionary(np.zeros(count, np.int64), ["decoded"]),
        "response_state": _dictionary(np.zeros(count, np.int64), ["decoded"]),
        "error_code": pa.array(np.where(failed, 6, 0).astype(np.int16)),
        "error": _dictionary(failed.astype(np.int64), [None, "NOT_LEADER_OR_FOLLOWER"]),
        "errors": pa.ListArray.from_arrays(pa.array(offsets), codes),
        "topics": lists,
        "group_id": _dictionary(np.where(api >= 3, topic + 1, 0), [None, *(f"group-{n}" for n in range(TOPICS))]),
        "acks": pa.array(np.full(count, -1, np.int16)),
        "max_wait_ms": pa.array(np.full(count, 500, np.int32)),
    }
    for name in ("capture", "connection", "client_ip", "broker_ip", "client_id"):
        columns[name] = _dictionary(connection, [str(row[name]) for row in known])
    for name in ("client_port", "broker_port"):
        columns[name] = pa.array(np.full(count, 9092 if name == "broker_port" else 40000, np.int32))
    whole = tables.schema("exchanges")
    return pa.table([columns.get(field.name, pa.nulls(count, field.type)) for field in whole], schema=whole)


def forge(path: Path, total: int) -> None:
    """Write the dataset."""
    random = np.random.default_rng(61)
    zeros = {column.name: 0 for column in tables.CONNECTIONS if column.type == pa.int64()}
    began = np.datetime64(START_US, "us").item()
    rows = [
        {
            **zeros,
            **row,
            "opened": True,
            "closed": "open",
            "tls": False,
            "first_time": began,
            "last_time": began,
            "requests": total // CONNECTIONS,
            "rtt_us": 300,
        }
        for row in _connections()
    ]
    with dataset.Writer(path) as writer:
        writer.write("connections", pa.Table.from_pylist(rows, schema=tables.schema("connections")))
        for first in range(0, total, CHUNK):
            writer.write("exchanges", exchanges(first, min(CHUNK, total - first), total, random))
        writer.commit(
            {
                "format_version": tables.FORMAT_VERSION,
                "kwire_version": "0",
                "coverage": {},
                "notes": [],
                "captures": [
                    {"name": "forged.pcap", "files": [], "link_types": [], "first_time": None, "last_time": None}
                ],
                "unrecognised": {"connections": 0, "payload_bytes": 0, "listed": []},
            }
        )


def family_rss(pid: int) -> int:
    """Resident bytes of a process and of all that it started."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        own = int(status.parent.name)
        parents[own] = int(fields["PPid"])
        sizes[own] = int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(sizes.get(process, 0) for process in family)


def run(path: Path, page: Path, engine: str) -> tuple[float, int]:
    """Seconds and largest memory of `kwire report`. RuntimeError: it failed."""
    import subprocess

    done, peak = threading.Event(), 0

    def sample(pid: int) -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, family_rss(pid))

    began = time.perf_counter()
    process = subprocess.Popen([*KWIRE, "report", str(path), "-o", str(page), "--target", "4.0", "--engine", engine])
    sampler = threading.Thread(target=sample, args=(process.pid,))
    sampler.start()
    code = process.wait()
    seconds = time.perf_counter() - began
    done.set()
    sampler.join()
    if code:
        raise RuntimeError(f"kwire report ended with {code}")
    return seconds, peak


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exchanges", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--dataset", type=Path, help="keep the dataset here, and use it where it is already there")
    parser.add_argument("--engine", choices=tuple(BARS), default="embedded", help="what answers (default: embedded)")
    arguments = parser.parse_args()
    bar_seconds, bar_bytes = BARS[arguments.engine]
    with tempfile.TemporaryDirectory() as temporary:
        path = arguments.dataset or Path(temporary) / "forged"
        if not dataset.is_dataset(path):
            forge(path, arguments.exchanges)
        page = Path(temporary) / "report.html"
        seconds, peak = run(path, page, arguments.engine)
        print(
            f"kwire report: {seconds:.1f} s (bar {bar_seconds}), {peak / 2**30:.2f} GiB (bar {bar_bytes >> 30}), "
            f"page of {page.stat().st_size / 1000:,.0f} kB"
        )
    return 0 if seconds <= bar_seconds and peak <= bar_bytes else 1


if __name__ == "__main__":
    sys.exit(main())
