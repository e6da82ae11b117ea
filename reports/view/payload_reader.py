"""Say how keys and values on the page are decoded, for a dataset whose own were decoded, or as options say.

In: the dataset and the options about payloads. Out: `PayloadOptions`. Rule: the packages that decode are loaded with
the first message that is looked at.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kwire.analyzer.dataset.dataset import StoredDataset, readable
from kwire.analyzer.payloads.options import PayloadOptions, is_installed

if TYPE_CHECKING:
    from kwire.analyzer.options.common import PayloadArguments


def payload_options(dataset: StoredDataset, arguments: PayloadArguments) -> PayloadOptions | None:
    """Return how keys and values are decoded: with the schemas that options name and those of the dataset; None where
    neither decodes any."""
    options = PayloadOptions.from_arguments(arguments)
    if options is None:
        decoded = any(entry.get("schema_sources") is not None for entry in dataset.captures)
        if not decoded or not is_installed():
            return None
        options = PayloadOptions()
    from kwire.analyzer.payloads.stored import stored_schema

    stored = []
    if any(entry["table"] == "schemas" for entry in dataset.manifest["files"]):
        with readable(dataset.path, "schemas"):
            rows = dataset.schemas.to_table().to_pylist()
        stored = [stored_schema(row) for row in rows]
    return dataclasses.replace(options, stored=tuple(stored))
