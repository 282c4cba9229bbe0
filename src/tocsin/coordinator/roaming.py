"""Subscribers that travel: follow their positions, and plan moves to nearer brokers.

Placement by distance is right for the place where a subscriber logs in. Brokers report the positions that subscribers
send with their own records (`wire.session.Update`). A subscriber that is `roam_m` away from the place for which its
broker was chosen gets a nearer broker, unless that would only shift load: the target must stay below the load at which
balancing would take the subscriber away again.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from tocsin.coordinator.records import BrokerRecord, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.model.snapshot import Place, Snapshot
from tocsin.policies.balance.load import known_rates
from tocsin.policies.balance.placement import distance_m
from tocsin.policies.balance.settings import PlacementPolicy

ROAMING: Final = "roaming"
_GAIN: Final = 0.5
"""The least distance that a move must save, as a share of `roam_m`."""
_LEAST_REST_S: Final = 60.0
"""The least time between two moves of a roaming subscriber."""


def update_places(turn: Turn, broker: BrokerId, places: Mapping[SubscriberId, tuple[float, float]]) -> None:
    """Take over the positions that a broker's own subscribers have sent."""
    for name, (lat, lon) in places.items():
        subscriber = turn.registry.subscribers.get(name)
        if subscriber is None or subscriber.home != broker or not (abs(lat) <= 90.0 and abs(lon) <= 180.0):
            continue
        subscriber.place = Place(lat, lon)
        turn.registry.revision += 1
        if subscriber.placed_at is None:
            subscriber.placed_at = subscriber.place
        elif turn.rules.roam_m and distance_m(subscriber.placed_at, subscriber.place) >= turn.rules.roam_m:
            turn.registry.roaming[name] = None


def roaming_plan(turn: Turn, snapshot: Snapshot, loads: Mapping[BrokerId, float]) -> Plan:
    """Moves of roaming subscribers to nearer brokers. `loads` are the modelled loads in bytes/s."""
    registry, rested, expected = turn.registry, _rested(turn), dict(loads)
    demands = _demands(snapshot, {subscriber.id for subscriber in rested})
    moves, judged = [], 0
    for subscriber in rested:
        name = subscriber.id
        judged += 1
        demand = demands.get(name, _Demand(0.0, 0.0))
        target = _nearer(turn, subscriber, expected, demand.added)
        if target is None or subscriber.home is None or subscriber.place is None:
            continue
        load, saved_m = demand.delivered, _saved_m(turn, subscriber, target)
        expected[target.id] = expected.get(target.id, 0.0) + demand.added
        reason = f"the subscriber has travelled: {target.id} is {saved_m / 1_000:,.1f} km nearer"
        moves.append(Move(name, subscriber.home, target.id, reason, load, -saved_m))
    note = "" if moves else f"{judged} subscribers roam; none has a nearer broker with room"
    return Plan(registry.generation, ROAMING, Urgency.LATENCY, tuple(moves), note=note)


@dataclass(frozen=True, slots=True)
class _Demand:
    """Traffic of one subscriber in bytes/s."""

    delivered: float
    added: float
    """The most that the subscriber adds to a broker, which may have to fetch all its subscriptions."""


def _demands(snapshot: Snapshot, names: Set[SubscriberId]) -> dict[SubscriberId, _Demand]:
    """The demands of these subscribers at the snapshot's rates: with the level of traffic, and the mean for a
    subscription that no broker has measured. `BrokerLoads.demand` has neither, and modelled loads have both."""
    rate, demands = known_rates(snapshot.rate), {}
    for number, name in enumerate(snapshot.subscribers):
        if name in names:
            start, end = snapshot.wants_start[number : number + 2].tolist()
            fetched = float(rate[snapshot.wants[start:end]].sum())
            delivered = snapshot.delivery_ratio * fetched
            demands[name] = _Demand(delivered, fetched + delivered)
    return demands


def _rested(turn: Turn) -> list[SubscriberRecord]:
    """The roaming subscribers that may move now.

    A subscriber rests after a move, so one that sends impossible positions is not moved all the time.
    """
    registry, rest_s = turn.registry, max(turn.rules.balance.rest_s, _LEAST_REST_S)
    roaming = (registry.subscribers.get(name) for name in registry.roaming)
    return [
        subscriber
        for subscriber in roaming
        if subscriber is not None
        and subscriber.online
        and subscriber.id not in registry.moving
        and subscriber.moved_at_s + rest_s <= turn.now_s
        and subscriber.rests_until_s <= turn.now_s
    ]


def forget_judged(turn: Turn) -> None:
    """Measure the next journey of the subscribers that were judged from where they are now."""
    for subscriber in _rested(turn):
        subscriber.placed_at = subscriber.place
        del turn.registry.roaming[subscriber.id]


def _nearer(
    turn: Turn, subscriber: SubscriberRecord, loads: Mapping[BrokerId, float], demand: float
) -> BrokerRecord | None:
    """The nearest accepting broker that has room for `demand` and saves enough of the way; None if there is none."""
    if turn.rules.placement is not PlacementPolicy.NEAREST or subscriber.place is None:
        return None
    registry, least_m = turn.registry, _GAIN * turn.rules.roam_m
    accepting = [broker for broker in registry.brokers.values() if registry.accepting(broker)]
    capacity = sum(broker.capacity for broker in accepting) or 1.0
    mean = sum(loads.get(broker.id, 0.0) for broker in accepting) / capacity
    ceiling = (1.0 + turn.rules.balance.alpha) * mean
    nearer = [
        (saved_m, broker)
        for broker in accepting
        if (saved_m := _saved_m(turn, subscriber, broker)) >= least_m
        and (loads.get(broker.id, 0.0) + demand) / broker.capacity <= max(ceiling, demand / broker.capacity)
    ]
    return max(nearer, key=lambda pair: pair[0])[1] if nearer else None


def _saved_m(turn: Turn, subscriber: SubscriberRecord, broker: BrokerRecord) -> float:
    """How much nearer this broker is than the subscriber's present one; 0 if a position is unknown."""
    home = turn.registry.broker(subscriber.home)
    if subscriber.place is None or broker.place is None or home is None or home.place is None:
        return 0.0
    return distance_m(subscriber.place, home.place) - distance_m(subscriber.place, broker.place)
