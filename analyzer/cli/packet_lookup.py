"""Which message a packet is part of, where `packet == N` names one that begins none.

In: a filter, and the captures that it let nothing through of. Out: a line for each packet it names. Rules: captures are
read again, so stdin is left out; a packet is part of what went its way on its connection when it was captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kwire.analyzer import api
from kwire.analyzer.bulk.rows import ip_text
from kwire.analyzer.common.times import moment
from kwire.analyzer.filter.evaluation import parse
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint, capture_points
from kwire.captures.packets import Reader

MOST = 3
"""Messages told of one packet: small ones share packets."""


class _Packet(NamedTuple):
    file: str
    number: int
    time_us: int
    sender: tuple[str, int]
    receiver: tuple[str, int]
    length: int


def packet_notes(arguments: Sequence[str], how: ReadOptions, expression: str) -> list[str]:
    """For each packet that a filter names: what is in it. Nothing where it names none."""
    wanted = parse(expression)
    numbers = sorted(wanted.packets)
    if not numbers:
        return []
    points = [point for point in capture_points(list(arguments), how.rotated) if "-" not in point.paths]
    packets = [packet for point in points for path in point.paths for packet in _look_up(point, path, numbers)]
    lines = {packet: _of(packet) for packet in packets if not packet.length}
    inside: dict[_Packet, list[str]] = {packet: [] for packet in packets if packet.length}
    if inside:
        for exchange in api.decoded(arguments, how, bodies=False):
            for packet, exchanges in inside.items():
                if len(exchanges) < MOST:
                    exchanges += _parts(packet, exchange.row)
    lines_of_packets = [*lines.values(), *(line for packet, notes in inside.items() for line in notes or [_of(packet)])]
    missing = set(numbers) - {packet.number for packet in packets}
    return [
        *lines_of_packets,
        *(f"packet {number}: no TCP packet of that number" for number in sorted(missing) if points),
    ]


def _look_up(point: CapturePoint, path: str, numbers: Sequence[int]) -> Iterator[_Packet]:
    with Reader(CapturePoint(point.name, (path,))) as reader:
        for packets in reader:
            row = packets.columns
            for i in np.flatnonzero(np.isin(row.number, numbers)).tolist():
                sender, receiver = (
                    (ip_text(int(high) << 64 | int(low)), int(port))
                    for high, low, port in (
                        (row.src_hi[i], row.src_lo[i], row.src_port[i]),
                        (row.dst_hi[i], row.dst_lo[i], row.dst_port[i]),
                    )
                )
                yield _Packet(
                    path, int(row.number[i]), int(row.time_ns[i]) // 1000, sender, receiver, int(row.payload_length[i])
                )
            done = len(row.number) and row.number[-1] >= numbers[-1]
            packets.release()
            if done:
                return


def _parts(packet: _Packet, row: dict[str, Any]) -> Iterator[str]:
    """The messages of an exchange that went a packet's way when it did."""
    client, broker = (row["client_ip"], row["client_port"]), (row["broker_ip"], row["broker_port"])
    time = moment(packet.time_us)
    for side, ends in (("request", (client, broker)), ("response", (broker, client))):
        first, last = row[f"{side}_time"], row[f"{side}_end"]
        if ends != (packet.sender, packet.receiver) or first is None or last is None or not first <= time <= last:
            continue
        at = row[f"{side}_packet"]
        which = f"exchange {row['exchange']}" if row["exchange"] is not None else f"orphan {row['reply']}"
        yield (
            f"packet {packet.number} has bytes of the {side} of {which} ({row['api']}) of {row['connection']}, "
            f"which begins in packet {at}: --filter 'packet == {at}'"
        )


def _of(packet: _Packet) -> str:
    sender, receiver = (f"{ip}:{port}" for ip, port in (packet.sender, packet.receiver))
    what = "bytes that are no message" if packet.length else "an acknowledgement or the like, without a byte"
    return f"packet {packet.number}, from {sender} to {receiver}: {what}"
