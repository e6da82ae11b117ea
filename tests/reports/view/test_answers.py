"""The API without a network, against `kwire show`'s functions on the same captures.

Proves: reports/view/answers, counts, heatmap, tables, source, columns, messages, excerpts, trees, closed
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.analyzer.bulk.rows import Message
from kwire.analyzer.cli import parser
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import masked
from kwire.analyzer.protocol import tree as protocol_tree
from kwire.analyzer.protocol.tree import Node
from kwire.captures import kernels
from kwire.captures.files import write
from kwire.reports.view import answers, bodies, lazy_tree, trees
from kwire.reports.view.bodies import ExchangeMessages
from kwire.reports.view.tables import parse_key
from tests.bench import messages
from tests.captures import forge
from tests.reports.forging import Forged, at
from tests.reports.view.conftest import TXN, Asking, viewed
from tests.shared import ROOT, SAMPLES


def every(txn: Asking) -> list[str]:
    keys: list[str] = txn("rows", count=1000)["keys"]
    return keys


def test_rows_are_the_exchanges_in_order_of_their_requests(txn: Asking) -> None:
    answer = txn("rows", count=1000)
    names = list(answer["columns"])
    expected = [exchange.row for exchange in analyzer.exchanges(TXN, bodies=False)]
    assert answer["total"] == answer["of"] == len(expected)
    for place, row in enumerate(expected):
        for name in names:
            value = row[name]
            shown = answer["columns"][name][place]
            if name.endswith(("_time", "_end")):
                value = None if value is None else round(value.timestamp() * 1_000_000)
            elif name == "errors":
                value = [{"code": error["code"], "count": error["count"]} for error in value or []]
            elif name == "topics":
                value = value or []
            assert shown == value, (place, name)


def test_times_begin_with_the_first_packet_as_those_of_show_and_wireshark(txn: Asking) -> None:
    (begins,) = {exchange.capture_start for exchange in analyzer.exchanges(TXN, bodies=False)}
    assert begins is not None
    assert txn("info")["first_time"] == round(begins.timestamp() * 1_000_000)
    assert txn("rows")["columns"]["request_time"][0] - txn("info")["first_time"] == 92  # tshark: frame 4, 0.000092


def examples() -> Iterator[tuple[int, str]]:
    """Get the filters of FILTER.md about this sample, each with its count."""
    taking = False
    for line in (ROOT / "analyzer" / "filter" / "FILTER.md").read_text().splitlines():
        if line.startswith("```"):
            taking = line == "```filter txn-librdkafka-4.3"
        elif taking:
            count, _, text = line.strip().partition(" ")
            yield int(count), text.strip()


def test_the_documents_filters_choose_as_many_here(txn: Asking) -> None:
    known = list(examples())
    assert len(known) > 20
    assert {text: txn("rows", filter=text, count=0)["total"] for _, text in known} == {t: n for n, t in known}
    asking = [text for _, text in known if txn("check", filter=text)["bodies"]]
    assert asking, "none of them needs a message to be read"


def test_a_window_is_a_part_of_the_whole(txn: Asking) -> None:
    whole = txn("rows", count=1000, sort="latency")["keys"]
    parts = [txn("rows", start=start, count=40, sort="latency")["keys"] for start in range(0, 200, 40)]
    assert [key for part in parts for key in part] == whole
    assert txn("rows", start=10**9)["keys"] == []


SORTED = (
    "latency_us",
    "total",
    "client_id",
    "request_time",
    "group_id",
    "api",
    "api_key",
    "error",
    "errors",
    "topic",
    "client",
    "broker",
)


@pytest.mark.parametrize("sample", ["client-kafkajs-3.9", "codecs-franzgo-4.3"])
def test_sorting_is_that_of_show(sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Largest first or smallest first, null last, equals in order of the requests."""
    capture = str(SAMPLES / sample / "capture.pcap")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture))
        for name in [*SORTED, *(f"-{name}" for name in SORTED)]:
            assert (
                parser.main(["show", capture, f"--sort={name}", "--fields", "capture,connection,exchange,reply"]) == 0
            )
            expected = [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]
            keys = [parse_key(key) for key in asking("rows", count=1000, sort=name)["keys"]]
            assert [["" if value is None else str(value) for value in key] for key in keys] == expected, name


def test_an_exchange_is_found_by_its_identity_under_any_filter_and_order(txn: Asking) -> None:
    for query in ({}, {"filter": "api == Produce"}, {"filter": "api == Produce", "sort": "-latency"}):
        keys = txn("rows", count=1000, **query)["keys"]
        assert [txn("locate", key=key, **query)["row"] for key in keys] == list(range(len(keys)))
    other = txn("rows", filter="api == Metadata", count=1)["keys"][0]
    assert txn("locate", key=other, filter="api == Produce")["row"] is None
    assert txn("locate", key='["capture.pcap","nobody",1,1]')["row"] is None


def test_neighbours_walk_through_a_connection(txn: Asking) -> None:
    first = every(txn)[0]
    connection = parse_key(first)[1]
    walked = [first]
    while (key := txn("neighbour", key=walked[-1])["key"]) is not None:
        walked.append(key)
    assert walked == txn("rows", filter=f'connection == "{connection}"', count=1000)["keys"]
    assert txn("neighbour", key=walked[-1], step="back")["key"] == walked[-2]


@pytest.mark.parametrize("text", ["", "api == Produce", "error is not null", "topic == tx-out and latency > 3ms"])
def test_counts_and_quantiles_are_exact(txn: Asking, text: str) -> None:
    """Facets equal the counts of their values' filters; quantiles equal the standard library's."""
    facets = txn("facets", filter=text)["facets"]
    assert [facet["name"] for facet in facets if facet["values"]]
    for facet in facets:
        assert [value["count"] for value in facet["values"]] == sorted(
            (v["count"] for v in facet["values"]), reverse=True
        )
        for value in facet["values"]:
            narrowed = f"({text}) and " * bool(text) + f"{facet['name']} == {value['word']}"
            assert txn("rows", filter=narrowed, count=0)["total"] == value["count"]
    stats = txn("stats", filter=text)
    rows = [exchange.row for exchange in analyzer.exchanges(TXN, filter=text or None, bodies=False)]
    assert stats["exchanges"] == len(rows)
    assert stats["errors"] == sum(bool(row["errors"]) for row in rows)
    assert stats["response_bytes"] == sum(row["response_bytes"] or 0 for row in rows)
    latencies = sorted(row["latency_us"] for row in rows if row["latency_us"] is not None)
    held = [max(row["latency_us"] - (row["hold_us"] or 0), 0) for row in rows if row["latency_us"] is not None]
    for name, numbers in (("latency_us", latencies), ("not_held_us", held)):
        cuts = statistics.quantiles(numbers, n=100, method="inclusive")
        expected = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(numbers)}
        assert stats[name] == pytest.approx(expected)


def grid(asking: Asking, text: str, width: int) -> tuple[dict[str, Any], np.ndarray]:
    line, _, counts = asking.raw("heatmap", filter=text, width=width).partition(b"\n")
    about = json.loads(line)
    shape = (len(about["layers"]), about["buckets"], about["columns"])
    return about, np.frombuffer(counts, "<u4").reshape(shape)


@pytest.mark.parametrize("text", ["", "api == Fetch", "topic == tx-out"])
def test_a_cell_of_the_heatmap_holds_what_its_filter_chooses(txn: Asking, text: str) -> None:
    about, counts = grid(txn, text, 40)
    stats = txn("stats", filter=text)
    assert about["exchanges"] + about["without"] == stats["exchanges"]
    answered = f"latency is not null{' and ' * bool(text)}{text}"
    assert about["layers"] == ["worked", "held", "errors"]
    assert counts[:2].sum() == about["exchanges"] == txn("rows", filter=answered)["total"]
    assert about["most"] == counts[:2].sum(axis=0).max()
    for layer, bucket, column in zip(*np.nonzero(counts), strict=True):
        times = [about["first"] + (column + step) * about["step"] for step in (0, 1)]
        bounds = [str(np.datetime64(int(time), "us")) + "Z" for time in times]
        low, high = about["edges"][bucket : bucket + 2]
        cell = (
            f"request_time >= {bounds[0]} and request_time < {bounds[1]} and latency >= {low}us and latency < {high}us"
        )
        held = ["not cause == hold", "cause == hold", "error is not null"][layer]
        whole = f"({text}) and " * bool(text) + f"{cell} and {held}"
        assert txn("rows", filter=whole, count=0)["total"] == counts[layer, bucket, column], whole
    assert grid(txn, "latency > 60m", 40)[1].size == 0


def test_findings_lead_to_exchanges_that_there_are(txn: Asking) -> None:
    dataset = analyzer.analyze(TXN)
    expected = [(row["severity"], row["code"], row["text"]) for row in dataset.findings.to_pylist()]
    findings = txn("findings")["findings"]
    assert sorted((finding["severity"], finding["code"], finding["text"]) for finding in findings) == sorted(expected)
    order = ["error", "warning", "note"]
    assert [finding["severity"] for finding in findings] == sorted(
        (finding["severity"] for finding in findings), key=order.index
    )
    keys = [piece["key"] for finding in findings for piece in finding["evidence"]]
    assert keys
    assert all(txn("exchange", key=key)["key"] == key for key in keys)


def test_columns_with_one_value_in_all_rows_are_known(txn: Asking) -> None:
    columns = {column["name"]: column["constant"] for column in txn("info")["columns"]}
    rows = txn("rows", count=1000)["columns"]
    for name, values in rows.items():
        assert columns[name] == (len({json.dumps(value) for value in values}) == 1 and values[0] not in (None, []))
    assert columns["broker_port"]
    assert not columns["client_id"]


def test_nothing_chosen_has_no_quantiles(txn: Asking) -> None:
    stats = txn("stats", filter="latency > 60m")
    assert (stats["exchanges"], stats["latency_us"]) == (0, None)
    assert txn.refused("facets", fields="request.timeoutMs")["message"]


# --- messages ---------------------------------------------------------------------------------------------------------


def flat(asking: Asking, key: str, side: str) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Get every node of a message with its path, page by page."""

    def pages(path: list[int], page: dict[str, Any] | None) -> Iterator[tuple[list[int], dict[str, Any]]]:
        got = 0
        while page is None or got < page["total"]:
            if page is None or "children" not in page or got:
                page = asking("message", key=key, side=side, path=".".join(map(str, path)), first=got)
            for child in page["children"]:
                here = [*path, got]
                yield here, child
                if child["total"]:
                    yield from pages(here, child)
                got += 1

    return pages([], None)


def nodes(tree: tuple[Node, ...]) -> Iterator[Node]:
    for node in tree:
        yield node
        yield from nodes(node.children)


@pytest.mark.parametrize("keep_bytes", [False, True], ids=["read again", "from the table"])
def test_trees_and_bytes_are_those_of_show(txn: Asking, keep_bytes: bool, tmp_path: Path) -> None:
    """Compare names, spans, bytes and records of one message of each API, or of all if bytes are stored."""
    with contextlib.ExitStack() as stack:
        asking = txn
        if keep_bytes:
            analyzer.analyze(TXN, tmp_path / "dataset", keep_bytes=True)
            asking = Asking(viewed(stack, tmp_path / "dataset"))
        seen: set[tuple[int, bool]] = set()
        for exchange in analyzer.exchanges(TXN):
            key = json.dumps(
                ["capture.pcap", exchange.row["connection"], exchange.row["exchange"], exchange.row["reply"]],
                separators=(",", ":"),
            )
            what = (exchange.row["api_key"], bool(exchange.row["error_code"]))
            if what in seen and not keep_bytes:
                continue
            seen.add(what)
            for side in ("request", "response"):
                message = exchange.request_message if side == "request" else exchange.response_message
                decoded = exchange.decoded(side, nodes=True)
                if message is None or decoded is None:
                    continue
                tree_nodes = [(node["name"], node["start"], node["end"]) for _, node in flat(asking, key, side)]
                expected = [(node.name, node.start + 4, node.end + 4) for node in nodes(decoded.nodes)]
                assert tree_nodes == [("length", 0, 4), *expected]
                assert asking.raw("bytes", key=key, side=side) == message.data
        assert len(seen) > 12


@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_a_message_is_read_from_its_place_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A message read from a slice of the capture equals the one read from all of it, for every exchange."""
    link, records = forge.loaded(TXN)
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(write.pcapng(records, [link], comment="some") if kind == "pcapng" else TXN.read_bytes())
    every = {
        (exchange.row["connection"], exchange.row["exchange"], exchange.row["reply"]): exchange
        for exchange in analyzer.exchanges(capture)
    }
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, capture))
        messages, tables = asking.view.messages.reader(), asking.view.tables
        arguments, near = (str(capture),), 0
        for number in range(0, tables.columns.n, 3):
            row = tables.row(number)
            sliced = messages._in_slice(arguments, row)
            if sliced is None:
                continue
            near += 1
            exchange = every[row["connection"], row["exchange"], row["reply"]]
            for side in ("request_message", "response_message"):
                read, known = getattr(sliced, side), getattr(exchange, side)
                assert (None if read is None else read.data) == (None if known is None else known.data)
        assert near > tables.columns.n / 3 * 0.7  # of groups all is read
        # Of no use where it begins before the messages, or is not this capture any more.
        row = tables.row(100)
        assert messages._in_slice(arguments, {**row, "request_bytes": row["request_bytes"] + 1}) is None
        assert messages._in_slice(arguments, {**row, "request_offset": None}) is None
        assert messages._in_slice(arguments, {**row, "request_file": "another.pcap"}) is None


def test_filters_by_fields_of_messages_need_no_capture_where_messages_are_kept(tmp_path: Path, txn: Asking) -> None:
    analyzer.analyze(TXN, tmp_path / "dataset", keep_bytes=True)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, tmp_path / "dataset"))
        texts = [text for _, text in examples() if txn("check", filter=text)["bodies"]]
        assert {text: asking("rows", filter=text, count=1000)["keys"] for text in texts} == {
            text: txn("rows", filter=text, count=1000)["keys"] for text in texts
        }


@pytest.mark.parametrize("warm", [True, False])
def test_what_decodes_messages_is_loaded_before_unless_it_would_be_compiled(
    txn: Asking, warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, real = [], protocol_tree.decode_request

    def decode(frame: memoryview, **how: Any) -> Any:
        decoded.append(real(frame, **how))
        return decoded[-1]

    monkeypatch.setattr(kernels, "warm", lambda: warm)
    monkeypatch.setattr(protocol_tree, "decode_request", decode)
    txn.view.messages.warm_up()
    assert [(message.api_key, message.body is not None) for message in decoded] == (
        [(18, True), (18, True)] if warm else []
    )


@pytest.mark.parametrize("many", [0, answers.ARROW_NUMBERS])
def test_arrays_become_the_lists_that_they_are(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ARROW_NUMBERS", many)
    random = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "none": np.zeros(0, np.int64),
        "some": random.integers(1 - 2**53, 2**53, 300),
        "small": np.array([-128, 0, 127], np.int8),
        "truths": random.random(50) < 0.5,
        "unsigned": np.array([2**32 - 1], np.uint32),
        "nothing": np.zeros(0, np.bool_),
        "too large": np.array([2**53 - 1, 2**53, -(2**63)]),
    }
    content = {"text": 'a","b\ud800', "inside": [{"one": array} for array in arrays.values()], "after": 1, **arrays}
    expected = {name: array.tolist() for name, array in arrays.items()}
    expected["too large"] = [2**53 - 1, str(2**53), str(-(2**63))]
    assert json.loads(answers._json(answers._safe(content))) == {
        "text": 'a","b\ud800',
        "inside": [{"one": values} for values in expected.values()],
        "after": 1,
        **expected,
    }


def test_a_stored_message_is_copied_only_out_of_what_is_much_larger(tmp_path: Path) -> None:
    whole = [b"a" * 1_000, b"", b"b" * 100_000, b"c" * 10]
    pyarrow.parquet.write_table(pa.table({"bytes": whole}), tmp_path / "messages.parquet")
    with pyarrow.parquet.ParquetFile(tmp_path / "messages.parquet", memory_map=True) as file:
        column = file.read_row_group(0, columns=["bytes"]).column("bytes")
    stored = [bodies._stored(column, at) for at in range(len(whole))]
    assert [bytes(message) for message in stored] == whole
    assert not any(message.readonly for message in stored)
    assert [isinstance(message.obj, pa.Buffer) for message in stored] == [False, False, True, False]
    stored[2][0] = 0  # whoever asked may write there
    assert bytes(stored[0]) == whole[0]
    assert bytes(bodies._stored(pa.chunked_array([whole]), 2)) == whole[2]


def test_a_field_and_its_bytes_lead_to_each_other(txn: Asking) -> None:
    """Every byte of a produce and a fetch leads to the innermost field that contains it."""
    for api in ("Produce", "Fetch"):
        key = txn("rows", filter=f"api == {api}", count=1)["keys"][0]
        for side in ("request", "response"):
            fields = list(flat(txn, key, side))
            for offset in range(len(txn.raw("bytes", key=key, side=side))):
                holding = [(path, node) for path, node in fields if node["start"] <= offset < node["end"]]
                innermost = max((path for path, _ in holding), key=len, default=[])
                assert txn("field", key=key, side=side, offset=offset)["path"] == innermost


def test_a_field_says_how_filters_ask_for_it(txn: Asking) -> None:
    """The filter that a node offers matches its own exchange."""
    key = txn("rows", filter="api == Produce and transactional_id is not null", count=1)["keys"][0]
    offered = {
        (node["field"], node["exact"], node["type"])
        for side in ("request", "response")
        for _, node in flat(txn, key, side)
        if "field" in node
    }
    assert ("topic", "tx-out", "string") in offered
    assert ("client_id", "lab-tx", "string") in offered
    assert ("request.acks", "-1", "int16") in offered
    for field, exact, kind in offered:
        value = f'"{exact}"' if kind in ("string", "uuid") else exact
        assert txn("locate", key=key, filter=f"{field} == {value}")["row"] is not None, field


def test_long_lists_come_in_pages() -> None:
    leaves = tuple(Node(f"[{i}]", "int32", i, 4 * i, 4 * i + 4) for i in range(1000))
    tree = (Node("list", "array", 1000, 0, 4000, leaves),)
    whole = trees.page(tree, "request", [], 0)["children"][0]
    assert "children" not in whole
    assert whole["total"] == 1000
    part = trees.page(tree, "request", [0], 900)
    assert [node["value"] for node in part["children"]] == [str(i) for i in range(900, 1000)]
    assert trees.at(tree, 3999) == [0, 999]
    with pytest.raises(LookupError):
        trees.page(tree, "request", [0, 1000], 0)


def flattened(tree: Sequence[Node], depth: int = 0) -> Iterator[tuple[Any, ...]]:
    for node in tree:
        value = None if node.type in ("batch", "records", "message") else node.value  # how they were compressed
        yield depth, node.name, node.type, value, node.start, node.end, node.null, node.secret
        yield from flattened(node.children, depth + 1)


@pytest.mark.parametrize("sample", ["codecs-franzgo-4.3", "old-java-0.8.2", "txn-librdkafka-4.3"])
def test_batches_that_are_opened_later_hold_the_same(sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees that are decoded lazily equal those that are decoded at once."""
    seen = 0
    for exchange in analyzer.exchanges(
        next((SAMPLES / sample).glob("capture.pcap*")), filter="api in (Produce, Fetch)"
    ):
        for side in ("request", "response"):
            with monkeypatch.context() as patch:
                patch.setattr(lazy_tree, "nodes", lambda *_: None)
                whole, reason, _ = trees.nodes(exchange, side)
            for large in (0, lazy_tree.LARGE):  # opened later, and at once
                with monkeypatch.context() as patch:
                    patch.setattr(lazy_tree, "LARGE", large)
                    patch.setattr(lazy_tree, "CACHED_BATCHES", 1)
                    later, text, _ = trees.nodes(exchange, side)
                    assert text == reason
                    sizes = [len(node.children) for node in inner(later)]
                    assert list(flattened(later)) == list(flattened(whole))
                    assert sizes == [len(node.children) for node in inner(whole)]
                    last = max((node.end for node in inner(whole)), default=0)
                    for offset in range(0, last, 7):
                        assert trees.at(later, offset) == trees.at(whole, offset)
                    seen += any(isinstance(node.children, lazy_tree.LazyNodes) for node in inner(later))
    assert seen


def inner(tree: Sequence[Node]) -> Iterator[Node]:
    for node in tree:
        yield node
        yield from inner(node.children)


def test_a_batch_that_holds_less_than_it_says_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_tree, "LARGE", 0)
    batch = messages.batch([messages.record(at, b"k", b"v") for at in range(30)])
    lying = batch[:57] + (1000).to_bytes(4, "big") + batch[61:]
    batches = lazy_tree._batches(batch + lying + batch[:-9], "orders", 100, [0, 0])
    assert batches is not None
    assert len(batches) == 3
    inside = [next((node.children for node in batch.children if node.type == "records"), ()) for batch in batches]
    assert [len(records) for records in inside] == [30, 1000, 0]
    assert [node.name for node in inside[0]] == [f"[{at}]" for at in range(30)]
    notes = [node for node in inside[1] if node.name == "…"]
    assert [node.value.split(":")[0] for node in notes] == [f"{1000 - len(inside[1]) + 1} records more"]
    assert "cut off" in batches[2].value
    assert batches.holding(100 + len(batch)) == 1
    assert batches.holding(99) is None


# --- what is asked wrongly, and what is not there ---------------------------------------------------------------------


def test_a_mistake_in_a_filter_has_its_place(txn: Asking) -> None:
    error = txn.refused("rows", filter="api == Produce and latencyy > 3ms")
    assert (error["start"], error["length"]) == (19, 8)
    assert "latency" in error["hint"]
    checked = txn("check", filter="api == Produce and latencyy > 3ms")
    assert (checked["ok"], checked["start"], checked["message"]) == (False, 19, error["message"])
    assert txn("check", filter="")["ok"]


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("rows", {"sort": "nonsense"}),
        ("rows", {"sort": "request.timeoutMs"}),
        ("rows", {"columns": "nonsense"}),
        ("rows", {"start": "-1"}),
        ("rows", {"start": "9" * 40}),
        ("locate", {"key": "no"}),
        ("locate", {"key": '["a","b",1]'}),
        ("locate", {"key": '[1,"b",1,1]'}),
        ("locate", {"key": '["a","b",1.5,1]'}),
        ("message", {"key": '["a","b",1,1]'}),
        ("exchange", {"key": '["a","b",1,1]'}),
    ],
)
def test_what_is_asked_wrongly_is_told(txn: Asking, what: str, query: dict[str, str]) -> None:
    assert txn.refused(what, **query)["message"]


def test_a_path_or_side_that_is_none_is_told(txn: Asking) -> None:
    key = every(txn)[0]
    assert "path" in txn.refused("message", key=key, path="0.9.9")["message"]
    assert "path" in txn.refused("message", key=key, path="-1")["message"]
    assert "side" in txn.refused("message", key=key, side="both")["message"]


def test_without_bytes_it_says_so_and_the_rest_works(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    forged.exchange("Produce", exchange=2**62, reply=2**62)
    forged.exchange("Fetch", latency_ms=None, status="unanswered", reply=None, response_bytes=None)
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        assert asking("info")["bytes"] is False
        answer = asking("rows")
        assert answer["columns"]["exchange"] == [str(2**62), 1]  # a browser has no such integers
        assert answer["columns"]["latency_us"] == [1000, None]
        assert asking("locate", key=answer["keys"][0])["row"] == 0
        assert "--keep-bytes" in asking.refused("message", key=answer["keys"][0])["hint"]
        assert "not available" in asking.refused("rows", filter="request.timeoutMs > 1")["message"]
        assert asking("rows", filter="latency is null")["total"] == 1


def test_an_empty_dataset_is_a_view_too(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, Forged(tmp_path / "empty").write()))
        assert asking("info")["exchanges"] == 0
        assert asking("rows", sort="latency", filter="api == Fetch")["total"] == 0
        assert asking("complete", text="topic == ")["candidates"] == []


def test_a_topic_that_is_named_by_its_id_has_its_name(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    forged.exchange("Fetch", topics=["A" * 22, "other"])
    forged.add("topic_ids", topic_id="A" * 22, topic="orders")
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, forged.write()))
        assert asking("rows", filter="topic == orders")["columns"]["topics"] == [["orders", "other"]]


def test_times_before_others_come_first_whatever_the_file_says(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "forged")
    for second in (5, 1, 3):
        forged.exchange("Fetch", second=second)
    forged.exchange(
        "Fetch", request_time=None, request_end=None, response_time=at(2), status="orphan_response", exchange=None
    )
    with contextlib.ExitStack() as stack:
        answer = Asking(viewed(stack, forged.write()))("rows")
        assert answer["columns"]["exchange"] == [1, None, 2, 0]


def _bytes_are_those_of_all(path: Path, segments: Sequence[forge.Segment]) -> None:
    """Compare the bytes of each message in the capture."""
    path.write_bytes(forge.pcap(forge.rendered(segments)))
    with contextlib.ExitStack() as stack:
        asking = Asking(viewed(stack, path))
        for exchange in analyzer.exchanges(path):
            key = json.dumps([exchange.row[name] for name in ("capture", "connection", "exchange", "reply")])
            for side, message in (("request", exchange.request_message), ("response", exchange.response_message)):
                if message is not None:
                    assert asking.raw("bytes", key=key, side=side) == message.data, (key, side)


def test_a_message_whose_packet_brings_the_one_before_it_again(tmp_path: Path) -> None:
    """Old clients number all requests 0, and TCP retransmits several messages in one packet."""
    fetches = [messages.fetch_request(0, "app", "orders", 0, offset) for offset in (7, 8)]
    answer = messages.fetch_response(0, "orders", 0, 9, b"")
    talk = [(forge.TO_BROKER, fetches[0]), (forge.TO_CLIENT, answer)] * 2
    talk[2] = (forge.TO_BROKER, fetches[1])
    segments = [
        replace(segment, sequence=segment.sequence - len(fetches[0]), payload=b"".join(fetches))
        if segment.payload == fetches[1]
        else segment
        for segment in forge.converse([forge.Write(*write) for write in talk])
    ]
    _bytes_are_those_of_all(tmp_path / "capture.pcap", segments)


def test_a_message_with_a_hole_of_which_a_part_came_before_its_request(tmp_path: Path) -> None:
    answer = messages.fetch_response(2, "orders", 0, 9, bytes(3_000))
    talk = [
        forge.Write(forge.TO_BROKER, messages.fetch_request(1, "app", "orders", 0, 7)),
        forge.Write(forge.TO_CLIENT, messages.fetch_response(1, "orders", 0, 9, b"")),
        forge.Write(forge.TO_BROKER, messages.fetch_request(2, "app", "orders", 0, 7)),
        forge.Write(forge.TO_CLIENT, answer),
    ]
    segments = forge.converse(talk, mss=1_000)
    asking = next(at for at, segment in enumerate(segments) if segment.payload == talk[2].data)
    [_, early, lost, _] = (at for at, segment in enumerate(segments) if at > asking and len(segment.payload) > 0)
    order = [*range(asking), early, *(at for at in range(asking, len(segments)) if at not in (lost, early))]
    times = [segment.time_ns for segment in segments]
    moved = [replace(segments[at], time_ns=time) for at, time in zip(order, times, strict=False)]
    _bytes_are_those_of_all(tmp_path / "capture.pcap", moved)


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_no_answer_holds_a_secret(tmp_path: Path) -> None:
    """The SASL sample's passwords do not show, although its dataset stores them."""
    sample = SAMPLES / "sasl-librdkafka-4.3"
    captures = sorted(str(path) for path in sample.iterdir() if path.suffix == ".pcap")
    secrets = secrets_of(captures)
    assert secrets
    analyzer.analyze(captures, tmp_path / "dataset", keep_bytes=True, keep_secrets=True)
    with contextlib.ExitStack() as stack:
        for source in ([tmp_path / "dataset"], captures):
            asking = Asking(viewed(stack, *source))
            answers_sent = [asking.raw("info"), asking.raw("complete", text="client_id == ")]
            for key in asking("rows", filter="api in (SaslAuthenticate, SaslHandshake)", count=12)["keys"]:
                answers_sent.append(asking.raw("exchange", key=key))
                for side in ("request", "response"):
                    answers_sent.append(asking.raw("message", key=key, side=side))
                    if json.loads(answers_sent[-1])["bytes"]:
                        answers_sent.append(asking.raw("bytes", key=key, side=side))
            whole = b"\n".join(answers_sent)
            assert b"redacted" not in whole
            assert b"secret, " in whole
            assert not [secret for secret in secrets if secret in whole]


@pytest.mark.parametrize(("topic", "secret"), [("__cluster_metadata", True), ("orders", False)])
def test_records_of_the_metadata_topic_are_masked_and_no_others_are_copied(topic: str, secret: bool) -> None:
    records = (ROOT / "tests" / "fuzz" / "cases" / "copied-metadata.segment").read_bytes()
    data = messages.produce_request(1, "app", topic, 0, records)
    row = {"api_key": 0, "api_version": 7}
    messages_of = ExchangeMessages(Exchange(row, Message(data, True), None, None, str), "here")
    assert messages_of.frame("request") == masked(data, 0, 7, request=True)
    assert (messages_of.frame("request") is data) is not secret
    assert (messages_of.frame("request") != data) is secret
    cut = ExchangeMessages(Exchange(row, Message(data[:60], True), None, None, str), "here")
    assert not cut.tree("request").plain
    assert cut.frame("request") == masked(data[:60], 0, 7, request=True)


def secrets_of(captures: list[str]) -> set[bytes]:
    """Get the credentials that clients sent, as on the wire."""
    from kwire.analyzer.protocol import api_keys as names
    from kwire.analyzer.protocol.tree import decode_request

    secrets: set[bytes] = set()
    for exchange in analyzer.exchanges(captures):
        if exchange.row["api_key"] == names.SASL_AUTHENTICATE and exchange.request_message is not None:
            body = decode_request(exchange.request_message.data[4:], exact=True).body
            if body and len(body["authBytes"]) > 8:
                secrets.add(body["authBytes"])
                secrets |= {part for part in body["authBytes"].split(b"\0") if len(part) > 8}
    return secrets
