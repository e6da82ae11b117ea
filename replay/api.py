"""The Python interface: `kwire.replay`. The command line calls the same `run.replay`, with the same options."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kwire.analyzer.options.declare import keywords_of
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay import inputs, request, run


@dataclass(frozen=True, kw_only=True)
class ReplayKeywords(request.ReplayRequest):
    """Keywords of `kwire.replay`: those of a request, and how captures are read. `port`: Kafka's; `keylog`: files."""

    to: str
    out: str | os.PathLike[str]
    filter: Any = None
    rotated: bool = False
    port: Sequence[int] = ()
    keylog: Sequence[str] = ()
    wait: bool = False


@keywords_of(ReplayKeywords)
def replay(captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: ReplayKeywords) -> run.Result:
    """Send captures (or a dataset with messages) to the broker `to` (HOST:PORT) and write the RUN `out`.

    The keywords are the options of `kwire replay`, by their long names (`--from` is `since`), and mean the same; a
    speed is a number too, None for as fast as answers allow. Raises KwireError, with a hint, for whatever the command
    refuses: options, captures, the target.
    """
    host, port = request.address(options.to)
    notes: list[str] = []
    resolved = request.resolve(host, port, options)
    dial = resolved.access.dial(host, port)
    inputs.check_apart(captures, options.out)
    how = ReadOptions(options.rotated, list(options.port), keylogs=list(options.keylog))
    source = inputs.open_source(captures, resolved, how=how, filter=options.filter, notes=notes)
    return asyncio.run(run.replay(source, resolved, dial, options.out, notes, options.wait))
