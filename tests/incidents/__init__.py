"""Incidents made with real brokers and real clients, judged by what `kwire findings` says of their captures."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.incidents.lab import Incident

MODULES = ("groups", "readers", "writers", "nodes", "transport", "healthy")


def all_incidents() -> dict[str, Incident]:
    """Every incident by its name."""
    for module in MODULES:
        importlib.import_module(f"tests.incidents.{module}")
    from tests.incidents.lab import INCIDENTS

    return INCIDENTS
