"""Leader epochs: what tells of a leader that was from one that is.

In: what was said of partitions, in the order in which it was said. Out: whether it had passed by then.
"""

from __future__ import annotations


class Epochs:
    """The highest leader epoch that was said of each partition: what says a lower one is of before, from a broker that
    had not heard of the move, or told late where packets are missing. Topics without an id may have been made anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}
        self._ids: dict[str, str] = {}  # of topics, by name: the last that was said

    def passed(self, topic: str | None, topic_id: str | None, partition: int, epoch: int | None) -> bool:
        """Whether a higher one was said before. A redirect of Produce names its topic; its id is what Metadata said."""
        if topic_id is None:
            topic_id = self._ids.get(topic or "")
        elif topic is not None:
            self._ids[topic] = topic_id
        if topic_id is None or epoch is None:
            return False
        highest = self._known.get((topic_id, partition), epoch)
        self._known[topic_id, partition] = max(highest, epoch)
        return epoch < highest
