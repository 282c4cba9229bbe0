"""What can be set about the coordinator's logic. Each has a unit, a default and a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import PlacementPolicy


@dataclass(frozen=True, slots=True)
class Rules:
    heartbeat_s: float = 2.0
    """How often brokers say that they live."""
    report_s: float = 5.0
    """How often brokers report their load."""
    suspect_s: float = 6.0
    """Silence after which a broker gets no newcomers: three heartbeats, so that one lost in a pause is nothing."""
    dead_s: float = 10.0
    """Silence, or a broken link, after which its subscribers are re-placed."""
    grace_s: float = 30.0
    """After a start of the coordinator, how long brokers have to come back before their silence counts."""
    probation_s: float = 15.0
    """How long a broker that failed is not trusted with newcomers; doubles each time."""
    probation_most_s: float = 600.0
    forgive_s: float = 300.0
    """Quiet life after which earlier failures are forgotten."""
    failover_per_s: float = 2_000.0
    """Subscribers of a dead broker re-placed per second: fast, and no avalanche for those who take them."""
    drain_per_s: float = 200.0
    """Migrations that draining starts per second, over all brokers."""
    migrations: int = 200
    """Under way at a time."""
    migrations_per_broker: int = 50
    """Under way at a time with one broker as source, and as target: each holds a place in its cache while it waits."""
    prepare_s: float = 20.0
    """How long the target has to hold the subscriptions and catch up."""
    hold_s: float = 86_400.0
    """How long a target keeps what it prepared when it hears nothing more. Long on purpose: one that is linked hears
    `Abandon`, one that was not is told when it registers, and one that lets go too early leaves somebody unserved."""
    hand_over_s: float = 20.0
    """How long the subscriber has to appear at the target after it was told to go."""
    confirm_s: float = 10.0
    """How long it has once its session at the source has ended."""
    release_s: float = 10.0
    """How long the source has to let go before it is told again."""
    releases: int = 3
    """Times it is told; a source that is away learns it when it registers."""
    retry_s: float = 10.0
    """Rest of a subscriber whose migration failed before it is tried again."""
    forget_broker_s: float = 3_600.0
    """How long a dead broker without subscribers may still come back before it is forgotten."""
    placement: PlacementPolicy = PlacementPolicy.NEAREST
    """Of newcomers."""
    replacement: PlacementPolicy = PlacementPolicy.LEAST_LOADED
    """Of those whose broker died or drains: their neighbours would otherwise all land on one broker."""
    balancing: bool = False
    """Whether the multistage policy runs by itself; the process's settings switch it on."""
    balance_s: float = 10.0
    """Between its rounds: two load reports, so that each round sees what the last one did."""
    balance: BalanceSettings = field(default_factory=BalanceSettings)
