"""The logs on this broker's disk, as the core knows them: opened when they are first needed, dropped on order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.hosted import TopicsState
from tocsin.model.ids import TopicName
from tocsin.wire.topic_log import Epochs, Piece, with_epoch

OnOpened = Callable[[events.LogOpened], None]
OnFailed = Callable[[str], None]


@dataclass(slots=True, eq=False)
class LocalLog:
    topic: TopicName
    created: int
    ready: bool = False
    promised: int = 0
    """The latest epoch that this broker has promised to follow, or has been home in."""
    epochs: Epochs = field(default_factory=list)
    start: int = 1
    """The oldest sequence number in the log."""
    written: int = 0
    """The last sequence number that was handed to the driver."""
    stored: tuple[int, int] = (0, 0)
    """(last epoch, last sequence number) on disk."""
    home: events.StreamId | None = None
    """The home that this broker follows."""
    waiting: list[tuple[OnOpened, OnFailed]] = field(default_factory=list)

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0


class LocalLogs:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self.logs: dict[TopicName, LocalLog] = {}
        self.named: dict[TopicName, int] = {}
        """Topic → created, of the logs that the coordinator wants here. Others are not followed: a home that has not
        heard of the end of a move must not restore a log that was dropped."""

    def find(self, topic: TopicName, created: int) -> LocalLog | None:
        log = self.logs.get(topic)
        return log if log is not None and log.created == created else None

    def open(self, topic: TopicName, created: int, opened: OnOpened, failed: OnFailed) -> LocalLog | None:
        """Open the log and call `opened` with its content, or `failed`. None if a later topic has this name."""
        log = self.logs.get(topic)
        if log is not None and log.created > created:
            return None
        if log is not None and log.created < created:
            self.drop(topic, log.created)
            log = None
        if log is None:
            log = self.logs[topic] = LocalLog(topic, created)
        log.waiting.append((opened, failed))
        self._state.effects.append(effects.OpenLog(topic, created))
        return log

    def append(self, log: LocalLog, piece: Piece) -> None:
        log.epochs = with_epoch(log.epochs, piece)
        log.written = piece.last
        self._state.effects.append(effects.AppendToLog(log.topic, log.created, piece))

    def drop(self, topic: TopicName, created: int) -> None:
        if self.named.get(topic) == created:
            del self.named[topic]
        if self.find(topic, created) is not None:
            del self.logs[topic]
        self._state.effects.append(effects.DropLog(topic, created))

    # -- events --------------------------------------------------------------------------------------------------------

    def on_opened(self, event: events.LogOpened) -> None:
        log = self.find(event.topic, event.created)
        if log is None:
            return
        if not log.ready:
            log.ready = True
            log.promised = max(log.promised, event.promised)
            log.epochs, log.start, log.written = event.epochs, event.start, event.end
            log.stored = (log.last_epoch, event.end)
        waiting, log.waiting = log.waiting, []
        for opened, _ in waiting:
            opened(event)

    def on_stored(self, event: events.LogStored) -> LocalLog | None:
        log = self.find(event.topic, event.created)
        if log is not None:
            log.stored, log.start = (event.log_epoch, event.end), event.start
        return log

    def on_failed(self, event: events.LogFailed) -> LocalLog | None:
        """Forget the log's content: the next use opens it again. Its promise holds."""
        log = self.find(event.topic, event.created)
        if log is None:
            return None
        log.ready, log.epochs, log.written, log.stored = False, [], 0, (0, 0)
        waiting, log.waiting = log.waiting, []
        for _, failed in waiting:
            failed(event.message)
        return log
