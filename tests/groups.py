"""Groups of tests that `make test` leaves out, but for one test of each, so that it takes minutes.

In: collected tests, how long each took. Out: markers on them, and files that are slow. A test is in the group of a
fixture that it takes, of its file (or of tests in it that are named), or of its own name; the first that fits counts.
`make test-all` runs everything, `make test-group GROUP=spark` one of them. Rule: a file whose tests take more than 20 s
together belongs in a group; the end of a run names those that do not (`REPORT_SECONDS`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

REPORT_SECONDS = 20

GROUPS = {
    "spark": "Spark's sessions, and views on both engines",
    "broker": "real brokers, other processes, sockets and network interfaces",
    "browser": "pages in Chromium",
    "fuzz": "broken and random inputs in numbers",
    "kill": "processes killed at every step, and locks between them",
    "growth": "memory that must not grow",
    "compiler": "compiling kernels, building wheels, type checkers",
    "sweep": "every shared capture read a second time: by another decoder, in windows, in shares, with losses",
}
"""Each with what its tests need or do."""

BY_FIXTURE = {
    "spark": "spark",
    "session": "spark",
    "fresh_brokers": "broker",
    "shared_brokers": "broker",
    "wire": "broker",
    "chromium": "browser",
}

# fmt: off
BY_FILE = {
    "spark": (
        "reports/spark/", "reports/test_views.py", "reports/test_views_witness.py", "reports/test_engines.py",
        "reports/embedded/test_meanings.py", "reports/test_sql.py", "reports/test_payload_sql.py", "test_notebooks.py",
    ),
    "broker": (
        "brokers/", "incidents/", "replay/test_replaying.py", "replay/test_commands.py", "replay/test_shadowing.py",
        "replay/test_rehearse.py", "replay/test_broken_targets.py", "replay/test_live_traffic.py",
        "replay/send/test_workers.py",
        "analyzer/live/test_watch.py", "analyzer/live/test_analyze.py",
        "analyzer/live/test_record.py", "captures/live/", "replay/send/test_login.py", "replay/test_regressions.py",
        "analyzer/findings/test_extensions.py", "analyzer/export/test_command.py",
    ),
    "browser": ("reports/view/test_page.py", "reports/view/test_page_late.py", "reports/view/test_page_lists.py"),
    "fuzz": ("fuzz/", "captures/chunks/test_chunks.py", "analyzer/test_secrets.py"),
    "kill": (
        "analyzer/dataset/test_locks.py", "analyzer/live/test_folder_checkpoint.py", "replay/test_lost_workers.py",
        "analyzer/live/test_follow_folder.py", "analyzer/checkpoints/test_resumable_reader.py",
        "replay/test_two_writers.py", "analyzer/dataset/test_dataset.py::test_a_kill_at_every_step",
    ),
    "growth": (
        "reports/test_clock_jumps.py", "analyzer/test_forgetting.py", "replay/audit/test_acknowledged.py",
        "analyzer/findings/test_blocks.py", "replay/diff/test_stored_run.py",
        "analyzer/test_small_requests.py::test_memory",
    ),
    "compiler": (
        "test_wheel.py", "captures/test_kernel_types.py", "analyzer/test_compiling.py", "captures/test_kernels.py",
        "test_python.py",
    ),
    "sweep": (
        "witness/test_witness.py", "replay/plan/test_flow.py", "replay/plan/test_windows.py",
        "analyzer/pipeline/test_shares.py", "analyzer/bulk/test_loss.py",
        "analyzer/story/test_story.py::test_a_few_rows_at_a_time",
        "analyzer/bulk/test_partitions.py::test_partitions_are_what_the_bodies_say[cluster-",
        "analyzer/export/test_packet_copy.py",
        "captures/test_packets.py::test_rows_of_a_shared_capture_are_those_of_dpkt",
    ),
}

BY_NAME = {"test_the_same_with_bounds_checks_and_without_compiling": "compiler"}

SMOKE = (
    "reports/test_views.py::test_every_view_has_the_columns_that_it_explains",
    "brokers/test_brokers.py::test_equal_specs_share_a_cluster_and_others_do_not",
    "reports/view/test_page.py::test_two_tabs_look_at_one_server",
    "fuzz/test_fuzz.py::test_mutants_are_read_or_refused[0]",
    "analyzer/dataset/test_locks.py::test_a_lock_ends_with_its_process",
    "analyzer/test_forgetting.py::test_symbols_that_stay_are_what_they_were",
    "analyzer/test_compiling.py::test_a_line_says_how_many_once",
    "replay/plan/test_windows.py::test_windows_make_the_same_plan_step_for_step[codecs-franzgo-4.3]",
)
# fmt: on
"""Tests of groups that the default run has too, one of each: names as pytest prints them, up to a parameter."""


def group_of(item: pytest.Item) -> str | None:
    """The group of a test; None: every run has it."""
    for fixture, group in BY_FIXTURE.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    test = item.nodeid.removeprefix("tests/")
    by_file = (group for group, files in BY_FILE.items() if test.startswith(files))
    return next(by_file, BY_NAME.get(test.rpartition("::")[2].partition("[")[0]))


def mark(items: list[pytest.Item]) -> None:
    """Put markers on tests."""
    for item in items:
        group = group_of(item)
        if group is not None:
            item.add_marker(group)
            if item.nodeid.removeprefix("tests/").startswith(SMOKE):
                item.add_marker("smoke")


class Durations:
    """Seconds of each test file, added up over its tests and all workers."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def write(self, path: Path) -> None:
        """Keep them as an artefact, slowest first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {file: round(seconds, 1) for file, seconds in self._slowest_first()}
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def _slowest_first(self) -> list[tuple[str, float]]:
        return sorted(self.seconds.items(), key=lambda row: -row[1])

    def without_group(self) -> list[str]:
        """Slow files that every run has: a line each."""
        grouped = tuple(file for files in BY_FILE.values() for file in files)
        return [
            f"{seconds:6.1f} s  {file}"
            for file, seconds in self._slowest_first()
            if seconds > REPORT_SECONDS and not file.removeprefix("tests/").startswith(grouped)
        ]
