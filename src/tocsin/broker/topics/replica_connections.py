"""This broker's connections to other brokers, shared by the topics that need them: logs to copy, topics to hand over.

Pure: the driver opens and closes the connections (`ConnectReplica`, `DisconnectReplica`) and reports their state.
"""

from __future__ import annotations

from tocsin.broker.topics.effects import ConnectReplica, DisconnectReplica
from tocsin.broker.topics.hosted import TopicsState
from tocsin.model.ids import BrokerId
from tocsin.wire.topic_log import Replica


class ReplicaConnections:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._open: set[BrokerId] = set()
        self._uses: dict[BrokerId, int] = {}
        """Broker → the number of topics that need the connection."""

    def use(self, replica: Replica) -> None:
        if not self._uses.get(replica.broker):
            self._state.effects.append(ConnectReplica(replica.broker, replica.address))
        self._uses[replica.broker] = self._uses.get(replica.broker, 0) + 1

    def release(self, broker: BrokerId) -> None:
        self._uses[broker] -= 1
        if not self._uses[broker]:
            del self._uses[broker]
            self._open.discard(broker)
            self._state.effects.append(DisconnectReplica(broker))

    def is_open(self, broker: BrokerId) -> bool:
        return broker in self._open

    def on_connection(self, broker: BrokerId, problem: str | None) -> None:
        """The connection is open (`problem` is None), or broken."""
        if problem is None and broker in self._uses:
            self._open.add(broker)
        else:
            self._open.discard(broker)
