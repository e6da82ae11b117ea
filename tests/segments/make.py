"""Makes `data/` again: the log folders of real brokers, and what Kafka's own DumpLogSegments says of them.

    python -m tests.segments.make        needs Java and Maven (see tests/brokers)

Kafka 2.8.2 keeps topics in old formats (`message.format.version`), compressed as brokers of that time did; 4.3.1 has
the KRaft metadata log. Brokers are ended by SIGTERM, so that they write snapshots and trim their indexes.
"""

from __future__ import annotations

import lzma
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec

DATA = Path(__file__).parent / "data"
COUNT = 40
START_MS = 1_700_000_000_000

# Topic: settings, and codec of the producer.
TOPICS: dict[str, tuple[dict[str, str], str]] = {
    **{f"v2-{codec}": ({}, codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")},
    **{f"v1-{codec}": ({"message.format.version": "0.10.0"}, codec) for codec in ("none", "gzip", "snappy", "lz4")},
    **{f"v0-{codec}": ({"message.format.version": "0.9.0"}, codec) for codec in ("none", "gzip", "snappy", "lz4")},
    "appended": ({"message.timestamp.type": "LogAppendTime", "message.format.version": "0.10.0"}, "gzip"),
    "upgraded": ({"message.format.version": "0.9.0"}, "gzip"),  # then 0.10, then 2.8, in one segment
    "transactions": ({}, "none"),
}


def records(topic: str) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Key, value and headers of what was sent: null keys, tombstones, headers with null and repeated."""
    records_of_topic = []
    for i in range(COUNT):
        key = None if i % 5 == 4 else f"{topic}-{i % 7}".encode()
        value = None if i % 11 == 10 else f"value {i} of {topic} ".encode() * (1 + i % 4)
        headers: list[tuple[str, bytes | None]] = []
        if topic.startswith("v2") and i % 3 == 0:
            headers = [("source", b"make"), ("empty", None), ("source", str(i).encode())]
        records_of_topic.append((key, value, headers))
    return records_of_topic


def _produce(bootstrap: str, topic: str, codec: str, rows: Any, **settings: Any) -> None:
    from confluent_kafka import Producer

    # Two batches a topic: ten records and the rest.
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 200, **settings})
    for part in (rows[:10], rows[10:]):
        for i, (key, value, headers) in enumerate(part):
            producer.produce(topic, value, key, 0, timestamp=START_MS + i, headers=headers or None)
        producer.flush()


def _transactions(bootstrap: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "made"})
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for i in range(5):
            producer.produce("transactions", f"{number}/{i}".encode(), None, 0, timestamp=START_MS + i)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def _alter(bootstrap: str, topic: str, settings: dict[str, str]) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    time.sleep(1)  # until the broker's log has it


def _dumps(cluster: Cluster, paths: list[Path], *options: str) -> dict[Path, bytes]:
    """Run Kafka's dump tool on some files, in one process: it takes seconds to start."""
    main = "kafka.tools.DumpLogSegments" if cluster.spec.version < "4" else "org.apache.kafka.tools.DumpLogSegments"
    files = ",".join(str(path) for path in paths)
    command = [cluster.java.java, "-cp", f"{cluster.lib}/*", main, "--files", files, *options]
    output = subprocess.run(command, check=True, capture_output=True, timeout=200).stdout
    parts = output.split(b"Dumping ")[1:]
    # Without the first line: it names this machine's folders.
    return {path: part.partition(b"\n")[2] for path, part in zip(paths, parts, strict=True)}


def _keep(cluster: Cluster, partitions: list[str], *options: str) -> None:
    """Copy partitions' folders, and dump every file in them."""
    data = cluster.nodes[0].folder / "data"
    paths = [path for partition in partitions for path in sorted((data / partition).iterdir())]
    logs = [path for path in paths if path.suffix in (".log", ".checkpoint")]
    beside = [path for path in paths if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")]
    dumped = _dumps(cluster, logs, *options) | _dumps(cluster, [path for path in beside if path.stat().st_size])
    for path in (*logs, *beside):
        into = DATA / path.parent.name
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, into)
        (into / f"{path.name}.dump.xz").write_bytes(lzma.compress(dumped.get(path, b"")))


def _old_and_new() -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    folder = Path(tempfile.mkdtemp(prefix="kwire-segments-"))
    spec = Spec("2.8.2", settings=(("log.index.interval.bytes", "256"),))
    cluster = Cluster(spec, folder / "cluster", jars.find_java(), jars.fetch(spec.version))
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = [NewTopic(topic, 1, 1, config=settings) for topic, (settings, _) in TOPICS.items()]
        for done in admin.create_topics(wanted).values():
            done.result()
        time.sleep(2)
        for topic, (_, codec) in TOPICS.items():
            if topic == "transactions":
                _transactions(cluster.bootstrap)
                continue
            _produce(cluster.bootstrap, topic, codec, records(topic))
            if topic == "upgraded":
                for version in ("0.10.0", "2.8"):
                    _alter(cluster.bootstrap, topic, {"message.format.version": version})
                    _produce(cluster.bootstrap, topic, codec, records(topic))
        cluster._end(cluster.nodes[0], signal.SIGTERM)
        _keep(cluster, [f"{topic}-0" for topic in TOPICS], "--print-data-log", "--deep-iteration")
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _metadata() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kwire-segments-"))
    spec = Spec("4.3.1", settings=(("metadata.log.max.snapshot.interval.ms", "2000"),))
    cluster = Cluster(spec, folder / "cluster", jars.find_java(), jars.fetch(spec.version))
    try:
        cluster.start()
        time.sleep(6)  # a snapshot comes
        cluster._end(cluster.nodes[0], signal.SIGTERM)
        _keep(cluster, ["__cluster_metadata-0"], "--cluster-metadata-decoder")
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def main() -> None:
    """Make all of `data/`."""
    if DATA.exists():
        shutil.rmtree(DATA)
    _old_and_new()
    _metadata()


if __name__ == "__main__":
    main()
