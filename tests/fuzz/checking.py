"""Check the invariants of any capture, however broken, on one mutant.

In: a mutant. Out: nothing, or `Broken`, which says what did not hold. A `CaptureError` with a hint is a fair answer.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kwire import analyzer
from kwire.analyzer.bulk.latency_split import ACROSS
from kwire.analyzer.bulk.rows import end_point
from kwire.analyzer.cli.exchange_lines import Lines
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import Dataset
from kwire.captures.files import CaptureError
from tests.fuzz import corpus
from tests.fuzz.mutations import Base, Flow, Mutant, bases, mutant

PARTS = ("duplicate_bytes", "decoded_bytes", "opaque_bytes", "skipped_bytes", "incomplete_bytes")
PLACES = ("request_packet", "response_packet", "request_offset", "response_offset", "request_file", "response_file")
"""Columns that change for every connection where one has more or fewer packets."""

TOLD_ACROSS = ("hold_us", "broker_us", "broker_low_us", "broker_high_us", "cause")
"""Columns that follow from what other connections said too, in exchanges of `ACROSS`: a fetch waits for a Produce."""

WINDOWS = (None, None, 1 << 20, 1 << 16, 4096)


class Broken(Exception):
    """A promise that did not hold."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one case. `seconds`: processor time of reading it once; `features`: of `tests.fuzz.corpus`; `mutants`:
    how many it is made of."""

    seconds: float
    exchanges: int
    refused: bool
    features: frozenset[str] = frozenset()
    mutants: int = 1


def must(condition: bool, what: str) -> None:
    """Raise Broken unless it holds."""
    if not condition:
        raise Broken(what)


def check_coverage(dataset: Dataset, payload: int | None = None) -> None:
    """Payload = duplicate + decoded + opaque + skipped + incomplete, for each connection and in all."""
    names = [
        "payload_bytes",
        *PARTS,
        "gap_bytes",
        "snaplen_bytes",
        *(f"opaque_{reason}_bytes" for reason in tables.OPAQUE_REASONS),
    ]
    rows = dataset.connections.select(["connection", "client_bytes", "broker_bytes", *names]).to_pylist()
    for row in rows:
        amounts = {name: amount for name, amount in row.items() if amount}
        must(all(row[name] >= 0 for name in names), f"an amount is negative: {amounts}")
        must(row["payload_bytes"] == sum(row[part] for part in PARTS), f"coverage does not add up: {amounts}")
        must(row["payload_bytes"] == row["client_bytes"] + row["broker_bytes"], f"not what was captured: {amounts}")
        opaque = sum(row[f"opaque_{reason}_bytes"] for reason in tables.OPAQUE_REASONS)
        must(row["opaque_bytes"] == opaque, f"opaque does not add up: {amounts}")
    coverage = dataset.coverage
    must(coverage["payload_bytes"] == sum(coverage[part] for part in PARTS), f"total does not add up: {coverage}")
    for name in ("payload_bytes", *PARTS, "gap_bytes", "snaplen_bytes"):
        must(coverage[name] == sum(row[name] for row in rows), f"{name}: the total is not the connections' sum")
    if payload is not None:
        told_in_all = coverage["payload_bytes"] + dataset.unrecognised["payload_bytes"]
        must(told_in_all == payload, f"{told_in_all} payload bytes accounted for, {payload} captured")


def check_rows(dataset: Dataset) -> None:
    """Keys are unique, every exchange has its connection, counts agree, states and times make sense."""
    exchanges = dataset.exchanges
    keys = list(zip(*(exchanges[name].to_pylist() for name in ("capture", "connection", "exchange", "reply"))))
    must(len(set(keys)) == len(keys), "(capture, connection, exchange, reply) is not unique")
    connections = dataset.connections["connection"].to_pylist()
    must(len(set(connections)) == len(connections), "a connection has two rows")
    missing = {key[1] for key in keys} - set(connections)
    must(not missing, f"exchanges without their connection: {sorted(missing)[:3]}")
    requests: dict[str, int] = dict.fromkeys(connections, 0)
    for _, connection, exchange, _ in keys:
        requests[connection] += exchange is not None
    for row in dataset.connections.select(["connection", "requests"]).to_pylist():
        must(
            row["requests"] == requests[row["connection"]],
            f"{row['connection']}: {row['requests']} requests, {requests[row['connection']]} exchanges",
        )
    must(sum(api["exchanges"] for api in dataset.summary["apis"]) == len(keys), "the summary counts other exchanges")
    must(exchanges.schema.equals(tables.schema("exchanges")), "another schema")
    columns = ("exchange", "reply", "status", "request_state", "response_state", "latency_us", "reason")
    for exchange, reply, status, asking, answering, latency, reason in zip(
        *(exchanges[name].to_pylist() for name in columns)
    ):
        must((exchange is None) == (status == "orphan_response"), f"{status} with exchange {exchange}")
        must((asking is None) == (exchange is None), f"request_state {asking} with exchange {exchange}")
        must((answering is None) == (reply is None), f"response_state {answering} with reply {reply}")
        must(status != "answered" or reply is not None, "answered without a reply")
        must(latency is None or latency >= 0, f"latency {latency}")
        undecoded = {asking, answering} & {"truncated", "undecoded"}
        must(not undecoded or bool(reason), f"{undecoded} without a reason")


def check_bodies(path: Path) -> None:
    """The one-message path: every body as JSON and as a tree with bytes."""
    lines = Lines()
    for exchange in analyzer.exchanges(path):
        exchange.json()
        lines.exchange(exchange)
        lines.tree(exchange, True)


def names(flow: Flow) -> tuple[str, str]:
    client, broker = end_point(*flow[0]), end_point(*flow[1])
    return f"{client}-{broker}", f"{broker}-{client}"


def _untouched(dataset: Dataset, flow: Flow) -> dict[str, pa.Table]:
    """The rows of all connections but one."""
    out = {}
    for name in ("exchanges", "connections", "api_versions"):
        table = getattr(dataset, name)
        own = pc.is_in(pc.replace_substring_regex(table["connection"], "#[0-9]+$", ""), value_set=pa.array(names(flow)))
        table = table.filter(pc.invert(own)).drop_columns([column for column in PLACES if column in table.column_names])
        if name == "exchanges":
            across = pc.is_in(table["api_key"], value_set=pa.array(ACROSS, table.schema.field("api_key").type))
            for column in TOLD_ACROSS:
                at = table.column_names.index(column)
                values = pc.if_else(across, pa.scalar(None, table.column(at).type), table.column(at))
                table = table.set_column(at, column, values)
        order = [
            (key, "ascending") for key in ("connection", "exchange", "reply", "api_key") if key in table.column_names
        ]
        out[name] = table.sort_by(order)
    return out


@cache
def _unbroken(base: str, folder: Path) -> Dataset:
    path = folder / "capture.pcap"
    path.write_bytes(next(base_capture for base_capture in bases() if base_capture.name == base).whole())
    return analyzer.analyze(path)


def check_others(base: Base, dataset: Dataset, flow: Flow, folder: Path) -> None:
    """The rows of all other connections are those of the unbroken capture."""
    before, after = _untouched(_unbroken(base.name, folder), flow), _untouched(dataset, flow)
    for name, table in before.items():
        if not after[name].equals(table):
            raise Broken(f"{name}: another connection's rows changed: {_difference(table, after[name])}")


def _difference(a: pa.Table, b: pa.Table) -> str:
    if len(a) != len(b):
        return f"{len(a)} rows, then {len(b)}"
    for name in a.column_names:
        for i, (x, y) in enumerate(zip(a[name].to_pylist(), b[name].to_pylist())):
            if x != y:
                return f"row {i} ({a['connection'][i]}), {name}: {x!r}, then {y!r}"
    return "schemas differ"


def check_same(first: Dataset, second: Dataset) -> None:
    """Windows and threads change nothing."""
    for name, table in first.tables.items():
        other = second.tables[name]
        if not table.equals(other):
            difference = _difference(table, other) if "connection" in table.column_names else "rows differ"
            raise Broken(f"{name} depends on windows or threads: {difference}")
    must(first.coverage == second.coverage, "coverage depends on windows or threads")


def check(base: Base, broken: Mutant, rng: random.Random, folder: Path, deep: float = 0.25) -> Outcome:
    """All of it for one mutant; raises Broken, or whatever came out of kwire. A share `deep` of them is also read with
    other windows and threads, and message by message."""
    path = folder / "capture.pcap"
    if broken.touched is not None:
        _unbroken(base.name, folder)  # before the file is the mutant
    path.write_bytes(broken.data)
    limit = rng.choice((None, None, None, None, None, 1 << 17, 1 << 20))
    # Processor time of all threads: what else the machine does is not counted. A hang is the watchdog's to find.
    begin = time.process_time()
    try:
        dataset = analyzer.analyze(
            path,
            threads=rng.choice((2, 4)),
            window_bytes=rng.choice(WINDOWS),
            frame_limit=limit,
            keep_bytes=rng.random() < 0.3,
        )
    except CaptureError as failure:
        must(bool(failure.hint), f"an error without a hint: {failure}")
        must(broken.payload is None, f"a readable capture was refused: {failure}")
        return Outcome(time.process_time() - begin, 0, True)
    seconds = time.process_time() - begin
    check_coverage(dataset, broken.payload)
    check_rows(dataset)
    if broken.touched is not None and limit is None:
        check_others(base, dataset, broken.touched, folder)
    if rng.random() < deep:
        again = analyzer.analyze(
            path,
            threads=rng.choice((1, 2, 4, 6)),
            window_bytes=rng.choice((2000, 30_000, None)),
            keep_bytes="messages" in dataset.tables,
        )
        if limit is None:
            check_same(dataset, again)
        check_coverage(again, broken.payload)
        check_bodies(path)
    return Outcome(seconds, len(dataset.exchanges), False, corpus.features(dataset))


def check_number(number: int, seed: int, folder: Path, deep: float = 0.25) -> Outcome:
    """Make mutation `number` of a seed and check it."""
    base, broken, rng = mutant(number, seed)
    return check(base, broken, rng, folder, deep)


def check_evolved(number: int, seed: int, folder: Path, deep: float = 0.25) -> Outcome:
    """Break a capture of the corpus further, and check it."""
    data, what, rng = corpus.evolved(number, seed)
    return check(bases()[0], Mutant(data, what), rng, folder, deep)
