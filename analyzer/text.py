"""Exchanges and summaries as text for people.

In: rows of the table `exchanges` and summary dictionaries. Out: lines. Colour only repeats what the text says: errors
are named and marked `!`, slow ones are marked `~`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analyzer.errors import label
from analyzer.summary import LISTED

SLOW_US = 100_000
"""Latency from which an exchange is marked as slow. A long poll is slow on purpose; it is marked all the same."""

_RED, _YELLOW, _DIM, _BOLD, _RESET = "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def duration(micros: int | None) -> str:
    """A duration with its unit: `831 us`, `3.1 ms`, `2.05 s`."""
    if micros is None:
        return ""
    if abs(micros) < 1000:
        return f"{micros} us"
    if abs(micros) < 1_000_000:
        return f"{micros / 1000:.1f} ms"
    return f"{micros / 1_000_000:.2f} s"


def size(count: int | None) -> str:
    """A size with its unit: `866 B`, `12.3 kB`, `1.05 MB`."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < scale * 1000:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e12:.1f} TB"


def cell(value: Any) -> str:
    """A value in a tab-separated line: null is empty, lists are JSON, text never breaks the line."""
    if value is None:
        return ""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return printable(str(value))


def printable(value: str) -> str:
    """Text from a capture may hold control characters, which would move the cursor or worse: escape them."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)


class Lines:
    """Formats exchanges as lines; times are seconds since the capture's first packet (`start`, given before the first
    line), unless `absolute`."""

    def __init__(self, color: bool = False, absolute: bool = False) -> None:
        self.start: datetime.datetime | None = None
        self._color = color
        self._absolute = absolute

    def _paint(self, code: str, line: str) -> str:
        return f"{code}{line}{_RESET}" if self._color else line

    def _time(self, when: datetime.datetime | None) -> str:
        width = 15 if self._absolute else 12
        if when is None:
            return " " * width
        if self._absolute:
            return when.astimezone(datetime.UTC).strftime("%H:%M:%S.%f")
        if self.start is None:
            self.start = when
        return f"{(when - self.start).total_seconds():{width}.6f}"

    def heading(self) -> str:
        """The line above exchanges."""
        width = 15 if self._absolute else 12
        line = (
            f"  {'time':>{width}} {'latency':>9}  {'api':<24} {'client':<21} {'broker':<21} {'request':>9} "
            f"{'response':>9}  {'id':>6} {'client id':<20} result"
        )
        return self._paint(_BOLD, line) + "\n"

    def exchange(self, row: dict[str, Any]) -> str:
        """One exchange."""
        api = row["api"] or (f"API {row['api_key']}" if row["api_key"] is not None else "?")
        version = f" v{row['api_version']}" if row["api_version"] is not None else ""
        slow = row["latency_us"] is not None and row["latency_us"] >= SLOW_US
        failed = bool(row["error_code"]) or row["status"] in ("unanswered", "orphan_response")
        odd = "undecoded" in (row["request_state"], row["response_state"])
        mark = "!" if failed or odd else "~" if slow else " "
        correlation = row["correlation_id"] if row["correlation_id"] is not None else ""
        line = (
            f"{mark} {self._time(row['request_time'] or row['response_time'])} {duration(row['latency_us']):>9}  "
            f"{api + version:<24} {_end(row['client_ip'], row['client_port']):<21} "
            f"{_end(row['broker_ip'], row['broker_port']):<21} {size(row['request_bytes']):>9} "
            f"{size(row['response_bytes']):>9}  {correlation:>6} {printable(row['client_id'] or ''):<20} {_result(row)}"
        ).rstrip()
        if failed or odd:
            line = self._paint(_RED, line)
        elif slow:
            line = self._paint(_YELLOW, line)
        return line + "\n"

    def dialogue(self, row: dict[str, Any]) -> str:
        """One exchange of a followed connection, as what the client and the broker said."""
        api = row["api"] or (f"API {row['api_key']}" if row["api_key"] is not None else "?")
        lines = []
        if row["request_time"] is not None:
            said = f"{api} v{row['api_version']} #{row['correlation_id']} {size(row['request_bytes'])}"
            lines.append(f"{self._time(row['request_time'])}  > {said} {_subject(row)}".rstrip())
        if row["response_time"] is not None:
            line = (
                f"{self._time(row['response_time'])}    < #{row['correlation_id']} {size(row['response_bytes'])} "
                f"after {duration(row['latency_us'])} {_outcome(row)}"
            ).rstrip()
            lines.append(self._paint(_RED, line) if row["error_code"] else line)
        elif row["status"] != "no_response_expected":
            lines.append(self._paint(_RED, f"{'':>12}    < {row['status']}"))
        return "\n".join(lines) + "\n"

    def frames_heading(self) -> str:
        """The line above frames."""
        return self._paint(_BOLD, f"{'time':>12}  {'from':<21} {'to':<21} {'bytes':>9}  {'id':>6} message") + "\n"

    def frames(self, found: Iterable[Any], limit: int | None) -> Iterator[str]:
        """Requests and responses apart, in order of their first bytes."""
        events = []
        for count, one in enumerate(found):
            self.start = self.start or one.capture_start
            row = one.row
            for side in ("request", "response"):
                if row[f"{side}_time"] is not None:
                    events.append((row[f"{side}_time"], count, side, row))
        events.sort(key=lambda event: (event[0], event[1], event[2]))
        for when, _, side, row in events[:limit]:
            client, broker = _end(row["client_ip"], row["client_port"]), _end(row["broker_ip"], row["broker_port"])
            sender, receiver = (client, broker) if side == "request" else (broker, client)
            api = row["api"] or (f"API {row['api_key']}" if row["api_key"] is not None else "?")
            version = f" v{row['api_version']}" if row["api_version"] is not None else ""
            rest = _subject(row) if side == "request" else _outcome(row)
            correlation = row["correlation_id"] if row["correlation_id"] is not None else ""
            line = (
                f"{self._time(when)}  {sender:<21} {receiver:<21} {size(row[f'{side}_bytes']):>9}  {correlation:>6} "
                f"{api}{version} {side} {rest}"
            ).rstrip()
            yield (self._paint(_RED, line) if side == "response" and row["error_code"] else line) + "\n"

    def tree(self, one: Any, with_hex: bool) -> str:
        """Both messages of an exchange, field by field: name, value, [start, end) in the message after its length."""
        lines: list[str] = []
        for side in ("request", "response"):
            if one.row[f"{side}_state"] is None:
                continue
            decoded = one.decoded(side, nodes=True)
            lines.append(f"    {side}")
            if decoded is None:
                lines.append("      (not decoded)")
                continue
            message = one.request_message if side == "request" else one.response_message
            for node in decoded.nodes:
                self._node(node, 3, message.data[4:] if with_hex else None, lines)
            if decoded.reason:
                lines.append(f"      ({decoded.reason})")
        return "\n".join(lines) + "\n" if lines else ""

    def _node(self, node: Any, depth: int, data: bytes | None, lines: list[str]) -> None:
        value = "null" if node.null else _node_value(node)
        line = f"{'  ' * depth}{printable(node.name)}{': ' + value if value else ''}"
        span = f"[{node.start}, {node.end})"
        if data is not None and not node.children:
            span += " " + ("**" if node.secret else data[node.start : node.end][:32].hex(" "))
            span += " ..." if node.end - node.start > 32 and not node.secret else ""
        lines.append(f"{line:<56} {self._paint(_DIM, span)}")
        for child in node.children:
            self._node(child, depth + 1, data, lines)


def _node_value(node: Any) -> str:
    if node.value is None:
        return ""
    if isinstance(node.value, str):
        return printable(node.value) or '""'
    if isinstance(node.value, bytes):
        return f"{len(node.value)} bytes"
    if node.type == "array":
        return f"{node.value} elements" if node.value != 1 else "1 element"
    if isinstance(node.value, dict):
        return "secret, " + ", ".join(f"{amount} bytes" for amount in node.value.values())
    if node.name == "errorCode" or node.name.endswith("ErrorCode"):
        return label(node.value) if isinstance(node.value, int) else str(node.value)
    return str(node.value)


def _end(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _result(row: dict[str, Any]) -> str:
    return " ".join(part for part in (_outcome(row), _subject(row)) if part)


def _outcome(row: dict[str, Any]) -> str:
    """How it ended: the errors by name, or the status where there was no answer."""
    said = []
    if row["errors"]:
        said.append(
            ", ".join(
                label(error["code"]) + (f" x{error['count']}" if error["count"] > 1 else "") for error in row["errors"]
            )
        )
    elif row["status"] == "answered":
        said.append("ok" if row["response_state"] == "decoded" else str(row["response_state"]))
    else:
        said.append(row["status"].replace("_", " "))
    if row["throttle_us"]:
        said.append(f"throttled {duration(row['throttle_us'])}")
    if row["reason"]:
        said.append(f"({printable(row['reason'])})")
    return " ".join(said)


def _subject(row: dict[str, Any]) -> str:
    """What it was about: topics, group, transaction."""
    said = []
    if row["topics"]:
        names = [printable(topic) for topic in row["topics"]]
        said.append("topics " + ",".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    if row["group_id"]:
        said.append(f"group {printable(row['group_id'])}")
    if row["transactional_id"]:
        said.append(f"transaction {printable(row['transactional_id'])}")
    if row["acks"] is not None:
        said.append(f"acks {row['acks']}")
    return " ".join(said)


def aligned(rows: list[list[str]], right: set[int]) -> str:
    """Aligned columns; `right`: those that hold numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            value.rjust(width) if i in right else value.ljust(width)
            for i, (value, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def counts(exchanges: pa.Table, names: list[str], limit: int | None) -> str:
    """How many exchanges for each combination of some columns, most frequent first; lists count once an element."""
    table = exchanges.select(list(dict.fromkeys(names)))
    for name in table.column_names:
        if pa.types.is_list(table.schema.field(name).type):
            index = pc.list_parent_indices(table[name]).combine_chunks()
            flat = pc.list_flatten(table[name])
            if pa.types.is_struct(flat.type):
                flat = pc.struct_field(flat, "error")
            table = table.take(index).set_column(table.column_names.index(name), name, flat)
    grouped = table.group_by(table.column_names).aggregate([([], "count_all")])
    rows = sorted(grouped.to_pylist(), key=lambda row: (-row["count_all"], [cell(row[name]) for name in names]))
    shown = [[*names, "exchanges"]]
    shown += [[*(cell(row[name]) or "-" for name in names), f"{row['count_all']:,}"] for row in rows[:limit]]
    return aligned(shown, {len(names)})


def summary_text(summary: dict[str, Any], out: str | None) -> str:
    """The summary that `kwire analyze` prints."""
    parts = []
    for one in summary["captures"]:
        if one.get("log"):
            files = f"{one['files']} segments, " if one["files"] != 1 else ""
            parts.append(f"{printable(one['name'])}: log of a partition, {files}{size(one['bytes'])}\n")
            continue
        span = f"{one['first_time']} to {one['last_time']}" if one["first_time"] else "no packet"
        files = f"{one['files']} files, " if one["files"] != 1 else ""
        parts.append(
            f"{printable(one['name'])}: {files}{size(one['bytes'])}, {one['packets']:,} packets "
            f"({one['tcp_packets']:,} TCP, {', '.join(one['link_types']) or 'no link type'})\n  {span}\n"
        )
    parts.append(_records_text(summary["records"]))
    if all(one.get("log") for one in summary["captures"]):
        return "".join(parts) + (f"\ndataset: {out}\n" if out is not None else "")
    parts.append(f"\n{summary['exchanges']:,} exchanges on {summary['connections']:,} connections\n")
    if summary["apis"]:
        rows = [["api", "exchanges", "errors", "no answer", "p50", "p95", "p99", "max"]]
        for api in summary["apis"]:
            latency = api["latency_us"]
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
    if summary["errors"]:
        parts.append("\nerrors\n")
        parts.append(
            aligned([[label(one["error_code"]), f"{one['exchanges']:,}"] for one in summary["errors"]], {1})
        )
    if summary["topics"]:
        parts.append("\ntopics\n")
        rows = [[printable(one["topic"]), f"{one['exchanges']:,}"] for one in summary["topics"][:LISTED]]
        parts.append(aligned(rows, {1}) + _more(len(summary["topics"])))
    if summary["clients"]:
        parts.append("\nclients\n")
        rows = [["client id", "software", "connections", "requests", "errors"]]
        for one in summary["clients"][:LISTED]:
            software = " ".join(part for part in (one["software_name"], one["software_version"]) if part)
            rows.append(
                [
                    printable(one["client_id"] or "-"),
                    printable(software or "-"),
                    f"{one['connections']:,}",
                    f"{one['requests']:,}",
                    f"{one['errors']:,}" if one["errors"] else "",
                ]
            )
        parts.append(aligned(rows, {2, 3, 4}) + _more(len(summary["clients"])))
    parts.append(_coverage_text(summary["coverage"]))
    if summary["odd"]:
        odd = ", ".join(f"{name} {count:,}" for name, count in summary["odd"].items())
        parts.append(f"odd: {odd}\n")
    unrecognised = summary["unrecognised"]
    if unrecognised["connections"]:
        looks = sorted({one["looks_like"] for one in unrecognised["listed"]})
        parts.append(
            f"not Kafka: {unrecognised['connections']:,} connections, {size(unrecognised['payload_bytes'])} "
            f"(look like: {', '.join(looks)}); --port N insists\n"
        )
    if out is not None:
        parts.append(f"\ndataset: {out}\n")
    return "".join(parts)


def _records_text(sides: dict[str, Any]) -> str:
    """Batches and records of each side; what is wrong is left out where there is none."""
    lines = []
    for side, found in sides.items():
        codecs = ", ".join(f"{name} {count:,}" for name, count in found["codecs"].items())
        line = f"{side:<8} {found['batches']:,} batches, {found['records']:,} records, {size(found['bytes'])}"
        wrong = (
            ("bad_checksums", "with a wrong checksum"),
            ("partial", "cut off"),
            ("bombs", "larger than allowed when decompressed"),
            ("not_read", "that cannot all be read"),
        )
        odd = [f"{found[name]:,} {words}" for name, words in wrong if found[name]]
        lines.append(f"{line} ({codecs})" + ("; " + ", ".join(odd) if odd else "") + "\n")
    return "".join(["\n", *lines] if lines else [])


def _more(total: int) -> str:
    return f"  and {total - LISTED:,} more (--json lists all)\n" if total > LISTED else ""


def _coverage_text(coverage: dict[str, Any]) -> str:
    """Where the captured bytes went; classes that hold none are left out."""
    said = [f"{size(coverage['decoded_bytes'])} decoded"]
    said += [f"{size(amount)} opaque ({reason})" for reason, amount in coverage["opaque"].items() if amount]
    for name in ("duplicate", "skipped", "incomplete"):
        if coverage[f"{name}_bytes"]:
            said.append(f"{size(coverage[f'{name}_bytes'])} {name}")
    line = f"\ncoverage: {size(coverage['payload_bytes'])} of Kafka captured = {' + '.join(said)}\n"
    missing = [
        f"{size(coverage[key])} {why}"
        for key, why in (("gap_bytes", "not captured"), ("snaplen_bytes", "cut off by the snap length"))
        if coverage[key]
    ]
    return line + (f"missing: {', '.join(missing)}\n" if missing else "")
