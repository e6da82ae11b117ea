"""Find the kernels and arguments that commands use, and link them into shared libraries, for `tools/wheel.py`.

    python tools/object_code.py kinds KINDS [--commands all|few] [--native LIBRARY ENTRIES]
    python tools/object_code.py compile KINDS LIBRARY ENTRIES
    python tools/object_code.py describe FOLDER ENTRIES TARGET...

`kinds` runs commands of kwire over the samples, and calls by itself the kernels that only a larger capture, a live one
or one with TLS reaches; KINDS is then a JSON object: {kernel: [kind of its arguments, ...]}. It says which kernels
nothing has called: those are compiled on first use. `--native`: the code of all of them for this processor, as this
user's cache has it, is linked into LIBRARY. `compile` makes the code of KINDS without calling anything, for the
processor that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name, and links it. ENTRIES is a JSON object: {kernel and kind: how
it is called}. `describe` writes what all was made from into FOLDER. The linker is `cc`; `objdump` shows that a library
has no instruction beyond its target.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_C_ORDER, _F_ORDER, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400  # as in `array.flags.num`
_BITS = "andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|s[ah][lr]x|lzcnt|movbe"
NOT_THERE = {
    "x86-64-v2": re.compile(rf"%[yz]mm\d|\t(v[a-z]\w+|({_BITS})[lqw]?) "),
    "x86-64-v3": re.compile(r"%zmm\d|%k[1-7]\b"),
}
"""Registers and instructions that a target has not, as `objdump` writes them. (`tzcnt` is `rep bsf` to older
processors: LLVM uses it where both give the same.)"""


# --- which kernels ---------------------------------------------------------------------------------------------------


def run(*arguments: str) -> None:
    """One command of kwire."""
    from kwire.analyzer.cli.parser import main

    code: object
    complained = io.StringIO()
    with open(os.devnull, "w") as printed, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        try:
            code = main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    if code:
        sys.exit(f"kwire {' '.join(arguments)}: {complained.getvalue()}")


def run_few(samples: Path, folder: Path) -> None:
    """Run the commands that people run first."""
    capture = str(samples / "codecs-franzgo-4.3" / "capture.pcap")
    run("analyze", capture, "-o", str(folder / "first"))
    run("show", capture)


def run_all(samples: Path, folder: Path) -> None:
    """All that a kernel may be called by."""
    from kwire.analyzer.api import analyze

    for number, path in enumerate(sorted(samples.glob("*/capture.pcap*"))):
        capture, dataset = str(path), str(folder / f"{number}")
        run("analyze", capture, "-o", dataset, "--records", "full", "--keep-bytes")
        for threads in (1, 3):
            analyze(path, threads=threads)
        run("show", capture, "--records")
        run("show", dataset, "--records")
        run("show", capture, "--tree", "--hex")
        run("show", capture, "--filter", "request.acks == 0")
        if not number:
            run("scrub", capture, "-o", str(folder / "clean.pcap"))
    run_shared(samples / "codecs-franzgo-4.3" / "capture.pcap", folder)
    by_themselves()


def run_shared(capture: Path, folder: Path) -> None:
    """Do the work of Spark's tasks on chunks, where shares see their own packets and where they see all."""
    from kwire.analyzer.dataset.dataset import TableFiles
    from kwire.analyzer.pipeline import shares
    from kwire.analyzer.pipeline.points import AnalysisOptions
    from kwire.analyzer.pipeline.read_options import ReadOptions
    from kwire.captures.chunks.chunk_reader import ChunkJoiner, ChunkReader, chunks_of
    from kwire.captures.chunks.routing import RoutedReader
    from kwire.captures.chunks.sorting import store
    from kwire.captures.files import capture_points

    [point] = capture_points([str(capture)])
    [chunk] = chunks_of(point, 1 << 30)
    choice = AnalysisOptions.of(records="meta")
    settings = ReadOptions().settings(choice.keep)
    joining = ChunkJoiner(point)
    chunk_result, stored = store(ChunkReader(chunk), 2, 1, folder / "stored")
    joining.take(chunk, chunk_result)
    for part in (shares.ShareOfPackets(0, 1), shares.Share(0, 1, (0, 1), 2)):
        reader = RoutedReader(point, joining.summary(), [stored], (0, 1), every=not part.alone)
        pieces = folder / f"pieces-{part.alone}" / "share"
        pieces_of_share = [shares.share(point, settings, choice, part, 1 << 18, pieces, reader)]
        ranges, facts = shares.by_range(pieces_of_share)
        decided = pieces.with_name("decided")
        shares.take_facts(facts, pieces_of_share, point, choice, TableFiles(folder, "facts"), decided)
        shares.merge(point, pieces_of_share[0].files, ranges, TableFiles(folder, "rows"), decided)


def by_themselves() -> None:
    """Kernels that only captures reach that are larger, live or encrypted, with the arguments that they get there."""
    from kwire.analyzer.bulk import shard, symbols
    from kwire.analyzer.protocol import encoding
    from kwire.analyzer.records import batch_reader
    from kwire.captures import out_of_order, packed, prefixes
    from kwire.captures.chunks import rows
    from kwire.captures.flows import Flows, rebuild_buckets
    from kwire.captures.live import recording, records
    from kwire.captures.stream_tables import SEG_COLUMNS
    from kwire.captures.streams import Streams
    from kwire.captures.tls import runs
    from kwire.captures.windows import room_for

    some = np.zeros(64, np.uint8)
    symbols.refill(np.zeros(4, np.int32), np.zeros((2, symbols.ENTRY_COLUMNS), np.int64), 0)
    tables = Flows().tables
    rebuild_buckets(np.full(8, -1, np.int64), tables.keys, tables.state[0])
    streams = Streams()._tables
    out_of_order.compact(streams.waiting, np.zeros(0, np.int64), streams.held)
    conversations = shard.Conversations(shard.layouts())
    shard.move_regions(conversations._state.framing.f[:0], conversations._state.framing.slab, some)
    encoding.encode_request(18, 0, 1, "kwire", {})  # ApiVersions
    batch_reader._nested(some, 0, 0)
    prefixes.client_prefix(some, 0, 0)
    prefixes.broker_prefix(some, 0, 0, 0)
    columns = rows.as_words(room_for(1))
    columns.payload_captured[:] = columns.number[:] = 0
    rows.extent(columns, np.zeros(1, np.uint16), 1, 0, 0, 0)
    numbers, written = np.arange(8).reshape(2, 4), np.arange(8).reshape(2, 4)
    written.flags.writeable = False  # as windows are
    for table in (numbers, written):
        packed.pack(table, (0, 1)).into(numbers)
    records.from_ring(some, 0, 0, some, 64, 0)
    recording.prepare(recording.Target("capture.pcapng"), True)
    segments, places = np.zeros((1, SEG_COLUMNS), np.int64), np.zeros(1, np.int64)
    given, made_runs = runs.Input(some, some, some), runs.Output(segments, places, some)
    entries = runs.Entries(segments[:0], segments, places[:0], places[:0], places[:0])
    runs.open_rows(np.zeros(4, np.int64), segments[:0, : runs.D_COLUMNS], some, entries, some, given, made_runs, some)


# --- their object code -----------------------------------------------------------------------------------------------


def all_kernels() -> dict[str, Any]:
    """Every kernel of the modules that are loaded, by its full name."""
    from kwire.captures import kernels

    return {kernels._full_name(known): known for known in kernels._known}


def arguments_of(kind: tuple[Any, ...]) -> list[Any]:
    """Arguments of a kind, as `native.flatten` says it."""
    parts = iter(kind)
    arguments = []
    with contextlib.suppress(StopIteration):
        while True:
            arguments.append(_argument(parts))
    return arguments


def _argument(parts: Iterator[Any]) -> Any:
    part = next(parts)
    if isinstance(part, str):
        plain = {"int64": 0, "bool": False, "float64": 0.0}
        return plain[part] if part in plain else np.dtype(part).type(0)
    if len(part) == 2:
        name, count = part
        module, _, called = name.rpartition(".")
        kind = getattr(importlib.import_module(module), called)
        values = [_argument(parts) for _ in range(count)]
        return tuple(values) if kind is tuple else kind(*values)
    dtype, dimensions, order, flags = part
    array = np.zeros((4,) * dimensions, dtype, order="F" if order == _F_ORDER else "C")
    if not order:
        array = array[(slice(None, None, 2),) * dimensions]
    if flags & _ALIGNED == 0:
        raise ValueError(f"not aligned: {part}")
    array.setflags(write=bool(flags & _WRITEABLE))
    return array


def tuples(value: Any) -> Any:
    """JSON has lists only."""
    return tuple(tuples(part) for part in value) if isinstance(value, list) else value


def write_kinds(path: Path, commands: str, native: list[Path] | None) -> None:
    from kwire.captures import kernels
    from kwire.captures.native import ObjectCode

    kernels.expect(None)  # the samples are small: they would be read by plain Python
    samples = Path(kernels.__file__).resolve().parent / "samples"
    with tempfile.TemporaryDirectory() as folder:
        (run_all if commands == "all" else run_few)(samples, Path(folder))
    known = all_kernels()
    kinds_by_kernel = {
        name: sorted(known_kernel.kinds, key=repr) for name, known_kernel in sorted(known.items()) if known_kernel.kinds
    }
    path.write_text(json.dumps(kinds_by_kernel))
    never = sorted(set(known) - set(kinds_by_kernel))
    print(
        f"{len(kinds_by_kernel)} kernels, {sum(map(len, kinds_by_kernel.values()))} kinds of arguments; "
        f"never called: {never}"
    )
    if native is not None:
        names = [known[name].file_name(kind) for name, kinds in kinds_by_kernel.items() for kind in kinds]
        stored = {name: (kernels.object_folder() / name).read_bytes() for name in names}
        # Numba compiled them to be loaded where it likes, not to lie anywhere.
        library, entries = native
        link({name: ObjectCode.from_bytes(data) for name, data in stored.items()}, library, entries, ["-z,notext"])


def compile_all(path: Path, library: Path, entries: Path) -> None:
    from kwire.captures import kernels, native

    target = os.environ["NUMBA_CPU_NAME"]
    compiled = {}
    for name, kinds in json.loads(path.read_bytes()).items():
        importlib.import_module(name.rpartition(".")[0])
        kernel = all_kernels()[name]
        for kind in map(tuples, kinds):
            arguments = arguments_of(kind)
            key: list[Any] = []
            values: list[Any] = []
            for argument in arguments:
                native.flatten(argument, key, values)
            if tuple(key) != kind:
                sys.exit(f"{name}: arguments of {key} are not of {kind}")
            symbol = kernel.file_name(kind)
            with kernels.without_collection():
                code = native.compiled(kernel.dispatcher, arguments, values, symbol)
            if code is None:
                sys.exit(f"{name}: no object code for {target} that can be used without Numba")
            compiled[symbol] = code
    link(compiled, library, entries)
    shown = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True)
    if wrong := NOT_THERE[target].search(shown.stdout):
        sys.exit(f"{library.name}: {wrong[0].strip()} in code for {target}")


def link(compiled: Mapping[str, Any], library: Path, entries: Path, options: Sequence[str] = ()) -> None:
    """Link object code into a shared library that exports it under the given names, and write how it is called."""
    library.parent.mkdir(parents=True, exist_ok=True)
    described = {name: code.entry._replace(symbol=name) for name, code in compiled.items()}
    entries.write_text(json.dumps(described))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "exports").write_text("{ global: " + " ".join(f'"{name}";' for name in compiled) + " local: *; };")
        arguments = ["-shared", "-nostdlib", "-Wl,--no-undefined,--gc-sections,--strip-all,--build-id=none,-z,now"]
        arguments += [f"-Wl,{option}" for option in options]
        arguments += [f"-Wl,--version-script={folder / 'exports'}", "-o", str(library)]
        for number, (name, code) in enumerate(compiled.items()):
            (folder / f"{number}.o").write_bytes(code.code)
            arguments.append(str(folder / f"{number}.o"))
            if code.entry.symbol != name:
                arguments.append(f"-Wl,--defsym,{name}={code.entry.symbol}")
        (folder / "arguments").write_text("\n".join([*arguments, "-lc"]))
        subprocess.run(["cc", f"@{folder / 'arguments'}"], check=True)
    library.chmod(0o755)
    print(f"{library.name}: {len(compiled)} kernels and kinds of arguments, {library.stat().st_size / 1e6:.1f} MB")


def describe(folder: Path, entries: Path, targets: list[str]) -> None:
    from kwire.captures import kernels, shipped
    from kwire.captures.native import Entry

    needed = {name: shipped.LEVELS.get(name, sorted(shipped.features())) for name in targets}  # native: all there is
    called = {name: Entry.of(content) for name, content in json.loads(entries.read_bytes()).items()}
    (folder / shipped.DESCRIPTION).write_bytes(shipped.description(kernels.sources_hash(), needed, called))


def main() -> None:
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    kinds = tasks.add_parser("kinds")
    kinds.add_argument("kinds", type=Path)
    kinds.add_argument("--commands", choices=("all", "few"), default="all")
    kinds.add_argument("--native", type=Path, nargs=2, metavar=("LIBRARY", "ENTRIES"))
    code = tasks.add_parser("compile")
    for name in ("kinds", "library", "entries"):
        code.add_argument(name, type=Path)
    described = tasks.add_parser("describe")
    for name in ("folder", "entries"):
        described.add_argument(name, type=Path)
    described.add_argument("targets", nargs="+")
    options = parser.parse_args()
    if options.task == "kinds":
        write_kinds(options.kinds, options.commands, options.native)
    elif options.task == "compile":
        compile_all(options.kinds, options.library, options.entries)
    else:
        describe(options.folder, options.entries, options.targets)


if __name__ == "__main__":
    main()
