"""Run `kwire rehearse`, once the command line is read.

In: parsed options. Out: in a folder three RUNs, `index.html`, `verdict.json` and `junit.xml`; the verdict on stdout,
notes on stderr, and one exit code: 0, or that of the most important reason (`verdict.REASONS`). Rules: each run has a
prefix of its own before the names of topics, groups, transactional ids and clients, so nothing on a target is touched
that a rehearsal did not make; one run after the other, so that no run is load for another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kwire.analyzer.cli.color import painter
from kwire.analyzer.common import output_file, workflow
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.listing import listed
from kwire.analyzer.options.rehearse import RehearseOptions
from kwire.analyzer.options.replay import SelectOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.errors import KwireError
from kwire.replay import inputs, outcome, request, run
from kwire.replay.commands import announce, telling, until_ended
from kwire.replay.diff import pairs, text
from kwire.replay.diff.compare import Comparison, compare, compare_beyond
from kwire.replay.diff.differences import grouped
from kwire.replay.options import Options
from kwire.replay.rehearse import expectations, page, verdict
from kwire.replay.rehearse.cleaning import clean
from kwire.replay.rehearse.started import StartedTarget
from kwire.replay.run import Result
from kwire.replay.send import link
from kwire.replay.send import target as targets
from kwire.replay.send.same_cluster import why_same
from kwire.replay.source import Source

OLD, OLD_AGAIN, NEW = "old-1", "old-2", "new"
"""The runs, in order, and the names of their folders."""
_FILES: Final = {"index.html", "verdict.json", "junit.xml", "old.log", "new.log", OLD, OLD_AGAIN, NEW}
_NAMED: Final = 5


class UsedTargetError(KwireError):
    """A target is one that others may use."""


def rehearse(options: RehearseOptions) -> int:
    """`kwire rehearse`."""
    return _Rehearsal(options).run()


class _Rehearsal:
    """One rehearsal. `ran`: runs so far."""

    def __init__(self, options: RehearseOptions) -> None:
        from kwire.analyzer.cli.commands import announce_compilation

        if "-" in options.captures:
            raise UsageError("rehearse reads a capture three times, which stdin cannot be", "keep it: tee FILE")
        self.options = options
        if options.summary is not None:
            workflow.check_summary(options.summary)
        self.addresses = {
            "old": request.address(options.old, "--old"),
            "new": request.address(options.new, "--new"),
        }
        self.expectations = (
            expectations.read(options.expect) if options.expect is not None else expectations.Expectations()
        )
        self.folder = Path(options.out)
        self.prefix = f"rehearse-{secrets.token_hex(4)}-"
        self.ran: list[verdict.RanOnce] = []
        self.interrupted = False
        self.access = request.access(options)
        self.wanted = self._wanted(OLD)  # options that cannot be used are told before anything is done
        announce_compilation()
        self._prepare_folder()

    def run(self) -> int:
        """All of it; the exit code."""
        comparison, pairing, like_capture = None, None, ""
        try:
            self._check_before()
            with self._target("old"):
                complete = self._send(OLD) and self._send(OLD_AGAIN)
            if complete:
                with self._target("new"):
                    self._send(NEW)
            if complete and not self.interrupted:
                comparison, pairing, like_capture = self._compare()
        except KeyboardInterrupt:
            self.interrupted = True
        if self.interrupted:
            sys.stderr.write(f"kwire: interrupted; what was done is in {printable(str(self.folder))}\n")
        known = verdict.Known(self.ran, comparison, self.expectations, like_capture, self.interrupted)
        result = verdict.judge(known, self.options.fail_on)
        self._write(result, pairing)
        return result.exit_code

    # --- before ---

    def _prepare_folder(self) -> None:
        """Make the folder. Raises UsageError where it has what no rehearsal wrote."""
        inputs.check_apart(self.options.captures, self.options.out)
        out = printable(self.options.out)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = sorted({entry.name for entry in self.folder.iterdir()} - _FILES)
        except OSError as failure:
            raise UsageError(f"-o {out}: {failure.strerror}", "name a folder that can be written") from None
        if others:
            shown = listed(others[:_NAMED], len(others))
            raise UsageError(f"-o {out}: has files that no rehearsal wrote: {shown}", "a folder of its own")
        for name in ("index.html", "verdict.json", "junit.xml"):
            (self.folder / name).unlink(missing_ok=True)  # a verdict of before is none of what comes now

    def _wanted(self, name: str) -> Options:
        """Options of a run: everything is prefixed, and what is missing is made."""
        options = self.options
        shared = {each.name: getattr(options, each.name) for each in dataclasses.fields(SelectOptions)}
        prefix = f"{self.prefix}{name}."
        replay_request = request.ReplayRequest(
            **shared,
            prefix_topics=prefix,
            prefix_groups=prefix,
            seed_topics=True,
            seed_fetched=not inputs.is_large(options.captures, ReadOptions(options.rotated), options.filter),
            access=self.access,
        )
        return request.resolve(*self.addresses[_side(name)], replay_request)

    def _source(self, wanted: Options, notes: list[str]) -> Source:
        options = self.options
        how = ReadOptions(options.rotated, options.port, keylogs=options.keylog)
        return inputs.open_source(options.captures, wanted, how=how, filter=options.filter, notes=notes)

    def _check_before(self) -> None:
        """Check the targets that are there already, before anything is sent."""
        source = self._source(self.wanted, [])
        for side, command in (("old", self.options.start_old), ("new", self.options.start_new)):
            if command is None:
                until_ended(self._check(side, source))

    async def _check(self, side: str, source: Source) -> None:
        """Raise UsedTargetError if a target is the captured cluster, or may be one that others use; LinkError."""
        host, port = self.addresses[side]
        target = await targets.ask(host, port, self.access.dial(host, port), self.wanted.settings.answer_timeout)
        try:
            # Without the prefix: what others call as the capture does is looked for.
            plain = dataclasses.replace(self.wanted, prefix_topics="")
            known = source.first_pass(plain, target.offers, target.topology)
            same = why_same(known.cluster, source.sessions, target.topology)
            if same:
                raise UsedTargetError(
                    f"--{side} {host}:{port} is the cluster that was captured: {same}", "rehearse at another one"
                )
            captured = {name for name, topic in known.cluster.topics.items() if not topic.internal}
            there = sorted((captured | known.plan.topics) & target.topology.partitions.keys())
            there = [name for name in there if not name.startswith("__")]
            if there and not self.options.beside_production:
                raise UsedTargetError(
                    f"--{side} {host}:{port} has the captured topic{'s' * (len(there) > 1)} "
                    f"{listed(there[:_NAMED], len(there))}: others may use it",
                    "--beside-production rehearses there all the same, in topics and groups of its own",
                )
        finally:
            target.close()

    # --- runs ---

    @contextlib.contextmanager
    def _target(self, side: str) -> Iterator[None]:
        """Start a target, if a command does that, and end it; delete what runs made there, if that is wanted."""
        command = {"old": self.options.start_old, "new": self.options.start_new}[side]
        host, port = self.addresses[side]
        started = None
        try:
            if command is not None:
                started = StartedTarget(f"--start-{side}", command, self.folder / f"{side}.log")
                self._note(side, f"starting: {command}")
                dial = self.access.dial(host, port)
                until_ended(started.start(host, port, dial, self.options.start_within))
                until_ended(self._check(side, self._source(self.wanted, [])))
            try:
                yield
            finally:
                if self.options.clean:
                    self._clean(side)
        finally:
            if started is not None:
                problem = started.end()
                if problem:
                    self._note(side, problem)

    def _clean(self, side: str) -> None:
        host, port = self.addresses[side]

        async def cleaned() -> list[str]:
            target = await targets.ask(host, port, self.access.dial(host, port), self.wanted.settings.answer_timeout)
            try:
                return await clean(target, self.prefix)
            finally:
                target.close()

        try:
            notes = until_ended(cleaned())
        except link.LinkError as failure:
            notes = [f"--clean: {failure.message}; what begins with {self.prefix} is still there"]
        for note in notes:
            self._note(side, note)

    def _send(self, name: str) -> bool:
        """Replay once; return whether all was sent. Raises KwireError, also if nothing was sent."""
        wanted = self._wanted(name)
        host, port = self.addresses[_side(name)]
        notes: list[str] = []
        source = self._source(wanted, notes)
        out = self.folder / name
        self._note(name, f"replaying at {host}:{port}")
        with telling() as tell:
            tell_first = functools.partial(announce, tell)
            result = until_ended(
                run.replay(source, wanted, self.access.dial(host, port), out, notes, tell=tell, announce=tell_first)
            )
        for note in dict.fromkeys(notes):
            self._note(name, note)
        counts = result.counts
        if not result.interrupted and not counts.actions["sent"] + counts.actions["converted"]:
            raise UsageError(
                f"{name}: nothing was sent: each of {counts.total} captured exchanges was skipped",
                "kwire replay --dry-run says of each API why",
            )
        self.ran.append(_ran(name, f"{host}:{port}", wanted, result))
        sys.stderr.write(f"note: {printable(self.ran[-1].text())}\n")
        self.interrupted = result.interrupted
        return not self.ran[-1].ended and not result.interrupted

    def _note(self, about: str, line: str) -> None:
        sys.stderr.write(f"note: {about}: {printable(line)}\n")
        sys.stderr.flush()

    # --- after ---

    def _compare(self) -> tuple[Comparison, pairs.Pairs, str]:
        """New against old, with the noise of old against old; and old against the capture, in a line."""
        old, again, new = (self.folder / name for name in (OLD, OLD_AGAIN, NEW))
        pairing = pairs.from_runs(old, new)
        share = self.options.slower - 1
        comparison = compare_beyond(pairing, pairs.from_runs(old, again), self.expectations.which, share)
        captured = compare(pairs.from_run(old))
        unexpected = [group for group in grouped(captured.differences) if group.unexpected]
        return comparison, pairing, text.verdict(captured, unexpected)

    def _write(self, result: verdict.Verdict, pairing: pairs.Pairs | None) -> None:
        as_json = json.dumps({"rehearsal": self._about(), **result.as_dict()}, indent=2) + "\n"
        output_file.write_text(str(self.folder / "verdict.json"), as_json)
        output_file.write_text(str(self.folder / "index.html"), page.as_html(result, pairing))
        output_file.write_text(str(self.folder / "junit.xml"), page.as_junit(result))
        if self.options.summary is not None:
            workflow.write_summary(self.options.summary, result.as_markdown())
        sys.stdout.write(as_json if self.options.json else result.as_text(painter(self.options.color)))
        if not self.options.json:
            sys.stdout.write(f"{printable(str(self.folder))}: index.html, verdict.json, junit.xml, and the RUNs\n")

    def _about(self) -> dict[str, object]:
        options = self.options
        return {"captures": options.captures, "old": options.old, "new": options.new, "prefix": self.prefix}


def _side(name: str) -> str:
    return name.partition("-")[0]


def _ran(name: str, target: str, wanted: Options, result: Result) -> verdict.RanOnce:
    """Facts of a run that the verdict needs."""
    counts, audit = result.counts, result.audit
    ended = result.failure.message if result.failure is not None else ""
    if counts.tool_errors:
        ended = f"{counts.tool_errors} steps failed in the replayer itself"
    late = ""
    if not result.valid and not ended and not result.interrupted:
        lag = outcome.quantiles(counts.lags_us).get("p99", 0)
        late = result.pace.text() if result.pace.own else f"the replayer's own lag was {lag / 1000:.0f} ms (p99)"
    return verdict.RanOnce(
        name,
        target,
        name,
        wanted.prefix_topics,
        result.seconds,
        counts.as_dict(),
        audit.text() if audit is not None else f"none: {result.not_audited}",
        ended,
        audit is not None and not audit.clean,
        result.not_audited if audit is None else "; ".join(audit.unread[:_NAMED]),
        late,
    )
