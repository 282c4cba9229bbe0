"""The locations of operators as one node knows them (at this node, below it, or elsewhere), and which of them can move.

Operators move between neighbours only, so a node sees every move across itself. Its knowledge of the operators below it
is therefore always exact, without extra messages. From it follows whether an operator may move to this node: streams
flow upwards only, so an operator's feeders must be here or below, and the operators it feeds must not be below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Transfer, Tree


class OperatorSelection:
    """Every transfer a node could make, with the operators that must move together [AMI §3.2].

    It checks that every stream still reaches its operators. Whether the destination has room is negotiated later. All
    nodes of a simulation share one instance. The listings stop short in three places, where the prose is followed:

    - `getDownOPsInNode` and `getUpOPsInNode` start one operator too far and return no node [AMI listing 2]. Here all
      operators downstream (upstream) *within the node* move along, however long the chain.
    - `allSingleUpstream` refuses every operator with two upstream peers. The third scenario [AMI §2.2.2] refuses only
      those fed by several *children*: two peers below the same child, or in this node, can follow.
    - An operator at the first node of a stream has no child that feeds it. It stays or moves up.
    """

    def __init__(self, graph: OperatorGraph, tree: Tree) -> None:
        self.graph = graph
        self.tree = tree
        self.lowest_place = graph.lowest_places(tree)
        self._order = {operator: number for number, operator in enumerate(graph.downstream)}

    def available_transfers(self, node: EdgeNodeId, here: Collection[OperatorId]) -> tuple[Transfer, ...]:
        """For each operator the smallest set with which it can move up, and the one to move down with [AMI listing 1].

        Two operators that need each other yield the same set once. The sender of a message adds the usage.
        """
        parent = self.tree.parents.get(node)
        transfers: dict[Transfer, None] = {}
        for operator in sorted(here, key=self._order.__getitem__):
            if parent is not None:
                together = self._closure(operator, here, self.graph.downstream)
                transfers[Transfer(together, parent)] = None
            together = self._closure(operator, here, self.graph.upstream)
            child = self._feeding_child(node, together)
            if child is not None:
                transfers[Transfer(together, child)] = None
        return tuple(transfers)

    def _feeding_child(self, node: EdgeNodeId, operators: Collection[OperatorId]) -> EdgeNodeId | None:
        """The only child that feeds all the operators; None if there is none.

        An operator sees all that its upstream peers see, so its upstream peers not here run at that child or below it.
        """
        children = {self.tree.child_towards(node, self.lowest_place[operator]) for operator in operators}
        return children.pop() if len(children) == 1 else None

    def _closure(
        self,
        operator: OperatorId,
        here: Collection[OperatorId],
        peers: Mapping[OperatorId, tuple[OperatorId, ...]],
    ) -> tuple[OperatorId, ...]:
        """The operator and every peer here that it reaches, in the order of the graph."""
        together = {operator}
        pending = [operator]
        while pending:
            for peer in peers[pending.pop()]:
                if peer in here and peer not in together:
                    together.add(peer)
                    pending.append(peer)
        return tuple(sorted(together, key=self._order.__getitem__))


class OperatorPlacement:
    def __init__(
        self, node: EdgeNodeId, selection: OperatorSelection, here: Iterable[OperatorId], below: Iterable[OperatorId]
    ) -> None:
        self.node = node
        self.parent = selection.tree.parents.get(node)
        self._selection = selection
        self.here: set[OperatorId] = set(here)
        """Operators held by this node: running, frozen for a transfer, or accepted and not yet confirmed."""
        self.below: set[OperatorId] = set(below)
        self.leaving: dict[OperatorId, EdgeNodeId] = {}
        """The destination of each frozen operator."""
        self.unconfirmed: set[OperatorId] = set()
        """Accepted operators. They stay until the giver confirms: if this node dies, the giver resumes its copies."""
        self._available: tuple[Transfer, ...] | None = None

    def available_transfers(self) -> tuple[Transfer, ...]:
        """The transfers this node could make. Recomputed only after an operator has arrived or departed [AMI §3.2]."""
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
