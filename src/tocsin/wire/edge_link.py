"""The messages of the control connection between an edge node and the root's process, as JSON.

The node opens the connection and registers first. All readings and results use other connections (`edge_data`), and so
does the negotiation between neighbours (`edge_peer`).
"""

from __future__ import annotations

import msgspec

PATH = "/v1/edge/control"


class FromNode(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class FromRoot(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class Source(msgspec.Struct, frozen=True):
    """A file or a topic that a node reads by itself."""

    name: str
    stream: str
    kind: str
    location: str
    options: dict[str, str] = {}


class Register(FromNode, frozen=True, tag="register"):
    node: str
    parent: str | None
    run: int
    """The epoch of the node. It grows with each registration, also across restarts."""
    address: str
    streams: list[str]
    """The streams that enter here over HTTP."""
    sources: list[Source]


class Report(msgspec.Struct, frozen=True):
    operators: list[str] = []
    memory_pct: float = 0.0
    cpu_pct: float = 0.0
    network_pct: float = 0.0
    inbox_bytes: int = 0
    rows_per_s: float = 0.0
    late_rows: int = 0
    bytes_up: int = 0
    """Bytes sent to the parent on data connections since the node started."""
    raw_bytes: int = 0
    """Bytes of the readings that entered here since the node started, as Arrow columns."""


class Beat(FromNode, frozen=True, tag="beat"):
    run: int
    sent_s: float
    """The node's own clock."""
    generation: int
    report: Report


class Ready(FromNode, frozen=True, tag="ready"):
    """The node has built the operators of the generation."""

    generation: int


class LinkBroken(FromNode, frozen=True, tag="link_broken"):
    """A data or peer connection of the generation broke or could not be opened."""

    generation: int
    peer: str


class AttachPublisher(FromNode, frozen=True, tag="attach_publisher"):
    """A publisher sends its first batch to this node."""

    publisher: str
    stream: str
    generation: int


class SourcePosition(FromNode, frozen=True, tag="source_position"):
    """No recovery needs the source before this position."""

    source: str
    position: int


class TransferAnswer(FromNode, frozen=True, tag="transfer_answer"):
    """The answer to `OrderTransfer`: the transfer of these operators began, or `code` says why it did not."""

    request: int
    operators: list[str]
    code: str | None = None


class Column(msgspec.Struct, frozen=True, array_like=True):
    name: str
    type: str


class StreamDeclaration(msgspec.Struct, frozen=True):
    columns: list[Column]
    time: str


class PlacedSource(msgspec.Struct, frozen=True):
    source: Source
    node: str
    position: int


class StartGeneration(FromRoot, frozen=True, tag="start_generation"):
    """Stop the present generation and build the operators of this one. The node answers with `Ready`."""

    number: int
    root: str
    parents: dict[str, str]
    addresses: dict[str, str]
    streams: dict[str, StreamDeclaration]
    queries: list[str]
    entries: dict[str, list[str]]
    placement: dict[str, str]
    floors_us: dict[str, int]
    publishers: dict[str, str]
    sources: list[PlacedSource]
    awaited: dict[str, tuple[str, list[str]]] = {}
    publisher_streams: dict[str, list[str]] = {}


class RunGeneration(FromRoot, frozen=True, tag="run_generation"):
    """All nodes are ready: open the connections and feed the readings."""

    number: int


class BeatAnswer(FromRoot, frozen=True, tag="beat_answer"):
    sent_s: float
    """The `sent_s` of the answered beat."""
    floors_us: dict[str, int]


class Fenced(FromRoot, frozen=True, tag="fenced"):
    """The root declared this run of the node dead. The node stops and registers again, with a higher run than these."""

    run: int
    known: int = 0
    """The highest run of the node that the root knows."""


class GrantPublisher(FromRoot, frozen=True, tag="grant_publisher"):
    """This node may acknowledge batches of the publisher from now on."""

    publisher: str
    stream: str


class PublisherRejected(FromRoot, frozen=True, tag="publisher_rejected"):
    """The answer to an `AttachPublisher` that had no effect."""

    publisher: str
    stream: str
    code: str
    reason: str


class Rejected(FromRoot, frozen=True, tag="rejected"):
    """Another message of the node had no effect."""

    code: str
    reason: str


class OrderTransfer(FromRoot, frozen=True, tag="order_transfer"):
    request: int
    operators: list[str]
    destination: str


NodeMessage = Register | Beat | Ready | LinkBroken | AttachPublisher | SourcePosition | TransferAnswer
RootMessage = (
    StartGeneration
    | RunGeneration
    | BeatAnswer
    | Fenced
    | GrantPublisher
    | PublisherRejected
    | Rejected
    | OrderTransfer
)
