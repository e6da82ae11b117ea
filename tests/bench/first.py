"""`python -m tests.bench.first`: how long after its first pass a replay sends its first request (bar 2 s).

A capture of *small* is replayed by a process of its own: in windows (from the end of the survey), with `--no-survey`,
and from a stdin that stays open (both from the first complete request, and from when the process reads). The target
answers what a replay asks before it sends, and says when the first captured request comes; then the replay is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.protocol import api_keys, tree
from kwire.analyzer.protocol.encoding import encode_response
from kwire.replay import inputs, run
from kwire.replay.options import Options
from kwire.replay.send import link
from kwire.replay.send.settings import Settings
from tests.bench import generate
from tests.bench.__main__ import add_save, begin_result, save, say
from tests.bench.replay import Sink

HOW: Final = ("survey", "no survey", "stdin")
FED: Final = 4_000_000
"""Bytes of a stdin that then is silent."""


class Waiting(Sink):
    """Has each topic that it is asked for, and tells when a captured client speaks."""

    first: Any

    def data_received(self, data: bytes) -> None:
        if b"client-0" in data[:64]:
            if Waiting.first is not None:
                Waiting.first.put(time.time())
            Waiting.first = None
            return
        self.asked = data
        super().data_received(data)

    def other(self, key: int, version: int) -> bytes:
        if key != api_keys.METADATA:
            return super().other(key, version)
        body = tree.decode_request(self.asked[4:]).body or {}
        partitions = [
            {
                "errorCode": 0,
                "partitionIndex": index,
                "leaderId": 1,
                "replicaNodes": [1],
                "isrNodes": [1],
                "offlineReplicas": [],
            }
            for index in range(1_000)
        ]
        broker = {"nodeId": 1, "host": "127.0.0.1", "port": self.port, "rack": None}
        topics = [
            {"errorCode": 0, "name": topic["name"], "isInternal": False, "partitions": partitions}
            for topic in body.get("topics") or ()
        ]
        answer = {"brokers": [broker], "clusterId": "sink", "controllerId": 1, "topics": topics}
        return encode_response(key, version, 0, answer)[4:]


def target(ready: Any, first: Any) -> None:
    """The target's process."""

    async def serve() -> None:
        Waiting.first = first
        server = await asyncio.get_running_loop().create_server(Waiting, "127.0.0.1", 0)
        Waiting.port = server.sockets[0].getsockname()[1]
        ready.put(Waiting.port)
        await server.serve_forever()

    asyncio.run(serve())


def send(capture: str, how: str, port: int, out: str) -> None:
    """Replay, and print when the clock begins."""
    options = Options(
        "127.0.0.1", port, settings=Settings(speed=1.0), yes=True, audit=False, in_windows=True, survey=how == "survey"
    )
    print(time.time(), flush=True)
    notes: list[str] = []
    replayed = inputs.open_source("-" if how == "stdin" else capture, options, how=ReadOptions(threads=2), notes=notes)
    print(time.time(), flush=True)
    asyncio.run(run.replay(replayed, options, link.tcp(), out, notes))


def measure(capture: Path, how: str) -> dict[str, Any]:
    """Seconds until the target had the first request."""
    context = multiprocessing.get_context("spawn")
    ready, first = context.Queue(), context.Queue()
    serving = context.Process(target=target, args=(ready, first), daemon=True)
    serving.start()
    command = [sys.executable, "-m", "tests.bench.first", "--send", how, str(capture), str(ready.get(timeout=60))]
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder:
        process = subprocess.Popen(
            [*command, f"{folder}/run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            reads = float(process.stdout.readline())
            if how == "stdin":
                with open(capture, "rb") as file:
                    process.stdin.write(file.read(FED))
                    process.stdin.flush()
            begins = float(process.stdout.readline())
            came = first.get(timeout=600)
        finally:
            process.kill()
            _, output = process.communicate()
            serving.terminate()
    with contextlib.suppress(ValueError):
        return {"how": how, "reading_seconds": round(begins - reads, 2), "first_seconds": round(came - begins, 2)}
    raise RuntimeError(output.decode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=generate.size_of, default=300_000_000, help="bytes, or 300M, 1.5G")
    parser.add_argument("--send", nargs=4, metavar=("HOW", "CAPTURE", "PORT", "RUN"), help="replay, and nothing else")
    add_save(parser)
    options = parser.parse_args()
    if options.send:
        how, capture, port, out = options.send
        send(capture, how, int(port), out)
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder:
        path = Path(folder, "small.pcap")
        generate.main(["small", str(path), "--size", str(options.size)])
        for how in HOW:
            results.append(measure(path, how))
            say(
                f"== {how}: first request {results[-1]['first_seconds']:.2f} s after that (bar 2 s), "
                f"which took {results[-1]['reading_seconds']:.2f} s"
            )
    if options.save:
        save({**begin_result("first"), "cases": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
