"""Open captures behind a URL: `s3://bucket/day1`, `zip://a.pcap::s3://bucket/day1.zip`.

In: a URL as typed. Out: a `Location`: a file's bytes as a stream, with size and time of change if its store gives them,
or the names of a folder's files.

Rules
- PyArrow opens what it brings a file system for; fsspec, which is no dependency, all others and chains (`::`). Where
  the data lies and who may read it is configured as these two say (environment, files in the home folder, the URL).
- Every stream is read from its beginning to its end. What a store raises becomes an OSError or a CaptureError, with
  nothing in it of the URL that is not to be seen.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote

from kwire.captures.errors import CaptureError
from kwire.captures.extras import install
from kwire.captures.files.urls import ARROW, shown

CHUNK_BYTES = 16 << 20
"""Bytes asked of a store at once, at most: each may be a request over the network, and memory of its own."""


_GCS_RETRY: Final = "retry_limit_seconds"
_GCS_RETRY_SECONDS: Final = 30
"""For so long a store of Google's is tried that does not answer; PyArrow's own default, 15 minutes, looks like a hang
where there is no network."""


class Location(Protocol):
    """A file or folder of some store."""

    def kind(self) -> str:
        """`file`, `folder`, or an empty string where there is nothing."""

    def names(self) -> list[str]:
        """The names of what lies in this folder."""

    def size(self) -> int:
        """Bytes of this file, 0 where the store does not say."""

    def mtime_ns(self) -> int:
        """When it was last changed, 0 where the store does not say."""

    def open(self) -> Any:
        """The file's bytes: something with `read` and `close`."""


@dataclass(frozen=True, slots=True)
class _ArrowLocation:
    files: Any
    path: str

    def _info(self) -> Any:
        return self.files.get_file_info(self.path)

    def kind(self) -> str:
        return {"File": "file", "Directory": "folder"}.get(self._info().type.name, "")

    def names(self) -> list[str]:
        from pyarrow import fs

        return [str(info.base_name) for info in self.files.get_file_info(fs.FileSelector(self.path)) if info.is_file]

    def size(self) -> int:
        return int(self._info().size or 0)

    def mtime_ns(self) -> int:
        return int(self._info().mtime_ns or 0)

    def open(self) -> Any:
        return self.files.open_input_stream(self.path, compression=None)


@dataclass(frozen=True, slots=True)
class _FsspecLocation:
    files: Any
    path: str

    def kind(self) -> str:
        try:
            return "folder" if self.files.info(self.path)["type"] == "directory" else "file"
        except FileNotFoundError as missing:
            if _behind(missing) is not missing:
                raise  # nobody said that there is no such file
            return ""

    def names(self) -> list[str]:
        listing = self.files.ls(self.path, detail=True)
        return [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in listing if entry["type"] == "file"]

    def size(self) -> int:
        return int(self.files.info(self.path).get("size") or 0)

    def mtime_ns(self) -> int:
        try:
            return int(self.files.modified(self.path).timestamp() * 1e9)
        except Exception:  # each store has its own way not to know
            return 0

    def open(self) -> Any:
        return self.files.open(self.path, "rb")


def place(url: str) -> Location:
    """The place that a URL names; nothing is read yet. Raises CaptureError where nothing opens such URLs."""
    url = re.sub(r"^s3[an]://", "s3://", url)  # as Hadoop calls it
    scheme = re.split("://|::", url, maxsplit=1)[0].lower()
    if scheme in ARROW and "::" not in url:
        try:
            return _Cleaned(url, _opened(_with_limit(url, scheme)))
        except Exception as failure:
            hint = f"the documentation of PyArrow's file systems says what {scheme}:// needs"
            raise CaptureError(f"{shown(url)}: {_error_text(url, failure)}", hint) from None
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        arrow = ", ".join(f"{name}://" for name in ARROW)
        raise CaptureError(
            f"{shown(url)}: {scheme}:// needs fsspec, which is not installed",
            f"{install('urls')}; without it there are {arrow} and file://",
        ) from None
    try:
        return _Cleaned(url, _FsspecLocation(*url_to_fs(url)))
    except ImportError as failure:
        what = f"{shown(url)}: {scheme}:// needs a package that is not installed"
        raise CaptureError(what, f"fsspec says: {_error_text(url, failure)}") from None
    except FileNotFoundError:
        raise CaptureError(f"{shown(url)}: no such file", "check the URL") from None
    except Exception as failure:
        hint = "a URL of PyArrow or fsspec: s3://, gs://, abfs://, hdfs://, http://, zip://FILE::URL and the like"
        raise CaptureError(f"{shown(url)}: {_error_text(url, failure)}", hint) from None


def _opened(url: str) -> _ArrowLocation:
    from pyarrow import fs

    return _ArrowLocation(*fs.FileSystem.from_uri(url))


def _with_limit(url: str, scheme: str) -> str:
    """Return the URL with a limit of retries, if it is one of Google's and has none."""
    if scheme not in ("gs", "gcs") or _GCS_RETRY in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}{_GCS_RETRY}={_GCS_RETRY_SECONDS}"


@dataclass(frozen=True, slots=True)
class _Cleaned:
    """A place whose errors are OSErrors that tell no secret of its URL."""

    url: str
    inner: Location

    def kind(self) -> str:
        return str(self._tried(self.inner.kind))

    def names(self) -> list[str]:
        names: list[str] = self._tried(self.inner.names)
        return names

    def size(self) -> int:
        return int(self._tried(self.inner.size))

    def mtime_ns(self) -> int:
        return int(self._tried(self.inner.mtime_ns))

    def open(self) -> io.RawIOBase:
        return _Stream(self, self._tried(self.inner.open))

    def _tried(self, action: Any) -> Any:
        try:
            return action()
        except Exception as failure:
            raise _cleaned(self.url, failure) from None


class _Stream(io.RawIOBase):
    """A store's file as a stream. It holds on to its place, for some stores close their files when they go."""

    def __init__(self, place: _Cleaned, handle: Any) -> None:
        self._place = place
        self._handle = handle

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        try:
            data = self._handle.read(min(len(view), CHUNK_BYTES))
        except Exception as failure:
            raise _cleaned(self._place.url, failure) from None
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._handle.close()


def _behind(failure: BaseException) -> BaseException:
    """Return the cause of a `FileNotFoundError` that fsspec raises whatever keeps it from a file: a server that does
    not answer, or that refuses. The error itself where a file is missing."""
    cause: BaseException | None = failure.__cause__ if isinstance(failure, FileNotFoundError) else None
    while cause is not None:
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            return cause
        status = getattr(cause, "status", 404)  # of an answer by HTTP
        if status not in (404, 410):
            return OSError(f"the server answers {status} {getattr(cause, 'message', '')}".rstrip())
        cause = cause.__cause__
    return failure


def _cleaned(url: str, failure: Exception) -> OSError:
    behind = _behind(failure)
    if behind is not failure:
        return OSError(_error_text(url, behind))
    kind = FileNotFoundError if isinstance(failure, FileNotFoundError) else OSError
    return kind(_error_text(url, failure))


def _error_text(url: str, failure: BaseException) -> str:
    """Describe a store's error in one line, without any secret part of the URL."""
    text = (str(failure).strip() or type(failure).__name__).splitlines()[0]
    for secret in _secrets(url):
        text = text.replace(secret, "...")
    return text


def _secrets(url: str) -> list[str]:
    """Parts of a URL that must not be repeated, long ones first."""
    secrets = [url]
    for link in url.split("::"):
        rest, _, query = link.partition("://")[2].partition("?")
        user = rest.rpartition("@")[0]
        secrets += [user, *user.split(":"), query, *(value for _, value in parse_qsl(query))]
    secrets += [unquote(secret) for secret in secrets]
    return sorted({secret for secret in secrets if len(secret) > 2}, key=len, reverse=True)
