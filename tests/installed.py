"""Try what each extra of an installed kwire promises, with this extra and nothing else, as an ordinary user offline.

    python -m tests.installed PYTHON EXTRA ...      # the commands of these extras, with a Python that has them
    python -m tests.installed --wheel dist/kwire-0.1.0-….whl --packages FOLDER [EXTRA ...]   # minutes

In: an environment (or a wheel, and the packages that pip needs to make one for each extra). Out: a line a command; with
`--wheel` a table of what each extra adds to site-packages, and what `captures/extras.py` says. Rules: commands run in
an empty folder, without a home, without rights over what others own; as root also in a network namespace that has
nothing but a loopback interface. What serves is asked once, then ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import functools
import http.server
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.shared import SAMPLES

CAPTURE = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
SECONDS = 600
"""How long a command may take before it has failed: kernels may have to be compiled, Spark to start."""

BASE = "base"


def with_the_rights_of_others() -> None:
    """Take from root what an ordinary user lacks: to read and write whatever modes say. (Another user may not be able
    to read the Python of this machine.)"""
    drop = 24  # PR_CAPBSET_DROP, of Linux' prctl.h
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        assert ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0) == 0


def go_offline() -> bool:
    """Move this process into a network namespace of its own, with a loopback interface; false where it may not."""
    new_net = 0x4000_0000  # CLONE_NEWNET, of Linux' sched.h
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or ctypes.CDLL(None).unshare(new_net) != 0:
        return False
    get_flags, set_flags, up = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, get_flags, request.ljust(40, b"\0"))[:18])[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sh", b"lo", flags | up).ljust(40, b"\0"))
    return True


class Installed:
    """The kwire of one environment: `python` and what is on its path."""

    def __init__(self, python: Sequence[str], folder: Path, path: str = "", user: int | None = None) -> None:
        self._python, self.folder, self._user = [*python, "-m", "kwire"], folder, user
        self._environment = {"PATH": "/usr/bin:/bin", "HOME": "/proc/nobody", "PYTHONPATH": path}
        self.commands = 0
        if user is not None:
            os.chown(folder, user, user)

    def _started(self, arguments: Sequence[object], stdin: int | None) -> subprocess.Popen[bytes]:
        self.commands += 1
        rights: dict[str, Any] = {}
        if self._user is not None:
            rights = {"user": self._user, "group": self._user, "extra_groups": []}
        elif os.geteuid() == 0:
            rights = {"preexec_fn": with_the_rights_of_others}
        return subprocess.Popen(
            [*self._python, *map(str, arguments)],
            cwd=self.folder, env=self._environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **rights,
        )  # fmt: skip

    def says(self, shown: str, *arguments: object, input: bytes | None = None, code: int = 0) -> str:
        """Run a command to its end. Raises AssertionError unless it ends with `code` and prints `shown` (a regular
        expression), on stdout or, where it fails, on stderr."""
        begun = time.monotonic()
        process = self._started(arguments, subprocess.PIPE if input is not None else subprocess.DEVNULL)
        out, errors = process.communicate(input, SECONDS)
        printed = out.decode() if not code else errors.decode()
        assert process.returncode == code, (arguments, process.returncode, errors.decode()[-2000:])
        assert re.search(shown, printed), (arguments, shown, printed[:2000], errors.decode()[-2000:])
        print(f"  {time.monotonic() - begun:6.1f} s  kwire {' '.join(map(str, arguments))[:100]}", flush=True)
        return printed

    def writes(self, name: str, *arguments: object) -> Path:
        """Run a command that writes a file or folder of this name."""
        self.says("", *arguments, "-o", name)
        path = self.folder / name
        assert path.stat().st_size, arguments
        return path

    @contextmanager
    def serving(self, address: str, *arguments: object) -> Iterator[str]:
        """Run a command that serves until SIGTERM: the match of `address` in the lines that it prints."""
        process = self._started(arguments, subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        texts: dict[str, bytes] = {"out": b"", "errors": b""}
        printed = threading.Event()

        def read(name: str, stream: int) -> None:
            while data := os.read(stream, 65536):
                texts[name] += data
                if re.search(address, texts[name].decode(errors="replace")):
                    printed.set()
            printed.set()

        readers = [
            threading.Thread(target=read, args=("out", process.stdout.fileno())),
            threading.Thread(target=read, args=("errors", process.stderr.fileno())),
        ]
        for reader in readers:
            reader.start()
        try:
            printed.wait(SECONDS)
            match = re.search(address, (texts["out"] + b"\n" + texts["errors"]).decode(errors="replace"))
            assert match, (arguments, texts)
            yield match[0]
            print(f"         s  kwire {' '.join(map(str, arguments))[:100]}", flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            for reader in readers:
                reader.join()
            process.stdout.close()
            process.stderr.close()


# --- what each extra promises, as docs/start/install.md has it ------------------------------------------------------


def base(kwire: Installed) -> None:
    kwire.writes("dataset", "analyze", CAPTURE)
    kwire.says(r"AddPartitionsToTxn", "show", CAPTURE, "--limit", 40)
    kwire.says(r"request-unanswered", "findings", "dataset")
    kwire.says(r"UTC", "story", CAPTURE)
    kwire.says(r"", "compare", "dataset", "dataset")
    kwire.says(r'"exchanges"', "watch", CAPTURE, "--once", "--json")
    kwire.says(r"EndTxn", "show", "-", input=CAPTURE.read_bytes())
    kwire.says(r"Exit codes", "help", "exit-codes")


def sql(kwire: Installed, *engine: str) -> None:
    if not (kwire.folder / "dataset").exists():
        kwire.writes("dataset", "analyze", CAPTURE)
    kwire.says(r"Produce +\| +29|Produce +29", "sql", "dataset", "SELECT * FROM latency_by_api", *engine)
    question = "SELECT api, count(*) AS n FROM exchanges GROUP BY 1"
    kwire.says(r"Produce,29", "sql", CAPTURE, question, "--format", "csv", *engine)
    page = kwire.writes("report.html", "report", "dataset", *engine)
    assert "</html>" in page.read_text()
    kwire.says(r"(?m)^# ", "report", CAPTURE, "--format", "md", *engine)


def spark(kwire: Installed) -> None:
    kwire.writes("other", "analyze", CAPTURE, "--engine", "spark")
    sql(kwire, "--engine", "spark")


def view(kwire: Installed) -> None:
    with kwire.serving(r"http://127\.0\.0\.1:\d+/\?token=\S+", "view", CAPTURE, "--no-open") as address:
        page = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(address, timeout=60).read()
        assert b"</html>" in page


def tls(kwire: Installed) -> None:
    from tests.analyzer.test_tls import talked
    from tests.captures.forge import converse, pcap, rendered
    from tests.captures.tls.sealing import How, Talk

    talk = Talk(How(), kwire.folder)
    (kwire.folder / "tls.pcap").write_bytes(pcap(rendered(converse(talk.sealed(talked()))), nanoseconds=True))
    log = kwire.folder / "given.log"
    log.write_bytes(talk.keys)
    kwire.says(r"Heartbeat", "show", "tls.pcap", "--keylog", log)
    kwire.writes("scrubbed.pcap", "scrub", CAPTURE)
    kwire.says(r"EndTxn", "show", "scrubbed.pcap")


def urls(kwire: Installed) -> None:
    with zipfile.ZipFile(kwire.folder / "day.zip", "w") as archive:
        archive.write(CAPTURE, "capture.pcap")
    shutil.copy(CAPTURE, kwire.folder)
    handler = functools.partial(_Quiet, directory=str(kwire.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        kwire.says(r"EndTxn", "show", f"{address}/capture.pcap")
        kwire.says(r"EndTxn", "show", f"zip://capture.pcap::file://{kwire.folder}/day.zip")
        kwire.says(r"Cannot connect", "show", "https://127.0.0.1:1/capture.pcap", code=2)
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def metrics(kwire: Installed) -> None:
    arguments = "watch", CAPTURE, "--metrics", "127.0.0.1:0"
    with kwire.serving(r"http://127\.0\.0\.1:\d+/metrics(?= answers)", *arguments) as address:
        text = urllib.request.urlopen(address, timeout=60).read().decode()
        assert "kwire_exchange_latency_seconds" in text


def payloads(kwire: Installed) -> None:
    from tests.analyzer.payloads.golden_payloads import golden, golden_capture, write_schemas

    capture, schemas = golden_capture(kwire.folder / "golden.pcap"), write_schemas(kwire.folder / "schemas")
    decoded = kwire.says(r"avro", "show", capture, "--records", "--schemas", schemas, "--fields", "value_format,value")
    assert len(decoded.splitlines()) > len(golden()[1]) // 2
    kwire.writes("decoded", "analyze", capture, "--schemas", schemas)
    kwire.says(r"", "show", capture, "--records", "--payloads")


def live(kwire: Installed) -> None:
    """With a capture that others wait for: packets on the loopback interface, which this process sends itself."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.05):
            with socket.socket() as nobody:
                nobody.connect_ex(("127.0.0.1", 9092))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    path = kwire.writes("live.pcap", "record", "-i", "lo", "--via", "scapy", "--for", "3s")
    over.set()
    sender.join()
    assert path.stat().st_size > 500, "no packet was captured"


def compile(kwire: Installed) -> None:
    """Kernels, where none came along: of a file from stdin, whose size nobody knows before."""
    kwire.says(r"EndTxn", "show", "-", input=CAPTURE.read_bytes())


PROMISES: Mapping[str, Callable[[Installed], None]] = {
    BASE: base, "sql": sql, "view": view, "tls": tls, "urls": urls, "metrics": metrics, "payloads": payloads,
    "live": live, "spark": spark, "compile": compile,
}  # fmt: skip


def parts(extra: str) -> list[str]:
    """The extras whose commands work with one: `all` is several."""
    return ["sql", "view", "tls", "urls", "metrics", "payloads", "spark"] if extra == "all" else [extra]


# --- an environment for each -----------------------------------------------------------------------------------------


def site_packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def megabytes(folder: Path) -> float:
    """Size on the disk in MB, each file once."""
    sizes = {(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in map(os.lstat, folder.rglob("*"))}
    return sum(sizes.values()) / 1e6


def new_environment(environment: Path, python: str, wheel: Path, packages: Path, extra: str) -> float:
    """Make an environment with the wheel and one extra, from files only: the seconds that it took."""
    begun = time.monotonic()
    subprocess.run([python, "-m", "venv", "--without-pip", str(environment)], check=True)
    target = str(wheel) if extra == BASE else f"{wheel}[{extra}]"
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", *quiet, "--root-user-action=ignore", "--no-index", "--find-links", str(packages), target],
        check=True,
    )
    subprocess.run([*pip, "check", *quiet], check=True)
    return time.monotonic() - begun


def tried(extra: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """Make the environment of an extra and try what it promises: MB of site-packages, and seconds of the making."""
    from kwire.captures import extras

    folder = Path(tempfile.mkdtemp(prefix="kwire-installed-"))
    folder.chmod(0o755)
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    print(f"{extra}:", flush=True)
    seconds = new_environment(environment, arguments.python, arguments.wheel, arguments.packages, extra)
    size = megabytes(site_packages(environment))
    if extra == "compile":
        shutil.rmtree(site_packages(environment) / "kwire" / "captures" / "object_code")
    for path in (environment, *environment.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    user = None if extra == "live" else arguments.user  # capturing needs rights
    kwire = Installed([str(environment / "bin" / "python")], work, user=user)
    for part in parts(extra):
        PROMISES[part](kwire)
    if extra == BASE:
        for name in ("sql", "view", "tls", "urls", "metrics", "payloads", "spark"):
            kwire.says(re.escape(f"hint: {extras.install(name)}"), *WITHOUT[name], code=2)
    for path in (environment, *environment.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)
    return size, seconds


WITHOUT: Mapping[str, tuple[object, ...]] = {
    "sql": ("sql", "dataset", "SELECT 1"),
    "view": ("view", CAPTURE, "--no-open"),
    "tls": ("show", CAPTURE, "--keylog", "/dev/null"),
    "urls": ("show", "https://127.0.0.1:1/x.pcap"),
    "metrics": ("watch", CAPTURE, "--once", "--metrics", "127.0.0.1:0"),
    "payloads": ("show", CAPTURE, "--records", "--schemas", "."),
    "spark": ("sql", "dataset", "SELECT 1", "--engine", "spark"),
    "live": ("record", "-i", "lo", "--via", "scapy", "-o", "live.pcap", "--for", "1s"),
}
"""A command that needs the extra, for an environment without it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--packages", type=Path, help="a folder of wheels, as pip download leaves it")
    parser.add_argument("--python", default=sys.executable, help="of the environments (default: this one)")
    parser.add_argument("--user", type=int, help="run as this user, who has to be able to read PYTHON (default: self)")
    parser.add_argument("words", nargs="*", help="extras; without --wheel, a Python and extras")
    arguments = parser.parse_args()
    os.umask(0o022)  # that another user may read what is made here
    if not go_offline():
        print("note: not root, or no network namespaces here: the network is not cut off")
    if arguments.wheel is None:
        python, *names = arguments.words
        with tempfile.TemporaryDirectory() as folder:
            kwire = Installed([python, "-S"], Path(folder), os.environ.get("PYTHONPATH", ""))
            for name in names:
                PROMISES[name](kwire)
            print(f"{kwire.commands} commands of {', '.join(names)}")
        return
    from kwire.captures import extras

    arguments.wheel, arguments.packages = arguments.wheel.resolve(), arguments.packages.resolve()
    alone, _ = tried(BASE, arguments)
    table = [f"{'extra':10} {'MB':>6} {'said':>6}  installed in", f"{BASE:10} {alone:6.0f} {'':6}"]
    for extra in arguments.words or extras.MEGABYTES:
        size, seconds = tried(extra, arguments)
        table.append(f"{extra:10} {size - alone:6.0f} {extras.MEGABYTES[extra]:6}  {seconds:.0f} s")
    print("\n".join(table))


if __name__ == "__main__":
    main()
