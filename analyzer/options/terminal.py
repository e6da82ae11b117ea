"""`kwire help` and `kwire completion`."""

from __future__ import annotations

from dataclasses import dataclass

from kwire.analyzer.options.common import CommandOptions
from kwire.analyzer.options.declare import argument


@dataclass(frozen=True, kw_only=True)
class HelpOptions(CommandOptions):
    """Options of `kwire help`."""

    topic: str | None = argument(
        "TOPIC", nargs="?", help="filter, tables, views, findings, or the name of a table, a view or a command"
    )


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(CommandOptions):
    """Options of `kwire completion`."""

    shell: str = argument(choices=("bash", "zsh", "fish"), help="as: source <(kwire completion bash)")
