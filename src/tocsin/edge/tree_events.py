"""Events and effects of the tree control, as values. `tree_control.py` says what they mean together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.edge.generations import ControlState, Generation, NodeReport, SourceSpec
from tocsin.edge.plan import Stream
from tocsin.model.edge import EdgeNodeId

# Events.


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    """A node opened its control connection. `run` rises with each registration after a restart or a lost lease.

    A node that reconnects within its lease registers with its present run and keeps its generation.
    """

    node: EdgeNodeId
    parent: EdgeNodeId | None
    run: int
    address: str
    streams: tuple[str, ...] = ()
    sources: tuple[SourceSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeBeat:
    node: EdgeNodeId
    run: int
    sent_s: float
    """The time of the node's own clock, which the answer repeats."""
    generation: int
    """The generation that the node runs; 0 before the first `run`."""
    report: NodeReport = field(default_factory=NodeReport)


@dataclass(frozen=True, slots=True)
class NodeReady:
    node: EdgeNodeId
    generation: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A data or peer connection between two nodes of the generation broke, or could not be opened."""

    node: EdgeNodeId
    generation: int
    peer: EdgeNodeId


@dataclass(frozen=True, slots=True)
class ControlLost:
    """A control connection closed. The lease decides whether the node is dead."""

    node: EdgeNodeId
    run: int


@dataclass(frozen=True, slots=True)
class PublisherAttached:
    """A publisher sent its first batch of a stream to this node since the node's start."""

    node: EdgeNodeId
    publisher: str
    stream: str
    generation: int
    """The generation that the node runs. The control rejects the event if it is not the current one."""


@dataclass(frozen=True, slots=True)
class QueryDeployed:
    text: str


@dataclass(frozen=True, slots=True)
class StreamDeclared:
    name: str
    stream: Stream


@dataclass(frozen=True, slots=True)
class QueryDropped:
    name: str


@dataclass(frozen=True, slots=True)
class ResultsAccepted:
    """The driver has stored the rows of a query and its new floor. See `TreeControl.may_accept`."""

    query: str
    floor_us: int
    generation: int


@dataclass(frozen=True, slots=True)
class SourcePositionReported:
    source: str
    position: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time `deadline_s()` has been reached."""


Event = (
    NodeRegistered
    | NodeBeat
    | NodeReady
    | LinkLost
    | ControlLost
    | PublisherAttached
    | QueryDeployed
    | StreamDeclared
    | QueryDropped
    | ResultsAccepted
    | SourcePositionReported
    | TimePassed
)

# Effects, which the driver carries out in order.


@dataclass(frozen=True, slots=True)
class StoreControl:
    """Store the state durably before the effects that follow."""

    state: ControlState


@dataclass(frozen=True, slots=True)
class SendGeneration:
    node: EdgeNodeId
    generation: Generation


@dataclass(frozen=True, slots=True)
class SendRun:
    node: EdgeNodeId
    number: int


@dataclass(frozen=True, slots=True)
class SendBeatAnswer:
    node: EdgeNodeId
    sent_s: float
    floors_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SendFenced:
    """The node's run is over: it drops its generation and registers again with a higher run."""

    node: EdgeNodeId
    run: int
    known: int = 0
    """The highest run of the node so far. A node that lost its folder and has a slow clock cannot know it."""


@dataclass(frozen=True, slots=True)
class GrantPublisher:
    """The node may answer the publisher's first batch of the stream."""

    node: EdgeNodeId
    publisher: str
    stream: str


@dataclass(frozen=True, slots=True)
class RejectRequest:
    """The event had no effect. The driver answers its sender with the code and the reason."""

    code: str
    reason: str


Effect = StoreControl | SendGeneration | SendRun | SendBeatAnswer | SendFenced | GrantPublisher | RejectRequest
