"""Messages -> messages of the same size without names and content.

In: messages, in the order of the capture, twice: to learn all texts and addresses, then to make them anew. Out: as many
bytes of each. What each byte is, `messages` and `spans` say; what it becomes, `pseudonyms` and `records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from kwire.analyzer.protocol.embedded import Embedded
from kwire.analyzer.scrub.addresses import Addresses
from kwire.analyzer.scrub.message_spans import (
    CONTENT,
    IDENTIFIER,
    KEEP,
    RECORDS,
    RELEASE,
    RELEASE_FIELD,
    SECRET,
    TEXT,
    TEXTS,
    record_parts,
)
from kwire.analyzer.scrub.pseudonyms import Pseudonyms, is_public
from kwire.analyzer.scrub.records import KeepOptions, RecordScrubber
from kwire.analyzer.scrub.scrub_summary import Report
from kwire.analyzer.scrub.spans import END, KIND, START, CapturedMessages, SpanRows

KEEPABLE: Final = {
    "names": "topics, groups, clients, members, hosts and all other strings of messages",
    "addresses": "IP and link-layer addresses, and hosts that are one",
    "ids": "topic ids and other uuids",
    "keys": "keys of records",
    "values": "values of records",
    "headers": "headers of records",
}
"""What `--keep` may name."""

SCHEMA: Final = "schema"
"""Besides these, of `--keep-schema`: framing of registries, and ids of schemas."""


class Content:
    """Scrubs messages. `learn` all, then `settle`, then `clean` all. `report`: where it counts what it does."""

    def __init__(self, key: bytes, keep: frozenset[str], report: Report | None = None) -> None:
        self.report = Report() if report is None else report
        self.addresses = Addresses(key, "addresses" in keep)
        self.pseudonyms = Pseudonyms(key, self.addresses, "names" in keep, "ids" in keep)
        self.records = RecordScrubber(
            self.pseudonyms,
            self._nested,
            KeepOptions("keys" in keep, "values" in keep, "headers" in keep, SCHEMA in keep),
            self.report,
        )
        self.prefixes: set[bytes] = set()
        """What stays of bytes before first messages (ports), zeros elsewhere."""
        self._keep = keep
        self._texts: set[bytes] = set()

    def learn(self, batch: CapturedMessages, parts: SpanRows) -> None:
        """Take in what messages name."""
        rows = parts.rows
        begins = np.repeat(batch.at, np.diff(parts.begins))
        for kind, field in ((TEXT, ""), (RELEASE, RELEASE_FIELD)):
            here = rows[:, KIND] == kind
            start, end = begins[here] + rows[here, START], begins[here] + rows[here, END]
            heap = batch.heap
            for at, stop in zip(start.tolist(), end.tolist(), strict=True):
                self.learn_text(heap[at:stop].tobytes(), field)

    def learn_text(self, text: bytes, field: str = "") -> None:
        """Take in a name."""
        if text not in self._texts and not is_public(text, field):
            self._texts.add(text)
            self.addresses.name(text.removeprefix(b"/"))

    def settle(self) -> None:
        """All was said: only now is it known what no pseudonym may be."""
        if "names" not in self._keep:
            self.pseudonyms.know(self._texts)

    def clean(self, data: bytes, parts: Sequence[Sequence[int]], topics: Sequence[str]) -> bytes:
        """A message made anew: its bytes, its rows of `SpanRows`, and what topics are called."""
        return self._rewrite(
            data, ((start, end, kind, topics[topic] if kind == RECORDS else "") for start, end, kind, topic in parts)
        )

    def _nested(self, data: bytes, opened: Embedded | None) -> bytes:
        """A key or value of an internal topic's record."""
        return self._rewrite(data, record_parts(data, opened))

    def _rewrite(self, data: bytes, parts: Iterable[tuple[int, int, int, str]]) -> bytes:
        out = bytearray(data)
        for start, end, kind, topic in parts:
            if kind == KEEP:
                continue
            size = end - start
            if kind in TEXTS:
                field = RELEASE_FIELD if kind == RELEASE else ""
                out[start:end] = self.pseudonyms.text(data[start:end], field)
            elif kind == IDENTIFIER:
                out[start:end] = self.pseudonyms.identifier(data[start:end])
            elif kind == RECORDS:
                out[start:end] = self.records.scrub(data[start:end], topic)
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
