"""A tree of edge nodes in virtual time: the same negotiators as in a live node, on links that delay and lose messages.

`EdgeSimulation` drives one run with or without the protocol. Like the thesis it logs the memory of each node every two
seconds [AMI §4.2]. It also counts messages and moved operators and records how long each overload lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from tocsin.edge.messages import (
    EdgeDeadlinePassed,
    Event,
    MessageType,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    SendPeerMessage,
)
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import OperatorPlacement, OperatorSelection
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.policies.operators.transfer import DEFAULT_RULES, TransferRules
from tocsin.sim.edge.host import SizedHost
from tocsin.sim.edge.listings import ListedNode, ListedSelection
from tocsin.sim.edge.workload import EdgeWorld, SizeChange
from tocsin.sim.kernel import LATE, Kernel, Timer


class Protocol(StrEnum):
    """How the nodes of a run negotiate."""

    NONE = "none"
    """Not at all."""
    TOCSIN = "tocsin"
    """As a live node: `edge/`."""
    LISTINGS = "listings"
    """As the thesis' listings are printed (`listings.py`). A busy node answers at once."""
    LISTINGS_IGNORING = "listings-ignoring"
    """The same, but a node that negotiates ignores the requests of other neighbours, which wait for ever."""


@dataclass(frozen=True, slots=True)
class EdgeRun:
    """The settings of a run."""

    protocol: Protocol = Protocol.TOCSIN
    monitor_s: float = 5.0
    """The monitoring period T [AMI table 5]."""
    log_s: float = 2.0
    length_s: float = 964.0
    delay_s: float = 0.02
    """One-way delay between neighbours. The thesis does not give its delay."""
    loss: float = 0.0
    """The probability that a message is lost."""
    timing: Timing = DEFAULT_TIMING
    rules: TransferRules = DEFAULT_RULES


@dataclass
class EdgeLog:
    times_s: list[float] = field(default_factory=list)
    memory_pct: list[list[float]] = field(default_factory=list)
    """Memory in percent: one row per sample, one column per node."""
    messages: Counter[MessageType] = field(default_factory=Counter)
    messages_lost: int = 0
    operators_moved: int = 0
    operators_twice: int = 0
    """Operators that two nodes run at the end. The start and the end of a hand-over in transit count once."""
    streams_downwards: int = 0
    """Streams that would have to flow down the tree at the end, which they cannot."""
    overload_spells_s: list[float] = field(default_factory=list)
    """The length of each overload of a node. Overloads that are open at the end of the run count up to there."""

    @property
    def samples(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.asarray(self.memory_pct, dtype=np.float64)


class EdgeSimulation:
    def __init__(self, kernel: Kernel, world: EdgeWorld, changes: Sequence[SizeChange], run: EdgeRun) -> None:
        self._kernel = kernel
        self._run = run
        self._sizes_pct = dict(world.sizes_pct)
        self._tree = world.tree
        self._nodes = world.tree.nodes
        self._timers: dict[EdgeNodeId, Timer] = {}
        self._overloaded_since_s: dict[EdgeNodeId, float] = {}
        self._loss = kernel.stream("loss")
        self.log = EdgeLog()
        self.hosts: dict[EdgeNodeId, SizedHost] = {}
        self.negotiators: dict[EdgeNodeId, Negotiator | ListedNode] = {}
        self._graph = world.graph
        self._holders: dict[OperatorId, set[EdgeNodeId]] = {
            operator: {node} for operator, node in world.placement.items()
        }
        """The nodes that hold each operator: two during the few milliseconds of a hand-over."""
        selection = OperatorSelection(world.graph, world.tree)
        listed = ListedSelection(world.graph, world.tree)
        here: dict[EdgeNodeId, set[OperatorId]] = {node: set() for node in self._nodes}
        below: dict[EdgeNodeId, set[OperatorId]] = {node: set() for node in self._nodes}
        for operator, place in world.placement.items():
            here[place].add(operator)
            for above in world.tree.path_up(place)[1:]:
                below[above].add(operator)
        phases_s = kernel.stream("monitoring").uniform(0, run.monitor_s, size=len(self._nodes))
        for node, phase_s in zip(self._nodes, phases_s, strict=True):
            host = SizedHost(self._sizes_pct, here[node])
            self.hosts[node] = host
            if run.protocol in (Protocol.LISTINGS, Protocol.LISTINGS_IGNORING):
                ignores = run.protocol is Protocol.LISTINGS_IGNORING
                self.negotiators[node] = ListedNode(node, world.tree, listed, host, run.rules, ignores)
            else:
                placement = OperatorPlacement(node, selection, here[node], below[node])
                peers = dict.fromkeys(world.tree.neighbours(node), 0)
                self.negotiators[node] = Negotiator(placement, host, peers, run.rules, run.timing)
            if run.protocol is not Protocol.NONE:
                kernel.every(run.monitor_s, self._handle, node, PeriodElapsed(), first_s=float(phase_s))
        for change in changes:
            kernel.call_at(change.time_s, self._change, change)
        kernel.every(run.log_s, self._sample, first_s=0.0, priority=LATE)

    def run(self) -> EdgeLog:
        self._kernel.run(self._run.length_s)
        for since_s in self._overloaded_since_s.values():
            self.log.overload_spells_s.append(self._kernel.now_s - since_s)
        self.log.operators_twice, self.log.streams_downwards = self.faults()
        return self.log

    def faults(self) -> tuple[int, int]:
        """(operators that two nodes run, streams that would have to flow downwards), at this moment."""
        places = {
            operator: [node for node in holders if operator in self.hosts[node].running]
            for operator, holders in self._holders.items()
        }
        downwards = sum(
            not self._tree.is_at_or_above(fed_at, feeder_at)
            for operator, fed in self._graph.downstream.items()
            for feeder_at in places[operator]
            for fed_operator in fed
            for fed_at in places[fed_operator]
        )
        return sum(len(nodes) > 1 for nodes in places.values()), downwards

    def _change(self, change: SizeChange) -> None:
        self._sizes_pct[change.operator] += change.delta_pct
        for node in self._holders[change.operator]:
            self.hosts[node].sizes_changed()
            self._record_overload(node)

    def _sample(self) -> None:
        self.log.times_s.append(self._kernel.now_s)
        self.log.memory_pct.append([self.hosts[node].memory_pct() for node in self._nodes])

    def _handle(self, node: EdgeNodeId, event: Event) -> None:
        negotiator, host = self.negotiators[node], self.hosts[node]
        before = host.running | host.idle
        for effect in negotiator.handle(event, self._kernel.now_s):
            if isinstance(effect, SendPeerMessage):
                self._send(effect.message)
        self._set_timer(node)
        after = host.running | host.idle
        if after != before:
            self._record_moves(node, arrived=after - before, departed=before - after)

    def _record_moves(self, node: EdgeNodeId, arrived: set[OperatorId], departed: set[OperatorId]) -> None:
        for operator in arrived:
            self._holders[operator].add(node)
        for operator in departed:
            self._holders[operator].discard(node)
        self.log.operators_moved += len(arrived)
        self._record_overload(node)

    def _record_overload(self, node: EdgeNodeId) -> None:
        """Record overloads at the exact time of a change: with the protocol one may fit between two samples."""
        if self._run.rules.load_pct(self.hosts[node].usage()) > self._run.rules.thresholds.upper_pct:
            self._overloaded_since_s.setdefault(node, self._kernel.now_s)
        elif (since_s := self._overloaded_since_s.pop(node, None)) is not None:
            self.log.overload_spells_s.append(self._kernel.now_s - since_s)

    def _send(self, message: PeerMessage) -> None:
        self.log.messages[message.type] += 1
        if self._run.loss and self._loss.random() < self._run.loss:
            self.log.messages_lost += 1
        else:
            self._kernel.call_after(self._run.delay_s, self._handle, message.receiver, PeerMessageReceived(message))

    def _set_timer(self, node: EdgeNodeId) -> None:
        deadline_s = self.negotiators[node].deadline_s()
        timer = self._timers.get(node)
        if timer is not None:
            if timer.time_s == deadline_s:
                return
            timer.cancel()
            del self._timers[node]
        if deadline_s is not None:
            self._timers[node] = self._kernel.call_at(deadline_s, self._on_timer, node)

    def _on_timer(self, node: EdgeNodeId) -> None:
        del self._timers[node]
        self._handle(node, EdgeDeadlinePassed())
