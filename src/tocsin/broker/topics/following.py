"""A follower's side of persistent topics: fences of the coordinator, and the messages of homes [decision 16].

A follower that has answered a fence, or begun to follow a home, refuses every home of an earlier epoch. It answers
`stored` only for what is on its disk.
"""

from __future__ import annotations

from functools import partial

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.hosted import TopicsState
from tocsin.broker.topics.local_logs import LocalLog, LocalLogs
from tocsin.wire import topic_link
from tocsin.wire.topic_log import (
    Append,
    Began,
    Begin,
    FromFollower,
    HandOver,
    Install,
    NotStored,
    Stored,
    common_point,
    cut_epochs,
)

_LATER = "this broker follows a later epoch of the topic"


class Following:
    def __init__(self, state: TopicsState, logs: LocalLogs) -> None:
        self._state = state
        self._logs = logs
        self._fences: dict[tuple[str, int], topic_link.FenceTopic] = {}
        """(topic, epoch) → a fence whose promise is not on disk yet."""

    # -- the coordinator's fence ---------------------------------------------------------------------------------------

    def fence(self, message: topic_link.FenceTopic) -> None:
        self._logs.open(message.topic, message.created, partial(self._fence, message), lambda reason: None)

    def _fence(self, message: topic_link.FenceTopic, _opened: events.LogOpened) -> None:
        log = self._logs.logs[message.topic]
        if message.epoch < log.promised or (message.topic, message.epoch) in self._fences:
            return
        log.promised = message.epoch
        self._fences[message.topic, message.epoch] = message
        self._state.effects.append(effects.AdoptEpoch(log.topic, log.created, message.epoch, None))

    # -- messages of homes ---------------------------------------------------------------------------------------------

    def receive(self, event: events.HomeMessageReceived) -> None:
        message, stream = event.message, event.stream
        assert not isinstance(message, HandOver), "volatile topics have no followers"
        if isinstance(message, Begin) and self._logs.named.get(message.topic) != message.created:
            self._refuse(stream, message, "the coordinator has not named this broker as a replica of the topic")
            return
        if isinstance(message, Begin):
            opened = partial(self._begin, stream, message)
            log = self._logs.open(message.topic, message.created, opened, partial(self._refuse, stream, message))
            if log is None:
                self._refuse(stream, message, "the topic was deleted")
            return
        log = self._logs.logs.get(message.topic)
        if log is None or not log.ready or log.home != stream or log.promised != message.epoch:
            self._refuse(stream, message, _LATER if log is not None else "this broker does not follow the topic")
        elif isinstance(message, Install):
            log.epochs, log.start = message.snapshot.epochs, message.snapshot.first
            log.written = message.snapshot.first - 1
            reset = effects.ResetLog(log.topic, log.created, message.epoch, message.snapshot)
            self._state.effects.append(reset)
        else:
            self._append(log, stream, message)

    def _begin(self, stream: events.StreamId, message: Begin, _opened: events.LogOpened) -> None:
        log = self._logs.logs[message.topic]
        if message.epoch < log.promised:
            self._refuse(stream, message, _LATER)
            return
        log.promised, log.home = message.epoch, stream
        epoch, end = common_point(log.epochs, log.written, message.epochs, message.end)
        if end < max(message.start, log.start) - 1:
            self._answer(stream, Began(message.topic, message.epoch, None))
            return
        log.epochs, log.written = cut_epochs(log.epochs, epoch), end
        self._state.effects.append(effects.AdoptEpoch(log.topic, log.created, message.epoch, (epoch, end)))

    def _append(self, log: LocalLog, stream: events.StreamId, message: Append) -> None:
        if message.piece.first != log.written + 1 or message.piece.epoch < log.last_epoch:
            self._refuse(stream, message, f"the follower's log ends at {log.written}")
            return
        self._logs.append(log, message.piece)
        if message.start > log.start:
            self._state.effects.append(effects.TrimLog(log.topic, log.created, before=message.start))

    # -- the log -------------------------------------------------------------------------------------------------------

    def on_adopted(self, event: events.LogAdopted) -> None:
        log = self._logs.find(event.topic, event.created)
        fence = self._fences.pop((event.topic, event.epoch), None)
        if log is None or log.promised != event.epoch:
            return
        if fence is not None:
            self._state.report(topic_link.TopicFenced(log.topic, event.epoch, *log.stored))
        else:
            log.stored = (log.last_epoch, event.end)
            if log.home is not None:
                self._answer(log.home, Began(log.topic, event.epoch, event.end, log.last_epoch))

    def on_stored(self, log: LocalLog) -> None:
        if log.home is not None:
            self._answer(log.home, Stored(log.topic, log.promised, *log.stored))

    def on_failed(self, log: LocalLog, message: str) -> None:
        self._fences = {key: fence for key, fence in self._fences.items() if key[0] != log.topic}
        if log.home is not None:
            self._answer(log.home, NotStored(log.topic, log.promised, message))
            log.home = None

    def _refuse(self, stream: events.StreamId, message: Begin | Install | Append, reason: str) -> None:
        self._answer(stream, NotStored(message.topic, message.epoch, reason))

    def _answer(self, stream: events.StreamId, message: FromFollower) -> None:
        self._state.effects.append(effects.AnswerHome(stream, message))
