"""Objects of the inventory as one sealed snapshot, and back.

In: what holds state, and how it was read (`about`: plain text and numbers, among them how many `shards`). Out: bytes;
and the same objects, made anew elsewhere and filled. Rules: a snapshot is put into objects that were made with the
options it was made with, or not at all; the keys of TLS are not in it (`inventory`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.bulk.engine import Settings
from kwire.analyzer.checkpoints import authentication
from kwire.analyzer.checkpoints.codec import CheckpointError, Decoder, Encoder, damaged
from kwire.analyzer.checkpoints.inventory import kinds, shape
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.captures.cache import next_unpacked, packed, pieces, unpacked

MOST_BYTES: Final = 1 << 31
"""Of a snapshot, before it is compressed: beyond it what is known of the traffic has become too much to be stored again
and again."""


def copied(objects: list[Any], into: list[Any]) -> None:
    """Put what some objects hold into others of their kind, which share nothing with them then."""
    trees = _encoder(watch=False).trees(objects)
    _fill((unpacked(memoryview(packed(tree))) for tree in trees), into, watch=False)


def _encoder(watch: bool) -> Encoder:
    return Encoder({kind.of: (number, kind) for number, kind in enumerate(kinds(watch))})


def packed_checkpoint(
    name: str, about: dict[str, Any], objects: list[Any], watch: bool = False, key: bytes | None = None
) -> bytes:
    """Store what objects hold as an authenticated checkpoint.

    name     whose state it is, for messages
    watch    also objects of `kwire watch`
    key      key of the user whose checkpoint it is, if it is another one's

    Raises CheckpointError."""
    sink, size = pa.BufferOutputStream(), 0
    trees = itertools.chain([{"shape": shape(watch), "about": about}], _encoder(watch).trees(objects))
    # Compressed as it is described: as text and as nodes it takes many times the room.
    with pa.CompressedOutputStream(sink, "zstd") as file:
        for tree in trees:
            for piece in pieces(tree):
                size += len(piece)
                if size > MOST_BYTES:
                    raise CheckpointError(
                        f"{name}: what is known of the traffic takes more than {MOST_BYTES:,} bytes",
                        "--no-analysis keeps less, and so does a new dataset now and then",
                    )
                file.write(piece)
    return authentication.authenticated(sink.getvalue().to_pybytes(), key)


def opened_checkpoint(snapshot: bytes, watch: bool = False, key: bytes | None = None) -> dict[str, Any]:
    """A snapshot's `about`, and its state for `fill`. Raises CheckpointError."""
    content = authentication.verified(snapshot, key)
    try:
        header: dict[str, Any] = next(_trees(content))
        if header["shape"] != shape(watch) or "shards" not in header["about"]:
            raise CheckpointError(
                "a checkpoint of another version of kwire", "begin anew: analyse the captures into a new dataset"
            )
        header["about"]["shards"] + 0
    except _NONSENSE:
        raise damaged() from None
    return {**header, "state": content}


def fill(checkpoint: dict[str, Any], objects: list[Any], watch: bool = False) -> None:
    """Put what was stored into the place of what is new. Raises CheckpointError."""
    trees = _trees(checkpoint["state"])
    next(trees)
    _fill(trees, objects, watch)


def _fill(trees: Iterator[Any], objects: list[Any], watch: bool) -> None:
    try:
        Decoder(list(kinds(watch))).filled(trees, objects)
    except _NONSENSE:
        raise damaged() from None


_NONSENSE: Final = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    OSError,
    pa.ArrowException,
)


def _trees(content: bytes) -> Iterator[Any]:
    """Decompress the content, tree by tree."""
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as file:
        while True:
            yield next_unpacked(file)


def reading_options(name: str, settings: Settings, choice: AnalysisOptions) -> dict[str, Any]:
    """Return the options that must be the same when a checkpoint is taken up, as plain text and numbers."""
    values = asdict(settings)
    return {
        "capture": name,
        "shards": settings.shards,
        "ports": sorted(settings.ports),
        "frame_limit": values["frame_limit"],
        "keylog": bool(settings.keylogs),
        "keep_bytes": [choice.keep_bytes, choice.keep_secrets],
        "records": [choice.records, choice.limits.bytes, choice.limits.ratio],
        "meaning": choice.meaning,
        "journeys": choice.journeys,
        "filter": None if choice.filter is None else str(choice.filter),
        "connection": choice.connection,
    }


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Which option is another one."""
    names = [name for name in now if before.get(name) != now[name]]
    shown = ", ".join(f"{name} was {before.get(name)!r}, now {now[name]!r}" for name in names)
    return f"the checkpoint was made with other options: {shown}"
