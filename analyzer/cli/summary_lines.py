"""Summaries as text for people: what `kwire analyze` prints.

In: summary dictionaries (`meaning.summary`). Out: text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kwire.analyzer.analysis.connections import TLS, ZOOKEEPER
from kwire.analyzer.analysis.summary import LISTED
from kwire.analyzer.cli.color import Paint, unpainted
from kwire.analyzer.cli.text import aligned, duration, printable, size
from kwire.analyzer.protocol.errors import label

_LATENCIES = "latency without the client's own queue, throttling and waits on purpose"
"""What the quantiles are of: `timed_exchanges.own_us`, as in views and reports."""


def summary_text(summary: dict[str, Any], out: str | None, paint: Paint = unpainted) -> str:
    """The summary that `kwire analyze` prints."""
    out = printable(out) if out is not None else None
    parts = []
    for capture in summary["captures"]:
        if capture.get("log"):
            files = f"{capture['files']} segments, " if capture["files"] != 1 else ""
            parts.append(f"{printable(capture['name'])}: log of a partition, {files}{size(capture['bytes'])}\n")
            continue
        span = f"{capture['first_time']} to {capture['last_time']}" if capture["first_time"] else "no packet"
        files = f"{capture['files']} files, " if capture["files"] != 1 else ""
        parts.append(
            f"{printable(capture['name'])}: {files}{size(capture['bytes'])}, {capture['packets']:,} packets "
            f"({capture['tcp_packets']:,} TCP, {', '.join(capture['link_types']) or 'no link type'})\n  {span}\n"
        )
    parts.append(_records_text(summary["records"]))
    if all(capture.get("log") for capture in summary["captures"]):
        return "".join(parts) + (f"\ndataset: {out}\n" if out is not None else "")
    parts.append(f"\n{summary['exchanges']:,} exchanges on {summary['connections']:,} connections")
    parts.append(f"; {_LATENCIES}\n" if summary["apis"] else "\n")
    if summary["apis"]:
        rows = [["api", "exchanges", "errors", "no answer", "p50", "p95", "p99", "max"]]
        for api in summary["apis"]:
            latency = api["own_us"]
            rows.append(
                [
                    api["api"] or (f"API {api['api_key']}" if api["api_key"] is not None else "(orphans)"),
                    f"{api['exchanges']:,}",
                    f"{api['errors']:,}" if api["errors"] else "",
                    f"{api['unanswered'] + api['in_flight']:,}" if api["unanswered"] + api["in_flight"] else "",
                    *(duration(latency[name]) for name in ("p50", "p95", "p99", "max")),
                ]
            )
        parts.append(aligned(rows, set(range(1, 8))))
        parts.append("  quantiles at most 1.6 % off; --json has those with all waits too (latency_us)\n")
    if summary["errors"]:
        parts.append("\nerrors\n")
        parts.append(
            aligned([[label(error["error_code"]), f"{error['exchanges']:,}"] for error in summary["errors"]], {1})
        )
    if summary["topics"]:
        parts.append("\ntopics\n")
        rows = [[printable(topic["topic"]), f"{topic['exchanges']:,}"] for topic in summary["topics"][:LISTED]]
        parts.append(aligned(rows, {1}) + _more(len(summary["topics"])))
    if summary["clients"]:
        parts.append("\nclients\n")
        rows = [["client id", "software", "connections", "requests", "errors"]]
        for client in summary["clients"][:LISTED]:
            software = " ".join(part for part in (client["software_name"], client["software_version"]) if part)
            rows.append(
                [
                    printable(client["client_id"] or "-"),
                    printable(software or "-"),
                    f"{client['connections']:,}",
                    f"{client['requests']:,}",
                    f"{client['errors']:,}" if client["errors"] else "",
                ]
            )
        parts.append(aligned(rows, {2, 3, 4}) + _more(len(summary["clients"])))
    parts.append(_findings_text(summary.get("findings"), paint))
    parts.append(_coverage_text(summary["coverage"]))
    if summary["odd"]:
        odd = ", ".join(f"{name} {count:,}" for name, count in summary["odd"].items())
        parts.append(f"odd: {odd}\n")
    unrecognised = summary["unrecognised"]
    sealed = [listed for listed in unrecognised["listed"] if listed["looks_like"] == TLS]
    if sealed:
        amount = size(sum(listed["payload_bytes"] for listed in sealed))
        failed = sum("tls_failure" in listed.get("tls", {}) for listed in sealed)
        what = "encrypted, what is said there stays shut" if failed < len(sealed) else "no handshake came to an end"
        what += f"; {failed:,} with a handshake that failed" if 0 < failed < len(sealed) else ""
        parts.append(f"TLS: {_connections(len(sealed))}, {amount}: {what}\n")
        parts.append(_handshakes_text(listed["tls"] for listed in sealed if "tls" in listed))
    keepers = [listed for listed in unrecognised["listed"] if listed["looks_like"] == ZOOKEEPER]
    if keepers:
        amount = size(sum(listed["payload_bytes"] for listed in keepers))
        parts.append(f"ZooKeeper: {_connections(len(keepers))}, {amount}\n")
    known = [*sealed, *keepers]
    if unrecognised["connections"] > len(known):
        looks = sorted({listed["looks_like"] for listed in unrecognised["listed"]} - {TLS, ZOOKEEPER})
        looks = looks or ["too many to tell"]
        amount = size(unrecognised["payload_bytes"] - sum(listed["payload_bytes"] for listed in known))
        parts.append(
            f"not Kafka: {_connections(unrecognised['connections'] - len(known))}, {amount} "
            f"(look like: {', '.join(looks)}); --port N insists\n"
        )
    if out is not None:
        parts.append(f"\ndataset: {out}\n")
    return "".join(parts)


def _handshakes_text(sealed: Iterable[dict[str, str]]) -> str:
    """The handshakes of encrypted connections, equal ones counted together."""
    names = ("tls_version", "tls_cipher", "tls_sni", "tls_alpn", "tls_subject", "tls_failure")
    alike = Counter(tuple(handshake.get(name) for name in names) for handshake in sealed)
    lines = []
    for (version, *rest, failure), many in alike.most_common(LISTED):
        parts = [printable(part) for part in (version and f"TLS {version}", *rest, failure) if part]
        if parts:
            lines.append(f"  {_connections(many)}: {', '.join(parts)}\n")
    return "".join(lines) + (f"  and {len(alike) - LISTED:,} more kinds\n" if len(alike) > LISTED else "")


def _connections(count: int) -> str:
    return f"{count:,} connections" if count != 1 else "1 connection"


def _records_text(sides: dict[str, Any]) -> str:
    """Batches and records of each side; what is wrong is left out where there is none."""
    lines = []
    for side, counts in sides.items():
        codecs = ", ".join(f"{name} {count:,}" for name, count in counts["codecs"].items())
        line = f"{side:<8} {counts['batches']:,} batches, {counts['records']:,} records, {size(counts['bytes'])}"
        wrong = (
            ("bad_checksums", "with a wrong checksum"),
            ("partial", "cut off"),
            ("bombs", "larger than allowed when decompressed"),
            ("not_read", "that cannot all be read"),
        )
        odd = [f"{counts[name]:,} {words}" for name, words in wrong if counts[name]]
        lines.append(f"{line} ({codecs})" + ("; " + ", ".join(odd) if odd else "") + "\n")
    return "".join(["\n", *lines] if lines else [])


def _more(total: int) -> str:
    return f"  and {total - LISTED:,} more (--json lists all)\n" if total > LISTED else ""


def _findings_text(findings: dict[str, Any] | None, paint: Paint) -> str:
    """The worst findings, and how many there are; nothing where there are none."""
    if not findings or not findings["worst"]:
        return ""
    rows = [
        [finding["severity"], finding["code"], finding["text"]]
        for finding in findings["worst"]
        if finding["severity"] != "note"
    ]
    notes, severe = findings["note"], findings["error"] + findings["warning"] - len(rows)
    hidden = [f"{severe:,} more"] * bool(severe) + [f"{notes:,} note{'s' * (notes > 1)}"] * bool(notes)
    more = f"  and {' and '.join(hidden)}: kwire findings tells\n" if hidden else ""
    listed = [line.partition(row[0]) for line, row in zip(aligned(rows, set()).splitlines(True) if rows else (), rows)]
    colored = [before + paint(severity, severity) + after for before, severity, after in listed]
    return "".join(["\nfindings\n", *colored, more])


def _coverage_text(coverage: dict[str, Any]) -> str:
    """Where the captured bytes went; classes that hold none are left out."""
    parts = [f"{size(coverage['decoded_bytes'])} decoded"]
    parts += [f"{size(amount)} opaque ({reason})" for reason, amount in coverage["opaque"].items() if amount]
    for name in ("duplicate", "skipped", "incomplete"):
        if coverage[f"{name}_bytes"]:
            parts.append(f"{size(coverage[f'{name}_bytes'])} {name}")
    line = f"\ncoverage: {size(coverage['payload_bytes'])} of Kafka captured = {' + '.join(parts)}\n"
    missing = [
        f"{size(coverage[key])} {why}"
        for key, why in (("gap_bytes", "not captured"), ("snaplen_bytes", "cut off by the snap length"))
        if coverage[key]
    ]
    return line + (f"missing: {', '.join(missing)}\n" if missing else "")
