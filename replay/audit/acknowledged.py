"""Collect what a target acknowledged in a replay: each record, and the offset at which it must be.

In: the pairs of a RUN (`kwire.replay.diff.pairs`). Out: an `ExpectedPartition` for each topic-partition; told what was
read of it, it says what is missing and what is out of order. Pure. Rules: a record is there if its key, value and
headers lie at the offset that the target gave for it, and no other one counts for it; of an order only what one
producer had stored when captured is a promise (without an id: one client, as far as one connection followed another,
or it had the answer to one batch before it sent the next, on whatever connection); what the replay itself deleted is
not awaited; of a transaction whose EndTxn both sides answered without an error, readers of committed records get all
records or none, as it said.
"""

from __future__ import annotations

import bisect
import datetime
import math
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kwire.analyzer.protocol import api_keys
from kwire.replay.audit.alignment import Alignment, align
from kwire.replay.diff.correspondence import TopicNames
from kwire.replay.diff.pairs import Pair, decode
from kwire.replay.diff.record_facts import DIGEST, FORMS, Form, Numbers, Reader, Record

Where = tuple[str, int]

_UNKNOWN: Final = -1
_NOT_SENT: Final = frozenset(("skipped", "not_sent", "not_planned"))
_EPOCH: Final = slice(51, 53)
"""Where a batch has its producer epoch (KIP-98)."""
_TOGETHER: Final = 1_000
_TOGETHER_BYTES: Final = 8 << 20
"""Requests, and bytes of theirs, that are decoded together; records fields, and bytes of theirs, that are opened so."""


class Ended(NamedTuple):
    """A transaction that an EndTxn ended: which exchange of the capture that is, and whether it committed."""

    capture: str
    connection: str
    exchange: int
    transactional_id: str
    committed: bool


class Turn(NamedTuple):
    """When a request of a client was sent and answered, us. `client`: its number, -1 where a producer id has its
    order."""

    client: int = -1
    sent: int = -1
    answered: int = -1


_NO_TURN: Final = Turn()


class Turns(NamedTuple):
    """Turns of batches, by columns."""

    client: Numbers
    sent: Numbers
    answered: Numbers

    def of(self, rows: npt.NDArray[np.bool_]) -> Turns:
        """Turns of some of them."""
        return Turns(*(column[rows] for column in self))


MOST_STRAYS: Final = 200_000
"""Records of a partition that lie where none is awaited and are held against those that are missing; with more of them
nothing is looked for elsewhere."""
MOST_TRANSACTIONS: Final = 1_000
"""Transactions of a partition that are listed because the target did not end them as it was asked to; all count."""


class ExpectedPartition:
    """Records that a partition must have, as columns: of a busy day that is millions of batches. A row a batch, in the
    order in which they were captured: the target's offset of its first record, the captured one (-1: nothing says it),
    a number for whose order it is, how many records, a number for its client, when its request was sent and answered
    (us; no client, or -1: nothing is known by that), and how it should be stored (a place in `FORMS`); of each record
    its digest, and whether it was read. `otherwise`: how many are stored with another codec or timestamp type, by how;
    `alone`: nothing is there but what was acknowledged, as far as anybody knows; `unclaimed`: records that lie where
    nothing was.
    A batch of a transaction has its number (-1: none); `ends`: by number, how those ended that did. Read once more as
    a consumer of committed records does, it is known which records that one gets; `decided`: up to which offset the
    target had ended all transactions by then."""

    def __init__(self) -> None:
        self.read = False
        self.decided: int | None = None
        self.ends: Mapping[int, Ended] = {}
        self.alone = False
        self.unclaimed = 0
        self._strays: list[tuple[int, bytes]] | None = []
        self._aligned: Alignment | None = None
        self.otherwise: Counter[int] = Counter()
        self._columns = tuple(array("q") for _ in range(8))
        self._forms = bytearray()
        self._digests = bytearray()

    def add(
        self,
        base: int,
        captured: int,
        writer: int,
        digests: bytes,
        form: Form = FORMS[0],
        transaction: int = _UNKNOWN,
        turn: Turn = _NO_TURN,
    ) -> None:
        """Records that were acknowledged together. `digests`: of each, one behind the other."""
        row = base, captured, writer, len(digests) // DIGEST, transaction, *turn
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._forms.append(_FORM_AT[form])
        self._digests += digests

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._forms)

    def drop_below(self, offset: int) -> None:
        """Drop batches that begin before this offset, because they are deleted."""
        base, _, _, count, *_ = (np.array(column) for column in self._columns)
        stays = base >= offset
        digests = np.frombuffer(bytes(self._digests), np.uint8).reshape(-1, DIGEST)[np.repeat(stays, count)]
        self._columns = tuple(array("q", np.array(column)[stays].tobytes()) for column in self._columns)
        self._forms = bytearray(np.array(self._forms, np.uint8)[stays].tobytes())
        self._digests = bytearray(digests.tobytes())

    def settle(self) -> None:
        """To be called when all batches are there: of those with the same base offset only one was stored, the others
        count all the same. One that the captured broker took for the same too is no other one."""
        self._base, self._captured, self._writer, self._count, self._transaction, *turns = (
            np.array(column) for column in self._columns
        )
        self._turns = Turns(*turns)
        self._columns = ()
        self._start = np.concatenate([[0], np.cumsum(self._count)])
        self._found = np.zeros(int(self._start[-1]), np.uint8)
        self._visible = np.zeros(int(self._start[-1]), np.uint8)
        order = np.argsort(self._base, kind="stable")
        bases = self._base[order]
        self._kept = np.ones(len(order), bool)
        self._beside: dict[int, list[int]] = {}  # by base offset, of batches that were taken for others
        for at in (np.flatnonzero(bases[1:] == bases[:-1]) + 1).tolist():
            first, other = int(order[np.searchsorted(bases, bases[at])]), int(order[at])
            self._kept[other] = False
            if self._digests_of(first) != self._digests_of(other) or self._captured[first] != self._captured[other]:
                self._beside.setdefault(int(bases[at]), []).append(other)
        self._sorted = order[self._kept[order]]
        self._bases = self._base[self._sorted]

    def _digests_of(self, batch: int) -> bytearray:
        return self._digests[int(self._start[batch]) * DIGEST : int(self._start[batch + 1]) * DIGEST]

    @property
    def first(self) -> int:
        """The first offset that is awaited; where nothing else is there, what lies before it is of interest, too."""
        return 0 if self.alone else int(self._bases[0])

    @property
    def end(self) -> int:
        """Behind the last."""
        return int((self._bases + self._count[self._sorted]).max())

    @property
    def ended(self) -> tuple[int, int] | None:
        """From where to where records of transactions lie that were ended; None where there are none."""
        rows = self._kept & np.isin(self._transaction, list(self.ends))
        if not rows.any():
            return None
        return int(self._base[rows].min()), int((self._base + self._count)[rows].max())

    def transaction_at(self, offset: int) -> int:
        """The number of the transaction that this offset is of; -1 for none."""
        (row,) = self._rows_at(np.array([offset]))
        return int(self._transaction[row]) if row >= 0 else _UNKNOWN

    def see_committed(self, records: Iterable[Record]) -> None:
        """Take note of records that a consumer of committed records gets."""
        offsets = np.array([record.offset for record in records], np.int64)
        rows = self._rows_at(offsets)
        offsets, rows = offsets[rows >= 0], rows[rows >= 0]
        self._visible[self._start[rows] + offsets - self._base[rows]] = 1

    def _rows_at(self, offsets: Numbers) -> Numbers:
        """The batch in which each offset lies; -1 where no answer gave one."""
        at = np.searchsorted(self._bases, offsets, "right") - 1
        rows = self._sorted[at]
        rows[(at < 0) | (offsets >= self._base[rows] + self._count[rows])] = _UNKNOWN
        return rows

    def _wrong_transactions(self) -> dict[tuple[int, str], int]:
        """How many records the target shows or hides against what EndTxn said, by transaction (its number) and how:
        `hidden`, `visible`, or `open` where the target did not end it."""
        if self.decided is None or not self.ends:
            return {}
        wrong: Counter[tuple[int, str]] = Counter()
        open_one = self.transaction_at(self.decided)
        for row in np.flatnonzero(self._kept & np.isin(self._transaction, list(self.ends))).tolist():
            number = int(self._transaction[row])
            begin, stop = int(self._start[row]), int(self._start[row + 1])
            there = self._found[begin:stop] == 1
            late = self._base[row] + np.arange(stop - begin) >= self.decided
            if number == open_one:
                wrong[number, "open"] += int((there & late).sum())
            shown = self._visible[begin:stop] == 1
            if self.ends[number].committed:
                wrong[number, "hidden"] += int((there & ~late & ~shown).sum())
            else:
                wrong[number, "visible"] += int((there & ~late & shown).sum())
        return {key: count for key, count in wrong.items() if count}

    def see(self, records: Iterable[Record]) -> None:
        """Take note of records that the target has."""
        data = [record for record in records if record.control is None]
        places = np.searchsorted(self._bases, np.array([record.offset for record in data], np.int64), "right") - 1
        for record, place in zip(data, places.tolist(), strict=True):
            if place < 0:
                self._stray(record, True)
                continue
            batch = int(self._sorted[place])
            base = int(self._base[batch])
            # Of two that were acknowledged at one offset either may be what is stored there.
            some = (batch, *self._beside.get(base, ())) if self._beside else (batch,)
            unclaimed = record.offset - base >= max(int(self._count[row]) for row in some)
            for row in some:
                at = int(self._start[row]) + record.offset - base
                if at < self._start[row + 1] and self._digests[at * DIGEST : (at + 1) * DIGEST] == record.digest:
                    otherwise = _otherwise(FORMS[self._forms[row]], FORMS[record.form])
                    self.otherwise[record.form] += not self._found[at] and otherwise
                    self._found[at] = 1
                    break
            else:
                self._stray(record, unclaimed)

    def _stray(self, record: Record, unclaimed: bool) -> None:
        """Take note of a record that is not awaited where it lies."""
        self.unclaimed += unclaimed
        if self._strays is not None:
            self._strays.append((record.offset, record.digest))
            if len(self._strays) > MOST_STRAYS:
                self._strays = None

    def finish(self) -> None:
        """All of it was read. What is not where it should be is looked for now, and strays are forgotten: there may be
        as many in each partition."""
        self.read = True
        self._aligned = self._alignment()
        self._strays = None

    def _awaited(self) -> npt.NDArray[np.bool_]:
        """By batch: whether its records count, also where another one has the same offset."""
        awaited = self._kept.copy()
        awaited[[row for some in self._beside.values() for row in some]] = True
        return awaited

    def _alignment(self) -> Alignment:
        """Look elsewhere for records that are not where they were acknowledged; with too many strays they are
        missing."""
        lost = np.flatnonzero(self._found == 0)
        batch = np.searchsorted(self._start, lost, "right") - 1
        awaited = self._awaited()[batch]
        lost, batch = lost[awaited], batch[awaited]
        offsets = self._base[batch] + lost - self._start[batch]
        digests = (bytes(self._digests[at * DIGEST : (at + 1) * DIGEST]) for at in lost.tolist())
        return align(sorted(zip(offsets.tolist(), digests, strict=True)), sorted(self._strays or ()))

    def _begins_anew(self) -> bool:
        """Do captured offsets begin anew, of a topic that was deleted and made again? Then they are no order. (A batch
        that is there twice, the captured broker took for one.)"""
        known = np.flatnonzero(self._kept & (self._captured >= 0))
        order = known[np.argsort(self._captured[known], kind="stable")]
        first, second = order[:-1], order[1:]
        over = np.flatnonzero(self._captured[first] + self._count[first] > self._captured[second])
        return any(
            self._digests_of(row) != self._digests_of(other)
            for row, other in zip(first[over].tolist(), second[over].tolist(), strict=True)
        )

    def row(self, where: Where) -> dict[str, Any]:
        """Of the table `audit`."""
        total = int(self._count[self._awaited()].sum())
        alignment = self._aligned or self._alignment()
        missing, moved = len(alignment.missing), len(alignment.moved)
        first = min(alignment.missing, default=None)
        claimed = int((self._rows_at(np.array([there for _, there in alignment.moved], np.int64)) < 0).sum())
        most = max(self.otherwise.items(), key=lambda each: each[1], default=(0, 0))
        records = self._kept
        captured = np.where(self._begins_anew(), -1, self._captured)
        transactions = self._wrong_transactions() if self.read else {}
        by_how = Counter[str]()
        for (_, how), count in transactions.items():
            by_how[how] += count
        judged = self.read and self.decided is not None
        return {
            "topic": where[0],
            "partition": where[1],
            "acknowledged": total,
            "readable": total - missing - moved if self.read else None,
            "missing": missing if self.read else None,
            "displaced": moved if self.read else None,
            "alignment": alignment.text() if self.read and (missing or moved) else None,
            "out_of_order": out_of_order(
                self._writer[records],
                captured[records],
                self._base[records],
                self._count[records],
                self._turns.of(records),
            ),
            "first_missing_offset": first if self.read else None,
            "stored_otherwise": self.otherwise.total() if self.read else None,
            "stored_as": FORMS[most[0]].text() if most[1] and self.read else None,
            "unclaimed": self.unclaimed - claimed if self.read and self.alone else None,
            "hidden": by_how["hidden"] if judged else None,
            "visible": by_how["visible"] if judged else None,
            "left_open": by_how["open"] if judged else None,
            "transactions": [
                {**self.ends[number]._asdict(), "found": how, "records": count}
                for (number, how), count in sorted(transactions.items())[:MOST_TRANSACTIONS]
            ],
        }


_FORM_AT: Final = {form: place for place, form in enumerate(FORMS)}


def _otherwise(sent: Form, stored: Form) -> bool:
    """Has the target made something else of it? (A format of its own is no more than its version.)"""
    timed = sent.magic >= 1 and stored.magic >= 1
    return sent.codec != stored.codec or (timed and sent.appended != stored.appended)


def out_of_order(writer: Numbers, captured: Numbers, base: Numbers, count: Numbers, turns: Turns | None = None) -> int:
    """How many records would have to move for each writer's batches to lie as they did when captured, and for none to
    lie before one whose answer its client had when it sent it. A row a batch, in the order in which they were captured.
    """
    moved = _out_of_writers_order(writer, captured, base)
    if turns is not None:
        moved |= _overtaken(turns, captured, base, moved)
    return int(count[moved].sum())


def _overtaken(turns: Turns, captured: Numbers, base: Numbers, moved: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Batches that would have to move, by row, where one of the same client was sent when the other was answered.
    `moved`: those that move already."""
    overtaken = np.zeros(len(base), bool)
    known = (turns.client >= 0) & (turns.sent >= 0) & ~moved
    for client in np.unique(turns.client[known]).tolist():
        rows = np.flatnonzero(known & (turns.client == client))
        answered = np.where(turns.answered[rows] < 0, np.iinfo(np.int64).max, turns.answered[rows])
        # Which had been answered when each was sent, and the largest of their offsets; and the other way round.
        ends, starts = np.argsort(answered, kind="stable"), np.argsort(turns.sent[rows], kind="stable")
        before = np.searchsorted(answered[ends], turns.sent[rows], "left")
        after = np.searchsorted(turns.sent[rows][starts], answered, "right")
        largest = np.concatenate([[_UNKNOWN], np.maximum.accumulate(base[rows][ends])])
        least = np.concatenate([np.minimum.accumulate(base[rows][starts][::-1])[::-1], [np.iinfo(np.int64).max]])
        wrong = (largest[before] > base[rows]) | (least[after] < base[rows])
        if wrong.any():
            order = rows if (captured[rows] < 0).any() else rows[np.argsort(captured[rows], kind="stable")]
            overtaken[order] = True
            overtaken[order[sorted(_longest_rising(base[order].tolist()))]] = False
            overtaken[rows[~wrong]] = False
    return overtaken


def _out_of_writers_order(writer: Numbers, captured: Numbers, base: Numbers) -> npt.NDArray[np.bool_]:
    """Batches that would have to move for each writer's to lie as they did, by row."""
    writers, which = np.unique(writer, return_inverse=True)
    known = np.bincount(which[captured < 0], minlength=len(writers)) == 0
    order = np.lexsort((np.where(known[which], captured, np.arange(len(writer))), which))
    first = np.searchsorted(which[order], np.arange(len(writers) + 1))
    falls = np.flatnonzero((np.diff(base[order]) < 0) & (np.diff(which[order]) == 0))
    moved = np.zeros(len(base), bool)
    for number in np.unique(which[order][falls]).tolist():
        rows = order[first[number] : first[number + 1]]
        moved[rows] = True
        moved[rows[sorted(_longest_rising(base[rows].tolist()))]] = False
    return moved


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Places of the longest part of some numbers, in order, that rises (patience sorting)."""
    tops: list[int] = []  # the least last number of a rising part of each length ...
    places: list[int] = []  # ... and where it stands
    before = [_UNKNOWN] * len(numbers)
    for place, number in enumerate(numbers):
        at = bisect.bisect_left(tops, number)
        if at:
            before[place] = places[at - 1]
        tops[at : at + 1] = [number]
        places[at : at + 1] = [place]
    rising = set()
    place = places[-1] if places else _UNKNOWN
    while place != _UNKNOWN:
        rising.add(place)
        place = before[place]
    return rising


class _Writers:
    """Numbers for whose order batches have: a producer id's, or a client's while one connection follows another."""

    def __init__(self, ends: Mapping[tuple[str, str], int]) -> None:
        self._ends = ends
        self._numbers: dict[Any, int] = {}
        self._chains: dict[Any, tuple[tuple[str, str], int]] = {}  # by partition and client: connection, number
        self._clients: dict[Any, int] = {}

    def turn(self, pair: Pair, producer: int) -> Turn:
        """When a client's request was sent and answered. Whoever has a producer id has an order by that."""
        if producer >= 0:
            return _NO_TURN
        client = self._clients.setdefault(_client(pair), len(self._clients))
        answered: datetime.datetime | None = pair.row.get("response_end")
        return Turn(client, _sent_us(pair), _UNKNOWN if answered is None else round(answered.timestamp() * 1e6))

    def number(self, where: Where, pair: Pair, producer: int) -> int:
        """For whoever sent a batch to a partition: `producer` is its producer id, -1 without one."""
        if producer >= 0:
            return self._numbers.setdefault((where, producer), len(self._numbers))
        connection = str(pair.row["capture"]), str(pair.row["connection"])
        client = where, _client(pair)
        last, number = self._chains.get(client, (("", ""), _UNKNOWN))
        sent = _sent_us(pair)
        if last != connection:
            follows = number != _UNKNOWN and self._ends.get(last, sent) < sent
            known = self._numbers.get((where, connection), number if follows else len(self._numbers))
            number = self._numbers.setdefault((where, connection), known)
            self._chains[client] = connection, number
        return number


def acknowledged(
    pairs: Iterable[Pair], ends: Mapping[tuple[str, str], int], alone: bool = False
) -> dict[Where, ExpectedPartition]:
    """Partitions by their names on the target. `pairs`: requests to produce, to delete or to end transactions, in order
    of captured time; `ends`: when each captured connection (capture, connection) sent its last request, us; `alone`:
    the topics had no records before."""
    acknowledged = _Acknowledged(_Writers(ends))
    renamed: Mapping[str, str] = {}
    for pair in _decoded(pairs):
        renamed = pair.right.renamed
        acknowledged.take(pair)
    acknowledged.settle()
    for where, partition in acknowledged.partitions.items():
        partition.settle()
        partition.ends = acknowledged.ends
        partition.alone = alone and where not in acknowledged.unsure
    there = {old: new for new, old in renamed.items()}
    return {
        (there.get(topic, topic), index): partition
        for (topic, index), partition in acknowledged.partitions.items()
        if len(partition)
    }


def _decoded(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the pairs, decoded some at a time."""
    window: list[Pair] = []
    size = 0
    for pair in pairs:
        window.append(pair)
        size += sum(map(len, filter(None, (pair.left.request, pair.left.answer, pair.right.answer))))
        if len(window) >= _TOGETHER or size >= _TOGETHER_BYTES:
            decode(window)
            yield from window
            window, size = [], 0
    decode(window)
    yield from window


class _Stored(NamedTuple):
    """A records field that was acknowledged, before it is opened. `base`: the target's offset; `captured`: that of the
    capture, and whether it has a log append time; `form`: how it was sent, None: as it was captured."""

    pair: Pair
    where: Where
    records: bytes
    base: int
    captured: tuple[int, bool]
    form: Form | None


class _Acknowledged:
    """Partitions in the making, by their captured names. Records are opened many at a time (`settle`). `unsure`: those
    that have records, perhaps, of which no answer says where; `ends`: by a transaction's number, how it ended."""

    def __init__(self, writers: _Writers) -> None:
        self.partitions: dict[Where, ExpectedPartition] = {}
        self.unsure: set[Where] = set()
        self.ends: dict[int, Ended] = {}
        self._open: dict[tuple[int, int], int] = {}  # by producer id and epoch: the number of its open transaction
        self._transactions = 0
        self._ending: deque[tuple[int, tuple[int, int], Ended | None]] = deque()  # behind so many of those that wait
        self._waiting: list[_Stored] = []
        self._waiting_bytes = 0
        self._writers = writers
        self._reader = Reader()
        self._left: TopicNames | None = None
        self._right = TopicNames()

    def take(self, pair: Pair) -> None:
        if self._left is None:
            self._left, self._right = TopicNames(dict(pair.left.named)), TopicNames(dict(pair.right.named))
        request, answer = pair.left.request_body(), pair.right.decoded_answer(pair.api_key)
        if request is None or answer is None or answer.body is None:
            if pair.api_key == api_keys.PRODUCE and request is not None and pair.right.state not in _NOT_SENT:
                self.unsure |= _parts(request, self._left)
            return
        if pair.api_key == api_keys.PRODUCE:
            self._produced(pair, request, answer.body, self._left)
            if len(self._waiting) >= _TOGETHER or self._waiting_bytes >= _TOGETHER_BYTES:
                self.settle()
        elif pair.api_key == api_keys.END_TXN:
            self._ended(pair, request, answer.body)
        else:
            self.settle()
            _deleted(pair.api_key, answer.body, self._right, self.partitions)

    def _produced(self, pair: Pair, request: dict[str, Any], answer: dict[str, Any], left: TopicNames) -> None:
        bases = _bases(answer, self._right)
        self.unsure |= _parts(request, left) - bases.keys()
        before = pair.left.decoded_answer(api_keys.PRODUCE)
        captured = _bases(before.body, left) if before is not None and before.body is not None else {}
        forms = self._forms(pair)
        for topic in request["topicData"]:
            for part in topic["partitionData"]:
                where = left.of(topic), part["index"]
                if where in bases and part["records"]:
                    there = captured.get(where, (_UNKNOWN, False))
                    stored = _Stored(pair, where, part["records"], bases[where][0], there, forms.get(where))
                    self._waiting.append(stored)
                    self._waiting_bytes += len(stored.records)

    def _ended(self, pair: Pair, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """A transaction ends. One that either side refused goes on; where the captured answer is not known nobody knows
        how it ended."""
        captured = pair.left.decoded_answer(api_keys.END_TXN)
        known = captured is not None and captured.body is not None
        if known and captured.body["errorCode"]:  # type: ignore[index, union-attr]
            return
        ended = None
        if known and not answer["errorCode"]:
            row = pair.row
            exchange = str(row["capture"]), str(row["connection"]), int(row["exchange"])
            ended = Ended(*exchange, request["transactionalId"], request["committed"])
        self._ending.append((len(self._waiting), (request["producerId"], request["producerEpoch"]), ended))

    def _end(self, before: float) -> None:
        """Let transactions end that ended before so many of those that waited had been sent."""
        while self._ending and self._ending[0][0] <= before:
            _, producer, ended = self._ending.popleft()
            number = self._open.pop(producer, None)
            if number is not None and ended is not None:
                self.ends[number] = ended

    def settle(self) -> None:
        """Open what waits."""
        self._open_waiting()
        self._end(math.inf)

    def _open_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        heap = np.frombuffer(bytearray(b"".join(stored.records for stored in waiting)), np.uint8)
        length = np.array([len(stored.records) for stored in waiting], np.int64)
        content = self._reader.content(heap, np.cumsum(length) - length, length)
        ends = np.searchsorted(content.field, np.arange(len(waiting) + 1)).tolist()
        for at, (stored, first, end) in enumerate(zip(waiting, ends, ends[1:], strict=False)):
            self._end(at)
            if first == end:
                continue
            writer = self._writers.number(stored.where, stored.pair, int(content.producer_id[first]))
            captured, timed = stored.captured
            form = (stored.form or FORMS[content.form[first]])._replace(appended=timed)
            digests = b"".join(content.digests[first:end])
            partition = self.partitions.get(stored.where)
            if partition is None:
                partition = self.partitions[stored.where] = ExpectedPartition()
            transaction = _UNKNOWN
            if content.transactional[first]:
                epoch = int.from_bytes(stored.records[_EPOCH], "big", signed=True)
                producer = int(content.producer_id[first]), epoch
                if producer not in self._open:
                    self._open[producer] = self._transactions
                    self._transactions += 1
                transaction = self._open[producer]
            turn = self._writers.turn(stored.pair, int(content.producer_id[first]))
            partition.add(stored.base, captured, writer, digests, form, transaction, turn)

    def _forms(self, pair: Pair) -> dict[Where, Form]:
        """How batches were sent to the target where that is not as they were captured: it may take older message sets
        as batches only. What is as long as it was, and of the same version, has its producers and times replaced."""
        left, right = pair.left, pair.right
        if left.version == right.version and len(left.request or b"") == len(right.request or b""):
            return {}
        return {
            (self._right.of(topic), part["index"]): FORMS[records[0].form]
            for topic in (right.request_body() or {}).get("topicData", ())
            for part in topic["partitionData"]
            if (records := self._reader.read(part["records"] or b""))
        }


def _bases(answer: dict[str, Any], called: TopicNames) -> dict[Where, tuple[int, bool]]:
    """The base offsets that an answer to Produce gives, where it is no error, each with whether it has a log append
    time."""
    return {
        (called.of(topic), part["index"]): (part["baseOffset"], part.get("logAppendTimeMs", -1) >= 0)
        for topic in answer.get("responses", ())
        for part in topic["partitionResponses"]
        if not part["errorCode"] and part["baseOffset"] >= 0
    }


def _parts(request: dict[str, Any], called: TopicNames) -> set[Where]:
    """The partitions that a Produce request names."""
    return {(called.of(topic), part["index"]) for topic in request["topicData"] for part in topic["partitionData"]}


def _deleted(
    api_key: int, answer: dict[str, Any], called: TopicNames, partitions: dict[Where, ExpectedPartition]
) -> None:
    """Drop records that the target deleted on request."""
    if api_key == api_keys.DELETE_TOPICS:
        gone = {called.of(topic) for topic in answer.get("responses", ()) if not topic["errorCode"]}
        for where in [where for where in partitions if where[0] in gone]:
            del partitions[where]
        return
    for topic in answer.get("topics", ()):
        for part in topic["partitions"]:
            partition = partitions.get((called.of(topic), part["partitionIndex"]))
            if partition is not None and not part["errorCode"]:
                partition.drop_below(part["lowWatermark"])


def _client(pair: Pair) -> tuple[str, str, Any]:
    """A client: its capture, address and client id."""
    address = str(pair.row["connection"]).partition("-")[0].rpartition(":")[0]
    return str(pair.row["capture"]), address, pair.row.get("client_id")


def _sent_us(pair: Pair) -> int:
    """When the captured request was sent, in microseconds since the epoch."""
    sent: datetime.datetime = pair.row["request_time"]
    return round(sent.timestamp() * 1e6)
