"""Adds partitions and groups to transactions, for a target that does not do it by itself (before KIP-890). Pure.

In: the transactional requests of clients whose broker did it. Out: the AddPartitionsToTxn or AddOffsetsToTxn that the
target wants before such a request. Rule: a partition or a group is added once per transaction.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import named
from kwire.replay.remap.remap import Remap

VERSION: Final = 3
"""The version of both requests: later versions of AddPartitionsToTxn have a form that only brokers use."""
_BY_ITSELF: Final = {api_keys.PRODUCE: 12, api_keys.TXN_OFFSET_COMMIT: 5}
"""From these versions on a broker adds the partitions or the group by itself."""


class AddRequest(NamedTuple):
    """A request that adds `what`, (topic, partition) or group, to a transaction."""

    transactional_id: str
    api_key: int
    body: Body
    what: set[tuple[str, int] | str]


class Additions:
    """Partitions and groups that were added to the transactions that run now."""

    def __init__(self) -> None:
        self._added: dict[str, set[tuple[str, int] | str]] = {}

    def missing(self, step: Step, body: Body, remap: Remap) -> AddRequest | None:
        """The request that has to come before a Produce or TxnOffsetCommit with this body; None: none."""
        key = step.request.api_key
        name = body.get("transactionalId")
        if not name or step.request.version < _BY_ITSELF[key] or step.version >= _BY_ITSELF[key]:
            return None
        producer = remap.producers.of_transaction(name)
        if producer is None:
            return None
        added = self._added.get(name, set())
        if key == api_keys.PRODUCE:
            missing = {*named(key, body)} - added
            request: Body = {
                "v3AndBelowTransactionalId": name,
                "v3AndBelowProducerId": producer.id,
                "v3AndBelowProducerEpoch": producer.epoch,
                "v3AndBelowTopics": [
                    {"name": remap.topics.name(topic), "partitions": sorted(p for t, p in missing if t == topic)}
                    for topic in sorted({topic for topic, _ in missing})
                ],
            }
            return AddRequest(name, api_keys.ADD_PARTITIONS_TO_TXN, request, {*missing}) if missing else None
        group = body["groupId"]
        request = {
            "transactionalId": name,
            "producerId": producer.id,
            "producerEpoch": producer.epoch,
            "groupId": group,
        }
        return AddRequest(name, api_keys.ADD_OFFSETS_TO_TXN, request, {group}) if group not in added else None

    def add(self, missing: AddRequest) -> None:
        """Note that it was added."""
        self._added.setdefault(missing.transactional_id, set()).update(missing.what)

    def ended(self, transactional_id: str) -> None:
        """Note that a transaction ended: the next one starts empty."""
        self._added.pop(transactional_id, None)
