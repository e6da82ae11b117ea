"""Trees and bytes of large messages in `kwire view`: part of `python -m tests.bench.view`.

    python -m tests.bench.view --messages

A capture is made with a Produce of a megabyte in one batch, of records of a kilobyte and of a hundred bytes, plain and
compressed, and with a Fetch whose answer has a hundred megabytes in a hundred batches. Of each it is timed how long the
first page of both trees and the first bytes take the server, each asked for the first time, from the capture and from
the table `messages`; and in Chromium from the click on the row until fields and bytes are painted. Goals: 100 ms, and
300 ms for the hundred megabytes.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kwire import analyzer
from kwire.analyzer.options.questions import ViewOptions
from kwire.reports.view import open_view
from kwire.reports.view.answers import DataView, answer_call
from tests.bench import generate, messages

MEGABYTE: Final = 1_000_000
ROUNDS: Final = 3

PAINTED = """(index) => new Promise(done => {
  const panes = ['request', 'response', 'bytes'], rows = (pane) => [...document.querySelectorAll(`#${pane} .row`)];
  for (const pane of panes) for (const row of rows(pane)) row.textContent = '';
  const began = performance.now();
  const look = () => {
    if (panes.every(pane => rows(pane).some(row => !row.hidden && row.textContent)))
      requestAnimationFrame(() => done(performance.now() - began));
    else requestAnimationFrame(look);
  };
  document.querySelector(`#list .row[aria-rowindex="${index}"]`).click();
  requestAnimationFrame(look);
})"""
"""Of the page: until the fields of both messages, and bytes, are drawn where there were none."""


def _batch(rng: random.Random, size: int, record_bytes: int, codec: str) -> bytes:
    """A batch of so many bytes before it is compressed."""
    text = messages.text(rng, 4 * record_bytes)
    values = (text[at % len(text) :][:record_bytes] for at in range(0, size, record_bytes))
    return messages.batch([messages.record(at, b"key-%08d" % at, value) for at, value in enumerate(values)], codec)


Messages = list[tuple[bytes, bool]]
"""Messages, and whether each goes to the broker."""


def _talk(link: generate.Connection, rng: random.Random, fetch_bytes: int) -> Iterator[tuple[str, Messages]]:
    """Exchanges, and what each is called."""
    number = 0
    for record_bytes in (1_000, 100):
        for codec in ("none", "lz4", "zstd"):
            number += 1
            size = MEGABYTE if codec == "none" else 4 * MEGABYTE
            records = _batch(rng, size, record_bytes, codec)
            request = messages.produce_request(number, link.client_id, link.topic, 0, records)
            answer = messages.produce_response(number, link.topic, 0, 0)
            yield (
                f"Produce of {len(request) / 1e6:.1f} MB, records of {record_bytes} bytes, {codec}",
                [(request, True), (answer, False)],
            )
    for codec in ("none", "lz4", "zstd"):
        number += 1
        small = [_batch(rng, 1_000, 100, codec) for _ in range(100)]
        whole = b"".join(struct.pack(">q", 10 * at) + small[at % len(small)][8:] for at in range(2_000))[: 2 * MEGABYTE]
        request = messages.fetch_request(number, link.client_id, link.topic, 0, 0)
        answer = messages.fetch_response(number, link.topic, 0, 0, whole)
        yield (
            f"Fetch of {len(answer) / 1e6:.1f} MB, batches of ten records of 100 bytes, {codec}",
            [(request, True), (answer, False)],
        )
    for record_bytes in (1_000, 100):
        number += 1
        records = _batch(rng, MEGABYTE, record_bytes, "none")
        whole = b"".join(struct.pack(">q", at) + records[8:] for at in range(fetch_bytes // len(records)))
        request = messages.fetch_request(number, link.client_id, link.topic, 0, 0)
        answer = messages.fetch_response(number, link.topic, 0, 0, whole)
        name = f"Fetch of {len(answer) / 1e6:.0f} MB, records of {record_bytes} bytes"
        yield name, [(request, True), (answer, False)]


def written(path: Path, fetch_bytes: int) -> list[str]:
    """Write the capture; what its exchanges are called, in order."""
    rng = random.Random(1)
    link, times, names = generate.connection(0, rng), generate.clock(2), []
    with path.open("wb") as file:
        file.write(generate.file_header())
        file.write(generate.edge(link, times, opening=True))
        for name, talk in _talk(link, rng, fetch_bytes):
            names.append(name)
            for data, acks in generate.exchange_packets(link, iter(talk)):
                file.write(generate.in_order(data, acks, generate.next_times(times, len(data) + len(acks))))
        file.write(generate.edge(link, times, opening=False))
    return names


def _answer(view: DataView, what: str, **query: str) -> Any:
    answer = answer_call(view, what, query)
    assert answer.status == 200, answer.content
    return json.loads(answer.content) if answer.type == "application/json" else answer.content


def _first_page(view: DataView, key: str) -> float:
    """Milliseconds until what the page asks for first of an exchange is there."""
    began = time.perf_counter()
    for side in ("request", "response"):
        _answer(view, "message", key=key, side=side)
    _answer(view, "bytes", key=key, side="request")
    return (time.perf_counter() - began) * 1000


def measure(fetch_bytes: int = 100 * MEGABYTE) -> None:
    """Print what is to be waited for."""
    with tempfile.TemporaryDirectory(prefix="kwire-bench-") as folder, contextlib.ExitStack() as stack:
        capture = Path(folder) / "large.pcap"
        names = written(capture, fetch_bytes)
        analyzer.analyze(capture, Path(folder) / "kept", keep_bytes=True)
        options = ViewOptions(
            sources=[],
            cache=False,
        )
        for source in (capture, Path(folder) / "kept"):
            view = open_view.open_view([str(source)], options, stack)
            keys = _answer(view, "rows", count="100")["keys"]
            assert len(keys) == len(names), "not the exchanges that were written"
            _first_page(view, keys[0])  # kernels are linked
            for name, key in zip(names, keys, strict=True):
                view.messages._cache.clear()
                print(f"  {_first_page(view, key):8.1f} ms  {source.name}: {name}", flush=True)
                began = time.perf_counter()
                records = _records(view, key)
                took = (time.perf_counter() - began) * 1000
                print(f"  {took:8.1f} ms    and its first {records} records", flush=True)
            _painted(view, names)


def _records(view: DataView, key: str) -> int:
    """Open the first batch of an exchange: how many records come."""
    for side in ("request", "response"):
        if count := _below(view, key, side, []):
            return count
    raise AssertionError("no records")


def _below(view: DataView, key: str, side: str, path: list[int]) -> int:
    """How many records the first batch below a node has; 0: there is none below it."""
    message = _answer(view, "message", key=key, side=side, path=".".join(map(str, path)))
    children = message["children"]
    if children and children[0]["type"] == "record":
        return len(children)
    ways = (at for at, child in enumerate(children) if child["type"] in _WAY)
    return next((count for at in ways if (count := _below(view, key, side, [*path, at]))), 0)


_WAY: Final = ("array", "struct", "records", "batch")


def _painted(view: DataView, names: list[str]) -> None:
    """In a browser."""
    from playwright.sync_api import sync_playwright

    from tests.reports.view.conftest import served

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the page is not measured")
        return
    with served(view) as (address, token), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.goto(f"{address}?token={token}&above=none")
        page.locator("#list .row").nth(len(names) - 1).wait_for()
        for at, name in enumerate(names):
            view.messages._cache.clear()
            print(f"  {page.evaluate(PAINTED, at + 1):8.1f} ms  click to fields and bytes painted: {name}", flush=True)
        browser.close()
