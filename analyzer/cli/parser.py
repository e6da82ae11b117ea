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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from analyzer.common.escapes import printable
from analyzer.live.options import LIVE, add_live, add_record, add_rotation, add_watch
from captures.errors import KwireError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_COLLECT_AFTER = 100_000
"""New objects after which the interpreter looks for cycles among them."""
_THREADS = "kernels at work at once (default: the cores that this process may use, 16 at most)"
_MOST = 10**15
"""What may be asked for of anything: no capture has more, and twice that is a number of 64 bits yet."""
_MOST_THREADS = 256
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
    return f"did you mean {near}?" if near else ""


def _near(word: str, there: Iterable[str]) -> str:
    import difflib

    known = list(there)
    begun = [one for one in known if len(word) > 1 and one.startswith(word)]
    return next(iter([*begun[:1], *difflib.get_close_matches(word, known, 1)]), "")


def _port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return value


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST)) else 0
    if not 1 <= value <= _MOST:
        told = repr(text) if len(text) <= 40 else f"one of {len(text):,} characters"
        raise argparse.ArgumentTypeError(f"{told} is not a number from 1 to {_MOST:,}")
    return value


def _threads(text: str) -> int:
    value = _count(text)
    if value > _MOST_THREADS:  # each has tables and windows of its own
        raise argparse.ArgumentTypeError(f"{text} are more than {_MOST_THREADS}, the most that there may be")
    return value


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _reading_options(parser: argparse.ArgumentParser, filter: bool = True) -> None:
    if filter:
        parser.add_argument("--filter", metavar="EXPR", help="only exchanges that match (kwire help filter)")
    else:
        parser.set_defaults(filter=None)
    parser.add_argument("--rotated", action="store_true", help="the captures are one, rotated into several files")
    parser.add_argument(
        "--port",
        type=_port,
        action="append",
        default=[],
        metavar="N",
        help="this server port is Kafka (repeatable); default: recognise it by content on any port",
    )
    _keylog_option(parser)
    parser.add_argument("--threads", type=_threads, metavar="N", help=_THREADS)
    parser.add_argument("--window-bytes", type=_count, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument(
        "--frame-limit", type=_count, metavar="BYTES", help="bytes of unfinished messages kept (default: 512 MiB)"
    )


def _keylog_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keylog",
        action="append",
        default=[],
        metavar="FILE",
        help="TLS key log (SSLKEYLOGFILE) that opens what is encrypted (repeatable)",
    )


def _parser() -> argparse.ArgumentParser:
    from analyzer import __version__

    parser = _Parser(
        prog="kwire",
        description="Analyze Kafka traffic in captures: what was asked, what was answered, how long it took.",
        epilog="CAPTURE: a pcap or pcapng file (also .gz, .zst), a folder of them, a quoted glob, a URL of "
        "any of these (s3://bucket/day1, zip://a.pcap::https://host/day.zip), or - for stdin.",
    )
    parser.add_argument("--version", action="version", version=f"kwire {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    analyze = commands.add_parser("analyze", help="decode captures to a dataset of Parquet tables, print a summary")
    analyze.add_argument("captures", nargs="*", metavar="CAPTURE")
    add_live(analyze)
    add_rotation(analyze, "dataset", "after so many captured bytes (with --append: another capture point)")
    analyze.add_argument("-o", "--out", metavar="DATASET", required=True, help="folder to write; a dataset is replaced")
    _reading_options(analyze)
    analyze.add_argument(
        "--records",
        choices=("none", "batches", "meta", "full"),
        default="batches",
        help="how far record batches are opened: not at all; headers and checksums (the default); a row a record, "
        "without content; with keys, values and headers",
    )
    analyze.add_argument(
        "--decompressed-limit",
        type=_count,
        metavar="BYTES",
        help="bytes that one record batch may become (default: 256 MiB)",
    )
    analyze.add_argument(
        "--decompressed-ratio",
        type=_count,
        metavar="N",
        help="how many times larger one may become, beyond 1 MiB (default: 1000)",
    )
    analyze.add_argument("--keep-bytes", action="store_true", help="also keep the raw messages, secrets overwritten")
    analyze.add_argument(
        "--no-meaning",
        dest="meaning",
        action="store_false",
        help="leave out what the traffic means (clients, groups, transactions, findings ...)",
    )
    analyze.add_argument(
        "--keep-secrets",
        action="store_true",
        help="with --keep-bytes: secrets too, so that the dataset holds passwords",
    )
    analyze.add_argument("--append", action="store_true", help="add to the dataset that is there")
    analyze.add_argument(
        "--follow",
        action="store_true",
        help="the CAPTURE is a folder where another tool rotates captures: add what comes to the "
        "dataset, each row once, over restarts too; until Ctrl-C, or --for",
    )
    analyze.add_argument("--wait", action="store_true", help="wait for another process that is writing the dataset")
    analyze.add_argument("--json", action="store_true", help="the summary as JSON")
    analyze.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="where the work is done: in this process, or in tasks of Spark (default: local)",
    )
    analyze.add_argument(
        "--split-bytes",
        type=_count,
        metavar="BYTES",
        help="with --engine spark: larger captures are read in chunks (default: 16 GiB, from 5 cores on)",
    )
    analyze.add_argument(
        "--chunk-bytes",
        type=_count_or_none,
        metavar="BYTES",
        help="with --engine spark: the size of a chunk, each read by one task; 0: one task reads a capture whole "
        "(default: 1 to 4 GiB, one chunk a core or several)",
    )
    _spark_options(analyze)
    analyze.set_defaults(run="analyzer.cli.commands:analyze")

    show = commands.add_parser(
        "show",
        help="print exchanges, one a line",
        epilog="A line begins with ! where the answer holds an error, does not come or cannot be decoded, with ~ where "
        "it took 100 ms or longer (a fetch may wait on purpose). kwire help filter explains --filter.",
    )
    show.add_argument("captures", nargs="+", metavar="CAPTURE")
    _reading_options(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line: all columns and both bodies")
    form.add_argument("--tree", action="store_true", help="all fields of each message, with their bytes' places")
    form.add_argument(
        "--fields",
        metavar="A,B,C",
        help="these columns or fields of the bodies (names: kwire help filter), tab-separated",
    )
    form.add_argument("--count-by", metavar="A,B,C", help="how many exchanges for each combination of these")
    show.add_argument("--hex", action="store_true", help="with --tree: the bytes too")
    show.add_argument(
        "--budget",
        type=_count,
        metavar="BYTES",
        help="with --tree and --json: what the records of one message may become (default: 64 MiB)",
    )
    show.add_argument(
        "--page",
        type=_count,
        metavar="N",
        help="with --tree and --json: which 10,000 nodes of a large message (default: the first)",
    )
    show.add_argument("--records", action="store_true", help="records, one a line, with keys and values (datasets too)")
    show.add_argument(
        "--format",
        metavar="FORMAT",
        help="with --records: as kcat's, of %%t %%p %%o %%k %%s %%T %%h %%K %%S and \\n, \\t",
    )
    show.add_argument("--frames", action="store_true", help="requests and responses apart, each at its own time")
    show.add_argument("--follow", metavar="CONNECTION", help="one connection as a dialogue (name as --json shows it)")
    show.add_argument(
        "--sort", metavar="NAME", help="by this column or field, largest first (--sort=-NAME: smallest first)"
    )
    show.add_argument("--limit", type=_count, metavar="N", help="stop after N exchanges, lines or records")
    show.add_argument("--time", choices=("relative", "absolute"), default="relative", help="how times are shown")
    show.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: on a terminal")
    show.add_argument(
        "--wide",
        action="store_true",
        help="every column, however wide the terminal is; so it is where stdout is no terminal",
    )
    show.add_argument("--no-pager", action="store_true", help="do not page on a terminal")
    show.set_defaults(run="analyzer.cli.commands:show")

    sql = commands.add_parser("sql", help="ask a dataset in SQL; without a query, at a prompt")
    sql.add_argument("dataset", metavar="DATASET", help="a dataset, or a capture, - for one from stdin")
    sql.add_argument("query", nargs="?", metavar="QUERY", help="SQL over the tables and views; SHOW VIEWS lists them")
    sql.add_argument("--format", choices=("table", "csv", "json", "parquet"), help="of the answer (default: table)")
    sql.add_argument(
        "--raw",
        action="store_true",
        help="csv: text that begins with = + - @, a tab or a return as it is, without a ' before it",
    )
    sql.add_argument("-o", "--out", metavar="FILE", help="write the answer there")
    _keylog_option(sql)
    _engine_option(sql)
    _spark_options(sql)
    sql.set_defaults(run="reports.sql:sql")

    report = commands.add_parser("report", help="a page with charts and tables: what happened, and is it well?")
    report.add_argument("sources", nargs="+", metavar="DATASET|CAPTURE")
    report.add_argument("-o", "--out", metavar="FILE", help="file to write, as report.html; default: stdout")
    report.add_argument("--format", choices=("html", "md", "json"), help="default: as FILE ends, else html")
    report.add_argument("--target", metavar="VERSION", help="upgrade check: what this Kafka release would refuse")
    _engine_option(report)
    _spark_options(report)
    _reading_options(report)
    report.set_defaults(run="reports.commands:report")

    _findings_options(commands.add_parser("findings", help="what is wrong, why, and what to do"))
    story = commands.add_parser(
        "story",
        help="what happened, in order, one line an event",
        epilog="Without --group and the like: the ten things worth knowing first. Times are UTC; [c1 #12] is exchange "
        "12 of the connection that is listed as c1 at the end. What is not certain says probably.",
    )
    story.add_argument("sources", nargs="+", metavar="CAPTURE|DATASET")
    story.add_argument("--group", metavar="G", help="what happened in this group")
    story.add_argument("--client", metavar="C", help="what the client with this client id did")
    story.add_argument("--topic", metavar="T", help="what happened to this topic")
    story.add_argument("--transaction", metavar="X", help="what was done with this transactional id")
    story.add_argument("--connection", metavar="C", help="what happened on this connection (a name of show --json)")
    story.add_argument("--json", action="store_true", help="one JSON object a line, in order of time")
    _reading_options(story, filter=False)
    story.set_defaults(run="analyzer.story.command:story")

    add_record(commands.add_parser("record", help="capture an interface to files, and say what was lost"))
    watch = commands.add_parser("watch", help="what happens now: on an interface, in a folder that grows, on stdin")
    add_watch(watch)
    _reading_options(watch)
    _view_options(commands.add_parser("view", help="look into it in a browser: exchanges, fields, bytes"))
    _replay_options(commands.add_parser("replay", help="send captured sessions to another broker"))
    diff = commands.add_parser("diff", help="what differs: captured against replayed, or one replay against another")
    diff.add_argument("run_a", metavar="RUN_A", help="a RUN that kwire replay wrote")
    diff.add_argument("run_b", nargs="?", metavar="RUN_B", help="another of the same capture; default: the capture")
    diff.add_argument(
        "--noise",
        metavar="RUN_A2",
        help="another replay where RUN_A was made: what differs from A by itself is no difference",
    )
    diff.add_argument("--json", action="store_true", help="as JSON (--format json)")
    diff.add_argument(
        "--format",
        choices=("text", "json", "html", "junit"),
        default=None,
        help="text (default), JSON, one page of HTML, or JUnit XML for builds",
    )
    diff.add_argument("-o", "--out", metavar="FILE", help="write it there, not to stdout")
    _fail_on(diff)
    diff.set_defaults(run="replay.commands:diff")

    _scrub_options(
        commands.add_parser(
            "scrub",
            help="a capture that may be shared: the same shape without names, addresses and content",
            epilog="The clean capture has the same packets with the same sizes and times, and analyses to the same "
            "exchanges, errors and latencies. It appears only after it was read again and no text of 4 bytes or more "
            "of the original was found in it.",
        )
    )

    topic = commands.add_parser("help", help="the documentation: of filters, tables, views, findings, a command")
    topic.add_argument(
        "topic",
        nargs="?",
        metavar="TOPIC",
        help="filter, tables, views, findings, or the name of a table, a view or a command",
    )
    topic.set_defaults(run="analyzer.cli.parser:_help")
    completion = commands.add_parser("completion", help="a script that completes commands and options in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="as: source <(kwire completion bash)")
    completion.set_defaults(run="analyzer.cli.parser:_completion")
    return parser


def _findings_options(findings: argparse.ArgumentParser) -> None:
    findings.add_argument("sources", nargs="*", metavar="DATASET|CAPTURE")
    findings.add_argument("--fail-on", choices=("note", "warning", "error"), help="exit 1 where one is as bad as this")
    findings.add_argument("--only", action="append", default=[], metavar="CODES", help="these alone, by commas")
    findings.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="CODE[:WHO]",
        help="not these (of this client id, address, broker or connection); they are counted",
    )
    findings.add_argument("--explain", metavar="CODE", help="what a finding means, and why its thresholds are so")
    findings.add_argument("--thresholds", metavar="FILE", help="TOML: a table a code, as [reconnect-loop], opened = 60")
    findings.add_argument(
        "--threshold", action="append", default=[], metavar="CODE.NAME=VALUE", help="one threshold (repeatable)"
    )
    findings.add_argument(
        "--target",
        metavar="VERSION",
        help="what this Kafka release has removed is an error (what it is too old for: kwire report --target)",
    )
    findings.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a fact becomes a warning: acks=all, compression=required, tls=required (repeatable)",
    )
    findings.add_argument("--rotated", action="store_true", help="the captures are one, rotated into several files")
    findings.add_argument(
        "--port",
        type=_port,
        action="append",
        default=[],
        metavar="N",
        help="this server port of the captures is Kafka (repeatable)",
    )
    _keylog_option(findings)
    findings.add_argument("--threads", type=_threads, metavar="N", help=_THREADS)
    findings.add_argument("--window-bytes", type=_count, metavar="N", help=argparse.SUPPRESS)
    findings.add_argument("--frame-limit", type=_count, metavar="BYTES", help=argparse.SUPPRESS)
    findings.add_argument("--json", action="store_true", help="one JSON object a line: the columns of table findings")
    findings.set_defaults(run="analyzer.cli.finding_lines:findings")


def _scrub_options(scrub: argparse.ArgumentParser) -> None:
    scrub.add_argument("capture", metavar="CAPTURE")
    scrub.add_argument("-o", "--out", metavar="CLEAN.pcapng", required=True, help="file to write")
    scrub.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="A,B",
        help="what stays: names, addresses, ids, keys, values, headers (default: nothing)",
    )
    scrub.add_argument(
        "--key",
        metavar="FILE",
        help="what pseudonyms come from: the same key makes the same ones in other captures "
        "(default: a new one, kept nowhere)",
    )
    scrub.add_argument(
        "--port",
        type=_port,
        action="append",
        default=[],
        metavar="N",
        help="this server port is Kafka (repeatable); default: recognise it by content on any port",
    )
    scrub.add_argument("--dry-run", action="store_true", help="do all of it, and write nothing")
    scrub.add_argument("--json", action="store_true", help="what was done as JSON")
    scrub.set_defaults(run="analyzer.scrub.command:scrub")


def _view_options(view: argparse.ArgumentParser) -> None:
    view.add_argument("sources", nargs="+", metavar="CAPTURE|DATASET")
    _reading_options(view, filter=False)
    view.add_argument("--filter", metavar="EXPR", help="what the page shows first (kwire help filter)")
    view.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="where the page is served (default: a free port of 127.0.0.1, which nobody else reaches)",
    )
    view.add_argument(
        "--token-file",
        metavar="FILE",
        help="who has the secret in FILE may look, as often as they like; needed for other hosts",
    )
    view.add_argument("--no-open", dest="open", action="store_false", help="print the address, open no browser")
    view.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="keep nothing on disk: what is made for the page goes when it ends",
    )
    view.set_defaults(run="reports.view.command:view", judge=_judged)


def _judged(run: str) -> Any:
    """What `kwire diff` says of a RUN, for the page that shows it."""
    from replay.diff.by_exchange import differing

    return differing(run)


def _engine_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("auto", "embedded", "spark"),
        default="auto",
        help="what answers: Spark, or an engine inside this process (default: this one, where it is installed)",
    )


def _spark_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master: local[4], spark://HOST:7077, yarn ... (default: inside this process)",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark (repeatable), as spark.executor.memory=4g",
    )
    parser.add_argument("--verbose", action="store_true", help="show what Java and Spark warn of")


def _entry(options: argparse.Namespace) -> str:
    """MODULE:FUNCTION of the command."""
    if options.command == "analyze":
        if options.interface is None and not options.captures:
            fail("the following arguments are required: CAPTURE, or -i IFACE", "kwire analyze --help")
        if options.interface is not None and options.engine == "spark":
            fail("-i is captured and decoded in this process", "leave out --engine spark, or kwire record first")
        if options.interface is not None:
            return "analyzer.live.startup:analyze"
        for name in LIVE:
            if getattr(options, name) is not None and not (options.follow and name == "duration"):
                said = {"bpf": "-f", "duration": "--for"}.get(name, f"--{name.replace('_', '-')}")
                fail(f"{said} goes with -i", "it is about capturing; add -i IFACE")
        if options.follow:
            return "analyzer.live.startup:follow"
        if options.engine == "spark":
            return "reports.commands:analyze"
    run: str = options.run
    return run


def _fail_on(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--fail-on",
        choices=("any", "unexpected", "slower", "never"),
        default="any",
        help="what is exit code 1 (default: any)",
    )


def _rate(text: str) -> float:
    """`--rate`: a positive number; that it is too large is told by who knows the bound (`replay.request`)."""
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: not a positive number")


def _replay_options(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("captures", nargs="*", metavar="CAPTURE|DATASET")
    replay.add_argument("--to", metavar="HOST:PORT", help="a broker of the target")
    replay.add_argument("-o", "--out", metavar="RUN", help="folder to write; a RUN there is replaced")
    replay.add_argument("--wait", action="store_true", help="wait for another process that is writing the RUN")
    replay.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    replay.add_argument(
        "--assume", metavar="VERSION", help="with --dry-run and without --to: a target of this Kafka release, as 4.3"
    )
    replay.add_argument(
        "--speed",
        default="1",
        metavar="X|max|TIME:X,...",
        help="1: as captured (default); max: as answers allow; 0s:1,60s:5: changing with the capture",
    )
    replay.add_argument("--rate", type=_rate, metavar="N", help="N requests a second on average, spaced as captured")
    replay.add_argument("--times", type=_count, default=1, metavar="N", help="N copies of the capture, side by side")
    replay.add_argument(
        "--loop",
        action="store_true",
        help="again and again, until Ctrl-C or a round that is not as it must be; RUN is the last one",
    )
    replay.add_argument(
        "--clients",
        metavar="EXPR",
        help="only clients of which an exchange matches (kwire help filter), with all that they said",
    )
    replay.add_argument("--topics", metavar="A,B*", help="only clients that touch these topics (* and ? fit)")
    replay.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        help="only what was sent from then on: 90s, 5m after the start, or a time of RFC 3339",
    )
    replay.add_argument("--until", metavar="TIME", help="only what was sent before then")
    replay.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="API",
        help="also send this API, which changes the cluster (repeatable)",
    )
    replay.add_argument(
        "--map-topic",
        action="append",
        default=[],
        metavar="A=B",
        help="captured topic A (or an id that has no name there) is B on the target (repeatable)",
    )
    replay.add_argument("--prefix-topics", metavar="P", help="all topics have this before their names on the target")
    replay.add_argument("--map-group", action="append", default=[], metavar="A=B", help="group A is B (repeatable)")
    replay.add_argument(
        "--prefix-groups", metavar="P", help="groups, transactional ids and client ids have this before their names"
    )
    replay.add_argument(
        "--offsets",
        choices=("shift", "as-is", "position"),
        default="shift",
        help="how captured offsets become the target's (default: shift, as answers teach)",
    )
    replay.add_argument(
        "--timestamps",
        choices=("keep", "shift"),
        default="keep",
        help="shift: records are as old now as they were when captured",
    )
    replay.add_argument("--seed-topics", action="store_true", help="create the captured topics that the target lacks")
    replay.add_argument(
        "--seed-fetched",
        action="store_true",
        help="first write the records that the capture shows being read and not produced",
    )
    replay.add_argument("--partial", action="store_true", help="send what fits, where topics have fewer partitions")
    replay.add_argument("--yes", action="store_true", help="write to topics that are not empty")
    replay.add_argument(
        "--same-cluster",
        action="store_true",
        help="replay at the very cluster that was captured (without it: exit code 2)",
    )
    replay.add_argument(
        "--in-windows",
        action=argparse.BooleanOptionalAction,
        help="read, plan, send and record a capture in windows, in little memory (default: one of 256 MiB or more)",
    )
    replay.add_argument(
        "--no-survey",
        dest="survey",
        action="store_false",
        help="send as it reads, and look at nothing before (stdin always, as in tcpdump -U -w - | kwire replay -)",
    )
    replay.add_argument(
        "--seed-config",
        choices=("surviving", "as-captured"),
        default="surviving",
        help="surviving (default): what --seed-topics makes deletes nothing by age or size",
    )
    _fail_on(replay)
    replay.add_argument("--no-audit", action="store_true", help="do not read back what the target acknowledged")
    replay.add_argument("--audit", metavar="RUN", help="send nothing: audit this RUN again, at the target --to")
    replay.add_argument("--workers", type=_count, default=1, metavar="N", help="processes that send (default: 1)")
    replay.add_argument("--filter", metavar="EXPR", help="only exchanges that match (kwire help filter)")
    replay.add_argument("--rotated", action="store_true", help="the captures are one, rotated into several files")
    replay.add_argument(
        "--port",
        type=_port,
        action="append",
        default=[],
        metavar="N",
        help="this server port of the captures is Kafka (repeatable)",
    )
    _keylog_option(replay)
    replay.add_argument("--sasl", metavar="MECHANISM", help="log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    replay.add_argument(
        "--sasl-file",
        metavar="FILE",
        help="lines username=... and password=...; default: KWIRE_SASL_USERNAME, KWIRE_SASL_PASSWORD",
    )
    replay.add_argument(
        "--principals",
        metavar="FILE",
        help="log in as each captured user: TOML, a table per user (mechanism, username, password)",
    )
    replay.add_argument("--tls", action="store_true", help="the target's listener speaks TLS")
    replay.add_argument("--tls-ca", metavar="PEM", help="authorities to trust; default: the system's")
    replay.add_argument("--tls-cert", metavar="PEM", help="certificate of our own")
    replay.add_argument("--tls-key", metavar="PEM", help="its key, in the clear")
    replay.add_argument(
        "--follow-advertised",
        action="store_true",
        help="also dial brokers that the target names on other hosts than --to's, login included",
    )
    replay.add_argument(
        "--map-host",
        action="append",
        default=[],
        metavar="A=B",
        help="a broker named at host A (or A:PORT) is dialled at B (or B:PORT) (repeatable)",
    )
    replay.add_argument(
        "--plaintext-login",
        action="store_true",
        help="SASL PLAIN without TLS to another host: the password goes there in the clear",
    )
    replay.add_argument("--json", action="store_true", help="the summary (or the plan) as JSON")
    replay.set_defaults(run="replay.commands:replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code comes back (or SystemExit is raised with it)."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # options take a few milliseconds too, and so does what a command imports
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.write("kwire: interrupted\n")
        return EXIT_INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    _open_closed_streams()
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        if not unknown[0].startswith("-"):
            hint = f"captures stand side by side, options before or behind them; see kwire {options.command} --help"
            fail(f"{unknown[0]}: one argument too many here", hint)
        near = _near(unknown[0].split("=")[0], _option_names(options.command))
        there = f"kwire {options.command} --help lists what there is"
        fail(f"unknown: {' '.join(unknown)}", f"did you mean {near}? {there}" if near else there)
    if options.command == "replay":
        options.assumed = _release_of(options.assume, "--assume")
    if options.command == "findings":
        options.released = _release_of(options.target, "--target")
        if options.target is not None:
            from reports import releases

            options.target = releases.bare(options.target)  # so findings name it
    module_name, function_name = _entry(options).split(":")
    try:
        command: Any = getattr(__import__(module_name, fromlist=[function_name]), function_name)
        code: int = _interruptible(command, options)
        sys.stdout.flush()
        return code
    except KwireError as problem:
        # The place is for people; others get the one line and the hint that they rely on.
        fail(str(problem), problem.hint, problem.pointer if sys.stderr.isatty() else "")
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


def _interruptible(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
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
    from reports import releases

    try:
        return releases.find(version).apis
    except LookupError:
        fail(f"{option} {version}: no Kafka release that is known", releases.hint(version))


def _option_names(command: str) -> list[str]:
    """The options of a command."""
    from analyzer.cli import completion

    every = {one.name: one for one in completion.commands(_parser())}
    return [name for option in every[command].options for name in option.names]


def _help(options: argparse.Namespace) -> int:
    """`kwire help`."""
    parser = _parser()
    if options.topic is None:
        from analyzer.cli.manual import TOPICS

        parser.print_help()
        sys.stdout.write("\nkwire help COMMAND, TABLE or VIEW says more, and of topics there are\n")
        sys.stdout.writelines(f"  kwire help {name:<8} {about}\n" for name, about in TOPICS.items())
        return 0
    from analyzer.cli import completion, manual

    if options.topic not in manual.TOPICS and options.topic in {one.name for one in completion.commands(parser)}:
        parser.parse_args([options.topic, "--help"])  # prints it, and leaves
    from analyzer.cli import commands
    from reports import catalog

    text = manual.page(options.topic, catalog.views())
    with commands.paged() as out:
        out.write(text)
    return 0


def _completion(options: argparse.Namespace) -> int:
    """`kwire completion`."""
    from analyzer.cli import completion

    sys.stdout.write(completion.script(options.shell, _parser()))
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
    """What `start` begins. A process of its own can do without pandas, which PyArrow would load (a third of a second)
    only to see whether what it is given comes from there; as a library we leave that to whoever imports us."""
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
    from analyzer.cli import parser as cli

    cli.command()
