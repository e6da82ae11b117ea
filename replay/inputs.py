"""Opens what a replay was given: captures or a dataset, as sessions in memory or as another `Source`.

In: names of captures or of a dataset, and `Options`. Out: sessions, or a `Source`. Rule: a large capture that can be
read twice is never held in memory, unless an option needs all of it.
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kwire.analyzer.api import Captures, ChooseExchanges
from kwire.analyzer.dataset import dataset
from kwire.analyzer.pipeline.points import size_of
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.errors import KwireError
from kwire.captures.files import capture_points
from kwire.replay.live_traffic import LiveSource
from kwire.replay.options import Options
from kwire.replay.plan import renaming, selection, sessions, stored_exchanges
from kwire.replay.plan.duplicate_points import duplicate_points
from kwire.replay.plan.first_pass import FirstPass
from kwire.replay.plan.sessions import CapturedExchange, Session
from kwire.replay.plan.windows import TwoPassReader
from kwire.replay.send import principals
from kwire.replay.source import MemorySource, Source, TwoPassSource

LARGE: Final = 256 << 20
"""Bytes of a stored capture, or captured bytes of a dataset, from which on it is sent in windows."""
HELD: Final = 500_000
"""Requests that are held in memory at most, if they are to be sent fast."""
BUSY: Final = 8_000
"""Requests a second that are fast: some 10,000 can be read, planned and recorded beside the sending."""


class NothingToReplayError(KwireError):
    """The captures have no request that can be sent."""


def read(
    captures: Captures,
    *,
    how: ReadOptions | None = None,
    filter: Any = None,
    notes: list[str] | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> list[Session]:
    """Read the sessions of captures, or of a dataset. `how`: captures are read; `report` gets the capture, bytes read,
    and its size. Raises NothingToReplayError if there is no request."""
    paths = _paths(captures, how)
    reading_notes: list[str] = []
    if len(paths) == 1 and dataset.is_dataset(paths[0]):
        captured = selection.matching(stored_exchanges.from_dataset(paths[0]), filter)
    else:
        captured = sessions.from_captures(
            paths, how=how or ReadOptions(), filter=filter, notes=reading_notes, progress=report
        )
    if not any(session.requests for session in captured):
        raise _nothing(reading_notes, paths)
    duplicate = duplicate_points(captured)
    if duplicate is not None:
        first, second, count = duplicate
        raise KwireError(
            f"{first} and {second} hold the same connections ({count}): each request would be sent twice",
            "give one of them; of a dataset --filter chooses one, as in capture == 'client.pcap'",
        )
    if notes is not None:
        notes += reading_notes
    return captured


def check_apart(captures: Captures, out: str | os.PathLike[str]) -> None:
    """Check that the RUN, which replaces its folder, does not replace the capture. Raises KwireError if it does."""
    folder = os.path.realpath(out)
    for capture in _listed(captures):
        for path in (capture, *glob.glob(capture)):
            there = os.path.realpath(path)
            if path != "-" and (there == folder or there.startswith(os.path.join(folder, ""))):
                what = "is" if there == folder else "holds"
                raise KwireError(f"-o {os.fspath(out)}: {what} the capture itself", "name another folder")


def _listed(captures: Captures) -> list[str]:
    if isinstance(captures, str | os.PathLike):
        return [os.fspath(captures)]
    return [os.fspath(capture) for capture in captures]


def _paths(captures: Captures, how: ReadOptions | None) -> list[str]:
    """The captures as a list of what can be read with these options."""
    paths = _listed(captures)
    for path in paths:
        if path != "-" and dataset.is_dataset(path) and "replay" in dataset.read_manifest(path):
            raise KwireError(
                f"{path}: a RUN, which has each request as captured and as sent", "give the capture that it was made of"
            )
    if len(paths) == 1 and how is not None and how.keylogs and dataset.is_dataset(paths[0]):
        raise KwireError("--keylog goes with a CAPTURE", "kwire analyze --keylog --keep-bytes makes a DATASET")
    return paths


def _nothing(reading_notes: list[str], paths: Sequence[str]) -> NothingToReplayError:
    why = reading_notes[0] if reading_notes else f"no request in {', '.join(map(str, paths))}"
    # What came on stdin is gone.
    file, keep = ("FILE", "keep it (tee FILE): ") if paths[0] == "-" else (paths[0], "")
    return NothingToReplayError(f"nothing to replay: {why}", f"{keep}kwire analyze {file} says what is in it")


def open_source(
    captures: Captures,
    options: Options,
    *,
    how: ReadOptions,
    filter: Any = None,
    notes: list[str],
    report: Callable[[str, int, int], None] | None = None,
) -> Source:
    """Open what is to be sent: in memory, read twice (`Options.in_windows`), or live (without `Options.survey`).

    A source that is read twice has made its first pass, a live one has its first request. Raises the errors of `read`
    and `prepared`, and KwireError for what cannot be sent in windows.
    """
    paths = _paths(captures, how)

    def in_memory() -> Source:
        captured = read(captures, how=how, filter=filter, notes=notes, report=report)
        return MemorySource(prepared(captured, options, notes))

    in_windows = is_large(paths, how, filter) if options.in_windows is None else options.in_windows
    if not in_windows:
        return in_memory()
    _check_windows(paths, how, filter, twice=options.survey)
    reading_notes: list[str] = []

    def exchanges(look: ChooseExchanges | None = None, ordered: bool | None = None) -> Iterator[CapturedExchange]:
        return sessions.read_exchanges(
            paths, how=how, filter=filter, notes=reading_notes, progress=report, ordered=ordered, look=look
        )

    if not options.survey:
        live = LiveSource(lambda: exchanges(ordered=False), options.renaming, reading_notes=reading_notes)
        if not live.begin():
            raise _nothing(reading_notes, paths)
        return live
    if dataset.is_dataset(paths[0]):
        ids = stored_exchanges.topic_ids(paths[0])
        reader = TwoPassReader(lambda: stored_exchanges.read_exchanges(paths[0]), options.renaming, topic_ids=ids)
    else:
        reader = TwoPassReader(exchanges, options.renaming, exchanges)
    reader.read_first_pass()
    if not reader.first.requests:
        raise _nothing(reading_notes, paths)
    if options.in_windows is None and _is_too_fast(reader.first, options):
        return in_memory()
    notes += reading_notes
    if options.access.principals and options.access.credentials is None:
        principals.check(reader.sessions, options.access.principals)
    return TwoPassSource(reader)


def is_large(paths: list[str], how: ReadOptions, filter: Any) -> bool:
    """Say whether captures, or a dataset, are one capture point that can be read twice, and too large to be held in
    memory by default."""
    if dataset.is_dataset(paths[0]):
        stored = dataset.open_dataset(paths[0])
        large = stored.coverage.get("payload_bytes", 0) >= LARGE
        return len(paths) == len(stored.captures) == 1 and filter is None and large
    points = capture_points(paths, how.rotated)
    return len(points) == 1 and "-" not in points[0].paths and size_of(points[0]) >= LARGE


def _is_too_fast(first: FirstPass, options: Options) -> bool:
    """Is it to be sent faster than it can be read and planned beside the sending, and can all of it be held?"""
    speeds = [speed for _, speed in options.settings.schedule.pieces] if options.settings.schedule else []
    fastest = max((speed or math.inf for speed in speeds), default=options.settings.speed or math.inf)
    seconds = (max(first.ends.values()) - (first.start_ns or 0)) / 1e9
    return first.requests <= HELD and first.requests * fastest > BUSY * seconds


def _check_windows(paths: list[str], how: ReadOptions, filter: Any, twice: bool) -> None:
    """Raise KwireError for what is not one capture point, or one that cannot be read `twice`."""
    option = "--in-windows" if twice else "--no-survey"
    hint = f"without {option} all of it is read first"
    if dataset.is_dataset(paths[0]):
        if not twice or filter is not None:
            raise KwireError(f"{option}{' and --filter' if twice else ''} goes with a CAPTURE", hint)
        count = len(dataset.open_dataset(paths[0]).captures) + len(paths) - 1
    else:
        points = capture_points(paths, how.rotated)
        count = 2 if twice and "-" in points[0].paths else len(points)
    if count != 1:
        raise KwireError(f"{option} goes with one capture point" + (", which is read twice" if twice else ""), hint)


def prepared(captured: Sequence[Session], options: Options, notes: list[str]) -> list[Session]:
    """Choose what of the capture is sent, under its new names, in as many copies. Raises NothingChosenError, and
    MissingCredentialsError if a captured user has no login."""
    chosen = selection.chosen(captured, options.selection, notes)
    if options.access.principals and options.access.credentials is None:
        principals.check(chosen, options.access.principals)
    return renaming.copies(renaming.renamed(chosen, options.renaming), options.times)
