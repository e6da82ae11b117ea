"""Options of an analysis: what of a capture point is kept, and how far it is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kwire.analyzer.analysis import control_exchanges
from kwire.analyzer.payloads.options import PayloadOptions
from kwire.analyzer.records.arrow_tables import BATCHES, FULL, NO_RECORDS, WITHOUT
from kwire.analyzer.records.batches import BatchLimits

if TYPE_CHECKING:
    from kwire.analyzer.options.analyze import AnalyzeOptions


def parsed(filter: Any) -> Any:
    """A filter expression, parsed; None stays None."""
    if filter is None or not isinstance(filter, str):
        return filter
    from kwire.analyzer.filter import evaluation as filtering

    return filtering.parse(filter)


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Options of what to keep of a capture point. Picklable: tasks of Spark get them.

    filter, connection    limit the exchanges: a parsed expression, the name of a connection
    keep_bytes            also make the table `messages`; keep_secrets: overwrite nothing in it
    records, limits       how far record batches are opened, and how large they may become
    meaning               also analyse the traffic (`tables.MEANING`)
    journeys              of it also the table `journeys`
    same_clock            of journeys, batches produced at one capture point and read at another: their clocks agree
    payloads              decode keys and values, where records are opened with their content"""

    filter: Any = None
    connection: str | None = None
    keep_bytes: bool = False
    records: str = BATCHES
    limits: BatchLimits = field(default_factory=BatchLimits)
    keep_secrets: bool = False
    meaning: bool = True
    journeys: bool = True
    payloads: PayloadOptions | None = None
    same_clock: bool = False

    @classmethod
    def of(
        cls,
        filter: Any = None,
        connection: str | None = None,
        keep_bytes: bool = False,
        records: str = BATCHES,
        decompressed_limit: int | None = None,
        decompressed_ratio: int | None = None,
        keep_secrets: bool = False,
        meaning: bool = True,
        journeys: bool = True,
        payloads: PayloadOptions | None = None,
        same_clock: bool = False,
    ) -> AnalysisOptions:
        """Make options of plain arguments: the filter as text or parsed, None for the default limits.

        Raises FilterError, and ValueError if `records` is unknown."""
        if records not in WITHOUT:
            raise ValueError(f"records={records!r}: there are {', '.join(WITHOUT)}")
        usual = BatchLimits()
        limits = BatchLimits(decompressed_limit or usual.bytes, decompressed_ratio or usual.ratio)
        selection = parsed(filter), connection, keep_bytes, records, limits, keep_secrets
        return cls(*selection, meaning, journeys, payloads, same_clock)

    @classmethod
    def from_arguments(cls, options: AnalyzeOptions) -> AnalysisOptions:
        """As `kwire analyze` was asked. Options about payloads imply that records are opened with their content."""
        payloads = PayloadOptions.of(options.schemas, options.registry, options.payloads)
        return cls.of(
            options.filter,
            None,
            options.keep_bytes,
            options.records if payloads is None else FULL,
            options.decompressed_limit,
            options.decompressed_ratio,
            options.keep_secrets,
            options.meaning,
            options.journeys,
            payloads,
            options.same_clock,
        )

    @property
    def everything(self) -> bool:
        """No exchange is left out."""
        return self.filter is None and self.connection is None

    @property
    def asks_names(self) -> bool:
        """Filters, and records of internal topics, ask for names of topic ids that other connections may say, later
        ones too."""
        return self.filter is not None or self.records == FULL

    @property
    def keep_records(self) -> bool:
        """Whether the bytes of record sets are needed on the way."""
        return self.records != NO_RECORDS

    @property
    def means(self) -> bool:
        """Whether the traffic is analysed: all of it or none."""
        return self.meaning and self.everything

    @property
    def keep(self) -> bool | frozenset[int]:
        """Raw messages that are needed on the way: all, none, or those of some APIs."""
        if self.keep_bytes or (self.filter is not None and self.filter.needs_bodies):
            return True
        return control_exchanges.APIS if self.means else False
