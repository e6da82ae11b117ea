"""Which files are Kafka's own, by their names, and whose they are.

In: names. Out: a `LogPoint`, the segments of a partition. Nothing is read and nothing heavy imported: every command
asks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from kwire.captures.errors import KwireError

_SEGMENT: Final = re.compile(r"\d{20}\.log(\.(deleted|cleaned|swap))?|\d{20}-\d{10}\.checkpoint(\.(deleted|part))?")
_LOG: Final = re.compile(r"\d{20}\.log")
_BESIDE: Final = re.compile(r"\d{20}\.(index|timeindex|txnindex|snapshot)(\.(deleted|cleaned|swap))?")
_SNAPSHOTS_OF: Final = "__cluster_metadata"
_FOLDER: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})")
_MOVED: Final = re.compile(r"\.[0-9a-f]{32}-(delete|future|stray)$")


class LogError(KwireError):
    """A file whose content does not match its name."""


class LogPoint(NamedTuple):
    """The segments of one partition, in order of their offsets; topic and partition are None if no folder names
    them."""

    name: str
    paths: tuple[Path, ...]
    topic: str | None
    partition: int | None


def is_segment(path: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a log segment or snapshot of Kafka."""
    return _SEGMENT.fullmatch(Path(path).name) is not None


def beside_kind(path: str | os.PathLike[str]) -> str | None:
    """`index`, `timeindex`, `txnindex` or `snapshot` by a file's name; None for others."""
    match = _BESIDE.fullmatch(Path(path).name)
    return match[1] if match else None


def is_log(argument: str) -> bool:
    """Whether an argument of `show` is one of Kafka's files, or a folder of segments."""
    return log_point(argument) is not None or (beside_kind(argument) is not None and Path(argument).is_file())


def log_point(argument: str) -> LogPoint | None:
    """Return the segments that an argument names: a segment, or a folder that holds some; None if it is neither."""
    path = Path(argument)
    if path.is_dir():
        # Not its snapshots, which say again what the log says, nor what is being deleted.
        paths = tuple(
            sorted((file for file in path.iterdir() if _LOG.fullmatch(file.name)), key=lambda file: file.name)
        )
        return LogPoint(path.resolve().name, paths, *partition_of(path)) if paths else None
    if is_segment(path) and path.is_file():
        topic, partition = partition_of(path.resolve().parent)
        # Only KRaft writes snapshots, wherever somebody has put this one: its secrets go by that.
        return LogPoint(path.name, (path,), _SNAPSHOTS_OF if ".checkpoint" in path.name else topic, partition)
    return None


def partition_of(folder: Path) -> tuple[str | None, int | None]:
    """Return topic and partition in a folder's name (also of one being deleted or moved: `-delete`, `-future`,
    `-stray`)."""
    match = _FOLDER.fullmatch(_MOVED.sub("", folder.resolve().name))
    return (match[1], int(match[2])) if match and int(match[2]) < 1 << 31 else (None, None)
