"""Key logs in the forms found in the wild, and files that are none.

(proves: captures/tls/keylog.py)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kwire.captures.errors import CaptureError
from kwire.captures.tls import keylog
from kwire.captures.tls.keylog import HANDSHAKE, MASTER, SESSION, TRAFFIC, KeyFiles, KeyLog

RANDOM, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET, LONG = b"\xab" * 32, b"\xcd" * 48


def line(label: str, secret: bytes, random: bytes = RANDOM) -> str:
    return f"{label} {random.hex()} {secret.hex()}\n"


ACCEPTED: dict[str, tuple[str, str, bytes, bytes]] = {
    "a master secret": (line(MASTER, LONG), MASTER, RANDOM, LONG),
    "a traffic secret": (line(TRAFFIC[0], SECRET), TRAFFIC[0], RANDOM, SECRET),
    "a longer one": (line(HANDSHAKE[1], LONG), HANDSHAKE[1], RANDOM, LONG),
    "with capitals": (line(MASTER, LONG).upper(), MASTER, RANDOM, LONG),
    "with the line ends of Windows": (line(MASTER, LONG).replace("\n", "\r\n"), MASTER, RANDOM, LONG),
    "without a line end": (line(MASTER, LONG).rstrip(), MASTER, RANDOM, LONG),
    "of an agent for Java": (f"RSA Session-ID:{OTHER.hex()} Master-Key:{LONG.hex()}\n", SESSION, OTHER, LONG),
    "behind a line that was cut off": (f"CLIENT_RAN\n{line(MASTER, LONG)}", MASTER, RANDOM, LONG),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_secret_is_found_by_its_label_and_random(name: str) -> None:
    text, label, random, secret = ACCEPTED[name]
    log = KeyLog()
    assert log.take(text.encode()) == 1
    assert log.find(label, random) == secret
    assert log.find(label, bytes(32)) is None
    assert log.find(label, None) is None


PASSED_OVER = {
    "a comment": "# SSL/TLS secrets\n",
    "a label that is of no use": line("EXPORTER_SECRET", SECRET),
    "a secret of another length": line(MASTER, SECRET),
    "half a byte": line(MASTER, LONG)[:-2] + "\n",
    "a short random": line(MASTER, LONG, RANDOM[:31]),
    "a session id of half a byte": f"RSA Session-ID:abc Master-Key:{LONG.hex()}\n",
    "a premaster secret": f"RSA 0123456789abcdef {LONG.hex()}\n",
    "no text at all": "\x00\xff" * 100,
    "two lines in one": line(MASTER, LONG).rstrip() + line(MASTER, LONG),
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_no_secret_is_passed_over(name: str) -> None:
    log = KeyLog()
    assert log.take(PASSED_OVER[name].encode("latin-1")) == 0
    assert len(log) == 0


def test_secrets_are_not_printed() -> None:
    log = KeyLog()
    log.take(line(MASTER, LONG).encode())
    assert LONG.hex() not in repr(log)
    assert str(LONG) not in repr(vars(log).keys())


def test_a_log_looks_in_another_one_too() -> None:
    known, own = KeyLog(), None
    known.take(line(MASTER, LONG).encode())
    own = KeyLog(known)
    own.take(line(MASTER, LONG, OTHER).encode())
    assert own.find(MASTER, RANDOM) == own.find(MASTER, OTHER) == LONG
    assert known.find(MASTER, OTHER) is None


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys.log"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode, warned", [(0o600, False), (0o640, True), (0o604, True), (0o400, False)])
def test_keys_that_others_may_read_are_warned_of(tmp_path: Path, mode: int, warned: bool) -> None:
    files = KeyFiles((written(tmp_path, line(MASTER, LONG), mode),))
    assert len(files.log) == 1
    assert [("others may read" in note, LONG.hex() in note) for note in files.notes] == [(True, False)] * warned


def test_a_log_that_grows_is_taken_line_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    files = KeyFiles((path,), growing=True)
    whole = line(MASTER, LONG)
    with open(path, "a") as log:
        log.write(whole[:50])
        log.flush()
        assert not files.refresh()
        log.write(whole[50:] + line(MASTER, LONG, OTHER))
        log.flush()
        assert files.refresh()
    assert files.log.find(MASTER, RANDOM) == files.log.find(MASTER, OTHER) == LONG
    os.remove(path)
    assert not files.refresh()


@pytest.mark.parametrize("text", ["", "no key\n", "\x00" * 1000])
def test_a_file_without_a_key_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(CaptureError, match="holds no TLS key") as raised:
        KeyFiles((written(tmp_path, text),))
    assert "label" in raised.value.hint


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(CaptureError, match="key log cannot be read"):
            KeyFiles((str(path),))


def test_what_is_larger_than_a_key_log_may_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keylog, "MOST_BYTES", 1000)
    with pytest.raises(CaptureError, match="larger than"):
        KeyFiles((written(tmp_path, line(MASTER, LONG) * 10),))
