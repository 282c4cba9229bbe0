"""The logic of a client of topics: events in, effects out. No clock, no socket: `topic_driver` or a simulator drives.

It keeps one connection to each home it needs, attaches a sender or receiver per topic there, and follows the homes: a
`moved` on the open connection, else the coordinator's directory. `topic_sending` and `topic_receiving` hold what must
survive a change of home; `topic_attachments` holds connections and attachments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tocsin.client import topic_events as events
from tocsin.client.timing import Jitter, Patience
from tocsin.client.topic_attachments import Attachments, Home
from tocsin.client.topic_connection import ClientConnection, Role
from tocsin.client.topic_coordinates import ClientAgent
from tocsin.client.topic_events import Deliver, Effect, Item, MarkReady, Settle, TopicFailure, Watch
from tocsin.client.topic_limits import PublishLimits
from tocsin.client.topic_rating import Rater
from tocsin.client.topic_receiving import ReceiverState, first_position
from tocsin.client.topic_redirects import RedirectedReceiver, plain_address
from tocsin.client.topic_sending import SenderState
from tocsin.model.ids import TopicName
from tocsin.model.topic import Position, matches
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.topic_directory import WatchAnswer

_FINAL = {str(code) for code in (Code.FORBIDDEN, Code.TOO_MANY, Code.BAD_REQUEST, Code.UNAUTHENTICATED)}
"""Refusals of an attach that a retry would repeat."""


class TopicSession:
    def __init__(
        self,
        run: int,
        jitter: Jitter,
        patience: Patience | None = None,
        *,
        prompt: bool = True,
        agent: ClientAgent | None = None,
        rater: Rater | None = None,
        make_receiver: Callable[[TopicName, Position | None], ReceiverState] = ReceiverState,
    ) -> None:
        """`run` is a random number below 2**53 that no other run of a program has. `prompt`: see `AttachSender`.

        `make_receiver` makes the state of a received topic; an edge that relays topics has another one."""
        self.agent = agent
        self.limits = PublishLimits()
        self._rater = rater
        self.run = run
        self._prompt = prompt
        self._homes = Attachments(patience or Patience(), jitter, run)
        self._make_receiver = make_receiver
        self.senders: dict[TopicName, SenderState] = {}
        self.receivers: dict[TopicName, ReceiverState] = {}
        self._patterns: dict[int, str] = {}
        self._unready: dict[int, set[TopicName] | None] = {}
        """Subscription → topics it waits for; None before the directory has answered."""
        self._begun_epoch: dict[int, int] = {}
        """Subscription → last epoch when it began: topics created later are received from their first message."""
        self._matching: dict[TopicName, list[int]] = {}
        """Topic → the subscriptions that match it, as far as they were looked up."""
        self._after: dict[int, Position] = {}
        """Subscription → the position behind which it begins."""
        self._interest_changed = False
        """True if the session must ask the directory for other topics."""
        self._unsent: dict[TopicName, SenderState] = {}
        """Senders with messages of this turn."""
        self.token = ""
        """For the homes; the coordinator has given it."""

    @property
    def homes(self) -> Mapping[TopicName, Home]:
        """The known homes of topics."""
        return self._homes.homes

    def receives_at(self, topic: TopicName) -> str | None:
        """The address of the broker that sends the topic; None while the receiver is not attached."""
        attached = self._homes.attached(topic, "receive")
        return None if attached is None else plain_address(attached[0].address)

    def requested_topic(self, connection: int, request: int) -> TopicName | None:
        """The topic of an attach that has no answer yet; for simulations."""
        known = self._homes.connections.get(connection)
        need = None if known is None else known.requests.get(request)
        return None if need is None else need[0]

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        effects = list(self._handle(event, now_s))
        effects += self._attach_due(now_s)
        if self._interest_changed:
            self._interest_changed = False
            effects.append(Watch(tuple(self.senders), tuple(dict.fromkeys(self._patterns.values()))))
        return effects

    def _handle(self, event: events.Event, now_s: float) -> Iterator[Effect]:
        match event:
            case events.PublishRequested(ticket, topic, data):
                sender = self._sender(topic)
                sender.queued.append((ticket, data))
                self._unsent[topic] = sender
                yield events.RequestFlush()
            case events.FlushDue():
                unsent, self._unsent = self._unsent, {}
                yield from self._send_all(unsent, now_s)
            case events.SubscribeRequested(subscription, pattern, after):
                self._patterns[subscription] = pattern
                self._matching.clear()
                if after is not None:
                    self._after[subscription] = after
                self._unready[subscription] = None
                self._interest_changed = True
            case events.UnsubscribeRequested(subscription):
                yield from self._unsubscribe(subscription)
            case events.DirectoryReceived(answer, receive):
                yield from self._learn(answer, receive, now_s)
            case events.ConnectionOpened(number):
                yield from self._homes.opened(number, self.token, now_s)
            case events.ConnectionLost(number):
                self._homes.lost(number, now_s)
            case events.MessageReceived(number, message):
                connection = self._homes.heard(number, now_s)
                if connection is not None:
                    yield from self._receive(connection, message, now_s)
            case events.LandmarksReceived(token, addresses):
                self.token = token
                for address in addresses:
                    self._homes.visit(address, now_s)
            case events.GatewayChanged(address):
                if self.agent is not None:
                    self.agent.use_gateway(address)
                    self._keep_gateway(now_s)
            case events.Ticked(reads):
                if not reads:
                    self._homes.excuse_silence(now_s)
                self._keep_gateway(now_s)
                if self.agent is not None:
                    yield from self.agent.probes(self._homes.connections.values(), now_s)
                for number in (*self._homes.stalled(now_s), *self._homes.unused(now_s)):
                    yield events.Disconnect(number)
                    self._homes.lost(number, now_s)
                self._homes.leave_late(now_s)
                yield from self._send_all(self.senders, now_s)
                yield from self._report_quality(now_s)

    def _keep_gateway(self, now_s: float) -> None:
        """Stay connected to the gateway of a mobile client, once the coordinator has given a token."""
        if self.agent is not None and self.agent.gateway is not None and self.token:
            self._homes.keep(self.agent.gateway, now_s)

    # -- interest ------------------------------------------------------------------------------------------------------

    def _sender(self, topic: TopicName) -> SenderState:
        if topic not in self.senders:
            self.senders[topic] = SenderState(topic)
            self._interest_changed = True
            self._homes.need(topic, "send")
        return self.senders[topic]

    def _drop_sender(self, topic: TopicName, code: str, message: str) -> Iterator[Effect]:
        """Nothing can be sent to this topic: settle its messages. The next message asks again."""
        self._unsent.pop(topic, None)
        self._interest_changed = True
        yield from self.senders.pop(topic).fail_all(code, message)
        yield from self._set_limit(topic, None, 0.0)
        yield from self._homes.release(topic, "send")

    def _unsubscribe(self, subscription: int) -> Iterator[Effect]:
        self._interest_changed = True
        self._patterns.pop(subscription, None)
        self._matching.clear()
        self._unready.pop(subscription, None)
        self._begun_epoch.pop(subscription, None)
        self._after.pop(subscription, None)
        for topic in [topic for topic in self.receivers if not self._subscriptions(topic)]:
            del self.receivers[topic]
            yield from self._homes.release(topic, "receive")

    def _subscriptions(self, topic: TopicName) -> list[int]:
        if topic not in self._matching:
            self._matching[topic] = [number for number, pattern in self._patterns.items() if matches(pattern, topic)]
        return self._matching[topic]

    # -- the directory -------------------------------------------------------------------------------------------------

    def _learn(self, answer: WatchAnswer, receive: Iterable[str], now_s: float) -> Iterator[Effect]:
        self.token = answer.token
        for topic, refusal in answer.refused.items():
            if topic in self.senders:
                yield from self._drop_sender(topic, refusal.code, refusal.message)
        for entry in answer.topics:
            if self._rater is not None:
                self._rater.learn(entry)
            if entry.address is not None:
                self._homes.learn(entry.topic, entry.epoch, entry.address, now_s, entry.receive_at)
        for subscription, pattern in self._patterns.items():
            if pattern in receive:
                yield from self._learn_matches(subscription, pattern, answer)

    def _learn_matches(self, subscription: int, pattern: str, answer: WatchAnswer) -> Iterator[Effect]:
        matching = [entry for entry in answer.topics if entry.receive and matches(pattern, entry.topic)]
        begun = self._begun_epoch.setdefault(subscription, answer.epoch)
        for entry in matching:
            if entry.topic not in self.receivers:
                after = self._after.get(subscription) or first_position(entry, begun)
                self.receivers[entry.topic] = self._make_receiver(entry.topic, after)
                self._homes.need(entry.topic, "receive")
        if self._unready.get(subscription, set()) is None:
            waits_for = {entry.topic for entry in matching if not self._homes.is_attached(entry.topic, "receive")}
            self._unready[subscription] = waits_for
            yield from self._mark_ready(subscription)

    def _mark_ready(self, subscription: int) -> Iterator[Effect]:
        if self._unready.get(subscription) == set():
            del self._unready[subscription]
            yield MarkReady(subscription)

    # -- connections and attachments -----------------------------------------------------------------------------------

    def _attach_due(self, now_s: float) -> Iterator[Effect]:
        for connection, topic, role in self._homes.due(now_s):
            if connection is None:
                continue
            number = self._homes.requested(connection, topic, role)
            if role == "receive":
                request: wire.FromClient = self._receiver_request(topic, number)
            else:
                sender = self.senders[topic]
                sender.restart()
                request = wire.AttachSender(number, topic, self.run, sender.first_number, self._prompt)
            yield events.Send(connection.number, request)
        for target, topic, role in self._homes.due_early(now_s):
            yield events.Send(target.number, self._early_request(target, topic, role))
        for edge, topic in self._homes.due_redirects(now_s):
            redirected = self._homes.redirects.receivers[topic]
            if redirected.visit is None or self._may_visit(topic, redirected):
                number = self._homes.requested_redirect(edge, topic)
                yield events.Send(edge.number, self._redirect_request(topic, redirected, number))
        for topic, role, target, held in self._homes.switched():
            if role == "send":
                self.senders[topic].restart()
                yield from self._send(topic, self.senders[topic], now_s)
            for message in held:
                yield from self._receive(target, message, now_s)
        yield from self._homes.connects()

    def _receiver_request(self, topic: TopicName, number: int) -> wire.FromClient:
        receiver = self.receivers[topic]
        if topic in self._homes.away and receiver.visit is not None:
            return wire.FindPosition(number, topic, receiver.visit.flows())
        return receiver.request(number)

    def _may_visit(self, topic: TopicName, redirected: RedirectedReceiver) -> bool:
        """False while the receiver has not got as far as its own home was at the time of its answer."""
        present, receiver = redirected.present, self.receivers[topic]
        if present is None or redirected.found is not None:
            return True
        if receiver.after is not None and receiver.after.epoch > present.epoch:
            redirected.present = None  # ask the later home
            return False
        return receiver.prepare_visit(present)

    def _redirect_request(self, topic: TopicName, redirected: RedirectedReceiver, number: int) -> wire.FromClient:
        receiver = self.receivers[topic]
        if redirected.visit is None:
            return receiver.request(number)
        if redirected.present is None or receiver.visit is None:
            after = receiver.after
            return wire.FindPosition(number, topic, None, None if after is None else (after.epoch, after.sequence))
        if redirected.found is None:
            return wire.FindPosition(number, topic, receiver.visit.flows())
        return receiver.request_at(number, redirected.found)

    def _on_position_found(
        self, connection: ClientConnection, message: wire.PositionFound, now_s: float
    ) -> Iterator[Effect]:
        need = connection.requests.get(message.id)
        if connection.finding.pop(message.id, None) is not None:
            self._homes.redirects.found(connection, message)
        elif need is not None and self._homes.position_found(connection, need, message.id, now_s):
            receiver = self.receivers[need[0]]
            yield from self._deliver(need[0], receiver.enter(message))

    def _early_request(self, target: ClientConnection, topic: TopicName, role: Role) -> wire.FromClient:
        number = self._homes.requested_early(target, topic, role)
        if role == "receive":
            return self.receivers[topic].request(number, early=True)
        return wire.AttachSender(number, topic, self.run, self.senders[topic].first_number, self._prompt)

    def _send_all(self, senders: Mapping[TopicName, SenderState], now_s: float) -> Iterator[Effect]:
        for topic, sender in senders.items():
            if sender.queued or sender.resend:
                yield from self._send(topic, sender, now_s)

    def _send(self, topic: TopicName, sender: SenderState, now_s: float) -> Iterator[Effect]:
        attached = self._homes.attached(topic, "send")
        if attached is None:
            return
        connection, at = attached
        if sender.must_attach:
            self._homes.again(topic, "send", now_s)
            return
        for output in sender.batches(at, connection.message_bytes, connection.frame_bytes, now_s):
            yield output if isinstance(output, Settle) else events.Send(connection.number, output)

    # -- messages of homes ---------------------------------------------------------------------------------------------

    def _receive(self, connection: ClientConnection, message: wire.ToClient, now_s: float) -> Iterator[Effect]:
        if self._homes.early.holds(connection, message):
            return
        match message:
            case wire.LoggedIn():
                self._homes.logged_in(connection, message)
            case wire.SenderAttached():
                yield from self._on_sender_attached(connection, message, now_s)
            case wire.ReceiverAttached(number, at):
                yield from self._on_receiver_attached(connection, message, now_s)
            case wire.PositionFound():
                yield from self._on_position_found(connection, message, now_s)
            case wire.Probed() if self.agent is not None:
                yield from self.agent.probed(connection, message, now_s)
            case wire.Refused():
                yield from self._on_refused(connection, message, now_s)
            case wire.Acknowledged(at, number):
                if (sender := self._sender_at(connection, at)) is not None:
                    yield from sender.acknowledged(number)
                    yield from self._send(sender.topic, sender, now_s)
            case wire.NotAccepted():
                yield from self._on_not_accepted(connection, message, now_s)
            case wire.Messages(at):
                receiver = self._receiver_at(connection, at)
                if receiver is not None:
                    yield from self._deliver(receiver.topic, receiver.messages(message))
            case wire.Gap(at):
                receiver = self._receiver_at(connection, at)
                if receiver is not None:
                    yield from self._deliver(receiver.topic, receiver.gap(message))
            case wire.Waiting():
                yield from self._homes.early.waits(connection, message)
            case wire.Moving(at, topic, _, address):
                yield from self._homes.early.announced(connection, topic, at, address)
            case wire.Redirect(_, topic):
                if (receiver := self.receivers.get(topic)) is not None and receiver.may_change_edge:
                    self._homes.redirects.ordered(connection, message, now_s)
            case wire.Moved(_, topic, _, address):
                self._homes.moved(connection, topic, address)
            case wire.Limit(at, per_s):
                if (sender := self._sender_at(connection, at)) is not None:
                    yield from self._set_limit(sender.topic, per_s, now_s)
            case wire.Ended(_, topic):
                self._homes.ended(connection, topic, now_s)

    def _on_not_accepted(
        self, connection: ClientConnection, message: wire.NotAccepted, now_s: float
    ) -> Iterator[Effect]:
        if (sender := self._sender_at(connection, message.at)) is not None:
            yield from sender.refused(message, now_s)
            if message.code == Code.NOT_HOME:
                self._homes.again(sender.topic, "send", now_s)
            return
        # The session attaches again. The answer names the next number and not what the home has dropped before it.
        topic = connection.topics.get(message.at)
        if topic in self.senders and self._homes.attached(topic, "send") is None:
            yield from self.senders[topic].dropped(message)

    def _on_sender_attached(
        self, connection: ClientConnection, message: wire.SenderAttached, now_s: float
    ) -> Iterator[Effect]:
        has_sent = self._homes.topic_at(connection, message.at, "send") is not None
        topic = self._homes.answered(connection, message.id, message.at, now_s)
        if topic is None or topic not in self.senders:
            return
        sender = self.senders[topic]
        if message.number < sender.first_number:
            # The source acknowledged messages after the early attach and died before it handed over. The target would
            # wait for them for ever.
            self._homes.again(topic, "send", now_s, 0.0)
            return
        yield from self._set_limit(topic, None, now_s)  # the home repeats a limit that is in force
        yield from sender.acknowledged(message.number - 1) if has_sent else sender.attached(message.number)
        yield from self._send(topic, sender, now_s)

    def _on_receiver_attached(
        self, connection: ClientConnection, message: wire.ReceiverAttached, now_s: float
    ) -> Iterator[Effect]:
        need, items = connection.requests.get(message.id), list[Item]()

        def enter(found: wire.PositionFound) -> None:
            if need is not None and (receiver := self.receivers.get(need[0])) is not None:
                items.extend(receiver.enter(found))

        yield from self._homes.switch_edge(connection, message, enter)
        if need is not None:
            yield from self._deliver(need[0], items)
        topic = self._homes.answered(connection, message.id, message.at, now_s)
        if topic is None or topic not in self.receivers:
            if need is None or not self._homes.uses(connection, need):
                yield events.Send(connection.number, wire.Detach(0, message.at))
            return
        yield from self._deliver(topic, self.receivers[topic].attached(message))
        yield from self._stop_waiting_for(topic)

    # -- congested sites -----------------------------------------------------------------------------------------------

    def _set_limit(self, topic: TopicName, per_s: float | None, now_s: float) -> Iterator[Effect]:
        if self.limits.set(topic, per_s, now_s):
            yield events.LimitChanged(topic, self.limits.rate_per_s(topic))

    def _report_quality(self, now_s: float) -> Iterator[Effect]:
        """Once a second: what the application offers to limited topics, and how it rates publishers."""
        for topic, per_s in self.limits.take_offered(now_s).items():
            if (sending := self._homes.attached(topic, "send")) is not None:
                yield events.Send(sending[0].number, wire.Offered(sending[1], per_s))
        if self._rater is None:
            return
        for topic, ratings in self._rater.take(now_s).items():
            if (receiving := self._homes.attached(topic, "receive")) is not None:
                yield events.Send(receiving[0].number, self._rater.feedback(topic, receiving[1], ratings))

    def _stop_waiting_for(self, topic: TopicName) -> Iterator[Effect]:
        for subscription, waits_for in list(self._unready.items()):
            if waits_for is not None:
                waits_for.discard(topic)
                yield from self._mark_ready(subscription)

    def _on_refused(self, connection: ClientConnection, message: wire.Refused, now_s: float) -> Iterator[Effect]:
        if self.agent is not None:
            self.agent.refused(connection, message)
        refused = self._homes.refused(connection, message, now_s)
        if refused is None or message.code not in _FINAL:
            return
        topic, role = refused
        if role == "send" and topic in self.senders:
            yield from self._drop_sender(topic, message.code, message.message)
        elif role == "receive":
            self._homes.give_up(topic, role)
            yield from self._deliver(topic, [TopicFailure(topic, message.code, message.message)])
            yield from self._stop_waiting_for(topic)

    def _sender_at(self, connection: ClientConnection, at: int) -> SenderState | None:
        topic = self._homes.topic_at(connection, at, "send")
        return None if topic is None else self.senders.get(topic)

    def _receiver_at(self, connection: ClientConnection, at: int) -> ReceiverState | None:
        topic = self._homes.topic_at(connection, at, "receive")
        return None if topic is None else self.receivers.get(topic)

    def _deliver(self, topic: TopicName, items: list[Item]) -> Iterator[Effect]:
        if items:
            if self._rater is not None:
                self._rater.rate(items)
            for subscription in self._subscriptions(topic):
                yield Deliver(subscription, items)
