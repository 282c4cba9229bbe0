"""Client migration: one offloading from notification to the end of BUSY, as a state machine [ePEER §4.4.4].

`handle(event, now_s) -> effects`. The head's coordinator drives it: it sends the notifications, hears the confirmations
and calls `DeadlinePassed` when `deadline_s()` has come. It decides nothing: what moves where comes in a plan.

A client is notified, connects to its new broker and drops the old connection when nothing is left queued there; then it
confirms. Until then the old broker keeps sending what it has. The offloading ends when all clients have confirmed or
are gone, when a broker that takes part is lost, or at the time-out. In every case all brokers leave BUSY.

    NOTIFIED ──connected──▶ CONNECTED ──drained──▶ MOVED
       │  └──────────────── drained before connected: waits for the connection
       └── gone / time-out ──▶ STAYED (never connected) or MOVED (connected, and still drains the old queue)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.offload_types import BundleMove, ClientId, Offload
from tocsin.policies.topics.types import TopicName

TIMEOUT_S = 30.0
"""Ours: the thesis has a default time-out and does not say which. Longer than a client needs to connect and drain a
queue of some seconds, shorter than anyone wants two brokers to refuse work."""


class Code(StrEnum):
    BUSY = "busy"
    NOTHING_TO_MOVE = "nothing-to-move"
    UNKNOWN_CLIENT = "unknown-client"


# Events.


@dataclass(frozen=True, slots=True)
class OffloadOrdered:
    offload: Offload


@dataclass(frozen=True, slots=True)
class ClientConnected:
    """To its new broker: messages reach it there."""

    client: ClientId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class ClientDrained:
    """Nothing is left for it at the old broker, it dropped that connection and says so."""

    client: ClientId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class ClientGone:
    """It closed both connections: there is nobody to wait for."""

    client: ClientId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class BrokerLost:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    pass


Event = OffloadOrdered | ClientConnected | ClientDrained | ClientGone | BrokerLost | DeadlinePassed


# Effects.


@dataclass(frozen=True, slots=True)
class EnterBusy:
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class NotifyClient:
    """Connect to `target`; keep the connection to `source` until its queue is empty."""

    client: ClientId
    topic: TopicName
    source: BrokerId
    target: BrokerId


@dataclass(frozen=True, slots=True)
class LeaveBusy:
    """To the state that is measured. Measurements from before are of another distribution and are to be forgotten."""

    brokers: tuple[BrokerId, ...]


class Ending(StrEnum):
    COMPLETE = "complete"
    TIMED_OUT = "timed-out"
    BROKER_LOST = "broker-lost"


@dataclass(frozen=True, slots=True)
class OffloadEnded:
    offload: Offload
    ending: Ending
    moved: tuple[tuple[ClientId, TopicName], ...]
    stayed: tuple[tuple[ClientId, TopicName], ...]


@dataclass(frozen=True, slots=True)
class Reject:
    code: Code
    detail: str


Effect = EnterBusy | NotifyClient | LeaveBusy | OffloadEnded | Reject


class _Step(StrEnum):
    NOTIFIED = "notified"
    DRAINED = "drained"
    CONNECTED = "connected"
    MOVED = "moved"
    GONE = "gone"


_AFTER_CONNECTED = {_Step.NOTIFIED: _Step.CONNECTED, _Step.DRAINED: _Step.MOVED}
_AFTER_DRAINED = {_Step.NOTIFIED: _Step.DRAINED, _Step.CONNECTED: _Step.MOVED}
_OVER = (_Step.MOVED, _Step.GONE)


@dataclass
class _Running:
    offload: Offload
    deadline_s: float
    steps: dict[tuple[ClientId, TopicName], _Step] = field(default_factory=dict)


class Migrations:
    """All offloadings of one site. No broker takes part in two at once."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._running: list[_Running] = []

    @property
    def busy(self) -> frozenset[BrokerId]:
        return frozenset(broker for one in self._running for broker in one.offload.brokers)

    def deadline_s(self) -> float | None:
        return min((one.deadline_s for one in self._running), default=None)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case OffloadOrdered(offload):
                return self._start(offload, now_s)
            case ClientConnected(client, topic):
                return self._advance(client, topic, _AFTER_CONNECTED)
            case ClientDrained(client, topic):
                return self._advance(client, topic, _AFTER_DRAINED)
            case ClientGone(client, topic):
                return self._advance(client, topic, dict.fromkeys(_Step, _Step.GONE))
            case BrokerLost(broker):
                hit = [one for one in self._running if broker in one.offload.brokers]
                return self._end(hit, Ending.BROKER_LOST)
            case DeadlinePassed():
                return self._end([one for one in self._running if one.deadline_s <= now_s], Ending.TIMED_OUT)

    def _start(self, offload: Offload, now_s: float) -> list[Effect]:
        if not any(move.clients for move in offload.moves):
            return [Reject(Code.NOTHING_TO_MOVE, f"the offload of {offload.source} moves nobody")]
        taken = [broker for broker in offload.brokers if broker in self.busy]
        if taken:
            return [Reject(Code.BUSY, f"{', '.join(taken)} already take part in an offloading")]
        running = _Running(offload, now_s + self._timeout_s)
        running.steps = {(client, move.topic): _Step.NOTIFIED for move in offload.moves for client in move.clients}
        self._running.append(running)
        return [EnterBusy(offload.brokers), *_notifications(offload.moves)]

    def _advance(self, client: ClientId, topic: TopicName, then: dict[_Step, _Step]) -> list[Effect]:
        """A confirmation that comes twice changes nothing; one that nobody waits for is refused."""
        for running in self._running:
            step = running.steps.get((client, topic))
            if step is None:
                continue
            if step not in _OVER:
                running.steps[client, topic] = then.get(step, step)
            done = all(one in _OVER for one in running.steps.values())
            return self._end([running], Ending.COMPLETE) if done else []
        return [Reject(Code.UNKNOWN_CLIENT, f"{client} is not being moved for {topic}")]

    def _end(self, ended: Iterable[_Running], ending: Ending) -> list[Effect]:
        effects: list[Effect] = []
        for running in ended:
            self._running.remove(running)
            moved = tuple(key for key, step in running.steps.items() if step in (_Step.MOVED, _Step.CONNECTED))
            stayed = tuple(key for key, step in running.steps.items() if step in (_Step.NOTIFIED, _Step.DRAINED))
            effects += [
                OffloadEnded(running.offload, ending, moved, stayed),
                LeaveBusy(running.offload.brokers),
            ]
        return effects


def _notifications(moves: Iterable[BundleMove]) -> list[NotifyClient]:
    return [NotifyClient(client, move.topic, move.source, move.target) for move in moves for client in move.clients]
