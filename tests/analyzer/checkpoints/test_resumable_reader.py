"""A capture cut at any packet and taken up from its snapshot gives every table, row and column of one pass.

`python -m tests.bench.cuts` does the same at every hundredth packet of every capture.

(proves: analyzer/checkpoints)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.analyzer.checkpoints import authentication
from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.checkpoints.resumable_reader import ResumableReader
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint
from tests.analyzer.checkpoints import cutting
from tests.shared import SAMPLES, capture_files, shared_folder

SMALL = (
    "admin-kafkapython-3.9",
    "client-kafkajs-3.9",
    "codecs-franzgo-4.3",
    "old-java-0.8.2",
    "sasl-librdkafka-4.3",
    "txn-librdkafka-4.3",
    "zookeeper-java-0.8.2",
)


def _capture(sample: str) -> Path:
    [capture] = capture_files(SAMPLES / sample)
    return capture


def _one_choice(meta: bool = False) -> AnalysisOptions:
    return AnalysisOptions.of(keep_bytes=True, records="meta") if meta else AnalysisOptions.of()


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(SMALL),
    st.lists(st.integers(1, 2000), min_size=1, max_size=3),
    st.sampled_from([2, 4]),
    st.booleans(),
)
def test_cut_anywhere_it_goes_on(sample: str, places: list[int], threads: int, meta: bool) -> None:
    capture = _capture(sample)
    count = len(cutting.packets(cutting.content(capture))[1])
    how, choice = ReadOptions(threads=threads), _one_choice(meta)
    with tempfile.TemporaryDirectory() as folder:
        paths = cutting.cut(capture, [place % count for place in places], Path(folder))
        expected, name = cutting.at_once(paths, how, choice)
        result, _ = cutting.resumed(paths, how, choice, name)
    assert cutting.differences(result, expected) == []


@settings(max_examples=3, deadline=None)
@given(st.sampled_from(SMALL), st.lists(st.integers(24, 1 << 20), min_size=1, max_size=3), st.sampled_from([2, 4]))
def test_left_anywhere_in_a_file_that_grows_it_goes_on(sample: str, places: list[int], threads: int) -> None:
    data = cutting.content(_capture(sample))
    how, choice = ReadOptions(threads=threads), _one_choice(meta=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "growing.pcap"
        path.write_bytes(data)
        expected, name = cutting.at_once([str(path)], how, choice)
        there = sorted(24 + place % (len(data) - 24) for place in places)
        result, _ = cutting.resumed([str(path)] * (len(there) + 1), how, choice, name, [*there, None])
    assert cutting.differences(result, expected) == []


def test_a_tls_connection_goes_on_with_its_key_log_and_no_secret_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_folder("tls13-aiokafka-4.3")
    keys = folder / "keys.log"
    contents: list[bytes] = []

    def authenticated(content: bytes, key: bytes | None = None) -> bytes:
        contents.append(content)
        return authenticate(content, key)

    authenticate = authentication.authenticated
    monkeypatch.setattr(authentication, "authenticated", authenticated)
    [capture] = capture_files(folder)
    count = len(cutting.packets(cutting.content(capture))[1])
    how, choice = ReadOptions(keylogs=[str(keys)]), _one_choice()
    paths = cutting.cut(capture, range(count // 9, count, count // 9), tmp_path)
    expected, name = cutting.at_once(paths, how, choice)
    result, _ = cutting.resumed(paths, how, choice, name)
    assert cutting.differences(result, expected) == []
    assert len(result.tables["exchanges"]) > 20
    assert any(result.tables["connections"]["decrypted"].to_pylist())
    secrets = [bytes.fromhex(line.split()[2]) for line in keys.read_text().splitlines() if len(line.split()) == 3]
    assert secrets
    assert len(contents) >= 9
    for content in contents:
        plain = cutting.unpacked(content)
        assert not [secret for secret in secrets if secret in plain]


def _snapshot(choice: AnalysisOptions | None = None) -> bytes:
    course = ResumableReader("sample", ReadOptions().settings(), choice or _one_choice())
    list(course.read(CapturePoint("sample", (str(_capture("admin-kafkapython-3.9")),))))
    return course.snapshot()


def _refused(snapshot: bytes, choice: AnalysisOptions | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError) as raised:
        ResumableReader("sample", ReadOptions().settings(), choice or _one_choice(), snapshot)
    assert raised.value.hint
    return raised.value


def test_a_snapshot_that_was_changed_or_cut_is_refused() -> None:
    whole = _snapshot()
    for place in (0, len(authentication.MAGIC), len(authentication.MAGIC) + 5, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        _refused(bytes(changed))
    for size in (0, 10, 40, len(whole) - 1):
        _refused(whole[:size])
    _refused(whole + b"\0")


def test_a_snapshot_of_another_user_or_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _snapshot()
    monkeypatch.setenv("KWIRE_CACHE_DIR", str(tmp_path / "theirs"))
    assert "another user or machine" in str(_refused(whole))


def test_a_snapshot_goes_with_the_options_it_was_made_with() -> None:
    assert "records" in str(_refused(_snapshot(), AnalysisOptions.of(records="none")))


def test_a_checkpoint_of_an_older_version_is_refused() -> None:
    whole = _snapshot()
    head = authentication.MAGIC + authentication.VERSION
    assert whole.startswith(head)
    older = authentication.MAGIC + b"3\n" + whole.removeprefix(head)
    assert "of another version of kwire" in str(_refused(older))
