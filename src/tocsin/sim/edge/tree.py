"""A tree of edge nodes in virtual time: the negotiators that run live, on links that delay and may lose messages.

`EdgeSimulation` drives one run with or without the protocol. It logs what the thesis logs, every two seconds the memory
of each node [AMI §4.2], and counts messages, hand-overs and how long overloads last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.edge.messages import (
    DeadlinePassed,
    Effect,
    Event,
    Message,
    MessageReceived,
    MessageType,
    PeriodElapsed,
    SendMessage,
)  # fmt: skip
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import Placement
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.edge.selection import Selection
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.policies.operators.transfer import DEFAULT_RULES, Rules
from tocsin.sim.edge.host import SizedHost
from tocsin.sim.edge.workload import Change, EdgeWorld
from tocsin.sim.kernel import LATE, Kernel, Timer


@dataclass(frozen=True, slots=True)
class EdgeRun:
    """How a run is driven."""

    protocol: bool = True
    monitor_s: float = 5.0
    """T [AMI table 5]."""
    log_s: float = 2.0
    length_s: float = 964.0
    delay_s: float = 0.02
    """Between neighbours, one way. The thesis does not disclose its own."""
    loss: float = 0.0
    """The chance that a message is lost."""
    timing: Timing = DEFAULT_TIMING
    rules: Rules = DEFAULT_RULES


@dataclass
class EdgeLog:
    times_s: list[float] = field(default_factory=list)
    memory_pct: list[list[float]] = field(default_factory=list)
    """One row a sample, one column a node."""
    messages: dict[MessageType, int] = field(default_factory=dict)
    messages_lost: int = 0
    operators_moved: int = 0
    overload_spells_s: list[float] = field(default_factory=list)
    """How long each overload of a node lasted, from the moment it began; those still open at the end included."""

    @property
    def samples(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.asarray(self.memory_pct, dtype=np.float64)


class EdgeSimulation:
    def __init__(self, kernel: Kernel, world: EdgeWorld, changes: Sequence[Change], run: EdgeRun) -> None:
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
        self.negotiators: dict[EdgeNodeId, Negotiator] = {}
        self._where: dict[OperatorId, EdgeNodeId] = dict(world.placement)
        selection = Selection(world.graph, world.tree)
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
            placement = Placement(node, selection, here[node], below[node])
            peers = dict.fromkeys(world.tree.neighbours(node), 0)
            self.negotiators[node] = Negotiator(placement, host, peers, run.rules, run.timing)
            if run.protocol:
                kernel.every(run.monitor_s, self._handle, node, PeriodElapsed(), first_s=float(phase_s))
        for change in changes:
            kernel.call_at(change.time_s, self._change, change)
        kernel.every(run.log_s, self._sample, first_s=0.0, priority=LATE)

    def run(self) -> EdgeLog:
        self._kernel.run(self._run.length_s)
        for since_s in self._overloaded_since_s.values():
            self.log.overload_spells_s.append(self._kernel.now_s - since_s)
        return self.log

    def _change(self, change: Change) -> None:
        self._sizes_pct[change.operator] += change.delta_pct
        for node in self._holders(change.operator):
            self.hosts[node].sizes_changed()
            self._watch(node)

    def _holders(self, operator: OperatorId) -> set[EdgeNodeId]:
        """One node, or two in the few milliseconds in which an operator is handed over."""
        where = self._where[operator]
        return {where, *(node for node in self._tree.neighbours(where) if operator in self.hosts[node].idle)}

    def _sample(self) -> None:
        self.log.times_s.append(self._kernel.now_s)
        self.log.memory_pct.append([self.hosts[node].memory_pct() for node in self._nodes])

    def _handle(self, node: EdgeNodeId, event: Event) -> None:
        negotiator = self.negotiators[node]
        before = len(negotiator.placement.here)
        for effect in negotiator.handle(event, self._kernel.now_s):
            self._perform(effect)
        self._set_timer(node)
        if len(negotiator.placement.here) != before:
            self._moved(node, negotiator)

    def _moved(self, node: EdgeNodeId, negotiator: Negotiator) -> None:
        for operator in negotiator.placement.unconfirmed:
            if self._where[operator] != node:
                self._where[operator] = node
                self.log.operators_moved += 1
        self._watch(node)

    def _watch(self, node: EdgeNodeId) -> None:
        """Overload spells are followed to the moment, not to the sample: a balanced one may fit between two samples."""
        if self._run.rules.load_pct(self.hosts[node].usage()) > self._run.rules.thresholds.upper_pct:
            self._overloaded_since_s.setdefault(node, self._kernel.now_s)
        elif (since_s := self._overloaded_since_s.pop(node, None)) is not None:
            self.log.overload_spells_s.append(self._kernel.now_s - since_s)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendMessage):
            message = effect.message
            self.log.messages[message.type] = self.log.messages.get(message.type, 0) + 1
            if self._run.loss and self._loss.random() < self._run.loss:
                self.log.messages_lost += 1
            else:
                self._kernel.call_after(self._run.delay_s, self._receive, message)

    def _receive(self, message: Message) -> None:
        self._handle(message.receiver, MessageReceived(message))

    def _set_timer(self, node: EdgeNodeId) -> None:
        wanted_s = self.negotiators[node].deadline_s()
        timer = self._timers.get(node)
        if timer is not None:
            if timer.time_s == wanted_s:
                return
            timer.cancel()
            del self._timers[node]
        if wanted_s is not None:
            self._timers[node] = self._kernel.call_at(wanted_s, self._on_timer, node)

    def _on_timer(self, node: EdgeNodeId) -> None:
        del self._timers[node]
        self._handle(node, DeadlinePassed())
