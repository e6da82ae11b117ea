"""Lines of many exchanges at a time are those of one after the other.

(proves: analyzer/bulk/message_columns.py; `Lines.block` of analyzer/cli/exchange_lines.py; `bodies` of
analyzer/cli/details.py; `ExchangeBlock` of analyzer/pipeline/exchange_order.py; `decoded_blocks` of analyzer/api.py)
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer import api
from kwire.analyzer.api import Block, decoded, decoded_blocks
from kwire.analyzer.cli.details import PARTITION_COLUMNS, WITH_BODIES
from kwire.analyzer.cli.exchange_lines import COLUMNS, LOOK_AHEAD, Lines
from kwire.analyzer.pipeline import exchange_order
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.analyzer.test_small_requests import capture
from tests.shared import ROOT, SAMPLES, capture_files

NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))
FORMS: list[dict[str, Any]] = [
    {},
    {"time": "absolute", "color": True},
    {"width": 80, "color": True},
    {"width": 100, "time": "local"},
    {"width": 200},
]


def blocks(paths: list[Path]) -> list[Block]:
    how = ReadOptions(window_bytes=40_000)
    return list(decoded_blocks(paths, how, columns=COLUMNS, partition_columns=PARTITION_COLUMNS, bodies=WITH_BODIES))


@pytest.mark.parametrize("name", NAMES)
def test_lines_of_blocks_are_those_of_exchanges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_order, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(exchange_order, "HELD_ROWS", 50)
    paths = capture_files(SAMPLES / name)
    exchanges = list(decoded(paths, ReadOptions(), bodies=WITH_BODIES, partitions=True))
    of_blocks = blocks(paths)
    assert [block.capture_start for block in of_blocks if len(block.columns)][:1] == [exchanges[0].capture_start]
    for form in FORMS:
        plain, fast = Lines(**form), Lines(**form)
        for lines in (plain, fast):
            lines.start = exchanges[0].capture_start
            lines.look(exchanges[:LOOK_AHEAD])
        expected = [plain.exchange(exchange) for exchange in exchanges]
        assert list(itertools.chain.from_iterable(map(fast.block, of_blocks))) == expected, form


def test_few_objects_are_made_of_many_exchanges_that_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    plain = api._PointExchanges._exchange

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return plain(*arguments)

    monkeypatch.setattr(api._PointExchanges, "_exchange", counted)
    lines = Lines()
    texts = [text for block in blocks([capture(tmp_path / "many.pcap", 20_000)]) for text in lines.block(block)]
    assert len(texts) == 20_000
    assert count < 100, "one for each kind of exchange, in each block"


def test_what_is_remembered_does_not_grow(tmp_path: Path) -> None:
    lines = Lines()
    for block in blocks([capture(tmp_path / "many.pcap", 60_000)]):
        for _ in lines.block(block):
            pass
    assert all(len(texts) < 30_000 for texts in lines._known.values())


def test_a_limit_is_kept_and_a_closed_pipe_ends_the_command(tmp_path: Path) -> None:
    path = capture(tmp_path / "many.pcap", 60_000)
    command = [sys.executable, "-m", "kwire", "show", "--no-pager", str(path)]
    limited = subprocess.run([*command, "--limit", "5000"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert limited.stdout.count("\n") == 5001, "and a heading"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        os.read(child.stdout.fileno(), 10)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) in (0, 141, -13)
