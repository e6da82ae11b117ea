"""One Spark session for all tests of a process: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reports.forging import Forged


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session. Tests that register views take `spark.newSession()`: same JVM, names of its own."""
    from reports.spark import session

    yield session.session()
    session.end()


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    """A dataset of rows that a test writes itself."""
    return Forged(tmp_path / "forged")
