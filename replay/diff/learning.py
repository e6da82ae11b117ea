"""Learn a correspondence from all pairs: ordinary Produce and Fetch exchanges by columns, others one by one.

In: pairs. Out: a `Correspondence`. Pure. Rule: by columns or one by one, what is learned is the same, in the same order
(a test holds them against each other); what is not ordinary is left to `correspondence.STEPS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.project import Messages, Projection, project
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE
from kwire.analyzer.protocol.topic_lists import RESPONSE_LISTS, lists_of
from kwire.captures.kernels import NULL
from kwire.replay.diff.correspondence import STEPS, Correspondence, learn_names, learn_step
from kwire.replay.diff.offsets import Stored
from kwire.replay.diff.pairs import Block, Pair, Pairs
from kwire.replay.diff.partition_rows import (
    MAX_ROWS,
    PartitionRows,
    partition_paths,
    partition_rows,
    topic_paths,
    topic_rows,
)
from kwire.replay.diff.record_facts import DIGEST
from kwire.replay.diff.stored_run import Flags, Numbers
from kwire.replay.diff.topic_texts import Texts

_STORED: Final = ("errorCode", "baseOffset", "logAppendTimeMs")
_READ: Final = ("records", "abortedTransactions", "highWatermark")
"""Fields of partitions in answers to Produce and to Fetch."""
_NAMING: Final = (api_keys.METADATA, api_keys.CREATE_TOPICS)


def learn(pairs: Sequence[Pair]) -> Correspondence:
    """One pass for names, because a topic id may be used before it is told; one for the rest."""
    correspondence = Correspondence()
    for pair in pairs[:1]:
        correspondence.left.by_id.update(pair.left.named)
        correspondence.right.by_id.update(pair.right.named)
    by_columns = isinstance(pairs, Pairs) and pairs.by_columns
    naming = pairs.places_of(_NAMING) if isinstance(pairs, Pairs) else range(len(pairs))
    for place in naming:
        pair = pairs[place]
        if pair.api_key in _NAMING:
            learn_names(correspondence, pair)
    if isinstance(pairs, Pairs) and by_columns:
        texts = texts_of(pairs, correspondence)
        for block in pairs.blocks():
            _Block(correspondence, pairs, block, texts).learn()
    else:
        for place, pair in enumerate(pairs):
            learn_step(correspondence, pair, place)
    for partition in correspondence.partitions.values():
        partition.index_batches()
    return correspondence


def texts_of(pairs: Pairs, correspondence: Correspondence) -> Texts:
    """Return the names of topics in these pairs."""
    renamed = [run.renamed for run in pairs.runs]
    return Texts(correspondence, (renamed[0] if len(renamed) > 1 else {}, renamed[-1]))


class Produced(NamedTuple):
    """A batch (or more) that both sides have stored: of a topic's partition, base offsets, records, the first one's
    producer id (-1: none), log append times (-1: none)."""

    topic: str
    partition: int
    left: int
    right: int
    records: int
    transactional: bool
    producer: int
    times: tuple[int, int]


class Read(NamedTuple):
    """Records of a partition that one side (0 left, 1 right) has read, as its consumer sees them: offsets (int64 each),
    digests, forms and times (int64 each). `span`: from the offset asked for to the last one; None: no record; `high`:
    the answer's high watermark."""

    side: int
    topic: str
    partition: int
    offsets: bytes
    digests: bytes
    forms: bytes
    times: bytes
    span: tuple[int, int] | None
    high: int


class FetchedTopics(NamedTuple):
    """A fetch: topics that the captured request names, and what was read, the left's first."""

    topics: set[str]
    reads: list[Read]


class _Block:
    """Some pairs, of which the ordinary ones are learned from by columns."""

    def __init__(self, correspondence: Correspondence, pairs: Pairs, block: Block, texts: Texts) -> None:
        self._correspondence = correspondence
        self._pairs = pairs
        self._block = block
        self._texts = texts
        self._answered = block.left.answered & block.right.answered

    def learn(self) -> None:
        """All, in order."""
        block, correspondence = self._block, self._correspondence
        produced, fetched = self._produced(), self._fetched()
        taught = np.flatnonzero(np.isin(block.api_key, list(STEPS)))
        connections = self._pairs.connections(block.places)
        for at, place in zip(taught.tolist(), block.places[taught].tolist(), strict=True):
            if at in produced:
                for batch in produced[at]:
                    correspondence.named_topics.add(batch.topic)
                    by = correspondence.producer(batch.producer if batch.producer >= 0 else connections[at][1])
                    partition = correspondence.partition(batch.topic, batch.partition)
                    partition.transactional |= batch.transactional
                    again = bool(block.retried[at])
                    partition.add(Stored(batch.left, batch.right, batch.records, by, place), batch.times, again)
            elif at in fetched:
                correspondence.named_topics |= fetched[at].topics
                for read in fetched[at].reads:
                    partition = correspondence.partition(read.topic, read.partition)
                    reading = partition.reading(connections[at], place)
                    seen = reading.right if read.side else reading.left
                    seen.extend(read.offsets, read.digests, read.forms, read.times)
                    partition.forms[read.side].update(read.forms)
                    if read.span is not None:
                        partition.watermarks[read.side].add(read.high, read.span[1], place)
                    if read.side and read.span is not None:
                        reading.served.append(read.span)
            else:
                learn_step(correspondence, self._pairs[place], place)

    # --- Produce

    def _produced(self) -> dict[int, list[Produced]]:
        """By exchange of the block, the plain ones: both sides have stored all that was asked."""
        block, key = self._block, api_keys.PRODUCE
        wanted = self._answered & (block.api_key == key)
        if not wanted.any():
            return {}
        lists = ((REQUEST, lists_of(key)[0], ("records",)), *[(RESPONSE, RESPONSE_LISTS[key], _STORED)] * 2)
        messages_of = (
            block.left.requests(block.api_key),
            block.left.answers(block.api_key),
            block.right.answers(block.api_key),
        )
        rows: list[PartitionRows] = []
        plain = wanted.copy()
        for messages, (direction, where, fields) in zip(messages_of, lists, strict=True):
            paths = partition_paths(where, fields)
            projection = project(messages, key, direction, paths, wanted, MAX_ROWS)
            plain &= projection.decoded
            rows.append(partition_rows(messages, projection, where, fields))
        for side in rows[1:]:
            bad = (side.columns["errorCode"].value != 0) | (side.columns["baseOffset"].value < 0)
            plain[side.message[bad]] = False
        counts = [np.bincount(side.message, minlength=len(block)) for side in rows]
        plain &= (counts[0] == counts[1]) & (counts[0] == counts[2])
        # All three say the same partitions, in whatever order.
        ordered: list[tuple[PartitionRows, Numbers]] = []
        orders: list[Numbers] = []
        for side, number in zip(rows, (0, 0, 1), strict=True):
            side = side.where(plain[side.message])
            topics = self._texts.numbers(side.topic, number)
            order = np.lexsort((side.number, topics, side.message))
            ordered.append((side.where(order), topics[order]))
            orders.append(order)
        (requests, topics), (left, left_topics), (right, right_topics) = ordered
        other = (topics != left_topics) | (topics != right_topics)
        other |= (requests.number != left.number) | (requests.number != right.number)
        other[1:] |= (
            (requests.message[1:] == requests.message[:-1])
            & (topics[1:] == topics[:-1])
            & (requests.number[1:] == requests.number[:-1])
        )
        plain[requests.message[other]] = False
        in_order = np.argsort(orders[0])
        in_order = in_order[plain[requests.message[in_order]]]
        requests, left, right = (side.where(in_order) for side in (requests, left, right))
        by_exchange: dict[int, list[Produced]] = {at: [] for at in np.flatnonzero(plain).tolist()}
        sets = requests.columns["records"]
        content = self._correspondence.reader.content(
            requests.topic.heap, sets.position, np.maximum(sets.length, 0), digested=False
        )
        first = np.searchsorted(content.field, np.arange(len(in_order) + 1))
        records = np.diff(first)
        producers = np.full(len(in_order), -1, np.int64)
        producers[records > 0] = content.producer_id[first[:-1][records > 0]]
        transactional = np.bincount(content.field, content.transactional, len(in_order)) > 0
        columns = (
            requests.message,
            topics[in_order],
            requests.number,
            left.columns["baseOffset"].value,
            right.columns["baseOffset"].value,
            records,
            transactional,
            producers,
            left.columns["logAppendTimeMs"].filled(-1),
            right.columns["logAppendTimeMs"].filled(-1),
        )
        rows_of = zip(*(column.tolist() for column in columns), strict=True)
        for at, topic, number, there, here, count, in_transaction, producer, before, after in rows_of:
            name = self._texts.names[topic]
            times = before, after
            by_exchange[at].append(Produced(name, number, there, here, count, in_transaction, producer, times))
        return by_exchange

    # --- Fetch

    def _fetched(self) -> dict[int, FetchedTopics]:
        """By exchange of the block, the plain ones: answered at once, and nothing aborted in it."""
        block, key = self._block, api_keys.FETCH
        wanted = self._answered & ~block.retried & (block.api_key == key)
        if not wanted.any():
            return {}
        request_paths = partition_paths(lists_of(key)[0], ("fetchOffset",))
        request_paths += [path for where in lists_of(key)[1:] for path in topic_paths(where)]
        answer_paths = partition_paths(RESPONSE_LISTS[key], _READ)
        sides: list[tuple[Messages, Projection, PartitionRows]] = []
        plain = wanted.copy()
        for part in (block.left, block.right):
            requests, answers = part.requests(block.api_key), part.answers(block.api_key)
            request_fields = project(requests, key, REQUEST, request_paths, wanted, MAX_ROWS)
            answered = project(answers, key, RESPONSE, answer_paths, wanted, MAX_ROWS)
            rows = partition_rows(answers, answered, RESPONSE_LISTS[key], _READ)
            plain &= request_fields.decoded & answered.decoded
            plain[rows.message[rows.columns["abortedTransactions"].filled(0) > 0]] = False
            sides.append((requests, request_fields, rows))
        by_exchange = {at: FetchedTopics(set(), []) for at in np.flatnonzero(plain).tolist()}
        requests, request_fields, _ = sides[0]
        for where in lists_of(key):
            message, topics = topic_rows(requests, request_fields, where)
            chosen = plain[message]
            numbers = self._texts.numbers(topics.where(chosen), 0).tolist()
            for at, number in zip(message[chosen].tolist(), numbers, strict=True):
                by_exchange[at].topics.add(self._texts.names[number])
        for side, (requests, request_fields, rows) in enumerate(sides):
            starts = partition_rows(requests, request_fields, lists_of(key)[0], ("fetchOffset",))
            for at, read in self._read(starts, rows, side, plain):
                by_exchange[at].reads.append(read)
        return by_exchange

    def _read(self, wanted: PartitionRows, given: PartitionRows, side: int, plain: Flags) -> Iterator[tuple[int, Read]]:
        """Yield the records of each partition in one side's answers, with the exchange."""
        given = given.where(plain[given.message] & (given.columns["records"].length > 0))
        wanted = wanted.where(np.isin(wanted.message, given.message))
        names_of = self._texts.names
        columns = wanted.message, self._texts.numbers(wanted.topic, side), wanted.number
        starts = dict(
            zip(
                zip(*(each.tolist() for each in columns), strict=True),
                wanted.columns["fetchOffset"].filled(0).tolist(),
                strict=True,
            )
        )
        columns = given.message, self._texts.numbers(given.topic, side), given.number
        where = list(zip(*(each.tolist() for each in columns), strict=True))
        sets = given.columns["records"]
        content = self._correspondence.reader.content(given.topic.heap, sets.position, sets.length)
        shown = content.control == NULL
        if not side:
            # A batch may begin before the offset that was asked for. What the right has of it, it has shown.
            begin = np.array([starts.get(each, 0) for each in where], np.int64)
            shown &= content.offset >= begin[content.field]
        bounds = np.searchsorted(content.field, np.arange(len(where) + 1)).tolist()
        shown_before = np.concatenate(([0], np.cumsum(shown)))[bounds].tolist()
        offsets, forms = content.offset[shown].tobytes(), content.form[shown].tobytes()
        times = content.time[shown].tobytes()
        highs = given.columns["highWatermark"].filled(-1).tolist()
        digests = b"".join(itertools.compress(content.digests, shown.tolist()))
        for number, (at, topic, index) in enumerate(where):
            low, high = shown_before[number], shown_before[number + 1]
            span = None
            if bounds[number + 1] > bounds[number]:
                begun = starts.get(where[number], int(content.offset[bounds[number]]))
                span = begun, int(content.offset[bounds[number + 1] - 1])
            yield (
                at,
                Read(
                    side,
                    names_of[topic],
                    index,
                    offsets[low * 8 : high * 8],
                    digests[low * DIGEST : high * DIGEST],
                    forms[low:high],
                    times[low * 8 : high * 8],
                    span,
                    highs[number],
                ),
            )
