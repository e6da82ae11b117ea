"""The two messages of one exchange, read: from the table `messages`, or from the capture, read again.

In: the identity of an exchange. Out: a `Found`: an `Exchange` that decodes itself, and where its bytes are from. Rule:
bytes that leave this module have their secrets overwritten, whatever the dataset kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet

from analyzer import api
from analyzer.bulk.rows import Message
from analyzer.common.times import moment
from analyzer.dataset.dataset import readable
from analyzer.filter import evaluation
from analyzer.filter.values import micros
from analyzer.messages.exchange import Exchange
from analyzer.messages.raw_messages import masked
from analyzer.protocol import embedded
from captures.errors import KwireError
from captures.files import capture_points
from captures.kernels import NULL
from reports.view import lazy_tree, message_reader, trees
from reports.view.capture_slice import excerpt
from reports.view.filter_values import quoted
from reports.view.source_captures import SIDES, Captures
from reports.view.tables import Key, Tables, Wrong
from reports.view.value_counts import wanted

WINDOW: Final = 2 << 20
"""Bytes of a capture that are read at a time for messages that are no longer."""


@dataclass(slots=True)
class Found:
    """An exchange with its messages; `source`: where they are from, in words; `complete`: of both sides, is no byte
    missing?"""

    exchange: Exchange
    source: str
    _frames: dict[str, bytes | None] = field(default_factory=dict)
    _trees: dict[str, trees.Tree] = field(default_factory=dict)

    def frame(self, side: str) -> bytes | None:
        """One side's bytes, its length before it, secrets overwritten; None: not at hand."""
        if side not in self._frames:
            message = self._message(side)
            self._frames[side] = None if message is None else self._masked(message, side)
        return self._frames[side]

    def tree(self, side: str) -> trees.Tree:
        """A side's whole tree."""
        if side not in self._trees:
            self._trees[side] = trees.nodes(self.exchange, side)
        return self._trees[side]

    def _message(self, side: str) -> Message | None:
        return self.exchange.request_message if side == "request" else self.exchange.response_message

    def _masked(self, message: Message, side: str) -> bytes:
        if self.tree(side).plain:  # to look for secrets in a hundred megabytes, and to copy them, takes its time
            return message.data
        row = self.exchange.row
        key, version = (NULL if row[name] is None else row[name] for name in ("api_key", "api_version"))
        return masked(bytes(message.data), key, version, side == "request")

    @property
    def size(self) -> int:
        """Bytes of its messages."""
        return sum(len(one.data) for one in map(self._message, SIDES) if one is not None)

    def missing(self, side: str) -> bool:
        """Are some of a side's bytes not in the capture?"""
        message = self._message(side)
        return message is not None and not message.complete


class Bodies:
    """What messages are read from: the table of a dataset (`stored`: it has one), or captures."""

    def __init__(self, tables: Tables, captures: Captures | None, stored: bool) -> None:
        self._tables = tables
        self._captures = captures
        self._stored = stored

    def look(self, key: Key, row: dict[str, Any]) -> Found:
        """The messages of an exchange. Raises Wrong where they are not to be had."""
        if self._stored:
            return self._from_table(key, row)
        if self._captures is not None:
            return self._read_again(key, row)
        raise Wrong(
            "the bytes of messages are not in this dataset",
            "analyse with --keep-bytes, or look at the capture itself: kwire view CAPTURE",
        )

    # -- the table --------------------------------------------------------------------------------------------------
    def _from_table(self, key: Key, row: dict[str, Any]) -> Found:
        capture, connection, exchange, reply = key
        sides: dict[str, Message] = {}
        numbers = {side: number for side, number in zip(SIDES, (exchange, reply), strict=True) if number is not None}
        for file in self._files():
            for group in range(file.num_row_groups):
                keys = file.read_row_group(group, columns=["capture", "connection", "exchange", "reply", "direction"])
                places = dict(_places(keys, capture, connection, numbers))
                if places:  # the group's bytes may be a hundred megabytes: they are read once
                    found = file.read_row_group(group, columns=["bytes", "complete"])
                    for side, at in places.items():
                        complete = found.column("complete")[at].as_py()
                        sides[side] = _message(_stored(found.column("bytes"), at), complete, row, side)
                if len(sides) == len(numbers):
                    break
        made = Exchange(row, sides.get("request"), sides.get("response"), None, self._name)
        return Found(made, "the table messages")

    def _files(self) -> Iterator[Any]:
        dataset = self._tables.dataset
        for entry in dataset.manifest["files"]:
            if entry["table"] == "messages":
                with readable(dataset.path, entry["path"]):
                    yield pyarrow.parquet.ParquetFile(dataset.path / entry["path"], memory_map=True)

    def _name(self, topic: str) -> str:
        return self._tables.topic_names.get(topic, topic)

    # -- the capture ------------------------------------------------------------------------------------------------
    def _read_again(self, key: Key, row: dict[str, Any]) -> Found:
        """Read the capture up to the exchange. What was said of its group before is read too: it says what is inside
        assignments."""
        assert self._captures is not None
        capture, connection, exchange, reply = key
        text = f"connection == {quoted(connection)} and " + (
            f"exchange == {exchange}" if exchange is not None else f"exchange is null and reply == {reply}"
        )
        if row["api_key"] in embedded.GROUP_APIS and row["group_id"] is not None:
            text = f"({text}) or (api in (JoinGroup, SyncGroup) and group == {quoted(row['group_id'])})"
        arguments = self._captures.point(capture)
        names = ", ".join(dict.fromkeys(filter(None, (row["request_file"], row["response_file"]))))
        made = self._placed(arguments, row) or self._near(arguments, row)
        if made is not None:
            return Found(made, f"{names}, read again")
        for one in self._exchanges(arguments, text, bodies=True):
            if (one.row["connection"], one.row["exchange"], one.row["reply"]) == (connection, exchange, reply):
                made = Exchange(row, one.request_message, one.response_message, None, self._name, _group=one._group)
                return Found(made, f"{names or 'the capture'}, read again")
        raise Wrong("the capture does not hold this exchange any more", "was the file changed? analyse it again")

    def _path(self, arguments: Sequence[str], name: str) -> str | None:
        """The file of a name; None: it is not there, or there are two."""
        assert self._captures is not None
        points = capture_points(list(arguments), self._captures.how.rotated)
        paths = [path for point in points for path in point.paths if os.path.basename(path) == name]
        return paths[0] if len(paths) == 1 else None

    def _placed(self, arguments: Sequence[str], row: dict[str, Any]) -> Exchange | None:
        """The exchange of the packets at the places of its messages; None: it cannot be told so."""
        assert self._captures is not None
        if row["api_key"] in embedded.GROUP_APIS or self._captures.how.keylogs:
            return None
        found: list[Message | None] = []
        for side, ordinal in zip(SIDES, ("exchange", "reply"), strict=True):
            data = None
            if row[ordinal] is not None:
                path = self._path(arguments, row[f"{side}_file"] or "")
                with contextlib.suppress(OSError):
                    data = None if path is None else message_reader.message(path, row, side)
                if data is None:
                    return None
            found.append(None if data is None else _message(data, True, row, side))
        return Exchange(row, found[0], found[1], None, self._name)

    def _near(self, arguments: Sequence[str], row: dict[str, Any]) -> Exchange | None:
        """The exchange from the part of the capture where its packets are; None: all of it is to be read. What is said
        of groups and keys may lie before that part."""
        assert self._captures is not None
        how, names = self._captures.how, {row["request_file"], row["response_file"]} - {None}
        if row["api_key"] in embedded.GROUP_APIS or how.keylogs or len(names) != 1:
            return None
        path = self._path(arguments, names.pop())
        part = None if path is None else excerpt(path, row)
        if part is None:
            return None
        ends = row["connection"].rpartition("#")[0]
        text = f"connection == {quoted(ends + '#1')}"
        if row["correlation_id"] is not None:
            text += f" and correlation_id == {row['correlation_id']}"
        size = (row["request_bytes"] or 0) + (row["response_bytes"] or 0)
        window = None if size > WINDOW else WINDOW  # of little, no more is read than that
        try:
            how = replace(how, rotated=False, window_bytes=how.window_bytes or window)
            with part:
                every = api.decoded(["-"], how, filter=text, ordered=False, stdin=part)
                found = [one for one in every if _first(one.row, row)]  # a packet may bring what was sent before, too
                return found[0] if len(found) == 1 and _same(found[0].row, row) else None
        except KwireError:  # it begins in the middle of something
            return None

    def matching(self, text: str, rows: np.ndarray) -> Iterator[Key]:
        """The exchanges that a filter chooses by what their bodies say; `rows`: those that it may choose. Raises
        Wrong."""
        if self._stored:
            yield from self._matching_stored(evaluation.parse(text), rows)
            return
        if self._captures is None:
            raise Wrong(
                "this filter asks for fields of messages, and the capture is not at hand",
                "look at the capture itself: kwire view CAPTURE",
            )
        for point in capture_points(list(self._captures.arguments), self._captures.how.rotated):
            for one in self._exchanges(self._captures.point(point.name), text, bodies=False):
                yield point.name, one.row["connection"], one.row["exchange"], one.row["reply"]

    def _matching_stored(self, asked: evaluation.Filter, rows: np.ndarray) -> Iterator[Key]:
        """The same by the table `messages`."""
        waiting: dict[tuple[str, str, str, int], tuple[Key, dict[str, Message]]] = {}
        for start in range(0, len(rows), _AT_ONCE):
            wanted()
            for key in self._tables.keys_of(rows[start : start + _AT_ONCE]):
                here: tuple[Key, dict[str, Message]] = (key, {})
                for side, number in zip(SIDES, key[2:], strict=True):
                    if number is not None:
                        waiting[key[0], key[1], side, number] = here
        for file in self._files():
            for batch in file.iter_batches(_AT_ONCE, columns=_STORED):
                wanted()
                for one in batch.to_pylist():
                    side = one["direction"]
                    number = one["exchange" if side == "request" else "reply"]
                    found = waiting.pop((one["capture"], one["connection"], side, number), None)
                    if found is None:
                        continue
                    key, messages = found
                    messages[side] = Message(one["bytes"], one["complete"], request=side == "request")
                    if len(messages) == sum(number is not None for number in key[2:]) and self._chooses(asked, *found):
                        yield key

    def _chooses(self, asked: evaluation.Filter, key: Key, messages: dict[str, Message]) -> bool:
        number = self._tables.row_of(key)
        assert number is not None
        row = self._tables.row(number)
        for name in _TIMES:
            row[name] = None if row[name] is None else moment(row[name])
        made = Exchange(row, messages.get("request"), messages.get("response"), None, self._name)
        return asked.matches(row, made.request, made.response)

    def _exchanges(self, arguments: Sequence[str], text: str, bodies: bool) -> Iterator[Exchange]:
        assert self._captures is not None
        return api.decoded(
            arguments, self._captures.how, filter=text, bodies=bodies, ordered=False, progress=lambda *_: wanted()
        )


def _message(data: memoryview, complete: bool, row: dict[str, Any], side: str) -> Message:
    """A message of bytes that are its own. Records are looked at where they are, for they may be a hundred megabytes;
    of others, which are little, the decoders make what they like."""
    kept = cast("bytes", data) if lazy_tree.has_records(row, side) else bytes(data)
    return Message(kept, complete, request=side == "request")


def _stored(column: Any, at: int) -> memoryview:
    """A row of a column of bytes that was read for it, in memory of its own: what Parquet unpacked them into, where
    that is not much more. (As Python's bytes they would be copied three times.)"""
    (array,) = (chunk for chunk in column.slice(at, 1).chunks if len(chunk))
    start, end = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][:2].tolist()
    whole = memoryview(array.buffers()[2] or b"")
    if not whole.readonly and len(whole) < 2 * (end - start):
        return whole[start:end]
    return memoryview(bytearray(whole[start:end]))


_AT_ONCE: Final = 4_096
_STORED: Final = ["capture", "connection", "exchange", "reply", "direction", "complete", "bytes"]
_TIMES: Final = ("request_time", "request_end", "response_time", "response_end")
_TELLING: Final = (
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
    """Does what was read of a part begin when the exchange of a row does?"""
    name = "response_time" if row["request_time"] is None else "request_time"
    return read[name] is not None and bool(micros(read[name]) == row[name])


def _same(read: dict[str, Any], row: dict[str, Any]) -> bool:
    """Is what was read of a part the exchange of a row? Its numbers count from the part's beginning."""
    times = all(
        (None if read[name] is None else micros(read[name])) == row[name] for name in ("request_time", "response_time")
    )
    return times and all(read[name] == row[name] for name in _TELLING)


def _places(keys: Any, capture: str, connection: str, wanted: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Where a row group of `messages` has the sides of an exchange."""
    here = pc.and_(pc.equal(keys["capture"], capture), pc.equal(keys["connection"], connection))
    for side, number in wanted.items():
        ordinal = keys["exchange" if side == "request" else "reply"]
        found = pc.indices_nonzero(
            pc.fill_null(pc.and_(pc.and_(here, pc.equal(keys["direction"], side)), pc.equal(ordinal, number)), False)
        )
        if len(found):
            yield side, found[0].as_py()
