"""Tell what clients did: their connections, what they wrote and read, and what was refused.

In: the tables `connections`, `clients`, `readers`, `exchanges` and `partitions`. Out: events. Rule: refusals of one
kind that follow one another are one event, which says what came next.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kwire.analyzer.cli.text import size
from kwire.analyzer.common.times import moment
from kwire.analyzer.frame import arrow, grouping, spill
from kwire.analyzer.frame.columns import encode
from kwire.analyzer.frame.frame import NULL, Frame, codes_of
from kwire.analyzer.frame.grouping import OrdinalIndex
from kwire.analyzer.frame.parquet import StoredFrame
from kwire.analyzer.protocol.error_severity import judge
from kwire.analyzer.story.events import WHY, Event, Row, count, error, later, places, some, span, who, within
from kwire.analyzer.story.partition_answers import NEVER, NO_TIMES, After, Afters, PartitionAnswers
from kwire.analyzer.story.refused_batches import refused_batches
from kwire.analyzer.story.sources import EXCHANGE_COLUMNS, FETCHER, Source, names_in

_RUN_US, _SOON_US = 60_000_000, 2_000_000
"""Refusals farther apart than the first are separate events; nearer than the second they are one event."""

_WEIGHT = {"bad": 60, "transient": 12, "normal": 2, "admin": 9}
_TOO_LONG_US = 5_000_000
_LEADER = (5, 6, 74, 75, 76)
"""Errors of partitions whose leader moved or is missing."""
_OF_CONTENT = (2, 10, 18, 32, 87)
"""Errors of a batch for what it holds: it is refused whenever it comes."""


def events(source: Source) -> Iterator[Event]:
    """Events of clients."""
    yield from _connections(source)
    yield from _traffic(source)
    yield from _refusals(source)
    yield from _unanswered(source)


def _connections(source: Source) -> Iterator[Event]:
    for row in source.rows("connections"):
        software = " ".join(filter(None, (row["software_name"], row["software_version"])))
        actor = who(row["client_id"], row["client_ip"])
        common = {"connection": row["connection"], "client_id": row["client_id"]}
        broker = source.broker(row["broker_ip"], row["broker_port"])
        parts = [f"connected to {broker}" if row["opened"] else f"was connected to {broker} when the capture began"]
        if software:
            parts.append(f"software {software}")
        if row["sasl_mechanism"]:
            parts.append(f"login by {row['sasl_mechanism']}")
        if row["tls"]:
            parts.append("TLS")
        if row["rtt_us"] is not None:
            parts.append(f"round trip {span(row['rtt_us'])}")
        yield Event(row["first_time"], "connected", actor, "; ".join(parts), 0, **common)
        if row["closed"] in ("fin", "rst"):
            requests = f"{count(row['requests'], 'request')}{within(row['first_time'], row['last_time'])}"
            requests += f", {count(row['errors'], 'error')}" if row["errors"] else ""
            reset = row["closed"] == "rst"
            text = (
                f"its connection to {broker} was {'reset' if reset else 'closed'}: {requests}"  # nothing says by whom
            )
            weight = 12 if reset else 0
            yield Event(row["last_time"], "disconnected", actor, text, weight, **common)


def _traffic(source: Source) -> Iterator[Event]:
    """Events of writing to and reading from each topic, by client."""
    by_topic: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    refusals = refused_batches(source)
    for row in _carried(source):
        topic = row["topic"] or source.topics.get(row["topic_id"] or "", row["topic_id"])
        by_topic[row["client_id"], row["client_ip"], row["api"], topic].append({**row, "topic": topic})
    for (client, ip, api, topic), rows in by_topic.items():
        outcomes = [
            [row for row in rows if row["outcome"] == outcome] for outcome in (_ACCEPTED, _REFUSED, _UNANSWERED)
        ]
        accepted, refused, unanswered = outcomes
        first, last = moment(min(row["first"] for row in rows)), moment(max(row["last"] for row in rows))
        held = [row for row in accepted or rows if row["bytes"]] or accepted or rows
        where = places((topic, row["partition"]) for row in held)
        verb = "wrote" if api == "Produce" else "read"
        amount = sum(row["bytes"] for row in accepted)
        again = sum(row["records"] - row["distinct"] for row in accepted)
        if accepted or verb == "read":
            text = f"{verb} {where}: {_much(accepted)}{within(first, last)}"
            text += f"; {count(again, 'record')} came again" if verb == "read" and again > 0 else ""
        else:
            text = f"could not write {where}" if refused else f"sent {where}"
        if verb == "wrote":
            text += f"; refused: {_much(refusals.get((client, ip, topic), refused))}" if refused else ""
            text += f"; no answer seen: {_much(unanswered)}" if any(row["bytes"] for row in unanswered) else ""
        inside = (topic or "").startswith("__") or FETCHER.fullmatch(client or "") is not None
        weight = 3 if not amount else 6 if inside else 27
        yield Event(first, verb, who(client, ip), text, weight, topic=topic, client_id=client)


def _much(rows: list[Row]) -> str:
    """Describe records and bytes. Old compressed message sets do not state their number of records."""
    records, amount = sum(row["distinct"] for row in rows), sum(row["bytes"] for row in rows)
    least = "at least " if any(row["uncounted"] for row in rows) else ""
    return f"{least}{count(records, 'record')}, {size(amount)}" if records else size(amount) if amount else "nothing"


_ACCEPTED, _REFUSED, _UNANSWERED = range(3)
"""Outcomes of writing: no sign of failure; refused by the broker; the expected answer was not captured. Producers send
the latter two again, unless only the capture missed the answer."""


def _carried(source: Source) -> Iterator[Row]:
    """Records that each client wrote to and read from each partition, and their outcome, in order of the first time:
    records, and distinct ones (what was read again counts once), bytes, whether some of these are in sets that do not
    say how many records they have, first request and last answer (us). By columns: a capture has millions of these."""
    texts: dict[str, dict[str, int]] = {"connection": {}, "client_id": {}, "client_ip": {}, "api": {}}
    times = dict.fromkeys(("exchange", "request_time", "response_end", "acks"), np.int64)
    exchanges = source.stored("exchanges").gather(times, texts)
    links, names = exchanges.text("connection")
    api, apis = exchanges.text("api")
    of_data = arrow.among(api, codes_of(apis, "Produce", "Fetch"))
    of_data &= (exchanges["exchange"] != NULL) & (exchanges["request_time"] != NULL)
    rows = spill.true_rows(of_data)
    if not len(rows):
        return
    wanted = "exchange", "partition", "record_count", "record_bytes", "error_code", "offset", "high_watermark", "lag"
    numbers = dict.fromkeys(wanted, np.int64)
    known = {name: number for number, name in enumerate(names)}
    parts = source.stored("partitions").gather(numbers, {"connection": known, "topic": {}, "topic_id": {}})
    owner = spill.full(len(parts["exchange"]), -1, np.int32)
    index = OrdinalIndex(spill.take(links, rows), spill.take(exchanges["exchange"], rows), len(names), rows)
    index.join(owner, parts.text("connection").codes, parts["exchange"], parts["exchange"] != NULL)
    chosen = spill.true_rows(owner >= 0)
    owner = spill.take(owner, chosen)
    keys = [spill.take(exchanges.text(name).codes, owner) for name in ("client_id", "client_ip", "api")]
    keys += [spill.take(parts.text(name).codes, chosen) for name in ("topic", "topic_id")]
    error, acks = spill.take(parts["error_code"], chosen), spill.take(exchanges["acks"], owner)
    unanswered = (error == NULL) & (acks != NULL) & (acks != 0)
    keys += [spill.take(parts["partition"], chosen)]
    keys += [np.where(unanswered, _UNANSWERED, np.where((error == 0) | (error == NULL), _ACCEPTED, _REFUSED))]
    groups = grouping.group(*keys)
    order, starts = groups.order, groups.starts
    if not len(order):
        return
    chosen, owner = spill.take(chosen, order), spill.take(owner, order)

    def many(name: str) -> np.ndarray:
        whole = parts[name]
        return spill.compute(len(chosen), np.int64, lambda block: np.maximum(whole[chosen[block]], 0))

    records, amount = parts["record_count"], parts["record_bytes"]
    uncounted = spill.compute(
        len(chosen), np.bool_, lambda block: (records[chosen[block]] == NULL) & (amount[chosen[block]] > 0)
    )
    sums = np.add.reduceat(many("record_count"), starts), np.add.reduceat(many("record_bytes"), starts)
    some_uncounted = np.logical_or.reduceat(uncounted, starts)
    begun = spill.take(exchanges["request_time"], owner)
    first = np.minimum.reduceat(begun, starts)
    last = np.maximum.reduceat(np.maximum(spill.take(exchanges["response_end"], owner), begun), starts)
    heads = order[starts]
    ends = np.append(starts[1:], len(order))
    for at in np.argsort(heads).tolist():
        client, ip, api_code, topic, topic_id, partition, outcome = (int(key[heads[at]]) for key in keys)
        yield {
            "client_id": _text(exchanges.text("client_id").values, client),
            "client_ip": _text(exchanges.text("client_ip").values, ip),
            "api": apis[api_code],
            "topic": _text(parts.text("topic").values, topic),
            "topic_id": _text(parts.text("topic_id").values, topic_id),
            "partition": None if partition == NULL else partition,
            "outcome": outcome,
            "records": int(sums[0][at]),
            "distinct": _distinct(parts, chosen[starts[at] : ends[at]], int(sums[0][at])),
            "bytes": int(sums[1][at]),
            "uncounted": bool(some_uncounted[at]),
            "first": int(first[at]),
            "last": int(last[at]),
        }


def _distinct(parts: Frame, rows: np.ndarray, records: int) -> int:
    """How many different records some answers about one partition held: at most as many as they have offsets."""
    begin, mark, lag, many = (parts[name][rows] for name in ("offset", "high_watermark", "lag", "record_count"))
    known = (begin != NULL) & (mark != NULL) & (lag != NULL) & (many > 0)
    if not known.any() or (many[~known] > 0).any():
        return records
    begin, many, after = begin[known], many[known], (mark - lag)[known]
    end = np.where(after > begin, after, begin + many)
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    fresh = np.maximum(end[order] - np.maximum(begin, np.append(begin[0], reached[:-1])), 0)
    return min(records, int(fresh.sum()))


def _text(texts: list[str], number: int) -> str | None:
    return texts[number] if number >= 0 else None


_WHOSE = ("client_id", "client_ip", "api", "error", "group_id", "transactional_id")


def _refusals(source: Source) -> Iterator[Event]:
    """Events of runs of one error, with what came next. Computed by columns, because a capture has millions of errors
    and few runs."""
    stored = source.stored("exchanges")
    times = dict.fromkeys(("request_time", "response_end"), np.int64)
    exchanges = stored.gather(times, {name: {} for name in _WHOSE})
    bad = _refused(source, exchanges)
    if not len(bad):
        return
    by_partition = PartitionAnswers(source, bad, exchanges)
    codes = {name: spill.take(exchanges.text(name).codes, bad) for name in _WHOSE}
    texts = {name: exchanges.text(name).values for name in _WHOSE}
    begun, ended = (spill.take(exchanges[name], bad) for name in times)
    begun, ended = np.where(begun != NULL, begun, ended), np.where(ended != NULL, ended, begun)
    topic, topics = _first_topics(source, stored, bad)
    in_time = np.argsort(begun, kind="stable")
    keys = [*(codes[name] for name in _WHOSE[:3]), topic, *(codes[name] for name in _WHOSE[3:])]
    groups = grouping.group(*(key[in_time] for key in keys))
    order, starts, ends = groups.order, groups.starts, groups.ends
    order = in_time[order]
    by_request = np.logical_or.reduceat(by_partition.unnamed[order], starts)
    successes = _successes(source, codes, texts, order[np.repeat(by_request, ends - starts)])
    runs: list[_Run] = []
    heads = order[starts]
    for at in np.lexsort((heads, begun[heads])).tolist():
        run_rows = order[starts[at] : ends[at]]
        head = int(run_rows[0])
        key = (*(_text(texts[name], int(codes[name][head])) for name in _WHOSE[:3]), _text(topics, int(topic[head])))
        when = ended[run_rows]
        after = by_partition.after(run_rows, when)
        known = successes.times(key)
        if after is None:
            after = successes.after(key, when)
        else:
            known = by_partition.times(run_rows)
        gap = np.diff(when)
        # The same trouble as the error before: soon after it, or later and nothing went well between (what goes well
        # at once may be about another partition).
        goes_on = (gap < _SOON_US) | ((gap < _RUN_US) & (after.time[:-1] >= when[1:]))
        begins = np.flatnonzero(np.append(True, ~goes_on))
        for begin, past in zip(begins.tolist(), [*begins[1:].tolist(), len(run_rows)], strict=True):
            between = np.diff(np.searchsorted(known, when[[begin, past - 1]]))
            first, last = int(run_rows[begin]), int(run_rows[past - 1])
            runs.append(_Run(first, last, past - begin, int(between[0]), after.of(past - 1)))
    rows = source.picked(stored, bad[[run.first for run in runs]], EXCHANGE_COLUMNS)
    for row, run in zip(rows, runs, strict=True):
        yield _refusal(source, row, moment(int(ended[run.first])), moment(int(ended[run.last])), run)


def _successes(
    source: Source, codes: dict[str, np.ndarray], texts: dict[str, list[str]], refused: np.ndarray
) -> _Successes:
    """Read the successful requests of the clients and APIs of some refused ones (positions in `codes`)."""
    if not len(refused):
        return _Successes(source, None)
    of = {name: arrow.distinct(codes[name][refused]).tolist() for name in ("client_id", "api")}
    clients = sorted({_text(texts["client_id"], code) or "" for code in of["client_id"]})
    apis = sorted(texts["api"][code] for code in of["api"] if code >= 0)
    good = source.table(
        "exchanges",
        ("client_id", "client_ip", "api", "topics", "broker_ip", "broker_port", "response_end", "connection"),
        ~pc.is_valid(pc.field("error"))
        & pc.is_valid(pc.field("response_end"))
        & pc.field("api").isin(apis)
        & (pc.field("client_id").isin(clients) | ~pc.is_valid(pc.field("client_id"))),
    )
    return _Successes(source, _let_in(source, good) if "SaslAuthenticate" in apis else good)


class _Run(NamedTuple):
    """A run of refusals: the first, the last, and how many there are; successes between them, and the next one."""

    first: int
    last: int
    many: int
    between: int
    then: After | None


def _let_in(source: Source, good: pa.Table) -> pa.Table:
    """Leave out steps of a login that did not let its client in: nothing else was answered on the connection."""
    is_other = ~pc.field("api").isin(["ApiVersions", "SaslHandshake", "SaslAuthenticate"])
    went_on = names_in(source.dataset.exchanges, "connection", is_other & pc.is_valid(pc.field("response_end")))
    step = pc.equal(good["api"], "SaslAuthenticate")
    return good.filter(pc.or_(pc.invert(step), pc.is_in(good["connection"], pa.array(sorted(went_on), pa.string()))))


def _refused(source: Source, exchanges: Frame) -> np.ndarray:
    """Exchanges with an error, except those that are events of commits and resets."""
    error, api = exchanges.text("error"), exchanges.text("api")
    bad = spill.true_rows(error[0] >= 0)
    if not len(bad) or not source.dataset.offsets.count_rows():
        return bad

    def are(column: tuple[np.ndarray, list[str]], *named: str) -> np.ndarray:
        return arrow.among(spill.take(column[0], bad), codes_of(column[1], *named))

    resets = are(api, "Fetch") & are(error, "OFFSET_OUT_OF_RANGE")
    return spill.take(bad, np.flatnonzero(~resets & ~are(api, "OffsetCommit", "TxnOffsetCommit")))


def _first_topics(source: Source, stored: StoredFrame, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """int32: the first topic of each exchange, -1 without topics; and the names of topics."""
    known: dict[str, int] = {}
    out = spill.empty(len(rows), np.int32)
    for places_, some_rows in stored.chosen(rows, ["topics"]):
        out[places_] = _firsts(some_rows.column("topics").combine_chunks(), known)
    return _by_name(source, out, known)


def _by_name(source: Source, codes: np.ndarray, known: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Replace codes of topics by codes of their names, so that an id and its name are one topic."""
    numbers: dict[str, int] = {}
    number_of = [numbers.setdefault(source.topics.get(text, text), len(numbers)) for text in known]
    return spill.take(np.array([*number_of, -1], np.int32), codes), list(numbers)


def _firsts(lists: pa.Array, known: dict[str, int]) -> np.ndarray:
    """int32: the number of the string that each list begins with, -1 where it is empty; new strings get the next."""
    ends = lists.offsets.to_numpy().astype(np.int64)
    return np.append(encode(lists.values, known), np.int32(-1))[np.where(np.diff(ends) > 0, ends[:-1], -1)]


class _Successes:
    """Times and brokers of successful requests by client, address, API and first topic (None: without topics, as in a
    fetch session)."""

    def __init__(self, source: Source, good: pa.Table | None) -> None:
        self._found: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._ips: list[str] = []
        self._ports: list[int] = []
        if good is None or not good.num_rows:
            return
        # A table may have millions of rows: what makes Python objects are the few that have something in common.
        numbers: dict[str, int] = {}
        first, topic_names = _by_name(source, _firsts(good["topics"].combine_chunks(), numbers), numbers)
        names: list[list[Any]] = []
        codes = []
        for column in ("client_id", "client_ip", "api"):
            code, distinct = _coded(good[column].combine_chunks())
            codes.append(code)
            names.append(distinct)
        ips, self._ips = _coded(good["broker_ip"].combine_chunks())
        ports, self._ports = _coded(good["broker_port"].combine_chunks())
        times = good["response_end"].combine_chunks().cast(pa.int64()).to_numpy()
        in_time = np.argsort(times, kind="stable")
        groups = grouping.group(*(key[in_time] for key in (*codes, first)))
        order, starts, ends = groups.order, groups.starts, groups.ends
        order = in_time[order]
        for head, tail in zip(starts.tolist(), ends.tolist(), strict=True):
            row = order[head]
            key = (*(names[i][codes[i][row]] for i in range(3)), _text(topic_names, first[row]))
            here = order[head:tail]
            self._found[key] = times[here], np.stack([ips[here], ports[here]])

    def times(self, key: tuple[Any, ...]) -> np.ndarray:
        """Times (us) of those about the same, in order."""
        return self._found.get(key, (NO_TIMES,))[0]

    def after(self, key: tuple[Any, ...], times: np.ndarray) -> Afters:
        """The first after each time (us)."""
        when = np.full(len(times), NEVER, np.int64)
        broker = np.zeros((2, len(times)), np.int64)
        for topic_key in (key, (*key[:3], None)):
            if topic_key in self._found:
                known, brokers = self._found[topic_key]
                at = np.searchsorted(known, times, side="right")
                sooner = np.flatnonzero(np.append(known, NEVER)[at] < when)
                when[sooner] = known[at[sooner]]
                broker[:, sooner] = brokers[:, at[sooner]]
        return Afters(when, broker, self._ips, self._ports)


def _coded(column: pa.Array) -> tuple[np.ndarray, list[Any]]:
    """(a number for each value, what the numbers stand for)."""
    coded = column.dictionary_encode("encode")
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


def _refusal(source: Source, first: Row, since: datetime.datetime, until: datetime.datetime, run: _Run) -> Event:
    """A run of refusals: the first of them, when the first and the last came, and what came next."""
    many, then = run.many, run.then
    topics = tuple(first["topics"] or ())
    about = f" of {some(topics)}" if topics else f" of group {first['group_id']}" if first["group_id"] else ""
    about += " or some of these" if len(topics) > 1 else ""  # the exchange has one error for all
    name = first["error"]
    why = WHY.get(name) or judge(first["error_code"], first["api"]).why.rstrip(".")
    times = f" {many:,} times{within(since, until)}" if many > 1 else ""
    times += f" ({many:,} of {many + run.between:,})" if run.between else ""
    api = first["api"] or "a request"
    text = f"was refused {api}{about}{times}: {error(first['error_code'], name)}, {why[:1].lower() + why[1:]}"
    kind = judge(first["error_code"], first["api"]).kind
    if first["error_code"] in _OF_CONTENT:
        pass  # what succeeds later is another batch
    elif then is not None:
        elsewhere = (first["broker_ip"], first["broker_port"]) != then[1:]
        text += f"; it succeeded {later(until, then.time)}"
        text += f" at {source.broker(then.ip, then.port)}" if elsewhere else ""
    elif kind in ("bad", "transient"):
        text += "; after its last success " if run.between else "; "
        text += "it did not succeed any more in this capture"
    weight = _WEIGHT[kind]
    lasted = (until - since) // datetime.timedelta(microseconds=1)
    if kind == "transient" and (lasted > _TOO_LONG_US or (then is None and many > 1)):
        weight = 50
    if first["error_code"] in _LEADER:
        weight += 20
    if "__cluster_metadata" in topics:
        weight = min(weight, 10)  # voters asking around for the leader
    return Event(
        since,
        "refused",
        who(first["client_id"], first["client_ip"]),
        text,
        weight,
        topic=topics[0] if len(topics) == 1 else None,
        topics=topics,
        group_id=first["group_id"],
        transactional_id=first["transactional_id"],
        client_id=first["client_id"],
        connection=first["connection"],
        exchange=first["exchange"],
        reply=first["reply"],
    )


def _unanswered(source: Source) -> Iterator[Event]:
    """Events of requests without an answer, by connection. Computed by columns, because these are all requests if
    answers were not captured."""
    stored = source.stored("exchanges")
    exchanges = stored.gather({"exchange": np.int64}, {"status": {}, "connection": {}, "api": {}})
    (status, known), (link, links), (api, apis) = map(exchanges.text, ("status", "connection", "api"))
    ordinal = exchanges["exchange"]
    lost = spill.true_rows(arrow.among(status, codes_of(known, "unanswered")))
    if not len(lost):
        return
    answered = np.full(len(links), -1)
    """The last request of each connection that was answered."""
    some_answered = spill.true_rows(arrow.among(status, codes_of(known, "answered")))
    np.maximum.at(answered, spill.take(link, some_answered), spill.take(ordinal, some_answered))
    link, api, ordinal = (spill.take(column, lost) for column in (link, api, ordinal))
    groups = grouping.group(link)
    order, starts, ends = groups.order, groups.starts, groups.ends
    each = sorted(zip(order[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))
    firsts = source.picked(stored, lost[[head for head, _, _ in each]], EXCHANGE_COLUMNS)
    for first, (head, start, end) in zip(firsts, each, strict=True):
        asked_for, heads = np.unique(api[order[start:end]], return_index=True)
        in_turn = [_text(apis, code) or "unknown" for code in asked_for[np.argsort(heads)].tolist()]
        connection = links[link[head]]
        ended = source.connection(connection)
        if ended.get("broker_packets") == 0:
            continue  # answers were not captured
        ordinals, last = ordinal[order[start:end]], answered[link[head]]
        closed = {"fin": "the connection was closed", "rst": "the connection was reset"}.get(ended.get("closed", ""))
        if closed is None or last > ordinals.max():
            why = "later ones were answered"
        else:
            why = f"others between them were answered, then {closed}" if last > ordinals.min() else f"{closed} first"
        text = f"had no answer to {count(end - start, 'request')} ({some(in_turn)}): {why}"
        weight = 8 if end - start == 1 else 26
        yield Event(
            moment(first["request_time"]),
            "unanswered",
            who(first["client_id"], first["client_ip"]),
            text,
            weight,
            client_id=first["client_id"],
            connection=connection,
            exchange=first["exchange"],
            topics=tuple(first["topics"] or ()),
            group_id=first["group_id"],
        )
