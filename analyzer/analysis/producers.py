"""Transactions of one transactional id, event by event.

In: requests of the producers of that id with their responses, in order. Out: `Transaction`s. Rules (KIP-98, KIP-360,
KIP-890)
- A transaction begins with the first request that adds something to it, also if that was refused with a retriable
  error, and ends with the response to EndTxn; InitProducerId ends an open transaction, and fences its producer.
- A request refused with a retriable error adds nothing: markers that were requested before anything was added belong to
  the transaction before.
- An end that was not captured, but must have happened (`Producer._after`), or may have happened in a gap of the
  connection, ends the transaction: with the outcome of its marker, else with an unknown one.
- An error that reports another producer with the same id (`FENCED`) ends the transaction of the producer that got it,
  never that of the producer that took over.
- Nothing is made up: `began` or `ended` is None if it was not captured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kwire.analyzer.protocol import errors

FENCED: Final = frozenset((errors.INVALID_PRODUCER_EPOCH, errors.PRODUCER_FENCED))
COMMITTED, ABORTED, TAKEN_OVER, OPEN, UNKNOWN = "committed", "aborted", "fenced", "open", "unknown"

OFFSETS_TOPIC: Final = "__consumer_offsets"

_EARLIER: Final = 100
"""Earlier owners of a transactional id whose timeout is remembered."""

Place = tuple[int, int]
Partition = tuple[str, int]


class ProducerEvent(NamedTuple):
    """A request about a transactional id, and its response.

    place     which packet completed the exchange, and the age of its connection
    order     the same of its first packet: the order in which requests were sent
    key       connection, exchange, reply
    sent      first byte of the request; done: last byte of the response (microseconds); None if not captured
    error     code of the response, 0 on success; None without a response
    holes     how often requests may have been lost before it on its connection
    """

    place: Place
    order: Place
    key: tuple[str, int | None, int | None]
    client: str | None
    ip: str
    sent: int | None
    done: int | None
    error: int | None
    producer_id: int | None = None
    epoch: int | None = None
    holes: int = 0

    @property
    def who(self) -> tuple[str | None, str]:
        return self.client, self.ip

    @property
    def label(self) -> str:
        """`client_id@client_ip`."""
        return f"{self.client or ''}@{self.ip}"


@dataclass(slots=True)
class Transaction:
    """One transaction, with the columns of `transactions`.

    partitions  each with the connection on which its client added it, None if it was only written to
    since       the packet with the first response that added something to it
    marked      the first marker of its end, and the outcome in it
    """

    transactional_id: str | None
    producer_id: int | None
    epoch: int | None
    who: tuple[str | None, str]
    began: int | None
    place: Place
    key: tuple[str, int | None, int | None]
    ended: int | None = None
    outcome: str = OPEN
    partitions: dict[Partition, str | None] = field(default_factory=dict)
    records: int | None = 0
    offsets: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    fenced_by: str | None = None
    ending: bool = False
    timeout_ms: int | None = None
    since: int | None = None
    marked: tuple[ProducerEvent, str] | None = None

    def seen(self, event: ProducerEvent) -> None:
        """Another exchange of it."""
        self.place, self.key = event.place, event.key
        if event.producer_id is not None:
            self.producer_id = event.producer_id
        if event.epoch is not None:
            self.epoch = event.epoch

    def before(self, event: ProducerEvent) -> bool:
        """Something had become part of it when that was asked."""
        return self.since is not None and self.since < event.order[0]

    def holds(self, partitions: Iterable[Partition]) -> bool:
        """Return whether one of these partitions is part of it; the topic of group offsets always may be."""
        return any(partition in self.partitions or partition[0] == OFFSETS_TOPIC for partition in partitions)

    def close(self, event: ProducerEvent, outcome: str, fenced_by: str | None = None) -> None:
        """It ended with the answer of `event`."""
        self.place, self.key = event.place, event.key
        self.ended, self.outcome, self.fenced_by = event.done, outcome, fenced_by


class Producer:
    """The producers of one transactional id, one after the other.

    transactions   those that have ended and were not handed out, in order
    latest         the order of the last event
    """

    __slots__ = (
        "_counts",
        "_current",
        "_earlier_timeouts",
        "_fenced",
        "_given",
        "_known",
        "_last",
        "_line",
        "_owner",
        "_takeovers",
        "_timeout_ms",
        "_tried",
        "latest",
        "transactional_id",
        "transactions",
    )

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.transactions: list[Transaction] = []
        self._current: Transaction | None = None
        self._tried: int | None = None  # the first request of a transaction, where it was refused for the moment
        self._owner: ProducerEvent | None = None  # InitProducerId of the current producer
        self._takeovers = 0
        self._known = False
        self._given: tuple[int | None, int | None] = (None, None)  # producer id and epoch for what comes
        self._timeout_ms: int | None = None  # of the current producer's transactions
        # Of producers that it took over from, which may still write; most took over from none.
        self._earlier_timeouts: dict[tuple[str | None, str], int | None] | None = None
        self._line: tuple[str, int] | None = None  # where it last spoke to its coordinator, and the holes there
        self._counts = False  # each transaction has an epoch of its own (KIP-890)
        # Most have nothing of it, and an empty set takes 200 bytes.
        self._fenced: set[tuple[str | None, str, int | None]] | None = None
        self._last: Transaction | None = None  # of those that were handed out
        self.latest: Place = (0, 0)

    @property
    def known(self) -> list[Transaction]:
        """Transactions in order: the last that was handed out, those that have ended, the open one."""
        last, current = ([] if transaction is None else [transaction] for transaction in (self._last, self._current))
        return [*last, *self.transactions, *current]

    def over(self) -> list[Transaction]:
        """Hand out the transactions that have ended, each once."""
        ended, self.transactions = self.transactions, []
        self._last = ended[-1] if ended else self._last
        return ended

    def took(self, event: ProducerEvent, requested_id: int, timeout_ms: int | None = None) -> None:
        """Apply InitProducerId.

        requested_id   the producer id in the request, -1 of a new producer (KIP-360)
        timeout_ms     of its transactions
        """
        if event.error not in (0, errors.CONCURRENT_TRANSACTIONS):
            return
        self._after(event, is_new_epoch=True)
        if self._current is not None and (self._current.ending or self._current.marked):
            self._leave()
        elif self._current is not None and requested_id == -1:
            self._close(event, TAKEN_OVER)
        elif self._current is not None and event.error == 0:
            self._close(event, ABORTED)
        if event.error == 0:
            if self._owner is not None and self._owner.who != event.who:
                self._earlier_timeouts = self._earlier_timeouts or {}
                self._earlier_timeouts[self._owner.who] = self._timeout_ms
                if len(self._earlier_timeouts) > _EARLIER:
                    self._earlier_timeouts.pop(next(iter(self._earlier_timeouts)))
            self._owner = event
            self._timeout_ms = timeout_ms
            self._takeovers += requested_id == -1
            self._given, self._counts = (event.producer_id, event.epoch), False
            self._tried, self._known = None, True

    def added(self, event: ProducerEvent, partitions: Iterable[Partition], on_behalf: bool = False) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: what was added; `on_behalf`: by a broker, which may do so twice."""
        missed = not on_behalf and self._after(event)
        if event.error in FENCED:
            self._refused(event)
        elif event.error == 0:
            added = dict.fromkeys(partitions, None if on_behalf else event.key[0])
            if self._current is not None and not on_behalf and added.items() & self._current.partitions.items():
                self._leave()  # no client adds what it has added
            self._at(event, missed).partitions.update(added)
        else:
            if event.error == errors.CONCURRENT_TRANSACTIONS and not on_behalf and self._is_mine(event):
                self._leave()  # refused because that one ends
            if self._current is None and self._tried is None:
                self._tried = event.sent

    def wrote(self, event: ProducerEvent, partition: Partition, records: int | None) -> None:
        """Produce: one topic-partition of it."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error in (0, None):
            transaction = self._at(event)
            transaction.partitions.setdefault(partition)
            unknown = records is None or transaction.records is None or event.error is None
            transaction.records = None if unknown else (transaction.records or 0) + (records or 0)

    def committed_offset(self, event: ProducerEvent, place: tuple[str, str, int], offset: int | None) -> None:
        """TxnOffsetCommit: one topic-partition of it, `place` with the group before."""
        if event.error in FENCED:
            self._refused(event)
        elif event.error == 0:
            self._at(event).offsets[place] = offset

    def ended(self, event: ProducerEvent, committed: bool, given: tuple[int | None, int | None]) -> None:
        """End a transaction. `given`: producer id and epoch of the next one, if the response has them (KIP-890)."""
        outcome = COMMITTED if committed else ABORTED
        goes_on = self._line is not None and self._line[0] == event.key[0]
        missed = self._after(event)
        marked = self._current.marked if self._current is not None else None
        if event.error == 0 and marked is not None and marked[1] != outcome:
            self._leave()
            missed = True
        if event.error in FENCED:
            self._refused(event)
        elif event.error is None and self._current is not None:
            self._current.seen(event)
            self._current.ending = True
            if self._counts:
                self._given = (event.producer_id, None)
        elif event.error == 0:
            if self._current is None:  # without anything in it, or begun before the capture, or not heard
                known = self._known and not missed and goes_on
                self._current = self._new(event, event.sent if known else None)
                self._current.records = 0 if known else None
            self._current.seen(event)
            self._close(event, outcome)
            if given[0] is not None:
                self._given, self._counts = given, True
        self._known = True

    def marked(self, event: ProducerEvent, committed: bool, partitions: Iterable[Partition], noticed: int) -> None:
        """Apply a marker of a transaction's end for some partitions.

        It ends the open transaction if some of the partitions were part of that before the marker's request; else the
        one before, if only its EndTxn was captured. `noticed`: the packet that shows that earlier markers may be lost,
        -1: none.
        """
        outcome, current = COMMITTED if committed else ABORTED, self._current
        if current is not None and current.holds(partitions) and (current.ending or current.before(event)):
            sure = noticed < 0 or (current.since is not None and noticed < current.since)
            if current.marked is None:
                current.marked = event, outcome if sure else UNKNOWN
            elif current.marked[1] != outcome:
                current.marked = event, UNKNOWN  # these are two
        elif self.transactions and self.transactions[-1].ending and self.transactions[-1].outcome == UNKNOWN:
            if noticed < 0:
                self.transactions[-1].close(event, outcome)

    def finish(self) -> None:
        """The capture is over."""
        if self._current is not None and (self._current.ending or self._current.marked):
            self._leave()
        elif self._current is not None:
            self.transactions.append(self._current)
            self._current = None

    def _after(self, event: ProducerEvent, is_new_epoch: bool = False) -> bool:
        """Before a request to the coordinator: close the open transaction if its end was lost since the last one.

        Returns whether the transaction of `event` may have begun in what was lost. `is_new_epoch`: the request begins
        an epoch.
        """
        line, self._line = self._line, (event.key[0], event.holes)
        missed = line is not None and line[0] == event.key[0] and line[1] < event.holes
        current = self._current
        if (
            current is not None
            and not is_new_epoch
            and current.producer_id == event.producer_id
            and event.error not in FENCED
        ):
            own_epoch, event_epoch = current.epoch, event.epoch
            if own_epoch is not None and event_epoch is not None:
                # If each transaction has an epoch, an equal epoch proves that nothing was missed.
                missed = event_epoch > own_epoch or (missed and not (self._counts and event_epoch == own_epoch))
        if missed:
            self._tried = None
            if current is not None:
                self._leave()
        return missed

    def _is_mine(self, event: ProducerEvent) -> bool:
        """Something had become part of what is open, for the same client, before that was asked."""
        return self._current is not None and self._current.who == event.who and self._current.before(event)

    def _leave(self) -> None:
        """End the open transaction, with the outcome of its markers, else an unknown one."""
        assert self._current is not None
        self._current.outcome = UNKNOWN
        if self._current.marked is not None and self._current.marked[1] != UNKNOWN:
            self._current.close(*self._current.marked)
        self.transactions.append(self._current)
        self._current = None

    def _new(self, event: ProducerEvent, began: int | None) -> Transaction:
        transaction = Transaction(self.transactional_id, *self._given, event.who, began, event.place, event.key)
        transaction.timeout_ms = self._timeout_ms
        return transaction

    def _at(self, event: ProducerEvent, missed: bool = False) -> Transaction:
        """Return the transaction of an event; a new one if none is open. `missed`: result of `_after`."""
        if self._current is not None and (self._current.ending or self._current.marked):
            self._leave()
        if self._current is None:
            began = self._tried if self._tried is not None else None if missed else event.sent
            self._current = self._new(event, began)
            self._tried, self._known = None, True
        self._current.seen(event)
        if event.error == 0 and (self._current.since is None or event.place[0] < self._current.since):
            self._current.since = event.place[0]
        return self._current

    def _close(self, event: ProducerEvent, outcome: str) -> None:
        assert self._current is not None
        self._current.close(event, outcome, event.label if outcome == TAKEN_OVER else None)
        if outcome == TAKEN_OVER:
            self._fence((*self._current.who, self._current.epoch))
        self.transactions.append(self._current)
        self._current = None

    def _refused(self, event: ProducerEvent) -> None:
        """Apply an error that reports another producer with the id.

        The current producer knows its own epoch; so a refused request with the open transaction's epoch is that one's.
        """
        epoch = event.epoch if event.epoch is not None else None
        is_own = self._current is not None and self._current.who == event.who
        if is_own and self._current is not None and epoch is not None and self._current.epoch is not None:
            is_own = epoch >= self._current.epoch
        by = self._owner.label if self._owner is not None else None
        if self._owner is not None and self._owner.who == event.who and self._takeovers < 2:
            by = None  # no other producer: the coordinator aborted it (transaction.timeout.ms)
        victim = (*event.who, epoch)
        if is_own and self._current is not None:
            # Aborted by the coordinator: it ended with the markers, not when its producer learned of it.
            if self._current.marked is not None and (self._current.marked[1] != ABORTED or by is None):
                self._leave()
            else:
                self._current.close(event, TAKEN_OVER, by)
                self.transactions.append(self._current)
                self._current = None
        elif not self._known_victim(victim):
            stale = self._new(event, self._tried if self._tried is not None else event.sent)
            stale.producer_id, stale.epoch = event.producer_id, epoch
            if self._owner is not None and self._owner.who != event.who:
                stale.timeout_ms = (self._earlier_timeouts or {}).get(event.who)
            stale.close(event, TAKEN_OVER, by)
            self.transactions.append(stale)
            self._tried = None
        self._fence(victim)

    def _fence(self, victim: tuple[str | None, str, int | None]) -> None:
        if self._fenced is None:
            self._fenced = set()
        self._fenced.add(victim)

    def _known_victim(self, victim: tuple[str | None, str, int | None]) -> bool:
        """Return whether a producer was fenced before; Produce has no epoch."""
        client, ip, epoch = victim
        return any(
            (client, ip) == fenced[:2] and (epoch is None or fenced[2] is None or epoch == fenced[2])
            for fenced in self._fenced or ()
        )
