"""A capture point, end to end: windows of packets through the stages, over threads, as windows of what ended.

In: a `CapturePoint`. Out: a `Window` for each (`kwire.analyzer.bulk.rows`). Reading and connection tracking run ahead
of the shards by one window; each shard takes the connections whose slot is its number modulo the number of shards. What
comes out depends on the packets alone: each window is in order of the packet that completed its rows, and windows
follow one another.

Several engines, in processes that know nothing of one another, may share a capture point: each reads all of it and
works on every n-th connection. All see the same windows, and count packets and connections alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import BinaryIO, ClassVar, Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.concat import Helpers
from kwire.analyzer.bulk.framing import converse
from kwire.analyzer.bulk.rows import ShardMerger, Window, address_of
from kwire.analyzer.bulk.shard import FRAME_LIMIT, ROWS_AT_ONCE, Conversations, compile_converse, layouts
from kwire.analyzer.bulk.shard_result import ShardResult
from kwire.analyzer.bulk.zookeeper import ZooKeeperConversations
from kwire.captures.attempts import Attempt, Unmet, attempts, unmet
from kwire.captures.extras import install
from kwire.captures.files import CapturePoint
from kwire.captures.flows import WOKEN_SLOT, Assigned, Flows
from kwire.captures.kernels import compile_apart
from kwire.captures.out_of_order import WAITING_BYTES
from kwire.captures.packets import Packets, Reader, no_packets
from kwire.captures.streams import Streams
from kwire.captures.tls.ciphers import available, need
from kwire.captures.tls.keylog import KeyFiles
from kwire.captures.tls.stage import Stage
from kwire.captures.windows import USUAL_BYTES, WindowSize


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read.

    threads          kernels at work at once
    shards           what connections are divided into, each the work of one thread at a time. All look at all packets,
                     and rows of several are put in order, so as few as keep up with who reads and stores
    window_bytes     bytes of capture read at a time
    large_bytes      the same once windows do not hold much (`kwire.captures.windows.WindowSize`); 0: it is always
                     `window_bytes`
    ports            server ports that are Kafka whatever their content looks like
    keep_messages    hand out the raw bytes of messages: of all, or of some APIs (but of none above 4 MiB)
    keep_giants      of those above as well
    keep_records     hand out the bytes of record sets
    record_headers   of these the headers of their batches alone, one behind the other, as far as they are whole and of
                     magic 2, and 17 bytes of what is not
    frame_limit      bytes of frames in progress and of out-of-order payload together; a hostile capture can ask for any
                     amount, and real frames stay under Kafka's own limit of 100 MB
    keylogs          paths of TLS key logs
    open_requests    hand out the requests that are without an answer at the end of each window
    rows_at_once     a window that holds more exchanges, or topic-partitions, of one shard is handed out as several; 0:
                     never
    """

    threads: int = 2
    shards: int = 1
    window_bytes: int = USUAL_BYTES
    large_bytes: int = 0
    ports: tuple[int, ...] = ()
    keep_messages: bool | frozenset[int] = False
    keep_giants: bool = False
    keep_records: bool = False
    record_headers: bool = False
    frame_limit: int = FRAME_LIMIT
    keylogs: tuple[str, ...] = ()
    open_requests: bool = False
    rows_at_once: int = ROWS_AT_ONCE


@dataclass(frozen=True, slots=True)
class Share:
    """The connections that an engine works on: those whose four-tuple is in `groups`, of `among` so many
    (`kwire.captures.chunks.groups`).

    number, of: which share this is, of how many. groups: default: the share's own number of `of`. alone: of other
    shares' packets the reader knows only the time.
    """

    number: int = 0
    of: int = 1
    groups: tuple[int, ...] = ()
    among: int = 0
    alone: ClassVar[bool] = False

    def divide(self, assigned: Assigned) -> tuple[Assigned, np.ndarray]:
        """The packets and ends of these connections, and the slots of others that ended. Packets of others become
        strays."""
        own = self._own(assigned)
        slots = np.where(np.append(own, False)[assigned.slot], assigned.slot, -1)  # -1 is the last: a stray
        own_ends = own[assigned.ends[:, 1]]
        woken = assigned.woken[own[assigned.woken[:, WOKEN_SLOT]]]
        shared = assigned._replace(slot=slots.astype(np.int32), ends=assigned.ends[own_ends], woken=woken)
        return shared, assigned.ends[~own_ends, 1]

    def _own(self, assigned: Assigned) -> np.ndarray:
        """bool: which slots' connections are this share's."""
        from kwire.captures.chunks.groups import groups_of, pairs_of  # few engines have a share

        a_hi, a_lo, b_hi, b_lo, ports = assigned.pairs.T
        a, b = (a_hi, a_lo, ports >> np.uint64(16)), (b_hi, b_lo, ports & np.uint64(0xFFFF))
        return np.isin(groups_of(pairs_of(a, b), self.among or self.of), self.groups if self.among else (self.number,))


class ShareOfPackets(Share):
    """A share whose reader gives the packets of its connections alone: nothing is left to be divided."""

    alone: ClassVar[bool] = True

    def divide(self, assigned: Assigned) -> tuple[Assigned, np.ndarray]:
        return assigned, np.zeros(0, np.int64)


ENDED_AT_ONCE: Final = 1 << 12
"""Connections that end in one window when the capture does: what is said of one takes more memory than a packet."""

LARGEST_SHARE = 4
"""A frame larger than this part of the frame limit is counted and not kept, however many threads share the limit: 128
MiB of 512, more than the 100 MiB that brokers accept by default (socket.request.max.bytes)."""


@dataclass(slots=True)
class _Packets:
    packets: Packets
    assigned: Assigned
    base: int


@dataclass(slots=True)
class _Shard:
    streams: Streams
    conversations: Conversations
    tls: Stage | None = None
    zookeeper: ZooKeeperConversations = field(default_factory=ZooKeeperConversations)
    open_requests: bool = False

    def process(self, window: _Packets, slots: int, final: bool, keys: _Keys) -> ShardResult:
        segments = self.streams.advance(window.packets, window.assigned, window.base, slots)
        if self.tls is None and keys.blocks:
            self.tls = Stage(None, keys.blocks[0][0])
            self.tls.leave(self.conversations.begun())
        if self.tls is not None:
            segments = self.tls.take(segments, keys.blocks, self.streams.connections)
        spoken = self.zookeeper.take(segments, window.assigned.pairs[self.streams.shard :: self.streams.shards])
        spoken = [event._replace(slot=self.streams.slots(event.slot)) for event in spoken]
        ended = self.conversations.take(segments, self.streams, window.assigned, final, self.tls)
        ended = self._with_open(ended, final)
        return replace(ended, zookeeper=spoken) if spoken else ended

    def go_on(self) -> ShardResult:
        """Work on through the window of `process`, which held too much for one result."""
        return self._with_open(self.conversations.go_on(), False)

    def _with_open(self, ended: ShardResult, final: bool) -> ShardResult:
        if not self.open_requests or final or ended.stopped_at is not None:
            return ended
        return replace(ended, open=self.conversations.open_requests(self.streams))


class _Keys:
    """Sources of TLS keys: the key logs of the options, and secrets that the reader has met.

    Raises CaptureError if a key log cannot be used."""

    def __init__(self, paths: tuple[str, ...], reader: Reader, live: bool) -> None:
        self.files: KeyFiles | None = None
        self._reader = reader
        self._live = live
        self._warned = False
        if paths:
            need()
            self.files = KeyFiles(paths, growing=live)
            reader.notes += self.files.notes

    def look(self) -> None:
        """A window was read: key logs may have grown meanwhile."""
        if self._live and self.files is not None:
            self.files.refresh()
        if self._reader.secrets and not self._warned and not available():
            self._warned = True
            self._reader.notes.append(
                f"the capture holds TLS keys that are not used: that needs cryptography; {install('tls')}"
            )

    @property
    def blocks(self) -> list[tuple[int, bytes]]:
        """Each with the ordinal of the packet that it comes before."""
        if not self._reader.secrets or self._warned:
            return []
        return list(zip(self._reader.secrets_at, self._reader.secrets, strict=False))  # it may grow at this moment

    def stage(self) -> Stage | None:
        """For one shard, where a key log was named."""
        return Stage(self.files.log, live=self._live) if self.files is not None else None


@dataclass(slots=True)
class _Advertised:
    """Look up the brokers of a point.

    This is not the engine itself, which `Flows` must not hold: its windows would stay until garbage is collected.
    """

    point: CapturePoint
    settings: Settings

    def __call__(self) -> set[tuple[int, int]]:
        """Return the (address, port) of brokers that Metadata names by addresses in all of the point's files.

        A stream is read once, and says nothing of what comes."""
        if not self.point.paths or "-" in self.point.paths:
            return set()
        settings = replace(self.settings, keep_messages=False, keep_records=False)
        engine = Engine(self.point, settings, legs=False)
        ends = set()
        for window in engine.windows():
            for _, host, port, *_ in window.brokers.tolist():
                with suppress(ValueError):
                    ends.add((address_of(window.names.strings[host]), port & 0xFFFF))
        return ends


class Engine:
    """One capture point being read. `flows` knows connections, `merging` names them, `reader` knows files and notes;
    `done_packets` is how many packets the windows handed out so far cover.

    `after`: an engine that was left, whose reading this one goes on with; of all that was learned so far it knows
    nothing, so it takes up connections in their middle, and what was in progress is lost. `reader`: who gives packets,
    where that is not the files of the point; `legs`: where connections have several, the files are read for the
    addresses that brokers advertise."""

    def __init__(
        self,
        point: CapturePoint,
        settings: Settings,
        stdin: BinaryIO | None = None,
        share: Share | None = None,
        after: Engine | None = None,
        reader: Reader | None = None,
        legs: bool = True,
    ) -> None:
        # Half of what there is to compile is one kernel.
        compile_apart(converse, compile_converse)
        self.settings = settings
        if reader is None:
            reader = Reader(point, window_bytes=settings.window_bytes, stdin=stdin) if after is None else after.reader
        self.reader: Reader = reader
        self._ahead: Future[_Packets | None] | None = None if after is None else after._ahead
        self._leaving = False
        self._live = "-" in point.paths
        self._keys = _Keys(settings.keylogs, self.reader, self._live)
        self._advertised = _Advertised(point, settings)
        self.flows = Flows(alone=share is not None and share.alone, advertised=self._advertised if legs else None)
        self.merging = ShardMerger(point.name, max(1, settings.shards), self.flows, self.reader.files)
        self.packets = 0
        self.done_packets = 0
        lay = layouts()
        shards = max(1, settings.shards)
        waiting = min(WAITING_BYTES, settings.frame_limit // 2)
        self._shards = [
            _Shard(
                Streams(i, shards, max(1 << 16, waiting // shards)),
                Conversations(
                    lay,
                    settings.ports,
                    settings.keep_messages,
                    max(settings.frame_limit // (2 * shards), settings.frame_limit // LARGEST_SHARE),
                    settings.frame_limit // LARGEST_SHARE,
                    (s.KEEP_HEADERS if settings.record_headers else s.KEEP_SETS) if settings.keep_records else 0,
                    settings.keep_giants,
                    settings.rows_at_once,
                ),
                self._keys.stage(),
                open_requests=settings.open_requests,
            )
            for i in range(shards)
        ]
        self._share = share
        self._recycled: list[np.ndarray] = []

    def leave(self) -> None:
        """To be called between two windows: hand out what is done, and read no more; another engine may go on."""
        self._leaving = True

    def go_on(self, point: CapturePoint, until: int | None = None) -> None:
        """All files so far have been read, and the capture was not over (`windows`): these follow. `until`: as
        `Reader.go_on` takes it."""
        self._advertised.point = point
        self.reader.go_on(point, until)

    def take_up(self, secrets: Sequence[bytes] = ()) -> None:
        """Take up connections that another engine stored without their TLS keys.

        secrets: those of earlier files, as far as they are still known."""
        self.reader.secrets = list(secrets)
        self.reader.secrets_at = [0] * len(self.reader.secrets)
        for shard in self._shards:
            if shard.tls is not None:
                shard.tls.take_up(self.reader.secrets)

    def attempts(self) -> list[Attempt]:
        """All has been read: connections that were asked for in vain."""
        return attempts([self.unmet()])

    def unmet(self) -> Unmet:
        """Like `attempts`, as SYNs, to be joined with those of other shares.

        A share that is not `alone` sees those of all."""
        return unmet(self.flows)

    def windows(
        self, progress: Callable[[int], None] = lambda _: None, over: bool = True
    ) -> Generator[Window, None, None]:
        """Read it all. `progress` gets the bytes read so far, after each window; `over`: the capture ends there, and so
        do its connections."""
        helpers = Helpers(self.settings.threads - 1)
        try:
            for ended in self.ended(progress, over):
                yield self.merging.take(ended, self.done_packets, helpers.each)
            if over:
                self.merging.release()
        finally:
            helpers.leave()

    def ended(self, progress: Callable[[int], None] = lambda _: None, over: bool = True) -> Iterator[list[ShardResult]]:
        """Like `windows`, as one `ShardResult` a shard; the caller merges them (`merging`)."""
        # Live, one thread may sit where the next packet is awaited, and what is there is worked on all the same.
        workers = max(self.settings.threads, 1 + len(self._shards) if self._live else 1)
        pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="kwire")
        try:
            windows = self._windows()
            ahead: Future[_Packets | None] = pool.submit(next, windows, None)
            done: list[ShardResult] = []
            until = 0
            sizes = WindowSize(self.settings.window_bytes, self.settings.large_bytes or self.settings.window_bytes)
            if self.settings.large_bytes:
                self.reader.resize(sizes.size)
            while not self._leaving and (window := ahead.result()) is not None:
                ahead = pool.submit(next, windows, None)
                slots = self.flows.slots
                parts = [pool.submit(shard.process, window, slots, False, self._keys) for shard in self._shards]
                held = len(window.packets)
                while parts:
                    if done:
                        self.done_packets = until
                        yield done
                        self._recycle(done)
                    results, parts = self._in_step(pool, [part.result() for part in parts])
                    until = window.base + len(window.packets)
                    held += sum(result.rows for result in results)
                    done = results
                if sizes.after(held):
                    self.reader.resize(sizes.size)
                window.packets.release()
                progress(self.reader.bytes_read)
                if self._live and not ahead.done():  # somebody may look on, and the next packet may be long in coming
                    self.done_packets = until
                    yield done
                    self._recycle(done)
                    done = []
            if not self._leaving:  # what is left is worked on without the memory for reading
                self.reader.close()
            if done:
                self.done_packets = until
                yield done
                self._recycle(done)
            if self._leaving:
                self._ahead = ahead
                return
            if not over:
                return
            every = self._own_part(self.flows.all_end())
            for start in range(0, max(len(every.ends), 1), ENDED_AT_ONCE):
                piece = every._replace(ends=every.ends[start : start + ENDED_AT_ONCE])
                last = _Packets(no_packets(), piece, self.packets)
                final = [pool.submit(shard.process, last, self.flows.slots, True, self._keys) for shard in self._shards]
                yield [part.result() for part in final]
            self._shards = []  # of connections that have ended nothing is known any more, and memory is wanted
        finally:
            # Not waited for: where stdin is read, a thread may sit there until somebody sends more.
            pool.shutdown(wait=False, cancel_futures=not self._leaving)

    def _in_step(
        self, pool: ThreadPoolExecutor, results: list[ShardResult]
    ) -> tuple[list[ShardResult], list[Future[ShardResult]]]:
        """Return the results as far as every shard has come, and the rest of this window, as it is or as it becomes."""
        stops = [result.stopped_at for result in results if result.stopped_at is not None]
        if not stops:
            return results, []
        first: list[ShardResult] = []
        rest: list[Future[ShardResult]] = []
        for shard, result in zip(self._shards, results, strict=True):
            done, left = result.divided(min(stops))
            first.append(done)
            if left is None:
                rest.append(pool.submit(shard.go_on))
            else:
                rest.append(Future())
                rest[-1].set_result(left)
        return first, rest

    def _read(self) -> Iterator[Packets]:
        """Yield the packets that the engine before this one read ahead, and all that follow."""
        if self._ahead is not None:
            first = self._ahead.result()
            self._ahead = None
            if first is None:
                return
            yield first.packets
        for packets in self.reader:  # noqa: UP028  (`yield from` would close it with this engine)
            yield packets

    def _windows(self) -> Iterator[_Packets]:
        """Read ahead: one thread at a time is in here."""
        for packets in self._read():
            while self._recycled:
                self.flows.recycle(self._recycled.pop())
            self._keys.look()
            assigned = self._own_part(self.flows.assign(packets))
            base = self.packets
            self.packets += len(packets)
            yield _Packets(packets, assigned, base)

    def _own_part(self, assigned: Assigned) -> Assigned:
        if self._share is None:
            return assigned
        own, ended = self._share.divide(assigned)
        self._recycled.append(ended)  # no stage of this engine knows of them
        return own

    def _recycle(self, shards: list[ShardResult]) -> None:
        """The connections that ended have been named and numbered: their slots may be used again."""
        for ended in shards:
            if len(ended.slots):
                self._recycled.append(ended.slots)
