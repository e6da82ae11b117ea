"""Any valid conversation gives the same tables, however the network and the capture treated its packets.

Hypothesis makes conversations; they are cut into segments, put out of order (within bounds), sent twice, overlapped,
and read in windows of any size by any number of threads. What does not depend on packet numbers and times must be the
same as in the plain capture; between window sizes and threads everything must be, column and row order too.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.analyzer.forging import (
    API_VERSIONS,
    SASL_HANDSHAKE,
    TABLE_NAMES,
    CaptureRows,
    answering,
    asking,
    batch,
    fetch,
    fetch_answer,
    framed,
    heartbeat,
    heartbeat_answer,
    metadata,
    metadata_answer,
    produce,
    produce_answer,
    read_files,
    request,
    response,
)
from tests.captures.forge import (
    Segment,
    Write,
    converse,
    duplicated,
    interleaved,
    merged,
    overlapped,
    pcap,
    rendered,
    reordered,
    resegmented,
    retransmitted,
)
from tests.shared import SAMPLES, capture_files

# fmt: off
DEPENDS_ON_PACKETS = {
    "request_time", "request_end", "response_time", "response_end", "latency_us", "total_us", "queue_us",
    "muted_us", "network_us", "hold_us", "broker_us", "cause", "capture_point",
    "broker_low_us", "broker_high_us",
    "request_packet", "response_packet", "request_offset", "response_offset", "first_time", "last_time",
    "client_packets",
    "broker_packets", "client_bytes", "broker_bytes", "rtt_us", "retransmissions", "duplicates", "out_of_order",
    "zero_windows", "payload_bytes", "duplicate_bytes",
    "longest_silence_us", "longest_silence_end", "closed_by", "closed_after", "closed_after_us", "delayed_sends",
    *(f"{name}_to_{end}" for end in ("broker", "client") for name in (
        "unacknowledged_bytes", "unacknowledged_since", "unacknowledged_sends", "unacknowledged_segment",
        "sacked_bytes", "sacked_segment",
    )),
}
# fmt: on
"""Columns that say something of single packets, or count every copy of a byte."""


BACKWARDS = "response: captured before the end of its request"
SHUT = "response: the broker had closed the connection before"


@dataclass(frozen=True)
class Exchange:
    """One exchange to be: its messages, and whether the broker answers."""

    ask: bytes
    answer: bytes | None


@st.composite
def exchanges(draw: st.DrawFn, correlation_id: int) -> Exchange:
    kind = draw(st.sampled_from(["heartbeat", "fetch", "produce", "acks=0", "metadata", "versions", "silent"]))
    if kind == "heartbeat":
        client_id = draw(st.sampled_from(["orders-app", None, "ä"]))
        return Exchange(heartbeat(correlation_id, client_id=client_id), heartbeat_answer(correlation_id))
    if kind == "fetch":
        size = draw(st.sampled_from([0, 10, 300, 3000]))
        return Exchange(fetch(correlation_id), fetch_answer(correlation_id, batch(1, size) if size else b""))
    if kind == "produce":
        version = draw(st.integers(3, 13))
        records = batch(draw(st.integers(1, 3)), draw(st.sampled_from([10, 700])))
        return Exchange(produce(correlation_id, version, -1, records), produce_answer(correlation_id, version))
    if kind == "acks=0":
        return Exchange(produce(correlation_id, draw(st.sampled_from([0, 3, 9])), 0, batch()), None)
    if kind == "metadata":
        topics = draw(st.lists(st.sampled_from(["orders", "invoices", "x" * 200]), max_size=3))
        return Exchange(metadata(correlation_id, topics), metadata_answer(correlation_id, topics))
    if kind == "versions":
        software = {"clientSoftwareName": "s", "clientSoftwareVersion": "1"}
        keys = [{"apiKey": 18, "minVersion": 0, "maxVersion": 3}]
        answer = response(API_VERSIONS, 0, correlation_id, {"errorCode": 35, "apiKeys": keys})
        return Exchange(request(API_VERSIONS, 4, correlation_id, software), answer)
    return Exchange(heartbeat(correlation_id, "lost"), None)


def login() -> list[Write]:
    """SaslHandshake v0, then raw tokens (KIP-43)."""
    return [
        asking(request(SASL_HANDSHAKE, 0, 0, {"mechanism": "PLAIN"})),
        answering(response(SASL_HANDSHAKE, 0, 0, {"errorCode": 0, "mechanisms": ["PLAIN"]})),
        asking(framed(b"\0alice\0secret")),
        answering(framed(b"")),
    ]


@st.composite
def conversations(draw: st.DrawFn) -> list[Write]:
    """Pipelined requests, answers in order, ids that repeat, now and then a login."""
    writes = login() if draw(st.booleans()) else []
    number = draw(st.integers(1, 1 << 20))
    for _ in range(draw(st.integers(1, 5))):
        group = []
        for _ in range(draw(st.integers(1, 4))):
            number += draw(st.sampled_from([1, 1, 1, 0]))
            group.append(draw(exchanges(number)))
        requests = [exchange.ask for exchange in group]
        answered = [exchange.answer for exchange in group if exchange.answer is not None]
        if draw(st.booleans()):
            writes += [asking(b"".join(requests)), answering(b"".join(answered))]
        else:
            writes += [*map(asking, requests), *map(answering, answered)]
    return [write for write in writes if write.data]


@st.composite
def points(draw: st.DrawFn) -> list[list[Write]]:
    return draw(st.lists(conversations(), min_size=1, max_size=3))


def packets(point: list[list[Write]], close: Any, rng: random.Random) -> list[list[Segment]]:
    """Each conversation's packets in order, numbered from anywhere (sequence numbers may wrap)."""
    return [
        converse(
            writes,
            client=("10.0.0.1", 40_000 + index),
            close=close,
            client_isn=rng.choice([7, 2**32 - 50, 2**32 - 2000, 1 << 31]),
            broker_isn=rng.choice([9, 2**32 - 70, 2**32 - 3000, (1 << 31) - 100]),
            start_ns=1_700_000_000_000_000_000 + index * 13_000,
        )
        for index, writes in enumerate(point)
    ]


def treated(segments: list[Segment], rng: random.Random) -> list[Segment]:
    """One connection as an unkind network and capture point leave it. The handshake stays where it is."""
    shaken, rest = segments[:3], segments[3:]
    # A FIN is not cut, so that its place in the stream stays.
    rest = resegmented(rest, rng, rng.choice([1448, 400, 60, 9]))
    rest = merged(rest, rng, rng.choice([0, 0.5]))
    rest = overlapped(rest, rng, rng.choice([0, 0.2]))
    rest = retransmitted(rest, rng, rng.choice([0, 0.1, 0.3]), within=20)
    rest = reordered(rest, rng, rng.choice([0, 0.1, 0.5]), within=rng.choice([1, 4, 32]))
    rest = duplicated(rest, rng, rng.choice([0, 0.2]))
    return shaken + rest


def analysed(segments: list[Segment], **options: Any) -> CaptureRows:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.pcap"
        path.write_bytes(pcap(rendered(segments), nanoseconds=True))
        return read_files(path, **options)


def stripped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what depends on packets, by connection and in order within each."""
    reduced = [{name: value for name, value in row.items() if name not in DEPENDS_ON_PACKETS} for row in rows]
    for row in reduced:
        if "reason" in row:  # put out of order, an answer or a FIN may be captured first, which is said
            reasons = [part for part in (row["reason"] or "").split("; ") if part and part not in (BACKWARDS, SHUT)]
            row["reason"] = "; ".join(reasons) or None
    return sorted(reduced, key=lambda row: str(row["connection"]))


def assert_same_tables(left: CaptureRows, other: CaptureRows) -> None:
    for name in TABLE_NAMES:
        a, b = left.tables[name], other.tables[name]
        assert a.schema.equals(b.schema)
        assert a.equals(b), (name, first_difference(a, b))
    assert left.coverage == other.coverage
    assert left.unrecognised == other.unrecognised


def first_difference(a: pa.Table, b: pa.Table) -> Any:
    for index, (left, right) in enumerate(zip(a.to_pylist(), b.to_pylist(), strict=False)):
        if left != right:
            return index, {name: (left[name], right[name]) for name in left if left[name] != right[name]}
    return len(a), len(b)


LOGGED_IN = [
    *login(),
    *[asking(fetch(2)), answering(fetch_answer(2))],
    *[asking(produce(3, 3, 0, batch())), asking(produce(4, 0, 0, batch()))],
]
"""With seed 0 its last token and the answer behind it were captured as one segment before the request between them."""


@settings(max_examples=60)
@example(point=[LOGGED_IN], close="fin", seed=0)
@given(point=points(), close=st.sampled_from(["fin", "rst", None]), seed=st.integers(0, 1 << 30))
def test_the_network_changes_no_table(point: list[list[Write]], close: Any, seed: int) -> None:
    rng = random.Random(seed)
    conversations = packets(point, close, rng)
    plain = analysed(interleaved(*conversations))
    shaken = analysed(interleaved(*(treated(conversation, rng) for conversation in conversations)))
    assert stripped(shaken.exchanges) == stripped(plain.exchanges)
    assert stripped(shaken.connections) == stripped(plain.connections)
    assert [row["topic"] for row in shaken.tables["topic_ids"].to_pylist()] == [
        row["topic"] for row in plain.tables["topic_ids"].to_pylist()
    ]
    for row in plain.connections:
        assert row["duplicate_bytes"] == row["skipped_bytes"] == row["incomplete_bytes"] == row["gap_bytes"] == 0


@settings(max_examples=40)
@given(
    point=points(),
    close=st.sampled_from(["fin", "rst", None]),
    seed=st.integers(0, 1 << 30),
    window=st.sampled_from([200, 1000, 5000]),
    treat=st.booleans(),
)
def test_windows_and_threads_change_nothing(
    point: list[list[Write]], close: Any, seed: int, window: int, treat: bool
) -> None:
    """Every table, every column, every row in the same place, packet numbers and times included; with packets lost."""
    rng = random.Random(seed)
    conversations = packets(point, close, rng)
    if treat:
        conversations = [treated(conversation, rng) for conversation in conversations]
        conversations = [[packet for packet in conversation if rng.random() > 0.05] for conversation in conversations]
    segments = interleaved(*conversations)
    if segments:
        whole = analysed(segments, threads=1, window_bytes=1 << 26)
        pieces = analysed(segments, threads=4, window_bytes=window)
        assert_same_tables(whole, pieces)


@pytest.mark.parametrize("folder", sorted(SAMPLES.glob("*/truth.json")), ids=lambda path: path.parent.name)
def test_windows_and_threads_change_nothing_on_samples(folder: Path) -> None:
    path = [str(file) for file in capture_files(folder.parent)]
    whole = read_files(path, threads=1, window_bytes=1 << 26)
    assert_same_tables(whole, read_files(path, threads=4, window_bytes=20_000))
    assert_same_tables(whole, read_files(path, threads=6, window_bytes=1 << 26))
