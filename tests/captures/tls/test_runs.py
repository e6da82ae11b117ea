"""Many records at once: rows and bytes are those that come out where each record is opened by itself.

(proves: captures/tls/runs.py, captures/tls/evp.py, captures/tls/direction.py)
"""

from __future__ import annotations

import gc
import random
import ssl
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kwire.captures import stream_tables as t
from kwire.captures.streams import Segments
from kwire.captures.tls import ciphers, evp, runs, stage
from kwire.captures.tls.keylog import KeyLog
from kwire.captures.tls.stage import Stage
from tests.captures.forge import Write
from tests.captures.tls.records import ALERT, HANDSHAKE, TRAFFIC, Forged, message
from tests.captures.tls.sealing import How, Talk

pytest.importorskip("cryptography", reason="TLS needs the package cryptography: pip install 'kwire[tls]'")

Step = tuple[int, Write | int]
"""A connection's slot with what it says, or with the size of a hole of its client; -1: it ends."""

DecryptedRow = tuple[int, int, int, int, bytes | int]


def windows(steps: Sequence[Step], mss: int, most: int, rng: random.Random) -> list[Segments]:
    """A row a packet, `most` rows a window; some bytes lie among the waiting ones."""
    rows: list[tuple[int, int, bytes | int]] = []
    for slot, step in steps:
        if isinstance(step, int):
            rows.append((2 * slot, t.GAP if step >= 0 else t.END, max(step, 0)))
        else:
            key = 2 * slot + int(not step.to_broker)
            rows += [(key, t.DATA, step.data[at : at + mss]) for at in range(0, len(step.data), mss)]
    segments_of_windows = []
    for begin in range(0, len(rows), most):
        sources: tuple[bytearray, bytearray] = (bytearray(7), bytearray(3))
        table = []
        for ordinal, (key, kind, data) in enumerate(rows[begin : begin + most], begin):
            row = [0] * t.SEG_COLUMNS
            row[t.SEG_KEY], row[t.SEG_KIND], row[t.SEG_PACKET_INDEX], row[t.SEG_COMPLETED_BY] = (
                key,
                kind,
                ordinal,
                ordinal,
            )
            if isinstance(data, int):
                row[t.SEG_LENGTH] = data
            else:
                row[t.SEG_SOURCE] = int(rng.random() < 0.1)
                row[t.SEG_AT], row[t.SEG_LENGTH] = len(sources[row[t.SEG_SOURCE]]), len(data)
                sources[row[t.SEG_SOURCE]].extend(data)
            table.append(row)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in sources]
        segments_of_windows.append(Segments(np.array(table, np.int64), (arrays[0], arrays[1])))
    return segments_of_windows


def decrypted(
    log: bytes, steps: Sequence[Step], mss: int, most: int
) -> tuple[list[DecryptedRow], list[tuple[object, ...]]]:
    """Return the decrypted rows, and the properties of connections that ended."""
    keys = KeyLog()
    keys.take(log)
    stage = Stage(keys)
    out: list[DecryptedRow] = []
    over: list[tuple[object, ...]] = []
    for window in windows(steps, mss, most, random.Random(1)):
        segments = stage.take(window)
        for row in segments.rows.tolist():
            at, size = row[t.SEG_AT], row[t.SEG_LENGTH]
            payload = (
                segments.sources[row[t.SEG_SOURCE]][at : at + size].tobytes() if row[t.SEG_KIND] == t.DATA else size
            )
            out.append((row[t.SEG_KEY], row[t.SEG_KIND], row[t.SEG_PACKET_INDEX], row[t.SEG_COMPLETED_BY], payload))
        assert [row[3] for row in out] == sorted(row[3] for row in out)
        over += [(slot, session.bytes_in, session.given, session.alert) for slot, session in sorted(stage.over.items())]
    return out, over


class Counted:
    """How many rows were opened at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        many = runs.opened

        def counting(*arguments: object) -> list[runs.Run]:
            runs_done = many(*arguments)  # type: ignore[arg-type]
            self.rows += sum(run.whole for run in runs_done)
            return runs_done

        monkeypatch.setattr(stage, "opened", counting)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    if evp.context("gcm", bytes(16)) is None:
        pytest.skip("OpenSSL's functions cannot be called here: every record is opened by itself")
    return Counted(monkeypatch)


WAYS = ((100, 400), (1448, 7), (1448, 10_000), (40_000, 60))
"""Bytes of a packet, rows of a window."""


def check(log: bytes, steps: Sequence[Step], counted: Counted, ways: Sequence[tuple[int, int]] = WAYS) -> None:
    """Check that windows and packets change nothing, against one record at a time as the reference."""
    for mss, rows in ways:
        at_once = decrypted(log, steps, mss, rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ciphers, "_many", lambda *_: None)
            before = counted.rows
            assert at_once == decrypted(log, steps, mss, rows), (mss, rows)
            assert counted.rows == before


def texts(rng: random.Random, count: int) -> list[Write]:
    return [Write(rng.random() < 0.7, rng.randbytes(rng.choice((1, 40, 300, 300, 2000, 16_384)))) for _ in range(count)]


@pytest.mark.parametrize("suite", [0x1301, 0x1302, 0x1303])
def test_whole_sessions_of_tls_1_3(suite: int, counted: Counted) -> None:
    """Three at once, with padding, tickets, key updates, empty records and alerts on the way."""
    rng = random.Random(suite)
    steps: list[Step] = []
    forged = [Forged(number, suite) for number in range(3)]
    for slot, link in enumerate(forged):
        steps += [(slot, write) for write in link.shaken()]
    for turn in range(40):
        slot = rng.randrange(3)
        link = forged[slot]
        for write in texts(rng, rng.choice((1, 1, 9))):
            steps.append((slot, link.sealed_write(write, padding=rng.choice((0, 0, 0, 90)))))
        if turn % 9 == 0:
            steps.append((slot, Write(turn % 2 == 0, link.updated(turn % 2 == 0))))
        if turn % 13 == 0:
            steps.append((slot, Write(False, link.sealed(False, TRAFFIC, HANDSHAKE, message(4, bytes(150))))))
        if turn % 11 == 0:
            steps.append((slot, link.sealed_write(Write(True, b""), padding=turn % 2)))
    for slot, link in enumerate(forged):
        steps += [(slot, Write(True, link.sealed(True, TRAFFIC, ALERT, b"\x02\x14"))), (slot, -1)]
    check(b"".join(link.log for link in forged), steps, counted)
    assert counted.rows > 500


@pytest.mark.parametrize(
    "name", ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"]
)
def test_whole_sessions_of_tls_1_2(name: str, tmp_path: Path, counted: Counted) -> None:
    talk = Talk(How(ssl.TLSVersion.TLSv1_2, name), tmp_path)
    steps: list[Step] = [(0, write) for write in talk.sealed(texts(random.Random(2), 40))]
    check(talk.keys, [*steps, (0, -1)], counted)
    assert counted.rows > 200


def test_holes_and_damage(counted: Counted) -> None:
    """Bytes changed, left out and put in, at random places of random sessions."""
    for seed in range(12):
        rng = random.Random(seed)
        forged = Forged(seed, rng.choice((0x1301, 0x1303)))
        steps: list[Step] = [(0, write) for write in forged.shaken()]
        for write in texts(rng, 60):
            data = bytearray(forged.sealed_write(write).data)
            fault = rng.random()
            if fault < 0.04:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            elif fault < 0.07 and write.to_broker:
                steps.append((0, len(data)))
                continue
            elif fault < 0.09:
                data[rng.randrange(len(data)) :] = rng.randbytes(rng.choice((0, 3, 500)))
            steps.append((0, Write(write.to_broker, bytes(data))))
        check(forged.log, [*steps, (0, -1)], counted, ways=((1448, 60),))
    assert counted.rows > 100


def test_records_that_are_to_be_looked_at_cost_no_more_than_they_bring(counted: Counted) -> None:
    """A key update after every record: what is tried in vain stays in proportion."""
    forged = Forged(3)
    steps: list[Step] = [(0, write) for write in forged.shaken()]
    for _ in range(300):
        steps += [(0, forged.sealed_write(Write(True, b"said"))), (0, Write(True, forged.updated(True)))]
    tried = 0
    many = runs.opened

    def counting(*arguments: object) -> object:
        nonlocal tried
        tried += len(arguments[2])  # type: ignore[arg-type]
        return many(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "opened", counting)
        out, _ = decrypted(forged.log, steps, 1448, 10_000)
    assert [row[4] for row in out] == [b"said"] * 300
    assert tried < 3 * len(steps)


def test_keys_are_given_back_and_what_is_not_there_is_none() -> None:
    assert evp.context("ccm", bytes(16)) is None
    assert evp.context("gcm", bytes(5)) is None
    context = evp.context("gcm", bytes(32))
    assert (context is not None) == (evp.context("gcm", bytes(16)) is not None)
    del context
    gc.collect()
