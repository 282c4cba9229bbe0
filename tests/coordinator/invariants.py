"""The invariants between the records of a coordinator's registry, which hold after every step."""

from __future__ import annotations

from tocsin.coordinator.records import MigrationStep
from tocsin.coordinator.registry import Registry


def broken_invariants(registry: Registry) -> list[str]:
    """One line for each contradiction."""
    wrong = [
        f"{subscriber.id} is not hosted by its home {subscriber.home}"
        for subscriber in registry.subscribers.values()
        if subscriber.home is not None and subscriber.id not in registry.hosted(subscriber.home)
    ]
    wrong += [
        f"{broker} hosts {name}, but is not its home"
        for broker, hosted in registry._hosted.items()
        for name in hosted
        if name not in registry.subscribers or registry.subscribers[name].home != broker
    ]
    for migration in registry.migrations.values():
        if registry.moving.get(migration.subscriber) is not migration:
            wrong.append(f"{migration.id} is not the migration of {migration.subscriber}")
        owner = registry.subscribers.get(migration.subscriber)
        home = migration.target if migration.step is MigrationStep.RELEASING else migration.source
        if owner is None or owner.home != home:
            wrong.append(f"{migration.id} is {migration.step} but the home is not {home}")
    return wrong
