"""Where kwire keeps what it can make again: compiled kernels, Spark's class archive."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """A folder we may write: `KWIRE_CACHE_DIR`, else the user's cache folder, else a temporary one."""
    chosen = os.environ.get("KWIRE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = Path(home) / "kwire"
    try:
        user.mkdir(parents=True, exist_ok=True)
        if os.access(user, os.W_OK):
            return user
    except OSError:
        pass
    return _temporary()


def _temporary() -> Path:
    """A folder of ours for temporary files. What is kept there is run as code, so nobody else may write to it: where
    somebody has put something in its place, it is a new one for this process."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    shared = Path(tempfile.gettempdir()) / f"kwire-{user}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()
        if status.st_uid == user and not status.st_mode & 0o022:
            return shared
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="kwire-"))
