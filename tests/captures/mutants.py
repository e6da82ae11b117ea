"""Run as a program: read many damaged captures, print a digest of all that came out.

    python mutants.py FOLDER

Only a CaptureError may come out of a damaged capture; anything else ends the program. A process of its own, because
Numba decides when it is imported whether it checks bounds, or compiles at all. `KWIRE_MUTANTS` sets how many.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kwire.captures.files import CaptureError
from tests.captures import forge
from tests.captures.forge import ETHERNET, LOOP, NULL, RAW, SLL, SLL2, TO_BROKER, TO_CLIENT, Record, Write
from tests.captures.reading import read_bytes

WRITES = [Write(TO_BROKER, bytes(range(200))), Write(TO_CLIENT, b"answer")]
BLOCKS: tuple[Literal["enhanced", "simple", "obsolete"], ...] = ("enhanced", "simple", "obsolete")
EVIL = (0, 1, 3, 4, 15, 19, 20, 21, 0x7F, 0x80, 0xFF)


def originals() -> list[bytes]:
    """Small captures of every format and link type."""
    four = forge.converse(WRITES)[:6]
    six = forge.converse(WRITES, client=("2001:db8::1", 40000), broker=("2001:db8::2", 9092))[:6]
    extended = [
        Record(segment.time_ns, data, len(data))
        for segment in six
        for data in [forge.tcp_ip(segment, extension_headers=[(0, bytes(8)), (60, bytes(16)), (44, bytes(8))])]
    ]
    out = [forge.pcap(forge.rendered(four, link), link) for link in (NULL, ETHERNET, RAW, LOOP, SLL, SLL2)]
    out.append(forge.pcap(forge.rendered(four, vlans=[(0x88A8, 1), (0x8100, 2)]), big_endian=True, nanoseconds=True))
    out.append(forge.pcap(extended, RAW))
    mixed = [replace(record, interface=index % 2) for index, record in enumerate(forge.rendered(four))]
    for resolution in (None, 9, 12, 0x80 | 20, 0x80 | 40):
        for block in BLOCKS:
            out.append(
                forge.pcapng(
                    mixed,
                    (ETHERNET, ETHERNET),
                    block=block,
                    resolution=resolution,
                    offset_seconds=1_699_999_000,  # so that ticks as fine as 2**-40 seconds fit in 64 bits
                    big_endian=block == "obsolete",
                    comment="a comment" if block == "enhanced" else "",
                )
            )
    out.append(out[-1] + out[-2])  # two sections of different byte orders
    out.append(forge.pcap([Record(segment.time_ns, data, len(data)) for segment in four for data in wrapped(segment)]))
    pieces = [piece for number, segment in enumerate(four + six) for piece in fragments(forge.tcp_ip(segment), number)]
    for order in (1, -1):
        out.append(forge.pcap([Record(0, piece, len(piece)) for piece in pieces[::order]], RAW))
    return out


def wrapped(segment: forge.Segment) -> list[bytes]:
    """A packet in one tunnel of each kind, as Ethernet frames."""
    ip = forge.tcp_ip(segment)
    frame = forge.framed(ip, ETHERNET)
    udp = b"\x80\0%b\0\0\0\0"
    inside = [
        (17, udp % b"\x12\xb5" + b"\x08\0\0\0\0\0\7\0" + frame),
        (17, udp % b"\x17\xc1" + b"\x01\0\x65\x58\0\0\7\0" + bytes(4) + frame),
        (47, b"\xb0\0\x08\0" + bytes(12) + ip),
        (47, b"\x10\0\x88\xbe" + bytes(12) + frame),
        (47, b"\x10\0\x22\xeb" + bytes(15) + b"\1" + bytes(8) + frame),
        (47, b"\0\0\x88\x47" + b"\0\x10\0\x40\0\x10\1\x40" + bytes(4) + frame),
        (4, ip),
    ]
    return [
        forge.framed(
            struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(load), 1, 0, 64, protocol, 0, b"out1", b"out2") + load,
            ETHERNET,
        )
        for protocol, load in inside
    ]


def fragments(ip: bytes, number: int, size: int = 16) -> list[bytes]:
    """An IP packet's fragments of `size` bytes."""
    at = 20 if ip[0] >> 4 == 4 else 40
    out = []
    for begin in range(0, len(ip) - at, size):
        part = ip[at + begin : at + begin + size]
        more = at + begin + size < len(ip)
        if at == 20:
            word = begin // 8 | (0x2000 if more else 0)
            out.append(ip[:2] + struct.pack(">HHH", 20 + len(part), number, word) + ip[8:20] + part)
        else:
            header = struct.pack(">BBHI", 6, 0, begin | more, number)
            out.append(ip[:4] + struct.pack(">HB", 8 + len(part), 44) + ip[7:40] + header + part)
    return out


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One to four strokes of damage: bytes, 32-bit numbers, cuts, and repetitions."""
    spoiled = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(spoiled))
        stroke = rng.randrange(6)
        if stroke < 2:
            spoiled[at] = rng.choice(EVIL)
        elif stroke == 2:
            spoiled[at] ^= 1 << rng.randrange(8)
        elif stroke == 3:
            at = at // 4 * 4
            number = rng.choice((0, 1, 12, 31, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1))
            spoiled[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
        elif stroke == 4 and len(spoiled) > 40:
            del spoiled[at : at + rng.randint(1, 8)]
        else:
            spoiled[at:at] = spoiled[at : at + rng.randint(1, 64)]
    return bytes(spoiled)


def main(folder: Path) -> None:
    rng = random.Random(20_261_121)
    captures = originals()
    digest = hashlib.sha256()
    count = int(os.environ.get("KWIRE_MUTANTS", "600"))
    rows = errors = hintless = 0
    for number in range(count):
        data = damaged(captures[number % len(captures)], rng)
        try:
            # A window as long as the file has its last record at the buffer's very end: a read past it is seen.
            reading = read_bytes(data, folder, window_bytes=rng.choice((64, 300, len(data), 1 << 16)))
        except CaptureError as error:
            errors += 1
            hintless += not error.hint
            digest.update(str(error).replace(str(folder), "").encode())
            continue
        rows += len(reading.rows)
        digest.update(repr((reading.rows, reading.counts, len(reading.notes), reading.secrets)).encode())
    print(f"{count} captures: {rows} rows, {errors} errors ({hintless} without a hint), digest {digest.hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
