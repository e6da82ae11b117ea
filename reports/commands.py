"""Run `kwire report` and `kwire analyze --engine spark`, once the command line is read.

In: parsed options. Out: the report in a file or on stdout, progress and notes on stderr; of `analyze` the same as from
the local engine. Errors of the user's input leave as `UsageError`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kwire.analyzer import __version__
from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.reports import output

if TYPE_CHECKING:
    from kwire.analyzer.options.analyze import AnalyzeOptions
    from kwire.analyzer.options.questions import ReportOptions
    from kwire.reports.page.report import Report

ENDINGS = {"": "html", ".html": "html", ".htm": "html", ".md": "md", ".json": "json"}
"""The form of a report by the end of its file's name."""


def report(options: ReportOptions) -> int:
    """`kwire report`."""
    form = options.format or (output.form(options.out, ENDINGS) if options.out else "html")
    if form == "html" and not options.out and sys.stdout.isatty():
        raise UsageError("a page is nothing for a terminal", "-o report.html writes it to a file; or --format md")
    target = _target(options.target)
    if options.out:
        output_file.check(options.out)
    from kwire.reports import own_views, zones

    with contextlib.ExitStack() as stack:
        stack.enter_context(own_views.opened(options.views))
        stack.enter_context(zones.opened(options.zones))
        datasets = _datasets(options, stack)
        with _doing("asking"):
            result = report_on(options, datasets, target)
    text = rendered(result, form)
    if options.out:
        with output.written(options.out) as beside:
            Path(beside).write_text(text, encoding="utf-8")
        sys.stderr.write(f"kwire: {options.out}: {len(text.encode()) / 1000:,.0f} kB\n")
    else:
        sys.stdout.write(text)
    return 0


def _target(version: str | None) -> str | None:
    """The release of the upgrade check."""
    if version is None:
        return None
    from kwire.reports import releases

    try:
        return releases.find(version).name
    except LookupError:
        raise UsageError(
            f"--target {version}: not a Kafka release that this kwire knows", releases.hint(version)
        ) from None


def _datasets(options: ReportOptions, stack: contextlib.ExitStack) -> list[str]:
    """The datasets to report on; captures are analysed into one that goes when `stack` does."""
    from kwire.analyzer.cli import commands
    from kwire.analyzer.dataset import dataset
    from kwire.analyzer.payloads.options import check_captures

    datasets = [source for source in options.sources if dataset.is_dataset(source)]
    captures = [source for source in options.sources if source not in datasets]
    for source in datasets:
        commands.named_dataset(source)  # what is wrong with it is told before a capture is read
    if not captures:
        if options.filter is not None or options.port or options.rotated:
            raise UsageError(
                "--filter, --port and --rotated go with a CAPTURE", "kwire analyze --filter makes a DATASET"
            )
        if options.keylog:
            raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
        check_captures(options)
        return datasets

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-report-"))
    path = os.path.join(folder, "dataset")
    commands.dataset_of(captures, path, options)
    return [*datasets, path]


def report_on(options: ReportOptions, datasets: list[str], target: str | None) -> Report:
    """The report on datasets. `target`: the name of the release of an upgrade check."""
    from kwire.reports import engines
    from kwire.reports.page.report import CONF, make

    with engines.opened(options, datasets, conf=CONF) as engine:
        return make(engine, tuple(map(output.name_of, options.sources)), target, __version__)


@contextlib.contextmanager
def _doing(what: str) -> Iterator[None]:
    """Says on a terminal what takes so long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"kwire: {what} ..."):
        yield


def rendered(result: Report, form: str) -> str:
    """A report as `html`, `md` or `json`."""
    from kwire.reports.page import rendering

    renderers = {"html": rendering.as_html, "md": rendering.as_markdown, "json": rendering.as_json}
    return renderers[form](result)


# --- analyze --engine spark -------------------------------------------------------------------------------------------


def analyze(options: AnalyzeOptions) -> int:
    """`kwire analyze --engine spark`."""
    from kwire.analyzer.cli.commands import print_analysis
    from kwire.analyzer.dataset import dataset
    from kwire.analyzer.pipeline.read_options import ReadOptions
    from kwire.captures.files import capture_points
    from kwire.reports.spark import session

    # Captures that are not there, and a folder that cannot be written, are told before a session takes its time to
    # start; nothing is left of the try.
    capture_points(options.captures, ReadOptions.from_arguments(options).rotated)
    with dataset.Writer(Path(options.out).absolute(), options.append, options.wait):
        pass
    with session.of_command(options, quick=True) as spark:  # what takes long is done by Python
        result = _analyzed(options, spark)
    print_analysis(result, options)
    return 0


def _analyzed(options: AnalyzeOptions, spark: Any) -> Any:
    from kwire.analyzer.pipeline.points import AnalysisOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions
    from kwire.reports.spark import ingest

    with _told_by_spark("--verbose shows what Spark says; the dataset is as it was"):
        return ingest.decode(
            options.captures,
            options.out,
            ReadOptions.from_arguments(options),
            AnalysisOptions.from_arguments(options),
            spark=spark,
            append=options.append,
            split=_split(options),
            wait=options.wait,
        )


def _split(options: AnalyzeOptions) -> Any:
    from kwire.reports.spark import ingest

    def tell(line: str) -> None:
        print(f"kwire: {line}", file=sys.stderr)

    return ingest.Split(options.split_bytes or None, options.chunk_bytes, tell)


@contextlib.contextmanager
def _told_by_spark(hint: str) -> Iterator[None]:
    """Turn errors of Spark into UsageError, in one line."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        raise UsageError(_last_cause(str(failure)), hint) from None


_PYTHON_ERROR = re.compile(r"^(?!org\.|java\.|py4j\.)[\w.]*(?:Error|Exception): .+", re.MULTILINE)


def _last_cause(text: str) -> str:
    """The line of Spark's long story that says what happened: the Python error of a task, else the first line."""
    error = _PYTHON_ERROR.search(text)
    if error:
        return f"a task of Spark failed: {error[0].strip()}"
    return f"Spark failed: {text.strip().splitlines()[0] if text.strip() else 'it does not say why'}"
