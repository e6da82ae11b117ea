"""A file that a command was told to write (`-o`): whole or not at all.

In: its path, and what was written beside it. Out: the file. Rules: what was there is replaced when the new one is
whole; of a symbolic link of one's own what it leads to. A device, a pipe or a socket (`/dev/null`,
`/dev/stdout`, `>(less)`) is no file: it is written into, and never replaced. What a killed process left beside a file
is taken away by the next that writes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kwire.analyzer.common.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_OF_PROCESSES = ("/dev", "/dev/fd", "/proc")
"""Folders whose files are names for what some process has open, whatever that is."""
_ENDING: Final = ".kwire-part"
_YOUNG_SECONDS: Final = 60.0
"""Age below which a folder without a lock may be one that somebody is about to lock."""


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


def check(path: str, option: str = "-o") -> None:
    """Raises UsageError where it cannot be written, before the work begins. option: the one that names it."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: cannot be written: it is a folder", f"give a file to {option}")
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise unwritable(path, "it is no file, and may not be written into", option)
        return
    try:
        with scratch(path):
            pass
    except OSError as failure:
        raise unwritable(path, failure.strerror, option) from None


def unwritable(path: str, why: str | None, option: str = "-o") -> UsageError:
    """Return the error of a file that cannot be written. option: the one that names it."""
    return UsageError(f"{path}: cannot be written: {why}", f"give another file to {option}")


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A file beside, mode 0600, to be written, which becomes that file when it is whole. Raises OSError."""
    with scratch(path) as folder:
        part = os.path.join(folder, "part")
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield part
        put(part, path)


def write_text(path: str, text: str) -> None:
    """Write text to that file, for its owner only: it may show what was captured. Raises UsageError."""
    try:
        with written(path) as part:
            Path(part).write_text(text, encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "name a file that can be written") from None


@contextlib.contextmanager
def scratch(path: str) -> Iterator[str]:
    """A hidden folder beside a file, mode 0700, for what is to become it; at the end it is gone with all in it. Raises
    OSError."""
    beside, prefix = folder_for(path), f".{os.path.basename(path)[:100]}."
    _clear_dead(beside, prefix)
    folder = tempfile.mkdtemp(prefix=prefix, suffix=_ENDING, dir=beside)
    held = _held(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _held(folder: str) -> int | None:
    """An open folder with a lock that ends with this process; None if another has it, or it cannot be locked."""
    if fcntl is None:
        return None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None


def _clear_dead(beside: str, prefix: str) -> None:
    """Take away the folders of processes that were killed while they wrote the same file."""
    names = re.compile(re.escape(prefix) + r"\w{8}" + re.escape(_ENDING))
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(beside)):
            if not names.fullmatch(entry.name):
                continue
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _YOUNG_SECONDS:
                held = _held(entry.path)
                if held is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(held)


def put(part: str, path: str) -> None:
    """`part`, a whole file in `folder_for(path)` or a `scratch` folder, becomes that file. Raises OSError."""
    if not is_stream(path):
        os.replace(part, _behind(path))
        return
    with open(part, "rb") as whole, open(path, "ab") as stream:  # what a shell sent elsewhere may have something
        shutil.copyfileobj(whole, stream)
    os.unlink(part)
