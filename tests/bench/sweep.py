"""Read every hostile capture by every command and option that reads one, and print what cost most.

`view` is asked what its page asks (`PAGE_ASKS`), and ended. `rehearse` reads a capture as `replay` and `compare` do,
and is asked up to where it finds no broker. `record` reads no file.

    python -m tests.bench.sweep [--jobs N] [FILE ...]

Without files: those of `../shared/hostile`. Each is a process of its own, in a folder of its own. The bar: no
traceback, an exit code that a command has, `SECONDS` of processor and `MEMORY_MB`. Exit code 1: a bar is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from tests.shared import KWIRE, ROOT, SAMPLES, SHARED

SECONDS, MEMORY_MB = 5.0, 1024
KILLED_AFTER = 120
"""Seconds of processor after which a process is ended: it hangs."""
CODES = (0, 1, 2, 3)
REFUSED = 2
ENDED = 143
"""Exit codes of an input that is refused, and of a server that was told to end."""
OTHER = SAMPLES / "old-java-0.8.2" / "capture.pcap"

CAPTURE_DOORS = """
analyze {}
analyze {} --json --records none
analyze {} --json --records meta -o data
analyze {} --json --records full -o data
analyze {} --json --records full --payloads -o data
analyze {} --json --keep-bytes -o data
analyze {} --json --no-analysis
analyze {} --json --filter 'status == unanswered or error != 0'
show {}
show {} --wide --names /dev/null
show {} --tree
show {} --tree --hex --payloads
show {} --tree --page 2
show {} --json
show {} --json --page 2
show {} --frames
show {} --records
show {} --records --json
show {} --records --format csv
show {} --records --payloads
show {} --fields time,connection,api,client_id,topic,error,reason
show {} --count-by api,error
show {} --count-by client_id,topic
show {} --sort -latency
show {} --sort latency --limit 5
show {} --filter 'topic ~ "a" or request.topics[].name == "b"'
show {} --filter 'value.x > 1'
show {} --follow 1
show {} --color always
show {} -w chosen.pcapng --filter 'api == Produce'
story {}
story {} --json
story {} --client x
findings {}
findings {} --json
findings {} --format junit
findings {} --format github
report {} -o page.html
report {} --format md -o page.md
report {} --format json -o page.json
sql {} 'SELECT * FROM exchanges'
sql {} 'SELECT * FROM batches' --format csv
sql {} 'SELECT * FROM findings' --format json
compare {} {other}
compare {other} {} --json
compare {} {} --format html -o page.html
scrub {} -o clean.pcapng
scrub {} --dry-run --json
scrub {} -o clean.pcapng --keep names,keys,values,headers --keep-schema
watch {} --once
watch {} --once --json
replay {} --dry-run --assume 4.3
replay {} --dry-run --assume 2.8 --json
replay {} --dry-run --assume 4.3 --prefix-topics p- --seed-topics --partial
rehearse {} --old 127.0.0.1:1 --new 127.0.0.1:1 -o verdict
view {} --no-open --no-cache
""".strip().splitlines()
"""Commands that read a capture; `{other}`: a sound one."""

SEGMENT_DOORS = """
analyze {} --json --records full -o data
show {}
show {} --tree
show {} --tree --hex --payloads
show {} --json
show {} --records
show {} --records --format csv
sql {} 'SELECT * FROM batches'
""".strip().splitlines()

DATASET_DOORS = """
findings {}
findings {} --json
findings {} --format junit
story {}
story {} --json
report {} -o page.html
sql {} 'SELECT * FROM exchanges'
compare {} {other}
compare {other} {}
diff {}
replay {} --dry-run --assume 4.3
show {}
analyze {}
view {} --no-open --no-cache
""".strip().splitlines()


PAGE_ASKS = """
info
facets
stats
findings
heatmap?width=600
ladder?count=2000
ladder?bands=300
timeline?by=connection&width=600
timeline?by=client&width=600
tcp
table?name=connections&count=100
table?name=frames&count=100
table?name=records&count=100
export?format=csv
rows?filter=topic+~+%22a%22&count=100
rows?sort=-latency&count=100
report
""".strip().splitlines()
KEY_ASKS = """
exchange?key={}
partitions?key={}
message?key={}&side=request
message?key={}&side=response
bytes?key={}&side=request&start=0&count=65536
bytes?key={}&side=response&start=0&count=65536
""".strip().splitlines()
"""Paths below `/api/1/` that a page asks for, and those for an exchange; `{}`: its key."""
SHOWN_KEYS = 3
"""Exchanges whose messages are asked for."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One process. `wrong`: the bar that it misses, if any."""

    name: str
    door: str
    seconds: float
    peak_mb: float
    wrong: str


def inputs(folder: Path) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield what is in a folder of hostile files, and the doors that read it."""
    for path in sorted(folder.iterdir()):
        if "pcap" in path.name:
            yield path, CAPTURE_DOORS
        elif path.name.startswith("dataset"):
            yield path, DATASET_DOORS
        elif path.name.startswith("segment"):
            logs = sorted(path.rglob("*.log")) or [path]
            yield from ((log, SEGMENT_DOORS) for log in logs)


def limited() -> None:
    """End a hang, and a bomb."""
    resource.setrlimit(resource.RLIMIT_CPU, (KILLED_AFTER, KILLED_AFTER))


def ask_page(process: subprocess.Popen[bytes]) -> str:
    """Ask a server of `kwire view` all that its page does, and end it; return what went wrong."""
    assert process.stdout is not None
    with process.stdout:
        address = urlsplit(process.stdout.readline().decode().strip())
    if not address.netloc:
        return ""  # it refuses the file, and says why
    connection = http.client.HTTPConnection(address.netloc, timeout=KILLED_AFTER)
    wrong = ""
    try:
        connection.request("GET", f"{address.path}?{address.query}")
        answer = connection.getresponse()
        answer.read()
        headers = {"Cookie": str(answer.getheader("set-cookie")).split(";")[0]}

        def fetch(path: str) -> bytes:
            nonlocal wrong
            connection.request("GET", f"/api/1/{path}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status >= 500 and b'"hint"' not in content:  # it does say so where there is nothing to look at
                wrong = wrong or f"{path}: {answer.status}"
            return content

        rows = json.loads(fetch("rows?count=100"))
        for path in PAGE_ASKS:
            fetch(path)
        for key in rows.get("keys", [])[:SHOWN_KEYS]:
            for path in KEY_ASKS:
                fetch(path.format(quote(str(key))))
    except (OSError, http.client.HTTPException, ValueError) as problem:
        wrong = wrong or f"no answer: {problem!r}"
        time.sleep(1)  # it may be about to refuse what it has read
    finally:
        connection.close()
        os.kill(process.pid, signal.SIGTERM)  # Popen.terminate would reap it, and its usage with it
    return wrong


def cost(path: Path, door: str) -> Cost:
    """Run one command."""
    words = [word.replace("{other}", str(OTHER)).replace("{}", str(path)) for word in shlex.split(door)]
    with tempfile.TemporaryDirectory(prefix="kwire-sweep-") as folder, tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "KWIRE_PAGER": ""}
        process = subprocess.Popen(
            [*KWIRE, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if words[0] == "view" else subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=limited,
            env=environment,
        )
        answers = ask_page(process) if words[0] == "view" else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        printed = errors.read()
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    codes = (*CODES, ENDED) if words[0] == "view" else CODES
    ends_with = printed.decode(errors="replace").strip().rpartition("\n")[2]
    wrong = (
        f"traceback ({ends_with})" if b"Traceback" in printed else f"exit code {code}" if code not in codes else answers
    )
    if code == REFUSED and wrong == answers:  # by `view`, when it had read the file, after the first question
        wrong = ""
    if b"\x1b" in printed.replace(b"\x1b[K", b""):
        wrong = wrong or "an escape on stderr"
    if seconds > SECONDS:
        wrong = wrong or "time"
    if peak > MEMORY_MB:
        wrong = wrong or "memory"
    return Cost(path.name, door, seconds, peak, wrong)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sweep", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="captures (default: all that is in ../shared/hostile)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worst", type=int, default=20, help="lines of the table (default: 20)")
    parser.add_argument("--only", default="", help="doors with this text")
    options = parser.parse_args(arguments)
    listed: list[tuple[Path, Sequence[str]]] = [(path.resolve(), CAPTURE_DOORS) for path in options.files]
    listed = listed or list(inputs(SHARED.parent / "hostile"))
    work = [(path, door) for path, doors in listed for door in doors if options.only in door]
    costs = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in pool.map(lambda pair: cost(*pair), work):
            costs.append(done)
            if done.wrong:
                print(f"WRONG {done.wrong}: {done.name}: {done.door}: {done.seconds:.1f} s {done.peak_mb:.0f} MB")
                sys.stdout.flush()
    print(f"{len(costs)} runs, {sum(bool(done.wrong) for done in costs)} beyond a bar")
    for title, worst in (
        ("processor", sorted(costs, key=lambda done: -done.seconds)),
        ("memory", sorted(costs, key=lambda done: -done.peak_mb)),
    ):
        print(f"most {title}:")
        for done in worst[: options.worst]:
            print(f"  {done.seconds:6.2f} s {done.peak_mb:6.0f} MB  {done.name}  {done.door}")
    return int(any(done.wrong for done in costs))


if __name__ == "__main__":
    sys.exit(main())
