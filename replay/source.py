"""What is given to a replay, and how it is gone through: all at once, in windows, or as it comes.

In: captures, or a dataset, as they are named, and `Options`. Out: sessions, or a `Flow` that was surveyed, or a `Live`
one that has begun. Rule: what is large and can be read twice is never held whole, unless something needs it so.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from analyzer.api import Captures, Look
from analyzer.dataset import dataset
from analyzer.pipeline.points import size_of
from analyzer.pipeline.read_options import Reading
from captures.errors import KwireError
from captures.files import capture_points
from replay.live_traffic import Live
from replay.options import Options
from replay.plan import renaming, selection, sessions, stored_exchanges
from replay.plan.duplicate_points import captured_twice
from replay.plan.sessions import Session
from replay.plan.windows import Flow
from replay.send import principals

LARGE: Final = 256 << 20
"""Bytes of a capture, as it is stored, or captured bytes of a dataset, from which on it is gone through in windows."""


HELD: Final = 500_000
"""Requests that are held whole at most, where they are to be sent in a hurry."""
BUSY: Final = 8_000
"""Requests a second that are a hurry: some 10,000 are read, planned and recorded beside the sending."""


class NothingToReplay(KwireError):
    """The captures have no request that could be sent."""


def read(
    captures: Captures,
    *,
    how: Reading | None = None,
    filter: Any = None,
    notes: list[str] | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> list[Session]:
    """Sessions of captures, or of a dataset. `how` captures are read; `report` is told the capture, bytes read, and
    its size. Raises NothingToReplay where they have no request."""
    named = _named(captures, how)
    told: list[str] = []
    if len(named) == 1 and dataset.is_dataset(named[0]):
        found = selection.matching(stored_exchanges.from_dataset(named[0]), filter)
    else:
        found = sessions.from_captures(named, how=how or Reading(), filter=filter, notes=told, progress=report)
    if not any(session.requests for session in found):
        raise _nothing(told, named)
    twice = captured_twice(found)
    if twice is not None:
        first, second, count = twice
        raise KwireError(
            f"{first} and {second} hold the same connections ({count}): each request would be sent twice",
            "give one of them; of a dataset --filter chooses one, as in capture == 'client.pcap'",
        )
    if notes is not None:
        notes += told
    return found


def check_apart(captures: Captures, out: str | os.PathLike[str]) -> None:
    """A RUN replaces what is in its folder. Raises KwireError where that is what is to be replayed, or holds it."""
    folder = os.path.realpath(out)
    for one in _listed(captures):
        for path in (one, *glob.glob(one)):
            there = os.path.realpath(path)
            if path != "-" and (there == folder or there.startswith(os.path.join(folder, ""))):
                what = "is" if there == folder else "holds"
                raise KwireError(f"-o {os.fspath(out)}: {what} the capture itself", "name another folder")


def _listed(captures: Captures) -> list[str]:
    if isinstance(captures, str | os.PathLike):
        return [os.fspath(captures)]
    return [os.fspath(one) for one in captures]


def _named(captures: Captures, how: Reading | None) -> list[str]:
    """As a list, and something that can be read so."""
    named = _listed(captures)
    for one in named:
        if one != "-" and dataset.is_dataset(one) and "replay" in dataset.read_manifest(one):
            raise KwireError(
                f"{one}: a RUN, which has each request as captured and as sent", "give the capture that it was made of"
            )
    if len(named) == 1 and how is not None and how.keylogs and dataset.is_dataset(named[0]):
        raise KwireError("--keylog goes with a CAPTURE", "kwire analyze --keylog --keep-bytes makes a DATASET")
    return named


def _nothing(told: list[str], named: Sequence[str]) -> NothingToReplay:
    why = told[0] if told else f"no request in {', '.join(map(str, named))}"
    # What came on stdin is gone.
    file, keep = ("FILE", "keep it (tee FILE): ") if named[0] == "-" else (named[0], "")
    return NothingToReplay(f"nothing to replay: {why}", f"{keep}kwire summary {file} says what is in it")


def source(
    captures: Captures,
    options: Options,
    *,
    how: Reading,
    filter: Any = None,
    notes: list[str],
    report: Callable[[str, int, int], None] | None = None,
) -> list[Session] | Flow | Live:
    """What is sent: sessions, or (`Options.in_windows`) a flow that was surveyed, or (no `Options.survey`) a live one
    that has begun. Raises what `read` and `prepared` do, and KwireError for what cannot be gone through in windows."""
    named = _named(captures, how)
    in_windows = _large(named, how, filter) if options.in_windows is None else options.in_windows
    if not in_windows:
        return prepared(read(captures, how=how, filter=filter, notes=notes, report=report), options, notes)
    _check_windows(named, how, filter, twice=options.survey)
    said: list[str] = []

    def told() -> Iterator[sessions.Told]:
        ordered = None if options.survey else False
        return sessions.told(named, how=how, filter=filter, notes=said, progress=report, ordered=ordered)

    if not options.survey:
        live = Live(told, options.renaming, said=said)
        if not live.begin():
            raise _nothing(said, named)
        return live

    def glanced(look: Look) -> Iterator[sessions.Told]:
        return sessions.told(named, how=how, filter=filter, notes=said, progress=report, look=look)

    if dataset.is_dataset(named[0]):
        flow = Flow(
            lambda: stored_exchanges.told(named[0]), options.renaming, topic_ids=stored_exchanges.topic_ids(named[0])
        )
    else:
        flow = Flow(told, options.renaming, glanced)
    flow.look()
    if not flow.survey.requests:
        raise _nothing(said, named)
    if options.in_windows is None and _hurried(flow, options):
        return prepared(read(captures, how=how, filter=filter, notes=notes, report=report), options, notes)
    notes += said
    if options.access.principals and options.access.credentials is None:
        principals.check(flow.sessions, options.access.principals)
    return flow


def _large(captures: list[str], how: Reading, filter: Any) -> bool:
    """Is it one capture point that can be read twice, and too large to be held without a thought?"""
    if dataset.is_dataset(captures[0]):
        there = dataset.open_dataset(captures[0])
        large = there.coverage.get("payload_bytes", 0) >= LARGE
        return len(captures) == len(there.captures) == 1 and filter is None and large
    points = capture_points(captures, how.rotated)
    return len(points) == 1 and "-" not in points[0].paths and size_of(points[0]) >= LARGE


def _hurried(flow: Flow, options: Options) -> bool:
    """Is more to be sent a second than is read and planned beside it, and can all of it be held?"""
    speeds = [speed for _, speed in options.settings.schedule.pieces] if options.settings.schedule else []
    asked = max((speed or math.inf for speed in speeds), default=options.settings.speed or math.inf)
    survey = flow.survey
    seconds = (max(survey.ends.values()) - (survey.start_ns or 0)) / 1e9
    return survey.requests <= HELD and survey.requests * asked > BUSY * seconds


def _check_windows(captures: list[str], how: Reading, filter: Any, twice: bool) -> None:
    """Raises KwireError for what is not one capture point, or one that cannot be read `twice`."""
    option = "--in-windows" if twice else "--no-survey"
    hint = f"without {option} all of it is read first"
    if dataset.is_dataset(captures[0]):
        if not twice or filter is not None:
            raise KwireError(f"{option}{' and --filter' if twice else ''} goes with a CAPTURE", hint)
        count = len(dataset.open_dataset(captures[0]).captures) + len(captures) - 1
    else:
        points = capture_points(captures, how.rotated)
        count = 2 if twice and "-" in points[0].paths else len(points)
    if count != 1:
        raise KwireError(f"{option} goes with one capture point" + (", which is read twice" if twice else ""), hint)


def prepared(captured: Sequence[Session], options: Options, notes: list[str]) -> list[Session]:
    """What of the capture is sent, under its new names, in as many copies. Raises NothingChosen, and NobodyFor where a
    captured user has no login."""
    chosen = selection.chosen(captured, options.selection, notes)
    if options.access.principals and options.access.credentials is None:
        principals.check(chosen, options.access.principals)
    return renaming.copies(renaming.renamed(chosen, options.renaming), options.times)
