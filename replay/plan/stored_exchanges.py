"""Reads a dataset with messages (`kwire analyze --keep-bytes`), exchange by exchange, like a capture.

In: a dataset's tables. Out: `CapturedExchange`s, in order of the table `exchanges`, which is nearly that of time; or
`Session`s. Rules: both tables are read side by side, and a message is held until its exchange comes, so what is held
is what was open at that moment of the capture; secrets in messages are overwritten, so what holds one cannot be sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kwire.replay.plan.sessions import CapturedExchange, Session, gathered

if TYPE_CHECKING:
    import pyarrow.dataset

    from kwire.analyzer.dataset.dataset import StoredDataset

_ROWS: Final = 4_096
_MESSAGES: Final = 256
"""Rows that become Python objects together."""

_MessageKey = tuple[str, str, str, int]
"""Capture, connection, direction and ordinal of a message."""


def read_exchanges(path: str | os.PathLike[str]) -> Iterator[CapturedExchange]:
    """Read the exchanges of a dataset. Raises DatasetError."""
    from kwire.analyzer.dataset.dataset import DatasetError, open_dataset, readable

    stored = open_dataset(path)
    with readable(path, "a table"):
        messages = _Messages(stored.messages)
        users = _users(stored)
        for row in _rows(stored.exchanges, _ROWS):  # as dicts: a damaged string is met here, not by who looks at it
            if row["exchange"] is not None and row["request_time"] is None:
                raise DatasetError(f"{path}: has an exchange without its time", "analyse the capture again")
            connection = row["capture"], row["connection"]
            yield CapturedExchange(
                row,
                messages.take((*connection, "request", row["exchange"])),
                messages.take((*connection, "response", row["reply"])),
                users.get((row["capture"], row["client_ip"], row["client_id"])),
            )
        if not messages.whole:
            raise DatasetError(f"{path}: has no messages to send", "kwire analyze --keep-bytes keeps them")


def from_dataset(path: str | os.PathLike[str]) -> list[Session]:
    """Read all sessions of a dataset. Raises DatasetError."""
    return gathered(read_exchanges(path), topic_ids(path))


def topic_ids(path: str | os.PathLike[str]) -> dict[str, str]:
    """Names of topic ids, also from messages that the dataset does not have. Raises DatasetError."""
    from kwire.analyzer.dataset.dataset import open_dataset, readable

    stored = open_dataset(path)
    with readable(path, "a table"):
        return {row["topic_id"]: row["topic"] for row in stored.topic_ids.to_table().to_pylist()}


class _Messages:
    """Messages by their key, read as far as needed; `whole`: how many were there with all their bytes."""

    def __init__(self, table: pyarrow.dataset.Dataset) -> None:
        self.whole = 0
        self._rows = _rows(
            table, _MESSAGES, ("capture", "connection", "direction", "exchange", "reply", "complete", "bytes")
        )
        self._held: dict[_MessageKey, bytes | None] = {}
        self._last: dict[tuple[str, str, str], int] = {}

    def take(self, message: tuple[str, str, str, int | None]) -> bytes | None:
        """Take a message's bytes without their length; None if they are missing or incomplete."""
        *_, ordinal = message
        if ordinal is None:
            return None
        key, wanted = message[:3], (*message[:3], ordinal)
        # Messages of one direction come in order; of a filtered dataset in that of their exchanges. So behind a later
        # one it comes soon, or not at all.
        ahead = 0
        while wanted not in self._held and (self._last.get(key, -1) < ordinal or ahead < _MESSAGES):
            row = next(self._rows, None)
            if row is None:
                return None
            self._hold(row)
            ahead += 1
        return self._held.pop(wanted, None)

    def _hold(self, row: dict[str, Any]) -> None:
        key = row["capture"], row["connection"], row["direction"]
        ordinal = row["exchange"] if row["direction"] == "request" else row["reply"]
        whole = row["complete"] and row["bytes"] is not None
        self.whole += whole
        self._held[(*key, ordinal)] = row["bytes"][4:] if whole else None
        self._last[key] = max(ordinal, self._last.get(key, -1))


def _rows(table: pyarrow.dataset.Dataset, often: int, columns: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """Give a table's rows in order, few at a time: a single message may be as large as the capture."""
    scanner = table.scanner(
        columns=list(columns) if columns is not None else None,
        batch_size=often,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
    )
    for batch in scanner.to_batches():
        yield from batch.to_pylist()


def _users(stored: StoredDataset) -> dict[tuple[str, str, str], str]:
    """The user that logged in, by capture, address and client id."""
    rows = _rows(stored.clients, _ROWS, ("capture", "client_ip", "client_id", "principal"))
    return {
        (row["capture"], row["client_ip"], row["client_id"]): row["principal"]
        for row in rows
        if row["principal"] is not None
    }
