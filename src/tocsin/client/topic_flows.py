"""A topic as a neighbouring site receives it: some of its flows, by number [decision 21]. Pure.

The numbers of the flows are those of the site that receives: it continues behind them at any home. A position is only a
short cut for the home that gave it. Frames without an epoch give none: a mark may still follow for an earlier place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tocsin.client.topic_events import Item, TopicFrame
from tocsin.client.topic_receiving import ReceiverState
from tocsin.model.topic import Position
from tocsin.wire import topic as wire


@dataclass(slots=True)
class FlowReceiver(ReceiverState):
    numbers: Callable[[], dict[str, int]] = dict
    """The sites whose flows to receive, and the last number of each."""

    def request(self, number: int, *, early: bool = False) -> wire.AttachReceiver:
        after = None if self.after is None else (self.after.epoch, self.after.sequence)
        return wire.AttachReceiver(number, self.topic, after, early, self.numbers())

    @property
    def may_change_edge(self) -> bool:
        return False

    def attached(self, answer: wire.ReceiverAttached) -> list[Item]:
        return []

    def gap(self, message: wire.Gap) -> list[Item]:
        return []  # missing messages of a flow are marks

    def messages(self, message: wire.Messages) -> list[Item]:
        if message.epoch:
            self.after = Position(message.epoch, message.sequence + len(message.messages) - 1)
        return [TopicFrame(self.topic, message)] if message.messages else []
