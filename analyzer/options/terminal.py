"""`kwire help` and `kwire completion`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kwire.analyzer.options.common import CommandOptions
from kwire.analyzer.options.declare import argument


@dataclass(frozen=True, kw_only=True)
class HelpOptions(CommandOptions):
    """Options of `kwire help`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("kwire help filter", "the language of --filter"),
        ("kwire help exchanges", "the columns of a table"),
    )

    topic: str | None = argument(
        "TOPIC",
        nargs="?",
        help="filter, tables, views, findings, python, exit-codes, environment, or a table, view or command by name",
    )


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(CommandOptions):
    """Options of `kwire completion`."""

    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("source <(kwire completion bash)", "in this shell"),
        ("kwire completion fish > ~/.config/fish/completions/kwire.fish", "in every shell"),
    )

    shell: str = argument(choices=("bash", "zsh", "fish"), help="as: source <(kwire completion bash)")
