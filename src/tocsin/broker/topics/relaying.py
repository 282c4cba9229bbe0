"""An edge of a site: it receives a topic from its home once, and passes it on with the home's positions [decision 20].

    attach      the first receiver starts the relay; receivers wait until the home has answered
    messages    in memory as at a home, to live receivers at once; slow ones get a gap or catch up (`delivery`)
    home moves  the sequence continues: receivers see nothing
    home fails  a sequence begins: receivers get `ended`, attach again, and the answer names what they missed
    older       messages that this edge does not keep come from the home (`older_messages`)

A topic of which this broker is the home is no relayed topic. While it becomes the home, it goes on relaying until it
has everything that the former home sent.
"""

from __future__ import annotations

from itertools import repeat

from tocsin.broker.topics import events
from tocsin.broker.topics.delivery import Delivery
from tocsin.broker.topics.effects import StartRelay, StopRelay
from tocsin.broker.topics.hosted import OPEN, Connection, HostedTopic, Phase, TopicsState
from tocsin.broker.topics.older_messages import OlderMessages
from tocsin.broker.topics.redirecting import Redirecting
from tocsin.broker.topics.relayed import RelayedTopic
from tocsin.model.ids import TopicName
from tocsin.model.permission import RECEIVE, permits_topic
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.site_link import VISITOR_MARK, ExpectReceivers, RedirectReceivers, ReleaseVisitors, visitor_user

_UNUSED_S = 10.0
"""How long an edge relays a topic without receivers: a receiver that reconnects finds its messages."""
_SENT_AWAY_S = 0.2
"""The same when the last receiver was sent to another edge: the input and the matching of the topic should leave this
edge at once, because it is overloaded."""
_ANSWER_S = 10.0
"""How long receivers wait for the home's answer."""
_BEHIND_S = 5.0
"""How long a receiver waits for an edge that has not got as far as the receiver."""
_LAST_S = 2.0
"""How long an edge that has become the home waits for the last messages of the former one."""
_RETRY_S = 0.2


class Relaying:
    def __init__(self, state: TopicsState, delivery: Delivery, *, on: bool) -> None:
        """`on`: this broker is an edge."""
        self._state = state
        self._delivery = delivery
        self.on = on
        self.topics: dict[TopicName, RelayedTopic] = {}
        self.received = 0
        """Messages received from homes since the start of the process."""
        self.redirecting = Redirecting(state)
        self.older = OlderMessages(state, delivery.slow)
        if on:
            delivery.relays = self

    # -- receivers -----------------------------------------------------------------------------------------------------

    def serves(self, request: wire.AttachReceiver, hosted: HostedTopic | None) -> bool:
        """True if this receiver attaches to the relay and not to the home. Neighbouring sites and other relays attach
        to homes."""
        if request.early or request.at_home or request.flows is not None:
            return False
        return request.topic in self.topics or (self.on and _is_elsewhere(hosted))

    def attach(self, connection: Connection, request: wire.AttachReceiver) -> None:
        state = self._state
        if not permits_topic(connection.scopes, RECEIVE, request.topic):
            state.forbid(connection, request.id, RECEIVE, request.topic)
            return
        topic = self.topics.get(request.topic)
        if topic is None:
            topic = self._start(request.topic)
        if topic is None:
            limit = f"this broker relays {state.limits.topics:,} topics already"
            state.refuse(connection, request.id, Code.TOO_MANY, limit)
        elif self._must_wait(topic, request):
            topic.attaching.append((connection.id, request, state.now_s))
        else:
            self._carry_out(connection, topic, request)

    def _carry_out(self, connection: Connection, topic: RelayedTopic, request: wire.AttachReceiver) -> None:
        self.older.leave(topic, connection.id)
        self._delivery.attach(connection, topic, request)
        self.redirecting.attached(connection, topic)

    def _start(self, name: TopicName) -> RelayedTopic | None:
        if len(self.topics) >= self._state.limits.topics:
            return None
        topic = RelayedTopic(name, self._state.next_topic_number(), 0, Phase.RELAYED, since_s=self._state.now_s)
        self.topics[name] = self._state.by_number[topic.at] = topic
        self._state.effects.append(StartRelay(name))
        return topic

    def _must_wait(self, topic: RelayedTopic, request: wire.AttachReceiver) -> bool:
        """Another edge may have got farther than this one, and even know a later home."""
        after = request.after
        if not topic.answered:
            return True
        return after is not None and (after[0] > topic.epoch or (after[0] >= topic.since and after[1] > topic.sequence))

    def _attach_waiting(self, topic: RelayedTopic) -> None:
        waiting, topic.attaching = topic.attaching, []
        now_s = self._state.now_s
        for identity, request, since_s in waiting:
            connection = self._state.connections.get(identity)
            if connection is None:
                continue
            if topic.answered and (now_s - since_s > _BEHIND_S or not self._must_wait(topic, request)):
                self._carry_out(connection, topic, request)
            elif now_s - since_s > _ANSWER_S:
                message = "the home of this topic does not answer; try again"
                self._state.refuse(connection, request.id, Code.NOT_READY, message, _RETRY_S)
            else:
                topic.attaching.append((identity, request, since_s))

    def detached(self, connection: Connection, topic: HostedTopic, *, gone: bool) -> None:
        """A receiver has detached, or its connection was lost (`gone`)."""
        if isinstance(topic, RelayedTopic):
            self.older.leave(topic, connection.id)
        was_sent_away = self.redirecting.left(connection, topic.name, gone=gone)
        if isinstance(topic, RelayedTopic) and was_sent_away and not gone:
            topic.since_s = self._state.now_s - _UNUSED_S + _SENT_AWAY_S

    def on_blocked(self, connection: Connection) -> None:
        """A receiver whose connection is full does not hold up the others that need older messages."""
        for topic in connection.receiving.values():
            if isinstance(topic, RelayedTopic):
                self.older.leave(topic, connection.id)

    def lagging(self, name: TopicName) -> int:
        """The number of receivers that lag."""
        topic = self.topics.get(name)
        return 0 if topic is None else len(topic.lagging)

    # -- called by delivery --------------------------------------------------------------------------------------------

    def needs_older(self, connection: Connection, topic: HostedTopic, position: int) -> None:
        assert isinstance(topic, RelayedTopic)
        self.older.need(connection, topic, position)

    def caught_up(self, connection: Connection, topic: HostedTopic) -> None:
        assert isinstance(topic, RelayedTopic)
        self.older.leave(topic, connection.id)
        self.redirecting.arrived(connection, topic)

    # -- the home ------------------------------------------------------------------------------------------------------

    def on_answered(self, event: events.RelayAnswered) -> None:
        topic = self.topics.get(event.topic)
        if topic is None:
            return
        since = event.since or event.epoch
        if not topic.answered:
            topic.answered = True
            topic.epoch, topic.since, topic.sequence = event.epoch, since, event.sequence
            topic.entry_epoch = event.epoch
        elif since > topic.epoch:
            self._begin_again(topic, event, since)
        else:
            topic.epoch = max(topic.epoch, event.epoch)
            if event.sequence > topic.sequence:
                self._skip(topic, event.epoch, event.sequence)
        self._attach_waiting(topic)

    def _begin_again(self, topic: RelayedTopic, event: events.RelayAnswered, since: int) -> None:
        """The former home failed, and how far it got is not known."""
        self._end_receivers(topic, "the home of this topic failed; attach again")
        self._state.forget_recent(topic)
        topic.earlier.clear()
        topic.epoch, topic.since, topic.sequence = event.epoch, since, event.sequence
        topic.entry_epoch = event.epoch

    def on_received(self, event: events.RelayReceived) -> None:
        topic = self.topics.get(event.topic)
        if topic is None or not topic.answered:
            return
        if event.sequence > topic.sequence + 1:
            self._skip(topic, event.epoch, event.sequence - 1)
        entries = event.entries[max(0, topic.sequence + 1 - event.sequence) :]
        if not entries:
            return
        state, count, first = self._state, len(entries), topic.sequence + 1
        topic.note_epoch(event.epoch)
        topic.sequence += count
        topic.recent.extend(entries)
        state.recent_order.extend(repeat(topic, count))
        state.recent_bytes += sum(len(entry[2]) for entry in entries)
        self.received += count
        if topic.live:
            self._delivery.fan_out(topic, event.epoch, first, entries)
        self._delivery.trim()
        if topic.attaching:
            self._attach_waiting(topic)

    def on_gap(self, event: events.RelayGap) -> None:
        topic = self.topics.get(event.topic)
        if topic is not None and topic.answered and event.last > topic.sequence:
            self._skip(topic, event.epoch, event.last)

    def _skip(self, topic: RelayedTopic, epoch: int, last: int) -> None:
        """The home does not have the messages up to `last` any more. Receivers that lag ask it for earlier ones."""
        if topic.live:
            self._state.missed += (last - topic.sequence) * len(topic.live)
            self._state.fan_out(topic.live, wire.Gap(topic.at, epoch, topic.sequence + 1, last))
        self._state.forget_recent(topic)
        topic.earlier.clear()
        topic.sequence = last
        topic.entry_epoch = epoch

    def on_refused(self, event: events.RelayRefused) -> None:
        topic = self.topics.get(event.topic)
        if topic is not None:
            self._end(topic, event.message)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def on_site_message(self, event: events.SiteMessageReceived) -> None:
        match event.message:
            case ExpectReceivers(name, clients):
                topic = self.topics.get(name)
                if topic is None and self.on and _is_elsewhere(self._state.topics.get(name)):
                    topic = self._start(name)
                if topic is not None:
                    self.redirecting.expect(topic, clients)
            case RedirectReceivers(topic=name) as order:
                self.redirecting.redirect(self.topics.get(name) or self._state.topics.get(name), order)
            case ReleaseVisitors(site):
                for topic in self.topics.values():
                    self._release_visitors(topic, site)

    def _release_visitors(self, topic: RelayedTopic, site: str | None) -> None:
        """End the attachments of visitors: they continue at their own site."""
        connections = [self._state.connections[identity] for identity in topic.clients]
        visitors = [connection for connection in connections if _is_visitor(connection.user, site)]
        message = wire.Ended(topic.at, topic.name, str(Code.NOT_HOME), "this site needs its capacity; return home")
        self._state.send_to_all([visitor.id for visitor in visitors], message)
        for visitor in visitors:
            self._delivery.detach(visitor, topic)
            self.detached(visitor, topic, gone=False)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now_s = self._state.now_s
        self.redirecting.forget_absent()
        for topic in list(self.topics.values()):
            if topic.attaching:
                self._attach_waiting(topic)
            self.older.retry(topic)
            self.redirecting.forget_late(topic)
            if topic.live or topic.lagging or topic.attaching or topic.expected:
                topic.since_s = now_s
            if now_s - topic.since_s > _UNUSED_S:
                self._end(topic, "")
            elif self._is_home(topic):
                self._end(topic, "this broker is the home of this topic now; attach again")

    def _is_home(self, topic: RelayedTopic) -> bool:
        """True if this broker is the home and has everything that it will get from the former one."""
        hosted = self._state.topics.get(topic.name)
        if hosted is None or hosted.phase is not OPEN:
            topic.homed_s = None
            return False
        if topic.homed_s is None:
            topic.homed_s = self._state.now_s
        complete = not topic.answered or hosted.since > topic.epoch or topic.sequence >= hosted.base
        return hosted.log is not None or complete or self._state.now_s - topic.homed_s > _LAST_S

    def _end(self, topic: RelayedTopic, message: str) -> None:
        """Stop relaying."""
        self._end_receivers(topic, message)
        for identity, request, _ in topic.attaching:
            if (connection := self._state.connections.get(identity)) is not None:
                self._state.refuse(connection, request.id, Code.NOT_READY, message, _RETRY_S)
        self._state.forget_recent(topic)
        del self.topics[topic.name], self._state.by_number[topic.at]
        self._state.effects.append(StopRelay(topic.name))

    def _end_receivers(self, topic: RelayedTopic, message: str) -> None:
        self.older.end_all(topic)
        clients = topic.clients
        self._state.send_to_all(clients, wire.Ended(topic.at, topic.name, str(Code.NOT_HOME), message))
        for identity in clients:
            connection = self._state.connections[identity]
            self._delivery.detach(connection, topic)
            self.redirecting.left(connection, topic.name, gone=False)


def _is_elsewhere(hosted: HostedTopic | None) -> bool:
    """True if another broker is the topic's home."""
    return hosted is None or hosted.phase is Phase.STOPPED


def _is_visitor(user: str, site: str | None) -> bool:
    """True for a user of this other site; None for any other site."""
    return VISITOR_MARK in user if site is None else user.startswith(visitor_user(site, ""))
