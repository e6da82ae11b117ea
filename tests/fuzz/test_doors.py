"""Two hundred broken inputs at each door, in the suite's own process; `make fuzz` brings thousands.

Each block has a watchdog, and a bound of memory: a run that hangs or eats the machine is told with its place.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import doors
from tests.fuzz.__main__ import MAX_GROWTH_BYTES, _forget_peak, _memory
from tests.fuzz.checking import Broken

BLOCK = 50
BLOCKS = 4
TOGETHER = {"asking": doors.TOGETHER}
"""How many captures one case of a door takes, where that is not one."""
HANG_SECONDS = 900  # kernels may have to be compiled first


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("door", doors.DOORS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_door_holds(door: str, block: int, tmp_path: Path) -> None:
    lines = refused = 0
    _forget_peak()
    before = _memory("VmRSS")
    cases = BLOCK // TOGETHER.get(door, 1)
    for number in range(block * cases, (block + 1) * cases):
        try:
            outcome = doors.DOORS[door](number, 1, tmp_path)
        except Broken as broken:
            raise AssertionError(f"{broken}\n{doors.again(door, number, 1)}") from broken
        lines += outcome.exchanges
        refused += outcome.refused
    assert _memory("VmHWM") - before < MAX_GROWTH_BYTES
    assert refused < cases * 0.8, "so broken that nothing is tested"
    assert lines > BLOCK


@pytest.mark.parametrize(
    ("done", "noticed"),
    [(lambda _: 7, "exit code 7"), (lambda _: print("\x1b[2J") or 0, "prints"), (lambda _: 2, "no hint")],
)
def test_what_a_door_must_not_do_is_noticed(
    done: Callable[[list[str]], int], noticed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code that is none, text that steers a terminal, an error without its hint."""
    (tmp_path / "x.pcap").write_bytes(b"nothing")
    assert doors.command("show", tmp_path / "x.pcap")[0] == 2
    monkeypatch.setattr("kwire.analyzer.cli.parser.main", done)
    with pytest.raises(Broken, match=noticed):
        doors.command("show", "x")
