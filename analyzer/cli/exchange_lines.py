"""Exchanges as lines for people: one a line, requests and responses apart, a dialogue, a tree of fields.

In: exchanges, and the width there is. Out: lines. Rules: without a width, and with `--wide`, a line has every column
and is as long as it gets; with one it has the columns that leave room for the result, which comes after them and is cut
with `…`. What a line leaves out because all lines say the same is said where another says otherwise. Colour only
repeats what the text says: errors are named and marked `!`, slow ones are marked `~`.
"""

from __future__ import annotations

import datetime
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kwire.analyzer.analysis.logins import challenge_status
from kwire.analyzer.cli.details import bodies, detail
from kwire.analyzer.cli.sorted_lines import Sorter
from kwire.analyzer.cli.text import duration, printable, size
from kwire.analyzer.common.times import EPOCH, moment, rfc3339
from kwire.analyzer.frame import arrow, grouping
from kwire.analyzer.protocol.budget import BYTES, PAGE, Budget
from kwire.analyzer.protocol.errors import label
from kwire.captures.kernels import NULL

if TYPE_CHECKING:
    from kwire.analyzer.api import Block
    from kwire.analyzer.pipeline.exchange_order import ExchangeBlock

SLOW_US = 100_000
"""Latency, without what the broker waited on purpose, from which an exchange is marked as slow."""

MATTERS_US = 10_000
"""Latency from which a line says what most of it was."""

_MOSTLY = {"hold": "held", "broker": "broker", "network": "network", "throttle": "throttle", "client": "queue"}

LOOK_AHEAD = 500
"""Exchanges that the choice of columns looks at, where more than one is at hand."""

_RED, _YELLOW, _DIM, _BOLD, _RESET = "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"

_NARROW, _ROOMY = 90, 120
"""Columns of a terminal below which client ids are cut short, and from which times keep their microseconds."""

_RESULT_SHARE = 0.4
"""Of the width so much is for the result: columns beyond the first four that would take it away are left out."""

Row = dict[str, Any]

_TIME = ("request_time", "response_time")
_ID = ("correlation_id",)
_LATENCY = ("total_us", "latency_us")
_API = ("api", "api_key", "api_version")
_CLIENT, _BROKER = ("client_ip", "client_port"), ("broker_ip", "broker_port")
_MARK = (*_LATENCY, "hold_us", "error_code", "status", "request_state", "response_state")
_LISTS = ("errors", "topics")
_RESULT = (
    *("api_key", "api_version", "status", "request_state", "response_state", "error_code", "throttle_us", "reason"),
    *("group_id", "transactional_id", "acks", "generation", "member_id", *_BROKER, *_LISTS),
)
_SIZES = ("request_bytes", "response_bytes")
COLUMNS = frozenset(
    (*_TIME, *_LATENCY, *_API, *_CLIENT, *_BROKER, *_SIZES, *_MARK, *_RESULT, "cause", *_ID, "client_id")
)
"""Columns of `exchanges` that a line reads."""

_REMEMBERED = 1 << 14
"""Values of a column, or of several, whose text is kept."""


class _Column(NamedTuple):
    """A column of a line: `gap` blanks before it, its width, and what it says of a row, of which it reads the columns
    of `reads`."""

    heading: str
    gap: int
    width: int
    right: bool
    cell: Callable[[Row], str]
    reads: tuple[str, ...]


class Lines:
    """Formats exchanges as lines. `time`: as of --time; `relative` is seconds since the first packet (`start`, given
    before the first line). `width`: columns of the terminal, None for as many as there are to say; `cut`: what is
    longer is cut off there."""

    def __init__(
        self,
        color: bool = False,
        time: str = "relative",
        width: int | None = None,
        cut: bool = True,
    ) -> None:
        self.start: datetime.datetime | None = None
        self._color = color
        self._clock = time
        self._width = width
        self._cut = cut
        self._known: dict[str, dict[Any, Any]] = {}
        self._ends = _Ends()
        self._columns = self._every_column() if width is None else self._fitting([], width)

    def look(self, head: Sequence[Any]) -> None:
        """Choose the columns by the first exchanges; without them, by what is common."""
        self._known.clear()
        if self._width is not None:
            self._ends = _Ends.of(head)
            self._columns = self._fitting([exchange.row for exchange in head], self._width)

    # --- columns

    def _every_column(self) -> list[_Column]:
        return [
            _Column(self._time_heading(), 1, 12 if self._clock == "relative" else 15, True, self._when, _TIME),
            _Column("latency", 1, 9, True, _latency, _LATENCY),
            _Column("mostly", 1, 8, False, _mostly, (*_LATENCY, "cause")),
            _Column("api", 2, 24, False, api, _API),
            _Column("client", 1, 21, False, lambda row: _end_of(row, "client"), _CLIENT),
            _Column("broker", 1, 21, False, lambda row: _end_of(row, "broker"), _BROKER),
            _Column("request", 1, 9, True, lambda row: size(row["request_bytes"]), ("request_bytes",)),
            _Column("response", 1, 9, True, lambda row: size(row["response_bytes"]), ("response_bytes",)),
            _Column("id", 2, 6, True, _correlation, _ID),
            _Column("client id", 1, 20, False, _client_id, ("client_id",)),
        ]

    def _fitting(self, head: list[Row], width: int) -> list[_Column]:
        """The columns that leave room for the result; each as wide as the first exchanges need, within bounds."""
        if head and self.start is None:
            self.start = head[0]["request_time"] or head[0]["response_time"]

        def column(
            heading: str,
            cell: Callable[[Row], str],
            reads: tuple[str, ...],
            widths: tuple[int, int],
            right: bool = False,
        ) -> _Column:
            least, most = max(widths[0], len(heading)), widths[1]
            needed = max((len(cell(row)) for row in head), default=most)
            return _Column(heading, 1, max(least, min(needed, most)), right, cell, reads)

        several = self._ends.several_brokers and width >= _NARROW
        widest = 10 if width < _NARROW or (several and width < _ROOMY) else 16 if width < _ROOMY else 20
        always = [
            column("time", self._when, _TIME, (8, 15), True),
            column("latency", _latency, _LATENCY, (8, 8), True),
            column("api", api, _API, (12, 18 if width < _ROOMY else 24)),
            column("client id", lambda row: cut(_client_id(row), widest), ("client_id",), (9, widest)),
            *(
                [column("broker", self._ends.which_broker, _BROKER, (6, 15 if width < _ROOMY else 21))]
                if several
                else []
            ),
        ]
        sizes = [
            column("request", lambda row: size(row["request_bytes"]), ("request_bytes",), (8, 8), True),
            column("response", lambda row: size(row["response_bytes"]), ("response_bytes",), (8, 8), True),
        ]
        optional = [  # what is worth its place comes first
            [column("mostly", _mostly, (*_LATENCY, "cause"), (6, 8))] if any(map(_mostly, head)) else [],
            [column("client", self._ends.client, _CLIENT, (6, 21))],
            sizes,
            [column("id", _correlation, _ID, (5, 6), True)],
        ]
        room = width - 2 - sum(column.gap + column.width for column in always) - int(width * _RESULT_SHARE)
        chosen: list[_Column] = []
        for group in optional:
            needed = sum(column.gap + column.width for column in group)
            if needed > room:
                break
            room -= needed
            chosen += group
        return [*always, *chosen]

    def _placed(self, cells: Iterable[tuple[_Column, str]], mark: str, rest: str) -> str:
        """Cells in their columns, and the rest. Where there is a width, a cell that is too long takes from the blanks
        after it, so that the columns of most lines stand below each other."""
        line, due = mark, len(mark)
        for column, text in cells:
            due += column.gap + column.width
            start, room = line + " " * column.gap, column.width
            if self._width is not None:
                start = line + " " * max(due - column.width - len(line), min(column.gap, 1))
                room = due - len(start)
            line = start + _aligned(column, text, room)
        line = f"{line} {rest}".rstrip()
        return self._shortened(line)

    def _shortened(self, line: str) -> str:
        return cut(line, self._width) if self._width is not None and self._cut else line

    def _paint(self, code: str, line: str) -> str:
        return f"{code}{line}{_RESET}" if self._color else line

    @property
    def _zone(self) -> datetime.tzinfo | None:
        """None is this machine's own, with the offset that it had at the time."""
        return datetime.UTC if self._clock == "absolute" else None

    def _time_heading(self) -> str:
        """Name the clock that times of day are of; a local one by its offset when the capture began."""
        if self._clock == "relative":
            return "time"
        name = (self.start or datetime.datetime.now(datetime.UTC)).astimezone(self._zone).strftime("%z")
        return "time (UTC)" if name == "+0000" else f"time ({name[:3]}:{name[3:]})"

    def _when(self, row: Row) -> str:
        return self._time(row["request_time"] or row["response_time"]).strip()

    def _time(self, when: datetime.datetime | None) -> str:
        width = 12 if self._clock == "relative" else 15
        if when is None:
            return " " * width
        if self._clock != "relative":
            text = when.astimezone(self._zone).strftime("%H:%M:%S.%f")
            return text[: len(text) - 6 + self._digits()]
        if self.start is None:
            self.start = when
        return f"{(when - self.start).total_seconds():{width}.{self._digits()}f}"

    # --- forms

    def heading(self) -> str:
        """The line above exchanges."""
        return (
            self._paint(_BOLD, self._placed([(column, column.heading) for column in self._columns], " ", "result"))
            + "\n"
        )

    def exchange(self, exchange: Any) -> str:
        """One exchange."""
        row = exchange.row
        cells = [column.cell(row) for column in self._columns]
        mark = "!" if challenge_status(exchange) is not None else _mark(row)
        return self._painted(mark, self._placed(zip(self._columns, cells, strict=True), mark, self._result(exchange)))

    def _painted(self, mark: str, line: str) -> str:
        return (self._paint(_MARK_COLORS[mark], line) if mark != " " else line) + "\n"

    def block(self, block: Block) -> list[str]:
        """Return the lines of some exchanges, each as `exchange` returns it.

        A text is made once for all rows that say the same, and objects only of exchanges whose results differ."""
        rows = _Rows(block.columns)
        marks = self._texts("!", _mark, _MARK, rows)
        results, refused = self._results(block, rows)
        cells = [
            self._times(column, block.columns)
            if column.reads is _TIME
            else self._numbers(column, block.columns.numbers(_ID[0]))
            if column.reads is _ID
            else self._texts(column.heading, self._cell(column), column.reads, rows)
            for column in self._columns
        ]
        for row in refused:
            marks[row] = "!"
        if self._width is None:
            lines = [f"{''.join(row)} {result}".rstrip() for result, *row in zip(results, marks, *cells, strict=True)]
        else:
            lines = [
                self._placed(zip(self._columns, row, strict=True), mark, result)
                for mark, result, *row in zip(marks, results, *cells, strict=True)
            ]
        if self._color:
            return [self._painted(mark, line) for mark, line in zip(marks, lines, strict=True)]
        return [f"{line}\n" for line in lines]

    def _cell(self, column: _Column) -> Callable[[Row], str]:
        """The text of a column; where there is no width, as it stands in a line."""
        if self._width is not None:
            return column.cell
        return lambda row: " " * column.gap + _aligned(column, column.cell(row), column.width)

    def _times(self, column: _Column, columns: ExchangeBlock) -> list[str]:
        """The text of each row's time: hardly any two are the same."""
        sent, answered = (columns.numbers(name) for name in column.reads)
        times = np.where(sent == NULL, answered, sent).tolist()
        if self._clock == "relative" and self.start is not None:
            digits, start = self._digits(), (self.start - EPOCH) // datetime.timedelta(microseconds=1)
            texts = ["" if time == NULL else f"{(time - start) / 1_000_000:.{digits}f}" for time in times]
        else:
            texts = [self._time(None if time == NULL else moment(time)).strip() for time in times]
        return self._all_aligned(column, texts)

    def _numbers(self, column: _Column, numbers: np.ndarray) -> list[str]:
        """The text of each row's correlation id: no two of a connection are the same."""
        return self._all_aligned(column, ["" if number == NULL else str(number) for number in numbers.tolist()])

    def _all_aligned(self, column: _Column, texts: list[str]) -> list[str]:
        """The texts of a column to the right; where there is no width, as they stand in lines."""
        if self._width is not None:
            return texts
        gap, width = " " * column.gap, column.width
        return [f"{gap}{text:>{width}}" for text in texts]

    def _digits(self) -> int:
        return 3 if self._width is not None and self._width < _ROOMY else 6

    def _texts(self, name: str, text: Callable[[Row], str], reads: tuple[str, ...], rows: _Rows) -> list[str]:
        """The text of each row, of these columns of it."""
        known: dict[Any, str] = self._known.setdefault(name, {})
        combinations = rows.combinations(reads)
        texts = []
        for key in combinations.keys(reads):
            shown = known.get(key)
            if shown is None:
                shown = known[key] = text(dict(zip(reads, key, strict=True)))
            texts.append(shown)
        if len(known) > _REMEMBERED:
            known.clear()
        return combinations.spread(texts)

    def _results(self, block: Block, rows: _Rows) -> tuple[list[str], list[int]]:
        """The result of each exchange, and the rows of challenges that refuse a login."""
        known: dict[Any, tuple[str, bool]] = self._known.setdefault("result", {})
        numbers, kinds = _result_kinds(block.columns, rows)
        new = [(key, row) for key, row in kinds if key not in known]
        if new:
            exchanges = block.columns.take(np.array([row for _, row in new])).exchanges(block.make)
            for (key, _), exchange in zip(new, exchanges, strict=True):
                known[key] = self._result(exchange), challenge_status(exchange) is not None
        results = [known[key] for key, _ in kinds]
        if new:
            for key in [key for key in known if isinstance(key, int)] if len(known) <= _REMEMBERED else list(known):
                del known[key]
        texts = [result for result, _ in results]
        refused = (
            [row for row, number in enumerate(numbers) if results[number][1]] if any(r for _, r in results) else []
        )
        return [texts[number] for number in numbers], refused

    def _result(self, exchange: Any) -> str:
        """How it ended and what it was about; where room is short, topics are named once, and a broker only where it
        is not the one of the other lines."""
        if self._width is None:
            return _words(result(exchange), subject(exchange.row), detail(exchange))
        about = detail(exchange, short=True)
        elsewhere = self._ends.elsewhere(exchange.row)
        return _words(
            result(exchange), elsewhere, about, subject(exchange.row, topics=not (about and exchange.partitions))
        )

    def dialogue(self, exchange: Any) -> str:
        """One exchange of a followed connection, as what the client and the broker said. `#5` is exchange 5, as in a
        story; `id` is the correlation id, as above a list."""
        row = exchange.row
        lines = []
        number = f"#{row['exchange']}" if row["exchange"] is not None else f"reply {row['reply']}"
        if row["request_time"] is not None:
            request_text = f"{api(row)} {number} id {row['correlation_id']} {size(row['request_bytes'])}"
            lines.append(f"{self._time(row['request_time'])}  > {_words(request_text, subject(row), detail(exchange))}")
        if row["response_time"] is not None:
            line = (
                f"{self._time(row['response_time'])}    < {number} {size(row['response_bytes'])} "
                f"after {duration(waited(row))} {result(exchange)}"
            ).rstrip()
            lines.append(self._paint(_RED, self._shortened(line)) if row["error_code"] else line)
        elif row["status"] != "no_response_expected":
            lines.append(self._paint(_RED, f"{'':>12}    < {row['status']}"))
        return "\n".join(line if line.startswith("\x1b") else self._shortened(line) for line in lines) + "\n"

    def frames_heading(self) -> str:
        """The line above frames."""
        columns = self._frame_columns()
        return self._paint(_BOLD, self._placed([(column, column.heading) for column in columns], "", "message")) + "\n"

    def _frame_columns(self) -> list[_Column]:
        end = self._ends.width if self._width is not None else 21
        return [
            _Column("time", 0, 12 if self._width is None or self._width >= _ROOMY else 9, True, self._when, _TIME),
            _Column("from", 2, end, False, self._ends.client, _CLIENT),
            _Column("to", 1, end, False, self._ends.broker, _BROKER),
            _Column("bytes", 1, 9, True, lambda row: size(row["request_bytes"]), ("request_bytes",)),
            _Column("id", 2, 6, True, _correlation, _ID),
        ]

    def frames(self, exchanges: Iterable[Any], limit: int | None) -> Iterator[str]:
        """Requests and responses apart, in order of their first bytes, after a line with the names of the columns."""
        exchanges = iter(exchanges)
        head = list(itertools.islice(exchanges, LOOK_AHEAD))
        self.start = self.start or (head[0].capture_start if head else None)
        self.look(head)
        columns = self._frame_columns()
        events = Sorter(limit=limit)
        for count, exchange in enumerate(itertools.chain(head, exchanges)):
            for second, side in enumerate(("request", "response")):
                when = exchange.row[f"{side}_time"]
                if when is not None:
                    key = (rfc3339(when), count, second)
                    if events.wants(key):
                        events.put(key, self._frame(columns, exchange, side))
        heading = self.frames_heading()
        for line in events:
            yield heading + line
            heading = ""

    def _frame(self, columns: list[_Column], exchange: Any, side: str) -> str:
        row = exchange.row
        ends = self._ends.client(row), self._ends.broker(row)
        sender, receiver = ends if side == "request" else ends[::-1]
        if side == "request":
            rest = _words(api(row), "request", subject(row), detail(exchange, short=self._width is not None))
        else:
            rest = _words(api(row), "response", result(exchange))
        when = self._time(row[f"{side}_time"]).strip()
        cells = [when, sender, receiver, size(row[f"{side}_bytes"]), _correlation(row)]
        line = self._placed(zip(columns, cells, strict=True), "", rest)
        return (self._paint(_RED, line) if side == "response" and row["error_code"] else line) + "\n"

    def tree(self, exchange: Any, with_hex: bool, budget: int = BYTES, page: int = 1) -> str:
        """Both messages of an exchange, field by field: name, value, [start, end) in the message after its length. Of
        each `PAGE` nodes, those of `page`, below the fields that they lie in; a line says how many follow. `budget`:
        bytes that the records of a message may become."""
        lines: list[str] = []
        for side in ("request", "response"):
            if exchange.row[f"{side}_state"] is None:
                continue
            decoded = exchange.decoded(side, nodes=True, budget=Budget(bytes=budget, nodes=PAGE * page))
            lines.append(f"    {side}")
            if decoded is None:
                lines.append("      (not decoded)")
                continue
            message = exchange.request_message if side == "request" else exchange.response_message
            left = self._nodes(decoded.nodes, message.data[4:] if with_hex else None, page, lines)
            if left > 0:
                lines.append(f"      ({left:,} more: --page {page + 1})")
            elif left < 0:
                lines.append(f"      (nothing on page {page})")
            if decoded.reason:
                lines.append(f"      ({decoded.reason})")
            behind = (exchange.row[f"{side}_bytes"] or 0) - len(message.data)
            if behind > 0 and not message.complete:
                lines.append(f"      ({size(behind)} follow, which are not all in the capture)")
        return "\n".join(lines) + "\n" if lines else ""

    def _nodes(self, nodes: Sequence[Any], data: bytes | None, page: int, lines: list[str]) -> int:
        """The nodes of a page as lines; how many are on later pages, or -1: the last page was before this."""
        first, last = PAGE * (page - 1), PAGE * page
        seen = 0
        above: list[Any] = []  # the fields that the node lies in, and how many of them have their line
        shown = 0
        todo = [(node, 0) for node in reversed(nodes)]
        while todo:
            node, depth = todo.pop()
            del above[depth:]
            shown = min(shown, depth)
            above.append(node)
            if first <= seen < last:
                lines += [self._node(node, 3 + level, data) for level, node in enumerate(above) if level >= shown]
                shown = depth + 1
            seen += 1
            todo += [(child, depth + 1) for child in reversed(node.children)]
        return max(seen - last, 0) if seen > first or page == 1 else -1

    def _node(self, node: Any, depth: int, data: bytes | None) -> str:
        value = "null" if node.null else node_value(node)
        line = f"{'  ' * depth}{printable(node.name)}{': ' + value if value else ''}"
        span = f"[{node.start}, {node.end})"
        if data is not None and not node.children:
            span += " " + ("**" if node.secret else data[node.start : node.end][:32].hex(" "))
            span += " ..." if node.end - node.start > 32 and not node.secret else ""
        return f"{line:<56} {self._paint(_DIM, span)}"


def node_value(node: Any) -> str:
    """The value of a node of a message's tree, for people; of a secret its length."""
    if node.value is None:
        return ""
    if isinstance(node.value, str):
        return printable(node.value) or '""'
    if isinstance(node.value, bytes):
        return f"{len(node.value)} bytes"
    if node.type == "array":
        return f"{node.value} elements" if node.value != 1 else "1 element"
    if isinstance(node.value, dict):
        return "secret, " + ", ".join(f"{amount} bytes" for amount in node.value.values())
    if node.name == "errorCode" or node.name.endswith("ErrorCode"):
        return label(node.value) if isinstance(node.value, int) else str(node.value)
    return str(node.value)


class _Ends(NamedTuple):
    """How the two ends of a connection are written: an address that all the first exchanges share is left out.
    `broker_port`: where all of their brokers have the same."""

    client_ip: str | None = None
    broker_ip: str | None = None
    broker_port: int | None = None
    several_brokers: bool = False
    width: int = 21

    @classmethod
    def of(cls, head: Sequence[Any]) -> _Ends:
        clients = {exchange.row["client_ip"] for exchange in head}
        brokers = {(exchange.row["broker_ip"], exchange.row["broker_port"]) for exchange in head}
        hosts, ports = {ip for ip, _ in brokers}, {port for _, port in brokers}
        ends = cls(
            clients.pop() if len(clients) == 1 else None,
            hosts.pop() if len(hosts) == 1 else None,
            ports.pop() if len(ports) == 1 else None,
            len(brokers) > 1,
        )
        widest = max(
            (len(text) for exchange in head for text in (ends.client(exchange.row), ends.broker(exchange.row))),
            default=21,
        )
        return cls(ends.client_ip, ends.broker_ip, ends.broker_port, ends.several_brokers, min(widest, 21))

    def client(self, row: Row) -> str:
        return _end_of(row, "client", self.client_ip)

    def broker(self, row: Row) -> str:
        return _end_of(row, "broker", self.broker_ip)

    def which_broker(self, row: Row) -> str:
        """The broker among others, for a column: what tells them apart, its host or its port, is enough."""
        return (
            str(row.get("broker_name") or row["broker_ip"])
            if row["broker_port"] == self.broker_port
            else self.broker(row)
        )

    def elsewhere(self, row: Row) -> str:
        """The broker, where it has no column and is not that of the first exchanges."""
        if self.several_brokers or self.broker_port is None:
            return ""
        same = (row["broker_ip"], row["broker_port"]) == (self.broker_ip, self.broker_port)
        return "" if same else f"broker {end(row['broker_ip'], row['broker_port'])}"


def _end_of(row: Row, side: str, shared: str | None = None) -> str:
    """The client or broker: by its name where it has one (`--names`), without the address that all share."""
    ip, port = row[f"{side}_ip"], row[f"{side}_port"]
    if name := row.get(f"{side}_name"):
        return f"{name}:{port}"
    return f":{port}" if ip == shared else end(ip, port)


def cut(line: str, width: int) -> str:
    """The line in so many columns of a terminal; where something is left out it ends in `…`."""
    if len(line) <= width and line.isascii():
        return line
    used = 0
    for at, char in enumerate(line):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 0 if unicodedata.combining(char) else 1
        if used > width:
            shortened = line[:at]
            while shortened and _cells(shortened) > width - 1:
                shortened = shortened[:-1]
            return shortened + "…"
    return line


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def _words(*parts: str) -> str:
    return " ".join(filter(None, parts))


def api(row: Row) -> str:
    """Its API and version."""
    name = row["api"] or (f"API {row['api_key']}" if row["api_key"] is not None else "?")
    return name + (f" v{row['api_version']}" if row["api_version"] is not None else "")


def waited(row: Row) -> int | None:
    """How long its client waited, from the request's first byte on, us: where the request took long to be sent, that
    counts too."""
    waited_us: int | None = row["total_us"] if row.get("total_us") is not None else row["latency_us"]
    return waited_us


def _latency(row: Row) -> str:
    return duration(waited(row))


def _mostly(row: Row) -> str:
    """The largest part of a latency that matters: held on purpose, the broker's work, the network, a throttle, or a
    queue behind earlier requests of the connection."""
    return _MOSTLY.get(row["cause"], "") if (waited(row) or 0) >= MATTERS_US else ""


def _correlation(row: Row) -> str:
    return str(row["correlation_id"]) if row["correlation_id"] is not None else ""


def _client_id(row: Row) -> str:
    return printable(row["client_id"] or "")


_MARK_COLORS = {"!": _RED, "~": _YELLOW}


def _mark(row: Row) -> str:
    """How a line begins: `!` where an exchange failed, `~` where it was slow."""
    failed = bool(row["error_code"]) or row["status"] in ("unanswered", "orphan_response")
    if failed or "undecoded" in (row["request_state"], row["response_state"]):
        return "!"
    return "~" if (waited(row) or 0) - (row["hold_us"] or 0) >= SLOW_US else " "


def _aligned(column: _Column, text: str, room: int) -> str:
    return text.rjust(room) if column.right else text.ljust(room)


class _Rows:
    """Some exchanges, which are grouped by what columns of them say."""

    def __init__(self, columns: ExchangeBlock) -> None:
        self._columns = columns
        self._codes: dict[str, np.ndarray] = {}

    def codes(self, name: str) -> np.ndarray:
        """int64[n]: equal numbers for equal values of a column."""
        codes = self._codes.get(name)
        if codes is None:
            codes = self._codes[name] = arrow.codes(self._columns.rows.column(name))
        return codes

    def combinations(self, names: Sequence[str]) -> _Combinations:
        """Group the rows by columns."""
        groups = grouping.group(*map(self.codes, names))
        return _Combinations(self._columns, groups.numbers(), groups.first)


class _Combinations(NamedTuple):
    """Exchanges by what some columns say. number: of each row its combination; first: the first row of each."""

    columns: ExchangeBlock
    number: np.ndarray
    first: np.ndarray

    def keys(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each combination, of these columns."""
        first = self.first.tolist()
        return zip(*(self.columns.values(name, first) for name in names), strict=True)

    def spread(self, of_each: Sequence[Any]) -> list[Any]:
        """Of each row what its combination has."""
        if len(of_each) == 1:
            return [of_each[0]] * len(self.number)
        return [of_each[number] for number in self.number.tolist()]


def _result_kinds(columns: ExchangeBlock, rows: _Rows) -> tuple[list[int], list[tuple[Any, int]]]:
    """Of each exchange the number of its kind, and of each kind on what its results depend, and an exchange of it. For
    one that has lists, or large messages, that is its own number."""
    is_own = columns.has_partitions()
    for name in _LISTS:
        is_own |= columns.has_elements(name)
    names = [name for name in _RESULT if name not in _LISTS]
    combinations = rows.combinations(names)
    of_each = list(combinations.keys(names))
    kinds: list[tuple[Any, int]] = []
    numbers = np.zeros(len(columns), np.int64)
    if not len(columns):
        return [], kinds
    api_keys = rows.codes("api_key")
    for code in arrow.distinct(api_keys).tolist():
        some = np.flatnonzero((api_keys == code) & ~is_own)
        if not len(some):
            continue
        known: dict[Any, int] = {}
        of_some = combinations.number[some].tolist()
        requests, responses = (side.data[some].tolist() for side in columns.messages)
        of_bodies = bodies(of_each[of_some[0]][0], requests, responses)
        kinds_of_some = []
        for row, combination, of_body in zip(some.tolist(), of_some, of_bodies, strict=True):
            kind = known.get((combination, of_body)) if of_body is not None else None
            if kind is None:
                kind = len(kinds)
                known[combination, of_body] = kind
                kinds.append((row if of_body is None else (of_each[combination], of_body), row))
            kinds_of_some.append(kind)
        numbers[some] = kinds_of_some
    own = np.flatnonzero(is_own)
    numbers[own] = np.arange(len(kinds), len(kinds) + len(own))
    kinds += [(row, row) for row in own.tolist()]
    return numbers.tolist(), kinds


def end(ip: str, port: int) -> str:
    """One end of a connection."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def result(exchange: Any) -> str:
    """How an exchange ended: `outcome`, or that its answer refuses a login without an error."""
    status = challenge_status(exchange)
    return outcome(exchange.row) if status is None else f"refused: {status} (challenge)"


def outcome(row: Row) -> str:
    """How it ended: the errors by name, or the status where there was no answer."""
    parts = []
    if row["errors"]:
        parts.append(
            ", ".join(
                label(error["code"]) + (f" x{error['count']}" if error["count"] > 1 else "") for error in row["errors"]
            )
        )
    elif row["status"] == "answered":
        parts.append("ok" if row["response_state"] == "decoded" else str(row["response_state"]))
    else:
        parts.append(row["status"].replace("_", " "))
    if row["throttle_us"]:
        parts.append(f"throttled {duration(row['throttle_us'])}")
    if row["reason"]:
        parts.append(f"({printable(row['reason'])})")
    return " ".join(parts)


def subject(row: Row, topics: bool = True) -> str:
    """The subject of an exchange: topics, group, transaction."""
    parts = []
    if row["topics"] and topics:
        names = [printable(topic) for topic in row["topics"]]
        parts.append("topics " + ",".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    if row["group_id"]:
        parts.append(f"group {printable(row['group_id'])}")
    if row["transactional_id"]:
        parts.append(f"transaction {printable(row['transactional_id'])}")
    if row["acks"] is not None:
        parts.append(f"acks {row['acks']}")
    return " ".join(parts)
