"""kwire from Python: what Kafka clients and brokers said, read from captures, and said again.

    import kwire

    dataset = kwire.analyze("orders.pcap")              # in memory; out="DATASET" writes it
    kwire.open_dataset("DATASET").exchanges             # a pyarrow dataset, not loaded
    for exchange in kwire.exchanges("orders.pcap"):
        exchange.request, exchange.response             # decoded bodies, in Kafka's JSON names
    kwire.replay("orders.pcap", to="localhost:9092", out="RUN")
    kwire.register(spark, "DATASET")                    # tables and views in your own Spark session

Rule: nothing of its own is here but names; none of the packages beneath is loaded before it is used. `analyzer`,
`captures`, `replay` and `reports` are links to the folders at the top of the repository; a wheel has the files.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`: until the command line has begun, an interrupt would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from kwire.analyzer import Dataset, Exchange, StoredDataset, __version__, analyze, exchanges, open_dataset
    from kwire.replay import replay
    from kwire.reports import register, register_source

__all__ = [
    "Dataset",
    "Exchange",
    "StoredDataset",
    "__version__",
    "analyze",
    "exchanges",
    "open_dataset",
    "register",
    "register_source",
    "replay",
]

_HOMES = {"replay": "kwire.replay", "register": "kwire.reports", "register_source": "kwire.reports"}
"""Where names are that `kwire.analyzer` does not have."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kwire' has no attribute {name!r}")
    import importlib

    home = _HOMES.get(name, "kwire.analyzer")
    module = importlib.import_module(home)
    return module if name == "replay" else getattr(module, name)  # the package `replay` can be called


def __dir__() -> list[str]:
    return sorted(__all__)
