"""Fixtures for all tests: the repository's samples, and the larger captures beside it.

Prints loudly when the latter are absent: a skip that nobody sees is a test that nobody runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import groups, live
from tests.brokers import fixtures
from tests.brokers.fixtures import fresh_brokers, shared_brokers  # noqa: F401  (fixtures of every test)
from tests.shared import ROOT, SHARED, shared_present

collect_ignore = ["analyzer/extension"]
"""A package of its own, whose tests `test_extensions` runs."""

# The suite's Java processes (Spark's) live for minutes: what is compiled at length for later pays for itself in none.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

# No deadline: the suite holds no timed test, and the first call of a kernel compiles it. The same examples every time:
# a run that fails must fail again; new examples are looked for with `--hypothesis-profile=search`.
hypothesis.settings.register_profile(
    "kwire", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("kwire")


_durations = groups.Durations()


def pytest_configure(config: pytest.Config) -> None:
    for group, about in groups.GROUPS.items():
        config.addinivalue_line("markers", f"{group}: {about}")
    config.addinivalue_line("markers", "smoke: the test of its group that `make test` has too")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups.mark(items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations.add(report)


def pytest_report_header() -> str:
    return "shared captures: " + (str(SHARED) if shared_present() else f"ABSENT ({SHARED}): their tests are skipped")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _durations.write(ROOT / "out" / "durations.json")
    if slow := _durations.without_group():
        terminalreporter.section(f"files over {groups.REPORT_SECONDS} s without a group (tests/groups.py)")
        for line in slow:
            terminalreporter.line(line)
    if not shared_present():
        terminalreporter.section("SKIPPED: the shared captures are absent", red=True, bold=True)
        terminalreporter.line(f"{SHARED} is not there: only captures/samples was tested against brokers' request logs.")
        terminalreporter.line("hint: put them beside the repository, or set KWIRE_SHARED_CAPTURES to their folder.")
    if live.missing:
        terminalreporter.section("SKIPPED: tests with a network interface of their own", red=True, bold=True)
        for reason in sorted(set(live.missing)):
            terminalreporter.line(reason)
    if fixtures.missing:
        terminalreporter.section("SKIPPED: tests with real brokers", red=True, bold=True)
        for reason in sorted(set(fixtures.missing)):
            terminalreporter.line(reason)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Leave out `fsync`, which only matters when the machine loses power, and is a wait for each small dataset of the
    tests. Files of a process that was killed are whole without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def samples() -> Path:
    """The folder of the shipped sample captures."""
    from tests.shared import SAMPLES

    return SAMPLES


@pytest.fixture
def wire() -> Iterator[live.Wire]:
    """A network interface that only this test uses."""
    with live.a_wire() as interface:
        yield interface
