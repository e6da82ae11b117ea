"""A clock that jumps by decades costs no memory: nothing is as large as a span of time divided by a width.

Each step runs in one process of its own, which measures what Python and NumPy take, and what the process takes in all.
Proves: kwire.analyzer.findings.network, kwire.analyzer.frame.grouping, kwire.reports.page.sections,
kwire.reports.view.heatmap, timeline.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kwire import analyzer
from kwire.analyzer.cli import parser
from kwire.captures.files import write
from kwire.reports import catalog
from kwire.reports.embedded import engine
from kwire.reports.page import rendering, report
from tests.captures import forge
from tests.reports.view.conftest import Asking, viewed
from tests.shared import ROOT, SAMPLES

YEARS_NS = 80 * 365 * 86400 * 10**9
PYTHON_BYTES, PROCESS_KIB = 200 << 20, 1 << 20
"""An array with a number for each minute of 80 years has 320 MB, one for each ten seconds 2 GB."""

SOURCES = ("txn-librdkafka-4.3", "group-kip848-librdkafka-4.3", "old-java-0.8.2")


def jumping(path: Path, source: str, is_back: bool) -> Path:
    """A sample whose clock is that of 2000, but of 2080 from its first third on; `is_back`: up to the second, and in
    its last packets. (Rules that go by the clock do not judge what was captured while it was set back.)"""
    (original,) = (SAMPLES / source).glob("capture.pcap*")
    link, records = forge.loaded(original)
    base = records[0].time_ns - 946_684_800 * 10**9
    third = len(records) // 3

    def late(number: int) -> bool:
        return number >= third and not (is_back and 2 * third <= number < len(records) - 10)

    moved = [replace(packet, time_ns=packet.time_ns - base + YEARS_NS * late(n)) for n, packet in enumerate(records)]
    path.write_bytes(write.pcap(moved, link))
    return path


def steps(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield every step with what it did: the analysis with all rules, story, views, report, and the viewer."""
    captures = [
        jumping(folder / f"{source}-{is_back}.pcap", source, is_back) for source in SOURCES for is_back in (False, True)
    ]
    dataset = folder / "dataset"
    for number, capture in enumerate(captures):
        yield "analyze", analyzer.analyze(capture, dataset, append=number > 0).summary
    yield "findings", parser.main(["findings", str(dataset), "--json"])
    yield "story", parser.main(["story", str(dataset), "--json"])
    with engine.opened([dataset]) as embedded:
        for view in catalog.views():
            yield view.name, embedded.ask(f"SELECT * FROM {view.name}")
        page = report.make(embedded, ("dataset",), None, "0")
        for render in (rendering.as_html, rendering.as_json, rendering.as_markdown):
            yield render.__name__, render(page)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, dataset))
        for call in ("info", "rows", "facets", "stats", "heatmap", "timeline", "ladder", "findings"):
            yield call, asking.raw(call)
        yield "bands", asking.raw("ladder", bands=1000)
    for capture in captures:
        yield "watch", parser.main(["watch", str(capture), "--json"])


def measure(folder: Path) -> None:
    """Print the peak of each step, and of the process, as a line of JSON each on stderr."""
    for source in SOURCES:  # kernels are compiled, which takes memory too
        analyzer.analyze(next((SAMPLES / source).glob("capture.pcap*")))
    tracemalloc.start()
    for name, _ in steps(folder):
        print(json.dumps([name, tracemalloc.get_traced_memory()[1]]), file=sys.stderr)
        tracemalloc.reset_peak()
    # Not ru_maxrss: a new program inherits that from the process that started it, here one of the test run's workers.
    (peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(json.dumps(["process", int(peak)]), file=sys.stderr)


def test_nothing_is_as_large_as_the_span(tmp_path: Path) -> None:
    code = f"import pathlib; from {__name__} import measure; measure(pathlib.Path({str(tmp_path)!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    peaks = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("[")]
    names = {name for name, _ in peaks}
    assert names >= {"analyze", "findings", "story", "as_html", "heatmap", "timeline", "watch"}
    assert names >= {view.name for view in catalog.views()}
    for name, peak in peaks:
        assert peak < (PROCESS_KIB if name == "process" else PYTHON_BYTES), name
