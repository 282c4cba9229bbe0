"""The tree control at the root: members, leases, generations, publishers' owners, floors and queries."""

from __future__ import annotations

from tocsin.edge.generations import ControlState, Generation
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
from tocsin.model.edge import EdgeNodeId


class TreeControl:
    def __init__(
        self, root: EdgeNodeId, state: ControlState = ControlState(), lease_s: float = 3.0, grace_s: float = 1.0
    ) -> None:
        self.state = state
        self.generation: Generation | None = None
        """The current generation; None before the first one since the start of this process."""

    @property
    def is_running(self) -> bool:
        """True if all nodes of the current generation have reported ready and have been sent `run`."""
        raise NotImplementedError

    @property
    def recoveries(self) -> int:
        """The number of generations started since the start of this process."""
        raise NotImplementedError

    def may_accept(self, generation: int) -> bool:
        """True if results of this generation may be stored now.

        The driver asks before it writes rows, and no event may come between the question, the write and
        `ResultsAccepted`: a new generation started in between would compute the same rows again.
        """
        raise NotImplementedError

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        raise NotImplementedError

    def deadline_s(self) -> float | None:
        """The time at which the driver must send `TimePassed`."""
        raise NotImplementedError
