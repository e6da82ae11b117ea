"""Kafka: definitions, framing, matching, decoding, tables. `import analyzer` is light; heavy parts load when used.

dataset = analyzer.analyze("orders.pcap")         # in memory; out="DATASET" writes it
dataset.exchanges.to_pandas()                     # each table is a pyarrow.Table
analyzer.open_dataset("DATASET").exchanges        # a pyarrow dataset, not loaded
for exchange in analyzer.exchanges("orders.pcap"):
    exchange.request, exchange.response           # decoded bodies, in Kafka's JSON names
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`: until `start` runs, an interrupt would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from analyzer.dataset import Dataset, StoredDataset
    from analyzer.reading import Exchange, analyze, exchanges

__version__ = "0.1.0"
__all__ = ["Dataset", "Exchange", "StoredDataset", "analyze", "exchanges", "open_dataset"]


def __getattr__(name: str) -> Any:
    if name in ("analyze", "exchanges", "Exchange"):
        from analyzer import reading

        return getattr(reading, name)
    if name in ("Dataset", "StoredDataset", "open_dataset"):
        from analyzer import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module 'analyzer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if TYPE_CHECKING:
    from analyzer.dataset import open_dataset
