"""What `kwire watch` knows: a source being decoded in a thread, and what is to be shown of it.

In: a capture point that grows, a filter. Out: a `Moment`, findings, one exchange of each kind to look into. Rules: the
thread that decodes writes, others read under `lock`; the filter limits what is counted, never what is judged.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import numpy as np

from analyzer import columns
from analyzer.arrow import plain
from analyzer.bulk.engine import Engine, Settings
from analyzer.bulk.rows import Exchanges, Window, end_point
from analyzer.exchange import Exchange
from analyzer.live.counts import Counts
from analyzer.live.laps import Laps
from analyzer.meaning.latency import Latency
from analyzer.meaning.names import TopicIds
from analyzer.messages import Messages
from analyzer.points import chosen
from captures.files import CapturePoint
from captures.kernels import NULL

FINDINGS: Final = 100
"""Newest findings that are kept."""

MOST_MESSAGES: Final = 2000
"""Messages of a window up to which they are kept for a look: beyond it they cost more than the rest."""

MOST_NAMES: Final = 1_000_000
"""Distinct names (client ids, members, topics, lists of them) after which an engine is replaced by a fresh one: they
are never forgotten one by one."""

_KINDS: Final = 200


class Session:
    """See above. `ended`: all has been read; `failure`: what ended it before; `renewals`: how often a fresh engine took
    over."""

    def __init__(
        self, point: CapturePoint, settings: Settings, stdin: BinaryIO | None, wanted: Any, telling: bool,
        find: bool = True,
    ) -> None:  # fmt: skip
        self._point, self._settings = point, settings
        self.engine = Engine(point, settings, stdin)
        self.lock = threading.Lock()
        self.counts = Counts(telling)
        self.findings: deque[dict[str, Any]] = deque(maxlen=FINDINGS)
        self.fresh: deque[dict[str, Any]] = deque(maxlen=FINDINGS if not telling else None)
        """Findings that nobody took yet."""
        self.examples: dict[tuple[int, str], Exchange] = {}
        """The exchange of each API at each broker to look into: the last that failed or was slowest in its window."""
        self.wanted = wanted
        self.exchanges = self.renewals = 0
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.after: Callable[[], None] = lambda: None
        """Called after each window, by the thread that decodes."""
        self._laps = Laps(self.engine, point) if find else None
        self._latency, self._topics = Latency(), TopicIds()
        self._messages = Messages()
        self._keeps = settings.keep_messages is True

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
        while self._read():
            with self.lock:
                self.engine = Engine(self._point, self._settings, after=self.engine)
                if self._laps is not None:
                    self._laps.go_on(self.engine)
                self._latency, self._topics, self._messages = Latency(), TopicIds(), Messages()
                self.renewals += 1
        with self.lock:
            self.counts.end()
            for found in self._laps.end() if self._laps is not None else ():
                self._tell(found)

    def _read(self) -> bool:
        """Read on with this engine; whether it is to be replaced."""
        names = self.engine.merging.names
        full = False
        for window in self.engine.windows():
            self._take(window)
            self.after()
            if not full and len(names.strings) + len(names.lists) > MOST_NAMES:
                full = True
                self.engine.leave()
        return full

    def _tell(self, found: dict[str, Any]) -> None:
        self.findings.append(found)
        self.fresh.append(found)

    def _take(self, window: Window) -> None:
        window = self._latency.take(window)
        self._topics.take(window)
        kept = self._keeps and (self._wanted_bodies or len(window.message_places()[0]) <= MOST_MESSAGES)
        if kept:
            self._messages.take(window)
        rows = window.every
        if self.wanted is not None:
            rows = chosen(window, self._messages, self.wanted, None, self._topics.name)
        with self.lock:
            self.exchanges += len(window.every)
            self.counts.take(rows)
            if self._keeps:
                self._look(rows)
                self._messages.forget(window.every, rows.where(np.zeros(len(rows), bool)))
            found = list(self._laps.take(window)) if self._laps is not None else []
            for one in found:
                self._tell(one)
        if self._laps is None:
            window.names.release()

    @property
    def _wanted_bodies(self) -> bool:
        return self.wanted is not None and bool(self.wanted.needs_bodies)

    def _look(self, rows: Exchanges) -> None:
        """Keep one exchange of each kind."""
        if not len(rows):
            return
        code, latency = rows.column("error_code"), columns.latency_us(rows.columns)[0]
        rank = np.where((code != NULL) & (code != 0), 1 << 60, np.where(latency == NULL, 0, latency))
        ends = rows.names.ends
        kinds: dict[tuple[int, str], int] = {}
        for i in np.argsort(rank, kind="stable").tolist()[-_KINDS:]:
            _, _, address, port = ends[int(rows.connection[i])]
            kinds[int(rows.column("api_key")[i]), end_point(rows.names.strings[address], port)] = i
        mask = np.zeros(len(rows), bool)
        order = sorted(kinds.items(), key=lambda one: one[1])
        mask[[i for _, i in order]] = True
        some = rows.where(mask)
        made = plain(columns.exchanges(rows.names, [some]), "exchanges").to_pylist()
        asked, answered = some.column("exchange").tolist(), some.column("reply").tolist()
        for n, (key, _) in enumerate(order):
            messages = self._messages.peek(int(some.connection[n]), asked[n], answered[n])
            self.examples.pop(key, None)
            self.examples[key] = Exchange(made[n], *messages, None, self._topics.name)
            if len(self.examples) > _KINDS:
                self.examples.pop(next(iter(self.examples)))

    def drops(self) -> int | None:
        """Packets that the files read so far say were lost."""
        dropped: int | None = self.engine.reader.counts["dropped_by_capture"]
        return dropped
