"""Neighbouring sites in virtual time: links between their coordinators, and imports between their homes.

Each site is a whole simulated network. A link between two sites carries the control connection and the imports of both
directions. A test may cut it: then everything on it breaks, and nothing connects until it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from tocsin.broker.topics import effects
from tocsin.broker.topics import events as broker_events
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client import topic_events as events
from tocsin.client.topic_flows import FlowReceiver
from tocsin.coordinator.effects import CloseNeighbour, SendToNeighbour
from tocsin.coordinator.events import NeighbourClosed, NeighbourMessageReceived, NeighbourOpened
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import Position
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.topic_broker import SimulatedTopicBroker
from tocsin.sim.network.topic_client import SimulatedTopicClient
from tocsin.sim.network.topic_network import SimulatedTopicNetwork
from tocsin.sim.network.transport import PEER_S, Pipe
from tocsin.wire import topic as wire
from tocsin.wire.neighbour_link import FromNeighbour
from tocsin.wire.site_link import (
    VISITOR_MARK,
    NeighbourAccess,
    RedirectReceivers,
    ReleaseVisitors,
    Role,
    visitor_user,
)
from tocsin.wire.topic import VisitorAccess
from tocsin.wire.topic_directory import WatchAnswer

_CONNECT_S = 0.25
_RUNS = 1_000
"""The most clients of a site: receivers of one site meet those of another one at its edges."""
_FIRST_RUN = 10_000
"""Imports have clients with runs above those of the site's own clients."""


class SimulatedFederation:
    def __init__(
        self,
        kernel: Kernel,
        sites: Mapping[str, Sequence[str]],
        links: Sequence[tuple[str, str]],
        rules: CoordinatorRules,
        limits: TopicLimits = TopicLimits(),
        roles: Mapping[str, Role] = {},
    ) -> None:
        """`sites`: the brokers of each site. `links`: pairs of neighbours, the smaller name first."""
        self.kernel = kernel
        self.cut: set[tuple[str, str]] = set()
        """Links that are broken now."""
        self.crossed: dict[tuple[str, str, str, TopicName], list[int]] = {}
        """(neighbour, importing site, source, topic) → the numbers that crossed, in order."""
        self._runs = count(_FIRST_RUN)
        self._links = {link: ControlLink(self, *link) for link in links}
        self._connections = count(1)
        self.sites: dict[str, SimulatedTopicNetwork] = {}
        for site, brokers in sites.items():
            neighbours = tuple(
                NeighbourAccess(other, f"sim://{other}", "")
                for link in links
                if site in link
                for other in {*link} - {site}
            )
            own_rules = replace(rules, site=site, neighbours=neighbours)
            network = SimulatedTopicNetwork(
                kernel,
                brokers,
                own_rules,
                limits,
                roles=roles,
                on_start=partial(self._add_imports, site),
                first_run=1 + _RUNS * len(self.sites),
            )
            network.coordinator.to_neighbour = self._to_neighbour
            network.find_elsewhere = self._find
            self.sites[site] = network
        kernel.every(_CONNECT_S, self._connect)

    def _find(self, address: str) -> SimulatedTopicBroker | None:
        """A broker of any site."""
        name = BrokerId(address.removeprefix("ws://"))
        return next((network.brokers[name] for network in self.sites.values() if name in network.brokers), None)

    def visit(self, topic: TopicName, source: BrokerId, host: str, target: BrokerId) -> None:
        """Send the receivers of a topic from an edge to an edge of another site, as the two coordinators order it."""
        core, edge = self.sites[host].coordinator.core, self._find(f"ws://{source}")
        record = None if core is None else core.registry.topics.topics.get(topic)
        if record is None or record.home is None or edge is None:
            return
        site = next(name for name, network in self.sites.items() if source in network.brokers)
        clients = {
            connection.client: VisitorAccess(host, f"ws://{record.home}", visitor_user(site, connection.user))
            for connection in edge.core.state.connections.values()
            if VISITOR_MARK not in connection.user
        }
        if clients:
            order = RedirectReceivers(topic, list(clients), target, f"ws://{target}", clients)
            edge.happened(broker_events.SiteMessageReceived(order))

    def release(self, host: str) -> None:
        """The edges of a site end all visits."""
        for broker in self.sites[host].brokers.values():
            broker.happened(broker_events.SiteMessageReceived(ReleaseVisitors()))

    def number(self) -> int:
        return next(self._connections)

    def _add_imports(self, site: str, broker: SimulatedTopicBroker) -> None:
        broker.imports = SimulatedImports(self, site, broker, self._runs)

    def is_up(self, site: str, other: str) -> bool:
        return (min(site, other), max(site, other)) not in self.cut

    def cut_link(self, link: tuple[str, str], *, silent: bool = False) -> None:
        """Break the control connection and all imports over this link; if `silent`, after a long silence."""
        self.cut.add(link)
        self._links[link].close(silent=silent)
        for site, other in (link, link[::-1]):
            for broker in self.sites[site].brokers.values():
                if isinstance(broker.imports, SimulatedImports):
                    broker.imports.break_off(other)

    def restore_link(self, link: tuple[str, str]) -> None:
        self.cut.discard(link)

    def kill_coordinator(self, site: str) -> None:
        self.sites[site].coordinator.kill()
        for link, control in self._links.items():
            if site in link:
                control.close()

    def restart_coordinator(self, site: str) -> None:
        self.kill_coordinator(site)
        self.sites[site].coordinator.start()

    def _connect(self) -> None:
        for link, control in self._links.items():
            cores = [self.sites[site].coordinator.core for site in link]
            if link not in self.cut and control.number is None and all(core is not None for core in cores):
                control.open()

    def _to_neighbour(self, effect: SendToNeighbour | CloseNeighbour) -> None:
        for control in self._links.values():
            if control.holds(effect.connection):
                if isinstance(effect, SendToNeighbour):
                    control.send(effect.connection, effect.message)
                else:
                    control.close()


class ControlLink:
    """The connection between the coordinators of two sites. Each end has a number of its own."""

    def __init__(self, federation: SimulatedFederation, opener: str, other: str) -> None:
        self._federation = federation
        self._sites = (opener, other)
        self.number: int | None = None
        """Of the opener's end, while the connection is open. The other end has the negative number."""
        self._pipes: dict[int, Pipe[FromNeighbour]] = {}

    def holds(self, connection: int) -> bool:
        return self.number is not None and abs(connection) == self.number

    def open(self) -> None:
        opener, other = self._sites
        number = self.number = self._federation.number()
        network = self._federation.sites[opener]
        self._pipes = {
            number: Pipe(network.transport, PEER_S, partial(self._arrive, other, opener, -number)),
            -number: Pipe(network.transport, PEER_S, partial(self._arrive, opener, other, number)),
        }
        network.coordinator.handle(NeighbourOpened(other, number))

    def send(self, connection: int, message: FromNeighbour) -> None:
        self._pipes[connection].send(message)

    def _arrive(self, site: str, sender: str, connection: int, message: FromNeighbour) -> None:
        coordinator = self._federation.sites[site].coordinator
        if self.holds(connection) and coordinator.core is not None:
            coordinator.handle(NeighbourMessageReceived(sender, connection, message))

    def close(self, *, silent: bool = False) -> None:
        if self.number is None:
            return
        number, self.number = self.number, None
        for pipe in self._pipes.values():
            pipe.close()
        opener, other = self._sites
        for site, sender, connection in ((opener, other, number), (other, opener, -number)):
            coordinator = self._federation.sites[site].coordinator
            if coordinator.core is not None:
                coordinator.handle(NeighbourClosed(sender, connection, silent))


class SimulatedImports:
    """The importing side of a broker: one client for each neighbour."""

    def __init__(
        self, federation: SimulatedFederation, site: str, broker: SimulatedTopicBroker, runs: count[int]
    ) -> None:
        self._federation = federation
        self._site = site
        self._broker = broker
        self._runs = runs
        self._clients: dict[str, SimulatedTopicClient] = {}
        self._imports: dict[tuple[str, TopicName], int] = {}
        """(neighbour, topic) → the number of its import."""

    def tick(self) -> None:
        for client in self._clients.values():
            client.handle(events.Ticked())

    def kill(self) -> None:
        for client in self._clients.values():
            client.kill()

    def break_off(self, neighbour: str) -> None:
        client = self._clients.get(neighbour)
        for connection in list(client.connections.values()) if client is not None else ():
            connection.break_off()

    def perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.StartImport(number, topic, neighbour):
                self._imports[neighbour, topic] = number
                self._later(neighbour, events.SubscribeRequested(number, topic))
            case effects.StopImport(number):
                for (neighbour, topic), known in list(self._imports.items()):
                    if known == number:
                        del self._imports[neighbour, topic]
                        self._later(neighbour, events.UnsubscribeRequested(number))

    def _later(self, neighbour: str, event: events.Event) -> None:
        if neighbour not in self._clients:
            self._clients[neighbour] = self._new_client(neighbour)
        self._federation.kernel.call_after(0.0, self._clients[neighbour].handle, event)

    def _new_client(self, neighbour: str) -> SimulatedTopicClient:
        network = self._federation.sites[neighbour]

        def find(address: str) -> SimulatedTopicBroker | None:
            return network.find(address) if self._federation.is_up(self._site, neighbour) else None

        def directory(send: tuple[TopicName, ...], receive: tuple[str, ...]) -> WatchAnswer | None:
            return network.homes(send, receive) if self._federation.is_up(self._site, neighbour) else None

        def make_receiver(topic: TopicName, _after: Position | None) -> FlowReceiver:
            return FlowReceiver(topic, numbers=lambda: self._numbers(neighbour, topic))

        return SimulatedTopicClient(
            f"site-{self._site}",
            next(self._runs),
            network.transport,
            find,
            directory,
            make_receiver=make_receiver,
            take=partial(self._take, neighbour),
        )

    def _numbers(self, neighbour: str, topic: TopicName) -> dict[str, int]:
        return self._broker.core.importing.numbers(self._imports.get((neighbour, topic), 0))

    def _take(self, neighbour: str, item: events.Item) -> None:
        number = self._imports.get((neighbour, item.topic))
        if number is None or not isinstance(item, events.TopicFrame) or not isinstance(item.message, wire.Messages):
            return
        for entry in item.message.messages:
            key = (neighbour, self._site, str(entry[0]), item.topic)
            self._federation.crossed.setdefault(key, []).append(entry[1])
        self._broker.happened(broker_events.ImportReceived(number, item.message.messages))
