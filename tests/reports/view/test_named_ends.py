"""Names of clients and brokers on the page (`--names`).

Proves: reports/view/columns.py, reports/view/other_tables.py, reports/view/drawings.py, reports/named_ends.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kwire.analyzer.common import address_names
from tests.reports.view.conftest import TXN, Asking, viewed

NAME = 'kafka-0"<img src=x>'


def test_without_names_there_are_no_such_columns(txn: Asking) -> None:
    """Stands first: the names of the others are opened for the whole process."""
    assert not {"client_name", "broker_name"} & {column["name"] for column in txn("info")["columns"]}
    assert "client_name" not in {facet["name"] for facet in txn("facets")["facets"]}
    assert "`client_name` needs names of addresses" in txn.refused("rows", filter="client_name == a")["message"]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    path = tmp_path_factory.mktemp("names") / "names.csv"
    path.write_text('address,name\n127.0.0.1,"kafka-0""<img src=x>"\n')
    with contextlib.ExitStack() as stack:
        stack.enter_context(address_names.opened([path]))
        yield Asking(viewed(stack, TXN, names=[str(path)]))


def test_exchanges_have_names(named: Asking) -> None:
    info = named("info")
    columns = {column["name"]: column for column in info["columns"]}
    assert columns["client_name"]["constant"]
    assert columns["broker_name"]["about"] == "Name of the broker's address, as `--names FILE` says."
    assert info["command"][-2] == "--names"
    rows = named("rows", columns="client_name,broker_name", count=3)
    assert rows["columns"] == {"client_name": [NAME] * 3, "broker_name": [NAME] * 3}


def test_the_filter_sorting_and_counts_know_them(named: Asking) -> None:
    quoted = NAME.replace('"', '""')
    every = named("rows")["total"]
    assert named("rows", filter=f'client_name == "{quoted}"')["total"] == every
    assert named("rows", filter="client_name == kafka-1")["total"] == 0
    assert named("rows", sort="broker_name")["total"] == every
    (facet,) = (facet for facet in named("facets")["facets"] if facet["name"] == "client_name")
    assert [(value["text"], value["count"]) for value in facet["values"]] == [(NAME, every)]


def test_other_lists_and_drawings_have_them(named: Asking) -> None:
    connections = named("table", name="connections")
    assert set(connections["columns"]["client_name"]) == {NAME}
    assert all(NAME.replace(" ", "\u00a0") in actor for actor in named("ladder")["actors"] if "client" in actor)
