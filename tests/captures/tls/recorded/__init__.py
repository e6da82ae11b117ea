"""Sessions of programs that the suite does not start, as they were recorded: JSSE of Java, and OpenSSL's command.

    python -m tests.captures.tls.recorded          # records them again: needs Java, Maven's jar of the agent, openssl

In: the files beside this one. Out: connections as writes of records, what was said, and the key log. A line a write:
who (C, S), text or wire (T, W), in hexadecimal; `-` begins a connection, `K` is a line of the key log, `#` says how it
was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.captures.forge import Write

FOLDER = Path(__file__).parent


@dataclass
class Connection:
    """Bytes on the wire of one connection, and its plaintext."""

    wire: list[Write] = field(default_factory=list)
    plain: list[Write] = field(default_factory=list)


@dataclass
class Recorded:
    """Connections of one program, and the key log that it wrote."""

    connections: list[Connection]
    keys: bytes


def names() -> list[str]:
    """The recordings there are."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def recorded(name: str) -> Recorded:
    """One of them."""
    out = Recorded([], b"")
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        who, _, rest = line.partition(" ")
        if who == "-":
            out.connections.append(Connection())
        elif who == "K":
            out.keys += rest.encode() + b"\n"
        elif who in ("C", "S"):
            kind, _, data = rest.partition(" ")
            part = out.connections[-1].wire if kind == "W" else out.connections[-1].plain
            part.append(Write(who == "C", bytes.fromhex(data)))
    return out
