"""What `kwire replay` does, once the command line is read.

In: parsed options. Out: a summary (or the plan) on stdout, notes on stderr, exit code 0, 3 where the run is no valid
load test, 130 where it was interrupted. What the user can mend leaves as `cli.Failure`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from analyzer.cli import EXIT_INTERRUPTED, Failure
from replay import apis, link, login, outcome, plan, run, steps, workers
from replay.settings import Settings

EXIT_NOT_VALID: Final = 3


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What the layers below raise for bad input or a bad target, in the command line's form."""
    from analyzer.dataset import DatasetError
    from analyzer.filtering import FilterError
    from captures.files import CaptureError

    try:
        yield
    except (link.LinkError, run.NotEmpty, DatasetError, CaptureError, FilterError) as failure:
        raise Failure(str(failure), getattr(failure, "hint", "")) from None


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Failure(f"--to {text}: not HOST:PORT", "as in --to localhost:9092")
    return host.strip("[]"), int(port)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e6:
        raise Failure(f"--speed {text}: neither a positive number nor max", "1 is as captured, 20 is 20 times faster")
    return speed


def _allowed(names: list[str]) -> frozenset[int]:
    found = set()
    for name in names:
        key = apis.key(name)
        if key is None or apis.api(key).policy is not apis.Policy.ALLOW:
            may = ", ".join(sorted(apis.name(one) for one, api in apis.APIS.items() if api.policy is apis.Policy.ALLOW))
            raise Failure(f"--allow {name}: {'no such API' if key is None else 'not an API to allow'}", f"one of {may}")
        found.add(key)
    return frozenset(found)


def _mapped(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not equals or not old or not new:
            raise Failure(f"--map-topic {pair}: not A=B", "as in --map-topic orders=orders-copy")
        found[old] = new
    return found


def _access(options: argparse.Namespace) -> workers.Access:
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if getattr(options, name) and not options.tls:
            raise Failure(f"--{name.replace('_', '-')} goes with --tls", "add --tls")
    if options.sasl_file and not options.sasl:
        raise Failure("--sasl-file goes with --sasl", "as in --sasl SCRAM-SHA-512")
    credentials = login.credentials(options.sasl, options.sasl_file) if options.sasl else None
    return workers.Access(options.tls, options.tls_ca, options.tls_cert, options.tls_key, credentials)


def replay(options: argparse.Namespace) -> int:
    """`kwire replay`."""
    from analyzer.commands import _announce_compilation

    host, port = _address(options.to)
    if not options.dry_run and not options.out:
        raise Failure("replay needs -o RUN", "or --dry-run, which sends nothing")
    wanted = run.Options(
        host,
        port,
        _allowed(options.allow),
        Settings(speed=_speed(options.speed)),
        _mapped(options.map_topic),
        options.offsets,
        options.timestamps,
        options.seed_topics,
        options.yes,
    )
    _announce_compilation()
    notes: list[str] = []
    with _failures():
        wanted = dataclasses.replace(wanted, processes=options.workers, access=_access(options))
        dial = wanted.access.dial()
        found = run.read(
            options.captures, filter=options.filter, rotated=options.rotated, ports=options.port, notes=notes
        )
        if options.dry_run:
            return _dry_run(options, found, wanted, dial)
        result = asyncio.run(run.replay(found, wanted, dial, options.out, notes))
    for note in dict.fromkeys(notes):
        sys.stderr.write(f"note: {note}\n")
    if options.json:
        json.dump({**result.counts.as_dict(), "valid": result.valid, "seconds": round(result.seconds, 3)}, sys.stdout,
                  indent=1)  # fmt: skip
        sys.stdout.write("\n")
    else:
        sys.stdout.write(summary(result, options.out))
    if result.interrupted:
        sys.stderr.write(f"kwire: interrupted; what was done is in {options.out}\n")
        return EXIT_INTERRUPTED
    if result.counts.tool_errors:
        sys.stderr.write(
            f"kwire: not valid: {result.counts.tool_errors} steps failed in the replayer itself\n"
            f"hint: table outcomes of {options.out}, rule tool_error, says how; please report it\n"
        )
        return EXIT_NOT_VALID
    if result.failure is not None:
        lost = result.counts.actions["not_sent"]
        also = f"; {lost} request{'s' * (lost != 1)} not sent" if lost else ""
        sys.stderr.write(
            f"kwire: not valid: {result.failure}{also}\n"
            f"hint: {result.failure.hint}; what was done is in {options.out}\n"
        )
        return EXIT_NOT_VALID
    if not result.valid:
        lag = outcome.quantiles(result.counts.lags_us)["p99"]
        sys.stderr.write(
            f"kwire: not valid as a load test: the replayer's own lag is {lag / 1000:.0f} ms at the 99th percentile "
            f"(limit {wanted.lag_limit_us / 1000:.0f} ms)\nhint: a lower --speed, or --workers\n"
        )
        return EXIT_NOT_VALID
    return 0


def _dry_run(options: argparse.Namespace, found: Any, wanted: run.Options, dial: link.Dial) -> int:
    async def asked() -> run.Target:
        target = await run.ask_target(wanted, dial)
        target.channel.close()
        return target

    target = asyncio.run(asked())
    names = run.topic_names(wanted, found, target.topology)
    planned, facts = plan.make(found, target.offers, plan.PlanOptions(wanted.allow, names))
    rows = table(planned)
    if options.json:
        json.dump({"apis": rows, "missing": run.missing(wanted, facts, target.topology, planned)}, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    sys.stdout.write(plan_text(rows))
    for note in [] if wanted.seed_topics else run.missing(wanted, facts, target.topology, planned):
        sys.stderr.write(f"note: {note}\n")
    return 0


def table(planned: steps.Plan) -> list[dict[str, Any]]:
    """A row for each API and captured version: how many are sent, converted (to what), skipped (by which rule)."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}

    def row(captured: dict[str, Any]) -> dict[str, Any]:
        version = captured["api_version"] if captured["api_version"] is not None else -1
        key = captured["api"] or f"API {captured['api_key']}", version
        return rows.setdefault(
            key, {"api": key[0], "version": key[1], "sent": 0, "converted": 0, "to": {}, "rules": {}, "skipped": {}}
        )

    for step in planned.steps:
        one = row(step.request.row)
        one["converted" if step.rules else "sent"] += 1
        for rule in step.rules:
            one["rules"][rule] = one["rules"].get(rule, 0) + 1
        if step.version != step.request.version:
            one["to"][str(step.version)] = one["to"].get(str(step.version), 0) + 1
    for skip in planned.skips:
        one = row(skip.row)
        text = skip.rule + (f": {skip.reason}" if skip.reason else "")
        one["skipped"][text] = one["skipped"].get(text, 0) + 1
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
    """What a person reads after a run."""
    counts = result.counts
    lines = [
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
    for name, values in (("own lag", counts.lags_us), ("queue", counts.queues_us), ("latency", counts.latencies_us)):
        some = outcome.quantiles(values)
        if some:
            lines.append(f"{name:<10} " + ", ".join(f"{key} {value / 1000:.1f} ms" for key, value in some.items()))
    lines.append(f"RUN {out} ({result.seconds:.1f} s); kwire diff {out} says what differs")
    return "\n".join(lines) + "\n"


_ACTIONS: Final = ("sent", "converted", "skipped", "not_sent", "unknown")
_VERDICTS: Final = ("answered", "not_comparable", "unanswered", "skipped", "not_sent")
