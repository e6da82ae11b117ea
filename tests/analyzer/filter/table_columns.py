"""Columns of an Arrow table of exchanges for filters: what rows of integers and single exchanges are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from kwire.analyzer.common import address_names
from kwire.analyzer.filter.evaluation import Filter
from kwire.analyzer.filter.sources import Coded, ExchangeColumns, TopicName, named
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.list_columns import ListColumn
from kwire.captures.kernels import NULL


def table_verdict(
    parsed: Filter, table: pa.Table, topic_name: TopicName | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluate on a table of exchanges: bool[n] certainly matches, certainly does not, undecided without bodies.

    Only the columns that the filter names (and `api_key`, and for paths `errors` and `topics`) must be there.
    `topic_name` maps a topic's id to its name; without it `topics` is compared as it is."""
    true, false = parsed.verdict(TableColumns(table, topic_name))
    return true, false, ~(true | false)


class TableColumns(ExchangeColumns):
    """Columns of an Arrow table of exchanges; text may be dictionary-encoded."""

    def __init__(self, table: pa.Table, topic_name: TopicName | None) -> None:
        self.table = table
        self.topic_name = topic_name
        self.n = len(table)
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            column = self.table.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            array = column.combine_chunks()
            if isinstance(array, pa.ChunkedArray):  # some versions of pyarrow return a column without rows unchanged
                array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
            self._arrays[name] = array
        return array

    def integers(self, name: str) -> np.ndarray:
        if name == "api":
            return np.where(self.texts("api").codes < 0, NULL, self.integers("api_key"))
        return arrow.numbers(self._array(name), NULL)

    def _coded(self, array: Any) -> Coded:
        if pa.types.is_null(array.type):
            return Coded(np.full(len(array), -1), ())
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        values = array.dictionary.to_pylist()
        codes = arrow.numbers(array.indices, -1)
        if None in values:
            codes[codes == values.index(None)] = -1
        return Coded(codes, values)

    def texts(self, name: str) -> Coded:
        if (address := address_names.COLUMNS.get(name)) is not None:
            return named(self.texts(address))
        return self._coded(self._array(name))

    def addresses(self, names: tuple[str, ...]) -> Coded:
        ips, ports = self.texts(names[0]), self.integers(names[1])
        present = (ips.codes >= 0) & (ports != NULL)
        pairs, where = np.unique(np.where(present, ips.codes << 16 | ports, -1), return_inverse=True)
        values = [(ips.values[pair >> 16], pair & 0xFFFF) if pair >= 0 else None for pair in pairs.tolist()]
        return Coded(np.where(present, where, -1), values)

    def lists(self, name: str) -> ListColumn:
        array = self._array(name)
        ends = np.concatenate([[0], np.cumsum(arrow.list_lengths(array))])
        elements = arrow.list_elements(array)
        if name == "errors":
            return ListColumn(np.arange(self.n), ends, arrow.numbers(elements.field("code"), 0))
        codes, values = self._coded(elements)
        if self.topic_name is not None:
            values = [value if value is None else self.topic_name(value) for value in values]
        return ListColumn(np.arange(self.n), ends, codes, values=values)
