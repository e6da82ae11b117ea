"""Kafka: definitions, framing, matching, decoding, tables. Importing it is light; heavy parts load when used.

dataset = kwire.analyze("orders.pcap")            # in memory; out="DATASET" writes it
dataset.exchanges.to_pandas()                     # each table is a pyarrow.Table
kwire.open_dataset("DATASET").exchanges           # a pyarrow dataset, not loaded
for exchange in kwire.exchanges("orders.pcap"):
    exchange.request, exchange.response           # decoded bodies, in Kafka's JSON names
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`: until `start` runs, an interrupt would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from kwire.analyzer.api import Exchange, analyze, exchanges
    from kwire.analyzer.common.version import __version__
    from kwire.analyzer.dataset.dataset import Dataset, StoredDataset

__all__ = ["Dataset", "Exchange", "StoredDataset", "__version__", "analyze", "exchanges", "open_dataset"]


def __getattr__(name: str) -> Any:
    if name in ("analyze", "exchanges", "Exchange"):
        from kwire.analyzer import api

        return getattr(api, name)
    if name in ("Dataset", "StoredDataset", "open_dataset"):
        from kwire.analyzer.dataset import dataset

        return getattr(dataset, name)
    if name == "__version__":
        from kwire.analyzer.common import version

        return version.__version__
    raise AttributeError(f"module 'kwire.analyzer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if TYPE_CHECKING:
    from kwire.analyzer.dataset.dataset import open_dataset
