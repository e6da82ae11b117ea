"""URLs of captures as text: what is one, what may be shown of it, and the URLs of what lies in a folder.

Everything here is about the words; `stores.py` opens what they name. A URL may carry a password, a key or a signature:
only what `shown` leaves of it is for eyes and files.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_LOGIN = re.compile(r"^(s3[an]?://).*:.*@|^([^/]*://)[^/]*@", re.IGNORECASE)
"""User and password in one link of a URL. Keys of S3 may have a slash in them, where a parser ends the host."""

ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes that PyArrow opens."""


def is_url(argument: str) -> bool:
    """Whether an argument names a place by URL, not by path."""
    return _URL.match(argument) is not None and "://" in argument


def local_path(argument: str) -> str:
    """The path that a plain `file://` URL stands for; anything else as it is."""
    if not argument.lower().startswith("file://") or "::" in argument:
        return argument
    parts = urlsplit(argument)
    return unquote(parts.path) if parts.netloc in ("", "localhost") else argument


def shown(url: str) -> str:
    """The URL without user, password and query. What is no URL stays as it is."""
    if not is_url(url):
        return url
    links = (link.partition("?")[0].partition("#")[0] for link in url.split("::"))
    return "::".join(_LOGIN.sub(r"\1\2", link) for link in links)


def base_name(url: str) -> str:
    """Return the name of the file or folder."""
    for link in shown(url).split("::"):
        name = link.partition("://")[2].rstrip("/").rpartition("/")[2]
        if name:
            return name
    return shown(url)


def child(folder: str, name: str) -> str:
    """The URL of a file in a folder."""
    head, chain, rest = folder.partition("::")
    base, query, mark = head.partition("?")
    scheme, _, path = base.partition("://")
    inside = f"{path.rstrip('/')}/{quoted(scheme, name)}" if path else quoted(scheme, name)
    return f"{scheme}://{inside}{query}{mark}{chain}{rest}"


def quoted(scheme: str, name: str) -> str:
    """A file's name as it stands in a URL of that scheme: fsspec takes names as they are."""
    return quote(name) if scheme.lower() in ARROW else name


def split_pattern(url: str) -> tuple[str, str]:
    """(the folder, the pattern) of a URL whose last part has a `*`; ("", "") for others."""
    head, chain, rest = url.partition("::")
    base, query, mark = head.partition("?")
    folder, slash, pattern = base.rpartition("/")
    if "*" not in pattern or not slash:
        return "", ""
    scheme, _, path = base.partition("://")
    folder = folder if "/" in path else f"{scheme}://"
    return f"{folder}{query}{mark}{chain}{rest}", pattern
