"""The source's side of a move with a direct hand-over, make before break [ePulsar §3.6, decision 18].

    announced   the source serves; its clients attach to the target, and the source connects to the target
    handed over the source accepts nothing more. In one turn it sends the state to the target, `moved` to its clients
                and a report to the coordinator

The state travels no farther than a client's message does that goes from the source's `moved` to the target. So clients
pause for one round trip to the target, whatever the distance to the coordinator. The coordinator has stored that the
target may open the topic before it ordered the move.
"""

from __future__ import annotations

from tocsin.broker.topics.delivery import Delivery
from tocsin.broker.topics.effects import SendToReplica
from tocsin.broker.topics.hosted import Connection, HostedTopic, Phase, PlannedMove, TopicsState
from tocsin.broker.topics.replica_connections import ReplicaConnections
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.topic_log import HandOver, Replica


class HandingOver:
    def __init__(self, state: TopicsState, delivery: Delivery, connections: ReplicaConnections) -> None:
        self._state = state
        self._delivery = delivery
        self._connections = connections
        self._planned: dict[TopicName, HostedTopic] = {}
        """Topics whose move is announced or done, until this broker forgets them."""

    def announce(self, topic: HostedTopic, order: topic_link.StopTopic) -> None:
        """Begin a move, or repeat the report of one that is done. A repeated order changes nothing."""
        if topic.phase is Phase.STOPPED:
            self.report(topic)
            return
        if topic.planned is not None and topic.planned.order == order:
            return
        self.cancel(topic)
        self._planned[topic.name] = topic
        topic.planned = PlannedMove(order, self._state.now_s + order.wait_s, set(topic.clients))
        self._connections.use(Replica(order.broker, order.address))
        self._state.send_to_all(topic.clients, _moving(topic, order))
        self._check(topic, topic.planned)

    def on_attached(self, connection: Connection, topic: HostedTopic) -> None:
        """A client attached while the move is announced: wait for it too."""
        attached = topic.name in connection.senders or topic.name in connection.receiving
        if topic.planned is not None and topic.phase is Phase.OPEN and attached:
            topic.planned.awaited.add(connection.id)
            self._state.send(connection, _moving(topic, topic.planned.order))

    def on_ready(self, connection: Connection, topic: HostedTopic) -> None:
        if topic.planned is not None:
            topic.planned.awaited.discard(connection.id)
            self._check(topic, topic.planned)

    def on_connection(self, broker: BrokerId) -> None:
        """The connection to a target is open."""
        for topic in list(self._planned.values()):
            if topic.planned is not None and topic.planned.order.broker == broker:
                self._check(topic, topic.planned)

    def tick(self) -> None:
        for topic in list(self._planned.values()):
            if topic.planned is not None and topic.phase is Phase.OPEN:
                topic.planned.awaited &= topic.clients.keys()
                self._check(topic, topic.planned)

    def _check(self, topic: HostedTopic, planned: PlannedMove) -> None:
        """Hand over when all clients are ready, or when the time for it has passed."""
        waits = bool(planned.awaited) or not self._connections.is_open(planned.order.broker)
        late = self._state.now_s >= planned.until_s
        if topic.phase is Phase.OPEN and (late or not waits) and self._state.lease.valid(self._state.now_s):
            self._hand_over(topic, planned.order)

    def _hand_over(self, topic: HostedTopic, order: topic_link.StopTopic) -> None:
        """Without a connection to the target the state reaches it by the coordinator, later."""
        assert order.target_epoch is not None
        self._delivery.flush()
        topic.handed_over = self._connections.is_open(order.broker)
        if topic.handed_over:
            message = HandOver(topic.name, order.target_epoch, topic.handed_state())
            self._state.effects.append(SendToReplica(order.broker, message))
        self.stop(topic, order)

    def stop(self, topic: HostedTopic, order: topic_link.StopTopic) -> None:
        """Accept nothing more, send the clients to the target, and report the state that the target continues.

        A receiver that lags behind gets its messages first.
        """
        topic.phase, topic.moved_to = Phase.STOPPED, (order.broker, order.address)
        self._delivery.announce_move(topic, [client for client in topic.clients if client not in topic.lagging])
        self.report(topic)

    def report(self, topic: HostedTopic) -> None:
        stopped = topic_link.TopicStopped(topic.name, topic.epoch, topic.handed_state(), topic.handed_over)
        self._state.report(stopped)

    def keep(self, topic: HostedTopic, target_epoch: int) -> None:
        """The coordinator gives the move up."""
        if topic.handed_over:
            self.report(topic)
            return
        self.cancel(topic)
        if topic.phase is Phase.STOPPED:
            topic.phase, topic.moved_to = Phase.OPEN, None
        self._state.report(topic_link.TopicKept(topic.name, topic.epoch, target_epoch))

    def cancel(self, topic: HostedTopic) -> None:
        """Forget the move: it is given up, or this broker forgets the topic."""
        if topic.planned is not None:
            self._connections.release(topic.planned.order.broker)
            topic.planned = None
            del self._planned[topic.name]


def _moving(topic: HostedTopic, order: topic_link.StopTopic) -> wire.Moving:
    return wire.Moving(topic.at, topic.name, order.broker, order.address)
