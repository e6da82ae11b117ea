"""A replay does not go to the cluster that it was captured at, unless the user says so.

Proves: replay/send/same_cluster.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay import run
from kwire.replay.options import Options
from kwire.replay.plan import decisions
from kwire.replay.remap.topology import Topology
from kwire.replay.send import link
from kwire.replay.send.same_cluster import SameClusterError, why_same
from kwire.replay.source import MemorySource
from tests.bench.replay import sessions
from tests.replay.conversation import EVERYTHING, Captured
from tests.replay.test_commands import sinking


def captured(cluster_id: str | None) -> Captured:
    """A client of the broker at 10.0.0.9:9092, which calls itself kafka-1."""
    brokers = [{"nodeId": 1, "host": "kafka-1", "port": 9092}]
    answer = {"brokers": brokers, "clusterId": cluster_id, "controllerId": 1, "topics": []}
    return Captured().add(0.0, api_keys.METADATA, 9, {"topics": None}, answer)


@pytest.mark.parametrize(
    ("cluster_id", "target_id", "address", "why"),
    [
        ("here", "here", ("else", 1), "its cluster id is here"),
        ("here", "there", ("kafka-1", 9092), ""),  # another cluster, at the address of before
        ("here", None, ("kafka-1", 9092), ""),
        (None, "there", ("KAFKA-1.", 9092), "it names KAFKA-1.:9092, which is a captured broker"),
        (None, "there", ("10.0.0.9", 9092), "it names 10.0.0.9:9092, which is a captured broker"),
        (None, "there", ("10.0.0.9", 9093), ""),
        (None, None, ("kafka-2", 9092), ""),
    ],
)
def test_an_equal_id_or_where_none_was_captured_an_address(
    cluster_id: str | None, target_id: str | None, address: tuple[str, int], why: str
) -> None:
    session = captured(cluster_id).session()
    _, cluster = decisions.make([session], EVERYTHING, decisions.PlanOptions())
    reason = why_same(cluster, [session], Topology(nodes={1: address}, cluster_id=target_id))
    assert bool(reason) == bool(why)
    assert reason.startswith(why)


def test_nothing_is_sent_to_it_without_the_option(tmp_path: Path) -> None:
    with sinking() as port:
        some = [*sessions(2, 1, 3), captured("sink").session()]
        options = Options("127.0.0.1", port, yes=True, missing_topics_ok=True)
        with pytest.raises(SameClusterError, match="its cluster id is sink"):
            asyncio.run(run.replay(MemorySource(some), options, link.tcp(), tmp_path / "run", []))
        assert not (tmp_path / "run").exists()
