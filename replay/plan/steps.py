"""The parts of a plan.

A captured exchange becomes a `Step` (it will be sent) or a `Skip` (it will not, and why). Rules have names, each
explained in `RULES` and in the README; nothing is sent or skipped for a reason that has no name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import convert
from kwire.replay.plan.apis import Route
from kwire.replay.plan.produce_requests import FastPath
from kwire.replay.plan.sessions import Request
from kwire.replay.plan.topic_partitions import name_topics

RULES: Final[dict[str, str]] = {
    # skipped by the plan
    "internal": "spoken among brokers or with controllers only",
    "replayer": "the replayer does this itself, for each of its connections",
    "login": "the replayer logs in with its own credentials",
    "mutating": "changes the cluster; sent only with --allow API",
    "outside": "changes something that is none of this replay's: a prefix or a map keeps it to what that names",
    "follower": "a fetch by a follower (replica id of a broker)",
    "streams_group": "a heartbeat in a Streams group: tasks are not mapped to those that the target assigns (KIP-1071)",
    "raw_token": "a token of SASL handshake v0, which has no header",
    "secret": "holds a secret, which is never replayed",
    "incomplete": "bytes are missing in the capture, or cannot be decoded",
    "no_request": "the response's request was not captured",
    "target_lacks_api": "the target does not offer this API",
    "target_lacks_version": "no version that the target offers can say it",
    "null_records": "a broker never answers a produce request without records",
    "bad_records": "the records cannot be converted to batches, which the target demands",
    "client_retried": "failed in the capture with an error that its client retries; what it sent then is sent",
    "partition_absent": "the target's topic has fewer partitions, and this is for one that it lacks (--partial)",
    "no_member": "its member joined before the capture began, and could not be joined here",
    # skipped during the run
    "no_session": "the fetch session that it names was not made in the replay",
    "no_producer": "the target gave no producer id for it: InitProducerId was answered with an error",
    "not_joined": "the target did not take its member into the group: nothing is sent by a name it never gave",
    "unknown_topic_id": "nothing says the name for this topic id: no capture, no dataset, not the target",
    "target_refuses": "the target answered that it does not serve this API",
    # converted
    "version": "sent in a version that the target offers",
    "zookeeper_offsets": "offsets in ZooKeeper (version 0) became offsets in Kafka (version 1 or newer)",
    "committed_alone": "offsets of a member that cannot be joined (`no_member`), committed without membership",
    "joined_early": "the replayer joined its group for it first: the member had joined before the capture began",
    "batches": "old message sets were made record batches (KIP-98)",
    "split": "sent in parts to several leaders or coordinators",
    "no_auto_create": "raised to a version that can say that topics are not to be created",
    # waits and retries
    "topic_appears": "sent again until the new topic is everywhere (3, 6, 100 after CreateTopics)",
    "topic_absent": "not sent again: an earlier request has waited for this topic, and it did not appear",
    "coordinator_loads": "sent again until the coordinator is there (14, 15, 16)",
    "leader_moved": "sent again to the new leader (5, 6, 7, 9, 13, 19, 20, 56, 74, 75, 78)",
    "transaction_ends": "sent again until the last transaction has ended (51, 88)",
    "member_id_given": "joined again with the id that the target gave (79)",
    "rebalance_awaited": "sent again until the group rebalances, as it did in the capture",
    "rebalance_in_vain": "not sent again until the group rebalances: the target keeps out whose joining did that, or it"
    " had begun before the capture did, or the member has been through it",
    "rejoined": "a member that the target fenced or forgot joined again, as its client would (22, 25, 27, 110)",
    "rejoins_spent": "not joined again: the target lost its member again and again, and with it its group",
    "member_epoch_moved": "sent again with the epoch that the member has by now (113)",
    "long_poll_scaled": "a fetch that found nothing, has read here what it found, or reads what nobody here writes,"
    " waits shorter",
    "sessionless": "a fetch session became full fetches, because its partitions have several leaders,"
    " or the target has no sessions",
    "transaction_v1": "partitions were added to the transaction first, as the target demands (KIP-890)",
    "producer_asked": "a producer id was asked for, because the capture does not show how it came",
    "read_on": "the last fetch of a connection went on until it had what the captured one had, where the target had cut"
    " its answer elsewhere",
    "records_awaited": "fetched again until there are records, as there were in the capture",
    "position_asked": "its reader's place is as far from the log's end as in the capture, which has no other hint",
    "session_remade": "the fetch session was made again (70, 71; of a share group 122, 123, 133)",
    "reconnected": "sent again on a new connection",
    "perhaps_twice": "sent again without a producer id, though the target may have stored it: then it is there twice",
    "wait_released": "what it waited for did not come; sent without it",
    # not comparable
    "no_answer_expected": "produced with acks=0",
    "not_captured": "the capture has no answer to compare with",
    "worker_lost": "the process that was to send it died, and its journal does not say whether it did, and what came",
    # not sent
    "aborted": "the run ended first",
    "unreachable": "the target could not be reached",
    "tool_error": "the replayer failed; a bug",
    "session_lost": "its connection could not be opened again",
}


@dataclass(slots=True)
class Step:
    """A captured request that will be sent.

    - `number`: its position in the plan, in order of captured time over all sessions; `session`: index in the plan's
      sessions
    - `at_ns`: when it is due, from the start, at speed 1; `version`: in which it will be sent
    - `waits`: numbers of the steps whose answers must be there first; `after`: steps that must have been sent first
    - `rules`: what was converted, by name; empty if it is sent in its own version
    - `group`: that its body names
    - `expects`: a fetch whose records in the capture are produced by steps of this plan
    - `changed`: the body, if what is sent is not what was captured; other bodies are made again from the captured
      bytes when they are used, with `topic_names` by id
    """

    number: int
    session: int
    request: Request
    at_ns: int
    version: int
    route: Route
    waits: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    changed: Body | None = field(default=None, repr=False)
    topic_names: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: str | None = None
    expects: bool = False
    fast_path: FastPath | None = None
    _body: Body | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def body(self) -> Body:
        """The request decoded, in the form of the newest version (`convert.canonical`), topics named
        (`topic_partitions.NAME`). It is kept until `forget`."""
        if self._body is None:
            self._body = self.changed if self.changed is not None else self._build()
        return self._body

    def forget(self) -> None:
        """Drop the body, which is not needed any more, or not soon."""
        self._body = None

    def fresh(self) -> Body:
        """Make a body that the caller may change."""
        return copy.deepcopy(self.changed) if self.changed is not None else self._build()

    def _build(self) -> Body:
        decoded = self.request.decoded()
        assert decoded is not None
        assert decoded.body is not None
        body = convert.canonical(self.request.api_key, decoded.version, decoded.body)
        name_topics(self.request.api_key, body, self.topic_names)
        return body


@dataclass(frozen=True, slots=True)
class Skip:
    """A captured exchange that will not be sent. `row`: of the table `exchanges`."""

    row: Mapping[str, Any]
    rule: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan: all steps in order of captured time, and all skips. `sessions`: each session's step numbers in order;
    `topics`: that steps name; `subscribed`: that members subscribe to by name."""

    steps: tuple[Step, ...]
    skips: tuple[Skip, ...]
    sessions: tuple[Sequence[int], ...]
    topics: frozenset[str] = frozenset()
    subscribed: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Step | Skip]:
        yield from self.steps
        yield from self.skips
