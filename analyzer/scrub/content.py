"""Messages -> messages of the same size without names and content.

In: frames, in the order of the capture, twice: to learn all texts and addresses, then to make them anew. Out: as many
bytes of each. What each byte is, `messages` says; what it becomes, `pseudonyms` and `records`.
"""

from __future__ import annotations

from typing import Final

from analyzer.protocol.embedded import Embedded
from analyzer.scrub.addresses import Addresses
from analyzer.scrub.messages import (
    CONTENT,
    CUT,
    IDENTIFIER,
    KEEP,
    RECORDS,
    SECRET,
    TEXT,
    Frame,
    Messages,
    Part,
    record_parts,
)
from analyzer.scrub.pseudonyms import Pseudonyms, is_public
from analyzer.scrub.records import Kept, Records
from analyzer.scrub.report import Report

KEEPABLE: Final = {
    "names": "topics, groups, clients, members, hosts and all other strings of messages",
    "addresses": "IP and link-layer addresses, and hosts that are one",
    "ids": "topic ids and other uuids",
    "keys": "keys of records",
    "values": "values of records",
    "headers": "headers of records",
}
"""What `--keep` may name."""


class Content:
    """Scrubs messages. `learn` all, then `settle`, then `clean` all. `report`: where it counts what it does."""

    def __init__(self, key: bytes, keep: frozenset[str], report: Report | None = None) -> None:
        self.report = Report() if report is None else report
        self.addresses = Addresses(key, "addresses" in keep)
        self.pseudonyms = Pseudonyms(key, self.addresses, "names" in keep, "ids" in keep)
        self.records = Records(
            self.pseudonyms, self._nested, Kept("keys" in keep, "values" in keep, "headers" in keep), self.report
        )
        self._keep = keep
        self._messages = Messages()
        self._texts: set[bytes] = set()

    def learn(self, frame: Frame) -> None:
        """Take in what a message names."""
        for part in self._messages.parts(frame):
            if part.kind == TEXT and part.name != CUT:
                self.learn_text(frame.data[part.start : part.end], part.name)

    def learn_text(self, text: bytes, field: str = "") -> None:
        """Take in a name."""
        if text not in self._texts and not is_public(text, field):
            self._texts.add(text)
            self.addresses.name(text.removeprefix(b"/"))

    def settle(self) -> None:
        """All was said: only now is it known what no pseudonym may be."""
        if "names" not in self._keep:
            self.pseudonyms.know(self._texts)
        self._messages = Messages(self._messages.topics)

    def clean(self, frame: Frame) -> bytes:
        """A message made anew."""
        return self._made(frame.data, self._messages.parts(frame))

    def _nested(self, data: bytes, opened: Embedded | None) -> bytes:
        """A key or value of an internal topic's record."""
        return self._made(data, record_parts(data, opened))

    def _made(self, data: bytes, parts: list[Part]) -> bytes:
        out = bytearray(data)
        for start, end, kind, name in parts:
            if kind == KEEP:
                continue
            size = end - start
            if kind == TEXT:
                out[start:end] = self.pseudonyms.text(data[start:end], name)
            elif kind == IDENTIFIER:
                out[start:end] = self.pseudonyms.identifier(data[start:end])
            elif kind == RECORDS:
                out[start:end] = self.records.scrub(data[start:end], name)
            elif kind == SECRET:
                out[start:end] = bytes(size)
                self.report.secret_bytes += size
            elif kind == CONTENT:
                out[start:end] = self.pseudonyms.noise(size)
                self.report.opaque_bytes += size
            else:
                out[start:end] = b"\xff" * size
                self.report.unread_bytes += size
        return bytes(out)
