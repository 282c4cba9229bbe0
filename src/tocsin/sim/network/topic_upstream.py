"""The upstream side of a simulated edge: the session that receives relayed topics, and fetches of older messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from tocsin.broker.topics import effects
from tocsin.broker.topics import events as broker_events
from tocsin.broker.topics.events import ConnectionId
from tocsin.client import topic_events as events
from tocsin.client.topic_frames import FrameReceiver
from tocsin.sim.network.topic_broker import SimulatedTopicBroker
from tocsin.sim.network.topic_client import Directory, FindBroker, SimulatedTopicClient
from tocsin.sim.network.transport import PEER_S, Pipe, Transport
from tocsin.wire import topic as wire

Older = wire.ReceiverAttached | wire.Messages | wire.Gap


class SimulatedUpstream:
    def __init__(
        self, edge: SimulatedTopicBroker, run: int, transport: Transport, find: FindBroker, directory: Directory
    ) -> None:
        self._edge = edge
        self._transport = transport
        self._find = find
        self._client = SimulatedTopicClient(
            f"relay-{edge.id}", run, transport, find, directory, make_receiver=FrameReceiver, take=self._take
        )
        self._numbers = count(1)
        self._identities = count(run * 1_000_000 + 500_000)
        self._subscriptions: dict[str, int] = {}
        self._fetches: dict[int, SimulatedFetch] = {}

    def tick(self) -> None:
        self._client.handle(events.Ticked())

    def kill(self) -> None:
        self._client.kill()
        for fetch in list(self._fetches.values()):
            fetch.break_off()

    def perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.StartRelay(topic):
                number = self._subscriptions[topic] = next(self._numbers)
                self._later(events.SubscribeRequested(number, topic))
            case effects.StopRelay(topic):
                self._later(events.UnsubscribeRequested(self._subscriptions.pop(topic)))
            case effects.FetchOlder(number, topic, after):
                home = self._client.session.homes.get(topic)
                broker = None if home is None else self._find(home.best)
                attach = wire.AttachReceiver(2, topic, after, at_home=True)
                done = self._reporter(number)
                self._fetches[number] = SimulatedFetch(
                    self._transport, broker, ConnectionId(next(self._identities)), attach, done
                )
            case effects.ReadOlder(number) if number in self._fetches:
                self._fetches[number].read()
            case effects.EndFetch(number) if number in self._fetches:
                self._fetches.pop(number).break_off()

    def _later(self, event: events.Event) -> None:
        self._transport.kernel.call_after(0.0, self._client.handle, event)

    def _take(self, item: events.Item) -> None:
        if isinstance(item, events.TopicFrame):
            self._edge.happened(broker_events.relay_event(item.topic, item.message))

    def _reporter(self, number: int) -> Callable[[Older | None], None]:
        def report(message: Older | None) -> None:
            if number not in self._fetches:
                return
            if message is None:
                del self._fetches[number]
                self._edge.happened(broker_events.OlderFailed(number))
            else:
                self._edge.happened(broker_events.OlderReceived(number, message))

        return report


class SimulatedFetch:
    """One more connection to a home. `report` gets each message that the core wants, and None if the fetch fails."""

    def __init__(
        self,
        transport: Transport,
        broker: SimulatedTopicBroker | None,
        identity: ConnectionId,
        attach: wire.AttachReceiver,
        report: Callable[[Older | None], None],
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._report = report
        self._arrived: deque[Older] = deque()
        self._wanted = True
        self._open = True
        self._up: Pipe[wire.FromClient] = Pipe(transport, PEER_S, self._reach_broker)
        self.down: Pipe[wire.ToClient | None] = Pipe(transport, PEER_S, self._reach_edge)
        transport.later(2 * PEER_S, self._connected, attach)

    def _connected(self, attach: wire.AttachReceiver) -> None:
        if not self._open:
            return
        if self._broker is None or not self._broker.running:
            self._fail()
            return
        self._broker.connections[self._identity] = self
        self._up.send(wire.Login(1))
        self._up.send(attach)

    def _reach_broker(self, message: wire.FromClient) -> None:
        assert self._broker is not None
        if isinstance(message, wire.Login):
            self._broker.happened(broker_events.ConnectionOpened(self._identity, "relay", message.id))
        else:
            self._broker.happened(broker_events.RequestReceived(self._identity, message))

    def _reach_edge(self, message: wire.ToClient | None) -> None:
        if isinstance(message, wire.ReceiverAttached | wire.Messages | wire.Gap):
            self._arrived.append(message)
            self._hand_out()
        elif message is None or isinstance(message, wire.Refused | wire.Ended | wire.Moved):
            self._fail()

    def read(self) -> None:
        self._wanted = True
        self._hand_out()

    def _hand_out(self) -> None:
        if self._wanted and self._arrived and self._open:
            self._wanted = False
            self._report(self._arrived.popleft())

    def _fail(self) -> None:
        if self._open:
            self.break_off()
            self._report(None)

    def break_off(self) -> None:
        """Either side closes the connection, or it breaks."""
        if not self._open:
            return
        self._open = False
        self._up.close()
        self.down.close()
        if self._broker is not None and self._broker.connections.pop(self._identity, None) is not None:
            self._broker.happened(broker_events.ConnectionLost(self._identity))
        if self._broker is not None and not self._broker.running:
            self._report(None)
