"""Authenticate checkpoints, so that kwire opens only those that this user's kwire wrote.

In: the bytes of a checkpoint. Out: the bytes of its file, and back. Rule: kernels go where the tables of a checkpoint
point without checking again, so a file that this user's kwire did not write is refused before anything of it is read.
The file is not encrypted: like the dataset beside it, it is for its owner alone (mode 0600).

    kwire snapshot\\n4\\n, the content, HMAC-SHA256 (RFC 2104) of all before it

The key is made once and lies with kwire's cache (`KWIRE_CACHE_DIR`, `~/.cache/kwire`), mode 0600. Tasks of Spark, which
may run on other machines, are handed the key.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.captures.cache import cache_root, content_of

MAGIC: Final = b"kwire snapshot\n"
VERSION: Final = b"5\n"
_TAG, _KEY = 32, 32


def _path() -> Path:
    return cache_root() / "data" / "snapshot.key"


def key_of_user() -> bytes:
    """Read the key of this user on this machine; make one if there is none. Raises CheckpointError."""
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file gets its name when it is whole: of two processes one makes it.
        part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        if not path.exists():
            with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY))
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            part.unlink()
    with contextlib.suppress(OSError):
        key = content_of(path)
        if len(key) == _KEY:
            return key
    raise CheckpointError(
        f"{path}: no key for checkpoints can be kept there", "KWIRE_CACHE_DIR names a folder that is yours alone"
    )


def authenticated(content: bytes, key: bytes | None = None) -> bytes:
    """Wrap a checkpoint into an authenticated file. Raises CheckpointError.

    `key`: of the user who began the work, where processes of others go on with it; None: this user's."""
    body = MAGIC + VERSION + content
    return body + hmac.digest(key or key_of_user(), body, "sha256")


def verified(data: bytes, key: bytes | None = None) -> bytes:
    """Return the content of a checkpoint file.

    Raises CheckpointError if the file is damaged, of another version of kwire, or made with another key."""
    anew = "begin anew: analyse the captures into a new dataset"
    if not data.startswith(MAGIC):
        raise CheckpointError("not a checkpoint of kwire", anew)
    begin = len(MAGIC) + len(VERSION)
    if data[len(MAGIC) : begin] != VERSION:
        raise CheckpointError("a checkpoint of another version of kwire", anew)
    if len(data) < begin + _TAG:
        raise CheckpointError("a checkpoint that was cut off", anew)
    if not hmac.compare_digest(hmac.digest(key or key_of_user(), data[:-_TAG], "sha256"), data[-_TAG:]):
        raise CheckpointError(
            "a checkpoint that is damaged, or that another user or machine made",
            f"its key lies with kwire's cache (KWIRE_CACHE_DIR); {anew}",
        )
    return data[begin:-_TAG]
