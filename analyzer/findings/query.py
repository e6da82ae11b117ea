"""How findings are asked for, how grave they are, and what names the exchanges that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""`error`: data lost, refused or unreadable, or work stopped. `warning`: to be seen to this week. `note`: a fact."""

Evidence = tuple[str, int | None, int | None]
"""Connection, exchange, reply: the key of an exchange in its capture point; a connection alone with two None."""


@dataclass(frozen=True, slots=True)
class Query:
    """How findings are asked for. limits: thresholds other than the rules' own, by code and name; target: the lowest
    version of each API that the release of an upgrade offers, by key, and its name; policies: what the owner has
    decided, as `acks` = `all`; look_for: what is looked for only where somebody wants it (`LOOK_FOR`)."""

    limits: Mapping[tuple[str, str], float] = field(default_factory=dict)
    target: Mapping[int, tuple[int, int]] | None = None
    target_name: str | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    look_for: frozenset[str] = frozenset()


LOOK_FOR = ("pii",)
"""What `--look-for` takes: pii is personal data in keys and values."""
