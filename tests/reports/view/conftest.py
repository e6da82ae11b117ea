"""Fixtures of the viewer's tests: views of the samples, and a server in this process."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kwire import analyzer
from kwire.analyzer.options.questions import ViewOptions
from kwire.reports.view import open_view
from kwire.reports.view.answers import DataView, answer_call
from kwire.reports.view.current_view import CurrentView
from tests.reports.view.browsing import Look, delayed, launched
from tests.shared import SAMPLES

TXN = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"


def viewed(stack: contextlib.ExitStack, *sources: Path | str, **options: Any) -> DataView:
    """Open a view that stores nothing."""
    namespace = ViewOptions(
        **{
            "sources": [],
            "cache": False,
            **options,
        }
    )
    return open_view.open_view([str(source) for source in sources], namespace, stack)


@dataclass
class Asking:
    """Calls the API without a server."""

    view: DataView

    def raw(self, what: str, **query: Any) -> bytes:
        answer = answer_call(self.view, what, {name: str(value) for name, value in query.items()})
        assert answer.status == 200, answer.content
        return answer.content

    def __call__(self, what: str, **query: Any) -> Any:
        return json.loads(self.raw(what, **query))

    def refused(self, what: str, **query: Any) -> dict[str, Any]:
        answer = answer_call(self.view, what, {name: str(value) for name, value in query.items()})
        assert answer.status == 400, answer.content
        error: dict[str, Any] = json.loads(answer.content)["error"]
        return error


@pytest.fixture(scope="session")
def txn() -> Iterator[Asking]:
    """The sample with transactions, as `kwire view CAPTURE` sees it: messages are read again."""
    with contextlib.ExitStack() as stack:
        yield Asking(viewed(stack, TXN))


@pytest.fixture
def in_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset whose first 20 exchanges are shown before its columns are made."""
    analyzer.analyze(TXN, tmp_path / "data")
    monkeypatch.setattr(open_view, "FEW_ROWS", 0)
    monkeypatch.setattr(open_view, "FIRST_ROWS", 20)
    return str(tmp_path / "data")


@contextlib.contextmanager
def served(view: DataView | CurrentView) -> Iterator[tuple[str, str]]:
    """Run a server in this process; yields its address, and a token that can be used repeatedly."""
    import uvicorn

    from kwire.reports.view.server import Access, application

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        door = Access("token-of-the-tests", True, frozenset([f"127.0.0.1:{port}"]), port)
        current = view if isinstance(view, CurrentView) else CurrentView.of(view)
        config = uvicorn.Config(
            delayed(application(current, door)),
            log_level="critical",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/", door.token
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Start a browser."""
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def look(chromium: Any, txn: Asking) -> Iterator[Look]:
    """Open the page of the sample with transactions."""
    with served(txn.view) as place:
        yield Look(chromium, place)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a RUN: a real capture, replayed to a server that supports less than its broker did."""
    from tests.replay.replaying import replayed_at_less

    return replayed_at_less(tmp_path_factory.mktemp("view") / "run")


def moved(path: Path, to: Path, seconds: int, cut: int = 0) -> Path:
    """Write a second capture point's pcap: its clock is `ahead` seconds, and its last `cut` packets are missing."""
    content = path.read_bytes()
    order = "<" if content[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    packets, at = [], 24
    while at + 16 <= len(content):
        time, fraction, length, whole = struct.unpack_from(f"{order}4I", content, at)
        head = struct.pack(f"{order}4I", time + seconds, fraction, length, whole)
        packets.append(head + content[at + 16 : at + 16 + length])
        at += 16 + length
    to.write_bytes(content[:24] + b"".join(packets[: len(packets) - cut]))
    return to


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """The sample with transactions, as two hosts captured it: the other's clock is ahead, and it stopped earlier."""
    folder = tmp_path_factory.mktemp("points")
    here, there = folder / "client.pcap", folder / "broker.pcap"
    moved(TXN, here, 0)
    moved(TXN, there, 5, cut=40)
    with contextlib.ExitStack() as stack:
        yield Asking(viewed(stack, here, there))
