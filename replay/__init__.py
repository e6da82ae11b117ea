"""Replays captured traffic against another broker, and compares the answers. See README.md.

result = kwire.replay("orders.pcap", to="localhost:9092", out="RUN", seed_topics=True, speed=None)
result.counts.verdicts            # how many were answered, skipped ...

Rule: `kwire.replay` is this package and the function: Python sets a package as an attribute of the one above it when
it is imported, so the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kwire.replay.api import replay

__all__ = ["replay"]


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from kwire.replay.api import replay

        return replay(*arguments, **keywords)

    @property
    def __signature__(self) -> Any:
        import inspect

        from kwire.replay.api import replay

        return inspect.signature(replay)


sys.modules[__name__].__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name == "replay":
        from kwire.replay.api import replay

        return replay
    raise AttributeError(f"module 'kwire.replay' has no attribute {name!r}")
