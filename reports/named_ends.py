"""Names of clients and brokers (`--names FILE`) in SQL: columns of tables, the relation `address_names`, and columns of
answers.

In: datasets, answers. Out: the names of their addresses. Rules: a table with an address has its name as a last column,
so that queries can choose by it; an answer with an address, of a view say, gets the name behind it unless it has it.
Without names nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from kwire.analyzer.common import address_names
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import StoredDataset

ABOUT: Final = {
    "client_name": "Name of the client's address, as `--names FILE` says.",
    "broker_name": "Name of the broker's address, as `--names FILE` says.",
}
_OF: Final = {**{ip: column for column, ip in address_names.COLUMNS.items()}, "broker": "broker_name"}
"""The name that a column of addresses gets; `broker` is an address with its port."""


def addresses(datasets: Sequence[StoredDataset]) -> list[str]:
    """The addresses of clients and brokers in datasets, sorted."""
    known: set[str] = set()
    for dataset in datasets:
        for column in address_names.COLUMNS.values():
            for batch in dataset.connections.to_batches(columns=[column]):
                known.update(ip for ip in batch.column(0).unique().to_pylist() if ip is not None)
    return sorted(known)


def rows(datasets: Sequence[StoredDataset]) -> list[list[str]]:
    """(address, name) of the addresses in datasets that have a name."""
    if not address_names.known_names():
        return []
    return [[ip, name] for ip in addresses(datasets) if (name := address_names.name_of(ip)) is not None]


def columns(table: str) -> dict[str, str]:
    """The columns of names that a table has now, with the column of the address of each."""
    if not address_names.known_names():
        return {}
    there = {column.name for column in tables.TABLES[table]}
    return {name: ip for name, ip in address_names.COLUMNS.items() if ip in there}


def with_names(answer: pa.Table) -> pa.Table:
    """An answer with the name of each address behind it."""
    if not address_names.known_names():
        return answer
    for column, name in _OF.items():
        if answer.column_names.count(column) != 1 or name in answer.column_names:
            continue
        at = answer.column_names.index(column)
        if not pa.types.is_string(answer.schema.field(at).type):
            continue
        names: dict[str | None, str | None] = {end: _named(end) for end in answer.column(at).unique().to_pylist()}
        named = pa.array([names[end] for end in answer.column(at).to_pylist()], pa.string())
        answer = answer.add_column(at + 1, name, named)
    return answer


def _named(end: str | None) -> str | None:
    """The name of an address, or of an address with its port."""
    return address_names.name_of(end) or address_names.name_of(address_names.without_port(end or ""))
