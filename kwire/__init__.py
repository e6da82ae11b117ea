"""kwire from Python: what Kafka clients and brokers said, read from captures, and said again.

    import kwire

    dataset = kwire.analyze("orders.pcap")              # in memory; out="DATASET" writes it
    kwire.open_dataset("DATASET").exchanges             # a pyarrow dataset, not loaded
    for exchange in kwire.exchanges("orders.pcap"):
        exchange.request, exchange.response             # decoded bodies, in Kafka's JSON names
    for finding in kwire.findings("orders.pcap"):       # also of a dataset; story, sql, report as well
        print(finding.severity, finding.code, finding.text)
    kwire.sql("DATASET", "SELECT * FROM latency_by_api").to_pandas()
    kwire.compare("before.pcap", "after.pcap").changes  # what changed on the wire
    kwire.replay("orders.pcap", to="localhost:9092", out="RUN")
    kwire.register(spark, "DATASET")                    # tables and views in your own Spark session

Rule: nothing of its own is here but names; none of the packages beneath is loaded before it is used. `analyzer`,
`captures`, `replay` and `reports` are links to the folders at the top of the repository; a wheel has the files.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`: until the command line has begun, an interrupt would be a traceback
if TYPE_CHECKING:
    from kwire.analyzer import Dataset, Exchange, StoredDataset, __version__, analyze, exchanges, open_dataset
    from kwire.analyzer.common.errors import UsageError
    from kwire.analyzer.dataset.dataset import DatasetError
    from kwire.analyzer.filter.tokens import FilterError
    from kwire.analyzer.story.events import Event
    from kwire.captures.errors import CaptureError, KwireError
    from kwire.replay import replay
    from kwire.reports import register, register_source
    from kwire.reports.api import Evidence, Finding, compare, findings, report, sql, story
    from kwire.reports.compare.change import Change
    from kwire.reports.compare.comparison import Comparison
    from kwire.reports.query_errors import QueryError

__all__ = [
    "CaptureError",
    "Change",
    "Comparison",
    "Dataset",
    "DatasetError",
    "Event",
    "Evidence",
    "Exchange",
    "FilterError",
    "Finding",
    "KwireError",
    "QueryError",
    "StoredDataset",
    "UsageError",
    "__version__",
    "analyze",
    "compare",
    "exchanges",
    "findings",
    "open_dataset",
    "register",
    "register_source",
    "replay",
    "report",
    "sql",
    "story",
]

_HOMES = {
    "CaptureError": "kwire.captures.errors",
    "Change": "kwire.reports.compare.change",
    "Comparison": "kwire.reports.compare.comparison",
    "DatasetError": "kwire.analyzer.dataset.dataset",
    "Event": "kwire.analyzer.story.events",
    "Evidence": "kwire.reports.api",
    "FilterError": "kwire.analyzer.filter.tokens",
    "Finding": "kwire.reports.api",
    "KwireError": "kwire.captures.errors",
    "QueryError": "kwire.reports.query_errors",
    "UsageError": "kwire.analyzer.common.errors",
    "compare": "kwire.reports.api",
    "findings": "kwire.reports.api",
    "register": "kwire.reports",
    "register_source": "kwire.reports",
    "report": "kwire.reports.api",
    "sql": "kwire.reports.api",
    "story": "kwire.reports.api",
}
"""Where names are that `kwire.analyzer` does not have."""

if not TYPE_CHECKING:  # a name that is not there is an error for type checkers too

    def __getattr__(name):
        import importlib

        if name == "replay":  # the package, which can be called
            return importlib.import_module("kwire.replay")
        if name not in __all__:
            raise AttributeError(f"module 'kwire' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES.get(name, "kwire.analyzer")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
