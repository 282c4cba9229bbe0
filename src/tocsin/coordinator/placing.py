"""Users register and request a broker; placement policies choose it from the present loads [BAD §5.1]."""

from __future__ import annotations

import zlib
from collections.abc import Collection

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import BrokerRequested, Placed, UserRegistered
from tocsin.coordinator.loads import PER_HOSTED_BYTES_PER_S
from tocsin.coordinator.records import BrokerRecord, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, place
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire.errors import Code

_RETRY_AFTER_S = 2.0


class Placer:
    """Chooses brokers for a series of subscribers. Each choice counts into the loads that the next one sees.

    Changes nothing outside: the caller assigns the homes and counts the placements.
    """

    def __init__(self, turn: Turn, policy: PlacementPolicy) -> None:
        self._turn = turn
        self._policy = policy
        self._placed = turn.registry.placed
        self._loads = {
            broker: turn.loads.for_placement(broker, len(turn.registry.hosted(broker)))
            for broker in turn.registry.brokers
        }

    def choose(self, subscriber: SubscriberRecord, avoid: Collection[BrokerId] = ()) -> BrokerId | None:
        """Choose a broker; None if no broker accepts.

        `random` uses the subscriber's name and the count: it is repeatable.
        """
        registry = self._turn.registry
        choices = [
            BrokerChoice(
                broker.id,
                registry.accepting(broker) and broker.id not in avoid,
                broker.place,
                broker.settled_coordinate,
                load_bytes_per_s=self._loads[broker.id],
                capacity=broker.capacity,
            )
            for broker in registry.brokers.values()
        ]
        draw = zlib.crc32(f"{subscriber.id} {self._placed}".encode()) / 2**32
        chosen = place(self._policy, Newcomer(subscriber.place, subscriber.coordinate, self._placed, draw), choices)
        if chosen is not None:
            self._placed += 1
            expected = self._turn.loads.expected(subscriber, len(registry.subscribers))
            self._loads[chosen] += expected + PER_HOSTED_BYTES_PER_S
        return chosen


def register_user(turn: Turn, event: UserRegistered) -> bool | RequestRejection:
    """Register a user. Returns True if the user is new."""
    existing = turn.registry.subscribers.get(event.user)
    if existing is not None and existing.deleted:
        message = "a user of that name is being deleted: try again in a moment"
        return RequestRejection(Code.IN_USE, message, retry_after_s=_RETRY_AFTER_S)
    _update_place(turn, turn.known_subscriber(event.user), event)
    return existing is None


def request_broker(turn: Turn, event: BrokerRequested) -> Placed | RequestRejection:
    """Assign a broker. A user keeps its home broker while that broker accepts subscribers and is reachable."""
    registry = turn.registry
    subscriber = registry.subscribers.get(event.user)
    if subscriber is None or subscriber.deleted:
        return RequestRejection(Code.NOT_FOUND, f"there is no user {event.user!r}: register it first")
    _update_place(turn, subscriber, event)
    migration = registry.moving.get(event.user)
    preferred = (subscriber.home,) if migration is None else (migration.target, subscriber.home)
    broker = next((b for b in map(registry.broker, preferred) if b is not None and _usable(turn, b, event)), None)
    if broker is None:
        broker = _place(turn, subscriber, event.avoid)
    if broker is None:
        message = "no broker accepts subscribers at the moment; try again"
        return RequestRejection(Code.NOT_READY, message, retry_after_s=_RETRY_AFTER_S)
    # While the home broker is not dead it keeps the subscriptions until the user logs in elsewhere (sessions.adopt_at).
    if migration is None and registry.is_dead(subscriber.home):
        turn.set_home(subscriber, broker.id)
        turn.adopt(broker.id, [subscriber])
    return Placed(broker.id, broker.address)


def _usable(turn: Turn, broker: BrokerRecord, event: BrokerRequested) -> bool:
    return broker.id not in event.avoid and turn.registry.accepting(broker)


def _place(turn: Turn, subscriber: SubscriberRecord, avoid: Collection[BrokerId]) -> BrokerRecord | None:
    """Place a subscriber. If only avoided brokers are left, choose one of them: it may be reachable again."""
    placer = Placer(turn, turn.rules.placement)
    chosen = placer.choose(subscriber, avoid) or (placer.choose(subscriber) if avoid else None)
    if chosen is None:
        return None
    turn.registry.placed += 1
    return turn.registry.brokers[chosen]


def _update_place(turn: Turn, subscriber: SubscriberRecord, event: UserRegistered | BrokerRequested) -> None:
    place, coordinate = event.place or subscriber.place, event.coordinate or subscriber.coordinate
    if (place, coordinate) != (subscriber.place, subscriber.coordinate):
        if place is not None and place != subscriber.place:
            turn.trace(Kind.POSITION, subscriber=subscriber.id, lat=place.lat, lon=place.lon)
        subscriber.place, subscriber.coordinate = place, coordinate
        turn.registry.revision += 1
        turn.store_subscriber(subscriber)
