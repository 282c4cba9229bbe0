"""What one node knows about where operators are: here, below, or neither.

A node sees every move across itself, because operators move between neighbours only. Its knowledge of what is below it
is therefore exact at any time, without anyone telling it. From it follows whether an operator may come here: streams
flow upwards only, so what feeds it must be here or below, and what it feeds must not be below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tocsin.edge.selection import Selection
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer


class Placement:
    def __init__(
        self, node: EdgeNodeId, selection: Selection, here: Iterable[OperatorId], below: Iterable[OperatorId]
    ) -> None:
        self.node = node
        self._selection = selection
        self.here: set[OperatorId] = set(here)
        """Held by this node: running, frozen on their way out, or taken over and not yet confirmed."""
        self.below: set[OperatorId] = set(below)
        self.leaving: dict[OperatorId, EdgeNodeId] = {}
        """Frozen: where to."""
        self.unconfirmed: set[OperatorId] = set()
        """Taken over; they stay until the giver has confirmed, so that it can take them back should this node die."""
        self._available: tuple[Transfer, ...] | None = None

    @property
    def parent(self) -> EdgeNodeId | None:
        return self._selection.tree.parent(self.node)

    def available_transfers(self) -> tuple[Transfer, ...]:
        """Computed again only after an operator has come or gone [AMI §3.2]."""
        if self._available is None:
            self._available = self._selection.available_transfers(self.node, self.here)
        if not self.leaving and not self.unconfirmed:
            return self._available
        return tuple(
            one
            for one in self._available
            if not any(operator in self.leaving or operator in self.unconfirmed for operator in one.operators)
        )

    def is_known(self, operator: OperatorId) -> bool:
        return operator in self._selection.lowest_place

    def may_come(self, operators: Collection[OperatorId], origin: EdgeNodeId) -> bool:
        """True if all streams would flow upwards with these operators here. The sender cannot know: a peer of them may
        be moving between the two nodes the other way at this very moment."""
        coming = set(operators)
        if not coming or len(coming) < len(operators):
            return False
        if any(not self.is_known(operator) or operator in self.here for operator in coming):
            return False
        graph = self._selection.graph
        if origin == self.parent:
            tree, lowest = self._selection.tree, self._selection.lowest_place
            feeding = {peer for operator in coming for peer in graph.upstream[operator]} - coming
            return all(tree.is_at_or_above(self.node, lowest[operator]) for operator in coming) and all(
                peer in self.below or (peer in self.here and self.leaving.get(peer) != self.parent) for peer in feeding
            )
        fed = {peer for operator in coming for peer in graph.downstream[operator]} - coming
        return all(peer not in self.below and self.leaving.get(peer) in (None, self.parent) for peer in fed)

    def freeze(self, operators: Iterable[OperatorId], destination: EdgeNodeId) -> None:
        self.leaving.update(dict.fromkeys(operators, destination))

    def resume(self, operators: Iterable[OperatorId]) -> None:
        for operator in operators:
            del self.leaving[operator]

    def arrive(self, operators: Iterable[OperatorId]) -> None:
        arrived = set(operators)
        self.here |= arrived
        self.unconfirmed |= arrived
        self.below -= arrived
        self._available = None

    def confirm(self, operators: Iterable[OperatorId]) -> None:
        self.unconfirmed.difference_update(operators)

    def depart(self, operators: Iterable[OperatorId]) -> None:
        for operator in operators:
            if self.leaving.pop(operator) != self.parent:
                self.below.add(operator)
            self.here.remove(operator)
        self._available = None
