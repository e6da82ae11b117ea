"""Session of `kwire watch`: decodes a source in a thread, and holds what is shown of it.

In: a capture point that grows, a filter. Out: a `Moment`, findings, one exchange of each kind to look into. Rules: the
thread that decodes writes, others read under `lock`; the filter limits what is counted, never what is judged. A folder
is read file by file where its place is kept: between two files all that is known may be stored, for a session that goes
on there (`SessionState`); where it ends, requests wait for their answers in the next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, BinaryIO, Final, cast

import numpy as np

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.latency import Latency
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.bulk.rows import Exchanges, Window, end_point
from kwire.analyzer.checkpoints.checkpoint import fill
from kwire.analyzer.frame.arrow import plain
from kwire.analyzer.live.evaluation_windows import EvaluationWindows, finding_key
from kwire.analyzer.live.folder_checkpoint import FolderCheckpoint
from kwire.analyzer.live.live_counts import Counts
from kwire.analyzer.live.metrics import Metrics
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import HeldMessages
from kwire.analyzer.pipeline.drive import Sink, drive
from kwire.analyzer.pipeline.selection import chosen, record_payloads
from kwire.captures.files import CapturePoint
from kwire.captures.kernels import NULL
from kwire.captures.live.follow import Follower, Known, still_there

FINDINGS: Final = 100
"""Newest findings that are kept."""

MOST_MESSAGES: Final = 2000
"""Newest messages of a window that are kept for a look: more cost more than all else."""

MOST_NAMES: Final = 250_000
"""Distinct names (client ids, members, topics, lists of them) after which an engine is replaced by a fresh one: they
are never forgotten one by one."""

_KINDS: Final = 200

STORING: Final = 0.1
"""The share of the time that may go into storing what is known: large files are stored at once, of many small ones the
last."""


@dataclass(slots=True)
class SessionState:
    """State of a session between two files, besides its engine; `read`: files that need not be read again."""

    counts: Counts
    laps: EvaluationWindows | None
    latency: Latency
    topics: TopicIds
    messages: HeldMessages
    read: list[tuple[Any, ...]] = field(default_factory=list)
    rows: dict[str, bytes] = field(default_factory=dict)
    exchanges: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    fresh: list[dict[str, Any]] = field(default_factory=list)


class WatchSession(Sink[None]):
    """See above. `ended`: all has been read; `failure`: what ended it before; `renewals`: how often a fresh engine took
    over; `place`: where to go on, and what is kept for those who come after, of the folder that `stdin` follows. Raises
    CheckpointError."""

    def __init__(
        self,
        point: CapturePoint,
        settings: Settings,
        stdin: BinaryIO | Follower | None,
        wanted: Any,
        telling: bool,
        find: bool = True,
        place: FolderCheckpoint | None = None,
    ) -> None:
        before = place.before if place is not None else None
        if before is not None:
            settings = replace(settings, shards=int(before["about"]["shards"]))
        settings = replace(settings, open_requests=True)
        self._point, self._settings = point, settings
        self.engine = Engine(point, settings, cast(BinaryIO, stdin))
        self.lock = threading.Lock()
        self.counts = Counts(telling, self.topic_name)
        self.findings: deque[dict[str, Any]] = deque(maxlen=FINDINGS)
        self.fresh: deque[dict[str, Any]] = deque(maxlen=FINDINGS if not telling else None)
        """Findings that nobody took yet."""
        self.examples: dict[tuple[int, str], Exchange] = {}
        """The exchange of each API at each broker to look into: the last that failed or was slowest in its window."""
        self.wanted = wanted
        self._payloads = record_payloads(wanted, None)
        self.exchanges = self.renewals = 0
        self._full = False
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.after: Callable[[], None] = lambda: None
        """Called after each window, by the thread that decodes."""
        self.metrics: Metrics | None = None
        """Counts everything too, where that was asked for."""
        self._laps = EvaluationWindows(self.engine, point) if find else None
        self._latency, self._topics = Latency(), TopicIds()
        self._messages = HeldMessages()
        self._keeps = settings.keep_messages is True
        self._place, self._files = place, stdin
        self._stored, self._took = monotonic(), 0.0
        self._end_at: tuple[int, int] | None = None
        """Where the session before ended in the middle of a file, in exchanges, and the last second that it told."""
        self.notes_before = 0
        """Notes of the reader that were said before."""
        if place is not None:
            self._end_at = place.end
            if before is not None:
                self._take_up(before)
            if self._laps is not None:
                for who, since in place.findings.items():
                    self._laps.told[who] = max(since, self._laps.told.get(who, since))

    def start(self) -> None:
        threading.Thread(target=self._run, name="kwire decode", daemon=True).start()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.ended.set()

    def run(self) -> None:
        """Read it all. An engine that has numbered too many names is replaced by a fresh one, which takes up the
        connections in their middle."""
        if self._place is None:
            self._read_on(over=True)
        else:
            for path in self._point.paths:  # each file of the folder, once it is there
                self.engine.go_on(CapturePoint(self._point.name, (path,)))
                self._read_on(over=False)
                self._between_files()
        with self.lock:
            self.counts.end()
            for finding in self._laps.end() if self._laps is not None else ():
                self._tell(finding)

    def _read_on(self, over: bool) -> None:
        while self._read(over):
            with self.lock:
                self.engine = Engine(self._point, self._settings, after=self.engine)
                if self._laps is not None:
                    self._laps.go_on(self.engine)
                self._latency, self._topics, self._messages = Latency(), TopicIds(), HeldMessages()
                self.renewals += 1

    def _read(self, over: bool) -> bool:
        """Read on with this engine; whether it is to be replaced. `over`: the capture ends where its files do."""
        self._full = False
        for _ in drive(self.engine, [self], over=over):
            pass
        return self._full

    def take(self, window: Window) -> Iterable[None]:
        """Take a window; once there are too many names, the engine is left after it."""
        names = self.engine.merging.names
        self._take(window)
        self.after()
        if not self._full and len(names.strings) + len(names.lists) > MOST_NAMES:
            self._full = True
            self.engine.leave()
        return ()

    # -- between files -------------------------------------------------------------------------------------------------
    def _state(self) -> SessionState:
        return SessionState(self.counts, self._laps, self._latency, self._topics, self._messages)

    def _between_files(self) -> None:
        """A file has ended, unless all was: store what is known, if that is not too soon."""
        follower = self._files
        assert isinstance(follower, Follower)
        assert self._place is not None
        begun = monotonic()
        if follower.stopped or self._took > STORING * (begun - self._stored):
            return
        follower.read = still_there(follower.captures(), follower.read)
        with self.lock:
            state = self._state()
            state.read = [tuple(known_file) for known_file in follower.read]
            state.exchanges = self.exchanges
            state.rows = self._laps.rows() if self._laps is not None else {}
            state.findings, state.fresh = list(self.findings), list(self.fresh)
            self._place.store(self._settings.shards, [self.engine, state])
        self._stored = monotonic()
        self._took = self._stored - begun

    def _take_up(self, before: dict[str, Any]) -> None:
        """Go on where another session was between two files."""
        state = self._state()
        fill(before, [self.engine, state], watch=True)
        self.engine.take_up()
        assert isinstance(self._files, Follower)
        assert self._place is not None
        self._files.read = [Known(*known_file) for known_file in state.read]
        if self._end_at is not None and self._end_at[0] < state.exchanges:
            self._end_at = None  # the snapshot has it
        self.exchanges = state.exchanges
        self.notes_before = len(self.engine.reader.notes)
        self.findings.extend(state.findings)
        laps = self._laps
        if laps is None:
            return
        laps.take_rows(state.rows)
        findings = self._place.findings
        self.fresh.extend(
            row for row in state.fresh if findings.get(finding_key(row), -1) < laps.told.get(finding_key(row), 0)
        )

    def since(self, row: dict[str, Any]) -> int:
        """When the lap began that a finding was told in."""
        return self._laps.told.get(finding_key(row), 0) if self._laps is not None else 0

    def _tell(self, finding: dict[str, Any]) -> None:
        self.findings.append(finding)
        self.fresh.append(finding)
        if self.metrics is not None:
            self.metrics.finding(finding["code"], finding["severity"])

    def _take(self, window: Window) -> None:
        window = self._latency.take(window)
        self._topics.take(window)
        if self._keeps:
            self._messages.take(window, None if self._wanted_bodies else MOST_MESSAGES)
        rows = window.every
        if self.wanted is not None:
            rows = self._chosen(window)
        with self.lock:
            self._count(window, rows)
            if self._keeps:
                self._look(rows)
                self._messages.forget(window.every, rows.where(np.zeros(len(rows), bool)))
            findings = list(self._laps.take(window, self.counts.open.standstills)) if self._laps is not None else []
            for finding in findings:
                self._tell(finding)
        if self._laps is None:
            window.names.release()

    def _count(self, window: Window, rows: Exchanges) -> None:
        """Its exchanges; `rows`: those that are wanted. Where a session before ended among them, all until there was
        told by it."""
        count, self.exchanges = self.exchanges, self.exchanges + len(window.every)
        if self.metrics is not None:
            self.metrics.take(rows)
        if self._end_at is None or self._end_at[0] > self.exchanges:
            self.counts.take(rows, window.open)
            return
        before = np.arange(len(window.every)) < self._end_at[0] - count
        for mask in (before, ~before):
            part = window.only(window.every.where(mask))
            rows = part.exchanges
            if self.wanted is not None:
                rows = self._chosen(part)
            self.counts.take(rows)
            if self._end_at is not None:
                self.counts.end_as_before(self._end_at[1])
                self._end_at = None

    def _chosen(self, window: Window) -> Exchanges:
        return chosen(window, self._messages, self.wanted, None, self._topics.name, self._payloads)

    @property
    def _wanted_bodies(self) -> bool:
        return self.wanted is not None and bool(self.wanted.needs_bodies)

    def _look(self, rows: Exchanges) -> None:
        """Keep one exchange of each kind."""
        if not len(rows):
            return
        code, latency = rows.column("error_code"), exchange_tables.latency_us(rows.columns)[0]
        rank = np.where((code != NULL) & (code != 0), 1 << 60, np.where(latency == NULL, 0, latency))
        ends = rows.names.ends
        kinds: dict[tuple[int, str], int] = {}
        for i in np.argsort(rank, kind="stable").tolist()[-_KINDS:]:
            _, _, address, port = ends[int(rows.connection[i])]
            kinds[int(rows.column("api_key")[i]), end_point(rows.names.strings[address], port)] = i
        mask = np.zeros(len(rows), bool)
        order = sorted(kinds.items(), key=lambda pair: pair[1])
        mask[[i for _, i in order]] = True
        some = rows.where(mask)
        rows_made = plain(exchange_tables.exchanges(rows.names, [some]), "exchanges").to_pylist()
        requests, answered = some.column("exchange").tolist(), some.column("reply").tolist()
        for n, (key, _) in enumerate(order):
            messages = self._messages.peek(int(some.connection[n]), requests[n], answered[n])
            self.examples.pop(key, None)
            self.examples[key] = Exchange(rows_made[n], *messages, None, self._topics.name)
            if len(self.examples) > _KINDS:
                self.examples.pop(next(iter(self.examples)))

    def topic_name(self, topic_id: str) -> str:
        """The name of a topic id, as far as messages told it."""
        return self._topics.name(topic_id)

    def drops(self) -> int | None:
        """Packets that the files read so far say were lost."""
        dropped: int | None = self.engine.reader.counts["dropped_by_capture"]
        return dropped
