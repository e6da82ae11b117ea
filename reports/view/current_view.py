"""The view as it stands: of a dataset at once; of a capture, while it is analysed, of its first exchanges, then of all.

In: views, as they come. Out: a `Stage`, which whoever asks waits for until there is one. Rule: it loads nothing that a
view is made with, so that the server is there before that is loaded, and the page comes meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from captures.errors import KwireError

if TYPE_CHECKING:
    from reports.view.answers import View


@dataclass
class Stage:
    """`round` counts the views; `doing`: what is done meanwhile, `analysis` of a capture, or `columns` of a dataset;
    `read` of `size` bytes, or columns, are done; `failure`: what ended it early."""

    view: View | None = None
    round: int = 0
    doing: str = "analysis"
    read: int = 0
    size: int = 0
    failure: KwireError | None = None
    ended: bool = False
    looked: threading.Event = field(default_factory=threading.Event)
    """Set when the first rows were handed out."""
    _ready: threading.Event = field(default_factory=threading.Event)
    _settled: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        """Nothing more is to come."""
        return self._settled.is_set()

    def settled(self) -> None:
        """Wait until nothing more is to come."""
        self._settled.wait()

    @classmethod
    def of(cls, view: View) -> Stage:
        """All is there."""
        stage = cls()
        stage.become(view, done=True)
        return stage

    def become(self, view: View, done: bool = False) -> None:
        """Another view takes its place."""
        self.view = view
        self.round += 1
        if done:
            self._settled.set()
        self._ready.set()

    def fail(self, failure: KwireError) -> None:
        """It goes no further; what is shown stays."""
        self.failure = failure
        self._settled.set()
        self._ready.set()

    def shown(self) -> View:
        """The first view, waited for. Raises what went wrong before there was one."""
        self._ready.wait()
        if self.view is None:
            assert self.failure is not None
            raise self.failure
        return self.view

    def told(self) -> dict[str, Any]:
        """How far it is, for the page."""
        view = self.view
        failure = None if self.failure is None else {"message": str(self.failure), "hint": self.failure.hint}
        return {
            "round": self.round,
            "done": self.done,
            "doing": self.doing,
            "read": self.read,
            "size": self.size,
            "error": failure,
            "exchanges": 0 if view is None else view.tables.columns.n,
        }
