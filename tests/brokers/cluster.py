"""Starting and ending real brokers, on the loopback only.

In: a `Spec` (version, number of nodes, settings, listeners). Out: a running `Cluster`, which is its own processes' only
owner: nodes are killed, ended and started again by their own process ids. KRaft from 3.3 on; ZooKeeper, started with
the brokers, before.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tests.brokers import jars
from tests.brokers.jars import Java

HOST: Final = "127.0.0.1"
HEAP: Final = "384m"
START_SECONDS: Final = 120
"""A node is up after 1 to 4 seconds; the rest is for a machine that does much else."""

CLUSTER_ID: Final = "a3dpcmUtdGVzdHMtMDAwMQ"
"""16 bytes as Kafka writes them. Always the same, so that storage is formatted once and copied."""

_OPENED: Final = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util")
"""Packages that brokers older than Java 17 look into."""

SECRETS: Final = {"alice": "alice-secret", "bob": "bob-secret"}
"""Users of SASL listeners, made up, and their passwords; `scram_users` makes them known to a broker."""

STORE_PASSWORD: Final = "store-secret"


@dataclass(frozen=True, slots=True)
class Spec:
    """Properties of a cluster to start. Equal specs can share one.

    `settings`: broker properties beside the defaults; `listeners`: name and security protocol of those beside
    PLAINTEXT, as in ("SASL", "SASL_PLAINTEXT"); `cluster_id`: 16 bytes as Kafka writes them (KRaft); `host`: the
    address of all nodes, which this machine must have.
    """

    version: str = jars.NEWEST
    nodes: int = 1
    settings: tuple[tuple[str, str], ...] = ()
    listeners: tuple[tuple[str, str], ...] = ()
    cluster_id: str = CLUSTER_ID
    host: str = HOST

    @property
    def kraft(self) -> bool:
        return _number(self.version) >= (3, 3)


@dataclass(slots=True)
class _Node:
    """`ports` by listener name, CONTROLLER included."""

    number: int
    folder: Path
    ports: Mapping[str, int]
    process: subprocess.Popen[bytes] | None = None


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


_locked_ports: dict[int, IO[bytes]] = {}
"""Ports that this process has given out, each with a file whose lock says so to other test processes."""


def free_port() -> int:
    """A port nobody listens on and no test process has given out, this one or another, as long as that one runs: a
    broker that was killed comes back to its port. Below the ports that the kernel gives to outgoing connections, any of
    which could take it before the broker does."""
    folder = Path(tempfile.gettempdir(), f"kwire-test-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    while True:
        port = random.randrange(15000, 32000)
        if port in _locked_ports:
            continue
        mark = open(folder / str(port), "wb")  # noqa: SIM115  (for as long as this process runs)
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            mark.close()
            continue
        _locked_ports[port] = mark
        return port


@dataclass(slots=True)
class Cluster:
    """Brokers that run. `folder` holds a folder per node: properties, `server.log`, data."""

    spec: Spec
    folder: Path
    java: Java
    lib: Path
    nodes: list[_Node] = field(default_factory=list)
    _zookeeper: subprocess.Popen[bytes] | None = None

    def address(self, listener: str = "PLAINTEXT", node: int = 1) -> str:
        """host:port of a listener of a node (counted from 1)."""
        return f"{self.spec.host}:{self.nodes[node - 1].ports[listener]}"

    @property
    def bootstrap(self) -> str:
        return self.address()

    @property
    def certificate(self) -> Path:
        """Certificate that clients of an SSL listener trust."""
        return self.folder / "certificate.pem"

    def start(self) -> None:
        """Start all nodes and wait until each answers and knows all the others."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ["PLAINTEXT", *(name for name, _ in self.spec.listeners), "CONTROLLER"]
        self.nodes = [
            _Node(number, self.folder / f"node-{number}", {name: free_port() for name in names})
            for number in range(1, self.spec.nodes + 1)
        ]
        if any(protocol.endswith("SSL") for _, protocol in self.spec.listeners):
            self._make_certificate()
        keeper = 0 if self.spec.kraft else self._start_zookeeper()
        for node in self.nodes:
            node.folder.mkdir()
            properties = self._properties(node, keeper)
            (node.folder / "server.properties").write_text(
                "".join(f"{key}={value}\n" for key, value in properties.items())
            )
            if self.spec.kraft:
                self._lay_storage(node)
        for node in self.nodes:
            self._launch(node)
        self.wait()

    def wait(self) -> None:
        """Until every running node names every running node in its metadata."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        running = [node for node in self.nodes if node.process is not None]
        deadline = time.monotonic() + START_SECONDS
        for node in running:
            _wait_for_port((self.spec.host, node.ports["PLAINTEXT"]), node.process, node.folder, deadline)
        for node in running:
            # Its own logger would print each refused connection.
            address = f"{self.spec.host}:{node.ports['PLAINTEXT']}"
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 3000})
            while True:
                try:
                    if len(admin.list_topics(timeout=3).brokers) >= len(running):
                        break
                except KafkaException:
                    pass
                if time.monotonic() > deadline:
                    raise TimeoutError(f"Kafka {self.spec.version} is not complete; see {node.folder / 'server.log'}")
                time.sleep(0.05)

    def kill(self, node: int) -> None:
        """SIGKILL: the node is gone at once, with what it had not written."""
        self._end(self.nodes[node - 1], signal.SIGKILL)

    def restart(self, node: int) -> None:
        """Start a node that was killed, with its data, on its old ports."""
        self._launch(self.nodes[node - 1])
        self.wait()

    def stop(self) -> None:
        """End everything. What it stored is thrown away, so nothing is waited for."""
        for node in self.nodes:
            self._end(node, signal.SIGKILL)
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._zookeeper = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, node: _Node, how: signal.Signals) -> None:
        if node.process is not None:
            node.process.send_signal(how)
            node.process.wait()
            node.process = None

    def _properties(self, node: _Node, keeper: int) -> dict[str, str]:
        protocols = {"PLAINTEXT": "PLAINTEXT", **dict(self.spec.listeners)}
        copies = str(min(3, self.spec.nodes))
        listeners = ",".join(f"{name}://{self.spec.host}:{node.ports[name]}" for name in protocols)
        properties = {
            "log.dirs": str(node.folder / "data"),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "num.partitions": "3",
            "log.retention.ms": "-1",  # captured records may be older than a week
            "group.initial.rebalance.delay.ms": "200",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
        }
        if self.spec.nodes > 1:  # a killed node is replaced as leader when its session has timed out: by default 9 s
            properties |= (
                {"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500"}
                if self.spec.kraft
                else {"zookeeper.session.timeout.ms": "4000"}
            )
        if _number(self.spec.version) >= (4, 1):
            properties |= {
                "share.coordinator.state.topic.num.partitions": "2",
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": "1",
            }
        if self.spec.kraft:
            protocols["CONTROLLER"] = "PLAINTEXT"
            properties |= {
                "node.id": str(node.number),
                "process.roles": "broker,controller",
                "listeners": f"{listeners},CONTROLLER://{HOST}:{node.ports['CONTROLLER']}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": ",".join(
                    f"{voter.number}@{HOST}:{voter.ports['CONTROLLER']}" for voter in self.nodes
                ),
            }
        else:
            properties |= {"broker.id": str(node.number), "zookeeper.connect": f"{HOST}:{keeper}"}
        properties["inter.broker.listener.name"] = "PLAINTEXT"
        properties["listener.security.protocol.map"] = ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        )
        for name, protocol in self.spec.listeners:
            if protocol.startswith("SASL"):
                properties |= _sasl(name)
        if self.certificate.exists():
            properties |= {
                "ssl.keystore.location": str(self.folder / "keystore.p12"),
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.password": STORE_PASSWORD,
            }
        return properties | dict(self.spec.settings)

    def _make_certificate(self) -> None:
        store = str(self.folder / "keystore.p12")
        common = ["-storetype", "PKCS12", "-keystore", store, "-storepass", STORE_PASSWORD, "-alias", "broker"]
        for command in (
            [
                "-genkeypair",
                "-keyalg",
                "EC",
                "-groupname",
                "secp256r1",
                "-dname",
                "CN=localhost",
                "-validity",
                "30",
                "-ext",
                f"SAN=dns:localhost,ip:{HOST}",
                *common,
            ],
            ["-exportcert", "-rfc", "-file", str(self.certificate), *common],
        ):
            subprocess.run([self.java.keytool, *command], check=True, capture_output=True, timeout=START_SECONDS)

    def _lay_storage(self, node: _Node) -> None:
        """Formatted storage: made once a version, by Kafka's own tool, and copied with the node's own ids."""
        template = self.lib.parent / "formatted"
        if not template.exists():
            making = node.folder / "template"
            config = node.folder / "template.properties"
            config.write_text(
                (node.folder / "server.properties")
                .read_text()
                .replace(f"log.dirs={node.folder / 'data'}", f"log.dirs={making}")
            )
            command = self._java("kafka.tools.StorageTool", self._logging(node.folder), heap=HEAP)
            done = subprocess.run(
                [*command, "format", "-t", CLUSTER_ID, "-c", str(config)],
                capture_output=True,
                text=True,
                timeout=START_SECONDS,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"Kafka's StorageTool: {done.stdout}{done.stderr}")
            try:
                shutil.copytree(making, template.with_name(f"formatted-{os.getpid()}"))
                template.with_name(f"formatted-{os.getpid()}").rename(template)
            except OSError:  # another run was faster
                shutil.rmtree(template.with_name(f"formatted-{os.getpid()}"), ignore_errors=True)
        data = node.folder / "data"
        shutil.copytree(template, data)
        own = {"node.id": str(node.number), "directory.id": f"a3dpcmUtdGVzdHMtZGly{node.number}w"}
        own["cluster.id"] = self.spec.cluster_id
        lines = (data / "meta.properties").read_text().splitlines()
        (data / "meta.properties").write_text(
            "".join(f"{key}={own.get(key, value)}\n" for key, _, value in (line.partition("=") for line in lines))
        )

    def _java(self, main: str, options: list[str], heap: str) -> list[str]:
        opens = [part for package in _OPENED for part in ("--add-opens", f"{package}=ALL-UNNAMED")]
        # Brokers here live for seconds: less compilation and the plainest collector start them sooner.
        quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Xmx{heap}", "-Djava.net.preferIPv4Stack=true"]
        return [self.java.java, *quick, *opens, *options, "-cp", f"{self.lib}/*", main]

    def _logging(self, folder: Path) -> list[str]:
        if _number(self.spec.version) >= (4, 0):
            config = folder / "log4j2.properties"
            config.write_text(_LOG4J_2.format(folder=folder))
            return [f"-Dlog4j2.configurationFile={config}"]
        config = folder / "log4j.properties"
        config.write_text(_LOG4J_1.format(folder=folder))
        return [f"-Dlog4j.configuration=file:{config}"]

    def _launch(self, node: _Node) -> None:
        command = self._java("kafka.Kafka", self._logging(node.folder), heap=HEAP)
        node.process = _spawn([*command, str(node.folder / "server.properties")], node.folder)

    def _start_zookeeper(self) -> int:
        folder = self.folder / "zookeeper"
        folder.mkdir()
        port = free_port()
        config = folder / "zoo.cfg"
        config.write_text(
            f"dataDir={folder / 'data'}\nclientPort={port}\nclientPortAddress={HOST}\nadmin.enableServer=false\n"
            "tickTime=2000\nmaxClientCnxns=0\n"
        )
        options = [*self._logging(folder), "-Dzookeeper.jmx.log4j.disable=true"]
        command = self._java("org.apache.zookeeper.server.quorum.QuorumPeerMain", options, heap="128m")
        self._zookeeper = _spawn([*command, str(config)], folder)
        _wait_for_port((HOST, port), self._zookeeper, folder, time.monotonic() + START_SECONDS)
        return port


def _sasl(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    users = " ".join(f'user_{user}="{password}"' for user, password in SECRETS.items())
    common = "org.apache.kafka.common.security"
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}.plain.sasl.jaas.config": f"{common}.plain.PlainLoginModule required {users};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{common}.scram.ScramLoginModule required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{common}.scram.ScramLoginModule required;",
    }


def scram_users(cluster: Cluster) -> None:
    """Make the users of `SECRETS` known to a running cluster for both SCRAM mechanisms (KIP-554)."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = itertools.product(SECRETS.items(), (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512))
    for (user, password), mechanism in wanted:
        info = ScramCredentialInfo(mechanism, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(START_SECONDS)


def _spawn(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A process that ends with this one, even if this one is killed (where util-linux has setpriv)."""
    setpriv = shutil.which("setpriv")
    with open(folder / "out.log", "ab") as out:
        return subprocess.Popen(
            [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
        )


def _wait_for_port(
    address: tuple[str, int], process: subprocess.Popen[bytes] | None, folder: Path, deadline: float
) -> None:
    while True:
        if process is None or process.poll() is not None:
            raise RuntimeError(f"a broker ended as it started; the end of its log:\n{_last_lines(folder)}")
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"port {address[1]} did not open; see {folder}") from None
            time.sleep(0.05)


def _last_lines(folder: Path) -> str:
    return "\n".join(line for log in _logs(folder) for line in log.read_text(errors="replace").splitlines()[-10:])


def _logs(folder: Path) -> Iterator[Path]:
    return (folder / name for name in ("server.log", "out.log") if (folder / name).exists())


_LOG4J_2: Final = """status=error
appenders=f
appender.f.type=File
appender.f.name=f
appender.f.fileName={folder}/server.log
appender.f.layout.type=PatternLayout
appender.f.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRefs=f
rootLogger.appenderRef.f.ref=f
"""
_LOG4J_1: Final = """log4j.rootLogger=WARN, f
log4j.appender.f=org.apache.log4j.FileAppender
log4j.appender.f.File={folder}/server.log
log4j.appender.f.layout=org.apache.log4j.PatternLayout
log4j.appender.f.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
