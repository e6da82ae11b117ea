"""`python -m tests.bench.diff`: time and memory of `kwire diff` by the number of exchanges in a RUN.

The RUN is forged, column by column: connections that each produce to a partition and fetch from it in turns (one fetch
after four produce requests, all of their records), answered the same on both sides but for the offsets, which are
shifted. The bar is anonymous memory that grows with what has to be remembered (offsets, digests of records), not with
the bytes of the messages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.connections import Coverage
from kwire.analyzer.dataset import dataset, tables
from kwire.analyzer.dataset.tables import REPLAYED
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from tests.bench.__main__ import add_save, begin_result, measured, save, say
from tests.replay.batching import batch, produced, produced_answer
from tests.shared import KWIRE, ROOT

PRODUCE_VERSION: Final = 7
FETCH_VERSION: Final = 11
CONNECTIONS: Final = 50
SHIFT: Final = 1_000_000
"""How much further on the target's offsets are."""
_RECORDS: Final = 3
_PRODUCED: Final = 4
"""Produce requests for one fetch."""
_ROWS: Final = 100_000
_MARK: Final = 0x5EED_5EED_5EED
"""A round so far away that its offsets are nothing else."""


def _round(connection: int, number: int, shift: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    """(API key, version, request, answer) of a round: some batches produced, then fetched."""
    first = number * _PRODUCED * _RECORDS
    template = batch(count=_RECORDS)
    for index in range(_PRODUCED):
        base = first + index * _RECORDS + shift
        request, answer = produced({connection: template}, acks=1), produced_answer({connection: base})
        yield (
            api_keys.PRODUCE,
            PRODUCE_VERSION,
            _request(api_keys.PRODUCE, PRODUCE_VERSION, request),
            _answer(api_keys.PRODUCE, PRODUCE_VERSION, answer),
        )
    stored = b"".join(
        (first + index * _RECORDS + shift).to_bytes(8, "big") + template[8:] for index in range(_PRODUCED)
    )
    wanted = {"partition": connection, "fetchOffset": first + shift, "partitionMaxBytes": 1 << 20}
    request = {"topics": [{"topic": "orders", "partitions": [wanted]}]}
    got = {"partitionIndex": connection, "errorCode": 0, "highWatermark": 0, "records": stored}
    answer = {"responses": [{"topic": "orders", "partitions": [got]}]}
    yield (
        api_keys.FETCH,
        FETCH_VERSION,
        _request(api_keys.FETCH, FETCH_VERSION, request),
        _answer(api_keys.FETCH, FETCH_VERSION, answer),
    )


def _rounds(connection: int, count: int, shift: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    """That many rounds: the first one of a mark, in which nothing but offsets changes (a batch's own is not in its
    checksum)."""
    marked = list(_round(connection, _MARK, 0))
    offsets = [_MARK * _PRODUCED * _RECORDS + index * _RECORDS for index in range(_PRODUCED)]
    marks = [offset.to_bytes(8, "big") for offset in offsets]
    for number in range(count):
        first = number * _PRODUCED * _RECORDS + shift
        new = [(first + index * _RECORDS).to_bytes(8, "big") for index in range(_PRODUCED)]
        for key, version, request, answer in marked:
            for old, now in zip(marks, new, strict=True):
                request, answer = request.replace(old, now), answer.replace(old, now)
            yield key, version, request, answer


def _request(key: int, version: int, body: Any) -> bytes:
    frame = encode_request(key, version, 0, "bench", body)
    return len(frame).to_bytes(4, "big") + frame


def _answer(key: int, version: int, body: Any) -> bytes:
    frame = encode_response(key, version, 0, body)
    return len(frame).to_bytes(4, "big") + frame


def forge(path: Path, exchanges: int) -> None:
    """Write a RUN of that many exchanges, as `kwire.replay.outcome.Recorder` would."""
    started = np.datetime64("2026-11-21T00:00:00", "us")
    with dataset.Writer(path) as writer:
        each = exchanges // CONNECTIONS
        for connection in range(CONNECTIONS):
            name = f"10.0.0.1:{10000 + connection}-10.0.0.9:9092#1"
            for capture, shift in (("bench", 0), (f"{REPLAYED}bench", SHIFT)):
                rounds = _rounds(connection, each, shift)
                for first in range(0, each, _ROWS):
                    some = [next(rounds) for _ in range(min(_ROWS, each - first))]
                    _write(writer, some, first, capture, name, started + connection)
        _outcomes(writer, each)
        writer.commit(
            {
                "format_version": tables.FORMAT_VERSION,
                "kwire_version": "0",
                "captures": [{"name": "bench", "files": []}],
                "coverage": Coverage().as_dict(),
                "notes": [],
                "replay": {},
                "unrecognised": {"connections": 0, "payload_bytes": 0, "listed": []},
            }
        )


def _columns(table: str, count: int, values: dict[str, Any]) -> pa.Table:
    """Rows of a table: arrays, or one value for all; null where nothing is said."""
    columns = []
    for column in tables.schema(table):
        value = values.get(column.name)
        if isinstance(value, np.ndarray | list):
            columns.append(pa.array(value, column.type))
        else:
            columns.append(pa.array([value] * count, column.type))
    return pa.Table.from_arrays(columns, schema=tables.schema(table))


def _write(writer: dataset.Writer, some: list[Any], first: int, capture: str, name: str, started: Any) -> None:
    numbers = np.arange(first, first + len(some))
    keys = [key for key, _, _, _ in some]
    where = {"capture": capture, "connection": name}
    writer.write(
        "exchanges",
        _columns(
            "exchanges",
            len(some),
            {
                **where,
                "exchange": numbers,
                "reply": numbers,
                "api_key": keys,
                "api": [api_keys.name(key) for key in keys],
                "api_version": [version for _, version, _, _ in some],
                "correlation_id": numbers,
                "status": "answered",
                "request_time": started + numbers * 1000,
                "request_file": "bench.pcap",
                "request_packet": numbers,
                "latency_us": 1000,
                "broker_ip": "10.0.0.9",
                "broker_port": 9092,
            },
        ),
    )
    for direction, which, ordinal in (("request", 2, "exchange"), ("response", 3, "reply")):
        writer.write(
            "messages",
            _columns(
                "messages",
                len(some),
                {
                    **where,
                    ordinal: numbers,
                    "direction": direction,
                    "complete": True,
                    "bytes": [row[which] for row in some],
                },
            ),
        )


def _outcomes(writer: dataset.Writer, each: int) -> None:
    kinds = [(api_keys.PRODUCE, PRODUCE_VERSION)] * _PRODUCED + [(api_keys.FETCH, FETCH_VERSION)]
    for connection in range(CONNECTIONS):
        some = [kinds[number % len(kinds)] for number in range(each)]
        versions = [version for _, version in some]
        writer.write(
            "outcomes",
            _columns(
                "outcomes",
                each,
                {
                    "capture": "bench",
                    "connection": f"10.0.0.1:{10000 + connection}-10.0.0.9:9092#1",
                    "exchange": np.arange(each),
                    "reply": np.arange(each),
                    "step": np.arange(each) * CONNECTIONS + connection,
                    "api_key": [key for key, _ in some],
                    "api": [api_keys.name(key) for key, _ in some],
                    "api_version": versions,
                    "sent_version": versions,
                    "action": "sent",
                    "verdict": "answered",
                    "retries": [[]] * each,
                    "latency_us": 1000,
                    "targets": [[]] * each,
                },
            ),
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.diff", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--exchanges", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench")
    add_save(parser)
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    result = {**begin_result("diff"), "runs": []}
    for exchanges in chosen.exchanges:
        path = chosen.folder / "diff-run"
        forge(path, exchanges)
        size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
        run = measured("kwire diff", [*KWIRE, "diff", str(path)])
        figures = f"{run.seconds:.1f} s, {run.peak_anonymous_mb:.0f} MB RssAnon"
        say(f"{exchanges:>9} exchanges, {size / 1e6:.0f} MB: {figures}")
        result["runs"].append(
            {"exchanges": exchanges, "run_bytes": size, "seconds": run.seconds, "rss_anon_mb": run.peak_anonymous_mb}
        )
    if chosen.save:
        save(result)
    else:
        print(json.dumps(result["runs"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
