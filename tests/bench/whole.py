"""`python -m tests.bench.whole`: a real broker takes generated captures whole, and what it stored is audited.

For each case a capture is generated (*small*: 380 MB, 895,000 requests; *large*: 1 GB), a Kafka broker of the newest
version is started on loopback, what the capture only reads is written there first by librdkafka, and `kwire replay`
sends the capture as fast as answers allow, in windows. Printed: seconds, the largest RssAnon, what became of the
requests, and what the audit read back of all records that the broker acknowledged. Java is needed, and the broker's
jars come as for the tests (`tests/brokers`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kwire import analyzer
from kwire.analyzer.dataset import dataset
from tests.bench import generate
from tests.bench.__main__ import add_save, begin_result, measured, save, say
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.shared import KWIRE

SIZES = {"small": "380M", "large": "1G"}


def whole(case: str, size: int, folder: Path, options: list[str]) -> dict[str, Any]:
    """Replay one capture. RuntimeError: the replay failed by its own fault."""
    capture, out = folder / f"{case}.pcap", folder / f"{case}-run"
    generate.main([case, str(capture), "--size", str(size)])
    cluster = Cluster(Spec(), folder / f"{case}-broker", jars.find_java(), jars.fetch(Spec().version))
    try:
        cluster.start()
        fill(cluster.bootstrap, capture)
        command = [
            *KWIRE,
            "replay",
            str(capture),
            "--to",
            cluster.bootstrap,
            "-o",
            str(out),
            "--yes",
            "--missing-topics-ok",
            "--speed",
            "max",
            "--fail-on",
            "never",
            "--in-windows",
            *options,
        ]
        ran = measured(case, command)
    finally:
        cluster.stop()
        capture.unlink()
    run = dataset.open_dataset(out)
    outcomes = run.outcomes.to_table(columns=["action", "verdict"]).to_pylist()
    audit = run.audit.to_table().to_pylist()
    return {
        "case": case,
        "seconds": ran.seconds,
        "processor_seconds": ran.user_seconds + ran.system_seconds,
        "rss_anon_mb": ran.peak_anonymous_mb,
        "requests": len(outcomes),
        "actions": dict(Counter(row["action"] for row in outcomes)),
        "verdicts": dict(Counter(row["verdict"] for row in outcomes)),
        "audit": {
            name: sum(row[name] or 0 for row in audit)
            for name in ("acknowledged", "readable", "missing", "out_of_order")
        },
    }


def fill(bootstrap: str, capture: Path) -> None:
    """Make the topics of a capture, with records in partitions that it reads and nobody produces to, as many as were
    there: a fetch at the end of a log waits for half a second."""
    touched = analyzer.analyze(str(capture), records="none", meaning=False).tables["partitions"]
    reached: dict[tuple[str, int], int] = {}
    produced: set[tuple[str, int]] = set()
    columns = ("topic", "partition", "offset_kind", "high_watermark")
    for topic, partition, kind, end in zip(*(touched.column(name).to_pylist() for name in columns), strict=True):
        reached[topic, partition] = max(end or 0, reached.get((topic, partition), 0))
        if kind == "base":
            produced.add((topic, partition))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    counts = Counter[str]()
    for topic, partition in reached:
        counts[topic] = max(counts[topic], partition + 1)
    for future in admin.create_topics([NewTopic(topic, count, 1) for topic, count in counts.items()]).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    for (topic, partition), end in reached.items():
        for _ in range(end if (topic, partition) not in produced else 0):
            producer.produce(topic, b"there before", partition=partition)
            producer.poll(0)
    producer.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.whole", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--case", choices=tuple(SIZES), action="append", help="default: both")
    parser.add_argument("--size", type=generate.size_of, help="bytes, or 300M, 1.5G, in place of the case's own")
    add_save(parser)
    parser.add_argument("options", nargs="*", help="further options of kwire replay, behind --")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder:
        for case in options.case or SIZES:
            size = options.size or generate.size_of(SIZES[case])
            figures = whole(case, size, Path(folder), options.options)
            runs.append(figures)
            say(
                f"== {case}: {figures['requests']:,} requests in {figures['seconds']:.0f} s, "
                f"{figures['processor_seconds']:.0f} s "
                f"of processor, {figures['rss_anon_mb']:.0f} MB RssAnon; {figures['actions']}, {figures['verdicts']}; "
                f"audit {figures['audit']}"
            )
    if options.save:
        save({**begin_result("whole"), "cases": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
