"""The Python interface: `replay.replay`. The command line calls the same `run.replay`, with the same options."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from analyzer.pipeline.read_options import ReadOptions
from replay import inputs, request, run
from replay.request import Asked


def replay(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    to: str,
    out: str | os.PathLike[str],
    filter: Any = None,
    rotated: bool = False,
    port: Iterable[int] = (),
    keylog: Iterable[str] = (),
    wait: bool = False,
    **options: Unpack[Asked],
) -> run.Result:
    """Send captures (or a dataset with messages) to the broker `to` (HOST:PORT) and write the RUN `out`.

    `filter`, `rotated`, `port`, `keylog` (files), `wait` and `options` are the options of `kwire replay` with the same
    names (`request.Asked`). A speed may be a number too, or None for as fast as answers allow. Raises KwireError, with
    a hint, for everything that the command refuses: options, captures, the target.
    """
    host, number = request.address(to)
    notes: list[str] = []
    wanted = request.wanted(host, number, **options)
    dial = wanted.access.dial(host, number)
    inputs.check_apart(captures, out)
    how = ReadOptions(rotated, list(port), keylogs=list(keylog))
    source = inputs.open_source(captures, wanted, how=how, filter=filter, notes=notes)
    return asyncio.run(run.replay(source, wanted, dial, out, notes, wait))
