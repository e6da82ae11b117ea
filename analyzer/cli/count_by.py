"""`kwire show --count-by`: how many exchanges there are of each combination of values.

In: parsed options, and what their names mean. Out: lines, most frequent first. Rules: memory is bounded by the
combinations, not by the exchanges; a list counts once for each of its elements that differ, an exchange that has no
value once, as `-`, so that none is lost. Columns are counted by Arrow; fields of bodies one exchange after the other.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer import api
from kwire.analyzer.cli import text
from kwire.analyzer.common import address_names, compute
from kwire.analyzer.dataset import tables
from kwire.analyzer.filter.names import Columns, Operand
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.pipeline.points import NO_RECORDS, AnalysisOptions, joined, read_point
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points

if TYPE_CHECKING:
    from kwire.analyzer.options.show import ShowOptions

Counts = Counter[tuple[str, ...]]


def counted(options: ShowOptions, names: Sequence[Operand], notes: list[str]) -> Counts:
    """How many exchanges there are of each combination, values as they are printed."""
    if all(operand.apis is None for operand in names):
        return _of_columns(options, names, notes)
    counts: Counts = Counter()
    apis = frozenset[int]().union(*(operand.apis or () for operand in names))
    exchanges = api.decoded(
        options.captures,
        ReadOptions.from_arguments(options),
        filter=options.filter,
        bodies=apis,
        notes=notes,
        stdin=sys.stdin.buffer,
        payloads=PayloadOptions.from_arguments(options),
    )
    for exchange in exchanges:
        if options.follow is None or exchange.row["connection"] == options.follow:
            bodies = (exchange.request, exchange.response) if exchange.row["api_key"] in apis else (None, None)
            values = (dict.fromkeys(map(_shown, name.parts(exchange.row, *bodies))) for name in names)
            counts.update(itertools.product(*values))
    return counts


def lines(counts: Counts, names: Sequence[Operand], limit: int | None) -> str:
    """The table, most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]
    shown = [[*(operand.heading for operand in names), "exchanges"]]
    shown += [[*cells, f"{count:,}"] for cells, count in ordered]
    return text.aligned(shown, {len(names)})


def _shown(value: Any) -> str:
    return text.cell(value) or "-"


def _of_columns(options: ShowOptions, names: Sequence[Operand], notes: list[str]) -> Counts:
    """Count where all names are columns: a table of thousands of exchanges at a time."""
    counts: Counts = Counter()
    known: dict[str, str] = {}

    def put(name: str, table: pa.Table) -> None:
        if name == "exchanges" and len(table):
            _count(table, names, counts)
        elif name == "topic_ids":
            known.update((row["topic_id"], row["topic"]) for row in table.to_pylist())

    how = ReadOptions.from_arguments(options)
    payloads = PayloadOptions.from_arguments(options)
    choice = AnalysisOptions.of(options.filter, options.follow, records=NO_RECORDS, payloads=payloads)
    points = capture_points(options.captures, how.rotated)
    result = joined(
        [read_point(point, how.settings(choice.keep), choice, put, None, sys.stdin.buffer) for point in points]
    )
    notes += result.notes
    topics = [isinstance(operand.about, Columns) and operand.about.form == "topics" for operand in names]
    if not known or not any(topics):
        return counts
    named: Counts = Counter()  # ids whose names were said somewhere
    for values, count in counts.items():
        resolved = (known.get(value, value) if topic else value for value, topic in zip(values, topics, strict=True))
        named[tuple(resolved)] += count
    return named


def _count(table: pa.Table, names: Sequence[Operand], counts: Counts) -> None:
    columns = list(dict.fromkeys(name for operand in names for name in _columns(operand)))
    schema = tables.schema("exchanges")
    table = table.select(columns).cast(pa.schema([schema.field(name) for name in columns]))
    row = pa.array(np.arange(len(table)))
    table = table.append_column("", row)
    listed = [name for name in columns if pa.types.is_list(table.schema.field(name).type)]
    for name in listed:
        table = _one_by_one(table, name)
    if listed:
        table = table.group_by(table.column_names).aggregate([])  # what one exchange says twice counts once
    for group in table.group_by(columns).aggregate([([], "count_all")]).to_pylist():
        values = (group[_columns(operand)[0]] if operand.several else operand.shown(group) for operand in names)
        counts[tuple(map(_shown, values))] += group["count_all"]


def _columns(operand: Operand) -> tuple[str, ...]:
    assert isinstance(operand.about, Columns)
    return tuple(address_names.COLUMNS.get(name, name) for name in operand.about.names)


def _one_by_one(table: pa.Table, name: str) -> pa.Table:
    """A row for each element of a column of lists, and one with null where there is none."""
    lists = table[name].combine_chunks()
    lengths = np.asarray(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    values = lists.flatten()
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "error")
    first = np.cumsum(lengths) - lengths
    parent = np.repeat(np.arange(len(lists)), np.maximum(lengths, 1))
    starts = np.cumsum(np.maximum(lengths, 1)) - np.maximum(lengths, 1)
    element = np.arange(len(parent)) - starts[parent] + first[parent]
    chosen = pa.array(element, mask=lengths[parent] == 0)
    return compute.take(table, parent).set_column(table.column_names.index(name), name, values.take(chosen))
