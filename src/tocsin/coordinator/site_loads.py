"""The loads of topics that brokers report each second: averages, load states, and the topics of each broker.

Pure: `core` hands in the reports, `site_control` plans from them, `views` and the metrics show them. `policies.sites`
decides what a load means. Loads are as *offered*: those of a broker that is too slow exceed its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.load import LoadStates
from tocsin.policies.sites.types import BrokerReport, Load, LoadThresholds, SiteId, total
from tocsin.wire.site_link import Capacity, Role, SiteLoad, TopicLoad

UNLIMITED = Load(math.inf, math.inf, math.inf)


class Demand(NamedTuple):
    """What the publishers of a topic offer while the site limits them."""

    messages_per_s: float
    size_bytes: float


@dataclass(slots=True)
class _Reported:
    """The latest report of one broker."""

    at_s: float
    load: Load
    topics: dict[TopicName, TopicLoad] = field(default_factory=dict)
    waiting_bytes: int = 0
    waiting_messages: int = 0
    sent_bytes_per_s: float = 0.0


class SiteLoads:
    def __init__(self, site: SiteId = SiteId(""), thresholds: LoadThresholds = LoadThresholds()) -> None:
        self.site = site
        self._states = LoadStates(thresholds)
        self._reported: dict[BrokerId, _Reported] = {}
        self._capacities: dict[BrokerId, Load] = {}
        self._heads: set[BrokerId] = set()
        self._demand: Mapping[TopicName, Demand] = {}

    # -- from brokers and operators ------------------------------------------------------------------------------------

    def receive(self, broker: BrokerId, message: SiteLoad, now_s: float) -> None:
        """Count the load of the second that ended."""
        topics = {topic.topic: topic for topic in map(_sane_topic, message.topics)}
        load = total(map(topic_load, topics.values()))
        waiting = (max(0, message.waiting_bytes), max(0, message.waiting_messages))
        self._reported[broker] = _Reported(now_s, load, topics, *waiting, _sane(message.sent_bytes_per_s))
        self._states.measure(broker, load)

    def set_capacity(self, broker: BrokerId, capacity: Capacity) -> None:
        """The capacity that holds for the broker from now on. It stays known when the broker's loads are forgotten."""
        limits = (capacity.in_bytes_per_s, capacity.out_bytes_per_s, capacity.matched_per_s)
        self._capacities[broker] = Load(*(math.inf if limit is None or not limit > 0.0 else limit for limit in limits))

    def set_role(self, broker: BrokerId, role: Role) -> None:
        if role is Role.HEAD:
            self._heads.add(broker)
        else:
            self._heads.discard(broker)

    def set_demand(self, demand: Mapping[TopicName, Demand]) -> None:
        """What limited publishers offer. Without limits the reports alone say what is offered."""
        self._demand = demand

    def forget(self, broker: BrokerId) -> None:
        """Forget the loads of a broker that restarted or failed: its next measurement begins a new average. A broker
        that is BUSY stays BUSY, because the end of its offloading ends that."""
        self._reported.pop(broker, None)
        self._states.forget(broker)

    # -- offloading ----------------------------------------------------------------------------------------------------

    def enter_busy(self, brokers: Iterable[BrokerId]) -> None:
        self._states.enter_busy(brokers)

    def leave_busy(self, brokers: Iterable[BrokerId]) -> None:
        """Each broker returns to the state of its latest measurement."""
        for broker in brokers:
            reported = self._reported.get(broker)
            self._states.leave_busy(broker, Load() if reported is None else reported.load)

    # -- for plans and views -------------------------------------------------------------------------------------------

    def capacity(self, broker: BrokerId) -> Load:
        """Infinite where there is no limit. A head's matching is not limited [ePEER §4.4.1]."""
        capacity = self._capacities.get(broker, UNLIMITED)
        return capacity._replace(matched_per_s=math.inf) if broker in self._heads else capacity

    def report(self, broker: BrokerId) -> BrokerReport | None:
        """The averaged load and the load state; None for a broker that has not reported."""
        reported = self._reported.get(broker)
        if reported is None:
            return None
        capacity = self.capacity(broker)
        state, load = self._states.state(broker, capacity), self._states.average(broker)
        return BrokerReport(broker, self.site, broker in self._heads, state, load, capacity, reported.topics)

    def topics(self, broker: BrokerId) -> Mapping[TopicName, TopicLoad]:
        """The topics with load or with clients, as last reported."""
        reported = self._reported.get(broker)
        return {} if reported is None else reported.topics

    def demanded_topics(self, broker: BrokerId) -> Mapping[TopicName, TopicLoad]:
        """The topics as their publishers would load the broker if no limit kept messages back."""
        topics = self.topics(broker)
        if not self._demand or broker in self._heads:
            return topics
        return {name: _demanded(load, self._demand.get(name)) for name, load in topics.items()}

    @property
    def has_demand(self) -> bool:
        """True while limits keep messages back."""
        return bool(self._demand)

    def has_backlog(self, longer_than_s: float) -> bool:
        """True if a broker needs more than this time, at its capacity, for what waits."""
        capacities = ((reported, self.capacity(broker)) for broker, reported in self._reported.items())
        return any(
            reported.waiting_bytes > longer_than_s * capacity.out_bytes_per_s
            or reported.waiting_messages > longer_than_s * capacity.matched_per_s
            for reported, capacity in capacities
        )

    def waiting(self, broker: BrokerId) -> tuple[int, int]:
        """Bytes that wait for output, and messages that wait for matching."""
        reported = self._reported.get(broker)
        return (0, 0) if reported is None else (reported.waiting_bytes, reported.waiting_messages)

    def sent_bytes_per_s(self, broker: BrokerId) -> float:
        """Bytes that left the broker, which its capacity limits; the offered ones may be more."""
        reported = self._reported.get(broker)
        return 0.0 if reported is None else reported.sent_bytes_per_s

    def received_s(self, broker: BrokerId) -> float | None:
        """When the latest report arrived."""
        reported = self._reported.get(broker)
        return None if reported is None else reported.at_s


def topic_load(topic: TopicLoad) -> Load:
    return Load(topic.in_bytes_per_s, topic.out_bytes_per_s, topic.matched_per_s)


def _demanded(load: TopicLoad, demand: Demand | None) -> TopicLoad:
    if demand is None or not load.receivers:
        return load
    bytes_per_s = demand.messages_per_s * demand.size_bytes
    rates = (
        max(load.in_bytes_per_s, bytes_per_s),
        max(load.out_bytes_per_s, bytes_per_s * load.receivers),
        max(load.matched_per_s, demand.messages_per_s),
    )
    return TopicLoad(load.topic, *rates, load.receivers, load.senders)


def _sane_topic(load: TopicLoad) -> TopicLoad:
    rates = (_sane(load.in_bytes_per_s), _sane(load.out_bytes_per_s), _sane(load.matched_per_s))
    return TopicLoad(load.topic, *rates, max(0, load.receivers), max(0, load.senders))


def _sane(value: float) -> float:
    """The number that a broker reported; 0 if it is negative, NaN or infinite."""
    return value if 0.0 <= value < 1e18 else 0.0
