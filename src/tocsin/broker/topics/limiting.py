"""Limits of publishers at a home, set by the coordinator while its site is congested [ePEER §5.2.1, decision 20].

The home announces each limit to its sender, whose library discards the excess before it builds messages. A sender that
does not obey has its excess dropped here, each message with `not_accepted` and the code `limited`. The coordinator's
limits contain the guarantee of PROTECTED topics; a home knows no other rule than the limit.

The home also counts what each publisher offers, once the coordinator has asked for that. Flows of other sites count as
publishers, but never get a limit: their messages were accepted elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tocsin.broker.topics.hosted import Connection, HostedTopic, TopicsState
from tocsin.broker.topics.publisher_shares import owner_of
from tocsin.model.ids import TopicName
from tocsin.model.rate_limit import RateLimit
from tocsin.wire import topic as wire
from tocsin.wire.site_link import LIMITS_S, LimitPublishers, PublisherRate, PublisherRates, ReportPublishers

_SLACK_S = 0.5
"""A home admits so many seconds' worth more at once than the sender's library: frames arrive unevenly."""
_SECOND_S = 1.0
_UNKNOWN_S = 2.0
"""The coordinator limits a new publisher in the second after its first message, if at all."""
_FRESH_S = 5.0
"""For so long the rate that a limited sender reported counts."""
_OLD_S = 86_400.0
"""The age of a publisher that was there before this home began to count."""
_MOST_GROWTH, _LEAST_CLAIM_PER_S = 2.0, 10.0
"""A sender that reports more than twice the rate that this home has measured, and more than 10/s, is not believed: the
limits of a whole site last until all that is offered fits. A sender that does offer more sends more as soon as it may,
and is believed then."""

_Publisher = tuple[TopicName, int]


@dataclass(slots=True)
class _Count:
    since_s: float
    messages: int = 0
    size_bytes: int = 0
    rate_per_s: float = 0.0
    """Of the last whole second."""
    mean_bytes: float = 0.0
    claimed_per_s: float = 0.0
    """As the sender reported; it also counts messages that its library discarded."""
    claimed_s: float = float("-inf")
    known_per_s: float = 0.0
    """The highest rate of a second since the limit began, or shortly before it."""

    def claimed(self, now_s: float) -> float:
        believed_per_s = max(_LEAST_CLAIM_PER_S, _MOST_GROWTH * self.known_per_s)
        return min(self.claimed_per_s, believed_per_s) if now_s - self.claimed_s <= _FRESH_S else 0.0


class Limiting:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self.counting = False
        """Count what publishers offer. Brokers of a site do so from their start."""
        self.dropped = 0
        """Messages beyond a limit since the start of the process."""
        self._limits: dict[_Publisher, RateLimit] = {}
        self._inherited: dict[_Publisher, float] = {}
        """New publishers with a limit of another publisher of their user → until when, unless they get their own."""
        self._until_s = 0.0
        self._counts: dict[_Publisher, _Count] = {}
        self._began_s: float | None = None
        self._second_s = 0.0
        """When the present second of counting began."""

    # -- publishing ----------------------------------------------------------------------------------------------------

    @property
    def limits_any(self) -> bool:
        return bool(self._limits)

    def is_limited(self, topic: HostedTopic, publisher: int) -> bool:
        return (topic.name, publisher) in self._limits

    def admit(self, topic: HostedTopic, publisher: int) -> bool:
        """Decide on one message of a limited publisher."""
        key = (topic.name, publisher)
        admitted, self._limits[key] = self._limits[key].admit(self._state.now_s)
        self.dropped += not admitted
        return admitted

    def count(self, topic: HostedTopic, publisher: int, messages: list[bytes]) -> None:
        counted = self._counts.get((topic.name, publisher))
        if counted is None:
            counted = self._counts[topic.name, publisher] = _Count(self._first_seen_s())
        counted.messages += len(messages)
        counted.size_bytes += sum(map(len, messages))

    def _first_seen_s(self) -> float:
        """A publisher of the first second may have published before."""
        now_s = self._state.now_s
        if self._began_s is None:
            self._began_s = self._second_s = now_s
        return now_s if now_s - self._began_s > _SECOND_S else float("-inf")

    def attached(self, connection: Connection, topic: HostedTopic, publisher: int) -> None:
        """A sender has attached: announce its limit.

        Until the coordinator knows a new publisher, it has the lowest limit of its user's publishers of this topic, and
        no burst: otherwise a client could escape its limit by a new run every second.
        """
        key = (topic.name, publisher)
        if self._limits and key not in self._limits:
            named = [(topic.name, other) for other in topic.shares.of(owner_of(connection.user))]
            lowest = min((self._limits[other].rate_per_s for other in named if other in self._limits), default=None)
            if lowest is not None:
                self._limits[key] = replace(RateLimit.of(lowest, self._state.now_s), tokens=0.0)
                self._inherited[key] = self._state.now_s + _UNKNOWN_S
        limit = self._limits.get(key)
        if limit is not None:
            self._state.send(connection, wire.Limit(topic.at, limit.rate_per_s))

    def on_offered(self, connection: Connection, request: wire.Offered) -> None:
        """A limited sender reports what its application offers."""
        topic = self._state.by_number.get(request.at)
        publisher = None if topic is None else connection.senders.get(topic.name)
        if topic is None or publisher is None or not request.per_s >= 0.0 or not self.is_limited(topic, publisher):
            return
        counted = self._counts.setdefault((topic.name, publisher), _Count(self._first_seen_s()))
        counted.claimed_per_s, counted.claimed_s = request.per_s, self._state.now_s

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def on_message(self, message: LimitPublishers | ReportPublishers) -> None:
        match message:
            case LimitPublishers(limits):
                self._until_s = self._state.now_s + LIMITS_S
                self._set({(topic, number): rate for topic, rates in limits.items() for number, rate in rates})
            case ReportPublishers(number):
                self.counting = True
                self._state.report(PublisherRates(number, self._rates()))

    def _set(self, rates: dict[_Publisher, float]) -> None:
        before, now_s = self._limits, self._state.now_s
        self._limits = {key: _bucket(before.get(key), rate, now_s) for key, rate in rates.items() if rate >= 0.0}
        self._inherited = {
            key: until_s for key, until_s in self._inherited.items() if rates and key not in rates and now_s < until_s
        }
        self._limits |= {key: before[key] for key in self._inherited if key in before}
        for key in self._limits.keys() - before.keys():
            # Until the sender reports what it offers, its rate before the limit counts: what it sends now is the limit.
            counted = self._counts.get(key)
            if counted is not None:
                counted.claimed_per_s, counted.claimed_s = max(counted.rate_per_s, counted.claimed(now_s)), now_s
        for key in {*before, *self._limits}:
            old, new = before.get(key), self._limits.get(key)
            if (old and old.rate_per_s) != (new and new.rate_per_s) or (old is None) != (new is None):
                self._announce(key, None if new is None else new.rate_per_s)

    def _announce(self, key: _Publisher, per_s: float | None) -> None:
        name, publisher = key
        topic = self._state.topics.get(name)
        for identity in () if topic is None else list(topic.senders):
            connection = self._state.connections[identity]
            if topic is not None and connection.senders.get(name) == publisher:
                self._state.send(connection, wire.Limit(topic.at, per_s))

    def _rates(self) -> dict[TopicName, list[PublisherRate]]:
        self._close_second()
        now_s = self._state.now_s
        rates: dict[TopicName, list[PublisherRate]] = {}
        for (topic, publisher), counted in self._counts.items():
            age_s = min(now_s - counted.since_s, _OLD_S)
            rate = PublisherRate(publisher, max(counted.rate_per_s, counted.claimed(now_s)), counted.mean_bytes, age_s)
            rates.setdefault(topic, []).append(rate)
        return rates

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self._limits and self._state.now_s >= self._until_s:
            self._set({})
        if self._counts:
            self._close_second()

    def _close_second(self) -> None:
        """Compute the rates of the second that has passed, and forget publishers that are gone."""
        passed_s = self._state.now_s - self._second_s
        if passed_s < _SECOND_S:
            return
        self._second_s = self._state.now_s
        present = {
            (name, publisher) for each in self._state.connections.values() for name, publisher in each.senders.items()
        }
        for key, counted in list(self._counts.items()):
            counted.rate_per_s = counted.messages / passed_s
            before_per_s = counted.known_per_s * (1.0 if key in self._limits else 0.5)
            counted.known_per_s = max(counted.rate_per_s, before_per_s)
            if counted.messages:
                counted.mean_bytes = counted.size_bytes / counted.messages
            elif key not in present:
                del self._counts[key]
            counted.messages = counted.size_bytes = 0


def _bucket(before: RateLimit | None, rate_per_s: float, now_s: float) -> RateLimit:
    if before is not None and before.rate_per_s == rate_per_s:
        return before
    fresh = RateLimit.of(rate_per_s, now_s) if before is None else before.limited_to(rate_per_s, now_s)
    slack = _SLACK_S * rate_per_s
    return replace(fresh, burst=fresh.burst + slack, tokens=fresh.tokens + (slack if before is None else 0.0))
