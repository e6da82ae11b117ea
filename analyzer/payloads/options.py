"""Options about payloads, from the command line or Python to a decoder.

In: what the user gave. Out: `PayloadOptions`, which is picklable and cheap; its `decoder` imports what decodes. Raises
UsageError where packages are missing, or where the folder or the registry cannot be used.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kwire.analyzer.common.errors import UsageError
from kwire.analyzer.payloads.limits import PayloadLimits
from kwire.captures.extras import install

if TYPE_CHECKING:
    from kwire.analyzer.options.common import PayloadArguments
    from kwire.analyzer.payloads.captured import CapturedSchemas
    from kwire.analyzer.payloads.decoder import PayloadDecoder
    from kwire.analyzer.payloads.schemas import Schema
    from kwire.analyzer.payloads.trees import PayloadTrees
    from kwire.captures.files import CapturePoint

_PACKAGES = ("fastavro", "google.protobuf", "orjson")


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """How keys and values are decoded.

    schemas   a folder with schemas
    registry  URL of a schema registry
    captured  schemas from the registry traffic of the capture point
    stored    schemas of a dataset
    limits    what one may become
    """

    schemas: str | None = None
    registry: str | None = None
    captured: CapturedSchemas | None = None
    stored: tuple[Schema, ...] = ()
    limits: PayloadLimits = field(default_factory=PayloadLimits)

    @classmethod
    def from_arguments(cls, options: PayloadArguments) -> PayloadOptions | None:
        """Return the options of a command if any was given, else None."""
        return cls.of(options.schemas, options.registry, options.payloads)

    @classmethod
    def of(cls, schemas: str | None, registry: str | None, payloads: bool) -> PayloadOptions | None:
        """Return options if any was given, else None: nothing is decoded."""
        return cls(schemas, registry) if payloads or schemas is not None or registry is not None else None

    def sources(self) -> list[str]:
        """Return where schemas come from, in the order in which these are asked: as column `source` of `schemas`."""
        given = {"folder": self.schemas, "capture": self.captured, "registry": self.registry}
        return [source for source, value in given.items() if value is not None]

    def decoder(self) -> PayloadDecoder:
        """Make a decoder. Raises UsageError."""
        check_installed()
        from kwire.analyzer.payloads import extensions
        from kwire.analyzer.payloads.decoder import PayloadDecoder
        from kwire.analyzer.payloads.schemas import Schemas, SchemaSource

        sources: list[SchemaSource] = []
        if self.schemas is not None:
            from kwire.analyzer.payloads.folder import SchemaFolder

            sources.append(SchemaFolder(self.schemas, self.limits))
        if self.captured is not None:
            from kwire.analyzer.payloads.captured import CapturedSource

            sources.append(CapturedSource(self.captured))
        if self.registry is not None:
            from kwire.analyzer.payloads.registry import SchemaRegistry

            sources.append(SchemaRegistry(self.registry, self.limits))
        if self.stored:
            from kwire.analyzer.payloads.stored import StoredSource

            sources.append(StoredSource(self.stored))
        return PayloadDecoder(Schemas(sources, self.limits), self.limits, extensions.load())

    def trees(self) -> PayloadTrees:
        """Make what reads keys and values for trees. Raises UsageError."""
        decoder = self.decoder()
        from kwire.analyzer.payloads.trees import PayloadTrees

        return PayloadTrees(decoder, self.limits)


def of_point(options: PayloadOptions | None, point: CapturePoint) -> PayloadOptions | None:
    """Return options for one capture point: with the schemas of its own registry traffic, if it has any.

    Such traffic is a reason to decode even where no option asks for it: then only files are searched that need not be
    decompressed. Raises CaptureError."""
    from kwire.analyzer.payloads.captured import may_have_any, read_schemas

    if not may_have_any(point, compressed=options is not None) or not (options is not None or is_installed()):
        return options
    captured = read_schemas(point)
    if not captured.by_id:
        return options
    return dataclasses.replace(options or PayloadOptions(), captured=captured)


def check_captures(options: PayloadArguments) -> None:
    """Raise UsageError for options about payloads where only datasets are read."""
    if PayloadOptions.from_arguments(options) is not None:
        raise UsageError(
            "--schemas, --registry and --payloads go with a CAPTURE",
            "keys and values of a DATASET were decoded when it was made: kwire analyze has these options",
        )


def is_installed() -> bool:
    """Return whether the packages that decode are there."""
    return all(map(_has, _PACKAGES))


def _has(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def check_installed() -> None:
    """Raise UsageError where packages that decode are missing."""
    for package in _PACKAGES:
        if not _has(package):
            raise UsageError(f"decoding keys and values needs {package}, which is not installed", install("payloads"))
