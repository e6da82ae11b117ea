"""Transactions: rows of the table of that name.

In: windows; of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and WriteTxnMarkers the bodies; Produce and
TxnOffsetCommit by columns. Out: a row for each transaction. Rules
- A producer speaks to its coordinator and to the leaders on different connections, so the order of events is that of
  their requests in the capture, and `tables` works it out when all are there (`producers`).
- Since KIP-890 a producer adds no partitions by itself: the first Produce or TxnOffsetCommit does.
- What a coordinator tells the leaders (WriteTxnMarkers) settles what the producer was not heard to be told, in its
  place among what producers ask, and is all there is of a producer that the capture did not hear: such a row has a
  producer id only.
- Where a stretch of a capture ends and another goes on, what has ended is told; what is open goes on, with what its
  transactional id's producers have done so far (of `MOST_PRODUCERS`: the open transactions of others are told so).
  What was asked after a request that still waits for its answer waits too, so the order stays that of one pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from analyzer.analysis import TopicName
from analyzer.analysis.control_exchanges import NEVER, Border, ControlExchange
from analyzer.analysis.event_columns import EVENT_ORDER, event_columns
from analyzer.analysis.producers import ABORTED, COMMITTED, Partition, Place, Producer, ProducerEvent, Transaction
from analyzer.analysis.transaction_log import TransactionLog, TransactionMessage
from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
from analyzer.frame.arrow import distinct
from analyzer.frame.log import Columns, Log, OrderedRows
from analyzer.protocol import api_keys as apis
from captures.kernels import NULL

_COLUMNS: Final = (
    "trigger",
    "born",
    "ordinal",
    "time",
    "asked",
    "connection",
    "exchange",
    "reply",
    "client",
    "ip",
    "api",
    "transaction",
    "group",
    "topic",
    "topic_id",
    "partition",
    "records",
    "offset",
    "error",
)
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
"""APIs that are about transactions, whatever the request says."""
MOST_PRODUCERS: Final = 50_000
"""Transactional ids that are remembered from one stretch of a capture to the next, some two kilobytes each."""
MOST_WAITING: Final = 200_000
"""Events that wait at a border for an answer to what was asked before them: it may never come."""
_APART_US: Final = 1_000_000
"""What a coordinator tells several leaders of one transaction is told at once: within this time."""

_HEARD: Final = frozenset((apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.ADD_OFFSETS_TO_TXN, apis.END_TXN))

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Marker:
    """What a coordinator told a leader: how a transaction of a producer ended, for these partitions."""

    event: ProducerEvent
    committed: bool
    partitions: tuple[Partition, ...]


@dataclass(slots=True)
class Transactions:
    """Transactions of a capture point."""

    _said: TransactionLog = field(default_factory=TransactionLog)
    _markers: list[_Marker] = field(default_factory=list)
    _wrote: Log = field(default_factory=lambda: Log(_COLUMNS, _TEXTS, EVENT_ORDER))
    _producers: dict[str, Producer] = field(default_factory=dict)  # of whom earlier stretches told
    _alone: dict[int, Transaction] = field(default_factory=dict)  # by producer id: of which only markers tell so far
    _holes: dict[str, tuple[int, int]] = field(default_factory=dict)  # by connection of markers, as `_noticed` says
    _over: list[Transaction] | None = None  # those that ended in this stretch, where another goes on

    def take(self, window: Window, control: Sequence[ControlExchange] = ()) -> None:
        every = window.every
        api = every.column("api_key")
        wanted = (api == apis.PRODUCE) | (api == apis.TXN_OFFSET_COMMIT)
        self._take_writes(every, wanted & (every.column("transactional_id") != NULL))
        for one in control:
            request, response = one.exchange.request, one.exchange.response
            if request is None:
                if one.exchange.api_key == apis.END_TXN and one.exchange.transactional_id is not None:
                    self._said.append(
                        TransactionMessage(apis.END_TXN, one.exchange.transactional_id, _event(one, every, None))
                    )
                continue
            if one.exchange.api_key in _HEARD:
                for said in _said(one, every, request, response):
                    self._said.append(said)
            elif one.exchange.api_key == apis.WRITE_TXN_MARKERS and response is not None:
                self._markers += _markers(one, every, request, response)

    def join(self, other: Transactions) -> None:
        self._said.join(other._said)
        self._markers += other._markers
        self._wrote.join(other._wrote)

    @property
    def held_bytes(self) -> int:
        """As measured, when they are told: a kilobyte for each thing said, with the row that it is part of, two for a
        producer."""
        said = len(self._said) + len(self._markers) + 2 * len(self._producers)
        return 1000 * said + self._wrote.held_bytes

    def onward(self, border: Border) -> Transactions:
        """Producers, and what is open."""
        after = self._later(border.ordinal)
        after._holes = self._holes
        alone = self._tell(border.topic_name)
        if border.ordinal != NEVER:
            newest = max((one.ended or 0 for one in alone), default=0)
            after._alone = {
                one.producer_id: one
                for one in alone
                if one.producer_id is not None and one.ended is not None and newest - one.ended < _APART_US
            }
        held = {id(one) for one in after._alone.values()}
        self._over = [one for one in alone if id(one) not in held]
        for transactional_id, producer in self._kept():
            after._producers[transactional_id] = producer
        for producer in self._producers.values():
            self._over += producer.over()
        return after

    def _later(self, ordinal: int) -> Transactions:
        """Take out what was asked from that packet on, unless that is too much to wait."""
        after = Transactions()
        now = self._wrote.read()["ordinal"] < ordinal
        waits = self._said.packets >= ordinal
        if int(waits.sum()) + np.count_nonzero(~now) > MOST_WAITING:
            return after
        after._said, after._wrote = self._said.take(waits), self._wrote.take(~now)
        after._markers = [one for one in self._markers if one.event.order[0] >= ordinal]
        self._said = self._said.take(~waits)
        self._markers = [one for one in self._markers if one.event.order[0] < ordinal]
        self._wrote = self._wrote.take(now)
        return after

    def _kept(self) -> Iterator[tuple[str, Producer]]:
        """Those to remember, by transactional id: the ones heard last. What others have open is left as it is."""
        producers = sorted(self._producers.items(), key=lambda one: one[1].heard)
        yield from producers[-MOST_PRODUCERS:]
        for _, producer in producers[:-MOST_PRODUCERS]:
            producer.finish()

    def _found(self) -> list[Transaction]:
        return [one for producer in self._producers.values() for one in producer.known]

    def tables(self, capture: str = "", topic_name: TopicName = str) -> Iterator[tuple[str, pa.Table]]:
        found = self._over
        if found is None:
            found = self._tell(topic_name)
            for producer in self._producers.values():
                producer.finish()
            for producer in self._producers.values():
                found += producer.over()
        rows = OrderedRows("transactions")
        for one in found:
            rows.append((one.place, one.transactional_id or "", one.producer_id or 0), _row(one))
        yield "transactions", rows.table(capture)

    def _tell(self, topic_name: TopicName) -> list[Transaction]:
        """Tell producers all there is, in order -> transactions that only markers tell of."""
        markers = sorted(self._markers, key=lambda one: one.event.order)
        marked = self._marked(markers)
        wrote: dict[str, list[tuple[Place, Callable[[Producer], None]]]] = defaultdict(list)
        for transactional_id, order, tell in self._writes(topic_name, marked):
            wrote[transactional_id].append((order, tell))
        for transactional_id, ends in marked.items():
            wrote[transactional_id] += [(one.event.order, _marking(one, noticed)) for one, noticed in ends]
        for transactional_id, said in self._said.by_id():
            events = [(one.event.order, _teller(one)) for one in said]
            self._tell_one(transactional_id, [*events, *wrote.pop(transactional_id, ())])
        for transactional_id, others in wrote.items():
            self._tell_one(transactional_id, others)
        return _alone(markers, {one.producer_id for one in self._found()}, self._alone)

    def _marked(self, markers: Sequence[_Marker]) -> dict[str, list[tuple[_Marker, int]]]:
        """Markers by the transactional id whose producers have their producer id, where that was heard; each with what
        `_noticed` says."""
        if not markers:
            return {}
        whose = {
            one.producer_id: transactional_id
            for transactional_id, producer in self._producers.items()
            for one in producer.known
        } | self._said.producers
        found: dict[str, list[tuple[_Marker, int]]] = defaultdict(list)
        for marker in markers:
            noticed = self._noticed(marker.event)
            transactional_id = whose.get(marker.event.producer_id)
            if transactional_id is not None:
                found[transactional_id].append((marker, noticed))
        return found

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
            producer.heard = order

    # -- Produce and TxnOffsetCommit ----------------------------------------------------------------------------------
    def _take_writes(self, every: Exchanges, wanted: np.ndarray) -> None:
        if not wanted.any():
            return
        parts = every.partitions.compress(wanted[every.owner], axis=1)
        rows = parts[s.P_OWNER]
        self._wrote.append(
            {
                **event_columns(every, rows),
                "ordinal": every.column("packet_index")[rows],
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
        """(transactional id, order, what to tell its producer) of what was written; batches of one partition between
        two things said, markers among them, are told at once."""
        wrote, text, said_of = self._wrote.read(), self._wrote.text, self._said.packets_of()

        def bounds(transactional_id: str) -> np.ndarray:
            ends = [one.event.order[0] for one, _ in marked.get(transactional_id, ())]
            return np.sort(np.concatenate([said_of(transactional_id), np.array(ends, np.int64)]))

        for first, last, records in _runs(wrote, bounds, self._wrote.strings):
            said = text(int(wrote["topic"][first]))
            topic = said if said is not None else topic_name(text(int(wrote["topic_id"][first])) or "")
            partition = int(wrote["partition"][first])
            event = _written(wrote, first, last, text)
            transactional_id = text(int(wrote["transaction"][first])) or ""
            if wrote["api"][first] == apis.PRODUCE:
                yield transactional_id, event.order, _writer(event, (topic, partition), records)
            else:
                place = text(int(wrote["group"][first])) or "", topic, partition
                offset = int(wrote["offset"][last])
                yield transactional_id, event.order, _committer(event, place, None if offset == NULL else offset)


def _teller(one: TransactionMessage) -> Callable[[Producer], None]:
    def tell(producer: Producer) -> None:
        if one.api == apis.INIT_PRODUCER_ID:
            producer.took(one.event, one.requested_id, one.timeout_ms)
        elif one.api == apis.END_TXN:
            producer.ended(one.event, one.committed, one.given)
        else:
            producer.added(one.event, one.partitions, one.on_behalf)

    return tell


def _marking(one: _Marker, noticed: int) -> Callable[[Producer], None]:
    return lambda producer: producer.marked(one.event, one.committed, one.partitions, noticed)


def _writer(event: ProducerEvent, partition: Partition, records: int | None) -> Callable[[Producer], None]:
    return lambda producer: producer.wrote(event, partition, records)


def _committer(event: ProducerEvent, place: tuple[str, str, int], offset: int | None) -> Callable[[Producer], None]:
    return lambda producer: producer.committed_offset(event, place, offset)


def _runs(
    wrote: Columns, bounds: Callable[[str], np.ndarray], strings: Sequence[str]
) -> Iterator[tuple[int, int, int | None]]:
    """(first row, last row, records) of the rows of one transactional id, kind, group, client, topic, partition and
    error that lie between two things said of that id; None: how many records is not known."""
    rows = len(wrote["trigger"])
    if not rows:
        return
    between = np.zeros(rows, np.int64)
    for number in distinct(wrote["transaction"]).tolist():
        here = wrote["transaction"] == number
        between[here] = np.searchsorted(bounds(strings[number]), wrote["ordinal"][here])
    same = ("transaction", "api", "group", "client", "ip", "topic", "topic_id", "partition", "error")
    keys = [between, *(wrote[name] for name in same)]
    order = np.lexsort((wrote["born"], wrote["ordinal"], *keys))
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

    asked, done = absent("asked", first), absent("time", last)
    return ProducerEvent(
        place=(int(wrote["trigger"][last]), int(wrote["born"][last])),
        order=(int(wrote["ordinal"][first]), int(wrote["born"][first])),
        key=(text(int(wrote["connection"][last])) or "", absent("exchange", last), absent("reply", last)),
        client=text(int(wrote["client"][first])),
        ip=text(int(wrote["ip"][first])) or "",
        sent=None if asked is None else asked // 1000,
        done=None if done is None else done // 1000,
        error=absent("error", first),
    )


# --- bodies -----------------------------------------------------------------------------------------------------------


def _event(
    one: ControlExchange, every: Exchanges, error: int | None, producer_id: int | None = None, epoch: int | None = None
) -> ProducerEvent:
    row, exchange = one.row, one.exchange
    asked, done = int(every.column("request_time")[row]), int(every.column("response_end")[row])
    return ProducerEvent(
        place=one.place,
        order=(int(every.column("packet_index")[row]), one.place[1]),
        key=(exchange.connection, exchange.exchange, exchange.reply),
        client=exchange.client_id,
        ip=exchange.client_ip,
        sent=None if asked == NULL else asked // 1000,
        done=None if done == NULL else done // 1000,
        error=error,
        producer_id=producer_id,
        epoch=epoch,
        holes=max(int(every.column("holes")[row]), 0),
    )


def _said(one: ControlExchange, every: Exchanges, request: Body, response: Body | None) -> Iterator[TransactionMessage]:
    api = one.exchange.api_key
    if api == apis.ADD_PARTITIONS_TO_TXN:
        yield from _added(one, every, request, response)
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
    event = _event(one, every, error, producer_id, epoch)
    committed = bool(request.get("committed", False))
    timeout_ms = request.get("transactionTimeoutMs")
    yield TransactionMessage(api, request["transactionalId"], event, (), requested_id, committed, given, timeout_ms)


def _added(
    one: ControlExchange, every: Exchanges, request: Body, response: Body | None
) -> Iterator[TransactionMessage]:
    """AddPartitionsToTxn: to version 3 of one transaction, then of several: those come from brokers, which ask whether
    a partition is part of it (`verifyOnly`) or add it on the producer's behalf (KIP-890)."""
    if "transactions" in request:
        results_of = (response or {}).get("resultsByTransaction", ())
        answered = {told["transactionalId"]: told["topicResults"] for told in results_of}
        for asked in request["transactions"]:
            if asked["verifyOnly"]:
                continue
            results = answered.get(asked["transactionalId"])
            producer = asked["producerId"], asked["producerEpoch"]
            yield _one_added(one, every, asked["transactionalId"], producer, results, True)
    else:
        results = response["resultsByTopicV3AndBelow"] if response is not None else None
        producer = request["v3AndBelowProducerId"], request["v3AndBelowProducerEpoch"]
        yield _one_added(one, every, request["v3AndBelowTransactionalId"], producer, results, False)


def _one_added(
    one: ControlExchange,
    every: Exchanges,
    transactional_id: str,
    producer: tuple[int, int],
    results: Any,
    on_behalf: bool,
) -> TransactionMessage:
    told = [
        (topic["name"], part["partitionIndex"], part["partitionErrorCode"])
        for topic in results or ()
        for part in topic["resultsByPartition"]
    ]
    refused = next((error for _, _, error in told if error), 0)
    added = tuple((topic, partition) for topic, partition, error in told if not error)
    event = _event(one, every, None if results is None else 0 if added else refused, *producer)
    return TransactionMessage(apis.ADD_PARTITIONS_TO_TXN, transactional_id, event, added, on_behalf=on_behalf)


def _markers(one: ControlExchange, every: Exchanges, request: Body, response: Body) -> Iterator[_Marker]:
    written = {
        (told["producerId"], topic["name"], part["partitionIndex"])
        for told in response["markers"]
        for topic in told["topics"]
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
            event = _event(one, every, 0, marker["producerId"], marker["producerEpoch"])
            yield _Marker(event, bool(marker["transactionResult"]), partitions)


# --- markers ----------------------------------------------------------------------------------------------------------


def _alone(
    markers: Sequence[_Marker], heard: Collection[int | None], told: Mapping[int, Transaction]
) -> list[Transaction]:
    """Transactions that only markers tell of: of producers that were not `heard`. `told`: of which earlier ones did."""
    alone: list[Transaction] = list(told.values())
    last: dict[int, Transaction] = dict(told)
    for marker in markers:
        event, outcome = marker.event, COMMITTED if marker.committed else ABORTED
        if event.producer_id in heard:
            continue
        made = last.get(event.producer_id or 0)
        same = made is not None and made.epoch == event.epoch and made.outcome == outcome
        if made is None or not same or any(partition in made.partitions for partition in marker.partitions):
            made = Transaction(None, event.producer_id, event.epoch, (None, ""), None, event.place, event.key)
            made.records = None
            alone.append(made)
            last[event.producer_id or 0] = made
        made.partitions.update(dict.fromkeys(marker.partitions))
        made.close(event, outcome)
    return alone


def _row(one: Transaction) -> dict[str, Any]:
    duration = one.ended - one.began if one.ended is not None and one.began is not None else -1
    return {
        "transactional_id": one.transactional_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.epoch,
        "began": one.began,
        "ended": one.ended,
        "outcome": one.outcome,
        "duration_us": duration if duration >= 0 else None,  # a clock may step back
        "timeout_ms": one.timeout_ms,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in sorted(one.partitions)],
        "records": one.records,
        "offsets": [
            {"group_id": group, "topic": topic, "partition": partition, "offset": offset}
            for (group, topic, partition), offset in one.offsets.items()
        ],
        "fenced_by": one.fenced_by,
        "client_id": one.who[0],
        "evidence": dict(zip(("connection", "exchange", "reply"), one.key, strict=True)),
    }
