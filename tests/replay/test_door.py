"""The Python door: `replay.replay`, whatever else of the package was imported before.

Proves: replay/door.py
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import replay
from replay import door
from tests.shared import SAMPLES


def test_no_module_of_the_package_takes_the_doors_name() -> None:
    for module in pkgutil.walk_packages(replay.__path__, "replay."):
        importlib.import_module(module.name)
    assert replay.replay is door.replay


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"to": "localhost"}, "'localhost' is not HOST:PORT"), ({"allow": ["Sing"]}, "no such API: Sing")],
)
def test_what_it_cannot_take_is_a_value_error(tmp_path: Path, wrong: dict[str, object], told: str) -> None:
    capture = next((SAMPLES / "old-java-0.8.2").glob("capture*"))
    options: dict[str, object] = {"to": "localhost:9092", "out": tmp_path / "run", **wrong}
    with pytest.raises(ValueError, match=told):
        replay.replay(capture, **options)  # type: ignore[arg-type]
