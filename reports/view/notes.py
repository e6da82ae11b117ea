"""Marks, notes and colour rules: what somebody who looks adds, kept outside the dataset.

In: a file, and what the page sends. Out: `Notes`, checked. Rules: the dataset and the captures stay as they are; the
file is for this user alone, written in one step, bounded; what is not understood in it is refused, not dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reports.view.tables import Wrong, key_read

MOST_BYTES: Final = 1 << 20
MOST_MARKS: Final = 10_000
MOST_RULES: Final = 8
"""So many colours can be told apart."""


@dataclass
class Notes:
    """`marks`: notes (they may be empty) by identity; `rules`: filters, of which the first that chooses an exchange
    colours it. `path`: where they are kept; None: nowhere."""

    path: Path | None = None
    marks: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def kept(cls, path: Path | None) -> Notes:
        """Those of a file, if there is one. Raises Wrong where it holds something else."""
        notes = cls(path)
        if path is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with path.open("rb") as file:
                    content = file.read(MOST_BYTES + 1)
                try:
                    notes._take(content)
                except Wrong as wrong:
                    raise Wrong(f"{path}: {wrong}", "move the file away to begin without notes") from None
        return notes

    def told(self) -> dict[str, Any]:
        """As the page and the file have them."""
        return {"marks": self.marks, "rules": self.rules}

    def become(self, content: bytes) -> None:
        """Take what the page sent, and keep it. Raises Wrong."""
        with self._lock:
            self._take(content)
            if self.path is None:
                return
            beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(json.dumps(self.told(), indent=1).encode())
                beside.replace(self.path)
            except OSError as failure:
                with contextlib.suppress(OSError):
                    beside.unlink()
                said = f"{self.path}: notes cannot be kept: {failure.strerror}"
                raise Wrong(said, "they last until the end") from None

    def _take(self, content: bytes) -> None:
        if len(content) > MOST_BYTES:
            raise Wrong(f"notes: more than {MOST_BYTES:,} bytes", "shorten them")
        try:
            told = json.loads(content)
            marks, rules = told["marks"], told["rules"]
            right = isinstance(marks, dict) and all(isinstance(text, str) for text in marks.values())
            right = right and isinstance(rules, list) and all(isinstance(rule, str) for rule in rules)
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right or set(told) != {"marks", "rules"}:
            raise Wrong("notes: not marks and rules", 'they are {"marks": {key: note}, "rules": [filter]}')
        if len(marks) > MOST_MARKS or len(rules) > MOST_RULES:
            raise Wrong(f"notes: more than {MOST_MARKS:,} marks or {MOST_RULES} rules", "take some away")
        for key in marks:
            key_read(key)
        self.marks, self.rules = dict(marks), list(rules)
