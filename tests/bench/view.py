"""Time `kwire view` on millions of exchanges, the server alone and in a real browser.

    python -m tests.bench.view                        # 12 M exchanges
    python -m tests.bench.view --exchanges 1000000 --no-browser
    python -m tests.bench.view --capture FILE         # when the first rows of a large capture are painted
    python -m tests.bench.view --messages             # trees and bytes of messages of 1 MB and of 100 MB

The rows are written by NumPy into the folder that the view keeps its columns in: an hour of 2,000 connections of 300
clients to 12 brokers, 200 topics, mostly Produce and Fetch, held fetches, one answer in two hundred an error. What is
timed of the server is a whole call of its API without the network, the first time it is asked (answers are kept); of
the browser, what a user waits for, beside the frames of an empty page. Bars: VIEW's goals, for 10 M exchanges.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kwire.analyzer.dataset import tables
from kwire.analyzer.filter.names import ADDRESSES
from kwire.analyzer.frame import spill
from kwire.analyzer.options.questions import ViewOptions
from kwire.analyzer.protocol import schema
from kwire.reports.view import columns, open_view
from kwire.reports.view.answers import DataView, answer_call
from tests.reports.forging import Forged

START_US = 1_767_322_800_000_000
SPAN_US = 3_600_000_000
CONNECTIONS, CLIENTS, BROKERS, TOPICS = 2_000, 300, 12, 200
APIS = {"Produce": 0.5, "Fetch": 0.4, "Metadata": 0.02, "Heartbeat": 0.05, "OffsetCommit": 0.03}
KEYS = {api.name: api.api_key for api in schema.apis()}
# fmt: off
FILTERS = {
    "scalar terms": "api == Fetch and latency > 100ms", "a topic": "topic == topic-17",
    "a substring": 'connection ~ "1.17:"', "errors": "error is not null",
    "three terms": 'api == Produce and topic ~ "-1" and latency > 20ms',
    "a time": "request_time > 2026-01-02T03:30:00Z",
}
# fmt: on
SORTS = ("latency", "-latency", "api", "connection", "request_time", "topic", "response_bytes")


def write(folder: Path, n: int, seed: int = 1) -> None:
    """`n` exchanges as the view's columns."""
    random = np.random.default_rng(seed)
    folder.mkdir(mode=0o700, parents=True)
    link = random.integers(0, CONNECTIONS, n, np.int16)
    api = random.choice(len(APIS), n, p=list(APIS.values())).astype(np.int8)
    request_times = START_US + np.sort(random.integers(0, SPAN_US, n))
    latency = (10 ** random.normal(3.2, 0.7, n)).astype(np.int32) + 50
    held = (api == 1) & (random.random(n, np.float32) < 0.4)
    latency[held] = 500_000
    silent = random.random(n, np.float32) < 0.001
    numbers: dict[str, np.ndarray] = {
        "request_time": request_times,
        "request_end": request_times + 20,
        "response_time": request_times + 20 + latency,
        "response_end": request_times + 60 + latency,
        "latency_us": latency,
        "total_us": latency + 60,
        "queue_us": np.full(n, 30, np.int8),
        "muted_us": np.zeros(n, np.int8),
        "network_us": np.full(n, 40, np.int8),
        "hold_us": np.where(held, latency - 80, 0).astype(np.int32),
        "broker_us": np.where(held, 70, latency - 10).astype(np.int32),
        "api_key": np.array([KEYS[name] for name in APIS], np.int8)[api],
        "api_version": np.full(n, 12, np.int8),
        "request_bytes": random.integers(60, 20_000, n, np.int32),
        "response_bytes": random.integers(40, 60_000, n, np.int32),
        "exchange": np.arange(n, dtype=np.int32),
        "reply": np.arange(n, dtype=np.int32),
        "correlation_id": np.arange(n, dtype=np.int32),
        "request_packet": np.arange(n, dtype=np.int32),
        "client_port": np.full(n, 20_000, np.int32),
        "broker_port": np.full(n, 9092, np.int16),
    }
    for name in ("response_time", "response_end", "latency_us", "total_us", "reply"):
        numbers[name][silent] = np.iinfo(numbers[name].dtype).min
    ranges = {
        name: spill.value_range(numbers[name], int(np.iinfo(numbers[name].dtype).min))
        for name in ("request_time", "response_time")
    }
    for name in columns.INTEGERS:
        empty = np.full(n, -128, np.int8)
        columns._save(folder, name, numbers.pop(name, empty))
    clients = [f"10.1.{number // 250}.{number % 250}" for number in range(CONNECTIONS)]
    brokers = [f"10.0.0.{number}" for number in range(BROKERS)]
    ends = [f"{clients[number]}:20000-{brokers[number % BROKERS]}:9092#1" for number in range(CONNECTIONS)]
    nothing = np.full(n, -1, np.int8)
    some: dict[str, tuple[np.ndarray, list[Any]]] = {
        "capture": (np.zeros(n, np.int8), ["forged.pcap"]),
        "connection": (link, ends),
        "client_ip": (link, clients),
        "broker_ip": ((link % BROKERS).astype(np.int8), brokers),
        "client_id": ((link % CLIENTS).astype(np.int16), [f"client-{number}" for number in range(CLIENTS)]),
        "api": (api, list(APIS)),
        "status": (silent.astype(np.int8), ["answered", "unanswered"]),
        "request_state": (np.zeros(n, np.int8), ["decoded"]),
        "response_state": (np.zeros(n, np.int8), ["decoded"]),
        "cause": (held.astype(np.int8), ["broker", "hold"]),
        "client": (link, [[client, 20_000] for client in clients]),
        "broker": ((link % BROKERS).astype(np.int8), [[broker, 9092] for broker in brokers]),
    }
    values: dict[str, list[Any]] = {}
    for name in (*columns.TEXTS, *ADDRESSES):
        codes, values[name] = some.get(name, (nothing, []))
        columns._save(folder, name, codes)
    values["topics"] = [f"topic-{number}" for number in range(TOPICS)]
    # Lists: none, one topic, three topics.
    lists = [
        [],
        *([topic] for topic in range(TOPICS)),
        *([topic, (topic + 1) % TOPICS, (topic + 7) % TOPICS] for topic in range(TOPICS)),
    ]
    of = np.where(api < 2, 1 + random.integers(0, 2 * TOPICS, n, np.int16), 0).astype(np.int16)
    _lists(folder, "topics", of, lists, np.int16)
    wrong = np.where(random.random(n, np.float32) < 0.005, random.integers(1, 4, n, np.int8), 0).astype(np.int8)
    _lists(folder, "errors", wrong, [[], [3], [6], [6, 27]], np.int16)
    columns._save(folder, "errors.count", np.ones(4, np.int32))
    columns._list(folder, n, values, [name for name in columns.TEXTS if not values[name]], ranges)


def _lists(folder: Path, name: str, of: np.ndarray, lists: list[list[int]], kind: type) -> None:
    columns._save(folder, f"{name}.of", of)
    columns._save(folder, f"{name}.ends", np.cumsum([0, *map(len, lists)]))
    columns._save(folder, f"{name}.code", np.array([code for part in lists for code in part], kind))


@contextlib.contextmanager
def view_of(n: int, folder: Path) -> Iterator[DataView]:
    """A view of `n` exchanges, whose columns are in the cache of `folder`: of the `dataset` there."""
    os.environ["KWIRE_CACHE_DIR"] = str(folder / "cache")
    forged = Forged(folder / "dataset", meaning=True)
    options = ViewOptions(sources=[], cache=True)
    with contextlib.ExitStack() as stack:
        place = forged.write()
        open_view.open_view([str(place)], options, stack)  # the folder's name, and columns of no rows
        (columns_folder,) = (folder / "cache" / "view").glob("*/columns")
        shutil.rmtree(columns_folder)
        began = time.perf_counter()
        write(columns_folder, n)
        print(f"{n:,} exchanges written in {time.perf_counter() - began:.1f} s", flush=True)
        began = time.perf_counter()
        shown = open_view.open_view([str(place)], options, stack)
        print(f"opened in {time.perf_counter() - began:.2f} s", flush=True)
        yield shown


def calls(view: DataView) -> dict[str, float]:
    """Milliseconds of calls, each asked for the first time."""
    times: dict[str, float] = {}

    def call(name: str, what: str, **query: Any) -> Any:
        began = time.perf_counter()
        answer = answer_call(view, what, {key: str(value) for key, value in query.items()})
        times[name] = (time.perf_counter() - began) * 1000
        assert answer.status == 200, answer.content
        print(f"  {times[name]:8.1f} ms  {name}", flush=True)
        return json.loads(answer.content) if answer.type == "application/json" else None

    view.tables.parse("api == Fetch")  # the server does so when it starts
    call("info", "info")
    call("first rows", "rows", count=100)
    key = call("rows of the middle", "rows", start=view.tables.columns.n // 2, count=100)["keys"][0]
    for name, text in FILTERS.items():
        total = call(f"filter: {name}", "rows", filter=text, count=100)["total"]
        print(f"               {total:,} of {view.tables.columns.n:,}")
    for sort in SORTS:
        call(f"sort: {sort}, first window", "rows", sort=sort, count=100)
        call(f"sort: {sort}, where a row stands", "locate", sort=sort, key=key)
        began = time.perf_counter()
        view.tables.ordered("", sort)
        times[f"whole {sort}"] = (time.perf_counter() - began) * 1000
        print(f"  {times[f'whole {sort}']:8.1f} ms  the rest of the order")
        call(f"sort: {sort}, last window", "rows", sort=sort, start=view.tables.columns.n - 100, count=100)
    call("filter and sort", "rows", filter="api == Produce and latency > 1ms", sort="latency", count=100)
    for name, text in (("all", ""), ("half", "api == Produce")):
        call(f"facets: {name}", "facets", filter=text)
        call(f"quantiles: {name}", "stats", filter=text)
        if "heatmap" in _known():
            call(f"heatmap: {name}", "heatmap", filter=text)
            call(f"heatmap: {name}, again", "heatmap", filter=text)
        call(f"ladder: {name}, bands", "ladder", filter=text, bands=300)
        call(f"ladder: {name}, 2,000 arrows of the middle", "ladder", filter=text, start=view.tables.columns.n // 3)
        for by in ("connection", "client"):
            call(f"timeline: {name}, by {by}", "timeline", filter=text, by=by, width=1200)
    return times


def _known() -> dict[str, Callable[..., Any]]:
    from kwire.reports.view.answers import CALLS

    return CALLS


def memory() -> str:
    """Anonymous memory now, and the most that was resident (mapped files too)."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    anonymous = next((int(line.split()[1]) / 1e6 for line in lines if line.startswith("RssAnon")), float("nan"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return f"anonymous memory {anonymous:.2f} GB; most resident, mapped files included, {peak:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=12_000_000)
    parser.add_argument("--no-browser", dest="browser", action="store_false")
    parser.add_argument("--capture", metavar="FILE", help="only: first rows while this large capture is analysed")
    parser.add_argument("--messages", action="store_true", help="only: trees and bytes of large messages")
    options = parser.parse_args()
    if options.messages:
        from tests.bench import view_messages

        return view_messages.measure()
    if options.capture:
        from tests.bench.view_page import first_rows

        return first_rows(options.capture, "--no-cache")
    assert set(columns.INTEGERS) | set(columns.TEXTS) | set(columns.LISTS) == set(tables.schema("exchanges").names)
    with (
        tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder,
        view_of(options.exchanges, Path(folder)) as view,
    ):
        calls(view)
        print(memory(), flush=True)
        if options.browser:
            from tests.bench.view_page import first_rows, measure

            measure(view)
            first_rows(str(Path(folder) / "dataset"))


if __name__ == "__main__":
    main()
