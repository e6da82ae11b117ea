"""Sessions from a dataset.

Proves: replay/plan/sessions.py
"""

from __future__ import annotations

from pathlib import Path

import analyzer
from replay.plan import sessions
from tests.shared import SAMPLES


def test_a_dataset_names_topics_also_where_it_has_not_kept_the_answers_that_do(tmp_path: Path) -> None:
    capture = str(SAMPLES / "codecs-franzgo-4.3" / "capture.pcap")
    analyzer.analyze(capture, out=tmp_path / "all", keep_bytes=True)
    analyzer.analyze(capture, out=tmp_path / "fetches", keep_bytes=True, filter="api == Fetch")

    some, less = (sessions.from_dataset(tmp_path / name) for name in ("all", "fetches"))

    assert {one.row["api"] for session in less for one in session.requests} == {"Fetch"}
    assert set(less[0].topic_ids.values()) == {f"franz-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    assert less[0].topic_ids == some[0].topic_ids
