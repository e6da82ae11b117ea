"""A job as its capture would show it: a producer at a steady pace, a reader in a group, both polling metadata.

What varies from run to run (pauses, latencies, how many records a batch gets) is drawn from a generator with a seed:
two jobs of other seeds are two runs of one job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.reports.forging import Forged, at

TOPIC: Final = "orders"
GROUP: Final = "billing"


@dataclass(frozen=True)
class Job:
    """A run of the job; the defaults are the job before any change."""

    seed: int = 0
    seconds: float = 60
    writer: str = "orders-writer"
    reader: str = "billing-1"
    address: str = "10.0.0.1"
    topic: str = TOPIC
    group: str = GROUP
    software: str | None = "apache-kafka-java"
    version: str = "3.9.2"
    produce_version: int = 9
    records_batch: float = 2.0
    record_bytes: int = 100
    linger_ms: float = 1.0
    codec: str = "none"
    acks: int = -1
    idempotent: bool = True
    isolation: int = 0
    max_wait_ms: int = 500
    batches_s: float = 8.0
    metadata_s: float = 2.0
    broker_ms: float = 2.0
    slower_all: float = 1.0
    refused: float = 0.0
    error: str = "NOT_ENOUGH_REPLICAS"
    tls: bool = False
    reads: bool = True
    reads_s: float = 4.0
    batches_kept: bool = True
    first_port: int = 5000
    start: float = 0.0
    release: str = "3.9"

    def write(self, path: Path) -> Path:
        """The dataset of its capture."""
        return _Writer(self, path).write()


class _Writer:
    def __init__(self, job: Job, path: Path) -> None:
        self.job = job
        self.forged = Forged(path, meaning=True)
        self.chance = np.random.default_rng(job.seed)
        self.ordinals: dict[str, int] = {}

    def write(self) -> Path:
        job = self.job
        writer = self._connection(job.writer, job.first_port)
        self._written(writer)
        self._polled(writer, job.writer, "Metadata", job.metadata_s)
        if job.reads:
            reader, member = self._connection(job.reader, job.first_port + 1), self._connection(job.reader, 5100)
            self._read(reader)
            self._polled(reader, job.reader, "Metadata", job.metadata_s)
            self._polled(member, job.reader, "Heartbeat", 3.0, group_id=job.group)
            self.forged.add(
                "groups", time=at(job.start), group_id=job.group, protocol="classic", event="join",
                client_id=job.reader, session_timeout_ms=45_000, connection=member, exchange=0, reply=0,
            )  # fmt: skip
        self._offered(writer)
        return self.forged.write()

    def _connection(self, client: str, port: int) -> str:
        job = self.job
        name = f"{job.address}:{port}-10.0.0.9:9092#1"
        self.forged.connection(
            connection=name, client_id=client, client_ip=job.address, client_port=port, first_time=at(job.start),
            last_time=at(job.start + job.seconds), software_name=job.software, software_version=job.version,
            tls=job.tls, tls_version="1.3" if job.tls else None,
        )  # fmt: skip
        self._exchange(name, client, "ApiVersions", job.start, api_version=3)
        return name

    def _exchange(self, name: str, client: str, api: str, second: float, **columns: Any) -> int:
        job = self.job
        ordinal = self.ordinals.get(name, 0)
        self.ordinals[name] = ordinal + 1
        own_ms = columns.pop("own_ms", job.broker_ms if api == "Produce" else 1.0) * job.slower_all
        own_ms *= float(self.chance.lognormal(0, 0.4))
        held_ms = columns.pop("held_ms", 0.0)
        port = int(name.split("-")[0].rsplit(":", 1)[1])
        self.forged.exchange(
            api, own_ms + held_ms, second, connection=name, exchange=ordinal, reply=ordinal, client_id=client,
            client_ip=job.address, client_port=port,
            **{
                "queue_us": 0, "muted_us": 0, "network_us": 50, "hold_us": round(held_ms * 1000),
                "broker_us": round(own_ms * 1000), "throttle_us": 0, **columns,
            },
        )  # fmt: skip
        return ordinal

    def _times(self, pause: float) -> list[float]:
        """Moments with that pause on average, jittered as timers are."""
        count = int(self.job.seconds / pause)
        jitter = self.chance.uniform(-0.2, 0.2, count)
        return [self.job.start + min((at_ + 0.5 + shift) * pause, self.job.seconds) for at_, shift in enumerate(jitter)]

    def _polled(self, name: str, client: str, api: str, pause: float, **columns: Any) -> None:
        for second in self._times(pause):
            self._exchange(name, client, api, second, **columns)

    def _written(self, name: str) -> None:
        job = self.job
        for second in self._times(1 / job.batches_s * job.records_batch / 2):
            records = 1 + int(self.chance.poisson(max(job.records_batch - 1, 0)))
            error = job.error if self.chance.random() < job.refused else None
            size = 61 + round(records * (job.record_bytes + 8) * (0.4 if job.codec != "none" else 1))
            ordinal = self._exchange(
                name, job.writer, "Produce", second, api_version=job.produce_version, acks=job.acks, topics=[job.topic],
                request_bytes=size + 80, error=error,
            )  # fmt: skip
            of_exchange = {
                "connection": name,
                "exchange": ordinal,
                "reply": ordinal,
                "topic": job.topic,
                "partition": 0,
            }
            self.forged.add("partitions", **of_exchange, record_bytes=size, batch_count=1, record_count=records)
            if job.batches_kept:
                waited = job.linger_ms * float(self.chance.uniform(0.9, 1.1)) / 1000
                self.forged.add(
                    "batches", **of_exchange, side="produce", magic=2, codec=job.codec, timestamp_type="CreateTime",
                    is_transactional=False, is_control=False, producer_id=7 if job.idempotent else None,
                    record_count=records, batch_bytes=size, first_timestamp=at(second - waited),
                    last_timestamp=at(second), crc_ok=True, partial=False,
                )  # fmt: skip

    def _read(self, name: str) -> None:
        job = self.job
        for second in self._times(1 / job.reads_s):
            records = int(self.chance.poisson(32 / job.reads_s))
            ordinal = self._exchange(
                name, job.reader, "Fetch", second, held_ms=float(self.chance.uniform(0, 100)), topics=[job.topic],
                api_version=16, max_wait_ms=job.max_wait_ms, min_bytes=1, isolation_level=job.isolation,
                response_bytes=100 + 110 * records,
            )  # fmt: skip
            self.forged.add(
                "partitions", connection=name, exchange=ordinal, reply=ordinal, topic=job.topic, partition=0,
                record_bytes=110 * records, batch_count=records // 2, record_count=records,
            )  # fmt: skip
        self.forged.add(
            "readers", connection=name, client_id=job.reader, group_id=job.group, topic=job.topic, partition=0,
            from_time=at(job.start), to_time=at(job.start + job.seconds),
        )  # fmt: skip

    def _offered(self, name: str) -> None:
        from kwire.reports import releases

        for key, (low, high) in releases.find(self.job.release).apis.items():
            self.forged.add("api_versions", connection=name, broker="10.0.0.9:9092", api_key=key, min=low, max=high)
