"""Options about payloads, from the command line or Python to a decoder.

In: what the user gave. Out: `PayloadOptions`, which is picklable and cheap; its `decoder` imports what decodes. Raises
UsageError where packages are missing, or where the folder or the registry cannot be used.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads.limits import PayloadLimits

if TYPE_CHECKING:
    from kwire.analyzer.payloads.decoder import PayloadDecoder

_PACKAGES = ("fastavro", "google.protobuf", "orjson")


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """How keys and values are decoded.

    schemas   a folder with schemas
    registry  URL of a schema registry
    limits    what one may become
    """

    schemas: str | None = None
    registry: str | None = None
    limits: PayloadLimits = field(default_factory=PayloadLimits)

    @classmethod
    def of(cls, schemas: str | None, registry: str | None, payloads: bool) -> PayloadOptions | None:
        """Return options if any was given, else None: nothing is decoded."""
        return cls(schemas, registry) if payloads or schemas is not None or registry is not None else None

    def decoder(self) -> PayloadDecoder:
        """Make a decoder. Raises UsageError."""
        check_installed()
        from kwire.analyzer.payloads.decoder import PayloadDecoder
        from kwire.analyzer.payloads.schemas import Schemas, Source

        sources: list[Source] = []
        if self.schemas is not None:
            from kwire.analyzer.payloads.folder import SchemaFolder

            sources.append(SchemaFolder(self.schemas, self.limits))
        if self.registry is not None:
            from kwire.analyzer.payloads.registry import SchemaRegistry

            sources.append(SchemaRegistry(self.registry, self.limits))
        return PayloadDecoder(Schemas(sources, self.limits), self.limits)


def check_installed() -> None:
    """Raise UsageError where packages that decode are missing."""
    for package in _PACKAGES:
        try:
            is_installed = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise UsageError(
                f"decoding keys and values needs {package}, which is not installed", "pip install 'kwire[payloads]'"
            )
