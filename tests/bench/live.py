"""Live capture under load: what is lost, and what it costs.

    python -m tests.bench.live                          # record at 100,000 packets/s, watch at 50,000/s, 10 s each
    python -m tests.bench.live --what watch --metrics   # watch at 50,000/s, with a scrape each second
    python -m tests.bench.live --client-ids 1000000     # of a file: is RssAnon of watch --metrics flat?
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
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.analyzer import forging
from tests.bench import generate
from tests.bench.__main__ import begin_result, save, say
from tests.captures import forge
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


class Scrapes:
    """Asks for the metrics once a second, more often than Prometheus does. values: those of the last answer."""

    def __init__(self, url: str) -> None:
        self.url, self.number, self.longest = url, 0, 0.0
        self.values: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def packets(self) -> int:
        return int(self.values.get("kwire_capture_packets_total", 0))

    def _run(self) -> None:
        while not self._end.wait(1.0):
            self.scrape()

    def scrape(self) -> None:
        begun = time.monotonic()
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        self.longest = max(self.longest, time.monotonic() - begun)
        self.number += 1
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        self.values = {name: float(value) for name, value in pairs}

    def end(self) -> None:
        """Stop, after one more."""
        self._end.set()
        self._thread.join()
        self.scrape()


def heartbeats(first: int, count: int) -> bytes:
    """Packet records of exchanges on one connection, each of a client of another name."""
    request, answer = forging.heartbeat(0, client_id="client-0000000"), forging.heartbeat_answer(0)
    client, broker = ("10.0.0.1", 40_000), ("10.0.0.9", 9092)
    segments = []
    for number in range(first, first + count):
        query = request[:8] + number.to_bytes(4, "big") + request[12:]
        query = query.replace(b"client-0000000", b"client-%07d" % number)
        reply = answer[:4] + number.to_bytes(4, "big") + answer[8:]
        time_ns, sent, got = forge.START_NS + number * 20_000, number * len(request), number * len(answer)
        flags = forge.PSH | forge.ACK
        segments.append(forge.Segment(time_ns, client, broker, sent % 2**32, got % 2**32, flags, query))
        after = (sent + len(request)) % 2**32
        segments.append(forge.Segment(time_ns + 9_000, broker, client, got % 2**32, after, flags, reply))
    return forge.pcap(forge.rendered(segments))[len(forge.pcap([])) :]


def many_clients(clients: int) -> dict[str, Any]:
    """`watch --metrics` of a stream of heartbeats, each of a client of another name: RssAnon at each tenth."""
    command = [*KWIRE, "watch", "-", "--metrics", "0", "--json"]
    memory: list[int] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as kwire:
        assert kwire.stdin is not None
        assert kwire.stderr is not None
        kwire.stdin.write(forge.pcap([]))
        kwire.stdin.flush()
        while b"metrics at" not in (line := kwire.stderr.readline()):
            pass
        drain = threading.Thread(target=kwire.stderr.read)
        drain.start()
        scrapes = Scrapes(line.decode().split()[-1])
        for first in range(0, clients, clients // 100):
            kwire.stdin.write(heartbeats(first, clients // 100))
            if (first // (clients // 100)) % 10 == 9:
                memory.append(round(anonymous_mb(kwire.pid)))
        while scrapes.packets < 2 * clients - 1000:
            time.sleep(0.5)
        scrapes.end()
        values = scrapes.values
        kwire.stdin.close()
        kwire.send_signal(signal.SIGTERM)
        drain.join()
    exchanges = sum(value for name, value in values.items() if name.startswith("kwire_exchanges_total"))
    series = sum(name.startswith("kwire_exchanges_total") for name in values)
    counted = f"{exchanges:,.0f} exchanges, {series:,} series"
    say(f"   {clients:,} client ids, {counted}; RssAnon in MB at each tenth: {memory}")
    return {"what": "client ids", "clients": clients, "rss_anon_mb": memory, "series": series}


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


def timed(
    what: str, wire: Wire, capture: Path, rate: int, seconds: float, folder: Path, metrics: bool = False
) -> dict[str, Any]:
    """One run."""
    command = [*KWIRE, what, "-i", wire.name, *arguments(what, folder)]
    command += ["--metrics", "0"] if metrics else []
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    with (
        open(folder / "said", "w", encoding="utf-8") as out,
        subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True) as kwire,
    ):
        assert kwire.stderr is not None
        scrapes = None
        while "capturing on" not in (line := kwire.stderr.readline()):
            scrapes = Scrapes(line.split()[-1]) if "metrics at" in line else scrapes
        if metrics and scrapes is None:
            scrapes = Scrapes(kwire.stderr.readline().split()[-1])
        sending = generator(wire, capture, rate, seconds)
        memory: list[float] = []
        while sending.poll() is None:
            time.sleep(min(_SAMPLE_SECONDS, seconds / 4))
            memory.append(anonymous_mb(kwire.pid))
        assert sending.stdout is not None
        sent = json.loads(sending.stdout.read())
        spent = processor_seconds(kwire.pid)
        if scrapes is not None:
            while scrapes.packets + scrapes.values.get("kwire_capture_dropped_packets_total", 0) < sent["sent"]:
                time.sleep(0.5)
            scrapes.end()
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
    if scrapes is not None:
        result |= {"scrapes": scrapes.number, "longest_scrape_seconds": scrapes.longest, "counted": scrapes.packets}
        say(f"   {scrapes.number} scrapes, the longest {scrapes.longest:.2f} s; {scrapes.packets:,} packets counted")
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
    parser.add_argument("--metrics", action="store_true", help="watch answers scrapes meanwhile")
    parser.add_argument("--client-ids", type=int, metavar="N", help="watch of a stream of so many clients instead")
    parser.add_argument("--generate", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        descriptor, path, rate, seconds = options.generate
        send(int(descriptor), Path(path), int(rate), float(seconds))
        return
    if options.client_ids:
        save({**begin_result("live"), "runs": [many_clients(options.client_ids)]})
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
            metrics = options.metrics and what == "watch"
            results.append(timed(what, wire, capture, rates[what], options.seconds, folder, metrics))
    save({**begin_result("live"), "runs": results})


if __name__ == "__main__":
    main()
