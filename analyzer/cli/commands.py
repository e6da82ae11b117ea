"""Run `kwire analyze` and `kwire show`, once the command line is read.

In: parsed options. Out: data on stdout; progress, notes and hints on stderr. Errors of the user's input leave as
`UsageError`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from kwire.analyzer.cli.color import colored, painter
from kwire.analyzer.cli.pager import paged
from kwire.analyzer.common import address_names
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.protocol.budget import BYTES
from kwire.analyzer.records.log_names import is_log

if TYPE_CHECKING:
    from pyarrow import Table

    from kwire.analyzer.cli.exchange_lines import Lines
    from kwire.analyzer.dataset.dataset import Dataset, StoredDataset
    from kwire.analyzer.filter.names import Operand
    from kwire.analyzer.options.analyze import AnalyzeOptions
    from kwire.analyzer.options.common import ReadArguments
    from kwire.analyzer.options.show import ShowOptions
    from kwire.analyzer.pipeline.points import Progress
    from kwire.captures.kernels import Compiling


_NARROWEST = 60
"""Columns that a line takes at least; below that nothing of the result would be left."""


_READABLE = 100
"""Columns that a line of sentences takes at most."""


_CLEAR = "\r\x1b[K"
"""To a terminal: the line begins anew."""


_EVERY_SECONDS = 15
"""Time between two lines about how far compiling is, where stderr is no terminal."""


class _Compilation:
    """Says on stderr that kernels are being compiled: why and how many, once; then which one of how many, and since
    when: on a terminal each, else a line now and then."""

    def __init__(self) -> None:
        from kwire.captures import kernels

        self._long = "" if kernels.warm() else ", a minute or two"
        self._is_announced = False
        self._begun = self._last = 0.0

    def __call__(self, now: Compiling | None) -> None:
        self.begin(now)
        if sys.stderr.isatty():
            self._write(_CLEAR + (f"kwire: {self.kernel(now)}" if now is not None else ""))
        elif now is not None and time.monotonic() >= self._last + _EVERY_SECONDS:
            self._last = time.monotonic()
            self._write(f"kwire: {self.kernel(now)}\n")

    def kernel(self, now: Compiling) -> str:
        """Which kernel of how many, and the time since the first."""
        name = now.kernel.rpartition(".")[2]
        return f"kernel {now.number} of at most {now.most}, {name}, {time.monotonic() - self._begun:.0f} s so far"

    def begin(self, now: Compiling | None) -> None:
        """The line that is said once."""
        if now is None or self._is_announced:
            return
        from kwire.captures import kernels

        self._is_announced = True
        self._begun = self._last = time.monotonic()
        reason = kernels.came_along().reason
        why = f" (not as installed: {printable(reason)})" if reason else ""
        self._write(f"kwire: compiling kernels, once on this machine{why}: at most {now.most}{self._long} ...\n")

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody need listen
            sys.stderr.write(text)
            sys.stderr.flush()


def announce_compilation() -> None:
    """Have it said when kernels are compiled, which is once on a machine at most, or it looks like a hang."""
    from kwire.captures import kernels

    kernels.tell(_Compilation())


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr, where that is a terminal, and below it which kernel is being compiled."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn, TransferSpeedColumn
    from rich.text import Text

    from kwire.captures import kernels

    class Size(DownloadColumn):
        """Where a task counts bytes."""

        def render(self, task: Task) -> Text:
            return super().render(task) if task.id != compiling else Text()

    class Speed(TransferSpeedColumn):
        """Speed, where a task counts bytes."""

        def render(self, task: Task) -> Text:
            return super().render(task) if task.id != compiling else Text()

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), Size(), Speed(), console=Console(stderr=True), transient=True
    )
    tasks: dict[str, Any] = {}
    compiling = bar.add_task("", visible=False)

    def report(name: str, read: int, size: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(escape(printable(name)), total=size or None)
        bar.update(tasks[name], completed=read)

    def listen(now: Compiling | None) -> None:
        if now is None:
            bar.update(compiling, visible=False)
            return
        saying.begin(now)
        bar.update(compiling, visible=True, description=saying.kernel(now), completed=now.number - 1, total=now.most)

    before = kernels.tell(listen)
    saying = before if isinstance(before, _Compilation) else _Compilation()
    try:
        with bar:
            yield report
    finally:
        kernels.tell(before)


def check_analysis(options: AnalyzeOptions) -> None:
    """Raise UsageError for options that do nothing together."""
    if options.keep_secrets and not options.keep_bytes:
        raise UsageError("--keep-secrets goes with --keep-bytes", "without it no message is kept")
    for name in ("master", "conf", "split_bytes", "chunk_bytes"):
        if getattr(options, name, None) not in (None, "", []):
            raise UsageError(
                f"--{name.replace('_', '-')} goes with --engine spark", "this engine works in this process"
            )


def check_no_dataset(command: str, captures: Sequence[str]) -> None:
    """Refuse datasets where captures are read. Raises UsageError."""
    from kwire.analyzer.dataset.dataset import is_dataset

    for argument in captures:
        if is_dataset(argument):
            raise UsageError(
                f"{argument}: a dataset, and kwire {command} reads captures",
                f"kwire sql {shlex.quote(argument)} 'SELECT * FROM exchanges', or kwire report {shlex.quote(argument)}",
            )


def analyze(options: AnalyzeOptions) -> int:
    """`kwire analyze`."""
    check_analysis(options)
    check_no_dataset("analyze", options.captures)
    announce_compilation()
    from kwire.analyzer import api
    from kwire.analyzer.pipeline.points import AnalysisOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions

    with _progress() as progress:
        result = api.decode(
            options.captures,
            options.out,
            ReadOptions.from_arguments(options),
            AnalysisOptions.from_arguments(options),
            append=options.append,
            wait=options.wait,
            progress=progress,
            stdin=sys.stdin.buffer,
        )
    print_analysis(result, options)
    return 0


def _print_notes(result: Dataset) -> None:
    _note(result.notes)
    for hint in result.hints:
        sys.stderr.write(f"hint: {printable(hint)}\n")


def print_analysis(result: Dataset, options: AnalyzeOptions) -> None:
    """Print the result of an analysis: notes to stderr, the summary to stdout."""
    _print_notes(result)
    if options.json:
        json.dump(result.summary, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        from kwire.analyzer.cli.summary_lines import summary_text

        out = None if options.summary_only else options.out
        sys.stdout.write(summary_text(result.summary, out, painter(options.color)))


def dataset_of(
    captures: Sequence[str],
    out: str,
    options: ReadArguments,
    keep_bytes: bool = False,
    progress: Progress | None = None,
    seen: Callable[[str, Table], None] | None = None,
) -> None:
    """Analyse the captures that a command was given in place of a dataset; `options`: those of reading, and of keys and
    values where the command has such; `keep_bytes`: with the table `messages`; `progress`: who is told how far it is,
    in place of a bar; `seen`: who gets the rows."""
    announce_compilation()
    from kwire.analyzer import api
    from kwire.analyzer.options.common import PayloadArguments
    from kwire.analyzer.payloads.options import PayloadOptions
    from kwire.analyzer.pipeline.points import AnalysisOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions
    from kwire.analyzer.records.arrow_tables import BATCHES, FULL

    payloads = PayloadOptions.from_arguments(options) if isinstance(options, PayloadArguments) else None
    records = BATCHES if payloads is None else FULL
    with _progress() if progress is None else contextlib.nullcontext(progress) as report:
        result = api.decode(
            captures,
            out,
            ReadOptions.from_arguments(options),
            AnalysisOptions.of(options.filter, keep_bytes=keep_bytes, records=records, payloads=payloads),
            progress=report,
            stdin=sys.stdin.buffer,
            seen=seen,
        )
    _print_notes(result)


def named_dataset(path: str | os.PathLike[str]) -> StoredDataset:
    """Open a dataset that a command was given in place of captures. What was noted when these were read, that one was
    cut, say, is said again."""
    from kwire.analyzer.dataset.dataset import open_dataset

    dataset = open_dataset(path)
    tell_notes(dataset.manifest)
    return dataset


def tell_notes(manifest: Mapping[str, Any]) -> None:
    """Print the notes that were made when the captures of a dataset were read."""
    _note(manifest.get("notes", ()))


def show(options: ShowOptions) -> int:
    """`kwire show`."""
    if options.hex and not options.tree:
        raise UsageError("--hex goes with --tree", "add --tree, or leave out --hex")
    for name in ("budget", "page"):
        if getattr(options, name) is not None and not (options.tree or options.json):
            raise UsageError(f"--{name} goes with --tree and --json", "it is about one message seen whole")
    for name in ("schemas", "registry", "payloads"):
        if getattr(options, name) and not (options.records or options.tree or options.filter):
            raise UsageError(
                f"--{name} goes with --records, --tree and --filter", "keys and values are shown and tested by them"
            )
    if options.format is not None and not options.records:
        raise UsageError("--format goes with --records", "add --records, or leave out --format")
    announce_compilation()
    if options.records and not any(is_log(argument) for argument in options.captures):
        from kwire.analyzer.cli import record_lines

        with _output(options) as out:
            return record_lines.show(options, out)
    check_no_dataset("show", options.captures)
    if any(is_log(argument) for argument in options.captures):
        from kwire.analyzer.cli import log_lines

        with _output(options) as out:
            return log_lines.show(options, out)
    from kwire.analyzer import api
    from kwire.analyzer.cli.details import WITH_BODIES
    from kwire.analyzer.payloads.options import PayloadOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions

    _check_form(options)
    fields = _names(options.fields, "--fields", "to show")
    counted = _names(options.count_by, "--count-by", "to count by")
    sort = _sort(options.sort)
    notes: list[str] = []
    if counted:
        from kwire.analyzer.cli import count_by  # which loads PyArrow's functions

        counts = count_by.counted(options, counted, notes)
        with _output(options) as out:
            out.write(count_by.lines(counts, counted, options.limit))
        _note(notes)
        return 0
    if "-" in options.captures and (options.sort or options.frames):
        _note([f"{'--sort' if options.sort else '--frames'} prints when stdin ends"])
    apis = frozenset[int]().union(*(operand.apis or () for operand in [*fields, *([sort] if sort else [])]))
    with _output(options, heading=not (options.json or options.tree or options.follow is not None)) as out:
        is_plain = options.follow is None and not (options.json or options.tree or options.frames or options.names)
        if fields or sort or not is_plain:
            exchanges: Iterator[Any] = api.decoded(
                options.captures,
                ReadOptions.from_arguments(options),
                filter=options.filter,
                bodies=True if options.json or options.tree else apis if fields else WITH_BODIES | apis,
                partitions=not (options.json or fields),
                notes=notes,
                stdin=sys.stdin.buffer,
                payloads=PayloadOptions.from_arguments(options),
            )
            if options.follow is not None:
                exchanges = (exchange for exchange in exchanges if exchange.row["connection"] == options.follow)
            if options.names:
                exchanges = map(_named, exchanges)
            shown = _print(exchanges, options, fields, sort, out)
        else:
            shown = _print_lines(options, notes, out)
    _note(notes)
    if not shown and options.filter:
        from kwire.analyzer.cli import packet_lookup

        _note(packet_lookup.packet_notes(options.captures, ReadOptions.from_arguments(options), options.filter))
    if not shown and options.follow is not None:
        raise UsageError(
            f"--follow {options.follow}: no such connection",
            "kwire show CAPTURE --count-by connection lists them; c1 of a story stands for the name at its end",
        )
    return 0


def _named(exchange: Any) -> Any:
    """The exchange with the names of its ends after its columns, null where none is known."""
    exchange.row.update(address_names.of_row(exchange.row))
    return exchange


def _note(notes: Sequence[str]) -> None:
    for note in notes:
        sys.stderr.write(f"note: {printable(note)}\n")


def _check_form(options: ShowOptions) -> None:
    """Options that do nothing together are a mistake."""
    if options.sort and (options.frames or options.count_by):
        other = "--frames" if options.frames else "--count-by"
        order = "in order of time" if options.frames else "most frequent first"
        raise UsageError(f"--sort does not go with {other}", f"what {other} prints is {order}; leave one of them out")
    form = next((form for form in ("json", "tree", "fields", "count_by") if getattr(options, form)), None)
    if options.frames and form is not None:
        raise UsageError(f"--frames does not go with --{form.replace('_', '-')}", "leave one of them out")


def _names(text: str | None, option: str, purpose: str) -> list[Operand]:
    """Look up the words of an option in the vocabulary of filters (`filter/FILTER.md`)."""
    if text is None:
        return []
    from kwire.analyzer.filter import names
    from kwire.analyzer.filter.tokens import Word, WordError

    operands = []
    for word in (word.strip() for word in text.split(",")):
        try:
            operands.append(names.resolve_printed(Word(word, 0, len(word)), purpose))
        except WordError as problem:
            raise UsageError(f"{option}: {problem.message}", problem.hint) from None
    return operands


def _sort(text: str | None) -> Operand | None:
    if text is None:
        return None
    name = text.removeprefix("-")
    (operand, *more) = _names("total" if name.strip() == "latency" else name, "--sort", "to sort by")
    if more:
        raise UsageError(f"--sort {text}: one name is enough", "sort by one, and by more with kwire sql ... ORDER BY")
    if operand.kind == "opaque":
        raise UsageError(f"--sort: `{operand.word}` has no single value", "go on to a field in it, or sort by another")
    return operand


def _key(exchange: Any, sort: Operand, descending: bool) -> Any:
    """The sort key of an exchange: of several values the one that comes first."""
    bodies = (exchange.request, exchange.response) if sort.apis is not None else (None, None)
    values = [value for value in sort.values(exchange.row, *bodies) if value == value]  # NaN is in no order
    return (max(values) if descending else min(values)) if values else None


def _print_lines(options: ShowOptions, notes: list[str], out: IO[str]) -> int:
    """Write exchanges one a line, the form that is asked for of millions; returns how many."""
    from kwire.analyzer import api
    from kwire.analyzer.cli.details import DIRECTIONS, PARTITION_COLUMNS, WITH_BODIES
    from kwire.analyzer.cli.exchange_lines import COLUMNS, LOOK_AHEAD
    from kwire.analyzer.payloads.options import PayloadOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions

    blocks = api.decoded_blocks(
        options.captures,
        ReadOptions.from_arguments(options),
        columns=COLUMNS,
        partition_columns=PARTITION_COLUMNS,
        filter=options.filter,
        bodies=WITH_BODIES,
        directions=DIRECTIONS,
        notes=notes,
        stdin=sys.stdin.buffer,
        payloads=PayloadOptions.from_arguments(options),
    )
    lines = _lines(options, out)
    ahead: list[api.Block] = []
    if "-" not in options.captures:
        head: list[Any] = []
        most = min(LOOK_AHEAD, options.limit or LOOK_AHEAD)
        while len(head) < most and (block := next(blocks, None)) is not None:
            ahead.append(block)
            head += itertools.islice(block.exchanges(), most - len(head))
        lines.look(head)
    heading, shown = lines.heading(), 0
    for block in itertools.chain(ahead, blocks):
        lines.start = lines.start or block.capture_start
        texts = lines.block(block if options.limit is None else block.head(options.limit - shown))
        if texts:
            out.write(heading + "".join(texts))
            heading = ""
        shown += len(texts)
        if shown == options.limit:
            break
    return shown


def _lines(options: ShowOptions, out: IO[str]) -> Lines:
    from kwire.analyzer.cli.exchange_lines import Lines

    cut = out is sys.stdout  # a pager shows what is to the right of the screen
    return Lines(colored(options.color), options.time, None if options.wide else width(), cut)


def _print(
    exchanges: Iterator[Any], options: ShowOptions, fields: list[Operand], sort: Operand | None, out: IO[str]
) -> int:
    """Write exchanges in the form asked for; returns how many."""
    from kwire.analyzer.cli.exchange_lines import LOOK_AHEAD
    from kwire.analyzer.cli.sorted_lines import Sorter

    lines = _lines(options, out)
    if options.frames:
        shown = 0
        for line in lines.frames(exchanges, options.limit):
            out.write(line)
            shown += 1
        return shown
    at_once = "-" in options.captures and sort is None
    if not options.json and not fields and not at_once:
        head = list(itertools.islice(exchanges, LOOK_AHEAD if sort else min(LOOK_AHEAD, options.limit or LOOK_AHEAD)))
        lines.start = head[0].capture_start if head else None
        lines.look(head)
        exchanges = itertools.chain(head, exchanges)
    heading = ""
    if fields:
        heading = "\t".join(operand.heading for operand in fields) + "\n"
    elif not options.json and not options.tree and not options.follow:
        heading = lines.heading()
    texts: Iterator[str]
    if sort is None:
        texts = (_form(exchange, options, fields, lines) for exchange in itertools.islice(exchanges, options.limit))
    else:
        descending = not (options.sort or "").startswith("-")
        sorter = Sorter(descending, options.limit)
        for exchange in exchanges:
            key = _key(exchange, sort, descending)
            if sorter.wants(key):
                sorter.put(key, _form(exchange, options, fields, lines))
        texts = iter(sorter)
    shown = 0
    for text in texts:
        shown += 1
        out.write(heading + text)  # no heading before the first row: what cannot be read says so, and nothing else
        heading = ""
    return shown


def _form(exchange: Any, options: ShowOptions, fields: list[Operand], lines: Any) -> str:
    """One exchange in the form asked for."""
    from kwire.analyzer.cli import text

    lines.start = lines.start or exchange.capture_start
    if options.json:
        return text.json_text(exchange.json(options.budget or BYTES, options.page or 1)) + "\n"
    if options.tree:
        return (
            f"{lines.exchange(exchange)}{lines.tree(exchange, options.hex, options.budget or BYTES, options.page or 1)}"
        )
    if fields:
        bodies = (exchange.request, exchange.response) if any(field.apis for field in fields) else (None, None)
        return "\t".join(text.cell(field.shown(exchange.row, *bodies)) for field in fields) + "\n"
    return str(lines.dialogue(exchange) if options.follow else lines.exchange(exchange))


def width() -> int | None:
    """Columns of the terminal that stdout is, `COLUMNS` before what it says itself; None where there is no bound.

    Without a terminal `COLUMNS` does not count: readline sets it for whatever a shell or interpreter starts, and what
    goes into a file or another program is to be whole."""
    if not sys.stdout.isatty():
        return None
    stated = os.environ.get("COLUMNS", "")
    columns = int(stated) if stated.isascii() and stated.isdigit() else 0
    if not columns:
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
    return max(columns, _NARROWEST) if columns else None


def reading_width() -> int | None:
    """Like `width`, for sentences, which are hard to read in longer lines."""
    return min(width() or 0, _READABLE) or None


def folded(text: str, indent: str, width: int | None) -> list[str]:
    """A paragraph in lines of this width; `indent`: what stands before those after the first."""
    if width is None:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=indent if len(indent) < width - 30 else "    ", break_on_hyphens=False
    ) or [""]


def _output(options: ShowOptions, heading: bool = False) -> contextlib.AbstractContextManager[IO[str]]:
    """Where `kwire show` writes to; `heading`: the first line names the columns."""
    if "-" in options.captures:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # live: each row when it is known
    return contextlib.nullcontext(sys.stdout) if options.no_pager else paged(heading, "-" in options.captures)
