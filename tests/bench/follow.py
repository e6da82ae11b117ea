"""`kwire analyze FOLDER --follow`, killed at random while files grow and rotate: no row lost, none doubled.

    python -m tests.bench.follow [--kills 20] [--longest 5] [--files 40] [--seed 1] [CAPTURE]

A capture (default: the sample of a consumer group) is written into a folder in so many files, packet by packet, each
growing under its name until the next one is begun, some packed afterwards. The command follows meanwhile and is ended
by SIGKILL after a random time, begun again, and killed again. At last it ends by itself, and the dataset is compared
with one pass over all files: every table and column, but for places in files that were packed after they were read (a
packed file has none). Exit code 1: they differ.
"""

from __future__ import annotations

import argparse
import gzip
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kwire import analyzer
from kwire.analyzer.dataset.dataset import concatenated
from tests.analyzer.checkpoints import cutting
from tests.shared import KWIRE, ROOT, SAMPLES, capture_files


def rotate(capture: Path, folder: Path, files: int, seconds: float, over: threading.Event, rng: random.Random) -> None:
    """Write the capture into the folder in so many seconds, as a tool that rotates does; all at once when `over`."""
    head, packets = cutting.packets(cutting.content(capture))
    size = max(1, len(packets) // files)
    before: Path | None = None
    for number, begin in enumerate(range(0, len(packets), size)):
        path = folder / f"ring-{number:04d}.pcap"
        with path.open("wb", buffering=0) as out:
            out.write(head)
            for packet in packets[begin : begin + size]:
                out.write(packet)
                over.wait(seconds / len(packets))
        if before is not None and rng.random() < 0.2:
            packed = before.with_name(before.name + ".gz")
            packed.write_bytes(gzip.compress(before.read_bytes()))
            before.unlink()
        before = path


def as_packed(exchanges: pa.Table, ring: Path) -> pa.Table:
    """Exchanges as if all files that are packed now had been so when they were read."""
    packed = pa.array([path.name.removesuffix(".gz") for path in ring.glob("*.gz")], pa.string())
    for side in ("request", "response"):
        file, offset = (exchanges.schema.get_field_index(f"{side}_{name}") for name in ("file", "offset"))
        names = pc.replace_substring_regex(exchanges[file], r"\.gz$", "")
        left = pc.if_else(pc.is_in(names, packed), pa.scalar(None, pa.int64()), exchanges[offset])
        exchanges = exchanges.set_column(file, exchanges.field(file), names)
        exchanges = exchanges.set_column(offset, exchanges.field(offset), left)
    return exchanges


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument(
        "--longest",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="from when it says that it follows to the kill, at most (default: 5)",
    )
    parser.add_argument("--files", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("capture", nargs="?", type=Path, metavar="CAPTURE")
    options = parser.parse_args()
    capture = options.capture or capture_files(SAMPLES / "group-kip848-librdkafka-4.3")[0]
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        ring, data = Path(place, "ring"), Path(place, "data")
        ring.mkdir()
        over = threading.Event()
        seconds = options.kills * options.longest / 2
        arguments = (capture, ring, options.files, seconds, over, random.Random(options.seed))
        writer = threading.Thread(target=rotate, args=arguments)
        writer.start()
        command = [*KWIRE, "analyze", str(ring), "--follow", "-o", str(data), "--json"]
        steps = set()
        for _ in range(options.kills):
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            assert process.stderr is not None
            process.stderr.readline()
            try:
                process.wait(rng.uniform(0, options.longest))
                print(f"it ended by itself with {process.returncode}")
                return 1
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            if data.is_dir():
                steps.add(analyzer.open_dataset(data).manifest["follow"]["step"])
        over.set()
        writer.join()
        subprocess.run([*command, "--for", "10ms"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        followed, expected = analyzer.open_dataset(data), analyzer.analyze(ring)
        different = []
        for name, table in expected.tables.items():
            rows = concatenated(name, [getattr(followed, name).to_table()])
            if name == "exchanges":
                rows, table = as_packed(rows, ring), as_packed(table, ring)
            if not rows.equals(table):
                different.append(f"{name}: {len(rows)} rows, {len(table)} in one pass")
        if followed.coverage != expected.coverage:
            different.append("coverage")
        files = len(expected.captures[0]["files"])
        print(
            f"{options.kills} kills, {files} files, {len(steps)} steps seen, {len(expected.tables['exchanges']):,} "
            f"exchanges: {different or 'equal'}"
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
