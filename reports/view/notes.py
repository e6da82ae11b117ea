"""Marks, notes and colour rules that a user adds, stored outside the dataset.

In: a file, and what the page sends. Out: validated `Notes`. Rules: datasets and captures are not changed; the file is
private to the user, replaced atomically, and bounded; unknown content is refused, not dropped.
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

from kwire.reports.view.tables import BadRequestError, parse_key

MOST_BYTES: Final = 1 << 20
MOST_MARKS: Final = 10_000
MOST_RULES: Final = 8
"""Colours that can be told apart."""


@dataclass
class Notes:
    """Marks and colour rules.

    path   file that stores them; None: they are not stored
    marks  notes, possibly empty, by an exchange's identity
    rules  filters; the first one that chooses an exchange colours it
    """

    path: Path | None = None
    marks: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def read(cls, path: Path | None) -> Notes:
        """Read a file, if it exists. Raises BadRequestError if its content is invalid."""
        notes = cls(path)
        if path is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with path.open("rb") as file:
                    content = file.read(MOST_BYTES + 1)
                try:
                    notes._take(content)
                except BadRequestError as wrong:
                    raise BadRequestError(
                        f"{path}: {wrong.message}", "move the file away to start without notes"
                    ) from None
        return notes

    def content(self) -> dict[str, Any]:
        """Get the notes as the page and the file have them."""
        return {"marks": self.marks, "rules": self.rules}

    def store(self, content: bytes) -> None:
        """Take the page's notes, and store them. Raises BadRequestError."""
        with self._lock:
            self._take(content)
            if self.path is None:
                return
            beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(json.dumps(self.content(), indent=1).encode())
                beside.replace(self.path)
            except OSError as failure:
                with contextlib.suppress(OSError):
                    beside.unlink()
                message = f"{self.path}: notes cannot be stored: {failure.strerror}"
                raise BadRequestError(message, "they are lost when kwire view ends") from None

    def _take(self, content: bytes) -> None:
        if len(content) > MOST_BYTES:
            raise BadRequestError(f"notes: more than {MOST_BYTES:,} bytes", "shorten them")
        try:
            notes = json.loads(content)
            marks, rules = notes["marks"], notes["rules"]
            right = isinstance(marks, dict) and all(isinstance(text, str) for text in marks.values())
            right = right and isinstance(rules, list) and all(isinstance(rule, str) for rule in rules)
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right or set(notes) != {"marks", "rules"}:
            raise BadRequestError("notes: not marks and rules", 'they are {"marks": {key: note}, "rules": [filter]}')
        if len(marks) > MOST_MARKS or len(rules) > MOST_RULES:
            raise BadRequestError(f"notes: more than {MOST_MARKS:,} marks or {MOST_RULES} rules", "remove some")
        for key in marks:
            parse_key(key)
        self.marks, self.rules = dict(marks), list(rules)
