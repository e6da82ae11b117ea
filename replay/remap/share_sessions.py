"""Translates share sessions (KIP-932): one per member and broker, whose partitions that broker leads. Pure.

Each request in a session counts its epoch. So a captured request becomes parts: to the leaders of what it names, each
with the epoch of the session there, and to each other broker that has a session, because a fetch that names nothing
goes on with everything that the session holds.

A session that a broker lost (it forgets them, and those of a connection that ended) is begun anew there, as a client
does: by a fetch of epoch 0 that names all of its partitions, and acknowledges nothing, because that belonged to the
lost one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.topic_partitions import NAME, Partition, subset

APIS: Final = frozenset((api_keys.SHARE_FETCH, api_keys.SHARE_ACKNOWLEDGE))
LOST: Final = frozenset(
    (
        errors.SHARE_SESSION_NOT_FOUND,
        errors.INVALID_SHARE_SESSION_EPOCH,
        errors.SHARE_SESSION_LIMIT_REACHED,
    )
)
"""Errors for a request in a session that the broker does not have."""
_CLOSES: Final = -1


@dataclass(slots=True)
class _Session:
    """A session at one broker. `epoch`: the next one to send, 0 if it is to be begun; `topics`: what it holds, by
    topic: its struct in requests, and its partitions."""

    epoch: int = 0
    topics: dict[Any, tuple[Body, dict[int, Body]]] = field(default_factory=dict)

    def take(self, body: Body) -> None:
        """Add the partitions that a fetch names, and remove those that it forgets."""
        for topic in body["topics"]:
            _, held = self.topics.setdefault(_topic(topic), (topic, {}))
            for part in topic["partitions"]:
                held[part["partitionIndex"]] = {**part, "acknowledgementBatches": []}
        for topic in body.get("forgottenTopicsData") or ():
            _, held = self.topics.get(_topic(topic), (topic, {}))
            for number in topic["partitions"]:
                held.pop(number, None)

    def everything(self) -> list[Body]:
        """Give everything that it holds, as a request that begins it names it."""
        return [{**topic, "partitions": list(held.values())} for topic, held in self.topics.values() if held]


class ShareSessions:
    """Share sessions by group and member, with the target's names, and broker."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], dict[int, _Session]] = {}

    def parts(
        self, api_key: int, body: Body, by_leader: Mapping[int, set[Partition]], home: int
    ) -> list[tuple[int, Body]]:
        """Give (node, body) of each part of a request; to the broker `home` if it goes to no other."""
        there = self._sessions.get(_who(body), {})
        fetches, epoch = api_key == api_keys.SHARE_FETCH, body["shareSessionEpoch"]
        nodes = set(by_leader)
        if epoch == _CLOSES or (fetches and epoch > 0):
            nodes |= there.keys()
        parts = []
        for node in sorted(nodes or {home}):
            session = there.get(node)
            part = {**subset(api_key, body, by_leader.get(node, set())), "shareSessionEpoch": _CLOSES}
            if epoch != _CLOSES:
                part["shareSessionEpoch"] = session.epoch if session is not None else 0
            if fetches and session is not None and part["shareSessionEpoch"] == 0:
                session.take(part)
                part |= {"topics": session.everything(), "forgottenTopicsData": []}
            parts.append((node, part))
        return parts

    def sent(self, api_key: int, parts: Sequence[tuple[int, Body]]) -> None:
        """Note that these parts of a request are sent now."""
        for node, part in parts:
            sessions = self._sessions.setdefault(_who(part), {})
            epoch = part["shareSessionEpoch"]
            if epoch == _CLOSES:
                sessions.pop(node, None)
            elif api_key == api_keys.SHARE_FETCH:
                session = sessions.setdefault(node, _Session())
                session.epoch = epoch + 1
                session.take(part)
            elif epoch > 0:  # acknowledging does not begin one
                sessions[node].epoch = epoch + 1

    def answered(self, node: int, part: Body, answer: Body | None) -> None:
        """Take a broker's answer to a part; None: the connection ended, and the session with it."""
        session = self._sessions.get(_who(part), {}).get(node)
        lost = answer is None or answer["errorCode"] in LOST
        # Somebody may have begun it anew since.
        if lost and session is not None and session.epoch == part["shareSessionEpoch"] + 1:
            session.epoch = 0

    def begin_anew(self, body: Body) -> None:
        """Make a fetch begin what was lost, and nothing else: the rest was answered."""
        lost = [session for session in self._sessions.get(_who(body), {}).values() if session.epoch == 0]
        body |= {
            "shareSessionEpoch": 0,
            "forgottenTopicsData": [],
            "topics": [topic for session in lost for topic in session.everything()],
        }


def _topic(topic: Body) -> Any:
    return topic.get(NAME) or topic.get("topicId")


def _who(body: Body) -> tuple[str, str]:
    return body["groupId"] or "", body["memberId"] or ""
