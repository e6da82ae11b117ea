"""Framing and seeking find what their slow reference finds: which frames, where, and how many bytes were passed over.

(proves: analyzer/bulk/framing.py, resync.py, regions.py; the reference is framing_reference.py)
"""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.shard import Conversations, layouts
from kwire.captures import stream_tables as t
from kwire.captures.files.points import capture_points
from kwire.captures.flows import Flows
from kwire.captures.packets import Reader, no_packets
from kwire.captures.streams import Segments, Streams
from tests.analyzer.bulk.framing_reference import Connection, Reference, Segment
from tests.analyzer.bulk.test_conversations_property import conversations
from tests.analyzer.forging import payloads, without
from tests.captures.forge import Write, converse, pcap, rendered
from tests.shared import capture_files, sample_folders, shared_folders

FOLDERS = {folder.name: folder for folder in [*sample_folders(), *shared_folders()]}
PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n"


def length_before_kafka(first: bytes) -> int:
    """How many of a direction's first bytes, all in one segment here, a balancer or proxy said: a PROXY header of
    version 1 or 2, or a message of SOCKS5 (RFC 1928). The reference knows nothing of them."""
    if first.startswith(b"PROXY "):
        return first.index(b"\r\n") + 2
    if first.startswith(PROXY_2):
        return 16 + int.from_bytes(first[14:16], "big")
    if first[:1] != b"\5":
        return 0
    greeting = len(first) in (2, 2 + first[1])
    connecting = first[1:3] in (b"\1\0", b"\0\0") and first[3:4] in (b"\1", b"\3", b"\4")
    return len(first) if greeting or connecting else 0


def compared(files: list[Path], prefixes: bool = False) -> list[tuple[Any, Any]]:
    """Pair each connection of kernels and reference, in the order of their ends."""
    (point,) = capture_points([str(path) for path in files], rotated=len(files) > 1)
    reader, flows, streams, reference = Reader(point), Flows(), Streams(), Reference()
    kernels = Conversations(layouts())
    frames: dict[int, list[tuple[int, ...]]] = {}
    pairs = []
    base = 0
    before = set(range(1000)) if prefixes else set()  # directions that have not said anything of Kafka yet

    def work(segments: Segments, assigned: Any, final: bool) -> None:
        for row in segments.rows.tolist():
            data = b""
            if row[t.SEG_KIND] == t.DATA:
                source = segments.sources[row[t.SEG_SOURCE]]
                data = source[row[t.SEG_AT] : row[t.SEG_AT] + row[t.SEG_LENGTH]].tobytes()
            opener = int(streams.connections[row[t.SEG_KEY] >> 1, t.C_SYN_SIDE])
            if data and row[t.SEG_KEY] in before:
                prefix_length = length_before_kafka(data)
                data = data[prefix_length:]
                if prefix_length == 0:
                    before.remove(row[t.SEG_KEY])
                if not data:
                    continue
            length = len(data) or row[t.SEG_LENGTH]
            reference.take(
                Segment(row[t.SEG_KEY], row[t.SEG_KIND], data, length, row[t.SEG_PACKET_INDEX], row[t.SEG_RECORD_AT]),
                opener,
            )
        ended = kernels.take(segments, streams, assigned, final)
        for x in ended.exchanges.T.tolist():
            frames_of_slot = frames.setdefault(x[s.X_SLOT], [])
            for side, ordinal, base_column in (
                (0, s.X_EXCHANGE, s.REQUEST_COLUMNS),
                (1, s.X_REPLY, s.RESPONSE_COLUMNS),
            ):
                if x[ordinal] != s.NULL:
                    size, place = max(x[base_column + s.M_BYTES], 0), x[base_column + s.M_RECORD_AT]
                    frames_of_slot.append(
                        (side, x[ordinal], size, place, x[base_column + s.M_STATE] == s.TRUNCATED_STATE)
                    )
        state = kernels._state.framing
        for (slot, plain), number in zip(reference.ended, ended.slots.tolist(), strict=True):
            assert slot == number
            k, lost = state.k[slot], int(state.f[2 * slot : 2 * slot + 2, s.F_LOST].sum())
            kafka = bool(k[s.K_CLASS] == s.KAFKA)
            product = (
                kafka,
                int(k[s.K_CLIENT]) if kafka else -1,
                sorted(frames.pop(slot, [])),
                int(k[s.K_SKIPPED]) + lost if kafka else 0,
                int(k[s.K_INCOMPLETE]),
            )
            pairs.append((product, plainly(plain)))
        reference.ended = []

    for packets in reader:
        assigned = flows.assign(packets)
        work(streams.advance(packets, assigned, base, flows.slots), assigned, False)
        base += len(packets)
        packets.release()
    last = flows.all_end()
    work(streams.advance(no_packets(), last, base, flows.slots), last, True)
    return pairs


def plainly(link: Connection) -> Any:
    """The reference's connection in the same form."""
    if link.kind != "KAFKA":
        return False, -1, [], 0, link.incomplete
    rows = sorted(
        (frame.side, frame.ordinal, frame.size, frame.record_at, frame.cause in ("hole", "cut"))
        for frame in link.frames
    )
    lost = sum(side.lost for side in link.sides)
    return True, link.client, rows, link.skipped + lost, link.incomplete


def check(files: list[Path], prefixes: bool = False) -> int:
    pairs = compared(files, prefixes)
    for number, (product, plain) in enumerate(pairs):
        assert product == plain, f"connection {number}"
    return sum(len(product[2]) for product, _ in pairs)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_capture_has_the_frames_that_the_twin_finds(name: str) -> None:
    frames = check(capture_files(FOLDERS[name]), prefixes=name.startswith("zoo-prefix"))
    assert frames > 0 or name.startswith("tls")


@pytest.mark.parametrize("name", ["codecs-franzgo-4.3", "old-java-0.8.2", "sasl-librdkafka-4.3"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_capture_that_lost_packets(name: str, seed: int, tmp_path: Path) -> None:
    """One packet in twelve is gone, handshakes too: the middle of connections, and holes wherever they fall."""
    import dpkt

    rng = random.Random(seed)
    (path,) = capture_files(FOLDERS[name])
    with path.open("rb") as file, (tmp_path / "capture.pcap").open("wb") as thinned:
        reader = dpkt.pcap.Reader(file)
        writer = dpkt.pcap.Writer(thinned, linktype=reader.datalink())
        for time, frame in reader:
            if rng.random() > 1 / 12:
                writer.writepkt(frame, time)
    check([tmp_path / "capture.pcap"])


@settings(max_examples=30, deadline=None)
@given(conversations(), st.randoms(use_true_random=False), st.booleans(), st.sampled_from([90, 500, 1448]))
def test_conversations_with_losses(writes: list[Write], rng: random.Random, handshake: bool, mss: int) -> None:
    segments = converse(writes, handshake=handshake, mss=mss)
    places = [*payloads(segments, to_broker=True), *payloads(segments, to_broker=False)]
    gone = [place for place in places if rng.random() < 0.15]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.pcap"
        path.write_bytes(pcap(rendered(without(segments, *gone)), 1, nanoseconds=True))
        check([path])


def test_an_answer_by_the_number_of_a_cut_produce_without_acks(tmp_path: Path) -> None:
    """Nobody answers the Produce, whose `acks` were captured: the answer is that to the other request of its number."""

    def request(api: int, version: int, number: int, body: bytes) -> Write:
        data = struct.pack(">hhih", api, version, number, 3) + b"app" + body
        return Write(True, len(data).to_bytes(4, "big") + data)

    def heartbeat(number: int) -> Write:
        return request(12, 0, number, b"\0\1g\0\0\0\7\0\1m")

    def answer(number: int) -> Write:
        return Write(False, struct.pack(">iih", 6, number, 0))

    produce = request(0, 3, 4, struct.pack(">hhiih6siii", -1, 0, 1000, 1, 6, b"orders", 1, 0, 200) + bytes(200))
    writes = [heartbeat(2), answer(2), heartbeat(3), produce, heartbeat(4), answer(3), answer(4)]
    writes += [heartbeat(5), answer(5)]
    segments = converse(writes, handshake=True, mss=90)
    to_broker, to_client = (payloads(segments, to_broker=to_broker) for to_broker in (True, False))
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(pcap(rendered(without(segments, to_broker[3], to_client[1])), 1, nanoseconds=True))
    assert check([capture]) == 8, "five requests, and three answers"
