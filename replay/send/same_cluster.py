"""Checks whether the target is the captured cluster, which gets its own traffic again only if the user says so.

In: what the capture and the target say of themselves. Out: why they are taken for one cluster; empty if they are not.
Pure. Rules: the cluster id decides if one was captured (Metadata v2 and newer, KIP-78); otherwise a captured broker's
address that the target's Metadata names. A capture that shows neither is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

from kwire.captures.errors import KwireError
from kwire.replay.plan.cluster import Cluster
from kwire.replay.plan.sessions import Session
from kwire.replay.remap.topology import Topology
from kwire.replay.send.reach import same_host, text


class SameClusterError(KwireError):
    """The target is the captured cluster."""

    def __init__(self, why: str) -> None:
        hint = "--to another cluster; --same-cluster, where records, commits and members are to be added to this one"
        super().__init__(f"the target is the cluster that was captured: {why}", hint)


def why_same(cluster: Cluster, sessions: Iterable[Session], target: Topology) -> str:
    """The reason why the target is taken for the captured cluster; empty if it is not."""
    if cluster.ids:
        return f"its cluster id is {target.cluster_id}" if target.cluster_id in cluster.ids else ""
    captured = cluster.brokers | {session.broker for session in sessions}
    known = {(same_host(host), port) for host, port in captured}
    for host, port in target.nodes.values():
        if (same_host(host), port) in known:
            return f"it names {text(host, port)}, which is a captured broker (no cluster id was captured)"
    return ""
