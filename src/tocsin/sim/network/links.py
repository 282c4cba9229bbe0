"""Messages in flight in the simulated network: delays, ordered pipes and broken connections.

A pipe keeps the order of its messages, as a TCP connection does. Messages of different pipes may overtake each other.
A broken connection loses the messages that are still in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tocsin.broker.encodings import Encoding
from tocsin.broker.entities import Asker, SessionId
from tocsin.broker.events import CoordinatorSaid, LinkLost, LinkOpened, LoginRequested, RequestReceived, SessionLost
from tocsin.client.events import Lost, Opened, Received
from tocsin.sim.kernel import Kernel
from tocsin.wire import link
from tocsin.wire import session as wire

if TYPE_CHECKING:
    from tocsin.sim.network.broker import SimulatedBroker
    from tocsin.sim.network.subscriber import SimulatedSubscriber

LINK_S = 0.005
"""One-way delay between a broker and the coordinator, and between a broker and the data cluster."""
ACCESS_S = 0.020
"""One-way delay between a subscriber and a broker or the coordinator."""
HAND_OVER = "hand-over "
"""Prefix of a hand-over token; the migration's id follows."""

T = TypeVar("T")


class Transport:
    """Schedules every arrival. `delay_s` maps a usual delay to the delay of one message; a test may replace it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.delay_s: Callable[[float], float] = lambda usual_s: usual_s
        self._frozen_until_s = 0.0

    def freeze(self, seconds: float) -> None:
        """Let nothing arrive for this long. Clocks go on, so deadlines may pass."""
        self._frozen_until_s = self.kernel.now_s + seconds

    def later(self, usual_s: float, action: Callable[..., object], *arguments: Any) -> None:
        self.at(self.kernel.now_s + self.delay_s(usual_s), action, *arguments)

    def at(self, time_s: float, action: Callable[..., object], *arguments: Any) -> None:
        self.kernel.call_at(time_s, self._arrive, action, arguments)

    def _arrive(self, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.kernel.now_s < self._frozen_until_s:
            self.kernel.call_at(self._frozen_until_s, self._arrive, action, arguments)
        else:
            action(*arguments)


class Pipe(Generic[T]):
    """One direction of a connection. `receive` is called with each item, in the order of `send`."""

    def __init__(self, transport: Transport, usual_s: float, receive: Callable[[T], object]) -> None:
        self._transport = transport
        self._usual_s = usual_s
        self._receive = receive
        self._in_flight: deque[T] = deque()
        self._last_arrival_s = 0.0
        self._closed = False

    def send(self, item: T) -> None:
        if not self._closed:
            now_s = self._transport.kernel.now_s
            self._last_arrival_s = max(self._last_arrival_s, now_s + self._transport.delay_s(self._usual_s))
            self._in_flight.append(item)
            self._transport.at(self._last_arrival_s, self._arrive)

    def close(self) -> None:
        """Lose everything in flight."""
        self._closed = True

    def _arrive(self) -> None:
        if not self._closed:
            self._receive(self._in_flight.popleft())


class SimulatedLink:
    """A broker's link to the coordinator. `hear` gets the broker's messages."""

    def __init__(
        self,
        transport: Transport,
        number: int,
        broker: SimulatedBroker,
        hear: Callable[[SimulatedLink, link.FromBroker], object],
    ) -> None:
        self.number = number
        self.broker = broker
        self.up: Pipe[link.FromBroker] = Pipe(transport, LINK_S, lambda message: hear(self, message))
        self.down: Pipe[link.FromCoordinator] = Pipe(
            transport, LINK_S, lambda message: broker.handle(CoordinatorSaid(message))
        )
        broker.link = self
        broker.handle(LinkOpened())

    def close(self) -> None:
        self.up.close()
        self.down.close()
        self.broker.link = None
        self.broker.handle(LinkLost())


class SimulatedConnection:
    """A subscriber's connection to a broker. Both sides close it with a last item, after everything they sent."""

    def __init__(self, transport: Transport, subscriber: SimulatedSubscriber, number: int, token: str) -> None:
        self.subscriber = subscriber
        self.number = number
        self.broker: SimulatedBroker | None = None
        """None until the broker accepted the connection."""
        self.session: SessionId
        self._token = token
        self._left = False
        self._broken = False
        self._closing = False
        self._up: Pipe[wire.FromSubscriber | None] = Pipe(transport, ACCESS_S, self._reach_broker)
        self._down: Pipe[wire.ToSubscriber | str] = Pipe(transport, ACCESS_S, self._reach_subscriber)

    def accept(self, broker: SimulatedBroker | None, session: SessionId) -> None:
        """Open the connection at `broker`; None or a dead broker refuses it."""
        if self._left:
            return
        if broker is None or not broker.running:
            self._broken = True
            self.subscriber.handle(Lost(self.number, "refused"))
            return
        self.broker, self.session = broker, session
        broker.connections[session] = self
        self.subscriber.handle(Opened(self.number))

    def send_up(self, message: wire.FromSubscriber) -> None:
        self._up.send(message)

    def send_down(self, message: wire.ToSubscriber) -> None:
        self._down.send(message)

    def leave(self) -> None:
        """The subscriber closes the connection and reads nothing more from it."""
        self._left = True
        self._up.send(None)

    def end(self, reason: str) -> None:
        """The broker closes the connection and accepts no more requests on it."""
        self._closing = True
        self._down.send(reason)

    def break_off(self, reason: str = "reset") -> None:
        """Lose everything in flight; both sides notice at once."""
        if self._broken:
            return
        self._broken = True
        self._up.close()
        self._down.close()
        if self.broker is not None:
            self.broker.connections.pop(self.session, None)
            self.broker.handle(SessionLost(self.session, reason))
        if not self._left:
            self.subscriber.handle(Lost(self.number, reason))

    def _reach_broker(self, message: wire.FromSubscriber | None) -> None:
        if message is None:
            self.break_off("left")
        elif self.broker is not None and not self._closing:
            self.broker.handle(self._event(message))

    def _event(self, message: wire.FromSubscriber) -> LoginRequested | RequestReceived:
        asker, subscriber = Asker(session=self.session), self.subscriber.id
        if not isinstance(message, wire.Login):
            return RequestReceived(asker, subscriber, message)
        migration = self._token.removeprefix(HAND_OVER) if self._token.startswith(HAND_OVER) else None
        return LoginRequested(
            asker, subscriber, message.id, message.resume, encoding=Encoding.PLAIN, migration=migration
        )

    def _reach_subscriber(self, message: wire.ToSubscriber | str) -> None:
        if isinstance(message, str):
            self.break_off(message)
        elif not self._left:
            self.subscriber.handle(Received(self.number, message))
