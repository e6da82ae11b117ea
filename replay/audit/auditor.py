"""The audit of a RUN: is what the target acknowledged there, and in order? Its result is the RUN's table `audit`.

In: a RUN, and the target that it was sent to. Out: an `Audit`, written into the RUN in place of the one before. Nothing
but the RUN says what must be there, so it can be done again, or later. Errors of the RUN leave as DatasetError, those
of the target as LinkError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.dataset import dataset, tables
from kwire.analyzer.protocol import api_keys
from kwire.replay.audit import log_reader
from kwire.replay.audit.acknowledged import acknowledged
from kwire.replay.diff import pairs
from kwire.replay.diff.audit_results import OF_TRANSACTIONS
from kwire.replay.send import link
from kwire.replay.send import target as targets
from kwire.replay.send.reach import Reach

TABLE: Final = "audit"
_IDS: Final = 3
"""Transactional ids that a line names."""
_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Audit:
    """`rows`: of the table `audit`; `unread`: why partitions could not be read; `elsewhere`: that the RUN was sent to
    another cluster, empty where it was not or nobody knows."""

    rows: Sequence[dict[str, Any]]
    unread: Sequence[str]
    elsewhere: str = ""

    def total(self, column: str) -> int:
        """Of all partitions that could be read."""
        return sum(row[column] or 0 for row in self.rows)

    @property
    def clean(self) -> bool:
        """Is all there, as far as it could be read, in order, and visible or hidden as EndTxn said?"""
        return not any(map(self.total, ("missing", "displaced", "out_of_order", *OF_TRANSACTIONS)))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        of_records = (
            "acknowledged",
            "readable",
            "missing",
            "displaced",
            "out_of_order",
            "stored_otherwise",
            "unclaimed",
        )
        columns = (*of_records, *OF_TRANSACTIONS)
        return {**{name: self.total(name) for name in columns}, "partitions": list(self.rows), "unread": self.unread}

    def text(self) -> str:
        """For a person, in a line."""
        records, missing, moved = (self.total(name) for name in ("acknowledged", "missing", "out_of_order"))
        if not records:
            return "no record was acknowledged, so there is none to look for"
        text = f"{records:,} records were acknowledged in {len(self.rows)} partitions: "
        if missing:
            worst = max(self.rows, key=lambda row: row["missing"] or 0)
            where = f"{worst['topic']}-{worst['partition']} from offset {worst['first_missing_offset']} on"
            text += f"{missing:,} are not there (most in {where})"
        elif self.total("displaced"):
            text += "all are there"
        elif self.unread:
            read = len(self.rows) - len(self.unread)
            if not read:
                return text + "none of these could be read"
            text += f"those of {read} partitions are all there"
        else:
            text += "all are there"
        displaced = self.total("displaced")
        if displaced:
            most = max(self.rows, key=lambda row: row["displaced"] or 0)
            where = f"{most['topic']}-{most['partition']}: {most['alignment']}"
            text += f", {displaced:,} at other offsets than acknowledged (most in {where})"
        text += f", {moved:,} out of order" if moved else ", in order"
        otherwise = self.total("stored_otherwise")
        if otherwise:
            most = max(self.rows, key=lambda row: row["stored_otherwise"] or 0)
            text += f"; {otherwise:,} stored otherwise than sent (most in {most['topic']}: {most['stored_as']})"
        unclaimed = self.total("unclaimed")
        if unclaimed:
            most = max(self.rows, key=lambda row: row["unclaimed"] or 0)
            where = f"{most['topic']}-{most['partition']}"
            text += f"; {unclaimed:,} more lie at offsets that no answer gave, as if stored twice (most in {where})"
        for column, what in OF_TRANSACTIONS.items():
            count = self.total(column)
            if count:
                ids = {each["transactional_id"] for row in self.rows for each in row["transactions"]}
                text += f"; {count:,} {what} (transactional id {', '.join(sorted(ids)[:_IDS])})"
        return text + (f"; {len(self.unread)} partitions could not be read" if self.unread else "")


async def audit(run: str | os.PathLike[str], host: str, port: int, dial: link.Dial, reach: Reach) -> Audit:
    """Do it, and write it into the RUN. Raises DatasetError, LinkError (ForbiddenAddressError among them)."""
    manifest = dataset.read_manifest(run)
    before, about = manifest["files"], manifest.get("replay")
    alone = isinstance(about, dict) and about.get("empty_before") is True
    partitions = acknowledged(*pairs.of_apis(run, _WRITES), alone)
    unread: list[str] = []
    elsewhere = ""
    if partitions:
        target = await targets.ask(host, port, dial, _TIMEOUT)
        try:
            reach.check(target.topology.nodes.values())
            elsewhere = _elsewhere(about, target.topology.cluster_id)
            unread = await log_reader.read(target, partitions)
        finally:
            target.close()
    result = Audit([partition.row(where) for where, partition in sorted(partitions.items())], unread, elsewhere)
    _write(run, result, before)
    return result


def _elsewhere(about: Any, here: str | None) -> str:
    """`about`: what the RUN's manifest says of its replay."""
    sent = about.get("cluster_id") if isinstance(about, dict) else None
    if not isinstance(sent, str) or here in (None, sent):
        return ""
    return f"the RUN was sent to cluster {sent}, and this is cluster {here}"


_WRITES: Final = (api_keys.PRODUCE, api_keys.DELETE_TOPICS, api_keys.DELETE_RECORDS, api_keys.END_TXN)
"""What decides which records a target must have, and show."""


def _write(run: str | os.PathLike[str], result: Audit, before: list[dict[str, Any]]) -> None:
    """`before`: the files of the RUN that was audited; another process may have replaced it."""
    with dataset.Writer(run, append=True) as writer:
        manifest = dataset.read_manifest(run)
        if manifest["files"] != before:
            raise dataset.DatasetError(f"{run}: another process has written it since", f"kwire replay --audit {run}")
        about = manifest["replay"]
        if result.rows:
            writer.write(TABLE, pa.Table.from_pylist(list(result.rows), schema=tables.schema(TABLE)))
        writer.amend((TABLE,), {"replay": {**about, "audited": True, "unread": list(result.unread)}})
