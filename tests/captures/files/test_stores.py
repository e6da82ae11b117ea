"""Captures behind URLs: read as files are, whatever opens them, and nothing secret of a URL shows up anywhere."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kwire import analyzer
from kwire.captures.files import CaptureError, capture_points, likely_bytes, stores, urls
from tests.captures.files.object_store import KEY, SECRET, serving
from tests.reports.equality import rotated
from tests.shared import SAMPLES

CAPTURE = SAMPLES / "codecs-franzgo-4.3" / "capture.pcap"


def same_tables(left: Any, right: Any) -> bool:
    """Every table of two datasets, but for the name of the capture point."""
    return left.tables.keys() == right.tables.keys() and all(
        left.tables[name].drop_columns(["capture"]).equals(right.tables[name].drop_columns(["capture"]))
        for name in left.tables
    )


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """A capture in five files, with one that is none among them."""
    rotated(CAPTURE, tmp_path / "day", 5)
    (tmp_path / "day" / "notes.txt").write_text("not a capture")
    return tmp_path / "day"


@pytest.fixture
def archive(day: Path, tmp_path: Path) -> Path:
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(CAPTURE, "capture.pcap")
        for file in day.iterdir():
            packed.write(file, f"day/{file.name}")
    return path


def test_a_file_by_url_is_read_as_by_path() -> None:
    fsspec.filesystem("memory").pipe("/one/capture.pcap", CAPTURE.read_bytes())
    read = analyzer.analyze("memory://one/capture.pcap", keep_bytes=True)
    here = analyzer.analyze(CAPTURE, keep_bytes=True)
    assert same_tables(read, here)
    [file], [local] = read.captures[0]["files"], here.captures[0]["files"]
    assert {**file, "mtime": None} == {**local, "mtime": None}


def test_a_file_by_http_is_read_as_by_path(tmp_path: Path) -> None:
    """All that it takes is in the extra `urls`."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(CAPTURE.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            read = analyzer.analyze(f"http://127.0.0.1:{server.server_address[1]}/capture.pcap")
        finally:
            server.shutdown()
    assert same_tables(read, analyzer.analyze(CAPTURE))


class _Refuses(http.server.BaseHTTPRequestHandler):
    """404 for one file, 403 for the others."""

    def do_GET(self) -> None:
        self.send_error(404 if "none" in self.path else 403)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


def test_a_server_that_does_not_answer_or_refuses_is_no_missing_file() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(CaptureError, match=r"none\.pcap: no such file"):
            analyzer.analyze(f"{address}/none.pcap")
        with pytest.raises(CaptureError, match=r"day\.pcap: cannot be read: the server answers 403 Forbidden"):
            analyzer.analyze(f"{address}/day.pcap")
        server.shutdown()
    with pytest.raises(CaptureError, match=r"day\.pcap: cannot be read: Cannot connect to host 127.0.0.1:\d+"):
        analyzer.analyze(f"{address}/day.pcap")


def test_a_small_file_by_url_is_known_to_be_small(tmp_path: Path) -> None:
    """Kernels that are not compiled read it as plain Python, as they read a small file by path."""
    size = CAPTURE.stat().st_size
    fsspec.filesystem("memory").pipe("/small/capture.pcap", CAPTURE.read_bytes())
    fsspec.filesystem("memory").pipe("/small/capture.pcap.gz", gzip.compress(CAPTURE.read_bytes()))
    (point,) = capture_points(["memory://small/capture.pcap"])
    assert likely_bytes(point, size) == size
    assert likely_bytes(point, size - 1) is None
    assert likely_bytes(point, size, ask_stores=False) is None
    (packed,) = capture_points(["memory://small/capture.pcap.gz"])
    assert (likely_bytes(packed, 1 << 20) or 0) > len(gzip.compress(CAPTURE.read_bytes()))
    fsspec.filesystem("memory").rm("/small/capture.pcap")
    assert likely_bytes(point, size) is None


def test_a_store_of_google_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def from_uri(url: str) -> Any:
        opened.append(url)
        raise OSError("no network")

    monkeypatch.setattr("kwire.captures.files.stores._opened", from_uri)
    for url in (
        "gs://bucket/a.pcap",
        "gcs://bucket/a.pcap?anonymous=true",
        "gs://b/a?retry_limit_seconds=5",
        "s3://b/a",
    ):
        with pytest.raises(CaptureError, match="no network"):
            stores.place(url)
    assert opened == [
        "gs://bucket/a.pcap?retry_limit_seconds=30",
        "gcs://bucket/a.pcap?anonymous=true&retry_limit_seconds=30",
        "gs://b/a?retry_limit_seconds=5",
        "s3://b/a",
    ]


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a b.pcap"
    path.write_bytes(CAPTURE.read_bytes())
    assert capture_points([path.as_uri()]) == capture_points([str(path)])


@pytest.mark.parametrize("url", ["zip://day::{}", "zip://day/*.pcap::{}", "zip://day/::file://{}"])
def test_a_folder_or_a_pattern_by_url_is_one_capture_point(url: str, day: Path, archive: Path) -> None:
    read = analyzer.analyze(url.format(archive))
    assert same_tables(read, analyzer.analyze(day))
    assert [file["name"] for file in read.captures[0]["files"]] == [f"part-{i:02d}.pcap" for i in range(5)]
    ignored = [f"ignored: zip://day/notes.txt::{'file://' * ('file' in url)}{archive} is not a capture"]
    assert read.notes == ([] if "*" in url else ignored)


def test_urls_are_joined_with_rotated(day: Path, archive: Path) -> None:
    urls = [f"zip://day/part-{i:02d}.pcap::{archive}" for i in (3, 0, 4, 1, 2)]
    assert same_tables(analyzer.analyze(urls, rotated=True), analyzer.analyze(str(day / "*.pcap")))


def test_compressed_captures_are_unpacked(tmp_path: Path) -> None:
    import gzip

    fsspec.filesystem("memory").pipe("/packed.pcap.gz", gzip.compress(CAPTURE.read_bytes()))
    with serving({"bucket/packed.pcap.gz": gzip.compress(CAPTURE.read_bytes())}) as query:
        for url in ("memory://packed.pcap.gz", f"s3://{KEY}:{SECRET}@bucket/packed.pcap.gz?{query}"):
            read = analyzer.analyze(url)
            assert read.exchanges.num_rows == analyzer.analyze(CAPTURE).exchanges.num_rows


def test_pyarrow_reads_an_object_store_and_its_keys_stay_secret(day: Path, tmp_path: Path) -> None:
    objects = {f"bucket/logs/day 1/{path.name}": path.read_bytes() for path in day.iterdir()}
    with serving(objects) as query:
        login = f"{KEY}:{SECRET}@"
        read = analyzer.analyze(f"s3://{login}bucket/logs/day%201?{query}", tmp_path / "dataset")
        with pytest.raises(CaptureError, match=r"(?m)^s3://bucket/none\.pcap: no such file$"):
            capture_points([f"s3://{login}bucket/none.pcap?{query}"])
        with pytest.raises(CaptureError, match=r"^s3://bucket/logs/day%201: cannot be read: ") as refused:
            capture_points([f"s3://wrong:{SECRET}@bucket/logs/day%201?{query}"])
    stored = analyzer.open_dataset(tmp_path / "dataset")
    assert stored.exchanges.count_rows() == analyzer.analyze(day).exchanges.num_rows
    assert read.notes == ["ignored: s3://bucket/logs/day%201/notes.txt is not a capture"]
    texts = json.dumps(stored.manifest) + str(refused.value) + refused.value.hint
    assert KEY not in texts
    assert SECRET not in texts
    assert "endpoint_override" not in json.dumps(stored.manifest)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("s3://KEY:SE/CR@ET@bucket/a.pcap?x=y", "s3://bucket/a.pcap"),
        ("https://user@host/day/a.pcap?X-Amz-Signature=1", "https://host/day/a.pcap"),
        ("https://host:8080/a@b.pcap", "https://host:8080/a@b.pcap"),
        ("zip://a.pcap::s3://KEY:SECRET@bucket/day.zip?q", "zip://a.pcap::s3://bucket/day.zip"),
        ("/a:b@c/d.pcap", "/a:b@c/d.pcap"),
    ],
)
def test_what_is_shown_of_a_url(url: str, seen: str) -> None:
    assert urls.shown(url) == seen


def test_a_url_that_nothing_opens_is_one_line() -> None:
    with pytest.raises(CaptureError, match=r"(?m)^teapot://x/y\.pcap: Protocol not known: teapot$") as raised:
        capture_points(["teapot://x/y.pcap"])
    assert "PyArrow or fsspec" in raised.value.hint


def test_a_url_whose_package_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(CaptureError, match=r"^az://x/y\.pcap: az:// needs a package") as raised:
        capture_points(["az://x/y.pcap"])
    assert "adlfs" in raised.value.hint


def test_without_fsspec_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CaptureError, match=r"^zip://a\.pcap::/x\.zip: zip:// needs fsspec") as raised:
        capture_points(["zip://a.pcap::/x.zip"])
    assert "pip install 'kwire[urls]'" in raised.value.hint


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/a.pcap", "no such file"),
        ("memory://nowhere/*.pcap", "no such file"),
        ("memory://here/*.cap", "no capture matches this pattern"),
        ("memory://here", "no capture in this folder"),
        ("zip://a.pcap::/nowhere.zip", "no such file"),
    ],
)
def test_where_there_is_nothing_the_url_is_named(url: str, message: str) -> None:
    fsspec.filesystem("memory").pipe("/here/notes.txt", b"not a capture")
    with pytest.raises(CaptureError) as raised:
        capture_points([url])
    assert str(raised.value).startswith(url)
    assert message in str(raised.value)
    assert raised.value.hint


def test_a_store_that_fails_on_the_way_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFile

    fsspec.filesystem("memory").pipe("/failing.pcap", CAPTURE.read_bytes())
    monkeypatch.setattr(MemoryFile, "read", lambda *_: (_ for _ in ()).throw(RuntimeError("the store\nis on fire")))
    with pytest.raises(CaptureError, match=r"(?m)^memory://failing\.pcap: cannot be read: the store$"):
        analyzer.analyze("memory://failing.pcap")
