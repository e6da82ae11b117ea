"""Broken input at every door: what `show` prints in all its forms, log files, `sql` and `report`, a replay's plan, and
replays at brokers whose answers are broken.

In: a door, a number, a seed. Out: an `Outcome`, or `Broken`, which says what did not hold: a door ends with one of its
exit codes, an error is one line and a hint, nothing that is printed can steer a terminal, JSON is JSON, and a replay
accounts for every captured exchange and never fails by itself. Commands run in this process, as `cli.main` runs them.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from kwire.analyzer.cli import parser
from kwire.captures.errors import KwireError
from kwire.replay import inputs, run
from kwire.replay.options import Options
from kwire.replay.plan.sessions import Session
from kwire.replay.remap.retry import Limits
from kwire.replay.send.settings import Settings
from kwire.replay.source import MemorySource
from tests.fuzz import mutations, rogue
from tests.fuzz.checking import Broken, Outcome, must
from tests.replay.conversation import play
from tests.segments import make
from tests.shared import SAMPLES, capture_files

SHOWN: Final = (
    (),
    ("--tree",),
    ("--tree", "--hex"),
    ("--json",),
    ("--frames",),
    ("--records",),
    ("--records", "--json"),
    ("--fields", "time,connection,api,client_id,topic,error,reason"),
    ("--count-by", "api,error"),
    ("--wide",),
)
LOGS: Final = ((), ("--tree",), ("--tree", "--hex"), ("--json",), ("--records",))
QUERIES: Final = (
    "SELECT * FROM exchanges",
    "SELECT * FROM partitions",
    "SELECT * FROM batches",
    "SELECT * FROM connections",
    "SELECT * FROM latency_by_api",
    "SELECT * FROM producers",
    "SELECT * FROM logins",
    "SELECT * FROM lag_trend",
    "SELECT api, count(*) FROM exchanges GROUP BY api",
    "DESCRIBE exchanges",
)
SMALL: Final = 50_000
"""Bytes of a capture that is broken here: a form prints some ten times as much."""
TOGETHER: Final = 5
"""Captures asked together: starting an engine takes longer than one of them."""
REPLAYED: Final = ("codecs-franzgo-4.3", "txn-librdkafka-4.3", "group-kip848-librdkafka-4.3", "old-java-0.8.2")


def command(*arguments: object, data: bool = False) -> tuple[int, str]:
    """Run a command here: (exit code, stdout). Raises Broken where it did not end as commands do. `data`: what is
    printed is for a program, which gets strings as they are."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = parser.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else -1
    command = f"kwire {' '.join(map(str, arguments[:1] + arguments[2:]))}"
    must(code in (0, 1, 2), f"{command}: exit code {code}: {err.getvalue()[-300:]}")
    lines = err.getvalue().splitlines()
    if code == 2:
        must(out.getvalue() == "" or "kwire: nothing was sent" in err.getvalue(), f"{command}: exit 2 after an answer")
        must(len(lines) >= 2 and lines[-1].startswith("hint: "), f"{command}: no hint: {lines[-3:]}")
        must(lines[-2].startswith("kwire: "), f"{command}: no line that says what: {lines[-3:]}")
    for text in ("" if data else out.getvalue(), err.getvalue()):
        # A quick look first: most text has nothing in it that could be meant.
        if not text.replace("\n", "").replace("\t", "").isprintable():
            loose = {c for c in text if not c.isprintable()} - {"\n", "\t"}
            must(not loose, f"{command}: prints {loose}")
    return code, out.getvalue()


def _json_lines(text: str) -> None:
    for line in text.splitlines():
        try:
            json.loads(line)
        except ValueError as failure:
            raise Broken(f"not JSON: {failure}: {line[:200]}") from None


@cache
def _small() -> tuple[mutations.Base, ...]:
    return tuple(base for base in mutations.bases() if len(base.whole()) < SMALL)


def _capture(number: int, seed: int, folder: Path, name: str = "capture") -> tuple[Path, str, random.Random]:
    """A broken capture, what was done to it, and the generator for what else is to be chosen."""
    rng = random.Random(f"door/{seed}/{number}")
    base = _small()[number % len(_small())]
    broken = rng.choice(mutations.FAMILIES)(base, rng)
    path = folder / f"{name}.pcap"
    path.write_bytes(broken.data)
    return path, f"{base.name}; {broken.what}", rng


@contextlib.contextmanager
def _naming_input(what: str) -> Iterator[None]:
    """Whatever does not hold is told with what was done to the input."""
    try:
        yield
    except Exception as failure:
        raise Broken(f"{type(failure).__name__}: {failure} [{what[:300]}]") from failure


def show(number: int, seed: int, folder: Path) -> Outcome:
    """A broken capture, in one of the forms of `kwire show`."""
    path, what, _ = _capture(number, seed, folder)
    form = SHOWN[number // len(_small()) % len(SHOWN)]
    begin = time.process_time()
    with _naming_input(f"{form}: {what}"):
        code, out = command("show", path, *form)
        if "--json" in form:
            _json_lines(out)
    return Outcome(time.process_time() - begin, out.count("\n"), code == 2)


@cache
def _log_files() -> tuple[Path, ...]:
    wanted = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")
    files = sorted(path for path in make.DATA.glob("*/*") if path.suffix in wanted)
    return tuple(path for path in files if 0 < path.stat().st_size < SMALL)


def segments(number: int, seed: int, folder: Path) -> Outcome:
    """A broken file of a log folder."""
    rng = random.Random(f"segment/{seed}/{number}")
    path = _log_files()[number % len(_log_files())]
    data = bytearray(path.read_bytes())
    what = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not data:  # the edit before took all that there was
            break
        start, stop, new = rng.choice(mutations.EDITS)(rng, bytes(data), *_span(rng, data))
        data[start:stop] = new
        what.append(f"[{start}:{stop}] = {new[:12].hex()}")
    topic = rng.choice((path.parent.name, path.parent.name, "__cluster_metadata-0", "__consumer_offsets-0", "copied"))
    copied = folder / topic / path.name
    copied.parent.mkdir(exist_ok=True)
    copied.write_bytes(data)
    begin = time.process_time()
    with _naming_input(f"{path.parent.name}/{path.name} as {topic}: {what}"):
        form = rng.choice(LOGS)
        code, out = command("show", copied, *form)
        if "--json" in form:
            _json_lines(out)
        if rng.random() < 0.3:
            command("analyze", copied, "-o", folder / "log", "--records", "full")
    copied.unlink()
    return Outcome(time.process_time() - begin, out.count("\n"), code == 2)


def _span(rng: random.Random, data: bytearray) -> tuple[int, int]:
    """Some record set or entry: where an edit falls."""
    start = rng.randrange(max(len(data) - 61, 1))
    return start, min(len(data), start + rng.choice((8, 61, 200)))


def asking(number: int, seed: int, folder: Path) -> Outcome:
    """Query `TOGETHER` broken captures in SQL, and now and then make a report of them."""
    captures = [_capture(number * TOGETHER + i, seed, folder, f"capture{i}") for i in range(TOGETHER)]
    rng = captures[0][2]
    begin = time.process_time()
    with _naming_input("; ".join(what for _, what, _ in captures)):
        how = ("-o", folder / "data", "--records", rng.choice(("batches", "meta", "full")))
        paths = [path for path, _, _ in captures]
        code, _ = command("analyze", *paths, *how)
        if code == 2:  # one of them is no capture any more
            paths = [path for path in paths if command("show", path, "--limit", 1)[0] == 0]
            if not paths or command("analyze", *paths, *how)[0] == 2:
                return Outcome(time.process_time() - begin, 0, True)
        form = rng.choice(("table", "csv", "json"))
        _, out = command(
            "sql", folder / "data", rng.choice(QUERIES), "--engine", "embedded", "--format", form, data=form == "csv"
        )
        if form == "json":
            _json_lines(out)
        if form == "csv":
            widths = {len(row) for row in csv.reader(io.StringIO(out, newline=""))}
            must(len(widths) <= 1, "rows of csv differ in width")
        if number % 4 == 0:
            form = rng.choice(("html", "md", "json"))
            command("report", folder / "data", "-o", folder / "page", "--format", form, "--engine", "embedded")
            text = (folder / "page").read_text(encoding="utf-8")
            must("<script>alert" not in text, "a page runs what a capture says")
            if form == "json":
                json.loads(text)
    return Outcome(time.process_time() - begin, out.count("\n"), False)


def planning(number: int, seed: int, folder: Path) -> Outcome:
    """Plan the replay of a broken capture at a Kafka release."""
    path, what, rng = _capture(number, seed, folder)
    begin = time.process_time()
    with _naming_input(what):
        release = rng.choice(("4.3", "3.9", "2.8", "0.10.1"))
        code, out = command("replay", path, "--dry-run", "--assume", release, "--json")
        if code == 0:
            json.loads(out)
    return Outcome(time.process_time() - begin, out.count("\n"), code == 2)


@cache
def _sessions(name: str, deep: bool) -> list[Session]:
    """The first connections of a sample, and the first of what they said: a few of each kind are mostly enough."""
    whole = inputs.read([str(path) for path in capture_files(SAMPLES / name)])
    connections, requests = (12, 60) if deep else (4, 8)
    return [dataclasses.replace(session, requests=session.requests[:requests]) for session in whole[:connections]]


def replaying(number: int, seed: int, folder: Path) -> Outcome:
    """A sound capture at a rogue broker, in virtual time."""
    rng = random.Random(f"rogue/{seed}/{number}")
    name = REPLAYED[number % len(REPLAYED)]
    sessions = _sessions(name, rng.random() < 0.05)
    cluster = rogue.Cluster(sessions, rng)
    patience = Settings(speed=None, reconnect=1.0, answer_timeout=5.0, limits=Limits(1.0, 0.5, 1.0))
    options = Options(rogue.HOST, rogue.PORT, settings=patience, yes=True, partial=True, seed_topics=rng.random() < 0.2)
    begin = time.process_time()
    refused = False
    total = 0
    with _naming_input(f"{name}; {cluster.what}"):
        try:
            dial = options.access.reach(rogue.HOST, rogue.PORT).guard(cluster.dial)
            result = play(run.replay(MemorySource(sessions), options, dial, folder / "run", []))
        except KwireError as problem:
            must(bool(problem.message) and "\n" not in problem.message, f"no line: {problem!r}")
            refused = True
        else:
            total = result.counts.total
            captured = sum(len(session.requests) + len(session.orphans) for session in sessions)
            must(total == captured, f"{total} outcomes of {captured} exchanges")
            must(sum(result.counts.verdicts.values()) == total, "verdicts do not add up")
            must(not result.counts.tool_errors, f"the replayer failed: {rogue.tool_errors(folder / 'run')}")
    return Outcome(time.process_time() - begin, total, refused)


Door = Callable[[int, int, Path], Outcome]
DOORS: Final[dict[str, Door]] = {
    "show": show,
    "segments": segments,
    "asking": asking,
    "planning": planning,
    "rogue": replaying,
}


def again(door: str, number: int, seed: int) -> str:
    """How to make a case again."""
    return f"python -m tests.fuzz --door {door} --seed {seed} --start {number} --count 1"
