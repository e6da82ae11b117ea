"""kwire from Python: what Kafka clients and brokers said, read from captures, and said again.

    import kwire

    dataset = kwire.analyze("orders.pcap")              # in memory; out="DATASET" writes it
    kwire.open_dataset("DATASET").exchanges             # a pyarrow dataset, not loaded
    for exchange in kwire.exchanges("orders.pcap"):
        exchange.request, exchange.response             # decoded bodies, in Kafka's JSON names
    kwire.replay("orders.pcap", to="localhost:9092", out="RUN")
    kwire.register(spark, "DATASET")                    # tables and views in a Spark session of one's own

Rule: nothing of its own is here, only doors to `analyzer`, `replay` and `reports`; none is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer import Dataset, Exchange, StoredDataset, __version__, analyze, exchanges, open_dataset
    from replay import replay
    from reports import register

__all__ = [
    "Dataset",
    "Exchange",
    "StoredDataset",
    "__version__",
    "analyze",
    "exchanges",
    "open_dataset",
    "register",
    "replay",
]

_HOMES = {"replay": "replay", "register": "reports"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kwire' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "analyzer")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
