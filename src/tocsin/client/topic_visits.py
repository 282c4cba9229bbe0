"""A receiver that another site serves for a while: its visit [ePEER §4.4.4, decision 24]. Pure.

Positions of one site mean nothing at another. Numbers of flows (`model.flow`) do: every message has one, the same at
every site. A visit keeps the last number of each flow. A message is new if its number is higher, whichever site sends
it. So the receiver may begin behind an earlier position than necessary: it removes what it has.

    move    1. its own home: the numbers of all flows at the receiver's position, or at a later one. The receiver waits
               until it has got so far: then these numbers are its own
            2. the host's home: the position there behind which something is missing
            3. the host's edge: attach behind that position. Then leave the edge of its own site
    return  1. its own home: the position behind which something is missing    2. attach behind it

Of the messages that a host's own clients publish, the flow's number is the position at the host. The epoch of a
position may be that of a later home, so that positions of one sequence are compared by their sequence numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.model.flow import flow_number, flow_position, is_flow
from tocsin.model.topic import Position
from tocsin.wire import topic as wire


@dataclass(slots=True)
class Visit:
    own: int
    """The flow of the receiver's own site."""
    at: int
    """The flow of the site that serves it now."""
    shown: Position
    """The last position at its own site, which the application gets while another site serves the receiver: all earlier
    messages have arrived."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Flow → the last number that arrived."""
    own_sequence: int = 0
    """Messages of the serving site's clients up to this sequence number have arrived, from whichever site."""

    @property
    def is_away(self) -> bool:
        return self.at != self.own

    def flows(self) -> dict[int, int]:
        return dict(self.numbers)

    def is_new(self, publisher: int, number: int, epoch: int, sequence: int) -> bool:
        """True for a message that has not arrived yet; it has then."""
        if is_flow(publisher):
            flow = publisher
            known = number <= self.numbers.get(flow, 0)
        else:
            flow, number = self.at, flow_number(epoch, sequence)
            known = sequence <= self.own_sequence
        if not known:
            self.numbers[flow] = max(number, self.numbers.get(flow, 0))
        return not known

    def enter(self, found: wire.PositionFound) -> None:
        """The site that has found the position serves the receiver from now on."""
        self.at = found.own
        self.own_sequence = found.own_sequence
        epoch, sequence = flow_position(self.numbers.get(found.own, 0))
        if epoch >= found.since:  # more has arrived from the other site since the request
            self.own_sequence = max(self.own_sequence, sequence)

    def begin_sequence(self) -> None:
        """The serving site has begun a new sequence: none of its messages has arrived."""
        self.own_sequence = 0


def numbers_at_home(found: wire.PositionFound, after: Position, known: dict[int, int]) -> dict[int, int] | None:
    """The numbers of a receiver at its own site that has got as far as `found`; None if it has not.

    All messages behind `after` have the epoch of `found` or a later one, so the number of the own flow has it too.
    """
    if after.epoch < found.since or after.sequence < found.sequence:
        return None
    numbers = {**found.flows, found.own: flow_number(max(after.epoch, found.epoch), after.sequence)}
    for flow, number in known.items():
        if is_flow(flow):
            numbers[flow] = max(number, numbers.get(flow, 0))
    return numbers
