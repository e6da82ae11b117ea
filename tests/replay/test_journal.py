"""The work of a process can be read while it writes, and after it was killed in the middle of a write.

Proves: replay/journal.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kwire.replay import journal
from kwire.replay.journal import Journal
from kwire.replay.outcome import Outcome
from kwire.replay.remap.offsets import Appended
from kwire.replay.remap.remap import Learned

SHORT = Outcome(
    {},
    4,
    "sent",
    "answered",
    retries=["reconnected"],
    sent_version=7,
    scheduled_ns=1,
    planned_ns=2,
    ready_ns=3,
    first_sent_ns=4,
    sent_ns=5,
    answered_ns=6,
    targets=["h:1"],
    request=bytearray(b"\0\0\0\1x"),
    answer=b"y",
)
PLAIN = Outcome({}, 5, "converted", "unanswered", "aborted", "nothing \udc80 came", request=b"z")
SKIPPED = Outcome({}, 6, "skipped", "skipped", "not_joined")
NEWS: tuple[list[Appended], list[Learned]] = [(("orders", 0), 3, 0, 3)], [("producer", None, "1/0", "2/0", None)]


def outcomes(path: Path) -> list[Outcome]:
    return [outcome for entry in journal.read(path) for outcome in entry.outcomes]


def test_what_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    written = Journal(tmp_path / "j")
    for outcome in (SHORT, PLAIN, SKIPPED):
        written.add(outcome)
    assert outcomes(tmp_path / "j") == []  # few wait for the next write
    written.write(NEWS, {"Metadata": 2}, {"reconnected": 1})

    (entry,) = journal.read(tmp_path / "j")

    assert entry.outcomes == [SHORT, PLAIN, SKIPPED]
    # A request that was sent the short way has its length before it; the recorder tells it by its type.
    assert [type(outcome.request) for outcome in entry.outcomes] == [bytearray, bytes, type(None)]
    assert (entry.appended, entry.learned) == NEWS
    assert (entry.own_requests, entry.notes) == ({"Metadata": 2}, {"reconnected": 1})


def test_many_and_large_ones_do_not_wait(tmp_path: Path) -> None:
    written = Journal(tmp_path / "j")
    for number in range(1_000):
        written.add(dataclasses.replace(SHORT, step=number))
    there = outcomes(tmp_path / "j")
    assert [outcome.step for outcome in there] == list(range(len(there)))
    assert 1_000 - len(there) < 512
    written.add(dataclasses.replace(SHORT, step=1_000, answer=bytes(1 << 20)))
    assert len(outcomes(tmp_path / "j")) == 1_001


def test_a_frame_that_is_not_whole_is_none(tmp_path: Path) -> None:
    written = Journal(tmp_path / "j")
    written.add(SHORT)
    written.write()
    first = (tmp_path / "j").stat().st_size
    written.add(PLAIN)
    written.write()
    whole = (tmp_path / "j").read_bytes()
    for size in range(len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        expected = [SHORT, PLAIN] if size == len(whole) else [SHORT] if size >= first else []
        assert outcomes(tmp_path / "cut") == expected, size


def test_claims_do_not_wait(tmp_path: Path) -> None:
    """A step that may have been sent must be in the journal before it is."""
    written = Journal(tmp_path / "j")
    written.add(SHORT)
    written.claim(7, 32)
    (entry,) = journal.read(tmp_path / "j")
    assert (list(entry.outcomes), list(entry.claims)) == ([], [(7, 32)])


def test_a_journal_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert outcomes(tmp_path / "j") == []


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/j"])
def test_a_journal_that_cannot_be_written_stops_nobody(path: str) -> None:
    written = Journal(Path(path))
    for _ in range(2):
        written.add(SHORT)
        written.write(NEWS)
    written.close()


def test_it_is_for_its_owner_only(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600
