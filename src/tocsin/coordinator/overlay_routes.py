"""The advertisement table (ADT) of a head: which neighbours offer a flow, and which of them it comes through.

The first neighbour that advertises a flow is the way it comes; the same flow advertised by another is a duplicate and
is not passed on [ePEER §4.3.2, figure 4-8]. The thesis forgets duplicates. Here they are spare ways: when the chosen
neighbour is lost or withdraws, the shortest spare is taken (then the smaller id), and only if there is none is the flow
gone. The chosen way stays until it is lost even if a shorter one turns up, because each change of way may cost
messages.

Ways always settle. Nobody leaves a way that has not changed; so the source's neighbours that take it directly stay,
then those that take it from them, and so on: after finitely many messages every path consists of heads that stay.
"""

from __future__ import annotations

from tocsin.coordinator.overlay_messages import Flow
from tocsin.model.ids import BrokerId

Path = tuple[BrokerId, ...]


class Routes:
    def __init__(self, head: BrokerId) -> None:
        self._head = head
        self._ways: dict[Flow, dict[BrokerId, Path]] = {}
        self._chosen: dict[Flow, BrokerId] = {}

    def __len__(self) -> int:
        """Ways known, spare ones included."""
        return sum(len(ways) for ways in self._ways.values())

    def flows(self) -> list[Flow]:
        return list(self._ways)

    def chosen(self, flow: Flow) -> BrokerId | None:
        return self._chosen.get(flow)

    def path(self, flow: Flow) -> Path | None:
        """From the source to the chosen neighbour; None when there is no way."""
        chosen = self._chosen.get(flow)
        return None if chosen is None else self._ways[flow][chosen]

    def learn(self, flow: Flow, neighbour: BrokerId, path: Path) -> None:
        """`neighbour` offers `flow` by `path`. A path through this head is no way: it is as good as withdrawn."""
        if self._head in path:
            self.forget(flow, neighbour)
            return
        self._ways.setdefault(flow, {})[neighbour] = path
        self._chosen.setdefault(flow, neighbour)

    def forget(self, flow: Flow, neighbour: BrokerId) -> None:
        ways = self._ways.get(flow)
        if ways is None or ways.pop(neighbour, None) is None:
            return
        if self._chosen[flow] == neighbour:
            del self._chosen[flow]
            if ways:
                self._chosen[flow] = min(ways, key=lambda other: (len(ways[other]), other))
        if not ways:
            del self._ways[flow]

    def lose(self, neighbour: BrokerId) -> list[Flow]:
        """Forget all that a neighbour offered; returns the flows it had offered."""
        offered = [flow for flow, ways in self._ways.items() if neighbour in ways]
        for flow in offered:
            self.forget(flow, neighbour)
        return offered
