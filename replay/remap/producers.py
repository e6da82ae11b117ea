"""Translates producer ids with their epochs, the sequences of batches, and batches' times. Pure.

Rules: an id is replaced by the one in an answer, or by one that the replayer requested itself; an answer with an error
brings none, and what needs it is not sent; a sequence keeps its order and its gaps, and goes on from where its
producer is on the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches
from kwire.replay.plan.produce_requests import Spot
from kwire.replay.plan.steps import Step
from kwire.replay.plan.topic_partitions import NAME
from kwire.replay.plan.values import Producer

Header = batches.Batch | Spot
_SEQUENCES: Final = 1 << 31
"""Sequences are 31 bits wide and wrap."""

# fmt: off
_FIELDS: Final = {
    api_keys.ADD_PARTITIONS_TO_TXN: (
        "v3AndBelowTransactionalId", "v3AndBelowProducerId", "v3AndBelowProducerEpoch",
    ),
    **dict.fromkeys(
        (api_keys.INIT_PRODUCER_ID, api_keys.ADD_OFFSETS_TO_TXN, api_keys.END_TXN, api_keys.TXN_OFFSET_COMMIT),
        ("transactionalId", "producerId", "producerEpoch"),
    ),
}
# fmt: on
"""Where transaction requests name their transaction and their producer."""
_NO_PRODUCER: Final = Producer(-1, -1)
"""Producer id of an InitProducerId that continues no producer: the target gives a new one."""


class Producers:
    """Producers of the capture and of the target. `shift_ms`: by how much the times of batches are moved; None: not at
    all."""

    def __init__(self, shift_ms: int | None = None) -> None:
        self._shift_ms = shift_ms
        self._given: dict[Producer, Producer] = {}
        self._transactions: dict[str, Producer] = {}
        self._initialised: set[Producer] = set()
        self._refused: dict[Producer, int] = {}
        self._next_sequence: dict[tuple[Producer, str, int], int] = {}
        self._sequence_delta: dict[tuple[Producer, Producer, str, int], int] = {}

    def given(self, captured: Producer) -> Producer | None:
        """The target's producer; None if it is not known yet."""
        return self._given.get(captured)

    def refused(self, captured: Producer) -> int | None:
        """The error with which the target refused to give a producer id; None if it did not."""
        return self._refused.get(captured)

    def of_transaction(self, transactional_id: str) -> Producer | None:
        """The target's producer of a transactional id."""
        return self._transactions.get(transactional_id)

    def items(self) -> Iterator[tuple[Producer, Producer]]:
        """Give (captured, replayed) of all producers."""
        yield from self._given.items()

    def give(self, captured: Producer, transactional_id: str | None, given: Producer) -> None:
        """Note a producer id that the replayer requested itself: its sequences start at 0."""
        self._given[captured] = given
        self._initialised.add(captured)
        if transactional_id:
            self._transactions[transactional_id] = given

    def refuse(self, captured: Producer, error: int) -> None:
        """Note that the target gives no producer id for this one."""
        self._refused[captured] = error

    def unknown(self, api_key: int, body: Body) -> list[tuple[Producer, str | None]]:
        """The (producer, transactional id) that a captured request uses and no answer has brought."""
        if api_key == api_keys.PRODUCE:
            return [
                (producer, body.get("transactionalId") if batch.transactional else None)
                for topic in body["topicData"]
                for partition in topic["partitionData"]
                for batch in batches.produced(partition["records"])
                if (producer := Producer(batch.producer_id, batch.producer_epoch)) not in self._given
                and batch.producer_id >= 0
            ]
        if api_key == api_keys.INIT_PRODUCER_ID:
            return []
        used = _transaction(api_key, body)
        return [] if used is None or used[0].id < 0 or used[0] in self._given else [used]

    def sequence(self, captured: Producer, given: Producer, topic: str, partition: int, batch: Header) -> int:
        """The base sequence to send: the captured one, moved to where this producer is on the target."""
        if batch.base_sequence < 0:
            return batch.base_sequence
        moved = captured, given, topic, partition
        here = given, topic, partition
        if moved not in self._sequence_delta:
            # The first batch of an epoch: where the target's epoch already wrote, it goes on from there.
            if here in self._next_sequence:
                start = self._next_sequence[here]
            else:
                start = 0 if captured in self._initialised else batch.base_sequence
            self._sequence_delta[moved] = start - batch.base_sequence
        sequence = (batch.base_sequence + self._sequence_delta[moved]) % _SEQUENCES
        self._next_sequence[here] = (sequence + batch.last_offset_delta + 1) % _SEQUENCES
        return sequence

    # --- as a family ---

    def write(self, step: Step, body: Body) -> None:
        if step.request.api_key == api_keys.PRODUCE:
            self._produce(body)
            return
        used = _transaction(step.request.api_key, body)
        given = self._given.get(used[0]) if used is not None else None
        if used is None or (given is None and step.request.api_key != api_keys.INIT_PRODUCER_ID):
            return
        _, id_field, epoch_field = _FIELDS[step.request.api_key]
        body[id_field], body[epoch_field] = given or _NO_PRODUCER

    def learn(self, step: Step, sent: Body, captured: Body | None, replayed: Body) -> None:
        if step.request.api_key not in (api_keys.INIT_PRODUCER_ID, api_keys.END_TXN):
            return
        if captured is None or captured["errorCode"]:
            return
        if replayed["errorCode"]:
            if step.request.api_key == api_keys.INIT_PRODUCER_ID:
                self.refuse(_producer(captured), replayed["errorCode"])
            return
        if step.request.api_key == api_keys.INIT_PRODUCER_ID:
            given = _producer(replayed)
            self._given[_producer(captured)] = given
            self._refused.pop(_producer(captured), None)
            if sent.get("transactionalId"):
                self._transactions[sent["transactionalId"]] = given
        else:
            # EndTxn v5 and newer bumps the epoch (KIP-890); a target without it keeps the old one.
            given = _producer(replayed if replayed.get("producerId", -1) >= 0 else sent)
            if captured.get("producerId", -1) >= 0:
                self._given[_producer(captured)] = given
            self._transactions[sent["transactionalId"]] = given

    def again(self, step: Step, body: Body, rule: str, captured: Body | None, replayed: Body | None) -> None:
        """Do nothing: the batches stay the same, so that the target recognises them."""

    def _produce(self, body: Body) -> None:
        for topic in body["topicData"]:
            for partition in topic["partitionData"]:
                records = partition["records"]
                changed: bytearray | None = None
                for batch in batches.produced(records):
                    if self._shift_ms is not None:
                        changed = changed if changed is not None else bytearray(records)
                        batches.shift_times(changed, batch.at, batch.size, self._shift_ms)
                    captured = Producer(batch.producer_id, batch.producer_epoch)
                    given = self._given.get(captured)
                    if given is None:
                        continue
                    sequence = self.sequence(captured, given, topic.get(NAME, ""), partition["index"], batch)
                    changed = changed if changed is not None else bytearray(records)
                    batches.set_producer(changed, batch.at, batch.size, given.id, given.epoch, sequence)
                if changed is not None:
                    partition["records"] = bytes(changed)


def _producer(body: Body) -> Producer:
    return Producer(body["producerId"], body["producerEpoch"])


def _transaction(api_key: int, body: Body) -> tuple[Producer, str] | None:
    """Producer and transactional id of a transaction request; None for others."""
    if api_key not in _FIELDS:
        return None
    name, producer_id, epoch = _FIELDS[api_key]
    if producer_id not in body:
        return None
    return Producer(body[producer_id], body[epoch]), body[name] or ""
