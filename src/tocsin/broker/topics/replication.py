"""The home's side of persistent topics: the log, its followers, the commit, and the hand-over [decision 16].

open       read the log, begin the epoch in it, bring followers in line      → open when a quorum has begun it
flush      hand accepted messages to the log and to the followers
commit     a quorum has a message on disk: deliver and acknowledge it
hand over  the target of a move, and a quorum with it, have the whole log    → the coordinator makes it the home
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.delivery import Delivery
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.follower_feed import FollowerFeed
from tocsin.broker.topics.home_log import CommitFigures, HomeLog
from tocsin.broker.topics.hosted import HostedTopic, Phase, TopicsState
from tocsin.broker.topics.local_logs import LocalLogs
from tocsin.broker.topics.replica_connections import ReplicaConnections
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.topic_log import Piece

_LEFT_BYTES = 64 << 10
"""What the target of a move may still have to store when the source stops."""
_TRIM_S = 10.0
"""How often a home checks the retention."""
Fail = Callable[[HostedTopic, str], None]


class Replication:
    def __init__(
        self,
        state: TopicsState,
        logs: LocalLogs,
        delivery: Delivery,
        connections: ReplicaConnections,
        opened: Callable[[HostedTopic], None],
        failed: Fail,
    ) -> None:
        """`opened` is called when a topic may accept messages, `failed` when this broker cannot be its home."""
        self._state = state
        self._logs = logs
        self._delivery = delivery
        self._opened = opened
        self._failed = failed
        self._feed = FollowerFeed(state, logs, connections)
        self.commits = CommitFigures()
        self._homed: dict[TopicName, HostedTopic] = {}
        """Persistent topics of which this broker is home."""

    # -- open ----------------------------------------------------------------------------------------------------------

    def open(self, topic: HostedTopic, owned: topic_link.OwnedTopic) -> None:
        """Open a topic in a new epoch, or confirm it in the present one with a plan that may have changed."""
        assert owned.log is not None
        log = topic.log
        if log is not None and topic.epoch == owned.epoch:
            log.plan, log.stopping, log.learner, log.copied, log.reported = owned.log, None, None, False, None
            if log.base >= 0:
                self._connect(topic, log)
                self.advance(topic)
            return
        self.close(topic)
        topic.epoch, topic.log, topic.moved_to = owned.epoch, HomeLog(owned.log), None
        self._homed[topic.name] = topic
        opened, failed = partial(self._begin_epoch, topic, owned.epoch), partial(self._fail, topic, owned.epoch)
        local = self._logs.open(topic.name, owned.log.created, opened, failed)
        if local is None:
            self._failed(topic, "a later topic has this name")
        else:
            local.promised = max(local.promised, owned.epoch)  # follow no earlier home from here on

    def _begin_epoch(self, topic: HostedTopic, epoch: int, opened: events.LogOpened) -> None:
        log, local = topic.log, self._logs.logs[topic.name]
        if log is None or topic.epoch != epoch or self._state.topics.get(topic.name) is not topic or log.base >= 0:
            return
        if local.promised > epoch or local.last_epoch >= epoch:
            self._failed(topic, f"this broker has promised epoch {max(local.promised, local.last_epoch)} already")
            return
        if opened.end < log.plan.least or local.written != opened.end:
            reason = f"its log ends at {opened.end:,} and should reach {log.plan.least:,}"
            self._failed(topic, f"{self._state.broker}: {reason}; was its disk replaced?")
            return
        local.promised, local.home = epoch, None
        topic.sequence, topic.since = opened.end, log.plan.created
        topic.set_publishers(opened.publishers)
        log.numbers = dict(opened.publishers)
        log.base = log.handed = opened.end
        self._logs.append(local, Piece(epoch, opened.end + 1, []))
        self._connect(topic, log)

    def _fail(self, topic: HostedTopic, epoch: int, message: str) -> None:
        if topic.epoch == epoch and self._state.topics.get(topic.name) is topic:
            self._failed(topic, message)

    def _connect(self, topic: HostedTopic, log: HomeLog) -> None:
        replicas = [replica for replica in log.plan.replicas if replica.broker != self._state.broker]
        if log.learner is not None and log.learner.broker not in {replica.broker for replica in replicas}:
            replicas.append(log.learner)
        self._feed.set_followers(topic, log, replicas)

    def close(self, topic: HostedTopic) -> None:
        """This broker is not the topic's home any more."""
        if topic.log is not None:
            self._feed.set_followers(topic, topic.log, [])
            topic.log = None
            self._homed.pop(topic.name, None)

    # -- commit --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand everything that was accepted since the last flush to the logs and to the followers."""
        for topic in self._state.unlogged.values():
            if topic.log is not None:
                self._flush_topic(topic, topic.log)
        self._state.unlogged.clear()

    def _flush_topic(self, topic: HostedTopic, log: HomeLog) -> None:
        new = topic.unsent[log.handed - topic.sent :]
        if new and log.base >= 0:
            piece = Piece(topic.epoch, log.handed + 1, new)
            log.handed = piece.last
            log.handed_s.append((piece.last, self._state.now_s))
            log.uncommitted_bytes += piece.size_bytes
            self._logs.append(self._logs.logs[topic.name], piece)
            for follower in log.followers.values():
                self._feed.send_more(topic, log, follower)

    def advance(self, topic: HostedTopic) -> None:
        """Something was stored: commit, and check whether a move can go on."""
        log = topic.log
        if log is None or log.base < 0:
            return
        committed = log.committed(self._state.broker)
        if topic.phase is Phase.PREPARED and committed >= log.base:
            topic.phase = Phase.OPEN
            self._opened(topic)
        if topic.phase is not Phase.PREPARED:
            self._commit(topic, log, min(committed, log.handed))
            self._check_copied(topic, log)
            self._check_hand_over(topic, log)

    def _commit(self, topic: HostedTopic, log: HomeLog, committed: int) -> None:
        entries = topic.unsent[: max(0, committed - topic.sent)]
        if entries:
            log.numbers.update((publisher, number) for publisher, number, _ in entries)
            log.uncommitted_bytes -= Piece(topic.epoch, 0, entries).size_bytes
            self._delivery.send_ready(topic, len(entries))
        while log.handed_s and log.handed_s[0][0] <= topic.sent:
            self.commits.count += 1
            self.commits.seconds += self._state.now_s - log.handed_s.popleft()[1]
        last: dict[ConnectionId, int] = {}
        while log.acknowledge and log.acknowledge[0][0] <= topic.sent:
            _, identity, number = log.acknowledge.popleft()
            last[identity] = number
        for identity, number in last.items():
            connection = self._state.connections.get(identity)
            if connection is not None and topic.name in connection.senders:
                self._state.send(connection, wire.Acknowledged(topic.at, number))

    # -- moves ---------------------------------------------------------------------------------------------------------

    def copy(self, message: topic_link.CopyTopic) -> None:
        """Copy the log to the target of a move; later, if the log is still being opened."""
        topic = self._state.topics.get(message.topic)
        log = None if topic is None else topic.log
        if topic is None or log is None or topic.epoch != message.epoch:
            return
        log.learner, log.copied = message.target, False
        if log.base >= 0:
            self._connect(topic, log)
            self.advance(topic)

    def _check_copied(self, topic: HostedTopic, log: HomeLog) -> None:
        """The target has been sent everything that is committed, and has little left to store.

        It need not have stored all of it: while messages arrive, a target that is farther away than the other replicas
        would never have. The hand-over waits for the rest.
        """
        if log.learner is None or log.copied:
            return
        target = log.followers[log.learner.broker]
        if target.stored >= 0 and target.sent >= topic.sent and target.in_flight_bytes <= _LEFT_BYTES:
            log.copied = True
            self._state.report(topic_link.TopicCopied(topic.name, topic.epoch, log.learner.broker))

    def stop(self, topic: HostedTopic, message: topic_link.StopTopic) -> None:
        """Accept nothing more. The hand-over follows when the next replicas have the whole log."""
        if topic.log is not None and topic.log.base >= 0 and topic.phase is not Phase.PREPARED:
            self._flush_topic(topic, topic.log)
            topic.phase, topic.log.stopping = Phase.STOPPED, message
            self.advance(topic)

    def _check_hand_over(self, topic: HostedTopic, log: HomeLog) -> None:
        message = log.stopping
        if message is None or log.handed != topic.sequence:
            return
        complete = [name for name in message.replicas if log.stored_at(name, self._state.broker) >= topic.sequence]
        if message.broker in complete and len(complete) >= log.plan.quorum:
            log.stopping, topic.moved_to = None, (message.broker, message.address)
            self._delivery.leave(topic, wire.Moved(topic.at, topic.name, *topic.moved_to))
            state = topic_link.TopicState(topic.sequence, topic.since)
            self._state.report(topic_link.TopicStopped(topic.name, topic.epoch, state))

    # -- events --------------------------------------------------------------------------------------------------------

    def on_stored(self, name: TopicName, log_epoch: int, end: int) -> None:
        topic = self._state.topics.get(name)
        if topic is not None and topic.log is not None and topic.epoch == log_epoch:
            topic.log.stored = end
            self.advance(topic)

    def on_read(self, event: events.LogRead) -> None:
        topic = self._state.topics.get(event.topic)
        if topic is None or topic.log is None or topic.log.plan.created != event.created:
            return
        if isinstance(event.reader, int):
            self._delivery.on_read(topic, event.reader, event)
        else:
            self._feed.on_read(topic, topic.log, event.reader, event)

    def on_snapshot(self, event: events.SnapshotRead) -> None:
        topic = self._state.topics.get(event.topic)
        if topic is not None and topic.log is not None:
            self._feed.install(topic, topic.log, event)

    def on_answer(self, event: events.ReplicaAnswered) -> None:
        topic = self._state.topics.get(event.message.topic)
        if topic is not None and topic.log is not None and topic.epoch == event.message.epoch:
            self._feed.on_answer(topic, topic.log, event.broker, event.message)
            self.advance(topic)

    def on_connection(self, broker: BrokerId, problem: str | None) -> None:
        self._feed.on_connection(broker, problem, self._homed.values())

    def on_failed(self, name: TopicName, message: str) -> None:
        """The disk refuses. The followers may have more of this epoch than the log: another epoch has to begin."""
        topic = self._state.topics.get(name)
        if topic is not None and topic.log is not None and topic.log.base >= 0:
            self._failed(topic, message)

    def tick(self) -> None:
        for topic in list(self._homed.values()):
            log = topic.log
            if log is None or log.base < 0:
                continue
            self._feed.retry(topic, log)
            self._report(topic, log)
            if self._state.now_s - log.trimmed_s >= _TRIM_S and topic.phase is Phase.OPEN:
                log.trimmed_s = self._state.now_s
                plan = log.plan
                trim = effects.TrimLog(topic.name, plan.created, None, plan.retain_bytes, plan.retain_s)
                self._state.effects.append(trim)

    def _report(self, topic: HostedTopic, log: HomeLog) -> None:
        """Tell the coordinator which replicas are complete, when that has changed."""
        behind = {name: follower for name, follower in log.followers.items() if follower.stored < 0}
        in_sync = [replica.broker for replica in log.plan.replicas if replica.broker not in behind]
        problem = next((f"{name}: {follower.problem}" for name, follower in behind.items() if follower.problem), None)
        if (in_sync, problem) != log.reported:
            log.reported = (in_sync, problem)
            self._state.report(topic_link.LogReport(topic.name, topic.epoch, in_sync, problem))
