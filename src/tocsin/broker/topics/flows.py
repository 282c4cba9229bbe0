"""The home's side of flows: neighbouring sites receive some flows of a topic instead of all its messages [decision 21].

A neighbour names the flows that it takes from this site, and the last number that it has of each. This home sends the
messages of those flows alone, with their numbers in the flow. The sequence numbers of a frame with a flow's messages
count back from the last message that the home has looked at: only that position matters to the neighbour. While a mark
may still have to follow, the frame has no epoch, and the neighbour does not continue from its position.

A neighbour asks by number, so any home of any site can continue a flow. What is certainly or possibly missing behind
that number is a mark in front of the flow's next message.
"""

from __future__ import annotations

from itertools import islice

from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import Connection, FlowReceiver, HostedTopic, TopicsState
from tocsin.model.flow import flow_number, flow_of, flow_position, flow_publisher, is_flow, is_mark, mark_of
from tocsin.wire import topic as wire

MOST_FLOWS = 1_000
"""In one attach: each of them takes memory until the receiver leaves, and any client may name flows."""


class Flows:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._topics: dict[int, HostedTopic] = {}
        """Topics with neighbours that receive flows."""

    # -- attach --------------------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, topic: HostedTopic, request: wire.AttachReceiver) -> int:
        """A neighbour receives flows of the topic from now on. Returns the sequence number to start behind."""
        own = flow_publisher(self._state.site)
        # Numbers begin with 1. One below 0 of a flow that is unknown here would be searched in all recent messages.
        numbers = {flow_publisher(site): max(0, number) for site, number in (request.flows or {}).items()}
        receiver = topic.flows[connection.id] = FlowReceiver(own, numbers)
        self._topics[topic.at] = topic
        after = request.after
        for flow, number in numbers.items():
            if request.early:
                receiver.starts[flow] = topic.base
            elif after is not None and after[0] >= topic.since:
                receiver.starts[flow] = min(max(after[1], 0), topic.sent)  # the neighbour has received here before
            else:
                receiver.starts[flow] = _start(topic, receiver, flow, number)
        return min(receiver.starts.values(), default=topic.sent)

    def find(self, connection: Connection, topic: HostedTopic, request: wire.FindPosition) -> None:
        """A receiver changes sites: report the numbers of all flows at its position, or the position behind which it
        misses messages."""
        own = flow_publisher(self._state.site)
        if request.flows is None:
            position = _known_position(topic, request.after)
            where = (topic.epoch, position, topic.since, position)
            answer = wire.PositionFound(request.id, own, *where, _numbers_at(topic, position))
        else:
            known = dict.fromkeys((own, *(flow for flow in topic.publishers if is_flow(flow) and not is_mark(flow))), 0)
            known |= {flow: max(0, number) for flow, number in request.flows.items() if flow in known}
            receiver = FlowReceiver(own, known)
            starts = {
                flow: _start(topic, receiver, flow, number) if number else _before_first(topic, flow, flow == own)
                for flow, number in known.items()
            }
            where = (topic.epoch, min(starts.values()), topic.since, starts[own])
            answer = wire.PositionFound(request.id, own, *where, {}, bool(receiver.pending))
        self._state.send(connection, answer)

    def newest_epoch(self, request: wire.AttachReceiver) -> int:
        """The last epoch of this site's topic that the receiver knows."""
        known = 0 if request.after is None else request.after[0]
        return max(known, flow_position((request.flows or {}).get(self._state.site, 0))[0])

    def detach(self, identity: ConnectionId, topic: HostedTopic) -> None:
        if topic.flows.pop(identity, None) is not None and not topic.flows:
            self._topics.pop(topic.at, None)

    # -- messages ------------------------------------------------------------------------------------------------------

    def send_ready(self, topic: HostedTopic, first: int, entries: list[wire.Entry]) -> None:
        """Send new messages to the neighbours that have got everything before."""
        for identity, receiver in topic.flows.items():
            if receiver.live:
                self.send(self._state.connections[identity], topic, topic.epoch, first, entries)

    def send(
        self, connection: Connection, topic: HostedTopic, epoch: int, first: int, entries: list[wire.Entry]
    ) -> None:
        """Send those of the messages that belong to the neighbour's flows."""
        chosen = _choose(topic.flows[connection.id], epoch, first, entries)
        if chosen:
            self._send(connection, topic, epoch, first + len(entries) - 1, chosen)

    def caught_up(self, connection: Connection, topic: HostedTopic) -> None:
        """The neighbour has got everything. Send the marks that no message has settled."""
        receiver = topic.flows[connection.id]
        receiver.live = True
        pending, receiver.pending = receiver.pending, {}
        last = topic.publishers
        lost = [flow for flow, sure in pending.items() if sure or last.get(flow, 0) > receiver.numbers[flow]]
        if lost:
            self._send(connection, topic, topic.epoch, topic.sent, [(mark_of(flow), 0, b"") for flow in lost])

    def _send(
        self, connection: Connection, topic: HostedTopic, epoch: int, last: int, entries: list[wire.Entry]
    ) -> None:
        receiver = topic.flows[connection.id]
        receiver.sent = last
        epoch = 0 if receiver.pending else epoch
        self._state.delivered += sum(not is_mark(entry[0]) for entry in entries)
        self._state.send(connection, wire.Messages(topic.at, epoch, last - len(entries) + 1, entries))

    def tick(self) -> None:
        """Report the position to neighbours that were sent nothing because the last messages are of other flows. They
        continue from there after a lost connection."""
        for topic in self._topics.values():
            for identity, receiver in topic.flows.items():
                if receiver.live and receiver.sent < topic.sent:
                    self._send(self._state.connections[identity], topic, topic.epoch, topic.sent, [])


def lose(receiver: FlowReceiver, last: int) -> None:
    """This home does not keep the messages up to `last` any more. They may be of any flow.

    The next message of another site's flow shows whether messages of that flow are missing.
    """
    for flow, start in receiver.starts.items():
        if start < last:
            receiver.pending[flow] = receiver.pending.get(flow, False) or flow == receiver.own


def _start(topic: HostedTopic, receiver: FlowReceiver, flow: int, number: int) -> int:
    """The sequence number behind which the flow continues after `number`."""
    if flow == receiver.own:
        position, missed = topic.start_behind(flow_position(number))
        if missed is not None:
            receiver.pending[flow] = True
        return position
    mark = mark_of(flow)
    has_all = topic.publishers.get(flow, 0) <= number  # the neighbour has as much of the flow as this site, or more
    start, sequence = topic.sent if has_all else 0, topic.sequence
    for publisher, known, _ in () if has_all and mark not in topic.publishers else reversed(topic.recent):
        if publisher == flow and known <= number and sequence <= topic.sent:
            return start if has_all else sequence
        if has_all and publisher == mark:
            start = min(start, sequence - 1)  # the neighbour may not know of this mark
        sequence -= 1
    return start


def _known_position(topic: HostedTopic, after: tuple[int, int] | None) -> int:
    """The receiver's position, if all messages behind it are in memory and of the present epoch; else the present one:
    the receiver waits until it has got so far."""
    if after is not None and after[0] >= topic.since and topic.base <= after[1] <= topic.sent:
        return after[1] if topic.sequence - after[1] <= len(topic.recent) else topic.sent
    return topic.sent


def _before_first(topic: HostedTopic, flow: int, is_own: bool) -> int:
    """The position in front of the first kept message of a flow; the present one if none is kept."""
    for sequence, (publisher, _, _) in enumerate(topic.recent, topic.sequence - len(topic.recent) + 1):
        if publisher == flow or (is_own and not is_flow(publisher)):
            return min(sequence - 1, topic.sent)
    return topic.sent


def _numbers_at(topic: HostedTopic, position: int) -> dict[int, int]:
    """The last number of each flow up to a position."""
    numbers = {flow: last for flow, last in topic.publishers.items() if is_flow(flow) and not is_mark(flow)}
    behind = topic.sequence - position
    newest = islice(reversed(topic.recent), behind) if behind <= len(topic.recent) else reversed(topic.unsent)
    for publisher, number, _ in newest:
        if publisher in numbers:
            numbers[publisher] = number - 1
    return numbers


def _choose(receiver: FlowReceiver, epoch: int, first: int, entries: list[wire.Entry]) -> list[wire.Entry]:
    """The messages of the receiver's flows that it does not have, and marks in front of what it may miss."""
    chosen: list[wire.Entry] = []
    numbers, pending = receiver.numbers, receiver.pending
    for sequence, (publisher, number, data) in enumerate(entries, first):
        if is_flow(publisher):
            flow = flow_of(publisher)
        else:
            flow, number = receiver.own, flow_number(epoch, sequence)
        last = numbers.get(flow)
        if last is None:
            continue
        if is_mark(publisher):
            pending[flow] = True
        elif number <= last:
            pending.pop(flow, None)  # what the mark stood for came before the neighbour's last message
        else:
            if pending.pop(flow, None) is not None:
                chosen.append((mark_of(flow), 0, b""))
            numbers[flow] = number
            chosen.append((flow, number, data))
    if receiver.live and pending:
        chosen += [(mark_of(flow), 0, b"") for flow in pending]
        pending.clear()
    return chosen


def without_marks(first: int, entries: list[wire.Entry]) -> list[tuple[int, list[wire.Entry]]]:
    """Runs of messages with the sequence number of the first one; an empty run stands for a mark."""
    runs: list[tuple[int, list[wire.Entry]]] = []
    start = 0
    for index, entry in enumerate(entries):
        if is_mark(entry[0]):
            if index > start:
                runs.append((first + start, entries[start:index]))
            runs.append((first + index, []))
            start = index + 1
    if start < len(entries):
        runs.append((first + start, entries[start:]))
    return runs
