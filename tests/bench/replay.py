"""`python -m tests.bench.replay`: how fast the replayer sends, on one core of its own, to a sink that answers at once.

Sessions are made in memory: 50 connections, small idempotent Produce requests (acks=1), five in flight as clients
have them; ids are remapped, each batch's CRC computed again, every outcome recorded in a RUN. The sink is a process of
its own. `--rate N` sends on a schedule instead and reports the send lag.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import struct
import tempfile
import time
from typing import Any

from analyzer import tables
from analyzer.encoding import encode_request, encode_response
from replay import apis, link, run
from replay.engine import Settings
from replay.outcome import quantiles
from replay.sessions import Request, Session
from tests.replay.batching import batch, produced, produced_answer

VERSION = 7
IN_FLIGHT = 5
START_NS = 1_700_000_000 * 10**9
_OFFERS = {apis.PRODUCE: (3, 9), apis.METADATA: (0, 9), apis.API_VERSIONS: (0, 3), apis.INIT_PRODUCER_ID: (0, 4),
           apis.FETCH: (4, 12), apis.LIST_OFFSETS: (1, 6), apis.FIND_COORDINATOR: (0, 3)}  # fmt: skip


class Sink(asyncio.Protocol):
    """Answers every request at once. Produce answers are made once and get their correlation id."""

    port = 0
    produce = encode_response(apis.PRODUCE, VERSION, 0, produced_answer(0))[4:]

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
            body = self.produce if key == apis.PRODUCE else self.other(key, version)
            answers.append(struct.pack(">i", len(body) + 4) + correlation + body)
            at += 4 + size
        self.buffer = data[at:]
        self.transport.write(b"".join(answers))

    def other(self, key: int, version: int) -> bytes:
        body: dict[str, Any]
        if key == apis.API_VERSIONS:
            offers = [{"apiKey": one, "minVersion": low, "maxVersion": high} for one, (low, high) in _OFFERS.items()]
            body = {"errorCode": 0, "apiKeys": offers}
        elif key == apis.METADATA:
            partition = {"errorCode": 0, "partitionIndex": 0, "leaderId": 1, "replicaNodes": [1], "isrNodes": [1],
                         "offlineReplicas": []}  # fmt: skip
            body = {
                "brokers": [{"nodeId": 1, "host": "127.0.0.1", "port": self.port, "rack": None}],
                "clusterId": "sink", "controllerId": 1,
                "topics": [{"errorCode": 0, "name": "orders", "isInternal": False, "partitions": [partition]}],
            }  # fmt: skip
        elif key == apis.INIT_PRODUCER_ID:
            body = {"errorCode": 0, "producerId": 4711, "producerEpoch": 3}
        elif key == apis.LIST_OFFSETS:
            body = {"topics": [{"name": "orders", "partitions": [
                {"partitionIndex": 0, "errorCode": 0, "timestamp": -1, "offset": 0}]}]}  # fmt: skip
        else:
            raise AssertionError(f"the sink got {apis.name(key)}")
        return encode_response(key, version, 0, body)[4:]


def sink(ready: Any) -> None:
    """The sink's process."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
        Sink.port = server.sockets[0].getsockname()[1]
        ready.put(Sink.port)
        await server.serve_forever()

    asyncio.run(serve())


def sessions(connections: int, requests: int, rate: float | None) -> list[Session]:
    """Captured sessions, each an idempotent producer. With a rate: requests evenly over time, all connections."""
    columns = dict.fromkeys(column.name for column in tables.EXCHANGES)
    found = []
    every_ns = round(1e9 / rate) if rate else 1000
    for number in range(connections):
        name = f"10.0.0.1:{10000 + number}-10.0.0.9:9092#1"

        def request(
            ordinal: int, key: int, version: int, body: Any, answer: Any, sent: int, took: int,
            name: str = name, client: str = f"bench-{number}",
        ) -> Request:  # fmt: skip
            row = columns | {
                "capture": "bench", "connection": name, "exchange": ordinal, "reply": ordinal, "api_key": key,
                "api": apis.name(key), "api_version": version, "client_id": client, "request_state": "decoded",
            }  # fmt: skip
            asked = encode_request(key, version, ordinal, client, body)
            return Request(row, sent, sent + took, asked, encode_response(key, version, ordinal, answer))

        producer = (1000 + number, 0)
        some = [
            request(
                0, apis.INIT_PRODUCER_ID, 1, {"transactionalId": None, "transactionTimeoutMs": 1},
                {"errorCode": 0, "producerId": producer[0], "producerEpoch": 0}, START_NS, 1000,
            )
        ]  # fmt: skip
        gap = every_ns * connections
        for ordinal in range(requests):
            body = produced(batch(producer=producer, sequence=ordinal * 3), acks=1)
            sent = START_NS + 2_000_000 + number * every_ns + ordinal * gap
            some.append(
                request(ordinal + 1, apis.PRODUCE, VERSION, body, produced_answer(ordinal * 3), sent, gap * IN_FLIGHT)
            )
        found.append(Session("bench", name, ("10.0.0.9", 9092), True, tuple(some)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=__doc__)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--requests", type=int, default=4000, help="of each connection")
    parser.add_argument("--rate", type=float, help="requests a second by schedule, instead of --speed max")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=sink, args=(ready,), daemon=True)
    process.start()
    port = ready.get(timeout=60)
    began = time.perf_counter()
    found = sessions(options.connections, options.requests, options.rate)
    print(f"made {options.connections * options.requests} requests in {time.perf_counter() - began:.1f} s", flush=True)
    chosen = run.Options("127.0.0.1", port, settings=Settings(speed=1.0 if options.rate else None), yes=True)
    profile = None
    if options.profile:
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run.replay(found, chosen, link.tcp(), f"{folder}/run", []))
    if profile is not None:
        import pstats

        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    process.terminate()
    sent = result.counts.actions["sent"]
    print(
        json.dumps(
            {
                "requests": sent,
                "verdicts": dict(result.counts.verdicts),
                "retries": dict(result.counts.retries),
                "whole_seconds": round(result.seconds, 2),
                "sending_seconds": round(result.sending_seconds, 2),
                "requests_per_second": round(sent / result.sending_seconds),
                "sending_cpu_seconds": round(result.sending_cpu_seconds, 2),
                "requests_per_cpu_second": round(sent / result.sending_cpu_seconds),
                "lag_us": quantiles(result.counts.lags_us),
            }
        )
    )


if __name__ == "__main__":
    main()
