"""`kwire findings`: what is wrong in a capture or dataset, why, and what to do.

In: parsed options. Out: findings on stdout, worst first, as text for people, one JSON object a line, or as builds
take them; the exit code 1
where one is as bad as `--fail-on` says. Rules: what `kwire analyze` stored is the answer where nothing else was asked
for; rules that other thresholds, a target or a policy concern are asked again, of the dataset's tables; a capture is
analysed first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kwire.analyzer.cli import finding_formats
from kwire.analyzer.cli.color import Paint, painter
from kwire.analyzer.cli.commands import dataset_of, folded, named_dataset, reading_width
from kwire.analyzer.cli.pager import paged
from kwire.analyzer.cli.text import json_text
from kwire.analyzer.common import address_names, workflow
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.times import rfc3339
from kwire.analyzer.dataset.dataset import StoredDataset, is_dataset, open_dataset
from kwire.analyzer.findings import evaluate, manual
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.query import LOOK_FOR, SEVERITIES, Query
from kwire.analyzer.findings.rules import POLICIES, RULES
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame
from kwire.analyzer.options.commands import loaded
from kwire.analyzer.payloads.options import check_captures

if TYPE_CHECKING:
    from kwire.analyzer.options.questions import FindingsOptions

EXIT_BAD = 1


def findings(options: FindingsOptions) -> int:
    """`kwire findings`."""
    if options.explain is not None:
        with paged() as out:
            out.write(manual.explained(RULES[_code(options.explain, "--explain")]))
        return 0
    if not options.sources:
        raise UsageError("findings of what?", "kwire findings CAPTURE, or DATASET; --explain CODE needs neither")
    form = options.format or ("json" if options.json else "text")
    if options.json and form != "json":
        raise UsageError(f"--json and --format {form} say both what they are written as", "one of them")
    if options.summary is not None:
        workflow.check_summary(options.summary)
    notes: list[str] = []
    datasets: list[StoredDataset] = []
    with contextlib.ExitStack() as stack:
        rows, shown = selected(_listed(_datasets(options, stack), datasets), options, notes)
        happened = _happened(datasets, shown, options) if form == "text" else []
    ignored = len(rows) - len(shown)
    with paged() if form in ("text", "json") else contextlib.nullcontext(sys.stdout) as out:
        if form == "json":
            out.writelines(json_text(_plain(row)) + "\n" for row in shown)
        elif form == "text":
            width = reading_width()
            paint = painter(options.color)
            for line in (*finding_formats.as_text(shown, ignored), *happened):
                out.write(_painted("\n".join(folded(line, "    ", width)), paint) + "\n")
        elif form == "junit":
            out.write(finding_formats.as_junit(rows, shown, _codes(options.only), options.fail_on, notes))
        else:
            out.writelines(line + "\n" for line in finding_formats.as_github(shown, ignored))
    if options.summary is not None:
        workflow.write_summary(options.summary, finding_formats.as_markdown(shown, ignored, notes))
    if form == "json" and ignored:
        notes.append(f"{ignored} ignored (--ignore)")
    for note in notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    bad = options.fail_on is not None and any(
        SEVERITIES.index(row["severity"]) >= SEVERITIES.index(options.fail_on) for row in shown
    )
    return EXIT_BAD if bad else 0


HAPPENED = 3
"""Events of the story that findings without trouble end with."""

HAPPENED_ROWS = 1_000_000
"""Exchanges of the datasets up to which the story takes no longer than the findings."""


def _listed(datasets: Iterable[StoredDataset], into: list[StoredDataset]) -> Iterator[StoredDataset]:
    for dataset in datasets:
        into.append(dataset)
        yield dataset


def _happened(datasets: list[StoredDataset], shown: list[dict[str, Any]], options: FindingsOptions) -> list[str]:
    """Lines about what happened, where all findings were asked for and there is no trouble."""
    trouble = any(row["severity"] != "note" for row in shown)
    if options.only or options.ignore or trouble:
        return []
    if sum(dataset.row_counts().get("exchanges", 0) for dataset in datasets) > HAPPENED_ROWS:
        return ["kwire story tells what happened."]
    highlights = loaded("kwire.analyzer.story.command:highlights")  # stands above this package
    lines = [line for dataset in datasets for line in highlights(dataset, HAPPENED)]
    return ["", "what happened (kwire story tells more):", *(f"  {line}" for line in lines)] if lines else []


def _painted(line: str, paint: Paint) -> str:
    """The line with its severity in colour, if it begins with one."""
    word, space, rest = line.partition(" ")
    return paint(word, word.lower()) + space + rest if word.isupper() and rest else line


def selected(
    datasets: Iterable[StoredDataset], options: FindingsOptions, notes: list[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The findings that the options name, worst first, and of these the ones that are not ignored. Raises UsageError,
    before a dataset is taken, where the options are wrong."""
    query, only, ignored = _query(options), _codes(options.only), [_ignored(text) for text in options.ignore]
    rows: list[dict[str, Any]] = []
    for dataset in datasets:
        is_named = any(os.path.abspath(source) == os.path.abspath(dataset.path) for source in options.sources)
        own_notes: list[str] = []
        rows += _rows(dataset, query, own_notes)
        notes += [f"{dataset.path}: {note}" if is_named else note for note in own_notes]
    named = (named_ends(row) for row in rows if not only or row["code"] in only)
    rows = _first_of_each_first(sorted(named, key=_place))
    return rows, [row for row in rows if not any(_matches(row, *ignore) for ignore in ignored)]


def named_ends(row: dict[str, Any]) -> dict[str, Any]:
    """A finding with the names of the addresses that it names (`--names`): in its sentences, and in `who`."""
    if not address_names.known_names():
        return row
    who = row["who"]
    names = {
        "client_name": address_names.name_of(who.get("client_ip")),
        "broker_name": address_names.name_of(address_names.without_port(who.get("broker") or "")),
    }
    return {
        **row,
        "who": {**who, **{key: name for key, name in names.items() if name is not None}},
        **{key: row[key] and address_names.in_text(row[key]) for key in ("text", "cause")},
    }


# ------------------------------------------------------------------------------------------------- what was asked


def _code(text: str, option: str) -> str:
    if text in RULES:
        return text
    near = difflib.get_close_matches(text, RULES, 1)
    there = "kwire help findings lists them"
    raise UsageError(
        f"{option}: no finding has the code {text!r}", f"did you mean {near[0]}? {there}" if near else there
    )


def _codes(texts: Iterable[str]) -> list[str]:
    return [_code(part.strip(), "--only") for text in texts if text for part in text.split(",")]


def _ignored(text: str) -> tuple[str, str | None]:
    code, colon, who = text.partition(":")
    return _code(code, "--ignore"), who if colon else None


def _matches(row: dict[str, Any], code: str, who: str | None) -> bool:
    return row["code"] == code and (who is None or who in row["who"].values())


def _query(options: FindingsOptions) -> Query:
    limits: dict[tuple[str, str], float] = {}
    if options.thresholds is not None:
        limits.update(_of_file(options.thresholds))
    for text in options.threshold:
        name, equals, value = text.partition("=")
        code, dot, limit = name.rpartition(".")
        if not equals or not dot:
            raise UsageError(f"--threshold {text}: not CODE.NAME=VALUE", "as --threshold tcp-retransmission.share=0.02")
        limits[_limit(code, limit, "--threshold")] = _number(value, f"--threshold {name}")
    policies = dict(_policy(text) for text in options.policy)
    for text in options.look_for:
        if text not in LOOK_FOR:
            raise UsageError(f"--look-for {text}: nothing that kwire looks for", f"there is {', '.join(LOOK_FOR)}")
    return Query(limits, options.released, options.target, policies, frozenset(options.look_for))


def _of_file(path: str) -> Iterator[tuple[tuple[str, str], float]]:
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "give a TOML file to --thresholds") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise UsageError(f"{path}: not TOML: {failure}", "a table a code: [tcp-retransmission], share = 0.02") from None
    for code, values in tables.items():
        if not isinstance(values, dict):
            raise UsageError(f"{path}: {code} stands in no table", "a table a code: [tcp-retransmission], share = 0.02")
        for name, value in values.items():
            yield _limit(code, name, path), _number(value, f"{path}: {code}.{name}")


def _limit(code: str, name: str, where: str) -> tuple[str, str]:
    rule = RULES[_code(code, where)]
    if name not in rule.limits:
        there = ", ".join(rule.limits) or "none"
        raise UsageError(f"{where}: {code} has no threshold {name!r}", f"it has {there}")
    return code, name


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number < 1e15:
        raise UsageError(f"{where}: {value!r} is not a number from 0 on", "thresholds are numbers")
    return number


def _policy(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if POLICIES.get(name) != value:
        there = ", ".join(f"{name}={what}" for name, what in POLICIES.items())
        raise UsageError(f"--policy {text}: no such policy", f"there are {there}")
    return name, value


# ------------------------------------------------------------------------------------------------------ what there is


def _datasets(options: FindingsOptions, stack: contextlib.ExitStack) -> Iterator[StoredDataset]:
    """The datasets to look at; captures are analysed into one that goes when `stack` does."""
    captures = [source for source in options.sources if not is_dataset(source)]
    opened = [named_dataset(source) for source in options.sources if source not in captures]
    if not captures and (options.port or options.rotated):
        raise UsageError("--port and --rotated go with a CAPTURE", "kwire analyze makes a DATASET")
    if not captures and options.keylog:
        raise UsageError("--keylog goes with a CAPTURE", "kwire analyze --keylog makes a DATASET")
    if not captures:
        check_captures(options)
    for dataset in opened if options.look_for else ():
        if not any("schema_sources" in entry for entry in dataset.captures):
            raise UsageError(
                f"{dataset.path}: keys and values were not decoded, so there is nothing to look in",
                "kwire analyze CAPTURE --payloads (or --schemas, --registry), or kwire findings CAPTURE --look-for pii",
            )
    yield from opened
    if captures:
        import tempfile

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kwire-findings-"))
        path = os.path.join(folder, "dataset")
        if options.look_for:  # also in what no schema is needed for
            options = dataclasses.replace(options, payloads=True)
        dataset_of(captures, path, options)
        yield open_dataset(path)


def _rows(dataset: StoredDataset, query: Query, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Its findings: those stored; worked out, of rules that are asked otherwise, or where none are stored."""
    unmeant = [entry["name"] for entry in dataset.captures if not entry.get("meaning")]
    if unmeant and len(unmeant) == len(dataset.captures):
        which = "" if len(unmeant) == 1 else f" ({', '.join(unmeant[:3])}{' ...' if len(unmeant) > 3 else ''})"
        notes.append(f"what the traffic means was not analysed{which}; only rules over exchanges and connections apply")
    elif unmeant:
        notes.append(f"what the traffic of {', '.join(unmeant[:3])} means was not analysed")
    source = RowGroups.of(dataset)
    again = evaluate.concerned(query)
    for entry in dataset.captures:
        name, only = entry["name"], again if entry.get("meaning") else None
        capture = CaptureFrame(source, entry, query)
        if not evaluate.has_traffic(capture):
            notes.append(f"no Kafka traffic in {name}; no rule applies")
            continue
        if only is not None:
            stored = StoredFrame(source, name, "findings").every()
            yield from (_named(row) for row in stored if row["code"] not in only)
        if only is None or only:
            findings = evaluate.of_point(capture, only)
            yield from (_named(evaluate.row(name, finding)) for finding in findings)


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "who": dict(row["who"]), "what": dict(row["what"])}


def _first_of_each_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each severity the first finding of each code, then the others: ten of one kind hide no other cause."""
    seen: set[tuple[str, str]] = set()
    again = []
    for row in rows:
        again.append((row["severity"], row["code"]) in seen)
        seen.add((row["severity"], row["code"]))
    order = sorted(range(len(rows)), key=lambda number: (-SEVERITIES.index(rows[number]["severity"]), again[number]))
    return [rows[number] for number in order]


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return -SEVERITIES.index(row["severity"]), row["since"] if row["since"] is not None else -1, row["code"]


# -------------------------------------------------------------------------------------------------------- what is said


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: None if row[name] is None else rfc3339(row[name]) for name in ("since", "until")}
    return {**row, **times}
