"""Measure hostile captures against an ordinary one: statistics blocks of pcapng, and SYN scans.

    python -m tests.bench.hostile

Whole processes (`kwire analyze --records none`, one thread), processor time, the best of three; start-up, which is that
of a capture of one packet, is taken off. The bar: five times the ordinary cost, of a byte for blocks that say nothing,
of a packet for SYNs to as many ports as there are.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import generate
from tests.bench.__main__ import into_page_cache, kwire, measured, say
from tests.captures import forge
from tests.captures.forge import SYN, Record, Segment
from tests.shared import ROOT

BAR = 5.0
SIZE = 30_000_000
SYNS = 300_000


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size


def statistics(path: Path, size: int) -> int:
    """A pcapng full of statistics blocks of its one interface. -> its bytes."""
    section = _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    head = section + _block(1, struct.pack("<HHI", 1, 0, 262_144))
    packet = _block(5, struct.pack("<III", 0, 0, 0) + struct.pack("<HHQ", 4, 8, 9) + struct.pack("<HH", 0, 0))
    return path.write_bytes(head + packet * (size // len(packet)))


def scan(path: Path, count: int) -> int:
    """SYNs to as many ports of several hosts, none answered. -> the packets."""
    segments = (
        Segment(
            forge.START_NS + number * 1000,
            ("10.0.0.1", 40_000),
            (f"10.0.{1 + number // 60_000}.2", 1 + number % 60_000),
            number,
            0,
            SYN,
            b"",
        )
        for number in range(count)
    )
    path.write_bytes(forge.pcap(forge.rendered(segments)))
    return count


def one_packet(path: Path) -> int:
    path.write_bytes(forge.pcap([Record(0, b"\0" * 60, 60)]))
    return 1


def main(arguments: list[str] | None = None) -> int:
    """1: a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)

    def seconds(name: str, make: Callable[[Path], object]) -> tuple[float, object]:
        path = chosen.folder / f"hostile-{name}"
        result = make(path)
        into_page_cache(path)
        command = kwire(str(path), "none", 1, chosen.folder / "hostile-dataset")
        runs = [measured(name, command) for _ in range(chosen.runs)]
        path.unlink()
        return min(run.user_seconds + run.system_seconds for run in runs), result

    start, _ = seconds("one-packet.pcap", one_packet)
    elapsed, capture = seconds("ordinary.pcap", lambda path: generate.small(path, SIZE))
    assert isinstance(capture, generate.GeneratedCapture)
    byte, packet = (elapsed - start) / capture.file_bytes, (elapsed - start) / capture.packets
    say(f"ordinary: {byte * 1e9:.2f} ns a byte, {packet * 1e6:.2f} us a packet; start-up {start:.2f} s")
    failed = False
    for name, ordinary, make in (
        ("statistics.pcapng", byte, lambda path: statistics(path, SIZE)),
        ("scan.pcap", packet, lambda path: scan(path, SYNS)),
    ):
        elapsed, amount = seconds(name, make)
        assert isinstance(amount, int)
        times = (elapsed - start) / amount / ordinary
        failed |= times > BAR
        cost = f"{elapsed - start:.2f} s of processor, {times:.2f} times the ordinary cost"
        print(f"{name}: {amount:,} in {cost} (bar {BAR:g})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
