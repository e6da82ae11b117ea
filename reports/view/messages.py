"""The two messages of one exchange: from the table `messages`, or from the capture, read again.

In: the identity of an exchange. Out: a `Found`: an `Exchange` that decodes itself, and where its bytes are from. Rule:
bytes that leave this module have their secrets overwritten, whatever the dataset kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.parquet

from analyzer.bulk.rows import Message
from analyzer.dataset import readable
from analyzer.exchange import Exchange
from analyzer.messages import masked
from analyzer.options import Reading
from analyzer.protocol import embedded
from analyzer.protocol.tree import Node
from captures.files import CapturePoint, capture_points
from captures.kernels import NULL
from reports.view import trees
from reports.view.counting import wanted
from reports.view.naming import quoted
from reports.view.tables import Key, Tables, Wrong

KEPT: Final = 8
"""Exchanges whose messages stay at hand: people go back and forth between a few."""

SIDES: Final = ("request", "response")


@dataclass(frozen=True, slots=True)
class Captures:
    """Captures that a dataset was made of, and how they were read."""

    arguments: tuple[str, ...]
    how: Reading

    def point(self, name: str) -> tuple[str, ...]:
        """The arguments that make the capture point of a name; none where there is no such."""
        if self.how.rotated:
            return self.arguments
        named: list[tuple[CapturePoint, str]] = [(capture_points([one])[0], one) for one in self.arguments]
        return tuple(argument for point, argument in named if point.name == name)


@dataclass(slots=True)
class Found:
    """An exchange with its messages; `source`: where they are from, in words; `complete`: of both sides, is no byte
    missing?"""

    exchange: Exchange
    source: str
    _frames: dict[str, bytes | None] = field(default_factory=dict)
    _trees: dict[str, tuple[tuple[Node, ...], str | None]] = field(default_factory=dict)

    def frame(self, side: str) -> bytes | None:
        """One side's bytes, its length before it, secrets overwritten; None: not at hand."""
        if side not in self._frames:
            message = self._message(side)
            self._frames[side] = None if message is None else self._masked(message, side)
        return self._frames[side]

    def tree(self, side: str) -> tuple[tuple[Node, ...], str | None]:
        """A side's whole tree, and why it is not whole (`trees.nodes`)."""
        if side not in self._trees:
            self._trees[side] = trees.nodes(self.exchange, side)
        return self._trees[side]

    def _message(self, side: str) -> Message | None:
        return self.exchange.request_message if side == "request" else self.exchange.response_message

    def _masked(self, message: Message, side: str) -> bytes:
        row = self.exchange.row
        key, version = (NULL if row[name] is None else row[name] for name in ("api_key", "api_version"))
        return masked(message.data, key, version, side == "request")

    def missing(self, side: str) -> bool:
        """Are some of a side's bytes not in the capture?"""
        message = self._message(side)
        return message is not None and not message.complete


class Messages:
    """Messages of a view's exchanges, found when they are asked for."""

    def __init__(self, tables: Tables, captures: Captures | None) -> None:
        self._tables = tables
        self._captures = captures
        self._stored = any(entry["table"] == "messages" for entry in tables.dataset.manifest["files"])
        self._kept: OrderedDict[Key, Found] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def captures(self) -> Captures | None:
        """What the messages are read from, if it is there."""
        return self._captures

    @property
    def at_hand(self) -> bool:
        """Is there anything to find messages in?"""
        return self._stored or self._captures is not None

    def of(self, key: Key) -> Found:
        """The messages of an exchange. Raises Wrong where they are not to be had."""
        with self._lock:  # both sides are asked for at once: the second waits for what the first finds
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            row = self._tables.row_of(key)
            if row is None:
                raise Wrong("there is no such exchange", "it may be of another capture")
            found = self._kept[key] = self._look(key, self._tables.row(row))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found

    def _look(self, key: Key, row: dict[str, Any]) -> Found:
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
        wanted = {side: number for side, number in zip(SIDES, (exchange, reply), strict=True) if number is not None}
        for file in self._files():
            for group in range(file.num_row_groups):
                keys = file.read_row_group(group, columns=["capture", "connection", "exchange", "reply", "direction"])
                for side, at in _places(keys, capture, connection, wanted):
                    data = file.read_row_group(group, columns=["bytes", "complete"]).slice(at, 1).to_pylist()[0]
                    sides[side] = Message(data["bytes"], data["complete"], request=side == "request")
                if len(sides) == len(wanted):
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
        for one in self._exchanges(arguments, text, bodies=True):
            if (one.row["connection"], one.row["exchange"], one.row["reply"]) == (connection, exchange, reply):
                names = ", ".join(dict.fromkeys(filter(None, (row["request_file"], row["response_file"]))))
                made = Exchange(row, one.request_message, one.response_message, None, self._name, _group=one._group)
                return Found(made, f"{names or 'the capture'}, read again")
        raise Wrong("the capture does not hold this exchange any more", "was the file changed? analyse it again")

    def matching(self, text: str) -> Iterator[Key]:
        """The exchanges that a filter chooses by what their bodies say. Raises Wrong."""
        if self._captures is None:
            raise Wrong(
                "this filter asks for fields of messages, and the capture is not at hand",
                "look at the capture itself: kwire view CAPTURE",
            )
        for point in capture_points(list(self._captures.arguments), self._captures.how.rotated):
            for one in self._exchanges(self._captures.point(point.name), text, bodies=False):
                yield point.name, one.row["connection"], one.row["exchange"], one.row["reply"]

    def _exchanges(self, arguments: Sequence[str], text: str, bodies: bool) -> Iterator[Exchange]:
        from analyzer import reading

        assert self._captures is not None
        return reading.decoded(
            arguments, self._captures.how, filter=text, bodies=bodies, ordered=False, progress=lambda *_: wanted()
        )


def _places(
    keys: Any, capture: str, connection: str, wanted: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """Where a row group of `messages` has the sides of an exchange."""
    import pyarrow.compute as pc

    here = pc.and_(pc.equal(keys["capture"], capture), pc.equal(keys["connection"], connection))
    for side, number in wanted.items():
        ordinal = keys["exchange" if side == "request" else "reply"]
        found = pc.indices_nonzero(
            pc.fill_null(pc.and_(pc.and_(here, pc.equal(keys["direction"], side)), pc.equal(ordinal, number)), False)
        )
        if len(found):
            yield side, found[0].as_py()
