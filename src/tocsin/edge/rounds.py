"""Where a node stands in a round of negotiation, and how long it may stay. Values; `negotiation.py` moves them on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.edge.messages import Message, RoundId
from tocsin.model.edge import EdgeNodeId, Usage
from tocsin.policies.operators.transfer import Band, Reply


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. The thesis waits for ever; these only have to be longer than a round trip between neighbours."""

    reply_within_s: float = 1.0
    """How long the one who began a round waits for replies."""
    promise_for_s: float = 3.0
    """How long a promise (or the expectation of promised operators) stands: longer than the wait for all replies."""
    repeat_s: float = 1.0
    """How often an unanswered hand-over is repeated."""


DEFAULT_TIMING = Timing()


@dataclass(slots=True)
class Collecting:
    """Began a round; waits for replies."""

    round: RoundId
    band: Band
    asked: tuple[EdgeNodeId, ...]
    waiting: set[EdgeNodeId]
    deadline_s: float
    replies: list[Reply] = field(default_factory=list)


@dataclass(slots=True)
class Promised:
    """Answered a neighbour's round with something; waits for what it decides."""

    reply: Message
    reserved: Usage
    deadline_s: float


@dataclass(slots=True)
class Expecting:
    """Chose what neighbours shall give; waits for the operators to arrive."""

    round: RoundId
    givers: set[EdgeNodeId]
    deadline_s: float
