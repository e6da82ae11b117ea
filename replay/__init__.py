"""Replays captured traffic against another broker, and compares the answers. See README.md.

result = replay.replay("orders.pcap", to="localhost:9092", out="RUN", seed_topics=True, speed=None)
result.counts.verdicts            # how many were answered, skipped ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kwire.replay.api import replay

__all__ = ["replay"]


def __getattr__(name: str) -> Any:
    if name == "replay":
        from kwire.replay.api import replay

        return replay
    raise AttributeError(f"module 'replay' has no attribute {name!r}")
