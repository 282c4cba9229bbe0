"""A coordinator core, and brokers that send only messages chosen by the test. Virtual time, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import AnswerRequest, Effect, Note, SendToBroker
from tocsin.coordinator.events import (
    BrokerRequested,
    DrainOrdered,
    Event,
    LinkClosed,
    LinkMessageReceived,
    Placed,
    PlanProposed,
    RequestedMove,
    Ticked,
    UserRegistered,
)
from tocsin.coordinator.records import BrokerRecord, SubscriberRecord
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.turn import Turn
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.snapshot import Place, Snapshot
from tocsin.wire import link as wire
from tocsin.wire.link import Frontend

_Message = TypeVar("_Message")

B1, B2, B3 = BrokerId("b1"), BrokerId("b2"), BrokerId("b3")
ADA = SubscriberId("ada")


class Bench:
    def __init__(self, rules: CoordinatorRules | None = None, now_s: float = 100.0) -> None:
        self.core = Coordinator(rules or CoordinatorRules(), "e", now_s=now_s)
        self.registry = self.core.registry
        self.now_s = now_s
        self.effects: list[Effect] = []
        """The effects of the last event."""
        self._links: dict[BrokerId, int] = {}
        self._link_numbers, self._asks = count(1), count(1)

    def handle(self, event: Event) -> list[Effect]:
        self.effects = self.core.handle(event, self.now_s)
        return self.effects

    def ask(self, request: Callable[[int], Event]) -> object:
        """The answer to a request."""
        number = next(self._asks)
        self.handle(request(number))
        [answer] = [effect.value for effect in self.effects if isinstance(effect, AnswerRequest)]
        return answer

    # -- brokers -------------------------------------------------------------------------------------------------------

    def register(self, *brokers: BrokerId, **fields: object) -> None:
        """Register over a new link."""
        for broker in brokers:
            self._links[broker] = next(self._link_numbers)
            self.send(broker, wire.Register(broker, "i1", f"ws://{broker}", **fields))  # type: ignore[arg-type]

    def send(self, broker: BrokerId, message: wire.FromBroker) -> list[Effect]:
        return self.handle(LinkMessageReceived(broker, self._links[broker], message))

    def cut(self, broker: BrokerId) -> None:
        self.handle(LinkClosed(broker, self._links[broker]))

    def wait(self, seconds: float, *beating: BrokerId) -> None:
        """Let time pass in ticks of half a second. The brokers in `beating` send heartbeats."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for broker in beating:
                self.send(broker, wire.Heartbeat(0, 0, 0))
            self.handle(Ticked())

    def kill(self, broker: BrokerId, *beating: BrokerId) -> None:
        """Cut the link and wait until the broker is dead."""
        self.cut(broker)
        self.wait(11.0, *beating)

    def broker(self, broker: BrokerId) -> BrokerRecord:
        return self.registry.brokers[broker]

    def sent(self, broker: BrokerId, kind: type[_Message]) -> list[_Message]:
        """Messages of this kind that the last event sent to this broker."""
        messages = [e.message for e in self.effects if isinstance(e, SendToBroker) and e.broker == broker]
        return [message for message in messages if isinstance(message, kind)]

    def notes(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, Note)]

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def place(self, name: str, place: Place | None = None, coordinate: Coordinate | None = None) -> object:
        """Register a user and request a broker for it. Returns the answer to that request."""
        user = SubscriberId(name)
        self.ask(lambda ask: UserRegistered(ask, user, place, coordinate))
        return self.ask(lambda ask: BrokerRequested(ask, user))

    def connect(self, name: str, broker: BrokerId, *subscriptions: str) -> None:
        """Open a session and subscribe."""
        self.send(broker, wire.SessionOpened(SubscriberId(name)))
        self.send(broker, wire.Changed(1, SubscriberId(name), added=[frontend(s) for s in subscriptions]))

    def subscriber(self, name: str) -> SubscriberRecord:
        return self.registry.subscribers[SubscriberId(name)]

    def home(self, name: str) -> BrokerId | None:
        return self.subscriber(name).home

    # -- plans ---------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.core.planning.snapshot(Turn(self.registry, self.core.loads, self.core.rules, self.now_s))

    def plan(self, policy: str, *, dry_run: bool = True) -> Decision:
        return decision(self.ask(lambda ask: PlanProposed(ask, policy, dry_run=dry_run)))

    def propose(self, *moves: tuple[str, BrokerId], dry_run: bool = True, generation: int | None = None) -> Decision:
        requested = tuple(RequestedMove(SubscriberId(name), target) for name, target in moves)
        return decision(self.ask(lambda ask: PlanProposed(ask, None, requested, dry_run, generation)))

    def move(self, name: str, target: BrokerId) -> None:
        self.propose((name, target), dry_run=False)

    def drain(self, broker: BrokerId) -> object:
        return self.ask(lambda ask: DrainOrdered(ask, broker, True))


def frontend(name: str) -> Frontend:
    return Frontend(SubscriptionId(name), ChannelName("C"), {}, "1-0")


def placed_at(answer: object) -> BrokerId:
    assert isinstance(answer, Placed), answer
    return answer.broker


def decision(answer: object) -> Decision:
    assert isinstance(answer, Decision), answer
    return answer


def crowded(rules: CoordinatorRules | None = None) -> Bench:
    """Four subscribers on b1 with one subscription each of 10 bytes/s; b2 is empty."""
    bench = Bench(rules)
    bench.register(B1)
    names = ("ada", "bob", "eve", "joe")
    for name in names:
        bench.place(name)
        bench.connect(name, B1, name)
    bench.send(B1, wire.LoadReport(40.0, 40.0, {SubscriptionId(name): 10.0 for name in names}))
    bench.register(B2)
    return bench
