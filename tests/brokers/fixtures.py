"""Brokers as pytest fixtures. `tests/conftest.py` offers them to every test.

A cluster is started when the first test asks for it and lives to the end of the session; tests that ask for an equal
`Spec` share it, and so use names of their own for topics and groups. Where brokers cannot run, CI fails; a person's
machine skips, and says at the end how to get what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec

Start = Callable[[Spec], Cluster]

missing: list[str] = []
"""Why brokers could not run, for the last lines of the run."""


def launch(spec: Spec, factory: pytest.TempPathFactory) -> Cluster:
    try:
        cluster = Cluster(spec, factory.mktemp(f"kafka-{spec.version}"), jars.find_java(), jars.fetch(spec.version))
    except jars.Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests with brokers: {reason}")
        missing.append(str(reason))
        pytest.skip(f"no brokers: {reason}")
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    return cluster


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`shared_brokers(Spec(...))` -> a cluster that other tests may be using as well."""
    running: dict[Spec, Cluster] = {}

    def start(spec: Spec) -> Cluster:
        if spec not in running:
            running[spec] = launch(spec, tmp_path_factory)
        return running[spec]

    yield start
    for cluster in running.values():
        cluster.stop()


@pytest.fixture
def fresh_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`fresh_brokers(Spec(...))` -> a cluster of this test alone, empty, ended with it."""
    running: list[Cluster] = []

    def start(spec: Spec) -> Cluster:
        running.append(launch(spec, tmp_path_factory))
        return running[-1]

    yield start
    for cluster in running:
        cluster.stop()
