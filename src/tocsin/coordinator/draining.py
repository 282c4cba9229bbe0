"""Draining: a broker gets no newcomers and loses everybody it has, at a bounded rate, until it can be stopped.

There is no list of who is left to do: it is whoever's home it still is. So a drain goes on by itself after a restart of
the coordinator, and a subscriber whose migration failed is simply tried again, elsewhere, after a rest.
"""

from __future__ import annotations

from itertools import islice

from tocsin.coordinator import migrations
from tocsin.coordinator.arbiter import Arbiter
from tocsin.coordinator.placing import choose
from tocsin.coordinator.records import BrokerRecord, Health
from tocsin.coordinator.turn import Turn
from tocsin.model.plan import Move, Urgency


class Draining:
    """Remembers how many may be started by now, and nothing else."""

    def __init__(self) -> None:
        self._allowed = 0.0
        self._at_s: float | None = None

    def check_time(self, turn: Turn, arbiter: Arbiter) -> None:
        elapsed_s = 0.0 if self._at_s is None else turn.now_s - self._at_s
        self._at_s = turn.now_s
        rules = turn.rules
        most = min(rules.migrations_per_broker, max(1.0, rules.drain_per_s))
        self._allowed = min(most, self._allowed + elapsed_s * rules.drain_per_s)
        for broker in list(turn.registry.brokers.values()):
            if broker.draining and broker.health in (Health.ALIVE, Health.PROBATION):
                self._move_some(turn, arbiter, broker)

    def _move_some(self, turn: Turn, arbiter: Arbiter, broker: BrokerRecord) -> None:
        registry = turn.registry
        ready = (
            registry.subscribers[one]
            for one in registry.hosted(broker.id)
            if one not in registry.moving and registry.subscribers[one].rests_until_s <= turn.now_s
        )
        for subscriber in list(islice(ready, int(self._allowed))):
            if subscriber.deleted:
                continue
            shunned = [] if subscriber.shunned is None else [subscriber.shunned]
            target = choose(turn, subscriber, turn.rules.replacement, [broker.id, *shunned]) or choose(
                turn, subscriber, turn.rules.replacement, [broker.id]
            )
            if target is None:
                break
            move = Move(subscriber.id, broker.id, target, f"{broker.id} is drained")
            if not arbiter.has_place(turn, move):
                break
            self._allowed -= 1
            migrations.begin(turn, arbiter.new_id(), subscriber, target, Urgency.DRAIN, move.reason)
