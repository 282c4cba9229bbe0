"""The ends of the simulated network: a data cluster, which keeps every result, and subscribers, which check theirs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tocsin.broker import effects, events
from tocsin.broker.hosted import SessionId
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import session as wire

CHANNEL = ChannelName("Reports")


def subscription(kind: str) -> SubscriptionId:
    return SubscriptionId(f"id-{kind}")


def parsed(text: str) -> Cursor:
    cursor = Cursor.parse(text)
    assert cursor is not None
    return cursor


class SimulatedCluster:
    """The data cluster: it keeps every result, so tests can compare what clients received."""

    def __init__(self) -> None:
        self.epoch = 1
        self.execution = 0
        self.kept_from = 1
        self.results: dict[SubscriptionId, list[tuple[Cursor, bytes]]] = {}
        self.held: dict[BrokerId, set[SubscriptionId]] = {}
        self.streams: dict[BrokerId, deque[events.Event]] = {}
        self.refuses: set[str] = set()
        """Kinds that the channel refuses in its present epoch."""

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, offset_of(self.execution + 1))

    def execute(self, kinds: dict[str, int]) -> None:
        """Execute the channel with this many results per kind, and announce it to the brokers that hold the kind."""
        self.execution += 1
        for kind, count in kinds.items():
            rows = self.results.setdefault(subscription(kind), [])
            for number in range(count):
                cursor = Cursor(self.epoch, offset_of(self.execution, number) + 1)
                rows.append((cursor, msgspec.json.encode({"n": len(rows), "of": kind})))
        for broker, stream in self.streams.items():
            held = [subscription(kind) for kind in kinds if subscription(kind) in self.held.get(broker, ())]
            if held:
                stream.append(events.ExecutionAnnounced(CHANNEL, self.epoch, self.execution, held))
            stream.append(events.ProgressAnnounced({CHANNEL: self.head}))

    def expire(self) -> None:
        """Delete all results so far."""
        self.kept_from = self.execution + 1

    def replace(self) -> None:
        """Give the channel a new epoch. Its subscriptions stay."""
        self.epoch, self.execution, self.kept_from = self.epoch + 1, 0, 1
        for stream in self.streams.values():
            stream.append(events.ProgressAnnounced({CHANNEL: self.head}))

    def kept(self, identity: SubscriptionId, after: Cursor) -> list[tuple[Cursor, bytes]]:
        start = Cursor(self.epoch, offset_of(self.kept_from))
        return [result for result in self.results.get(identity, []) if result[0] > max(after, start)]

    def answer(self, effect: effects.Fetch, chunk: int) -> deque[events.Event]:
        """All events of one fetch, with at most `chunk` results each, as of now."""
        answer: deque[events.Event] = deque()
        start = Cursor(self.epoch, offset_of(self.kept_from))
        for identity, cursor in effect.positions.items():
            if cursor.epoch != self.epoch or cursor < start or cursor > self.head:
                answer.append(events.GapFound(effect.fetch, identity, start))
                cursor = Cursor(0, 0)
            results = self.kept(identity, cursor)
            for first in range(0, len(results), chunk):
                part = results[first : first + chunk]
                offsets, rows = [cursor.offset for cursor, _ in part], [row for _, row in part]
                answer.append(events.ResultsFetched(effect.fetch, identity, self.epoch, offsets, rows))
        answer.append(events.FetchEnded(effect.fetch, self.head))
        return answer


@dataclass
class SimulatedClient:
    """A subscriber: remembers its cursors and asserts that results are complete, in order and not repeated."""

    name: SubscriberId
    broker: BrokerId | None = None
    session: SessionId | None = None
    opening: tuple[BrokerId, SessionId] | None = None
    """A login without an answer."""
    seen: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    numbers: dict[SubscriptionId, list[int]] = field(default_factory=dict)
    """The received results, by their number in the data cluster."""
    gaps: set[SubscriptionId] = field(default_factory=set)
    """Subscriptions with a reported gap: the next result may have a higher number than expected."""
    ended: set[SubscriptionId] = field(default_factory=set)
    """Subscriptions that this client has unsubscribed."""
    ignored: set[SubscriptionId] = field(default_factory=set)
    """Unsubscribed subscriptions that the target of a migration still lists: their results are ignored."""

    def receive(self, batch: Batch) -> None:
        identity = batch.subscription
        if identity in self.ignored:
            return
        assert identity in self.seen, f"{self.name} holds no {identity}"
        for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
            assert cursor > self.seen[identity], "a result came again, or out of order"
            number = msgspec.json.decode(row)["n"]
            received = self.numbers.setdefault(identity, [])
            if identity in self.gaps:
                self.gaps.discard(identity)
            elif received:
                assert number == received[-1] + 1, f"{self.name} missed {received[-1] + 1} of {identity}, got {number}"
            received.append(number)
            self.seen[identity] = cursor

    def on_closed(self, place: tuple[BrokerId, SessionId]) -> None:
        if (self.broker, self.session) == place:
            self.broker = self.session = None
        if self.opening == place:
            self.opening = None

    def on_subscribed(self, held: wire.Held) -> None:
        self.seen.setdefault(held.subscription, parsed(held.cursor))
        self.ended.discard(held.subscription)
        self.ignored.discard(held.subscription)

    def on_unsubscribed(self, identity: SubscriptionId) -> None:
        self.ended.add(identity)
        self.ignored.discard(identity)
        self.seen.pop(identity, None)
        self.numbers.pop(identity, None)
        self.gaps.discard(identity)
