"""`kwire show -w FILE.pcapng`: the packets of the exchanges that match, for Wireshark, with comments.

In: parsed options. Out: a pcapng file. Rules: of a plain connection the packets of the chosen messages, and of earlier
messages where these end in the packet in which a chosen one begins, because a reader that enters in the middle of a
message understands nothing; of a TLS connection all that came until the last chosen message, because records are opened
in order; a comment stands on the packet that completes a message. A capture is read more than once, so not from stdin.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer import api
from kwire.analyzer.cli.commands import dataset_of
from kwire.analyzer.common import output_file
from kwire.analyzer.common.address_names import known_names
from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.common.version import __version__
from kwire.analyzer.dataset.dataset import StoredDataset, is_dataset, open_dataset
from kwire.analyzer.export import comments
from kwire.analyzer.export.packet_copy import Additions, copied_packets, empty_section
from kwire.analyzer.export.selection import End, Interval, PacketSelection
from kwire.analyzer.export.tls_secrets import SessionSecrets
from kwire.analyzer.findings.wording import count
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import CapturePoint, capture_points
from kwire.captures.files.sources import Source
from kwire.captures.packets import Reader

if TYPE_CHECKING:
    from kwire.analyzer.options.show import ShowOptions

Key = tuple[str, str, int | None, int | None]

_ALONE: Final = ("json", "tree", "fields", "count_by", "records", "frames", "sort")
"""Options about what is printed: packets have their own order and form."""
_COLUMNS: Final = (
    "capture", "connection", "exchange", "reply", "client_ip", "client_port", "broker_ip", "broker_port", "api_key",
    "api", "api_version", "client_id", "request_time", "request_end", "response_time", "response_end", "latency_us",
    "throttle_us", "status", "response_state", "reason", "errors", "acks", "group_id", "transactional_id", "topics",
)  # fmt: skip
_NOTHING: Final = np.iinfo(np.int64).min


_MOST_COMMENTED: Final = 1_000_000
"""Messages that get a comment: each takes memory until its packet is written."""


def export(options: ShowOptions) -> int:
    """`kwire show -w`."""
    assert options.write is not None
    _check(options)
    _check_file(options.write)
    names = known_names()
    points = capture_points(list(options.captures), options.rotated)
    with tempfile.TemporaryDirectory(prefix="kwire-show-") as folder:
        path = os.path.join(folder, "dataset")
        dataset_of(options.captures, path, dataclasses.replace(options, filter=None))
        contents = _Contents.read(open_dataset(path))
    keys = _chosen_keys(options)
    key_logs = [Path(path).read_bytes() for path in options.keylog]
    done = _Counts()

    def pieces() -> Iterator[bytes]:
        for point in points:
            messages = contents.of_point(point.name, keys, tell=_note)
            yield from _exported(point, messages, SessionSecrets(key_logs), names, done)

    _write(options.write, pieces())
    _note(
        f"{count(done.packets, 'packet')} of {count(done.exchanges, 'exchange')}"
        + (f" ({done.whole} TLS connections from their beginning)" if done.whole else "")
    )
    return 0


def _check(options: ShowOptions) -> None:
    """Raises UsageError for options that do not go together."""
    for name in _ALONE:
        if getattr(options, name):
            raise UsageError(
                f"-w does not go with --{name.replace('_', '-')}",
                "-w writes packets, and prints nothing; leave one out",
            )
    if "-" in options.captures:
        raise UsageError("-w reads a capture more than once, and - is there once", "save it to a file first")
    for argument in options.captures:
        if is_dataset(argument):
            raise UsageError(f"{argument}: a dataset, which has no packets", "give the captures it was made of")


def _check_file(path: str) -> None:
    if path == "-":
        if sys.stdout.isatty():
            raise UsageError("packets are nothing for a terminal", "-w FILE.pcapng, or | wireshark -k -i -")
        return
    output_file.check(path, "-w")


def _write(path: str, pieces: Iterable[bytes]) -> None:
    """Write to a file that is whole or not there at all, or to stdout."""
    if path == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    try:
        with output_file.written(path) as part, open(part, "wb") as file:
            empty = True
            for piece in pieces:
                empty = False
                file.write(piece)
            if empty:  # a reader takes no file without a section
                file.write(empty_section())
    except OSError as failure:
        raise UsageError(f"{path}: {failure.strerror}", "name a file that can be written") from None


def _note(text: str) -> None:
    sys.stderr.write(f"note: {printable(text)}\n")


def _chosen_keys(options: ShowOptions) -> frozenset[Key] | None:
    """Keys of the exchanges that the options choose; None: of all."""
    if options.filter is None and options.follow is None and options.limit is None:
        return None
    how = ReadOptions.from_arguments(options)
    payloads = PayloadOptions.from_arguments(options)
    chosen = api.raw_exchanges(options.captures, how, filter=options.filter, bodies=(), payloads=payloads)
    rows = (exchange.row for exchange in chosen)
    if options.follow is not None:
        rows = (row for row in rows if row["connection"] == options.follow)
    return frozenset(
        (row["capture"], row["connection"], row["exchange"], row["reply"])
        for row in itertools.islice(rows, options.limit)
    )


@dataclasses.dataclass(slots=True)
class _Counts:
    """Numbers of what was exported. whole: TLS connections that were copied from their first packet on."""

    packets: int = 0
    exchanges: int = 0
    whole: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Contents:
    """Exchanges and findings of all captures. tls: first times of TLS connections, in us, by capture and connection;
    topics: names by capture and topic id."""

    exchanges: pa.Table
    tls: dict[tuple[str, str], int]
    findings: comments.Findings
    topics: dict[tuple[str, str], str]

    @classmethod
    def read(cls, dataset: StoredDataset) -> _Contents:
        """Read them from a dataset, which may go away afterwards."""
        connections = dataset.connections.to_table(columns=["capture", "connection", "first_time", "tls"])
        tls = {
            (capture, connection): first
            for capture, connection, first, secured in zip(
                connections["capture"].to_pylist(),
                connections["connection"].to_pylist(),
                _integers(connections["first_time"]).tolist(),
                connections["tls"].to_pylist(),
            )
            if secured
        }
        findings = comments.findings_by_exchange(dataset.findings.to_table().to_pylist())
        known = dataset.topic_ids.to_table(columns=["capture", "topic_id", "topic"]).to_pylist()
        topics = {(row["capture"], row["topic_id"]): row["topic"] for row in known}
        return cls(dataset.exchanges.to_table(columns=list(_COLUMNS)), tls, findings, topics)

    def of_point(self, capture: str, keys: frozenset[Key] | None, tell: Callable[[str], None]) -> _Messages:
        """Return the exchanges of one capture point."""
        import pyarrow.compute as pc

        table = self.exchanges.filter(pc.equal(self.exchanges["capture"], capture)).combine_chunks()
        chosen = np.ones(len(table), np.bool_)
        if keys is not None:
            columns = (table[name].to_pylist() for name in ("capture", "connection", "exchange", "reply"))
            chosen = np.fromiter((key in keys for key in zip(*columns)), np.bool_, len(table))
        tls = {connection: first for (name, connection), first in self.tls.items() if name == capture}
        messages = _Messages(table, chosen, tls, self)
        if messages.commented > _MOST_COMMENTED:
            tell(f"{capture}: the first {_MOST_COMMENTED:,} of {messages.commented:,} messages are commented")
        return messages


def _integers(column: pa.ChunkedArray) -> np.ndarray:
    """int64: a column of integers or times (us), `_NOTHING` where null."""
    import pyarrow.compute as pc

    numbers: np.ndarray = pc.fill_null(column.cast(pa.int64()), _NOTHING).to_numpy()
    return numbers


class _Side(NamedTuple):
    """One direction of the exchanges, as arrays: ordinal in the stream, times of the first and last byte in us."""

    name: str
    ordinal: np.ndarray
    first: np.ndarray
    last: np.ndarray


class _Messages:
    """The exchanges of a capture point, which of them are chosen, and where their messages are."""

    def __init__(self, table: pa.Table, chosen: np.ndarray, tls: dict[str, int], contents: _Contents) -> None:
        self.table, self.chosen = table, chosen
        self._tls, self._findings, self._topics = tls, contents.findings, contents.topics
        names = table["connection"].combine_chunks().dictionary_encode()
        self._connections: list[str] = names.dictionary.to_pylist()
        self._connection = names.indices.to_numpy()
        self._sides = [
            _Side(side, *(_integers(table[name]) for name in (ordinal, f"{side}_time", f"{side}_end")))
            for side, ordinal in (("request", "exchange"), ("response", "reply"))
        ]
        self.commented = sum(int((chosen & (side.first != _NOTHING)).sum()) for side in self._sides)

    @property
    def whole(self) -> int:
        """Chosen connections that are copied from their first packet on."""
        chosen = np.unique(self._connection[self.chosen]).tolist()
        return sum(self._connections[number] in self._tls for number in chosen)

    def ends(self, row: int) -> tuple[End, End]:
        """Client and broker of an exchange."""
        client, broker = (
            (self.table[f"{side}_ip"][row].as_py(), self.table[f"{side}_port"][row].as_py())
            for side in ("client", "broker")
        )
        return client, broker

    def intervals(self) -> Iterator[Interval]:
        """Yield when what is to be copied was sent, by direction."""
        until: dict[int, tuple[int, int]] = {}
        for side in self._sides:
            rows, last = self._needed(side)
            for row, first, end in zip(rows.tolist(), side.first[rows].tolist(), last.tolist()):
                link = int(self._connection[row])
                if self._connections[link] in self._tls:
                    until[link] = max(until.get(link, (_NOTHING, row)), (end, row))
                    continue
                client, broker = self.ends(row)
                sender, receiver = (client, broker) if side.name == "request" else (broker, client)
                yield Interval(sender, receiver, first * 1000, end * 1000 + 999)
        for link, (end, row) in until.items():
            first = self._tls[self._connections[link]]
            client, broker = self.ends(row)
            yield Interval(client, broker, first * 1000, end * 1000 + 999)
            yield Interval(broker, client, first * 1000, end * 1000 + 999)

    def _needed(self, side: _Side) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the messages to be copied, and when the last byte of each was sent: chosen ones, and those before
        that share packets with them."""
        rows = np.flatnonzero(side.first != _NOTHING)
        rows = rows[np.lexsort((side.ordinal[rows], self._connection[rows]))]
        if not len(rows):
            return rows, rows
        link, first, last = self._connection[rows], side.first[rows], side.last[rows].copy()
        following = np.r_[np.where(link[1:] == link[:-1], first[1:], first[:-1]), first[-1]]
        last = np.where(last == _NOTHING, np.maximum(first, following), last)
        follows = np.r_[False, (link[1:] == link[:-1]) & (first[1:] == last[:-1])]
        run = np.cumsum(~follows) - 1
        furthest = np.full(run[-1] + 1, -1)
        chosen = np.flatnonzero(self.chosen[rows])
        np.maximum.at(furthest, run[chosen], chosen)
        needed = np.arange(len(rows)) <= furthest[run]
        return rows[needed], last[needed]

    def completed(self, selection: PacketSelection) -> dict[tuple[int, int], list[tuple[int, str]]]:
        """Chosen messages by direction and the time of the packet that completes them, us."""
        by_packet: dict[tuple[int, int], list[tuple[int, str]]] = {}
        rows = np.flatnonzero(self.chosen)
        for side in self._sides:
            here = rows[side.first[rows] != _NOTHING][: _MOST_COMMENTED // len(self._sides)]
            times = np.where(side.last[here] == _NOTHING, side.first[here], side.last[here])
            for row, time in zip(here.tolist(), times.tolist()):
                client, broker = self.ends(row)
                ends = (client, broker) if side.name == "request" else (broker, client)
                by_packet.setdefault((selection.directions.number(*ends), time), []).append((row, side.name))
        return by_packet

    def comment(self, completed: Sequence[tuple[int, str]], first_of: set[str]) -> str:
        """Return the comment of a packet. first_of: connections that nothing was said of yet."""
        lines: list[str] = []
        for row, side in completed[: comments.MOST_LINES + 1]:
            values = self.table.slice(row, 1).to_pylist()[0]
            known = self._topics
            values["topics"] = [known.get((values["capture"], topic), topic) for topic in values["topics"] or ()]
            if values["connection"] in first_of:
                first_of.discard(values["connection"])
                lines += comments.connection_comment(values["capture"], values["connection"], self._findings)
            comment_of = comments.request_comment if side == "request" else comments.response_comment
            lines += comment_of(values, self._findings)
        return comments.joined(lines, len(completed))

    def addresses(self) -> list[str]:
        """Addresses of the ends of all connections."""
        every = {ip for side in ("client", "broker") for ip in self.table[f"{side}_ip"].unique().to_pylist()}
        return sorted(every)

    def connections(self) -> set[str]:
        """Names of all connections."""
        return set(self._connections)


def _exported(
    point: CapturePoint, messages: _Messages, secrets: SessionSecrets, names: Mapping[str, str], done: _Counts
) -> Iterator[bytes]:
    """Yield the file's sections with the packets of a capture point."""
    selection = PacketSelection(messages.intervals())
    completed = messages.completed(selection)
    times = np.unique(np.array([time for _, time in completed], np.int64))
    places: dict[int, list[int]] = {}
    comment_at: dict[tuple[int, int], list[tuple[int, str]]] = {}
    with Reader(point) as reader:
        for packets in reader:
            columns = packets.columns
            chosen = selection.chosen(columns)
            if len(chosen):
                file = int(columns.file[chosen[0]])  # a window never spans two
                places.setdefault(file, []).extend(columns.record_at[chosen].tolist())
                secrets.look_at(packets, chosen)
                near = chosen[(columns.payload_length[chosen] > 0) & np.isin(columns.time_ns[chosen] // 1000, times)]
                directions = selection.directions.of_packets(columns)[near].tolist()
                for packet, direction in zip(near.tolist(), directions):
                    key = direction, int(columns.time_ns[packet]) // 1000
                    if key in completed:
                        comment_at[file, int(columns.record_at[packet])] = completed.pop(key)
            packets.release()
    done.exchanges += int(messages.chosen.sum())
    done.whole += messages.whole
    unnamed = messages.connections()
    known = ((address, names[address]) for address in messages.addresses() if address in names)
    additions = Additions(secrets.key_log(), known, f"kwire {__version__}")
    for number, path in enumerate(point.paths):
        if number not in places:
            continue
        there = set(places[number])
        done.packets += len(there)

        def comment(place: int, number: int = number) -> str:
            return messages.comment(comment_at[number, place], unnamed) if (number, place) in comment_at else ""

        with Source(path, None, point.folder) as source:
            yield from copied_packets(source, there, comment, additions)
        additions = Additions(application=additions.application)
