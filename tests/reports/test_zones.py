"""Zones of addresses (`--zones FILE`), and the bytes between them.

Proves: reports/zones.py, reports/views/zones.sql.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.cli.parser import main
from kwire.reports import zones
from kwire.reports.embedded import engine
from tests.reports.forging import Forged


def traffic(forged: Forged) -> None:
    """`app` writes to a broker in rack a; `reader`, in rack b, reads from it, and from one in its own rack."""
    forged.add("brokers", node_id=1, host="10.0.0.9", port=9092, rack="a")
    forged.add("brokers", node_id=2, host="10.0.1.9", port=9092, rack="b")
    forged.connection()
    for broker in ("10.0.0.9", "10.0.1.9"):
        link = f"10.0.1.2:6000-{broker}:9092#1"
        forged.connection(connection=link, client_ip="10.0.1.2", client_id="reader", broker_ip=broker)
    written = {"topic": "t", "partition": 0, "error_code": 0}
    forged.exchange("Produce")
    forged.add("partitions", exchange=0, reply=0, record_bytes=700, **written)
    for number, broker in ((1, "10.0.0.9"), (2, "10.0.1.9")):
        link = f"10.0.1.2:6000-{broker}:9092#1"
        reader: dict[str, Any] = {
            "connection": link,
            "client_ip": "10.0.1.2",
            "client_id": "reader",
            "broker_ip": broker,
        }
        forged.exchange("Fetch", rack_id="b" if number == 1 else None, **reader)
        forged.add("partitions", connection=link, exchange=number, reply=number, record_bytes=100 * number, **written)


def bytes_between(path: Path) -> list[tuple[Any, ...]]:
    with engine.opened([path]) as opened:
        rows = opened.ask("SELECT * FROM zones")[0].to_pylist()
    return [
        tuple(row[name] for name in ("from_zone", "to_zone", "crosses", "client_id", "record_bytes")) for row in rows
    ]


def test_zones_are_racks(forged: Forged) -> None:
    traffic(forged)
    assert bytes_between(forged.write()) == [
        (None, "a", False, "app", 700),
        ("b", "b", False, "reader", 200),
        ("a", "b", True, "reader", 100),
    ]


def test_a_file_of_networks_goes_before_racks_and_the_narrowest_counts(forged: Forged, tmp_path: Path) -> None:
    traffic(forged)
    path = forged.write()
    file = tmp_path / "zones.txt"
    file.write_text("# ours\n10.0.0.0/8 everywhere\n10.0.0.0/24, west  # clients and a broker\n10.0.1.9 east\n")
    with zones.opened(file):
        assert bytes_between(path) == [
            ("west", "west", False, "app", 700),
            ("east", "everywhere", True, "reader", 200),
            ("west", "everywhere", True, "reader", 100),
        ]
    assert bytes_between(path)[0] == (None, "a", False, "app", 700)


@pytest.mark.parametrize("text", ["10.0.0.0/8\n", "ten west\n", "10.0.0.0/40 west\n"])
def test_what_is_no_network_and_zone_is_an_error(text: str, forged: Forged, tmp_path: Path, capsys: Any) -> None:
    traffic(forged)
    file = tmp_path / "zones.txt"
    file.write_text("10.0.0.0/8 west\n" + text)
    with pytest.raises(SystemExit, match="2"):
        main(["sql", str(forged.write()), "SELECT * FROM zones", "--zones", str(file)])
    assert "line 2 is not a network and a zone" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_error(forged: Forged, tmp_path: Path, capsys: Any) -> None:
    traffic(forged)
    missing = str(tmp_path / "none.txt")
    with pytest.raises(SystemExit, match="2"):
        main(["sql", str(forged.write()), "SELECT 1 AS one", "--zones", missing])
    assert f"--zones {missing}: No such file" in capsys.readouterr().err
