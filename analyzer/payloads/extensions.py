"""Decoders of keys and values from installed packages: entry points of the group `kwire.payloads`.

In: packages beside kwire, each entry point a class without arguments. Out: `ExtensionDecoder`s, which are asked before
kwire's own formats. Rule: they are another's code, so whatever they raise is the reason of one key or value, and what
they return has the bounds of all payloads. `KWIRE_EXTENSIONS=0` leaves all packages out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Protocol

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.extensions import PAYLOADS, VARIABLE, installed, package
from kwire.analyzer.payloads import json_text
from kwire.analyzer.payloads.limits import PayloadLimits, UndecodableError, size_reason


class ExtensionDecoder(Protocol):
    """A decoder of a package. `format`: its name in `key_format` and `value_format`."""

    format: str

    def recognizes(self, data: bytes, topic: str | None, side: str, headers: Mapping[str, bytes]) -> bool:
        """Return whether a key or value (`side`) is of this format."""

    def decode(self, data: bytes, topic: str | None, side: str, headers: Mapping[str, bytes]) -> Any:
        """Return what JSON can hold. ValueError: why it cannot be decoded."""


def load() -> list[ExtensionDecoder]:
    """Return the decoders of installed packages. Raises UsageError, which names the package."""
    return [_loaded(entry) for entry in installed(PAYLOADS)]


def _loaded(entry: EntryPoint) -> ExtensionDecoder:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for data
            decoder = entry.load()()
        if not (isinstance(decoder.format, str) and callable(decoder.recognizes) and callable(decoder.decode)):
            raise TypeError("format is a text, recognizes and decode are methods")
    except (Exception, SystemExit) as failure:
        raise UsageError(
            f"the decoder of the package {package(entry)} cannot be loaded: {_line(failure)}",
            f"update or uninstall {package(entry)}; {VARIABLE}=0 leaves out all packages",
        ) from failure
    loaded: ExtensionDecoder = decoder
    return loaded


def decode(
    decoder: ExtensionDecoder,
    data: bytes,
    topic: str | None,
    side: str,
    headers: Mapping[str, bytes],
    limits: PayloadLimits,
) -> bytes | None:
    """Return a key or value as JSON; None: it is of another format. Raises UndecodableError."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if not decoder.recognizes(data, topic, side, headers):
                return None
            if len(data) > limits.payload_bytes:
                raise UndecodableError(size_reason(len(data), limits.payload_bytes))
            value = decoder.decode(data, topic, side, headers)
    except UndecodableError:
        raise
    except (Exception, SystemExit) as failure:
        raise UndecodableError(f"{decoder.format}: {_line(failure)}"[:300]) from failure
    text = json_text.dump(value)
    if len(text) > 16 * limits.payload_bytes:
        raise UndecodableError(f"{decoder.format}: as JSON it has {size_reason(len(text), 16 * limits.payload_bytes)}")
    return text


def _line(failure: BaseException) -> str:
    """Return an exception in one line; a ValueError without its name, as its text is a reason."""
    text = printable(" ".join(str(failure).split()))
    return text if type(failure) is ValueError and text else f"{type(failure).__name__}{f': {text}' if text else ''}"
