"""What was said of transactional ids, as it waits to be told to their producers: bytes, not objects (`said_rows`).

In: what one message said after the other. Out: the same, id by id. Rule: as an object it takes two thirds of a
kilobyte, here a third of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzer.analysis.producers import Asked, Partition
from analyzer.analysis.said_rows import SaidRows
from captures.kernels import NULL


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of a transactional id in a message that was read whole; of AddPartitionsToTxn the `partitions`
    that were added, and whether a broker did that `on_behalf` of a producer, of EndTxn whether `committed`, and what
    the answer gives."""

    api: int
    transactional_id: str
    event: Asked
    partitions: tuple[Partition, ...] = ()
    asked_id: int = -1
    committed: bool = False
    given: tuple[int | None, int | None] = (None, None)
    timeout_ms: int | None = None
    on_behalf: bool = False


_PACKET, _BORN, _ID, _PRODUCER, _WIDTH = range(5)
_VALUES: Final = 17
"""What is said beside a row (`SaidLog.put`)."""


@dataclass(slots=True)
class SaidLog:
    """In the order in which it came."""

    _packed: SaidRows = field(default_factory=lambda: SaidRows(_WIDTH, _ID))

    def __len__(self) -> int:
        return len(self._packed)

    def put(self, one: Said) -> None:
        """One more."""
        event = one.event
        said = [
            one.api,
            one.committed,
            one.partitions,
            one.asked_id,
            one.given,
            one.timeout_ms,
            one.on_behalf,
            event.place,
            event.key,
            event.client,
            event.ip,
            event.asked,
            event.done,
            event.error,
            event.producer_id,
            event.epoch,
            event.holes,
        ]
        producer_id = NULL if event.producer_id is None else event.producer_id
        self._packed.put((*event.order, self._packed.number(one.transactional_id), producer_id), said)

    @property
    def ids(self) -> list[str]:
        """Transactional ids by number, in order of what was said first of them."""
        return self._packed.names

    def join(self, other: SaidLog) -> None:
        """Take in what another has, after this."""
        self._packed.join(other._packed)

    @property
    def packets(self) -> np.ndarray:
        """int64[n]: the first packet of each request."""
        return self._packed.rows[:, _PACKET]

    def some(self, which: np.ndarray) -> SaidLog:
        """Those that a mask lets through."""
        return SaidLog(_packed=self._packed.some(np.flatnonzero(which)))

    @property
    def producers(self) -> dict[int, str]:
        """Producer ids, each with the transactional id that it was said with."""
        pairs = self._packed.rows[:, [_PRODUCER, _ID]]
        found = np.unique(pairs[pairs[:, 0] != NULL], axis=0).tolist()
        return {producer_id: self.ids[number] for producer_id, number in found}

    def packets_of(self) -> Callable[[str], np.ndarray]:
        """To be asked for the first packets of the requests of an id, in order."""
        rows = self._packed.rows
        order = np.lexsort((rows[:, _PACKET], rows[:, _ID]))
        packets, bounds = rows[order, _PACKET], self._bounds(order)

        def of(transactional_id: str) -> np.ndarray:
            number = self._packed.known(transactional_id)
            found: np.ndarray = packets[:0] if number is None else packets[bounds[number] : bounds[number + 1]]
            return found

        return of

    def _bounds(self, order: np.ndarray) -> np.ndarray:
        """Where each id begins among rows that are ordered by id."""
        found: np.ndarray = np.searchsorted(self._packed.rows[order, _ID], np.arange(len(self.ids) + 1))
        return found

    def by_id(self) -> Iterator[tuple[str, list[Said]]]:
        """(transactional id, what was said of it), each as it came."""
        order = np.argsort(self._packed.rows[:, _ID], kind="stable")
        bounds = self._bounds(order).tolist()
        for number, one in enumerate(self.ids):
            yield one, [self._one(place, one) for place in order[bounds[number] : bounds[number + 1]].tolist()]

    def _one(self, place: int, transactional_id: str) -> Said:
        packet, born, *_ = self._packed.rows[place].tolist()
        said = self._packed.said(place, _VALUES)
        api, committed, partitions, asked_id, given, timeout_ms, on_behalf, at, key, *event = said
        asked = Asked(tuple(at), (packet, born), tuple(key), *event)
        added = tuple((topic, partition) for topic, partition in partitions)
        return Said(api, transactional_id, asked, added, asked_id, committed, tuple(given), timeout_ms, on_behalf)
