"""A tree of edge nodes in virtual time: the same negotiators as in a live node, on links that delay and lose messages.

`EdgeSimulation` drives one run with or without the protocol. Like the thesis it logs the memory of each node every two
seconds [AMI §4.2]. It also counts messages and moved operators and records how long each overload lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tocsin.edge.messages import (
    EdgeDeadlinePassed,
    Event,
    MessageType,
    Parcel,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    Piece,
    SendPeerMessage,
)
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import OperatorPlacement, OperatorSelection
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.model.edge import EdgeNodeId, OperatorId, Usage
from tocsin.policies.operators.transfer import DEFAULT_RULES, TransferRules
from tocsin.sim.edge.workload import EdgeWorld, SizeChange
from tocsin.sim.kernel import LATE, Kernel, Timer


@dataclass(frozen=True, slots=True)
class EdgeRun:
    """The settings of a run."""

    protocol: bool = True
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
    overload_spells_s: list[float] = field(default_factory=list)
    """The length of each overload of a node. Overloads that are open at the end of the run count up to there."""

    @property
    def samples(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.asarray(self.memory_pct, dtype=np.float64)


class SizedHost:
    """The `OperatorHost` of a simulated node, whose operators are only a size [AMI §2.4, §4.1].

    All nodes of a run share one mapping of sizes, because the workload changes an operator wherever it runs. There are
    no tuples, so nothing is queued.
    """

    def __init__(self, sizes_pct: Mapping[OperatorId, float], running: Iterable[OperatorId]) -> None:
        self._sizes_pct = sizes_pct
        self.running: set[OperatorId] = set(running)
        self.idle: set[OperatorId] = set()
        """Operators that are frozen or not yet confirmed: they use memory, but do not run."""
        self._memory_pct: float | None = None

    def sizes_changed(self) -> None:
        """The driver calls this when the size of an operator held here has changed."""
        self._memory_pct = None

    def memory_pct(self) -> float:
        """The memory in use. It is added up by id, so that the order of arrival does not change the sum."""
        if self._memory_pct is None:
            self._memory_pct = sum(self._sizes_pct[operator] for operator in sorted(self.running | self.idle))
        return self._memory_pct

    def usage(self) -> Usage:
        return Usage(self.memory_pct())

    def usage_of(self, operators: Iterable[OperatorId]) -> Usage:
        return Usage(sum(self._sizes_pct[operator] for operator in operators))

    def sent_to(self, peer: EdgeNodeId) -> int:
        return 0

    def received_from(self, peer: EdgeNodeId) -> int:
        return 0

    def freeze(self, operators: Sequence[OperatorId]) -> tuple[Parcel, ...]:
        self.running.difference_update(operators)
        self.idle.update(operators)
        return tuple(Parcel(operator, self.usage_of((operator,))) for operator in operators)

    def hold(self, parcels: Sequence[Parcel]) -> bool:
        self.idle.update(parcel.operator for parcel in parcels)
        self._memory_pct = None
        return True

    def start(self, operators: Sequence[OperatorId], leftovers: Sequence[Piece]) -> None:
        self.idle.difference_update(operators)
        self.running.update(operators)

    def release(self, operators: Sequence[OperatorId], taker: EdgeNodeId) -> tuple[Piece, ...]:
        self.running.difference_update(operators)
        self.idle.difference_update(operators)
        self._memory_pct = None
        return ()


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
        self.negotiators: dict[EdgeNodeId, Negotiator] = {}
        self._where: dict[OperatorId, EdgeNodeId] = dict(world.placement)
        selection = OperatorSelection(world.graph, world.tree)
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
            placement = OperatorPlacement(node, selection, here[node], below[node])
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

    def _change(self, change: SizeChange) -> None:
        self._sizes_pct[change.operator] += change.delta_pct
        for node in self._holders(change.operator):
            self.hosts[node].sizes_changed()
            self._record_overload(node)

    def _holders(self, operator: OperatorId) -> set[EdgeNodeId]:
        """The node that holds the operator; two nodes during the few milliseconds of a hand-over."""
        where = self._where[operator]
        return {where, *(node for node in self._tree.neighbours(where) if operator in self.hosts[node].idle)}

    def _sample(self) -> None:
        self.log.times_s.append(self._kernel.now_s)
        self.log.memory_pct.append([self.hosts[node].memory_pct() for node in self._nodes])

    def _handle(self, node: EdgeNodeId, event: Event) -> None:
        negotiator = self.negotiators[node]
        before = len(negotiator.placement.here)
        for effect in negotiator.handle(event, self._kernel.now_s):
            if isinstance(effect, SendPeerMessage):
                self._send(effect.message)
        self._set_timer(node)
        if len(negotiator.placement.here) != before:
            self._record_moves(node, negotiator)

    def _record_moves(self, node: EdgeNodeId, negotiator: Negotiator) -> None:
        for operator in negotiator.placement.unconfirmed:
            if self._where[operator] != node:
                self._where[operator] = node
                self.log.operators_moved += 1
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
