"""A few hundred mutants in the suite's own process, and every case that ever failed.

`python -m tests.fuzz --count 5000` is the long run, with bounds checks. Each mutant has a watchdog: a hang ends the
process with every thread's place, because nothing can interrupt a kernel.
"""

from __future__ import annotations

import faulthandler
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kwire import analyzer
from kwire.captures.files import CaptureError
from tests.fuzz import checking, mutations
from tests.fuzz.checking import Broken, check_coverage, check_others, check_rows, check_same

CASES = Path(__file__).resolve().parent / "cases"
BLOCK = 50
BLOCKS = 6
HANG_SECONDS = 600  # kernels may have to be compiled first


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_mutants_are_read_or_refused(block: int, tmp_path: Path) -> None:
    exchanges = 0
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            exchanges += checking.check_number(number, 1, tmp_path).exchanges
        except Exception as failure:
            _, broken, _ = mutations.mutant(number, 1)
            raise AssertionError(f"seed 1, mutant {number} ({broken.what}): {failure!r}") from failure
    assert exchanges > 1000  # the mutants are not so broken that nothing is tested


@pytest.mark.parametrize("case", sorted(CASES.glob("*.capture")), ids=lambda path: path.stem)
def test_what_failed_once_holds(case: Path, tmp_path: Path) -> None:
    base = mutations.bases()[0]
    broken = mutations.Mutant(case.read_bytes(), case.stem)
    for number in range(3):
        checking.check(base, broken, random.Random(number), tmp_path, deep=1.0)
    try:
        read = analyzer.analyze(case, keep_bytes=True)
    except CaptureError:
        for window in (200, 500, 1000, 8000):
            with pytest.raises(CaptureError):
                analyzer.analyze(case, window_bytes=window)
        return
    for window in (200, 500, 1000, 8000):
        check_same(read, analyzer.analyze(case, window_bytes=window, threads=1, keep_bytes=True))


def test_there_are_cases() -> None:
    assert list(CASES.glob("*.capture"))


# ------------------------------------------------------------------------------------- do the checks notice anything?


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> analyzer.Dataset:
    path = tmp_path_factory.mktemp("read") / "capture.pcap"
    path.write_bytes(mutations.bases()[0].whole())
    return analyzer.analyze(path)


def _changed(dataset: analyzer.Dataset, table: str, column: str, value: object) -> analyzer.Dataset:
    """The dataset with one value of a table's last row changed."""
    rows = dataset.tables[table].to_pylist()
    rows[-1][column] = value
    tables = {**dataset.tables, table: pa.Table.from_pylist(rows, schema=dataset.tables[table].schema)}
    return replace(dataset, tables=tables)


def test_a_missing_byte_is_noticed(read: analyzer.Dataset) -> None:
    check_coverage(read)
    for column in ("decoded_bytes", "payload_bytes", "client_bytes", "opaque_malformed_bytes"):
        with pytest.raises(Broken):
            check_coverage(_changed(read, "connections", column, 1))
    with pytest.raises(Broken, match="payload bytes accounted for"):
        check_coverage(read, payload=1)


def test_a_wrong_row_is_noticed(read: analyzer.Dataset) -> None:
    check_rows(read)
    first = read.exchanges.slice(0, 1).to_pylist()[0]
    twice = pa.concat_tables([read.exchanges, read.exchanges.slice(0, 1)])
    with pytest.raises(Broken, match="not unique"):
        check_rows(replace(read, tables={**read.tables, "exchanges": twice}))
    for column, value in (("connection", "nobody"), ("latency_us", -1), ("status", "orphan_response"), ("reply", None)):
        assert first[column] != value
        with pytest.raises(Broken):
            check_rows(_changed(read, "exchanges", column, value))
    with pytest.raises(Broken):
        check_rows(_changed(read, "exchanges", "response_state", "undecoded"))


def test_another_connections_change_is_noticed(read: analyzer.Dataset, tmp_path: Path) -> None:
    base = mutations.bases()[0]
    assert len(base.flows) > 1
    last = read.exchanges["connection"][-1].as_py()
    other = next(flow for flow in base.flows if not last.startswith(checking.names(flow)))
    own = next(flow for flow in base.flows if last.startswith(checking.names(flow)))
    changed = _changed(read, "exchanges", "correlation_id", 999_999)
    check_others(base, read, other, tmp_path)
    check_others(base, changed, own, tmp_path)
    with pytest.raises(Broken, match="another connection's rows changed"):
        check_others(base, changed, other, tmp_path)
    with pytest.raises(Broken, match="depends on"):
        check_same(read, changed)


def test_a_seed_tells_the_whole_story() -> None:
    for number in range(30):
        assert mutations.mutant(number, 7)[1] == mutations.mutant(number, 7)[1]
    assert mutations.mutant(0, 7)[1] != mutations.mutant(0, 8)[1]


def test_every_family_is_drawn() -> None:
    families = {mutations.mutant(number, 1)[1].what.split(":")[0].split(",")[0] for number in range(60)}
    assert families == {"bytes", "tcp", "packet", "file"}
