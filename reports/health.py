"""Health at a glance: from answers to a few statements, each with a verdict in a word.

Pure. A verdict never rests on colour alone, and each threshold says why it is what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analyzer.text import duration, printable, size
from reports.answers import Answer

Verdict = Literal["bad", "look", "note", "good"]

SLOW_P99_US = 100_000
"""A broker that answers one request in a hundred later than this is slow: page cache and a local network take a
millisecond, replication to all replicas some tens."""

VERY_SLOW_P99_US = 1_000_000
"""Beyond this, clients with a timeout of a few seconds begin to send again."""

ERROR_SHARE = 0.01
"""Errors that do not belong to the protocol's ordinary course: one in a hundred exchanges is worth a look."""

BAD_ERROR_SHARE = 0.05

RETRANSMITTED_SHARE = 0.001
"""A healthy network in one place sends fewer packets than this again."""

BAD_RETRANSMITTED_SHARE = 0.01
"""From about here on TCP's throughput suffers visibly."""

UNDERSTOOD_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement: what was looked at, the verdict, and a sentence with the numbers. `section`: where more stands."""

    subject: str
    verdict: Verdict
    text: str
    section: str


def findings(answers: Mapping[str, Answer], target: str | None) -> list[Finding]:
    """Every statement that the answers allow, the worst first."""
    order: dict[Verdict, int] = {"bad": 0, "look": 1, "note": 2, "good": 3}
    totals, links = answers["totals"].dicts()[0], answers["links"].dicts()[0]
    found = [
        *_errors(totals, answers), *_answers(totals), *_latency(totals, answers), *_throttling(totals, answers),
        *_network(links), *_retries(answers), *_checksums(answers), *_groups(answers), *_upgrade(answers, target),
        *_coverage(links, answers),
    ]  # fmt: skip
    return sorted(found, key=lambda finding: order[finding.verdict])


def count(number: int, one: str, many: str = "") -> str:
    """`1 exchange`, `2,000 exchanges`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share(part: float, whole: float) -> str:
    """`3.7 %`; `under 0.1 %` rather than a zero that is none."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 99.95 or part == whole else "99.9 %"


def _errors(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Finding]:
    errors, answered = totals["errors"], totals["answered"]
    if not answered:
        return
    if not errors:
        yield Finding("Errors", "good", f"None of {count(answered, 'answer')} holds an error.", "errors")
        return
    ordinary, hard = totals["ordinary_errors"], totals["hard_errors"]
    odd = errors - ordinary
    verdict: Verdict = "bad" if odd > BAD_ERROR_SHARE * answered else "look" if odd > ERROR_SHARE * answered else "note"
    commonest = answers["errors_by_api"].dicts()[:2]
    named = ", ".join(f"{row['error']} ({row['error_code']}) to {row['api']}" for row in commonest)
    text = f"{count(errors, 'answer')} of {answered:,} ({share(errors, answered)}) {'holds' if errors == 1 else 'hold'}"
    kinds = [
        f"{number:,} {what}"
        for number, what in (
            (ordinary, "belong to the protocol's course"), (odd - hard, "can be retried"), (hard, "cannot be retried")
        )
        if number
    ]  # fmt: skip
    yield Finding("Errors", verdict, f"{text} an error: {', '.join(kinds)}. Most often {named}.", "errors")


def _answers(totals: dict[str, Any]) -> Iterator[Finding]:
    if totals["unanswered"]:
        text = f"{count(totals['unanswered'], 'request')} never got an answer."
        yield Finding("Answers", "look", text, "errors")
    elif totals["requests"]:
        left = totals["in_flight"]
        also = f"; {left:,} still waited when the capture ended" if left else ""
        yield Finding("Answers", "good", f"Every request was answered{also}.", "errors")
    if totals["orphans"]:
        text = f"{count(totals['orphans'], 'response')} came whose request was not captured."
        yield Finding("Beginning", "note", text, "coverage")


def _latency(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Finding]:
    if not totals["prompt"]:
        return
    p99 = totals["p99_us"]
    verdict: Verdict = "bad" if p99 >= VERY_SLOW_P99_US else "look" if p99 >= SLOW_P99_US else "good"
    text = f"Half of the requests that do not wait for data or members are answered within {duration(totals['p50_us'])}"
    text += f", 99 of 100 within {duration(p99)}; the slowest took {duration(totals['max_us'])}."
    yield Finding("Latency", verdict, text, "latency")


def _throttling(totals: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Finding]:
    if totals["throttled"]:
        worst = answers["throttled"].dicts()[0]
        who = printable(worst["client_id"] or "a client without id")
        text = f"{count(totals['throttled'], 'answer')} throttled its client, most of all {who}: "
        yield Finding("Quotas", "look", f"{text}{duration(worst['total_us'])} together.", "latency")


def _network(links: dict[str, Any]) -> Iterator[Finding]:
    packets, again = links["packets"], links["retransmissions"]
    if not packets:
        return
    bad = again > BAD_RETRANSMITTED_SHARE * packets
    verdict: Verdict = "bad" if bad else "look" if again > RETRANSMITTED_SHARE * packets else "good"
    said = [f"{count(again, 'packet')} of {packets:,} ({share(again, packets)}) sent again"]
    if links["resets"]:
        said.append(f"{count(links['resets'], 'connection')} of {links['connections']:,} ended with a reset")
        verdict = "look" if verdict == "good" else verdict
    if links["zero_windows"]:
        said.append(f"{count(links['zero_windows'], 'packet')} said that the receiver has no room")
        verdict = "look" if verdict == "good" else verdict
    yield Finding("Network", verdict, "; ".join(said) + ".", "connections")


def _retries(answers: Mapping[str, Answer]) -> Iterator[Finding]:
    if answers["retries"].rows:
        more = "more than " if answers["retries"].more else ""
        text = f"{more}{count(len(answers['retries'].rows), 'batch', 'batches')} came more than once from its producer."
        yield Finding("Retries", "look", text[0].upper() + text[1:], "topics")


def _checksums(answers: Mapping[str, Answer]) -> Iterator[Finding]:
    if wrong := answers["produce_efficiency"].total("bad_checksums"):
        text = f"{count(wrong, 'batch', 'batches')} came with a wrong checksum."
        yield Finding("Checksums", "bad", text, "topics")


def _groups(answers: Mapping[str, Answer]) -> Iterator[Finding]:
    groups = answers["groups_seen"].dicts()
    moved = [group for group in groups if group["generations"] > 1]
    if moved:
        named = ", ".join(printable(group["group_id"]) for group in moved[:3])
        more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
        text = f"{count(len(moved), 'group')} of {len(groups):,} changed generation (rebalanced): {named}{more}."
        yield Finding("Groups", "note", text, "groups")


def _upgrade(answers: Mapping[str, Answer], target: str | None) -> Iterator[Finding]:
    if target is None:
        return
    rows = [row for row in answers["upgrade_check"].dicts() if row["sender"] == "client"]
    if not rows:
        yield Finding("Upgrade", "good", f"Kafka {target} has every API version that clients use.", "clients")
        return
    gone = [row for row in rows if row["problem"] != "not there yet"]
    named = sorted({printable(row["client_id"] or "a client without id") for row in gone or rows})
    who = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    if gone:
        text = f"Kafka {target} has removed what {count(len(named), 'client')} {'uses' if len(named) == 1 else 'use'}:"
        yield Finding("Upgrade", "bad", f"{text} {who}.", "clients")
    else:
        text = f"Kafka {target} is older than what {count(len(named), 'client')} spoke: {who}."
        yield Finding("Upgrade", "note", text, "clients")


def _coverage(links: dict[str, Any], answers: Mapping[str, Answer]) -> Iterator[Finding]:
    payload, missing = links["payload_bytes"] or 0, links["missing_bytes"] or 0
    if not payload:
        yield Finding("Coverage", "look", "No Kafka traffic was found in the capture.", "coverage")
        return
    understood = links["understood_bytes"]
    verdict: Verdict = "good" if understood >= UNDERSTOOD_SHARE * payload and not missing else "look"
    said = [f"{share(understood, payload)} of {size(payload)} of Kafka traffic was decoded"]
    if links["encrypted_bytes"]:
        said.append(f"{size(links['encrypted_bytes'])} is encrypted")
    if missing:
        said.append(f"{size(missing)} is missing from the capture")
    lost = answers["captured"].total("dropped_packets")
    if lost:
        said.append(f"the capture itself lost {count(lost, 'packet')}")
        verdict = "look"
    yield Finding("Coverage", verdict, "; ".join(said) + ".", "coverage")
