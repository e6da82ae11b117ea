"""Run `kwire compare` once the command line is read.

In: parsed options: two sides, each a dataset or a capture, which becomes one first. Out: what changed, on stdout or in
a file, notes on stderr; exit code 1 where a change is as bad as `--fail-on` says. Errors of the user's input leave as
`UsageError`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kwire.analyzer.cli import commands
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.dataset.dataset import StoredDataset, is_dataset, open_dataset
from kwire.analyzer.frame import spill
from kwire.reports import output
from kwire.reports.compare import text
from kwire.reports.compare.comparison import Comparison, compare
from kwire.reports.compare.side import Side, names_of

if TYPE_CHECKING:
    from kwire.analyzer.options.questions import CompareOptions

EXIT_WORSE = 1
NEVER = "never"


def run(options: CompareOptions) -> int:
    """`kwire compare`."""
    form = "json" if options.json else options.format or "text"
    if options.out:
        output.check(options.out)
    names = names_of(options.before, options.after)
    with contextlib.ExitStack() as stack, spill.reuse():
        sides = [
            Side(_dataset(source, options, stack), name)
            for source, name in zip((options.before, options.after), names, strict=True)
        ]
        comparison = compare(*sides)
    for note in [*comparison.notes, *_same(options.before, options.after)]:
        sys.stderr.write(f"note: {printable(note)}\n")
    _write(comparison, form, options.out)
    counted = () if options.fail_on == NEVER else comparison.at_least(options.fail_on)
    return EXIT_WORSE if counted else 0


def _dataset(source: str, options: CompareOptions, stack: contextlib.ExitStack) -> StoredDataset:
    """A side as a dataset: one that is named, or one made of a capture, which goes when `stack` does."""
    if is_dataset(source):
        return commands.named_dataset(source)
    folder = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-compare-")), "dataset")
    commands.dataset_of([source], folder, options)
    return open_dataset(folder)


def _same(before: str, after: str) -> Sequence[str]:
    try:
        same = os.path.samefile(before, after)
    except OSError:  # a pattern, an address, stdin
        same = before == after
    return ["both sides are the same"] if same else []


def _write(comparison: Comparison, form: str, path: str | None) -> None:
    if form == "text" and path is None:
        width = commands.reading_width()
        with commands.paged() as out:
            for line in text.as_text(comparison):
                out.write("\n".join(commands.folded(line, " " * 10, width)) + "\n")
        return
    written = rendered(comparison, form)
    if path is None:
        sys.stdout.write(written)
        return
    with output.written(path) as beside, open(beside, "w", encoding="utf-8") as file:
        file.write(written)


def rendered(comparison: Comparison, form: str) -> str:
    """The comparison in a form."""
    if form == "json":
        return json.dumps(comparison.as_dict(), indent=1, ensure_ascii=False) + "\n"
    if form == "text":
        return "".join(f"{line}\n" for line in text.as_text(comparison))
    raise UsageError(f"--format {form}: no such form", "text or json")
