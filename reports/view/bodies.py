"""Both messages of an exchange, read from the table `messages` or again from the capture.

In: the identity of an exchange. Out: `ExchangeMessages`: an `Exchange` that decodes itself, and where its bytes are
from. Rule: bytes that leave this module have their secrets overwritten, even if the dataset has them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet

from kwire.analyzer import api
from kwire.analyzer.bulk.rows import Message
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.times import moment
from kwire.analyzer.dataset.dataset import readable
from kwire.analyzer.filter import evaluation
from kwire.analyzer.filter.values import micros
from kwire.analyzer.frame.spill import check_cancelled
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.messages.raw_messages import masked
from kwire.analyzer.pipeline.selection import record_payloads
from kwire.analyzer.protocol import embedded
from kwire.captures.errors import KwireError
from kwire.captures.files import capture_points
from kwire.captures.kernels import NULL
from kwire.reports.view import lazy_tree, message_reader, trees
from kwire.reports.view.capture_slice import exchange_slice
from kwire.reports.view.filter_values import quoted
from kwire.reports.view.source_captures import SIDES, SourceCaptures
from kwire.reports.view.tables import BadRequestError, Key, Tables

if TYPE_CHECKING:
    from kwire.analyzer.messages.record_payloads import RecordPayloads
    from kwire.analyzer.payloads.options import PayloadOptions

MOST_NAMED: Final = 200
"""Exchanges that one filter names; filters have 65,536 characters at most."""

WINDOW: Final = 2 << 20
"""Bytes of a capture that are read at a time for messages up to this size."""


@dataclass(slots=True)
class ExchangeMessages:
    """An exchange with its messages. `source`: where they are from, as text."""

    exchange: Exchange
    source: str
    _frames: dict[str, bytes | None] = field(default_factory=dict)
    _trees: dict[str, trees.Tree] = field(default_factory=dict)

    def frame(self, side: str) -> bytes | None:
        """Get a message's bytes, with its length field, secrets overwritten; None if there are none."""
        if side not in self._frames:
            message = self._message(side)
            self._frames[side] = None if message is None else self._masked(message, side)
        return self._frames[side]

    def tree(self, side: str) -> trees.Tree:
        """Get a message's whole tree."""
        if side not in self._trees:
            self._trees[side] = trees.nodes(self.exchange, side)
        return self._trees[side]

    def _message(self, side: str) -> Message | None:
        return self.exchange.request_message if side == "request" else self.exchange.response_message

    def _masked(self, message: Message, side: str) -> bytes:
        if self.tree(side).plain:  # searching a hundred megabytes for secrets, and copying them, takes long
            return message.data
        row = self.exchange.row
        key, version = (NULL if row[name] is None else row[name] for name in ("api_key", "api_version"))
        return masked(bytes(message.data), key, version, side == "request")

    @property
    def size(self) -> int:
        """Bytes of both messages."""
        return sum(len(message.data) for message in map(self._message, SIDES) if message is not None)

    def missing(self, side: str) -> bool:
        """Tell whether some of a message's bytes are not in the capture."""
        message = self._message(side)
        return message is not None and not message.complete


class MessageReader:
    """Reads messages from the table `messages` (`stored`: the dataset has it), or from captures."""

    def __init__(
        self,
        tables: Tables,
        captures: SourceCaptures | None,
        stored: bool,
        payloads: Callable[[], PayloadOptions | None] = lambda: None,
    ) -> None:
        """`payloads`: says how keys and values are decoded that a filter tests."""
        self._tables = tables
        self._payloads = payloads
        self._captures = captures
        self._stored = stored

    def look(self, key: Key, row: dict[str, Any]) -> ExchangeMessages:
        """Read the messages of an exchange. Raises BadRequestError if that is impossible."""
        if self._stored:
            return self._from_table(key, row)
        if self._captures is not None:
            return self._read_again(key, row)
        raise BadRequestError(
            "the bytes of messages are not in this dataset",
            "analyse with --keep-bytes, or look at the capture itself: kwire view CAPTURE",
        )

    # -- the table --------------------------------------------------------------------------------------------------
    def _from_table(self, key: Key, row: dict[str, Any]) -> ExchangeMessages:
        capture, connection, exchange, reply = key
        sides: dict[str, Message] = {}
        numbers = {side: number for side, number in zip(SIDES, (exchange, reply), strict=True) if number is not None}
        for file in self._files():
            for group in range(file.num_row_groups):
                keys = file.read_row_group(group, columns=["capture", "connection", "exchange", "reply", "direction"])
                places = dict(_places(keys, capture, connection, numbers))
                if places:  # the group may hold a hundred megabytes: read it once
                    columns = file.read_row_group(group, columns=["bytes", "complete"])
                    for side, at in places.items():
                        complete = columns.column("complete")[at].as_py()
                        sides[side] = _message(_stored(columns.column("bytes"), at), complete, row, side)
                if len(sides) == len(numbers):
                    break
        result = Exchange(row, sides.get("request"), sides.get("response"), None, self._name)
        return ExchangeMessages(result, "the table messages")

    def _files(self) -> Iterator[Any]:
        dataset = self._tables.dataset
        for entry in dataset.manifest["files"]:
            if entry["table"] == "messages":
                with readable(dataset.path, entry["path"]):
                    yield pyarrow.parquet.ParquetFile(dataset.path / entry["path"], memory_map=True)

    def _name(self, topic: str) -> str:
        return self._tables.topic_names.get(topic, topic)

    # -- the capture ------------------------------------------------------------------------------------------------
    def _read_again(self, key: Key, row: dict[str, Any]) -> ExchangeMessages:
        """Read the capture up to the exchange, and earlier messages of its group: they tell the format of
        assignments."""
        assert self._captures is not None
        near = self._nearby(self._captures.point(key[0]), row)
        if near is not None:
            return near
        text = _filter_for(key)
        if row["api_key"] in embedded.GROUP_APIS and row["group_id"] is not None:
            text = f"({text}) or (api in (JoinGroup, SyncGroup) and group == {quoted(row['group_id'])})"
        for _, messages in self._chosen(key[0], text, {key: row}):
            return messages
        raise BadRequestError(
            "the capture does not contain this exchange any more", "if the file was changed, analyse it again"
        )

    def look_at_all(self, keys: Sequence[Key]) -> Iterator[tuple[Key, ExchangeMessages]]:
        """Read the messages of several exchanges, `MOST_NAMED` in a pass over their capture, in any order. Left out are
        those that are not there, those that depend on others, and those in a table, which is quick: `look` reads
        them."""
        if self._stored or self._captures is None:
            return
        far: dict[str, list[tuple[Key, dict[str, Any]]]] = {}
        for key in keys:
            check_cancelled()
            row = self._tables.row(self._tables.require_row(key))
            if row["api_key"] in embedded.GROUP_APIS:
                continue
            near = self._nearby(self._captures.point(key[0]), row)
            if near is not None:
                yield key, near
            else:
                far.setdefault(key[0], []).append((key, row))
        for capture, every in far.items():
            for start in range(0, len(every), MOST_NAMED):
                rows = dict(every[start : start + MOST_NAMED])
                yield from self._chosen(capture, " or ".join(f"({_filter_for(key)})" for key in rows), rows)

    def _chosen(
        self, capture: str, text: str, rows: dict[Key, dict[str, Any]]
    ) -> Iterator[tuple[Key, ExchangeMessages]]:
        """Read the exchanges of `rows` that a filter chooses."""
        assert self._captures is not None
        for candidate in self._exchanges(self._captures.point(capture), text, bodies=True):
            key = (capture, *(candidate.row[name] for name in ("connection", "exchange", "reply")))
            if key in rows:
                sides = candidate.request_message, candidate.response_message
                exchange = Exchange(rows[key], *sides, None, self._name, _group=candidate._group)
                yield key, ExchangeMessages(exchange, f"{_file_names(rows[key]) or 'the capture'}, read again")

    def _nearby(self, arguments: Sequence[str], row: dict[str, Any]) -> ExchangeMessages | None:
        """Read an exchange without the rest of its capture; None if that is impossible, as in a compressed file."""
        result = self._at_offsets(arguments, row) or self._in_slice(arguments, row)
        return None if result is None else ExchangeMessages(result, f"{_file_names(row)}, read again")

    def _path(self, arguments: Sequence[str], name: str) -> str | None:
        """Find the file with a name; None if there is none, or there are two."""
        assert self._captures is not None
        points = capture_points(list(arguments), self._captures.how.rotated)
        paths = [path for point in points for path in point.paths if os.path.basename(path) == name]
        return paths[0] if len(paths) == 1 else None

    def _at_offsets(self, arguments: Sequence[str], row: dict[str, Any]) -> Exchange | None:
        """Read the exchange's messages at their offsets in the file; None if that is impossible."""
        assert self._captures is not None
        if row["api_key"] in embedded.GROUP_APIS or self._captures.how.keylogs:
            return None
        messages: list[Message | None] = []
        for side, ordinal in zip(SIDES, ("exchange", "reply"), strict=True):
            data = None
            if row[ordinal] is not None:
                path = self._path(arguments, row[f"{side}_file"] or "")
                with contextlib.suppress(OSError):
                    data = None if path is None else message_reader.read_message(path, row, side)
                if data is None:
                    return None
            messages.append(None if data is None else _message(data, True, row, side))
        return Exchange(row, messages[0], messages[1], None, self._name)

    def _in_slice(self, arguments: Sequence[str], row: dict[str, Any]) -> Exchange | None:
        """Read the exchange from the slice of the capture with its packets; None if all of the capture must be read,
        as for groups and keys, which depend on earlier messages."""
        assert self._captures is not None
        how, names = self._captures.how, {row["request_file"], row["response_file"]} - {None}
        if row["api_key"] in embedded.GROUP_APIS or how.keylogs or len(names) != 1:
            return None
        path = self._path(arguments, names.pop())
        part = None if path is None else exchange_slice(path, row)
        if part is None:
            return None
        ends = row["connection"].rpartition("#")[0]
        text = f"connection == {quoted(ends + '#1')}"
        if row["correlation_id"] is not None:
            text += f" and correlation_id == {row['correlation_id']}"
        size = (row["request_bytes"] or 0) + (row["response_bytes"] or 0)
        window = None if size > WINDOW else WINDOW  # read no more than that for small messages
        try:
            how = how._replace(rotated=False, window_bytes=how.window_bytes or window)
            with part:
                every = api.decoded(["-"], how, filter=text, ordered=False, stdin=part)
                candidates = [
                    candidate for candidate in every if _first(candidate.row, row)
                ]  # the first packet may hold earlier messages, too
                return candidates[0] if len(candidates) == 1 and _same(candidates[0].row, row) else None
        except KwireError:  # the slice begins inside a message
            return None

    def matching(self, text: str, rows: np.ndarray) -> Iterator[Key]:
        """Find the exchanges among `rows` whose bodies match a filter. Raises BadRequestError."""
        try:
            yield from self._matching(text, rows)
        except UsageError as failure:  # what decodes keys and values is not installed, or a registry does not answer
            raise BadRequestError(failure.message, failure.hint) from None

    def _matching(self, text: str, rows: np.ndarray) -> Iterator[Key]:
        if self._stored:
            yield from self._matching_stored(evaluation.parse(text), rows)
            return
        if self._captures is None:
            raise BadRequestError(
                "this filter tests fields of messages, and the capture is not available",
                "look at the capture itself: kwire view CAPTURE",
            )
        for point in capture_points(list(self._captures.arguments), self._captures.how.rotated):
            for match in self._exchanges(self._captures.point(point.name), text, bodies=False):
                yield point.name, match.row["connection"], match.row["exchange"], match.row["reply"]

    def _matching_stored(self, parsed: evaluation.Filter, rows: np.ndarray) -> Iterator[Key]:
        """Find matching exchanges with the table `messages`."""
        payloads = record_payloads(parsed, self._payloads() if parsed.needs_payloads else None)
        waiting: dict[tuple[str, str, str, int], tuple[Key, dict[str, Message]]] = {}
        for start in range(0, len(rows), _AT_ONCE):
            check_cancelled()
            for key in self._tables.keys_of(rows[start : start + _AT_ONCE]):
                here: tuple[Key, dict[str, Message]] = (key, {})
                for side, number in zip(SIDES, key[2:], strict=True):
                    if number is not None:
                        waiting[key[0], key[1], side, number] = here
        for file in self._files():
            for batch in file.iter_batches(_AT_ONCE, columns=_STORED):
                check_cancelled()
                for row in batch.to_pylist():
                    side = row["direction"]
                    number = row["exchange" if side == "request" else "reply"]
                    pending = waiting.pop((row["capture"], row["connection"], side, number), None)
                    if pending is None:
                        continue
                    key, messages = pending
                    messages[side] = Message(row["bytes"], row["complete"], request=side == "request")
                    if len(messages) == sum(number is not None for number in key[2:]) and self._chooses(
                        parsed, payloads, *pending
                    ):
                        yield key

    def _chooses(
        self, parsed: evaluation.Filter, payloads: RecordPayloads | None, key: Key, messages: dict[str, Message]
    ) -> bool:
        number = self._tables.row_of(key)
        assert number is not None
        row = self._tables.row(number)
        for name in _TIMES:
            row[name] = None if row[name] is None else moment(row[name])
        candidate = Exchange(row, messages.get("request"), messages.get("response"), None, self._name)
        records = () if payloads is None else payloads.of(candidate)
        return parsed.matches(row, candidate.request, candidate.response, records)

    def _exchanges(self, arguments: Sequence[str], text: str, bodies: bool) -> Iterator[Exchange]:
        assert self._captures is not None
        return api.decoded(
            arguments,
            self._captures.how,
            filter=text,
            bodies=bodies,
            ordered=False,
            progress=lambda *_: check_cancelled(),
            payloads=self._payloads(),
        )


def _filter_for(key: Key) -> str:
    """The filter that chooses one exchange."""
    _, connection, exchange, reply = key
    number = f"exchange == {exchange}" if exchange is not None else f"exchange is null and reply == {reply}"
    return f"connection == {quoted(connection)} and {number}"


def _file_names(row: dict[str, Any]) -> str:
    """The names of an exchange's files."""
    return ", ".join(dict.fromkeys(filter(None, (row["request_file"], row["response_file"]))))


def _message(data: memoryview, complete: bool, row: dict[str, Any], side: str) -> Message:
    """Build a message of bytes that it owns. A message with records, which may have a hundred megabytes, is not
    copied; others are small, and become `bytes`, as decoders expect."""
    content = cast("bytes", data) if lazy_tree.has_records(row, side) else bytes(data)
    return Message(content, complete, request=side == "request")


def _stored(column: Any, at: int) -> memoryview:
    """Get a row of a column of bytes in writable memory: the column's own buffer, unless it is much larger. (As Python
    bytes they would be copied three times.)"""
    (array,) = (chunk for chunk in column.slice(at, 1).chunks if len(chunk))
    start, end = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][:2].tolist()
    whole = memoryview(array.buffers()[2] or b"").cast("B")  # Arrow says signed bytes, which decoders refuse
    if not whole.readonly and len(whole) < 2 * (end - start):
        return whole[start:end]
    return memoryview(bytearray(whole[start:end]))


_AT_ONCE: Final = 4_096
_STORED: Final = ["capture", "connection", "exchange", "reply", "direction", "complete", "bytes"]
_TIMES: Final = ("request_time", "request_end", "response_time", "response_end")
_COMPARED: Final = (
    "api_key",
    "api_version",
    "correlation_id",
    "request_bytes",
    "response_bytes",
    "request_state",
    "response_state",
    "reason",
)


def _first(read: dict[str, Any], row: dict[str, Any]) -> bool:
    """Tell whether an exchange read from a slice begins when a row's exchange does."""
    name = "response_time" if row["request_time"] is None else "request_time"
    return read[name] is not None and bool(micros(read[name]) == row[name])


def _same(read: dict[str, Any], row: dict[str, Any]) -> bool:
    """Tell whether an exchange read from a slice, whose ordinals count from the slice's start, is a row's exchange."""
    times = all(
        (None if read[name] is None else micros(read[name])) == row[name] for name in ("request_time", "response_time")
    )
    return times and all(read[name] == row[name] for name in _COMPARED)


def _places(keys: Any, capture: str, connection: str, wanted: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Find the rows of an exchange's messages in a row group of `messages`."""
    here = pc.and_(pc.equal(keys["capture"], capture), pc.equal(keys["connection"], connection))
    for side, number in wanted.items():
        ordinal = keys["exchange" if side == "request" else "reply"]
        matches = pc.indices_nonzero(
            pc.fill_null(pc.and_(pc.and_(here, pc.equal(keys["direction"], side)), pc.equal(ordinal, number)), False)
        )
        if len(matches):
            yield side, matches[0].as_py()
