"""Run `kwire compare` once the command line is read.

In: parsed options: two sides, each a dataset or a capture, which becomes one first. Out: what changed, on stdout or in
a file, notes on stderr; exit code 1 where a change is as bad as `--fail-on` says. Errors of the user's input leave as
`UsageError`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kwire.analyzer.cli import commands
from kwire.analyzer.cli.color import painter
from kwire.analyzer.cli.pager import paged
from kwire.analyzer.common import output_file, workflow
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.dataset.dataset import is_dataset, open_dataset
from kwire.analyzer.frame import spill
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.reports.compare import bodies, formats
from kwire.reports.compare.comparison import Comparison, beyond, compare
from kwire.reports.compare.side import Side, names_of

if TYPE_CHECKING:
    from kwire.analyzer.options.questions import CompareOptions

EXIT_WORSE = 1
NEVER = "never"
_ENDINGS: Final = {".html": "html", ".htm": "html", ".json": "json", ".xml": "junit"}


def run(options: CompareOptions) -> int:
    """`kwire compare`."""
    form = options.format or ("json" if options.json else _form(options.out))
    if options.json and form != "json":
        raise UsageError(f"--json and --format {form} say both what it is written as", "one of them")
    if options.out:
        output_file.check(options.out)
    if options.summary is not None:
        workflow.check_summary(options.summary)
    sources = [options.before, options.after, *([options.noise] if options.noise is not None else [])]
    if all(map(is_dataset, sources)) and (options.port or options.rotated or options.keylog or options.filter):
        raise UsageError(
            "--port, --rotated, --keylog and --filter go with a CAPTURE", "kwire analyze makes a DATASET with them"
        )
    if sources.count("-") > 1:
        raise UsageError("both sides cannot be stdin", "write one of them to a file")
    names = names_of(*sources)
    with contextlib.ExitStack() as stack, spill.reuse():
        sides = [_side(source, name, options, stack) for source, name in zip(sources, names, strict=True)]
        comparison = compare(*sides[:2])
        if options.noise is not None:
            comparison = beyond(comparison, compare(sides[0], sides[2]))
    for note in [*comparison.notes, *_same(options.before, options.after)]:
        sys.stderr.write(f"note: {printable(note)}\n")
    fail_on = None if options.fail_on == NEVER else options.fail_on
    _write(comparison, form, options.out, fail_on, options.color)
    if options.summary is not None:
        workflow.write_summary(options.summary, formats.as_markdown(comparison))
    return EXIT_WORSE if fail_on is not None and comparison.at_least(fail_on) else 0


def _form(path: str | None) -> str:
    """As the name of the file says, where it does; else text."""
    return _ENDINGS.get(os.path.splitext(path or "")[1].lower(), "text")


def _side(source: str, name: str, options: CompareOptions, stack: contextlib.ExitStack) -> Side:
    """A side: a dataset that is named, or one made of a capture, which goes when `stack` does."""
    if is_dataset(source):
        return Side(commands.named_dataset(source), name)
    folder = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-compare-")), "dataset")
    commands.dataset_of([source], folder, options)
    settings = bodies.settings([source], ReadOptions.from_arguments(options), options.filter)
    return Side(open_dataset(folder), name, settings)


def _same(before: str, after: str) -> Sequence[str]:
    try:
        same = os.path.samefile(before, after)
    except OSError:  # a pattern, an address, stdin
        same = before == after
    return ["both sides are the same"] if same else []


def _write(comparison: Comparison, form: str, path: str | None, fail_on: str | None, color: str) -> None:
    if form == "text" and path is None:
        width, paint = commands.reading_width(), painter(color)
        with paged() as out:
            for line in formats.as_text(comparison):
                first, *others = commands.folded(line, " " * 10, width)
                out.write("\n".join([formats.colored_line(first, paint), *others]) + "\n")
        return
    written = {
        "text": lambda: "".join(f"{line}\n" for line in formats.as_text(comparison)),
        "json": lambda: formats.as_json(comparison),
        "html": lambda: formats.as_html(comparison),
        "junit": lambda: formats.as_junit(comparison, fail_on),
        "github": lambda: "".join(f"{line}\n" for line in formats.as_github(comparison)),
    }[form]()
    if path is None:
        sys.stdout.write(written)
    else:
        output_file.write_text(path, written)
