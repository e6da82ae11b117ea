"""The Python door: `kwire.replay`, whatever else of the package was imported before.

Proves: replay/api.py
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import kwire
from kwire.analyzer.cli import parser
from kwire.analyzer.options.declare import declarations
from kwire.analyzer.options.replay import ReplayOptions
from kwire.captures.errors import KwireError
from kwire.replay import api, inputs, request, run
from kwire.replay.options import Options
from tests.shared import SAMPLES

CAPTURE = next((SAMPLES / "old-java-0.8.2").glob("capture*"))

# fmt: off
OTHERWISE = {
    "captures",  # no option
    "dry_run", "assume", "json", "fail_on", "loop",  # what a command prints, returns and repeats, a program does itself
    "audit_run",  # it sends nothing
    "sasl", "sasl_file", "tls", "tls_ca", "tls_cert", "tls_key", "follow_advertised", "map_host",
    "plaintext_login",  # `access`
    "names",  # only a filter may ask for them, and the command opens them for the whole process
}
# fmt: on
"""Options of the command that the function has in another form, or not at all."""


def test_no_module_of_the_package_takes_the_doors_name() -> None:
    """Python makes the package an attribute of the one above it: `kwire.replay` is the package, which can be called."""
    package = importlib.import_module("kwire.replay")
    for module in pkgutil.walk_packages(package.__path__, "kwire.replay."):
        importlib.import_module(module.name)
    assert package.replay is api.replay
    assert vars(kwire)["replay"] is package
    assert inspect.signature(kwire.replay) == inspect.signature(api.replay)


def test_it_takes_what_the_command_takes_under_the_same_names() -> None:
    keywords = {*inspect.signature(api.replay).parameters} - {"captures", "access"}
    assert keywords == declarations(ReplayOptions).keys() - OTHERWISE


def test_what_is_asked_for_in_python_is_what_the_command_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Equal options in either form come to the same `Options`, and to what of the capture is sent."""
    seen: list[tuple[Any, ...]] = []

    async def noted(captured: Any, wanted: Options, dial: Any, out: Any, notes: Any, wait: bool) -> None:
        seen.append((len(captured.sessions), wanted, out, wait))

    monkeypatch.setattr(run, "replay", noted)
    kwire.replay(
        CAPTURE,
        to="h:1",
        out=tmp_path,
        wait=True,
        speed="0s:1,60s:max",
        times=2,
        topics=["*"],
        since="0s",
        until="1h",
        allow=["admin"],
        map_topic={"a": "b"},
        prefix_topics="t.",
        map_group={"c": "d"},
        prefix_groups="g.",
        offsets="position",
        timestamps="shift",
        seed_topics=True,
        seed_config="as-captured",
        seed_fetched=True,
        yes=True,
        partial=True,
        audit=False,
        missing_topics_ok=True,
        workers=3,
    )
    arguments = [
        "replay",
        str(CAPTURE),
        "--speed",
        "0s:1,60s:max",
        "--times",
        "2",
        "--topics",
        "*",
        "--from",
        "0s",
        "--until",
        "1h",
        "--allow",
        "admin",
        "--map-topic",
        "a=b",
        "--prefix-topics",
        "t.",
        "--map-group",
        "c=d",
        "--prefix-groups",
        "g.",
        "--offsets",
        "position",
        "--timestamps",
        "shift",
        "--seed-topics",
        "--seed-config",
        "as-captured",
        "--seed-fetched",
        "--yes",
        "--missing-topics-ok",
        "--partial",
        "--no-audit",
        "--workers",
        "3",
    ]
    command = request.resolve_command(parser.parse(arguments)[1], "h", 1)
    ((count, wanted, out, wait),) = seen
    assert (wanted, out, wait) == (command, tmp_path, True)
    assert count == 2 * len(
        inputs.prepared(inputs.read(CAPTURE), request.resolve("h", 1, request.ReplayRequest(topics="*")), [])
    )


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"to": "localhost"}, "--to localhost: not HOST:PORT"),
        ({"allow": ["Sing"]}, "--allow Sing: no such API"),
        ({"speed": 0}, "--speed 0: neither a positive number nor max"),
        ({"rate": 0.0}, "--rate 0.0: not a positive number"),
        ({"rate": 5, "speed": None}, "--rate and --speed say both how fast"),
        ({"times": 0}, "--times 0: not a number from 1 on"),
        ({"offsets": "sideways"}, "--offsets sideways: no such word"),
        ({"seed_config": "x"}, "--seed-config x: no such word"),
        ({"same_cluster": True, "times": 2}, "--same-cluster does not go with --times"),
    ],
)
def test_what_it_cannot_take_is_a_problem_with_a_hint(tmp_path: Path, wrong: dict[str, Any], expected: str) -> None:
    options: dict[str, Any] = {"to": "localhost:9092", "out": tmp_path / "run", **wrong}
    with pytest.raises(KwireError) as problem:
        kwire.replay(CAPTURE, **options)
    assert problem.value.message == expected
    assert problem.value.hint
