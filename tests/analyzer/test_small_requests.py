"""Captures of very many small requests: windows end by exchanges as well as by bytes, and what waits is packed.

(proves: `Engine._in_step` of analyzer/bulk/engine.py; `Conversations.go_on` of analyzer/bulk/shard.py;
`ShardResult.divided` of analyzer/bulk/shard_result.py; kwire.analyzer.pipeline.exchange_order)
"""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.cli import parser
from kwire.analyzer.pipeline import exchange_order
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from kwire.captures.kernels import NULL
from tests.captures import forge
from tests.captures.forge import TO_BROKER, TO_CLIENT, Write
from tests.shared import ROOT, SAMPLES, capture_files

AT_ONCE = 1000
"""Requests, and then answers, that one segment holds."""


def request(number: int) -> bytes:
    """ApiVersions 0."""
    return struct.pack(">ihhih3s", 13, 18, 0, number, 3, b"abc")


def answer(number: int) -> bytes:
    return struct.pack(">iihi", 10, number, 0, 0)


def capture(path: Path, count: int, is_answered: bool = True, connections: int = 1, at_once: int = AT_ONCE) -> Path:
    """So many requests on each connection, and their answers, but for that of the first request."""
    conversations = []
    for connection in range(connections):
        writes = []
        for begin in range(0, count, at_once):
            numbers = range(begin, min(begin + at_once, count))
            writes.append(Write(TO_BROKER, b"".join(map(request, numbers))))
            if is_answered:
                writes.append(Write(TO_CLIENT, b"".join(answer(number) for number in numbers if number)))
        client, start_ns = ("10.0.0.1", 40_000 + connection), forge.START_NS + 7 * connection
        conversations.append(forge.converse(writes, client=client, start_ns=start_ns, mss=60_000, acks=False))
    path.write_bytes(forge.pcap(forge.rendered(forge.interleaved(*conversations))))
    return path


# --- windows that are handed out in parts -----------------------------------------------------------------------------

Rows = list[tuple[Any, ...]]


def read(path: Path, shards: int, rows_at_once: int) -> tuple[list[int], Rows, Rows]:
    """Exchanges of each window; all exchanges, and all messages, with what tells them apart."""
    [point] = capture_points([str(path)], False)
    engine = Engine(point, Settings(shards=shards, rows_at_once=rows_at_once, keep_messages=True))
    sizes: list[int] = []
    exchanges: Rows = []
    messages: Rows = []
    oldest = 0
    for window in engine.windows():
        rows, names = window.every, window.names.connections
        connections = [names[number] for number in rows.connection.tolist()]
        columns = [rows.column(name) for name in ("completed_by", "exchange", "reply", "correlation_id")]
        first = np.where(rows.column("packet_index") == NULL, rows.column("completed_by"), rows.column("packet_index"))
        assert first.min(initial=oldest) >= oldest, "nothing is older than the window before said"
        oldest = window.oldest
        sizes.append(len(rows))
        exchanges += zip(connections, *(column.tolist() for column in columns), strict=True)
        messages += ((names[m.connection], m.request, m.ordinal, m.data) for m in window.messages(None))
        window.names.release()
    return sizes, exchanges, messages


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_window_in_parts_has_the_same_rows(shards: int, is_answered: bool, tmp_path: Path) -> None:
    path = capture(tmp_path / "dense.pcap", 9000, is_answered, connections=3)
    whole_sizes, whole, whole_messages = read(path, 1, 0)
    sizes, parts, messages = read(path, shards, 8192)
    assert parts == whole
    assert sorted(messages) == sorted(whole_messages)
    assert len(parts) == 27_000
    assert len([size for size in sizes if size]) > len([size for size in whole_sizes if size])


def test_tables_of_a_window_in_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capture(tmp_path / "dense.pcap", 9000, connections=3)
    whole = analyzer.analyze(path, threads=6, keep_bytes=True)
    plain = ReadOptions.settings

    def fewer(self: ReadOptions, *options: Any) -> Settings:
        return replace(plain(self, *options), rows_at_once=8192)

    monkeypatch.setattr(ReadOptions, "settings", fewer)
    parts = analyzer.analyze(path, threads=6, keep_bytes=True)
    for name, table in whole.tables.items():
        assert parts.tables[name].equals(table), name


# --- exchanges that wait ----------------------------------------------------------------------------------------------


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few exchanges wait in memory, and few become objects at a time."""
    monkeypatch.setattr(exchange_order, "HELD_ROWS", 5)
    monkeypatch.setattr(exchange_order, "ROWS_AT_ONCE", 7)


def exchanges(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    return [
        (exchange.row, exchange.partitions, exchange.request_message, exchange.response_message)
        for exchange in analyzer.exchanges(path, partitions=True, window_bytes=20_000, **options)
    ]


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "group-kip848-librdkafka-4.3"])
def test_what_waits_comes_back_as_it_was(sample: str, request: pytest.FixtureRequest) -> None:
    """A capture that begins with its end has all that follows wait."""
    [path] = capture_files(SAMPLES / sample)
    plain = exchanges(path)
    request.getfixturevalue("cramped")
    assert exchanges(path) == plain
    assert exchanges(path, ordered=False)


@pytest.mark.usefixtures("cramped")
def test_all_wait_for_a_request_that_is_never_answered(tmp_path: Path) -> None:
    """The first of 3,000 is never answered: those that follow wait in a file, and keep their order."""
    path = capture(tmp_path / "first.pcap", 3000, at_once=3)
    shown = exchanges(path)
    numbers = [row["correlation_id"] for row, *_ in shown]
    assert numbers == [1, 2, 0, *range(3, 3000)], "of one packet in order of their ends"
    for number, (row, _, sent, got) in zip(numbers, shown, strict=True):
        assert row["status"] == ("answered" if number else "unanswered")
        assert sent.data == request(number)
        assert got.data == answer(number) if number else got is None


# --- memory -----------------------------------------------------------------------------------------------------------

GROWTH_KIB = 250 << 10
"""What three times as many may take more: a few windows of 65,536 exchanges are at work at once, however many follow.
Before, 300,000 unanswered requests took 360 MB more in `analyze`, and 120,000 answered ones 700 MB in `show`."""

PEAK_KIB = 700 << 10
"""Some 500 MB of its own (RssAnon), and what is mapped from files."""


def measure(command: str, path: str) -> None:
    """Print the peak of the command's memory in KiB on stderr."""
    parser.main([command, path])
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(peak, file=sys.stderr)


def peak(command: str, path: Path) -> int:
    code = f"from {__name__} import measure; measure({command!r}, {str(path)!r})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    return int(run.stderr.split()[-1])


@pytest.mark.parametrize(
    ("command", "count", "is_answered"),
    [("analyze", 150_000, False), ("analyze", 150_000, True), ("show", 60_000, True), ("show", 60_000, False)],
)
def test_memory_does_not_grow_with_small_requests(command: str, count: int, is_answered: bool, tmp_path: Path) -> None:
    few = peak(command, capture(tmp_path / "few.pcap", count, is_answered))
    many = peak(command, capture(tmp_path / "many.pcap", 3 * count, is_answered))
    assert many - few < GROWTH_KIB
    assert many < PEAK_KIB
