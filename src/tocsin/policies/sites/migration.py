"""Client migration: one offloading from the notifications to the end of BUSY, as a state machine [ePEER §4.4.4].

`handle(event, now_s) -> effects`. The head's coordinator drives it: it sends the notifications, receives the
confirmations and sends `OffloadDeadlinePassed` at `deadline_s()`. A plan decides which clients move.

A notified client connects to its new broker, drops the old connection when its queue there is empty, and confirms.
Until then the old broker keeps sending. The offloading ends when all clients have confirmed or left, when a
participating broker is lost, or at the time-out. In every case all brokers leave BUSY.

    NOTIFIED ──connected──▶ CONNECTED ──drained──▶ MOVED
       │  └──────────────── drained before connected: waits for the connection
       └── gone / time-out ──▶ STAYED (never connected) or MOVED (connected, and still drains the old queue)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.types import ClientId, Offload
from tocsin.policies.topics.types import TopicName

TIMEOUT_S = 30.0
"""Ours: the thesis has a default time-out but does not give it.

It is long enough for a client to connect and to drain a queue of some seconds, and short enough that two BUSY brokers
do not refuse work for long.
"""


class MigrationCode(StrEnum):
    BUSY = "busy"
    NOTHING_TO_MOVE = "nothing-to-move"
    UNKNOWN_CLIENT = "unknown-client"


# Events.


@dataclass(frozen=True, slots=True)
class OffloadOrdered:
    offload: Offload


@dataclass(frozen=True, slots=True)
class ClientConnected:
    """The client is connected to `target`, its new broker, and receives messages there."""

    client: ClientId
    topic: TopicName
    target: BrokerId


@dataclass(frozen=True, slots=True)
class ClientDrained:
    """The client's queue at `source`, its old broker, is empty, and the client has dropped that connection.

    The confirmation names the broker: an earlier offloading of the same client may have timed out before the queue was
    empty.
    """

    client: ClientId
    topic: TopicName
    source: BrokerId


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client has closed both connections."""

    client: ClientId
    topic: TopicName


@dataclass(frozen=True, slots=True)
class BrokerLost:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class OffloadDeadlinePassed:
    pass


Event = OffloadOrdered | ClientConnected | ClientDrained | ClientGone | BrokerLost | OffloadDeadlinePassed


# Effects.


@dataclass(frozen=True, slots=True)
class EnterBusy:
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class NotifyClient:
    """Request a client to connect to `target` and to keep the connection to `source` until its queue is empty."""

    client: ClientId
    topic: TopicName
    source: BrokerId
    target: BrokerId


@dataclass(frozen=True, slots=True)
class LeaveBusy:
    """Let a broker return to its measured state. The driver discards its earlier measurements, which are outdated."""

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
class MigrationRejection:
    """An event that changed nothing."""

    code: MigrationCode
    detail: str


Effect = EnterBusy | NotifyClient | LeaveBusy | OffloadEnded | MigrationRejection


class _Step(StrEnum):
    NOTIFIED = "notified"
    DRAINED = "drained"
    CONNECTED = "connected"
    MOVED = "moved"
    GONE = "gone"


_AFTER_CONNECTED = {_Step.NOTIFIED: _Step.CONNECTED, _Step.DRAINED: _Step.MOVED}
_AFTER_DRAINED = {_Step.NOTIFIED: _Step.DRAINED, _Step.CONNECTED: _Step.MOVED}
_FINAL = (_Step.MOVED, _Step.GONE)


@dataclass
class _Running:
    offload: Offload
    deadline_s: float
    steps: dict[tuple[ClientId, TopicName], _Step] = field(default_factory=dict)
    ends: dict[tuple[ClientId, TopicName], tuple[BrokerId, BrokerId]] = field(default_factory=dict)
    """The source and the target of each client."""
    left: int = 0
    """Clients without a final step."""


class OffloadMigrations:
    """All offloadings of one site. A broker takes part in at most one at a time."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._running: list[_Running] = []

    @property
    def busy(self) -> frozenset[BrokerId]:
        return frozenset(broker for running in self._running for broker in running.offload.brokers)

    @property
    def offloads(self) -> list[Offload]:
        """The offloadings in progress."""
        return [running.offload for running in self._running]

    def deadline_s(self) -> float | None:
        return min((running.deadline_s for running in self._running), default=None)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case OffloadOrdered(offload):
                return self._start(offload, now_s)
            case ClientConnected(client, topic, target):
                return self._advance(client, topic, _AFTER_CONNECTED, target=target)
            case ClientDrained(client, topic, source):
                return self._advance(client, topic, _AFTER_DRAINED, source=source)
            case ClientGone(client, topic):
                return self._advance(client, topic, dict.fromkeys(_Step, _Step.GONE))
            case BrokerLost(broker):
                affected = [running for running in self._running if broker in running.offload.brokers]
                return self._end(affected, Ending.BROKER_LOST)
            case OffloadDeadlinePassed():
                expired = [running for running in self._running if running.deadline_s <= now_s]
                return self._end(expired, Ending.TIMED_OUT)

    def _start(self, offload: Offload, now_s: float) -> list[Effect]:
        notices: list[Effect] = [
            NotifyClient(client, move.topic, move.source, move.target)
            for move in offload.moves
            for client in move.clients
        ]
        if not notices:
            detail = f"the offload of {offload.source} moves no client"
            return [MigrationRejection(MigrationCode.NOTHING_TO_MOVE, detail)]
        busy = [broker for broker in offload.brokers if broker in self.busy]
        if busy:
            detail = f"{', '.join(busy)} already take part in an offloading"
            return [MigrationRejection(MigrationCode.BUSY, detail)]
        running = _Running(offload, now_s + self._timeout_s)
        running.ends = {
            (client, move.topic): (move.source, move.target) for move in offload.moves for client in move.clients
        }
        running.steps = dict.fromkeys(running.ends, _Step.NOTIFIED)
        running.left = len(running.steps)
        self._running.append(running)
        return [EnterBusy(offload.brokers), *notices]

    def _advance(
        self,
        client: ClientId,
        topic: TopicName,
        then: dict[_Step, _Step],
        source: BrokerId | None = None,
        target: BrokerId | None = None,
    ) -> list[Effect]:
        """Record a confirmation. A repeated one changes nothing; one from a client that does not move between these
        brokers is rejected."""
        key = client, topic
        for running in self._running:
            ends = running.ends.get(key)
            if ends is None or source not in (None, ends[0]) or target not in (None, ends[1]):
                continue
            step = running.steps[key]
            if step not in _FINAL:
                running.steps[key] = then.get(step, step)
                running.left -= running.steps[key] in _FINAL
            return [] if running.left else self._end([running], Ending.COMPLETE)
        return [MigrationRejection(MigrationCode.UNKNOWN_CLIENT, f"{client} is not being moved for {topic}")]

    def _end(self, ended: Iterable[_Running], ending: Ending) -> list[Effect]:
        effects: list[Effect] = []
        for running in ended:
            self._running.remove(running)
            moved = tuple(key for key, step in running.steps.items() if step in (_Step.MOVED, _Step.CONNECTED))
            stayed = tuple(key for key, step in running.steps.items() if step in (_Step.NOTIFIED, _Step.DRAINED))
            effects += [OffloadEnded(running.offload, ending, moved, stayed), LeaveBusy(running.offload.brokers)]
        return effects
