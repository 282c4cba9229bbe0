"""How a receiver rates the messages of publishers: by keywords or by a function of the application [ePEER §5.3.3].

Pure. The session sends the averages of a second to the broker that serves the topic (equation 1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import msgspec

from tocsin.client.topic_events import Item, TopicMessage
from tocsin.model.feedback import by_keywords, rated
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import TopicEntry
from tocsin.wire.topic_envelope import MARK, unwrapped

Utility = Callable[[TopicMessage], float | None]
"""An application's rating of a message in [0, 1]; None: no rating."""
_MOST_PUBLISHERS = 1_000
_SECOND_S = 1.0


class _Keywords(msgspec.Struct):
    keywords: list[str]


_decoder = msgspec.json.Decoder(_Keywords)


def keyword_utility(interests: Collection[str]) -> Utility:
    """Equation 8, for messages that are JSON objects with a list `keywords`. Other messages get no rating."""
    wanted = frozenset(interests)

    def utility(message: TopicMessage) -> float | None:
        try:
            return by_keywords(wanted, _decoder.decode(message.data).keywords)
        except msgspec.DecodeError:
            return None

    return utility


class Rater:
    def __init__(self, utility: Utility | Collection[str]) -> None:
        """`utility`: a function, or keywords that the application is interested in."""
        self._utility = utility if callable(utility) else keyword_utility(utility)
        self._sums: dict[TopicName, dict[int, tuple[float, int]]] = {}
        self._taken_s = float("-inf")
        self._tolerated: dict[TopicName, float | None] = {}
        """Volatile topics: messages that a slow receiver may skip, and the delay after which it does."""

    def learn(self, entry: TopicEntry) -> None:
        """The directory has named a topic."""
        if entry.persistent:
            self._tolerated.pop(entry.topic, None)
        else:
            self._tolerated[entry.topic] = entry.within_s if entry.delay_s is None else entry.delay_s

    def rate(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, TopicMessage) and item.publisher > 0:
                if item.data.startswith(MARK):
                    data, properties = unwrapped(item.data)
                    item = replace(item, data=data, properties=properties)
                self._count(item)

    def _count(self, message: TopicMessage) -> None:
        try:
            value = self._utility(message)
        except Exception:  # an error of the application must not end the connection that delivers its messages
            return
        publishers = self._sums.setdefault(message.topic, {})
        if value is None or (message.publisher not in publishers and len(publishers) >= _MOST_PUBLISHERS):
            return
        total, count = publishers.get(message.publisher, (0.0, 0))
        publishers[message.publisher] = (total + rated(lambda _: value, message), count + 1)

    def feedback(self, topic: TopicName, at: int, ratings: dict[int, float]) -> wire.Feedback:
        return wire.Feedback(at, ratings, topic in self._tolerated, self._tolerated.get(topic))

    def take(self, now_s: float) -> dict[TopicName, dict[int, float]]:
        """Once a second: the average rating of each publisher since the last call."""
        if now_s - self._taken_s < _SECOND_S:
            return {}
        self._taken_s = now_s
        sums, self._sums = self._sums, {}
        return {
            topic: {publisher: total / count for publisher, (total, count) in publishers.items()}
            for topic, publishers in sums.items()
            if publishers
        }
