"""What `kwire analyze` and `kwire show` do, once the command line is read.

In: parsed options. Out: data on stdout; progress, notes and hints on stderr. Errors of the user's input leave as
`Failure`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from analyzer.escapes import printable
from analyzer.failure import Failure
from analyzer.records.log_names import is_log

if TYPE_CHECKING:
    from analyzer.dataset import Dataset


_NARROWEST = 60
"""Columns that a line takes at least; below that nothing of the result would be left."""


def _announce_compilation() -> None:
    """The first run on a machine compiles the kernels: say so, or it looks like a hang."""
    from captures import kernels

    if not kernels.warm():
        sys.stderr.write("kwire: compiling kernels, once on this machine (about half a minute) ...\n")
        sys.stderr.flush()


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}

    def report(name: str, read: int, size: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(escape(printable(name)), total=size or None)
        bar.update(tasks[name], completed=read)

    with bar:
        yield report


def analyze(options: argparse.Namespace) -> int:
    """`kwire analyze`."""
    if options.keep_secrets and not options.keep_bytes:
        raise Failure("--keep-secrets goes with --keep-bytes", "without it no message is kept")
    _announce_compilation()
    from analyzer import reading
    from analyzer.options import Reading
    from analyzer.points import Choice

    with _progress() as progress:
        result = reading.decode(
            options.captures, options.out, Reading.asked(options), Choice.asked(options), append=options.append,
            wait=options.wait, progress=progress, stdin=sys.stdin.buffer,
        )  # fmt: skip
    print_analysis(result, options)
    return 0


def _print_notes(result: Dataset) -> None:
    for note in result.notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    for hint in result.hints:
        sys.stderr.write(f"hint: {printable(hint)}\n")


def print_analysis(result: Dataset, options: argparse.Namespace) -> None:
    """What an analysis found: notes on stderr, the summary on stdout."""
    _print_notes(result)
    if options.json:
        json.dump(result.summary, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        from analyzer.text import summary_text

        sys.stdout.write(summary_text(result.summary, options.out))


def dataset_of(captures: Sequence[str], out: str, options: argparse.Namespace) -> None:
    """Analyse the captures that a command was given in place of a dataset; `options`: those of reading."""
    _announce_compilation()
    from analyzer import reading
    from analyzer.options import Reading
    from analyzer.points import Choice

    with _progress() as progress:
        result = reading.decode(
            captures, out, Reading.asked(options), Choice.of(options.filter), progress=progress, stdin=sys.stdin.buffer
        )
    _print_notes(result)


def show(options: argparse.Namespace) -> int:
    """`kwire show`."""
    if options.hex and not options.tree:
        raise Failure("--hex goes with --tree", "add --tree, or leave out --hex")
    if options.format is not None and not options.records:
        raise Failure("--format goes with --records", "add --records, or leave out --format")
    _announce_compilation()
    from analyzer.dataset import is_dataset

    if options.records and not any(is_log(argument) for argument in options.captures):
        from analyzer import record_lines

        with _paged(options) as out:
            return record_lines.show(options, out)
    for argument in options.captures:
        if is_dataset(argument):
            raise Failure(
                f"{argument}: a dataset, and kwire show reads captures",
                f"kwire sql {argument} 'SELECT * FROM exchanges', or kwire report {argument}",
            )
    if any(is_log(argument) for argument in options.captures):
        from analyzer import log_text

        with _paged(options) as out:
            return log_text.show(options, out)
    from analyzer import reading, tables
    from analyzer.details import WITH_BODIES
    from analyzer.options import Reading

    columns = [column.name for column in tables.EXCHANGES]
    fields = _names(options.fields, columns, "--fields")
    counted = _names(options.count_by, columns, "--count-by")
    sort = options.sort.removeprefix("-") if options.sort is not None else None
    if sort is not None:
        sort = _names({"latency": "latency_us", "total": "total_us"}.get(sort, sort), columns, "--sort")[0]
    if counted:
        return _count_by(options, counted)
    notes: list[str] = []
    with _paged(options, heading=not (options.json or options.tree or options.follow)) as out:
        found: Iterator[Any] = reading.decoded(
            options.captures,
            Reading.asked(options),
            filter=options.filter,
            bodies=True if options.json or options.tree else () if fields else WITH_BODIES,
            partitions=not (options.json or fields),
            notes=notes,
            stdin=sys.stdin.buffer,
        )
        if options.follow:
            found = (one for one in found if one.row["connection"] == options.follow)
        if sort is not None:
            found = iter(_sorted(found, sort, descending=not options.sort.startswith("-")))
        shown = _print(found, options, fields, out)
    for note in notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    if not shown and options.follow:
        raise Failure(
            f"--follow {options.follow}: no such connection", "kwire show CAPTURE --count-by connection lists them"
        )
    return 0


def _names(text: str | None, known: list[str], option: str) -> list[str]:
    """Column names of an option, checked."""
    if text is None:
        return []
    import difflib

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise Failure(
                f"{option}: no column {name!r}",
                f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}",
            )
    return names


def _sorted(found: Iterator[Any], column: str, descending: bool) -> list[Any]:
    """All exchanges by one column; those that lack it come last."""
    every = list(found)
    lacking = [one for one in every if one.row[column] is None]
    having = [one for one in every if one.row[column] is not None]
    return sorted(having, key=lambda one: one.row[column], reverse=descending) + lacking


def _print(found: Iterator[Any], options: argparse.Namespace, fields: list[str], out: IO[str]) -> int:
    """Write exchanges in the form asked for; returns how many."""
    from analyzer import text
    from analyzer.lines import LOOK_AHEAD, Lines

    wanted = options.color == "auto" and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    color = wanted or options.color == "always"
    cut = out is sys.stdout  # a pager shows what is to the right of the screen
    lines = Lines(color, options.time == "absolute", None if options.wide else _width(), cut)
    if options.frames and not options.json and not options.tree and not fields:
        shown = 0
        for line in lines.frames(found, options.limit):
            out.write(line)
            shown += 1
        return shown
    if not options.json and not fields and "-" not in options.captures:
        head = list(itertools.islice(found, min(LOOK_AHEAD, options.limit or LOOK_AHEAD)))
        lines.start = head[0].capture_start if head else None
        lines.look(head)
        found = itertools.chain(head, found)
    heading = ""
    if fields:
        heading = "\t".join(fields) + "\n"
    elif not options.json and not options.tree and not options.follow:
        heading = lines.heading()
    shown = 0
    for one in found:
        if options.limit and shown >= options.limit:
            break
        shown += 1
        out.write(heading)  # not before the first row: what cannot be read says so, and nothing else
        heading = ""
        lines.start = lines.start or one.capture_start
        if options.json:
            out.write(text.json_text(one.json()) + "\n")
        elif options.tree:
            out.write(lines.exchange(one))
            out.write(lines.tree(one, options.hex))
        elif fields:
            out.write("\t".join(text.cell(one.row[name]) for name in fields) + "\n")
        elif options.follow:
            out.write(lines.dialogue(one))
        else:
            out.write(lines.exchange(one))
    return shown


def _width() -> int | None:
    """Columns of the terminal that stdout is, `COLUMNS` before what it says itself; None where there is no bound.

    Without a terminal `COLUMNS` does not count: readline sets it for whatever a shell or interpreter starts, and what
    goes into a file or another program is to be whole."""
    if not sys.stdout.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isascii() and asked.isdigit() else 0
    if not columns:
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
    return max(columns, _NARROWEST) if columns else None


def _count_by(options: argparse.Namespace, names: list[str]) -> int:
    """`--count-by`: a table of combinations, most frequent first."""
    from analyzer import reading, text
    from analyzer.options import Reading
    from analyzer.points import NO_RECORDS, Choice

    choice = Choice.of(options.filter, options.follow, records=NO_RECORDS)
    result = reading.decode(options.captures, None, Reading.asked(options), choice, stdin=sys.stdin.buffer)
    with _paged(options) as out:
        out.write(text.counts(result.exchanges, names, options.limit))
    _print_notes(result)
    return 0


def _sticky(pager: str) -> bool:
    """Whether the pager is a `less` that keeps a heading on the screen: from 600 on."""
    words = shlex.split(pager) or [""]
    if os.path.basename(words[0]) != "less":
        return False
    with contextlib.suppress(OSError):
        said = subprocess.run([words[0], "--version"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"less (\d+)", said)
        return version is not None and int(version[1]) >= 600
    return False


def _paged(options: argparse.Namespace, heading: bool = False) -> contextlib.AbstractContextManager[IO[str]]:
    """Where `kwire show` writes to; `heading`: the first line names the columns."""
    if "-" in options.captures:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # live: each row when it is known
    return contextlib.nullcontext(sys.stdout) if options.no_pager else paged(heading)


@contextlib.contextmanager
def paged(heading: bool = False) -> Iterator[IO[str]]:
    """stdout, through a pager where it is a terminal; `heading`: the first line stays on the screen."""
    pager = os.environ.get("PAGER") or ("less" if shutil.which("less") else "")
    if not sys.stdout.isatty() or not pager or pager == "cat":
        yield sys.stdout
        return
    if heading and _sticky(pager):
        pager += " --header=1"
    # -F: leave at once what fits on the screen; -R: colours; -S: long lines are cut, not folded; -X: no clearing.
    process = subprocess.Popen(
        pager, shell=True, stdin=subprocess.PIPE, text=True, env={"LESS": "-FRSX", **os.environ}
    )
    assert process.stdin is not None
    try:
        yield process.stdin
        process.stdin.close()
    except BrokenPipeError:
        pass  # the reader has seen enough
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        while True:
            try:
                process.wait()
                break
            except KeyboardInterrupt:
                continue  # the pager deals with it
