"""How loaded brokers are: what they report, and what they were given since and cannot have reported yet.

Without the second part a crowd of newcomers, or of refugees, all land on whoever looked idle a moment ago [BAD §5.1].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.coordinator.records import SubscriberRecord
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire.link import LoadReport

_SETTLING_REPORTS = 2
"""Reports after which what was given counts as reported: the first may have been on its way already."""
_LEAST_BYTES_PER_S = 1.0
"""What a subscriber counts for when nobody knows anything: enough to spread a crowd evenly."""
_PER_HOSTED_BYTES_PER_S = 1e-3
"""Breaks ties between brokers without load by how many they host."""


@dataclass(slots=True)
class BrokerLoad:
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    notifications_per_s: float = 0.0
    delivery_s_p50: float | None = None
    delivery_s_p95: float | None = None
    reports: int = 0
    given: dict[SubscriberId, tuple[float, int]] = field(default_factory=dict)
    """Subscriber → (bytes/s expected of it, reports at that time): not part of what is reported yet."""
    given_bytes_per_s: float = 0.0
    """Their sum: asked for at every placement."""

    @property
    def bytes_per_s(self) -> float:
        """F_j, with what was given since [BAD eq. 5]."""
        return self.in_bytes_per_s + self.out_bytes_per_s + self.given_bytes_per_s


class BrokerLoads:
    def __init__(self) -> None:
        self.brokers: dict[BrokerId, BrokerLoad] = {}
        self.rates: dict[SubscriptionId, float] = {}
        """λ in bytes/s."""
        self._told_by: dict[SubscriptionId, BrokerId] = {}
        """Whose word a rate is: only it can say that it is gone."""

    def of(self, broker: BrokerId) -> BrokerLoad:
        return self.brokers.setdefault(broker, BrokerLoad())

    def reported(self, broker: BrokerId, report: LoadReport) -> None:
        load = self.of(broker)
        load.in_bytes_per_s = _sane(report.in_bytes_per_s)
        load.out_bytes_per_s = _sane(report.out_bytes_per_s)
        load.notifications_per_s = _sane(report.notifications_per_s)
        load.delivery_s_p50, load.delivery_s_p95 = report.delivery_s_p50, report.delivery_s_p95
        load.reports += 1
        load.given = {
            one: (expected, at) for one, (expected, at) in load.given.items() if load.reports - at < _SETTLING_REPORTS
        }
        load.given_bytes_per_s = sum(expected for expected, _ in load.given.values())
        for subscription, rate in report.rates.items():
            if rate > 0:
                self.rates[subscription] = _sane(rate)
                self._told_by[subscription] = broker
            elif self._told_by.get(subscription) == broker:
                del self._told_by[subscription]
                del self.rates[subscription]

    def given(self, broker: BrokerId, subscriber: SubscriberRecord, subscribers: int) -> None:
        """A subscriber was sent there; of `subscribers` in all, it is taken for an average one at least."""
        load = self.of(broker)
        mean = sum(one.out_bytes_per_s for one in self.brokers.values()) / max(1, subscribers)
        expected = max(2 * self.demand(subscriber), mean, _LEAST_BYTES_PER_S)
        self.taken(broker, subscriber.id)
        load.given[subscriber.id] = (expected, load.reports)
        load.given_bytes_per_s += expected

    def taken(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        load = self.brokers.get(broker)
        if load is not None and subscriber in load.given:
            load.given_bytes_per_s -= load.given.pop(subscriber)[0]

    def demand(self, subscriber: SubscriberRecord) -> float:
        """Σ λ over what it subscribes to: what delivering to it takes."""
        return sum(self.rates.get(one, 0.0) for one in subscriber.subscriptions)

    def shown(self, broker: BrokerId, hosted: int) -> float:
        """What placement compares."""
        return self.of(broker).bytes_per_s + hosted * _PER_HOSTED_BYTES_PER_S

    def gone(self, broker: BrokerId) -> None:
        """A dead broker carries nothing; the rates it told stay until somebody knows better."""
        self.brokers.pop(broker, None)


def _sane(value: float) -> float:
    """A peer's number: never negative, never NaN, never infinite."""
    return value if 0.0 <= value < 1e18 else 0.0
