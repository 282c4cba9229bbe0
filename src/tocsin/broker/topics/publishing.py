"""The sender's side of a home: attach, accept in order, remove repeats, refuse.

A message is accepted when it has its sequence number. The home acknowledges it at the next flush, together with
everything else that the same connection published in that turn.
"""

from __future__ import annotations

from itertools import repeat

from tocsin.broker.topics.hosted import OPEN, Connection, HostedTopic, TopicsState
from tocsin.broker.topics.limiting import Limiting
from tocsin.broker.topics.publisher_shares import owner_of
from tocsin.model.permission import SEND, permits_topic
from tocsin.model.topic import publisher_id
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code

_LEASE_RETRY_S = 0.2
"""When a sender should try again while the home waits for its lease."""
_LARGEST_NUMBER = 2**53


class Publishing:
    def __init__(self, state: TopicsState, limiting: Limiting) -> None:
        self._state = state
        self._limiting = limiting

    def attach(self, connection: Connection, topic: HostedTopic, request: wire.AttachSender) -> None:
        """Attach a sender. It continues behind the last number that this home, or its predecessor, accepted."""
        state = self._state
        if not permits_topic(connection.scopes, SEND, topic.name):
            state.forbid(connection, request.id, SEND, topic.name)
            return
        if not 1 <= request.number < _LARGEST_NUMBER:
            state.refuse(connection, request.id, Code.BAD_REQUEST, "numbers of messages begin with 1")
            return
        publisher = publisher_id(connection.user, request.run)
        last = max(topic.publishers.pop(publisher, 0), request.number - 1)
        topic.publishers[publisher] = last
        topic.shares.add(publisher, owner_of(connection.user))
        self._forget_old_publishers(topic)
        connection.senders[topic.name] = publisher
        if request.prompt:
            connection.unhurried.discard(topic.at)
        else:
            connection.unhurried.add(topic.at)
        topic.senders[connection.id] = None
        if topic.log is not None:
            # Messages that are not committed yet may still be lost with this home: the sender keeps them.
            last = max(topic.log.numbers.get(publisher, 0), request.number - 1)
        state.send(connection, wire.SenderAttached(request.id, topic.at, last + 1))
        self._limiting.attached(connection, topic, publisher)

    def _forget_old_publishers(self, topic: HostedTopic) -> None:
        while len(topic.publishers) > self._state.limits.topic_publishers:
            del topic.publishers[topic.shares.remove_oldest()]

    def publish(self, connection: Connection, topic: HostedTopic | None, request: wire.Publish) -> bool:
        """Accept the messages of one frame. Returns True if a flush is due: for them, or for an acknowledgement."""
        publisher = None if topic is None else connection.senders.get(topic.name)
        if topic is None or publisher is None or publisher not in topic.publishers:
            message = "attach to this topic before publishing"
            self._refuse(connection, request.at, request.number, Code.NOT_HOME, message)
            return False
        new, expected = request.messages, topic.publishers[publisher] + 1
        if request.number != expected:
            if request.number > expected:
                return False  # an earlier message was not accepted: the sender starts again from there
            new = new[expected - request.number :]
        if new and not self._may_accept(connection, topic, expected):
            return False
        if self._limiting.counting:
            self._limiting.count(topic, publisher, new)
        last = self._accept(connection, topic, publisher, expected, new)
        if last < expected and not request.messages:
            return False
        if topic.log is not None:
            topic.log.acknowledge.append((topic.sequence, connection.id, last))
        elif topic.at in connection.unhurried:
            self._state.acknowledge_later[connection.id, topic.at] = last
        else:
            self._state.acknowledge[connection.id, topic.at] = last
        return True

    def _may_accept(self, connection: Connection, topic: HostedTopic, expected: int) -> bool:
        """True if this home may order messages now: it owns the topic in this epoch and holds its lease."""
        if topic.phase is not OPEN:
            self._refuse(connection, topic.at, expected, Code.NOT_HOME, "another broker is the home of this topic")
            return False
        if not self._state.lease.valid(self._state.now_s):
            message = "this broker cannot reach the coordinator and does not know whether it is still the home"
            self._refuse(connection, topic.at, expected, Code.NOT_READY, message, _LEASE_RETRY_S)
            return False
        if topic.log is not None and topic.log.uncommitted_bytes > self._state.limits.topic_uncommitted_bytes:
            message = f"{topic.log.plan.quorum} replicas must store earlier messages first; too few do so in time"
            self._refuse(connection, topic.at, expected, Code.BACKLOGGED, message, _LEASE_RETRY_S)
            return False
        return True

    def _accept(
        self, connection: Connection, topic: HostedTopic, publisher: int, number: int, messages: list[bytes]
    ) -> int:
        """Accept messages in order until one exceeds the rate. Returns the last number that is decided."""
        state, limits = self._state, self._state.limits
        limited = self._limiting.limits_any and self._limiting.is_limited(topic, publisher)
        largest = max(map(len, messages), default=0)
        if not limited and len(messages) <= connection.allowance and largest <= limits.topic_message_bytes:
            return self._accept_all(connection, topic, publisher, number, messages)
        dirty = state.dirty if topic.log is None else state.unlogged
        for data in messages:
            if len(data) > limits.topic_message_bytes:
                message = f"a message has at most {limits.topic_message_bytes:,} bytes"
                self._refuse(connection, topic.at, number, Code.TOO_LARGE, message)
            elif limited and not self._limiting.admit(topic, publisher):
                message = "the site is congested, and this exceeds the limit of this publisher"
                self._refuse(connection, topic.at, number, Code.LIMITED, message)
            elif (wait_s := self._spend(connection)) > 0.0:
                message = f"at most {limits.topic_rate_per_s:,} messages per second on one connection"
                self._refuse(connection, topic.at, number, Code.BACKLOGGED, message, wait_s)
                break
            else:
                topic.sequence += 1
                entry = (publisher, number, data)
                topic.recent.append(entry)
                topic.unsent.append(entry)
                state.recent_order.append(topic)
                state.recent_bytes += len(data)
                state.accepted += 1
                dirty[topic.name] = topic
            topic.publishers[publisher] = number
            number += 1
        return number - 1

    def _accept_all(
        self, connection: Connection, topic: HostedTopic, publisher: int, number: int, messages: list[bytes]
    ) -> int:
        """Accept messages that exceed no limit. Returns the last number."""
        state, count = self._state, len(messages)
        if count == 1:
            entries = [(publisher, number, messages[0])]
        else:
            entries = list(zip(repeat(publisher), range(number, number + count), messages, strict=False))
        connection.allowance -= count
        topic.sequence += count
        topic.recent.extend(entries)
        topic.unsent.extend(entries)
        topic.publishers[publisher] = number + count - 1
        state.recent_order.extend(repeat(topic, count))
        state.recent_bytes += sum(map(len, messages))
        state.accepted += count
        dirty = state.dirty if topic.log is None else state.unlogged
        dirty[topic.name] = topic
        return number + count - 1

    def _spend(self, connection: Connection) -> float:
        """Count one message; returns the seconds until there is room if the connection is too fast, else 0."""
        rate_per_s = self._state.limits.topic_rate_per_s
        if connection.allowance < 1.0:
            earned = (self._state.now_s - connection.allowed_at_s) * rate_per_s
            connection.allowance = min(float(rate_per_s), connection.allowance + max(0.0, earned))
            connection.allowed_at_s = self._state.now_s
        if connection.allowance < 1.0:
            return max(0.01, (1.0 - connection.allowance) / rate_per_s)
        connection.allowance -= 1.0
        return 0.0

    def _refuse(
        self,
        connection: Connection,
        at: int,
        number: int,
        code: Code,
        message: str,
        retry_after_s: float | None = None,
    ) -> None:
        self._state.send(connection, wire.NotAccepted(at, number, str(code), message, retry_after_s))
