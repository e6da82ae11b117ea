"""Which versions of which API each Kafka release has: `releases.json`, made by `tools/refresh_releases.py`."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Release:
    """A Kafka release by the name people use (`3.9`), the patch that was looked at, and `apis` as
    `{api_key: (lowest, highest version)}`."""

    name: str
    patch: str
    apis: dict[int, tuple[int, int]]


@functools.cache
def releases() -> tuple[Release, ...]:
    """Every release known, oldest first."""
    rows = json.loads((Path(__file__).resolve().parent / "releases.json").read_bytes())
    return tuple(
        Release(row["release"], row["patch"], {int(key): (low, high) for key, (low, high) in row["apis"].items()})
        for row in rows
    )


def bare(version: str) -> str:
    """`v3.9` as `3.9`."""
    return version.strip().removeprefix("v")


def find(version: str) -> Release:
    """The release that `3.9`, `3.9.2` or `v3.9` means. LookupError: none that is known."""
    wanted = bare(version)
    for release in releases():
        # `3.9.7` is 3.9 too, whichever patch was looked at.
        patch_of_it = wanted.startswith(f"{release.name}.") and wanted.count(".") == release.patch.count(".")
        if wanted == release.name or patch_of_it:
            return release
    raise LookupError(wanted)


def hint(version: str) -> str:
    """A hint for an unknown version: the releases that begin so (`4`), or all."""
    wanted = bare(version)
    names = [release.name for release in releases()]
    near = [name for name in names if wanted and name.startswith(f"{wanted.removesuffix('.')}.")]
    return f"which one: {', '.join(near)}" if near else f"there are {', '.join(names)}"
