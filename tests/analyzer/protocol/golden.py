"""The golden messages (`tools/Golden.java` made them with Kafka's own code) and helpers that several tests use."""

from __future__ import annotations

import functools
import json
import lzma
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwire.analyzer.protocol.tree import REDACTED

FOLDER = Path(__file__).resolve().parents[2] / "golden"
RELEASES = ("3.9.2", "4.4.0")


@dataclass(frozen=True, slots=True)
class Golden:
    release: str
    api_key: int
    direction: int
    version: int
    data: bytes
    json: str

    @property
    def body(self) -> Any:
        return json.loads(self.json)

    def __str__(self) -> str:
        return f"{self.release} api {self.api_key} v{self.version} {'response' if self.direction else 'request'}"


@functools.cache
def golden(release: str) -> tuple[Golden, ...]:
    text = lzma.decompress((FOLDER / f"kafka-{release}.tsv.xz").read_bytes()).decode()
    messages = []
    for line in text.splitlines():
        api_key, direction, version, data, body = line.split("\t")
        messages.append(Golden(release, int(api_key), int(direction), int(version), bytes.fromhex(data), body))
    return tuple(messages)


def every() -> Iterator[Golden]:
    for release in RELEASES:
        yield from golden(release)


@dataclass(frozen=True, slots=True)
class GoldenData:
    """Data that Kafka's own code wrote; `json` is what Kafka's own code reads from it."""

    name: str
    version: int
    data: bytes
    json: str

    @property
    def body(self) -> Any:
        return json.loads(self.json)


def _data_lines(text: str) -> tuple[GoldenData, ...]:
    lines = (line.split("\t") for line in text.splitlines())
    return tuple(GoldenData(name, int(version), bytes.fromhex(data), body) for name, version, data, body in lines)


@functools.cache
def data() -> tuple[GoldenData, ...]:
    """Of every data definition that Kafka publishes."""
    return _data_lines(lzma.decompress((FOLDER / "data-4.4.0.tsv.xz").read_bytes()).decode())


@functools.cache
def records() -> tuple[tuple[str, bytes | None, bytes | None, Any], ...]:
    """(topic, key, value, JSON) of each record of the internal topics in each version, by Kafka's own serdes."""
    text = lzma.decompress((FOLDER / "records-4.4.0.tsv.xz").read_bytes()).decode()
    messages = []
    for line in text.splitlines():
        topic, key, value, body = line.split("\t")
        both = [None if text == "-" else bytes.fromhex(text) for text in (key, value)]
        messages.append((topic, both[0], both[1], json.loads(body)))
    return tuple(messages)


@functools.cache
def by_hand() -> tuple[GoldenData, ...]:
    """Of every definition in `embedded.json`; Connect's begin with their version."""
    return _data_lines((FOLDER / "embedded-4.3.1.tsv").read_text())


def contains(body: Any, predicate: Callable[[str, Any], bool]) -> bool:
    """Does a key and its value anywhere in a body satisfy the predicate?"""
    if isinstance(body, dict):
        return any(predicate(key, value) or contains(value, predicate) for key, value in body.items())
    if isinstance(body, list):
        return any(contains(value, predicate) for value in body)
    return False


def is_redacted(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {REDACTED}


def interpreted(kernel: Any) -> Any:
    """The kernel as plain Python, its helpers included (a compiled helper has no entry for Python to call it)."""
    function = getattr(kernel, "py_func", None)
    if function is None:
        return kernel  # NUMBA_DISABLE_JIT: it is plain already
    namespace: dict[str, Any] = {}
    for name, value in function.__globals__.items():
        plain = getattr(value, "py_func", None)
        namespace[name] = value if plain is None else types.FunctionType(plain.__code__, namespace, name)
    return types.FunctionType(function.__code__, namespace, function.__name__)
