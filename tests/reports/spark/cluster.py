"""A Spark standalone cluster on loopback: a master and two workers, each a process of its own, as a cluster's machines
would run them. Their executors have no kwire but what a job ships."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from kwire.reports.spark.session import Java, find_java
from tests.shared import KWIRE, ROOT

SECONDS = 120


@dataclass
class Cluster:
    """Processes and their folder. Use as a context manager."""

    folder: Path
    master: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Cluster:
        try:
            log = self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.master = self._logged(log, r"Starting Spark master at (spark://\S+)")
            workers = [self._worker(number) for number in range(2)]
            for log in workers:
                self._logged(log, r"Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _worker(self, number: int) -> Path:
        work = self.folder / f"work-{number}"
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.master)
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options)

    def _start(self, name: str, *command: str) -> Path:
        home = Path(pyspark.__file__).parent
        java = find_java()
        logging = self.folder / "log4j2.properties"
        logging.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %p %c{1}: %m%n\n"
        )
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "JAVA_HOME": str(executors_home(java, self.folder / "java")),
        }
        log = self.folder / f"{name}.log"
        main, *options = command
        with open(log, "wb") as out:
            self.processes.append(
                subprocess.Popen(
                    [
                        str(java.executable),
                        "-Xmx256m",
                        "-cp",
                        str(home / "jars" / "*"),
                        f"-Dlog4j2.configurationFile={logging.as_uri()}",
                        main,
                        "--host",
                        "127.0.0.1",
                        "--webui-port",
                        "0",
                        *options,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=environment,
                    cwd=self.folder,
                )
            )
        return log

    def _logged(self, log: Path, pattern: str) -> str:
        """Wait for a line of a process's log."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            match = re.search(pattern, log.read_text("utf-8", "replace"))
            if match:
                return match[match.lastindex or 0]
            time.sleep(0.05)
        raise AssertionError(f"{log.name} does not say {pattern!r}:\n{log.read_text('utf-8', 'replace')[-2000:]}")

    def executors(self) -> list[int]:
        """Process ids of the executors that the workers started."""
        workers = {process.pid for process in self.processes[1:]}
        processes = []
        for entry in Path("/proc").iterdir():
            try:
                parent = int(re.search(r"^PPid:\s+(\d+)", (entry / "status").read_text(), re.MULTILINE)[1])  # type: ignore[index]
                if parent in workers and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    processes.append(int(entry.name))
            except (OSError, TypeError, ValueError):
                continue
        return processes


def executors_home(java: Java, folder: Path) -> Path:
    """A JAVA_HOME that executors start with. Spark gives them `--add-modules=jdk.incubator.vector`, which a trimmed
    runtime does not have: there, as docs/guides/scale-on-spark.md says, a wrapper leaves the flag out."""
    modules = subprocess.run([str(java.executable), "--list-modules"], capture_output=True, check=True).stdout
    if b"jdk.incubator.vector" in modules:
        return java.home
    wrapper = folder / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True)
        wrapper.write_text(
            "#!/bin/sh\n"
            'for flag do shift; [ "$flag" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$flag"; done\n'
            f"exec '{java.executable}' \"$@\"\n"
        )
        wrapper.chmod(0o755)
    return folder


def shipped(folder: Path) -> Path:
    """kwire as an archive that goes to executors, made as docs/guides/scale-on-spark.md says (without what it depends
    on, which the cluster's machines have)."""
    target = folder / "kwire-env"
    source = folder / "source"  # a build leaves folders where it reads
    source.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in listed.split("\0"):
        if name and (ROOT / name).exists() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            str(target),
            str(source),
        ],
        check=True,
    )
    archive = folder / "kwire-env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        out.add(target, ".")
    return archive


def kwire(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A command of kwire in a process of its own."""
    return subprocess.Popen(
        [*KWIRE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})},
    )


def kill(process: int) -> None:
    """As a machine that is gone."""
    os.kill(process, signal.SIGKILL)
