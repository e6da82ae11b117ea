"""A file that a command was told to write (`-o`): whole or not at all.

In: its path, and what was written beside it. Out: the file. Rules: what was there is replaced when the new one is
whole; of a symbolic link of one's own what it leads to. A device, a pipe or a socket (`/dev/null`,
`/dev/stdout`, `>(less)`) is no file: it is written into, and never replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

_OF_PROCESSES = ("/dev", "/dev/fd", "/proc")
"""Folders whose files are names for what some process has open, whatever that is."""


def is_stream(path: str) -> bool:
    """Whether it is to be written into: nothing may take its place."""
    folder = os.path.dirname(os.path.abspath(path))
    if folder in _OF_PROCESSES or folder.startswith("/proc/"):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _behind(path: str) -> str:
    """Return the target of a symbolic link; of one that another user made, perhaps to have something else replaced,
    the link itself."""
    own = os.path.islink(path) and os.lstat(path).st_uid == os.geteuid()
    return os.path.realpath(path) if own else path


def folder_for(path: str) -> str:
    """Where to write what is going to be that file."""
    return tempfile.gettempdir() if is_stream(path) else os.path.dirname(os.path.abspath(_behind(path)))


def check(path: str) -> None:
    """Raises OSError where it cannot be written."""
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "it is no file, and may not be written into")
        return
    os.unlink(_begun(path))


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A file beside, mode 0600, to be written, which becomes that file when it is whole. Raises OSError."""
    part = _begun(path)
    try:
        yield part
        put(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _begun(path: str) -> str:
    name = os.path.basename(path)[:100]
    handle, part = tempfile.mkstemp(prefix=f".{name}.", dir=folder_for(path))
    os.close(handle)
    return part


def put(part: str, path: str) -> None:
    """`made`, a whole file in `folder_for(path)`, becomes that file. Raises OSError."""
    if not is_stream(path):
        os.replace(part, _behind(path))
        return
    with open(part, "rb") as whole, open(path, "ab") as stream:  # what a shell sent elsewhere may have something
        shutil.copyfileobj(whole, stream)
    os.unlink(part)
