"""A target that dies on the way is told within ten seconds, and ends the run once a broker would have been given up;
one that only takes its time is asked, and left alone.

Proves: replay/send/target_watch.py, replay/send/engine.py, replay/send/own_requests.py
"""

from __future__ import annotations

import asyncio

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.send.progress import Standing
from tests.replay.conversation import START_NS, Captured, Target, replayed

ASKS: Body = {"topics": None}
SAYS: Body = {"brokers": [], "topics": []}


def asking(count: int, every: float) -> Captured:
    capture = Captured()
    for number in range(count):
        capture.add(number * every, api_keys.METADATA, 9, ASKS, SAYS)
    return capture


def test_a_target_that_dies_is_told_in_ten_seconds_and_ends_the_run() -> None:
    """One connection waits for an answer when it dies, two others come to it later: they do not wait anew."""
    target = Target()

    def die(body: Body) -> Body | None:
        target.down.add(1)
        return None

    target.on(api_keys.METADATA, SAYS, die)
    standings: list[tuple[int, Standing]] = []
    others = [Captured(f"10.0.0.{n}:1-10.0.0.9:9092#1").add(20.0 * n, api_keys.METADATA, 9, ASKS, SAYS) for n in (2, 3)]

    run = replayed(
        [asking(2, 1.0), *others],
        target,
        speed=1.0,
        progress=lambda standing: standings.append((len(standings) + 1, standing)),
    )

    first = next(second for second, standing in standings if standing.dead)
    assert first <= 1 + 10
    text = next(standing.dead for _, standing in standings if standing.dead)
    assert text.startswith("target:9092: no answer to anything, and no broker greets a new connection, for ")
    assert run.engine.failure is not None
    assert run.seconds < 45
    verdicts = sorted(outcome.verdict for outcome in run.outcomes)
    assert (len(verdicts), verdicts.count("answered")) == (4, 1)


def test_a_target_that_comes_back_is_not_given_up() -> None:
    target = Target()

    def restart(body: Body) -> Body | None:
        target.down.add(1)
        asyncio.get_running_loop().call_later(20.0, target.down.clear)
        return None

    target.on(api_keys.METADATA, restart, SAYS)

    run = replayed([asking(2, 1.0)], target, speed=1.0)

    assert run.engine.failure is None
    assert [outcome.verdict for outcome in run.of(api_keys.METADATA)] == ["answered"] * 2


def test_a_target_that_takes_its_time_is_alive() -> None:
    """An answer comes after a minute: new connections are greeted meanwhile."""
    target = Target().on(api_keys.METADATA, SAYS, delay=60.0)
    standings: list[Standing] = []

    run = replayed([asking(1, 1.0)], target, speed=1.0, progress=standings.append)

    assert run.engine.failure is None
    assert not any(standing.dead for standing in standings)
    assert target.links > 2
    assert [outcome.verdict for outcome in run.outcomes] == ["answered"]
    assert (run.outcomes[0].answered_ns or 0) > START_NS


def test_a_target_that_greets_and_answers_nothing_is_given_up() -> None:
    """New connections are greeted, so it is not down; but no answer is of use."""
    target = Target().on(api_keys.METADATA, SAYS, delay=1000.0)
    run = replayed([asking(3, 1.0)], target, speed=1.0, silence=60.0, answer_timeout=90.0)
    assert run.engine.failure is not None
    assert run.engine.failure.message.startswith("target:9092: no answer to anything for 6")
    assert "--give-up-after" in run.engine.failure.hint
    assert 60 < run.seconds < 70


def test_what_took_long_in_the_capture_may_take_that_long_besides() -> None:
    """A join waits for others: its answer came after 50 s there, and comes after 80 s here."""
    capture = Captured().add(0.0, api_keys.METADATA, 9, ASKS, SAYS, took=50.0)
    target = Target().on(api_keys.METADATA, SAYS, delay=80.0)
    run = replayed([capture], target, speed=1.0, silence=60.0, answer_timeout=90.0)
    assert run.engine.failure is None
    assert [outcome.verdict for outcome in run.outcomes] == ["answered"]


def test_a_clock_that_was_set_while_it_captured_is_no_reason_to_wait() -> None:
    capture = Captured().add(0.0, api_keys.METADATA, 9, ASKS, SAYS, took=80 * 365 * 86400.0)
    target = Target().on(api_keys.METADATA, SAYS, delay=1000.0)
    run = replayed([capture], target, speed=1.0, silence=60.0, answer_timeout=90.0)
    assert run.seconds < 60 + 90 + 120
