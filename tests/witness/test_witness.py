"""The main job, proved on real captures: what brokers logged is what kwire reads from the packets, field for field.

Each capture is judged three ways: the plain reference against the broker's log (this proves the comparison and the
reference), kwire against the log, and kwire against the reference, which also knows what the log does not (logins,
unanswered requests, times, sizes).
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.shared import capture_files, sample_folders, shared_folder, shared_folders
from tests.witness import engine, reference, requestlog
from tests.witness.comparing import CUT_OFF, HEADERS_CUT, SECRETS, differences, expected, key, paired
from tests.witness.reference import Exchange
from tests.witness.requestlog import Logged

SAMPLES = {f"samples/{folder.name}": folder for folder in sample_folders()}
SHARED = [folder.name for folder in shared_folders()] or ["<absent>"]
EVERY = [*SAMPLES, *SHARED]


SPAN = {"first_packet": "capture_start", "last_packet": "capture_end"}
"""When a capture holds packets; where that was not noted, when the capture ran."""


@dataclass
class Case:
    """One capture with its broker's log."""

    folder: Path
    ports: set[int]
    log: list[Logged]
    wanted: list[Logged]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def cut(self) -> bool:
        """Payload was not captured whole: only header fields can be compared, and not every client id."""
        return self.name.startswith("snaplen-")

    @property
    def midstream(self) -> bool:
        return self.name.startswith("midstream-")


ZOOKEEPER = 2181
"""No broker's port, though captures may hold it."""


# One capture at a time: pytest runs all tests of one before the next, because the fixture `case` has a module's scope.
@functools.lru_cache(maxsize=1)
def load(folder: Path) -> Case:
    meta = json.loads((folder / "truth.json").read_text())["meta"]
    ports = {int(port) for port in re.findall(r"port (\d+)", meta["filter"])} - {ZOOKEEPER}
    log = requestlog.read(folder)
    first, last = (meta.get(name, meta[otherwise]) for name, otherwise in SPAN.items())
    wanted = expected(log, ports, first, last, folder.name.startswith("midstream-"))
    return Case(folder, ports, log, wanted)


@functools.lru_cache(maxsize=1)
def by_reference(folder: Path) -> list[Exchange]:
    return list(reference.exchanges(capture_files(folder), load(folder).ports))


@functools.lru_cache(maxsize=1)
def by_show(folder: Path) -> list[Exchange]:
    return [engine.exchange(row) for row in engine.show(folder)]


@pytest.fixture(params=EVERY, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    name = request.param
    folder = SAMPLES[name] if name in SAMPLES else shared_folder(name)
    if name.startswith("tls"):
        pytest.importorskip("cryptography", reason=f"{name}: TLS needs the package cryptography")
    if not list(folder.glob("requests*.log.gz")):
        pytest.skip(f"{name}: its broker is of another make and wrote no log")
    loaded = load(folder)
    if not loaded.wanted:
        pytest.skip(f"{name}: a proxy stands between, so the broker's log is of other connections")
    return loaded


def judge(case: Case, exchanges: list[Exchange], secrets_shown: bool) -> int:
    """Assert that every wanted log line is among the exchanges, once, and its bodies equal; the number of bodies."""
    missing, different, bodies, cut_off = [], [], 0, Counter[int]()
    pairs = list(paired(case.wanted, case.log, exchanges, with_client_id=not case.cut))
    assert len(pairs) == len(case.wanted)
    for line, exchange in pairs:
        if exchange is None:
            missing.append(line)
            continue
        if case.cut:
            assert exchange.client_id in (None, line.client_id)
            continue
        if line.request is None:
            continue  # the log's format has no bodies
        assert exchange.request is not None, f"request not decoded: {exchange}"
        for side, read in (("request", exchange.request), ("response", exchange.response)):
            if read is None:
                if exchange.status == "no_response_expected":
                    assert line.request["acks"] == 0
                else:
                    cut_off[line.api_key] += 1
                continue
            bodies += 1
            differing = differences(line, side, read, secrets_shown)
            different += [f"{side} of {key(line)}: {difference}" for difference in differing]
    lost = f"{len(missing)} of {len(pairs)} logged requests are not there, first: {missing[:3]}"
    assert len(missing) == HEADERS_CUT.get(case.name, 0), lost
    assert not different, f"{len(different)} differences, first:\n" + "\n".join(different[:20])
    if not case.cut:
        assert dict(cut_off) == CUT_OFF.get(case.name, {}), "responses not whole on the wire"
    # Once: no key has more exchanges than the broker logged. What it does not log: logins, and what it never answered.
    logged = Counter(key(line, not case.cut) for line in case.log if not line.forwarded)
    read_ = Counter(
        key(exchange, not case.cut) for exchange in exchanges if exchange.status in ("answered", "no_response_expected")
    )
    twice = {
        exchange_key: count
        for exchange_key, count in read_.items()
        if exchange_key in logged and count > logged[exchange_key]
    }
    assert not twice, f"more exchanges than the broker logged: {list(twice.items())[:3]}"
    return bodies


def test_the_reference_reads_what_the_broker_logged(case: Case) -> None:
    if case.name.startswith("tls"):
        pytest.skip(f"{case.name}: the reference does not decrypt; the log is the judge")
    bodies = judge(case, by_reference(case.folder), secrets_shown=True)
    if case.wanted[0].request is not None and not case.cut:
        assert bodies >= 2 * len(case.wanted) - sum(CUT_OFF.get(case.name, {}).values()) - sum(
            line.api_key == 0 and (line.request or {})["acks"] == 0 for line in case.wanted
        )


def test_kwire_show_prints_what_the_broker_logged(case: Case) -> None:
    judge(case, by_show(case.folder), secrets_shown=False)


def test_the_exchanges_table_has_what_the_broker_logged(case: Case) -> None:
    from kwire import analyzer

    table = analyzer.analyze(str(case.folder), keylogs=engine.keylogs(case.folder)).exchanges
    columns = {
        name: table.column(name).to_pylist()
        for name in ("client_ip", "client_port", "api_key", "api_version", "correlation_id", "client_id", "status")
    }
    rows = Counter(
        ((ip, port), api_key, version, correlation_id, None if case.cut else client_id or "")
        for ip, port, api_key, version, correlation_id, client_id, _ in zip(*columns.values(), strict=True)
    )
    wanted = Counter((*key(line, False), None if case.cut else line.client_id or "") for line in case.wanted)
    missing = wanted - rows
    assert missing.total() == HEADERS_CUT.get(case.name, 0), f"not in the table: {list(missing.items())[:3]}"


def test_kwire_equals_the_plain_reference(case: Case) -> None:
    """Every exchange, also those the broker did not log: keys, times, sizes, outcome and bodies."""
    if case.cut or case.midstream:
        pytest.skip(f"{case.name}: where to resynchronise is the engine's own choice; the log is its judge")
    if case.name.startswith("tls"):
        pytest.skip(f"{case.name}: the reference does not decrypt; the log is the judge")
    if "sasl-raw" in case.name:
        pytest.skip(f"{case.name}: the reference takes SASL tokens without headers for messages; the log is the judge")
    shown = {(exchange.connection, exchange.exchange, exchange.reply): exchange for exchange in by_show(case.folder)}
    by_reference_reader = {
        (exchange.connection, exchange.exchange, exchange.reply): exchange for exchange in by_reference(case.folder)
    }
    whole = {at: exchange for at, exchange in by_reference_reader.items() if exchange.problem != "bytes missing"}
    assert not whole.keys() - shown.keys(), f"only the reference has {sorted(whole.keys() - shown.keys(), key=str)[:5]}"
    for at, plain in whole.items():
        product = shown[at]
        assert close(facts(product), facts(plain)), at
        # The reference's bodies take the log's place; a key of None is an orphan's, which has none.
        log = Logged(
            0,
            0,
            plain.api_key or 0,
            0,
            0,
            None,
            plain.client,
            None,
            False,
            request=plain.request,
            response=plain.response,
        )
        for side, read, there in (
            ("request", product.request, plain.request),
            ("response", product.response, plain.response),
        ):
            assert there is None or not differences(log, side, read or {}, secrets_shown=False), at


def close(product: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Equal, but for the last microsecond of times, which dpkt rounds where they are nanoseconds in a pcapng."""
    return product.keys() == plain.keys() and all(
        value == plain[name] or (name.endswith(("_time", "_end")) and value and abs(value - plain[name]) <= 1)
        for name, value in product.items()
    )


def facts(exchange: Exchange) -> dict[str, Any]:
    """Return the values that must be equal besides the bodies; times in whole microseconds."""
    times = {
        name: None if value is None else value // 1000
        for name, value in (
            ("request_time", exchange.request_time),
            ("request_end", exchange.request_end),
            ("response_time", exchange.response_time),
            ("response_end", exchange.response_end),
        )
    }
    return times | {
        "api_key": exchange.api_key,
        "api_version": exchange.api_version,
        "correlation_id": exchange.correlation_id,
        "client_id": exchange.client_id,
        "status": exchange.status,
        "request_bytes": exchange.request_bytes,
        "response_bytes": exchange.response_bytes,
    }


def test_no_secret_of_a_capture_is_printed(case: Case) -> None:
    """Every secret that the plain reference sees is absent from all that kwire prints, as base64 and as text."""
    secrets: set[str] = set()
    for exchange in by_reference(case.folder):
        for side, body in (("request", exchange.request), ("response", exchange.response)):
            for api_key, of_side, path in SECRETS:
                if exchange.api_key == api_key and of_side == side and body is not None:
                    secrets |= values(body, path.split("."))
    secrets.discard("")
    if not secrets:
        pytest.skip(f"{case.name} holds no secret")
    printed = json.dumps([[exchange.request, exchange.response] for exchange in by_show(case.folder)])
    for secret in secrets:
        raw = base64.b64decode(secret)
        for form in (secret, raw.hex(), raw.decode("latin-1")):
            assert len(form) < 4 or json.dumps(form)[1:-1] not in printed, f"a secret of {len(raw)} bytes is printed"


def values(body: Any, path: list[str]) -> set[str]:
    """The strings at a path through structs and arrays."""
    if isinstance(body, list):
        return set().union(*(values(element, path) for element in body))
    if not path:
        return {body} if isinstance(body, str) else set()
    return values(body.get(path[0]), path[1:]) if isinstance(body, dict) else set()
