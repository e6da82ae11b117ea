"""Incidents below Kafka: packets that never arrive, and a disk that keeps in-sync sets waiting."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.brokers import jars
from tests.brokers.cluster import Spec
from tests.incidents.lab import SETTINGS, THREE, Lab, Truth, incident, sleep
from tests.incidents.network import BROKERS, Network, network

FAR = Spec(nodes=3, settings=SETTINGS, host=BROKERS)
"""A cluster that clients reach through a `Network`."""

_IMPATIENT = {"socket.timeout.ms": 6000}


def _steady(lab: Lab, path: Network, topic: str) -> None:
    """Start a writer and a reader that nothing happens to."""
    lab.write("steady-writer", topic, before=path.before)
    lab.read("steady-reader", "steady", topic, before=path.before)


@incident(Truth("request-undelivered", ("alerter", "idle")), FAR)
def idle_kill_client(lab: Lab) -> None:
    """A firewall forgets connections that were idle for 8 s, and drops what comes on them; captured at the client."""
    topic, other = lab.topic("alerts", 1), lab.topic("ticks")
    with network() as path, lab.capture(interface=path.client_interface, before=path.before):
        path.passes = lambda packet: packet.idle < 8
        _steady(lab, path, other)
        lab.write("alerter", topic, rate=1 / 12, before=path.before, config=_IMPATIENT)
        sleep(35)


@incident(Truth(None, hidden="What the firewall drops never comes to the broker, which sees a silent connection"), FAR)
def idle_kill_broker(lab: Lab) -> None:
    """A firewall forgets connections that were idle for 8 s; captured at the broker, behind it."""
    topic, other = lab.topic("alerts", 1), lab.topic("ticks")
    with network() as path, lab.capture(interface=path.interface):
        path.passes = lambda packet: packet.idle < 8
        _steady(lab, path, other)
        lab.write("alerter", topic, rate=1 / 12, before=path.before, config=_IMPATIENT)
        sleep(35)


@incident(Truth("request-undelivered", ("uploader", "MTU")), FAR)
def mtu_blackhole_client(lab: Lab) -> None:
    """Packets of more than 1,300 bytes to the brokers are lost; captured at the client."""
    topic, small = lab.topic("images", 1), lab.topic("ticks")
    with network() as path, lab.capture(interface=path.client_interface, before=path.before):
        path.passes = lambda packet: packet.length <= 1300 or not packet.to_broker
        _steady(lab, path, small)
        lab.write("uploader", topic, rate=5, size=8000, before=path.before, config=_IMPATIENT)
        sleep(20)


@incident(Truth("request-undelivered", ("viewer", "MTU")), FAR)
def mtu_blackhole(lab: Lab) -> None:
    """Packets of more than 1,300 bytes from the brokers are lost; captured at the brokers."""
    topic, small = lab.topic("images", 1), lab.topic("ticks")
    lab.write("uploader", topic, rate=50, size=8000, seconds=2).process.wait()
    with network() as path, lab.capture(interface=path.interface):
        path.passes = lambda packet: packet.length <= 1300 or packet.to_broker
        lab.write("steady-writer", small, before=path.before)
        lab.read("viewer", "views", topic, before=path.before, config=_IMPATIENT)
        sleep(20)


@incident(Truth("request-undelivered", ("{node_2}",), also=("connect-failed",)), FAR)
def black_hole(lab: Lab) -> None:
    """The way to node 2 breaks: nothing passes in either direction any more; captured at the clients."""
    topic = lab.topic("clicks", 6)
    port = lab.cluster.nodes[1].ports["PLAINTEXT"]
    with network() as path, lab.capture(interface=path.client_interface, before=path.before):
        lab.write("click-writer", topic, rate=50, before=path.before, config=_IMPATIENT)
        lab.read("click-reader", "clicks", topic, before=path.before, config=_IMPATIENT)
        sleep(6)
        path.passes = lambda packet: packet.broker_port != port
        sleep(16)


@incident(Truth("tcp-retransmission", ("{node_2}",)), FAR)
def lossy_link(lab: Lab) -> None:
    """Each eighth packet to node 2 is lost; captured at the clients."""
    topic = lab.topic("tiles", 6)
    port, numbers = lab.cluster.nodes[1].ports["PLAINTEXT"], itertools.count(1)
    with network() as path, lab.capture(interface=path.client_interface, before=path.before):
        path.passes = lambda packet: packet.broker_port != port or not packet.to_broker or next(numbers) % 8 != 0
        lab.write("tile-writer", topic, rate=100, size=2000, before=path.before)
        lab.read("tile-reader", "tiles", topic, before=path.before)
        sleep(15)


_SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static int slowly(const char *name, int file) {
    if (access(SWITCH, F_OK) == 0) usleep(400000);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(file);
}
int fsync(int file) { return slowly("fsync", file); }
int fdatasync(int file) { return slowly("fdatasync", file); }
"""


@contextlib.contextmanager
def _disk_of(lab: Lab, number: int) -> Iterator[Path]:
    """A node whose every fsync takes 400 ms for as long as the file exists that this yields."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise jars.Unavailable("no C compiler, for a disk that is slow")
    switch, library = lab.capture_path.with_suffix(".slow"), lab.capture_path.with_suffix(".so")
    command = [compiler, "-shared", "-fPIC", "-x", "c", f'-DSWITCH="{switch}"', "-o", str(library), "-"]
    subprocess.run(command, input=_SLOW_SYNC, text=True, check=True)
    lab.cluster.kill(number)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        lab.cluster.restart(number)
    finally:
        del os.environ["LD_PRELOAD"]
    try:
        yield switch
    finally:
        switch.unlink(missing_ok=True)
        lab.cluster.kill(number)
        lab.cluster.restart(number)


@incident(Truth("replication-slow", ("{node_3}",)), THREE)
def slow_disk(lab: Lab) -> None:
    """Each fsync of node 3 takes 400 ms for 15 s; acks=all waits for it everywhere."""
    with _disk_of(lab, 3) as switch:
        topic = lab.topic("payments", 6, flush_messages="1", min_insync_replicas="2")
        sleep(5)  # until node 3 is in sync and leads again
        with lab.capture():
            for number in range(2):
                lab.write(f"payer-{number}", topic, rate=30, config={"acks": "all"})
            lab.read("booking", "bookings", topic)
            lab.write("audit", topic, rate=10, config={"acks": "1"})
            sleep(6)
            switch.touch()
            sleep(15)
            switch.unlink()
            sleep(5)
