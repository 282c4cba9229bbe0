"""Which broker somebody gets: `policies.placement` on what the coordinator knows right now [BAD §5.1]."""

from __future__ import annotations

import zlib
from collections.abc import Collection

from tocsin.coordinator.entities import Subscriber
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, PlacementPolicy, place


def choose(
    turn: Turn, subscriber: Subscriber, policy: PlacementPolicy, avoid: Collection[BrokerId] = ()
) -> BrokerId | None:
    """None when nobody accepts. The draw of `random` comes from the subscriber and the count: repeatable, and fair."""
    registry = turn.registry
    choices = [
        BrokerChoice(
            broker.id,
            registry.accepting(broker) and broker.id not in avoid,
            broker.place,
            None,
            turn.loads.shown(broker.id, len(registry.hosted(broker.id))),
            broker.capacity,
        )
        for broker in registry.brokers.values()
    ]
    draw = zlib.crc32(f"{subscriber.id} {registry.placed}".encode()) / 2**32
    newcomer = Newcomer(subscriber.place, subscriber.coordinate, registry.placed, draw)
    chosen = place(policy, newcomer, choices)
    if chosen is not None:
        registry.placed += 1
    return chosen
