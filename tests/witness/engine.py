"""kwire's own reading of a capture as the reference's `Exchange`: through the command line, as a user has it."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.shared import KWIRE
from tests.witness.reference import Exchange


def keylogs(folder: Path) -> list[Path]:
    """The TLS key log that lies beside a capture."""
    return list(folder.glob("keys.log"))


def show(folder: Path, *options: str) -> list[dict[str, Any]]:
    """The objects that `kwire show --json` prints for a capture folder (its files are one capture point)."""
    opening = [f"--keylog={path}" for path in keylogs(folder)]
    ran = subprocess.run(
        [*KWIRE, "show", str(folder), "--json", *opening, *options], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr[-2000:]}"
    return [json.loads(line) for line in ran.stdout.splitlines()]


def exchange(row: dict[str, Any]) -> Exchange:
    """One printed object as the reference would have it."""
    return Exchange(
        connection=row["connection"],
        client=(row["client_ip"], row["client_port"]),
        broker=(row["broker_ip"], row["broker_port"]),
        exchange=row["exchange"],
        reply=row["reply"],
        api_key=row["api_key"],
        api_version=row["api_version"],
        correlation_id=row["correlation_id"],
        client_id=row["client_id"],
        request=row["request"],
        response=row["response"],
        request_time=nanoseconds(row["request_time"]),
        request_end=nanoseconds(row["request_end"]),
        response_time=nanoseconds(row["response_time"]),
        response_end=nanoseconds(row["response_end"]),
        request_bytes=row["request_bytes"],
        response_bytes=row["response_bytes"],
        status=row["status"],
        problem=row["reason"] or "",
    )


def nanoseconds(text: str | None) -> int | None:
    """RFC 3339 UTC with six decimals to integer ns, without a float on the way."""
    if text is None:
        return None
    assert text.endswith("Z"), f"not UTC: {text}"
    whole, _, micro = text[:-1].partition(".")
    assert len(micro) == 6, f"not six decimals: {text}"
    return (int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1_000_000 + int(micro)) * 1000
