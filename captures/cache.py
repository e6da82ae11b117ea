"""Where kwire keeps what it can make again: compiled kernels, the compiled layouts, Spark's class archive.

Rules: object code is code to whoever links it, so a folder is used only where it belongs to this user and nobody else
may write to it, and so is each file in it; the line on stderr says which was passed over. What is kept of Python's
values is JSON and numbers: reading it runs nothing. A cache that is not there costs time, never an answer.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy

_PARTS: Final = ("data", "kernels", "spark")
"""Folders of a cache whose content is relied on; who may write to one may as well write to the cache."""

_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_passed_over: set[str] = set()  # said once a process


def cache_root() -> Path:
    """A folder that is ours alone: `KWIRE_CACHE_DIR`, else the user's cache folder, else a temporary one."""
    if named := os.environ.get("KWIRE_CACHE_DIR"):
        chosen = Path(named).absolute()
        try:
            _make(chosen)
        except OSError:
            return chosen  # somebody wants no cache
        if _trusted(chosen):
            return chosen
    user = _folder_of_user()
    if user is not None:
        with contextlib.suppress(OSError):
            _make(user)
            if _trusted(user) and os.access(user, os.W_OK):
                return user
    return _temporary()


def _folder_of_user() -> Path | None:
    """The user's cache folder: XDG's variable if it is absolute, as its specification says, else below the home.

    A home must exist: without HOME and without a line in the file of users, `~` is only a name."""
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "kwire"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "kwire" if os.path.isabs(home) else None


def _trusted(root: Path) -> bool:
    """Whether a cache belongs to this user alone; if not, a line on stderr gives the reason."""
    reason = _not_ours(root)
    if reason is not None and reason not in _passed_over:
        _passed_over.add(reason)
        print(f"kwire: {reason}: this cache is not used", file=sys.stderr)
    return reason is None


def _make(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone whatever the umask. Raises OSError."""
    if not folder.is_dir():
        if folder.parent != folder:
            _make(folder.parent)
        try:
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)
        except FileExistsError:
            if not folder.is_dir():  # else another process has just made it
                raise


def _user() -> int | None:
    return os.getuid() if hasattr(os, "getuid") else None


def _only_ours(status: os.stat_result) -> bool:
    user = _user()
    return user is None or (status.st_uid == user and not status.st_mode & _OTHERS_MAY_WRITE)


def _not_ours(root: Path) -> str | None:
    """Why a cache is not to be trusted; None where it is."""
    for folder in (root, *(root / part for part in _PARTS)):
        try:
            status = folder.stat()
        except FileNotFoundError:
            continue
        except OSError as failure:
            return f"{str(folder)!a}: {failure.strerror}"
        if not _only_ours(status):
            foreign = status.st_uid != _user()
            return f"{str(folder)!a} " + ("belongs to another user" if foreign else "may be written to by others")
    return None


def _temporary() -> Path:
    """A folder of ours for temporary files. What is kept there is run as code, so nobody else may write to it: where
    somebody has put something in its place, it is a new one for this process."""
    import tempfile  # it brings random numbers along: seldom needed

    shared = Path(tempfile.gettempdir()).absolute() / f"kwire-{_user() or 0}"
    try:
        _make(shared)
        if stat.S_ISDIR(shared.lstat().st_mode) and _only_ours(shared.lstat()) and _not_ours(shared) is None:
            return shared
    except OSError:
        pass
    return _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="kwire-"))


def replace(path: Path, content: bytes) -> None:
    """Write a file of the cache in one step: other processes may do the same at the same time. A folder that cannot be
    written costs making it again, no more."""
    with contextlib.suppress(OSError):
        _make(path.parent)
        put_at_once(path, content)


def put_at_once(path: Path, content: bytes) -> None:
    """Write a file that only its user may read: it is there whole or not at all, whoever writes the same at the same
    time. Raises OSError."""
    import tempfile

    put(*tempfile.mkstemp(prefix=".", dir=path.parent), path, content)


def put(descriptor: int, part: str, path: str | Path, content: bytes) -> None:
    """Fill the open file `part`, and give it the name `path`: that is there whole or not at all. Raises OSError."""
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError:
        os.unlink(part)
        raise


def content_of(path: Path) -> bytes:
    """A file of the cache. Raises OSError, also where somebody else could have written it."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _only_ours(status):
            raise PermissionError(f"{path}: not a file of ours alone")
        return file.read()


def ours_alone(path: Path) -> bool:
    """Whether there is such a file that nobody else could have written: for files that Java reads."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and _only_ours(status)


def as_safe_as(path: Path, code: Path) -> bool:
    """Whether only those may write to a file of installed code who may write to `code` too.

    Then trusting it trusts no more people. Raises OSError if it does not exist."""
    status, trusted = path.stat(), code.stat()
    return status.st_uid in (0, trusted.st_uid) and not status.st_mode & ~trusted.st_mode & _OTHERS_MAY_WRITE


def sealed(content: bytes) -> bytes:
    """Content with a checksum before it, so that a file that was cut or damaged is told from a whole one."""
    return hashlib.sha256(content).digest() + content


def opened(data: bytes) -> memoryview:
    """The content again. Raises ValueError where it is not whole."""
    content = memoryview(data)[32:]
    if hashlib.sha256(content).digest() != data[:32]:
        raise ValueError("damaged")
    return content


def python_files(*folders: Path) -> list[Path]:
    """All of our files in some folders, however deep, in a fixed order: what is made by them goes by what they say."""
    paths = (os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names)
    return [Path(path) for path in sorted(paths) if path.endswith(".py")]


# --- values ---------------------------------------------------------------------------------------------------------

_ARRAY: Final = "array"
"""The one key of an object that stands for an array: [type, shape, where its numbers begin]."""


def packed(value: Any) -> bytes:
    """A plain value (None, bool, int, str, list, dict by str, and NumPy's arrays of numbers) as bytes: the size of its
    JSON, the JSON, and the arrays' numbers one after the other. Tuples become lists."""
    # Joined at once: a state of an analysis has hundreds of megabytes, which should be there twice, not four times.
    return b"".join(pieces(value))


def pieces(value: Any) -> list[Any]:
    """Like `packed`, as a list of pieces, with arrays as they are instead of copies."""
    arrays: list[Any] = []
    size = 0

    def described(item: Any) -> Any:
        nonlocal size
        if not isinstance(item, numpy.ndarray) or item.dtype.kind not in "iufb":
            raise TypeError(f"a cache does not keep {type(item).__name__}")
        start = size
        size += item.nbytes
        arrays.append(numpy.ascontiguousarray(item))
        return {_ARRAY: [item.dtype.str, item.shape, start]}

    text = json.dumps(value, default=described, separators=(",", ":")).encode()
    return [struct.pack("<I", len(text)), text, *(array.reshape(-1).view(numpy.uint8).data for array in arrays)]


def unpacked(data: memoryview) -> Any:
    """The reverse. Raises ValueError (and kin) where the bytes are none of `packed`."""
    return next_unpacked(io.BytesIO(data))


def next_unpacked(file: Any) -> Any:
    """Read and unpack the next value of a file (`readinto`), and no more bytes than it has."""
    size = numpy.empty(1, "<u4")
    _fill(file, size)
    text = numpy.empty(int(size[0]), numpy.uint8)
    _fill(file, text)
    begin = 0

    def restored(item: dict[str, Any]) -> Any:
        nonlocal begin
        if item.keys() != {_ARRAY}:
            return item
        name, shape, start = item[_ARRAY]
        kind = numpy.dtype(str(name))
        if kind.kind not in "iufb":
            raise ValueError(f"arrays of {kind} are not kept")
        if start != begin:  # they are described in the order in which they come
            raise ValueError("an array that is elsewhere")
        array = numpy.empty(shape, kind)
        begin += array.nbytes
        _fill(file, array)
        return array

    return json.loads(text.tobytes(), object_hook=restored)


def _fill(file: Any, array: numpy.ndarray) -> None:
    """Raises ValueError where the file ends before."""
    into = array.reshape(-1).view(numpy.uint8).data
    while len(into):
        count = file.readinto(into)
        if not count:
            raise ValueError("cut off")
        into = into[count:]


@functools.cache
def _digest(sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def cached(name: str, sources: Iterable[Path], make: Callable[[], Any]) -> Any:
    """Return what `make` returns, a plain value (see `packed`), from the machine's cache if it is there.

    The value stays valid until one of `sources` changes."""
    return _cached(f"{name}.{_digest(tuple(sources))}", make)


def cached_by(name: str, key: str, make: Callable[[], Any]) -> Any:
    """Like `cached`, for values that stay valid as long as `key` is the same."""
    return _cached(f"{name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}", make)


def _cached(name: str, make: Callable[[], Any]) -> Any:
    path = cache_root() / "data" / name
    # Whatever is wrong with the file, it can be made again.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, struct.error, RecursionError):
        return unpacked(opened(content_of(path)))
    value = make()
    replace(path, sealed(packed(value)))
    return value
