"""Kafka's data in ZooKeeper (before KRaft), as it is read and written there: offsets, leaders, brokers, controller.

In: windows with operations on nodes. Out: `offset_of`, `leader_of`, `broker_of`, `controller_of` of one operation;
`Requests`: counts by operation and kind of node. Rules: refused operations, and values in another format than Kafka's
(kafka.utils.ZkUtils, kafka.zk.ZkData), give nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.bulk.zookeeper import ZooKeeper
from kwire.analyzer.common.times import rfc3339

MAX_LISTED: Final = 1000
"""Kinds of requests, and changes of the controller, that `_kwire.json` lists."""

_OFFSET: Final = re.compile(r"/consumers/([^/]+)/offsets/([^/]+)/(\d{1,9})")
_STATE: Final = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d{1,9})/state")
_BROKER: Final = re.compile(r"/brokers/ids/(\d{1,9})")
_WRITTEN: Final = ("create", "create2", "setData")


class Committed(NamedTuple):
    """An offset that a consumer of the 0.8 era wrote."""

    group: str
    topic: str
    partition: int
    offset: int


class LeaderState(NamedTuple):
    """Leader, epoch and in-sync replicas of a partition."""

    topic: str
    partition: int
    leader: int | None
    epoch: int | None
    isr: tuple[int, ...] | None


class Registered(NamedTuple):
    """Where a broker listens."""

    node: int
    host: str
    port: int
    rack: str | None


def offset_of(operation: ZooKeeper) -> Committed | None:
    """The offset that an operation commits."""
    named = _OFFSET.fullmatch(operation.path)
    if (
        named is None
        or operation.error
        or operation.operation not in _WRITTEN
        or not (operation.data or b"").strip().isdigit()
    ):
        return None
    offset = int(operation.data or b"")
    return Committed(named[1], named[2], int(named[3]), offset) if offset < 1 << 63 else None


def leader_of(operation: ZooKeeper) -> LeaderState | None:
    """Return the partition leader in an operation; None: it has none."""
    named, value = _STATE.fullmatch(operation.path), _object(operation)
    if named is None or value is None:
        return None
    leader, epoch, isr = value.get("leader"), value.get("leader_epoch"), value.get("isr")
    nodes = tuple(isr) if isinstance(isr, list) and all(_node(node) is not None for node in isr) else None
    node = _node(leader)
    return LeaderState(named[1], int(named[2]), node if node is not None and node >= 0 else None, _node(epoch), nodes)


def broker_of(operation: ZooKeeper) -> Registered | None:
    """Return the broker in an operation; None: it has none."""
    named, value = _BROKER.fullmatch(operation.path), _object(operation)
    if named is None or value is None:
        return None
    host, port, rack = value.get("host"), _node(value.get("port")), value.get("rack")
    if not isinstance(host, str) or port is None:
        return None
    return Registered(int(named[1]), host, port, rack if isinstance(rack, str) else None)


def controller_of(operation: ZooKeeper) -> int | None:
    """Return the broker that is the controller, if an operation has it."""
    value = _object(operation) if operation.path == "/controller" else None
    return _node((value or {}).get("brokerid"))


def _object(operation: ZooKeeper) -> dict[str, Any] | None:
    if operation.error or not operation.data:
        return None
    try:
        value = json.loads(operation.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _node(value: Any) -> int | None:
    """A number of 32 bits."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31
    return value if fits else None


@dataclass(slots=True)
class Requests:
    """Counts requests by operation and kind of node, and notes the controllers (a `Collector`)."""

    _counts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _controllers: list[tuple[int, int]] = field(default_factory=list)

    def take(self, window: Window, *_: object) -> None:
        for operation in window.zookeeper:
            key = operation.operation, kind_of(operation.path), operation.error
            if key in self._counts or len(self._counts) < MAX_LISTED:
                self._counts[key] += 1
            node = controller_of(operation)
            known = self._controllers[-1][1] if self._controllers else None
            if node is not None and node != known and len(self._controllers) < MAX_LISTED:
                self._controllers.append((operation.time_ns, node))

    def tables(self, *_: object) -> Iterator[tuple[str, Any]]:
        yield from ()

    def join(self, other: Requests) -> None:
        self._counts.update(other._counts)
        self._controllers = sorted([*self._controllers, *other._controllers])

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in `_kwire.json`; empty if there were no requests."""
        if not self._counts:
            return {}
        requests = [
            {"operation": operation, "path": path, "error": error, "count": count}
            for (operation, path, error), count in sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))
        ]
        controllers = [{"time": rfc3339(time // 1000), "broker": node} for time, node in self._controllers]
        return {"requests": requests, "controllers": controllers}


# fmt: off
_KINDS: Final = (
    (re.compile(r"/consumers/[^/]+/offsets/[^/]+/\d+"), "/consumers/GROUP/offsets/TOPIC/PARTITION"),
    (re.compile(r"/consumers/[^/]+/owners/[^/]+/\d+"), "/consumers/GROUP/owners/TOPIC/PARTITION"),
    (re.compile(r"/consumers/[^/]+/(offsets|owners)/[^/]+"), "/consumers/GROUP/\\1/TOPIC"),
    (re.compile(r"/consumers/[^/]+/ids/.+"), "/consumers/GROUP/ids/MEMBER"),
    (re.compile(r"/consumers/[^/]+/([a-z]+)"), "/consumers/GROUP/\\1"),
    (re.compile(r"/consumers/[^/]+"), "/consumers/GROUP"),
    (re.compile(r"/brokers/topics/[^/]+/partitions/\d+(/state)?"), "/brokers/topics/TOPIC/partitions/PARTITION\\1"),
    (re.compile(r"/brokers/topics/[^/]+(/partitions)?"), "/brokers/topics/TOPIC\\1"),
    (re.compile(r"/brokers/ids/\d+"), "/brokers/ids/BROKER"),
    (re.compile(r"/(config|admin)/([a-z_]+)/.+"), "/\\1/\\2/NAME"),
    (re.compile(r"/(consumers|controller|controller_epoch|(brokers|config|admin)(/[a-z_]+)?)"), "/\\1"),
)
# fmt: on


def kind_of(path: str) -> str:
    """A node's path with capitals where names stand; `OTHER` for what is not Kafka's."""
    for form, named in _KINDS:
        if (match := form.fullmatch(path)) is not None:
            return match.expand(named)
    return "OTHER"
