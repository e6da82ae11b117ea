"""Fixtures of tests of reports: one Spark session a process, for starting one takes seconds, and the other engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.reports.embedded import engine
from kwire.reports.embedded.engine import Embedded
from tests.reports.forging import Forged


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session. Tests that register views take `spark.newSession()`: same JVM, names of its own."""
    from kwire.reports.spark import session

    yield session.session()
    session.end()


@pytest.fixture(scope="module")
def embedded(dataset: str) -> Iterator[Embedded]:
    """The embedded engine on a module's own `dataset`."""
    with engine.opened([dataset]) as opened:
        yield opened


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    """A dataset of rows that a test writes itself."""
    return Forged(tmp_path / "forged")
