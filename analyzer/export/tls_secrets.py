"""Secrets of the TLS sessions in a capture, out of key logs that may hold many more.

In: key logs, and packets. Out: the lines of those sessions whose first message is among the packets. Rules: nothing
else of a key log gets into a file that may be passed on; no secret is printed.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from kwire.analyzer.records.batches import view
from kwire.captures.packets import Packets

_LINE: Final = re.compile(
    rb"^[ \t]*(?:[A-Z0-9_]{1,64}[ \t]+([0-9a-fA-F]{64})|RSA[ \t]+Session-ID:((?:[0-9a-fA-F]{2}){1,32}))"
    rb"[ \t]+(?:Master-Key:)?[0-9a-fA-F]{64,128}[ \t]*\r?$",
    re.MULTILINE,
)
_HELLO: Final = re.compile(rb"\x16\x03[\x00-\x04]..[\x01\x02]...\x03[\x00-\x04](.{32})([\x00-\x20])", re.DOTALL)
"""A TLS record with a ClientHello or a ServerHello: its random, and the length of the session id that follows (RFC
8446, 4.1.2, 4.1.3 and 5.1)."""
_LOOKED_AT: Final = 2048
"""Bytes of a packet in which such a message may begin: a prefix of a proxy comes before it."""


class SessionSecrets:
    """Lines of key logs by client random or session id, and which of these were seen."""

    def __init__(self, key_logs: list[bytes]) -> None:
        self._lines: dict[bytes, list[bytes]] = {}
        for text in key_logs:
            for match in _LINE.finditer(text):
                name, line = bytes.fromhex((match[1] or match[2]).decode()), match[0].strip()
                if line not in self._lines.setdefault(name, []):
                    self._lines[name].append(line)
        self._seen: dict[bytes, None] = {}

    def look_at(self, packets: Packets, rows: np.ndarray) -> None:
        """Look for the first messages of sessions in some packets."""
        if not self._lines:
            return
        columns, data = packets.columns, view(packets.buffer)
        for begin, length in zip(columns.payload_at[rows].tolist(), columns.payload_captured[rows].tolist()):
            payload = data[begin : begin + min(length, _LOOKED_AT)]
            if hello := _HELLO.search(payload):
                for name in (hello[1], bytes(payload[hello.end() :][: hello[2][0]])):
                    if name in self._lines:
                        self._seen[name] = None

    def key_log(self) -> bytes:
        """Return the lines of the sessions that were seen."""
        return b"".join(line + b"\n" for name in self._seen for line in self._lines[name])
