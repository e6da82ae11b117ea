"""Two replays that write one RUN at the same time, many times: one of them whole, never a mix, and who was refused is
told whose turn it is.

Proves: replay/run.py (its lock), with analyzer/dataset/dataset.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kwire import analyzer
from tests.bench.replay import Sink
from tests.replay.test_commands import serving
from tests.shared import ROOT

TIMES = 10

REPLAYS = """
import asyncio, sys
from kwire.replay import run
from kwire.replay.options import Options
from kwire.replay.send import link
from kwire.replay.send.settings import Settings
from kwire.analyzer.dataset.dataset import DatasetError
from kwire.replay.source import MemorySource
from tests.bench.replay import sessions

out, port, requests, wait = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "wait"
captured = MemorySource(sessions(1, requests, None))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[5])):
    options = Options("127.0.0.1", port, settings=Settings(speed=None), yes=True, missing_topics_ok=True)
    try:
        asyncio.run(run.replay(captured, options, link.tcp(), f"{out}/{number}", [], wait))
        print("done", flush=True)
    except DatasetError as refused:
        print(f"{refused.message} ({refused.hint})", flush=True)
"""


@pytest.mark.parametrize("wait", ["wait", "no"])
def test_two_replays_that_write_one_run(wait: str, tmp_path: Path) -> None:
    requests = {"a": 4, "b": 9}
    with serving(Sink) as port:
        Sink.port = port
        processes = {
            name: subprocess.Popen(
                [sys.executable, "-c", REPLAYS, str(tmp_path), str(port), str(count), wait, str(TIMES)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, count in requests.items()
        }
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = {name: process.communicate()[0].splitlines() for name, process in processes.items()}
    for number in range(TIMES):
        done = {name for name, lines in printed.items() if lines[number] == "done"}
        for name in set(requests) - done:
            turn = r".*/\d+: process \d+ is writing it \(wait for that, or let --wait do so\)"
            assert re.fullmatch(turn, printed[name][number])
        assert done == set(requests) if wait == "wait" else done
        stored = analyzer.open_dataset(tmp_path / str(number))
        outcomes = stored.outcomes.count_rows()
        assert outcomes in {requests[name] + 1 for name in done}, "one or the other, never a mix"
        assert stored.messages.count_rows() == 4 * outcomes
        assert stored.manifest["replay"]["counts"]["total"] == outcomes
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left beside"
