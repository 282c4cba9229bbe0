"""A node's membership in the tree: its lease, and the `EdgeNode` of the current generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.edge import node as edge_node
from tocsin.edge.generations import Generation
from tocsin.edge.rounds import DEFAULT_TIMING, Timing
from tocsin.model.edge import EdgeNodeId
from tocsin.policies.operators.transfer import DEFAULT_RULES, TransferRules

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
    """The root has declared this run dead, or never knew it."""


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
        memory_bytes: int,
        rules: TransferRules = DEFAULT_RULES,
        timing: Timing = DEFAULT_TIMING,
        lease_s: float = 3.0,
    ) -> None:
        self.node = node
        self.generation: Generation | None = None
        self.edge_node: edge_node.EdgeNode | None = None
        """The operators of the current generation."""

    @property
    def runs(self) -> int:
        """The number of the generation that runs here, for the beat; 0 if none runs."""
        raise NotImplementedError

    def may_acknowledge(self, now_s: float) -> bool:
        """True while the lease holds: the node may answer publishers."""
        raise NotImplementedError

    def credit_bytes(self, child: EdgeNodeId) -> int:
        """The total number of bytes of pieces that the child may have sent in this generation. It only rises."""
        raise NotImplementedError

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        raise NotImplementedError

    def deadline_s(self) -> float | None:
        raise NotImplementedError
