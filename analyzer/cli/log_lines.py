"""`kwire show` on Kafka's own files: batches of log segments, entries of indexes and producer snapshots, as text.

In: names of files or folders, and parsed options. Out: lines on stdout: a batch a line, with `--tree` its records
beneath, with `--json` an object a batch that has them; a line an entry of the small files. What recovery would cut off
is a note on stderr.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kwire.analyzer.cli import text
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.times import moment_of_millis, rfc3339
from kwire.analyzer.records import log_files as segments
from kwire.analyzer.records import log_reader
from kwire.analyzer.records.log_names import is_log, log_point

if TYPE_CHECKING:
    from kwire.analyzer.options.show import ShowOptions

_NOT_HERE = (
    "filter",
    "rotated",
    "port",
    "count_by",
    "follow",
    "sort",
    "frames",
    "hex",
    "records",
    "budget",
    "page",
)


def show(options: ShowOptions, out: IO[str]) -> int:
    """Print all arguments; the exit code comes back. Raises UsageError and LogError."""
    for name in _NOT_HERE:
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for captures, and {options.captures[0]} is a log of Kafka",
                "--json, --tree, --fields and --limit go with logs",
            )
    for argument in options.captures:
        if not is_log(argument):
            raise UsageError(f"{argument}: not a log segment, as {options.captures[0]} is", "show one kind at a time")
    notes: list[str] = []
    for argument in options.captures:
        point = log_point(argument)
        if point is None:
            _entries(Path(argument), options, out)
        else:
            _batches(log_reader.shown(point, notes), options, out)
    for note in notes:
        sys.stderr.write(f"note: {text.printable(note)}\n")
    return 0


def _batches(batches: Iterator[log_reader.Shown], options: ShowOptions, out: IO[str]) -> None:
    fields = _fields(options.fields)
    heading = "\t".join(fields) + "\n" if fields else "" if options.json else HEADING + "\n"
    for count, batch in enumerate(batches, 1):
        out.write(heading)
        heading = ""
        if options.json:
            out.write(text.json_text(_json(batch)) + "\n")
        elif fields:
            out.write("\t".join(text.cell(batch.row[name]) for name in fields) + "\n")
        else:
            out.write(batch_line(batch.row) + "\n")
            if options.tree:
                out.writelines(f"    {record_line(record)}\n" for record in batch.records)
        if count == options.limit:
            return


def _fields(text: str | None) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in log_reader.COLUMNS:
            raise UsageError(f"--fields: no column {name!r}", f"there are {', '.join(log_reader.COLUMNS)}")
    return names


HEADING = (
    f"{'offset':>12} {'records':>8} {'magic':>5} {'codec':<6} {'bytes':>9}  "
    f"{'last timestamp':<27} {'producer':<20} what"
)


def batch_line(row: dict[str, Any]) -> str:
    """One batch."""
    producer = ""
    if row["producer_id"] is not None:
        producer = f"{row['producer_id']}:{row['producer_epoch']}"
        producer += f" from {row['base_sequence']}" if row["base_sequence"] is not None else ""
    parts = [
        name for name, is_so in (("transactional", row["is_transactional"]), ("control", row["is_control"])) if is_so
    ]
    if row["timestamp_type"] == "LogAppendTime":
        parts.append("LogAppendTime")
    if row["delete_horizon"] is not None:
        parts.append(f"delete horizon {_time(row['delete_horizon'])}")
    if row["crc_ok"] is False:
        parts.append("! wrong checksum")
    if row["partial"]:
        parts.append("! cut off")
    if row["reason"]:
        parts.append(f"! {row['reason']}")
    return (
        f"{_cell(row['base_offset']):>12} {_cell(row['record_count']):>8} {_cell(row['magic']):>5} "
        f"{_cell(row['codec']):<6} {text.size(row['batch_bytes']):>9}  {_time(row['last_timestamp']):<27} "
        f"{producer:<20} {', '.join(parts)}"
    ).rstrip()


def record_line(record: dict[str, Any]) -> str:
    """One record."""
    parts = [f"{_cell(record['offset']):>8} {_time(record['timestamp'])}"]
    if record["control_type"] is not None:
        parts.append(record["control_type"])
    if record["decoded"] is not None:
        parts.append(text.printable(record["decoded"]))
    else:
        parts += [f"key {_bytes(record['key'])}", f"value {_bytes(record['value'])}"]
    if record["headers"]:
        named = (f"{text.printable(header['key'])}={_bytes(header['value'])}" for header in record["headers"])
        parts.append(f"headers {', '.join(named)}")
    return "  ".join(parts)


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _time(value: datetime.datetime | None) -> str:
    return "" if value is None else rfc3339(value)


def _bytes(value: bytes | None) -> str:
    """As text where it is that, else as hex."""
    if value is None:
        return "null"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else f"0x{value.hex()}"


def _json(batch: log_reader.Shown) -> dict[str, Any]:
    """A batch with its records; bytes are base64, and what the batch says is not said again in each record."""
    same = {"capture", "connection", "exchange", "reply", "topic", "topic_id", "partition", "side", "batch"}
    records = [{name: _plain(value) for name, value in record.items() if name not in same} for record in batch.records]
    return {**{name: _plain(value) for name, value in batch.row.items()}, "records": records}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return _time(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [{name: _plain(part) for name, part in field.items()} for field in value]
    return value


def _entries(path: Path, options: ShowOptions, out: IO[str]) -> None:
    """An index or a producer snapshot: a tab-separated line an entry, after one with the names."""
    entries = segments.entries(path)
    rows = entries.rows[: options.limit] if options.limit else entries.rows
    if not options.json:
        out.write("\t".join(entries.names) + "\n")
    for row in rows:
        named = {
            name: _time(moment_of_millis(value)) if name == "timestamp" else value
            for name, value in zip(entries.names, row, strict=True)
        }
        out.write((json.dumps(named) if options.json else "\t".join(str(value) for value in named.values())) + "\n")
    for note in entries.notes:
        sys.stderr.write(f"note: {text.printable(f'{path}: {note}')}\n")
