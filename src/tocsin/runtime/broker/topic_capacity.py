"""The capacity of a broker for topics: configured, enforced, changed at run time; and its load, reported each second.

Capacity has three parts [ePEER table 4-2]: `Egress` enforces the output, `Matching` the matching; input is measured. A
broker without limits and without a role in a site has none of these parts, and its fast path is that of `TopicsProcess`
alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.encoding import encoded
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import PIECE_BYTES, HostedTopic
from tocsin.model.ids import TopicName
from tocsin.policies.sites.shaping import BURST_S
from tocsin.policies.sites.types import NO_LOAD, Load
from tocsin.runtime.broker.egress import Egress
from tocsin.runtime.broker.matching import Matching
from tocsin.runtime.broker.pace import CallLater
from tocsin.runtime.broker.topic_meter import TopicMeter
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.site_link import (
    Capacity,
    Client,
    FromBroker,
    ReportProfile,
    Role,
    SetCapacity,
    SiteLoad,
    SiteProfile,
    TopicLoad,
)

REPORT_S = 1.0
"""A load detection every second [ePEER §4.4.1.1]."""
_LEAST_PIECE_BYTES = 4 << 10
"""A receiver that lags gets recent messages in frames of a burst, but of no fewer bytes than this."""
_LEAST_RETRY_S, _MOST_RETRY_S = 0.05, 2.0
"""When a publisher that was refused tries again."""
Served = Iterable[tuple[HostedTopic, Collection[ConnectionId], Collection[ConnectionId]]]
"""(topic, receivers that are no neighbouring sites, senders)."""


class Matched(events.Event, frozen=True):
    """The messages of this request have passed the matching budget."""

    request: events.RequestReceived


class TopicCapacity:
    def __init__(
        self,
        topics: TopicsProcess,
        capacity: Capacity,
        role: Role = Role.PLAIN,
        call_later: CallLater = lambda delay_s, callback: asyncio.get_running_loop().call_later(delay_s, callback),
    ) -> None:
        self.capacity = Capacity()
        self.report: Callable[[FromBroker], None] = lambda message: None
        """Sends a message to the coordinator; set by the link."""
        self._topics = topics
        self._role = role
        self._call_later = call_later
        self._reporting: asyncio.Task[None] | None = None
        self._loads: dict[TopicName, Load] = {}
        """Of the second before."""
        self._sent_bytes = 0
        self._sent_before: object = None
        """The shaper, or the meter, that `_sent_bytes` is of."""
        self._initial = capacity

    def start(self) -> None:
        self.set_capacity(self._initial)
        self._reporting = asyncio.create_task(self._report_forever())

    async def stop(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    def handle(self, message: SetCapacity | ReportProfile) -> None:
        if isinstance(message, SetCapacity):
            self.set_capacity(message.capacity)
        else:
            self.report(SiteProfile(message.number, self._profile()))

    # -- limits --------------------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: Capacity) -> None:
        """Use this capacity from now on. Nothing that waits is lost or changes its order."""
        self.capacity = capacity
        is_limited = any(limit is not None for limit in _limits(capacity))
        self._set_meter(is_limited or self._role is not Role.PLAIN)
        self._set_output(_rate(capacity.out_bytes_per_s))
        # The matching of a head is not a bottleneck, and not measured [ePEER §4.4.1.1].
        self._set_matching(math.inf if self._role is Role.HEAD else _rate(capacity.matched_per_s))

    def _set_meter(self, on: bool) -> None:
        topics = self._topics
        if on and topics.meter is None:
            topics.meter = TopicMeter(topics.core.state, topics.now_s)
            topics.observe = topics.meter.observe
        elif not on and topics.meter is not None:
            topics.meter = topics.observe = None
            self.report(SiteLoad([]))

    def _set_output(self, rate_per_s: float) -> None:
        topics = self._topics
        topics.core.state.piece_bytes = int(min(PIECE_BYTES, max(_LEAST_PIECE_BYTES, rate_per_s * BURST_S)))
        if topics.egress is not None:
            topics.egress.set_rate(rate_per_s)
            if math.isinf(rate_per_s):
                topics.egress = None
                topics.handlers[effects.Send] = topics.send_now
        elif math.isfinite(rate_per_s):
            limit, blocked = topics.limits.topic_queue_bytes, self._report_blocked
            egress = Egress(rate_per_s, limit, topics.connections, topics.now_s, self._call_later, blocked)
            topics.egress = egress
            topics.handlers[effects.Send] = egress.send

    def _report_blocked(self, connection: ConnectionId) -> None:
        self._topics.happened(events.ConnectionBlocked(connection))

    def _set_matching(self, rate_per_s: float) -> None:
        topics = self._topics
        if topics.matching is not None:
            topics.matching.set_rate(rate_per_s)
            if math.isinf(rate_per_s):
                topics.matching, topics.handle = None, topics.core.handle
        elif math.isfinite(rate_per_s):
            topics.matching = Matching(rate_per_s, topics.now_s, self._call_later)
            topics.handle = self._handle_limited

    def _handle_limited(self, event: events.Event, now_s: float) -> list[effects.Effect]:
        """The core's `handle` while matching is limited: published messages pass the budget first."""
        handle = self._topics.core.handle
        match event:
            case Matched(request):
                return handle(request, now_s)
            case events.RequestReceived(connection, wire.Publish() as request):
                return self._match(connection, request)
            case events.PublishedAlone(connection, wire.Publish() as request):
                return self._match(connection, request)
        return handle(event, now_s)

    def _match(self, connection: ConnectionId, request: wire.Publish) -> list[effects.Effect]:
        matching, client = self._topics.matching, self._topics.core.state.connections.get(connection)
        assert matching is not None
        if client is None:
            return []
        topic = self._topics.core.state.by_number.get(request.at)
        if topic is None or topic.name not in client.senders:  # it is refused, and must not use up the budget
            return self._topics.core.handle(events.RequestReceived(connection, request), self._topics.now_s())
        if matching.is_full:
            wait_s = min(_MOST_RETRY_S, max(_LEAST_RETRY_S, matching.delay_s / 2))
            message = "this broker matches fewer messages per second than it gets; try again later"
            refusal = wire.NotAccepted(request.at, request.number, str(Code.BACKLOGGED), message, wait_s)
            return [effects.Send((connection,), refusal, encoded(refusal, client.encoding))]
        matched = Matched(events.RequestReceived(connection, request))
        size_bytes = sum(map(len, request.messages))
        matching.offer(len(request.messages), size_bytes, lambda: self._topics.happened(matched))
        return []

    # -- reports -------------------------------------------------------------------------------------------------------

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            if self._topics.meter is not None:
                self.report(self.site_load())
            self.beat_blocked()

    def site_load(self) -> SiteLoad:
        """The load since the last call."""
        meter, egress, matching = self._topics.meter, self._topics.egress, self._topics.matching
        assert meter is not None
        before_s = meter.since_s
        loads = self._loads = meter.take()
        counter: TopicMeter | Egress = meter if egress is None else egress
        if counter is not self._sent_before:
            self._sent_before, self._sent_bytes = counter, counter.sent_bytes
        sent, self._sent_bytes = counter.sent_bytes - self._sent_bytes, counter.sent_bytes
        topics = [
            TopicLoad(topic.name, *loads.pop(topic.name, NO_LOAD), len(receivers) + _sites(topic), len(senders))
            for topic, receivers, senders in self._served()
            if receivers or senders or topic.flows or topic.name in loads
        ]
        topics += [TopicLoad(name, *load, 0, 0) for name, load in loads.items()]
        self._loads = {topic.topic: Load(*_rates(topic)) for topic in topics}
        return SiteLoad(
            topics,
            0 if egress is None else egress.waiting_bytes,
            0 if matching is None else matching.waiting_messages,
            sent / max(1e-9, meter.since_s - before_s),
        )

    def _served(self) -> Served:
        """The topics of this broker, relayed ones among them, and their clients. Neighbouring sites receive from homes
        wherever these are: no plan can move them."""
        core = self._topics.core
        for topic in (*core.state.topics.values(), *core.relaying.topics.values()):
            lagging = [identity for identity in topic.lagging if identity not in topic.flows]
            yield topic, (*topic.live, *lagging), topic.senders

    def _profile(self) -> dict[TopicName, list[tuple[Client, float]]]:
        """The clients of each topic with their bytes per second: a head's senders, or the receivers."""
        meter = self._topics.meter
        profile: dict[TopicName, list[tuple[Client, float]]] = {}
        for topic, receivers, senders in self._served():
            name = topic.name
            if self._role is Role.HEAD:
                rates = {} if meter is None else meter.senders
                clients = [(self._client(sender), rates.get((name, sender), 0.0)) for sender in senders]
            else:
                each = self._loads.get(name, NO_LOAD).out_bytes_per_s / max(1, len(receivers))
                clients = [(self._client(one), each) for one in receivers if one not in topic.relays]
            if clients:
                profile[name] = clients
        return profile

    def _client(self, identity: ConnectionId) -> Client:
        connection = self._topics.core.state.connections[identity]
        return f"{connection.user}/{connection.run}"

    def beat_blocked(self) -> None:
        """Show the clients of blocked connections that the broker is alive: the next frame may take long."""
        topics, state = self._topics, self._topics.core.state
        for identity in [] if topics.egress is None else topics.egress.blocked:
            connection, client = topics.connections.get(identity), state.connections.get(identity)
            if connection is not None and client is not None:
                connection.write(encoded(wire.Beat(), client.encoding))


def _sites(topic: HostedTopic) -> int:
    """Neighbouring sites that receive what this site publishes: without them, a topic that is read elsewhere only would
    count as one without receivers, and congestion control would stop its publishers first."""
    return sum(receiver.own in receiver.numbers for receiver in topic.flows.values())


def _limits(capacity: Capacity) -> tuple[float | None, ...]:
    return (capacity.in_bytes_per_s, capacity.out_bytes_per_s, capacity.matched_per_s)


def _rates(topic: TopicLoad) -> tuple[float, float, float]:
    return (topic.in_bytes_per_s, topic.out_bytes_per_s, topic.matched_per_s)


def _rate(limit: float | None) -> float:
    """The rate of a shaper; infinite without a limit. A limit that is not above 0 is none: it would stop all topics."""
    return math.inf if limit is None or not limit > 0.0 else limit
