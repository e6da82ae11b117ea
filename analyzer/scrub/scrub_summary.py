"""Summarise a scrub in numbers.

In: counts, from all who scrub. Out: lines for people, JSON for programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Report:
    """Counts of what a scrub did. `lines` for people, `json` for programs."""

    packets: int = 0
    messages: int = 0
    names: int = 0
    shared_names: int = 0
    bent_addresses: int = 0
    records: int = 0
    batches: int = 0
    compressed_batches: int = 0
    lost_batches: int = 0
    broken_batches: int = 0
    secret_bytes: int = 0
    opaque_bytes: int = 0
    unread_bytes: int = 0
    other_bytes: int = 0
    tls_connections: int = 0
    not_tcp_packets: int = 0
    fragments: int = 0
    skipped_blocks: int = 0
    secrets_blocks: int = 0
    texts_checked: int = 0
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "notes"}

    def lines(self) -> list[str]:
        """One line a matter."""

        def counted(count: int, what: str, plural: str = "") -> str:
            return f"{count:,} {what if count == 1 else plural or what + 's'}"

        out = [
            f"{counted(self.packets, 'packet')}, {counted(self.messages, 'message')}: sizes and times as they were",
            f"replaced: {counted(self.names, 'name')}, addresses, and the content of {counted(self.records, 'record')} "
            f"in {counted(self.batches, 'batch', 'batches')} ({self.compressed_batches:,} compressed again)",
        ]
        if self.bent_addresses:
            out.append(
                f"{counted(self.bent_addresses, 'address', 'addresses')} named in messages kept the length as text, "
                "so not the prefix that they share with others"
            )
        if self.shared_names:
            out.append(f"{counted(self.shared_names, 'name')} of a few bytes had to share a pseudonym with others")
        if self.lost_batches:
            out.append(
                f"{counted(self.lost_batches, 'compressed batch', 'compressed batches')} became noise: "
                "they cannot be decompressed, or would not fit"
            )
        blanked = {
            "secrets": self.secret_bytes,
            "bytes that nobody can read": self.unread_bytes,
            "bytes of formats of their own": self.opaque_bytes,
            "bytes that are no message": self.other_bytes,
        }
        counts = ", ".join(f"{count:,} {what}" for what, count in blanked.items() if count)
        out += [f"blanked: {counts}"] if counts else []
        left = {
            "TLS connections": self.tls_connections,
            "packets that are not TCP": self.not_tcp_packets,
            "IP fragments": self.fragments,
        }
        counts = ", ".join(f"{count:,} {what}" for what, count in left.items() if count)
        out += [f"zeros but for their headers: {counts}"] if counts else []
        if self.secrets_blocks or self.skipped_blocks:
            left_out = f"{self.secrets_blocks} blocks of TLS keys, {self.skipped_blocks} broken packet blocks"
            out.append(f"left out: {left_out}")
        out.append(f"checked: none of {counted(self.texts_checked, 'text')} of 4 bytes or more is in it")
        return out
