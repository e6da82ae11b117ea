"""Run `kwire replay` and `kwire diff`, once the command line is read.

In: parsed options. Out: of `replay` a summary (or the plan) on stdout, notes on stderr, exit code 0, 1 where the
target lacks what it acknowledged or made the run slower (`--fail-on`), 2 where nothing was sent, 3 where the run is no
valid load test, 130 where it was interrupted; of `diff` what differs, grouped, on stdout (`--json`: as JSON), exit code
1 where something unexpected differs, 3 where nothing does and a run had ended before all was sent, else 0. What the
user can mend leaves as `kwire.captures.errors.KwireError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from kwire.analyzer.cli.color import painter, unpainted
from kwire.analyzer.cli.parser import EXIT_INTERRUPTED
from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.listing import listed
from kwire.analyzer.dataset import dataset
from kwire.analyzer.live.stop_conditions import ended_by
from kwire.analyzer.options.replay import ANY, NEVER, SLOWER, UNEXPECTED, DiffOptions, ReplayOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.replay import inputs, outcome, request, run
from kwire.replay.audit import auditor
from kwire.replay.diff import junit, page, pairs, text
from kwire.replay.diff.compare import compare, compare_beyond
from kwire.replay.diff.latencies import SLOWER as SLOWER_KIND
from kwire.replay.options import Options
from kwire.replay.plan import renaming, steps
from kwire.replay.remap.topology import Topology
from kwire.replay.run_plan import RunPlan, missing, pause_warnings, unmapped
from kwire.replay.send import link
from kwire.replay.send import target as targets
from kwire.replay.send.same_cluster import why_same
from kwire.replay.send.target import Target
from kwire.replay.source import MemorySource, PlannedWindow, Source

EXIT_NOT_VALID: Final = 3
EXIT_NOTHING_SENT: Final = 2
EXIT_DIFFERS: Final = 1
_Done = TypeVar("_Done")


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None] | None]:
    """A line on stderr that says how far a run is, where that is a terminal; it goes away at the end."""
    if not sys.stderr.isatty():
        yield None
        return

    def tell(line: str) -> None:
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r\x1b[K{line[: width - 1]}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        tell("")


def announce(tell: Callable[[str], None] | None, line: str) -> None:
    """A note that is told before anything is sent, above the line that says how far the run is."""
    if tell is not None:
        tell("")
    sys.stderr.write(f"note: {printable(line)}\n")
    sys.stderr.flush()


def until_ended(work: Coroutine[Any, Any, _Done]) -> _Done:
    """Run a coroutine to its end. The first Ctrl-C, SIGTERM or SIGHUP cancels it, and its end is awaited; if it only
    ends then, KeyboardInterrupt is raised. (asyncio itself hears Ctrl-C alone, and that not where a shell has it
    ignored.)"""

    async def awaited() -> _Done:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        is_cancelled = False

        def stop() -> None:
            nonlocal is_cancelled
            if not is_cancelled:
                is_cancelled = True
                loop.call_soon_threadsafe(task.cancel)

        with ended_by(stop):
            return await work

    try:
        return asyncio.run(awaited())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def replay(options: ReplayOptions) -> int:
    """`kwire replay`."""
    from kwire.analyzer.cli.commands import _progress, announce_compilation

    if options.audit_run is not None:
        return _audit(options, options.audit_run)
    if not options.captures:
        raise UsageError("replay needs a CAPTURE or DATASET", "or --audit RUN, which sends nothing")
    if options.assumed is not None and (options.to or not options.dry_run):
        raise UsageError("--assume goes with --dry-run, and without --to", "a target that is asked says what it offers")
    if not options.to and options.assumed is None:
        raise UsageError("replay needs --to HOST:PORT", "or --dry-run --assume VERSION, as in --assume 4.3")
    host, port = request.address(options.to) if options.to else ("", 0)
    if not options.dry_run and not options.out:
        raise UsageError("replay needs -o RUN", "or --dry-run, which sends nothing")
    wanted = request.resolve_command(options, host, port)
    announce_compilation()
    if options.out is not None and not options.dry_run:
        inputs.check_apart(options.captures, options.out)
        with dataset.Writer(options.out, wait=options.wait):
            pass  # a folder that cannot be written is told before captures are read; nothing is left of the try
    notes: list[str] = []
    dial = wanted.access.dial(host, port)
    with _progress() as report:
        how = ReadOptions(options.rotated, options.port, keylogs=options.keylog)
        source = inputs.open_source(
            options.captures, wanted, how=how, filter=options.filter, notes=notes, report=report
        )
    if options.dry_run:
        return _dry_run(options, source, wanted, dial)
    code, number = _round(options, source, wanted, dial, notes), 1
    while options.loop and not code:
        assert isinstance(source, MemorySource), "--loop goes with no other"
        number += 1
        sys.stderr.write(f"note: round {number} of --loop\n")
        # What the rounds before wrote is no reason to stop; groups and producers of its own meet none of theirs.
        own = renaming.Renaming(prefix=f"loop-{number}.")
        this = dataclasses.replace(wanted, yes=True, renaming=own if wanted.renaming else wanted.renaming)
        code = _round(options, MemorySource(renaming.renamed(source.sessions, own)), this, dial, [])
    return code


def _round(
    options: ReplayOptions,
    source: Source,
    wanted: Options,
    dial: link.Dial,
    notes: list[str],
) -> int:
    """Send the capture once, and tell how it went; the exit code."""
    out = options.out or ""
    with telling() as tell:
        tell_first = functools.partial(announce, tell)
        result = until_ended(run.replay(source, wanted, dial, out, notes, options.wait, tell, tell_first))
    for note in dict.fromkeys(notes):
        sys.stderr.write(f"note: {printable(note)}\n")
    if options.json:
        audit = result.audit.as_dict() if result.audit is not None else None
        json.dump(
            {
                **result.counts.as_dict(),
                "valid": result.valid,
                "seconds": round(result.seconds, 3),
                "slower": result.pace.text(),
                "audit": audit,
            },
            sys.stdout,
            indent=1,
        )
        sys.stdout.write("\n")
    else:
        sys.stdout.write(summary(result, out))
    return _verdict(result, wanted, out, options.fail_on)


def _verdict(result: run.Result, wanted: Options, out: str, fail_on: str = ANY) -> int:
    """The exit code, with a line why where it is not 0."""
    out = printable(out)
    if result.interrupted:
        sys.stderr.write(f"kwire: interrupted; what was done is in {out}\n")
        return EXIT_INTERRUPTED
    if result.counts.tool_errors:
        sys.stderr.write(
            f"kwire: not valid: {result.counts.tool_errors} steps failed in the replayer itself\n"
            f"hint: table outcomes of {out}, rule tool_error, says how; please report it\n"
        )
        return EXIT_NOT_VALID
    if result.failure is not None:
        lost = result.counts.actions["not_sent"]
        also = f"; {lost} request{'s' * (lost != 1)} not sent" if lost else ""
        sys.stderr.write(
            f"kwire: not valid: {printable(result.failure.message)}{also}\n"
            f"hint: {result.failure.hint}; what was done is in {out}\n"
        )
        return EXIT_NOT_VALID
    if not result.counts.actions["sent"] + result.counts.actions["converted"]:
        why = ", ".join(f"{rule} {count}" for rule, count in result.counts.skipped.most_common(3))
        sys.stderr.write(
            f"kwire: nothing was sent: {result.counts.total} captured exchanges, and each was skipped ({why})\n"
            f"hint: kwire replay --dry-run says of each API why; the rows are in {out}\n"
        )
        return EXIT_NOTHING_SENT
    if not result.valid:
        if result.pace.own:
            sys.stderr.write(
                f"kwire: not valid as a load test: {result.pace.text()}\nhint: a lower --speed, or --workers\n"
            )
            return EXIT_NOT_VALID
        lag = outcome.quantiles(result.counts.lags_us)["p99"]
        sys.stderr.write(
            f"kwire: not valid as a load test: the replayer's own lag is {lag / 1000:.0f} ms at the 99th percentile "
            f"(limit {wanted.lag_limit_us / 1000:.0f} ms)\nhint: a lower --speed, or --workers\n"
        )
        return EXIT_NOT_VALID
    return EXIT_DIFFERS if _fails(result, fail_on) else 0


def _fails(result: run.Result, fail_on: str) -> bool:
    """Is what the target did bad enough for exit code 1?"""
    lost = result.audit is not None and not result.audit.clean
    return (lost and fail_on in (ANY, UNEXPECTED)) or (result.pace.slower and fail_on in (ANY, SLOWER))


def _audit(options: ReplayOptions, audited: str) -> int:
    """`kwire replay --audit RUN`."""
    if options.captures or options.out or options.dry_run:
        raise UsageError(
            "--audit sends nothing, and takes no CAPTURE, no -o and no --dry-run",
            "kwire replay --audit RUN --to HOST:PORT",
        )
    if not options.to:
        raise UsageError("--audit needs --to HOST:PORT", "the target that the RUN was sent to")
    host, port = request.address(options.to)
    access = request.access(options)
    result = until_ended(auditor.audit(audited, host, port, access.dial(host, port), access.reach(host, port)))
    for reason in (*filter(None, (result.elsewhere,)), *result.unread):
        sys.stderr.write(f"note: {printable(reason)}\n")
    if options.json:
        json.dump(result.as_dict(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(f"audit: {printable(result.text())}\n")
    if not result.clean:
        return EXIT_DIFFERS
    if result.unread:
        sys.stderr.write(
            f"kwire: not valid: {len(result.unread)} of {len(result.rows)} partitions could not be read\n"
            "hint: what is in them nobody knows; the notes say why: ask again as a user who may read them\n"
        )
        return EXIT_NOT_VALID
    return 0


def _dry_run(options: ReplayOptions, source: Source, wanted: Options, dial: link.Dial) -> int:
    async def answered() -> tuple[RunPlan, Target, list[str]]:
        target = await targets.ask(wanted.host, wanted.port, dial, wanted.settings.answer_timeout)
        try:
            run_plan = source.first_pass(wanted, target.offers, target.topology)
            warnings = await run.lifetime_warnings(run_plan.options, source, run_plan, target)
            same = "" if wanted.same_cluster else why_same(run_plan.cluster, source.sessions, target.topology)
            refusal = [f"not without --same-cluster: the target is the captured cluster: {same}"] if same else []
            return run_plan, target, [*refusal, *warnings]
        finally:
            target.close()

    assumed = options.assumed is not None
    topology, warnings = Topology(), list[str]()
    if options.assumed is not None:
        offers = options.assumed
        run_plan = source.first_pass(wanted, offers, topology)
    else:
        run_plan, target, warnings = until_ended(answered())
        offers, topology = target.offers, target.topology
    wanted, planned, cluster = run_plan.options, run_plan.plan, run_plan.cluster
    allowed = wanted.access.reach(wanted.host, wanted.port)
    warnings += pause_warnings(wanted.settings, run_plan.pause, source.start_ns)
    warnings += unmapped(wanted, cluster, planned)
    if not assumed:
        warnings += allowed.unused(topology.nodes)
    rows = table(source.planned_windows(run_plan, offers, topology))
    # What an assumed target lacks nobody knows.
    lacks = [] if assumed else missing(wanted, cluster, topology, planned)
    if options.json:
        brokers = [] if assumed else allowed.listed(topology.nodes)
        summary_of_plan = {"apis": rows, "missing": lacks, "brokers": brokers, "warnings": warnings}
        json.dump(summary_of_plan, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    sys.stdout.write(plan_text(rows))
    if not assumed:
        announce(None, allowed.text(topology.nodes))
    for note in [*warnings, *([] if wanted.seed_topics else lacks)]:
        sys.stderr.write(f"note: {printable(note)}\n")
    return 0


def table(planned: Iterable[PlannedWindow]) -> list[dict[str, Any]]:
    """A row for each API and captured version: how many are sent, converted (to what), skipped (by which rule)."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}

    def row(captured: Mapping[str, Any]) -> dict[str, Any]:
        version = captured["api_version"] if captured["api_version"] is not None else -1
        key = captured["api"] or f"API {captured['api_key']}", version
        return rows.setdefault(
            key, {"api": key[0], "version": key[1], "sent": 0, "converted": 0, "to": {}, "rules": {}, "skipped": {}}
        )

    for planned_steps, skips in planned:
        for step in planned_steps:
            counts = row(step.request.row)
            counts["converted" if step.rules else "sent"] += 1
            for rule in step.rules:
                counts["rules"][rule] = counts["rules"].get(rule, 0) + 1
            if step.version != step.request.version:
                counts["to"][str(step.version)] = counts["to"].get(str(step.version), 0) + 1
        for skip in skips:
            counts = row(skip.row)
            text = skip.rule + (f": {skip.reason}" if skip.reason else "")
            counts["skipped"][text] = counts["skipped"].get(text, 0) + 1
    return [rows[key] for key in sorted(rows)]


def plan_text(rows: list[dict[str, Any]]) -> str:
    """The table for people."""
    lines = [f"{'api':<28} {'version':>7} {'sent':>7} {'converted':>9} {'skipped':>7}  why"]
    totals: Counter[str] = Counter()
    for row in rows:
        skipped = sum(row["skipped"].values())
        totals.update(sent=row["sent"], converted=row["converted"], skipped=skipped)
        why = [f"{rule} ({count})" if len(row["skipped"]) > 1 else rule for rule, count in row["skipped"].items()]
        if row["to"]:
            why.append("as " + ", ".join(f"v{version}" for version in row["to"]))
        why += [rule for rule in row["rules"] if rule != "version"]
        version = f"v{row['version']}" if row["version"] >= 0 else "?"
        numbers = f"{row['sent']:>7} {row['converted']:>9} {skipped:>7}"
        lines.append(f"{row['api']:<28} {version:>7} {numbers}  {'; '.join(why)}".rstrip())
    lines.append(f"{'total':<28} {'':>7} {totals['sent']:>7} {totals['converted']:>9} {totals['skipped']:>7}")
    used = sorted({rule.partition(":")[0] for row in rows for rule in (*row["skipped"], *row["rules"])})
    if used:
        lines.append("")
        lines += [f"{rule:<28} {steps.RULES[rule]}" for rule in used]
    return "\n".join(lines) + "\n"


def summary(result: run.Result, out: str) -> str:
    """The summary of a run, for people."""
    out = printable(out)
    counts = result.counts
    slower = result.pace.text()
    lines = [
        *([slower] if slower else []),
        *_apart(counts.apart),
        f"{counts.total} captured exchanges: "
        + ", ".join(f"{counts.actions[name]} {name.replace('_', ' ')}" for name in _ACTIONS if counts.actions[name]),
        f"{'of them':<10} "
        + ", ".join(f"{counts.verdicts[name]} {name.replace('_', ' ')}" for name in _VERDICTS if counts.verdicts[name]),
    ]
    for done, rules in (("skipped", counts.skipped), ("not sent", counts.not_sent), ("applied", counts.retries)):
        for rule, count in rules.most_common():
            lines.append(f"  {done:<8} {count:>6}  {rule}: {steps.RULES.get(rule, '')}")
    if counts.duplicates:
        lines.append(f"  {counts.duplicates} batches were taken for duplicates and not written")
    for name, values in (
        ("own lag", counts.lags_us),
        ("loop lag", counts.loop_lags_us),
        ("queue", counts.queues_us),
        ("latency", counts.latencies_us),
    ):
        durations = outcome.quantiles(values)
        if durations:
            lines.append(f"{name:<10} " + ", ".join(f"{key} {value / 1000:.1f} ms" for key, value in durations.items()))
    twice = counts.retries["perhaps_twice"]
    if twice:
        requests = f"{twice:,} request{'s' * (twice != 1)} to produce"
        lines.append(f"{'again':<10} {requests} without a producer id: the target may have these records twice")
    if result.audit is not None:
        lines.append(f"{'audit':<10} {printable(result.audit.text())}")
        lines += [f"  {printable(reason)}" for reason in result.audit.unread[:_UNREAD]]
    elif result.not_audited:
        lines.append(f"{'audit':<10} none: {printable(result.not_audited)}")
    lines.append(f"RUN {out} ({result.seconds:.1f} s); kwire diff {out} says what differs")
    return "\n".join(lines) + "\n"


def _apart(groups: Counter[str]) -> list[str]:
    """A line that says which groups fell apart, and why."""
    named = [printable(group) for group, count in groups.most_common() if count]
    if not named:
        return []
    return [
        f"groups fell apart: {listed(named[:_GROUPS], len(named))}: the target lost their members again and again "
        "(a lower --speed, or a target that answers in time, keeps them together)"
    ]


_GROUPS: Final = 5
_UNREAD: Final = 5
"""Partitions that an audit could not read, and that are listed with the reason."""
_ACTIONS: Final = ("sent", "converted", "skipped", "not_sent", "unknown")
_VERDICTS: Final = ("answered", "not_comparable", "unanswered", "skipped", "not_sent")


def diff(options: DiffOptions) -> int:
    """`kwire diff`."""
    form = options.format or ("json" if options.json else "text")
    if options.json and form != "json":
        raise UsageError(f"--json and --format {form} say both what it is written as", "one of them")
    if form == "html" and not options.out and sys.stdout.isatty():
        raise UsageError("a page is nothing for a terminal", "-o diff.html writes it to a file")
    if options.noise is not None and options.run_b is None:
        raise UsageError("--noise goes with RUN_A and RUN_B", "kwire diff OLD NEW --noise OLD_AGAIN")
    if options.run_b is None:
        pairing, sides = pairs.from_run(options.run_a), ("captured", "replayed")
    else:
        pairing, sides = pairs.from_runs(options.run_a, options.run_b), ("A", "B")
    if options.noise is None:
        comparison = compare(pairing, share=options.slower - 1)
    else:
        noise_pairs = pairs.from_runs(options.run_a, options.noise)
        comparison = compare_beyond(pairing, noise_pairs, share=options.slower - 1)
    written = {
        "text": lambda: text.as_text(comparison, sides, unpainted if options.out else painter(options.color)) + "\n",
        "json": lambda: json.dumps(text.as_json(comparison, sides), indent=2) + "\n",
        "html": lambda: page.as_html(comparison, sides, pairing),
        "junit": lambda: junit.as_junit(comparison),
    }[form]()
    if options.out:
        output_file.write_text(options.out, written)
    else:
        sys.stdout.write(written)
    kinds = {difference.kind == SLOWER_KIND for difference in comparison.differences if difference.unexpected}
    counted = {ANY: kinds, UNEXPECTED: kinds - {True}, SLOWER: kinds - {False}}.get(options.fail_on)
    if counted:
        return EXIT_DIFFERS
    return EXIT_NOT_VALID if comparison.ended and options.fail_on != NEVER else 0
