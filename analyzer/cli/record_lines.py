"""`kwire show --records`: records of captures and datasets, one a line.

In: parsed options. Out: lines on stdout: time, topic, partition, offset, key and value, or what `--format` says, or
with `--json` an object. Rules: a topic that only an id names has its name where some message says it; bytes that are no
text are hex after `0x`; text of others is made fit for a terminal, so that a record never breaks its line.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.cli import text
from kwire.analyzer.cli.record_fields import RecordFields
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.times import EPOCH, rfc3339
from kwire.analyzer.dataset.dataset import is_dataset, open_dataset
from kwire.analyzer.payloads.field_paths import DecodedFields
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.pipeline.analysis_options import parsed
from kwire.analyzer.pipeline.points import FULL, AnalysisOptions, NamesAhead, nothing_matches, point_tables
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.analyzer.records import batches
from kwire.captures.files import capture_points

if TYPE_CHECKING:
    from kwire.analyzer.options.show import ShowOptions

_NOT_HERE = ("tree", "hex", "frames", "count_by", "sort", "budget", "page")
_HEADING = "time\ttopic\tpartition\toffset\tkey\tvalue\n"
_ROWS_AT_ONCE = 4096
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

Row = dict[str, Any]


def show(options: ShowOptions, out: IO[str]) -> int:
    """Print the records of all arguments; the exit code comes back."""
    for name in _NOT_HERE:
        if getattr(options, name):
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option} does not go with --records", "--json, --fields, --format, --filter and --limit do"
            )
    if options.format and options.json:
        raise UsageError("--format does not go with --json", "leave one of them out")
    if options.format and options.fields:
        raise UsageError("--format does not go with --fields", "leave one of them out")
    form = _json if options.json else _formatted(options.format) if options.format is not None else _line
    heading = "" if form is not _line else _HEADING
    if options.fields is not None:
        fields = RecordFields(options.fields)
        form, heading = fields.line, fields.heading
        captures = not all(map(is_dataset, options.captures))
        if fields.are_decoded and captures:  # what needs no schema, where no other option says more
            options = dataclasses.replace(options, payloads=True)
    filter = parsed(options.filter)
    if filter is not None and filter.needs_payloads:
        options = dataclasses.replace(options, payloads=True)
    notes: list[str] = []
    left = options.limit
    for row in _rows(options, notes):
        if filter is not None and filter.needs_payloads and filter.excludes(DecodedFields(_decoded_of(row))):
            continue
        out.write(heading + form(row))
        heading = ""
        left = left - 1 if left is not None else None
        if left == 0:
            break
    for note in notes:
        sys.stderr.write(f"note: {text.printable(note)}\n")
    return 0


def _decoded_of(row: Row) -> Callable[[str], str | None]:
    return lambda side: row[f"{side}_json"]


def _rows(options: ShowOptions, notes: list[str]) -> Iterator[Row]:
    rest = [argument for argument in options.captures if not is_dataset(argument)]
    for argument in options.captures:
        if is_dataset(argument):
            if options.filter is not None or options.follow is not None:
                raise UsageError(
                    f"{argument}: a dataset, and --filter and --follow are for captures",
                    f"kwire sql {shlex.quote(argument)} 'SELECT * FROM records WHERE ...'",
                )
            if PayloadOptions.of(options.schemas, options.registry, options.payloads) is not None:
                raise UsageError(
                    f"{argument}: a dataset, whose keys and values are decoded when it is made",
                    f"kwire analyze CAPTURE -o {shlex.quote(argument)} with these options",
                )
            yield from _of_dataset(argument)
    if not rest:
        return
    how = ReadOptions.from_arguments(options)
    payloads = PayloadOptions.of(options.schemas, options.registry, options.payloads)
    choice = AnalysisOptions.of(options.filter, options.follow, records=FULL, payloads=payloads)
    settings = how.settings(choice.keep)
    passed: list[tuple[int, int]] = []
    bombs: list[int] = []  # records of each
    for point in capture_points(rest, how.rotated):
        look_up = NamesAhead(TopicIds(), point, settings).look_up
        parts = point_tables(point, settings, choice, stdin=sys.stdin.buffer)
        while True:
            try:
                name, table = next(parts)
            except StopIteration as end:
                notes += end.value.notes
                passed += [end.value.passed] if end.value.passed is not None else []
                break
            if name == "records":
                yield from _named(table, look_up)
            elif name == "batches":
                chosen = table.filter(pc.equal(table.column("reason").cast(pa.string()), batches.BOMB))
                bombs += chosen.column("record_count").fill_null(0).to_pylist()
    if bombs:
        notes.append(
            f"{len(bombs):,} batch{'es' * (len(bombs) != 1)} of {sum(bombs):,} records not opened: {batches.BOMB} "
            "(kwire analyze --decompressed-limit, --decompressed-ratio)"
        )
    notes += nothing_matches(passed)


def _of_dataset(path: str) -> Iterator[Row]:
    dataset = open_dataset(path)
    records = dataset.records
    # Batches are not there either with --records none: what was sent and fetched says whether there was anything.
    if not records.count_rows() and dataset.partitions.count_rows(filter=pc.field("record_bytes") > 0):
        raise UsageError(
            f"{path}: has no records, as it was made without --records full",
            f"kwire analyze CAPTURE -o {path} --records full, or kwire show --records CAPTURE",
        )
    known = dataset.topic_ids.to_table(columns=["topic_id", "topic"]).to_pylist()
    names = {row["topic_id"]: row["topic"] for row in known}
    for batch in records.to_batches(batch_size=_ROWS_AT_ONCE):
        yield from _named(pa.Table.from_batches([batch]), lambda topic: names.get(topic, topic))


def _named(table: pa.Table, look_up: Callable[[str], str]) -> Iterator[Row]:
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            if row["topic"] is None and row["topic_id"] is not None:
                row["topic"] = look_up(row["topic_id"])
            yield row


def bytes_text(value: bytes | None, size: int | None) -> str:
    """Bytes as text where they are that, else as hex; of those that were not kept, how many there were."""
    if value is None:
        return "null" if size is None else f"({size} bytes)"
    try:
        return text.printable(value.decode())
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _value(row: Row) -> str:
    return bytes_text(row["value"], row["value_bytes"])


def _key(row: Row) -> str:
    return bytes_text(row["key"], row["key_bytes"])


def decoded_text(row: Row, side: str) -> str:
    """A key or value as JSON where it was decoded, but for text, which is that already."""
    decoded = row.get(f"{side}_json")
    if decoded is None or row[f"{side}_format"] == "text":
        return bytes_text(row[side], row[f"{side}_bytes"])
    return text.printable(decoded)


def _line(row: Row) -> str:
    cells = [row["timestamp"], row["topic"], row["partition"], row["offset"]]
    cells += [decoded_text(row, "key"), decoded_text(row, "value")]
    if row.get("undecodable") is not None:
        cells.append(f"! {text.printable(row['undecodable'])}")
    return "\t".join(map(text.cell, cells)) + "\n"


def _headers(row: Row) -> str:
    pairs = row["headers"] or ()
    return ",".join(f"{text.printable(header['key'])}={bytes_text(header['value'], None)}" for header in pairs)


def _millis(row: Row) -> str:
    when = row["timestamp"]
    return "-1" if when is None else str(round((when - EPOCH).total_seconds() * 1000))


_PARTS: dict[str, Callable[[Row], str]] = {
    "t": lambda row: text.cell(row["topic"]),
    "p": lambda row: text.cell(row["partition"]),
    "o": lambda row: text.cell(row["offset"]),
    "k": _key,
    "s": _value,
    "T": _millis,
    "h": _headers,
    "K": lambda row: str(-1 if row["key_bytes"] is None else row["key_bytes"]),
    "S": lambda row: str(-1 if row["value_bytes"] is None else row["value_bytes"]),
    "%": lambda row: "%",
}


def _formatted(form: str) -> Callable[[Row], str]:
    """A format as kcat's: `%t %p %o %k %s %T %h %K %S`, `\\n` and `\\t`."""
    pieces: list[str | Callable[[Row], str]] = []
    for piece in re.findall(r"%.?|\\.?|[^%\\]+", form, re.DOTALL):
        if piece[0] == "%":
            if piece[1:] not in _PARTS:
                raise UsageError(f"--format: no {piece!r}", f"there are {' '.join(f'%{name}' for name in _PARTS)}")
            pieces.append(_PARTS[piece[1:]])
        else:
            pieces.append(_ESCAPES.get(piece[1:], piece) if piece[0] == "\\" else piece)
    return lambda row: "".join(piece if isinstance(piece, str) else piece(row) for piece in pieces)


def _json(row: Row) -> str:
    """All columns; `key` and `value` as text where they are that, else `key_base64` and `value_base64`."""
    plain: Row = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            plain.update(_bytes(name, value))
        elif name == "headers" and value is not None:
            plain[name] = [{"key": header["key"], **_bytes("value", header["value"])} for header in value]
        else:
            plain[name] = rfc3339(value) if name == "timestamp" and value is not None else value
    return text.json_text(plain) + "\n"


def _bytes(name: str, value: bytes | None) -> Row:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}
