"""Which topics this broker is home of: the coordinator's messages, the lease, and both sides of a move [decision 13].

[ePulsar §3.6, figure 2] releases a topic before the new broker acquires it. Here the target is prepared first, and the
source keeps its clients and sends everything it accepted until the target has opened the topic.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.broker.topics.delivery import Delivery
from tocsin.broker.topics.effects import KeepLogs
from tocsin.broker.topics.following import Following
from tocsin.broker.topics.handing_over import HandingOver
from tocsin.broker.topics.hosted import Connection, HostedTopic, Phase, TopicsState, Waiting
from tocsin.broker.topics.local_logs import LocalLogs
from tocsin.broker.topics.recording import Recording
from tocsin.broker.topics.replica_connections import ReplicaConnections
from tocsin.broker.topics.replication import Replication
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.errors import Code
from tocsin.wire.topic_log import HandOver


class Ownership:
    def __init__(
        self, state: TopicsState, delivery: Delivery, request: Callable[[Connection, HostedTopic, Waiting], None]
    ) -> None:
        """`request` carries out a client's request that waited for the topic."""
        self._state = state
        self._delivery = delivery
        self._request = request
        self._held_lease = False
        """Whether the lease was valid at the last tick."""
        self.recording = Recording(state)
        self.logs = LocalLogs(state)
        self.following = Following(state, self.logs)
        self._connections = ReplicaConnections(state)
        opened, failed = self._confirm_open, self._on_log_failed
        self.replication = Replication(state, self.logs, delivery, self._connections, opened, failed)
        self.handing_over = HandingOver(state, delivery, self._connections)

    def handle(self, message: topic_link.FromCoordinator) -> None:
        match message:
            case topic_link.LeaseRenewed(number, lease_s):
                self._state.lease.renewed(number, lease_s)
            case topic_link.OwnTopics():
                self._own_exactly(message)
            case topic_link.OpenTopic(owned):
                self._open(owned)
            case topic_link.PrepareTopic():
                self._prepare(message)
            case topic_link.FollowTopic(name, created):
                self.logs.named[name] = created
            case topic_link.StopTopic():
                self._stop(message)
            case topic_link.KeepTopic(name, epoch, target_epoch):
                topic = self._state.topics.get(name)
                if topic is not None and topic.epoch == epoch:
                    self.handing_over.keep(topic, target_epoch)
            case topic_link.ReleaseTopic():
                self._release(message)
            case topic_link.CopyTopic():
                self.replication.copy(message)
            case topic_link.FenceTopic(name, _, epoch):
                hosted = self._state.topics.get(name)
                if hosted is not None and hosted.epoch < epoch:
                    self._drop(hosted, Code.NOT_HOME, "the topic gets another home")
                self.following.fence(message)

    # -- the lease -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Request a renewal when it is due. When the lease has ended, send every client away to look its homes up."""
        state = self._state
        number = state.lease.request(state.now_s)
        if number is not None:
            state.report(topic_link.RenewLease(number))
        self.replication.tick()
        self.handing_over.tick()
        held, self._held_lease = self._held_lease, state.lease.valid(state.now_s)
        if held and not self._held_lease:
            for topic in state.topics.values():
                self._end_clients(topic, Code.NOT_HOME, "this broker's lease has ended; look the home up")

    def on_link_lost(self) -> None:
        self._state.lease.stop()

    def on_replica_connection(self, broker: BrokerId, problem: str | None) -> None:
        """A connection to another broker is open (`problem` is None), or broken."""
        self._connections.on_connection(broker, problem)
        self.replication.on_connection(broker, problem)
        self.handing_over.on_connection(broker)

    # -- the list of topics --------------------------------------------------------------------------------------------

    def _own_exactly(self, message: topic_link.OwnTopics) -> None:
        """Adopt the coordinator's complete list. A topic that is not on it has another home, or is prepared no more."""
        topics, logs = message.topics, message.logs
        listed, arriving = {topic.topic for topic in topics}, set(message.arriving)
        for topic in list(self._state.topics.values()):
            if topic.name not in listed and (topic.name, topic.epoch) not in arriving:
                self._drop(topic, Code.NOT_HOME, "another broker is the home of this topic")
        for log in [log for log in self.logs.logs.values() if (log.topic, log.created) not in logs]:
            self.logs.drop(log.topic, log.created)
        self.logs.named = dict(logs)
        self._state.effects.append(KeepLogs(logs))
        for owned in topics:
            self._open(owned)
        self._state.lease.start(self._state.now_s)

    def _open(self, owned: topic_link.OwnedTopic) -> None:
        state = self._state
        topic = state.topics.get(owned.topic)
        if topic is not None and topic.epoch > owned.epoch:
            return
        if topic is not None and topic.phase is not Phase.PREPARED and topic.epoch < owned.epoch:
            # A new epoch without this broker's own state: another broker may have been the home in between.
            self._drop(topic, Code.NOT_HOME, "the topic has a new epoch; attach again")
            topic = None
        if topic is None:
            if self._is_full(owned.topic, owned.epoch):
                return
            topic = state.add_topic(owned.topic, owned.epoch, Phase.PREPARED)
        if owned.log is not None:
            self._open_log(topic, owned)
            self.recording.follow(topic, owned.record)
            return
        if topic.phase is Phase.PREPARED:
            self.recording.note_break(owned)
            topic.open(owned.epoch, owned.state)
        elif topic.handed_over:
            self.handing_over.report(topic)  # the target may have opened it: never accept again in this epoch
            return
        elif topic.phase is Phase.STOPPED:
            self.handing_over.cancel(topic)
            topic.phase, topic.moved_to = Phase.OPEN, None
        self.recording.follow(topic, owned.record)
        self._confirm_open(topic)

    def _confirm_open(self, topic: HostedTopic) -> None:
        topic.counted = topic.counted or (self._state.now_s, topic.sequence, None)
        self._state.report(topic_link.TopicOpened(topic.name, topic.epoch))
        waiting, topic.waiting, topic.waiting_bytes = topic.waiting, [], 0
        for identity, request in waiting:
            connection = self._state.connections.get(identity)
            if connection is not None:
                self._request(connection, topic, request)

    def _open_log(self, topic: HostedTopic, owned: topic_link.OwnedTopic) -> None:
        """Open a persistent topic: at once if it is open in this epoch, else when its log is."""
        if topic.phase is Phase.STOPPED:
            topic.phase, topic.moved_to = Phase.OPEN, None
        self.replication.open(topic, owned)
        if topic.phase is Phase.OPEN and topic.log is not None:
            self._confirm_open(topic)

    def _on_log_failed(self, topic: HostedTopic, message: str) -> None:
        """This broker cannot be the home: the coordinator chooses one in another epoch."""
        self._state.report(topic_link.TopicRefused(topic.name, topic.epoch, message))
        self._drop(topic, Code.NOT_HOME, message)

    def _is_full(self, name: TopicName, epoch: int) -> bool:
        limit = self._state.limits.topics
        if len(self._state.topics) < limit:
            return False
        self._state.report(topic_link.TopicRefused(name, epoch, f"this broker is home of {limit:,} topics already"))
        return True

    # -- moves ---------------------------------------------------------------------------------------------------------

    def _prepare(self, message: topic_link.PrepareTopic) -> None:
        name, epoch = message.topic, message.epoch
        if message.created is not None:
            self.logs.named[name] = message.created
        topic = self._state.topics.get(name)
        if topic is not None and topic.epoch == epoch and topic.log is None:
            opened = topic.phase is not Phase.PREPARED
            self._state.report((topic_link.TopicOpened if opened else topic_link.TopicPrepared)(name, epoch))
        if topic is not None and topic.epoch >= epoch:
            return
        if topic is not None:
            self._drop(topic, Code.NOT_HOME, "another broker is the home of this topic")
        if not self._is_full(name, epoch):
            self.recording.follow(self._state.add_topic(name, epoch, Phase.PREPARED), message.record)
            self._state.report(topic_link.TopicPrepared(name, epoch))

    def _stop(self, message: topic_link.StopTopic) -> None:
        """Accept nothing more, send what was accepted, then `moved`; report the state that the target continues."""
        topic = self._state.topics.get(message.topic)
        if topic is None or topic.epoch != message.epoch or topic.phase is Phase.PREPARED:
            return
        if topic.log is not None:
            self.replication.stop(topic, message)
        elif message.target_epoch is not None:
            self.handing_over.announce(topic, message)
        elif topic.phase is Phase.OPEN:
            self._delivery.flush()
            self.handing_over.stop(topic, message)
        else:
            self.handing_over.report(topic)

    def take_over(self, message: HandOver) -> None:
        """The source of a move has handed the topic over to this broker."""
        topic = self._state.topics.get(message.topic)
        if topic is None or topic.epoch != message.epoch or topic.phase is not Phase.PREPARED or topic.log is not None:
            return
        topic.open(message.epoch, message.state)
        self._confirm_open(topic)

    def _release(self, message: topic_link.ReleaseTopic) -> None:
        topic = self._state.topics.get(message.topic)
        if topic is not None and topic.epoch == message.epoch:
            self._release_topic(topic, message.deleted)
        if message.drop_log is not None and message.topic not in self._state.topics:
            self.logs.drop(message.topic, message.drop_log)

    def _release_topic(self, topic: HostedTopic, deleted: bool) -> None:
        if deleted:
            self._drop(topic, Code.UNKNOWN_TOPIC, "the topic was deleted")
        elif topic.phase is Phase.STOPPED:
            self._delivery.announce_move(topic, list(topic.lagging))
            self._forget(topic)
        else:
            self._drop(topic, Code.NOT_HOME, "another broker is the home of this topic")

    # -- the end of a topic here ---------------------------------------------------------------------------------------

    def _drop(self, topic: HostedTopic, code: Code, message: str) -> None:
        self._delivery.flush()
        self._end_clients(topic, code, message)
        self._forget(topic)

    def _end_clients(self, topic: HostedTopic, code: Code, message: str) -> None:
        state = self._state
        self._delivery.flush()
        waiting, topic.waiting, topic.waiting_bytes = topic.waiting, [], 0
        for identity, request in waiting:
            if (connection := state.connections.get(identity)) is None:
                continue
            if isinstance(request, wire.Publish):
                state.send(connection, wire.NotAccepted(request.at, request.number, str(Code.NOT_HOME), message, 0.2))
            else:
                state.refuse(connection, request.id, code, message, 0.2)
        clients = topic.clients
        state.send_to_all(clients, wire.Ended(topic.at, topic.name, str(code), message))
        for identity in clients:
            self._forget_client(state.connections[identity], topic)

    def _forget(self, topic: HostedTopic) -> None:
        state = self._state
        for identity in topic.clients:
            self._forget_client(state.connections[identity], topic)
        self.recording.close(topic)
        self.replication.close(topic)
        self.handing_over.cancel(topic)
        state.unlogged.pop(topic.name, None)
        del state.topics[topic.name], state.by_number[topic.at]
        state.forget_recent(topic)

    def _forget_client(self, connection: Connection, topic: HostedTopic) -> None:
        self._delivery.detach(connection, topic)
        topic.senders.pop(connection.id, None)
        connection.senders.pop(topic.name, None)
