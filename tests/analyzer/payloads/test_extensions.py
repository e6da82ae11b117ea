"""Decoders of other packages: `extension/` beside kwire on the path, and packages that are broken.

Proves: kwire/analyzer/payloads/extensions.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analyzer.findings.test_extensions import put_package, run
from tests.analyzer.payloads.golden_payloads import write_capture
from tests.shared import ROOT

EXTENSION = Path(__file__).parent / "extension"
READING = b"AC\x01\x00\x07" + (300_150).to_bytes(4, "big")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = [("heat", b"k", READING, ()), ("heat", b"k", READING[:-1], ()), ("heat", b"k", b'{"a":1}', ())]
    return write_capture(tmp_path_factory.mktemp("heat") / "c.pcap", written)


def site(folder: Path, code: str) -> Path:
    put_package(folder, "acme-kwire-payloads", {"readings": "acme_payloads:Readings"}, acme_payloads=code)
    about = folder / "acme_kwire_payloads-1.0.dist-info" / "entry_points.txt"
    about.write_text(about.read_text().replace("[kwire.rules]", "[kwire.payloads]"))
    return folder


def test_a_package_decodes_its_format(capture: Path, tmp_path: Path) -> None:
    installed = site(tmp_path, (EXTENSION / "acme_payloads.py").read_text())
    code, out, err = run(installed, "show", capture, "--records", "--json", "--payloads")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["value_format"], row["value_json"]) for row in rows] == [
        ("acme-reading", '{"sensor":7,"celsius":27.0}'),
        ("acme-reading", None),
        ("json", '{"a":1}'),
    ]
    assert [row["undecodable"] for row in rows] == [None, "value: acme-reading: a reading has 9 bytes, not 8", None]
    tree = run(installed, "show", capture, "--tree", "--payloads")[1]
    assert "value: acme-reading " in tree
    assert "celsius: 27.0 " in tree
    out = run(installed, "show", capture, "--records", "--json", "--payloads", KWIRE_EXTENSIONS="0")[1]
    assert "acme-reading" not in out


def test_what_a_package_gets_wrong_is_told(capture: Path, tmp_path: Path) -> None:
    broken = site(tmp_path, "raise RuntimeError('no licence')")
    code, out, err = run(broken, "show", capture, "--records", "--payloads")
    assert (code, out) == (2, "")
    assert "the decoder of the package acme-kwire-payloads cannot be loaded: RuntimeError: no licence" in err
    (tmp_path / "acme_payloads.py").write_text(
        "class Readings:\n    format = 'acme'\n    def recognizes(self, *_): return True\n"
        "    def decode(self, *_): return object()\n"
    )
    code, out, err = run(broken, "show", capture, "--records", "--payloads")
    assert (code, err) == (0, "")
    assert out.count("no JSON can be made of it") == 6


def test_the_guide_shows_the_package() -> None:
    guide = (ROOT / "docs" / "guides" / "payloads.md").read_text(encoding="utf-8")
    for name in ("acme_payloads.py", "pyproject.toml"):
        assert (EXTENSION / name).read_text(encoding="utf-8").partition("[tool")[0].strip() in guide
