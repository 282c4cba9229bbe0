"""The coordinator's logic (the BCS [BAD §3.1]): events in, effects out. No clock, no socket, no database.

`runtime.coordinator.process` and the simulators drive it in the same way. They hand in events with the time, carry out
the effects in order (see `effects`), and start a new coordinator from the stored state. This module only dispatches
each event to the module that handles it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tocsin.coordinator import (
    changes,
    events,
    liveness,
    migrations,
    network_coordinates,
    registration,
    revocations,
    roaming,
    sessions,
    site_capacity,
    storage,
    topic_edges,
    topic_homes,
    topic_moves,
    topic_reports,
)
from tocsin.coordinator.arbiter import Arbiter, Decision
from tocsin.coordinator.chosen_rules import choose_balance, choose_placement, restore_choices
from tocsin.coordinator.effects import AnswerRequest, Effect, RequestRejection, StoredState
from tocsin.coordinator.federation import SITE_RUN, Federation, first_number
from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.placing import register_user, request_broker
from tocsin.coordinator.planning import Planner, Planning
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.registry import Registry
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.site_congestion import SiteCongestion
from tocsin.coordinator.site_control import SiteControl
from tocsin.coordinator.site_hosting import Admits
from tocsin.coordinator.site_loads import SiteLoads
from tocsin.coordinator.site_plans import thresholds_of
from tocsin.coordinator.topic_control import TopicControl
from tocsin.coordinator.turn import TOPIC_EPOCH, Proves, Turn
from tocsin.model.ids import BrokerId
from tocsin.wire import link, site_link, topic_link
from tocsin.wire.coordinates import CoordinateReport
from tocsin.wire.neighbour_link import Exchange


class Coordinator:
    def __init__(
        self,
        rules: CoordinatorRules,
        epoch: str,
        *,
        memory: StoredState = StoredState(),
        now_s: float = 0.0,
        planners: Mapping[str, Planner] | None = None,
        proves: Proves = lambda broker, subscriber, token: True,
        admits: Admits = lambda site, topic, token: True,
    ) -> None:
        """`epoch` is different for every start; `planners` are additional balancing policies by name.

        `proves` checks subscribers' tokens, `admits` those of neighbours. The defaults are for simulations, which have
        none.
        """
        self._proves = proves
        self.registry = Registry()
        self.site_loads = SiteLoads(thresholds=thresholds_of(rules))
        self.loads = BrokerLoads(self.site_loads)
        facts = storage.restore(Turn(self.registry, self.loads, rules, now_s), memory)
        self.rules = restore_choices(rules, facts)
        self.arbiter = Arbiter(epoch)
        self.topic_control = TopicControl()
        self.site_control = SiteControl(rules, self.site_loads)
        self.site_congestion = SiteCongestion(self.site_loads)
        self.topic_edges = topic_edges.TopicEdges()
        self.topic_edges.report, self.topic_edges.topics = self.site_loads.report, self.site_loads.topics
        self.planning = Planning(self.arbiter, planners or {}, json.loads(facts.get("policy_memory", "{}")))
        self.federation: Federation | None = None
        """None for a site without a name: it has no neighbours."""
        if rules.site is not None:
            first = first_number(now_s)
            if TOPIC_EPOCH not in facts:
                self.registry.topics.epoch = first
            self.federation = Federation(rules.site, rules, self.site_loads, int(facts.get(SITE_RUN, first)), now_s)
            self.site_control.join(self.federation.exchange, self.federation.reach_of, admits)
        self._announced_generation = 0

    @property
    def last_round(self) -> Decision | None:
        """The last decision of the periodic balancing."""
        return self.planning.last_round

    def modelled_loads(self, now_s: float) -> dict[BrokerId, float]:
        """F_j of each broker as the balancing policies see it, in bytes/s."""
        return self.planning.modelled_loads(Turn(self.registry, self.loads, self.rules, now_s))

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        turn = Turn(self.registry, self.loads, self.rules, now_s, self._proves)
        match event:
            case events.LinkMessageReceived():
                self._receive(turn, event)
            case events.Ticked(may_plan):
                self._tick(turn, may_plan)
            case events.LinkClosed(name, number):
                broker = self.registry.brokers.get(name)
                if broker is not None and broker.link == number:
                    liveness.handle_link_closed(turn, broker)
            case events.BrokerReleased(name):
                liveness.finish_dismissal(turn, name)
            case events.NeighbourMessageReceived(site, connection, message) if isinstance(message, Exchange):
                if self.federation is not None and self.federation.links.is_open(site, connection):
                    self.site_control.handle_neighbour(turn, site, message)
            case _ if isinstance(event, events.NeighbourEvent):
                if self.federation is not None:
                    self.federation.handle(turn, event)
            case _:
                turn.do(AnswerRequest(event.ask, self._answer(turn, event)))
        changed = self.registry.generation != self._announced_generation
        if changed or self.registry.topics.without_edge or isinstance(event, events.Ticked):
            self.topic_edges.check(turn)
        if self.federation is not None:
            self.federation.imports.follow_homes(turn)
        if changed:
            self._announced_generation = self.registry.generation
            liveness.announce_accepting(turn)
        return turn.effects

    def _tick(self, turn: Turn, may_plan: bool) -> None:
        liveness.check_brokers(turn)
        migrations.check_deadlines(turn)
        self.planning.evacuate(turn)
        self.planning.follow_roaming(turn)
        liveness.forget_long_dead(turn)
        topic_homes.check(turn)
        network_coordinates.check(turn)
        self.site_control.check(turn)
        self.site_congestion.check(turn, self.site_control.limited)
        self.arbiter.start(turn)
        if self.federation is not None:
            self.federation.check(turn)
        if may_plan:
            self.planning.balance(turn)
            self.topic_control.check(turn)

    # -- brokers -------------------------------------------------------------------------------------------------------

    def _receive(self, turn: Turn, event: events.LinkMessageReceived) -> None:
        message = event.message
        if isinstance(message, link.Register):
            if message.broker == event.broker:
                registration.register_broker(turn, event.link, message)
                if self.federation is not None:
                    self.federation.settle_broker(turn, self.registry.brokers[event.broker])
            return
        broker = self.registry.brokers.get(event.broker)
        if broker is None or broker.link != event.link:
            return  # the broker has replaced this connection, or has not registered over it
        liveness.note_message(turn, broker)
        self._handle_message(turn, broker, message)

    def _handle_message(self, turn: Turn, broker: BrokerRecord, message: link.FromBroker) -> None:
        match message:
            case link.Heartbeat(sessions=open_sessions, frontend=frontend, backend=backend):
                broker.sessions, broker.frontend, broker.backend = open_sessions, frontend, backend
            case link.LoadReport():
                self.loads.add_report(broker.id, message, turn.now_s, turn.rules.report_s)
                self.planning.note_promise(turn, broker.id)
                roaming.update_places(turn, broker.id, message.places)
            case link.SessionOpened(subscriber=subscriber, token=token):
                if turn.may_serve(broker.id, subscriber, token):
                    sessions.open_session(turn, broker.id, subscriber, token)
            case link.SessionClosed(subscriber=subscriber):
                sessions.close_session(turn, broker.id, subscriber)
            case link.Changed(number=number, subscriber=subscriber, token=token):
                if turn.may_serve(broker.id, subscriber, token):
                    changes.apply_change(turn, broker.id, message)
                turn.send(broker.id, link.Stored(number))
            case link.StateRequest(subscriber=subscriber, token=token):
                if turn.may_serve(broker.id, subscriber, token):
                    sessions.adopt_at(turn, broker.id, subscriber, self.arbiter.new_id())
            case link.Prepared(migration=migration):
                migrations.handle_prepared(turn, broker.id, migration)
            case link.PrepareFailed():
                migrations.handle_prepare_failed(turn, broker.id, message)
            case link.HandOverFailed():
                migrations.handle_hand_over_failed(turn, broker.id, message)
            case link.Released(subscriber=subscriber):
                sessions.handle_released(turn, broker.id, subscriber)
            case CoordinateReport():
                network_coordinates.handle_report(broker, message)
            case _ if isinstance(message, topic_link.FromBroker):
                topic_reports.handle_report(turn, broker, message)
            case site_link.FlowDemand() | site_link.FlowCounts():
                if self.federation is not None:
                    self.federation.handle_report(turn, broker.id, message)
            case site_link.Ratings() | site_link.PublisherRates():
                self.site_congestion.handle(turn, broker.id, message)
            case _ if isinstance(message, site_link.FromBroker):
                self.site_control.handle(turn, broker.id, message)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _answer(self, turn: Turn, request: events.Request) -> object:
        match request:
            case events.UserRegistered():
                return register_user(turn, request)
            case events.BrokerRequested():
                return request_broker(turn, request)
            case events.UserDeleted(user=user):
                return sessions.delete_user(turn, user)
            case events.TokensRevoked():
                return revocations.revoke(turn, request)
            case events.DrainOrdered(broker=broker, on=on):
                return liveness.set_draining(turn, broker, on)
            case events.BrokerDismissed(broker=broker):
                return liveness.dismiss(turn, broker)
            case events.CapacityOrdered(broker=broker, capacity=capacity):
                return site_capacity.order_capacity(turn, broker, capacity)
            case events.PlanProposed():
                return self.planning.propose(turn, request)
            case events.TopicCreated():
                return topic_homes.create_topic(turn, request)
            case events.TopicsUsed():
                return topic_homes.use_topics(turn, request)
            case events.TopicDeleted(topic=topic):
                return topic_homes.delete_topic(turn, topic)
            case events.TopicMoveOrdered():
                return topic_moves.order_move(turn, request)
            case events.ReceiversRedirected():
                return topic_edges.redirect(turn, request)
            case events.ReceiverLocated():
                return self.topic_edges.locate(turn, request)
            case events.PlacementChosen():
                self.rules = choose_placement(turn, request)
                return True
            case events.BalanceChosen():
                chosen = choose_balance(turn, request)
                if isinstance(chosen, RequestRejection):
                    return chosen
                self.rules = chosen
                return True
