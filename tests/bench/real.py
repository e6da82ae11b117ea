"""Captures of real traffic to measure with: a broker, librdkafka's clients and tcpdump, made once and kept.

    python -m tests.bench.real                          # makes those that are not there yet: minutes
    python -m tests.bench --case small-reqs --case big --case big64k

*small-reqs* (some 300 MB): a record a request, 1 to 1,000 requests in flight, and commits. *big* (some 1.06 GB): 40
producers and 30 consumers, mixed codecs, frames of 1,500 bytes. *big64k*: the same load in frames of up to 64 KB,
which is what tcpdump sees on a broker's host with TSO and GRO. Each is made in a network namespace of its own, whose
loopback has an MTU of 1,500 and, but for *big64k*, no offloading. Beside a capture lies a JSON file with its digest,
its broker's port and what the clients did. They are kept in `KWIRE_BENCH_CAPTURES`, else in `bench` in
the user's cache of kwire,
never in the repository. Needed: Linux with `unshare`, tcpdump, Java and the broker's jars as for the tests
(`tests/brokers`). No two makings are the same bytes, so results name the digest.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.bench.__main__ import say
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.shared import ROOT

_SIOCETHTOOL: Final = 0x8946
_OFFLOADS: Final = (0x1F, 0x24, 0x2C)
"""ETHTOOL_STSO, _SGSO and _SGRO (linux/ethtool.h)."""

_SIOCSIFMTU: Final = 0x8922
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_CODECS: Final = ("none", "none", "none", "lz4", "zstd", "snappy", "gzip")


@dataclass
class Load:
    """The work of the clients: requests or megabytes in all."""

    requests: int = 0
    megabytes: int = 0
    offload: bool = False
    """Whether frames may be longer than the MTU."""


CASES: Final = {
    "small-reqs": Load(requests=1_000_000),
    "big": Load(megabytes=620),
    "big64k": Load(megabytes=620, offload=True),
}


@dataclass
class RealCapture:
    """A capture of real traffic; `sha256` of its bytes names it in results."""

    path: str
    file_bytes: int
    sha256: str
    port: int
    clients: dict[str, int] = field(default_factory=dict)


def folder() -> Path:
    """Return the folder of the captures: `KWIRE_BENCH_CAPTURES`, else in the user's cache, beside the brokers."""
    return Path(os.environ.get("KWIRE_BENCH_CAPTURES") or jars.cache_folder().parent / "bench")


def capture(name: str) -> RealCapture:
    """Return a capture by its name, made now if it is not there. RuntimeError: it cannot be made here."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    about = place / f"{name}.json"
    with open(place / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not about.exists():
            jars.fetch(Spec().version)  # while there is a network
            say(f"== {name}: a broker and clients make it (minutes)")
            user = () if os.geteuid() == 0 else ("--map-root-user",)
            command = [
                "unshare",
                *user,
                "--net",
                sys.executable,
                "-m",
                "tests.bench.real",
                "--inside",
                name,
                str(place),
            ]
            if subprocess.run(command, cwd=ROOT, check=False).returncode:
                raise RuntimeError(f"{name}: the capture could not be made")
    return RealCapture(**json.loads(about.read_text()))


def make(name: str, place: Path) -> None:
    """Make a capture in this process's network namespace, and the JSON file beside it, which is written last."""
    load, path = CASES[name], place / f"{name}.pcap"
    set_up_loopback(load.offload)
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as scratch:
        cluster = Cluster(
            Spec(settings=(("group.initial.rebalance.delay.ms", "200"),)),
            Path(scratch, "broker"),
            jars.find_java(),
            jars.fetch(Spec().version),
        )
        try:
            cluster.start()
            port = int(cluster.bootstrap.rpartition(":")[2])
            tcpdump = start_tcpdump(path, port)
            clients = small_requests(cluster.bootstrap, load) if load.requests else mixed_load(cluster.bootstrap, load)
            time.sleep(2)
            tcpdump.send_signal(signal.SIGINT)
            tcpdump.wait()
        finally:
            cluster.stop()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**24):
            digest.update(piece)
    recorded = RealCapture(str(path), path.stat().st_size, digest.hexdigest(), port, clients)
    (place / f"{name}.json").write_text(json.dumps(asdict(recorded), indent=1) + "\n")
    say(f"   {recorded.file_bytes / 1e6:.0f} MB, {clients}")


def set_up_loopback(offload: bool) -> None:
    """Start `lo` with an MTU of 1,500, and switch its offloading (TSO, GSO, GRO) on or off."""
    with socket.socket() as anchor:
        fcntl.ioctl(anchor, _SIOCSIFMTU, struct.pack("16si20x", b"lo", 1500))
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, int(offload)))
            fcntl.ioctl(anchor, _SIOCETHTOOL, struct.pack("16sP16x", b"lo", ctypes.addressof(value)))
        fcntl.ioctl(anchor, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def start_tcpdump(path: Path, port: int) -> subprocess.Popen[bytes]:
    """Start tcpdump with a buffer of 256 MB; return when it listens."""
    command = [
        "tcpdump",
        "-Z",
        "root",
        "-i",
        "lo",
        "-s",
        "0",
        "-B",
        "262144",
        "-n",
        "-w",
        str(path),
        f"tcp port {port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while b"listening" not in (line := process.stderr.readline()):
        if not line:
            raise RuntimeError("tcpdump does not listen")
    return process


def in_threads(function: Callable[[int], int], count: int) -> list[int]:
    """Call a function with 0 to count - 1, each in a thread of its own -> what each returned."""
    results = [0] * count

    def run(number: int) -> None:
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def send(producer: Any, topic: str, messages: Iterable[dict[str, Any]], pause: Callable[[int], float]) -> int:
    """Produce messages, waiting while the queue is full -> how many the broker confirmed.

    pause: sent bytes -> seconds to sleep, asked for after every 500 messages."""
    confirmed = size = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal confirmed
        confirmed += error is None

    for number, message in enumerate(messages):
        size += len(message["value"])
        while True:
            try:
                producer.produce(topic, on_delivery=delivered, **message)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 500 == 0:
            producer.poll(0)
            time.sleep(max(0.0, pause(size)))
    producer.flush(300)
    return confirmed


def create_topics(bootstrap: str, names: Iterable[str], partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "load-admin"})
    for future in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        future.result()


def small_requests(bootstrap: str, load: Load) -> dict[str, int]:
    """Eight producers of a record a request, with 1, 5, 50 or 1,000 in flight, and four committers."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producers, committers, commits = 8, 4, 20_000
    create_topics(bootstrap, ["tiny"], producers)

    def produce(number: int) -> int:
        in_flight = (1, 5, 50, 1000)[number % 4]
        options = {"bootstrap.servers": bootstrap, "client.id": f"tiny-{number}", "acks": 1, "max.in.flight": in_flight}
        options |= {"linger.ms": 0, "batch.num.messages": 1, "queue.buffering.max.messages": 100_000}
        count = load.requests // producers // (2 if in_flight == 1 else 1)
        messages = ({"value": b"v%d" % index, "partition": number} for index in range(count))
        return send(Producer(options), "tiny", messages, lambda _: 0)

    def commit(number: int) -> int:
        options = {"bootstrap.servers": bootstrap, "client.id": f"tiny-committer-{number}", "enable.auto.commit": False}
        consumer = Consumer(options | {"group.id": f"tiny-g{number}"})
        for offset in range(commits // committers):
            consumer.commit(offsets=[TopicPartition("tiny", number, offset)], asynchronous=False)
        consumer.close()
        return commits // committers

    results = in_threads(lambda n: produce(n) if n < producers else commit(n - producers), producers + committers)
    return {"confirmed": sum(results[:producers]), "commits": sum(results[producers:])}


def mixed_load(bootstrap: str, load: Load) -> dict[str, int]:
    """Forty producers at 18 MB/s together into four topics, and thirty consumers in groups of five."""
    from confluent_kafka import Consumer, KafkaException, Producer

    producers, consumers, rate = 40, 30, 18e6
    topics = [f"load-{number}" for number in range(4)]
    create_topics(bootstrap, topics, 6)
    words = [f"{random.Random(word).getrandbits(40):x}" for word in range(400)]
    finished = threading.Event()
    began = time.monotonic()

    def produce(number: int) -> int:
        rng, size = random.Random(number), (1024, 100)[number % 2]
        options = {"bootstrap.servers": bootstrap, "client.id": f"load-producer-{number:03d}", "linger.ms": 20}
        options |= {"acks": "all" if number % 4 in (0, 2) else 1, "enable.idempotence": number % 4 == 0}
        options |= {"batch.num.messages": 2000, "queue.buffering.max.messages": 200_000}
        values = [json_value(rng, words, index, size) for index in range(500)]
        count = int(load.megabytes * 1e6 / producers / (size + 20))
        messages = (
            {
                "value": values[rng.randrange(500)],
                "key": b"k%06d" % rng.randrange(100_000),
                **({"headers": [("h", b"x")]} if index % 50 == 0 else {}),
            }
            for index in range(count)
        )
        producer = Producer(options | {"compression.type": _CODECS[number % len(_CODECS)]})
        return send(
            producer,
            topics[number % len(topics)],
            messages,
            lambda sent: sent / (rate / producers) - (time.monotonic() - began),
        )

    def consume(number: int) -> int:
        group = number // 5
        options = {"bootstrap.servers": bootstrap, "client.id": f"load-consumer-{number:03d}", "fetch.wait.max.ms": 200}
        options |= {"group.id": f"load-group-{group}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(options)
        consumer.subscribe([topics[group % len(topics)]])
        count = pending = 0
        last = time.monotonic()
        while not finished.is_set() or time.monotonic() - last < 2:
            messages = consumer.consume(1000, 0.5)
            if messages:
                last = time.monotonic()
                fine = sum(message.error() is None for message in messages)
                count, pending = count + fine, pending + fine
            if pending >= 2000 or (pending and not messages):
                pending = 0
                with contextlib.suppress(KafkaException):  # a rebalance is under way: traffic like any other
                    consumer.commit(asynchronous=False)
        consumer.close()
        return count

    readers: list[int] = []
    reading = threading.Thread(target=lambda: readers.extend(in_threads(consume, consumers)))
    reading.start()
    confirmed = in_threads(produce, producers)
    finished.set()
    reading.join()
    return {"confirmed": sum(confirmed), "consumed": sum(readers)}


def json_value(rng: random.Random, words: list[str], number: int, size: int) -> bytes:
    """Return a JSON object of `size` bytes."""
    text = f'{{"id":{number},"time":{1_700_000_000_000 + number},"user":"{rng.choice(words)}","items":["'
    while len(text) < size - 4:
        text += rng.choice(words) + '","'
    return (text[: size - 2] + '"}').encode()[:size]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.real", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (default: all)")
    chosen = parser.parse_args(arguments)
    missing = [tool for tool in ("unshare", "tcpdump") if shutil.which(tool) is None]
    if missing:
        say(f"{missing[0]} is not installed")
        return 2
    for name in chosen.case or CASES:
        real = capture(name)
        print(f"{name}: {real.file_bytes / 1e6:.0f} MB, port {real.port}, sha256 {real.sha256[:16]}, {real.path}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        make(sys.argv[2], Path(sys.argv[3]))
        raise SystemExit(0)
    raise SystemExit(main())
