"""Comments of packets: what kwire says of the exchanges whose messages they complete.

In: rows of `exchanges`, and findings. Out: a line of text for each message. Rule: names in them are others' text, made
printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kwire.analyzer.cli.exchange_lines import api, outcome, subject
from kwire.analyzer.cli.text import duration, printable

Row = Mapping[str, Any]
Findings = dict[tuple[str, str, int | None, int | None], list[str]]
"""Texts of findings by the exchange that shows them: capture, connection, exchange, reply."""

MOST_LINES = 20
"""Messages that a packet's comment speaks of: a packet may complete thousands."""


def findings_by_exchange(rows: Iterable[Row]) -> Findings:
    """Sort findings by what shows them; a connection alone has two None."""
    texts: Findings = {}
    for row in rows:
        for evidence in {tuple(row[name].values()) for name in ("first", "worst", "last") if row[name] is not None}:
            text = f"{row['severity']} {row['code']}: {printable(row['text'])}"
            texts.setdefault((row["capture"], *evidence), []).append(text)
    return texts


def request_comment(row: dict[str, Any], findings: Findings) -> list[str]:
    """Return lines on a request, for the packet that completes it."""
    client = f" by {printable(row['client_id'])}" if row["client_id"] else ""
    about = f", {what}" if (what := subject(row)) else ""
    line = f"kwire: {api(row)} request{client}, exchange {row['exchange']} of {row['connection']}{about}"
    if row["status"] == "answered":
        return [f"{line}; {_latency(row)}"]
    return [f"{line}; {outcome(row)}", *_findings(row, findings)]


def response_comment(row: dict[str, Any], findings: Findings) -> list[str]:
    """Return lines on a response, for the packet that completes it."""
    to = "a request that was not captured" if row["exchange"] is None else f"exchange {row['exchange']}"
    line = f"kwire: {api(row)} response to {to} of {row['connection']}: {outcome(row)}; {_latency(row)}"
    return [line, *_findings(row, findings)]


def connection_comment(capture: str, connection: str, findings: Findings) -> list[str]:
    """Return what is said of a connection as a whole."""
    return [f"kwire: {text}" for text in findings.get((capture, connection, None, None), ())]


def _latency(row: Row) -> str:
    return f"latency {duration(row['latency_us']) or 'unknown'}"


def _findings(row: Row, findings: Findings) -> list[str]:
    key = row["capture"], row["connection"], row["exchange"], row["reply"]
    return [f"kwire: {text}" for text in findings.get(key, ())]


def joined(lines: list[str], messages: int) -> str:
    """Return the comment of one packet, which completes so many messages."""
    left = messages - MOST_LINES
    return "\n".join(lines[:MOST_LINES] + ([f"kwire: {left:,} more messages"] if left > 0 else lines[MOST_LINES:]))
