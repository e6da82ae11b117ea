"""What became of the transactions of one transactional id, told event by event.

In: what the producers of that id asked and were answered, in order. Out: `Transaction`s. Pure. Rules (KIP-98, KIP-360,
KIP-890)
- A transaction begins with the first request that adds something to it, one that was refused for the moment included,
  and ends with the answer to EndTxn; InitProducerId ends what is open, and fences who had it.
- An error that says that somebody else has the id now (`FENCED`) ends the transaction of whoever got it, never that of
  the one who took over.
- What the capture did not see is not made up: `began` or `ended` is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from analyzer.protocol import errors

FENCED: Final = frozenset((errors.INVALID_PRODUCER_EPOCH, errors.PRODUCER_FENCED))
COMMITTED, ABORTED, TAKEN_OVER, OPEN, UNKNOWN = "committed", "aborted", "fenced", "open", "unknown"

Place = tuple[int, int]
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about a transactional id, and its answer.

    place     which packet completed the exchange, and the age of its connection
    order     the same of its first packet: the order in which requests were made
    key       connection, exchange, reply
    asked     first byte of the request, done: last of the answer (microseconds), None where not seen
    error     code of the answer, 0 on success; None without an answer
    """

    place: Place
    order: Place
    key: tuple[str, int | None, int | None]
    client: str | None
    ip: str
    asked: int | None
    done: int | None
    error: int | None
    producer_id: int | None = None
    epoch: int | None = None

    @property
    def who(self) -> tuple[str | None, str]:
        return self.client, self.ip

    @property
    def label(self) -> str:
        """`client_id@client_ip`."""
        return f"{self.client or ''}@{self.ip}"


@dataclass(slots=True)
class Transaction:
    """One transaction, as a row of `transactions` wants it."""

    transactional_id: str | None
    producer_id: int | None
    epoch: int | None
    who: tuple[str | None, str]
    began: int | None
    place: Place
    key: tuple[str, int | None, int | None]
    ended: int | None = None
    outcome: str = OPEN
    partitions: dict[Partition, None] = field(default_factory=dict)
    records: int | None = 0
    offsets: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    fenced_by: str | None = None
    ending: bool = False
    timeout_ms: int | None = None
    going_on: bool = True

    def seen(self, event: Asked) -> None:
        """Another exchange of it."""
        self.place, self.key = event.place, event.key
        if event.producer_id is not None:
            self.producer_id = event.producer_id
        if event.epoch is not None:
            self.epoch = event.epoch

    def close(self, event: Asked, outcome: str, fenced_by: str | None = None) -> None:
        """It ended with the answer of `event`."""
        self.place, self.key = event.place, event.key
        self.ended, self.outcome, self.fenced_by = event.done, outcome, fenced_by


class Producer:
    """Those who use one transactional id, one after the other. `transactions`: what they did, in order, and is over;
    `heard`: the order of what was told last."""

    __slots__ = (
        "_current", "_fenced", "_given", "_known", "_last", "_owner", "_takeovers", "_timeout_ms", "_tried", "heard",
        "transactional_id", "transactions",
    )  # fmt: skip

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transactions: list[Transaction] = []
        self._current: Transaction | None = None
        self._tried: int | None = None  # the first request of a transaction, where it was refused for the moment
        self._owner: Asked | None = None  # InitProducerId of who has the id
        self._takeovers = 0
        self._known = False
        self._given: tuple[int | None, int | None] = (None, None)  # producer id and epoch for what comes
        self._timeout_ms: int | None = None
        # Most have nothing of it, and an empty set takes 200 bytes.
        self._fenced: set[tuple[str | None, str, int | None]] | None = None
        self._last: Transaction | None = None  # of those that were handed out
        self.heard: Place = (0, 0)

    @property
    def known(self) -> list[Transaction]:
        """What it did, in order: the last that was handed out, those that are over, the open one."""
        last, current = ([] if one is None else [one] for one in (self._last, self._current))
        return [*last, *self.transactions, *current]

    def over(self) -> list[Transaction]:
        """Those that are over, each once."""
        found, self.transactions = self.transactions, []
        self._last = found[-1] if found else self._last
        return found

    def took(self, event: Asked, asked_id: int, timeout_ms: int | None = None) -> None:
        """InitProducerId; `asked_id`: the producer id that the request says, -1 of a new producer (KIP-360);
        `timeout_ms`: of its transactions."""
        if event.error not in (0, errors.CONCURRENT_TRANSACTIONS):
            return
        if self._current is not None and asked_id == -1:
            self._close(event, UNKNOWN if self._current.ending else TAKEN_OVER)
        elif self._current is not None and event.error == 0:
            self._close(event, UNKNOWN if self._current.ending else ABORTED)
        if event.error == 0:
            self._owner = event
            self._timeout_ms = timeout_ms
            self._takeovers += asked_id == -1
            self._given = event.producer_id, event.epoch
            self._tried, self._known = None, True

    def added(self, event: Asked, partitions: Iterable[Partition]) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: what was added."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error == 0:
            self._at(event).partitions.update(dict.fromkeys(partitions))
        elif self._current is None and self._tried is None:
            self._tried = event.asked

    def wrote(self, event: Asked, partition: Partition, records: int | None) -> None:
        """Produce: one topic-partition of it."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error in (0, None):
            transaction = self._at(event)
            transaction.partitions.setdefault(partition)
            unknown = records is None or transaction.records is None or event.error is None
            transaction.records = None if unknown else (transaction.records or 0) + (records or 0)

    def committed_offset(self, event: Asked, place: tuple[str, str, int], offset: int | None) -> None:
        """TxnOffsetCommit: one topic-partition of it, `place` with the group before."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error == 0:
            self._at(event).offsets[place] = offset

    def ended(self, event: Asked, committed: bool, given: tuple[int | None, int | None]) -> None:
        """EndTxn; `given`: producer id and epoch of the next transaction, where the answer says them (KIP-890)."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error is None and self._current is not None:
            self._current.seen(event)
            self._current.ending = True
        elif event.error == 0:
            if self._current is None:  # without anything in it, or begun before the capture
                self._current = self._new(event, event.asked if self._known else None)
                self._current.records = 0 if self._known else None
            self._current.seen(event)
            self._close(event, COMMITTED if committed else ABORTED)
            if given[0] is not None:
                self._given = given
        self._known = True

    def finish(self) -> None:
        """The capture is over."""
        if self._current is not None:
            self._current.outcome = UNKNOWN if self._current.ending else OPEN
            self._put(self._current)
            self._current = None

    def _put(self, transaction: Transaction) -> None:
        """It is over, or all there is of it."""
        transaction.going_on = False
        self.transactions.append(transaction)

    def _new(self, event: Asked, began: int | None) -> Transaction:
        made = Transaction(self.transactional_id, *self._given, event.who, began, event.place, event.key)
        made.timeout_ms = self._timeout_ms
        return made

    def _at(self, event: Asked) -> Transaction:
        """The transaction that an event is part of; a new one where none is open."""
        if self._current is not None and self._current.ending:
            self._current.outcome = UNKNOWN
            self._put(self._current)
            self._current = None
        if self._current is None:
            self._current = self._new(event, self._tried if self._tried is not None else event.asked)
            self._tried, self._known = None, True
        self._current.seen(event)
        return self._current

    def _close(self, event: Asked, outcome: str) -> None:
        assert self._current is not None
        if outcome == UNKNOWN:
            self._current.outcome = outcome
        else:
            self._current.close(event, outcome, event.label if outcome == TAKEN_OVER else None)
        if outcome == TAKEN_OVER:
            self._fence((*self._current.who, self._current.epoch))
        self._put(self._current)
        self._current = None

    def _refused(self, event: Asked) -> None:
        """Somebody was told that the id is another's now. Who has it knows its own epoch; so what is refused with that
        of the open transaction is the open one's."""
        epoch = event.epoch if event.epoch is not None else None
        mine = self._current is not None and self._current.who == event.who
        if mine and self._current is not None and epoch is not None and self._current.epoch is not None:
            mine = epoch >= self._current.epoch
        by = self._owner.label if self._owner is not None else None
        if self._owner is not None and self._owner.who == event.who and self._takeovers < 2:
            by = None  # nobody came: the coordinator gave up on it (transaction.timeout.ms)
        victim = (*event.who, epoch)
        if mine and self._current is not None:
            self._current.close(event, TAKEN_OVER, by)
            self._put(self._current)
            self._current = None
        elif not self._known_victim(victim):
            stale = self._new(event, self._tried if self._tried is not None else event.asked)
            stale.producer_id, stale.epoch = event.producer_id, epoch
            stale.close(event, TAKEN_OVER, by)
            self._put(stale)
            self._tried = None
        self._fence(victim)

    def _fence(self, victim: tuple[str | None, str, int | None]) -> None:
        if self._fenced is None:
            self._fenced = set()
        self._fenced.add(victim)

    def _known_victim(self, victim: tuple[str | None, str, int | None]) -> bool:
        """Whether it was told before; Produce does not say which epoch it has."""
        client, ip, epoch = victim
        return any(
            (client, ip) == one[:2] and (epoch is None or one[2] is None or epoch == one[2])
            for one in self._fenced or ()
        )
