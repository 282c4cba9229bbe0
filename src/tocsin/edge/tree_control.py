"""The tree control in the root's process: members, leases, generations, publishers' owners, floors and queries.

`handle(event, now_s)` returns effects. It opens no socket and reads no clock: a driver carries out the effects in order
and sends `TimePassed` at `deadline_s()`. Every fault leads to the same thing, the next generation of the whole tree:

    death, new run or join of a node, lost link, moved publisher, new query
      → StoreControl, SendGeneration to all living nodes → NodeReady from all → SendRun to all

A node is dead when its last beat is older than `lease_s + grace_s`. It has stopped by then: it acts only within
`lease_s` of the sending time of its last answered beat. A node that was only silent is fenced, and registers again with
a higher run. Generations that are due together start together, and never more than one a second. None starts while a
living node has no control connection: that node could not get ready, and the others would stand still. After a restart
the control waits until the nodes of the latest generation have registered or their leases have ended: they may still
act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tocsin.edge.detours import Detours
from tocsin.edge.generations import ControlState, Generation, NodeRecord, NodeReport, PublisherRecord, SourceRecord
from tocsin.edge.layout import prepare
from tocsin.edge.next_generation import Ancestry, next_generation
from tocsin.edge.query import QueryCode, QueryRejected
from tocsin.edge.tree_events import ControlLost as ControlLost
from tocsin.edge.tree_events import Effect as Effect
from tocsin.edge.tree_events import Event as Event
from tocsin.edge.tree_events import GrantPublisher as GrantPublisher
from tocsin.edge.tree_events import LinkLost as LinkLost
from tocsin.edge.tree_events import NodeBeat as NodeBeat
from tocsin.edge.tree_events import NodeReady as NodeReady
from tocsin.edge.tree_events import NodeRegistered as NodeRegistered
from tocsin.edge.tree_events import PublisherAttached as PublisherAttached
from tocsin.edge.tree_events import QueryDeployed as QueryDeployed
from tocsin.edge.tree_events import QueryDropped as QueryDropped
from tocsin.edge.tree_events import RejectRequest as RejectRequest
from tocsin.edge.tree_events import ResultsAccepted as ResultsAccepted
from tocsin.edge.tree_events import SendBeatAnswer as SendBeatAnswer
from tocsin.edge.tree_events import SendFenced as SendFenced
from tocsin.edge.tree_events import SendGeneration as SendGeneration
from tocsin.edge.tree_events import SendRun as SendRun
from tocsin.edge.tree_events import SourcePositionReported as SourcePositionReported
from tocsin.edge.tree_events import StoreControl as StoreControl
from tocsin.edge.tree_events import StreamDeclared as StreamDeclared
from tocsin.edge.tree_events import TimePassed as TimePassed
from tocsin.model.edge import EdgeNodeId, OperatorId

APART_S = 1.0
"""The least time between the starts of two generations."""
_LINK_S = 0.3
"""From a lost link to the next generation. A process that dies closes its connections not quite at the same moment: if
the control connection of one end is lost as well, the generation waits for that node."""


@dataclass(slots=True)
class LivingNode:
    heard_s: float
    is_connected: bool = True
    """False from the loss of its control connection until it opens another one: it can get no generation."""
    report: NodeReport = field(default_factory=NodeReport)
    generation_sent_s: float = 0.0


class TreeControl:
    def __init__(
        self,
        root: EdgeNodeId,
        state: ControlState | None = None,
        lease_s: float = 3.0,
        grace_s: float = 1.0,
        silence_s: float = 20.0,
    ) -> None:
        """`silence_s`: how long entries wait for the publishers of a dead node."""
        self._root = root
        self.state = state or ControlState()
        self._limit_s = lease_s + grace_s
        self._grace_s = grace_s
        self._silence_s = silence_s
        self.generation: Generation | None = None
        """The current generation; None before the first one since the start of this process."""
        self.generation_started_s: float | None = None
        self.recoveries = 0
        """The number of generations started by this process."""
        self.living: dict[EdgeNodeId, LivingNode] = {}
        self._dead_since_s: dict[EdgeNodeId, float] = {}
        self._unready: set[EdgeNodeId] = set()
        """Nodes of the current generation that have not reported ready."""
        self._is_due = False
        """The current generation is no longer right."""
        self._is_broken = False
        """The current generation cannot work: the next one does not wait until all nodes are ready."""
        self._ungranted: dict[tuple[EdgeNodeId, str, str], None] = {}
        """Publishers (node, publisher, stream) that wait for the next generation."""
        self._detours = Detours()
        self._lost_links: set[tuple[EdgeNodeId, EdgeNodeId]] = set()
        """The links (child, parent) that were lost in the current generation."""
        self._link_lost_s: float | None = None
        """When the first link of the current generation was lost."""
        self._restart_until_s: float | None = None
        self._handled_s: float | None = None

    @property
    def is_running(self) -> bool:
        """True if all nodes of the current generation have reported ready and have been sent `run`."""
        return self.generation is not None and not self._unready

    def may_accept(self, generation: int) -> bool:
        """True if results of this generation may be stored now.

        The driver asks before it writes rows, and no event may come between the question, the write and
        `ResultsAccepted`: a new generation started in between would compute the same rows again.
        """
        return self.generation is not None and self.generation.number == generation and self.is_running

    def deadline_s(self) -> float | None:
        """The time at which the driver must send `TimePassed`."""
        deadlines_s = [node.heard_s + self._limit_s for node in self.living.values()]
        if self._restart_until_s is not None:
            deadlines_s.append(self._restart_until_s)
        elif (
            self._is_due
            and (self._is_broken or self.is_running)
            and (not_before_s := self._not_before_s) is not None
            and self._all_are_connected
        ):
            deadlines_s.append(not_before_s)
        return min(deadlines_s, default=None)

    @property
    def _not_before_s(self) -> float | None:
        """The earliest time for the next generation; None before the first."""
        times_s = []
        if self.generation_started_s is not None:
            times_s.append(self.generation_started_s + APART_S)
        if self._link_lost_s is not None:
            times_s.append(self._link_lost_s + _LINK_S)
        return max(times_s, default=None)

    @property
    def _all_are_connected(self) -> bool:
        """A generation with a node that cannot get it would stop all others, and would not run.

        The node either returns soon or is dead soon; until then the others go on, and publishers can move to them.
        """
        return all(node.is_connected for node in self.living.values())

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self._notice_time(now_s)
        effects = self._on_event(event, now_s)
        self._bury(now_s)
        return effects + self._start_if_due(now_s)

    def _notice_time(self, now_s: float) -> None:
        due_s = self.deadline_s()
        if self._handled_s is None:
            if self.state.generation:
                self._restart_until_s = now_s + self._limit_s
                self._dead_since_s = dict.fromkeys(self.state.nodes, now_s)
        elif due_s is not None and now_s > due_s + self._grace_s:
            # The driver is late: this process stood still, and the beats of that time are still to come.
            for node in self.living.values():
                node.heard_s += now_s - due_s + self._grace_s
        self._handled_s = now_s

    def _on_event(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case NodeRegistered():
                return self._on_registered(event, now_s)
            case NodeBeat():
                return self._on_beat(event, now_s)
            case NodeReady(node, number):
                return self._on_ready(node, number)
            case LinkLost(node, number, peer):
                self._on_link_lost(node, number, peer, now_s)
            case PublisherAttached():
                return self._on_attached(event)
            case StreamDeclared(name, stream):
                known = {other.lower(): other for other in self.state.streams}.get(name.lower())
                if known is None:
                    return self._change(replace(self.state, streams={**self.state.streams, name: stream}))
                if (known, self.state.streams[known]) != (name, stream):
                    return [RejectRequest("EXISTS", f"stream {known} has another declaration")]
            case QueryDeployed(text):
                return self._on_deployed(text)
            case QueryDropped(name):
                if name not in self.state.queries:
                    return [RejectRequest("UNKNOWN_QUERY", f"there is no query {name!r}")]
                queries, floors_us = dict(self.state.queries), dict(self.state.floors_us)
                del queries[name]
                floors_us.pop(name, None)
                return self._change(replace(self.state, queries=queries, floors_us=floors_us))
            case ResultsAccepted(query, floor_us, number):
                if not self.may_accept(number):
                    raise RuntimeError(f"results of {query} up to {floor_us} in {number}; current: {self.generation}")
                if query in self.state.queries:
                    floor_us = max(floor_us, self.state.floors_us.get(query, floor_us))
                    self.state = replace(self.state, floors_us={**self.state.floors_us, query: floor_us})
            case SourcePositionReported(name, position):
                source = self.state.sources.get(name)
                if source is not None and position > source.position:
                    sources = {**self.state.sources, name: replace(source, position=position)}
                    self.state = replace(self.state, sources=sources)
                    return [StoreControl(self.state)]
            case ControlLost(node, run):
                if node in self.living and self.state.nodes[node].run == run:
                    self.living[node].is_connected = False
            case TimePassed():
                pass
        return []

    def _on_link_lost(self, node: EdgeNodeId, number: int, peer: EdgeNodeId, now_s: float) -> None:
        if self.generation is None or number != self.generation.number or not {node, peer} <= set(self.living):
            return
        self._is_due = self._is_broken = True
        self._link_lost_s = now_s if self._link_lost_s is None else self._link_lost_s
        parents = self.generation.tree.parents
        link = (node, peer) if parents.get(node) == peer else (peer, node)  # both ends report the loss
        if link not in self._lost_links:
            self._lost_links.add(link)
            self._detours.failed(link, now_s)

    # Members.

    def _on_registered(self, event: NodeRegistered, now_s: float) -> list[Effect]:
        node, known = event.node, self.state.nodes.get(event.node)
        if (event.parent is None) != (node == self._root):
            return [RejectRequest("WRONG_PARENT", f"the root is {self._root}; every other node names its parent")]
        is_buried = node not in self.living and self._restart_until_s is None
        if known is not None and (event.run < known.run or (event.run == known.run and is_buried)):
            return [SendFenced(node, event.run, known.run)]
        if known is not None and event.run == known.run and node in self.living:
            self.living[node].heard_s = now_s  # the connection was lost, not the lease
            self.living[node].is_connected = True
            return self._send_again(node, now_s)
        self.living[node] = LivingNode(now_s)
        self._dead_since_s.pop(node, None)
        self._detours.forget(node)
        if self.generation is not None and node in self.generation.tree.nodes:
            self._is_broken = True
        record = NodeRecord(event.parent, event.run, event.address, event.streams)
        sources = {
            name: source
            for name, source in self.state.sources.items()
            if source.home != node or any(spec.name == name for spec in event.sources)
        }
        for spec in event.sources:
            before = sources.get(spec.name)
            is_same = before is not None and (before.spec.kind, before.spec.location) == (spec.kind, spec.location)
            sources[spec.name] = SourceRecord(node, spec, before.position if before is not None and is_same else 0)
        return self._change(replace(self.state, nodes={**self.state.nodes, node: record}, sources=sources))

    def _on_beat(self, beat: NodeBeat, now_s: float) -> list[Effect]:
        living = self.living.get(beat.node)
        known = self.state.nodes.get(beat.node)
        if living is None or known is None or known.run != beat.run:
            return [SendFenced(beat.node, beat.run, 0 if known is None else known.run)]
        living.heard_s, living.is_connected, living.report = now_s, True, beat.report
        effects: list[Effect] = [SendBeatAnswer(beat.node, beat.sent_s, self.state.floors_us)]
        current = self.generation
        if current is not None and beat.generation != current.number and now_s > living.generation_sent_s + APART_S:
            effects += self._send_again(beat.node, now_s)
        return effects

    def _send_again(self, node: EdgeNodeId, now_s: float) -> list[Effect]:
        """Repeat the current generation after a lost connection. The node reports ready again, and gets `run` again."""
        if self.generation is None or node not in self.generation.tree.nodes or self._is_broken:
            return []
        self.living[node].generation_sent_s = now_s
        return [SendGeneration(node, self.generation)]

    def _bury(self, now_s: float) -> None:
        for node in [name for name, living in self.living.items() if now_s >= living.heard_s + self._limit_s]:
            del self.living[node]
            self._dead_since_s[node] = now_s
            self._detours.forget(node)
            if self.generation is not None and node in self.generation.tree.nodes:
                self._is_due = self._is_broken = True

    # Generations.

    def _change(self, state: ControlState) -> list[Effect]:
        """Store a change that the next generation makes effective."""
        self.state = state
        self._is_due = True
        return [StoreControl(state)]

    def _start_if_due(self, now_s: float) -> list[Effect]:
        if self._restart_until_s is not None:
            members = self.state.nodes if self.state.members is None else self.state.members
            if now_s < self._restart_until_s and not set(members) <= set(self.living):
                return []
            self._restart_until_s = None
            self._is_due = True
        is_free = self.generation is None or self.is_running or self._is_broken
        not_before_s = self._not_before_s
        if not self._is_due or not is_free or (not_before_s is not None and now_s < not_before_s):
            return []
        if self._root not in self.living or not self._all_are_connected:
            return []
        return self._start(now_s)

    def _start(self, now_s: float) -> list[Effect]:
        ancestry = Ancestry(self.state.nodes, self.living, self._root, self._detours.links(now_s))
        lost = {node for node, since_s in self._dead_since_s.items() if now_s >= since_s + self._silence_s}
        generation = next_generation(self.state, self.state.generation + 1, ancestry, self._present(), lost)
        self.state = replace(
            self.state, generation=generation.number, placement=generation.placement, members=generation.tree.nodes
        )
        self.generation, self.generation_started_s = generation, now_s
        self.recoveries += 1
        self._is_due = self._is_broken = False
        self._link_lost_s = None
        self._lost_links.clear()
        self._unready = set(generation.tree.nodes)
        effects: list[Effect] = [StoreControl(self.state)]
        for node in generation.tree.nodes:
            self.living[node].generation_sent_s = now_s
            effects.append(SendGeneration(node, generation))
        return effects

    def _present(self) -> Mapping[OperatorId, EdgeNodeId]:
        """Where operators are: as the nodes report, or else where they started."""
        reported = {operator: node for node, living in self.living.items() for operator in living.report.operators}
        return {**self.state.placement, **reported}

    def _on_ready(self, node: EdgeNodeId, number: int) -> list[Effect]:
        if self.generation is None or number != self.generation.number or self._is_broken:
            return []
        if not self._unready:
            return [SendRun(node, number)]
        self._unready.discard(node)
        if self._unready:
            return []
        return [*(SendRun(member, number) for member in self.generation.tree.nodes), *self._grants()]

    # Publishers.

    def _on_attached(self, event: PublisherAttached) -> list[Effect]:
        node, name, stream = event.node, event.publisher, event.stream
        if not self.may_accept(event.generation) or self.generation is None or node not in self.generation.tree.nodes:
            return [RejectRequest("STALE_GENERATION", f"{node} does not run the current generation: try again")]
        if stream not in self.state.streams:
            return [RejectRequest("UNKNOWN_STREAM", f"there is no stream {stream!r}")]
        known = self.state.publishers.get(name)
        is_owner = known is not None and known.owner == node
        is_free = self._is_free_at(name, node, stream)
        self._ungranted[node, name, stream] = None
        effects: list[Effect] = []
        if known is None or not is_owner or stream not in known.streams:
            streams = dict.fromkeys((*(known.streams if known is not None else ()), stream))
            publishers = {**self.state.publishers, name: PublisherRecord(node, tuple(streams))}
            self.state = replace(self.state, publishers=publishers)
            effects.append(StoreControl(self.state))
        if is_free and (known is None or is_owner or known.owner not in self.generation.tree.nodes):
            del self._ungranted[node, name, stream]
            return [*effects, GrantPublisher(node, name, stream)]
        self._is_due = True
        return effects

    def _is_free_at(self, publisher: str, node: EdgeNodeId, stream: str) -> bool:
        """True if the node may take the publisher in the current generation.

        If the owner is dead, it cannot act in this generation, and no reading of the publisher has entered since the
        start. So the node that waits for the publisher may take it: another generation would begin at the same state.
        """
        if self.generation is None or node not in self.generation.entries.get(stream, ()):
            return False
        owner = self.generation.publishers.get(publisher, node)
        awaiting, streams = self.generation.awaited.get(publisher, (None, ()))
        return owner == node or (awaiting == node and stream in streams and owner not in self.generation.tree.nodes)

    def _grants(self) -> list[Effect]:
        """Grant the publishers that the current generation includes; forget those that have moved on."""
        ungranted, self._ungranted = self._ungranted, {}
        granted: list[Effect] = []
        for node, name, stream in ungranted:
            known = self.state.publishers.get(name)
            if self.generation is not None and known is not None and known.owner == node:
                if name in self.generation.publishers and self._is_free_at(name, node, stream):
                    granted.append(GrantPublisher(node, name, stream))
                else:
                    self._ungranted[node, name, stream] = None
        return granted

    # Queries.

    def _on_deployed(self, text: str) -> list[Effect]:
        query = prepare(text, self.state.streams)
        if isinstance(query, QueryRejected):
            return [RejectRequest(query.code, query.reason)]
        if not query.is_ordered:
            return [RejectRequest(QueryCode.UNORDERED, "a live query needs windows or an order: add ORDER BY <time>")]
        if query.name.lower() in {name.lower() for name in self.state.queries}:
            return [RejectRequest("EXISTS", f"there is a query {query.name} already: drop it first")]
        return self._change(replace(self.state, queries={**self.state.queries, query.name: text}))
