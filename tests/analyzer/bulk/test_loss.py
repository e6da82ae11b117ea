"""Packets that the capture lost: what is whole must still be found, and what is missing must be said.

From a real capture whose every byte is there, packets are removed at random. An exchange is *untouched* where no packet
that first brought one of its bytes was removed: it must be found as in the whole capture.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analyzer.forging import CaptureRows, read
from tests.captures.forge import SYN, Segment, dropped, loaded, merged, resegmented, segments_of
from tests.shared import SAMPLES, capture_files, shared_folder

SAME = (
    "api",
    "api_version",
    "correlation_id",
    "client_id",
    "request_time",
    "request_end",
    "response_time",
    "response_end",
    "request_bytes",
    "response_bytes",
    "status",
    "request_state",
    "response_state",
    "error_code",
)

FOUND_AT_LEAST = 0.99
"""Share of the untouched exchanges that must be found. Not all can: an answer next to a hole may have no request any
more, and a request may follow a hole so closely that nothing tells where it starts."""


def packets_of(folder: Path) -> list[Segment]:
    link, records = loaded(capture_files(folder)[0])
    return segments_of(records, link)


class Origins:
    """Which packet first brought each byte of each direction of each connection that has a SYN."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.start: dict[tuple[Any, Any, int], int] = {}
        self.first: dict[tuple[Any, Any, int], np.ndarray] = {}
        uses: Counter[frozenset[Any]] = Counter()
        current: dict[tuple[Any, Any], tuple[Any, Any, int]] = {}
        pieces: dict[tuple[Any, Any, int], list[tuple[int, int, int]]] = defaultdict(list)
        for index, segment in enumerate(segments):
            if segment.flags & SYN:
                known = current.get(segment.flow)
                isn = (segment.sequence + 1) % 2**32
                if known is None or self.start[known] != isn:
                    pair = frozenset(segment.flow)
                    if known is not None or segment.flow[::-1] not in current:
                        uses[pair] += 1
                    current[segment.flow] = (*segment.flow, uses[pair])
                    self.start[current[segment.flow]] = isn
            elif segment.payload and segment.flow in current:
                key = current[segment.flow]
                at = (segment.sequence - self.start[key]) % 2**32
                if at < 2**31:
                    pieces[key].append((at, len(segment.payload), index))
        for key, places in pieces.items():
            first = np.full(max(at + length for at, length, _ in places), len(segments), np.int64)
            for at, length, index in places:
                np.minimum(first[at : at + length], index, out=first[at : at + length])
            self.first[key] = first


def untouched(whole: CaptureRows, origins: Origins, is_kept: np.ndarray) -> list[dict[str, Any]]:
    """Rows of the whole capture all of whose bytes still come with the packet that first brought them. Where a message
    lies in its stream is the sum of the sizes before it: the capture is complete and every frame is a row."""
    out = []
    by_connection: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in whole.exchanges:
        by_connection[row["connection"]].append(row)
    intact = np.append(is_kept, False)
    for name, rows in by_connection.items():
        use = int(name.rpartition("#")[2])
        client = (rows[0]["client_ip"], rows[0]["client_port"])
        broker = (rows[0]["broker_ip"], rows[0]["broker_port"])
        whole_of: dict[str, dict[int, bool]] = {}
        for ordinal, size, flow in (
            ("exchange", "request_bytes", (client, broker, use)),
            ("reply", "response_bytes", (broker, client, use)),
        ):
            first = origins.first.get(flow, np.zeros(0, np.int64))
            at = 0
            fine = whole_of[ordinal] = {}
            for expected, row in enumerate(
                sorted((row for row in rows if row[ordinal] is not None), key=lambda r: r[ordinal])
            ):
                assert row[ordinal] == expected, (name, ordinal, row[ordinal])
                fine[expected] = bool(intact[first[at : at + row[size]]].all()) and at + row[size] <= len(first)
                at += row[size]
        for row in rows:
            sides = [whole_of[ordinal][row[ordinal]] for ordinal in ("exchange", "reply") if row[ordinal] is not None]
            if row["status"] in ("answered", "no_response_expected") and all(sides):
                out.append(row)
    return out


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    # The number of the use (#n) is left out: with a SYN lost, two uses of a four-tuple can look like one.
    return (row["connection"].rpartition("#")[0], *(row[name] for name in SAME))


def lose(
    folder: Path, segments: list[Segment], share: float, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], CaptureRows]:
    """(untouched rows, those of them not found, what was seen) with a share of the packets removed."""
    whole = read(folder, segments)
    positions = {id(segment): index for index, segment in enumerate(segments)}
    left = dropped(segments, random.Random(seed), share)
    is_kept = np.zeros(len(segments), bool)
    is_kept[[positions[id(segment)] for segment in left]] = True
    lossy = read(folder, left)
    expected = untouched(whole, Origins(segments), is_kept)
    identities = Counter(identity(row) for row in lossy.exchanges)
    missing = []
    for row in expected:
        key = identity(row)
        if identities[key]:
            identities[key] -= 1
        else:
            missing.append(row)
    return expected, missing, lossy


FORMS = ("as captured", "small segments", "offloaded")


def in_form(segments: list[Segment], form: str) -> list[Segment]:
    """As captured on a loopback most messages are one packet. Real networks cut them, and offloading joins them."""
    if form == "as captured":
        return segments
    small = resegmented(segments, random.Random(5), 1000)
    return small if form == "small segments" else merged(small, random.Random(6), 0.7)


def check(folder: Path, segments: list[Segment], shares: Sequence[float], seed: int) -> None:
    expected: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    gone = 0
    for share in shares:
        some, lost, seen = lose(folder, segments, share, seed)
        gone += seen.coverage["gap_bytes"]
        expected += some
        missing += lost
    assert len(expected) > 100
    assert gone > 0, "nothing was lost: this tests nothing"
    share_found = 1 - len(missing) / len(expected)
    listed = [(row["connection"], row["api"], row["correlation_id"], row["request_packet"]) for row in missing]
    assert share_found >= FOUND_AT_LEAST, f"{share_found:.2%} of {len(expected)} found; missing {listed[:20]}"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_untouched_exchanges_of_a_sample_are_found(tmp_path: Path, form: str, seed: int) -> None:
    check(tmp_path, in_form(packets_of(SAMPLES / "client-kafkajs-3.9"), form), (0.01, 0.02, 0.05), seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["codecs-librdkafka-4.3", "txn-librdkafka-4.3", "group-classic-librdkafka-4.3", "net-lossy-4.3"]
)
def test_untouched_exchanges_are_found(tmp_path: Path, name: str, form: str) -> None:
    check(tmp_path, in_form(packets_of(shared_folder(name)), form), (0.01, 0.02, 0.05), 1)


def test_untouched_exchanges_of_a_cluster_are_found(tmp_path: Path) -> None:
    """34,000 exchanges, most of them between brokers."""
    check(tmp_path, packets_of(shared_folder("cluster-kraft-3.9")), (0.02,), 1)
