"""Messages about transactional ids as they wait for their producers: bytes, not objects (`kwire.analyzer.frame.log`).

In: messages, one after the other. Out: the same, id by id. Rule: as an object a message takes two thirds of a kilobyte,
here a third of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.analysis.producers import Partition, ProducerEvent
from kwire.analyzer.frame.log import Columns, Log
from kwire.captures.kernels import NULL


class TransactionMessage(NamedTuple):
    """A message about a transactional id that was decoded whole.

    partitions      AddPartitionsToTxn: those that were added; on_behalf: by a broker, for a producer
    requested_id    the producer id that the request names
    committed       EndTxn: the outcome that the producer asks for
    given           producer id and epoch in the answer
    """

    api: int
    transactional_id: str
    event: ProducerEvent
    partitions: tuple[Partition, ...] = ()
    requested_id: int = -1
    committed: bool = False
    given: tuple[int | None, int | None] = (None, None)
    timeout_ms: int | None = None
    on_behalf: bool = False


_COLUMNS: Final = ("packet", "serial", "id", "producer")
# fmt: off
_BESIDE: Final = (
    "api", "committed", "partitions", "requested_id", "given", "timeout_ms", "on_behalf", "event.place", "event.key",
    "event.client", "event.ip", "event.sent", "event.done", "event.error", "event.producer_id", "event.epoch",
    "event.holes",
)
# fmt: on
"""Values beside a row."""
_values_of = attrgetter(*_BESIDE)


@dataclass(slots=True)
class TransactionLog:
    """Messages in the order in which they were appended."""

    _log: Log = field(default_factory=lambda: Log(_COLUMNS, ("id",)))

    def __len__(self) -> int:
        return len(self._log)

    def append(self, message: TransactionMessage) -> None:
        event = message.event
        producer_id = NULL if event.producer_id is None else event.producer_id
        row = (*event.order, self._log.number(message.transactional_id), producer_id)
        self._log.append_row(row, list(_values_of(message)))

    def join(self, other: TransactionLog) -> None:
        """Append the messages of another log."""
        self._log.join(other._log)

    @property
    def packets(self) -> np.ndarray:
        """int64[n]: the first packet of each request."""
        return self._log.read()["packet"]

    def take(self, which: np.ndarray) -> TransactionLog:
        """Return a log of the messages that a mask selects."""
        return TransactionLog(self._log.take(which))

    @property
    def producers(self) -> dict[int, str]:
        """The transactional id of each producer id."""
        rows = self._log.read()
        pairs = np.stack([rows["producer"], rows["id"]], axis=1)
        known = np.unique(pairs[pairs[:, 0] != NULL], axis=0).tolist()
        return {producer_id: self._log.strings[number] for producer_id, number in known}

    def packets_of(self) -> Callable[[str], np.ndarray]:
        """Return a function that gives the first packets of the requests of a transactional id, in order."""
        rows = self._log.read()
        order = np.lexsort((rows["packet"], rows["id"]))
        packets, bounds = rows["packet"][order], self._bounds(rows, order)

        def of(transactional_id: str) -> np.ndarray:
            number = self._log.known(transactional_id)
            own: np.ndarray = packets[:0] if number is None else packets[bounds[number] : bounds[number + 1]]
            return own

        return of

    def _bounds(self, rows: Columns, order: np.ndarray) -> np.ndarray:
        """Return where each id begins among rows in order of their id."""
        bounds: np.ndarray = np.searchsorted(rows["id"][order], np.arange(len(self._log.strings) + 1))
        return bounds

    def by_id(self) -> Iterator[tuple[str, list[TransactionMessage]]]:
        """Yield (transactional id, its messages as they came), ids in order of their first message."""
        rows = self._log.read()
        order = np.argsort(rows["id"], kind="stable")
        bounds = self._bounds(rows, order)
        for number in np.argsort(order[bounds[:-1]]).tolist():
            transactional_id = self._log.strings[number]
            positions = order[bounds[number] : bounds[number + 1]].tolist()
            yield transactional_id, [self._message(rows, position, transactional_id) for position in positions]

    def _message(self, rows: Columns, position: int, transactional_id: str) -> TransactionMessage:
        values = self._log.values(position, len(_BESIDE))
        api, committed, partitions, requested_id, given, timeout_ms, on_behalf, place, key, *rest = values
        order = int(rows["packet"][position]), int(rows["serial"][position])
        event = ProducerEvent(tuple(place), order, tuple(key), *rest)
        added = tuple((topic, partition) for topic, partition in partitions)
        return TransactionMessage(
            api, transactional_id, event, added, requested_id, committed, tuple(given), timeout_ms, on_behalf
        )
