"""Options of reading captures, from the command line or Python down to the engine.

In: options of a command line, or arguments. Out: `ReadOptions`, and the engine's `Settings` of them. Picklable: tasks
of Spark get them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kwire.analyzer.bulk.engine import Settings as Settings
    from kwire.analyzer.options.common import ReadArguments


MOST_THREADS = 16
"""Threads at most, unless more are asked for: each sees all packets, and one after the other reads and writes."""

FEW_THREADS = 2
"""Of what runs beside others: a task of Spark, live capture on a broker's host."""


def cores() -> int:
    """Processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


class ReadOptions(NamedTuple):
    """How captures are read; None is the default.

    rotated        files that follow one another are one capture point
    ports          server ports that are Kafka whatever their content
    threads        kernels at work at once; by default as many as there are cores, `MOST_THREADS` at most
    window_bytes   capture bytes read at a time
    frame_limit    bytes of unfinished frames kept
    keylogs        TLS key logs: files
    """

    rotated: bool = False
    ports: Sequence[int] = ()
    threads: int | None = None
    window_bytes: int | None = None
    frame_limit: int | None = None
    keylogs: Sequence[str | os.PathLike[str]] = ()

    @classmethod
    def from_arguments(cls, options: ReadArguments) -> ReadOptions:
        """As a command line says (`cli.add_reading`), but no more threads than there are cores: each has tables of its
        own and sees all packets."""
        threads = None if options.threads is None else min(options.threads, cores())
        return cls(options.rotated, options.port, threads, options.window_bytes, options.frame_limit, options.keylog)

    def settings(
        self, keep_messages: bool | frozenset[int] = False, keep_records: bool = False, most: int = MOST_THREADS
    ) -> Settings:
        """Make the engine's settings. `keep_...`: what it hands out beside exchanges; `most`: upper bound of threads if
        their number was not given."""
        from kwire.analyzer.bulk.engine import Settings  # options are there sooner than what they are of

        default = Settings()
        threads = self.threads or min(most, cores())
        return Settings(
            threads=threads,
            shards=max(1, threads // 2),  # half of the work is rows: the main thread's, and those that store them
            window_bytes=self.window_bytes or default.window_bytes,
            ports=tuple(self.ports),
            keep_messages=keep_messages,
            keep_records=keep_records,
            frame_limit=self.frame_limit or default.frame_limit,
            keylogs=tuple(os.path.abspath(path) for path in self.keylogs),  # tasks stand in other folders
        )
