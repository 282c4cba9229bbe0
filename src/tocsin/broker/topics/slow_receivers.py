"""Slow receivers of volatile topics that rate messages: they skip what is of least use to them.

A receiver becomes slow when its connection is full, if its feedback permits skipping (`wire.Feedback.may_skip`). Until
it has caught up, its messages wait in a `UsefulQueue` of bounded size: first those past the tolerated delay leave it,
then those of the publishers that this receiver rates lowest. Each message that leaves unsent is part of a gap.

The queue is fed from the recent messages of the topic when the connection drains, and ten times a second, so that a
flush does no work for slow receivers. All other receivers are served from the recent messages alone (`delivery`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import Connection, HostedTopic, ReceiverRatings, TopicsState
from tocsin.broker.topics.useful_queue import QueuedMessage, UsefulQueue
from tocsin.model.flow import is_mark
from tocsin.wire import topic as wire

UNRATED = 0.5
"""The utility of a publisher that the receiver has not rated, as in congestion control."""
_MOST_FED = 20_000
"""Messages that one call adds to queues: about 20 ms. Beyond it, receivers wait for the next call."""
_LEAST_COST = 20
"""A call with nothing to add costs as much as so many messages."""
_AGES = 8
"""Ages are known to an eighth of the tolerated delay."""
_LATEST = 0.5
"""The weight of the latest measurement of a connection's rate."""
Piece = wire.Gap | wire.Messages


@dataclass(slots=True, eq=False)
class SlowReceiver:
    topic: HostedTopic
    ratings: ReceiverRatings
    fed: int
    """The last sequence number that was put into the queue."""
    queue: UsefulQueue = field(default_factory=UsefulQueue)
    ages: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, the last sequence number that had arrived by then), oldest first."""
    taken: tuple[float, int] | None = None
    """When the last piece was taken, and its bytes."""
    rate_per_s: float | None = None
    """Bytes that the connection takes per second; None before it has taken a piece."""


class SlowReceivers:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._slow: dict[tuple[ConnectionId, int], SlowReceiver] = {}
        """By connection and number of the topic; the one that was fed last is the last."""

    def __len__(self) -> int:
        return len(self._slow)

    def has(self, connection: ConnectionId, topic: HostedTopic) -> bool:
        return (connection, topic.at) in self._slow

    def begin(self, connection: Connection, topic: HostedTopic) -> None:
        """The connection of a receiver is full. Receivers that do not rate, and those of persistent topics, skip
        nothing. Nor does a receiver that gets older messages than this broker keeps."""
        position = topic.lagging[connection.id]
        key = (connection.id, topic.at)
        is_recent = position >= min(topic.sequence - len(topic.recent), topic.sent)
        ratings = connection.ratings.get(topic.at)
        if topic.log is None and ratings is not None and is_recent and key not in self._slow:
            self._slow[key] = SlowReceiver(topic, ratings, position)

    def end(self, connection: ConnectionId, topic: HostedTopic) -> None:
        """The receiver has caught up, or is gone."""
        if self._slow:
            self._slow.pop((connection, topic.at), None)

    def tick(self) -> None:
        """Feed the queues, so that messages which the topics forget are kept if they are useful."""
        budget = _MOST_FED
        for key in list(self._slow):
            if budget <= 0:
                break
            slow = self._slow[key] = self._slow.pop(key)
            budget -= _LEAST_COST + self._feed(slow, budget)

    def take(self, connection: Connection, topic: HostedTopic) -> tuple[list[Piece], int]:
        """The next messages for the receiver, with the gaps between them; and its position behind them."""
        slow = self._slow[connection.id, topic.at]
        self._measure(slow)
        self._feed(slow, _MOST_FED)
        position = topic.lagging[connection.id]
        messages = slow.queue.take(self._state.piece_bytes)
        slow.taken = (self._state.now_s, sum(message.size_bytes for message in messages))
        last = messages[-1].sequence if messages else position
        pieces = list(_pieces(topic.at, position, messages))
        if not len(slow.queue) and last < slow.fed:  # the rest of what was fed was skipped
            pieces.append(wire.Gap(topic.at, topic.epoch_at(slow.fed)[0], last + 1, slow.fed))
            last = slow.fed
        return pieces, last

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _feed(self, slow: SlowReceiver, most: int) -> int:
        """Put the messages that have arrived since the last call into the queue; returns their number."""
        topic, queue, ratings = slow.topic, slow.queue, slow.ratings
        unsent = len(topic.unsent)
        kept = min(topic.sent - slow.fed, len(topic.recent) - unsent)
        entries = list(islice(reversed(topic.recent), unsent, unsent + max(0, kept)))
        slow.fed = topic.sent - len(entries)
        for entry in islice(reversed(entries), most):
            slow.fed += 1
            if topic.marked and is_mark(entry[0]):
                continue  # the receiver gets a gap here
            message = QueuedMessage(slow.fed, topic.epoch_at(slow.fed)[0], entry)
            queue.put(message, ratings.utilities.get(entry[0], UNRATED))
        if ratings.tolerates_s is not None:
            queue.expire(self._expired(slow, ratings.tolerates_s))
        queue.shrink(self._room_bytes(slow, ratings.tolerates_s))
        return min(len(entries), most)

    def _expired(self, slow: SlowReceiver, tolerates_s: float) -> int:
        """The last sequence number whose message is older than the tolerated delay. Ages count from the arrival at this
        broker."""
        now_s, ages, expired = self._state.now_s, slow.ages, 0
        if not ages or now_s - ages[-1][0] >= tolerates_s / _AGES:
            ages.append((now_s, slow.topic.sent))
        while ages and now_s - ages[0][0] >= tolerates_s:
            _, expired = ages.popleft()
        return expired

    def _room_bytes(self, slow: SlowReceiver, tolerates_s: float | None) -> float:
        """What one queue may hold. All together hold no more than the recent messages of the broker do; and more than
        the connection takes within the tolerated delay would expire, whatever its utility."""
        limits = self._state.limits
        room_bytes = min(limits.topic_queue_bytes, limits.topic_recent_bytes / len(self._slow))
        if tolerates_s is not None and slow.rate_per_s is not None:
            room_bytes = min(room_bytes, slow.rate_per_s * tolerates_s)
        return room_bytes

    def _measure(self, slow: SlowReceiver) -> None:
        """The connection has taken the last piece."""
        now_s = self._state.now_s
        if slow.taken is not None and now_s > slow.taken[0] and slow.taken[1]:
            rate_per_s = slow.taken[1] / (now_s - slow.taken[0])
            before = rate_per_s if slow.rate_per_s is None else slow.rate_per_s
            slow.rate_per_s = _LATEST * rate_per_s + (1.0 - _LATEST) * before


def _pieces(at: int, position: int, messages: list[QueuedMessage]) -> Iterator[Piece]:
    """Messages with consecutive sequence numbers share a frame; a gap of the next message's epoch covers the others."""
    start = 0
    for end, message in enumerate(messages, 1):
        following = messages[end] if end < len(messages) else None
        if following is None or (following.sequence, following.epoch) != (message.sequence + 1, message.epoch):
            first = messages[start]
            if first.sequence > position + 1:
                yield wire.Gap(at, first.epoch, position + 1, first.sequence - 1)
            yield wire.Messages(at, first.epoch, first.sequence, [queued.entry for queued in messages[start:end]])
            position, start = message.sequence, end
