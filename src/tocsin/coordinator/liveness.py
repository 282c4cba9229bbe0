"""The life cycle of brokers: alive, suspect, dead, on probation, draining, dismissed.

Silence or a broken link makes a broker suspect, then dead. A broker that fails repeatedly is on probation longer each
time. After a start of the coordinator no broker is linked yet: all get a grace period before their silence counts.
"""

from __future__ import annotations

from tocsin.coordinator import migrations
from tocsin.coordinator.effects import ForgetBroker, KeepAtCluster, ReleaseAtCluster, RequestRejection
from tocsin.coordinator.records import BrokerRecord, Health
from tocsin.coordinator.turn import Turn
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind
from tocsin.wire.errors import Code
from tocsin.wire.link import Accepting, Beat

_SETTLED_S = 60.0
"""After this long on a working link, a sent `Adopt` counts as received."""


def note_message(turn: Turn, broker: BrokerRecord) -> None:
    """Record a message of a broker: any message over its link shows that the broker is alive."""
    broker.heard_s = turn.now_s
    if broker.health is Health.SUSPECT and broker.linked:
        welcome_back(turn, broker)


def handle_link_closed(turn: Turn, broker: BrokerRecord) -> None:
    broker.link = None
    broker.announced_accepting = None
    turn.registry.clear_releases(broker.id)
    if broker.health in (Health.ALIVE, Health.PROBATION):
        _suspect(turn, broker, "its link is broken", turn.now_s + turn.rules.dead_s)


def await_return(turn: Turn, broker: BrokerRecord) -> None:
    """Wait for a broker that an earlier coordinator process stored."""
    broker.health = Health.SUSPECT
    broker.awaited = True
    broker.since_s = broker.heard_s = turn.now_s
    broker.dead_at_s = turn.now_s + turn.rules.grace_s


def welcome_back(turn: Turn, broker: BrokerRecord) -> None:
    """Receive a broker that is back, over a new link or the old one.

    A broker that failed goes on probation; a restart of the coordinator is no failure of the broker.
    """
    before, broker.health = broker.health, Health.ALIVE
    broker.since_s = turn.now_s
    broker.dismissed = False
    turn.do(KeepAtCluster(broker.id))  # also if no dismissal is known: an earlier process may have begun one
    if before is Health.DEAD:
        turn.trace(Kind.BROKER_BACK, broker=broker.id)
    if not broker.awaited and before in (Health.SUSPECT, Health.DEAD):
        # A death counts twice: the network may have broken the link, but `dead_s` of silence are the broker's fault.
        broker.failures += 2 if before is Health.DEAD else 1
        if broker.failures >= 2:
            untrusted_s = retry_delay_s(
                broker.failures - 1, shortest_s=turn.rules.probation_s, longest_s=turn.rules.probation_most_s
            )
            broker.health = Health.PROBATION
            broker.trusted_at_s = turn.now_s + untrusted_s
            turn.note("broker is back, on probation", "warning", broker=broker.id, for_s=untrusted_s)
        turn.store_broker(broker)
    elif before is Health.DEAD:
        turn.store_broker(broker)
    broker.awaited = False
    turn.registry.generation += 1


def check_brokers(turn: Turn) -> None:
    """Called at every tick: detect silence, end probation, forgive old failures, send heartbeats."""
    rules, now_s = turn.rules, turn.now_s
    for broker in list(turn.registry.brokers.values()):
        match broker.health:
            case Health.ALIVE | Health.PROBATION if now_s - broker.heard_s > rules.suspect_s:
                _suspect(turn, broker, "it is silent", broker.heard_s + rules.dead_s)
            case Health.SUSPECT if now_s >= broker.dead_at_s:
                _declare_dead(turn, broker)
            case Health.PROBATION if now_s >= broker.trusted_at_s:
                broker.health = Health.ALIVE
                broker.since_s = now_s
                turn.registry.generation += 1
                turn.note("broker is trusted again", broker=broker.id)
            case Health.ALIVE if broker.failures and now_s - broker.since_s > rules.forgive_s:
                broker.failures = 0
                turn.store_broker(broker)
        if broker.linked and broker.health is not Health.SUSPECT:
            turn.registry.confirm_adoptions(broker.id, now_s - _SETTLED_S)
        if broker.linked and now_s - broker.sent_s >= rules.heartbeat_s:
            turn.send(broker.id, Beat())
    _announce_limits(turn)


def _announce_limits(turn: Turn) -> None:
    """Send every broker its load limit if the limit has changed. A broker of mean capacity has the limit itself."""
    limit_bytes_per_s, brokers = turn.rules.balance.overload_bytes_per_s, turn.registry.brokers.values()
    capacities = [broker.capacity for broker in brokers if turn.registry.accepting(broker)]
    mean_capacity = sum(capacities) / len(capacities) if limit_bytes_per_s and capacities else 1.0
    for broker in brokers:
        own_bytes_per_s = limit_bytes_per_s * broker.capacity / mean_capacity
        if broker.linked and broker.announced_limit_bytes_per_s != own_bytes_per_s:
            broker.announced_limit_bytes_per_s = own_bytes_per_s
            turn.send(broker.id, Accepting(turn.registry.accepting(broker), broker.draining, own_bytes_per_s))


def announce_accepting(turn: Turn) -> None:
    """Send `Accepting` to every broker for which it has changed; it also depends on the health of the others."""
    for broker in turn.registry.brokers.values():
        accepting = turn.registry.accepting(broker)
        if broker.linked and broker.announced_accepting is not None and broker.announced_accepting != accepting:
            broker.announced_accepting = accepting
            turn.send(broker.id, Accepting(accepting, broker.draining))


def _suspect(turn: Turn, broker: BrokerRecord, reason: str, dead_at_s: float) -> None:
    broker.health = Health.SUSPECT
    broker.since_s = turn.now_s
    broker.dead_at_s = dead_at_s
    turn.registry.generation += 1
    turn.note("broker is suspect", "warning", broker=broker.id, reason=reason)


def _declare_dead(turn: Turn, broker: BrokerRecord) -> None:
    broker.health = Health.DEAD
    broker.since_s = turn.now_s
    broker.awaited = False
    turn.registry.generation += 1
    turn.loads.remove_broker(broker.id)
    turn.close_link(broker, "the broker was silent for too long: register again")
    turn.note("broker is dead", "warning", broker=broker.id, subscribers=len(turn.registry.hosted(broker.id)))
    turn.trace(Kind.BROKER_FAILED, broker=broker.id)
    turn.store_broker(broker)
    turn.registry.end_sessions(broker.id)
    turn.registry.put_webhooks_first(broker.id)
    migrations.handle_broker_death(turn, broker.id)


# -- draining and dismissal --------------------------------------------------------------------------------------------


def set_draining(turn: Turn, name: BrokerId, on: bool) -> int | RequestRejection:
    """Start or stop a drain. Returns the number of subscribers that the broker still has."""
    broker = turn.registry.brokers.get(name)
    if broker is None:
        return RequestRejection(Code.NOT_FOUND, f"there is no broker {name!r}")
    if broker.draining != on:
        broker.draining = on
        turn.registry.generation += 1
        turn.store_broker(broker)
        accepting = broker.announced_accepting = turn.registry.accepting(broker)
        turn.send(name, Accepting(accepting, draining=on))
        turn.note("broker drains" if on else "broker no longer drains", broker=name)
    return len(turn.registry.hosted(name))


def dismiss(turn: Turn, name: BrokerId) -> bool | RequestRejection:
    """An administrator dismisses a broker that is dead, or drained and empty."""
    broker = turn.registry.brokers.get(name)
    if broker is None:
        return RequestRejection(Code.NOT_FOUND, f"there is no broker {name!r}")
    left = len(turn.registry.hosted(name))
    if broker.health is not Health.DEAD and not broker.draining:
        message = f"{name} is {broker.state}: drain it first (`tocsin drain {name} --wait`)"
        return RequestRejection(Code.IN_USE, message)
    if left:
        return RequestRejection(Code.IN_USE, f"{name} still has {left} subscribers: wait until they have moved")
    if turn.registry.topics.homed_at(name):
        return RequestRejection(Code.IN_USE, f"{name} is still the home of topics: wait until they have moved")
    if turn.registry.topics.logs_of(name) and broker.health is not Health.DEAD:
        message = f"{name} still keeps logs of persistent topics: stop it, and other brokers get copies of them"
        return RequestRejection(Code.IN_USE, message)
    _start_dismissal(turn, broker)
    return True


def forget_long_dead(turn: Turn) -> None:
    for broker in turn.registry.brokers.values():
        long_dead = broker.health is Health.DEAD and turn.now_s - broker.since_s > turn.rules.forget_broker_s
        if long_dead and not broker.dismissed and not turn.registry.hosted(broker.id):
            _start_dismissal(turn, broker)


def _start_dismissal(turn: Turn, broker: BrokerRecord) -> None:
    """Release the broker's subscriptions at the data cluster first; `finish_dismissal` forgets the broker."""
    broker.dismissed = True
    turn.store_broker(broker)
    turn.do(ReleaseAtCluster(broker.id))


def finish_dismissal(turn: Turn, name: BrokerId) -> None:
    broker = turn.registry.brokers.get(name)
    if broker is None or not broker.dismissed or turn.registry.hosted(name):
        return  # the broker came back in time
    turn.close_link(broker, "this broker was dismissed")
    turn.registry.remove_broker(name)
    turn.loads.remove_broker(name)
    turn.do(ForgetBroker(name))
    turn.note("broker is forgotten", broker=name)
