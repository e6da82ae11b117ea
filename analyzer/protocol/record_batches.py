"""Facts about record batches of magic 2 (KIP-98) that more than one room needs."""

from __future__ import annotations

from typing import Final

HEADER_V2: Final = 61
"""Bytes of a batch's header."""

HEADER_ALONE: Final = 0x82
"""What stands in place of the magic, 2, in the header of a batch of which nothing else was captured."""
