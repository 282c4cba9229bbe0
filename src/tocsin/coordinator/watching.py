"""Trace rows about the whole network: changes of brokers, their reported loads, and the complete present state.

The logic itself records what happens to subscribers, row by row (`effects.RecordTrace`). The rows here cost time in
proportion to the number of brokers, never of subscribers, except for `picture`, which lists some subscribers.
`runtime.coordinator.watch` calls this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import msgspec

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.records import BrokerRecord, Health
from tocsin.coordinator.site_views import sites_summary
from tocsin.coordinator.topic_watching import topic_picture
from tocsin.coordinator.views import reported_cov, reported_loads
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import MAX_SUBSCRIBERS
from tocsin.policies.sites.types import Metric
from tocsin.wire.site_link import Capacity, Role

_SHOWN_SETTINGS = ("scheme", "shuffle", "alpha", "beta_bytes_per_s", "gamma", "theta_bytes_per_s")
"""The balancing settings in a balance row."""


class BrokerChanges:
    """Remembers the last reported appearance of each broker."""

    def __init__(self) -> None:
        self._generation = -1
        self._appearances: dict[BrokerId, tuple[object, ...]] = {}

    def since(self, core: Coordinator, now_s: float) -> list[TraceRow]:
        """A row for each broker that has changed since the last call."""
        if core.registry.generation == self._generation:
            return []
        self._generation = core.registry.generation
        # Assignments change the generation too, thousands of times a second, so the comparison must be cheap.
        brokers = core.registry.brokers
        present = {name: _appearance(core, broker) for name, broker in brokers.items()}
        removed = [
            TraceRow(now_s, Kind.BROKER, broker=name, detail={"state": "gone", "accepting": False})
            for name in self._appearances.keys() - present.keys()
        ]
        changed = [
            broker_row(core, brokers[name], now_s)
            for name, appearance in present.items()
            if self._appearances.get(name) != appearance
        ]
        self._appearances = present
        return removed + changed


def _appearance(core: Coordinator, broker: BrokerRecord) -> tuple[object, ...]:
    """All values that `broker_row` shows."""
    accepting = core.registry.accepting(broker)
    site = (broker.role, broker.standby)
    return broker.health, broker.draining, accepting, broker.address, broker.capacity, broker.place, site


def broker_row(core: Coordinator, broker: BrokerRecord, now_s: float) -> TraceRow:
    place = broker.place
    probation = broker.health is Health.PROBATION
    detail = {
        "address": broker.address,
        "capacity": broker.capacity,
        # A broker on probation is shown as suspect: it serves existing subscribers, but gets no new ones.
        "state": "suspect" if probation else broker.state,
        "accepting": core.registry.accepting(broker),
    }
    if probation:
        detail["on_probation"] = True
    if broker.role is not Role.PLAIN:
        detail |= {"role": str(broker.role), "standby": broker.standby}
    lat, lon = (None, None) if place is None else (place.lat, place.lon)
    return TraceRow(now_s, Kind.BROKER, broker=broker.id, detail=detail, lat=lat, lon=lon)


def sample_row(core: Coordinator, broker: BrokerRecord, now_s: float) -> TraceRow:
    load = core.loads.of(broker.id)
    return TraceRow(
        now_s,
        Kind.SAMPLE,
        broker=broker.id,
        load_bytes_per_s=load.bytes_per_s,
        subscribers=len(core.registry.hosted(broker.id)),
        detail={
            "in_bytes_per_s": load.in_bytes_per_s,
            "out_bytes_per_s": load.out_bytes_per_s,
            "sessions": broker.sessions,
            "frontend_subscriptions": broker.frontend,
            "backend_subscriptions": broker.backend,
            "notifications_per_s": load.notifications_per_s,
            "delivery_s_p50": load.delivery_s_p50,
            "delivery_s_p95": load.delivery_s_p95,
            **_site_sample(core, broker),
        },
    )


def _site_sample(core: Coordinator, broker: BrokerRecord) -> dict[str, Any]:
    """The load of topics, the capacities, and how many publishers are limited; empty without roles and capacities."""
    report, capacity = core.loads.sites.report(broker.id), broker.topic_capacity
    if report is None or (broker.role is Role.PLAIN and capacity == Capacity()):
        return {}
    waiting_bytes, waiting_messages = core.loads.sites.waiting(broker.id)
    offered = {"offered": report.load._asdict(), "capacity": msgspec.to_builtins(capacity)}
    used = {str(metric): report.used.of(metric) for metric in Metric}
    waiting = {"waiting_bytes": waiting_bytes, "waiting_messages": waiting_messages}
    limited = core.site_congestion.limited_at(broker.id)
    return {"site": {"state": report.state.name, **used, **offered, **waiting, "limited_publishers": limited}}


def sites_row(core: Coordinator, now_s: float) -> list[TraceRow]:
    """The neighbouring sites; none for a site without a name."""
    if core.federation is None:
        return []
    return [TraceRow(now_s, Kind.SITES, detail=sites_summary(core.federation, now_s))]


def balance_row(core: Coordinator, now_s: float) -> TraceRow:
    """Mean, maximum and cov of the reported loads, with the balancing settings."""
    loads = reported_loads(core)
    settings = asdict(core.rules.balance)
    return TraceRow(
        now_s,
        Kind.BALANCE,
        subscribers=len(core.registry.subscribers),
        moves=core.registry.migrated,
        load_bytes_per_s=sum(loads) / len(loads) if loads else 0.0,
        cov=reported_cov(core),
        detail={
            "max_bytes_per_s": max(loads, default=0.0),
            "on": core.rules.balancing,
            **{name: settings[name] for name in _SHOWN_SETTINGS},
            "placement": str(core.rules.placement),
            "waiting": core.arbiter.waiting,
            "under_way": len(core.registry.migrations),
        },
    )


def measured(core: Coordinator, now_s: float) -> list[TraceRow]:
    """A sample of every broker, the balance, and the neighbouring sites."""
    samples = [sample_row(core, broker, now_s) for broker in core.registry.brokers.values()]
    return [*samples, balance_row(core, now_s), *sites_row(core, now_s)]


def picture(core: Coordinator, now_s: float, people: int = MAX_SUBSCRIBERS) -> list[TraceRow]:
    """All brokers, the first topics, the homes of the first `people` subscribers, and the newest measurements."""
    brokers = [broker_row(core, broker, now_s) for broker in core.registry.brokers.values()]
    return [*brokers, *topic_picture(core, now_s), *islice(_joins(core, now_s), people), *measured(core, now_s)]


def registered_places(core: Coordinator, now_s: float, people: int = MAX_SUBSCRIBERS) -> list[TraceRow]:
    """Where the first `people` subscribers were when they registered or asked for a broker."""
    placed = (one for one in core.registry.subscribers.values() if one.place is not None)
    return [
        TraceRow(now_s, Kind.POSITION, subscriber=one.id, lat=one.place.lat, lon=one.place.lon)
        for one in islice(placed, people)
        if one.place is not None
    ]


def _joins(core: Coordinator, now_s: float) -> Iterator[TraceRow]:
    for subscriber in core.registry.subscribers.values():
        if subscriber.home is not None:
            yield TraceRow(now_s, Kind.JOIN, subscriber=subscriber.id, broker=subscriber.home)
