"""Key logs: the secrets of TLS sessions, as clients and brokers write them down.

In: lines of an SSLKEYLOGFILE (RFC 9850), as a file or a block of a pcapng file. Out: secrets by label and client
random. Rules

- Lines in any order, any number of times. A line that is none is passed over: files are written by several programs at
  once, and are cut off anywhere.
- `RSA Session-ID:... Master-Key:...`, which agents for Java write for TLS 1.2, is known by the session id that the
  server gives, for all connections that resume the session.
- No secret is printed: not in messages, not by `repr`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import Final

from kwire.captures.errors import CaptureError

MASTER: Final = "CLIENT_RANDOM"
EARLY: Final = "CLIENT_EARLY_TRAFFIC_SECRET"
HANDSHAKE: Final = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET")
TRAFFIC: Final = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")
LABELS: Final = (MASTER, EARLY, *HANDSHAKE, *TRAFFIC)

SESSION: Final = "SESSION"

MOST_BYTES: Final = 256 << 20
"""Of one key log: a million sessions. A device or a file that is something else ends there."""

_LINE: Final = re.compile(
    rb"^[ \t]*(?:([A-Z0-9_]{1,64})[ \t]+([0-9a-fA-F]{64})|"
    rb"RSA[ \t]+Session-ID:([0-9a-fA-F]{2,64}))[ \t]+(?:Master-Key:)?([0-9a-fA-F]{64,128})[ \t]*\r?$",
    re.MULTILINE,
)


class KeyLog:
    """Secrets by label and client random (SESSION: by session id). Grows by `take`; `besides`: others count too."""

    def __init__(self, besides: KeyLog | None = None) -> None:
        self._secrets: dict[tuple[str, bytes], bytes] = {}
        self._labels: set[str] = set()
        self._besides = besides

    def __len__(self) -> int:
        return len(self._secrets)

    def __repr__(self) -> str:
        return f"KeyLog({len(self)} secrets)"

    def take(self, text: bytes) -> int:
        """The lines of a key log; returns how many hold a secret."""
        count = 0
        for label, random, session, secret in _LINE.findall(text):
            if session:
                if len(session) % 2 or len(secret) != 96:
                    continue
                self._secrets[SESSION, bytes.fromhex(session.decode())] = bytes.fromhex(secret.decode())
            else:
                name = label.decode()
                sizes = (96,) if name == MASTER else (64, 96)
                if name not in LABELS or len(secret) not in sizes:
                    continue
                self._secrets[name, bytes.fromhex(random.decode())] = bytes.fromhex(secret.decode())
                self._labels.add(name)
            count += 1
        return count

    def find(self, label: str, name: bytes | None) -> bytes | None:
        """The secret of a client random, or of a session id; None: it is not there."""
        if name is None:
            return None
        secret = self._secrets.get((label, name))
        if secret is None and self._besides is not None:
            return self._besides.find(label, name)
        return secret

    def has(self, labels: Sequence[str]) -> bool:
        """Whether there is any secret of these labels."""
        if any(label in self._labels for label in labels):
            return True
        return self._besides is not None and self._besides.has(labels)

    def names(self, label: str) -> list[bytes]:
        """The client randoms that it has such a secret of, the newest first."""
        own = [name for kind, name in reversed(list(self._secrets)) if kind == label]
        return own + (self._besides.names(label) if self._besides is not None else [])


class KeyFiles:
    """Key logs in files: `log` has their secrets, `notes` what the user should know. Raises CaptureError for a file
    that cannot be read, or has no secret in it and does not grow."""

    def __init__(self, paths: tuple[str, ...], growing: bool = False) -> None:
        self.log = KeyLog()
        self.notes: list[str] = []
        self._paths = paths
        self._read = [0] * len(paths)
        for place, path in enumerate(paths):
            new_keys = self._take(place)
            if not new_keys and not growing:
                raise CaptureError(
                    f"{path}: holds no TLS key",
                    "a key log has lines of a label, a client random and a secret, as SSLKEYLOGFILE names it",
                )

    def refresh(self) -> bool:
        """Take what was written since; whether there was any. A file that is gone says nothing more."""
        grown = False
        for place, path in enumerate(self._paths):
            try:
                if os.stat(path).st_size > self._read[place]:
                    grown = bool(self._take(place)) or grown
            except (OSError, CaptureError):
                continue
        return grown

    def _take(self, place: int) -> int:
        path = self._paths[place]
        try:
            with open(path, "rb") as file:
                about = os.fstat(file.fileno())
                if stat.S_ISDIR(about.st_mode):
                    raise IsADirectoryError(21, os.strerror(21))
                if self._read[place] == 0 and stat.S_ISREG(about.st_mode) and about.st_mode & 0o044:
                    self.notes.append(f"{path}: others may read these keys, and so the traffic: chmod 600 it")
                if self._read[place]:
                    file.seek(self._read[place])
                text = file.read(MOST_BYTES + 1)
        except OSError as failure:
            raise CaptureError(
                f"{path}: key log cannot be read: {failure.strerror}", "check the name, and who may read it"
            ) from None
        if len(text) > MOST_BYTES:
            raise CaptureError(f"{path}: is larger than a key log may be (256 MiB)", "is it one?")
        # A line that is being written is read again, whole.
        whole = text if self._read[place] == 0 and not text.endswith(b"\n") else text[: text.rfind(b"\n") + 1]
        self._read[place] += text.rfind(b"\n") + 1
        return self.log.take(whole)
