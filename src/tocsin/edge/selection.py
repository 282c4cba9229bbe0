"""Operator selection: every transfer a node could make, with the operators that must move together [AMI §3.2].

A function of the operators at one node, the fixed graph and the fixed tree. It checks that every stream still reaches
its operators. Whether the destination has room is negotiated later. `placement.py` runs it again whenever an operator
has arrived or departed, as the thesis does.

The listings stop short in three places, and this module follows the prose instead:
- `getDownOPsInNode` and `getUpOPsInNode` start one operator too far and return no node [AMI listing 2]. Here all
  operators downstream (upstream) *within the node* move along, however long the chain.
- `allSingleUpstream` refuses every operator with two upstream peers. The third scenario [AMI §2.2.2] refuses only those
  fed by several *children*: two peers below the same child, or in this node, can follow.
- An operator at the first node of a stream has no child that feeds it. It stays or moves up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Transfer, Tree


class OperatorSelection:
    """The graph and the tree, prepared once; shared by all nodes of a simulation."""

    def __init__(self, graph: OperatorGraph, tree: Tree) -> None:
        self.graph = graph
        self.tree = tree
        self.lowest_place = graph.lowest_places(tree)
        self._order = {operator: number for number, operator in enumerate(graph.downstream)}

    def available_transfers(self, node: EdgeNodeId, here: Collection[OperatorId]) -> tuple[Transfer, ...]:
        """For each operator the smallest set with which it can move up, and the one to move down with [AMI listing 1].

        Two operators that need each other yield the same set once. The sender of a message adds the usage.
        """
        parent = self.tree.parent(node)
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
