"""Share sessions (KIP-932) on a target with several brokers: one a member and broker, where the capture had one. Pure.

A member's session at a broker holds the partitions that the broker leads, and each request there counts its epoch. So a
captured request becomes parts: to the leaders of what it names, each with the epoch of the session there, and to each
other broker that has a session, for who fetches without naming anything goes on with all that the session holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from analyzer.protocol import names
from analyzer.protocol.tree import Body
from replay.plan.parts import Partition, subset

APIS: Final = frozenset((names.SHARE_FETCH, names.SHARE_ACKNOWLEDGE))
_CLOSES = -1


class ShareSessions:
    """By group and member, as the target calls them: the next epoch at each broker that has a session."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, str], dict[int, int]] = {}

    def parts(
        self, api_key: int, body: Body, by_leader: Mapping[int, set[Partition]], home: int
    ) -> list[tuple[int, Body]]:
        """(node, body) of each part of a request; to the broker `home` where it is for none."""
        epochs = self._epochs.get(_who(body), {})
        closes = body["shareSessionEpoch"] == _CLOSES
        nodes = set(by_leader)
        if closes or api_key == names.SHARE_FETCH:
            nodes |= epochs.keys()
        return [
            (
                node,
                {
                    **subset(api_key, body, by_leader.get(node, set())),
                    "shareSessionEpoch": _CLOSES if closes else epochs.get(node, 0),
                },
            )
            for node in sorted(nodes)
        ] or [(home, body)]

    def sent(self, parts: Sequence[tuple[int, Body]]) -> None:
        """These parts of a request are sent now."""
        for node, part in parts:
            epochs = self._epochs.setdefault(_who(part), {})
            if part["shareSessionEpoch"] == _CLOSES:
                epochs.pop(node, None)
            else:
                epochs[node] = part["shareSessionEpoch"] + 1


def _who(body: Body) -> tuple[str, str]:
    return body["groupId"] or "", body["memberId"] or ""
