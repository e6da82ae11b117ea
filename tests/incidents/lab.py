"""A lab of real brokers and clients whose packets `kwire record` captures, and the judgement of what is said of them.

In: an incident (`incident`: a function of a `Lab`, and the truth). Out: a `Verdict`: did the first screen of `kwire
findings` name the cause and who, and nothing false? Clusters are shared by the incidents that ask for equal ones.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.analyzer.live.running import capturing
from tests.brokers import jars
from tests.brokers.cluster import Cluster, Spec
from tests.shared import KWIRE, ROOT

FIRST_SCREEN: Final = 4
"""Findings that fit on a screen of 24 lines or so."""

SETTINGS: Final = (
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ("super.users", "User:ANONYMOUS"),
    ("auto.create.topics.enable", "false"),
    ("group.consumer.min.session.timeout.ms", "3000"),
    ("group.consumer.session.timeout.ms", "6000"),
    ("group.consumer.min.heartbeat.interval.ms", "500"),
    ("group.consumer.heartbeat.interval.ms", "1000"),
    ("group.min.session.timeout.ms", "3000"),
)
LISTENERS: Final = (("SASL", "SASL_PLAINTEXT"), ("EXTERNAL", "PLAINTEXT"))
THREE: Final = Spec(nodes=3, settings=SETTINGS, listeners=LISTENERS)
"""The cluster that most incidents share."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The statement that an incident calls for.

    `code`: of a finding on the first screen (any of several, where two say the same thing); `who`: words that it must
    name (`{node_2}`: the address of node 2); `also`: codes of errors and warnings that are true besides; `notes`: at
    most so many findings of any kind. A code of None: the wire cannot tell the cause, for the reason `hidden`; then
    nothing but `also` may be said.
    """

    code: str | tuple[str, ...] | None
    who: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    hidden: str = ""
    notes: int | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        return (self.code,) if isinstance(self.code, str) else self.code or ()


@dataclass(frozen=True, slots=True)
class Incident:
    """A function that lets something happen in a `Lab`, by name, with its truth and the brokers that it needs."""

    name: str
    truth: Truth
    spec: Spec
    happen: Callable[[Lab], None]

    @property
    def cause(self) -> str:
        return (self.happen.__doc__ or "").strip()


INCIDENTS: dict[str, Incident] = {}


def incident(truth: Truth, spec: Spec = THREE) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Register an incident; its docstring tells the cause."""

    def register(happen: Callable[[Lab], None]) -> Callable[[Lab], None]:
        name = happen.__name__.replace("_", "-")
        INCIDENTS[name] = Incident(name, truth, spec, happen)
        return happen

    return register


class Client:
    """A client in a process of its own."""

    def __init__(self, command: list[str], stdout: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL
        )

    def stop(self, seconds: float = 10) -> None:
        """End it in order."""
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still, as in a long collection of garbage."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@dataclass
class Lab:
    """A cluster, the clients that were started at it, and a capture. `minutes`: how long a healthy hour lasts; `name`:
    prefix that makes names unique."""

    cluster: Cluster
    capture_path: Path
    minutes: float = 2
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:4])
    clients: list[Client] = field(default_factory=list)
    operator: Any = None

    def topic(
        self, name: str, partitions: int = 3, copies: int = 0, config: dict[str, str] | None = None, **more: str
    ) -> str:
        """Create a topic on as many nodes as there are, and return its name, which is of this run alone."""
        from confluent_kafka.admin import NewTopic

        name = f"{name}-{self.name}"
        settings = {**(config or {}), **{key.replace("_", "."): value for key, value in more.items()}}
        new = NewTopic(name, partitions, copies or min(3, self.cluster.spec.nodes), config=settings)
        self.admin().create_topics([new])[name].result(30)
        time.sleep(0.5)  # until all nodes know it
        return name

    def admin(self) -> Any:
        """An operator's client; it must live until its answers have come."""
        from confluent_kafka.admin import AdminClient

        if self.operator is None:
            self.operator = AdminClient({"bootstrap.servers": self.bootstrap, "client.id": "operator", "log_level": 0})
        return self.operator

    @property
    def bootstrap(self) -> str:
        return self.addresses()

    def addresses(self, listener: str = "PLAINTEXT") -> str:
        return ",".join(
            self.cluster.address(listener, node.number) for node in self.cluster.nodes if node.process is not None
        )

    def start(self, program: str, client_id: str, *, before: tuple[str, ...] = (), **arguments: Any) -> Client:
        """Start one of `clients.PROGRAMS`; `config` is added to its own; `before`: words before the command."""
        config = {"bootstrap.servers": self.bootstrap, "client.id": client_id, "log_level": 0}
        if program.startswith(("aio", "pure")):
            config = {"bootstrap_servers": self.bootstrap, "client_id": client_id}
        arguments["config"] = config | arguments.get("config", {})
        return self.run([*before, sys.executable, "-m", "tests.incidents.clients", program, json.dumps(arguments)])

    def write(self, client_id: str, topic: str, *, config: dict[str, Any] | None = None, **arguments: Any) -> Client:
        return self.start("write", client_id, topic=topic, config=config or {}, **arguments)

    def read(
        self, client_id: str, group: str, *topics: str, config: dict[str, Any] | None = None, **arguments: Any
    ) -> Client:
        """Start a reader in a group, whose name gets the run's."""
        config = {"group.id": f"{group}-{self.name}", **(config or {})}
        return self.start("read", client_id, topics=list(topics), config=config, **arguments)

    def run(self, command: list[str], stdout: int = subprocess.DEVNULL) -> Client:
        self.clients.append(Client(command, stdout))
        return self.clients[-1]

    def java(self, main: str, *arguments: str, lib: Path | None = None) -> list[str]:
        """A command that runs one of Kafka's own programs."""
        path = f"{self.cluster.lib}/*" + (f":{lib}/*" if lib else "")
        return [self.cluster.java.java, "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", path, main, *arguments]

    def tool(self, main: str, *arguments: str) -> None:
        """Run one of Kafka's tools to its end."""
        command = self.java(main, "--bootstrap-server", self.bootstrap, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{main}: {done.stdout[-500:]}{done.stderr[-500:]}")

    def set_broker(self, key: str, value: str | None, node: int | None = None) -> None:
        """Change a property of a running node (by default the first one)."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value or "0", incremental_operation=operation)
        resource = ConfigResource("broker", str(node or self.cluster.nodes[0].number), incremental_configs=[entry])
        for future in self.admin().incremental_alter_configs([resource]).values():
            future.result(30)

    @contextlib.contextmanager
    def frozen_node(self, number: int) -> Iterator[None]:
        """A node stands still."""
        process = self.cluster.nodes[number - 1].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def capture(
        self, ports: tuple[int, ...] = (), interface: str = "lo", before: tuple[str, ...] = ()
    ) -> Iterator[None]:
        """Record what is sent to and from the listeners that clients use; then end the clients."""
        every = [
            port for node in self.cluster.nodes for listener, port in node.ports.items() if listener != "CONTROLLER"
        ]
        bpf = " or ".join(f"tcp port {port}" for port in [*every, *ports])
        record = ("record", "-i", interface, "-f", bpf, "-o", self.capture_path)
        with capturing(*record, before=before, seconds=60 * self.minutes + 300) as recording:
            yield
            self.end_clients()
            time.sleep(0.2)
            if recording.end() < 0:  # killed
                raise RuntimeError("".join(recording.stderr_lines))

    def end_clients(self) -> None:
        """End all clients in order, at once."""
        threads = [threading.Thread(target=client.stop) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.clients.clear()


def sleep(seconds: float) -> None:
    """Let the clients work."""
    time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings` of a capture, as `kwire findings --json` has them, against the truth."""

    incident: Incident
    findings: list[dict[str, Any]]

    @property
    def judged(self) -> list[dict[str, Any]]:
        """Findings without those that are of this machine: see README.md."""
        return [row for row in self.findings if row["code"] in self.incident.truth.codes or not _of_machine(row)]

    @property
    def named(self) -> list[dict[str, Any]]:
        """Findings with a code of the truth that name who."""
        return [
            row
            for row in self.judged[:FIRST_SCREEN]
            if row["code"] in self.incident.truth.codes
            and all(word in json.dumps(row) for word in self.incident.truth.who)
        ]

    @property
    def false(self) -> list[dict[str, Any]]:
        """Errors and warnings that the truth does not have."""
        allowed = {*self.incident.truth.codes, *self.incident.truth.also}
        return [row for row in self.judged if row["severity"] != "note" and row["code"] not in allowed]

    @property
    def word(self) -> str:
        truth = self.incident.truth
        if self.false or (truth.notes is not None and len(self.judged) > truth.notes):
            return "false"
        if truth.code is None:
            return "hidden"
        return "right" if self.named else "silent"

    @property
    def good(self) -> bool:
        return self.word in ("right", "hidden")

    def __str__(self) -> str:
        """A line, and what is wrong below it."""
        first = "; ".join(f"{row['severity']} {row['code']}" for row in self.findings[:FIRST_SCREEN])
        lines = [f"{self.word:7} {self.incident.name:28} {first}"]
        if not self.good:
            truth = self.incident.truth
            lines.append(f"        must say {' or '.join(truth.codes) or 'nothing'} {' '.join(truth.who)}")
            lines += [f"        {row['severity']} {row['code']}: {row['text']}" for row in self.false or self.findings]
        return "\n".join(lines)


def _of_machine(row: dict[str, Any]) -> bool:
    """Whether a finding is of a machine that does much else: brokers without CPU answer late, and TCP sends again."""
    return row["code"] in ("tcp-retransmission", "broker-stall", "broker-slow")


def findings_of(capture: Path) -> list[dict[str, Any]]:
    """Rows of `kwire findings --json`, worst first."""
    done = subprocess.run(
        [*KWIRE, "findings", str(capture), "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(incident: Incident, cluster: Cluster, folder: Path, minutes: float = Lab.minutes) -> Verdict:
    """Let an incident happen and look at its capture; nodes that it left dead are started again."""
    folder.mkdir(parents=True, exist_ok=True)
    capture = folder / f"{incident.name}.pcap"
    lab = Lab(cluster, capture, minutes)
    try:
        incident.happen(lab)
    finally:
        for client in lab.clients:
            client.kill()
        for node in cluster.nodes:
            if node.process is None or node.process.poll() is not None:
                node.process = None
                cluster.restart(node.number)
    addresses = {f"node_{node.number}": cluster.address(node=node.number) for node in cluster.nodes}
    who = tuple(word.format(**addresses) for word in incident.truth.who)
    return Verdict(replace(incident, truth=replace(incident.truth, who=who)), findings_of(capture))


class Clusters:
    """Clusters that run, one for each spec that was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[Spec, Cluster] = {}

    def get(self, spec: Spec) -> Cluster:
        if spec not in self.running:
            folder = self.folder / f"cluster-{len(self.running)}"
            cluster = Cluster(spec, folder, jars.find_java(), jars.fetch(spec.version))
            self.running[spec] = cluster
            cluster.start()
        return self.running[spec]

    def stop(self) -> None:
        for cluster in self.running.values():
            cluster.stop()
