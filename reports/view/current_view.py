"""The current view: of a dataset at once; of a capture being analysed, first of some exchanges, then of all.

In: views, as they become available. Out: a `CurrentView`, whose callers wait until there is one. Rule: this module
imports nothing that makes views, so that the server and the page are there before that is loaded.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kwire.captures.errors import KwireError

if TYPE_CHECKING:
    from kwire.reports.view.answers import DataView


@dataclass
class CurrentView:
    """The view that the server shows, and the progress of the next one.

    round    number of views so far
    doing    `analysis` of a capture, or `columns` of a dataset
    read     bytes, or columns, done of `size`
    failure  the error that ended it early
    ended    True once the server stops
    """

    view: DataView | None = None
    round: int = 0
    doing: str = "analysis"
    read: int = 0
    size: int = 0
    failure: KwireError | None = None
    ended: bool = False
    looked: threading.Event = field(default_factory=threading.Event)
    """Set when the first rows were sent."""
    _ready: threading.Event = field(default_factory=threading.Event)
    _settled: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        """True if no further view will follow."""
        return self._settled.is_set()

    def settled(self) -> None:
        """Wait until no further view will follow."""
        self._settled.wait()

    @classmethod
    def of(cls, view: DataView) -> CurrentView:
        """Wrap a complete view."""
        current = cls()
        current.show(view, done=True)
        return current

    def show(self, view: DataView, done: bool = False) -> None:
        """Replace the view."""
        self.view = view
        self.round += 1
        if done:
            self._settled.set()
        self._ready.set()

    def fail(self, failure: KwireError) -> None:
        """Record an error; the view so far stays."""
        self.failure = failure
        self._settled.set()
        self._ready.set()

    def first_view(self) -> DataView:
        """Wait for the first view. Raises the error if there was none."""
        self._ready.wait()
        if self.view is None:
            assert self.failure is not None
            raise self.failure
        return self.view

    def progress(self) -> dict[str, Any]:
        """Describe the progress, for the page."""
        view = self.view
        failure = None if self.failure is None else {"message": self.failure.message, "hint": self.failure.hint}
        return {
            "round": self.round,
            "done": self.done,
            "doing": self.doing,
            "read": self.read,
            "size": self.size,
            "error": failure,
            "exchanges": 0 if view is None else view.tables.columns.n,
        }
