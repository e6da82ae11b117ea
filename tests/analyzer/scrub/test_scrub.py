"""`kwire scrub` from file to file: what it writes analyses to the same tables, and nothing of the original is in it.

proves: kwire.analyzer.scrub.rewrite, kwire.analyzer.scrub.prefixes, kwire.analyzer.scrub.streams,
kwire.analyzer.scrub.packets, kwire.analyzer.scrub.verification, kwire.analyzer.scrub.command, kwire.captures.dissect.
"""

from __future__ import annotations

import json
import os
import random
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from kwire.analyzer.cli import parser
from kwire.analyzer.scrub.rewrite import Report, Task, scrub
from kwire.analyzer.scrub.verification import Finder
from kwire.captures import dissect as d
from kwire.captures.files import capture_points
from kwire.captures.files.write import Record, pcap, pcapng
from kwire.captures.packets import Reader
from tests import forked
from tests.analyzer import forging
from tests.analyzer.bulk.test_in_the_wild import BEFORE, behind
from tests.analyzer.scrub import sameness
from tests.captures.forge import Segment, converse, cut, internet_checksum, loaded, overlapped, rendered, retransmitted
from tests.shared import SAMPLES, capture_files, shared_folder

KEY = b"k" * 32
MARK = b"CaNaRy"


def cleaned(path: Path, folder: Path, task: Task = Task(KEY)) -> tuple[Path, Report]:  # noqa: B008  (frozen)
    out = folder / "clean.pcapng"
    return out, scrub(capture_points([str(path)])[0], str(out), task)


def check_same(path: Path, folder: Path) -> Report:
    """Scrub a capture, and compare all tables; names must be paired one to one."""
    out, report = cleaned(path, folder)
    before, after = (sameness.tables(capture, records="full") for capture in (path, out))
    assert not sameness.differences(before, after)
    pairs: dict[str, str] = {}
    for capture, other in zip(sameness.names(before), sameness.names(after), strict=True):
        assert capture[:3] == other[:3]
        assert pairs.setdefault(capture[3], other[3]) == other[3]
    assert len(set(pairs.values())) == len(pairs)
    written = out.read_bytes()
    for text, became in pairs.items():
        if text != became:
            assert len(text) < 4 or text.encode() not in written
    return report


@pytest.mark.parametrize("name", ["admin-kafkapython-3.9", "codecs-franzgo-4.3", "old-java-0.8.2"])
def test_samples_analyse_to_the_same_tables(name: str, tmp_path: Path) -> None:
    report = check_same(capture_files(SAMPLES / name)[0], tmp_path)
    assert report.lost_batches == 0
    assert report.unread_bytes == 0


@pytest.mark.parametrize("name", ["ipv6-4.3", "snaplen-96-4.3"])
def test_shared_captures_analyse_to_the_same_tables(name: str, tmp_path: Path) -> None:
    """Of IPv6; with packets cut off."""
    check_same(capture_files(shared_folder(name))[0], tmp_path)


def test_tls_is_zeros_and_still_tls(tmp_path: Path) -> None:
    path = capture_files(shared_folder("tls13-aiokafka-4.3"))[0]
    out, report = cleaned(path, tmp_path)
    assert report.tls_connections
    before, after = (sameness.tables(path_) for path_ in (path, out))
    columns = ("tls", "client_bytes", "broker_bytes", "opaque_encrypted_bytes", "packets", "gaps", "closed")
    known = [column for column in columns if column in (before["connections"] or [{}])[0]]
    for path_, other in zip(before["connections"], after["connections"], strict=True):
        assert [path_[column] for column in known] == [other[column] for column in known]
    assert b"http" not in out.read_bytes()


# --- forged ----------------------------------------------------------------------------------------------------------


def conversation(exchanges: int = 12) -> list[bytes]:
    """Requests that name somebody."""
    return [
        forging.request(
            forging.METADATA, 1, i, {"topics": [{"name": f"{MARK.decode()}-{i}"}]}, f"client-{MARK.decode()}"
        )
        for i in range(exchanges)
    ]


def answers(exchanges: int = 12) -> list[bytes]:
    return [
        forging.response(
            forging.METADATA,
            1,
            i,
            {
                "brokers": [{"nodeId": 1, "host": "10.7.3.19", "port": 9092, "rack": f"rack-{MARK.decode()}"}],
                "controllerId": 1,
                "topics": [{"errorCode": 0, "name": f"{MARK.decode()}-{i}", "isInternal": False, "partitions": []}],
            },
        )
        for i in range(exchanges)
    ]


def segments() -> list[Segment]:
    writes = []
    for request, answer in zip(conversation(), answers(), strict=True):
        writes += [forging.asking(request), forging.answering(answer)]
    return converse(writes, mss=40)


@pytest.mark.parametrize("seed", range(4))
def test_copies_of_a_byte_stay_copies(seed: int, tmp_path: Path) -> None:
    """Sent again, overlapping, cut off: each byte becomes the same wherever it stands."""
    rng = random.Random(seed)
    packets = retransmitted(rendered(overlapped(segments(), rng, 0.3)), rng, 0.3)
    records = cut(packets, 90) if seed == 3 else packets
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(records, nanoseconds=True))
    check_same(path, tmp_path)
    written = (tmp_path / "clean.pcapng").read_bytes()
    assert MARK not in written
    assert MARK.lower() not in written
    point = capture_points([str(tmp_path / "clean.pcapng")])[0]
    rows = [row for batch in d.Dissector(point) for row in batch.rows.tolist()]
    assert [(path_.time_ns, len(path_.data), path_.wire_length) for path_ in records] == [
        (row[d.TIME_NS], row[d.CAPTURED], row[d.ORIGINAL]) for row in rows
    ]


def udp(payload: bytes) -> bytes:
    """An Ethernet frame with a datagram."""
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 7, 0, 64, 17, 0, b"\x0a\1\2\3", b"\x0a\1\2\4")
    head = head[:10] + internet_checksum(head).to_bytes(2, "big") + head[12:]
    frame = bytes.fromhex("001b21aabbcc 001b21ddeeff 0800") + head
    return frame + struct.pack(">HHHH", 53, 5353, 8 + len(payload), 0x1234) + payload


def test_what_is_no_kafka_is_zeros(tmp_path: Path) -> None:
    """DNS, ARP, other types, fragments, an HTTP connection, trailers, damaged segments that nobody acknowledged, names
    and comments of the file, options of IP and TCP: a marker in each."""
    marked = MARK * 4
    frames = [
        udp(marked),
        bytes.fromhex("ffffffffffff 001b21ddeeff 0806") + marked,
        bytes.fromhex("001b21aabbcc 001b21ddeeff 88cc") + marked,
        bytes.fromhex("001b21aabbcc 001b21ddeeff 0010") + marked,
        b"short" + MARK[:3],
    ]
    fragment = bytearray(udp(marked))
    fragment[20] |= 0x20
    frames.append(bytes(fragment))
    http = converse([forging.asking(b"GET /" + marked + b" HTTP/1.1\r\n\r\n"), forging.answering(marked)])
    kafka = rendered(segments())
    damaged = bytearray(kafka[-1].data)
    trailing = Record(kafka[3].time_ns, kafka[3].data + marked, kafka[3].wire_length + len(marked))
    options = bytearray(kafka[0].data)
    records = [Record(i, frame, len(frame)) for i, frame in enumerate(frames)]
    records += [*rendered(http), *kafka[:3], trailing, *kafka[4:], Record(10**12, bytes(damaged + marked), 2000)]
    records.append(Record(10**12 + 1, _with_options(bytes(options), marked), len(options) + 40))
    path = tmp_path / "capture.pcapng"
    path.write_bytes(pcapng(records, comment=marked.decode()))
    out, report = cleaned(path, tmp_path)
    written = out.read_bytes()
    assert MARK not in written
    for piece in (bytes.fromhex("001b21"), b"\x0a\1\2\3", b"\x0a\1\2\4", b"HTTP", b"GET"):
        assert piece not in written
    _, again = loaded(out)
    assert [len(path_.data) for path_ in again] == [len(path_.data) for path_ in records]
    assert report.packets == len(records)
    assert report.not_tcp_packets >= 4
    assert report.fragments == 1


def _with_options(frame: bytes, text: bytes) -> bytes:
    """A SYN with options of IP and of TCP that hold a text: a route, a key's signature."""
    ip = bytearray(frame[14:34])
    tcp = bytearray(frame[34:54])
    route = b"\x83" + bytes([len(text) - 8 + 2]) + text[:16] + b"\0\0"
    signature = b"\x13\x12" + text[:16] + b"\x01\x01"
    ip[0] = 0x40 | (20 + len(route)) // 4
    tcp[12] = (20 + len(signature)) // 4 << 4
    ip[2:4] = (20 + len(route) + 20 + len(signature)).to_bytes(2, "big")
    return frame[:14] + bytes(ip) + route + bytes(tcp) + signature


@pytest.mark.parametrize("name", BEFORE)
def test_what_stands_before_the_first_message_names_somebody_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(converse(behind(name), mss=23)), nanoseconds=True))
    out, _ = cleaned(path, tmp_path)
    before, after = (sameness.tables(path_) for path_ in (path, out))
    assert not sameness.differences(before, after)
    (path_,), (other,) = (some["connections"] for some in (before, after))
    for end in ("proxied_from", "proxied_to"):
        assert (path_[end] is None) == (other[end] is None)
        assert path_[end] is None or (
            path_[end] != other[end] and path_[end].split(":")[-1] == other[end].split(":")[-1]
        )
    written = out.read_bytes()
    for text in (b"10.1.2.3", b"kafka.test", b"secret", b"Basic", b"vpce", b"10.9.9.9", b"2001:db8"):
        assert text not in written


def test_raw_tokens_of_sasl_keep_their_lengths_and_nothing_else(tmp_path: Path) -> None:
    """SaslHandshake v0: what follows has no header (KIP-43)."""
    token = forging.framed(b"\0alice\0" + MARK)
    writes = [
        forging.asking(forging.request(forging.SASL_HANDSHAKE, 0, 1, {"mechanism": "PLAIN"})),
        forging.answering(forging.response(forging.SASL_HANDSHAKE, 0, 1, {"mechanisms": ["PLAIN"]})),
        forging.asking(token),
        forging.answering(forging.framed(b"")),
        forging.asking(forging.heartbeat(2)),
        forging.answering(forging.heartbeat_answer(2)),
    ]
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(converse(writes)), nanoseconds=True))
    check_same(path, tmp_path)
    written = (tmp_path / "clean.pcapng").read_bytes()
    assert MARK not in written
    assert b"alice" not in written
    assert token[:4] + b"\xff" * (len(token) - 4) in written


def test_checksums_are_as_right_as_they_were(tmp_path: Path) -> None:
    records = rendered(segments())
    broken = bytearray(records[5].data)
    broken[50] ^= 0x41
    off = bytearray(records[7].data)
    off[50:52] = b"\0\0"
    records[5] = Record(records[5].time_ns, bytes(broken), records[5].wire_length)
    records[7] = Record(records[7].time_ns, bytes(off), records[7].wire_length)
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(records, nanoseconds=True))
    out, _ = cleaned(path, tmp_path)
    _, again = loaded(out)

    def verdicts(some: list[Record]) -> list[tuple[bool, bool, bool]]:
        lines = []
        for path_ in some:
            ip, tcp = path_.data[14:34], path_.data[34 : 14 + int.from_bytes(path_.data[16:18], "big")]
            pseudo = ip[12:20] + b"\0\6" + len(tcp).to_bytes(2, "big")
            lines.append((internet_checksum(ip) == 0, internet_checksum(pseudo + tcp) == 0, tcp[16:18] == b"\0\0"))
        return lines

    assert verdicts(again) == verdicts(records)
    assert [path_[1] for path_ in verdicts(again)].count(False) == 2


def test_the_anatomy_counts_as_the_reader_does() -> None:
    for folder in ("codecs-franzgo-4.3", "txn-librdkafka-4.3"):
        point = capture_points([str(capture_files(SAMPLES / folder)[0])])[0]
        reader = Reader(point)
        tcp = sum(len(packets) for packets in reader)
        rows = [row for batch in d.Dissector(point, window_bytes=4096) for row in batch.rows.tolist()]
        assert len(rows) == reader.counts["packets"]
        assert sum(row[d.KIND] == 6 for row in rows) == tcp
        assert [row[d.ORDINAL] for row in rows] == list(range(1, len(rows) + 1))


# --- the command -----------------------------------------------------------------------------------------------------


def kwire(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return forked.run("scrub", *arguments, input=stdin, text=False)


def called(text: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command in this process, which is quicker: its exit code, and what it says on stderr."""
    try:
        code = parser.main(["scrub", *arguments])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    return code, text.readouterr().err


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "capture.pcap"
    path.write_bytes(pcap(rendered(segments()), nanoseconds=True))
    return path


def test_the_command_writes_a_clean_capture_for_its_owner_alone(capture: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    outs = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    first = kwire(str(capture), "-o", str(outs[0]), "--key", str(key))
    assert (first.returncode, first.stderr) == (0, b"")
    assert f"{outs[0]} is a clean capture".encode() in first.stdout
    second = kwire("-", "-o", str(outs[1]), "--key", str(key), "--json", stdin=capture.read_bytes())
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["messages"] == 24
    assert outs[0].read_bytes() == outs[1].read_bytes(), "the same key makes the same capture"
    assert stat.S_IMODE(outs[0].stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["a.pcapng", "b.pcapng", "capture.pcap", "key"], "nothing is left behind"


def test_the_capture_itself_is_not_written_over(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.pcap"
    link.symlink_to(capture)
    before = capture.read_bytes()
    for out in (capture, link):
        assert called(capsys, str(capture), "-o", str(out)) == (
            2,
            f"kwire: -o {out}: is the capture itself\nhint: name another file\n",
        )
    assert capture.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep", "everything"], "--keep: there is no 'everything'"),
        (["--key", "nowhere"], "--key nowhere: cannot be read"),
        (["--key", "LICENSE-short"], "--key"),
    ],
)
def test_usage_errors(
    arguments: list[str], text: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = called(capsys, str(capture), "-o", str(tmp_path / "out"), *arguments)
    assert code == 2
    assert errors.startswith(f"kwire: {text}")
    assert "\nhint: " in errors
    assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, str(capture), "-o", str(tmp_path / "out.pcapng"), "--dry-run") == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["capture.pcap"]


def test_what_is_not_clean_does_not_appear(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a name left where it was, its own check would find it."""
    from kwire.analyzer.common.errors import UsageError
    from kwire.analyzer.scrub.pseudonyms import Pseudonyms

    before = Pseudonyms.text
    content = f"{MARK.decode()}-7".encode()
    monkeypatch.setattr(
        Pseudonyms, "text", lambda self, text, field="": text if text == content else before(self, text, field)
    )
    with pytest.raises(UsageError, match=f"a text of {len(content)} bytes of the original stands"):
        cleaned(capture, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["capture.pcap"]


def test_the_finder_finds_wherever_it_stands() -> None:
    finder = Finder([b"orders", b"pays", b"a-much-longer-name"])
    for text in (b"orders", b"pays", b"a-much-longer-name"):
        for at in (0, 1, 3, 1000, (1 << 20) - 2, 1 << 20):
            assert finder.first(bytes(at) + text + bytes(3)) == text
        assert finder.first(text[:-1] + b"\0" + text[:-1]) is None
    assert finder.first(b"") is None
    assert Finder([]).first(b"anything") is None
    assert Finder([b"abc"]).first(b"abc") is None
