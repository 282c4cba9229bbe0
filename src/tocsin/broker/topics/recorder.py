"""The records of one topic that its home records into a dataset: what waits, what is sent, what was missed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tocsin.model.flow import is_mark
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.topic_link import RecordPlan

Waiting = tuple[int, int, bytes]
"""(epoch, sequence number, message)."""


@dataclass(slots=True)
class RecordingFigures:
    """For metrics, over all topics since the start of the process."""

    recorded: int = 0
    """Messages that the data cluster has stored."""
    refused: int = 0
    """Messages, and records of messages with several, that do not fit the dataset."""
    missed: int = 0
    """Messages that were not recorded: the data cluster was away for too long."""
    breaks: int = 0
    """Volatile topics whose former home failed: an unknown number of its last messages is not recorded."""
    failures: int = 0
    """Requests that failed and were repeated."""


@dataclass(frozen=True, slots=True)
class Batch:
    messages: tuple[Waiting, ...]
    after: int | None = None
    upto: int | None = None
    """Persistent topics: the cursor in front of the messages and behind them."""

    def first_half(self) -> Batch:
        half = self.messages[: len(self.messages) // 2]
        return Batch(half, self.after, None if self.upto is None else half[-1][1])

    def without_messages(self) -> Batch:
        """Moves the cursor only."""
        return Batch((), self.after, self.upto)


@dataclass(slots=True, eq=False)
class Recorder:
    """Of one topic, in one epoch of this broker as its home."""

    number: int
    topic: TopicName
    plan: RecordPlan
    created: int | None
    """Of a persistent topic: the name of its log. None for a volatile topic."""
    most_bytes: int
    """What may wait of a volatile topic."""
    figures: RecordingFigures
    queue: deque[Waiting] = field(default_factory=deque)
    """Volatile topics: accepted and not in a batch yet. Persistent topics are read from their log."""
    queue_bytes: int = 0
    batch: Batch | None = None
    """Sent without an answer yet, or to be sent again."""
    busy: bool = False
    """A request or a read of the log is in progress."""
    due_s: float = 0.0
    """When the next request may be sent."""
    failures: int = 0
    """In a row."""
    cursor: int | None = None
    """Persistent topics: the last sequence number that the data cluster has; None if this home does not know it."""
    until_s: float | None = None
    """Another broker is the home: send what waits here until this time, then give up."""

    @property
    def is_persistent(self) -> bool:
        return self.created is not None

    def take(self, epoch: int, first: int, entries: list[wire.Entry]) -> None:
        """These messages were delivered. A persistent topic has them in its log."""
        if self.is_persistent:
            return
        for sequence, entry in enumerate(entries, first):
            if is_mark(entry[0]):
                continue
            self.queue.append((epoch, sequence, entry[2]))
            self.queue_bytes += len(entry[2])
        while self.queue_bytes > self.most_bytes and self.queue:
            self.queue_bytes -= len(self.queue.popleft()[2])
            self.figures.missed += 1

    def next_batch(self, size_bytes: int | None) -> Batch:
        """Take messages of about this size from the queue, at least one; all of them for None."""
        taken: list[Waiting] = []
        taken_bytes = 0
        while self.queue and (size_bytes is None or taken_bytes < size_bytes):
            taken.append(self.queue.popleft())
            taken_bytes += len(taken[-1][2])
        self.queue_bytes -= taken_bytes
        return Batch(tuple(taken))

    def return_to_queue(self, messages: tuple[Waiting, ...]) -> None:
        self.queue.extendleft(reversed(messages))
        self.queue_bytes += sum(len(data) for _, _, data in messages)

    def give_up(self) -> None:
        """Count what is still here as missed."""
        waiting = len(self.queue) + (0 if self.batch is None else len(self.batch.messages))
        self.figures.missed += 0 if self.is_persistent else waiting
        self.queue.clear()
        self.queue_bytes, self.batch = 0, None
