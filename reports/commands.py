"""What `kwire report` does, once the command line is read.

In: parsed options. Out: the report in a file or on stdout; progress and notes on stderr. Errors of the user's input
leave as `cli.Failure`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzer import __version__
from analyzer.cli import Failure
from captures import urls

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


def report(options: argparse.Namespace) -> int:
    """`kwire report`."""
    form = options.format or FORMATS.get(Path(options.out).suffix.lower() if options.out else "", "html")
    if form == "html" and not options.out and sys.stdout.isatty():
        raise Failure("a page is nothing for a terminal", "-o report.html writes it to a file; or --format md")
    target = _target(options.target)
    with contextlib.ExitStack() as stack:
        datasets = _datasets(options, stack)
        made = _made(options, datasets, target)
    text = _render(made, form)
    if options.out:
        _write(Path(options.out), text)
        sys.stderr.write(f"kwire: {options.out}: {len(text.encode()) / 1000:,.0f} kB\n")
    else:
        sys.stdout.write(text)
    return 0


def _target(said: str | None) -> str | None:
    """The release of the upgrade check."""
    if said is None:
        return None
    from reports import releases

    try:
        return releases.find(said).name
    except LookupError:
        known = ", ".join(release.name for release in releases.releases())
        raise Failure(f"--target {said}: not a Kafka release that this kwire knows", f"there are {known}") from None


def _datasets(options: argparse.Namespace, stack: contextlib.ExitStack) -> list[str]:
    """The datasets to report on; captures are analysed into one that goes when `stack` does."""
    from analyzer import dataset

    found = [source for source in options.sources if dataset.is_dataset(source)]
    captures = [source for source in options.sources if source not in found]
    if not captures:
        if options.filter is not None or options.port or options.rotated:
            raise Failure("--filter, --port and --rotated go with a CAPTURE", "kwire analyze --filter makes a DATASET")
        return found
    from analyzer import commands

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-report-"))
    made = os.path.join(folder, "dataset")
    commands.dataset_of(captures, made, options)
    return [*found, made]


def _made(options: argparse.Namespace, datasets: list[str], target: str | None) -> Any:
    from analyzer.dataset import DatasetError
    from reports import session

    try:
        with _doing("starting Spark"), contextlib.ExitStack() as stack:
            spark = stack.enter_context(session.of_command(options))
            from reports import making

            with _doing("asking"):
                return making.make(spark, datasets, tuple(map(name_of, options.sources)), target, __version__)
    except (session.SessionError, DatasetError) as failure:
        raise Failure(str(failure), failure.hint) from None


def name_of(source: str) -> str:
    """What the report calls a source: never the path of somebody's machine."""
    if urls.is_url(source):
        return urls.base_name(source)
    return "standard input" if source == "-" else Path(source).name or source


@contextlib.contextmanager
def _doing(what: str) -> Iterator[None]:
    """Says on a terminal what takes so long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"kwire: {what} ..."):
        yield


def _render(made: Any, form: str) -> str:
    from reports import rendering

    renderers = {"html": rendering.as_html, "md": rendering.as_markdown, "json": rendering.as_json}
    return renderers[form](made)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: written beside, then moved."""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        try:
            with open(handle, "w", encoding="utf-8") as out:
                out.write(text)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as failure:
        raise Failure(f"{path}: cannot be written: {failure.strerror}", "give another file to -o") from None
