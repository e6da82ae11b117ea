"""Error of options and arguments, for all commands."""

from __future__ import annotations

from kwire.captures.errors import KwireError


class UsageError(KwireError):
    """An option or argument that a command cannot use."""
