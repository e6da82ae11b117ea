"""Measure the waits of a user of `kwire view`, in Chromium: part of `python -m tests.bench.view`.

A page of its own tells how quick frames are where nothing is drawn; a wheel that turns in the list is measured beside
it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import time
from typing import Any

from kwire.reports.view.answers import DataView
from tests.reports.view.conftest import served
from tests.shared import KWIRE, ROOT

FRAMES = """(wheel) => new Promise(done => {
  const times = [], list = document.querySelector('#list');
  let last = performance.now(), blank = 0;
  const frame = now => {
    times.push(now - last); last = now;
    if (wheel) {
      list.dispatchEvent(new WheelEvent('wheel', {deltaY: 264, bubbles: true, cancelable: true}));
      blank += [...list.querySelectorAll('.row:not([hidden])')].some(row => !row.children[1]?.textContent);
    }
    if (times.length < 240) requestAnimationFrame(frame);
    else done({times: times.slice(1).sort((a, b) => a - b), blank});
  };
  requestAnimationFrame(frame);
})"""

APPLY = """(text) => new Promise(done => {
  const box = document.querySelector('#filter'), count = document.querySelector('#count');
  box.value = text;
  const began = performance.now();
  new MutationObserver((_, seen) => {
    seen.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
  }).observe(count, {childList: true, characterData: true, subtree: true});
  box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
})"""

DRAWN = """(key) => new Promise(done => {
  const began = performance.now();
  new MutationObserver((_, seen) => {
    seen.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  }).observe(document.querySelector('#drawn'), {childList: true, characterData: true, subtree: true});
  document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
})"""
"""Of the page: from a key until what is drawn is told in words, and on the screen."""


def measure(view: DataView) -> None:
    """Print what a user waits for."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the page is not measured")
        return
    files = [path for path in (ROOT / "reports" / "view" / "page").iterdir() if path.is_file()]
    print(f"the page: {sum(len(gzip.compress(path.read_bytes())) for path in files) / 1000:.0f} kB gzip")
    with served(view) as (address, token), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.goto("about:blank")
        print(f"  frames of an empty page: {_frames(page.evaluate(FRAMES, False))}")
        began = time.perf_counter()
        page.goto(f"{address}?token={token}")
        page.locator("#list .row").first.wait_for()
        print(f"  {(time.perf_counter() - began) * 1000:8.1f} ms  page to first rows")
        page.locator("#cells:not([aria-busy])").wait_for()
        for place, key in (("top", "Home"), ("middle", None), ("end", "End")):
            page.locator("#list").focus()
            if key is not None:
                page.keyboard.press(key)
            else:
                box = page.locator("#list .bar").bounding_box()
                assert box is not None
                page.mouse.click(box["x"] + 5, box["y"] + box["height"] / 2)
            page.wait_for_timeout(300)
            frames = page.evaluate(FRAMES, True)
            print(f"  frames of a turning wheel, {place}: {_frames(frames)}, with a blank row: {frames['blank']}")
        for text in ("api == Fetch and latency > 50ms", "topic == topic-11", 'connection ~ "1.19:"', ""):
            print(f"  {page.evaluate(APPLY, text):8.1f} ms  filter painted: {text or '(none)'}")
        page.locator("#list").focus()
        for name, key in (("ladder", "l"), ("its arrows", "Enter"), ("timeline", "t"), ("by client", "y")):
            if name == "its arrows":
                page.keyboard.press("j")
            print(f"  {page.evaluate(DRAWN, key):8.1f} ms  {name} drawn", flush=True)
        browser.close()


def first_rows(what: str, *options: str) -> None:
    """Print when the first rows of a capture, which is still being analysed then, or of a dataset are painted, from the
    command's start. The browser is there already."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the page is not measured")
        return
    # What is installed has its bytecode; the first of the rounds may make it here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(4):
            page = browser.new_page(viewport={"width": 1500, "height": 900})
            page.goto("about:blank")
            began = time.perf_counter()
            started = subprocess.Popen(
                [*KWIRE, "view", what, "--no-open", *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            assert started.stdout is not None
            with started.stdout:
                address = started.stdout.readline().strip()
                address_seconds = time.perf_counter() - began
                page.goto(address, wait_until="commit")
                page.locator("#list .row").first.wait_for()
                painted = time.perf_counter() - began
                print(
                    f"  address after {address_seconds * 1000:.0f} ms, first rows after {painted * 1000:.0f} ms:"
                    f" {page.locator('#count').inner_text()}",
                    flush=True,
                )
                page.close()
                started.terminate()
                started.wait()
        browser.close()


def _frames(frames: dict[str, Any]) -> str:
    times = frames["times"]
    return f"p50 {times[len(times) // 2]:.1f} ms, p95 {times[len(times) * 95 // 100]:.1f} ms"
