"""This site hosts receivers of its neighbours at its edges [ePEER §4.4.4, decision 24].

A neighbour requests places at one edge, for the receivers of one topic. This site decides: the edge must be LOW, must
not take part in an offloading, and must have capacity for the stated load; the neighbour's token must permit it to
receive the topic. The edge is BUSY until the visitors have arrived. Meanwhile it accepts only what the same neighbour
moves, because one offloading may move several topics to it. When the link to their site is lost, or no broker of this
site can relieve an edge, the edges end the visits, and the visitors return to their own site without a loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tocsin.coordinator.effects import SendHosting
from tocsin.coordinator.site_exchange import SiteExchange
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.types import BrokerReport, Load, LoadState, LoadThresholds, total
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import VISITOR_MARK, Client, ExpectReceivers, ReleaseVisitors, visitor_user

_MOST_CLIENTS = 10_000
"""That an edge expects. Each of them takes a token."""

Admits = Callable[[str, TopicName, str], bool]
"""Whether a token of a neighbour permits it to receive a topic. The driver checks it: the logic holds no key."""


@dataclass(slots=True)
class _Accepted:
    site: str
    number: int
    topic: TopicName
    broker: BrokerId
    expected: dict[Client, Client]
    """The name here → the name at the visitor's own site."""
    load: Load
    until_s: float


class SiteHosting:
    def __init__(
        self,
        exchange: SiteExchange,
        admits: Admits,
        reserve: Callable[[BrokerId], None],
        settle: Callable[[Turn, BrokerId], None],
    ) -> None:
        """`reserve` makes an edge BUSY, `settle` ends that after its next measurement."""
        self._exchange = exchange
        self._admits = admits
        self._reserve = reserve
        self._settle = settle
        self._accepted: list[_Accepted] = []
        self._linked: dict[str, int] = {}
        """The neighbours with a link, and its epoch, at the last look."""

    def busy(self) -> set[BrokerId]:
        """Edges that expect visitors."""
        return {accepted.broker for accepted in self._accepted}

    def receive(self, turn: Turn, site: str, message: wire.HostReceivers, thresholds: LoadThresholds) -> None:
        reason = self._problem(turn, site, message, thresholds)
        if reason is not None:
            self._exchange.send(turn, site, wire.NotHosting(message.number, reason))
            return
        names = {_name_here(site, client): client for client in dict.fromkeys(message.clients)}
        until_s = turn.now_s + turn.rules.site_offload_s
        accepted = _Accepted(site, message.number, message.topic, message.broker, names, Load(*message.load), until_s)
        self._accepted.append(accepted)
        self._reserve(message.broker)
        turn.send(message.broker, ExpectReceivers(message.topic, list(names)))
        connection = self._exchange.links.neighbours[site].connection
        home = turn.registry.topics.topics[message.topic].home
        assert connection is not None and home is not None
        addresses = (turn.registry.brokers[message.broker].address, turn.registry.brokers[home].address)
        clients = tuple(names.values())
        turn.do(SendHosting(connection, message.number, site, message.topic, clients, *addresses, message.token))
        turn.note(
            "hosting receivers of a neighbour",
            site=site,
            topic=message.topic,
            edge=message.broker,
            receivers=len(names),
        )

    def _problem(self, turn: Turn, site: str, message: wire.HostReceivers, thresholds: LoadThresholds) -> str | None:
        """Why these receivers are not accepted; None if they are."""
        record = turn.registry.topics.topics.get(message.topic)
        broker = turn.registry.brokers.get(message.broker)
        report = turn.loads.sites.report(message.broker)
        load = Load(*message.load)
        if not turn.rules.site_visits:
            return "this site hosts no receivers of other sites: its setting site_visits is off"
        if not self._exchange.is_shared(message.topic) or not self._admits(site, message.topic, message.token):
            return f"the token of {site} does not permit receive:{message.topic}"
        if record is None or record.home is None or record.home not in turn.registry.brokers:
            return f"{message.topic} has no home here now"
        if broker is None or message.broker not in turn.registry.edges or not (broker.linked and broker.trusted):
            return f"{message.broker} is no edge that accepts receivers now"
        if not 0 < len(message.clients) <= _MOST_CLIENTS or not all(map(_is_client, message.clients)):
            return "the names of the receivers are not valid"
        if not all(0.0 <= value < math.inf for value in load):
            return "the load of the receivers is not valid"
        expected = [accepted for accepted in self._accepted if accepted.broker == message.broker]
        is_free = all(accepted.site == site for accepted in expected) if expected else self._is_low(report)
        if report is None or not is_free:
            return f"{message.broker} accepts no load now"
        if len(message.clients) + sum(len(accepted.expected) for accepted in expected) > _MOST_CLIENTS:
            return f"{message.broker} expects as many receivers as it may"
        whole = total([load, *(accepted.load for accepted in expected)])
        return None if whole.fits(report.remaining(thresholds)) else f"{message.broker} has too little capacity left"

    @staticmethod
    def _is_low(report: BrokerReport | None) -> bool:
        return report is not None and report.state is LoadState.LOW

    def arrived(self, turn: Turn, broker: BrokerId, topic: TopicName, client: Client) -> bool:
        """A receiver has arrived at an edge. False if it is no expected visitor."""
        for accepted in self._accepted:
            if accepted.broker == broker and accepted.topic == topic and client in accepted.expected:
                name = accepted.expected.pop(client)
                self._exchange.send(turn, accepted.site, wire.VisitorArrived(accepted.number, name))
                if not accepted.expected:
                    self._end(turn, accepted)
                return True
        return False

    def check(self, turn: Turn, helpless: Collection[BrokerId]) -> None:
        """Called at every tick. `helpless`: overloaded edges with visitors that no other broker can help."""
        for accepted in [accepted for accepted in self._accepted if turn.now_s >= accepted.until_s]:
            self._end(turn, accepted)
        for broker in helpless:
            turn.send(broker, ReleaseVisitors())
        for site in self._exchange.links.neighbours:
            link = self._exchange.link_of(site)
            if link is not None:
                self._linked[site] = link
            elif self._exchange.is_lost(site) and self._linked.pop(site, None) is not None:
                self._release(turn, site)

    def _release(self, turn: Turn, site: str) -> None:
        """The link is lost, and messages of the visitors' site with it: they get them at home."""
        for accepted in [accepted for accepted in self._accepted if accepted.site == site]:
            self._end(turn, accepted)
        for edge in turn.registry.edges:
            turn.send(edge, ReleaseVisitors(site))

    def _end(self, turn: Turn, accepted: _Accepted) -> None:
        self._accepted.remove(accepted)
        if accepted.broker not in self.busy():
            self._settle(turn, accepted.broker)


def _name_here(site: str, client: Client) -> Client:
    user, _, run = client.rpartition("/")
    return f"{visitor_user(site, user)}/{run}"


def _is_client(client: Client) -> bool:
    """A visitor of the neighbour is no client of it."""
    user, mark, run = client.rpartition("/")
    is_own = VISITOR_MARK not in user
    return is_own and bool(user and mark and run) and len(client) <= 200 and client.isprintable()
