"""Transactions: rows of the table of that name.

In: windows; of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and WriteTxnMarkers the bodies; Produce and
TxnOffsetCommit by columns. Out: a row for each transaction. Rules
- A producer uses different connections to its coordinator and to the leaders, so the order of events is that of their
  requests in the capture, and `tables` works it out when all are there (`producers`).
- Since KIP-890 a producer adds no partitions by itself: the first Produce or TxnOffsetCommit does.
- Markers (WriteTxnMarkers) decide what the producer's own exchanges leave open, in their place among these, and are all
  there is of a producer whose connection was not captured: its rows have a producer id only.
- With rotation, transactions that have ended become rows; open ones go on, with the state of their transactional id (of
  `MOST_PRODUCERS`: open transactions of others become rows as open). Requests after one that still waits for its
  response wait too, so the order is that of one pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName
from kwire.analyzer.analysis.control_exchanges import NEVER, Border, ControlExchange
from kwire.analyzer.analysis.event_columns import EVENT_COLUMNS, EVENT_ORDER, event_columns
from kwire.analyzer.analysis.producers import ABORTED, COMMITTED, Partition, Place, Producer, ProducerEvent, Transaction
from kwire.analyzer.analysis.transaction_log import TransactionLog, TransactionMessage
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.log import Columns, Log, OrderedRows
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

# fmt: off
_COLUMNS: Final = (
    *EVENT_COLUMNS, "packet_index", "asked", "api", "transaction", "group", "topic", "topic_id", "partition", "records",
    "offset", "error",
)
# fmt: on
_TEXTS: Final = ("connection", "client", "ip", "transaction", "group", "topic", "topic_id")

# fmt: off
ABOUT: Final = np.array(
    [
        apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN,
        apis.WRITE_TXN_MARKERS,
    ],
    np.int64,
)
# fmt: on
"""APIs that are about transactions for every request."""
MOST_PRODUCERS: Final = 50_000
"""Transactional ids that are remembered from one rotation to the next, some two kilobytes each."""
MOST_WAITING: Final = 200_000
"""Events that wait at a border for an answer to what was asked before them: it may never come."""
_APART_US: Final = 1_000_000
"""Microseconds within which a coordinator sends several leaders the markers of one transaction."""

_BY_BODY: Final = frozenset((apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN))

Body = Mapping[str, Any]


class _Marker(NamedTuple):
    """A WriteTxnMarkers entry that a leader confirmed: a producer's transaction ended, for these partitions."""

    event: ProducerEvent
    committed: bool
    partitions: tuple[Partition, ...]


@dataclass(slots=True)
class Transactions:
    """Transactions of a capture point."""

    _messages: TransactionLog = field(default_factory=TransactionLog)
    _markers: list[_Marker] = field(default_factory=list)
    _wrote: Log = field(default_factory=lambda: Log(_COLUMNS, _TEXTS, EVENT_ORDER))
    _producers: dict[str, Producer] = field(default_factory=dict)  # of this and earlier rotations
    _alone: dict[int, Transaction] = field(default_factory=dict)  # by producer id: known by markers only
    _holes: dict[str, tuple[int, int]] = field(default_factory=dict)  # by connection of markers: see `_noticed`
    _over: list[Transaction] | None = None  # those that ended in this rotation, if another follows

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        every = window.every
        api = every.column("api_key")
        wanted = (api == apis.PRODUCE) | (api == apis.TXN_OFFSET_COMMIT)
        self._take_writes(every, wanted & (every.column("transactional_id") != NULL))
        for exchange in control:
            request, response = exchange.exchange.request, exchange.exchange.response
            if request is None:
                if exchange.exchange.api_key == apis.END_TXN and exchange.exchange.transactional_id is not None:
                    self._messages.append(
                        TransactionMessage(
                            apis.END_TXN, exchange.exchange.transactional_id, _event(exchange, every, None)
                        )
                    )
                continue
            if exchange.exchange.api_key in _BY_BODY:
                for message in _messages_of(exchange, every, request, response):
                    self._messages.append(message)
            elif exchange.exchange.api_key == apis.WRITE_TXN_MARKERS and response is not None:
                self._markers += _markers(exchange, every, request, response)

    def join(self, other: Transactions) -> None:
        self._messages.join(other._messages)
        self._markers += other._markers
        self._wrote.join(other._wrote)

    @property
    def held_bytes(self) -> int:
        """Estimate as measured: a kilobyte for each event with its part of a row, two for a producer."""
        events = len(self._messages) + len(self._markers) + 2 * len(self._producers)
        return 1000 * events + self._wrote.held_bytes

    def onward(self, border: Border) -> Transactions:
        """Producers, and what is open."""
        after = self._later(border.ordinal)
        after._holes = self._holes
        alone = self._tell(border.topic_name)
        if border.ordinal != NEVER:
            newest = max((transaction.ended or 0 for transaction in alone), default=0)
            after._alone = {
                transaction.producer_id: transaction
                for transaction in alone
                if transaction.producer_id is not None
                and transaction.ended is not None
                and newest - transaction.ended < _APART_US
            }
        held = {id(transaction) for transaction in after._alone.values()}
        self._over = [transaction for transaction in alone if id(transaction) not in held]
        for transactional_id, producer in self._remembered():
            after._producers[transactional_id] = producer
        for producer in self._producers.values():
            self._over += producer.over()
        return after

    def _later(self, ordinal: int) -> Transactions:
        """Take out what was asked from that packet on, unless that is too much to wait."""
        after = Transactions()
        now = self._wrote.read()["packet_index"] < ordinal
        waits = self._messages.packets >= ordinal
        if int(waits.sum()) + np.count_nonzero(~now) > MOST_WAITING:
            return after
        after._messages, after._wrote = self._messages.take(waits), self._wrote.take(~now)
        after._markers = [marker for marker in self._markers if marker.event.order[0] >= ordinal]
        self._messages = self._messages.take(~waits)
        self._markers = [marker for marker in self._markers if marker.event.order[0] < ordinal]
        self._wrote = self._wrote.take(now)
        return after

    def _remembered(self) -> Iterator[tuple[str, Producer]]:
        """Yield the producers to remember, by transactional id: those with the latest events. Finish the others."""
        producers = sorted(self._producers.items(), key=lambda item: item[1].latest)
        yield from producers[-MOST_PRODUCERS:]
        for _, producer in producers[:-MOST_PRODUCERS]:
            producer.finish()

    def _known_transactions(self) -> list[Transaction]:
        return [transaction for producer in self._producers.values() for transaction in producer.known]

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        ended = self._over
        if ended is None:
            ended = self._tell(topic_name)
            for producer in self._producers.values():
                producer.finish()
            for producer in self._producers.values():
                ended += producer.over()
        rows = OrderedRows("transactions")
        for transaction in ended:
            rows.append(
                (transaction.place, transaction.transactional_id or "", transaction.producer_id or 0), _row(transaction)
            )
        yield "transactions", rows.table(capture)

    def _tell(self, topic_name: TopicName) -> list[Transaction]:
        """Apply all events to their producers, in order, and return the transactions that only markers show."""
        markers = sorted(self._markers, key=lambda marker: marker.event.order)
        marked = self._marked(markers)
        wrote: dict[str, list[tuple[Place, Callable[[Producer], None]]]] = defaultdict(list)
        for transactional_id, order, tell in self._writes(topic_name, marked):
            wrote[transactional_id].append((order, tell))
        for transactional_id, ends in marked.items():
            wrote[transactional_id] += [(marker.event.order, _marking(marker, noticed)) for marker, noticed in ends]
        for transactional_id, messages in self._messages.by_id():
            events = [(message.event.order, _teller(message)) for message in messages]
            self._tell_one(transactional_id, [*events, *wrote.pop(transactional_id, ())])
        for transactional_id, others in wrote.items():
            self._tell_one(transactional_id, others)
        return _only_markers(
            markers, {transaction.producer_id for transaction in self._known_transactions()}, self._alone
        )

    def _marked(self, markers: Sequence[_Marker]) -> dict[str, list[tuple[_Marker, int]]]:
        """Return the markers by transactional id, if the producer id's is known; each with the result of `_noticed`."""
        if not markers:
            return {}
        whose = {
            transaction.producer_id: transactional_id
            for transactional_id, producer in self._producers.items()
            for transaction in producer.known
        } | self._messages.producers
        by_id: dict[str, list[tuple[_Marker, int]]] = defaultdict(list)
        for marker in markers:
            noticed = self._noticed(marker.event)
            transactional_id = whose.get(marker.event.producer_id)
            if transactional_id is not None:
                by_id[transactional_id].append((marker, noticed))
        return by_id

    def _noticed(self, event: ProducerEvent) -> int:
        """The first packet of the first marker behind the last hole of its connection, -1: there was none."""
        if not event.holes:
            return -1
        holes, noticed = self._holes.get(event.key[0], (0, -1))
        if holes < event.holes:
            noticed = event.order[0]
            self._holes[event.key[0]] = event.holes, noticed
        return noticed

    def _tell_one(self, transactional_id: str, events: list[tuple[Place, Callable[[Producer], None]]]) -> None:
        producer = self._producers.setdefault(transactional_id, Producer(transactional_id))
        for order, tell in sorted(events, key=lambda pair: pair[0]):
            tell(producer)
            producer.latest = order

    # -- Produce and TxnOffsetCommit ----------------------------------------------------------------------------------
    def _take_writes(self, every: Exchanges, wanted: np.ndarray) -> None:
        if not wanted.any():
            return
        parts = every.partitions.compress(wanted[every.owner], axis=1)
        rows = parts[s.P_OWNER]
        self._wrote.append(
            {
                **event_columns(every, rows),
                "packet_index": every.column("packet_index")[rows],
                "asked": every.column("request_time")[rows],
                "api": every.column("api_key")[rows],
                "transaction": every.column("transactional_id")[rows],
                "group": every.column("group_id")[rows],
                "topic": parts[s.P_TOPIC],
                "topic_id": parts[s.P_TOPIC_ID],
                "partition": parts[s.P_PARTITION],
                "records": parts[s.P_RECORDS],
                "offset": parts[s.P_OFFSET],
                "error": parts[s.P_ERROR],
            },
            every.names.strings,
            every.names.connections,
        )

    def _writes(
        self, topic_name: TopicName, marked: Mapping[str, Sequence[tuple[_Marker, int]]]
    ) -> Iterator[tuple[str, Place, Callable[[Producer], None]]]:
        """Yield (transactional id, order, function that applies it to its producer) of writes.

        Batches of one partition between two messages about the id, markers among them, are one event.
        """
        wrote, text, packets_of_id = self._wrote.read(), self._wrote.text, self._messages.packets_of()

        def bounds(transactional_id: str) -> np.ndarray:
            ends = [marker.event.order[0] for marker, _ in marked.get(transactional_id, ())]
            return np.sort(np.concatenate([packets_of_id(transactional_id), np.array(ends, np.int64)]))

        for first, last, records in _runs(wrote, bounds, self._wrote.strings):
            name = text(int(wrote["topic"][first]))
            topic = name if name is not None else topic_name(text(int(wrote["topic_id"][first])) or "")
            partition = int(wrote["partition"][first])
            event = _written(wrote, first, last, text)
            transactional_id = text(int(wrote["transaction"][first])) or ""
            if wrote["api"][first] == apis.PRODUCE:
                yield transactional_id, event.order, _writer(event, (topic, partition), records)
            else:
                place = text(int(wrote["group"][first])) or "", topic, partition
                offset = int(wrote["offset"][last])
                yield transactional_id, event.order, _committer(event, place, None if offset == NULL else offset)


def _teller(message: TransactionMessage) -> Callable[[Producer], None]:
    def tell(producer: Producer) -> None:
        if message.api == apis.INIT_PRODUCER_ID:
            producer.took(message.event, message.requested_id, message.timeout_ms)
        elif message.api == apis.END_TXN:
            producer.ended(message.event, message.committed, message.given)
        else:
            producer.added(message.event, message.partitions, message.on_behalf)

    return tell


def _marking(marker: _Marker, noticed: int) -> Callable[[Producer], None]:
    return lambda producer: producer.marked(marker.event, marker.committed, marker.partitions, noticed)


def _writer(event: ProducerEvent, partition: Partition, records: int | None) -> Callable[[Producer], None]:
    return lambda producer: producer.wrote(event, partition, records)


def _committer(event: ProducerEvent, place: tuple[str, str, int], offset: int | None) -> Callable[[Producer], None]:
    return lambda producer: producer.committed_offset(event, place, offset)


def _runs(
    wrote: Columns, bounds: Callable[[str], np.ndarray], strings: Sequence[str]
) -> Iterator[tuple[int, int, int | None]]:
    """Yield (first row, last row, records) of the rows of one transactional id, API, group, client, topic, partition
    and error between two messages about that id; None: the number of records is unknown."""
    rows = len(wrote["completed_by"])
    if not rows:
        return
    between = np.zeros(rows, np.int64)
    for number in distinct(wrote["transaction"]).tolist():
        here = wrote["transaction"] == number
        between[here] = np.searchsorted(bounds(strings[number]), wrote["packet_index"][here])
    same = ("transaction", "api", "group", "client", "ip", "topic", "topic_id", "partition", "error")
    keys = [between, *(wrote[name] for name in same)]
    order = np.lexsort((wrote["serial"], wrote["packet_index"], *keys))
    change = np.zeros(rows, bool)
    for key in keys:
        change[1:] |= key[order][1:] != key[order][:-1]
    change[:1] = True
    heads = np.flatnonzero(change)
    tails = np.append(heads[1:], rows) - 1
    records = wrote["records"][order]
    sums = np.add.reduceat(np.where(records == NULL, 0, records), heads)
    lacking = np.add.reduceat((records == NULL).astype(np.int64), heads)
    ends = zip(order[heads].tolist(), order[tails].tolist(), sums.tolist(), lacking.tolist(), strict=True)
    for first, last, count, unknown in ends:
        yield first, last, None if unknown else count


def _written(wrote: Columns, first: int, last: int, text: Callable[[int], str | None]) -> ProducerEvent:
    """The event of rows `first` to `last`."""

    def absent(name: str, row: int) -> int | None:
        value = int(wrote[name][row])
        return None if value == NULL else value

    sent, done = absent("asked", first), absent("time", last)
    return ProducerEvent(
        place=(int(wrote["completed_by"][last]), int(wrote["serial"][last])),
        order=(int(wrote["packet_index"][first]), int(wrote["serial"][first])),
        key=(text(int(wrote["connection"][last])) or "", absent("exchange", last), absent("reply", last)),
        client=text(int(wrote["client"][first])),
        ip=text(int(wrote["ip"][first])) or "",
        sent=None if sent is None else sent // 1000,
        done=None if done is None else done // 1000,
        error=absent("error", first),
    )


# --- bodies -----------------------------------------------------------------------------------------------------------


def _event(
    control: ControlExchange,
    every: Exchanges,
    error: int | None,
    producer_id: int | None = None,
    epoch: int | None = None,
) -> ProducerEvent:
    row, exchange = control.row, control.exchange
    sent, done = int(every.column("request_time")[row]), int(every.column("response_end")[row])
    return ProducerEvent(
        place=control.place,
        order=(int(every.column("packet_index")[row]), control.place[1]),
        key=(exchange.connection, exchange.exchange, exchange.reply),
        client=exchange.client_id,
        ip=exchange.client_ip,
        sent=None if sent == NULL else sent // 1000,
        done=None if done == NULL else done // 1000,
        error=error,
        producer_id=producer_id,
        epoch=epoch,
        holes=max(int(every.column("holes")[row]), 0),
    )


def _messages_of(
    control: ControlExchange, every: Exchanges, request: Body, response: Body | None
) -> Iterator[TransactionMessage]:
    api = control.exchange.api_key
    if api == apis.ADD_PARTITIONS_TO_TXN:
        yield from _added(control, every, request, response)
        return
    if request["transactionalId"] is None:
        return  # an idempotent producer has no transactions
    error = response["errorCode"] if response is not None else None
    producer_id, epoch = request.get("producerId", -1), request.get("producerEpoch", -1)
    requested_id = producer_id
    given: tuple[int | None, int | None] = (None, None)
    if response is not None and error == 0 and response.get("producerId", -1) != -1:
        given = response["producerId"], response["producerEpoch"]
    if api == apis.INIT_PRODUCER_ID:
        producer_id, epoch = given
    event = _event(control, every, error, producer_id, epoch)
    committed = bool(request.get("committed", False))
    timeout_ms = request.get("transactionTimeoutMs")
    yield TransactionMessage(api, request["transactionalId"], event, (), requested_id, committed, given, timeout_ms)


def _added(
    control: ControlExchange, every: Exchanges, request: Body, response: Body | None
) -> Iterator[TransactionMessage]:
    """Yield the messages of AddPartitionsToTxn: to version 3 of one transaction, then of several.

    The latter come from brokers, which ask whether a partition is part of it (`verifyOnly`), or add it for the producer
    (KIP-890).
    """
    if "transactions" in request:
        results_of = (response or {}).get("resultsByTransaction", ())
        answered = {results["transactionalId"]: results["topicResults"] for results in results_of}
        for transaction in request["transactions"]:
            if transaction["verifyOnly"]:
                continue
            results = answered.get(transaction["transactionalId"])
            producer = transaction["producerId"], transaction["producerEpoch"]
            yield _one_added(control, every, transaction["transactionalId"], producer, results, True)
    else:
        results = response["resultsByTopicV3AndBelow"] if response is not None else None
        producer = request["v3AndBelowProducerId"], request["v3AndBelowProducerEpoch"]
        yield _one_added(control, every, request["v3AndBelowTransactionalId"], producer, results, False)


def _one_added(
    control: ControlExchange,
    every: Exchanges,
    transactional_id: str,
    producer: tuple[int, int],
    results: Any,
    on_behalf: bool,
) -> TransactionMessage:
    partitions = [
        (topic["name"], part["partitionIndex"], part["partitionErrorCode"])
        for topic in results or ()
        for part in topic["resultsByPartition"]
    ]
    refused = next((error for _, _, error in partitions if error), 0)
    added = tuple((topic, partition) for topic, partition, error in partitions if not error)
    event = _event(control, every, None if results is None else 0 if added else refused, *producer)
    return TransactionMessage(apis.ADD_PARTITIONS_TO_TXN, transactional_id, event, added, on_behalf=on_behalf)


def _markers(control: ControlExchange, every: Exchanges, request: Body, response: Body) -> Iterator[_Marker]:
    written = {
        (marker["producerId"], topic["name"], part["partitionIndex"])
        for marker in response["markers"]
        for topic in marker["topics"]
        for part in topic["partitions"]
        if part["errorCode"] == 0
    }
    for marker in request["markers"]:
        partitions = tuple(
            (topic["name"], partition)
            for topic in marker["topics"]
            for partition in topic["partitionIndexes"]
            if (marker["producerId"], topic["name"], partition) in written
        )
        if partitions:
            event = _event(control, every, 0, marker["producerId"], marker["producerEpoch"])
            yield _Marker(event, bool(marker["transactionResult"]), partitions)


# --- markers ----------------------------------------------------------------------------------------------------------


def _only_markers(
    markers: Sequence[_Marker], producer_ids: Collection[int | None], earlier: Mapping[int, Transaction]
) -> list[Transaction]:
    """Return the transactions that only markers show: of producers not in `producer_ids`.

    `earlier`: such transactions of earlier rotations, by producer id.
    """
    alone: list[Transaction] = list(earlier.values())
    last: dict[int, Transaction] = dict(earlier)
    for marker in markers:
        event, outcome = marker.event, COMMITTED if marker.committed else ABORTED
        if event.producer_id in producer_ids:
            continue
        transaction = last.get(event.producer_id or 0)
        same = transaction is not None and transaction.epoch == event.epoch and transaction.outcome == outcome
        if (
            transaction is None
            or not same
            or any(partition in transaction.partitions for partition in marker.partitions)
        ):
            transaction = Transaction(None, event.producer_id, event.epoch, (None, ""), None, event.place, event.key)
            transaction.records = None
            alone.append(transaction)
            last[event.producer_id or 0] = transaction
        transaction.partitions.update(dict.fromkeys(marker.partitions))
        transaction.close(event, outcome)
    return alone


def _row(transaction: Transaction) -> dict[str, Any]:
    duration = (
        transaction.ended - transaction.began if transaction.ended is not None and transaction.began is not None else -1
    )
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "began": transaction.began,
        "ended": transaction.ended,
        "outcome": transaction.outcome,
        "duration_us": duration if duration >= 0 else None,  # a clock may step back
        "timeout_ms": transaction.timeout_ms,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in sorted(transaction.partitions)],
        "records": transaction.records,
        "offsets": [
            {"group_id": group, "topic": topic, "partition": partition, "offset": offset}
            for (group, topic, partition), offset in transaction.offsets.items()
        ],
        "fenced_by": transaction.fenced_by,
        "client_id": transaction.who[0],
        "evidence": dict(zip(("connection", "exchange", "reply"), transaction.key, strict=True)),
    }
