"""The tunables of the coordinator's logic. Each has a unit, a default and a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import Placement


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    heartbeat_s: float = 2.0
    """Period of the heartbeats that brokers send."""
    report_s: float = 5.0
    """Period of the load reports that brokers send."""
    suspect_s: float = 6.0
    """Silence after which a broker gets no new subscribers: three heartbeats, so that a lost one is harmless."""
    dead_s: float = 10.0
    """Silence, or a broken link, after which the broker's subscribers are re-placed."""
    grace_s: float = 30.0
    """After a start of the coordinator, how long brokers have to register before their silence counts."""
    probation_s: float = 15.0
    """How long a broker that failed gets no new subscribers; doubles with each failure."""
    probation_most_s: float = 600.0
    forgive_s: float = 300.0
    """Time without a failure after which earlier failures are forgotten."""
    failover_per_s: float = 2_000.0
    """Subscribers of dead brokers re-placed per second: fast, without flooding the brokers that take them."""
    drain_per_s: float = 200.0
    """Migrations that draining starts per second, over all brokers."""
    migrations: int = 200
    """Migrations in progress at a time."""
    migrations_per_broker: int = 50
    """Migrations in progress with one broker as source, and with one as target: each takes room in its cache."""
    prepare_s: float = 20.0
    """How long the target has to hold the subscriptions and catch up."""
    hold_s: float = 86_400.0
    """How long a target keeps a preparation when the coordinator is silent. Long on purpose: a linked target receives
    `Abandon`, an unlinked one learns it when it registers, and one that forgets too early serves no subscriber."""
    hand_over_s: float = 20.0
    """How long the subscriber has to appear at the target after the source has announced the move to it."""
    confirm_s: float = 10.0
    """How long the subscriber has once its session at the source has ended."""
    release_s: float = 10.0
    """How long the source has to confirm a `Release` before the coordinator sends it again."""
    releases: int = 3
    """How often `Release` is sent; a source without a link learns it when it registers."""
    retry_s: float = 10.0
    """How long a subscriber rests after a failed migration before draining moves it again."""
    forget_broker_s: float = 3_600.0
    """How long a dead broker without subscribers may come back before it is forgotten."""
    placement: Placement = Placement.NEAREST
    """Policy for new subscribers."""
    replacement: Placement = Placement.LEAST_LOADED
    """Policy for subscribers of dead and draining brokers: `nearest` would send a whole neighbourhood to one broker."""
    balancing: bool = False
    """Whether the multistage policy runs by itself; the process's settings switch it on."""
    balance_s: float = 10.0
    """Period of its rounds: two load reports, so that each round sees the effect of the one before."""
    balance: BalanceSettings = field(default_factory=BalanceSettings)
