"""The page in a real browser: Debian's Chromium, driven by Playwright. Nothing of it is downloaded.

What the files of browser tests share. Each has its own browser and servers (`chromium`, `look` of `conftest`).

A page that waits for answers must be right whenever they come. By hand, and after a change of the page,

    KWIRE_VIEW_LATE=SEED:MS KWIRE_VIEW_SLOW=6 python -m pytest tests/reports/view -k page

runs its tests with every answer up to so many milliseconds late, and with a processor so many times slower.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
Place = tuple[str, str]
"""A server's address, and the token that opens it."""


@contextmanager
def launched() -> Iterator[Any]:
    """Start the browser, once per test file: its driver leaves an asyncio loop running, which breaks other tests."""
    if CHROMIUM is None:
        pytest.skip("no Chromium to look at kwire view with: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@dataclass
class Look:
    """Open the page of a server in a browser, and check at the end that it logged no errors."""

    browser: Any
    place: Place

    @contextmanager
    def __call__(self, state: str = "", total: str = "188", **how: Any) -> Iterator[Opened]:
        """`state`: the address's; `total`: so many exchanges are counted first, empty: not waited for."""
        with Opened(self.browser, self.place, state, **how) as opened:
            if total:
                opened.total(total)
            yield opened
            assert opened.complaints == []


_CHANGED = "net::ERR_NETWORK_CHANGED"
"""The browser gives up what it is loading, from this machine too, when an interface comes or goes: other tests have
interfaces of their own. What the page asks it asks again; that it loads at all is up to who opens it."""

_SHOWN = "[document.activeElement?.outerHTML.slice(0, 200), document.body.innerText.slice(0, 2000)]"
"""What has the focus, and what a person would read."""


class Opened:
    """An open page, with the errors that it logged and its requests to other hosts."""

    def __init__(
        self,
        browser: Any,
        place: Place,
        state: str = "",
        width: int = 1500,
        height: int = 900,
        scheme: str = "light",
    ) -> None:
        address, token = place
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.context.set_default_timeout(30_000)
        self.page = self.context.new_page()
        if slow := os.environ.get("KWIRE_VIEW_SLOW"):
            self.context.new_cdp_session(self.page).send("Emulation.setCPUThrottlingRate", {"rate": float(slow)})
        self.complaints: list[str] = []
        self.given_up = 0
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "request",
            lambda request: None if request.url.startswith((address, "data:")) else self.complaints.append(request.url),
        )
        self._load(f"{address}?token={token}{'&' + state if state else ''}")
        self.wait("['list', 'other', 'ladder', 'timeline', 'findings', 'counts'].includes(document.activeElement?.id)")

    def _load(self, address: str) -> None:
        """Load the page, again if the browser aborted it."""
        for _ in range(20):
            self.complaints.clear()
            self.given_up = 0
            try:
                self.page.goto(address)
            except Exception as failure:
                if _CHANGED not in str(failure):
                    raise
            else:
                if not self.given_up:
                    return

    def _on_console(self, message: Any) -> None:
        if _CHANGED in message.text:
            self.given_up += 1
        else:
            self.complaints.append(message.text)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        for late in tuple(Late.active):
            late.end()
        self.context.close()

    def wait(self, condition: str) -> None:
        """Wait until a condition holds. (Playwright evaluates text in the page, which its policy forbids.)"""
        given_up = time.monotonic() + 60
        while not self.page.evaluate(condition):
            assert time.monotonic() < given_up, (condition, self.complaints, self.page.evaluate(_SHOWN))
            self.page.wait_for_timeout(10)

    def total(self, count: str) -> None:
        """Wait until the list has a number of rows."""
        self.page.locator("#count", has_text=re.compile(rf"^{count} of ")).wait_for()

    def applied(self, *filters: str) -> None:
        """Enter filters in quick succession: the last one counts, whichever answer comes last."""
        self.page.evaluate(APPLY, filters)

    def drawn(self) -> None:
        """Wait until the next frame, in which lists are drawn."""
        self.page.evaluate(FRAMES)

    def chosen(self) -> str:
        """Get the selected row's text, without its time."""
        row = self.page.locator('#list .row[aria-selected="true"]')
        row.wait_for()
        return str(row.inner_text())


APPLY = """(filters) => { const box = document.querySelector('#filter');
  for (const text of filters) {
    box.value = text; box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); } }"""
FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Late:
    """Answers to one call of the API, kept back until they are let go, by the server that `delayed` is part of: each is
    what was said when it was asked for. (Playwright's `route` keeps requests back too, but now and then the browser
    does not tell it of one.)"""

    active: ClassVar[list[Late]] = []
    """Those that hold answers back now."""

    def __init__(self, page: Any, call: str) -> None:
        self.page = page
        self.path = f"/api/1/{call}"
        self.kept = 0
        self.over = False
        self._had = 0
        page.on("requestfinished", self._came)
        page.on("requestfailed", self._came)  # the page gave it up
        self.active.append(self)

    def _came(self, request: Any) -> None:
        self._had += urlsplit(request.url).path == self.path

    def wait(self, count: int) -> None:
        """Wait until a number of answers are held back."""
        self._until(lambda: self.kept >= count)

    def go(self) -> None:
        """Send the answers, and wait until the page has used them, unless it had cancelled them."""
        before = self.kept
        self.end()
        self._until(lambda: self._had >= before)
        self.page.evaluate("async () => { await (await fetch('/api/1/info')).text(); }")
        self.page.evaluate(FRAMES)

    def end(self) -> None:
        """Stop holding answers back."""
        self.over = True
        self.active.remove(self)

    def _until(self, done: Callable[[], bool]) -> None:
        given_up = time.monotonic() + 60
        while not done():
            assert time.monotonic() < given_up, (self.path, self.kept, self._had)
            self.page.wait_for_timeout(10)


def delayed(application: ASGIApp) -> ASGIApp:
    """Wrap an application: hold answers back for `Late`, and delay them at random with KWIRE_VIEW_LATE=SEED:MS."""
    paths = os.environ.get("KWIRE_VIEW_LATE")
    seed, most = paths.split(":") if paths else ("0", "0")
    chance = random.Random(int(seed))

    async def hold_back(by: Late, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Any] = []

        async def put(message: Any) -> None:
            messages.append(message)

        await application(scope, receive, put)
        by.kept += 1
        while not by.over:
            await asyncio.sleep(0.005)
        for message in messages:
            await send(message)

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        by = next((late for late in Late.active if scope.get("path") == late.path), None)
        if paths and scope["type"] == "http" and scope["path"].startswith("/api/"):
            await asyncio.sleep(chance.uniform(0, float(most)) / 1000)
        await (application(scope, receive, send) if by is None else hold_back(by, scope, receive, send))

    return late


CONTRAST = """() => {
  const part = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    const scale = colour.startsWith('color(') ? 255 : 1;  // of mixed colours, 0 to 1
    const [r, g, b] = colour.match(/[\\d.]+/g).map(value => scale * value).map(part);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return 'rgb(255,255,255)';
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const says = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!says || !element.checkVisibility()) continue;
    const [a, b] = [getComputedStyle(element).color, ground(element)].map(light).sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(element.outerHTML.slice(0, 120));
  }
  return poor;
}"""
"""Text with less contrast than 4.5 to 1 (WCAG 2, AA)."""
