"""Collects what a plan needs to know of the whole capture before its first request is planned. Pure.

In: each request once, in order of captured time; for Produce and Fetch also what many of them touch (`touch`). Out:
the captured cluster, members that had joined before the capture began, when each session sends its last request, which
topics are named, and how old records are. Memory grows with what the capture names (sessions, topics, groups,
members), not with its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.topic_lists import topics_of
from kwire.replay.plan import apis, convert, early_members
from kwire.replay.plan.cluster import Cluster, Learning
from kwire.replay.plan.early_members import EarlyMembers, MemberRequest
from kwire.replay.plan.pauses import Pauses
from kwire.replay.plan.record_times import Times, note
from kwire.replay.plan.sessions import Decoded

if TYPE_CHECKING:
    from kwire.analyzer.analysis.traffic_summary import TopicActivity

_OF_GROUPS: Final = frozenset(
    (
        api_keys.OFFSET_COMMIT,
        api_keys.OFFSET_FETCH,
        api_keys.JOIN_GROUP,
        api_keys.SYNC_GROUP,
        api_keys.HEARTBEAT,
        api_keys.LEAVE_GROUP,
        api_keys.TXN_OFFSET_COMMIT,
        *apis.GROUP_HEARTBEATS,
    )
)
_UNSENT: Final = (apis.Policy.INTERNAL, apis.Policy.REPLAYER, apis.Policy.LOGIN, apis.Policy.STREAMS)


@dataclass(slots=True)
class FirstPass:
    """Facts that the first pass has collected.

    - `learning`, `early`: about the cluster, and about members that had joined before
    - `start_ns`: the first request's time; `ends`: when each session sent its last one; `requests`: how many there are
    - `named`: topics (or ids) by API, of requests that may be sent; `subscribed`: topics that members subscribe to by
      name
    - `times`: of records by topic (or id), if `timed`; `pauses`: between requests
    """

    timed: bool = False
    learning: Learning = field(default_factory=Learning)
    early: EarlyMembers = field(default_factory=EarlyMembers)
    start_ns: int | None = None
    ends: dict[int, int] = field(default_factory=dict)
    requests: int = 0
    named: dict[int, set[str]] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)
    times: dict[str, Times] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)

    def take(self, session: int, message: Decoded) -> None:
        """Take the next request in order of time. Its bodies are decoded for this alone, and may be changed."""
        self.sent(session, message.request.sent_ns)
        self.pauses.add(message.request.sent_ns)
        self.learn(message)

    def learn(self, message: Decoded) -> None:
        """Like `take`, for a request that has been counted (`sent`)."""
        self.learning.take(message)
        fast_path = message.fast_path
        if fast_path is not None:
            self.named.setdefault(api_keys.PRODUCE, set()).add(fast_path.topic or fast_path.topic_id)
            if self.timed and message.request.data is not None:
                into = self.times.setdefault(fast_path.topic or fast_path.topic_id, Times())
                note(into, message.request.data, fast_path.at, fast_path.end)
            return
        if message.body is None:  # of one whose bytes are missing not even the API may be known
            return
        row, key = message.request.row, message.request.api_key
        body = message.body
        if apis.api(key).policy not in _UNSENT:
            self._name(message)
        if key in _OF_GROUPS or key == api_keys.FETCH:
            answer = message.answer
            body = convert.canonical(key, message.version, body)
            codes = frozenset(errors.codes(answer)) if key in _OF_GROUPS else frozenset[int]()
            self.early.take(MemberRequest(key, body, answer, codes, (row["client_ip"], row["client_id"])))

    def touch(self, some: TopicActivity, client: tuple[str, str | None]) -> None:
        """Take what Produce and Fetch say of a topic. `client`: under its new name."""
        named = some.topic or some.topic_id
        self.learning.touch(some)
        if some.requested < 0 or not named:
            return
        self.named.setdefault(some.api_key, set()).add(named)
        if some.api_key == api_keys.FETCH:
            self.early.fetched(client, (early_members.label(some.topic, some.topic_id),))
        elif self.timed and some.bytes:
            times = Times(some.records, some.bytes, some.oldest_ms, some.newest_ms)
            self.times.setdefault(named, Times()).join(times)

    def sent(self, session: int, sent_ns: int, requests: int = 1) -> None:
        """Count requests of a session, of which the last was sent at this time."""
        self.requests += requests
        self.start_ns = sent_ns if self.start_ns is None else min(self.start_ns, sent_ns)
        self.ends[session] = max(sent_ns, self.ends.get(session, 0))

    def _name(self, message: Decoded) -> None:
        key, body = message.request.api_key, message.body or {}
        into = self.named.setdefault(key, set())
        for where, topic in topics_of(key, body):
            named = (topic.get(where.name) if where.name else None) or (topic.get(where.id) if where.id else None)
            if named:
                into.add(named)
        self.subscribed.update(body.get("subscribedTopicNames") or ())
        if self.timed and key == api_keys.PRODUCE:
            for topic in body["topicData"]:
                named = topic.get("name") or topic.get("topicId") or ""
                for part in topic["partitionData"]:
                    if part["records"]:
                        note(self.times.setdefault(named, Times()), part["records"], 0, len(part["records"]))

    def finish(self, requests: Callable[[], Iterable[Decoded]] | None, topic_ids: dict[str, str] | None) -> Cluster:
        """Finish the first pass. `requests` goes through all requests again, if topic ids have no name; `topic_ids`:
        names from other sources."""
        cluster = self.learning.finish(requests, topic_ids or {})
        cluster.early = self.early.finish(cluster.topic_names)
        cluster.members |= {(member.group, member.member) for members in cluster.early.values() for member in members}
        return cluster

    def topics(self, allow: Collection[int], cluster: Cluster) -> frozenset[str]:
        """The topics that requests name which may be sent."""
        topics: set[str] = set()
        for key, some in self.named.items():
            if apis.api(key).policy is not apis.Policy.ALLOW or key in allow:
                topics.update(cluster.topic_names.get(topic, topic) for topic in some)
        return frozenset(topics)

    def record_times(self, cluster: Cluster) -> dict[str, Times]:
        """Times of the records by topic."""
        times: dict[str, Times] = {}
        for topic, seen in self.times.items():
            times.setdefault(cluster.topic_names.get(topic, topic), Times()).join(seen)
        return times
