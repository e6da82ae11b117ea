"""Records of the chosen exchanges, produced and fetched, as a list.

In: a view's tables and messages, and a filter. Out: a window of records, each with its exchange, its side and the path
of its node in the message's tree. Rules: the table `batches` says how many records there are and in which order, so
that only the messages in sight are read; a record is read as the fields of its message are (`trees`), so secrets and
internal topics are shown as there; without the messages' bytes the table `records` has what was kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.dataset.dataset import readable
from kwire.analyzer.filter.values import micros
from kwire.analyzer.frame.spill import check_cancelled
from kwire.reports.view.tables import BadRequestError, Key, Tables, format_key

if TYPE_CHECKING:
    from kwire.analyzer.protocol.tree import Node
    from kwire.reports.view.messages import Messages

# fmt: off
ABOUT: Final = {
    "timestamp": ("time", "When the record was created; when it was appended, where its topic says LogAppendTime."),
    "topic": ("text", "Topic."), "partition": ("text", "Partition."),
    "offset": ("text", "Offset in the partition; of a produced record as the broker's response says, empty without."),
    "key": ("text", "Key; `null` where it has none."), "value": ("text", "Value; `null` is a tombstone."),
    "headers": ("text", "Headers, NAME=VALUE."),
    "producer": ("text", "Client id of its producer, and the producer's id."),
    "direction": ("text", "`produce`: in a request; `fetch`: in a response."),
    "client_id": ("text", "Client that sent or fetched it."),
    "capture": ("text", "Name of the capture point."),
}
# fmt: on

_COLUMNS: Final = (
    "capture",
    "connection",
    "exchange",
    "reply",
    "topic",
    "topic_id",
    "partition",
    "side",
    "base_offset",
    "magic",
    "codec",
    "producer_id",
    "record_count",
    "batch_bytes",
    "partial",
    "reason",
)

LEAST_RECORD: Final = 7
"""Bytes of the smallest record of format 2: a batch that is not compressed and says it has more is broken."""

UNOPENED: Final = 400
"""Messages that are read in advance because only opening their batches tells how many records they have (formats 0 and
1, compressed): some seconds. The batches of further ones are a row each."""

SHOWN: Final = 400
"""Characters of a key, a value or headers: more than fits in a line."""

_LABEL: Final = re.compile(r"offset (-?\d+)(?:, timestamp (\d+))?")
"""A record's node says both (`record_trees`)."""


@dataclass(frozen=True)
class _Batches:
    """The batches of a view's exchanges, in order of the requests: k rows.

    table      columns of the table `batches`
    row        exchange: row in `exchanges`, int64[k]
    ordinal    number of the batch in its message, int64[k]
    count      records, int64[k]
    topics     names, and `topic`: position in them, int64[k]
    producers  client ids by producer id
    """

    table: pa.Table
    row: np.ndarray
    ordinal: np.ndarray
    count: np.ndarray
    topics: list[str]
    topic: np.ndarray
    producers: Mapping[int, str]


class RecordList:
    """The records of a view."""

    def __init__(self, tables: Tables, messages: Messages) -> None:
        self._tables = tables
        self._messages = messages
        self._index: _Batches | None = None

    def window(self, tables: Tables, text: str, sort: str, start: int, count: int) -> dict[str, Any]:
        """Get a window of the records of the chosen exchanges. `tables`: those of the view, restricted to a partition
        or not. Raises BadRequestError."""
        if sort:
            raise BadRequestError(f"sort={sort[:40]}: records are in order of the requests")
        batches = self._batches()
        chosen = self._chosen(batches, tables, text)
        ends = tables.cached(
            f"record ends {tables.chosen(text).name}", lambda: np.cumsum(batches.count[chosen], dtype=np.int64)
        )
        total = int(ends[-1]) if len(ends) else 0
        shown = list(self._rows(batches, chosen, ends, start, min(start + count, total)))
        return {
            "total": total,
            "more": False,
            "start": start,
            "about": [
                {
                    "name": name,
                    "kind": kind,
                    "about": about,
                    "sorted": False,
                    "quiet": self._is_quiet(name),
                    "wide": name == "value",
                }
                for name, (kind, about) in ABOUT.items()
            ],
            "columns": {name: [row[name] for row in shown] for name in ABOUT},
            "keys": [row["identity"] for row in shown],
            "sides": [row["message"] for row in shown],
            "paths": [row["path"] for row in shown],
        }

    def _is_quiet(self, name: str) -> bool:
        return name == "capture" and len(self._tables.columns.values["capture"]) < 2

    # -- which batches ----------------------------------------------------------------------------------------------
    def _batches(self) -> _Batches:
        if self._index is None:
            self._index = self._read()
        return self._index

    def _read(self) -> _Batches:
        import pyarrow.compute as pc

        tables = self._tables
        with readable(tables.dataset.path, "batches"):
            table = tables.dataset.batches.to_table(columns=list(_COLUMNS))
        row = tables.joined(table)
        row[pc.is_null(table.column("side")).to_numpy(zero_copy_only=False)] = -1
        for at in np.flatnonzero(row < 0).tolist():  # the request was not captured
            check_cancelled()
            key = tuple(table.column(name)[at].as_py() for name in ("capture", "connection", "exchange", "reply"))
            if key[2] is None and (place := tables.row_of(key)) is not None:
                row[at] = place
        order = np.argsort(row, kind="stable")[np.count_nonzero(row < 0) :]
        table, row = table.take(pa.array(order)), row[order]
        first = np.searchsorted(row, row)
        names = pc.coalesce(table.column("topic"), table.column("topic_id"), pa.scalar("")).dictionary_encode()
        names = names.unify_dictionaries().combine_chunks()
        topics = [tables.topic_names.get(name, name) for name in names.dictionary.to_pylist()]
        batches = _Batches(
            table,
            row,
            np.arange(len(row)) - first,
            _counts(table),
            topics,
            names.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            self._producers(table, row),
        )
        return replace(batches, count=self._opened(batches))

    def _producers(self, table: pa.Table, row: np.ndarray) -> dict[int, str]:
        """Map producer ids to the client ids that produced with them."""
        import pyarrow.compute as pc

        ids = pc.fill_null(table.column("producer_id"), -1).to_numpy()
        produced = (pc.fill_null(pc.equal(table.column("side"), "produce"), False)).to_numpy(zero_copy_only=False)
        at = np.flatnonzero(produced & (ids >= 0))
        _, firsts = np.unique(ids[at], return_index=True)
        clients = self._tables.rows_at(row[at[firsts]], ["client_id"])
        known = zip(ids[at[firsts]].tolist(), clients, strict=True)
        return {number: row["client_id"] for number, row in known if row["client_id"] is not None}

    def _opened(self, batches: _Batches) -> np.ndarray:
        """Count the records of batches whose header does not say how many there are: those few are opened."""
        count = batches.count.copy()
        unknown = np.flatnonzero(count < 0)
        count[unknown] = 1
        rows = np.unique(batches.row[unknown])
        if not self._messages.available or len(rows) > UNOPENED:
            return count
        self._read_ahead(rows)
        for row in rows.tolist():
            first, stop = np.searchsorted(batches.row, [row, row + 1]).tolist()
            nodes = self._nodes(batches, first, stop)
            for at in range(first, stop):
                if batches.count[at] < 0 and nodes is not None:
                    count[at] = max(1, len(_records(nodes[at - first][1])))
        return count

    def _chosen(self, batches: _Batches, tables: Tables, text: str) -> np.ndarray:
        """Find the batches of the chosen exchanges; conditions on topics alone, and a partition, choose batches, too:
        positions, int64[k]."""

        def make() -> np.ndarray:
            rows = tables.chosen(text).rows
            at = np.minimum(np.searchsorted(rows, batches.row), max(len(rows) - 1, 0))
            chosen = rows[at] == batches.row if len(rows) else np.zeros(len(batches.row), np.bool_)
            parsed = tables.parse(text)
            for condition in () if parsed is None else parsed.conditions_on("topics"):
                passes = [condition.matches({"topics": [name]}) for name in batches.topics]
                chosen &= np.array([*passes, False])[batches.topic]
            if tables.part is not None:
                topic, partition = tables.part
                chosen &= np.array([*(name == topic for name in batches.topics), False])[batches.topic]
                chosen &= np.asarray(batches.table.column("partition").to_numpy() == partition)
            return np.flatnonzero(chosen)

        return tables.cached(f"record batches {tables.chosen(text).name}", make)

    # -- what they hold ---------------------------------------------------------------------------------------------
    def _rows(
        self, batches: _Batches, chosen: np.ndarray, ends: np.ndarray, start: int, stop: int
    ) -> Iterator[dict[str, Any]]:
        """Make the rows of the records from `start` to `stop`."""
        if start < stop and self._messages.available:
            first, last = np.searchsorted(ends, (start, stop - 1), "right").tolist()
            self._read_ahead(batches.row[chosen[first : last + 1]])
        while start < stop:
            check_cancelled()
            at = int(np.searchsorted(ends, start, "right"))  # past batches that hold no record
            row = int(batches.row[chosen[at]])
            last = int(np.searchsorted(batches.row[chosen], row, "right"))
            end = min(stop, int(ends[last - 1]))
            wanted = []  # of one exchange: each batch with the numbers of its records
            while start < end:
                begin = int(ends[at - 1]) if at else 0
                until = min(end, int(ends[at]))
                wanted.append((int(chosen[at]), range(start - begin, until - begin)))
                start = until
                at += start == int(ends[at])
            yield from self._of_exchange(batches, row, wanted)

    def _of_exchange(
        self, batches: _Batches, row: int, wanted: Sequence[tuple[int, range]]
    ) -> Iterator[dict[str, Any]]:
        key = self._tables.key_of(row)
        client = self._tables.rows_at(np.array([row]), ["client_id"])[0]["client_id"]
        first, stop = np.searchsorted(batches.row, [row, row + 1]).tolist()
        about = {at: batches.table.slice(at, 1).to_pylist()[0] for at, _ in wanted}
        contents = self._contents(batches, key, first, stop, about)
        for at, numbers in wanted:
            batch = about[at]
            produced = batch["side"] == "produce"
            number = batch["producer_id"]
            producer = client if produced else batches.producers.get(number)
            named = [producer] if producer is not None else []
            named += [f"(id {number})"] if number is not None and number >= 0 else []
            known: dict[str, Any] = {
                "topic": batches.topics[batches.topic[at]],
                "partition": batch["partition"],
                "producer": " ".join(named) or None,
                "direction": batch["side"],
                "client_id": client,
                "capture": key[0],
                "identity": format_key(key),
                "message": "request" if produced else "response",
            }
            for place in numbers:
                yield {**known, **contents(at, place)}

    def _contents(
        self, batches: _Batches, key: Key, first: int, stop: int, about: Mapping[int, dict[str, Any]]
    ) -> Callable[[int, int], dict[str, Any]]:
        """Get a function from a batch and the number of one of its records to what that is."""
        if not self._messages.available:
            return self._stored(key, about)
        nodes = self._nodes(batches, first, stop)
        bases = self._bases(key) if next(iter(about.values()))["side"] == "produce" else None

        def content(at: int, number: int) -> dict[str, Any]:
            batch = about[at]
            if nodes is None:
                return _unread(batch["reason"] or "the message was not decoded", "")
            path, node = nodes[at - first]
            inside = _records(node)
            if number >= len(inside) or inside[number].type != "record":
                return _unread(batch["reason"] or f"cut off: {node.value}", path)
            position = next(place for place, child in enumerate(node.children) if child.type == "records")
            shown = _of_node(inside[number], f"{path}.{position}.{number}")
            if bases is not None:
                base = bases.get((batch["topic"] or batch["topic_id"], batch["partition"]))
                start = _label(inside[0])[0]
                shown["offset"] = None if base is None or start is None else base + shown["offset"] - start
            return shown

        return content

    def _read_ahead(self, rows: np.ndarray) -> None:
        self._messages.read_ahead(list(self._tables.keys_of(np.unique(rows))))

    def _nodes(self, batches: _Batches, first: int, stop: int) -> list[tuple[str, Node]] | None:
        """Get the nodes of an exchange's batches, with their paths; None if the message cannot be decoded."""
        key = self._tables.key_of(int(batches.row[first]))
        side = "request" if batches.table.column("side")[first].as_py() == "produce" else "response"
        nodes = list(_batch_nodes(self._messages.of(key).tree(side).nodes, ()))
        return nodes if len(nodes) == stop - first else None

    def _bases(self, key: Key) -> dict[tuple[str | None, int | None], int]:
        """Get the offsets that a Produce response gave to the first records: by topic, or its id, and partition."""
        if key[3] is None:
            return {}
        return dict(_base_offsets(self._messages.of(key).tree("response").nodes, None))

    def _stored(self, key: Key, about: Mapping[int, dict[str, Any]]) -> Callable[[int, int], dict[str, Any]]:
        """Read the records of an exchange from the table `records`."""
        import pyarrow.compute as pc

        capture, connection, exchange, reply = key
        field = pc.field
        here = (field("capture") == capture) & (field("connection") == connection)
        here &= field("exchange") == exchange if exchange is not None else field("reply") == reply
        with readable(self._tables.dataset.path, "records"):
            rows = self._tables.dataset.records.to_table(filter=here).to_pylist()
        by_batch: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            by_batch.setdefault((row["topic"], row["topic_id"], row["partition"], row["batch"]), []).append(row)

        def content(at: int, number: int) -> dict[str, Any]:
            batch = about[at]
            rows_of_batch = by_batch.get(
                tuple(batch[name] for name in ("topic", "topic_id", "partition", "base_offset")), []
            )
            if number >= len(rows_of_batch):
                return _unread(batch["reason"] or "not kept: kwire analyze --records full keeps records", "")
            return _of_row(rows_of_batch[number], batch["side"] == "produce")

        return content


def _counts(table: pa.Table) -> np.ndarray:
    """Count the records of batches as their headers do, int64[k]: -1 for unknown; 0 for those that a fetch cut off at
    its end, which clients fetch again."""
    import pyarrow.compute as pc

    def numbers(name: str, null: int) -> np.ndarray:
        return np.asarray(pc.fill_null(table.column(name), null).to_numpy(zero_copy_only=False)).astype(np.int64)

    count, size = numbers("record_count", -1), numbers("batch_bytes", 0)
    plain = pc.fill_null(pc.equal(table.column("codec"), "none"), False).to_numpy(zero_copy_only=False)
    limited = plain & (numbers("magic", -1) == 2) & (count > size // LEAST_RECORD)
    count[limited] = size[limited] // LEAST_RECORD
    cut = pc.and_(pc.fill_null(table.column("partial"), False), pc.is_null(table.column("reason")))
    count[cut.to_numpy(zero_copy_only=False)] = 0
    return count


# --- nodes ------------------------------------------------------------------------------------------------------------


def _batch_nodes(nodes: Sequence[Node], above: tuple[int, ...]) -> Iterator[tuple[str, Node]]:
    """List the batches of a message in their order, with their paths."""
    for place, node in enumerate(nodes):
        path = (*above, place)
        if node.type == "records":
            for number, batch in enumerate(node.children):
                if batch.type in ("batch", "message"):
                    yield ".".join(map(str, (*path, number))), batch
        elif node.children:
            yield from _batch_nodes(node.children, path)


def _records(batch: Node) -> Sequence[Node]:
    """Get the records of a batch's node; empty if they cannot be read."""
    return next((child.children for child in batch.children if child.type == "records"), ())


def _base_offsets(nodes: Sequence[Node], topic: Any) -> Iterator[tuple[tuple[Any, Any], int]]:
    """List the base offsets of a Produce response by topic (or its id) and partition."""
    values = {node.name: node.value for node in nodes if not node.children}
    topic = values.get("name") or values.get("topicId") or topic
    if values.get("baseOffset", -1) >= 0 and not values.get("errorCode"):
        yield (topic, values.get("index")), values["baseOffset"]
    for node in nodes:
        if node.children:
            yield from _base_offsets(node.children, topic)


def _label(record: Node) -> tuple[int | None, int | None]:
    """Get offset and timestamp (in milliseconds) of a record's node."""
    match = _LABEL.match(str(record.value))
    if match is None:
        return None, None
    return int(match[1]), None if match[2] is None else int(match[2])


def _of_node(record: Node, path: str) -> dict[str, Any]:
    offset, millis = _label(record)
    fields = {node.name: node for node in record.children}
    headers = fields["headers"].children if "headers" in fields else ()
    return {
        "timestamp": None if millis is None else millis * 1000,
        "offset": offset,
        "key": _text(fields.get("key")),
        "value": _text(fields.get("value")),
        "headers": _cut(", ".join(str(header.value) for header in headers)) or None,
        "path": path,
    }


def _text(node: Node | None) -> str:
    """Write a key or a value in a line: its fields where it has a format, as those of internal topics."""
    from kwire.analyzer.cli.exchange_lines import node_value

    if node is None or node.null or node.value is None:
        return "null"
    if node.children:
        return _cut(" ".join(_fields(node.children, "")))
    return _cut("" if node.value == "" else node_value(node))


def _fields(nodes: Sequence[Node], above: str) -> Iterator[str]:
    from kwire.analyzer.cli.exchange_lines import node_value
    from kwire.analyzer.payloads.framing import FRAMING

    for node in nodes:
        if node.type == FRAMING:
            continue
        name = f"{above}{node.name}" if above and node.name.startswith("[") else f"{above}.{node.name}".lstrip(".")
        if node.children:
            yield from _fields(node.children, name)
        else:
            yield f"{name}={'null' if node.null else node_value(node)}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _unread(reason: str, path: str) -> dict[str, Any]:
    """Describe a record that cannot be read."""
    return {"timestamp": None, "offset": None, "key": "", "value": f"({reason})", "headers": None, "path": path}


def _of_row(row: dict[str, Any], produced: bool) -> dict[str, Any]:
    """Describe a row of the table `records`. In requests offsets are the producer's."""
    from kwire.analyzer.cli.record_lines import bytes_text, decoded_text

    pairs = (f"{header['key']}={bytes_text(header['value'], None)}" for header in row["headers"] or ())
    return {
        "timestamp": None if row["timestamp"] is None else micros(row["timestamp"]),
        "offset": None if produced else row["offset"],
        "key": _cut(decoded_text(row, "key")),
        "value": _cut(row["decoded"] or decoded_text(row, "value")),
        "headers": _cut(", ".join(pairs)) or None,
        "path": "",
    }
