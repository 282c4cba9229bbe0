"""A coordinator begins with what another one stored. Brokers are awaited; migrations get the time they had again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from tocsin.coordinator import liveness
from tocsin.coordinator.effects import Memory
from tocsin.coordinator.entities import Broker, Health, Migration, Step, Subscriber
from tocsin.coordinator.rules import Rules
from tocsin.coordinator.turn import Turn
from tocsin.model.plan import Urgency
from tocsin.policies.balance.placement import PlacementPolicy


def restore(turn: Turn, memory: Memory) -> dict[str, str]:
    """Fills the registry; returns the facts.

    Whoever was letting go of what a dismissed broker held is gone as well: that begins again when it has been dead for
    long enough, or is dismissed once more.
    """
    for broker in memory.brokers:
        made = Broker(
            broker.broker, broker.address, broker.incarnation, broker.capacity, broker.place,
            draining=broker.draining, failures=broker.failures,
        )  # fmt: skip
        turn.registry.add_broker(made)
        if broker.dead:
            made.health, made.since_s = Health.DEAD, turn.now_s
        else:
            liveness.await_return(turn, made)
    for subscriber in memory.subscribers:
        turn.registry.add_subscriber(
            Subscriber(
                subscriber.subscriber, subscriber.place, subscriber.coordinate, subscriber.home,
                moved_at_s=subscriber.moved_at_s, deleted=subscriber.deleted, uncertain=subscriber.uncertain,
            )
        )  # fmt: skip
    for held in memory.subscriptions:
        owner = turn.registry.subscribers.get(held.subscriber)
        if owner is not None:
            owner.subscriptions |= {one.subscription: one for one in held.held}
    for called in memory.webhooks:
        owner = turn.registry.subscribers.get(called.subscriber)
        if owner is not None:
            owner.webhook = called.webhook
    _restore_migrations(turn, memory)
    return {fact.name: fact.value for fact in memory.facts}


def _restore_migrations(turn: Turn, memory: Memory) -> None:
    rules = turn.rules
    for stored in memory.migrations:
        step = Step(stored.step)
        migration = Migration(
            stored.migration, stored.subscriber, stored.source, stored.target, Urgency(stored.urgency), stored.reason,
            step, turn.now_s, turn.now_s + rules.grace_s + rules.hand_over_s, claimed=stored.claimed,
            adopted=stored.adopted,
        )  # fmt: skip
        turn.registry.add_migration(migration)


def chosen(rules: Rules, facts: dict[str, str]) -> Rules:
    """What an administrator chose while an earlier process ran stays chosen."""
    rules = _balance(rules, json.loads(facts.get("balance", "{}")))
    return replace(
        rules,
        placement=PlacementPolicy(facts.get("placement", rules.placement)),
        replacement=PlacementPolicy(facts.get("replacement", rules.replacement)),
    )


def balance_fact(rules: Rules) -> str:
    """How balancing is set, as it is stored."""
    return json.dumps({"on": rules.balancing, "period_s": rules.balance_s, "settings": asdict(rules.balance)})


def _balance(rules: Rules, stored: dict[str, Any]) -> Rules:
    """Settings that this version does not know, or not any more, fall back to what the process was given."""
    if not stored:
        return rules
    known = asdict(rules.balance).keys()
    try:
        settings = replace(
            rules.balance, **{name: value for name, value in stored["settings"].items() if name in known}
        )
    except (ValueError, TypeError):
        settings = rules.balance
    return replace(rules, balancing=bool(stored["on"]), balance_s=float(stored["period_s"]), balance=settings)
