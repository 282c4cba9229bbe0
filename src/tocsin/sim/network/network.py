"""The whole network in virtual time: real brokers, the real coordinator and the SDK's session, message by message.

The cores that run in processes are driven by the simulation kernel here. Messages take time, links and connections
break, brokers crash, pause and restart, and the coordinator restarts from what it stored. For small worlds in which
every message matters; `sim.balance` has the aggregated model for large ones.

    network = SimulatedNetwork(Kernel(1), {ChannelName("C"): 10.0}, sizes, brokers=["a", "b", "c"])
    network.add_subscriber("ada", [(ChannelName("C"), {"k": 1})])
    network.kernel.run(600)
    network.report()  # delivered, lost, out of order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tocsin.broker.events import Ticked
from tocsin.broker.hosted import SessionId
from tocsin.broker.state import Limits
from tocsin.client.events import BrokerAddress, BrokerLocated, LocateFailed
from tocsin.coordinator.events import BrokerRequested, Placed, UserRegistered
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.broker import SimulatedBroker
from tocsin.sim.network.coordinator import SimulatedCoordinator
from tocsin.sim.network.data_cluster import ResultSizes, SimulatedDataCluster
from tocsin.sim.network.subscriber import SimulatedConnection, SimulatedSubscriber
from tocsin.sim.network.transport import ACCESS_S, LINK_S, Transport
from tocsin.wire.errors import Code

RETRY_S = 2.0
"""How long a subscriber waits when the coordinator has no broker for it."""


@dataclass(slots=True)
class DeliveryReport:
    """Counts over all subscriptions that are held now."""

    expected: int = 0
    delivered: int = 0
    lost: int = 0
    out_of_order: int = 0
    repeats: int = 0
    """Results that the subscribers' sessions removed."""
    gaps: int = 0
    unexpected: int = 0
    """Deliveries for subscriptions that the subscriber did not hold."""
    unheld: int = 0
    """Checks at which no broker held a subscription that a subscriber has: make-before-break was broken."""
    moves: int = 0
    """Hand-overs that subscribers followed."""
    reconnects: int = 0
    """Times a subscriber without a session asked the coordinator for a broker again."""


class SimulatedNetwork:
    def __init__(
        self,
        kernel: Kernel,
        channels: Mapping[ChannelName, float | None],
        sizes: ResultSizes,
        brokers: Sequence[str],
        rules: CoordinatorRules = CoordinatorRules(),
        limits: Limits = Limits(),
    ) -> None:
        """`channels` gives each channel's period in seconds; None for a channel that only `cluster.execute` runs."""
        self.kernel = kernel
        self.transport = Transport(kernel)
        self.cluster = SimulatedDataCluster(kernel, channels, sizes)
        self.subscribers: dict[SubscriberId, SimulatedSubscriber] = {}
        self.brokers: dict[BrokerId, SimulatedBroker] = {}
        self.coordinator = SimulatedCoordinator(
            rules, self.transport, self.cluster, lambda: list(self.brokers.values())
        )
        self._limits = limits
        self._numbers = count(1)
        self._unheld = 0
        self.coordinator.start()
        for name in brokers:
            self.start_broker(BrokerId(name))
        kernel.every(0.25, self.coordinator.tick)
        kernel.every(0.5, self._tick_brokers)
        kernel.every(0.25, self._tick_subscribers)
        kernel.every(0.1, self._check_held)

    # -- processes -----------------------------------------------------------------------------------------------------

    def add_subscriber(
        self, name: str, subscriptions: Sequence[tuple[ChannelName, dict[str, Any]]], at_s: float = 0.0
    ) -> SimulatedSubscriber:
        """Add a subscriber that starts its session at `at_s`, or now if that time is past."""
        subscriber = SimulatedSubscriber(SubscriberId(name), self.transport, self._locate, self._open)
        self.subscribers[subscriber.id] = subscriber
        self.kernel.call_at(max(at_s, self.kernel.now_s), subscriber.start, subscriptions)
        return subscriber

    def start_broker(self, broker: BrokerId) -> None:
        former = self.brokers.get(broker)
        run = 1 if former is None else former.run + 1
        self.brokers[broker] = SimulatedBroker(broker, run, self._limits, self.transport, self.cluster)
        self.transport.later(LINK_S, self.coordinator.open_link, self.brokers[broker])

    def kill_broker(self, broker: BrokerId) -> None:
        self.brokers[broker].kill()
        self.coordinator.cut_link(self.brokers[broker])

    def pause_broker(self, broker: BrokerId, seconds: float) -> None:
        """Stop the process as SIGSTOP does: connections stay open, and events wait until it resumes."""
        process = self.brokers[broker].process
        process.paused = True
        self.kernel.call_after(seconds, process.resume)

    def _tick_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.handle(Ticked())

    def _tick_subscribers(self) -> None:
        for subscriber in self.subscribers.values():
            subscriber.tick()

    # -- subscribers reach the coordinator and brokers -----------------------------------------------------------------

    def _locate(self, subscriber: SimulatedSubscriber, avoid: BrokerId | None) -> None:
        self.transport.later(ACCESS_S, self._place, subscriber, avoid)

    def _place(self, subscriber: SimulatedSubscriber, avoid: BrokerId | None) -> None:
        answer: object = None
        if self.coordinator.core is not None:
            self.coordinator.handle(UserRegistered(next(self._numbers), subscriber.id))
            avoided = frozenset() if avoid is None else frozenset({avoid})
            answer = self.coordinator.handle(BrokerRequested(next(self._numbers), subscriber.id, avoid=avoided))
        if isinstance(answer, Placed):
            address = BrokerAddress(answer.broker, answer.address, "coordinator's token")
            event: BrokerLocated | LocateFailed = BrokerLocated(address)
        else:
            event = LocateFailed(Code.NOT_READY, "no broker accepts subscribers", retry=True, retry_after_s=RETRY_S)
        self.transport.later(ACCESS_S, subscriber.handle, event)

    def _open(self, connection: SimulatedConnection, broker: BrokerId) -> None:
        self.transport.later(ACCESS_S, self._accept, connection, broker)

    def _accept(self, connection: SimulatedConnection, broker: BrokerId) -> None:
        connection.accept(self.brokers.get(broker), SessionId(next(self._numbers)))

    # -- the report ----------------------------------------------------------------------------------------------------

    def report(self) -> DeliveryReport:
        report = DeliveryReport(unheld=self._unheld)
        for subscriber in self.subscribers.values():
            report.unexpected += subscriber.unexpected
            report.moves += subscriber.moves
            report.reconnects += max(0, subscriber.searches - 1)
            for identity, received in subscriber.received.items():
                due = self.cluster.subscriptions[identity].after(received.start.offset)
                offsets = [offset for offset, _ in received.results]
                report.expected += len(due)
                report.delivered += len(received.results)
                report.lost += len(set(due) - set(received.results))
                report.out_of_order += received.out_of_order + (offsets != sorted(set(offsets)))
                report.repeats += received.repeats
                report.gaps += received.gaps
        return report

    def _check_held(self) -> None:
        """Count subscriptions that no broker holds at this moment: they may miss an execution."""
        for subscriber in self.subscribers.values():
            for identity in subscriber.received:
                self._unheld += not self.cluster.subscriptions[identity].brokers
