"""Resolve the CAPTURE arguments of a command to capture points.

In: the CAPTURE arguments of a command. Out: capture points. Rules: a file is a capture by its first bytes, never by its
name; the files of a point are in order of their first packets; what is left out is noted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kwire.captures.errors import CaptureError
from kwire.captures.files import layouts, sidecar, urls
from kwire.captures.files.sources import Source, is_compressed, not_a_capture, place_of, unreadable, utf8

PEEK_BYTES = 1 << 20
"""How far into a file the first packet is looked for when files are put in time order."""


class CapturePoint(NamedTuple):
    """One place where traffic was captured: its name (the `capture` column) and its files in reading order.

    `paths` are as the user typed them (`-` is stdin), URLs among them: `urls.shown` before anybody sees one. `notes`
    tell what was left out while they were looked up. `folder` is where relative paths start, empty for the current
    folder: another process may read the point.
    """

    name: str
    paths: tuple[str, ...]
    notes: tuple[str, ...] = ()
    folder: str = ""


def stored_bytes(point: CapturePoint) -> int:
    """Bytes of a capture point's files, as stored. Raises CaptureError and OSError."""
    return sum(
        place_of(path).size() if urls.is_url(path) else os.path.getsize(os.path.join(point.folder, path))
        for path in point.paths
    )


_LIKELY_RATIO: Final = 10
"""Bytes that a byte of a compressed capture stands for, at most as a rule."""


def likely_bytes(point: CapturePoint, most: int, ask_stores: bool = True) -> int | None:
    """Return about how many bytes a point's files have once they are decompressed; None if it is more than `most`, or
    if that cannot be known before they are read. ask_stores: also of files behind URLs, which takes two requests."""
    # (`in` first: the paths of a folder that is followed are its files, which are begun by going through them.)
    if "-" in point.paths or (not ask_stores and any(map(urls.is_url, point.paths))):
        return None
    total = 0
    for path in point.paths:
        try:
            size, head = _size_and_head(path if urls.is_url(path) else os.path.join(point.folder, path), most - total)
        except (OSError, CaptureError):
            return None  # it is for the reader to say
        if not size:
            return None
        total += size * (_LIKELY_RATIO if is_compressed(head) else 1)
    return total if total <= most else None


def _size_and_head(path: str, most: int) -> tuple[int, bytes]:
    """Return a file's size and its first 4 bytes; 0 and none if it is larger than `most`, or of unknown size."""
    if urls.is_url(path):
        place = place_of(path)
        size = place.size()
        if not 0 < size <= most:
            return 0, b""
        with contextlib.closing(place.open()) as stream:
            return size, stream.read(4)
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= most:
        return 0, b""
    with open(path, "rb") as file:
        return status.st_size, file.read(4)


@dataclass(slots=True)
class _Glimpse:
    """Properties that the beginning of a file shows: whether it is a capture, and its first time."""

    is_capture: bool
    first_ns: int | None = None
    reason: str = field(default="")


def _glimpse(path: str) -> _Glimpse:
    """Look at the beginning of a file. Never raises for what is in it; CaptureError where it cannot be read."""
    with Source(path) as source:
        head = bytearray(PEEK_BYTES)
        filled = 0
        # Most files show their first packet in the first few kilobytes.
        for wanted in (4096, PEEK_BYTES):
            count = source.readinto(memoryview(head)[filled:wanted])
            filled += count
            content = bytes(head[:filled])
            if not layouts.is_capture(content):
                return _Glimpse(False)
            first_ns = layouts.first_time_ns(content)
            if first_ns is not None or filled < wanted:
                return _Glimpse(True, first_ns)
        return _Glimpse(True)


def begins_ns(point: CapturePoint) -> int | None:
    """When a capture point begins: the time of its first file's first packet, by what that file begins with; None where
    that does not tell. Raises CaptureError."""
    return _glimpse(os.path.join(point.folder, point.paths[0])).first_ns


def in_time_order(paths: Sequence[str]) -> tuple[str, ...]:
    """`paths` ordered by the time of their first packet; files without one come last, by name.

    Raises CaptureError where a file cannot be read or is no capture.
    """
    if len(paths) < 2:
        return tuple(paths)
    keys: list[tuple[bool, int, str]] = []
    for path in paths:
        seen = _glimpse(path)
        if not seen.is_capture:
            raise not_a_capture(urls.shown(path), b"")
        keys.append((seen.first_ns is None, seen.first_ns or 0, path))
    return tuple(path for _, _, path in sorted(keys))


def _captures_among(paths: Sequence[str]) -> tuple[list[tuple[bool, int, str]], list[str]]:
    """The captures among `paths` with their sort keys, and a note for each file that is none."""
    keys: list[tuple[bool, int, str]] = []
    notes: list[str] = []
    for path in paths:
        if not urls.is_url(path) and not os.path.isfile(path):
            continue  # folders in a folder: captures are not looked for further down
        if path.endswith(sidecar.ENDING):
            continue  # is read with its capture
        try:
            seen = _glimpse(path)
        except CaptureError as failure:
            notes.append(f"ignored: {failure.message}")
            continue
        if seen.is_capture:
            keys.append((seen.first_ns is None, seen.first_ns or 0, path))
        else:
            notes.append(f"ignored: {urls.shown(path)} is not a capture")
    return keys, notes


def _resolve(argument: str) -> CapturePoint:
    """The capture point that one argument names."""
    if argument == "-":
        return CapturePoint("stdin", ("-",))
    argument = urls.local_path(argument)
    if urls.is_url(argument):
        return _resolve_url(argument)
    if os.path.isdir(argument):
        name = os.path.basename(os.path.realpath(argument)) or argument
        paths = sorted(os.path.join(argument, entry) for entry in _listed(argument))
        what = f"{argument}: no capture in this folder"
    elif not os.path.exists(argument) and glob.has_magic(argument):
        name = argument
        paths = sorted(glob.glob(argument))
        what = f"{argument}: no capture matches this pattern"
    else:
        if not os.path.exists(argument):
            raise CaptureError(
                f"{argument}: no such file", "check the path; a pattern such as 'captures/*.pcap' needs quotes"
            )
        return CapturePoint(os.path.basename(argument), (argument,))
    return _point_of(name, paths, what)


def _point_of(name: str, paths: Sequence[str], what: str) -> CapturePoint:
    """The captures among some files as a capture point; `what` is the matter where there is none."""
    keys, notes = _captures_among(paths)
    if not keys:
        below = next(filter(None, map(_folder_with_captures, filter(os.path.isdir, paths))), None)
        there = f"{below} holds some; name each folder that is a capture point" if below else ""
        raise CaptureError(what, there or "name a pcap or pcapng file, or a folder that holds some")
    return CapturePoint(name, tuple(path for _, _, path in sorted(keys)), tuple(notes))


_LOOKED_AT = 200
"""Files below a folder that are looked at for a hint."""


def _folder_with_captures(folder: str) -> str | None:
    """The first folder below this one that holds captures, of a few."""
    looked_at = 0
    for below, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            with contextlib.suppress(CaptureError):
                if _glimpse(os.path.join(below, name)).is_capture:
                    return below
            looked_at += 1
            if looked_at == _LOOKED_AT:
                return None
    return None


def _resolve_url(url: str) -> CapturePoint:
    """Like `_resolve`, for a URL: a file, a folder, or a pattern with `*` in its last part."""
    place = place_of(url)
    shown, name = urls.shown(url), urls.base_name(url)
    folder, pattern = urls.split_pattern(url)
    try:
        kind = place.kind()
        if kind == "file":
            return CapturePoint(name, (url,))
        if kind == "folder":
            names, folder, what = place.names(), url, f"{shown}: no capture in this folder"
        elif pattern:
            names = fnmatch.filter(place_of(folder).names(), pattern)
            name, what = shown, f"{shown}: no capture matches this pattern"
        else:
            raise FileNotFoundError
    except OSError as failure:
        raise unreadable(url, failure) from failure
    return _point_of(name, [urls.child(folder, child) for child in sorted(names)], what)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as failure:
        raise unreadable(folder, failure) from failure


def capture_points(arguments: Sequence[str], rotated: bool = False) -> list[CapturePoint]:
    """The capture points that CAPTURE arguments name, in the order of the arguments.

    A file, a folder (its captures, not recursive), a glob, a URL of any of these, or `-` for stdin is one capture
    point, named by its basename (a glob by its pattern); arguments whose names would be equal are named as typed, and
    numbered if they are equal even so. `rotated` joins all arguments into one point, named like the first. The files
    of a point are in order of their first packet.

    Raises CaptureError for a missing file, a folder or pattern without captures, and a second `-`.
    """
    points = [_resolve(argument) for argument in arguments]
    if sum(point.paths == ("-",) for point in points) > 1:
        raise CaptureError("-: stdin was named twice", "name stdin once")
    if rotated and len(points) > 1:
        paths = [path for point in points for path in point.paths]
        if "-" in paths:
            raise CaptureError(
                "-: stdin cannot be joined with other files", "leave out --rotated, or save it to a file"
            )
        notes = tuple(note for point in points for note in point.notes)
        return [CapturePoint(utf8(points[0].name), in_time_order(list(dict.fromkeys(paths))), notes)]
    names = [point.name for point in points]
    chosen: list[str] = []
    for argument, name in zip(arguments, names, strict=True):
        wanted = urls.shown(argument) if names.count(name) > 1 else name
        unique, copy = wanted, 1
        while unique in chosen:
            copy += 1
            unique = f"{wanted}#{copy}"
        chosen.append(unique)
    return [CapturePoint(utf8(name), point.paths, point.notes) for name, point in zip(chosen, points, strict=True)]
