"""`python -m tests.bench.replay`: how fast the replayer sends, on one core of its own, to a sink that answers at once.

Sessions are made in memory: 50 connections, small idempotent Produce requests (acks=1), five in flight as clients
have them; ids are remapped, each batch's CRC computed again, every outcome recorded in a RUN. The sink is a process of
its own, and each keeps to a core of its own where there are two. A second run sends on a schedule and reports the send
lag. Measure on an idle machine: the JSON notes its load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import multiprocessing
import os
import pstats
import struct
import sys
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.dataset import tables
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.analyzer.protocol.errors import TOPIC_AUTHORIZATION_FAILED
from kwire.replay import run
from kwire.replay.options import Options
from kwire.replay.outcome import quantiles
from kwire.replay.plan.sessions import Request, Session
from kwire.replay.send import link
from kwire.replay.send.engine import Engine
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.bench.__main__ import add_save, begin_result, save, say
from tests.replay.batching import batch, produced, produced_answer

VERSION = 7
IN_FLIGHT = 5
START_NS = 1_700_000_000 * 10**9
_OFFERS = {
    api_keys.PRODUCE: (3, 9),
    api_keys.METADATA: (0, 9),
    api_keys.API_VERSIONS: (0, 3),
    api_keys.INIT_PRODUCER_ID: (0, 4),
    api_keys.FETCH: (4, 12),
    api_keys.LIST_OFFSETS: (1, 6),
    api_keys.FIND_COORDINATOR: (0, 3),
}


class Sink(asyncio.Protocol):
    """Answers every request at once. Produce answers are made once and get their correlation id."""

    port = 0
    produce = encode_response(api_keys.PRODUCE, VERSION, 0, produced_answer(0))[4:]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        at, answers = 0, []
        while len(data) - at >= 4:
            (size,) = struct.unpack_from(">i", data, at)
            if len(data) - at - 4 < size:
                break
            key, version = struct.unpack_from(">hh", data, at + 4)
            correlation = data[at + 8 : at + 12]
            body = self.produce if key == api_keys.PRODUCE else self.other(key, version)
            answers.append(struct.pack(">i", len(body) + 4) + correlation + body)
            at += 4 + size
        self.buffer = data[at:]
        self.transport.write(b"".join(answers))

    def other(self, key: int, version: int) -> bytes:
        body: dict[str, Any]
        if key == api_keys.API_VERSIONS:
            offers = [{"apiKey": api, "minVersion": low, "maxVersion": high} for api, (low, high) in _OFFERS.items()]
            body = {"errorCode": 0, "apiKeys": offers}
        elif key == api_keys.METADATA:
            partition = {
                "errorCode": 0,
                "partitionIndex": 0,
                "leaderId": 1,
                "replicaNodes": [1],
                "isrNodes": [1],
                "offlineReplicas": [],
            }
            body = {
                "brokers": [{"nodeId": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
                "clusterId": "sink",
                "controllerId": 1,
                "topics": [{"errorCode": 0, "name": "orders", "isInternal": False, "partitions": [partition]}],
            }
        elif key == api_keys.INIT_PRODUCER_ID:
            body = {"errorCode": 0, "producerId": 4711, "producerEpoch": 3}
        elif key == api_keys.FETCH:  # it keeps nothing
            body = {
                "responses": [
                    {
                        "topic": "orders",
                        "partitions": [{"partitionIndex": 0, "errorCode": TOPIC_AUTHORIZATION_FAILED, "records": None}],
                    }
                ]
            }
        elif key == api_keys.LIST_OFFSETS:
            body = {
                "topics": [
                    {
                        "name": "orders",
                        "partitions": [{"partitionIndex": 0, "errorCode": 0, "timestamp": -1, "offset": 0}],
                    }
                ]
            }
        else:
            raise AssertionError(f"the sink got {api_keys.name(key)}")
        return encode_response(key, version, 0, body)[4:]


def sink(ready: Any, shared: bool) -> None:
    """The sink's process, on a core that is not the replayer's, unless that one has several and they are `shared`."""
    if not shared:
        alone(-1)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
        Sink.port = server.sockets[0].getsockname()[1]
        ready.put(Sink.port)
        await server.serve_forever()

    asyncio.run(serve())


def sessions(connections: int, requests: int, rate: float | None) -> list[Session]:
    """Captured sessions, each an idempotent producer. With a rate: requests evenly over time, all connections."""
    columns = dict.fromkeys(column.name for column in tables.EXCHANGES)
    results = []
    every_ns = round(1e9 / rate) if rate else 1000
    for number in range(connections):
        name = f"10.0.0.1:{10000 + number}-10.0.0.9:9092#1"

        def request(
            ordinal: int,
            key: int,
            version: int,
            body: Any,
            answer: Any,
            sent: int,
            took: int,
            name: str = name,
            client: str = f"bench-{number}",
        ) -> Request:
            row = columns | {
                "capture": "bench",
                "connection": name,
                "exchange": ordinal,
                "reply": ordinal,
                "api_key": key,
                "api": api_keys.name(key),
                "api_version": version,
                "client_id": client,
                "request_state": "decoded",
            }
            request = encode_request(key, version, ordinal, client, body)
            return Request(row, sent, sent + took, request, encode_response(key, version, ordinal, answer))

        producer = (1000 + number, 0)
        some = [
            request(
                0,
                api_keys.INIT_PRODUCER_ID,
                1,
                {"transactionalId": None, "transactionTimeoutMs": 1},
                {"errorCode": 0, "producerId": producer[0], "producerEpoch": 0},
                START_NS,
                1000,
            )
        ]
        gap = every_ns * connections
        for ordinal in range(requests):
            body = produced(batch(producer=producer, sequence=ordinal * 3), acks=1)
            sent = START_NS + 2_000_000 + number * every_ns + ordinal * gap
            some.append(
                request(
                    ordinal + 1, api_keys.PRODUCE, VERSION, body, produced_answer(ordinal * 3), sent, gap * IN_FLIGHT
                )
            )
        results.append(Session("bench", name, ("10.0.0.9", 9092), tuple(some)))
    return results


CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()


def used(process: BaseProcess) -> float:
    """Seconds of processor time of a process that runs; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def alone(core: int) -> None:
    """Keep to one core, where there are several to choose from: then the two processes do not take turns on one."""
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


def measure(connections: int, requests: int, rate: float | None, profiled: bool, processes: int = 1) -> dict[str, Any]:
    """One replay at a sink of its own; what it came to. Figures are of the sending alone, but for `whole`; processor
    time is that of all processes that send, and not the sink's."""
    if processes == 1:
        alone(0)
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, CORES)  # workers have what this process may have
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=sink, args=(ready, processes > 1), daemon=True)
    process.start()
    port = ready.get(timeout=60)
    captured = sessions(connections, requests, rate)
    settings = Settings(speed=1.0 if rate else None)
    chosen = Options(
        "127.0.0.1", port, settings=settings, yes=True, missing_topics_ok=True, audit=False, processes=processes
    )
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if profiled:
            sending = Engine.run

            async def watched(engine: Engine, start_ns: int | None = None) -> None:
                profile.enable()
                try:
                    await sending(engine, start_ns)
                finally:
                    profile.disable()

            patch.setattr(Engine, "run", watched)
        before = os.times()
        result = asyncio.run(run.replay(MemorySource(captured), chosen, link.tcp(), f"{folder}/run", []))
        after = os.times()
        sinks = used(process)
    process.terminate()
    process.join()
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    sent = result.counts.actions["sent"]
    if result.counts.verdicts != {"answered": connections * (requests + 1)}:
        raise RuntimeError(f"not everything was answered: {result.counts.verdicts}")
    return {
        "rate": rate,
        "workers": processes,
        "connections": connections,
        "requests": sent,
        "retries": dict(result.counts.retries),
        "whole_seconds": round(result.seconds, 2),
        "whole_cpu_seconds": round(sum(after[:4]) - sum(before[:4]), 2),  # of workers that have ended, too
        "sending_seconds": round(result.sending_seconds, 2),
        "requests_per_second": round(sent / result.sending_seconds),
        "sink_cpu_seconds": round(sinks, 2),
        "sending_cpu_seconds": round(result.sending_cpu_seconds, 2),
        "requests_per_cpu_second": round(sent / result.sending_cpu_seconds),
        "lag_us": quantiles(result.counts.lags_us),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--requests", type=int, default=4000, help="of each connection, at --speed max")
    parser.add_argument("--seconds", type=int, default=20, help="of the run on a schedule")
    parser.add_argument("--rate", type=float, default=5000, help="requests a second of the run on a schedule; 0: none")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that send at --speed max, beside one that does"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time of the sending goes")
    add_save(parser)
    options = parser.parse_args()
    result = {
        **begin_result("replay"),
        "bars": {"requests_per_second": 30_000, "lag_p99_us": 5_000},
    }
    result["max"] = measure(options.connections, options.requests, None, options.profile)
    say(
        f"== --speed max: {result['max']['requests_per_second']:,} requests a second (bar 30,000), "
        f"{result['max']['requests_per_cpu_second']:,} a processor second"
    )
    if options.workers > 1:
        several = measure(options.connections, options.requests, None, False, options.workers)
        result["workers"] = several
        times = several["requests_per_second"] / result["max"]["requests_per_second"]
        cost = several["sending_cpu_seconds"] / result["max"]["sending_cpu_seconds"]
        say(
            f"== --workers {options.workers}: {several['requests_per_second']:,} requests a second, "
            f"{times:.2f} times one, beside a sink that took {several['sink_cpu_seconds']} s of "
            f"{several['sending_seconds']} s; "
            f"{several['requests_per_cpu_second']:,} a processor second, {cost:.2f} times the processor time"
        )
    if options.rate:
        requests = round(options.rate * options.seconds / options.connections)
        result["scheduled"] = measure(options.connections, requests, options.rate, options.profile)
        lag = result["scheduled"]["lag_us"]["p99"] / 1000
        say(f"== {options.rate:,.0f} requests a second by schedule: send lag p99 {lag:.2f} ms (bar 5 ms)")
    if options.save:
        save(result)
    else:
        print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
