"""The coordinator's reports about the network: plain dictionaries for JSON.

*Reported* figures come from the brokers' load reports (`loads`). *Modelled* figures come from subscriptions and rates
(`policies.balance.load`): a plan's balance before and after is modelled.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.policies.balance.load import balance_of
from tocsin.policies.sites.types import Metric
from tocsin.wire.link import Frontend


def reported_loads(core: Coordinator) -> list[float]:
    """The reported load of every broker that is not dead, in bytes/s."""
    return [core.loads.of(broker.id).bytes_per_s for broker in _not_dead(core)]


def reported_cov(core: Coordinator) -> float:
    """The cov of reported load ÷ capacity, over brokers that accept subscribers [BAD eq. 6–8]."""
    brokers = _not_dead(core)
    capacity = np.array([broker.capacity for broker in brokers])
    accepting = np.array([core.registry.accepting(broker) for broker in brokers], np.bool_)
    return balance_of(np.array(reported_loads(core)) / capacity, accepting).cov


def _not_dead(core: Coordinator) -> list[BrokerRecord]:
    return [broker for broker in core.registry.brokers.values() if broker.health is not Health.DEAD]


def broker_view(core: Coordinator, broker: BrokerRecord, now_s: float) -> dict[str, Any]:
    registry, load = core.registry, core.loads.of(broker.id)
    return {
        "broker": broker.id,
        "state": broker.state,
        "accepting": registry.accepting(broker),
        "draining": broker.draining,
        "address": broker.address,
        "capacity": broker.capacity,
        "lat": None if broker.place is None else broker.place.lat,
        "lon": None if broker.place is None else broker.place.lon,
        "coordinate": None if broker.coordinate is None else asdict(broker.coordinate),
        "subscribers": len(registry.hosted(broker.id)),
        "online": len(registry.sessions(broker.id)),
        "sessions": broker.sessions,
        "frontend_subscriptions": broker.frontend,
        "backend_subscriptions": broker.backend,
        "topics": registry.topics.homed_at(broker.id),
        "in_bytes_per_s": load.in_bytes_per_s,
        "out_bytes_per_s": load.out_bytes_per_s,
        "load_bytes_per_s": load.bytes_per_s,
        "modelled_bytes_per_s": core.modelled_loads(now_s).get(broker.id),
        "fetched_bytes": load.in_bytes,
        "delivered_bytes": load.out_bytes,
        "catch_up_bytes": load.catch_up_bytes,
        "reported_at_s": load.reported_at_s or None,
        "notifications_per_s": load.notifications_per_s,
        "delivery_s_p50": load.delivery_s_p50,
        "delivery_s_p95": load.delivery_s_p95,
        "topic_capacity": capacity_view(broker),
        "topic_load": _topic_load_view(core, broker),
        "migrations_in": registry.count_migrations(broker.id, as_target=True),
        "migrations_out": registry.count_migrations(broker.id, as_target=False),
    }


def capacity_view(broker: BrokerRecord) -> dict[str, Any]:
    """The capacity for topics; null is unlimited. `configured` is the broker's own, if an operator ordered another."""
    ordered = broker.ordered is not None
    configured = msgspec.to_builtins(broker.limits) if ordered else None
    return {**msgspec.to_builtins(broker.topic_capacity), "ordered": ordered, "configured": configured}


def _topic_load_view(core: Coordinator, broker: BrokerRecord) -> dict[str, Any] | None:
    """The load of topics as offered, averaged as the load state is; null for a broker that does not report it."""
    sites = core.loads.sites
    report = sites.report(broker.id)
    if report is None:
        return None
    waiting_bytes, waiting_messages = sites.waiting(broker.id)
    return {
        "state": report.state.name,
        **report.load._asdict(),
        **{str(metric): report.used.of(metric) for metric in Metric},
        "sent_bytes_per_s": sites.sent_bytes_per_s(broker.id),
        "waiting_bytes": waiting_bytes,
        "waiting_messages": waiting_messages,
        "topics": len(sites.topics(broker.id)),
    }


def subscriber_views(core: Coordinator, names: Iterable[SubscriberId]) -> list[dict[str, Any]]:
    """The views of these subscribers. Unknown subscribers are left out."""
    subscribers = (core.registry.subscribers.get(name) for name in names)
    return [
        {
            "subscriber": subscriber.id,
            "online": subscriber.session_at is not None,
            "subscriptions": len(subscriber.subscriptions),
            "load_bytes_per_s": core.loads.demand(subscriber),
        }
        for subscriber in subscribers
        if subscriber is not None
    ]


class HeldSubscriptions:
    """Counts the backend subscriptions of subscribers as they are added."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core
        self._first: dict[SubscriptionId, Frontend] = {}
        self._count: dict[SubscriptionId, int] = {}

    def add(self, names: Iterable[SubscriberId]) -> None:
        for name in names:
            subscriber = self._core.registry.subscribers.get(name)
            for subscription, frontend in {} if subscriber is None else subscriber.subscriptions.items():
                self._first.setdefault(subscription, frontend)
                self._count[subscription] = self._count.get(subscription, 0) + 1

    def heaviest(self, limit: int) -> dict[str, Any]:
        """The first `limit` backend subscriptions, by λ and then by the number of frontend subscriptions."""
        rates, count = self._core.loads.rates.known, self._count
        heaviest = heapq.nlargest(limit, count, key=lambda name: (rates.get(name, 0.0), count[name]))
        views = [
            {
                "subscription": subscription,
                "channel": self._first[subscription].channel,
                "parameters": self._first[subscription].parameters,
                "frontend": count[subscription],
                "rate_bytes_per_s": rates.get(subscription, 0.0),
            }
            for subscription in heaviest
        ]
        return {"subscriptions": views, "total": len(count)}


def migration_view(migration: MigrationRecord) -> dict[str, Any]:
    return {
        "migration": migration.id,
        "subscriber": migration.subscriber,
        "source": migration.source,
        "target": migration.target,
        "step": str(migration.step),
        "urgency": str(migration.urgency),
        "reason": migration.reason,
        "began_s": migration.began_s,
    }


def balance_view(core: Coordinator) -> dict[str, Any]:
    return {
        "on": core.rules.balancing,
        "period_s": core.rules.balance_s,
        **asdict(core.rules.balance),
        "last_round": _last_round(core),
    }


def _last_round(core: Coordinator) -> dict[str, Any] | None:
    """The last round of balancing. Covs and maxima are modelled."""
    decision = core.last_round
    if decision is None:
        return None
    return {
        "policy": decision.plan.policy,
        "note": decision.plan.note,
        "moves": len(decision.plan.moves),
        "taken": sum(verdict.taken for verdict in decision.verdicts),
        "cov_before": decision.before.cov,
        "cov_after": decision.after.cov,
        "maximum_before": decision.before.maximum,
        "maximum_after": decision.after.maximum,
        "urgency": str(decision.plan.urgency),
        "at_s": decision.at_s,
    }


def status_view(core: Coordinator, now_s: float) -> dict[str, Any]:
    """The state of the network. `load_bytes_per_s` and `cov` are reported, not modelled."""
    registry = core.registry
    return {
        "brokers": [broker_view(core, broker, now_s) for broker in registry.brokers.values()],
        "subscribers": len(registry.subscribers),
        "online": sum(len(registry.sessions(broker)) for broker in registry.brokers),
        "sessions": sum(broker.sessions for broker in _not_dead(core)),
        "frontend_subscriptions": sum(len(s.subscriptions) for s in registry.subscribers.values()),
        "load_bytes_per_s": sum(reported_loads(core)),
        "cov": reported_cov(core),
        "topics": len(registry.topics.topics),
        "migrations": len(registry.migrations),
        "moves_waiting": core.arbiter.waiting,
        "generation": registry.generation,
        "placement": str(core.rules.placement),
        "balance": balance_view(core),
        "at_s": now_s,
    }
