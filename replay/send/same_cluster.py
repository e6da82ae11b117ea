"""Is the target the cluster that was captured? That one gets its own traffic again only where the user says so.

In: what the capture says of its cluster, and what the target says of itself. Out: why they are taken for one; empty
where they are not. Pure. Rules: an id of the cluster decides where one was captured (Metadata v2 and newer, KIP-78);
where none was, a captured broker's address that the target's Metadata names. A capture that shows neither is no
evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

from captures.errors import KwireError
from replay.plan.cluster import Cluster
from replay.plan.sessions import Session
from replay.remap.topology import Topology
from replay.send.reach import same_host, text


class SameCluster(KwireError):
    """The target is the captured cluster."""

    def __init__(self, why: str) -> None:
        hint = "--to another cluster; --same-cluster, where records, commits and members are to be added to this one"
        super().__init__(f"the target is the cluster that was captured: {why}", hint)


def why_same(cluster: Cluster, sessions: Iterable[Session], target: Topology) -> str:
    """Why the target is taken for the captured cluster; empty where it is not."""
    if cluster.ids:
        return f"its cluster id is {target.cluster_id}" if target.cluster_id in cluster.ids else ""
    captured = cluster.brokers | {session.broker for session in sessions}
    known = {(same_host(host), port) for host, port in captured}
    for host, port in target.nodes.values():
        if (same_host(host), port) in known:
            return f"it names {text(host, port)}, which is a captured broker (no cluster id was captured)"
    return ""
