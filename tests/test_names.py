"""Within a package a module's or class's name is that of one thing, so that a reader knows which one is meant.

Checked are the names of modules and classes in all folders of the product.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ALIKE = {
    "captures": set(),
    "analyzer": {
        # The same subject, asked by rules, told by the story, and learned by collectors.
        *(
            "cluster",
            "clients",
            "groups",
            "journeys",
            "latency",
            "offsets",
            "sessions",
            "sources",
            "transactions",
            "zookeeper",
        ),
        # A command and its options; what each command consists of; errors of Kafka and of kwire; installed rules.
        *("analyze", "command", "commands", "errors", "extensions", "manual", "values"),
        "analysis_tables",  # declared, and filled
        "pending",  # what is not known yet
        *("columns", "framing", "selection", "text"),  # of the bulk path and of payloads
    },
    "replay": {"offsets", "page"},
    "reports": {"bodies", "command", "engine", "source"},
}
"""Modules whose names are there more than once because the thing is the same, by package."""


def modules(package: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / package).rglob("*.py")) if path.stem != "__init__")


@pytest.mark.parametrize("package", ALIKE)
def test_a_modules_name_repeats_only_where_the_thing_is_the_same(package: str) -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules(package):
        homes[path.stem].append(str(path.relative_to(ROOT)))
    repeated = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert repeated.keys() <= ALIKE[package], repeated


@pytest.mark.parametrize("package", ALIKE)
def test_a_class_has_a_name_of_its_own(package: str) -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules(package):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    repeated = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert not repeated, repeated
