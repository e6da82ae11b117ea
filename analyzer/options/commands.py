"""The commands of `kwire`, in order of its --help: what each does, its options, and the function that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Command(NamedTuple):
    """One command. `declared`: MODULE:CLASS of its options; `run`: MODULE:FUNCTION that takes them, or one that tells
    which by the options, where its name ends in `run_by`. Nothing is imported before it is used."""

    name: str
    about: str
    declared: str
    run: str

    def options(self) -> Any:
        """The dataclass of its options."""
        return loaded(self.declared)

    def function(self, options: Any) -> Callable[[Any], int]:
        """The function that runs it with these options. Raises UsageError."""
        run: str = loaded(self.run)(options) if self.run.endswith(":run_by") else self.run
        function: Callable[[Any], int] = loaded(run)
        return function


def loaded(path: str) -> Any:
    """Import `MODULE:NAME` when it is needed."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


_IN = "kwire.analyzer.options"

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "analyze",
            "decode captures to a dataset of Parquet tables, print a summary",
            f"{_IN}.analyze:AnalyzeOptions",
            f"{_IN}.analyze:run_by",
        ),
        Command("show", "print exchanges, one a line", f"{_IN}.show:ShowOptions", f"{_IN}.show:run_by"),
        Command(
            "sql",
            "ask a dataset in SQL; without a query, at a prompt",
            f"{_IN}.questions:SqlOptions",
            "kwire.reports.sql:sql",
        ),
        Command(
            "report",
            "a page with charts and tables: what happened, and is it well?",
            f"{_IN}.questions:ReportOptions",
            "kwire.reports.commands:report",
        ),
        Command(
            "findings",
            "what is wrong, why, and what to do",
            f"{_IN}.questions:FindingsOptions",
            "kwire.analyzer.cli.finding_lines:findings",
        ),
        Command(
            "story",
            "what happened, in order, one line an event",
            f"{_IN}.questions:StoryOptions",
            "kwire.analyzer.story.command:story",
        ),
        Command(
            "compare",
            "two captures of the same job, before and after a change: what changed on the wire?",
            f"{_IN}.questions:CompareOptions",
            "kwire.reports.compare.command:run",
        ),
        Command(
            "record",
            "capture an interface to files, and say what was lost",
            f"{_IN}.live:RecordOptions",
            "kwire.analyzer.live.startup:record",
        ),
        Command(
            "watch",
            "what happens now: on an interface, in a folder that grows, on stdin",
            f"{_IN}.live:WatchOptions",
            "kwire.analyzer.live.startup:watch",
        ),
        Command(
            "view",
            "look into it in a browser: exchanges, fields, bytes",
            f"{_IN}.questions:ViewOptions",
            "kwire.reports.view.command:view",
        ),
        Command(
            "replay",
            "send captured sessions to another broker",
            f"{_IN}.replay:ReplayOptions",
            "kwire.replay.commands:replay",
        ),
        Command(
            "diff",
            "what differs: captured against replayed, or one replay against another",
            f"{_IN}.replay:DiffOptions",
            "kwire.replay.commands:diff",
        ),
        Command(
            "rehearse",
            "an upgrade: replay at an old target twice and at a new one, compare, one verdict",
            f"{_IN}.rehearse:RehearseOptions",
            "kwire.replay.rehearse.command:rehearse",
        ),
        Command(
            "scrub",
            "a capture that may be shared: the same shape without names, addresses and content",
            f"{_IN}.scrub:ScrubOptions",
            "kwire.analyzer.scrub.command:scrub",
        ),
        Command(
            "help",
            "the documentation: of filters, tables, views, findings, a command",
            f"{_IN}.terminal:HelpOptions",
            "kwire.analyzer.cli.parser:_help",
        ),
        Command(
            "completion",
            "a script that completes commands and options in a shell",
            f"{_IN}.terminal:CompletionOptions",
            "kwire.analyzer.cli.parser:_completion",
        ),
    )
}
"""By name."""
