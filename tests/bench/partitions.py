"""Memory and processor time that journeys take of many partitions and groups.

    python -m tests.bench.partitions                  # 100,000 partitions, 1,000 of them written to, 1,000 groups

A capture is made in which each group asks for its share of the partitions, one of them written to; it is analysed with
and without journeys. Anonymous memory counts (RssAnon, bar: 500 MB); all that is resident is told beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kwire.captures.files.write import pcap
from tests.analyzer import forging
from tests.bench import messages
from tests.bench.__main__ import measured, say
from tests.captures.forge import START_NS, Write, converse, rendered
from tests.shared import KWIRE

ROUNDS = 20
"""Batches of each partition that is written to, one a second."""
SECOND = 10**9
HEARTBEAT = 12


def reading(group: int, partitions: range) -> Iterator[Write]:
    """A group's member: it asks for all its partitions, and gets each batch of the first."""
    client, at = f"c-{group}", START_NS + group * 1000
    beat = {"groupId": f"g-{group}", "generationId": 1, "memberId": "m"}
    yield forging.asking(forging.request(HEARTBEAT, 0, 1, beat, client_id=client), at)
    yield forging.answering(forging.response(HEARTBEAT, 0, 1, {"errorCode": 0}), at + 100)
    number = 2
    for partition in partitions:
        at += 100_000
        yield forging.asking(messages.fetch_request(number, client, "many", partition, 0), at)
        yield forging.answering(messages.fetch_response(number, "many", partition, 0, b""), at + 50_000)
        number += 1
    for base in range(ROUNDS):
        at = START_NS + (base + 2) * SECOND + group * 1000
        batch = base.to_bytes(8, "big") + messages.batch([messages.record(0, b"k", b"v")])[8:]
        yield forging.asking(messages.fetch_request(number, client, "many", partitions[0], base), at)
        yield forging.answering(messages.fetch_response(number, "many", partitions[0], base + 1, batch), at + 50_000)
        number += 1


def writing(partitions: list[int]) -> Iterator[Write]:
    """A producer of some partitions."""
    batch, number = messages.batch([messages.record(0, b"k", b"v")]), 1
    for base in range(ROUNDS):
        for position, partition in enumerate(partitions):
            at = START_NS + (base + 1) * SECOND + position * 100_000
            yield forging.asking(messages.produce_request(number, "w", "many", partition, batch), at)
            yield forging.answering(messages.produce_response(number, "many", partition, base), at + 50_000)
            number += 1


def make(path: Path, partitions: int, groups: int) -> None:
    """Write the capture."""
    each = partitions // groups
    first = [group * each for group in range(groups)]
    talks = [reading(group, range(group * each, (group + 1) * each)) for group in range(groups)]
    talks += [writing(first[number::10]) for number in range(10)]
    every = []
    for number, talk in enumerate(talks):
        client = (f"10.0.{number // 250}.{number % 250 + 1}", 40_000)
        every += converse(talk, client=client, acks=False)
    every.sort(key=lambda segment: segment.time_ns)
    path.write_bytes(pcap(rendered(every), nanoseconds=True))


def main() -> None:
    """Make the capture, and print both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.pcap"
        make(path, options.partitions, options.groups)
        for flags in ((), ("--no-journeys",)):
            run = measured("analyze", [*KWIRE, "analyze", str(path), "-o", str(Path(folder) / "dataset"), *flags])
            took = f"{run.user_seconds + run.system_seconds:.2f} s of processor"
            memory = f"{run.peak_anonymous_mb:,.0f} MB anonymous, {run.peak_rss_mb:,.0f} MB in all"
            say(f"{' '.join(flags) or 'journeys':>14}: {took}, {memory}")


if __name__ == "__main__":
    main()
