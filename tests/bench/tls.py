"""TLS opened with keys, against a plain loop over `AESGCM.decrypt` on the same records.

    python -m tests.bench.tls                    # 64 MiB of records of 16 KiB and of 300 B, over 1 and 8 connections
    python -m tests.bench.tls --size 256M --mss 60000

Windows of segments go through `kwire.captures.tls.stage` as the engine hands them over: 1,448 bytes a packet with room
for its headers between, windows of 8 MiB, one shard, or two in two threads. The plain loop has its nonces and slices
ready. Best of several, in turn; processor time for one core, wall time for two against one. All text that comes out is
compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.streams import Segments
from kwire.captures.tls.keylog import KeyLog
from kwire.captures.tls.stage import Stage
from tests.bench.__main__ import begin_result, save, say
from tests.captures.forge import Write
from tests.captures.tls.records import Forged

WINDOW = 8 << 20
HEADERS = 66
"""Bytes of Ethernet, IP and TCP before a segment's payload, and of the record in the file."""

BARS = {"large": 0.6, "small": 150_000, "large over two": 1.5, "small over two": 1.0}


class Talk:
    """Connections that say records of one size, turn by turn; the windows of their segments, and what was said."""

    def __init__(self, connections: int, record: int, size: int, mss: int) -> None:
        self.log = KeyLog()
        self.record = record
        links = [Forged(number) for number in range(connections)]
        self.records: list[tuple[int, bytes]] = []
        packets: list[tuple[int, bytes]] = []
        for number, link in enumerate(links):
            self.log.take(link.log)
            packets += [(2 * number + int(not write.to_broker), write.data) for write in link.shaken()]
        rng = random.Random(1)
        text = rng.randbytes(record)
        self.said = [hashlib.sha256() for _ in links]
        for turn in range(size // record):
            number = turn % connections
            plaintext = turn.to_bytes(8, "big") + text[8:]
            self.said[number].update(plaintext)
            sealed = links[number].sealed_write(Write(True, plaintext)).data
            self.records.append((number, sealed))
            packets += [(2 * number, sealed[at : at + mss]) for at in range(0, len(sealed), mss)]
        self.count = len(self.records)
        self.bytes = self.count * record
        self.secrets = links
        whole = list(_windows(packets))
        self.shards = {(0, 1): whole}
        for shard in range(2):
            self.shards[shard, 2] = [
                Segments(window.rows[(window.rows[:, t.SEG_KEY] >> 1) % 2 == shard], window.sources) for window in whole
            ]

    def plain(self) -> Callable[[], None]:
        """The loop over `AESGCM.decrypt`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        ciphers, vectors, numbers = [], [], [0] * len(self.secrets)
        for secret in self.secrets:
            ciphers.append(AESGCM(secret.expanded(b"key", 32)))
            vectors.append(int.from_bytes(secret.expanded(b"iv", 12), "big"))
        ready = []
        for number, sealed in self.records:
            nonce = (vectors[number] ^ numbers[number]).to_bytes(12, "big")
            numbers[number] += 1
            ready.append((ciphers[number], nonce, sealed[5:], sealed[:5]))

        def run() -> None:
            for cipher, nonce, body, head in ready:
                cipher.decrypt(nonce, body, head)

        return run

    def opened(self, shard: int = 0, shards: int = 1, check: bool = False) -> None:
        """One shard's part of the connections, through a stage."""
        stage = Stage(self.log)
        hashes = [hashlib.sha256() for _ in self.secrets]
        for window in self.shards[shard, shards]:
            out = stage.take(window)
            if check:
                for row in out.rows.tolist():
                    at = row[t.SEG_AT]
                    hashes[row[t.SEG_KEY] >> 1].update(out.sources[1][at : at + row[t.SEG_LENGTH]].tobytes())
        if check and [digest.digest() for digest in hashes] != [digest.digest() for digest in self.said]:
            raise SystemExit("what came out is not what was said")


def _windows(packets: list[tuple[int, bytes]]) -> list[Segments]:
    """Windows of one segment a packet."""
    windows, rows, buffer = [], [], bytearray()
    for ordinal, (key, data) in enumerate(packets):
        row = [0] * t.SEG_COLUMNS
        row[t.SEG_KEY], row[t.SEG_KIND], row[t.SEG_AT], row[t.SEG_LENGTH] = (
            key,
            t.DATA,
            len(buffer) + HEADERS,
            len(data),
        )
        row[t.SEG_TIME_NS], row[t.SEG_PACKET_INDEX], row[t.SEG_COMPLETED_BY] = ordinal * 1000, ordinal, ordinal
        rows.append(row)
        buffer += bytes(HEADERS) + data
        if len(buffer) > WINDOW or ordinal == len(packets) - 1:
            windows.append(Segments(np.array(rows, np.int64), (np.frombuffer(buffer, np.uint8), np.zeros(1, np.uint8))))
            rows, buffer = [], bytearray()
    return windows


def best(runs: list[Callable[[], object]], clock: Callable[[], float], times: int) -> list[float]:
    """The shortest time of each, in turn."""
    shortest = [float("inf")] * len(runs)
    for _ in range(times):
        for number, run in enumerate(runs):
            begin = clock()
            run()
            shortest[number] = min(shortest[number], clock() - begin)
    return shortest


def both(talk: Talk) -> None:
    """Two shards in two threads."""
    threads = [threading.Thread(target=talk.opened, args=(shard, 2)) for shard in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(record: int, size: int, mss: int, times: int) -> dict[str, float]:
    """Figures for records of one size."""
    single, eight = Talk(1, record, size, mss), Talk(8, record, size, mss)
    for talk in (single, eight):
        talk.opened(check=True)
    ours_seconds, plain = best([single.opened, single.plain()], time.process_time, times)
    alone, two = best([eight.opened, lambda: both(eight)], time.perf_counter, times)
    return {
        "records_per_second": round(single.count / ours_seconds),
        "plain_records_per_second": round(single.count / plain),
        "of_plain": round(plain / ours_seconds, 3),
        "megabytes_per_second": round(single.bytes / ours_seconds / 1e6),
        "eight_connections_two_threads_against_one": round(alone / two, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="64M", help="bytes of text of each kind (default: 64M)")
    parser.add_argument("--mss", type=int, default=1448, help="bytes of a segment")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    size = int(arguments.size.rstrip("M")) << 20
    results = {**begin_result("tls"), "mss": arguments.mss}
    for name, record in (("large", 16_384), ("small", 300)):
        figures = measured(record, size, arguments.mss, arguments.times)
        results[name] = figures
        over_two = figures["eight_connections_two_threads_against_one"]
        value = figures["of_plain"] if name == "large" else figures["records_per_second"]
        for what, reached, bar in ((name, value, BARS[name]), (f"{name} over two", over_two, BARS[f"{name} over two"])):
            say(f"{what}: {reached:,} (bar {bar:,}): {'met' if reached >= bar else 'NOT met'}")
        say(json.dumps(figures))
    save(results)


if __name__ == "__main__":
    main()
