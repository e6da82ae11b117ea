"""The options of a replay, checked and resolved, from the command line or from Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kwire.replay.plan.renaming import Renaming
from kwire.replay.plan.selection import Selection
from kwire.replay.remap import offsets, remap
from kwire.replay.send.settings import Settings
from kwire.replay.send.workers import Access

LAG_LIMIT_US: Final = 50_000
"""99th percentile of the replayer's own delay above which a run is no valid load test."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a replay.

    - `access`: how workers, which are processes of their own, open connections
    - `audit`: read at the end what the target acknowledged; `seed_as_captured`: make topics with the captured
      retention too; `seed_fetched`: first write what the capture shows being read and not produced
    - `same_cluster`: also to the cluster that was captured; `missing_topics_ok`: also where the target lacks topics
      that are written to
    - `selection`, `renaming`, `times`: what of the capture is sent, under which names, and in how many copies
      (`reading.prepared`); `prefix_topics`: of all topics' names on the target; `rate`: requests a second on average,
      in place of a speed; `longest_pause_ns`: to which pauses between requests are cut
    - `in_windows`: the capture is never held whole (None: unless it is small); not `survey`: nor is it gone through
      before
    """

    host: str
    port: int
    allow: frozenset[int] = frozenset()
    settings: Settings = field(default_factory=Settings)
    map_topic: dict[str, str] = field(default_factory=dict)
    offsets: str = offsets.SHIFT
    timestamps: str = remap.KEEP
    seed_topics: bool = False
    yes: bool = False
    partial: bool = False
    missing_topics_ok: bool = False
    audit: bool = True
    seed_as_captured: bool = False
    same_cluster: bool = False
    selection: Selection = field(default_factory=Selection)
    renaming: Renaming = field(default_factory=Renaming)
    prefix_topics: str = ""
    times: int = 1
    rate: float | None = None
    longest_pause_ns: int | None = None
    seed_fetched: bool = False
    in_windows: bool | None = None
    survey: bool = True
    lag_limit_us: int = LAG_LIMIT_US
    processes: int = 1
    access: Access = field(default_factory=Access)
