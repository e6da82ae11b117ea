"""A snapshot as bytes that only this user's kwire makes and opens.

In: bytes. Out: bytes, and back. Rules: kernels go where the tables of a snapshot point, without looking twice; so what
this user's kwire did not write on this machine is refused before anything of it is read. A snapshot holds bytes of
messages in progress, a login's token among them where the capture was cut there: they are not in the clear.

    kwire snapshot\\n2\\n, 16 bytes at random, the content under SHAKE-256's stream (FIPS 202) for key and random bytes,
    HMAC-SHA256 (RFC 2104) of all before it

The key is made once, and lies with kwire's cache (`KWIRE_CACHE_DIR`, `~/.cache/kwire`), mode 0600. Tasks of
Spark, which may run on other machines, are handed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

import numpy as np

from analyzer.checkpoints.codec import CheckpointError
from captures.cache import cache_root, content_of

MAGIC: Final = b"kwire snapshot\n"
VERSION: Final = b"3\n"
_RANDOM, _TAG, _KEY = 16, 32, 32


def _path() -> Path:
    return cache_root() / "data" / "snapshot.key"


def key_of_user() -> bytes:
    """The key of this user on this machine; made where there is none. Raises CheckpointError."""
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under its name at once, or not at all: of two processes one makes it.
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
        f"{path}: no key for snapshots can be kept there", "KWIRE_CACHE_DIR names a folder that is yours alone"
    )


def _under(key: bytes, random: bytes, content: bytes) -> bytes:
    stream = hashlib.shake_256(hmac.digest(key, b"stream" + random, "sha256")).digest(len(content))
    mixed: bytes = (np.frombuffer(content, np.uint8) ^ np.frombuffer(stream, np.uint8)).tobytes()
    return mixed


def seal(content: bytes, key: bytes | None = None) -> bytes:
    """The file for some content. `key`: of who began, where others work for him. Raises CheckpointError."""
    key, random = key or key_of_user(), secrets.token_bytes(_RANDOM)
    body = MAGIC + VERSION + random + _under(key, random, content)
    return body + hmac.digest(hmac.digest(key, b"tag", "sha256"), body, "sha256")


def opened(data: bytes, key: bytes | None = None) -> bytes:
    """The content of a file. Raises CheckpointError where it is damaged, of another version, or not ours."""
    anew = "begin anew: analyse the captures into a new dataset"
    if not data.startswith(MAGIC):
        raise CheckpointError("not a snapshot of kwire", anew)
    begin = len(MAGIC) + len(VERSION)
    if data[len(MAGIC) : begin] != VERSION:
        raise CheckpointError("a snapshot of another version of kwire", anew)
    if len(data) < begin + _RANDOM + _TAG:
        raise CheckpointError("a snapshot that was cut off", anew)
    key, body = key or key_of_user(), data[:-_TAG]
    if not hmac.compare_digest(hmac.digest(hmac.digest(key, b"tag", "sha256"), body, "sha256"), data[-_TAG:]):
        raise CheckpointError(
            "a snapshot that is damaged, or that another user or machine made",
            f"its key lies with kwire's cache (KWIRE_CACHE_DIR); {anew}",
        )
    return _under(key, body[begin : begin + _RANDOM], body[begin + _RANDOM :])
