"""Live capture under load: what is lost, and what it costs.

    python -m tests.bench.live                          # record at 100,000 packets/s, watch at 50,000/s, 10 s each
    python -m tests.bench.live --what watch --rate 50000 --seconds 1800     # a soak: RssAnon each ten seconds

A generator process writes the *small* capture's packets to a TAP device at a steady rate, from the second processor
where there is one; kwire captures on it from the first. The generator says how fast it was. All packets are counted on
both ends: sent = recorded + said to be lost. Root is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import generate
from tests.bench.__main__ import RESULTS, machine, say
from tests.live import Wire
from tests.shared import KWIRE, ROOT

_BATCH_SECONDS = 0.002
_BROKER_PORT = (9092).to_bytes(2, "big")


def frames_of(path: Path) -> list[bytes]:
    """The packets of a pcap file."""
    data, at, found = path.read_bytes(), 24, []
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        found.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return found


def again(frame: bytes, turn: int) -> bytes:
    """A packet of the capture's next turn: from another port, so that connections are new; the urgent pointer, which
    nobody reads, takes what keeps the checksum right."""
    at = 36 if frame[34:36] == _BROKER_PORT else 34
    port = int.from_bytes(frame[at : at + 2], "big")
    other = (port + 977 * turn) % 65_536
    urgent = (port - other) % 65_535
    changed = frame[:at] + other.to_bytes(2, "big") + frame[at + 2 : 52] + urgent.to_bytes(2, "big")
    return changed + frame[54:]


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


def timed(what: str, wire: Wire, capture: Path, rate: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One run."""
    command = [*KWIRE, what, "-i", wire.name]
    command += ["-o", str(folder / "live.pcap")] if what == "record" else ["--json"]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    with (
        open(folder / "said", "w", encoding="utf-8") as out,
        subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True) as kwire,
    ):
        assert kwire.stderr is not None
        while "capturing on" not in kwire.stderr.readline():
            pass
        generator = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.live", "--generate", str(wire.descriptor), str(capture),
             str(rate), str(seconds)],
            cwd=ROOT, pass_fds=(wire.descriptor,), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        memory: list[float] = []
        while generator.poll() is None:
            time.sleep(min(10.0, seconds / 4))
            memory.append(anonymous_mb(kwire.pid))
        assert generator.stdout is not None
        sent = json.loads(generator.stdout.read())
        spent = processor_seconds(kwire.pid)
        kwire.send_signal(signal.SIGINT)
        kwire.stderr.read()
        assert kwire.wait() == 0
    result = {
        "what": what, "rate": sent["sent"] / sent["seconds"], "sent": sent["sent"], "processor_seconds": spent,
        "rss_anon_mb": [round(one) for one in memory],
    }  # fmt: skip
    if what == "record":
        said = json.loads((folder / "live.pcap.stats.json").read_text())
        result |= {"taken": said["packets"], "lost": said["dropped"]}
        if said["packets"] + said["dropped"] != sent["sent"]:
            raise RuntimeError(f"packets that nobody knows of: {result}")
    else:
        lines = [json.loads(line) for line in (folder / "said").read_text().splitlines()]
        result |= {
            "exchanges": sum(line.get("exchanges", 0) for line in lines),
            "lost": max((line.get("dropped", 0) for line in lines), default=0),
        }
    say(f"   {what}: {result['rate']:,.0f} packets/s, {result['sent']:,} sent, {result['lost']:,} lost, "
        f"{spent:.2f} s of processor, RssAnon {result['rss_anon_mb']} MB")  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("record", "watch"), action="append")
    parser.add_argument("--rate", type=int, help="packets a second (default: 100,000 for record, 50,000 for watch)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--generate", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.generate:
        descriptor, path, rate, seconds = asked.generate
        send(int(descriptor), Path(path), int(rate), float(seconds))
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="kwire-live-") as temporary, closing(Wire()) as wire:
        folder = Path(temporary)
        capture = folder / "small.pcap"
        rates = {"record": asked.rate or 100_000, "watch": asked.rate or 50_000}
        wanted = max(rates[what] for what in asked.what or rates) * min(asked.seconds, 10.0)
        generate.small(capture, int(wanted * 175))
        for what in asked.what or ("record", "watch"):
            results.append(timed(what, wire, capture, rates[what], asked.seconds, folder))
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path = RESULTS / f"live-{when}.json"
    path.write_text(json.dumps({"machine": machine(), "runs": results}, indent=1) + "\n")
    say(f"   {path}")


if __name__ == "__main__":
    main()
