"""The `kwire` command.

Rules: data on stdout, progress and notes on stderr; exit codes 0 done, 1 what was asked about is bad, 2 usage or input
error (one line that says what and where, then a `hint:` line), 130 interrupted. A closed stdout ends quietly. Each
subcommand imports what it needs, so that `kwire --help` is quick.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.signals import EndedBySignal, interrupted_by_others
from kwire.analyzer.options.commands import COMMANDS, Command
from kwire.captures.errors import KwireError

if TYPE_CHECKING:
    from kwire.analyzer.options.terminal import CompletionOptions, HelpOptions

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_COLLECT_AFTER = 100_000
"""New objects after which the interpreter looks for cycles among them."""
_OF_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Parser(argparse.ArgumentParser):
    """Usage errors in the project's form."""

    def error(self, message: str) -> NoReturn:
        fail(message, _meant(message) or f"{self.prog} --help lists what there is")


def fail(message: str, hint: str = "", pointer: str = "") -> NoReturn:
    """One line that says what and where, `pointer`, which may be several, then a hint; exit code 2."""
    lines = [f"kwire: {message}", *pointer.split("\n"), f"hint: {hint}" if hint else ""]
    with contextlib.suppress(OSError):  # nobody listens: the exit code still tells
        # Names of files, topics and hosts are others' text, and may have line ends too.
        sys.stderr.writelines(f"{printable(line)}\n" for line in lines if line)
        sys.stderr.flush()
    raise SystemExit(EXIT_USAGE)


def _meant(message: str) -> str:
    """The hint where a choice is nearly one of those there are: argparse lists them in its message."""
    wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if wrong is None:
        return ""
    near = _near(wrong[1], re.findall(r"[^\s,']+", wrong[2]))
    if not near and os.path.exists(wrong[1]):
        return "a command comes first: kwire story CAPTURE tells what happened in one"
    return f"did you mean {near}?" if near else ""


_NEAR: Final = 0.7
"""How alike a word must be to one that is meant, as `difflib` has it (0 to 1)."""


def _near(word: str, there: Iterable[str]) -> str:
    import difflib

    known = list(there)
    begun = [name for name in known if len(word) > 1 and name.startswith(word)]
    return next(iter([*begun[:1], *difflib.get_close_matches(word, known, 1, _NEAR)]), "")


class _CommandParser(_Parser):
    """The parser of a command: it gets the command's options when it reads, so that a start declares one command's."""

    command: Command | None = None
    examples: Sequence[tuple[str, str]] = ()
    _is_complete = False

    def format_help(self) -> str:
        lines = [f"  {line}\n      {about}\n" for line, about in self.examples]
        return super().format_help() + "".join(["\nexamples:\n", *lines] if lines else [])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.command is not None and not self._is_complete:
            self._is_complete = True
            from kwire.analyzer.options.declare import add_options  # with `dataclasses`, a tenth of what --help takes

            declared = self.command.options()
            self.epilog = declared.epilog or None
            self.examples = declared.examples
            add_options(self, declared)
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    from kwire.analyzer import __version__

    parser = _Parser(
        prog="kwire",
        description="Analyze Kafka traffic in captures: what was asked, what was answered, how long it took.",
        epilog="CAPTURE: a pcap or pcapng file (also .gz, .zst), a folder of them, a quoted glob, a URL of "
        "any of these (s3://bucket/day1, zip://a.pcap::https://host/day.zip), or - for stdin.",
    )
    parser.add_argument("--version", action="version", version=f"kwire {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for command in COMMANDS.values():
        commands.add_parser(command.name, help=command.about).command = command
    return parser


def parse(arguments: Sequence[str] | None = None) -> tuple[Command, Any]:
    """A command, and its options as typed. Leaves with exit code 2 where they are wrong."""
    parsed, unknown = _parser().parse_known_args(arguments)
    if parsed.command == "sql" and parsed.query is None and len(unknown) == 1 and not unknown[0].startswith("-"):
        parsed.query = unknown.pop()  # argparse takes an optional argument only beside the one before it
    if unknown:
        if not unknown[0].startswith("-"):
            hint = f"captures stand side by side, options before or behind them; see kwire {parsed.command} --help"
            fail(f"{unknown[0]}: one argument too many here", hint)
        near = _near(unknown[0].split("=")[0], _option_names(parsed.command))
        there = f"kwire {parsed.command} --help lists what there is"
        fail(f"unknown: {' '.join(unknown)}", f"did you mean {near}? {there}" if near else there)
    from kwire.analyzer.options.declare import options_of

    command = COMMANDS[parsed.command]
    return command, _completed(command.name, options_of(command.options(), parsed))


def _completed(command: str, options: Any) -> Any:
    """The options with what `replay` and `reports` know of them, which `analyzer` imports nowhere else."""
    import dataclasses

    if command == "replay":
        return dataclasses.replace(options, assumed=_release_of(options.assume, "--assume"))
    if command == "findings" and options.target is not None:
        released = _release_of(options.target, "--target")
        from kwire.reports import releases

        return dataclasses.replace(options, released=released, target=releases.bare(options.target))  # findings name it
    return dataclasses.replace(options, judge=_judged) if command == "view" else options


def _judged(run: str) -> Any:
    """The differences of a RUN from its capture, for the page that shows it."""
    from kwire.replay.diff.by_exchange import differing

    return differing(run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code comes back (or SystemExit is raised with it)."""
    try:
        with interrupted_by_others():
            return _run(arguments)
    except KeyboardInterrupt as interrupt:  # options take a few milliseconds too, and so does what a command imports
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.write(printable(_end_text(interrupt)) + "\n")
        return EXIT_INTERRUPTED


def _end_text(interrupt: KeyboardInterrupt) -> str:
    """Describe what ended a command, and what that left of its output (the notes that `_noted` added)."""
    by = f"ended by {interrupt.name}" if isinstance(interrupt, EndedBySignal) else "interrupted"
    return "; ".join([f"kwire: {by}", *getattr(interrupt, "__notes__", ())])


@contextlib.contextmanager
def _noted(options: Any) -> Iterator[None]:
    """Note on an interrupt what it leaves of what `-o` names."""
    out = getattr(options, "out", None)
    before = _last_write(out)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        after = _last_write(out)
        if out and out != "-":
            interrupt.add_note(
                f"nothing was written to {out}" if after is None
                else f"{out} is as it was before" if after == before
                else f"{out} has what was written until then"
            )  # fmt: skip
        raise


def _last_write(out: str | None) -> tuple[int, int, int] | None:
    """Which file or dataset a name stands for, and when it was last written; None where there is none."""
    for path in (os.path.join(out, "_kwire.json"), out) if out else ():
        with contextlib.suppress(OSError):
            status = os.stat(path)
            return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _run(arguments: Sequence[str] | None) -> int:
    _open_closed_streams()
    try:
        command, options = parse(arguments)
        function = command.function(options)
        with _names_of(options), _noted(options), _output_of(command, options) as options:
            code: int = _interruptible(function, options)
        sys.stdout.flush()
        return code
    except KwireError as problem:
        # The place is for people; others get the one line and the hint that they rely on.
        fail(problem.message, problem.hint, problem.pointer if sys.stderr.isatty() else "")
    except BrokenPipeError:
        _leave_stdout()  # `| head` has seen enough
        return 0
    except OSError as failure:
        if failure.filename is not None and failure.errno in _OF_NAMES:
            # Whoever looks at what a user names may meet these, a name that is too long among them.
            fail(f"{failure.filename}: {failure.strerror}", "check the name, and who may read it")
        if failure.filename is not None or failure.errno not in _FULL:
            raise
        _leave_stdout()  # of what has no name only stdout is left: captures and datasets say what failed themselves
        fail(f"stdout cannot be written: {failure.strerror}", "is the disk full? what was printed is cut off")


def _names_of(options: Any) -> contextlib.AbstractContextManager[None]:
    """Have the names of `--names` while a command runs."""
    if not getattr(options, "names", ()):
        return contextlib.nullcontext()
    from kwire.analyzer.common import address_names

    return address_names.opened(options.names)


@contextlib.contextmanager
def _output_of(command: Command, options: Any) -> Iterator[Any]:
    """The options with a temporary dataset for `kwire analyze` without -o, which prints the summary alone."""
    if command.name != "analyze" or options.out:
        yield options
        return
    import dataclasses
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kwire-analyze-") as folder:
        yield dataclasses.replace(options, out=os.path.join(folder, "dataset"), summary_only=True)


def _interruptible(command: Callable[[Any], int], options: Any) -> int:
    """Run a command. What fails while an interrupt is on its way up is the interrupt's doing: Spark's Java gets the
    same Ctrl-C, and whoever then asks it to tidy up meets a closed connection."""
    try:
        return command(options)
    except Exception as failure:
        before: BaseException | None = failure
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise before from None
            before = before.__cause__ or before.__context__
        raise


def _release_of(version: str | None, option: str) -> dict[int, tuple[int, int]] | None:
    """The versions of each API that a Kafka release offers; `reports` knows them, whom others may not ask."""
    if version is None:
        return None
    from kwire.reports import releases

    try:
        return releases.find(version).apis
    except LookupError:
        fail(f"{option} {version}: no Kafka release that is known", releases.hint(version))


def _option_names(command: str) -> list[str]:
    """The options of a command."""
    from kwire.analyzer.cli import completion

    [known] = (known for known in completion.commands() if known.name == command)
    return [name for option in known.options for name in option.names]


def _help(options: HelpOptions) -> int:
    """`kwire help`."""
    parser = _parser()
    if options.topic is None:
        from kwire.analyzer.cli.manual import TOPICS

        parser.print_help()
        sys.stdout.write("\nkwire help COMMAND, TABLE or VIEW says more, and of topics there are\n")
        sys.stdout.writelines(f"  kwire help {name:<8} {about}\n" for name, about in TOPICS.items())
        return 0
    from kwire.analyzer.cli import manual

    if options.topic not in manual.TOPICS and options.topic in COMMANDS:
        parser.parse_args([options.topic, "--help"])  # prints it, and leaves
    from kwire.analyzer.cli.pager import paged
    from kwire.reports import catalog

    text = manual.page(options.topic, catalog.views())
    with paged() as out:
        out.write(text)
    return 0


def _completion(options: CompletionOptions) -> int:
    """`kwire completion`."""
    from kwire.analyzer.cli import completion

    sys.stdout.write(completion.script(options.shell))
    return 0


def _open_closed_streams() -> None:
    """A standard stream that the caller closed (`>&-`) leads nowhere; else the next file opened would take its place,
    and be written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for good)


def _leave_stdout() -> None:
    """Point stdout elsewhere, so that the interpreter's own flush at the end says nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _WithoutPandas:
    """An import hook: pandas is not there, unless PySpark is, which needs it in places."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas" and "pyspark" not in sys.modules:
            raise ModuleNotFoundError("kwire's own process does without pandas", name=name)


def command() -> NoReturn:
    """Run the command, for `start`. A process of its own can do without pandas, which PyArrow would load (a third of
    a second) only to see whether its input comes from there; as a library we leave that to the importing program."""
    sys.meta_path.insert(0, _WithoutPandas)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 gets \u2026 for what it has not
            stream.reconfigure(errors="backslashreplace")
    # NumPy's linear algebra is not used: its threads would only take memory and wait, busily, for work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Importing makes hundreds of thousands of objects that stay: looking for cycles among them again and again is a
    # tenth of a start.
    gc.set_threshold(_COLLECT_AFTER, 20, 100)
    try:
        code = main()
    except Exception:  # a fault of ours; threads that wait for packets would keep the process all the same
        sys.excepthook(*sys.exc_info())
        code = 1
    if code == EXIT_INTERRUPTED:
        # A thread may still wait for stdin: leave without it.
        sys.stderr.flush()
        os._exit(code)
    _leave(code)
    raise SystemExit(code)


def _leave(code: int) -> None:
    """End the process without taking the interpreter apart, object by object, which takes as long as a sixth of a
    start. What is registered for the end is done; Spark's parts are left to the ordinary end, and so is a stdout that
    cannot be written."""
    if "pyspark" in sys.modules:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    # Under its own name: commands raise that module's `UsageError`, not this one's.
    from kwire.analyzer.cli import parser as cli

    cli.command()
