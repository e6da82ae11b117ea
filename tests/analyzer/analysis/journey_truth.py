"""Compare `journeys` with clients that stamp what they send and receive themselves, on the machine of the capture.

    python -m tests.analyzer.analysis.journey_truth --seconds 60 --nodes 3 --kill
    python -m tests.analyzer.analysis.journey_truth --lag --seconds 150
    python -m tests.analyzer.analysis.journey_truth --compacted
    python -m tests.analyzer.analysis.journey_truth --message-sets

In: a real broker, clients of librdkafka, kafka-python and Java, packets of the loopback interface. Out: `Figures`, or
the lag in seconds at random moments of five topics. The clients' stamps and the packets' times are of one clock.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import datetime
import functools
import itertools
import random
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kwire import analyzer
from tests.analyzer.live.running import capturing
from tests.brokers import jars
from tests.brokers.cluster import START_SECONDS, Cluster, Spec
from tests.incidents import packages

PRODUCERS: dict[str, dict[str, Any]] = {
    "w-acks-0": {"acks": 0},
    "w-acks-1": {"acks": 1, "compression.type": "lz4"},
    "w-acks-all": {"acks": "all", "compression.type": "zstd"},
    "w-idempotent": {"enable.idempotence": True, "compression.type": "gzip"},
    "w-transactional": {"transactional.id": "w-transactional"},
}
CONSUMERS: dict[str, dict[str, Any]] = {
    "g-classic": {"group.protocol": "classic", "isolation.level": "read_uncommitted"},
    "g-848": {"group.protocol": "consumer", "isolation.level": "read_uncommitted"},
    "g-committed": {"group.protocol": "classic", "isolation.level": "read_committed"},
}
PURE_PRODUCER, PURE_GROUP = "w-kafka-python", "g-kafka-python"
"""Those of kafka-python."""
MESSAGE_SETS = Spec(jars.WITH_ZOOKEEPER, settings=(("log.message.format.version", "0.9.0"),))
"""A broker that stores message sets 0, as 0.9 does."""
CODECS: dict[str, str | None] = {"w-plain": None, "w-gzip": "gzip", "w-snappy": "snappy"}
"""Clients of kafka-python that write such message sets, and how they compress them."""
COMPACTED_GROUP = "g-compacted"
COMPACTING = Spec(settings=(("log.cleaner.backoff.ms", "200"),))
"""A broker that compacts within a second or two, not within half a minute."""
_COMPACTED = 100
"""Offset up to which the broker must have compacted at least."""
PARTITIONS = 2
_ROUNDS = 10
"""Times that a producer writes at least."""

Where = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass(slots=True)
class Written:
    """A record: its producer, and when it was handed to it, acknowledged (us)."""

    client: str
    produced: int
    where: Where | None = None
    acknowledged: int | None = None


@dataclass(slots=True)
class Truth:
    """Records by their value; when each group first received what lies at an offset (us), and its value."""

    written: dict[bytes, Written] = field(default_factory=dict)
    received: dict[tuple[str, Where], tuple[int, bytes]] = field(default_factory=dict)
    committed: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    """By group and partition: when it knew of a commit (us), and the offset."""
    failures: list[BaseException] = field(default_factory=list)

    def note_answer(self, error: Any, message: Any) -> None:
        """Note the answer to one of librdkafka's records; with acks=0 nobody says the offset."""
        offset = message.offset()
        if error is None and offset is not None:
            entry = self.written[message.value()]
            entry.where, entry.acknowledged = (message.topic(), message.partition(), offset), _now()

    def note_received(self, group: str, where: Where, stamp: int, value: bytes) -> None:
        """Note that a group received a record, which says the offset of one with acks=0."""
        self.received.setdefault((group, where), (stamp, value))
        entry = self.written.get(value)
        if entry is not None and entry.where is None:
            entry.where = where


@dataclass(slots=True)
class Figures:
    """Batches whose offsets are known to the clients, those of them that a row places, records that groups received,
    and what is wrong."""

    batches: int = 0
    placed: int = 0
    received: int = 0
    wrong: list[str] = field(default_factory=list)


def _now() -> int:
    return time.time_ns() // 1000


def write(cluster: Cluster, truth: Truth, client: str, config: Mapping[str, Any], topic: str, until: float) -> None:
    """Produce records until a time (`time.monotonic`), a few at a time."""
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "client.id": client, "linger.ms": 5}
    producer = Producer({**settings, **config})
    random_ = random.Random(client + topic)
    number = 0
    transactional = "transactional.id" in config
    if transactional:
        producer.init_transactions(START_SECONDS)
    rounds = 0
    while rounds < _ROUNDS or time.monotonic() < until:
        rounds += 1
        if transactional:
            producer.begin_transaction()
        for _ in range(random_.randrange(1, 30)):
            value = f"{client} {topic} {number}".encode()
            number += 1
            truth.written[value] = Written(client, _now())
            producer.produce(topic, value=value, partition=random_.randrange(PARTITIONS), on_delivery=truth.note_answer)
            producer.poll(0)
        if transactional:
            end = producer.commit_transaction if random_.random() < 0.8 else producer.abort_transaction
            end(START_SECONDS)
        for _ in range(random_.randrange(1, 20)):
            producer.poll(0.01)
    producer.flush(START_SECONDS)


def read(
    cluster: Cluster,
    truth: Truth,
    group: str,
    config: Mapping[str, Any],
    topic: str,
    until: float,
    pauses: bool = False,
) -> None:
    """Consume until a time, and as long as anything comes. pauses: leave the group now and then for a while."""
    random_ = random.Random(group)
    while True:
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "client.id": f"c-{group}", "group.id": group}
            | {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 300}
            | dict(config)
        )
        consumer.subscribe([topic])
        leave = time.monotonic() + random_.uniform(4, 10)
        quiet, positions = 0, {}
        while quiet < 6 and not (pauses and time.monotonic() > leave):
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                where = topic, message.partition() or 0, message.offset() or 0
                truth.note_received(group, where, _now(), message.value() or b"")
                quiet, positions[where[1]] = 0, where[2] + 1
            elif time.monotonic() > until:
                quiet += 1
            if pauses and (message is None or random_.random() < 0.05):
                _commit(consumer, truth, group, topic, positions)
        if pauses:
            _commit(consumer, truth, group, topic, positions)
        consumer.close()
        if not pauses or time.monotonic() > until:
            return
        time.sleep(random_.uniform(2, 15))


def write_in_python(
    cluster: Cluster, truth: Truth, topic: str, until: float, client: str = PURE_PRODUCER, **config: Any
) -> None:
    """`write` with kafka-python."""
    kafka = packages.load(packages.KAFKA_PYTHON)
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, client_id=client, linger_ms=5, **config)
    random_ = random.Random(client + topic)
    number = 0

    def done(entry: Written, at: Any) -> None:
        entry.where, entry.acknowledged = (topic, at.partition, at.offset), _now()

    rounds = 0
    while rounds < _ROUNDS or time.monotonic() < until:
        rounds += 1
        for _ in range(random_.randrange(1, 30)):
            value = f"{client} {number}".encode()
            number += 1
            entry = truth.written[value] = Written(client, _now())
            producer.send(topic, value, partition=random_.randrange(PARTITIONS)).add_callback(done, entry)
        time.sleep(random_.uniform(0.01, 0.2))
    producer.close(START_SECONDS)


def read_in_python(cluster: Cluster, truth: Truth, topic: str, until: float, **config: Any) -> None:
    """`read` with kafka-python."""
    kafka = packages.load(packages.KAFKA_PYTHON)
    config |= {"bootstrap_servers": cluster.bootstrap, "client_id": f"c-{PURE_GROUP}", "group_id": PURE_GROUP}
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", auto_commit_interval_ms=300, **config)
    quiet = 0
    while quiet < 6:
        records = [record for some in consumer.poll(500).values() for record in some]
        stamp = _now()
        for record in records:
            truth.note_received(PURE_GROUP, (topic, record.partition, record.offset), stamp, record.value)
        quiet = 0 if records or time.monotonic() < until else quiet + 1
    consumer.close()


def _commit(consumer: Consumer, truth: Truth, group: str, topic: str, positions: dict[int, int]) -> None:
    """Commit positions by partition and wait for the answer."""
    if positions:
        consumer.commit(offsets=[TopicPartition(topic, *entry) for entry in positions.items()], asynchronous=False)
        for partition, offset in positions.items():
            truth.committed.setdefault((group, partition), []).append((_now(), offset))
        positions.clear()


@contextlib.contextmanager
def all_at_once(truth: Truth, works: list[Callable[[], None]]) -> Iterator[None]:
    """Run functions in threads meanwhile; the first exception of one of them is raised here."""

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            truth.failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    if truth.failures:
        raise truth.failures[0]


def write_and_read_in_java(cluster: Cluster, truth: Truth, topic: str, seconds: float) -> None:
    """Let Java's producers, consumers and share consumer do the same (`Stamps.java`). Raises RuntimeError."""
    lib = jars.fetch(cluster.spec.version)
    command = [jars.find_java().java, "-Xmx256m", "-cp", f"{lib}/*", str(Path(__file__).with_name("Stamps.java"))]
    arguments = [cluster.bootstrap, topic, str(PARTITIONS), str(seconds)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    for line in done.stdout.splitlines():
        kind, *words, stamp = line.rstrip("\t").split("\t")
        if kind == "produced":
            truth.written[words[1].encode()] = Written(words[0], int(stamp))
        elif kind == "acknowledged":
            entry = truth.written[words[0].encode()]
            entry.where, entry.acknowledged = (topic, int(words[1]), int(words[2])), int(stamp)
        elif kind == "received":
            where = topic, int(words[2]), int(words[3])
            truth.note_received(words[0], where, int(stamp), words[1].encode())


def write_until_compacted_and_read(cluster: Cluster, truth: Truth, topic: str) -> None:
    """Produce records of few keys until the broker has taken some away, then let a group read what is left.

    Raises TimeoutError where it has not within `START_SECONDS`."""
    cleaned = cluster.nodes[0].folder / "data" / "cleaner-offset-checkpoint"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "w-compacted", "linger.ms": 0})
    deadline = time.monotonic() + START_SECONDS
    for number in itertools.count():
        value = b"compacted %d" % number
        truth.written[value] = Written("w-compacted", _now())
        producer.produce(topic, value, b"%d" % (number % 3), partition=0, on_delivery=truth.note_answer)
        producer.flush(START_SECONDS)
        lines = cleaned.read_text().splitlines() if cleaned.exists() else []
        if any(line.startswith(f"{topic} 0 ") and int(line.rpartition(" ")[2]) > _COMPACTED for line in lines):
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not compacted")
        time.sleep(0.01)
    read(cluster, truth, COMPACTED_GROUP, {}, topic, until=time.monotonic())


def removed(truth: Truth, rows: list[Row]) -> tuple[int, Counter[str | None]]:
    """Return how many batches of a compacted topic were gone before its group read, and how often each reason is
    given for that."""
    (topic,) = {entry.where[0] for entry in truth.written.values() if entry.where is not None}
    there = {where for _, where in truth.received}
    gone = [
        row
        for row in rows
        if row["topic"] == topic
        and not any(
            (topic, row["partition"], offset) in there for offset in range(row["base_offset"], row["last_offset"] + 1)
        )
    ]
    return len(gone), Counter("fetched" if row["fetched"] is not None else row["reason"] for row in gone)


def make_topic(cluster: Cluster, copies: int, **config: str) -> str:
    """Make a topic of `PARTITIONS` partitions. config: its properties, with `_` for `.`."""
    topic = f"journeys-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, PARTITIONS, copies, config=settings)])[topic].result(START_SECONDS)
    return topic


def captured(cluster: Cluster, path: Path) -> contextlib.AbstractContextManager[Any]:
    """Capture what goes to and from the brokers meanwhile."""
    ports = sorted(port for node in cluster.nodes for port in node.ports.values())
    expression = " or ".join(f"tcp port {port}" for port in ports)
    return capturing("record", "-i", "lo", "-f", expression, "-o", path)


def run_compacted(cluster: Cluster, path: Path) -> Truth:
    """Let a group read what a broker's compaction left of a topic, captured from the first record on."""
    truth = Truth()
    compaction = {"cleanup_policy": "compact", "segment_ms": "1000", "max_compaction_lag_ms": "1000"}
    topic = make_topic(cluster, 1, min_cleanable_dirty_ratio="0.01", **compaction)
    with captured(cluster, path) as recording:
        write_until_compacted_and_read(cluster, truth, topic)
        recording.end()
    return truth


def run_message_sets(cluster: Cluster, path: Path, seconds: float) -> Truth:
    """Write and read message sets of 0.9 for so long, plain and compressed, captured."""
    truth, topic = Truth(), make_topic(cluster, 1)
    with captured(cluster, path) as recording:
        until, old = time.monotonic() + seconds, (0, 9)
        works: list[Callable[[], None]] = [
            *(
                functools.partial(
                    write_in_python, cluster, truth, topic, until, name, compression_type=codec, api_version=old
                )
                for name, codec in CODECS.items()
            ),
            functools.partial(read_in_python, cluster, truth, topic, until, api_version=old),
        ]
        with all_at_once(truth, works):
            pass
        recording.end()
    return truth


def run(
    cluster: Cluster, path: Path, seconds: float, copies: int = 1, kill: bool = False, java: bool = False
) -> tuple[Truth, Truth]:
    """Write and read for so long, captured; the truth of Python's clients, and of Java's, which have a topic of
    their own (java). kill: a broker is killed in the middle and started again."""
    java_truth = Truth()
    truth, topic = Truth(), make_topic(cluster, copies)
    # The first one waits until the coordinator has loaded.
    Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "first"}).init_transactions(START_SECONDS)
    with captured(cluster, path) as recording:
        until = time.monotonic() + seconds
        works: list[Callable[[], None]] = [
            *(functools.partial(write, cluster, truth, name, PRODUCERS[name], topic, until) for name in PRODUCERS),
            *(functools.partial(read, cluster, truth, name, CONSUMERS[name], topic, until) for name in CONSUMERS),
            functools.partial(write_in_python, cluster, truth, topic, until),
            functools.partial(read_in_python, cluster, truth, topic, until),
        ]
        if java:
            java_topic = make_topic(cluster, copies)
            works.append(functools.partial(write_and_read_in_java, cluster, java_truth, java_topic, seconds))
        with all_at_once(truth, works):
            if kill:
                time.sleep(seconds / 3)
                cluster.kill(2)
                time.sleep(seconds / 3)
                cluster.restart(2)
        recording.end()
    return truth, java_truth


def _us(moment: datetime.datetime | None) -> int | None:
    if moment is None:
        return None
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)


Row = dict[str, Any]


def journeys_of(path: Path) -> tuple[list[Row], dict[tuple[Any, ...], Row]]:
    """Rows of `journeys` with topics by name and times in us; exchanges by key."""
    dataset = analyzer.analyze(path)
    names = {row["topic_id"]: row["topic"] for row in dataset.topic_ids.to_pylist()}
    rows = []
    for row in dataset.journeys.to_pylist():
        times = {name: _us(row[name]) for name in ("created", "sent", "received", "acked", "fetched", "committed")}
        rows.append({**row, **times, "topic": row["topic"] or names.get(row["topic_id"])})
    columns = ["connection", "exchange", "reply", "request_time", "request_end", "response_end"]
    exchanges = {
        (row["connection"], row["exchange"], row["reply"]): {name: _us(row[name]) for name in columns[3:]}
        for row in dataset.exchanges.select(columns).to_pylist()
    }
    return rows, exchanges


def judge(truth: Truth, rows: list[Row], exchanges: dict[tuple[Any, ...], Row]) -> Figures:
    """Compare rows with what the clients know."""
    figures = Figures()
    at: dict[Where, list[Row]] = defaultdict(list)
    bases: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in rows:
        if row["base_offset"] is not None:
            bases[row["topic"], row["partition"]].add(row["base_offset"])
    following = {(*place, base): after for place, those in bases.items() for base, after in pairwise(sorted(those))}
    for row in rows:
        if row["base_offset"] is not None:
            where = row["topic"], row["partition"], row["base_offset"]
            last = row["last_offset"]
            if last is None:  # a compressed message set says it inside alone
                last = following.get(where, where[2] + _ROUNDS * 30) - 1
            for offset in range(row["base_offset"], last + 1):
                at[row["topic"], row["partition"], offset].append(row)
    known = [entry for entry in truth.written.values() if entry.where is not None]
    owners: dict[Where, set[str]] = defaultdict(set)
    for entry in known:
        owners[entry.where or ("", 0, 0)].add(entry.client)
    batches: dict[tuple[Any, ...], bool] = {}
    for entry in known:
        where = entry.where or ("", 0, 0)
        own = [row for row in at[where] if row["producer_client"] == entry.client]
        others = {row["producer_client"] for row in at[where]} - owners[where]
        key = (*where[:2], own[0]["base_offset"], entry.client) if own else (*where, entry.client)
        batches[key] = bool(own)
        if others:
            figures.wrong.append(f"{where}: of {owners[where]}, placed as of {others}")
        for row in own:
            if row["sent"] < entry.produced:
                figures.wrong.append(f"{where}: sent {entry.produced - row['sent']} us before it was produced")
            if row["acked"] is not None and entry.acknowledged is not None and row["acked"] > entry.acknowledged:
                figures.wrong.append(f"{where}: acknowledged after its client knew")
    figures.batches, figures.placed = len(batches), sum(batches.values())
    for (group, where), (received, value) in truth.received.items():
        figures.received += 1
        client = truth.written[value].client
        fetched = [row for row in at[where] if row["group_id"] == group and row["fetched"] is not None]
        if {row["producer_client"] for row in fetched} != {client}:
            figures.wrong.append(f"{where}: {group} received it of {client}, and no row, or another, says so")
        elif min(row["fetched"] for row in fetched) > received:
            figures.wrong.append(f"{where}: {group} received it before it was fetched")
    answers = {row["response_end"] for row in exchanges.values()}
    for row in rows:
        times = [row[name] for name in ("created", "sent", "received", "acked") if row[name] is not None]
        if times != sorted(times):
            figures.wrong.append(f"{row['topic']}-{row['partition']} {row['base_offset']}: times {times}")
        exchange = exchanges[tuple(row["produced"].values())]
        packets = exchange["request_time"], exchange["request_end"], exchange["response_end"]
        if (row["sent"], row["received"], row["acked"]) != packets or row["fetched"] not in (None, *answers):
            figures.wrong.append(f"{row['base_offset']}: not the packets' times")
    return figures


# ----------------------------------------------------------------------------------------------------------------- lag


def run_lag(cluster: Cluster, path: Path, seconds: float, topics: int = 5) -> tuple[Truth, list[str]]:
    """Write to topics, each with a group that leaves and comes back, captured."""
    truth, names = Truth(), [make_topic(cluster, 1) for _ in range(topics)]
    with captured(cluster, path) as recording:
        until = time.monotonic() + seconds
        works: list[Callable[[], None]] = []
        for topic in names:
            works.append(functools.partial(write, cluster, truth, f"w-{topic}", {"acks": 1}, topic, until))
            works.append(
                functools.partial(
                    read, cluster, truth, f"g-{topic}", {"enable.auto.commit": False}, topic, until, pauses=True
                )
            )
        with all_at_once(truth, works):
            pass
        recording.end()
    return truth, names


def lags(truth: Truth, rows: list[Row], topic: str, moments: int, poll_us: int) -> Iterator[tuple[str, float, float]]:
    """Yield, for random moments of partition 0: whether the batch that is oldest of those not committed is the one that
    the clients know (`same`), the answer to its commit or Produce was on its way to them then (`moving`), or it is
    another (`other`); the lag in seconds, and what offsets polled every `poll_us` would have said."""
    group, random_ = f"g-{topic}", random.Random(topic)
    sends = sorted(
        (entry.where[2], entry.produced)
        for entry in truth.written.values()
        if entry.where is not None and entry.where[:2] == (topic, 0)
    )
    batches = sorted(
        (row["base_offset"], row["last_offset"], row["sent"], row["committed"])
        for row in rows
        if row["topic"] == topic and row["partition"] == 0 and row["base_offset"] is not None
    )
    commits = truth.committed[group, 0]
    produced, known = sorted(time_ for _, time_ in sends), [time_ for time_, _ in commits]
    first, last = produced[0], known[-1]
    polls = list(range(first, last, poll_us))
    ends = [bisect.bisect_right(produced, poll) for poll in polls]

    def position(moment: int) -> int:
        at = bisect.bisect_right(known, moment) - 1
        return commits[at][1] if at >= 0 else 0

    for _ in range(moments):
        moment = random_.randrange(first + poll_us, last)
        offset = position(moment)
        waiting = next((send for send in sends if send[0] >= offset and send[1] <= moment), None)
        holding = next((batch for batch in batches if waiting and batch[0] <= waiting[0] <= batch[1]), None)
        batch = next((batch for batch in batches if batch[2] <= moment and (batch[3] or last + 1) > moment), None)
        moving = holding is not None and (holding[2] > moment or (holding[3] or last) <= moment)
        at = bisect.bisect_right(polls, moment) - 1
        stood = position(polls[at])
        after = next((i for i in range(1, at + 1) if ends[i] > stood), None)
        guess = 0.0
        if after is not None:
            part = (stood - ends[after - 1]) / (ends[after] - ends[after - 1])
            guess = (polls[at] - polls[after - 1] - part * poll_us) / 1e6
        verdict = "same" if batch == holding else "moving" if moving else "other"
        yield verdict, (moment - batch[2]) / 1e6 if batch else 0.0, guess


def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--java", action="store_true", help="with clients of Java, a share consumer too")
    parser.add_argument("--lag", action="store_true")
    parser.add_argument("--compacted", action="store_true", help="only a topic that is read after compaction")
    parser.add_argument("--message-sets", action="store_true", help="only message sets of 0.9, compressed ones too")
    parser.add_argument("--keep", type=Path, help="where the capture goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = COMPACTING if options.compacted else MESSAGE_SETS if options.message_sets else Spec(nodes=options.nodes)
        cluster = Cluster(spec, Path(folder) / "k", jars.find_java(), jars.fetch(spec.version))
        (Path(folder) / "k").mkdir()
        path = options.keep or Path(folder) / "capture.pcap"
        try:
            cluster.start()
            if options.compacted:
                truths: tuple[Truth, ...] = (run_compacted(cluster, path),)
            elif options.message_sets:
                truths = (run_message_sets(cluster, path, options.seconds),)
            elif options.lag:
                truth, topics = run_lag(cluster, path, options.seconds)
            else:
                truths = run(cluster, path, options.seconds, options.nodes, options.kill, options.java)
        finally:
            cluster.stop()
        rows, exchanges = journeys_of(path)
        if not options.lag:
            for figures in (judge(truth, rows, exchanges) for truth in truths):
                print(f"{figures.placed} of {figures.batches} batches placed, {figures.received} receipts")
                print(f"{len(figures.wrong)} wrong", *figures.wrong[:10], sep="\n")
            if options.compacted:
                print("batches gone, and the reasons given:", *removed(truths[0], rows))
            return
        for topic in topics:
            every = list(lags(truth, rows, topic, 100, 30_000_000))
            verdicts = Counter(verdict for verdict, _, _ in every)
            off = sorted(abs(lag - guess) for _, lag, guess in every)
            print(
                f"{dict(verdicts)}; the lag up to {max(lag for _, lag, _ in every):.1f} s; interpolated it is off by "
                f"{off[50]:.1f} s (median), {off[-1]:.1f} s (worst)"
            )


if __name__ == "__main__":
    main()
