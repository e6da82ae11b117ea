"""The Python door: `replay.replay`. The command line has its own way to the same `run.replay`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence

from analyzer.protocol import names
from replay import run
from replay.options import Options
from replay.remap import offsets, remap
from replay.send.settings import Settings
from replay.send.workers import Access


def replay(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    to: str,
    out: str | os.PathLike[str],
    speed: float | None = 1.0,
    allow: Iterable[str] = (),
    map_topic: Mapping[str, str] | None = None,
    offset_mode: str = offsets.SHIFT,
    timestamps: str = remap.KEEP,
    seed_topics: bool = False,
    yes: bool = False,
    partial: bool = False,
    audit: bool = True,
    workers: int = 1,
    access: Access | None = None,
) -> run.Result:
    """Send captures (or a dataset with messages) to the broker `to` (HOST:PORT) and write the RUN `out`.

    `speed`: 1 is as captured, None as fast as answers allow; `allow`: names of APIs that change the cluster and may be
    sent; `access`: TLS and login. The rest is as of `kwire replay`. Raises LinkError, NotEmpty, and what
    `analyzer.analyze` raises; ValueError for an unknown API or address."""
    host, colon, port = to.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{to!r} is not HOST:PORT")
    keys = {name: names.key(name) for name in allow}
    unknown = [name for name, key in keys.items() if key is None]
    if unknown:
        raise ValueError(f"no such API: {', '.join(unknown)}")
    how = access or Access()
    options = Options(
        host.strip("[]"), int(port), frozenset(key for key in keys.values() if key is not None), Settings(speed=speed),
        dict(map_topic or {}), offset_mode, timestamps, seed_topics, yes, partial, audit, processes=workers, access=how,
    )  # fmt: skip
    notes: list[str] = []
    dial = how.dial(options.host, options.port)
    return asyncio.run(run.replay(run.read(captures, notes=notes), options, dial, out, notes))
