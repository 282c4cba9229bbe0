"""The reported loads of brokers, plus the expected load of subscribers that a broker got since its last reports.

Without the expected part a crowd of new or re-placed subscribers would all get the broker that looked idle a moment
ago [BAD §5.1].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.coordinator.rates import SubscriptionRates
from tocsin.coordinator.records import SubscriberRecord
from tocsin.coordinator.site_loads import SiteLoads
from tocsin.coordinator.traffic_level import WINDOW_REPORTS, TrafficLevel
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire.link import LoadReport

_SETTLING_REPORTS = 2
"""Reports after which an assigned subscriber counts as reported: the first may be older than the assignment."""
_LEAST_BYTES_PER_S = 1.0
"""The expected load of a subscriber without any known rate: enough to spread a crowd evenly."""
PER_HOSTED_BYTES_PER_S = 1e-3
"""Added per hosted subscriber, to break ties between brokers without load."""


@dataclass(slots=True)
class BrokerLoad:
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    notifications_per_s: float = 0.0
    delivery_s_p50: float | None = None
    delivery_s_p95: float | None = None
    in_bytes: int = 0
    out_bytes: int = 0
    catch_up_bytes: int = 0
    """Totals of the broker's process."""
    reported_at_s: float = 0.0
    promised_bytes_per_s: float = 0.0
    """The load model's value at the last report, before it is multiplied by the level; 0 if unknown."""
    delivery_ratio: float | None = None
    reports: int = 0
    expected: dict[SubscriberId, tuple[float, int]] = field(default_factory=dict)
    """Subscriber → (expected bytes/s, number of reports at that time): not in the reported load yet."""
    expected_bytes_per_s: float = 0.0
    """The sum of `expected`, kept because every placement reads it."""

    @property
    def bytes_per_s(self) -> float:
        """F_j [BAD eq. 5] as reported, plus the expected load."""
        return self.in_bytes_per_s + self.out_bytes_per_s + self.expected_bytes_per_s


class BrokerLoads:
    def __init__(self, sites: SiteLoads | None = None) -> None:
        self.brokers: dict[BrokerId, BrokerLoad] = {}
        self.rates = SubscriptionRates()
        self.level = TrafficLevel()
        self.sites = SiteLoads() if sites is None else sites
        """The loads of topics, which brokers with a limit or a role in a site report."""
        self.surge_since_s: float | None = None
        """The time of the first report of a surge, or of a burst above the limit, since the last round of balancing."""

    def of(self, broker: BrokerId) -> BrokerLoad:
        return self.brokers.setdefault(broker, BrokerLoad())

    def add_report(self, broker: BrokerId, report: LoadReport, now_s: float, report_s: float) -> None:
        load = self.of(broker)
        self._compare(load, report, now_s, report_s)
        load.in_bytes_per_s = _sane(report.in_bytes_per_s)
        load.out_bytes_per_s = _sane(report.out_bytes_per_s)
        load.notifications_per_s = _sane(report.notifications_per_s)
        load.delivery_s_p50, load.delivery_s_p95 = report.delivery_s_p50, report.delivery_s_p95
        load.in_bytes, load.out_bytes, load.reported_at_s = report.in_bytes, report.out_bytes, now_s
        load.catch_up_bytes, load.delivery_ratio = report.catch_up_bytes, report.delivery_ratio
        load.reports += 1
        load.expected = {
            subscriber: (bytes_per_s, at_report)
            for subscriber, (bytes_per_s, at_report) in load.expected.items()
            if load.reports - at_report < _SETTLING_REPORTS
        }
        load.expected_bytes_per_s = sum(bytes_per_s for bytes_per_s, _ in load.expected.values())
        for subscription, rate in report.rates.items():
            share = min(1.0, _sane(report.shares.get(subscription, 1.0)))
            self.rates.measured(broker, subscription, _sane(rate), share)
        for subscription in report.released:
            self.rates.released(broker, subscription)
        if report.surge:
            self.level.restart()
        if report.surge or report.overload:
            self.surge_since_s = now_s if self.surge_since_s is None else self.surge_since_s

    def _compare(self, load: BrokerLoad, report: LoadReport, now_s: float, report_s: float) -> None:
        """Compare the bytes since the last report with the promise of that time. Bytes that brought sessions up to date
        do not count: the model does not promise them."""
        elapsed_s = now_s - load.reported_at_s
        in_and_out = report.in_bytes + report.out_bytes - load.in_bytes - load.out_bytes
        live_bytes = in_and_out - (report.catch_up_bytes - load.catch_up_bytes)
        counts = report.in_bytes > 0 and live_bytes >= 0  # else the broker has just started, or is a former version
        if counts and load.reports and load.promised_bytes_per_s > 0.0 and elapsed_s > 0.0:
            promised_bytes = load.promised_bytes_per_s * elapsed_s
            self.level.compare(promised_bytes, live_bytes, now_s, WINDOW_REPORTS * report_s)

    def add_expected(self, broker: BrokerId, subscriber: SubscriberRecord, subscribers: int) -> None:
        """Count a subscriber that was assigned to this broker; `subscribers` is the number of all."""
        load = self.of(broker)
        bytes_per_s = self.expected(subscriber, subscribers)
        self.remove_expected(broker, subscriber.id)
        load.expected[subscriber.id] = (bytes_per_s, load.reports)
        load.expected_bytes_per_s += bytes_per_s

    def remove_expected(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        load = self.brokers.get(broker)
        if load is not None and subscriber in load.expected:
            load.expected_bytes_per_s -= load.expected.pop(subscriber)[0]

    def expected(self, subscriber: SubscriberRecord, subscribers: int) -> float:
        """The load in bytes/s that a subscriber brings to its broker: at least that of an average subscriber."""
        mean = sum(load.out_bytes_per_s for load in self.brokers.values()) / max(1, subscribers)
        return max(2 * self.demand(subscriber), mean, _LEAST_BYTES_PER_S)

    def demand(self, subscriber: SubscriberRecord) -> float:
        """Σ λ over its subscriptions, in bytes/s: the outgoing load of delivering to it."""
        return self.rates.total(subscriber.subscriptions)

    @property
    def delivery_ratio(self) -> float:
        """Bytes that one subscriber gets per byte that a broker fetches for it: the mean of the brokers' reports."""
        ratios = [load.delivery_ratio for load in self.brokers.values() if load.delivery_ratio is not None]
        known = [ratio for ratio in ratios if 0.01 < ratio < 100.0]
        return sum(known) / len(known) if known else 1.0

    def for_placement(self, broker: BrokerId, hosted: int) -> float:
        """The load that placement policies compare."""
        return self.of(broker).bytes_per_s + hosted * PER_HOSTED_BYTES_PER_S

    def remove_broker(self, broker: BrokerId) -> None:
        """Forget the load of a dead broker. Its rates stay known until another broker has measured them."""
        self.brokers.pop(broker, None)
        self.rates.remove_broker(broker)
        self.sites.forget(broker)


def _sane(value: float) -> float:
    """The number that a broker reported; 0 if it is negative, NaN or infinite."""
    return value if 0.0 <= value < 1e18 else 0.0
