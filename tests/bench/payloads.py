"""`python -m tests.bench.payloads`: values of Avro with 20 fields, decoded to the columns of `records`.

Prints processor time a value, of kwire's columns and of fastavro and orjson alone, which make the same list of JSON
texts, and how many times as much the columns cost (at most 1.6 is wanted).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import orjson
import pyarrow as pa

from kwire.analyzer.dataset import tables
from kwire.analyzer.payloads.columns import PayloadColumns
from kwire.analyzer.payloads.decoder import PayloadDecoder
from kwire.analyzer.payloads.limits import PayloadLimits
from kwire.analyzer.payloads.schemas import Schema, Schemas

KINDS: tuple[Any, ...] = ("long", "string", "double", ["null", "string"], "boolean")
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": KINDS[i % 5]} for i in range(20)]}
HEAD = b"\0\0\0\0\7"


class Source:
    """A source that has one schema."""

    def by_id(self, schema_id: str) -> Schema | None:
        return Schema(schema_id, "avro", None, "folder", json.dumps(SCHEMA))

    def by_subject(self, subject: str) -> Schema | None:
        return None

    def every(self) -> Iterator[Schema]:
        yield from ()


def values(count: int) -> list[bytes]:
    """Values in Confluent's frame."""
    rng = random.Random(7)
    parsed = fastavro.parse_schema(SCHEMA)
    out = []
    for _ in range(count):
        kinds = (rng.randrange(1 << 40), f"customer {rng.randrange(1000)}", rng.random() * 1e5, rng.choice([None, "x"]),
                 rng.random() < 0.5)  # fmt: skip
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, {f"f{i}": kinds[i % 5] for i in range(20)})
        out.append(HEAD + buffer.getvalue())
    return out


def seconds(run: Callable[[], object], runs: int) -> float:
    """The least processor time of some runs."""
    times = []
    for _ in range(runs):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.payloads", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args(arguments)
    data = values(chosen.count)
    columns: dict[str, Any] = {column.name: pa.nulls(len(data), column.type) for column in tables.RECORDS}
    columns |= {"value": pa.array(data, pa.binary()), "topic": pa.array(["orders"] * len(data))}
    table = pa.table(columns)
    parsed = fastavro.parse_schema(SCHEMA)

    def alone() -> list[bytes]:
        out = []
        for value in data:
            source = io.BytesIO(value)
            source.seek(len(HEAD))
            out.append(orjson.dumps(fastavro.schemaless_reader(source, parsed, None)))
        return out

    def filled() -> pa.Table:
        limits = PayloadLimits()
        return PayloadColumns(PayloadDecoder(Schemas([Source()], limits), limits), str).fill(table)

    assert filled().column("value_json").to_pylist() == [text.decode() for text in alone()]
    alone_seconds, columns_seconds = seconds(alone, chosen.runs), seconds(filled, chosen.runs)
    each = 1e6 / len(data)
    print(
        f"fastavro and orjson {alone_seconds * each:.2f} us a value, columns {columns_seconds * each:.2f} us: "
        f"{columns_seconds / alone_seconds:.2f} times"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
