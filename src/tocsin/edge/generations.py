"""Generations: the fencing epochs of the whole tree, as plain values. `tree_control.py` makes them, `member.py` obeys.

Every fault of the tree leads to the same thing, a new generation: all nodes drop their operators, build new and empty
ones, and the entries replay the readings they keep. A generation is fixed; each change makes the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.edge.plan import Stream
from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Tree, Usage


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Readings that a node reads by itself. The source can be read again from any position."""

    name: str
    stream: str
    kind: str
    """`file` or `topic`."""
    location: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def publisher(self) -> str:
        """The name under which the source's readings enter."""
        return f"source:{self.name}"


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    tree: Tree
    """The nodes that live. The children of a dead node are attached to its nearest living ancestor."""
    addresses: Mapping[EdgeNodeId, str]
    streams: Mapping[str, Stream]
    queries: tuple[str, ...]
    """The text of each CREATE EDGE QUERY."""
    entries: Mapping[str, tuple[EdgeNodeId, ...]]
    """The nodes at which each stream enters, at least one."""
    placement: Mapping[OperatorId, EdgeNodeId]
    """Where each operator starts."""
    floors_us: Mapping[str, int]
    """For each query: results at or below this event time are accepted already."""
    publishers: Mapping[str, EdgeNodeId]
    """The owner of each publisher, which may be dead. A node discards the readings of all other publishers."""
    sources: Mapping[str, tuple[EdgeNodeId, SourceSpec, int]]
    """By name: the node that reads the source, the source, and the position from which it reads."""
    awaited: Mapping[str, tuple[EdgeNodeId, tuple[str, ...]]] = field(default_factory=dict)
    """Publishers whose owner is dead: the node that holds its watermark back for them, and their streams."""
    publisher_streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The streams that each publisher feeds."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The state of a node, sent with each beat."""

    operators: tuple[OperatorId, ...] = ()
    usage: Usage = NOTHING
    inbox_bytes: int = 0
    rows_per_s: float = 0.0
    late_rows: int = 0
    bytes_up: int = 0
    raw_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PublisherRecord:
    owner: EdgeNodeId
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    home: EdgeNodeId
    """The node whose configuration names the source. While it is dead, its nearest living ancestor reads the source."""
    spec: SourceSpec
    position: int = 0
    """No recovery needs readings before this position."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    parent: EdgeNodeId | None
    """The parent that the node names itself, dead or alive."""
    run: int
    """The number of the node's latest registration. Messages of an earlier run are fenced."""
    address: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControlState:
    """What the tree control needs after a restart. The driver stores it as one value.

    Floors change with every accepted result. The driver stores each floor in the transaction that accepts the rows and
    puts the stored floors into `floors_us` when it loads the state.
    """

    generation: int = 0
    nodes: Mapping[EdgeNodeId, NodeRecord] = field(default_factory=dict)
    streams: Mapping[str, Stream] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    """By name: the text of the CREATE EDGE QUERY."""
    floors_us: Mapping[str, int] = field(default_factory=dict)
    publishers: Mapping[str, PublisherRecord] = field(default_factory=dict)
    sources: Mapping[str, SourceRecord] = field(default_factory=dict)
    placement: Mapping[OperatorId, EdgeNodeId] = field(default_factory=dict)
    """The placement with which the latest generation started."""
    members: tuple[EdgeNodeId, ...] | None = None
    """The nodes of the latest generation: no other node can act. None if an earlier version stored the state."""
