"""A node's membership in the tree: its lease, and the `EdgeNode` of the current generation.

A member obeys the tree control. It runs the operators of one generation at a time and drops every event of another one:
connections, pieces and messages of an earlier generation can change nothing. Without an answer to its beats within
`lease_s` it stops, because the root may have started a generation without it. The driver calls `handle` in the order of
arrival, carries out the effects in order, and sends `MemberTimePassed` at `deadline_s()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tocsin.edge import node as edge_node
from tocsin.edge.generations import Generation
from tocsin.edge.load import NodeBudget
from tocsin.edge.messages import EdgeDeadlinePassed
from tocsin.edge.next_generation import plans_of
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US
from tocsin.edge.plan import QueryPlan
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.model.edge import EdgeNodeId
from tocsin.policies.operators.transfer import SCARCEST, TransferRules

LIVE_RULES = TransferRules(measure=SCARCEST, makes_room=True)

# Events.


@dataclass(frozen=True, slots=True)
class GenerationReceived:
    generation: Generation


@dataclass(frozen=True, slots=True)
class RunReceived:
    number: int


@dataclass(frozen=True, slots=True)
class LeaseAnswered:
    """The root answered a beat. `sent_s` is the time at which this node sent the beat."""

    sent_s: float
    floors_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FencedReceived:
    """The root has declared this node's present run dead, or never knew it. The driver ignores it for other runs."""


@dataclass(frozen=True, slots=True)
class InGeneration:
    """An event for the `EdgeNode` of one generation. The member drops it if the generation is not the current one."""

    number: int
    event: edge_node.Event


@dataclass(frozen=True, slots=True)
class MemberTimePassed:
    """The time `deadline_s()` has been reached."""


Event = GenerationReceived | RunReceived | LeaseAnswered | FencedReceived | InGeneration | MemberTimePassed

# Effects.


@dataclass(frozen=True, slots=True)
class StopGeneration:
    """Close all data and peer connections of the generation, and stop its sources."""

    number: int


@dataclass(frozen=True, slots=True)
class KeepPublishers:
    """Discard the stored readings of all publishers but these, before the effects that follow."""

    publishers: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReportReady:
    number: int


@dataclass(frozen=True, slots=True)
class OpenLinks:
    """Open the data and the peer connection to the parent; at the root there is none."""

    number: int
    parent: EdgeNodeId | None


@dataclass(frozen=True, slots=True)
class ReplayReadings:
    """Hand in the kept readings of each stream that are newer than its horizon, then `ReplayFinished`.

    Sources start too. Readings stored from now on are handed in as they come; all readings travel as `InGeneration`.
    """

    number: int
    horizons_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NeedsNoLonger:
    """No recovery needs a batch of the stream whose newest reading is at or before the horizon."""

    horizons_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RegisterAgain:
    """The lease is lost. Acknowledge no readings, and register with a higher run."""


Effect = (
    StopGeneration
    | KeepPublishers
    | ReportReady
    | OpenLinks
    | ReplayReadings
    | NeedsNoLonger
    | RegisterAgain
    | edge_node.Effect
)


class Member:
    def __init__(
        self,
        node: EdgeNodeId,
        memory_bytes: int | NodeBudget,
        rules: TransferRules = LIVE_RULES,
        timing: Timing = DEFAULT_TIMING,
        lease_s: float = 3.0,
        silence_s: float = 20.0,
        cpu_clock: Callable[[], float] | None = None,
    ) -> None:
        """`silence_s`: a publisher that sends nothing for so long holds no watermark back.

        `cpu_clock` returns the processor time of the thread that handles the events, in seconds.
        """
        self.node = node
        self._budget = memory_bytes if isinstance(memory_bytes, NodeBudget) else NodeBudget(memory_bytes)
        self._rules, self._timing = rules, timing
        self._lease_s, self._silence_s, self._cpu_clock = lease_s, silence_s, cpu_clock
        self.generation: Generation | None = None
        """The current generation: built, and perhaps running."""
        self.edge_node: edge_node.EdgeNode | None = None
        """The operators of the current generation."""
        self.is_running = False
        self._least_number = 0
        """Generations below this number are over at this node."""
        self._answered_until_s: float | None = None
        """The end of the lease; None before the first answer."""
        self._lease_until_s: float | None = None
        """When to give up: the end of the lease, or of the wait for the first answer."""
        self._floors_us: Mapping[str, int] = {}
        self._plans: list[QueryPlan] = []
        """Of the current generation."""
        self._silent: Mapping[str, Collection[str]] = {}
        self._earlier_late_rows = 0
        """Of generations that are over."""
        self.dropped_events = 0
        """Events of other generations."""

    @property
    def runs(self) -> int:
        """The number of the generation that runs here, for the beat; 0 if none runs."""
        return self.generation.number if self.generation is not None and self.is_running else 0

    @property
    def late_rows(self) -> int:
        """The late rows of the operators here, and of those that ended here with their generation."""
        present = {} if self.edge_node is None else self.edge_node.dataflow.late_rows()
        return self._earlier_late_rows + sum(present.values())

    def may_acknowledge(self, now_s: float) -> bool:
        """True while the root has answered recently enough: the node may answer publishers."""
        return self.generation is not None and self._answered_until_s is not None and now_s < self._answered_until_s

    def deadline_s(self) -> float | None:
        node_s = None if self.edge_node is None else self.edge_node.deadline_s()
        lease_s = None if self.generation is None else self._lease_until_s
        return min((at_s for at_s in (node_s, lease_s) if at_s is not None), default=None)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if not isinstance(event, LeaseAnswered) and self._has_lost_lease(now_s):
            return [*self._stop(now_s), RegisterAgain()]
        match event:
            case GenerationReceived(generation):
                return self._on_generation(generation, now_s)
            case RunReceived(number):
                return self._on_run(number)
            case LeaseAnswered(sent_s, floors_us):
                return self._on_lease(sent_s, floors_us, now_s)
            case FencedReceived():
                effects = self._stop(now_s)
                self._lease_until_s = self._answered_until_s = None
                return [*effects, RegisterAgain()]
            case InGeneration(number, inner):
                return self._on_inner(number, inner, now_s)
            case MemberTimePassed():
                if self.edge_node is not None and self.generation is not None:
                    return [*self.edge_node.handle(EdgeDeadlinePassed(), now_s)]
                return []

    def _has_lost_lease(self, now_s: float) -> bool:
        return self.generation is not None and self._lease_until_s is not None and now_s >= self._lease_until_s

    def _on_lease(self, sent_s: float, floors_us: Mapping[str, int], now_s: float) -> list[Effect]:
        """An answer that comes after the lease has ended does not renew it: the root may have fenced this run."""
        if self._has_lost_lease(now_s):
            return [*self._stop(now_s), RegisterAgain()]
        if now_s >= sent_s + self._lease_s:
            return []
        self._answered_until_s = self._lease_until_s = max(self._answered_until_s or 0.0, sent_s + self._lease_s)
        if self.generation is None or floors_us == self._floors_us:
            return []
        self._floors_us = floors_us
        return [NeedsNoLonger(self._horizons_us())]

    def _on_generation(self, generation: Generation, now_s: float) -> list[Effect]:
        if generation.number < self._least_number:
            return []
        if self.generation is not None and generation.number == self.generation.number:
            return [ReportReady(generation.number)]  # the connection to the root was lost
        effects = self._stop(now_s)
        self._least_number = generation.number
        self.generation, self._floors_us = generation, generation.floors_us
        if self._lease_until_s is None:
            self._lease_until_s = now_s + self._lease_s
        plans = plans_of(generation.queries, generation.streams, generation.entries, generation.tree)
        self._plans = plans
        self.edge_node = edge_node.EdgeNode(
            self.node,
            generation.tree,
            plans,
            generation.placement,
            self._budget,
            self._rules,
            self._timing,
            epoch=generation.number,
            floors_us=generation.floors_us,
            has_inbox=True,
            silence_s=self._silence_s,
            cpu_clock=self._cpu_clock,
        )
        self.edge_node.begin_replay(self._expected(generation), self._silent)
        owned = frozenset(name for name, owner in generation.publishers.items() if owner == self.node)
        return [*effects, KeepPublishers(owned), ReportReady(generation.number)]

    def _expected(self, generation: Generation) -> dict[str, set[str]]:
        """The publishers of each stream that must be heard here before results are complete."""
        expected: dict[str, set[str]] = {}
        owned = {
            name: generation.publisher_streams[name] for name, at in generation.publishers.items() if at == self.node
        }
        awaited = {name: streams for name, (at, streams) in generation.awaited.items() if at == self.node}
        sources = {spec.publisher: (spec.stream,) for at, spec, _ in generation.sources.values() if at == self.node}
        for name, streams in (owned | awaited | sources).items():
            for stream in streams:
                expected.setdefault(stream, set()).add(name)
        return expected

    def _on_run(self, number: int) -> list[Effect]:
        generation = self.generation
        if generation is None or number != generation.number or self.is_running:
            return []
        self.is_running = True
        parent = generation.tree.parents.get(self.node)
        return [OpenLinks(number, parent), ReplayReadings(number, self._horizons_us())]

    def _on_inner(self, number: int, event: edge_node.Event, now_s: float) -> list[Effect]:
        """Pieces may come before `run`: a child may have received it earlier."""
        if self.edge_node is None or self.generation is None or number != self.generation.number:
            self.dropped_events += 1
            return []
        if isinstance(event, edge_node.ReadingsArrived) and not self.is_running:
            return []  # they are stored, and will be replayed
        return [*self.edge_node.handle(event, now_s)]

    def _stop(self, now_s: float) -> list[Effect]:
        """Forget the generation. It never runs here again, because the others may go on without this node."""
        if self._has_lost_lease(now_s):
            self._lease_until_s = self._answered_until_s = None
        if self.generation is None or self.edge_node is None:
            return []
        self._earlier_late_rows = self.late_rows
        number, self.generation = self.generation.number, None
        self._silent = self.edge_node.dataflow.entries.silent(now_s)
        self.edge_node, self.is_running, self._least_number = None, False, number + 1
        return [StopGeneration(number)]

    def _horizons_us(self) -> dict[str, int]:
        """For each stream: no query needs a reading at or before this time."""
        assert self.generation is not None
        horizons_us = dict.fromkeys(self.generation.streams, END_OF_TIME_US)
        for plan in self._plans:
            floor_us = self._floors_us.get(plan.name, BEGINNING_OF_TIME_US)
            for stream in plan.histories:
                horizons_us[stream] = min(horizons_us[stream], plan.horizon_us(stream, floor_us))
        return horizons_us
