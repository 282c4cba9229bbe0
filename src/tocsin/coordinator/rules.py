"""The tunables of the coordinator's logic. Each has a unit, a default and, where it matters, a reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.wire.site_link import NeighbourAccess


class TopicWorkflow(StrEnum):
    """How a volatile topic moves [ePulsar §3.6]. Persistent topics move by `epulsar`."""

    PULSAR = "pulsar"
    """The source closes the topic, and its clients look the home up. One topic moves at a time."""
    EPULSAR = "epulsar"
    """Figure 2: the source sends the new address over the open connection; `topic_moves` topics at a time."""
    TOCSIN = "tocsin"
    """Clients attach to the target first, and the source hands over to the target itself."""


class TopicLoop(StrEnum):
    PAPER = "paper"
    """As [ePulsar]: a topic moves whenever its bound is violated."""
    TOCSIN = "tocsin"
    """Keeps a share of every bound free, moves only for a gain, and lets a topic rest."""


class SitePolicy(StrEnum):
    """How a site relieves overloaded edges [ePEER §4.4, §4.5.4]."""

    DRD_LB = "drd-lb"
    """Move the receivers of delay-tolerant topics from overloaded edges."""
    PEER_LB = "peer-lb"
    """A baseline: even out loads, without regard to delay."""
    PEER_DRD = "peer-drd"
    """A baseline: even out loads, delay-tolerant topics first."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    heartbeat_s: Annotated[float, "Seconds between two heartbeats of a broker."] = 2.0
    report_s: Annotated[float, "Seconds between two load reports of a broker."] = 5.0
    suspect_s: Annotated[float, "Seconds of silence after which a broker gets no new subscribers."] = 6.0
    """Three heartbeats, so that a lost one is harmless."""
    dead_s: Annotated[
        float, "Seconds of silence, or of a broken link, after which a broker's subscribers get another broker."
    ] = 10.0
    grace_s: Annotated[
        float, "Seconds that brokers have to reconnect after a start of the coordinator before their silence counts."
    ] = 30.0
    probation_s: Annotated[
        float, "Seconds during which a broker that failed gets no new subscribers; doubles with each failure."
    ] = 15.0
    probation_most_s: Annotated[float, "Longest probation in seconds."] = 600.0
    forgive_s: Annotated[float, "Seconds without a failure after which a broker's earlier failures are forgotten."] = (
        300.0
    )
    failover_per_s: Annotated[float, "Subscribers of dead brokers that get another broker, per second."] = 2_000.0
    """High, but low enough not to flood the brokers that get the subscribers."""
    drain_per_s: Annotated[float, "Migrations that draining starts per second, over all brokers."] = 200.0
    migrations: Annotated[int, "Most migrations in progress at a time."] = 200
    migrations_per_broker: Annotated[
        int, "Most migrations in progress at a time with one broker as source, and with one broker as target."
    ] = 50
    """Each migration takes room in the broker's cache."""
    prepare_s: Annotated[
        float, "Seconds that the target of a migration has to hold the subscriptions and to catch up."
    ] = 20.0
    hold_s: float = 86_400.0
    """How long a target keeps a preparation when the coordinator is silent.

    Long on purpose: a linked target receives `Abandon`, an unlinked one receives it when it registers. A target that
    drops a preparation too early could not serve its subscriber.
    """
    hand_over_s: Annotated[float, "Seconds that the subscriber has to connect to the target of its migration."] = 20.0
    confirm_s: Annotated[
        float, "Seconds that the subscriber has to connect to the target once its session at the source has ended."
    ] = 10.0
    release_s: Annotated[
        float, "Seconds that the source of a migration has to release the subscriber before the request is repeated."
    ] = 10.0
    releases: int = 3
    """How often `Release` is sent; a source without a link receives it when it registers."""
    retry_s: Annotated[float, "Seconds after a failed migration before the same subscriber may migrate again."] = 10.0
    forget_broker_s: Annotated[float, "Seconds after which a dead broker without subscribers is forgotten."] = 3_600.0
    placement: Annotated[
        PlacementPolicy, "Broker of a new subscriber: `nearest`, `round-robin`, `random` or `least-loaded`."
    ] = PlacementPolicy.NEAREST
    replacement: Annotated[
        PlacementPolicy, "Broker of a subscriber whose broker died or drains: the same names as for `placement`."
    ] = PlacementPolicy.LEAST_LOADED
    """`nearest` would send a whole neighbourhood to one broker."""
    roam_m: Annotated[
        float, "Metres that a subscriber travels before it may get a nearer broker, with `nearest` placement. 0: never."
    ] = 20_000.0
    """Brokers are usually farther apart than that; a move for a shorter journey would save little."""
    topics: Annotated[int, "Most topics in the network."] = 100_000
    user_topics: Annotated[int, "Most topics that the messages of one user create under `topic_prefixes`."] = 10_000
    """A tenth of all: one user must not use up the names of the others."""
    topic_prefixes: Annotated[
        str | None, "Beginnings of topic names, separated by commas: a publisher's first message creates such a topic."
    ] = None
    topic_lease_s: Annotated[
        float, "Seconds for which a home accepts messages without word from the coordinator; failover waits as long."
    ] = 5.0
    topic_moves: Annotated[int, "Most moves of topics in progress at a time; further ones wait."] = 64
    """The executors of [ePulsar §3.6]."""
    topic_workflow: Annotated[
        TopicWorkflow, "How topics move: `epulsar`, `tocsin` (a direct hand-over), or `pulsar` to compare with."
    ] = TopicWorkflow.EPULSAR
    """Not `tocsin` yet: its pause was not measured on a quiet machine."""
    topic_move_s: Annotated[float, "Seconds after which a move of a topic that does not finish is given up."] = 10.0
    topic_balancing: Annotated[bool, "Move topics to keep their bounds and to relieve overloaded homes."] = False
    """The process's settings switch it on."""
    topic_balance_s: Annotated[float, "Seconds between two plans for topics."] = 5.0
    """The paper's period [ePulsar §4]; homes report as often."""
    topic_output_per_s: Annotated[
        float, "Messages that a broker sends per second for its topics before it counts as overloaded."
    ] = 200_000.0
    """R_th [ePulsar §3.4.2, §5.4]. `tocsin bench profile` measures it; 180,000 on a machine with two cores."""
    topic_loop: Annotated[
        TopicLoop, "How topics are planned: `tocsin`, or `paper` to compare it with: no headroom and no rest."
    ] = TopicLoop.TOCSIN
    site_policy: Annotated[
        SitePolicy,
        "How a site relieves overloaded edges: `drd-lb`, `none`, or `peer-lb` and `peer-drd` to compare with.",
    ] = SitePolicy.DRD_LB
    site_low: Annotated[float, "Share of its capacity from which a broker of a site accepts no more load."] = 0.9
    """TH_low [ePEER §4.4.1.2]."""
    site_high: Annotated[float, "Share of its capacity above which a broker of a site is overloaded."] = 0.95
    """TH_high [ePEER §4.4.1.2]."""
    site_profile_s: Annotated[float, "Seconds that an overloaded edge has to report its receivers."] = 1.0
    site_offload_s: Annotated[float, "Seconds after which an offloading that does not finish is given up."] = 10.0
    """Long enough for a client to connect; a client's queue at its former edge is not waited for."""
    site_rest_s: Annotated[
        float, "Seconds for which receivers that were moved to an edge stay there, unless nothing else helps it."
    ] = 60.0
    site_by_distance: Annotated[
        bool, "The first receiver of a topic attaches to the nearest edge, not to the one with most capacity left."
    ] = False
    """[ePEER §4.4.2]: for sites over a WAN. In a LAN all edges are near."""
    site_visits: Annotated[
        bool, "Send receivers to edges of neighbouring sites where this site cannot help itself, and serve theirs."
    ] = True
    site_visit_s: Annotated[float, "Seconds for which a receiver of a neighbouring site may stay at this site."] = 300.0
    """Short: the token that permits it ends then, and the receiver returns to its own site. That site revokes users."""
    site_congestion: Annotated[bool, "Limit publishers by utility where no broker can help an overloaded one."] = True
    site: Annotated[str | None, "Name of this site among its neighbours. Without a name it has none."] = None
    shared_topics: Annotated[
        str, "Patterns of the topics that this site shares with its neighbours, separated by commas."
    ] = "#"
    neighbour_topics: Annotated[
        int, "Most flows accepted from one neighbour, and most topics that its advertisements create."
    ] = 10_000
    """A tenth of all topics: one neighbour must not use up the names of this site."""
    neighbours: tuple[NeighbourAccess, ...] = ()
    """The process reads them from a file."""
    balancing: Annotated[bool, "Run the multistage balancing policy periodically."] = False
    """The process's settings switch it on."""
    balance_s: Annotated[float, "Seconds between two rounds of balancing."] = 10.0
    """Two load reports, so that each round sees the effect of the one before."""
    balance: BalanceSettings = field(default_factory=BalanceSettings)
