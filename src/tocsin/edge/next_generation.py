"""Makes a generation from the control's state and the nodes that live: tree, entries, owners, plans, placement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from tocsin.edge.generations import ControlState, Generation, NodeRecord
from tocsin.edge.layout import lay_out, prepare
from tocsin.edge.plan import QueryPlan, Stream, graph_of
from tocsin.edge.query import EdgeQuery, QueryRejected
from tocsin.model.edge import EdgeNodeId, OperatorId, Tree


class Ancestry:
    """The tree as the nodes describe it, dead nodes included, and which of its nodes live."""

    def __init__(
        self,
        nodes: Mapping[EdgeNodeId, NodeRecord],
        living: Collection[EdgeNodeId],
        root: EdgeNodeId,
        avoided: Collection[tuple[EdgeNodeId, EdgeNodeId]] = (),
    ) -> None:
        """`avoided`: links (child, parent) that the tree does not use; the child goes to the next living ancestor."""
        self._nodes = nodes
        self._root = root
        self._avoided = avoided
        self.members = {node for node in living if self.is_known(node)}
        """The living nodes all of whose ancestors are known. Other nodes wait until their parent has registered."""

    def nearest_living(self, node: EdgeNodeId) -> EdgeNodeId:
        """The node itself if it lives, otherwise its nearest living ancestor."""
        return next((other for other in self._path(node) if other in self.members), self._root)

    def tree(self) -> Tree:
        return Tree({node: self._parent(node) for node in sorted(self.members - {self._root})}, self._root)

    def _parent(self, node: EdgeNodeId) -> EdgeNodeId:
        ancestors = (other for other in self._path(node)[1:] if other in self.members)
        return next((other for other in ancestors if (node, other) not in self._avoided), self._root)

    def _path(self, node: EdgeNodeId) -> list[EdgeNodeId]:
        path = [node]
        while path[-1] != self._root:
            record = self._nodes.get(path[-1])
            if record is None or record.parent is None or record.parent in path:
                break
            path.append(record.parent)
        return path

    def is_known(self, node: EdgeNodeId) -> bool:
        """True if all ancestors of the node are known. No other node takes over for a node that still waits for them:
        its readings would run ahead of those of the nodes that have yet to join.
        """
        return self._path(node)[-1] == self._root


def next_generation(
    state: ControlState,
    number: int,
    ancestry: Ancestry,
    present: Mapping[OperatorId, EdgeNodeId],
    lost: Collection[EdgeNodeId],
) -> Generation:
    """`present` gives the places of operators now; `lost` the nodes that have been dead for so long that no entry
    waits for their publishers.
    """
    tree = ancestry.tree()
    entries = _entries(state, ancestry, tree.root)
    queries = tuple(state.queries.values())
    plans = plans_of(queries, state.streams, entries, tree)
    return Generation(
        number=number,
        tree=tree,
        addresses={node: state.nodes[node].address for node in tree.nodes},
        streams=state.streams,
        queries=queries,
        entries=entries,
        placement=placement_of(plans, tree, present, state.floors_us),
        floors_us=dict(state.floors_us),
        publishers={name: record.owner for name, record in state.publishers.items()},
        sources={
            name: (ancestry.nearest_living(source.home), source.spec, source.position)
            for name, source in state.sources.items()
            if ancestry.is_known(source.home)
        },
        awaited={
            name: (ancestry.nearest_living(record.owner), record.streams)
            for name, record in state.publishers.items()
            if record.owner not in ancestry.members and record.owner not in lost
        },
        publisher_streams={name: record.streams for name, record in state.publishers.items()},
    )


def plans_of(
    queries: Iterable[str], streams: Mapping[str, Stream], entries: Mapping[str, tuple[EdgeNodeId, ...]], tree: Tree
) -> list[QueryPlan]:
    """The plans of queries that the control has checked."""
    declared = tuple(streams.items())
    return [lay_out(_compiled(text, declared), entries, tree) for text in queries]


@lru_cache(maxsize=256)
def _compiled(text: str, streams: tuple[tuple[str, Stream], ...]) -> EdgeQuery:
    """Compiled once: the same queries are laid out anew for each generation."""
    query = prepare(text, dict(streams))
    if isinstance(query, QueryRejected):
        raise RuntimeError(f"the control accepted a query and now rejects it: {query.reason}; {text}")
    return query


def placement_of(
    plans: list[QueryPlan], tree: Tree, present: Mapping[OperatorId, EdgeNodeId], started: Collection[str]
) -> dict[OperatorId, EdgeNodeId]:
    """Operators stay where they are as far as streams can still flow upwards. The others start as low as possible.

    So do the operators of a query without results (not in `started`): while the tree is still growing, they would stay
    at the nodes that happened to register first.
    """
    graph = graph_of(plans)
    lowest = graph.lowest_places(tree)
    placement: dict[OperatorId, EdgeNodeId] = {}
    for plan in plans:
        for stage in plan.stages:
            feeding = [placement[feeder] for feeder in graph.upstream[stage.operator]]
            place = tree.lowest_seeing([lowest[stage.operator], *feeding])
            now_at = present.get(stage.operator) if plan.name in started else None
            placement[stage.operator] = now_at if now_at is not None and now_at in tree.path_up(place) else place
    return placement


def _entries(state: ControlState, ancestry: Ancestry, root: EdgeNodeId) -> dict[str, tuple[EdgeNodeId, ...]]:
    """Where each stream enters: at the nodes that are configured for it, and at those of its publishers and sources."""
    entries: dict[str, dict[EdgeNodeId, None]] = {stream: {} for stream in state.streams}

    def add(node: EdgeNodeId, streams: Iterable[str]) -> None:
        for stream in streams:
            if stream in entries and ancestry.is_known(node):
                entries[stream][ancestry.nearest_living(node)] = None

    for node, record in state.nodes.items():
        add(node, record.streams)
    for publisher in state.publishers.values():
        add(publisher.owner, publisher.streams)
    for source in state.sources.values():
        add(source.home, (source.spec.stream,))
    return {stream: tuple(sorted(nodes)) or (root,) for stream, nodes in entries.items()}
