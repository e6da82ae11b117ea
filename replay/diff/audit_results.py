"""Turn results of audits (table `audit` of RUNs) into differences.

In: rows of the table `audit` of one RUN or of two. Out: a difference for each partition in which records that the
target acknowledged are missing, out of order or stored otherwise than sent, with an exchange that wrote there; how many
a partition has besides; a difference for each EndTxn whose transaction readers do not see as it said; of two RUNs only
what is worse in the second. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.common.listing import listed
from kwire.analyzer.protocol import api_keys
from kwire.replay.diff.correspondence import Partition
from kwire.replay.diff.differences import DISPLACED, MISSING, OUT_OF_ORDER, Difference
from kwire.replay.diff.pairs import Pair, Pairs, RunFacts
from kwire.replay.diff.record_facts import FORMS

UNCLAIMED: Final = "more records than acknowledged"
TRANSACTION: Final = "(transaction)"
_OF_RECORDS: Final = ("acknowledged", "stored")
OF_TRANSACTIONS: Final = {
    "hidden": "of committed transactions are hidden from readers at read_committed",
    "visible": "of aborted transactions are visible to readers at read_committed",
    "left_open": "are in transactions that the target left open though it acknowledged their end",
}
"""Columns of the audit that count records which readers at read_committed do not get as EndTxn said; what they mean."""
_TRANSACTIONS: Final = {
    "hidden": ("committed records hidden", "visible"),
    "visible": ("aborted records visible", "hidden"),
    "open": ("transaction left open", "ended"),
}
"""How the records of a transaction are found to be against what its EndTxn said: the difference, and how they were."""
Where = tuple[str, int]
Exchange = tuple[str, str, int]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Audited:
    """By topic (as it was called when captured) and partition. `before`: of the first of two RUNs; None of one."""

    after: Mapping[Where, Row]
    before: Mapping[Where, Row] | None = None

    @property
    def acknowledged(self) -> int:
        return self.total("acknowledged")

    @property
    def looked_for(self) -> int:
        """Of these, those in partitions that could be read."""
        return sum(row["acknowledged"] or 0 for row in self.after.values() if row["readable"] is not None)

    @property
    def missing(self) -> int:
        return self.total("missing")

    @property
    def out_of_order(self) -> int:
        return self.total("out_of_order")

    @property
    def unread(self) -> int:
        """Partitions that could not be read."""
        return sum(row["readable"] is None for row in self.after.values())

    def total(self, column: str) -> int:
        """Of all partitions, of the (second) RUN."""
        return sum(row.get(column) or 0 for row in self.after.values())

    def unclaimed(self, where: Where) -> int | None:
        """Records of a partition that nobody was given an offset for, of two RUNs how many more in the second; None
        where nobody knows."""
        now = self.after.get(where, {}).get("unclaimed")
        then = self.before.get(where, {}).get("unclaimed") if self.before is not None else 0
        return None if now is None else max(now - (then or 0), 0)

    def transactions(self, pairs: Sequence[Pair]) -> Iterator[tuple[Difference, list[Where]]]:
        """EndTxn requests whose records readers at read_committed do not get as they said, with the partitions."""
        known = {
            (where, *_exchange_of(each), each["found"])
            for where, row in (self.before or {}).items()
            for each in row.get("transactions") or ()
        }
        wrong: dict[tuple[Exchange, str, str], dict[Where, int]] = {}
        for where, row in sorted(self.after.items()):
            for each in row.get("transactions") or ():
                if (where, *_exchange_of(each), each["found"]) not in known:
                    key = _exchange_of(each), each["found"], each["transactional_id"]
                    wrong.setdefault(key, {})[where] = each["records"]
        if not wrong:
            return
        rows = {_exchange_of(pairs[place].row): pairs[place].row for place in _places_of(pairs, api_keys.END_TXN)}
        for (exchange, how, transaction), records in sorted(wrong.items()):
            kind, before = _TRANSACTIONS[how]
            total = sum(records.values())
            topic, number = next(iter(records))
            after = f"{total} record{'s' * (total != 1)} of {listed([f'{topic}/{number}'], len(records))}"
            yield Difference(rows[exchange], TRANSACTION, kind, before, after, (transaction,)), list(records)

    def differences(self, partitions: Mapping[Where, Partition], pairs: Sequence[Pair]) -> Iterator[Difference]:
        """All of them but what partitions have too many (`unclaimed`)."""
        for where, row in sorted(self.after.items()):
            key = where[0], str(where[1])
            before = (self.before or {}).get(where, {})
            for column, kind in (("missing", MISSING), ("displaced", DISPLACED), ("out_of_order", OUT_OF_ORDER)):
                if column == "displaced" and row["missing"]:
                    continue  # told with those that are missing
                now, then = row.get(column) or 0, before.get(column) or 0
                if now <= then:
                    continue
                there = partitions.get(where)
                place = place_of(there, row["first_missing_offset"] if column == "missing" else None)
                before_text = (
                    f"{row['acknowledged']} records acknowledged" if self.before is None else f"{then} {column}"
                )
                aligned = row.get("alignment") if kind in (MISSING, DISPLACED) else None
                after = aligned or f"{now} {column}"
                yield Difference(pairs[place].row, "(records)", kind, before_text, after, key)
            yield from self._stored(row, before, partitions.get(where), pairs, key)

    def _stored(
        self, row: Row, before: Row, partition: Partition | None, pairs: Sequence[Pair], key: tuple[str, str]
    ) -> Iterator[Difference]:
        """Records that the target stores otherwise than they were sent. What consumers have read on both sides is told
        by that; what they read when captured says how it was stored then."""
        now, then = row.get("stored_as"), before.get("stored_as")
        forms = partition.forms if partition is not None else (set[int](), set[int]())
        known = {FORMS[form].text() for form in forms[0]}
        if not now or (now == then if self.before is not None else now in known or (known and forms[1])):
            return
        left = f"{then or 'as sent'}" if self.before is not None else "; ".join(sorted(known)) or "as sent"
        text = f"{row['stored_otherwise']} records: {now}"
        yield Difference(pairs[place_of(partition)].row, "(records)", "stored otherwise than sent", left, text, key)


def _exchange_of(row: Row) -> Exchange:
    return row["capture"], row["connection"], row["exchange"]


def _places_of(pairs: Sequence[Pair], api_key: int) -> Iterable[int]:
    if isinstance(pairs, Pairs):
        return pairs.places_of((api_key,))
    return (place for place, pair in enumerate(pairs) if pair.api_key == api_key)


def is_of_records(path: str, kind: str) -> bool:
    """Whether a difference, by its path and kind, is about records that the target acknowledged."""
    return path == TRANSACTION or (path == "(records)" and (kind == UNCLAIMED or kind.startswith(_OF_RECORDS)))


def place_of(partition: Partition | None, offset: int | None = None) -> int:
    """The exchange that wrote the record at an offset; without one the first that wrote there, or the first of all."""
    position = None
    for batch in partition.batches if partition is not None else ():
        if position is None or (offset is not None and batch.right <= offset < batch.right + batch.records):
            position = batch.place
    return position or 0


def of(runs: Sequence[RunFacts]) -> Audited | None:
    """Of one RUN or of two; None where one was not audited."""
    tables = [_by_place(run.audited, run.renamed) for run in runs if run.audited is not None]
    if not runs or len(tables) < len(runs):
        return None
    return Audited(tables[-1], *tables[:-1])


def _by_place(rows: Iterable[Row], renamed: Mapping[str, str]) -> dict[Where, Row]:
    return {(renamed.get(row["topic"], row["topic"]), row["partition"]): row for row in rows}
