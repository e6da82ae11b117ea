"""Live capture under load: what is lost, and what it costs.

    python -m tests.bench.live                          # record at 100,000 packets/s, watch at 50,000/s, 10 s each
    python -m tests.bench.live --soak 1800              # watch, analyze and record at 3,000/s at once: is RssAnon flat?
    unshare -n python -m tests.bench.live ...           # the same in a network namespace of its own

A generator process writes the *small* capture's packets to a TAP device at a steady rate, from the second processor
where there is one; kwire captures on it from the first. The generator says how fast it was, and first how fast it is
when nobody listens: what is slower than asked for in a run, and not much faster alone, is the generator. All packets
are counted on both ends: sent = recorded + said to be lost. The capture comes turn after turn, each from other ports
and by clients of other names. Root is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.bench import generate
from tests.bench.__main__ import begin_result, save, say
from tests.live import Wire
from tests.shared import KWIRE, ROOT

_BATCH_SECONDS = 0.002
_BROKER_PORT = (9092).to_bytes(2, "big")
_CLIENT_AT = 80
"""Where a packet that begins with a request has its client's name: an even place in its TCP segment."""
_SOAK_RATE = 3000
_SAMPLE_SECONDS = 10.0


def frames_of(path: Path) -> list[bytes]:
    """The packets of a pcap file."""
    data, at, packets = path.read_bytes(), 24, []
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        packets.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return packets


def again(frame: bytes, turn: int) -> bytes:
    """A packet of the capture's next turn: from another port, so that connections are new, and a client of another
    name; the urgent pointer, which nobody reads, takes what keeps the checksum right."""
    at = 36 if frame[34:36] == _BROKER_PORT else 34
    port = int.from_bytes(frame[at : at + 2], "big")
    other = (port + 977 * turn) % 65_536
    less = port - other
    behind = frame[54:]
    if at == 34 and len(frame) > _CLIENT_AT + 8:
        was, name = frame[_CLIENT_AT : _CLIENT_AT + 2], bytes([97 + turn % 26, 97 + turn // 26 % 26])
        less += int.from_bytes(was, "big") - int.from_bytes(name, "big")
        behind = frame[54:_CLIENT_AT] + name + frame[_CLIENT_AT + 2 :]
    changed = frame[:at] + other.to_bytes(2, "big") + frame[at + 2 : 52] + (less % 65_535).to_bytes(2, "big")
    return changed + behind


def send(descriptor: int, path: Path, rate: int, seconds: float) -> None:
    """In the generator: packets at a rate, the capture turn after turn; prints how many, and in how long."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    frames, write = frames_of(path), os.write
    begun = time.monotonic()
    sent = 0
    while (now := time.monotonic() - begun) < seconds:
        due = int(now * rate)
        while sent < due:
            turn, at = divmod(sent, len(frames))
            write(descriptor, again(frames[at], turn) if turn else frames[at])
            sent += 1
        time.sleep(_BATCH_SECONDS)
    print(json.dumps({"sent": sent, "seconds": time.monotonic() - begun}), flush=True)


def anonymous_mb(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arguments(what: str, folder: Path) -> list[str]:
    """Return a command's arguments beside the interface."""
    if what == "record":
        return ["-o", str(folder / "live.pcap")]
    if what == "analyze":
        return ["-o", str(folder / "row"), "--rotate-seconds", "60", "--keep", "3", "--json"]
    return ["--json"]


def generator(wire: Wire, capture: Path, rate: int, seconds: float) -> subprocess.Popen[str]:
    """Begin to send."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.bench.live",
            "--generate",
            str(wire.descriptor),
            str(capture),
            str(rate),
            str(seconds),
        ],
        cwd=ROOT,
        pass_fds=(wire.descriptor,),
        stdout=subprocess.PIPE,
        text=True,
    )


def alone(wire: Wire, capture: Path) -> float:
    """Packets a second that the generator can send when nobody listens."""
    with generator(wire, capture, 10**7, 3.0) as sending:
        assert sending.stdout is not None
        sent = json.loads(sending.stdout.read())
    rate = float(sent["sent"] / sent["seconds"])
    say(f"   the generator alone: {rate:,.0f} packets/s")
    return rate


def soak(wire: Wire, capture: Path, rate: int, seconds: float, folder: Path) -> dict[str, Any]:
    """All three at once at a modest rate, for long: how much anonymous memory each has, every ten seconds."""
    commands = ("record", "watch", "analyze")
    with contextlib.ExitStack() as stack:
        running = {}
        for what in commands:
            more = ["--rotate-bytes", "100MB", "--keep", "2"] if what == "record" else []
            out = stack.enter_context(open(folder / f"{what}.out", "w", encoding="utf-8"))
            running[what] = stack.enter_context(
                subprocess.Popen(
                    [*KWIRE, what, "-i", wire.name, *arguments(what, folder), *more],
                    cwd=ROOT,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for process in running.values():
            assert process.stderr is not None
            while "capturing on" not in process.stderr.readline():
                pass
        drains = [threading.Thread(target=process.stderr.read) for process in running.values() if process.stderr]
        for drain in drains:
            drain.start()
        memory: dict[str, list[int]] = {what: [] for what in commands}
        with generator(wire, capture, rate, seconds) as sending:
            while sending.poll() is None:
                time.sleep(_SAMPLE_SECONDS)
                for what, process in running.items():
                    memory[what].append(round(anonymous_mb(process.pid)))
            assert sending.stdout is not None
            sent = json.loads(sending.stdout.read())
        spent = {what: processor_seconds(process.pid) for what, process in running.items()}
        for process in running.values():
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        for drain in drains:
            drain.join()
    watched = [json.loads(line) for line in (folder / "watch.out").read_text().splitlines()]
    analysed = [json.loads(line) for line in (folder / "analyze.out").read_text().splitlines()]
    result = {
        "what": "soak",
        "rate": sent["sent"] / sent["seconds"],
        "sent": sent["sent"],
        "seconds": sent["seconds"],
        "processor_seconds": spent,
        "rss_anon_mb": memory,
        "datasets": len(analysed),
        "taken_by_analyze": sum(summary["captures"][0]["packets"] for summary in analysed),
        "exchanges_of_watch": sum(line.get("exchanges", 0) for line in watched),
        "lost_by_watch": max((line.get("dropped", 0) for line in watched), default=0),
    }
    for what, some in memory.items():
        tenth = [some[len(some) * i // 10] for i in range(10)] + some[-1:]
        say(
            f"   {what}: RssAnon in MB, every tenth of {seconds:,.0f} s: {' '.join(map(str, tenth))}; "
            f"{spent[what]:.0f} s of processor"
        )
    say(
        f"   {sent['sent']:,} packets sent, {result['taken_by_analyze']:,} in {len(analysed)} datasets, "
        f"watch: {result['exchanges_of_watch']:,.0f} exchanges, {result['lost_by_watch']:,} lost"
    )
    return result


def timed(what: str, wire: Wire, capture: Path, rate: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One run."""
    command = [*KWIRE, what, "-i", wire.name, *arguments(what, folder)]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    with (
        open(folder / "said", "w", encoding="utf-8") as out,
        subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True) as kwire,
    ):
        assert kwire.stderr is not None
        while "capturing on" not in kwire.stderr.readline():
            pass
        sending = generator(wire, capture, rate, seconds)
        memory: list[float] = []
        while sending.poll() is None:
            time.sleep(min(_SAMPLE_SECONDS, seconds / 4))
            memory.append(anonymous_mb(kwire.pid))
        assert sending.stdout is not None
        sent = json.loads(sending.stdout.read())
        spent = processor_seconds(kwire.pid)
        kwire.send_signal(signal.SIGTERM)
        kwire.stderr.read()
        assert kwire.wait() == 0
    result = {
        "what": what,
        "rate": sent["sent"] / sent["seconds"],
        "sent": sent["sent"],
        "processor_seconds": spent,
        "rss_anon_mb": [round(megabytes) for megabytes in memory],
    }
    if what == "record":
        statistics = json.loads((folder / "live.pcap.stats.json").read_text())
        result |= {"taken": statistics["packets"], "lost": statistics["dropped"]}
        if statistics["packets"] + statistics["dropped"] != sent["sent"]:
            raise RuntimeError(f"packets that nobody knows of: {result}")
    else:
        lines = [json.loads(line) for line in (folder / "said").read_text().splitlines()]
        result |= {
            "exchanges": sum(line.get("exchanges", 0) for line in lines),
            "lost": max((line.get("dropped", 0) for line in lines), default=0),
        }
    say(
        f"   {what}: {result['rate']:,.0f} packets/s, {result['sent']:,} sent, {result['lost']:,} lost, "
        f"{spent:.2f} s of processor, RssAnon {result['rss_anon_mb']} MB"
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("record", "watch"), action="append")
    parser.add_argument("--rate", type=int, help="packets a second (default: 100,000 for record, 50,000 for watch)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="all three at once, in place of rates")
    parser.add_argument("--generate", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        descriptor, path, rate, seconds = options.generate
        send(int(descriptor), Path(path), int(rate), float(seconds))
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="kwire-live-") as temporary, closing(Wire()) as wire:
        folder = Path(temporary)
        capture = folder / "small.pcap"
        rates = {"record": options.rate or 100_000, "watch": options.rate or 50_000}
        if options.soak:
            rates = {"soak": options.rate or _SOAK_RATE}
        wanted = max(rates[what] for what in options.what or rates) * min(options.seconds, 10.0)
        generate.small(capture, int(wanted * 175))
        results.append({"what": "generator alone", "rate": alone(wire, capture)})
        if options.soak:
            results.append(soak(wire, capture, rates["soak"], options.soak, folder))
        for what in () if options.soak else options.what or ("record", "watch"):
            results.append(timed(what, wire, capture, rates[what], options.seconds, folder))
    save({**begin_result("live"), "runs": results})


if __name__ == "__main__":
    main()
