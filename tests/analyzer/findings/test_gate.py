"""No false alarms: real captures of healthy brokers and clients raise nothing at warning or above, and where something
was done to them, what is raised is named here with its reason.

Proves: analyzer/findings/
"""

from __future__ import annotations

import datetime
import struct
from pathlib import Path

import pytest

from kwire import analyzer
from tests.analyzer.findings.evaluating import SEVERE, codes, judged
from tests.shared import SAMPLES, SHARED, capture_files, sample_folders, shared_folder, shared_folders

NOT_CLEAN: dict[str, dict[str, str]] = {
    "errors-librdkafka-4.3": {
        "topic-missing": "the script asks for topics that do not exist",
        "message-too-large": "and sends a record of 300 kB to a topic that takes less",
        "version-refused": "and Metadata in version 99 by hand",
        "unknown-api": "and API 999",
        "not-kafka": "and GET",
    },
    "net-lossy-4.3": {"tcp-retransmission": "a link that loses 2 % of the packets"},
    "snaplen-96-4.3": {"capture-snaplen": "cut to 96 bytes"},
    "midstream-4.3": {},
    "sasl-librdkafka-4.3": {
        "authentication-failed": "wrong passwords, and users that are not there",
        "authorization-failed": "bob, carol and dave lack rights on topics and groups",
    },
    "admin-java-4.3": {},
    "admin-kafkapython-3.9": {},
    "admin-librdkafka-4.3": {"client-throttled": "a producer is given a quota on purpose"},
    "group-classic-librdkafka-4.3": {"member-session-timeout": "the third member is killed"},
    "group-kip848-librdkafka-4.3": {},
    "group-share-java-4.3": {},
    "cluster-kraft-3.9": {
        "broker-lost": "a leader is killed",
        "not-enough-replicas": "while two of three replicas are gone",
        "fetch-above-high-watermark": "when the killed leader comes back, the consumer spins for seconds",
    },
    "cluster-zk-2.8": {
        "broker-lost": "a leader is killed, and another node stopped",
        "not-enough-replicas": "while two of three replicas are gone",
    },
    "zoo-confluent-2.5.3-on-mock-2.0.2": {"frame-malformed": "the mock cluster answers ApiVersions wrongly"},
    "tls13-aiokafka-4.3": {"tls-not-decoded": "without its keys"},
    "old-librdkafka-1.3.0-on-3.9": {},
    "zoo-kafka-python-1.0.2-on-0.9": {},
}
"""Captures to which something was done on purpose: the codes that they raise at warning or above, and why. All others
are clean."""

NAMES = sorted({folder.name for folder in (*shared_folders(), *sample_folders())} | set(NOT_CLEAN))


@pytest.mark.parametrize("name", NAMES)
def test_only_what_was_done_on_purpose_is_a_warning(name: str) -> None:
    folder = SAMPLES / name if (SAMPLES / name).is_dir() else shared_folder(name)
    dataset = analyzer.analyze([str(path) for path in capture_files(folder)], rotated=True)
    findings = judged(dataset)
    severe = [
        f"{finding.severity} {finding.code}: {finding.text}" for finding in findings if finding.severity in SEVERE
    ]
    assert set(codes(findings, *SEVERE)) == set(NOT_CLEAN.get(name, {})), severe
    assert dataset.findings.column("code").to_pylist() == [finding.code for finding in findings]
    times = [
        (finding.since, finding.until)
        for finding in findings
        if finding.since is not None and finding.until is not None
    ]
    (capture,) = dataset.captures
    first, last = (datetime.datetime.fromisoformat(capture[name]) for name in ("first_time", "last_time"))
    rows = dataset.findings.select(["code", "since", "until"]).to_pylist()
    assert all(since <= until for since, until in times), times
    assert all(row["since"] is None or first <= row["since"] <= row["until"] <= last for row in rows), rows


def test_the_samples_hold_clean_captures_and_others() -> None:
    names = {folder.name for folder in sample_folders()}
    assert names & set(NOT_CLEAN)
    assert names - set(NOT_CLEAN)


def test_every_capture_in_the_table_is_there() -> None:
    if SHARED.is_dir():
        there = {path.name for path in SHARED.iterdir()} | {folder.name for folder in sample_folders()}
        assert set(NOT_CLEAN) <= there


def test_a_written_dataset_holds_what_one_in_memory_does(tmp_path: Path) -> None:
    capture = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    memory = analyzer.analyze(capture)
    analyzer.analyze(capture, tmp_path / "dataset")
    written = analyzer.open_dataset(tmp_path / "dataset").findings.to_table()
    assert written.to_pylist() == memory.findings.to_pylist()
    assert len(written)


def packets_of(capture: Path) -> tuple[bytes, list[bytes]]:
    """A pcap file's header, and its packets, each with its own."""
    data = capture.read_bytes()
    assert data[:4] == struct.pack("<I", 0xA1B2C3D4)
    packets, at = [], 24
    while at < len(data):
        size = 16 + struct.unpack_from("<I", data, at + 8)[0]
        packets.append(data[at : at + size])
        at += size
    return data[:24], packets


def test_who_may_have_left_in_packets_that_are_missing_is_not_said_to_have_expired(tmp_path: Path) -> None:
    """A member leaves, and another is killed, in the packets that are taken out."""
    header, packets = packets_of(shared_folder("group-classic-librdkafka-4.3") / "capture.pcap")
    file = tmp_path / "capture.pcap"
    file.write_bytes(header + b"".join(packets[:2987] + packets[3285:]))
    counts = codes(judged(analyzer.analyze(file)))
    assert "capture-lost-packets" in counts
    assert "member-session-timeout" not in counts


def test_a_capture_in_twenty_files_and_small_windows_has_the_findings_of_one(tmp_path: Path) -> None:
    capture = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    header, packets = packets_of(capture)
    files = [tmp_path / f"capture-{number:02}.pcap" for number in range(20)]
    for number, file in enumerate(files):
        share = packets[number * len(packets) // 20 : (number + 1) * len(packets) // 20]
        file.write_bytes(header + b"".join(share))
    whole = analyzer.analyze(capture).findings
    pieces = analyzer.analyze([str(file) for file in files], rotated=True, window_bytes=20_000, threads=4).findings
    assert len(whole) > 10
    assert pieces.drop_columns(["capture"]).to_pylist() == whole.drop_columns(["capture"]).to_pylist()
