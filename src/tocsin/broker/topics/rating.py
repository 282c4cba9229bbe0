"""Ratings of publishers by the receivers of this broker, summed for the coordinator [ePEER §5.2, equation 2].

Feedback decides which publishers a congested site silences. The receiver is the user of the connection; it rates
publishers of topics that this connection receives, and counts once a second however many connections it has.
`model.feedback` has the rules.
"""

from __future__ import annotations

from itertools import islice

from tocsin.broker.topics.hosted import Connection, HostedTopic, ReceiverRatings, TopicsState
from tocsin.model.feedback import EdgeFeedback, UtilityFeedback
from tocsin.model.ids import PublisherId, SubscriberId, TopicName, publisher_name, split_publisher
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Ratings

_SECOND_S = 1.0
_KNOWN_S = 60.0
"""For so long after its last message a publisher may be rated."""
_MOST_RATINGS = 1_000
"""Publishers in one feedback, and those whose ratings by one receiver are kept."""
_LATEST = 0.5
"""The weight of the latest rating in the mean of a receiver."""


class Rating:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self.rejected = 0
        """Feedback that was not counted since the start of the process."""
        self._edge = EdgeFeedback(serves=lambda subscriber, topic: True, publishes=self._publishes)
        self._publishers: dict[TopicName, dict[PublisherId, float]] = {}
        """Topic → its publishers and when their messages were last looked at."""
        self._looked: dict[TopicName, int] = {}
        """Topic → the last sequence number that was looked at."""
        self._taken_s = 0.0

    def on_feedback(self, connection: Connection, request: wire.Feedback) -> None:
        """Count the feedback, or reject all of it."""
        topic = self._state.by_number.get(request.at)
        is_receiver = topic is not None and (connection.id in topic.live or connection.id in topic.lagging)
        if topic is None or not is_receiver or not 0 < len(request.ratings) <= _MOST_RATINGS:
            self.rejected += 1
            return
        self._look(topic)
        averages = {publisher_name(topic.name, number): value for number, value in request.ratings.items()}
        feedback = UtilityFeedback(SubscriberId(connection.user), topic.name, averages)
        if self._edge.accept(feedback) is not None:
            self.rejected += 1
        elif request.may_skip:
            self._keep(connection.ratings.setdefault(topic.at, ReceiverRatings()), request)
        else:
            connection.ratings.pop(topic.at, None)

    def _keep(self, kept: ReceiverRatings, request: wire.Feedback) -> None:
        """The queue of this receiver drops messages by these ratings, should its connection be slow."""
        kept.tolerates_s = request.tolerates_s
        utilities = kept.utilities
        for publisher, value in request.ratings.items():
            before = utilities.pop(publisher, value)
            utilities[publisher] = _LATEST * value + (1.0 - _LATEST) * before
        for publisher in list(islice(utilities, max(0, len(utilities) - _MOST_RATINGS))):
            del utilities[publisher]

    def _publishes(self, publisher: PublisherId, topic: TopicName) -> bool:
        return publisher in self._publishers.get(topic, ())

    def _look(self, topic: HostedTopic) -> None:
        """Learn the publishers of the messages since the last look."""
        new = topic.sequence - self._looked.get(topic.name, 0)
        self._looked[topic.name] = topic.sequence
        known = self._publishers.setdefault(topic.name, {})
        for number in {entry[0] for entry in islice(reversed(topic.recent), max(0, min(new, len(topic.recent))))}:
            known[publisher_name(topic.name, number)] = self._state.now_s

    def tick(self) -> None:
        """Report the sums of each second, if there are any."""
        now_s = self._state.now_s
        if now_s - self._taken_s < _SECOND_S:
            return
        self._taken_s = now_s
        topics: dict[TopicName, list[tuple[int, float, int]]] = {}
        for name, ratings in self._edge.take().items():
            topic, number = split_publisher(name)
            topics.setdefault(topic, []).append((number, ratings.weighted, ratings.subscribers))
        if topics:
            self._state.report(Ratings(topics))
        self._forget_old_publishers()

    def _forget_old_publishers(self) -> None:
        """Forget publishers without messages for `_KNOWN_S`, and topics without known publishers: each run of a program
        is a publisher of its own, so a busy topic meets ever new ones."""
        since_s = self._state.now_s - _KNOWN_S
        for topic, known in list(self._publishers.items()):
            for publisher in [publisher for publisher, looked_s in known.items() if looked_s < since_s]:
                del known[publisher]
            if not known:
                del self._publishers[topic], self._looked[topic]
