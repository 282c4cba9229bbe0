"""The topics of a broker: `handle(event, now_s) -> effects`. No clock and no socket; asyncio or a simulator drives it.

    ownership   which topics, the lease, moves          publishing   senders: order, repeats, limits
    delivery    receivers: fan-out, slow ones, gaps     lease        until when this broker may accept
    client_coordinates          where clients are       limiting     congested sites: limits of publishers
    rating      what receivers think of publishers      slow_receivers  skip the least useful messages
    replication persistent topics: log, followers       following    this broker as a follower
    relaying    topics that this edge passes on         redirecting  receivers that move between edges
    importing   flows of neighbouring sites             flow_reports what the coordinator knows of flows

`now_s` must come from a clock that goes on while the process is stopped and while the machine sleeps: the lease depends
on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.broker.topics import events
from tocsin.broker.topics.client_coordinates import ClientCoordinates
from tocsin.broker.topics.delivery import Delivery
from tocsin.broker.topics.effects import Effect, RequestFlush
from tocsin.broker.topics.flow_reports import FlowReports
from tocsin.broker.topics.flows import MOST_FLOWS
from tocsin.broker.topics.home_log import CommitFigures
from tocsin.broker.topics.hosted import OPEN, PREPARED, Connection, HostedTopic, Phase, TopicsState, Waiting
from tocsin.broker.topics.importing import Importing
from tocsin.broker.topics.limiting import Limiting
from tocsin.broker.topics.limits import TopicLimits
from tocsin.broker.topics.ownership import Ownership
from tocsin.broker.topics.publishing import Publishing
from tocsin.broker.topics.rating import Rating
from tocsin.broker.topics.recording import Recording
from tocsin.broker.topics.relaying import Relaying
from tocsin.model.ids import BrokerId
from tocsin.model.permission import RECEIVE, permits_topic
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.errors import Code
from tocsin.wire.site_link import Federate, Role
from tocsin.wire.topic_log import HandOver

_FLUSH = RequestFlush()
_RETRY_S = 0.2
_MOST_AT_ONCE = 100
"""Receivers to which a home sends in the turn of the publisher, whose share of the event loop pays for that turn."""
_MOST_WAITING = 100_000
"""Attaches that may wait for a topic to be opened. A move takes milliseconds."""


class TopicHomes:
    def __init__(self, broker: BrokerId, limits: TopicLimits, role: Role = Role.PLAIN) -> None:
        self.state = TopicsState(broker, limits)
        self.limiting = Limiting(self.state)
        self.rating = Rating(self.state)
        self._publishing = Publishing(self.state, self.limiting)
        self._delivery = Delivery(self.state)
        self.relaying = Relaying(self.state, self._delivery, on=role is Role.EDGE)
        self.clients = ClientCoordinates(self.state)
        self.importing = Importing(self.state, self.limiting)
        self._flow_reports = FlowReports(self.state, self.importing)
        self._ownership = Ownership(self.state, self._delivery, self._carry_out)
        self._recording = self._ownership.recording
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.ConnectionOpened: self._on_opened,
            events.ConnectionLost: lambda event: self._forget(event.connection),
            events.ConnectionBlocked: self._with_connection(self._on_blocked),
            events.ConnectionDrained: self._with_connection(self._delivery.on_drained),
            events.ConnectionRevoked: self._on_revoked,
            events.RequestReceived: self._on_request,
            events.PublishedAlone: self._on_published_alone,
            events.FlushDue: self._flush,
            events.LinkLost: lambda event: self._ownership.on_link_lost(),
            events.CoordinatorMessageReceived: self._on_coordinator_message,
            events.Ticked: self._tick,
            events.LimitsReceived: lambda event: self.limiting.on_message(event.message),
            events.StopRequested: self._stop,
            events.LogOpened: self._ownership.logs.on_opened,
            events.LogStored: self._on_log_stored,
            events.LogAdopted: self._ownership.following.on_adopted,
            events.LogRead: self._on_log_read,
            events.SnapshotRead: self._ownership.replication.on_snapshot,
            events.LogFailed: self._on_log_failed,
            events.ReplicaConnected: lambda event: self._ownership.on_replica_connection(event.broker, None),
            events.ReplicaLost: lambda event: self._ownership.on_replica_connection(event.broker, event.reason),
            events.ReplicaAnswered: self._ownership.replication.on_answer,
            events.HomeMessageReceived: self._on_home_message,
            events.SiteMessageReceived: self.relaying.on_site_message,
            events.RelayAnswered: self.relaying.on_answered,
            events.RelayReceived: self.relaying.on_received,
            events.RelayGap: self.relaying.on_gap,
            events.RelayRefused: self.relaying.on_refused,
            events.OlderReceived: self.relaying.older.on_received,
            events.OlderFailed: self.relaying.older.on_failed,
            events.FederationReceived: self._on_federation,
            events.ImportReceived: self.importing.on_received,
            events.ImportBroken: self.importing.on_broken,
            events.RecordsStored: self.recording.on_stored,
            events.RecordedUpto: self.recording.on_upto,
            events.RecordsRefused: self.recording.on_refused,
            events.RecordsFailed: self.recording.on_failed,
        }

    @property
    def recording(self) -> Recording:
        return self._recording

    @property
    def commits(self) -> CommitFigures:
        return self._ownership.replication.commits

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        state = self.state
        state.now_s = now_s
        self._handlers[type(event)](event)
        effects, state.effects = state.effects, []
        return effects

    # -- connections ---------------------------------------------------------------------------------------------------

    def _on_opened(self, event: events.ConnectionOpened) -> None:
        state, limits = self.state, self.state.limits
        connection = state.connections[event.connection] = Connection(
            event.connection,
            event.user,
            event.encoding,
            event.scopes,
            event.expires_s,
            float(limits.topic_rate_per_s),
            state.now_s,
            run=event.run,
        )
        sizes = (limits.topic_message_bytes, limits.topic_frame_bytes)
        state.send(connection, wire.LoggedIn(event.request, state.broker, limits.topic_beat_s, *sizes, self.clients.on))

    def _with_connection(self, action: Callable[[Connection], None]) -> Callable[[Any], None]:
        def run(event: events.ConnectionBlocked | events.ConnectionDrained) -> None:
            connection = self.state.connections.get(event.connection)
            if connection is not None:
                action(connection)

        return run

    def _forget(self, identity: events.ConnectionId) -> None:
        connection = self.state.connections.pop(identity, None)
        if connection is None:
            return
        for topic in list(connection.receiving.values()):
            self._delivery.detach(connection, topic)
            self.relaying.detached(connection, topic, gone=True)
        for name in connection.senders:
            self.state.topics[name].senders.pop(identity, None)

    def _on_blocked(self, connection: Connection) -> None:
        self._delivery.on_blocked(connection)
        self.relaying.on_blocked(connection)

    def _on_revoked(self, event: events.ConnectionRevoked) -> None:
        self._end(event.connection, "revoked", "the token was revoked", reconnect=False)

    def _end(self, identity: events.ConnectionId, reason: str, message: str, *, reconnect: bool) -> None:
        connection = self.state.connections.get(identity)
        if connection is not None:
            self._delivery.flush()
            self.state.close(connection, reason, message, reconnect)
            self._forget(identity)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _on_request(self, event: events.RequestReceived) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is None:
            return
        match event.request:
            case wire.Publish() as request:
                if self._publish(connection, request):
                    self.state.effects.append(_FLUSH)
            case wire.Ready(at):
                if (topic := self.state.by_number.get(at)) is not None:
                    self._ownership.handing_over.on_ready(connection, topic)
            case wire.AttachSender() | wire.AttachReceiver() as request:
                self._attach(connection, request)
            case wire.FindPosition() as request:
                self._find_position(connection, request)
            case wire.Detach(number, at):
                topic = self.state.by_number.get(at)
                if topic is not None:
                    self._delivery.detach(connection, topic)
                    self.relaying.detached(connection, topic, gone=False)
                self.state.send(connection, wire.Detached(number))
            case wire.Ping(number):
                self.state.send(connection, wire.Pong(number))
            case wire.Probe() as request:
                self.clients.probe(connection, request)
            case wire.Locate() as request:
                self.clients.locate(connection, request)
            case wire.Feedback() as request:
                self.rating.on_feedback(connection, request)
            case wire.Offered() as request:
                self.limiting.on_offered(connection, request)
            case wire.Login(number):
                self.state.refuse(connection, number, Code.BAD_REQUEST, "this connection has logged in already")

    def _on_published_alone(self, event: events.PublishedAlone) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is None or not self._publish(connection, event.request):
            return
        if len(self.state.by_number[event.request.at].live) <= _MOST_AT_ONCE:
            self._flush(event)
        else:
            self.state.effects.append(_FLUSH)

    def _publish(self, connection: Connection, request: wire.Publish) -> bool:
        """Returns True if a flush is due."""
        topic = self.state.by_number.get(request.at)
        if topic is not None and topic.phase is PREPARED:
            self._keep_waiting(connection, topic, request)
            return False
        return self._publishing.publish(connection, topic, request)

    def _attach(self, connection: Connection, request: wire.AttachSender | wire.AttachReceiver) -> None:
        state = self.state
        topic = state.topics.get(request.topic)
        if isinstance(request, wire.AttachReceiver) and self.relaying.serves(request, topic):
            if self._has_room(connection, request):
                self.relaying.attach(connection, request)
        elif topic is None or topic.phase is Phase.STOPPED:
            message = "this broker is not the home of this topic; look the home up"
            state.refuse(connection, request.id, Code.NOT_HOME, message, _RETRY_S)
        elif not self._has_room(connection, request):
            return
        elif topic.phase is Phase.PREPARED and len(topic.waiting) >= _MOST_WAITING:
            state.refuse(connection, request.id, Code.NOT_READY, "too many clients wait for this topic", _RETRY_S)
        elif topic.phase is Phase.PREPARED:
            topic.waiting.append((connection.id, request))
            state.send(connection, wire.Waiting(request.id, topic.at))
        elif not state.lease.valid(state.now_s):
            message = "this broker waits for its lease; look the home up"
            state.refuse(connection, request.id, Code.NOT_READY, message, _RETRY_S)
        else:
            self._carry_out(connection, topic, request)

    def _find_position(self, connection: Connection, request: wire.FindPosition) -> None:
        """A receiver that changes sites asks its own home, or the one of the other site."""
        state, topic = self.state, self.state.topics.get(request.topic)
        if not permits_topic(connection.scopes, RECEIVE, request.topic):
            state.forbid(connection, request.id, RECEIVE, request.topic)
        elif topic is None or topic.phase is not OPEN or not state.lease.valid(state.now_s):
            message = "this broker is not the home of this topic now; look the home up"
            state.refuse(connection, request.id, Code.NOT_HOME, message, _RETRY_S)
        elif not state.site:
            state.refuse(connection, request.id, Code.NOT_READY, "this broker does not know its site yet", _RETRY_S)
        elif len(request.flows or ()) > MOST_FLOWS:
            state.refuse(connection, request.id, Code.TOO_MANY, f"a request names at most {MOST_FLOWS:,} flows")
        else:
            self._delivery.flush_topic(topic)
            self._delivery.flows.find(connection, topic, request)

    def _has_room(self, connection: Connection, request: wire.AttachSender | wire.AttachReceiver) -> bool:
        """True if the connection may have another attachment; else the request is refused."""
        most = self.state.limits.topic_attachments
        if len(connection.senders) + len(connection.receiving) < most:
            return True
        self.state.refuse(connection, request.id, Code.TOO_MANY, f"at most {most:,} topics on one connection")
        return False

    def _keep_waiting(self, connection: Connection, topic: HostedTopic, request: wire.Publish) -> None:
        """A sender knows before this broker does that the source has handed the topic over."""
        size_bytes = sum(map(len, request.messages))
        if topic.waiting_bytes + size_bytes > self.state.limits.topic_uncommitted_bytes:
            message = "too many messages wait for this topic to be opened"
            refusal = wire.NotAccepted(topic.at, request.number, str(Code.NOT_READY), message, _RETRY_S)
            self.state.send(connection, refusal)
        else:
            topic.waiting.append((connection.id, request))
            topic.waiting_bytes += size_bytes

    def _carry_out(self, connection: Connection, topic: HostedTopic, request: Waiting) -> None:
        match request:
            case wire.Publish():
                if self._publishing.publish(connection, topic, request):
                    self.state.effects.append(_FLUSH)
                return
            case wire.AttachSender():
                self._publishing.attach(connection, topic, request)
            case wire.AttachReceiver():
                self._delivery.attach(connection, topic, request)
        self._ownership.handing_over.on_attached(connection, topic)

    # -- messages and logs ---------------------------------------------------------------------------------------------

    def _flush(self, _event: events.FlushDue | events.PublishedAlone) -> None:
        if self.state.unlogged:
            self._ownership.replication.flush()
        self._delivery.flush()
        self._recording.run()

    def _on_log_read(self, event: events.LogRead) -> None:
        (self.recording if event.reader == events.RECORDER else self._ownership.replication).on_read(event)

    def _on_home_message(self, event: events.HomeMessageReceived) -> None:
        if isinstance(event.message, HandOver):
            self._ownership.take_over(event.message)
        else:
            self._ownership.following.receive(event)

    def _on_log_stored(self, event: events.LogStored) -> None:
        log = self._ownership.logs.on_stored(event)
        if log is not None:
            self._ownership.following.on_stored(log)
            self._ownership.replication.on_stored(event.topic, event.log_epoch, event.end)

    def _on_log_failed(self, event: events.LogFailed) -> None:
        log = self._ownership.logs.on_failed(event)
        if log is not None:
            self._ownership.following.on_failed(log, event.message)
            self._ownership.replication.on_failed(event.topic, event.message)

    def _on_coordinator_message(self, event: events.CoordinatorMessageReceived) -> None:
        if isinstance(event.message, topic_link.ReportTopics):
            self.clients.look_now()
            return
        self._ownership.handle(event.message)
        if isinstance(event.message, topic_link.OwnTopics):
            self.clients.report_again()

    def _on_federation(self, event: events.FederationReceived) -> None:
        self.importing.on_message(event)
        if isinstance(event.message, Federate):
            self._flow_reports.report_again()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _tick(self, _event: events.Ticked) -> None:
        state = self.state
        self._ownership.tick()
        self.recording.run()
        self._delivery.acknowledge_later()
        self._delivery.slow.tick()
        self.clients.tick()
        self.limiting.tick()
        self.rating.tick()
        self.relaying.tick()
        self._tick_flows()
        quiet_s = state.limits.topic_beat_s / 2
        quiet = [c.id for c in state.connections.values() if not c.blocked and state.now_s - c.heard_s >= quiet_s]
        state.send_to_all(quiet, wire.Beat())
        for connection in list(state.connections.values()):
            if connection.expires_s is not None and state.now_s > connection.expires_s:
                self._end(connection.id, "expired", "the token has expired", reconnect=True)

    def _tick_flows(self) -> None:
        if self.state.site:
            self.importing.tick()
            self._delivery.flows.tick()
            self._flow_reports.tick()

    def _stop(self, _event: events.StopRequested) -> None:
        """Stop accepting before the coordinator hears of it, then close every connection."""
        self.state.lease.give_back()
        self.state.report(topic_link.ReturnLease())
        for identity in list(self.state.connections):
            self._end(identity, "stopping", "this broker is stopping", reconnect=True)
        self._delivery.flush()
        self.recording.stop()
