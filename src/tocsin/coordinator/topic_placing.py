"""The choice of a topic's home: nearest to its clients' network coordinate, else to their place, else least loaded.

The partitioning of [ePulsar §3.4] by latency is `policies/topics`; it will move topics from the homes chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tocsin.coordinator.records import BrokerRecord, Health
from tocsin.coordinator.topic_records import Holder, TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, place
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire.site_link import Role


def holder_of(broker: BrokerRecord) -> Holder:
    return broker.id, broker.incarnation


def lease_holds(turn: Turn, broker: BrokerRecord) -> bool:
    return turn.registry.topics.leases.get(holder_of(broker), float("-inf")) > turn.now_s


def may_host(turn: Turn, broker: BrokerRecord) -> bool:
    """True if the broker can be the home of a topic: it is linked, accepts work and holds a lease, and its role permits
    it. In a site homes are heads, and edges with `standby` while no head can be one."""
    if not _is_able(turn, broker):
        return False
    if broker.role is Role.EDGE:
        return broker.standby and not any(_may_lead(turn, turn.registry.brokers[head]) for head in turn.registry.heads)
    return broker.role is Role.HEAD or not turn.registry.heads


def may_stand_in(turn: Turn, broker: BrokerRecord) -> bool:
    """True if the broker could be a home when the heads have failed: the followers of a persistent topic are such
    brokers, as far as there are enough."""
    return (broker.role is not Role.EDGE or broker.standby) and _is_able(turn, broker)


def _may_lead(turn: Turn, head: BrokerRecord) -> bool:
    """True for a head that can be a home, or that has not had time to register since the coordinator restarted."""
    return head.awaited or _is_able(turn, head)


def _is_able(turn: Turn, broker: BrokerRecord) -> bool:
    return broker.topics and broker.linked and turn.registry.accepting(broker) and lease_holds(turn, broker)


def may_follow(turn: Turn, broker: BrokerRecord) -> bool:
    """True if the broker can keep a topic's log, whatever its role. On probation it can: an untrusted replica is better
    than none."""
    on_probation = broker.health is Health.PROBATION and not broker.draining
    return _is_able(turn, broker) or (broker.topics and broker.linked and on_probation and lease_holds(turn, broker))


def choose_home(
    turn: Turn,
    record: TopicRecord,
    avoid: Collection[BrokerId] = (),
    may: Callable[[Turn, BrokerRecord], bool] = may_host,
) -> BrokerRecord | None:
    registry = turn.registry
    choices = [
        BrokerChoice(
            broker.id,
            may(turn, broker) and broker.id not in avoid,
            broker.place,
            broker.settled_coordinate,
            load_bytes_per_s=turn.loads.for_placement(
                broker.id, len(registry.hosted(broker.id)) + registry.topics.homed_at(broker.id)
            ),
            capacity=broker.capacity,
        )
        for broker in registry.brokers.values()
    ]
    located = any(
        choice.accepting
        and (
            (record.coordinate is not None and choice.coordinate is not None)
            or (record.place is not None and choice.place is not None)
        )
        for choice in choices
    )
    policy = PlacementPolicy.NEAREST if located else PlacementPolicy.LEAST_LOADED
    chosen = place(policy, Newcomer(record.place, record.coordinate), choices)
    return None if chosen is None else registry.brokers[chosen]
