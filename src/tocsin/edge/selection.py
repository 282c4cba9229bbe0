"""Operator selection: every transfer a node could make, with the operators that must move together [AMI §3.2].

A function of the operators at one node, the fixed graph and the fixed tree. It asks whether the streams would be there,
never whether the other node has room: that is negotiated. `edge/negotiation.py` runs it again whenever an operator has
come or gone, as the thesis does.

The listings stop short in three places, and the prose is followed instead:
- `getDownOPsInNode` and `getUpOPsInNode` start one operator too far and return no node [AMI listing 2]. Here all that
  lies downstream (upstream) *within the node* moves along, however long the chain.
- `allSingleUpstream` refuses every operator with two upstream peers. The third scenario [AMI §2.2.2] refuses only those
  fed by several *children*: two peers below the same child, or in this node, can follow.
- An operator at the first node of a stream has no child that feeds it, and stays or goes up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tocsin.model.edge import EdgeNodeId, OperatorGraph, OperatorId, Transfer, Tree


class Selection:
    """The graph and the tree, prepared once; shared by all nodes of a simulation."""

    def __init__(self, graph: OperatorGraph, tree: Tree) -> None:
        self.graph = graph
        self.tree = tree
        self.lowest_place = graph.lowest_places(tree)
        self._place_in_order = {operator: number for number, operator in enumerate(graph.downstream)}

    def available_transfers(self, node: EdgeNodeId, here: Collection[OperatorId]) -> tuple[Transfer, ...]:
        """[AMI listing 1]: for each operator the smallest set with which it can go up, and the one to go down with.

        Two operators that need each other yield the same set once. Usage is left to who sends the message.
        """
        parent = self.tree.parent(node)
        held = set(here)
        found: dict[Transfer, None] = {}
        for operator in sorted(held, key=self._place_in_order.__getitem__):
            if parent is not None:
                together = self._closure(operator, held, self.graph.downstream)
                found[Transfer(self._in_order(together), parent)] = None
            together = self._closure(operator, held, self.graph.upstream)
            child = self._feeding_child(node, together)
            if child is not None:
                found[Transfer(self._in_order(together), child)] = None
        return tuple(found)

    def child_of(self, node: EdgeNodeId, operator: OperatorId) -> EdgeNodeId | None:
        """The child of `node` that sees all the operator reads, if one does."""
        return self.tree.child_towards(node, self.lowest_place[operator])

    def _feeding_child(self, node: EdgeNodeId, operators: set[OperatorId]) -> EdgeNodeId | None:
        """The one child that feeds them all. An operator sees all that its upstream peers see, so that peers which are
        not here run at that child or below it, whichever they are."""
        children = {self.child_of(node, operator) for operator in operators}
        return children.pop() if len(children) == 1 else None

    def _closure(
        self, operator: OperatorId, held: set[OperatorId], peers: Mapping[OperatorId, tuple[OperatorId, ...]]
    ) -> set[OperatorId]:
        together = {operator}
        pending = [operator]
        while pending:
            for peer in peers[pending.pop()]:
                if peer in held and peer not in together:
                    together.add(peer)
                    pending.append(peer)
        return together

    def _in_order(self, operators: set[OperatorId]) -> tuple[OperatorId, ...]:
        return tuple(sorted(operators, key=self._place_in_order.__getitem__))
