"""The capacity of brokers for topics: configured at the broker, or ordered by an operator, which is stored."""

from __future__ import annotations

import math

from tocsin.coordinator.effects import RequestRejection, StoreCapacity
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.wire.errors import Code
from tocsin.wire.link import Register
from tocsin.wire.site_link import Capacity, SetCapacity


def order_capacity(turn: Turn, name: BrokerId, capacity: Capacity) -> bool | RequestRejection:
    """An operator gives a broker this capacity. It holds at once, and after restarts of broker and coordinator."""
    broker = turn.registry.brokers.get(name)
    if broker is None:
        return RequestRejection(Code.NOT_FOUND, f"there is no broker {name!r}")
    limits = (capacity.in_bytes_per_s, capacity.out_bytes_per_s, capacity.matched_per_s)
    if not all(limit is None or (limit > 0.0 and math.isfinite(limit)) for limit in limits):
        return RequestRejection(Code.BAD_REQUEST, "a capacity is a number above 0, or null for no limit")
    broker.ordered = capacity
    turn.do(StoreCapacity(name, *limits))
    turn.loads.sites.set_capacity(name, capacity)
    turn.send(name, SetCapacity(capacity))
    in_bytes_per_s, out_bytes_per_s, matched_per_s = limits
    turn.note(
        "broker gets another capacity for topics",
        broker=name,
        in_bytes_per_s=in_bytes_per_s,
        out_bytes_per_s=out_bytes_per_s,
        matched_per_s=matched_per_s,
    )
    return True


def settle_broker(turn: Turn, broker: BrokerRecord, message: Register) -> None:
    """A broker registers with its configured capacity: send it the ordered one, if there is one."""
    broker.limits = message.limits
    sites = turn.loads.sites
    sites.forget(broker.id)
    sites.set_role(broker.id, message.role)
    sites.set_capacity(broker.id, broker.topic_capacity)
    if broker.ordered is not None:
        turn.send(broker.id, SetCapacity(broker.ordered))
