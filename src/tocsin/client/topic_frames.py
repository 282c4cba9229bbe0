"""A received topic as a relay needs it: the home's frames with their positions, instead of single messages. Pure.

A relay passes on what the home ordered, also a message that a publisher sent twice because a home failed: its receivers
remove that. So positions alone decide here what is new.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tocsin.client.topic_events import Item, TopicFrame
from tocsin.client.topic_receiving import ReceiverState
from tocsin.model.topic import Position
from tocsin.wire import topic as wire


@dataclass(slots=True)
class FrameReceiver(ReceiverState):
    @property
    def may_change_edge(self) -> bool:
        return False

    def request(self, number: int, *, early: bool = False) -> wire.AttachReceiver:
        """A relay that received from an edge could receive from itself, and would get nothing."""
        return msgspec.structs.replace(ReceiverState.request(self, number, early=early), at_home=True)

    def attached(self, answer: wire.ReceiverAttached) -> list[Item]:
        before, self.after = self.after, Position(answer.epoch, answer.sequence)
        if before is not None and answer.missed is None and before.sequence > answer.sequence:
            self.after = Position(answer.epoch, before.sequence)
        return [TopicFrame(self.topic, answer)]

    def gap(self, message: wire.Gap) -> list[Item]:
        if self.after is None or message.last <= self.after.sequence:
            return []
        first = max(message.first, self.after.sequence + 1)
        self.after = Position(message.epoch, message.last)
        return [TopicFrame(self.topic, wire.Gap(message.at, message.epoch, first, message.last))]

    def messages(self, message: wire.Messages) -> list[Item]:
        last = message.sequence + len(message.messages) - 1
        if self.after is None or last <= self.after.sequence:
            return []
        self.after = Position(message.epoch, last)
        return [TopicFrame(self.topic, message)]
