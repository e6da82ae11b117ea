"""A Kafka proxy before a real broker, with one thing wrong: `python -m tests.replay.proxy LISTEN BROKER FAULT`.

In: frames of clients. Out: the broker's answers, in order, each changed as the fault wants; brokers that answers name
have the proxy's port. What it did is printed, a line each. One node, on the loopback, without TLS.

A fault is a function of `FAULTS`: it gets an `Exchange` before the request is sent on, and returns what changes the
answer (None: nothing).
"""

from __future__ import annotations

import asyncio
import copy
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys, errors, tree
from kwire.analyzer.protocol.encoding import encode_request, encode_response
from kwire.analyzer.protocol.tree import Body
from kwire.replay.plan import batches

HOST: Final = "127.0.0.1"
Change = Callable[[Body], None]


@dataclass
class Exchange:
    """A request on its way, and what becomes of it.

    - `send`: how often it is sent on (0: the fault answers alone); `behind`: another request that is sent behind it
    - `answer_with`: the answer, in place of the broker's; `delay`: seconds before the answer is passed on
    - `close`: end the connection in its place
    """

    connection: int
    number: int
    key: int
    version: int
    body: Body
    send: int = 1
    answer_with: Body | None = None
    behind: Body | None = None
    delay: float = 0.0
    close: bool = False


@dataclass
class Proxy:
    """The state of a proxy, which faults may use.

    - `names`: topics by id; `last`: the last answer to Produce, by topic; `count`: for faults, by any name
    - `next`: by partition, the base offset that clients expect next
    - `base`: by partition, how much lower the broker's offsets are than what clients were told
    """

    port: int
    broker: int
    names: dict[str, str] = field(default_factory=dict)
    last: dict[str, Body] = field(default_factory=dict)
    next: dict[tuple[str, int], int] = field(default_factory=dict)
    base: Counter[tuple[str, int]] = field(default_factory=Counter)
    count: Counter[str] = field(default_factory=Counter)
    held: list[Any] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    connections: int = 0

    def did(self, what: str) -> None:
        """Say what the fault has done."""
        self.done.append(what)
        print(what, flush=True)

    def nth(self, name: str) -> int:
        """How often this was met, this time included."""
        self.count[name] += 1
        return self.count[name]

    def topic(self, struct_: Body) -> str:
        """The name of the topic that a struct is about."""
        return str(struct_.get("name") or struct_.get("topic") or self.names.get(struct_.get("topicId", ""), "?"))

    def parts(self, body: Body) -> Iterator[tuple[str, Body]]:
        """Topic and partition of a Produce or Fetch request or answer."""
        for each in body.get("topicData") or body.get("responses") or body.get("topics") or ():
            for name in ("partitionData", "partitionResponses", "partitions"):
                for part in each.get(name) or ():
                    yield self.topic(each), part

    def only(self, exchange: Exchange, name: str) -> Body | None:
        """The one partition of a Produce request to a topic (with any prefix), if it has no other."""
        parts = list(self.parts(exchange.body)) if exchange.key == api_keys.PRODUCE else []
        return parts[0][1] if len(parts) == 1 and parts[0][0].endswith(name) else None

    def learn(self, exchange: Exchange, answer: Body) -> None:
        """Learn from an answer, and put the proxy where it names brokers."""
        if exchange.key == api_keys.METADATA:
            self.names.update((each["topicId"], each["name"]) for each in answer["topics"] if "topicId" in each)
        _readdress(answer, self.broker, self.port)
        if exchange.key == api_keys.PRODUCE:
            counts = {
                (topic, part["index"]): sum(batch.count for batch in batches.produced(part["records"]))
                for topic, part in self.parts(exchange.body)
            }
            for topic, part in self.parts(answer):
                where = topic, part["index"]
                if not part["errorCode"]:
                    part["baseOffset"] += self.base[where]
                    self.next[where] = part["baseOffset"] + counts[where]
            self.last.update((self.topic(each), copy.deepcopy(answer)) for each in answer["responses"])

    def pretend(self, exchange: Exchange, code: int = 0) -> Body:
        """An answer to Produce, with nothing stored."""
        ((topic, sent),) = self.parts(exchange.body)
        where = topic, sent["index"]
        answer = copy.deepcopy(self.last[topic])
        part = answer["responses"][0]["partitionResponses"][0]
        part.update(index=where[1], errorCode=code, baseOffset=-1 if code else self.next[where])
        if not code:
            self.next[where] += sum(batch.count for batch in batches.produced(sent["records"]))
        return answer


def _readdress(value: Any, broker: int, port: int) -> None:
    if isinstance(value, dict):
        if "host" in value and value.get("port") == broker:
            value["port"] = port
        for inner in value.values():
            _readdress(inner, broker, port)
    elif isinstance(value, list):
        for inner in value:
            _readdress(inner, broker, port)


def _split(data: bytes) -> list[bytes]:
    return [bytes(data[each.at : each.at + each.size]) for each in batches.batches(data)]


def _sealed(batch: bytes | bytearray) -> bytes:
    changed = bytearray(batch)
    batches.seal(changed, 0, len(changed))
    return bytes(changed)


# --- faults -----------------------------------------------------------------------------------------------------------

AUDIT, ORDERS, TURNS = "audit", "orders", "turns"
"""Topics of the capture that faults are made for (`mixed_load`)."""


def healthy(proxy: Proxy, exchange: Exchange) -> Change | None:
    return None


def drop(proxy: Proxy, exchange: Exchange) -> Change | None:
    """The twentieth batch to audit is acknowledged and dropped."""
    part = proxy.only(exchange, AUDIT)
    if part is not None and proxy.nth("audit") == 20:
        exchange.send, exchange.answer_with = 0, proxy.pretend(exchange)
        ((topic, _),) = proxy.parts(exchange.body)
        proxy.base[topic, part["index"]] += batches.produced(part["records"])[0].count
        proxy.did("dropped")
    return None


def twice(proxy: Proxy, exchange: Exchange) -> Change | None:
    """It is stored twice."""
    if proxy.only(exchange, AUDIT) is not None and proxy.nth("audit") == 20:
        exchange.send = 2
        proxy.did("twice")
    return None


def swap(proxy: Proxy, exchange: Exchange) -> Change | None:
    """The twentieth and the one behind it are exchanged."""
    return _swapped(proxy, exchange, AUDIT)


def overtake(proxy: Proxy, exchange: Exchange) -> Change | None:
    """Of a client that writes on two connections in turn, a batch is stored behind the next one, of the other."""
    return _swapped(proxy, exchange, TURNS)


def silent(proxy: Proxy, exchange: Exchange) -> Change | None:
    """From the three hundredth request on nothing is answered."""
    if proxy.nth("request") > 300:
        exchange.send, exchange.delay = 0, 3600.0
        exchange.answer_with = {}
    return None


def _swapped(proxy: Proxy, exchange: Exchange, topic: str) -> Change | None:
    part = proxy.only(exchange, topic)
    if part is None:
        return None
    number = proxy.nth(topic)
    if number == 20:
        proxy.held.append(exchange.body)
        exchange.send, exchange.answer_with = 0, proxy.pretend(exchange)
    elif number == 21:
        exchange.behind = proxy.held[0]
        ((_, first),) = proxy.parts(exchange.behind)
        count = sum(batch.count for batch in batches.produced(first["records"]))
        proxy.did("swapped")

        def change(answer: Body) -> None:
            for _, answered in proxy.parts(answer):
                answered["baseOffset"] += count

        return change
    return None


def storage_errors(proxy: Proxy, exchange: Exchange) -> Change | None:
    """Each fifth Produce is answered KAFKA_STORAGE_ERROR first."""
    if exchange.key == api_keys.PRODUCE and proxy.nth("produce") % 5 == 0:
        parts = list(proxy.parts(exchange.body))
        if len(parts) == 1 and parts[0][0] in proxy.last:
            exchange.send, exchange.answer_with = 0, proxy.pretend(exchange, errors.KAFKA_STORAGE_ERROR)
            proxy.did("storage error")
    return None


def fetch_error(proxy: Proxy, exchange: Exchange) -> Change | None:
    """One fetched partition with records is answered KAFKA_STORAGE_ERROR."""

    def change(answer: Body) -> None:
        for topic, part in proxy.parts(answer):
            if part.get("records") and proxy.nth("fetched") == 10:
                part.update(errorCode=errors.KAFKA_STORAGE_ERROR, records=b"")
                proxy.did(f"storage error of {topic}")

    return change if exchange.key == api_keys.FETCH else None


def _once(key: int, number: int, field_: Callable[[Body], Body], code: int) -> Callable[..., Change | None]:
    def fault(proxy: Proxy, exchange: Exchange) -> Change | None:
        def change(answer: Body) -> None:
            field_(answer)["errorCode"] = code
            proxy.did(errors.label(code))

        return change if exchange.key == key and proxy.nth("once") == number else None

    return fault


def renumber(proxy: Proxy, exchange: Exchange) -> Change | None:
    """Base offsets are one higher after the fiftieth."""

    def change(answer: Body) -> None:
        for _, part in proxy.parts(answer):
            part["baseOffset"] += not part["errorCode"] and proxy.nth("stored") > 50

    return change if exchange.key == api_keys.PRODUCE else None


def commit_to_abort(proxy: Proxy, exchange: Exchange) -> Change | None:
    """The fifth commit becomes an abort."""
    if exchange.key == api_keys.END_TXN and exchange.body["committed"] and proxy.nth("commit") == 5:
        exchange.body["committed"] = False
        proxy.did("commit to abort")
    return None


def _fetched(change_part: Callable[[Proxy, str, Body], None]) -> Callable[..., Change | None]:
    def fault(proxy: Proxy, exchange: Exchange) -> Change | None:
        def change(answer: Body) -> None:
            for topic, part in proxy.parts(answer):
                change_part(proxy, topic, part)

        return change if exchange.key == api_keys.FETCH else None

    return fault


def _hide_aborted(proxy: Proxy, topic: str, part: Body) -> None:
    if part.get("abortedTransactions"):
        part["abortedTransactions"] = []
        proxy.did("aborted list hidden")


def _lose_batch(proxy: Proxy, topic: str, part: Body) -> None:
    if not topic.endswith(ORDERS) or not part.get("records"):
        return
    here = _split(part["records"])
    if not proxy.held and here and proxy.nth("orders") > 5:
        proxy.held.append((topic, part["partitionIndex"], here[0][:8]))
        proxy.did(f"lost a batch of {topic}")
    rest = [batch for batch in here if (topic, part["partitionIndex"], batch[:8]) not in proxy.held]
    if len(rest) < len(here):
        part["records"] = b"".join(rest)


def _flip(proxy: Proxy, topic: str, part: Body) -> None:
    if topic.endswith(AUDIT) and part.get("records") and proxy.nth("audit") == 5:
        first, *rest = _split(part["records"])
        changed = bytearray(first)
        changed[-3] ^= 1
        part["records"] = _sealed(changed) + b"".join(rest)
        proxy.did("flipped")


def _cut(proxy: Proxy, topic: str, part: Body) -> None:
    if part.get("records") and proxy.nth("fetched") % 10 == 0:
        part["records"] = part["records"][:-20]
        proxy.did("cut")


def _earlier(proxy: Proxy, topic: str, part: Body) -> None:
    moved = []
    for batch in _split(part.get("records") or b""):
        changed = bytearray(batch)
        times = struct.unpack_from(">qq", changed, 27)
        struct.pack_into(">qq", changed, 27, *(time - 3_600_000 for time in times))
        moved.append(_sealed(changed))
    if moved:
        part["records"] = b"".join(moved)


def _low_watermark(proxy: Proxy, topic: str, part: Body) -> None:
    part["highWatermark"] = max(0, part["highWatermark"] - 1000)


def _committed(change_offset: Callable[[int], int]) -> Callable[..., Change | None]:
    def fault(proxy: Proxy, exchange: Exchange) -> Change | None:
        def change(answer: Body) -> None:
            for group in answer.get("groups") or [answer]:
                for _, part in proxy.parts(group):
                    before = part["committedOffset"]
                    part["committedOffset"] = change_offset(before)
                    if part["committedOffset"] != before:
                        proxy.did(f"{before} -> {part['committedOffset']}")

        return change if exchange.key == api_keys.OFFSET_FETCH else None

    return fault


def empty_assignment(proxy: Proxy, exchange: Exchange) -> Change | None:
    """The third assignment is emptied."""

    def change(answer: Body) -> None:
        if answer.get("assignment") and proxy.nth("assigned") == 3:
            answer["assignment"] = b""
            proxy.did("assignment emptied")

    return change if exchange.key == api_keys.SYNC_GROUP else None


def closing(proxy: Proxy, exchange: Exchange) -> Change | None:
    """Each connection ends after forty requests."""
    exchange.close = exchange.number >= 40
    if exchange.close:
        proxy.did("closed")
    return None


def throttle(proxy: Proxy, exchange: Exchange) -> Change | None:
    """All of Produce is throttled, by the answers."""
    return (lambda answer: answer.update(throttleTimeMs=300)) if exchange.key == api_keys.PRODUCE else None


def _offers(*lacking: int, ranges: dict[int, int] | None = None) -> Callable[..., Change | None]:
    def fault(proxy: Proxy, exchange: Exchange) -> Change | None:
        def change(answer: Body) -> None:
            answer["apiKeys"] = [each for each in answer["apiKeys"] if each["apiKey"] not in lacking]
            for each in answer["apiKeys"]:
                each["maxVersion"] = min(each["maxVersion"], (ranges or {}).get(each["apiKey"], each["maxVersion"]))

        return change if exchange.key == api_keys.API_VERSIONS else None

    return fault


def fewer_partitions(proxy: Proxy, exchange: Exchange) -> Change | None:
    """One partition of orders is missing in Metadata."""

    def change(answer: Body) -> None:
        for each in answer["topics"]:
            if str(each["name"]).endswith(ORDERS) and len(each["partitions"]) > 2:
                each["partitions"].pop()

    return change if exchange.key == api_keys.METADATA else None


def _delay(key: int, seconds: float, each: int = 1) -> Callable[..., Change | None]:
    def fault(proxy: Proxy, exchange: Exchange) -> Change | None:
        if exchange.key == key and proxy.nth("delayed") % each == 0:
            exchange.delay = seconds
        return None

    return fault


FAULTS: Final[dict[str, Callable[[Proxy, Exchange], Change | None]]] = {
    "healthy": healthy,
    "drop": drop,
    "twice": twice,
    "swap": swap,
    "overtake": overtake,
    "silent": silent,
    "storage-errors": storage_errors,
    "fetch-error": fetch_error,
    "heartbeat-error": _once(api_keys.HEARTBEAT, 15, lambda body: body, errors.UNKNOWN_MEMBER_ID),
    "produce-error": _once(
        api_keys.PRODUCE, 30, lambda body: body["responses"][0]["partitionResponses"][0], errors.CORRUPT_MESSAGE
    ),
    "commit-error": _once(
        api_keys.OFFSET_COMMIT, 10, lambda body: body["topics"][0]["partitions"][0], errors.INVALID_COMMIT_OFFSET_SIZE
    ),
    "renumber": renumber,
    "commit-to-abort": commit_to_abort,
    "aborted-hidden": _fetched(_hide_aborted),
    "lose-batch": _fetched(_lose_batch),
    "flip": _fetched(_flip),
    "cut": _fetched(_cut),
    "earlier": _fetched(_earlier),
    "low-watermark": _fetched(_low_watermark),
    "old-commits": _committed(lambda offset: offset - 5 if offset > 5 else offset),
    "no-commits": _committed(lambda offset: -1),
    "empty-assignment": empty_assignment,
    "closing": closing,
    "throttle": throttle,
    "no-transactions": _offers(api_keys.ADD_PARTITIONS_TO_TXN, api_keys.END_TXN),
    "other-ranges": _offers(ranges={api_keys.PRODUCE: 9, api_keys.FETCH: 12, api_keys.METADATA: 11}),
    "fewer-partitions": fewer_partitions,
    "slow-produce": _delay(api_keys.PRODUCE, 0.1),
    "slow-fetches": _delay(api_keys.FETCH, 0.05, 20),
}


# --- connections ------------------------------------------------------------------------------------------------------


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return await reader.readexactly(int.from_bytes(size, "big"))


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(4, "big") + frame)


async def _serve(
    proxy: Proxy,
    fault: Callable[[Proxy, Exchange], Change | None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    upstream_reader, upstream = await asyncio.open_connection(HOST, proxy.broker)
    proxy.connections += 1
    connection = proxy.connections
    pending: asyncio.Queue[tuple[Exchange, int, Change | None] | None] = asyncio.Queue()

    async def up() -> None:
        number = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(reader)
                key, version, correlation = struct.unpack_from(">hhi", frame)
                decoded = tree.decode_request(frame, exact=True)
                exchange = Exchange(connection, number, key, version, copy.deepcopy(decoded.body or {}))
                number += 1
                change = fault(proxy, exchange)
                if exchange.close:
                    break
                if exchange.body != decoded.body and decoded.body is not None:
                    client = (decoded.header or {}).get("clientId")
                    frame = encode_request(key, version, correlation, client, exchange.body)
                for _ in range(exchange.send):
                    _write(upstream, frame)
                if exchange.behind is not None:
                    exchange.send += 1  # so many answers come
                    client = (decoded.header or {}).get("clientId")
                    _write(upstream, encode_request(key, version, correlation, client, exchange.behind))
                await pending.put((exchange, correlation, change))
                await upstream.drain()
        await pending.put(None)

    async def down() -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while (entry := await pending.get()) is not None:
                exchange, correlation, change = entry
                frames = [await _frame(upstream_reader) for _ in range(exchange.send)]
                if exchange.delay:
                    await asyncio.sleep(exchange.delay)
                body = exchange.answer_with
                if body is None:
                    body = tree.decode_response(frames[0], exchange.key, exchange.version, exact=True).body
                if body is None:  # unknown to us: as it came
                    _write(writer, frames[0])
                    continue
                if exchange.answer_with is None:
                    proxy.learn(exchange, body)
                if change is not None:
                    change(body)
                _write(writer, encode_response(exchange.key, exchange.version, correlation, body))
                await writer.drain()
        writer.close()
        upstream.close()

    await asyncio.gather(up(), down())


async def serve(proxy: Proxy, fault: str) -> asyncio.Server:
    """Listen, with one fault, until the server is closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await _serve(proxy, FAULTS[fault], reader, writer)

    return await asyncio.start_server(connected, HOST, proxy.port)


async def main() -> None:
    """Listen until the process ends."""
    server = await serve(Proxy(int(sys.argv[1]), int(sys.argv[2])), sys.argv[3])
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
