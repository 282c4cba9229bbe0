"""Where operators are, as one node knows it: at this node, below it, or elsewhere.

Operators move between neighbours only, so a node sees every move across itself. Its knowledge of the operators below it
is therefore always exact, without extra messages. From it follows whether an operator may move to this node: streams
flow upwards only, so an operator's feeders must be here or below, and the operators it feeds must not be below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tocsin.edge.selection import OperatorSelection
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer


class OperatorPlacement:
    def __init__(
        self, node: EdgeNodeId, selection: OperatorSelection, here: Iterable[OperatorId], below: Iterable[OperatorId]
    ) -> None:
        self.node = node
        self.parent = selection.tree.parent(node)
        self._selection = selection
        self.here: set[OperatorId] = set(here)
        """Held by this node: running, frozen for a transfer, or accepted and not yet confirmed."""
        self.below: set[OperatorId] = set(below)
        self.leaving: dict[OperatorId, EdgeNodeId] = {}
        """The destination of each frozen operator."""
        self.unconfirmed: set[OperatorId] = set()
        """Accepted operators. They stay until the giver confirms: if this node dies, the giver resumes its copies."""
        self._available: tuple[Transfer, ...] | None = None

    def available_transfers(self) -> tuple[Transfer, ...]:
        """Recomputed only after an operator has arrived or departed [AMI §3.2]."""
        if self._available is None:
            self._available = self._selection.available_transfers(self.node, self.here)
        if not self.leaving and not self.unconfirmed:
            return self._available
        return tuple(
            transfer
            for transfer in self._available
            if not any(operator in self.leaving or operator in self.unconfirmed for operator in transfer.operators)
        )

    def feasible(self, transfers: Iterable[Transfer], origin: EdgeNodeId) -> tuple[Transfer, ...]:
        return tuple(transfer for transfer in transfers if self.may_arrive(transfer.operators, origin))

    def may_arrive(self, operators: Collection[OperatorId], origin: EdgeNodeId) -> bool:
        """True if all streams would flow upwards with these operators here.

        The sender cannot decide this: an operator that they feed, or that feeds them, may be moving between the two
        nodes in the other direction at the same moment.
        """
        arriving = set(operators)
        tree, graph, lowest = self._selection.tree, self._selection.graph, self._selection.lowest_place
        if not arriving or len(arriving) < len(operators):
            return False
        if any(operator not in lowest or operator in self.here for operator in arriving):
            return False
        if origin == self.parent:
            feeding = {peer for operator in arriving for peer in graph.upstream[operator]} - arriving
            return all(tree.is_at_or_above(self.node, lowest[operator]) for operator in arriving) and all(
                peer in self.below or (peer in self.here and self.leaving.get(peer) != self.parent) for peer in feeding
            )
        fed = {peer for operator in arriving for peer in graph.downstream[operator]} - arriving
        return all(peer not in self.below and self.leaving.get(peer) in (None, self.parent) for peer in fed)

    def freeze(self, operators: Iterable[OperatorId], destination: EdgeNodeId) -> None:
        self.leaving.update(dict.fromkeys(operators, destination))

    def resume(self, operators: Collection[OperatorId]) -> None:
        for operator in operators:
            del self.leaving[operator]

    def arrive(self, operators: Collection[OperatorId]) -> None:
        self.here.update(operators)
        self.unconfirmed.update(operators)
        self.below.difference_update(operators)
        self._available = None

    def confirm(self, operators: Collection[OperatorId]) -> None:
        self.unconfirmed.difference_update(operators)

    def depart(self, operators: Collection[OperatorId]) -> None:
        for operator in operators:
            if self.leaving.pop(operator) != self.parent:
                self.below.add(operator)
            self.here.remove(operator)
        self._available = None
