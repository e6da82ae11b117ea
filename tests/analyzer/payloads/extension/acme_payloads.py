"""Acme's own format: readings of sensors, `AC`, a byte for the version, then sensor and temperature in milli-kelvin."""

import struct
from collections.abc import Mapping
from typing import Any

MAGIC, READING = b"AC\x01", struct.Struct(">HI")


class Readings:
    """The decoder, as the entry point names it."""

    format = "acme-reading"

    def recognizes(self, data: bytes, topic: str | None, side: str, headers: Mapping[str, bytes]) -> bool:
        """Say whether a key or value (`side`) is of this format: cheaply, it is asked of each."""
        return side == "value" and data.startswith(MAGIC)

    def decode(self, data: bytes, topic: str | None, side: str, headers: Mapping[str, bytes]) -> Any:
        """Return what JSON can hold. ValueError: why it cannot be decoded."""
        if len(data) != len(MAGIC) + READING.size:
            raise ValueError(f"a reading has {len(MAGIC) + READING.size} bytes, not {len(data)}")
        sensor, millikelvin = READING.unpack_from(data, len(MAGIC))
        return {"sensor": sensor, "celsius": round(millikelvin / 1000 - 273.15, 3)}
