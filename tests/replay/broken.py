"""`python -m tests.replay.broken CAPTURE [--to HOST:PORT] [FAULT ...]`: each fault of the proxy before a real broker.

In: a capture of `tests.replay.mixed_load` (of 42 seconds: a tail is judged from 200 answers on), and a broker that is
well, with an authorizer. Each fault is a proxy of its own, and a run under a prefix of its own: the command replays,
the command compares. Out: a table, a row a fault: exit codes, what was unexpected, the first line of the diff, and
whether it is what `WANTED` says. Exit code 1 where it is not. (Some 40 seconds a fault.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec, free_port
from tests.replay.mixed_load import TOPICS
from tests.replay.replaying import AUTHORIZER
from tests.shared import KWIRE

SAME: Final = r"same$"

WANTED: Final = {
    "healthy": SAME,
    "drop": r"1 unexpected difference: Produce v\d+ acknowledged records missing 1 missing at \d+, .* \(audit/0\)",
    "twice": r"1 unexpected difference: Produce v\d+ more records than acknowledged 1 more \(audit/0\)",
    "swap": r"1 unexpected difference: .* at other offsets 2 exchanged at \d+ \(audit/0\)",
    "overtake": r"1 unexpected difference: .* at other offsets 2 exchanged at \d+ \(turns/0\)",
    "silent": r"the run ended first \(.*: no answer to anything",
    "storage-errors": r"1 unexpected difference: Produce unsteady answered KAFKA_STORAGE_ERROR \(56\)",
    "fetch-error": r"1 unexpected difference: Fetch unsteady answered KAFKA_STORAGE_ERROR \(56\)",
    "heartbeat-error": r"1 unexpected difference: Heartbeat unsteady answered UNKNOWN_MEMBER_ID \(25\)",
    "produce-error": r"1 unexpected difference: Produce v\d+ error appeared CORRUPT_MESSAGE \(2\)",
    "commit-error": r"1 unexpected difference: OffsetCommit v\d+ error appeared INVALID_COMMIT_OFFSET_SIZE \(28\)",
    "renumber": r"\d unexpected differences: Produce v\d+ acknowledged records at other offsets",
    "commit-to-abort": r"1 unexpected difference: EndTxn v\d+ committed records hidden",
    "commit-to-abort-unread": r"1 unexpected difference: EndTxn v\d+ committed records hidden",
    "aborted-hidden": r"\d+ unexpected differences: EndTxn v\d+ aborted records visible \(\S+\); \d+ more",
    "lose-batch": r"1 unexpected difference: Produce v\d+ acknowledged records missing \d+ missing at \d+ \(orders",
    "flip": r"1 unexpected difference: Fetch v\d+ record changed offset \d+ \(audit/0\)",
    "cut": SAME,
    "earlier": r"\d+ unexpected differences: Fetch v\d+ record timestamp changed",
    "low-watermark": r"\d+ unexpected differences: Fetch v\d+ high watermark below its records",
    "old-commits": r"\d+ unexpected differences?: OffsetFetch v\d+ committedOffset changed",
    "no-commits": r"\d+ unexpected differences?: OffsetFetch v\d+ committedOffset changed",
    "empty-assignment": r"1 unexpected difference: SyncGroup v\d+ assigned partitions none",
    "closing": r"\d+ unexpected differences: Produce unsteady connection ended before an answer",
    "throttle": r"1 unexpected difference: Produce held back by a quota .* at most 300 ms",
    "no-transactions": r"1 unexpected difference: AddPartitionsToTxn v\d+ state skipped \(target_lacks_api\)",
    "other-ranges": SAME,
    "fewer-partitions": r"1 unexpected difference: Metadata v\d+ another number of partitions 2 \(orders\)",
    "slow-produce": r"1 unexpected difference: Produce slower median",
    "slow-fetches": r"1 unexpected difference: Fetch slower p98",
    "log-append-time": r"\d+ unexpected differences: Produce v\d+ stored otherwise than sent .* LogAppendTime",
    "small-messages": r"\d+ unexpected differences: Produce v\d+ error appeared MESSAGE_TOO_LARGE \(10\)",
    "short-transactions": r"\d unexpected differences?: InitProducerId v\d+ error \w+ INVALID_TRANSACTION_TIMEOUT",
    "group-denied": r"\d+ unexpected differences?: \S+ v\d+ error appeared GROUP_AUTHORIZATION_FAILED \(30\)",
    "topic-missing": r"kwire: the target has no topic",
}
"""What the first line of the diff must say of each fault."""

CONFIGURED: Final = {
    "log-append-time": {"message.timestamp.type": "LogAppendTime"},
    "small-messages": {"max.message.bytes": "120"},
}
"""Faults that are a configuration of the topics, made before the run."""
STARTED: Final = {"short-transactions": (("transaction.max.timeout.ms", "5000"),)}
"""Faults that are a setting of a broker that no running one takes: one is started for each."""
DENIED: Final = "group-denied"
LACKING: Final = "topic-missing"
FILTERED: Final = {"commit-to-abort-unread": ("commit-to-abort", "client_id != 'bankers-0'")}
"""Faults of the proxy with less of the capture."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the commands with a fault. `groups`: groups of unexpected differences, each a line."""

    fault: str
    codes: tuple[int, int]
    unexpected: int
    first: str
    groups: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        wanted = WANTED.get(self.fault)
        return wanted is not None and re.match(wanted, self.first) is not None


@contextlib.contextmanager
def proxy(broker: str, fault: str) -> Iterator[str]:
    """The address of a proxy with this fault."""
    port = free_port()
    command = [sys.executable, "-m", "tests.replay.proxy", str(port), broker.rpartition(":")[2], fault]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            with ThreadPoolExecutor(1) as drain:
                drain.submit(process.stdout.read)
                yield f"127.0.0.1:{port}"
                process.terminate()
        finally:
            process.terminate()


@contextlib.contextmanager
def started(settings: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """The address of a broker with these settings and an authorizer, ended when it is done."""
    with tempfile.TemporaryDirectory(prefix="kwire-broken-broker-") as folder:
        spec = Spec(settings=(*AUTHORIZER, *settings))
        cluster = Cluster(spec, Path(folder, "cluster"), jars.find_java(), jars.fetch(spec.version))
        try:
            cluster.start()
            yield cluster.bootstrap
        finally:
            cluster.stop()


def prepare(broker: str, fault: str, prefix: str) -> None:
    """Make what a fault needs at the broker itself."""
    admin = AdminClient({"bootstrap.servers": broker})
    if fault in CONFIGURED:
        topics = [NewTopic(prefix + name, count, 1, config=CONFIGURED[fault]) for name, count in TOPICS.items()]
        for created in admin.create_topics(topics).values():
            created.result()
        time.sleep(1)
    if fault == DENIED:
        # A group with any ACL is no longer everybody's: all is allowed again, but reading.
        for operation, permission in (
            (AclOperation.ALL, AclPermissionType.ALLOW),
            (AclOperation.READ, AclPermissionType.DENY),
        ):
            name, who = prefix + "shippers", "User:ANONYMOUS"
            acl = AclBinding(ResourceType.GROUP, name, ResourcePatternType.LITERAL, who, "*", operation, permission)
            admin.create_acls([acl])[acl].result(30)


def run(capture: str, broker: str, fault: str, folder: Path, speed: str) -> Outcome:
    """Replay and compare with one fault."""
    if fault in STARTED:
        with started(STARTED[fault]) as address:
            return _run(capture, address, fault, folder, speed)
    return _run(capture, broker, fault, folder, speed)


def _run(capture: str, broker: str, fault: str, folder: Path, speed: str) -> Outcome:
    begun = time.monotonic()
    prefix = f"{fault}-{time.time_ns() // 1_000_000 % 1_000_000}-"
    prepare(broker, fault, prefix)
    kind, only = FILTERED.get(fault, (fault, ""))
    at_broker = fault in CONFIGURED or fault in STARTED or fault in (DENIED, LACKING)
    out = folder / fault
    with proxy(broker, "healthy" if at_broker else kind) as address:
        options = ["--prefix-topics", prefix, "--prefix-groups", prefix, "--same-cluster", "--speed", speed]
        options += ["--give-up-after", "8s"] if fault == "silent" else []
        options += [] if fault == LACKING else ["--seed-topics", "--partial"]
        options += ["--filter", only] if only else []
        replay = subprocess.run(
            [*KWIRE, "replay", capture, "--to", address, "-o", str(out), *options],
            capture_output=True,
            text=True,
            check=False,
        )
    if not out.exists():
        return Outcome(fault, (replay.returncode, -1), 0, replay.stderr.strip().splitlines()[0], (), 0)
    (folder / f"{fault}.replay").write_text(replay.stdout + replay.stderr)
    compared = subprocess.run([*KWIRE, "diff", str(out)], capture_output=True, text=True, check=False)
    (folder / f"{fault}.diff").write_text(compared.stdout + compared.stderr)
    listed = subprocess.run([*KWIRE, "diff", str(out), "--json"], capture_output=True, text=True, check=False)
    groups: list[str] = []
    unexpected = -1
    with contextlib.suppress(ValueError):
        result = json.loads(listed.stdout)
        wrong = [each for each in result["differences"] if each["verdict"] == "unexpected"]
        unexpected = sum(each["count"] for each in wrong)
        groups = [
            f"{each['count']} x {each['api']} {each['field']} {each['kind']}: {example['left']} -> {example['right']}"
            f" {'/'.join(example['key'])}"
            for each in wrong
            for example in each["examples"][:1]
        ]
    first = (compared.stdout or compared.stderr).splitlines()[0].removeprefix("verdict: ")
    seconds = time.monotonic() - begun
    return Outcome(fault, (replay.returncode, compared.returncode), unexpected, first, tuple(groups), seconds)


def main() -> int:
    """Run faults, some at a time, and write the table."""
    from tests.replay.proxy import FAULTS

    every = [*FAULTS, *FILTERED, *CONFIGURED, *STARTED, DENIED, LACKING]
    parser = argparse.ArgumentParser(prog="python -m tests.replay.broken", description=__doc__)
    parser.add_argument("capture")
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--to", metavar="HOST:PORT", help="default: a broker that is started, with an authorizer")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--speed", default="1")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the RUNs")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-broken-")))
        folder.mkdir(parents=True, exist_ok=True)
        broker = options.to or stack.enter_context(started(()))
        pool = stack.enter_context(ThreadPoolExecutor(options.at_once))
        chosen = options.faults or every
        outcomes = pool.map(lambda fault: run(options.capture, broker, fault, folder, options.speed), chosen)
        right = 0
        for outcome in outcomes:
            right += outcome.right
            mark = "ok " if outcome.right else "?  "
            codes = "/".join(map(str, outcome.codes))
            print(
                f"{mark}{outcome.fault:<22} {codes:<5} {outcome.unexpected:>4}  {outcome.seconds:3.0f} s",
                outcome.first,
            )
            for group in outcome.groups:
                print(f"      {group}")
            sys.stdout.flush()
    print(f"{right} of {len(chosen)} as they must be")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
