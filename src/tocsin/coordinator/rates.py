"""λ of every backend subscription, from the reports of the brokers that hold it [BAD §4].

All holders of a subscription see the same results, so the one that has measured longest knows the rate best. When that
broker releases the subscription, its last value stays known and fades while another holder measures. A subscription
moves with its subscribers without losing its rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.model.rate import merged_rate

_REMEMBERED = 200_000
"""The most rates of released subscriptions in memory."""
_WHOLE_SHARE = 0.95
"""From this share on, a measurement needs no former rate."""


@dataclass(frozen=True, slots=True)
class _Measurement:
    value_per_s: float
    share: float


class SubscriptionRates:
    def __init__(self) -> None:
        self.known: dict[SubscriptionId, float] = {}
        """λ in bytes/s; without the subscriptions that no broker has measured for long enough."""
        self._holders: dict[SubscriptionId, dict[BrokerId, _Measurement]] = {}
        self._held_by: dict[BrokerId, set[SubscriptionId]] = {}
        self._former: dict[SubscriptionId, float] = {}
        """λ when the broker that had measured longest stopped, until another broker has measured as long."""

    def measured(self, broker: BrokerId, subscription: SubscriptionId, value_per_s: float, share: float) -> None:
        earlier = self._holders.get(subscription, {}).get(broker)
        if earlier is not None and share < earlier.share:
            self.released(broker, subscription)  # the broker released it in the meantime and measures anew
        self._holders.setdefault(subscription, {})[broker] = _Measurement(value_per_s, share)
        self._held_by.setdefault(broker, set()).add(subscription)
        self._merge(subscription)

    def released(self, broker: BrokerId, subscription: SubscriptionId) -> None:
        holders = self._holders.get(subscription, {})
        if broker not in holders:
            return
        was_best = holders[broker].share >= max(holder.share for holder in holders.values())
        del holders[broker]
        self._held_by[broker].discard(subscription)
        if was_best and subscription in self.known:
            self._former[subscription] = self.known[subscription]
        if holders:
            self._merge(subscription)
            return
        del self._holders[subscription]
        if len(self._former) > _REMEMBERED:
            self._forget(next(iter(self._former)))

    def remove_broker(self, broker: BrokerId) -> None:
        """Stop counting a broker's measurements: it is dead, or reports them anew."""
        for subscription in list(self._held_by.get(broker, ())):
            self.released(broker, subscription)
        self._held_by.pop(broker, None)

    def total(self, subscriptions: Iterable[SubscriptionId]) -> float:
        """Σ λ of these subscriptions in bytes/s; a subscription without a known rate counts 0."""
        return sum(self.known.get(subscription, 0.0) for subscription in subscriptions)

    def _merge(self, subscription: SubscriptionId) -> None:
        best = max(self._holders[subscription].values(), key=lambda holder: holder.share)
        if best.share >= _WHOLE_SHARE:
            self._former.pop(subscription, None)
        rate = merged_rate(best.value_per_s, best.share, self._former.get(subscription))
        if rate == rate:
            self.known[subscription] = rate
        else:
            self.known.pop(subscription, None)

    def _forget(self, subscription: SubscriptionId) -> None:
        del self._former[subscription]
        if subscription not in self._holders:
            self.known.pop(subscription, None)
