"""Where the clients of a broker's topics are: the broker measures them itself, and checks the coordinates they report.

A client sends `probe`; the broker answers with an unpredictable number; the client returns the number with its own
coordinate. The broker has measured its round trip to the client by then. A client can delay its answer and look further
away than it is, never nearer. A reported coordinate must agree with that round trip. If it does not, or there is none,
the client counts as a node behind this broker, at the measured distance.

Clients never move the broker's own coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

from tocsin.broker.topics.hosted import Connection, HostedTopic, Phase, TopicsState
from tocsin.coords.coordinate import ABSURD_S, Coordinate, behind_proxy, centroid, distance_s, furthest_s
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import TopicLatency

PROBE_S = 0.2
"""Shortest pause between two probes of one connection."""
AGREES = 0.25
"""Largest relative difference between a reported coordinate's distance and the measured one."""
AGREES_S = 0.005
"""The same for short distances, in seconds: both ends add milliseconds."""
REPORT_S = 5.0
"""A topic is looked at once in this time [ePulsar §4]."""
ASKED_S = 7.5
"""The same while the coordinator asks for reports at times of its own."""
KEPT_S = 20.0
"""A round trip counts for this long: a client may have another path now."""
LOOK_AT = 32
"""Topics that are looked at together; with more topics the looks are spread over the ticks."""
_COUNT_S = 1.0
"""Shortest time over which messages are counted for a rate."""
NAMED = 8
"""Senders and receivers that a report names; the others are counted only."""
_RATE_CHANGE = 0.2
_CHANGE = 0.05
_CHANGE_S = 0.001


class ClientCoordinates:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self.own: Callable[[], Coordinate | None] = lambda: None
        """This broker's coordinate; None if it has none."""
        self.draw_nonce: Callable[[], int] | None = None
        """Draws unpredictable numbers. None: this broker does not answer probes."""
        self.corrected = 0
        """Reported coordinates that did not agree with the measured round trip."""
        self._due: list[HostedTopic] = []
        self._looked_s = 0.0
        self._asked_s = float("-inf")

    @property
    def on(self) -> bool:
        return self.draw_nonce is not None

    def probe(self, connection: Connection, request: wire.Probe) -> None:
        state, own = self._state, self.own()
        if self.draw_nonce is None:
            state.refuse(connection, request.id, Code.BAD_REQUEST, "this broker measures no network coordinates")
        elif state.now_s - connection.probed_s < PROBE_S:
            message = f"at most one probe in {PROBE_S:g} s"
            state.refuse(connection, request.id, Code.TOO_MANY, message, PROBE_S)
        else:
            nonce = self.draw_nonce()
            connection.nonce, connection.probed_s = nonce, state.now_s
            settled = own if own is not None and own.is_settled else None
            state.send(connection, wire.Probed(request.id, nonce, settled))

    def locate(self, connection: Connection, report: wire.Locate) -> None:
        if connection.nonce is None or report.nonce != connection.nonce:
            return
        connection.nonce = None
        rtt_s = self._state.now_s - connection.probed_s
        if not 0.0 < rtt_s <= ABSURD_S:
            return
        trips, now_s = connection.round_trips, self._state.now_s
        if report.moved:  # a client that lies can look further away by it, never nearer
            trips.clear()
        while trips and now_s - trips[0][0] > KEPT_S:
            trips.popleft()
        trips.append((now_s, rtt_s))
        rtt_s = min(rtt_s, connection.rtt_s or rtt_s)
        own = self.own()
        if own is None or not own.is_settled:
            connection.coordinate = None
        elif report.coordinate is not None and agrees(own, report.coordinate, rtt_s):
            connection.coordinate = report.coordinate
        else:
            self.corrected += report.coordinate is not None
            connection.coordinate = behind_proxy(own, rtt_s)

    # -- reports -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at a share of the topics, so that every topic is looked at once in `REPORT_S`."""
        state = self._state
        if not self.on:
            return
        is_asked = state.now_s - self._asked_s < 2 * ASKED_S
        if not self._due and state.now_s - self._looked_s >= (ASKED_S if is_asked else REPORT_S):
            self._looked_s = state.now_s
            self._due = list(state.topics.values())
        self._look()

    def look_now(self) -> None:
        """The coordinator asks for reports: look at the first topics now, and at the others in the next ticks."""
        if self.on:
            self._looked_s = self._asked_s = self._state.now_s
            self._due = list(self._state.topics.values())
            self._look()

    def report_again(self) -> None:
        """The coordinator may have lost all reports: send them again, even if nothing changes."""
        for topic in self._state.topics.values():
            topic.reported = None

    def _look(self) -> None:
        state = self._state
        share = LOOK_AT + len(state.topics) // 40  # ten ticks a second
        for topic in self._due[:share]:
            if state.topics.get(topic.name) is topic and topic.phase is Phase.OPEN:
                self._report(topic)
        del self._due[:share]

    def _report(self, topic: HostedTopic) -> None:
        in_per_s = self._rate_per_s(topic)
        if in_per_s is None:
            return
        report = self.summary(topic, in_per_s)
        if topic.reported is None and not (report.senders or report.receivers or report.in_per_s):
            return
        if topic.reported is None or _differs(topic.reported, report):
            topic.reported = report
            self._state.report(report)

    def _rate_per_s(self, topic: HostedTopic) -> float | None:
        """Accepted messages per second since the last look; None if the topic was opened a moment ago."""
        now_s = self._state.now_s
        counted_s, sequence, rate_per_s = topic.counted or (now_s, topic.sequence, None)
        if now_s - counted_s >= _COUNT_S:
            rate_per_s = max(0, topic.sequence - sequence) / (now_s - counted_s)
            topic.counted = (now_s, topic.sequence, rate_per_s)
        return rate_per_s

    def summary(self, topic: HostedTopic, in_per_s: float = 0.0) -> TopicLatency:
        """The report of one topic. E(t) uses the measured round trips, which no client can make shorter."""
        connections = self._state.connections
        senders = [c for name in topic.senders if (c := connections[name]).round_trips]
        receivers = [c for name in (*topic.live, *topic.lagging) if (c := connections[name]).round_trips]
        worst_s = None
        if senders and receivers:
            worst_s = (max(c.rtt_s or 0.0 for c in senders) + max(c.rtt_s or 0.0 for c in receivers)) / 2
        at = [[c.coordinate for c in clients if c.coordinate is not None] for clients in (senders, receivers)]
        centres = [centroid(coordinates) if coordinates else None for coordinates in at]
        deviation_s = sum(furthest_s(coordinates, centre) for coordinates, centre in zip(at, centres, strict=True))
        return TopicLatency(
            topic.name,
            topic.epoch,
            None if worst_s is None else round(worst_s, 6),
            len(senders),
            len(receivers),
            None if centres[0] is None else centres[0].rounded(),
            None if centres[1] is None else centres[1].rounded(),
            round(deviation_s, 6),
            round(in_per_s, 2),
            round(in_per_s * (len(topic.live) + len(topic.lagging)), 2),
            sorted({connections[name].user for name in islice(topic.senders, NAMED)}),
            sorted({connections[name].user for name in islice((*topic.live, *topic.lagging), NAMED)}),
        )


def agrees(own: Coordinate, reported: Coordinate, rtt_s: float) -> bool:
    """True if a client at the reported coordinate could have this round trip to the broker."""
    if not reported.is_sane:
        return False
    return abs(distance_s(own, reported) - rtt_s) <= max(AGREES_S, AGREES * rtt_s)


def _differs(before: TopicLatency, after: TopicLatency) -> bool:
    """True if the difference is worth a message."""
    if (before.epoch, before.senders, before.receivers) != (after.epoch, after.senders, after.receivers):
        return True
    if abs(before.out_per_s - after.out_per_s) > max(1.0, _RATE_CHANGE * before.out_per_s):
        return True
    if before.worst_s is None or after.worst_s is None:
        return before.worst_s is not after.worst_s
    change_s = max(
        abs(before.worst_s - after.worst_s),
        abs(before.deviation_s - after.deviation_s),
        _shift_s(before.sender_centroid, after.sender_centroid),
        _shift_s(before.receiver_centroid, after.receiver_centroid),
    )
    return change_s > max(_CHANGE_S, _CHANGE * before.worst_s)


def _shift_s(before: Coordinate | None, after: Coordinate | None) -> float:
    """How far clients have moved as a whole, one way: at the same distance from their home, to another direction."""
    if before is None or after is None:
        return 0.0 if before is after else float("inf")
    lift_s = (after.height_s + after.adjustment_s) - (before.height_s + before.adjustment_s)
    return (math.dist(before.vector, after.vector) + abs(lift_s)) / 2.0
