"""Capture points read to the end: their windows as tables, and what is known of them besides.

In: a capture point or a partition of log files, how to read it and what of it is wanted (`Choice`). Out: (name of a
table, rows), and a `PointRead`; of several, what `_kwire.json` and the summary say. The public functions (`reading`),
the tasks of Spark and shares of a point (`shares`) are made of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from analyzer.analysis import Collector, ResumableCollector
from analyzer.analysis import control_exchanges as hearing
from analyzer.analysis.clients import Clients
from analyzer.analysis.clients import Key as ClientKey
from analyzer.analysis.cluster_metadata import Brokers, Leaders, Offers, TopicIds
from analyzer.analysis.connections import EndedConnections
from analyzer.analysis.groups import Groups
from analyzer.analysis.latency import Latency
from analyzer.analysis.offsets import Offsets
from analyzer.analysis.record_sets import OpenedRecords, RowGroups
from analyzer.analysis.sessions import readers_table
from analyzer.analysis.summary import MOST_COUNTED, CaptureStats, Summary
from analyzer.analysis.transactions import Transactions
from analyzer.analysis.zookeeper import Requests
from analyzer.bulk import exchange_tables
from analyzer.bulk.engine import Engine, Settings
from analyzer.bulk.rows import Exchanges, Names, Window, end_point, ip_text
from analyzer.common.times import rfc3339
from analyzer.common.version import __version__
from analyzer.dataset import tables
from analyzer.dataset.dataset import Dataset, DatasetError, Writer, concatenated
from analyzer.dataset.parquet_files import ENOUGH_ROWS, LazyTable, as_table
from analyzer.frame.arrow import plain
from analyzer.frame.buffer_pool import give_back
from analyzer.messages.exchange import Exchange
from analyzer.messages.raw_messages import Messages, table_of
from analyzer.records.arrow_tables import BATCHES, FULL, META, NO_RECORDS, WITHOUT, empty_table
from analyzer.records.batches import Limits
from analyzer.records.log_names import LogError, LogPoint
from analyzer.records.log_reader import read_log
from captures.attempts import Attempt
from captures.files import CaptureError, CapturePoint, stored_bytes
from captures.packets import Reader
from captures.windows import LARGE_BYTES

if TYPE_CHECKING:
    from analyzer.options.analyze import AnalyzeOptions

__all__ = [
    "BATCHES",
    "FULL",
    "LARGE_POINT",
    "META",
    "NO_RECORDS",
    "WITHOUT",
    "AnalysisOptions",
    "NamesAhead",
    "PointResult",
    "PointTables",
    "Progress",
    "check_names",
    "chosen",
    "how_to_read",
    "joined",
    "manifest",
    "nothing_matches",
    "parsed",
    "point_tables",
    "read_point",
    "read_point_later",
    "size_of",
]

MOST_HELD_BYTES: Final = 96 << 20
"""Bytes that a collector keeps until the capture ends (`ResumableCollector.held_bytes`), beside its state after the
last rows: beyond them, what has ended becomes rows at once. That is 600,000 commits, or 100,000 events of groups or of
transactions."""

LARGE_POINT: Final = 768 << 20
"""Bytes of a capture point of which more is read at a time: of a smaller one, to get the memory for it takes longer."""

MANY_THREADS: Final = 4
"""From so many on, several threads find packets: for fewer, one does that ahead of them and is seldom waited for."""

PARTITIONS_A_ROW: Final = 8
"""Topic-partitions that weigh as much as an exchange where rows wait: few exchanges have more, some have a thousand."""

ROWS_A_CONNECTION: Final = 2
"""Exchanges that weigh as much as a connection that has ended: a capture's end may end a hundred thousand at once."""

MOST_READERS: Final = 200_000
"""The same of readers that are over, a third of a kilobyte each."""

ANSWERED_NS: Final = 60 * 10**9
"""After this time no answer is expected any more to a request about transactions that something else is to wait for."""

Progress = Callable[[str, int, int], None]
"""Called with the capture point's name, the bytes read so far, and their number where it is known (else 0)."""

_AT_ONCE: Final = 8192
"""Rows that are Python objects at a time."""

TOPIC_ID_LENGTH = 22
"""Characters of a uuid as Kafka prints it."""


def size_of(point: CapturePoint) -> int:
    """Bytes of a capture point's files, 0 where that cannot be known."""
    try:
        return stored_bytes(point)
    except (OSError, CaptureError):
        return 0


def parsed(filter: Any) -> Any:
    """A filter expression, parsed; None stays None."""
    if filter is None or not isinstance(filter, str):
        return filter
    from analyzer.filter import evaluation as filtering

    return filtering.parse(filter)


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What of a capture point is kept: `filter` (parsed) and `connection` (a name) limit the exchanges; `keep_bytes`
    asks for the table `messages` (`keep_secrets`: nothing in it overwritten), `records` says how far batches are
    opened, within `limits`; `meaning`: what the traffic means is worked out too. Picklable, as tasks of Spark get
    it."""

    filter: Any = None
    connection: str | None = None
    keep_bytes: bool = False
    records: str = BATCHES
    limits: Limits = field(default_factory=Limits)
    keep_secrets: bool = False
    meaning: bool = True

    @classmethod
    def of(
        cls,
        filter: Any = None,
        connection: str | None = None,
        keep_bytes: bool = False,
        records: str = BATCHES,
        decompressed_limit: int | None = None,
        decompressed_ratio: int | None = None,
        keep_secrets: bool = False,
        meaning: bool = True,
    ) -> AnalysisOptions:
        """The same, the filter as text or parsed, None for the default limits. Raises FilterError, and ValueError for
        `records` unknown."""
        if records not in WITHOUT:
            raise ValueError(f"records={records!r}: there are {', '.join(WITHOUT)}")
        limits = Limits(decompressed_limit or Limits.bytes, decompressed_ratio or Limits.ratio)
        return cls(parsed(filter), connection, keep_bytes, records, limits, keep_secrets, meaning)

    @classmethod
    def from_arguments(cls, options: AnalyzeOptions) -> AnalysisOptions:
        """As `kwire analyze` was asked."""
        return cls.of(
            options.filter,
            None,
            options.keep_bytes,
            options.records,
            options.decompressed_limit,
            options.decompressed_ratio,
            options.keep_secrets,
            options.meaning,
        )

    @property
    def everything(self) -> bool:
        """No exchange is left out."""
        return self.filter is None and self.connection is None

    @property
    def asks_names(self) -> bool:
        """Filters, and records of internal topics, ask for names of topic ids that other connections may say, later
        ones too."""
        return self.filter is not None or self.records == FULL

    @property
    def keep_records(self) -> bool:
        """Whether the bytes of record sets are needed on the way."""
        return self.records != NO_RECORDS

    @property
    def means(self) -> bool:
        """What the traffic means is worked out: of all of it or not at all."""
        return self.meaning and self.everything

    @property
    def keep(self) -> bool | frozenset[int]:
        """Raw messages that are needed on the way: all, none, or those of some APIs."""
        if self.keep_bytes or (self.filter is not None and self.filter.needs_bodies):
            return True
        return hearing.APIS if self.means else False


@dataclass(frozen=True, slots=True)
class PointResult:
    """What is known of a capture point when all of it has been read, besides its rows: its entry in `_kwire.json`, what
    the user should know, its part of the summary, coverage included, and the ends (`ip:port-ip:port`) of connections
    that began before it and of those that it left open, and how many exchanges a filter let through, of how many."""

    capture: dict[str, Any]
    notes: list[str]
    summary: Summary
    from_before: frozenset[str] = frozenset()
    left_open: frozenset[str] = frozenset()
    passed: tuple[int, int] | None = None


def read_point(
    point: CapturePoint | LogPoint,
    settings: Settings,
    choice: AnalysisOptions,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> PointResult:
    """Decode one capture point, or read a partition's log segments. `put` gets the rows, table by table, each table at
    least once (it may be empty)."""
    return read_point_later(point, settings, choice, lambda name, rows: put(name, as_table(rows)), progress, stdin)


def read_point_later(
    point: CapturePoint | LogPoint,
    settings: Settings,
    choice: AnalysisOptions,
    put: Callable[[str, LazyTable], None],
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> PointResult:
    """The same; `put` also gets what makes a table, for any thread."""
    if isinstance(point, LogPoint):
        return _read_log(point, settings, choice, put, progress)
    parts = _point_rows(point, settings, choice, progress, stdin)
    while True:
        try:
            name, rows = next(parts)
        except StopIteration as end:
            read: PointResult = end.value
            return read
        put(name, rows)


def _read_log(
    point: LogPoint,
    settings: Settings,
    choice: AnalysisOptions,
    put: Callable[[str, pa.Table], None],
    progress: Progress | None,
) -> PointResult:
    if not choice.everything:
        raise LogError(f"{point.name}: a log segment has no exchanges to filter", "leave out --filter")

    def report(read: int, size: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    groups = RowGroups()

    def gather(name: str, table: pa.Table) -> None:
        for group in groups.put(name, table):
            put(*group)

    read = read_log(point, choice.records, settings.threads, choice.limits, gather, report)
    for group in groups.rest():
        put(*group)
    for name in ("batches", "records"):
        if name not in WITHOUT[choice.records]:
            put(name, empty_table(name))
    summary = Summary()
    summary.finish_log(read)
    return PointResult(read.capture, read.notes, summary)


def point_tables(
    point: CapturePoint,
    settings: Settings,
    choice: AnalysisOptions,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> Generator[tuple[str, pa.Table], None, PointResult]:
    """The same of a capture point as an iterator of (name of the table, rows), which may be left early."""
    parts = _point_rows(point, settings, choice, progress, stdin)
    while True:
        try:
            name, rows = next(parts)
        except StopIteration as end:
            read: PointResult = end.value
            return read
        yield name, as_table(rows)


def _point_rows(
    point: CapturePoint, settings: Settings, choice: AnalysisOptions, progress: Progress | None, stdin: BinaryIO | None
) -> Generator[tuple[str, LazyTable], None, PointResult]:
    size = size_of(point)
    how = how_to_read(settings, choice, size)
    engine = Engine(point, how, stdin, reader=_reader(point, how))
    topics = TopicIds()
    ahead = NamesAhead(topics, point, settings)
    point_rows = PointTables(engine.merging.names, choice, settings.threads, topics, ahead.look_up)

    def report(read: int) -> None:
        if progress is not None:
            progress(point.name, read, size)

    for window in engine.windows(report):
        point_rows.take(window)
        yield from point_rows.tables()
        yield from point_rows.aged()
        if point_rows.rows >= ENOUGH_ROWS:
            yield from point_rows.later()
            if engine.merging.names.crowded:
                engine.merging.forget(point_rows.named())
    yield from point_rows.later()
    yield from point_rows.rest()
    yield from point_rows.meant()
    return point_rows.finish(point, engine.reader, engine.attempts())


def how_to_read(settings: Settings, choice: AnalysisOptions, size: int) -> Settings:
    """How the engine is to read for what is chosen, of a capture point of so many bytes (0: nobody knows). Of a large
    one it reads more at a time, unless somebody said how much, or rows are made of all that it read: one a record, or
    raw messages."""
    few_rows = choice.records in (NO_RECORDS, BATCHES) and not choice.keep_bytes
    large = size >= LARGE_POINT and few_rows and settings.window_bytes == Settings().window_bytes
    return dataclasses.replace(settings, keep_records=choice.keep_records, large_bytes=LARGE_BYTES if large else 0)


def _reader(point: CapturePoint, settings: Settings) -> Reader | None:
    """Who reads a capture point for many threads; None: whoever reads it for few."""
    if settings.threads < MANY_THREADS:
        return None
    from captures.chunks import parallel_scan as ahead  # large captures, on large machines

    return ahead.reader_of(point, settings.threads, settings.window_bytes)


class NamesAhead:
    """Names for topic ids that messages say only later: `look_up` reads the capture to its end for them, once, and only
    for an id that nothing has named so far. stdin is read once: of it nothing is known ahead."""

    def __init__(self, topics: TopicIds, point: CapturePoint, settings: Settings) -> None:
        self._topics = topics
        self._point = point
        self._settings = dataclasses.replace(settings, keep_messages=False, keep_records=False)
        self._read = "-" in point.paths

    def look_up(self, topic: str) -> str:
        """The name for a topic's id, where some message says it; else what was given."""
        if not self._read and topic not in self._topics.names and len(topic) == TOPIC_ID_LENGTH:
            self._read = True
            later = TopicIds()
            for window in Engine(self._point, self._settings).windows():
                later.take(window)
                window.names.release()
            self._topics.learn(later.names)
        return self._topics.name(topic)

    def resolve(self, row: dict[str, Any]) -> None:
        """Put names for topic ids in a row of `exchanges`."""
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(self.look_up, row["topics"])))


@dataclass(frozen=True, slots=True)
class CarryOver:
    """What is known of a capture point where another one begins that goes on with it: names, API versions that
    connections were offered, fetch sessions, messages and record sets whose exchange has not ended, and what the
    traffic means that goes on."""

    topics: TopicIds
    brokers: Brokers
    offers: Offers
    latency: Latency
    hearing: hearing.ControlExchanges
    messages: Messages
    opened: OpenedRecords
    listeners: tuple[ResumableCollector, ...]


class PointTables:
    """The windows of one capture point as tables: `take` one, then `tables` has what it alone gives, and `flush` the
    rows of all that wait. `waiting`: those that are in no table yet, `rows` of them (of partitions some make one, as
    memory goes). `look_up` gives the name for a
    topic's id; without it, names are known as far as messages have said them. `before`: this one goes on there."""

    def __init__(
        self,
        names: Names,
        choice: AnalysisOptions,
        threads: int = 1,
        topics: TopicIds | None = None,
        look_up: Callable[[str], str] | None = None,
        before: CarryOver | None = None,
    ) -> None:
        self.names = names
        self.topics = topics or (TopicIds() if before is None else before.topics.onward(names.capture))
        self.summary = Summary()
        self.waiting: list[Exchanges] = []
        self.rows = 0
        self._seen = self._matched = 0
        self._look_up = look_up or self.topics.name
        self._choice = choice
        self._messages = Messages(keep_secrets=choice.keep_secrets) if before is None else before.messages
        self._hearing = hearing.ControlExchanges() if before is None else before.hearing
        self.latency = Latency() if before is None else before.latency
        self.listeners: tuple[ResumableCollector, ...] = ()
        if choice.means:
            self.listeners = _listeners() if before is None else before.listeners
        self._known_before = [0 for _ in self.listeners]
        self._windows: list[tuple[int, int]] = []
        self._told = 0
        self._taken: Window | None = None
        self._ended = EndedConnections()
        brokers = Brokers() if before is None else before.brokers.onward(names.capture)
        offers = Offers() if before is None else before.offers.onward(names.capture)
        leaders = Leaders(self.topics)
        self._zookeeper = Requests()
        # names first
        self._learners: tuple[Collector, ...] = (self.topics, leaders, brokers, offers, self._ended, self._zookeeper)
        self._small: tuple[Collector, ...] = (self._ended, leaders, brokers, self.topics, offers)  # as tables stand
        self._opened = (
            OpenedRecords(choice.records, threads, choice.limits, self._look_up, choice.everything)
            if before is None
            else before.opened.onward(self._look_up)
        )

    def known(self, ordinal: int) -> CarryOver:
        """All windows so far were taken, and another capture point goes on: what it is to know (`ordinal`: see
        `hearing.Border`). The latencies are this one's own, so whoever `finish`es it gives it a copy (`latency`)
        after this."""
        border = hearing.Border(self.topics.name, ordinal)
        _, brokers, offers = (self._learners[i] for i in (1, 2, 3))
        assert isinstance(brokers, Brokers)
        assert isinstance(offers, Offers)
        return CarryOver(
            self.topics.onward(""),
            brokers.onward(""),
            offers.onward(""),
            self.latency,
            self._hearing,
            self._messages,
            self._opened,
            tuple(one.onward(border) for one in self.listeners),
        )

    def take(self, window: Window) -> None:
        """One window."""
        choice = self._choice
        if choice.meaning and not window.measured:
            window = self.latency.take(window)
        for watcher in self._learners:
            watcher.take(window)
        if choice.keep is True and not choice.everything:
            self._messages.take(window)
        if self.listeners:
            for piece, heard in self._hearing.pieces(window):
                for listener in self.listeners:
                    listener.take(piece, heard)
            self._note_time(window)
        if not choice.everything:
            window = window.only(chosen(window, self._messages, choice.filter, choice.connection, self._look_up))
            if choice.keep is True:
                self._messages.forget(window.every, window.exchanges)
        self.summary.take(window)
        self._opened.take(window)
        self._taken = window
        self._seen += len(window.every)
        self._matched += len(window.exchanges)
        if len(window.exchanges):
            self.waiting.append(window.exchanges)
            self.rows += max(len(window.exchanges), window.exchanges.partitions.shape[1] // PARTITIONS_A_ROW)
        self.rows = max(self.rows, ROWS_A_CONNECTION * self._ended.waiting)

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Rows of record batches, and the raw messages of the last window where they are asked for."""
        yield from self._opened.tables()
        if self._choice.keep_bytes and self._taken is not None:
            if self._choice.everything:
                yield "messages", table_of(self._taken, self._choice.keep_secrets)
            else:
                yield "messages", self._messages.table(self._taken.exchanges)
        self._taken = None

    def flush(self) -> Iterator[tuple[str, pa.Table]]:
        """Tables of all rows that wait."""
        for name, rows in self.later():
            yield name, as_table(rows)

    def later(self) -> Iterator[tuple[str, LazyTable]]:
        """The same, or what makes them, in any thread and while other windows are taken."""
        yield "exchanges", exchange_tables.later_exchanges(self.names, self.waiting)
        yield "partitions", exchange_tables.later_partitions(self.names, self.waiting)
        self.waiting, self.rows = [], 0
        for watcher in self._small:
            yield from watcher.tables()
        self.names.release()

    def leave_waiting(self) -> None:
        """What waits becomes rows elsewhere, and so does what `facts_alone` has."""
        self.waiting, self.rows = [], 0
        self.names.release()

    def named(self) -> Iterator[np.ndarray]:
        """`later` has been called: numbers of strings that are still meant (`ShardMerger.forget`)."""
        yield from self.latency.named()
        yield from (one.named() for one in self.listeners if isinstance(one, Offsets))

    def _note_time(self, window: Window) -> None:
        """Which packet was the last at which time, as far back as that may be asked."""
        if len(window.every):
            asked, trigger = (int(window.every.column(name).max()) for name in ("request_time", "completed_by"))
            self._windows.append((max(asked, self._windows[-1][0] if self._windows else asked), trigger))
            while len(self._windows) > 1 and self._windows[1][0] <= self._windows[-1][0] - ANSWERED_NS:
                self._windows.pop(0)
            if len(self._windows) > 2 * MOST_WINDOWS:
                self._windows[1:-1] = self._windows[1:-1:2]

    def aged(self) -> Iterator[tuple[str, pa.Table]]:
        """Rows of what the traffic meant, where more has happened than is kept to the end: of what has ended."""
        latest = self._windows[-1][0] if self._windows else 0
        answered = [packet for time, packet in self._windows if time <= latest - ANSWERED_NS]
        border = hearing.Border(self.topics.name, max(answered, default=0))
        for place, listener in enumerate(self.listeners):
            if listener.held_bytes - self._known_before[place] > MOST_HELD_BYTES:
                after = listener.onward(border)
                yield from listener.tables(self.names.capture, self.topics.name)
                self.listeners = (*self.listeners[:place], after, *self.listeners[place + 1 :])
                self._known_before[place] = after.held_bytes
                self._told += 1
                del listener, after
                give_back()
        sessions = self.latency.sessions
        if len(sessions.over) > MOST_READERS:
            for clients in (one for one in self.listeners if isinstance(one, Clients)):
                yield "readers", readers_table(self.names.capture, sessions.over, clients.groups())
                self._told += 1
            sessions.clear_over()  # where there are no listeners (a filter), they never become rows

    def opened(self) -> Iterator[tuple[str, pa.Table]]:
        """Rows of record batches that wait for more to make a row group."""
        yield from self._opened.flush()

    def rest(self) -> Iterator[tuple[str, pa.Table]]:
        """All has been taken: record batches that are left."""
        yield from self._opened.finish(self.names)

    def meant(self) -> Iterator[tuple[str, pa.Table]]:
        """All has been taken: the tables of what it means, empty ones too; findings come of all tables, later. What was
        learned is let go of, one listener after the other, as its rows are made."""
        told = {name: [tables.empty(name)] for name in tables.MEANING if name != "findings"}
        self.latency.sessions.finish(self.names)
        before: dict[ClientKey, set[str]] = {}
        while self.listeners:
            listener, *others = self.listeners
            self.listeners = tuple(others)
            if self._told:
                give_back()
            for name, table in listener.tables(self.names.capture, self.topics.name):
                told[name].append(table)
            if isinstance(listener, Clients):
                before = listener.groups_before
        if self._choice.means:
            groups = _groups(told["clients"][-1], before)
            readers = readers_table(self.names.capture, self.latency.sessions.over, groups)
            told["readers"].append(readers)
        for name in list(told):
            yield name, concatenated(name, told.pop(name))

    def message_places(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """(trigger, number of the connection) by which the rows of `messages` that `tables` will give stand in order;
        `window` is the one taken last."""
        if self._choice.everything or self._taken is None:
            trigger, connection = window.message_places()
            order = np.lexsort((window.names.serials_of(connection), trigger))
            return trigger[order], connection[order]
        return self._messages.places(self._taken.exchanges)

    @property
    def passed(self) -> tuple[int, int]:
        """How many exchanges the filter let through, of how many."""
        return self._matched, self._seen

    def join_passed(self, passed: tuple[int, int]) -> None:
        """Take in how many another share's filter let through."""
        self._matched += passed[0]
        self._seen += passed[1]

    def join_listeners(self, listeners: Sequence[ResumableCollector]) -> None:
        """Take in what those of another share learned."""
        for mine, theirs in zip(self.listeners, listeners, strict=True):
            mine.join(theirs)

    def join_counts(self) -> None:
        """All has been taken: the summary has the counts of record batches too."""
        self.summary.records.join(self._opened.counts)

    def finish(self, point: CapturePoint, told: CaptureStats, attempts: Sequence[Attempt]) -> PointResult:
        """What is known besides the rows; `told`: what the reader knows; `attempts`: connections that never were."""
        self.join_counts()
        self.summary.finish(point.name, told, self._ended, self.topics)
        ends = frozenset(self._ended.from_before), frozenset(self._ended.left_open)
        passed = self.passed if self._choice.filter is not None else None
        entry = {**_entry(point, told), "meaning": self._choice.means}
        if missed := list(_missed(attempts, self._ended.ports)):
            entry["attempts"] = missed[:MOST_ATTEMPTS]
        if self._ended.decrypted:
            entry["decrypted"] = True
        if asked := self._zookeeper.as_dict():
            entry["zookeeper"] = asked
        notes = [*told.notes, *([_AGED.format(self._told)] if self._told else [])]
        return PointResult(entry, notes, self.summary, *ends, passed)


MOST_WINDOWS: Final = 1000
"""Windows of a minute whose times are remembered, at least; of more some."""

_AGED: Final = (
    "more happened in groups, transactions and reads than is kept to the end: what was over became rows {} times on "
    "the way, and only the latest of it is remembered (analyzer/README.md, What is kept)"
)
_CUT: Final = (
    f"more than {MOST_COUNTED:,} topics or clients: the summary names those of them with the most exchanges, and has "
    "the others together"
)
MOST_ATTEMPTS = 1000
"""Pairs of client and server of which `_kwire.json` says that they did not meet."""
USUAL_PORT = 9092
"""Where brokers listen unless told otherwise: asked for in vain where no Kafka was heard at all."""


def _missed(attempts: Sequence[Attempt], ports: Collection[int]) -> Iterator[dict[str, Any]]:
    """Connections that were asked for in vain, of ports at which Kafka was heard or is usual."""
    for one in attempts:
        if one.port in ports or one.port == USUAL_PORT:
            times = {"first_time": one.first_ns, "last_time": one.last_ns}
            yield {
                "client": ip_text(one.client),
                "server": end_point(ip_text(one.server), one.port),
                "refused": one.refused,
                "unanswered": one.unanswered,
                "most_in_a_minute": one.most,
                **{name: rfc3339(time // 1000) for name, time in times.items()},
            }


def _groups(clients: pa.Table, before: Mapping[ClientKey, set[str]]) -> dict[ClientKey, list[str]]:
    """The groups that each client takes part in, as rows of `clients` and earlier stretches (`before`) say."""
    those = clients.select(["client_id", "client_ip", "group_ids"])
    found = {
        (row["client_id"], row["client_ip"]): row["group_ids"]
        for batch in those.to_batches(max_chunksize=_AT_ONCE)
        for row in batch.to_pylist()
        if row["group_ids"]
    }
    for key, groups in before.items():
        found[key] = sorted({*groups, *found.get(key, ())})
    return found


def _listeners() -> tuple[ResumableCollector, ...]:
    """Who learns what the traffic means."""
    return Clients(), Groups(), Offsets(), Transactions()


def chosen(
    window: Window, messages: Messages, filter: Any, connection: str | None, look_up: Callable[[str], str]
) -> Exchanges:
    """The exchanges of a window that a filter and the name of a connection let through, cheap tests first."""
    exchanges, names = window.exchanges, window.names
    if connection is not None:
        used = np.unique(exchanges.connection)
        named = np.array([names.connections[number] == connection for number in used.tolist()], bool)
        exchanges = exchanges.where(np.isin(exchanges.connection, used[named]))
    if filter is None or not len(exchanges):
        return exchanges
    yes, no = filter.rows_verdict(exchanges, look_up)
    exchanges, yes = exchanges.where(~no), yes[~no]
    if yes.all():
        return exchanges
    keep = yes.copy()
    table = exchange_tables.exchanges(names, [exchanges])
    requests, replies = exchanges.column("exchange"), exchanges.column("reply")
    for i in np.flatnonzero(~yes).tolist():
        row = plain(table.slice(i, 1), "exchanges").to_pylist()[0]
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(look_up, row["topics"])))
        exchange = Exchange(row, *messages.peek(int(exchanges.connection[i]), int(requests[i]), int(replies[i])))
        bodies = (exchange.request, exchange.response) if filter.needs_bodies else (None, None)
        keep[i] = filter.matches(row, *bodies)
    return exchanges.where(keep)


def joined(reads: Sequence[PointResult]) -> Dataset:
    """What is known of all capture points together, without tables."""
    summary = Summary()
    for read in reads:
        summary.join(read.summary)
    return Dataset(
        {},
        captures=[read.capture for read in reads],
        coverage=summary.coverage.as_dict(),
        unrecognised=summary.unrecognised(),
        summary=summary.as_dict(),
        notes=[
            *(note for read in reads for note in read.notes),
            *nothing_matches([read.passed for read in reads if read.passed is not None]),
            *([_CUT] if summary.cut else []),
        ],
        hints=list(_continued(reads)),
    )


def nothing_matches(passed: Sequence[tuple[int, int]]) -> list[str]:
    """A note where a filter let nothing through: silence would look as if nothing had been captured."""
    if not passed or any(matched for matched, _ in passed):
        return []
    return [f"0 of {sum(seen for _, seen in passed):,} exchanges match the filter"]


def _continued(reads: Sequence[PointResult]) -> Iterator[str]:
    """A hint for each capture point that goes on with the connections of an earlier one: they may be one capture in
    several files. Two points that were captured at the same time (client's and broker's side) are not that."""
    for later in reads:
        for earlier in reads:
            ended, begun = earlier.capture["last_time"], later.capture["first_time"]
            shared = len(earlier.left_open & later.from_before)
            if shared and earlier is not later and ended <= begun:
                yield (
                    f"{later.capture['name']} goes on with {shared} connection{'s' * (shared > 1)} of "
                    f"{earlier.capture['name']}: --rotated reads them as one capture"
                )


def manifest(result: Dataset) -> dict[str, Any]:
    """`_kwire.json` but for the list of files."""
    return {
        "format_version": tables.FORMAT_VERSION,
        "kwire_version": __version__,
        "captures": result.captures,
        "coverage": result.coverage,
        "unrecognised": result.unrecognised,
        "notes": result.notes,
        **({"decrypted": True} if any(one.get("decrypted") for one in result.captures) else {}),
    }


def check_names(points: Sequence[CapturePoint | LogPoint], writer: Writer) -> None:
    """Raise DatasetError where a dataset that is added to holds a capture point of the same name."""
    taken = set(writer.captures)
    for point in points:
        if point.name in taken:
            raise DatasetError(
                f"{writer.path}: has a capture point {point.name!r} already",
                "rename the capture, or leave out --append",
            )


def _entry(point: CapturePoint, told: CaptureStats) -> dict[str, Any]:
    """A capture point's entry in `_kwire.json`."""
    files = told.files
    first = min((info.first_ns for info in files if info.first_ns is not None), default=None)
    last = max((info.last_ns for info in files if info.last_ns is not None), default=None)
    return {
        "name": point.name,
        "first_time": rfc3339(first // 1000) if first is not None else None,
        "last_time": rfc3339(last // 1000) if last is not None else None,
        "link_types": sorted({link for info in files for link in info.link_types}),
        "packets": told.counts,
        "files": [
            {
                "name": info.name,
                "size": info.size,
                "mtime": rfc3339(info.mtime_ns // 1000) if info.mtime_ns else None,
                "crc32c": f"{info.crc32c:08x}",
                "packets": info.packets,
                "first_time": rfc3339(info.first_ns // 1000) if info.first_ns is not None else None,
                "last_time": rfc3339(info.last_ns // 1000) if info.last_ns is not None else None,
                "link_types": list(info.link_types),
            }
            for info in files
        ],
    }
