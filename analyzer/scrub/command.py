"""`kwire scrub`: a capture that may be shared.

In: parsed options. Out: the clean capture; what was done, on stdout, or on stderr where the capture goes to no file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kwire.analyzer.common import output_file
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.captures.extras import install

if TYPE_CHECKING:
    from kwire.analyzer.options.scrub import ScrubOptions

_LEAST_KEY: Final = 16
_MOST_KEY: Final = 1 << 20


def scrub(options: ScrubOptions) -> int:
    """`kwire scrub`."""
    from kwire.analyzer.cli.commands import announce_compilation
    from kwire.analyzer.scrub import rewrite
    from kwire.analyzer.scrub.content import KEEPABLE, SCHEMA
    from kwire.captures.files import capture_points
    from kwire.captures.tls.ciphers import available

    if not available():
        raise UsageError("scrub needs the package cryptography, which is not installed", install("tls"))
    keep = frozenset(part for text in options.keep for part in text.split(",") if part)
    for name in sorted(keep - KEEPABLE.keys()):
        raise UsageError(f"--keep: there is no {name!r}", f"there are {', '.join(KEEPABLE)}")
    if options.keep_schema:
        keep |= {SCHEMA}
    key, notes = _key(options.key)
    announce_compilation()
    if options.out == "-":
        raise UsageError("-o -: is no file", "name one, as clean.pcapng; or /dev/stdout")
    if os.path.isdir(options.out):
        raise UsageError(f"-o {options.out}: is a folder", "name a file, as clean.pcapng")
    with _stored(options.capture, options.out) as path:
        point = capture_points([path])[0]
        if rewrite.same_file(options.out, [os.path.join(point.folder, name) for name in point.paths]):
            raise UsageError(f"-o {options.out}: is the capture itself", "name another file")
        bar = (lambda _: None) if not sys.stderr.isatty() else _say
        report = rewrite.scrub(point, options.out, rewrite.Task(key, keep, tuple(options.port), options.dry_run), bar)
    for note in [*notes, *report.notes]:
        sys.stderr.write(f"note: {printable(note)}\n")
    stream = sys.stderr if output_file.is_stream(options.out) else sys.stdout  # that may be where the capture went
    if options.json:
        json.dump(report.json(), stream, indent=1)
        stream.write("\n")
    else:
        head = "would be" if options.dry_run else "is"
        stream.write(f"{printable(options.out)} {head} a clean capture\n")
        stream.writelines(f"  {line}\n" for line in report.lines())
    return 0


def _say(stage: str) -> None:
    sys.stderr.write(f"kwire: {stage} ...\n")
    sys.stderr.flush()


def _key(path: str | None) -> tuple[bytes | None, list[str]]:
    """Return the key of the pseudonyms, and what the user should know of its file."""
    if path is None:
        return None, []
    try:
        with open(path, "rb") as file:
            key = file.read(_MOST_KEY + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as failure:
        raise UsageError(
            f"--key {path}: cannot be read: {failure.strerror}", "a key is any file: head -c 32 /dev/urandom > FILE"
        ) from None
    if not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise UsageError(
            f"--key {path}: has {len(key):,} bytes",
            f"a key has {_LEAST_KEY} to 1,048,576: head -c 32 /dev/urandom > FILE",
        )
    import hashlib

    notes = []
    if stat.S_ISREG(mode) and mode & 0o044:
        notes.append(f"{path}: others may read this key, and undo what it did to short names: chmod 600 it")
    return hashlib.blake2b(key, digest_size=32).digest(), notes


@contextlib.contextmanager
def _stored(capture: str, out: str) -> Iterator[str]:
    """The capture's path: stdin is read to its end first, beside `out`, for it is read twice."""
    if capture != "-":
        yield capture
        return
    with output_file.scratch(out) as folder:
        path = os.path.join(folder, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield path
