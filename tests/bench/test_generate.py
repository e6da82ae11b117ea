"""The benchmarks' captures are what they claim: a slow, independent reader finds every message, checksum and packet."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import crc32c
import dpkt
import pytest

from tests.bench import generate, messages
from tests.captures.forge import internet_checksum
from tests.witness import reference


def generated(kind: str, folder: Path) -> generate.GeneratedCapture:
    path = folder / f"{kind}.pcap"
    if kind == "large":
        return generate.large(path, 4_000_000, connections=3, batch_bytes=100_000)
    return generate.small(path, 200_000, connections=5)


@pytest.fixture(params=["large", "small"])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> generate.GeneratedCapture:
    return generated(request.param, tmp_path)


def test_the_reference_reads_every_exchange(capture: generate.GeneratedCapture) -> None:
    exchanges = list(reference.exchanges([Path(capture.path)], {9092}))
    assert len(exchanges) == capture.exchanges
    assert Counter((exchange.status, exchange.problem, exchange.trailing) for exchange in exchanges) == {
        ("answered", "", 0): capture.exchanges
    }
    assert {(exchange.api_key, exchange.api_version) for exchange in exchanges} == {(0, 7), (1, 11)}
    assert len({exchange.connection for exchange in exchanges}) == capture.connections
    of_one: dict[str, list[Any]] = {}
    for exchange in exchanges:
        of_one.setdefault(exchange.connection, []).append(exchange)
    for talk in of_one.values():
        ids = [exchange.correlation_id for exchange in talk]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert len({exchange.client_id for exchange in talk}) == 1


def test_every_packet_has_right_checksums_and_its_own_time(capture: generate.GeneratedCapture) -> None:
    payload = count = 0
    before = 0.0
    with Path(capture.path).open("rb") as file:
        for time, frame in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(frame).data
            assert internet_checksum(bytes(frame)[14:34]) == 0
            assert internet_checksum(ip.src + ip.dst + struct.pack(">II", ip.len - 20, 6) + bytes(frame)[34:]) == 0
            assert time > before
            before = time
            payload += len(ip.data.data)
            count += 1
    assert (count, payload) == (capture.packets, capture.payload_bytes)
    assert Path(capture.path).stat().st_size == capture.file_bytes


def test_large_has_all_codecs_in_large_batches_with_right_checksums(tmp_path: Path) -> None:
    capture = generated("large", tmp_path)
    codecs: Counter[str] = Counter()
    # The batch is the last thing in both messages that carry one; what stands before it has the same length always.
    before = {
        True: len(messages.produce_request(0, "client-00000", "orders-00", 0, b"")),
        False: len(messages.fetch_response(0, "orders-00", 0, 0, b"")),
    }
    for _, _, _, to_broker, from_broker in reference.connections([Path(capture.path)], {9092}):
        for laid, start_at in ((to_broker, before[True]), (from_broker, before[False])):
            for begin, end in reference.frames(laid, set()):
                if end - begin > 1000:
                    start = begin + start_at
                    length, _, magic, crc = struct.unpack_from(">iibI", laid.data, start + 8)
                    assert (magic, start + 12 + length) == (2, end)
                    assert crc == crc32c.crc32c(laid.data[start + 21 : end])
                    assert end - start >= 100_000
                    codecs[messages.CODECS[laid.data[start + 22] & 7]] += 1
    assert set(codecs) == set(messages.CODECS)


def test_the_same_seed_makes_the_same_file(tmp_path: Path) -> None:
    for kind in ("large", "small"):
        (tmp_path / "a").mkdir(exist_ok=True)
        first = Path(generated(kind, tmp_path).path).read_bytes()
        assert Path(generated(kind, tmp_path / "a").path).read_bytes() == first


def test_small_packets_are_small_and_hold_up_to_two_requests(tmp_path: Path) -> None:
    capture = generated("small", tmp_path)
    assert 150 < capture.file_bytes / capture.packets < 190
    assert capture.exchanges / capture.packets > 0.35


def test_one_packet_is_one_request(tmp_path: Path) -> None:
    capture = generate.one_packet(tmp_path / "one.pcap")
    (exchange,) = reference.exchanges([Path(capture.path)], {9092})
    assert (exchange.api_key, exchange.api_version, exchange.status, exchange.request is not None) == (
        0,
        7,
        "in_flight",
        True,
    )


def test_sizes_are_read_as_written() -> None:
    assert [generate.size_of(text) for text in ("300M", "1.5G", "12", "2k")] == [300_000_000, 1_500_000_000, 12, 2000]
