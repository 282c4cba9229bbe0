"""Which brokers live. Silence and broken links make one suspect, then dead; whoever fails and returns, again and again,
is trusted later each time.

After a start of the coordinator everybody is away: that says nothing about them, so they get a grace period.
"""

from __future__ import annotations

from tocsin.coordinator import migrations
from tocsin.coordinator.effects import KeepAtCluster
from tocsin.coordinator.records import BrokerRecord, Health
from tocsin.coordinator.turn import Turn
from tocsin.model.trace import Kind
from tocsin.wire.link import Accepting, Beat

_SETTLED_S = 60.0
"""After this long on a link that is alive, whatever was said over it has been heard."""


def heard(turn: Turn, broker: BrokerRecord) -> None:
    """It said something over its link."""
    broker.heard_s = turn.now_s
    if broker.health is Health.SUSPECT and broker.linked:
        returned(turn, broker)


def link_closed(turn: Turn, broker: BrokerRecord) -> None:
    broker.link = None
    broker.told_accepting = None
    turn.registry.releases_lost(broker.id)
    if broker.health in (Health.ALIVE, Health.PROBATION):
        _suspect(turn, broker, "its link is broken", turn.now_s + turn.rules.dead_s)


def await_return(turn: Turn, broker: BrokerRecord) -> None:
    """Known from before this coordinator's start."""
    broker.health = Health.SUSPECT
    broker.awaited = True
    broker.since_s = broker.heard_s = turn.now_s
    broker.dead_at_s = turn.now_s + turn.rules.grace_s


def returned(turn: Turn, broker: BrokerRecord) -> None:
    """It is back, over a new link or the old one. Failing costs trust; waiting for our own restart does not."""
    was, broker.health = broker.health, Health.ALIVE
    broker.since_s = turn.now_s
    broker.dismissed = False
    turn.do(KeepAtCluster(broker.id))  # also if we do not know of a dismissal: an earlier start of ours may have
    if was is Health.DEAD:
        turn.watched(Kind.BROKER_BACK, broker=broker.id)
    if not broker.awaited and was in (Health.SUSPECT, Health.DEAD):
        # Dying counts twice: a broken link may be the network's fault, ten seconds of silence are the broker's.
        broker.failures += 2 if was is Health.DEAD else 1
        if broker.failures >= 2:
            rules = turn.rules
            untrusted_s = min(rules.probation_most_s, rules.probation_s * 2.0 ** min(broker.failures - 2, 16))
            broker.health = Health.PROBATION
            broker.trusted_at_s = turn.now_s + untrusted_s
            turn.note("broker is back, on probation", "warning", broker=broker.id, for_s=untrusted_s)
        turn.store_broker(broker)
    elif was is Health.DEAD:
        turn.store_broker(broker)
    broker.awaited = False
    turn.registry.generation += 1


def check_time(turn: Turn) -> None:
    rules, now_s = turn.rules, turn.now_s
    for broker in list(turn.registry.brokers.values()):
        match broker.health:
            case Health.ALIVE | Health.PROBATION if now_s - broker.heard_s > rules.suspect_s:
                _suspect(turn, broker, "it is silent", broker.heard_s + rules.dead_s)
            case Health.SUSPECT if now_s >= broker.dead_at_s:
                _died(turn, broker)
            case Health.PROBATION if now_s >= broker.trusted_at_s:
                broker.health = Health.ALIVE
                broker.since_s = now_s
                turn.registry.generation += 1
                turn.note("broker is trusted again", broker=broker.id)
            case Health.ALIVE if broker.failures and now_s - broker.since_s > rules.forgive_s:
                broker.failures = 0
                turn.store_broker(broker)
        if broker.linked and broker.health is not Health.SUSPECT:
            turn.registry.adoptions_settled(broker.id, now_s - _SETTLED_S)
        if broker.linked and now_s - broker.spoke_s >= rules.heartbeat_s:
            turn.send(broker.id, Beat())


def tell_accepting(turn: Turn) -> None:
    """Whoever's answer to "may I take newcomers" has changed is told; the answer depends on the others as well."""
    for broker in turn.registry.brokers.values():
        accepting = turn.registry.accepting(broker)
        if broker.linked and broker.told_accepting is not None and broker.told_accepting != accepting:
            broker.told_accepting = accepting
            turn.send(broker.id, Accepting(accepting, broker.draining))


def _suspect(turn: Turn, broker: BrokerRecord, why: str, dead_at_s: float) -> None:
    broker.health = Health.SUSPECT
    broker.since_s = turn.now_s
    broker.dead_at_s = dead_at_s
    turn.registry.generation += 1
    turn.note("broker is suspect", "warning", broker=broker.id, reason=why)


def _died(turn: Turn, broker: BrokerRecord) -> None:
    broker.health = Health.DEAD
    broker.since_s = turn.now_s
    broker.awaited = False
    turn.registry.generation += 1
    turn.loads.gone(broker.id)
    turn.close_link(broker, "it was silent for too long: register again")
    turn.note(
        "broker is dead", "warning", broker=broker.id, subscribers=len(turn.registry.hosted(broker.id))
    )  # fmt: skip
    turn.watched(Kind.BROKER_FAILED, broker=broker.id)
    turn.store_broker(broker)
    turn.registry.end_sessions(broker.id)
    turn.registry.webhooks_first(broker.id)
    migrations.broker_died(turn, broker.id)
