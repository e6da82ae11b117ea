"""Limit the cost of one message that is shown whole, as `show --tree` and `--json` do.

A message is hostile input: a few kilobytes may hold compressed batches of gigabytes, or millions of records. In: what
is about to be opened. Out: whether it still may be. Rule: who stops says so where the rest would stand.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

DEPTH: Final = 64
"""How deep a message may lie in messages. Kafka's brokers refuse an Envelope in an Envelope; a stack has an end."""

FIELDS: Final = 1_000_000
"""Fields and elements of one message that become values: the largest honest messages (metadata of 100,000 partitions)
have eight for each partition; each costs some 200 bytes and a microsecond or two."""


BYTES: Final = 64 << 20
"""What the batches of one message may become when decompressed."""

PAGE: Final = 10_000
"""Nodes of a message's tree that are shown at once, and records that are looked at for a page: people look at a few."""


@dataclass(slots=True)
class Budget:
    """Shared by all that one message holds. `bytes`: what its batches may become when decompressed; `nodes`: records
    and their headers that are made objects; `seconds`: none is begun after so long."""

    bytes: int = BYTES
    nodes: int = PAGE
    seconds: float = 2.0
    _began: float | None = None
    _cut: bool = False

    def start(self) -> None:
        """Time counts from the first call on: the first records of all may have to wait for compilers."""
        if self._began is None:
            self._began = time.monotonic()

    def spent(self) -> str | None:
        """Which part is used up, for people; None where there is some of each."""
        if self._cut:
            return f"stopped after {self.seconds:g} s"
        if self.bytes <= 0:
            return "what is decompressed of one message is limited (--budget)"
        if self.nodes <= 0:
            return "the records of one message that are shown are limited (--page)"
        return f"stopped after {self.seconds:g} s" if self._late() else None

    def _late(self) -> bool:
        return self._began is not None and time.monotonic() - self._began > self.seconds

    def cut(self) -> bool:
        """Is the time up, and so whatever is being done cut short?"""
        self._cut = self._cut or self._late()
        return self._cut
