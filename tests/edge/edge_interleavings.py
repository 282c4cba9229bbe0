"""A network of negotiating nodes and every action that may happen next: the state space of the protocol tests.

Time is abstract: every deadline may pass at any moment. Messages may be lost, repeated and reordered. A node may die at
any moment, and each of its neighbours learns of the death at another moment later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.edge.edge_worlds import World, is_feasible
from tocsin.edge.messages import (
    EdgeDeadlinePassed,
    Event,
    PeerDied,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    RejectPeerMessage,
    SendPeerMessage,
)
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import OperatorPlacement, OperatorSelection
from tocsin.edge.rounds import Collecting, Timing
from tocsin.model.edge import EdgeNodeId, OperatorId
from tocsin.policies.operators.transfer import TransferRules
from tocsin.sim.edge.host import SizedHost

RULES = TransferRules()
ROOMY = TransferRules(makes_room=True)
AT_ONCE = Timing(0.0, 0.0, 0.0)
NO_NODE = EdgeNodeId("")


@dataclass(frozen=True, order=True)
class Action:
    """The next step. `kind` is one of deliver, repeat, lose, period, time out, die, learn, change."""

    kind: str
    node: EdgeNodeId = NO_NODE
    number: int = 0


@dataclass
class Budget:
    periods: int
    time_outs: int
    losses: int = 0
    repetitions: int = 0
    deaths: int = 0
    changes: tuple[tuple[str, float], ...] = ()
    """Operators and their new sizes, applied in this order at any moment."""


class Network:
    """All nodes of a world, the messages between them and the budget of failures left."""

    def __init__(
        self, world: World, sizes_pct: dict[OperatorId, float], budget: Budget, rules: TransferRules = RULES
    ) -> None:
        self.world = world
        self.selection = OperatorSelection(world.graph, world.tree)
        self.sizes_pct = dict(sizes_pct)
        self.budget = budget
        self.nodes: dict[EdgeNodeId, Negotiator] = {}
        for node in world.tree.nodes:
            here = {operator for operator, place in world.placement.items() if place == node}
            below = {
                operator
                for operator, place in world.placement.items()
                if place != node and world.tree.is_at_or_above(node, place)
            }
            placement = OperatorPlacement(node, self.selection, here, below)
            host = SizedHost(self.sizes_pct, here)
            self.nodes[node] = Negotiator(
                placement, host, dict.fromkeys(world.tree.neighbours(node), 0), rules, AT_ONCE
            )
        self.messages: list[PeerMessage] = []
        self.dead: dict[EdgeNodeId, set[OperatorId]] = {}
        self.unlearnt: list[tuple[EdgeNodeId, EdgeNodeId]] = []
        self.rejected: dict[str, int] = {}
        self.moves = 0

    def fork(self) -> Network:
        """A copy of the network that shares immutable values, to be cheap."""
        handovers = [negotiator.handovers for negotiator in self.nodes.values()]
        shared: list[Any] = [self.world, self.selection, RULES, ROOMY, AT_ONCE, *self.messages]
        shared += [negotiator.placement._available for negotiator in self.nodes.values()]
        shared += [message for node in handovers for message in (*node._decided.values(), *node._confirmed.values())]
        shared += [handover.message for node in handovers for handover in node.outgoing.values()]
        return copy.deepcopy(self, {id(value): value for value in shared})

    def actions(self) -> Iterator[Action]:
        budget = self.budget
        for number, message in enumerate(self.messages):
            yield Action("deliver", message.receiver, number)
            if budget.losses:
                yield Action("lose", message.receiver, number)
            if budget.repetitions:
                yield Action("repeat", message.receiver, number)
        for number, (node, _) in enumerate(self.unlearnt):
            yield Action("learn", node, number)
        if budget.changes:
            yield Action("change")
        for node, negotiator in self.nodes.items():
            if node in self.dead:
                continue
            if budget.periods and not negotiator.is_busy and RULES.band(negotiator.host.usage()) != "NORMAL":
                yield Action("period", node)
            if budget.time_outs and negotiator.deadline_s() is not None:
                yield Action("time out", node)
            if budget.deaths:
                yield Action("die", node)

    def do(self, action: Action) -> None:
        budget = self.budget
        match action.kind:
            case "deliver":
                self._deliver(self.messages.pop(action.number))
            case "repeat":
                budget.repetitions -= 1
                self._deliver(self.messages[action.number])
            case "lose":
                budget.losses -= 1
                del self.messages[action.number]
            case "period":
                budget.periods -= 1
                self._handle(action.node, PeriodElapsed())
            case "time out":
                budget.time_outs -= 1
                self._handle(action.node, EdgeDeadlinePassed())
            case "learn":
                node, died = self.unlearnt.pop(action.number)
                if node not in self.dead:
                    self._handle(node, PeerDied(died))
            case "change":
                (operator, size_pct), *rest = budget.changes
                budget.changes = tuple(rest)
                self.sizes_pct[OperatorId(operator)] = size_pct
                for negotiator in self.nodes.values():
                    negotiator.host.sizes_changed()  # type: ignore[attr-defined]
            case "die":
                budget.deaths -= 1
                self.dead[action.node] = set(self.nodes[action.node].placement.here)
                self.unlearnt += [(node, action.node) for node in self.world.tree.neighbours(action.node)]
        if action.kind not in ("lose", "change"):
            self.check()

    def _deliver(self, message: PeerMessage) -> None:
        if message.receiver not in self.dead:
            self._handle(message.receiver, PeerMessageReceived(message))

    def _handle(self, node: EdgeNodeId, event: Event) -> None:
        negotiator = self.nodes[node]
        before = set(negotiator.placement.here)
        for effect in negotiator.handle(event, 0.0):
            if isinstance(effect, SendPeerMessage):
                self.messages.append(effect.message)
            elif isinstance(effect, RejectPeerMessage):
                self.rejected[effect.code] = self.rejected.get(effect.code, 0) + 1
        if negotiator.placement.here - before:
            self.moves += 1
            assert RULES.may_hold(negotiator.host.usage()), "a node accepted operators above U_t"

    def living(self) -> dict[EdgeNodeId, Negotiator]:
        return {node: negotiator for node, negotiator in self.nodes.items() if node not in self.dead}

    def check(self) -> None:
        """Check the invariants that hold in every state."""
        living = self.living()
        lost = set().union(*self.dead.values()) if self.dead else set()
        placement: dict[OperatorId, EdgeNodeId] = {}
        for operator in self.world.graph.downstream:
            running = [node for node in living if operator in _host(living[node]).running]
            assert len(running) <= 1, f"{operator} runs at {running}"
            holding = [node for node in living if operator in living[node].placement.here]
            assert holding or operator in lost, f"no node holds {operator}"
            if len(holding) > 1:
                giver, taker = sorted(holding, key=lambda node: operator in living[node].placement.unconfirmed)
                assert len(holding) == 2, holding
                assert living[giver].placement.leaving.get(operator) == taker, "held twice without a hand-over"
                assert operator in living[taker].placement.unconfirmed
                holding = [taker]
            if holding:
                placement[operator] = holding[0]
        if len(placement) == len(self.world.graph.downstream):
            assert is_feasible(self.world, placement), placement
        for node, negotiator in living.items():
            known = negotiator.placement
            assert _host(negotiator).running | _host(negotiator).idle == known.here
            for operator, place in placement.items():
                is_below = place != node and self.world.tree.is_at_or_above(node, place)
                giving = known.leaving.get(operator) in self.world.tree.children[node]
                if not self.dead and not giving:
                    assert (operator in known.below) == is_below, "a node is wrong about the operators below it"

    def settle(self) -> None:
        """Finish all pending work without further failures, and check that every operator then runs at one node."""
        self.budget = Budget(0, 0)
        for _ in range(200):
            while self.unlearnt:
                self.do(Action("learn"))
            while self.messages:
                self.do(Action("deliver"))
            waiting = [node for node, negotiator in self.living().items() if negotiator.deadline_s() is not None]
            if not waiting:
                break
            for node in waiting:
                self.budget.time_outs = 1
                self.do(Action("time out", node))
        else:
            raise AssertionError("the network still has pending work")
        lost = set().union(*self.dead.values()) if self.dead else set()
        living = self.living()
        for operator in self.world.graph.downstream:
            running = [node for node in living if operator in _host(living[node]).running]
            assert len(running) == 1 or (not running and operator in lost), f"{operator} runs at {running}"
        assert not any(negotiator.is_busy for negotiator in living.values())

    def fingerprint(self) -> int:
        """Equal for states that differ only in the order of entries in their tables."""
        nodes = [_fingerprint(negotiator) for negotiator in self.nodes.values()]
        return hash(repr((nodes, sorted(map(repr, self.messages)), self.budget, sorted(self.dead), self.unlearnt)))


def _host(negotiator: Negotiator) -> SizedHost:
    assert isinstance(negotiator.host, SizedHost)
    return negotiator.host


def _fingerprint(negotiator: Negotiator) -> tuple[object, ...]:
    phase, placement, handovers = negotiator.state.phase, negotiator.placement, negotiator.handovers
    tables: tuple[dict[Any, Any], ...] = (
        handovers.outgoing,
        handovers.incoming,
        handovers._decided,
        handovers._confirmed,
        negotiator.state.peers,
    )
    return (
        _collecting(phase) if isinstance(phase, Collecting) else repr(phase),
        negotiator.state.missing_room,
        sorted(placement.here),
        sorted(placement.leaving.items()),
        sorted(placement.unconfirmed),
        *(sorted((key, repr(value)) for key, value in table.items()) for table in tables),
    )


def _collecting(phase: Collecting) -> str:
    replies = sorted(repr(reply) for reply in phase.replies)
    return f"{phase.round} {phase.band} {phase.least_pct} {sorted(phase.waiting)} {replies}"
