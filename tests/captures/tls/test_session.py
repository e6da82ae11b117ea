"""One connection: what OpenSSL and our own forger seal is opened byte for byte, whole, cut up, with holes, and damaged.

(proves: captures/tls/session.py, captures/tls/ciphers.py, captures/tls/derivation.py, captures/tls/suites.py,
captures/tls/hello.py)
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from kwire.captures.stream_tables import GAP, SEG_COLUMNS, SEG_KEY, SEG_KIND, SEG_LENGTH, SEG_PACKET_INDEX
from kwire.captures.tls.ciphers import Opener13
from kwire.captures.tls.direction import BYTES_PER_TRIAL, TRIALS, Row
from kwire.captures.tls.keylog import MASTER, SESSION, KeyLog
from kwire.captures.tls.session import UNKNOWN, Session
from tests.captures.forge import Write
from tests.captures.tls.records import ALERT, CHANGE_CIPHER, DATA, EARLY, HANDSHAKE, SHAKING, TRAFFIC, Forged, message
from tests.captures.tls.sealing import (
    HOST,
    NO_ENCRYPT_THEN_MAC,
    NO_EXTENDED_MASTER,
    How,
    Talk,
    sealed13,
)

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")

RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""RFC 8446, 4.1.3."""


class Decrypted:
    """Plaintext of a session, by direction (True: to the broker).

    Pieces of text, each with the index of its packet, and sizes of holes, in order."""

    def __init__(self) -> None:
        self.events: dict[bool, list[tuple[int, bytes] | int]] = {True: [], False: []}
        self.order: list[bool] = []

    def text(self, row: Row, data: bytes) -> None:
        assert data
        self.events[row[SEG_KEY] == 0].append((row[SEG_PACKET_INDEX], data))
        self.order.append(row[SEG_KEY] == 0)

    def hole(self, size: int, row: Row) -> None:
        self.events[row[SEG_KEY] == 0].append(size)

    def text_of(self, to_broker: bool) -> bytes:
        return b"".join(event[1] for event in self.events[to_broker] if isinstance(event, tuple))

    def holes(self, to_broker: bool) -> list[int]:
        return [event for event in self.events[to_broker] if isinstance(event, int)]


Step = Write | tuple[bool, int]


def opened(log: bytes | KeyLog, writes: Iterable[Step], mss: int = 1 << 20) -> tuple[Session, Decrypted]:
    """A session that was fed writes, cut up at `mss`; a pair instead of a write is a hole of so many bytes."""
    keys = log if isinstance(log, KeyLog) else KeyLog()
    if isinstance(log, bytes):
        keys.take(log)
    session, decrypted = Session(keys), Decrypted()
    number = 0
    for write in writes:
        row = [0] * SEG_COLUMNS
        if isinstance(write, tuple):
            row[SEG_KEY], row[SEG_KIND], row[SEG_LENGTH] = int(not write[0]), GAP, write[1]
            session.missing(row, decrypted)
            continue
        for at in range(0, len(write.data), mss):
            data = write.data[at : at + mss]
            row = [0] * SEG_COLUMNS
            row[SEG_KEY], row[SEG_LENGTH], row[SEG_PACKET_INDEX] = int(not write.to_broker), len(data), number
            number += 1
            session.data(row, data, decrypted)
    for key in (0, 1):
        row = [0] * SEG_COLUMNS
        row[SEG_KEY] = key
        session.over(row, decrypted)
    assert session.oldest() is None
    assert session.given == len(decrypted.text_of(True)) + len(decrypted.text_of(False))
    assert session.given <= session.bytes_in
    return session, decrypted


def spoken(seed: int = 1, turns: int = 6) -> list[Write]:
    rng = random.Random(seed)
    sizes = [1, 20, 300, 16_384, 40_000]
    return [Write(number % 2 == 0, rng.randbytes(rng.choice(sizes))) for number in range(turns)]


def text(writes: Sequence[Write], to_broker: bool) -> bytes:
    return b"".join(write.data for write in writes if write.to_broker == to_broker)


def check(log: bytes, writes: Sequence[Step], plain: Sequence[Write], mss: int = 1 << 20) -> Session:
    session, decrypted = opened(log, writes, mss)
    for side in (True, False):
        assert decrypted.text_of(side) == text(plain, side)
        assert decrypted.holes(side) == []
    return session


# ------------------------------------------------------------------------------------------------- what OpenSSL seals

# fmt: off
SUITES12 = {
    "ECDHE-RSA-AES128-GCM-SHA256": 0xC02F, "ECDHE-RSA-AES256-GCM-SHA384": 0xC030,
    "ECDHE-ECDSA-AES128-GCM-SHA256": 0xC02B, "ECDHE-ECDSA-AES256-GCM-SHA384": 0xC02C,
    "ECDHE-RSA-CHACHA20-POLY1305": 0xCCA8, "ECDHE-ECDSA-CHACHA20-POLY1305": 0xCCA9,
    "ECDHE-ECDSA-AES128-CCM": 0xC0AC, "ECDHE-ECDSA-AES256-CCM": 0xC0AD, "ECDHE-ECDSA-AES128-CCM8": 0xC0AE,
    "ECDHE-ECDSA-AES256-CCM8": 0xC0AF, "ECDHE-RSA-AES128-SHA256": 0xC027, "ECDHE-RSA-AES256-SHA384": 0xC028,
    "ECDHE-ECDSA-AES128-SHA256": 0xC023, "ECDHE-ECDSA-AES256-SHA384": 0xC024, "ECDHE-RSA-AES128-SHA": 0xC013,
    "ECDHE-RSA-AES256-SHA": 0xC014, "ECDHE-ECDSA-AES128-SHA": 0xC009, "ECDHE-ECDSA-AES256-SHA": 0xC00A,
    "AES128-GCM-SHA256": 0x009C, "AES256-GCM-SHA384": 0x009D, "AES128-SHA256": 0x003C, "AES256-SHA256": 0x003D,
    "AES128-SHA": 0x002F, "AES256-SHA": 0x0035, "AES128-CCM": 0xC09C, "AES256-CCM": 0xC09D, "AES128-CCM8": 0xC0A0,
    "AES256-CCM8": 0xC0A1,
}
# fmt: on


@pytest.mark.parametrize("name", SUITES12)
def test_every_suite_of_tls_1_2(name: str, tmp_path: Path) -> None:
    """With what OpenSSL agrees on by itself, and without encrypt-then-MAC and extended master secrets; and resumed."""
    for number, options in enumerate((0, NO_ENCRYPT_THEN_MAC | NO_EXTENDED_MASTER)):
        folder = tmp_path / str(number)
        folder.mkdir()
        talk = Talk(How(ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0", options), folder)
        for again in (False, True):
            plain = spoken(again)
            writes = talk.sealed(plain)
            session = check(talk.keys, writes, plain, mss=1448)
            assert talk.resumed == again
            assert (session.version, session.suite, session.server_name) == (0x0303, SUITES12[name], HOST)
            assert bool(session.certificate) != again


SUITES13 = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)


@pytest.mark.parametrize("name", SUITES13)
def test_suites_of_tls_1_3(name: str) -> None:
    plain = spoken()
    writes, keys = sealed13(name, plain)
    assert check(keys, writes, plain, mss=1000).version == 0x0304


@pytest.mark.parametrize(
    "how",
    [How(), How(group="secp384r1"), How(alpn="kafka")],
    ids=["as it comes", "asked to say hello again", "with a protocol"],
)
def test_tls_1_3_whole_and_resumed(how: How, tmp_path: Path) -> None:
    talk = Talk(how, tmp_path)
    for again in (False, True):
        plain = spoken(again)
        writes = talk.sealed(plain)
        for mss in (1, 1448) if not again else (1 << 20,):
            session = check(talk.keys, writes, plain, mss)
            assert (session.version, session.suite, session.protocol) == (0x0304, 0x1302, how.alpn)
            assert bool(session.certificate) != again
        assert talk.resumed == again


def test_the_keys_of_another_connection_open_nothing(tmp_path: Path) -> None:
    talk = Talk(How(), tmp_path)
    writes = talk.sealed(spoken())
    session, decrypted = opened(Forged(1).log, writes)
    assert (session.given, decrypted.events) == (0, {True: [], False: []})
    assert session.server_name == HOST


def test_a_line_of_an_agent_for_java_opens_all_that_resumes_its_session(tmp_path: Path) -> None:
    """It knows the master secret by the session id that the server gives."""
    how = How(ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES256-GCM-SHA384", ssl.OP_NO_TICKET)
    talk = Talk(how, tmp_path)
    plain = spoken()
    writes = talk.sealed(plain)
    hello = next(write.data for write in writes if not write.to_broker)
    name = hello[44 : 44 + hello[43]]
    assert len(name) == 32
    log = KeyLog()
    log.take(talk.keys)
    random = next(write.data for write in writes)[11:43]
    master = log.find(MASTER, random)
    assert master is not None
    line = f"RSA Session-ID:{name.hex()} Master-Key:{master.hex()}\n".encode()
    for _ in range(2):
        check(line, writes, plain)
        writes = talk.sealed(plain)
    agent = KeyLog()
    agent.take(line)
    assert agent.find(SESSION, name) == master


def test_a_session_without_a_name_is_opened_by_a_line_that_fits(tmp_path: Path) -> None:
    """A server with tickets gives no session id: the agent's line has that of a later connection. Others do not fit."""
    talk = Talk(How(ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES256-GCM-SHA384"), tmp_path)
    plain = spoken()
    writes = talk.sealed(plain)
    hello = next(write.data for write in writes if not write.to_broker)
    assert hello[43] == 0
    log = KeyLog()
    log.take(talk.keys)
    master = log.find(MASTER, next(write.data for write in writes)[11:43])
    assert master is not None
    others = "".join(f"RSA Session-ID:{number:064x} Master-Key:{number:096x}\n" for number in range(1, 9))
    line = f"RSA Session-ID:{99:064x} Master-Key:{master.hex()}\n"
    check((others + line).encode(), writes, plain, mss=700)
    session, decrypted = opened(others.encode(), writes)
    assert (session.given, decrypted.events) == (0, {True: [], False: []})


# ---------------------------------------------------------------------------------------------------- what we forge


def test_keys_are_updated_by_each_side_for_itself() -> None:
    forged, plain, out = Forged(2), spoken(2, 24), []
    out += forged.shaken()
    for number, write in enumerate(plain):
        out.append(forged.sealed_write(write)) if len(write.data) <= 16_384 else out.extend(
            forged.sealed_write(Write(write.to_broker, write.data[at : at + 16_384]))
            for at in range(0, len(write.data), 16_384)
        )
        if number % 3 == 0:
            out.append(Write(write.to_broker, forged.updated(write.to_broker)))
    check(forged.log, out, plain, mss=5000)


@pytest.mark.parametrize("suite", [0x1301, 0x1302, 0x1303])
def test_padding_is_no_text(suite: int) -> None:
    forged = Forged(3, suite)
    plain = [Write(True, b"asked"), Write(False, b"answered")]
    out = forged.shaken() + [forged.sealed_write(write, padding) for write in plain for padding in (0,)]
    out += [
        forged.sealed_write(Write(True, b"\0\0more\0\0"), padding=700),
        forged.sealed_write(Write(False, b""), padding=100),
    ]
    check(forged.log, out, [*plain, Write(True, b"\0\0more\0\0")])


def test_tickets_alerts_and_other_records_are_no_text() -> None:
    forged = Forged(4)
    out = forged.shaken()
    out.append(Write(False, forged.sealed(False, TRAFFIC, HANDSHAKE, message(4, bytes(150)))))
    out.append(Write(False, CHANGE_CIPHER))
    out.append(forged.sealed_write(Write(True, b"said")))
    out.append(Write(True, forged.sealed(True, TRAFFIC, ALERT, b"\x01\x00")))
    check(forged.log, out, [Write(True, b"said")])


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_early_data_counts_where_the_server_takes_it(accepted: bool, ended: bool) -> None:
    """It is handed on before the answer to it, and not at all where it was refused: it is said again then."""
    forged = Forged(5, early=True)
    out = [Write(True, forged.client_hello() + CHANGE_CIPHER)]
    out.append(Write(True, forged.sealed(True, EARLY, DATA, b"early ") + forged.sealed(True, EARLY, DATA, b"bird ")))
    out.append(Write(False, forged.answered(accepted) + forged.sealed(False, TRAFFIC, DATA, b"answer")))
    if accepted and ended:
        out.append(Write(True, forged.sealed(True, EARLY, HANDSHAKE, message(5, b""))))
    out.append(Write(True, forged.sealed(True, SHAKING, HANDSHAKE, message(20, bytes(48)))))
    out.append(forged.sealed_write(Write(True, b"late")))
    _, decrypted = opened(forged.log, out, mss=50)
    assert decrypted.text_of(True) == (b"early bird late" if accepted else b"late")
    assert decrypted.text_of(False) == b"answer"
    assert decrypted.order[0] is accepted


def test_early_data_is_refused_with_a_hello_that_asks_again() -> None:
    forged = Forged(6, early=True)
    out = [Write(True, forged.client_hello() + CHANGE_CIPHER + forged.sealed(True, EARLY, DATA, b"early"))]
    out.append(Write(False, forged.server_hello(RETRY) + CHANGE_CIPHER))
    out.append(Write(True, forged.client_hello()))
    out.append(Write(False, forged.answered()))
    out.append(Write(True, forged.sealed(True, SHAKING, HANDSHAKE, message(20, bytes(48)))))
    out.append(forged.sealed_write(Write(True, b"again")))
    session = check(forged.log, out, [Write(True, b"again")])
    assert (session.version, session.suite) == (0x0304, 0x1302)


def test_a_log_without_the_secrets_of_the_handshake_is_enough() -> None:
    forged = Forged(7)
    log = b"\n".join(line for line in forged.log.splitlines() if b"_TRAFFIC_SECRET_0" in line)
    out = [*forged.shaken(), forged.sealed_write(Write(True, b"asked")), forged.sealed_write(Write(False, b"answered"))]
    check(log, out, [Write(True, b"asked"), Write(False, b"answered")])


# ---------------------------------------------------------------------------------------------- holes and damage


def records(forged: Forged, count: int, size: int = 400, padding: int = 0) -> list[bytes]:
    return [forged.sealed_write(Write(True, bytes([65 + number % 26]) * size), padding).data for number in range(count)]


@pytest.mark.parametrize("first, lost, padding", [(2, 1, 0), (2, 5, 0), (30, 200, 0), (2, 1, 16), (30, 200, 16)])
def test_after_a_hole_the_next_record_that_opens_goes_on(first: int, lost: int, padding: int) -> None:
    """The hole is said with its exact size in plaintext, also where its ends lie inside records, and where they are
    padded as Java pads them."""
    forged = Forged(8)
    every = records(forged, first + lost + 4, padding=padding)
    stream = b"".join(every)
    begin, end = len(every[0]) * first + 10, len(every[0]) * (first + lost) - 10
    out: list[Step] = [*forged.shaken(), Write(True, stream[:begin]), (True, end - begin)]
    _, decrypted = opened(forged.log, [*out, Write(True, stream[end:])], mss=300)
    letters = b"".join(bytes([65 + number % 26]) * 400 for number in range(first + lost + 4))
    assert decrypted.text_of(True) == letters[: first * 400] + letters[(first + lost) * 400 :]
    assert decrypted.holes(True) == [lost * 400]


def test_a_hole_with_a_key_update_in_it_is_of_unknown_size() -> None:
    forged = Forged(9)
    before, update, after = records(forged, 3), forged.updated(True), records(forged, 3)
    lost = len(before[2]) + len(update) + len(after[0])
    rest = Write(True, b"".join(after[1:]))
    out: list[Step] = [*forged.shaken(), Write(True, b"".join(before[:2])), (True, lost), rest]
    _, decrypted = opened(forged.log, out)
    assert decrypted.text_of(True) == b"A" * 400 + b"B" * 400 + b"B" * 400 + b"C" * 400
    assert decrypted.holes(True) == [UNKNOWN]


def test_a_hole_between_records_that_are_padded_at_will_is_of_unknown_size() -> None:
    forged = Forged(9)
    every = [*records(forged, 2, padding=3), *records(forged, 2, padding=40), *records(forged, 2, padding=7)]
    out: list[Step] = [
        *forged.shaken(),
        Write(True, b"".join(every[:2])),
        (True, sum(map(len, every[2:4]))),
        Write(True, b"".join(every[4:])),
    ]
    _, decrypted = opened(forged.log, out)
    assert decrypted.holes(True) == [UNKNOWN]


def test_a_hole_in_the_handshake_takes_no_text() -> None:
    """Nothing that was said is missing: of the client the Finished, of the server all but its hello."""
    forged = Forged(10)
    client, server, finished = forged.shaken()
    plain = [forged.sealed_write(Write(True, b"asked")), forged.sealed_write(Write(False, b"answered"))]
    size = len(forged.server_hello())
    out: list[Step] = [
        client,
        Write(False, server.data[:size]),
        (False, len(server.data) - size),
        (True, len(finished.data)),
        *plain,
    ]
    check(forged.log, out, [Write(True, b"asked"), Write(False, b"answered")])


def test_without_a_server_hello_the_suite_is_told_by_the_length_of_its_secrets() -> None:
    for suite in (0x1301, 0x1302, 0x1303):
        forged = Forged(11, suite)
        client, server, finished = forged.shaken()
        plain = [forged.sealed_write(Write(True, b"asked")), forged.sealed_write(Write(False, b"answered"))]
        check(
            forged.log,
            [client, (False, len(server.data)), finished, *plain],
            [Write(True, b"asked"), Write(False, b"answered")],
        )


def test_a_damaged_record_is_a_hole_of_its_text() -> None:
    forged = Forged(12)
    every = records(forged, 5)
    for place in (0, 3, 100):  # in the header's type, its length, and what it holds
        damaged = bytearray(every[2])
        damaged[place] ^= 0x55
        out = [*forged.shaken(), Write(True, b"".join([*every[:2], bytes(damaged), *every[3:]]))]
        _, decrypted = opened(forged.log, out)
        assert decrypted.text_of(True) == b"".join(letter * 400 for letter in (b"A", b"B", b"D", b"E"))
        assert decrypted.holes(True) == [400]


def test_what_is_missing_at_the_end_is_said_too() -> None:
    forged = Forged(13)
    out: list[Step] = [*forged.shaken(), Write(True, records(forged, 1)[0]), (True, 500)]
    _, decrypted = opened(forged.log, out)
    assert decrypted.events[True] == [(len(forged.shaken()), b"A" * 400), UNKNOWN]


@pytest.mark.parametrize("name", ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-SHA"])
def test_holes_in_tls_1_2(name: str, tmp_path: Path) -> None:
    """Sizes are exact but for CBC, whose padding nobody knows."""
    talk = Talk(How(ssl.TLSVersion.TLSv1_2, f"{name}:@SECLEVEL=0"), tmp_path)
    plain = [Write(True, bytes([65 + number]) * 500) for number in range(10)]
    writes = talk.sealed(plain)
    places = [place for place, write in enumerate(writes) if write.to_broker][-11:-1]  # behind them: it closes
    lost = [write for place, write in enumerate(writes) if place in places[3:7]]
    out: list[Step] = [*writes[: places[3]], (True, sum(len(write.data) for write in lost)), *writes[places[7] :]]
    _, decrypted = opened(talk.keys, out, mss=200)
    assert decrypted.text_of(True) == text([*plain[:3], *plain[7:]], True)
    assert decrypted.holes(True) == [UNKNOWN if name.endswith("SHA") else 2000]


def test_what_never_opens_again_ends_in_time() -> None:
    """Records under unknown keys after a hole: as many trials as bytes have paid for, and no more."""
    forged, other = Forged(14), Forged(15)
    unknown = Write(True, b"".join(records(other, 200)))
    out: list[Step] = [*forged.shaken(), Write(True, records(forged, 1)[0]), (True, 1 << 40), unknown]
    counted = 0
    opener = Opener13.open

    def counting(self: Opener13, number: int, head: bytes, body: bytes) -> object:
        nonlocal counted
        counted += 1
        return opener(self, number, head, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opener13, "open", counting)
        _, decrypted = opened(forged.log, out)
    assert decrypted.holes(True) == [UNKNOWN]
    bytes_said = sum(len(write.data) for write in out if isinstance(write, Write))
    assert counted < TRIALS + bytes_said // BYTES_PER_TRIAL + 100


def test_hostile_bytes_never_raise() -> None:
    """Whole sessions with bytes changed, cut out and put in: what comes out is part of what was said, or nothing."""
    rng = random.Random(16)
    for round_ in range(150):
        forged = Forged(round_, early=bool(round_ % 2))
        plain = spoken(round_, 4)
        plain = [Write(write.to_broker, write.data[:2000]) for write in plain]
        writes = [*forged.shaken(), *(forged.sealed_write(write) for write in plain)]
        broken: list[Step] = []
        for write in writes:
            data = bytearray(write.data)
            for _ in range(rng.choice((0, 0, 1, 4))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            at = rng.randrange(len(data))
            if rng.random() < 0.2:
                data[at:at] = rng.randbytes(rng.choice((1, 5, 300)))
            elif rng.random() < 0.2:
                del data[at : at + rng.choice((1, 5, 300))]
            broken.append(Write(write.to_broker, bytes(data)))
            if rng.random() < 0.1:
                broken.append((write.to_broker, rng.choice((1, 1000, 1 << 35))))
        _, decrypted = opened(forged.log, broken, mss=rng.choice((7, 1448)))
        for side in (True, False):
            pieces = [event[1] for event in decrypted.events[side] if isinstance(event, tuple)]
            assert all(piece in text(plain, side) for piece in pieces)


def test_garbage_behind_a_hello_never_raises() -> None:
    rng = random.Random(17)
    for _ in range(200):
        forged = Forged(1)
        kinds = (1, 2, 8, 11, 24)
        bodies = [message(rng.choice(kinds), rng.randbytes(rng.choice((0, 3, 34, 38, 60, 300)))) for _ in range(4)]
        data = b"".join(b"\x16\x03\x03" + len(body).to_bytes(2, "big") + body for body in bodies)
        opened(forged.log, [Write(rng.random() < 0.5, forged.client_hello() + data), Write(rng.random() < 0.5, data)])
