"""What is told about the network to whoever asks: plain dictionaries for JSON."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire.link import Frontend


def broker_view(core: Coordinator, broker: BrokerRecord) -> dict[str, Any]:
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
        "subscribers": len(registry.hosted(broker.id)),
        "online": len(registry.sessions(broker.id)),
        "sessions": broker.sessions,
        "frontend_subscriptions": broker.frontend,
        "backend_subscriptions": broker.backend,
        "in_bytes_per_s": load.in_bytes_per_s,
        "out_bytes_per_s": load.out_bytes_per_s,
        "load_bytes_per_s": load.bytes_per_s,
        "notifications_per_s": load.notifications_per_s,
        "delivery_s_p50": load.delivery_s_p50,
        "delivery_s_p95": load.delivery_s_p95,
        "migrations_in": registry.involved(broker.id, as_target=True),
        "migrations_out": registry.involved(broker.id, as_target=False),
    }


def subscriber_views(core: Coordinator, some: Iterable[SubscriberId]) -> list[dict[str, Any]]:
    """Of those that are still known."""
    found = (core.registry.subscribers.get(one) for one in some)
    return [
        {
            "subscriber": one.id,
            "online": one.session_at is not None,
            "subscriptions": len(one.subscriptions),
            "load_bytes_per_s": core.loads.demand(one),
        }
        for one in found
        if one is not None
    ]


class HeldSubscriptions:
    """The backend subscriptions behind what some subscribers hold, counted as they are added."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core
        self._first: dict[SubscriptionId, Frontend] = {}
        self._count: dict[SubscriptionId, int] = {}

    def add(self, some: Iterable[SubscriberId]) -> None:
        for name in some:
            one = self._core.registry.subscribers.get(name)
            for subscription, frontend in {} if one is None else one.subscriptions.items():
                self._first.setdefault(subscription, frontend)
                self._count[subscription] = self._count.get(subscription, 0) + 1

    def heaviest(self, limit: int) -> dict[str, Any]:
        """By λ, then by how many want it."""
        rates = self._core.loads.rates
        chosen = heapq.nlargest(limit, self._count, key=lambda one: (rates.get(one, 0.0), self._count[one]))
        views = [
            {
                "subscription": one,
                "channel": self._first[one].channel,
                "parameters": self._first[one].parameters,
                "frontend": self._count[one],
                "rate_bytes_per_s": rates.get(one, 0.0),
            }
            for one in chosen
        ]
        return {"subscriptions": views, "total": len(self._count)}


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
    last = core.last_round
    return {
        "on": core.rules.balancing,
        "period_s": core.rules.balance_s,
        **asdict(core.rules.balance),
        "last_round": None if last is None else {
            "policy": last.plan.policy,
            "note": last.plan.note,
            "moves": len(last.plan.moves),
            "taken": sum(verdict.taken for verdict in last.verdicts),
            "cov_before": last.before.cov,
            "cov_after": last.after.cov,
        },
    }  # fmt: skip


def status_view(core: Coordinator, now_s: float) -> dict[str, Any]:
    registry = core.registry
    alive = [broker for broker in registry.brokers.values() if broker.health is not Health.DEAD]
    reported = [core.loads.of(broker.id).bytes_per_s / broker.capacity for broker in alive]
    return {
        "brokers": [broker_view(core, broker) for broker in registry.brokers.values()],
        "subscribers": len(registry.subscribers),
        "online": sum(len(registry.sessions(broker)) for broker in registry.brokers),
        "sessions": sum(broker.sessions for broker in alive),
        "frontend_subscriptions": sum(len(one.subscriptions) for one in registry.subscribers.values()),
        "load_bytes_per_s": sum(core.loads.of(broker.id).bytes_per_s for broker in alive),
        "cov": cov_of(reported),
        "migrations": len(registry.migrations),
        "moves_waiting": core.arbiter.waiting,
        "generation": registry.generation,
        "placement": str(core.rules.placement),
        "balance": balance_view(core),
        "at_s": now_s,
    }


def cov_of(loads: list[float]) -> float:
    """Of what brokers report [BAD eq. 6–8]."""
    mean = sum(loads) / len(loads) if loads else 0.0
    if mean <= 0:
        return 0.0
    return float((sum((load - mean) ** 2 for load in loads) / len(loads)) ** 0.5 / mean)
