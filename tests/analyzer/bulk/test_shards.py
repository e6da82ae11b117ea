"""Many connections, divided among shards and ended a few at a time.

(proves: analyzer/bulk/engine.py, the numbering of `kwire.captures.streams.Streams`)
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from kwire.analyzer.api import decode
from kwire.analyzer.bulk import engine
from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.pipeline.points import AnalysisOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from kwire.captures.stream_tables import C_STARTED
from tests.bench import generate

CONNECTIONS = 900


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "many.pcap"
    generate.small(path, 3_000_000, CONNECTIONS)
    return path


def tables(path: Path, shards: int) -> dict[str, pa.Table]:
    [point] = capture_points([str(path)], False)
    reading = ReadOptions(threads=2 * shards, window_bytes=200_000, ports=(9092,))
    decoded_tables = decode(point, None, reading, AnalysisOptions.of(records="meta")).tables
    assert decoded_tables["connections"].num_rows == CONNECTIONS
    return decoded_tables


def test_rows_do_not_depend_on_how_many_shards_there_are_or_end_at_once(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables(capture, 1)
    for shards, at_once in ((2, 1 << 13), (3, 250), (5, 1), (1, 7)):
        monkeypatch.setattr(engine, "ENDED_AT_ONCE", at_once)
        divided = tables(capture, shards)
        assert divided.keys() == whole.keys()
        for name, table in whole.items():
            assert divided[name].equals(table), (name, shards, at_once)


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_a_shard_has_room_for_its_own_connections(capture: Path, shards: int) -> None:
    [point] = capture_points([str(capture)], False)
    run = Engine(point, Settings(shards=shards))
    for window in run.windows(over=False):
        window.names.release()
    stages = [shard.streams for shard in run._shards]
    begun = [stage.connections[:, C_STARTED] != 0 for stage in stages]
    assert sum(int(begun_slots.sum()) for begun_slots in begun) == CONNECTIONS
    for stage, own in zip(stages, begun, strict=True):
        assert own[: CONNECTIONS // shards].all(), "no row belongs to another shard"
        assert len(stage.connections) < max(512, 4 * CONNECTIONS // shards)


def test_an_engine_goes_with_its_last_reference(capture: Path) -> None:
    """Its windows are large: two captures in turn need no more memory than one."""
    [point] = capture_points([str(capture)], False)
    gc.disable()
    try:
        run = Engine(point, Settings())
        for window in run.windows():
            window.names.release()
        del window
        reader = weakref.ref(run.reader)
        del run
        assert reader() is None
    finally:
        gc.enable()
