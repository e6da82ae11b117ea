"""Decoded keys and values of an exchange's records, for filters that test their fields.

In: an exchange whose messages are at hand. Out: `DecodedFields` of each record of topics that are not Kafka's own,
decoded when a field is asked for. What cannot be decoded has no fields. Rule: what the batches of one exchange may
become is limited (`limits`); records beyond are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.payloads.decoder import PayloadDecoder
from kwire.analyzer.payloads.field_paths import DecodedFields
from kwire.analyzer.protocol.budget import Budget
from kwire.analyzer.records.record_trees import contents

BYTES, RECORDS, SECONDS = 512 << 20, 500_000, 60.0
"""Of one exchange: what its batches may become, their records (5 s of processor at most), and the time of these."""


class RecordPayloads:
    """Reads records of exchanges."""

    def __init__(self, decoder: PayloadDecoder) -> None:
        self._decoder = decoder

    def of(self, exchange: Exchange) -> Iterator[DecodedFields]:
        """Yield the fields of each record."""
        budget = Budget(bytes=BYTES, nodes=RECORDS, seconds=SECONDS)
        for topic, data in exchange.record_sets():
            for key, value, headers in contents(data, topic, budget):
                yield self._fields(key, value, topic, headers)

    def _fields(
        self, key: bytes | None, value: bytes | None, topic: str, headers: Mapping[str, bytes]
    ) -> DecodedFields:
        data = {"key": key, "value": value}
        return DecodedFields(lambda side: self._decoder.decode(data[side], topic, side, headers).json)
