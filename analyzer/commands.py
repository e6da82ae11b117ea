"""What `kwire analyze` and `kwire show` do, once the command line is read.

In: parsed options. Out: data on stdout; progress, notes and hints on stderr. Errors of the user's input leave as
`cli.Failure`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from analyzer.cli import Failure
from analyzer.segment_names import SegmentError, is_log

if TYPE_CHECKING:
    from analyzer.dataset import Dataset


def _announce_compilation() -> None:
    """The first run on a machine compiles the kernels: say so, or it looks like a hang."""
    from captures import kernels

    if not kernels.warm():
        sys.stderr.write("kwire: compiling kernels, once on this machine (about half a minute) ...\n")
        sys.stderr.flush()


@contextlib.contextmanager
def failures(filtered: bool) -> Iterator[None]:
    """What the layers below raise for bad input, in the command line's form."""
    from analyzer.dataset import DatasetError
    from captures.files import CaptureError

    expected: tuple[type[Exception], ...] = (CaptureError, DatasetError, SegmentError)
    if filtered:
        from analyzer.filtering import FilterError

        expected = (*expected, FilterError)
    try:
        yield
    except expected as failure:
        # The caret is for people; others get the one line and the hint that they rely on.
        pointer = getattr(failure, "pointer", "") if sys.stderr.isatty() else ""
        raise Failure(str(failure) + (f"\n{pointer}" if pointer else ""), getattr(failure, "hint", "")) from None


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}

    def report(name: str, read: int, size: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=size or None)
        bar.update(tasks[name], completed=read)

    with bar:
        yield report


def analyze(options: argparse.Namespace) -> int:
    """`kwire analyze`."""
    _announce_compilation()
    with failures(options.filter is not None):
        from analyzer import reading

        with _progress() as progress:
            result = reading.analyze(
                options.captures,
                options.out,
                filter=options.filter,
                rotated=options.rotated,
                ports=options.port,
                threads=options.threads,
                window_bytes=options.window_bytes,
                frame_limit=options.frame_limit,
                records=options.records,
                decompressed_limit=options.decompressed_limit,
                decompressed_ratio=options.decompressed_ratio,
                keep_bytes=options.keep_bytes,
                append=options.append,
                progress=progress,
                stdin=sys.stdin.buffer,
            )
    print_analysis(result, options)
    return 0


def _print_notes(result: Dataset) -> None:
    for note in result.notes:
        sys.stderr.write(f"note: {note}\n")
    for hint in result.hints:
        sys.stderr.write(f"hint: {hint}\n")


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
    with failures(options.filter is not None):
        from analyzer import reading

        with _progress() as progress:
            result = reading.analyze(
                captures, out, filter=options.filter, rotated=options.rotated, ports=options.port,
                threads=options.threads, window_bytes=options.window_bytes, frame_limit=options.frame_limit,
                progress=progress, stdin=sys.stdin.buffer,
            )  # fmt: skip
    _print_notes(result)


def show(options: argparse.Namespace) -> int:
    """`kwire show`."""
    if options.hex and not options.tree:
        raise Failure("--hex goes with --tree", "add --tree, or leave out --hex")
    _announce_compilation()
    if any(is_log(argument) for argument in options.captures):
        from analyzer import log_text

        with failures(False), _paged(options) as out:
            return log_text.show(options, out)
    with failures(options.filter is not None):
        from analyzer import reading, tables

        columns = [column.name for column in tables.EXCHANGES]
        fields = _names(options.fields, columns, "--fields")
        counted = _names(options.count_by, columns, "--count-by")
        sort = options.sort.removeprefix("-") if options.sort is not None else None
        if sort is not None:
            sort = _names({"latency": "latency_us", "total": "total_us"}.get(sort, sort), columns, "--sort")[0]
        if counted:
            return _count_by(options, counted)
        notes: list[str] = []
        with _paged(options) as out:
            found: Iterator[Any] = reading.exchanges(
                options.captures,
                filter=options.filter,
                rotated=options.rotated,
                ports=options.port,
                threads=options.threads,
                window_bytes=options.window_bytes,
                frame_limit=options.frame_limit,
                bodies=options.json or options.tree,
                notes=notes,
                stdin=sys.stdin.buffer,
            )
            if options.follow:
                found = (one for one in found if one.row["connection"] == options.follow)
            if sort is not None:
                found = iter(_sorted(found, sort, descending=not options.sort.startswith("-")))
            shown = _print(found, options, fields, out)
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
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

    wanted = options.color == "auto" and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    color = wanted or options.color == "always"
    lines = text.Lines(color=color, absolute=options.time == "absolute")
    heading = ""
    if fields:
        heading = "\t".join(fields) + "\n"
    elif not options.json and not options.tree and not options.follow:
        heading = lines.frames_heading() if options.frames else lines.heading()
    shown = 0
    if options.frames and not options.json and not options.tree and not fields:
        for line in lines.frames(found, options.limit):
            out.write(heading + line)
            heading = ""
            shown += 1
        return shown
    for one in found:
        if options.limit and shown >= options.limit:
            break
        shown += 1
        out.write(heading)  # not before the first row: what cannot be read says so, and nothing else
        heading = ""
        lines.start = lines.start or one.capture_start
        if options.json:
            out.write(json.dumps(one.json(), ensure_ascii=False, separators=(",", ":")) + "\n")
        elif options.tree:
            out.write(lines.exchange(one.row))
            out.write(lines.tree(one, options.hex))
        elif fields:
            out.write("\t".join(text.cell(one.row[name]) for name in fields) + "\n")
        elif options.follow:
            out.write(lines.dialogue(one.row))
        else:
            out.write(lines.exchange(one.row))
    return shown


def _count_by(options: argparse.Namespace, names: list[str]) -> int:
    """`--count-by`: a table of combinations, most frequent first."""
    from analyzer import reading, text

    result = reading.analyze(
        options.captures, filter=options.filter, rotated=options.rotated, ports=options.port, threads=options.threads,
        window_bytes=options.window_bytes, frame_limit=options.frame_limit, stdin=sys.stdin.buffer,
        connection=options.follow, records="none",
    )  # fmt: skip
    with _paged(options) as out:
        out.write(text.counts(result.exchanges, names, options.limit))
    _print_notes(result)
    return 0


@contextlib.contextmanager
def _paged(options: argparse.Namespace) -> Iterator[IO[str]]:
    """stdout, through a pager where it is a terminal."""
    if "-" in options.captures:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # live: each row when it is known
    pager = os.environ.get("PAGER") or ("less" if shutil.which("less") else "")
    if not sys.stdout.isatty() or options.no_pager or not pager or pager == "cat":
        yield sys.stdout
        return
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
