"""`kwire analyze --engine spark`, once the command line is read.

In: parsed options. Out: as from the local engine: the summary on stdout, notes on stderr. Errors of the user's input
leave as `cli.Failure`.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from analyzer.cli import Failure
from analyzer.commands import failures, print_analysis


def analyze(options: argparse.Namespace) -> int:
    """`kwire analyze --engine spark`."""
    from reports import session

    try:
        with failures(options.filter is not None), session.of_command(options) as spark:
            result = _analyzed(options, spark)
    except session.SessionError as failure:
        raise Failure(str(failure), failure.hint) from None
    print_analysis(result, options)
    return 0


def _analyzed(options: argparse.Namespace, spark: Any) -> Any:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from reports import ingest

    try:
        return ingest.analyze(
            options.captures,
            options.out,
            spark=spark,
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
            split_bytes=options.split_bytes or ingest.SPLIT_BYTES,
        )
    except (PySparkException, Py4JJavaError) as failure:
        raise Failure(_last_cause(str(failure)), "--verbose shows what Spark says; the dataset is as it was") from None


_PYTHON_ERROR = re.compile(r"^(?!org\.|java\.|py4j\.)[\w.]*(?:Error|Exception): .+", re.MULTILINE)


def _last_cause(text: str) -> str:
    """The line of Spark's long story that says what happened: the Python error of a task, else the first line."""
    error = _PYTHON_ERROR.search(text)
    if error:
        return f"a task of Spark failed: {error[0].strip()}"
    return f"Spark failed: {text.strip().splitlines()[0] if text.strip() else 'it does not say why'}"
