"""Live capture under load: what is lost, and what it costs.

    python -m tests.bench.live                          # record at 100,000 packets/s, watch at 50,000/s, 10 s each
    python -m tests.bench.live --what watch --rate 200000 --seconds 60
    python -m tests.bench.live --what watch --capture big64k.pcap --rate 10000   # frames of up to 64 KB
    python -m tests.bench.live --what watch --metrics   # watch at 50,000/s, with a scrape each second
    python -m tests.bench.live --client-ids 1000000     # of a file: is RssAnon of watch --metrics flat?
    python -m tests.bench.live --soak 1800              # watch, analyze and record at 3,000/s at once: is RssAnon flat?
    unshare -n python -m tests.bench.live ...           # the same in a network namespace of its own

A generator process sends the *small* capture's packets, or those of `--capture`, through one end of a pair of veth
devices at a steady rate, from the second processor where there is one; kwire captures on the other end, from the first.
The generator says how fast it was, and first how fast it is when nobody listens: what is slower than asked for in a
run, and not much faster alone, is the generator. All packets are counted on both ends: sent = recorded + said to be
lost. The capture comes turn after turn, each from other ports and, where it is generated, by clients of other names.
Beside what a packet cost stands what it costs `kwire analyze` of the same file. Root is needed, and `ip`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
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

import numpy as np

from tests.analyzer import forging
from tests.bench import generate
from tests.bench.__main__ import begin_result, save, say
from tests.captures import forge
from tests.shared import KWIRE, ROOT

_BATCH_SECONDS = 0.002
_BROKER_PORT = 9092
_GENERATED = "generated-small.pcap"
_CLIENT_AT = 80
"""Where a packet that begins with a request has its client's name: an even place in its TCP segment."""
_TCP_AT, _URGENT_AT = 34, 52
"""The TCP header, and its urgent pointer, in a packet of Ethernet and IPv4 without options."""
_SOAK_RATE = 3000
_SAMPLE_SECONDS = 10.0
_SOL_PACKET, _QDISC_BYPASS = 263, 20
_LARGEST_MTU = 65_535
_AT_ONCE = 64


class Veth:
    """A pair of veth devices, up while this is open: what goes into `sender` comes out of `name`."""

    def __init__(self) -> None:
        self.name, self.sender = f"kwb{os.getpid() % 100_000}", f"kws{os.getpid() % 100_000}"
        self._ip("link", "add", "name", self.name, "type", "veth", "peer", "name", self.sender)
        for device in (self.name, self.sender):
            self._ip("link", "set", device, "mtu", str(_LARGEST_MTU), "up")

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def close(self) -> None:
        self._ip("link", "delete", self.name)


class Sender:
    """Sends a pcap file's packets, many in a system call, turn after turn. port: the broker's; `renames`: clients get
    other names in each turn, as they can in the *small* capture, whose packets begin with a message."""

    def __init__(self, interface: str, path: Path, port: int, renames: bool) -> None:
        self._data, self._turn, self._renames = np.fromfile(path, np.uint8), 0, renames
        at, places = 24, []
        raw = memoryview(self._data.data)
        while at < len(raw):
            (size,) = struct.unpack_from("<I", raw, at + 8)
            places.append((at + 16, size))
            at += 16 + size
        self._at, self._sizes = np.array(places, np.int64).T
        self.count = len(places)
        # `struct mmsghdr` takes 64 bytes: an address, the vector of one piece and how many, control data, flags.
        self._vectors = np.stack([self._at + self._data.ctypes.data, self._sizes], axis=1)
        self._headers = np.zeros((self.count, 8), np.uint64)
        self._headers[:, 2] = self._vectors.ctypes.data + 16 * np.arange(self.count)
        self._headers[:, 3] = 1
        self._from_broker = self._number(np.arange(self.count), _TCP_AT) == port
        self._named = ~self._from_broker & (self._sizes > _CLIENT_AT + 8)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.bind((interface, 0))
        self._socket.setsockopt(_SOL_PACKET, _QDISC_BYPASS, 1)
        self._c = ctypes.CDLL(None, use_errno=True)

    def _number(self, rows: np.ndarray, at: int) -> np.ndarray:
        """Return the two bytes at a place of packets."""
        place = self._at[rows] + at
        number: np.ndarray = self._data[place].astype(np.int64) << 8 | self._data[place + 1]
        return number

    def _put(self, rows: np.ndarray, at: int, number: np.ndarray) -> None:
        place = self._at[rows] + at
        self._data[place], self._data[place + 1] = number >> 8, number & 0xFF

    def go_on(self) -> None:
        """Make the packets those of the next turn: from other ports, so that connections are new, and by clients of
        other names; the urgent pointer, which nobody reads, takes what keeps the checksum right."""
        self._turn += 1
        every, less = np.arange(self.count), np.zeros(self.count, np.int64)
        for rows, at in ((every[self._from_broker], _TCP_AT + 2), (every[~self._from_broker], _TCP_AT)):
            port = self._number(rows, at)
            other = (port + 977) % 65_536
            less[rows] += port - other
            self._put(rows, at, other)
        if self._renames:
            rows = every[self._named]
            name = (97 + self._turn % 26) << 8 | 97 + self._turn // 26 % 26
            less[rows] += self._number(rows, _CLIENT_AT) - name
            self._put(rows, _CLIENT_AT, np.full(len(rows), name))
        self._put(every, _URGENT_AT, (self._number(every, _URGENT_AT) + less) % 65_535)

    def send(self, first: int, count: int) -> int:
        """Send packets of this turn; returns how many."""
        pointer = ctypes.c_void_p(self._headers.ctypes.data + 64 * first)
        sent: int = self._c.sendmmsg(self._socket.fileno(), pointer, min(count, _AT_ONCE), 0)
        if sent < 0 and ctypes.get_errno() not in (errno.ENOBUFS, errno.EAGAIN):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return max(sent, 0)


def send(interface: str, path: Path, port: int, rate: int, seconds: float, renames: bool) -> None:
    """In the generator: packets at a rate, the capture turn after turn; prints how many, and in how long."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    sender = Sender(interface, path, port, renames)
    begun = time.monotonic()
    sent = at = 0
    while (now := time.monotonic() - begun) < seconds:
        due = int(now * rate)
        while sent < due:
            if at == sender.count:
                sender.go_on()
                at = 0
            done = sender.send(at, min(due - sent, sender.count - at))
            sent, at = sent + done, at + done
        time.sleep(_BATCH_SECONDS)
    print(json.dumps({"sent": sent, "seconds": time.monotonic() - begun}), flush=True)


def anonymous_mb(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_seconds(process: int) -> tuple[float, float]:
    """Return what a process took of processors, its own code's time and the kernel's."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own, kernel = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return own, kernel


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


def generator(veth: Veth, capture: Path, port: int, rate: int, seconds: float) -> subprocess.Popen[str]:
    """Begin to send."""
    renames = "renames" if capture.name == _GENERATED else ""
    arguments = [veth.sender, str(capture), str(port), str(rate), str(seconds), renames]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.live", "--generate", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def analyzed(capture: Path) -> float:
    """Return the time of its own code, in microseconds a packet, that `kwire analyze` of a capture takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory(prefix="kwire-live-") as folder:
        command = [*KWIRE, "analyze", str(capture), "--records", "none", "--json", "-o", str(Path(folder, "dataset"))]
        output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    micros = float(spent / json.loads(output)["captures"][0]["packets"] * 1e6)
    say(f"   analyze of the file: {micros:.2f} us a packet, the kernel's apart")
    return micros


def alone(veth: Veth, capture: Path, port: int) -> float:
    """Packets a second that the generator can send when nobody listens."""
    with generator(veth, capture, port, 10**7, 3.0) as sending:
        assert sending.stdout is not None
        sent = json.loads(sending.stdout.read())
    rate = float(sent["sent"] / sent["seconds"])
    say(f"   the generator alone: {rate:,.0f} packets/s")
    return rate


def soak(veth: Veth, capture: Path, port: int, rate: int, seconds: float, folder: Path) -> dict[str, Any]:
    """All three at once at a modest rate, for long: how much anonymous memory each has, every ten seconds."""
    commands = ("record", "watch", "analyze")
    with contextlib.ExitStack() as stack:
        running = {}
        for what in commands:
            more = ["--rotate-bytes", "100MB", "--keep", "2"] if what == "record" else []
            out = stack.enter_context(open(folder / f"{what}.out", "w", encoding="utf-8"))
            running[what] = stack.enter_context(
                subprocess.Popen(
                    [*KWIRE, what, "-i", veth.name, *arguments(what, folder), *more],
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
        with generator(veth, capture, port, rate, seconds) as sending:
            while sending.poll() is None:
                time.sleep(_SAMPLE_SECONDS)
                for what, process in running.items():
                    memory[what].append(round(anonymous_mb(process.pid)))
            assert sending.stdout is not None
            sent = json.loads(sending.stdout.read())
        spent = {what: sum(processor_seconds(process.pid)) for what, process in running.items()}
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
    what: str,
    veth: Veth,
    capture: Path,
    port: int,
    rate: int,
    seconds: float,
    folder: Path,
    metrics: bool = False,
) -> dict[str, Any]:
    """One run."""
    command = [*KWIRE, what, "-i", veth.name, *arguments(what, folder)]
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
        sending = generator(veth, capture, port, rate, seconds)
        memory: list[float] = []
        while sending.poll() is None:
            time.sleep(min(_SAMPLE_SECONDS, seconds / 4))
            memory.append(anonymous_mb(kwire.pid))
        assert sending.stdout is not None
        sent = json.loads(sending.stdout.read())
        own, kernel = processor_seconds(kwire.pid)
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
        "processor_seconds": own + kernel,
        "own_us_a_packet": own / sent["sent"] * 1e6,
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
        f"{own + kernel:.2f} s of processor, {result['own_us_a_packet']:.2f} us a packet without the kernel's, "
        f"RssAnon {result['rss_anon_mb']} MB"
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("record", "watch"), action="append")
    parser.add_argument("--rate", type=int, help="packets a second (default: 100,000 for record, 50,000 for watch)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--capture",
        type=Path,
        help="a pcap of Ethernet and IPv4 to send; beside it NAME.json with the port, as of tests.bench.real",
    )
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="all three at once, in place of rates")
    parser.add_argument("--metrics", action="store_true", help="watch answers scrapes meanwhile")
    parser.add_argument("--client-ids", type=int, metavar="N", help="watch of a stream of so many clients instead")
    parser.add_argument("--generate", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        interface, path, port, rate, seconds, renames = options.generate
        send(interface, Path(path), int(port), int(rate), float(seconds), bool(renames))
        return
    if options.client_ids:
        save({**begin_result("live"), "runs": [many_clients(options.client_ids)]})
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="kwire-live-") as temporary, closing(Veth()) as veth:
        folder = Path(temporary)
        capture, port = options.capture or folder / _GENERATED, _BROKER_PORT
        rates = {"record": options.rate or 100_000, "watch": options.rate or 50_000}
        if options.soak:
            rates = {"soak": options.rate or _SOAK_RATE}
        wanted = max(rates[what] for what in options.what or rates) * min(options.seconds, 10.0)
        if options.capture is None:
            generate.small(capture, int(wanted * 175))
        else:
            port = int(json.loads(capture.with_suffix(".json").read_text())["port"])
        results.append({"what": "generator alone", "rate": alone(veth, capture, port)})
        if options.soak:
            results.append(soak(veth, capture, port, rates["soak"], options.soak, folder))
        for what in () if options.soak else options.what or ("record", "watch"):
            metrics = options.metrics and what == "watch"
            results.append(timed(what, veth, capture, port, rates[what], options.seconds, folder, metrics))
        if not options.soak and "watch" in (options.what or rates):
            results.append({"what": "analyze", "own_us_a_packet": analyzed(capture)})
    save({**begin_result("live"), "runs": results})


if __name__ == "__main__":
    main()
