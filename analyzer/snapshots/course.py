"""A capture point that is read file by file, and may be left between two files and taken up by another process.

In: the files of a capture point as they become whole; a snapshot. Out: (name of a table, rows) that are known for good,
a snapshot, and in the end what one pass over all files would have given besides. Rules

- Whatever stands where a file ends goes on in the next: connections, unfinished messages, requests without an answer.
- All rows that are known are handed out before a snapshot is taken, so rows are in it never twice.
- A snapshot is read with the options that it was made with, or not at all.
- Names for topic ids are known as far as messages have said them: what comes later is not read ahead (`--filter` with
  a topic, records of internal topics).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa

from analyzer.bulk.engine import Engine, Settings
from analyzer.parts import ROW_GROUP_ROWS
from analyzer.points import Choice, PointRead, PointTables
from analyzer.records.tables import NO_RECORDS
from analyzer.snapshots import sealing
from analyzer.snapshots.codec import Decoder, Encoder, SnapshotError, damaged
from analyzer.snapshots.inventory import kinds, shape
from captures.cache import packed, unpacked
from captures.files import CapturePoint

MOST_BYTES: Final = 1 << 31
"""Of a snapshot, before it is compressed: beyond it what is known of the traffic has become too much to be stored again
and again."""

Rows = Iterator[tuple[str, pa.Table]]


class Course:
    """One capture point. `secrets`: of TLS, which earlier files brought along, where they are still known."""

    def __init__(
        self, name: str, settings: Settings, choice: Choice, snapshot: bytes | None = None,
        secrets: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        self.name = name
        self._settings, self._choice = settings, choice
        stored = None if snapshot is None else _content(snapshot)
        threads = settings.threads if stored is None else int(stored["about"]["threads"])
        settings = replace(settings, threads=threads, keep_records=choice.records != NO_RECORDS)
        about = _about(name, settings, choice)
        if stored is not None and stored["about"] != about:
            raise SnapshotError(_difference(stored["about"], about), "give the same options, or a new dataset")
        self._about = about
        self._engine = Engine(CapturePoint(name, ()), settings)
        self._made = PointTables(self._engine.merging.names, choice, threads)
        if stored is not None:
            self._fill(stored["state"], secrets)

    @property
    def secrets(self) -> list[bytes]:
        """TLS secrets that the files so far brought along."""
        return self._engine.reader.secrets

    def read(self, files: CapturePoint) -> Rows:
        """Further files of the capture point, whole: the rows that are known with them."""
        self._engine.go_on(files)
        yield from self._windows(over=False)
        yield from self._made.flush()
        yield from self._made.opened()

    def _windows(self, over: bool) -> Rows:
        made = self._made
        for window in self._engine.windows(over=over):
            made.take(window)
            yield from made.tables()
            if made.rows >= ROW_GROUP_ROWS:
                yield from made.flush()

    def finish(self) -> Generator[tuple[str, pa.Table], None, PointRead]:
        """The capture is over: all rows that are left, and what is known of the capture point."""
        made = self._made
        yield from self._windows(over=True)
        yield from made.flush()
        yield from made.rest()
        yield from made.meant()
        engine = self._engine
        return made.finish(CapturePoint(self.name, ()), engine.reader, engine.attempts())

    # -- snapshots -----------------------------------------------------------------------------------------------------
    def snapshot(self) -> bytes:
        """All that is known between two files, sealed. Raises SnapshotError."""
        numbered = {kind.of: (number, kind) for number, kind in enumerate(kinds())}
        state = Encoder(numbered).node([self._engine, self._made])
        content = packed({"shape": shape(), "about": self._about, "state": state})
        if len(content) > MOST_BYTES:
            raise SnapshotError(
                f"{self.name}: what is known of the traffic takes {len(content):,} bytes",
                "--no-meaning keeps less, and so does a new dataset now and then",
            )
        return sealing.seal(struct.pack("<Q", len(content)) + pa.compress(content, "zstd", asbytes=True))

    def _fill(self, state: Any, secrets: Sequence[bytes]) -> None:
        """Put what was stored into the place of what is new."""
        engine = self._engine
        try:
            Decoder(list(kinds())).value(state, [engine, self._made])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            raise damaged() from None
        engine.reader.secrets = list(secrets)
        engine.reader.secrets_at = [0] * len(engine.reader.secrets)
        engine.take_up()


def _content(snapshot: bytes) -> dict[str, Any]:
    content = sealing.opened(snapshot)
    try:
        size = struct.unpack_from("<Q", content)[0]
        if size > MOST_BYTES:
            raise damaged()
        stored: dict[str, Any] = unpacked(memoryview(pa.decompress(content[8:], size, "zstd", asbytes=True)))
        if stored["shape"] != shape():
            raise SnapshotError(
                "a snapshot of another version of kwire", "begin anew: analyse the captures into a new dataset"
            )
        stored["about"]["threads"] + 0
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError, pa.ArrowException, OSError):
        raise damaged() from None
    return stored


def _about(name: str, settings: Settings, choice: Choice) -> dict[str, Any]:
    """What must be the same where a snapshot is taken up, as plain text and numbers."""
    asked = asdict(settings)
    return {
        "capture": name,
        "threads": settings.threads,
        "ports": sorted(settings.ports),
        "frame_limit": asked["frame_limit"],
        "keylog": bool(settings.keylogs),
        "keep_bytes": [choice.keep_bytes, choice.keep_secrets],
        "records": [choice.records, choice.limits.bytes, choice.limits.ratio],
        "meaning": choice.meaning,
        "filter": None if choice.filter is None else str(choice.filter),
        "connection": choice.connection,
    }


def _difference(stored: dict[str, Any], asked: dict[str, Any]) -> str:
    """Which option is another one."""
    names = [name for name in asked if stored.get(name) != asked[name]]
    shown = ", ".join(f"{name} was {stored.get(name)!r}, now {asked[name]!r}" for name in names)
    return f"the snapshot was made with other options: {shown}"
