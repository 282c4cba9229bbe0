"""What one client has received of one topic: its position, and the publishers it has seen. Pure.

It turns the messages of a home into items for the application: each message once, each publisher's messages in order,
and a gap wherever the sequence has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.client.topic_events import Item, TopicGap, TopicMessage
from tocsin.client.topic_visits import Visit, numbers_at_home
from tocsin.model.ids import TopicName
from tocsin.model.topic import Position
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import TopicEntry

MOST_PUBLISHERS = 10_000
"""Publishers whose repeats are recognised; a repeat needs a failover between two messages of its publisher."""


@dataclass(slots=True)
class ReceiverState:
    topic: TopicName
    after: Position | None = None
    """The position of the last message, or before the first one; None before the first attach."""
    seen: dict[int, int] = field(default_factory=dict)
    """Publisher → its last number."""
    asked: Position | None = None
    """The position in the last request."""
    visit: Visit | None = None
    """Since the receiver was at another site; None if it never was."""

    @property
    def may_change_edge(self) -> bool:
        """False for a receiver that must stay at the home: it obeys no `redirect`."""
        return True

    def request(self, number: int, *, early: bool = False) -> wire.AttachReceiver:
        self.asked = self.after
        after = None if self.after is None else (self.after.epoch, self.after.sequence)
        return wire.AttachReceiver(number, self.topic, after, early)

    def attached(self, answer: wire.ReceiverAttached) -> list[Item]:
        if self.visit is not None and self.asked is not None and answer.since > self.asked.epoch:
            self.visit.begin_sequence()
        return self._at_own_site(self._continue(answer))

    def _continue(self, answer: wire.ReceiverAttached) -> list[Item]:
        before, self.after = self.after, Position(answer.epoch, answer.sequence)
        if before is not None and before != self.asked:
            # Another edge has gone on sending since the request.
            if before.epoch >= (answer.since or before.epoch + 1) and before.sequence >= answer.sequence:
                self.after = Position(max(before.epoch, answer.epoch), before.sequence)
                return []
            if answer.missed is not None:
                return [TopicGap(self.topic, before.epoch, before.sequence + 1, None)]
        if answer.missed is not None:
            return [TopicGap(self.topic, *answer.missed, None)]
        if before is not None and before.sequence < answer.sequence:
            # An early attach: the source was lost before it had sent everything.
            return [TopicGap(self.topic, before.epoch, before.sequence + 1, answer.sequence)]
        if before is not None and before.sequence == answer.sequence and before.epoch >= (answer.since or answer.epoch):
            self.after = before  # a later gap begins with what the former epoch of this sequence may still have had
        return []

    def gap(self, message: wire.Gap) -> list[Item]:
        assert self.after is not None, "a gap before the answer to the attach"
        if message.last <= self.after.sequence:
            return []
        first = max(message.first, self.after.sequence + 1)
        self.after = Position(message.epoch, message.last)
        return self._at_own_site([TopicGap(self.topic, message.epoch, first, message.last)])

    def messages(self, message: wire.Messages) -> list[Item]:
        assert self.after is not None, "messages before the answer to the attach"
        items: list[Item] = []
        epoch, sequence = message.epoch, message.sequence
        expected = self.after.sequence + 1
        visit = self.visit
        away = visit is not None and visit.is_away
        if sequence > expected:  # no home does this; a loss must not pass in silence all the same
            items += self._at_own_site([TopicGap(self.topic, epoch, expected, sequence - 1)])
        for publisher, number, data in message.messages:
            is_new = sequence >= expected and (visit is None or visit.is_new(publisher, number, epoch, sequence))
            if is_new and number > self.seen.get(publisher, 0):
                self._see(publisher, number)
                position = visit.shown if visit is not None and away else Position(epoch, sequence)
                items.append(TopicMessage(self.topic, data, position, publisher, number))
            sequence += 1
        self.after = Position(epoch, max(sequence - 1, self.after.sequence))
        return items

    def _at_own_site(self, items: list[Item]) -> list[Item]:
        """Gaps as the application sees them. Positions of another site mean nothing to it: a gap there says that some
        messages behind the last position at the own site may be missing."""
        if self.visit is None or not self.visit.is_away:
            return items
        shown = self.visit.shown
        gap = TopicGap(self.topic, shown.epoch, shown.sequence + 1, None)
        return [gap if isinstance(item, TopicGap) else item for item in items]

    # -- visits to other sites -----------------------------------------------------------------------------------------

    def prepare_visit(self, found: wire.PositionFound) -> bool:
        """Take over the numbers of the flows at the present position of the own site. False if the receiver has not got
        so far yet."""
        after = self.after
        numbers = None if after is None else numbers_at_home(found, after, self.seen)
        if after is None or numbers is None:
            return False
        known = {} if self.visit is None else self.visit.numbers
        merged = {flow: max(number, known.get(flow, 0)) for flow, number in numbers.items()}
        own_sequence = 0 if self.visit is None else self.visit.own_sequence
        self.visit = Visit(found.own, found.own, after, {**known, **merged}, own_sequence)
        return True

    def request_at(self, number: int, found: wire.PositionFound) -> wire.AttachReceiver:
        """The attach at another site, while the own site goes on sending."""
        return wire.AttachReceiver(number, self.topic, (found.epoch, found.sequence))

    def enter(self, found: wire.PositionFound) -> list[Item]:
        """The site that has found the position serves the receiver from now on."""
        visit = self.visit
        assert visit is not None, "a visit was not prepared"
        if not visit.is_away and self.after is not None:
            visit.shown = self.after
        visit.enter(found)
        self.after = self.asked = Position(found.epoch, found.sequence)
        return self._at_own_site([TopicGap(self.topic, found.epoch, found.sequence + 1, None)]) if found.missed else []

    def _see(self, publisher: int, number: int) -> None:
        if publisher not in self.seen and len(self.seen) >= MOST_PUBLISHERS:
            del self.seen[next(iter(self.seen))]
        self.seen[publisher] = number


def first_position(entry: TopicEntry, begun_epoch: int) -> Position | None:
    """Where a subscription begins with a topic: at its first message, if the topic was created later."""
    return Position(entry.created, 0) if entry.created > begun_epoch else None
