"""What the coordinator knows, as trace rows: what changed about brokers, how loaded they are, and the whole picture.

What happens to subscribers is said by the logic itself, row by row, as it happens (`effects.Watched`). Here is the
rest, at a cost that follows the number of brokers, never of subscribers, except for a picture, which names some.
Driven by `runtime.coordinator_watch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.entities import Broker, Health
from tocsin.coordinator.views import cov_of
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import MAX_SUBSCRIBERS

_SHOWN = ("scheme", "shuffle", "alpha", "beta_bytes_per_s", "gamma", "theta_bytes_per_s")
"""Of the balancing settings, those a picture of the balance is read with."""


class BrokerChanges:
    """Remembers what was last told of each broker, and nothing else."""

    def __init__(self) -> None:
        self._generation = -1
        self._told: dict[BrokerId, tuple[object, ...]] = {}

    def since(self, core: Coordinator, now_s: float) -> list[TraceRow]:
        """A row for each broker that is not as it was at the last call."""
        if core.registry.generation == self._generation:
            return []
        self._generation = core.registry.generation
        # Assignments change the generation too, thousands of times a second: looking must be cheap, rows are rare.
        brokers = core.registry.brokers
        present = {name: _looks(core, broker) for name, broker in brokers.items()}
        gone = [
            TraceRow(now_s, Kind.BROKER, broker=name, detail={"state": "gone", "accepting": False})
            for name in self._told.keys() - present.keys()
        ]
        changed = [
            broker_row(core, brokers[name], now_s) for name, looks in present.items() if self._told.get(name) != looks
        ]
        self._told = present
        return gone + changed


def _looks(core: Coordinator, broker: Broker) -> tuple[object, ...]:
    """All that a broker's row is made of."""
    accepting = core.registry.accepting(broker)
    return broker.health, broker.draining, accepting, broker.address, broker.capacity, broker.place


def broker_row(core: Coordinator, broker: Broker, now_s: float) -> TraceRow:
    place = broker.place
    probation = broker.health is Health.PROBATION
    detail = {
        "address": broker.address,
        "capacity": broker.capacity,
        # To be seen from outside it is not trusted yet; that it serves whom it has is in the samples.
        "state": "suspect" if probation else broker.state,
        "accepting": core.registry.accepting(broker),
    }
    if probation:
        detail["on_probation"] = True
    return TraceRow(
        now_s, Kind.BROKER, broker=broker.id, detail=detail,
        lat=None if place is None else place.lat, lon=None if place is None else place.lon,
    )  # fmt: skip


def sample_row(core: Coordinator, broker: Broker, now_s: float) -> TraceRow:
    load = core.loads.of(broker.id)
    return TraceRow(
        now_s, Kind.SAMPLE, broker=broker.id, load_bytes_per_s=load.bytes_per_s,
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
        },
    )  # fmt: skip


def balance_row(core: Coordinator, now_s: float) -> TraceRow:
    registry = core.registry
    alive = [broker for broker in registry.brokers.values() if broker.health is not Health.DEAD]
    loads = [core.loads.of(broker.id).bytes_per_s for broker in alive]
    settings = asdict(core.rules.balance)
    return TraceRow(
        now_s, Kind.BALANCE, subscribers=len(registry.subscribers), moves=registry.migrated,
        load_bytes_per_s=sum(loads) / len(loads) if loads else 0.0,
        cov=cov_of([load / broker.capacity for load, broker in zip(loads, alive, strict=True)]),
        detail={
            "max_bytes_per_s": max(loads, default=0.0),
            "on": core.rules.balancing,
            **{name: settings[name] for name in _SHOWN},
            "placement": str(core.rules.placement),
            "waiting": core.arbiter.waiting,
            "under_way": len(registry.migrations),
        },
    )  # fmt: skip


def measured(core: Coordinator, now_s: float) -> list[TraceRow]:
    """A sample of every broker, and the balance."""
    samples = [sample_row(core, broker, now_s) for broker in core.registry.brokers.values()]
    return [*samples, balance_row(core, now_s)]


def picture(core: Coordinator, now_s: float, people: int = MAX_SUBSCRIBERS) -> list[TraceRow]:
    """Brokers, where subscribers are (the first `people` of them), and the newest measurements."""
    brokers = [broker_row(core, broker, now_s) for broker in core.registry.brokers.values()]
    return [*brokers, *islice(_joins(core, now_s), people), *measured(core, now_s)]


def _joins(core: Coordinator, now_s: float) -> Iterator[TraceRow]:
    for one in core.registry.subscribers.values():
        if one.home is not None:
            yield TraceRow(now_s, Kind.JOIN, subscriber=one.id, broker=one.home)
