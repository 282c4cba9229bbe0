"""Offloading in a live site: move receivers between edges, and homes between heads [ePEER §4.4, decision 20].

`core` hands in the loads, profiles and confirmations of brokers, and calls `check` at every tick. The policies are
those of `policies.sites`, which the simulator runs; `OffloadMigrations` follows each offloading to its end. A round:

    two successive seconds show an overload ─▶ ask for profiles ─▶ plan ─▶ expect and redirect receivers
    ─▶ confirmations, time-out or a lost broker ─▶ a whole second is measured ─▶ the brokers leave BUSY

One second is not enough: the second in which a burst starts shows a part of it, and a plan for that part would be
followed by another one. For the same reason a broker stays BUSY until its load was measured without the moving clients.
A round has to reach a fixed point: a plan relieves brokers to TH_low, not just to TH_high, and leaves receivers where
they came to less than `site_rest_s` ago, or which they did not leave in time; both as long as that helps every broker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from tocsin.coordinator import site_heads
from tocsin.coordinator.rules import CoordinatorRules, SitePolicy
from tocsin.coordinator.site_exchange import SiteExchange, site_of
from tocsin.coordinator.site_hosting import Admits, SiteHosting
from tocsin.coordinator.site_loads import SiteLoads
from tocsin.coordinator.site_plans import ReachOf, has_visitors, latest_load, plan_offloads, site_reports, thresholds_of
from tocsin.coordinator.site_visits import SiteVisits
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.model.trace import Kind
from tocsin.policies.sites import migration
from tocsin.policies.sites.load import overloaded_metrics, state_of
from tocsin.policies.sites.types import BrokerReport, Load, LoadState, Offload, Reach, SiteMove, utilisation
from tocsin.wire import neighbour_link
from tocsin.wire.site_link import (
    ExpectReceivers,
    FromBroker,
    ReceiverArrived,
    ReceiverLeft,
    RedirectReceivers,
    ReportProfile,
    Role,
    SiteLoad,
    SiteProfile,
)

_ROUND_S = 1.0
"""Time between two rounds: brokers report once a second."""
_MEASURED_S = 0.95
"""A report that arrives so long after the end of an offloading is of a second without it, give or take a tick."""
_SETTLE_S = 3.0
"""A broker leaves BUSY so long after the end of an offloading although it does not report."""
_SUCCESSIVE = 2
"""Seconds that must show an overload."""


@dataclass
class _Round:
    """Requests for profiles, and the answers."""

    number: int
    until_s: float
    missing: set[BrokerId]
    profiles: dict[BrokerId, SiteProfile] = field(default_factory=dict)


class SiteControl:
    def __init__(self, rules: CoordinatorRules, loads: SiteLoads) -> None:
        self.loads = loads
        self.exchange: SiteExchange | None = None
        """What neighbouring sites report; None for a site without neighbours."""
        self.visits: SiteVisits | None = None
        self.hosting: SiteHosting | None = None
        self.reach_of: ReachOf = lambda topic: Reach.LOCAL
        """Where the publishers of a topic are."""
        self.limited: tuple[BrokerId, ...] = ()
        """Overloaded brokers that no broker can help, by the last round: congestion control limits publishers."""
        self.waiting: tuple[BrokerId, ...] = ()
        """Overloaded brokers whose helpers are BUSY."""
        self._visited: set[BrokerId] = set()
        """Overloaded brokers with visitors, by the last round."""
        self._migrations = migration.OffloadMigrations(rules.site_offload_s)
        self._round: _Round | None = None
        self._number = 0
        self._next_s = float("-inf")
        self._overloads: dict[BrokerId, int] = {}
        """Broker → successive reports that show an overload."""
        self._measured: dict[BrokerId, tuple[Load, ...]] = {}
        """The loads of its last seconds, while it is not BUSY."""
        self._settling: dict[BrokerId, float] = {}
        """Broker → the end of its offloading; it is BUSY until it has reported a whole second after that."""
        self._links: dict[BrokerId, int | None] = {}
        """The links of the brokers that offload or accept: a broker that reconnects may have lost a message."""
        self._began_s: dict[BrokerId, float] = {}
        """Source → the start of its offloading."""
        self._arrived_s: dict[tuple[BrokerId, TopicName], float] = {}
        """Edge and topic → when receivers came there by an offloading, or did not leave in time."""

    def join(self, exchange: SiteExchange, reach_of: ReachOf, admits: Admits) -> None:
        """This site has neighbours: receivers may move there, and from there to this site."""
        self.exchange, self.reach_of = exchange, reach_of
        self.visits = SiteVisits(exchange)
        self.hosting = SiteHosting(
            exchange, admits, lambda broker: self.loads.enter_busy((broker,)), self._settle_later
        )

    def _settle_later(self, turn: Turn, broker: BrokerId) -> None:
        """A broker takes part in no offloading any more. It is BUSY until its load has been measured."""
        self._settling[broker] = turn.now_s

    @property
    def busy(self) -> frozenset[BrokerId]:
        """Brokers that offload, accept, or have not been measured since."""
        hosting = set() if self.hosting is None else self.hosting.busy()
        return self._migrations.busy | self._settling.keys() | hosting

    # -- messages of brokers -------------------------------------------------------------------------------------------

    def handle(self, turn: Turn, broker: BrokerId, message: FromBroker) -> None:
        match message:
            case SiteLoad():
                self.loads.receive(broker, message, turn.now_s)
                self._count_overload(turn, broker)
            case SiteProfile():
                self._take_profile(turn, broker, message)
            case ReceiverArrived(topic=topic, client=client):
                if self.hosting is not None and self.hosting.arrived(turn, broker, topic, client):
                    return
                event = migration.ClientConnected(SubscriberId(client), topic, broker)
                self._advance(turn, event)
            case ReceiverLeft(topic=topic, client=client, gone=gone):
                left = SubscriberId(client)
                self._advance(
                    turn, migration.ClientGone(left, topic) if gone else migration.ClientDrained(left, topic, broker)
                )

    def handle_neighbour(self, turn: Turn, site: str, message: neighbour_link.Exchange) -> None:
        """A message of a neighbour about offloading. The driver of the link has checked the site's name."""
        if self.exchange is None or self.visits is None or self.hosting is None:
            return
        match message:
            case neighbour_link.SiteReport():
                self.exchange.receive(turn, site, message)
            case neighbour_link.HostReceivers():
                self.hosting.receive(turn, site, message, thresholds_of(turn.rules))
            case _:
                for event in self.visits.receive(turn, site, message):
                    self._advance(turn, event)

    def _count_overload(self, turn: Turn, broker: BrokerId) -> None:
        """Count successive reports of an overload, by the average or by the latest second."""
        report = self.loads.report(broker)
        if report is None or report.state is LoadState.BUSY:
            self._forget(broker)
            return
        latest = latest_load(self.loads, broker)
        self._measured[broker] = (*self._measured.get(broker, ()), latest)[-_SUCCESSIVE:]
        if report.state is LoadState.OVERLOAD or _exceeds(latest, report, turn.rules):
            self._overloads[broker] = self._overloads.get(broker, 0) + 1
        else:
            self._overloads.pop(broker, None)

    def _forget(self, broker: BrokerId) -> None:
        self._overloads.pop(broker, None)
        self._measured.pop(broker, None)

    def _is_established(self, turn: Turn, report: BrokerReport) -> bool:
        """True if two seconds show the overload. If an operator has lowered the capacity, earlier seconds do."""
        measured = self._measured.get(report.broker, ())
        exceeded = len(measured) == _SUCCESSIVE and all(_exceeds(load, report, turn.rules) for load in measured)
        return exceeded or self._overloads.get(report.broker, 0) >= _SUCCESSIVE

    # -- time ----------------------------------------------------------------------------------------------------------

    def check(self, turn: Turn) -> None:
        """Called at every tick."""
        for broker, link in list(self._links.items()):
            present = self._link_of(turn, broker)
            if present is None or present != link:
                self._advance(turn, migration.BrokerLost(broker))
        if self.exchange is not None and self.hosting is not None:
            self.exchange.check(turn)
            self.hosting.check(turn, self._visited.intersection(self.limited))
        for event in list(site_heads.outcomes(turn, self._moves_of_homes(turn))):
            self._advance(turn, event)
        self._advance(turn, migration.OffloadDeadlinePassed())
        self._settle(turn)
        if self._round is not None and turn.now_s >= self._round.until_s:
            silent = ", ".join(sorted(self._round.missing))
            turn.note("brokers sent no profile in time", "warning", brokers=silent)
            self._plan(turn)
        if self._round is None and turn.now_s >= self._next_s:
            self._start_round(turn)

    def _link_of(self, turn: Turn, broker: BrokerId) -> int | None:
        """The present link of a broker, or of the coordinator of its site."""
        where = site_of(broker)
        if where is not None:
            return None if self.exchange is None else self.exchange.link_of(where[0])
        record = turn.registry.brokers.get(broker)
        return None if record is None else record.link

    def _settle(self, turn: Turn) -> None:
        """Let brokers leave BUSY whose load was measured after their offloading."""
        for broker, end_s in list(self._settling.items()):
            reported_s = self.loads.received_s(broker)
            is_measured = reported_s is not None and reported_s >= end_s + _MEASURED_S
            if is_measured or turn.now_s >= end_s + _SETTLE_S:
                del self._settling[broker]
                self.loads.leave_busy((broker,))

    def _start_round(self, turn: Turn) -> None:
        """Ask the edges that may have to offload for profiles: the overloaded ones, or all for a policy that evens out
        loads."""
        policy, present = turn.rules.site_policy, {report.broker: report for report in site_reports(turn, self.loads)}
        overloaded = [
            broker
            for broker, report in present.items()
            if report.state is LoadState.OVERLOAD and self._is_established(turn, report)
        ]
        evens_out = policy in (SitePolicy.PEER_LB, SitePolicy.PEER_DRD)
        settled = [broker for broker, report in present.items() if report.state is not LoadState.BUSY]
        asked = [] if policy is SitePolicy.NONE else settled if evens_out else overloaded
        if not overloaded and not (evens_out and len(settled) > 1):
            self._set_outcome(turn, (), ())
            return
        self._next_s = turn.now_s + _ROUND_S
        self._number += 1
        edges = [broker for broker in asked if not _is_head(turn, broker)]
        reached = {broker for broker in edges if turn.send(broker, ReportProfile(self._number))}
        self._round = _Round(self._number, turn.now_s + turn.rules.site_profile_s, reached)
        if not reached:
            self._plan(turn)

    def _take_profile(self, turn: Turn, broker: BrokerId, message: SiteProfile) -> None:
        current = self._round
        if current is None or message.number != current.number or broker not in current.missing:
            return  # it came too late
        current.missing.discard(broker)
        current.profiles[broker] = message
        if not current.missing:
            self._plan(turn)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _plan(self, turn: Turn) -> None:
        assert self._round is not None
        profiles, self._round = self._round.profiles, None
        self._visited = {broker for broker, profile in profiles.items() if has_visitors(profile)}
        reports = [report for report in site_reports(turn, self.loads) if self._is_ready(turn, report, profiles)]
        resting = {pair for pair, at_s in self._arrived_s.items() if turn.now_s - at_s < turn.rules.site_rest_s}
        self._arrived_s = {pair: at_s for pair, at_s in self._arrived_s.items() if pair in resting}
        plan = plan_offloads(turn, self.loads, reports, profiles, self._helpers(turn), resting, self.reach_of)
        for offload in plan.offloads:
            self._start(turn, offload)
        self._set_outcome(turn, plan.waiting, plan.limited)

    def _helpers(self, turn: Turn) -> tuple[BrokerReport, ...]:
        """Edges of neighbouring sites."""
        if self.exchange is None or self.visits is None or not turn.rules.site_visits:
            return ()
        return self.exchange.helpers(turn, self.busy | self.visits.left_out(turn.now_s))

    def _is_ready(self, turn: Turn, report: BrokerReport, profiles: Collection[BrokerId]) -> bool:
        """False for a broker that this plan leaves out: its overload is too new, or its profile is missing."""
        if report.state is not LoadState.OVERLOAD:
            return True
        needs_profile = not report.is_head and turn.rules.site_policy is not SitePolicy.NONE
        return self._is_established(turn, report) and (report.broker in profiles or not needs_profile)

    def _set_outcome(self, turn: Turn, waiting: tuple[BrokerId, ...], limited: tuple[BrokerId, ...]) -> None:
        """Record which overloaded brokers are not relieved, and why, whenever that changes."""
        changes = (
            (waiting, self.waiting, Kind.OFFLOAD_WAITS, "the brokers that could help take part in another offloading"),
            (limited, self.limited, Kind.OFFLOAD_REFUSED, "no broker has enough capacity left"),
        )
        for brokers, before, kind, reason in changes:
            for broker in brokers:
                if broker not in before:
                    text = f"{self._overload(turn, broker)}; {reason}"
                    turn.note("no offload", broker=broker, reason=text)
                    turn.trace(kind, broker=broker, note=text)
        self.waiting, self.limited = waiting, limited

    def _overload(self, turn: Turn, broker: BrokerId) -> str:
        report = self.loads.report(broker)
        if report is None:
            return "overloaded"
        metrics = overloaded_metrics(report.used, thresholds_of(turn.rules))
        return "overloaded: " + ", ".join(f"{metric} {100 * report.used.of(metric):.1f} %" for metric in metrics)

    # -- offloadings ---------------------------------------------------------------------------------------------------

    def _start(self, turn: Turn, offload: Offload) -> None:
        refusal = self._why_not(turn, offload)
        effects = [] if refusal else self._migrations.handle(migration.OffloadOrdered(offload), turn.now_s)
        if effects and isinstance(effects[0], migration.MigrationRejection):
            refusal = effects[0].detail
        if refusal is not None:
            turn.note("offload refused", source=offload.source, reason=refusal)
            turn.trace(Kind.OFFLOAD_REFUSED, broker=offload.source, note=f"{offload.reason}; {refusal}")
            return
        self._began_s[offload.source] = turn.now_s
        self._carry_out(turn, effects)
        for move in offload.moves:
            if self.visits is not None and site_of(move.target) is not None:
                self.visits.request(turn, move)
            else:
                _order(turn, move, offload.reason)
            names: dict[str, Any] = {"source": move.source, "target": move.target, "topic": move.topic}
            clients = len(move.clients)
            turn.note("offload taken", **names, clients=clients, whole=move.is_whole, reason=offload.reason)
            detail = {"topic": move.topic, "clients": clients, "whole": move.is_whole}
            where = {"broker": move.source, "target": move.target}
            turn.trace(Kind.OFFLOAD, **where, moves=clients, note=offload.reason, detail=detail)

    def _why_not(self, turn: Turn, offload: Offload) -> str | None:
        """The reason to refuse an offload; None if it may start."""
        for broker in offload.brokers:
            record = turn.registry.brokers.get(broker)
            if site_of(broker) is not None:
                if self._link_of(turn, broker) is None:
                    return f"the site of {broker} has no link"
            elif record is None or not record.linked or (broker != offload.source and not record.trusted):
                return f"{broker} is {'unknown' if record is None else record.state}"
        return None

    def _advance(self, turn: Turn, event: migration.Event) -> None:
        self._carry_out(turn, self._migrations.handle(event, turn.now_s))

    def _carry_out(self, turn: Turn, effects: Iterable[migration.Effect]) -> None:
        """Notifications are not sent one by one: `_start` sends one message for all clients of a move."""
        for effect in effects:
            match effect:
                case migration.EnterBusy(brokers):
                    self.loads.enter_busy(brokers)
                    for broker in brokers:
                        self._links[broker] = self._link_of(turn, broker)
                        self._forget(broker)
                case migration.OffloadEnded():
                    self._record_end(turn, effect)
                case migration.LeaveBusy(brokers):
                    for broker in brokers:
                        del self._links[broker]
                        self._settling[broker] = turn.now_s

    def _moves_of_homes(self, turn: Turn) -> list[SiteMove]:
        offloads = self._migrations.offloads
        return [move for offload in offloads for move in offload.moves if _is_head(turn, move.source)]

    def _record_end(self, turn: Turn, ended: migration.OffloadEnded) -> None:
        offload, moved = ended.offload, len(ended.moved)
        took_s = turn.now_s - self._began_s.pop(offload.source, turn.now_s)
        moved_topics, stayed_topics = ({topic for _, topic in clients} for clients in (ended.moved, ended.stayed))
        for move in offload.moves:
            self._arrived_s[move.target, move.topic] = turn.now_s
            if ended.ending is migration.Ending.TIMED_OUT and move.topic in stayed_topics:
                self._arrived_s[move.source, move.topic] = turn.now_s  # clients that do not move: try other topics
            is_moved = move.is_whole and move.topic in moved_topics
            if is_moved and not _is_head(turn, move.source) and site_of(move.target) is None:
                _receive_at(turn, move.topic, move.target)
        is_complete = ended.ending is migration.Ending.COMPLETE
        detail = {"ending": str(ended.ending), "took_s": round(took_s, 3), "stayed": len(ended.stayed)}
        level = "info" if is_complete else "warning"
        turn.note("offload ended", level, source=offload.source, moved=moved, **detail)
        kind = Kind.OFFLOADED if is_complete else Kind.OFFLOAD_FAILED
        turn.trace(kind, broker=offload.source, moves=moved, note=offload.reason, detail=detail)


def _order(turn: Turn, move: SiteMove, reason: str) -> None:
    """Let the receivers of an edge attach to another one, or the home of a topic move to another head."""
    if _is_head(turn, move.source):
        site_heads.start_move(turn, move, reason)
        return
    address, clients = turn.registry.brokers[move.target].address, [str(client) for client in move.clients]
    turn.send(move.target, ExpectReceivers(move.topic, clients))
    turn.send(move.source, RedirectReceivers(move.topic, clients, move.target, address))


def _is_head(turn: Turn, broker: BrokerId) -> bool:
    record = turn.registry.brokers.get(broker)
    return record is not None and record.role is Role.HEAD


def _receive_at(turn: Turn, topic: TopicName, edge: BrokerId) -> None:
    """Send new receivers of the topic to the edge that serves the others: its messages go to one edge only."""
    record, broker = turn.registry.topics.topics.get(topic), turn.registry.brokers.get(edge)
    if record is not None and broker is not None and record.receive_at not in (None, (edge, broker.address)):
        record.receive_at = (edge, broker.address)
        turn.registry.topics.note_change(topic)


def _exceeds(load: Load, report: BrokerReport, rules: CoordinatorRules) -> bool:
    return state_of(utilisation(load, report.capacity), thresholds_of(rules)) is LoadState.OVERLOAD
