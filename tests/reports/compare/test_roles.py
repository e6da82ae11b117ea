"""Roles: whose connections belong together, and who is who on the other side.

Proves: reports/compare/roles.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.dataset.dataset import open_dataset
from kwire.reports.compare import roles
from kwire.reports.compare.roles import BROKERS, Role
from kwire.reports.compare.side import Side
from tests.reports.forging import Forged


class Traffic:
    """Connections of clients, each with what it asks."""

    def __init__(self, path: Path) -> None:
        self.forged = Forged(path, meaning=True)
        self.port = 5000

    def connection(self, client: str | None, *requests: tuple[str, dict[str, Any]], ip: str = "10.0.0.1") -> Traffic:
        self.port += 1
        name = f"{ip}:{self.port}-10.0.0.9:9092#1"
        self.forged.connection(connection=name, client_id=client, client_ip=ip, client_port=self.port)
        for ordinal, (api, columns) in enumerate(requests):
            self.forged.exchange(
                api, connection=name, exchange=ordinal, reply=ordinal, client_id=client, client_ip=ip, **columns
            )
        return self

    def roles(self) -> list[Role]:
        return roles.roles_of(Side(open_dataset(self.forged.write()), "here"))


def produce(*topics: str) -> tuple[str, dict[str, Any]]:
    return "Produce", {"topics": list(topics)}


def fetch(*topics: str) -> tuple[str, dict[str, Any]]:
    return "Fetch", {"topics": list(topics)}


def member(group: str, *topics: str) -> tuple[str, dict[str, Any]]:
    return "OffsetCommit", {"group_id": group, "topics": list(topics)}


def heartbeat(group: str) -> tuple[str, dict[str, Any]]:
    return "Heartbeat", {"group_id": group}


METADATA = ("Metadata", {"topics": ["orders"]})


def described(some: list[Role]) -> set[tuple[str, frozenset[str], frozenset[str], frozenset[str], int]]:
    return {(role.name, role.writes, role.reads, role.groups, len(role.links)) for role in some}


def names(*texts: str) -> frozenset[str]:
    return frozenset(texts)


def test_workers_of_one_task_are_one_role_and_others_are_others(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "d")
    for number in range(3):
        traffic.connection(f"worker-{number}", METADATA).connection(f"worker-{number}", produce("orders"))
    traffic.connection("mailer-1", produce("mails"))
    assert described(traffic.roles()) == {
        ("worker-*", names("orders"), names(), names(), 6),
        ("mailer-1", names("mails"), names(), names(), 1),
    }


def test_one_client_id_may_stand_for_several_tasks(tmp_path: Path) -> None:
    """librdkafka calls everyone rdkafka."""
    traffic = Traffic(tmp_path / "d")
    traffic.connection("rdkafka", produce("orders")).connection("rdkafka", fetch("bills"))
    traffic.connection("rdkafka", METADATA)
    assert described(traffic.roles()) == {
        ("rdkafka", names("orders"), names(), names(), 2),
        ("rdkafka", names(), names("bills"), names(), 1),
    }


def test_members_of_a_group_are_one_role_whatever_they_are_called(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "d")
    for client in ("host-a", "host-b", "some-other"):
        traffic.connection(client, heartbeat("billing"), member("billing", "orders"), ip=f"10.0.0.{len(client)}")
    assert [(role.groups, len(role.clients)) for role in traffic.roles()] == [(names("billing"), 3)]


def test_what_is_fetched_belongs_to_the_only_group_that_reads_it(tmp_path: Path) -> None:
    """Without an analysis, nothing says which group a connection that fetches is of; of two groups nobody knows."""
    traffic = Traffic(tmp_path / "d")
    for client, groups in (("billing", ["g1"]), ("rdkafka", ["g2", "g3"])):
        traffic.connection(client, fetch("orders"))
        for group in groups:
            traffic.connection(client, heartbeat(group), member(group, "orders"))
    assert sorted((role.name, sorted(role.groups), len(role.links)) for role in traffic.roles()) == [
        ("billing", ["g1"], 2), ("rdkafka", [], 1), ("rdkafka", ["g2"], 1), ("rdkafka", ["g3"], 1),
    ]  # fmt: skip


def test_who_looks_at_a_group_is_no_member_of_it(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "d")
    traffic.connection("billing-1", heartbeat("billing"), fetch("orders"))
    traffic.connection("lag-exporter", ("OffsetFetch", {"group_id": "billing", "topics": ["orders"]}))
    assert {role.name for role in traffic.roles()} == {"billing-1", "lag-exporter"}


def test_brokers_are_a_role_of_their_own(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "d")
    traffic.connection("broker-2-fetcher-0", fetch("orders"), ip="10.0.0.9")
    traffic.connection("1", ("AlterPartition", {}), ip="10.0.0.8")
    traffic.connection("app", fetch("orders"))
    some = traffic.roles()
    assert [(role.name, role.is_broker, len(role.links)) for role in some] == [("app", False, 1), (BROKERS, True, 2)]


def role(*clients: str, writes: frozenset[str] = frozenset(), reads: frozenset[str] = frozenset(), **more: Any) -> Role:
    none = np.zeros(0, np.int64)
    apis = names(*(["Produce"] if writes else []), *(["Fetch"] if reads else []), "Metadata")
    known: dict[str, Any] = {"groups": names(), "transactional": names(), "apis": apis, "is_broker": False, **more}
    return Role(list(clients), ["10.0.0.1"], writes, reads, **known, links=none, rows=none)


def paired(before: list[Role], after: list[Role]) -> list[tuple[str | None, str | None]]:
    return [(left.name if left else None, right.name if right else None) for left, right in roles.paired(before, after)]


def test_pairs_are_of_the_same_task() -> None:
    before = [role("a", writes=names("x")), role("b", writes=names("y")), role("c", reads=names("x"))]
    after = [role("p", reads=names("x")), role("q", writes=names("y")), role("r", writes=names("x"))]
    assert sorted(paired(before, after)) == [("a", "r"), ("b", "q"), ("c", "p")]


def test_names_of_a_run_are_the_same_but_for_what_varies() -> None:
    first, second = "5b57bd98-cd50-473c-b85d-aaaf0af71e29", "0c1d2e3f-0000-4444-8888-123456789abc"
    before = [role(f"app-{first}-consumer", reads=names("t-1")), role("other", reads=names("unlike"))]
    after = [role(f"app-{second}-consumer", reads=names("t-2"))]
    assert paired(before, after) == [(before[0].name, after[0].name), ("other", None)]


def test_a_writer_is_no_reader_and_strangers_are_no_pair() -> None:
    before = [role("app", writes=names("x")), role("a", reads=names("x"), groups=names("g"))]
    after = [role("app", reads=names("x")), role("b", reads=names("y"), groups=names("h"))]
    assert sorted(paired(before, after), key=str) == sorted([("app", None), ("a", "app"), (None, "b")], key=str)


def test_thousands_of_roles_are_paired_by_name_at_once() -> None:
    before = [role(f"client-{chr(97 + at % 26)}-{at}", writes=names(f"t{at}")) for at in range(5_000)]
    after = list(reversed(before))
    pairs = list(roles.paired(before, after))
    assert len(pairs) == 5_000
    assert all(left is right for left, right in pairs)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("worker-12", "worker-*"),
        ("consumer-5b57bd98-cd50-473c-b85d-aaaf0af71e29-1", "consumer-*-*"),
        ("pod-7f9c4d5b8a1e", "pod-*"),
        ("orders", "orders"),
    ],
)
def test_what_varies_in_a_name(name: str, pattern: str) -> None:
    assert roles.pattern(name) == pattern
